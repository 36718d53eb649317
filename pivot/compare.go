package pivot

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// differs names the first field that an object is to have and that a live one has not, or has
// with another value; empty if there is none. What the live one has besides is not looked
// at: a newer definition fills in defaults. Lists are equal as a whole, but for those of
// metadata, to which controllers add.
func differs(want, live *unstructured.Unstructured) string {
	for _, field := range slices.Sorted(maps.Keys(want.Object)) {
		if field == "metadata" || field == "status" {
			continue
		}
		if at := differsAt(field, want.Object[field], live.Object[field]); at != "" {
			return at
		}
	}
	for _, finalizer := range want.GetFinalizers() {
		if !slices.Contains(live.GetFinalizers(), finalizer) {
			return "metadata.finalizers"
		}
	}
	if has(want.GetLabels(), live.GetLabels()) != "" {
		return "metadata.labels." + has(want.GetLabels(), live.GetLabels())
	}
	if has(want.GetAnnotations(), live.GetAnnotations()) != "" {
		return "metadata.annotations." + has(want.GetAnnotations(), live.GetAnnotations())
	}
	for _, ref := range want.GetOwnerReferences() {
		found := false
		for _, is := range live.GetOwnerReferences() {
			found = found || is.UID == ref.UID && is.Kind == ref.Kind && is.Name == ref.Name
		}
		if !found {
			return "metadata.ownerReferences"
		}
	}
	return ""
}

// has names the first key that is missing, or has another value.
func has(want, live map[string]string) string {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if is, ok := live[k]; !ok || is != want[k] {
			return k
		}
	}
	return ""
}

func differsAt(path string, want, live any) string {
	switch want := want.(type) {
	case map[string]any:
		is, ok := live.(map[string]any)
		if !ok {
			if len(want) == 0 && live == nil {
				return ""
			}
			return path
		}
		for _, k := range slices.Sorted(maps.Keys(want)) {
			if at := differsAt(path+"."+k, want[k], is[k]); at != "" {
				return at
			}
		}
	case []any:
		is, ok := live.([]any)
		if !ok && len(want) == 0 && live == nil {
			return ""
		}
		if !ok || len(is) != len(want) {
			return path
		}
		for i := range want {
			if at := differsAt(fmt.Sprintf("%s[%d]", path, i), want[i], is[i]); at != "" {
				return at
			}
		}
	case nil:
	default:
		if number(want) != number(live) {
			return path
		}
	}
	return ""
}

// number makes whole numbers comparable, however they were decoded.
func number(v any) any {
	switch v := v.(type) {
	case int64:
		return float64(v)
	case int:
		return float64(v)
	case int32:
		return float64(v)
	}
	return v
}
