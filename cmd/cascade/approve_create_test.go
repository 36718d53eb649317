package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/held"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

func heldCondition(message string) []metav1.Condition {
	return []metav1.Condition{{
		Type: v1alpha1.CreateHeldCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCreateHeld, Message: message,
	}}
}

// heldTier has a Kustomization and a HelmRelease that hold Clusters, and one that
// does not.
func heldTier(more ...client.Object) client.Client {
	owners := []client.Object{
		&kustomizev1.Kustomization{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "clusters"},
			Status:     kustomizev1.KustomizationStatus{Conditions: heldCondition("not created: Cluster/fleet/a, Cluster/fleet/b: it does not exist here; for what is to be built, run: cascade approve create fleet/a fleet/b")},
		},
		&kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "apps"}},
		&helmv2.HelmRelease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "c"},
			Status:     helmv2.HelmReleaseStatus{Conditions: heldCondition("not created: Cluster/fleet/c: it does not exist here; for what is to be built, run: cascade approve create fleet/c")},
		},
	}
	for i, clusters := range [][]string{{"fleet/a", "fleet/b"}, nil, {"fleet/c"}} {
		if clusters != nil {
			v1alpha1.SetHeld(owners[i], v1alpha1.Held{Create: &v1alpha1.HeldCreate{Clusters: clusters}})
		}
	}
	objects := append(owners, more...)
	return fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects...).WithIndex(&corev1.ConfigMap{}, "metadata.name", nameOf).Build()
}

func openRecord() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap},
		Data:       map[string]string{"state": v1alpha1.FirstSyncOpen},
	}
}

func recordedIn(t *testing.T, cl client.Client) map[string]string {
	t.Helper()
	cm := &corev1.ConfigMap{}
	key := types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}
	if err := cl.Get(t.Context(), key, cm); err != nil {
		t.Fatal(err)
	}
	return cm.Data
}

func TestApproveCreate(t *testing.T) {
	for _, c := range []struct {
		reason   string
		args     []string
		all      bool
		err, out string
		approved string
	}{
		{"without names it shows what is held", nil, false, errNotReady.Error(), "HelmRelease/fleet/c: not created: Cluster/fleet/c", ""},
		{"one of them", []string{"fleet/b"}, false, "", "✔ approved creation of Cluster fleet/b", "fleet_b"},
		{"several, of several owners", []string{"fleet/a", "fleet/c"}, false, "", "✔ approved creation of Cluster fleet/c", "fleet_a fleet_c"},
		{"all, which are shown", nil, true, "", "Kustomization/fleet/clusters: not created", "fleet_a fleet_b fleet_c"},
		{"what is not held is not approved, nor anything beside it", []string{"fleet/a", "fleet/z"}, false, "it is not held", "", ""},
		{"a name without a namespace", []string{"a"}, false, "write namespace/name", "", ""},
	} {
		t.Run(c.reason, func(t *testing.T) {
			verb, out := newCLI(t)
			cl := heldTier(openRecord())
			names, err := held.Clusters(c.args)
			if err == nil {
				err = verb.approveCreate(t.Context(), cl, names, c.all)
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error is %v", err)
			}
			if !strings.Contains(out.String(), c.out) {
				t.Errorf("it says %s", out)
			}
			var approved []string
			data := recordedIn(t, cl)
			for _, key := range []string{"fleet_a", "fleet_b", "fleet_c", "fleet_z"} {
				if data[key] == "approved" {
					approved = append(approved, key)
				}
			}
			if got := strings.Join(approved, " "); got != c.approved {
				t.Errorf("approved are %q", got)
			}
		})
	}
}

