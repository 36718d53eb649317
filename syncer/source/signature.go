package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// ImageVerification says who must have signed an image, or a chart that is one.
type ImageVerification struct {
	// Provider is cosign or notation.
	Provider string
	// Secret has public keys named *.pub for cosign, of which one suffices; or
	// trustpolicy.json and certificates named *.crt or *.pem for notation. Without
	// it cosign trusts certificates that Sigstore gave to one of the Identities.
	Secret map[string][]byte
	// Identities may have signed without a key. Without any, every signer is
	// accepted.
	Identities []SignerIdentity
	// TrustedRoot is a trusted_root.json to use instead of the public Sigstore.
	TrustedRoot []byte
}

// SignerIdentity has regular expressions for what a certificate says.
type SignerIdentity struct{ Issuer, Subject string }

// name of the provider as Flux has it in messages.
func (v ImageVerification) name() string {
	if v.Provider == "cosign" && v.Secret == nil {
		return "cosign keyless"
	}
	return v.Provider
}

// Bounds of what signatures may be.
const (
	maxSignatures     = 100
	maxSignatureBytes = 4 << 20
)

// Verify checks that an image is signed. It reports false without an error if
// the policy says that nobody has to look. What is verified is the digest, so a
// tag that is moved meanwhile does no harm.
func (i *Images) Verify(ctx context.Context, origin ImageOrigin, image Image, v ImageVerification) (verified bool, err error) {
	err = i.do(ctx, origin, ReasonVerificationFailed, func(ctx context.Context, r *registry) error {
		ctx = AllowNetwork(boundedAnswers(ctx, true))
		at := r.repo.Digest(image.Digest)
		var err error
		switch v.Provider {
		case "cosign":
			verified, err = true, i.cosign(ctx, r, at, v)
		case "notation":
			verified, err = notate(ctx, r, at, v)
		default:
			err = errors.New("spec.verify.provider is not one of cosign, notation")
		}
		if err != nil {
			return failf(ReasonVerificationFailed, "failed to verify the signature using provider '%s': %w", v.name(), said(err))
		}
		return nil
	})
	return verified && err == nil, err
}

// referrers lists what refers to an image: by the registry's own list, or by the
// tag that stands for it.
func (r *registry) referrers(ctx context.Context, at name.Digest) ([]v1.Descriptor, error) {
	index, err := remote.Referrers(at, remote.Reuse(r.puller), remote.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) > maxSignatures {
		return nil, failf(ReasonLimitExceeded, "more than %d manifests refer to the image", maxSignatures)
	}
	return manifest.Manifests, nil
}

// image with a digest or tag, which holds signatures.
func (r *registry) image(ctx context.Context, at name.Reference) (v1.Image, *v1.Manifest, error) {
	descriptor, err := r.puller.Get(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	if descriptor.MediaType != types.OCIManifestSchema1 && descriptor.MediaType != types.DockerManifestSchema2 {
		return nil, nil, fmt.Errorf("media type %q is not that of an image", short(string(descriptor.MediaType), 100))
	}
	img, err := descriptor.Image()
	if err != nil {
		return nil, nil, err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, nil, err
	}
	if len(manifest.Layers) > maxSignatures {
		return nil, nil, failf(ReasonLimitExceeded, "the image %s has more than %d layers", at, maxSignatures)
	}
	return img, manifest, nil
}

// small reads a layer as it is: nothing is inflated.
func small(img v1.Image, layer v1.Descriptor) ([]byte, error) {
	if layer.Size > maxSignatureBytes {
		return nil, failf(ReasonLimitExceeded, "a signature has %d bytes, more than the limit of %d", layer.Size, maxSignatureBytes)
	}
	content, err := img.LayerByDigest(layer.Digest)
	if err != nil {
		return nil, err
	}
	body, err := content.Compressed()
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var data bytes.Buffer
	// The library checks size and digest at the end.
	if _, err := io.Copy(&data, body); err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}
