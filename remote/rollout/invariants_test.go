package rollout_test

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// decide lets the Rollout decide, holds that against what must be, and carries it out: all
// of it, unless the process dies in between.
func (f *fleet) decide(dies bool) (rollout.Decision, error) {
	facts := f.facts()
	if f.unready.After(f.now) {
		f.unready = f.now // the clock was set back
	}
	before, unready := f.status.DeepCopy(), f.unready
	if run := before.Run; run != nil && run.SoakSince != nil && f.now.Sub(run.LookedAt.Time) >= 3*time.Minute {
		f.unready = f.now // which is forgotten with a process that dies, as the clock may be set back before the next one
		f.say("nobody looked since %s", run.LookedAt.Format("15:04"))
	}
	d := rollout.Next("r", &f.spec, &f.status, facts, f.now)
	if r := d.Status.Run; r != nil {
		f.named[r.Revision] = true
	}
	if err := f.right(before, d); err != nil {
		return d, err
	}
	if err := f.promoted(before, d, facts.Upstream); err != nil {
		return d, err
	}
	pins := d.Pins
	f.dead = false
	if dies {
		if f.chance(50) {
			f.dead = true
			f.say("dies before the status")
			f.unready = unready
			return d, nil
		}
		pins = pins[:f.IntN(len(pins)+1)]
		f.say("dies after %d pins", len(pins))
	}
	if err := f.proved(before, d); err != nil {
		return d, err
	}
	f.status = d.Status
	for _, p := range pins {
		pin := p.Given(facts.Clusters)
		if pin.Result == v1alpha1.ResultSucceeded {
			f.ready[p.Cluster] = pin.Revision
		} else if was := f.cluster(p.Cluster).pin; pin.Result == v1alpha1.ResultFailed || pin.Result == v1alpha1.ResultUnproven || pin.Reason == v1alpha1.ReasonProgressing ||
			was != nil && (was.Revision != pin.Revision || (pin.Result == v1alpha1.ResultUnreachable || wasInHand(&pin) || pin.Reason == v1alpha1.ReasonRollingOut) && was.Result == v1alpha1.ResultDegraded) {
			delete(f.ready, p.Cluster)
		}
		f.named[pin.Revision] = true
		f.cluster(p.Cluster).pin = &pin
	}
	return d, nil
}

// proved holds a revision that became good against what proved it: a cluster that runs it, and
// half of the last wave that has clusters, or an approval of the end.
func (f *fleet) proved(before *v1alpha1.RolloutStatus, d rollout.Decision) error {
	good, run := d.Status.LastGood, d.Status.Run
	if good == nil || before.LastGood != nil && before.LastGood.Run == good.Run {
		return nil
	}
	if run.Number != good.Run {
		run = before.Run // another one began at once
	}
	proven, of, ran := map[int]int{}, map[int]int{}, false
	for _, c := range f.clusters {
		w, p := waveOf(run.Terms.Waves, c), c.pin
		for i := range d.Pins {
			if d.Pins[i].Cluster == c.name && d.Pins[i].Revision == good.Revision {
				p = &d.Pins[i].ChildRollout
			}
		}
		has := p != nil && p.Revision == good.Revision
		if w < 0 || c.without(good.Revision) && !has {
			continue
		}
		if of[w]++; has && p.Result == v1alpha1.ResultSucceeded && c.lost.IsZero() {
			proven[w]++
			ran = true
		}
	}
	last := -1
	for w := range of {
		last = max(last, w)
	}
	// What was proven when its wave passed may go while an empty wave after it soaks.
	earlier := before.Run != nil && before.Run.Number == good.Run && !before.Run.Unproven && last < int(before.Run.Wave)
	if !ran || 2*proven[last] < of[last] && !earlier && !f.approved[rollout.End+good.Revision] {
		return fmt.Errorf("%s of run %d became good, and is proven by %v of %v", good.Revision, good.Run, proven, of)
	}
	return nil
}

