package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// OCIRepositories reconciles OCIRepository objects into snapshots.
type OCIRepositories struct {
	*Sources
	Images *source.Images

	// signed has by source.Key what was found to be signed last, as signedImage. The status does not tell it: its
	// condition may be about an image that could not be fetched after that, and the artifact of before may be unsigned.
	signed sync.Map
}

// signedImage is an image that is signed as a generation of an object asks for.
type signedImage struct {
	uid        types.UID
	generation int64
	revision   string
}

// SetupWithManager registers the reconciler.
func (r *OCIRepositories) SetupWithManager(mgr ctrl.Manager, concurrent int) error {
	_, complete := r.setup(mgr, sourcev1.OCIRepositoryKind, &sourcev1.OCIRepository{}, r, concurrent)
	return complete()
}

// Reconcile fetches one repository.
func (r *OCIRepositories) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return reconcileSource(ctx, r.Sources, r, &sourcev1.OCIRepository{}, req.NamespacedName)
}

func (r *OCIRepositories) describe(obj *sourcev1.OCIRepository) sourceFields {
	return sourceFields{
		kind: sourcev1.OCIRepositoryKind, suspend: obj.Spec.Suspend,
		artifact: &obj.Status.Artifact, observed: &obj.Status.ObservedGeneration, handled: &obj.Status.LastHandledReconcileAt, url: &obj.Status.URL,
		asMade: func() {
			obj.Spec.Ignore, obj.Spec.LayerSelector = obj.Status.ObservedIgnore, obj.Status.ObservedLayerSelector
		},
	}
}

func (r *OCIRepositories) timeout(_ context.Context, obj *sourcev1.OCIRepository) time.Duration {
	return timeoutOf(obj.Spec.Timeout)
}

// forget has no image to drop: images go with the last snapshot.
func (r *OCIRepositories) forget(key source.Key) { r.signed.Delete(key) }

// pin names the digest.
func (r *OCIRepositories) pin(obj *sourcev1.OCIRepository, artifact *meta.Artifact) {
	obj.Spec.Reference = &sourcev1.OCIRepositoryRef{Digest: contentOf(artifact.Revision)}
}

// datable has nothing to refuse: a digest says it all.
func (r *OCIRepositories) datable(*sourcev1.OCIRepository) error { return nil }

func (r *OCIRepositories) fetch(ctx context.Context, key source.Key, obj *sourcev1.OCIRepository) (*fetched, *failure) {
	failed := func(err error) (*fetched, *failure) {
		return nil, &failure{condition: sourcev1.FetchFailedCondition, err: err, stalls: source.ReasonOf(err) == source.ReasonURLInvalid}
	}
	origin, err := r.imageOrigin(ctx, key, registryAccess{
		url: obj.Spec.URL, provider: obj.Spec.Provider, secret: obj.Spec.SecretRef, account: obj.Spec.ServiceAccountName,
		certificates: obj.Spec.CertSecretRef, proxy: obj.Spec.ProxySecretRef, insecure: obj.Spec.Insecure,
	})
	if err != nil {
		return failed(err)
	}
	image, err := r.Images.Resolve(ctx, origin, imageReference(obj), obj.GetLayerMediaType())
	if err != nil {
		return failed(err)
	}
	if f := r.verify(ctx, key, obj, origin, image); f != nil {
		return nil, f
	}
	snapshot, err := r.Images.Fetch(ctx, origin, image, source.ImageOptions{
		MediaType: obj.GetLayerMediaType(), Copy: obj.GetLayerOperation() == sourcev1.OCILayerCopy, Ignore: obj.Spec.Ignore,
	}, r.Snapshots.Get(key))
	if err != nil {
		return failed(err)
	}
	status.RemoveCondition(obj, sourcev1.FetchFailedCondition)
	event := fmt.Sprintf("stored artifact with revision '%s' from '%s'", snapshot.Revision, obj.Spec.URL)
	if from := snapshot.Metadata["org.opencontainers.image.source"]; from != "" && snapshot.OriginRevision != "" {
		event += fmt.Sprintf(", origin source '%s', origin revision '%s'", from, snapshot.OriginRevision)
	}
	return &fetched{
		snapshot: snapshot,
		reason:   meta.SucceededReason, message: fmt.Sprintf("stored artifact for digest '%s'", snapshot.Revision),
		eventReason: reasonNewArtifact, event: event,
		observe: func() {
			obj.Status.ObservedIgnore = obj.Spec.Ignore
			obj.Status.ObservedLayerSelector = obj.Spec.LayerSelector
		},
	}, nil
}

