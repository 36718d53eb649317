package memo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

var (
	memoKind   = schema.GroupKind{Group: "apps", Kind: "Deployment"}
	memoName   = types.NamespacedName{Namespace: "x", Name: "a"}
	memoObject = Object{memoKind, memoName}
	memoOwner  = types.NamespacedName{Namespace: "flux-system", Name: "apps"}
)

// touches collects what a memo tells.
type touches []string

// newMemo returns a memo that shows one kind as watched, without an API server.
func newMemo() (*Memo, *store, *touches) { return newMemoOf(memoKind) }

func newMemoOf(gk schema.GroupKind) (*Memo, *store, *touches) {
	m := New(observed.NewReader(nil), directive.Group, time.Now)
	told := &touches{}
	m.OnTouch(func(owner types.NamespacedName, e inventory.Entry, dirty bool) {
		*told = append(*told, fmt.Sprintf("%s %s %t", owner.Name, e, dirty))
	})
	k := &watched{
		kind:   m.records.open(gk, schema.GroupVersionResource{Group: gk.Group, Version: "v1", Resource: strings.ToLower(gk.Kind) + "s"}),
		synced: make(chan struct{}), stop: func() {},
	}
	m.watches.kinds[gk] = k
	return m, &store{records: &m.records, watched: k}, told
}

func metadataOf(uid, version string, generation int64, change func(*metav1.PartialObjectMetadata)) *metav1.PartialObjectMetadata {
	p := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: memoName.Namespace, Name: memoName.Name, UID: types.UID(uid), ResourceVersion: version, Generation: generation,
		Labels:        map[string]string{"app": "a", "foreign": "1", directive.Group + "/name": "apps"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kustomize-controller", Operation: metav1.ManagedFieldsOperationApply}},
	}}
	if change != nil {
		change(p)
	}
	return p
}

// managing adds a field manager with its fields.
func managing(manager, fields, subresource string) func(*metav1.PartialObjectMetadata) {
	return func(p *metav1.PartialObjectMetadata) {
		p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", Subresource: subresource, FieldsV1: metav1.NewFieldsV1(fields),
		})
	}
}

// update is what a watch does with an update.
func (s *store) update(p *metav1.PartialObjectMetadata) error {
	o, err := s.Transformer()(p)
	if err != nil {
		return err
	}
	return s.Update(o)
}

func declared() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "a"}}}
	u.SetLabels(map[string]string{"app": "a"})
	return u
}

