package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/inventory"
)

// sweeper is a child of a parent, with ten ConfigMaps and ten Deployments.
type sweeper struct {
	*server
	*Applier
	sent     Sent
	versions Versions
	// ownership that an earlier process recorded.
	ownership Ownership
	// changed is what a commit made of ConfigMap a-3.
	changed map[string]any
}

func newSweeper(t *testing.T) *sweeper {
	t.Helper()
	s := &sweeper{server: newServer(), versions: Versions{}}
	s.Applier = s.applier(t)
	s.client.kinds, s.client.parallel = &kinds{}, 1
	return s
}

// declared are the objects.
func (s *sweeper) declared() (objects []*unstructured.Unstructured) {
	for i := range 10 {
		for _, kind := range []string{"ConfigMap", "Deployment"} {
			u := anObject(kind, fmt.Sprint("a-", i), nil)
			u.SetLabels(map[string]string{"app": "a"})
			if kind == "ConfigMap" && i == 3 {
				maps.Copy(u.Object, s.changed)
			}
			objects = append(objects, u)
		}
	}
	return objects
}

// pass is one comparison by lists, or one without.
func (s *sweeper) pass(t *testing.T, sweeps bool) Result {
	t.Helper()
	o := Options{Record: noRecord, Sent: s.sent, Healthy: true, Ownership: s.ownership, Seal: true}
	if sweeps {
		o.Sweep = s.client.Sweep(s.owner.LabelGroup+"/namespace="+s.owner.Namespace, s.versions)
	}
	s.reads, s.requests = 0, nil
	res, err := s.Sync(t.Context(), []Phase{{Objects: s.declared()}}, o)
	if err != nil {
		t.Fatal(err)
	}
	s.sent = res.Sent
	return res
}

// restart leaves of what is known what another process knows.
func (s *sweeper) restart() {
	for i := range s.sent {
		s.sent[i].seen = seen{}
	}
}

// besides is how many objects are in the same part of an Ownership as one, with that one.
func (s *sweeper) besides(kind, name string) (n int) {
	part := sentKeyOf(anObject(kind, name, nil), nil).part()
	for _, o := range s.sent {
		if o.key.part() == part {
			n++
		}
	}
	return n
}

// broken reports whether another sweep shows something else than a seal.
func (s *sweeper) broken(t *testing.T, seal Seal) bool {
	t.Helper()
	s.mu.Lock()
	versions := maps.Clone(s.versions)
	s.mu.Unlock()
	broken, err := s.client.Sweep(s.owner.LabelGroup+"/namespace="+s.owner.Namespace, versions).Broken(t.Context(), s.owner, seal)
	if err != nil {
		t.Fatal(err)
	}
	return broken
}

// live changes an object in the cluster as somebody else does.
func (s *sweeper) live(kind, name string, change func(u *unstructured.Unstructured)) {
	s.mu.Lock()
	u := s.objects[s.path(anObject(kind, name, nil).GroupVersionKind(), "x", name)].DeepCopy()
	s.mu.Unlock()
	s.put(u, change)
}

