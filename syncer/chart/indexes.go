package chart

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/cascade-gitops/cascade/syncer/flight"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// DefaultIndexMaxBytes bounds the index of a repository, as in Flux.
const DefaultIndexMaxBytes = 50 << 20

// DefaultIndexCacheBytes bounds what all indexes together have in memory.
const DefaultIndexCacheBytes = 64 << 20

// Indexes reads the indexes of http(s) repositories. Objects that name the same
// repository with the same credential share one index: it is asked for once by
// those that ask at the same time, transferred only when the server says that it
// is another one, and parsed only when it really is. Indexes go with the last
// object that uses them. It is safe for concurrent use.
type Indexes struct {
	dir      string
	maxBytes int64
	cacheMax int64
	// parsing has room for those that parse at the same time.
	parsing chan struct{}
	asking  flight.Group[*Index]
	now     func() time.Time

	mu     sync.Mutex
	shared map[string]*shared
	users  map[source.Key]map[string]struct{}
	turn   int64
	counts IndexCounts
}

// IndexCounts tells what was done since the start.
type IndexCounts struct {
	// Requests for an index, and those after which it was transferred.
	Requests, Downloads int64
	// Parses of an index, and those because there was no room to keep it.
	Parses, Reloads int64
}

// shared is one repository.
type shared struct {
	key    string
	url    *url.URL
	client *http.Client
	users  map[source.Key]struct{}
	// used is the turn in which the index was last asked for.
	used int64

	index *Index
	// refused is why the newest index, of this revision, was not taken. It is not
	// parsed again while the revision is the same. The revision is empty if the
	// index was not read to its end.
	refused         error
	refusedRevision string
	// etag and modified are what the server said of it.
	etag, modified string
	// others has the revisions instead of which the server had another index, and when that was seen.
	others map[string]time.Time
}

// NewIndexes keeps files in dir, which have no names there. An index of more than
// maxBytes is refused; above cacheBytes in memory, those that were not used for the
// longest time are read from their files again.
func NewIndexes(dir string, maxBytes, cacheBytes int64) *Indexes {
	return &Indexes{
		dir: dir, maxBytes: maxBytes, cacheMax: cacheBytes, parsing: make(chan struct{}, 2), now: time.Now,
		shared: map[string]*shared{}, users: map[source.Key]map[string]struct{}{},
	}
}

// Counts returns what was done so far.
func (x *Indexes) Counts() IndexCounts {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.counts
}

// Fetch asks the server for the index of a repository, for the source with this
// key, and keeps it for that source in place of what it used before. The same
// pointer is returned as long as the index is the same.
func (x *Indexes) Fetch(ctx context.Context, user source.Key, r Repository) (*Index, error) {
	s, err := x.use(user, r)
	if err != nil {
		return nil, err
	}
	x.retain(user, map[string]bool{s.key: true})
	return x.ask(ctx, s, unknown)
}

// unknown has the server asked whatever is there.
func unknown() (*Index, bool) { return nil, false }

// renew is Fetch without an end to the use of other repositories.
func (x *Indexes) renew(ctx context.Context, user source.Key, r Repository) error {
	s, err := x.use(user, r)
	if err != nil {
		return err
	}
	_, err = x.ask(ctx, s, unknown)
	return err
}

// ErrOtherIndex: the index of a repository is another one by now than the one in which a chart is to
// be found.
var ErrOtherIndex = errors.New("the repository has another index by now")

// ErrNoAnswer: another index is known than the one in which a chart is to be found, and the server does not
// say whether it has that.
var ErrNoAnswer = errors.New("the repository does not answer")

// unanswered is an ErrNoAnswer that tells why.
type unanswered struct{ error }

func (u unanswered) Is(target error) bool { return target == ErrNoAnswer }

func (u unanswered) Unwrap() error { return u.error }

// AskAgain is after how long a server is asked again for an index in whose place it had another one: where
// several machines answer for it, some of them have a new index later.
const AskAgain = 10 * time.Minute

