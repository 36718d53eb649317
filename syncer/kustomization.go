package syncer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
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
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
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
	// healthy, where no event comes before.
	healthPoll = 5 * time.Second
	// stagePoll is the same for the definitions that the rest needs.
	stagePoll = 500 * time.Millisecond
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

// DriftMode is what is done about objects that somebody else changed.
type DriftMode string

// Modes of drift.
const (
	// DriftCorrect applies what is declared again.
	DriftCorrect DriftMode = "correct"
	// DriftReport leaves the object as it is and tells.
	DriftReport DriftMode = "report"
)

// Kustomizations reconciles Kustomization objects.
type Kustomizations struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Cluster reads from the API server, and is what is applied to.
	Cluster *apply.Cluster
	// Memo of what was applied to Cluster.
	Memo      *apply.Memo
	Snapshots *source.Snapshots
	Events    record.EventRecorder
	Metrics   *Metrics
	Now       func() time.Time
	// NoCrossNamespaceRefs refuses sources of other namespaces.
	NoCrossNamespaceRefs bool
	// Drift is the mode of Kustomizations that do not choose one by annotation.
	Drift DriftMode
	// Sweep is the time after which everything is verified by a request for each
	// object, whatever the memo says.
	Sweep time.Duration

	mu    sync.Mutex
	known map[types.NamespacedName]*progress
}

// SetupWithManager registers the reconciler and its indexes.
func (r *Kustomizations) SetupWithManager(ctx context.Context, mgr ctrl.Manager, concurrent int) error {
	r.known = map[types.NamespacedName]*progress{}
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
		WatchesRawSource(ctrlsource.Func(r.onTouch)).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: rateLimiter()}).
		Complete(r)
}

// Priorities of the queue, for lack of others 0: what a commit changed goes
// before what only takes note of it.
const (
	priorityChanged   = 100
	priorityUnchanged = -100
)

// onSnapshot enqueues the Kustomizations of a source that has a new snapshot.
func (r *Kustomizations) onSnapshot(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Snapshots.OnChange(func(key source.Key) {
		list := &kustomizev1.KustomizationList{}
		if err := r.Client.List(ctx, list, client.MatchingFields{sourceIndex: key.Kind + "/" + key.String()}, client.UnsafeDisableDeepCopy); err != nil {
			log.FromContext(ctx).Error(err, "cannot list Kustomizations of source", "source", key.String())
			return
		}
		snapshot := r.Snapshots.Get(key)
		for i := range list.Items {
			name := client.ObjectKeyFromObject(&list.Items[i])
			priority := priorityChanged
			if snapshot != nil && r.progress(name).sameFiles(snapshot) {
				priority = priorityUnchanged
			}
			enqueue(queue, name, priority, 0)
		}
	})
	return nil
}

// onTouch enqueues the Kustomizations of which an object changed in the
// cluster.
func (r *Kustomizations) onTouch(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Memo.OnTouch(func(name types.NamespacedName, object inventory.Entry, dirty bool) {
		if after, ok := r.progress(name).touched(object, dirty, r.Now()); ok {
			enqueue(queue, name, priorityChanged, after)
		}
	})
	return nil
}

func enqueue(queue workqueue.TypedRateLimitingInterface[reconcile.Request], name types.NamespacedName, priority int, after time.Duration) {
	request := reconcile.Request{NamespacedName: name}
	if q, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		q.AddWithOpts(priorityqueue.AddOpts{Priority: &priority, After: after}, request)
		return
	}
	queue.AddAfter(request, after)
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
	obj, err := r.read(ctx, req.NamespacedName)
	if err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
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
		r.progress(req.NamespacedName).wrote(obj)
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

// read returns the object as the cache has it, or as the API server has it
// where the cache lags behind our own last write: the inventory must be the one
// that we wrote.
func (r *Kustomizations) read(ctx context.Context, name types.NamespacedName) (*kustomizev1.Kustomization, error) {
	obj := &kustomizev1.Kustomization{}
	if err := r.Client.Get(ctx, name, obj); err != nil {
		return nil, err
	}
	if r.progress(name).isPast(obj) {
		return obj, r.Cluster.Get(ctx, name, obj)
	}
	return obj, nil
}

func (r *Kustomizations) write(ctx context.Context, before, after *kustomizev1.Kustomization) error {
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		return nil
	}
	err := patchStatus(ctx, r.Client, before, after, kustomizationManager)
	r.progress(client.ObjectKeyFromObject(after)).wrote(after)
	return err
}

func (r *Kustomizations) forget(name types.NamespacedName) {
	r.mu.Lock()
	delete(r.known, name)
	r.mu.Unlock()
	r.Memo.Forget(name)
	r.Metrics.forget(kustomizev1.KustomizationKind, name)
}

