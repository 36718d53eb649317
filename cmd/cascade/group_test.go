package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/report"
)

// silentFleet is a master that was lost, with what it reported of its tenants, one that is
// well, and one of which all is suspended.
func silentFleet() []*v1alpha1.Child {
	heard := ago(17 * time.Minute)
	counts := &v1alpha1.ReportCounts{
		Total: 12, Ready: 11,
		ByReason:   []v1alpha1.NamedCount{{Name: "Succeeded", Count: 11}, {Name: "BuildFailed", Count: 1}},
		ByRevision: []v1alpha1.NamedCount{{Name: shaTwo, Count: 12}},
	}
	rows := []v1alpha1.TierRow{
		{Path: "tenants/bank", Reason: "BuildFailed", Message: "no file", Revision: shaTwo, Since: ago(time.Hour), Version: "v1.36.3", Owner: "retail", Provider: "aws", Region: "eu-central-1"},
		{Path: "tenants/shop", Ready: true, Reason: "Succeeded", Revision: shaTwo, Since: ago(time.Hour), Version: "v1.35.0", Owner: "retail", Provider: "aws", Region: "eu-west-1"},
	}
	lost := child("masters", "aws", conditions("Ready", metav1.ConditionFalse, "Unreachable", "no answer within 10s", 17*time.Minute), &v1alpha1.Report{Revision: shaOne, Children: counts, Tiers: rows})
	lost.Status.HeardAt = &heard
	well := child("masters", "azure", conditions("Ready", metav1.ConditionTrue, "Succeeded", "", time.Hour), &v1alpha1.Report{Revision: shaOne, Children: counts.DeepCopy(), Tiers: rows})
	off := child("masters", "off", conditions("Ready", metav1.ConditionFalse, "Suspended", "all Kustomizations and HelmReleases, 4, are suspended", time.Hour), &v1alpha1.Report{Revision: shaTwo})
	for _, c := range []*v1alpha1.Child{lost, well} {
		c.Labels = map[string]string{v1alpha1.OwnerLabel: "platform"}
		c.Status.Provider = c.Name
	}
	return []*v1alpha1.Child{lost, well, off}
}

// silentTier is what a cluster with these Children has, and the report of its agent.
func silentTier(t *testing.T) []client.Object {
	t.Helper()
	var below report.Below
	var objects []client.Object
	for _, c := range silentFleet() {
		below.Put(c)
		objects = append(objects, c)
	}
	own := report.Compute(report.Facts{Agent: "v1", Below: &below}, nil, ago(time.Hour))
	text, err := json.Marshal(own)
	if err != nil {
		t.Fatal(err)
	}
	return append(objects, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.ReportConfigMap},
		Data:       map[string]string{v1alpha1.ReportKey: string(text)},
	})
}

// TestTreeOfStale: what is below a tier that was lost is shown as it was then, and says so.
func TestTreeOfStale(t *testing.T) {
	cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(silentTier(t)...).WithObjects(beat(v1alpha1.AgentNamespace, 0)).Build()
	root, err := loadTree(t.Context(), cl, v1alpha1.AgentNamespace, noon)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printTree(&out, root, noon, false); err != nil {
		t.Fatal(err)
	}
	golden(t, "tree-stale.txt", out.String())
	out.Reset()
	if err := printAs(&out, "json", root); err != nil {
		t.Fatal(err)
	}
	golden(t, "tree-stale.json", out.String())
}

// TestTreeOfSilentAgent: what an agent reported of itself before it died is not how the tier is.
func TestTreeOfSilentAgent(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		beat   client.Object
		want   string
	}{
		"Silent": {"its Lease was renewed two days ago", beat(v1alpha1.AgentNamespace, 48*time.Hour), "AgentSilent"},
		"Late":   {"it lapsed, and the clocks of two machines may differ", beat(v1alpha1.AgentNamespace, time.Minute), "Succeeded"},
		"Fresh":  {"it works", beat(v1alpha1.AgentNamespace, time.Second), "Succeeded"},
	} {
		t.Run(name, func(t *testing.T) {
			cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(fleet(t)...).WithObjects(tc.beat).Build()
			root, err := loadTree(t.Context(), cl, v1alpha1.AgentNamespace, noon)
			if err != nil {
				t.Fatal(err)
			}
			silent := tc.want == "AgentSilent"
			if root.Reason != tc.want || root.Ready == silent || silent != (root.Heard != nil) {
				t.Errorf("%s: ready %t, %s, heard %v", tc.reason, root.Ready, root.Reason, root.Heard)
			}
			if told := root.told(noon); silent && !strings.HasPrefix(told, "last heard of 2d ago; the agent of this tier does not renew") {
				t.Errorf("%s: it says %q", tc.reason, told)
			}
			// Nobody tells of the clusters below any more, so they are as they were then.
			want := map[bool]string{false: "Succeeded", true: v1alpha1.ReasonStale}[silent]
			aws := root.Children[0]
			for _, at := range []*tier{aws, aws.Children[0]} {
				if at.Reason != want || at.Ready == silent || silent != (at.Heard != nil) {
					t.Errorf("%s: %s: ready %t, %s, heard %v", tc.reason, at.Name, at.Ready, at.Reason, at.Heard)
				}
			}
			found, err := loadGroups(t.Context(), cl, v1alpha1.AgentNamespace, byReason, noon)
			if stale := err == nil && slices.Contains(found.Groups, group{v1alpha1.ReasonStale, 15}); err != nil || stale != silent {
				t.Errorf("%s: by reason: %+v, %v", tc.reason, found, err)
			}
			c, out := newCLI(t)
			c.now = func() time.Time { return noon }
			if err := c.children(t.Context(), cl, childrenOptions{output: "json"}); err != nil {
				t.Fatal(err)
			}
			e := &export{}
			if err := json.Unmarshal(out.Bytes(), e); err != nil {
				t.Fatal(err)
			}
			if item := e.Items[0]; item.Reason != want || item.Ready == silent || silent != (item.HeardAt != nil) {
				t.Errorf("%s: the export says %+v", tc.reason, item)
			}
		})
	}
}

