package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime/pprof"
	"strings"
	"testing"
)

// singleTo is a transport to a test server with TLS.
func singleTo(t *testing.T, h http.HandlerFunc) (*single, *httptest.Server) {
	t.Helper()
	server := httptest.NewTLSServer(h)
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return &single{dial: (&net.Dialer{}).DialContext, tls: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}, server
}

func get(t *testing.T, ctx context.Context, s *single, url string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s.RoundTrip(r)
}

// TestSingle: what a server may answer, and what becomes of it.
func TestSingle(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		answer http.HandlerFunc
		want   string
	}{
		"Whole":    {"an answer of known length", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "all") }, "200 all"},
		"Request":  {"path, query and header arrive", func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.URL, " ", r.Host != "") }, "200 /apis?watch=1 true"},
		"Refused":  {"an error is an answer", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }, "403 no\n"},
		"Redirect": {"nothing is followed", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/other", http.StatusFound) }, "302 <a href=\"/other\">Found</a>.\n\n"},
		"Informational": {"hints come before the answer", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.WriteString(w, "late")
		}, "200 late"},
		"LongHeader": {"a header has a bound", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", mostHeader))
			_, _ = io.WriteString(w, "x")
		}, "the header of the answer has more than 65536 bytes"},
		"Cut": {"the connection ends in the middle", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = io.WriteString(w, "cut")
		}, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			s, server := singleTo(t, tc.answer)
			response, err := get(t, t.Context(), s, server.URL+"/apis?watch=1")
			got := ""
			if err == nil {
				var body []byte
				body, err = io.ReadAll(response.Body)
				got = fmt.Sprintf("%d %s", response.StatusCode, body)
				_ = response.Body.Close()
			}
			if err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestSingleStreams: what is sent arrives before the answer ends, no goroutine waits beside the
// reader, and the connection ends with the body.
func TestSingleStreams(t *testing.T) {
	ended := make(chan struct{})
	events := make(chan string)
	s, server := singleTo(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		flush := http.NewResponseController(w)
		for {
			_ = flush.Flush()
			select {
			case e := <-events:
				_, _ = io.WriteString(w, e)
			case <-r.Context().Done():
				return
			}
		}
	})
	response, err := get(t, t.Context(), s, server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		want := fmt.Sprintf("event %d\n", i)
		events <- want
		got := make([]byte, len(want))
		if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
	var all bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&all, 2); err != nil {
		t.Fatal(err)
	}
	for _, beside := range []string{"persistConn", "http2ClientConn"} {
		if strings.Contains(all.String(), beside) {
			t.Errorf("a goroutine of %s is beside the one that reads", beside)
		}
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	<-ended
}

// TestSingleEnds: a call ends with its context, whatever the server does at the time.
func TestSingleEnds(t *testing.T) {
	for name, begins := range map[string]bool{"BeforeTheAnswer": false, "AfterItBegan": true} {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{})
			s, server := singleTo(t, func(w http.ResponseWriter, r *http.Request) {
				if begins {
					_ = http.NewResponseController(w).Flush()
				}
				close(asked)
				<-r.Context().Done()
			})
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-asked; cancel() }()
			response, err := get(t, ctx, s, server.URL)
			if begins {
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				if err == nil {
					_, err = io.ReadAll(response.Body)
					defer func() { _ = response.Body.Close() }()
				}
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want that it was cancelled", err)
			}
		})
	}
}

// TestSingleTrustsNobody: a server that another authority vouches for is not asked, and one
// that cannot be dialed is not either.
func TestSingleTrustsNobody(t *testing.T) {
	s, server := singleTo(t, func(http.ResponseWriter, *http.Request) { t.Error("it was asked") })
	s.tls = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	var unknown *tls.CertificateVerificationError
	if _, err := get(t, t.Context(), s, server.URL); !errors.As(err, &unknown) {
		t.Errorf("got %v, want that the certificate is not trusted", err)
	}
	refused := errors.New("refused")
	s.dial = func(context.Context, string, string) (net.Conn, error) { return nil, refused }
	if _, err := get(t, t.Context(), s, server.URL); !errors.Is(err, refused) {
		t.Errorf("got %v, want what the dialer says", err)
	}
}
