package apply

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"

	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/directive"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

var apps = Owner{FieldManager: "kustomize-controller", LabelGroup: group, Name: "apps", Namespace: "flux-system"}

func annotate(key, value string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{key: value}) }
}

// going is being deleted.
func going(u *unstructured.Unstructured) {
	now := metav1.Now()
	u.SetDeletionTimestamp(&now)
	u.SetFinalizers([]string{"foregroundDeletion"})
}

// byKubectl pauses a Cluster as a person does.
func byKubectl(u *unstructured.Unstructured) {
	u.Object["spec"] = map[string]any{"paused": true}
	u.SetManagedFields(append(u.GetManagedFields(), metav1.ManagedFieldsEntry{
		Manager: "kubectl-patch", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: u.GetAPIVersion(), FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:paused":{}}}`),
	}))
}

// changes is what was done to which object.
func changes(set *ssa.ChangeSet) string {
	var done []string
	for _, c := range set.Entries {
		done = append(done, c.ObjMetadata.Name+" "+c.Action.String())
	}
	return strings.Join(done, ", ")
}

func noRecord(context.Context, []inventory.Entry) error { return nil }

// TestApplyObject: what is done with one object, by what is in the cluster.
func TestApplyObject(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: "batch", Kind: "Job"}, "a", nil)
	for name, tc := range map[string]struct {
		reason   string
		declared *unstructured.Unstructured
		declare  func(*unstructured.Unstructured)
		live     func(*unstructured.Unstructured)
		there    bool
		refuse   *apierrors.StatusError
		done     string
		writes   int
		fails    string
		ran      bool
	}{
		"Ran":        {reason: "a Job is done, and gone", declared: anObject("Job", "a", nil), ran: true, done: "a unchanged"},
		"RanGoing":   {reason: "it is being removed", declared: anObject("Job", "a", nil), there: true, live: going, ran: true, done: "a unchanged"},
		"RanThere":   {reason: "it is still there, and is not as declared", declared: anObject("Job", "a", nil), there: true, declare: annotate("a", "b"), ran: true, done: "a configured", writes: 1},
		"Created":    {reason: "there is nothing", declared: anObject("ConfigMap", "a", nil), done: "a created", writes: 1},
		"Configured": {reason: "it is not as declared", declared: anObject("ConfigMap", "a", nil), there: true, declare: func(u *unstructured.Unstructured) { u.Object["data"] = map[string]any{"k": "v"} }, done: "a configured", writes: 1},
		"Skipped":    {reason: "a person takes it over in Git", declared: anObject("ConfigMap", "a", nil), declare: annotate(directive.Group+"/reconcile", "disabled"), there: true, done: "a skipped"},
		"Exempted":   {reason: "or in the cluster", declared: anObject("ConfigMap", "a", nil), there: true, live: annotate(directive.Group+"/reconcile", "disabled"), done: "a skipped"},
		"Once":       {reason: "it is to be created once only", declared: anObject("ConfigMap", "a", nil), declare: annotate(directive.Group+"/ssa", "IfNotPresent"), there: true, done: "a skipped"},
		"Refused":    {reason: "the API server refuses it", declared: anObject("Job", "a", nil), refuse: invalid, writes: 1, fails: "Job/x/a"},
		"Nowhere":    {reason: "it has to be in a namespace", declared: anObject("ConfigMap", "a", nil), declare: func(u *unstructured.Unstructured) { u.SetNamespace("") }, fails: "namespace not specified"},
		"Unknown":    {reason: "the kind is not served", declared: newObject("example.com/v1", "Widget", "a"), fails: "no matches for kind"},
		"Cluster":    {reason: "a Cluster that is there is applied as the one that it is", declared: anObject("Cluster", "a", nil), there: true, done: "a unchanged", writes: 1},
		"Paused":     {reason: "a person stopped it by kubectl: nothing is taken over (read 233)", declared: anObject("Cluster", "a", nil), there: true, live: byKubectl, done: "a configured", writes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			a := s.applier(t)
			if tc.there {
				s.put(anObject(tc.declared.GetKind(), "a", &apps), tc.live)
			}
			if tc.refuse != nil {
				s.refuses["PATCH a"] = tc.refuse
			}
			u := tc.declared.DeepCopy()
			if tc.declare != nil {
				tc.declare(u)
			}
			res, err := a.Sync(t.Context(), []Phase{{Objects: []*unstructured.Unstructured{u}}}, Options{
				Record: noRecord, Ran: func(*unstructured.Unstructured) bool { return tc.ran },
			})
			if (err != nil) != (tc.fails != "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Fatalf("%s: Sync() = %v, want %q", tc.reason, err, tc.fails)
			}
			if got := changes(res.Changes); got != tc.done || len(s.requests) != tc.writes {
				t.Errorf("%s: did %q by %v, want %q by %d writes", tc.reason, got, s.requests, tc.done, tc.writes)
			}
		})
	}
}