// promoted holds what was taken of another environment against what that proved.
func (f *fleet) promoted(before *v1alpha1.RolloutStatus, d rollout.Decision, up *rollout.Upstream) error {
	run := d.Status.Run
	wants := f.spec.Upstream
	if wants == nil {
		return nil
	}
	var was, is *v1alpha1.RolloutProof
	if before.Upstream != nil {
		was = before.Upstream.Taken
	}
	if d.Status.Upstream != nil {
		is = d.Status.Upstream.Taken
	}
	if run != nil && (before.Run == nil || before.Run.Number != run.Number) && (is == nil || run.Revision != "main@sha1:"+is.Commit) {
		return fmt.Errorf("run %d began with %s, and what was taken is %+v", run.Number, run.Revision, is)
	}
	switch {
	case is == nil && was != nil:
		return fmt.Errorf("%+v was taken, and nothing is any more", was)
	case is == nil, was != nil && *was == *is:
		return nil
	case was != nil && !is.Proven.After(was.Proven.Time):
		return fmt.Errorf("%+v was taken after %+v", is, was)
	case up == nil || up.Failure.Reason != "":
		return fmt.Errorf("%+v was taken, and nobody could read it", is)
	case f.refused[is.Commit]:
		return fmt.Errorf("%+v was taken and is not on the branch", is)
	}
	i := slices.IndexFunc(f.proofs, func(p rollout.Proof) bool { return p.Commit == is.Commit && p.Proven.Equal(is.Proven.Time) })
	if i < 0 {
		return fmt.Errorf("%+v was taken, and nobody proved it", is)
	}
	ends := f.now
	if i > 0 && f.proofs[i-1].Proven.Before(ends) {
		ends = f.proofs[i-1].Proven
	}
	least := time.Duration(0)
	if wants.MinAge != nil {
		least = wants.MinAge.Duration
	}
	if ran := ends.Sub(is.Proven.Time); ran < least || ran < 0 {
		return fmt.Errorf("%+v was taken after it ran for %s, and is to for %s", is, ran, least)
	}
	return nil
}

func (f *fleet) cluster(name string) *cluster {
	return f.clusters[slices.IndexFunc(f.clusters, func(c *cluster) bool { return c.name == name })]
}

// leftAlone is why the cluster is; empty if it is not.
func (c *cluster) leftAlone() string {
	switch {
	case c.suspended && c.paused:
		return v1alpha1.ReasonPaused
	case c.suspended:
		return v1alpha1.ReasonSuspended
	case c.rolling:
		return v1alpha1.ReasonRollingOut
	}
	return ""
}

// wasInHand reports whether a cluster was put off because a person paused or suspended it.
func wasInHand(pin *v1alpha1.ChildRollout) bool {
	return pin != nil && pin.Result == v1alpha1.ResultDeferred && (pin.Reason == v1alpha1.ReasonSuspended || pin.Reason == v1alpha1.ReasonPaused)
}

// waveOf is the wave of a cluster under the terms that are in force.
func waveOf(terms []v1alpha1.RolloutWave, c *cluster) int {
	return slices.IndexFunc(terms, func(w v1alpha1.RolloutWave) bool {
		return w.Selector == nil || w.Selector.MatchLabels["wave"] == c.wave
	})
}

func share(of intstr.IntOrString, all int) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(&of, all, false)
	if err != nil {
		panic(err)
	}
	return n
}

