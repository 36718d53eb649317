package remote

import (
	"hash/maphash"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/selection"
)

// Cached returns what a cache does to each object before it keeps it. Nobody reads managed
// fields, but those of a Child of a Cluster that somebody declares, which tell whose its labels are. Of a Child with ten layers,
// half of what was decoded is texts that thousands of Children have in common, and room that decoding lists left. It is safe for concurrent use.
func Cached() toolscache.TransformFunc {
	strip := cache.TransformStripManagedFields()
	shared := sharing{seed: maphash.MakeSeed()}
	return func(o any) (any, error) {
		if child, ok := o.(*v1alpha1.Child); ok {
			shared.child(child)
			if child.Spec.ClusterRef != nil && selection.DeclaredBy(child.Labels) != "" {
				child.ManagedFields = slices.DeleteFunc(child.ManagedFields, func(m metav1.ManagedFieldsEntry) bool { return m.Subresource != "" })
				return child, nil
			}
		}
		return strip(o)
	}
}

const (
	// sharedTexts is how many texts are known at most: names of layers, revisions and reasons
	// are a few for each Layer.
	sharedTexts = 1 << 10
	// longestShared keeps texts out of which each Child has its own.
	longestShared = 256
)

// sharing has texts that were met, each in the place that its hash says: a new one takes the
// place of another.
type sharing struct {
	seed maphash.Seed

	mu    sync.Mutex // guards texts
	texts [sharedTexts]string
}

// share has each text be the one that was met before, if it is equal.
func (s *sharing) share(texts ...*string) {
	for _, text := range texts {
		if *text == "" || len(*text) > longestShared {
			continue
		}
		met := &s.texts[maphash.String(s.seed, *text)%sharedTexts]
		if *met != *text {
			*met = *text
		}
		*text = *met
	}
}

func (s *sharing) child(c *v1alpha1.Child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := &c.Status
	status.Layers, status.Conditions = exact(status.Layers), exact(status.Conditions)
	for i := range status.Layers {
		layer := &status.Layers[i]
		if layer.LastAttemptedDigest == layer.Digest {
			layer.LastAttemptedDigest = layer.Digest // one text, of which each Child may have its own
		}
		s.share(&layer.Name, &layer.Revision, &layer.LastAttemptedRevision, &layer.LastHandledReconcileAt, &layer.Reason, &layer.Message,
			&layer.AgentImage, (*string)(&layer.DeletionPolicy))
	}
	for i := range status.Conditions {
		condition := &status.Conditions[i]
		s.share(&condition.Type, (*string)(&condition.Status), &condition.Reason, &condition.Message)
	}
	s.share(&status.Version, &status.Provider, &status.Region)
}

// exact returns a list without room behind it.
func exact[T any](list []T) []T {
	if cap(list) == len(list) {
		return list
	}
	return append(make([]T, 0, len(list)), list...)
}
