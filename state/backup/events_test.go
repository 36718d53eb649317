package backup

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestEvents: that a backup failed, and that the last one is too old, is one event each.
func TestEvents(t *testing.T) {
	b := newBench(t, nil)
	expect := func(when string, want ...string) {
		t.Helper()
		var got []string
		for len(b.events.Events) > 0 {
			words := strings.Fields(<-b.events.Events)
			got = append(got, words[0]+" "+words[1])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	step := func(d time.Duration) {
		t.Helper()
		b.now = b.now.Add(d)
		_, _, _ = b.reconcile() // what became of it is in the events
	}
	step(0)
	expect("a version is saved", "Normal Succeeded")
	step(time.Hour)
	expect("it is the present state")
	b.broken = errors.New("the server answered 503")
	step(time.Hour)
	step(time.Minute)
	expect("backups fail", "Warning DestinationFailed")
	step(4 * time.Hour)
	step(time.Minute)
	expect("the last one is too old", "Warning BackupStale")
	b.broken = nil
	step(time.Minute)
	expect("it is the present state again", "Normal Succeeded")
}
