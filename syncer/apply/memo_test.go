package apply

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
)

var (
	memoKind  = schema.GroupKind{Group: "apps", Kind: "Deployment"}
	memoName  = types.NamespacedName{Namespace: "x", Name: "a"}
	memoOwner = types.NamespacedName{Namespace: "flux-system", Name: "apps"}
)

// touches collects what a memo tells.
type touches []string

// newMemo returns a memo that shows one kind as watched, without an API server.
func newMemo() (*Memo, *kindStore, *touches) {
	m := NewMemo(&Cluster{takenOver: takenOverManagers(nil)}, group, time.Now)
	told := &touches{}
	m.OnTouch(func(owner types.NamespacedName, e inventory.Entry, dirty bool) {
		*told = append(*told, fmt.Sprintf("%s %s %t", owner.Name, e, dirty))
	})
	k := &watched{
		resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, synced: make(chan struct{}),
		stop: func() {}, objects: map[types.NamespacedName]*record{},
	}
	m.kinds[memoKind] = k
	return m, &kindStore{memo: m, kind: memoKind, watched: k}, told
}

func metadataOf(uid, version string, generation int64, change func(*metav1.PartialObjectMetadata)) *metav1.PartialObjectMetadata {
	p := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: memoName.Namespace, Name: memoName.Name, UID: types.UID(uid), ResourceVersion: version, Generation: generation,
		Labels:        map[string]string{"app": "a", "foreign": "1"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kustomize-controller", Operation: metav1.ManagedFieldsOperationApply}},
	}}
	if change != nil {
		change(p)
	}
	return p
}

func declared() *unstructured.Unstructured {
	u := newObject("apps/v1", "Deployment", "a")
	u.SetLabels(map[string]string{"app": "a"})
	return u
}

