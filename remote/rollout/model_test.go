package rollout_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// fleet is what the model knows of the world that a Rollout acts on.
type fleet struct {
	*rand.Rand
	spec     v1alpha1.RolloutSpec
	status   v1alpha1.RolloutStatus
	now      time.Time
	commits  int
	clusters []*cluster
	made     int
	requests rollout.Requests
	room     int
	// approved are waves with revisions that a person approved.
	approved map[string]bool
	// named are revisions that a run had, or that a cluster had before.
	named map[string]bool
	// unread: nobody knows at the moment whether there is a newer commit.
	unread bool
	// ready has at which revision a cluster was ready last, unless it failed at that since, or was given another one.
	ready map[string]string
	// proofs are what another environment proved, the newest first, failure why they cannot be
	// read, and refused the commits that are not on the branch.
	proofs            []rollout.Proof
	failure, settling bool
	refused           map[string]bool
	// unready is when the model last saw that a wave could not be soaking.
	unready time.Time
	// blocked: nothing that clusters are given reaches them.
	blocked bool
	// dead: the last decision is not on record.
	dead  bool
	trace []string
}

// cluster is one cluster of the model.
type cluster struct {
	name, wave string
	pin        *v1alpha1.ChildRollout
	// runs is what it runs. It takes up its pin when it can be reached.
	runs  string
	known bool
	// untold: it does not tell what it has, or that it has nothing.
	untold bool
	lost   time.Time
	sick   bool
	// suspended: nothing is sent to it, as it is suspended, or its Cluster paused.
	rolling, suspended, paused bool
	skip                       string
	// elsewhere: another tier manages it, and nothing is brought to it. local: what is moved is applied in this tier.
	elsewhere, local bool
	// refused are revisions that it cannot get.
	refused map[string]string
	// bad are revisions that it does not get ready at, and refuses those that its release does
	// not take.
	bad, refuses map[string]bool
	// made by which commit: those before lack it.
	made int
	// blocked: nothing reaches it, which includes its pin. reached is since when that did, after it was blocked.
	blocked bool
	reached time.Time
	// unpinned: a version that knows no Rollouts gave it what it runs, past its pin.
	unpinned bool
	// slow: what it runs is not in effect yet.
	slow bool
}

// takes reports whether the cluster takes up its pin. What it was given past that is on record first.
func (c *cluster) takes() bool {
	return c.pin != nil && c.lost.IsZero() && !c.elsewhere && !c.past() && !c.blocked && !c.suspended
}

// takesPast reports whether what the cluster runs becomes its pin: nothing is on record, or it got past that.
func (c *cluster) takesPast() bool { return c.pin == nil || c.past() }

func (c *cluster) past() bool {
	return c.unpinned && rollout.IsPast(c.pin, v1alpha1.RolloutRevision{Revision: c.runs})
}

func (c *cluster) well() bool { return !c.sick && !c.bad[c.runs] && c.runs != "" }

// lacks reports whether a revision is from before the commit that made the cluster.
func (c *cluster) lacks(revision string) bool {
	commit, err := strconv.Atoi(strings.TrimPrefix(revision, "main@sha1:"))
	return err == nil && commit < c.made
}

// without reports whether the cluster is to do without a revision.
func (c *cluster) without(revision string) bool {
	return c.skip == revision || c.elsewhere || c.lacks(revision)
}

func (c *cluster) facts() rollout.Cluster {
	f := rollout.Cluster{Name: c.name, UID: types.UID("uid-" + c.name), Labels: map[string]string{"wave": c.wave}, Pin: c.pin.DeepCopy(), Known: c.known,
		Unreachable: c.lost, Local: c.local, Healthy: c.well(), Skip: c.skip, Refused: maps.Clone(c.refused), Elsewhere: c.elsewhere, New: c.known && c.runs == "" && !c.untold, Unpinned: c.unpinned}
	if c.runs != "" {
		f.Has = &v1alpha1.RolloutRevision{Revision: c.runs}
	}
	if at := c.pin != nil && c.runs == c.pin.Revision; at && c.refuses[c.runs] {
		f.Refusal = &rollout.Hold{Reason: v1alpha1.ReasonUnsupportedVersionStep, Message: "its release does not take it"}
	} else if at && c.well() && c.slow {
		f.Outstanding = "its control plane was not looked at yet"
	} else {
		f.Ready = at && c.well()
	}
	f.Blocked, f.Reached = c.blocked && c.pin != nil && c.runs != c.pin.Revision, c.reached
	if c.made > 0 {
		f.Lacks = map[string]bool{}
	}
	for commit := range c.made {
		f.Lacks[fmt.Sprintf("main@sha1:%040d", commit)] = true
	}
	f.Rolling = c.leftAlone()
	return f
}

