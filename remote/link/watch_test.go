package link

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/report"
)

// watch streams the events of a test, each of which is one line.
func (f *far) watch(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.watches++
	events := f.events
	_, known := f.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	f.mu.Unlock()
	if !known {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if events == nil || r.URL.Query().Get("fieldSelector") != "metadata.name="+v1alpha1.HeartbeatLease {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden"}`)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	flush := http.NewResponseController(w)
	for {
		if flush.Flush() != nil {
			return
		}
		select {
		case event, more := <-events:
			if !more {
				return
			}
			_, _ = fmt.Fprintln(w, event)
		case <-r.Context().Done():
			return
		}
	}
}

// beat renews the heartbeat, with the digest of a report, and shows that to watches.
func (f *far) beat(version, digest string) {
	f.mu.Lock()
	f.lease, f.digest = version, digest
	events := f.events
	f.mu.Unlock()
	events <- beatOf("MODIFIED", version, digest)
}

func beatOf(event, version, digest string) string {
	return fmt.Sprintf(`{"type":%q,"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":%q,"resourceVersion":%q,"labels":{%q:%q}}}}`,
		event, v1alpha1.HeartbeatLease, version, v1alpha1.ReportLabel, digest)
}

// until waits for what the goroutine of a watch does.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
		runtime.Gosched()
	}
}

// shows waits until the watch has shown a version of the heartbeat.
func (n *near) shows(t *testing.T, version string) {
	t.Helper()
	until(t, "heartbeat "+version, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.beat.version == version
	})
}

// told returns a parent which is told of the heartbeat of a child.
func told(t *testing.T) (*far, *near) {
	t.Helper()
	f := newFar(t)
	f.events = make(chan string)
	n := newNear(t, f)
	a := n.good(t)
	f.events <- beatOf("ADDED", "1", a.Agent.text)
	n.clock.add(time.Second)
	f.beat("2", a.Agent.text)
	n.shows(t, "2")
	n.good(t) // which reads the version again, for the token is new
	f.asked()
	return f, n
}

// TestHeartbeatIsTold: a parent that is told of heartbeats asks for nothing. It is told
// that a report changed, reads it once, and asks again when the heartbeats end.
func TestHeartbeatIsTold(t *testing.T) {
	f, n := told(t)
	digest := n.agent.text
	for i := range 20 {
		n.clock.add(AgentSilence)
		version := fmt.Sprint(3 + i)
		f.beat(version, digest)
		n.shows(t, version)
		if a := n.good(t); a.Agent.Report == nil || !a.Agent.Renewed || a.Identity != "one" {
			t.Fatalf("the result is %+v", a)
		}
		if at, proven := n.pool.Heard(n.key); !proven || !at.Equal(n.clock.Now()) {
			t.Errorf("the child was heard of at %s, proven %t; it is %s", at, proven, n.clock.Now())
		}
	}
	expect(t, "a quarter of an hour", f.asked(), "GET cascade-heartbeat, GET cascade-report?")
	f.change(func(f *far) { f.report, f.version = `{"ready":false,"reason":"X"}`, "2" })
	f.beat("50", report.Digest(f.report))
	if turn := <-n.woken; turn != Urgent || !n.Changed() {
		t.Fatalf("a change calls for a reconcile in turn %d, and a report that is read: %t", turn, n.Changed())
	}
	if a := n.good(t); a.Agent.Report.Ready || n.Changed() {
		t.Errorf("after the change the report is %+v, changed again: %t", a.Agent.Report, n.Changed())
	}
	expect(t, "a change that was told", f.asked(), "GET cascade-heartbeat, GET cascade-report")
	n.good(t)
	expect(t, "at rest", f.asked(), "")

	n.shows(t, "50")
	n.clock.add(AgentSilence + time.Second)
	if n.Told() {
		t.Error("a heartbeat that ended tells that the agent is alive")
	}
	if a := n.good(t); reason.Of(a.Agent.Err) != v1alpha1.ReasonAgentNotReady {
		t.Errorf("the agent that is silent is %v", a.Agent.Err)
	}
	expect(t, "a silent agent", f.asked(), "GET cascade-heartbeat, GET cascade-leader")
	if f.watches != 1 {
		t.Errorf("%d watches began, want one", f.watches)
	}
}

