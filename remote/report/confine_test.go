package report

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestHostileReport: what a child reports cannot keep its Child, or the report of its
// parent, from being written, nor what reads it from ending.
func TestHostileReport(t *testing.T) {
	row := func(change func(*v1alpha1.TierRow)) v1alpha1.Report {
		r := v1alpha1.TierRow{Path: "a/b", Reason: "Succeeded", Since: start}
		change(&r)
		return v1alpha1.Report{Reason: "Succeeded", Since: start, Tiers: []v1alpha1.TierRow{r}}
	}
	counts := func(c v1alpha1.ReportCounts) v1alpha1.Report {
		return v1alpha1.Report{Reason: "Succeeded", Since: start, Children: &c}
	}
	long, quotes := strings.Repeat("x", 60_000), strings.Repeat(`"`, 60_000)
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
		"Place":    {"60 KB in each field that is new", row(func(r *v1alpha1.TierRow) { r.Owner, r.Provider, r.Region = quotes, quotes, long }), 1},
		"Controls": {"what does not print is six bytes in JSON", row(func(r *v1alpha1.TierRow) { r.Message = strings.Repeat("\x01", 60_000) }), 1},
		"Reason":   {"a reason that no condition may have", row(func(r *v1alpha1.TierRow) { r.Reason = "not a reason" }), 1},
		"Cause": {"an object that nobody can have", row(func(r *v1alpha1.TierRow) {
			r.Cause = &v1alpha1.TierCause{Kind: quotes, Namespace: long, Name: long, Reason: "not a reason"}
		}), 1},
		"CauseReason": {"a reason of it that no condition may have", row(func(r *v1alpha1.TierRow) {
			r.Cause = &v1alpha1.TierCause{Kind: "Layer", Namespace: "a", Name: strings.Repeat("x", 253), Reason: quotes}
		}), 1},
		"Heard":    {"a time that is missing", row(func(r *v1alpha1.TierRow) { r.Heard = &metav1.Time{} }), 1},
		"NoReason": {"nor none", v1alpha1.Report{Since: start}, 0},
		"Since":    {"a time that is missing", v1alpha1.Report{Reason: "Succeeded"}, 0},
		"Total":    {"more clusters than there are numbers", counts(v1alpha1.ReportCounts{Total: math.MaxInt32, Ready: -5}), 0},
		"Counts":   {"more of all than there are", counts(v1alpha1.ReportCounts{Total: 3, Ready: 9, Suspended: math.MaxInt32, Stale: math.MaxInt32}), 0},
		"Names": {"names of 60 KB, with counts that add up to more than there are numbers", counts(v1alpha1.ReportCounts{
			Total:      math.MaxInt32,
			ByReason:   slices.Repeat([]v1alpha1.NamedCount{{Name: long, Count: math.MaxInt32}, {Name: "A", Count: math.MinInt32}}, 40),
			ByRevision: slices.Repeat([]v1alpha1.NamedCount{{Name: quotes, Count: math.MaxInt32}, {Count: 5}}, 40),
		}), 0},
		"Failing": {"ten names of 60 KB", v1alpha1.Report{Reason: "Succeeded", Since: start, Failing: slices.Repeat([]v1alpha1.Failure{{Name: long, Reason: long, Message: quotes}}, 10)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.report.DeepCopy()
			confine(got)
			if len(got.Tiers) != tc.rows {
				t.Errorf("%s: %d rows, want %d", tc.reason, len(got.Tiers), tc.rows)
			}
			var children []v1alpha1.Child
			for i := range 3000 {
				c := childNamed(fmt.Sprint("child-", i), ready(metav1.ConditionTrue, "Succeeded", ""))
				c.Status.Report = got
				children = append(children, c)
			}
			above := Compute(Facts{Below: belowOf(children...)}, nil, start)
			// An older agent confined nothing.
			children[0].Status.Report = &tc.report
			for _, r := range []*v1alpha1.Report{got, above, Compute(Facts{Below: belowOf(children[0])}, nil, start)} {
				wellFormed(t, tc.reason, r)
			}
		})
	}
}