// awayTier has a Cluster that a pivot gave to another tier, whose Kustomization leaves it alone.
func awayTier(connected metav1.ConditionStatus, step string, more ...client.Object) client.Client {
	owner := &kustomizev1.Kustomization{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "masters"},
		Status:     kustomizev1.KustomizationStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ManagedElsewhereCondition, Status: metav1.ConditionTrue}}},
	}
	v1alpha1.SetHeld(owner, v1alpha1.Held{Create: &v1alpha1.HeldCreate{ManagedElsewhere: []string{"fleet/m"}}})
	record := openRecord()
	record.Labels = firstsync.NewRecord(record.Namespace).Labels
	firstsync.ManageElsewhere(record, "fleet.m-1", types.NamespacedName{Namespace: "fleet", Name: "m"})
	child := &v1alpha1.Child{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "m"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "m"}},
		Status: v1alpha1.ChildStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: connected}}},
	}
	journal := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "cascade-pivot.source.x", Labels: map[string]string{v1alpha1.PivotLabel: "source"}},
		Data:       map[string]string{"journal.json": `{"format":1,"id":"fleet.m-1","step":"` + step + `","to":{"uid":"there"},"clusters":[{"namespace":"fleet","name":"m"}]}`},
	}
	return heldTier(append(more, owner, record, child, journal)...)
}

// TestApproveCreateManagedElsewhere: the documented way to build a Cluster again that another tier managed and
// that is gone for good. It is for whoever names it, and not while it can be seen that it is not gone.
func TestApproveCreateManagedElsewhere(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		all       bool
		connected metav1.ConditionStatus
		step, err string
	}{
		"Gone":      {"nobody hears of it any more", false, metav1.ConditionFalse, "done", ""},
		"All":       {"it is not held", true, metav1.ConditionFalse, "done", ""},
		"Connected": {"it would be built a second time", false, metav1.ConditionTrue, "done", "Child fleet/m is connected"},
		"Moving":    {"its objects may be here still", false, metav1.ConditionFalse, "copy", "pivot fleet.m-1, which moves it, is at step copy"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := newCLI(t)
			cl, names := awayTier(tc.connected, tc.step), []types.NamespacedName{{Namespace: "fleet", Name: "m"}}
			if tc.all {
				names = nil
			}
			err := c.approveCreate(t.Context(), cl, names, tc.all)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: error is %v", tc.reason, err)
			}
			data, want := recordedIn(t, cl), tc.err == "" && !tc.all
			if _, elsewhere := data["fleet_m_elsewhere"]; elsewhere == want || (data["fleet_m"] == "approved") != want {
				t.Errorf("%s: the record is %v", tc.reason, data)
			}
		})
	}
}

// TestApprovePushedOfMoved: a Cluster that was moved away is not approved past what tells that it runs either where a parent
// pushes it: that stays, with the kubeconfig by which it is seen.
func TestApprovePushedOfMoved(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		connected metav1.ConditionStatus
		step, err string
	}{
		"Gone":      {"nobody hears of it any more", metav1.ConditionFalse, "done", ""},
		"Connected": {"it would be built a second time", metav1.ConditionTrue, "done", "Child fleet/m is connected"},
		"Pivoting":  {"the pivot needs the kubeconfig", metav1.ConditionFalse, "unpause", "pivot fleet.m-1, which moves it, is at step unpause"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := newCLI(t)
			kept := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
				Namespace: "fleet", Name: "m-kubeconfig", UID: "s", Annotations: map[string]string{v1alpha1.PivotKeptAnnotation: "fleet.m-1"},
			}}
			// A record of an agent that was here before holds it, too, and is the first that is written.
			former := firstsync.SettledRecord("a-former", "", time.Now())
			cl := awayTier(tc.connected, tc.step, kept, former)
			err := c.approvePushed(t.Context(), cl, "a-former", []types.NamespacedName{{Namespace: "fleet", Name: "m"}})
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: error is %v", tc.reason, err)
			}
			data, want := recordedIn(t, cl), tc.err == ""
			if _, elsewhere := data["fleet_m_elsewhere"]; elsewhere == want || (data["fleet_m"] == "approved") != want {
				t.Errorf("%s: the record is %v", tc.reason, data)
			}
			if err := cl.Get(t.Context(), client.ObjectKeyFromObject(former), former); err != nil || (former.Data["fleet_m"] == "approved") != want {
				t.Errorf("%s: the former record is %v, %v", tc.reason, former.Data, err)
			}
			if err := cl.Get(t.Context(), client.ObjectKeyFromObject(kept), kept); (err != nil) != want {
				t.Errorf("%s: the Secret is read with %v", tc.reason, err)
			}
		})
	}
}