func TestMemo(t *testing.T) {
	desired := digest.Short{1}
	for name, tc := range map[string]struct {
		reason string
		// first is the answer to the apply.
		first *metav1.PartialObjectMetadata
		event func(*store) error
		clean bool
		tells string
	}{
		"Own write": {
			reason: "the watch shows what we wrote ourselves",
			event:  func(s *store) error { return s.Add(metadataOf("u", "10", 3, nil)) }, clean: true,
		},
		"Before our write": {
			reason: "the watch lags behind",
			event:  func(s *store) error { return s.Update(metadataOf("u", "9", 2, nil)) }, clean: true,
		},
		"Status": {
			reason: "a controller writes status: nothing that was applied changed, but its health may have",
			event:  func(s *store) error { return s.Update(metadataOf("u", "11", 3, nil)) }, clean: true, tells: "apps Deployment/x/a false",
		},
		"Spec": {
			reason: "somebody edits the object",
			event:  func(s *store) error { return s.Update(metadataOf("u", "11", 4, nil)) }, tells: "apps Deployment/x/a true",
		},
		"Label of others": {
			reason: "a label that was not asked for is none of our business",
			event: func(s *store) error {
				return s.Update(metadataOf("u", "11", 3, func(p *metav1.PartialObjectMetadata) { p.Labels["foreign"] = "2" }))
			}, clean: true, tells: "apps Deployment/x/a false",
		},
		"Label of ours": {
			reason: "a label that was asked for is changed without a new generation",
			event: func(s *store) error {
				return s.Update(metadataOf("u", "11", 3, func(p *metav1.PartialObjectMetadata) { p.Labels["app"] = "b" }))
			}, tells: "apps Deployment/x/a true",
		},
		"Deleted": {
			reason: "somebody deletes it, or strips the owner label, after which the watch no longer shows it",
			event:  func(s *store) error { return s.Delete(metadataOf("u", "11", 3, nil)) }, tells: "apps Deployment/x/a true",
		},
		"Re-created": {
			reason: "the same name, another object",
			event:  func(s *store) error { return s.Add(metadataOf("w", "11", 3, nil)) }, tells: "apps Deployment/x/a true",
		},
		"Edited with kubectl": {
			reason: "kubectl's fields have to be taken over, even if the generation were the same",
			event: func(s *store) error {
				return s.Update(metadataOf("u", "11", 3, func(p *metav1.PartialObjectMetadata) {
					p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{Manager: "kubectl-edit", Operation: metav1.ManagedFieldsOperationUpdate})
				}))
			}, tells: "apps Deployment/x/a true",
		},
		"Without generation": {
			reason: "kinds like ConfigMap have no generation: any write is looked at, if nothing tells whose fields they are",
			first:  metadataOf("u", "10", 0, nil),
			event:  func(s *store) error { return s.Update(metadataOf("u", "11", 0, nil)) }, tells: "apps Deployment/x/a true",
		},
		"Status without generation": {
			reason: "the API server counts pods in the status of a ResourceQuota: nobody wrote what was applied",
			first:  metadataOf("u", "10", 0, managing("kustomize-controller", `{"f:spec":{}}`, "")),
			event: func(s *store) error {
				return s.update(metadataOf("u", "11", 0, func(p *metav1.PartialObjectMetadata) {
					managing("kube-apiserver", `{"f:status":{"f:used":{}}}`, "status")(p)
					managing("kustomize-controller", `{"f:spec":{}}`, "")(p)
				}))
			}, clean: true, tells: "apps Deployment/x/a false",
		},
		"Same manager without generation": {
			reason: "another engine with the name of our field manager applied other values",
			first:  metadataOf("u", "10", 0, managing("kustomize-controller", `{"f:spec":{}}`, "")),
			event: func(s *store) error {
				return s.update(metadataOf("u", "11", 0, func(p *metav1.PartialObjectMetadata) {
					managing("kustomize-controller", `{"f:spec":{}}`, "")(p)
					p.ManagedFields[1].Time = &metav1.Time{Time: time.Unix(1, 0)}
				}))
			}, tells: "apps Deployment/x/a true",
		},
		"Spec without generation": {
			reason: "somebody who changes a field of ours takes it",
			first:  metadataOf("u", "10", 0, managing("kustomize-controller", `{"f:spec":{}}`, "")),
			event: func(s *store) error {
				return s.update(metadataOf("u", "11", 0, func(p *metav1.PartialObjectMetadata) {
					managing("kustomize-controller", `{}`, "")(p)
					managing("someone", `{"f:spec":{}}`, "")(p)
				}))
			}, tells: "apps Deployment/x/a true",
		},
		"Exempted": {
			reason: "a person asks that it be left alone: the next look decides",
			event: func(s *store) error {
				return s.Update(metadataOf("u", "11", 3, func(p *metav1.PartialObjectMetadata) {
					p.Annotations = map[string]string{directive.Group + "/reconcile": "Disabled"}
				}))
			}, tells: "apps Deployment/x/a true",
		},
		"Listed anew": {
			reason: "the watch was interrupted and nothing happened meanwhile",
			event:  func(s *store) error { return s.Replace([]any{metadataOf("u", "10", 3, nil)}, "12") }, clean: true,
		},
		"Missing in a list": {
			reason: "it was deleted while the watch was interrupted",
			event:  func(s *store) error { return s.Replace(nil, "12") }, tells: "apps Deployment/x/a true",
		},
		"Foreign object": {
			reason: "an object that was never applied by us is nothing to tell about",
			event: func(s *store) error {
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
			m.Remember(memoObject, memoOwner, desired, declared(), first)
			if !m.Matches(memoObject, memoOwner, desired) || !m.Clean(memoOwner, 1) {
				t.Fatal("what was just applied is not clean")
			}
			if m.Matches(memoObject, memoOwner, digest.Short{2}) {
				t.Error("an object is clean although something else is asked for now")
			}
			if m.Matches(memoObject, types.NamespacedName{Name: "other"}, desired) {
				t.Error("an object is clean for somebody who did not apply it")
			}
			if err := tc.event(store); err != nil {
				t.Fatal(err)
			}
			if got := m.Matches(memoObject, memoOwner, desired); got != tc.clean {
				t.Errorf("%s: Matches() = %t, want %t", tc.reason, got, tc.clean)
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
			m.Remember(memoObject, memoOwner, desired, declared(), metadataOf("w", "20", 5, nil))
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

// TestMemoStill: the generation of a PriorityClass is 1 for good, whatever is changed (read 829).
func TestMemoStill(t *testing.T) {
	priority := schema.GroupKind{Group: "scheduling.k8s.io", Kind: "PriorityClass"}
	for name, tc := range map[string]struct {
		reason  string
		kind    schema.GroupKind
		version string
		change  func(*metav1.PartialObjectMetadata)
		clean   bool
	}{
		"Default": {"another client than kubectl made it the default of all pods", priority, "11", managing("someone", `{"f:globalDefault":{}}`, ""), false},
		"Same":    {"our own write", priority, "10", nil, true},
		"Other":   {"the generation of other kinds tells", memoKind, "11", managing("someone", `{"f:status":{}}`, ""), true},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, _ := newMemoOf(tc.kind)
			object, desired := Object{tc.kind, memoName}, digest.Short{1}
			applied := managing("kustomize-controller", `{"f:value":{},"f:globalDefault":{}}`, "")
			m.Remember(object, memoOwner, desired, declared(), metadataOf("u", "10", 1, applied))
			shown := metadataOf("u", tc.version, 1, applied)
			if tc.change != nil {
				tc.change(shown)
			}
			if err := s.update(shown); err != nil {
				t.Fatal(err)
			}
			if got := m.Matches(object, memoOwner, desired); got != tc.clean {
				t.Errorf("%s: Matches() = %t", tc.reason, got)
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
	m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
	if m.Clean(memoOwner, 1) {
		t.Error("an object is clean although the watch showed a later write before")
	}
}

// TestMemoPassedBy: the watch has come past our own write before its answer is
// taken in.
func TestMemoPassedBy(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		events func(*store) error
	}{
		"Gone": {"it was deleted meanwhile", func(s *store) error {
			return errors.Join(s.Add(metadataOf("u", "10", 3, nil)), s.Delete(metadataOf("u", "11", 3, nil)))
		}},
		"Relabelled": {"a label was changed meanwhile, which no generation tells", func(s *store) error {
			return s.Update(metadataOf("u", "11", 3, func(p *metav1.PartialObjectMetadata) { p.Labels["app"] = "b" }))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, told := newMemo()
			if err := tc.events(s); err != nil {
				t.Fatal(err)
			}
			m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
			if m.Clean(memoOwner, 1) || len(*told) != 1 {
				t.Errorf("%s: it is clean, or nobody was told: %v", tc.reason, *told)
			}
		})
	}
}

// TestMemoMeanwhile: controllers write as soon as they see a change, often before the answer to
// our own write is taken in.
func TestMemoMeanwhile(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		events func(*store) error
		clean  bool
		told   int
	}{
		"Nothing": {"our own write is shown before its answer is there", func(s *store) error { return s.update(metadataOf("u", "10", 3, nil)) }, true, 0},
		"Status": {"its status was written: it is as it was applied, and its health may be another one", func(s *store) error {
			return errors.Join(s.update(metadataOf("u", "10", 3, nil)), s.update(metadataOf("u", "11", 3, nil)))
		}, true, 1},
		"Spec": {"its spec was, and then its status", func(s *store) error {
			return errors.Join(s.update(metadataOf("u", "11", 4, nil)), s.update(metadataOf("u", "12", 4, nil)))
		}, false, 1},
		"Gone": {"it was deleted", func(s *store) error {
			return errors.Join(s.update(metadataOf("u", "11", 3, nil)), s.Delete(metadataOf("u", "12", 3, nil)))
		}, false, 1},
		"Unlisted": {"it was deleted while the watch was interrupted", func(s *store) error {
			return errors.Join(s.update(metadataOf("u", "11", 3, nil)), s.Replace(nil, "13"))
		}, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, told := newMemo()
			m.Begin(memoObject)
			if err := tc.events(s); err != nil {
				t.Fatal(err)
			}
			m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
			if got := m.Clean(memoOwner, 1); got != tc.clean || len(*told) != tc.told {
				t.Errorf("%s: clean = %t, told %v", tc.reason, got, *told)
			}
			if err := s.update(metadataOf("u", "14", 4, nil)); err != nil || m.Clean(memoOwner, 1) {
				t.Errorf("%s: what is shown afterwards counts no more: %v", tc.reason, err)
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
	m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "1001", 3, nil))
	if err := s.Replace([]any{metadataOf("u", "400", 2, nil)}, "500"); err != nil {
		t.Fatal(err)
	}
	if m.Clean(memoOwner, 1) || len(*told) != 1 {
		t.Errorf("an object of another history is clean; told %v", *told)
	}
}

// TestMemoOpaque: versions of some API servers of others are no numbers. What was applied is clean as soon as
// the watch shows it, and is touched by what changes it.
func TestMemoOpaque(t *testing.T) {
	m, s, told := newMemo()
	shows := func(versions ...string) {
		t.Helper()
		for _, version := range versions {
			if err := s.update(metadataOf("u", version, 3, nil)); err != nil {
				t.Fatal(err)
			}
		}
	}
	remember := func(version string) {
		m.Begin(memoObject)
		m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", version, 3, nil))
	}
	if err := s.Replace(nil, "1200/5678"); err != nil {
		t.Fatal(err)
	}
	remember("1234/")
	if m.Clean(memoOwner, 1) || len(*told) != 1 {
		t.Errorf("the watch may have come past what was created: told %v", *told)
	}
	shows("1234/")
	remember("1234/")
	shows("1234/")
	if err := s.Replace([]any{metadataOf("u", "1234/", 3, nil)}, "1300/5700"); err != nil {
		t.Fatal(err)
	}
	if !m.Clean(memoOwner, 1) || len(*told) != 1 {
		t.Errorf("what is as it was applied is not clean; told %v", *told)
	}
	if err := s.update(metadataOf("u", "1310/", 4, nil)); err != nil || m.Clean(memoOwner, 1) || len(*told) != 2 {
		t.Errorf("what somebody changed is clean; told %v, %v", *told, err)
	}
}

// TestMemoRefused: a kind whose watch the API server refuses is not clean.
func TestMemoRefused(t *testing.T) {
	m, s, told := newMemo()
	m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
	m.watches.served(s.watched, errors.New("connection refused"))
	if !m.Clean(memoOwner, 1) {
		t.Error("an API server that does not answer has said something")
	}
	m.watches.served(s.watched, apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, ""))
	if m.Clean(memoOwner, 1) || m.Matches(memoObject, memoOwner, digest.Short{1}) {
		t.Error("an object is clean although its kind is not watched any more")
	}
	m.watches.served(s.watched, apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, ""))
	if len(*told) != 1 {
		t.Errorf("told %v, want the one object, once", *told)
	}
}

// TestMemoDoubt: what is doubted is not clean before it is applied again. What is not
// applied, or is another owner's, is not doubted.
func TestMemoDoubt(t *testing.T) {
	entry := inventory.Entry{Namespace: memoName.Namespace, Name: memoName.Name, Group: memoKind.Group, Kind: memoKind.Kind, Version: "v1"}
	m, s, told := newMemo()
	m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
	if list := m.Applies(memoOwner); len(list) != 1 || list[0] != entry {
		t.Errorf("Applies() = %v", list)
	}
	other := entry
	other.Name = "other"
	if m.Doubt(types.NamespacedName{Name: "other"}, []inventory.Entry{entry}) != 0 || m.Doubt(memoOwner, []inventory.Entry{other}) != 0 || !m.Clean(memoOwner, 1) {
		t.Error("what is another owner's is doubted, or what is not there")
	}
	if n := m.Doubt(memoOwner, []inventory.Entry{entry, other}); n != 1 || m.Clean(memoOwner, 1) || m.Matches(memoObject, memoOwner, digest.Short{1}) {
		t.Errorf("Doubt() = %d, and it is clean", n)
	}
	if m.Doubt(memoOwner, []inventory.Entry{entry}) != 0 || len(*told) > 0 {
		t.Errorf("it is doubted twice; told %v", *told)
	}
	m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
	if !m.Clean(memoOwner, 1) {
		t.Error("it is not clean although it was applied again")
	}
	if err := s.Update(metadataOf("u", "11", 3, func(p *metav1.PartialObjectMetadata) {
		p.Annotations = map[string]string{"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}
	})); err != nil {
		t.Fatal(err)
	}
	if !m.Skip(memoObject, memoOwner, digest.Short{1}, false) {
		t.Fatal("it is not skipped")
	}
	if len(m.Applies(memoOwner)) > 0 || m.Doubt(memoOwner, []inventory.Entry{entry}) != 0 {
		t.Error("what a person exempts is doubted")
	}
	var none *Memo
	if none.Doubt(memoOwner, nil) != 0 || none.Applies(memoOwner) != nil {
		t.Error("nothing knows something")
	}
}

// TestMemoDoubtAll: what a sweep doubts, what is skipped too, is applied again, and what
// happens to it until then is told.
func TestMemoDoubtAll(t *testing.T) {
	m, s, told := newMemo()
	m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
	m.DoubtAll(types.NamespacedName{Name: "other"})
	if !m.Clean(memoOwner, 1) {
		t.Error("what another owner doubts is not clean")
	}
	m.DoubtAll(memoOwner)
	if m.Clean(memoOwner, 1) || m.Matches(memoObject, memoOwner, digest.Short{1}) || !m.Applied(memoObject, memoOwner, digest.Short{1}) {
		t.Error("what is doubted is clean, or was never applied")
	}
	if err := s.Update(metadataOf("u", "11", 3, nil)); err != nil || len(*told) != 1 {
		t.Errorf("its status was written: told %v, %v", *told, err)
	}
	if err := s.Update(metadataOf("u", "12", 3, func(p *metav1.PartialObjectMetadata) {
		p.Annotations = map[string]string{"kustomize.toolkit.fluxcd.io/reconcile": "disabled"}
	})); err != nil || !m.Skip(memoObject, memoOwner, digest.Short{1}, false) {
		t.Fatalf("it is not skipped: %v", err)
	}
	m.DoubtAll(memoOwner)
	if m.Skips(memoObject, memoOwner, digest.Short{1}) {
		t.Error("that it is skipped is not looked at again")
	}
	var none *Memo
	none.DoubtAll(memoOwner)
}

// TestMemoUnlabelled: an object whose owner label a webhook takes off is not watched, and
// is applied again each time.
func TestMemoUnlabelled(t *testing.T) {
	m, _, _ := newMemo()
	bare := metadataOf("u", "10", 3, func(p *metav1.PartialObjectMetadata) { p.Labels = map[string]string{"app": "a"} })
	if m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), bare) || m.Matches(memoObject, memoOwner, digest.Short{1}) {
		t.Error("an object that the watch does not show is remembered")
	}
}

// TestMemoMoves: when the API server drops the version of a watch, the watch goes on in
// another one, and nothing is clean before it has been verified again.
func TestMemoMoves(t *testing.T) {
	m, s, _ := newMemo()
	old := s.watched.kind.resource
	v2 := old.GroupResource().WithVersion("v2")
	m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
	if m.records.movesTo(s.watched.kind, v2) {
		t.Error("a watch that is served moves")
	}
	m.watches.served(s.watched, apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, ""))
	if m.records.movesTo(s.watched.kind, old) {
		t.Error("a watch moves to where it is")
	}
	if !m.records.movesTo(s.watched.kind, v2) || s.watched.kind.resource != v2 {
		t.Errorf("the watch is in %v, want %v", s.watched.kind.resource, v2)
	}
	if m.Clean(memoOwner, 1) {
		t.Error("an object is clean that nobody watched for a while")
	}
	m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "11", 3, nil))
	if !m.Clean(memoOwner, 1) {
		t.Error("an object is not clean after it was applied again")
	}
}

