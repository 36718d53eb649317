package forecast

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/difference"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// The example fleet's MoM, at the first commit of its repository, and what commits would
// change in it.

const namespace = v1alpha1.AgentNamespace

// repository is a clone that the test commits to.
type repository struct {
	t     *testing.T
	dir   string
	git   *git.Repository
	first string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	r := &repository{t: t, dir: t.TempDir()}
	if err := os.CopyFS(r.dir, os.DirFS(filepath.Join("..", "..", "..", "e2e", "testdata", "repos", "masters"))); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		// What the fleet has not: objects of Cluster API by themselves, plain ones and a Secret.
		"site/namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: site}\n",
		"site/settings.yaml":  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: cascade-system}\ndata: {level: info, colour: blue}\n",
		"site/token.yaml":     "apiVersion: v1\nkind: Secret\nmetadata: {name: token, namespace: site}\nstringData: {token: old-token-7f3a}\n",
		"mom/site.yaml": "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: site, namespace: cascade-system}\n" +
			"spec: {sourceRef: {kind: GitRepository, name: masters}, path: ./site, prune: true, interval: 10m}\n",
		"byhand/cluster.yaml":      "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: edge, namespace: cascade-system, labels: {cascade.dev/tier: master, environment: edge}}\nspec: {}\n",
		"charts/node/Chart.yaml":   "name: node\nversion: 0.1.0\n",
		"charts/steady/Chart.yaml": "name: steady\nversion: 0.1.0\n",
		// Charts that are made of more than their directories, and one in a file.
		"charts/cloud/Chart.yaml":  "apiVersion: v2\nname: cloud\nversion: 0.1.0\ndependencies: [{name: lib, version: 0.1.0, repository: file://../lib}]\n",
		"charts/lib/Chart.yaml":    "apiVersion: v2\nname: lib\nversion: 0.1.0\n",
		"charts/linked/Chart.yaml": "name: linked\nversion: 0.1.0\n",
		"shared/motd":              "hello\n",
		// What an artifact generator copies, and another repository includes.
		"apps/staging/app.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app, namespace: cascade-system}\n",
		"apps/chart/Chart.yaml": "name: app\nversion: 0.1.0\n",
		"charts/packed.tgz":     packed(t, "0.1.0"),
		// Manifests of providers, of which one is a link.
		"providers/cluster-api/v1.13.4/metadata.yaml": "releaseSeries: []\n",
		"vendor/core.yaml":                            "apiVersion: v1\nkind: Namespace\nmetadata: {name: capi-system}\n",
		// What a Kustomization of the test applies to another cluster, under names of the tier.
		"there/settings.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: cascade-system}\ndata: {level: far}\n",
		"there/site.yaml": "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: site, namespace: cascade-system}\n" +
			"spec: {sourceRef: {kind: GitRepository, name: masters}, path: ./other, prune: true, interval: 10m}\n",
		"mom/byhand.yaml": "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: byhand, namespace: cascade-system}\n" +
			"spec: {sourceRef: {kind: GitRepository, name: masters}, path: ./byhand, prune: true, interval: 10m}\n",
	} {
		r.write(name, text)
	}
	for name, to := range map[string]string{
		"charts/linked/files": "../../shared", "providers/cluster-api/v1.13.4/core-components.yaml": "../../../vendor/core.yaml",
	} {
		if err := os.Symlink(to, filepath.Join(r.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if r.git, err = git.PlainInit(r.dir, false); err != nil {
		t.Fatal(err)
	}
	r.first = r.commit()
	return r
}

// packed is a chart in an archive.
func packed(t *testing.T, version string) string {
	t.Helper()
	text := "name: packed\nversion: " + version + "\n"
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	files := tar.NewWriter(zipped)
	err := files.WriteHeader(&tar.Header{Name: "packed/Chart.yaml", Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = files.Write([]byte(text))
	}
	if err = errors.Join(err, files.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func (r *repository) write(name, text string) {
	r.t.Helper()
	file := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r *repository) remove(name string) {
	r.t.Helper()
	if err := os.RemoveAll(filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *repository) replace(name, before, after string) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	if !strings.Contains(string(text), before) {
		r.t.Fatalf("%s has no %q", name, before)
	}
	r.write(name, strings.Replace(string(text), before, after, 1))
}

// commit commits what is there; it has the same name each time.
func (r *repository) commit() string {
	r.t.Helper()
	tree, err := r.git.Worktree()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := tree.AddWithOptions(&git.AddOptions{All: true}); err != nil {
		r.t.Fatal(err)
	}
	who := &object.Signature{Name: "jane", Email: "jane@example.org", When: time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)}
	hash, err := tree.Commit("change", &git.CommitOptions{Author: who, Committer: who})
	if err != nil {
		r.t.Fatal(err)
	}
	return hash.String()
}

// fakeTier is a tier without an API server.
type fakeTier struct{ client.Client }

func (fakeTier) InServed(gk schema.GroupKind, read func(*meta.RESTMapping) error) error {
	return read(&meta.RESTMapping{GroupVersionKind: gk.WithVersion("v1beta2")})
}

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, sourcev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme, v1alpha1.AddToScheme, generatorv1.AddToScheme,
	} {
		utilruntime.Must(add(s))
	}
	return s
}

// from reads the object of a file of the fleet, with variables put in by hand.
func (r *repository) from(name string, into client.Object) {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(string(text), "$$", "$")), into); err != nil {
		r.t.Fatalf("%s: %v", name, err)
	}
}

