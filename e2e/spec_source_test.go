package e2e

import (
	"archive/tar"
	"compress/gzip"
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
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/e2e/origins"
)

// TestSourceSpec tries what Flux says of its sources besides GitRepositories, row
// by row, and what is applied from them. Every row was seen to pass with Flux's own
// source-controller v1.9.5 as well; the digests of artifacts are those that it made.
func TestSourceSpec(t *testing.T) {
	alongside(t)
	h := startHelmSpec(t)
	h.restart(t, "--artifact-addr=$(POD_IP):9090", "--artifact-adv-addr=$(POD_IP):9090", "--feature-gates=ExternalArtifact=true")
	t.Run("Rows", func(t *testing.T) {
		for _, r := range []struct {
			name string
			run  func(*helmSpec, *testing.T)
		}{
			{"OCITag", (*helmSpec).ociTag},
			{"OCISemver", (*helmSpec).ociSemver},
			{"OCIDigest", (*helmSpec).ociDigest},
			{"OCILayers", (*helmSpec).ociLayers},
			{"OCIAuth", (*helmSpec).ociAuth},
			{"OCIIgnore", (*helmSpec).ociIgnore},
			{"OCIFailures", (*helmSpec).ociFailures},
			{"OCICosign", (*helmSpec).ociCosign},
			{"OCIKustomization", (*helmSpec).ociKustomization},
			{"HelmRepositoryIndex", (*helmSpec).helmRepositoryIndex},
			{"HelmRepositoryAuth", (*helmSpec).helmRepositoryAuth},
			{"HelmRepositoryPassCredentials", (*helmSpec).helmRepositoryPassCredentials},
			{"HelmRepositoryOCI", (*helmSpec).helmRepositoryOCI},
			{"HelmRepositoryFailures", (*helmSpec).helmRepositoryFailures},
			{"HelmChartVersions", (*helmSpec).helmChartVersions},
			{"HelmChartGit", (*helmSpec).helmChartGit},
			{"HelmChartBucket", (*helmSpec).helmChartBucket},
			{"HelmChartValuesFiles", (*helmSpec).helmChartValuesFiles},
			{"HelmChartDependencies", (*helmSpec).helmChartDependencies},
			{"HelmChartFailures", (*helmSpec).helmChartFailures},
			{"HelmChartVerify", (*helmSpec).helmChartVerify},
			{"Bucket", (*helmSpec).bucket},
			{"BucketFailures", (*helmSpec).bucketFailures},
			{"BucketKustomization", (*helmSpec).bucketKustomization},
			{"ReleaseFromOCIRepository", (*helmSpec).releaseFromOCIRepository},
			{"ReleaseFromHelmChart", (*helmSpec).releaseFromHelmChart},
			{"ReleaseFromGit", (*helmSpec).releaseFromGit},
			{"ReleaseFromBucket", (*helmSpec).releaseFromBucket},
			{"ReleaseFromOCIChart", (*helmSpec).releaseFromOCIChart},
			{"ReleaseFromExternalArtifact", (*helmSpec).releaseFromExternalArtifact},
			{"SourcesSuspended", (*helmSpec).sourcesSuspended},
			{"SourcesDeleted", (*helmSpec).sourcesDeleted},
		} {
			t.Run(r.name, func(t *testing.T) {
				t.Parallel()
				r.run(h, t)
			})
		}
	})
}

// pushed is what is pushed and put where Kustomizations find it.
var pushed = map[string]string{"app/a.yaml": cm("a", "", "{k: one}"), "docs/readme.md": "Read me.\n", "nested/deep/b.yaml": cm("b", "", "{k: one}")}

// make creates or replaces a source.
func (r *helmRow) make(t *testing.T, kind, name, spec string) {
	t.Helper()
	r.apply(t, r.fill(fmt.Sprintf("apiVersion: source.toolkit.fluxcd.io/v1\nkind: %s\nmetadata: {name: %s, namespace: $ns}\nspec: %s\n", kind, name, spec)))
}

// fetch downloads an artifact and checks its size and digest.
func fetch(t *testing.T, a *fluxmeta.Artifact) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", a.URL, response.Status, err)
	}
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(data)); got != a.Digest || a.Size == nil || *a.Size != int64(len(data)) {
		t.Errorf("what is served has digest %s and %d bytes, the artifact is %+v", got, len(data), a)
	}
	return data
}

// unpacked are the files of a .tar.gz.
func unpacked(t *testing.T, data []byte) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zipped); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg {
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			files[path.Clean(header.Name)] = string(text)
		}
	}
}

