package rollout

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Governs reports whether a Rollout decides about clusters with these labels. A selector
// that cannot be used selects all: a mistake in it must not let all clusters have the
// newest revision at once. A Rollout that is being deleted governs nothing.
func Governs(r *v1alpha1.Rollout, of map[string]string) bool {
	if !r.DeletionTimestamp.IsZero() {
		return false
	}
	if r.Spec.ClusterSelector == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(r.Spec.ClusterSelector)
	return err != nil || selector.Matches(labels.Set(of))
}

// Governing are the Rollouts of a namespace that govern one cluster, in order of their names.
type Governing []*v1alpha1.Rollout

// Of are those Rollouts that govern a cluster with these labels.
func Of(rollouts []v1alpha1.Rollout, of map[string]string) Governing {
	var g Governing
	for i := range rollouts {
		if Governs(&rollouts[i], of) {
			g = append(g, &rollouts[i])
		}
	}
	slices.SortFunc(g, func(a, b *v1alpha1.Rollout) int { return strings.Compare(a.Name, b.Name) })
	return g
}

// Mover is which Rollout moves something of a cluster.
type Mover struct {
	// Name of the Rollout, empty if none does, or more than one, and UID, which Children know it by.
	Name string
	UID  types.UID
	// Conflict has the names of all, if more than one does.
	Conflict []string
}

// Moves reports whether any Rollout does.
func (m Mover) Moves() bool { return m.Name != "" || len(m.Conflict) > 0 }

func (g Governing) mover(moves func(v1alpha1.RolloutMoves) bool) Mover {
	var movers []Mover
	for _, r := range g {
		if moves(r.Spec.Moves) {
			movers = append(movers, MoverOf(r))
		}
	}
	switch len(movers) {
	case 0:
		return Mover{}
	case 1:
		return movers[0]
	}
	conflict := Mover{}
	for _, m := range movers {
		conflict.Conflict = append(conflict.Conflict, m.Name)
	}
	return conflict
}

// MoverOf is a Rollout as one that moves something.
func MoverOf(r *v1alpha1.Rollout) Mover { return Mover{Name: r.Name, UID: r.Status.UID} }

// OnRecord is what a Child has on record of a Rollout, nil if it has nothing. A Rollout that was
// made again under the same name begins anew: what the one before it let the child have may be long
// ago. Versions before wrote no UID.
func OnRecord(child *v1alpha1.Child, mover Mover) *v1alpha1.ChildRollout {
	for i := range child.Status.Rollouts {
		if r := &child.Status.Rollouts[i]; r.Name == mover.Name && (r.UID == "" || r.UID == mover.UID) {
			return r
		}
	}
	return nil
}

// Layer is which Rollout moves a layer.
func (g Governing) Layer(name string) Mover {
	return g.mover(func(m v1alpha1.RolloutMoves) bool { return m.LayerRef != nil && m.LayerRef.Name == name })
}

// Kustomization is which Rollout moves what a Kustomization of the tier declares of the
// cluster.
func (g Governing) Kustomization(name string) Mover {
	return g.mover(func(m v1alpha1.RolloutMoves) bool {
		return m.KustomizationRef != nil && m.KustomizationRef.Name == name
	})
}

// Object is which Rollout moves an object that a layer brings into the cluster.
func (g Governing) Object(of v1alpha1.RolloutPinnedSource) Mover {
	return g.mover(func(m v1alpha1.RolloutMoves) bool { return m.Source != nil && *m.Source == of })
}

// Objects are those that Rollouts move, each once, in an order that stays.
func (g Governing) Objects() []v1alpha1.RolloutPinnedSource {
	var all []v1alpha1.RolloutPinnedSource
	for _, r := range g {
		if s := r.Spec.Moves.Source; s != nil && !slices.Contains(all, *s) {
			all = append(all, *s)
		}
	}
	return all
}

// Pin is what a Rollout lets a child have, nil if it has let it have nothing yet.
func Pin(child *v1alpha1.Child, mover Mover) *v1alpha1.RolloutRevision {
	if r := OnRecord(child, mover); r != nil && (r.Revision != "" || r.Image != "") {
		return &r.RolloutRevision
	}
	return nil
}

// IsPast reports whether a child got what it has past the Rollout of a pin, which may be nil, if nothing says that
// the Rollout let it have that: it is neither the revision of the pin nor what the child had before. Who was ready at
// the pin has what it had before from somebody else, too.
func IsPast(pin *v1alpha1.ChildRollout, has v1alpha1.RolloutRevision) bool {
	switch {
	case pin == nil, same(has, pin.RolloutRevision):
		return false
	case pin.Had != nil && !same(has, *pin.Had):
		return true
	}
	return wasReady(pin)
}

// same reports whether two revisions are of one content, by whatever name, with one image.
func same(a, b v1alpha1.RolloutRevision) bool {
	return Content(a.Revision) == Content(b.Revision) && a.Image == b.Image
}

// wasReady reports whether a child certainly was ready at its pin once, whatever put it off since. Pins of before,
// which do not say what it had, do not say either that it never got there before it was lost.
func wasReady(pin *v1alpha1.ChildRollout) bool {
	switch pin.Result {
	case v1alpha1.ResultSucceeded, v1alpha1.ResultDegraded:
		return true
	case v1alpha1.ResultDeferred, v1alpha1.ResultUnreachable:
		return !unproven(pin) && (pin.Had != nil || pin.Reason == v1alpha1.ReasonRollingOut)
	}
	return false
}

// unproven reports whether a cluster failed at its pin, or was never known to be ready at it, whatever put
// it off since. Of one that is updating nobody knows yet. Only a retry of one that failed puts a cluster off as
// progressing: pins of before, which do not say that they are unproven, are known by that.
func unproven(pin *v1alpha1.ChildRollout) bool {
	retried := pin.Result == v1alpha1.ResultDeferred && pin.Reason == v1alpha1.ReasonProgressing
	return pin.Unproven || retried || pin.Result == v1alpha1.ResultFailed || pin.Result == v1alpha1.ResultUnproven
}

// Wanted is the revision that a Rollout brings to its clusters now: that of its run, or
// what the clusters, or the source after it was aborted, go back to; nil before there is any.
// Without a run it is the last good one, or the first candidate.
func Wanted(r *v1alpha1.Rollout) *v1alpha1.RolloutRevision {
	status := &r.Status
	var good *v1alpha1.RolloutRevision
	if status.LastGood != nil {
		good = &status.LastGood.RolloutRevision
	}
	switch run := status.Run; {
	case run != nil && good != nil && (run.Phase == v1alpha1.RolloutReverting || run.Phase == v1alpha1.RolloutReverted || sourceIsBack(status)):
		return good
	case run != nil:
		return &run.RolloutRevision
	case good != nil:
		return good
	}
	return status.Candidate
}
