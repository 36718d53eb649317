package fetch

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/chart"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
	fluxversion "github.com/cascade-gitops/cascade/syncer/version"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// Reasons of a HelmChart without a chart, besides those of package chart.
const (
	reasonSourceUnavailable     = "SourceUnavailable"
	reasonUnsupportedSourceKind = "UnsupportedSourceKind"
	reasonNoSourceArtifact      = "NoSourceArtifact"
)

// sourcePoll is when a chart whose source has nothing yet is looked at again;
// its source wakes it before.
const sourcePoll = 30 * time.Second

// dependenciesTimeout bounds a chart with all its dependencies.
const dependenciesTimeout = 10 * time.Minute

// HelmCharts reconciles HelmChart objects into snapshots of packaged charts.
type HelmCharts struct {
	*Sources
	Charts *chart.Charts
	Images *source.Images
	// ChartBytes bounds a chart from a registry.
	ChartBytes int64
	// From finds the sources that charts are in.
	From *find.Finder

	mu     sync.Mutex
	builds map[source.Key]*chart.Build
}

// SetupWithManager registers the reconciler and its index.
func (r *HelmCharts) SetupWithManager(mgr ctrl.Manager, concurrent int) error {
	err := wake.AddIndexes(context.Background(), mgr, &sourcev1.HelmChart{}, map[string]func(*sourcev1.HelmChart) []string{
		wake.SourceIndex: func(c *sourcev1.HelmChart) []string {
			return []string{c.Spec.SourceRef.Kind + "/" + c.Namespace + "/" + c.Spec.SourceRef.Name}
		},
	})
	if err != nil {
		return err
	}
	b, complete := r.setup(mgr, sourcev1.HelmChartKind, &sourcev1.HelmChart{}, r, concurrent)
	b.Watches(&sourcev1.HelmRepository{}, r.index().UsersOf(sourcev1.HelmRepositoryKind), builder.WithPredicates(wake.NewArtifact())).
		WatchesRawSource(r.index().OnSnapshot(r.Snapshots))
	sources, err := r.From.Watch(mgr, sourcev1.GitRepositoryKind, sourcev1.BucketKind)
	if err != nil {
		return err
	}
	for _, o := range sources {
		b.Watches(o, r.index().UsersOf(find.KindOf(o)), builder.WithPredicates(r.From.News()))
	}
	return complete()
}

// index finds the charts in a source.
func (r *HelmCharts) index() wake.Index {
	return wake.Index{Client: r.Client, List: func() client.ObjectList { return &sourcev1.HelmChartList{} }}
}

// Reconcile makes one chart.
func (r *HelmCharts) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return reconcileSource(ctx, r.Sources, r, &sourcev1.HelmChart{}, req.NamespacedName)
}

func (r *HelmCharts) describe(obj *sourcev1.HelmChart) sourceFields {
	return sourceFields{
		kind: sourcev1.HelmChartKind, suspend: obj.Spec.Suspend,
		artifact: &obj.Status.Artifact, observed: &obj.Status.ObservedGeneration, handled: &obj.Status.LastHandledReconcileAt, url: &obj.Status.URL,
	}
}

// timeout is that of the repository that a chart comes from, as with Flux. One from another
// source has dependencies, of which each has the timeout of its own repository.
func (r *HelmCharts) timeout(ctx context.Context, obj *sourcev1.HelmChart) time.Duration {
	if obj.Spec.SourceRef.Kind != sourcev1.HelmRepositoryKind {
		return dependenciesTimeout
	}
	repo := &sourcev1.HelmRepository{}
	if err := r.Client.Get(ctx, types.NamespacedName{Namespace: obj.Namespace, Name: obj.Spec.SourceRef.Name}, repo); err != nil {
		return sourceTimeout // the fetch tells of it
	}
	return timeoutOf(repo.Spec.Timeout)
}