// TestApplyPinned: a Cluster that goes while it is applied is not built again.
func TestApplyPinned(t *testing.T) {
	s := newServer()
	r := s.applier(t).begin(nil, Options{})
	it, err := r.locate(anObject("Cluster", "a", nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	it.live = &observed.Object{UID: "gone"}
	if out := r.write(t.Context(), it); out.err == nil || !strings.Contains(out.err.Error(), "uid mismatch") || len(s.objects) != 0 {
		t.Errorf("write() = %+v, and there are %d objects", out, len(s.objects))
	}
}

// TestIgnoringEdited: with rules of what to ignore, the answer that is remembered is a read
// after the comparison. It is not one of what somebody wrote in between.
func TestIgnoringEdited(t *testing.T) {
	for name, tc := range map[string]struct {
		reason     string
		edited     bool
		remembered bool
	}{
		"Same":   {"nobody wrote", false, true},
		"Edited": {"somebody did, after the comparison", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			declared := anObject("ConfigMap", "a", &apps)
			s.put(declared, nil)
			r := s.applier(t).begin(nil, Options{Ignore: []jsondiff.IgnoreRule{{Paths: []string{"/data/k"}}}})
			it, err := r.locate(anObject("ConfigMap", "a", nil), nil)
			if err != nil {
				t.Fatal(err)
			}
			if it.live, err = r.client.reader.Get(t.Context(), it.mapping.Resource, "x", "a"); err != nil {
				t.Fatal(err)
			}
			if tc.edited {
				s.put(declared, nil) // what the library compares is as declared either way
			}
			action, got, err := r.byLibrary(t.Context(), it)
			if err != nil || action != ssa.UnchangedAction || (got != nil) != tc.remembered {
				t.Errorf("%s: byLibrary() = %s, %v, %v", tc.reason, action, got, err)
			}
		})
	}
}

// TestAwaitJobs: a phase waits no more for a Job that the cluster removed when it was done.
func TestAwaitJobs(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		ttl    bool
	}{
		"Removed": {"with ttlSecondsAfterFinished it is gone when it is done", true},
		"Gone":    {"without, somebody else removed it", false},
	} {
		t.Run(name, func(t *testing.T) {
			job := anObject("Job", "a", nil)
			if tc.ttl {
				job.Object["spec"] = map[string]any{"ttlSecondsAfterFinished": int64(60)}
			}
			s := newServer()
			a := s.applier(t)
			phase, err := Phase{Objects: []*unstructured.Unstructured{job}, Await: true}.Freeze(apps)
			if err != nil {
				t.Fatal(err)
			}
			sent, err := SentOf(apps, []Phase{phase})
			if err != nil {
				t.Fatal(err)
			}
			phase.Applied = true
			_, err = a.Sync(t.Context(), []Phase{phase}, Options{Record: noRecord, Sent: sent})
			var waiting *WaitError
			if errors.As(err, &waiting) == tc.ttl || err != nil && waiting == nil {
				t.Errorf("%s: Sync() = %v", tc.reason, err)
			}
		})
	}
}

// TestSyncSteps: the inventory is ahead of every write, and a step that fails
// leaves what has to stay recorded.
func TestSyncSteps(t *testing.T) {
	refused := errors.New("the status cannot be written")
	config := func(name string) *unstructured.Unstructured { return anObject("ConfigMap", name, nil) }
	in := func(namespace string, u *unstructured.Unstructured) *unstructured.Unstructured {
		u.SetNamespace(namespace)
		return u
	}
	for name, tc := range map[string]struct {
		reason  string
		phases  []Phase
		owned   []inventory.Entry
		record  error
		refuse  string
		options Options
		writes  string
		records string
		left    string
		done    int
		// unrecorded: the inventory lacks what is declared.
		unrecorded bool
		fails      bool
	}{
		"New": {reason: "what is created is on record before", phases: []Phase{{Objects: []*unstructured.Unstructured{config("a")}}},
			writes: "PATCH a", records: "a", left: "a", done: 1},
		"Same": {reason: "nothing has to be recorded", phases: []Phase{{Objects: []*unstructured.Unstructured{config("a")}}},
			owned: []inventory.Entry{inventory.Of(config("a"))}, writes: "PATCH a", left: "a", done: 1},
		"Unrecorded": {reason: "nothing is created that nobody answers for", phases: []Phase{{Objects: []*unstructured.Unstructured{config("a")}}},
			record: refused, records: "a", unrecorded: true, fails: true},
		"Untold": {reason: "nobody knows whether a Cluster exists: nothing is applied, and nothing of it is on record (read 901)", phases: []Phase{{Objects: []*unstructured.Unstructured{config("a"), anObject("Cluster", "c", nil)}}},
			owned: []inventory.Entry{inventory.Of(config("old"))}, refuse: "GET c", left: "old", options: Options{FirstSync: &inventory.FirstSync{}, Prune: true}, unrecorded: true, fails: true},
		"Withheld": {reason: "a Cluster may run elsewhere: it is not on record either (read 901)", phases: []Phase{{Objects: []*unstructured.Unstructured{config("a"), anObject("Cluster", "c", nil)}}},
			options: Options{FirstSync: &inventory.FirstSync{}, Prune: true}, writes: "PATCH a", records: "a", left: "a", done: 1, unrecorded: true},
		"Fails": {reason: "both inventories stay until all is applied", phases: []Phase{{Objects: []*unstructured.Unstructured{config("a"), config("b")}}},
			owned: []inventory.Entry{inventory.Of(config("old"))}, refuse: "PATCH b", writes: "PATCH a PATCH b", records: "a b old", left: "a b old", options: Options{Prune: true}, fails: true},
		"Phases": {reason: "a phase that fails ends the others", phases: []Phase{{Name: "first", Objects: []*unstructured.Unstructured{config("a")}}, {Objects: []*unstructured.Unstructured{config("b")}}},
			refuse: "PATCH a", writes: "PATCH a", records: "a b", left: "a b", fails: true},
		"Stages": {reason: "a namespace goes before what is in it", phases: []Phase{{Objects: []*unstructured.Unstructured{config("a"), anObject("Namespace", "x", nil)}}},
			refuse: "PATCH x", writes: "PATCH x", records: "x a", left: "x a", fails: true},
		"Forgotten": {reason: "without pruning the rest is left", phases: []Phase{{Objects: []*unstructured.Unstructured{config("a")}}},
			owned: []inventory.Entry{inventory.Of(config("old"))}, writes: "PATCH a", records: "a old", left: "a", done: 1},
		"ClusterScoped": {reason: "an object that has no namespace is the same one with another in its manifest", phases: []Phase{{Objects: []*unstructured.Unstructured{in("two", anObject("Namespace", "x", nil))}}},
			owned: []inventory.Entry{inventory.Of(in("one", anObject("Namespace", "x", nil)))}, options: Options{Prune: true}, writes: "PATCH x", left: "x", done: 1},
		"Pruned": {reason: "with it the rest goes", phases: []Phase{{Objects: []*unstructured.Unstructured{config("a")}}},
			owned: []inventory.Entry{inventory.Of(config("old"))}, options: Options{Prune: true}, writes: "PATCH a DELETE old", records: "a old", left: "a", done: 1},
		"Kept": {reason: "what is to be decided about later stays, and the rest goes", phases: []Phase{{Objects: []*unstructured.Unstructured{config("a")}}},
			owned:   []inventory.Entry{inventory.Of(config("kept")), inventory.Of(config("old"))},
			options: Options{Prune: true, Keep: []inventory.Entry{inventory.Of(config("kept"))}}, writes: "PATCH a DELETE old", records: "a kept old", left: "a kept", done: 1},
		"KeptForgotten": {reason: "without pruning it is not forgotten with the rest", phases: []Phase{{Objects: []*unstructured.Unstructured{config("a")}}},
			owned:   []inventory.Entry{inventory.Of(config("kept")), inventory.Of(config("old"))},
			options: Options{Keep: []inventory.Entry{inventory.Of(config("kept"))}}, writes: "PATCH a", records: "a kept old", left: "a kept", done: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			a := s.applier(t)
			a.client.parallel = 1
			for _, e := range tc.owned {
				s.put(anObject(e.Kind, e.Name, &apps), nil)
			}
			if tc.refuse != "" {
				s.refuses[tc.refuse] = apierrors.NewForbidden(schema.GroupResource{}, "it", errors.New("no right"))
			}
			recorded := ""
			o := tc.options
			o.Owned = tc.owned
			o.Record = func(_ context.Context, entries []inventory.Entry) error {
				if len(s.requests) > 0 {
					t.Errorf("%s: %v was sent before the inventory was recorded", tc.reason, s.requests)
				}
				recorded = namesOf(entries)
				return tc.record
			}
			told := 0
			o.Slow = func(context.Context) {
				if told++; strings.Contains(strings.Join(s.requests, " "), "DELETE") {
					t.Errorf("%s: it is told after %v", tc.reason, s.requests)
				}
			}
			res, err := a.Sync(t.Context(), tc.phases, o)
			if (err != nil) != tc.fails || tc.record != nil && !errors.Is(err, tc.record) {
				t.Errorf("%s: Sync() = %v", tc.reason, err)
			}
			if got := strings.Join(s.requests, " "); got != tc.writes {
				t.Errorf("%s: sent %q, want %q", tc.reason, got, tc.writes)
			}
			if res.Recorded == tc.unrecorded {
				t.Errorf("%s: all that is declared is on record: %t", tc.reason, res.Recorded)
			}
			if (told == 1) != strings.Contains(tc.writes, "DELETE") {
				t.Errorf("%s: that something is deleted is told %d times ahead", tc.reason, told)
			}
			if recorded != tc.records || namesOf(res.Inventory) != tc.left || res.Done != tc.done {
				t.Errorf("%s: recorded %q, left %q after %d phases; want %q, %q, %d", tc.reason, recorded, namesOf(res.Inventory), res.Done, tc.records, tc.left, tc.done)
			}
		})
	}
}

