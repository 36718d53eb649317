package kustomization

import (
	"context"
	"errors"
	"fmt"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/meta"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/decrypt"
	"github.com/cascade-gitops/cascade/syncer/depend"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/health"
	"github.com/cascade-gitops/cascade/syncer/memo"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/rights"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/target"
	"github.com/cascade-gitops/cascade/syncer/trace"
	"github.com/cascade-gitops/cascade/syncer/wake"
	"github.com/cascade-gitops/cascade/syncer/worker"
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

// Rules are the flags and feature gates that change what reconciling a Kustomization
// means. The zero value is Flux's default, but for fields that must be set.
type Rules struct {
	// Drift is the mode of Kustomizations that do not choose one by annotation. It must
	// be set.
	Drift DriftMode
	// Sweep is the time after which everything is verified by a request for each
	// object, whatever the memo says. It must be set.
	Sweep time.Duration
	// NoCrossNamespaceRefs refuses sources of other namespaces.
	NoCrossNamespaceRefs bool
	// RequeueDependency is how long an event is waited for that should come, of
	// a source or a dependency. It must be set.
	RequeueDependency time.Duration
	// Stages are kinds that are applied before everything but definitions and
	// classes.
	Stages map[schema.GroupKind]struct{}
	// Gates of that name.
	ExternalArtifact, LenientSubstitution, NoFailFast, MigrateAPIVersion, NoCommitStatusEvent bool

	Dependencies depend.Rules
	Decryption   decrypt.Options
	// Retries after errors of the API server.
	Retries wake.Retries
}

// Reconciler reconciles Kustomization objects.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Targets has the clusters that are applied to; its Local one is read from
	// where the cache will not do.
	Targets *target.Targets
	// Memo of what was applied to the local cluster.
	Memo *memo.Memo
	// Rights notices what the accounts of Kustomizations may not do any more. It may be
	// nil.
	Rights *rights.Rights
	// FirstSync is what the tier knows of its Clusters. It may be nil.
	FirstSync *firstsync.Tier
	// Sources finds what is applied. Its shard is that of the Kustomizations, too.
	Sources *find.Finder
	Events  record.EventRecorder
	Metrics *metrics.Metrics
	// Traces may be nil.
	Traces *trace.Tracer
	// Stalls watches the reconciles; nil watches none.
	Stalls *stall.Watchdog
	Now    func() time.Time
	// Jitter spreads the intervals, and Random the sweeps: it returns numbers from 0
	// to 1 and is safe for concurrent use.
	Jitter wake.Jitter
	Random func() float64
	// Workers build with kustomize and evaluate expressions, with the tasks of packages
	// render and expression.
	Workers worker.Runner
	Rules   Rules
	// Claims tells which objects are others'.
	Claims *claim.Claims
	// Clusters of the tier; nil if nobody follows them.
	Clusters Clusters

	rollouts rolloutKind
	store    *status.Store[*kustomizev1.Kustomization]
	// applier is apply.New but in tests of the steps.
	applier func(*apply.Cluster, apply.Owner, *memo.Memo) applier

	known known
	notes notes
	// looking has a place for the run that reads ignored files.
	looking chan struct{}
}

// workers are those that work for an object.
func (r *Reconciler) workers(obj *kustomizev1.Kustomization) worker.Runner {
	return worker.For(r.Workers, kustomizev1.KustomizationKind+"/"+obj.Namespace+"/"+obj.Name)
}

// applier is what a reconcile needs of apply.Applier.
type applier interface {
	Sync(context.Context, []apply.Phase, apply.Options) (apply.Result, error)
	Remove(context.Context, []inventory.Entry, apply.Options) (apply.Result, error)
	Health(context.Context, []inventory.Entry, *health.Checker) (apply.Health, error)
}

// open makes what the reconciler keeps; it is called before the first reconcile.
func (r *Reconciler) open() {
	r.rollouts.now = r.Now
	r.looking = make(chan struct{}, 1)
	r.applier = func(c *apply.Cluster, owner apply.Owner, memo *memo.Memo) applier {
		return apply.New(c, owner, memo, r.Now)
	}
	r.store = &status.Store[*kustomizev1.Kustomization]{
		Client: r.Client, Live: r.Targets.Local, Manager: status.KustomizationManager,
		New:        func() *kustomizev1.Kustomization { return &kustomizev1.Kustomization{} },
		Meta:       func(o *kustomizev1.Kustomization) *metav1.ObjectMeta { return &o.ObjectMeta },
		CopyStatus: func(to, from *kustomizev1.Kustomization) { to.Status = *from.Status.DeepCopy() },
	}
}

