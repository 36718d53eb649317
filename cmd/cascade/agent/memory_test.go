package agent

import "testing"

func TestPace(t *testing.T) {
	const work, wait = 8 << 20, 20 << 10
	looks := func(n int, allocates uint64) []uint64 {
		list := make([]uint64, n)
		for i := range list {
			list[i] = allocates
		}
		return list
	}
	for _, tc := range []struct {
		reason string
		live   uint64
		looks  []uint64
		want   int
		over   bool
	}{
		{"a start is work", 8 << 20, looks(1, work), gcBusy, false},
		{"a pause within a burst is part of it", 8 << 20, append(looks(1, work), looks(calmLooks-1, wait)...), gcBusy, false},
		{"a burst is over when nothing was done for a while", 8 << 20, append(looks(1, work), looks(calmLooks, wait)...), gcCalm, true},
		{"it is over once", 8 << 20, append(looks(1, work), looks(calmLooks+1, wait)...), gcCalm, false},
		{"work is seen at the next look", 8 << 20, append(looks(calmLooks, wait), work), gcBusy, false},
		{"a large heap is not doubled", largeHeap, looks(2, 2*work), gcPercent, false},
		{"little garbage gathers in a large heap that waits", largeHeap, append(looks(1, 2*work), looks(calmLooks, wait)...), gcWaits, true},
		{"many children to look after are no work", 4 * largeHeap, looks(1, work), gcWaits, false},
		{"half of a heap of thousands of children is more than a tier has beside it", 10 * largeHeap, looks(2, 10*largeHeap), gcCalm, false},
		{"a heap between the two", 7 * largeHeap, looks(2, 7*largeHeap), 42, false},
		{"to collect again and again is work", 4 * largeHeap, looks(4*rateOver, 28<<20), gcPercent, false},
		{"thousands of children at rest are no work", 4 * largeHeap, looks(4*rateOver, 10<<20), gcCalm, false},
		{"an agent that waits has no burst that could end", 8 << 20, looks(2*calmLooks, wait), gcWaits, false},
		{"a heap that waits is not collected all the time", 8 << 20, looks(4*rateOver, busyBytes/2), gcCalm, false},
		{"the longer it waits the less gathers", 8 << 20, append(looks(1, work), looks(6*rateOver, wait)...), gcWaits, false},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			var p pace
			var percent int
			var over bool
			h := heap{live: tc.live}
			for _, n := range tc.looks {
				h.allocated += n
				percent, over = p.look(h)
			}
			if percent != tc.want || over != tc.over {
				t.Errorf("look() = %d, %t, want %d, %t", percent, over, tc.want, tc.over)
			}
		})
	}
}

func TestLimitOf(t *testing.T) {
	for _, tc := range []struct {
		reason string
		h      heap
		want   int64
	}{
		{"an agent that has nothing may have the limit", heap{}, softLimit},
		{"what fits is no reason for more", heap{live: 110 << 20, beside: 40 << 20}, softLimit},
		{"a large tier has room for garbage besides what it uses", heap{live: 300 << 20, beside: 60 << 20}, 512 << 20},
		{"a little more is the same limit", heap{live: 301 << 20, beside: 60 << 20}, 512 << 20},
		// A thousand children that were being seeded: with 256 MiB a collection was due as soon as
		// the one before was over.
		{"what is in use fits beside free places and stacks, and some garbage with it", heap{live: 130 << 20, beside: 140 << 20}, 320 << 20},
	} {
		if got := limitOf(tc.h); got != tc.want {
			t.Errorf("%s: limitOf(%d, %d) = %d, want %d", tc.reason, tc.h.live>>20, tc.h.beside>>20, got>>20, tc.want>>20)
		}
		// What the runtime lets the heap grow to.
		if goal := limitOf(tc.h) - int64(tc.h.beside); goal < int64(tc.h.live+tc.h.live/5) {
			t.Errorf("%s: %d MiB in use may grow to %d", tc.reason, tc.h.live>>20, goal>>20)
		}
	}
}

// TestReadHeap: the runtime has what is asked for.
func TestReadHeap(t *testing.T) {
	before := readHeap()
	kept := make([]byte, 4<<20)
	after := readHeap()
	if after.beside == 0 || after.beside > 4<<30 {
		t.Errorf("%d bytes count besides what is in use", after.beside)
	}
	if grown := after.allocated - before.allocated; grown < uint64(len(kept)) {
		t.Errorf("%d bytes more are told after %d were allocated", grown, len(kept))
	}
}
