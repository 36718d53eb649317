package remote

import (
	"context"
	"fmt"
	"strings"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// aims are what the children of a layer are to have of it.
type aims struct {
	layer string
	// newest revision of the layer's source, empty if that is not known.
	newest string
	// movers are the Rollouts of the namespace that move the layer, for whichever clusters.
	movers []v1alpha1.Rollout
	// adrift reports whether a child has been driven by nobody for long; nil says of none.
	adrift func(*v1alpha1.Child) bool
}

// aim is what one child is to have.
type aim struct {
	// revision is empty if any will do.
	revision string
	// rollout is the name of the one that says so, empty for the newest revision; conflict
	// has more than one.
	rollout  string
	conflict []string
	// waits: the Rollout lets the child have another revision, or none yet. pinned is what
	// it may have.
	waits  bool
	pinned string
	// adrift: nobody drives the child, so that it gets nothing, and what its status says is old.
	adrift bool
}

// aimsOf finds out what the children of a layer are to have.
func (r *Layers) aimsOf(ctx context.Context, layer *v1alpha1.Layer) (aims, error) {
	a := aims{layer: layer.Name, newest: r.revisionOf(ctx, layer), adrift: r.adrift}
	all, err := r.rollouts.list(ctx, r.Client, layer.Namespace)
	if err != nil {
		return a, err
	}
	for _, o := range all {
		if ref := o.Spec.Moves.LayerRef; ref != nil && ref.Name == layer.Name && o.DeletionTimestamp.IsZero() {
			a.movers = append(a.movers, o)
		}
	}
	return a, nil
}

// revision is that of the layer as a whole: what its only Rollout brings to its clusters, or
// the newest one.
func (a aims) revision() string {
	if len(a.movers) == 1 {
		if wanted := rollout.Wanted(&a.movers[0]); wanted != nil && wanted.Revision != "" {
			return wanted.Revision
		}
	}
	return a.newest
}

// of is what a child is to have.
func (a aims) of(child *v1alpha1.Child) aim {
	if len(a.movers) == 0 {
		return aim{revision: a.newest}
	}
	governing := rollout.Of(a.movers, child.Labels)
	mover := governing.Layer(a.layer)
	if !mover.Moves() {
		return aim{revision: a.newest}
	}
	if len(mover.Conflict) > 0 {
		return aim{conflict: mover.Conflict}
	}
	wanted, pin := rollout.Wanted(governing[0]), rollout.Pin(child, mover)
	is := aim{rollout: mover.Name, waits: pin == nil || wanted == nil || *pin != *wanted}
	if pin != nil {
		is.pinned = pin.Revision
	}
	if entry := entryOf(child, a.layer); entry != nil && entry.Past == mover.Name {
		is.waits, is.pinned = true, entry.Revision // it stays there until the Rollout goes on from that
	}
	if wanted != nil {
		is.revision = wanted.Revision
	}
	return is
}

// waitingFor counts the children of a layer that are as their Rollouts have them, and are to
// have another revision.
type waitingFor struct {
	children int32
	rollouts []string
}

func (w *waitingFor) add(rollout string) {
	w.children++
	for _, known := range w.rollouts {
		if known == rollout {
			return
		}
	}
	w.rollouts = append(w.rollouts, rollout)
}

// message says for whom how many wait.
func (w *waitingFor) message(total int32) string {
	return fmt.Sprintf("%d of %d clusters wait for Rollout %s", w.children, total, strings.Join(w.rollouts, ", "))
}