// tier is the MoM with what was applied at the first commit.
func (r *repository) tier(more ...client.Object) fakeTier {
	r.t.Helper()
	revision := "main@sha1:" + r.first
	repository := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "masters"}, Spec: sourcev1.GitRepositorySpec{URL: "https://git.invalid/masters.git"}}
	site := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "site"}, Data: map[string]string{"git_url": "https://git.example.org", "git_ssh_url": "ssh://git@git.example.org"}}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "settings"}, Data: map[string]string{"level": "info", "colour": "blue"}}
	all := []client.Object{repository, site, settings}
	mom := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "mom"}, Spec: kustomizev1.KustomizationSpec{
		SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "masters"}, Path: "./mom", Prune: true,
		PostBuild: &kustomizev1.PostBuild{SubstituteFrom: []kustomizev1.SubstituteReference{{Kind: "ConfigMap", Name: "site"}}},
	}}
	kustomizations := []*kustomizev1.Kustomization{mom}
	for _, name := range []string{"mom/clusters.yaml", "mom/site.yaml", "mom/byhand.yaml"} {
		k := &kustomizev1.Kustomization{}
		r.from(name, k)
		kustomizations = append(kustomizations, k)
	}
	for _, k := range kustomizations {
		k.Status.LastAppliedRevision = revision
		all = append(all, k)
	}
	for _, name := range []string{"node", "steady"} {
		release := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		release.Spec.Chart = &helmv2.HelmChartTemplate{Spec: helmv2.HelmChartTemplateSpec{
			Chart: "./charts/" + name, SourceRef: helmv2.CrossNamespaceObjectReference{Kind: "GitRepository", Name: "masters"},
		}}
		all = append(all, release)
	}
	for name, strategy := range map[string]string{"cloud": sourcev1.ReconcileStrategyRevision, "linked": sourcev1.ReconcileStrategyRevision, "packed.tgz": ""} {
		release := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: strings.TrimSuffix(name, ".tgz")}}
		release.Spec.Chart = &helmv2.HelmChartTemplate{Spec: helmv2.HelmChartTemplateSpec{
			Chart: "./charts/" + name, SourceRef: helmv2.CrossNamespaceObjectReference{Kind: "GitRepository", Name: "masters"}, ReconcileStrategy: strategy,
		}}
		all = append(all, release)
	}
	// One chart for several releases.
	for _, name := range []string{"node", "steady"} {
		chart := &sourcev1.HelmChart{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		chart.Spec = sourcev1.HelmChartSpec{Chart: "./charts/" + name, SourceRef: sourcev1.LocalHelmChartSourceReference{Kind: "GitRepository", Name: "masters"}}
		release := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "shared-" + name}}
		release.Spec.ChartRef = &helmv2.CrossNamespaceSourceReference{Kind: "HelmChart", Name: name}
		all = append(all, chart, release)
	}
	repository.Status.Artifact = &fluxmeta.Artifact{Revision: revision}
	layer := &v1alpha1.Layer{}
	r.from("mom/layer.yaml", layer)
	layer.Spec.Prune = true
	all = append(all, layer)
	for _, name := range []string{"production", "staging", "edge"} {
		release := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		release.Status.Inventory = &helmv2.ResourceInventory{Entries: []helmv2.ResourceRef{{ID: namespace + "_" + name + "_cluster.x-k8s.io_Cluster", Version: "v1beta2"}}}
		labels := map[string]string{"cascade.dev/tier": "master", "environment": name}
		cluster := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "spec": map[string]any{}}}
		cluster.SetNamespace(namespace)
		cluster.SetName(name)
		cluster.SetLabels(labels)
		cluster.SetAnnotations(map[string]string{v1alpha1.VariablePrefix + "git_url": "https://git.example.org", v1alpha1.VariablePrefix + "git_ssh_url": "ssh://git@git.example.org"})
		child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
		child.Spec.ClusterRef = &v1alpha1.LocalReference{Name: name}
		child.Status.Layers = []v1alpha1.ChildLayer{{Name: "master", Revision: revision}}
		all = append(all, cluster, child)
		if name != "edge" {
			all = append(all, release)
		}
	}
	for _, o := range more {
		if k, ok := o.(*kustomizev1.Kustomization); ok {
			k.Status.LastAppliedRevision = revision
		}
	}
	return fakeTier{fake.NewClientBuilder().WithScheme(scheme()).WithObjects(append(all, more...)...).Build()}
}

