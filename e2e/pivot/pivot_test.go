package pivot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/pivot"
)

// kills is how often processes are killed.
func kills(t *testing.T, otherwise int) int {
	t.Helper()
	text := os.Getenv("CASCADE_PIVOT_KILLS")
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// local declares a cluster of the local provider.
func local(name string) string {
	return strings.ReplaceAll(scenario.LocalCluster(name), "namespace: default", "namespace: fleet")
}

// localKinds are what it is made of.
func localKinds() [][2]string {
	return append(scenario.ClusterKinds(), [2]string{"v1", "Secret"}, [2]string{"cluster.x-k8s.io/v1beta2", "MachinePool"})
}

// TestPivot moves a cluster with a real control plane between two management clusters, each
// with Cluster API and its provider running. The process that moves it is killed at requests
// all over its way, before the server did what was asked and after, and the next one goes on.
func TestPivot(t *testing.T) {
	scenario.Alongside(t)
	w := startTiers(t, true)
	w.apply(t, "mom", "{apiVersion: v1, kind: Namespace, metadata: {name: fleet}}\n---\n"+local("alpha")+"---\n"+local("beta")+
		"---\n{apiVersion: v1, kind: Secret, metadata: {name: alpha-database, namespace: fleet}, stringData: {password: x}}\n")
	identity := map[string]string{}
	for _, name := range []string{"alpha", "beta"} {
		scenario.Eventually(t, scenario.Converge, "cluster "+name+" is there", func(ctx context.Context) error {
			id, err := w.identity(ctx, "mom", name)
			identity[name] = id
			return err
		})
		w.provisioned(t, "mom", name)
	}
	stop := w.watched(t)
	defer stop()

	// How many requests there are, of a pivot that nobody kills.
	l := &life{}
	before := w.contents(t, "mom", localKinds())
	if _, err := w.pivot(t, "mom", "master", l, "alpha").Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.moved(t, "mom", "master", identity)
	after := w.contents(t, "master", localKinds())
	for name, content := range after {
		if diff := cmp.Diff(before[name], content); diff != "" {
			t.Errorf("%s is not as it was (-was +is):\n%s", name, diff)
		}
	}
	t.Logf("a pivot takes %d requests and %d objects", l.calls, len(after))

	from, to := "master", "mom"
	total, done, most := kills(t, 16), 0, l.calls
	for tries := 0; done < total; tries++ {
		at := 1 + tries*7919%most
		killed := &life{killAt: at, after: done%2 == 1}
		_, err := w.pivot(t, from, to, killed, "alpha").Run(t.Context())
		switch {
		case killed.dead:
			done++
		case err != nil:
			t.Fatalf("%s to %s: %v", from, to, err)
		}
		if done%5 == 4 { // people change their minds
			_, err := w.pivot(t, from, to, &life{killAt: 1 + done%40, after: done%2 == 0}, "alpha").Abort(t.Context())
			t.Logf("turned back after kill %d: %v", done, err)
		}
		for again := 0; ; again++ {
			j, err := w.pivot(t, from, to, &life{}, "alpha").Run(t.Context())
			if err == nil && j.Step == pivot.Done {
				break
			}
			if err != nil || again > 3 {
				t.Fatalf("after a kill at request %d (after %t), %s to %s: step %s: %v", at, killed.after, from, to, j.Step, err)
			}
		}
		w.moved(t, from, to, identity)
		if t.Failed() {
			t.Fatalf("after a kill at request %d (after %t), %s to %s", at, killed.after, from, to)
		}
		from, to = to, from
	}
	t.Logf("%d kills", done)
	w.deletedBy(t, "cascade-pivot")
	// Nothing was built for it: two control planes besides those of the tiers.
	dirs, err := filepath.Glob(filepath.Join(w.run, "clusters", "*", "pid"))
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) != 4 {
		t.Errorf("there are %d control planes, want mom, master, alpha and beta: %v", len(dirs), dirs)
	}
}

