package syncer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/ssa"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// ReasonPruneBlocked: everything is applied, but deletes are held until a
// person decides.
const ReasonPruneBlocked = v1alpha1.ReasonPruneBlocked

// How soon a Kustomization is looked at again.
const (
	// healthPoll is the pause between two looks at objects that are getting
	// healthy.
	healthPoll = time.Second
	// deletePoll is the pause between two looks at objects that are being
	// deleted.
	deletePoll = 2 * time.Second
	// dependencyPoll is the fallback where an event should have come.
	dependencyPoll = 30 * time.Second
)

// Indexes of Kustomizations by what they refer to.
const (
	sourceIndex     = "cascade.source"
	dependencyIndex = "cascade.dependsOn"
)

// Kustomizations reconciles Kustomization objects.
type Kustomizations struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Cluster reads from the API server, and is what is applied to.
	Cluster   *apply.Cluster
	Snapshots *source.Snapshots
	Events    record.EventRecorder
	Metrics   *Metrics
	Now       func() time.Time
	// NoCrossNamespaceRefs refuses sources of other namespaces.
	NoCrossNamespaceRefs bool

	mu      sync.Mutex
	waiting map[types.NamespacedName]healthWait
}

// healthWait is an applied revision whose objects are not all healthy yet. It
// is kept in memory only: a restarted process applies again, which changes
// nothing, and waits again.
type healthWait struct {
	revision   string
	generation int64
	requested  string
	since      time.Time
	entries    []inventory.Entry
}

// SetupWithManager registers the reconciler and its indexes.
func (r *Kustomizations) SetupWithManager(ctx context.Context, mgr ctrl.Manager, concurrent int) error {
	r.waiting = map[types.NamespacedName]healthWait{}
	indexer := mgr.GetFieldIndexer()
	if err := indexer.IndexField(ctx, &kustomizev1.Kustomization{}, sourceIndex, func(o client.Object) []string {
		key := sourceKey(o.(*kustomizev1.Kustomization))
		return []string{key.Kind + "/" + key.String()}
	}); err != nil {
		return fmt.Errorf("cannot index Kustomizations: %w", err)
	}
	if err := indexer.IndexField(ctx, &kustomizev1.Kustomization{}, dependencyIndex, func(o client.Object) []string {
		k := o.(*kustomizev1.Kustomization)
		var keys []string
		for _, d := range k.Spec.DependsOn {
			keys = append(keys, dependencyKey(k, d).String())
		}
		return keys
	}); err != nil {
		return fmt.Errorf("cannot index Kustomizations: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(&kustomizev1.Kustomization{}, builder.WithPredicates(changed(v1alpha1.ApprovePruneAnnotation))).
		Watches(&kustomizev1.Kustomization{}, handler.EnqueueRequestsFromMapFunc(r.dependants), builder.WithPredicates(becameReady())).
		WatchesRawSource(ctrlsource.Func(r.onSnapshot)).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: rateLimiter()}).
		Complete(r)
}

// onSnapshot enqueues the Kustomizations of a source that has a new snapshot.
func (r *Kustomizations) onSnapshot(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Snapshots.OnChange(func(key source.Key) {
		list := &kustomizev1.KustomizationList{}
		if err := r.Client.List(ctx, list, client.MatchingFields{sourceIndex: key.Kind + "/" + key.String()}); err != nil {
			log.FromContext(ctx).Error(err, "cannot list Kustomizations of source", "source", key.String())
			return
		}
		for i := range list.Items {
			queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	})
	return nil
}

func (r *Kustomizations) dependants(ctx context.Context, o client.Object) []reconcile.Request {
	list := &kustomizev1.KustomizationList{}
	if err := r.Client.List(ctx, list, client.MatchingFields{dependencyIndex: client.ObjectKeyFromObject(o).String()}); err != nil {
		log.FromContext(ctx).Error(err, "cannot list dependants", "name", o.GetName(), "namespace", o.GetNamespace())
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		k := &list.Items[i]
		// Only those that wait: the others are not concerned.
		c := apimeta.FindStatusCondition(k.Status.Conditions, meta.ReadyCondition)
		if c != nil && c.Reason == meta.DependencyNotReadyReason {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(k)})
		}
	}
	return requests
}

