package scenario

import (
	"context"
	"fmt"
	"path"
	"strings"
	"testing"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cascade-gitops/cascade/e2e/origins"
)

// Artifact waits until a source is ready and has an artifact of a revision, where "" is
// any.
func (r *Row) Artifact(t *testing.T, o interface {
	Reporter
	GetArtifact() *fluxmeta.Artifact
}, name, revision string) *fluxmeta.Artifact {
	t.Helper()
	var found *fluxmeta.Artifact
	Eventually(t, Converge, fmt.Sprintf("%T %s has revision %s", o, name, revision), func(ctx context.Context) error {
		if err := r.Load(ctx, o, r.Namespace, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(o.GetConditions(), fluxmeta.ReadyCondition)
		a := o.GetArtifact()
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return err
		}
		observed, _, _ := unstructured.NestedInt64(fields, "status", "observedGeneration")
		if c == nil || c.Status != metav1.ConditionTrue || observed != o.GetGeneration() || a == nil || revision != "" && a.Revision != revision {
			return fmt.Errorf("artifact %+v, conditions are %s", a, Summary(o.GetConditions()))
		}
		found = a
		return nil
	})
	return found
}

// ArtifactFiles are files of an artifact or a bucket, with a directory app to apply.
func ArtifactFiles() map[string]string {
	return map[string]string{"app/a.yaml": ConfigMapWith("a", "", "{k: one}"), "docs/readme.md": "Read me.\n", "nested/deep/b.yaml": ConfigMapWith("b", "", "{k: one}")}
}

// MakeSource creates or replaces a source.
func (r *HelmRow) MakeSource(t *testing.T, kind, name, spec string) {
	t.Helper()
	r.Apply(t, r.Fill(fmt.Sprintf("apiVersion: source.toolkit.fluxcd.io/v1\nkind: %s\nmetadata: {name: %s, namespace: $ns}\nspec: %s\n", kind, name, spec)))
}

// Push pushes files as an artifact and returns its digest.
func (h *HelmTier) Push(t *testing.T, repository, tag string, files, annotations map[string]string) string {
	t.Helper()
	digest, err := h.Registry.PushFiles(repository, tag, files, annotations)
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// DockerConfig creates a Secret with the login of a registry.
func (r *HelmRow) DockerConfig(t *testing.T, name, address, password string) {
	t.Helper()
	text := fmt.Sprintf(`{"auths":{%q:{"username":"cascade","password":%q}}}`, address, password)
	r.Apply(t, r.Fill(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: $ns}\ntype: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: %q}\n", name, text)))
}

// Indexed waits until a HelmRepository has an index and returns its artifact.
func (r *Row) Indexed(t *testing.T, name string) (*sourcev1.HelmRepository, *fluxmeta.Artifact) {
	t.Helper()
	o := &sourcev1.HelmRepository{}
	c := r.Tells(t, o, name, "Ready", "True", "Succeeded", "stored artifact: revision 'sha256:")
	_, revision, _ := strings.Cut(strings.TrimSuffix(c.Message, "'"), "'")
	return o, r.Artifact(t, o, name, revision)
}

// BasicAuth is a Secret with the login of an HTTP server, to be filled in with its name
// and the password.
const BasicAuth = "apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: $ns}\nstringData: {username: cascade, password: %s}\n"

// InTree are the files of a chart below a directory.
func InTree(dir string, c origins.Chart) map[string]string {
	files := map[string]string{}
	for name, text := range c.Tree() {
		files[path.Join(dir, name)] = text
	}
	return files
}

// Bucket puts files into a bucket of the row's name, and creates a Bucket for it.
func (r *HelmRow) Bucket(t *testing.T, name string, files map[string]string, more ...string) {
	t.Helper()
	if err := r.Helm.Buckets.Put(r.Namespace, files); err != nil {
		t.Fatal(err)
	}
	r.Apply(t, r.Fill(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: bucket-keys, namespace: $ns}\nstringData: {accesskey: %s, secretkey: hunter2hunter2}\n", BucketKey)))
	r.MakeSource(t, "Bucket", name, "{bucketName: $ns, endpoint: \""+r.Helm.Buckets.Address()+"\", insecure: true, interval: 10m, secretRef: {name: bucket-keys}"+strings.Join(append([]string{""}, more...), ", ")+"}")
}
