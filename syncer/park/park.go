// Package park lets a reconcile wait without a worker.
//
// A controller has a few workers. An action of Helm that waits for minutes would keep
// one of them all the time, and as many releases that never become ready would stop all
// others. Here the reconcile parks when it begins to wait: its worker goes on with other
// objects, and the reconcile goes on in a goroutine of its own.
//
// Invariants:
//
//   - one object is reconciled once at a time, parked or not;
//   - as many reconciles run as there are workers, besides as many that have parked and
//     go on after their wait. The others only wait;
//   - what is asked of an object while its reconcile is parked is done after it;
//   - all goroutines end with the manager, which waits for them.
//
// Failure model: an error of a reconcile that has parked is logged, and the object is
// tried again after a pause that grows, as the queue does it for the others. Reconciles
// that wait beyond the bound keep their worker.
package park

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Lot is where the reconciles of one controller park. It is the controller's
// reconciler; the one that it is made for does the work. It is safe for concurrent use.
type Lot struct {
	inner reconcile.Reconciler
	// places are taken by reconciles that go on after a wait.
	places chan struct{}
	// most bounds the reconciles that are parked.
	most    int
	backoff Backoff

	mu     sync.Mutex // guards what follows
	busy   map[reconcile.Request]*job
	parked int
	queue  Queue
	// stop ends with the controller.
	stop context.Context
	jobs sync.WaitGroup
}

// Queue is that of the controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Backoff tells how long after a failure an object is tried again.
type Backoff interface {
	When(reconcile.Request) time.Duration
	Forget(reconcile.Request)
}

// New returns a lot for the reconciles of inner. workers is the number of the
// controller's workers; at most so many of those that waited go on at the same time. Of
// those that wait, most are parked.
func New(inner reconcile.Reconciler, workers, most int, backoff Backoff) *Lot {
	return &Lot{
		inner: inner, places: make(chan struct{}, workers), most: most, backoff: backoff,
		busy: map[reconcile.Request]*job{}, stop: context.Background(),
	}
}

// job is one reconcile under way.
type job struct {
	lot *Lot
	// freed is closed when the job parks, done when it has ended.
	freed, done chan struct{}
	result      reconcile.Result
	err         error

	// The job's own goroutine uses these: isParked says that it has no worker, holds that
	// it has a place.
	isParked, holds bool
	// again: the object was asked for meanwhile. The lot's lock guards it.
	again bool
}

// jobKey marks the context of a job.
type jobKey struct{}

// Open gives the lot the queue of its controller, and the controller's context. The
// controller calls it as one of its sources.
func (l *Lot) Open(ctx context.Context, queue Queue) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue, l.stop = queue, ctx
	return nil
}

// Start implements manager.Runnable: it ends when all reconciles have, after ctx ended.
func (l *Lot) Start(ctx context.Context) error {
	<-ctx.Done()
	l.jobs.Wait()
	return nil
}

// Reconcile implements reconcile.Reconciler. It returns when the reconcile is done, or
// parks.
func (l *Lot) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	j := &job{lot: l, freed: make(chan struct{}), done: make(chan struct{})}
	l.mu.Lock()
	if running := l.busy[req]; running != nil {
		running.again = true
		l.mu.Unlock()
		return reconcile.Result{}, nil
	}
	l.busy[req] = j
	stop := l.stop
	l.jobs.Add(1)
	l.mu.Unlock()
	// The controller's own context for this call ends with the call.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unlink := context.AfterFunc(stop, cancel)
	go func() {
		defer l.jobs.Done()
		defer cancel()
		defer unlink()
		j.run(own, req)
	}()
	select {
	case <-j.done:
	case <-j.freed:
	}
	select {
	case <-j.freed: // it may have ended since
		return reconcile.Result{}, nil
	default:
		return j.result, j.err
	}
}

// run does the work of a job, and asks for what follows from it if nobody waits for the
// result any more.
func (j *job) run(ctx context.Context, req reconcile.Request) {
	l := j.lot
	defer close(j.done)
	j.result, j.err = l.inner.Reconcile(context.WithValue(ctx, jobKey{}, j), req)
	if j.holds {
		<-l.places
	}
	l.mu.Lock()
	delete(l.busy, req)
	if j.isParked {
		l.parked--
	}
	again, queue := j.again, l.queue
	l.mu.Unlock()
	if !j.isParked || queue == nil || ctx.Err() != nil {
		return // the worker has the result, or nobody is left to do more
	}
	if j.err != nil {
		log.FromContext(ctx).Error(j.err, "Reconciler error")
	} else {
		l.backoff.Forget(req)
	}
	switch {
	case again:
		queue.Add(req)
	case j.err != nil:
		queue.AddAfter(req, l.backoff.When(req))
	//lint:ignore SA1019 a reconciler may ask for it
	case j.result.Requeue:
		queue.AddAfter(req, l.backoff.When(req))
	case j.result.RequeueAfter > 0:
		queue.AddAfter(req, j.result.RequeueAfter)
	}
}

// Wait calls f, which does nothing but wait, without a worker. It returns after f has,
// when the reconcile may go on. Without a lot in the context, f is just called.
func Wait[T any](ctx context.Context, f func() T) T {
	j, _ := ctx.Value(jobKey{}).(*job)
	if j == nil || !j.park() {
		return f()
	}
	defer j.resume(ctx)
	return f()
}

// park gives the worker or the place away; it is false if there is no room to park.
func (j *job) park() bool {
	l := j.lot
	if j.isParked {
		if j.holds {
			<-l.places
			j.holds = false
		}
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.parked >= l.most {
		return false
	}
	l.parked++
	j.isParked = true
	close(j.freed)
	return true
}

// resume takes a place. A job whose context has ended needs none: it has little left to
// do, and must not wait for those that do not know yet.
func (j *job) resume(ctx context.Context) {
	select {
	case j.lot.places <- struct{}{}:
		j.holds = true
	case <-ctx.Done():
	}
}

// Parked is the number of reconciles that have parked and not ended.
func (l *Lot) Parked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parked
}
