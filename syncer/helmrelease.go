package syncer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/chartutil"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	helmchart "helm.sh/helm/v4/pkg/chart/v2"
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

	"github.com/cascade-gitops/cascade/syncer/chart"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Reasons of a HelmRelease that is not ready, as Flux's helm-controller names
// them.
const (
	reasonSourceNotReady   = "SourceNotReady"
	reasonValuesError      = "ValuesError"
	reasonChartMutateError = "ChartMutateError"
	reasonRESTClientError  = "RESTClientError"
	reasonAccessDenied     = "AccessDenied"
)

// ReleaseRules are the flags and feature gates of Flux's helm-controller that
// change what reconciling a HelmRelease means, but for those of the actions,
// which release.Releases has.
type ReleaseRules struct {
	// NoCrossNamespaceRefs refuses charts of other namespaces.
	NoCrossNamespaceRefs bool
	// RequeueDependency is how long an event is waited for that should come, of
	// a chart or a dependency. It must be set.
	RequeueDependency time.Duration
	// ExternalArtifact and NoDigestTracking are the gates ExternalArtifact and
	// DisableChartDigestTracking.
	ExternalArtifact, NoDigestTracking bool

	Dependencies DependencyRules
}

// HelmReleases reconciles HelmRelease objects.
type HelmReleases struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Targets has the clusters that releases are installed in; what the cache
	// will not do for is read from its Local one.
	Targets *Targets
	// Sources finds charts. Its shard is that of the HelmReleases, too.
	Sources  *Finder
	Releases *release.Releases
	// FirstSync is what the tier knows of its Clusters. It may be nil.
	FirstSync *firstsync.Tier
	Events    record.EventRecorder
	Metrics   *Metrics
	Now       func() time.Time
	Rules     ReleaseRules
	// ChartFileBytes bounds a file of a chart.
	ChartFileBytes int64

	mu      sync.Mutex
	written map[types.NamespacedName]*lastWrite
}

// Reconcile brings one release into its cluster.
func (r *HelmReleases) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obj, err := r.read(ctx, req.NamespacedName)
	if err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("cannot read HelmRelease %s: %w", req.NamespacedName, err)
	}
	if !r.Sources.ours(obj) {
		return ctrl.Result{}, nil // of another shard, woken by a chart or a dependency
	}
	start := r.Now()
	run := &releaseRun{obj: obj, before: obj.DeepCopy()}
	requested := obj.Annotations[meta.ReconcileRequestAnnotation]
	if !obj.DeletionTimestamp.IsZero() {
		result, err := r.finalize(ctx, run)
		return result, errors.Join(err, r.write(ctx, run))
	}
	if controllerutil.AddFinalizer(obj, helmv2.HelmReleaseFinalizer) {
		if err := r.patchMetadata(ctx, run); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	if obj.Spec.Suspend {
		obj.Status.LastHandledReconcileAt = requested
		return ctrl.Result{}, r.write(ctx, run)
	}
	result, err := r.reconcile(ctx, run)
	obj.Status.LastHandledReconcileAt = requested
	if werr := r.write(ctx, run); werr != nil {
		return ctrl.Result{}, errors.Join(err, werr)
	}
	r.Metrics.reconciled(helmv2.HelmReleaseKind, req.NamespacedName, obj, r.Now().Sub(start))
	if obj.Status.Inventory != nil {
		r.Metrics.inventory(helmv2.HelmReleaseKind, req.NamespacedName, len(obj.Status.Inventory.Entries))
	}
	return result, err
}

// releaseRun is one reconciliation.
type releaseRun struct {
	obj *helmv2.HelmRelease
	// before is the object as it was last written.
	before *helmv2.HelmRelease
}

// read returns the object as the cache has it, or as the API server has it
// where the cache lags behind our own last write: the history must be the one
// that we wrote.
func (r *HelmReleases) read(ctx context.Context, name types.NamespacedName) (*helmv2.HelmRelease, error) {
	obj := &helmv2.HelmRelease{}
	if err := r.Client.Get(ctx, name, obj); err != nil {
		return nil, err
	}
	if r.lastWrite(name).isPast(obj) {
		return obj, r.Targets.Local.Get(ctx, name, obj)
	}
	return obj, nil
}

