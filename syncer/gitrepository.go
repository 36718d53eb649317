package syncer

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
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
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// GitRepositories reconciles GitRepository objects into snapshots.
type GitRepositories struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Reader reads Secrets and ServiceAccounts from the API server.
	Reader    client.Reader
	Mirrors   *source.Mirrors
	Snapshots *source.Snapshots
	// Logins gets credentials from providers.
	Logins *source.Logins
	// Storage packs snapshots for consumers outside; nil if there are none.
	Storage *source.Storage
	Events  record.EventRecorder
	Metrics *Metrics
	Now     func() time.Time

	mu sync.Mutex
	// artifacts has the artifact of each snapshot that was handed over.
	artifacts map[source.Key]*meta.Artifact
}

// SetupWithManager registers the reconciler. shard passes the repositories that
// this process reconciles.
func (r *GitRepositories) SetupWithManager(mgr ctrl.Manager, concurrent int, shard predicate.Predicate) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&sourcev1.GitRepository{}, builder.WithPredicates(shard, changed())).
		WatchesRawSource(ctrlsource.Func(r.onSnapshot)).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: rateLimiter()}).
		Complete(r)
}

// onSnapshot enqueues the repositories that include one that changed.
func (r *GitRepositories) onSnapshot(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	r.Snapshots.OnChange(func(key source.Key) {
		if key.Kind != sourcev1.GitRepositoryKind {
			return
		}
		list := &sourcev1.GitRepositoryList{}
		if err := r.Client.List(ctx, list, client.InNamespace(key.Namespace)); err != nil {
			log.FromContext(ctx).Error(err, "cannot list GitRepositories that include", "source", key.String())
			return
		}
		for i := range list.Items {
			if slices.ContainsFunc(list.Items[i].Spec.Include, func(in sourcev1.GitRepositoryInclude) bool {
				return in.GitRepositoryRef.Name == key.Name
			}) {
				queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
	})
	return nil
}

// Reconcile fetches one repository.
func (r *GitRepositories) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	key := source.Key{Kind: sourcev1.GitRepositoryKind, NamespacedName: req.NamespacedName}
	obj := &sourcev1.GitRepository{}
	if err := r.Client.Get(ctx, req.NamespacedName, obj); err != nil {
		if apierrors.IsNotFound(err) {
			return ctrl.Result{}, r.forget(key)
		}
		return ctrl.Result{}, err
	}
	if !obj.DeletionTimestamp.IsZero() {
		if err := r.forget(key); err != nil {
			return ctrl.Result{}, err
		}
		before := obj.DeepCopy()
		if controllerutil.RemoveFinalizer(obj, sourcev1.SourceFinalizer) {
			return ctrl.Result{}, client.IgnoreNotFound(r.patchMetadata(ctx, before, obj))
		}
		return ctrl.Result{}, nil
	}
	before := obj.DeepCopy()
	if controllerutil.AddFinalizer(obj, sourcev1.SourceFinalizer) {
		if err := r.patchMetadata(ctx, before, obj); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	if obj.Spec.Suspend {
		return ctrl.Result{}, nil
	}
	start := r.Now()
	before = obj.DeepCopy()
	result, err := r.reconcile(ctx, key, obj)
	obj.Status.LastHandledReconcileAt = obj.Annotations[meta.ReconcileRequestAnnotation]
	if !equality.Semantic.DeepEqual(before.Status, obj.Status) {
		if perr := patchStatus(ctx, r.Client, before, obj, sourceManager); perr != nil {
			return ctrl.Result{}, errors.Join(err, perr)
		}
	}
	r.Metrics.reconciled(sourcev1.GitRepositoryKind, req.NamespacedName, obj, r.Now().Sub(start))
	return result, err
}

// patchMetadata writes the finalizer; a list, so nobody else's change to it may
// be lost.
func (r *GitRepositories) patchMetadata(ctx context.Context, before, after *sourcev1.GitRepository) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	return r.Client.Patch(ctx, after, patch, client.FieldOwner(sourceManager))
}

func (r *GitRepositories) forget(key source.Key) error {
	r.Snapshots.Put(key, nil)
	r.Metrics.forget(key.Kind, key.NamespacedName)
	r.mu.Lock()
	delete(r.artifacts, key)
	r.mu.Unlock()
	if r.Storage != nil {
		return r.Storage.Remove(key)
	}
	return nil
}

// failure is an error, the condition that shows it, and how it ends.
type failure struct {
	condition string
	err       error
	// stalls: only a change of the object can end it.
	stalls bool
	// wait is when to look again, 0 for as soon as the backoff allows.
	wait time.Duration
}

func (r *GitRepositories) reconcile(ctx context.Context, key source.Key, obj *sourcev1.GitRepository) (ctrl.Result, error) {
	before := obj.DeepCopy()
	snapshot, artifact, included, failed := r.fetch(ctx, key, obj)
	if failed != nil {
		return r.failed(ctx, before, obj, failed)
	}
	r.succeeded(ctx, before, obj, snapshot, artifact, included)
	r.mu.Lock()
	if r.artifacts == nil {
		r.artifacts = map[source.Key]*meta.Artifact{}
	}
	r.artifacts[key] = obj.Status.Artifact.DeepCopy()
	r.mu.Unlock()
	// After the status: whoever is woken by the snapshot finds it consistent
	// soon; nobody relies on the order.
	r.Snapshots.Put(key, snapshot)
	return ctrl.Result{RequeueAfter: jittered(obj.Spec.Interval.Duration)}, nil
}

// fetch gets the snapshot, checks its signature and packs it if somebody wants
// it packed. It sets the conditions of the steps that it passes.
func (r *GitRepositories) fetch(ctx context.Context, key source.Key, obj *sourcev1.GitRepository) (*source.Snapshot, *meta.Artifact, []*meta.Artifact, *failure) {
	removeCondition(obj, sourcev1.StorageOperationFailedCondition)
	if apimeta.IsStatusConditionFalse(obj.Status.Conditions, sourcev1.SourceVerifiedCondition) {
		removeCondition(obj, sourcev1.SourceVerifiedCondition)
	}
	timeout := 60 * time.Second
	if obj.Spec.Timeout != nil {
		timeout = obj.Spec.Timeout.Duration
	}
	fetching, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	origin, err := r.origin(fetching, key, obj)
	if err != nil {
		reason := source.ReasonOf(err)
		return nil, nil, nil, &failure{
			condition: sourcev1.FetchFailedCondition, err: err,
			stalls: reason == source.ReasonURLInvalid || (reason == source.ReasonInvalidProvider && obj.Spec.SecretRef == nil),
		}
	}
	includes, included, failed := r.includes(ctx, obj)
	if failed != nil {
		return nil, nil, nil, failed
	}
	removeCondition(obj, sourcev1.IncludeUnavailableCondition)
	snapshot, err := r.Mirrors.Fetch(fetching, origin, reference(obj), source.Options{
		Ignore: obj.Spec.Ignore, SparseCheckout: obj.Spec.SparseCheckout, Submodules: obj.Spec.RecurseSubmodules, Include: includes,
	}, r.Snapshots.Get(key))
	if err != nil {
		reason := source.ReasonOf(err)
		condition := sourcev1.FetchFailedCondition
		if reason == source.ReasonCopyFailure {
			removeCondition(obj, sourcev1.FetchFailedCondition)
			condition = sourcev1.StorageOperationFailedCondition
		}
		return nil, nil, nil, &failure{condition: condition, err: err, stalls: reason == source.ReasonURLInvalid}
	}
	removeCondition(obj, sourcev1.FetchFailedCondition)
	if failed := r.verify(ctx, obj, snapshot); failed != nil {
		return nil, nil, nil, failed
	}
	artifact := &meta.Artifact{
		Digest: snapshot.Digest, Revision: snapshot.Revision,
		Path: path.Join("gitrepository", obj.Namespace, obj.Name, snapshot.Commit+".tar.gz"),
	}
	if r.Storage == nil {
		return snapshot, artifact, included, nil
	}
	if artifact, err = r.Storage.Put(ctx, key, snapshot); err != nil {
		if obj.Status.Artifact != nil && obj.Status.Artifact.Revision != snapshot.Revision {
			setCondition(obj, sourcev1.ArtifactOutdatedCondition, metav1.ConditionTrue, "NewRevision", "new upstream revision '%s'", snapshot.Revision)
		}
		return nil, nil, nil, &failure{
			condition: sourcev1.StorageOperationFailedCondition,
			err:       &source.Error{Reason: sourcev1.ArchiveOperationFailedReason, Err: err},
		}
	}
	return snapshot, artifact, included, nil
}

func (r *GitRepositories) succeeded(ctx context.Context, before, obj *sourcev1.GitRepository, snapshot *source.Snapshot, artifact *meta.Artifact, included []*meta.Artifact) {
	artifact.LastUpdateTime = metav1.NewTime(r.Now())
	if old := before.Status.Artifact; old != nil && old.Revision == artifact.Revision && old.Digest == artifact.Digest {
		artifact.LastUpdateTime = old.LastUpdateTime
	}
	obj.Status.Artifact = artifact
	obj.Status.IncludedArtifacts = included
	obj.Status.ObservedGeneration = obj.Generation
	obj.Status.ObservedIgnore = obj.Spec.Ignore
	obj.Status.ObservedInclude = obj.Spec.Include
	obj.Status.ObservedRecurseSubmodules = obj.Spec.RecurseSubmodules
	obj.Status.ObservedSparseCheckout = obj.Spec.SparseCheckout
	message := fmt.Sprintf("stored artifact for revision '%s'", snapshot.Revision)
	removeCondition(obj, sourcev1.ArtifactOutdatedCondition)
	setCondition(obj, sourcev1.ArtifactInStorageCondition, metav1.ConditionTrue, meta.SucceededReason, "%s", message)
	ready(obj, meta.SucceededReason, "%s", message)

	// Events tell what is new, and nothing else.
	switch {
	case before.Status.Artifact == nil || before.Status.Artifact.Digest != artifact.Digest:
		r.event(ctx, obj, corev1.EventTypeNormal, "NewArtifact", "stored artifact for commit '%s'", shortened(snapshot.Subject))
	case recovered(before, obj):
		r.event(ctx, obj, corev1.EventTypeNormal, meta.SucceededReason, "stored artifact for commit '%s'", shortened(snapshot.Subject))
	case obj.Annotations[meta.ReconcileRequestAnnotation] != before.Status.LastHandledReconcileAt:
		r.event(ctx, obj, corev1.EventTypeNormal, sourcev1.GitOperationSucceedReason, "no changes since last reconciliation: observed revision '%s'", snapshot.Revision)
	}
}

// shortened is a commit's subject as Flux shows it.
func shortened(subject string) string {
	const most = 50
	if runes := []rune(subject); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return subject
}

// recovered reports whether a failure that there was is gone.
func recovered(before, after *sourcev1.GitRepository) bool {
	for _, kind := range []string{sourcev1.FetchFailedCondition, sourcev1.IncludeUnavailableCondition, sourcev1.StorageOperationFailedCondition} {
		if apimeta.IsStatusConditionTrue(before.Status.Conditions, kind) && !apimeta.IsStatusConditionTrue(after.Status.Conditions, kind) {
			return true
		}
	}
	return apimeta.IsStatusConditionFalse(before.Status.Conditions, sourcev1.SourceVerifiedCondition)
}

// failed records a failure. The last snapshot stays in use.
func (r *GitRepositories) failed(ctx context.Context, before, obj *sourcev1.GitRepository, f *failure) (ctrl.Result, error) {
	reason := source.ReasonOf(f.err)
	status := metav1.ConditionTrue
	if f.condition == sourcev1.SourceVerifiedCondition {
		status = metav1.ConditionFalse
	}
	setCondition(obj, f.condition, status, reason, "%s", f.err)
	if f.stalls {
		stalled(obj, reason, f.err)
		obj.Status.ObservedGeneration = obj.Generation
	} else {
		failing(obj, reason, f.err)
	}
	was := apimeta.FindStatusCondition(before.Status.Conditions, meta.ReadyCondition)
	is := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition)
	if was == nil || was.Status != is.Status || was.Reason != is.Reason || was.Message != is.Message {
		r.event(ctx, obj, corev1.EventTypeWarning, reason, "%s", is.Message)
	}
	switch {
	case f.stalls:
		return ctrl.Result{}, nil
	case f.wait > 0:
		return ctrl.Result{RequeueAfter: f.wait}, nil
	}
	return ctrl.Result{}, fmt.Errorf("cannot fetch GitRepository %s/%s: %w", obj.Namespace, obj.Name, f.err)
}

