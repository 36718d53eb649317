package sources

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/e2e/origins"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func (h *sourceSpec) ociTag(t *testing.T) {
	r := h.Row(t)
	annotations := map[string]string{
		"org.opencontainers.image.source": "https://example.com/repo.git", "org.opencontainers.image.revision": "main@sha1:0123456789012345678901234567890123456789",
	}
	digest := h.Push(t, r.Namespace, "v1", scenario.ArtifactFiles(), annotations)
	r.MakeSource(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\", interval: 10m, ref: {tag: v1}}")
	o := &sourcev1.OCIRepository{}
	a := r.Artifact(t, o, "oci", "v1@"+digest)
	r.Tells(t, o, "oci", "Ready", "True", "Succeeded", "stored artifact for digest 'v1@"+digest+"'")
	r.Tells(t, o, "oci", "ArtifactInStorage", "True", "Succeeded", "stored artifact for digest 'v1@"+digest+"'")
	if diff := cmp.Diff(annotations, a.Metadata); diff != "" {
		t.Errorf("metadata: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff(scenario.ArtifactFiles(), unpacked(t, fetch(t, a))); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
	if want := "sha256:ac26785d5369e19062915cf33e22b6bcbaf0f857cbc1b4f7fa01d1a4c9094e6a"; a.Digest != want {
		t.Errorf("the artifact's digest is %s, Flux's is %s", a.Digest, want)
	}
	if want := "ocirepository/" + r.Namespace + "/oci/" + digest + ".tar.gz"; a.Path != strings.Replace(want, "sha256:", "", 1) && a.Path != want {
		t.Errorf("the path is %s", a.Path)
	}
	if !strings.HasSuffix(o.Status.URL, "/ocirepository/"+r.Namespace+"/oci/latest.tar.gz") || !slices.Contains(o.Finalizers, "finalizers.fluxcd.io") {
		t.Errorf("URL %s, finalizers %v", o.Status.URL, o.Finalizers)
	}
	r.Event(t, "OCIRepository", "oci", "NewArtifact", "stored artifact with revision 'v1@"+digest+"' from '"+h.Registry.URL(r.Namespace)+"', origin source 'https://example.com/repo.git', origin revision 'main@sha1:0123456789012345678901234567890123456789'")
	// Nothing new is nothing to download.
	blobs := h.Registry.Count("GET", r.Namespace+"/blobs/", 200)
	r.Answered(t, o, "oci")
	if got := h.Registry.Count("GET", r.Namespace+"/blobs/", 200); got != blobs {
		t.Errorf("%d more blobs were downloaded", got-blobs)
	}
	digest = h.Push(t, r.Namespace, "v1", map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}")}, nil)
	r.Ask(t, o, "oci")
	a = r.Artifact(t, o, "oci", "v1@"+digest)
	if a.Metadata["org.opencontainers.image.source"] != "" {
		t.Errorf("metadata is %v", a.Metadata)
	}
}

func (h *sourceSpec) ociSemver(t *testing.T) {
	r := h.Row(t)
	digests := map[string]string{}
	for _, tag := range []string{"1.0.0", "1.1.0", "1.2.0-rc.1", "2.0.0", "latest"} {
		digests[tag] = h.Push(t, r.Namespace, tag, map[string]string{"tag": tag}, nil)
	}
	for _, c := range []struct{ name, ref, want, reason string }{
		{"range", "{semver: 1.x}", "1.1.0", "the greatest in the range"},
		{"before", "{semver: '>=1.0.0-0 <2.0.0'}", "1.2.0-rc.1", "versions before a release count where the range has one"},
		{"filter", "{semver: '>=1.0.0-0', semverFilter: '.*-rc.*'}", "1.2.0-rc.1", "only what the filter takes counts"},
		{"over", "{semver: 1.x, tag: latest}", "1.1.0", "a range goes over a tag"},
		{"default", "{}", "latest", "the tag is latest by default"},
	} {
		t.Logf("%s: %s", c.name, c.reason)
		r.MakeSource(t, "OCIRepository", c.name, "{insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\", interval: 10m, ref: "+c.ref+"}")
		r.Artifact(t, &sourcev1.OCIRepository{}, c.name, c.want+"@"+digests[c.want])
	}
	r.MakeSource(t, "OCIRepository", "nothing", "{insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\", interval: 10m, ref: {semver: 3.x}}")
	r.Tells(t, &sourcev1.OCIRepository{}, "nothing", "Ready", "False", "ReadOperationFailed", "...3.x")
}

func (h *sourceSpec) ociDigest(t *testing.T) {
	r := h.Row(t)
	digest := h.Push(t, r.Namespace, "v1", scenario.ArtifactFiles(), nil)
	h.Push(t, r.Namespace, "v1", map[string]string{"another": "one"}, nil)
	r.MakeSource(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\", interval: 10m, ref: {digest: \""+digest+"\", tag: v1}}")
	o := &sourcev1.OCIRepository{}
	a := r.Artifact(t, o, "oci", digest)
	if diff := cmp.Diff(scenario.ArtifactFiles(), unpacked(t, fetch(t, a))); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
}

func (h *sourceSpec) ociLayers(t *testing.T) {
	r := h.Row(t)
	wanted := origins.Tarball(scenario.ArtifactFiles())
	digest, err := h.Registry.PushLayers(r.Namespace, "latest",
		origins.Layer{MediaType: "application/octet-stream", Content: []byte("something else")},
		origins.Layer{MediaType: "application/vnd.example.content.tar+gzip", Content: wanted})
	if err != nil {
		t.Fatal(err)
	}
	spec := "{insecure: true, url: \"" + h.Registry.URL(r.Namespace) + "\", interval: 10m, layerSelector: {mediaType: application/vnd.example.content.tar+gzip, operation: %s}}"
	r.MakeSource(t, "OCIRepository", "extract", fmt.Sprintf(spec, "extract"))
	a := r.Artifact(t, &sourcev1.OCIRepository{}, "extract", "latest@"+digest)
	if diff := cmp.Diff(scenario.ArtifactFiles(), unpacked(t, fetch(t, a))); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
	// A copy is the layer, byte for byte.
	r.MakeSource(t, "OCIRepository", "copy", fmt.Sprintf(spec, "copy"))
	o := &sourcev1.OCIRepository{}
	a = r.Artifact(t, o, "copy", "latest@"+digest)
	if got := fetch(t, a); string(got) != string(wanted) {
		t.Errorf("%d bytes of %d", len(got), len(wanted))
	}
	if o.Status.ObservedLayerSelector == nil || o.Status.ObservedLayerSelector.Operation != "copy" {
		t.Errorf("observed %+v", o.Status.ObservedLayerSelector)
	}
	r.MakeSource(t, "OCIRepository", "none", strings.Replace(fmt.Sprintf(spec, "extract"), "vnd.example.content", "vnd.example.other", 1))
	r.Tells(t, o, "none", "Ready", "False", "OCIArtifactLayerOperationFailed", "...application/vnd.example.other.tar+gzip")
}

func (h *sourceSpec) ociAuth(t *testing.T) {
	r := h.Row(t)
	registry := origins.StartRegistry(origins.Login{Username: "cascade", Password: "hunter2hunter2"})
	t.Cleanup(registry.Close)
	digest, err := registry.PushFiles(r.Namespace, "latest", scenario.ArtifactFiles(), nil)
	if err != nil {
		t.Fatal(err)
	}
	url := "{insecure: true, url: \"" + registry.URL(r.Namespace) + "\", interval: 10m, %s}"
	r.MakeSource(t, "OCIRepository", "without", fmt.Sprintf(url, ""))
	r.Tells(t, &sourcev1.OCIRepository{}, "without", "Ready", "False", "OCIArtifactPullFailed", "...UNAUTHORIZED")
	r.MakeSource(t, "OCIRepository", "oci", fmt.Sprintf(url, "secretRef: {name: login}"))
	r.Tells(t, &sourcev1.OCIRepository{}, "oci", "Ready", "False", "AuthenticationFailed", `...secrets "login" not found`)
	r.DockerConfig(t, "login", registry.Address(), "wrong")
	r.Ask(t, &sourcev1.OCIRepository{}, "oci")
	c := r.Tells(t, &sourcev1.OCIRepository{}, "oci", "Ready", "False", "OCIArtifactPullFailed", "")
	r.DockerConfig(t, "login", registry.Address(), "hunter2hunter2")
	r.Ask(t, &sourcev1.OCIRepository{}, "oci")
	r.Artifact(t, &sourcev1.OCIRepository{}, "oci", "latest@"+digest)
	if strings.Contains(c.Message, "hunter2") || strings.Contains(c.Message, "wrong:") {
		t.Errorf("the message is %q", c.Message)
	}
	// The pull secrets of a service account do as well.
	r.Apply(t, r.Fill("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: puller, namespace: $ns}\nimagePullSecrets: [{name: login}]\n"))
	r.MakeSource(t, "OCIRepository", "account", fmt.Sprintf(url, "serviceAccountName: puller"))
	r.Artifact(t, &sourcev1.OCIRepository{}, "account", "latest@"+digest)
}

func (h *sourceSpec) ociIgnore(t *testing.T) {
	r := h.Row(t)
	files := map[string]string{".sourceignore": "docs/\n", "app/a.yaml": scenario.ConfigMapWith("a", "", "{}"), "docs/readme.md": "Read me.\n", "more/b.yaml": scenario.ConfigMapWith("b", "", "{}"), ".git/config": "x"}
	digest := h.Push(t, r.Namespace, "latest", files, nil)
	o := &sourcev1.OCIRepository{}
	r.MakeSource(t, "OCIRepository", "file", "{insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\", interval: 10m}")
	got := unpacked(t, fetch(t, r.Artifact(t, o, "file", "latest@"+digest)))
	for name, want := range map[string]bool{"app/a.yaml": true, "more/b.yaml": true, "docs/readme.md": false, ".git/config": false} {
		if _, ok := got[name]; ok != want {
			t.Errorf("%s is there: %t", name, ok)
		}
	}
	r.MakeSource(t, "OCIRepository", "spec", "{insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\", interval: 10m, ignore: \"/more\\n\"}")
	got = unpacked(t, fetch(t, r.Artifact(t, o, "spec", "latest@"+digest)))
	if _, ok := got["more/b.yaml"]; ok || got["app/a.yaml"] == "" || o.Status.ObservedIgnore == nil {
		t.Errorf("content is %v", got)
	}
}

func (h *sourceSpec) ociFailures(t *testing.T) {
	r := h.Row(t)
	o := &sourcev1.OCIRepository{}
	r.MakeSource(t, "OCIRepository", "nowhere", "{insecure: true, url: \""+h.Registry.URL("nowhere")+"\", interval: 10m}")
	r.Tells(t, o, "nowhere", "Ready", "False", "OCIArtifactPullFailed", "")
	r.Tells(t, o, "nowhere", "FetchFailed", "True", "OCIArtifactPullFailed", "")
	r.Tells(t, o, "nowhere", "Reconciling", "True", "ProgressingWithRetry", "")
	r.Event(t, "OCIRepository", "nowhere", "OCIArtifactPullFailed", "")
	r.MakeSource(t, "OCIRepository", "bad", "{url: \"oci://example.com/UPPER\", interval: 10m}")
	r.Tells(t, o, "bad", "Ready", "False", "URLInvalid", "...UPPER")
	r.Tells(t, o, "bad", "Stalled", "True", "URLInvalid", "")
	// What is there stays when its origin goes away.
	registry := origins.StartRegistry(origins.Login{})
	digest, err := registry.PushFiles(r.Namespace, "latest", scenario.ArtifactFiles(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.MakeSource(t, "OCIRepository", "lost", "{insecure: true, url: \""+registry.URL(r.Namespace)+"\", interval: 10m}")
	r.Artifact(t, o, "lost", "latest@"+digest)
	registry.Close()
	r.Ask(t, o, "lost")
	r.Tells(t, o, "lost", "Ready", "False", "OCIArtifactPullFailed", "")
	if a := o.GetArtifact(); a == nil || a.Revision != "latest@"+digest {
		t.Errorf("the artifact is %+v", a)
	}
}

// sign signs a manifest as cosign does with a key, without a log.
func sign(registry *origins.Registry, key *ecdsa.PrivateKey, repository, digest string) error {
	payload, err := json.Marshal(map[string]any{"critical": map[string]any{
		"identity": map[string]string{"docker-reference": registry.Address() + "/" + repository},
		"image":    map[string]string{"docker-manifest-digest": digest}, "type": "cosign container image signature",
	}, "optional": nil})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(payload)
	signature, err := key.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return err
	}
	image, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer:       static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signature)},
	})
	if err != nil {
		return err
	}
	_, err = registry.Push(repository, strings.Replace(digest, ":", "-", 1)+".sig", v1.Image(image))
	return err
}

