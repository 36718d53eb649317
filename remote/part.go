package remote

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/remote/tenure"
)

// Part is which of the tier's children this process drives. The zero value is all of
// them.
type Part struct {
	// Selects reports whether this agent works on an object, by its labels and its
	// namespace; nil passes all.
	Selects func(client.Object) bool
	// Tenures are the shards that this process has; nil gives it all children.
	Tenures *tenure.Tenures
	// Elected is closed when this process comes to lead the tier, so that what there is
	// once in a tier is its own; nil says that it does from the start.
	Elected <-chan struct{}
}

func (p Part) selects(o client.Object) bool { return p.Selects == nil || p.Selects(o) }

func (p Part) leads() bool {
	select {
	case <-p.Elected:
		return true
	default:
		return p.Elected == nil
	}
}

// enter begins work on a child if this process drives its shard. The work ends with the
// returned context when the shard is lost; leave says that it has.
func (p Part) enter(ctx context.Context, key types.NamespacedName) (held *tenure.Tenure, bound context.Context, leave func(), ok bool) {
	if p.Tenures == nil {
		return nil, ctx, func() {}, true
	}
	return p.Tenures.Enter(ctx, key)
}

// lineage returns the lineage of the tier. If a mark is not in it, it is read again:
// another process of this tier may have come since.
func (r *Children) lineage(ctx context.Context, marks ...epoch.Mark) ([]epoch.Mark, error) {
	lineage, err := r.Tier.Lineage(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range marks {
		if epoch.Judge(lineage, m) == epoch.Foreign {
			return r.Tier.Look(ctx)
		}
	}
	return lineage, nil
}

// lineage is that of the tier as one sees it who began with the child's shard when this
// process did.
func (r *run) lineage(ctx context.Context, marks ...epoch.Mark) ([]epoch.Mark, error) {
	lineage, err := r.Children.lineage(ctx, marks...)
	if err != nil || r.tenure == nil {
		return lineage, err
	}
	return epoch.From(r.tenure.Mark(), lineage), nil
}

// raise makes the epoch of this process larger than that of a mark which it takes over.
func (r *run) raise(ctx context.Context, over epoch.Mark) ([]epoch.Mark, error) {
	if err := r.Tier.Raise(ctx, over); err != nil {
		return nil, err
	}
	lineage, err := r.Tier.Lineage(ctx)
	if err == nil && r.tenure != nil {
		r.tenure.Raise(lineage[0])
	}
	return lineage, err
}

// stillOurs is an error unless a record that another process of this tier wrote later is
// this one's to go on with. With shards it never is: whoever has a shard began last. Without,
// an agent that selects other labels may have had the child. Then the API server says whose
// it is, as a cache that lags would let two go on.
func (p *push) stillOurs(ctx context.Context, rec *record.Record) error {
	theirs := func(err error) error {
		return reason.Because(v1alpha1.ReasonProgressing, fmt.Errorf("cannot write the record of layer %s: %s of this tier went on with this child: %w", rec.Layer.Name, rec.Parent.Holder, err))
	}
	if p.tenure != nil {
		return theirs(errors.New("it has the shard of the child by now"))
	}
	if err := p.Connections.MayWrite(p.key()); err != nil {
		return theirs(err)
	}
	live := &v1alpha1.Child{}
	if err := p.Cluster.Get(ctx, p.key(), live); err != nil {
		return theirs(err)
	}
	if live.UID != p.child.UID || !p.Part.selects(live) {
		return theirs(errors.New("its labels select that agent"))
	}
	return nil
}

// gained has what this process keeps for the children of a shard looked at, which is its own from now on: their
// profiles may be as another replica left them in the midst of a commit.
func (r *Children) gained(ctx context.Context, inventory *profiles, has func(types.NamespacedName) bool) error {
	return r.begin(ctx, func(key types.NamespacedName) {
		r.Connections.Wake(key, link.TakenOver)
		inventory.wake(key)
	}, has)
}

// begin makes this process drive the children of a shard that it has from now on: each is
// looked at once, behind those with an event.
func (r *Children) begin(ctx context.Context, add func(types.NamespacedName), has func(types.NamespacedName) bool) error {
	r.FirstSeeds.reread()
	list := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("cannot list Children: %w", err)
	}
	var taken []types.NamespacedName
	secrets := map[types.NamespacedName]bool{}
	for i := range list.Items {
		child := &list.Items[i]
		key := client.ObjectKeyFromObject(child)
		if !has(key) {
			continue
		}
		taken = append(taken, key)
		if child.Spec.ClusterRef != nil {
			secrets[types.NamespacedName{Namespace: key.Namespace, Name: clusterapi.KubeconfigSecret(child.Spec.ClusterRef.Name)}] = true
		}
	}
	worth, err := r.kubeconfigs.worthListing(ctx, r.Cache, len(secrets))
	if worth {
		err = r.kubeconfigs.list(ctx, r.Cluster, secrets, r.Now())
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "each kubeconfig that is not known yet is read when its child is asked")
	}
	for _, key := range taken {
		r.Connections.Expect(key)
		add(key)
	}
	r.Clusters.Each(func(key types.NamespacedName) {
		if has(key) {
			add(key)
		}
	})
	return nil
}

// end forgets the children of a shard that this process has no more, and closes their
// connections.
func (r *Children) end(has func(types.NamespacedName) bool) {
	r.mu.Lock()
	var lost []types.NamespacedName
	for key := range r.notes {
		if has(key) {
			lost = append(lost, key)
		}
	}
	r.mu.Unlock()
	for _, key := range lost {
		r.forget(key)
	}
}
