package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	kube "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge/shapes"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/state/archive"
)

// object reads one of YAML; its UID is made of its kind and name.
func object(t *testing.T, text string, owners ...string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	u.SetUID(types.UID(u.GetKind() + "/" + u.GetName()))
	for _, o := range owners {
		kind, name, _ := strings.Cut(o, "/")
		u.SetOwnerReferences(append(u.GetOwnerReferences(), metav1.OwnerReference{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: kind, Name: name, UID: types.UID(o)}))
	}
	return u
}

func cluster(t *testing.T, name string) []*unstructured.Unstructured {
	t.Helper()
	return []*unstructured.Unstructured{
		object(t, "{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: "+name+", namespace: fleet}, spec: {infrastructureRef: {kind: LocalCluster, name: "+name+"}}}"),
		object(t, "{apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1, kind: LocalCluster, metadata: {name: "+name+", namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: "+name+"}}}", "Cluster/"+name),
		object(t, "{apiVersion: v1, kind: Secret, metadata: {name: "+name+"-ca, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: "+name+"}}, data: {x: eA==}}", "LocalCluster/"+name),
	}
}

func records(t *testing.T, holders ...string) []*unstructured.Unstructured {
	t.Helper()
	var marks []string
	for i, h := range holders {
		marks = append(marks, fmt.Sprintf(`{"epoch":%d,"holder":%q}`, len(holders)-i, h))
	}
	return []*unstructured.Unstructured{
		object(t, "{apiVersion: v1, kind: Namespace, metadata: {name: fleet}}"),
		object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: cascade-first-sync, namespace: cascade-system}, data: {state: settled, why: so, fleet_new: approved, fleet_away: moving}}"),
		object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: cascade-epoch, namespace: cascade-system}, data: {lineage.json: '["+strings.Join(marks, ",")+"]'}}"),
		object(t, "{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: a, namespace: fleet}, spec: {clusterRef: {name: a}, suspend: true}}", "Cluster/a"),
		object(t, "{apiVersion: cascade.dev/v1alpha1, kind: Rollout, metadata: {name: r, namespace: fleet}, spec: {x: y}, status: {run: {number: 3}}}"),
	}
}