func (h *helmSpec) push(t *testing.T, repository, tag string, files, annotations map[string]string) string {
	t.Helper()
	digest, err := h.registry.PushFiles(repository, tag, files, annotations)
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func (h *helmSpec) ociTag(t *testing.T) {
	r := h.row(t)
	annotations := map[string]string{
		"org.opencontainers.image.source": "https://example.com/repo.git", "org.opencontainers.image.revision": "main@sha1:0123456789012345678901234567890123456789",
	}
	digest := h.push(t, r.ns, "v1", pushed, annotations)
	r.make(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.registry.URL(r.ns)+"\", interval: 10m, ref: {tag: v1}}")
	o := &sourcev1.OCIRepository{}
	a := r.artifact(t, o, "oci", "v1@"+digest)
	r.tells(t, o, "oci", "Ready", "True", "Succeeded", "stored artifact for digest 'v1@"+digest+"'")
	r.tells(t, o, "oci", "ArtifactInStorage", "True", "Succeeded", "stored artifact for digest 'v1@"+digest+"'")
	if diff := cmp.Diff(annotations, a.Metadata); diff != "" {
		t.Errorf("metadata: -want, +got:\n%s", diff)
	}
	if diff := cmp.Diff(pushed, unpacked(t, fetch(t, a))); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
	if want := "sha256:ac26785d5369e19062915cf33e22b6bcbaf0f857cbc1b4f7fa01d1a4c9094e6a"; a.Digest != want {
		t.Errorf("the artifact's digest is %s, Flux's is %s", a.Digest, want)
	}
	if want := "ocirepository/" + r.ns + "/oci/" + digest + ".tar.gz"; a.Path != strings.Replace(want, "sha256:", "", 1) && a.Path != want {
		t.Errorf("the path is %s", a.Path)
	}
	if !strings.HasSuffix(o.Status.URL, "/ocirepository/"+r.ns+"/oci/latest.tar.gz") || !slices.Contains(o.Finalizers, "finalizers.fluxcd.io") {
		t.Errorf("URL %s, finalizers %v", o.Status.URL, o.Finalizers)
	}
	r.event(t, "OCIRepository", "oci", "NewArtifact", "stored artifact with revision 'v1@"+digest+"' from '"+h.registry.URL(r.ns)+"', origin source 'https://example.com/repo.git', origin revision 'main@sha1:0123456789012345678901234567890123456789'")
	// Nothing new is nothing to download.
	blobs := h.registry.Count("GET", r.ns+"/blobs/", 200)
	r.answered(t, o, "oci")
	if got := h.registry.Count("GET", r.ns+"/blobs/", 200); got != blobs {
		t.Errorf("%d more blobs were downloaded", got-blobs)
	}
	digest = h.push(t, r.ns, "v1", map[string]string{"app/a.yaml": cm("a", "", "{k: two}")}, nil)
	r.ask(t, o, "oci")
	a = r.artifact(t, o, "oci", "v1@"+digest)
	if a.Metadata["org.opencontainers.image.source"] != "" {
		t.Errorf("metadata is %v", a.Metadata)
	}
}

// answered asks a source to reconcile and waits until it has.
func (r *row) answered(t *testing.T, o reporter, name string) {
	t.Helper()
	at := r.ask(t, o, name)
	eventually(t, converge, fmt.Sprintf("the request of %T %s is handled", o, name), func(ctx context.Context) error {
		if err := r.load(ctx, o, r.ns, name); err != nil {
			return err
		}
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		if !strings.Contains(string(text), fmt.Sprintf(`"lastHandledReconcileAt":%q`, at)) {
			return fmt.Errorf("it is %s", text)
		}
		return nil
	})
}

func (h *helmSpec) ociSemver(t *testing.T) {
	r := h.row(t)
	digests := map[string]string{}
	for _, tag := range []string{"1.0.0", "1.1.0", "1.2.0-rc.1", "2.0.0", "latest"} {
		digests[tag] = h.push(t, r.ns, tag, map[string]string{"tag": tag}, nil)
	}
	for _, c := range []struct{ name, ref, want, reason string }{
		{"range", "{semver: 1.x}", "1.1.0", "the greatest in the range"},
		{"before", "{semver: '>=1.0.0-0 <2.0.0'}", "1.2.0-rc.1", "versions before a release count where the range has one"},
		{"filter", "{semver: '>=1.0.0-0', semverFilter: '.*-rc.*'}", "1.2.0-rc.1", "only what the filter takes counts"},
		{"over", "{semver: 1.x, tag: latest}", "1.1.0", "a range goes over a tag"},
		{"default", "{}", "latest", "the tag is latest by default"},
	} {
		t.Logf("%s: %s", c.name, c.reason)
		r.make(t, "OCIRepository", c.name, "{insecure: true, url: \""+h.registry.URL(r.ns)+"\", interval: 10m, ref: "+c.ref+"}")
		r.artifact(t, &sourcev1.OCIRepository{}, c.name, c.want+"@"+digests[c.want])
	}
	r.make(t, "OCIRepository", "nothing", "{insecure: true, url: \""+h.registry.URL(r.ns)+"\", interval: 10m, ref: {semver: 3.x}}")
	r.tells(t, &sourcev1.OCIRepository{}, "nothing", "Ready", "False", "ReadOperationFailed", "...3.x")
}

func (h *helmSpec) ociDigest(t *testing.T) {
	r := h.row(t)
	digest := h.push(t, r.ns, "v1", pushed, nil)
	h.push(t, r.ns, "v1", map[string]string{"another": "one"}, nil)
	r.make(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.registry.URL(r.ns)+"\", interval: 10m, ref: {digest: \""+digest+"\", tag: v1}}")
	o := &sourcev1.OCIRepository{}
	a := r.artifact(t, o, "oci", digest)
	if diff := cmp.Diff(pushed, unpacked(t, fetch(t, a))); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
}

func (h *helmSpec) ociLayers(t *testing.T) {
	r := h.row(t)
	wanted := origins.Tarball(pushed)
	digest, err := h.registry.PushLayers(r.ns, "latest",
		origins.Layer{MediaType: "application/octet-stream", Content: []byte("something else")},
		origins.Layer{MediaType: "application/vnd.example.content.tar+gzip", Content: wanted})
	if err != nil {
		t.Fatal(err)
	}
	spec := "{insecure: true, url: \"" + h.registry.URL(r.ns) + "\", interval: 10m, layerSelector: {mediaType: application/vnd.example.content.tar+gzip, operation: %s}}"
	r.make(t, "OCIRepository", "extract", fmt.Sprintf(spec, "extract"))
	a := r.artifact(t, &sourcev1.OCIRepository{}, "extract", "latest@"+digest)
	if diff := cmp.Diff(pushed, unpacked(t, fetch(t, a))); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
	// A copy is the layer, byte for byte.
	r.make(t, "OCIRepository", "copy", fmt.Sprintf(spec, "copy"))
	o := &sourcev1.OCIRepository{}
	a = r.artifact(t, o, "copy", "latest@"+digest)
	if got := fetch(t, a); string(got) != string(wanted) {
		t.Errorf("%d bytes of %d", len(got), len(wanted))
	}
	if o.Status.ObservedLayerSelector == nil || o.Status.ObservedLayerSelector.Operation != "copy" {
		t.Errorf("observed %+v", o.Status.ObservedLayerSelector)
	}
	r.make(t, "OCIRepository", "none", strings.Replace(fmt.Sprintf(spec, "extract"), "vnd.example.content", "vnd.example.other", 1))
	r.tells(t, o, "none", "Ready", "False", "OCIArtifactLayerOperationFailed", "...application/vnd.example.other.tar+gzip")
}

// dockerConfig is a Secret with the login of a registry.
func (r *helmRow) dockerConfig(t *testing.T, name, address, password string) {
	t.Helper()
	text := fmt.Sprintf(`{"auths":{%q:{"username":"cascade","password":%q}}}`, address, password)
	r.apply(t, r.fill(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: $ns}\ntype: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: %q}\n", name, text)))
}

func (h *helmSpec) ociAuth(t *testing.T) {
	r := h.row(t)
	registry := origins.StartRegistry(origins.Login{Username: "cascade", Password: "hunter2hunter2"})
	t.Cleanup(registry.Close)
	digest, err := registry.PushFiles(r.ns, "latest", pushed, nil)
	if err != nil {
		t.Fatal(err)
	}
	url := "{insecure: true, url: \"" + registry.URL(r.ns) + "\", interval: 10m, %s}"
	r.make(t, "OCIRepository", "without", fmt.Sprintf(url, ""))
	r.tells(t, &sourcev1.OCIRepository{}, "without", "Ready", "False", "OCIArtifactPullFailed", "...UNAUTHORIZED")
	r.make(t, "OCIRepository", "oci", fmt.Sprintf(url, "secretRef: {name: login}"))
	r.tells(t, &sourcev1.OCIRepository{}, "oci", "Ready", "False", "AuthenticationFailed", `...secrets "login" not found`)
	r.dockerConfig(t, "login", registry.Address(), "wrong")
	r.ask(t, &sourcev1.OCIRepository{}, "oci")
	c := r.tells(t, &sourcev1.OCIRepository{}, "oci", "Ready", "False", "OCIArtifactPullFailed", "")
	r.dockerConfig(t, "login", registry.Address(), "hunter2hunter2")
	r.ask(t, &sourcev1.OCIRepository{}, "oci")
	r.artifact(t, &sourcev1.OCIRepository{}, "oci", "latest@"+digest)
	if strings.Contains(c.Message, "hunter2") || strings.Contains(c.Message, "wrong:") {
		t.Errorf("the message is %q", c.Message)
	}
	// The pull secrets of a service account do as well.
	r.apply(t, r.fill("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: puller, namespace: $ns}\nimagePullSecrets: [{name: login}]\n"))
	r.make(t, "OCIRepository", "account", fmt.Sprintf(url, "serviceAccountName: puller"))
	r.artifact(t, &sourcev1.OCIRepository{}, "account", "latest@"+digest)
}

func (h *helmSpec) ociIgnore(t *testing.T) {
	r := h.row(t)
	files := map[string]string{".sourceignore": "docs/\n", "app/a.yaml": cm("a", "", "{}"), "docs/readme.md": "Read me.\n", "more/b.yaml": cm("b", "", "{}"), ".git/config": "x"}
	digest := h.push(t, r.ns, "latest", files, nil)
	o := &sourcev1.OCIRepository{}
	r.make(t, "OCIRepository", "file", "{insecure: true, url: \""+h.registry.URL(r.ns)+"\", interval: 10m}")
	got := unpacked(t, fetch(t, r.artifact(t, o, "file", "latest@"+digest)))
	for name, want := range map[string]bool{"app/a.yaml": true, "more/b.yaml": true, "docs/readme.md": false, ".git/config": false} {
		if _, ok := got[name]; ok != want {
			t.Errorf("%s is there: %t", name, ok)
		}
	}
	r.make(t, "OCIRepository", "spec", "{insecure: true, url: \""+h.registry.URL(r.ns)+"\", interval: 10m, ignore: \"/more\\n\"}")
	got = unpacked(t, fetch(t, r.artifact(t, o, "spec", "latest@"+digest)))
	if _, ok := got["more/b.yaml"]; ok || got["app/a.yaml"] == "" || o.Status.ObservedIgnore == nil {
		t.Errorf("content is %v", got)
	}
}

func (h *helmSpec) ociFailures(t *testing.T) {
	r := h.row(t)
	o := &sourcev1.OCIRepository{}
	r.make(t, "OCIRepository", "nowhere", "{insecure: true, url: \""+h.registry.URL("nowhere")+"\", interval: 10m}")
	r.tells(t, o, "nowhere", "Ready", "False", "OCIArtifactPullFailed", "")
	r.tells(t, o, "nowhere", "FetchFailed", "True", "OCIArtifactPullFailed", "")
	r.tells(t, o, "nowhere", "Reconciling", "True", "ProgressingWithRetry", "")
	r.event(t, "OCIRepository", "nowhere", "OCIArtifactPullFailed", "")
	r.make(t, "OCIRepository", "bad", "{url: \"oci://example.com/UPPER\", interval: 10m}")
	r.tells(t, o, "bad", "Ready", "False", "URLInvalid", "...UPPER")
	r.tells(t, o, "bad", "Stalled", "True", "URLInvalid", "")
	// What is there stays when its origin goes away.
	registry := origins.StartRegistry(origins.Login{})
	digest, err := registry.PushFiles(r.ns, "latest", pushed, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.make(t, "OCIRepository", "lost", "{insecure: true, url: \""+registry.URL(r.ns)+"\", interval: 10m}")
	r.artifact(t, o, "lost", "latest@"+digest)
	registry.Close()
	r.ask(t, o, "lost")
	r.tells(t, o, "lost", "Ready", "False", "OCIArtifactPullFailed", "")
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
func (r *helmRow) cosignKey(t *testing.T, name string) *ecdsa.PrivateKey {
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
		ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name}, Data: map[string][]byte{name + ".pub": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})},
	}
	if err := r.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	return key
}

