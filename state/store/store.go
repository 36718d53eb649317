// Package store keeps archives outside of a tier: versions of one state, and the lock of
// whoever may write the next.
//
// A place is a directory, a bucket (S3, Azure Blob, Google Cloud Storage) or a branch of a
// Git repository. Each has the same two things: a record, which is replaced only by whoever
// read what it was, and files, which are versions. The record says who holds the lock and
// until when, and which versions are complete. A version is written first, and the record
// then names it; in Git both are one commit. So the lock is not beside the state but a
// condition of each write to it.
//
// Each lock has an epoch, higher than all before it. A version is named by the epoch of the
// lock it was saved under and a number: a later one sorts after an earlier one.
//
// Invariants:
//
//   - of two processes at most one holds the lock, and of two writes of the record that
//     read the same one is refused, by the place itself;
//   - what is saved with a lock that somebody took over is refused, however late it comes:
//     Versions never lists it;
//   - a version is listed when it is complete, and never changed after that;
//   - Prune never deletes the newest version;
//   - content is not looked into: what is kept is encrypted before it comes here.
//
// Failure model: a write whose answer is lost is looked up in the record, so that it is
// known or said. A process that ends with the lock keeps others out until it lapses. When
// that is, is told by the clocks of the two processes: a lock counts for Skew longer than
// it says, and clocks that differ by more can let a lock be taken before its time. Then the
// former holder cannot save: the clocks decide who waits, the record decides who writes. A
// server of S3 that ignores conditions of writes is found out, and refused.
package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cascade-gitops/cascade/state/archive"
)

// Skew is how much the clocks of two processes may differ, at most.
const Skew = 30 * time.Second

const (
	// cleanup bounds what is done about a save that was refused.
	cleanup = 30 * time.Second
	// tries of a write of the record, as others write it.
	tries = 8
	// mostRecordBytes bounds the record.
	mostRecordBytes = 1 << 20
)

var (
	// ErrLocked: another process holds the lock. The error is a *LockedError.
	ErrLocked = errors.New("another process holds the lock of the state")
	// ErrLockLost: somebody took the lock over, or it was given back.
	ErrLockLost = errors.New("the lock of the state is held by another process by now")
	// ErrNoVersion: there is no version of that name.
	ErrNoVersion = errors.New("there is no such version of the state")
	// ErrGone: the record says that versions were saved, and none of them is there. It is not a
	// place that was never used.
	ErrGone = errors.New("versions were saved there, and somebody deleted all of them")
	// ErrDamaged: what is kept is not what was saved.
	ErrDamaged = errors.New("what is kept is not what was saved")
	// ErrNewerFormat: a newer version of this program writes to the place.
	ErrNewerFormat = errors.New("a newer version of this program keeps its state there")
)

// LockedError says who holds the lock.
type LockedError struct {
	Holder string
	Until  time.Time
	Place  string
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("cannot lock the state at %s: %q holds it until %s", e.Place, e.Holder, e.Until.UTC().Format(time.RFC3339))
}

// Is makes it an ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Store keeps versions of one state. It is safe for concurrent use; a lock is used with the
// store that gave it.
type Store interface {
	// Save keeps an archive as a new version. It fails with ErrLockLost if l is not the
	// lock any more. A lock that lapsed and that nobody took is the lock still.
	Save(ctx context.Context, l Lock, archive []byte) (Version, error)
	// Load returns the archive of a version, or ErrNoVersion or ErrDamaged.
	Load(ctx context.Context, v Version) ([]byte, error)
	// Versions returns the complete versions, the oldest first. It fails with ErrGone if there
	// were some and are none.
	Versions(ctx context.Context) ([]Version, error)
	// Prune deletes the oldest of the versions after one until keep of these are left, at least one;
	// the zero Version has none before it. It returns those that it deleted.
	Prune(ctx context.Context, l Lock, after Version, keep int) ([]Version, error)
	// Lock takes the lock for a time, or fails with ErrLocked. Each lock has a higher epoch
	// than all before it, whoever holds it.
	Lock(ctx context.Context, holder string, ttl time.Duration) (Lock, error)
	// Renew lets the lock hold for its time from now on, or fails with ErrLockLost.
	Renew(ctx context.Context, l Lock) (Lock, error)
	// Unlock gives it back. A lock that was lost already is no error.
	Unlock(ctx context.Context, l Lock) error
	// Close ends connections. It gives no lock back.
	Close() error
}