// identity asks a cluster who it is, with the kubeconfig that a tier has of it.
func (w *tiers) identity(ctx context.Context, tier, name string) (string, error) {
	secret := &corev1.Secret{}
	if err := w.client[tier].Get(ctx, client.ObjectKey{Namespace: "fleet", Name: clusterapi.KubeconfigSecret(name)}, secret); err != nil {
		return "", err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data[clusterapi.KubeconfigKey])
	if err != nil {
		return "", err
	}
	config.Timeout = 10 * time.Second
	c, err := client.New(config, client.Options{Scheme: w.client[tier].Scheme()})
	if err != nil {
		return "", err
	}
	ns := &corev1.Namespace{}
	err = c.Get(ctx, client.ObjectKey{Name: "kube-system"}, ns)
	return string(ns.UID), err
}

// provisioned waits until Cluster API says that a cluster is there.
func (w *tiers) provisioned(t *testing.T, tier, name string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "cluster "+name+" is provisioned in "+tier, func(context.Context) error {
		u := w.is(t, tier, "cluster.x-k8s.io/v1beta2", "Cluster", name)
		if u == nil {
			return errors.New("it is not there")
		}
		for _, field := range []string{"infrastructureProvisioned", "controlPlaneInitialized"} {
			if ok, _, _ := unstructured.NestedBool(u.Object, "status", "initialization", field); !ok {
				return fmt.Errorf("%s is not true", field)
			}
		}
		return nil
	})
}

// moved holds both tiers against what a pivot of alpha leaves.
func (w *tiers) moved(t *testing.T, from, to string, identity map[string]string) {
	t.Helper()
	w.provisioned(t, to, "alpha")
	if id, err := w.identity(t.Context(), to, "alpha"); err != nil || id != identity["alpha"] {
		t.Errorf("alpha has identity %q, had %q: %v", id, identity["alpha"], err)
	}
	for _, kind := range scenario.ClusterKinds() {
		u := w.is(t, to, kind[0], kind[1], "alpha")
		if u == nil {
			t.Errorf("%s does not have %s alpha", to, kind[1])
			continue
		}
		for key := range u.GetAnnotations() {
			if strings.HasPrefix(key, "cascade.dev/pivot") || strings.Contains(key, "delete-for-move") {
				t.Errorf("%s alpha in %s still has annotation %s", kind[1], to, key)
			}
		}
		if left := w.is(t, from, kind[0], kind[1], "alpha"); left != nil {
			t.Errorf("%s still has %s alpha", from, kind[1])
		}
		if w.is(t, "mom", kind[0], kind[1], "beta") == nil {
			t.Errorf("%s beta is gone", kind[1])
		}
	}
	if u := w.is(t, to, "cluster.x-k8s.io/v1beta2", "Cluster", "alpha"); u != nil && clusterapi.IsPaused(u) {
		t.Errorf("alpha is paused in %s", to)
	}
	if w.is(t, "mom", "v1", "Secret", "alpha-database") == nil {
		t.Error("somebody's Secret is gone")
	}
	if w.is(t, "master", "v1", "Secret", "alpha-database") != nil {
		t.Error("somebody's Secret was copied")
	}
}

// kinds are what the clusters of TestKinds are made of.
func kinds() [][2]string {
	const infra = "infrastructure.cluster.x-k8s.io/"
	return [][2]string{
		{"cluster.x-k8s.io/v1beta2", "Cluster"}, {"cluster.x-k8s.io/v1beta2", "ClusterClass"}, {"cluster.x-k8s.io/v1beta2", "MachinePool"}, {"v1", "Secret"}, {"v1", "ConfigMap"},
		{"addons.cluster.x-k8s.io/v1beta2", "ClusterResourceSet"}, {"addons.cluster.x-k8s.io/v1beta2", "ClusterResourceSetBinding"},
		{infra + "v1beta2", "AWSManagedCluster"}, {"controlplane.cluster.x-k8s.io/v1beta2", "AWSManagedControlPlane"}, {infra + "v1beta2", "AWSManagedMachinePool"},
		{infra + "v1beta1", "AzureASOManagedCluster"}, {infra + "v1beta1", "AzureASOManagedControlPlane"}, {"resources.azure.com/v1api20200601", "ResourceGroup"},
		{infra + "v1alpha1", "LocalClusterTemplate"}, {infra + "v1alpha1", "LocalCluster"}, {"controlplane.cluster.x-k8s.io/v1alpha1", "LocalControlPlane"},
	}
}

