package fleet

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestRebuiltMoM loses the MoM with all of its data, and sets it up anew from Git
// alone. What it declares runs below. Nothing of that may be built a second time,
// nor touched, and people are told what the MoM waits for; with the saved state
// restored everything is as it was.
func TestRebuiltMoM(t *testing.T) {
	scenario.Alongside(t)
	f := startSmallFleet(t)
	below := []string{"production", "staging", "alpha"}
	saved := f.save(t, f.MoM, "production", "staging")
	running := f.controlPlanes(t)
	if len(running) != len(below) {
		t.Fatalf("%d control planes run: %v", len(running), running)
	}
	objectsBelow := map[string]map[string]string{}
	from := map[string]int64{}
	for _, name := range below {
		objectsBelow[name] = uids(t, f.tiers[name])
		var err error
		if _, from[name], err = f.tiers[name].Audit(0); err != nil {
			t.Fatal(err)
		}
	}

	start := time.Now()
	if err := f.Lose(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.SetUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.holds(t, f.MoM, "production", "staging")
	t.Logf("the new MoM held both clusters %.1f s after the old one was lost", time.Since(start).Seconds())
	f.asksInTree(t, "production", "staging")
	f.createsNothing(t, running)

	// The record outlives the agent.
	if err := syscall.Kill(f.MoM.Agent(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	token := time.Now().Format(time.RFC3339Nano)
	for _, name := range []string{"production", "staging"} {
		f.wait(t, "the release "+name+" is looked at again", func(ctx context.Context) error {
			hr := &helmv2.HelmRelease{}
			if err := scenario.Get(ctx, f.MoM, hr, stage.Namespace, name); err != nil {
				return err
			}
			if hr.Annotations[fluxmeta.ReconcileRequestAnnotation] != token {
				return annotate(ctx, f.MoM, hr, fluxmeta.ReconcileRequestAnnotation, token)
			}
			if hr.Status.LastHandledReconcileAt != token {
				return fmt.Errorf("handled %q", hr.Status.LastHandledReconcileAt)
			}
			return nil
		})
	}
	f.holds(t, f.MoM, "production", "staging")
	f.createsNothing(t, running)

	start = time.Now()
	if _, err := f.Run(t.Context(), "clusterctl", "move", "--from-directory", saved, "--to-kubeconfig", f.MoM.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"production", "staging"} {
		f.await(t, f.MoM, name)
	}
	scenario.Eventually(t, scenario.BringUp, "the tree shows every tier ready", func(ctx context.Context) error {
		out, err := f.Run(ctx, "cascade", "tree", "--kubeconfig", f.MoM.Kubeconfig())
		if err != nil {
			return err
		}
		if got := strings.Count(out, "True"); got != 1+len(below) || strings.Contains(out, "held in this tier") {
			return fmt.Errorf("%d tiers of %d are ready:\n%s", got, 1+len(below), out)
		}
		return nil
	})
	t.Logf("every tier was ready %.1f s after the restoration began", time.Since(start).Seconds())
	f.wait(t, "the first sync is over", func(ctx context.Context) error {
		cm := &corev1.ConfigMap{}
		if err := scenario.Get(ctx, f.MoM, cm, stage.Namespace, v1alpha1.FirstSyncConfigMap); err != nil {
			return err
		}
		if cm.Data["state"] != v1alpha1.FirstSyncSettled {
			return fmt.Errorf("the record is %v", cm.Data)
		}
		return nil
	})
	if now := f.controlPlanes(t); !maps.Equal(now, running) {
		t.Errorf("control planes are %v, they were %v", now, running)
	}
	for _, name := range below {
		after := uids(t, f.tiers[name])
		for object, uid := range objectsBelow[name] {
			if after[object] != uid {
				t.Errorf("%s: %s had UID %s, has %q", name, object, uid, after[object])
			}
		}
		f.noDeletes(t, f.tiers[name], from[name])
		f.noWritesByParent(t, f.tiers[name], from[name])
	}
}

// startSmallFleet runs the example fleet with one tenant only.
func startSmallFleet(t *testing.T) *fleet {
	t.Helper()
	repos := t.TempDir()
	if err := os.CopyFS(repos, os.DirFS(scenario.Path(t, "e2e", "testdata", "repos"))); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []string{"env-production/tenants/beta.yaml", "env-staging/tenants/gamma.yaml"} {
		if err := os.Remove(filepath.Join(repos, tenant)); err != nil {
			t.Fatal(err)
		}
	}
	s := scenario.StartStage(t, stage.Options{Repos: repos, Charts: scenario.Path(t, "deploy", "charts"),
		Components: scenario.Path(t, "bin", "components", "local"), Bootstrap: filepath.Join(repos, "masters", "bootstrap.yaml")})
	f := &fleet{Stage: s, tiers: map[string]*stage.Tier{"mom": s.MoM}, version: 1}
	f.await(t, f.MoM, "production")
	f.await(t, f.MoM, "staging")
	f.await(t, f.tiers["production"], "alpha")
	f.await(t, f.MoM, "production")
	return f
}

// wait is eventually with the time that a commit may take.
func (f *fleet) wait(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, what, check)
}

// save writes the state of a tier's Clusters to a directory, as docs/rebuild.md says.
func (f *fleet) save(t *testing.T, tier *stage.Tier, clusters ...string) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := f.Run(t.Context(), "clusterctl", "move", "--to-directory", dir, "--namespace", stage.Namespace, "--kubeconfig", tier.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 4*len(clusters) {
		t.Fatalf("only %d objects were saved", len(files))
	}
	// Saving pauses the Clusters for a moment.
	for _, name := range clusters {
		f.await(t, tier, name)
	}
	return dir
}

// controlPlanes are the directories of all control planes below the MoM, with the
// processes that run in them.
func (f *fleet) controlPlanes(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(f.MoM.Dir), "clusters", "*", "pid"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		pid, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found[filepath.Base(filepath.Dir(file))] = strings.TrimSpace(string(pid))
	}
	return found
}

// holds waits until a tier says of each of the clusters that it does not create it.
func (f *fleet) holds(t *testing.T, tier *stage.Tier, names ...string) {
	t.Helper()
	for _, name := range names {
		scenario.Eventually(t, scenario.BringUp, "cluster "+name+" is held", func(ctx context.Context) error {
			hr := &helmv2.HelmRelease{}
			if err := scenario.Get(ctx, tier, hr, stage.Namespace, name); err != nil {
				return err
			}
			ready := meta.FindStatusCondition(hr.Status.Conditions, fluxmeta.ReadyCondition)
			if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != v1alpha1.ReasonCreateHeld ||
				!strings.Contains(ready.Message, "cascade approve create cascade-system/"+name) {
				return fmt.Errorf("conditions are %s", scenario.Summary(hr.Status.Conditions))
			}
			return nil
		})
	}
}

// asksInTree: the command line says what the MoM waits for.
func (f *fleet) asksInTree(t *testing.T, names ...string) {
	t.Helper()
	f.wait(t, "the tree says what the MoM waits for", func(ctx context.Context) error {
		tree, err := f.Run(ctx, "cascade", "tree", "--kubeconfig", f.MoM.Kubeconfig())
		if err != nil {
			return err
		}
		row, below, ok := strings.Cut(tree, "held in this tier, for a person to decide:")
		if !ok || !strings.Contains(row, v1alpha1.ReasonCreateHeld) {
			return fmt.Errorf("the tree is\n%s", tree)
		}
		for _, name := range names {
			if !strings.Contains(below, "HelmRelease/cascade-system/"+name+": not created: Cluster/cascade-system/"+name) {
				return fmt.Errorf("the tree does not name %s:\n%s", name, tree)
			}
		}
		return nil
	})
	out, err := f.Run(t.Context(), "cascade", "approve", "create", "--kubeconfig", f.MoM.Kubeconfig())
	if err == nil || !strings.Contains(out, "cascade approve create cascade-system/"+names[0]) {
		t.Errorf("cascade approve create: %v\n%s", err, out)
	}
}

// createsNothing: the MoM has no object of Cluster API, and no control plane came
// or was restarted below it.
func (f *fleet) createsNothing(t *testing.T, running map[string]string) {
	t.Helper()
	c, err := f.MoM.Client()
	if err != nil {
		t.Fatal(err)
	}
	noClusters(t, f.MoM)
	secret := &corev1.Secret{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: stage.Namespace, Name: "sh.helm.release.v1.production.v1"}, secret); !apierrors.IsNotFound(err) {
		t.Errorf("a release was made: %v", err)
	}
	if now := f.controlPlanes(t); !maps.Equal(now, running) {
		t.Errorf("control planes are %v, they were %v", now, running)
	}
}

