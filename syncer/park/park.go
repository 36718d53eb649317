// Package park lets a reconcile wait, and take long, without a worker.
//
// A controller has a few workers. An action of Helm that waits for minutes would keep
// one of them all the time, and as many releases that never become ready would stop all
// others. Here the reconcile parks when it begins to wait: its worker goes on with other
// objects, and the reconcile goes on in a goroutine of its own. A reconcile that does not
// say that it waits, and takes longer than most do, is moved aside: a server that does
// not answer keeps a worker for a moment only, and the next time for none. Who knows how
// soon an answer usually comes makes that moment shorter for a call (Late).
//
// Invariants:
//
//   - one object is reconciled once at a time, parked or not;
//   - as many reconciles run as there are workers, besides as many that have parked and
//     go on after their wait, and as many that take long as there is room for aside. The
//     others only wait;
//   - an object whose last reconcile took long is reconciled aside from the beginning, and those of
//     one namespace leave room to others there, where there are shares. Who is beyond the share, as
//     nobody knew that it takes long, is ended within a minute, and waits for a part of it then;
//   - the deadline of a reconcile stands still while it waits;
//   - what is asked of an object while its reconcile is parked is done after it;
//   - a panic is an error of the one object;
//   - all goroutines end with the manager, which waits for them.
//
// Failure model: an error of a reconcile that has parked is logged, and the object is
// tried again after a pause that grows, as the queue does it for the others. So is one that
// was ended (ErrShare). Reconciles that wait beyond the bound keep their worker. Those that take
// long and are within the share of their namespace keep what they have while there is no room aside.
package park

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// mostBeyond is how long those may be aside that are beyond the share of their namespace. It is what calls take
// at most that say nothing else of their time, so that none of these is ended.
const mostBeyond = time.Minute

// ErrShare is the cause of the end of a reconcile's context, and its error: it takes long, and as many of its namespace
// do already as may.
var ErrShare = errors.New("it takes long, and so do as many others of its namespace as may; it goes on once one of them has ended")

// Options of New.
type Options struct {
	// Workers is the number of the controller's workers. At most so many of those that
	// waited go on at the same time.
	Workers int
	// Parked bounds the reconciles that are parked.
	Parked int
	// Patience is how long a reconcile may take, without what it waits, before it is moved
	// aside; 0 moves none. Aside is how many there may be.
	Patience time.Duration
	Aside    int
	// Share is how many of one namespace may be aside: those that took long before wait for each other then, and leave room
	// to those of others, there and where they wait. Those of which that was not known may be beyond it for a minute, if there
	// is room. 0 bounds none.
	Share int
	// Deadline is how long a reconcile may run, without what it waits; 0 sets none.
	Deadline time.Duration
	// Backoff tells how long after a failure an object is tried again. It is not that of the
	// controller, which forgets each object that parks.
	Backoff Backoff
	// Watch, if set, watches a reconcile while it runs: it returns the context for it.
	Watch func(context.Context, reconcile.Request) (context.Context, Watch)
}

// Watch is told when a reconcile begins to run, and when it waits or has ended.
type Watch interface {
	Begin()
	End()
}

// Lot is where the reconciles of one controller park. It is the controller's
// reconciler; the one that it is made for does the work. It is safe for concurrent use.
type Lot struct {
	inner   reconcile.Reconciler
	options Options
	// places are taken by reconciles that go on after a wait, aside by those that take
	// long.
	places, aside chan struct{}

	mu     sync.Mutex // guards what follows
	busy   map[reconcile.Request]*job
	slow   map[reconcile.Request]struct{} // whose last reconcile took long
	shares map[string]*share              // by namespace
	parked int
	of     map[string]int // those that are parked, by namespace
	queue  Queue
	// stop ends with the controller.
	stop context.Context
	// ended is set before Start waits for jobs: none begins from then on.
	ended bool
	jobs  sync.WaitGroup
}

// Queue is that of the controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Backoff tells how long after a failure an object is tried again.
type Backoff interface {
	When(reconcile.Request) time.Duration
	Forget(reconcile.Request)
}

