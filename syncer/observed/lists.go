package observed

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Numbers of the lists that stand in for single reads.
const (
	// listAfter is how many single reads of a kind in a namespace within
	// listTTL make a list cheaper than the next.
	listAfter = 4
	// listTTL is how long a list stands for the state of the cluster. Flux
	// reads an object before it applies the whole stage that the object is in,
	// so what it decides by is as old as this or older.
	listTTL = 5 * time.Second
	// listMost bounds a list. Where there is more, objects are read singly.
	listMost = 500
	// refusedTTL is how long a list that the API server refuses is not asked for again.
	refusedTTL = 10 * time.Minute
	// placesMost bounds how many places are remembered.
	placesMost = 1000
)

// lists answers what there is under a name that the watch of owned objects
// does not show. Most of the time that is nothing. While many objects are
// created, lists reads the objects without an owner label once, where a read of
// each would cost more.
type lists struct {
	mu     sync.Mutex // guards places; never held over a request
	places map[place]*listed
}

// place is a kind in a namespace, of objects that do not carry a label.
type place struct {
	resource  schema.GroupVersionResource
	namespace string
	without   string
}

// listed is what is known of one place.
type listed struct {
	mu      sync.Mutex // guards all fields; held over the list, for which others wait
	since   time.Time
	reads   int
	crowded bool
	// refused is when a list was refused: who may read and write each object, as a service account
	// that is not to know of others, need not be allowed to list them.
	refused time.Time
	objects map[string]*Object
}

func (l *lists) at(p place) *listed {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.places == nil || len(l.places) > placesMost {
		l.places = map[place]*listed{}
	}
	at := l.places[p]
	if at == nil {
		at = &listed{}
		l.places[p] = at
	}
	return at
}

// GetWithout reads an object that does not carry a label; nil if there is none.
// An object that carries the label may be reported as missing.
func (r *Reader) GetWithout(ctx context.Context, resource schema.GroupVersionResource, namespace, name, label string, now time.Time) (*Object, error) {
	at := r.lists.at(place{resource, namespace, label})
	at.mu.Lock()
	if now.Sub(at.since) > listTTL {
		at.since, at.reads, at.objects, at.crowded = now, 0, nil, false
	}
	at.reads++
	if label == "" || at.reads <= listAfter || at.crowded || now.Sub(at.refused) < refusedTTL {
		at.mu.Unlock()
		return r.Get(ctx, resource, namespace, name)
	}
	// The lock stays held: the others wait for this list instead of asking.
	defer at.mu.Unlock()
	if at.objects == nil {
		list, err := r.List(ctx, resource, namespace, metav1.ListOptions{LabelSelector: "!" + label, Limit: listMost})
		if apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) {
			at.refused = now
			return r.Get(ctx, resource, namespace, name)
		}
		if err != nil {
			return nil, err
		}
		if list.Continue != "" {
			at.crowded = true
			return r.Get(ctx, resource, namespace, name)
		}
		at.objects = make(map[string]*Object, len(list.Items))
		for i := range list.Items {
			at.objects[list.Items[i].Name] = r.Of(&list.Items[i])
		}
	}
	return at.objects[name], nil
}
