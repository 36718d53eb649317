package rollout

import (
	"slices"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// leavesUnproven reports whether a wave that soaked leaves the revision of the run unproven, so that the next one asks a
// person. A wave without clusters says nothing of the one before it, nor does one into which no layer brings what is moved.
// But where nobody was ready before that one either, later waves would have on record what nobody ran, and all of them
// would get it together once a layer brings it.
func (d *decision) leavesUnproven(run *v1alpha1.RolloutRun, members []*member, p proof) bool {
	if p.of > 0 {
		return !p.holds()
	}
	_, ready := d.passed(run)
	return run.Unproven || ready == 0 && slices.ContainsFunc(members, func(m *member) bool { return m.Idle })
}

// nobody is the hold of a Rollout without a cluster to bring anything to.
func (d *decision) nobody() Hold {
	why := "no cluster that this tier manages is selected: a revision begins when one is"
	if slices.ContainsFunc(d.all, func(m *member) bool { return m.wave >= 0 && !m.Elsewhere }) {
		why = "no layer is known to bring what is moved into any cluster that is selected: a revision begins when one does"
	}
	return Hold{v1alpha1.ReasonNoChildren, why}
}