// TestMemoRetain: what is no longer declared is no longer watched over.
func TestMemoRetain(t *testing.T) {
	m, _, _ := newMemo()
	m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
	other := types.NamespacedName{Namespace: memoName.Namespace, Name: "b"}
	m.Remember(Object{memoKind, other}, memoOwner, digest.Short{1}, declared(), metadataOf("v", "11", 1, nil))
	if owned := m.Owned(memoOwner); len(owned) != 2 {
		t.Fatalf("Owned() = %v", owned)
	}
	m.Retain(memoOwner, []inventory.Entry{{Namespace: memoName.Namespace, Name: "b", Group: memoKind.Group, Kind: memoKind.Kind}})
	if owned := m.Owned(memoOwner); len(owned) != 1 || owned[0].Name != "b" {
		t.Errorf("Owned() = %v after the other was dropped", owned)
	}
}

// TestMemoDisplaced: who had applied an object is told when the one that applied it last
// lets go of it, as the old owner does after a hand-over.
func TestMemoDisplaced(t *testing.T) {
	old := types.NamespacedName{Namespace: "flux-system", Name: "old"}
	for name, tc := range map[string]struct {
		reason string
		last   types.NamespacedName
		drop   func(*Memo)
		want   []string
	}{
		"Forgotten": {"the old owner was last, and is gone", old, func(m *Memo) { m.Forget(old) }, []string{"apps Deployment/x/a true"}},
		"Dropped":   {"the old owner was last, and drops it", old, func(m *Memo) { m.Retain(old, nil) }, []string{"apps Deployment/x/a true"}},
		"Deleted":   {"the old owner was last, and deletes it", old, func(m *Memo) { m.Drop(memoObject, old) }, []string{"apps Deployment/x/a true"}},
		"Taken":     {"the old owner deletes what the new one has", memoOwner, func(m *Memo) { m.Drop(memoObject, old) }, []string{"apps Deployment/x/a true"}},
		"Own":       {"the new owner knows what it does itself", memoOwner, func(m *Memo) { m.Drop(memoObject, memoOwner); m.Drop(memoObject, memoOwner) }, []string{"old Deployment/x/a true"}},
		"Unlabeled": {"a webhook took the label off what the old owner applied", memoOwner, func(m *Memo) {
			m.Remember(memoObject, old, digest.Short{1}, declared(), metadataOf("u", "20", 3, func(p *metav1.PartialObjectMetadata) { p.Labels = nil }))
		}, []string{"apps Deployment/x/a true"}},
		"New": {"the new owner was last: the old one has nothing to correct", memoOwner, func(m *Memo) { m.Forget(old) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, told := newMemo()
			for i, by := range []types.NamespacedName{old, memoOwner, tc.last} {
				m.Remember(memoObject, by, digest.Short{1}, declared(), metadataOf("u", fmt.Sprint(10+i), 3, nil))
			}
			if len(*told) > 0 {
				t.Fatalf("two that declare one object wake each other for ever: %v", *told)
			}
			if tc.drop(m); !slices.Equal(*told, tc.want) {
				t.Errorf("%s: told %v, want %v", tc.reason, *told, tc.want)
			}
		})
	}
}