// TestApproveCreateDropsKept: the next Cluster of a name does not find the kubeconfig that a pivot left of the one that is
// gone, whichever way it is approved.
func TestApproveCreateDropsKept(t *testing.T) {
	kept := map[string]string{v1alpha1.PivotKeptAnnotation: "fleet.m-1"}
	for name, tc := range map[string]struct {
		reason, name string
		annotations  map[string]string
		owners       []metav1.OwnerReference
		stays        bool
	}{
		"Left":   {"a pivot left it", "m-kubeconfig", kept, nil, false},
		"Owned":  {"it is a Cluster's that is here", "m-kubeconfig", kept, []metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "m", UID: "here"}}, true},
		"Person": {"a person made it", "m-kubeconfig", nil, nil, true},
		"Other":  {"it is of another Cluster", "n-kubeconfig", kept, nil, true},
	} {
		for _, pushed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", name, pushed), func(t *testing.T) {
				c, _ := newCLI(t)
				secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: tc.name, UID: "s", Annotations: tc.annotations, OwnerReferences: tc.owners}}
				cl, names := awayTier(metav1.ConditionFalse, "done", secret), []types.NamespacedName{{Namespace: "fleet", Name: "m"}}
				var err error
				if pushed {
					err = c.approvePushed(t.Context(), cl, "", names)
				} else {
					err = c.approveCreate(t.Context(), cl, names, false)
				}
				if data := recordedIn(t, cl); err != nil || data["fleet_m"] != "approved" {
					t.Errorf("%s: the record is %v, %v", tc.reason, data, err)
				}
				if err := cl.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); (err == nil) != tc.stays {
					t.Errorf("%s: the Secret is read with %v", tc.reason, err)
				}
			})
		}
	}
}

// TestApproveCreateOfOlderAgent: an agent that does not record which Clusters it
// holds is still told about those that a person names.
func TestApproveCreateOfOlderAgent(t *testing.T) {
	c, _ := newCLI(t)
	older := &kustomizev1.Kustomization{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "older"},
		Status:     kustomizev1.KustomizationStatus{Conditions: heldCondition("not created: Cluster/fleet/z; run: cascade approve create fleet/z")},
	}
	cl := heldTier(openRecord(), older)
	if err := c.approveCreate(t.Context(), cl, nil, true); err == nil || !strings.Contains(err.Error(), "Kustomization/fleet/older") {
		t.Errorf("all are approved, of which some are not known: %v", err)
	}
	if err := c.approveFirstSync(t.Context(), cl); err == nil {
		t.Error("the first sync was ended while Clusters may be held")
	}
	names, err := held.Clusters([]string{"fleet/z"})
	if err == nil {
		err = c.approveCreate(t.Context(), cl, names, false)
	}
	if data := recordedIn(t, cl); err != nil || data["fleet_z"] != "approved" {
		t.Errorf("the record is %v, %v", data, err)
	}
}