func snapshotOf(lists ...[]*unstructured.Unstructured) *archive.Snapshot {
	s := &archive.Snapshot{Tier: "former", Taken: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	for _, list := range lists {
		for _, u := range list {
			s.Objects = append(s.Objects, *u.DeepCopy())
		}
	}
	return s
}

// thereAs makes objects those of a tier, each with another UID.
func thereAs(list ...*unstructured.Unstructured) map[key]*unstructured.Unstructured {
	out := map[key]*unstructured.Unstructured{}
	for _, u := range list {
		there := u.DeepCopy()
		there.SetUID("here/" + u.GetUID())
		there.SetResourceVersion("7")
		owners := there.GetOwnerReferences()
		for i := range owners {
			owners[i].UID = "here/" + owners[i].UID
		}
		there.SetOwnerReferences(owners)
		out[keyOf(there)] = there
	}
	return out
}

func firstSyncIs(state string, data ...string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{Data: map[string]string{"state": state}}
	for _, d := range data {
		name, value, _ := strings.Cut(d, "=")
		cm.Data[name] = value
	}
	return cm
}

// shown are the steps of a plan, one on a line, without those that are only kept.
func shown(p *plan) string {
	var b strings.Builder
	for _, s := range p.steps {
		if s.Action != Keep {
			fmt.Fprintf(&b, "%s %s %s\n", s.Action, s.Object, s.Reason)
		}
	}
	for _, name := range p.resume {
		fmt.Fprintf(&b, "resume %s\n", name)
	}
	return strings.ReplaceAll(b.String(), " \n", "\n")
}

// TestCircle: a state that was saved with objects that own each other is restored without them.
func TestCircle(t *testing.T) {
	label := ", namespace: fleet, labels: {clusterctl.cluster.x-k8s.io/move: ''}}}"
	p, err := planOf(snapshotOf(cluster(t, "a"), []*unstructured.Unstructured{
		object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: one"+label, "ConfigMap/two"),
		object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: two"+label, "ConfigMap/one"),
	}), facts{}, Options{Namespace: "cascade-system"})
	if err != nil {
		t.Fatal(err)
	}
	want := `Create Cluster/fleet/a
Create LocalCluster/fleet/a
Create Secret/fleet/a-ca
Skip ConfigMap/fleet/one OwnerIsNotRestored
Skip ConfigMap/fleet/two OwnerIsNotRestored
resume fleet/a
`
	if got := shown(p); got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

// TestForeign: an archive that somebody made by himself, as anybody can who knows a recipient,
// gives nobody rights and runs nothing.
func TestForeign(t *testing.T) {
	for name, tt := range map[string]struct {
		reason, version, kind string
		refused               bool
	}{
		"Rights":        {"somebody would be administrator", "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", true},
		"Pods":          {"something would run", "apps/v1", "Deployment", true},
		"Webhook":       {"all writes would be told to somebody", "admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", true},
		"Definition":    {"a kind would be another one", "apiextensions.k8s.io/v1", "CustomResourceDefinition", true},
		"Account":       {"nor is this one saved", "v1", "ServiceAccount", true},
		"Kustomization": {"it comes from Git", "kustomize.toolkit.fluxcd.io/v1", "Kustomization", true},
		"Layer":         {"and so does this", "cascade.dev/v1alpha1", "Layer", true},
		"Credential":    {"and this", "cascade.dev/v1alpha1", "Credential", true},
		"Provider":      {"some provider's kind", "infrastructure.example.com/v1", "MachinePlace", false},
		"ASO":           {"a kind that clusterctl moves", "containerservice.azure.com/v1", "ManagedCluster", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshotOf(cluster(t, "a"), []*unstructured.Unstructured{object(t, "{apiVersion: "+tt.version+", kind: "+tt.kind+", metadata: {name: x, namespace: fleet}}")})
			_, err := planOf(s, facts{}, Options{Namespace: "cascade-system"})
			if errors.Is(err, ErrForeign) != tt.refused || err != nil && !tt.refused {
				t.Errorf("%s: got %v", tt.reason, err)
			}
		})
	}
}

func TestPlan(t *testing.T) {
	a, b := cluster(t, "a"), cluster(t, "b")
	former := records(t, "then", "before")
	s := snapshotOf(a, b, former)
	id, err := ID(s)
	if err != nil {
		t.Fatal(err)
	}
	annotated := func(of []*unstructured.Unstructured, id string) *unstructured.Unstructured {
		u := of[0].DeepCopy()
		u.SetAnnotations(map[string]string{v1alpha1.RestoringAnnotation: id})
		return u
	}
	restoring := func(of []*unstructured.Unstructured, id string) *unstructured.Unstructured {
		u := annotated(of, id)
		_ = unstructured.SetNestedField(u.Object, true, "spec", "paused")
		return u
	}
	all := slices.Concat(a, b, former)
	opened := object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: cascade-first-sync, namespace: cascade-system}, data: {state: open}}")
	whole := `Create Namespace/fleet
Create ConfigMap/cascade-system/cascade-first-sync
Create Cluster/fleet/a
Create Cluster/fleet/b
Create LocalCluster/fleet/a
Create LocalCluster/fleet/b
Create Secret/fleet/a-ca
Create Secret/fleet/b-ca
Create Rollout/fleet/r
Create Child/fleet/a
Create ConfigMap/cascade-system/cascade-epoch
resume fleet/a
resume fleet/b
`
	then := []epoch.Mark{{Epoch: 2, Holder: "then"}, {Epoch: 1, Holder: "before"}}
	since := append([]epoch.Mark{{Epoch: 3, Holder: "since"}}, then...)
	for name, tt := range map[string]struct {
		reason  string
		facts   facts
		options Options
		want    string
	}{
		"Empty": {"all is made, Clusters before their parts, records of the tier around them", facts{}, Options{}, whole},
		"There": {"all is there: nothing is done", facts{there: thereAs(all...), firstSync: firstSyncIs("open"), lineage: then}, Options{}, ""},
		"Interrupted": {"the Clusters that were made go on, and get what they lack", facts{there: thereAs(restoring(a, id), former[0])}, Options{},
			strings.Replace(strings.Replace(whole, "Create Cluster/fleet/a\n", "Differ Cluster/fleet/a\n", 1), "Create Namespace/fleet\n", "", 1)},
		"InterruptedLate": {"the lineage was written, an agent leads the tier by now, and the restore is finished all the same",
			facts{there: thereAs(append([]*unstructured.Unstructured{restoring(a, id)}, former...)...), firstSync: firstSyncIs("open"), lineage: since}, Options{},
			`Differ Cluster/fleet/a
Create Cluster/fleet/b
Create LocalCluster/fleet/a
Create LocalCluster/fleet/b
Create Secret/fleet/a-ca
Create Secret/fleet/b-ca
resume fleet/a
resume fleet/b
`},
		"Other": {"two states are not mixed", facts{there: thereAs(restoring(a, "other"))}, Options{},
			strings.NewReplacer("Create Cluster/fleet/a\n", "Refuse Cluster/fleet/a OtherRestoreUnfinished\n", "Create LocalCluster/fleet/a\n", "Skip LocalCluster/fleet/a ClusterIsThere\n",
				"Create Secret/fleet/a-ca\n", "Skip Secret/fleet/a-ca ClusterIsThere\n", "resume fleet/a\n", "").Replace(whole)},
		"OtherResumed": {"a person resumed a Cluster of a restore that was ended", facts{there: thereAs(annotated(a, "other"))}, Options{},
			strings.NewReplacer("Create Cluster/fleet/a\n", "", "Create LocalCluster/fleet/a\n", "Skip LocalCluster/fleet/a ClusterIsThere\n",
				"Create Secret/fleet/a-ca\n", "Skip Secret/fleet/a-ca ClusterIsThere\n", "resume fleet/a\n", "").Replace(whole)},
		"Alive": {"what a Cluster that runs here lacks may have been removed", facts{there: thereAs(a[0])}, Options{},
			strings.NewReplacer("Create Cluster/fleet/a\n", "", "Create LocalCluster/fleet/a\n", "Skip LocalCluster/fleet/a ClusterIsThere\n",
				"Create Secret/fleet/a-ca\n", "Skip Secret/fleet/a-ca ClusterIsThere\n", "resume fleet/a\n", "").Replace(whole)},
		"Older": {"another agent led the tier since: a Cluster that is not there was removed", facts{there: thereAs(slices.Concat(a, former)...), firstSync: firstSyncIs("settled"), lineage: since}, Options{},
			`Refuse Cluster/fleet/b StateIsOlder
Skip LocalCluster/fleet/b ClusterIsNotRestored
Skip Secret/fleet/b-ca ClusterIsNotRestored
`},
		"OlderAdopts": {"asked for, what is there is adopted, and nothing is made", facts{there: thereAs(slices.Concat(a, former)...), firstSync: firstSyncIs("settled"), lineage: since}, Options{Older: true},
			`Skip Cluster/fleet/b StateIsOlder
Skip LocalCluster/fleet/b ClusterIsNotRestored
Skip Secret/fleet/b-ca ClusterIsNotRestored
`},
		"Settled": {"the tier would have made the Clusters itself", facts{firstSync: firstSyncIs("settled"), there: thereAs(former[1])}, Options{},
			strings.NewReplacer("Create Cluster/fleet/a\n", "Refuse Cluster/fleet/a TierIsSettled\n", "Create Cluster/fleet/b\n", "Refuse Cluster/fleet/b TierIsSettled\n",
				"Create ConfigMap/cascade-system/cascade-first-sync\n", "",
				"Create LocalCluster/fleet/a\n", "Skip LocalCluster/fleet/a ClusterIsNotRestored\n", "Create LocalCluster/fleet/b\n", "Skip LocalCluster/fleet/b ClusterIsNotRestored\n",
				"Create Secret/fleet/a-ca\n", "Skip Secret/fleet/a-ca ClusterIsNotRestored\n", "Create Secret/fleet/b-ca\n", "Skip Secret/fleet/b-ca ClusterIsNotRestored\n",
				"resume fleet/a\n", "", "resume fleet/b\n", "").Replace(whole)},
		"MovedAway": {"another tier has it by now", facts{firstSync: firstSyncIs("open", "fleet_a=moving"), there: thereAs(former[1])}, Options{},
			strings.NewReplacer("Create Cluster/fleet/a\n", "Refuse Cluster/fleet/a ClusterMovedAway\n", "Create ConfigMap/cascade-system/cascade-first-sync\n", "",
				"Create LocalCluster/fleet/a\n", "Skip LocalCluster/fleet/a ClusterIsNotRestored\n", "Create Secret/fleet/a-ca\n", "Skip Secret/fleet/a-ca ClusterIsNotRestored\n", "resume fleet/a\n", "").Replace(whole)},
		"Elsewhere": {"a pivot gave it to another tier", facts{firstSync: firstSyncIs("adopt", "fleet_a_elsewhere=p"), there: thereAs(former[1])}, Options{},
			strings.NewReplacer("Create Cluster/fleet/a\n", "Refuse Cluster/fleet/a ClusterMovedAway\n", "Create ConfigMap/cascade-system/cascade-first-sync\n", "",
				"Create LocalCluster/fleet/a\n", "Skip LocalCluster/fleet/a ClusterIsNotRestored\n", "Create Secret/fleet/a-ca\n", "Skip Secret/fleet/a-ca ClusterIsNotRestored\n", "resume fleet/a\n", "").Replace(whole)},
		"Removed": {"the newest state does not have it: it was removed since this one was saved", facts{}, Options{Newer: snapshotOf(b, former)},
			strings.NewReplacer("Create Cluster/fleet/a\n", "Skip Cluster/fleet/a ClusterRemovedSince\n",
				"Create LocalCluster/fleet/a\n", "Skip LocalCluster/fleet/a ClusterIsNotRestored\n", "Create Secret/fleet/a-ca\n", "Skip Secret/fleet/a-ca ClusterIsNotRestored\n", "resume fleet/a\n", "").Replace(whole)},
		"NotRemoved": {"a person says that it was not: etcd of the tier was rolled back, or the definition of Clusters was deleted", facts{}, Options{Newer: snapshotOf(b, former), NotRemoved: true}, whole},
		"OlderNotRemoved": {"and so it is where others led the tier since", facts{there: thereAs(slices.Concat(a, former)...), firstSync: firstSyncIs("adopt"), lineage: since}, Options{NotRemoved: true},
			"Create Cluster/fleet/b\nCreate LocalCluster/fleet/b\nCreate Secret/fleet/b-ca\nresume fleet/b\n"},
		"OtherAgent": {"an agent that began here is no successor of the former: its lineage gets those before it", facts{there: thereAs(records(t, "new")[2]), lineage: []epoch.Mark{{Epoch: 1, Holder: "new"}}}, Options{},
			strings.Replace(whole, "Create ConfigMap/cascade-system/cascade-epoch\n", "Update ConfigMap/cascade-system/cascade-epoch\n", 1)},
		"Opened": {"an agent that began here made a record: it gets what the former tier knew of Clusters that were moved away", facts{firstSync: firstSyncIs("open"), there: thereAs(opened)}, Options{},
			strings.Replace(whole, "Create ConfigMap/cascade-system/cascade-first-sync\n", "Update ConfigMap/cascade-system/cascade-first-sync\n", 1)},
		"OpenedOlder": {"but not where another agent led the tier since", facts{firstSync: firstSyncIs("open"), there: thereAs(slices.Concat(a, b, []*unstructured.Unstructured{former[0], opened}, former[2:])...), lineage: since}, Options{Older: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tt.options.Namespace = v1alpha1.AgentNamespace
			p, err := planOf(s, tt.facts, tt.options)
			if err != nil {
				t.Fatal(err)
			}
			if got := shown(p); got != tt.want {
				t.Errorf("%s: got\n%swant\n%s", tt.reason, got, tt.want)
			}
		})
	}
}