// TestMemoConflicts: that two owners take an object from each other is known when it was taken
// from one for the second time, and until one of them drops it, or nothing happens for long.
func TestMemoConflicts(t *testing.T) {
	other, third := types.NamespacedName{Namespace: "flux-system", Name: "other"}, types.NamespacedName{Namespace: "flux-system", Name: "third"}
	for name, tc := range map[string]struct {
		reason string
		by     []types.NamespacedName
		pause  time.Duration
		end    func(*Memo)
		want   string
	}{
		"Once":     {"it moved from one to the other", []types.NamespacedName{memoOwner, other}, time.Minute, nil, ""},
		"Returned": {"it moved back", []types.NamespacedName{memoOwner, other, memoOwner}, time.Minute, nil, ""},
		"Twice":    {"both declare it", []types.NamespacedName{memoOwner, other, memoOwner, other}, time.Hour, nil, "Deployment/x/a other"},
		"Won":      {"the next turn changes nothing", []types.NamespacedName{memoOwner, other, memoOwner, other, memoOwner}, time.Hour, nil, "Deployment/x/a other"},
		"Seldom":   {"these are not turns any more", []types.NamespacedName{memoOwner, other, memoOwner, other}, 7 * time.Hour, nil, ""},
		"Again":    {"its owner verifies it", []types.NamespacedName{memoOwner, memoOwner, other, other}, time.Minute, nil, ""},
		"Third":    {"each took it once", []types.NamespacedName{memoOwner, other, memoOwner, third}, time.Minute, nil, ""},
		"InTurn":   {"three declare it", []types.NamespacedName{memoOwner, other, memoOwner, third, memoOwner, other, memoOwner, third}, time.Minute, nil, "Deployment/x/a otherDeployment/x/a third"},
		"Between":  {"a third took it once meanwhile", []types.NamespacedName{memoOwner, other, memoOwner, other, memoOwner, third}, time.Minute, nil, "Deployment/x/a other"},
		"LetGo":    {"the other one does not declare it any more", []types.NamespacedName{memoOwner, other, memoOwner, other}, time.Minute, func(m *Memo) { m.Retain(other, nil) }, ""},
		"Gone":     {"the other one is gone", []types.NamespacedName{memoOwner, other, memoOwner, other}, time.Minute, func(m *Memo) { m.Forget(other) }, ""},
		"Dropped":  {"this one does not declare it any more", []types.NamespacedName{memoOwner, other, memoOwner, other}, time.Minute, func(m *Memo) { m.Retain(memoOwner, nil) }, ""},
		"Declared": {"both still do", []types.NamespacedName{memoOwner, other, memoOwner, other}, time.Minute, func(m *Memo) { m.Retain(other, []inventory.Entry{entryOf(memoObject)}) }, "Deployment/x/a other"},
		"Left": {"the other one leaves it as it is: it is there, and that is enough", []types.NamespacedName{memoOwner}, time.Minute, func(m *Memo) {
			for range 3 {
				m.Skip(memoObject, other, digest.Short{1}, true)
				m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "30", 3, nil))
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m, watch, _ := newMemo()
			now := time.Unix(1000, 0)
			m.records.now = func() time.Time { return now }
			for i, by := range tc.by {
				m.Remember(memoObject, by, digest.Short{1}, declared(), metadataOf("u", fmt.Sprint(10+i), 3, nil))
				now = now.Add(tc.pause)
			}
			if err := watch.Add(metadataOf("u", "20", 3, nil)); err != nil {
				t.Fatal(err)
			}
			if tc.end != nil {
				tc.end(m)
			}
			got := ""
			for _, c := range m.Conflicts(memoOwner) {
				got += fmt.Sprint(c.Object, " ", c.Other.Name)
			}
			if got != tc.want {
				t.Errorf("%s: conflicts %q, want %q", tc.reason, got, tc.want)
			}
			if tc.end != nil && tc.want == "" && len(m.records.taken[memoOwner])+len(m.records.taken[other]) > 0 {
				t.Errorf("%s: %v stays in memory", tc.reason, m.records.taken)
			}
		})
	}
}

