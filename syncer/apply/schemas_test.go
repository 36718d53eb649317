package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/cascade-gitops/cascade/inventory"
)

// discovering is an API server as far as discovery goes.
type discovering struct {
	mu      sync.Mutex
	tag     string
	kinds   []string // of group x.dev/v1
	stale   bool
	bodies  int
	replies int
}

func (d *discovering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.replies++
	tag, list := `"core"`, apidiscovery.APIGroupDiscoveryList{}
	version := apidiscovery.APIVersionDiscovery{Version: "v1", Freshness: apidiscovery.DiscoveryFreshnessCurrent}
	add := func(kind string) {
		version.Resources = append(version.Resources, apidiscovery.APIResourceDiscovery{
			Resource: strings.ToLower(kind) + "s", Scope: apidiscovery.ScopeNamespace, Verbs: []string{"get", "list"},
			ResponseKind: &metav1.GroupVersionKind{Kind: kind, Version: "v1"},
		})
	}
	group := apidiscovery.APIGroupDiscovery{}
	switch {
	case r.URL.Path == "/c/a/api":
		add("ConfigMap")
	case r.URL.Path == "/c/a/apis":
		tag, group.Name = d.tag, "x.dev"
		for _, k := range d.kinds {
			add(k)
		}
		if d.stale {
			version.Freshness = apidiscovery.DiscoveryFreshnessStale
		}
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	d.bodies++
	group.Versions = []apidiscovery.APIVersionDiscovery{version}
	list.Items = []apidiscovery.APIGroupDiscovery{group}
	_ = json.NewEncoder(w).Encode(list)
}

func (d *discovering) serve(tag string, kinds ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tag, d.kinds = fmt.Sprintf("%q", tag), kinds
}

func attach(t *testing.T, d *discovering, schemas *Schemas) *Cluster {
	t.Helper()
	s := httptest.NewServer(d)
	t.Cleanup(s.Close)
	c, err := Attach(s.URL+"/c/a", s.Client(), scheme.Scheme, schemas, &Kinds{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mapped(t *testing.T, c *Cluster, kind string) bool {
	t.Helper()
	m, err := c.RESTMapper().RESTMapping(schema.GroupKind{Group: "x.dev", Kind: kind})
	if err != nil && !meta.IsNoMatchError(err) {
		t.Fatal(err)
	}
	return err == nil && m.Resource.Resource == strings.ToLower(kind)+"s"
}

func TestSchemasAreShared(t *testing.T) {
	schemas := NewSchemas()
	first := &discovering{}
	first.serve("one", "Thing")
	a := attach(t, first, schemas)
	if !mapped(t, a, "Thing") || first.bodies != 2 {
		t.Fatalf("%d bodies, want two", first.bodies)
	}
	if !mapped(t, a, "Thing") || first.replies != 2 {
		t.Errorf("%d requests for what is known", first.replies)
	}
	for range 5 {
		second := &discovering{}
		second.serve("one", "Thing")
		b := attach(t, second, schemas)
		if !mapped(t, b, "Thing") || second.bodies != 2 || second.replies != 2 {
			t.Errorf("another cluster that serves the same: %d bodies in %d replies, want two in two", second.bodies, second.replies)
		}
		if _, err := b.kinds.now(t.Context(), true); err != nil || second.bodies != 2 || second.replies != 4 {
			t.Errorf("the same cluster again: %d bodies in %d replies, want two in four (%v)", second.bodies, second.replies, err)
		}
		if a.kinds.known.current != b.kinds.known.current {
			t.Error("two clusters that serve the same keep two schemas")
		}
	}
}

// TestSchemasOfHostileChild: whatever entity tags a child gives, others see what their
// own API server serves.
func TestSchemasOfHostileChild(t *testing.T) {
	for _, hostileFirst := range []bool{true, false} {
		schemas := NewSchemas()
		hostile, honest := &discovering{}, &discovering{}
		hostile.serve("one", "Gadget")
		honest.serve("one", "Thing")
		order := []*discovering{honest, hostile}
		if hostileFirst {
			order = []*discovering{hostile, honest}
		}
		for _, d := range order {
			c := attach(t, d, schemas)
			if mapped(t, c, "Thing") != (d == honest) || mapped(t, c, "Gadget") != (d == hostile) {
				t.Errorf("hostile first: %t: a cluster is taken for the other", hostileFirst)
			}
			if _, err := c.kinds.now(t.Context(), true); err != nil || mapped(t, c, "Thing") != (d == honest) {
				t.Errorf("hostile first: %t: a cluster is taken for the other when asked again (%v)", hostileFirst, err)
			}
		}
	}
}

// TestSchemasAreBounded: what children serve does not pile up.
func TestSchemasAreBounded(t *testing.T) {
	schemas := NewSchemas()
	for i := range 3 * schemasMost {
		schemas.keep(&served{sum: sum{byte(i), 1}, bytes: 10})
	}
	if len(schemas.known) != schemasMost {
		t.Errorf("%d schemas are kept, want %d", len(schemas.known), schemasMost)
	}
	for i := range 20 {
		schemas.keep(&served{sum: sum{byte(i), 2}, bytes: discoveryMost})
	}
	if most := schemasBytes / discoveryMost; len(schemas.known) != most {
		t.Errorf("%d large schemas are kept, want %d", len(schemas.known), most)
	}
}

func TestSchemasFollowDefinitions(t *testing.T) {
	schemas := NewSchemas()
	d := &discovering{}
	d.serve("one", "Thing")
	c := attach(t, d, schemas)
	if mapped(t, c, "Gadget") {
		t.Error("a kind that is not served is mapped")
	}
	d.serve("two", "Thing", "Gadget")
	asked := d.replies
	if mapped(t, c, "Gadget") || d.replies != asked {
		t.Error("what is not there is asked for again and again")
	}
	c.kinds.known.Doubt()
	if !mapped(t, c, "Gadget") {
		t.Error("a kind that appeared is not found")
	}
	// One that has the old definitions comes after one that has the new ones.
	old := &discovering{}
	old.serve("one", "Thing")
	if o := attach(t, old, schemas); !mapped(t, o, "Thing") || mapped(t, o, "Gadget") {
		t.Error("a cluster is taken for another")
	}
	d.serve("three", "Thing")
	if _, err := c.kinds.now(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if mapped(t, c, "Gadget") {
		t.Error("a kind that went is mapped after discovery was asked again")
	}
}

func TestStaleGroupIsNotAbsent(t *testing.T) {
	d := &discovering{stale: true}
	d.serve("one", "Thing")
	schemas := NewSchemas()
	c := attach(t, d, schemas)
	if _, err := c.resources(t.Context()); err == nil {
		t.Error("resources() is complete although a group does not answer")
	}
	if len(schemas.known) != 0 {
		t.Error("what one cluster could not tell is kept for others")
	}
}

func TestLacks(t *testing.T) {
	d := &discovering{}
	d.serve("one", "Thing")
	c := attach(t, d, NewSchemas())
	crd := func(kind string, served bool) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"group": "x.dev", "names": map[string]any{"kind": kind}, "versions": []any{map[string]any{"name": "v1", "served": served}},
		}}}
	}
	s, err := c.kinds.now(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		reason string
		crd    *unstructured.Unstructured
		want   string
	}{
		{"served", crd("Thing", true), ""},
		{"not yet served", crd("Gadget", true), "Gadget.x.dev/v1"},
		{"never to be served", crd("Gadget", false), ""},
	} {
		if got := s.lacks(tc.crd); got != tc.want {
			t.Errorf("%s: lacks() = %q, want %q", tc.reason, got, tc.want)
		}
	}
}

func TestInPhase(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, phase string
		err           error
		want          string
	}{
		"Waiting": {"what is waited for is part of something that has a name", "core v1.13.4", &WaitError{}, "waiting for core v1.13.4: "},
		"Failing": {"so is what fails", "core v1.13.4", errors.New("refused"), "cannot apply core v1.13.4: refused"},
		"Unnamed": {"a phase without a name adds nothing", "", errors.New("refused"), "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := inPhase(tc.phase, tc.err); got.Error() != tc.want || !errors.Is(got, tc.err) {
				t.Errorf("%s\ninPhase() = %v, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestPacked: what is unpacked is what was packed, each time anew, and what is known
// without unpacking is enough to tell what it is.
func TestPacked(t *testing.T) {
	objects := []*unstructured.Unstructured{
		{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": "things.x.dev", "labels": map[string]any{"cluster.x-k8s.io/provider": "infrastructure-x"}},
			"spec": map[string]any{
				"group": "x.dev", "names": map[string]any{"kind": "Thing", "plural": "things"},
				"versions": []any{map[string]any{"name": "v1", "schema": map[string]any{"minimum": int64(1), "description": "<large>"}}},
			},
		}},
		{Object: map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": map[string]any{"name": "b", "namespace": "n"},
			"roleRef": map[string]any{"kind": "Role", "name": "r"},
		}},
		{Object: map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "s", "namespace": "n"}, "data": map[string]any{"k": "djE="},
		}},
	}
	p, err := Pack(objects)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := p.Objects()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(objects, got); diff != "" {
			t.Fatalf("Objects(): -want, +got:\n%s", diff)
		}
		got[0].SetName("changed")
	}
	if diff := cmp.Diff(inventory.OfAll(objects), p.Entries()); diff != "" {
		t.Errorf("Entries(): -want, +got:\n%s", diff)
	}
	want := []*unstructured.Unstructured{
		{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "things.x.dev"},
			"spec": map[string]any{"group": "x.dev", "names": map[string]any{"kind": "Thing", "plural": "things"}},
		}},
		objects[1],
		{Object: map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "s", "namespace": "n"}}},
	}
	if diff := cmp.Diff(want, p.Outline()); diff != "" {
		t.Errorf("Outline(): -want, +got:\n%s", diff)
	}
	objects[2].Object["data"] = map[string]any{"k": "djI="}
	other, err := Pack(objects)
	if err != nil {
		t.Fatal(err)
	}
	if other.Digest() == p.Digest() {
		t.Error("other content has the same digest")
	}
}
