package agent

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/cascade-gitops/cascade/syncer/footprint"
)

// Times after which memory that was needed only for a while is given back.
const (
	firstRelease = 2 * time.Second
	nextRelease  = 30 * time.Minute
	// Pages of the program that only a burst of work used are given back this often.
	pagesRelease = 15 * time.Second
	// A burst of work leaves memory that is free but not given back. It is given back
	// when the burst is over, if it is worth a collection: so much, and this share of what is
	// in use.
	spareBytes = 4 << 20
	spareShare = 4
)

// How much garbage may gather, in percent of the memory in use; GOGC in the environment
// overrides this. The agent shares small machines. What it holds while it waits counts,
// and so does the processor time of collecting while it works on a small heap.
const (
	gcPercent = 50
	gcBusy    = 100
	// largeHeap is a heap of which a second one would not be small any more.
	largeHeap = 64 << 20
	// mostGarbage is the most that gathers while it works, unless gcCalm percent are more: what
	// is in use is then so much that half of it again would be what a tier runs out of.
	mostGarbage = 192 << 20
	// gcCalm is the most for a heap that waits: half of a large one as garbage would be tens of
	// megabytes.
	gcCalm = 30
	// gcWaits is the least for a heap that waits. As much gathers as is allocated in
	// gathersFor: to collect the 100 MB of a thousand children takes a seventh of a second, a
	// fiftieth of a processor if it is done that often.
	gcWaits    = 10
	gathersFor = 8 * time.Second
	// rateOver is how many looks the rate of allocation is averaged over.
	rateOver = 16
	// An agent that works allocates between two looks busyBytes, or this share of a large
	// heap. One that waits allocates some ten kilobytes, and with a thousand children to
	// compare with their layers some ten megabytes.
	busyBytes = 1 << 20
	busyShare = 4
	busyLook  = time.Second
	// It works, too, if gcCalm percent gather within gathersBusy again and again. Where the
	// machine is slow for the fleet that it seeds, it spent half of its processor time on
	// collecting.
	gathersBusy = 4 * time.Second
	// calmLooks is how many looks without work end a burst.
	calmLooks = 10
	// softLimit is the memory, besides that of the workers, above which the runtime
	// collects whenever it has to, and gives back at once what is free; GOMEMLIMIT in the
	// environment overrides it. Many sources that are large at the same moment make
	// much garbage. A tier that needs more has besides what is in use as much again as
	// gcPercent lets gather, and roomAbove, in steps of limitStep: a sixth instead of
	// half made ten thousand Kustomizations spend two thirds of their processor time on
	// collecting.
	softLimit = 224 << 20
	roomAbove = 48 << 20
	limitStep = 16 << 20
	// The runtime takes all that is no object for lost to the limit, free places between
	// objects too, and collects without end if what is in use does not fit beside it. So
	// gcLeast percent of what is in use may always gather, and roomBeside is for what else
	// grows until the next look.
	gcLeast    = 25
	roomBeside = 16 << 20
)

// limitOf is the soft limit of memory for what the last collection found.
func limitOf(h heap) int64 {
	wanted := max(h.live+h.live*gcPercent/100+roomAbove, h.live+h.live*gcLeast/100+h.beside+roomBeside)
	return max(softLimit, int64((wanted+limitStep-1)/limitStep*limitStep))
}

// heap is what the runtime tells of its memory, in bytes.
type heap struct {
	// live is what the last collection found in use, allocated everything that was
	// allocated since the start, spare what is free and not given back. beside is all that
	// counts against the limit besides what is live and what is free: stacks, the runtime's own,
	// free places between objects, and what was allocated since.
	live, allocated, spare, beside uint64
}

func readHeap() heap {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(samples)
	var h heap
	var total, released uint64
	for i, to := range []*uint64{&h.live, &h.allocated, &h.spare, &total, &released} {
		if samples[i].Value.Kind() == metrics.KindUint64 {
			*to = samples[i].Value.Uint64()
		}
	}
	if other := released + h.spare + h.live; total > other {
		h.beside = total - other
	}
	return h
}

// pace chooses how often garbage is collected, by what the heap did since the look
// before.
type pace struct {
	allocated uint64
	// rate is how many bytes are allocated between two looks, averaged.
	rate float64
	busy bool
	calm int
}

// look returns the percentage from now on, and whether a burst of work has just ended.
func (p *pace) look(h heap) (percent int, over bool) {
	p.calm++
	allocated := h.allocated - p.allocated
	p.rate += (float64(allocated) - p.rate) / rateOver
	if allocated >= max(busyBytes, h.live/busyShare) || p.gathers(gathersBusy) > float64(h.live)*gcCalm/100 {
		p.calm, p.busy = 0, true
	}
	p.allocated = h.allocated
	if p.busy && p.calm >= calmLooks {
		p.busy, over = false, true
	}
	switch {
	case !p.busy:
		return p.waits(h.live), over
	case h.live < largeHeap:
		return gcBusy, false
	}
	return max(gcCalm, min(gcPercent, int(mostGarbage*100/h.live))), false
}

// waits is the percentage for a heap that waits, in steps of gcWaits.
func (p *pace) waits(live uint64) int {
	for percent := gcWaits; percent < gcCalm; percent += gcWaits {
		if p.gathers(gathersFor) <= float64(live)*float64(percent)/100 {
			return percent
		}
	}
	return gcCalm
}

// gathers is how much is allocated in a time.
func (p *pace) gathers(within time.Duration) float64 {
	return p.rate * within.Seconds() / busyLook.Seconds()
}

// worth reports whether memory that is free at the end of a burst is worth a collection that
// gives it back.
func (h heap) worth() bool { return h.spare >= max(spareBytes, h.live/spareShare) }

// frugal keeps the process's memory small. Start returns when the context ends.
type frugal struct{ now func() time.Time }

// Start implements controller-runtime's Runnable.
func (f frugal) Start(ctx context.Context) error {
	_, chosen := os.LookupEnv("GOGC")
	_, limited := os.LookupEnv("GOMEMLIMIT")
	look := time.NewTicker(busyLook)
	defer look.Stop()
	var p pace
	percent, limit := 0, int64(0)
	release, pages := f.now().Add(firstRelease), f.now().Add(firstRelease)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
		h, now := readHeap(), f.now()
		next, over := p.look(h)
		if next != percent && !chosen {
			debug.SetGCPercent(next)
			percent = next
		}
		if next := limitOf(h); next != limit && !limited {
			debug.SetMemoryLimit(next)
			limit = next
		}
		if !now.Before(release) || over && h.worth() {
			release = now.Add(nextRelease)
			// What setting up left behind is garbage now, between what is in use.
			debug.FreeOSMemory()
		}
		if !now.Before(pages) || over {
			pages = now.Add(pagesRelease)
			footprint.Release()
		}
	}
}

// NeedLeaderElection implements controller-runtime's LeaderElectionRunnable.
func (frugal) NeedLeaderElection() bool { return false }
