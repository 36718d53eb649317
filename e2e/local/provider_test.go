package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cascade-gitops/cascade/e2e/local/manifest"
	"github.com/cascade-gitops/cascade/e2e/local/node"
	"github.com/cascade-gitops/cascade/e2e/local/process"
)

func resourceOf(kind string) schema.GroupVersionResource {
	switch kind {
	case "Cluster":
		return schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "clusters"}
	case "LocalCluster":
		return schema.GroupVersionResource{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1", Resource: "localclusters"}
	case "LocalControlPlane":
		return schema.GroupVersionResource{Group: "controlplane.cluster.x-k8s.io", Version: "v1alpha1", Resource: "localcontrolplanes"}
	case "Namespace":
		return schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	case "ServiceAccount":
		return schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	case "ClusterRoleBinding":
		return schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}
	}
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
}

func apply(t *testing.T, client dynamic.Interface, stream string) {
	t.Helper()
	objects, err := manifest.Decode([]byte(stream))
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		body, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		force := true
		if _, err := client.Resource(resourceOf(object.GetKind())).Namespace(object.GetNamespace()).Patch(t.Context(), object.GetName(),
			types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: "test", Force: &force}); err != nil {
			t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

// clusterManifest is what Git holds for one cluster.
func clusterManifest(name, infrastructureSpec, planeSpec string) string {
	return fmt.Sprintf(`
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: %[1]s, namespace: default}
spec:
  clusterNetwork: {services: {cidrBlocks: [10.97.0.0/16]}}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LocalCluster, name: %[1]s}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: %[1]s}
---
apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1
kind: LocalCluster
metadata: {name: %[1]s, namespace: default}
spec: {%[2]s}
---
apiVersion: controlplane.cluster.x-k8s.io/v1alpha1
kind: LocalControlPlane
metadata: {name: %[1]s, namespace: default}
spec: {%[3]s}
`, name, infrastructureSpec, planeSpec)
}

// fleet is a world whose control plane manages others.
type fleet struct {
	*world
	dynamic dynamic.Interface
}

// on returns the fleet for a subtest, whose failures are then its own.
func (f *fleet) on(t *testing.T) *fleet {
	return &fleet{world: f.world.on(t), dynamic: f.dynamic}
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	w := newWorld(t)
	f := &fleet{world: w, dynamic: dynamic.NewForConfigOrDie(w.rest)}
	began := time.Now()
	for _, file := range []string{"config/capi/capi.yaml", "config/provider/provider.yaml"} {
		stream, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		apply(t, f.dynamic, string(stream))
	}
	w.awaitPod("capi-system", "capi", time.Minute, "Cluster API is ready", podReady)
	t.Logf("Cluster API is ready %v after its Deployment was applied", time.Since(began))
	w.awaitPod("cascade-local-system", "provider", time.Minute, "provider is ready", podReady)
	return f
}

func (f *fleet) get(kind, name string) (*unstructured.Unstructured, error) {
	return f.dynamic.Resource(resourceOf(kind)).Namespace("default").Get(f.t.Context(), name, metav1.GetOptions{})
}

func (f *fleet) condition(kind, name, condition string) error {
	object, err := f.get(kind, name)
	if err != nil {
		return err
	}
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, item := range conditions {
		if c := item.(map[string]any); c["type"] == condition && c["status"] == "True" {
			return nil
		}
	}
	return fmt.Errorf("%s is not True in %v", condition, conditions)
}

func (f *fleet) initialized(name string) error {
	object, err := f.get("Cluster", name)
	if err != nil {
		return err
	}
	for _, field := range []string{"infrastructureProvisioned", "controlPlaneInitialized"} {
		if is, _, _ := unstructured.NestedBool(object.Object, "status", "initialization", field); !is {
			status, _ := json.Marshal(object.Object["status"])
			return fmt.Errorf("not %s: %s", field, status)
		}
	}
	return nil
}

// child returns a client of the child, from the Secret of the contract.
func (f *fleet) child(name string) (*world, error) {
	secret, err := f.client.CoreV1().Secrets("default").Get(f.t.Context(), name+"-kubeconfig", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if secret.Type != "cluster.x-k8s.io/secret" || secret.Labels["cluster.x-k8s.io/cluster-name"] != name ||
		len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].Kind != "LocalControlPlane" {
		return nil, fmt.Errorf("the Secret is not as the contract asks: %s %v %v", secret.Type, secret.Labels, secret.OwnerReferences)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"])
	if err != nil {
		return nil, err
	}
	child := *f.world
	child.rest, child.client = config, kubernetes.NewForConfigOrDie(config)
	_, err = child.client.Discovery().ServerVersion()
	return &child, err
}

// directory returns the directory of the child's control plane.
func (f *fleet) directory(name string) string {
	f.t.Helper()
	object, err := f.get("LocalControlPlane", name)
	if err != nil {
		f.t.Fatal(err)
	}
	directory, _, _ := unstructured.NestedString(object.Object, "status", "directory")
	if directory == "" {
		f.t.Fatal("status names no directory")
	}
	return filepath.Join(f.run, "clusters", directory)
}

func controlPlaneProcess(t *testing.T, dir string) process.ID {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(strings.TrimSpace(string(raw)), &pid); err != nil {
		t.Fatal(err)
	}
	id, err := process.Lookup(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (f *fleet) deleteCluster(name string) {
	f.t.Helper()
	ctx := f.t.Context()
	if err := f.dynamic.Resource(resourceOf("Cluster")).Namespace("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		f.t.Fatal(err)
	}
	took := f.eventually(90*time.Second, name+" is gone", func() error {
		for _, kind := range []string{"Cluster", "LocalCluster", "LocalControlPlane"} {
			if _, err := f.get(kind, name); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %v", kind, err)
			}
		}
		return gone(f.client.CoreV1().Secrets("default").Get(ctx, name+"-kubeconfig", metav1.GetOptions{}))
	})
	f.t.Logf("cluster %s is gone %v after it was deleted", name, took)
}

func TestProvider(t *testing.T) {
	f := newFleet(t)
	ctx := t.Context()
	began := time.Now()
	apply(t, f.dynamic, clusterManifest("one", "", ""))
	// Whatever happens, nothing is to be left running.
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(f.mom, "node", "pods", "*provider*", "*.log"))
			for _, file := range logs {
				raw, _ := os.ReadFile(file)
				t.Logf("%s:\n%s", file, raw[max(0, len(raw)-3000):])
			}
		}
	})

	var child *world
	f.eventually(time.Minute, "one is initialised", func() error {
		var err error
		if child, err = f.child("one"); err != nil {
			return err
		}
		return f.initialized("one")
	})
	t.Logf("cluster one is initialised, with its Secret, %v after it was created", time.Since(began))
	f.eventually(30*time.Second, "one is available", func() error { return f.condition("Cluster", "one", "Available") })
	t.Logf("cluster one is Available %v after it was created", time.Since(began))
	for _, condition := range []string{"InfrastructureReady", "ControlPlaneAvailable", "ControlPlaneInitialized"} {
		if err := f.condition("Cluster", "one", condition); err != nil {
			t.Error(err)
		}
	}
	dir := f.directory("one")
	planeID := controlPlaneProcess(t, dir)
	nodeID, err := node.Running(filepath.Join(dir, "node"))
	if err != nil {
		t.Fatal(err)
	}

	t.Run("workload in the child", func(t *testing.T) {
		child := child.on(t)
		if _, err := child.client.AppsV1().Deployments("default").Create(ctx, sleeper("sleeper"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		child.awaitPod("default", "sleeper", 10*time.Second, "running", podReady)
	})

	t.Run("admission and conversion", func(t *testing.T) {
		f := f.on(t)
		old := schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta1", Resource: "clusters"}
		object, err := f.dynamic.Resource(old).Namespace("default").Get(ctx, "one", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if version, _, _ := unstructured.NestedString(object.Object, "spec", "controlPlaneRef", "apiVersion"); version != "controlplane.cluster.x-k8s.io/v1alpha1" {
			t.Errorf("controlPlaneRef.apiVersion is %q", version)
		}
		bad := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
			"metadata": map[string]any{"name": "bad", "namespace": "default"}, "spec": map[string]any{}}}
		if _, err := f.dynamic.Resource(resourceOf("Cluster")).Namespace("default").Create(ctx, bad, metav1.CreateOptions{}); err == nil {
			t.Error("a Cluster without references was accepted")
		}
	})

	t.Run("provider killed", func(t *testing.T) {
		f := f.on(t)
		pod := f.awaitPod("cascade-local-system", "provider", time.Second, "running", podReady)
		if err := syscall.Kill(processOf(t, pod), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		f.awaitPod("cascade-local-system", "provider", 20*time.Second, "restarted", func(pod *corev1.Pod) bool {
			return podReady(pod) && pod.Status.ContainerStatuses[0].RestartCount > 0
		})
		if !planeID.Alive() || !nodeID.Alive() {
			t.Fatal("the child died with the provider")
		}
		if _, err := child.client.Discovery().ServerVersion(); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("control plane killed", func(t *testing.T) {
		f := f.on(t)
		if err := planeID.Kill(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		took := f.eventually(time.Minute, "the child answers again", func() error {
			_, err := child.client.AppsV1().Deployments("default").Get(ctx, "sleeper", metav1.GetOptions{})
			return err
		})
		t.Logf("a killed control plane answers again after %v", took)
		if !nodeID.Alive() {
			t.Error("the node died with its control plane")
		}
		f.eventually(20*time.Second, "available", func() error { return f.condition("LocalControlPlane", "one", "Available") })
		planeID = controlPlaneProcess(t, dir)
	})

	t.Run("paused", func(t *testing.T) {
		f := f.on(t)
		pause := func(paused bool) {
			t.Helper()
			if _, err := f.dynamic.Resource(resourceOf("Cluster")).Namespace("default").Patch(ctx, "one", types.MergePatchType,
				fmt.Appendf(nil, `{"spec":{"paused":%t}}`, paused), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		pause(true)
		time.Sleep(500 * time.Millisecond)
		if err := planeID.Kill(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Second)
		if _, err := child.client.Discovery().ServerVersion(); err == nil {
			t.Error("the control plane of a paused Cluster was started")
		}
		pause(false)
		f.eventually(time.Minute, "the child answers again", func() error {
			_, err := child.client.Discovery().ServerVersion()
			return err
		})
		planeID = controlPlaneProcess(t, dir)
	})

	t.Run("delete", func(t *testing.T) {
		f := f.on(t)
		pods, err := child.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) != 1 {
			t.Fatalf("%d pods: %v", len(pods.Items), err)
		}
		work := processOf(t, &pods.Items[0])
		f.deleteCluster("one")
		if planeID.Alive() || nodeID.Alive() || processGone(work) != nil {
			t.Error("processes of the deleted cluster run")
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory is still there: %v", err)
		}
	})

	t.Run("slow order and several at once", func(t *testing.T) {
		f := f.on(t)
		began := time.Now()
		apply(t, f.dynamic, clusterManifest("slow", "order: Slow", ""))
		apply(t, f.dynamic, clusterManifest("named", "", "id: region-one, version: v1.36.3"))
		f.eventually(30*time.Second, "infrastructure comes first", func() error {
			object, err := f.get("LocalCluster", "slow")
			if err != nil {
				return err
			}
			if is, _, _ := unstructured.NestedBool(object.Object, "status", "initialization", "provisioned"); !is {
				return errors.New("not provisioned")
			}
			return nil
		})
		plane, err := f.get("LocalControlPlane", "slow")
		if err != nil {
			t.Fatal(err)
		}
		if is, _, _ := unstructured.NestedBool(plane.Object, "status", "initialization", "controlPlaneInitialized"); is {
			t.Error("the control plane was there before the infrastructure")
		}
		for _, name := range []string{"slow", "named"} {
			f.eventually(time.Minute, name+" is initialised", func() error { return f.initialized(name) })
		}
		t.Logf("two clusters are initialised %v after they were created", time.Since(began))
		if dir := f.directory("named"); filepath.Base(dir) != "region-one" {
			t.Errorf("the directory is %s", dir)
		}
		f.deleteCluster("slow")
		f.deleteCluster("named")
	})

	t.Run("capi killed", func(t *testing.T) {
		f := f.on(t)
		pod := f.awaitPod("capi-system", "capi", time.Second, "running", podReady)
		if err := syscall.Kill(processOf(t, pod), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		f.awaitPod("capi-system", "capi", time.Minute, "restarted", func(pod *corev1.Pod) bool {
			return podReady(pod) && pod.Status.ContainerStatuses[0].RestartCount > 0
		})
		// Both the webhooks and the conversion follow the new port and authority.
		apply(t, f.dynamic, clusterManifest("again", "", ""))
		old := schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta1", Resource: "clusters"}
		if _, err := f.dynamic.Resource(old).Namespace("default").Get(ctx, "again", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		f.eventually(time.Minute, "again is initialised", func() error { return f.initialized("again") })
		f.deleteCluster("again")
	})
}

func sleeper(name string) *appsv1.Deployment {
	deployment := testDeployment(name)
	deployment.Spec.Template.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none", Command: []string{"sleep", "600"}}}}
	return deployment
}
