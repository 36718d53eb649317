//go:build linux

package mom

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// TestWatcher: what is saved and no Cluster tells of is watched as well.
func TestWatcher(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, at, labels string
	}{
		"Child":   {"another label of it is another layer", "/apis/cascade.dev/v1alpha1/children", ""},
		"Rollout": {"a skip is in its status alone", "/apis/cascade.dev/v1alpha1/rollouts", ""},
		"Secret":  {"it is handed to children, and is of no Cluster", "/api/v1/secrets", ""},
		"Record":  {"the agent says what it knows", "/api/v1/namespaces/cascade-system/configmaps", ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch q := r.URL.Query(); {
				case q.Has("sendInitialEvents"):
					http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`, http.StatusUnprocessableEntity)
				case q.Has("watch"):
					<-ctx.Done()
				default:
					item := ""
					if r.URL.Path == tc.at && q.Get("labelSelector") == "" {
						item = `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"namespace":"fleet","name":"a"}}`
					}
					_, _ = io.WriteString(w, fmt.Sprintf(`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[%s]}`, item))
				}
			}))
			touched, done := make(chan struct{}, 1), make(chan struct{})
			w := &watcher{client: fake.NewClientBuilder().Build(), config: &rest.Config{Host: server.URL}, touch: func() {
				select {
				case touched <- struct{}{}:
				default:
				}
			}}
			go func() {
				defer close(done)
				if err := w.run(ctx); err != nil {
					t.Error(err)
				}
			}()
			select {
			case <-touched:
			case <-time.After(5 * time.Second):
				t.Errorf("%s: nothing is told of %s", tc.reason, path.Base(tc.at))
			}
			cancel()
			<-done
			server.Close()
		})
	}
}
