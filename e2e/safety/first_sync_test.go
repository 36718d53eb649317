package safety

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestFirstSync takes a tier through its life: nothing on record, one Cluster that
// is approved, one that is restored piece by piece, settled, one that is moved away,
// and the record lost. The definitions of Cluster API are there, its controllers are
// not: what counts is which objects are created. The parts build on each other.
func TestFirstSync(t *testing.T) {
	scenario.Alongside(t)
	f := startFirstSync(t)
	for _, part := range []struct {
		name string
		run  func(*firstSync, *testing.T)
	}{
		{"NothingOnRecordHoldsAll", (*firstSync).nothingOnRecord},
		{"HeldTierPrunesNothing", (*firstSync).prunesNothing},
		{"ApprovalSurvivesTheAgent", (*firstSync).approval},
		{"RestoredPieceByPiece", (*firstSync).restored},
		{"SettledTierAsksNobody", (*firstSync).settled},
		{"MovedClusterIsNotBuiltAgain", (*firstSync).moved},
		{"MovedClusterOfARelease", (*firstSync).movedRelease},
		{"DeletedRecordComesBack", (*firstSync).recordDeleted},
		{"LostRecordOfAnOldTierHoldsNothing", (*firstSync).recordLost},
		{"PersonsWordOutlivesTheFlag", (*firstSync).insisted},
		{"TargetsOwnRecordCounts", (*firstSync).otherTier},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(f, t) }) {
			return
		}
	}
}

type firstSync struct {
	*scenario.Tier
	// whole is the test that the parts are of: what it starts outlives them.
	whole *testing.T
	tier  *stage.Tier
	c     client.Client
	kill  func()
}

func startFirstSync(t *testing.T) *firstSync {
	t.Helper()
	f := &firstSync{whole: t, Tier: scenario.StartTier(t)}
	var err error
	if f.tier, err = f.Cluster(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	if f.c, err = f.tier.Client(); err != nil {
		t.Fatal(err)
	}
	scenario.InstallKinds(t, f.c, f.Stage)
	scenario.InstallClusterAPI(t, f.c)
	if err := f.Git.Create(t.Context(), "fleet"); err != nil {
		t.Fatal(err)
	}
	f.Put(t, "fleet", map[string]string{
		"fleet/a.yaml": scenario.LocalCluster("a"), "fleet/b.yaml": scenario.LocalCluster("b"),
		"fleet/keep.yaml": scenario.ConfigMap("keep", "1"), "fleet/drop.yaml": scenario.ConfigMap("drop", "1"),
	})
	for _, text := range []string{
		fmt.Sprintf("apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {name: fleet, namespace: cascade-system}\n"+
			"spec: {url: %q, ref: {branch: main}, secretRef: {name: git-auth}, interval: 1s}\n", f.Git.HTTPURL("fleet")),
		scenario.Kustomization("fleet", "fleet", "./fleet", ""),
	} {
		if err := stage.Apply(t.Context(), f.c, text); err != nil {
			t.Fatal(err)
		}
	}
	f.start()
	return f
}

// start starts the agent, as it is installed if nobody says otherwise.
func (f *firstSync) start(args ...string) {
	f.whole.Helper()
	f.kill = scenario.StartAgent(f.whole, f.Stage, f.tier, "first",
		append([]string{"--controllers=GitRepository,HelmRepository,HelmChart,Kustomization,HelmRelease"}, args...)...)
}

// held waits until the Kustomization holds Clusters back, and says these texts.
func (f *firstSync) held(t *testing.T, texts ...string) string {
	t.Helper()
	message := ""
	scenario.Eventually(t, scenario.Converge, "the Kustomization says "+strings.Join(texts, ", "), func(ctx context.Context) error {
		k := &kustomizev1.Kustomization{}
		if err := f.c.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: "fleet"}, k); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
		if ready == nil || ready.Reason != v1alpha1.ReasonCreateHeld {
			return fmt.Errorf("conditions are %s", scenario.Summary(k.Status.Conditions))
		}
		message = ready.Message
		for _, text := range texts {
			if !strings.Contains(message, text) {
				return fmt.Errorf("it says %s", message)
			}
		}
		return nil
	})
	return message
}

