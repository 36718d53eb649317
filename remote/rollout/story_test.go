package rollout_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

const (
	first  = "main@sha1:1111111111111111111111111111111111111111"
	second = "main@sha1:2222222222222222222222222222222222222222"
	third  = "main@sha1:3333333333333333333333333333333333333333"
	fourth = "main@sha1:4444444444444444444444444444444444444444"
)

// story drives a Rollout step by step. Each cluster has a name, which is its wave's with a
// digit.
type story struct {
	t      *testing.T
	spec   v1alpha1.RolloutSpec
	status v1alpha1.RolloutStatus
	now    time.Time
	facts  rollout.Facts
	last   rollout.Decision
}

func wave(name string, concurrent, failures int) v1alpha1.RolloutWave {
	return v1alpha1.RolloutWave{Name: name, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"wave": name}},
		MaxConcurrent: intstr.FromInt32(int32(concurrent)), MaxFailures: intstr.FromInt32(int32(failures))}
}

// begin is a story of clusters that run the first revision.
func begin(t *testing.T, waves []v1alpha1.RolloutWave, names ...string) *story {
	s := &story{t: t, now: time.Unix(1_700_000_000, 0), facts: rollout.Facts{UID: "uid", Room: -1, Candidate: &v1alpha1.RolloutRevision{Revision: first}}}
	s.spec = v1alpha1.RolloutSpec{Waves: waves, Deadline: metav1.Duration{Duration: 10 * time.Minute}}
	for _, name := range names {
		s.facts.Clusters = append(s.facts.Clusters, rollout.Cluster{Name: name, UID: types.UID(name), Labels: map[string]string{"wave": name[:len(name)-1]}, Known: true,
			Has: &v1alpha1.RolloutRevision{Revision: first}, Healthy: true, Ready: true})
	}
	s.decide()
	s.after(24 * time.Hour)
	s.decide()
	s.phase(v1alpha1.RolloutCompleted)
	return s
}

// decide decides, and puts on record what was.
func (s *story) decide() {
	s.t.Helper()
	if up := s.facts.Upstream; up != nil && s.status.Upstream != nil && s.status.Upstream.Taken != nil {
		up.Taken = s.status.Candidate.DeepCopy()
	}
	s.last = rollout.Next("base", &s.spec, &s.status, s.facts, s.now)
	s.status = s.last.Status
	for _, p := range s.last.Pins {
		p.ChildRollout = p.Given(s.facts.Clusters)
		c := s.cluster(p.Cluster)
		if c.Pin == nil || c.Pin.RolloutRevision != p.RolloutRevision {
			c.Ready = c.Has != nil && *c.Has == p.RolloutRevision && c.Healthy
		}
		c.Pin = &p.ChildRollout
	}
}

// after lets time pass, in which a process looks again and again.
func (s *story) after(d time.Duration) {
	s.now = s.now.Add(d)
	looked(s.status.Run, s.now)
}

// unwatched lets time pass in which no process looks.
func (s *story) unwatched(d time.Duration) { s.now = s.now.Add(d) }

// looked puts on record that somebody looked a moment ago.
func looked(run *v1alpha1.RolloutRun, now time.Time) {
	if run != nil && run.LookedAt != nil {
		at := metav1.NewTime(now)
		run.LookedAt = &at
	}
}

func (s *story) commit(revision string) {
	s.facts.Candidate = &v1alpha1.RolloutRevision{Revision: revision}
}

func (s *story) cluster(name string) *rollout.Cluster {
	return &s.facts.Clusters[slices.IndexFunc(s.facts.Clusters, func(c rollout.Cluster) bool { return c.Name == name })]
}

// takes lets clusters become ready, or not, at what they may have.
func (s *story) takes(ready bool, names ...string) {
	for _, name := range names {
		c := s.cluster(name)
		c.Has, c.Healthy, c.Ready = &c.Pin.RolloutRevision, ready, ready
	}
}

// at expects the clusters that may have a revision, sorted by name.
func (s *story) at(revision string, names ...string) {
	s.t.Helper()
	var got []string
	for _, c := range s.facts.Clusters {
		if c.Pin != nil && c.Pin.Revision == revision {
			got = append(got, c.Name)
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(names, got); d != "" {
		s.t.Fatalf("may have %s (-want +got):\n%s", revision, d)
	}
}

func (s *story) phase(want v1alpha1.RolloutPhase) {
	s.t.Helper()
	if got := s.status.Run.Phase; got != want {
		s.t.Fatalf("the run is %s, held for %+v, want %s", got, s.last.Hold, want)
	}
}

func (s *story) held(reason string) {
	s.t.Helper()
	if s.last.Hold.Reason != reason {
		s.t.Fatalf("held for %+v, want %q", s.last.Hold, reason)
	}
}

// says expects a hold with its message.
func (s *story) says(reason, message string) {
	s.t.Helper()
	if want := (rollout.Hold{Reason: reason, Message: message}); s.last.Hold != want {
		s.t.Fatalf("held for %+v, want %+v", s.last.Hold, want)
	}
}

// hash is the commit of a revision.
func hash(revision string) string { return revision[len("main@sha1:"):] }

// upstream has the Rollout take only what another environment ran for so long.
func (s *story) upstream(age time.Duration) {
	s.spec.Upstream = &v1alpha1.RolloutUpstream{Name: "staging", MinAge: &metav1.Duration{Duration: age}}
	s.facts.Upstream = &rollout.Upstream{Revisions: map[string]v1alpha1.RolloutRevision{}}
}

// proves has the other environment prove a revision.
func (s *story) proves(revision string, at time.Time) {
	up := s.facts.Upstream
	up.Proofs = append([]rollout.Proof{{Commit: hash(revision), Run: int64(len(up.Proofs)), Proven: at}}, up.Proofs...)
	up.Revisions[hash(revision)] = v1alpha1.RolloutRevision{Revision: revision}
}

// waits expects why what was proven is not the candidate.
func (s *story) waits(reason string) {
	s.t.Helper()
	if s.last.Upstream.Reason != reason {
		s.t.Fatalf("upstream is held for %+v, want %q", s.last.Upstream, reason)
	}
}

// approvedRest are canaryAndRest, of which the rest needs an approval.
func approvedRest() []v1alpha1.RolloutWave {
	w := canaryAndRest()
	w[1].Approval = v1alpha1.ApprovalRequired
	return w
}
