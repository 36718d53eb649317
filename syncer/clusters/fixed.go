package clusters

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// Fixed returns a Watch, for tests, that has seen these Clusters of one version and
// follows none.
func Fixed(objects ...*unstructured.Unstructured) *Watch {
	w := &Watch{}
	watch := w.stream.expect()
	for _, u := range objects {
		w.stream.see(watch, u, false)
	}
	w.stream.move(watch, objects[0].GroupVersionKind())
	return w
}
