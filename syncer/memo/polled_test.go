package memo

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// TestPoll: what a list shows of an object that was applied before.
func TestPoll(t *testing.T) {
	resource := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	with := func(version string, generation int64, change func(*metav1.PartialObjectMetadata)) []metav1.PartialObjectMetadata {
		return []metav1.PartialObjectMetadata{*metadataOf("u", version, generation, change)}
	}
	for name, tc := range map[string]struct {
		reason string
		list   []metav1.PartialObjectMetadata
		fails  error
		clean  bool
	}{
		"Same":       {reason: "it is as it was applied", list: with("10", 3, nil), clean: true},
		"Status":     {reason: "its status changed, which nobody declared", list: with("11", 3, nil), clean: true},
		"Spec":       {reason: "somebody edited it", list: with("11", 4, nil)},
		"Restored":   {reason: "a version of before it was applied is another history", list: with("9", 3, nil)},
		"Label":      {reason: "a label that was asked for", list: with("11", 3, func(p *metav1.PartialObjectMetadata) { p.Labels["app"] = "b" })},
		"Gone":       {reason: "it is not listed: deleted, or without the owner's labels", list: nil},
		"Recreated":  {reason: "another object of that name", list: []metav1.PartialObjectMetadata{*metadataOf("w", "11", 3, nil)}},
		"Without":    {reason: "of kinds without a generation nothing is known if nothing tells whose fields they are", list: with("11", 0, nil)},
		"Unreadable": {reason: "unknown is not clean", fails: errors.New("forbidden")},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := fake.NewTestScheme()
			_ = metav1.AddMetaToScheme(scheme) // of a scheme that was just made
			client := fake.NewSimpleMetadataClient(scheme)
			client.PrependReactor("list", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
				list := &metav1.List{}
				for i := range tc.list {
					tc.list[i].Labels[directive.Group+"/namespace"] = memoOwner.Namespace
					list.Items = append(list.Items, runtime.RawExtension{Object: &tc.list[i]})
				}
				return true, list, tc.fails
			})
			reader := observed.NewReader(client)
			m := NewPolled(reader, directive.Group)
			if m.Watch(t.Context(), memoKind, resource, resource) || m.Watches() || !m.Keeps(memoKind, resource) {
				t.Error("a polled memo says that it watches")
			}
			desired := digest.Short{1}
			m.Begin(memoObject)
			m.Remember(memoObject, memoOwner, desired, declared(), metadataOf("u", "10", 3, nil))
			if !m.Matches(memoObject, memoOwner, desired) {
				t.Fatal("what was applied just now is not known to be clean")
			}
			for range 2 { // the second time what is dirty is not asked for any more
				m.Poll(t.Context(), reader, memoOwner, func(inventory.Entry) (schema.GroupVersionResource, error) { return resource, nil })
			}
			if got := m.Matches(memoObject, memoOwner, desired); got != tc.clean {
				t.Errorf("%s: clean = %t", tc.reason, got)
			}
			lists := 2
			if !tc.clean {
				lists = 1
			}
			if len(client.Actions()) != lists {
				t.Errorf("%s: %d lists, want %d", tc.reason, len(client.Actions()), lists)
			}
		})
	}
}
