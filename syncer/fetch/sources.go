package fetch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/park"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/trace"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// Sources is what the reconcilers of all kinds of sources share. Each of them
// brings its objects' content into Snapshots, and into Storage if consumers
// outside are served. What they do alike is here: finalizer, suspension,
// status, conditions, events and the next look.
type Sources struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Reader reads Secrets and ServiceAccounts from the API server.
	Reader    client.Reader
	Snapshots *source.Snapshots
	// Logins gets credentials from providers.
	Logins *source.Logins
	// Storage packs snapshots for consumers outside; nil if there are none.
	Storage *source.Storage
	// Kept has what was fetched before the process began; nil keeps nothing.
	Kept    *source.Kept
	Events  record.EventRecorder
	Metrics *metrics.Metrics
	// Traces may be nil.
	Traces *trace.Tracer
	// Stalls watches the reconciles; nil watches none.
	Stalls *stall.Watchdog
	Now    func() time.Time
	// Jitter spreads the intervals.
	Jitter wake.Jitter
	// Retries after errors of the API server.
	Retries wake.Retries
	// Shard has the sources that this process reconciles.
	Shard wake.Shard
	// Part is nil if this process follows no sources of others.
	Part *Part

	mu sync.Mutex
	// artifacts has the artifact of each snapshot that was handed over.
	artifacts map[source.Key]*meta.Artifact
	// followed are the sources that another process reconciled when they were looked at, with
	// why they could not be followed, if so.
	followed map[source.Key]error
	// dated is what is known of the older revisions of sources that somebody retains.
	dated map[source.Key]dated
}

// sourceObject is an object of any kind of source that is fetched.
type sourceObject interface {
	status.Object
	sourcev1.Source
}

// sourceKind is what the reconciler of one kind does in its own way.
type sourceKind[T sourceObject] interface {
	// describe tells where an object of the kind has what all of them have.
	describe(obj T) sourceFields
	// timeout bounds a fetch of an object.
	timeout(ctx context.Context, obj T) time.Duration
	// forget drops what is kept for an object that is gone.
	forget(key source.Key)
	// fetch gets the content. It sets the conditions of the steps that it
	// passes.
	fetch(ctx context.Context, key source.Key, obj T) (*fetched, *failure)
	// pin makes an object refer to exactly what an artifact was made of, as far as the
	// kind can say that.
	pin(obj T, artifact *meta.Artifact)
	// datable is an error if a revision of an object does not identify all of its content,
	// so that what it had at an older one cannot be fetched.
	datable(obj T) error
}

// sourceFields point into an object.
type sourceFields struct {
	kind     string
	suspend  bool
	artifact **meta.Artifact
	observed *int64
	handled  *string
	// url is nil for kinds whose status has none.
	url *string
	// asMade has the spec say how the artifact was made, as far as the status tells; nil
	// for kinds whose status does not.
	asMade func()
	// included are the artifacts that are a part of the one of the object.
	included []*meta.Artifact
}

// sourceTimeout bounds a fetch of an object that does not say.
const sourceTimeout = 60 * time.Second

func timeoutOf(spec *metav1.Duration) time.Duration {
	if spec == nil {
		return sourceTimeout
	}
	return spec.Duration
}

// fetched is what came of a fetch.
type fetched struct {
	// snapshot is nil for an index, which is no tree of files.
	snapshot *source.Snapshot
	// file is stored instead of a snapshot.
	file *indexFile
	// reason and message are of the conditions that say what is stored.
	reason, message string
	// event tells of something new, eventReason is what it is for.
	eventReason, event string
	// included are the artifacts of other sources in it, and includes what these have.
	included []*meta.Artifact
	includes []source.Include
	// same, if there is one, answers a request that found nothing new.
	sameReason, same string
	// observe records in the status what the content was made of.
	observe func()
	// after is when to look again, if that is sooner than at the interval.
	after time.Duration
	// signed: a chart was found to be signed. It is not if the policy asks for nothing.
	signed bool
}

// indexFile is the artifact of a source that is no tree of files.
type indexFile struct {
	name, revision, digest string
	// open returns the content; it is asked for if somebody wants it stored.
	open func() (io.Reader, error)
}

