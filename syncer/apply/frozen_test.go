package apply

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestFreeze(t *testing.T) {
	owner := Owner{LabelGroup: "x.dev", Name: "base", Namespace: "fleet"}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a"}}}
	p, err := Phase{Objects: []*unstructured.Unstructured{u}}.Freeze(owner)
	if err != nil {
		t.Fatal(err)
	}
	if body := p.bodies()[u]; !strings.Contains(string(body), `"x.dev/name":"base"`) {
		t.Errorf("body is %s", body)
	}
	labels := u.Object["metadata"].(map[string]any)["labels"].(map[string]any)
	labels["mark"] = "the very map"
	owner.label(u)
	if u.Object["metadata"].(map[string]any)["labels"].(map[string]any)["mark"] == nil {
		t.Error("an object that is shared and labelled is written to")
	}
	var text strings.Builder
	if err := p.Declared(&text); err != nil || text.String() != p.digest || p.digest == "" {
		t.Errorf("a phase that was frozen as a whole is identified by %q, want its digest %q: %v", text.String(), p.digest, err)
	}
}

// TestDeclared: what identifies a phase is the text of its objects as they were declared,
// whether they are frozen or not. Digests of it are recorded in clusters.
func TestDeclared(t *testing.T) {
	owner := Owner{LabelGroup: "x.dev", Name: "base", Namespace: "fleet"}
	for name, tc := range map[string]struct{ reason, object string }{
		"Bare":     {"labels are added to an object without any", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`},
		"Labelled": {"labels are added to others", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"labels":{"a":"b","x.dev/z":"c"},"name":"a"}}`},
		"Ours":     {"the labels are there already", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"labels":{"x.dev/name":"base","x.dev/namespace":"fleet"},"name":"a"}}`},
		"Theirs":   {"the labels of another owner are replaced", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"labels":{"x.dev/name":"other","x.dev/namespace":"fleet"},"name":"a"}}`},
		"Null":     {"labels that are none", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"labels":null,"name":"a"}}`},
		"Escaped":  {"characters that JSON escapes", `{"apiVersion":"v1","data":{"a":"<b> & é \u2028"},"kind":"ConfigMap","metadata":{"name":"a"}}`},
		"Left": {"annotations and labels that are taken off what is in the cluster", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"annotations":{"a":"b","kubectl.kubernetes.io/last-applied-configuration":"{}"},
			"labels":{"fluxcd.io/sync-gc-mark":"1","x.dev/name":"base","x.dev/namespace":"fleet"},"name":"a"}}`},
		"Bundle": {"what is taken out of a definition before it is sent", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.x.dev"},
			"spec":{"conversion":{"strategy":"Webhook","webhook":{"clientConfig":{"caBundle":"Cg=="}}}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unstructured.Unstructured{}
			if err := u.UnmarshalJSON([]byte(tc.object)); err != nil {
				t.Fatal(err)
			}
			h := sha256.New()
			if err := json.NewEncoder(h).Encode(u.Object); err != nil {
				t.Fatal(err)
			}
			want := hex.EncodeToString(h.Sum(nil))
			for form, p := range map[string]Phase{"as it is": {Objects: []*unstructured.Unstructured{u.DeepCopy()}}, "frozen": phaseOf(t, owner, u.DeepCopy())} {
				h := sha256.New()
				if err := p.Declared(h); err != nil || hex.EncodeToString(h.Sum(nil)) != want {
					t.Errorf("%s: %s, it is identified by %x, want %s: %v", tc.reason, form, h.Sum(nil), want, err)
				}
			}
			plain := Phase{Objects: []*unstructured.Unstructured{u.DeepCopy()}}
			sent, err := SentOf(owner, []Phase{plain})
			if err != nil {
				t.Fatal(err)
			}
			frozen := phaseOf(t, owner, u.DeepCopy())
			sentFrozen, err := SentOf(owner, []Phase{frozen})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(sent, sentFrozen, cmp.AllowUnexported(seen{}, sentObject{})); diff != "" {
				t.Errorf("%s: what was sent: -as it is, +frozen:\n%s", tc.reason, diff)
			}
			body, err := bodies(nil).of(plain.Objects[0])
			if err != nil || string(body) != string(frozen.bodies()[frozen.Objects[0]]) {
				t.Errorf("%s: frozen, the body is %s, want %s: %v", tc.reason, frozen.bodies()[frozen.Objects[0]], body, err)
			}
		})
	}
}

func phaseOf(t *testing.T, owner Owner, objects ...*unstructured.Unstructured) Phase {
	t.Helper()
	var frozen []*Frozen
	for _, u := range objects {
		f, err := Freeze(owner, u)
		if err != nil {
			t.Fatal(err)
		}
		frozen = append(frozen, f)
	}
	return PhaseOf(frozen)
}

// TestPrepareShared: an object that many clusters share is copied before one of them has it
// changed.
func TestPrepareShared(t *testing.T) {
	owner := Owner{LabelGroup: "x.dev", Name: "base", Namespace: "fleet"}
	role := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": "a", "namespace": "n"}}}
	}
	other := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": "n"}}}
	r := &run{Applier: &Applier{owner: owner}, scopes: scopes{schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"}: {}}}
	p := phaseOf(t, owner, other, role())
	before := p.Objects[1]
	got := r.prepare(p.Objects, p.bodies())
	if got[0] != other {
		t.Error("an object that is ready is copied")
	}
	if got[1].GetNamespace() != "" || before.GetNamespace() != "n" || p.Objects[1] != before {
		t.Errorf("the shared object has namespace %q and its copy %q", before.GetNamespace(), got[1].GetNamespace())
	}
	plain := role()
	if got := r.prepare([]*unstructured.Unstructured{plain}, nil); got[0] != plain || plain.GetNamespace() != "" || !owner.owns(plain.GetLabels()) {
		t.Errorf("an object that is not shared is %v", plain.Object)
	}
}
