package rollout

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

const (
	// lookOnRecord is between two looks that go on record.
	lookOnRecord = time.Minute
	// Unwatched is after how long without a look on record nobody watched. Less would take a slow API
	// server for that, and a soak would have no end.
	Unwatched = 3 * time.Minute
	// skew is by how much the clocks of this process and of the API server differ at most while both are right.
	skew = 5 * time.Minute
)

// resume has a soak and deadlines begin anew after a time in which nobody looked, as no process of
// this tier ran: that proves nothing, and nobody is to blame for it. What Children say then is of before.
func (d *decision) resume() {
	d.behind()
	run := d.active()
	// Without a look on record nothing is known: the run is of an earlier version, or the API server drops
	// the field, as its definition is older than this version.
	if run == nil || !d.timed(run) || run.LookedAt == nil || d.now.Sub(run.LookedAt.Time) < Unwatched {
		return
	}
	at, since := metav1.NewTime(d.now), d.now.Add(time.Second-Unwatched)
	if w := d.facts.Watching; !w.IsZero() {
		since = w.Truncate(time.Second) // as times on record are
	}
	for _, m := range d.all {
		// One that began later did so with this resumption, of which the writes may take long, or while somebody looked.
		if d.soaks(run, m) && m.pin.Since.Time.Before(since) {
			m.since(at)
			d.resuming = true
		}
	}
	if run.ResumedAt = &at; run.SoakSince != nil {
		run.SoakSince = &at
	}
}

// behind has what is on record from a time to come begin, or have ended, now: a clock that was ahead for one look
// would have the run stand until then, and other environments wait for what it proved. Where it is this clock that
// is behind, what the run waits for begins anew once that is right. What ended does not, and would have proven itself
// for longer than it has: it stays where it was written at a later time than that, by the clock of the API server.
func (d *decision) behind() {
	at := metav1.NewTime(d.now)
	mend := func(written time.Time, all ...*metav1.Time) {
		for _, t := range all {
			if t != nil && t.After(d.now) && t.After(written) {
				*t = at
			}
		}
	}
	written := d.facts.Written.Add(skew)
	if run := d.active(); run != nil {
		mend(time.Time{}, &run.Began, &run.Since, run.SoakSince, run.LookedAt, run.ResumedAt)
	} else if run := d.status.Run; run != nil {
		mend(written, &run.Began, &run.Since)
	}
	if good := d.status.LastGood; good != nil {
		mend(written, &good.At)
	}
	for i := range d.status.History {
		mend(written, &d.status.History[i].Began, &d.status.History[i].Ended)
	}
	for _, m := range d.all {
		if m.pin != nil && m.pin.Since.After(d.now) {
			m.since(at)
		}
	}
}

// since has the result of a cluster begin at another time.
func (m *member) since(at metav1.Time) {
	to := *m.pin
	to.Since = at
	m.set(to)
}

// look puts on record that somebody looks, while a soak or a deadline runs. After a time in which nobody did,
// that is on record once each soak that a pin times begins anew: of writes to many Children some conflict.
func (d *decision) look() {
	run := d.active()
	if run == nil || !d.timed(run) {
		return
	}
	if d.resuming && run.LookedAt != nil { // of a run that begins, all is of now
		d.soon(0)
		return
	}
	since := lookOnRecord
	if run.LookedAt != nil {
		since = d.now.Sub(run.LookedAt.Time)
	}
	if since >= lookOnRecord {
		at := metav1.NewTime(d.now)
		run.LookedAt, since = &at, 0
	}
	d.soon(lookOnRecord - since)
}

// timed reports whether a soak or a deadline runs.
func (d *decision) timed(run *v1alpha1.RolloutRun) bool {
	return run.SoakSince != nil || slices.ContainsFunc(d.all, func(m *member) bool {
		return m.is(v1alpha1.ResultUpdating, v1alpha1.ResultDegraded) || d.soaks(run, m) || d.awaited(run, m)
	})
}

// soaks reports whether a cluster of a wave that passed without it came back, and has a soak of its own. That
// counts from when its result began, which begins anew itself after a time in which nobody looked.
func (d *decision) soaks(run *v1alpha1.RolloutRun, m *member) bool {
	return m.wave >= 0 && m.wave < int(run.Wave) && m.has(run.RolloutRevision) && m.is(v1alpha1.ResultSucceeded) &&
		(run.LookedAt == nil || run.LookedAt.Sub(m.pin.Since.Time) < soakOf(&run.Terms.Waves[m.wave]))
}

// awaited reports whether a cluster is waited for until a deadline to be given the revision.
func (d *decision) awaited(run *v1alpha1.RolloutRun, m *member) bool {
	r, deadline := run.RolloutRevision, run.Terms.Deadline.Duration
	switch {
	case run.Phase != v1alpha1.RolloutProgressing, m.wave < 0, m.wave > int(run.Wave), m.has(r) && !m.suspended(), m.refused(r), d.skipped(m, r):
		return false
	case m.putOff() && ran(run, m.pin.Since.Time, deadline):
		return true
	}
	return !m.Unreachable.IsZero() && run.Terms.Unreachable == v1alpha1.UnreachableCount && ran(run, m.Unreachable, deadline)
}

// ran reports whether a time that began at another was not over when somebody looked last. Whether it is
// over by now is no answer: it would be after any time in which nobody looked.
func ran(run *v1alpha1.RolloutRun, since time.Time, lasts time.Duration) bool {
	return run.LookedAt == nil || run.LookedAt.Sub(counted(run, since)) < lasts
}

// counted is from when a time counts that began at another: not before somebody looked again.
func counted(run *v1alpha1.RolloutRun, since time.Time) time.Time {
	if run != nil && Active(run) && run.ResumedAt != nil && run.ResumedAt.After(since) {
		return run.ResumedAt.Time
	}
	return since
}

// unheard is for how long, after nobody looked for a while, what Children say may be of before.
func (d *decision) unheard(run *v1alpha1.RolloutRun) time.Duration {
	if run.ResumedAt == nil {
		return 0
	}
	return d.until(run.ResumedAt.Time, grace)
}

// Overdue reports whether a cluster was to be ready by now at what a Rollout lets it have, and what reached it at a time.
func Overdue(o *v1alpha1.Rollout, since, now time.Time) bool {
	run, deadline := o.Status.Run, o.Spec.Deadline.Duration
	if run != nil && Active(run) {
		deadline = run.Terms.Deadline.Duration
	}
	return now.Sub(counted(run, since)) >= deadline
}
