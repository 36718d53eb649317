package artifact

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// Manager is the field manager of what is written, and the label by which Flux's controller
// says that it manages an ExternalArtifact.
const Manager = "source-watcher"

// mostEffort is what one reconcile may cost, in steps of about a microsecond.
const mostEffort = 20_000_000

// timeout bounds one reconcile.
const timeout = 5 * time.Minute

// Rules are what flags say.
type Rules struct {
	// NoCrossNamespaceRefs refuses sources of other namespaces.
	NoCrossNamespaceRefs bool
	// RequeueDependency is when a source that nothing tells of is looked at again.
	RequeueDependency time.Duration
	// Retries after errors of the API server.
	Retries wake.Retries
}

// Reconciler reconciles ArtifactGenerators.
type Reconciler struct {
	// Client reads from the cache and writes, Live reads from the API server.
	Client client.Client
	Live   client.Reader
	// Sources finds what artifacts are made of, and hands over what was made. Its shard is
	// that of the generators, too.
	Sources  *find.Finder
	Composer *source.Composer
	// Storage packs artifacts for consumers outside; nil if there are none.
	Storage *source.Storage
	// Kept has what was made before the process began; nil keeps nothing.
	Kept    *source.Kept
	Events  record.EventRecorder
	Metrics *metrics.Metrics
	// Stalls watches the reconciles; nil watches none.
	Stalls *stall.Watchdog
	Now    func() time.Time
	// Jitter spreads the intervals.
	Jitter wake.Jitter
	Rules  Rules
	// MayDelete is asked before each delete; nil lets all pass.
	MayDelete func() error

	store *status.Store[*generatorv1.ArtifactGenerator]

	mu sync.Mutex
	// made is what this process wrote of the artifacts of each generator, empty for those that it
	// wanted to write.
	made map[types.NamespacedName]map[string]made
}

// made is what was written of an artifact.
type made struct {
	// version of the object after the last write.
	version string
	// declared identifies the metadata and spec that were applied.
	declared string
}

// open makes what the reconciler keeps; it is called before the first reconcile.
func (r *Reconciler) open() {
	r.store = &status.Store[*generatorv1.ArtifactGenerator]{
		Client: r.Client, Live: r.Live, Manager: Manager,
		New:        func() *generatorv1.ArtifactGenerator { return &generatorv1.ArtifactGenerator{} },
		Meta:       func(o *generatorv1.ArtifactGenerator) *metav1.ObjectMeta { return &o.ObjectMeta },
		CopyStatus: func(to, from *generatorv1.ArtifactGenerator) { to.Status = *from.Status.DeepCopy() },
	}
	r.made = map[types.NamespacedName]map[string]made{}
}

// Reconcile makes the artifacts of one generator.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obj, err := r.store.Read(ctx, req.NamespacedName)
	if apierrors.IsNotFound(err) {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("cannot read %s %s: %w", generatorv1.ArtifactGeneratorKind, req.NamespacedName, err)
	}
	if !r.Sources.Ours(obj) { // it left the shard, or was woken by a source
		return ctrl.Result{}, r.leave(ctx, obj)
	}
	stall.Allow(ctx, timeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	run := r.store.Record(obj)
	if !obj.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.finalize(ctx, run)
	}
	if controllerutil.AddFinalizer(obj, generatorv1.Finalizer) {
		if err := run.WriteMetadata(ctx); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	start := r.Now()
	result, err := r.generate(ctx, obj)
	if !apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.ReadyCondition) {
		r.recall(ctx, obj)
	}
	if errors.Is(err, find.ErrFetchedAgain) {
		err = nil // who asked is answered when the sources are there
	} else {
		obj.Status.LastHandledReconcileAt = obj.Annotations[meta.ReconcileRequestAnnotation]
	}
	if werr := run.Write(ctx); werr != nil {
		return ctrl.Result{}, errors.Join(err, werr)
	}
	if !obj.IsDisabled() {
		r.Metrics.Reconciled(generatorv1.ArtifactGeneratorKind, req.NamespacedName, obj, r.Now().Sub(start))
	}
	return result, err
}

// interval is when a generator is looked at again that nothing wakes.
func (r *Reconciler) interval(obj *generatorv1.ArtifactGenerator) ctrl.Result {
	return ctrl.Result{RequeueAfter: r.Jitter(obj.GetRequeueAfter())}
}