// pin names the version that was built. With values files, the generation that it was built
// by is in it, in the place of what the repository has there.
func (r *HelmCharts) pin(obj *sourcev1.HelmChart, artifact *meta.Artifact) {
	obj.Spec.Version = artifact.Revision
	version, metadata, _ := strings.Cut(artifact.Revision, "+")
	generation, err := strconv.ParseInt(metadata[strings.LastIndex(metadata, ".")+1:], 10, 64)
	if len(obj.Spec.ValuesFiles) > 0 && err == nil {
		obj.Spec.Version, obj.Generation = "="+version, generation
	}
	// Suspending it is a change that makes no other chart.
	obj.Status.ObservedGeneration = obj.Generation
}

// datable is not asked: nobody retains a chart.
func (r *HelmCharts) datable(*sourcev1.HelmChart) error { return nil }

func (r *HelmCharts) forget(key source.Key) {
	r.Charts.Forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.builds, key)
}

func (r *HelmCharts) fetch(ctx context.Context, key source.Key, obj *sourcev1.HelmChart) (*fetched, *failure) {
	if obj.Spec.Verify == nil {
		status.RemoveCondition(obj, sourcev1.SourceVerifiedCondition)
	}
	got := &fetched{}
	build, failed := r.build(ctx, key, obj, got)
	if failed != nil {
		return nil, failed
	}
	status.RemoveCondition(obj, sourcev1.FetchFailedCondition, sourcev1.BuildFailedCondition)
	if got.signed {
		r.verified(ctx, obj, "verified signature of version "+build.Version)
	} else {
		status.RemoveCondition(obj, sourcev1.SourceVerifiedCondition)
	}
	r.mu.Lock()
	if r.builds == nil {
		r.builds = map[source.Key]*chart.Build{}
	}
	r.builds[key] = build
	r.mu.Unlock()
	got.snapshot, got.reason, got.message, got.eventReason, got.event = build.Snapshot, build.Reason(), build.Summary(), build.Reason(), build.Summary()
	got.observe = func() {
		obj.Status.ObservedChartName = build.Name
		obj.Status.ObservedValuesFiles = nil
		if obj.Spec.IgnoreMissingValuesFiles {
			obj.Status.ObservedValuesFiles = build.ValuesFiles
		}
	}
	return got, nil
}

