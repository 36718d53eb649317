package dispatch

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/alert"
)

// turn is for how long the Alerts of one namespace look at events before those of others do.
const turn = 100 * time.Millisecond

// late has the namespaces whose Alerts, by their expressions, take longer than a turn. Events wait for them, in their
// order, and for nobody else. It is not safe for concurrent use.
type late struct {
	by map[string]*backlog
	// spent is what each namespace has taken of its turn.
	spent map[string]time.Duration
}

// backlog is what the Alerts of one namespace have not looked at.
type backlog struct {
	events []*telling
	bytes  int
	// done are the Alerts that looked at the first of the events.
	done map[types.UID]bool
}

// begin begins a turn of each namespace.
func (l *late) begin() { l.spent = map[string]time.Duration{} }

// spend notes what a namespace took, and reports whether its turn is over.
func (l *late) spend(namespace string, took time.Duration) bool {
	l.spent[namespace] += took
	return l.spent[namespace] > turn
}

// add has an event wait for the Alerts of a namespace, as the last one. Where too much waits, the oldest is dropped of
// where most does.
func (l *late) add(namespace string, t *telling) (over int) {
	b := l.by[namespace]
	if b == nil {
		if l.by == nil {
			l.by = map[string]*backlog{}
		}
		b = &backlog{done: map[types.UID]bool{}}
		l.by[namespace] = b
	}
	if n := len(b.events); n > 0 && b.events[n-1] == t {
		return 0 // another Alert of the namespace
	}
	b.events = append(b.events, t)
	b.bytes += len(t.Message)
	for {
		events, bytes, most := 0, 0, b
		for _, other := range l.by {
			events, bytes = events+len(other.events), bytes+other.bytes
			if len(other.events) > len(most.events) {
				most = other
			}
		}
		if events <= mostInbox && bytes <= mostInboxBytes {
			return over
		}
		most.next()
		over++
	}
}

// next goes on with the second event.
func (b *backlog) next() {
	b.bytes -= len(b.events[0].Message)
	b.events[0] = nil
	b.events = b.events[1:]
	clear(b.done)
}

// passed notes which Alerts looked at an event, if it is the first.
func (b *backlog) passed(t *telling, rules []*alert.Rule) {
	if len(b.events) == 0 || b.events[0] != t {
		return
	}
	for _, rule := range rules {
		b.done[rule.Alert.UID] = true
	}
}

// catchUp has the Alerts of one namespace that is late look at what waits for them, for a turn, and reports whether more
// waits.
func (s *sending) catchUp() (more bool) {
	for namespace, b := range s.late.by { // which one is up to chance
		begin := s.o.Now()
		for len(b.events) > 0 {
			if !s.lookAgain(namespace, b) {
				b.next()
			} else if s.o.Now().Sub(begin) > turn {
				break
			}
		}
		if len(b.events) == 0 {
			delete(s.late.by, namespace)
		}
		break
	}
	return len(s.late.by) > 0
}

// lookAgain has the next Alert of a namespace look at the first event that waits. There may be none.
func (s *sending) lookAgain(namespace string, b *backlog) bool {
	t := b.events[0]
	for _, rule := range s.known {
		if rule.Alert.Namespace != namespace || b.done[rule.Alert.UID] {
			continue
		}
		b.done[rule.Alert.UID] = true
		if rule.Concerns(t.Event, s.o.NoCrossNamespaceRefs) {
			s.tellBy(rule, t)
			return true
		}
	}
	return false
}
