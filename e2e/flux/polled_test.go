package flux

import (
	"context"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestPolledCluster counts, at the API server of a cluster of spec.kubeConfig, what an
// interval costs in which nothing changes: a list for each kind and namespace. A change
// of an object there is found by it.
func TestPolledCluster(t *testing.T) {
	scenario.Alongside(t)
	files := map[string]string{}
	for i := range 10 {
		name := fmt.Sprintf("a-%d", i)
		files["app/"+name+".yaml"] = scenario.ConfigMapWith(name, "", "{k: v}") + "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: " + name + "}\n"
	}
	r := scenario.StartTier(t).RowNamed(t, "polled", files)
	other, err := r.Cluster(t.Context(), "polled")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(other.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "other"}, Data: map[string][]byte{"value": kubeconfig}}
	if err := r.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	r.Kustomization(t, "app", "{interval: 2s, targetNamespace: default, kubeConfig: {secretRef: {name: other}}}")
	r.Ready(t, "app")

	config, err := other.Config()
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	passes := func() int {
		t.Helper()
		all, err := scenario.Passes(t.Context(), r.MoM, "Kustomization", r.Namespace)
		if err != nil {
			t.Fatal(err)
		}
		return all["app"]
	}
	passed := func(n int) {
		t.Helper()
		from := passes()
		scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%d passes", n), func(context.Context) error {
			if now := passes(); now < from+n {
				return fmt.Errorf("%d passes", now-from)
			}
			return nil
		})
	}
	passed(2) // the first pass may still be under way
	resources := []string{"configmaps", "serviceaccounts"}
	begun, before := passes(), scenario.Served(t, kube, resources...)
	passed(4)
	served, most := scenario.Served(t, kube, resources...), passes()-begun+1
	for key, n := range served {
		n -= before[key]
		switch key {
		case "LIST configmaps", "LIST serviceaccounts":
			if n > most {
				t.Errorf("%s: %d for %d intervals", key, n, most)
			}
		default:
			if n > 0 {
				t.Errorf("%s: %d, want none", key, n)
			}
		}
	}

	changed, err := kube.CoreV1().ConfigMaps("default").Get(t.Context(), "a-3", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changed.Data["k"] = "somebody's"
	if _, err := kube.CoreV1().ConfigMaps("default").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := kube.CoreV1().ServiceAccounts("default").Delete(t.Context(), "a-4", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the change is corrected", func(ctx context.Context) error {
		now, err := kube.CoreV1().ConfigMaps("default").Get(ctx, "a-3", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.Data["k"] != "v" {
			return fmt.Errorf("it has %v", now.Data)
		}
		_, err = kube.CoreV1().ServiceAccounts("default").Get(ctx, "a-4", metav1.GetOptions{})
		return err
	})
}
