package link

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/answer"
)

// TestHostileChild: a child that answers without end, sends its probes elsewhere, or is
// where no child may be, is told so, with a reason of its own.
func TestHostileChild(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another server was asked, with %q", r.Header.Get("Authorization"))
	}))
	defer other.Close()
	spaces := strings.Repeat(" ", 1<<16)
	for name, tt := range map[string]struct {
		reason    string
		handler   http.HandlerFunc
		addresses answer.Addresses
		host      string
		want      string
	}{
		"Bomb": {reason: "a few MB that inflate to gigabytes", want: answer.ReasonTooLarge, handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "gzip")
			gz, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
			if err != nil {
				return
			}
			_, _ = io.WriteString(gz, `{"kind":"Namespace",`)
			for range 1 << 12 {
				if _, err := io.WriteString(gz, spaces); err != nil || r.Context().Err() != nil {
					return
				}
			}
		}},
		"Redirect": {reason: "to another host, without TLS", want: answer.ReasonRedirect, handler: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}},
		"Switched": {reason: "another protocol, and silence", want: answer.ReasonNotKubernetes, handler: func(w http.ResponseWriter, _ *http.Request) {
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				defer c.Close()
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				_, _ = io.Copy(io.Discard, c) // until the client hangs up
			}
		}},
		"Denied": {reason: "by the flag", want: answer.ReasonAddress, addresses: answer.Addresses{Deny: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
			handler: func(http.ResponseWriter, *http.Request) { t.Error("it was asked") }},
		"Metadata": {reason: "a kubeconfig that names it", want: answer.ReasonAddress, host: "https://169.254.169.254", handler: func(http.ResponseWriter, *http.Request) {}},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewTLSServer(tt.handler)
			defer s.Close()
			n := newNear(t, newFar(t))
			n.pool.Addresses = tt.addresses
			config := &rest.Config{Host: s.URL, BearerToken: "s3cret", TLSClientConfig: rest.TLSClientConfig{CAData: pemOf(s.Certificate().Raw)}}
			if tt.host != "" {
				config.Host = tt.host
			}
			n.q.Read = func(context.Context) (*rest.Config, error) { return config, nil }
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := n.probed(t)
			runtime.ReadMemStats(&after)
			if got.Err == nil || reason.Of(got.Err) != tt.want {
				t.Errorf("%s: got %v, want reason %s", tt.reason, got.Err, tt.want)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
				t.Errorf("%s: %d bytes were allocated", tt.reason, took)
			}
		})
	}
}
