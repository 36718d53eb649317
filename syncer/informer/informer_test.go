package informer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// TestEndedInformer: a version that is not served any more cannot be read. Once the watch
// has moved to another one, nobody misses it, and the agent is ready again.
func TestEndedInformer(t *testing.T) {
	i := New(&rest.Config{}, runtime.NewScheme(), logr.Discard(), func(string) bool { return false })
	former, end := context.WithCancel(t.Context())
	i.read(former, "Cluster.v1beta1", errors.New("the server could not find the requested resource"))
	i.read(former, "Cluster.v1beta1", errors.New("the server could not find the requested resource"))
	i.read(t.Context(), "Cluster.v1beta2", nil)
	if i.Check(nil) == nil {
		t.Fatal("a kind that cannot be read is not told")
	}
	end()
	for deadline := time.Now().Add(time.Minute); i.Check(nil) != nil; {
		if time.Now().After(deadline) {
			t.Fatalf("the informer has ended, and the agent is not ready: %v", i.Check(nil))
		}
	}
}