// Reconcile brings one Kustomization's objects into the cluster.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obj, err := r.store.Read(ctx, req.NamespacedName)
	if err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("cannot read Kustomization %s: %w", req.NamespacedName, err)
	}
	if !r.Sources.Ours(obj) { // it left the shard, or was woken by a source or a dependency
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	for !r.known.of(req.NamespacedName).isOf(obj.UID) { // it was deleted and made again, and nobody saw it gone
		r.forget(req.NamespacedName)
	}
	requested := obj.Annotations[meta.ReconcileRequestAnnotation]
	run := newRun(r.store.Record(obj), r.known.of(req.NamespacedName), r.Now())
	if err := r.recordOwn(ctx, run); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if err := r.recordCluster(ctx, run); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	r.takenBack(run)
	if !obj.Spec.Suspend {
		run.held.HandOver = run.known.handsOver(run.held.HandOver, run.start)
	}
	if !obj.DeletionTimestamp.IsZero() {
		result, err := r.finalize(ctx, run)
		r.keepRights(run)
		if werr := errors.Join(run.WriteHeld(ctx, run.held), run.Write(ctx)); werr != nil {
			return result, errors.Join(err, werr)
		}
		r.measure(req.NamespacedName, obj, r.Now().Sub(run.start))
		return result, err
	}
	if controllerutil.AddFinalizer(obj, kustomizev1.KustomizationFinalizer) {
		if err := run.WriteMetadata(ctx); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	if obj.Spec.Suspend {
		obj.Status.LastHandledReconcileAt = requested
		r.suspended(run)
		r.idles(run)
		return ctrl.Result{}, errors.Join(run.WriteHeld(ctx, run.held), run.Write(ctx))
	}
	was := trace.WasKustomization(obj)
	result, err := r.reconcile(ctx, run)
	result.RequeueAfter = run.composed.nextLook(result.RequeueAfter)
	r.idles(run)
	// What made this one urgent is done; the next look is an ordinary one.
	result.Priority = new(0)
	if !run.unanswered {
		obj.Status.LastHandledReconcileAt = requested
	}
	r.keepRights(run)
	if werr := errors.Join(run.WriteHeld(ctx, run.held), r.endApproval(ctx, run), run.Write(ctx)); werr != nil {
		run.known.invalidate() // only who renders finds out again what was to be written
		return ctrl.Result{}, errors.Join(err, werr)
	}
	now := r.Now()
	r.measure(req.NamespacedName, obj, now.Sub(run.start))
	if step, ok := trace.OfKustomization(was, obj, run.start, now); ok {
		r.Traces.Record(step)
	}
	return result, err
}

// measure tells Prometheus how a reconcile left an object. One that was let go has no series any
// more, also while somebody else's finalizer keeps it.
func (r *Reconciler) measure(name types.NamespacedName, obj *kustomizev1.Kustomization, took time.Duration) {
	if !controllerutil.ContainsFinalizer(obj, kustomizev1.KustomizationFinalizer) {
		r.Metrics.Forget(kustomizev1.KustomizationKind, name)
		return
	}
	r.Metrics.Reconciled(kustomizev1.KustomizationKind, name, obj, took)
	if obj.Status.Inventory != nil {
		r.Metrics.Inventory(kustomizev1.KustomizationKind, name, len(obj.Status.Inventory.Entries))
	}
}

// suspended ends what was under way when a Kustomization was suspended.
func (r *Reconciler) suspended(run *run) {
	obj := run.Obj
	status.RemoveCondition(obj, v1alpha1.OwnershipConflictCondition)
	if apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.ReadyCondition) {
		// Who depends on it, or waits for it, must not take the suspension for
		// work that is left.
		obj.Status.ObservedGeneration = obj.Generation
	}
	why := status.MarkSuspended(obj)
	if why == "" {
		return
	}
	run.known.stageOver()
	run.known.cancel(healthInputs{}) // of whatever it waits for
	if apimeta.FindStatusCondition(obj.Status.Conditions, meta.HealthyCondition) != nil {
		status.SetCondition(obj, meta.HealthyCondition, metav1.ConditionUnknown, v1alpha1.ReasonSuspended, "%s", why)
	}
	// It says nothing of the revision: the commit status that an Alert set stays, in Flux's
	// notification-controller as well, which takes each reason that it does not know for a success.
	r.eventOf(run, v1alpha1.ReasonSuspended, eventv1.EventTypeTrace, map[string]string{
		annotation(eventv1.MetaRevisionKey): obj.Status.LastAttemptedRevision,
	}, "%s", why)
}

func (r *Reconciler) forget(name types.NamespacedName) {
	r.known.forget(name)
	r.store.Forget(name)
	r.Memo.Forget(name)
	r.Rights.Forget(name)
	r.FirstSync.Note(kustomizev1.KustomizationKind, name, nil)
	r.Sources.Snapshots.Retain(holderOf(name))
	r.Metrics.Forget(kustomizev1.KustomizationKind, name)
	r.Rules.Decryption.Forget(name)
}

// driftMode of a Kustomization: its annotation, or else the agent's mode.
func (r *Reconciler) driftMode(obj *kustomizev1.Kustomization) DriftMode {
	switch mode := DriftMode(obj.Annotations[v1alpha1.DriftAnnotation]); mode {
	case DriftCorrect, DriftReport:
		return mode
	}
	return r.Rules.Drift
}
