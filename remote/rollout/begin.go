package rollout

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// goal is a revision that a cluster is to have, of a run.
type goal struct {
	v1alpha1.RolloutRevision
	run int64
}

// goal of a cluster; nil if it keeps what it has.
func (d *decision) goal(m *member) *goal {
	if g := d.due(m); g != nil && !d.skipped(m, g.RolloutRevision) {
		return g
	}
	return nil
}

// due is what a cluster is to have unless it does without.
func (d *decision) due(m *member) *goal {
	run, good := d.status.Run, d.status.LastGood
	var proven *goal
	if good != nil {
		proven = &goal{good.RolloutRevision, good.Run}
	}
	// Of two goals the later one stands: a cluster does not lose what a run in between gave it, or what it got past one,
	// unless that was taken from all others while it was away.
	older := proven != nil && (m.pin == nil || m.pin.Run < good.Run || d.takenBack(m))
	switch {
	case run == nil:
		return nil
	case run.Phase == v1alpha1.RolloutReverting, run.Phase == v1alpha1.RolloutReverted:
		// Who got it past the Rollout once it was reverted keeps it.
		if older || d.stranded(m) || m.has(run.RolloutRevision) && (run.Phase == v1alpha1.RolloutReverting || m.pin.Run > good.Run) {
			return proven
		}
		return nil
	case run.Phase == v1alpha1.RolloutProgressing && (m.wave < int(run.Wave) || m.wave == int(run.Wave) && run.Begun) && d.consented(run, m.wave):
		return &goal{run.RolloutRevision, run.Number}
	case Active(run) && m.has(run.RolloutRevision):
		return nil // it keeps what is being proven
	case older:
		return proven
	}
	return nil
}

// takenBack reports whether a run that was reverted gave a cluster what it has, or found it to have got that past the
// Rollout: it could not be reached, or was left alone, when that was taken back, and another run may have begun since.
func (d *decision) takenBack(m *member) bool {
	return m.pin != nil && slices.ContainsFunc(d.status.History, func(h v1alpha1.RolloutHistory) bool {
		return h.Phase == v1alpha1.RolloutReverted && h.Number == m.pin.Run && h.RolloutRevision == m.pin.RolloutRevision
	})
}

// goesBack reports whether a cluster has what is taken back, or was, or is left over by a run before that.
func (d *decision) goesBack(m *member) bool {
	run := d.status.Run
	return run != nil && (run.Phase == v1alpha1.RolloutReverting || run.Phase == v1alpha1.RolloutReverted) && (m.has(run.RolloutRevision) || d.stranded(m)) || d.takenBack(m)
}

// stranded reports whether a cluster failed at what a run gave it that never passed, or was never known to be ready at it:
// where a later run is reverted before it gets there, nobody else brings it anything.
func (d *decision) stranded(m *member) bool {
	good := d.status.LastGood
	return good != nil && m.pin != nil && !m.pin.Past && m.pin.Run > good.Run && unproven(m.pin) && !m.has(good.RolloutRevision)
}

// mends reports whether a revision may be what ends the state of a cluster: that failed at what it has, was never known
// to be ready at it, or has what is taken back. Of one that does not answer, so may a revision that takes it away.
func (d *decision) mends(m *member, to v1alpha1.RolloutRevision) bool {
	return d.goesBack(m) || m.pin != nil && unproven(m.pin) || !m.Unreachable.IsZero() && m.Gone[to.Revision]
}

// cutOff reports whether a revision is not given to a cluster, as that cannot be reached. What is applied in this tier
// needs no way to it: it may be out of reach for what it has alone, and gets what mends that.
func (d *decision) cutOff(m *member, to v1alpha1.RolloutRevision) bool {
	return !m.Unreachable.IsZero() && !(m.Local && d.mends(m, to))
}