// becameReady passes updates after which a dependant may go on.
func becameReady() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		DeleteFunc: func(event.DeleteEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok1 := e.ObjectOld.(*kustomizev1.Kustomization)
			after, ok2 := e.ObjectNew.(*kustomizev1.Kustomization)
			if !ok1 || !ok2 || !apimeta.IsStatusConditionTrue(after.Status.Conditions, meta.ReadyCondition) {
				return false
			}
			return !apimeta.IsStatusConditionTrue(before.Status.Conditions, meta.ReadyCondition) ||
				before.Status.LastAppliedRevision != after.Status.LastAppliedRevision ||
				before.Status.ObservedGeneration != after.Status.ObservedGeneration
		},
	}
}

func sourceKey(k *kustomizev1.Kustomization) source.Key {
	namespace := k.Spec.SourceRef.Namespace
	if namespace == "" {
		namespace = k.Namespace
	}
	return source.Key{Kind: k.Spec.SourceRef.Kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: k.Spec.SourceRef.Name}}
}

func dependencyKey(k *kustomizev1.Kustomization, d kustomizev1.DependencyReference) types.NamespacedName {
	namespace := d.Namespace
	if namespace == "" {
		namespace = k.Namespace
	}
	return types.NamespacedName{Namespace: namespace, Name: d.Name}
}

// Reconcile brings one Kustomization's objects into the cluster.
func (r *Kustomizations) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obj := &kustomizev1.Kustomization{}
	// From the API server: the inventory must be the one we wrote last.
	if err := r.Cluster.Get(ctx, req.NamespacedName, obj); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
			r.Metrics.forget(kustomizev1.KustomizationKind, req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("cannot read Kustomization %s: %w", req.NamespacedName, err)
	}
	start := r.Now()
	before := obj.DeepCopy()
	if !obj.DeletionTimestamp.IsZero() {
		result, err := r.finalize(ctx, obj)
		return result, errors.Join(err, r.write(ctx, before, obj))
	}
	if controllerutil.AddFinalizer(obj, kustomizev1.KustomizationFinalizer) {
		if err := r.Client.Patch(ctx, obj, client.MergeFrom(before), client.FieldOwner(kustomizationManager)); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		before = obj.DeepCopy()
	}
	if obj.Spec.Suspend {
		obj.Status.LastHandledReconcileAt = obj.Annotations[meta.ReconcileRequestAnnotation]
		return ctrl.Result{}, r.write(ctx, before, obj)
	}
	result, err := r.reconcile(ctx, obj, start)
	obj.Status.LastHandledReconcileAt = obj.Annotations[meta.ReconcileRequestAnnotation]
	if werr := r.write(ctx, before, obj); werr != nil {
		return ctrl.Result{}, errors.Join(err, werr)
	}
	r.Metrics.reconciled(kustomizev1.KustomizationKind, req.NamespacedName, obj, r.Now().Sub(start))
	if obj.Status.Inventory != nil {
		r.Metrics.inventory(kustomizev1.KustomizationKind, req.NamespacedName, len(obj.Status.Inventory.Entries))
	}
	return result, err
}

func (r *Kustomizations) write(ctx context.Context, before, after *kustomizev1.Kustomization) error {
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		return nil
	}
	return patchStatus(ctx, r.Client, before, after, kustomizationManager)
}

