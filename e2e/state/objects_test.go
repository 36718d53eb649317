package state

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/remote/epoch"
)

// canary is in the Secrets of the tier, and nowhere else.
const canary = "canary-3f9c1b7e"

// installKinds defines all kinds of Cluster API's core and of the local provider.
func installKinds(t *testing.T, c client.Client) {
	t.Helper()
	var files []string
	for _, dir := range []string{scenario.Path(t, "bin", "capi", "crd", "bases"), scenario.Path(t, "e2e", "local", "config", "crd")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".yaml") {
				files = append(files, dir+"/"+e.Name())
			}
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := ssautil.ReadObjects(strings.NewReader(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range objects {
			if err := c.Create(t.Context(), u); err != nil {
				t.Fatalf("cannot define %s: %v", u.GetName(), err)
			}
		}
	}
	scenario.Eventually(t, scenario.Converge, "the kinds of Cluster API are served", func(ctx context.Context) error {
		for _, kind := range append(scenario.ClusterKinds(), [2]string{"cluster.x-k8s.io/v1beta2", "ClusterClass"}, [2]string{"cluster.x-k8s.io/v1beta2", "MachineDeployment"},
			[2]string{"cluster.x-k8s.io/v1beta2", "MachineSet"}, [2]string{"cluster.x-k8s.io/v1beta2", "Machine"}) {
			list := &unstructured.UnstructuredList{}
			list.SetAPIVersion(kind[0])
			list.SetKind(kind[1] + "List")
			if err := c.List(ctx, list); err != nil {
				return err
			}
		}
		return nil
	})
}

// made are objects as they were made in a tier, by kind and name.
type made struct {
	t *testing.T
	c client.Client
}

// create makes an object of a text, with owners that are there, and a status.
func (m made) create(text string, owners ...*unstructured.Unstructured) *unstructured.Unstructured {
	m.t.Helper()
	objects, err := ssautil.ReadObjects(strings.NewReader(text))
	if err != nil || len(objects) != 1 {
		m.t.Fatalf("cannot read %s: %v", text, err)
	}
	u := objects[0]
	for _, o := range owners {
		controller := len(owners) == 1
		u.SetOwnerReferences(append(u.GetOwnerReferences(), metav1.OwnerReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Name: o.GetName(), UID: o.GetUID(), Controller: &controller}))
	}
	status, has := u.Object["status"]
	if err := m.c.Create(m.t.Context(), u); err != nil {
		m.t.Fatalf("cannot make %s %s: %v", u.GetKind(), u.GetName(), err)
	}
	if has {
		u.Object["status"] = status
		if err := m.c.Status().Update(m.t.Context(), u); err != nil {
			m.t.Fatalf("cannot write the status of %s %s: %v", u.GetKind(), u.GetName(), err)
		}
	}
	return u
}

// cluster makes one of the local provider with machines and Secrets, as its controllers leave
// them: half of the Clusters are of a class.
func (m made) cluster(i int) {
	m.t.Helper()
	fill := func(text string) string {
		return strings.NewReplacer("NAME", fmt.Sprintf("c%02d", i), "CANARY", canary, "PORT", fmt.Sprint(20000+i), "\t", "  ").Replace(text)
	}
	topology := ""
	if i%2 == 1 {
		topology = "\n  topology: {classRef: {name: tenant}, version: v1.36.3, variables: [{name: size, value: {cpus: 4, memory: 8Gi}}]}"
	}
	cluster := m.create(fill(`apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: NAME, namespace: fleet, labels: {environment: production}, annotations: {vars.cascade.dev/size: "4"}, finalizers: [cluster.cluster.x-k8s.io]}
spec:
  clusterNetwork: {pods: {cidrBlocks: [10.244.0.0/16]}}
  controlPlaneEndpoint: {host: 127.0.0.1, port: PORT}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LocalCluster, name: NAME}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: NAME}` + topology + `
status: {phase: Provisioned, initialization: {infrastructureProvisioned: true, controlPlaneInitialized: true}}
`))
	m.create(fill(`apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: LocalCluster
metadata: {name: NAME, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: NAME}}
`), cluster)
	plane := m.create(fill(`apiVersion: controlplane.cluster.x-k8s.io/v1alpha1
kind: LocalControlPlane
metadata: {name: NAME, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: NAME}}
`), cluster)
	for _, purpose := range []string{"kubeconfig", "ca"} {
		m.create(fill(`apiVersion: v1
kind: Secret
type: cluster.x-k8s.io/secret
metadata: {name: NAME-`+purpose+`, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: NAME}}
stringData: {value: CANARY-NAME-`+purpose+`}
`), plane)
	}
	deployment := m.create(fill(`apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {name: NAME-md, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: NAME}}
spec:
  clusterName: NAME
  replicas: 1
  selector: {matchLabels: {pool: NAME-md}}
  template:
    metadata: {labels: {pool: NAME-md, cluster.x-k8s.io/cluster-name: NAME}}
    spec: {clusterName: NAME, bootstrap: {dataSecretName: NAME-boot}, infrastructureRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: NAME}}
`), cluster)
	set := m.create(fill(`apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineSet
metadata: {name: NAME-ms, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: NAME, pool: NAME-md}}
spec:
  clusterName: NAME
  replicas: 1
  selector: {matchLabels: {pool: NAME-md}}
  template:
    metadata: {labels: {pool: NAME-md, cluster.x-k8s.io/cluster-name: NAME}}
    spec: {clusterName: NAME, bootstrap: {dataSecretName: NAME-boot}, infrastructureRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: NAME}}
`), deployment)
	m.create(fill(`apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {name: NAME-m, namespace: fleet, labels: {cluster.x-k8s.io/cluster-name: NAME}, finalizers: [machine.cluster.x-k8s.io]}
spec: {clusterName: NAME, providerID: "local:///NAME-m", bootstrap: {dataSecretName: NAME-boot}, infrastructureRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: NAME}}
`), set)
}