func TestMemo(t *testing.T) {
	desired := Digest{1}
	for name, tc := range map[string]struct {
		reason string
		// first is the answer to the apply.
		first *metav1.PartialObjectMetadata
		event func(*kindStore) error
		clean bool
		tells string
	}{
		"Own write": {
			reason: "the watch shows what we wrote ourselves",
			event:  func(s *kindStore) error { return s.Add(metadataOf("u", "10", 3, nil)) }, clean: true,
		},
		"Before our write": {
			reason: "the watch lags behind",
			event:  func(s *kindStore) error { return s.Update(metadataOf("u", "9", 2, nil)) }, clean: true,
		},
		"Status": {
			reason: "a controller writes status: nothing that was applied changed, but its health may have",
			event:  func(s *kindStore) error { return s.Update(metadataOf("u", "11", 3, nil)) }, clean: true, tells: "apps Deployment/x/a false",
		},
		"Spec": {
			reason: "somebody edits the object",
			event:  func(s *kindStore) error { return s.Update(metadataOf("u", "11", 4, nil)) }, tells: "apps Deployment/x/a true",
		},
		"Label of others": {
			reason: "a label that was not asked for is none of our business",
			event: func(s *kindStore) error {
				return s.Update(metadataOf("u", "11", 3, func(p *metav1.PartialObjectMetadata) { p.Labels["foreign"] = "2" }))
			}, clean: true, tells: "apps Deployment/x/a false",
		},
		"Label of ours": {
			reason: "a label that was asked for is changed without a new generation",
			event: func(s *kindStore) error {
				return s.Update(metadataOf("u", "11", 3, func(p *metav1.PartialObjectMetadata) { p.Labels["app"] = "b" }))
			}, tells: "apps Deployment/x/a true",
		},
		"Deleted": {
			reason: "somebody deletes it, or strips the owner label, after which the watch no longer shows it",
			event:  func(s *kindStore) error { return s.Delete(metadataOf("u", "11", 3, nil)) }, tells: "apps Deployment/x/a true",
		},
		"Re-created": {
			reason: "the same name, another object",
			event:  func(s *kindStore) error { return s.Add(metadataOf("w", "11", 3, nil)) }, tells: "apps Deployment/x/a true",
		},
		"Edited with kubectl": {
			reason: "kubectl's fields have to be taken over, even if the generation were the same",
			event: func(s *kindStore) error {
				return s.Update(metadataOf("u", "11", 3, func(p *metav1.PartialObjectMetadata) {
					p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{Manager: "kubectl-edit", Operation: metav1.ManagedFieldsOperationUpdate})
				}))
			}, tells: "apps Deployment/x/a true",
		},
		"Without generation": {
			reason: "kinds like ConfigMap have no generation: any write is looked at",
			first:  metadataOf("u", "10", 0, nil),
			event:  func(s *kindStore) error { return s.Update(metadataOf("u", "11", 0, nil)) }, tells: "apps Deployment/x/a true",
		},
		"Exempted": {
			reason: "a person asks that it be left alone: the next look decides",
			event: func(s *kindStore) error {
				return s.Update(metadataOf("u", "11", 3, func(p *metav1.PartialObjectMetadata) { p.Annotations = map[string]string{reconcileKey: "Disabled"} }))
			}, tells: "apps Deployment/x/a true",
		},
		"Listed anew": {
			reason: "the watch was interrupted and nothing happened meanwhile",
			event:  func(s *kindStore) error { return s.Replace([]any{metadataOf("u", "10", 3, nil)}, "12") }, clean: true,
		},
		"Missing in a list": {
			reason: "it was deleted while the watch was interrupted",
			event:  func(s *kindStore) error { return s.Replace(nil, "12") }, tells: "apps Deployment/x/a true",
		},
		"Foreign object": {
			reason: "an object that was never applied by us is nothing to tell about",
			event: func(s *kindStore) error {
				return s.Add(metadataOf("z", "12", 1, func(p *metav1.PartialObjectMetadata) { p.Name = "other" }))
			}, clean: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, store, told := newMemo()
			first := tc.first
			if first == nil {
				first = metadataOf("u", "10", 3, nil)
			}
			m.remember(memoKind, memoName, memoOwner, desired, declared(), first)
			if !m.clean(memoKind, memoName, memoOwner, desired) || !m.Clean(memoOwner, 1) {
				t.Fatal("what was just applied is not clean")
			}
			if m.clean(memoKind, memoName, memoOwner, Digest{2}) {
				t.Error("an object is clean although something else is asked for now")
			}
			if m.clean(memoKind, memoName, types.NamespacedName{Name: "other"}, desired) {
				t.Error("an object is clean for somebody who did not apply it")
			}
			if err := tc.event(store); err != nil {
				t.Fatal(err)
			}
			if got := m.clean(memoKind, memoName, memoOwner, desired); got != tc.clean {
				t.Errorf("%s: clean() = %t, want %t", tc.reason, got, tc.clean)
			}
			if got := m.Clean(memoOwner, 1); got != tc.clean {
				t.Errorf("%s: Clean() = %t, want %t", tc.reason, got, tc.clean)
			}
			var want touches
			if tc.tells != "" {
				want = touches{tc.tells}
			}
			if fmt.Sprint(*told) != fmt.Sprint(want) {
				t.Errorf("%s: told %v, want %v", tc.reason, *told, want)
			}
			// Applied again, it is clean again, however often it was touched.
			m.remember(memoKind, memoName, memoOwner, desired, declared(), metadataOf("w", "20", 5, nil))
			if !m.Clean(memoOwner, 1) {
				t.Errorf("%s: not clean after it was applied again", tc.reason)
			}
			m.Forget(memoOwner)
			if m.Clean(memoOwner, 1) || !m.Clean(memoOwner, 0) {
				t.Errorf("%s: something is remembered of an owner that was forgotten", tc.reason)
			}
		})
	}
}

// TestMemoRaces: the event of somebody's write arrives before the answer to
// our own, earlier one is taken in.
func TestMemoRaces(t *testing.T) {
	m, store, _ := newMemo()
	if err := store.Add(metadataOf("u", "12", 4, nil)); err != nil {
		t.Fatal(err)
	}
	m.remember(memoKind, memoName, memoOwner, Digest{1}, declared(), metadataOf("u", "10", 3, nil))
	if m.Clean(memoOwner, 1) {
		t.Error("an object is clean although the watch showed a later write before")
	}
}

// TestMemoPassedBy: the watch has come past our own write before its answer is
// taken in.
func TestMemoPassedBy(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		events func(*kindStore) error
	}{
		"Gone": {"it was deleted meanwhile", func(s *kindStore) error {
			return errors.Join(s.Add(metadataOf("u", "10", 3, nil)), s.Delete(metadataOf("u", "11", 3, nil)))
		}},
		"Relabelled": {"a label was changed meanwhile, which no generation tells", func(s *kindStore) error {
			return s.Update(metadataOf("u", "11", 3, func(p *metav1.PartialObjectMetadata) { p.Labels["app"] = "b" }))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, told := newMemo()
			if err := tc.events(s); err != nil {
				t.Fatal(err)
			}
			m.remember(memoKind, memoName, memoOwner, Digest{1}, declared(), metadataOf("u", "10", 3, nil))
			if m.Clean(memoOwner, 1) || len(*told) != 1 {
				t.Errorf("%s: it is clean, or nobody was told: %v", tc.reason, *told)
			}
		})
	}
}

