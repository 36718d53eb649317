package rollout

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Cluster has the facts about one cluster that takes part.
type Cluster struct {
	// Name and UID of the Child.
	Name string
	UID  types.UID
	// Labels that the waves select by.
	Labels map[string]string
	// Pin is what is on record for the cluster, nil if nothing is.
	Pin *v1alpha1.ChildRollout
	// Known: it is known what the cluster has of what the Rollout moves. Has is that, nil if
	// it has nothing.
	Known bool
	Has   *v1alpha1.RolloutRevision
	// New: it certainly has nothing, as no layer that could bring it was ever in place, or its agent
	// tells all that it has. One that is known to have nothing otherwise may only not tell.
	New bool
	// Unpinned: what it has was brought without the Rollout, as by a version that knows none.
	Unpinned bool
	// Unreachable is since when the cluster cannot be reached; zero if it can.
	Unreachable time.Time
	// Local: what is moved is applied in this tier, and needs no way to the cluster.
	Local bool
	// Healthy: the cluster is ready, whatever it has. Ready: it is ready at the revision of
	// its pin, by its own word at that revision.
	Healthy, Ready bool
	// Below is how many clusters below it are not ready. Underway is how many Rollouts of its own are on their way.
	Below, Underway int32
	// Busy is why it is not Ready, as a clause for people, where that is nothing but what is on its way in a tier by
	// itself: it may come of the revision, or of a commit of the tier's own. Empty otherwise.
	Busy string
	// Idle: no layer brings what is moved into the cluster, or nothing is on record for it and it has no agent to tell whether
	// one does. It may have a revision of it, for when one does; nobody waits for that, and it proves nothing.
	Idle bool
	// Rolling is why the cluster is left alone: it changes by itself, or a person paused or suspended it; empty if it is not.
	Rolling string
	// Withheld is why it is left alone where that is because a person suspended what makes it, as a clause for people: what it
	// was given waits there, and another revision may take the place of that. Empty otherwise.
	Withheld string
	// Outstanding is why the revision of its pin is not in effect yet in a cluster that is healthy
	// otherwise, as a clause for people; empty if nothing is known to be missing. Nothing
	// tells when that changes, unless it is Blocked.
	Outstanding string
	// Blocked: what reaches nobody at the moment did not reach this one yet. Reached is since when it did, where it was
	// blocked before; zero otherwise.
	Blocked bool
	Reached time.Time
	// Refusal is why the cluster does not take the revision of its pin, which waiting does not
	// mend; nil if it does.
	Refusal *Hold
	// Refused is why the cluster cannot get a revision at all, by revision: that of the run,
	// and the candidate.
	Refused map[string]string
	// Lacks are revisions that do not have the cluster, though the newest one has: it came after them, and they
	// would take it away.
	Lacks map[string]bool
	// Gone are revisions that do not have the cluster, nor has the newest one: they take it away.
	Gone map[string]bool
	// Skip names the revision that a person lets the cluster do without; empty without one.
	Skip string
	// Elsewhere: another tier manages the cluster. What this one would bring to it, it gets
	// when it is back.
	Elsewhere bool
}

// Approval is a person's consent to a wave at a revision. Of one by a tag of the repository
// it says which, and with which key the tag is signed.
type Approval struct{ Wave, Revision, By, Tag, Key string }

// Requests are what people ask of a Rollout. Abort and Revert name a revision, Retry is
// any text that differs from the last one.
type Requests struct {
	Approvals            []Approval
	Abort, Revert, Retry string
}

