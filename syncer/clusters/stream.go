package clusters

import (
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Event is a change of one Cluster. Nobody may change the objects.
type Event struct {
	// Old is nil for a Cluster that was not known, New for one that was deleted. Old and
	// New are of different versions when the watch moved.
	Old, New *unstructured.Unstructured
	// Listed: the Cluster was there before, and may be unchanged.
	Listed bool
}

// Object is the Cluster as it is, or as it was when it was deleted.
func (e Event) Object() *unstructured.Unstructured {
	if e.New != nil {
		return e.New
	}
	return e.Old
}

// Name of the Cluster.
func (e Event) Name() types.NamespacedName { return client.ObjectKeyFromObject(e.Object()) }

// stream makes one stream of what the watches of several versions show. The zero value is
// ready for use.
type stream struct {
	// mu is held over the calls of handlers, so that each gets all events in order.
	mu sync.Mutex
	// current is the watch that counts, expected the one that is to take its place; each
	// has a number of its own, and 0 is none.
	current, expected, last int
	// gvk is the version of the current watch.
	gvk schema.GroupVersionKind
	// objects are the Clusters of the current watch, coming those of the expected one.
	// Informers have the same objects.
	objects, coming map[types.NamespacedName]*unstructured.Unstructured
	handlers        map[*func(Event)]bool
	signals         *signals
}

// signals are the channels of Began and Known.
type signals struct {
	began, known      chan struct{}
	hasBegun, isKnown bool
}

// signalsOf is called with the lock.
func (s *stream) signalsOf() *signals {
	if s.signals == nil {
		s.signals = &signals{began: make(chan struct{}), known: make(chan struct{})}
	}
	return s.signals
}

func (s *stream) channels() *signals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signalsOf()
}

func (s *stream) get(name types.NamespacedName) (*unstructured.Unstructured, bool) {
	s.mu.Lock()
	u, ok := s.objects[name]
	s.mu.Unlock()
	if !ok {
		return nil, false
	}
	return u.DeepCopy(), true
}

// each calls f without the lock.
func (s *stream) each(f func(types.NamespacedName)) {
	s.mu.Lock()
	names := make([]types.NamespacedName, 0, len(s.objects))
	for name := range s.objects {
		names = append(names, name)
	}
	s.mu.Unlock()
	for _, name := range names {
		f(name)
	}
}

func (s *stream) version() (gvk schema.GroupVersionKind, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gvk, !s.gvk.Empty()
}

func (s *stream) handle(f func(Event)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handlers == nil {
		s.handlers = map[*func(Event)]bool{}
	}
	s.handlers[&f] = true
	for _, u := range s.objects {
		f(Event{New: u, Listed: true})
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.handlers, &f)
	}
}

// tell is called with the lock.
func (s *stream) tell(e Event) {
	for f := range s.handlers {
		(*f)(e)
	}
}

// expect begins to gather what another watch shows, and returns its number.
func (s *stream) expect() (watch int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.expected, s.coming = s.last, map[types.NamespacedName]*unstructured.Unstructured{}
	return s.expected
}

// see takes what a watch shows.
func (s *stream) see(watch int, o any, gone bool) {
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	name := client.ObjectKeyFromObject(u)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case watch == s.expected && gone:
		delete(s.coming, name)
	case watch == s.expected:
		s.coming[name] = u
	case watch == s.current && gone:
		delete(s.objects, name)
		s.tell(Event{Old: u})
	case watch == s.current:
		old := s.objects[name]
		s.objects[name] = u
		s.tell(Event{Old: old, New: u, Listed: old != nil && old.GetResourceVersion() == u.GetResourceVersion()})
	}
}

// move makes the expected watch the current one.
func (s *stream) move(watch int, gvk schema.GroupVersionKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if watch != s.expected {
		return
	}
	former := s.objects
	s.current, s.gvk, s.objects = watch, gvk, s.coming
	s.expected, s.coming = 0, nil
	for name, u := range s.objects {
		s.tell(Event{Old: former[name], New: u, Listed: true})
	}
	for name, u := range former {
		if s.objects[name] == nil {
			s.tell(Event{Old: u})
		}
	}
	signals := s.signalsOf()
	if !signals.hasBegun {
		signals.hasBegun = true
		close(signals.began)
	}
	s.know()
}

// none says that there are no Clusters, because their kind does not exist.
func (s *stream) none() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.know()
}

// know is called with the lock.
func (s *stream) know() {
	if signals := s.signalsOf(); !signals.isKnown {
		signals.isKnown = true
		close(signals.known)
	}
}
