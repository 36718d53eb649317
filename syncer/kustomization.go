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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/decrypt"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// ReasonPruneBlocked: everything is applied, but deletes are held until a
// person decides.
const ReasonPruneBlocked = v1alpha1.ReasonPruneBlocked

// terminal begins the message of a failure that only a change of the object
// ends, as with Flux.
const terminal = "Reconciliation failed terminally due to configuration error"

// How soon a Kustomization is looked at again.
const (
	// healthPoll is the pause between two looks at objects that are getting
	// healthy, where no event comes before.
	healthPoll = 5 * time.Second
	// stagePoll is the same for the definitions that the rest needs.
	stagePoll = 500 * time.Millisecond
	// heldPoll is the pause between two looks at Clusters that are held, where no
	// event comes before: nothing tells of what a Cluster refers to.
	heldPoll = time.Minute
	// deletePoll is the pause between two looks at objects that are being
	// deleted.
	deletePoll = 2 * time.Second
	// blockedPoll is the pause of a deleted Kustomization whose objects are held.
	blockedPoll = 30 * time.Second
)

// stageTimeout bounds the wait for the definitions and classes that the rest
// of a rendering needs, as Flux does.
const stageTimeout = 60 * time.Second

// DriftMode is what is done about objects that somebody else changed.
type DriftMode string

// Modes of drift.
const (
	// DriftCorrect applies what is declared again.
	DriftCorrect DriftMode = "correct"
	// DriftReport leaves the object as it is and tells.
	DriftReport DriftMode = "report"
)

// Rules are the flags and feature gates of Flux's kustomize-controller that
// change what reconciling a Kustomization means. The zero value is Flux's
// default, but for fields that must be set.
type Rules struct {
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

	Dependencies DependencyRules
	Decryption   decrypt.Options
}

// Kustomizations reconciles Kustomization objects.
type Kustomizations struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Targets has the clusters that are applied to; its Local one is read from
	// where the cache will not do.
	Targets *Targets
	// Memo of what was applied to the local cluster.
	Memo *apply.Memo
	// FirstSync is what the tier knows of its Clusters. It may be nil.
	FirstSync *firstsync.Tier
	// Sources finds what is applied. Its shard is that of the Kustomizations, too.
	Sources *Finder
	Events  record.EventRecorder
	Metrics *Metrics
	Now     func() time.Time
	Rules   Rules
	// Drift is the mode of Kustomizations that do not choose one by annotation.
	Drift DriftMode
	// Sweep is the time after which everything is verified by a request for each
	// object, whatever the memo says.
	Sweep time.Duration

	mu    sync.Mutex
	known map[types.NamespacedName]*progress
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
	if !r.Sources.ours(obj) {
		return ctrl.Result{}, nil // of another shard, woken by a source or a dependency
	}
	start := r.Now()
	before := obj.DeepCopy()
	if !obj.DeletionTimestamp.IsZero() {
		result, err := r.finalize(ctx, obj)
		return result, errors.Join(err, r.write(ctx, before, obj))
	}
	if controllerutil.AddFinalizer(obj, kustomizev1.KustomizationFinalizer) {
		if err := r.patchMetadata(ctx, before, obj); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	requested := obj.Annotations[meta.ReconcileRequestAnnotation]
	if obj.Spec.Suspend {
		obj.Status.LastHandledReconcileAt = requested
		// Who depends on it, or waits for it, must not take the suspension for
		// work that is left.
		if apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.ReadyCondition) {
			obj.Status.ObservedGeneration = obj.Generation
		}
		return ctrl.Result{}, r.write(ctx, before, obj)
	}
	run := &run{obj: obj, written: before, known: r.progress(req.NamespacedName), start: start, requested: requested != obj.Status.LastHandledReconcileAt}
	result, err := r.reconcile(ctx, run)
	// What made this one urgent is done; the next look is an ordinary one.
	result.Priority = new(0)
	obj.Status.LastHandledReconcileAt = requested
	if werr := r.write(ctx, run.written, obj); werr != nil {
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
		return obj, r.Targets.Local.Get(ctx, name, obj)
	}
	return obj, nil
}

// write writes what changed of the status. before may be the object as it was
// when others wrote its metadata.
func (r *Kustomizations) write(ctx context.Context, before, after *kustomizev1.Kustomization) error {
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		return nil
	}
	base, patched := statusBase(before, after), after.DeepCopy()
	err := patchStatus(ctx, r.Client, base, patched, kustomizationManager)
	r.wrote(after, patched)
	return err
}

