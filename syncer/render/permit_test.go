package render

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestAllowNetwork: a permit holds for the request that carries it, and
// leaves no connection behind that another request could use.
func TestAllowNetwork(t *testing.T) {
	for name, server := range map[string]func(http.Handler) *httptest.Server{
		"HTTP": httptest.NewServer, "HTTPS": func(h http.Handler) *httptest.Server {
			s := httptest.NewUnstartedServer(h)
			s.EnableHTTP2 = true
			s.StartTLS()
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			s := server(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
			defer s.Close()
			transport := deniedTransport().Clone()
			transport.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig
			client := &http.Client{Transport: transport}
			for range 2 {
				permitted, err := http.NewRequestWithContext(source.AllowNetwork(t.Context()), http.MethodGet, s.URL, nil)
				if err != nil {
					t.Fatal(err)
				}
				response, err := client.Do(permitted)
				if err != nil {
					t.Fatalf("permitted request: %v", err)
				}
				defer response.Body.Close()
				if response, err := client.Get(s.URL); err == nil {
					response.Body.Close()
					t.Error("a request without a permit passed")
				}
			}
			if n := requests.Load(); n != 2 {
				t.Errorf("server saw %d requests, want 2", n)
			}
		})
	}
}