// cosignKey makes a key, and its Secret in the row's namespace.
func cosignKey(t *testing.T, r *scenario.HelmRow, name string) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: name}, Data: map[string][]byte{name + ".pub": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})},
	}
	if err := r.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	return key
}

func (h *sourceSpec) ociCosign(t *testing.T) {
	r := h.Row(t)
	ours, _ := cosignKey(t, r, "ours"), cosignKey(t, r, "theirs")
	digest := h.Push(t, r.Namespace, "latest", scenario.ArtifactFiles(), nil)
	spec := "{insecure: true, url: \"" + h.Registry.URL(r.Namespace) + "\", interval: 10m, verify: {provider: cosign, secretRef: {name: %s}}}"
	o := &sourcev1.OCIRepository{}
	r.MakeSource(t, "OCIRepository", "unsigned", fmt.Sprintf(spec, "ours"))
	r.Tells(t, o, "unsigned", "Ready", "False", "VerificationError", "failed to verify the signature using provider 'cosign': ")
	r.Tells(t, o, "unsigned", "SourceVerified", "False", "VerificationError", "failed to verify the signature using provider 'cosign': ")
	if o.GetArtifact() != nil {
		t.Errorf("the artifact is %+v", o.GetArtifact())
	}
	if err := sign(h.Registry, ours, r.Namespace, digest); err != nil {
		t.Fatal(err)
	}
	r.Ask(t, o, "unsigned")
	r.Artifact(t, o, "unsigned", "latest@"+digest)
	r.Tells(t, o, "unsigned", "SourceVerified", "True", "Succeeded", "verified signature of revision latest@"+digest)
	r.MakeSource(t, "OCIRepository", "theirs", fmt.Sprintf(spec, "theirs"))
	r.Tells(t, o, "theirs", "Ready", "False", "VerificationError", "failed to verify the signature using provider 'cosign': ")
	r.MakeSource(t, "OCIRepository", "keyless", fmt.Sprintf(spec, "nowhere"))
	r.Tells(t, o, "keyless", "Ready", "False", "VerificationError", "")
}

