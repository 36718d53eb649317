package providers

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestFirstTier: a tier that has nothing but an agent gets Cluster API and a provider from
// Git, by a Layer that selects its own cluster, and makes a cluster with them. Nobody runs
// clusterctl.
func TestFirstTier(t *testing.T) {
	scenario.Alongside(t)
	s := scenario.StartTier(t)
	files := map[string]string{}
	local := scenario.Path(t, "bin", "components", "local")
	if err := fs.WalkDir(os.DirFS(local), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(local, name))
		files["components/"+name] = string(text)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s.Repository(t, "base", files)
	s.Apply(t, `apiVersion: cascade.dev/v1alpha1
kind: Child
metadata: {name: self, namespace: cascade-system, labels: {tier: own}}
spec: {inCluster: true}
---
apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: cluster-api, namespace: cascade-system}
spec:
  clusterSelector: {matchLabels: {tier: own}}
  providers:
    sourceRef: {kind: GitRepository, name: base}
    path: ./components
    core: {version: v1.13.4}
    infrastructure: [{name: local, version: v0.1.0}]
  interval: 10m
  timeout: 5m
`)
	ready := func(name string) {
		t.Helper()
		scenario.Eventually(t, scenario.BringUp, "child "+name+" is ready", func(ctx context.Context) error {
			child := &v1alpha1.Child{}
			if err := s.Load(ctx, child, stage.Namespace, name); err != nil {
				return err
			}
			if !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) {
				return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
			}
			return nil
		})
	}
	ready("self")
	s.Apply(t, scenario.LocalCluster("first"))
	// It is connected, and waits for a layer: its control plane runs.
	scenario.Eventually(t, scenario.BringUp, "a cluster is made", func(ctx context.Context) error {
		cluster := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
		if err := s.Load(ctx, cluster, "default", "first"); err != nil {
			return err
		}
		status, _ := cluster.Object["status"].(map[string]any)
		initialization, _ := status["initialization"].(map[string]any)
		if initialization["controlPlaneInitialized"] != true {
			return fmt.Errorf("its status is %v", status)
		}
		return nil
	})
}
