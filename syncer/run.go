package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/health"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// run is one reconcile of a Kustomization under way.
type run struct {
	obj *kustomizev1.Kustomization
	// written is the object as the API server has it.
	written *kustomizev1.Kustomization
	known   *progress
	start   time.Time
	// requested: a person asked for this reconcile.
	requested bool

	snapshot *source.Snapshot
	checker  *health.Checker
	build    render.Build
	// key identifies the spec and the inputs of the build besides the files.
	key string
	// cluster is what is applied to, memo what is known of it: nil for clusters
	// that we do not watch.
	cluster *apply.Cluster
	memo    *apply.Memo
	target  TargetRef
	// rendering and sync are nil if nothing had to be rendered or applied.
	rendering *render.Rendering
	sync      *apply.Result
}

func (run *run) name() types.NamespacedName { return client.ObjectKeyFromObject(run.obj) }

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

// attempt is what goes into the history.
func (run *run) attempt(status string, now time.Time) Attempt {
	digest := run.known.digest()
	if run.rendering != nil {
		digest = run.rendering.Digest
	}
	return Attempt{
		Digest: digest, Status: status, At: now, Took: now.Sub(run.start),
		Revision: run.snapshot.Revision, OriginRevision: run.snapshot.OriginRevision, Requested: run.requested,
	}
}

// reconcile finds out what has to be done, in Flux's order, and does it.
func (r *Kustomizations) reconcile(ctx context.Context, run *run) (ctrl.Result, error) {
	obj := run.obj
	var err error
	if run.checker, err = health.New(obj.Spec.HealthCheckExprs); err != nil {
		return r.misconfigured(obj, meta.InvalidCELExpressionReason, fmt.Errorf("%s: %w", terminal, err))
	}
	if err := r.Rules.Dependencies.Expressions(obj); err != nil {
		return r.misconfigured(obj, meta.InvalidCELExpressionReason, fmt.Errorf("%s: %w", terminal, err))
	}
	result, err := r.find(ctx, run)
	if run.snapshot == nil {
		return result, err
	}
	if err := r.dependencies(ctx, obj, run.snapshot); err != nil {
		wasWaiting := waitsForDependency(obj)
		failing(obj, meta.DependencyNotReadyReason, err)
		if !wasWaiting {
			r.event(obj, corev1.EventTypeNormal, nil, "Dependencies do not meet ready condition, retrying in %s", r.Rules.RequeueDependency)
		}
		return ctrl.Result{RequeueAfter: jittered(r.Rules.RequeueDependency)}, nil
	}
	if run.build, err = r.build(ctx, obj); err != nil {
		return r.failed(ctx, run, meta.BuildFailedReason, err)
	}
	run.key = fmt.Sprintf("%d %s %s", obj.Generation, r.driftMode(obj), run.build.Key())
	if run.known.sweepDue(run.start) {
		r.Memo.Forget(run.name())
	}
	obj.Status.LastAttemptedRevision = run.snapshot.Revision
	run.target = TargetOf(obj, r.Targets.ServiceAccount)
	recorded := obj.Annotations[TargetAnnotation]
	if recorded == "" && run.target.Local() && run.known.settled(run.key, run.snapshot, obj) && r.Memo.Clean(run.name(), run.known.remembered()) {
		// Health is read with the rights of the object's service account, not with
		// ours: expressions would tell a tenant what he may not read.
		if run.cluster, err = r.Targets.Get(ctx, obj); err != nil {
			return r.failed(ctx, run, meta.ReconciliationFailedReason, fmt.Errorf("failed to build kube client: %w", err))
		}
		run.memo = r.Memo
		return r.checkHealth(ctx, run)
	}
	if run.rendering, err = render.Render(ctx, run.snapshot, run.build); err != nil {
		run.known.unsettle()
		if errors.Is(err, render.ErrPathNotFound) {
			return r.failed(ctx, run, meta.ArtifactFailedReason, fmt.Errorf("kustomization %w", err))
		}
		return r.failed(ctx, run, meta.BuildFailedReason, err)
	}
	if done, result, err := r.aim(ctx, run); !done {
		return result, err
	}
	return r.sync(ctx, run)
}

