package status

import (
	"fmt"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRecordAttempt(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	attempt := func(n int, digest, status, revision string) Attempt {
		return Attempt{Digest: digest, Status: status, At: start.Add(time.Duration(n) * time.Minute), Took: time.Duration(n) * time.Second, Revision: revision}
	}
	requested := func(a Attempt) Attempt { a.Requested = true; return a }
	origin := func(a Attempt) Attempt { a.OriginRevision = "o"; return a }
	governed := func(a Attempt) Attempt { a.Rollouts = true; return a }
	for name, tt := range map[string]struct {
		reason   string
		attempts []Attempt
		want     []string // digest status revision first last took total
	}{
		"First":      {reason: "a new entry", attempts: []Attempt{attempt(1, "a", "ok", "1")}, want: []string{"a ok 1 1 1 1 1"}},
		"Repetition": {reason: "an interval without a change writes nothing", attempts: []Attempt{attempt(1, "a", "ok", "1"), attempt(2, "a", "ok", "1")}, want: []string{"a ok 1 1 1 1 1"}},
		"Requested":  {reason: "somebody asked", attempts: []Attempt{attempt(1, "a", "ok", "1"), requested(attempt(2, "a", "ok", "1"))}, want: []string{"a ok 1 1 2 2 2"}},
		"Revision":   {reason: "the same content at another revision is the same entry", attempts: []Attempt{attempt(1, "a", "ok", "1"), attempt(2, "a", "ok", "2")}, want: []string{"a ok 2 1 2 2 2"}},
		"Origin":     {reason: "the origin's revision counts too", attempts: []Attempt{attempt(1, "a", "ok", "1"), origin(attempt(2, "a", "ok", "1"))}, want: []string{"a ok 1o 1 2 2 2"}},
		"Rollouts":   {reason: "and that Rollouts said who has it", attempts: []Attempt{attempt(1, "a", "ok", "1"), governed(attempt(2, "a", "ok", "1"))}, want: []string{"a ok 1 1 2 2 2"}},
		"Failure":    {reason: "another status is another entry", attempts: []Attempt{attempt(1, "a", "ok", "1"), attempt(2, "a", "bad", "1")}, want: []string{"a bad 1 2 2 2 1", "a ok 1 1 1 1 1"}},
		"Return": {reason: "an older entry comes to the front", attempts: []Attempt{attempt(1, "a", "ok", "1"), attempt(2, "b", "ok", "2"), attempt(3, "a", "ok", "3")},
			want: []string{"a ok 3 1 3 3 2", "b ok 2 2 2 2 1"}},
		"Five": {reason: "the oldest go", attempts: []Attempt{attempt(1, "a", "ok", "1"), attempt(2, "b", "ok", "2"), attempt(3, "c", "ok", "3"), attempt(4, "d", "ok", "4"), attempt(5, "e", "ok", "5"), attempt(6, "f", "ok", "6")},
			want: []string{"f ok 6 6 6 6 1", "e ok 5 5 5 5 1", "d ok 4 4 4 4 1", "c ok 3 3 3 3 1", "b ok 2 2 2 2 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var h meta.History
			for _, a := range tt.attempts {
				RecordAttempt(&h, a)
			}
			minute := func(m metav1.Time) int { return int(m.Sub(start) / time.Minute) }
			var got []string
			for _, s := range h {
				got = append(got, fmt.Sprintf("%s %s %s%s %d %d %d %d", s.Digest, s.LastReconciledStatus, s.Metadata["revision"], s.Metadata["originRevision"],
					minute(s.FirstReconciled), minute(s.LastReconciled), int(s.LastReconciledDuration.Seconds()), s.TotalReconciliations))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

// TestBuiltLast: the last attempt tells what was built for Rollouts, as long as all else is as it was.
func TestBuiltLast(t *testing.T) {
	last := Attempt{Digest: "a", Status: "ok", Revision: "1", Rollouts: true, Inputs: "x"}
	for name, tt := range map[string]struct {
		reason string
		change func(*Attempt)
		inputs string
		want   string
	}{
		"Same":     {"all is as it was", func(*Attempt) {}, "x", "1"},
		"Failed":   {"it was built, whatever came of it", func(a *Attempt) { a.Status = "bad" }, "x", "1"},
		"Inputs":   {"it was built with something else", func(*Attempt) {}, "y", ""},
		"Rollouts": {"no Rollout was heeded", func(a *Attempt) { a.Rollouts = false }, "x", ""},
		"Earlier":  {"an earlier version did not say with what", func(a *Attempt) { a.Inputs = "" }, "x", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var h meta.History
			a := last
			tt.change(&a)
			RecordAttempt(&h, a)
			if got := BuiltLast(h, tt.inputs); got != tt.want {
				t.Errorf("%s: %q was built last, want %q", tt.reason, got, tt.want)
			}
		})
	}
	if got := BuiltLast(nil, "x"); got != "" {
		t.Errorf("nothing was tried, and %q was built last", got)
	}
}
