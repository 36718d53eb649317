package observed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var things = schema.GroupVersionResource{Group: "x.io", Version: "v1", Resource: "things"}

func thing(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "x.io/v1", Kind: "Thing"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, UID: "u", ResourceVersion: "1"},
	}
}

// newReader returns a Reader of a cluster with a few objects, and what was asked.
func newReader(objects ...runtime.Object) (*Reader, *fake.FakeMetadataClient) {
	scheme := fake.NewTestScheme()
	_ = metav1.AddMetaToScheme(scheme) // of a scheme that was just made
	client := fake.NewSimpleMetadataClient(scheme, objects...)
	return NewReader(client), client
}

func TestGetWithout(t *testing.T) {
	now := time.Unix(1000, 0)
	r, client := newReader(thing("one"))
	for i := range 40 {
		name := fmt.Sprint("none", i)
		if i%10 == 0 {
			name = "one"
		}
		o, err := r.GetWithout(t.Context(), things, "a", name, "owner", now)
		if err != nil || (o != nil) != (name == "one") {
			t.Fatalf("read %d of %s: %v, %v", i, name, o, err)
		}
	}
	verbs := map[string]int{}
	for _, a := range client.Actions() {
		verbs[a.GetVerb()]++
	}
	if verbs["get"] != listAfter || verbs["list"] != 1 {
		t.Errorf("40 reads cost %v, want %d gets and one list", verbs, listAfter)
	}
	client.ClearActions()
	if _, err := r.GetWithout(t.Context(), things, "a", "one", "owner", now.Add(listTTL+time.Second)); err != nil || client.Actions()[0].GetVerb() != "get" {
		t.Errorf("after its time a list stands for the cluster: %v %v", client.Actions(), err)
	}
}

// TestGetWithoutList: who may read each object, and not list them, reads them one by one (read 830).
func TestGetWithoutList(t *testing.T) {
	for name, refusal := range map[string]error{
		"Forbidden": apierrors.NewForbidden(things.GroupResource(), "", errors.New("no right")),
		"NoLists":   apierrors.NewMethodNotSupported(things.GroupResource(), "list"),
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			r, client := newReader(thing("one"))
			lists := 0
			client.PrependReactor("list", "things", func(clienttesting.Action) (bool, runtime.Object, error) { lists++; return true, nil, refusal })
			for i := range 40 {
				o, err := r.GetWithout(t.Context(), things, "a", fmt.Sprint("none", i), "owner", now.Add(time.Duration(i)*time.Second))
				if o != nil || err != nil {
					t.Fatalf("read %d: %v, %v", i, o, err)
				}
			}
			if o, err := r.GetWithout(t.Context(), things, "a", "one", "owner", now.Add(40*time.Second)); o == nil || err != nil {
				t.Errorf("what is there: %v, %v", o, err)
			}
			if lists != 1 {
				t.Errorf("%d lists were asked for, want one in %s", lists, refusedTTL)
			}
		})
	}
	r, client := newReader()
	client.PrependReactor("list", "things", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no route to host")
	})
	var err error
	for range listAfter + 1 {
		_, err = r.GetWithout(t.Context(), things, "a", "none", "owner", time.Unix(1000, 0))
	}
	if err == nil {
		t.Error("a server that does not answer was asked for object after object")
	}
}

func TestGet(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		name   string
		fails  error
		found  bool
	}{
		"There":  {"the object as it is", "one", nil, true},
		"Absent": {"nil without an error is the API server's word", "two", nil, false},
		"Failed": {"an error is no absence", "one", errors.New("no route to host"), false},
	} {
		t.Run(name, func(t *testing.T) {
			r, client := newReader(thing("one"))
			client.PrependReactor("get", "things", func(clienttesting.Action) (bool, runtime.Object, error) { return tc.fails != nil, nil, tc.fails })
			o, err := r.Get(context.Background(), things, "a", tc.name)
			if (o != nil) != tc.found || !errors.Is(err, tc.fails) {
				t.Errorf("%s: Get() = %v, %v", tc.reason, o, err)
			}
		})
	}
}