// write writes what changed of the status since the last write.
func (r *HelmReleases) write(ctx context.Context, run *releaseRun) error {
	if equality.Semantic.DeepEqual(run.before.Status, run.obj.Status) {
		return nil
	}
	base := run.obj.DeepCopy()
	base.Status = run.before.Status
	patched := run.obj.DeepCopy()
	if err := patchStatus(ctx, r.Client, base, patched, releaseManager); err != nil {
		return err
	}
	r.wrote(run, patched)
	return nil
}

// patchMetadata writes finalizers and annotations. The status stays as it is in
// memory.
func (r *HelmReleases) patchMetadata(ctx context.Context, run *releaseRun) error {
	patched, base := run.obj.DeepCopy(), run.before.DeepCopy()
	base.ResourceVersion, base.Status = run.obj.ResourceVersion, patched.Status
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, patched, patch, client.FieldOwner(releaseManager)); err != nil {
		return err
	}
	generation, status := run.obj.Generation, run.before.Status
	run.obj.ObjectMeta = patched.ObjectMeta
	run.obj.Generation = generation
	r.wrote(run, patched)
	run.before.Status = status
	return nil
}

// wrote takes in the answer to a write: nothing but the resource version. A
// reconcile goes on with the spec that it began with, whatever has become of it.
func (r *HelmReleases) wrote(run *releaseRun, answer *helmv2.HelmRelease) {
	run.obj.ResourceVersion = answer.ResourceVersion
	run.before = run.obj.DeepCopy()
	r.lastWrite(client.ObjectKeyFromObject(run.obj)).wrote(run.obj)
}

func (r *HelmReleases) lastWrite(name types.NamespacedName) *lastWrite {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.written[name]
	if w == nil {
		w = &lastWrite{}
		r.written[name] = w
	}
	return w
}

func (r *HelmReleases) forget(name types.NamespacedName) {
	r.mu.Lock()
	delete(r.written, name)
	r.mu.Unlock()
	r.FirstSync.Note(helmv2.HelmReleaseKind, name, nil)
	r.Metrics.forget(helmv2.HelmReleaseKind, name)
}

// refusal ends a reconciliation before the release was looked at.
type refusal struct {
	reason string
	err    error
	// event is recorded with the reason.
	event bool
	// kind of the event; a warning, if it is empty.
	kind string
	// stalls: only a change of the object can end it.
	stalls bool
	// wait is when to look again, 0 for as soon as the backoff allows.
	wait time.Duration
	// passing: it is known to end by itself, and the status stays as it is.
	passing bool
}

// refuse records why nothing was done.
func (r *HelmReleases) refuse(ctx context.Context, run *releaseRun, f *refusal) (ctrl.Result, error) {
	obj := run.obj
	if f.passing {
		return ctrl.Result{RequeueAfter: f.wait}, nil
	}
	was := apimeta.FindStatusCondition(run.before.Status.Conditions, meta.ReadyCondition)
	message := f.err.Error()
	if f.stalls {
		stalled(obj, f.reason, f.err)
		obj.Status.ObservedGeneration = obj.Generation
	} else {
		failing(obj, f.reason, f.err)
	}
	if f.event && (was == nil || was.Reason != f.reason || was.Message != message) {
		kind := f.kind
		if kind == "" {
			kind = corev1.EventTypeWarning
		}
		r.Events.Event(obj, kind, f.reason, message)
	}
	switch {
	case f.stalls:
		return ctrl.Result{}, nil
	case f.wait > 0:
		log.FromContext(ctx).Info(message)
		return ctrl.Result{RequeueAfter: f.wait}, nil
	}
	return ctrl.Result{}, fmt.Errorf("cannot release HelmRelease %s/%s: %w", obj.Namespace, obj.Name, f.err)
}