// begin gives revisions to clusters while there are places.
func (d *decision) begin() {
	d.goOn()
	if d.retrying {
		return
	}
	if halted := d.hold; halted.Reason == v1alpha1.ReasonRolloutHalted {
		defer func() { d.hold = halted }() // that is what a person has to know
	}
	if d.spec.Suspend {
		d.hold = Hold{v1alpha1.ReasonSuspended, "no further cluster begins while the Rollout is suspended: cascade rollout resume " + d.name}
		return
	}
	if d.facts.Unread && d.overtaken() {
		// What was brought past it may be the newest revision: to take that back changes a cluster twice.
		if d.hold = d.upstream; d.hold.Reason == "" {
			d.hold = Hold{v1alpha1.ReasonSourceNotReady, "some clusters got another revision past the Rollout: none begins before it is known which one is the newest"}
		}
		return
	}
	terms, room := d.terms(), d.facts.Room
	order := make([]int, len(d.members))
	for i := range order {
		order[i] = i
	}
	reverting := d.status.Run != nil && d.status.Run.Phase == v1alpha1.RolloutReverting
	if reverting {
		slices.Reverse(order)
	}
	for _, i := range order {
		free := places(&terms.Waves[i], len(d.members[i]))
		for _, m := range d.members[i] {
			if m.changing() {
				free--
			}
		}
		starters := d.starters(d.members[i])
		if len(starters) > 0 && d.facts.Blocked.Reason != "" {
			d.hold = d.facts.Blocked
			continue
		}
		if !reverting && slices.ContainsFunc(starters, d.keepsWindow) && !d.windowOpen(&terms.Waves[i], terms.Window) {
			starters = slices.DeleteFunc(starters, d.keepsWindow)
		}
		for _, m := range starters {
			// One that is changing has its place, and keeps it for what it is to have now.
			if !m.changing() {
				if free <= 0 {
					continue
				}
				if room == 0 {
					// Nothing tells when a cluster of another Rollout is done.
					d.soon(lookAgain)
					d.hold = Hold{v1alpha1.ReasonAwaitingRoom, "as many clusters of the tier are changing, over all its Rollouts, as --max-changing of the agent allows"}
					continue
				}
				free--
				room--
			}
			d.start(m, *d.goal(m))
		}
	}
}

// goOn takes up clusters that a person paused or suspended in the middle of what they were given, and has let go. That
// stood in them meanwhile, so that they change again in any case, whatever window, places or hold there are, and whatever
// became of the run: they have a deadline from now on, and who begins besides finds their places taken.
func (d *decision) goOn() {
	for _, members := range d.members {
		for _, m := range members {
			if !m.suspended() || inHand(m.Rolling) {
				continue
			}
			to := d.goal(m)
			if to == nil && !d.skipped(m, m.pin.RolloutRevision) {
				to = &goal{m.pin.RolloutRevision, m.pin.Run} // it keeps what it has
			}
			if to == nil || !m.has(to.RolloutRevision) || d.cutOff(m, to.RolloutRevision) && d.terms().Unreachable != v1alpha1.UnreachableCount {
				continue // or it would never fail for want of an answer
			}
			d.start(m, *to)
			if d.facts.Room > 0 {
				d.facts.Room--
			}
		}
	}
}

// keepsWindow reports whether a cluster that could begin is to wait for its window. One that is new has
// nothing that a window keeps as it is, and gets the last good revision at once. So does one that was away, or left alone,
// while what it has was taken back, for which there was no window either.
func (d *decision) keepsWindow(m *member) bool {
	run := d.active()
	if good := d.status.LastGood; good != nil && d.goal(m).RolloutRevision == good.RolloutRevision && d.goesBack(m) {
		return false
	}
	return m.pin != nil || !m.New || run != nil && d.goal(m).RolloutRevision == run.RolloutRevision
}

// consented reports whether a person approved a wave that began, where one has to. It may have begun
// without, when there was nothing to change in it, and a cluster come to it since.
func (d *decision) consented(run *v1alpha1.RolloutRun, i int) bool {
	wave := &run.Terms.Waves[i]
	return wave.Approval != v1alpha1.ApprovalRequired || d.approved(run, wave.Name)
}