func (f *firstSync) ready(t *testing.T) *kustomizev1.Kustomization {
	t.Helper()
	k := &kustomizev1.Kustomization{}
	scenario.Eventually(t, scenario.Converge, "the Kustomization is ready", func(ctx context.Context) error {
		if err := f.c.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: "fleet"}, k); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(k.Status.Conditions, fluxmeta.ReadyCondition) || meta.FindStatusCondition(k.Status.Conditions, v1alpha1.CreateHeldCondition) != nil {
			return fmt.Errorf("conditions are %s", scenario.Summary(k.Status.Conditions))
		}
		return nil
	})
	return k
}

// look asks the agent to look now: nothing else tells it of what a Cluster refers to.
func (f *firstSync) look(t *testing.T) {
	t.Helper()
	k := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "fleet"}}
	f.patch(t, k, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, t.Name()))
}

func (f *firstSync) patch(t *testing.T, o client.Object, patch string) {
	t.Helper()
	if err := f.c.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

// parts returns the UIDs of the objects of a cluster that are there, by kind.
func (f *firstSync) parts(ctx context.Context, name string) (map[string]string, error) {
	return scenario.ClusterParts(ctx, f.c, name)
}

func (f *firstSync) has(t *testing.T, name string, want int) map[string]string {
	t.Helper()
	there, err := f.parts(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if len(there) != want {
		t.Fatalf("of cluster %s there are %v", name, there)
	}
	return there
}

// created waits until all of a cluster is there.
func (f *firstSync) created(t *testing.T, name string) {
	t.Helper()
	scenario.ClusterCreated(t, f.c, name)
}

func (f *firstSync) cascade(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return f.Run(t.Context(), "cascade", append(args, "--kubeconfig", f.tier.Kubeconfig())...)
}

func (f *firstSync) record(ctx context.Context) (map[string]string, error) {
	cm := &corev1.ConfigMap{}
	err := f.c.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: v1alpha1.FirstSyncConfigMap}, cm)
	return cm.Data, err
}

// recorded waits until the record says something.
func (f *firstSync) recorded(t *testing.T, key, value string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("the record says %s=%s", key, value), func(ctx context.Context) error {
		data, err := f.record(ctx)
		if err != nil {
			return err
		}
		if data[key] != value {
			return fmt.Errorf("it is %v", data)
		}
		return nil
	})
}

func (f *firstSync) configMap(ctx context.Context, name string) error {
	return f.c.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, &corev1.ConfigMap{})
}

func (f *firstSync) nothingOnRecord(t *testing.T) {
	f.held(t, "Cluster/default/a, Cluster/default/b", "nobody has said whether it is new", "cascade approve create default/a default/b")
	f.has(t, "a", 0)
	f.has(t, "b", 0)
	if err := f.configMap(t.Context(), "keep"); err != nil {
		t.Errorf("what has nothing to do with Clusters was not applied: %v", err)
	}
	k := &kustomizev1.Kustomization{}
	if err := f.c.Get(t.Context(), client.ObjectKey{Namespace: stage.Namespace, Name: "fleet"}, k); err != nil {
		t.Fatal(err)
	}
	if got := scenario.Inventory(k); len(got) != 2 {
		t.Errorf("the inventory is %v", got)
	}
	f.recorded(t, "state", v1alpha1.FirstSyncOpen)
	out, err := f.cascade(t, "approve", "create")
	if err == nil || !strings.Contains(out, "Kustomization/cascade-system/fleet: not created: Cluster/default/a") {
		t.Errorf("approve create: %v\n%s", err, out)
	}
	if _, err := f.cascade(t, "approve", "create", "default/z"); err == nil || !strings.Contains(err.Error(), "it is not held") {
		t.Errorf("a Cluster was approved that nobody declared: %v", err)
	}
	if _, err := f.cascade(t, "approve", "first-sync"); err == nil || !strings.Contains(err.Error(), "cannot end the first sync") {
		t.Errorf("the first sync was ended while Clusters are held: %v", err)
	}
}