func (r *HelmReleases) reconcile(ctx context.Context, run *releaseRun) (ctrl.Result, error) {
	obj := run.obj
	req, refused := r.gather(ctx, run)
	if refused != nil {
		return r.refuse(ctx, run, refused)
	}
	req.Save = func(ctx context.Context) error { return r.write(ctx, run) }
	outcome, err := r.Releases.Sync(ctx, *req)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.FirstSync.Note(helmv2.HelmReleaseKind, client.ObjectKeyFromObject(obj), outcome.Creation)
	if !outcome.Again && !outcome.Creation.Blocked() {
		obj.Status.ObservedGeneration = obj.Generation
	}
	return soon(obj, outcome), nil
}

// soon is when a release is looked at again.
func soon(obj *helmv2.HelmRelease, o release.Outcome) ctrl.Result {
	switch {
	case o.Again:
		// Not at once: what fails, is remedied and fails again would never rest.
		//lint:ignore SA1019 nothing else asks for the pauses of the rate limiter
		return ctrl.Result{Requeue: true}
	case o.After > 0:
		return ctrl.Result{RequeueAfter: jittered(o.After)}
	case o.Stalled:
		return ctrl.Result{}
	case o.Creation.Blocked():
		return ctrl.Result{RequeueAfter: jittered(min(obj.GetRequeueAfter(), heldPoll))}
	}
	return ctrl.Result{RequeueAfter: jittered(obj.GetRequeueAfter())}
}

// gather brings together what a release is made of: it is what has to be there
// before the release is looked at.
func (r *HelmReleases) gather(ctx context.Context, run *releaseRun) (*release.Request, *refusal) {
	obj := run.obj
	if obj.HasChartRef() == obj.HasChartTemplate() {
		return nil, &refusal{reason: "InvalidChartReference", err: errors.New("invalid Chart reference: set one of spec.chart and spec.chartRef"), stalls: true, event: true}
	}
	if err := r.Rules.Dependencies.ReleaseExpressions(obj); err != nil {
		return nil, &refusal{reason: meta.InvalidCELExpressionReason, err: fmt.Errorf("%s: %w", terminal, err), stalls: true, event: true}
	}
	if refused := r.template(ctx, run); refused != nil {
		return nil, refused
	}
	if err := r.dependencies(ctx, obj); err != nil {
		return nil, &refusal{reason: meta.DependencyNotReadyReason, err: err, event: true, kind: corev1.EventTypeNormal, wait: jittered(r.Rules.RequeueDependency)}
	}
	snapshot, from, refused := r.find(ctx, obj)
	if refused != nil {
		return nil, refused
	}
	secrets := &secretReader{Client: r.Client, reader: r.Targets.Local}
	values, err := chartutil.ChartValuesFromReferences(ctx, log.FromContext(ctx), secrets, obj.Namespace, obj.GetValues(), obj.Spec.ValuesFrom...)
	if err != nil {
		return nil, &refusal{reason: reasonValuesError, err: valuesError(err), event: true}
	}
	about, err := chart.Describe(ctx, snapshot)
	if err != nil {
		return nil, &refusal{reason: meta.ArtifactFailedReason, err: inFluxWords("Could not load chart: " + err.Error()), event: true}
	}
	var ociDigest string
	if hasDigest(from) {
		tracked, digest, err := release.TrackedVersion(about.Version, snapshot.Revision)
		if err != nil {
			return nil, &refusal{reason: reasonChartMutateError, err: err}
		}
		if ociDigest = digest; !r.Rules.NoDigestTracking {
			about.Version = tracked
		}
	}
	cluster, err := r.Targets.Connect(ctx, obj.Namespace, TargetOfRelease(obj, r.Targets.ServiceAccount))
	if err == nil && obj.Spec.KubeConfig != nil {
		err = cluster.Answers(ctx, r.Now())
	}
	if err != nil {
		return nil, &refusal{reason: reasonRESTClientError, err: err}
	}
	firstSync := firstsync.Keeper(r.FirstSync)
	if obj.Spec.KubeConfig != nil {
		firstSync = firstsync.Other{Reader: cluster}
	}
	return &release.Request{
		Object: obj, OCIDigest: ociDigest, Values: values, Cluster: cluster, Redact: secrets.redact, Log: log.FromContext(ctx), FirstSync: firstSync,
		Chart: release.Chart{
			Name: about.Name, Version: about.Version, AppVersion: about.AppVersion,
			Load: func(ctx context.Context) (*helmchart.Chart, error) { return r.load(ctx, obj, snapshot) },
		},
	}, nil
}