// plan of the commit, and the program's text of it.
func (r *repository) plan(tier fakeTier, commit string) *difference.Report {
	r.t.Helper()
	clone, err := source.OpenClone(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	report, err := Of(r.t.Context(), tier, Options{
		Source: client.ObjectKey{Namespace: namespace, Name: "masters"}, Commit: commit, Clone: clone,
		Mirrors: source.NewMirrors(r.t.TempDir(), 1<<20), Workers: workers,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return report
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want, +got:\n%s", file, diff)
	}
}

// anonymous replaces commits, whose names follow from the files of the example.
func (r *repository) anonymous(text, commit string) string {
	for at, name := range map[string]string{r.first: "1111111111111111111111111111111111111111", commit: "2222222222222222222222222222222222222222"} {
		text = strings.ReplaceAll(strings.ReplaceAll(text, at, name), at[:12], name[:12])
	}
	return text
}

// commitCase is a commit of the example fleet.
type commitCase struct {
	reason string
	change func(*repository)
	tier   []client.Object
	absent []string
}

// commits are by the names of their golden files.
func commits() map[string]commitCase {
	rollout := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "masters"}}
	rollout.Spec.Moves.LayerRef = &v1alpha1.LayerReference{Name: "master"}
	rollout.Spec.Waves = []v1alpha1.RolloutWave{
		{Name: "staging", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"environment": "staging"}}},
		{Name: "rest", Approval: v1alpha1.ApprovalRequired},
	}
	rollout.Spec.Waves[0].MaxConcurrent.IntVal, rollout.Spec.Waves[1].MaxConcurrent.IntVal = 1, 2
	of := func(name, environment string) client.Object {
		one := rollout.DeepCopy()
		one.Name, one.Spec.ClusterSelector = name, &metav1.LabelSelector{MatchLabels: map[string]string{"environment": environment}}
		return one
	}
	return map[string]commitCase{
		"readme": {reason: "nothing reads it", change: func(r *repository) { r.write("README.md", "other\n") }},
		"layer":  {reason: "all masters get the same", change: func(r *repository) { r.replace("layers/master/sync.yaml", "interval: 2s", "interval: 1m") }},
		"waves":  {reason: "a Rollout takes them through its waves", change: func(r *repository) { r.replace("layers/master/sync.yaml", "interval: 2s", "interval: 1m") }, tier: []client.Object{rollout}},
		"ways": {reason: "each Rollout takes its own, and who has none gets it at once", change: func(r *repository) { r.replace("layers/master/sync.yaml", "interval: 2s", "interval: 1m") },
			tier: []client.Object{of("early", "staging"), of("late", "production")}},
		"conflict": {reason: "what two Rollouts move, neither does", change: func(r *repository) { r.replace("layers/master/sync.yaml", "interval: 2s", "interval: 1m") },
			tier: []client.Object{of("early", "staging"), rollout}},
		"variable": {reason: "only of one environment", change: func(r *repository) {
			r.replace("layers/master/sync.yaml", "env-${label_environment}.git", "${label_environment}-env.git")
		}},
		"new-cluster": {reason: "a release more", change: func(r *repository) {
			text, _ := os.ReadFile(filepath.Join(r.dir, "clusters/staging.yaml"))
			r.write("clusters/test.yaml", strings.ReplaceAll(string(text), "staging", "test"))
		}},
		"lost-cluster":   {reason: "the release has a Cluster, and stays", change: func(r *repository) { r.remove("clusters/production.yaml") }},
		"lost-directory": {reason: "nothing goes of what is left of it", change: func(r *repository) { r.remove("byhand/cluster.yaml"); r.write("byhand/README.md", "empty\n") }},
		"label":          {reason: "a label of a Cluster is a variable of its layers", change: func(r *repository) { r.replace("byhand/cluster.yaml", "environment: edge", "environment: far") }},
		"deselected":     {reason: "the layer leaves the cluster, and what it brought stays", change: func(r *repository) { r.replace("byhand/cluster.yaml", "cascade.dev/tier: master, ", "") }},
		"new-owner": {reason: "what a new Kustomization brings counts", change: func(r *repository) {
			r.write("mom/more.yaml", strings.ReplaceAll(r.read("mom/site.yaml"), "site", "more"))
			r.write("more/settings.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more, namespace: cascade-system}\ndata: {a: b}\n")
		}},
		"lost-owner":    {reason: "what it brought goes with it", change: func(r *repository) { r.remove("mom/site.yaml") }},
		"lost-clusters": {reason: "it brought a Cluster, and stays with it", change: func(r *repository) { r.remove("mom/byhand.yaml") }},
		"moved": {reason: "an object goes to another Kustomization, and is not deleted", change: func(r *repository) {
			r.remove("site/settings.yaml")
			r.write("mom/settings.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: cascade-system}\ndata: {level: debug, colour: blue}\n")
		}},
		"secret": {reason: "values are not shown", change: func(r *repository) { r.replace("site/token.yaml", "old-token-7f3a", "new-token-99c1") }, absent: []string{"old-token", "new-token", "b2xkL", "bmV3L"}},
		"path": {reason: "the Kustomization's own spec counts at once", change: func(r *repository) {
			r.replace("mom/site.yaml", "path: ./site", "path: ./elsewhere")
			r.write("elsewhere/settings.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, namespace: cascade-system}\ndata: {level: info}\n")
		}},
		"substitute": {reason: "a ConfigMap that variables come from is changed by the same commit", change: func(r *repository) {
			r.write("mom/variables.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: site, namespace: cascade-system}\ndata: {git_url: https://other.example.org}\n")
		}},
		"broken": {reason: "what cannot be rendered is said, and the rest is shown", change: func(r *repository) {
			r.write("clusters/broken.yaml", "kind: [\n")
			r.replace("site/settings.yaml", "colour: blue", "colour: green")
		}},
		"chart": {reason: "a chart in the repository is not rendered, and that is said", change: func(r *repository) {
			r.write("charts/node/Chart.yaml", "name: node\nversion: 0.2.0\n")
			r.write("charts/steady/templates/a.yaml", "a: b\n") // of the same version
		}},
		"chart-dependency": {reason: "a chart is made of those beside it that it depends on", change: func(r *repository) {
			r.write("charts/lib/templates/_machines.tpl", "a\n")
		}},
		"chart-link": {reason: "a chart is made of what its links lead to", change: func(r *repository) { r.write("shared/motd", "good bye\n") }},
		"chart-packed": {reason: "the version of a chart in a file is in the file", change: func(r *repository) {
			r.write("charts/packed.tgz", packed(r.t, "0.2.0"))
		}},
		"generated": {reason: "artifacts of a generator, and a repository that includes the source, are made of it",
			tier: generated(), change: func(r *repository) {
				r.remove("apps/staging")
				r.write("apps/chart/templates/a.yaml", "a: b\n")
			}},
		"generated-beside": {reason: "what they are made of stays", tier: generated(), change: func(r *repository) { r.write("README.md", "other\n") }},
		"providers": {reason: "those of spec.providers are made of what links lead to, of the layer's own source if they have none",
			tier: providing(), change: func(r *repository) {
				r.write("vendor/core.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: capi}\n")
			}},
		"providers-beside": {reason: "what they are made of stays", tier: providing(), change: func(r *repository) { r.write("vendor/other.yaml", "a: b\n") }},
		"two-clusters": {reason: "what another Kustomization declares is in another cluster, so nothing takes the place of what goes, and what goes there is no sync object of the tier",
			tier: elsewhereApplied(), change: func(r *repository) {
				r.remove("site/settings.yaml")
				r.remove("there/site.yaml")
			}},
		"same-cluster": {reason: "the kubeconfig of the other Kustomization leads back to the tier, so it takes over what goes",
			tier: backHome(), change: func(r *repository) {
				r.remove("site/settings.yaml")
			}},
		"other-cluster": {reason: "it is said that the Kustomization leaves a cluster", change: func(r *repository) {
			r.replace("mom/site.yaml", "prune: true", "prune: true, kubeConfig: {secretRef: {name: far}}")
		}},
		"no-variable": {reason: "a cluster lacks a variable", change: func(r *repository) { r.replace("layers/master/sync.yaml", "${label_environment}", "${label_missing}") }},
	}
}

