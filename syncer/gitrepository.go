package syncer

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// GitRepositories reconciles GitRepository objects into snapshots.
type GitRepositories struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Reader reads Secrets from the API server.
	Reader    client.Reader
	Mirrors   *source.Mirrors
	Snapshots *source.Snapshots
	Events    record.EventRecorder
	Metrics   *Metrics
	Now       func() time.Time
}

// SetupWithManager registers the reconciler.
func (r *GitRepositories) SetupWithManager(mgr ctrl.Manager, concurrent int) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&sourcev1.GitRepository{}, builder.WithPredicates(changed())).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: rateLimiter()}).
		Complete(r)
}

// Reconcile fetches one repository.
func (r *GitRepositories) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	key := source.Key{Kind: sourcev1.GitRepositoryKind, NamespacedName: req.NamespacedName}
	obj := &sourcev1.GitRepository{}
	if err := r.Client.Get(ctx, req.NamespacedName, obj); err != nil {
		if apierrors.IsNotFound(err) {
			r.Snapshots.Put(key, nil)
			r.Metrics.forget(sourcev1.GitRepositoryKind, req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !obj.DeletionTimestamp.IsZero() {
		r.Snapshots.Put(key, nil)
		// Flux's controller sets the finalizer; an object taken over has it.
		before := obj.DeepCopy()
		if controllerutil.RemoveFinalizer(obj, sourcev1.SourceFinalizer) {
			err := r.Client.Patch(ctx, obj, client.MergeFrom(before), client.FieldOwner(sourceManager))
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		return ctrl.Result{}, nil
	}
	if obj.Spec.Suspend {
		return ctrl.Result{}, nil
	}
	start := r.Now()
	before := obj.DeepCopy()
	result, err := r.fetch(ctx, key, obj)
	obj.Status.LastHandledReconcileAt = obj.Annotations[meta.ReconcileRequestAnnotation]
	if !equality.Semantic.DeepEqual(before.Status, obj.Status) {
		if perr := patchStatus(ctx, r.Client, before, obj, sourceManager); perr != nil {
			return ctrl.Result{}, errors.Join(err, perr)
		}
	}
	r.Metrics.reconciled(sourcev1.GitRepositoryKind, req.NamespacedName, obj, r.Now().Sub(start))
	return result, err
}

func (r *GitRepositories) fetch(ctx context.Context, key source.Key, obj *sourcev1.GitRepository) (ctrl.Result, error) {
	if field := unsupportedGitField(obj); field != "" {
		stalled(obj, ReasonUnsupportedField, fmt.Errorf("spec.%s is not supported; remove it, or run Flux's source-controller for this object", field))
		r.event(obj, corev1.EventTypeWarning, ReasonUnsupportedField, "spec.%s is not supported", field)
		return ctrl.Result{}, nil
	}
	secret, err := r.secret(ctx, obj)
	if err != nil {
		return r.failed(obj, err)
	}
	timeout := 60 * time.Second
	if obj.Spec.Timeout != nil {
		timeout = obj.Spec.Timeout.Duration
	}
	fetchCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	last := r.Snapshots.Get(key)
	snapshot, err := r.Mirrors.Fetch(fetchCtx, source.Origin{URL: obj.Spec.URL, Secret: secret}, reference(obj), obj.Spec.Ignore, last)
	if err != nil {
		return r.failed(obj, err)
	}
	r.succeeded(obj, snapshot)
	// After the status: whoever is woken by the snapshot finds it consistent
	// soon; nobody relies on the order.
	r.Snapshots.Put(key, snapshot)
	return ctrl.Result{RequeueAfter: jittered(obj.Spec.Interval.Duration)}, nil
}

func (r *GitRepositories) succeeded(obj *sourcev1.GitRepository, snapshot *source.Snapshot) {
	artifact := obj.Status.Artifact
	isNew := artifact == nil || artifact.Revision != snapshot.Revision || artifact.Digest != snapshot.Digest
	if isNew {
		obj.Status.Artifact = &meta.Artifact{
			Digest:         snapshot.Digest,
			Path:           path.Join("gitrepository", obj.Namespace, obj.Name, snapshot.Commit+".tar.gz"),
			Revision:       snapshot.Revision,
			LastUpdateTime: metav1.NewTime(r.Now()),
		}
		r.event(obj, corev1.EventTypeNormal, "NewArtifact", "stored artifact for commit '%s'", snapshot.Subject)
	}
	obj.Status.ObservedGeneration = obj.Generation
	obj.Status.ObservedIgnore = obj.Spec.Ignore
	message := fmt.Sprintf("stored artifact for revision '%s'", snapshot.Revision)
	removeCondition(obj, sourcev1.FetchFailedCondition, sourcev1.ArtifactOutdatedCondition)
	setCondition(obj, sourcev1.ArtifactInStorageCondition, metav1.ConditionTrue, meta.SucceededReason, "%s", message)
	ready(obj, meta.SucceededReason, "%s", message)
}

// failed records a failed fetch. The last snapshot stays in use.
func (r *GitRepositories) failed(obj *sourcev1.GitRepository, err error) (ctrl.Result, error) {
	reason := source.ReasonOf(err)
	setCondition(obj, sourcev1.FetchFailedCondition, metav1.ConditionTrue, reason, "%s", err)
	if reason == source.ReasonURLInvalid {
		stalled(obj, reason, err)
		r.event(obj, corev1.EventTypeWarning, reason, "%s", err)
		return ctrl.Result{}, nil
	}
	failing(obj, reason, err)
	r.event(obj, corev1.EventTypeWarning, reason, "%s", err)
	return ctrl.Result{}, fmt.Errorf("cannot fetch GitRepository %s/%s: %w", obj.Namespace, obj.Name, err)
}

func (r *GitRepositories) secret(ctx context.Context, obj *sourcev1.GitRepository) (map[string][]byte, error) {
	if obj.Spec.SecretRef == nil {
		return nil, nil
	}
	secret := &corev1.Secret{}
	name := client.ObjectKey{Namespace: obj.Namespace, Name: obj.Spec.SecretRef.Name}
	if err := r.Reader.Get(ctx, name, secret); err != nil {
		return nil, &source.Error{Reason: source.ReasonAuthenticationFailed, Err: fmt.Errorf("cannot read Secret %s: %w", name, err)}
	}
	return secret.Data, nil
}

func (r *GitRepositories) event(obj *sourcev1.GitRepository, kind, reason, format string, args ...any) {
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
	return source.Reference{Branch: ref.Branch, Tag: ref.Tag, Name: ref.Name, Commit: ref.Commit}
}

// unsupportedGitField names the first field that is set and not supported.
func unsupportedGitField(obj *sourcev1.GitRepository) string {
	s := obj.Spec
	switch {
	case s.Provider != "" && s.Provider != sourcev1.GitProviderGeneric:
		return "provider"
	case s.ServiceAccountName != "":
		return "serviceAccountName"
	case s.Reference != nil && s.Reference.SemVer != "":
		return "ref.semver"
	case s.Verification != nil:
		return "verify"
	case s.ProxySecretRef != nil:
		return "proxySecretRef"
	case s.RecurseSubmodules:
		return "recurseSubmodules"
	case len(s.Include) > 0:
		return "include"
	case len(s.SparseCheckout) > 0:
		return "sparseCheckout"
	}
	return ""
}
