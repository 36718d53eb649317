package report

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func pathsOf(rows []v1alpha1.TierRow) []string {
	var paths []string
	for _, row := range rows {
		paths = append(paths, row.Path)
	}
	return paths
}

func TestRollUpPaths(t *testing.T) {
	c := childNamed("master", ready(metav1.ConditionTrue, "Succeeded", ""))
	c.Status.Report = &v1alpha1.Report{
		Revision: "main@sha1:1", Children: &v1alpha1.ReportCounts{Total: 2},
		Tiers: []v1alpha1.TierRow{{Path: "tenants/t1", Reason: "Unreachable"}, {Path: "tenants/t1>x/y", Ready: true, Reason: "Succeeded"}},
	}
	r := Compute(Facts{Below: belowOf(c)}, nil, start)
	want := []string{"fleet/master>tenants/t1", "fleet/master", "fleet/master>tenants/t1>x/y"}
	if diff := cmp.Diff(want, pathsOf(r.Tiers)); diff != "" {
		t.Errorf("paths, not ready first: -want, +got:\n%s", diff)
	}
	if r.Tiers[1].Revision != "main@sha1:1" {
		t.Errorf("the row of a child has revision %q, want what its agent reports", r.Tiers[1].Revision)
	}
}

func TestRow(t *testing.T) {
	placed := childNamed("a", ready(metav1.ConditionTrue, "Succeeded", ""))
	placed.Labels = map[string]string{v1alpha1.OwnerLabel: "payments"}
	placed.Status.Version, placed.Status.Provider, placed.Status.Region = "v1.36.3", "aws", "eu-central-1"
	layer := childNamed("a", ready(metav1.ConditionTrue, "Succeeded", ""))
	layer.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Ready: true}, {Name: "apps", Ready: true, Suspended: true}}
	broken := childNamed("a", ready(metav1.ConditionFalse, "Unreachable", "no route"))
	broken.Status.Layers = layer.Status.Layers
	lost := childNamed("a", ready(metav1.ConditionFalse, "Unreachable", "no route"))
	lost.Status.HeardAt = &start
	failing := childNamed("a", ready(metav1.ConditionFalse, "KustomizationFailing", "words"))
	failing.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Ready: true}}
	failing.Status.Report = &v1alpha1.Report{Reason: "KustomizationFailing", Failing: []v1alpha1.Failure{
		{Name: "Credential/b/keys", Reason: "CredentialLapsed"}, {Name: "Kustomization/b/after", Reason: "DependencyNotReady"}, {Name: "Kustomization/b/apps", Reason: "BuildFailed"},
	}}
	unplaced := childNamed("a", ready(metav1.ConditionFalse, "BuildFailed", "words"))
	unplaced.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Reason: "Progressing"}, {Name: "apps", Reason: "BuildFailed"}}
	unplaced.Status.Report = failing.Status.Report
	for name, tc := range map[string]struct {
		reason string
		child  v1alpha1.Child
		want   v1alpha1.TierRow
	}{
		"New":    {"it was not reconciled yet", childNamed("a", nil), v1alpha1.TierRow{Path: "fleet/a", Reason: "Progressing", Since: start}},
		"Ready":  {"a message of success is noise", childNamed("a", ready(metav1.ConditionTrue, "Succeeded", "connected")), v1alpha1.TierRow{Path: "fleet/a", Ready: true, Reason: "Succeeded", Since: start}},
		"Not":    {"the message says what to do", childNamed("a", ready(metav1.ConditionFalse, "Unreachable", "no route")), v1alpha1.TierRow{Path: "fleet/a", Reason: "Unreachable", Message: "no route", Since: start}},
		"Maybe":  {"unknown is not ready", childNamed("a", ready(metav1.ConditionUnknown, "NoLayer", "none")), v1alpha1.TierRow{Path: "fleet/a", Reason: "NoLayer", Message: "none", Since: start}},
		"Placed": {"whose it is, where it is, and what it runs", placed, v1alpha1.TierRow{Path: "fleet/a", Ready: true, Reason: "Succeeded", Since: start, Version: "v1.36.3", Owner: "payments", Provider: "aws", Region: "eu-central-1"}},
		"Off":    {"the tier says that it is suspended", childNamed("a", ready(metav1.ConditionFalse, "Suspended", "all")), v1alpha1.TierRow{Path: "fleet/a", Suspended: true, Reason: "Suspended", Message: "all", Since: start}},
		"Layer": {"a suspended layer is not in sync, however it was", layer, v1alpha1.TierRow{Path: "fleet/a", Suspended: true, Reason: "Suspended", Message: "layer apps is suspended", Since: start,
			Cause: &v1alpha1.TierCause{Kind: "Layer", Namespace: "fleet", Name: "apps", Reason: "Suspended"}}},
		"Cause": {"what its agent reports, and not what waits for that", failing, v1alpha1.TierRow{Path: "fleet/a", Reason: "KustomizationFailing", Message: "words", Since: start,
			Cause: &v1alpha1.TierCause{Kind: "Kustomization", Namespace: "b", Name: "apps", Reason: "BuildFailed"}}},
		"Unplaced": {"the layer that says so, whatever the agent reports besides", unplaced, v1alpha1.TierRow{Path: "fleet/a", Reason: "BuildFailed", Message: "words", Since: start,
			Cause: &v1alpha1.TierCause{Kind: "Layer", Namespace: "fleet", Name: "apps", Reason: "BuildFailed"}}},
		"Broken": {"what is wrong is more important", broken, v1alpha1.TierRow{Path: "fleet/a", Suspended: true, Reason: "Unreachable", Message: "no route", Since: start}},
		"Lost":   {"the reason is its own, and says since when nothing is known", lost, v1alpha1.TierRow{Path: "fleet/a", Reason: "Unreachable", Message: "no route", Since: start, Heard: &start}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Row(&tc.child)); diff != "" {
				t.Errorf("%s\nRow(): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestStale: what a dead child reported last is not told as if it were so now.
func TestStale(t *testing.T) {
	earlier := later(-time.Hour)
	c := childNamed("master", ready(metav1.ConditionFalse, "Unreachable", "no route"))
	c.Status.Report = &v1alpha1.Report{
		Ready: true, Reason: "Succeeded", Children: &v1alpha1.ReportCounts{
			Total: 1000, Ready: 990, Suspended: 2, Stale: 3,
			ByReason:   []v1alpha1.NamedCount{{Name: "Succeeded", Count: 990}, {Name: "Unreachable", Count: 10}},
			ByRevision: []v1alpha1.NamedCount{{Name: sha, Count: 1000}},
		},
		Tiers: []v1alpha1.TierRow{
			{Path: "t/gone", Reason: "Stale", Message: "was Succeeded", Heard: &earlier, Since: earlier},
			{Path: "t/off", Suspended: true, Reason: "Suspended", Since: earlier, Cause: &v1alpha1.TierCause{Kind: "Kustomization", Namespace: "a", Name: "b", Reason: "Suspended"}},
			{Path: "t/well", Ready: true, Reason: "Succeeded", Revision: sha, Version: "v1.36.3", Since: earlier},
		},
	}
	alive := Compute(Facts{Below: belowOf(c)}, nil, start)
	if n := alive.Children; n.Ready != 990 || n.Stale != 3 || n.Suspended != 2 || !alive.Tiers[len(alive.Tiers)-1].Ready {
		t.Errorf("before it is lost for long the counts are %+v", *n)
	}

	c.Status.HeardAt = &start
	stale := Compute(Facts{Below: belowOf(c)}, nil, start)
	wantCounts := &v1alpha1.ReportCounts{
		Total: 1001, Stale: 1000,
		ByReason:   []v1alpha1.NamedCount{{Name: "Stale", Count: 1000}, {Name: "Unreachable", Count: 1}},
		ByRevision: []v1alpha1.NamedCount{{Name: sha, Count: 1000}, {Count: 1}},
	}
	if diff := cmp.Diff(wantCounts, stale.Children); diff != "" {
		t.Errorf("counts: -want, +got:\n%s", diff)
	}
	want := []v1alpha1.TierRow{
		{Path: "fleet/master", Reason: "Unreachable", Message: "no route", Since: start, Heard: &start},
		{Path: "fleet/master>t/gone", Reason: "Stale", Message: "was Succeeded", Since: earlier, Heard: &earlier},
		{Path: "fleet/master>t/off", Reason: "Stale", Message: "was Suspended", Since: start, Heard: &start},
		{Path: "fleet/master>t/well", Reason: "Stale", Message: "was Succeeded", Revision: sha, Version: "v1.36.3", Since: start, Heard: &start},
	}
	if diff := cmp.Diff(want, stale.Tiers); diff != "" {
		t.Errorf("rows: -want, +got:\n%s", diff)
	}

	// The tier between is well; what it tells of as stale stays so further up.
	middle := childNamed("region", ready(metav1.ConditionTrue, "Succeeded", ""))
	middle.Status.Report = stale
	top := Compute(Facts{Below: belowOf(middle)}, nil, later(time.Hour))
	if n := top.Children; n.Total != 1002 || n.Ready != 1 || n.Stale != 1000 {
		t.Errorf("further up the counts are %+v", *n)
	}
	for _, row := range top.Tiers {
		if row.Ready != (row.Path == "fleet/region") || row.Reason == "Stale" && row.Heard == nil {
			t.Errorf("further up a row is %+v", row)
		}
	}
	if diff := cmp.Diff(pathsOf(RowsBelow(&c)), []string{"t/gone", "t/off", "t/well"}); diff != "" {
		t.Errorf("RowsBelow(): -want, +got:\n%s", diff)
	}
}

// TestRoomForAll: a child whose report is full of rows that are not ready, and of names
// that it invents, takes no row and no name of others.
func TestRoomForAll(t *testing.T) {
	var children []v1alpha1.Child
	for i := range 60 {
		c := childNamed(fmt.Sprintf("master-%02d", i), ready(metav1.ConditionTrue, "Succeeded", ""))
		c.Status.Report = &v1alpha1.Report{
			Children: &v1alpha1.ReportCounts{Total: 10, Ready: 9, ByReason: []v1alpha1.NamedCount{{Name: "Succeeded", Count: 9}, {Name: "BuildFailed", Count: 1}}},
			Tiers:    []v1alpha1.TierRow{{Path: "t/broken", Reason: "BuildFailed", Since: start}, {Path: "t/well", Ready: true, Reason: "Succeeded", Since: start}},
		}
		children = append(children, c)
	}
	// By its name it comes before all others.
	liar := childNamed("a-liar", ready(metav1.ConditionTrue, "Succeeded", ""))
	liar.Status.Report = &v1alpha1.Report{Children: &v1alpha1.ReportCounts{Total: 500_000}}
	for i := range 100 {
		liar.Status.Report.Tiers = append(liar.Status.Report.Tiers, v1alpha1.TierRow{Path: fmt.Sprintf("a/a%02d", i), Reason: "BuildFailed", Since: start})
		if i < maxNames {
			liar.Status.Report.Children.ByReason = append(liar.Status.Report.Children.ByReason, v1alpha1.NamedCount{Name: fmt.Sprintf("Invented%02d", i), Count: 25_000})
		}
	}
	r := Compute(Facts{Below: belowOf(append(children, liar)...)}, nil, start)
	of := map[string]int{}
	for _, row := range r.Tiers {
		of[row.Path]++
	}
	for i := range 60 {
		if path := fmt.Sprintf("fleet/master-%02d>t/broken", i); of[path] != 1 {
			t.Errorf("%s has no row", path)
		}
	}
	counted := map[string]int32{}
	for _, n := range r.Children.ByReason {
		counted[n.Name] = n.Count
	}
	if counted["Succeeded"] != 61+60*9 || counted["BuildFailed"] != 60 || len(r.Children.ByReason) != maxNames {
		t.Errorf("reasons are %v", r.Children.ByReason)
	}
	wellFormed(t, "a child that lies", r)
}

// TestNames: the lists are in order, bounded, and cover all.
func TestNames(t *testing.T) {
	var children []v1alpha1.Child
	for i := range 30 {
		for k := range i + 1 {
			children = append(children, childNamed(fmt.Sprintf("c-%d-%d", i, k), ready(metav1.ConditionFalse, fmt.Sprintf("Reason%02d", i), "")))
		}
	}
	got := Compute(Facts{Below: belowOf(children...)}, nil, start).Children.ByReason
	var want []v1alpha1.NamedCount
	rest := int32(len(children))
	for i := 29; i > 10; i-- {
		want = append(want, v1alpha1.NamedCount{Name: fmt.Sprintf("Reason%02d", i), Count: int32(i + 1)})
		rest -= int32(i + 1)
	}
	want = append(want, v1alpha1.NamedCount{Count: rest})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reasons: -want, +got:\n%s", diff)
	}
}

// TestBelow: what is kept is what all Children of now give, whatever they were before.
func TestBelow(t *testing.T) {
	at := func(name, version, reason string) v1alpha1.Child {
		status := metav1.ConditionFalse
		if reason == "Succeeded" {
			status = metav1.ConditionTrue
		}
		c := childNamed(name, ready(status, reason, ""))
		c.UID, c.ResourceVersion = types.UID("uid-"+name), version
		c.Status.Report = &v1alpha1.Report{
			Revision: "r" + version, Children: &v1alpha1.ReportCounts{Total: 3, Ready: 2, ByReason: []v1alpha1.NamedCount{{Name: reason, Count: 3}}},
			Tiers: []v1alpha1.TierRow{{Path: "t/x", Reason: reason, Since: start}},
		}
		return c
	}
	b := belowOf(at("a", "1", "Succeeded"), at("b", "1", "Unreachable"), at("c", "1", "Succeeded"))
	same, newer := at("a", "1", "BuildFailed"), at("a", "2", "BuildFailed")
	if b.Put(&same) {
		t.Error("the same version is worked out again")
	}
	if !b.Put(&newer) {
		t.Error("another version is not seen")
	}
	another := at("b", "1", "Succeeded")
	another.UID = "created again"
	if !b.Put(&another) {
		t.Error("another Child under the same name is not seen")
	}
	if gone := (types.NamespacedName{Namespace: "fleet", Name: "c"}); !b.Remove(gone) || b.Remove(gone) {
		t.Error("a Child is removed once")
	}
	got, want := Compute(Facts{Below: b}, nil, start), Compute(Facts{Below: belowOf(newer, another)}, nil, start)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after changes: -want, +got:\n%s", diff)
	}
	for _, name := range []string{"a", "b"} {
		b.Remove(types.NamespacedName{Namespace: "fleet", Name: name})
	}
	if r := Compute(Facts{Below: b}, nil, start); r.Children != nil || len(r.Tiers) != 0 || len(b.sums.reasons) != 0 || len(b.sums.revisions) != 0 {
		t.Errorf("of no Children there is left %+v, %v", r.Children, b.sums)
	}
}

// BenchmarkOneOf5000 is what one Child that changes costs, of 5000 with 100 rows each.
func BenchmarkOneOf5000(b *testing.B) {
	child := func(i, version int) *v1alpha1.Child {
		c := childNamed(fmt.Sprintf("master-%04d", i), ready(metav1.ConditionTrue, "Succeeded", ""))
		c.UID, c.ResourceVersion = types.UID(c.Name), fmt.Sprint(version)
		c.Status.Report = &v1alpha1.Report{Ready: true, Reason: "Succeeded", Revision: sha, Since: start, Children: &v1alpha1.ReportCounts{
			Total: 1000, Ready: 990, ByReason: []v1alpha1.NamedCount{{Name: "Succeeded", Count: 990}, {Name: "Unreachable", Count: 10}}, ByRevision: []v1alpha1.NamedCount{{Name: sha, Count: 1000}},
		}}
		for k := range 100 {
			row := v1alpha1.TierRow{Path: fmt.Sprintf("tenants/tenant-%03d", k), Ready: k >= 10, Reason: "Succeeded", Revision: sha, Version: "v1.36.3", Since: start}
			if !row.Ready {
				row.Reason = "Unreachable"
			}
			c.Status.Report.Tiers = append(c.Status.Report.Tiers, row)
		}
		return &c
	}
	below := &Below{}
	for i := range 5000 {
		below.Put(child(i, 0))
	}
	changed := [2]*v1alpha1.Child{child(2500, 1), child(2500, 2)}
	var last *v1alpha1.Report
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		below.Put(changed[n%2])
		last = Compute(Facts{Below: below}, last, start)
	}
	if len(last.Tiers) != maxTierRows || last.Children.Total != 5000*1001 {
		b.Errorf("%d rows, counts %+v", len(last.Tiers), *last.Children)
	}
}
