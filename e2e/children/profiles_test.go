package children

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestClusterProfiles: when the kind is installed, a running agent keeps a ClusterProfile for
// each Child, and touches no other one. The hub has the controllers of Kubernetes, one of
// which deletes what a Child controlled.
func TestClusterProfiles(t *testing.T) {
	scenario.Alongside(t)
	h := openHubOn(t, nil, "--observe-interval", observeInterval.String())
	h.installAll(t, "v1beta2")
	h.startAgent(t)
	x := &inventoried{fleet: h.fleet(t, "inventory", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})}
	x.layer(t, "app", "a")
	x.plane = h.plane(t, "a")
	x.patch(t, x.declare(t, "a"), map[string]any{"metadata": map[string]any{"labels": map[string]any{"environment": "production", v1alpha1.OwnerLabel: "retail"}}})
	x.report(t, "a", initialized)
	x.handOver(t, "a", x.plane.issue(t).kubeconfig)
	x.declare(t, "theirs")
	x.ready(t, "a", "")
	steps(t,
		step{"Installed", x.installed},
		step{"OthersStay", x.othersStay},
		step{"Corrected", x.corrected},
		step{"FollowsTheChild", x.follows},
		step{"GoesWithTheChild", x.goes},
	)
}

// inventoried is a fleet whose hub has the inventory of SIG Multicluster.
type inventoried struct {
	*fleet
	plane *plane
}

// read reads a profile.
func (x *inventoried) read(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	u := object("multicluster.x-k8s.io/v1alpha1", "ClusterProfile", x.name, name)
	return u, x.client.Get(ctx, client.ObjectKeyFromObject(u), u)
}

// says waits until a profile is as wanted.
func (x *inventoried) says(t *testing.T, name, what string, is func(*unstructured.Unstructured) error) *unstructured.Unstructured {
	t.Helper()
	var u *unstructured.Unstructured
	scenario.Eventually(t, scenario.Converge, "the profile of "+name+" "+what, func(ctx context.Context) (err error) {
		if u, err = x.read(ctx, name); err != nil {
			return err
		}
		return is(u)
	})
	return u
}

// conditionIs is an error unless a condition of a profile has a status.
func conditionIs(u *unstructured.Unstructured, kind, status string) error {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, item := range list {
		if c := item.(map[string]any); c["type"] == kind && c["status"] == status {
			return nil
		}
	}
	return fmt.Errorf("condition %s is not %s: %v", kind, status, list)
}

// property of a profile, empty if it has none of the name.
func property(u *unstructured.Unstructured, name string) string {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "properties")
	for _, item := range list {
		if p := item.(map[string]any); p["name"] == name {
			return p["value"].(string)
		}
	}
	return ""
}

// installed: a tier without the kind has nothing of it; some time after it is installed, there
// is a profile with what the Child says, and without a way in.
func (x *inventoried) installed(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "clusterprofiles.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crd, err := ssautil.ReadObject(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	x.apply(t, crd)
	// One that somebody else made, under the name of a child.
	theirs := object("multicluster.x-k8s.io/v1alpha1", "ClusterProfile", x.name, "theirs")
	theirs.SetLabels(map[string]string{"x-k8s.io/cluster-manager": "another"})
	theirs.Object["spec"] = map[string]any{"clusterManager": map[string]any{"name": "another"}}
	scenario.Eventually(t, scenario.Converge, "the kind is served", func(ctx context.Context) error {
		if err := x.client.Create(ctx, theirs); !apierrors.IsAlreadyExists(err) {
			return err
		}
		return nil
	})
	child, err := x.child(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	u := x.says(t, "a", "says that the child is well", func(u *unstructured.Unstructured) error {
		if err := conditionIs(u, "ControlPlaneHealthy", "True"); err != nil {
			return err
		}
		return conditionIs(u, "Joined", "True")
	})
	version, _, _ := unstructured.NestedString(u.Object, "status", "version", "kubernetes")
	manager, _, _ := unstructured.NestedString(u.Object, "spec", "clusterManager", "name")
	owner := metav1.GetControllerOf(u)
	if version != child.Status.Version || version == "" || manager != "cascade" || property(u, "clusterset.k8s.io/cluster-id") != child.Status.Identity.KubeSystemUID ||
		u.GetLabels()["x-k8s.io/cluster-manager"] != "cascade" || u.GetLabels()["environment"] != "production" || u.GetLabels()[v1alpha1.OwnerLabel] != "retail" ||
		owner == nil || owner.UID != child.UID {
		t.Errorf("the profile is %v", u.Object)
	}
	if providers, ok, _ := unstructured.NestedFieldNoCopy(u.Object, "status", "accessProviders"); ok {
		t.Errorf("the profile has a way in: %v", providers)
	}
}

// othersStay: the profile of somebody else is as it was, and the child says so.
func (x *inventoried) othersStay(t *testing.T) {
	scenario.Eventually(t, scenario.Converge, "the child has an event", func(ctx context.Context) error {
		list := &corev1.EventList{}
		if err := x.client.List(ctx, list, client.InNamespace(x.name)); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == v1alpha1.ReasonProfileNotOurs && e.InvolvedObject.Name == "theirs" {
				return nil
			}
		}
		return fmt.Errorf("none of %d", len(list.Items))
	})
	u, err := x.read(t.Context(), "theirs")
	if err != nil || u.GetGeneration() != 1 || u.Object["status"] != nil || len(u.GetOwnerReferences()) > 0 || u.GetLabels()["x-k8s.io/cluster-manager"] != "another" {
		t.Errorf("the profile of another manager is %v, %v", u, err)
	}
}