func (h *helmSpec) ociCosign(t *testing.T) {
	r := h.row(t)
	ours, _ := r.cosignKey(t, "ours"), r.cosignKey(t, "theirs")
	digest := h.push(t, r.ns, "latest", pushed, nil)
	spec := "{insecure: true, url: \"" + h.registry.URL(r.ns) + "\", interval: 10m, verify: {provider: cosign, secretRef: {name: %s}}}"
	o := &sourcev1.OCIRepository{}
	r.make(t, "OCIRepository", "unsigned", fmt.Sprintf(spec, "ours"))
	r.tells(t, o, "unsigned", "Ready", "False", "VerificationError", "failed to verify the signature using provider 'cosign': ")
	r.tells(t, o, "unsigned", "SourceVerified", "False", "VerificationError", "failed to verify the signature using provider 'cosign': ")
	if o.GetArtifact() != nil {
		t.Errorf("the artifact is %+v", o.GetArtifact())
	}
	if err := sign(h.registry, ours, r.ns, digest); err != nil {
		t.Fatal(err)
	}
	r.ask(t, o, "unsigned")
	r.artifact(t, o, "unsigned", "latest@"+digest)
	r.tells(t, o, "unsigned", "SourceVerified", "True", "Succeeded", "verified signature of revision latest@"+digest)
	r.make(t, "OCIRepository", "theirs", fmt.Sprintf(spec, "theirs"))
	r.tells(t, o, "theirs", "Ready", "False", "VerificationError", "failed to verify the signature using provider 'cosign': ")
	r.make(t, "OCIRepository", "keyless", fmt.Sprintf(spec, "nowhere"))
	r.tells(t, o, "keyless", "Ready", "False", "VerificationError", "")
}

func (h *helmSpec) ociKustomization(t *testing.T) {
	r := h.row(t)
	digest := h.push(t, r.ns, "latest", pushed, map[string]string{"org.opencontainers.image.revision": "main@sha1:0123456789012345678901234567890123456789"})
	r.make(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.registry.URL(r.ns)+"\", interval: 10m}")
	r.kustomization(t, "app", "sourceRef: {kind: OCIRepository, name: oci}")
	k := &kustomizev1.Kustomization{}
	r.tells(t, k, "app", "Ready", "True", "ReconciliationSucceeded", "Applied revision: latest@"+digest)
	r.has(t, "a", "k", "one")
	eventually(t, converge, "the origin's revision is recorded", func(ctx context.Context) error {
		if err := r.load(ctx, k, r.ns, "app"); err != nil {
			return err
		}
		if k.Status.LastAppliedRevision != "latest@"+digest || k.Status.LastAppliedOriginRevision != "main@sha1:0123456789012345678901234567890123456789" {
			return fmt.Errorf("status is %+v", k.Status)
		}
		return nil
	})
	digest = h.push(t, r.ns, "latest", map[string]string{"app/a.yaml": cm("a", "", "{k: two}")}, nil)
	r.ask(t, &sourcev1.OCIRepository{}, "oci")
	r.has(t, "a", "k", "two")
	r.tells(t, k, "app", "Ready", "True", "ReconciliationSucceeded", "Applied revision: latest@"+digest)
}

// indexed waits until a HelmRepository has an index and returns its artifact.
func (r *row) indexed(t *testing.T, name string) (*sourcev1.HelmRepository, *fluxmeta.Artifact) {
	t.Helper()
	o := &sourcev1.HelmRepository{}
	c := r.tells(t, o, name, "Ready", "True", "Succeeded", "stored artifact: revision 'sha256:")
	_, revision, _ := strings.Cut(strings.TrimSuffix(c.Message, "'"), "'")
	return o, r.artifact(t, o, name, revision)
}

