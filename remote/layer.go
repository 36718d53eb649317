package remote

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Layers keeps the status of Layer objects: it counts in which state the layer is on
// each child, and decides from which children it may be removed. Children pushes and
// removes, child by child; Layers wakes the children when they are let go, and when a
// Secret or ConfigMap that a layer refers to has changed.
type Layers struct {
	Client client.Client
	// Reader reads from the API server of this tier.
	Reader    client.Reader
	Snapshots *source.Snapshots
	// Part is which of the layers this process counts. Each process wakes its children.
	Part Part
	// AgentImage is that of this agent, and of the agents of layers that name none when they
	// are seen first.
	AgentImage string
	// Wake calls for a reconcile of a child.
	Wake   func(child types.NamespacedName)
	Events record.EventRecorder
	Now    func() time.Time
	// inUse is what layers refer to, as Children found.
	inUse *inUse
	// references are those that Children read a moment ago.
	references *referenceCache
	// accounts say which sources a layer may use, as for Children.
	accounts *account.Accounts
	// rollouts is nil in a tier without any.
	rollouts *rolloutKind
	clusters *clusters.Watch
	// unserved is since when a child is driven by nobody, zero if somebody drives it; nil where there are no shards.
	unserved func(child types.NamespacedName) time.Time
	// numbers were written when.
	numbers numbers

	mu   sync.Mutex
	seen map[types.NamespacedName]layerSeen
}

// layerSeen is what is known of a layer since the process began.
type layerSeen struct {
	// counted is when the children were counted last, and versions those of the
	// Secrets and ConfigMaps that the layer refers to for any of them. woken are children that were
	// rendered from another version, and by which run.
	counted  time.Time
	versions map[reference]string
	woken    map[types.NamespacedName]*use
}

const (
	// countPause is between two counts of the children of a layer, while they
	// change by the hundred.
	countPause = time.Second
	// referencePause is between two looks at the Secrets and ConfigMaps of a layer.
	referencePause = 15 * time.Second
)

// layerSource is the source of a layer that has one.
func layerSource(layer *v1alpha1.Layer) source.Key { return sourceOf(layer, layer.Spec.SourceRef) }

func sourceOf(layer *v1alpha1.Layer, ref *v1alpha1.SourceReference) source.Key {
	return source.Key{Kind: ref.Kind, NamespacedName: types.NamespacedName{Namespace: cmp.Or(ref.Namespace, layer.Namespace), Name: ref.Name}}
}

// revisionOf is the revision of a layer's source, if the layer may use it; otherwise the
// one that it had stands.
func (r *Layers) revisionOf(ctx context.Context, layer *v1alpha1.Layer) string {
	if layer.Spec.SourceRef == nil {
		return layer.Status.Revision
	}
	key := layerSource(layer)
	as, err := r.accounts.Of(ctx, layer)
	if err == nil {
		err = r.accounts.MayUse(ctx, layer, as, key)
	}
	if s := r.Snapshots.Get(key); s != nil && err == nil {
		return s.Revision
	}
	return layer.Status.Revision
}