// valuesError is an error about values that does not quote a Secret: what is
// wrong with its content is told by the parsers with a part of it.
func valuesError(err error) error {
	var ref *chartutil.ErrValuesReference
	if !errors.As(err, &ref) || ref.Kind != "Secret" || ref.Err == nil {
		return err
	}
	switch ref.Reason {
	case chartutil.ErrValuesDataRead:
		return fmt.Errorf("%w: it is not a map in YAML", withoutCause(ref))
	case chartutil.ErrValueMerge:
		return fmt.Errorf("%w: it is not in the syntax of helm's --set; set literal: true to take it as it is", withoutCause(ref))
	}
	return err
}

func withoutCause(ref *chartutil.ErrValuesReference) error {
	plain := *ref
	plain.Err = nil
	return &plain
}

// load returns the chart for the action that is under way. A schema that it does
// not ask for is left out: that it is of no use is no failure then.
func (r *HelmReleases) load(ctx context.Context, obj *helmv2.HelmRelease, snapshot *source.Snapshot) (*helmchart.Chart, error) {
	options := []chart.Option{chart.WithFileMaxBytes(r.ChartFileBytes)}
	unchecked := obj.GetUpgrade().DisableSchemaValidation
	if obj.Status.LastAttemptedReleaseAction == helmv2.ReleaseActionInstall {
		unchecked = obj.GetInstall().DisableSchemaValidation
	}
	if unchecked {
		options = append(options, chart.WithoutSchemas())
	}
	return chart.Load(ctx, snapshot, options...)
}

// dependencies is an error that names the first dependency that is not ready.
func (r *HelmReleases) dependencies(ctx context.Context, obj *helmv2.HelmRelease) error {
	for _, d := range obj.Spec.DependsOn {
		name := releaseDependency(obj, d)
		dep := &helmv2.HelmRelease{}
		if err := r.Client.Get(ctx, name, dep); err != nil {
			return fmt.Errorf("unable to get '%s' dependency: %w", name, err)
		}
		if err := r.Rules.Dependencies.CheckRelease(ctx, obj, d, dep); err != nil {
			return err
		}
	}
	return nil
}

// chartKey is the source of a release's chart.
func chartKey(obj *helmv2.HelmRelease) source.Key {
	if ref := obj.Spec.ChartRef; ref != nil {
		namespace := ref.Namespace
		if namespace == "" {
			namespace = obj.Namespace
		}
		return source.Key{Kind: ref.Kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: ref.Name}}
	}
	if obj.Spec.Chart == nil {
		return source.Key{}
	}
	return source.Key{Kind: sourcev1.HelmChartKind, NamespacedName: templateName(obj)}
}

// find returns the snapshot of the chart, and the source that it is of.
func (r *HelmReleases) find(ctx context.Context, obj *helmv2.HelmRelease) (*source.Snapshot, sourcev1.Source, *refusal) {
	key := chartKey(obj)
	if refused := r.access(obj, key); refused != nil {
		return nil, nil, refused
	}
	wait := jittered(r.Rules.RequeueDependency)
	from, err := r.Sources.object(ctx, key)
	if err != nil {
		return nil, nil, &refusal{reason: meta.ArtifactFailedReason, err: fmt.Errorf("could not get Source object: %w", err)}
	}
	if err := sourceReady(key, from); err != nil {
		return nil, nil, &refusal{reason: reasonSourceNotReady, err: err, wait: wait}
	}
	snapshot, err := r.Sources.snapshot(ctx, key, from)
	switch {
	case err == nil:
		return snapshot, from, nil
	case errors.Is(err, errFetchedAgain):
		// Nothing is known to be wrong: what was ready stays so until then.
		return nil, nil, &refusal{passing: true, wait: wait}
	case errors.Is(err, source.ErrArtifactNotFound):
		return nil, nil, &refusal{reason: meta.ArtifactFailedReason, err: inFluxWords(fmt.Sprintf("Source not ready: artifact not found. Retrying in %s", r.Rules.RequeueDependency)), wait: wait}
	}
	return nil, nil, &refusal{reason: meta.ArtifactFailedReason, err: inFluxWords("Could not load chart: " + err.Error()), event: true}
}

