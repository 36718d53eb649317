package profile

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var since = metav1.NewTime(time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC))

func child(change func(*v1alpha1.Child)) *v1alpha1.Child {
	c := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{
		Namespace: "fleet", Name: "a", UID: "u1", CreationTimestamp: metav1.NewTime(since.Add(-time.Hour)),
		Labels: map[string]string{
			"environment": "production", v1alpha1.OwnerLabel: "retail", v1alpha1.ProtectedLabel: "true",
			"kustomize.toolkit.fluxcd.io/name": "tenants", v1alpha1.LayerLabelGroup + "/name": "x", ManagerLabel: "another",
		},
	}}
	if change != nil {
		change(c)
	}
	return c
}

func TestOf(t *testing.T) {
	for _, c := range []struct {
		reason string
		child  *v1alpha1.Child
		status string
	}{
		{"nothing is known yet", child(nil), `
conditions:
- {type: ControlPlaneHealthy, status: Unknown, reason: Progressing, message: "", lastTransitionTime: "2030-01-02T02:04:05Z"}
- {type: Joined, status: Unknown, reason: Progressing, message: "", lastTransitionTime: "2030-01-02T02:04:05Z"}
`},
		{"all is", child(func(c *v1alpha1.Child) {
			c.Status.Conditions = []metav1.Condition{
				{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue, Reason: "Succeeded", Message: "it answers", LastTransitionTime: since},
				{Type: v1alpha1.SeededCondition, Status: metav1.ConditionFalse, Reason: "SeedFailed", Message: "no", LastTransitionTime: since},
				{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: "SeedFailed", LastTransitionTime: since},
			}
			c.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "k1"}
			c.Status.Version, c.Status.Provider, c.Status.Region, c.Status.Endpoint = "v1.36.3", "aws", "eu-west-1", "example.com:6443"
			c.Status.Report = &v1alpha1.Report{Revision: "main@sha1:1"}
			c.Status.Credentials = []v1alpha1.ChildCredential{{Name: "secret"}}
		}), `
conditions:
- {type: ControlPlaneHealthy, status: "True", reason: Succeeded, message: it answers, lastTransitionTime: "2030-01-02T03:04:05Z"}
- {type: Joined, status: "False", reason: SeedFailed, message: "no", lastTransitionTime: "2030-01-02T03:04:05Z"}
version: {kubernetes: v1.36.3}
properties:
- {name: cascade.dev/endpoint, value: "example.com:6443"}
- {name: cascade.dev/provider, value: aws}
- {name: cascade.dev/revision, value: "main@sha1:1"}
- {name: clusterset.k8s.io/cluster-id, value: k1}
- {name: topology.kubernetes.io/region, value: eu-west-1}
`},
	} {
		got := Of(c.child)
		var status any
		if err := yaml.Unmarshal([]byte(c.status), &status); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ClusterProfile",
			"metadata": map[string]any{
				"namespace": "fleet", "name": "a",
				"labels":          map[string]any{"environment": "production", "cascade.dev/owner": "retail", "x-k8s.io/cluster-manager": "cascade"},
				"annotations":     map[string]any{"cascade.dev/labels": "cascade.dev/owner,environment,x-k8s.io/cluster-manager"},
				"ownerReferences": []any{map[string]any{"apiVersion": "cascade.dev/v1alpha1", "kind": "Child", "name": "a", "uid": "u1", "controller": true}},
			},
			"spec":   map[string]any{"displayName": "a", "clusterManager": map[string]any{"name": "cascade"}},
			"status": status,
		}
		if diff := cmp.Diff(want, got.Object); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
		if object, status := Patch(got, Of(c.child)); object != nil || status != nil {
			t.Errorf("%s: it differs from itself: %v, %v", c.reason, object, status)
		}
	}
}

// TestBounds: what a child says of itself is no longer than the kind lets it be.
func TestBounds(t *testing.T) {
	long := strings.Repeat("ä", 100000)
	u := Of(child(func(c *v1alpha1.Child) {
		c.Status.Version, c.Status.Region, c.Status.Endpoint = long, long, "\xff"
		c.Status.Report = &v1alpha1.Report{Revision: long}
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionFalse, Reason: "Unreachable", Message: long, LastTransitionTime: since}}
	}))
	text, err := json.Marshal(u.Object)
	if err != nil || len(text) > 16<<10 || strings.Contains(string(text), "�") {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	list, _, err := unstructured.NestedSlice(u.Object, "status", "properties")
	if err != nil || len(list) != 2 {
		t.Errorf("properties are %v, %v", list, err)
	}
	for _, item := range list {
		if value := item.(map[string]any)["value"].(string); len(value) > 1024 {
			t.Errorf("a value has %d bytes", len(value))
		}
	}
}