func TestApproveCreateWithoutAgent(t *testing.T) {
	c, _ := newCLI(t)
	names, err := held.Clusters([]string{"fleet/a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.approveCreate(t.Context(), heldTier(), names, false); err == nil || !strings.Contains(err.Error(), "no agent has run here") {
		t.Errorf("error is %v", err)
	}
}

// TestApprovePushed: what a parent pushes is held there, and approved here, where
// there may be no agent and no record.
func TestApprovePushed(t *testing.T) {
	for reason, cl := range map[string]client.Client{"without an agent": heldTier(), "with one": heldTier(openRecord())} {
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		names, err := held.Clusters([]string{"fleet/z"})
		if err == nil {
			err = (&cli{streams: streams}).approvePushed(t.Context(), cl, v1alpha1.AgentNamespace, names)
		}
		if data := recordedIn(t, cl); err != nil || data["fleet_z"] != "approved" || data["state"] != v1alpha1.FirstSyncOpen {
			t.Errorf("%s: the record is %v, %v", reason, data, err)
		}
		if want := "✔ approved creation of Cluster fleet/z\n"; out.String() != want {
			t.Errorf("%s: it says %s", reason, out)
		}
	}
}

// TestApprovePushedElsewhere: an approval is in the records that hold, as of an agent in another namespace: one more
// in the usual namespace would count before them, and knows nothing of what another tier has. Nobody is told to make it (read 737).
func TestApprovePushedElsewhere(t *testing.T) {
	const usual = v1alpha1.AgentNamespace
	for name, tc := range map[string]struct {
		reason, records, said, want string
	}{
		"One":     {"where the agent is", "platform", "", "platform"},
		"Several": {"the strictest of them counts", "gitops platform", "", "gitops platform"},
		"Usual":   {"the others do not count then", usual + " platform", "", usual},
		"None":    {"it is the first", "", "", usual},
		"First":   {"a person says where the first is", "", "platform", "platform"},
		"There":   {"a person names one of two", "gitops platform", "platform", "platform"},
		"Said":    {"one more would hide what is there", "platform", usual, ""},
		"Other":   {"it would not count", usual, "platform", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			for _, namespace := range strings.Fields(tc.records) {
				record := firstsync.NewRecord(namespace)
				record.Data["fleet_alpha_elsewhere"] = "pivot"
				objects = append(objects, record)
			}
			cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects...).Build()
			streams, _, _, advice := genericiooptions.NewTestIOStreams()
			names := []types.NamespacedName{{Namespace: "fleet", Name: "beta"}}
			err := (&cli{streams: streams}).approvePushed(t.Context(), cl, tc.said, names)
			if (err != nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), "in namespace "+tc.records) || advice.Len() > 0 {
				t.Fatalf("%s: %v; it advises: %s", tc.reason, err, advice)
			}
			all := &corev1.ConfigMapList{}
			if err := cl.List(t.Context(), all); err != nil {
				t.Fatal(err)
			}
			var approved []string
			for i := range all.Items {
				if all.Items[i].Data["fleet_beta"] == "approved" {
					approved = append(approved, all.Items[i].Namespace)
				} else if !slices.Contains(strings.Fields(tc.records), all.Items[i].Namespace) {
					t.Errorf("%s: there is another record in %s", tc.reason, all.Items[i].Namespace)
				}
			}
			if slices.Sort(approved); strings.Join(approved, " ") != tc.want {
				t.Errorf("%s: it is approved in %v, want %s", tc.reason, approved, tc.want)
			}
		})
	}
}

// TestApprovePushedAgain: a Cluster that was approved once, and moved away since, is not built a second time by that approval.
// Another one is for it as it is now (read 850).
func TestApprovePushedAgain(t *testing.T) {
	beta := types.NamespacedName{Namespace: "fleet", Name: "beta"}
	cluster := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster"}}
	cluster.SetNamespace(beta.Namespace)
	cluster.SetName(beta.Name)
	for _, tt := range []struct {
		reason string
		usual  *corev1.ConfigMap
		moved  inventory.Standing
	}{
		{"a person approved beside the record of the agent, as earlier versions advised", firstsync.NewRecord(v1alpha1.AgentNamespace), inventory.ManagedElsewhere},
		{"the agent was in the usual namespace before (read 866)", firstsync.SettledRecord(v1alpha1.AgentNamespace, "", time.Now()), inventory.LastPaused},
	} {
		ops := firstsync.SettledRecord("ops", "", time.Now())
		tt.usual.Data["fleet_beta"] = "approved"
		firstsync.ManageElsewhere(ops, "pivot", beta)
		cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(tt.usual, ops).Build()
		is := func(want inventory.Standing) {
			t.Helper()
			record, err := firstsync.Other{Reader: cl}.For(t.Context(), []*unstructured.Unstructured{cluster})
			if err != nil || record == nil || record.Clusters[beta] != want {
				t.Errorf("%s: the record is %+v, %v, want %s", tt.reason, record, err, want)
			}
		}
		is(tt.moved)
		streams, _, _, _ := genericiooptions.NewTestIOStreams()
		if err := (&cli{streams: streams}).approvePushed(t.Context(), cl, "", []types.NamespacedName{beta}); err != nil {
			t.Fatal(err)
		}
		is(inventory.Approved)
	}
}

