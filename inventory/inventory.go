// Package inventory holds the entries of the objects that an owner applied, and decides
// which objects may be deleted when a new rendering no longer declares them.
//
// It is pure: facts in, plan out. Callers read the facts from the cluster and
// carry the plan out. The invariants it guards are:
//
//   - an object whose state is unknown is not deleted, and its entry stays: an entry
//     leaves the inventory only when its object is confirmed absent or has another
//     owner;
//   - an object that carries a real cluster or data is deleted only after a
//     person confirmed it on the object itself;
//   - when a rendering lacks much of what the inventory has, nothing is deleted until
//     a person approves exactly the list of deletes.
package inventory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/cli-utils/pkg/object"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Entry identifies one object in one cluster. Version is a hint for reading
// it back and takes no part in identity: an object that moves to another API
// version stays the same object.
type Entry struct {
	Namespace string
	Name      string
	Group     string
	Kind      string
	Version   string
}

// Of returns the entry of an object.
func Of(u *unstructured.Unstructured) Entry {
	gvk := u.GroupVersionKind()
	return Entry{
		Namespace: u.GetNamespace(),
		Name:      u.GetName(),
		Group:     gvk.Group,
		Kind:      gvk.Kind,
		Version:   gvk.Version,
	}
}

// OfAll returns the entries of objects, in their order.
func OfAll(objects []*unstructured.Unstructured) []Entry {
	entries := make([]Entry, 0, len(objects))
	for _, u := range objects {
		entries = append(entries, Of(u))
	}
	return entries
}

// Parse reads an id in Flux's format <namespace>_<name>_<group>_<Kind>, in
// which `__` in the name of an RBAC object stands for a colon.
func Parse(id, version string) (Entry, error) {
	m, err := object.ParseObjMetadata(id)
	if err != nil {
		return Entry{}, fmt.Errorf("cannot parse inventory id %q: %w", id, err)
	}
	if m.Name == "" || m.GroupKind.Kind == "" || strings.Contains(m.GroupKind.Group+version, "/") {
		return Entry{}, fmt.Errorf("cannot parse inventory id %q: it names no object", id)
	}
	return Entry{
		Namespace: m.Namespace,
		Name:      m.Name,
		Group:     m.GroupKind.Group,
		Kind:      m.GroupKind.Kind,
		Version:   version,
	}, nil
}

func (e Entry) metadata() object.ObjMetadata {
	return object.ObjMetadata{
		Namespace: e.Namespace,
		Name:      e.Name,
		GroupKind: schema.GroupKind{Group: e.Group, Kind: e.Kind},
	}
}

// ID is the entry's identity in Flux's format.
func (e Entry) ID() string { return e.metadata().String() }

// GroupVersionKind of the object.
func (e Entry) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: e.Group, Version: e.Version, Kind: e.Kind}
}

// GroupKind of the object.
func (e Entry) GroupKind() schema.GroupKind { return schema.GroupKind{Group: e.Group, Kind: e.Kind} }

// String is Kind/namespace/name, as people write it.
func (e Entry) String() string {
	if e.Namespace == "" {
		return e.Kind + "/" + e.Name
	}
	return e.Kind + "/" + e.Namespace + "/" + e.Name
}

// Object returns an empty object that carries the entry's identity.
func (e Entry) Object() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(e.GroupVersionKind())
	u.SetNamespace(e.Namespace)
	u.SetName(e.Name)
	return u
}

// Union returns the entries of both, sorted by id; where both name an object,
// the version of b wins.
func Union(a, b []Entry) []Entry {
	byID := make(map[string]Entry, len(a)+len(b))
	for _, e := range a {
		byID[e.ID()] = e
	}
	for _, e := range b {
		byID[e.ID()] = e
	}
	return sorted(byID)
}

// Difference returns the entries of a whose objects b does not name, sorted.
func Difference(a, b []Entry) []Entry {
	byID := make(map[string]Entry, len(a))
	for _, e := range a {
		byID[e.ID()] = e
	}
	for _, e := range b {
		delete(byID, e.ID())
	}
	return sorted(byID)
}

// Equal reports whether both name the same objects in the same versions.
func Equal(a, b []Entry) bool {
	return slices.Equal(Union(nil, a), Union(nil, b))
}

func sorted(byID map[string]Entry) []Entry {
	entries := make([]Entry, 0, len(byID))
	ids := make([]string, 0, len(byID))
	for id := range byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		entries = append(entries, byID[id])
	}
	return entries
}

// Names lists a few of many entries for a message.
func Names(entries []Entry) string {
	const most = 5
	var b strings.Builder
	for i, e := range entries {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(entries)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(e.String())
	}
	return b.String()
}
