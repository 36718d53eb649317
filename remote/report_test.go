package remote

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var start = metav1.NewTime(time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC))

func later(d time.Duration) metav1.Time { return metav1.NewTime(start.Add(d)) }

func ready(status metav1.ConditionStatus, reason, message string) []metav1.Condition {
	return []metav1.Condition{{Type: "Ready", Status: status, Reason: reason, Message: message, LastTransitionTime: start}}
}

func repositoryAt(name, revision string, conditions []metav1.Condition) *sourcev1.GitRepository {
	o := &sourcev1.GitRepository{}
	o.Namespace, o.Name = "cascade-system", name
	o.Status.Conditions = conditions
	if revision != "" {
		o.Status.Artifact = &fluxmeta.Artifact{Revision: revision}
	}
	return o
}

func kustomization(name string, objects int, conditions []metav1.Condition) kustomizev1.Kustomization {
	o := kustomizev1.Kustomization{}
	o.Namespace, o.Name = "cascade-system", name
	o.Status.Conditions = conditions
	o.Status.Inventory = &kustomizev1.ResourceInventory{Entries: make([]kustomizev1.ResourceRef, objects)}
	return o
}

func releaseNamed(name string, objects int, conditions []metav1.Condition) helmv2.HelmRelease {
	o := helmv2.HelmRelease{}
	o.Namespace, o.Name = "cascade-system", name
	o.Status.Conditions = conditions
	o.Status.Inventory = &helmv2.ResourceInventory{Entries: make([]helmv2.ResourceRef, objects)}
	return o
}

func childNamed(name string, conditions []metav1.Condition) v1alpha1.Child {
	o := v1alpha1.Child{}
	o.Namespace, o.Name = "fleet", name
	o.CreationTimestamp = start
	o.Status.Conditions = conditions
	return o
}