// TestMarkOfHere: a mark of the state comes back by a restore that is ended, and does not stop the same
// restore. One that came here since does: a Cluster that was paused in the state was moved from here.
func TestMarkOfHere(t *testing.T) {
	for name, tt := range map[string]struct {
		reason, saved string
		here          []string
		refused       bool
	}{
		"Paused":      {"the restore was ended before it made the Cluster", "fleet_a: paused", []string{"fleet_a=paused"}, false},
		"Moving":      {"a move by clusterctl was under way", "fleet_a: moving", []string{"fleet_a=moving"}, false},
		"Pivoted":     {"it was resumed here, and a pivot gave it to another tier", "fleet_a: paused", []string{"fleet_a=moving", "fleet_a_elsewhere=p"}, true},
		"Moved":       {"it was resumed here, and moved by clusterctl", "fleet_a: paused", []string{"fleet_a=moving"}, true},
		"Elsewhere":   {"the state has it on record", "fleet_a: moving, fleet_a_elsewhere: p", []string{"fleet_a=moving", "fleet_a_elsewhere=p"}, false},
		"Noted":       {"the agent wrote the mark beside it that versions before pivots read", "fleet_a_elsewhere: p", []string{"fleet_a=moving", "fleet_a_elsewhere=p"}, false},
		"OtherPivot":  {"another pivot took it from here", "fleet_a: moving, fleet_a_elsewhere: p", []string{"fleet_a=moving", "fleet_a_elsewhere=q"}, true},
		"NoneOfState": {"the state knows of none", "fleet_b: paused", []string{"fleet_a=paused"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			record := object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: cascade-first-sync, namespace: cascade-system}, data: {state: settled, "+tt.saved+"}}")
			f := facts{firstSync: firstSyncIs("open", tt.here...), there: thereAs(record)}
			p, err := planOf(snapshotOf(cluster(t, "a"), []*unstructured.Unstructured{record}), f, Options{Namespace: v1alpha1.AgentNamespace})
			if err != nil {
				t.Fatal(err)
			}
			if refused := strings.Contains(shown(p), "Refuse Cluster/fleet/a "+ReasonMovedAway); refused != tt.refused {
				t.Errorf("%s: got\n%s", tt.reason, shown(p))
			}
		})
	}
}