var validReason = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_,:]{0,254}[A-Za-z0-9_])?$`)

// wellFormed checks what the API server, and the parent, want of a report.
func wellFormed(t *testing.T, reason string, r *v1alpha1.Report) {
	t.Helper()
	text, err := encode(r)
	if err != nil || len(text) > longest {
		t.Errorf("%s: a report of %d bytes, %v", reason, len(text), err)
	}
	if !validReason.MatchString(r.Reason) || strings.Contains(text, `"since":null`) || strings.Contains(text, `"heard":null`) {
		t.Errorf("%s: the API server would refuse %.300s", reason, text)
	}
	for i := range r.Tiers {
		if c := r.Tiers[i].Cause; c != nil && (!validReason.MatchString(c.Reason) || len(c.String()) > maxReason+2*maxLabel+maxObjectName+4 || strings.ContainsAny(c.Kind+c.Namespace+c.Name, "/\" \n")) {
			t.Errorf("%s: a cause is %.300s", reason, c)
		}
	}
	n := r.Children
	if n == nil {
		return
	}
	if n.Total < 0 || n.Total > maxClusters || n.Ready < 0 || n.Suspended < 0 || n.Stale < 0 || n.Ready+n.Suspended+n.Stale > n.Total {
		t.Errorf("%s: counts are %+v", reason, *n)
	}
	for _, list := range [][]v1alpha1.NamedCount{n.ByReason, n.ByRevision} {
		sum := int64(0)
		for _, of := range list {
			if sum += int64(of.Count); of.Count <= 0 {
				t.Errorf("%s: %q is counted %d times", reason, of.Name, of.Count)
			}
		}
		if len(list) > maxNames || sum > int64(n.Total) {
			t.Errorf("%s: %d counts that add up to %d of %d", reason, len(list), sum, n.Total)
		}
	}
}

func TestParse(t *testing.T) {
	many := v1alpha1.Report{Message: strings.Repeat("x", 10_000)}
	for range 150 {
		many.Failing = append(many.Failing, v1alpha1.Failure{Name: "x"})
		many.Tiers = append(many.Tiers, v1alpha1.TierRow{Path: "x/y", Message: strings.Repeat("x", 1000)})
	}
	text, err := json.Marshal(many)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(string(text))
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
		"Huge":   {"a child must not fill the parent's memory or its Child", `{"agent":"` + strings.Repeat("x", accepted) + `"}`},
		"Broken": {"not to be understood is not to have reported", "{"},
		"Empty":  {"the same for a ConfigMap without the key", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse(tc.text); err == nil {
				t.Errorf("%s\nParse() succeeds", tc.reason)
			}
		})
	}
}

// TestParseOwn: a report that an agent wrote is read as it was written, or each start of
// the agent would write it again.
func TestParseOwn(t *testing.T) {
	c := childNamed("a", ready(metav1.ConditionFalse, "Unreachable", "no <route> & \"quotes\"\n\x01 to "+strings.Repeat("ü", 500)))
	c.Labels = map[string]string{v1alpha1.OwnerLabel: "team"}
	c.Status.HeardAt, c.Status.Provider, c.Status.Region, c.Status.Version = &start, "aws", "eu", "v1.36.3"
	c.Status.Report = &v1alpha1.Report{
		Revision: manySources(45), Children: &v1alpha1.ReportCounts{Total: 2, Ready: 1, ByReason: []v1alpha1.NamedCount{{Name: "Succeeded", Count: 1}}},
		Tiers: []v1alpha1.TierRow{{Path: "x/y", Reason: "Succeeded", Since: start, Ready: true}, {Path: "x/z", Reason: "Stale", Heard: &start, Since: start}},
	}
	want := Compute(Facts{Agent: "v1", Below: belowOf(c)}, nil, later(time.Minute))
	text, err := encode(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what was written and what is read: -want, +got:\n%s", diff)
	}
	if again, _ := encode(got); again != text {
		t.Errorf("the text is\n%s\nand then\n%s", text, again)
	}
}

// TestOtherAgents: an agent that is older or newer than its parent's is understood.
func TestOtherAgents(t *testing.T) {
	old, err := Parse(`{"ready":true,"reason":"Succeeded","since":"2026-09-01T12:00:00Z","objects":1,"children":{"total":10,"ready":8}}`)
	if err != nil {
		t.Fatal(err)
	}
	c := childNamed("a", ready(metav1.ConditionTrue, "Succeeded", ""))
	c.Status.Report = old
	got := Compute(Facts{Below: belowOf(c)}, nil, start).Children
	want := &v1alpha1.ReportCounts{
		Total: 11, Ready: 9,
		ByReason: []v1alpha1.NamedCount{{Name: "Succeeded", Count: 1}, {Count: 10}}, ByRevision: []v1alpha1.NamedCount{{Count: 11}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what an older agent does not tell apart is among the others: -want, +got:\n%s", diff)
	}
	text, err := encode(&v1alpha1.Report{Children: want})
	if err != nil {
		t.Fatal(err)
	}
	var older struct {
		Children struct{ Total, Ready int32 } `json:"children"`
	}
	if err := json.Unmarshal([]byte(text), &older); err != nil || older.Children.Total != 11 || older.Children.Ready != 9 {
		t.Errorf("an older parent reads %+v, %v", older, err)
	}
}

func TestForms(t *testing.T) {
	for _, s := range []string{"", "A", "a1", "1a", "A_", "A:", "A:b", ",A", "A b", "Ä", "Progressing", strings.Repeat("a", 256), strings.Repeat("a", 257)} {
		if got, want := isReason(s), validReason.MatchString(s); got != want {
			t.Errorf("isReason(%.20q) = %t, want %t", s, got, want)
		}
	}
	cluster := regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)
	for _, s := range []string{"", "/", "a", "a/b", "a/b/c", "a//b", "-a/b", "a-/b", "a/b-", "a/.b", "a.b/c-d.e", "A/b", "a/b ", "a/ü", "a/b>"} {
		if got, want := isPath(s), cluster.MatchString(s); got != want {
			t.Errorf("isPath(%q) = %t, want %t", s, got, want)
		}
	}
}
