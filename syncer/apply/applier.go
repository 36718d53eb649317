package apply

import (
	"context"
	"time"

	"github.com/fluxcd/pkg/ssa"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/memo"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// group is the prefix of the owner labels of Kustomizations.
const group = directive.Group

// Owner is in whose name objects are applied. The labels <LabelGroup>/name and
// <LabelGroup>/namespace mark what belongs to it.
type Owner struct {
	FieldManager string
	LabelGroup   string
	Name         string
	Namespace    string
}

// label marks an object as the owner's, without what is taken off those in the cluster. One that is
// marked and has nothing of that is not touched: it may be shared.
func (o Owner) label(u *unstructured.Unstructured) {
	observed.TakeOff(u)
	labels := u.GetLabels()
	if o.owns(labels) {
		return
	}
	if labels == nil {
		labels = map[string]string{}
	}
	labels[o.LabelGroup+"/name"], labels[o.LabelGroup+"/namespace"] = o.Name, o.Namespace
	u.SetLabels(labels)
}

// owns reports whether labels mark an object as the owner's.
func (o Owner) owns(labels map[string]string) bool {
	return labels[o.LabelGroup+"/name"] == o.Name && labels[o.LabelGroup+"/namespace"] == o.Namespace
}

// key is the name by which the memo knows the owner.
func (o Owner) key() types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// Applier applies for one owner in one cluster. It is safe for concurrent use,
// but an owner's renderings must be applied one after the other.
type Applier struct {
	client *Cluster
	// facts is the same cluster with the agent's own rights. What decides whether an
	// object may be deleted is read through it: a service account may know too little
	// to tell.
	facts *Cluster
	memo  *memo.Memo
	owner Owner
	now   func() time.Time
}

// New returns an Applier for an owner in a cluster. Without a memo every object
// is sent with each Sync.
func New(c *Cluster, owner Owner, m *memo.Memo, now func() time.Time) *Applier {
	return &Applier{client: c, facts: c.own(), memo: m, owner: owner, now: now}
}

// library is Flux's, which compares and applies where one request is not enough. declared is what
// it is to apply; nil for none.
func (a *Applier) library(declared *unstructured.Unstructured) *ssa.ResourceManager {
	library := ssa.NewResourceManager(exact{a.client, declared}, nil, ssa.Owner{Field: a.owner.FieldManager, Group: a.owner.LabelGroup})
	library.SetConcurrency(a.client.parallel)
	return library
}

// Sync applies the phases' objects, which it may modify, and prunes. On an
// error the result's inventory is what must stay recorded.
func (a *Applier) Sync(ctx context.Context, phases []Phase, o Options) (Result, error) {
	r := a.begin(phases, o)
	err := r.steps(ctx)
	if err != nil {
		r.unreached()
	}
	r.res.Sent = sentOf(r.sent)
	if err != nil {
		return r.res, err
	}
	if len(r.packed) == 0 {
		r.res.Ownership = r.res.Sent.ownership(r.options.Ownership)
	}
	r.res.Seal, err = r.seal(ctx)
	return r.res, err
}

func (r *run) steps(ctx context.Context) error {
	for _, step := range []func(context.Context) error{r.holdCreation, r.recordAhead, r.poll, r.learn, r.applyPhases, r.pruneRest} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Remove deletes everything that the owner's inventory names, because a person
// deleted the owner or applies it elsewhere now. The result's inventory is what
// is still there.
func (a *Applier) Remove(ctx context.Context, owned []inventory.Entry, o Options) (Result, error) {
	res := Result{Changes: ssa.NewChangeSet(), Inventory: owned}
	scopes, err := a.client.scopes(owned, nil)
	if err != nil {
		return res, &PruneError{Err: err}
	}
	owned = scopes.ofAll(owned)
	err = a.prune(ctx, inventory.Facts{
		Target: o.Target, Owned: owned, LowerTier: o.LowerTier, Approved: o.Approved, Undecided: o.Undecided, Asked: !o.Moved, Moved: o.Moved,
		HandOver: o.HandOver, Decided: o.Decided,
	}, o, nil, &res)
	if err != nil {
		return res, &PruneError{Err: err}
	}
	return res, nil
}