// TestSweep: a comparison of what is as it was applied costs one list for each kind and
// namespace, and what somebody changed costs one apply besides.
func TestSweep(t *testing.T) {
	edit := func(u *unstructured.Unstructured) {
		u.SetGeneration(u.GetGeneration() + 1)
		u.Object["spec"] = map[string]any{"replicas": int64(7)}
	}
	for name, tc := range map[string]struct {
		reason  string
		change  func(s *sweeper)
		reads   int
		applied string
		touched int
	}{
		"Same":   {reason: "nobody did anything", change: func(*sweeper) {}, reads: 2},
		"Edited": {reason: "somebody changed its spec", change: func(s *sweeper) { s.live("Deployment", "a-3", edit) }, reads: 2, applied: "PATCH a-3", touched: 1},
		"Data": {reason: "a kind without a generation", change: func(s *sweeper) {
			s.live("ConfigMap", "a-3", func(u *unstructured.Unstructured) { u.SetGeneration(0); u.Object["data"] = map[string]any{"a": "b"} })
		}, reads: 2, applied: "PATCH a-3", touched: 1},
		"Status": {reason: "its controller wrote its status, which nobody declared: it is in another state and needs no apply", change: func(s *sweeper) {
			s.live("Deployment", "a-3", func(u *unstructured.Unstructured) { u.Object["status"] = map[string]any{"replicas": int64(1)} })
		}, reads: 2, touched: 1},
		"Label": {reason: "a label that was asked for is another", change: func(s *sweeper) {
			s.live("Deployment", "a-3", func(u *unstructured.Unstructured) {
				u.SetLabels(map[string]string{"app": "b", apps.LabelGroup + "/name": apps.Name, apps.LabelGroup + "/namespace": apps.Namespace})
			})
		}, reads: 2, applied: "PATCH a-3", touched: 1},
		"Ours": {reason: "our own labels went, so that the list does not show it and it is read", change: func(s *sweeper) {
			s.live("Deployment", "a-3", func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"app": "a"}) })
		}, reads: 3, applied: "PATCH a-3", touched: 1},
		"Deleted": {reason: "it is not there", change: func(s *sweeper) {
			delete(s.objects, s.path(anObject("Deployment", "a-3", nil).GroupVersionKind(), "x", "a-3"))
		}, reads: 3, applied: "PATCH a-3", touched: 1},
		"Again": {reason: "another object of that name", change: func(s *sweeper) {
			s.live("Deployment", "a-3", func(u *unstructured.Unstructured) { u.SetUID("another") })
		}, reads: 2, applied: "PATCH a-3", touched: 1},
		"Owned": {reason: "an owner that nobody asked for", change: func(s *sweeper) {
			s.live("Deployment", "a-3", func(u *unstructured.Unstructured) { u.SetOwnerReferences([]metav1.OwnerReference{{UID: "o"}}) })
		}, reads: 2, touched: 1},
		"Forbidden": {reason: "a list that is refused: each of them is read, and applied", change: func(s *sweeper) {
			s.refuses["GET deployments"] = apierrors.NewForbidden(schema.GroupResource{Resource: "deployments"}, "", errors.New("no"))
		}, reads: 12, applied: "PATCH a-0 PATCH a-1 PATCH a-2 PATCH a-3 PATCH a-4 PATCH a-5 PATCH a-6 PATCH a-7 PATCH a-8 PATCH a-9", touched: 10},
		"Restored": {reason: "versions that go back are those of a backup: nothing that was seen counts", change: func(s *sweeper) {
			for at := range s.versions {
				s.versions[at] = "99999"
			}
		}, reads: 2, applied: strings.Repeat("PATCH", 20), touched: 20},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSweeper(t)
			first := s.pass(t, false).Seal
			seal := s.pass(t, true).Seal
			tc.change(s)
			for by, seal := range map[string]Seal{"the answers": first, "a sweep": seal} {
				if broken := s.broken(t, seal); broken != (name != "Same") {
					t.Errorf("%s: the seal of %s is broken: %v", tc.reason, by, broken)
				}
			}
			res := s.pass(t, true)
			if len(s.requests) > 0 && !s.broken(t, res.Seal) {
				t.Errorf("%s: what was written after the sweep is sealed by it", tc.reason)
			}
			applied := strings.Join(s.requests, " ")
			if strings.HasPrefix(tc.applied, "PATCHPATCH") {
				if len(s.requests) != 20 {
					t.Errorf("%s: applied were %v, want all", tc.reason, s.requests)
				}
			} else if applied != tc.applied {
				t.Errorf("%s: requests were %q, want %q", tc.reason, applied, tc.applied)
			}
			if s.reads != tc.reads || len(res.Touched) != tc.touched {
				t.Errorf("%s: %d reads and %d touched, want %d and %d", tc.reason, s.reads, len(res.Touched), tc.reads, tc.touched)
			}
			delete(s.refuses, "GET deployments")
			res = s.pass(t, true)
			if s.reads != 2 || len(s.requests) != 0 || len(res.Touched) != 0 {
				t.Errorf("%s: and the next time %d reads and %v", tc.reason, s.reads, s.requests)
			}
			if s.broken(t, res.Seal) {
				t.Errorf("%s: and the next time all is in place, and is not sealed", tc.reason)
			}
		})
	}
}

