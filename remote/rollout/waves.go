package rollout

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// assign puts each cluster into the first wave that selects it.
func (d *decision) assign() {
	if d.all == nil {
		for i := range d.facts.Clusters {
			c := &d.facts.Clusters[i]
			m := &member{Cluster: c, pin: c.Pin.DeepCopy()}
			m.order = sha256.Sum256([]byte(string(d.facts.UID) + "/" + string(c.UID)))
			d.all = append(d.all, m)
		}
		// Neighbours by name are often neighbours in other ways.
		slices.SortFunc(d.all, func(a, b *member) int {
			return cmp.Or(bytes.Compare(a.order[:], b.order[:]), strings.Compare(a.Name, b.Name))
		})
	}
	waves := d.terms().Waves
	d.members, d.none = make([][]*member, len(waves)), 0
	selectors := make([]labels.Selector, len(waves))
	for i := range waves {
		selectors[i] = selectorOf(&waves[i])
	}
	for _, m := range d.all {
		m.wave = slices.IndexFunc(selectors, func(s labels.Selector) bool { return s.Matches(labels.Set(m.Labels)) })
		if m.wave < 0 {
			d.none++
			continue
		}
		d.members[m.wave] = append(d.members[m.wave], m)
	}
}

// selectorOf is the selector of a wave. One that cannot be used selects nothing: Check
// tells of it.
func selectorOf(w *v1alpha1.RolloutWave) labels.Selector {
	if w.Selector == nil {
		return labels.Everything()
	}
	s, err := metav1.LabelSelectorAsSelector(w.Selector)
	if err != nil {
		return labels.Nothing()
	}
	return s
}

// share is a number, or a share of a number in per cent, rounded down.
func share(of intstr.IntOrString, all int) int {
	if of.Type == intstr.Int {
		return int(of.IntVal)
	}
	percent, err := strconv.Atoi(strings.TrimSuffix(of.StrVal, "%"))
	if err != nil {
		return 0
	}
	return percent * all / 100
}

// places is how many clusters of a wave may change at the same time.
func places(w *v1alpha1.RolloutWave, members int) int { return max(share(w.MaxConcurrent, members), 1) }

// lost reports whether a cluster cannot be reached for long enough to go on without it.
func (d *decision) lost(m *member) bool {
	if m.Unreachable.IsZero() {
		return false
	}
	left := d.until(counted(d.status.Run, m.Unreachable), grace)
	if left > 0 {
		d.soon(left)
	}
	return left <= 0
}

// skipped reports whether the cluster does without a revision, that of the run or the good one: a
// person lets it, another tier manages it, or a later commit made it.
func (d *decision) skipped(m *member, r v1alpha1.RolloutRevision) bool {
	switch {
	case m.Elsewhere, m.Lacks[r.Revision]:
		return true
	case m.Skip == "":
		return false
	}
	number := int64(0)
	switch run, good := d.status.Run, d.status.LastGood; {
	case run != nil && run.RolloutRevision == r:
		number = run.Number
	case good != nil && good.RolloutRevision == r:
		number = good.Run
	}
	return NamesRun(m.Skip, &d.status, number, r)
}

// refused reports whether the cluster cannot get a revision at all. One that it has already
// is judged like any other.
func (m *member) refused(r v1alpha1.RolloutRevision) bool {
	return m.Refused[r.Revision] != "" && !m.has(r)
}

// rolls reports whether a cluster changes by itself, so that no revision is given to it. One that
// failed at what it has, was never known to be ready at it, or has what is taken back, may roll for
// that alone, and never end: it gets what ends it. So does one that is new: its nodes may wait for
// what the revision brings, such as their network. To try again what it has changes nothing there. One that a person paused
// or suspended, or that is being deleted, is left alone in any case, unless what it has is withheld: it would go on with that.
func (d *decision) rolls(m *member, to v1alpha1.RolloutRevision) bool {
	switch {
	case m.Rolling == "", m.has(to) && !(m.suspended() && inHand(m.Rolling)), m.Withheld != "" && !m.has(to):
		return false
	case m.Rolling != v1alpha1.ReasonRollingOut:
		return true
	}
	return !d.mends(m, to) && !(m.pin == nil && m.New)
}

