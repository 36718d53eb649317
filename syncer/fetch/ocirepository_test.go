package fetch

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/notaryproject/notation-core-go/testhelper"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// imageBench has a registry, and a key with which images are signed as cosign does.
type imageBench struct {
	*gitBench
	host string
	key  *ecdsa.PrivateKey
	// asked counts the requests for signatures.
	asked atomic.Int64
}

// newImageBench has the Secret keys with the public key, and the Secret skip with a policy of notation by which nobody
// has to look.
func newImageBench(t *testing.T) *imageBench {
	t.Helper()
	b := &imageBench{gitBench: newGitBench(t)}
	behind := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, ".sig") {
			b.asked.Add(1)
		}
		behind.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	b.host = strings.TrimPrefix(server.URL, "http://")
	var err error
	if b.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&b.key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	for secret, data := range map[string]map[string][]byte{
		"keys": {"a.pub": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})},
		"skip": {
			"trustpolicy.json": []byte(`{"version":"1.0","trustPolicies":[{"name":"all","registryScopes":["*"],"signatureVerification":{"level":"skip"}}]}`),
			"ca.crt":           pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: testhelper.GetRSARootCertificate().Cert.Raw}),
		},
	} {
		if err := b.Client.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: secret}, Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// push has a tag stand for an image of one layer, and returns its digest.
func (b *imageBench) push(repository, tag string, config types.MediaType, layer mutate.Addendum) string {
	b.t.Helper()
	image, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), config), layer)
	if err != nil {
		b.t.Fatal(err)
	}
	at, err := name.NewTag(b.host+"/"+repository+":"+tag, name.Insecure)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := remote.Write(at, image); err != nil {
		b.t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		b.t.Fatal(err)
	}
	return digest.String()
}

// latest has the tag latest of app stand for an image whose layer has this content.
func (b *imageBench) latest(content []byte) string {
	b.t.Helper()
	return b.push("app", "latest", "application/vnd.cncf.flux.config.v1+json", mutate.Addendum{
		Layer: static.NewLayer(content, "application/vnd.cncf.flux.content.v1.tar+gzip"),
	})
}

// pushChart pushes a version of the chart shop.
func (b *imageBench) pushChart(version string, signed bool) {
	b.t.Helper()
	digest := b.push("charts/shop", version, "application/vnd.cncf.helm.config.v1+json", mutate.Addendum{
		Layer: static.NewLayer(archiveOf(b.t, "shop/Chart.yaml", "apiVersion: v2\nname: shop\nversion: "+version+"\n"), source.ChartMediaType),
	})
	if signed {
		b.sign("charts/shop", digest)
	}
}

func (b *imageBench) sign(repository, digest string) {
	b.t.Helper()
	payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":"x"},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, digest)
	sum := sha256.Sum256(payload)
	signature, err := b.key.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		b.t.Fatal(err)
	}
	b.push(repository, strings.Replace(digest, ":", "-", 1)+".sig", types.OCIConfigJSON, mutate.Addendum{
		Layer:       static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signature)},
	})
}

// archiveOf is a packed archive of one file.
func archiveOf(t *testing.T, file, content string) []byte {
	t.Helper()
	var out bytes.Buffer
	gz := gzip.NewWriter(&out)
	archive := tar.NewWriter(gz)
	err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = io.WriteString(archive, content)
	}
	if err := errors.Join(err, archive.Close(), gz.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// repository reconciles the OCIRepository app once, after a change of its spec if verify is not nil.
func (b *imageBench) repository(r *OCIRepositories, verify *sourcev1.OCIRepositoryVerification) *sourcev1.OCIRepository {
	b.t.Helper()
	obj := &sourcev1.OCIRepository{}
	key := client.ObjectKey{Namespace: "ns", Name: "app"}
	if verify != nil {
		if err := b.Client.Get(b.t.Context(), key, obj); err != nil {
			b.t.Fatal(err)
		}
		obj.Spec.Verify = verify
		obj.Generation++
		if err := b.Client.Update(b.t.Context(), obj); err != nil {
			b.t.Fatal(err)
		}
	}
	_, _ = r.Reconcile(b.t.Context(), ctrl.Request{NamespacedName: key}) // the status tells of it
	if err := b.Client.Get(b.t.Context(), key, obj); err != nil {
		b.t.Fatal(err)
	}
	return obj
}

func verifyWith(provider, secret string) *sourcev1.OCIRepositoryVerification {
	return &sourcev1.OCIRepositoryVerification{Provider: provider, SecretRef: &meta.LocalObjectReference{Name: secret}}
}

// TestVerifiedImage: an image is used as signed if that very image was found to be, by the spec that there is.
func TestVerifiedImage(t *testing.T) {
	b := newImageBench(t)
	begin := func() *OCIRepositories {
		b.begin()
		return &OCIRepositories{Sources: b.Sources, Images: source.NewImages(t.TempDir(), 1<<20, time.Now)}
	}
	unsigned := archiveOf(t, "a.yaml", "unsigned")
	a := b.latest(unsigned)
	obj := &sourcev1.OCIRepository{Spec: sourcev1.OCIRepositorySpec{URL: "oci://" + b.host + "/app", Insecure: true}}
	obj.Namespace, obj.Name, obj.Generation = "ns", "app", 1
	if err := b.Client.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	r := begin()
	wants := func(reason string, verify *sourcev1.OCIRepositoryVerification, verified, ready, artifact string) {
		t.Helper()
		o := b.repository(r, verify)
		if got := states(o.Status.Conditions); got["SourceVerified"] != verified || got["Ready"] != ready || o.Status.Artifact.Revision != "latest@"+artifact {
			t.Errorf("%s: of %s it tells %v, want SourceVerified %q, Ready %q with %s", reason, o.Status.Artifact.Revision, got, verified, ready, artifact)
		}
	}
	const fine, refused = "True/Succeeded", "False/VerificationError"
	wants("nobody asks for a signature", nil, "", fine, a)
	wants("nobody signed it", verifyWith("cosign", "keys"), refused, refused, a)
	b.sign("app", b.latest([]byte("no archive")))
	wants("what is signed cannot be used", nil, fine, "False/"+source.ReasonImageLayerFailed, a)
	b.latest(unsigned)
	wants("nobody signed what the tag stands for again", nil, refused, refused, a)

	signed := b.latest(archiveOf(t, "a.yaml", "signed"))
	b.sign("app", signed)
	wants("it is signed", nil, fine, fine, signed)
	b.asked.Store(0)
	wants("that is known", nil, fine, fine, signed)
	if n := b.asked.Load(); n != 0 {
		t.Errorf("%d requests for the signature of what was found to be signed", n)
	}
	r = begin()
	wants("a process that begins looks itself", nil, fine, fine, signed)
	if b.asked.Load() == 0 {
		t.Error("a process that begins asked for no signature")
	}
	wants("nobody has to look by the policy that there is now", verifyWith("notation", "skip"), "", fine, signed)
}