// TestTreeWithoutLease: a report that no agent keeps says nothing of now, and the root of the tree is not ready by it. Who may not
// read the Lease sees what the report says, and is told that it may be old.
func TestTreeWithoutLease(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, v1alpha1.HeartbeatLease, nil)
	own := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.ReportConfigMap, CreationTimestamp: ago(48 * time.Hour)},
		Data:       map[string]string{v1alpha1.ReportKey: `{"ready":true,"reason":"Succeeded","children":{"total":13,"ready":13,"byReason":[{"name":"Succeeded","count":13}]}}`},
	}
	// One of an earlier version renews no other Lease.
	leader := beat(v1alpha1.AgentNamespace, 0)
	leader.SetName(v1alpha1.LeaderLease)
	left := beat(v1alpha1.AgentNamespace, 48*time.Hour)
	left.SetName(v1alpha1.LeaderLease)
	below := silentFleet()[1]
	for name, tc := range map[string]struct {
		reason  string
		objects []client.Object
		refuses error
		ready   bool
		want    string
		doubts  bool
	}{
		"Kept":      {"an agent works", []client.Object{own, below, beat(v1alpha1.AgentNamespace, 0)}, nil, true, "Succeeded", false},
		"Missing":   {"somebody deleted it, or uninstalled the agent", []client.Object{own, below}, nil, false, "AgentSilent", true},
		"Older":     {"an agent of an earlier version works", []client.Object{own, below, leader}, nil, true, "Succeeded", false},
		"Left":      {"an agent of an earlier version is gone", []client.Object{own, below, left}, nil, false, "AgentSilent", false},
		"Forbidden": {"it is not known", []client.Object{own, below}, refused, true, "Succeeded", true},
		"Nothing":   {"no agent was here", nil, nil, false, v1alpha1.ReasonReportMissing, false},
	} {
		t.Run(name, func(t *testing.T) {
			cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(tc.objects...).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, cl client.WithWatch, key client.ObjectKey, o client.Object, more ...client.GetOption) error {
					if _, ok := o.(*coordinationv1.Lease); ok && tc.refuses != nil {
						return tc.refuses
					}
					return cl.Get(ctx, key, o, more...)
				},
			}).Build()
			root, err := loadTree(t.Context(), cl, v1alpha1.AgentNamespace, noon)
			if err != nil {
				t.Fatal(err)
			}
			if root.Ready != tc.ready || root.Reason != tc.want || (root.doubt != nil) != tc.doubts {
				t.Errorf("%s: the root is ready: %t, %s: %s; doubt: %v", tc.reason, root.Ready, root.Reason, root.Message, root.doubt)
			}
			// What is below was heard of as long ago, also for programs, which do not read the doubt.
			stale := tc.want == "AgentSilent"
			for _, below := range root.Children {
				if below.Ready == stale || (below.Heard != nil) != stale || stale && !below.Heard.Equal(new(ago(48*time.Hour))) {
					t.Errorf("%s: the cluster below is ready: %t, heard of: %v", tc.reason, below.Ready, below.Heard)
				}
			}
			groups, err := loadGroups(t.Context(), cl, v1alpha1.AgentNamespace, byReason, noon)
			if err != nil || slices.ContainsFunc(groups.Groups, func(g group) bool { return g.Name == v1alpha1.ReasonStale }) != stale {
				t.Errorf("%s: %v: the groups are %v", tc.reason, err, groups)
			}
			c, out := newCLI(t)
			c.now = func() time.Time { return noon }
			if err := c.children(t.Context(), cl, childrenOptions{output: "json"}); err != nil || strings.Contains(out.String(), `"heardAt"`) != stale {
				t.Errorf("%s: %v: children are\n%s", tc.reason, err, out)
			}
		})
	}
}