// generate makes what the generator asks for, as far as that can be, and says so in its
// status. The error is find.ErrFetchedAgain while a source is being fetched by a process that
// has begun.
func (r *Reconciler) generate(ctx context.Context, obj *generatorv1.ArtifactGenerator) (ctrl.Result, error) {
	if obj.IsDisabled() {
		r.recall(ctx, obj) // what was kept is what it made, whatever its sources and its spec have by now
		return r.tellRestored(ctx, obj, r.restore(ctx, obj))
	}
	status.RemoveCondition(obj, sourcev1.FetchFailedCondition)
	recipe, err := read(obj)
	if err != nil {
		return r.stalled(ctx, obj, generatorv1.ValidationFailedReason, err)
	}
	if err := r.access(obj, recipe); err != nil {
		return r.stalled(ctx, obj, generatorv1.AccessDeniedReason, err)
	}
	if err := r.circle(ctx, obj, recipe); err != nil {
		result, _ := r.stalled(ctx, obj, generatorv1.ValidationFailedReason, err)
		result.RequeueAfter = r.Jitter(obj.GetRequeueAfter()) // another generator may end it
		return result, nil
	}
	found, err := r.find(ctx, recipe)
	var missing *missingError
	switch {
	case errors.Is(err, find.ErrFetchedAgain):
		// Nothing is known to be wrong, and the snapshot wakes us.
		return ctrl.Result{RequeueAfter: r.Jitter(r.Rules.RequeueDependency)}, err
	case errors.As(err, &missing):
		r.failing(ctx, obj, generatorv1.SourceFetchFailedReason, err)
		if missing.watched {
			return r.interval(obj), nil
		}
		return ctrl.Result{RequeueAfter: r.Jitter(r.Rules.RequeueDependency)}, nil
	case err != nil:
		r.failing(ctx, obj, generatorv1.SourceFetchFailedReason, err)
		return ctrl.Result{}, err
	}
	composed, err := r.compose(ctx, recipe, found)
	if isInvalid(err) {
		return r.stalled(ctx, obj, generatorv1.ValidationFailedReason, err)
	}
	if err != nil && composed == nil {
		r.failing(ctx, obj, meta.BuildFailedReason, err)
		return r.afterBuild(obj, err)
	}
	wrote, werr := r.write(ctx, obj, found, composed)
	// What is not declared any more is known only if all that is declared is.
	if gone, gerr := r.collect(ctx, obj, composed); gerr != nil {
		werr = errors.Join(werr, gerr)
	} else {
		wrote = append(wrote, gone...)
	}
	failed := composed.failed()
	for _, news := range wrote {
		if werr != nil || failed != nil {
			// It does not say that the generator is well: what fails of it is told once, and would be taken for over.
			news.reason = meta.ProgressingReason
		}
		r.event(ctx, obj, corev1.EventTypeNormal, news.reason, "%s", news.message)
	}
	switch {
	case werr != nil:
		reason := meta.ReconciliationFailedReason
		if taken := (*takenError)(nil); errors.As(werr, &taken) {
			reason = v1alpha1.ReasonNameTaken
			r.failing(ctx, obj, reason, werr)
			return r.interval(obj), nil
		}
		r.failing(ctx, obj, reason, werr)
		return ctrl.Result{}, werr
	case failed != nil:
		r.failing(ctx, obj, meta.BuildFailedReason, failed)
		return r.afterBuild(obj, composed.worst())
	}
	obj.Status.ObservedSourcesDigest = generatorv1.HashObservedSources(found.observed)
	was := apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.ReadyCondition)
	message := fmt.Sprintf("reconciliation succeeded, generated %d artifact(s)", len(composed.outputs))
	status.MarkReady(obj, meta.SucceededReason, "%s", message)
	if !was {
		r.event(ctx, obj, corev1.EventTypeNormal, meta.SucceededReason, "%s", message)
	}
	return r.interval(obj), nil
}

// afterBuild is when a generator is looked at again whose files are wrong: another revision
// wakes it. What could not be read is tried again.
func (r *Reconciler) afterBuild(obj *generatorv1.ArtifactGenerator, err error) (ctrl.Result, error) {
	if isBuild(err) {
		return r.interval(obj), nil
	}
	return ctrl.Result{}, err
}