func (r *Kustomizations) reconcile(ctx context.Context, obj *kustomizev1.Kustomization, start time.Time) (ctrl.Result, error) {
	name := client.ObjectKeyFromObject(obj)
	if field := unsupportedField(obj); field != "" {
		err := fmt.Errorf("spec.%s is not supported yet; nothing is applied while it is set", field)
		stalled(obj, ReasonUnsupportedField, err)
		r.event(obj, corev1.EventTypeWarning, "%s", err)
		return ctrl.Result{}, nil
	}
	snapshot, result, err := r.snapshot(ctx, obj)
	if snapshot == nil {
		return result, err
	}
	if err := r.dependencies(ctx, obj, snapshot); err != nil {
		wasWaiting := waitsForDependency(obj)
		failing(obj, meta.DependencyNotReadyReason, err)
		if !wasWaiting {
			r.event(obj, corev1.EventTypeNormal, "Dependencies do not meet ready condition: %s", err)
		}
		return ctrl.Result{RequeueAfter: jittered(dependencyPoll)}, nil
	}
	if wait, ok := r.waits(name, obj, snapshot); ok {
		return r.checkHealth(ctx, obj, snapshot, wait, start, nil)
	}

	obj.Status.LastAttemptedRevision = snapshot.Revision
	build, err := r.build(ctx, obj)
	if err != nil {
		return r.failed(obj, meta.BuildFailedReason, err)
	}
	rendering, err := render.Render(ctx, snapshot, build)
	if err != nil {
		reason := meta.BuildFailedReason
		if errors.Is(err, render.ErrPathNotFound) {
			reason = meta.ArtifactFailedReason
		}
		return r.failed(obj, reason, err)
	}
	owned, err := entries(obj.Status.Inventory)
	if err != nil {
		return r.failed(obj, meta.ReconciliationFailedReason, err)
	}
	recorded := obj.DeepCopy()
	sync, err := r.applier(obj).Sync(ctx, []apply.Phase{{Objects: rendering.Objects}}, apply.Options{
		Owned: owned,
		Record: func(ctx context.Context, ahead []inventory.Entry) error {
			obj.Status.Inventory = refs(ahead)
			progressing(obj, "Applying revision %s", snapshot.Revision)
			return patchStatus(ctx, r.Client, recorded, obj, kustomizationManager)
		},
		Force:     obj.Spec.Force,
		Prune:     obj.Spec.Prune,
		Target:    name.String(),
		Approved:  obj.Annotations[v1alpha1.ApprovePruneAnnotation],
		Undecided: undecided(obj),
	})
	err = render.Mask(err, build.Sensitive)
	obj.Status.Inventory = refs(sync.Inventory)
	var pruneErr *apply.PruneError
	switch {
	case errors.As(err, &pruneErr):
		r.applied(obj, snapshot, sync)
		return r.failed(obj, meta.PruneFailedReason, err)
	case err != nil:
		return r.failed(obj, meta.ReconciliationFailedReason, err)
	}
	r.applied(obj, snapshot, sync)
	if sync.Plan.Blocked() {
		return r.blocked(obj, sync)
	}
	removeCondition(obj, v1alpha1.PruneBlockedCondition)
	if obj.Spec.Wait && len(rendering.Objects) > 0 {
		wait := r.await(name, obj, snapshot, inventory.OfAll(rendering.Objects))
		return r.checkHealth(ctx, obj, snapshot, wait, start, &sync)
	}
	removeCondition(obj, meta.HealthyCondition)
	return r.succeeded(obj, snapshot, start, &sync)
}

// snapshot returns what the source holds. Without one, the result says how to
// go on.
func (r *Kustomizations) snapshot(ctx context.Context, obj *kustomizev1.Kustomization) (*source.Snapshot, ctrl.Result, error) {
	key := sourceKey(obj)
	if r.NoCrossNamespaceRefs && key.Namespace != obj.Namespace {
		err := fmt.Errorf("can't access '%s/%s/%s', cross-namespace references have been blocked", key.Kind, key.Namespace, key.Name)
		stalled(obj, "AccessDenied", err)
		r.event(obj, corev1.EventTypeWarning, "%s", err)
		return nil, ctrl.Result{}, nil
	}
	repo := &sourcev1.GitRepository{}
	if err := r.Client.Get(ctx, key.NamespacedName, repo); err != nil {
		if apierrors.IsNotFound(err) {
			result, err := r.failed(obj, meta.ArtifactFailedReason, fmt.Errorf("source '%s/%s/%s' not found", key.Kind, key.Namespace, key.Name))
			return nil, result, err
		}
		return nil, ctrl.Result{}, fmt.Errorf("cannot read %s %s: %w", key.Kind, key.NamespacedName, err)
	}
	snapshot := r.Snapshots.Get(key)
	if snapshot != nil {
		return snapshot, ctrl.Result{}, nil
	}
	if repo.Status.Artifact == nil {
		failing(obj, meta.ArtifactFailedReason, errors.New("source artifact not found, waiting for it"))
	}
	// The source has been fetched by an earlier process, or is being fetched:
	// its snapshot will wake us.
	return nil, ctrl.Result{RequeueAfter: jittered(dependencyPoll)}, nil
}