// Facts are what a decision is made from, besides the spec and the status.
type Facts struct {
	// UID of the Rollout, which makes the order of clusters its own.
	UID types.UID
	// Candidate is the newest revision, nil while it is not known. A Rollout with an upstream
	// has none but what that proved.
	Candidate *v1alpha1.RolloutRevision
	// Unread: nobody could look yet whether there is a newer one than Candidate, which is that of before.
	Unread bool
	// Upstream is nil while nothing of it was read.
	Upstream *Upstream
	Clusters []Cluster
	Requests Requests
	// Blocked is why nothing that clusters are given reaches them at the moment, as where it cannot be built for what came
	// since; it has no reason if it does. Nobody begins meanwhile, and no deadline passes of who waits for it.
	Blocked Hold
	// Unbuilt are revisions that have to be fetched again, as the process began anew: they cannot be sent, or nobody knows
	// yet which clusters they have, and could take one away that came after them. Nobody begins with one.
	Unbuilt map[string]bool
	// TooNew are images that this tier may not bring to clusters, as its own agent is older, each with why. All else
	// goes on.
	TooNew map[string]string
	// Written is when the status was written last by the clock of the API server, which need not be this
	// process's; zero while that is not known.
	Written time.Time
	// Watching is since when this process looks, without a gap; zero while that is not known.
	Watching time.Time
	// Room is how many more clusters of the tier may begin to change, over all Rollouts;
	// below zero it has no bound.
	Room int
}

// Assignment is what is to be on record for a cluster.
type Assignment struct {
	Cluster string
	v1alpha1.ChildRollout
}

// Hold is why no cluster begins at the moment, or the run does not go on.
type Hold struct{ Reason, Message string }

// Decision is what is done. The status is written first: a run is on record before any
// cluster gets its revision.
type Decision struct {
	Status v1alpha1.RolloutStatus
	// Pins that differ from those on record, in the order in which they are written.
	Pins []Assignment
	// Hold has no reason while nothing is held.
	Hold Hold
	// Upstream is why what another environment proved last is not the candidate; it has no
	// reason if it is.
	Upstream Hold
	// Wanted is a proven commit of which nothing is known but that it may be taken: it is
	// to be fetched. Empty without one.
	Wanted string
	// RecheckAfter is when to look again without an event; zero for never.
	RecheckAfter time.Duration
}

const (
	// grace is for how long a cluster is waited for that cannot be reached.
	grace = time.Minute
	// settles is for how long after a tier was ready it may still come of what it was given that something is on its
	// way in it: its sources are fetched at their intervals. What begins later is the tier's own.
	settles = 10 * time.Minute
	// lookAgain is between two looks at a cluster of which something is outstanding.
	lookAgain = 5 * time.Second
	// mostFailing and mostHistory bound the status.
	mostFailing = 20
	mostHistory = 10
)

// decision is a Decision in the making.
type decision struct {
	name   string
	spec   *v1alpha1.RolloutSpec
	status v1alpha1.RolloutStatus
	facts  Facts
	now    time.Time
	// members are the clusters by wave, in the order in which they begin; of the waves that
	// are in force: those of the run, or of the spec without one.
	members [][]*member
	all     []*member
	none    int
	hold    Hold
	// upstream is why what another environment proved is not the candidate.
	upstream Hold
	wanted   string
	recheck  time.Duration
	// retrying: clusters that failed are put off, to be tried again.
	retrying bool
	// resuming: soaks of clusters by themselves begin anew, as nobody looked for a while.
	resuming bool
}

// member is a cluster as the decision leaves it.
type member struct {
	*Cluster
	pin   *v1alpha1.ChildRollout
	dirty bool
	wave  int
	order [32]byte
}

// Next decides about a Rollout of a name, from its spec, its status and facts. It keeps none
// of its arguments.
func Next(name string, spec *v1alpha1.RolloutSpec, status *v1alpha1.RolloutStatus, facts Facts, now time.Time) Decision {
	d := &decision{name: name, spec: spec, status: *status.DeepCopy(), facts: facts, now: now}
	d.assign()
	d.adopt()
	d.resume()
	d.judge()
	d.heed()
	d.promote()
	d.choose()
	d.advance()
	d.begin()
	d.look()
	d.count()
	switch {
	case d.hold.Reason != "":
	case d.status.Run == nil:
		d.hold = d.upstream
	default:
		d.hold = d.waitsFor()
	}
	out := Decision{Status: d.status, Hold: d.hold, Upstream: d.upstream, Wanted: d.wanted, RecheckAfter: d.recheck}
	for _, m := range d.all {
		if m.dirty {
			pin := *m.pin
			pin.UID = d.status.UID
			out.Pins = append(out.Pins, Assignment{m.Name, pin})
		}
	}
	return out
}