func TestApproveFirstSync(t *testing.T) {
	c, _ := newCLI(t)
	held := heldTier(openRecord())
	if err := c.approveFirstSync(t.Context(), held); err == nil || !strings.Contains(err.Error(), "cannot end the first sync") {
		t.Errorf("it was ended while Clusters are held: %v", err)
	}
	if state := recordedIn(t, held)["state"]; state != v1alpha1.FirstSyncOpen {
		t.Errorf("the state is %s", state)
	}
	free := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(openRecord()).WithIndex(&corev1.ConfigMap{}, "metadata.name", nameOf).Build()
	if err := c.approveFirstSync(t.Context(), free); err != nil {
		t.Fatal(err)
	}
	if state := recordedIn(t, free)["state"]; state != v1alpha1.FirstSyncSettled {
		t.Errorf("the state is %s", state)
	}
}

// TestApproveWhereTheAgentIs: an approval is in the record that the agent keeps. In another one it would be told as done, and
// change nothing.
func TestApproveWhereTheAgentIs(t *testing.T) {
	const usual = v1alpha1.AgentNamespace
	for name, tc := range map[string]struct{ reason, agents, records, said, want string }{
		"Elsewhere": {"it was installed with -n, and a record is left where one was before", "gitops", "gitops " + usual, "", "gitops"},
		"Said":      {"a person says where it is", "gitops", "gitops " + usual, "gitops", "gitops"},
		"Wrong":     {"no agent keeps the record there", "gitops", "gitops " + usual, usual, ""},
		"Usual":     {"what is left elsewhere does not count either", usual, "gitops " + usual, "", usual},
		"Mom":       {"it is no Deployment", "", "gitops", "", "gitops"},
	} {
		t.Run(name, func(t *testing.T) {
			k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "clusters"}}
			k.Status.Conditions = heldCondition("not created: Cluster/fleet/new")
			v1alpha1.SetHeld(k, v1alpha1.Held{Create: &v1alpha1.HeldCreate{Clusters: []string{"fleet/new"}}})
			objects := []client.Object{k}
			for _, namespace := range strings.Fields(tc.agents) {
				objects = append(objects, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentName, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName}}})
			}
			for _, namespace := range strings.Fields(tc.records) {
				objects = append(objects, firstsync.NewRecord(namespace))
			}
			cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects...).WithIndex(&corev1.ConfigMap{}, "metadata.name", nameOf).Build()
			c, out := newCLI(t)
			c.flags.Namespace = &tc.said
			// changed are the namespaces of the records with a value.
			changed := func(key, value string) string {
				all, in := &corev1.ConfigMapList{}, []string{}
				if err := cl.List(t.Context(), all); err != nil {
					t.Fatal(err)
				}
				for i := range all.Items {
					if all.Items[i].Data[key] == value {
						in = append(in, all.Items[i].Namespace)
					}
				}
				return strings.Join(in, " ")
			}
			refused := func(verb string, err error) {
				if (err != nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), "is in namespace "+tc.agents) {
					t.Errorf("%s: %s: %v", tc.reason, verb, err)
				}
				if told := strings.Contains(out.String(), "✔"); told != (tc.want != "") {
					t.Errorf("%s: %s says %s", tc.reason, verb, out)
				}
				out.Reset()
			}
			refused("create", c.approveCreate(t.Context(), cl, []types.NamespacedName{{Namespace: "fleet", Name: "new"}}, false))
			if in := changed("fleet_new", "approved"); in != tc.want {
				t.Errorf("%s: it is approved in %q, want %q", tc.reason, in, tc.want)
			}
			if err := cl.Delete(t.Context(), k); err != nil { // nothing is held any more
				t.Fatal(err)
			}
			refused("first-sync", c.approveFirstSync(t.Context(), cl))
			if in := changed("state", v1alpha1.FirstSyncSettled); in != tc.want {
				t.Errorf("%s: the first sync is over in %q, want %q", tc.reason, in, tc.want)
			}
		})
	}
}

