package sources

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestArtifactGenerators tries each field of an ArtifactGenerator, row by row, what is
// applied from what it makes, and what becomes of that when others change or delete it.
func TestArtifactGenerators(t *testing.T) {
	scenario.Alongside(t)
	h := &generatorSpec{scenario.StartHelmTier(t)}
	h.RestartAgent(t, "--artifact-addr=$(POD_IP):9090", "--artifact-adv-addr=$(POD_IP):9090", "--feature-gates=ExternalArtifact=true")
	t.Run("Rows", func(t *testing.T) {
		parts := scenario.PartsOf(t)
		defer parts.Wait()
		for _, r := range []struct {
			name string
			run  func(*generatorSpec, *testing.T)
		}{
			{"Composition", (*generatorSpec).composition},
			{"Decomposition", (*generatorSpec).decomposition},
			{"Copies", (*generatorSpec).copies},
			{"Strategies", (*generatorSpec).strategies},
			{"Revisions", (*generatorSpec).revisions},
			{"CommonMetadata", (*generatorSpec).commonMetadata},
			{"PathPattern", (*generatorSpec).pathPattern},
			{"OtherNamespace", (*generatorSpec).otherNamespace},
			{"Chain", (*generatorSpec).chain},
			{"Served", (*generatorSpec).served},
			{"Drift", (*generatorSpec).drift},
			{"Inventory", (*generatorSpec).inventory},
			{"Disabled", (*generatorSpec).disabled},
			{"Conditions", (*generatorSpec).conditions},
			{"Refused", (*generatorSpec).refused},
		} {
			parts.Run(r.name, func(t *testing.T) {
				r.run(h, t)
			})
		}
	})
	t.Run("Lockdown", func(t *testing.T) {
		h.RestartAgent(t, "--no-cross-namespace-refs")
		r := h.GitRow(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: one}")})
		generate(t, r, "gen", "{sources: [{alias: git, kind: GitRepository, name: git, namespace: default}], artifacts: [{name: made, copy: [{from: '@git/app/**', to: '@artifact/'}]}]}")
		r.Tells(t, &generatorv1.ArtifactGenerator{}, "gen", "Stalled", "True", "AccessDenied", "can't access 'GitRepository/default/git', cross-namespace references have been blocked")
		r.Absent(t, &sourcev1.ExternalArtifact{}, r.Namespace, "made")
	})
}

// generatorSpec is the tier that all rows share.
type generatorSpec struct{ *scenario.HelmTier }

// generate creates or replaces an ArtifactGenerator.
func generate(t *testing.T, r *scenario.HelmRow, name, spec string) {
	t.Helper()
	r.Apply(t, r.Fill(fmt.Sprintf("apiVersion: source.extensions.fluxcd.io/v1beta1\nkind: ArtifactGenerator\nmetadata: {name: %s, namespace: $ns}\nspec: %s\n", name, spec)))
}

// generated waits until a generator is ready with so many artifacts.
func generated(t *testing.T, r *scenario.HelmRow, name string, artifacts int) *generatorv1.ArtifactGenerator {
	t.Helper()
	g := &generatorv1.ArtifactGenerator{}
	r.Tells(t, g, name, "Ready", "True", "Succeeded", fmt.Sprintf("reconciliation succeeded, generated %d artifact(s)", artifacts))
	return g
}

// made waits until an ExternalArtifact has an artifact as it is wanted.
func made(t *testing.T, r *scenario.HelmRow, name, what string, wanted func(*sourcev1.ExternalArtifact) bool) *sourcev1.ExternalArtifact {
	t.Helper()
	e := &sourcev1.ExternalArtifact{}
	scenario.Eventually(t, scenario.Converge, "ExternalArtifact "+name+" "+what, func(ctx context.Context) error {
		if err := r.Load(ctx, e, r.Namespace, name); err != nil {
			return err
		}
		if e.Status.Artifact == nil || !wanted(e) {
			return fmt.Errorf("labels %v, annotations %v, status %+v", e.Labels, e.Annotations, e.Status)
		}
		return nil
	})
	return e
}