// TestToldIsNotEnough: what the watch does not tell is asked for.
func TestToldIsNotEnough(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		change func(n *near)
		want   string
	}{
		"Urgent":     {"a child that is not ready", func(n *near) { n.q.Urgent = true }, "GET cascade-heartbeat, GET cascade-report"},
		"Kubeconfig": {"the kubeconfig was replaced", func(n *near) { n.q.Source = "s2" }, "GET cascade-heartbeat"},
		"Token":      {"the token is to be renewed", func(n *near) { n.renewAt = n.clock.Now() }, "POST token, GET cascade-heartbeat"},
		"Report":     {"the report was not looked at for long", func(n *near) { n.agent.look = n.clock.Now() }, "GET cascade-heartbeat, GET cascade-report?"},
		"Failed":     {"a call of a push failed", func(n *near) { n.failures = 1 }, "GET cascade-heartbeat"},
		"Identity":   {"another identity is on record", func(n *near) { n.identity = "" }, "GET readyz, GET kube-system, GET cascade-heartbeat"},
	} {
		t.Run(name, func(t *testing.T) {
			f, n := told(t)
			tt.change(n)
			n.good(t)
			expect(t, tt.reason, f.asked(), tt.want)
		})
	}
}

// TestWatchShowsThePast: what a watch begins with may be older than what was seen, and is
// no sign of life.
func TestWatchShowsThePast(t *testing.T) {
	n := newNear(t, newFar(t))
	n.beat.open = true
	show := func(version string, first bool) {
		o := &metav1.PartialObjectMetadata{}
		o.ResourceVersion = version
		n.tell(o, first)
	}
	show("10", true)
	if n.Told() {
		t.Error("the first look at a heartbeat is a sign of life")
	}
	n.clock.add(time.Minute)
	show("9", true)
	show("10", true)
	if n.Told() {
		t.Error("an old heartbeat is a sign of life")
	}
	show("11", true)
	if !n.Told() {
		t.Error("a heartbeat that was renewed between two watches is none")
	}
	n.clock.add(time.Minute)
	show("3", false) // of a backup
	if !n.Told() {
		t.Error("a heartbeat of another history is none")
	}
}

// TestWatchEnds: a parent whose watch ended is called, to ask by itself.
func TestWatchEnds(t *testing.T) {
	f, n := told(t)
	close(f.events)
	if turn := <-n.woken; turn != Due || n.Told() {
		t.Errorf("the end of a watch calls for a reconcile in turn %d; the parent is still told: %t", turn, n.Told())
	}
}

// TestWatchFollowsToken: the watch outlasts the token that it began with. Nobody waits until it may be tried again.
func TestWatchFollowsToken(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		after  time.Duration
		// renewed: a probe got another token before the watch ends.
		renewed bool
	}{
		"Renewed": {"a probe renewed it at two thirds of its life", 41 * time.Minute, true},
		"Lapsed":  {"the machine was suspended", 2 * time.Hour, false},
		"Revoked": {"the account was made anew", 2 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, n := told(t)
			digest := n.agent.text
			n.clock.add(tt.after)
			if tt.renewed {
				n.good(t)
			}
			ends := f.events
			f.change(func(f *far) {
				delete(f.tokens, "minted-1")
				f.events = make(chan string)
			})
			close(ends)
			if !tt.renewed {
				<-n.woken
				n.good(t)
			}
			select {
			case f.events <- beatOf("ADDED", "3", digest):
			case <-n.woken:
				t.Fatalf("%s: the watch has ended", tt.reason)
			case <-time.After(time.Minute):
				t.Fatalf("%s: nobody watches", tt.reason)
			}
			n.shows(t, "3")
			if !n.Told() {
				t.Errorf("%s: the parent is not told", tt.reason)
			}
		})
	}
}