// build makes the chart from the source that the object names. got is what comes of it, as far as the build tells.
func (r *HelmCharts) build(ctx context.Context, key source.Key, obj *sourcev1.HelmChart, got *fetched) (*chart.Build, *failure) {
	ref := obj.Spec.SourceRef
	from := source.Key{Kind: ref.Kind, NamespacedName: types.NamespacedName{Namespace: obj.Namespace, Name: ref.Name}}
	spec := r.spec(key, obj)
	var build *chart.Build
	var err error
	switch ref.Kind {
	case sourcev1.HelmRepositoryKind:
		repo := &sourcev1.HelmRepository{}
		if err := r.Client.Get(ctx, from.NamespacedName, repo); err != nil {
			return nil, unavailable(err)
		}
		http := repo.Spec.Type != sourcev1.HelmRepositoryTypeOCI
		if http && repo.Status.Artifact == nil {
			return nil, noArtifact(from)
		}
		if build, err = r.fromRepository(ctx, key, obj, repo, spec, got); http && got.after == 0 {
			obj.Status.ObservedSourceArtifactRevision = repo.Status.Artifact.Revision
		}
	case sourcev1.GitRepositoryKind, sourcev1.BucketKind:
		o, ferr := r.From.Object(ctx, from)
		if ferr != nil {
			return nil, unavailable(ferr)
		}
		snapshot, ferr := r.From.Snapshot(ctx, from, o)
		switch {
		case errors.Is(ferr, find.ErrFetchedAgain) && find.Failing(o) != nil:
			return nil, unavailable(errors.New(find.Failing(o).Message))
		case errors.Is(ferr, find.ErrFetchedAgain):
			return nil, &failure{wait: r.Jitter(sourcePoll), err: ferr}
		case errors.Is(ferr, find.ErrNoArtifact), errors.Is(ferr, source.ErrArtifactNotFound):
			return nil, noArtifact(from)
		case ferr != nil:
			return nil, unavailable(ferr)
		}
		obj.Status.ObservedSourceArtifactRevision = snapshot.Revision
		build, err = r.Charts.FromSnapshot(ctx, snapshot, spec, obj.Spec.ReconcileStrategy == sourcev1.ReconcileStrategyRevision,
			func(ctx context.Context, url string) (chart.Repository, error) {
				return r.dependencyRepository(ctx, key, url)
			})
	default:
		return nil, &failure{
			condition: sourcev1.FetchFailedCondition, stalls: true,
			err: &source.Error{Reason: reasonUnsupportedSourceKind, Err: fmt.Errorf("failed to get source: unsupported source kind '%s', must be one of: %v", ref.Kind,
				[]string{sourcev1.HelmRepositoryKind, sourcev1.GitRepositoryKind, sourcev1.BucketKind})},
		}
	}
	if err == nil {
		return build, nil
	}
	reason := source.ReasonOf(err)
	f := &failure{condition: sourcev1.FetchFailedCondition, err: err, stalls: chart.Final(reason) || reason == source.ReasonURLInvalid}
	if reason == source.ReasonURLInvalid {
		// It is that of the HelmRepository, which wakes nobody if it is one of a registry.
		f.wait = r.Jitter(obj.GetRequeueAfter())
	}
	if !chart.OfBuild(reason) {
		status.RemoveCondition(obj, sourcev1.BuildFailedCondition)
		return nil, f
	}
	status.RemoveCondition(obj, sourcev1.FetchFailedCondition)
	f.condition = sourcev1.BuildFailedCondition
	if reason == chart.ReasonVerification {
		f.ready = sourcev1.VerificationError
		status.SetCondition(obj, sourcev1.SourceVerifiedCondition, metav1.ConditionFalse, f.ready, "%s", err)
	}
	return nil, f
}

func unavailable(err error) *failure {
	return &failure{
		condition: sourcev1.FetchFailedCondition,
		err:       &source.Error{Reason: reasonSourceUnavailable, Err: fmt.Errorf("failed to get source: %w", err)},
	}
}

// noArtifact: the source will have one soon, and wakes the chart then.
func noArtifact(from source.Key) *failure {
	return &failure{
		condition: sourcev1.FetchFailedCondition, wait: sourcePoll, expected: true,
		err: &source.Error{Reason: reasonNoSourceArtifact, Err: fmt.Errorf("no artifact available for %s source '%s'", from.Kind, from.Name)},
	}
}

// spec of the chart. What was built last is remembered, or else told by the
// status.
func (r *HelmCharts) spec(key source.Key, obj *sourcev1.HelmChart) chart.Spec {
	r.mu.Lock()
	last := r.builds[key]
	r.mu.Unlock()
	if last == nil && obj.Status.Artifact != nil {
		last = &chart.Build{Name: obj.Status.ObservedChartName, Version: obj.Status.Artifact.Revision, Inputs: obj.Status.Artifact.Metadata[v1alpha1.InputsAnnotation]}
	}
	return chart.Spec{
		User: key, Chart: obj.Spec.Chart, Version: obj.Spec.Version,
		ValuesFiles: obj.Spec.ValuesFiles, IgnoreMissingValues: obj.Spec.IgnoreMissingValuesFiles,
		Generation: obj.Generation, Changed: obj.Generation != obj.Status.ObservedGeneration, Last: last,
	}
}

