package helmrelease

import (
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestBehind: a chart and Kustomizations of one repository are compared at one commit.
func TestBehind(t *testing.T) {
	chart := func(kind, observed string, ready metav1.ConditionStatus) sourcev1.Source {
		c := &sourcev1.HelmChart{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "web"}}
		c.Spec.SourceRef = sourcev1.LocalHelmChartSourceReference{Kind: kind, Name: "git"}
		c.Status.ObservedSourceArtifactRevision = observed
		c.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: ready}}
		return c
	}
	a, b := &source.Snapshot{Revision: "A"}, &source.Snapshot{Revision: "B"}
	for name, tc := range map[string]struct {
		reason       string
		from         sourcev1.Source
		seen, newest *source.Snapshot
		behind       bool
		fails        bool
	}{
		"Same":      {reason: "all of it is of one commit", from: chart("GitRepository", "A", metav1.ConditionTrue), newest: a},
		"Older":     {reason: "the chart is built in a moment", from: chart("GitRepository", "A", metav1.ConditionTrue), newest: b, behind: true},
		"Newer":     {reason: "the chart is of a newer commit than what was seen of the others", from: chart("GitRepository", "B", metav1.ConditionTrue), seen: a, newest: b, behind: true},
		"MayBe":     {reason: "the chart may be of a newer commit than its status says", from: chart("GitRepository", "A", metav1.ConditionTrue), seen: a, newest: b, behind: true},
		"Fails":     {reason: "what the chart should have is not known", from: chart("GitRepository", "A", metav1.ConditionFalse), newest: a, behind: true, fails: true},
		"Bucket":    {reason: "a bucket has charts and manifests, too", from: chart("Bucket", "A", metav1.ConditionTrue), newest: b, behind: true},
		"Elsewhere": {reason: "no commit moves anything to a chart of a Helm repository", from: chart("HelmRepository", "A", metav1.ConditionFalse), newest: b},
		"Image":     {reason: "nor to one of a registry", from: &sourcev1.OCIRepository{}, newest: b},
		"NotOurs":   {reason: "another process fetches the source", from: chart("GitRepository", "A", metav1.ConditionTrue)},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reconciler{Sources: &find.Finder{Snapshots: source.NewSnapshots()}}
			view := &source.View{}
			for _, kind := range []string{"GitRepository", "Bucket"} {
				key := source.Key{Kind: kind, NamespacedName: types.NamespacedName{Namespace: "apps", Name: "git"}}
				r.Sources.Snapshots.Put(key, tc.newest)
				if tc.seen != nil {
					if _, err := view.Snapshot(key, func() (*source.Snapshot, error) { return tc.seen, nil }); err != nil {
						t.Fatal(err)
					}
				}
			}
			got := r.behind(tc.from, view)
			if (got != nil) != tc.behind || got != nil && got.fails != tc.fails {
				t.Errorf("%s: got %v", tc.reason, got)
			}
		})
	}
}

// TestDeclaresChart: what a HelmRelease declares is not known by another chart than it names: a commit moves an object to a new
// version of it, and the HelmChart is changed only after that (read 643).
func TestDeclaresChart(t *testing.T) {
	config := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "apps", "name": "moved"}}}
	for name, tc := range map[string]struct {
		reason         string
		obj            func(*helmv2.HelmRelease)
		have           func(*sourcev1.HelmChart)
		known, passing bool
	}{
		"Same":      {reason: "it is the chart that is named", known: true},
		"Older":     {reason: "another version is to come", have: func(c *sourcev1.HelmChart) { c.Spec.Version = "1.0.0" }, passing: true},
		"Elsewhere": {reason: "so is one of another repository", have: func(c *sourcev1.HelmChart) { c.Spec.SourceRef.Name = "old" }, passing: true},
		"Suspended": {reason: "nobody knows when it comes", obj: func(h *helmv2.HelmRelease) { h.Spec.Suspend = true }, have: func(c *sourcev1.HelmChart) { c.Spec.Version = "1.0.0" }},
		"Unfetched": {reason: "it is fetched in a moment", have: func(c *sourcev1.HelmChart) { c.Generation = 4 }, passing: true},
		"Stands":    {reason: "nobody fetches it", have: func(c *sourcev1.HelmChart) { c.Generation, c.Spec.Suspend = 4, true }},
		"Failed": {reason: "there is no such version", have: func(c *sourcev1.HelmChart) {
			c.Generation, c.Status.Conditions = 4, []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionFalse}}
		}},
		"Defaulted": {reason: "any version is any version", obj: func(h *helmv2.HelmRelease) { h.Spec.Chart.Spec.Version = "" }, have: func(c *sourcev1.HelmChart) { c.Spec.Version = "*" }, known: true},
		"Verified":  {reason: "what somebody added to it stays", have: func(c *sourcev1.HelmChart) { c.Spec.Verify = &sourcev1.HelmChartVerification{Provider: "cosign"} }, known: true},
	} {
		t.Run(name, func(t *testing.T) {
			obj := shop(func(h *helmv2.HelmRelease) {
				h.Spec.ChartRef = nil
				h.Spec.Chart = &helmv2.HelmChartTemplate{Spec: helmv2.HelmChartTemplateSpec{
					Chart: "shop", Version: "2.0.0", SourceRef: helmv2.CrossNamespaceObjectReference{Kind: "HelmRepository", Name: "charts"},
				}}
				if tc.obj != nil {
					tc.obj(h)
				}
			})
			have := helmChart(obj)
			have.Generation, have.Status.ObservedGeneration, have.Status.Artifact = 3, 3, &meta.Artifact{Revision: "1.0.0"}
			if tc.have != nil {
				tc.have(have)
			}
			s := take(t, obj, have)
			s.Sources.Snapshots.Put(chartKey(obj), chartOf(t, "apiVersion: v2\nname: shop\nversion: 1.0.0\n"))
			s.helm.declares = func() ([]*unstructured.Unstructured, error) { return []*unstructured.Unstructured{config}, nil }
			d := s.Reconciler.Declares(t.Context(), s.Obj, &source.View{}, false)
			if known := d.Unknown == nil && len(d.Entries) == 1; known != tc.known || d.Passing != tc.passing || (d.Unknown != nil) == known {
				t.Errorf("%s: declared is %+v, want it to be known: %t, soon: %t", tc.reason, d, tc.known, tc.passing)
			}
		})
	}
}