// TestPrune: what is deleted of what is no longer declared.
func TestPrune(t *testing.T) {
	owned := func(kind, name string) *unstructured.Unstructured { return anObject(kind, name, &apps) }
	for name, tc := range map[string]struct {
		reason string
		object *unstructured.Unstructured
		live   func(*unstructured.Unstructured)
		absent bool
		refuse string
		fence  error
		// racing: another worker is about to delete a Cluster.
		racing  bool
		claimed string
		unsure  bool
		ahead   bool
		perhaps []string
		deleted string
		left    string
		held    bool
		waits   bool
		pending bool
		fails   string
	}{
		"Deleted":    {reason: "nothing speaks against it", object: owned("ConfigMap", "old"), deleted: "old", left: "", pending: false},
		"Absent":     {reason: "somebody was quicker", object: owned("ConfigMap", "old"), absent: true},
		"Finalizer":  {reason: "it stays on record until it is gone", object: owned("ConfigMap", "old"), live: func(u *unstructured.Unstructured) { u.SetFinalizers([]string{"x.io/y"}) }, deleted: "old", left: "old", pending: true},
		"Foreign":    {reason: "another owner took it over", object: owned("ConfigMap", "old"), live: func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{group + "/name": "other"}) }},
		"Exempt":     {reason: "a person keeps it", object: owned("ConfigMap", "old"), live: annotate(directive.Group+"/prune", "disabled")},
		"Claimed":    {reason: "another inventory has it", object: owned("ConfigMap", "old"), claimed: "Kustomization/x/y", left: "old", pending: true},
		"Unsure":     {reason: "another inventory may have it", object: owned("ConfigMap", "old"), claimed: "Kustomization/x/y", unsure: true, left: "old", pending: true, waits: true},
		"PerhapsNot": {reason: "another inventory has an object of this name in some cluster", object: owned("ConfigMap", "old"), perhaps: []string{"HelmRelease/x/y"}, deleted: "old"},
		"Perhaps": {reason: "it was applied here, as its labels say", object: owned("ConfigMap", "old"), live: func(u *unstructured.Unstructured) {
			u.SetLabels(map[string]string{group + "/name": "ops", group + "/namespace": "apps", releaseGroup + "/name": "y", releaseGroup + "/namespace": "x"})
		}, claimed: "HelmRelease/x/a", unsure: true, perhaps: []string{"HelmRelease/x/a", "HelmRelease/x/y"}},
		"Ahead":     {reason: "a Rollout lets another owner have it, whenever that is", object: owned("ConfigMap", "old"), claimed: "Kustomization/x/y", ahead: true, left: "old", pending: true, waits: true},
		"Protected": {reason: "a real cluster is at its other end", object: owned("Cluster", "old"), left: "old", held: true},
		"Confirmed": {reason: "a person confirmed it", object: owned("Cluster", "old"), live: annotate(v1alpha1.DeletionAnnotation, v1alpha1.DeletionConfirmed), deleted: "old"},
		"Racing":    {reason: "two Clusters whose end was confirmed go one after the other, whoever owns them", object: owned("Cluster", "old"), live: annotate(v1alpha1.DeletionAnnotation, v1alpha1.DeletionConfirmed), racing: true, left: "old", pending: true},
		"Unread":    {reason: "unknown is not absent", object: owned("ConfigMap", "old"), refuse: "GET old", left: "old", fails: "cannot tell whether 1 objects still exist"},
		"Refused":   {reason: "the API server refuses", object: owned("ConfigMap", "old"), refuse: "DELETE old", left: "old", fails: "cannot delete ConfigMap/x/old"},
		"Fenced":    {reason: "another process may have taken over", object: owned("ConfigMap", "old"), fence: errors.New("paused"), left: "old", fails: "paused"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			a := s.applier(t)
			a.client.Fence(func() error { return tc.fence })
			if tc.racing {
				a.facts.tearDown.Lock()
			}
			if !tc.absent {
				s.put(tc.object, tc.live)
			}
			if tc.refuse != "" {
				s.refuses[tc.refuse] = apierrors.NewForbidden(schema.GroupResource{}, "old", errors.New("no right"))
			}
			e := inventory.Of(tc.object)
			res := Result{Changes: ssa.NewChangeSet()}
			claims := func(context.Context, inventory.Entry, inventory.Entry) (Claim, error) {
				if tc.ahead {
					return Claim{Owner: tc.claimed, Kind: Declared, Ahead: true}, nil
				}
				return Claim{Owner: tc.claimed, Unsure: tc.unsure, Perhaps: tc.perhaps}, nil
			}
			facts := inventory.Facts{Owned: []inventory.Entry{e}, Rendered: nil, Asked: tc.object.GetKind() != clusterapi.ClusterKind.Kind}
			if tc.ahead {
				facts.HandOver = inventory.HandingOver(facts.Owned, nil, time.Now().Add(-24*time.Hour))
			}
			err := a.prune(t.Context(), facts, Options{Claimed: claims}, nil, &res)
			if (err != nil) != (tc.fails != "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s: prune() = %v, want %q", tc.reason, err, tc.fails)
			}
			if namesOf(res.Deleted) != tc.deleted || namesOf(res.Inventory) != tc.left || (len(res.Plan.Protected) > 0) != tc.held || (len(res.Plan.HandOver) > 0) != tc.waits || res.Pending != tc.pending {
				t.Errorf("%s: deleted %q, left %q, protected %t, pending %t: %+v", tc.reason, namesOf(res.Deleted), namesOf(res.Inventory), len(res.Plan.Protected) > 0, res.Pending, res.Plan)
			}
		})
	}
}

