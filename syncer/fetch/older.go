package fetch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/syncer/park"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// Clusters of a rollout have older revisions than the newest one. Those that somebody
// retains are fetched here, by the reconciler of the source: with its credentials, its
// verification and its rules, and within its bounds.

// ReasonRevisionNotFetched: clusters need an older revision of the source, or who refers to a
// suspended one needs the revision that it had, and that cannot be fetched.
const ReasonRevisionNotFetched = "RevisionNotFetched"

// Pauses between attempts to fetch older revisions. They are besides those of the source,
// whose newest revision is not to wait for an old one that may be gone for ever.
const (
	olderPause     = 5 * time.Second
	olderPauseMost = 15 * time.Minute
)

// dated is what is known of the older revisions of a source.
type dated struct {
	// generation of the object that they were fetched by, or unspecified. Another one may have
	// other rules.
	generation int64
	// failures in a row.
	failures int
}

// hasOlder reports whether somebody may retain revisions of a kind: those that Layers name.
func hasOlder(kind string) bool {
	return slices.Contains([]string{sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind}, kind)
}

// onWanted has a source reconciled of which a revision is missing.
func (s *Sources) onWanted(kind string) func(context.Context, wake.Queue) error {
	return func(_ context.Context, queue wake.Queue) error {
		s.Snapshots.OnWanted(func(key source.Key) {
			if key.Kind == kind {
				queue.Add(reconcile.Request{NamespacedName: key.NamespacedName})
			}
		})
		return nil
	}
}

// older fetches the revisions of a source that somebody retains and that are missing; all of
// them after a change of the object, which that of a suspended one is not yet. It returns how soon to try again, zero for no sooner
// than the source is fetched anyway. Only who leads the source tells of a failure.
func older[T sourceObject](ctx context.Context, s *Sources, kind sourceKind[T], key source.Key, obj T, led bool) time.Duration {
	if !hasOlder(key.Kind) {
		return 0
	}
	all, missing := s.Snapshots.Retained(key)
	s.mu.Lock()
	known := s.dated[key]
	if len(all) == 0 {
		delete(s.dated, key)
	}
	s.mu.Unlock()
	if len(all) == 0 {
		return 0
	}
	obj, generation := made(kind, obj, known.generation)
	if known.generation != generation && known.generation != 0 {
		missing = all
	}
	refused := kind.datable(obj)
	failed := false
	for _, revision := range missing {
		err := refused
		if err == nil {
			var got *fetched
			if got, err = fetchExactly(ctx, kind, key, obj, &meta.Artifact{Revision: revision}); err == nil {
				s.Snapshots.Keep(key, got.snapshot)
				continue
			}
			failed = true
			if errors.Is(context.Cause(ctx), park.ErrShare) {
				break // that says nothing of the revision
			}
		}
		if isNew := s.Snapshots.Fail(key, revision, err); isNew && led {
			s.event(ctx, obj, corev1.EventTypeWarning, ReasonRevisionNotFetched, "%s", s.Snapshots.Failure(key, revision))
		} else if isNew {
			log.FromContext(ctx).Error(err, "cannot fetch an older revision", "revision", revision)
		}
	}
	known.failures++
	if !failed {
		known = dated{generation: generation}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dated == nil {
		s.dated = map[source.Key]dated{}
	}
	s.dated[key] = known
	if !failed {
		return 0
	}
	return s.Jitter(min(olderPause<<min(known.failures-1, 10), olderPauseMost))
}

// unspecified stands for the generation by which a suspended source was made: that is not known.
const unspecified = -1

// made is an object as its older revisions are fetched, and the generation of that: a suspended
// one as its newest revision was made, as what its spec says by now is of no effect. It remains
// what known says of those that were fetched before, if they were.
func made[T sourceObject](kind sourceKind[T], obj T, known int64) (T, int64) {
	if fields := kind.describe(obj); !fields.suspend || *fields.artifact == nil {
		return obj, obj.GetGeneration()
	}
	return asMade(kind, obj), cmp.Or(known, unspecified)
}

// again is a result with which the source is looked at again after a time at most, unless
// that is zero.
func again(after time.Duration, result ctrl.Result) ctrl.Result {
	if after > 0 && (result.RequeueAfter == 0 || after < result.RequeueAfter) {
		result.RequeueAfter = after
	}
	return result
}