// record writes the status ahead of applying. Unlike write it fails if the
// object is gone or was changed meanwhile: what is created next must be in an
// inventory, and of the spec that was read.
func (r *Kustomizations) record(ctx context.Context, run *run) error {
	base, patched := statusBase(run.written, run.obj), run.obj.DeepCopy()
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, patched, patch, client.FieldOwner(kustomizationManager)); err != nil {
		return fmt.Errorf("cannot write status of %s: %w", run.name(), err)
	}
	r.wrote(run.obj, patched)
	run.written = run.obj.DeepCopy()
	return nil
}

// statusBase is what a status patch is made against: nothing but the status
// differs.
func statusBase(before, after *kustomizev1.Kustomization) *kustomizev1.Kustomization {
	return &kustomizev1.Kustomization{TypeMeta: after.TypeMeta, ObjectMeta: *after.ObjectMeta.DeepCopy(), Spec: after.Spec, Status: before.Status}
}

// wrote takes in the answer to a write: nothing but the resource version. A
// reconcile goes on with the spec that it began with, whatever has become of it.
func (r *Kustomizations) wrote(obj, answer *kustomizev1.Kustomization) {
	obj.ResourceVersion = answer.ResourceVersion
	r.progress(client.ObjectKeyFromObject(obj)).wrote(obj)
}

// patchMetadata writes finalizers and annotations. The status stays as it is in
// memory.
func (r *Kustomizations) patchMetadata(ctx context.Context, before, after *kustomizev1.Kustomization) error {
	patched := after.DeepCopy()
	base := before.DeepCopy()
	base.ResourceVersion, base.Status = after.ResourceVersion, patched.Status
	if err := r.Client.Patch(ctx, patched, client.MergeFrom(base), client.FieldOwner(kustomizationManager)); err != nil {
		return err
	}
	generation := after.Generation
	after.ObjectMeta = patched.ObjectMeta
	after.Generation = generation
	r.wrote(after, patched)
	return nil
}

func (r *Kustomizations) forget(name types.NamespacedName) {
	r.mu.Lock()
	delete(r.known, name)
	r.mu.Unlock()
	r.Memo.Forget(name)
	r.FirstSync.Note(kustomizev1.KustomizationKind, name, nil)
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

// awaitStage comes back until an early stage is usable. No worker waits.
func (r *Kustomizations) awaitStage(ctx context.Context, run *run, waiting *apply.WaitError) (ctrl.Result, error) {
	if r.Now().Sub(run.known.stageSince(run.start)) > stageTimeout {
		run.known.stageOver()
		return r.failed(ctx, run, meta.ReconciliationFailedReason, fmt.Errorf("timeout waiting for: [%s]", waiting.Health.Message()))
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
		r.event(obj, corev1.EventTypeWarning, nil, "%s", text)
	}
}

// sweepAt is when everything is to be verified next. It is spread, so that
// what was applied together is not verified together.
func (r *Kustomizations) sweepAt(now time.Time) time.Time {
	return now.Add(r.Sweep + time.Duration(rand.Int64N(int64(r.Sweep)/2+1)))
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
		r.event(obj, corev1.EventTypeNormal, nil, "%s", changes.String())
	}
	if len(sync.Deleted) > 0 {
		lines := make([]string, 0, len(sync.Deleted))
		for _, e := range sync.Deleted {
			lines = append(lines, e.String()+" deleted")
		}
		r.event(obj, corev1.EventTypeNormal, nil, "%s", strings.Join(lines, "\n"))
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
		r.event(obj, corev1.EventTypeWarning, nil, "%s", err)
	}
	return ctrl.Result{RequeueAfter: jittered(obj.Spec.Interval.Duration)}, nil
}

// held records that Clusters are not created, lest they be built twice. Everything
// that does not belong to them has been applied.
func (r *Kustomizations) held(obj *kustomizev1.Kustomization, sync apply.Result) (ctrl.Result, error) {
	err := errors.New(sync.Creation.Message())
	was := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.CreateHeldCondition)
	isNew := was == nil || was.Message != err.Error()
	stalled(obj, v1alpha1.ReasonCreateHeld, err)
	setCondition(obj, v1alpha1.CreateHeldCondition, metav1.ConditionTrue, v1alpha1.ReasonCreateHeld, "%s", err)
	if isNew {
		r.event(obj, corev1.EventTypeWarning, nil, "%s", err)
	}
	return ctrl.Result{RequeueAfter: jittered(min(obj.Spec.Interval.Duration, heldPoll))}, nil
}