// TestManagedElsewhere: a tier that is restored knows which Clusters another one manages, and
// how to reach them, as nothing else of them is here.
func TestManagedElsewhere(t *testing.T) {
	way := object(t, "{apiVersion: v1, kind: Secret, metadata: {name: m-kubeconfig, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: m}, annotations: {cascade.dev/pivot-kept: p}}, data: {value: eA==}}")
	other := object(t, "{apiVersion: v1, kind: Secret, metadata: {name: other-kubeconfig, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: other}}}")
	firstSync := object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: cascade-first-sync, namespace: cascade-system}, data: {state: settled, fleet_m_elsewhere: p}}")
	from, o := newFake(t), TakeOptions{}
	o.defaults()
	for _, u := range []*unstructured.Unstructured{way, other, firstSync} {
		if err := from.Create(t.Context(), u.DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	taken, _, err := o.records(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, u := range taken {
		names = append(names, keyOf(u).String())
	}
	if want := []string{"ConfigMap/cascade-system/cascade-first-sync", "Secret/fleet/m-kubeconfig"}; !slices.Equal(names, want) {
		t.Fatalf("saved are %q, want %q", names, want)
	}
	to := newFake(t)
	if _, err := Restore(t.Context(), to, snapshotOf(taken), Options{}); err != nil {
		t.Fatal(err)
	}
	cm := &corev1.ConfigMap{}
	if err := to.Get(t.Context(), kube.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}, cm); err != nil || cm.Data["fleet_m_elsewhere"] != "p" {
		t.Errorf("the record is %v, %v: Git builds it again", cm.Data, err)
	}
	if err := to.Get(t.Context(), kube.ObjectKeyFromObject(way), way); err != nil || !same(way, taken[1]) {
		t.Errorf("the kubeconfig is %v, %v", way.Object, err)
	}
}

// TestRecordThere: the agent of a tier makes its record before anybody restores what the former tier knew.
func TestRecordThere(t *testing.T) {
	record := func(data string) *unstructured.Unstructured {
		return object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: cascade-first-sync, namespace: cascade-system}, data: {"+data+"}}")
	}
	paused := cluster(t, "a")
	_ = unstructured.SetNestedField(paused[0].Object, true, "spec", "paused")
	moving := cluster(t, "a")
	moving[0].SetAnnotations(map[string]string{v1alpha1.PivotAnnotation: "p"})
	definition := object(t, "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: clusters.cluster.x-k8s.io}, spec: {versions: [{name: v1beta2, served: true, storage: true}]}}")
	for name, tt := range map[string]struct {
		reason, saved, there string
		clusters             []*unstructured.Unstructured
		here                 []*unstructured.Unstructured
		want                 map[string]string
		action               Action
	}{
		"Elsewhere": {"a Cluster that another tier manages would be built a second time, and its Child go", "state: settled, fleet_m_elsewhere: p, fleet_m: moving", "state: open", nil, nil,
			map[string]string{"state": "open", "fleet_m_elsewhere": "p", "fleet_m": "moving"}, Update},
		"Moved": {"so would one that was moved otherwise", "state: settled, fleet_m: moving, fleet_n: paused", "state: open", nil, nil,
			map[string]string{"state": "open", "fleet_m": "moving", "fleet_n": "paused"}, Update},
		"Hold":     {"a person's hold stays", "state: adopt, why: so", "state: open, why: nothing was on record", nil, nil, map[string]string{"state": "adopt", "why": "so"}, Update},
		"Settled":  {"what was settled here stays so, and Clusters elsewhere are not forgotten", "state: adopt, fleet_m_elsewhere: p", "state: settled", nil, nil, map[string]string{"state": "settled", "fleet_m_elsewhere": "p"}, Update},
		"Approved": {"a person decided here since", "state: settled, fleet_m_elsewhere: p, fleet_n: moving", "state: open, fleet_m: approved, fleet_n: approved", nil, nil, map[string]string{"state": "open", "fleet_m": "approved", "fleet_n": "approved"}, Keep},
		"Known":    {"all is known", "state: settled, fleet_m_elsewhere: p, fleet_m: moving, fleet_n: approved", "state: open, fleet_m_elsewhere: p, fleet_m: moving", nil, nil, map[string]string{"state": "open", "fleet_m_elsewhere": "p", "fleet_m": "moving"}, Keep},
		"Other":    {"it went elsewhere once more", "state: settled, fleet_m_elsewhere: p", "state: open, fleet_m_elsewhere: q", nil, nil, map[string]string{"state": "open", "fleet_m_elsewhere": "q"}, Keep},
		"Back": {"it came back since", "state: settled, fleet_a_elsewhere: p, fleet_a: moving", "state: settled", nil, []*unstructured.Unstructured{definition, paused[0]},
			map[string]string{"state": "settled"}, Keep},
		"Restored": {"it is here with its pause, which needs no mark", "state: settled, fleet_a: paused", "state: open", paused, nil, map[string]string{"state": "open"}, Keep},
		"Ended":    {"a restore that was ended left marks, and is no reason to refuse to go on with it", "state: settled, fleet_a: paused", "state: open, fleet_a: paused", paused, nil, map[string]string{"state": "open", "fleet_a": "paused"}, Keep},
		"Moving": {"which tier has it is not known: the agent leaves it alone", "state: settled, fleet_a_elsewhere: p, fleet_a: moving", "state: open", moving, nil,
			map[string]string{"state": "open", "fleet_a_elsewhere": "p", "fleet_a": "moving"}, Update},
		"None": {"there is none, as an agent was never here", "state: settled, fleet_m_elsewhere: p, fleet_n: approved, fleet_a: paused", "", paused, nil,
			map[string]string{"state": "open", "why": "the saved state of the tier was restored", "fleet_m_elsewhere": "p"}, Create},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshotOf([]*unstructured.Unstructured{object(t, "{apiVersion: v1, kind: Namespace, metadata: {name: fleet}}"), record(tt.saved)}, tt.clusters)
			// The agent makes its record before the restore, or when that has begun.
			for _, first := range []string{"Agent", "Restore"} {
				if tt.there == "" && first == "Agent" {
					continue
				}
				c := newFake(t)
				begin := func(kube.Object) {}
				if tt.there != "" {
					begin = func(o kube.Object) {
						if o == nil || o.GetName() == "fleet" {
							if err := c.Create(t.Context(), record(tt.there)); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				for _, u := range tt.here {
					if err := c.Create(t.Context(), u.DeepCopy()); err != nil {
						t.Fatal(err)
					}
				}
				to := kube.Client(c)
				if first == "Agent" {
					begin(nil)
				} else {
					to = beside{c, begin}
				}
				for _, want := range []Action{tt.action, Keep} {
					report, err := Restore(t.Context(), to, s, Options{})
					if err != nil {
						t.Fatalf("%s, %s first: %v", tt.reason, first, err)
					}
					if got := report.Steps[1]; got.Action != want {
						t.Errorf("%s, %s first: %s %s, want %s", tt.reason, first, got.Action, got.Object, want)
					}
					cm := &corev1.ConfigMap{}
					if err := c.Get(t.Context(), kube.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}, cm); err != nil || !maps.Equal(cm.Data, tt.want) {
						t.Errorf("%s, %s first: got %v, %v, want %v", tt.reason, first, cm.Data, err, tt.want)
					}
				}
			}
		})
	}
}