// providing are Layers that bring providers, which they name the source of, or do not.
func providing() []client.Object {
	from := &v1alpha1.SourceReference{Kind: "GitRepository", Name: "masters"}
	var all []client.Object
	for name, spec := range map[string]v1alpha1.LayerSpec{
		"named": {Providers: &v1alpha1.ProvidersSpec{SourceRef: from}}, "own": {SourceRef: from, Path: "layers/master", Providers: &v1alpha1.ProvidersSpec{}},
		"neither": {Providers: &v1alpha1.ProvidersSpec{}},
	} {
		spec.Providers.Path, spec.Providers.Core.Version = "./providers", "v1.13.4"
		spec.ClusterSelector = metav1.LabelSelector{MatchLabels: map[string]string{"is": "nowhere"}}
		all = append(all, &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec})
	}
	return all
}

// generated is what is made of the source by a step more, and what is made of that.
func generated() []client.Object {
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	generator := &generatorv1.ArtifactGenerator{ObjectMeta: named("fleet"), Spec: generatorv1.ArtifactGeneratorSpec{
		Sources: []generatorv1.SourceReference{{Alias: "repo", Kind: "GitRepository", Name: "masters"}},
		OutputArtifacts: []generatorv1.OutputArtifact{
			{Name: "apps", Copy: []generatorv1.CopyOperation{{From: "@repo/apps/staging/**", To: "@artifact/"}}},
			{Name: "app", Copy: []generatorv1.CopyOperation{{From: "@repo/apps/chart/", To: "@artifact/"}}},
			{Name: "layers", Copy: []generatorv1.CopyOperation{{From: "@repo/layers/*/sync.yaml", To: "@artifact/"}}},
		},
	}}
	wide := &sourcev1.GitRepository{ObjectMeta: named("wide")}
	wide.Spec.Include = []sourcev1.GitRepositoryInclude{{GitRepositoryRef: fluxmeta.LocalObjectReference{Name: "masters"}, FromPath: "apps"}}
	all := []client.Object{generator, wide}
	for _, o := range generator.Spec.OutputArtifacts {
		a := &sourcev1.ExternalArtifact{ObjectMeta: named(o.Name)}
		a.Spec.SourceRef = &fluxmeta.NamespacedObjectKindReference{APIVersion: generatorv1.GroupVersion.String(), Kind: generatorv1.ArtifactGeneratorKind, Name: "fleet"}
		all = append(all, a)
	}
	for name, ref := range map[string]kustomizev1.CrossNamespaceSourceReference{
		"apps": {Kind: "ExternalArtifact", Name: "apps"}, "layers": {Kind: "ExternalArtifact", Name: "layers"}, "wide": {Kind: "GitRepository", Name: "wide"},
		"nowhere": {Kind: "ExternalArtifact", Name: "nowhere"}, "image": {Kind: "OCIRepository", Name: "image"},
	} {
		all = append(all, &kustomizev1.Kustomization{ObjectMeta: named(name), Spec: kustomizev1.KustomizationSpec{SourceRef: ref, Path: "./", Prune: true}})
	}
	app := &helmv2.HelmRelease{ObjectMeta: named("app")}
	app.Spec.ChartRef = &helmv2.CrossNamespaceSourceReference{Kind: "ExternalArtifact", Name: "app"}
	return append(all, app)
}