// failure is an error, the condition that shows it, and how it ends. With find.ErrFetchedAgain
// it is none: what it waits for wakes it, and the status stays as it is until then.
type failure struct {
	condition string
	err       error
	// stalls: only a change of the object can end it, or of one that wait is for.
	stalls bool
	// wait is when to look again, 0 for as soon as the backoff allows, or never if it stalls.
	wait time.Duration
	// ready is the reason of the Ready condition, where it is not that of err.
	ready string
	// expected: it passes by itself, and nobody is to be told.
	expected bool
}

// A source whose server is slow, or does not answer, is fetched beside the others, at most
// so many of each kind, and those of one namespace that are known for it not all of them.
const (
	patience        = time.Second
	mostAside       = 64
	mostOfNamespace = 48
	// mostWaiting bounds those that wait for others that are slow.
	mostWaiting = 1000
)

// setup registers the reconciler r of one kind. It returns the builder for what else wakes
// its objects, and what completes it.
func (s *Sources) setup(mgr ctrl.Manager, kind string, obj client.Object, r reconcile.Reconciler, concurrent int) (*builder.Builder, func() error) {
	// No deadline for all kinds alike: spec.timeout says how long a fetch may take.
	lot := s.Stalls.Lot(kind, func() client.Object { return obj.DeepCopyObject().(client.Object) }, r, park.Options{
		Workers: concurrent, Parked: mostWaiting, Patience: patience, Aside: mostAside, Share: mostOfNamespace, Backoff: s.Retries.RateLimiter(),
	})
	passes := s.Shard.Changed()
	if s.Part.has(kind) {
		passes = predicate.Or(wake.Changed(), s.Shard.Moved(), predicate.And[client.Object](wake.NewArtifact(), s.others()))
	}
	b := ctrl.NewControllerManagedBy(mgr).
		For(obj, builder.WithPredicates(passes)).
		WatchesRawSource(ctrlsource.Func(lot.Open)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrent, RateLimiter: s.Retries.RateLimiter(), NeedLeaderElection: s.Part.elected(kind),
		})
	if hasOlder(kind) {
		b = b.WatchesRawSource(ctrlsource.Func(s.onWanted(kind)))
	}
	if s.Part.has(kind) {
		b = b.WatchesRawSource(ctrlsource.Func(s.onElected(kind))).
			Watches(&v1alpha1.Layer{}, handler.EnqueueRequestsFromMapFunc(sourcesOf(kind)), builder.WithPredicates(predicate.GenerationChangedPredicate{}))
	}
	return b, func() error { return errors.Join(mgr.Add(lot), b.Complete(lot)) }
}