// get is Fetch without asking the server for what is there already, and without an
// end to the use of other repositories. If the repository has a revision, no other index than that is
// returned. All who look for one that the server does not have share the answer.
func (x *Indexes) get(ctx context.Context, s *shared, r Repository) (*Index, error) {
	asked := false
	index, err := x.ask(ctx, s, func() (*Index, bool) {
		x.mu.Lock()
		defer x.mu.Unlock()
		asked = s.index == nil || r.Revision != "" && s.index.Revision != r.Revision && !s.hasOther(r, x.now())
		return s.index, !asked
	})
	if r.Revision == "" || err == nil && index.Revision == r.Revision {
		return index, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, other := s.others[r.Revision]; err != nil && !other {
		if s.index != nil {
			err = unanswered{err}
		}
		return nil, err
	}
	if asked { // If it does not answer any more, not everybody has to wait for that.
		s.noteOther(r.Revision, x.now())
	}
	return nil, failf(ReasonPull, "%w: %s of %s, and not %s", ErrOtherIndex, s.index.Revision, shown(s.url), r.Revision)
}

// hasOther reports whether it is known that the server has another index than that of a repository. It is
// called with the lock held.
func (s *shared) hasOther(r Repository, now time.Time) bool {
	seen, other := s.others[r.Revision]
	return other && (r.Held || now.Sub(seen) < AskAgain)
}

// noteOther notes that the server has another index than that of a revision. It is called with the lock held.
func (s *shared) noteOther(revision string, now time.Time) {
	if s.others == nil {
		s.others = map[string]time.Time{}
	}
	// A revision that nobody looks for any more is forgotten.
	maps.DeleteFunc(s.others, func(_ string, seen time.Time) bool { return now.Sub(seen) > 24*time.Hour })
	s.others[revision] = now
}

// Forget drops what is kept for a source that is gone.
func (x *Indexes) Forget(user source.Key) { x.retain(user, nil) }

// retain ends the use of all repositories but these.
func (x *Indexes) retain(user source.Key, keep map[string]bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key := range x.users[user] {
		if keep[key] {
			continue
		}
		delete(x.users[user], key)
		delete(x.shared[key].users, user)
		if len(x.shared[key].users) == 0 {
			delete(x.shared, key)
		}
	}
	if len(x.users[user]) == 0 {
		delete(x.users, user)
	}
}

// use registers that a source uses a repository.
func (x *Indexes) use(user source.Key, r Repository) (*shared, error) {
	u, err := r.parse()
	if err != nil {
		return nil, err
	}
	if u.Scheme == OCI {
		return nil, failf(source.ReasonURLInvalid, "cannot fetch index of Helm repository: a registry has none")
	}
	key := r.key()
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.shared[key]
	if s == nil {
		client, err := r.client(u)
		if err != nil {
			return nil, err
		}
		u.User = nil // the client logs in
		s = &shared{key: key, url: u, client: client, users: map[source.Key]struct{}{}}
		x.shared[key] = s
	}
	s.users[user] = struct{}{}
	if x.users[user] == nil {
		x.users[user] = map[string]struct{}{}
	}
	x.users[user][key] = struct{}{}
	x.turn++
	s.used = x.turn
	return s, nil
}

// ask asks the server, unless the index is known, or waits for another caller that
// asks it. What is known is looked up when no other caller asks any more: one that has
// just ended made it known.
func (x *Indexes) ask(ctx context.Context, s *shared, known func() (*Index, bool)) (*Index, error) {
	index, err := x.asking.Do(ctx, s.key, known, func() (*Index, error) { return x.fetch(ctx, s) })
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil, failf(ReasonFailed, "cannot fetch index of Helm repository %s: %w", shown(s.url), err)
	}
	return index, err
}

