package signature

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sigstore/cosign/v3/pkg/cosign"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	sigs "github.com/sigstore/sigstore/pkg/signature"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// pair is a key in a file, and its public half.
type pair struct {
	file   string
	public []byte
	key    Key
}

func newPair(t *testing.T, password string) pair {
	t.Helper()
	keys, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return []byte(password), nil })
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cosign.key")
	if err := os.WriteFile(file, keys.PrivateBytes, 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := ReadKey(file, []byte(password))
	if err != nil {
		t.Fatal(err)
	}
	return pair{file, keys.PublicBytes, key}
}

func (p pair) verifier(t *testing.T) sigs.Verifier {
	t.Helper()
	key, err := cryptoutils.UnmarshalPEMToPublicKey(p.public)
	if err != nil {
		t.Fatal(err)
	}
	v, err := sigs.LoadVerifier(key, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// pushed is an index in a registry on loopback.
func pushed(t *testing.T, options ...registry.Option) name.Digest {
	t.Helper()
	server := httptest.NewServer(registry.New(append(options, registry.Logger(log.New(io.Discard, "", 0)))...))
	t.Cleanup(server.Close)
	index, err := random.Index(100, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	repository, err := name.NewRepository(strings.TrimPrefix(server.URL, "http://") + "/team/cascade")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(repository.Tag("v1.2.0"), index); err != nil {
		t.Fatal(err)
	}
	return repository.Digest(digest.String())
}

// TestImage: who has the public key knows that the image was signed: cosign's library, and
// a Cascade agent whose OCIRepository says spec.verify.
func TestImage(t *testing.T) {
	mine, other := newPair(t, "s3cret"), newPair(t, "")
	for _, tc := range []struct {
		name, reason string
		options      []registry.Option
	}{
		{"Referrers", "a registry of OCI 1.1", []registry.Option{registry.WithReferrersSupport(true)}},
		{"Fallback", "an older one, where a tag lists what refers to an image", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			at := pushed(t, tc.options...)
			if err := Verify(t.Context(), at, mine.verifier(t)); err == nil {
				t.Fatal("an image that nobody signed is good")
			}
			if signed, err := mine.key.Image(t.Context(), at); err != nil || !signed {
				t.Fatalf("%s: Image() = %t, %v", tc.reason, signed, err)
			}
			if err := Verify(t.Context(), at, mine.verifier(t)); err != nil {
				t.Error(err)
			}
			if err := Verify(t.Context(), at, other.verifier(t)); err == nil {
				t.Error("the signature is good for another key")
			}
			if err := agentVerifies(t, at, mine.public); err != nil {
				t.Errorf("an agent refuses the signature: %v", err)
			}
			if err := agentVerifies(t, at, other.public); err == nil {
				t.Error("an agent accepts the signature for another key")
			}

			// Again: nothing is added. Another key adds its own.
			if signed, err := mine.key.Image(t.Context(), at); err != nil || signed {
				t.Errorf("again: Image() = %t, %v", signed, err)
			}
			if signed, err := other.key.Image(t.Context(), at); err != nil || !signed {
				t.Errorf("another key: Image() = %t, %v", signed, err)
			}
			found, err := remote.Referrers(at)
			if err != nil {
				t.Fatal(err)
			}
			if m, err := found.IndexManifest(); err != nil || len(m.Manifests) != 2 {
				t.Errorf("%d signatures, %v; want one of each key", len(m.Manifests), err)
			}
		})
	}
}

// agentVerifies asks what an agent asks for an OCIRepository with spec.verify.
func agentVerifies(t *testing.T, at name.Digest, public []byte) error {
	t.Helper()
	images := source.NewImages(t.TempDir(), 100<<20, time.Now)
	origin := source.ImageOrigin{URL: "oci://" + at.Context().String(), Insecure: true}
	_, err := images.Verify(t.Context(), origin, source.Image{Revision: "v1.2.0@" + at.DigestStr(), Digest: at.DigestStr()},
		source.ImageVerification{Provider: "cosign", Secret: map[string][]byte{"cosign.pub": public}})
	return err
}

func TestFile(t *testing.T) {
	mine, other := newPair(t, "s3cret"), newPair(t, "")
	file := filepath.Join(t.TempDir(), "checksums.txt")
	if err := os.WriteFile(file, []byte("0123  cascade.tar.gz\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bundle, err := mine.key.File(file)
	if err != nil {
		t.Fatal(err)
	}
	public := filepath.Join(t.TempDir(), "cosign.pub")
	if err := os.WriteFile(public, mine.public, 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := PublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	if err := VerifyFile(t.Context(), file, bundle, key); err != nil {
		t.Error(err)
	}
	if err := VerifyFile(t.Context(), file, bundle, other.verifier(t)); err == nil {
		t.Error("the signature is good for another key")
	}
	if err := os.WriteFile(file, []byte("4567  cascade.tar.gz\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := VerifyFile(t.Context(), file, bundle, key); err == nil {
		t.Error("the signature is good for another file")
	}
}

func TestReadKeyRefuses(t *testing.T) {
	good := newPair(t, "s3cret")
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(t.TempDir(), "plain.pem")
	if err := os.WriteFile(plain, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	imported, err := cosign.ImportKeyPair(plain, func(bool) ([]byte, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	edwards := filepath.Join(t.TempDir(), "ed25519.key")
	if err := os.WriteFile(edwards, imported.PrivateBytes, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason, file, password, says string
	}{
		"None":     {"a file that is not there", filepath.Join(t.TempDir(), "none"), "", "cannot read key"},
		"Password": {"a wrong password says where the right one is taken from", good.file, "wrong", "COSIGN_PASSWORD"},
		"Plain":    {"a key that is not encrypted", plain, "", "cannot read key"},
		"Edwards":  {"cosign signs by a variant of Ed25519 that an agent does not verify", edwards, "", "ECDSA or RSA"},
	} {
		if _, err := ReadKey(tc.file, []byte(tc.password)); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s (%s): %v", name, tc.reason, err)
		}
	}
}