// access refuses sources of other namespaces, if they are not allowed.
func (r *Reconciler) access(obj *generatorv1.ArtifactGenerator, recipe *recipe) error {
	for _, s := range obj.Spec.Sources {
		if key := recipe.sources[s.Alias]; r.Rules.NoCrossNamespaceRefs && key.Namespace != obj.Namespace {
			return fmt.Errorf("can't access '%s/%s/%s', cross-namespace references have been blocked", key.Kind, key.Namespace, key.Name)
		}
	}
	return nil
}

// mostCircle bounds the generators that are looked at for a circle.
const mostCircle = 1000

// circle is an error if what a generator makes is made of what it makes: it would grow each
// time.
func (r *Reconciler) circle(ctx context.Context, obj *generatorv1.ArtifactGenerator, recipe *recipe) error {
	seen := map[types.NamespacedName]bool{}
	var follow func(sources []source.Key) error
	follow = func(sources []source.Key) error {
		for _, key := range sources {
			if key.Kind != sourcev1.ExternalArtifactKind {
				continue
			}
			o, err := r.Sources.Object(ctx, key)
			if err != nil {
				continue // it is looked for again where it is needed
			}
			by, ok := generatorOf(o.(*sourcev1.ExternalArtifact))
			if !ok || seen[by] {
				continue
			}
			if by == client.ObjectKeyFromObject(obj) {
				return fmt.Errorf("cannot make artifacts of '%s/%s/%s': it is made of what this generator makes; take it out of spec.sources of one of them", key.Kind, key.Namespace, key.Name)
			}
			if seen[by] = true; len(seen) > mostCircle {
				return fmt.Errorf("cannot make artifacts of '%s/%s/%s': more than %d generators come before it", key.Kind, key.Namespace, key.Name, mostCircle)
			}
			other := &generatorv1.ArtifactGenerator{}
			if err := r.Client.Get(ctx, by, other); err != nil {
				continue
			}
			var next []source.Key
			for _, s := range other.Spec.Sources {
				next = append(next, source.Key{Kind: s.Kind, NamespacedName: types.NamespacedName{Namespace: namespaceOf(s.Namespace, other), Name: s.Name}})
			}
			if err := follow(next); err != nil {
				return err
			}
		}
		return nil
	}
	var sources []source.Key
	for _, s := range obj.Spec.Sources {
		sources = append(sources, recipe.sources[s.Alias])
	}
	return follow(sources)
}

// namespaceOf is where a source of a generator is.
func namespaceOf(namespace string, obj *generatorv1.ArtifactGenerator) string {
	if namespace == "" {
		return obj.Namespace
	}
	return namespace
}

// found are the sources of a generator, by their aliases.
type found struct {
	snapshots map[string]*source.Snapshot
	observed  map[string]generatorv1.ObservedSource
	// kinds of the sources.
	kinds map[string]string
}

// missingError says that a source is not there yet. watched: something wakes the generator
// when it comes.
type missingError struct {
	err     error
	watched bool
}

func (e *missingError) Error() string { return e.err.Error() }
func (e *missingError) Unwrap() error { return e.err }

// find gets the snapshots of all sources.
func (r *Reconciler) find(ctx context.Context, recipe *recipe) (*found, error) {
	f := &found{snapshots: map[string]*source.Snapshot{}, observed: map[string]generatorv1.ObservedSource{}, kinds: map[string]string{}}
	var view source.View // two aliases of one source are of one revision
	for _, alias := range slices.Sorted(keysOf(recipe.sources)) {
		key := recipe.sources[alias]
		o, err := r.Sources.Object(ctx, key)
		if errors.Is(err, find.ErrSourceNotFound) {
			return nil, &missingError{fmt.Errorf("source '%s/%s/%s' not found", key.Kind, key.Namespace, key.Name), r.Sources.Cached(key.Kind)}
		}
		if err != nil {
			return nil, err
		}
		snapshot, err := view.Snapshot(key, func() (*source.Snapshot, error) { return r.Sources.Snapshot(ctx, key, o) })
		switch {
		case errors.Is(err, find.ErrFetchedAgain) && find.NotRestored(o) != nil:
			return nil, &missingError{fmt.Errorf("source '%s/%s/%s': %s", key.Kind, key.Namespace, key.Name, find.NotRestored(o).Message), false}
		case errors.Is(err, find.ErrFetchedAgain) && find.Failing(o) != nil:
			return nil, &missingError{fmt.Errorf("source '%s/%s/%s' is not ready, and this process has not fetched it yet; see its status: %s", key.Kind, key.Namespace, key.Name, find.Failing(o).Reason), false}
		case errors.Is(err, find.ErrFetchedAgain):
			return nil, err
		case errors.Is(err, find.ErrNoArtifact):
			return nil, &missingError{fmt.Errorf("source '%s/%s/%s' has no artifact", key.Kind, key.Namespace, key.Name), r.Sources.Cached(key.Kind)}
		case err != nil:
			return nil, fmt.Errorf("cannot get the artifact of '%s/%s/%s': %w", key.Kind, key.Namespace, key.Name, err)
		}
		f.snapshots[alias], f.kinds[alias] = snapshot, key.Kind
		url := ""
		if artifact := o.GetArtifact(); artifact != nil {
			url = artifact.URL
		}
		f.observed[alias] = generatorv1.ObservedSource{Digest: snapshot.Digest, Revision: snapshot.Revision, OriginRevision: snapshot.OriginRevision, URL: url}
	}
	return f, nil
}