func (x *Indexes) fetch(ctx context.Context, s *shared) (*Index, error) {
	x.mu.Lock()
	known, refused, refusedRevision, header := s.index, s.refused, s.refusedRevision, http.Header{"Accept-Encoding": {"gzip"}}
	if s.etag != "" {
		header.Set("If-None-Match", s.etag)
	}
	if s.modified != "" {
		header.Set("If-Modified-Since", s.modified)
	}
	x.counts.Requests++
	x.mu.Unlock()
	res, err := get(ctx, s.client, indexURL(s.url), header)
	if err != nil {
		return nil, failf(ReasonFailed, "cannot fetch index of Helm repository: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotModified {
		if refused != nil {
			return nil, refused
		}
		return known, nil
	}
	raw, size, revision, err := x.spool(ctx, s, res)
	index := known
	if err == nil {
		defer raw.Close()
		switch {
		case known != nil && known.Revision == revision:
		case refused != nil && refusedRevision == revision:
			err = refused
		default:
			index, err = x.parse(ctx, raw, size, revision)
		}
	}
	// An index with an error keeps it until the server has another one.
	lasting := err == nil || ctx.Err() == nil && (source.ReasonOf(err) == ReasonIndexation || source.ReasonOf(err) == source.ReasonLimitExceeded)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.counts.Downloads++
	if !lasting {
		return nil, err
	}
	s.etag, s.modified, s.refused, s.refusedRevision = res.Header.Get("ETag"), res.Header.Get("Last-Modified"), err, revision
	if err != nil {
		return nil, err
	}
	if known != nil && known.Revision != revision {
		s.noteOther(known.Revision, x.now())
	}
	s.index = index
	x.shrink(s)
	return index, nil
}

// spool writes the body into a file while it computes the digest.
func (x *Indexes) spool(ctx context.Context, s *shared, res *http.Response) (_ *os.File, size int64, revision string, err error) {
	body, err := inflated(res)
	if err != nil {
		return nil, 0, "", failf(ReasonFailed, "cannot fetch %s: %w", shown(indexURL(s.url)), err)
	}
	raw, err := unnamed(x.dir)
	if err != nil {
		return nil, 0, "", err
	}
	h := sha256.New()
	limit := limitf("the index of Helm repository %s has more than %d bytes; raise --helm-index-max-size or shrink it", shown(s.url), x.maxBytes)
	size, err = io.Copy(io.MultiWriter(raw, h), &capped{r: body, left: x.maxBytes, err: limit})
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = raw.Close()
		if errors.Is(err, limit) {
			return nil, 0, "", err
		}
		return nil, 0, "", failf(ReasonFailed, "cannot fetch %s: %w", shown(indexURL(s.url)), err)
	}
	return raw, size, "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

func (x *Indexes) parse(ctx context.Context, raw io.ReaderAt, size int64, revision string) (*Index, error) {
	select {
	case x.parsing <- struct{}{}:
	case <-ctx.Done():
		return nil, wrapIndex(ctx.Err())
	}
	defer func() { <-x.parsing }()
	x.mu.Lock()
	x.counts.Parses++
	x.mu.Unlock()
	index, err := parse(ctx, raw, size, revision, x.dir)
	if err != nil {
		return nil, wrapIndex(err)
	}
	return index, nil
}

// shrink makes room for an index: those that were not used for the longest time
// stay in their files only.
func (x *Indexes) shrink(keep *shared) {
	for {
		var total int64
		var oldest *shared
		for _, s := range x.shared {
			if s.index == nil {
				continue
			}
			weight := s.index.resident()
			if total += weight; weight > 0 && s != keep && (oldest == nil || s.used < oldest.used) {
				oldest = s
			}
		}
		if total <= x.cacheMax || oldest == nil {
			return
		}
		oldest.index.charts.Store(nil)
	}
}

// versions of a chart in the index of a repository, the newest first. The index is of its revision, if it has
// one.
func (x *Indexes) versions(ctx context.Context, s *shared, r Repository, name string) ([]entry, error) {
	index, err := x.get(ctx, s, r)
	if err != nil {
		return nil, err
	}
	reloaded := index.resident() == 0
	entries, ok, err := index.versions(ctx, name)
	if err != nil {
		return nil, failf(ReasonPull, "%w", err)
	}
	if reloaded {
		x.mu.Lock()
		x.counts.Reloads++
		x.shrink(s)
		x.mu.Unlock()
	}
	switch {
	case !ok:
		return nil, failf(ReasonReference, "Helm repository %s has no chart '%s'", shown(s.url), name)
	case len(entries) == 0:
		return nil, failf(ReasonReference, "Helm repository %s has no version of chart '%s'", shown(s.url), name)
	}
	return entries, nil
}
