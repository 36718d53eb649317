package source

// View is the snapshots of sources as one reader saw each of them first. A commit that
// moves something from one directory to another takes effect at once only for a reader
// who looks at both of one snapshot; the newest one may change in between. The zero value
// is ready to use, and a nil View remembers nothing. It is for one caller at a time.
type View struct {
	first map[Key]*Snapshot
}

// Snapshot returns the snapshot of a source that find returned first. An error, and that
// there is none, is not remembered.
func (v *View) Snapshot(key Key, find func() (*Snapshot, error)) (*Snapshot, error) {
	if v == nil {
		return find()
	}
	if known := v.first[key]; known != nil {
		return known, nil
	}
	snapshot, err := find()
	if err != nil || snapshot == nil {
		return nil, err
	}
	if v.first == nil {
		v.first = map[Key]*Snapshot{}
	}
	v.first[key] = snapshot
	return snapshot, nil
}
