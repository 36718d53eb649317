package remote

import (
	"cmp"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// barrier is what keeps a revision of a layer from all clusters that may have it, for no fault of theirs.
type barrier struct {
	// why, as a clause for people; empty if nothing does.
	why string
	// since is when this process saw it come, and over when it saw it go; zero if it did not.
	since, over time.Time
	// missed is since when the source is there, and answers, without the revision; zero if it is not, or has it.
	missed time.Time
}

// barrier finds out what keeps a revision of the layer that is moved from all clusters.
func (r *Rollouts) barrier(o *v1alpha1.Rollout, m *moved, revision string) barrier {
	if b, ok := m.barriers[revision]; ok {
		return b
	}
	r.mu.Lock()
	b := r.barriers[client.ObjectKeyFromObject(o)][revision]
	r.mu.Unlock()
	there := m.from.Name == "" || revision == "" || r.Snapshots.At(m.from, revision) != nil
	now, stands := r.Now(), !b.since.IsZero() && b.over.IsZero()
	switch answers := r.Snapshots.Get(m.from) != nil && !r.Snapshots.Silent(m.from); {
	case there || !answers:
		b.missed = time.Time{}
	case b.missed.IsZero():
		b.missed = now // who fetches it hands the newest one over first
	}
	b.why = ""
	switch {
	case m.layer.Spec.Suspend:
		b.why = m.suspended()
	case there:
	case !b.missed.IsZero() && now.Sub(b.missed) >= unreadMost:
		// The source is there without it: nobody is to wait for what is gone.
	default:
		b.why = unfetched(m.from, revision)
	}
	switch {
	case b.why != "" && !stands:
		b.since, b.over = now, time.Time{}
	case b.why == "" && stands && there:
		b.over = now
	}
	if m.barriers == nil {
		m.barriers = map[string]barrier{}
	}
	m.barriers[revision] = b
	return b
}

// unfetched says that a revision was not fetched yet, as a clause for people.
func unfetched(from source.Key, revision string) string {
	return fmt.Sprintf("revision %s of %s %s has not been fetched yet", revision, from.Kind, from.Name)
}

// suspended says that the layer is, as a clause for people.
func (m *moved) suspended() string {
	return fmt.Sprintf("Layer %s is suspended: cascade resume layer %s -n %s", m.layer.Name, m.layer.Name, m.layer.Namespace)
}

// barriers finds out which revisions wait to be fetched that clusters of a layer could be given, and remembers what this
// decision found, and nothing of revisions that none asks for any more.
func (f *rolloutFacts) barriers(r *Rollouts, o *v1alpha1.Rollout, m *moved) {
	if m.layer == nil {
		return
	}
	f.Unbuilt = map[string]bool{}
	for _, given := range givenNext(o, cmp.Or(f.Candidate, o.Status.Candidate)) {
		f.Unbuilt[given.Revision] = r.barrier(o, m, given.Revision).why != "" && !m.layer.Spec.Suspend
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.barriers == nil {
		r.barriers = map[client.ObjectKey]map[string]barrier{}
	}
	r.barriers[client.ObjectKeyFromObject(o)] = m.barriers
}
