package rollout

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// adopt puts on record what clusters have that are not on record yet, or got past their Rollout:
// they keep it.
func (d *decision) adopt() {
	for _, m := range d.all {
		past := m.Unpinned && WasReady(m.pin) && m.Has != nil && !m.has(*m.Has)
		if m.pin != nil && !past || !m.Known || m.Has == nil {
			continue
		}
		to := v1alpha1.ChildRollout{Name: d.name, RolloutRevision: *m.Has, Result: v1alpha1.ResultSucceeded, Since: metav1.NewTime(d.now)}
		switch run, good := d.active(), d.status.LastGood; {
		case run != nil && run.RolloutRevision == *m.Has:
			to.Run = run.Number
		case good != nil && (past || good.RolloutRevision == *m.Has):
			to.Run = good.Run
		}
		if !m.Healthy {
			// Nobody knows whether it ever was.
			to.Result, to.Reason, to.Blameless = v1alpha1.ResultUnproven, v1alpha1.ReasonNotReadyBefore, true
		}
		m.set(to)
	}
}

// strange reports whether a cluster got what it has past the Rollout, in the place of the good revision:
// no run gives another one under the number of that.
func (m *member) strange(good *v1alpha1.RolloutGood) bool {
	return m.pin != nil && m.pin.Run == good.Run && !m.has(good.RolloutRevision)
}
