package difference

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// objects reads documents.
func objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, document := range strings.Split(text, "---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &u.Object); err != nil {
			t.Fatal(err)
		}
		if len(u.Object) > 0 {
			all = append(all, u)
		}
	}
	return all
}

func configMaps(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: m%02d, namespace: a}\n", i)
	}
	return b.String()
}

const (
	one           = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: a}\ndata: {x: \"1\"}\n"
	oneOther      = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: a}\ndata: {x: \"2\"}\n"
	cluster       = "---\napiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: c, namespace: a}\n"
	confirmed     = "---\napiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: c, namespace: a, annotations: {" + v1alpha1.DeletionAnnotation + ": " + v1alpha1.DeletionConfirmed + "}}\n"
	accounts      = "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: cascade-accounts}\n"
	administrator = "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: cascade}\nsubjects: [{kind: ServiceAccount, name: cascade, namespace: a}]\n"
	owner         = "---\napiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: apps, namespace: a}\n"
)

func TestCompare(t *testing.T) {
	elsewhere := func(before, after string) Declared {
		return Declared{ByIdentity(objects(t, before)), ByIdentity(objects(t, after))}
	}
	apps := IdentityOf(objects(t, owner)[0])
	for name, tc := range map[string]struct {
		reason        string
		before, after string
		r             Renderings
		want          []string
		guard         string
	}{
		"Same":      {reason: "nothing changes", before: one, after: one},
		"Added":     {reason: "it was not there", after: one, want: []string{"Added ConfigMap/a/one"}},
		"Changed":   {reason: "a field", before: one, after: oneOther, want: []string{"Changed ConfigMap/a/one data.x"}},
		"Version":   {reason: "another version is the same object", before: strings.Replace(cluster, "v1beta2", "v1beta1", 1), after: cluster, want: []string{"Changed Cluster/a/c apiVersion"}},
		"Deleted":   {reason: "it is not declared any more", before: configMaps(9) + one, after: configMaps(9), r: Renderings{Prune: true}, want: []string{"Deleted ConfigMap/a/one"}},
		"NoPrune":   {reason: "its owner deletes nothing", before: configMaps(9) + one, after: configMaps(9), want: []string{"Kept ConfigMap/a/one"}},
		"Exempt":    {reason: "it asks to stay", before: configMaps(1) + strings.Replace(one, "namespace: a", "namespace: a, annotations: {kustomize.toolkit.fluxcd.io/prune: disabled}", 1), after: configMaps(1), r: Renderings{Prune: true}, want: []string{"Kept ConfigMap/a/one"}},
		"Protected": {reason: "a cluster is not deleted by removing its lines", before: one + cluster, after: one, r: Renderings{Prune: true}, want: []string{"Protected Cluster/a/c"}},
		"Confirmed": {reason: "unless that was confirmed before", before: one + confirmed, after: one, r: Renderings{Prune: true}, want: []string{"Deleted Cluster/a/c"}},
		"Beside":    {reason: "what goes along with a protected object is held", before: configMaps(1) + one + cluster, after: configMaps(1), r: Renderings{Prune: true}, want: []string{"Held ConfigMap/a/one", "Protected Cluster/a/c"}, guard: "1 protected objects are no longer declared either"},
		"Empty":     {reason: "a lost directory", before: one, after: "", r: Renderings{Prune: true}, want: []string{"Held ConfigMap/a/one"}, guard: "nothing is declared any more, but the inventory has 1 objects"},
		"Shrink":    {reason: "too much at once", before: configMaps(20), after: configMaps(9), r: Renderings{Prune: true}, want: repeat("Held ConfigMap/a/m%02d", 9, 20), guard: "11 of 20 objects are no longer declared, more than 10"},
		"Asked":     {reason: "its owner is deleted too", before: one, after: "", r: Renderings{Prune: true, Asked: true}, want: []string{"Deleted ConfigMap/a/one"}},
		"InChild":   {reason: "what syncs a child stays", before: one + owner, after: one, r: Renderings{Prune: true, Child: true}, want: []string{"Protected Kustomization/a/apps"}},
		"InTier":    {reason: "in the tier it goes", before: one + owner, after: one, r: Renderings{Prune: true}, want: []string{"Deleted Kustomization/a/apps"}},
		"Lockdown":  {reason: "the agent writes by it", before: one + accounts, after: one, r: Renderings{Prune: true}, want: []string{"Protected ClusterRoleBinding/cascade-accounts"}},
		"LockdownEnds": {reason: "the agent has all rights with the commit", before: one + accounts, after: one + administrator, r: Renderings{Prune: true},
			want: []string{"Added ClusterRoleBinding/cascade", "Deleted ClusterRoleBinding/cascade-accounts"}},
		"WithCluster": {reason: "it brought a Cluster", before: one + owner, after: one, r: Renderings{Prune: true, Along: map[Identity]Along{apps: {Objects: 1, Protected: []string{"Cluster/a/c"}}}}, want: []string{"Protected Kustomization/a/apps"}},
		"WithMuch":    {reason: "it brought more than may go at once", before: one + owner, after: one, r: Renderings{Prune: true, Along: map[Identity]Along{apps: {Objects: 40}}}, want: []string{"Held Kustomization/a/apps"}, guard: "41 of 42 objects are no longer declared, more than 10"},
		"MovedAway":   {reason: "another owner declares it now", before: one + configMaps(1), after: configMaps(1), r: Renderings{Prune: true, Elsewhere: elsewhere("", one)}},
		"MovedHere":   {reason: "from another owner", before: configMaps(1), after: configMaps(1) + oneOther, r: Renderings{Elsewhere: elsewhere(one, "")}, want: []string{"Moved ConfigMap/a/one data.x"}},
		"Skipped":     {reason: "it is not applied", after: strings.Replace(one, "namespace: a", "namespace: a, annotations: {kustomize.toolkit.fluxcd.io/reconcile: disabled}", 1)},
		"IfNotPresent": {reason: "it is left alone once it is there", before: strings.Replace(one, "namespace: a", "namespace: a, annotations: {kustomize.toolkit.fluxcd.io/ssa: IfNotPresent}", 1),
			after: strings.Replace(oneOther, "namespace: a", "namespace: a, annotations: {kustomize.toolkit.fluxcd.io/ssa: IfNotPresent}", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			tc.r.Before, tc.r.After = objects(t, tc.before), objects(t, tc.after)
			changes, guard := Compare(tc.r)
			var got []string
			for _, c := range changes {
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Action, c, strings.Join(c.Fields, " "))))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
			if guard != tc.guard {
				t.Errorf("%s: guard is %q, want %q", tc.reason, guard, tc.guard)
			}
		})
	}
}