// TestSweepLearns: a process that knows only that an earlier one applied the objects
// applies each of them once, which it need not read before.
func TestSweepLearns(t *testing.T) {
	s := newSweeper(t)
	s.pass(t, false)
	s.restart()
	seal := s.pass(t, false).Seal
	if s.reads != 0 || len(s.requests) != 0 {
		t.Errorf("without a sweep what was sent is sent: %d reads, %v", s.reads, s.requests)
	}
	if !s.broken(t, seal) {
		t.Error("what nobody looked at is sealed")
	}
	if s.pass(t, true); s.reads != 2 || len(s.requests) != 20 {
		t.Errorf("the first sweep: %d reads and %d applies, want 2 lists and 20", s.reads, len(s.requests))
	}
	if s.pass(t, true); s.reads != 2 || len(s.requests) != 0 {
		t.Errorf("the second sweep: %d reads and %v", s.reads, s.requests)
	}
}

// TestSweepFails: a list that is not answered leaves what is known, but for objects of which
// something else is found out.
func TestSweepFails(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, refuses string
		change          func(s *sweeper)
		applied         string
	}{
		"List": {reason: "nobody changed anything", refuses: "GET deployments"},
		"Changed": {reason: "what was changed meanwhile is found by the next comparison", refuses: "GET deployments",
			change: func(s *sweeper) {
				s.live("Deployment", "a-3", func(u *unstructured.Unstructured) { u.SetGeneration(u.GetGeneration() + 1) })
			}, applied: "PATCH a-3"},
		"Apply": {reason: "the object that could not be applied is applied again", refuses: "PATCH a-3",
			change: func(s *sweeper) {
				s.live("Deployment", "a-3", func(u *unstructured.Unstructured) { u.SetGeneration(u.GetGeneration() + 1) })
			}, applied: "PATCH a-3"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSweeper(t)
			s.pass(t, false)
			s.pass(t, true)
			if tc.change != nil {
				tc.change(s)
			}
			s.refuses[tc.refuses] = apierrors.NewInternalError(errors.New("the store does not answer"))
			sweep := s.client.Sweep(s.owner.LabelGroup+"/namespace="+s.owner.Namespace, s.versions)
			res, err := s.Sync(t.Context(), []Phase{{Objects: s.declared()}}, Options{Record: noRecord, Sent: s.sent, Healthy: true, Sweep: sweep})
			if lists := strings.HasPrefix(tc.refuses, "GET"); err == nil || sweep.Failed() != lists {
				t.Fatalf("%s: the comparison ended with %v, and its lists failed: %v", tc.reason, err, sweep.Failed())
			}
			delete(s.refuses, tc.refuses)
			s.sent = res.Sent
			s.pass(t, true)
			if got := strings.Join(s.requests, " "); got != tc.applied {
				t.Errorf("%s: the next comparison applies %q, want %q", tc.reason, got, tc.applied)
			}
		})
	}
}

// TestUnreached: of a push that failed, what an earlier one applied in another state is not taken
// for applied: a commit that was sent in part is reverted.
func TestUnreached(t *testing.T) {
	s := newSweeper(t)
	s.pass(t, false)
	s.changed = map[string]any{"data": map[string]any{"by": "commit"}}
	s.refuses["PATCH a-3"] = apierrors.NewInternalError(errors.New("the store does not answer"))
	res, err := s.Sync(t.Context(), []Phase{{Objects: s.declared()}}, Options{Record: noRecord, Sent: s.sent})
	if err == nil {
		t.Fatal("the commit was applied")
	}
	delete(s.refuses, "PATCH a-3")
	s.sent, s.changed = res.Sent, nil
	s.pass(t, false)
	if got := strings.Join(s.requests, " "); got != "PATCH a-3" {
		t.Errorf("the revert applies %q, want the object that was perhaps changed", got)
	}
}