// TestPruneLast: keys outlive a Kustomization that takes down what it applied by them, and go once it is
// gone, or does not get done for long (read 831).
func TestPruneLast(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		has    string // what the child applied
		gone   bool
		again  bool
		after  time.Duration
		left   string
	}{
		"Gone":    {"nobody needs them any more", "ConfigMap", true, false, time.Minute, ""},
		"Going":   {"it still does", "ConfigMap", false, false, inventory.LastBound - time.Minute, "child keys"},
		"Late":    {"it does not get done", "ConfigMap", false, false, inventory.LastBound, "child"},
		"Cluster": {"its Cluster waits for its turn, or for a person (read 874)", "Cluster", false, false, 2 * inventory.LastBound, "child keys"},
		"Again":   {"the owner is declared again, with both: it comes back once it is gone (read 904)", "ConfigMap", false, true, time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			a := s.applier(t)
			now := time.Unix(1, 0) // when the server marks what has a finalizer
			a.now = func() time.Time { return now }
			child, keys := anObject("Kustomization", "child", &apps), anObject("Secret", "keys", &apps)
			has := inventory.Of(anObject(tc.has, "c", nil))
			s.put(child, func(u *unstructured.Unstructured) {
				u.SetFinalizers([]string{"finalizers.fluxcd.io"})
				u.Object["spec"] = map[string]any{"prune": true}
				u.SetAnnotations(map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed})
				u.Object["status"] = map[string]any{"inventory": map[string]any{"entries": []any{map[string]any{"id": has.ID(), "v": has.Version}}}}
			})
			s.put(keys, nil)
			res, err := a.Remove(t.Context(), []inventory.Entry{inventory.Of(child), inventory.Of(keys)}, Options{})
			if err != nil || namesOf(res.Deleted) != "child" || namesOf(res.Plan.Going) != "child" || namesOf(res.Inventory) != "child keys" || !res.Pending {
				t.Fatalf("deleted %q, left %q, pending %t: %v", namesOf(res.Deleted), namesOf(res.Inventory), res.Pending, err)
			}
			if now = now.Add(tc.after); tc.gone {
				s.mu.Lock()
				delete(s.objects, s.path(child.GroupVersionKind(), "x", "child"))
				s.mu.Unlock()
			}
			o := Options{Claimed: func(context.Context, inventory.Entry, inventory.Entry) (Claim, error) {
				if tc.again {
					return Claim{Owner: "Kustomization/flux-system/apps", Kind: Again}, nil
				}
				return Claim{}, nil
			}}
			done := tc.gone || tc.again
			if res, err = a.Remove(t.Context(), res.Inventory, o); err != nil || namesOf(res.Inventory) != tc.left || res.Pending == done || tc.again && len(res.Plan.Going) > 0 {
				t.Errorf("%s: left %q, pending %t, going %q: %v", tc.reason, namesOf(res.Inventory), res.Pending, namesOf(res.Plan.Going), err)
			}
		})
	}
}