// elsewhereApplied is a Kustomization that applies to another cluster. It declares there what others
// declare in the tier.
func elsewhereApplied() []client.Object {
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "there"}, Spec: kustomizev1.KustomizationSpec{
		SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "masters"}, Path: "./there", Prune: true,
		KubeConfig: &fluxmeta.KubeConfigReference{SecretRef: &fluxmeta.SecretKeyReference{Name: "far"}},
	}}
	return []client.Object{k}
}

// backHome is the same, with the tier's own cluster on record.
func backHome() []client.Object {
	tier := elsewhereApplied()
	tier[0].SetAnnotations(map[string]string{target.Annotation: target.Ref{Kind: "Secret", Name: "far", Cluster: "home"}.Encode()})
	return append(tier, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "home"}})
}

// TestCommits is what ten commits, and some more, would change.
func TestCommits(t *testing.T) {
	for name, tc := range commits() {
		t.Run(name, func(t *testing.T) {
			r := newRepository(t)
			tier := r.tier(tc.tier...)
			tc.change(r)
			commit := r.commit()
			report := r.plan(tier, commit)
			var text, markdown bytes.Buffer
			if err := report.Text(&text); err != nil {
				t.Fatal(err)
			}
			if err := report.Markdown(&markdown); err != nil {
				t.Fatal(err)
			}
			data, err := json.Marshal(report)
			if err != nil {
				t.Fatal(err)
			}
			all := text.String() + markdown.String() + string(data)
			for _, word := range tc.absent {
				if strings.Contains(all, word) {
					t.Errorf("%s: the report has %q", tc.reason, word)
				}
			}
			golden(t, name+".txt", r.anonymous(text.String(), commit))
			if name == "waves" {
				golden(t, name+".md", r.anonymous(markdown.String(), commit))
				indented, err := json.MarshalIndent(report, "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				golden(t, name+".json", r.anonymous(string(indented), commit)+"\n")
			}
		})
	}
}

// TestPinnedClusters: a Cluster that a Rollout lets have an earlier commit than the one that
// was applied last is compared with what it has, and the wave is told.
func TestPinnedClusters(t *testing.T) {
	r := newRepository(t)
	tier := r.tier()
	r.replace("byhand/cluster.yaml", "spec: {}", "spec: {paused: true}")
	second := "main@sha1:" + r.commit()
	k := &kustomizev1.Kustomization{}
	if err := tier.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "byhand"}, k); err != nil {
		t.Fatal(err)
	}
	k.Status.LastAppliedRevision = second
	if err := tier.Update(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	r.write("README.md", "other\n")
	third := r.commit()
	if got := r.plan(tier, third); got.Changes() {
		t.Errorf("without a Rollout the Cluster has the commit: %+v", got.Owners)
	}
	rollout := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "clusters"}}
	rollout.Spec.Moves.KustomizationRef = &v1alpha1.LocalReference{Name: "byhand"}
	rollout.Spec.Waves = []v1alpha1.RolloutWave{{Name: "all"}}
	if err := tier.Create(t.Context(), rollout); err != nil {
		t.Fatal(err)
	}
	child := &v1alpha1.Child{}
	if err := tier.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "edge"}, child); err != nil {
		t.Fatal(err)
	}
	child.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "clusters", RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:" + r.first}, Run: 1}}
	if err := tier.Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	pinned := func(reason string) {
		t.Helper()
		text.Reset()
		if err := r.plan(tier, third).Text(&text); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"~ Cluster/cascade-system/edge: spec.paused", "in waves of Rollout clusters: all: 1 cluster"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%s: the plan lacks %q:\n%s", reason, want, text.String())
			}
		}
	}
	pinned("one Rollout moves all Clusters")
	aside := rollout.DeepCopy()
	aside.Name, aside.ResourceVersion = "aside", ""
	aside.Spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"environment": "another"}}
	if err := tier.Create(t.Context(), aside); err != nil {
		t.Fatal(err)
	}
	pinned("another one, which is listed first, moves those of another environment")
	// While another one moves the same, neither decides.
	other := rollout.DeepCopy()
	other.Name, other.ResourceVersion = "others", ""
	if err := tier.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	text.Reset()
	if err := r.plan(tier, third).Text(&text); err != nil {
		t.Fatal(err)
	}
	if want := "not at all while Rollouts clusters and others move the same: 1 cluster"; !strings.Contains(text.String(), want) || strings.Contains(text.String(), "in waves") {
		t.Errorf("the plan lacks %q:\n%s", want, text.String())
	}
}