func (f *firstSync) prunesNothing(t *testing.T) {
	f.Put(t, "fleet", map[string]string{"fleet/drop.yaml": "", "fleet/more.yaml": scenario.ConfigMap("more", "1")})
	scenario.Eventually(t, scenario.Converge, "the commit is applied", func(ctx context.Context) error { return f.configMap(ctx, "more") })
	f.held(t, "default/a")
	if err := f.configMap(t.Context(), "drop"); err != nil {
		t.Errorf("it was pruned: %v", err)
	}
}

func (f *firstSync) approval(t *testing.T) {
	f.kill()
	if _, err := f.cascade(t, "approve", "create", "default/a"); err != nil {
		t.Fatal(err)
	}
	f.recorded(t, "default_a", "approved")
	f.start()
	f.created(t, "a")
	message := f.held(t, "cascade approve create default/b")
	if strings.Contains(message, "default/a") {
		t.Errorf("it still asks for a: %s", message)
	}
	f.has(t, "b", 0)
	f.recorded(t, "default_a", "adopted")
}

func (f *firstSync) restored(t *testing.T) {
	saved, err := ssautil.ReadObjects(strings.NewReader(scenario.LocalCluster("b")))
	if err != nil {
		t.Fatal(err)
	}
	// As clusterctl does: the Cluster first, paused, and what belongs to it later.
	cluster, plane := saved[0], saved[2]
	for _, set := range []struct {
		in     *unstructured.Unstructured
		value  any
		fields []string
	}{{cluster, true, []string{"spec", "paused"}}, {plane, "saved", []string{"spec", "id"}}} {
		if err := unstructured.SetNestedField(set.in.Object, set.value, set.fields...); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.c.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	f.held(t, "not touched: Cluster/default/b", "being restored")
	f.has(t, "b", 1)
	// Whoever does it in another order is not punished for it.
	f.patch(t, cluster, `{"spec":{"paused":null}}`)
	f.held(t, "it lacks LocalCluster/default/b, LocalControlPlane/default/b")
	f.has(t, "b", 1)
	for _, u := range saved[1:] {
		if err := f.c.Create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	before := f.has(t, "b", 3)
	f.look(t)
	k := f.ready(t)
	if got := scenario.Inventory(k); len(got) != 8 {
		t.Errorf("the inventory is %v", got)
	}
	if now := f.has(t, "b", 3); !maps.Equal(now, before) {
		t.Errorf("objects of b are %v, they were %v", now, before)
	}
	if err := f.c.Get(t.Context(), client.ObjectKeyFromObject(plane), plane); err != nil {
		t.Fatal(err)
	}
	if id, _, _ := unstructured.NestedString(plane.Object, "spec", "id"); id != "saved" || plane.GetLabels()["kustomize.toolkit.fluxcd.io/name"] != "fleet" {
		t.Errorf("the control plane has id %q and labels %v", id, plane.GetLabels())
	}
	if err := f.configMap(t.Context(), "drop"); !apierrors.IsNotFound(err) {
		t.Errorf("what was dropped is not pruned: %v", err)
	}
}

func (f *firstSync) settled(t *testing.T) {
	f.recorded(t, "state", v1alpha1.FirstSyncSettled)
	f.Put(t, "fleet", map[string]string{"fleet/c.yaml": scenario.LocalCluster("c")})
	f.created(t, "c")
	f.ready(t)
	data, err := f.record(t.Context())
	if err != nil || len(data) != 3 {
		t.Errorf("the record is %v, %v", data, err)
	}
}

// leave does to a Cluster what clusterctl move does, after which it runs from
// another management cluster.
func (f *firstSync) leave(t *testing.T, name string) {
	t.Helper()
	kinds := scenario.ClusterKinds()
	cluster := stage.Object(kinds[0][0], kinds[0][1])
	cluster.SetNamespace("default")
	cluster.SetName(name)
	f.patch(t, cluster, `{"spec":{"paused":true},"metadata":{"finalizers":["test/finalizer"]}}`)
	f.recorded(t, "default_"+name, "paused")
	f.patch(t, cluster, `{"metadata":{"annotations":{"clusterctl.cluster.x-k8s.io/delete-for-move":""}}}`)
	for i := len(kinds) - 1; i >= 0; i-- {
		u := stage.Object(kinds[i][0], kinds[i][1])
		u.SetNamespace("default")
		u.SetName(name)
		if err := f.c.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	f.patch(t, cluster, `{"metadata":{"finalizers":null}}`)
	scenario.Eventually(t, scenario.Converge, "it is gone", func(ctx context.Context) error {
		if err := f.c.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	f.recorded(t, "default_"+name, "moving")
}

func (f *firstSync) moved(t *testing.T) {
	f.leave(t, "c")
	f.held(t, "not created again: Cluster/default/c", "moved to another management cluster", "cascade approve create default/c")
	// Neither a commit nor a restart brings it back.
	f.Put(t, "fleet", map[string]string{"fleet/keep.yaml": scenario.ConfigMap("keep", "2")})
	scenario.Eventually(t, scenario.Converge, "the commit is applied", func(ctx context.Context) error {
		cm := &corev1.ConfigMap{}
		if err := f.c.Get(ctx, client.ObjectKey{Namespace: "default", Name: "keep"}, cm); err != nil {
			return err
		}
		if cm.Data["value"] != "2" {
			return errors.New("it has the value of before")
		}
		return nil
	})
	f.kill()
	f.start()
	f.Put(t, "fleet", map[string]string{"fleet/last.yaml": scenario.ConfigMap("last", "1")})
	scenario.Eventually(t, scenario.Converge, "the commit after the restart is applied", func(ctx context.Context) error { return f.configMap(ctx, "last") })
	f.held(t, "Cluster/default/c")
	if there, err := f.parts(t.Context(), "c"); err != nil || there["Cluster"] != "" {
		t.Fatalf("of c there are %v, %v", there, err)
	}
	if _, err := f.cascade(t, "approve", "create", "--all"); err != nil {
		t.Fatal(err)
	}
	f.created(t, "c")
	f.ready(t)
	f.recorded(t, "default_c", "")
}

// movedRelease does the same to a Cluster of a HelmRelease, which is not upgraded
// then, nor is its drift corrected.
func (f *firstSync) movedRelease(t *testing.T) {
	f.Put(t, "fleet", map[string]string{
		"charts/r/Chart.yaml":             "apiVersion: v2\nname: r\nversion: 0.1.0\n",
		"charts/r/values.yaml":            "value: one\n",
		"charts/r/templates/cluster.yaml": scenario.LocalCluster("r"),
		"charts/r/templates/config.yaml":  strings.Replace(scenario.ConfigMap("r", "1"), "\"1\"", "{{ .Values.value }}", 1),
	})
	hr := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "r"}}
	err := stage.Apply(t.Context(), f.c, `apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: r, namespace: default}
spec:
  interval: 10m
  chart: {spec: {chart: ./charts/r, sourceRef: {kind: GitRepository, name: fleet, namespace: cascade-system}, interval: 1s}}
  install: {disableWait: true}
  upgrade: {disableWait: true}
  driftDetection: {mode: enabled}
`)
	if err != nil {
		t.Fatal(err)
	}
	says := func(reason, text string) {
		t.Helper()
		scenario.Eventually(t, scenario.Converge, "the release says "+reason, func(ctx context.Context) error {
			if err := f.c.Get(ctx, client.ObjectKeyFromObject(hr), hr); err != nil {
				return err
			}
			ready := meta.FindStatusCondition(hr.Status.Conditions, fluxmeta.ReadyCondition)
			if ready == nil || ready.Reason != reason || !strings.Contains(ready.Message, text) {
				return fmt.Errorf("conditions are %s", scenario.Summary(hr.Status.Conditions))
			}
			return nil
		})
	}
	has := func(value string, revisions int) {
		t.Helper()
		cm := &corev1.ConfigMap{}
		if err := f.c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "r"}, cm); err != nil || cm.Data["value"] != value {
			t.Errorf("its ConfigMap has %v, %v", cm.Data, err)
		}
		if latest := hr.Status.History.Latest(); latest == nil || latest.Version != revisions {
			t.Errorf("its history begins with %+v", latest)
		}
		if there, err := f.parts(t.Context(), "r"); err != nil || (there["Cluster"] != "") != (hr.Status.Conditions != nil && meta.IsStatusConditionTrue(hr.Status.Conditions, fluxmeta.ReadyCondition)) {
			t.Errorf("of its cluster there are %v, %v", there, err)
		}
	}
	says(helmv2.InstallSucceededReason, "")
	f.created(t, "r")
	has("one", 1)

	f.leave(t, "r")
	f.patch(t, hr, `{"spec":{"values":{"value":"two"}}}`)
	says(v1alpha1.ReasonCreateHeld, "not created again: Cluster/default/r")
	has("one", 1)
	if hr.Status.UpgradeFailures != 0 || hr.Status.ObservedGeneration == hr.Generation {
		t.Errorf("what is held counts as a failure, or as seen: %+v", hr.Status)
	}
	if _, err := f.cascade(t, "approve", "create", "default/r"); err != nil {
		t.Fatal(err)
	}
	says(helmv2.UpgradeSucceededReason, "")
	f.created(t, "r")
	has("two", 2)

	f.leave(t, "r")
	f.patch(t, hr, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, "drift"))
	says(v1alpha1.ReasonCreateHeld, "not created again: Cluster/default/r")
	has("two", 2)
	if _, err := f.cascade(t, "approve", "create", "--all"); err != nil {
		t.Fatal(err)
	}
	f.created(t, "r")
	says(helmv2.UpgradeSucceededReason, "")
}