// TestSentInPhases: what is known of the phases that a push resumes after stays known, so
// that the first comparison, by this process or the next one, finds all in place, and the next
// commit applies what it changes alone.
func TestSentInPhases(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		packed bool
	}{
		"Plain":  {"a push that waits between two phases", false},
		"Packed": {"the components of providers are packed", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSweeper(t)
			phases := func() (phases []Phase) {
				for i := range 3 {
					p := Phase{Objects: []*unstructured.Unstructured{anObject("ConfigMap", fmt.Sprint("a-", i), nil)}}
					if tc.packed && i < 2 {
						packed, err := Pack(p.Objects)
						if err != nil {
							t.Fatal(err)
						}
						p = Phase{Packed: packed}
					}
					phases = append(phases, p)
				}
				return phases
			}
			sync := func(phases []Phase, o Options) Result {
				t.Helper()
				o.Record = noRecord
				res, err := s.Sync(t.Context(), phases, o)
				if err != nil {
					t.Fatal(err)
				}
				return res
			}
			whole := sync(phases(), Options{})
			later := phases()
			later[0].Applied, later[1].Applied = true, true
			resumed := sync(later, Options{Sent: whole.Sent})
			if len(resumed.Sent) != 3 || resumed.Ownership != whole.Ownership {
				t.Errorf("%s: after a push that resumed, %d of 3 objects are known, with ownership %q, want %q", tc.reason, len(resumed.Sent), resumed.Ownership, whole.Ownership)
			}
			if next := sync(phases(), Options{Sent: resumed.Sent}); len(next.Touched) != 0 {
				t.Errorf("%s: the next push applies %v again", tc.reason, next.Touched)
			}
			for range 2 { // what is known of packed objects is found out once
				known, err := SentOf(apps, phases())
				if err != nil {
					t.Fatal(err)
				}
				if next := sync(phases(), Options{Sent: known}); len(known) != 3 || len(next.Touched) != 0 {
					t.Errorf("%s: after a restart %d of 3 objects are known, and the next push applies %v again", tc.reason, len(known), next.Touched)
				}
			}
		})
	}
}