// Lock is the right to save, for a time.
type Lock struct {
	Epoch  int64
	Holder string
	// Until others may take it.
	Until time.Time
	TTL   time.Duration
	// token tells this lock from all others.
	token string
}

// Version of a state.
type Version struct {
	Epoch, Number int64
	// Saved is when, if that is on record still.
	Saved time.Time
	// Began is when the first version was saved where it is, if that is on record.
	Began time.Time
	// Bytes of the archive, zero if that is not known.
	Bytes int64
}

// String is the name that people use for it.
func (v Version) String() string { return fmt.Sprintf("%d-%d", v.Epoch, v.Number) }

// ParseVersion reads the name of one; it is zero for anything else.
func ParseVersion(name string) Version {
	var v Version
	if _, err := fmt.Sscanf(name, "%d-%d", &v.Epoch, &v.Number); err != nil || v.String() != name {
		return Version{}
	}
	return v
}

// file is the name of its file, in an order that sorts as versions do.
func (v Version) file() string { return fmt.Sprintf("%010d-%010d.age", v.Epoch, v.Number) }

// Compare orders versions by age.
func (v Version) Compare(other Version) int {
	if v.Epoch != other.Epoch {
		return int(min(max(v.Epoch-other.Epoch, -1), 1))
	}
	return int(min(max(v.Number-other.Number, -1), 1))
}

// Find returns the version of a name, or the newest if that is empty.
func Find(versions []Version, name string) (Version, error) {
	if name == "" && len(versions) > 0 {
		return versions[len(versions)-1], nil
	}
	for _, v := range versions {
		if v.String() == name {
			return v, nil
		}
	}
	if name == "" {
		return Version{}, fmt.Errorf("cannot find a version: %w: nothing is saved there", ErrNoVersion)
	}
	return Version{}, fmt.Errorf("cannot find version %.40q: %w", name, ErrNoVersion)
}

// errMoved: the record is another one than was read. errAbsent: there is no such file.
var (
	errMoved  = errors.New("the record is another one by now")
	errAbsent = errors.New("there is no such file")
)

// place is where a record and files are.
type place interface {
	// record returns the record and what tells it from others, both empty if there is none.
	record(ctx context.Context) (content []byte, tag string, err error)
	// put writes a file that no record names yet. A place where a file and the record are one
	// write leaves it to swap, and says that it is not apart. errMoved says to begin again.
	put(ctx context.Context, name string, content []byte) (apart bool, err error)
	// swap replaces the record that is at tag, or the absence of one, with a file if that has a
	// name. errMoved says that nothing was replaced; after any other error it is not known.
	swap(ctx context.Context, tag string, record []byte, name string, content []byte) error
	// read returns a file, or errAbsent.
	read(ctx context.Context, name string) ([]byte, error)
	// list returns the names of files and their sizes, zero where these are not known.
	list(ctx context.Context) (map[string]int64, error)
	remove(ctx context.Context, names []string) error
	// try fails if the place cannot hold writes to what was read.
	try(ctx context.Context) error
	// String names it, without credentials.
	String() string
	close() error
}

// kept is a store at a place.
type kept struct {
	at  place
	now func() time.Time

	mu sync.Mutex // guards tried; held over one call to the place
	// tried: the place holds writes to what was read.
	tried bool
	// turn is taken by the call that saves or prunes.
	turn chan struct{}
}

func newStore(at place, now func() time.Time) *kept {
	return &kept{at: at, now: now, turn: make(chan struct{}, 1)}
}

func (k *kept) Close() error { return k.at.close() }

