package link

import (
	"sync"
	"time"
)

// pace is how soon children answer, all together. Where that takes long, it is this process,
// its machine or its network that is busy, and no child answers for it. The zero value is
// ready for use, and it is safe for concurrent use.
type pace struct {
	mu   sync.Mutex // guards what follows
	mean time.Duration
}

const (
	// paceOf is over how many calls it is usual what a call takes.
	paceOf = 64
	// mostUsual bounds what is taken for usual: where only children that hang are called, what
	// they take is not.
	mostUsual = time.Second
	// lateCall and lateTimes are how long, and how many times as long as usual, a call
	// takes to be late. While a thousand children are seeded by two processors a call takes a
	// third of a second, and one in thousands eight times that: who takes these for late begins
	// with more children than there is processor time and memory for.
	lateCall  = time.Second
	lateTimes = 20
	// ownTimes is how many times as long as usual a call takes before the rest is the child's
	// doing. Where all wait for the same processors, calls of four times the mean are some.
	ownTimes = 4
)

// answered takes note of a call that was answered.
func (p *pace) answered(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mean += (min(took, mostUsual) - p.mean) / paceOf
}

// usual is what a call takes now.
func (p *pace) usual() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mean
}

// late is after how long a call has no answer that should have come.
func (p *pace) late() time.Duration { return max(lateCall, lateTimes*p.usual()) }

// own is after how long the rest of a call is the child's doing.
func (p *pace) own() time.Duration { return ownTimes * p.usual() }

// beyond is what a call took that is the child's doing.
func (p *pace) beyond(took time.Duration) time.Duration { return max(took-p.own(), 0) }