// origin gathers the credential that the repository is read with.
func (r *GitRepositories) origin(ctx context.Context, key source.Key, obj *sourcev1.GitRepository) (source.Origin, error) {
	origin := source.Origin{URL: obj.Spec.URL}
	if ref := obj.Spec.ProxySecretRef; ref != nil {
		secret, err := r.secret(ctx, obj.Namespace, ref.Name, source.ReasonAuthenticationFailed)
		if err != nil {
			return origin, err
		}
		if origin.Proxy, err = source.ProxyOf(secret); err != nil {
			return origin, err
		}
	}
	if ref := obj.Spec.SecretRef; ref != nil {
		var err error
		if origin.Secret, err = r.secret(ctx, obj.Namespace, ref.Name, source.ReasonAuthenticationFailed); err != nil {
			return origin, err
		}
	}
	var err error
	switch provider := obj.GetProvider(); provider {
	case sourcev1.GitProviderGeneric:
		if source.HasGitHubApp(origin.Secret) {
			err = &source.Error{Reason: source.ReasonInvalidProvider, Err: fmt.Errorf("secretRef '%s/%s' has github app data but provider is not set to github", obj.Namespace, obj.Spec.SecretRef.Name)}
		}
	case sourcev1.GitProviderGitHub:
		if !source.HasGitHubApp(origin.Secret) {
			return origin, &source.Error{Reason: source.ReasonInvalidProvider, Err: errors.New("secretRef with github app data must be specified when provider is set to github")}
		}
		origin.Login, err = r.Logins.GitHubApp(ctx, origin.Secret, origin.Proxy, key)
	default:
		if _, perr := url.Parse(obj.Spec.URL); perr != nil {
			return origin, nil // the mirror says what is wrong with it
		}
		origin.Login, err = r.Logins.Cloud(ctx, provider, obj.Spec.URL, obj.Spec.ServiceAccountName, origin.Proxy, uncached{r.Client, r.Reader}, key)
	}
	return origin, err
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

func (r *GitRepositories) secret(ctx context.Context, namespace, name, reason string) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: namespace, Name: name}
	if err := r.Reader.Get(ctx, key, secret); err != nil {
		return nil, &source.Error{Reason: reason, Err: fmt.Errorf("cannot read Secret %s: %w", key, err)}
	}
	return secret.Data, nil
}

