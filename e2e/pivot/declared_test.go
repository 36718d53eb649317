package pivot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/pivot"
	"github.com/cascade-gitops/cascade/pivot/management"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// TestDeclared: a Layer says spec.management, and the Cluster goes to the cluster itself, here
// the other of two control planes, and comes back. What keeps it is told in the Child.
func TestDeclared(t *testing.T) {
	scenario.Alongside(t)
	w := startTiers(t, false)
	crds, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds {
		if err := w.client["mom"].Create(t.Context(), crd); err != nil {
			t.Fatal(err)
		}
	}
	scenario.Eventually(t, scenario.Converge, "our kinds are served", func(ctx context.Context) error {
		return errors.Join(w.client["mom"].List(ctx, &v1alpha1.LayerList{}), w.client["mom"].List(ctx, &v1alpha1.ChildList{}))
	})
	kubeconfig, err := os.ReadFile(w.by["master"].Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	w.apply(t, "mom", fixtures)
	secret := &corev1.Secret{}
	if err := w.client["mom"].Get(t.Context(), client.ObjectKey{Namespace: "fleet", Name: "classy-kubeconfig"}, secret); err != nil {
		t.Fatal(err)
	}
	secret.Data[clusterapi.KubeconfigKey] = kubeconfig
	if err := w.client["mom"].Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{}
	if err := w.client["master"].Get(t.Context(), client.ObjectKey{Name: "kube-system"}, ns); err != nil {
		t.Fatal(err)
	}
	child := &v1alpha1.Child{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "classy", Labels: map[string]string{"cascade.dev/tier": "master"}},
		Spec:       v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "classy"}},
	}
	layer := &v1alpha1.Layer{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "masters"},
		Spec:       v1alpha1.LayerSpec{ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"cascade.dev/tier": "master"}}, Prune: true},
	}
	for _, o := range []client.Object{child, layer} {
		if err := w.client["mom"].Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: string(ns.UID)}
	if err := w.client["mom"].Status().Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	d := &declared{tiers: w, reconciler: &management.Reconciler{
		Client: w.client["mom"], Side: pivot.Side{Name: "mom", Client: w.client["mom"], Namespace: v1alpha1.AgentNamespace},
		Selects: func(client.Object) bool { return true }, Events: record.NewFakeRecorder(100), Holder: "agent", Program: "test", Now: time.Now,
		Elsewhere: func(ctx context.Context, name types.NamespacedName) (bool, error) {
			cm := &corev1.ConfigMap{}
			err := w.client["mom"].Get(ctx, client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}, cm)
			return firstsync.ManagedBy(cm, name) != "", err
		},
	}}

	d.step(t)
	if c := d.condition(t); c != nil {
		t.Fatalf("nobody declares anything, and the Child says %s: %s", c.Reason, c.Message)
	}
	d.declare(t, v1alpha1.ManagementSelf)
	d.until(t, v1alpha1.ReasonPivotWaiting, "its layers")
	d.seeded(t)
	d.until(t, v1alpha1.ReasonPivotBlocked, pivot.ReasonProviderNotRunning)
	if u := w.is(t, "mom", "cluster.x-k8s.io/v1beta2", "Cluster", "classy"); clusterapi.IsPaused(u) {
		t.Error("the Cluster is paused, though the pivot did not begin")
	}
	for _, tier := range []string{"mom", "master"} {
		d.provider(t, tier)
	}
	d.until(t, v1alpha1.ReasonManagedElsewhere, "another management cluster")
	d.at(t, "master", "mom")
	if w.is(t, "mom", "v1", "Secret", "classy-kubeconfig") == nil {
		t.Fatal("the parent does not have the kubeconfig any more")
	}

	d.declare(t, v1alpha1.ManagementParent)
	d.until(t, v1alpha1.ReasonPivotBlocked, pivot.ReasonHalfProvisioned)
	u := w.is(t, "master", "cluster.x-k8s.io/v1beta2", "Cluster", "classy")
	u.Object["status"] = map[string]any{"initialization": map[string]any{"infrastructureProvisioned": true, "controlPlaneInitialized": true}}
	if err := w.client["master"].Status().Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	d.until(t, v1alpha1.ReasonManagedHere, "this tier")
	d.at(t, "mom", "master")

	d.declare(t, "")
	d.until(t, "", "")
	w.deletedBy(t, "stage", "cascade-parent/test")
}

