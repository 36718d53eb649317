package source

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Holder is who needs revisions of sources, whatever the newest ones are.
type Holder struct {
	Kind string
	types.NamespacedName
}

// Pinned is one revision of a source, as Flux writes it.
type Pinned struct {
	Key
	Revision string
}

// RevisionError says why a revision that is retained is not there.
type RevisionError struct {
	Pinned
	Err error
}

func (e *RevisionError) Error() string {
	return fmt.Sprintf("cannot fetch revision %s of %s %s: %v", e.Revision, e.Kind, e.NamespacedName, e.Err)
}

func (e *RevisionError) Unwrap() error { return e.Err }

// older are the revisions that holders need. Where nobody needs any, all of it is empty.
type older struct {
	// by has what each holder needs, and wanted the same by source and revision.
	by     map[Holder][]Pinned
	wanted map[Key]map[string]*retained
	// onWanted is told of sources with a revision that is missing, onKept who waited for one.
	onWanted []func(Key)
	onKept   []func([]Holder)
}

// retained is a revision that holders need.
type retained struct {
	holders map[Holder]struct{}
	// snapshot is nil while the revision is missing, or is that of the newest snapshot.
	snapshot *Snapshot
	// err is why it could not be fetched last.
	err error
}

// Retain says which revisions a holder needs from now on, in place of those that it needed:
// none lets go of all. A revision that is the newest stays when it no longer is. What is
// missing is fetched by the reconciler of the source, and At returns it then.
func (s *Snapshots) Retain(holder Holder, need ...Pinned) {
	s.mu.RLock()
	same := slices.Equal(s.older.by[holder], need)
	s.mu.RUnlock()
	if same {
		return
	}
	s.mu.Lock()
	missing := s.retain(holder, slices.Clone(need))
	listeners := s.older.onWanted
	s.mu.Unlock()
	for key := range missing {
		for _, f := range listeners {
			f(key)
		}
	}
}

func (s *Snapshots) retain(holder Holder, need []Pinned) (missing map[Key]struct{}) {
	o := &s.older
	before := o.by[holder]
	if o.by == nil {
		o.by, o.wanted = map[Holder][]Pinned{}, map[Key]map[string]*retained{}
	}
	missing = map[Key]struct{}{}
	for _, p := range need {
		if o.wanted[p.Key] == nil {
			o.wanted[p.Key] = map[string]*retained{}
		}
		r := o.wanted[p.Key][p.Revision]
		if r == nil {
			r = &retained{holders: map[Holder]struct{}{}}
			o.wanted[p.Key][p.Revision] = r
			if s.at(p.Key, p.Revision) == nil {
				missing[p.Key] = struct{}{}
			}
		}
		r.holders[holder] = struct{}{}
	}
	for _, p := range before {
		if slices.Contains(need, p) {
			continue
		}
		if r := o.wanted[p.Key][p.Revision]; r != nil {
			if delete(r.holders, holder); len(r.holders) > 0 {
				continue
			}
		}
		if delete(o.wanted[p.Key], p.Revision); len(o.wanted[p.Key]) == 0 {
			delete(o.wanted, p.Key)
		}
	}
	if o.by[holder] = need; len(need) == 0 {
		delete(o.by, holder)
	}
	return missing
}

// OnWanted registers a function that is called, without locks held, when a revision of a
// source is retained and missing. It must not block.
func (s *Snapshots) OnWanted(f func(Key)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.older.onWanted = append(s.older.onWanted, f)
}

// OnKept registers a function that is called, without locks held, with those who retain a
// revision that was fetched, or of which it is newly known why it cannot be. It must not
// block.
func (s *Snapshots) OnKept(f func([]Holder)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.older.onKept = append(s.older.onKept, f)
}

// At returns the snapshot of a source at a revision: the newest one, or one that is
// retained. It is nil if there is none.
func (s *Snapshots) At(key Key, revision string) *Snapshot {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.at(key, revision)
}

func (s *Snapshots) at(key Key, revision string) *Snapshot {
	if newest := s.snapshots[key]; newest != nil && newest.Revision == revision {
		return newest
	}
	if r := s.older.wanted[key][revision]; r != nil {
		return r.snapshot
	}
	return nil
}

// Retained are the revisions of a source that somebody needs and that are not its newest
// one, and missing those of them that are not there.
func (s *Snapshots) Retained(key Key) (all, missing []string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, revision := range slices.Sorted(maps.Keys(s.older.wanted[key])) {
		if newest := s.snapshots[key]; newest != nil && newest.Revision == revision {
			continue
		}
		all = append(all, revision)
		if s.older.wanted[key][revision].snapshot == nil {
			missing = append(missing, revision)
		}
	}
	return all, missing
}

// Keep records a snapshot at a revision that is retained. One that nobody needs any more is
// dropped.
func (s *Snapshots) Keep(key Key, snapshot *Snapshot) {
	s.mu.Lock()
	r := s.older.wanted[key][snapshot.Revision]
	var waiting []Holder
	if r != nil {
		r.snapshot, r.err = snapshot, nil
		waiting = slices.Collect(maps.Keys(r.holders))
	}
	listeners := s.older.onKept
	s.mu.Unlock()
	tell(listeners, waiting)
}

// Fail records why a revision that is retained cannot be fetched. What is there of it
// stays. It reports whether that was not known yet.
func (s *Snapshots) Fail(key Key, revision string, err error) bool {
	s.mu.Lock()
	r := s.older.wanted[key][revision]
	var waiting []Holder
	isNew := r != nil && (r.err == nil || errors.Unwrap(r.err).Error() != err.Error())
	if isNew {
		waiting = slices.Collect(maps.Keys(r.holders))
	}
	if r != nil {
		r.err = &RevisionError{Pinned: Pinned{Key: key, Revision: revision}, Err: err}
	}
	listeners := s.older.onKept
	s.mu.Unlock()
	tell(listeners, waiting)
	return isNew
}

// Failure is why a revision that is retained could not be fetched last, a *RevisionError;
// nil if that was not tried, or succeeded.
func (s *Snapshots) Failure(key Key, revision string) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if r := s.older.wanted[key][revision]; r != nil {
		return r.err
	}
	return nil
}

// unfailed forgets why revisions of a source could not be fetched: that was as the source itself could not. The store is
// locked.
func (o *older) unfailed(key Key) {
	for _, r := range o.wanted[key] {
		r.err = nil
	}
}

func tell(listeners []func([]Holder), waiting []Holder) {
	if len(waiting) == 0 {
		return
	}
	for _, f := range listeners {
		f(waiting)
	}
}

// replaced keeps the snapshot that was the newest of a source, if its revision is retained.
// With the source, all of its snapshots go. The store is locked.
func (o *older) replaced(key Key, old, newest *Snapshot) {
	for revision, r := range o.wanted[key] {
		switch {
		case newest == nil, revision == newest.Revision:
			r.snapshot, r.err = nil, nil
		case old != nil && revision == old.Revision:
			r.snapshot, r.err = old, nil
		}
	}
}
