package wake

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// Queue is the queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Priorities of the queue, for lack of others 0: what a commit changed goes
// before what only takes note of it.
const (
	PriorityChanged   = 100
	PriorityUnchanged = -100
)

// TouchDelay collects what happens at the same time.
const TouchDelay = 100 * time.Millisecond

// Retries of errors of the API server itself: quick at first, bounded so that
// the state converges soon after an outage ends.
const (
	MinRetry = 750 * time.Millisecond
	MaxRetry = 2 * time.Minute
)

// Retries are the first and the longest pause of an object whose reconcile failed with an
// error. Zero stands for MinRetry and MaxRetry.
type Retries struct{ Min, Max time.Duration }

// RateLimiter is the pause of each object.
func (r Retries) RateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return spread{workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](cmp.Or(r.Min, MinRetry), cmp.Or(r.Max, MaxRetry))}
}

// spread shortens each pause by a fifth at most, at random: thousands of objects whose server failed at one moment
// would ask it again at one moment, each time.
type spread struct {
	workqueue.TypedRateLimiter[reconcile.Request]
}

func (s spread) When(request reconcile.Request) time.Duration {
	pause := s.TypedRateLimiter.When(request)
	return pause - time.Duration(rand.Float64()*float64(pause)/5)
}

// Enqueue adds an object to the queue after a while.
func Enqueue(queue Queue, name types.NamespacedName, priority int, after time.Duration) {
	request := reconcile.Request{NamespacedName: name}
	if q, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		q.AddWithOpts(priorityqueue.AddOpts{Priority: &priority, After: after}, request)
		return
	}
	queue.AddAfter(request, after)
}

// OnRelease enqueues what holds Clusters back when there is news of them.
func OnRelease(tier *firstsync.Tier, kind string) ctrlsource.Source {
	return ctrlsource.Func(func(_ context.Context, queue Queue) error {
		tier.OnRelease(kind, func(name types.NamespacedName) { Enqueue(queue, name, PriorityChanged, TouchDelay) })
		return nil
	})
}

// Jitter spreads intervals, so that objects that were created together do not
// stay together.
type Jitter func(time.Duration) time.Duration

// NewJitter spreads by 5 % either way, as Flux does by default.
func NewJitter(random func() float64) Jitter { return Spread(random, 0.05) }

// Spread spreads by a share of the interval either way. random returns numbers from 0
// to 1; it must be safe for concurrent use.
func Spread(random func() float64, share float64) Jitter {
	return func(d time.Duration) time.Duration {
		return max(time.Second, d+time.Duration((random()*2-1)*share*float64(d)))
	}
}