// TestKinds moves clusters of a ClusterClass, with MachinePools, of EKS and of AKS, with the
// kinds of Cluster API and of providers and no controllers, at once, there and back, with
// kills.
func TestKinds(t *testing.T) {
	scenario.Alongside(t)
	w := startTiers(t, false)
	w.apply(t, "mom", fixtures)
	before := w.contents(t, "mom", kinds())
	clusters := []string{"classy", "eks", "aks"}
	l := &life{}
	if _, err := w.pivot(t, "mom", "master", l, clusters...).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("a pivot takes %d requests", l.calls)
	same := func(tier string) {
		t.Helper()
		is := w.contents(t, tier, kinds())
		for name, content := range before {
			if strings.HasSuffix(name, "other") || name == "ConfigMap/kube-root-ca.crt" {
				continue
			}
			got := is[name]
			if metadata, ok := got["metadata"].(map[string]any); ok {
				if annotations, ok := metadata["annotations"].(map[string]string); ok {
					delete(annotations, "cascade.dev/pivot-kept") // of what stayed there as well
				}
			}
			if diff := cmp.Diff(content, got); diff != "" {
				t.Errorf("%s in %s is not as it was (-was +is):\n%s", name, tier, diff)
			}
		}
	}
	same("master")
	left := w.contents(t, "mom", kinds())
	for _, name := range []string{"ClusterClass/shared", "LocalClusterTemplate/shared", "Cluster/other", "Secret/aws-keys", "Secret/aso-credential"} {
		if left[name] == nil {
			t.Errorf("%s is gone from mom, where others need it", name)
		}
	}
	for _, name := range []string{"Cluster/eks", "AWSManagedControlPlane/eks", "MachinePool/eks-pool", "ResourceGroup/aks-group", "ClusterResourceSetBinding/classy"} {
		if left[name] != nil {
			t.Errorf("%s is still in mom", name)
		}
	}
	from, to := "master", "mom"
	for done := range kills(t, 24) {
		killed := &life{killAt: 1 + done*7919%l.calls, after: done%2 == 1}
		_, _ = w.pivot(t, from, to, killed, clusters...).Run(t.Context())
		if done%6 == 5 {
			_, _ = w.pivot(t, from, to, &life{killAt: 1 + done%60}, clusters...).Abort(t.Context())
		}
		for again := 0; ; again++ {
			j, err := w.pivot(t, from, to, &life{}, clusters...).Run(t.Context())
			if err == nil && j.Step == pivot.Done {
				break
			}
			if err != nil || again > 3 {
				t.Fatalf("after a kill at request %d (after %t), %s to %s: step %s: %v", killed.killAt, killed.after, from, to, j.Step, err)
			}
		}
		same(to)
		if t.Failed() {
			t.Fatalf("after a kill at request %d (after %t), %s to %s", killed.killAt, killed.after, from, to)
		}
		from, to = to, from
	}
	w.deletedBy(t, "cascade-pivot")
}