// access refuses charts of other namespaces, if they are not allowed.
func (r *HelmReleases) access(obj *helmv2.HelmRelease, key source.Key) *refusal {
	if r.Rules.NoCrossNamespaceRefs && key.Namespace != obj.Namespace {
		return &refusal{
			reason: reasonAccessDenied, stalls: true, event: true,
			err: fmt.Errorf("cross-namespace references are not allowed: cannot access %s %s", key.Kind, key.NamespacedName),
		}
	}
	if key.Kind == sourcev1.ExternalArtifactKind && !r.Rules.ExternalArtifact {
		return &refusal{
			reason: reasonAccessDenied, stalls: true, event: true,
			err: fmt.Errorf("can't access '%s/%s/%s', ExternalArtifact feature gate is disabled", key.Kind, key.Namespace, key.Name),
		}
	}
	return nil
}

// sourceReady is an error that says in Flux's words what a chart lacks.
func sourceReady(key source.Key, from sourcev1.Source) error {
	notReady := func(why string) error {
		return fmt.Errorf("%s '%s' is not ready: %s", key.Kind, key.NamespacedName, why)
	}
	if o, ok := from.(conditioned); ok && key.Kind != sourcev1.ExternalArtifactKind {
		observed := int64(-1)
		switch o := from.(type) {
		case *sourcev1.HelmChart:
			observed = o.Status.ObservedGeneration
		case *sourcev1.OCIRepository:
			observed = o.Status.ObservedGeneration
		}
		ready := apimeta.FindStatusCondition(o.GetConditions(), meta.ReadyCondition)
		stall := apimeta.FindStatusCondition(o.GetConditions(), meta.StalledCondition)
		switch {
		case observed != o.GetGeneration() && ready != nil && ready.Status == metav1.ConditionFalse:
			return notReady(ready.Message)
		case observed != o.GetGeneration():
			return notReady("latest generation of object has not been reconciled")
		case stall != nil && stall.Status == metav1.ConditionTrue:
			return notReady(stall.Message)
		}
	}
	if from.GetArtifact() == nil {
		return notReady("does not have an artifact")
	}
	return nil
}

// hasDigest reports whether the revision of a source is or has a digest, which
// then becomes part of the chart's version: what a tag leads to may change.
func hasDigest(from sourcev1.Source) bool {
	switch from.(type) {
	case *sourcev1.OCIRepository:
		return true
	case *sourcev1.ExternalArtifact:
		return strings.Contains(from.GetArtifact().Revision, ":")
	}
	return false
}

