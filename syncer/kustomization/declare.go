package kustomization

import (
	"context"
	"errors"
	"fmt"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/compose"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

const (
	// handOverPoll is the pause between two looks at objects that are kept for
	// another owner.
	handOverPoll = 5 * time.Second
	// declarationHolds is how long a declaration is taken to stay while neither the
	// Kustomization nor its snapshot changes. Its variables may.
	declarationHolds = 10 * time.Second
	// mostDeclarations are kept.
	mostDeclarations = 1000
)

// declaration is what a Kustomization declared when it was asked for last.
type declaration struct {
	version  string
	snapshot *source.Snapshot
	at       time.Time
	claim.Declaration
}

// Declares implements claim.Declarer.
func (r *Reconciler) Declares(ctx context.Context, owner client.Object, view *source.View, whole bool) claim.Declaration {
	obj, ok := owner.(*kustomizev1.Kustomization)
	if !ok {
		return claim.Declaration{}
	}
	key := sourceKey(obj)
	if r.Rules.NoCrossNamespaceRefs && key.Namespace != obj.Namespace || key.Kind == sourcev1.ExternalArtifactKind && !r.Rules.ExternalArtifact {
		return claim.Declaration{} // it is refused
	}
	snapshot, err := view.Snapshot(key, func() (*source.Snapshot, error) { return r.snapshotOf(ctx, key, obj) })
	if err != nil {
		return claim.Declaration{Unknown: err, Passing: errors.Is(err, find.ErrFetchedAgain)}
	}
	name := client.ObjectKeyFromObject(obj)
	governed, err := r.govern(ctx, obj)
	if err != nil {
		return claim.Declaration{Unknown: err, Passing: true}
	}
	if !whole && r.settled(obj, name, snapshot, governed) {
		return claim.Declaration{Settled: true}
	}
	version := fmt.Sprintf("%s %s %d %s", obj.UID, obj.ResourceVersion, obj.Generation, governed.version())
	if obj.UID == "" {
		return r.declares(ctx, obj, snapshot, governed) // it does not exist yet
	}
	if known, ok := r.known.declaration(name); ok && known.version == version && known.snapshot == snapshot && r.Now().Sub(known.at) < declarationHolds {
		return known.Declaration
	}
	d := r.declares(ctx, obj, snapshot, governed)
	if ctx.Err() == nil {
		r.known.declared(name, declaration{version: version, snapshot: snapshot, at: r.Now(), Declaration: d})
	}
	return d
}

// snapshotOf is the snapshot that the source of a Kustomization has now.
func (r *Reconciler) snapshotOf(ctx context.Context, key source.Key, obj *kustomizev1.Kustomization) (*source.Snapshot, error) {
	if snapshot := r.Sources.Snapshots.Get(key); snapshot != nil {
		return snapshot, nil
	}
	o, err := r.Sources.Object(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("cannot find source of Kustomization %s/%s: %w", obj.Namespace, obj.Name, err)
	}
	return r.Sources.Snapshot(ctx, key, o)
}

// settled reports whether the inventory of a Kustomization has all that it declares, and all that it will declare of
// the snapshot once its Rollouts let it.
func (r *Reconciler) settled(obj *kustomizev1.Kustomization, name types.NamespacedName, snapshot *source.Snapshot, governed *governed) bool {
	if obj.Spec.Suspend || obj.Status.Inventory == nil || obj.UID == "" || governed.holdsBack(snapshot.Revision) {
		return false
	}
	if known := r.known.sofar(name); known != nil {
		if covers, rendered := known.covers(obj, snapshot, governed); rendered {
			return covers
		}
	}
	// An earlier process, or Flux, applied it. Nothing tells which revisions its Clusters had.
	return governed == nil && obj.Status.ObservedGeneration == obj.Generation && obj.Status.LastAppliedRevision == snapshot.Revision
}

// declares renders what a Kustomization declares.
func (r *Reconciler) declares(ctx context.Context, obj *kustomizev1.Kustomization, snapshot *source.Snapshot, governed *governed) claim.Declaration {
	var rendering *render.Rendering
	inputs, err := r.inputs(ctx, obj)
	key := inputs
	if err == nil {
		inputs.NoDigest = true
		rendering, err = render.Render(ctx, snapshot, inputs)
	}
	var c compose.Composition
	switch {
	case err == nil && governed == nil:
		c.Objects = rendering.Objects
	case err == nil:
		of := revisions{snapshot: snapshot, rendering: rendering, inputs: key, known: r.known.sofar(client.ObjectKeyFromObject(obj))}
		c, err = r.composition(ctx, obj, governed, of)
	}
	if err != nil {
		return claim.Declaration{Unknown: fmt.Errorf("cannot render Kustomization %s/%s: %w", obj.Namespace, obj.Name, err)}
	}
	d := claim.DeclarationOf(c.Objects, c.Ahead)
	d.Entries = append(d.Entries, c.Kept...)
	return d
}

// composition is what a governed Kustomization declares, what it keeps of its inventory, and what it has at the
// newest revision alone. A step of Kubernetes' version that is refused keeps more of that, which is on record.
func (r *Reconciler) composition(
	ctx context.Context, obj *kustomizev1.Kustomization, governed *governed, of revisions,
) (compose.Composition, error) {
	f, held, err := r.facts(ctx, obj, governed, of)
	if err != nil {
		return compose.Composition{}, err
	}
	if err = r.own(&f, obj); err != nil {
		return compose.Composition{}, err
	}
	governed.disown(&f, held)
	for name := range held {
		f.Held[name] = true
	}
	return compose.Compose(f), nil
}

// applied is what a reconcile applies, for those who ask for the claims of others.
func (r *Reconciler) applied(ctx context.Context, run *run) claim.Applied {
	applied := claim.Applied{Current: func(view *source.View) bool {
		governed, err := r.govern(ctx, run.Obj)
		return err == nil && governed.version() == run.governed.version() && r.current(run, view)
	}}
	for _, e := range run.kept() {
		if claim.IsOwner(e.GroupKind()) {
			applied.Owners = append(applied.Owners, e)
		}
	}
	for _, u := range run.rendering.Objects {
		if claim.IsOwner(u.GroupVersionKind().GroupKind()) {
			applied.Owners = append(applied.Owners, inventory.Of(u))
		}
	}
	return applied
}

// current reports whether a reconcile applies what its Kustomization declares in a view, as
// far as that is known without asking the API server.
func (r *Reconciler) current(run *run, view *source.View) bool {
	key := sourceKey(run.Obj)
	snapshot, err := view.Snapshot(key, func() (*source.Snapshot, error) { return r.Sources.Snapshots.Get(key), nil })
	if err != nil || snapshot == nil || run.snapshot == nil || snapshot == run.snapshot || snapshot.Revision == run.snapshot.Revision {
		return true
	}
	if run.unbuilt != nil && snapshot.Revision == run.unbuilt.Revision {
		return true // it declares what stands in for that
	}
	same, err := run.rendering.Reads.Unchanged(snapshot)
	return err == nil && same
}

// handOverPause is when to look again at objects that are kept for others. Those that are overdue
// may be kept for as long as nobody decides about them.
func (r *Reconciler) handOverPause(record *v1alpha1.HandOver) time.Duration {
	if inventory.Overdue(record, r.Now()) {
		return blockedPoll
	}
	return handOverPoll
}

// handsOver records in the status what is kept for other owners. It reports whether
// anything is.
func (r *Reconciler) handsOver(run *run, sync apply.Result) bool {
	obj := run.Obj
	run.held.HandOver = sync.HandOver
	if len(sync.Plan.HandOver) == 0 || sync.HandOver == nil {
		status.RemoveCondition(obj, v1alpha1.HandOverPendingCondition)
		return false
	}
	isNew := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.HandOverPendingCondition) == nil
	message := inventory.HandOverMessage(sync.Plan.HandOver, sync.Plan.NewOwner, sync.Plan.Unsure, *sync.HandOver)
	status.SetCondition(obj, v1alpha1.HandOverPendingCondition, metav1.ConditionTrue, v1alpha1.ReasonHandOverPending, "%s", message)
	if isNew {
		// Without a revision, as it says nothing of one; Ready may still be that of the one before.
		r.Events.Eventf(obj, corev1.EventTypeNormal, v1alpha1.ReasonHandOverPending, "%s", message)
	}
	return true
}
