package firstsync

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// watchClusters sees the Clusters before any caller gets a decision. Without their kind
// there is none.
func (t *Tier) watchClusters(ctx context.Context) (unwatch func()) {
	unwatch = t.Clusters.Handle(t.onCluster)
	select {
	case <-t.Clusters.Known():
		close(t.ready)
	case <-ctx.Done():
	}
	return unwatch
}

// onCluster records a Cluster as it is, or as it was when it was deleted.
func (t *Tier) onCluster(e clusters.Event) {
	name, mark, gone := e.Name(), markOf(e.Object()), e.New == nil
	t.mu.Lock()
	defer t.mu.Unlock()
	before, was := t.seen[name]
	if t.seen[name] = mark; gone {
		delete(t.seen, name)
	}
	switch {
	case t.record.settled():
		t.mark(name, mark, gone)
	case !gone && mark == "" && t.standing(name) == inventory.Approved:
		// The Cluster exists, so the approval is used up. If the Cluster is deleted, a new
		// approval is needed.
		t.pending[name] = inventory.Adopted
		t.poke()
	}
	if gone || !was || before != mark {
		t.tell(name)
	}
}

// mark records the state of a Cluster, or its state when it was deleted. It is called
// with the lock.
func (t *Tier) mark(name types.NamespacedName, mark inventory.Standing, gone bool) {
	if want, change := noted(t.standing(name), mark, gone); change {
		t.pending[name] = want
		t.poke()
	}
}
