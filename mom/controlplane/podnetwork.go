package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// An API server proxies to no loopback address, and endpoints may not have one; processes
// of this machine have no other. With --pod-network the API has pods at addresses of
// 240.0.0.0/8, which are reserved and lead nowhere, and the API server reaches them as that of
// a hosted control plane does, by egress selection: through a proxy, which connects to the
// address in 127.0.0.0/8 that ends in the same octets. All others it connects to as they are.
const (
	podOctet      = "240."
	loopbackOctet = "127."
	// egressSocket is in the working folder, like that of etcd.
	egressSocket = "egress.sock"
	// dialTimeout bounds a connection that nobody accepts.
	dialTimeout = 30 * time.Second
)

const egressConfiguration = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport: {uds: {udsName: ` + egressSocket + `}}
`

// behind is where the pod with an address listens.
func behind(address string) string {
	if rest, ok := strings.CutPrefix(address, podOctet); ok {
		return loopbackOctet + rest
	}
	return address
}

// serveEgress makes the way to pods. It returns when the socket is there, and the function
// that serves on it until ctx ends.
func serveEgress(ctx context.Context, dir layout) (func() error, error) {
	if err := replaceFile(dir.egress(), []byte(egressConfiguration), 0o644); err != nil {
		return nil, err
	}
	if err := os.Remove(egressSocket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot remove socket of a run before: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", egressSocket)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for the API server's way to pods: %w", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { connect(ctx, w, r) }), ReadHeaderTimeout: dialTimeout}
	return func() error {
		stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // the process ends with it
		defer stop()
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("cannot serve the API server's way to pods: %w", err)
		}
		return nil
	}, nil
}

// connect answers a request of method CONNECT: it joins the connection with one to the pod.
func connect(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		http.Error(w, "only CONNECT is served", http.StatusMethodNotAllowed)
		return
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	pod, err := dialer.DialContext(r.Context(), "tcp", behind(r.Host))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = pod.Close() }()
	// The API server speaks only after the answer: nothing of it is in the buffer.
	server, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		klog.ErrorS(err, "Cannot take over a connection of the API server")
		return
	}
	defer func() { _ = server.Close() }()
	if _, err := io.WriteString(server, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return // the API server gave up
	}
	stop := context.AfterFunc(ctx, func() { _ = pod.Close(); _ = server.Close() })
	defer stop()
	var copies sync.WaitGroup
	for _, way := range [][2]net.Conn{{pod, server}, {server, pod}} {
		copies.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			// HTTP and TLS say themselves where they end: a side that is gone ends both.
			_ = way[0].Close()
			_ = way[1].Close()
		})
	}
	copies.Wait()
}
