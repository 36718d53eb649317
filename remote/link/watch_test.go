package link

import (
	"fmt"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// watch streams the events of a test, each of which is one line.
func (f *far) watch(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.watches++
	events := f.events
	f.mu.Unlock()
	if events == nil || r.URL.Query().Get("fieldSelector") != "metadata.name="+v1alpha1.ReportConfigMap {
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

// show makes a version of the report one that watches show.
func (f *far) show(version, report string) {
	f.mu.Lock()
	f.version, f.report = version, report
	events := f.events
	f.mu.Unlock()
	kind := "MODIFIED"
	if version == "" {
		kind = "DELETED"
	}
	events <- fmt.Sprintf(`{"type":%q,"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"cascade-report","resourceVersion":%q}}}`, kind, version)
}

// TestReportIsTold: a parent is told that a report changed, reads it once, and does not
// ask in between.
func TestReportIsTold(t *testing.T) {
	f := newFar(t)
	f.events = make(chan string)
	n := newNear(t, f)
	n.good(t)
	f.events <- `{"type":"ADDED","object":{"metadata":{"name":"cascade-report","resourceVersion":"1"}}}`
	f.show("2", `{"ready":false,"reason":"X"}`)
	if urgent := <-n.woken; !urgent || !n.Changed() {
		t.Fatalf("a change calls for a reconcile that is urgent: %t, and a report that is read: %t", urgent, n.Changed())
	}
	n.clock.add(time.Second)
	f.asked()
	if a := n.good(t); a.Agent.Report.Ready || n.Changed() {
		t.Errorf("after the change the report is %+v, changed again: %t", a.Agent.Report, n.Changed())
	}
	expect(t, "a change that was told", f.asked(), "GET version, GET cascade-leader, GET cascade-report")

	// The lease tells later what is known already.
	f.change(func(f *far) { f.lease, f.digest = "2", n.agent.text })
	n.clock.add(lookAfter)
	n.good(t)
	expect(t, "at rest", f.asked(), "GET cascade-leader")

	f.show("", "")
	<-n.woken
	n.clock.add(time.Second)
	if a := n.good(t); a.Agent.Report != nil {
		t.Error("a report that was deleted is kept")
	}
	if f.watches != 1 {
		t.Errorf("%d watches began, want one", f.watches)
	}
}

// TestWatchIsNotAllowed: a child whose parent has no right to watch is asked as before,
// and is not asked for a watch each time.
func TestWatchIsNotAllowed(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	asking := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.watch.end != nil
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

// TestRestlessReport: a child that changes its report all the time is read seldom.
func TestRestlessReport(t *testing.T) {
	n := newNear(t, newFar(t))
	n.woken = make(chan bool, 100)
	var got []time.Duration
	tell := func(version int) {
		t.Helper()
		pause := n.tell(fmt.Sprint(version))
		got = append(got, pause)
		n.clock.add(pause)
	}
	for version := range 7 {
		tell(version + 1)
	}
	n.clock.add(tellQuiet)
	tell(100)
	tell(101)
	n.read("101", n.changes())
	tell(101)
	want := "[1s 2s 4s 8s 15s 15s 15s 1s 2s 0s]"
	if fmt.Sprint(got) != want {
		t.Errorf("pauses are %v, want %s", got, want)
	}
	if n.Changed() || len(n.woken) != 9 {
		t.Errorf("the parent was called %d times, and is to read a report that it has: %t", len(n.woken), n.Changed())
	}
}

// TestReadWhileItChanges: what the watch tells while the report is read is read again,
// unless it is what was read.
func TestReadWhileItChanges(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		// told before the read begins and while it is on, and the version that is read.
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
				n.tell(tt.before)
			}
			began := n.changes()
			if tt.during != "" {
				n.tell(tt.during)
			}
			n.read(tt.read, began)
			if n.Changed() != tt.want {
				t.Errorf("%s: Changed() = %t", tt.reason, n.Changed())
			}
		})
	}
}