// beside has an agent act whenever an object was made.
type beside struct {
	kube.Client
	act func(kube.Object)
}

func (b beside) Create(ctx context.Context, o kube.Object, options ...kube.CreateOption) error {
	err := b.Client.Create(ctx, o, options...)
	if err == nil {
		b.act(o)
	}
	return err
}

// TestStaysSuspended: the agent makes the Child of a Cluster once that is there. A person had
// suspended it, and nothing is pushed when the Cluster goes on.
func TestStaysSuspended(t *testing.T) {
	child := func(suspend string) *unstructured.Unstructured {
		return object(t, "{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: a, namespace: fleet}, spec: {clusterRef: {name: a}"+suspend+"}}")
	}
	a := cluster(t, "a")
	for name, tt := range map[string]struct {
		reason       string
		saved, there *unstructured.Unstructured
		alive, want  bool
		action       Action
	}{
		"Suspended": {"a person keeps commits from it", child(", suspend: true"), child(""), false, true, Update},
		"Not":       {"nobody had", child(""), child(""), false, false, Keep},
		"Here":      {"it is suspended here", child(""), child(", suspend: true"), false, true, Differ},
		"Alive":     {"the Cluster is not restored, so a person may have resumed its Child since", child(", suspend: true"), child(""), true, false, Differ},
		"Other":     {"it is another cluster's", child(", suspend: true"), object(t, "{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: a, namespace: fleet}, spec: {kubeConfig: {secretRef: {name: x}}}}"), false, false, Differ},
	} {
		t.Run(name, func(t *testing.T) {
			c := newFake(t)
			to := beside{c, func(o kube.Object) {
				if o.GetObjectKind().GroupVersionKind().Kind == clusterapi.ClusterKind.Kind {
					if err := c.Create(t.Context(), tt.there.DeepCopy()); err != nil {
						t.Fatal(err)
					}
				}
			}}
			s := snapshotOf(a, []*unstructured.Unstructured{tt.saved})
			if tt.alive {
				if err := to.Create(t.Context(), a[0].DeepCopy()); err != nil {
					t.Fatal(err)
				}
			}
			suspended := func() bool {
				u := child("")
				if err := c.Get(t.Context(), kube.ObjectKeyFromObject(u), u); err != nil {
					t.Fatal(err)
				}
				is, _, _ := unstructured.NestedBool(u.Object, "spec", "suspend")
				return is
			}
			report, err := Restore(t.Context(), resuming{to, func() {
				if suspended() != tt.want {
					t.Errorf("%s: the Cluster goes on, and its Child is suspended: %t", tt.reason, !tt.want)
				}
			}}, s, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if got := report.Steps[len(report.Steps)-1]; got.Action != tt.action || suspended() != tt.want {
				t.Errorf("%s: %s %s, suspended: %t", tt.reason, got.Action, got.Object, suspended())
			}
			// What a person resumes after that stays so.
			if tt.action == Update {
				if err := c.Patch(t.Context(), child(""), kube.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":false}}`))); err != nil {
					t.Fatal(err)
				}
				if _, err := Restore(t.Context(), to, s, Options{}); err != nil || suspended() {
					t.Errorf("%s: restored again it is suspended: %t, %v", tt.reason, suspended(), err)
				}
			}
		})
	}
}

// resuming tells before a Cluster is resumed.
type resuming struct {
	kube.Client
	tell func()
}

func (r resuming) Patch(ctx context.Context, o kube.Object, patch kube.Patch, options ...kube.PatchOption) error {
	if o.GetObjectKind().GroupVersionKind().Kind == clusterapi.ClusterKind.Kind {
		r.tell()
	}
	return r.Client.Patch(ctx, o, patch, options...)
}

// TestRolloutDecided: the agent looks at a Rollout once that is there, and what it wrote before the
// restore came to it is no reason to begin a revision again that was taken back.
func TestRolloutDecided(t *testing.T) {
	rollout := func(status string) *unstructured.Unstructured {
		return object(t, "{apiVersion: cascade.dev/v1alpha1, kind: Rollout, metadata: {name: r, namespace: fleet}, spec: {x: y}"+status+"}")
	}
	const saved = ", status: {uid: former, run: {number: 12, phase: Aborted, began: '2026-01-02T00:00:00Z'}, lastGood: {run: 11}, history: [{number: 11}]}"
	const premature = ", status: {uid: here, run: {number: 1, phase: Progressing, began: '2026-01-03T00:00:00Z'}}"
	// child got a revision in run 2 of the Rollout.
	child := object(t, "{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: c, namespace: fleet}, status: {rollouts: [{name: other, run: 1}, {name: r, run: 2}]}}")
	unproven := func(run int, clusters string) string {
		return fmt.Sprintf(", status: {run: {number: %d, phase: Progressing, wave: 1, unproven: true, began: '2026-01-03T00:00:00Z'}, clusters: {%s}}", run, clusters)
	}
	for name, tt := range map[string]struct {
		reason, saved, there string
		clusters             []*unstructured.Unstructured
		// late: the agent writes it when the restore has made the Rollout.
		late bool
		// want is that of the saved status.
		want   bool
		action Action
	}{
		"Looked":    {"it was looked at, and had no clusters", saved, ", status: {uid: here, conditions: [{type: Ready, reason: NoChildren}], candidate: {revision: c7}}", nil, false, true, Update},
		"Late":      {"the agent writes between the object and its status", saved, ", status: {uid: here, conditions: [{type: Ready, reason: NoChildren}]}", nil, true, true, Create},
		"Premature": {"a run began that no cluster followed, as they are paused", saved, premature, cluster(t, "a"), false, true, Update},
		"Both":      {"and it did at that moment", saved, premature, cluster(t, "a"), true, true, Create},
		"Began":     {"a run began with clusters that are not of this restore", saved, ", status: {run: {number: 1, phase: Progressing, begun: true, began: '2026-01-03T00:00:00Z'}, clusters: {updating: 1}}", nil, false, false, Differ},
		"Passing":   {"and is in a later wave, which waits", saved, ", status: {run: {number: 1, phase: Progressing, wave: 1, began: '2026-01-03T00:00:00Z'}, clusters: {updated: 1}}", nil, false, false, Differ},
		"Nobody":    {"a run began that no cluster was let have, as their kubeconfigs come with the restore", saved, premature, nil, false, true, Update},
		"Reached":   {"nor could any be reached", saved, ", status: {run: {number: 1, phase: Progressing, begun: true, began: '2026-01-03T00:00:00Z'}, clusters: {total: 1, deferred: 1}}", nil, false, true, Update},
		"Unproven":  {"and its first waves are passed for that", saved, unproven(1, "total: 2, deferred: 2"), nil, false, true, Update},
		"Counted":   {"or count as failed, as spec.unreachable says", saved, unproven(1, "total: 2, failed: 2"), nil, false, true, Update},
		"Given":     {"a cluster missed the deadline of the run", saved, unproven(2, "total: 2, failed: 2"), nil, false, false, Differ},
		"Newer":     {"a newer commit took the place of a run that no cluster followed", saved, ", status: {run: {number: 2, phase: Progressing, began: '2026-01-04T00:00:00Z'}, history: [{number: 1, phase: Superseded, began: '2026-01-03T00:00:00Z'}]}", cluster(t, "a"), false, true, Update},
		"NewerOwn":  {"a newer commit took the place of the run of the state", saved, ", status: {run: {number: 13, phase: Progressing, began: '2026-01-04T00:00:00Z'}, history: [{number: 12, phase: Superseded, began: '2026-01-02T00:00:00Z'}]}", cluster(t, "a"), false, false, Differ},
		"Ended":     {"a run ended here otherwise", saved, ", status: {run: {number: 1, phase: Aborted, began: '2026-01-03T00:00:00Z'}, history: [{number: 1, phase: Aborted, began: '2026-01-03T00:00:00Z'}]}", cluster(t, "a"), false, false, Differ},
		"Same":      {"the run of the state went on here", saved, ", status: {run: {number: 12, phase: Reverting, began: '2026-01-02T00:00:00Z'}}", cluster(t, "a"), false, false, Differ},
		"Passed":    {"something passed here", saved, ", status: {lastGood: {run: 1}}", cluster(t, "a"), false, false, Differ},
		"Nothing":   {"nothing was decided before", ", status: {candidate: {revision: c6}}", ", status: {candidate: {revision: c7}}", nil, false, false, Differ},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithObjects(child.DeepCopy()).WithStatusSubresource(rollout("")).WithInterceptorFuncs(giveUID()).Build()
			write := func(o kube.Object) {
				if o.GetName() != "r" {
					return
				}
				u := rollout(tt.there)
				u.SetResourceVersion(o.GetResourceVersion())
				if err := c.Status().Update(t.Context(), u); err != nil {
					t.Fatal(err)
				}
			}
			to := kube.Client(c)
			if tt.late {
				to = beside{c, write}
			} else if err := (beside{c, write}).Create(t.Context(), rollout("")); err != nil {
				t.Fatal(err)
			}
			s := snapshotOf(tt.clusters, []*unstructured.Unstructured{rollout(tt.saved)})
			for _, want := range []Action{tt.action, ""} {
				report, err := Restore(t.Context(), to, s, Options{})
				if err != nil {
					t.Fatalf("%s: %v", tt.reason, err)
				}
				if got := report.Steps[len(report.Steps)-1]; want != "" && got.Action != want || want == "" && (got.Action == Update || got.Action == Create) {
					t.Errorf("%s: %s %s, want %s", tt.reason, got.Action, got.Object, tt.action)
				}
				u := rollout("")
				if err := c.Get(t.Context(), kube.ObjectKeyFromObject(u), u); err != nil {
					t.Fatal(err)
				}
				status := tt.there
				if tt.want {
					status = tt.saved
				}
				if want := rollout(status); fmt.Sprint(u.Object["status"]) != fmt.Sprint(want.Object["status"]) {
					t.Errorf("%s: got %v, want %v", tt.reason, u.Object["status"], want.Object["status"])
				}
			}
		})
	}
}

