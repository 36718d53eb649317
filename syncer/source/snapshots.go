package source

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Key names a source object.
type Key struct {
	Kind string
	types.NamespacedName
}

// Snapshots passes the newest snapshot of each source from the reconciler that fetched it
// to those that render it, by a function call; Flux has an HTTP server for that. Revisions
// that somebody retains are passed as well, see Retain. It is safe for concurrent use.
type Snapshots struct {
	mu        sync.RWMutex
	snapshots map[Key]*Snapshot
	// recorded are the digests by which the status of a source has its newest snapshot.
	recorded map[Key]string
	// silent are the sources that could not be fetched last.
	silent    map[Key]bool
	listeners []func(Key)
	older     older
}

// NewSnapshots returns an empty store.
func NewSnapshots() *Snapshots {
	return &Snapshots{snapshots: map[Key]*Snapshot{}}
}

// OnChange registers a function that is called, without locks held, after the
// snapshot of a source changed. It must not block.
func (s *Snapshots) OnChange(f func(Key)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, f)
}

// Get returns the newest snapshot of a source, nil if there is none yet.
func (s *Snapshots) Get(key Key) *Snapshot {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.snapshots[key]
}

// Recorded is the digest by which the status of a source has its newest snapshot, empty if that is not known. It is
// that of an archive where sources are packed.
func (s *Snapshots) Recorded(key Key) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.recorded[key]
}

// Put records a source's newest snapshot; nil forgets the source. The one before is kept
// while its revision is retained.
func (s *Snapshots) Put(key Key, snapshot *Snapshot) { s.PutAs(key, snapshot, "") }

// PutAs is Put of a snapshot that the status of its source has by a digest. The revision alone does not tell it from one
// that included something else.
func (s *Snapshots) PutAs(key Key, snapshot *Snapshot, recorded string) {
	s.mu.Lock()
	old := s.snapshots[key]
	s.answered(key)
	if delete(s.recorded, key); snapshot == nil {
		delete(s.snapshots, key)
	} else {
		s.snapshots[key] = snapshot
	}
	if snapshot != nil && recorded != "" {
		if s.recorded == nil {
			s.recorded = map[Key]string{}
		}
		s.recorded[key] = recorded
	}
	s.older.replaced(key, old, snapshot)
	listeners := s.listeners
	s.mu.Unlock()
	if snapshot != nil && snapshot != old {
		for _, f := range listeners {
			f(key)
		}
	}
}

// Silence records that a source cannot be fetched, until its next snapshot is, or its server answers: what is there of it may be of before, and that
// one of its revisions is missing says nothing of that.
func (s *Snapshots) Silence(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent == nil {
		s.silent = map[Key]bool{}
	}
	s.silent[key] = true
}

// Answer records that the server of a source answers, whose newest revision nobody asks for, as it is suspended.
func (s *Snapshots) Answer(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered(key)
}

// answered takes back that a source could not be fetched. The store is locked.
func (s *Snapshots) answered(key Key) {
	if s.silent[key] {
		delete(s.silent, key)
		s.older.unfailed(key)
	}
}

// Silent reports whether a source could not be fetched last.
func (s *Snapshots) Silent(key Key) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.silent[key]
}

// Renew replaces the newest snapshot of a source by another one of the same revision and
// content, which nobody has to be told of: the one before may keep objects on disk that its
// own sources have left.
func (s *Snapshots) Renew(key Key, snapshot *Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapshots[key] = snapshot
}
