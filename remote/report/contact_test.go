package report

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLost(t *testing.T) {
	const interval = 45 * time.Second
	now := start.Time
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	recorded := metav1.NewTime(ago(time.Hour))
	for name, tc := range map[string]struct {
		reason  string
		contact Contact
		want    time.Time
		wait    time.Duration
	}{
		"Alive":    {"nothing is recorded at rest", Contact{Heard: ago(time.Second), Proven: true}, time.Time{}, 0},
		"Asleep":   {"an observe interval that is long is no silence", Contact{Heard: ago(time.Hour), Proven: true}, time.Time{}, 0},
		"Lost":     {"a short outage leaves the rows as they are; the moment comes in the time that is left", Contact{Heard: ago(time.Minute), Proven: true, Broken: true}, time.Time{}, Patience(interval) - time.Minute},
		"Edge":     {"the third interval is about to end", Contact{Heard: ago(Patience(interval)), Proven: true, Broken: true}, ago(Patience(interval)).Truncate(time.Second), 0},
		"Dead":     {"the same time whenever it is asked", Contact{Recorded: &recorded, Heard: recorded.Time, Proven: true, Broken: true}, recorded.Time, 0},
		"Back":     {"it was heard of again", Contact{Recorded: &recorded, Heard: ago(0), Proven: true}, time.Time{}, 0},
		"Restart":  {"a process that began just now knows no better than what is recorded", Contact{Recorded: &recorded, Heard: ago(0), Broken: true}, recorded.Time, 0},
		"OneLook":  {"one look at a lease does not show that its holder is alive", Contact{Recorded: &recorded, Heard: ago(0)}, recorded.Time, 0},
		"BrokenAt": {"lost for the second time: the new time counts after three intervals", Contact{Recorded: nil, Heard: ago(10 * time.Minute), Proven: true, Broken: true}, ago(10 * time.Minute), 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, wait := tc.contact.Lost(interval, now)
			if got == nil != tc.want.IsZero() || got != nil && !got.Time.Equal(tc.want) || wait != tc.wait {
				t.Errorf("%s\nLost() = %v, %s, want %s, %s", tc.reason, got, wait, tc.want, tc.wait)
			}
		})
	}
}