// active is the run that is under way, nil if none is.
func (d *decision) active() *v1alpha1.RolloutRun {
	if r := d.status.Run; r != nil && Active(r) {
		return r
	}
	return nil
}

// Active reports whether a run is under way.
func Active(r *v1alpha1.RolloutRun) bool {
	switch r.Phase {
	case v1alpha1.RolloutProgressing, v1alpha1.RolloutHalted, v1alpha1.RolloutReverting:
		return true
	}
	return false
}

// IsBack reports whether the source of a Rollout is back at the last good revision after another
// one was taken back or aborted, and all clusters are ready at that: all is as it should be.
func IsBack(status *v1alpha1.RolloutStatus) bool {
	c := status.Clusters
	return sourceIsBack(status) && c.Failed+c.Updating+c.Pending == 0
}

// sourceIsBack reports whether the source of a Rollout is back at the last good revision after another one was taken
// back or aborted.
func sourceIsBack(status *v1alpha1.RolloutStatus) bool {
	run, good, newest := status.Run, status.LastGood, status.Candidate
	ended := run != nil && (run.Phase == v1alpha1.RolloutReverted || run.Phase == v1alpha1.RolloutAborted)
	return ended && good != nil && newest != nil && *newest == good.RolloutRevision && run.RolloutRevision != *newest
}

// Pending reports whether a Rollout is on its way, or is about to be. One that was looked at and has no cluster of this tier in
// any wave, or none into which a layer brings what is moved, is not: nobody waits for what comes with the first of them.
func Pending(o *v1alpha1.Rollout) bool {
	if len(o.Status.Waves) > 0 && o.Status.Clusters.Total == 0 {
		return false
	}
	run := o.Status.Run
	if run == nil || Active(run) && run.Phase != v1alpha1.RolloutHalted {
		return true
	}
	c := o.Status.Candidate
	return c != nil && *c != run.RolloutRevision && !IsBack(&o.Status)
}

// terms are those of the run, or of the spec without one.
func (d *decision) terms() v1alpha1.RolloutTerms {
	if r := d.active(); r != nil {
		return r.Terms
	}
	return termsOf(d.spec)
}

func termsOf(spec *v1alpha1.RolloutSpec) v1alpha1.RolloutTerms {
	return *(&v1alpha1.RolloutTerms{
		Waves: spec.Waves, Deadline: spec.Deadline, Unreachable: spec.Unreachable, Window: spec.Window, OnFailure: spec.OnFailure,
	}).DeepCopy()
}

// set changes what is on record for a cluster.
func (m *member) set(to v1alpha1.ChildRollout) {
	m.pin, m.dirty = &to, true
}

// result changes the result of what a cluster has. That it is unproven stays until it is ready: a retry, a
// pause, another tier or a lost link say nothing of what it has.
func (m *member) result(now time.Time, result v1alpha1.RolloutResult, reason string) {
	to := *m.pin
	// Its deadline is over, or it is left alone when another revision comes for it before that.
	missed := m.is(v1alpha1.ResultDegraded) && (result == v1alpha1.ResultUnreachable || inHand(reason) || reason == v1alpha1.ReasonRollingOut)
	to.Unproven = result != v1alpha1.ResultSucceeded && (missed || unproven(m.pin) || m.changing())
	to.Result, to.Reason, to.Since = result, reason, metav1.NewTime(now)
	m.set(to)
}

// has reports whether the pin of the cluster is a revision.
func (m *member) has(r v1alpha1.RolloutRevision) bool {
	return m.pin != nil && m.pin.RolloutRevision == r
}

func (m *member) is(results ...v1alpha1.RolloutResult) bool {
	for _, r := range results {
		if m.pin != nil && m.pin.Result == r {
			return true
		}
	}
	return false
}