// TestOwnership: a process that knows what an earlier one applied, and whose the fields
// were then, applies nothing as long as they still belong to the same manager.
func TestOwnership(t *testing.T) {
	manages := func(u *unstructured.Unstructured, fields string) {
		u.SetManagedFields([]metav1.ManagedFieldsEntry{{
			Manager: apps.FieldManager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(fields),
		}})
	}
	for name, tc := range map[string]struct {
		reason string
		change func(s *sweeper)
		// lost is the object of which nothing is known any more, with the others of its part.
		lost string
		all  bool
	}{
		"Same": {"nobody did anything", func(*sweeper) {}, "", false},
		"Others": {"somebody wrote fields that nobody declares", func(s *sweeper) {
			s.live("Deployment", "a-3", func(u *unstructured.Unstructured) {
				u.SetGeneration(u.GetGeneration() + 1)
				u.SetAnnotations(map[string]string{"deployment.kubernetes.io/revision": "2"})
			})
		}, "", false},
		"Moved": {"another owner with the same field manager applied it", func(s *sweeper) {
			s.live("ConfigMap", "a-3", func(u *unstructured.Unstructured) {
				u.SetLabels(map[string]string{"app": "a", apps.LabelGroup + "/name": "another", apps.LabelGroup + "/namespace": apps.Namespace})
			})
		}, "ConfigMap", false},
		"Taken": {"somebody changed a field, which is his now", func(s *sweeper) {
			s.live("ConfigMap", "a-3", func(u *unstructured.Unstructured) { manages(u, `{"f:metadata":{}}`) })
		}, "ConfigMap", false},
		"Unmanaged": {"somebody removed what is known of managers", func(s *sweeper) {
			s.live("ConfigMap", "a-3", func(u *unstructured.Unstructured) { u.SetManagedFields(nil) })
		}, "ConfigMap", false},
		"Again": {"another object of that name", func(s *sweeper) {
			s.live("Deployment", "a-3", func(u *unstructured.Unstructured) { u.SetUID("another") })
		}, "Deployment", false},
		"Deleted": {"it is not there", func(s *sweeper) {
			delete(s.objects, s.path(anObject("Deployment", "a-3", nil).GroupVersionKind(), "x", "a-3"))
		}, "Deployment", false},
		"Restored": {"versions that go back are those of a backup", func(s *sweeper) {
			for at := range s.versions {
				s.versions[at] = "99999"
			}
		}, "", true},
		"Earlier": {"an earlier version recorded it in another form", func(s *sweeper) { s.ownership = "1f2e3d4c5b6a7988" }, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSweeper(t)
			s.pass(t, false)
			s.ownership = s.pass(t, true).Ownership
			if s.ownership == "" {
				t.Fatal("it is not known whose the fields are")
			}
			s.restart()
			tc.change(s)
			res := s.pass(t, true)
			want := 0
			switch {
			case tc.all:
				want = len(s.sent)
			case tc.lost != "":
				want = s.besides(tc.lost, "a-3")
			}
			if len(s.requests) != want {
				t.Errorf("%s: %d requests after a restart, want %d: %v", tc.reason, len(s.requests), want, s.requests)
			}
			if same := res.Ownership == s.ownership; want == 0 && !same {
				t.Errorf("%s: whose the fields are is told otherwise", tc.reason)
			}
		})
	}
}

// TestOwnershipAfterChange: a process that was restarted sends the one object that a commit
// changed. The next comparison, by it or by another process, applies no more than the part of
// that object.
func TestOwnershipAfterChange(t *testing.T) {
	for name, again := range map[string]bool{"SameProcess": false, "AnotherRestart": true} {
		t.Run(name, func(t *testing.T) {
			s := newSweeper(t)
			s.ownership = s.pass(t, false).Ownership
			s.restart()
			s.changed = map[string]any{"data": map[string]any{"b": "c"}}
			s.ownership = s.pass(t, false).Ownership
			if len(s.requests) != 1 {
				t.Fatalf("a commit to one object made %d requests: %v", len(s.requests), s.requests)
			}
			if again {
				s.restart()
			}
			most := s.besides("ConfigMap", "a-3")
			if !again {
				most-- // this process knows what it sent
			}
			res := s.pass(t, true)
			if len(s.requests) != most {
				t.Errorf("the comparison after it applied %v, want %d of %d", s.requests, most, len(s.sent))
			}
			s.ownership = res.Ownership
			s.restart()
			if s.pass(t, true); len(s.requests) != 0 {
				t.Errorf("the one after that applied %v", s.requests)
			}
		})
	}
}

// TestSweepIsShared: one sweep has one list for a kind and namespace, whoever asks.
func TestSweepIsShared(t *testing.T) {
	s := newSweeper(t)
	s.pass(t, false)
	sweep := s.client.Sweep(s.owner.LabelGroup+"/namespace="+s.owner.Namespace, s.versions)
	s.reads = 0
	for range 10 {
		for i := range 10 {
			found, trusted, err := sweep.find(t.Context(), place{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, "x"}, fmt.Sprint("a-", i))
			if err != nil || !trusted || found == nil {
				t.Fatalf("find() = %v, %t, %v", found, trusted, err)
			}
		}
	}
	if s.reads != 1 {
		t.Errorf("%d lists were made", s.reads)
	}
}