type declared struct {
	*tiers
	reconciler *management.Reconciler
}

func (d *declared) step(t *testing.T) {
	t.Helper()
	key := types.NamespacedName{Namespace: "fleet", Name: "classy"}
	if _, err := d.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
		t.Fatal(err)
	}
}

func (d *declared) child(t *testing.T) *v1alpha1.Child {
	t.Helper()
	child := &v1alpha1.Child{}
	if err := d.client["mom"].Get(t.Context(), client.ObjectKey{Namespace: "fleet", Name: "classy"}, child); err != nil {
		t.Fatal(err)
	}
	return child
}

func (d *declared) condition(t *testing.T) *metav1.Condition {
	t.Helper()
	return meta.FindStatusCondition(d.child(t).Status.Conditions, v1alpha1.ManagementCondition)
}

func (d *declared) declare(t *testing.T, m v1alpha1.Management) {
	t.Helper()
	layer := &v1alpha1.Layer{}
	if err := d.client["mom"].Get(t.Context(), client.ObjectKey{Namespace: "fleet", Name: "masters"}, layer); err != nil {
		t.Fatal(err)
	}
	layer.Spec.Management = m
	if err := d.client["mom"].Update(t.Context(), layer); err != nil {
		t.Fatal(err)
	}
}

// seeded has the Child say that it is connected and has its layers.
func (d *declared) seeded(t *testing.T) {
	t.Helper()
	child := d.child(t)
	for _, kind := range []string{v1alpha1.ConnectedCondition, v1alpha1.SeededCondition} {
		meta.SetStatusCondition(&child.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded})
	}
	if err := d.client["mom"].Status().Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
}

// provider has a tier have a controller of each provider that is ready: nodes are not there,
// so that the test says of the pods of both Deployments what a kubelet would.
func (d *declared) provider(t *testing.T, tier string) {
	t.Helper()
	for _, name := range []string{"infrastructure-test", "cluster-api"} {
		labels := map[string]string{"app": name}
		deployment := &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{clusterapi.ProviderLabel: name}},
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "example.com/x"}}}},
			},
		}
		if err := d.client[tier].Create(t.Context(), deployment); err != nil {
			t.Fatal(err)
		}
		scenario.Eventually(t, scenario.Converge, "Deployment "+name+" is available in "+tier, func(ctx context.Context) error {
			pods := &corev1.PodList{}
			if err := d.client[tier].List(ctx, pods, client.InNamespace("default"), client.MatchingLabels(labels)); err != nil {
				return err
			}
			for i := range pods.Items {
				pods.Items[i].Status.Phase = corev1.PodRunning
				pods.Items[i].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
				if err := d.client[tier].Status().Update(ctx, &pods.Items[i]); err != nil {
					return err
				}
			}
			is := &appsv1.Deployment{}
			if err := d.client[tier].Get(ctx, client.ObjectKeyFromObject(deployment), is); err != nil {
				return err
			}
			if is.Status.AvailableReplicas == 0 {
				return fmt.Errorf("no pod of %d is available", len(pods.Items))
			}
			return nil
		})
	}
}

// until reconciles until the Child has a reason with a text.
func (d *declared) until(t *testing.T, reason, text string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "the Child says "+reason, func(context.Context) error {
		d.step(t)
		c := d.condition(t)
		switch {
		case c == nil && reason == "":
			return nil
		case c == nil:
			return fmt.Errorf("it says nothing")
		case c.Reason != reason || !strings.Contains(c.Message, text):
			return fmt.Errorf("it says %s: %s", c.Reason, c.Message)
		}
		return nil
	})
}

// at fails unless one tier acts on the Cluster, and the other does not have it.
func (d *declared) at(t *testing.T, tier, other string) {
	t.Helper()
	u := d.is(t, tier, "cluster.x-k8s.io/v1beta2", "Cluster", "classy")
	if u == nil || clusterapi.IsPaused(u) {
		t.Errorf("%s does not act on the Cluster", tier)
	}
	if d.is(t, other, "cluster.x-k8s.io/v1beta2", "Cluster", "classy") != nil {
		t.Errorf("%s still has the Cluster", other)
	}
}