// fixtures are what controllers leave of three clusters, and of one more that stays.
const fixtures = `
{apiVersion: v1, kind: Namespace, metadata: {name: fleet}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: ClusterClass
metadata: {name: shared, namespace: fleet}
spec:
  infrastructure: {templateRef: {apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1, kind: LocalClusterTemplate, name: shared}}
  controlPlane: {templateRef: {apiVersion: controlplane.cluster.x-k8s.io/v1alpha1, kind: LocalControlPlaneTemplate, name: shared}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: LocalClusterTemplate
metadata: {name: shared, namespace: fleet, annotations: {test/owner: ClusterClass/shared}}
spec: {template: {spec: {order: Fast}}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: classy, namespace: fleet, finalizers: [cluster.x-k8s.io/cluster]}
spec:
  topology: {classRef: {name: shared}, version: v1.34.0, variables: [{name: size, value: 3}]}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LocalCluster, name: classy}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: classy}
status: {initialization: {infrastructureProvisioned: true, controlPlaneInitialized: true}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: LocalCluster
metadata: {name: classy, namespace: fleet, finalizers: [test.cascade.dev/local], annotations: {test/owner: Cluster/classy}, labels: {cluster.x-k8s.io/cluster-name: classy}}
spec: {order: Fast}
---
apiVersion: controlplane.cluster.x-k8s.io/v1alpha1
kind: LocalControlPlane
metadata: {name: classy, namespace: fleet, finalizers: [test.cascade.dev/local], annotations: {test/owner: Cluster/classy}, labels: {cluster.x-k8s.io/cluster-name: classy}}
spec: {id: classy-1}
---
apiVersion: v1
kind: Secret
metadata: {name: classy-kubeconfig, namespace: fleet, annotations: {test/owner: LocalControlPlane/classy}, labels: {cluster.x-k8s.io/cluster-name: classy}}
type: cluster.x-k8s.io/secret
stringData: {value: kubeconfig}
---
apiVersion: addons.cluster.x-k8s.io/v1beta2
kind: ClusterResourceSet
metadata: {name: cni, namespace: fleet}
spec: {clusterSelector: {matchLabels: {cni: x}}, resources: [{kind: ConfigMap, name: cni}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cni, namespace: fleet, annotations: {test/owner: ClusterResourceSet/cni}}
data: {x: "y"}
---
apiVersion: addons.cluster.x-k8s.io/v1beta2
kind: ClusterResourceSetBinding
metadata: {name: classy, namespace: fleet, annotations: {test/owner: ClusterResourceSet/cni}}
spec: {clusterName: classy}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: AWSClusterStaticIdentity
metadata: {name: keys}
spec: {secretRef: aws-keys, allowedNamespaces: {}}
---
apiVersion: v1
kind: Secret
metadata: {name: aws-keys, namespace: fleet, annotations: {test/owner: AWSClusterStaticIdentity/keys}}
stringData: {AccessKeyID: x}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: eks, namespace: fleet, finalizers: [cluster.x-k8s.io/cluster]}
spec:
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: AWSManagedCluster, name: eks}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: AWSManagedControlPlane, name: eks}
status: {initialization: {infrastructureProvisioned: true, controlPlaneInitialized: true}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: AWSManagedCluster
metadata: {name: eks, namespace: fleet, annotations: {test/owner: Cluster/eks}}
spec: {}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: AWSManagedControlPlane
metadata: {name: eks, namespace: fleet, finalizers: [test.cascade.dev/eks], annotations: {test/owner: Cluster/eks}}
spec: {region: eu-central-1, eksClusterName: eks, identityRef: {kind: AWSClusterStaticIdentity, name: keys}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachinePool
metadata: {name: eks-pool, namespace: fleet, annotations: {test/owner: Cluster/eks}}
spec:
  clusterName: eks
  replicas: 3
  template:
    spec:
      clusterName: eks
      bootstrap: {dataSecretName: ""}
      infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: AWSManagedMachinePool, name: eks-pool}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: AWSManagedMachinePool
metadata: {name: eks-pool, namespace: fleet, finalizers: [test.cascade.dev/pool], annotations: {test/owner: MachinePool/eks-pool}}
spec: {providerIDList: ["aws:///a/i-1", "aws:///a/i-2"]}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: aks, namespace: fleet, finalizers: [cluster.x-k8s.io/cluster]}
spec:
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: AzureASOManagedCluster, name: aks}
  controlPlaneRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: AzureASOManagedControlPlane, name: aks}
status: {initialization: {infrastructureProvisioned: true, controlPlaneInitialized: true}}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: AzureASOManagedControlPlane
metadata: {name: aks, namespace: fleet, annotations: {test/owner: Cluster/aks}}
spec: {version: v1.34.2}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
kind: AzureASOManagedCluster
metadata: {name: aks, namespace: fleet, annotations: {test/owner: Cluster/aks}}
spec: {resources: [{apiVersion: resources.azure.com/v1api20200601, kind: ResourceGroup, metadata: {name: aks-group}, spec: {location: northeurope}}]}
---
apiVersion: resources.azure.com/v1api20200601
kind: ResourceGroup
metadata: {name: aks-group, namespace: fleet, finalizers: [serviceoperator.azure.com/finalizer], annotations: {test/owner: AzureASOManagedCluster/aks, serviceoperator.azure.com/reconcile-policy: skip}}
spec: {location: northeurope}
---
{apiVersion: v1, kind: Secret, metadata: {name: aso-credential, namespace: fleet}, stringData: {AZURE_CLIENT_ID: x}}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: other, namespace: fleet}
spec: {topology: {classRef: {name: shared}, version: v1.34.0}}
status: {initialization: {infrastructureProvisioned: true, controlPlaneInitialized: true}}
`
