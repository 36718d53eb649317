package link

import (
	"testing"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
)

// TestLostReport: a report that disappears while the agent lives is noticed, at
// one small request in a while, and so is one that somebody wrote over.
func TestLostReport(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	n.good(t)
	renew := func(lease string) {
		f.change(func(f *far) { f.lease = lease })
		n.clock.add(lookAfter)
		f.asked()
	}
	renew("2")
	f.change(func(f *far) { f.version = "" })
	if a := n.good(t); reason.Of(a.Agent.Err) != v1alpha1.ReasonReportMissing || a.Agent.Report != nil {
		t.Errorf("without a report the agent is %v, with report %v", a.Agent.Err, a.Agent.Report)
	}
	renew("3")
	f.change(func(f *far) { f.version = "7" })
	if a := n.good(t); a.Agent.Err != nil || a.Agent.Report == nil {
		t.Errorf("with a report again the agent is %v", a.Agent.Err)
	}
	renew("4")
	f.change(func(f *far) { f.version, f.report = "8", `{"ready":false,"reason":"Forged"}` })
	if a := n.good(t); a.Agent.Report.Ready {
		t.Error("a report of which the digest was not told is not read")
	}
	expect(t, "a report that was written over", f.asked(), "GET cascade-heartbeat, GET cascade-report?, GET cascade-report")
}