func (h *sourceSpec) ociKustomization(t *testing.T) {
	r := h.Row(t)
	digest := h.Push(t, r.Namespace, "latest", scenario.ArtifactFiles(), map[string]string{"org.opencontainers.image.revision": "main@sha1:0123456789012345678901234567890123456789"})
	r.MakeSource(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.Registry.URL(r.Namespace)+"\", interval: 10m}")
	r.Kustomization(t, "app", "sourceRef: {kind: OCIRepository, name: oci}")
	k := &kustomizev1.Kustomization{}
	r.Tells(t, k, "app", "Ready", "True", "ReconciliationSucceeded", "Applied revision: latest@"+digest)
	r.Has(t, "a", "k", "one")
	scenario.Eventually(t, scenario.Converge, "the origin's revision is recorded", func(ctx context.Context) error {
		if err := r.Load(ctx, k, r.Namespace, "app"); err != nil {
			return err
		}
		if k.Status.LastAppliedRevision != "latest@"+digest || k.Status.LastAppliedOriginRevision != "main@sha1:0123456789012345678901234567890123456789" {
			return fmt.Errorf("status is %+v", k.Status)
		}
		return nil
	})
	digest = h.Push(t, r.Namespace, "latest", map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: two}")}, nil)
	r.Ask(t, &sourcev1.OCIRepository{}, "oci")
	r.Has(t, "a", "k", "two")
	r.Tells(t, k, "app", "Ready", "True", "ReconciliationSucceeded", "Applied revision: latest@"+digest)
}