// open reports whether a wave waits for a cluster to be given a revision, or to become
// ready at it.
func (d *decision) open(m *member, r v1alpha1.RolloutRevision) bool {
	switch {
	case m.has(r) && !m.is(v1alpha1.ResultDeferred):
		return m.is(v1alpha1.ResultUpdating, v1alpha1.ResultDegraded)
	case d.skipped(m, r), m.refused(r), d.missed(m), m.Idle && m.has(r):
		return false
	case m.pin == nil && !m.Known:
		// An agent that began a moment ago has asked nobody yet. One that does not tell for longer comes when it does.
		left := d.until(counted(d.status.Run, d.status.Run.Since.Time), grace)
		if left > 0 {
			d.soon(left)
		}
		return left > 0
	case m.pin == nil && d.rolls(m, r):
		return false // it is left alone with nothing on record; it comes when that changes
	case d.rolls(m, r):
		return !m.putOff() || d.until(counted(d.status.Run, m.pin.Since.Time), d.terms().Deadline.Duration) > 0
	}
	return true
}

// advance passes waves, and stops at too many failures.
func (d *decision) advance() {
	run := d.active()
	if run == nil {
		return
	}
	if run.Phase == v1alpha1.RolloutReverting {
		d.advanceRevert(run)
		return
	}
	for run.Phase == v1alpha1.RolloutProgressing {
		if d.tooMany(run) {
			d.stop(run)
			return
		}
		if int(run.Wave) == len(run.Terms.Waves) {
			if !d.proven(run) {
				return
			}
			d.end(v1alpha1.RolloutCompleted)
			d.hold = Hold{}
			return
		}
		if d.deserted(run) {
			run.SoakSince, d.hold = nil, d.nobody()
			return
		}
		if !d.pass(run) {
			return
		}
		run.Wave++
		run.Begun, run.SoakSince = false, nil
	}
	if run.Phase == v1alpha1.RolloutHalted {
		d.hold = d.halted(run)
	}
}

// pass reports whether the wave of the run was passed and soaked. It lets the wave begin
// when that is due.
func (d *decision) pass(run *v1alpha1.RolloutRun) bool {
	wave, members := &run.Terms.Waves[run.Wave], d.members[run.Wave]
	if !run.Begun {
		// A wave with nothing to change begins without a person, and so leaves for the next one
		// that who came before proved nothing.
		if slices.ContainsFunc(members, func(m *member) bool { return !m.has(run.RolloutRevision) && !d.skipped(m, run.RolloutRevision) }) {
			if !d.mayBegin(run, wave) {
				return false
			}
			run.Unproven = false
		}
		run.Begun = true
		if d.tooMany(run) {
			d.stop(run) // for clusters that are refused the revision
			return false
		}
	}
	if d.waits(run, members) {
		if d.disturb(run, members); !d.consented(run, int(run.Wave)) {
			d.hold = awaits(d.name, run, wave)
		}
		return false
	}
	if run.SoakSince == nil {
		at := metav1.NewTime(d.now)
		run.SoakSince = &at
	}
	soak := soakOf(wave)
	if left := max(d.until(run.SoakSince.Time, soak), d.unheard(run)); left > 0 {
		d.soon(left)
		d.hold = Hold{v1alpha1.ReasonSoaking, fmt.Sprintf("wave %s is ready at %s since %s, and soaks for %s", wave.Name, title(run.RolloutRevision), run.SoakSince.UTC().Format("15:04:05"), soak)}
		return false
	}
	p := d.proof(run, members, soak)
	next := End
	if int(run.Wave)+1 < len(run.Terms.Waves) {
		next = run.Terms.Waves[run.Wave+1].Name
	}
	// Who approves what comes next need not wait for clusters that come and go.
	if !p.holds() && 2*(p.ready+p.away) >= p.of && !d.approved(run, next) {
		d.soon(p.left)
		d.hold = Hold{v1alpha1.ReasonSoaking, fmt.Sprintf("wave %s waits at %s for clusters that did not answer for a while: until half of it are back, and ready for %s, or for an approval of %s", wave.Name, title(run.RolloutRevision), soak, next)}
		return false
	}
	run.Unproven = d.leavesUnproven(run, members, p)
	return true
}

