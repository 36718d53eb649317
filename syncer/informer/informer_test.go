package informer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// TestEndedInformer: a version that is not served any more cannot be read. Once the watch
// has moved to another one, nobody misses it, and the agent is ready again.
func TestEndedInformer(t *testing.T) {
	i := New(&rest.Config{}, runtime.NewScheme(), logr.Discard(), func(string) bool { return false }, func(schema.GroupKind) bool { return false })
	former, end := context.WithCancel(t.Context())
	of := &reader{kind: "Cluster.v1beta1"}
	i.read(former, of, errors.New("the conversion webhook does not answer"))
	i.read(former, of, errors.New("the conversion webhook does not answer"))
	i.read(t.Context(), &reader{kind: "Cluster.v1beta2"}, nil)
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

// TestRemovedKind: a kind that an agent does without may be taken out of the tier, and the
// agent is ready all the same.
func TestRemovedKind(t *testing.T) {
	kind := schema.GroupKind{Group: "example.com", Kind: "Profile"}
	missing := apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{Group: kind.Group, Resource: "profiles"}, "", "404 page not found", 0, false)
	for name, tc := range map[string]struct {
		reason       string
		required     bool
		before, then error
		ready        bool
	}{
		"Removed":   {"its definition was deleted", false, nil, missing, true},
		"Forgotten": {"and the mapper knows by now", false, nil, &meta.NoKindMatchError{GroupKind: kind}, true},
		"Required":  {"there is nothing to do without it", true, nil, missing, false},
		"Failing":   {"it is there and cannot be read", false, nil, errors.New("the conversion webhook does not answer"), false},
		"Never":     {"nobody knows yet whether it is there", false, errors.New("connection refused"), missing, false},
	} {
		t.Run(name, func(t *testing.T) {
			i := New(&rest.Config{}, runtime.NewScheme(), logr.Discard(), func(string) bool { return false }, func(of schema.GroupKind) bool { return of == kind && tc.required })
			err := tc.before
			o := &metav1.PartialObjectMetadata{}
			o.SetGroupVersionKind(kind.WithVersion("v1"))
			r := i.reader(&cache.ListWatch{
				ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
					return &metav1.PartialObjectMetadataList{}, err
				},
				WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), err },
			}, o).listWatch()
			for _, err = range []error{tc.before, tc.then} {
				_, _ = r.ListWithContext(t.Context(), metav1.ListOptions{})
			}
			if got := i.Check(nil); (got == nil) != tc.ready {
				t.Errorf("%s: Check() = %v", tc.reason, got)
			}
			err = nil
			if _, _ = r.ListWithContext(t.Context(), metav1.ListOptions{}); i.Check(nil) != nil {
				t.Errorf("%s: it is back, and Check() = %v", tc.reason, i.Check(nil))
			}
		})
	}
}
