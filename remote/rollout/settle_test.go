package rollout_test

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// settle stands still, approves, and expects an end.
func (f *fleet) settle() error {
	f.spec.Suspend, f.room, f.settling = false, -1, true
	f.blocks(false)
	f.failure, f.refused = false, map[string]bool{}
	f.proofs = slices.DeleteFunc(f.proofs, func(p rollout.Proof) bool { return p.Proven.After(f.now) })
	if up := f.status.Upstream; up != nil && up.Taken != nil && up.Taken.Proven.After(f.now) {
		f.now = up.Taken.Proven.Time // the clock was set back meanwhile
	}
	f.prove(f.commits, f.now.Add(time.Second))
	f.requests.Abort, f.requests.Revert = "", ""
	for _, c := range f.clusters {
		c.rolling, c.suspended, c.slow, c.refused, c.known = false, false, false, nil, true
	}
	for range 4000 {
		for _, c := range f.clusters {
			if c.takes() {
				c.runs, c.unpinned = c.pin.Revision, false
			}
		}
		f.requests.Approvals = nil
		for wave := range 5 {
			for commit := range f.commits + 1 {
				a := rollout.Approval{Wave: strconv.Itoa(wave), Revision: fmt.Sprintf("main@sha1:%040d", commit)}
				f.requests.Approvals, f.approved[a.Wave+a.Revision] = append(f.requests.Approvals, a), true
			}
		}
		for commit := range f.commits + 1 {
			a := rollout.Approval{Wave: rollout.End, Revision: fmt.Sprintf("main@sha1:%040d", commit)}
			f.requests.Approvals, f.approved[a.Wave+a.Revision] = append(f.requests.Approvals, a), true
		}
		d, err := f.decide(false)
		if err != nil {
			return err
		}
		if r := d.Status.Run; r != nil {
			f.say("settling: run %d %s wave %d hold %q pins %d recheck %s", r.Number, r.Phase, r.Wave, d.Hold.Reason, len(d.Pins), d.RecheckAfter)
		}
		if len(d.Pins) > 0 {
			continue
		}
		if d.RecheckAfter == 0 {
			return f.over(d)
		}
		if d.Status.Run != nil && !rollout.Active(d.Status.Run) && slices.ContainsFunc(f.clusters, func(c *cluster) bool { return !c.lost.IsZero() }) && f.now.Sub(f.status.Run.Since.Time) > 48*time.Hour {
			return f.over(d)
		}
		f.passes(d.RecheckAfter, true)
	}
	return fmt.Errorf("no end after 4000 steps")
}

// ran reports whether a cluster of a wave can be reached, and has succeeded at the revision of
// a run.
func (f *fleet) ran(run *v1alpha1.RolloutRun) bool {
	return slices.ContainsFunc(f.clusters, func(c *cluster) bool {
		return waveOf(run.Terms.Waves, c) >= 0 && c.lost.IsZero() && c.pin != nil && c.pin.Revision == run.Revision && c.pin.Result == v1alpha1.ResultSucceeded
	})
}

// over holds the end against what it must be.
func (f *fleet) over(d rollout.Decision) error {
	run, good := d.Status.Run, d.Status.LastGood
	switch {
	case !slices.ContainsFunc(f.clusters, func(c *cluster) bool { return waveOf(f.spec.Waves, c) >= 0 && !c.elsewhere }) && (run == nil || run.Phase == v1alpha1.RolloutSuperseded):
		return nil // nobody is there to bring anything to
	case run == nil:
		return fmt.Errorf("no run at the end")
	case run.Phase == v1alpha1.RolloutProgressing && int(run.Wave) == len(run.Terms.Waves) && !f.ran(run):
		return nil // no cluster proved it, which nobody can approve
	case run.Phase == v1alpha1.RolloutProgressing && !f.ran(run) && !slices.ContainsFunc(f.clusters, func(c *cluster) bool { return waveOf(run.Terms.Waves, c) >= 0 && !c.elsewhere }):
		return nil // nobody is in a wave of it, which waits for one
	case run.Phase == v1alpha1.RolloutProgressing, run.Phase == v1alpha1.RolloutReverting, run.Phase == v1alpha1.RolloutSuperseded:
		for _, c := range f.clusters {
			f.say("%+v %+v", *c, c.pin)
		}
		for _, w := range run.Terms.Waves {
			f.say("%+v", w)
		}
		return fmt.Errorf("the run is %s at the end, held for %q", run.Phase, d.Hold.Reason)
	case run.Phase != v1alpha1.RolloutCompleted:
		for _, c := range f.clusters {
			if p := c.pin; waveOf(f.spec.Waves, c) >= 0 && c.lost.IsZero() && p != nil && !p.Past && good != nil && !c.without(good.Revision) && slices.ContainsFunc(d.Status.History, func(h v1alpha1.RolloutHistory) bool {
				return h.Phase == v1alpha1.RolloutReverted && h.Number == p.Run && h.Revision == p.Revision
			}) {
				return fmt.Errorf("%s has %+v at the end, which was taken back", c.name, p)
			}
		}
		return nil
	}
	for _, c := range f.clusters {
		if w := waveOf(f.spec.Waves, c); w >= 0 && c.lost.IsZero() && (c.pin == nil || c.pin.Revision != good.Revision) && !c.without(good.Revision) {
			return fmt.Errorf("%s has %+v at the end, and %s passed", c.name, c.pin, good.Revision)
		}
	}
	return nil
}