// changing reports whether the cluster uses a place of its wave.
func (m *member) changing() bool { return m.is(v1alpha1.ResultUpdating) }

// soon calls for another look after a time.
func (d *decision) soon(after time.Duration) {
	after = max(after, time.Second)
	if d.recheck == 0 || after < d.recheck {
		d.recheck = after
	}
}

// until is how long something has to go that began at a time and lasts for another; zero
// and below say that it is over.
func (d *decision) until(since time.Time, lasts time.Duration) time.Duration {
	return lasts - d.now.Sub(since)
}

// judge finds out what became of the revisions that clusters were given.
func (d *decision) judge() {
	terms := d.terms()
	for _, m := range d.all {
		if m.pin == nil {
			continue
		}
		if m.is(v1alpha1.ResultUpdating, v1alpha1.ResultDegraded) && m.Reached.Truncate(time.Second).After(m.pin.Since.Time) && !m.Reached.After(d.now) {
			m.since(metav1.NewTime(m.Reached)) // the next process does not know that it was blocked
		}
		// An adopted pin is judged from the next look on, when the facts are about it.
		if d.judgeOne(m, terms); m.is(v1alpha1.ResultUpdating, v1alpha1.ResultDegraded, v1alpha1.ResultDeferred) {
			if left := d.left(m, terms); left > 0 {
				d.soon(left)
			}
			if m.Outstanding != "" && !m.Blocked {
				d.soon(lookAgain)
			}
		}
	}
}

// left is how long a cluster has until its deadline. What it was given has to be on its way for that to pass.
func (d *decision) left(m *member, terms v1alpha1.RolloutTerms) time.Duration {
	since := counted(d.status.Run, m.pin.Since.Time)
	switch {
	case m.Blocked:
		return terms.Deadline.Duration
	case m.Reached.After(since):
		since = m.Reached
	}
	return d.until(since, terms.Deadline.Duration)
}

func (d *decision) judgeOne(m *member, terms v1alpha1.RolloutTerms) {
	reached := m.Unreachable.IsZero()
	late := d.left(m, terms) <= 0
	switch m.pin.Result {
	case v1alpha1.ResultUpdating, v1alpha1.ResultDegraded:
		switch {
		case reached && m.Ready:
			m.result(d.now, v1alpha1.ResultSucceeded, "")
		case m.Elsewhere:
			m.result(d.now, v1alpha1.ResultDeferred, v1alpha1.ReasonManagedElsewhere)
		case d.skipped(m, m.pin.RolloutRevision), m.Idle:
			m.result(d.now, v1alpha1.ResultDeferred, v1alpha1.ReasonProgressing)
		case inHand(m.Rolling) && (m.changing() || late):
			m.result(d.now, v1alpha1.ResultDeferred, m.Rolling) // and begins again: nothing is sent to it, also not what mends it
		case reached && m.Refusal != nil:
			m.result(d.now, v1alpha1.ResultFailed, m.Refusal.Reason)
		case !late:
		case !reached && terms.Unreachable != v1alpha1.UnreachableCount:
			m.result(d.now, v1alpha1.ResultUnreachable, v1alpha1.ReasonUnreachable)
		case !reached:
			m.result(d.now, v1alpha1.ResultFailed, v1alpha1.ReasonUnreachable)
		case m.Busy != "":
			// No fault of what it was given, and no proof of it either. A Rollout of it that halts is one.
			m.result(d.now, v1alpha1.ResultUnproven, v1alpha1.ReasonProgressing)
		case m.pin.Blameless:
			m.result(d.now, v1alpha1.ResultUnproven, v1alpha1.ReasonNotReadyBefore)
		default:
			m.result(d.now, v1alpha1.ResultFailed, v1alpha1.ReasonDeadlineExceeded)
		}
	case v1alpha1.ResultSucceeded:
		// It matters while the revision is being proven. At rest nothing is written for it.
		run := d.active()
		switch proves := run != nil && run.Phase == v1alpha1.RolloutProgressing && m.has(run.RolloutRevision); {
		case !proves || m.dirty || reached && m.Ready:
		case reached && m.Busy != "" && d.until(m.pin.Since.Time, settles) <= 0:
		case !reached && !d.lost(m): // a heartbeat that got lost
		case m.Elsewhere:
			m.result(d.now, v1alpha1.ResultDeferred, v1alpha1.ReasonManagedElsewhere)
		case d.skipped(m, m.pin.RolloutRevision), m.Idle:
			m.result(d.now, v1alpha1.ResultDeferred, v1alpha1.ReasonProgressing)
		case reached:
			m.result(d.now, v1alpha1.ResultDegraded, v1alpha1.ReasonChildrenNotReady)
		case terms.Unreachable == v1alpha1.UnreachableCount:
			m.result(d.now, v1alpha1.ResultDegraded, v1alpha1.ReasonUnreachable)
		default:
			m.result(d.now, v1alpha1.ResultUnreachable, v1alpha1.ReasonUnreachable)
		}
	case v1alpha1.ResultFailed, v1alpha1.ResultUnproven:
		switch {
		case m.dirty:
		case reached && m.Ready:
			m.result(d.now, v1alpha1.ResultSucceeded, "")
		case !m.Elsewhere && (m.Idle || d.skipped(m, m.pin.RolloutRevision)):
			m.result(d.now, v1alpha1.ResultDeferred, v1alpha1.ReasonProgressing)
		}
	case v1alpha1.ResultUnreachable:
		switch {
		case reached && m.Ready:
			m.result(d.now, v1alpha1.ResultSucceeded, "")
		case reached:
			m.result(d.now, v1alpha1.ResultDeferred, v1alpha1.ReasonUnreachable) // and begins again
		}
	case v1alpha1.ResultDeferred:
		// Nobody lets it begin again after the run. One that changes by itself is well before that.
		switch {
		case !reached || !m.Ready:
		case m.pin.Reason != v1alpha1.ReasonRollingOut:
			m.result(d.now, v1alpha1.ResultSucceeded, "")
		case m.pin.Unproven:
			to := *m.pin
			to.Unproven = false
			m.set(to)
		}
	}
}