// New returns a lot for the reconciles of inner.
func New(inner reconcile.Reconciler, o Options) *Lot {
	return &Lot{
		inner: inner, options: o, places: make(chan struct{}, o.Workers), aside: make(chan struct{}, o.Aside),
		busy: map[reconcile.Request]*job{}, slow: map[reconcile.Request]struct{}{},
		shares: map[string]*share{}, of: map[string]int{}, stop: context.Background(),
	}
}

// job is one reconcile under way.
type job struct {
	lot       *Lot
	namespace string
	watch     Watch
	clock     *deadline
	end       context.CancelCauseFunc
	// freed is closed when the job parks, done when it has ended.
	freed, done chan struct{}
	result      reconcile.Result
	err         error

	// The lot's lock guards what follows.
	holds    hold
	isParked bool
	// aside: it runs aside. long: it took long. again: the object was asked for meanwhile.
	aside, long, again bool
	// late ends the patience with the stretch that runs, which are counted.
	late      *time.Timer
	stretches int
	// share is that of the namespace, if the job has a part of it.
	share *share
}

// share is what the jobs of one namespace have of the room aside.
type share struct {
	taken chan struct{}
	users int // those who have a part, or wait for one; the lot's lock guards it
}

// hold is what a job has while it runs.
type hold int

const (
	nothing hold = iota
	worker
	place
	room // aside
)

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

// NeedLeaderElection is false: who does not lead the tier may have something to do as well.
func (l *Lot) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable: it ends when all reconciles have, after ctx ended.
func (l *Lot) Start(ctx context.Context) error {
	<-ctx.Done()
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.jobs.Wait()
	return nil
}

// Reconcile implements reconcile.Reconciler. It returns when the reconcile is done, or
// parks. It does nothing after the lot ended.
func (l *Lot) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	j := &job{lot: l, namespace: req.Namespace, holds: worker, freed: make(chan struct{}), done: make(chan struct{})}
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return reconcile.Result{}, nil
	}
	if running := l.busy[req]; running != nil {
		running.again = true
		l.mu.Unlock()
		return reconcile.Result{}, nil
	}
	l.busy[req] = j
	if _, slow := l.slow[req]; slow {
		j.aside = j.free()
	}
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
	within, end := context.WithCancelCause(context.WithValue(ctx, jobKey{}, j))
	defer end(nil)
	j.end = end
	if l.options.Deadline > 0 {
		clock, stop := withDeadline(within, l.options.Deadline)
		defer stop()
		j.clock, within = clock, clock
	}
	if l.options.Watch != nil {
		within, j.watch = l.options.Watch(within, req)
	}
	j.proceed(within)
	j.result, j.err = l.reconcile(within, req)
	if j.err != nil && errors.Is(context.Cause(within), ErrShare) {
		j.err = ErrShare // what came of it says nothing of the object
	}
	l.mu.Lock()
	j.rest()
	delete(l.busy, req)
	delete(l.slow, req)
	if j.long {
		l.slow[req] = struct{}{}
	}
	parked := j.isParked
	if parked {
		l.parked--
		if l.of[j.namespace]--; l.of[j.namespace] == 0 {
			delete(l.of, j.namespace)
		}
	}
	again, queue := j.again, l.queue
	l.mu.Unlock()
	//lint:ignore SA1019 a reconciler may ask for it
	retry := j.err != nil || j.result.Requeue
	if !retry {
		l.options.Backoff.Forget(req)
	}
	if !parked || queue == nil || ctx.Err() != nil {
		return // the worker has the result, or nobody is left to do more
	}
	if j.err != nil {
		log.FromContext(ctx).Error(j.err, "Reconciler error")
	}
	switch {
	case again:
		queue.Add(req)
	case retry:
		queue.AddAfter(req, l.options.Backoff.When(req))
	case j.result.RequeueAfter > 0:
		queue.AddAfter(req, j.result.RequeueAfter)
	}
}