func TestOf(t *testing.T) {
	managed := func(manager string, op metav1.ManagedFieldsOperationType, subresource string) *metav1.PartialObjectMetadata {
		p := thing("one")
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager, Operation: op, Subresource: subresource}}
		return p
	}
	annotated := func(key, value string) *metav1.PartialObjectMetadata {
		p := managed("kubectl-edit", metav1.ManagedFieldsOperationUpdate, "")
		p.Annotations = map[string]string{key: value}
		return p
	}
	wrote := func(version, namespace, fields string) *metav1.PartialObjectMetadata {
		p := managed("kubectl-patch", metav1.ManagedFieldsOperationUpdate, "")
		p.Namespace, p.ManagedFields[0].APIVersion, p.ManagedFields[0].FieldsV1 = namespace, version, metav1.NewFieldsV1(fields)
		return p
	}
	by := func(manager string, p *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
		p.ManagedFields[0].Manager = manager
		return p
	}
	const core, infra = "cluster.x-k8s.io/v1beta2", "infrastructure.cluster.x-k8s.io/v1beta2"
	const paused, annotation, label = `{"f:spec":{"f:paused":{}}}`, `{"f:metadata":{"f:annotations":{".":{},"f:cluster.x-k8s.io/paused":{}}}}`, `{"f:metadata":{"f:labels":{"f:cascade.dev/protected":{}}}}`
	overridden, _ := newReader()
	overridden.Override([]string{"terraform"})
	plain, _ := newReader()
	for name, tc := range map[string]struct {
		reason  string
		reader  *Reader
		object  *metav1.PartialObjectMetadata
		foreign bool
		kept    Kept
	}{
		"Ours":        {"our own apply", plain, managed("kustomize-controller", metav1.ManagedFieldsOperationApply, ""), false, 0},
		"Kubectl":     {"a person edited it", plain, managed("kubectl-edit", metav1.ManagedFieldsOperationUpdate, ""), true, 0},
		"Subresource": {"the status is not ours to take over", plain, managed("kubectl-edit", metav1.ManagedFieldsOperationUpdate, "status"), false, 0},
		"Named":       {"by the name that Flux's documentation gives to what is to stay", plain, managed("flux-client-side-apply", metav1.ManagedFieldsOperationApply, ""), false, 0},
		"Others":      {"a controller that nobody named", plain, managed("terraform-1", metav1.ManagedFieldsOperationApply, ""), false, 0},
		"Override":    {"one that a person named", overridden, managed("terraform-1", metav1.ManagedFieldsOperationApply, ""), true, 0},
		"Merge":       {"a person wants the fields to stay theirs", plain, annotated("kustomize.toolkit.fluxcd.io/ssa", "Merge"), false, 0},
		"Left":        {"kubectl's annotation", plain, annotated("kubectl.kubernetes.io/last-applied-configuration", "{}"), true, 0},
		"Paused":      {"a person stops what is done to a cluster (read 233)", plain, wrote(core, "a", paused), false, keptSpecPaused},
		"Aside":       {"it stays so after what else was changed was taken over", plain, by("kept-kubectl-edit", wrote(core, "a", paused)), false, keptSpecPaused},
		"Annotated":   {"or a part of it", plain, wrote(infra, "a", annotation), false, keptPaused},
		"Protection":  {"or lifts what protects a Namespace", plain, wrote("v1", "", label), false, keptProtected},
		"Mixed":       {"what else was changed is taken over", plain, wrote(core, "a", `{"f:metadata":{"f:annotations":{".":{},"f:x":{},"f:cluster.x-k8s.io/paused":{}}}}`), true, keptPaused},
		"OtherField":  {"only what stops is kept", plain, wrote(core, "a", `{"f:spec":{"f:topology":{"f:version":{}}}}`), true, 0},
		"OtherGroup":  {"paused means something else there", plain, wrote("apps/v1", "a", paused), true, 0},
		"Infra":       {"the field of a provider is not Cluster API's", plain, wrote(infra, "a", paused), true, 0},
		"OtherKind":   {"the label is of Namespaces", plain, wrote("v1", "a", label), true, 0},
		"Broken":      {"what nobody can read is taken over", plain, wrote(core, "a", `{`), true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.reader.For(nil).Of(tc.object); got.Foreign != tc.foreign || got.Kept != tc.kept {
				t.Errorf("%s: Foreign = %t, want %t; Kept = %b, want %b", tc.reason, got.Foreign, tc.foreign, got.Kept, tc.kept)
			}
		})
	}
}