// TestSweepOfManyNamespaces: of more than a few namespaces a kind is listed at once, and each
// namespace is held against its own versions.
func TestSweepOfManyNamespaces(t *testing.T) {
	s := newSweeper(t)
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	for i := range 10 {
		s.put(anObject("ConfigMap", "a", &s.owner), func(u *unstructured.Unstructured) { u.SetNamespace(fmt.Sprint("n-", i)) })
	}
	begin := func() *Sweep {
		s.reads = 0
		return s.client.Sweep(s.owner.LabelGroup+"/namespace="+s.owner.Namespace, s.versions)
	}
	look := func(sweep *Sweep, namespaces int) (found, trusted int) {
		t.Helper()
		for i := range namespaces {
			live, same, err := sweep.find(t.Context(), place{configMaps, fmt.Sprint("n-", i)}, "a")
			if err != nil {
				t.Fatal(err)
			}
			if live != nil && live.Namespace == fmt.Sprint("n-", i) {
				found++
			}
			if same {
				trusted++
			}
		}
		return found, trusted
	}
	if found, trusted := look(begin(), 12); found != 10 || trusted != 12 || s.reads != narrowLists+1 {
		t.Errorf("%d of 10 found, %d of 12 trusted, by %d lists, want %d", found, trusted, s.reads, narrowLists+1)
	}
	// A backup from before is restored. All namespaces are of another history, also those
	// that are listed at once now and were not before.
	for key, version := range s.versions {
		s.versions[key] = version + "0"
	}
	if found, trusted := look(begin(), 12); found != 10 || trusted != 0 {
		t.Errorf("after a restore %d of 10 found, %d trusted", found, trusted)
	}
	// Who may not list all namespaces lists each, and does not ask again.
	sweep := begin()
	look(sweep, narrowLists)
	s.refuses["GET configmaps"] = apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", errors.New("no"))
	if live, _, err := sweep.find(t.Context(), place{configMaps, "n-8"}, "a"); live != nil || err != nil || s.reads != narrowLists+2 {
		t.Errorf("a list that is forbidden shows %v, %v, after %d reads", live, err, s.reads)
	}
	delete(s.refuses, "GET configmaps")
	if live, _, err := sweep.find(t.Context(), place{configMaps, "n-9"}, "a"); live == nil || err != nil || s.reads != narrowLists+3 {
		t.Errorf("a list of one namespace shows %v, %v, after %d reads", live, err, s.reads)
	}
}

// TestSurveyRefused: what cannot be listed is read one by one, and keeps no layer from a child.
func TestSurveyRefused(t *testing.T) {
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	for name, tc := range map[string]struct {
		reason  string
		refusal *apierrors.StatusError
		fails   bool
		known   bool
	}{
		"Listed":      {"it can be", nil, false, true},
		"Forbidden":   {"the account may only read and write them", apierrors.NewForbidden(deployments, "", errors.New("no")), false, false},
		"NoLists":     {"an API server of its own has no lists of the kind", apierrors.NewMethodNotSupported(deployments, "list"), false, false},
		"NotAnswered": {"it may be listed another time", apierrors.NewInternalError(errors.New("the store does not answer")), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			if tc.refusal != nil {
				s.refuses["GET deployments"] = tc.refusal
			}
			client := s.applier(t).client
			var p Phase
			for i := range surveyAfter {
				p.Objects = append(p.Objects, anObject("Deployment", fmt.Sprint("a-", i), nil))
			}
			survey, err := client.Survey(t.Context(), []Phase{p})
			if (err != nil) != tc.fails {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if _, known := survey.find(deployments.WithVersion("v1"), "x", "a-0"); known != tc.known {
				t.Errorf("%s: what is there is known: %t", tc.reason, known)
			}
		})
	}
}

