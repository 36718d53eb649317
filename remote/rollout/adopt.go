package rollout

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// adopt puts on record what clusters have that are not on record yet, or got past their Rollout:
// they keep it until a run gives them another revision. Who got past the Rollout has the number of the
// run that it got past: the one under way, or the good one.
func (d *decision) adopt() {
	for _, m := range d.all {
		past := m.Unpinned && m.Has != nil && IsPast(m.pin, *m.Has)
		if m.pin != nil && !past || !m.Known || m.Has == nil {
			continue
		}
		to := v1alpha1.ChildRollout{Name: d.name, RolloutRevision: *m.Has, Past: past, Had: m.Has.DeepCopy(), Result: v1alpha1.ResultSucceeded, Since: metav1.NewTime(d.now),
			Below: m.Below, Underway: m.Underway}
		switch run, good := d.active(), d.status.LastGood; {
		case run != nil && (past || run.RolloutRevision == *m.Has):
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

// Given is what goes on record for a cluster, one of those that were decided about: with what it had, if it is
// given a revision. That of one which was given it before is on record.
func (a Assignment) Given(clusters []Cluster) v1alpha1.ChildRollout {
	if a.Result == v1alpha1.ResultUpdating && a.Had == nil {
		i := slices.IndexFunc(clusters, func(c Cluster) bool { return c.Name == a.Cluster })
		if i >= 0 && (clusters[i].Pin == nil || clusters[i].Pin.Result != a.Result || clusters[i].Pin.RolloutRevision != a.RolloutRevision) {
			a.Had = clusters[i].Has.DeepCopy()
		}
	}
	return a.ChildRollout
}

// overtaken reports whether a cluster of a run that progresses got another revision past it: the run cannot be
// proven by who left it.
func (d *decision) overtaken() bool {
	run := d.status.Run
	return run != nil && run.Phase == v1alpha1.RolloutProgressing && slices.ContainsFunc(d.all, func(m *member) bool {
		return m.wave >= 0 && m.pin != nil && m.pin.Run == run.Number && !m.has(run.RolloutRevision)
	})
}

// strayed reports whether a cluster has another revision than the good one, of a later run or got past that:
// the good revision does not say what the clusters have.
func (d *decision) strayed(good *v1alpha1.RolloutGood) bool {
	return slices.ContainsFunc(d.all, func(m *member) bool {
		return m.pin != nil && m.pin.Run >= good.Run && !m.has(good.RolloutRevision)
	})
}