// TestApproveBesideTenants: where tenants have an agent of their own, an approval is in the record of the one that holds
// the Cluster. In that of another one it would be told as done, and change nothing.
func TestApproveBesideTenants(t *testing.T) {
	const usual, team = v1alpha1.AgentNamespace, "team-a"
	for name, tc := range map[string]struct {
		reason, platform, tenant, said string
		unkept                         bool
		// theirs and ours are the namespaces of the records with the approval of a Cluster with the label of the team, and of one without.
		theirs, ours string
	}{
		"Labels":    {"labels say whose it is", "--watch-label-selector=!team", "--watch-label-selector=team=a", "", false, team, usual},
		"Words":     {"a flag may be two words", "--watch-label-selector !team", "--log-level debug --watch-label-selector team", "", false, team, usual},
		"Namespace": {"a tenant has its namespace alone", "", "--watch-all-namespaces=false", "", false, usual, usual},
		"Both":      {"each of two holds it", "", "--watch-label-selector=team=a", "", false, usual + " " + team, usual},
		"Said":      {"a person says which record", "--watch-label-selector=!team", "--watch-label-selector=team=a", usual, false, usual, usual},
		"Unkept":    {"it keeps no record, as it reconciles sources alone", "", "--watch-label-selector=team=a", "", true, usual, usual},
		"Unread":    {"a selector that is none", "", "--watch-label-selector=!!", "", false, usual, usual},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{firstsync.NewRecord(usual)}
			if !tc.unkept {
				objects = append(objects, firstsync.NewRecord(team))
			}
			for name, labels := range map[string]map[string]string{"theirs": {"team": "a"}, "ours": nil} {
				k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name, Labels: labels}}
				k.Status.Conditions = heldCondition("not created: Cluster/fleet/" + name)
				v1alpha1.SetHeld(k, v1alpha1.Held{Create: &v1alpha1.HeldCreate{Clusters: []string{"fleet/" + name}}})
				objects = append(objects, k)
			}
			for namespace, args := range map[string]string{usual: tc.platform, team: tc.tenant} {
				d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentName, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName}}}
				d.Spec.Template.Spec.Containers = []corev1.Container{{Args: append([]string{"agent"}, strings.Fields(args)...)}}
				objects = append(objects, d)
			}
			cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects...).Build()
			c, out := newCLI(t)
			c.flags.Namespace = &tc.said
			if err := c.approveCreate(t.Context(), cl, nil, true); err != nil {
				t.Fatalf("%s: %v\n%s", tc.reason, err, out)
			}
			all := &corev1.ConfigMapList{}
			if err := cl.List(t.Context(), all); err != nil {
				t.Fatal(err)
			}
			for name, want := range map[string]string{"theirs": tc.theirs, "ours": tc.ours} {
				var in []string
				for i := range all.Items {
					if all.Items[i].Data["fleet_"+name] == "approved" {
						in = append(in, all.Items[i].Namespace)
					}
				}
				if got := strings.Join(in, " "); got != want {
					t.Errorf("%s: %s is approved in %q, want %q", tc.reason, name, got, want)
				}
			}
		})
	}
	// Each has a first sync of its own.
	agent := func(namespace string) client.Object {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentName, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName}}}
	}
	c, out := newCLI(t)
	cl := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(firstsync.NewRecord(usual), firstsync.NewRecord(team), agent(usual), agent(team)).Build()
	if err := c.approveFirstSync(t.Context(), cl); err != nil || !strings.Contains(out.String(), "the one in team-a has a first sync of its own: -n team-a") {
		t.Errorf("%v: it says %s", err, out)
	}
}