func (f *fleet) say(format string, args ...any) {
	f.trace = append(f.trace, fmt.Sprintf(format, args...))
}

func (f *fleet) revision() string { return fmt.Sprintf("main@sha1:%040d", f.commits) }

func (f *fleet) one() *cluster {
	if len(f.clusters) == 0 {
		return &cluster{bad: map[string]bool{}, refuses: map[string]bool{}}
	}
	return f.clusters[f.IntN(len(f.clusters))]
}

func (f *fleet) chance(percent int) bool { return f.IntN(100) < percent }

func amount(r *rand.Rand, least int) intstr.IntOrString {
	if r.IntN(2) == 0 {
		return intstr.FromInt32(int32(least + r.IntN(3)))
	}
	return intstr.FromString(strconv.Itoa(least+r.IntN(60)) + "%")
}

func newFleet(seed uint64) *fleet {
	f := &fleet{Rand: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_700_000_000, 0), named: map[string]bool{}, ready: map[string]string{}, approved: map[string]bool{}, refused: map[string]bool{}, room: -1, commits: 1}
	f.terms()
	for range f.IntN(9) {
		f.join()
	}
	return f
}

// terms makes up a spec.
func (f *fleet) terms() {
	f.spec = v1alpha1.RolloutSpec{Deadline: metav1.Duration{Duration: time.Duration(1+f.IntN(30)) * time.Minute}, Preempt: f.chance(20)}
	if f.chance(30) {
		f.spec.OnFailure = v1alpha1.FailureRevert
	}
	if f.chance(20) {
		f.spec.Unreachable = v1alpha1.UnreachableCount
	}
	if f.spec.Upstream = nil; f.chance(30) {
		f.spec.Upstream = &v1alpha1.RolloutUpstream{Name: "staging"}
		if f.chance(60) {
			f.spec.Upstream.MinAge = &metav1.Duration{Duration: time.Duration(f.IntN(90)) * time.Minute}
		}
	}
	waves := 1 + f.IntN(4)
	for i := range waves {
		w := v1alpha1.RolloutWave{Name: strconv.Itoa(i), MaxConcurrent: amount(f.Rand, 1), MaxFailures: amount(f.Rand, 0)}
		if i < waves-1 || f.chance(30) {
			w.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"wave": w.Name}}
		}
		if f.chance(40) {
			w.Soak = &metav1.Duration{Duration: time.Duration(1+f.IntN(60)) * time.Minute}
		}
		if f.chance(30) {
			w.Approval = v1alpha1.ApprovalRequired
		}
		if f.chance(10) {
			w.Window = &v1alpha1.RolloutWindow{Cron: "0 * * * *", Duration: metav1.Duration{Duration: 30 * time.Minute}}
		}
		f.spec.Waves = append(f.spec.Waves, w)
	}
}

// join adds a cluster, which has a revision perhaps.
func (f *fleet) join() {
	f.made++
	c := &cluster{name: fmt.Sprintf("c%d", f.made), wave: strconv.Itoa(f.IntN(5)), known: true, local: f.made%3 == 0, bad: map[string]bool{}, refuses: map[string]bool{}}
	if f.chance(60) {
		c.runs = f.revision()
		f.named[c.runs] = true
	} else {
		c.untold = f.chance(50)
	}
	if f.chance(20) {
		c.made = f.commits
	}
	c.blocked = f.blocked
	f.clusters = append(f.clusters, c)
}

// passes lets time pass, in which the process looks again and again, or none runs.
func (f *fleet) passes(d time.Duration, watched bool) {
	if f.now = f.now.Add(d); watched && !f.dead {
		looked(f.status.Run, f.now)
	}
}