// TestGoesBack: a restored backup is known by its versions, where these have an order.
func TestGoesBack(t *testing.T) {
	at := place{resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}}
	for name, tc := range map[string]struct {
		reason, before, now string
		want                bool
	}{
		"First":  {"nothing was seen before", "", "9", false},
		"Later":  {"somebody wrote since", "9", "10", false},
		"Same":   {"nobody wrote since", "9", "9", false},
		"Back":   {"it is a backup", "10", "9", true},
		"Opaque": {"an API server of its own has versions that are no numbers: not all of it is applied again each time", "f3", "a1", false},
		"Still":  {"the same, and nobody wrote since", "f3", "f3", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Sweep{versions: Versions{}}
			s.goesBack(at, tc.before)
			if got := s.goesBack(at, tc.now); got != tc.want {
				t.Errorf("%s: goesBack() = %t", tc.reason, got)
			}
		})
	}
}

// TestStuck: a kind whose requests the API server gives up after a while is tried once in
// a push, and the others are applied.
func TestStuck(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		status *apierrors.StatusError
		took   time.Duration
		tried  int
		stuck  bool
	}{
		"Webhook": {"its webhook does not answer", apierrors.NewInternalError(errors.New("failed calling webhook")), 8 * time.Second, 1, true},
		"Timeout": {"the API server does not get done", apierrors.NewTimeoutError("request did not complete", 0), 8 * time.Second, 1, true},
		"Quick":   {"a webhook that is not there refuses at once: the others may pass", apierrors.NewInternalError(errors.New("failed calling webhook")), 0, 10, false},
		"Refused": {"a webhook takes long, and says no", apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("denied")), 8 * time.Second, 10, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSweeper(t)
			now := time.Unix(0, 0)
			s.now = func() time.Time { now = now.Add(tc.took / 2); return now }
			var objects []*unstructured.Unstructured
			for i := range 10 {
				objects = append(objects, anObject("ConfigMap", fmt.Sprint("c-", i), nil), anObject("Deployment", fmt.Sprint("d-", i), nil))
				s.refuses[fmt.Sprint("PATCH c-", i)] = tc.status
			}
			res, err := s.Sync(t.Context(), []Phase{{Objects: objects}}, Options{Record: noRecord})
			tried := 0
			for _, r := range s.requests {
				if strings.HasPrefix(r, "PATCH c-") {
					tried++
				}
			}
			var stuck *StuckError
			if tried != tc.tried || errors.As(err, &stuck) != tc.stuck || len(res.Sent) != 10 {
				t.Errorf("%s: %d of ten were tried, %d others are applied, the error is %v", tc.reason, tried, len(res.Sent), err)
			}
			if !apierrors.IsInternalError(err) && !apierrors.IsTimeout(err) && !apierrors.IsForbidden(err) {
				t.Errorf("%s: the API server's word is lost: %v", tc.reason, err)
			}
		})
	}
}

// TestGaveUp: what is the word of an API server that did not get done, and what is none.
func TestGaveUp(t *testing.T) {
	call := func(err error) error { return &url.Error{Op: "Patch", URL: "https://a", Err: err} }
	for name, tc := range map[string]struct {
		reason string
		err    error
		want   bool
	}{
		"Dropped":  {"it closed the connection at its deadline", call(io.EOF), true},
		"Cut":      {"in the middle of its answer", call(io.ErrUnexpectedEOF), true},
		"Timeout":  {"it said so", apierrors.NewTimeoutError("", 0), true},
		"Silent":   {"the caller gave up", call(context.DeadlineExceeded), false},
		"Conflict": {"somebody else was faster", apierrors.NewConflict(schema.GroupResource{}, "a", nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := gaveUp(tc.err); got != tc.want {
				t.Errorf("%s: gaveUp() = %t", tc.reason, got)
			}
		})
	}
}