// proof is how much of a wave proves the revision of the run.
type proof struct {
	// of so many clusters, so many are ready, and can be reached, for as long as the soak is.
	of, ready int
	// away are those that would be if they stay: one that came back a while ago, and one that
	// does not answer for less than a minute. left is until the first of them is, or is not.
	away int
	left time.Duration
}

// holds reports whether at least half of the wave is known to be ready.
func (p proof) holds() bool { return 2*p.ready >= p.of }

func soakOf(w *v1alpha1.RolloutWave) time.Duration {
	if w.Soak == nil {
		return 0
	}
	return w.Soak.Duration
}

// proof counts a wave that soaked. A cluster that was away in between has a soak of its own: in
// a wave of many, where somebody always comes or goes, the soak would have no end otherwise.
func (d *decision) proof(run *v1alpha1.RolloutRun, members []*member, soak time.Duration) proof {
	var p proof
	for _, m := range members {
		if m.Idle || d.skipped(m, run.RolloutRevision) && !m.has(run.RolloutRevision) {
			continue
		}
		p.of++
		if !m.has(run.RolloutRevision) || !m.is(v1alpha1.ResultSucceeded) {
			continue
		}
		left := d.until(m.pin.Since.Time, soak)
		if !m.Unreachable.IsZero() {
			left = max(left, d.until(counted(run, m.Unreachable), grace))
		}
		if left <= 0 && m.Unreachable.IsZero() {
			p.ready++
			continue
		}
		if p.away++; p.away == 1 || left < p.left {
			p.left = left
		}
	}
	return p
}

// passed is the proof of the last wave that the run passed and that has any clusters, and how many clusters of all
// that it passed are ready, as of now.
func (d *decision) passed(run *v1alpha1.RolloutRun) (last proof, ready int) {
	for i := range d.members[:run.Wave] {
		p := d.proof(run, d.members[i], soakOf(&run.Terms.Waves[i]))
		if p.away > 0 {
			d.soon(p.left)
		}
		if ready += p.ready; p.of > 0 {
			last = p
		}
	}
	return last, ready
}

// proven reports whether a run that passed all waves may end as good: what other clusters get
// without waves from then on, and other environments too. At least one cluster has to be ready
// at it, whoever approves; and half of the last wave that has any, or a person approves the end.
func (d *decision) proven(run *v1alpha1.RolloutRun) bool {
	last, ready := d.passed(run)
	switch {
	case ready == 0 && d.selectsNone():
		d.hold = d.nobody()
	case ready == 0:
		d.hold = Hold{v1alpha1.ReasonWaveUnproven, fmt.Sprintf("no cluster is known to be ready at %s, so that the run waits for one: bring one back, push another commit, or cascade rollout abort %s", title(run.RolloutRevision), d.name)}
	case run.Unproven && !last.holds() && !d.approved(run, End):
		d.hold = Hold{v1alpha1.ReasonWaveUnproven, fmt.Sprintf("less than half of the clusters of the last wave are known to be ready at %s, so that the run waits for them, or for an approval: cascade approve rollout %s --wave %s",
			title(run.RolloutRevision), d.name, End)}
	case d.unheard(run) > 0:
		d.soon(d.unheard(run))
	default:
		run.Unproven = false
		return true
	}
	return false
}

// selectsNone reports whether no cluster that this tier manages, and that has or gets what is moved, is in a wave.
func (d *decision) selectsNone() bool {
	return !slices.ContainsFunc(d.all, func(m *member) bool { return m.wave >= 0 && !m.Elsewhere && !m.Idle })
}