// noClusters fails if a tier has an object from which a cluster is built.
func noClusters(t *testing.T, tier *stage.Tier) {
	t.Helper()
	c, err := tier.Client()
	if err != nil {
		t.Fatal(err)
	}
	for _, gvk := range [][2]string{
		{"cluster.x-k8s.io/v1beta2", "Cluster"}, {"infrastructure.cluster.x-k8s.io/v1alpha1", "LocalCluster"}, {"controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane"},
	} {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(gvk[0])
		list.SetKind(gvk[1] + "List")
		if err := c.List(t.Context(), list, client.InNamespace(stage.Namespace)); err != nil {
			t.Fatal(err)
		}
		for _, u := range list.Items {
			t.Errorf("%s created %s %s", tier.Name, gvk[1], u.GetName())
		}
	}
}

// noWritesByParent fails if an agent of the tier above wrote anything since an
// offset of the audit log. A request for a token is no write, and the mark of who took
// the child over is none to what is in it.
func (f *fleet) noWritesByParent(t *testing.T, tier *stage.Tier, from int64) {
	t.Helper()
	events, _, err := tier.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if !strings.HasPrefix(e.UserAgent, "cascade-parent") || e.ObjectRef.Subresource == "token" {
			continue
		}
		if e.Verb == "update" && strings.HasPrefix(e.ObjectRef.Name, v1alpha1.RecordPrefix) {
			// Who took the child over marks its records, so that the old parent finds itself
			// superseded (docs/decisions/026).
			continue
		}
		if slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, e.Verb) {
			t.Errorf("%s: its parent wrote at %s: %s %s", tier.Name, e.Received.Format("15:04:05.000"), e.Verb, e.RequestURI)
		}
	}
}
