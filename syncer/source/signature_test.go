package source

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	dockerregistry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/notaryproject/notation-core-go/testhelper"
	"github.com/notaryproject/notation-go"
	notationregistry "github.com/notaryproject/notation-go/registry"
	"github.com/notaryproject/notation-go/signer"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/dsse"
)

const sigstoreBundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"

// pair is a key to sign with, and its public half in PEM.
func pair(t *testing.T) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := cryptoutils.MarshalPublicKeyToPEM(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return key, public
}

func signedBy(t *testing.T, key crypto.PrivateKey, data []byte) []byte {
	t.Helper()
	s, err := signature.LoadSigner(key, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := s.SignMessage(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return sig
}

// claim is what cosign signs for an image.
func claim(digest string) []byte {
	return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":"x"},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, digest)
}

// pushSignature puts a signature at the tag of an image, as cosign did before
// version 3.
func (d *docker) pushSignature(of string, payload []byte, annotations map[string]string) {
	d.t.Helper()
	img, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer: static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json"), Annotations: annotations,
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.push(strings.Replace(of, ":", "-", 1)+".sig", img)
}

func (d *docker) signOld(of, claimed string, key crypto.PrivateKey) {
	payload := claim(claimed)
	d.pushSignature(of, payload, map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signedBy(d.t, key, payload))})
}

// statement is what cosign 3 signs for an image.
func statement(digest string) []byte {
	return fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":"https://sigstore.dev/cosign/sign/v1","predicate":{}}`,
		strings.TrimPrefix(digest, "sha256:"))
}

// pushReferrer puts a bundle beside an image.
func (d *docker) pushReferrer(of v1.Image, mediaType types.MediaType, data []byte) {
	d.t.Helper()
	img, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mediaType), static.NewLayer(data, mediaType))
	if err != nil {
		d.t.Fatal(err)
	}
	digest, err1 := of.Digest()
	size, err2 := of.Size()
	if err := errors.Join(err1, err2); err != nil {
		d.t.Fatal(err)
	}
	img = mutate.Subject(img, v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: digest, Size: size}).(v1.Image)
	sum, err := img.Digest()
	if err != nil {
		d.t.Fatal(err)
	}
	d.push("referrer-"+sum.Hex[:12], img)
}

func envelope(t *testing.T, key crypto.PrivateKey, claimed string) json.RawMessage {
	t.Helper()
	inner, err := signature.LoadSigner(key, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	env, err := dsse.WrapSigner(inner, "application/vnd.in-toto+json").SignMessage(bytes.NewReader(statement(claimed)))
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func (d *docker) signBundle(of v1.Image, claimed string, key crypto.PrivateKey) {
	d.t.Helper()
	data, err := json.Marshal(map[string]any{
		"mediaType": sigstoreBundleType, "verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": "x"}},
		"dsseEnvelope": envelope(d.t, key, claimed),
	})
	if err != nil {
		d.t.Fatal(err)
	}
	d.pushReferrer(of, sigstoreBundleType, data)
}

