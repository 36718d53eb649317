package forecast

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/difference"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// ways sort the clusters that an owner would change by what moves it for them: one Rollout,
// none, or several, of which then none decides.
type ways struct {
	rollouts []v1alpha1.Rollout
	by       map[string]*way
}

type way struct {
	mover  rollout.Mover
	labels []map[string]string
}

// waysOf have the Rollouts of one namespace.
func waysOf(rollouts []v1alpha1.Rollout) *ways {
	return &ways{rollouts: rollouts, by: map[string]*way{}}
}

// take counts a cluster with these labels.
func (w *ways) take(mover rollout.Mover, labels map[string]string) {
	key := mover.Name + "\x00" + strings.Join(mover.Conflict, "\x00")
	if w.by[key] == nil {
		w.by[key] = &way{mover: mover}
	}
	w.by[key].labels = append(w.by[key].labels, labels)
}

// into tells an owner. Where one Rollout moves it for all of them it has no other ways, and
// neither where none does.
func (w *ways) into(owner *difference.Owner) {
	var all []difference.Way
	for _, is := range w.by {
		told := difference.Way{Rollout: is.mover.Name, Conflict: is.mover.Conflict, Clusters: len(is.labels)}
		for i := range w.rollouts {
			if told.Rollout != "" && w.rollouts[i].Name == told.Rollout {
				told.Waves = waves(&w.rollouts[i], is.labels)
			}
		}
		all = append(all, told)
	}
	order := func(way difference.Way) int {
		switch {
		case way.Rollout != "":
			return 0
		case len(way.Conflict) > 0:
			return 1
		}
		return 2
	}
	slices.SortFunc(all, func(a, b difference.Way) int {
		return cmp.Or(order(a)-order(b), strings.Compare(a.Rollout, b.Rollout), slices.Compare(a.Conflict, b.Conflict))
	})
	if len(all) == 0 {
		return
	}
	owner.Rollout, owner.Waves = all[0].Rollout, all[0].Waves
	if len(all) > 1 || len(all[0].Conflict) > 0 {
		owner.Ways = all
	}
}

// waves are those of a Rollout that clusters with these labels are in.
func waves(r *v1alpha1.Rollout, of []map[string]string) []difference.Wave {
	counts, none := make([]int, len(r.Spec.Waves)), 0
	for _, labels := range of {
		if i := rollout.WaveOf(r.Spec.Waves, labels); i >= 0 {
			counts[i]++
		} else {
			none++
		}
	}
	var all []difference.Wave
	for i, n := range counts {
		if n > 0 {
			w := &r.Spec.Waves[i]
			all = append(all, difference.Wave{Name: w.Name, Clusters: n, MaxConcurrent: w.MaxConcurrent.String(), Approval: w.Approval == v1alpha1.ApprovalRequired})
		}
	}
	if none > 0 {
		all = append(all, difference.Wave{Clusters: none, None: true})
	}
	return all
}