// starters are the clusters of a wave that could begin, those first that came back, and those last that do not answer.
func (d *decision) starters(members []*member) []*member {
	var back, others, mute []*member
	for _, m := range members {
		goal := d.goal(m)
		switch {
		case goal == nil, d.cutOff(m, goal.RolloutRevision), d.rolls(m, goal.RolloutRevision), m.pin == nil && !m.Known, m.changing() && m.has(goal.RolloutRevision):
		case m.refused(goal.RolloutRevision):
		case m.has(goal.RolloutRevision) && (m.Idle || !m.is(v1alpha1.ResultDeferred)):
			if m.pin.Run < goal.run {
				// The same revision in another run: it has it. What is ill below it by then is not of this run.
				to := *m.pin
				if to.Run = goal.run; m.is(v1alpha1.ResultSucceeded) {
					to.Below, to.Underway = m.Below, m.Underway
				}
				m.set(to)
			}
		case d.tooNew(goal.RolloutRevision), d.unbuilt(goal.RolloutRevision):
		case !m.Unreachable.IsZero():
			mute = append(mute, m)
		case m.is(v1alpha1.ResultDeferred, v1alpha1.ResultUnreachable):
			back = append(back, m)
		default:
			others = append(others, m)
		}
	}
	return slices.Concat(back, others, mute)
}

// tooNew reports whether a revision has an image that this tier may not bring, and says so.
func (d *decision) tooNew(r v1alpha1.RolloutRevision) bool {
	why := d.facts.TooNew[r.Image]
	if why != "" {
		d.hold = Hold{v1alpha1.ReasonParentOlder, why}
	}
	return why != ""
}

// unbuilt reports whether a revision has to be fetched again before anybody can have it, and says so.
func (d *decision) unbuilt(r v1alpha1.RolloutRevision) bool {
	is := d.facts.Unbuilt[r.Revision]
	if is {
		d.hold = Hold{v1alpha1.ReasonSourceNotReady, fmt.Sprintf("no cluster begins with %s before it is fetched again", title(r))}
	}
	return is
}

// start gives a revision to a cluster.
func (d *decision) start(m *member, to goal) {
	// A new cluster that begins in a roll was not seen to be well without it.
	accountable := m.Healthy && (m.pin != nil || m.Rolling == "") || m.blamed(to.RolloutRevision)
	below, underway := m.measure(to)
	m.set(v1alpha1.ChildRollout{
		Name: d.name, RolloutRevision: to.RolloutRevision, Run: to.run, Result: v1alpha1.ResultUpdating, Since: metav1.NewTime(d.now), Blameless: !accountable, Below: below, Underway: underway,
		Past: m.has(to.RolloutRevision) && m.pin.Past, Brought: m.has(to.RolloutRevision) && m.pin.Brought,
		Idle: m.pin != nil && m.pin.Idle, // which another revision of it does not change
	})
	d.soon(d.terms().Deadline.Duration)
}

// measure is how many clusters below a cluster may be ill, and how many of its own Rollouts may be on their way, for it to be
// ready at what it begins with.
func (m *member) measure(to goal) (below, underway int32) {
	switch p := m.pin; {
	case p == nil:
	case m.has(to.RolloutRevision) && p.Run == to.run:
		return p.Below, p.Underway // what is ill by now may come of what it begins with again
	case p.Blameless, m.Idle: // nobody knows that, or it ran nothing of it
	case unproven(p), m.is(v1alpha1.ResultUpdating, v1alpha1.ResultDegraded, v1alpha1.ResultUnreachable), m.is(v1alpha1.ResultDeferred) && p.Reason != v1alpha1.ReasonRollingOut:
		// Or of what it was given before, which this mends, or takes the place of. One that only rolls may be ready at that.
		return min(m.Below, p.Below), min(m.Underway, p.Underway)
	}
	return m.Below, m.Underway
}

// blamed reports whether a cluster that is not ready counts at the revision that it gets. Who
// was well before an earlier revision is to be well again at the next, and at the same one
// when it is tried again: after a retry, and on its return from offline. Of a cluster that was
// put off because it changes by itself, is suspended or paused, or was another tier's, nobody knows whether that made it ill.
func (m *member) blamed(at v1alpha1.RolloutRevision) bool {
	switch {
	case m.pin == nil || m.pin.Blameless:
		return false
	case m.is(v1alpha1.ResultDeferred):
		return m.has(at) || !m.putOff() && m.pin.Reason != v1alpha1.ReasonManagedElsewhere
	}
	return m.is(v1alpha1.ResultUpdating, v1alpha1.ResultDegraded, v1alpha1.ResultFailed, v1alpha1.ResultUnreachable)
}