// includePoll is when a repository that another includes is looked for again;
// its snapshot wakes us before.
const includePoll = 30 * time.Second

// includes gathers the snapshots of the repositories to include.
func (r *GitRepositories) includes(ctx context.Context, obj *sourcev1.GitRepository) ([]source.Include, []*meta.Artifact, *failure) {
	unavailable := func(reason, format string, args ...any) *failure {
		return &failure{
			condition: sourcev1.IncludeUnavailableCondition, wait: includePoll,
			err: &source.Error{Reason: reason, Err: fmt.Errorf(format, args...)},
		}
	}
	var includes []source.Include
	var artifacts []*meta.Artifact
	for _, in := range obj.Spec.Include {
		key := source.Key{Kind: sourcev1.GitRepositoryKind, NamespacedName: types.NamespacedName{Namespace: obj.Namespace, Name: in.GitRepositoryRef.Name}}
		if err := r.Client.Get(ctx, key.NamespacedName, &sourcev1.GitRepository{}); err != nil {
			return nil, nil, unavailable("NotFound", "could not get resource for include '%s': %w", key.Name, err)
		}
		if r.leadsBack(ctx, key.NamespacedName, obj.Name, map[string]bool{}) {
			return nil, nil, unavailable("IncludeCycle", "cannot include '%s': it includes this repository; remove one of the two", key.Name)
		}
		r.mu.Lock()
		artifact := r.artifacts[key]
		r.mu.Unlock()
		snapshot := r.Snapshots.Get(key)
		if snapshot == nil || artifact == nil || artifact.Revision != snapshot.Revision {
			return nil, nil, unavailable("NoArtifact", "no artifact available for include '%s'", key.Name)
		}
		includes = append(includes, source.Include{Name: key.Name, Snapshot: snapshot, From: in.GetFromPath(), To: in.GetToPath()})
		artifacts = append(artifacts, artifact.DeepCopy())
	}
	return includes, artifacts, nil
}

