package cause

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// randomFacts are a few objects that refer to each other anyhow.
func randomFacts(r *rand.Rand) *Facts {
	reasons := []string{"DependencyNotReady", "HealthCheckFailed", "BuildFailed", "ArtifactFailed", "SourceNotReady", "PruneBlocked", "Suspended"}
	pick := func() []metav1.Condition {
		if r.IntN(4) == 0 {
			return []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Succeeded"}}
		}
		return not(reasons[r.IntN(len(reasons))], "m")
	}
	f := &Facts{Unread: map[string]string{}}
	n := 1 + r.IntN(8)
	name := func() string { return fmt.Sprint("o", r.IntN(n)) }
	for i := range n {
		k := kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("o", i)}}
		k.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: name()}
		k.Spec.Suspend = r.IntN(9) == 0
		for range r.IntN(3) {
			k.Spec.DependsOn = append(k.Spec.DependsOn, kustomizev1.DependencyReference{Name: name()})
		}
		k.Status.Inventory = &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "a_" + name() + "_kustomize.toolkit.fluxcd.io_Kustomization", Version: "v1"}}}
		k.Status.Conditions = pick()
		f.Kustomizations = append(f.Kustomizations, k)
		if r.IntN(2) == 0 {
			g := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("o", i)}}
			g.Spec.Include = []sourcev1.GitRepositoryInclude{{GitRepositoryRef: fluxmeta.LocalObjectReference{Name: name()}}}
			g.Status.Conditions = not([]string{"IncludeUnavailable", "AuthenticationFailed"}[r.IntN(2)], "m")
			f.Sources = append(f.Sources, g)
		}
		l := v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("o", i)}}
		l.Spec.DependsOn = []v1alpha1.LayerReference{{Name: name()}}
		l.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Name: name()}
		l.Status.Conditions = not("ChildrenNotReady", "m")
		f.Layers = append(f.Layers, l)
		c := v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint("o", i)}}
		c.Status.Conditions = pick()
		for j := range r.IntN(3) {
			c.Status.Layers = append(c.Status.Layers, v1alpha1.ChildLayer{Name: fmt.Sprint("o", j), Reason: reasons[r.IntN(len(reasons))], Ready: r.IntN(3) == 0, Suspended: r.IntN(9) == 0})
		}
		if r.IntN(2) == 0 {
			c.Status.Report = &v1alpha1.Report{Ready: false, Reason: "KustomizationFailing", Failing: []v1alpha1.Failure{
				{Name: "Kustomization/a/" + name(), Reason: reasons[r.IntN(len(reasons))]}, {Name: "Kustomization/a/" + name(), Reason: reasons[r.IntN(len(reasons))]},
			}, Tiers: []v1alpha1.TierRow{{Path: "a/" + name(), Reason: "Stale"}, {Path: "a/" + name() + ">a/b", Reason: "Stale"}}}
		}
		f.Children = append(f.Children, c)
	}
	return f
}

// TestRoots: a root has no cause among the facts unless it is one of a cycle, whatever is
// not as it should be has a root, a chain ends at its object, and nothing depends on the
// order of the facts.
func TestRoots(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := randomFacts(r)
		e := Explain(f, noon)
		for _, k := range e.graph.order {
			if e.graph.root(k) && len(e.graph.causes[k]) > 0 && e.graph.cycle[k] == nil {
				t.Fatalf("seed %d: %v is a root, and %v causes it", seed, k, e.graph.causes[k])
			}
			chains, known := e.Of(k.Object)
			if !known || len(chains) == 0 {
				t.Fatalf("seed %d: %v has no chain", seed, k)
			}
			for _, c := range chains {
				if c[len(c)-1].Object != k.Object {
					t.Fatalf("seed %d: a chain of %v ends at %v", seed, k, c[len(c)-1].Object)
				}
			}
		}
		other := &Facts{Unread: f.Unread, Sources: slices.Clone(f.Sources), Kustomizations: slices.Clone(f.Kustomizations), Layers: slices.Clone(f.Layers), Children: slices.Clone(f.Children)}
		slices.Reverse(other.Sources)
		slices.Reverse(other.Kustomizations)
		slices.Reverse(other.Layers)
		slices.Reverse(other.Children)
		again := Explain(other, noon)
		if !reflect.DeepEqual(rootsOf(e), rootsOf(again)) {
			t.Fatalf("seed %d: in another order the roots are\n%v, not\n%v", seed, rootsOf(again), rootsOf(e))
		}
	}
}