// progress returns what this process knows of a Kustomization.
func (r *Kustomizations) progress(name types.NamespacedName) *progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.known[name]
	if p == nil {
		p = &progress{}
		r.known[name] = p
	}
	return p
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
	build, err := r.build(ctx, obj)
	if err != nil {
		return r.failed(obj, meta.BuildFailedReason, err)
	}
	known := r.progress(name)
	if known.sweepDue(start) {
		r.Memo.Forget(name)
	}
	run := &run{
		obj: obj, known: known, snapshot: snapshot, build: build, key: fmt.Sprintf("%d %s", obj.Generation, build.Key()), start: start,
	}
	obj.Status.LastAttemptedRevision = snapshot.Revision
	if known.settled(run.key, snapshot, obj) && r.Memo.Clean(name, known.remembered()) {
		return r.checkHealth(ctx, run)
	}
	return r.sync(ctx, run)
}

// run is one reconcile under way.
type run struct {
	obj      *kustomizev1.Kustomization
	known    *progress
	snapshot *source.Snapshot
	build    render.Build
	// key identifies the spec and the inputs of the build besides the files.
	key   string
	start time.Time
	// rendering and sync are nil if nothing had to be rendered or applied.
	rendering *render.Rendering
	sync      *apply.Result
}

// declared lists what is in the cluster on behalf of the object and not exempt.
func (run *run) declared() []inventory.Entry {
	if run.sync == nil {
		list, _ := entries(run.obj.Status.Inventory) // was read before
		return list
	}
	return run.touched(ssa.CreatedAction, ssa.ConfiguredAction, ssa.UnchangedAction)
}

// changed lists what this reconcile changed.
func (run *run) changed() []inventory.Entry {
	return run.touched(ssa.CreatedAction, ssa.ConfiguredAction)
}

func (run *run) touched(actions ...ssa.Action) []inventory.Entry {
	if run.sync == nil {
		return nil
	}
	var list []inventory.Entry
	for _, c := range run.sync.Changes.Entries {
		if slices.Contains(actions, c.Action) {
			m := c.ObjMetadata
			list = append(list, inventory.Entry{
				Namespace: m.Namespace, Name: m.Name, Group: m.GroupKind.Group, Kind: m.GroupKind.Kind, Version: c.GroupVersion,
			})
		}
	}
	return list
}

// sync renders, applies and prunes.
func (r *Kustomizations) sync(ctx context.Context, run *run) (ctrl.Result, error) {
	obj := run.obj
	name := client.ObjectKeyFromObject(obj)
	rendering, err := render.Render(ctx, run.snapshot, run.build)
	if err != nil {
		run.known.unsettle()
		reason := meta.BuildFailedReason
		if errors.Is(err, render.ErrPathNotFound) {
			reason = meta.ArtifactFailedReason
		}
		return r.failed(obj, reason, err)
	}
	run.rendering = rendering
	owned, err := entries(obj.Status.Inventory)
	if err != nil {
		return r.failed(obj, meta.ReconciliationFailedReason, err)
	}
	recorded := obj.DeepCopy()
	mode := r.driftMode(obj)
	sync, err := r.applier(obj).Sync(ctx, []apply.Phase{{Objects: rendering.Objects}}, apply.Options{
		Owned: owned,
		Record: func(ctx context.Context, ahead []inventory.Entry) error {
			obj.Status.Inventory = refs(ahead)
			progressing(obj, "Applying revision %s", run.snapshot.Revision)
			err := patchStatus(ctx, r.Client, recorded, obj, kustomizationManager)
			run.known.wrote(obj)
			return err
		},
		Force:     obj.Spec.Force,
		Prune:     obj.Spec.Prune,
		Target:    name.String(),
		Approved:  obj.Annotations[v1alpha1.ApprovePruneAnnotation],
		Undecided: undecided(obj),
		Report:    mode == DriftReport,
		Applied:   obj.Status.LastAppliedRevision == run.snapshot.Revision && obj.Status.ObservedGeneration == obj.Generation,
	})
	run.sync = &sync
	err = render.Mask(err, run.build.Sensitive)
	obj.Status.Inventory = refs(sync.Inventory)
	run.known.synced(run, err == nil && sync.Complete && !sync.Plan.Blocked() && !sync.Pending && len(sync.Drifted) == 0, r.sweepAt(run.start))
	r.tell(obj, sync)
	var waiting *apply.WaitError
	var pruneErr *apply.PruneError
	switch {
	case errors.As(err, &waiting):
		return r.awaitStage(run, waiting)
	case errors.As(err, &pruneErr):
		return r.failed(obj, meta.PruneFailedReason, err)
	case err != nil:
		return r.failed(obj, meta.ReconciliationFailedReason, err)
	}
	r.drifted(obj, mode, sync.Drifted)
	if sync.Plan.Blocked() {
		obj.Status.LastAppliedRevision = run.snapshot.Revision
		return r.blocked(obj, sync)
	}
	removeCondition(obj, v1alpha1.PruneBlockedCondition)
	return r.checkHealth(ctx, run)
}

// stageTimeout bounds the wait for the definitions and classes that the rest
// of a rendering needs, as Flux does.
const stageTimeout = 60 * time.Second

