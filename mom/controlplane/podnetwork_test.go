package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestPodNetwork: the API server's way to pods leads from an address of the pod network to
// loopback, carries both directions, and says if nobody listens.
func TestPodNetwork(t *testing.T) {
	t.Chdir(t.TempDir()) // the socket is in the working folder
	ctx, cancel := context.WithCancel(t.Context())
	serve, err := serveEgress(ctx, layout(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve() }()
	pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, "got "+string(body))
	}))
	defer pod.Close()
	taken := pod.Listener.Addr().String()
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := nobody.Addr().String()
	_ = nobody.Close()
	for _, c := range []struct {
		reason, address string
		status          int
	}{
		{"a pod", podOctet + strings.TrimPrefix(taken, loopbackOctet), http.StatusOK},
		{"what is at its own address, as nodes and webhooks are", taken, http.StatusOK},
		{"nobody listens", podOctet + strings.TrimPrefix(free, loopbackOctet), http.StatusBadGateway},
	} {
		connection, err := net.Dial("unix", egressSocket)
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		if _, err := io.WriteString(connection, "CONNECT "+c.address+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		answers := bufio.NewReader(connection)
		answer, err := http.ReadResponse(answers, &http.Request{Method: http.MethodConnect})
		if err != nil || answer.StatusCode != c.status {
			t.Errorf("%s: %v, %v", c.reason, answer, err)
		}
		if c.status != http.StatusOK {
			continue
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://pod/", strings.NewReader("this"))
		if err != nil {
			t.Fatal(err)
		}
		if err := request.Write(connection); err != nil {
			t.Fatal(err)
		}
		if answer, err = http.ReadResponse(answers, request); err != nil {
			t.Fatalf("%s: %v", c.reason, err)
		}
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "got this" {
			t.Errorf("%s: %q, %v", c.reason, body, err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}