// TestApproveElsewhereBesideTenants: a pivot wrote into the record of the agent that had a Cluster then, and another one
// has it since. What tells that the Cluster runs elsewhere counts for that one's approval as well.
func TestApproveElsewhereBesideTenants(t *testing.T) {
	const usual = v1alpha1.AgentNamespace
	for name, tc := range map[string]struct {
		reason, tenant, said string
		connected            metav1.ConditionStatus
		step, err            string
	}{
		"MovedAway": {"it would be built a second time", "team-a", "", metav1.ConditionTrue, "done", "another tier manages it"},
		"Said":      {"also in the record that a person names", "team-a", "team-a", metav1.ConditionTrue, "done", "another tier manages it"},
		"Moving":    {"its objects may be here still", "team-a", "", metav1.ConditionFalse, "copy", "pivot fleet.m-1, which moves it, is at step copy"},
		"Gone":      {"nobody hears of it any more", "team-a", "", metav1.ConditionFalse, "done", ""},
		"All":       {"it is approved by its name", "team-a", "all", metav1.ConditionFalse, "done", "with --all"},
		"First":     {"the record that is written first is not that of the pivot", "a-team", "", metav1.ConditionFalse, "done", ""},
	} {
		t.Run(name, func(t *testing.T) {
			k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "theirs", Labels: map[string]string{"team": "a"}}}
			k.Status.Conditions = heldCondition("not created: Cluster/fleet/m")
			v1alpha1.SetHeld(k, v1alpha1.Held{Create: &v1alpha1.HeldCreate{Clusters: []string{"fleet/m"}}})
			kept := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
				Namespace: "fleet", Name: "m-kubeconfig", UID: "s", Annotations: map[string]string{v1alpha1.PivotKeptAnnotation: "fleet.m-1"},
			}}
			theirs := firstsync.NewRecord(tc.tenant)
			more := []client.Object{k, kept, theirs}
			for namespace, selector := range map[string]string{usual: "team!=a", tc.tenant: "team=a"} {
				d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.AgentName, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName}}}
				d.Spec.Template.Spec.Containers = []corev1.Container{{Args: []string{"agent", "--watch-label-selector=" + selector}}}
				more = append(more, d)
			}
			cl := awayTier(tc.connected, tc.step, more...)
			c, _ := newCLI(t)
			names := []types.NamespacedName{{Namespace: "fleet", Name: "m"}}
			if tc.said == "all" {
				names = nil
			} else {
				c.flags.Namespace = &tc.said
			}
			err := c.approveCreate(t.Context(), cl, names, names == nil)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: error is %v", tc.reason, err)
			}
			data, want := recordedIn(t, cl), tc.err == ""
			if _, elsewhere := data["fleet_m_elsewhere"]; elsewhere == want || (data["fleet_m"] == "approved") != want {
				t.Errorf("%s: the record of the platform is %v", tc.reason, data)
			}
			if err := cl.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil || (theirs.Data["fleet_m"] == "approved") != want {
				t.Errorf("%s: the record of the team is %v, %v", tc.reason, theirs.Data, err)
			}
			if err := cl.Get(t.Context(), client.ObjectKeyFromObject(kept), kept); (err != nil) != want {
				t.Errorf("%s: the Secret is read with %v", tc.reason, err)
			}
		})
	}
}

// TestTreeTellsWhatIsHeld: a person who looks at the fleet sees what the tier waits
// for, and what to do.
func TestTreeTellsWhatIsHeld(t *testing.T) {
	root, err := loadTree(t.Context(), heldTier(), v1alpha1.AgentNamespace, noon)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := printHeld(&out, root.Held); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"held in this tier", "cascade approve create fleet/a fleet/b", "HelmRelease/fleet/c"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
}