// from applies a directory of an ExternalArtifact.
func from(t *testing.T, r *scenario.HelmRow, name, path string) {
	t.Helper()
	r.Kustomization(t, name, "{sourceRef: {kind: ExternalArtifact, name: "+name+"}, path: "+path+"}")
}

// gitOnly are the sources of a generator with the row's repository alone.
const gitOnly = "sources: [{alias: git, kind: GitRepository, name: git}]"

func value(name, text string) string {
	return scenario.ConfigMapWith(name, "", fmt.Sprintf("{k: %q}", text))
}

// composition: one artifact of a repository, a registry and a bucket.
func (h *generatorSpec) composition(t *testing.T) {
	r := h.GitRow(t, map[string]string{"deploy/a.yaml": value("a", "git"), "deploy/sub/b.yaml": value("b", "git"), "other/c.yaml": value("c", "no")})
	h.Push(t, r.Namespace, "v1", map[string]string{"manifests/d.yaml": value("d", "oci")}, nil)
	r.MakeSource(t, "OCIRepository", "oci", "{url: \""+h.Registry.URL(r.Namespace)+"\", insecure: true, ref: {tag: v1}, interval: 10m}")
	r.Bucket(t, "bucket", map[string]string{"envs/prod/e.yaml": value("e", "bucket")})
	generate(t, r, "gen", `{sources: [{alias: git, kind: GitRepository, name: git}, {alias: oci_1, kind: OCIRepository, name: oci}, {alias: bucket, kind: Bucket, name: bucket}],
  artifacts: [{name: made, copy: [{from: "@git/deploy/**", to: "@artifact/app/git/"}, {from: "@oci_1/manifests/*.yaml", to: "@artifact/app/oci/"},
    {from: "@bucket/envs/prod/e.yaml", to: "@artifact/app/env.yaml"}]}]}`)
	generated(t, r, "gen", 1)
	from(t, r, "made", "./app")
	for name, text := range map[string]string{"a": "git", "b": "git", "d": "oci", "e": "bucket"} {
		r.Has(t, name, "k", text)
	}
	e := made(t, r, "made", "is there", func(*sourcev1.ExternalArtifact) bool { return true })
	r.Says(t, "made", "Ready", "True", "ReconciliationSucceeded", "Applied revision: "+e.Status.Artifact.Revision)
	// Each of the sources wakes it.
	r.Commit(t, map[string]string{"deploy/a.yaml": value("a", "commit")})
	r.Has(t, "a", "k", "commit")
	h.Push(t, r.Namespace, "v1", map[string]string{"manifests/d.yaml": value("d", "push")}, nil)
	r.Ask(t, &sourcev1.OCIRepository{}, "oci")
	r.Has(t, "d", "k", "push")
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "c")
}