// load reads the record.
func (k *kept) load(ctx context.Context) (*record, []byte, string, error) {
	content, tag, err := k.at.record(ctx)
	if err != nil {
		return nil, nil, "", fmt.Errorf("cannot read the record of the state at %s: %w", k.at, err)
	}
	r, err := parse(content)
	if err != nil {
		return nil, nil, "", fmt.Errorf("cannot use the record of the state at %s: %w", k.at, err)
	}
	return r, content, tag, nil
}

// write replaces the record by what change makes of it, with a file if change names one. It
// begins again when somebody else was faster. A file takes longer to write than the lock is not
// renewed, so it is written once, where it can be, and the record is read after that.
func (k *kept) write(ctx context.Context, change func(*record) (name string, content []byte, err error)) error {
	put := ""
	for try := 1; ; try++ {
		r, _, tag, err := k.load(ctx)
		if err != nil {
			return err
		}
		name, content, err := change(r)
		if err != nil {
			return err
		}
		next, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("cannot encode the record of the state: %w", err)
		}
		if len(next) > mostRecordBytes {
			return fmt.Errorf("cannot write the record of the state at %s: it has more than %d bytes", k.at, mostRecordBytes)
		}
		if name != "" && name != put {
			apart, err := k.at.put(ctx, name, content)
			if err == nil && apart {
				put = name
				continue
			}
			if err != nil && (!errors.Is(err, errMoved) || try == tries || ctx.Err() != nil) {
				return fmt.Errorf("cannot write %s to %s: %w", name, k.at, err)
			}
			if err != nil {
				continue
			}
		}
		if name == put {
			name, content = "", nil
		}
		err = k.at.swap(ctx, tag, next, name, content)
		if err == nil {
			return nil
		}
		// A client that repeats a request whose answer was lost is refused by what it wrote.
		if _, now, _, looked := k.load(ctx); looked == nil && bytes.Equal(now, next) {
			return nil
		}
		switch {
		case !errors.Is(err, errMoved):
			return fmt.Errorf("cannot write the record of the state at %s: %w", k.at, err)
		case try == tries:
			return fmt.Errorf("cannot write the record of the state at %s: others were faster %d times", k.at, try)
		case ctx.Err() != nil:
			return fmt.Errorf("cannot write the record of the state at %s: %w", k.at, ctx.Err())
		}
	}
}

func (k *kept) Lock(ctx context.Context, holder string, ttl time.Duration) (Lock, error) {
	if holder == "" || len(holder) > 256 || ttl <= 0 {
		return Lock{}, fmt.Errorf("cannot lock the state at %s: a holder with a name, and a time, are needed", k.at)
	}
	if err := k.conditional(ctx); err != nil {
		return Lock{}, err
	}
	l := Lock{Holder: holder, TTL: ttl, token: rand.Text()}
	err := k.write(ctx, func(r *record) (string, []byte, error) {
		now := k.now()
		if r.held(now) {
			return "", nil, &LockedError{Holder: r.Holder, Until: r.Until, Place: k.at.String()}
		}
		l.Until = now.Add(ttl).UTC().Truncate(time.Millisecond)
		l.Epoch = r.take(l)
		return "", nil, nil
	})
	if err != nil {
		return Lock{}, err
	}
	return l, nil
}

// conditional finds out once whether the place can be locked at all.
func (k *kept) conditional(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tried {
		return nil
	}
	if err := k.at.try(ctx); err != nil {
		return fmt.Errorf("cannot lock the state at %s: %w", k.at, err)
	}
	k.tried = true
	return nil
}

func (k *kept) Renew(ctx context.Context, l Lock) (Lock, error) {
	err := k.write(ctx, func(r *record) (string, []byte, error) {
		if err := r.lockedBy(l); err != nil {
			return "", nil, err
		}
		l.Until = k.now().Add(l.TTL).UTC().Truncate(time.Millisecond)
		r.Until = l.Until
		return "", nil, nil
	})
	if err != nil {
		return Lock{}, fmt.Errorf("cannot renew the lock of %q: %w", l.Holder, err)
	}
	return l, nil
}