// TestTakeOff: what is taken off live objects is not declared.
func TestTakeOff(t *testing.T) {
	const applied, checksum, mark = "kubectl.kubernetes.io/last-applied-configuration", "kustomize.toolkit.fluxcd.io/checksum", "fluxcd.io/sync-gc-mark"
	for name, tc := range map[string]struct {
		reason                      string
		annotations, labels         map[string]string
		wantAnnotations, wantLabels map[string]string
	}{
		"Exported": {"kubectl get -o yaml", map[string]string{applied: "{}"}, nil, nil, nil},
		"Flux": {"a former engine", map[string]string{checksum: "1", "fluxcd.io/sync-checksum": "2", "a": "b"}, map[string]string{mark: "1", "app": "a"},
			map[string]string{"a": "b"}, map[string]string{"app": "a"}},
		"Merge": {"it is not taken off such an object", map[string]string{applied: "{}", "kustomize.toolkit.fluxcd.io/ssa": "Merge"}, nil,
			map[string]string{applied: "{}", "kustomize.toolkit.fluxcd.io/ssa": "Merge"}, nil},
		"None": {"nothing of the sort", map[string]string{"a": "b"}, map[string]string{"app": "a"}, map[string]string{"a": "b"}, map[string]string{"app": "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			u := &unstructured.Unstructured{Object: map[string]any{}}
			u.SetAnnotations(tc.annotations)
			u.SetLabels(tc.labels)
			TakeOff(u)
			if !maps.Equal(u.GetAnnotations(), tc.wantAnnotations) || !maps.Equal(u.GetLabels(), tc.wantLabels) {
				t.Errorf("%s: annotations %v, labels %v", tc.reason, u.GetAnnotations(), u.GetLabels())
			}
		})
	}
}

// TestKeptIn: what is declared is nobody else's.
func TestKeptIn(t *testing.T) {
	all := keptSpecPaused | keptPaused | keptProtected
	for name, tc := range map[string]struct {
		reason string
		kept   Kept
		object map[string]any
		want   bool
	}{
		"Nothing": {"it is not declared", all, map[string]any{"spec": map[string]any{"topology": "a"}}, false},
		"False":   {"whatever its value is", all, map[string]any{"spec": map[string]any{"paused": false}}, true},
		"Other":   {"one that a person set is declared", keptPaused, map[string]any{"spec": map[string]any{"paused": false}}, false},
		"Label":   {"in the labels", all, map[string]any{"metadata": map[string]any{"labels": map[string]any{v1alpha1.ProtectedLabel: "true"}}}, true},
		"None":    {"a person set none", 0, map[string]any{"spec": map[string]any{"paused": false}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.kept.In(&unstructured.Unstructured{Object: tc.object}); got != tc.want {
				t.Errorf("%s: In() = %t", tc.reason, got)
			}
		})
	}
}

// TestSetAside: what was put aside is a person's until it is declared, and is taken over then, or
// nobody could take it back by a commit.
func TestSetAside(t *testing.T) {
	cluster := func(manager, spec string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "spec": map[string]any{}}}
		u.SetName("prod")
		u.SetNamespace("fleet")
		if manager != "" {
			u.SetManagedFields([]metav1.ManagedFieldsEntry{{
				Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "cluster.x-k8s.io/v1beta2", FieldsV1: metav1.NewFieldsV1(spec),
			}})
		}
		return u
	}
	const both, paused = `{"f:spec":{"f:paused":{},"f:x":{}}}`, `{"f:spec":{"f:paused":{}}}`
	declared := cluster("", "")
	_ = unstructured.SetNestedField(declared.Object, true, "spec", "paused")
	for name, tc := range map[string]struct {
		reason         string
		live, declared *unstructured.Unstructured
		want           []string
	}{
		"First":    {"the rest is taken over", cluster("kubectl-edit", both), cluster("", ""), []string{"kept-kubectl-edit", "kubectl-edit"}},
		"Again":    {"it was put aside before", cluster("kept-kubectl-edit", paused), cluster("", ""), []string{"kept-kubectl-edit"}},
		"Declared": {"a commit has it now", cluster("kept-kubectl-edit", paused), declared, []string{"kubectl-edit"}},
	} {
		t.Run(name, func(t *testing.T) {
			SetAside(tc.live, tc.declared)
			var got []string
			for _, e := range tc.live.GetManagedFields() {
				got = append(got, e.Manager)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s: managers %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}