// composition is what became of one output.
type composition struct {
	output
	// snapshot is nil if it could not be made.
	snapshot *source.Snapshot
	err      error
}

// compositions are those of a generator.
type compositions struct{ outputs []composition }

// failed is why some of them could not be made; nil if all could.
func (c *compositions) failed() error {
	var errs []error
	for _, o := range c.outputs {
		if o.err != nil && len(errs) < mostTold {
			errs = append(errs, fmt.Errorf("artifact '%s': %w", o.name, o.err))
		}
	}
	return errors.Join(errs...)
}

// worst is the failure that counts for when to try again: one that is not about the files, if
// there is any.
func (c *compositions) worst() error {
	var worst error
	for _, o := range c.outputs {
		if o.err != nil && (worst == nil || !isBuild(o.err)) {
			worst = o.err
		}
	}
	return worst
}

// mostTold bounds the artifacts whose failures are told.
const mostTold = 10

// compose makes all outputs. Without an answer it is not known which there are.
func (r *Reconciler) compose(ctx context.Context, recipe *recipe, f *found) (*compositions, error) {
	left := source.NewEffort(ctx, mostEffort)
	outputs, err := recipe.expand(left, f.snapshots)
	if err != nil {
		return nil, err
	}
	all := &compositions{}
	for _, o := range outputs {
		snapshot, err := r.one(left, o, f)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("cannot make artifact '%s': %w", o.name, ctx.Err())
		}
		all.outputs = append(all.outputs, composition{output: o, snapshot: snapshot, err: err})
	}
	return all, nil
}

// one makes one output.
func (r *Reconciler) one(left *source.Effort, o output, f *found) (*source.Snapshot, error) {
	c := r.Composer.Begin(left)
	if err := o.compose(c, left, f.snapshots); err != nil {
		return nil, err
	}
	var at time.Time
	for _, op := range o.copies {
		if t := f.snapshots[op.alias].Time; t.After(at) {
			at = t
		}
	}
	return c.End(func(digest string) source.About {
		about := source.About{Revision: "latest@" + digest, File: fileOf(digest), Time: at}
		if o.revision != "" {
			about.Revision = f.snapshots[o.revision].Revision
		}
		if about.OriginRevision = f.origin(o.origin); about.OriginRevision != "" {
			about.Metadata = map[string]string{generatorv1.ArtifactOriginRevisionAnnotation: about.OriginRevision}
		}
		return about
	})
}

// origin is the revision that a source came from: of Git its own.
func (f *found) origin(alias string) string {
	if alias == "" {
		return ""
	}
	if s := f.snapshots[alias]; f.kinds[alias] != sourcev1.GitRepositoryKind {
		return s.OriginRevision
	}
	return f.snapshots[alias].Revision
}

// reasonRevisionNotFetched is that of suspended sources: who refers to what is made reads the
// conditions of both.
const reasonRevisionNotFetched = "RevisionNotFetched"