func TestCosignKeys(t *testing.T) {
	key, public := pair(t)
	stranger, unknown := pair(t)
	secret := map[string][]byte{"a.pub": unknown, "b.pub": public, "README": []byte("x")}
	other := sumOf([]byte("another image"))
	bomb := tarball(t, tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: 100_000_000})
	for _, server := range []struct {
		name    string
		options []dockerregistry.Option
	}{{"Referrers", []dockerregistry.Option{dockerregistry.WithReferrersSupport(true)}}, {"Fallback", nil}} {
		for name, tc := range map[string]struct {
			reason string
			sign   func(d *docker, img v1.Image, digest string)
			secret map[string][]byte
			fails  string
			says   string
		}{
			"Old":    {"a signature at the tag", func(d *docker, _ v1.Image, digest string) { d.signOld(digest, digest, key) }, secret, "", ""},
			"Bundle": {"a bundle of cosign 3", func(d *docker, img v1.Image, digest string) { d.signBundle(img, digest, key) }, secret, "", ""},
			"Both": {"a bundle of somebody else beside a good signature", func(d *docker, img v1.Image, digest string) {
				d.signBundle(img, digest, stranger)
				d.signOld(digest, digest, key)
			}, map[string][]byte{"b.pub": public}, "", ""},
			"Others": {"what refers to the image and is no bundle", func(d *docker, img v1.Image, digest string) {
				d.pushReferrer(img, "application/spdx+json", []byte("{}"))
				d.pushReferrer(img, sigstoreBundleType, []byte("no bundle"))
				d.signBundle(img, digest, key)
			}, secret, "", ""},
			"None": {"nobody signed", func(*docker, v1.Image, string) {}, secret, ReasonVerificationFailed, "no signatures were found"},
			"Stranger": {"somebody else signed", func(d *docker, img v1.Image, digest string) {
				d.signOld(digest, digest, stranger)
				d.signBundle(img, digest, stranger)
			}, map[string][]byte{"b.pub": public}, ReasonVerificationFailed, "no matching signatures were found"},
			"Moved":    {"CVE-2026-22703: a good signature of another image at this tag", func(d *docker, _ v1.Image, digest string) { d.signOld(digest, other, key) }, secret, ReasonVerificationFailed, "no matching"},
			"MovedNew": {"the same with a bundle", func(d *docker, img v1.Image, _ string) { d.signBundle(img, other, key) }, secret, ReasonVerificationFailed, "no matching"},
			"Unsigned": {"a claim without a signature", func(d *docker, _ v1.Image, digest string) { d.pushSignature(digest, claim(digest), nil) }, secret, ReasonVerificationFailed, "no matching"},
			"Garbage": {"annotations that are none", func(d *docker, _ v1.Image, digest string) {
				d.pushSignature(digest, []byte("{"), map[string]string{"dev.cosignproject.cosign/signature": "%", "dev.sigstore.cosign/certificate": "x", "dev.sigstore.cosign/bundle": "{"})
			}, secret, ReasonVerificationFailed, ""},
			"Bomb": {"a bundle that inflates without end is not inflated", func(d *docker, img v1.Image, _ string) { d.pushReferrer(img, sigstoreBundleType, bomb) }, secret, ReasonVerificationFailed, ""},
			"Large": {"a bundle without end", func(d *docker, img v1.Image, _ string) {
				d.pushReferrer(img, sigstoreBundleType, make([]byte, maxSignatureBytes+1))
			}, secret, ReasonVerificationFailed, "bytes"},
			"NoKey":     {"a Secret without a key", func(d *docker, _ v1.Image, digest string) { d.signOld(digest, digest, key) }, map[string][]byte{"key": public}, ReasonVerificationFailed, ".pub"},
			"BrokenKey": {"a key that is none", func(d *docker, _ v1.Image, digest string) { d.signOld(digest, digest, key) }, map[string][]byte{"a.pub": []byte("s3cret")}, ReasonVerificationFailed, "a.pub"},
		} {
			t.Run(server.name+name, func(t *testing.T) {
				d := newDocker(t, httptest.NewServer, server.options...)
				img := image(t, nil, fluxLayer(t, map[string]string{"a": name}))
				digest := d.push("latest", img)
				tc.sign(d, img, digest)
				ok, err := NewImages(t.TempDir(), plenty, time.Now).Verify(t.Context(), d.origin(), Image{Revision: "latest@" + digest, Digest: digest}, ImageVerification{Provider: "cosign", Secret: tc.secret})
				if (tc.fails == "") != ok || (err != nil) != (tc.fails != "") || (err != nil && (ReasonOf(err) != tc.fails || !strings.Contains(err.Error(), tc.says))) {
					t.Errorf("%s: Verify() = %t, %v (%s), want %q %q", tc.reason, ok, err, ReasonOf(err), tc.fails, tc.says)
				}
				if err != nil && (len(err.Error()) > 1000 || strings.Contains(err.Error(), "s3cret")) {
					t.Errorf("%s: the error tells too much: %v", tc.reason, err)
				}
			})
		}
	}
}

func TestSignatureServerFails(t *testing.T) {
	_, public := pair(t)
	d := newDocker(t, httptest.NewServer)
	digest := d.push("latest", image(t, nil, fluxLayer(t, map[string]string{"a": "1"})))
	d.between(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, ".sig") {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return false
	})
	i, at := NewImages(t.TempDir(), plenty, time.Now), Image{Digest: digest}
	if ok, err := i.Verify(t.Context(), d.origin(), at, ImageVerification{Provider: "cosign", Secret: map[string][]byte{"a.pub": public}}); ok || ReasonOf(err) != ReasonVerificationFailed || !strings.Contains(err.Error(), "403") {
		t.Errorf("Verify() without access to signatures = %t, %v", ok, err)
	}
	if ok, err := i.Verify(t.Context(), d.origin(), at, ImageVerification{Provider: "x"}); ok || ReasonOf(err) != ReasonVerificationFailed {
		t.Errorf("Verify() with an unknown provider = %t, %v", ok, err)
	}
}