// TestSeenOf: what tells two states of an object apart.
func TestSeenOf(t *testing.T) {
	asked := anObject("Deployment", "a", &apps)
	asked.SetFinalizers([]string{"ours"})
	asked.SetOwnerReferences([]metav1.OwnerReference{{UID: "o"}})
	live := func(from, change func(p *metav1.PartialObjectMetadata)) seen {
		p := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "u", Generation: 3, ResourceVersion: "7", Labels: asked.GetLabels(), Finalizers: []string{"ours"}, OwnerReferences: asked.GetOwnerReferences()}}
		if from != nil {
			from(p)
		}
		if change != nil {
			change(p)
		}
		return seenOf("m", asked, p)
	}
	entry := func(manager, subresource, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Subresource: subresource, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	// A ResourceQuota, say, has no generation.
	plain := func(p *metav1.PartialObjectMetadata) {
		p.Generation, p.ManagedFields = 0, []metav1.ManagedFieldsEntry{entry("m", "", `{"f:spec":{}}`)}
	}
	written := func(e metav1.ManagedFieldsEntry) func(p *metav1.PartialObjectMetadata) {
		return func(p *metav1.PartialObjectMetadata) {
			p.ResourceVersion, p.ManagedFields = "8", append(p.ManagedFields, e)
		}
	}
	for name, tc := range map[string]struct {
		reason        string
		from          func(p *metav1.PartialObjectMetadata)
		change        func(p *metav1.PartialObjectMetadata)
		form, version bool
	}{
		"Same":       {"nothing", nil, func(*metav1.PartialObjectMetadata) {}, true, true},
		"Version":    {"a write of something that nobody asked for", nil, func(p *metav1.PartialObjectMetadata) { p.ResourceVersion = "8" }, true, false},
		"Generation": {"a write of the spec", nil, func(p *metav1.PartialObjectMetadata) { p.Generation = 4 }, false, true},
		"Finalizer":  {"a finalizer that was asked for", nil, func(p *metav1.PartialObjectMetadata) { p.Finalizers = []string{"theirs"} }, false, true},
		"Theirs":     {"a finalizer that a controller added", nil, func(p *metav1.PartialObjectMetadata) { p.Finalizers = []string{"ours", "theirs"} }, true, true},
		"Owner":      {"an owner that was asked for", nil, func(p *metav1.PartialObjectMetadata) { p.OwnerReferences = nil }, false, true},
		"UID":        {"another object", nil, func(p *metav1.PartialObjectMetadata) { p.UID = "w" }, false, false},
		"Counted":    {"a status that is counted", plain, written(entry("controller", "status", `{"f:status":{}}`)), true, false},
		"Taken":      {"a field of another manager", plain, written(entry("kubectl-edit", "", `{"f:spec":{}}`)), false, false},
		"Managers":   {"nothing shows who wrote it", func(p *metav1.PartialObjectMetadata) { p.Generation = 0 }, func(p *metav1.PartialObjectMetadata) { p.ResourceVersion = "8" }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			base, got := live(tc.from, nil), live(tc.from, tc.change)
			if diff := cmp.Diff([]bool{tc.form, tc.version}, []bool{got.form == base.form, got.version == base.version}); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
	// The generation of a PriorityClass stands still.
	class := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}}
	p := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "u", Generation: 1, ResourceVersion: "7", ManagedFields: []metav1.ManagedFieldsEntry{entry("m", "", `{"f:globalDefault":{}}`)}}}
	before := seenOf("m", class, p)
	if written(entry("x", "", `{"f:globalDefault":{}}`))(p); seenOf("m", class, p).form == before.form {
		t.Error("a PriorityClass that somebody changed is as it was seen before")
	}
}

// BenchmarkSentMemory measures what is remembered of a thousand children with ten layers
// of twenty objects.
func BenchmarkSentMemory(b *testing.B) {
	const children, layers, objects = 1000, 10, 20
	entry := inventory.Of(anObject("ConfigMap", "a", nil)).ID()
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		all := make([]Sent, 0, children*layers)
		for i := range children * layers {
			sent := map[sentKey]seen{}
			for j := range objects {
				u := anObject("ConfigMap", fmt.Sprint("a-", j), nil)
				sent[sentKeyOf(u, fmt.Append(nil, entry, i, j))] = seen{1, 2, 3}
			}
			all = append(all, sentOf(sent))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(children*layers*objects), "B/object")
		runtime.KeepAlive(all)
	}
}
