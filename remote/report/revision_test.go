package report

import (
	"fmt"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// TestTriedByNeed: those who need a source by other ways than a sourceRef count as well, and what was
// told before is found by its whole name.
func TestTriedByNeed(t *testing.T) {
	const one, two = "sha256:1", "sha256:2"
	const before, after = "main@sha1:1", "main@sha1:2"
	image := &sourcev1.OCIRepository{}
	image.Namespace, image.Name, image.Status.Artifact = "cascade-system", "app", &fluxmeta.Artifact{Revision: "v2@" + two}
	repository := repositoryAt("app", after, nil)
	chart := &sourcev1.HelmChart{}
	chart.Namespace, chart.Name, chart.Spec.SourceRef = "cascade-system", "web", sourcev1.LocalHelmChartSourceReference{Kind: "GitRepository", Name: "app"}
	chart.Status.ObservedSourceArtifactRevision, chart.Status.Artifact = after, &fluxmeta.Artifact{Revision: "1.1.0"}
	includes := func(revision string) *sourcev1.GitRepository {
		o := repositoryAt("whole", "main@sha1:9", nil)
		o.Status.ObservedInclude = []sourcev1.GitRepositoryInclude{{GitRepositoryRef: fluxmeta.LocalObjectReference{Name: "app"}}}
		o.Status.IncludedArtifacts = []*fluxmeta.Artifact{{Revision: revision}}
		return o
	}
	release := func(kind, name, version, digest string) []helmv2.HelmRelease {
		r := releaseNamed("app", 0, nil)
		r.Namespace, r.Spec.ChartRef = "team", &helmv2.CrossNamespaceSourceReference{Kind: kind, Namespace: "cascade-system", Name: name}
		r.Status.LastAttemptedRevision, r.Status.LastAttemptedRevisionDigest = version, digest
		return []helmv2.HelmRelease{r}
	}
	suspended := release("OCIRepository", "app", "1.0.0", one)
	suspended[0].Spec.Suspend = true
	for _, o := range []client.Object{image, repository} {
		o.SetLabels(map[string]string{v1alpha1.LayerLabelGroup + "/name": "base"})
	}
	for name, tc := range map[string]struct {
		reason   string
		sources  []client.Object
		releases []helmv2.HelmRelease
		of, want string
	}{
		"Image":     {"the release has the chart of before", []client.Object{image}, release("OCIRepository", "app", "1.0.0", one), "OCIRepository", one},
		"Tried":     {"it tried the chart, and its own readiness says what came of it", []client.Object{image}, release("OCIRepository", "app", "1.1.0", two), "OCIRepository", "v2@" + two},
		"New":       {"one that tried nothing is not ready anyway", []client.Object{image}, release("OCIRepository", "app", "", ""), "OCIRepository", "v2@" + two},
		"Suspended": {"it will not try", []client.Object{image}, suspended, "OCIRepository", "v2@" + two},
		"Chart":     {"a HelmChart that it names has another version by now", []client.Object{repository, chart}, release("HelmChart", "web", "1.0.0", ""), "GitRepository", before},
		"Included":  {"who includes it has not done so yet", []client.Object{repository, includes(before)}, nil, "GitRepository", before},
		"Includes":  {"it has", []client.Object{repository, includes(after)}, nil, "GitRepository", after},
	} {
		t.Run(name, func(t *testing.T) {
			// What was told in one line had no room for it.
			last := &v1alpha1.Report{Revision: "+41 sha256:0123456789abcdef", Brought: &v1alpha1.ReportBrought{Objects: []v1alpha1.ReportedSource{
				{Kind: "GitRepository", Namespace: "team", Name: "app", Revision: "main@sha1:7"},
				{Kind: "GitRepository", Namespace: "cascade-system", Name: "app", Revision: before},
			}}}
			r := Compute(Facts{Sources: tc.sources, Releases: tc.releases}, last, start)
			if got, _ := BroughtRevision(r, v1alpha1.RolloutPinnedSource{Kind: tc.of, Namespace: "cascade-system", Name: "app"}); got != tc.want {
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

// TestUpdating: a cluster may be ready while a layer is on its way to it, at the revision of
// before.
func TestUpdating(t *testing.T) {
	const one, two = "main@sha1:1", "main@sha1:2"
	layer := func(change func(*v1alpha1.Layer)) v1alpha1.Layer {
		l := v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "tenant", Generation: 3}}
		l.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Namespace: "cascade-system", Name: "fleet"}
		l.Status.Revision = one // it was not counted since
		if change != nil {
			change(&l)
		}
		return l
	}
	child := func(revision string, change func(*v1alpha1.Child)) v1alpha1.Child {
		c := childNamed("a", ready(metav1.ConditionTrue, "Succeeded", ""))
		c.Status.Layers = []v1alpha1.ChildLayer{{Name: "tenant", Revision: revision, Ready: true, ObservedGeneration: 3}}
		if change != nil {
			change(&c)
		}
		return c
	}
	moved := v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
	moved.Spec.Moves.LayerRef = &v1alpha1.LayerReference{Name: "tenant"}
	for name, tc := range map[string]struct {
		reason   string
		layer    v1alpha1.Layer
		child    v1alpha1.Child
		rollouts []v1alpha1.Rollout
		want     int32
	}{
		"InPlace":   {"the child has it", layer(nil), child(two, nil), nil, 0},
		"OnItsWay":  {"it has the one before, and is ready with it", layer(nil), child(one, nil), nil, 1},
		"Changed":   {"the layer was changed since", layer(func(l *v1alpha1.Layer) { l.Generation++ }), child(two, nil), nil, 1},
		"NotReady":  {"it is counted as not ready", layer(nil), child(one, func(c *v1alpha1.Child) { c.Status.Conditions = ready(metav1.ConditionFalse, "SeedFailed", "no") }), nil, 0},
		"Lost":      {"it is counted as stale", layer(nil), child(one, func(c *v1alpha1.Child) { c.Status.HeardAt = &start }), nil, 0},
		"Other":     {"it has another layer", layer(nil), child(one, func(c *v1alpha1.Child) { c.Status.Layers[0].Name = "other" }), nil, 0},
		"Elsewhere": {"it is of another namespace", layer(func(l *v1alpha1.Layer) { l.Namespace = "team" }), child(one, nil), nil, 0},
		"Agent":     {"the layer has no source", layer(func(l *v1alpha1.Layer) { l.Spec.SourceRef, l.Status.Revision = nil, "" }), child("", nil), nil, 0},
		"Unknown":   {"its source is not there: what it pushes counts", layer(func(l *v1alpha1.Layer) { l.Spec.SourceRef.Name = "other" }), child(one, nil), nil, 0},
		"Suspended": {"a person wants it to stand still", layer(func(l *v1alpha1.Layer) { l.Spec.Suspend = true }), child(one, nil), nil, 0},
		"Moved":     {"a Rollout lets it have the revision before, and is on its way by itself", layer(nil), child(one, nil), []v1alpha1.Rollout{moved}, 0},
		"Below": {"what the child has on its way counts, too", layer(nil), child(one, func(c *v1alpha1.Child) {
			c.Status.Report = &v1alpha1.Report{Ready: true, Children: &v1alpha1.ReportCounts{Total: 9, Ready: 9, Updating: 4}}
		}), nil, 5},
	} {
		t.Run(name, func(t *testing.T) {
			r := Compute(Facts{Sources: []client.Object{repositoryAt("fleet", two, nil)}, Layers: []v1alpha1.Layer{tc.layer}, Rollouts: tc.rollouts, Below: belowOf(tc.child)}, nil, start)
			if r.Children.Updating != tc.want {
				t.Errorf("%s: %d, want %d", tc.reason, r.Children.Updating, tc.want)
			}
			if all := r.Children.Ready == r.Children.Total && tc.want == 0; allReady(r) != all {
				t.Errorf("%s: all have what they are to have: %t", tc.reason, !all)
			}
		})
	}
}

// TestBrought: what layers brought is told by its whole name, first what is pinned.
func TestBrought(t *testing.T) {
	byLayer := map[string]string{v1alpha1.LayerLabelGroup + "/name": "base", v1alpha1.LayerLabelGroup + "/namespace": "fleet"}
	var f Facts
	for i := range 2 * maxBrought {
		o := repositoryAt(fmt.Sprintf("repo-%02d", i), "main@sha1:"+strings.Repeat("a", 40), nil)
		o.Labels = byLayer
		f.Sources = append(f.Sources, o)
	}
	pinned := repositoryAt("zz", "main@sha1:"+strings.Repeat("f", 40), nil)
	pinned.Labels, pinned.Spec.Reference = byLayer, &sourcev1.GitRepositoryRef{Commit: strings.Repeat("f", 40)}
	others := repositoryAt("zz", "main@sha1:"+strings.Repeat("e", 40), nil)
	others.Namespace = "team"
	f.Sources = append(f.Sources, pinned, others)
	web := releaseNamed("web", 0, nil)
	web.Labels, web.Status.History = byLayer, helmv2.Snapshots{{ChartVersion: "1.3.0", Version: 2}, {ChartVersion: "1.2.0", Version: 1}}
	own := releaseNamed("own", 0, nil)
	own.Status.History = web.Status.History
	web.Annotations = map[string]string{v1alpha1.PinnedAnnotation: "true"}
	f.Releases = append(f.Releases, web, own)
	for i := range maxBrought {
		addOn := releaseNamed(fmt.Sprintf("add-on-%02d", i), 0, nil)
		addOn.Labels, addOn.Status.History = byLayer, own.Status.History
		f.Releases = append(f.Releases, addOn)
	}
	r := Compute(f, nil, start)
	if len(r.Brought.Objects) != maxBrought || r.Brought.More != 2*maxBrought+2 {
		t.Fatalf("%d are told, and %d more", len(r.Brought.Objects), r.Brought.More)
	}
	for name, tc := range map[string]struct {
		of   v1alpha1.RolloutPinnedSource
		want string
	}{
		"Pinned":  {v1alpha1.RolloutPinnedSource{Kind: "GitRepository", Namespace: pinned.Namespace, Name: "zz"}, pinned.Status.Artifact.Revision},
		"Team":    {v1alpha1.RolloutPinnedSource{Kind: "GitRepository", Namespace: "team", Name: "zz"}, ""},
		"Release": {v1alpha1.RolloutPinnedSource{Kind: "HelmRelease", Namespace: web.Namespace, Name: "web"}, "1.3.0"},
		"Own":     {v1alpha1.RolloutPinnedSource{Kind: "HelmRelease", Namespace: web.Namespace, Name: "own"}, ""},
		"Kind":    {v1alpha1.RolloutPinnedSource{Kind: "OCIRepository", Namespace: pinned.Namespace, Name: "zz"}, ""},
	} {
		if got, _ := BroughtRevision(r, tc.of); got != tc.want {
			t.Errorf("%s: %q is told of %+v, want %q", name, got, tc.of, tc.want)
		}
	}
	empty := Compute(Facts{Sources: []client.Object{others}}, nil, start)
	few := Compute(Facts{Releases: []helmv2.HelmRelease{web, own}}, nil, start)
	for name, tc := range map[string]struct {
		reason string
		report *v1alpha1.Report
		of     string
		want   bool
	}{
		"Empty":   {"no layer brought anything", empty, "web", true},
		"Another": {"another one was brought", few, "net", true},
		"Told":    {"it has it", few, "web", false},
		"NoRoom":  {"it may be one of those that are not told", r, "net", false},
		"Older":   {"an agent of before tells of none", &v1alpha1.Report{}, "web", false},
		"Unnamed": {"an agent of before leaves out what has a version that no pin can name", &v1alpha1.Report{Brought: &v1alpha1.ReportBrought{}}, "web", false},
	} {
		if got := HasNothing(tc.report, v1alpha1.RolloutPinnedSource{Kind: "HelmRelease", Namespace: web.Namespace, Name: tc.of}); got != tc.want {
			t.Errorf("%s: %s: it has nothing %t", name, tc.reason, got)
		}
	}
	for name, tc := range map[string]struct{ reason, has, asks, want string }{
		"Range":    {"to pin it would package the chart anew, which is to wait for its wave", "1.3.0+4", "1.x", ""},
		"Newest":   {"nor does it ask for any", "1.3.0+4", "", ""},
		"Exact":    {"the generation of its HelmChart is no part of the version", "1.3.0+4", "1.3.0", "1.3.0"},
		"Build":    {"it is in the place of what the repository says", "1.3.0+4", "v1.3.0+b", "v1.3.0+b"},
		"OnItsWay": {"it asks for another one by now", "1.3.0+4", "1.4.0", ""},
	} {
		merged := releaseNamed("web", 0, nil)
		merged.Labels, merged.Status.History = byLayer, helmv2.Snapshots{{ChartVersion: tc.has}}
		merged.Spec.Chart = &helmv2.HelmChartTemplate{Spec: helmv2.HelmChartTemplateSpec{Version: tc.asks, ValuesFiles: []string{"values-prod.yaml"}}}
		told, of := Compute(Facts{Releases: []helmv2.HelmRelease{merged}}, nil, start), v1alpha1.RolloutPinnedSource{Kind: "HelmRelease", Namespace: merged.Namespace, Name: "web"}
		if got, _ := BroughtRevision(told, of); got != tc.want || HasNothing(told, of) {
			t.Errorf("%s: with values files, %s: %q is told, want %q; it has nothing %t", name, tc.reason, got, tc.want, HasNothing(told, of))
		}
	}
	for range 2 * maxBrought {
		r.Brought.Objects = append(r.Brought.Objects, v1alpha1.ReportedSource{Kind: strings.Repeat("k", 9999), Revision: strings.Repeat("r", 9999)})
	}
	r.Brought.Complete = true
	if confine(r); len(r.Brought.Objects) != maxBrought || r.Brought.More != 4*maxBrought+2 || r.Brought.Complete {
		t.Errorf("a child told %d, and %d more, complete %t", len(r.Brought.Objects), r.Brought.More, r.Brought.Complete)
	}
}