func (h *helmSpec) helmRepositoryIndex(t *testing.T) {
	r := h.row(t)
	charts := origins.StartCharts(origins.Login{})
	t.Cleanup(charts.Close)
	charts.Add(app("app", "1.0.0"))
	r.make(t, "HelmRepository", "own", "{url: \""+charts.URL()+"\", interval: 10m}")
	o, a := r.indexed(t, "own")
	r.event(t, "HelmRepository", "own", "NewArtifact", "stored fetched index of size ")
	index := fetch(t, a)
	if !json.Valid(index) || !strings.Contains(string(index), `"1.0.0"`) {
		t.Errorf("the index is %.200s", index)
	}
	if a.Path != "helmrepository/"+r.ns+"/own/index-"+strings.TrimPrefix(a.Revision, "sha256:")+".yaml" || !strings.HasSuffix(o.Status.URL, "/helmrepository/"+r.ns+"/own/index.yaml") {
		t.Errorf("path %s, URL %s", a.Path, o.Status.URL)
	}
	if want := "sha256:744419e19d089620ba1b83ea766ccd77853e7980781986933991229bb7b7978a"; a.Revision != want {
		t.Errorf("the revision is %s, Flux's is %s", a.Revision, want)
	}
	first := a.Revision
	charts.Add(app("app", "1.1.0"))
	r.answered(t, o, "own")
	if _, a := r.indexed(t, "own"); a.Revision == first {
		t.Error("the index with another chart has the same revision")
	}
}

const basicAuth = "apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: $ns}\nstringData: {username: cascade, password: %s}\n"

func (h *helmSpec) helmRepositoryAuth(t *testing.T) {
	r := h.row(t)
	charts := origins.StartCharts(origins.Login{Username: "cascade", Password: "hunter2hunter2"})
	t.Cleanup(charts.Close)
	charts.Add(app("app", "1.0.0"))
	o := &sourcev1.HelmRepository{}
	r.make(t, "HelmRepository", "own", "{url: \""+charts.URL()+"\", interval: 10m, secretRef: {name: login}}")
	r.tells(t, o, "own", "Ready", "False", "AuthenticationFailed", `...secrets "login" not found`)
	r.apply(t, r.fill(fmt.Sprintf(basicAuth, "login", "wrong")))
	r.ask(t, o, "own")
	r.tells(t, o, "own", "Ready", "False", "Failed", "...401 Unauthorized")
	r.apply(t, r.fill(fmt.Sprintf(basicAuth, "login", "hunter2hunter2")))
	r.ask(t, o, "own")
	r.indexed(t, "own")
	r.release(t, "web", "chart: {spec: {sourceRef: {name: own}}}")
	r.released(t, "web", 1)
}

// helmRepositoryPassCredentials: an index may name charts on another host, which
// is given the credentials only if that is said.
func (h *helmSpec) helmRepositoryPassCredentials(t *testing.T) {
	r := h.row(t)
	login := origins.Login{Username: "cascade", Password: "hunter2hunter2"}
	charts, elsewhere, guarded := origins.StartCharts(login), origins.StartCharts(origins.Login{}), origins.StartCharts(login)
	for _, s := range []*origins.Charts{charts, elsewhere, guarded} {
		t.Cleanup(s.Close)
	}
	open, closed := app("open", "1.0.0"), app("closed", "1.0.0")
	elsewhere.Add(open)
	guarded.Add(closed)
	charts.AddArchive(open, elsewhere.URL()+"/open-1.0.0.tgz", nil)
	charts.AddArchive(closed, guarded.URL()+"/closed-1.0.0.tgz", nil)
	r.apply(t, r.fill(fmt.Sprintf(basicAuth, "login", login.Password)))
	r.make(t, "HelmRepository", "own", "{url: \""+charts.URL()+"\", interval: 10m, secretRef: {name: login}}")
	r.make(t, "HelmRepository", "passing", "{url: \""+charts.URL()+"\", interval: 10m, secretRef: {name: login}, passCredentials: true}")
	r.indexed(t, "own")
	r.indexed(t, "passing")
	chart := "{chart: %s, interval: 10m, sourceRef: {kind: HelmRepository, name: %s}}"
	r.make(t, "HelmChart", "open", fmt.Sprintf(chart, "open", "own"))
	r.artifact(t, &sourcev1.HelmChart{}, "open", "1.0.0")
	for _, asked := range elsewhere.Requests() {
		if asked.Authorization != "" {
			t.Errorf("%s was sent to another host", asked.Authorization)
		}
	}
	r.make(t, "HelmChart", "closed", fmt.Sprintf(chart, "closed", "own"))
	r.tells(t, &sourcev1.HelmChart{}, "closed", "Ready", "False", "", "...401")
	r.make(t, "HelmChart", "passed", fmt.Sprintf(chart, "closed", "passing"))
	r.artifact(t, &sourcev1.HelmChart{}, "passed", "1.0.0")
}

// helmRepositoryOCI: it is a name for others, and nothing is reconciled.
func (h *helmSpec) helmRepositoryOCI(t *testing.T) {
	r := h.row(t)
	if _, err := h.registry.PushChart(r.ns, app("app", "1.0.0")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.registry.PushChart(r.ns, app("app", "1.1.0")); err != nil {
		t.Fatal(err)
	}
	r.make(t, "HelmRepository", "registry", "{type: oci, insecure: true, url: \""+h.registry.URL(r.ns)+"\"}")
	r.make(t, "HelmChart", "chart", "{chart: app, version: 1.x, interval: 10m, sourceRef: {kind: HelmRepository, name: registry}}")
	c := &sourcev1.HelmChart{}
	a := r.artifact(t, c, "chart", "1.1.0")
	if got := fetch(t, a); string(got) != string(app("app", "1.1.0").Pack()) {
		t.Errorf("what is served is not the chart that was pushed: %d bytes", len(got))
	}
	r.tells(t, c, "chart", "Ready", "True", "ChartPullSucceeded", "pulled 'app' chart with version '1.1.0'")
	o := &sourcev1.HelmRepository{}
	if err := r.load(t.Context(), o, r.ns, "registry"); err != nil || len(o.Status.Conditions) != 0 || len(o.Finalizers) != 0 || o.Status.Artifact != nil {
		t.Errorf("status %+v, finalizers %v, %v", o.Status, o.Finalizers, err)
	}
}

func (h *helmSpec) helmRepositoryFailures(t *testing.T) {
	r := h.row(t)
	o := &sourcev1.HelmRepository{}
	r.make(t, "HelmRepository", "missing", "{url: \"http://"+h.registry.Address()+"/nowhere\", interval: 10m}")
	r.tells(t, o, "missing", "Ready", "False", "Failed", "...404")
	r.tells(t, o, "missing", "FetchFailed", "True", "Failed", "...404")
	broken := origins.StartCharts(origins.Login{})
	t.Cleanup(broken.Close)
	broken.Fault(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "entries: [") }))
	r.make(t, "HelmRepository", "broken", "{url: \""+broken.URL()+"\", interval: 10m}")
	r.tells(t, o, "broken", "Ready", "False", "IndexationFailed", "")
}

