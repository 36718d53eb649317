package scenario

import (
	"sync"
	"testing"
)

// partsTogether is how many parts of one test run at the same time. More only wait for
// each other.
const partsTogether = 4

// Parts are parts of one test that run beside each other.
//
// They take none of the slots of testing's -parallel, as parts that call Parallel do: all slots
// may be with tests that wait for a place, see Alongside, and the place with the test whose parts
// would wait for a slot. None of them would ever go on.
type Parts struct {
	t       *testing.T
	turns   chan struct{}
	running sync.WaitGroup
}

// PartsOf are those of a test, which calls Wait before it returns.
func PartsOf(t *testing.T) *Parts {
	return &Parts{t: t, turns: make(chan struct{}, partsTogether)}
}

// Run begins a part as soon as one of those before it has ended, if there are so many
// already. Parts do not call Parallel.
func (p *Parts) Run(name string, part func(t *testing.T)) {
	p.turns <- struct{}{}
	p.running.Go(func() {
		defer func() { <-p.turns }()
		p.t.Run(name, part)
	})
}

// Wait returns when all parts have ended.
func (p *Parts) Wait() { p.running.Wait() }