// reconcile makes an error of a panic, as the controller does in goroutines of its own.
func (l *Lot) reconcile(ctx context.Context, req reconcile.Request) (result reconcile.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			for _, handle := range utilruntime.PanicHandlers {
				handle(ctx, p)
			}
			err = fmt.Errorf("panic: %v [recovered]", p)
		}
	}()
	return l.inner.Reconcile(ctx, req)
}

// Wait calls f, which does nothing but wait, without a worker. It returns after f has,
// when the reconcile may go on. Without a lot in the context, and within another Wait, f is
// just called. Only the goroutine that the lot called may call it, and what f waits for.
func Wait[T any](ctx context.Context, f func() T) T {
	j, _ := ctx.Value(jobKey{}).(*job)
	if j == nil || !j.park() {
		return f()
	}
	defer j.proceed(ctx)
	return f()
}

// Aside moves the reconcile aside before it begins what is known to take long, and waits
// for room there. Without a lot in the context, or without room to park, it does nothing.
// Only the goroutine that the lot called may call it.
func Aside(ctx context.Context) {
	j, _ := ctx.Value(jobKey{}).(*job)
	if j == nil {
		return
	}
	l := j.lot
	l.mu.Lock()
	j.long = true
	if j.holds == room || j.holds == worker && !j.free() {
		l.mu.Unlock()
		return
	}
	j.aside = true
	j.rest()
	l.mu.Unlock()
	j.proceed(ctx)
}

// Late moves the reconcile aside, if there is room, unless stop is called within d: it
// makes a call to which the answer should have come by then. The reconcile goes on
// meanwhile. Without a lot in the context it does nothing. It is safe for concurrent use.
func Late(ctx context.Context, d time.Duration) (stop func()) {
	j, _ := ctx.Value(jobKey{}).(*job)
	if j == nil || j.lot.options.Patience <= 0 {
		return func() {}
	}
	l := j.lot
	l.mu.Lock()
	stretch := j.stretches
	l.mu.Unlock()
	timer := time.AfterFunc(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if j.stretches == stretch && j.holds != nothing {
			j.moveAside(stretch)
		}
	})
	return func() { timer.Stop() }
}

// park gives away what the job holds; it is false if it holds nothing, as it waits already,
// or if there is no room to park.
func (j *job) park() bool {
	j.lot.mu.Lock()
	defer j.lot.mu.Unlock()
	if j.holds == nothing || j.holds == worker && !j.free() {
		return false
	}
	j.rest()
	return true
}

// free gives the worker away, if there is room to park, of which a namespace has as large a part as of the room aside. The lot is
// locked.
func (j *job) free() bool {
	l := j.lot
	o := l.options
	if l.parked >= o.Parked || o.Share > 0 && l.of[j.namespace] >= o.Parked*o.Share/max(o.Aside, 1) {
		return false
	}
	l.parked++
	l.of[j.namespace]++
	j.isParked, j.holds = true, nothing
	close(j.freed)
	return true
}

// rest ends a stretch. The lot is locked.
func (j *job) rest() {
	if j.late != nil {
		j.late.Stop()
	}
	if j.clock != nil {
		j.clock.stop()
	}
	if j.watch != nil {
		j.watch.End()
	}
	j.leave()
}

// leave gives away a place or room aside. The lot is locked.
func (j *job) leave() {
	switch j.holds {
	case place:
		<-j.lot.places
	case room:
		<-j.lot.aside
		j.leaveShare()
	case worker, nothing:
	}
	j.holds = nothing
}

// leaveShare gives away the part of the share. The lot is locked.
func (j *job) leaveShare() {
	if j.share != nil {
		<-j.share.taken
		j.part(j.share)
		j.share = nil
	}
}

