package source

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/notaryproject/notation-core-go/revocation"
	"github.com/notaryproject/notation-core-go/revocation/crl"
	"github.com/notaryproject/notation-core-go/revocation/purpose"
	_ "github.com/notaryproject/notation-core-go/signature/cose" // envelopes of this kind
	_ "github.com/notaryproject/notation-core-go/signature/jws"  // and of this
	"github.com/notaryproject/notation-go"
	notationregistry "github.com/notaryproject/notation-go/registry"
	"github.com/notaryproject/notation-go/verifier"
	"github.com/notaryproject/notation-go/verifier/trustpolicy"
	"github.com/notaryproject/notation-go/verifier/truststore"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// trustPolicyFile is the key of a Secret.
const trustPolicyFile = "trustpolicy.json"

// signatureAttempts is the number of requests for signatures after which an image counts
// as not signed. It is Flux's.
const signatureAttempts = 3

// notate verifies an image by the trust policy and the certificates in the Secret. It
// returns false without an error if the policy skips the image or only logs the result.
func notate(ctx context.Context, r *registry, at name.Digest, v ImageVerification) (bool, error) {
	policy := &trustpolicy.Document{}
	data, ok := v.Secret[trustPolicyFile]
	if !ok {
		return false, fmt.Errorf("the Secret needs the key %s", trustPolicyFile)
	}
	if err := json.Unmarshal(data, policy); err != nil {
		return false, fmt.Errorf("%s of the Secret is not a trust policy in JSON", trustPolicyFile)
	}
	for i, statement := range policy.TrustPolicies {
		// The library refuses these options where they have no meaning.
		if statement.SignatureVerification.VerificationLevel == trustpolicy.LevelSkip.Name {
			policy.TrustPolicies[i].TrustStores, policy.TrustPolicies[i].TrustedIdentities = nil, nil
		}
	}
	trusted, err := readCertificates(v.Secret)
	if err != nil {
		return false, err
	}
	outside := transportTo(nil, r.guard.inner.Proxy)
	defer outside.CloseIdleConnections()
	options, err := revocations(outside)
	if err != nil {
		return false, err
	}
	by, err := verifier.NewWithOptions(policy, trusted, nil, options)
	if err != nil {
		return false, fmt.Errorf("cannot use %s of the Secret: %w", trustPolicyFile, err)
	}
	_, outcomes, err := notation.Verify(ctx, by, signatures{r}, notation.VerifyOptions{
		ArtifactReference: at.Name(), MaxSignatureAttempts: signatureAttempts,
	})
	if err != nil {
		return false, err
	}
	if len(outcomes) == 0 {
		return false, fmt.Errorf("no matching signatures were found for '%s'", at)
	}
	outcome := outcomes[0]
	if outcome.VerificationLevel.Name == trustpolicy.LevelSkip.Name {
		return false, nil
	}
	for _, result := range outcome.VerificationResults {
		if result.Error != nil && result.Type == trustpolicy.TypeAuthenticity {
			return false, nil
		}
	}
	return true, nil
}

// revocations asks the authorities of certificates, by a client of this package.
func revocations(outside http.RoundTripper) (verifier.VerifierOptions, error) {
	var options verifier.VerifierOptions
	lists, err := crl.NewHTTPFetcher(&http.Client{Transport: modest{inner: outside}, Timeout: 5 * time.Second})
	if err != nil {
		return options, err
	}
	check := func(of purpose.Purpose) (revocation.Validator, error) {
		return revocation.NewWithOptions(revocation.Options{
			OCSPHTTPClient: &http.Client{Transport: modest{inner: outside}, Timeout: 2 * time.Second}, CRLFetcher: lists, CertChainPurpose: of,
		})
	}
	if options.RevocationCodeSigningValidator, err = check(purpose.CodeSigning); err != nil {
		return options, err
	}
	options.RevocationTimestampingValidator, err = check(purpose.Timestamping)
	return options, err
}

// certificates is the trust store for each name that a policy gives.
type certificates []*x509.Certificate

func readCertificates(secret map[string][]byte) (certificates, error) {
	var all certificates
	for _, file := range slices.Sorted(maps.Keys(secret)) {
		if !strings.HasSuffix(file, ".crt") && !strings.HasSuffix(file, ".pem") {
			continue
		}
		raw := secret[file]
		if block, _ := pem.Decode(raw); block != nil {
			raw = block.Bytes
		}
		found, err := x509.ParseCertificates(raw)
		if err != nil {
			return nil, fmt.Errorf("%s of the Secret is not a certificate", file)
		}
		all = append(all, found...)
	}
	if len(all) == 0 {
		return nil, errors.New("the Secret has no certificate; it needs one under a name that ends in .crt or .pem")
	}
	return all, nil
}

// GetCertificates implements truststore.X509TrustStore.
func (c certificates) GetCertificates(context.Context, truststore.Type, string) ([]*x509.Certificate, error) {
	return c, nil
}

// signatures reads notation's signatures from a registry. It implements the library's
// Repository.
type signatures struct{ registry *registry }

func (s signatures) Resolve(ctx context.Context, reference string) (ocispec.Descriptor, error) {
	// The reference is a digest: size and type are read from the manifest, not from a
	// header.
	got, err := s.registry.puller.Get(ctx, s.registry.repo.Digest(reference))
	if err != nil {
		return ocispec.Descriptor{}, said(err)
	}
	return ocispec.Descriptor{MediaType: string(got.MediaType), Digest: digest.Digest(got.Digest.String()), Size: got.Size}, nil
}

func (s signatures) ListSignatures(ctx context.Context, image ocispec.Descriptor, visit func([]ocispec.Descriptor) error) error {
	found, err := s.registry.referrers(ctx, s.registry.repo.Digest(image.Digest.String()))
	if err != nil {
		return said(err)
	}
	var list []ocispec.Descriptor
	for _, d := range found {
		if d.ArtifactType == notationregistry.ArtifactTypeNotation {
			list = append(list, ocispec.Descriptor{MediaType: string(d.MediaType), Digest: digest.Digest(d.Digest.String()), Size: d.Size, ArtifactType: d.ArtifactType})
		}
	}
	return visit(list)
}

func (s signatures) FetchSignatureBlob(ctx context.Context, d ocispec.Descriptor) ([]byte, ocispec.Descriptor, error) {
	img, manifest, err := s.registry.image(ctx, s.registry.repo.Digest(d.Digest.String()))
	if err != nil {
		return nil, ocispec.Descriptor{}, said(err)
	}
	if len(manifest.Layers) != 1 {
		return nil, ocispec.Descriptor{}, fmt.Errorf("the manifest of a signature has %d layers, not one", len(manifest.Layers))
	}
	layer := manifest.Layers[0]
	data, err := small(img, layer)
	if err != nil {
		return nil, ocispec.Descriptor{}, said(err)
	}
	return data, ocispec.Descriptor{MediaType: string(layer.MediaType), Digest: digest.Digest(layer.Digest.String()), Size: layer.Size}, nil
}

func (s signatures) PushSignature(context.Context, string, []byte, ocispec.Descriptor, map[string]string) (blob, manifest ocispec.Descriptor, err error) {
	return blob, manifest, errors.New("signatures are only read")
}
