package remote

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// recordedHolds is how long what was read of a source, or why it could not be, is used for the
// next children.
const recordedHolds = time.Second

// revisions are those that sources have on record, as the API server had them a moment
// ago. Each source is read by one at a time, and who waits for that has what was read after he
// asked. It is safe for concurrent use.
type revisions struct {
	mu    sync.Mutex // guards what follows, and is not held over a call
	begun int        // counts the readings
	read  map[source.Key]*recorded
}

// recorded is what is known of one source. turn is held while it is read.
type recorded struct {
	turn chan struct{}
	last reading
}

// reading is what a source had on record, or why it could not be read, and which of all readings it was.
type reading struct {
	revision, digest string
	err              error
	at               time.Time
	number           int
}

// asked is the number of the last reading that has begun: a later one sees all that is on record by now.
func (r *revisions) asked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun
}

// known is what is known of a source, and whether it will do.
func (r *revisions) known(key source.Key, will func(reading) bool) (*recorded, reading, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.read == nil {
		r.read = map[source.Key]*recorded{}
	}
	o := r.read[key]
	if o == nil {
		o = &recorded{turn: make(chan struct{}, 1)}
		r.read[key] = o
	}
	return o, o.last, !o.last.at.IsZero() && will(o.last)
}

// of is the revision of the artifact in a source's status, empty without one, by the last reading if that will do. The
// cache will not: it may be behind just where it matters.
func (r *revisions) of(ctx context.Context, reader client.Reader, key source.Key, now time.Time, will func(reading) bool) reading {
	o, last, ok := r.known(key, will)
	if ok {
		return last
	}
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return reading{err: ctx.Err()}
	}
	if _, last, ok = r.known(key, will); ok {
		return last
	}
	r.mu.Lock()
	r.begun++
	number := r.begun
	r.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(sourcev1.GroupVersion.WithKind(key.Kind))
	err := reader.Get(limited, key.NamespacedName, u)
	if ctx.Err() != nil {
		return reading{err: ctx.Err()} // this child's run ended, which says nothing to others
	}
	if err != nil {
		err = fmt.Errorf("cannot read %s %s: %w", key.Kind, key.NamespacedName, err)
	}
	revision, _, _ := unstructured.NestedString(u.Object, "status", "artifact", "revision")
	digest, _, _ := unstructured.NestedString(u.Object, "status", "artifact", "digest")
	r.mu.Lock()
	defer r.mu.Unlock()
	o.last = reading{revision, digest, err, now, number}
	return o.last
}

// behind is an error while a replica that has just come to drive the child may be behind the one
// before it, which sent another revision than this one has: its watches may be late, after a pause or
// a partition, or it could not fetch yet what the leader recorded. It would send older content, and
// newer again after that. What the source has on record says who is right; once a replica has
// looked at the child, it goes from there by itself. Of what the manifests of providers are of, a record says
// nothing but that the content is another one.
func (s *seeding) behind(ctx context.Context, rec *record.Record) error {
	if s.tenure == nil {
		return nil
	}
	if had := rec.Attempted.Revision; s.pin == nil && s.snapshot != nil && had != "" && had != s.snapshot.Revision {
		if err := s.lags(ctx, layerSource(s.layer), s.snapshot, "revision "+had); err != nil {
			return err
		}
	}
	if had := rec.Attempted.Digest; s.components.snapshot != nil && had != "" && had != s.rendered.digest {
		if key, _ := componentSource(s.layer); s.layer.Spec.SourceRef == nil || key != layerSource(s.layer) {
			return s.lags(ctx, key, s.components.snapshot, "what may be of another revision")
		}
	}
	return nil
}

// lags is an error unless a source has the revision on record of which this replica has a snapshot.
func (s *seeding) lags(ctx context.Context, key source.Key, has *source.Snapshot, sent string) error {
	now := s.Now()
	says := s.revisions.of(ctx, s.Cluster, key, now, func(last reading) bool { return now.Sub(last.at) < recordedHolds })
	if says.err == nil && says.revision == has.Revision {
		s.notes.due = time.Time{}
		return nil
	}
	// Its snapshot wakes the child; a source whose record was late does not.
	pause := waitPause
	if now.Sub(s.run.notes.began) < waitPause {
		pause = progressPause
	}
	s.notes.due = now.Add(s.jittered(pause))
	if says.err != nil {
		return waitsBecause(v1alpha1.ReasonSourceNotReady, "another replica sent %s to this child, and whether revision %s is newer is not known: %w", sent, has.Revision, says.err)
	}
	return waitsBecause(v1alpha1.ReasonSourceNotReady, "another replica sent %s to this child; revision %s of %s %s has not been fetched by this one yet, which has %s",
		sent, says.revision, key.Kind, key.NamespacedName, has.Revision)
}

// unfetched reports whether a replica may not have what the layer's sources have on record, which it follows: the
// leader may have applied by then what takes a layer off the child and gives its objects to this one. That is read
// by what comes after asked, as it was recorded before the Layers that are asked about changed.
func (s *seeding) unfetched(ctx context.Context, asked int) bool {
	if s.tenure == nil {
		return false
	}
	var keys []source.Key
	if s.layer.Spec.SourceRef != nil {
		keys = append(keys, layerSource(s.layer))
	}
	if key, _ := componentSource(s.layer); key.Name != "" && !slices.Contains(keys, key) {
		keys = append(keys, key)
	}
	return slices.ContainsFunc(keys, func(key source.Key) bool {
		says := s.revisions.of(ctx, s.Cluster, key, s.Now(), func(last reading) bool { return last.number > asked })
		newest := s.seen(key)
		if says.err != nil || newest == nil || newest != s.Snapshots.Get(key) || says.revision != newest.Revision {
			return true
		}
		// A repository that includes others has one revision with what it included before.
		as := s.Snapshots.Recorded(key)
		return as != "" && as != says.digest
	})
}
