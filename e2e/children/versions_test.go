package children

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestClusterVersions has a management cluster that moves on under a running agent: from
// Clusters of v1beta1 alone to Cluster API 1.13, which serves both versions, to 1.14, and
// to v1beta2 alone. Core's managers and their conversions are the real ones. Commits go on
// to reach the children, new Clusters are seen, and nothing is taken as deleted.
func TestClusterVersions(t *testing.T) {
	scenario.Alongside(t)
	h := startHub(t, "v1beta1")
	f := h.fleet(t, "versions", map[string]string{"app/note.yaml": noteNamed("note", "cluster", "${cluster_name}", "commit", "1")})
	f.version = "v1beta1"
	f.layer(t, "app", "old")
	v := &versions{
		fleet: f, hub: &plane{Tier: h.tier, client: h.client}, uids: map[string]types.UID{},
		planes: map[string]*plane{"old": h.plane(t, "old")},
	}
	v.provider(t)
	t.Cleanup(func() { v.end(t) })
	steps(t,
		step{"Former", func(t *testing.T) {
			v.join(t, "old", map[string]any{"infrastructureReady": true, "controlPlaneReady": true, "conditions": []any{map[string]any{
				"type": "ControlPlaneInitialized", "status": "True", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
			}}})
			v.from = v.hub.now(t)
		}},
		step{"Both", func(t *testing.T) {
			v.core(t, "capi-manager", "capi")
			f.version = "v1beta2"
			v.reaches(t, "2")
			f.declare(t, "young")
			f.says(t, "young", v1alpha1.ConnectedCondition, v1alpha1.ReasonNoLayer)
		}},
		step{"NextMinor", func(t *testing.T) {
			v.core(t, "capi-manager-next", "capi-next")
			v.reaches(t, "3")
		}},
		step{"Dropped", func(t *testing.T) {
			v.drop(t, "v1beta1")
			v.reaches(t, "4")
			// What changes on a Cluster is seen, and what is new.
			f.patch(t, f.cluster(t, "old"), map[string]any{"metadata": map[string]any{"labels": map[string]any{"ring": "one"}}})
			scenario.Eventually(t, scenario.Converge, "the Child has the Cluster's new label", func(ctx context.Context) error {
				child, err := f.child(ctx, "old")
				if err == nil && child.Labels["ring"] != "one" {
					err = fmt.Errorf("the labels are %v", child.Labels)
				}
				return err
			})
			f.declare(t, "new")
			f.says(t, "new", v1alpha1.ConnectedCondition, v1alpha1.ReasonNoLayer)
			v.reaches(t, "5")
		}},
		check{"NothingIsLost", func(t *testing.T) { v.kept(t) }},
		step{"Deleted", func(t *testing.T) {
			u := f.cluster(t, "young")
			f.patch(t, u, map[string]any{"metadata": map[string]any{"finalizers": []any{}}})
			if err := f.client.Delete(t.Context(), u); client.IgnoreNotFound(err) != nil {
				t.Fatal(err)
			}
			scenario.Eventually(t, scenario.Converge, "the Child of a deleted Cluster goes", func(ctx context.Context) error {
				child, err := f.child(ctx, "young")
				if err == nil {
					return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
				}
				return client.IgnoreNotFound(err)
			})
		}},
	)
}

// versions is a management cluster that moves on.
type versions struct {
	*fleet
	hub *plane
	// planes are the clusters that join, uids are those of their Children.
	planes map[string]*plane
	uids   map[string]types.UID
	// from is where the audit log of the hub was before anything moved.
	from int64
	// stop ends the manager of core that runs; nil if none does.
	stop func() error
}

// end ends the manager of core, if one runs.
func (v *versions) end(t *testing.T) {
	t.Helper()
	if v.stop == nil {
		return
	}
	if err := v.stop(); err != nil {
		t.Errorf("the manager of Cluster API ended before its time: %.2000s", err)
	}
	v.stop = nil
}

// provider installs the kinds that Clusters refer to, which conversions look at.
func (v *versions) provider(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(scenario.Path(t, "e2e", "local", "config", "crd", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("cannot find the kinds of the local provider: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd, err := ssautil.ReadObject(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		v.apply(t, crd)
	}
}

// join declares a cluster and waits until its layer is in place.
func (v *versions) join(t *testing.T, name string, status map[string]any) {
	t.Helper()
	p := v.planes[name]
	v.declare(t, name)
	v.report(t, name, status)
	v.handOver(t, name, p.issue(t).kubeconfig)
	p.has(t, "note", "cluster", name)
	v.uids[name] = v.ready(t, name, "").UID
}

// core runs Cluster API's manager of a version, in the place of the one before.
func (v *versions) core(t *testing.T, manager, manifests string) {
	t.Helper()
	v.end(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	args := []string{
		"capi", "--kubeconfig", v.tier.Kubeconfig(), "--health-addr", address,
		"--manager", scenario.Path(t, "bin", manager), "--manifests", scenario.Path(t, "bin", manifests),
	}
	ended := make(chan error, 1)
	go func() {
		_, err := v.Run(ctx, "cascade-local", args...)
		if ctx.Err() != nil {
			err = nil // it was asked to
		}
		ended <- err
	}()
	v.stop = func() error {
		cancel()
		return <-ended
	}
	scenario.Eventually(t, time.Minute, manager+" is ready", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("it says %s", response.Status)
		}
		return nil
	})
}

// drop has the API server not serve a version of Clusters any more.
func (v *versions) drop(t *testing.T, version string) {
	t.Helper()
	crd := stage.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	if err := v.client.Get(t.Context(), client.ObjectKey{Name: clusterapi.ClusterCRD}, crd); err != nil {
		t.Fatal(err)
	}
	all, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range all {
		if item := item.(map[string]any); item["name"] == version {
			item["served"] = false
		}
	}
	v.patch(t, crd, map[string]any{"spec": map[string]any{"versions": all}})
	scenario.Eventually(t, scenario.Converge, version+" is not served", func(ctx context.Context) error {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("cluster.x-k8s.io/" + version)
		list.SetKind("ClusterList")
		if err := v.client.List(ctx, list); err == nil {
			return fmt.Errorf("%d Clusters are listed in %s", len(list.Items), version)
		}
		return nil
	})
}

// reaches commits a value, and waits until the children have it.
func (v *versions) reaches(t *testing.T, value string) {
	t.Helper()
	sha := v.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "cluster", "${cluster_name}", "commit", value)})
	for name, p := range v.planes {
		p.has(t, "note", "commit", value)
		v.ready(t, name, sha)
	}
}

// kept fails the test if the agent deleted anything, or if a Child is another one.
func (v *versions) kept(t *testing.T) {
	t.Helper()
	for _, e := range v.hub.writes(t, v.from) {
		if e.Verb == "delete" || e.Verb == "deletecollection" {
			t.Errorf("%s %s by %s", e.Verb, e.RequestURI, e.User.Username)
		}
	}
	for name, uid := range v.uids {
		child, err := v.child(t.Context(), name)
		if err != nil || child.UID != uid {
			t.Errorf("Child %s is %s, it was %s: %v", name, child.UID, uid, err)
		}
		ref, _, err := unstructured.NestedStringMap(v.cluster(t, name).Object, "spec", "infrastructureRef")
		if err != nil || ref["kind"] != "LocalCluster" || ref["name"] != name {
			t.Errorf("Cluster %s refers to %v: %v", name, ref, err)
		}
	}
}
