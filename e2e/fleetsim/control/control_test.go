package control

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/e2e/fleetsim"
)

// TestControl does by HTTP what a fleet can do.
func TestControl(t *testing.T) {
	f, err := fleetsim.Start(fleetsim.Options{Record: true, Complain: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	server := httptest.NewServer(Handler(f))
	defer server.Close()
	c, ctx := Client{URL: server.URL}, t.Context()
	add := func() *kubernetes.Clientset {
		t.Helper()
		kubeconfigs, err := c.Add(ctx, Addition{Names: []string{"a", "b"}, Credential: fleetsim.Token, Life: time.Hour})
		if err != nil || len(kubeconfigs) != 2 {
			t.Fatalf("%d kubeconfigs: %v", len(kubeconfigs), err)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfigs[0])
		if err != nil {
			t.Fatal(err)
		}
		api, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return api
	}
	api := add()
	before, err := api.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.CoreV1().Namespaces().Delete(ctx, "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	counts, err := c.Counts(ctx)
	if err != nil || counts["get namespaces"] != 1 || counts["delete namespaces"] != 1 {
		t.Errorf("counts are %v: %v", counts, err)
	}
	if n, err := c.Reached(ctx, "get namespaces"); err != nil || len(n) != 1 {
		t.Errorf("%d clusters were reached, want 1: %v", len(n), err)
	}
	writes, err := c.Writes(ctx)
	if err != nil || len(writes) != 1 || writes[0].Name != "default" || writes[0].Cluster != "a" || !writes[0].Changed {
		t.Errorf("writes are %+v: %v", writes, err)
	}
	if err := c.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if counts, err := c.Counts(ctx); err != nil || len(counts) != 0 {
		t.Errorf("after Reset counts are %v: %v", counts, err)
	}
	for _, order := range []func() error{
		func() error { return c.Rotate(ctx, "a") },
		func() error { return c.Revoke(ctx, true, "a") },
	} {
		if err := order(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := api.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("after Revoke: got %v, want Unauthorized", err)
	}
	if err := c.Recreate(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	after, err := add().CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{})
	if err != nil || after.UID == before.UID {
		t.Errorf("after Recreate the UID is %s, before %s: %v", after.UID, before.UID, err)
	}
	if err := c.SetFaults(ctx, []string{"b"}, fleetsim.Faults{Throttle: 1}); err != nil || f.Cluster("b").Faults().Throttle != 1 {
		t.Errorf("faults are %+v: %v", f.Cluster("b").Faults(), err)
	}
	if err := c.SetFaults(ctx, []string{"none"}, fleetsim.Faults{}); err == nil || !strings.Contains(err.Error(), "no cluster none") {
		t.Errorf("an unknown cluster: %v", err)
	}
	if s, err := c.Stats(ctx); err != nil || s.Clusters != 2 {
		t.Errorf("stats are %+v: %v", s, err)
	}
}