// count sums up.
func (d *decision) count() {
	terms := d.terms()
	var goal *v1alpha1.RolloutRevision
	switch run, good := d.status.Run, d.status.LastGood; {
	case run != nil && (run.Phase == v1alpha1.RolloutProgressing || run.Phase == v1alpha1.RolloutHalted):
		goal = &run.RolloutRevision
	case good != nil:
		goal = &good.RolloutRevision
	}
	d.status.Clusters, d.status.Waves, d.status.Failing = v1alpha1.RolloutCounts{}, nil, nil
	for i := range d.members {
		var counts v1alpha1.RolloutCounts
		for _, m := range d.members[i] {
			d.tell(m, goal, &counts)
		}
		d.status.Waves = append(d.status.Waves, v1alpha1.RolloutWaveStatus{Name: terms.Waves[i].Name, RolloutCounts: counts})
		sum(&d.status.Clusters, counts)
	}
	d.status.Unassigned = int32(d.none)
}

// because is a clause that follows a sentence, if there is one.
func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

func sum(into *v1alpha1.RolloutCounts, c v1alpha1.RolloutCounts) {
	into.Total += c.Total
	into.Updated += c.Updated
	into.Updating += c.Updating
	into.Pending += c.Pending
	into.Failed += c.Failed
	into.Deferred += c.Deferred
}

// tell counts one cluster, and names it if it is not as it should be. One that another tier manages, or into which no layer
// brings what is moved, counts if it failed, which may have brought the run to a halt: nobody waits for it otherwise, but
// for one that has what is taken back.
func (d *decision) tell(m *member, goal *v1alpha1.RolloutRevision, counts *v1alpha1.RolloutCounts) {
	if (m.Elsewhere || m.Idle && !d.goesBack(m)) && (goal == nil || !d.failed(m, *goal)) {
		return
	}
	counts.Total++
	has := goal != nil && m.has(*goal)
	names := func(reason, format string, args ...any) {
		if len(d.status.Failing) < mostFailing {
			d.status.Failing = append(d.status.Failing, v1alpha1.Failure{Name: m.Name, Reason: reason, Message: fmt.Sprintf(format, args...)})
		}
	}
	switch {
	case goal != nil && d.failed(m, *goal):
		counts.Failed++
		switch {
		case has:
			why := m.Outstanding
			if m.Refusal != nil {
				why = m.Refusal.Message
			}
			names(m.pin.Reason, "not ready at %s%s", goal.Revision, because(why))
		case m.refused(*goal):
			names(v1alpha1.ReasonUnsupportedVersionStep, "%s", m.Refused[goal.Revision])
		default:
			names(v1alpha1.ReasonUnreachable, "cannot be reached")
		}
	case m.changing(), has && m.is(v1alpha1.ResultDegraded):
		counts.Updating++
	case has && m.is(v1alpha1.ResultSucceeded):
		counts.Updated++
	case !m.Unreachable.IsZero(), m.is(v1alpha1.ResultDeferred), has, goal != nil && d.skipped(m, *goal):
		counts.Deferred++
	default:
		counts.Pending++
	}
	run := d.status.Run
	if run == nil || run.Phase == v1alpha1.RolloutReverting {
		return
	}
	why := cmp.Or(m.Rolling, v1alpha1.ReasonReverting)
	if !m.Unreachable.IsZero() {
		why = v1alpha1.ReasonUnreachable
	}
	switch {
	case d.goesBack(m) && d.goal(m) != nil && !d.failed(m, *goal):
		names(why, "has %s yet, which was taken back", title(m.pin.RolloutRevision))
	case run.Phase == v1alpha1.RolloutReverted && m.returns(run.RolloutRevision):
		names(why, "may have %s yet, which was taken back", title(run.RolloutRevision))
	}
}