// TestPruneLastApproved: who approves the removal of a Kustomization with its keys, beside something protected, is
// asked once, and the keys go after it all the same (read 876).
func TestPruneLastApproved(t *testing.T) {
	s := newServer()
	a := s.applier(t)
	a.now = func() time.Time { return time.Unix(1, 0) }
	child, keys, data := anObject("Kustomization", "child", &apps), anObject("Secret", "keys", &apps), anObject("Cluster", "prod", &apps)
	has := inventory.Of(anObject("ConfigMap", "c", nil))
	s.put(child, func(u *unstructured.Unstructured) {
		u.SetFinalizers([]string{"finalizers.fluxcd.io"})
		u.Object["spec"] = map[string]any{"prune": true}
		u.Object["status"] = map[string]any{"inventory": map[string]any{"entries": []any{map[string]any{"id": has.ID(), "v": has.Version}}}}
	})
	s.put(keys, nil)
	s.put(data, nil)
	o := Options{}
	owned := inventory.OfAll([]*unstructured.Unstructured{child, keys, data})
	remove := func(deleted, left string, held bool) {
		t.Helper()
		res, err := a.Remove(t.Context(), owned, o)
		if err != nil || namesOf(res.Deleted) != deleted || namesOf(res.Inventory) != left || res.Plan.Held != held {
			t.Fatalf("deleted %q, left %q, held %q: %v", namesOf(res.Deleted), namesOf(res.Inventory), res.Plan.Guard, err)
		}
		owned, o = res.Inventory, Options{Approved: res.Plan.Hash, Decided: res.Decided}
	}
	remove("", "child keys prod", true)
	remove("child", "child keys prod", false)
	remove("", "child keys prod", false)
	s.mu.Lock()
	delete(s.objects, s.path(child.GroupVersionKind(), "x", "child"))
	s.mu.Unlock()
	o.Approved = ""
	remove("keys", "prod", false)
	if o.Decided != "" {
		t.Errorf("all of it is gone, and on record is %q", o.Decided)
	}
}

// TestPruneApprovedFails: who approves a removal is asked once, also where one of its deletes fails (read 931).
func TestPruneApprovedFails(t *testing.T) {
	s := newServer()
	a := s.applier(t)
	first, second := anObject("ConfigMap", "first", &apps), anObject("ConfigMap", "second", &apps)
	s.put(first, nil)
	s.put(second, nil)
	facts := inventory.Facts{Owned: inventory.OfAll([]*unstructured.Unstructured{first, second})}
	prune := func(deleted, left string, held, fails bool) {
		t.Helper()
		res := Result{Changes: ssa.NewChangeSet()}
		err := a.prune(t.Context(), facts, Options{}, nil, &res)
		if (err != nil) != fails || namesOf(res.Deleted) != deleted || namesOf(res.Inventory) != left || res.Plan.Held != held {
			t.Fatalf("deleted %q, left %q, held %q: %v", namesOf(res.Deleted), namesOf(res.Inventory), res.Plan.Guard, err)
		}
		facts.Owned, facts.Decided = res.Inventory, res.Decided
		if held {
			facts.Approved = res.Plan.Hash
		}
	}
	refuse := func(with *apierrors.StatusError) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.refuses["DELETE second"] = with
	}
	refuse(apierrors.NewInternalError(errors.New("webhook is down")))
	prune("", "first second", true, false)
	prune("first", "second", false, true)
	prune("", "second", false, true)
	refuse(nil)
	prune("second", "", false, false)
	if facts.Decided != "" {
		t.Errorf("all of it is gone, and on record is %q", facts.Decided)
	}
}

// TestPruneTakenOver: what an owner declares by itself does not go with the child that had it before (read 903).
func TestPruneTakenOver(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		kind   string
		spec   map[string]any
		more   bool // the child has an object that nobody declares any more
		held   string
	}{
		"Kustomization": {"its directory is listed by the one above", "Kustomization", map[string]any{"prune": true}, false, ""},
		"HelmRelease":   {"its objects are plain manifests by now", "HelmRelease", nil, false, ""},
		"More":          {"the rest goes with it", "Kustomization", map[string]any{"prune": true}, true, "rest"},
		"Elsewhere": {"those of another cluster have nothing but the names in common", "Kustomization",
			map[string]any{"prune": true, "kubeConfig": map[string]any{}}, false, "c"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			a := s.applier(t)
			child, rest := anObject(tc.kind, "child", &apps), inventory.Of(anObject("PersistentVolumeClaim", "rest", nil))
			rendered := []inventory.Entry{inventory.Of(anObject("Cluster", "c", nil))}
			for i := range 30 {
				rendered = append(rendered, inventory.Of(anObject("ConfigMap", fmt.Sprint("c", i), nil)))
			}
			var refs []any
			for _, e := range rendered {
				refs = append(refs, map[string]any{"id": e.ID(), "v": e.Version})
			}
			if tc.more {
				refs = append(refs, map[string]any{"id": rest.ID(), "v": rest.Version})
			}
			s.put(child, func(u *unstructured.Unstructured) {
				if tc.spec != nil {
					u.Object["spec"] = tc.spec
				}
				u.Object["status"] = map[string]any{"inventory": map[string]any{"entries": refs}}
			})
			nobody := func(context.Context, inventory.Entry, inventory.Entry) (Claim, error) { return Claim{}, nil }
			res := Result{Changes: ssa.NewChangeSet()}
			facts := inventory.Facts{Owned: append([]inventory.Entry{inventory.Of(child)}, rendered...), Rendered: rendered}
			if err := a.prune(t.Context(), facts, Options{Claimed: nobody}, nil, &res); err != nil {
				t.Fatal(err)
			}
			deleted := ""
			if tc.held == "" {
				deleted = "child"
			}
			if namesOf(res.Deleted) != deleted || (len(res.Plan.Protected) > 0) != (tc.held != "") {
				t.Errorf("%s: deleted %q: %s", tc.reason, namesOf(res.Deleted), res.Plan.Message("apps"))
			}
		})
	}
}