// leadsBack reports whether a repository includes the named one, itself or by
// others: each would grow by the other without end.
func (r *GitRepositories) leadsBack(ctx context.Context, from types.NamespacedName, name string, seen map[string]bool) bool {
	if from.Name == name {
		return true
	}
	if seen[from.Name] {
		return false
	}
	seen[from.Name] = true
	obj := &sourcev1.GitRepository{}
	if err := r.Client.Get(ctx, from, obj); err != nil {
		return false
	}
	return slices.ContainsFunc(obj.Spec.Include, func(in sourcev1.GitRepositoryInclude) bool {
		return r.leadsBack(ctx, types.NamespacedName{Namespace: from.Namespace, Name: in.GitRepositoryRef.Name}, name, seen)
	})
}

// sshKeys ends the names of SSH keys in the Secret of spec.verify.
const sshKeys = ".sshpub"

// verify checks the signatures that the object asks for, at each reconcile:
// a key that is taken away counts at once.
func (r *GitRepositories) verify(ctx context.Context, obj *sourcev1.GitRepository, snapshot *source.Snapshot) *failure {
	spec := obj.Spec.Verification
	if spec == nil || spec.Mode == "" {
		obj.Status.SourceVerificationMode = nil
		removeCondition(obj, sourcev1.SourceVerifiedCondition)
		return nil
	}
	keys, err := r.secret(ctx, obj.Namespace, spec.SecretRef.Name, sourcev1.VerificationError)
	if err != nil {
		return &failure{condition: sourcev1.SourceVerifiedCondition, err: err}
	}
	want := source.Verification{Tag: spec.VerifyTag(), Head: spec.VerifyHEAD()}
	for name, value := range keys {
		if strings.HasSuffix(name, sshKeys) {
			want.AuthorizedKeys = append(want.AuthorizedKeys, string(value))
		} else {
			// Of any name, though they should end with .asc: so does Flux.
			want.KeyRings = append(want.KeyRings, string(value))
		}
	}
	message, err := snapshot.Verify(want)
	if err != nil {
		return &failure{condition: sourcev1.SourceVerifiedCondition, err: err, stalls: source.ReasonOf(err) == source.ReasonInvalidVerificationMode}
	}
	mode := spec.GetMode()
	obj.Status.SourceVerificationMode = &mode
	if c := apimeta.FindStatusCondition(obj.Status.Conditions, sourcev1.SourceVerifiedCondition); c == nil || c.Message != message {
		r.event(ctx, obj, corev1.EventTypeNormal, meta.SucceededReason, "%s", message)
	}
	setCondition(obj, sourcev1.SourceVerifiedCondition, metav1.ConditionTrue, meta.SucceededReason, "%s", message)
	return nil
}

func (r *GitRepositories) event(ctx context.Context, obj *sourcev1.GitRepository, kind, reason, format string, args ...any) {
	// What is worth an event is worth a line: `flux logs` shows those.
	if message := fmt.Sprintf(format, args...); kind == corev1.EventTypeWarning {
		log.FromContext(ctx).Error(errors.New(message), "Reconciliation failed")
	} else {
		log.FromContext(ctx).Info(message)
	}
	annotations := map[string]string{}
	if obj.Status.Artifact != nil {
		annotations[sourcev1.GroupVersion.Group+"/revision"] = obj.Status.Artifact.Revision
		annotations[sourcev1.GroupVersion.Group+"/digest"] = obj.Status.Artifact.Digest
	}
	r.Events.AnnotatedEventf(obj, annotations, kind, reason, format, args...)
}

func reference(obj *sourcev1.GitRepository) source.Reference {
	ref := obj.Spec.Reference
	if ref == nil {
		return source.Reference{}
	}
	return source.Reference{Branch: ref.Branch, Tag: ref.Tag, SemVer: ref.SemVer, Name: ref.Name, Commit: ref.Commit}
}