// happen is one thing that happens in the world.
func (f *fleet) happen() {
	switch f.IntN(28) {
	case 0, 1:
		f.commits++
		for _, c := range f.clusters {
			if f.chance(15) {
				c.bad[f.revision()] = true
			}
			if f.chance(5) {
				c.refuses[f.revision()] = true
			}
		}
		f.say("commit %d", f.commits)
	case 2:
		c := f.one()
		if c.lost.IsZero() {
			c.lost = f.now
		} else {
			c.lost = time.Time{}
		}
		f.say("%s lost %v", c.name, !c.lost.IsZero())
	case 3:
		c := f.one()
		c.sick = !c.sick
		f.say("%s sick %v", c.name, c.sick)
	case 4:
		c := f.one()
		c.rolling, c.suspended, c.paused = !c.rolling, f.chance(20), f.chance(50)
		f.say("%s rolling %v, suspended %v, paused %v", c.name, c.rolling, c.suspended, c.paused)
	case 5:
		f.join()
		f.say("joins")
	case 6:
		if len(f.clusters) > 0 {
			f.clusters = slices.Delete(f.clusters, 0, 1)
			f.say("leaves")
		}
	case 7, 8, 9:
		if r := f.status.Run; r != nil && int(r.Wave) < len(r.Terms.Waves) {
			words := r.Revision
			if f.chance(20) {
				words = "main@sha1:another" // for what nobody sees any more
			}
			f.requests.Approvals = append(f.requests.Approvals, rollout.Approval{Wave: r.Terms.Waves[r.Wave].Name, Revision: words, By: "ann"})
			f.approved[r.Terms.Waves[r.Wave].Name+words] = true
			f.say("approve wave %d", r.Wave)
		}
	case 10:
		f.spec.Suspend = !f.spec.Suspend
		f.say("suspend %v", f.spec.Suspend)
	case 11:
		if r := f.status.Run; r != nil && f.chance(30) {
			f.requests.Abort = r.Revision
			f.say("abort")
		}
	case 12:
		f.requests.Retry = strconv.Itoa(f.IntN(1000))
		f.say("retry")
	case 13:
		if r := f.status.Run; r != nil && f.chance(30) {
			f.requests.Revert = r.Revision
			f.say("revert")
		}
	case 14:
		c := f.one()
		c.skip = ""
		if r := f.status.Run; r != nil && f.chance(50) {
			c.skip = r.Revision
		}
		f.say("%s skips %q", c.name, c.skip)
		if f.chance(30) {
			c = f.one()
			c.elsewhere = !c.elsewhere
			f.say("%s elsewhere %v", c.name, c.elsewhere)
		}
	case 15:
		if f.chance(30) {
			suspended := f.spec.Suspend
			f.terms()
			f.spec.Suspend = suspended
			f.say("other terms")
		}
	case 16:
		f.now = f.now.Add(-time.Duration(f.IntN(10)) * time.Minute) // a clock that is set back
		f.say("clock back")
	case 17:
		f.room = f.IntN(4) - 1
		f.say("room %d", f.room)
	case 18:
		c := f.one()
		c.bad, c.refuses = map[string]bool{}, map[string]bool{}
		f.say("%s mended", c.name)
	case 19:
		c := f.one()
		c.wave = strconv.Itoa(f.IntN(5))
		f.say("%s to wave %s", c.name, c.wave)
	case 20:
		c := f.one()
		c.refused = nil
		if f.chance(20) {
			c.refused = map[string]string{f.revision(): "a step over a minor version"}
		}
		f.say("%s refused %v", c.name, c.refused)
	case 21:
		c := f.one()
		if c.known = f.chance(80); !c.known {
			c.pin = nil // a hub that was built again
		}
		f.say("%s known %v", c.name, c.known)
	case 22, 23:
		at := f.now
		if f.chance(10) {
			at = at.Add(time.Duration(f.IntN(300)) * time.Minute) // a clock that is ahead, or a lie
		}
		f.prove(1+f.IntN(f.commits), at)
	case 26:
		if !f.chance(20) {
			break
		}
		for _, c := range f.clusters { // an agent that knows no Rollouts was here for a while
			if c.lost.IsZero() && !c.elsewhere {
				c.runs, c.unpinned = f.revision(), true
			}
		}
		f.named[f.revision()] = true
		f.say("all run %s", f.revision())
	case 27:
		f.blocks(f.chance(30))
		f.say("blocked %v", f.blocked)
	case 24:
		f.failure = f.chance(40)
		f.say("upstream cannot be read %v", f.failure)
	case 25:
		if f.chance(30) {
			f.proofs = f.proofs[min(len(f.proofs), f.IntN(3)):] // an older state of the reference is put back
			f.say("%d proofs stay", len(f.proofs))
		}
		if len(f.proofs) > 0 {
			f.refused[f.proofs[0].Commit] = f.chance(30)
			f.say("%s is off the branch %v", f.proofs[0].Commit, f.refused[f.proofs[0].Commit])
		}
	}
}

// blocks has nothing reach clusters, or all that they may have.
func (f *fleet) blocks(is bool) {
	f.blocked = is
	for _, c := range f.clusters {
		if c.blocked && !is {
			c.reached = f.now
		}
		c.blocked = is
	}
}