func (k *kept) Unlock(ctx context.Context, l Lock) error {
	err := k.write(ctx, func(r *record) (string, []byte, error) {
		if err := r.lockedBy(l); err != nil {
			return "", nil, err
		}
		r.release()
		return "", nil, nil
	})
	if err != nil && !errors.Is(err, ErrLockLost) {
		return fmt.Errorf("cannot give back the lock of %q: %w", l.Holder, err)
	}
	return nil
}

// enter waits for its turn.
func (k *kept) enter(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot wait to write the state at %s: %w", k.at, ctx.Err())
	}
}

func (k *kept) Save(ctx context.Context, l Lock, content []byte) (Version, error) {
	if len(content) > archive.MaxBytes {
		return Version{}, fmt.Errorf("cannot save the state at %s: %w: it may have %d bytes", k.at, archive.ErrTooLarge, archive.MaxBytes)
	}
	if err := k.enter(ctx); err != nil {
		return Version{}, err
	}
	defer func() { <-k.turn }()
	sum := sha256.Sum256(content)
	var v Version
	var wrote []string
	err := k.write(ctx, func(r *record) (string, []byte, error) {
		if err := r.lockedBy(l); err != nil {
			return "", nil, err
		}
		v = r.add(l.Epoch, k.now(), int64(len(content)), hex.EncodeToString(sum[:]))
		wrote = append(wrote, v.file())
		return v.file(), content, nil
	})
	if err != nil {
		if errors.Is(err, ErrLockLost) && len(wrote) > 0 {
			// It is not listed; this spares the place what is of no use.
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
			_ = k.at.remove(late, slices.Compact(wrote))
			cancel()
		}
		return Version{}, fmt.Errorf("cannot save the state: %w", err)
	}
	return v, nil
}

func (k *kept) Load(ctx context.Context, v Version) ([]byte, error) {
	r, _, _, err := k.load(ctx)
	if err != nil {
		return nil, err
	}
	if !r.complete(v) {
		return nil, fmt.Errorf("cannot load version %s from %s: %w", v, k.at, ErrNoVersion)
	}
	content, err := k.at.read(ctx, v.file())
	switch {
	case errors.Is(err, errAbsent):
		return nil, fmt.Errorf("cannot load version %s from %s: %w", v, k.at, ErrNoVersion)
	case err != nil:
		return nil, fmt.Errorf("cannot load version %s from %s: %w", v, k.at, err)
	}
	if s, ok := r.saved(v); ok {
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != s.Digest {
			return nil, fmt.Errorf("cannot load version %s from %s: %w", v, k.at, ErrDamaged)
		}
	}
	return content, nil
}

func (k *kept) Versions(ctx context.Context) ([]Version, error) {
	r, _, _, err := k.load(ctx)
	if err != nil {
		return nil, err
	}
	files, err := k.at.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list the versions at %s: %w", k.at, err)
	}
	versions := r.versions(files)
	if len(versions) == 0 && len(r.Ends) > 0 {
		return nil, fmt.Errorf("cannot list the versions at %s: %w", k.at, ErrGone)
	}
	return versions, nil
}

func (k *kept) Prune(ctx context.Context, l Lock, after Version, keep int) ([]Version, error) {
	if err := k.enter(ctx); err != nil {
		return nil, err
	}
	defer func() { <-k.turn }()
	r, _, _, err := k.load(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.lockedBy(l); err != nil {
		return nil, fmt.Errorf("cannot delete old versions: %w", err)
	}
	files, err := k.at.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list the versions at %s: %w", k.at, err)
	}
	versions := slices.DeleteFunc(r.versions(files), func(v Version) bool { return v.Compare(after) <= 0 })
	old := versions[:max(0, len(versions)-max(keep, 1))]
	if len(old) == 0 {
		return nil, nil
	}
	names := make([]string, len(old))
	for i, v := range old {
		names[i] = v.file()
	}
	if err := k.at.remove(ctx, names); err != nil {
		return nil, fmt.Errorf("cannot delete old versions at %s: %w", k.at, err)
	}
	return old, nil
}