// TestClusterWaves: a Rollout of a Kustomization takes a change of what belongs to a Cluster through its waves, whatever
// kind that is of, and each Cluster counts once.
func TestClusterWaves(t *testing.T) {
	plane := "apiVersion: controlplane.cluster.x-k8s.io/v1beta2\nkind: KubeadmControlPlane\nmetadata: {name: edge, namespace: cascade-system, labels: {cluster.x-k8s.io/cluster-name: edge}}\nspec: {version: v1.35.0}\n"
	for name, tc := range map[string]struct {
		reason, moves string
		change        func(*repository)
		want          string
	}{
		"Release": {"a HelmRelease makes the Cluster", "clusters", func(r *repository) { r.replace("clusters/production.yaml", "interval: 10m", "interval: 5m") }, "late: 1"},
		"Releases": {"two of them do", "clusters", func(r *repository) {
			r.replace("clusters/production.yaml", "interval: 10m", "interval: 5m")
			r.replace("clusters/staging.yaml", "interval: 10m", "interval: 5m")
		}, "early: 1, late: 1"},
		"Plane": {"the Cluster itself stays as it is", "byhand", func(r *repository) { r.replace("byhand/plane.yaml", "v1.35.0", "v1.36.0") }, "late: 1"},
		"Once": {"the Cluster changes as well", "byhand", func(r *repository) {
			r.replace("byhand/plane.yaml", "v1.35.0", "v1.36.0")
			r.replace("byhand/cluster.yaml", "spec: {}", "spec: {paused: true}")
		}, "late: 1"},
		"Nobody": {"what changes belongs to no Cluster", "byhand", func(r *repository) {
			r.write("byhand/note.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: note, namespace: cascade-system}\n")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepository(t)
			r.write("byhand/plane.yaml", plane)
			r.first = r.commit()
			rollout := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "waves"}}
			rollout.Spec.Moves.KustomizationRef = &v1alpha1.LocalReference{Name: tc.moves}
			rollout.Spec.Waves = []v1alpha1.RolloutWave{{Name: "early", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"environment": "staging"}}}, {Name: "late"}}
			tier := r.tier(rollout)
			tc.change(r)
			report := r.plan(tier, r.commit())
			if len(report.Owners) != 1 || len(report.Problems) > 0 {
				t.Fatalf("%s: %+v", tc.reason, report)
			}
			var got []string
			for _, w := range report.Owners[0].Waves {
				got = append(got, fmt.Sprintf("%s: %d", w.Name, w.Clusters))
			}
			if by := report.Owners[0].Rollout; (by == "waves") != (tc.want != "") || strings.Join(got, ", ") != tc.want {
				t.Errorf("%s: Rollout %q, %v; want %q", tc.reason, by, got, tc.want)
			}
		})
	}
}

