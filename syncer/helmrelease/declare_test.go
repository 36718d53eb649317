package helmrelease

import (
	"testing"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