func TestWasDeleting(t *testing.T) {
	a := cluster(t, "a")
	at := metav1.NewTime(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC))
	a[0].SetDeletionTimestamp(&at)
	c := newFake(t)
	report, err := Restore(t.Context(), c, snapshotOf(a), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if report.Steps[0].Reason != ReasonWasDeleting || len(report.Resumed) != 0 {
		t.Errorf("steps %+v, resumed %v", report.Steps[0], report.Resumed)
	}
	u := a[0].DeepCopy()
	if err := c.Get(t.Context(), kube.ObjectKeyFromObject(u), u); err != nil {
		t.Fatal(err)
	}
	if !clusterapi.IsPausedBySpec(u) || u.GetAnnotations()[v1alpha1.RestoringAnnotation] != "" || u.GetAnnotations()[v1alpha1.RestoredPausedAnnotation] != "" {
		t.Errorf("a Cluster that was being deleted goes on: %v", u.Object)
	}
}

func TestPausedStaysPaused(t *testing.T) {
	a, b := cluster(t, "a"), cluster(t, "b")
	_ = unstructured.SetNestedField(a[0].Object, true, "spec", "paused")
	_ = unstructured.SetNestedField(b[0].Object, false, "spec", "paused")
	c := newFake(t)
	s := snapshotOf(a, b)
	if _, err := Restore(t.Context(), c, s, Options{}); err != nil {
		t.Fatal(err)
	}
	for _, of := range [][]*unstructured.Unstructured{a, b} {
		u := of[0].DeepCopy()
		if err := c.Get(t.Context(), kube.ObjectKeyFromObject(u), u); err != nil {
			t.Fatal(err)
		}
		if !same(of[0], u) {
			t.Errorf("Cluster %s is %v", u.GetName(), u.Object)
		}
	}
}