func (h *helmSpec) helmChartVersions(t *testing.T) {
	r := h.row(t)
	charts := origins.StartCharts(origins.Login{})
	t.Cleanup(charts.Close)
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0-rc.1", "2.0.0"} {
		charts.Add(app("app", version))
	}
	r.make(t, "HelmRepository", "own", "{url: \""+charts.URL()+"\", interval: 10m}")
	r.indexed(t, "own")
	for _, c := range []struct{ name, version, want, reason string }{
		{"range", "1.x", "1.1.0", "the greatest in the range"},
		{"any", "'*'", "2.0.0", "the default is any that is released"},
		{"before", "'>=1.2.0-0 <2.0.0'", "1.2.0-rc.1", "versions before a release count where the range has one"},
		{"exact", "1.0.0", "1.0.0", "one version"},
	} {
		t.Logf("%s: %s", c.name, c.reason)
		r.make(t, "HelmChart", c.name, "{chart: app, version: "+c.version+", interval: 10m, sourceRef: {kind: HelmRepository, name: own}}")
		o := &sourcev1.HelmChart{}
		a := r.artifact(t, o, c.name, c.want)
		r.tells(t, o, c.name, "Ready", "True", "ChartPullSucceeded", "pulled 'app' chart with version '"+c.want+"'")
		if o.Status.ObservedChartName != "app" || !strings.HasSuffix(a.Path, "/app-"+c.want+".tgz") || !strings.HasSuffix(o.Status.URL, "/helmchart/"+r.ns+"/"+c.name+"/latest.tar.gz") {
			t.Errorf("%s: path %s, status %+v", c.name, a.Path, o.Status)
		}
	}
	// What the index has new is taken without being asked.
	charts.Add(app("app", "1.3.0"))
	r.ask(t, &sourcev1.HelmRepository{}, "own")
	r.artifact(t, &sourcev1.HelmChart{}, "range", "1.3.0")
	r.event(t, "HelmChart", "range", "ChartPullSucceeded", "pulled 'app' chart with version '1.3.0'")
}

// inTree are the files of a chart below a directory.
func inTree(dir string, c origins.Chart) map[string]string {
	files := map[string]string{}
	for name, text := range c.Tree() {
		files[path.Join(dir, name)] = text
	}
	return files
}

func (h *helmSpec) helmChartGit(t *testing.T) {
	r := h.gitRow(t, inTree("charts/app", app("app", "1.0.0")))
	chart := "{chart: ./charts/app, interval: 10m, sourceRef: {kind: GitRepository, name: git}, reconcileStrategy: %s}"
	r.make(t, "HelmChart", "version", fmt.Sprintf(chart, "ChartVersion"))
	r.make(t, "HelmChart", "revision", fmt.Sprintf(chart, "Revision"))
	o := &sourcev1.HelmChart{}
	r.artifact(t, o, "version", "1.0.0")
	r.tells(t, o, "version", "Ready", "True", "ChartPackageSucceeded", "packaged 'app' chart with version '1.0.0'")
	if o.Status.ObservedSourceArtifactRevision != "main@sha1:"+r.head {
		t.Errorf("status is %+v", o.Status)
	}
	r.artifact(t, o, "revision", "1.0.0+"+r.head[:12])
	r.tells(t, o, "revision", "Ready", "True", "ChartPackageSucceeded", "packaged 'app' chart with version '1.0.0+"+r.head[:12]+"'")
	// Its version is what counts for one, any commit for the other.
	r.commit(t, map[string]string{"charts/app/values.yaml": "settings: {color: blue}\nobjects: []\nrefuse: \"\"\n"})
	r.artifact(t, o, "revision", "1.0.0+"+r.head[:12])
	if files := unpacked(t, fetch(t, o.GetArtifact())); !strings.Contains(files["app/values.yaml"], "blue") {
		t.Errorf("values are %s", files["app/values.yaml"])
	}
	r.answered(t, o, "version")
	if files := unpacked(t, fetch(t, r.artifact(t, o, "version", "1.0.0"))); !strings.Contains(files["app/values.yaml"], "red") {
		t.Errorf("values are %s", files["app/values.yaml"])
	}
	r.commit(t, map[string]string{"charts/app/Chart.yaml": app("app", "1.1.0").Metadata()})
	r.artifact(t, o, "version", "1.1.0")
}

func (h *helmSpec) helmChartBucket(t *testing.T) {
	r := h.row(t)
	r.bucketOf(t, "bucket", inTree("charts/app", app("app", "1.0.0")))
	r.make(t, "HelmChart", "chart", "{chart: charts/app, interval: 10m, sourceRef: {kind: Bucket, name: bucket}}")
	o := &sourcev1.HelmChart{}
	r.artifact(t, o, "chart", "1.0.0")
	r.tells(t, o, "chart", "Ready", "True", "ChartPackageSucceeded", "packaged 'app' chart with version '1.0.0'")
}

func (h *helmSpec) helmChartValuesFiles(t *testing.T) {
	more := map[string]string{"values-blue.yaml": "settings: {color: blue}\n", "values-more.yaml": "settings: {more: here}\n"}
	r := h.row(t, with(app("$ns", "1.0.0"), more))
	chart := "{chart: $ns, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}, valuesFiles: [%s]%s}"
	r.make(t, "HelmChart", "chart", fmt.Sprintf(chart, "values.yaml, values-blue.yaml, values-more.yaml", ""))
	o := &sourcev1.HelmChart{}
	a := r.artifact(t, o, "chart", "1.0.0+1")
	values := unpacked(t, fetch(t, a))[r.ns+"/values.yaml"]
	if values != "objects: []\nrefuse: \"\"\nsettings:\n  color: blue\n  more: here\n" {
		t.Errorf("values are\n%s", values)
	}
	r.tells(t, o, "chart", "Ready", "True", "ChartPackageSucceeded", "packaged '"+r.ns+"' chart with version '1.0.0+1' and merged values files [values.yaml values-blue.yaml values-more.yaml]")
	r.make(t, "HelmChart", "missing", fmt.Sprintf(chart, "values.yaml, nowhere.yaml", ""))
	r.tells(t, o, "missing", "Ready", "False", "ValuesFilesError", "values files merge error: ")
	r.make(t, "HelmChart", "missing", fmt.Sprintf(chart, "values.yaml, nowhere.yaml", ", ignoreMissingValuesFiles: true"))
	r.artifact(t, o, "missing", "1.0.0+2")
	if diff := cmp.Diff([]string{"values.yaml"}, o.Status.ObservedValuesFiles); diff != "" {
		t.Errorf("observed: -want, +got:\n%s", diff)
	}
	// Through a HelmRelease.
	r.release(t, "web", "chart: {spec: {chart: $ns, valuesFiles: [values.yaml, values-blue.yaml]}}")
	r.released(t, "web", 1)
	r.has(t, "web-settings", "color", "blue")
}