// verify checks the signature of an image that is new, or that was not found to
// be signed, or after a change of the object or a restart. What has a digest does
// not change.
func (r *OCIRepositories) verify(ctx context.Context, key source.Key, obj *sourcev1.OCIRepository, origin source.ImageOrigin, image source.Image) *failure {
	spec := obj.Spec.Verify
	if spec == nil {
		status.RemoveCondition(obj, sourcev1.SourceVerifiedCondition)
		return nil
	}
	asked := signedImage{obj.UID, obj.Generation, image.Revision}
	if last, ok := r.signed.Load(key); !ok || last != asked {
		r.signed.Delete(key)
		signed, err := r.checkSignature(ctx, r.Images, obj.Namespace, spec, origin, image)
		if err != nil {
			return &failure{condition: sourcev1.SourceVerifiedCondition, err: err}
		}
		if !signed {
			status.RemoveCondition(obj, sourcev1.SourceVerifiedCondition)
			return nil
		}
		r.signed.Store(key, asked)
	}
	r.verified(ctx, obj, fmt.Sprintf("verified signature of revision %s", image.Revision))
	return nil
}

// checkSignature is an error if an image is not signed as it has to be. It is
// false if the policy for it asks for nothing.
func (s *Sources) checkSignature(ctx context.Context, images *source.Images, namespace string, spec *sourcev1.OCIRepositoryVerification, origin source.ImageOrigin, image source.Image) (bool, error) {
	want := source.ImageVerification{Provider: spec.Provider}
	for _, match := range spec.MatchOIDCIdentity {
		want.Identities = append(want.Identities, source.SignerIdentity{Issuer: match.Issuer, Subject: match.Subject})
	}
	var err error
	if ref := spec.SecretRef; ref != nil {
		if want.Secret, err = s.secret(ctx, namespace, ref.Name, sourcev1.VerificationError); err != nil {
			return false, err
		}
		if want.Secret == nil {
			want.Secret = map[string][]byte{} // it has no key, which is not the same as no Secret
		}
	}
	if ref := spec.TrustedRootSecretRef; ref != nil {
		secret, err := s.secret(ctx, namespace, ref.Name, sourcev1.VerificationError)
		if err != nil {
			return false, err
		}
		if want.TrustedRoot = secret[trustedRootKey]; len(want.TrustedRoot) == 0 {
			return false, &source.Error{
				Reason: sourcev1.VerificationError,
				Err:    fmt.Errorf("failed to read trusted root from secret '%s/%s': it has no key %s", namespace, ref.Name, trustedRootKey),
			}
		}
	}
	return images.Verify(ctx, origin, image, want)
}

// trustedRootKey is the key of a Secret with a trusted root of Sigstore.
const trustedRootKey = "trusted_root.json"

func imageReference(obj *sourcev1.OCIRepository) source.ImageReference {
	ref := obj.Spec.Reference
	if ref == nil {
		return source.ImageReference{}
	}
	return source.ImageReference{Tag: ref.Tag, SemVer: ref.SemVer, SemVerFilter: ref.SemverFilter, Digest: ref.Digest}
}

// registryAccess is what an object says of the way to a registry.
type registryAccess struct {
	url, provider               string
	secret, certificates, proxy *meta.LocalObjectReference
	account                     string
	insecure                    bool
}

// imageOrigin gathers what a registry is read with: the Secrets that the object
// and its service account name, or else what the provider gives.
func (s *Sources) imageOrigin(ctx context.Context, key source.Key, a registryAccess) (source.ImageOrigin, error) {
	origin := source.ImageOrigin{URL: a.url, Insecure: a.insecure}
	var err error
	if origin.Proxy, err = s.proxy(ctx, key.Namespace, a.proxy); err != nil {
		return origin, err
	}
	if ref := a.certificates; ref != nil {
		if origin.Certificates, err = s.secret(ctx, key.Namespace, ref.Name, source.ReasonAuthenticationFailed); err != nil {
			return origin, err
		}
	}
	secrets, err := s.pullSecrets(ctx, key.Namespace, a.secret, a.account)
	if err != nil {
		return origin, err
	}
	for _, secret := range secrets {
		origin.Secrets = append(origin.Secrets, secret.Data)
	}
	if len(secrets) > 0 || a.provider == "" || a.provider == sourcev1.GenericOCIProvider {
		return origin, nil
	}
	origin.Login, err = s.Logins.Registry(ctx, a.provider, a.url, a.account, source.Way{Proxy: origin.Proxy, Insecure: a.insecure, Certificates: origin.Certificates}, uncached{s.Client, s.Reader}, key)
	if err != nil && !errors.As(err, new(*source.Error)) {
		err = &source.Error{Reason: source.ReasonAuthenticationFailed, Err: err}
	}
	return origin, err
}