// TestAgentOfAnotherVersion: an agent without heartbeat is alive while the leader's Lease
// is renewed, also if a later version has left a heartbeat.
func TestAgentOfAnotherVersion(t *testing.T) {
	f := newFar(t)
	f.lease = ""
	n := newNear(t, f)
	n.good(t)
	f.asked()
	look := func(want bool, requests, reason string) {
		t.Helper()
		n.clock.add(40 * time.Second)
		a := n.good(t)
		if alive := a.Agent.Err == nil; alive != want {
			t.Errorf("%s: alive %t: %v", reason, alive, a.Agent.Err)
		}
		if requests != "" {
			expect(t, reason, f.asked(), requests)
		}
	}
	look(true, "GET version, GET cascade-leader", "earlier version")
	look(false, "GET cascade-leader", "earlier version that is dead")
	f.change(func(f *far) { f.leader = "2" })
	look(true, "GET cascade-leader", "earlier version that is back")
	f.change(func(f *far) { f.lease = "5" })
	n.clock.add(absentFor)
	look(true, "GET cascade-heartbeat, GET cascade-report?", "this version")
	// Back to the earlier version: the heartbeat stands still.
	f.change(func(f *far) { f.leader = "3" })
	look(true, "GET cascade-heartbeat", "the heartbeat is not late yet")
	f.change(func(f *far) { f.leader = "4" })
	look(true, "GET cascade-heartbeat, GET cascade-leader", "the leader's Lease is renewed")
	f.change(func(f *far) { f.leader = "5" })
	look(true, "GET cascade-leader", "an agent that has no heartbeat any more")

	// The parent was of an earlier version, too.
	f.change(func(f *far) { f.earlier = true })
	n = newNear(t, f)
	n.good(t)
	n.good(t)
	f.asked()
	look(true, "GET cascade-leader", "rights of an earlier version are not written again for the heartbeat")
	f.change(func(f *far) { f.earlier = false })

	n = newNear(t, f)
	n.good(t)
	n.good(t)
	f.asked()
	look(true, "GET cascade-heartbeat", "a new parent does not know better")
	f.change(func(f *far) { f.leader = "6" })
	look(false, "GET cascade-heartbeat, GET cascade-leader", "the first look at the leader's Lease shows nothing")
	f.change(func(f *far) { f.leader = "7" })
	look(true, "GET cascade-heartbeat, GET cascade-leader", "the leader's Lease is renewed")
}

// TestWatchIsNotAllowed: a child whose parent has no right to watch is asked as before,
// and is not asked for a watch each time.
func TestWatchIsNotAllowed(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	asking := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.beat.end != nil
	}
	ended := func() {
		t.Helper()
		for asking() {
			runtime.Gosched()
		}
	}
	n.good(t)
	ended()
	for range 5 {
		n.clock.add(time.Minute)
		n.good(t)
		ended()
	}
	if f.watches != 1 {
		t.Errorf("%d watches were asked for in five minutes, want one", f.watches)
	}
	n.clock.add(watchRefused)
	n.good(t)
	ended()
	if f.watches != 2 {
		t.Errorf("%d watches were asked for after the pause, want another one", f.watches)
	}
	n.mayWatch()
	n.clock.add(time.Minute)
	n.good(t)
	ended()
	if f.watches != 3 {
		t.Errorf("%d watches were asked for after the right was granted, want another one", f.watches)
	}
}