// TestDeclaredChild: a Child that Git declares is selected by its labels, as the agent does, and not by
// those of its Cluster alone. Its variables are of the Cluster.
func TestDeclaredChild(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		selector map[string]string
		change   func(*repository, fakeTier)
		want     []string
		absent   []string
	}{
		"Stays": {"it has what the new selector names, and the others have not", nil, func(r *repository, _ fakeTier) {
			r.replace("mom/layer.yaml", "matchLabels: {cascade.dev/tier: master}", "matchLabels: {part: x}")
		}, []string{"2 clusters at main@sha1:111111111111, the same fields of each: production, staging", "no longer declared, and stays"}, []string{"edge"}},
		"Leaves": {"the commit gives the Child another value", map[string]string{"part": "x"}, func(r *repository, _ fakeTier) {
			r.replace("byhand/child.yaml", "part: x", "part: y")
		}, []string{"1 cluster at main@sha1:111111111111: edge", "no longer declared, and stays"}, []string{"production"}},
		"Unusable": {"nobody can tell whom the layer selects", nil, func(r *repository, _ fakeTier) {
			r.replace("mom/layer.yaml", "matchLabels: {cascade.dev/tier: master}", "matchExpressions: [{key: cascade.dev/tier, operator: in, values: [master]}]")
		}, []string{"cannot use clusterSelector of Layer master", "is not a valid label selector operator"}, []string{"no longer declared"}},
		"Own": {"where both name a label, the Child's counts", map[string]string{"environment": "mine"}, func(r *repository, _ fakeTier) {
			r.remove("byhand/child.yaml")
			r.replace("mom/layer.yaml", "matchLabels: {cascade.dev/tier: master}", "matchLabels: {environment: mine}")
		}, []string{"1 cluster at main@sha1:111111111111: edge", "no longer declared, and stays"}, []string{"production"}},
		"Variable": {"a variable is that of the Cluster", nil, func(r *repository, _ fakeTier) {
			r.replace("layers/master/sync.yaml", "${label_environment}", "${label_part}")
		}, []string{"in edge: cannot substitute", `"label_part"`}, []string{"at main@sha1:111111111111"}},
		"Waves": {"the commit gives the Child another ring", nil, func(r *repository, _ fakeTier) {
			r.replace("byhand/child.yaml", "part: x", "part: y")
			r.replace("byhand/cluster.yaml", "spec: {}", "spec: {paused: true}")
		}, []string{"in waves of Rollout clusters: late: 1 cluster"}, []string{"early"}},
		"Ahead": {"its Cluster is not there yet", nil, func(r *repository, tier fakeTier) {
			cluster := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster"}}
			cluster.SetNamespace(namespace)
			cluster.SetName("edge")
			if err := tier.Delete(t.Context(), cluster); err != nil {
				t.Fatal(err)
			}
			r.replace("byhand/cluster.yaml", "spec: {}", "spec: {paused: true}")
		}, []string{"in waves of Rollout clusters: early: 1 cluster"}, []string{"Kustomization/cascade-system/byhand in edge"}},
		"Elsewhere": {"its Cluster manages itself, and the tier made the Child", map[string]string{"part": "x"}, func(r *repository, tier fakeTier) {
			r.remove("byhand/child.yaml")
			k, child := &kustomizev1.Kustomization{}, &v1alpha1.Child{}
			for name, o := range map[string]client.Object{"byhand": k, "edge": child} {
				if err := tier.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o); err != nil {
					t.Fatal(err)
				}
			}
			k.Status.LastAppliedRevision = "main@sha1:" + r.commit()
			child.Labels = map[string]string{"part": "x"}
			child.Status.Conditions = append(child.Status.Conditions, metav1.Condition{Type: v1alpha1.ManagedElsewhereCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonManagedElsewhere})
			cluster := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster"}}
			cluster.SetNamespace(namespace)
			cluster.SetName("edge")
			if err := errors.Join(tier.Update(t.Context(), k), tier.Update(t.Context(), child), tier.Delete(t.Context(), cluster)); err != nil {
				t.Fatal(err)
			}
			r.replace("byhand/cluster.yaml", "spec: {}", "spec: {paused: true}")
			r.replace("layers/master/sync.yaml", "${label_environment}", "x")
		}, []string{"in waves of Rollout clusters: early: 1 cluster"}, []string{"at once", "cannot"}},
		"ClusterWave": {"the commit gives the Cluster what its Child follows", nil, func(r *repository, _ fakeTier) {
			r.replace("byhand/cluster.yaml", "labels: {", "labels: {ring: last, ")
		}, []string{"in waves of Rollout clusters: last: 1 cluster"}, []string{"early"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepository(t)
			tier := r.tier()
			r.write("byhand/child.yaml", "apiVersion: cascade.dev/v1alpha1\nkind: Child\nmetadata: {name: edge, namespace: cascade-system, labels: {environment: mine, part: x}}\n"+
				"spec: {clusterRef: {name: edge}}\n")
			k, child, layer := &kustomizev1.Kustomization{}, &v1alpha1.Child{}, &v1alpha1.Layer{}
			for name, o := range map[string]client.Object{"byhand": k, "edge": child, "master": layer} {
				if err := tier.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o); err != nil {
					t.Fatal(err)
				}
			}
			k.Status.LastAppliedRevision = "main@sha1:" + r.commit()
			child.Labels = map[string]string{
				"cascade.dev/tier": "master", "environment": "mine", "part": "x",
				"kustomize.toolkit.fluxcd.io/name": "byhand", "kustomize.toolkit.fluxcd.io/namespace": namespace,
			}
			if tc.selector != nil {
				layer.Spec.ClusterSelector.MatchLabels = tc.selector
			}
			for _, o := range []client.Object{k, child, layer} {
				if err := tier.Update(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			rollout := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "clusters"}}
			rollout.Spec.Moves.KustomizationRef = &v1alpha1.LocalReference{Name: "byhand"}
			for _, wave := range [][3]string{{"last", "ring", "last"}, {"early", "part", "x"}, {"late", "part", "y"}} {
				rollout.Spec.Waves = append(rollout.Spec.Waves, v1alpha1.RolloutWave{Name: wave[0], Selector: &metav1.LabelSelector{MatchLabels: map[string]string{wave[1]: wave[2]}}})
			}
			if err := tier.Create(t.Context(), rollout); err != nil {
				t.Fatal(err)
			}
			tc.change(r, tier)
			commit := r.commit()
			var text bytes.Buffer
			if err := r.plan(tier, commit).Text(&text); err != nil {
				t.Fatal(err)
			}
			got := r.anonymous(text.String(), commit)
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("%s: the plan lacks %q:\n%s", tc.reason, want, got)
				}
			}
			for _, word := range tc.absent {
				if strings.Contains(got, word) {
					t.Errorf("%s: the plan has %q:\n%s", tc.reason, word, got)
				}
			}
		})
	}
}