func rootsOf(e *Explanation) []string {
	var roots []string
	for _, g := range e.Groups {
		roots = append(roots, fmt.Sprint(where(g.Root.Object), g.Root.Reason, g.Roots, g.Objects, g.Clusters, g.Affected))
	}
	return roots
}

// TestLongChain: as many as there can be, one behind the other, do not exhaust a stack.
func TestLongChain(t *testing.T) {
	f := &Facts{}
	const n = 20_000
	for i := range n {
		k := kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprintf("k%05d", i)}}
		k.Status.Conditions = not("DependencyNotReady", "m")
		k.Spec.DependsOn = []kustomizev1.DependencyReference{{Name: fmt.Sprintf("k%05d", (i+1)%n)}}
		f.Kustomizations = append(f.Kustomizations, k)
	}
	e := Explain(f, noon)
	if len(e.Groups) != 1 || e.Groups[0].Root.Reason != reasonDependencyCycle || e.Groups[0].Objects != n || len(e.Groups[0].Root.Message) > mostMessage {
		t.Errorf("a cycle of all has %d groups", len(e.Groups))
	}
}

func TestPlain(t *testing.T) {
	for name, tc := range map[string]struct{ reason, in, want string }{
		"Plain":    {"text stays", "cannot build: x", "cannot build: x"},
		"Lines":    {"one line", "a\n\tb  c\r\n", "a b c"},
		"Escape":   {"a terminal would obey", "a\x1b[2Jb\x9b1mc\u202ed", "a [2Jb 1mc d"},
		"Broken":   {"half a letter is none", "a\xffb", "a b"},
		"Long":     {"however long it is", strings.Repeat("x", 1<<20), strings.Repeat("x", mostMessage-3) + "..."},
		"Distance": {"nor how far its words are apart", "a" + strings.Repeat(" ", 1<<20) + "b", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			got := plain(tc.in)
			if got != tc.want {
				t.Errorf("%s\nplain() = %.80q, want %.80q", tc.reason, got, tc.want)
			}
			if strings.ContainsFunc(got, unicode.IsControl) {
				t.Errorf("%q has control characters", got)
			}
		})
	}
}

// TestHuge: a thousand children with full reports are explained, each once.
func TestHuge(t *testing.T) {
	f := &Facts{}
	for i := range 1000 {
		c := v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: fmt.Sprintf("c%04d", i)}}
		c.Status.Conditions = not("KustomizationFailing", strings.Repeat("\x1b", 10_000))
		c.Status.Report = &v1alpha1.Report{Reason: "KustomizationFailing", Revision: "main@sha1:1", Failing: []v1alpha1.Failure{{Name: "Kustomization/a/apps", Reason: "BuildFailed"}}}
		for j := range 100 {
			c.Status.Report.Tiers = append(c.Status.Report.Tiers, v1alpha1.TierRow{Path: fmt.Sprintf("t/n%02d", j), Reason: "Unreachable"})
		}
		f.Children = append(f.Children, c)
	}
	e := Explain(f, noon)
	if len(e.Groups) != 2 {
		t.Fatalf("%d groups, want one of a Kustomization and one of clusters", len(e.Groups))
	}
	if g := e.Groups[0]; g.Roots != 100_000 || g.Clusters != 100_000 || len(g.Others) > mostNamed || len(g.Affected) > mostNamed {
		t.Errorf("group of clusters: %d roots, %d clusters", g.Roots, g.Clusters)
	}
	if g := e.Groups[1]; g.Roots != 1000 || g.Clusters != 1000 || g.Revision != "main@sha1:1" {
		t.Errorf("group of the Kustomization: %d roots, %d clusters at %q", g.Roots, g.Clusters, g.Revision)
	}
}
