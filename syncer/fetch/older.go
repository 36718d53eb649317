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
	// olderMost is how long a reconcile goes on to the next one. One that takes longer is its last, so that the newest
	// revision is looked for, and the fetches of other sources of the same repository come, in between.
	olderMost = 10 * time.Second
)

// dated is what is known of the older revisions of a source.
type dated struct {
	// generation of the object at the last look, or unspecified.
	generation int64
	// of has what is known of each that was retained then.
	of map[string]attempt
	// turn is the number of attempts, and failures that of the looks in a row in which one failed.
	turn, failures int
}

// attempt is what is known of one older revision.
type attempt struct {
	// generation of the object that it was fetched by, or unspecified. Another one may have other
	// rules.
	generation int64
	// failed is the turn in which it could not be fetched last, zero if it could, or was not tried.
	failed int
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
// them after a change of the object, which that of a suspended one is not yet. Those that failed come
// last, the latest at the end. It returns how soon to go on, or to try again, zero for no sooner
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
	of := make(map[string]attempt, len(all))
	var todo, left []string
	for _, revision := range all {
		a, ok := known.of[revision]
		if !ok { // if it is there, it was the newest one until now
			a.generation = cmp.Or(known.generation, generation)
		}
		if of[revision] = a; a.generation != generation || slices.Contains(missing, revision) {
			todo = append(todo, revision)
		}
	}
	slices.SortStableFunc(todo, func(a, b string) int { return cmp.Compare(of[a].failed, of[b].failed) })
	refused, suspended := kind.datable(obj), kind.describe(obj).suspend
	failed := false
	going, end := context.WithTimeout(ctx, olderMost)
	defer end()
	for i, revision := range todo {
		if i > 0 && going.Err() != nil {
			left = todo[i:]
			break
		}
		err := refused
		var got *fetched
		if err == nil {
			got, err = fetchExactly(ctx, kind, key, obj, &meta.Artifact{Revision: revision})
		}
		if suspended && (err == nil || refused != nil || source.Answered(err)) {
			s.Snapshots.Answer(key) // its newest revision, which would tell, is not asked for
		}
		if err == nil {
			s.Snapshots.Keep(key, got.snapshot)
			of[revision] = attempt{generation: generation}
			continue
		}
		if refused == nil {
			failed = true
			known.turn++
			of[revision] = attempt{of[revision].generation, known.turn}
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
	known.generation, known.of = generation, of
	if known.failures++; !failed {
		known.failures = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dated == nil {
		s.dated = map[source.Key]dated{}
	}
	s.dated[key] = known
	switch {
	case len(left) > 0 && (!failed || of[left[0]].failed == 0):
		return s.Jitter(olderPause) // there are those that did not fail
	case !failed:
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