func TestControls(t *testing.T) {
	ours := func(change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		u := Of(child(nil))
		change(u)
		return u
	}
	for _, c := range []struct {
		reason  string
		profile *unstructured.Unstructured
		uid     string
		want    bool
	}{
		{"made for the Child", ours(func(*unstructured.Unstructured) {}), "u1", true},
		{"made for a Child of the name", ours(func(*unstructured.Unstructured) {}), "", true},
		{"made for the Child before", ours(func(*unstructured.Unstructured) {}), "u2", false},
		{"nobody's", ours(func(u *unstructured.Unstructured) { u.SetOwnerReferences(nil) }), "", false},
		{"of another manager", ours(func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{ManagerLabel: "fleet"}) }), "u1", false},
		{"of another kind", ours(func(u *unstructured.Unstructured) {
			u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "a", UID: "u1", Controller: new(true)}})
		}), "u1", false},
		{"of a kind of that name", ours(func(u *unstructured.Unstructured) {
			u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Child", Name: "a", UID: "u1", Controller: new(true)}})
		}), "u1", false},
		{"owned, not controlled", ours(func(u *unstructured.Unstructured) {
			u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "cascade.dev/v1alpha1", Kind: "Child", Name: "a", UID: "u1"}})
		}), "u1", false},
	} {
		if got := Controls(c.profile, metav1.ObjectMeta{Name: "a", UID: types.UID(c.uid)}); got != c.want {
			t.Errorf("%s: %t", c.reason, got)
		}
	}
}

// TestPatch: labels and parts of the status that others write are no difference, what is ours is.
func TestPatch(t *testing.T) {
	label := func(key, value string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) {
			l := u.GetLabels()
			l[key] = value
			u.SetLabels(l)
		}
	}
	status := func(u *unstructured.Unstructured) map[string]any { return u.Object["status"].(map[string]any) }
	for _, c := range []struct {
		reason         string
		child          *v1alpha1.Child
		change         func(*unstructured.Unstructured)
		object, status string
	}{
		{"nothing", child(nil), func(*unstructured.Unstructured) {}, "", ""},
		{"a label of others", child(nil), label("theirs", "x"), "", ""},
		{"a label of ours", child(nil), label("environment", "x"), `{environment: production}`, ""},
		{"a label that the Child lost", child(func(c *v1alpha1.Child) { delete(c.Labels, "environment") }), label("theirs", "x"), `{environment: null}`, ""},
		{"and that somebody took off already", child(func(c *v1alpha1.Child) { delete(c.Labels, "environment") }), func(u *unstructured.Unstructured) {
			l := u.GetLabels()
			delete(l, "environment")
			u.SetLabels(l)
		}, `{}`, ""},
		{"the name for people", child(nil), func(u *unstructured.Unstructured) { u.Object["spec"].(map[string]any)["displayName"] = "x" }, `{}`, ""},
		{"a way in, of others", child(nil), func(u *unstructured.Unstructured) { status(u)["accessProviders"] = []any{map[string]any{"name": "x"}} }, "", ""},
		{"a version that is not known any more", child(nil), func(u *unstructured.Unstructured) { status(u)["version"] = map[string]any{"kubernetes": "v1"} }, "", `{version: null}`},
		{"a property", child(func(c *v1alpha1.Child) { c.Status.Region = "eu" }), func(*unstructured.Unstructured) {}, "", `{properties: [{name: topology.kubernetes.io/region, value: eu}]}`},
	} {
		has := Of(child(nil))
		has.SetUID("p1")
		c.change(has)
		object, told := Patch(has, Of(c.child))
		for _, got := range []struct {
			patch map[string]any
			want  string
			path  []string
		}{{object, c.object, []string{"metadata", "labels"}}, {told, c.status, []string{"status"}}} {
			if got.want == "" {
				if got.patch != nil {
					t.Errorf("%s: there is a patch %v", c.reason, got.patch)
				}
				continue
			}
			var want any
			if err := yaml.Unmarshal([]byte(got.want), &want); err != nil {
				t.Fatal(err)
			}
			part, _, _ := unstructured.NestedFieldNoCopy(got.patch, got.path...)
			if diff := cmp.Diff(want, part); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
			if uid, _, _ := unstructured.NestedString(got.patch, "metadata", "uid"); uid != "p1" {
				t.Errorf("%s: the patch holds for %q", c.reason, uid)
			}
		}
	}
}