// reconcileSource brings one object up to date. obj is an empty one to read
// into.
func reconcileSource[T sourceObject](ctx context.Context, s *Sources, kind sourceKind[T], obj T, name types.NamespacedName) (ctrl.Result, error) {
	key := source.Key{Kind: kind.describe(obj).kind, NamespacedName: name}
	if err := s.Client.Get(ctx, name, obj); err != nil {
		if apierrors.IsNotFound(err) {
			kind.forget(key)
			return ctrl.Result{}, s.forget(key)
		}
		return ctrl.Result{}, err
	}
	led := s.leads(key, obj)
	if !s.Shard.Has(obj) { // it left the shard, or never was of it
		kind.forget(key)
		if !s.Part.has(key.Kind) {
			return ctrl.Result{}, s.forget(key)
		}
		if err := s.remove(key); err != nil {
			return ctrl.Result{}, err
		}
	}
	if !obj.GetDeletionTimestamp().IsZero() {
		kind.forget(key)
		if err := s.forget(key); err != nil || !led {
			return ctrl.Result{}, err
		}
		return ctrl.Result{}, s.release(ctx, obj)
	}
	if !led {
		s.Metrics.Forget(key.Kind, name)
		result, err := soon(follow(ctx, s, kind, key, obj))
		return again(older(ctx, s, kind, key, obj, false), result), err
	}
	before := obj.DeepCopyObject().(T)
	if controllerutil.AddFinalizer(obj, sourcev1.SourceFinalizer) {
		if err := s.patchMetadata(ctx, before, obj); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	fields := kind.describe(obj)
	if fields.suspend {
		before = obj.DeepCopyObject().(T)
		observeSuspended(obj, fields)
		err := restore(ctx, s, kind, key, obj)
		if !equality.Semantic.DeepEqual(before, obj) {
			err = errors.Join(err, status.Patch(ctx, s.Client, before, obj, status.SourceManager))
		}
		result, err := soon(err)
		return again(older(ctx, s, kind, key, obj, true), result), err
	}
	start := s.Now()
	before = obj.DeepCopyObject().(T)
	result, err := fetchSource(ctx, s, kind, key, before, obj)
	if errors.Is(err, find.ErrFetchedAgain) {
		// Who asked is answered when what it waits for is there, and the status stays as it is.
		return again(older(ctx, s, kind, key, before, true), result), nil
	}
	if errors.Is(err, park.ErrShare) {
		return ctrl.Result{}, err // the status stays as well
	}
	*fields.handled = obj.GetAnnotations()[meta.ReconcileRequestAnnotation]
	if !equality.Semantic.DeepEqual(before, obj) {
		if perr := status.Patch(ctx, s.Client, before, obj, status.SourceManager); perr != nil {
			return ctrl.Result{}, errors.Join(err, perr)
		}
	}
	now := s.Now()
	s.Metrics.Reconciled(key.Kind, name, obj, now.Sub(start))
	if step, ok := trace.OfArtifact(key, before.GetArtifact(), obj.GetArtifact(), start, now); ok {
		s.Traces.Record(step)
	}
	return again(older(ctx, s, kind, key, obj, true), result), err
}

// observeSuspended answers who asked for a suspended source, and has one that was reconciled before say
// so of its present generation, as Flux does: who refers to it, or waits for it, must not take the
// suspension for work that is left.
func observeSuspended(obj sourceObject, fields sourceFields) {
	*fields.handled = obj.GetAnnotations()[meta.ReconcileRequestAnnotation]
	if len(obj.GetConditions()) > 0 {
		*fields.observed = obj.GetGeneration()
	}
}

// restore fetches what a suspended source had before this process began. Those who
// refer to it could not go on otherwise: neither a change of their spec nor drift would
// be applied. What the source has now, if that is something else, is not used. The status
// stays as it is, unless that fails.
func restore[T sourceObject](ctx context.Context, s *Sources, kind sourceKind[T], key source.Key, obj T) error {
	artifact := obj.GetArtifact()
	if artifact == nil {
		return nil
	}
	var err error
	// An index is not content that is applied, and the server has the newest one only: to fetch it would have
	// charts found in that.
	if key.Kind != sourcev1.HelmRepositoryKind && s.Snapshots.Get(key) == nil && !s.recall(ctx, key, obj) {
		err = fetchAgain(ctx, s, kind, key, obj, artifact)
	}
	if !errors.Is(err, find.ErrFetchedAgain) && !errors.Is(context.Cause(ctx), park.ErrShare) {
		s.tellRestored(ctx, obj, err)
	}
	return err
}

// tellRestored has a suspended source tell, by a condition, that what it had cannot be fetched
// again: who refers to it stands still until then. It stays ready. One that is not tells of
// a failure already.
func (s *Sources) tellRestored(ctx context.Context, obj sourceObject, failed error) {
	if !apimeta.IsStatusConditionTrue(obj.GetConditions(), meta.ReadyCondition) {
		return
	}
	if failed == nil {
		status.RemoveCondition(obj, sourcev1.FetchFailedCondition)
		return
	}
	if !apimeta.IsStatusConditionTrue(obj.GetConditions(), sourcev1.FetchFailedCondition) {
		s.event(ctx, obj, corev1.EventTypeWarning, ReasonRevisionNotFetched, "%s", failed)
	}
	status.SetCondition(obj, sourcev1.FetchFailedCondition, metav1.ConditionTrue, ReasonRevisionNotFetched, "%s", failed)
}

// soon has a source looked at again that waits for another one, which is no failure.
func soon(err error) (ctrl.Result, error) {
	if errors.Is(err, find.ErrFetchedAgain) {
		return ctrl.Result{RequeueAfter: includePoll}, nil
	}
	return ctrl.Result{}, err
}

// fetchAgain fetches exactly what the artifact of a source was made of, in the way in which
// it was made: who changes the spec of a suspended source changes nothing yet.
func fetchAgain[T sourceObject](ctx context.Context, s *Sources, kind sourceKind[T], key source.Key, obj T, artifact *meta.Artifact) error {
	made := asMade(kind, obj)
	got, err := fetchExactly(ctx, kind, key, made, artifact)
	if err == nil {
		err = sameIncluded(ctx, got, kind.describe(made).included)
	}
	if err != nil {
		return fmt.Errorf("cannot fetch revision %s of %s %s again: %w", artifact.Revision, key.Kind, key.NamespacedName, err)
	}
	s.handOver(key, artifact, got.snapshot)
	return nil
}

// asMade is a copy of an object whose spec says how its artifact was made, as far as its status
// tells.
func asMade[T sourceObject](kind sourceKind[T], obj T) T {
	made := obj.DeepCopyObject().(T)
	if fields := kind.describe(made); fields.asMade != nil {
		fields.asMade()
	}
	return made
}

// sameIncluded is an error unless what others have now is what was included: the revision of
// who includes them does not tell.
func sameIncluded(ctx context.Context, got *fetched, want []*meta.Artifact) error {
	if len(got.included) != len(want) {
		return fmt.Errorf("it includes %d artifacts now, and had %d; if it is suspended, resume it to use that", len(got.included), len(want))
	}
	for i, has := range got.included {
		same := has.Revision == want[i].Revision
		if same && has.Digest != want[i].Digest {
			var err error
			if same, err = hasContent(ctx, got.includes[i].Snapshot, want[i].Digest); err != nil {
				return err
			}
		}
		if !same {
			return fmt.Errorf("of what it includes %s (%s) was used, and there is %s (%s) by now; if it is suspended, resume it to use that",
				want[i].Revision, want[i].Digest, has.Revision, has.Digest)
		}
	}
	return nil
}

// hasContent reports whether a digest is of the content of a snapshot, packed or not: before,
// another process may have served artifacts, as source-controller does, or this one may not.
func hasContent(ctx context.Context, snapshot *source.Snapshot, digest string) (bool, error) {
	if snapshot.Digest == digest {
		return true, nil
	}
	h := sha256.New()
	if err := source.Pack(ctx, h, snapshot); err != nil {
		return false, fmt.Errorf("cannot compare what it includes: %w", err)
	}
	return fmt.Sprintf("sha256:%x", h.Sum(nil)) == digest, nil
}

// fetchExactly fetches what an artifact of a source was made of. It is not asked for an index.
func fetchExactly[T sourceObject](ctx context.Context, kind sourceKind[T], key source.Key, obj T, artifact *meta.Artifact) (*fetched, error) {
	pinned := obj.DeepCopyObject().(T)
	kind.pin(pinned, artifact)
	timeout := kind.timeout(ctx, obj)
	stall.Allow(ctx, timeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	got, failed := kind.fetch(ctx, key, pinned)
	switch {
	case failed != nil:
		return nil, failed.err
	case contentOf(got.snapshot.Revision) != contentOf(artifact.Revision):
		return nil, &source.Told{Err: fmt.Errorf("there is only %s; if it is suspended, resume it to use that", got.snapshot.Revision)}
	case key.Kind == sourcev1.HelmChartKind && pinned.GetGeneration() != obj.GetGeneration() && got.snapshot.Digest != artifact.Digest:
		// The version says by which generation the chart was built, and not what that had.
		return nil, fmt.Errorf("%s has other content by now; if it is suspended, resume it to use that", got.snapshot.Revision)
	}
	got.snapshot = got.snapshot.Named(artifact.Revision)
	return got, nil
}

// contentOf is a revision without the name by which it was found.
func contentOf(revision string) string { return revision[strings.LastIndex(revision, "@")+1:] }

// release takes the finalizer off.
func (s *Sources) release(ctx context.Context, obj sourceObject) error {
	before := obj.DeepCopyObject().(client.Object)
	if !controllerutil.RemoveFinalizer(obj, sourcev1.SourceFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(s.patchMetadata(ctx, before, obj))
}

// patchMetadata writes the finalizer; a list, so nobody else's change to it may
// be lost.
func (s *Sources) patchMetadata(ctx context.Context, before, after client.Object) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	return s.Client.Patch(ctx, after, patch, client.FieldOwner(status.SourceManager))
}

func (s *Sources) forget(key source.Key) error {
	s.Metrics.Forget(key.Kind, key.NamespacedName)
	s.mu.Lock()
	s.drop(key)
	delete(s.followed, key)
	delete(s.dated, key)
	s.mu.Unlock()
	return s.remove(key)
}

// drop takes back what was handed over of a source. It is called with the lock held.
func (s *Sources) drop(key source.Key) {
	s.Snapshots.Put(key, nil)
	delete(s.artifacts, key)
}

// remove deletes what is kept and packed of a source.
func (s *Sources) remove(key source.Key) error {
	var errs []error
	if s.Kept != nil {
		errs = append(errs, s.Kept.Remove(key))
	}
	if s.Storage != nil {
		errs = append(errs, s.Storage.Remove(key))
	}
	return errors.Join(errs...)
}

// handOver passes a snapshot, nil for an index, to those who refer to the source.
func (s *Sources) handOver(key source.Key, artifact *meta.Artifact, snapshot *source.Snapshot) {
	s.mu.Lock()
	if s.artifacts == nil {
		s.artifacts = map[source.Key]*meta.Artifact{}
	}
	s.artifacts[key] = artifact.DeepCopy()
	s.mu.Unlock()
	if snapshot != nil {
		// Whoever is woken by the status finds the snapshot; who is woken by the
		// snapshot may find an old status.
		s.Snapshots.PutAs(key, snapshot, artifact.Digest)
	}
}

// artifactOf is the artifact of the snapshot that was handed over last, nil if
// there is none.
func (s *Sources) artifactOf(key source.Key) *meta.Artifact {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.artifacts[key].DeepCopy()
}

// fetchSource fetches a source that is not suspended, and says in obj what came of it. The error
// is find.ErrFetchedAgain while another source is being fetched by a process that has begun, and
// park.ErrShare if it has to wait for others of its namespace.
func fetchSource[T sourceObject](ctx context.Context, s *Sources, kind sourceKind[T], key source.Key, before, obj T) (ctrl.Result, error) {
	status.RemoveCondition(obj, sourcev1.StorageOperationFailedCondition)
	if apimeta.IsStatusConditionFalse(obj.GetConditions(), sourcev1.SourceVerifiedCondition) {
		status.RemoveCondition(obj, sourcev1.SourceVerifiedCondition)
	}
	fields := kind.describe(obj)
	timeout := kind.timeout(ctx, obj)
	stall.Allow(ctx, timeout)
	fetching, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	got, failed := kind.fetch(fetching, key, obj)
	if failed != nil && errors.Is(context.Cause(ctx), park.ErrShare) {
		// Others of its namespace go first, and nothing is known of the source. What it had is used meanwhile.
		s.recall(context.WithoutCancel(ctx), key, obj)
		return ctrl.Result{}, park.ErrShare
	}
	if failed != nil {
		s.recall(ctx, key, obj)
		s.Snapshots.Silence(key)
		return s.failed(ctx, before, obj, fields, failed)
	}
	artifact, failed := s.pack(ctx, key, obj, fields, got)
	if failed != nil {
		return s.failed(ctx, before, obj, fields, failed)
	}
	s.succeeded(ctx, before, obj, fields, got, artifact)
	s.handOver(key, artifact, got.snapshot)
	s.keep(ctx, key, obj, got.snapshot)
	return again(got.after, ctrl.Result{RequeueAfter: s.Jitter(obj.GetRequeueAfter())}), nil
}

// pack stores what was fetched, if somebody wants it packed, and describes it.
func (s *Sources) pack(ctx context.Context, key source.Key, obj sourceObject, fields sourceFields, got *fetched) (*meta.Artifact, *failure) {
	described := &meta.Artifact{}
	if got.file != nil {
		described.Revision, described.Digest, described.Path = got.file.revision, got.file.digest, got.file.name
	} else {
		described.Revision, described.Digest, described.Path = got.snapshot.Revision, got.snapshot.Digest, got.snapshot.File
		described.Metadata = got.snapshot.Metadata
	}
	if s.Storage == nil {
		described.Path = path.Join(strings.ToLower(key.Kind), key.Namespace, key.Name, described.Path)
		return described, nil
	}
	artifact, err := s.store(ctx, key, got)
	if err != nil {
		if old := obj.GetArtifact(); old != nil && old.Revision != described.Revision {
			status.SetCondition(obj, sourcev1.ArtifactOutdatedCondition, metav1.ConditionTrue, "NewRevision", "new upstream revision '%s'", described.Revision)
		}
		return nil, &failure{
			condition: sourcev1.StorageOperationFailedCondition,
			err:       &source.Error{Reason: sourcev1.ArchiveOperationFailedReason, Err: err},
		}
	}
	if fields.url != nil {
		*fields.url = s.Storage.Latest(key)
	}
	return artifact, nil
}

func (s *Sources) store(ctx context.Context, key source.Key, got *fetched) (*meta.Artifact, error) {
	if got.file == nil {
		return s.Storage.Put(ctx, key, got.snapshot)
	}
	if stored := s.Storage.Stored(key); stored != nil && stored.Revision == got.file.revision {
		return stored, nil
	}
	content, err := got.file.open()
	if err != nil {
		return nil, err
	}
	return s.Storage.PutFile(ctx, key, got.file.name, got.file.revision, content)
}

func (s *Sources) succeeded(ctx context.Context, before, obj sourceObject, fields sourceFields, got *fetched, artifact *meta.Artifact) {
	old := before.GetArtifact()
	artifact.LastUpdateTime = metav1.NewTime(s.Now())
	if old != nil && old.Revision == artifact.Revision && old.Digest == artifact.Digest {
		artifact.LastUpdateTime = old.LastUpdateTime
	}
	*fields.artifact = artifact
	if got.observe != nil {
		got.observe()
	}
	*fields.observed = obj.GetGeneration()
	status.RemoveCondition(obj, sourcev1.FetchFailedCondition, sourcev1.BuildFailedCondition, sourcev1.ArtifactOutdatedCondition)
	status.SetCondition(obj, sourcev1.ArtifactInStorageCondition, metav1.ConditionTrue, got.reason, "%s", got.message)
	status.MarkReady(obj, got.reason, "%s", got.message)

	// Events tell what is new. An answer that there is nothing is none that Alerts tell.
	switch {
	case old == nil || old.Digest != artifact.Digest:
		s.event(ctx, obj, corev1.EventTypeNormal, got.eventReason, "%s", got.event)
	case recovered(before, obj):
		reason := got.eventReason
		if reason == reasonNewArtifact {
			reason = meta.SucceededReason
		}
		s.event(ctx, obj, corev1.EventTypeNormal, reason, "%s", got.event)
	case got.same != "" && obj.GetAnnotations()[meta.ReconcileRequestAnnotation] != *fields.handled:
		s.event(ctx, obj, eventv1.EventTypeTrace, got.sameReason, "%s", got.same)
	}
}

// reasonNewArtifact is of the event that tells of new content.
const reasonNewArtifact = "NewArtifact"

// recovered reports whether a failure that there was is gone.
func recovered(before, after sourceObject) bool {
	failed := []string{
		sourcev1.FetchFailedCondition, sourcev1.IncludeUnavailableCondition, sourcev1.BuildFailedCondition, sourcev1.StorageOperationFailedCondition,
	}
	return apimeta.IsStatusConditionFalse(before.GetConditions(), sourcev1.SourceVerifiedCondition) ||
		slices.ContainsFunc(failed, func(kind string) bool {
			return apimeta.IsStatusConditionTrue(before.GetConditions(), kind) && !apimeta.IsStatusConditionTrue(after.GetConditions(), kind)
		})
}

// failed records a failure. The last snapshot stays in use. The error is find.ErrFetchedAgain if
// that is what it waits for.
func (s *Sources) failed(ctx context.Context, before, obj sourceObject, fields sourceFields, f *failure) (ctrl.Result, error) {
	if errors.Is(f.err, find.ErrFetchedAgain) {
		return ctrl.Result{RequeueAfter: f.wait}, f.err
	}
	reason := source.ReasonOf(f.err)
	truth := metav1.ConditionTrue
	if f.condition == sourcev1.SourceVerifiedCondition {
		truth = metav1.ConditionFalse
	}
	status.SetCondition(obj, f.condition, truth, reason, "%s", f.err)
	if f.ready != "" {
		reason = f.ready
	}
	if f.stalls {
		status.MarkStalled(obj, reason, f.err)
		*fields.observed = obj.GetGeneration()
	} else {
		status.MarkFailing(obj, reason, f.err)
	}
	was := apimeta.FindStatusCondition(before.GetConditions(), meta.ReadyCondition)
	is := apimeta.FindStatusCondition(obj.GetConditions(), meta.ReadyCondition)
	if was == nil || was.Status != is.Status || was.Reason != is.Reason || was.Message != is.Message {
		if f.expected {
			s.event(ctx, obj, eventv1.EventTypeTrace, reason, "%s", is.Message)
		} else {
			s.event(ctx, obj, corev1.EventTypeWarning, reason, "%s", is.Message)
		}
	}
	switch {
	case f.stalls, f.wait > 0:
		return ctrl.Result{RequeueAfter: f.wait}, nil
	}
	if after := source.After(f.err); after > 0 {
		return ctrl.Result{RequeueAfter: s.Jitter(after)}, nil
	}
	return ctrl.Result{}, fmt.Errorf("cannot fetch %s %s/%s: %w", fields.kind, obj.GetNamespace(), obj.GetName(), f.err)
}

func (s *Sources) event(ctx context.Context, obj sourceObject, kind, reason, format string, args ...any) {
	// What is worth an event is worth a line: `flux logs` shows those.
	if message := fmt.Sprintf(format, args...); kind == corev1.EventTypeWarning {
		log.FromContext(ctx).Error(errors.New(message), "Reconciliation failed")
	} else {
		log.FromContext(ctx).Info(message)
	}
	// What went wrong is not about the artifact that there was before: its commit is as well as
	// it was.
	annotations := map[string]string{}
	if artifact := obj.GetArtifact(); artifact != nil && kind == corev1.EventTypeNormal {
		annotations[sourcev1.GroupVersion.Group+"/revision"] = artifact.Revision
		annotations[sourcev1.GroupVersion.Group+"/digest"] = artifact.Digest
	}
	s.Events.AnnotatedEventf(obj, annotations, kind, reason, format, args...)
}

// uncached is a client that asks the API server: what is read once in a while
// is not worth a watch of all there is.
type uncached struct {
	client.Client
	reader client.Reader
}

func (u uncached) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return u.reader.Get(ctx, key, obj, opts...)
}

// secret reads the data of a Secret. The failure is of the given reason.
func (s *Sources) secret(ctx context.Context, namespace, name, reason string) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: namespace, Name: name}
	if err := s.Reader.Get(ctx, key, secret); err != nil {
		return nil, &source.Error{Reason: reason, Err: fmt.Errorf("cannot read Secret %s: %w", key, err)}
	}
	return secret.Data, nil
}