// helmChartDependencies: what Chart.yaml asks for is fetched from where it says,
// a directory or a repository.
func (h *helmSpec) helmChartDependencies(t *testing.T) {
	parent := app("parent", "1.0.0")
	parent.More = "dependencies:\n- {name: app, version: 1.x, repository: \"" + h.charts.URL() + "\"}\n- {name: local, version: 0.1.0, repository: \"file://../local\"}\n"
	files := inTree("charts/parent", parent)
	for name, text := range inTree("charts/local", app("local", "0.1.0")) {
		files[name] = text
	}
	r := h.gitRow(t, files)
	r.make(t, "HelmChart", "chart", "{chart: ./charts/parent, interval: 10m, sourceRef: {kind: GitRepository, name: git}}")
	o := &sourcev1.HelmChart{}
	a := r.artifact(t, o, "chart", "1.0.0")
	var got []string
	for name := range unpacked(t, fetch(t, a)) {
		if strings.HasSuffix(name, "Chart.yaml") {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"parent/Chart.yaml", "parent/charts/app/Chart.yaml", "parent/charts/local/Chart.yaml"}, got); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	r.commit(t, map[string]string{"charts/broken/Chart.yaml": strings.ReplaceAll(parent.Metadata(), "1.x", "7.x"), "charts/broken/values.yaml": "{}\n"})
	r.fetched(t)
	r.make(t, "HelmChart", "broken", "{chart: ./charts/broken, interval: 10m, sourceRef: {kind: GitRepository, name: git}}")
	r.tells(t, o, "broken", "Ready", "False", "DependencyBuildError", "dependency build error: ")
}

func (h *helmSpec) helmChartFailures(t *testing.T) {
	r := h.gitRow(t, map[string]string{"charts/broken/Chart.yaml": "name: [", "charts/app/Chart.yaml": "apiVersion: v2\nname: app\nversion: one\n"})
	r.make(t, "HelmRepository", "charts", "{url: \""+h.charts.URL()+"\", interval: 10m}")
	r.indexed(t, "charts")
	o := &sourcev1.HelmChart{}
	for _, c := range []struct{ name, spec, condition, reason, message string }{
		{"nowhere", "{chart: app, interval: 10m, sourceRef: {kind: HelmRepository, name: nowhere}}", "FetchFailed", "SourceUnavailable", "failed to get source: "},
		{"chart", "{chart: nowhere, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}", "FetchFailed", "InvalidChartReference", "invalid chart reference: "},
		{"version", "{chart: app, version: 7.x, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}", "FetchFailed", "InvalidChartReference", "invalid chart reference: "},
		{"path", "{chart: ./charts/nowhere, interval: 10m, sourceRef: {kind: GitRepository, name: git}}", "FetchFailed", "InvalidChartReference", "invalid chart reference: "},
		{"broken", "{chart: ./charts/broken, interval: 10m, sourceRef: {kind: GitRepository, name: git}}", "BuildFailed", "", ""},
		{"metadata", "{chart: ./charts/app, interval: 10m, sourceRef: {kind: GitRepository, name: git}}", "BuildFailed", "", ""},
	} {
		r.make(t, "HelmChart", c.name, c.spec)
		if c.reason == "" {
			eventually(t, converge, c.name+" is refused", func(ctx context.Context) error {
				if err := r.load(ctx, o, r.ns, c.name); err != nil {
					return err
				}
				if f := meta.FindStatusCondition(o.Status.Conditions, "Ready"); f == nil || f.Status != "False" {
					return fmt.Errorf("conditions are %s", summary(o.Status.Conditions))
				}
				return nil
			})
			t.Logf("%s: %s", c.name, summary(o.Status.Conditions))
			continue
		}
		r.tells(t, o, c.name, "Ready", "False", c.reason, c.message)
		r.tells(t, o, c.name, c.condition, "True", c.reason, c.message)
	}
	r.release(t, "web", "chart: {spec: {version: 7.x}}")
	r.releaseTells(t, "web", "Ready", "False", "SourceNotReady", "HelmChart '"+r.ns+"/"+r.ns+"-web' is not ready: invalid chart reference: ")
}