// deserted reports whether no cluster is left for a run to go on with, nor one that is ready at its revision. It
// would pass all waves at once, and all of them would begin together when clusters are back, as after
// a typo in a selector, or a commit that took the object out of its layer.
func (d *decision) deserted(run *v1alpha1.RolloutRun) bool {
	return d.selectsNone() && !slices.ContainsFunc(d.all, func(m *member) bool {
		return m.wave >= 0 && !m.Idle && m.has(run.RolloutRevision) && m.is(v1alpha1.ResultSucceeded)
	})
}

// waits reports whether the wave waits for a cluster.
func (d *decision) waits(run *v1alpha1.RolloutRun, members []*member) bool {
	waits := false
	for _, m := range members {
		if !m.has(run.RolloutRevision) && d.rolls(m, run.RolloutRevision) && m.pin != nil && !d.lost(m) && !m.refused(run.RolloutRevision) && !d.skipped(m, run.RolloutRevision) &&
			!(m.is(v1alpha1.ResultDeferred) && m.pin.Reason == v1alpha1.ReasonRollingOut) && !m.changing() &&
			!(m.is(v1alpha1.ResultDegraded) && m.Rolling == v1alpha1.ReasonRollingOut) { // that is well after the roll, or fails, and may get this then
			m.result(d.now, v1alpha1.ResultDeferred, v1alpha1.ReasonRollingOut)
		}
		// Who came while the wave soaks has a soak of its own, and proves nothing before that.
		if d.open(m, run.RolloutRevision) && !(run.SoakSince != nil && m.joins() && d.consented(run, m.wave)) {
			waits = true
		}
	}
	return waits
}

// waitsFor names a cluster that the run waits for, and why: one that cannot be reached before those of which
// something is outstanding.
func (d *decision) waitsFor() Hold {
	run := d.active()
	if run == nil {
		return Hold{}
	}
	var first Hold
	n := 0
	for _, m := range d.all {
		is := Hold{v1alpha1.ReasonProgressing, d.away(run, m)}
		if is.Message == "" && m.has(run.RolloutRevision) && m.changing() {
			is = Hold{v1alpha1.ReasonRollingOut, cmp.Or(m.Outstanding, m.Busy)}
		}
		if is.Message == "" {
			continue
		}
		if n++; n == 1 || is.Reason == v1alpha1.ReasonProgressing && first.Reason != is.Reason {
			first = Hold{is.Reason, fmt.Sprintf("cluster %s is waited for: %s", m.Name, is.Message)}
		}
	}
	if n > 1 {
		first.Message += fmt.Sprintf("; and %d more", n-1)
	}
	return first
}

// mayBegin reports whether a wave may begin: a person approved it where one has to, and its
// window is open.
func (d *decision) mayBegin(run *v1alpha1.RolloutRun, wave *v1alpha1.RolloutWave) bool {
	if run.Unproven {
		// Who was away, or nobody knew, when the wave before passed may prove it since.
		last, _ := d.passed(run)
		left := d.unheard(run)
		if left > 0 {
			d.soon(left)
		}
		run.Unproven = last.of == 0 || !last.holds() || left > 0
	}
	if wave.Approval == v1alpha1.ApprovalRequired || run.Unproven {
		if !d.approved(run, wave.Name) {
			d.hold = awaits(d.name, run, wave)
			if run.Unproven {
				d.hold = Hold{v1alpha1.ReasonWaveUnproven, fmt.Sprintf("less than half of the clusters of the wave before %s are known to be ready at %s, so that the wave waits for an approval: cascade approve rollout %s --wave %s",
					wave.Name, title(run.RolloutRevision), d.name, wave.Name)}
			}
			return false
		}
	}
	if d.spec.Suspend {
		return false // begin says so
	}
	if d.facts.Blocked.Reason != "" {
		d.hold = d.facts.Blocked // a newer revision may take the place of the run
		return false
	}
	return !d.tooNew(run.RolloutRevision) && !d.unbuilt(run.RolloutRevision) && d.windowOpen(wave, run.Terms.Window)
}