// TestPauseOfARestore: earlier versions saved the tier while a restore was under way. What that had
// paused goes on when it is restored, and what a person had paused does not.
func TestPauseOfARestore(t *testing.T) {
	a, b := cluster(t, "a"), cluster(t, "b")
	for _, u := range []*unstructured.Unstructured{a[0], b[0]} {
		_ = unstructured.SetNestedField(u.Object, true, "spec", "paused")
		u.SetAnnotations(map[string]string{v1alpha1.RestoringAnnotation: "other"})
	}
	b[0].SetAnnotations(map[string]string{v1alpha1.RestoringAnnotation: "other", v1alpha1.RestoredPausedAnnotation: "true"})
	c := newFake(t)
	report, err := Restore(t.Context(), c, snapshotOf(a, b), Options{})
	if err != nil || !slices.Equal(report.Resumed, []string{"fleet/a"}) {
		t.Errorf("resumed are %q, %v", report.Resumed, err)
	}
	for _, of := range [][]*unstructured.Unstructured{a, b} {
		u := of[0].DeepCopy()
		if err := c.Get(t.Context(), kube.ObjectKeyFromObject(u), u); err != nil {
			t.Fatal(err)
		}
		if clusterapi.IsPausedBySpec(u) != (u.GetName() == "b") || len(u.GetAnnotations()) != 0 {
			t.Errorf("Cluster %s is %v", u.GetName(), u.Object)
		}
	}
}

// TestHalfRestored: half of a tier is not taken for all of it, whoever asks.
func TestHalfRestored(t *testing.T) {
	s := snapshotOf(cluster(t, "a"), cluster(t, "b"))
	if err := whole(s); err != nil {
		t.Error(err)
	}
	s.Objects[3].SetAnnotations(map[string]string{v1alpha1.RestoringAnnotation: "id"})
	if err := whole(s); err != nil {
		t.Errorf("a person resumed it: %v", err)
	}
	_ = unstructured.SetNestedField(s.Objects[3].Object, true, "spec", "paused")
	if err := whole(s); !errors.Is(err, ErrRestoring) || !strings.Contains(err.Error(), "Cluster fleet/b") || !strings.Contains(err.Error(), v1alpha1.RestoringAnnotation) {
		t.Errorf("got %v", err)
	}
}

func newFake(t *testing.T) kube.Client {
	t.Helper()
	return fake.NewClientBuilder().WithInterceptorFuncs(giveUID()).Build()
}

// giveUID gives each object a UID, as an API server does.
func giveUID() interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c kube.WithWatch, o kube.Object, options ...kube.CreateOption) error {
			o.SetUID(types.UID("here/" + o.GetObjectKind().GroupVersionKind().Kind + "/" + o.GetNamespace() + "/" + o.GetName()))
			return c.Create(ctx, o, options...)
		},
	}
}

// TestVerifyNeedsEmpty: Clusters that are restored go on, so a state is verified where nobody
// works on them.
func TestVerifyNeedsEmpty(t *testing.T) {
	kinds := []string{"clusters.cluster.x-k8s.io", "localclusters.infrastructure.cluster.x-k8s.io"}
	define := func(name, kind string) *unstructured.Unstructured {
		_, group, _ := strings.Cut(name, ".")
		return object(t, "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: "+name+"}, spec: {group: "+group+", names: {kind: "+kind+"}}, status: {conditions: [{type: Established, status: 'True'}]}}")
	}
	for name, tt := range map[string]struct {
		reason, there string
		want          error
	}{
		"Empty":      {"nothing is there but what each API server makes", "{apiVersion: v1, kind: Namespace, metadata: {name: default}}", nil},
		"Definition": {"Cluster API is there, and so may be its controllers", "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: clusters.cluster.x-k8s.io}}", ErrNotEmpty},
		"Node":       {"something can run there", "{apiVersion: v1, kind: Node, metadata: {name: one}}", ErrNotEmpty},
		"Pod":        {"something runs there, on nodes that nobody lists", "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: capi-system}}", ErrNotEmpty},
	} {
		t.Run(name, func(t *testing.T) {
			tier, empty := newFake(t), newFake(t)
			for i, kind := range []string{"Cluster", "LocalCluster"} {
				if err := tier.Create(t.Context(), define(kinds[i], kind)); err != nil {
					t.Fatal(err)
				}
			}
			for _, u := range []*unstructured.Unstructured{object(t, "{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}"), object(t, tt.there)} {
				if err := empty.Create(t.Context(), u); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Verify(t.Context(), tier, establishing{empty}, snapshotOf(cluster(t, "a")), Options{})
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: got %v", tt.reason, err)
			}
			clusters := &unstructured.UnstructuredList{}
			clusters.SetGroupVersionKind(clusterapi.ClusterKind.WithVersion("v1beta2"))
			if err := empty.List(t.Context(), clusters); err != nil {
				t.Fatal(err)
			}
			if made := len(clusters.Items) > 0; made != (tt.want == nil) {
				t.Errorf("%s: a Cluster was made there: %t", tt.reason, made)
			}
		})
	}
}

// establishing serves what is defined at once.
type establishing struct{ kube.Client }

func (e establishing) Create(ctx context.Context, o kube.Object, options ...kube.CreateOption) error {
	u := o.(*unstructured.Unstructured)
	if u.GetKind() == definitions.Kind {
		_ = unstructured.SetNestedSlice(u.Object, []any{map[string]any{"type": "Established", "status": "True"}}, "status", "conditions")
	}
	return e.Client.Create(ctx, o, options...)
}

// TestShapes restores each life of a cluster at each of its stages.
func TestShapes(t *testing.T) {
	lives, err := shapes.Lives()
	if err != nil {
		t.Fatal(err)
	}
	for _, life := range lives {
		for _, stage := range life.Stages {
			for _, u := range stage.Objects {
				u.SetUID(types.UID(u.GetKind() + "/" + u.GetNamespace() + "/" + u.GetName()))
				delete(u.Object, "status")
			}
			// Such as accounts are there as well, and not saved.
			s := snapshotOf(slices.DeleteFunc(slices.Clone(stage.Objects), func(u *unstructured.Unstructured) bool { return !isSaved(u.GroupVersionKind().GroupKind()) }))
			c := newFake(t)
			report, err := Restore(t.Context(), c, s, Options{})
			if err != nil {
				t.Fatalf("%s, %s: %v", life.Name, stage.Name, err)
			}
			if n := report.Count(Create); n != len(s.Objects) {
				t.Errorf("%s, %s: %d of %d objects are made", life.Name, stage.Name, n, len(s.Objects))
			}
			again, err := Restore(t.Context(), c, s, Options{})
			if err != nil {
				t.Fatalf("%s, %s, again: %v", life.Name, stage.Name, err)
			}
			if n := again.Count(Create) + again.Count(Update); n != 0 || len(again.Resumed) != 0 {
				t.Errorf("%s, %s: the second restore makes %d, and resumes %v", life.Name, stage.Name, n, again.Resumed)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	c := newFake(t)
	if err := c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}, Data: map[string]string{"state": "settled"}}); err != nil {
		t.Fatal(err)
	}
	_, err := Restore(t.Context(), c, snapshotOf(cluster(t, "a")), Options{})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "Cluster/fleet/a: TierIsSettled") {
		t.Errorf("got %v", err)
	}
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("cluster.x-k8s.io/v1beta2")
	list.SetKind("ClusterList")
	if err := c.List(t.Context(), list); err == nil && len(list.Items) != 0 {
		t.Error("something was made all the same")
	}
}