// TestDeleteMeanwhile: a delete is of the object that the plan saw.
func TestDeleteMeanwhile(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		uid    types.UID
		change func(*unstructured.Unstructured)
		want   string
		there  bool
	}{
		"Same":        {"it is as it was", "1", nil, "", false},
		"Re-created":  {"the same name, another object", "2", nil, "re-created meanwhile", true},
		"Taken":       {"another owner took it over", "1", func(u *unstructured.Unstructured) { u.SetLabels(nil) }, "", true},
		"Unconfirmed": {"a person thought again", "1", func(u *unstructured.Unstructured) { u.SetAnnotations(nil) }, "taken back meanwhile", true},
		"Exempted": {"or keeps it now", "1", func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed, directive.Group + "/prune": "disabled"})
		}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			a := s.applier(t)
			u := anObject("Cluster", "old", &apps)
			u.SetUID(tc.uid)
			u.SetAnnotations(map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed})
			s.put(u, tc.change)
			err := a.delete(t.Context(), inventory.Delete{Entry: inventory.Of(u), UID: "1", Confirmed: true})
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) || (len(s.objects) == 1) != tc.there {
				t.Errorf("%s: delete() = %v with %d objects left", tc.reason, err, len(s.objects))
			}
		})
	}
}

// TestInFlight: Clusters are torn down one after the other, unless one hangs.
func TestInFlight(t *testing.T) {
	now := time.Unix(100_000, 0)
	for name, tc := range map[string]struct {
		reason string
		since  time.Duration
		want   string
	}{
		"None":  {"no other is being deleted", -1, ""},
		"One":   {"one is", time.Minute, "Cluster/x/other"},
		"Hangs": {"a cloud that refuses it must not hold all others for ever", 2 * oneByOne, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			a := s.applier(t)
			a.now = func() time.Time { return now }
			s.put(anObject("Cluster", "other", nil), func(u *unstructured.Unstructured) {
				if tc.since >= 0 {
					u.SetDeletionTimestamp(&metav1.Time{Time: now.Add(-tc.since)})
				}
			})
			e := inventory.Of(anObject("Cluster", "old", nil))
			got, err := a.inFlight(t.Context(), map[inventory.Entry]inventory.Live{e: {State: inventory.Present, Confirmed: true}})
			if err != nil || got != tc.want {
				t.Errorf("%s: inFlight() = %q, %v; want %q", tc.reason, got, err, tc.want)
			}
		})
	}
}

// TestTearDown: who deletes a Cluster looks for others that are being torn down just before, and
// nobody else does both meanwhile. Those who act as other users count.
func TestTearDown(t *testing.T) {
	s := newServer()
	c := s.applier(t).client
	as, err := c.As("somebody")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(100_000, 0)
	e, other := inventory.Of(anObject("Cluster", "old", nil)), anObject("Cluster", "other", nil)
	removed := 0
	tearDown := func(c *Cluster, remove func() error) string {
		t.Helper()
		inFlight, err := c.TearDown(t.Context(), e, now, func() error { removed++; return remove() })
		if err != nil {
			t.Fatal(err)
		}
		return inFlight
	}
	none := func() error { return nil }
	deleting := func(u *unstructured.Unstructured) { u.SetDeletionTimestamp(&metav1.Time{Time: now}) }
	s.put(anObject("Cluster", "old", nil), deleting)
	if got := tearDown(c, func() error {
		if got := tearDown(as, none); got != "another Cluster" {
			t.Errorf("meanwhile another one is told %q", got)
		}
		return nil
	}); got != "" || removed != 1 {
		t.Errorf("nothing is in flight but itself: %q, removed %d times", got, removed)
	}
	s.put(other, deleting)
	if got := tearDown(as, none); got != "Cluster/x/other" || removed != 1 {
		t.Errorf("another one is in flight: %q, removed %d times", got, removed)
	}
	s.put(other, nil)
	elsewhere := other.DeepCopy()
	elsewhere.SetNamespace("secret-project")
	s.put(elsewhere, deleting)
	if got := tearDown(as, none); got != "another Cluster" || removed != 1 {
		t.Errorf("the name of one in another namespace is not for those of this one: %q, removed %d times", got, removed)
	}
	s.put(elsewhere, nil)
	if got := tearDown(as, none); got != "" || removed != 2 {
		t.Errorf("nothing is in flight any more: %q, removed %d times", got, removed)
	}
}

