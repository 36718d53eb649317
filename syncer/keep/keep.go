// Package keep remembers what is expensive to make, while there is room for it.
//
// It keeps true:
//
//   - what is kept takes no more bytes than the caller allows, by the sizes that the
//     caller tells. What was not used for longest goes first. The last thing that was
//     added stays, however large it is: without it, it would be made for each use;
//   - a thing is made by one caller at a time, and the others wait for it no longer than
//     they have time. No lock is held while it is made;
//   - a failure that lasts is kept as well. Any other is forgotten at once.
//
// What is kept is shared by all callers, so that it must not be modified.
package keep

import (
	"container/list"
	"context"
	"sync"

	"github.com/cascade-gitops/cascade/syncer/flight"
)

// Recent has the things that were used last, by their keys. The zero value is ready. It
// is safe for concurrent use.
type Recent[K comparable, V any] struct {
	mu      sync.Mutex
	size    int
	entries map[K]*list.Element
	// order has what was used last in front.
	order list.List
}

type entry[K comparable, V any] struct {
	key   K
	value V
	size  int
}

// Get returns what is kept under a key.
func (r *Recent[K, V]) Get(key K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.entries[key]
	if !ok {
		var none V
		return none, false
	}
	r.order.MoveToFront(at)
	return at.Value.(*entry[K, V]).value, true
}

// Add keeps a thing of so many bytes, and drops others until all that is kept has no
// more than most.
func (r *Recent[K, V]) Add(key K, value V, size, most int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.entries[key]; ok {
		r.drop(at)
	}
	if r.entries == nil {
		r.entries = map[K]*list.Element{}
	}
	r.entries[key] = r.order.PushFront(&entry[K, V]{key, value, size})
	r.size += size
	for r.size > most && r.order.Len() > 1 {
		r.drop(r.order.Back())
	}
}

func (r *Recent[K, V]) drop(at *list.Element) {
	e := r.order.Remove(at).(*entry[K, V])
	delete(r.entries, e.key)
	r.size -= e.size
}

// Len is how many things are kept.
func (r *Recent[K, V]) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.order.Len()
}

// Once makes things by their keys, each once as long as it is kept. The zero value is
// ready. It is safe for concurrent use.
type Once[V any] struct {
	made flight.Group[outcome[V]]
	kept Recent[string, outcome[V]]
}

type outcome[V any] struct {
	value V
	err   error
}

// failureSize is what a failure is taken to need besides its text.
const failureSize = 1 << 10

// Do returns what is kept under a key, or makes it and keeps it: the value, or an error
// that lasts. make returns the size of the value as well.
func (o *Once[V]) Do(ctx context.Context, key string, most int, lasts func(error) bool, make func() (V, int, error)) (V, error) {
	found, err := o.made.Do(ctx, key, func() (outcome[V], bool) { return o.kept.Get(key) }, func() (outcome[V], error) {
		value, size, err := make()
		if err != nil {
			if !lasts(err) {
				return outcome[V]{}, err
			}
			size = failureSize + len(err.Error())
		}
		made := outcome[V]{value, err}
		o.kept.Add(key, made, len(key)+size, most)
		return made, nil
	})
	if err != nil {
		var none V
		return none, err
	}
	return found.value, found.err
}

// Len is how many values and failures are kept.
func (o *Once[V]) Len() int { return o.kept.Len() }