func (r *repository) read(name string) string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

func TestMerged(t *testing.T) {
	live := map[string]any{"a": "live", "own": "server", "deep": map[string]any{"x": "1", "y": "server"}, "gone": "1"}
	before := map[string]any{"a": "1", "deep": map[string]any{"x": "1"}, "gone": "1"}
	after := map[string]any{"a": "2", "deep": map[string]any{"z": "3"}, "new": []any{"n"}}
	want := map[string]any{"a": "2", "own": "server", "deep": map[string]any{"y": "server", "z": "3"}, "new": []any{"n"}}
	if diff := cmp.Diff(want, merged(live, before, after)); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	if !slices.Contains(slices.Collect(maps.Keys(live)), "gone") {
		t.Error("the live object was changed")
	}
}

// TestNothingCompared: a source of which nothing is made, or nothing in the child that is asked about, is no source of
// which a commit changes nothing.
func TestNothingCompared(t *testing.T) {
	r := newRepository(t)
	old := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "old"}}
	old.Status.Artifact = &fluxmeta.Artifact{Revision: "main@sha1:" + r.first}
	wide := old.DeepCopy()
	wide.Name = "charts"
	release := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "of-charts"}}
	release.Spec.Chart = &helmv2.HelmChartTemplate{Spec: helmv2.HelmChartTemplateSpec{
		Chart: "./charts/node", SourceRef: helmv2.CrossNamespaceObjectReference{Kind: "GitRepository", Name: "charts"},
	}}
	alone := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "alone"}}
	tier := r.tier(old, wide, release, alone)
	clone, err := source.OpenClone(r.dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ reason, source, child, want string }{
		"Used":    {"much is made of it", "masters", "", ""},
		"Chart":   {"a chart is enough", "charts", "", ""},
		"Old":     {"everything has another source now", "old", "", "nothing in this tier is made of GitRepository cascade-system/old"},
		"Child":   {"a layer in it is", "masters", "edge", ""},
		"Alone":   {"no layer selects it", "masters", "alone", "no Layer in it is made of GitRepository cascade-system/masters"},
		"NoLayer": {"what is made of it gets into no child", "charts", "edge", "no Layer in it is made of GitRepository cascade-system/charts"},
	} {
		o := Options{
			Source: client.ObjectKey{Namespace: namespace, Name: tc.source}, Commit: r.first, Clone: clone,
			Mirrors: source.NewMirrors(t.TempDir(), 1<<20), Workers: workers,
		}
		if tc.child != "" {
			o.Child = namespace + "/" + tc.child
		}
		if _, err := Of(t.Context(), tier, o); (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %s: %v, want %q", name, tc.reason, err, tc.want)
		}
	}
}