// tellRestored has a disabled generator tell, by a condition, what it made that cannot be handed
// over: who refers to that stands still. It stays ready. One that is not tells of a failure
// already.
func (r *Reconciler) tellRestored(ctx context.Context, obj *generatorv1.ArtifactGenerator, err error) (ctrl.Result, error) {
	soon := ctrl.Result{RequeueAfter: r.Jitter(r.Rules.RequeueDependency)} // nothing wakes it when a source begins to fail
	if errors.Is(err, find.ErrFetchedAgain) {
		return soon, nil
	}
	var lost *lostError
	if err != nil && !errors.As(err, &lost) {
		return ctrl.Result{}, err
	}
	if lost == nil || !apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.ReadyCondition) {
		status.RemoveCondition(obj, sourcev1.FetchFailedCondition)
		return ctrl.Result{}, nil
	}
	if !apimeta.IsStatusConditionTrue(obj.Status.Conditions, sourcev1.FetchFailedCondition) {
		r.event(ctx, obj, corev1.EventTypeWarning, reasonRevisionNotFetched, "%s", lost)
	}
	status.SetCondition(obj, sourcev1.FetchFailedCondition, metav1.ConditionTrue, reasonRevisionNotFetched, "%s", lost)
	if missing := (*missingError)(nil); errors.As(lost, &missing) && !missing.watched {
		return soon, nil
	}
	return ctrl.Result{}, nil
}

// lostError says what a disabled generator made that this process does not have, and cannot make
// again.
type lostError struct {
	names []string
	why   error
}

func (e *lostError) Error() string {
	names := e.names
	if len(names) > mostTold {
		names = append(slices.Clone(names[:mostTold]), fmt.Sprintf("and %d more", len(names)-mostTold))
	}
	return fmt.Sprintf("the generator is disabled, and cannot make again what it made: %s: %s; who refers to it stands still until it can, or is enabled", strings.Join(names, ", "), e.why)
}

func (e *lostError) Unwrap() error { return e.why }

// lost is an error if a generator made what this process does not have.
func (r *Reconciler) lost(ctx context.Context, obj *generatorv1.ArtifactGenerator, why error) error {
	var names []string
	for _, ref := range obj.Status.Inventory {
		key := keyOf(obj.Namespace, ref.Name)
		if r.Sources.Snapshots.Get(key) != nil {
			continue
		}
		live := &sourcev1.ExternalArtifact{}
		err := r.Client.Get(ctx, key.NamespacedName, live)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot read %s %s: %w", key.Kind, key.NamespacedName, err)
		}
		if err == nil && live.Status.Artifact != nil && isOurs(obj, live) {
			names = append(names, ref.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return &lostError{names: names, why: why}
}

// restore hands over what a disabled generator made before this process began, as far as its
// sources still have it. Nothing is written. The error is a lostError if they do not have all
// of it.
func (r *Reconciler) restore(ctx context.Context, obj *generatorv1.ArtifactGenerator) error {
	if r.lost(ctx, obj, nil) == nil {
		return nil
	}
	recipe, err := read(obj)
	if err == nil {
		err = r.access(obj, recipe)
	}
	if err == nil {
		err = r.circle(ctx, obj, recipe)
	}
	if err != nil {
		return r.lost(ctx, obj, err) // it made nothing by this spec
	}
	f, err := r.find(ctx, recipe)
	if missing := (*missingError)(nil); errors.As(err, &missing) {
		return r.lost(ctx, obj, err)
	}
	if err != nil {
		return err
	}
	composed, err := r.compose(ctx, recipe, f)
	if isInvalid(err) || isBuild(err) {
		return r.lost(ctx, obj, err)
	}
	if err != nil {
		return err
	}
	for _, o := range composed.outputs {
		key := keyOf(obj.Namespace, o.name)
		if o.snapshot == nil || r.Sources.Snapshots.Get(key) != nil {
			continue
		}
		live := &sourcev1.ExternalArtifact{}
		if err := r.Client.Get(ctx, key.NamespacedName, live); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return fmt.Errorf("cannot read %s %s: %w", key.Kind, key.NamespacedName, err)
		}
		// A revision that the spec names is that of a source, and says nothing of what was copied of it.
		if a := live.Status.Artifact; a != nil && a.Revision == o.snapshot.Revision && path.Base(a.Path) == o.snapshot.File && isOurs(obj, live) {
			r.Sources.Snapshots.Put(key, o.snapshot)
		}
	}
	if err := composed.worst(); err != nil && !isBuild(err) {
		return err
	}
	if err := composed.failed(); err != nil {
		return r.lost(ctx, obj, err)
	}
	return r.lost(ctx, obj, errors.New("by its spec and what its sources have now it would be another"))
}

// recall hands over what was kept of the artifacts that cannot be made now, if this process
// has nothing of them yet.
func (r *Reconciler) recall(ctx context.Context, obj *generatorv1.ArtifactGenerator) {
	if r.Kept == nil {
		return
	}
	for _, ref := range obj.Status.Inventory {
		key := keyOf(obj.Namespace, ref.Name)
		live := &sourcev1.ExternalArtifact{}
		if r.Sources.Snapshots.Get(key) != nil || r.Client.Get(ctx, key.NamespacedName, live) != nil || live.Status.Artifact == nil || !isOurs(obj, live) {
			continue
		}
		snapshot, err := r.Kept.Get(ctx, key, live.UID, live.Status.Artifact.Revision, "")
		if err != nil {
			log.FromContext(ctx).Error(err, "cannot read what was kept of an artifact", "artifact", key.String())
		}
		// A volume may have what was made before under a revision that is that of a source.
		if snapshot != nil && snapshot.File == path.Base(live.Status.Artifact.Path) {
			r.Sources.Snapshots.Put(key, snapshot)
		}
	}
}

// finalize deletes what the generator made, and lets it go.
func (r *Reconciler) finalize(ctx context.Context, run *status.Record[*generatorv1.ArtifactGenerator]) error {
	obj := run.Obj
	if !controllerutil.ContainsFinalizer(obj, generatorv1.Finalizer) {
		return nil
	}
	if _, err := r.collect(ctx, obj, &compositions{}); err != nil {
		return err
	}
	controllerutil.RemoveFinalizer(obj, generatorv1.Finalizer)
	if err := run.WriteMetadata(ctx); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("cannot release %s %s: %w", generatorv1.ArtifactGeneratorKind, client.ObjectKeyFromObject(obj), err)
	}
	r.forget(client.ObjectKeyFromObject(obj))
	return nil
}