// awaits is the hold of a wave that a person has to approve.
func awaits(name string, run *v1alpha1.RolloutRun, wave *v1alpha1.RolloutWave) Hold {
	return Hold{v1alpha1.ReasonAwaitingApproval, fmt.Sprintf("wave %s waits for an approval of %s: cascade approve rollout %s --wave %s", wave.Name, title(run.RolloutRevision), name, wave.Name)}
}

// approved reports whether a wave was approved for the revision of the run, and records who
// did.
func (d *decision) approved(run *v1alpha1.RolloutRun, wave string) bool {
	if slices.ContainsFunc(run.Approvals, func(a v1alpha1.RolloutApproval) bool { return a.Wave == wave }) {
		return true
	}
	for _, a := range d.facts.Requests.Approvals {
		if a.Wave == wave && Means(a.Revision, &d.status) {
			run.Approvals = append(run.Approvals, v1alpha1.RolloutApproval{Wave: wave, By: a.By, At: metav1.NewTime(d.now), Tag: a.Tag, Key: a.Key})
			return true
		}
	}
	return false
}

// windowOpen reports whether clusters of a wave may begin to change now.
func (d *decision) windowOpen(wave *v1alpha1.RolloutWave, general *v1alpha1.RolloutWindow) bool {
	window := wave.Window
	if window == nil {
		window = general
	}
	if window == nil {
		return true
	}
	open, changes, err := Open(window, d.now)
	if err != nil {
		d.hold = Hold{v1alpha1.ReasonInvalidSpec, err.Error()}
		return false
	}
	if !changes.IsZero() {
		d.soon(changes.Sub(d.now))
	}
	if !open {
		d.hold = Hold{v1alpha1.ReasonOutsideWindow, fmt.Sprintf("the window of wave %s opens at %s", wave.Name, changes.UTC().Format("2006-01-02 15:04 MST"))}
	}
	return open
}

// advanceRevert ends a revert once no cluster that can be given another revision has this one.
func (d *decision) advanceRevert(run *v1alpha1.RolloutRun) {
	good, waits := d.status.LastGood.RolloutRevision, false
	d.hold = Hold{v1alpha1.ReasonReverting, fmt.Sprintf("clusters that have %s get %s back", title(run.RolloutRevision), title(good))}
	for _, m := range d.all {
		if m.has(run.RolloutRevision) && m.pin.Run < run.Number {
			// It got that past the Rollout before the run, which did not come to it. That it had it when that was taken back is
			// known by the number, and on record before the run ends: who gets it past the Rollout after that keeps it.
			to := *m.pin
			to.Run, waits = run.Number, true
			m.set(to)
			d.soon(0)
		}
		switch {
		case m.changing() && !m.has(run.RolloutRevision) && !m.joins():
			waits = true
		case m.wave < 0 || d.lost(m) && d.cutOff(m, good) || !m.returns(run.RolloutRevision) && (!d.goesBack(m) || d.goal(m) == nil || m.refused(good)):
		case m.returns(run.RolloutRevision), d.rolls(m, good):
			// It gets the revision when a person lets it go on, after the run as well.
			if left := d.until(run.Since.Time, run.Terms.Deadline.Duration); left > 0 {
				d.soon(left)
				d.hold.Message += fmt.Sprintf("; cluster %s is waited for: %s", m.Name, cmp.Or(m.Rolling, v1alpha1.ReasonProgressing))
				waits = true
			}
		default:
			waits = true
		}
	}
	if waits {
		return
	}
	d.end(v1alpha1.RolloutReverted)
	d.hold = Hold{}
}

// WaveOf is the place of the wave that a cluster with these labels belongs to, below zero
// if none selects it.
func WaveOf(waves []v1alpha1.RolloutWave, of map[string]string) int {
	return slices.IndexFunc(waves, func(w v1alpha1.RolloutWave) bool { return selectorOf(&w).Matches(labels.Set(of)) })
}

// title is a revision for people; of one without a source it is the image.
func title(r v1alpha1.RolloutRevision) string { return cmp.Or(r.Revision, r.Image) }
