package alert

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
)

// mostTold bounds how many events are remembered. The oldest are forgotten first: that may
// tell something twice, and loses nothing.
const mostTold = 10_000

// Told remembers what was told within an interval, by Flux's rule: object, message and
// metadata. It is not safe for concurrent use.
type Told struct {
	interval time.Duration
	until    map[[sha256.Size]byte]time.Time
	order    []told
}

type told struct {
	key [sha256.Size]byte
	at  time.Time
}

// NewTold remembers for an interval. With none, nothing is remembered.
func NewTold(interval time.Duration) *Told {
	return &Told{interval: interval, until: map[[sha256.Size]byte]time.Time{}}
}

// Again reports whether an event was told within the interval before now, and remembers it
// if not.
func (t *Told) Again(e *eventv1.Event, now time.Time) bool {
	if t.interval <= 0 {
		return false
	}
	for len(t.order) > 0 && (!now.Before(t.order[0].at) || len(t.order) >= mostTold) {
		delete(t.until, t.order[0].key)
		t.order = t.order[1:]
	}
	key := identify(e)
	if _, ok := t.until[key]; ok {
		return true
	}
	until := now.Add(t.interval)
	t.until[key] = until
	t.order = append(t.order, told{key, until})
	return false
}

func identify(e *eventv1.Event) (key [sha256.Size]byte) {
	h := sha256.New()
	// Lengths keep two lists of words apart that are the same when they are joined.
	write := func(text string) { fmt.Fprintf(h, "%d:%s", len(text), text) }
	for _, text := range []string{e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Message} {
		write(text)
	}
	for _, k := range slices.Sorted(maps.Keys(e.Metadata)) {
		write(k)
		write(e.Metadata[k])
	}
	h.Sum(key[:0])
	return key
}
