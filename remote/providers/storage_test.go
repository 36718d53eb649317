package providers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestDrops(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		there  stored
		new    []string
		want   bool
		refuse bool
	}{
		"Same":     {"nothing changes", stored{"v1beta1", []string{"v1beta1"}}, []string{"v1beta1"}, false, false},
		"More":     {"a version is new", stored{"v1beta1", []string{"v1beta1"}}, []string{"v1beta1", "v1beta2"}, false, false},
		"Old":      {"both versions stay, so that nothing has to be stored anew yet", stored{"v1beta2", []string{"v1beta1", "v1beta2"}}, []string{"v1beta1", "v1beta2"}, false, false},
		"Dropped":  {"some may be stored in a version that goes", stored{"v1beta2", []string{"v1beta1", "v1beta2"}}, []string{"v1beta2", "v1"}, true, false},
		"Unstored": {"a version goes in which nothing is stored", stored{"v1beta2", []string{"v1beta2"}}, []string{"v1beta2"}, false, false},
		"Storage":  {"the version goes in which all is stored", stored{"v1beta1", []string{"v1beta1"}}, []string{"v1beta2"}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Definition{Name: "a", Versions: tc.new}.drops(tc.there)
			if got != tc.want || (err != nil) != tc.refuse || err != nil && !errors.Is(err, ErrStorageVersion) {
				t.Errorf("%s: drops() = %v, %v", tc.reason, got, err)
			}
		})
	}
}

// TestMigrationGoesOn: a migration that ran out of time does not begin anew, and the
// definition says that it is over when it is. What is not as it was left then is stored again.
func TestMigrationGoesOn(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// again makes the first objects be stored in an old version again, and is how often each of those is
		// stored in the end.
		again  func(crd *unstructured.Unstructured, things []metav1.PartialObjectMetadata)
		stored int
	}{
		"Same": {"nothing is written meanwhile", func(*unstructured.Unstructured, []metav1.PartialObjectMetadata) {}, 1},
		"Restored": {"etcd is restored from before the migration", func(_ *unstructured.Unstructured, things []metav1.PartialObjectMetadata) {
			for i := range things {
				things[i].ResourceVersion = "1"
			}
		}, 2},
		"OtherStorage": {"another release of the provider, which stores in another version, came between", func(crd *unstructured.Unstructured, _ []metav1.PartialObjectMetadata) {
			_ = unstructured.SetNestedSlice(crd.Object, []any{
				map[string]any{"name": "v1", "storage": false}, map[string]any{"name": "v2", "storage": false}, map[string]any{"name": "v3", "storage": true},
			}, "spec", "versions")
		}, 2},
	} {
		t.Run(name, func(t *testing.T) { testMigrationGoesOn(t, tc.reason, tc.again, tc.stored) })
	}
}

func testMigrationGoesOn(t *testing.T, reason string, again func(*unstructured.Unstructured, []metav1.PartialObjectMetadata), stored int) {
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "things.example.com"},
		"spec": map[string]any{"group": "example.com", "names": map[string]any{"kind": "Thing"}, "versions": []any{
			map[string]any{"name": "v1", "storage": false}, map[string]any{"name": "v2", "storage": true},
		}},
		"status": map[string]any{"storedVersions": []any{"v1", "v2"}},
	}}
	var things []metav1.PartialObjectMetadata
	for i := range 10 {
		name := fmt.Sprint("a-", i)
		things = append(things, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(name), ResourceVersion: "1"}})
	}
	storage := "v2"
	timeout, patched := errors.New("out of time"), map[string]int{}
	child := interceptor.NewClient(fake.NewClientBuilder().WithObjects(crd).WithStatusSubresource(crd).Build(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			// Two pages.
			l, o := list.(*metav1.PartialObjectMetadataList), (&client.ListOptions{}).ApplyOptions(opts)
			if kind := l.GroupVersionKind().String(); kind != "example.com/"+storage+", Kind=ThingList" {
				t.Errorf("a list of %s", kind)
			}
			if l.Items, l.Continue = slices.Clone(things[:5]), "more"; o.Continue == "more" {
				l.Items, l.Continue = slices.Clone(things[5:]), ""
			}
			return nil
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if len(patched) == 4 {
				patched["-"]++
				return timeout
			}
			if patched[o.GetName()]++; o.GetNamespace() != "n" {
				t.Errorf("%T %s was written", o, o.GetName())
			}
			o.SetResourceVersion("2")
			for i := range things {
				if things[i].UID == o.GetUID() {
					things[i].ResourceVersion = "2"
				}
			}
			return nil
		},
	})
	d, done := Definition{Name: "things.example.com", Group: "example.com", Kind: "Thing", Versions: []string{"v2", "v3"}}, Stored{}
	if err := d.Migrate(t.Context(), child, done); !errors.Is(err, timeout) || len(done) != 4 {
		t.Fatalf("the first time %d were stored: %v", len(done), err)
	}
	versions := func() []string {
		if err := child.Get(t.Context(), client.ObjectKeyFromObject(crd), crd); err != nil {
			t.Fatal(err)
		}
		list, _, _ := unstructured.NestedStringSlice(crd.Object, "status", "storedVersions")
		return list
	}
	if diff := cmp.Diff([]string{"v1", "v2"}, versions()); diff != "" {
		t.Errorf("half way, stored versions: -want, +got:\n%s", diff)
	}
	again(crd, things)
	if err := child.Update(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	list, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	storage, _ = list[len(list)-1].(map[string]any)["name"].(string)
	if err := d.Migrate(t.Context(), child, done); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		want := 1
		if i < 4 {
			want = stored
		}
		if n := patched[fmt.Sprint("a-", i)]; n != want {
			t.Errorf("%s: a-%d was stored %d times, want %d", reason, i, n, want)
		}
	}
	if diff := cmp.Diff([]string{storage}, versions()); diff != "" {
		t.Errorf("after it, stored versions: -want, +got:\n%s", diff)
	}
	if err := d.Migrate(t.Context(), child, nil); err != nil {
		t.Errorf("once more: %v", err)
	}
}

func TestDefinedBy(t *testing.T) {
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "things.example.com"},
		"spec": map[string]any{"group": "example.com", "names": map[string]any{"kind": "Thing"}, "versions": []any{map[string]any{"name": "v1"}, map[string]any{"name": "v2"}}},
	}}
	other := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "n"}}}
	got, err := definedBy([]*unstructured.Unstructured{other, crd})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Definition{{"things.example.com", "example.com", "Thing", []string{"v1", "v2"}}}, got); diff != "" {
		t.Errorf("definitions: -want, +got:\n%s", diff)
	}
	patch, err := asItIs(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: "7"}}).Data(nil)
	if want := `{"metadata":{"resourceVersion":"7","uid":"u"}}`; err != nil || string(patch) != want {
		t.Errorf("the patch is %s, want %s: %v", patch, want, err)
	}
}