// recordDeleted: what the agent knows of a Cluster that was moved away survives a person who
// deletes the record.
func (f *firstSync) recordDeleted(t *testing.T) {
	f.leave(t, "c")
	f.held(t, "not created again: Cluster/default/c")
	f.deleteRecord(t)
	f.recorded(t, "default_c", "moving")
	f.recorded(t, "state", v1alpha1.FirstSyncSettled)
	f.held(t, "not created again: Cluster/default/c")
	f.has(t, "c", 0)
	if _, err := f.cascade(t, "approve", "create", "--all"); err != nil {
		t.Fatal(err)
	}
	f.created(t, "c")
	f.ready(t)
}

func (f *firstSync) deleteRecord(t *testing.T) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: v1alpha1.FirstSyncConfigMap}}
	if err := f.c.Delete(t.Context(), cm); err != nil {
		t.Fatal(err)
	}
}

// recordLost deletes the record while no agent runs: the tier settles by itself, because
// everything is there.
func (f *firstSync) recordLost(t *testing.T) {
	f.kill()
	f.deleteRecord(t)
	f.start("--first-sync=create")
	f.recorded(t, "state", v1alpha1.FirstSyncOpen)
	f.recorded(t, "state", v1alpha1.FirstSyncSettled)
	f.Put(t, "fleet", map[string]string{"fleet/d.yaml": scenario.LocalCluster("d")})
	f.created(t, "d")
	f.ready(t)
}