func TestCompare(t *testing.T) {
	a, b := cluster(t, "a"), cluster(t, "b")
	left, right := snapshotOf(a, b, records(t, "x")), snapshotOf(a, records(t, "y"))
	for i := range right.Objects {
		u := &right.Objects[i]
		u.SetUID("other/" + u.GetUID())
		owners := u.GetOwnerReferences()
		for j := range owners {
			owners[j].UID = "other/" + owners[j].UID
		}
		u.SetOwnerReferences(owners)
		if u.GetKind() == "Secret" {
			u.Object["data"] = map[string]any{"x": "eQ=="}
		}
	}
	right.Objects = append(right.Objects, *object(t, "{apiVersion: v1, kind: Secret, metadata: {name: more, namespace: fleet}}"))
	got, err := Compare(left, right)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"Cluster/fleet/b is missing", "LocalCluster/fleet/b is missing", "Secret/fleet/a-ca differs", "Secret/fleet/b-ca is missing", "Secret/fleet/more is too many"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDataOf(t *testing.T) {
	u := object(t, `{kind: X, metadata: {name: x, namespace: n}, spec: {
  secretRef: {name: one}, certSecretRef: {name: two}, credentials: [{name: c, secretRef: {name: three}}],
  postBuild: {substituteFrom: [{kind: ConfigMap, name: four}, {kind: Secret, name: five}]}, sourceRef: {kind: GitRepository, name: six}, kubeConfig: {secretRef: {name: "${var}"}}}}`)
	got := map[string]bool{}
	for _, k := range dataOf(u.Object["spec"], "n") {
		got[k.String()] = true
	}
	want := []string{"ConfigMap/n/four", "Secret/n/${var}", "Secret/n/five", "Secret/n/one", "Secret/n/three", "Secret/n/two"}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

// TestLoginsOfCredentials: what a tier logs in with for its own credentials is a person's, and may have been shown once.
func TestLoginsOfCredentials(t *testing.T) {
	c, o := newFake(t), TakeOptions{}
	o.defaults()
	for _, text := range []string{
		`{apiVersion: cascade.dev/v1alpha1, kind: Credential, metadata: {name: keys, namespace: capa-system}, spec: {target: {name: issued}, vault: {address: "https://vault", request: {path: aws/creds/capa},
  caSecretRef: {name: ca}, auth: {appRole: {mount: approle, roleID: r, secretRef: {name: login}}}}}}`,
		"{apiVersion: v1, kind: Secret, metadata: {name: login, namespace: capa-system}}", "{apiVersion: v1, kind: Secret, metadata: {name: ca, namespace: capa-system}}",
		"{apiVersion: v1, kind: Secret, metadata: {name: issued, namespace: capa-system}}",
	} {
		if err := c.Create(t.Context(), object(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	taken, _, err := o.records(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, u := range taken {
		names = append(names, keyOf(u).String())
	}
	slices.Sort(names)
	if want := []string{"Secret/capa-system/ca", "Secret/capa-system/login"}; !slices.Equal(names, want) {
		t.Errorf("saved are %q, want %q", names, want)
	}
}

// TestNamesWithVariables: a Layer names a Secret for each cluster, which a person put there.
func TestNamesWithVariables(t *testing.T) {
	c, o := newFake(t), TakeOptions{}
	o.defaults()
	for _, text := range []string{
		`{apiVersion: cascade.dev/v1alpha1, kind: Layer, metadata: {name: l, namespace: fleet}, spec: {credentials: [{name: git, secretRef: {name: "git-${label_environment}"}}, {name: x, secretRef: {name: "${any}"}}],
  postBuild: {substituteFrom: [{kind: ConfigMap, name: "${cluster_name:=all}.values"}]}}}`,
		`{apiVersion: cascade.dev/v1alpha1, kind: Rollout, metadata: {name: r, namespace: fleet}, spec: {publish: {secretRef: {name: proof}}}}`,
		`{apiVersion: kustomize.toolkit.fluxcd.io/v1, kind: Kustomization, metadata: {name: k, namespace: fleet}, spec: {decryption: {secretRef: {name: "o${ther}"}}}}`,
		"{apiVersion: v1, kind: Secret, metadata: {name: git-production, namespace: fleet}}", "{apiVersion: v1, kind: Secret, metadata: {name: git-staging, namespace: fleet}}",
		"{apiVersion: v1, kind: Secret, metadata: {name: other, namespace: fleet}}", "{apiVersion: v1, kind: Secret, metadata: {name: my-git-production, namespace: fleet}}",
		"{apiVersion: v1, kind: Secret, metadata: {name: git-production, namespace: elsewhere}}", "{apiVersion: v1, kind: Secret, metadata: {name: proof, namespace: fleet}}",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: a.values, namespace: fleet}}", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a-values, namespace: fleet}}",
	} {
		if err := c.Create(t.Context(), object(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	taken, _, err := o.records(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, u := range taken {
		names = append(names, keyOf(u).String())
	}
	slices.Sort(names)
	if want := []string{"ConfigMap/fleet/a.values", "Rollout/fleet/r", "Secret/fleet/git-production", "Secret/fleet/git-staging", "Secret/fleet/proof"}; !slices.Equal(names, want) {
		t.Errorf("saved are %q, want %q", names, want)
	}
	if len(o.vague) != 1 || !strings.Contains(o.vague[0], "Layer/fleet/l refers to Secret/fleet/${any}") {
		t.Errorf("what could be any is told as %q", o.vague)
	}
}