// undecided reports whether the last plan was held for a person to decide.
func undecided(obj *kustomizev1.Kustomization) bool {
	c := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.PruneBlockedCondition)
	return c != nil && inventory.AsksForApproval(c.Message)
}

// failed records a failure that is tried again after the retry interval.
func (r *Kustomizations) failed(ctx context.Context, run *run, reason string, err error) (ctrl.Result, error) {
	obj := run.obj
	// As with Flux the history begins where applying does.
	if run.cluster != nil && reason != meta.BuildFailedReason {
		if attempt := run.attempt(reason, r.Now()); attempt.Digest != "" {
			RecordAttempt(&obj.Status.History, attempt)
		}
	}
	failing(obj, reason, err)
	log.FromContext(ctx).Error(err, fmt.Sprintf("Reconciliation failed after %s, next try in %s",
		r.Now().Sub(run.start).Round(time.Millisecond), obj.GetRetryInterval()), "revision", obj.Status.LastAttemptedRevision)
	r.event(obj, corev1.EventTypeWarning, nil, "%s", err)
	return ctrl.Result{RequeueAfter: obj.GetRetryInterval()}, nil
}

// misconfigured records a failure that only a change of the object ends.
func (r *Kustomizations) misconfigured(obj *kustomizev1.Kustomization, reason string, err error) (ctrl.Result, error) {
	known := apimeta.FindStatusCondition(obj.Status.Conditions, meta.StalledCondition)
	stalled(obj, reason, err)
	obj.Status.ObservedGeneration = obj.Generation
	if known == nil || known.Message != err.Error() {
		r.event(obj, corev1.EventTypeWarning, nil, "%s", err)
	}
	return ctrl.Result{}, nil
}

// succeeded records that everything declared is in the cluster.
func (r *Kustomizations) succeeded(ctx context.Context, run *run) (ctrl.Result, error) {
	obj := run.obj
	wasReady := apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.ReadyCondition) && obj.Status.ObservedGeneration == obj.Generation
	news := !wasReady || run.requested || len(run.changed()) > 0 || run.sync != nil && len(run.sync.Deleted) > 0
	attempt := run.attempt(meta.ReconciliationSucceededReason, r.Now())
	attempt.Requested = run.requested || len(run.changed()) > 0
	RecordAttempt(&obj.Status.History, attempt)
	obj.Status.ObservedGeneration = obj.Generation
	obj.Status.LastAppliedRevision, obj.Status.LastAppliedOriginRevision = run.snapshot.Revision, run.snapshot.OriginRevision
	ready(obj, meta.ReconciliationSucceededReason, "Applied revision: %s", run.snapshot.Revision)
	message := fmt.Sprintf("Reconciliation finished in %s, next run in %s", r.Now().Sub(run.start).Round(time.Millisecond), obj.Spec.Interval.Duration)
	if news {
		log.FromContext(ctx).Info(message, "revision", run.snapshot.Revision)
	}
	if !wasReady || len(run.changed()) > 0 || run.sync != nil && len(run.sync.Deleted) > 0 {
		var more map[string]string
		if !r.Rules.NoCommitStatusEvent {
			more = map[string]string{ownerGroup + "/commit_status": "update"}
		}
		r.event(obj, corev1.EventTypeNormal, more, "%s", message)
	}
	next := jittered(obj.Spec.Interval.Duration)
	if run.sync != nil && run.sync.Pending {
		next = min(next, run.known.deleting(run.start))
	}
	return ctrl.Result{RequeueAfter: next}, nil
}

func (r *Kustomizations) event(obj *kustomizev1.Kustomization, kind string, more map[string]string, format string, args ...any) {
	reason := meta.ProgressingReason
	if c := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition); c != nil {
		reason = c.Reason
	}
	annotations := map[string]string{}
	for k, v := range more {
		annotations[k] = v
	}
	if obj.Status.LastAttemptedRevision != "" {
		annotations[ownerGroup+"/revision"] = obj.Status.LastAttemptedRevision
	}
	if obj.Status.LastAppliedOriginRevision != "" && obj.Status.LastAppliedRevision == obj.Status.LastAttemptedRevision {
		annotations[ownerGroup+"/originRevision"] = obj.Status.LastAppliedOriginRevision
	}
	r.Events.AnnotatedEventf(obj, annotations, kind, reason, format, args...)
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
