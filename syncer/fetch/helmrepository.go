package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	units "github.com/docker/go-units"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/chart"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// HelmRepositories reconciles HelmRepository objects into indexes. One of type
// oci is only looked up by charts: it has no status.
type HelmRepositories struct {
	*Sources
	Indexes *chart.Indexes
}

// SetupWithManager registers the reconciler.
func (r *HelmRepositories) SetupWithManager(mgr ctrl.Manager, concurrent int) error {
	_, complete := r.setup(mgr, sourcev1.HelmRepositoryKind, &sourcev1.HelmRepository{}, r, concurrent)
	return complete()
}

// Reconcile fetches the index of one repository.
func (r *HelmRepositories) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obj := &sourcev1.HelmRepository{}
	if err := r.Client.Get(ctx, req.NamespacedName, obj); err == nil && obj.Spec.Type == sourcev1.HelmRepositoryTypeOCI {
		return ctrl.Result{}, r.clear(ctx, obj)
	}
	return reconcileSource(ctx, r.Sources, r, obj, req.NamespacedName)
}

// clear takes off what a repository has of the time when it had an index.
func (r *HelmRepositories) clear(ctx context.Context, obj *sourcev1.HelmRepository) error {
	if obj.Spec.Suspend && obj.DeletionTimestamp.IsZero() {
		return nil
	}
	key := source.Key{Kind: sourcev1.HelmRepositoryKind, NamespacedName: client.ObjectKeyFromObject(obj)}
	r.forget(key)
	if err := r.Sources.forget(key); err != nil {
		return err
	}
	before := obj.DeepCopy()
	// What a CRD defaults is not worth a write, and would be set again.
	blank := sourcev1.HelmRepositoryStatus{ObservedGeneration: -1}
	if !equality.Semantic.DeepEqual(obj.Status, blank) && !equality.Semantic.DeepEqual(obj.Status, sourcev1.HelmRepositoryStatus{}) {
		obj.Status = sourcev1.HelmRepositoryStatus{}
		if err := status.Patch(ctx, r.Client, before, obj, status.SourceManager); err != nil {
			return err
		}
	}
	return r.release(ctx, obj)
}

func (r *HelmRepositories) describe(obj *sourcev1.HelmRepository) sourceFields {
	return sourceFields{
		kind: sourcev1.HelmRepositoryKind, suspend: obj.Spec.Suspend,
		artifact: &obj.Status.Artifact, observed: &obj.Status.ObservedGeneration, handled: &obj.Status.LastHandledReconcileAt, url: &obj.Status.URL,
	}
}

func (r *HelmRepositories) timeout(_ context.Context, obj *sourcev1.HelmRepository) time.Duration {
	return timeoutOf(obj.Spec.Timeout)
}

// pin is not asked: nobody applies an index.
func (r *HelmRepositories) pin(*sourcev1.HelmRepository, *meta.Artifact) {}

// datable is not asked: nobody retains an index.
func (r *HelmRepositories) datable(*sourcev1.HelmRepository) error { return nil }

func (r *HelmRepositories) forget(key source.Key) { r.Indexes.Forget(key) }

func (r *HelmRepositories) fetch(ctx context.Context, key source.Key, obj *sourcev1.HelmRepository) (*fetched, *failure) {
	repository, err := r.repository(ctx, obj)
	var index *chart.Index
	if err == nil {
		index, err = r.Indexes.Fetch(ctx, key, repository)
	}
	if err != nil {
		return nil, &failure{condition: sourcev1.FetchFailedCondition, err: err, stalls: source.ReasonOf(err) == source.ReasonURLInvalid}
	}
	return &fetched{
		file:   &indexFile{name: index.File(), revision: index.Revision, digest: index.Digest, open: func() (io.Reader, error) { return index.Artifact(), nil }},
		reason: meta.SucceededReason, message: fmt.Sprintf("stored artifact: revision '%s'", index.Revision),
		eventReason: reasonNewArtifact, event: fmt.Sprintf("stored fetched index of size %s from '%s'", units.HumanSize(float64(index.Size)), source.PublicURL(repository.URL)),
	}, nil
}

// repository gathers what a repository is read with.
func (s *Sources) repository(ctx context.Context, obj *sourcev1.HelmRepository) (chart.Repository, error) {
	repository := chart.Repository{URL: obj.Spec.URL, PassCredentials: obj.Spec.PassCredentials, Timeout: timeoutOf(obj.Spec.Timeout)}
	var err error
	if ref := obj.Spec.SecretRef; ref != nil {
		if repository.Secret, err = s.secret(ctx, obj.Namespace, ref.Name, source.ReasonAuthenticationFailed); err != nil {
			return repository, err
		}
	}
	if ref := obj.Spec.CertSecretRef; ref != nil {
		if repository.Certificate, err = s.secret(ctx, obj.Namespace, ref.Name, source.ReasonAuthenticationFailed); err != nil {
			return repository, err
		}
	}
	if repository.URL, err = chart.NormalizeURL(obj.Spec.URL); err != nil {
		return repository, err
	}
	if repository.URL == "" {
		err = &source.Error{Reason: source.ReasonURLInvalid, Err: errors.New("cannot use spec.url: it is empty")}
	}
	return repository, err
}