// right holds a decision against what must be, by the model's own reckoning.
func (f *fleet) right(before *v1alpha1.RolloutStatus, d rollout.Decision) error {
	run := d.Status.Run
	terms := f.spec.Waves
	if run != nil && rollout.Active(run) {
		terms = run.Terms.Waves
	}
	after := map[string]*v1alpha1.ChildRollout{}
	for _, c := range f.clusters {
		after[c.name] = c.pin
	}
	// Who was changing already has its place, whatever it is given now: it does not enter. Nor does who goes on by itself, as
	// a person had it in hand, and lets it go.
	started, entered, wentOn := map[string]bool{}, map[string]bool{}, 0
	for _, p := range d.Pins {
		pin := p.ChildRollout
		was := after[p.Cluster]
		after[p.Cluster] = &pin
		if moved := was == nil || was.Revision != pin.Revision; pin.Result == v1alpha1.ResultUpdating && pin.Since.Time.Equal(f.now) && (moved || was.Result != v1alpha1.ResultUpdating) {
			if started[p.Cluster] = true; !moved && wasInHand(was) && !f.cluster(p.Cluster).suspended {
				wentOn++
			} else if was == nil || was.Result != v1alpha1.ResultUpdating {
				entered[p.Cluster] = true
			}
		} else if moved && (was != nil && !f.cluster(p.Cluster).unpinned || pin.Revision != f.cluster(p.Cluster).runs) {
			return fmt.Errorf("%s got %s without being counted as changing", p.Cluster, pin.Revision)
		}
		if !f.named[pin.Revision] {
			return fmt.Errorf("%s got %s, which no run named", p.Cluster, pin.Revision)
		}
	}
	if f.room >= 0 && len(entered) > max(f.room-wentOn, 0) {
		return fmt.Errorf("%d clusters began with room for %d", len(entered), f.room)
	}
	if f.spec.Suspend && len(started) > wentOn {
		return fmt.Errorf("%d clusters began while suspended", len(started))
	}
	if f.blocked && len(started) > wentOn {
		return fmt.Errorf("%d clusters began while nothing reaches them", len(started))
	}
	for _, c := range f.clusters {
		if p := after[c.name]; c.facts().Blocked && p.Revision == c.pin.Revision && p.Reason == v1alpha1.ReasonDeadlineExceeded && p.Since.Time.Equal(f.now) && c.pin.Result != v1alpha1.ResultFailed {
			return fmt.Errorf("%s failed at %s, which does not reach it", c.name, p.Revision)
		}
		w, p := waveOf(terms, c), after[c.name]
		if begun := run != nil && run.Phase == v1alpha1.RolloutProgressing && w >= 0 && (w < int(run.Wave) || w == int(run.Wave) && run.Begun); begun && p != nil && p.Revision == run.Revision && wasInHand(p) &&
			!c.suspended && c.lost.IsZero() && !c.without(run.Revision) && !c.unpinned && (terms[w].Approval != v1alpha1.ApprovalRequired || f.approved[terms[w].Name+run.Revision]) {
			return fmt.Errorf("%s was let go, changes to %s, and has no deadline", c.name, p.Revision)
		}
	}
	members, changing, begins := make([]int, len(terms)), make([]int, len(terms)), make([]int, len(terms))
	for _, c := range f.clusters {
		w := waveOf(terms, c)
		if w < 0 {
			if started[c.name] {
				return fmt.Errorf("%s began and is of no wave", c.name)
			}
			continue
		}
		members[w]++
		if p := after[c.name]; p != nil && p.Result == v1alpha1.ResultUpdating {
			changing[w]++
		}
		if entered[c.name] {
			begins[w]++
		}
	}
	for w := range terms {
		if begins[w] > 0 && changing[w] > max(share(terms[w].MaxConcurrent, members[w]), 1) {
			return fmt.Errorf("%d of %d clusters of wave %d are changing, with maxConcurrent %s", changing[w], members[w], w, terms[w].MaxConcurrent.String())
		}
	}
	if err := f.passed(before, d, after); err != nil {
		return err
	}
	return f.begun(d, terms, after, started, members)
}

// overdue reports whether a cluster fails by this very decision, which is on no record when it
// is given something else by it as well.
func (f *fleet) overdue(c *cluster, run *v1alpha1.RolloutRun) bool {
	late := func(r *v1alpha1.RolloutRun) bool {
		return r != nil && f.now.Sub(c.pin.Since.Time) >= r.Terms.Deadline.Duration
	}
	return (c.pin.Result == v1alpha1.ResultUpdating || c.pin.Result == v1alpha1.ResultDegraded) && (late(run) || late(f.status.Run))
}

