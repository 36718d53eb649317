package plan

import (
	"testing"
	"time"
)

// TestFirstSeed: only a child that is certainly new creates Clusters without approval.
func TestFirstSeed(t *testing.T) {
	settled := time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)
	fresh := FirstSeed{Made: settled.Add(time.Hour), Settled: settled, Identity: "one"}
	for _, c := range []struct {
		reason string
		change func(*FirstSeed)
		want   bool
	}{
		{"a Cluster that was made here, of a new name", func(*FirstSeed) {}, true},
		{"an agent was pushed to this very cluster, and its record was deleted (read 839)", func(f *FirstSeed) { f.Remembered, f.Before = true, "one" }, false},
		{"the master was lost with its etcd, its Cluster was not", func(f *FirstSeed) { f.Remembered, f.Before = true, "lost" }, false},
		{"a Cluster of this name was only seen while it was moved here", func(f *FirstSeed) { f.Remembered = true }, false},
		{"it has another name than the one that was lost, and a person says so", func(f *FirstSeed) { f.Replaces = true }, false},
		{"a Child that a person wrote", func(f *FirstSeed) { f.Made = time.Time{} }, false},
		{"the parent was lost as well, and is in its first sync", func(f *FirstSeed) { f.Settled = time.Time{} }, false},
		{"the parent was lost as well, and its Clusters were restored", func(f *FirstSeed) { f.Made = settled.Add(-time.Minute) }, false},
		{"in the same second nobody knows which was first", func(f *FirstSeed) { f.Made = settled }, false},
	} {
		facts := fresh
		c.change(&facts)
		if may, why := facts.MayCreate(); may != c.want || why == "" {
			t.Errorf("%s: %v, %s", c.reason, may, why)
		}
	}
}