// TestTreeFindsAgent: the report and the Lease are those of the agent, wherever that is, whatever -n says. Where there is no
// Lease, all of it is as old as the report that the agent left, and that is said.
func TestTreeFindsAgent(t *testing.T) {
	agent := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "gitops", Name: v1alpha1.AgentName, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName}}}
	for name, tc := range map[string]struct {
		reason, said string
		// in is where the report is.
		in    string
		more  []client.Object
		stale bool
		doubt string
	}{
		"Elsewhere": {"it died two days ago", "", "gitops", []client.Object{agent, beat("gitops", 48*time.Hour)}, true, ""},
		"Objects":   {"-n is where the Children are", "masters", "gitops", []client.Object{agent, beat("gitops", 48*time.Hour)}, true, ""},
		"Said":      {"it is no Deployment", "gitops", "gitops", []client.Object{beat("gitops", 48*time.Hour)}, true, ""},
		"Well":      {"it works", "", "gitops", []client.Object{agent, beat("gitops", time.Second)}, false, ""},
		"NoLease":   {"it is gone, or somebody deleted its Lease", "masters", v1alpha1.AgentNamespace, nil, true, "not known: there is no Lease cascade-system/cascade-heartbeat"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := fleet(t)
			objects[0].SetNamespace(tc.in)
			cl := indexed().WithObjects(append(objects, tc.more...)...).Build()
			view, err := newTreeView("", "", "", 0)
			if err != nil {
				t.Fatal(err)
			}
			// asked is what tree says with some options, and what it doubts.
			asked := func(o treeOptions) (out, doubt string) {
				var data, doubts bytes.Buffer
				c := &cli{streams: genericiooptions.IOStreams{Out: &data, ErrOut: &doubts}, flags: genericclioptions.NewConfigFlags(true), now: func() time.Time { return noon }}
				c.flags.Namespace = &tc.said
				if err := c.tree(t.Context(), cl, &data, view, o); err != nil {
					t.Fatal(err)
				}
				return data.String(), doubts.String()
			}
			for name, o := range map[string]treeOptions{"tree": {output: "json"}, "groups": {output: "json", by: byReason}, "rows": {output: "json", by: "version"}} {
				out, doubt := asked(o)
				if !strings.Contains(doubt, tc.doubt) || (doubt != "") != (tc.doubt != "") {
					t.Errorf("%s: %s doubts %q", tc.reason, name, doubt)
				}
				if name == "tree" && strings.Contains(out, "AgentSilent") != tc.stale {
					t.Errorf("%s: the root says %s", tc.reason, out)
				}
				if name != "rows" && strings.Contains(out, v1alpha1.ReasonStale) != tc.stale || name == "tree" && strings.Contains(out, v1alpha1.ReasonReportMissing) {
					t.Errorf("%s: %s says %s", tc.reason, name, out)
				}
				o.output = ""
				if text, _ := asked(o); !strings.Contains(text, tc.doubt) || strings.Contains(text, "not known") != (tc.doubt != "") {
					t.Errorf("%s: %s says %s", tc.reason, name, text)
				}
			}
			c, out := newCLI(t)
			c.now = func() time.Time { return noon }
			// Of -n it takes where the Children are, and finds no agent by it.
			if err := c.children(t.Context(), cl, childrenOptions{}); err != nil || strings.Contains(out.String(), "not known") != (tc.doubt != "" || tc.said == "gitops") {
				t.Errorf("%s: %v: children are\n%s", tc.reason, err, out)
			}
		})
	}
}

func TestTreeGroups(t *testing.T) {
	withReport := silentTier(t)
	for name, objects := range map[string][]client.Object{
		"": withReport,
		// Without the report of the tier it is made of the Children.
		" without the report of the tier": withReport[:len(withReport)-1],
	} {
		cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects...).WithObjects(beat(v1alpha1.AgentNamespace, 0)).Build()
		var text, data bytes.Buffer
		for _, by := range groupings() {
			found, err := loadGroups(t.Context(), cl, v1alpha1.AgentNamespace, by, noon)
			if err != nil {
				t.Fatal(err)
			}
			sum := found.Others
			for _, g := range found.Groups {
				sum += g.Count
			}
			if found.Total != 27 || sum != 27 {
				t.Errorf("by %s%s %d of %d clusters are counted, want 27", by, name, sum, found.Total)
			}
			if err := printGroups(&text, found); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&text)
			if err := printAs(&data, "yaml", found); err != nil {
				t.Fatal(err)
			}
		}
		golden(t, "tree-groups.txt", text.String())
		golden(t, "tree-groups.yaml", data.String())
	}
	empty := fake.NewClientBuilder().WithScheme(newScheme()).Build()
	if found, err := loadGroups(t.Context(), empty, v1alpha1.AgentNamespace, byReason, noon); err != nil || found.Total != 0 {
		t.Errorf("a tier with nothing below has %+v, %v", found, err)
	}
	if _, err := loadGroups(t.Context(), empty, v1alpha1.AgentNamespace, "name", noon); err == nil || !strings.Contains(err.Error(), "use reason, revision, cause, owner, provider, region, version") {
		t.Errorf("by something else: %v", err)
	}
}