// TestMemoConflictTold: who was in conflict with an owner that lets go of the object is told, also
// if it applied the object last, as its status names the conflict until it looks again.
func TestMemoConflictTold(t *testing.T) {
	other := types.NamespacedName{Namespace: "flux-system", Name: "other"}
	for name, tc := range map[string]struct {
		reason string
		by     []types.NamespacedName
		want   int
	}{
		"Conflict": {"its status names it", []types.NamespacedName{memoOwner, other, memoOwner, other, memoOwner}, 1},
		"Moved":    {"it was never in conflict", []types.NamespacedName{memoOwner, other, memoOwner}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, told := newMemo()
			now := time.Unix(1000, 0)
			m.records.now = func() time.Time { return now }
			for i, by := range tc.by {
				m.Remember(memoObject, by, digest.Short{1}, declared(), metadataOf("u", fmt.Sprint(10+i), 3, nil))
				now = now.Add(time.Minute)
			}
			*told = nil
			m.Retain(other, nil)
			if len(*told) != tc.want {
				t.Errorf("%s: told %v", tc.reason, *told)
			}
		})
	}
}

// TestMemoAbandonedByAnother: an apply without an answer, of an object that another owner
// has applied, may have taken it over: that owner is told, once. One whose own apply failed
// tries again by itself.
func TestMemoAbandonedByAnother(t *testing.T) {
	old := types.NamespacedName{Namespace: "flux-system", Name: "old"}
	for name, tc := range map[string]struct {
		reason string
		by     types.NamespacedName
		want   []string
	}{
		"Own":   {"its own apply failed", memoOwner, nil},
		"Other": {"the old owner's apply had no answer", old, []string{"apps Deployment/x/a true"}},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, told := newMemo()
			m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
			m.records.begin(memoObject)
			// The watch shows the effect before, or after.
			if err := s.Update(metadataOf("u", "11", 3, func(p *metav1.PartialObjectMetadata) { p.Labels["app"] = "other" })); err != nil {
				t.Fatal(err)
			}
			m.Abandon(memoObject, tc.by)
			m.Abandon(memoObject, tc.by)
			if err := s.Update(metadataOf("u", "12", 3, func(p *metav1.PartialObjectMetadata) { p.Labels["app"] = "other" })); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(*told, tc.want) {
				t.Errorf("%s: told %v, want %v", tc.reason, *told, tc.want)
			}
			if m.Clean(memoOwner, 1) {
				t.Errorf("%s: it is clean", tc.reason)
			}
		})
	}
}