// finalize uninstalls the release of a HelmRelease that is deleted, and lets it
// go.
func (r *HelmReleases) finalize(ctx context.Context, run *releaseRun) (ctrl.Result, error) {
	obj := run.obj
	if !controllerutil.ContainsFinalizer(obj, helmv2.HelmReleaseFinalizer) {
		return ctrl.Result{}, nil
	}
	if !obj.Spec.Suspend {
		if gone, result, err := r.uninstall(ctx, run); !gone {
			return result, err
		}
		if err := r.deleteTemplate(ctx, obj); err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := r.write(ctx, run); err != nil {
		return ctrl.Result{}, err
	}
	r.Releases.Forget(obj.UID)
	controllerutil.RemoveFinalizer(obj, helmv2.HelmReleaseFinalizer)
	return ctrl.Result{}, client.IgnoreNotFound(r.patchMetadata(ctx, run))
}

// uninstall removes the release of a HelmRelease that is deleted. gone: the
// HelmRelease may go.
func (r *HelmReleases) uninstall(ctx context.Context, run *releaseRun) (gone bool, result ctrl.Result, err error) {
	obj := run.obj
	if obj.Status.StorageNamespace == "" {
		return true, ctrl.Result{}, nil // never installed
	}
	stay := func(err error) (bool, ctrl.Result, error) {
		result, err := r.refuse(ctx, run, &refusal{reason: helmv2.UninstallFailedReason, err: err, event: true})
		return false, result, err
	}
	leave := func(why string) (bool, ctrl.Result, error) {
		r.Events.Eventf(obj, corev1.EventTypeWarning, helmv2.UninstallFailedReason, "skipping Helm release uninstallation: %s; what it installed is left behind", why)
		return true, ctrl.Result{}, nil
	}
	switch removed, err := kindRemoved(ctx, r.Targets.Local, "helmreleases."+helmv2.GroupVersion.Group); {
	case err != nil:
		return stay(err)
	case removed:
		return leave("the kind HelmRelease itself is being removed")
	}
	switch why, err := r.clusterGone(ctx, obj); {
	case err != nil:
		return stay(err)
	case why != "":
		return leave(why)
	}
	target := TargetOfRelease(obj, r.Targets.ServiceAccount)
	account := target.User[strings.LastIndex(target.User, ":")+1:]
	switch missing, err := r.Targets.AccountGone(ctx, obj.Namespace, account, target); {
	case err != nil:
		return stay(fmt.Errorf("failed to confirm ServiceAccount '%s' can be used to uninstall release: %w", account, err))
	case missing:
		return leave(fmt.Sprintf("the ServiceAccount %s does not exist", target.User))
	}
	cluster, err := r.Targets.Connect(ctx, obj.Namespace, target)
	if err == nil && !target.Local() {
		err = cluster.Answers(ctx, r.Now())
	}
	if err != nil {
		return stay(fmt.Errorf("failed to build REST client getter to uninstall release: %w", err))
	}
	outcome, err := r.Releases.Uninstall(ctx, release.Request{
		Object: obj, Cluster: cluster, Save: func(ctx context.Context) error { return r.write(ctx, run) }, Log: log.FromContext(ctx),
	})
	switch {
	case err != nil:
		return false, ctrl.Result{}, err
	case outcome != (release.Outcome{}):
		return false, soon(obj, outcome), nil
	}
	return true, ctrl.Result{}, nil
}

// Names of Cluster API that tell which Cluster a kubeconfig is of.
const (
	clusterGroup     = "cluster.x-k8s.io"
	clusterNameLabel = clusterGroup + "/cluster-name"
	kubeconfigSuffix = "-kubeconfig"
)

// clusterGone tells why nothing can be uninstalled in another cluster: the way
// to it is gone, or Cluster API is taking it down, and with it all that is
// installed there.
func (r *HelmReleases) clusterGone(ctx context.Context, obj *helmv2.HelmRelease) (string, error) {
	ref := TargetOfRelease(obj, "")
	if ref.Local() {
		return "", nil
	}
	name := types.NamespacedName{Namespace: obj.Namespace, Name: ref.Name}
	way := &metav1.PartialObjectMetadata{}
	way.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(ref.Kind))
	switch err := r.Targets.Local.Get(ctx, name, way); {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the %s %s with the way to its cluster does not exist", ref.Kind, name), nil
	case err != nil:
		return "", fmt.Errorf("cannot read %s %s: %w", ref.Kind, name, err)
	}
	cluster, ok := way.Labels[clusterNameLabel]
	if !ok || ref.Kind != "Secret" || way.Name != cluster+kubeconfigSuffix {
		return "", nil
	}
	name.Name = cluster
	o := &metav1.PartialObjectMetadata{}
	mapping, err := r.Targets.Local.RESTMapper().RESTMapping(schema.GroupKind{Group: clusterGroup, Kind: "Cluster"})
	if apimeta.IsNoMatchError(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot look up kind Cluster: %w", err)
	}
	o.SetGroupVersionKind(mapping.GroupVersionKind)
	switch err := r.Targets.Local.Get(ctx, name, o); {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the Cluster %s does not exist", name), nil
	case err != nil:
		return "", fmt.Errorf("cannot read Cluster %s: %w", name, err)
	case !o.DeletionTimestamp.IsZero():
		return fmt.Sprintf("the Cluster %s is being deleted", name), nil
	}
	return "", nil
}
