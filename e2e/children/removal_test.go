package children

import (
	"context"
	"fmt"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/fleetsim"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// tenants are the simulated clusters of a fleet, which have a layer of deletionPolicy
// Delete from Git.
type tenants struct {
	*fleet
	names    []string
	clusters []*fleetsim.Cluster
	clients  []client.Client
}

// notes are the objects of the layer in each cluster.
var notes = []string{"a", "b", "c"}

func layerInGit(namespace, tier string) string {
	return fmt.Sprintf(`apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: app, namespace: %s}
spec:
  clusterSelector: {matchLabels: {tier: %s}}
  sourceRef: {kind: GitRepository, name: fleet}
  path: ./app
  interval: 1h
  deletionPolicy: Delete
`, namespace, tier)
}

// startTenants starts so many clusters and declares them.
func startTenants(t *testing.T, h *hub, n int) *tenants {
	t.Helper()
	files := map[string]string{"hub/app.yaml": layerInGit("tenants", "tenant"), "hub/note.yaml": strings.ReplaceAll(noteNamed("stays", "by", "git"), "default", "tenants")}
	for _, name := range notes {
		files["app/"+name+".yaml"] = noteNamed(name, "by", "git")
	}
	f := &tenants{fleet: h.fleet(t, "tenants", files)}
	sim, err := fleetsim.Start(fleetsim.Options{Record: true, Complain: func(err error) { t.Errorf("inside of the simulation: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Errorf("cannot close the simulation: %v", err)
		}
	})
	for i := range n {
		name := fmt.Sprintf("t%02d", i)
		cluster, err := sim.Add(name)
		if err != nil {
			t.Fatal(err)
		}
		kubeconfig, err := cluster.Kubeconfig(fleetsim.Token, 1<<50)
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		cl, err := client.New(config, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		f.names, f.clusters, f.clients = append(f.names, name), append(f.clusters, cluster), append(f.clients, cl)
		f.declare(t, name)
		f.label(t, name, "tenant")
		f.report(t, name, initialized)
		f.handOver(t, name, kubeconfig)
	}
	f.define(t, `{apiVersion: kustomize.toolkit.fluxcd.io/v1, kind: Kustomization, metadata: {name: hub}, spec: {sourceRef: {kind: GitRepository, name: fleet}, path: ./hub, prune: true, interval: 1h}}`)
	return f
}

func (f *tenants) label(t *testing.T, name, tier string) {
	t.Helper()
	f.patch(t, f.cluster(t, name), map[string]any{"metadata": map[string]any{"labels": map[string]any{"tier": tier}}})
}

// have waits until all clusters have all notes, or none of them.
func (f *tenants) have(t *testing.T, all bool) {
	t.Helper()
	want := 0
	if all {
		want = len(f.names) * len(notes)
	}
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%d notes are in the clusters", want), func(ctx context.Context) error {
		got, err := f.count(ctx)
		if err == nil && got != want {
			err = fmt.Errorf("there are %d", got)
		}
		return err
	})
}

func (f *tenants) count(ctx context.Context) (int, error) {
	got := 0
	for _, cl := range f.clients {
		for _, name := range notes {
			err := cl.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, &corev1.ConfigMap{})
			switch {
			case err == nil:
				got++
			case !apierrors.IsNotFound(err):
				return 0, err
			}
		}
	}
	return got, nil
}

// deletedNothing ends the test if any cluster was asked to delete a note.
func (f *tenants) deletedNothing(t *testing.T) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.FailNow()
		}
	}()
	for _, c := range f.clusters {
		for _, w := range c.Writes() {
			if w.Verb == "delete" && w.Resource == "configmaps" && w.Namespace == metav1.NamespaceDefault && !w.DryRun {
				t.Errorf("%s: %s was deleted at %s", c.Name, w.Name, w.Time)
			}
		}
	}
}

// selects commits a selector and waits until the Layer has it.
func (f *tenants) selects(t *testing.T, tier string) {
	t.Helper()
	f.commit(t, map[string]string{"hub/app.yaml": layerInGit(f.name, tier)})
	scenario.Eventually(t, scenario.Converge, "the Layer selects "+tier, func(ctx context.Context) error {
		layer := layerNamed(f.fleet, "app")
		if err := f.client.Get(ctx, client.ObjectKeyFromObject(layer), layer); err != nil {
			return err
		}
		if got := layer.Spec.ClusterSelector.MatchLabels["tier"]; got != tier {
			return fmt.Errorf("it selects %s", got)
		}
		return nil
	})
}