// TestHealth: what the next phase waits for.
func TestHealth(t *testing.T) {
	ready := func(u *unstructured.Unstructured) {
		u.Object["spec"] = map[string]any{"replicas": int64(1), "selector": map[string]any{"matchLabels": map[string]any{"app": "a"}}}
		u.Object["status"] = map[string]any{"replicas": int64(1), "updatedReplicas": int64(1), "readyReplicas": int64(1), "availableReplicas": int64(1),
			"conditions": []any{map[string]any{"type": "Available", "status": "True"}}}
	}
	for name, tc := range map[string]struct {
		reason string
		object *unstructured.Unstructured
		live   func(*unstructured.Unstructured)
		absent bool
		code   int
		wait   string
		fails  bool
	}{
		"Ready":     {reason: "nothing is waited for", object: anObject("ConfigMap", "a", nil)},
		"Available": {reason: "a Deployment has its pods", object: anObject("Deployment", "a", nil), live: ready},
		"Deleting":  {reason: "it is about to go", object: anObject("ConfigMap", "a", nil), live: func(u *unstructured.Unstructured) { u.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)}) }, wait: "ConfigMap/x/a status: 'Terminating'"},
		"Absent":    {reason: "it is not there", object: anObject("ConfigMap", "a", nil), absent: true, wait: "ConfigMap/x/a status: 'NotFound'"},
		"Forbidden": {reason: "who may not read it waits for it", object: anObject("ConfigMap", "a", nil), code: http.StatusForbidden, wait: "ConfigMap/x/a status"},
		"Broken":    {reason: "an API server that fails says nothing of health", object: anObject("ConfigMap", "a", nil), code: http.StatusInternalServerError, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			a := s.applier(t)
			if !tc.absent {
				s.put(tc.object, tc.live)
			}
			if tc.code != 0 {
				s.refuses["GET a"] = &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: int32(tc.code), Message: "no", Reason: map[int]metav1.StatusReason{
					http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusInternalServerError: metav1.StatusReasonInternalError,
				}[tc.code]}}
			}
			r := a.begin(nil, Options{})
			err := r.phase(t.Context(), Phase{Objects: []*unstructured.Unstructured{tc.object}, Applied: true, Await: true})
			var waiting *WaitError
			if errors.As(err, &waiting) != (tc.wait != "") || (err != nil) != (tc.wait != "" || tc.fails) || tc.wait != "" && !strings.Contains(err.Error(), tc.wait) {
				t.Errorf("%s: phase() = %v, want %q", tc.reason, err, tc.wait)
			}
		})
	}
}

// TestPruneCost: a plan of many objects costs one delete for each, and few reads.
func TestPruneCost(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		kind   string
		n      int
		reads  int
	}{
		"Many": {"one list before the plan, one to confirm", "ConfigMap", 40, 2},
		"Few":  {"each is read twice, which is less than a list", "ConfigMap", gatherAfter - 1, 2 * (gatherAfter - 1)},
		"Gone": {"one question for all objects of a kind that is not served", "Widget", 20, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			a := s.applier(t)
			var owned []inventory.Entry
			for i := range tc.n {
				u := newObject("example.com/v1", "Widget", fmt.Sprint("old-", i))
				if tc.kind != "Widget" {
					u = anObject(tc.kind, fmt.Sprint("old-", i), &apps)
					s.put(u, nil)
				}
				owned = append(owned, inventory.Of(u))
			}
			res := Result{Changes: ssa.NewChangeSet()}
			if err := a.prune(t.Context(), inventory.Facts{Owned: owned, Asked: true}, Options{}, nil, &res); err != nil {
				t.Fatalf("%s: prune() = %v", tc.reason, err)
			}
			deletes := tc.n
			if tc.kind == "Widget" {
				deletes = 0
			}
			if len(s.requests) != deletes || s.reads != tc.reads || len(res.Deleted) != deletes || len(res.Inventory) != 0 || res.Pending {
				t.Errorf("%s: %d deletes and %d reads, want %d and %d; deleted %d, left %d", tc.reason, len(s.requests), s.reads, deletes, tc.reads, len(res.Deleted), len(res.Inventory))
			}
		})
	}
}

// TestDeleteChanged: an object that changed between the plan and the delete, but is still
// what the plan saw, is deleted; the fence is asked for each try.
func TestDeleteChanged(t *testing.T) {
	s := newServer()
	a := s.applier(t)
	asked := 0
	a.client.Fence(func() error { asked++; return nil })
	u := anObject("ConfigMap", "old", &apps)
	u.SetUID("1")
	s.put(u, nil)
	live := a.read(t.Context(), []inventory.Entry{inventory.Of(u)}, nil, &lookups{})[inventory.Of(u)]
	s.put(u, func(u *unstructured.Unstructured) { u.Object["data"] = map[string]any{"k": "v"} })
	if err := a.delete(t.Context(), inventory.Delete{Entry: inventory.Of(u), UID: "1", Version: live.Version}); err != nil || len(s.objects) != 0 || asked != 2 {
		t.Errorf("delete() = %v, %d objects left, fence asked %d times", err, len(s.objects), asked)
	}
}

// TestHolds: of a Namespace what comes and goes by itself is not even listed.
func TestHolds(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		kind   string
		reads  bool
	}{
		"Events":     {"there may be thousands", "Event", false},
		"Leases":     {"of nodes and leaders", "Lease", false},
		"ConfigMaps": {"a person's", "ConfigMap", true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := !kindIsAutomatic(tc.kind); got != tc.reads {
				t.Errorf("%s: listed %t", tc.reason, got)
			}
		})
	}
}