// dependencies is an error that names the first dependency that is not ready.
func (r *Kustomizations) dependencies(ctx context.Context, obj *kustomizev1.Kustomization, snapshot *source.Snapshot) error {
	for _, d := range obj.Spec.DependsOn {
		name := dependencyKey(obj, d)
		dep := &kustomizev1.Kustomization{}
		if err := r.Client.Get(ctx, name, dep); err != nil {
			return fmt.Errorf("dependency '%s' not found: %w", name, err)
		}
		if dep.Status.ObservedGeneration != dep.Generation || !apimeta.IsStatusConditionTrue(dep.Status.Conditions, meta.ReadyCondition) {
			return fmt.Errorf("dependency '%s' is not ready", name)
		}
		if sourceKey(dep) == sourceKey(obj) && dep.Status.LastAppliedRevision != snapshot.Revision {
			return fmt.Errorf("dependency '%s' revision is not up to date", name)
		}
	}
	return nil
}

func waitsForDependency(obj *kustomizev1.Kustomization) bool {
	c := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition)
	return c != nil && c.Reason == meta.DependencyNotReadyReason
}

func (r *Kustomizations) applier(obj *kustomizev1.Kustomization) *apply.Applier {
	return apply.New(r.Cluster, apply.Owner{
		FieldManager: objectManager, LabelGroup: ownerGroup, Name: obj.Name, Namespace: obj.Namespace,
	})
}

// applied records what was applied and tells about changes.
func (r *Kustomizations) applied(obj *kustomizev1.Kustomization, snapshot *source.Snapshot, sync apply.Result) {
	obj.Status.LastAppliedRevision = snapshot.Revision
	var changes ssa.ChangeSet
	for _, e := range sync.Changes.Entries {
		if e.Action == ssa.CreatedAction || e.Action == ssa.ConfiguredAction {
			changes.Add(e)
		}
	}
	if len(changes.Entries) > 0 {
		r.event(obj, corev1.EventTypeNormal, "%s", changes.String())
	}
	if len(sync.Deleted) > 0 {
		text := ""
		for _, e := range sync.Deleted {
			text += e.String() + " deleted\n"
		}
		r.event(obj, corev1.EventTypeNormal, "%s", text)
	}
}

// blocked records deletes that are held. Everything else has been done.
func (r *Kustomizations) blocked(obj *kustomizev1.Kustomization, sync apply.Result) (ctrl.Result, error) {
	err := errors.New(sync.Plan.Message(fmt.Sprintf("%s -n %s", obj.Name, obj.Namespace)))
	was := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition)
	isNew := was == nil || was.Reason != ReasonPruneBlocked || was.Message != err.Error()
	stalled(obj, ReasonPruneBlocked, err)
	// Of its own, so that a failure of another kind in between does not make us
	// forget that something is held.
	setCondition(obj, v1alpha1.PruneBlockedCondition, metav1.ConditionTrue, ReasonPruneBlocked, "%s", err)
	if isNew {
		r.event(obj, corev1.EventTypeWarning, "%s", err)
	}
	return ctrl.Result{RequeueAfter: jittered(obj.Spec.Interval.Duration)}, nil
}

// undecided reports whether the last plan was held for a person to decide.
func undecided(obj *kustomizev1.Kustomization) bool {
	c := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.PruneBlockedCondition)
	return c != nil && inventory.AsksForApproval(c.Message)
}

func (r *Kustomizations) failed(obj *kustomizev1.Kustomization, reason string, err error) (ctrl.Result, error) {
	failing(obj, reason, err)
	r.event(obj, corev1.EventTypeWarning, "%s", err)
	return ctrl.Result{RequeueAfter: obj.GetRetryInterval()}, nil
}

