package report

import (
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestTried: a source counts at the revision that those who refer to it have tried.
func TestTried(t *testing.T) {
	const one, two = "main@sha1:1", "main@sha1:2"
	fleet := repositoryAt("fleet", two, nil)
	refers := func(name, tried string, change ...func(*kustomizev1.Kustomization)) kustomizev1.Kustomization {
		k := kustomization(name, 0, nil)
		k.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "fleet"}
		k.Status.LastAttemptedRevision = tried
		for _, f := range change {
			f(&k)
		}
		return k
	}
	elsewhere := func(k *kustomizev1.Kustomization) { k.Namespace, k.Spec.SourceRef.Namespace = "team", "cascade-system" }
	chart := func(observed, version string) *sourcev1.HelmChart {
		c := &sourcev1.HelmChart{}
		c.Namespace, c.Name, c.Spec.SourceRef = "cascade-system", "app", sourcev1.LocalHelmChartSourceReference{Kind: "GitRepository", Name: "fleet"}
		c.Status.ObservedSourceArtifactRevision, c.Status.Artifact = observed, &fluxmeta.Artifact{Revision: version}
		return c
	}
	release := func(version string, suspend bool) helmv2.HelmRelease {
		r := releaseNamed("app", 0, nil)
		r.Spec.Suspend, r.Status.HelmChart, r.Status.LastAttemptedRevision = suspend, "cascade-system/app", version
		return r
	}
	for name, tc := range map[string]struct {
		reason         string
		kustomizations []kustomizev1.Kustomization
		chart          *sourcev1.HelmChart
		releases       []helmv2.HelmRelease
		before         string
		want           string
	}{
		"Alone":     {"nobody refers to it", nil, nil, nil, "", two},
		"Tried":     {"", []kustomizev1.Kustomization{refers("a", two), refers("b", two)}, nil, nil, one, two},
		"Behind":    {"its readiness is about the commit before", []kustomizev1.Kustomization{refers("a", two), refers("b", one)}, nil, nil, one, one},
		"New":       {"who tried nothing is not ready anyway", []kustomizev1.Kustomization{refers("a", two), refers("b", "")}, nil, nil, one, two},
		"Suspended": {"it will not try", []kustomizev1.Kustomization{refers("a", two), refers("b", one, func(k *kustomizev1.Kustomization) { k.Spec.Suspend = true })}, nil, nil, one, two},
		"Elsewhere": {"of another namespace", []kustomizev1.Kustomization{refers("a", one, elsewhere)}, nil, nil, one, one},
		"Other":     {"it refers to another source", []kustomizev1.Kustomization{refers("a", one, func(k *kustomizev1.Kustomization) { k.Spec.SourceRef.Kind = "OCIRepository" })}, nil, nil, one, two},
		"Chart":     {"the chart was not made of it yet", nil, chart(one, "1.0.0"), []helmv2.HelmRelease{release("1.0.0", false)}, one, one},
		"SameChart": {"the commit did not change the chart", nil, chart(two, "1.0.0"), []helmv2.HelmRelease{release("1.0.0", false)}, one, two},
		"Release":   {"the release did not try the new chart", nil, chart(two, "1.1.0"), []helmv2.HelmRelease{release("1.0.0", false)}, one, one},
		"First":     {"nor any chart before", nil, chart(two, "1.1.0"), []helmv2.HelmRelease{release("", false)}, one, two},
		"Held":      {"a suspended release tries none", nil, chart(two, "1.1.0"), []helmv2.HelmRelease{release("1.0.0", true)}, one, two},
	} {
		t.Run(name, func(t *testing.T) {
			f := Facts{Sources: []client.Object{fleet}, Kustomizations: tc.kustomizations, Releases: tc.releases}
			if tc.chart != nil {
				f.Sources = append(f.Sources, tc.chart)
			}
			if got := Compute(f, &v1alpha1.Report{Revision: tc.before}, start).Revision; got != tc.want {
				t.Errorf("%s: %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

// TestPinnedFirst: what is pinned is named, however many other sources there are.
func TestPinnedFirst(t *testing.T) {
	var sources []client.Object
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		sources = append(sources, repositoryAt(name, "main@sha1:"+strings.Repeat(name, 40), nil))
	}
	pinned := repositoryAt("z", "main@sha1:"+strings.Repeat("9", 40), nil)
	pinned.Spec.Reference = &sourcev1.GitRepositoryRef{Commit: strings.Repeat("9", 40)}
	few := Compute(Facts{Sources: append([]client.Object{pinned}, sources[:2]...)}, nil, start)
	if !strings.HasPrefix(few.Revision, "a=") || !strings.Contains(few.Revision, ",z=") {
		t.Errorf("what has room keeps its order: %s", few.Revision)
	}
	many := Compute(Facts{Sources: append(sources, pinned)}, nil, start)
	if !strings.HasPrefix(many.Revision, "z=main@sha1:999") || len(many.Revision) > maxRevision {
		t.Errorf("what is pinned is not named first: %s", many.Revision)
	}
	if got, ok := RevisionOf(many, "z"); !ok || got != pinned.Status.Artifact.Revision {
		t.Errorf("RevisionOf() = %q, %t", got, ok)
	}
	if got, ok := RevisionOf(many, "h"); ok {
		t.Errorf("RevisionOf() = %q of a source without room", got)
	}
}

func TestRevisionOf(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, report, source, want string
	}{
		"One":       {"the only one has no name", "main@sha1:1", "fleet", "main@sha1:1"},
		"Equals":    {"a branch with = in its name", "a@b=c@sha1:1", "fleet", "a@b=c@sha1:1"},
		"Digest":    {"", "sha256:1", "fleet", "sha256:1"},
		"Several":   {"", "apps=v1@sha1:2,fleet=main@sha1:1", "fleet", "main@sha1:1"},
		"Other":     {"", "apps=v1@sha1:2,fleets=main@sha1:1", "fleet", ""},
		"Twice":     {"two of that name, in two namespaces", "fleet=main@sha1:1,fleet=main@sha1:2", "fleet", ""},
		"TwiceSame": {"at the same", "fleet=main@sha1:1,fleet=main@sha1:1", "fleet", "main@sha1:1"},
		"Cut":       {"", "apps=v1@sha1:2,+3 sha256:0123456789abcdef", "fleet", ""},
		"CutAll":    {"", "+3 sha256:0123456789abcdef", "fleet", ""},
		"None":      {"", "", "fleet", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := RevisionOf(&v1alpha1.Report{Revision: tc.report}, tc.source)
			if ok != (tc.want != "") || ok && got != tc.want {
				t.Errorf("%s: RevisionOf() = %q, %t, want %q", tc.reason, got, ok, tc.want)
			}
		})
	}
	if _, ok := RevisionOf(nil, "fleet"); ok {
		t.Error("no report tells a revision")
	}
}