// TestSigstoreRoots: they are fetched when they are needed, once for many, and
// the old ones stay if there are no new ones.
func TestSigstoreRoots(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	fetches, down := 0, errors.New("the network is down")
	var fails error
	s := &sigstore{now: func() time.Time { return now }, fetch: func(context.Context) (root.TrustedMaterial, error) {
		fetches++
		if fails != nil {
			return nil, fails
		}
		return &root.TrustedRoot{}, nil
	}}
	step := func(reason string, after time.Duration, err error, wantFetches int, want error) {
		t.Helper()
		now, fails = now.Add(after), err
		if got, err := s.get(t.Context()); !errors.Is(err, want) || (got == nil) != (want != nil) || fetches != wantFetches {
			t.Errorf("%s: get() = %v, %v after %d fetches, want %v after %d", reason, got, err, fetches, want, wantFetches)
		}
	}
	step("the first fails", 0, down, 1, down)
	step("not asked again at once", rootsRetry/2, nil, 1, down)
	step("a minute later it is", rootsRetry, nil, 2, nil)
	step("they are kept", rootsFresh-1, down, 2, nil)
	step("a day later they are fetched, and the old ones stay", 1, down, 3, nil)
	step("not asked again at once", 1, nil, 3, nil)
	step("and then they are new", rootsRetry, nil, 4, nil)

	// Many ask at once; one who has no time does not wait.
	started, release := make(chan struct{}), make(chan struct{})
	s = &sigstore{now: time.Now, fetch: func(context.Context) (root.TrustedMaterial, error) {
		fetches++
		close(started)
		<-release
		panic("what was sent")
	}}
	fetches = 0
	var waiting sync.WaitGroup
	for range 5 {
		waiting.Go(func() {
			if _, err := s.get(t.Context()); err == nil {
				t.Error("get() of what cannot be read succeeds")
			}
		})
	}
	<-started
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.get(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("get() without time = %v", err)
	}
	close(release)
	waiting.Wait()
	if fetches != 1 {
		t.Errorf("%d fetches for many", fetches)
	}
}

func trustPolicy(level string) []byte {
	return fmt.Appendf(nil, `{"version":"1.0","trustPolicies":[{"name":"all","registryScopes":["*"],"signatureVerification":{"level":%q},"trustStores":["ca:any"],"trustedIdentities":["*"]}]}`, level)
}

// notarySignatures puts what notation signs into a registry. It does nothing else.
type notarySignatures struct {
	notationregistry.Repository
	d *docker
}

func (s notarySignatures) Resolve(_ context.Context, sum string) (ocispec.Descriptor, error) {
	ref, err := name.NewDigest(s.d.host + "/org/app@" + sum)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	got, err := remote.Head(ref)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{MediaType: string(got.MediaType), Digest: digest.Digest(got.Digest.String()), Size: got.Size}, nil
}

// PushSignature pushes a manifest that refers to the image, as notation does.
func (s notarySignatures) PushSignature(_ context.Context, mediaType string, blob []byte, subject ocispec.Descriptor, annotations map[string]string) (envelope, manifest ocispec.Descriptor, err error) {
	s.d.t.Helper()
	sum, err := v1.NewHash(subject.Digest.String())
	if err != nil {
		return envelope, manifest, err
	}
	img, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), notationregistry.ArtifactTypeNotation),
		static.NewLayer(blob, types.MediaType(mediaType)))
	if err != nil {
		return envelope, manifest, err
	}
	img = mutate.Annotations(img, annotations).(v1.Image)
	img = mutate.Subject(img, v1.Descriptor{MediaType: types.MediaType(subject.MediaType), Digest: sum, Size: subject.Size}).(v1.Image)
	if sum, err = img.Digest(); err != nil {
		return envelope, manifest, err
	}
	s.d.push("signature-"+sum.Hex[:12], img)
	return envelope, manifest, nil
}