// begun holds those that began against the run.
func (f *fleet) begun(d rollout.Decision, terms []v1alpha1.RolloutWave, after map[string]*v1alpha1.ChildRollout, started map[string]bool, members []int) error {
	run, good := d.Status.Run, d.Status.LastGood
	failed := make([]int, len(terms))
	for _, c := range f.clusters {
		w, p := waveOf(terms, c), after[c.name]
		if w >= 0 && run != nil && p != nil && p.Revision == run.Revision && p.Result == v1alpha1.ResultFailed {
			failed[w]++
		}
	}
	for _, c := range f.clusters {
		if !started[c.name] {
			continue
		}
		w, p := waveOf(terms, c), after[c.name]
		if c.elsewhere {
			return fmt.Errorf("%s began and is managed elsewhere", c.name)
		}
		if c.suspended && (c.pin == nil || c.pin.Revision != p.Revision) {
			return fmt.Errorf("%s began and is suspended", c.name)
		}
		if c.lacks(p.Revision) {
			return fmt.Errorf("%s began %s, which is from before it was made and takes it away", c.name, p.Revision)
		}
		// Who is new, failed at what it has or was never ready at it, has what is taken back, or is tried again at it may roll for that.
		// What it runs is put on record by this very decision if nothing else is.
		adopted := c.pin == nil || c.unpinned
		taken := wasTaken(c.pin, d.Status.History)
		back := taken || run != nil && (run.Phase == v1alpha1.RolloutReverting || run.Phase == v1alpha1.RolloutReverted) && (c.pin != nil && c.pin.Revision == run.Revision || adopted && c.runs == run.Revision)
		has := adopted && (c.facts().New || c.runs != "" && (c.runs == p.Revision || !c.well())) ||
			c.pin != nil && (c.pin.Result != v1alpha1.ResultUpdating && f.ready[c.name] != c.pin.Revision || c.pin.Revision == p.Revision || f.overdue(c, run))
		if c.rolling && !back && !has {
			return fmt.Errorf("%s began and is rolling", c.name)
		}
		if !c.lost.IsZero() && !(c.local && (back || has)) && !f.goesOnLost(c, p) {
			return fmt.Errorf("%s began and is lost", c.name)
		}
		if run != nil && run.Phase == v1alpha1.RolloutProgressing && p.Revision != run.Revision &&
			(c.pin != nil && c.pin.Revision == run.Revision || adopted && c.known && c.runs == run.Revision && c.takesPast()) {
			return fmt.Errorf("%s lost %s for %s, while run %d proves it", c.name, run.Revision, p.Revision, run.Number)
		}
		if c.pin != nil && !c.unpinned && c.pin.Run > p.Run && run.Phase != v1alpha1.RolloutReverting && run.Phase != v1alpha1.RolloutReverted && !taken {
			return fmt.Errorf("%s lost %s of run %d for %s of run %d", c.name, c.pin.Revision, c.pin.Run, p.Revision, p.Run)
		}
		if c.pin != nil && c.pin.Revision == p.Revision && !c.pin.Blameless && p.Blameless && !c.unpinned {
			return fmt.Errorf("%s was to blame at %s, and is not when it begins that again", c.name, p.Revision)
		}
		if err := f.pastBegan(c, p, w, d); err != nil {
			return err
		}
		if wasInHand(c.pin) && c.pin.Revision == p.Revision && c.pin.Run == p.Run {
			continue // it changes again in any case, whatever became of the run
		}
		switch {
		case run == nil:
			return fmt.Errorf("%s began without a run", c.name)
		case p.Revision == run.Revision && (good == nil || good.Revision != run.Revision):
			if run.Phase != v1alpha1.RolloutProgressing || w > int(run.Wave) || w == int(run.Wave) && !run.Begun {
				return fmt.Errorf("%s of wave %d began %s, and the run is %s in wave %d", c.name, w, p.Revision, run.Phase, run.Wave)
			}
			for i := range w + 1 {
				if failed[i] > share(terms[i].MaxFailures, members[i]) {
					return fmt.Errorf("%s began after %d of %d clusters of wave %d failed", c.name, failed[i], members[i], i)
				}
			}
			if terms[w].Approval == v1alpha1.ApprovalRequired && !f.approved[terms[w].Name+run.Revision] {
				return fmt.Errorf("%s of wave %d began %s, which nobody approved", c.name, w, p.Revision)
			}
			// What it has already cannot be refused any more, and may be tried again.
			had := c.pin != nil && c.pin.Revision == run.Revision || c.pin == nil && c.runs == run.Revision
			if c.skip == run.Revision || c.refused[run.Revision] != "" && !had {
				return fmt.Errorf("%s began %s, which it skips or is refused", c.name, p.Revision)
			}
		case good == nil || p.Revision != good.Revision:
			return fmt.Errorf("%s began %s, which is neither of the run nor good", c.name, p.Revision)
		}
	}
	return nil
}