// awaitStage comes back until an early stage is usable. No worker waits.
func (r *Kustomizations) awaitStage(run *run, waiting *apply.WaitError) (ctrl.Result, error) {
	since := run.known.stageSince(run.start)
	if r.Now().Sub(since) > stageTimeout {
		return r.failed(run.obj, meta.ReconciliationFailedReason, fmt.Errorf("timeout waiting for: %s", waiting.Health.Message()))
	}
	progressing(run.obj, "Waiting for the first objects of revision %s to be usable: %s", run.snapshot.Revision, waiting.Health.Message())
	return ctrl.Result{RequeueAfter: stagePoll}, nil
}

// driftMode of a Kustomization: its annotation, or else the agent's mode.
func (r *Kustomizations) driftMode(obj *kustomizev1.Kustomization) DriftMode {
	switch mode := DriftMode(obj.Annotations[v1alpha1.DriftAnnotation]); mode {
	case DriftCorrect, DriftReport:
		return mode
	}
	return r.Drift
}

// drifted records objects that are left as somebody else made them.
func (r *Kustomizations) drifted(obj *kustomizev1.Kustomization, mode DriftMode, drifts []apply.Drift) {
	r.Metrics.drift(client.ObjectKeyFromObject(obj), len(drifts))
	if mode != DriftReport || len(drifts) == 0 {
		removeCondition(obj, v1alpha1.DriftedCondition)
		return
	}
	lines := make([]string, 0, len(drifts))
	for _, d := range drifts {
		lines = append(lines, d.String())
	}
	slices.Sort(lines)
	text := strings.Join(lines, "\n")
	was := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.DriftedCondition)
	setCondition(obj, v1alpha1.DriftedCondition, metav1.ConditionTrue, v1alpha1.ReasonDriftDetected, "%s", text)
	if now := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.DriftedCondition); was == nil || was.Message != now.Message {
		r.event(obj, corev1.EventTypeWarning, "%s", text)
	}
}

// sweepAt is when everything is to be verified next. It is spread, so that
// what was applied together is not verified together.
func (r *Kustomizations) sweepAt(now time.Time) time.Time {
	return now.Add(r.Sweep + time.Duration(rand.Int64N(int64(r.Sweep)/2+1)))
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
	}, r.Memo)
}

// tell emits events about what was changed.
func (r *Kustomizations) tell(obj *kustomizev1.Kustomization, sync apply.Result) {
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
		lines := make([]string, 0, len(sync.Deleted))
		for _, e := range sync.Deleted {
			lines = append(lines, e.String()+" deleted")
		}
		r.event(obj, corev1.EventTypeNormal, "%s", strings.Join(lines, "\n"))
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

// succeeded records that everything declared is in the cluster.
func (r *Kustomizations) succeeded(run *run) (ctrl.Result, error) {
	obj := run.obj
	wasReady := apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.ReadyCondition) && obj.Status.ObservedGeneration == obj.Generation
	changed := run.sync != nil && len(run.sync.Deleted) > 0
	obj.Status.ObservedGeneration = obj.Generation
	obj.Status.LastAppliedRevision = run.snapshot.Revision
	ready(obj, meta.ReconciliationSucceededReason, "Applied revision: %s", run.snapshot.Revision)
	if !wasReady || changed {
		r.event(obj, corev1.EventTypeNormal, "Reconciliation finished in %s, next run in %s",
			r.Now().Sub(run.start).Round(time.Millisecond), obj.Spec.Interval.Duration)
	}
	if run.sync != nil && run.sync.Pending {
		return ctrl.Result{RequeueAfter: deletePoll}, nil
	}
	return ctrl.Result{RequeueAfter: jittered(obj.Spec.Interval.Duration)}, nil
}

// checkHealth looks once at the objects whose health is not known, and
// returns: no worker waits.
func (r *Kustomizations) checkHealth(ctx context.Context, run *run) (ctrl.Result, error) {
	obj := run.obj
	if !obj.Spec.Wait {
		removeCondition(obj, meta.HealthyCondition)
		run.known.noHealth()
		return r.succeeded(run)
	}
	pending, since := run.known.await(run, r.Now())
	health, err := r.applier(obj).Health(ctx, pending)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("cannot check health of Kustomization %s: %w", client.ObjectKeyFromObject(obj), err)
	}
	took := r.Now().Sub(since)
	timeout := obj.GetTimeout()
	switch {
	case health.Done():
		run.known.healthy()
		wasHealthy := apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.HealthyCondition)
		setCondition(obj, meta.HealthyCondition, metav1.ConditionTrue, meta.SucceededReason, "Health check passed")
		if !wasHealthy {
			r.event(obj, corev1.EventTypeNormal, "Health check passed in %s", took.Round(time.Millisecond))
		}
		return r.succeeded(run)
	case len(health.Failed) > 0 || took > timeout:
		run.known.unhealthy(health.Pending)
		err := fmt.Errorf("health check failed after %s: %s", took.Round(time.Millisecond), health.Message())
		setCondition(obj, meta.HealthyCondition, metav1.ConditionFalse, meta.HealthCheckFailedReason, "%s", err)
		return r.failed(obj, meta.HealthCheckFailedReason, err)
	}
	run.known.waits(health.Pending)
	progressing(obj, "Running health checks for revision %s with a timeout of %s", run.snapshot.Revision, timeout)
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
		r.tell(obj, res)
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