func (r *Kustomizations) succeeded(obj *kustomizev1.Kustomization, snapshot *source.Snapshot, start time.Time, sync *apply.Result) (ctrl.Result, error) {
	news := !apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.ReadyCondition) || obj.Status.ObservedGeneration != obj.Generation
	obj.Status.ObservedGeneration = obj.Generation
	ready(obj, meta.ReconciliationSucceededReason, "Applied revision: %s", snapshot.Revision)
	next := jittered(obj.Spec.Interval.Duration)
	if news || (sync != nil && len(sync.Deleted) > 0) {
		r.event(obj, corev1.EventTypeNormal, "Reconciliation finished in %s, next run in %s",
			r.Now().Sub(start).Round(time.Millisecond), obj.Spec.Interval.Duration)
	}
	if sync != nil && sync.Pending {
		next = deletePoll
	}
	return ctrl.Result{RequeueAfter: next}, nil
}

// await begins to wait for the health of what was just applied.
func (r *Kustomizations) await(name types.NamespacedName, obj *kustomizev1.Kustomization, snapshot *source.Snapshot, entries []inventory.Entry) healthWait {
	wait := healthWait{
		revision: snapshot.Revision, generation: obj.Generation,
		requested: obj.Annotations[meta.ReconcileRequestAnnotation], since: r.Now(), entries: entries,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[name] = wait
	return wait
}

// waits returns the wait that is under way, if it is still for what is asked.
func (r *Kustomizations) waits(name types.NamespacedName, obj *kustomizev1.Kustomization, snapshot *source.Snapshot) (healthWait, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait, ok := r.waiting[name]
	if ok && wait.revision == snapshot.Revision && wait.generation == obj.Generation &&
		wait.requested == obj.Annotations[meta.ReconcileRequestAnnotation] {
		return wait, true
	}
	delete(r.waiting, name)
	return healthWait{}, false
}

func (r *Kustomizations) forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, name)
}

// checkHealth looks once and returns; no worker waits.
func (r *Kustomizations) checkHealth(ctx context.Context, obj *kustomizev1.Kustomization, snapshot *source.Snapshot, wait healthWait, start time.Time, sync *apply.Result) (ctrl.Result, error) {
	name := client.ObjectKeyFromObject(obj)
	health, err := r.applier(obj).Health(ctx, wait.entries)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("cannot check health of Kustomization %s: %w", name, err)
	}
	took := r.Now().Sub(wait.since)
	timeout := obj.GetTimeout()
	switch {
	case health.Done():
		r.forget(name)
		wasHealthy := apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.HealthyCondition)
		setCondition(obj, meta.HealthyCondition, metav1.ConditionTrue, meta.SucceededReason, "Health check passed")
		if !wasHealthy {
			r.event(obj, corev1.EventTypeNormal, "Health check passed in %s", took.Round(time.Millisecond))
		}
		return r.succeeded(obj, snapshot, start, sync)
	case len(health.Failed) > 0 || took > timeout:
		r.forget(name)
		err := fmt.Errorf("health check failed after %s: %s", took.Round(time.Millisecond), health.Message())
		setCondition(obj, meta.HealthyCondition, metav1.ConditionFalse, meta.HealthCheckFailedReason, "%s", err)
		return r.failed(obj, meta.HealthCheckFailedReason, err)
	}
	progressing(obj, "Running health checks for revision %s with a timeout of %s", snapshot.Revision, timeout)
	setCondition(obj, meta.HealthyCondition, metav1.ConditionUnknown, meta.ProgressingReason, "Running health checks")
	return ctrl.Result{RequeueAfter: healthPoll}, nil
}