func repeat(format string, from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, fmt.Sprintf(format, i))
	}
	return all
}

func TestFields(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		before, after string
		want          []string
	}{
		"Nested":    {"as deep as both have the same shape", "a: {b: {c: 1, d: 2}}", "a: {b: {c: 1, d: 3}}", []string{"a.b.d"}},
		"Shape":     {"and no deeper", "a: {b: 1}", "a: {b: {c: 1}}", []string{"a.b"}},
		"Gone":      {"a field less", "a: {b: 1, c: 2}", "a: {b: 1}", []string{"a.c"}},
		"New":       {"a field more", "a: {b: 1}", "a: {b: 1, c: {d: 1}}", []string{"a.c"}},
		"Quoted":    {"a key with dots is one part of the path", "a: {x.y/z: 1}", "a: {x.y/z: 2}", []string{`a["x.y/z"]`}},
		"ByName":    {"containers are known by their names", "c: [{name: x, image: 1}, {name: v, image: 1}]", "c: [{name: x, image: 1}, {name: v, image: 2}]", []string{"c[name=v].image"}},
		"NewName":   {"one more, whatever its place", "c: [{name: x}]", "c: [{name: w}, {name: x}]", []string{"c[name=w]"}},
		"GoneName":  {"one less", "c: [{name: w}, {name: x}]", "c: [{name: x}]", []string{"c[name=w]"}},
		"Order":     {"only their order", "c: [{name: w}, {name: x}]", "c: [{name: x}, {name: w}]", []string{"c"}},
		"ByPlace":   {"what has no names, by its place", "c: [1, 2]", "c: [1, 3]", []string{"c[1]"}},
		"Length":    {"or as a whole", "c: [1, 2]", "c: [1]", []string{"c"}},
		"SameNames": {"names that come twice are none", "c: [{name: x, a: 1}, {name: x, a: 2}]", "c: [{name: x, a: 1}, {name: x, a: 3}]", []string{"c[1].a"}},
		"ToList":    {"an empty list gets an element", "c: []", "c: [{name: x}]", []string{"c[name=x]"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := fields(objects(t, tc.before)[0], objects(t, tc.after)[0])
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestGrouped(t *testing.T) {
	a, b := []Change{{Action: Added, Kind: "A", Name: "a"}}, []Change{{Action: Added, Kind: "B", Name: "b"}}
	groups := Grouped([]Result{
		{Cluster: "z", Changes: a}, {Cluster: "y", Changes: b}, {Cluster: "x", Changes: a}, {Cluster: "w"}, {Cluster: "v", Changes: a, From: "older"},
	})
	var got []string
	for _, g := range groups {
		got = append(got, strings.Join(g.Clusters, ",")+" "+g.Changes[0].Kind+" "+g.From)
	}
	if want := []string{"v A older", "x,z A ", "y B "}; !slices.Equal(got, want) {
		t.Errorf("groups are %q, want %q", got, want)
	}
	report := Report{Owners: []Owner{{Namespace: "n", Groups: groups}, {Namespace: "n", Groups: groups[:1]}}}
	report.Sum()
	if want := (Summary{Added: 5, Clusters: 4}); report.Summary != want {
		t.Errorf("the summary is %+v, want %+v", report.Summary, want)
	}
}

// TestMarkdownIsPlain: names and messages of others make no Markdown.
func TestMarkdownIsPlain(t *testing.T) {
	r := Report{
		Source: "a/b", Commit: "1234", Problems: []Problem{{Owner: "Layer/a/b", Message: "cannot *build* <img src=x>"}},
		Owners: []Owner{{Kind: "Layer", Namespace: "a", Name: "b", Groups: []Group{{Clusters: []string{"c"}, Changes: []Change{{Action: Changed, Kind: "A", Name: "a", Fields: []string{"data[`|`]"}}}}}}},
	}
	var out strings.Builder
	if err := r.Markdown(&out); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<img", "*build*", "[`|`]"} {
		if strings.Contains(out.String(), bad) {
			t.Errorf("the text has %q:\n%s", bad, out.String())
		}
	}
}