// TestApplied: what an owner has is found without an inventory, in all namespaces and besides; what somebody gave its
// labels is not.
func TestApplied(t *testing.T) {
	s := newServer()
	a, other := s.applier(t), Owner{FieldManager: apps.FieldManager, LabelGroup: group, Name: "other", Namespace: apps.Namespace}
	for _, u := range []*unstructured.Unstructured{anObject("Deployment", "a", &apps), anObject("ClusterRoleBinding", "a", &apps), anObject("Secret", "a", &other)} {
		s.put(u, nil)
	}
	copied := anObject("ConfigMap", "copied", &apps)
	copied.SetManagedFields(managedBy("controller"))
	s.put(copied, nil)
	got, err := a.Applied(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range got {
		ids = append(ids, e.ID())
	}
	slices.Sort(ids)
	if want := []string{"_a_rbac.authorization.k8s.io_ClusterRoleBinding", "x_a_apps_Deployment"}; !slices.Equal(ids, want) {
		t.Errorf("found are %v, want %v", ids, want)
	}
	s.refuses["GET deployments"] = apierrors.NewInternalError(errors.New("the store does not answer"))
	if got, err := a.Applied(t.Context()); err == nil {
		t.Errorf("what cannot be listed is taken for gone: %v", got)
	}
}

// TestLostWithNamespace: which kinds hold a Namespace.
func TestLostWithNamespace(t *testing.T) {
	resource := func(kind string, namespaced bool, verbs ...string) metav1.APIResource {
		return metav1.APIResource{Name: strings.ToLower(kind), Kind: kind, Namespaced: namespaced, Verbs: verbs}
	}
	got, err := lostWithNamespace([]*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{
			resource("ConfigMap", true, "get", "list", "delete"), resource("Node", false, "get", "list", "delete"), resource("Binding", true, "create"),
		}},
		{GroupVersion: "metrics.k8s.io/v1beta1", APIResources: []metav1.APIResource{resource("PodMetrics", true, "get", "list")}},
		{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{resource("Deployment", true, "get", "list", "delete")}},
		{GroupVersion: "apps/v1beta1", APIResources: []metav1.APIResource{resource("Deployment", true, "get", "list", "delete")}},
	})
	want := []schema.GroupVersionKind{{Version: "v1", Kind: "ConfigMap"}, {Group: "apps", Version: "v1", Kind: "Deployment"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("the kinds are %v, %v, want %v: metrics-server makes PodMetrics up, each kind counts once", got, err, want)
	}
}

// TestPolledCluster: in a cluster that is not watched a pass over objects that are as
// they were applied costs one list for each kind and namespace, and one over an object
// that somebody changed corrects that.
func TestPolledCluster(t *testing.T) {
	s := newServer()
	a := s.applier(t)
	a.memo = a.client.Polled()
	sync := func() Result {
		t.Helper()
		var objects []*unstructured.Unstructured
		for i := range 10 {
			for _, kind := range []string{"ConfigMap", "Deployment"} {
				objects = append(objects, anObject(kind, fmt.Sprint("a-", i), nil))
			}
		}
		s.reads, s.requests = 0, nil
		res, err := a.Sync(t.Context(), []Phase{{Objects: objects}}, Options{Record: noRecord})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	sync()
	for range 2 {
		if res := sync(); s.reads != 2 || len(s.requests) != 0 || len(res.Changes.Entries) != 20 {
			t.Errorf("nothing changed: %d reads and %v, want two lists", s.reads, s.requests)
		}
	}
	s.put(anObject("ConfigMap", "a-3", &apps), func(u *unstructured.Unstructured) { u.SetUID("another") })
	if sync(); len(s.requests) != 1 || s.requests[0] != "PATCH a-3" {
		t.Errorf("after a change of one object: %v, want one apply", s.requests)
	}
	a.memo.Forget(a.owner.key())
	if sync(); len(s.requests) != 20 {
		t.Errorf("a sweep verified %d objects, want all 20", len(s.requests))
	}
}

// TestLeftDeclared: what is taken off each object, as kubectl's annotation in a manifest that kubectl
// get -o yaml wrote, is not put back by the apply after that, and so on for good (read 828).
func TestLeftDeclared(t *testing.T) {
	s := newServer()
	a := s.applier(t)
	a.memo = a.client.Polled()
	for n := range 3 {
		u := anObject("Deployment", "a", nil)
		u.SetAnnotations(map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"})
		u.SetLabels(map[string]string{"fluxcd.io/sync-gc-mark": "1"})
		res, err := a.Sync(t.Context(), []Phase{{Objects: []*unstructured.Unstructured{u}}}, Options{Record: noRecord})
		if err != nil || len(s.requests) != 1 {
			t.Fatalf("Sync() %d = %s, %v; after it: %v", n, changes(res.Changes), err, s.requests)
		}
	}
	u := anObject("Deployment", "a", nil)
	live := s.objects[s.path(u.GroupVersionKind(), "x", "a")]
	if got := live.GetAnnotations(); len(got) != 1 || got["a"] != "b" {
		t.Errorf("annotations are %v", got)
	}
}

// TestObey: in another cluster, too, fields of a manager of whom our own cluster has none are
// seen, also where nothing else of the object changed.
func TestObey(t *testing.T) {
	s := newServer()
	a, local := s.applier(t), s.applier(t)
	local.client.Override([]string{"node-fetch"})
	a.client.Obey(local.client)
	a.memo = a.client.Polled()
	u := anObject("Deployment", "a", nil)
	if _, err := a.Sync(t.Context(), []Phase{{Objects: []*unstructured.Unstructured{u}}}, Options{Record: noRecord}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct { // in this order: what is dirty stays so
		name, reason string
		manager      string
		clean        bool
	}{
		{"Nobody", "a manager that nobody named keeps its fields", "autoscaler", true},
		{"Taken", "one that is named does not", "node-fetch-1", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.mu.Lock()
			live := s.objects[s.path(u.GroupVersionKind(), "x", "a")].DeepCopy()
			s.mu.Unlock()
			live.SetManagedFields(append(live.GetManagedFields(), metav1.ManagedFieldsEntry{Manager: tc.manager, Operation: metav1.ManagedFieldsOperationUpdate}))
			s.put(live, nil)
			r := a.begin(nil, Options{})
			if err := r.poll(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := a.memo.Clean(a.owner.key(), 1); got != tc.clean {
				t.Errorf("%s: clean = %t", tc.reason, got)
			}
		})
	}
}
