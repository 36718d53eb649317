package pivot

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func TestDiffers(t *testing.T) {
	const want = "{apiVersion: x/v1, kind: X, metadata: {name: x, labels: {a: b}, finalizers: [f]}, spec: {count: 3, list: [1, {a: b}], empty: {}, none: null}}"
	for name, tt := range map[string]struct{ reason, live, field string }{
		"Same":      {"", want, ""},
		"Defaults":  {"a newer definition fills in fields", strings.Replace(want, "count: 3", "count: 3, more: [x], deep: {y: z}", 1), ""},
		"Status":    {"controllers write it", strings.Replace(want, "spec:", "status: {x: y}, spec:", 1), ""},
		"Dropped":   {"an older definition drops fields", strings.Replace(want, "count: 3, ", "", 1), "spec.count"},
		"Changed":   {"a webhook changes one", strings.Replace(want, "a: b}]", "a: c}]", 1), "spec.list[1].a"},
		"Longer":    {"a list is equal as a whole", strings.Replace(want, "[1, ", "[1, 2, ", 1), "spec.list"},
		"Label":     {"", strings.Replace(want, "labels: {a: b}", "labels: {}", 1), "metadata.labels.a"},
		"Labels":    {"of metadata there may be more", strings.Replace(want, "labels: {a: b}", "labels: {a: b, c: d}", 1), ""},
		"Finalizer": {"", strings.Replace(want, "finalizers: [f]", "finalizers: [g]", 1), "metadata.finalizers"},
		"Empty":     {"what is empty may be left out", strings.Replace(want, "empty: {}, ", "", 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			parse := func(text string) *unstructured.Unstructured {
				u := &unstructured.Unstructured{}
				if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
					t.Fatal(err)
				}
				return u
			}
			if got := differs(parse(want), parse(tt.live)); got != tt.field {
				t.Errorf("%s: differs in %q, want %q", tt.reason, got, tt.field)
			}
		})
	}
}

func TestDecode(t *testing.T) {
	whole := Journal{Format: 1, ID: "x-1", Step: Freeze, Clusters: []Cluster{{Namespace: "n", Name: "a"}}}
	cm, err := whole.encode("system", Source)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decode(cm); err != nil || got.ID != "x-1" || got.Step != Freeze || !strings.HasPrefix(cm.Name, "cascade-pivot.source.") {
		t.Errorf("got %+v, %v, in %s", got, err, cm.Name)
	}
	for name, tt := range map[string]struct{ reason, text, says string }{
		"Newer":   {"an older program leaves it alone, whatever else is in it", `{"format": 2, "step": "freeze", "clusters": "new form"}`, ErrNewer.Error()},
		"NoText":  {"", ``, "cannot read"},
		"NoID":    {"", `{"format": 1, "step": "freeze"}`, "not complete"},
		"NoStep":  {"a step that nobody knows is none", `{"format": 1, "id": "x", "step": "jump"}`, "not complete"},
		"NoForm":  {"", `{"id": "x", "step": "freeze"}`, "not complete"},
		"Garbage": {"", `{"format": 1, "id": 7, "step": "freeze"}`, "cannot read"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decode(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "x"}, Data: map[string]string{journalKey: tt.text}})
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: got %v, want %q", tt.reason, err, tt.says)
			}
		})
	}
	for range 9000 {
		whole.Objects = append(whole.Objects, Object{Group: "infrastructure.cluster.x-k8s.io", Version: "v1beta2", Kind: "AWSMachine", Namespace: "fleet", Name: "machine-with-a-name", UID: "01234567-89ab-cdef-0123-456789abcdef"})
	}
	if _, err := whole.encode("system", Source); err == nil || !strings.Contains(err.Error(), "fewer Clusters") {
		t.Errorf("a journal that no API server takes: %v", err)
	}
}
