package remote

import (
	"errors"
	"maps"
	"net/url"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/health"
)

// paced is a child that is ready, by a clock.
type paced struct {
	*run
	now    time.Time
	layers []*v1alpha1.Layer
}

func newPaced(observe time.Duration) *paced {
	p := &paced{now: start.Time}
	c := childNamed("a", []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, LastTransitionTime: start}})
	children := &Children{Now: func() time.Time { return p.now }, Rand: func() float64 { return 1 }, ObserveInterval: observe}
	p.run = &run{Children: children, child: &c, recorded: c.DeepCopy(), notes: &notes{layers: map[string]*layerNotes{}}}
	return p
}

// with adds a layer that is in place and due after a while.
func (p *paced) with(name string, due time.Duration) (*v1alpha1.Layer, *v1alpha1.ChildLayer) {
	layer := layerOn(name)
	p.layers = append(p.layers, layer)
	p.child.Status.Layers = append(p.child.Status.Layers, v1alpha1.ChildLayer{Name: name, Ready: true, Reason: v1alpha1.ReasonSucceeded})
	p.notes.layers[name] = &layerNotes{due: p.now.Add(due)}
	return layer, &p.child.Status.Layers[len(p.child.Status.Layers)-1]
}

// runs counts the runs within a while: each asks the child once or more.
func (p *paced) runs(t *testing.T, within time.Duration) int {
	t.Helper()
	n := 0
	for end := p.now.Add(within); p.now.Before(end); n++ {
		wait := p.next(p.layers).RequeueAfter
		if wait <= 0 {
			t.Fatal("the child is never looked at again")
		}
		p.recorded = p.child.DeepCopy()
		p.now = p.now.Add(wait)
	}
	return n
}

// TestUnreadyBelowIsNotAskedForEver: of a master with one cluster below that is not ready,
// the numbers are asked for quickly for a minute after they changed, and at the interval
// from then on (C14).
func TestUnreadyBelowIsNotAskedForEver(t *testing.T) {
	p := newPaced(45 * time.Second)
	below := func(ready int32) {
		p.child.Status.Report = &v1alpha1.Report{Ready: true, Children: &v1alpha1.ReportCounts{Total: 10, Ready: ready}}
	}
	below(8)
	p.runs(t, 10*time.Minute)
	below(9)
	if n := p.runs(t, time.Minute); n < 15 {
		t.Errorf("asked %d times in the minute after a change below", n)
	}
	if n := p.runs(t, time.Hour); n > 60*60/45+2 {
		t.Errorf("asked %d times in the hour after that, with an interval of 45s", n)
	}
}