// heed does what people asked for.
func (d *decision) heed() {
	run, ask := d.status.Run, d.facts.Requests
	if run == nil {
		return
	}
	reverts := Reverts(&d.status, ask)
	// Who wants both wants the clusters to go back.
	if Active(run) && !reverts && ask.Abort != run.StaleAbort && Means(requested(ask.Abort), &d.status) {
		d.end(v1alpha1.RolloutAborted)
	}
	if reverts {
		switch run.Phase {
		case v1alpha1.RolloutProgressing, v1alpha1.RolloutHalted, v1alpha1.RolloutAborted:
			d.phase(v1alpha1.RolloutReverting)
		}
	}
	if ask.Retry != "" && ask.Retry != run.Retried && Active(run) {
		d.retry(run)
	}
}

func (d *decision) phase(to v1alpha1.RolloutPhase) {
	d.status.Run.Phase, d.status.Run.Since = to, metav1.NewTime(d.now)
	d.status.Run.SoakSince = nil
	d.assign() // a run that ends, or begins again, changes whose terms are in force
}

// end ends the run.
func (d *decision) end(as v1alpha1.RolloutPhase) {
	run := d.status.Run
	d.phase(as)
	if c := d.status.Candidate; c != nil && *c != run.RolloutRevision {
		d.soon(0) // it may begin, of which there is no event
	}
	entry := v1alpha1.RolloutHistory{Number: run.Number, RolloutRevision: run.RolloutRevision, Phase: as, Began: run.Began, Ended: run.Since}
	for _, m := range d.all {
		if d.failed(m, run.RolloutRevision) {
			entry.Failed++
		}
	}
	d.status.History = append([]v1alpha1.RolloutHistory{entry}, d.status.History...)
	d.status.History = d.status.History[:min(len(d.status.History), mostHistory)]
	if as == v1alpha1.RolloutCompleted {
		d.status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: run.RolloutRevision, Run: run.Number, At: run.Since}
	}
}
