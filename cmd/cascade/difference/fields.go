package difference

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// fields are the paths at which two objects differ, in order.
func fields(before, after *unstructured.Unstructured) []string {
	var found []string
	walk("", before.Object, after.Object, func(path string) { found = append(found, path) })
	slices.Sort(found)
	return found
}

// walk calls differs with each path at which two values differ, as deep as both have the
// same shape.
func walk(path string, before, after any, differs func(string)) {
	switch b := before.(type) {
	case map[string]any:
		if a, ok := after.(map[string]any); ok {
			maps(path, b, a, differs)
			return
		}
	case []any:
		if a, ok := after.([]any); ok {
			lists(path, b, a, differs)
			return
		}
	}
	if !reflect.DeepEqual(before, after) {
		differs(path)
	}
}

func maps(path string, before, after map[string]any, differs func(string)) {
	for key, b := range before {
		at := path + segment(path, key)
		if a, ok := after[key]; ok {
			walk(at, b, a, differs)
		} else {
			differs(at)
		}
	}
	for key := range after {
		if _, ok := before[key]; !ok {
			differs(path + segment(path, key))
		}
	}
}

// segment is the part of a path for a key, which is quoted if it would be read as more than
// one.
func segment(path, key string) string {
	switch {
	case strings.ContainsAny(key, `.[]"/`):
		return fmt.Sprintf("[%q]", key)
	case path == "":
		return key
	}
	return "." + key
}

// lists compares what has a name by its name, as a server merges it, and the rest by its
// place. What else has become longer or shorter differs as a whole.
func lists(path string, before, after []any, differs func(string)) {
	b, named := byName(before)
	a, alsoNamed := byName(after)
	switch {
	case named && alsoNamed && len(before)+len(after) > 0:
		same := true
		for name := range b {
			if _, ok := a[name]; !ok {
				same = false
				differs(fmt.Sprintf("%s[name=%s]", path, name))
			}
		}
		for name, value := range a {
			if was, ok := b[name]; ok {
				walk(fmt.Sprintf("%s[name=%s]", path, name), was, value, differs)
			} else {
				same = false
				differs(fmt.Sprintf("%s[name=%s]", path, name))
			}
		}
		if same && !slices.Equal(names(before), names(after)) {
			differs(path) // only their order
		}
	case len(before) == len(after):
		for i := range before {
			walk(fmt.Sprintf("%s[%d]", path, i), before[i], after[i], differs)
		}
	default:
		differs(path)
	}
}

// byName has the elements of a list by their names; false if not all have one of their own.
func byName(list []any) (map[string]any, bool) {
	all := make(map[string]any, len(list))
	for _, e := range list {
		m, _ := e.(map[string]any)
		name, ok := m["name"].(string)
		if !ok {
			return nil, false
		}
		if _, twice := all[name]; twice {
			return nil, false
		}
		all[name] = e
	}
	return all, true
}

func names(list []any) []string {
	all := make([]string, 0, len(list))
	for _, e := range list {
		name, _ := e.(map[string]any)["name"].(string)
		all = append(all, name)
	}
	return all
}
