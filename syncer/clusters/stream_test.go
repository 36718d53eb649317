package clusters

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// clusterOf has a name, and as resource version the one of its last change.
func clusterOf(version, name, changed string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/" + version, "kind": "Cluster"}}
	u.SetNamespace("fleet")
	u.SetName(name)
	u.SetResourceVersion(changed)
	return u
}

func kindIn(version string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: version, Kind: "Cluster"}
}

// heard are the events of a stream, sorted between two calls of take: a list has no order.
type heard struct{ events []string }

func (h *heard) add(e Event) {
	what := "changed"
	switch {
	case e.New == nil:
		what = "gone"
	case e.Old == nil:
		what = "new"
	}
	if e.Listed {
		what += " listed"
	}
	h.events = append(h.events, fmt.Sprintf("%s %s %s", e.Name().Name, e.Object().GroupVersionKind().Version, what))
}

func (h *heard) take(t *testing.T, reason string, want ...string) {
	t.Helper()
	slices.Sort(h.events)
	if !slices.Equal(h.events, want) {
		t.Errorf("%s\nheard %q, want %q", reason, h.events, want)
	}
	h.events = nil
}

// TestStreamMoves: who listens has one story of each Cluster, over all versions.
func TestStreamMoves(t *testing.T) {
	s, h := &stream{}, &heard{}
	stop := s.handle(h.add)
	known := func() bool {
		select {
		case <-s.channels().known:
			return true
		default:
			return false
		}
	}
	old := s.expect()
	s.see(old, clusterOf("v1beta1", "a", "1"), false)
	s.see(old, clusterOf("v1beta1", "b", "1"), false)
	s.see(old, clusterOf("v1beta1", "b", "1"), true)
	s.see(old, clusterOf("v1beta1", "c", "1"), false)
	if _, ok := s.version(); ok || known() {
		t.Error("it is known what there is before all was listed")
	}
	h.take(t, "nothing is told of a list that is not complete")
	s.move(old, kindIn("v1beta1"))
	h.take(t, "the first list", "a v1beta1 new listed", "c v1beta1 new listed")
	if gvk, ok := s.version(); !ok || gvk != kindIn("v1beta1") || !known() {
		t.Errorf("the version is %v, %t", gvk, ok)
	}

	next := s.expect()
	s.see(next, clusterOf("v1beta2", "a", "1"), false)
	s.see(old, clusterOf("v1beta1", "d", "2"), false)
	s.see(old, clusterOf("v1beta1", "a", "3"), false)
	h.take(t, "the former watch goes on while the new one begins", "a v1beta1 changed", "d v1beta1 new")
	if u, ok := s.get(types.NamespacedName{Namespace: "fleet", Name: "c"}); !ok || u.GroupVersionKind() != kindIn("v1beta1") {
		t.Errorf("c is missing while the watch moves: %v", u)
	}
	// The old watch is blind by now: c was deleted, and nobody told of it.
	s.see(next, clusterOf("v1beta2", "a", "3"), false)
	s.see(next, clusterOf("v1beta2", "d", "2"), false)
	s.see(next, clusterOf("v1beta2", "e", "4"), false)
	s.move(next, kindIn("v1beta2"))
	h.take(t, "the new watch takes the place", "a v1beta2 changed listed", "c v1beta1 gone", "d v1beta2 changed listed", "e v1beta2 new listed")

	// What the former informer still has on its way.
	s.see(old, clusterOf("v1beta1", "a", "3"), true)
	s.see(old, clusterOf("v1beta1", "c", "1"), false)
	h.take(t, "a watch that lost its place is not heard")
	s.see(next, clusterOf("v1beta2", "d", "5"), false)
	s.see(next, cache.DeletedFinalStateUnknown{Obj: clusterOf("v1beta2", "e", "4")}, true)
	h.take(t, "the new one is", "d v1beta2 changed", "e v1beta2 gone")

	// Back, for a while: a definition is restored.
	back := s.expect()
	s.see(back, clusterOf("v1beta1", "a", "6"), false)
	again := s.expect()
	s.see(back, clusterOf("v1beta1", "x", "6"), false)
	s.move(back, kindIn("v1beta1"))
	h.take(t, "a watch that was given up never gets the place")
	s.see(again, clusterOf("v1beta1", "a", "6"), false)
	s.see(again, clusterOf("v1beta1", "d", "5"), false)
	s.move(again, kindIn("v1beta1"))
	h.take(t, "back in the former version", "a v1beta1 changed listed", "d v1beta1 changed listed")

	late := &heard{}
	s.handle(late.add)
	late.take(t, "who comes late hears of all", "a v1beta1 new listed", "d v1beta1 new listed")
	stop()
	s.see(again, clusterOf("v1beta1", "a", "7"), false)
	h.take(t, "who left hears nothing")
}

// TestStreamKnows: without the kind there is no Cluster, until it comes.
func TestStreamKnows(t *testing.T) {
	s := &stream{}
	s.none()
	s.none()
	<-s.channels().known
	select {
	case <-s.channels().began:
		t.Fatal("Clusters are watched that cannot be")
	default:
	}
	watch := s.expect()
	s.move(watch, kindIn("v1beta2"))
	<-s.channels().began
	// What is returned belongs to the caller.
	s.see(watch, clusterOf("v1beta2", "a", "1"), false)
	name := types.NamespacedName{Namespace: "fleet", Name: "a"}
	u, _ := s.get(name)
	u.SetName("changed")
	if u, ok := s.get(name); !ok || u.GetName() != "a" {
		t.Errorf("a caller changed what is known: %v", u)
	}
}
