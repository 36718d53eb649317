package management

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestTurns: whoever takes long each time, on purpose or not, has no more time than each of the others,
// and whoever does not come any more keeps nobody waiting.
func TestTurns(t *testing.T) {
	type child struct {
		// takes is how long a turn is, again how soon it comes for another one, and until when it comes.
		takes, again, until time.Duration
		fails               bool
	}
	const minute = time.Minute
	quick := child{3 * time.Second, time.Second, time.Hour, false}
	slow := child{2 * minute, 30 * time.Second, time.Hour, true}
	for name, tt := range map[string]struct {
		reason   string
		children []child
		// least is the share of the time that the first one has at least.
		least float64
	}{
		"Alone":   {"there is nobody to wait for", []child{quick}, 0.7},
		"Alike":   {"each has as much", []child{quick, quick, quick}, 0.25},
		"Slow":    {"one that takes two minutes each time has half of the time, not all", []child{quick, slow}, 0.35},
		"Slows":   {"nor do three of them", []child{quick, slow, slow, slow}, 0.2},
		"IsSlow":  {"what takes long goes on beside what does not", []child{slow, quick, quick}, 0.25},
		"Deleted": {"who does not come any more", []child{slow, {3 * time.Second, time.Second, minute, false}}, 0.6},
	} {
		t.Run(name, func(t *testing.T) {
			var is turns
			now := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
			began := now
			name := func(i int) types.NamespacedName { return types.NamespacedName{Name: string(rune('a' + i))} }
			next, had := make([]time.Time, len(tt.children)), make([]time.Duration, len(tt.children))
			by, ends := -1, now
			for ; now.Sub(began) < time.Hour; now = now.Add(time.Second) {
				if by >= 0 && !now.Before(ends) {
					c := tt.children[by]
					is.end(now, !c.fails)
					had[by] += c.takes
					next[by], by = now.Add(c.again), -1
				}
				for i, c := range tt.children {
					if i == by || now.Before(next[i]) || now.Sub(began) > c.until {
						continue
					}
					next[i] = now.Add(runPause)
					if waits, _ := is.waits(name(i), now); waits {
						continue
					}
					if ok, _ := is.begin(name(i), now); ok {
						if by >= 0 {
							t.Fatalf("%s: two at a time", tt.reason)
						}
						by, ends = i, now.Add(c.takes)
					}
				}
			}
			if share := had[0].Seconds() / time.Hour.Seconds(); share < tt.least {
				t.Errorf("%s: the first one has %.2f of the time, want at least %.2f; all have %v", tt.reason, share, tt.least, had)
			}
		})
	}
}
