package endpoint

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// atOnce is how many may ask for one endpoint of one child at the same time: two
	// Prometheus of a pair, and one more.
	atOnce = 3
	// breakAfter failures in a row an endpoint is left alone for breakPause.
	breakAfter = 2
	breakPause = 30 * time.Second
	// mostFailing bounds the endpoints that are remembered.
	mostFailing = 16 << 10
)

// target is one endpoint of one child.
type target struct {
	child    types.NamespacedName
	endpoint string
}

// breaker knows what is asked at the moment and what failed last. It is safe for concurrent
// use.
type breaker struct {
	mu sync.Mutex // guards of; never held over a call
	of map[target]*state
}

type state struct {
	running, failures int
	until             time.Time
}

// admission is whether a target may be asked, and what became of it before.
type admission int

const (
	// admitted: it worked the last time. suspect: it did not. busy: too many ask for it.
	// broken: it is left alone.
	admitted admission = iota
	suspect
	busy
	broken
)

// enter begins to ask, if it may. After admitted and suspect the caller calls leave.
func (b *breaker) enter(t target, now time.Time) admission {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = map[target]*state{}
	}
	s := b.of[t]
	if s == nil {
		s = &state{}
		if len(b.of) >= mostFailing {
			maps.DeleteFunc(b.of, func(_ target, s *state) bool { return s.running == 0 })
		}
		b.of[t] = s
	}
	switch {
	case now.Before(s.until):
		return broken
	case s.running >= atOnce, s.failures > 0 && s.running > 0:
		return busy
	}
	s.running++
	if s.failures > 0 {
		return suspect
	}
	return admitted
}

// outcome is what became of a target that was admitted.
type outcome int

const (
	// unasked: nothing was learned of it. answered: it answered, if only by a refusal.
	// failed: it did not.
	unasked outcome = iota
	answered
	failed
)

// leave ends what enter began.
func (b *breaker) leave(t target, now time.Time, was outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.of[t]
	s.running--
	switch was {
	case failed:
		if s.failures++; s.failures >= breakAfter {
			s.until = now.Add(breakPause)
		}
	case answered:
		s.failures, s.until = 0, time.Time{}
	}
	if s.running == 0 && s.failures == 0 {
		delete(b.of, t)
	}
}