func TestCompute(t *testing.T) {
	yes := ready(metav1.ConditionTrue, "Succeeded", "all is well")
	suspended := kustomization("off", 2, ready(metav1.ConditionFalse, "BuildFailed", "old"))
	suspended.Spec.Suspend = true
	stale := kustomization("stale", 1, yes)
	stale.Generation, stale.Status.ObservedGeneration = 2, 1
	for name, tc := range map[string]struct {
		reason string
		facts  Facts
		want   v1alpha1.Report
	}{
		"Empty": {"a tier that has nothing to do is ready", Facts{Agent: "v1"}, v1alpha1.Report{Agent: "v1", Ready: true, Reason: "Succeeded"}},
		"Ready": {
			"one source is named by its revision alone; objects are counted",
			Facts{Sources: []client.Object{repositoryAt("fleet", "main@sha1:1", yes)}, Kustomizations: []kustomizev1.Kustomization{kustomization("a", 3, yes), kustomization("b", 4, yes)}},
			v1alpha1.Report{Ready: true, Reason: "Succeeded", Revision: "main@sha1:1", Objects: 7},
		},
		"Sources": {
			"several sources are told apart, in an order that does not change",
			Facts{Sources: []client.Object{repositoryAt("z", "main@sha1:2", yes), repositoryAt("a", "main@sha1:1", yes)}},
			v1alpha1.Report{Ready: true, Reason: "Succeeded", Revision: "a=main@sha1:1,z=main@sha1:2"},
		},
		"Release": {
			"a release counts as a Kustomization does",
			Facts{Releases: []helmv2.HelmRelease{releaseNamed("mesh", 2, ready(metav1.ConditionFalse, "UpgradeFailed", "no"))}},
			v1alpha1.Report{
				Reason: "HelmReleaseFailing", Message: "HelmRelease/cascade-system/mesh: UpgradeFailed: no", Objects: 2,
				Failing: []v1alpha1.Failure{{Name: "HelmRelease/cascade-system/mesh", Reason: "UpgradeFailed", Message: "no"}},
			},
		},
		"Registry": {
			"a Helm repository that is a registry has no status, and lacks nothing",
			Facts{Sources: []client.Object{&sourcev1.HelmRepository{Spec: sourcev1.HelmRepositorySpec{Type: "oci"}}}},
			v1alpha1.Report{Ready: true, Reason: "Succeeded"},
		},
		"Failing": {
			"the first failure is the reason, a person sees it at the top",
			Facts{Kustomizations: []kustomizev1.Kustomization{kustomization("a", 1, yes), kustomization("b", 0, ready(metav1.ConditionFalse, "BuildFailed", "no such file"))}},
			v1alpha1.Report{Reason: "KustomizationFailing", Message: "Kustomization/cascade-system/b: BuildFailed: no such file", Objects: 1,
				Failing: []v1alpha1.Failure{{Name: "Kustomization/cascade-system/b", Reason: "BuildFailed", Message: "no such file"}}},
		},
		"SourceFirst": {
			"a source that fails is the cause of what is made of it",
			Facts{
				Sources:        []client.Object{repositoryAt("fleet", "", ready(metav1.ConditionFalse, "GitOperationFailed", "gone"))},
				Kustomizations: []kustomizev1.Kustomization{kustomization("a", 0, ready(metav1.ConditionFalse, "ArtifactFailed", "none"))},
			},
			v1alpha1.Report{Reason: "SourceFailing", Message: "GitRepository/cascade-system/fleet: GitOperationFailed: gone", Failing: []v1alpha1.Failure{
				{Name: "GitRepository/cascade-system/fleet", Reason: "GitOperationFailed", Message: "gone"},
				{Name: "Kustomization/cascade-system/a", Reason: "ArtifactFailed", Message: "none"},
			}},
		},
		"NoCondition": {
			"what nobody has looked at yet is on its way, not failing", Facts{Kustomizations: []kustomizev1.Kustomization{kustomization("a", 0, nil)}},
			v1alpha1.Report{Reason: "Progressing", Message: "Kustomization/cascade-system/a: Progressing", Failing: []v1alpha1.Failure{{Name: "Kustomization/cascade-system/a", Reason: "Progressing"}}},
		},
		"Stale":     {"INV8: ready of an earlier generation is not ready", Facts{Kustomizations: []kustomizev1.Kustomization{stale}}, v1alpha1.Report{Reason: "Progressing", Message: "Kustomization/cascade-system/stale: Progressing", Objects: 1, Failing: []v1alpha1.Failure{{Name: "Kustomization/cascade-system/stale", Reason: "Progressing"}}}},
		"Suspended": {"what a person suspended is no failure, but it still answers for its objects", Facts{Kustomizations: []kustomizev1.Kustomization{suspended}}, v1alpha1.Report{Ready: true, Reason: "Succeeded", Objects: 2}},
		"Children": {
			"a child that is not ready is no failure of this tier, which works without it",
			Facts{Children: []v1alpha1.Child{childNamed("a", yes), childNamed("b", ready(metav1.ConditionFalse, "Unreachable", "no route"))}},
			v1alpha1.Report{Ready: true, Reason: "Succeeded", Children: &v1alpha1.ReportCounts{Total: 2, Ready: 1}, Tiers: []v1alpha1.TierRow{
				{Path: "fleet/b", Reason: "Unreachable", Message: "no route", Since: start}, {Path: "fleet/a", Ready: true, Reason: "Succeeded", Since: start},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.want.Since = later(time.Minute)
			got := Compute(tc.facts, nil, later(time.Minute))
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("%s\nCompute(): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestSince(t *testing.T) {
	failing := Facts{Kustomizations: []kustomizev1.Kustomization{kustomization("a", 0, ready(metav1.ConditionFalse, "BuildFailed", "one"))}}
	other := Facts{Kustomizations: []kustomizev1.Kustomization{kustomization("b", 0, ready(metav1.ConditionFalse, "BuildFailed", "two"))}}
	well := Compute(Facts{}, nil, start)
	still := Compute(Facts{Agent: "v2"}, well, later(time.Hour))
	if !still.Since.Equal(&start) {
		t.Errorf("Since = %s while nothing changed, want %s", still.Since, start)
	}
	broken := Compute(failing, still, later(2*time.Hour))
	if want := later(2 * time.Hour); !broken.Since.Equal(&want) {
		t.Errorf("Since = %s after it broke, want %s", broken.Since, want)
	}
	again := Compute(other, broken, later(3*time.Hour))
	if !again.Since.Equal(&broken.Since) {
		t.Errorf("Since = %s while the reason is the same, want %s", again.Since, broken.Since)
	}
}

// TestReportIsBounded: a report is one ConfigMap, whatever the fleet is.
func TestReportIsBounded(t *testing.T) {
	var f Facts
	long := strings.Repeat("x", 10_000)
	for i := range 500 {
		c := childNamed(fmt.Sprintf("c%03d", i), ready(metav1.ConditionTrue, "Succeeded", ""))
		if i%50 == 49 {
			c.Status.Conditions = ready(metav1.ConditionFalse, "Unreachable", long)
		}
		below := &v1alpha1.Report{Children: &v1alpha1.ReportCounts{Total: 1000, Ready: 990}}
		for k := range 100 {
			below.Tiers = append(below.Tiers, v1alpha1.TierRow{Path: fmt.Sprintf("t/n%02d", k), Ready: k != 0, Reason: "x", Message: long})
		}
		c.Status.Report = below
		f.Children = append(f.Children, c)
		f.Kustomizations = append(f.Kustomizations, kustomization(fmt.Sprint("k", i), 1, ready(metav1.ConditionFalse, "BuildFailed", long)))
	}
	r := Compute(f, nil, start)
	if want := (v1alpha1.ReportCounts{Total: 500 + 500*1000, Ready: 490 + 500*990}); *r.Children != want {
		t.Errorf("counts are %+v, want %+v: they cover all, listed or not", *r.Children, want)
	}
	if len(r.Tiers) != maxTierRows || len(r.Failing) != maxFailing {
		t.Errorf("%d rows and %d failures, want %d and %d", len(r.Tiers), len(r.Failing), maxTierRows, maxFailing)
	}
	for i, row := range r.Tiers {
		if row.Ready {
			t.Errorf("row %d, %s, is ready although more than %d are not", i, row.Path, maxTierRows)
			break
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	// A parent refuses more, and keeps it in a Child.
	if len(text) > maxReport {
		t.Errorf("the report has %d bytes, a parent takes %d", len(text), maxReport)
	}
}

func TestRollUpPaths(t *testing.T) {
	c := childNamed("master", ready(metav1.ConditionTrue, "Succeeded", ""))
	c.Status.Report = &v1alpha1.Report{
		Revision: "main@sha1:1", Children: &v1alpha1.ReportCounts{Total: 2},
		Tiers: []v1alpha1.TierRow{{Path: "tenants/t1", Reason: "Unreachable"}, {Path: "tenants/t1>x/y", Ready: true}},
	}
	r := Compute(Facts{Children: []v1alpha1.Child{c}}, nil, start)
	var got []string
	for _, row := range r.Tiers {
		got = append(got, row.Path)
	}
	want := []string{"fleet/master>tenants/t1", "fleet/master", "fleet/master>tenants/t1>x/y"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths, not ready first: -want, +got:\n%s", diff)
	}
	if r.Tiers[1].Revision != "main@sha1:1" {
		t.Errorf("the row of a child has revision %q, want what its agent reports", r.Tiers[1].Revision)
	}
}

func TestRow(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		child  v1alpha1.Child
		want   v1alpha1.TierRow
	}{
		"New":   {"it was not reconciled yet", childNamed("a", nil), v1alpha1.TierRow{Path: "fleet/a", Reason: "Progressing", Since: start}},
		"Ready": {"a message of success is noise", childNamed("a", ready(metav1.ConditionTrue, "Succeeded", "connected")), v1alpha1.TierRow{Path: "fleet/a", Ready: true, Reason: "Succeeded", Since: start}},
		"Not":   {"the message says what to do", childNamed("a", ready(metav1.ConditionFalse, "Unreachable", "no route")), v1alpha1.TierRow{Path: "fleet/a", Reason: "Unreachable", Message: "no route", Since: start}},
		"Maybe": {"unknown is not ready", childNamed("a", ready(metav1.ConditionUnknown, "NoLayer", "none")), v1alpha1.TierRow{Path: "fleet/a", Reason: "NoLayer", Message: "none", Since: start}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Row(&tc.child)); diff != "" {
				t.Errorf("%s\nRow(): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestParseReport: a child is another trust domain, and may say anything.
// TestHostileReport: what a child reports cannot keep its Child, or the report of its
// parent, from being written, nor what reads it from ending.
func TestHostileReport(t *testing.T) {
	row := func(change func(*v1alpha1.TierRow)) v1alpha1.Report {
		r := v1alpha1.TierRow{Path: "a/b", Reason: "Succeeded", Since: start}
		change(&r)
		return v1alpha1.Report{Reason: "Succeeded", Since: start, Tiers: []v1alpha1.TierRow{r}}
	}
	long := strings.Repeat("x", 60_000)
	for name, tc := range map[string]struct {
		reason string
		report v1alpha1.Report
		rows   int
	}{
		"Good":     {"nothing is lost", row(func(r *v1alpha1.TierRow) { r.Path = "a/b>c/d" }), 1},
		"Path":     {"a name of 60 KB", row(func(r *v1alpha1.TierRow) { r.Path = "a/" + long }), 0},
		"Deep":     {"60 000 levels", row(func(r *v1alpha1.TierRow) { r.Path = strings.Repeat("a/b>", 60_000) + "a/b" }), 0},
		"Escaped":  {"each of these is six bytes in JSON", row(func(r *v1alpha1.TierRow) { r.Path = strings.Repeat(">", 180_000) }), 0},
		"Version":  {"a version of 60 KB", row(func(r *v1alpha1.TierRow) { r.Version = long }), 1},
		"Revision": {"a revision of 60 KB", row(func(r *v1alpha1.TierRow) { r.Revision = long }), 1},
		"Reason":   {"a reason that no condition may have", row(func(r *v1alpha1.TierRow) { r.Reason = "not a reason" }), 1},
		"NoReason": {"nor none", v1alpha1.Report{Since: start}, 0},
		"Since":    {"a time that is missing", v1alpha1.Report{Reason: "Succeeded"}, 0},
		"Total":    {"more clusters than there are numbers", v1alpha1.Report{Reason: "Succeeded", Since: start, Children: &v1alpha1.ReportCounts{Total: 2147483647, Ready: -5}}, 0},
		"Failing":  {"ten names of 60 KB", v1alpha1.Report{Reason: "Succeeded", Since: start, Failing: slices.Repeat([]v1alpha1.Failure{{Name: long, Reason: long}}, 10)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal(tc.report)
			if err != nil {
				t.Fatal(err)
			}
			if len(text) > maxReport { // refused whole, which TestParseReport shows
				text, _ = json.Marshal(tc.report)
			}
			got := &v1alpha1.Report{}
			if err := json.Unmarshal(text, got); err != nil {
				t.Fatal(err)
			}
			confine(got)
			if len(got.Tiers) != tc.rows {
				t.Errorf("%s: %d rows, want %d", tc.reason, len(got.Tiers), tc.rows)
			}
			c := childNamed("child", ready(metav1.ConditionTrue, "Succeeded", ""))
			c.Status.Report = got
			above := Compute(Facts{Children: slices.Repeat([]v1alpha1.Child{c}, 3000)}, nil, start)
			for _, r := range []*v1alpha1.Report{got, above} {
				text, err := encode(r)
				if err != nil || len(text) > maxReport {
					t.Errorf("%s: a report of %d bytes, %v", tc.reason, len(text), err)
				}
				if !reasonForm.MatchString(r.Reason) || strings.Contains(string(text), `"since":null`) {
					t.Errorf("%s: the API server would refuse %.300s", tc.reason, text)
				}
				if n := r.Children; n != nil && (n.Total < 0 || n.Total > maxClusters || n.Ready > n.Total || n.Ready < 0) {
					t.Errorf("%s: counts are %+v", tc.reason, *n)
				}
			}
		})
	}
}

func TestParseReport(t *testing.T) {
	many := v1alpha1.Report{Message: strings.Repeat("x", 10_000)}
	for range 150 {
		many.Failing = append(many.Failing, v1alpha1.Failure{Name: "x"})
		many.Tiers = append(many.Tiers, v1alpha1.TierRow{Path: "x/y", Message: strings.Repeat("x", 1000)})
	}
	text, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseReport(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Failing) != maxFailing || len(got.Tiers) != maxTierRows || len(got.Message) > 2000 || len(got.Tiers[0].Message) > maxRowMessage {
		t.Errorf("%d failures, %d rows, messages of %d and %d bytes: more than the API allows, so the status could not be written", len(got.Failing), len(got.Tiers), len(got.Message), len(got.Tiers[0].Message))
	}
	for name, tc := range map[string]struct {
		reason string
		text   string
	}{
		"Huge":   {"a child must not fill the parent's memory or its Child", `{"agent":"` + strings.Repeat("x", maxReport) + `"}`},
		"Broken": {"not to be understood is not to have reported", "{"},
		"Empty":  {"the same for a ConfigMap without the key", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parseReport(tc.text); err == nil || reasonOf(err) != v1alpha1.ReasonReportMissing {
				t.Errorf("%s\nparseReport() = %v, want reason %s", tc.reason, err, v1alpha1.ReasonReportMissing)
			}
		})
	}
}