func (r *HelmCharts) fromRepository(ctx context.Context, key source.Key, obj *sourcev1.HelmChart, repo *sourcev1.HelmRepository, spec chart.Spec, got *fetched) (*chart.Build, error) {
	repository, origin, err := r.chartRepository(ctx, key, repo)
	if err != nil {
		return nil, err
	}
	var verify chart.Verify
	if v := obj.Spec.Verify; v != nil {
		verify = func(ctx context.Context, at, digest string) (err error) {
			origin := origin
			origin.URL = sourcev1.OCIRepositoryPrefix + at
			want := &sourcev1.OCIRepositoryVerification{
				Provider: v.Provider, SecretRef: v.SecretRef, MatchOIDCIdentity: v.MatchOIDCIdentity,
			}
			got.signed, err = r.checkSignature(ctx, r.Images, obj.Namespace, want, origin, source.Image{Revision: digest, Digest: digest})
			return err
		}
	}
	// Of a repository that another process reconciles, nobody else here asks for a newer index.
	if (repo.Spec.Suspend || !r.Shard.Has(repo)) && repo.Status.Artifact != nil {
		repository.Revision, repository.Held = repo.Status.Artifact.Revision, repo.Spec.Suspend
	}
	build, err := r.Charts.FromRepository(ctx, repository, spec, verify)
	silent := errors.Is(err, chart.ErrNoAnswer)
	if !silent && !errors.Is(err, chart.ErrOtherIndex) {
		return build, err
	}
	// The index that there was when the repository was suspended is nowhere any more, as after a restart. What is named
	// exactly is the same in another one; a range stays at what it led to.
	switch _, ranged := fluxversion.Parse(spec.Version); {
	case ranged == nil:
	case repo.Spec.Suspend && !spec.Changed && obj.Status.Artifact != nil:
		pinned := obj.DeepCopy()
		r.pin(pinned, obj.Status.Artifact)
		spec = r.spec(key, pinned)
	case silent:
		return nil, err // the index that is known may be an older one
	case repo.Spec.Suspend:
		return nil, &source.Error{Reason: reasonSourceUnavailable, Err: fmt.Errorf(
			"failed to get source: HelmRepository '%s' is suspended, and its server has another index by now; resume it to use that", repo.Name)}
	default:
		got.after = chart.AskAgain // where several machines answer, some have a new index later
	}
	repository.Revision = ""
	build, found := r.Charts.FromRepository(ctx, repository, spec, verify)
	if found != nil && silent {
		return nil, err // it may be in the index that the server was asked for
	}
	return build, found
}

// chartRepository is a repository, or the registry that stands for one and what
// it is read with.
func (r *HelmCharts) chartRepository(ctx context.Context, key source.Key, repo *sourcev1.HelmRepository) (chart.Repository, source.ImageOrigin, error) {
	repository, err := r.repository(ctx, repo)
	if err != nil || repo.Spec.Type != sourcev1.HelmRepositoryTypeOCI {
		return repository, source.ImageOrigin{}, err
	}
	origin, err := r.imageOrigin(ctx, key, registryAccess{
		url: repository.URL, provider: repo.Spec.Provider, secret: repo.Spec.SecretRef, certificates: repo.Spec.CertSecretRef, insecure: repo.Spec.Insecure,
	})
	repository.Registry = chart.NewRegistry(r.Images, origin, r.ChartBytes)
	return repository, origin, err
}

// dependencyRepository is the repository of a dependency, with the credential of
// the HelmRepository of the namespace that has the same URL.
func (r *HelmCharts) dependencyRepository(ctx context.Context, key source.Key, url string) (chart.Repository, error) {
	list := &sourcev1.HelmRepositoryList{}
	if err := r.Client.List(ctx, list, client.InNamespace(key.Namespace)); err != nil {
		return chart.Repository{}, fmt.Errorf("cannot list HelmRepositories: %w", err)
	}
	for i := range list.Items {
		if normal, err := chart.NormalizeURL(list.Items[i].Spec.URL); err == nil && normal == url {
			repository, _, err := r.chartRepository(ctx, key, &list.Items[i])
			return repository, err
		}
	}
	repository := chart.Repository{URL: url, Timeout: sourceTimeout}
	if strings.HasPrefix(url, sourcev1.OCIRepositoryPrefix) {
		repository.Registry = chart.NewRegistry(r.Images, source.ImageOrigin{}, r.ChartBytes)
	}
	return repository, nil
}
