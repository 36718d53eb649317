package digest

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"unique"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Keys are the labels and annotations that an object was asked to have. Objects
// of one kind mostly have the same keys, so the list is kept once in the process.
// The zero value has no keys.
type Keys struct{ list unique.Handle[string] }

// KeysOf lists the labels and annotations of an object.
func KeysOf(u *unstructured.Unstructured) Keys {
	var keys []string
	for k := range u.GetLabels() {
		keys = append(keys, "l"+k)
	}
	for k := range u.GetAnnotations() {
		keys = append(keys, "a"+k)
	}
	slices.Sort(keys)
	return Keys{unique.Make(strings.Join(keys, "\n"))}
}

// Values identifies the values that the keys have in labels and annotations.
// Labels and annotations under other keys do not count.
func (k Keys) Values(labels, annotations map[string]string) uint64 {
	h := fnv.New64a()
	if k == (Keys{}) {
		return h.Sum64()
	}
	for key := range strings.SplitSeq(k.list.Value(), "\n") {
		if key == "" {
			continue
		}
		from := labels
		if key[0] == 'a' {
			from = annotations
		}
		v, ok := from[key[1:]]
		fmt.Fprintf(h, "%t%q", ok, v)
	}
	return h.Sum64()
}