func TestNotation(t *testing.T) {
	owner := testhelper.GetRSASelfSignedSigningCertTuple("owner")
	stranger := testhelper.GetRSASelfSignedSigningCertTuple("stranger")
	inPEM := func(c *x509.Certificate) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
	}
	sign := func(t *testing.T, d *docker, digest string, by testhelper.RSACertTuple, mediaType string) {
		t.Helper()
		s, err := signer.NewGenericSigner(by.PrivateKey, []*x509.Certificate{by.Cert})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := notation.Sign(t.Context(), s, notarySignatures{d: d}, notation.SignOptions{
			SignerSignOptions: notation.SignerSignOptions{SignatureMediaType: mediaType}, ArtifactReference: d.host + "/org/app@" + digest,
		}); err != nil {
			t.Fatal(err)
		}
	}
	const jws, cose = "application/jose+json", "application/cose"
	for _, server := range []struct {
		name    string
		options []dockerregistry.Option
	}{{"Referrers", []dockerregistry.Option{dockerregistry.WithReferrersSupport(true)}}, {"Fallback", nil}} {
		for name, tc := range map[string]struct {
			reason string
			by     []testhelper.RSACertTuple
			kind   string
			secret map[string][]byte
			want   bool
			fails  string
		}{
			"Signed":   {"the ordinary case", []testhelper.RSACertTuple{owner}, jws, map[string][]byte{"trustpolicy.json": trustPolicy("strict"), "ca.crt": inPEM(owner.Cert)}, true, ""},
			"COSE":     {"another envelope", []testhelper.RSACertTuple{owner}, cose, map[string][]byte{"trustpolicy.json": trustPolicy("strict"), "ca.pem": inPEM(owner.Cert)}, true, ""},
			"Second":   {"one of two is good", []testhelper.RSACertTuple{stranger, owner}, jws, map[string][]byte{"trustpolicy.json": trustPolicy("strict"), "ca.crt": inPEM(owner.Cert)}, true, ""},
			"None":     {"nobody signed", nil, jws, map[string][]byte{"trustpolicy.json": trustPolicy("strict"), "ca.crt": inPEM(owner.Cert)}, false, ReasonVerificationFailed},
			"Stranger": {"somebody else signed", []testhelper.RSACertTuple{stranger}, jws, map[string][]byte{"trustpolicy.json": trustPolicy("strict"), "ca.crt": inPEM(owner.Cert)}, false, ReasonVerificationFailed},
			"Audit":    {"who signed is only logged", []testhelper.RSACertTuple{stranger}, jws, map[string][]byte{"trustpolicy.json": trustPolicy("audit"), "ca.crt": inPEM(owner.Cert)}, false, ""},
			"Skip":     {"nobody has to look", nil, jws, map[string][]byte{"trustpolicy.json": trustPolicy("skip"), "ca.crt": inPEM(owner.Cert)}, false, ""},
			"NoPolicy": {"half a Secret", []testhelper.RSACertTuple{owner}, jws, map[string][]byte{"ca.crt": inPEM(owner.Cert)}, false, ReasonVerificationFailed},
			"Broken":   {"a policy that is none", []testhelper.RSACertTuple{owner}, jws, map[string][]byte{"trustpolicy.json": []byte("s3cret"), "ca.crt": inPEM(owner.Cert)}, false, ReasonVerificationFailed},
			"Level":    {"a level that is none", []testhelper.RSACertTuple{owner}, jws, map[string][]byte{"trustpolicy.json": trustPolicy("x"), "ca.crt": inPEM(owner.Cert)}, false, ReasonVerificationFailed},
			"NoCert":   {"no certificates", []testhelper.RSACertTuple{owner}, jws, map[string][]byte{"trustpolicy.json": trustPolicy("strict")}, false, ReasonVerificationFailed},
			"BadCert":  {"a certificate that is none", []testhelper.RSACertTuple{owner}, jws, map[string][]byte{"trustpolicy.json": trustPolicy("strict"), "ca.crt": []byte("s3cret")}, false, ReasonVerificationFailed},
			"NoSecret": {"no Secret", []testhelper.RSACertTuple{owner}, jws, nil, false, ReasonVerificationFailed},
		} {
			t.Run(server.name+name, func(t *testing.T) {
				d := newDocker(t, httptest.NewServer, server.options...)
				digest := d.push("latest", image(t, nil, fluxLayer(t, map[string]string{"a": name})))
				for _, by := range tc.by {
					sign(t, d, digest, by, tc.kind)
				}
				ok, err := NewImages(t.TempDir(), plenty, time.Now).Verify(t.Context(), d.origin(), Image{Digest: digest}, ImageVerification{Provider: "notation", Secret: tc.secret})
				if ok != tc.want || (err != nil) != (tc.fails != "") || (err != nil && ReasonOf(err) != tc.fails) {
					t.Errorf("%s: Verify() = %t, %v, want %t %q", tc.reason, ok, err, tc.want, tc.fails)
				}
				if err != nil && strings.Contains(err.Error(), "s3cret") {
					t.Errorf("%s: the Secret is in %v", tc.reason, err)
				}
			})
		}
	}
}