func (h *helmSpec) helmChartVerify(t *testing.T) {
	r := h.row(t)
	ours := r.cosignKey(t, "ours")
	r.cosignKey(t, "theirs")
	digest, err := h.registry.PushChart(r.ns, app("app", "1.0.0"))
	if err == nil {
		err = sign(h.registry, ours, r.ns+"/app", digest)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.make(t, "HelmRepository", "registry", "{type: oci, insecure: true, url: \""+h.registry.URL(r.ns)+"\"}")
	chart := "{chart: app, interval: 10m, sourceRef: {kind: HelmRepository, name: registry}, verify: {provider: cosign, secretRef: {name: %s}}}"
	o := &sourcev1.HelmChart{}
	r.make(t, "HelmChart", "ours", fmt.Sprintf(chart, "ours"))
	r.artifact(t, o, "ours", "1.0.0")
	r.tells(t, o, "ours", "SourceVerified", "True", "Succeeded", "verified signature of version 1.0.0")
	r.make(t, "HelmChart", "theirs", fmt.Sprintf(chart, "theirs"))
	r.tells(t, o, "theirs", "SourceVerified", "False", "VerificationError", "chart verification error: failed to verify ")
	r.tells(t, o, "theirs", "BuildFailed", "True", "ChartVerificationError", "chart verification error: failed to verify ")
	if o.GetArtifact() != nil {
		t.Errorf("the artifact is %+v", o.GetArtifact())
	}
}

// bucketOf puts files into a bucket of the row's, and makes a Bucket of it.
func (r *helmRow) bucketOf(t *testing.T, name string, files map[string]string, more ...string) {
	t.Helper()
	if err := r.h.buckets.Put(r.ns, files); err != nil {
		t.Fatal(err)
	}
	r.apply(t, r.fill(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: bucket-keys, namespace: $ns}\nstringData: {accesskey: %s, secretkey: hunter2hunter2}\n", bucketKey)))
	r.make(t, "Bucket", name, "{bucketName: $ns, endpoint: \""+r.h.buckets.Address()+"\", insecure: true, interval: 10m, secretRef: {name: bucket-keys}"+strings.Join(append([]string{""}, more...), ", ")+"}")
}

func (h *helmSpec) bucket(t *testing.T) {
	r := h.row(t)
	files := map[string]string{".sourceignore": "docs/\n", "app/a.yaml": cm("a", "", "{k: one}"), "docs/readme.md": "Read me.\n", "apps/b.yaml": cm("b", "", "{k: one}")}
	r.bucketOf(t, "bucket", files)
	o := &sourcev1.Bucket{}
	a := r.artifact(t, o, "bucket", "")
	if want := "sha256:abd5c76b0a7acd0ab2c9007e59ff755f54e901846c02e948a533e8e482deedcc"; a.Revision != want {
		t.Errorf("the revision is %s, Flux's is %s", a.Revision, want)
	}
	r.tells(t, o, "bucket", "Ready", "True", "Succeeded", "stored artifact: revision '"+a.Revision+"'")
	r.event(t, "Bucket", "bucket", "NewArtifact", "fetched files from '"+r.ns+"' bucket")
	if diff := cmp.Diff(map[string]string{".sourceignore": "docs/\n", "app/a.yaml": files["app/a.yaml"], "apps/b.yaml": files["apps/b.yaml"]}, unpacked(t, fetch(t, a))); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
	if want := "sha256:cc03373ca984c1f1ca859a0649813439c7dbf3f6454cab872b5279adeb8877d6"; a.Digest != want {
		t.Errorf("the artifact's digest is %s, Flux's is %s", a.Digest, want)
	}
	if !strings.HasSuffix(o.Status.URL, "/bucket/"+r.ns+"/bucket/latest.tar.gz") {
		t.Errorf("the URL is %s", o.Status.URL)
	}
	// Nothing new is nothing to download.
	before := h.buckets.Count("GET", r.ns+"/app/a.yaml", 200)
	r.answered(t, o, "bucket")
	if got := h.buckets.Count("GET", r.ns+"/app/a.yaml", 200); before == 0 || got != before {
		t.Errorf("the file was downloaded %d times, then %d", before, got)
	}
	first := a.Revision
	if err := h.buckets.Put(r.ns, map[string]string{"app/a.yaml": cm("a", "", "{k: two}"), "apps/b.yaml": ""}); err != nil {
		t.Fatal(err)
	}
	r.answered(t, o, "bucket")
	if a := o.GetArtifact(); a.Revision == first {
		t.Error("other files have the same revision")
	}
	if diff := cmp.Diff(map[string]string{".sourceignore": "docs/\n", "app/a.yaml": cm("a", "", "{k: two}")}, unpacked(t, fetch(t, o.GetArtifact()))); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
	// A prefix names keys, not directories; what is ignored is not fetched.
	r.bucketOf(t, "prefix", map[string]string{"apps/b.yaml": cm("b", "", "{}"), "other/c.yaml": cm("c", "", "{}")}, "prefix: app", "ignore: \"/apps\\n\"")
	if diff := cmp.Diff(map[string]string{".sourceignore": "docs/\n", "app/a.yaml": cm("a", "", "{k: two}")}, unpacked(t, fetch(t, r.artifact(t, o, "prefix", "")))); diff != "" {
		t.Errorf("content: -want, +got:\n%s", diff)
	}
	if h.buckets.Count("GET", r.ns+"/apps/b.yaml", 200) > 1 || h.buckets.Count("GET", r.ns+"/other/c.yaml", 200) > 0 {
		t.Error("what nobody wants was downloaded")
	}
}

func (h *helmSpec) bucketFailures(t *testing.T) {
	r := h.row(t)
	o := &sourcev1.Bucket{}
	r.bucketOf(t, "bucket", map[string]string{"a.yaml": cm("a", "", "{}")})
	r.tells(t, o, "bucket", "Ready", "True", "Succeeded", "")
	r.make(t, "Bucket", "nowhere", "{bucketName: nowhere-at-all, endpoint: \""+h.buckets.Address()+"\", insecure: true, interval: 10m, secretRef: {name: bucket-keys}}")
	r.tells(t, o, "nowhere", "Ready", "False", "BucketOperationFailed", "...'nowhere-at-all'")
	r.make(t, "Bucket", "missing", "{bucketName: $ns, endpoint: \""+h.buckets.Address()+"\", insecure: true, interval: 10m, secretRef: {name: nowhere}}")
	r.tells(t, o, "missing", "Ready", "False", "AuthenticationFailed", "...nowhere")
	r.apply(t, r.fill("apiVersion: v1\nkind: Secret\nmetadata: {name: wrong, namespace: $ns}\nstringData: {accesskey: wrong, secretkey: hunter2hunter2}\n"))
	r.make(t, "Bucket", "wrong", "{bucketName: $ns, endpoint: \""+h.buckets.Address()+"\", insecure: true, interval: 10m, secretRef: {name: wrong}}")
	c := r.tells(t, o, "wrong", "Ready", "False", "BucketOperationFailed", "")
	if strings.Contains(c.Message, "hunter2") {
		t.Errorf("the message is %q", c.Message)
	}
	r.apply(t, r.fill("apiVersion: v1\nkind: Secret\nmetadata: {name: empty, namespace: $ns}\nstringData: {accesskey: wrong}\n"))
	r.make(t, "Bucket", "empty", "{bucketName: $ns, endpoint: \""+h.buckets.Address()+"\", insecure: true, interval: 10m, secretRef: {name: empty}}")
	r.tells(t, o, "empty", "Ready", "False", "AuthenticationFailed", "...accesskey")
}

func (h *helmSpec) bucketKustomization(t *testing.T) {
	r := h.row(t)
	r.bucketOf(t, "bucket", pushed)
	r.kustomization(t, "app", "sourceRef: {kind: Bucket, name: bucket}")
	a := r.artifact(t, &sourcev1.Bucket{}, "bucket", "")
	r.tells(t, &kustomizev1.Kustomization{}, "app", "Ready", "True", "ReconciliationSucceeded", "Applied revision: "+a.Revision)
	r.has(t, "a", "k", "one")
}

// releaseFromOCIRepository: the digest is in the chart's version.
func (h *helmSpec) releaseFromOCIRepository(t *testing.T) {
	r := h.row(t)
	digest, err := h.registry.PushChart(r.ns, app("app", "1.0.0"))
	if err != nil {
		t.Fatal(err)
	}
	layer := "layerSelector: {mediaType: application/vnd.cncf.helm.chart.content.v1.tar+gzip, operation: copy}"
	r.make(t, "OCIRepository", "chart", "{insecure: true, url: \""+h.registry.URL(r.ns+"/app")+"\", interval: 10m, ref: {semver: '*'}, "+layer+"}")
	r.release(t, "web", "{chart: null, chartRef: {kind: OCIRepository, name: chart}}")
	o := r.released(t, "web", 1)
	version := "1.0.0+" + strings.TrimPrefix(digest, "sha256:")[:12]
	r.releaseTells(t, "web", "Ready", "True", "InstallSucceeded", "Helm install succeeded for release "+r.ns+"/web.v1 with chart app@"+version)
	if s := o.Status.History.Latest(); s.ChartVersion != version || s.OCIDigest != digest || o.Status.LastAttemptedRevision != version || o.Status.LastAttemptedRevisionDigest != digest || o.Status.HelmChart != "" {
		t.Errorf("snapshot %+v, status %+v", s, o.Status)
	}
	if _, err := h.registry.PushChart(r.ns, app("app", "1.1.0")); err != nil {
		t.Fatal(err)
	}
	r.ask(t, &sourcev1.OCIRepository{}, "chart")
	r.released(t, "web", 2)
	// The layer may be unpacked as well.
	r.make(t, "OCIRepository", "unpacked", "{insecure: true, url: \""+h.registry.URL(r.ns+"/app")+"\", interval: 10m, ref: {tag: 1.0.0}}")
	r.release(t, "other", "{chart: null, chartRef: {kind: OCIRepository, name: unpacked}}")
	r.released(t, "other", 1)
	r.release(t, "none", "{chart: null, chartRef: {kind: OCIRepository, name: nowhere}}")
	r.releaseTells(t, "none", "Ready", "False", "ArtifactFailed", "could not get Source object: ")
}

func (h *helmSpec) releaseFromHelmChart(t *testing.T) {
	r := h.row(t)
	r.make(t, "HelmChart", "chart", "{chart: app, version: 1.0.0, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}")
	r.release(t, "web", "{chart: null, chartRef: {kind: HelmChart, name: chart}}")
	o := r.released(t, "web", 1)
	if o.Status.HelmChart != "" || o.Status.History.Latest().ChartVersion != "1.0.0" {
		t.Errorf("status is %+v", o.Status)
	}
	r.make(t, "HelmChart", "chart", "{chart: app, version: 1.1.0, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}")
	r.released(t, "web", 2)
	// What chart made goes when it is not wanted any more.
	r.release(t, "other", "{}")
	r.released(t, "other", 1)
	r.release(t, "other", "{chart: null, chartRef: {kind: HelmChart, name: chart}}")
	r.released(t, "other", 2)
	r.gone(t, &sourcev1.HelmChart{}, r.ns+"-other")
	// The user's own stays.
	r.delete(t, &helmv2.HelmRelease{}, "web")
	r.gone(t, &helmv2.HelmRelease{}, "web")
	r.artifact(t, &sourcev1.HelmChart{}, "chart", "1.1.0")
}

// releaseFromExternalArtifact: what a third party names, it has from a HelmChart
// here.
func (h *helmSpec) releaseFromExternalArtifact(t *testing.T) {
	r := h.row(t)
	r.make(t, "HelmChart", "chart", "{chart: app, version: 1.0.0, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}")
	a := r.artifact(t, &sourcev1.HelmChart{}, "chart", "1.0.0").DeepCopy()
	r.release(t, "web", "{chart: null, chartRef: {kind: ExternalArtifact, name: made}}")
	r.releaseTells(t, "web", "Ready", "False", "ArtifactFailed", "could not get Source object: ")
	e := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "made"}}
	if err := r.client.Create(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	a.Revision = "latest@" + a.Digest
	e.Status.Artifact = a
	e.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Succeeded", LastTransitionTime: metav1.Now()}}
	if err := r.client.Status().Update(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	r.request(t, "web")
	o := r.released(t, "web", 1)
	if s := o.Status.History.Latest(); s.ChartVersion != "1.0.0+"+strings.TrimPrefix(a.Digest, "sha256:")[:12] || s.OCIDigest != a.Revision {
		t.Errorf("snapshot %+v", s)
	}
	r.has(t, "web-settings", "color", "red")
}

func (h *helmSpec) releaseFromGit(t *testing.T) {
	r := h.gitRow(t, inTree("charts/app", app("app", "1.0.0")))
	r.release(t, "web", "chart: {spec: {chart: ./charts/app, version: null, sourceRef: {kind: GitRepository, name: git}, reconcileStrategy: Revision}}")
	o := r.released(t, "web", 1)
	if got := o.Status.History.Latest().ChartVersion; got != "1.0.0+"+r.head[:12] {
		t.Errorf("the chart's version is %s", got)
	}
	r.commit(t, map[string]string{"charts/app/values.yaml": "settings: {color: blue}\nobjects: []\nrefuse: \"\"\n"})
	r.has(t, "web-settings", "color", "blue")
	r.released(t, "web", 2)
}

func (h *helmSpec) releaseFromBucket(t *testing.T) {
	r := h.row(t)
	r.bucketOf(t, "bucket", inTree("app", app("app", "1.0.0")))
	r.release(t, "web", "chart: {spec: {chart: ./app, version: null, sourceRef: {kind: Bucket, name: bucket}}}")
	r.released(t, "web", 1)
	r.has(t, "web-settings", "color", "red")
}

func (h *helmSpec) releaseFromOCIChart(t *testing.T) {
	r := h.row(t)
	for _, version := range []string{"1.0.0", "1.1.0"} {
		if _, err := h.registry.PushChart(r.ns, app("app", version)); err != nil {
			t.Fatal(err)
		}
	}
	r.make(t, "HelmRepository", "registry", "{type: oci, insecure: true, url: \""+h.registry.URL(r.ns)+"\"}")
	r.release(t, "web", "chart: {spec: {version: 1.0.x, sourceRef: {name: registry}}}")
	r.released(t, "web", 1)
	r.release(t, "web", "chart: {spec: {version: 1.x, sourceRef: {name: registry}}}")
	o := r.released(t, "web", 2)
	if got := o.Status.History.Latest().ChartVersion; got != "1.1.0" {
		t.Errorf("the chart's version is %s", got)
	}
}

func (h *helmSpec) sourcesSuspended(t *testing.T) {
	r := h.row(t)
	digest := h.push(t, r.ns, "latest", pushed, nil)
	r.make(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.registry.URL(r.ns)+"\", interval: 1s}")
	r.artifact(t, &sourcev1.OCIRepository{}, "oci", "latest@"+digest)
	r.make(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.registry.URL(r.ns)+"\", interval: 1s, suspend: true}")
	r.bucketOf(t, "bucket", pushed, "suspend: true")
	next := h.push(t, r.ns, "latest", map[string]string{"another": "one"}, nil)
	o := &sourcev1.OCIRepository{}
	r.make(t, "OCIRepository", "other", "{insecure: true, url: \""+h.registry.URL(r.ns)+"\", interval: 1s}")
	r.artifact(t, &sourcev1.OCIRepository{}, "other", "latest@"+next)
	if err := r.load(t.Context(), o, r.ns, "oci"); err != nil || o.GetArtifact().Revision != "latest@"+digest {
		t.Errorf("artifact %+v, %v", o.GetArtifact(), err)
	}
	b := &sourcev1.Bucket{}
	if err := r.load(t.Context(), b, r.ns, "bucket"); err != nil || b.GetArtifact() != nil {
		t.Errorf("artifact %+v, %v", b.GetArtifact(), err)
	}
	r.make(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.registry.URL(r.ns)+"\", interval: 1s, suspend: false}")
	r.artifact(t, o, "oci", "latest@"+next)
}

// sourcesDeleted: with a source goes what was served of it.
func (h *helmSpec) sourcesDeleted(t *testing.T) {
	r := h.row(t)
	digest := h.push(t, r.ns, "latest", pushed, nil)
	r.make(t, "OCIRepository", "oci", "{insecure: true, url: \""+h.registry.URL(r.ns)+"\", interval: 10m}")
	a := r.artifact(t, &sourcev1.OCIRepository{}, "oci", "latest@"+digest)
	fetch(t, a)
	r.delete(t, &sourcev1.OCIRepository{}, "oci")
	r.gone(t, &sourcev1.OCIRepository{}, "oci")
	eventually(t, converge, "nothing is served of it", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusNotFound {
			return errors.New(response.Status)
		}
		return nil
	})
}