// insisted does what docs/rebuild.md says of a backup of etcd: the agent comes back with
// the argument that it was installed with, everything looks ready, and a Cluster was
// declared since.
func (f *firstSync) insisted(t *testing.T) {
	f.kill()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: v1alpha1.FirstSyncConfigMap}}
	f.patch(t, cm, `{"data":{"state":"adopt"}}`)
	f.start("--first-sync=create")
	f.Put(t, "fleet", map[string]string{"fleet/e.yaml": scenario.LocalCluster("e")})
	f.held(t, "Cluster/default/e", "nobody has said whether it is new")
	f.has(t, "e", 0)
	if _, err := f.cascade(t, "approve", "create", "default/e"); err != nil {
		t.Fatal(err)
	}
	f.created(t, "e")
	f.ready(t)
	// Nor does it end because everything is there.
	if data, err := f.record(t.Context()); err != nil || data["state"] != v1alpha1.FirstSyncAdopt {
		t.Errorf("the record is %v, %v", data, err)
	}
	if _, err := f.cascade(t, "approve", "first-sync"); err != nil {
		t.Fatal(err)
	}
	f.recorded(t, "state", v1alpha1.FirstSyncSettled)
}

// otherTier applies to another tier by spec.kubeConfig: what counts is what that one
// has on record, and a person decides there.
func (f *firstSync) otherTier(t *testing.T) {
	other, err := f.Cluster(t.Context(), "first-other")
	if err != nil {
		t.Fatal(err)
	}
	c, err := other.Client()
	if err != nil {
		t.Fatal(err)
	}
	scenario.InstallClusterAPI(t, c)
	if err := stage.Apply(t.Context(), c, "apiVersion: v1\nkind: Namespace\nmetadata: {name: cascade-system}\n---\n"+
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cascade-first-sync, namespace: cascade-system}\ndata: {state: adopt}\n"); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(other.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{stage.Namespace, "default"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "way"}, Data: map[string][]byte{"value": kubeconfig}}
		if err := f.c.Create(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	f.Put(t, "fleet", map[string]string{"other/z.yaml": scenario.LocalCluster("z"), "other/note.yaml": scenario.ConfigMap("other", "1")})
	if err := stage.Apply(t.Context(), f.c, scenario.Kustomization("other", "fleet", "./other", "  kubeConfig: {secretRef: {name: way}}\n")); err != nil {
		t.Fatal(err)
	}
	if err := stage.Apply(t.Context(), f.c, `apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: other, namespace: default}
spec:
  interval: 10m
  kubeConfig: {secretRef: {name: way}}
  chart: {spec: {chart: ./charts/r, sourceRef: {kind: GitRepository, name: fleet, namespace: cascade-system}, interval: 1s}}
  install: {disableWait: true}
`); err != nil {
		t.Fatal(err)
	}
	k, hr := &kustomizev1.Kustomization{}, &helmv2.HelmRelease{}
	is := func(o client.Object, namespace string, conditions *[]metav1.Condition, status metav1.ConditionStatus, text string) {
		t.Helper()
		scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%T other is Ready=%s and says %s", o, status, text), func(ctx context.Context) error {
			if err := f.c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "other"}, o); err != nil {
				return err
			}
			ready := meta.FindStatusCondition(*conditions, fluxmeta.ReadyCondition)
			if ready == nil || ready.Status != status || !strings.Contains(ready.Message, text) {
				return fmt.Errorf("conditions are %s", scenario.Summary(*conditions))
			}
			return nil
		})
	}
	is(k, stage.Namespace, &k.Status.Conditions, metav1.ConditionFalse, "cascade approve create --pushed default/z")
	is(hr, "default", &hr.Status.Conditions, metav1.ConditionFalse, "cascade approve create --pushed default/r")
	for _, name := range []string{"z", "r"} {
		if there, err := scenario.ClusterParts(t.Context(), c, name); err != nil || len(there) > 0 {
			t.Errorf("of cluster %s there are %v, %v", name, there, err)
		}
	}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "other"}, &corev1.ConfigMap{}); err != nil {
		t.Errorf("what has nothing to do with Clusters was not applied: %v", err)
	}
	if data, err := f.record(t.Context()); err != nil || data["default_z"] != "" {
		t.Errorf("the record of the own tier is %v, %v", data, err)
	}
	// A person decides where the Clusters are, or are not.
	if _, err := f.cascade(t, "approve", "create", "default/z"); err == nil || !strings.Contains(err.Error(), "it is not held") {
		t.Errorf("it was approved in the tier that pushes: %v", err)
	}
	if out, err := f.Run(t.Context(), "cascade", "approve", "create", "--pushed", "default/z", "default/r", "--kubeconfig", other.Kubeconfig()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, o := range []client.Object{k, hr} {
		f.patch(t, o, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, "approved"))
	}
	scenario.ClusterCreated(t, c, "z")
	scenario.ClusterCreated(t, c, "r")
	is(k, stage.Namespace, &k.Status.Conditions, metav1.ConditionTrue, "")
	is(hr, "default", &hr.Status.Conditions, metav1.ConditionTrue, "")
}
