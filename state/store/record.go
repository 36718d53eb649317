package store

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"
)

const (
	// recordFormat is the version of the record.
	recordFormat = 1
	// remembered bounds the versions whose time and digest are on record.
	remembered = 256
	// mostNumber bounds epochs and numbers: what is larger was not counted.
	mostNumber = 1 << 56
	// mostEnds bounds the epochs whose last version is on record.
	mostEnds = 1024
)

// record of a state. Its zero value is that of a place with nothing.
type record struct {
	Format int `json:"format"`
	// Epoch of the last lock, Holder and Token of who holds it; both are empty if it was
	// given back.
	Epoch  int64     `json:"epoch"`
	Holder string    `json:"holder,omitempty"`
	Token  string    `json:"token,omitempty"`
	Until  time.Time `json:"until,omitzero"`
	// Began is when the first version was saved; a record of an earlier version of the program has none.
	Began time.Time `json:"began,omitzero"`
	// Ends are the numbers of the last complete version under each epoch, in order.
	Ends []end `json:"ends,omitempty"`
	// Saved is what is known of the latest versions, in order.
	Saved []saved `json:"saved,omitempty"`
}

type end struct {
	Epoch int64 `json:"epoch"`
	Last  int64 `json:"last"`
}

type saved struct {
	Epoch  int64     `json:"epoch"`
	Number int64     `json:"number"`
	At     time.Time `json:"at"`
	Bytes  int64     `json:"bytes"`
	// Digest is the SHA-256 of the archive.
	Digest string `json:"digest"`
}

func parse(content []byte) (*record, error) {
	r := &record{Format: recordFormat}
	if len(content) == 0 {
		return r, nil
	}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, fmt.Errorf("%w: it is no record", ErrDamaged)
	}
	if r.Format > recordFormat {
		return nil, fmt.Errorf("%w: it has format %d, and %d is known", ErrNewerFormat, r.Format, recordFormat)
	}
	sane := func(n int64) bool { return n >= 0 && n < mostNumber }
	if r.Format < 1 || !sane(r.Epoch) || slices.ContainsFunc(r.Ends, func(e end) bool { return !sane(e.Epoch) || !sane(e.Last) || e.Epoch > r.Epoch }) || !slices.IsSortedFunc(r.Ends, func(a, b end) int { return int(min(max(a.Epoch-b.Epoch, -1), 1)) }) {
		return nil, fmt.Errorf("%w: it is no record", ErrDamaged)
	}
	return r, nil
}

// held reports whether somebody holds the lock at a time.
func (r *record) held(now time.Time) bool {
	return r.Token != "" && now.Before(r.Until.Add(Skew))
}

// take gives the lock to another one, and returns its epoch.
func (r *record) take(l Lock) int64 {
	r.Epoch++
	r.Holder, r.Token, r.Until = l.Holder, l.token, l.Until
	return r.Epoch
}

func (r *record) release() {
	r.Holder, r.Token, r.Until = "", "", time.Time{}
}

// lockedBy fails unless the lock is the one that is held.
func (r *record) lockedBy(l Lock) error {
	if l.token != "" && r.Token == l.token && r.Epoch == l.Epoch {
		return nil
	}
	if r.Token == "" {
		return fmt.Errorf("%w: it was given back, at epoch %d", ErrLockLost, r.Epoch)
	}
	return fmt.Errorf("%w: %.256q, at epoch %d", ErrLockLost, r.Holder, r.Epoch)
}

// add notes the next version under an epoch as complete.
func (r *record) add(epoch int64, at time.Time, bytes int64, digest string) Version {
	number := int64(1)
	at = at.UTC().Truncate(time.Second)
	if len(r.Ends) == 0 {
		r.Began = at
	}
	if n := len(r.Ends); n > 0 && r.Ends[n-1].Epoch == epoch {
		r.Ends[n-1].Last++
		number = r.Ends[n-1].Last
	} else {
		r.Ends = append(r.Ends, end{Epoch: epoch, Last: number})
		r.Ends = r.Ends[max(0, len(r.Ends)-mostEnds):]
	}
	r.Saved = append(r.Saved, saved{Epoch: epoch, Number: number, At: at, Bytes: bytes, Digest: digest})
	r.Saved = r.Saved[max(0, len(r.Saved)-remembered):]
	return Version{Epoch: epoch, Number: number, Saved: at, Began: r.Began, Bytes: bytes}
}

// complete reports whether a version was saved. What a process left that lost its lock
// while it saved is not one. Epochs of before those on record are past all that.
func (r *record) complete(v Version) bool {
	if len(r.Ends) == mostEnds && v.Epoch < r.Ends[0].Epoch {
		return true
	}
	i := slices.IndexFunc(r.Ends, func(e end) bool { return e.Epoch == v.Epoch })
	return i >= 0 && v.Number >= 1 && v.Number <= r.Ends[i].Last
}

func (r *record) saved(v Version) (saved, bool) {
	i := slices.IndexFunc(r.Saved, func(s saved) bool { return s.Epoch == v.Epoch && s.Number == v.Number })
	if i < 0 {
		return saved{}, false
	}
	return r.Saved[i], true
}

// versions among files, the oldest first.
func (r *record) versions(files map[string]int64) []Version {
	var out []Version
	for name, size := range files {
		v, ok := parseFile(name)
		if !ok || !r.complete(v) {
			continue
		}
		v.Bytes, v.Began = size, r.Began
		if s, ok := r.saved(v); ok {
			v.Saved, v.Bytes = s.At, s.Bytes
		}
		out = append(out, v)
	}
	slices.SortFunc(out, Version.Compare)
	return out
}

var fileName = regexp.MustCompile(`^([0-9]{10,18})-([0-9]{10,18})\.age$`)

// parseFile reads the name of a version's file.
func parseFile(name string) (Version, bool) {
	m := fileName.FindStringSubmatch(name)
	if m == nil {
		return Version{}, false
	}
	epoch, err1 := strconv.ParseInt(m[1], 10, 64)
	number, err2 := strconv.ParseInt(m[2], 10, 64)
	v := Version{Epoch: epoch, Number: number}
	return v, err1 == nil && err2 == nil && v.file() == name
}
