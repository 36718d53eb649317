package remote

import (
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// barrier is what keeps a revision of a layer from all clusters that may have it, for no fault of theirs.
type barrier struct {
	// why, as a clause for people; empty if nothing does.
	why string
	// since is when this process saw it come, and over when it saw it go; zero if it did not.
	since, over time.Time
}

// barrier finds out what keeps a revision of the layer that is moved from all clusters.
func (r *Rollouts) barrier(o *v1alpha1.Rollout, m *moved, revision string) barrier {
	if b, ok := m.barriers[revision]; ok {
		return b
	}
	r.mu.Lock()
	b := r.barriers[client.ObjectKeyFromObject(o)][revision]
	r.mu.Unlock()
	b.why = ""
	if m.layer.Spec.Suspend {
		b.why = m.suspended()
	}
	switch comes, goes := b.since.IsZero() || !b.over.IsZero(), !b.since.IsZero() && b.over.IsZero(); {
	case b.why != "" && comes:
		b.since, b.over = r.Now(), time.Time{}
	case b.why == "" && goes:
		b.over = r.Now()
	}
	if m.barriers == nil {
		m.barriers = map[string]barrier{}
	}
	m.barriers[revision] = b
	return b
}

// suspended says that the layer is, as a clause for people.
func (m *moved) suspended() string {
	return fmt.Sprintf("Layer %s is suspended: cascade resume layer %s -n %s", m.layer.Name, m.layer.Name, m.layer.Namespace)
}

// keepBarriers remembers what a decision found, and nothing of revisions that no decision asks for any more.
func (r *Rollouts) keepBarriers(o *v1alpha1.Rollout, m *moved) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.barriers == nil {
		r.barriers = map[client.ObjectKey]map[string]barrier{}
	}
	r.barriers[client.ObjectKeyFromObject(o)] = m.barriers
}