// allReconciled has each child reconciled once.
func (f *tenants) allReconciled(t *testing.T) {
	t.Helper()
	for _, name := range f.names {
		f.reconciled(t, name)
	}
}

// layerSays waits until the Layer is ready for a reason, and returns it.
func (f *tenants) layerSays(t *testing.T, reason string) *v1alpha1.Layer {
	t.Helper()
	layer := layerNamed(f.fleet, "app")
	scenario.Eventually(t, scenario.Converge, "the Layer says "+reason, func(ctx context.Context) error {
		if err := f.client.Get(ctx, client.ObjectKeyFromObject(layer), layer); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(layer.Status.Conditions, v1alpha1.ReadyCondition); c == nil || c.Reason != reason {
			return fmt.Errorf("conditions are %s", scenario.Summary(layer.Status.Conditions))
		}
		return nil
	})
	return layer
}

// held waits until the Layer holds its removal from all clusters, has each child reconciled
// after that, and finds that nothing was deleted.
func (f *tenants) held(t *testing.T) *v1alpha1.Layer {
	t.Helper()
	f.allReconciled(t)
	f.deletedNothing(t)
	f.layerSays(t, v1alpha1.ReasonRemovalHeld)
	f.allReconciled(t)
	for _, name := range f.names {
		f.says(t, name, v1alpha1.ReadyCondition, v1alpha1.ReasonRemovalHeld, "cascade approve removal app")
	}
	layer := f.layerSays(t, v1alpha1.ReasonRemovalHeld)
	if r := layer.Status.Removal; int(r.Waiting) != len(f.names) || len(r.Granted) > 0 {
		t.Errorf("the record is %+v", r)
	}
	f.deletedNothing(t)
	return layer
}

// hubSays waits until the Kustomization that declares the Layer says this.
func (f *tenants) hubSays(t *testing.T, status metav1.ConditionStatus, reason string, words ...string) {
	t.Helper()
	k := &kustomizev1.Kustomization{}
	scenario.Eventually(t, scenario.Converge, "the Kustomization says "+reason, func(ctx context.Context) error {
		if err := f.client.Get(ctx, client.ObjectKey{Namespace: f.name, Name: "hub"}, k); err != nil {
			return err
		}
		c := meta.FindStatusCondition(k.Status.Conditions, v1alpha1.ReadyCondition)
		if c == nil || c.Status != status || c.Reason != reason {
			return fmt.Errorf("conditions are %s", scenario.Summary(k.Status.Conditions))
		}
		for _, w := range words {
			if !strings.Contains(c.Message, w) {
				return fmt.Errorf("the message does not have %q: %s", w, c.Message)
			}
		}
		return nil
	})
}

