package agent

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// TestLocalDeadlines: a call to the agent's own cluster has a deadline, and a watch has
// none: it would begin anew twice a minute for each kind.
func TestLocalDeadlines(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadataList","items":[]}`)) // the client tells
	}))
	defer s.Close()
	deadlines := map[bool]time.Duration{}
	config := &rest.Config{Host: s.URL}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if at, ok := r.Context().Deadline(); ok {
				deadlines[r.URL.Query().Get("watch") == "true"] = time.Until(at).Round(time.Second)
			}
			return next.RoundTrip(r)
		})
	})
	local, err := (&applying{concurrent: 1}).build(config, runtime.NewScheme(), func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	kind := local.Reader().Resource(corev1.SchemeGroupVersion.WithResource("configmaps"))
	if _, err := kind.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := kind.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	if got := deadlines[false]; got != 30*time.Second {
		t.Errorf("a call has %s", got)
	}
	if got, ok := deadlines[true]; ok {
		t.Errorf("a watch has a deadline of %s", got)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
