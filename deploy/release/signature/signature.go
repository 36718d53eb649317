// Package signature signs images and files with a key, in the way that the cosign command
// line does since version 3: a bundle of Sigstore, kept as what refers to the image.
//
// It keeps true: what has a good signature of the key is not signed again, so a release
// can be repeated. A manifest is signed by its digest, never by its tag. No service of
// Sigstore is asked: a signature by key has no entry in a transparency log, and who
// verifies it says so.
package signature

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/sigstore/cosign/v3/pkg/cosign"
	cosignbundle "github.com/sigstore/cosign/v3/pkg/cosign/bundle"
	ociremote "github.com/sigstore/cosign/v3/pkg/oci/remote"
	"github.com/sigstore/cosign/v3/pkg/types"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/dsse"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cascade-gitops/cascade/deploy/release/image"
)

// Key signs.
type Key struct{ signer signature.SignerVerifier }

// ReadKey reads a private key as cosign generate-key-pair writes it.
func ReadKey(file string, password []byte) (Key, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return Key{}, fmt.Errorf("cannot read key: %w", err)
	}
	signer, err := cosign.LoadPrivateKey(pem, password, nil)
	if err != nil {
		return Key{}, fmt.Errorf("cannot read key %s: %w; its password is taken from COSIGN_PASSWORD", file, err)
	}
	public, err := signer.PublicKey()
	if err != nil {
		return Key{}, fmt.Errorf("cannot read key %s: %w", file, err)
	}
	switch public.(type) {
	case *ecdsa.PublicKey, *rsa.PublicKey:
		return Key{signer}, nil
	default:
		return Key{}, fmt.Errorf("cannot use key %s: it is a %T; who verifies by spec.verify of a source expects ECDSA or RSA", file, public)
	}
}

// Public is the public half in PEM, for those who verify.
func (k Key) Public() ([]byte, error) {
	public, err := k.signer.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("cannot read public key: %w", err)
	}
	return cryptoutils.MarshalPublicKeyToPEM(public)
}

// Image signs a manifest in a registry, unless it has a good signature of this key. It
// reports whether it did.
func (k Key) Image(ctx context.Context, at name.Digest) (bool, error) {
	if err := Verify(ctx, at, k.signer); err == nil {
		return false, nil
	} else if ctx.Err() != nil {
		return false, ctx.Err()
	}
	payload, err := statement(at)
	if err != nil {
		return false, fmt.Errorf("cannot sign %s: %w", at, err)
	}
	envelope, err := dsse.WrapSigner(k.signer, types.IntotoPayloadType).SignMessage(bytes.NewReader(payload))
	if err != nil {
		return false, fmt.Errorf("cannot sign %s: %w", at, err)
	}
	pem, err1 := k.Public()
	public, err2 := k.signer.PublicKey()
	if err := errors.Join(err1, err2); err != nil {
		return false, fmt.Errorf("cannot sign %s: %w", at, err)
	}
	signed, err := cosignbundle.MakeNewBundle(public, nil, payload, envelope, pem, nil)
	if err != nil {
		return false, fmt.Errorf("cannot bundle the signature of %s: %w", at, err)
	}
	requests := ociremote.WithRemoteOptions(image.Options(ctx)...)
	err = ociremote.WriteAttestationNewBundleFormat(at, signed, types.CosignSignPredicateType, requests)
	if err != nil {
		return false, fmt.Errorf("cannot push the signature of %s: %w", at, err)
	}
	return true, nil
}

// statement is what is signed: that there is a manifest with this digest.
func statement(at name.Digest) ([]byte, error) {
	digest, err := v1.NewHash(at.DigestStr())
	if err != nil {
		return nil, err
	}
	return protojson.Marshal(&intoto.Statement{
		Type:          intoto.StatementTypeUri,
		Subject:       []*intoto.ResourceDescriptor{{Digest: map[string]string{digest.Algorithm: digest.Hex}}},
		PredicateType: types.CosignSignPredicateType,
		Predicate:     &structpb.Struct{},
	})
}

// Verify looks for a good signature of a manifest in a registry, as cosign verify --key
// does.
func Verify(ctx context.Context, at name.Digest, key signature.Verifier) error {
	bundles, digest, err := cosign.GetBundles(ctx, at, []ociremote.Option{ociremote.WithRemoteOptions(image.Options(ctx)...)})
	if err != nil {
		return fmt.Errorf("cannot find signatures of %s: %w", at, err)
	}
	sum, err := hex.DecodeString(digest.Hex)
	if err != nil {
		return fmt.Errorf("cannot verify %s: %w", at, err)
	}
	var problems []error
	for _, b := range bundles {
		err := good(ctx, b, verify.WithArtifactDigest(digest.Algorithm, sum), key)
		if err == nil {
			return nil
		}
		problems = append(problems, err)
	}
	return fmt.Errorf("cannot verify %s: %w", at, errors.Join(problems...))
}

func good(ctx context.Context, b *bundle.Bundle, artifact verify.ArtifactPolicyOption, key signature.Verifier) error {
	_, err := cosign.VerifyNewBundle(ctx, &cosign.CheckOpts{
		SigVerifier: key, NewBundleFormat: true, Offline: true, IgnoreTlog: true, ClaimVerifier: cosign.IntotoSubjectClaimVerifier,
	}, artifact, b)
	return err
}

// File signs a file, and returns the bundle that cosign verify-blob reads.
func (k Key) File(file string) ([]byte, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot sign file: %w", err)
	}
	sig, err := k.signer.SignMessage(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("cannot sign %s: %w", file, err)
	}
	pem, err := k.Public()
	if err != nil {
		return nil, fmt.Errorf("cannot sign %s: %w", file, err)
	}
	hint := sha256.Sum256(pem)
	b, err := cosignbundle.MakeProtobufBundle(hex.EncodeToString(hint[:]), nil, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot bundle the signature of %s: %w", file, err)
	}
	digest := sha256.Sum256(content)
	b.Content = &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
		MessageDigest: &protocommon.HashOutput{Algorithm: protocommon.HashAlgorithm_SHA2_256, Digest: digest[:]},
		Signature:     sig,
	}}
	return protojson.Marshal(b)
}

// VerifyFile checks the bundle of a file, as cosign verify-blob --key does.
func VerifyFile(ctx context.Context, file string, signed []byte, key signature.Verifier) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("cannot verify file: %w", err)
	}
	b := &bundle.Bundle{}
	if err := b.UnmarshalJSON(signed); err != nil {
		return fmt.Errorf("cannot read the bundle of %s: %w", file, err)
	}
	if err := good(ctx, b, verify.WithArtifact(bytes.NewReader(content)), key); err != nil {
		return fmt.Errorf("cannot verify %s: %w", file, err)
	}
	return nil
}

// PublicKey reads the public half of a key.
func PublicKey(file string) (signature.Verifier, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read public key: %w", err)
	}
	public, err := cryptoutils.UnmarshalPEMToPublicKey(pem)
	if err != nil {
		return nil, fmt.Errorf("cannot read public key %s: %w", file, err)
	}
	return signature.LoadVerifier(public, crypto.SHA256)
}
