package rollout

import (
	"fmt"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// failed reports whether a cluster counts against a revision.
func (d *decision) failed(m *member, r v1alpha1.RolloutRevision) bool {
	if m.has(r) {
		return m.is(v1alpha1.ResultFailed)
	}
	switch {
	case d.skipped(m, r):
		return false
	case m.refused(r):
		return true
	}
	return d.terms().Unreachable == v1alpha1.UnreachableCount && d.missed(m) && d.cutOff(m, r)
}

// missed reports whether nobody waits any more to give a revision to a cluster that cannot be reached: for
// a minute, or until the deadline where that is a failure.
func (d *decision) missed(m *member) bool {
	terms := d.terms()
	if m.Unreachable.IsZero() || terms.Unreachable != v1alpha1.UnreachableCount {
		return d.lost(m)
	}
	if m.Local && m.is(v1alpha1.ResultDegraded) {
		return false // it is judged at what it has first, at the deadline of that, and gets what mends it then
	}
	left := d.until(counted(d.status.Run, m.Unreachable), terms.Deadline.Duration)
	if left > 0 {
		d.soon(left)
	}
	return left <= 0
}

// inHand reports whether a cluster is left alone for a reason that a person gave: it is suspended, or its Cluster is paused.
func inHand(reason string) bool {
	return reason == v1alpha1.ReasonSuspended || reason == v1alpha1.ReasonPaused
}

// suspended reports whether a cluster was suspended, or paused, before it was ready at what it may have.
func (m *member) suspended() bool {
	return m.is(v1alpha1.ResultDeferred) && inHand(m.pin.Reason)
}

// returns reports whether a cluster was suspended, or paused, on its way back from a revision: nobody knows how much of that is
// gone from it.
func (m *member) returns(from v1alpha1.RolloutRevision) bool {
	return m.suspended() && !m.has(from) && m.pin.Had != nil && same(*m.pin.Had, from)
}

// putOff reports whether a cluster was put off because it is left alone: its wave waits for it until the deadline.
func (m *member) putOff() bool {
	return m.suspended() || m.is(v1alpha1.ResultDeferred) && m.pin.Reason == v1alpha1.ReasonRollingOut
}

// away is since when a cluster for which the wave of the run waits cannot be reached, and what comes of that when, as
// a clause, or that a person has it in hand. It is empty for others, and for less than a minute.
func (d *decision) away(run *v1alpha1.RolloutRun, m *member) string {
	switch {
	case !run.Begun || m.wave != int(run.Wave) || !d.open(m, run.RolloutRevision):
		return ""
	case inHand(m.Rolling) && m.putOff():
		passes := ", and is passed over at " + at(counted(run, m.pin.Since.Time).Add(run.Terms.Deadline.Duration))
		switch {
		case m.Withheld != "":
			return m.Withheld + passes
		case m.Rolling == v1alpha1.ReasonPaused:
			return "its Cluster is paused" + passes
		}
		return "it is suspended" + passes + ": cascade resume child " + m.Name
	case !d.lost(m):
		return ""
	}
	since := m.Unreachable
	if m.has(run.RolloutRevision) && !m.is(v1alpha1.ResultDeferred) {
		since = m.pin.Since.Time
	}
	comes := "is passed over"
	if run.Terms.Unreachable == v1alpha1.UnreachableCount {
		comes = "counts as failed"
	}
	until := counted(run, since).Add(run.Terms.Deadline.Duration)
	return fmt.Sprintf("it cannot be reached since %s, and %s at %s", at(m.Unreachable), comes, at(until))
}

// tooMany reports whether more clusters of a wave failed than may.
func (d *decision) tooMany(run *v1alpha1.RolloutRun) bool {
	for i := range run.Terms.Waves[:min(int(run.Wave)+1, len(run.Terms.Waves))] {
		failed := 0
		for _, m := range d.members[i] {
			if d.failed(m, run.RolloutRevision) && (i < int(run.Wave) || run.Begun || m.has(run.RolloutRevision)) {
				failed++
			}
		}
		if failed > share(run.Terms.Waves[i].MaxFailures, len(d.members[i])) {
			return true
		}
	}
	return false
}

// stop halts the run, or turns it back.
func (d *decision) stop(run *v1alpha1.RolloutRun) {
	good := d.status.LastGood
	if run.Terms.OnFailure == v1alpha1.FailureRevert && good != nil && good.RolloutRevision != run.RolloutRevision {
		d.phase(v1alpha1.RolloutReverting)
		d.advanceRevert(run)
		return
	}
	d.phase(v1alpha1.RolloutHalted)
	d.hold = d.halted(run)
}

// halted is the hold of a run that halted.
func (d *decision) halted(run *v1alpha1.RolloutRun) Hold {
	message := "more clusters than may failed at %s: push a commit that mends it, or cascade rollout retry, abort or revert"
	if run.Terms.OnFailure == v1alpha1.FailureRevert {
		message = "more clusters than may failed at %s, and there is no revision to go back to: push a commit that mends it, or cascade rollout retry"
	}
	return Hold{v1alpha1.ReasonRolloutHalted, fmt.Sprintf(message, title(run.RolloutRevision))}
}

// retry puts off all that failed, and is on record once all of that is: of writes to many Children
// some conflict, and what they were to say is found nowhere else. Nobody begins before.
func (d *decision) retry(run *v1alpha1.RolloutRun) {
	for _, m := range d.all {
		if m.is(v1alpha1.ResultFailed, v1alpha1.ResultUnproven) && m.has(run.RolloutRevision) {
			m.result(d.now, v1alpha1.ResultDeferred, v1alpha1.ReasonProgressing)
			d.retrying = true
		}
	}
	if d.retrying {
		d.soon(0)
		return
	}
	if run.Retried = d.facts.Requests.Retry; run.Phase == v1alpha1.RolloutHalted {
		d.phase(v1alpha1.RolloutProgressing)
	}
}