// TestMemoGone: that an object is gone is told once, also of one of which it was told before that
// something is wrong, as that it is being deleted.
func TestMemoGone(t *testing.T) {
	m, s, told := newMemo()
	if err := s.update(metadataOf("u", "10", 3, nil)); err != nil {
		t.Fatal(err)
	}
	m.Begin(memoObject)
	m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
	going := func(version string) *metav1.PartialObjectMetadata {
		return metadataOf("u", version, 4, func(p *metav1.PartialObjectMetadata) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{}, []string{"x"}
		})
	}
	m.Begin(memoObject)
	m.Abandon(memoObject, memoOwner) // it was deleted, to be created again
	for range 2 {
		if err := s.update(going("11")); err != nil {
			t.Fatal(err)
		}
	}
	if len(*told) > 0 {
		t.Errorf("%v is told before it is gone", *told)
	}
	for range 2 {
		if err := s.Delete(going("12")); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"apps Deployment/x/a true"}; !slices.Equal(*told, want) {
		t.Errorf("told is %v, want %v", *told, want)
	}
}

// TestMemoGoing: an object that is being deleted is applied as long as it is declared, to no effect. Another
// look comes to the same until it is gone, which is told once.
func TestMemoGoing(t *testing.T) {
	going := func(version string) *metav1.PartialObjectMetadata {
		return metadataOf("u", version, 4, func(p *metav1.PartialObjectMetadata) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{}, []string{"x"}
		})
	}
	gone := func(s *store) error { return s.Delete(going("12")) }
	for name, tc := range map[string]struct {
		reason string
		// during happens while it is applied the second time, and after when that is over.
		during, after func(*store) error
		want          int
	}{
		"Held":     {"a finalizer holds it", nil, nil, 0},
		"Status":   {"its controller tells how far it is", func(s *store) error { return s.update(going("12")) }, func(s *store) error { return s.update(going("13")) }, 0},
		"Gone":     {"it is to be created again", nil, gone, 1},
		"Before":   {"it went before the answer was there", gone, nil, 1},
		"Unlisted": {"it went while the watch was interrupted", nil, func(s *store) error { return s.Replace(nil, "12") }, 1},
		"Another":  {"somebody created it again", nil, func(s *store) error { return s.update(metadataOf("w", "13", 1, nil)) }, 1},
		"Created":  {"somebody did before the answer was there", func(s *store) error { return s.update(metadataOf("w", "13", 1, nil)) }, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, told := newMemo()
			if err := s.update(going("11")); err != nil {
				t.Fatal(err)
			}
			for _, during := range []func(*store) error{nil, tc.during} {
				m.Begin(memoObject)
				if during != nil {
					if err := during(s); err != nil {
						t.Fatal(err)
					}
				}
				m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), going("11"))
			}
			if tc.after != nil {
				if err := tc.after(s); err != nil {
					t.Fatal(err)
				}
			}
			if len(*told) != tc.want || m.Clean(memoOwner, 1) {
				t.Errorf("%s: told %v, want %d; clean: %t", tc.reason, *told, tc.want, m.Clean(memoOwner, 1))
			}
		})
	}
}