// proceed begins a stretch, with what the job holds or else a place. A job whose context
// has ended needs none: it has little left to do, and must not wait for those that do not
// know yet.
func (j *job) proceed(ctx context.Context) {
	l := j.lot
	l.mu.Lock()
	has, from := j.holds, l.places
	if j.aside {
		from = l.aside
	}
	l.mu.Unlock()
	var own *share
	switch {
	case has != nothing:
	case from == l.aside:
		has, own = j.enter(ctx)
	case taken(ctx, from):
		has = place
	}
	if j.clock != nil {
		j.clock.run()
	}
	if j.watch != nil {
		j.watch.Begin()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	j.holds, j.share = has, cmp.Or(j.share, own)
	j.stretches++
	if l.options.Patience > 0 {
		j.wind(j.stretches)
	}
}

// enter waits for room aside, and for the part of the namespace before: who waits for that takes no room from others.
func (j *job) enter(ctx context.Context) (hold, *share) {
	l := j.lot
	l.mu.Lock()
	own := j.join()
	l.mu.Unlock()
	if own == nil || taken(ctx, own.taken) {
		if taken(ctx, l.aside) {
			return room, own
		}
		if own != nil {
			<-own.taken
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	j.part(own)
	return nothing, nil
}

func taken(ctx context.Context, place chan<- struct{}) bool {
	select {
	case place <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// join returns the share of the namespace, which is kept until all who joined part; nil if there are none. The lot is locked.
func (j *job) join() *share {
	l := j.lot
	if l.options.Share <= 0 {
		return nil
	}
	of := l.shares[j.namespace]
	if of == nil {
		of = &share{taken: make(chan struct{}, l.options.Share)}
		l.shares[j.namespace] = of
	}
	of.users++
	return of
}

// part leaves a share. The lot is locked.
func (j *job) part(of *share) {
	if of == nil {
		return
	}
	if of.users--; of.users == 0 {
		delete(j.lot.shares, j.namespace)
	}
}

// wind sets when a stretch has taken long. The lot is locked.
func (j *job) wind(stretch int) { j.after(j.lot.options.Patience, stretch, j.moveAside) }

// after calls f, with the lot locked, once a stretch has run for so much longer. The lot is locked.
func (j *job) after(d time.Duration, stretch int, f func(stretch int)) {
	if j.late != nil {
		j.late.Stop()
	}
	j.late = time.AfterFunc(d, func() {
		j.lot.mu.Lock()
		defer j.lot.mu.Unlock()
		if j.stretches == stretch && j.holds != nothing {
			f(stretch)
		}
	})
}

// moveAside takes room aside for what the job holds. The lot is locked.
func (j *job) moveAside(stretch int) {
	j.long = true
	if j.holds == room {
		return
	}
	within := j.takePart()
	if !j.takeRoom() {
		if !within {
			j.end(ErrShare) // it would keep from others what it holds
		}
		j.leaveShare()
		j.wind(stretch) // somebody may have left by then
		return
	}
	if !within {
		j.after(mostBeyond, stretch, j.endBeyond)
	}
}

// takeRoom gives what the job holds away for room aside, if there is some. The lot is locked.
func (j *job) takeRoom() bool {
	select {
	case j.lot.aside <- struct{}{}:
	default:
		return false
	}
	switch {
	case j.holds == place:
		<-j.lot.places
	case j.holds == worker && !j.free():
		<-j.lot.aside
		return false
	}
	j.holds, j.aside = room, true
	return true
}

// takePart takes a part of the share of the namespace, if there is one left or there are no shares. The lot is locked.
func (j *job) takePart() bool {
	own := j.join()
	if own == nil {
		return true
	}
	select {
	case own.taken <- struct{}{}:
		j.share = own
		return true
	default:
		j.part(own)
		return false
	}
}

// endBeyond ends a job that is aside beyond the share of its namespace, unless there is a part for it by now. The lot is locked.
func (j *job) endBeyond(int) {
	if !j.takePart() {
		j.end(ErrShare)
	}
}

// Counts are the reconciles of a lot that are under way.
type Counts struct {
	// Running have a worker, or go on after a wait; Aside take long; Waiting wait, for what
	// they began or for a place or room aside to go on with it.
	Running, Aside, Waiting int
}

// Counts are how many reconciles are under way now.
func (l *Lot) Counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n Counts
	for _, j := range l.busy {
		switch j.holds {
		case worker, place:
			n.Running++
		case room:
			n.Aside++
		case nothing:
			n.Waiting++
		}
	}
	return n
}

// Room is how many reconciles there may be aside.
func (l *Lot) Room() int { return cap(l.aside) }
