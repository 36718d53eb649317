package remote

import (
	"context"
	"fmt"
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
// ago. It is safe for concurrent use.
type revisions struct {
	mu   sync.Mutex // held while a source is read: all others need it as well
	read map[source.Key]recordedRevision
}

type recordedRevision struct {
	revision string
	err      error
	at       time.Time
}

// of is the revision of the artifact in a source's status, empty without one, as it was read within holds. The cache
// will not do: it may be behind just where it matters.
func (r *revisions) of(ctx context.Context, reader client.Reader, key source.Key, now time.Time, holds time.Duration) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.read[key]; ok && now.Sub(known.at) < holds {
		return known.revision, known.err
	}
	reading, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(sourcev1.GroupVersion.WithKind(key.Kind))
	err := reader.Get(reading, key.NamespacedName, u)
	if ctx.Err() != nil {
		return "", ctx.Err() // this child's run ended, which says nothing to others
	}
	if err != nil {
		err = fmt.Errorf("cannot read %s %s: %w", key.Kind, key.NamespacedName, err)
	}
	revision, _, _ := unstructured.NestedString(u.Object, "status", "artifact", "revision")
	if r.read == nil {
		r.read = map[source.Key]recordedRevision{}
	}
	r.read[key] = recordedRevision{revision, err, now}
	return revision, err
}

// behind is an error while a replica that has just come to drive the child may be behind the one
// before it, which sent another revision than this one has: its watches may be late, after a pause or
// a partition, or it could not fetch yet what the leader recorded. It would send older content, and
// newer again after that. What the source has on record says who is right; once a replica has
// looked at the child, it goes from there by itself.
func (s *seeding) behind(ctx context.Context, rec *record.Record) error {
	had := rec.Attempted.Revision
	if s.tenure == nil || s.pin != nil || s.snapshot == nil || had == "" || had == s.snapshot.Revision {
		return nil
	}
	key, now := layerSource(s.layer), s.Now()
	says, err := s.revisions.of(ctx, s.Cluster, key, now, recordedHolds)
	if err == nil && says == s.snapshot.Revision {
		s.notes.due = time.Time{}
		return nil
	}
	// Its snapshot wakes the child; a source whose record was late does not.
	pause := waitPause
	if now.Sub(s.run.notes.began) < waitPause {
		pause = progressPause
	}
	s.notes.due = now.Add(s.jittered(pause))
	if err != nil {
		return waitsBecause(v1alpha1.ReasonSourceNotReady, "another replica sent revision %s to this child, and whether revision %s is newer is not known: %w", had, s.snapshot.Revision, err)
	}
	return waitsBecause(v1alpha1.ReasonSourceNotReady, "another replica sent revision %s to this child; revision %s of %s %s has not been fetched by this one yet, which has %s",
		had, says, key.Kind, key.NamespacedName, s.snapshot.Revision)
}

// unfetched reports whether a replica may not have what the layer's source has on record, which it follows: the
// leader may have applied by then what takes a layer off the child and gives its objects to this one. That is read
// anew, as it was recorded before the Layers that are asked about changed.
func (s *seeding) unfetched(ctx context.Context) bool {
	if s.tenure == nil || s.layer.Spec.SourceRef == nil {
		return false
	}
	key := layerSource(s.layer)
	says, err := s.revisions.of(ctx, s.Cluster, key, s.Now(), 0)
	newest := s.seen(key)
	return err != nil || newest == nil || says != newest.Revision
}