// TestRestlessReport: commits that follow each other are seen at once, and a child that
// changes its report all the time is read seldom. Nothing is lost: one call that is to
// come stands for all changes before it.
func TestRestlessReport(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		// every so often the report changes, so many times.
		every   time.Duration
		changes int
		// calls are how often the parent is called, and longest is after how long at most
		// since the change.
		calls   int
		longest time.Duration
	}{
		"Alone":    {reason: "nobody has to wait", every: time.Minute, changes: 5, calls: 5, longest: 0},
		"Commit":   {reason: "the last of some changes within a second", every: 300 * time.Millisecond, changes: 4, calls: 2, longest: 700 * time.Millisecond},
		"Commits":  {reason: "four commits a minute, for half an hour", every: 5 * time.Second, changes: 360, calls: 360, longest: 0},
		"Restless": {reason: "all the time for ten minutes", every: time.Second, changes: 600, calls: 16 + 600/4, longest: callEvery},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNear(t, newFar(t))
			n.read("0", n.changes())
			calls, longest := 0, time.Duration(0)
			var due time.Time
			for i := range tt.changes {
				wait, news := n.tell(shown(fmt.Sprint(i+1)), false)
				if !news {
					t.Fatalf("%s: change %d is none", tt.reason, i+1)
				}
				longest = max(longest, wait)
				if at := n.clock.Now().Add(wait); !at.Equal(due) {
					due = at
					calls++
				}
				if !due.After(n.clock.Now()) {
					n.read(fmt.Sprint(i+1), n.changes())
				}
				n.clock.add(tt.every)
			}
			if most := tt.calls + 2; calls < tt.calls-2 || calls > most || longest > tt.longest {
				t.Errorf("%s: the parent was called %d times, the latest after %s; want about %d times, after at most %s", tt.reason, calls, longest, tt.calls, tt.longest)
			}
			// What was told while a report was read is read in its turn.
			n.tell(shown("last"), false)
			if wait, changed := n.Unread(); !changed || wait > callEvery {
				t.Errorf("%s: the last change is to be read: %t, in %s", tt.reason, changed, wait)
			}
			n.read("last", n.changes())
			if _, changed := n.Unread(); changed {
				t.Errorf("%s: a report that was read is to be read", tt.reason)
			}
		})
	}
}

// TestOtherDigest: a report whose digest is not what the heartbeat says is read once, and
// again when the heartbeat says something else.
func TestOtherDigest(t *testing.T) {
	n := newNear(t, newFar(t))
	calls := 0
	for _, told := range []string{"a", "a", "b", "b", "a"} {
		if _, news := n.tell(shown(told), false); news {
			calls++
		}
		n.read("other", n.changes())
		if n.Changed() {
			t.Error("a report that was read is to be read")
		}
	}
	if calls != 3 {
		t.Errorf("the parent is called %d times, want once for each digest", calls)
	}
}

// shown is a heartbeat with a digest, of a version of the same name.
func shown(digest string) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.ResourceVersion, o.Labels = digest, map[string]string{v1alpha1.ReportLabel: digest}
	return o
}

// TestReadWhileItChanges: what the watch tells while the report is read is read again,
// unless it is what was read.
func TestReadWhileItChanges(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		// told before the read begins and while it is on, and the report that is read.
		before, during, read string
		want                 bool
	}{
		"Read":  {reason: "it was told before", before: "2", read: "2"},
		"Newer": {reason: "what was read is newer than what was told", before: "2", read: "3"},
		"Same":  {reason: "the watch was slower than the read", during: "2", read: "2"},
		"Later": {reason: "it changed after it was read", before: "2", during: "3", read: "2", want: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNear(t, newFar(t))
			n.read("1", n.changes())
			if tt.before != "" {
				n.tell(shown(tt.before), false)
			}
			began := n.changes()
			if tt.during != "" {
				n.tell(shown(tt.during), false)
			}
			n.read(tt.read, began)
			if n.Changed() != tt.want {
				t.Errorf("%s: Changed() = %t", tt.reason, n.Changed())
			}
		})
	}
}
