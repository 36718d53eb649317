package observed

import (
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Kept are fields that somebody set by kubectl and that stay his unless they are declared: by
// these a person stops the change of a real cluster, or lifts the protection of a Namespace. To
// take such a field over would undo that within a second.
type Kept uint8

const (
	keptSpecPaused Kept = 1 << iota
	keptPaused
	keptProtected
)

// pathsOf are the fields, as they are in an object.
func pathsOf() map[Kept][]string {
	return map[Kept][]string{
		keptSpecPaused: {"spec", "paused"},
		keptPaused:     {"metadata", "annotations", clusterapi.PausedAnnotation},
		keptProtected:  {"metadata", "labels", v1alpha1.ProtectedLabel},
	}
}

// keepable are the fields that may be kept of what a manager wrote. What is known of the kind is
// its group: the core kinds of Cluster API that have spec.paused are stopped by it, and of those
// of Kubernetes that have no namespace Namespaces alone have the label.
func keepable(e metav1.ManagedFieldsEntry, namespaced bool) Kept {
	gv, err := schema.ParseGroupVersion(e.APIVersion)
	switch {
	case err != nil || e.Subresource != "" || !strings.HasPrefix(strings.TrimPrefix(e.Manager, keeper), "kubectl"):
		return 0
	case gv.Group == clusterapi.Group:
		return keptSpecPaused | keptPaused
	case clusterapi.IsGroup(gv.Group):
		return keptPaused
	case gv.Group == "" && !namespaced:
		return keptProtected
	}
	return 0
}

// In reports whether an object has one of the fields.
func (k Kept) In(u *unstructured.Unstructured) bool { return k != 0 && k != k.without(u) }

// without are those that an object does not have.
func (k Kept) without(u *unstructured.Unstructured) Kept {
	for field, path := range pathsOf() {
		if _, has, _ := unstructured.NestedFieldNoCopy(u.Object, path...); has {
			k &^= field
		}
	}
	return k
}

// split divides what a manager has into the fields of those asked for that are kept, and the rest.
// rest is nil if there is none.
func split(e metav1.ManagedFieldsEntry, of Kept) (kept Kept, fields, rest *metav1.FieldsV1) {
	if of == 0 || e.FieldsV1 == nil {
		return 0, nil, e.FieldsV1
	}
	all, taken := map[string]any{}, map[string]any{}
	if err := json.Unmarshal(e.FieldsV1.GetRawBytes(), &all); err != nil {
		return 0, nil, e.FieldsV1
	}
	for field, path := range pathsOf() {
		if of&field != 0 && move(all, taken, path) {
			kept |= field
		}
	}
	if kept == 0 {
		return 0, nil, e.FieldsV1
	}
	if !bare(all) {
		rest = fieldsOf(all)
	}
	return kept, fieldsOf(taken), rest
}

// move moves a field from one set of fields to another. A parent without any other field goes
// with it: left alone, it would be a field itself.
func move(from, to map[string]any, path []string) bool {
	key := "f:" + path[0]
	if len(path) == 1 {
		value, has := from[key]
		if has {
			to[key] = value
			delete(from, key)
		}
		return has
	}
	below, _ := from[key].(map[string]any)
	target, _ := to[key].(map[string]any)
	if target == nil {
		target = map[string]any{}
	}
	if below == nil || !move(below, target, path[1:]) {
		return false
	}
	to[key] = target
	if len(below) == 0 {
		delete(from, key)
	}
	return true
}

// bare reports whether nothing but parents is in a set of fields, such as the map of annotations.
func bare(fields map[string]any) bool {
	for key, value := range fields {
		below, _ := value.(map[string]any)
		if key != "." && (len(below) == 0 || !bare(below)) {
			return false
		}
	}
	return true
}

func fieldsOf(set map[string]any) *metav1.FieldsV1 {
	text, err := json.Marshal(set)
	if err != nil {
		return nil // it was JSON a moment ago
	}
	return metav1.NewFieldsV1(string(text))
}

// keeper begins the names of managers that have what is kept where the rest is taken over. What they
// have is taken over once it is declared.
const keeper = "kept-"

// SetAside puts the fields of a live object that are to be kept under names of managers that
// the library does not take over along with the rest. What is declared is not kept.
func SetAside(live, declared *unstructured.Unstructured) {
	var entries []metav1.ManagedFieldsEntry
	found := false
	for _, e := range live.GetManagedFields() {
		kept, fields, rest := split(e, keepable(e, live.GetNamespace() != "").without(declared))
		aside := e
		if strings.HasPrefix(e.Manager, keeper) {
			// It was put aside before. What is declared by now is taken over.
			e.Manager, found = strings.TrimPrefix(e.Manager, keeper), true
		}
		if kept == 0 {
			entries = append(entries, e)
			continue
		}
		found = true
		aside.Manager, aside.Operation, aside.FieldsV1 = keeper+e.Manager, metav1.ManagedFieldsOperationUpdate, fields
		entries = append(entries, aside)
		if rest != nil {
			e.FieldsV1 = rest
			entries = append(entries, e)
		}
	}
	if found {
		live.SetManagedFields(entries)
	}
}