// prove is another environment that proves a commit.
func (f *fleet) prove(commit int, at time.Time) {
	at = at.Truncate(time.Second)
	if len(f.proofs) > 0 && !at.After(f.proofs[0].Proven) {
		at = f.proofs[0].Proven.Add(time.Second)
	}
	f.proofs = append([]rollout.Proof{{Commit: fmt.Sprintf("%040d", commit), Run: int64(len(f.proofs)), Proven: at}}, f.proofs...)
	f.say("upstream proves %d at %s", commit, at.Format("15:04"))
}

// upstream are the facts about it.
func (f *fleet) upstream() *rollout.Upstream {
	if !f.settling && f.chance(5) {
		return nil // a process that began a moment ago
	}
	up := &rollout.Upstream{Proofs: slices.Clone(f.proofs), Revisions: map[string]v1alpha1.RolloutRevision{}, Refused: map[string]rollout.Hold{}}
	if f.status.Upstream != nil && f.status.Upstream.Taken != nil && f.status.Candidate != nil {
		up.Taken = f.status.Candidate.DeepCopy()
	}
	if f.failure {
		up.Failure = rollout.Hold{Reason: v1alpha1.ReasonUpstreamUnreadable, Message: "it does not answer"}
	}
	for _, p := range f.proofs {
		if f.refused[p.Commit] {
			up.Refused[p.Commit] = rollout.Hold{Reason: v1alpha1.ReasonUpstreamNotOnBranch, Message: "it is elsewhere"}
		}
		if f.settling || f.chance(80) {
			up.Revisions[p.Commit] = v1alpha1.RolloutRevision{Revision: "main@sha1:" + p.Commit}
		}
	}
	return up
}

// work lets clusters take up what they may have.
func (f *fleet) work() {
	for _, c := range f.clusters {
		if c.slow = c.slow && f.chance(50); c.takes() && f.chance(60) {
			c.unpinned = false
			c.slow = c.slow || c.runs != c.pin.Revision && f.chance(40)
			c.runs = c.pin.Revision
		}
		if c.lost.IsZero() && f.chance(50) {
			c.known = true
		}
	}
}

func (f *fleet) facts() rollout.Facts {
	f.unread = !f.settling && f.chance(5)
	facts := rollout.Facts{UID: "uid", Candidate: &v1alpha1.RolloutRevision{Revision: f.revision()}, Requests: f.requests, Room: f.room, Unread: f.unread}
	if f.blocked {
		facts.Blocked = rollout.Hold{Reason: v1alpha1.ReasonSourceNotReady, Message: "the newest commit does not build"}
	}
	if f.spec.Upstream != nil {
		facts.Upstream = f.upstream()
	}
	for _, c := range f.clusters {
		facts.Clusters = append(facts.Clusters, c.facts())
	}
	return facts
}

// history is one life of a Rollout. It ends in a world that stands still.
func history(seed uint64, length int) (f *fleet, err error) {
	f = newFleet(seed)
	for range length {
		if f.chance(70) {
			f.happen()
		}
		f.work()
		f.passes(time.Duration(f.IntN(20))*time.Minute, f.chance(85))
		d, err := f.decide(f.chance(8))
		if err != nil {
			return f, err
		}
		if d.Status.Run != nil {
			f.say("%s run %d %s wave %d begun %v hold %q pins %d", f.now.Format("15:04"), d.Status.Run.Number, d.Status.Run.Phase, d.Status.Run.Wave, d.Status.Run.Begun, d.Hold.Reason, len(d.Pins))
		}
	}
	return f, f.settle()
}

// TestHistories runs lives of Rollouts: commits, failures, lost clusters, approvals, people
// who change their minds, processes that die, clocks that jump.
// CASCADE_ROLLOUT_HISTORIES is how many, CASCADE_ROLLOUT_SEED repeats one.
func TestHistories(t *testing.T) {
	count := 3000
	if n, err := strconv.Atoi(os.Getenv("CASCADE_ROLLOUT_HISTORIES")); err == nil {
		count = n
	}
	if seed, err := strconv.ParseUint(os.Getenv("CASCADE_ROLLOUT_SEED"), 10, 64); err == nil {
		f, err := history(seed, 60)
		for _, line := range f.trace {
			t.Log(line)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	ends := map[v1alpha1.RolloutPhase]int{}
	runs := 0
	for seed := range uint64(count) {
		f, err := history(seed, 60)
		if err != nil {
			t.Fatalf("%v\nCASCADE_ROLLOUT_SEED=%d shows it", err, seed)
		}
		if f.status.Run == nil {
			ends["none"]++
			continue
		}
		ends[f.status.Run.Phase]++
		runs += int(f.status.Run.Number)
	}
	t.Logf("%d histories, %d runs, ends %v", count, runs, ends)
}