// shortened is a text as Flux shows it in an event.
func shortened(text string) string {
	const most = 50
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return text
}

// verified records a signature that was checked, and tells if it is new. Alerts tell of the
// artifact that comes of it.
func (s *Sources) verified(ctx context.Context, obj sourceObject, message string) {
	if c := apimeta.FindStatusCondition(obj.GetConditions(), sourcev1.SourceVerifiedCondition); c == nil || c.Message != message {
		s.event(ctx, obj, eventv1.EventTypeTrace, meta.SucceededReason, "%s", message)
	}
	status.SetCondition(obj, sourcev1.SourceVerifiedCondition, metav1.ConditionTrue, meta.SucceededReason, "%s", message)
}

// pullSecrets are the image pull secrets of an object: the one that it names,
// and those of its service account.
func (s *Sources) pullSecrets(ctx context.Context, namespace string, ref *meta.LocalObjectReference, account string) ([]corev1.Secret, error) {
	var names []string
	if ref != nil {
		names = append(names, ref.Name)
	}
	if account != "" {
		key := types.NamespacedName{Namespace: namespace, Name: account}
		found := &corev1.ServiceAccount{}
		if err := s.Reader.Get(ctx, key, found); err != nil {
			return nil, &source.Error{Reason: source.ReasonAuthenticationFailed, Err: fmt.Errorf("cannot read ServiceAccount %s: %w", key, err)}
		}
		for _, secret := range found.ImagePullSecrets {
			names = append(names, secret.Name)
		}
	}
	secrets := make([]corev1.Secret, len(names))
	for i, name := range names {
		key := types.NamespacedName{Namespace: namespace, Name: name}
		if err := s.Reader.Get(ctx, key, &secrets[i]); err != nil {
			return nil, &source.Error{Reason: source.ReasonAuthenticationFailed, Err: fmt.Errorf("cannot read Secret %s: %w", key, err)}
		}
	}
	return secrets, nil
}

// proxy reads the Secret of spec.proxySecretRef; nil if there is none.
func (s *Sources) proxy(ctx context.Context, namespace string, ref *meta.LocalObjectReference) (*url.URL, error) {
	if ref == nil {
		return nil, nil
	}
	secret, err := s.secret(ctx, namespace, ref.Name, source.ReasonAuthenticationFailed)
	if err != nil {
		return nil, err
	}
	return source.ProxyOf(secret)
}
