package report

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

const sha = "main@sha1:0123456789abcdef0123456789abcdef01234567"

// manySources is how an agent without a bound tells the revisions of its sources.
func manySources(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("source-%02d=%s", i, sha))
	}
	return strings.Join(all, ",")
}

// TestReportIsBounded: a report is one ConfigMap, whatever the fleet is.
func TestReportIsBounded(t *testing.T) {
	var f Facts
	var children []v1alpha1.Child
	long := strings.Repeat("x", 10_000)
	for i := range 500 {
		c := childNamed(fmt.Sprintf("c%03d", i), ready(metav1.ConditionTrue, "Succeeded", ""))
		if i%50 == 49 {
			c.Status.Conditions = ready(metav1.ConditionFalse, "Unreachable", long)
		}
		below := &v1alpha1.Report{Children: &v1alpha1.ReportCounts{Total: 1000, Ready: 990}, Revision: manySources(45)}
		for k := range 100 {
			below.Tiers = append(below.Tiers, v1alpha1.TierRow{Path: fmt.Sprintf("t/n%02d", k), Ready: k != 0, Reason: "x", Message: long, Revision: fmt.Sprintf("t%d=%s,%s", k, sha, manySources(45))})
		}
		c.Status.Report = below
		children = append(children, c)
		f.Kustomizations = append(f.Kustomizations, kustomization(fmt.Sprint("k", i), 1, ready(metav1.ConditionFalse, "BuildFailed", long)))
		f.Sources = append(f.Sources, repositoryAt(fmt.Sprintf("source-%03d", i), fmt.Sprintf("branch-%d@%s", i, sha), ready(metav1.ConditionTrue, "Succeeded", "")))
	}
	f.Below = belowOf(children...)
	r := Compute(f, nil, start)
	if n := r.Children; n.Total != 500+500*1000 || n.Ready != 490+500*990 {
		t.Errorf("counts are %+v: they cover all, listed or not", *n)
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
	if len(r.Revision) > maxRevision {
		t.Errorf("the revision of 500 sources has %d letters", len(r.Revision))
	}
	wellFormed(t, "a large fleet", r)
}

// TestManySources: tenants with many sources each do not make the report of their master
// one that its parent refuses, and nothing of their rows is lost.
func TestManySources(t *testing.T) {
	var children []v1alpha1.Child
	for i := range 100 {
		c := childNamed(fmt.Sprintf("tenant-%03d", i), ready(metav1.ConditionTrue, "Succeeded", ""))
		c.Status.Version, c.Status.Provider, c.Status.Region = "v1.36.3", "aws", "eu-central-1"
		// As an agent tells it that has no bound.
		c.Status.Report = &v1alpha1.Report{Ready: true, Reason: "Succeeded", Revision: manySources(45), Since: start}
		children = append(children, c)
	}
	var sources []client.Object
	for i := range 45 {
		sources = append(sources, repositoryAt(fmt.Sprintf("source-%02d", i), sha, ready(metav1.ConditionTrue, "Succeeded", "")))
	}
	master := Compute(Facts{Below: belowOf(children...), Sources: sources}, nil, start)
	text, err := encode(master)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("100 tenants with 45 sources each: %d bytes", len(text))
	if len(text) > longest || len(master.Tiers) != 100 {
		t.Errorf("a report of %d bytes with %d rows, want 100 rows within %d bytes", len(text), len(master.Tiers), longest)
	}
	if _, err := Parse(text); err != nil {
		t.Errorf("the parent gets no report: %v", err)
	}
	tenant := Compute(Facts{Sources: sources}, nil, start).Revision
	if tenant != master.Tiers[0].Revision || tenant != master.Revision {
		t.Errorf("the same sources are\n%s\n%s\n%s", tenant, master.Tiers[0].Revision, master.Revision)
	}
	if !strings.HasPrefix(tenant, "source-00="+sha+",source-01=") || !strings.Contains(tenant, ",+42 sha256:") || len(tenant) > maxRevision {
		t.Errorf("45 sources are %q", tenant)
	}
	slices.Reverse(sources)
	if again := Compute(Facts{Sources: sources}, nil, start).Revision; again != tenant {
		t.Errorf("the same sources in another order are %q, want %q", again, tenant)
	}
	sources[0] = repositoryAt("source-44", strings.Replace(sha, "0", "f", 1), nil)
	if other := Compute(Facts{Sources: sources}, nil, start).Revision; other == tenant {
		t.Error("a source that is not named is at another revision, and the text is the same")
	}
}

func TestShortened(t *testing.T) {
	for name, tc := range map[string]struct{ reason, in, want string }{
		"None":   {"nothing is nothing", "", ""},
		"One":    {"one alone stays", sha, sha},
		"Fits":   {"what fits stays whole", manySources(4), manySources(4)},
		"Long":   {"a single one that is too long has no part that fits", strings.Repeat("x", 300), "+1 sha256:0d4e2ca9e9cbced7"},
		"Hidden": {"what does not print is not kept", "a=1,b=\x01", "a=1,+1 sha256:1f39d404b9538c59"},
	} {
		t.Run(name, func(t *testing.T) {
			got := shortened(tc.in)
			if got != tc.want {
				t.Errorf("%s\nshortened() = %q, want %q", tc.reason, got, tc.want)
			}
			if again := shortened(got); again != got {
				t.Errorf("shortened again it is %q, want %q: each tier above does so", again, got)
			}
		})
	}
}

// TestFit: rows that are as long as they may be do not fit all, and those that are
// ordinary stay.
func TestFit(t *testing.T) {
	wide := strings.Repeat(`"`, 500)
	var children []v1alpha1.Child
	for i := range 100 {
		c := childNamed(fmt.Sprintf("c%03d", i), ready(metav1.ConditionFalse, "Unreachable", "no route"))
		if i%2 == 0 {
			c.Name += strings.Repeat("-long", 150)
			c.Status.Conditions[0].Message, c.Status.Report = wide, &v1alpha1.Report{Revision: wide}
			c.Status.Version, c.Status.Provider, c.Status.Region = wide, wide, wide
		}
		children = append(children, c)
	}
	r := Compute(Facts{Below: belowOf(children...)}, nil, start)
	wellFormed(t, "long rows", r)
	short := 0
	for _, row := range r.Tiers {
		if len(row.Path) < 20 {
			short++
		}
	}
	if short != 50 || len(r.Tiers) == 100 {
		t.Errorf("%d rows, %d of them short; want all 50 short ones and some of the others", len(r.Tiers), short)
	}
}
