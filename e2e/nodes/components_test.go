package nodes

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// tierFiles is a repository with the components of the providers, whose images are those of the
// suite's registry, and with what the tier has besides: definitions of a provider that there is
// not, and a Cluster.
func (s *stand) tierFiles(t *testing.T) map[string]string {
	t.Helper()
	programs := scenario.Path(t, "bin", "images")
	names := map[string]string{}
	for _, i := range []struct{ published, name, path, program, user string }{
		{"quay.io/jetstack/cert-manager-controller", "cert-manager-controller", "app/cmd/controller/controller", "cert-manager/controller", "1000"},
		{"quay.io/jetstack/cert-manager-webhook", "cert-manager-webhook", "app/cmd/webhook/webhook", "cert-manager/webhook", "1000"},
		{"quay.io/jetstack/cert-manager-cainjector", "cert-manager-cainjector", "app/cmd/cainjector/cainjector", "cert-manager/cainjector", "1000"},
		{"gcr.io/k8s-staging-cluster-api/cluster-api-controller", "cluster-api-controller", "manager", "cluster-api/manager", "65532"},
	} {
		image := fromScratch(t, map[string]string{i.path: filepath.Join(programs, i.program)}, "/"+i.path)
		s.registry.push(t, i.name, as(t, i.user, image))
		names[i.published] = s.pullable("public/" + i.name)
	}
	files := map[string]string{"tier/cluster.yaml": oldCluster}
	components := os.DirFS(scenario.Path(t, "bin", "components", "nodes"))
	if err := fs.WalkDir(components, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(components, name)
		if strings.HasSuffix(name, "/metadata.yaml") {
			files["components/"+name] = string(text)
			return err
		}
		files["components/"+name] = withImages(t, text, names)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"localclusters.yaml", "localcontrolplanes.yaml"} {
		text, err := os.ReadFile(scenario.Path(t, "e2e", "local", "config", "crd", name))
		if err != nil {
			t.Fatal(err)
		}
		files["tier/"+name] = string(text)
	}
	return files
}

// withImages replaces the names of images in manifests by kustomize, as a person does who has
// a registry.
func withImages(t *testing.T, manifests []byte, names map[string]string) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("resources: [components.yaml]\nimages:\n")
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&text, "- {name: %s, newName: %s, newTag: \"1\"}\n", name, names[name])
	}
	dir := filesys.MakeFsInMemory()
	for name, content := range map[string][]byte{"components.yaml": manifests, "kustomization.yaml": []byte(text.String())} {
		if err := dir.WriteFile(name, content); err != nil {
			t.Fatal(err)
		}
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(dir, ".")
	if err != nil {
		t.Fatal(err)
	}
	out, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// ownTier is the tier's own cluster as a child, and the Layer with its providers.
func ownTier(url, certManager, core string) string {
	return fmt.Sprintf(`apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: tier, namespace: cascade-system}
spec: {url: %q, ref: {branch: main}, secretRef: {name: git-auth}, interval: 2s}
---
apiVersion: cascade.dev/v1alpha1
kind: Child
metadata: {name: self, namespace: cascade-system, labels: {tier: own}}
spec: {inCluster: true}
---
apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: providers, namespace: cascade-system}
spec:
  clusterSelector: {matchLabels: {tier: own}}
  sourceRef: {kind: GitRepository, name: tier}
  path: ./tier
  providers:
    path: ./components
    certManager: {version: %s}
    core: {version: %s}
  interval: 10m
  timeout: 5m
`, url, certManager, core)
}

// versionOf is the version of the components that were made.
func versionOf(t *testing.T, provider string) string {
	t.Helper()
	dir := scenario.Path(t, "bin", "components", "nodes", provider)
	versions, err := os.ReadDir(dir)
	if err != nil || len(versions) != 1 {
		t.Fatalf("there are %d versions in %s: %v; remove it, and make it again", len(versions), dir, err)
	}
	return versions[0].Name()
}

// oldCluster is a Cluster in the version that Cluster API had before, which its API server
// does not store.
const oldCluster = `apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata: {name: old, namespace: default}
spec:
  clusterNetwork: {pods: {cidrBlocks: [10.1.0.0/16]}}
  infrastructureRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1, kind: LocalCluster, name: old}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: LocalCluster
metadata: {name: old, namespace: default}
`