// sync applies what was rendered, and prunes.
func (r *Kustomizations) sync(ctx context.Context, run *run) (ctrl.Result, error) {
	obj := run.obj
	owned, err := entries(obj.Status.Inventory)
	if err != nil {
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	tier := firstsync.Keeper(r.FirstSync)
	if !run.target.Local() {
		tier = firstsync.Other{Reader: run.cluster}
	}
	record, err := tier.For(ctx, run.rendering.Objects)
	if err != nil {
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	mode := r.driftMode(obj)
	sync, err := r.applier(run).Sync(ctx, []apply.Phase{{Objects: run.rendering.Objects}}, apply.Options{
		Owned: owned,
		Record: func(ctx context.Context, ahead []inventory.Entry) error {
			obj.Status.Inventory = refs(ahead)
			progressing(obj, "Applying revision %s with a timeout of %s", run.snapshot.Revision, obj.GetTimeout())
			return r.record(ctx, run)
		},
		Force:             obj.Spec.Force,
		Ignore:            ignoreRules(obj),
		Stages:            r.Rules.Stages,
		MigrateAPIVersion: r.Rules.MigrateAPIVersion,
		FirstSync:         record,
		Prune:             obj.Spec.Prune,
		Target:            run.name().String(),
		Approved:          obj.Annotations[v1alpha1.ApprovePruneAnnotation],
		Undecided:         undecided(obj),
		LowerTier:         !run.target.Local(),
		Claimed:           r.claims(run.name(), run.target),
		Report:            mode == DriftReport,
		Secretive:         len(run.build.Sensitive) > 0 || run.build.Decrypter != nil,
		Applied:           obj.Status.LastAppliedRevision == run.snapshot.Revision && obj.Status.ObservedGeneration == obj.Generation,
	})
	run.sync = &sync
	err = render.Mask(err, run.build.Sensitive)
	obj.Status.Inventory = refs(sync.Inventory)
	r.FirstSync.Note(kustomizev1.KustomizationKind, run.name(), sync.Creation)
	// What goes with a Cluster is looked at again: nothing tells when that is gone.
	settled := err == nil && sync.Complete && !sync.Creation.Blocked() && !sync.Plan.Blocked() && !sync.Pending &&
		len(sync.Plan.OfCluster) == 0 && len(sync.Drifted) == 0 && run.memo != nil
	run.known.synced(run, settled, r.sweepAt(run.start))
	r.tell(obj, sync)
	var waiting *apply.WaitError
	var pruneErr *apply.PruneError
	if errors.As(err, &waiting) {
		return r.awaitStage(ctx, run, waiting)
	}
	run.known.stageOver()
	switch {
	case errors.As(err, &pruneErr):
		return r.failed(ctx, run, meta.PruneFailedReason, err)
	case err != nil:
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	r.drifted(obj, mode, sync.Drifted)
	if sync.Creation.Blocked() {
		return r.held(obj, sync)
	}
	removeCondition(obj, v1alpha1.CreateHeldCondition)
	if sync.Plan.Blocked() {
		obj.Status.LastAppliedRevision, obj.Status.LastAppliedOriginRevision = run.snapshot.Revision, run.snapshot.OriginRevision
		return r.blocked(obj, sync)
	}
	removeCondition(obj, v1alpha1.PruneBlockedCondition)
	return r.checkHealth(ctx, run)
}

func ignoreRules(obj *kustomizev1.Kustomization) []jsondiff.IgnoreRule {
	var rules []jsondiff.IgnoreRule
	for _, rule := range obj.Spec.Ignore {
		out := jsondiff.IgnoreRule{Paths: rule.Paths}
		if t := rule.Target; t != nil {
			out.Selector = &jsondiff.Selector{
				Group: t.Group, Version: t.Version, Kind: t.Kind, Name: t.Name, Namespace: t.Namespace,
				AnnotationSelector: t.AnnotationSelector, LabelSelector: t.LabelSelector,
			}
		}
		rules = append(rules, out)
	}
	return rules
}

func (r *Kustomizations) applier(run *run) *apply.Applier {
	return apply.New(run.cluster, apply.Owner{
		FieldManager: objectManager, LabelGroup: ownerGroup, Name: run.obj.Name, Namespace: run.obj.Namespace,
	}, run.memo)
}

// checkHealth looks once at the objects whose health is not known, and
// returns: no worker waits.
func (r *Kustomizations) checkHealth(ctx context.Context, run *run) (ctrl.Result, error) {
	obj := run.obj
	pending, since, err := r.pending(run)
	if err != nil {
		return r.failed(ctx, run, meta.ReconciliationFailedReason, err)
	}
	if !obj.Spec.Wait && len(obj.Spec.HealthChecks) == 0 || obj.Spec.Wait && len(run.declared()) == 0 {
		run.known.noHealth()
		removeCondition(obj, meta.HealthyCondition)
		return r.succeeded(ctx, run)
	}
	found, err := r.applier(run).Health(ctx, health.Without(pending, run.name()), run.checker)
	took := r.Now().Sub(since)
	timeout := obj.GetTimeout()
	if err != nil {
		// Not to know is not to be healthy, and no reason to wait for ever.
		run.known.waits(pending)
		if took > timeout {
			run.known.unhealthy(pending)
			setCondition(obj, meta.HealthyCondition, metav1.ConditionFalse, meta.HealthCheckFailedReason, "%s", err)
			return r.failed(ctx, run, meta.HealthCheckFailedReason, fmt.Errorf("health check failed after %s: %w", took.Round(time.Millisecond), err))
		}
		progressing(obj, "Running health checks for revision %s with a timeout of %s: %s", run.snapshot.Revision, timeout, err)
		return ctrl.Result{RequeueAfter: healthPoll}, nil
	}
	run.known.vanished(found)
	verdict := health.Judge(found, !r.Rules.NoFailFast)
	wasHealthy := apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.HealthyCondition)
	switch {
	case verdict == health.Healthy:
		run.known.healthy()
		message := fmt.Sprintf("Health check passed in %s", took.Round(time.Millisecond))
		if !wasHealthy || len(run.changed()) > 0 {
			setCondition(obj, meta.HealthyCondition, metav1.ConditionTrue, meta.SucceededReason, "%s", message)
			r.event(obj, corev1.EventTypeNormal, nil, "%s", message)
		}
		return r.succeeded(ctx, run)
	case verdict == health.Stalled || took > timeout:
		run.known.unhealthy(found.Pending())
		why := health.TimeoutError(found)
		if verdict == health.Stalled {
			why = health.StalledError(found)
		}
		setCondition(obj, meta.HealthyCondition, metav1.ConditionFalse, meta.HealthCheckFailedReason, "%s", why)
		return r.failed(ctx, run, meta.HealthCheckFailedReason, fmt.Errorf("health check failed after %s: %w", took.Round(time.Millisecond), why))
	}
	run.known.waits(found.Pending())
	progressing(obj, "Running health checks for revision %s with a timeout of %s", run.snapshot.Revision, timeout)
	setCondition(obj, meta.HealthyCondition, metav1.ConditionUnknown, meta.ProgressingReason,
		"Running health checks for revision %s with a timeout of %s", run.snapshot.Revision, timeout)
	return ctrl.Result{RequeueAfter: min(healthPoll, max(time.Second, timeout-took))}, nil
}

// pending are the objects whose health has to be looked at, and since when they
// are waited for.
func (r *Kustomizations) pending(run *run) ([]inventory.Entry, time.Time, error) {
	if run.obj.Spec.Wait || len(run.obj.Spec.HealthChecks) == 0 {
		pending, since := run.known.await(run, r.Now())
		return pending, since, nil
	}
	referenced, err := health.Referenced(run.obj.Spec.HealthChecks)
	_, since := run.known.await(run, r.Now())
	return referenced, since, err
}

// inFluxWords is a message that tools compare, as Flux writes it.
type inFluxWords string

func (w inFluxWords) Error() string { return string(w) }

// find sets the snapshot of the source. Without one, the result says how to go
// on.
func (r *Kustomizations) find(ctx context.Context, run *run) (ctrl.Result, error) {
	obj := run.obj
	key := sourceKey(obj)
	if r.Rules.NoCrossNamespaceRefs && key.Namespace != obj.Namespace {
		return r.misconfigured(obj, "AccessDenied", fmt.Errorf("can't access '%s/%s/%s', cross-namespace references have been blocked", key.Kind, key.Namespace, key.Name))
	}
	if key.Kind == sourcev1.ExternalArtifactKind && !r.Rules.ExternalArtifact {
		return r.misconfigured(obj, meta.FeatureGateDisabledReason, errors.New("to use ExternalArtifact sources enable the feature gate ExternalArtifact"))
	}
	o, err := r.Sources.object(ctx, key)
	switch {
	case errors.Is(err, errSourceNotFound):
		return r.failed(ctx, run, meta.ArtifactFailedReason, fmt.Errorf("source '%s/%s/%s' not found: %w", key.Kind, key.Namespace, key.Name, err))
	case err != nil:
		return ctrl.Result{}, err
	}
	run.snapshot, err = r.Sources.snapshot(ctx, key, o)
	wait := ctrl.Result{RequeueAfter: jittered(r.Rules.RequeueDependency)}
	switch {
	case err == nil:
		return ctrl.Result{}, nil
	case errors.Is(err, errFetchedAgain):
		return wait, nil
	case errors.Is(err, errNoArtifact):
		failing(obj, meta.ArtifactFailedReason, inFluxWords(fmt.Sprintf("Source artifact not found, retrying in %s", r.Rules.RequeueDependency)))
		return wait, nil
	case errors.Is(err, source.ErrArtifactNotFound):
		failing(obj, meta.ArtifactFailedReason, inFluxWords(fmt.Sprintf("Source is not ready, artifact not found, retrying in %s", r.Rules.RequeueDependency)))
		return wait, nil
	}
	return r.failed(ctx, run, meta.ArtifactFailedReason, err)
}

// dependencies is an error that names the first dependency that is not ready.
func (r *Kustomizations) dependencies(ctx context.Context, obj *kustomizev1.Kustomization, snapshot *source.Snapshot) error {
	for _, d := range obj.Spec.DependsOn {
		name := dependencyKey(obj, d)
		dep := &kustomizev1.Kustomization{}
		if err := r.Client.Get(ctx, name, dep); err != nil {
			return fmt.Errorf("dependency '%s' not found: %w", name, err)
		}
		if err := r.Rules.Dependencies.Check(ctx, obj, d, dep, snapshot.Revision); err != nil {
			return err
		}
	}
	return nil
}