// decomposition: a commit in one of five directories makes one of five artifacts anew, and
// wakes one of five Kustomizations.
func (h *generatorSpec) decomposition(t *testing.T) {
	files := map[string]string{"README.md": "x"}
	var artifacts []string
	for _, name := range []string{"one", "two", "three", "four", "five"} {
		files["apps/"+name+"/a.yaml"] = value(name, "1")
		artifacts = append(artifacts, fmt.Sprintf(`{name: %[1]s, originRevision: "@git", copy: [{from: "@git/apps/%[1]s/**", to: "@artifact/"}]}`, name))
	}
	r := h.GitRow(t, files)
	generate(t, r, "gen", "{"+gitOnly+", artifacts: ["+strings.Join(artifacts, ", ")+"]}")
	generated(t, r, "gen", 5)
	for _, name := range []string{"one", "two", "three", "four", "five"} {
		from(t, r, name, "./")
		r.Has(t, name, "k", "1")
		r.Says(t, name, "Ready", "True", "ReconciliationSucceeded", "Applied revision: latest@sha256:")
	}
	first := r.Head
	passes := func() map[string]int {
		p, err := scenario.Passes(t.Context(), h.MoM, kustomizev1.KustomizationKind, r.Namespace)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	before := passes()
	r.Commit(t, map[string]string{"apps/two/a.yaml": value("two", "2"), "README.md": "y"})
	r.Has(t, "two", "k", "2")
	k := &kustomizev1.Kustomization{}
	scenario.Eventually(t, scenario.Converge, "the origin is told", func(ctx context.Context) error {
		if err := r.Load(ctx, k, r.Namespace, "two"); err != nil {
			return err
		}
		if want := "main@sha1:" + r.Head; k.Status.LastAppliedOriginRevision != want {
			return fmt.Errorf("it is %s, want %s", k.Status.LastAppliedOriginRevision, want)
		}
		return nil
	})
	// By now the others would have been told of it, too.
	after := passes()
	for _, name := range []string{"one", "three", "four", "five"} {
		if after[name] != before[name] {
			t.Errorf("Kustomization %s, of whose files none changed, was reconciled %d times, before %d", name, after[name], before[name])
		}
		e := made(t, r, name, "is there", func(*sourcev1.ExternalArtifact) bool { return true })
		if got := e.Status.Artifact.Metadata["org.opencontainers.image.revision"]; got != "main@sha1:"+first {
			t.Errorf("ExternalArtifact %s has origin %s, though none of its files changed", name, got)
		}
	}
	if after["two"] == before["two"] {
		t.Error("the Kustomization whose files changed was not reconciled")
	}
}

// copies: files, directories, patterns and exclusions, as source-watcher has them.
func (h *generatorSpec) copies(t *testing.T) {
	r := h.GitRow(t, map[string]string{
		"config.yaml": "c", "configs/a.yaml": "a", "configs/README.md": "r", "configs/sub/b.yaml": "b", "configs/testdata/t.yaml": "t",
	})
	generate(t, r, "gen", "{"+gitOnly+`, artifacts: [{name: made, copy: [
    {from: "@git/config.yaml", to: "@artifact/as/app.yaml"}, {from: "@git/config.yaml", to: "@artifact/into/"},
    {from: "@git/configs/*.yaml", to: "@artifact/stars/"},
    {from: "@git/configs/s*", to: "@artifact/all"}, {from: "@git/configs/", to: "@artifact/dir", exclude: ["testdata"]},
    {from: "@git/configs/**", to: "@artifact/below/", exclude: ["*.md", "testdata/**"]}, {from: "@git/**/b.yaml", to: "@artifact/deep/"},
    {from: "@git/config.yaml", to: "@artifact/below/a.yaml"}, {from: "@git/config.yaml", to: "@artifact/dir/configs"}]}]}`)
	generated(t, r, "gen", 1)
	e := made(t, r, "made", "is there", func(*sourcev1.ExternalArtifact) bool { return true })
	want := map[string]string{
		"as/app.yaml": "c", "into/config.yaml": "c", "stars/configs/a.yaml": "a", "all/configs/sub/b.yaml": "b", "dir/configs/a.yaml": "a", "dir/configs/README.md": "r", "dir/configs/sub/b.yaml": "b", "dir/configs/config.yaml": "c",
		"below/a.yaml": "c", "below/sub/b.yaml": "b", "deep/configs/sub/b.yaml": "b",
	}
	if got := unpacked(t, fetch(t, e.Status.Artifact)); !maps.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
}

// strategies: a chart out of an archive, with values merged into its own, is released.
func (h *generatorSpec) strategies(t *testing.T) {
	r := h.GitRow(t, map[string]string{"prod.yaml": "settings: {size: large}\n"})
	r.Bucket(t, "charts", map[string]string{"web-1.0.0.tgz": string(scenario.AppChart("web", "1.0.0").Pack()), "notes.txt": "x"})
	generate(t, r, "gen", `{sources: [{alias: git, kind: GitRepository, name: git}, {alias: charts, kind: Bucket, name: charts}],
  artifacts: [{name: made, copy: [{from: "@charts/*", to: "@artifact/", strategy: Extract}, {from: "@git/prod.yaml", to: "@artifact/web/values.yaml", strategy: Merge}]}]}`)
	generated(t, r, "gen", 1)
	r.Release(t, "web", "{chart: null, chartRef: {kind: ExternalArtifact, name: made}}")
	r.Released(t, "web", 1)
	r.Has(t, "web-settings", "color", "red")
	r.Has(t, "web-settings", "size", "large")
	r.Commit(t, map[string]string{"prod.yaml": "settings: {size: small}\n"})
	r.Has(t, "web-settings", "size", "small")
	r.Released(t, "web", 2)
	// In the place of the file that is there.
	generate(t, r, "gen", `{sources: [{alias: git, kind: GitRepository, name: git}, {alias: charts, kind: Bucket, name: charts}],
  artifacts: [{name: made, copy: [{from: "@charts/web-1.0.0.tgz", to: "@artifact/", strategy: Extract}, {from: "@git/prod.yaml", to: "@artifact/web/values.yaml", strategy: Overwrite}]}]}`)
	r.Has(t, "web-settings", "color", "")
}

// revisions: that of the content, of a source, and of what it came from.
func (h *generatorSpec) revisions(t *testing.T) {
	r := h.GitRow(t, map[string]string{"app/a.yaml": value("a", "1"), "x": "x"})
	h.Push(t, r.Namespace, "v1", map[string]string{"y": "y"}, map[string]string{"org.opencontainers.image.revision": "main@sha1:0123", "org.opencontainers.image.source": "x"})
	r.MakeSource(t, "OCIRepository", "oci", "{url: \""+h.Registry.URL(r.Namespace)+"\", insecure: true, ref: {tag: v1}, interval: 10m}")
	generate(t, r, "gen", `{sources: [{alias: git, kind: GitRepository, name: git}, {alias: oci, kind: OCIRepository, name: oci}], artifacts: [
    {name: content, copy: [{from: "@git/app/**", to: "@artifact/"}]}, {name: pinned, revision: "@git", copy: [{from: "@git/app/**", to: "@artifact/"}]},
    {name: origin, originRevision: "@git", copy: [{from: "@git/app/**", to: "@artifact/"}]}, {name: image, originRevision: "@oci", copy: [{from: "@oci/y", to: "@artifact/"}]}]}`)
	generated(t, r, "gen", 4)
	const origin = "org.opencontainers.image.revision"
	content := made(t, r, "content", "has the revision of its content", func(e *sourcev1.ExternalArtifact) bool {
		return strings.HasPrefix(e.Status.Artifact.Revision, "latest@sha256:") && e.Status.Artifact.Metadata[origin] == ""
	})
	made(t, r, "origin", "has that of its content, and its origin", func(e *sourcev1.ExternalArtifact) bool {
		return e.Status.Artifact.Revision == content.Status.Artifact.Revision && e.Status.Artifact.Metadata[origin] == "main@sha1:"+r.Head
	})
	made(t, r, "image", "has the origin of the image", func(e *sourcev1.ExternalArtifact) bool { return e.Status.Artifact.Metadata[origin] == "main@sha1:0123" })
	made(t, r, "pinned", "has the revision of its source", func(e *sourcev1.ExternalArtifact) bool { return e.Status.Artifact.Revision == "main@sha1:"+r.Head })
	r.Commit(t, map[string]string{"x": "changed"})
	made(t, r, "pinned", "has the new revision of its source", func(e *sourcev1.ExternalArtifact) bool { return e.Status.Artifact.Revision == "main@sha1:"+r.Head })
	made(t, r, "content", "keeps its revision", func(e *sourcev1.ExternalArtifact) bool {
		return e.Status.Artifact.Revision == content.Status.Artifact.Revision
	})
}

func (h *generatorSpec) commonMetadata(t *testing.T) {
	r := h.GitRow(t, map[string]string{"app/a.yaml": value("a", "1")})
	artifacts := ", artifacts: [{name: made, copy: [{from: '@git/app/**', to: '@artifact/'}]}]}"
	generate(t, r, "gen", "{"+gitOnly+", commonMetadata: {labels: {team: one, source.extensions.fluxcd.io/generator: another}, annotations: {note: x}}"+artifacts)
	g := generated(t, r, "gen", 1)
	made(t, r, "made", "has what all have", func(e *sourcev1.ExternalArtifact) bool {
		return maps.Equal(e.Labels, map[string]string{"team": "one", "app.kubernetes.io/managed-by": "source-watcher", "source.extensions.fluxcd.io/generator": string(g.UID)}) &&
			e.Annotations["note"] == "x"
	})
	generate(t, r, "gen", "{"+gitOnly+", commonMetadata: {labels: {team: two}}"+artifacts)
	made(t, r, "made", "has no more than that", func(e *sourcev1.ExternalArtifact) bool {
		return e.Labels["team"] == "two" && e.Annotations["note"] == ""
	})
}

// pathPattern: an artifact for each directory, which comes and goes with it.
func (h *generatorSpec) pathPattern(t *testing.T) {
	r := h.GitRow(t, map[string]string{"apps/auth/envs/dev/a.yaml": value("auth", "dev"), "apps/Pay/envs/prod/a.yaml": value("pay", "prod"), "apps/README.md": "x"})
	generate(t, r, "gen", "{"+gitOnly+`, pathPattern: "@git/apps/{app}/envs/{env}", artifacts: [{name: "{app}-{env}", copy: [{from: "@git/apps/{app}/envs/{env}/**", to: "@artifact/{env}/"}]}]}`)
	generated(t, r, "gen", 2)
	made(t, r, "pay-prod", "has the captures as labels", func(e *sourcev1.ExternalArtifact) bool { return e.Labels["app"] == "pay" && e.Labels["env"] == "prod" })
	from(t, r, "auth-dev", "./dev")
	r.Has(t, "auth", "k", "dev")
	r.Commit(t, map[string]string{"apps/Pay/envs/prod/a.yaml": "", "apps/auth/envs/prod/a.yaml": value("auth", "prod")})
	generated(t, r, "gen", 2)
	made(t, r, "auth-prod", "has come", func(*sourcev1.ExternalArtifact) bool { return true })
	r.Gone(t, &sourcev1.ExternalArtifact{}, "pay-prod")
	r.Commit(t, map[string]string{"apps/.hidden/envs/dev/a.yaml": "x"})
	r.Tells(t, &generatorv1.ArtifactGenerator{}, "gen", "Stalled", "True", "ValidationFailed", "...captures '.hidden' for 'app'")
	made(t, r, "auth-prod", "stays", func(*sourcev1.ExternalArtifact) bool { return true })
	r.Commit(t, map[string]string{"apps/.hidden/envs/dev/a.yaml": ""})
	generated(t, r, "gen", 2)
}

func (h *generatorSpec) otherNamespace(t *testing.T) {
	r := h.GitRow(t, map[string]string{"app/a.yaml": value("a", "1")})
	h.Repository(t, "generators-other", map[string]string{"app/b.yaml": value("b", "elsewhere")})
	generate(t, r, "gen", `{sources: [{alias: other, kind: GitRepository, name: generators-other, namespace: cascade-system}], artifacts: [{name: made, copy: [{from: "@other/app/**", to: "@artifact/"}]}]}`)
	generated(t, r, "gen", 1)
	from(t, r, "made", "./")
	r.Has(t, "b", "k", "elsewhere")
}

// chain: a chart that a HelmChart has, and an artifact that another generator makes.
func (h *generatorSpec) chain(t *testing.T) {
	r := h.GitRow(t, map[string]string{"prod.yaml": "settings: {size: large}\n"})
	r.Apply(t, r.Fill("apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: charts, namespace: $ns}\nspec: {url: \""+h.Charts.URL()+"\", interval: 10m}\n"))
	r.MakeSource(t, "HelmChart", "chart", "{chart: app, version: 1.0.0, interval: 10m, sourceRef: {kind: HelmRepository, name: charts}}")
	generate(t, r, "second", `{sources: [{alias: first, kind: ExternalArtifact, name: first}, {alias: git, kind: GitRepository, name: git}],
  artifacts: [{name: second, copy: [{from: "@first/", to: "@artifact/"}, {from: "@git/prod.yaml", to: "@artifact/app/values.yaml", strategy: Merge}]}]}`)
	r.Tells(t, &generatorv1.ArtifactGenerator{}, "second", "Ready", "False", "SourceFetchFailed", "source 'ExternalArtifact/"+r.Namespace+"/first' not found")
	generate(t, r, "first", `{sources: [{alias: chart, kind: HelmChart, name: chart}], artifacts: [{name: first, copy: [{from: "@chart/", to: "@artifact/"}]}]}`)
	generated(t, r, "first", 1)
	generated(t, r, "second", 1)
	r.Release(t, "web", "{chart: null, chartRef: {kind: ExternalArtifact, name: second}}")
	r.Released(t, "web", 1)
	r.Has(t, "web-settings", "size", "large")
	// A circle would grow each time.
	generate(t, r, "first", `{sources: [{alias: chart, kind: ExternalArtifact, name: second}], artifacts: [{name: first, copy: [{from: "@chart/", to: "@artifact/"}]}]}`)
	r.Tells(t, &generatorv1.ArtifactGenerator{}, "first", "Ready", "False", "ValidationFailed", "...made of what this generator makes")
}

// served: what Flux's own controllers fetch is what the status says.
func (h *generatorSpec) served(t *testing.T) {
	r := h.GitRow(t, map[string]string{"app/a.yaml": "one"})
	generate(t, r, "gen", "{"+gitOnly+", artifacts: [{name: made, copy: [{from: '@git/app/**', to: '@artifact/'}]}]}")
	g := generated(t, r, "gen", 1)
	e := made(t, r, "made", "is served", func(e *sourcev1.ExternalArtifact) bool { return e.Status.Artifact.URL != "" })
	a := e.Status.Artifact
	if got := unpacked(t, fetch(t, a)); !maps.Equal(got, map[string]string{"a.yaml": "one"}) {
		t.Errorf("files %q", got)
	}
	if !strings.Contains(a.URL, "/externalartifact/"+r.Namespace+"/made/") || !strings.HasSuffix(a.Path, g.Status.Inventory[0].Filename) || a.Digest != g.Status.Inventory[0].Digest {
		t.Errorf("artifact %+v, inventory %+v", a, g.Status.Inventory)
	}
	if c := meta.FindStatusCondition(e.Status.Conditions, fluxmeta.ReadyCondition); c == nil || c.Status != metav1.ConditionTrue || c.Reason != "Succeeded" {
		t.Errorf("conditions are %s", scenario.Summary(e.Status.Conditions))
	}
	if ref := e.Spec.SourceRef; ref == nil || ref.Kind != "ArtifactGenerator" || ref.Name != "gen" {
		t.Errorf("sourceRef %+v", ref)
	}
	r.Event(t, "ArtifactGenerator", "gen", "Succeeded", "reconciliation succeeded, generated 1 artifact(s)")
}

// drift: what is deleted or changed by hand comes back, and wakes nobody.
func (h *generatorSpec) drift(t *testing.T) {
	r := h.GitRow(t, map[string]string{"app/a.yaml": value("a", "1")})
	generate(t, r, "gen", "{"+gitOnly+", artifacts: [{name: made, copy: [{from: '@git/app/**', to: '@artifact/'}]}]}")
	g := generated(t, r, "gen", 1)
	from(t, r, "made", "./")
	r.Has(t, "a", "k", "1")
	e := made(t, r, "made", "is there", func(*sourcev1.ExternalArtifact) bool { return true })
	revision, uid := e.Status.Artifact.Revision, e.UID
	r.Delete(t, e, "made")
	made(t, r, "made", "comes back", func(e *sourcev1.ExternalArtifact) bool { return e.UID != uid && e.Status.Artifact.Revision == revision })
	r.Patch(t, &sourcev1.ExternalArtifact{}, "made", `{"metadata":{"labels":{"source.extensions.fluxcd.io/generator":null,"mine":"too"}}}`)
	made(t, r, "made", "is corrected", func(e *sourcev1.ExternalArtifact) bool {
		return e.Labels["source.extensions.fluxcd.io/generator"] == string(g.UID) && e.Labels["mine"] == "too"
	})
	r.Patch(t, &sourcev1.ExternalArtifact{}, "made", `{"spec":{"sourceRef":{"name":"other"}}}`)
	made(t, r, "made", "is corrected again", func(e *sourcev1.ExternalArtifact) bool { return e.Spec.SourceRef.Name == "gen" })
	r.Commit(t, map[string]string{"app/a.yaml": value("a", "2")})
	r.Has(t, "a", "k", "2")
}

// inventory: what is declared no more goes, with the generator all of it, and another's never.
func (h *generatorSpec) inventory(t *testing.T) {
	r := h.GitRow(t, map[string]string{"app/a.yaml": value("a", "1")})
	r.Apply(t, r.Fill("apiVersion: source.toolkit.fluxcd.io/v1\nkind: ExternalArtifact\nmetadata: {name: theirs, namespace: $ns}\nspec: {}\n"))
	of := func(names ...string) string {
		var all []string
		for _, name := range names {
			all = append(all, "{name: "+name+", copy: [{from: '@git/app/**', to: '@artifact/'}]}")
		}
		return "{" + gitOnly + ", artifacts: [" + strings.Join(all, ", ") + "]}"
	}
	generate(t, r, "gen", of("one", "two"))
	g := generated(t, r, "gen", 2)
	if len(g.Status.Inventory) != 2 || g.Status.Inventory[0].Name != "one" || g.Status.Inventory[0].Namespace != r.Namespace || g.Status.ObservedSourcesDigest == "" {
		t.Errorf("status %+v", g.Status)
	}
	generate(t, r, "gen", of("two", "theirs"))
	r.Tells(t, g, "gen", "Ready", "False", "NameTaken", "...'theirs'")
	r.Gone(t, &sourcev1.ExternalArtifact{}, "one")
	e := &sourcev1.ExternalArtifact{}
	if err := r.Load(t.Context(), e, r.Namespace, "theirs"); err != nil || len(e.Labels) > 0 || e.Status.Artifact != nil {
		t.Errorf("another's artifact is %+v, %v", e, err)
	}
	// Its owner takes it away, and the name is free.
	r.Delete(t, e, "theirs")
	generated(t, r, "gen", 2)
	generate(t, r, "gen", of("two"))
	r.Gone(t, &sourcev1.ExternalArtifact{}, "theirs")
	r.Apply(t, r.Fill("apiVersion: source.toolkit.fluxcd.io/v1\nkind: ExternalArtifact\nmetadata: {name: theirs, namespace: $ns}\nspec: {}\n"))
	r.Delete(t, &generatorv1.ArtifactGenerator{}, "gen")
	r.Gone(t, &generatorv1.ArtifactGenerator{}, "gen")
	r.Gone(t, &sourcev1.ExternalArtifact{}, "two")
	if err := r.Load(t.Context(), e, r.Namespace, "theirs"); err != nil {
		t.Errorf("another's artifact: %v", err)
	}
}

// disabled: the annotation suspends a generator; a request is answered.
func (h *generatorSpec) disabled(t *testing.T) {
	r := h.GitRow(t, map[string]string{"app/a.yaml": value("a", "1")})
	generate(t, r, "gen", "{"+gitOnly+", artifacts: [{name: made, copy: [{from: '@git/app/**', to: '@artifact/'}]}]}")
	generated(t, r, "gen", 1)
	e := made(t, r, "made", "is there", func(*sourcev1.ExternalArtifact) bool { return true })
	r.Patch(t, &generatorv1.ArtifactGenerator{}, "gen", `{"metadata":{"annotations":{"source.extensions.fluxcd.io/reconcile":"Disabled"}}}`)
	r.Commit(t, map[string]string{"app/a.yaml": value("a", "2")})
	r.Fetched(t)
	r.Answered(t, &generatorv1.ArtifactGenerator{}, "gen")
	made(t, r, "made", "stays", func(now *sourcev1.ExternalArtifact) bool {
		return now.Status.Artifact.Revision == e.Status.Artifact.Revision
	})
	r.Patch(t, &generatorv1.ArtifactGenerator{}, "gen", `{"metadata":{"annotations":{"source.extensions.fluxcd.io/reconcile":"enabled"}}}`)
	made(t, r, "made", "is made anew", func(now *sourcev1.ExternalArtifact) bool {
		return now.Status.Artifact.Revision != e.Status.Artifact.Revision
	})
	r.Answered(t, &generatorv1.ArtifactGenerator{}, "gen")
}

// conditions: Flux's reasons; what was made stays; a source or a commit ends the failure.
func (h *generatorSpec) conditions(t *testing.T) {
	r := h.GitRow(t, map[string]string{"app/a.yaml": value("a", "1")})
	g := &generatorv1.ArtifactGenerator{}
	generate(t, r, "gen", `{sources: [{alias: late, kind: Bucket, name: late}], artifacts: [{name: made, copy: [{from: "@late/app/**", to: "@artifact/"}]}]}`)
	r.Tells(t, g, "gen", "Ready", "False", "SourceFetchFailed", "source 'Bucket/"+r.Namespace+"/late' not found")
	r.Tells(t, g, "gen", "Reconciling", "True", "ProgressingWithRetry", "")
	r.Bucket(t, "late", map[string]string{"app/a.yaml": "a"})
	generated(t, r, "gen", 1)
	generate(t, r, "gen", "{"+gitOnly+`, artifacts: [{name: made, copy: [{from: "@git/new/**", to: "@artifact/"}]}]}`)
	r.Tells(t, g, "gen", "Ready", "False", "BuildFailed", "...no such file or directory")
	r.Event(t, "ArtifactGenerator", "gen", "BuildFailed", "no such file or directory")
	made(t, r, "made", "stays", func(*sourcev1.ExternalArtifact) bool { return true })
	r.Commit(t, map[string]string{"new/a.yaml": "a"})
	generated(t, r, "gen", 1)
	generate(t, r, "gen", "{"+gitOnly+`, artifacts: [{name: made, copy: [{from: "@other/new/**", to: "@artifact/"}]}]}`)
	r.Tells(t, g, "gen", "Stalled", "True", "ValidationFailed", "...source alias that is not in spec.sources")
	generate(t, r, "gen", "{sources: [{alias: git, kind: GitRepository, name: git}, {alias: git, kind: Bucket, name: late}]"+`, artifacts: [{name: made, copy: [{from: "@git/new/**", to: "@artifact/"}]}]}`)
	r.Tells(t, g, "gen", "Stalled", "True", "ValidationFailed", "duplicate source alias 'git' found")
}

// refused: what the API server refuses by Flux's definition.
func (h *generatorSpec) refused(t *testing.T) {
	r := h.GitRow(t, map[string]string{"x": "x"})
	for name, spec := range map[string]string{
		"no source":        "{sources: [], artifacts: [{name: made, copy: [{from: '@git/x', to: '@artifact/'}]}]}",
		"another kind":     "{sources: [{alias: git, kind: HelmRepository, name: git}], artifacts: [{name: made, copy: [{from: '@git/x', to: '@artifact/'}]}]}",
		"above":            "{" + gitOnly + ", artifacts: [{name: made, copy: [{from: '@git/x', to: '@artifact/../x'}]}]}",
		"no alias":         "{" + gitOnly + ", artifacts: [{name: made, copy: [{from: 'x', to: '@artifact/'}]}]}",
		"no copy":          "{" + gitOnly + ", artifacts: [{name: made, copy: []}]}",
		"a strategy":       "{" + gitOnly + ", artifacts: [{name: made, copy: [{from: '@git/x', to: '@artifact/', strategy: Move}]}]}",
		"a revision":       "{" + gitOnly + ", artifacts: [{name: made, revision: main, copy: [{from: '@git/x', to: '@artifact/'}]}]}",
		"a name":           "{" + gitOnly + ", artifacts: [{name: '{app}', copy: [{from: '@git/x', to: '@artifact/'}]}]}",
		"a path's pattern": "{" + gitOnly + ", pathPattern: 'apps', artifacts: [{name: made, copy: [{from: '@git/x', to: '@artifact/'}]}]}",
	} {
		text := r.Fill("apiVersion: source.extensions.fluxcd.io/v1beta1\nkind: ArtifactGenerator\nmetadata: {name: bad, namespace: $ns}\nspec: " + spec + "\n")
		if err := stage.Apply(t.Context(), r.Client, text); err == nil {
			t.Errorf("%s: it is taken", name)
		}
	}
}