// leave drops what this process has of a generator that is another agent's. The objects that it
// made are that agent's as well.
func (r *Reconciler) leave(ctx context.Context, obj *generatorv1.ArtifactGenerator) error {
	for name := range r.names(obj) {
		key := keyOf(obj.Namespace, name)
		if r.Sources.Snapshots.Get(key) == nil {
			continue // it never was of this shard, or was dropped
		}
		live := &sourcev1.ExternalArtifact{}
		err := r.Client.Get(ctx, key.NamespacedName, live)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("cannot read %s %s: %w", key.Kind, key.NamespacedName, err)
		}
		if err == nil && !isOurs(obj, live) {
			continue // another generator makes it by now
		}
		if err := r.drop(key); err != nil {
			return err
		}
	}
	r.forget(client.ObjectKeyFromObject(obj))
	return nil
}

// forget drops what is kept of a generator that is gone.
func (r *Reconciler) forget(name types.NamespacedName) {
	r.store.Forget(name)
	r.Metrics.Forget(generatorv1.ArtifactGeneratorKind, name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.made, name)
}

// stalled says that only a change of the object can end a failure.
func (r *Reconciler) stalled(ctx context.Context, obj *generatorv1.ArtifactGenerator, reason string, err error) (ctrl.Result, error) {
	before := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition).DeepCopy()
	status.MarkStalled(obj, reason, err)
	r.failure(ctx, obj, before)
	return ctrl.Result{}, nil
}

// failing says that something is tried again.
func (r *Reconciler) failing(ctx context.Context, obj *generatorv1.ArtifactGenerator, reason string, err error) {
	before := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition).DeepCopy()
	status.MarkFailing(obj, reason, err)
	r.failure(ctx, obj, before)
}

// failure tells of a failure that is new.
func (r *Reconciler) failure(ctx context.Context, obj *generatorv1.ArtifactGenerator, before *metav1.Condition) {
	is := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition)
	if before == nil || before.Status != is.Status || before.Reason != is.Reason || before.Message != is.Message {
		r.event(ctx, obj, corev1.EventTypeWarning, is.Reason, "%s", is.Message)
	}
}

func (r *Reconciler) event(ctx context.Context, obj *generatorv1.ArtifactGenerator, kind, reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if kind == corev1.EventTypeWarning {
		log.FromContext(ctx).Error(errors.New(message), "Reconciliation failed")
	} else {
		log.FromContext(ctx).Info(message)
	}
	r.Events.Event(obj, kind, reason, message)
}
