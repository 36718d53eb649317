package remote

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// restarted is a process that began a moment ago, with a Rollout whose candidate another one
// chose.
type restarted struct {
	*Rollouts
	o    *v1alpha1.Rollout
	m    *moved
	now  time.Time
	from source.Key
}

func newRestarted(t *testing.T, candidate map[string]string) *restarted {
	s := &restarted{now: time.Unix(1_700_000_000, 0), from: source.Key{Kind: "GitRepository", NamespacedName: types.NamespacedName{Namespace: "fleet", Name: "fleet"}}}
	s.Rollouts = &Rollouts{Snapshots: source.NewSnapshots(), contents: &contents{}, templates: &templates{}, Now: func() time.Time { return s.now }}
	layer := layerOn("base")
	layer.UID, layer.Generation, layer.Spec.Path = "1", 1, "base"
	s.m = &moved{layer: layer, from: s.from}
	s.o = &v1alpha1.Rollout{}
	s.o.Namespace, s.o.Name = "fleet", "base"
	s.o.Status.Candidate = &v1alpha1.RolloutRevision{Revision: "c7"}
	s.o.Status.CandidateDigest = snapshotOf(t, candidate).Digest
	s.Snapshots.Retain(source.Holder{Kind: "Rollout", NamespacedName: client.ObjectKeyFromObject(s.o)}, source.Pinned{Key: s.from, Revision: "c7"})
	return s
}

// newer reports whether the newest snapshot is another candidate.
func (s *restarted) newer(t *testing.T) (bool, error) {
	t.Helper()
	touched, err := s.touches(t.Context(), s.o, s.m, s.Snapshots.Get(s.from), s.o.Status.Candidate)
	if err != nil && !errors.Is(err, errUnread) {
		t.Fatal(err)
	}
	return err == nil && touched != s.o.Status.CandidateDigest, err
}

// TestCandidateAfterRestart: what touches nothing that the layer reads is no candidate, also for
// a process that has pushed nothing yet. It would begin a run, and bring back what was aborted.
func TestCandidateAfterRestart(t *testing.T) {
	files := func(base, other string) map[string]string {
		return map[string]string{"base/cm.yaml": base, "other/cm.yaml": other}
	}
	const one = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: one\n"
	for _, tt := range []struct {
		reason            string
		candidate, newest map[string]string
		want              bool
	}{
		{"it touches another directory", files(one, "a"), files(one, "b"), false},
		{"it touches what the layer reads", files(one, "a"), files(one+"  namespace: two\n", "a"), true},
		{"the candidate cannot be built, and it does not mend that", files("kind: [", "a"), files("kind: [", "b"), false},
		{"the candidate cannot be built, and it does", files("kind: [", "a"), files(one, "a"), true},
	} {
		t.Run(tt.reason, func(t *testing.T) {
			s := newRestarted(t, tt.candidate)
			s.Snapshots.Put(s.from, snapshotOf(t, tt.newest).Named("c8"))
			if newer, err := s.newer(t); newer || err == nil {
				t.Fatalf("the candidate was not fetched yet, and another one is newer: %v, %v", newer, err)
			}
			s.Snapshots.Keep(s.from, snapshotOf(t, tt.candidate).Named("c7"))
			if newer, err := s.newer(t); newer != tt.want || err != nil {
				t.Errorf("is newer: %v, %v", newer, err)
			}
			if len(s.unread) > 0 {
				t.Error("it was read, and counts as not read")
			}
		})
	}
	t.Run("the candidate is the newest", func(t *testing.T) {
		s := newRestarted(t, files(one, "a"))
		s.Snapshots.Put(s.from, snapshotOf(t, files(one, "a")).Named("c7"))
		if newer, err := s.newer(t); newer || err != nil {
			t.Errorf("is newer: %v, %v", newer, err)
		}
	})
}

// TestObservedRevision: what changes nothing for the clusters is known to have been looked at, and
// what cannot be looked at is not.
func TestObservedRevision(t *testing.T) {
	s := newRestarted(t, nil)
	s.m = &moved{from: s.from}
	s.o.Spec.Paths = []string{"base"}
	s.o.Status = v1alpha1.RolloutStatus{}
	for _, step := range []struct {
		reason, revision    string
		files               map[string]string
		candidate, observed string
	}{
		{"the first one", "c7", map[string]string{"base/a": "1", "other": "1"}, "c7", "c7"},
		{"it touches nothing", "c8", map[string]string{"base/a": "1", "other": "2"}, "c7", "c8"},
		{"nor does this", "c9", map[string]string{"base/a": "1", "other": "3"}, "c7", "c9"},
		{"nothing is fetched, as after a restart", "", nil, "c7", "c9"},
		{"it touches something", "d1", map[string]string{"base/a": "2", "other": "3"}, "d1", "d1"},
	} {
		if step.revision == "" {
			s.Snapshots = source.NewSnapshots()
		} else {
			s.Snapshots.Put(s.from, snapshotOf(t, step.files).Named(step.revision))
		}
		s.m.unread = false
		is, touched, observed, err := s.candidate(t.Context(), s.o, s.m)
		if s.m.unread != (step.revision == "") {
			t.Errorf("%s: nobody could look at the newest one: %t", step.reason, s.m.unread)
		}
		if err != nil || is.Revision != step.candidate || observed != step.observed {
			t.Fatalf("%s: candidate %v, observed %q (%v), want %q and %q", step.reason, is, observed, err, step.candidate, step.observed)
		}
		s.o.Status.Candidate, s.o.Status.CandidateDigest, s.o.Status.ObservedRevision = is, touched, observed
	}
}

// TestCandidateThatIsGone: a candidate that nobody can fetch, or that no process can build, does
// not stay for good.
func TestCandidateThatIsGone(t *testing.T) {
	files := func(other string) map[string]string {
		return map[string]string{"base/kustomization.yaml": "namePrefix: a-\nresources: [cm.yaml]\n", "base/cm.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: one\n", "other": other}
	}
	for _, tt := range []struct {
		reason string
		before func(s *restarted)
	}{
		{"it cannot be fetched", func(s *restarted) { s.Snapshots.Fail(s.from, "c7", errors.New("it is gone")) }},
		{"its build has no answer", func(s *restarted) {
			s.Snapshots.Keep(s.from, snapshotOf(t, files("a")).Named("c7"))
			s.workers = silent{}
		}},
	} {
		s := newRestarted(t, files("a"))
		s.Snapshots.Put(s.from, snapshotOf(t, files("b")).Named("c8"))
		tt.before(s)
		for range 3 {
			if newer, err := s.newer(t); newer || err == nil || s.m.again <= 0 || s.m.again > unreadMost {
				t.Errorf("%s: another one is newer: %v, %v, and it is looked at after %s", tt.reason, newer, err, s.m.again)
			}
			s.now = s.now.Add(unreadMost/2 - time.Second)
		}
		if newer, err := s.newer(t); !newer || err != nil {
			t.Errorf("%s: another one is newer after %s: %v, %v", tt.reason, unreadMost, newer, err)
		}
	}
}

// silent are workers that have no time.
type silent struct{}

func (silent) Run(context.Context, worker.Job) ([]byte, error) { return nil, worker.ErrUnavailable }