// approve runs cascade approve removal.
func (f *tenants) approve(t *testing.T, hash string) {
	t.Helper()
	out, err := f.Run(t.Context(), "cascade", "approve", "removal", "app", "-n", f.name, "--hash", hash, "--kubeconfig", f.tier.Kubeconfig())
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestRemovalFromChildren: whatever goes wrong in Git or with labels, a layer of
// deletionPolicy Delete is not removed from many children before a person says so.
func TestRemovalFromChildren(t *testing.T) {
	scenario.Alongside(t)
	h := startHub(t, "v1beta2")
	f := startTenants(t, h, 12)
	steps(t,
		step{"Seeded", func(t *testing.T) {
			f.have(t, true)
			if layer := f.layerSays(t, v1alpha1.ReasonSucceeded); *layer.Status.OnRecord != (v1alpha1.OnRecord{Children: 12, Objects: 36}) {
				t.Errorf("on record are %+v", layer.Status.OnRecord)
			}
		}},
		step{"TypoIsHeld", func(t *testing.T) {
			f.selects(t, "tennant")
			f.held(t)
		}},
		step{"HeldAfterARestart", func(t *testing.T) {
			h.agent.Kill()
			h.startAgent(t)
			f.held(t)
		}},
		step{"CorrectedTypo", func(t *testing.T) {
			f.selects(t, "tenant")
			f.layerSays(t, v1alpha1.ReasonSucceeded)
			f.allReconciled(t)
			f.deletedNothing(t)
		}},
		step{"LabelsDropOneAfterTheOther", func(t *testing.T) {
			for _, name := range f.names[:4] {
				f.label(t, name, "none")
			}
			f.layerSays(t, v1alpha1.ReasonRemovalHeld)
			f.allReconciled(t)
			f.deletedNothing(t)
			for _, name := range f.names[:4] {
				f.label(t, name, "tenant")
			}
			f.layerSays(t, v1alpha1.ReasonSucceeded)
		}},
		step{"RemovedFromGitIsHeld", func(t *testing.T) {
			f.commit(t, map[string]string{"hub/app.yaml": ""})
			f.hubSays(t, metav1.ConditionFalse, v1alpha1.ReasonPruneBlocked, "36 objects on 12 children")
			f.allReconciled(t)
			if layer := f.layerSays(t, v1alpha1.ReasonSucceeded); !layer.DeletionTimestamp.IsZero() {
				t.Error("the Layer is being deleted")
			}
			f.deletedNothing(t)
			f.commit(t, map[string]string{"hub/app.yaml": layerInGit(f.name, "tenant")})
			f.hubSays(t, metav1.ConditionTrue, "ReconciliationSucceeded")
		}},
		step{"DeletedByHandIsHeld", func(t *testing.T) {
			before := f.layerSays(t, v1alpha1.ReasonSucceeded)
			if err := f.client.Delete(t.Context(), layerNamed(f.fleet, "app")); err != nil {
				t.Fatal(err)
			}
			f.held(t)
			// A person lets it go. Git declares it still, so that it comes back.
			f.patch(t, layerNamed(f.fleet, "app"), map[string]any{"spec": map[string]any{"suspend": true}})
			scenario.Eventually(t, scenario.Converge, "there is another Layer", func(ctx context.Context) error {
				layer := layerNamed(f.fleet, "app")
				if err := f.client.Get(ctx, client.ObjectKeyFromObject(layer), layer); err != nil {
					return err
				}
				if layer.UID == before.UID {
					return fmt.Errorf("it is the same, with finalizers %v", layer.Finalizers)
				}
				return nil
			})
			f.layerSays(t, v1alpha1.ReasonSucceeded)
			f.deletedNothing(t)
			f.have(t, true)
		}},
		step{"ApprovedIsRemoved", func(t *testing.T) {
			f.selects(t, "tennant")
			f.approve(t, f.held(t).Status.Removal.Hash)
			f.have(t, false)
			for _, name := range f.names {
				f.forgets(t, name, "app")
			}
			if layer := f.layerSays(t, v1alpha1.ReasonNoChildren); layer.Status.Removal != nil || layer.Status.OnRecord.Children != 0 {
				t.Errorf("on record are %+v, %+v", layer.Status.Removal, layer.Status.OnRecord)
			}
		}},
		step{"ConfirmedInGitGoes", func(t *testing.T) {
			text := layerInGit(f.name, "tenant")
			f.commit(t, map[string]string{"hub/app.yaml": text})
			f.have(t, true)
			f.layerSays(t, v1alpha1.ReasonSucceeded)
			confirmed := strings.Replace(text, "namespace: "+f.name+"}", "namespace: "+f.name+", annotations: {cascade.dev/deletion: confirmed}}", 1)
			f.commit(t, map[string]string{"hub/app.yaml": confirmed})
			scenario.Eventually(t, scenario.Converge, "the confirmation is there", func(ctx context.Context) error {
				layer := layerNamed(f.fleet, "app")
				if err := f.client.Get(ctx, client.ObjectKeyFromObject(layer), layer); err != nil {
					return err
				}
				if layer.Annotations[v1alpha1.DeletionAnnotation] != v1alpha1.DeletionConfirmed {
					return fmt.Errorf("annotations are %v", layer.Annotations)
				}
				return nil
			})
			f.commit(t, map[string]string{"hub/app.yaml": ""})
			f.have(t, false)
			scenario.Eventually(t, scenario.Converge, "the Layer is gone", func(ctx context.Context) error {
				err := f.client.Get(ctx, client.ObjectKeyFromObject(layerNamed(f.fleet, "app")), &v1alpha1.Layer{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				return fmt.Errorf("it is there: %w", err)
			})
		}},
	)
}
