package fetch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// Buckets reconciles Bucket objects into snapshots.
type Buckets struct {
	*Sources
	Buckets *source.Buckets
}

// SetupWithManager registers the reconciler.
func (r *Buckets) SetupWithManager(mgr ctrl.Manager, concurrent int) error {
	_, complete := r.setup(mgr, sourcev1.BucketKind, &sourcev1.Bucket{}, r, concurrent)
	return complete()
}

// Reconcile fetches one bucket.
func (r *Buckets) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return reconcileSource(ctx, r.Sources, r, &sourcev1.Bucket{}, req.NamespacedName)
}

func (r *Buckets) describe(obj *sourcev1.Bucket) sourceFields {
	return sourceFields{
		kind: sourcev1.BucketKind, suspend: obj.Spec.Suspend,
		artifact: &obj.Status.Artifact, observed: &obj.Status.ObservedGeneration, handled: &obj.Status.LastHandledReconcileAt, url: &obj.Status.URL,
		asMade: func() { obj.Spec.Ignore = obj.Status.ObservedIgnore },
	}
}

func (r *Buckets) timeout(_ context.Context, obj *sourcev1.Bucket) time.Duration {
	return timeoutOf(obj.Spec.Timeout)
}

// pin has nothing to do: a bucket has what it has.
func (r *Buckets) pin(*sourcev1.Bucket, *meta.Artifact) {}

// datable refuses all: a bucket has what it has.
func (r *Buckets) datable(*sourcev1.Bucket) error {
	return errors.New("a Bucket has no older revisions; use a GitRepository or an OCIRepository")
}

// forget has nothing to do: what is kept goes with the last snapshot.
func (r *Buckets) forget(source.Key) {}

func (r *Buckets) fetch(ctx context.Context, key source.Key, obj *sourcev1.Bucket) (*fetched, *failure) {
	origin, err := r.origin(ctx, key, obj)
	var snapshot *source.Snapshot
	var files int
	if err == nil {
		snapshot, err = r.Buckets.Fetch(ctx, origin, obj.Spec.Ignore, r.Snapshots.Get(key))
	}
	if err == nil {
		files, err = snapshot.Files()
	}
	if err != nil {
		reason := source.ReasonOf(err)
		return nil, &failure{
			condition: sourcev1.FetchFailedCondition, err: err,
			stalls: reason == source.ReasonURLInvalid || reason == source.ReasonInvalidSTS || reason == source.ReasonInvalidProvider,
		}
	}
	status.RemoveCondition(obj, sourcev1.FetchFailedCondition)
	return &fetched{
		snapshot: snapshot,
		reason:   meta.SucceededReason, message: fmt.Sprintf("stored artifact: revision '%s'", snapshot.Revision),
		eventReason: reasonNewArtifact, event: fmt.Sprintf("stored artifact with %d fetched files from '%s' bucket", files, obj.Spec.BucketName),
		observe: func() { obj.Status.ObservedIgnore = obj.Spec.Ignore },
	}, nil
}

// origin gathers what a bucket is read with: the Secret, or else what an STS or
// the cloud gives to the service account of the object or the agent.
func (r *Buckets) origin(ctx context.Context, key source.Key, obj *sourcev1.Bucket) (source.BucketOrigin, error) {
	spec := obj.Spec
	origin := source.BucketOrigin{
		Provider: spec.Provider, Endpoint: spec.Endpoint, Bucket: spec.BucketName, Region: spec.Region, Prefix: spec.Prefix, Insecure: spec.Insecure,
		Workload: &source.Workload{Logins: r.Logins, ServiceAccount: spec.ServiceAccountName, Client: uncached{r.Client, r.Reader}, Key: key},
	}
	read := func(ref *meta.LocalObjectReference) (map[string][]byte, error) {
		if ref == nil {
			return nil, nil
		}
		return r.secret(ctx, obj.Namespace, ref.Name, source.ReasonAuthenticationFailed)
	}
	var err error
	if origin.Proxy, err = r.proxy(ctx, obj.Namespace, spec.ProxySecretRef); err != nil {
		return origin, err
	}
	if origin.Secret, err = read(spec.SecretRef); err != nil {
		return origin, err
	}
	if origin.Certificates, err = read(spec.CertSecretRef); err != nil || spec.STS == nil {
		return origin, err
	}
	origin.STS = &source.BucketSTS{Provider: spec.STS.Provider, Endpoint: spec.STS.Endpoint}
	if origin.STS.Secret, err = read(spec.STS.SecretRef); err != nil {
		return origin, err
	}
	origin.STS.Certificates, err = read(spec.STS.CertSecretRef)
	return origin, err
}