// tier makes a tier with so many Clusters, and its records.
func (m made) tier(clusters int) {
	m.t.Helper()
	for _, text := range []string{
		"{apiVersion: v1, kind: Namespace, metadata: {name: fleet, labels: {cascade.dev/protected: 'true'}}}",
		`{apiVersion: cluster.x-k8s.io/v1beta2, kind: ClusterClass, metadata: {name: tenant, namespace: fleet}, spec: {
  infrastructure: {templateRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1, kind: LocalClusterTemplate, name: tenant}},
  controlPlane: {templateRef: {apiVersion: controlplane.cluster.x-k8s.io/v1alpha1, kind: LocalControlPlaneTemplate, name: tenant}}}}`,
		"{apiVersion: v1, kind: Secret, metadata: {name: handed-over, namespace: fleet}, stringData: {token: " + canary + "-handed}}",
		"{apiVersion: v1, kind: Secret, metadata: {name: of-nobody, namespace: fleet}, stringData: {token: unrelated}}",
		`{apiVersion: cascade.dev/v1alpha1, kind: Layer, metadata: {name: tenant, namespace: fleet}, spec: {clusterSelector: {matchLabels: {a: b}}, sourceRef: {kind: GitRepository, name: fleet}, path: ./tenant, credentials: [{name: git, secretRef: {name: handed-over}}]}}`,
		"{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: by-hand, namespace: fleet}, spec: {kubeConfig: {secretRef: {name: by-hand}}, suspend: true}}",
		"{apiVersion: v1, kind: Secret, metadata: {name: by-hand, namespace: fleet}, stringData: {value: " + canary + "-hand}}",
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: cascade-first-sync, namespace: cascade-system}, data: {state: settled, why: it was, since: "2026-01-02T03:04:05Z", fleet_away: moving, fleet_new: approved}}`,
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: cascade-first-seed.fleet.c00, namespace: cascade-system, labels: {cascade.dev/first-seed: 'true'}}, data: {kubeSystemUID: x}}",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: cascade-report, namespace: cascade-system}, data: {report.json: '{}'}}",
	} {
		m.create(text)
	}
	for i := range clusters {
		m.cluster(i)
	}
	if _, err := epoch.NewTier(m.c, v1alpha1.AgentNamespace, "the-former-agent").Begin(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

// stood is a control plane without controllers.
func stood(t *testing.T, s *stage.Stage, name string, kinds bool) (*stage.Tier, client.Client) {
	t.Helper()
	tier, err := s.Cluster(t.Context(), name, "--api-only")
	if err != nil {
		t.Fatal(err)
	}
	c, err := tier.Client()
	if err != nil {
		t.Fatal(err)
	}
	if kinds {
		scenario.InstallKinds(t, c, s)
		installKinds(t, c)
	}
	return tier, c
}

// startStage starts one with nothing but Git.
func startStage(t *testing.T) *stage.Stage {
	t.Helper()
	s, err := stage.Open(t.Context(), stage.Options{Run: scenario.RunDir(t), Bin: scenario.Programs(t), Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		scenario.NoRaces(t, s)
		if err := s.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	return s
}

// get reads an object of a tier.
func get(t *testing.T, c client.Client, apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	u := stage.Object(apiVersion, kind)
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, u); err != nil {
		t.Fatalf("cannot read %s %s: %v", kind, name, err)
	}
	return u
}