// TestMemoRestored: versions go back when etcd is restored from a backup.
func TestMemoRestored(t *testing.T) {
	m, s, told := newMemo()
	if err := s.Replace([]any{metadataOf("u", "900", 2, nil)}, "1000"); err != nil {
		t.Fatal(err)
	}
	m.remember(memoKind, memoName, memoOwner, Digest{1}, declared(), metadataOf("u", "1001", 3, nil))
	if err := s.Replace([]any{metadataOf("u", "400", 2, nil)}, "500"); err != nil {
		t.Fatal(err)
	}
	if m.Clean(memoOwner, 1) || len(*told) != 1 {
		t.Errorf("an object of another history is clean; told %v", *told)
	}
}

// TestMemoRefused: a kind whose watch the API server refuses is not clean.
func TestMemoRefused(t *testing.T) {
	m, s, _ := newMemo()
	m.remember(memoKind, memoName, memoOwner, Digest{1}, declared(), metadataOf("u", "10", 3, nil))
	m.served(s.watched, errors.New("connection refused"))
	if !m.Clean(memoOwner, 1) {
		t.Error("an API server that does not answer has said something")
	}
	m.served(s.watched, apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, ""))
	if m.Clean(memoOwner, 1) || m.clean(memoKind, memoName, memoOwner, Digest{1}) {
		t.Error("an object is clean although its kind is not watched any more")
	}
}

// TestMemoRetain: what is no longer declared is no longer watched over.
func TestMemoRetain(t *testing.T) {
	m, _, _ := newMemo()
	m.remember(memoKind, memoName, memoOwner, Digest{1}, declared(), metadataOf("u", "10", 3, nil))
	other := types.NamespacedName{Namespace: memoName.Namespace, Name: "b"}
	m.remember(memoKind, other, memoOwner, Digest{1}, declared(), metadataOf("v", "11", 1, nil))
	if owned := m.Owned(memoOwner); len(owned) != 2 {
		t.Fatalf("Owned() = %v", owned)
	}
	m.retain(memoOwner, []inventory.Entry{{Namespace: memoName.Namespace, Name: "b", Group: memoKind.Group, Kind: memoKind.Kind}})
	if owned := m.Owned(memoOwner); len(owned) != 1 || owned[0].Name != "b" {
		t.Errorf("Owned() = %v after the other was dropped", owned)
	}
}

func TestMemoWithoutWatch(t *testing.T) {
	m, _, _ := newMemo()
	other := schema.GroupKind{Kind: "ConfigMap"}
	m.remember(other, memoName, memoOwner, Digest{1}, declared(), metadataOf("u", "10", 3, nil))
	if m.clean(other, memoName, memoOwner, Digest{1}) {
		t.Error("an object of a kind that is not watched is remembered")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if m.watch(ended, other, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}) {
		t.Error("a memo that does not run watches")
	}
	var none *Memo
	if none.clean(memoKind, memoName, memoOwner, Digest{}) || none.Clean(memoOwner, 0) || none.watch(context.Background(), memoKind, schema.GroupVersionResource{}) {
		t.Error("no memo knows something")
	}
	none.Forget(memoOwner)
	none.forget(memoKind, memoName)
}

func TestRanks(t *testing.T) {
	objects := []*unstructured.Unstructured{
		newObject("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "h"), newObject("apps/v1", "Deployment", "d"),
		newObject("v1", "ConfigMap", "c"), newObject("v1", "ServiceAccount", "a"), newObject("v1", "ConfigMap", "b"),
		newObject("example.com/v1", "Widget", "g"), newObject("example.com/v1", "Gadget", "f"), newObject("policy/v1", "PodDisruptionBudget", "e"),
	}
	got := ""
	for _, rank := range ranks(objects) {
		for _, u := range rank {
			got += u.GetName()
		}
		got += " "
	}
	if want := "a bc d e fg h "; got != want {
		t.Errorf("ranks() = %q, want %q: Flux's order, split where the rank of the kind changes", got, want)
	}
	if objects[0].GetName() != "h" {
		t.Error("ranks() sorted the caller's list")
	}
}