// Reconcile sums up one Layer.
func (r *Layers) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	layer := &v1alpha1.Layer{}
	if err := r.Client.Get(ctx, req.NamespacedName, layer); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	// A person may delete the Layer right after the policy was set, and who lets go of one that
	// is being deleted must not lose it to the next commit: the finalizer waits for no count.
	letGo := !layer.DeletionTimestamp.IsZero() && !deletes(layer)
	unguarded := layer.DeletionTimestamp.IsZero() && controllerutil.ContainsFinalizer(layer, v1alpha1.RemovalFinalizer) != (layer.Spec.DeletionPolicy == v1alpha1.DeletionDelete)
	if wait := r.early(req.NamespacedName); wait > 0 && !letGo && !unguarded {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	// Each process wakes its children. One of them counts them all, and decides.
	result, err := r.look(ctx, layer)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !r.Part.leads() || !r.Part.selects(layer) {
		return result, nil
	}
	over, err := r.finalizes(ctx, layer)
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: countPause}, nil
	case err != nil || over:
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	children := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, children, client.InNamespace(layer.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("cannot list Children: %w", err)
	}
	before := layer.DeepCopy()
	aims, err := r.aimsOf(ctx, layer)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !asClusters(children.Items, r.clusters, append(selectorsOf(aims.movers), &layer.Spec.ClusterSelector)...) {
		return ctrl.Result{RequeueAfter: countPause}, nil
	}
	granted, again := r.decideRemoval(layer, children.Items)
	if again > 0 && (result.RequeueAfter == 0 || again < result.RequeueAfter) {
		result.RequeueAfter = again
	}
	summarize(layer, children.Items, aims)
	pinImage(layer, r.AgentImage)
	if equality.Semantic.DeepEqual(before.Status, layer.Status) {
		return result, nil
	}
	if wait := r.numbers.early(req.NamespacedName, r.Now()); wait > 0 && onlyCounts(&before.Status, &layer.Status) {
		if result.RequeueAfter == 0 || wait < result.RequeueAfter {
			result.RequeueAfter = wait
		}
		return result, nil
	}
	// Who decided about a removal by an older state of the layer, as a process that was
	// paused, decided about nothing.
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	err = r.Client.Status().Patch(ctx, layer, patch, client.FieldOwner(statusManager))
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: countPause}, nil
	case err != nil:
		return ctrl.Result{}, client.IgnoreNotFound(fmt.Errorf("cannot write status of Layer %s: %w", req.NamespacedName, err))
	}
	r.numbers.wrote(req.NamespacedName, r.Now())
	recordAll(r.Events, layer, layerMetadata(layer), layerTransitions(before, layer))
	for _, child := range granted {
		r.Wake(child)
	}
	return result, nil
}

func (r *Layers) forget(layer types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seen, layer)
	r.numbers.forget(layer)
}

// early is how long to wait before the children are counted again; zero counts
// now.
func (r *Layers) early(layer types.NamespacedName) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Now()
	seen := r.seen[layer]
	if wait := countPause - now.Sub(seen.counted); wait > 0 {
		return wait
	}
	if r.seen == nil {
		r.seen = map[types.NamespacedName]layerSeen{}
	}
	seen.counted = now
	r.seen[layer] = seen
	return 0
}

// look finds out whether a Secret or ConfigMap that a layer refers to has changed, or is another one than a child
// was rendered from, and wakes the children that it is for. It polls: a watch would hold all Secrets in
// memory, or their metadata at least.
func (r *Layers) look(ctx context.Context, layer *v1alpha1.Layer) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(layer)
	users := r.inUse.of(key)
	if len(users) == 0 {
		if refers(layer) { // the children were not looked at yet
			return ctrl.Result{RequeueAfter: referencePause}, nil
		}
		return ctrl.Result{}, nil
	}
	refs := map[reference]bool{}
	for _, uses := range users {
		for _, u := range uses {
			refs[u.reference] = true
		}
	}
	now, err := versionsOf(ctx, r.Reader, layer.Namespace, slices.SortedFunc(maps.Keys(refs), reference.compare))
	if err != nil {
		return ctrl.Result{}, err
	}
	var wake []types.NamespacedName
	woken := map[types.NamespacedName]*use{}
	r.mu.Lock()
	seen := r.seen[key]
	for child, uses := range users {
		changed, other := false, false
		for _, u := range uses {
			was, known := seen.versions[u.reference]
			anew, differs := known && was != now[u.reference], u.read && u.version != now[u.reference]
			changed, other = changed || anew, other || differs
			refs[u.reference] = refs[u.reference] && !anew && !differs
		}
		if other {
			woken[child] = &uses[0]
		}
		// One that had no run since is not woken again for the same: it may be out of reach.
		if changed || other && seen.woken[child] != &uses[0] {
			wake = append(wake, child)
		}
	}
	seen.versions, seen.woken = now, woken
	r.seen[key] = seen
	r.mu.Unlock()
	for ref, same := range refs {
		if !same {
			r.references.drop(layer.Namespace, ref) // those that are woken are not to read it again
		}
	}
	for _, child := range wake {
		r.Wake(child)
	}
	return ctrl.Result{RequeueAfter: referencePause}, nil
}