// pastBegan holds a cluster that got past the Rollout what it has, and begins something else: nothing but a run takes
// that from it, in its wave, and no run that it got past takes it back to what is not the newest.
func (f *fleet) pastBegan(c *cluster, p *v1alpha1.ChildRollout, w int, d rollout.Decision) error {
	run, had := d.Status.Run, c.pin
	switch {
	case c.unpinned && c.known && c.takesPast() && c.pin != nil:
		if c.runs == c.pin.Revision {
			return nil
		}
		had = &v1alpha1.ChildRollout{RolloutRevision: v1alpha1.RolloutRevision{Revision: c.runs}}
		if b, good := f.status.Run, f.status.LastGood; b != nil && rollout.Active(b) {
			had.Run = b.Number
		} else if good != nil {
			had.Run = good.Run
		}
	case had == nil || !had.Past || had.Revision == p.Revision:
		return nil
	}
	switch {
	case run == nil:
	case run.Phase == v1alpha1.RolloutReverting && had.Revision == run.Revision:
		return nil
	case wasTaken(had, d.Status.History):
		return nil // it had that when it was taken back from all others
	case run.Phase == v1alpha1.RolloutProgressing && p.Revision == run.Revision && p.Run == run.Number && (w < int(run.Wave) || w == int(run.Wave) && run.Begun):
		if had.Run == run.Number && f.unread && f.spec.Upstream == nil {
			return fmt.Errorf("%s got %s past run %d, and began %s before it is known what is newest", c.name, had.Revision, run.Number, p.Revision)
		}
		return nil
	case d.Status.LastGood != nil && p.Run == d.Status.LastGood.Run && had.Run < p.Run:
		return nil // a run passed without it
	}
	return fmt.Errorf("%s got %s past the Rollout, and began %s of run %d without a run for it: %+v", c.name, had.Revision, p.Revision, p.Run, run)
}

