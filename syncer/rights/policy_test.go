package rights

import (
	"testing"
	"time"
)

// noon is when tests begin.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// TestNews: what changes at the same time is one reason to ask, about the namespaces in
// which it changed, and is never put off for long.
func TestNews(t *testing.T) {
	type change struct {
		after     time.Duration
		rights    bool
		namespace string
	}
	for name, tc := range map[string]struct {
		reason  string
		changes []change
		due     time.Duration // -1: never
		rights  bool
		concern map[string]bool
	}{
		"None":    {reason: "nothing happened", due: -1, concern: map[string]bool{"a": false, "": false}},
		"One":     {"a binding of a namespace", []change{{0, true, "a"}}, quiet, true, map[string]bool{"a": true, "b": false, "": false}},
		"All":     {"a ClusterRole", []change{{0, true, "a"}, {0, true, ""}}, quiet, true, map[string]bool{"a": true, "b": true, "": true}},
		"After":   {"what is about all stays so", []change{{0, true, ""}, {0, true, "a"}}, quiet, true, map[string]bool{"b": true}},
		"Quiet":   {"a binding that is made again", []change{{0, true, "a"}, {time.Second, true, "a"}}, time.Second + quiet, true, map[string]bool{"a": true}},
		"Account": {"an account gives no right", []change{{0, false, ""}}, quiet, false, map[string]bool{"a": false, "": false}},
		"Restless": {"changes without an end", []change{{0, true, "a"}, {4 * time.Second, true, "a"}, {9 * time.Second, true, "b"}, {9500 * time.Millisecond, true, "a"}},
			patience, true, map[string]bool{"a": true, "b": true}},
	} {
		t.Run(name, func(t *testing.T) {
			n := news{}
			for _, c := range tc.changes {
				n.add(noon.Add(c.after), c.rights, c.namespace)
			}
			want := noon.Add(tc.due)
			if tc.due < 0 {
				want = time.Time{}
			}
			if got := n.due(); !got.Equal(want) {
				t.Errorf("%s: due at %s, want %s", tc.reason, got, want)
			}
			if n.ofRights() != tc.rights {
				t.Errorf("%s: of rights %t", tc.reason, n.ofRights())
			}
			for namespace, want := range tc.concern {
				if got := n.concern(namespace); got != want {
					t.Errorf("%s: concerns namespace %q: %t", tc.reason, namespace, got)
				}
			}
		})
	}
}

// TestNewsOfMany: more namespaces than can be told apart are all.
func TestNewsOfMany(t *testing.T) {
	n := news{}
	for i := range mostPlaces + 1 {
		n.add(noon, true, time.Duration(i).String())
	}
	if !n.all || len(n.places) > 0 {
		t.Errorf("%d places are kept, all %t", len(n.places), n.all)
	}
}

func TestRest(t *testing.T) {
	for _, tc := range []struct {
		reason     string
		took, want time.Duration
	}{
		{"a few questions", 10 * time.Millisecond, 40 * time.Millisecond},
		{"thousands of accounts", 5 * time.Second, 20 * time.Second},
		{"within a minute all the same", 30 * time.Second, mostRest},
	} {
		if got := restAfter(noon, noon.Add(tc.took)).Sub(noon.Add(tc.took)); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.reason, got, tc.want)
		}
	}
}

func TestJudge(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		known  standing
		denied bool
		want   verdict
	}{
		"Fine":     {"nothing was refused, nothing is denied", standing{}, false, same},
		"Lost":     {"what was applied is denied", standing{}, true, lost},
		"Still":    {"what was refused is denied", standing{refused: true}, true, same},
		"Regained": {"what was refused is allowed", standing{refused: true}, false, regained},
		"Vain":     {"it was tried a moment ago, in vain", standing{refused: true, mistaken: 1, at: noon.Add(-time.Second)}, false, later},
		"Again":    {"it was tried a while ago", standing{refused: true, mistaken: 1, at: noon.Add(-regainPause)}, false, regained},
		"Often":    {"it was tried often", standing{refused: true, mistaken: 3, at: noon.Add(-regainPause)}, false, later},
		"LostSoon": {"a right that is lost is never told late", standing{mistaken: 3, at: noon}, true, lost},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.known.judge(tc.denied, noon); got != tc.want {
				t.Errorf("%s: judge() = %d, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

func TestTried(t *testing.T) {
	before, after := noon.Add(-time.Second), noon.Add(time.Second)
	for name, tc := range map[string]struct {
		reason   string
		known    standing
		began    time.Time
		refused  bool
		check    bool
		told     verdict
		mistaken int
	}{
		"Fine":      {reason: "nothing was told", began: before},
		"Refused":   {reason: "the right is gone, as told", known: standing{told: lost, at: noon}, began: after, refused: true},
		"Mistaken":  {reason: "it was applied all the same", known: standing{told: lost, at: noon}, began: after, mistaken: 1},
		"UnderWay":  {reason: "a reconcile was under way, which sent some objects before the right was lost", known: standing{told: lost, at: noon}, began: before, check: true, told: lost},
		"Early":     {reason: "a reconcile that was under way met the refusal", known: standing{told: lost, at: noon}, began: before, refused: true},
		"Regained":  {reason: "the right is back, as told", known: standing{refused: true, told: regained, at: noon, mistaken: 2}, began: after},
		"Vain":      {reason: "it is refused for another reason", known: standing{refused: true, told: regained, at: noon}, began: after, refused: true, mistaken: 1},
		"StillVain": {reason: "a retry of its own is no proof", known: standing{refused: true, at: noon, mistaken: 1}, began: after, refused: true, mistaken: 1},
		"NotYet":    {reason: "the reconcile that was asked for is still to come", known: standing{refused: true, told: regained, at: noon}, began: before, refused: true, told: regained},
		"Bounded":   {reason: "pauses have an end", known: standing{told: lost, at: noon, mistaken: mostMistaken}, began: after, mistaken: mostMistaken},
	} {
		t.Run(name, func(t *testing.T) {
			s := tc.known
			if check := s.tried(tc.began, tc.refused); check != tc.check {
				t.Errorf("%s: tried() = %t", tc.reason, check)
			}
			if s.refused != tc.refused || s.told != tc.told || s.mistaken != tc.mistaken {
				t.Errorf("%s: it is %+v", tc.reason, s)
			}
		})
	}
}

func TestPeriod(t *testing.T) {
	for _, tc := range []struct {
		reason              string
		questions, mistaken int
		want                time.Duration
	}{
		{"few questions", 5, 0, period},
		{"as many as the pace allows", pace * 45, 0, period},
		{"too many for a minute", pace * 600, 0, 10 * time.Minute},
		{"what comes out wrong comes seldom", 5, 2, 4 * period},
	} {
		if got := (&standing{mistaken: tc.mistaken}).periodOf(tc.questions); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.reason, got, tc.want)
		}
	}
}