// finalize answers the deletion of a Kustomization by its deletion policy.
func (r *Kustomizations) finalize(ctx context.Context, obj *kustomizev1.Kustomization) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(obj, kustomizev1.KustomizationFinalizer) {
		return ctrl.Result{}, nil
	}
	prune, err := r.prunesOnDeletion(ctx, obj)
	if err != nil {
		return ctrl.Result{}, err
	}
	if prune {
		owned, err := entries(obj.Status.Inventory)
		if err != nil {
			return r.failed(obj, meta.PruneFailedReason, err)
		}
		res, err := r.applier(obj).Remove(ctx, owned, apply.Options{Target: client.ObjectKeyFromObject(obj).String()})
		obj.Status.Inventory = refs(res.Inventory)
		if len(res.Deleted) > 0 {
			r.applied(obj, &source.Snapshot{Revision: obj.Status.LastAppliedRevision}, res)
		}
		switch {
		case err != nil:
			return r.failed(obj, meta.PruneFailedReason, err)
		case res.Plan.Blocked():
			return r.blocked(obj, res)
		case len(res.Inventory) > 0 && r.waitsForTermination(obj):
			progressing(obj, "Waiting for %d objects to be deleted", len(res.Inventory))
			return ctrl.Result{RequeueAfter: deletePoll}, nil
		}
		// What is left in the inventory is being deleted: the API server
		// accepted each of the deletions.
	}
	before := obj.DeepCopy()
	controllerutil.RemoveFinalizer(obj, kustomizev1.KustomizationFinalizer)
	err = r.Client.Patch(ctx, obj, client.MergeFrom(before), client.FieldOwner(kustomizationManager))
	return ctrl.Result{}, client.IgnoreNotFound(err)
}

// waitsForTermination reports whether the Kustomization stays until its objects
// are gone. After its time-out it goes all the same, as with Flux.
func (r *Kustomizations) waitsForTermination(obj *kustomizev1.Kustomization) bool {
	return obj.GetDeletionPolicy() == kustomizev1.DeletionPolicyWaitForTermination &&
		r.Now().Sub(obj.DeletionTimestamp.Time) < obj.GetTimeout()
}

// prunesOnDeletion reports whether the objects go with the Kustomization. They
// never do when the kind itself is being removed: losing the CRDs must not
// take the workloads along.
func (r *Kustomizations) prunesOnDeletion(ctx context.Context, obj *kustomizev1.Kustomization) (bool, error) {
	if obj.Spec.Suspend || obj.Status.Inventory == nil {
		return false, nil
	}
	switch obj.GetDeletionPolicy() {
	case kustomizev1.DeletionPolicyOrphan:
		return false, nil
	case kustomizev1.DeletionPolicyMirrorPrune:
		if !obj.Spec.Prune {
			return false, nil
		}
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	err := r.Cluster.Get(ctx, types.NamespacedName{Name: "kustomizations." + ownerGroup}, crd)
	if err != nil {
		return false, fmt.Errorf("cannot read the CRD of Kustomization: %w", err)
	}
	return crd.DeletionTimestamp.IsZero(), nil
}

func (r *Kustomizations) event(obj *kustomizev1.Kustomization, kind, format string, args ...any) {
	reason := meta.ProgressingReason
	if c := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition); c != nil {
		reason = c.Reason
	}
	annotations := map[string]string{}
	if obj.Status.LastAttemptedRevision != "" {
		annotations[ownerGroup+"/revision"] = obj.Status.LastAttemptedRevision
	}
	const most = 1000 // of core/v1 Event.message, which allows 1024
	message := fmt.Sprintf(format, args...)
	if len(message) > most {
		message = message[:most-3] + "..."
	}
	r.Events.AnnotatedEventf(obj, annotations, kind, reason, "%s", message)
}

func entries(i *kustomizev1.ResourceInventory) ([]inventory.Entry, error) {
	if i == nil {
		return nil, nil
	}
	out := make([]inventory.Entry, 0, len(i.Entries))
	for _, ref := range i.Entries {
		e, err := inventory.Parse(ref.ID, ref.Version)
		if err != nil {
			return nil, fmt.Errorf("cannot read status.inventory: %w", err)
		}
		out = append(out, e)
	}
	return out, nil
}

func refs(entries []inventory.Entry) *kustomizev1.ResourceInventory {
	out := &kustomizev1.ResourceInventory{Entries: make([]kustomizev1.ResourceRef, 0, len(entries))}
	for _, e := range entries {
		out.Entries = append(out.Entries, kustomizev1.ResourceRef{ID: e.ID(), Version: e.Version})
	}
	return out
}