// passed holds waves that were passed against what they must have had.
func (f *fleet) passed(before *v1alpha1.RolloutStatus, d rollout.Decision, after map[string]*v1alpha1.ChildRollout) error {
	run := d.Status.Run
	if run == nil {
		return nil
	}
	from := int32(0)
	if b := before.Run; b != nil && b.Number == run.Number {
		from = b.Wave
		if run.Wave < b.Wave {
			return fmt.Errorf("the run went back from wave %d to %d", b.Wave, run.Wave)
		}
	}
	// Unless an agent that knows no Rollouts brought something else to a cluster of it.
	overtaken := func(c *cluster) bool {
		b, p := before.Run, c.pin
		return waveOf(b.Terms.Waves, c) >= 0 && (c.unpinned && c.known && c.takesPast() && c.runs != b.Revision || p != nil && p.Past && p.Run == b.Number && p.Revision != b.Revision)
	}
	// Or no cluster is left in its waves, and other terms, with another candidate, select some.
	in := func(c *cluster) bool { return waveOf(before.Run.Terms.Waves, c) >= 0 && !c.elsewhere }
	if b := before.Run; b != nil && b.Number != run.Number && b.Phase == v1alpha1.RolloutProgressing && b.Begun && !f.spec.Preempt && !slices.ContainsFunc(f.clusters, overtaken) && slices.ContainsFunc(f.clusters, in) &&
		len(d.Status.History) > 0 && d.Status.History[0].Phase == v1alpha1.RolloutSuperseded {
		return fmt.Errorf("run %d was superseded in the middle of wave %d", b.Number, b.Wave)
	}
	// Nor does one wait for who came while it soaks.
	joined := func(c *cluster) bool {
		b, p := before.Run, c.pin
		return b != nil && b.Number == run.Number && b.SoakSince != nil && waveOf(b.Terms.Waves, c) == int(b.Wave) &&
			(p == nil && c.facts().New || p != nil && p.Result == v1alpha1.ResultUpdating && p.Had == nil)
	}
	terms := run.Terms.Waves
	for w := int(from); w < int(run.Wave); w++ {
		for _, c := range f.clusters {
			if waveOf(terms, c) != w || joined(c) {
				continue
			}
			p := after[c.name]
			if run.Phase == v1alpha1.RolloutReverting && p != c.pin {
				continue // it lost the revision again at once
			}
			has := p != nil && p.Revision == run.Revision
			away := !c.lost.IsZero() && f.now.Sub(c.lost) >= time.Minute // nobody waits to give it anything, but it may get that at once
			excused := c.without(run.Revision) || c.refused[run.Revision] != "" || !c.known && p == nil || away ||
				c.rolling && (p == nil && c.untold || p != nil && p.Result == v1alpha1.ResultDeferred) || c.suspended && (p == nil || p.Result == v1alpha1.ResultDeferred)
			if has && (p.Result == v1alpha1.ResultUpdating || p.Result == v1alpha1.ResultDegraded) && !(away && (c.local || f.goesOnLost(c, p)) && p.Result == v1alpha1.ResultUpdating && p.Since.Time.Equal(f.now)) || !has && !excused {
				return fmt.Errorf("wave %d of run %d at %s (%s) was passed, and %s is not done: %+v, %+v", w, run.Number, run.Revision, run.Phase, c.name, p, *c)
			}
		}
		if soak := terms[w].Soak; soak != nil && f.now.Sub(f.unready) < soak.Duration && f.unready.After(run.Began.Time) {
			return fmt.Errorf("wave %d was passed %s after it was not ready, and is to soak for %s", w, f.now.Sub(f.unready), soak.Duration)
		}
	}
	if w := int(run.Wave) - 1; w >= int(from) && !run.Begun && run.Phase == v1alpha1.RolloutProgressing && !run.Unproven {
		proven, of := 0, 0
		for _, c := range f.clusters {
			p := after[c.name]
			has := p != nil && p.Revision == run.Revision
			if waveOf(terms, c) != w || c.without(run.Revision) && !has {
				continue
			}
			if of++; has && p.Result == v1alpha1.ResultSucceeded && c.lost.IsZero() {
				proven++
			}
		}
		if 2*proven < of {
			return fmt.Errorf("wave %d was passed as proven, and %d of %d clusters can be reached and are ready", w, proven, of)
		}
	}
	if w := int(run.Wave); d.Hold.Reason == v1alpha1.ReasonWaveUnproven && w < len(terms) && (run.ResumedAt == nil || f.now.Sub(run.ResumedAt.Time) >= time.Minute) {
		if proven, of := f.provenBefore(run, after); of > 0 && 2*proven >= of {
			return fmt.Errorf("wave %d waits for an approval, and %d of %d clusters of the one before prove the revision", w, proven, of)
		}
	}
	// When a cluster of the wave that the run is in was last seen not ready at the revision, other than one that joins, or is
	// given it without an answer.
	for _, c := range f.clusters {
		p := after[c.name]
		if c.local && !c.lost.IsZero() || p != nil && (c.pin == nil || c.pin.Result == v1alpha1.ResultUpdating && c.pin.Had == nil) && (c.facts().New || c.runs == p.Revision) {
			continue
		}
		if p != nil && p.Revision == run.Revision && waveOf(terms, c) == int(run.Wave) && (p.Result == v1alpha1.ResultUpdating || p.Result == v1alpha1.ResultDegraded) {
			f.unready = f.now
		}
	}
	return nil
}

// provenBefore is how many clusters of the last wave with any that a run passed are ready for as long as the wave
// soaks, and of how many.
func (f *fleet) provenBefore(run *v1alpha1.RolloutRun, after map[string]*v1alpha1.ChildRollout) (proven, of int) {
	for w := int(run.Wave) - 1; w >= 0 && of == 0; w-- {
		soak := time.Duration(0)
		if s := run.Terms.Waves[w].Soak; s != nil {
			soak = s.Duration
		}
		for _, c := range f.clusters {
			p := after[c.name]
			has := p != nil && p.Revision == run.Revision
			if waveOf(run.Terms.Waves, c) != w || c.without(run.Revision) && !has {
				continue
			}
			if of++; has && p.Result == v1alpha1.ResultSucceeded && c.lost.IsZero() && f.now.Sub(p.Since.Time) >= soak {
				proven++
			}
		}
	}
	return proven, of
}