// corrected: what somebody changes of ours is put right, and a way in that somebody adds stays.
func (x *inventoried) corrected(t *testing.T) {
	u, err := x.read(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	access := `{"status": {"version": {"kubernetes": "v0"}, "accessProviders": [{"name": "theirs"}]}}`
	if err := x.client.Status().Patch(t.Context(), u, client.RawPatch(types.MergePatchType, []byte(access))); err != nil {
		t.Fatal(err)
	}
	x.patch(t, u, map[string]any{"spec": map[string]any{"displayName": "another"}})
	x.says(t, "a", "is put right", func(u *unstructured.Unstructured) error {
		name, _, _ := unstructured.NestedString(u.Object, "spec", "displayName")
		version, _, _ := unstructured.NestedString(u.Object, "status", "version", "kubernetes")
		providers, _, _ := unstructured.NestedSlice(u.Object, "status", "accessProviders")
		if name != "a" || version == "v0" || len(providers) != 1 {
			return fmt.Errorf("it is %v", u.Object)
		}
		return nil
	})
}

// follows: labels of the Cluster, and a control plane that does not answer, show.
func (x *inventoried) follows(t *testing.T) {
	x.patch(t, x.cluster(t, "a"), map[string]any{"metadata": map[string]any{"labels": map[string]any{"environment": "staging"}}})
	x.says(t, "a", "has the label", func(u *unstructured.Unstructured) error {
		if got := u.GetLabels()["environment"]; got != "staging" {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
	t.Cleanup(func() { _ = x.plane.Signal(syscall.SIGCONT) }) // it could not end otherwise
	for _, c := range []struct {
		signal syscall.Signal
		status string
	}{{syscall.SIGSTOP, "False"}, {syscall.SIGCONT, "True"}} {
		if err := x.plane.Signal(c.signal); err != nil {
			t.Fatal(err)
		}
		x.says(t, "a", "says whether the control plane answers: "+c.status, func(u *unstructured.Unstructured) error {
			return conditionIs(u, "ControlPlaneHealthy", c.status)
		})
	}
}

// goes: with the Cluster the Child goes, and with the Child its profile; the other one stays.
func (x *inventoried) goes(t *testing.T) {
	for _, name := range []string{"a", "theirs"} {
		cluster := x.cluster(t, name)
		if err := x.client.Delete(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
		x.patch(t, cluster, map[string]any{"metadata": map[string]any{"finalizers": nil}})
	}
	scenario.Eventually(t, scenario.Converge, "the Children and the profile are gone", func(ctx context.Context) error {
		for _, name := range []string{"a", "theirs"} {
			if _, err := x.child(ctx, name); !apierrors.IsNotFound(err) {
				return fmt.Errorf("Child %s is there: %w", name, err)
			}
		}
		if _, err := x.read(ctx, "a"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the profile is there: %w", err)
		}
		return nil
	})
	if _, err := x.read(t.Context(), "theirs"); err != nil {
		t.Errorf("the profile of another manager: %v", err)
	}
}