// TestShortIntervals: a layer with an interval below that of observation is compared at
// its own (C35), and one that cannot be compared calls for nothing.
func TestShortIntervals(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(layer *v1alpha1.Layer, entry *v1alpha1.ChildLayer)
		want   time.Duration
	}{
		"Due":       {"it is due before the child is looked at", func(*v1alpha1.Layer, *v1alpha1.ChildLayer) {}, 10 * time.Second},
		"Suspended": {"a suspended layer is not compared, however long it is due", func(l *v1alpha1.Layer, _ *v1alpha1.ChildLayer) { l.Spec.Suspend = true }, 45 * time.Second},
		"NotReady":  {"one that is not in place has its own pace", func(_ *v1alpha1.Layer, e *v1alpha1.ChildLayer) { e.Ready = false }, 45 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPaced(45 * time.Second)
			tc.change(p.with("base", 10*time.Second))
			if got := p.next(p.layers).RequeueAfter; got != tc.want {
				t.Errorf("%s: next look in %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
	p := newPaced(45 * time.Second)
	suspended, _ := p.with("base", 10*time.Second)
	suspended.Spec.Suspend = true
	if n := p.runs(t, time.Hour); n > 60*60/45+2 {
		t.Errorf("a child with a suspended layer is asked %d times in an hour, with an interval of 45s", n)
	}
	p.rest = 2 * time.Minute
	if got := p.next(p.layers).RequeueAfter; got != p.rest {
		t.Errorf("a child that used up its time is looked at in %s", got)
	}
}

// TestJudged: a child whose API server answers, and waits for something, is told from one
// that does not answer.
func TestJudged(t *testing.T) {
	call := func(err error) error { return &url.Error{Op: "Patch", URL: "https://a", Err: err} }
	for name, tc := range map[string]struct {
		reason string
		err    error
		want   string
	}{
		"Nothing": {"no error", nil, ""},
		"Refused": {"the child says no", apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("layers").GroupResource(), "a", errors.New("no")), v1alpha1.ReasonSeedFailed},
		"Webhook": {"its webhook does not answer", apply.Failures{errors.New("a"), &apply.StuckError{Took: 8 * time.Second, Err: apierrors.NewInternalError(errors.New("x"))}}, v1alpha1.ReasonPushTimedOut},
		"Silent":  {"it does not answer", apply.Failures{call(errors.New("EOF"))}, v1alpha1.ReasonUnreachable},
		"Spent":   {"it used up its time", reason.Because(v1alpha1.ReasonUnreachable, call(&link.BudgetError{Wait: time.Second})), v1alpha1.ReasonPushTimedOut},
		"Build":   {"a layer that cannot be built is nothing of the child's", reason.Because(v1alpha1.ReasonBuildFailed, call(errors.New("EOF"))), v1alpha1.ReasonBuildFailed},
	} {
		t.Run(name, func(t *testing.T) {
			if got := reason.Of(judged(tc.err)); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

// sessionOf is a session with a child that nothing was asked yet.
func sessionOf(t *testing.T, r *run) *link.Session {
	t.Helper()
	return link.NewPool(t.Context(), runtime.NewScheme(), r.Now, r.Rand).Of(r.key()).Begin(link.Request{})
}

// bringing is a layer that is rendered as it was applied, and was looked at by this process.
func bringing(t *testing.T, p *paced) *seeding {
	t.Helper()
	layer, _ := p.with("base", 10*time.Minute)
	layer.Spec.Interval.Duration, layer.Spec.Timeout.Duration, layer.Spec.Prune = 10*time.Minute, time.Minute, true
	s := &seeding{
		push: &push{run: p.run, session: sessionOf(t, p.run), begun: p.now}, layer: layer, notes: p.notes.of("base"), as: &account.Account{},
		rendered: &rendered{digest: "sha256:1"},
	}
	s.notes.looked, s.notes.as, s.notes.inputs = true, s.as, s.inputs()
	return s
}

// TestLeftoverStays: what a layer no longer declares is deleted, however the first try ends.
func TestLeftoverStays(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		of     string
		left   bool
		change func(*v1alpha1.Layer)
		want   bool
	}{
		"TimedOut":    {"the child used up its time before it", v1alpha1.ReasonPushTimedOut, true, nil, true},
		"Unreachable": {"a delete got no answer", v1alpha1.ReasonUnreachable, true, nil, true},
		"Kubeconfig":  {"there was no kubeconfig to look with", v1alpha1.ReasonKubeconfigMissing, true, nil, true},
		"Progressing": {"deletes have begun", v1alpha1.ReasonProgressing, true, nil, true},
		"Failed":      {"a delete was refused", v1alpha1.ReasonPruneFailed, true, nil, true},
		"Held":        {"a person decides, and is not asked again at each look", v1alpha1.ReasonPruneBlocked, true, nil, false},
		"Nothing":     {"there is nothing to delete", v1alpha1.ReasonProgressing, false, nil, false},
		"Kept":        {"the layer deletes nothing by now", v1alpha1.ReasonPruneFailed, true, func(l *v1alpha1.Layer) { l.Spec.Prune = false; l.Generation++ }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := bringing(t, newPaced(45*time.Second))
			s.notes.leftover = tc.left
			if tc.change != nil {
				tc.change(s.layer)
			}
			entry := &v1alpha1.ChildLayer{Name: "base", Reason: tc.of, Digest: "sha256:1", LastAttemptedDigest: "sha256:1"}
			if err := s.bring(t.Context(), entry); (err != nil || !s.complete) && tc.of != v1alpha1.ReasonPruneBlocked {
				t.Fatalf("bring() = %v, complete: %t", err, s.complete)
			}
			if s.leftover != tc.want {
				t.Errorf("%s: leftover is %t", tc.reason, s.leftover)
			}
		})
	}
}

// TestDue: a layer is compared within its interval, whatever the clock said before.
func TestDue(t *testing.T) {
	const interval = 10 * time.Minute
	for name, tc := range map[string]struct {
		reason string
		due    time.Duration
		change func(*v1alpha1.Layer)
		want   time.Duration
	}{
		"Rest":      {reason: "it is due at the end of the interval", due: interval, want: interval},
		"Started":   {reason: "a process that began at the end of one compares nothing for a while", due: 2 * interval, want: 2 * interval},
		"ClockBack": {reason: "the clock was days ahead when it was compared last", due: 72 * time.Hour, want: interval},
		"Shorter":   {reason: "its interval is shorter now", due: interval, change: func(l *v1alpha1.Layer) { l.Spec.Interval.Duration = 5 * time.Minute; l.Generation++ }, want: 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPaced(45 * time.Second)
			s := bringing(t, p)
			if s.notes.due = p.now.Add(tc.due); tc.change != nil {
				tc.change(s.layer)
			}
			entry := &v1alpha1.ChildLayer{Name: "base", Ready: true, Reason: v1alpha1.ReasonSucceeded, Digest: "sha256:1", LastAttemptedDigest: "sha256:1"}
			if err := s.bring(t.Context(), entry); err != nil {
				t.Fatal(err)
			}
			if got := s.notes.due.Sub(p.now); got != tc.want {
				t.Errorf("%s: due in %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

// TestPruned: a layer is not ready while deletes that have begun are not confirmed, and what
// stays for another reason is looked at again when the layer is due.
func TestPruned(t *testing.T) {
	one, other := inventory.Entry{Kind: "Cluster", Name: "one"}, inventory.Entry{Kind: "Cluster", Name: "other"}
	for name, tc := range map[string]struct {
		reason string
		res    apply.Result
		want   string
		// left and sealed are what is known from then on.
		left, sealed bool
	}{
		"Gone":    {"all of it is gone", apply.Result{Deleted: []inventory.Entry{one}}, "", false, true},
		"Begun":   {"the API server has accepted the delete alone", apply.Result{Deleted: []inventory.Entry{one}, Inventory: []inventory.Entry{one}, Plan: inventory.Plan{Keep: []inventory.Entry{one}}}, v1alpha1.ReasonProgressing, true, false},
		"Waiting": {"it is being deleted since the last look", apply.Result{Plan: inventory.Plan{Waiting: []inventory.Entry{one}, Keep: []inventory.Entry{one}}}, v1alpha1.ReasonProgressing, true, false},
		"Queued":  {"one Cluster is deleted after the other", apply.Result{Plan: inventory.Plan{Queued: []inventory.Entry{other}, Keep: []inventory.Entry{other}}}, v1alpha1.ReasonProgressing, true, false},
		"Part":    {"the Cluster that it is a part of was just deleted", apply.Result{Deleted: []inventory.Entry{one}, Plan: inventory.Plan{OfCluster: []inventory.Entry{other}, Keep: []inventory.Entry{other}}}, v1alpha1.ReasonProgressing, true, false},
		"Stays":   {"the Cluster that it is a part of stays", apply.Result{Plan: inventory.Plan{OfCluster: []inventory.Entry{other}, Keep: []inventory.Entry{other}}}, "", false, false},
		"Claimed": {"another layer has it", apply.Result{Pending: true, Plan: inventory.Plan{Claimed: []inventory.Entry{other}, Keep: []inventory.Entry{other}}}, "", false, false},
		"Held":    {"a person decides", apply.Result{Plan: inventory.Plan{Protected: []inventory.Entry{one}, Keep: []inventory.Entry{one}}}, v1alpha1.ReasonPruneBlocked, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := bringing(t, newPaced(45*time.Second))
			s.notes.leftover, s.notes.seal = true, &seal{}
			got := reason.Of(s.pruned(&v1alpha1.ChildLayer{Name: "base"}, tc.res))
			if got != tc.want || s.notes.leftover != tc.left || (s.notes.seal != nil) != tc.sealed {
				t.Errorf("%s: reason is %q, leftover: %t, sealed: %t", tc.reason, got, s.notes.leftover, s.notes.seal != nil)
			}
		})
	}
}

// TestHoldStays: what waits for a person does so whatever becomes of the layer meanwhile, though a
// commit that adds objects makes the removal look small.
func TestHoldStays(t *testing.T) {
	owned, live := make([]inventory.Entry, 46), map[inventory.Entry]inventory.Live{}
	for i := range owned {
		owned[i] = inventory.Entry{Namespace: "x", Name: strings.Repeat("a", i+1), Kind: "ConfigMap", Version: "v1"}
		live[owned[i]] = inventory.Live{State: inventory.Present, UID: owned[i].Name, Owned: true}
	}
	lost, before := owned[:11], inventory.Facts{Owned: owned[:40], Rendered: owned[11:40], Live: live}
	held := inventory.PlanPrune(before)
	approved, absent, unread, kept := before, before, before, before
	approved.Approved = held.Hash
	absent.Live, unread.Live, kept.Live = map[inventory.Entry]inventory.Live{}, nil, map[inventory.Entry]inventory.Live{}
	for _, e := range lost {
		absent.Live[e] = inventory.Live{State: inventory.Absent}
		kept.Live[e] = inventory.Live{State: inventory.Present, UID: e.Name, Owned: true, HandOver: "Layer/fleet/other"}
	}
	beside := kept
	beside.Live = maps.Clone(kept.Live)
	beside.Live[lost[0]] = inventory.Live{State: inventory.Present, UID: lost[0].Name, Owned: true, Guarded: true}
	outcome := func(why string) func(*seeding, *v1alpha1.ChildLayer) error {
		return func(*seeding, *v1alpha1.ChildLayer) error { return reason.Because(why, errors.New("x")) }
	}
	pruned := func(f inventory.Facts, failure error) func(*seeding, *v1alpha1.ChildLayer) error {
		return func(s *seeding, entry *v1alpha1.ChildLayer) error {
			res := apply.Result{Plan: inventory.PlanPrune(f)}
			res.HandOver = f.Record(res.Plan)
			if noteHeld(entry, res.Plan); failure != nil {
				return failure
			}
			return s.pruned(entry, res)
		}
	}
	for name, tc := range map[string]struct {
		reason string
		step   func(*seeding, *v1alpha1.ChildLayer) error
		want   bool
	}{
		"Progressing": {"what the next commit adds is not healthy yet", outcome(v1alpha1.ReasonProgressing), true},
		"Refused":     {"the child refuses what it adds", outcome(v1alpha1.ReasonSeedFailed), true},
		"Paused":      {"the Cluster is paused for a moment", outcome(v1alpha1.ReasonPaused), true},
		"Pending":     {"a Rollout lets the child wait", outcome(v1alpha1.ReasonRolloutPending), true},
		"Creation": {"a person is to decide about Clusters as well", func(_ *seeding, entry *v1alpha1.ChildLayer) error {
			changeHeld(entry, func(h *v1alpha1.Held) { h.Create = &v1alpha1.HeldCreate{Clusters: []string{"fleet/a"}} })
			return reason.Because(v1alpha1.ReasonCreateHeld, errors.New("x"))
		}, true},
		"Unselected": {"the layer was to be removed for a while", outcome(v1alpha1.ReasonRemovalHeld), true},
		"Unread":     {"the objects cannot be read", pruned(unread, reason.Because(v1alpha1.ReasonPruneFailed, errors.New("x"))), true},
		"Kept":       {"another layer cannot be built, and may declare all of them", pruned(kept, nil), true},
		"KeptBeside": {"the same, and one of them is protected by now (read 915)", pruned(beside, nil), true},
		"Restored": {"Git declares them again", func(s *seeding, entry *v1alpha1.ChildLayer) error {
			s.rendered.entries = owned[:40]
			s.leaves(&record.Record{Inventory: owned[:40]}, entry)
			return nil
		}, false},
		"Gone":     {"somebody deleted them by hand", pruned(absent, nil), false},
		"Approved": {"a person decided", pruned(approved, nil), false},
		"InPart":   {"a person decided, and a delete failed", pruned(approved, reason.Because(v1alpha1.ReasonPruneFailed, errors.New("x"))), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := bringing(t, newPaced(45*time.Second))
			entry := &v1alpha1.ChildLayer{Name: "base"}
			recordOutcome(entry, pruned(before, nil)(s, entry), start)
			if !held.Held || entry.Reason != v1alpha1.ReasonPruneBlocked || heldPrune(entry) != held.Hash {
				t.Fatalf("at first the entry is %+v", entry)
			}
			recordOutcome(entry, tc.step(s, entry), start)
			if (entry.Held != nil && entry.Held.HandOver != nil) != (entry.Reason == v1alpha1.ReasonHandOverPending) {
				t.Errorf("%s: with reason %s the entry holds %+v", tc.reason, entry.Reason, entry.Held)
			}
			next := inventory.PlanPrune(inventory.Facts{Owned: owned, Rendered: owned[11:], Live: live, Undecided: undecided(entry)})
			if next.Held != tc.want || (heldPrune(entry) != "") != tc.want {
				t.Errorf("%s: the next plan is held: %t (%s), on record is %+v", tc.reason, next.Held, next.Guard, entry.Held)
			}
			if recordOutcome(entry, nil, start); !tc.want && entry.Held != nil {
				t.Errorf("%s: ready, it holds %+v", tc.reason, entry.Held)
			}
		})
	}
}

// TestJobsThatVanish: a layer with wait: true is ready when a Job is done that the cluster removes
// then, and not when somebody else removed one.
func TestJobsThatVanish(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		spec   map[string]any
		want   string
	}{
		"Done":    {"ttlSecondsAfterFinished is over", map[string]any{"ttlSecondsAfterFinished": int64(5)}, ""},
		"Removed": {"it would stay", map[string]any{}, v1alpha1.ReasonProgressing},
	} {
		t.Run(name, func(t *testing.T) {
			job := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"namespace": "x", "name": "migrate"}, "spec": tc.spec,
			}}
			s := bringing(t, newPaced(45*time.Second))
			s.rendered.phases = []apply.Phase{{Objects: []*unstructured.Unstructured{job}}}
			err := s.healthy(&v1alpha1.ChildLayer{Name: "base"}, apply.Health{health.Missing(inventory.Of(job), nil)})
			if got := reason.Of(err); err != nil && got != tc.want || err == nil && tc.want != "" {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

// TestDeletesLinger: a layer waits for what goes soon. What a finalizer holds does not keep it from
// being ready for ever, is looked at again less and less often, and is told.
func TestDeletesLinger(t *testing.T) {
	pvc := inventory.Entry{Namespace: "x", Name: "data", Kind: "PersistentVolumeClaim", Version: "v1"}
	stuck := apply.Result{Plan: inventory.Plan{Waiting: []inventory.Entry{pvc}, Keep: []inventory.Entry{pvc}}}
	now := start.Time
	s := bringing(t, newPaced(45*time.Second))
	s.Now = func() time.Time { return now }
	s.layer.Spec.Timeout.Duration = 5 * time.Minute
	entry := &v1alpha1.ChildLayer{Name: "base"}
	s.notes.leftover = true
	if got := reason.Of(s.pruned(entry, stuck)); got != v1alpha1.ReasonProgressing {
		t.Fatalf("at first the reason is %q", got)
	}
	now = now.Add(5*time.Minute + time.Second)
	if err := s.pruned(entry, stuck); err != nil || !s.notes.leftover || s.notes.deleting.again.Sub(now) < time.Minute {
		t.Errorf("after its timeout: %v, leftover %t, again %s", err, s.notes.leftover, s.notes.deleting.again)
	}
	if says := s.notes.lingers(); !strings.Contains(says, "1 objects") || !strings.Contains(says, "PersistentVolumeClaim/x/data") {
		t.Errorf("it says %q", says)
	}
	now = now.Add(24 * time.Hour)
	if err := s.pruned(entry, stuck); err != nil || s.notes.deleting.again.Sub(now) != deletesMost {
		t.Errorf("after a day: %v, again after %s", err, s.notes.deleting.again.Sub(now))
	}
	s.rendered.digest = "another" // of a Secret that was renewed
	if err := s.pruned(entry, stuck); err != nil {
		t.Errorf("it waits anew for the same: %v", err)
	}
	s.notes.left = []inventory.Entry{{Namespace: "x", Name: "another", Kind: "PersistentVolumeClaim", Version: "v1"}}
	if got := reason.Of(s.pruned(entry, stuck)); got != v1alpha1.ReasonProgressing {
		t.Errorf("what another commit drops waits anew: %q", got)
	}
	if err := s.pruned(entry, apply.Result{Deleted: []inventory.Entry{pvc}}); err != nil || s.notes.leftover || s.notes.lingers() != "" {
		t.Errorf("it is gone: %v, %+v", err, s.notes.deleting)
	}
}

// TestDeletesLingerAfterRestart: a layer that was ready, though something does not go, is so after a restart; one that waits for
// that has waited since before.
func TestDeletesLingerAfterRestart(t *testing.T) {
	pvc := inventory.Entry{Namespace: "x", Name: "data", Kind: "PersistentVolumeClaim", Version: "v1"}
	stuck := apply.Result{Plan: inventory.Plan{Waiting: []inventory.Entry{pvc}, Keep: []inventory.Entry{pvc}}}
	for name, tc := range map[string]struct {
		reason string
		ready  bool
		why    string
		digest string
		since  time.Duration
		waits  bool
	}{
		"Lingers":   {"it was ready without that", true, v1alpha1.ReasonSucceeded, "sha256:1", 0, false},
		"LongSince": {"and has been for a day", true, v1alpha1.ReasonSucceeded, "sha256:1", 24 * time.Hour, false},
		"Waited":    {"it had waited for it", false, v1alpha1.ReasonProgressing, "sha256:1", 6 * time.Minute, false},
		"Waits":     {"it began to wait for it a moment ago", false, v1alpha1.ReasonProgressing, "sha256:1", time.Minute, true},
		"Other":     {"it was not ready for something else", false, v1alpha1.ReasonPruneFailed, "sha256:1", time.Hour, true},
		"Untold":    {"it was ready with what is declared no more", true, v1alpha1.ReasonSucceeded, "sha256:0", time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := bringing(t, newPaced(45*time.Second))
			s.layer.Spec.Timeout.Duration = 5 * time.Minute
			s.notes.looked = false
			state := record.State{Revision: "r1", Digest: "sha256:1"}
			entry := &v1alpha1.ChildLayer{Name: "base", Ready: tc.ready, Reason: tc.why, Digest: tc.digest, Since: later(-tc.since)}
			if err := s.look(t.Context(), &record.Record{Layer: s.key(), Attempted: state, Applied: state, Inventory: []inventory.Entry{pvc}}, entry); err != nil {
				t.Fatal(err)
			}
			if !s.leftover {
				t.Fatal("nothing is left to delete")
			}
			err := s.pruned(entry, stuck)
			if (reason.Of(err) == v1alpha1.ReasonProgressing) != tc.waits || (s.notes.lingers() == "") != tc.waits {
				t.Errorf("%s: %v, and it says %q", tc.reason, err, s.notes.lingers())
			}
		})
	}
}

// TestAttempted: what was refused is tried again after a while that grows, and what makes
// progress after the first one.
func TestAttempted(t *testing.T) {
	var n layerNotes
	failed := reason.Because(v1alpha1.ReasonPushTimedOut, errors.New("x"))
	now := start.Time
	for i := range 10 {
		n.attempted(failed, now, false)
		if got, want := n.retryAt.Sub(now), plan.Backoff(i+1); got != want {
			t.Errorf("failure %d is tried again after %s, want %s", i+1, got, want)
		}
		now = n.retryAt
	}
	n.attempted(failed, now, true)
	if got := n.retryAt.Sub(now); got != plan.Backoff(1) {
		t.Errorf("a push of which the child took a part goes on after %s", got)
	}
	n.attempted(nil, now, true)
	if !n.retryAt.IsZero() || n.failures != 0 {
		t.Errorf("after a push that came to its end it is %+v", n)
	}
}