func TestMemoWithoutWatch(t *testing.T) {
	m, _, _ := newMemo()
	other := schema.GroupKind{Kind: "ConfigMap"}
	m.Remember(Object{other, memoName}, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
	if m.Matches(Object{other, memoName}, memoOwner, digest.Short{1}) {
		t.Error("an object of a kind that is not watched is remembered")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if m.Watch(ended, other, schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, schema.GroupVersionResource{}) {
		t.Error("a memo that does not run watches")
	}
	var none *Memo
	if none.Matches(memoObject, memoOwner, digest.Short{}) || none.Clean(memoOwner, 0) || none.Watch(context.Background(), memoKind, schema.GroupVersionResource{}, schema.GroupVersionResource{}) {
		t.Error("no memo knows something")
	}
	none.Forget(memoOwner)
	none.Drop(memoObject, memoOwner)
}

// TestMemoDropsUnused: a kind of which nothing is remembered is watched for a
// while longer, and then no more.
func TestMemoDropsUnused(t *testing.T) {
	m, s, _ := newMemo()
	now := time.Unix(0, 0)
	m.records.now = func() time.Time { return now }
	watched := func() bool {
		m.watches.dropUnused()
		return m.watches.kinds[memoKind] == s.watched
	}
	m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
	now = now.Add(2 * unusedKind)
	if !watched() {
		t.Fatal("a kind is not watched any more although an object of it is remembered")
	}
	m.Forget(memoOwner)
	if !watched() {
		t.Fatal("a kind is dropped at once")
	}
	now = now.Add(unusedKind + time.Second)
	if watched() {
		t.Error("a kind is watched for ever although nothing of it is remembered")
	}
	m.Remember(memoObject, memoOwner, digest.Short{1}, declared(), metadataOf("u", "10", 3, nil))
	if m.Matches(memoObject, memoOwner, digest.Short{1}) {
		t.Error("an object of a kind that is not watched any more is remembered")
	}
}

// TestMemoSkips: an object that a person exempts, or that is to be applied once only, is
// known until the watch shows that this is over.
func TestMemoSkips(t *testing.T) {
	exempt := func(p *metav1.PartialObjectMetadata) {
		p.Annotations = map[string]string{directive.Group + "/reconcile": "disabled"}
	}
	for name, tc := range map[string]struct {
		reason string
		once   bool
		live   *metav1.PartialObjectMetadata
		event  func(*store) error
		kept   bool
		skips  bool
		tells  int
	}{
		"Exempt":    {reason: "nothing happens", live: metadataOf("u", "10", 3, exempt), kept: true, skips: true},
		"Edited":    {reason: "a person works on it, which is why it is exempt", live: metadataOf("u", "10", 3, exempt), kept: true, skips: true, event: func(s *store) error { return s.Update(metadataOf("u", "11", 4, exempt)) }},
		"Ended":     {reason: "the exemption is taken back", live: metadataOf("u", "10", 3, exempt), kept: true, tells: 1, event: func(s *store) error { return s.Update(metadataOf("u", "11", 3, nil)) }},
		"Deleted":   {reason: "it is to be applied now", live: metadataOf("u", "10", 3, exempt), kept: true, tells: 1, event: func(s *store) error { return s.Delete(metadataOf("u", "11", 3, exempt)) }},
		"Once":      {reason: "what became of it does not matter", once: true, live: metadataOf("u", "10", 3, nil), kept: true, skips: true, event: func(s *store) error { return s.Update(metadataOf("u", "11", 9, nil)) }},
		"OnceGone":  {reason: "it is not there any more", once: true, live: metadataOf("u", "10", 3, nil), kept: true, tells: 1, event: func(s *store) error { return s.Delete(metadataOf("u", "11", 3, nil)) }},
		"Unwatched": {reason: "the watch does not show it, so nobody would tell of its end", once: true},
		"Over":      {reason: "the exemption ended before it was noted", live: metadataOf("u", "11", 3, nil)},
	} {
		t.Run(name, func(t *testing.T) {
			m, s, told := newMemo()
			if tc.live != nil {
				if err := s.Add(tc.live); err != nil {
					t.Fatal(err)
				}
			}
			desired := digest.Short{1}
			if got := m.Skip(memoObject, memoOwner, desired, tc.once); got != tc.kept {
				t.Errorf("%s: Skip() = %t", tc.reason, got)
			}
			if tc.event != nil {
				if err := tc.event(s); err != nil {
					t.Fatal(err)
				}
			}
			if m.Skips(memoObject, memoOwner, desired) != tc.skips || m.Clean(memoOwner, 1) != tc.skips || len(*told) != tc.tells {
				t.Errorf("%s: skips %t, clean %t, told %v", tc.reason, m.Skips(memoObject, memoOwner, desired), m.Clean(memoOwner, 1), *told)
			}
			if m.Matches(memoObject, memoOwner, desired) || m.Applied(memoObject, memoOwner, desired) || m.Skips(memoObject, memoOwner, digest.Short{2}) {
				t.Errorf("%s: an object that was not applied counts as applied, or what is declared anew as known", tc.reason)
			}
		})
	}
}
