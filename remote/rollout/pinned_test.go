package rollout

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"sigs.k8s.io/yaml"
)

const (
	commit = "1234567890123456789012345678901234567890"
	digest = "sha256:1234567890123456789012345678901234567890123456789012345678901234"
)

func TestRevisions(t *testing.T) {
	for name, tc := range map[string]struct {
		reason         string
		of             func(string) (string, error)
		revision, want string
	}{
		"Branch":        {"", Commit, "main@sha1:" + commit, commit},
		"Tag":           {"", Commit, "v1.2.3@sha1:" + commit, commit},
		"Bare":          {"a commit without a name", Commit, "sha1:" + commit, commit},
		"At":            {"a branch may have an @ in its name", Commit, "fix@home@sha1:" + commit, commit},
		"LongCommit":    {"a repository of SHA-256", Commit, "main@" + digest, strings.TrimPrefix(digest, "sha256:")},
		"Short":         {"a part of a commit is none", Commit, "main@sha1:1234567", ""},
		"NoHex":         {"", Commit, "main@sha1:" + strings.Repeat("x", 40), ""},
		"VersionCommit": {"the pin of another kind", Commit, "1.2.3", ""},
		"Image":         {"", Digest, "latest@" + digest, digest},
		"BareImage":     {"", Digest, digest, digest},
		"CommitImage":   {"the pin of another kind", Digest, "main@sha1:" + commit, ""},
		"Version":       {"", ChartVersion, "1.2.3-rc.1+abc", "1.2.3-rc.1+abc"},
		"V":             {"", ChartVersion, "v1.2.3", "v1.2.3"},
		"ZeroPadded":    {"a date with zeros, which charts may have", ChartVersion, "2026.01.05", "2026.01.05"},
		"Range":         {"a part of a version is a range of them", ChartVersion, "1.2", ""},
		"ImageVersion":  {"the pin of another kind", ChartVersion, "latest@" + digest, ""},
		"Empty":         {"", ChartVersion, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := tc.of(tc.revision); got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("%s: %q, %v, want %q", tc.reason, got, err, tc.want)
			}
		})
	}
}

func TestApply(t *testing.T) {
	object := func(kind, spec string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		group := "source.toolkit.fluxcd.io/v1"
		if kind == "HelmRelease" {
			group = "helm.toolkit.fluxcd.io/v2"
		}
		if err := yaml.Unmarshal([]byte("apiVersion: "+group+"\nkind: "+kind+"\nmetadata: {name: fleet, namespace: ns}\nspec: "+spec), &u.Object); err != nil {
			t.Fatal(err)
		}
		return u
	}
	git, image := "main@sha1:"+commit, "latest@"+digest
	for name, tc := range map[string]struct {
		reason               string
		kind, spec, revision string
		// want is the spec, or a part of the error.
		want, err string
	}{
		"Branch":    {"the branch is what has the commit", "GitRepository", `{url: u, ref: {branch: main}}`, git, `{url: u, ref: {branch: main, commit: "` + commit + `"}}`, ""},
		"Default":   {"without a reference", "GitRepository", `{url: u}`, git, `{url: u, ref: {commit: "` + commit + `"}}`, ""},
		"Version":   {"a commit wins over a range; what would not count goes", "GitRepository", `{url: u, ref: {semver: ">=1", tag: v1}}`, git, `{url: u, ref: {commit: "` + commit + `"}}`, ""},
		"Name":      {"a full name of a branch is one", "GitRepository", `{ref: {name: refs/heads/main}}`, git, `{ref: {branch: main, commit: "` + commit + `"}}`, ""},
		"Pull":      {"that of a pull request is none", "GitRepository", `{ref: {name: refs/pull/1/head}}`, git, `{ref: {commit: "` + commit + `"}}`, ""},
		"Pinned":    {"Git pinned it to another", "GitRepository", `{ref: {branch: main, commit: "0"}}`, git, `{ref: {branch: main, commit: "` + commit + `"}}`, ""},
		"SignedTag": {"a commit has no signed tag", "GitRepository", `{ref: {tag: v1}, verify: {mode: Tag}}`, git, "", "spec.verify.mode is Tag"},
		"Head":      {"", "GitRepository", `{verify: {mode: HEAD}}`, git, `{verify: {mode: HEAD}, ref: {commit: "` + commit + `"}}`, ""},
		"Other":     {"the pin is of another kind", "GitRepository", `{}`, "1.2.3", "", "names no commit"},
		"Image":     {"a digest wins over a range and a tag", "OCIRepository", `{url: u, ref: {semver: ">=1", semverFilter: x, tag: latest}}`, image, `{url: u, ref: {digest: "` + digest + `"}}`, ""},
		"Chart": {
			"", "HelmRelease", `{chart: {spec: {chart: app, version: ">=1", sourceRef: {kind: HelmRepository, name: r}}}}`, "1.2.3",
			`{chart: {spec: {chart: app, version: 1.2.3, sourceRef: {kind: HelmRepository, name: r}}}}`, "",
		},
		"ChartRef": {"its version is that of another object", "HelmRelease", `{chartRef: {kind: OCIRepository, name: r}}`, "1.2.3", "", "spec.chartRef"},
		"GitChart": {"its version has no effect", "HelmRelease", `{chart: {spec: {chart: ./app, sourceRef: {kind: GitRepository, name: r}}}}`, "1.2.3", "", "no effect"},
	} {
		t.Run(name, func(t *testing.T) {
			u := object(tc.kind, tc.spec)
			before := u.DeepCopy()
			got, err := Apply(u, tc.revision)
			if diff := cmp.Diff(before.Object, u.Object); diff != "" {
				t.Errorf("the object that others share was changed: %s", diff)
			}
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%s: Apply() = %v, want an error with %q", tc.reason, err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := object(tc.kind, tc.want)
			want.SetAnnotations(map[string]string{v1alpha1.PinnedAnnotation: "true"})
			if diff := cmp.Diff(want.Object, got.Object); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
			if is, ok := Identify(got); !ok || is.Kind != tc.kind || is.Name != "fleet" || is.Namespace != "ns" {
				t.Errorf("Identify() = %v, %t", is, ok)
			}
		})
	}
	foreign := object("GitRepository", "{}")
	foreign.SetAPIVersion("example.com/v1")
	if _, ok := Identify(foreign); ok {
		t.Error("an object of another group is taken for one of Flux")
	}
}
