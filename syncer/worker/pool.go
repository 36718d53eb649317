package worker

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascade-gitops/cascade/syncer/park"
)

// Limits of a pool.
type Limits struct {
	// Workers is how many there may be at a time.
	Workers int
	// Memory of one worker in bytes, the program excepted. Not all have all of it at the
	// same time: see first.
	Memory int64
	// Time of a processor that one job may take.
	Time time.Duration
}

// patience is how long a job may take on a busy machine, without the time in
// which the program answers questions.
func (l Limits) patience() time.Duration { return 8 * l.Time }

// leastMemory is what a worker needs to begin with, and what most jobs do with.
const leastMemory = 64 << 20

// leastTime is what most jobs do with.
const leastTime = time.Second

// first is what a job gets at first. One that needs more is done again with all of it,
// after others, and at one place less than there are: so not all workers have all of
// their memory at the same time, and what takes long does not hold all of them. A
// single worker gives everybody all.
func (l Limits) first() Limits {
	if l.Workers > 1 {
		l.Memory = min(l.Memory, max(l.Memory/2, leastMemory))
		l.Time = min(l.Time, max(l.Time/5, leastTime))
	}
	return l
}

// quick is how long a job takes at most that holds up nobody.
const quick = 300 * time.Millisecond

// DefaultLimits keep two workers together at 216 MiB besides the program itself, whose
// pages each of them has. What takes more of a processor holds up others: hundreds may
// ask at the same time.
func DefaultLimits() Limits { return Limits{Workers: 2, Memory: 144 << 20, Time: 10 * time.Second} }

// idleTime is how long a worker waits for another job.
const idleTime = 15 * time.Second

// mostRefused is how many requests are remembered that exceeded a limit.
const mostRefused = 512

// Options of New.
type Options struct {
	Limits Limits
	// Program is started as a worker: it calls Become. Empty is the running one.
	Program string
	// Idle is how long a worker waits for another job; 0 means 15 s.
	Idle time.Duration
	// Registry gets the metrics of the pool; nil is none.
	Registry prometheus.Registerer
}

// Job is what a worker is to do.
type Job struct {
	// Owner is the object that the job is for. Places are handed out by owner.
	Owner string
	Task  string
	// Request is what the task is about.
	Request []byte
	// Answer answers the task's questions, one at a time. An error is given to the
	// task by its text. A job without Answer does always the same for the same
	// request.
	Answer func(ctx context.Context, question string, body []byte) ([]byte, error)
	// Spent tells, after the job, that the worker must not do another. It may be nil.
	Spent func() bool
	// Slow is called in the goroutine that called Run, once, if the job waits for a worker
	// for a while. It may be nil.
	Slow func()
}

// slowAfter is how long a job waits before that is told.
const slowAfter = 5 * time.Second

// Runner does jobs. It is safe for concurrent use.
type Runner interface {
	// Run does a job and returns what its task returned. See the package for its
	// errors.
	Run(ctx context.Context, job Job) ([]byte, error)
}

// For returns a Runner whose jobs are an owner's. There is none for no Runner.
func For(r Runner, owner string) Runner {
	if r == nil {
		return nil
	}
	return owned{r, owner}
}

type owned struct {
	Runner
	owner string
}

func (o owned) Run(ctx context.Context, job Job) ([]byte, error) {
	job.Owner = o.owner
	return o.Runner.Run(ctx, job)
}

// Telling returns a Runner that calls slow, as Job has it. There is none for no Runner.
func Telling(r Runner, slow func()) Runner {
	if r == nil {
		return nil
	}
	return telling{r, slow}
}

type telling struct {
	Runner
	slow func()
}

func (t telling) Run(ctx context.Context, job Job) ([]byte, error) {
	job.Slow = t.slow
	return t.Runner.Run(ctx, job)
}

// Pool is a Runner that starts workers when there is something to do. Close ends
// them.
type Pool struct {
	options Options
	queue   *queue
	times   times

	mu      sync.Mutex // guards what follows; nothing is waited for while it is held
	idle    []*resting
	refused map[[sha256.Size]byte]error
	closed  bool
	ending  sync.WaitGroup
}

// resting is a worker without a job.
type resting struct {
	process *process
	timer   *time.Timer
}

// New returns a pool that has no worker yet.
func New(o Options) *Pool {
	if o.Program == "" {
		o.Program = "/proc/self/exe"
	}
	if o.Idle == 0 {
		o.Idle = idleTime
	}
	keepDescriptors()
	return &Pool{options: o, queue: newQueue(o.Limits.Workers), times: newTimes(o.Registry), refused: map[[sha256.Size]byte]error{}}
}

// Close ends all workers and waits until they are gone. Jobs under way fail.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	idle := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, r := range idle {
		r.timer.Stop()
		r.process.end()
	}
	p.ending.Wait()
}

// Start implements the manager's Runnable: it closes the pool when the context
// ends.
func (p *Pool) Start(ctx context.Context) error {
	<-ctx.Done()
	p.Close()
	return nil
}

// NeedLeaderElection implements the manager's LeaderElectionRunnable.
func (p *Pool) NeedLeaderElection() bool { return false }

// Run implements Runner.
func (p *Pool) Run(ctx context.Context, job Job) ([]byte, error) {
	var key [sha256.Size]byte
	if job.Answer == nil {
		key = sha256.Sum256(append(name(job.Task), job.Request...))
		p.mu.Lock()
		err := p.refused[key]
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	// Who waits for a worker, and for what it does, needs no other.
	if job.Slow != nil {
		job.Slow = sync.OnceFunc(job.Slow)
	}
	last := park.Wait(ctx, func() ended {
		e := p.turn(ctx, job)
		if e.outcome == grew {
			e = p.turn(ctx, job)
		}
		return e
	})
	var refusal *Exceeded
	if errors.As(last.err, &refusal) && !refusal.Late && job.Answer == nil {
		p.mu.Lock()
		if len(p.refused) >= mostRefused {
			clear(p.refused)
		}
		p.refused[key] = last.err
		p.mu.Unlock()
	}
	return last.result, last.err
}

// ended is what became of a job in one turn.
type ended struct {
	result  []byte
	err     error
	outcome outcome
}

// turn waits for a place and does a job once. The job has grown if it needs more memory
// than it got, and may have.
func (p *Pool) turn(ctx context.Context, job Job) (e ended) {
	asked := time.Now()
	wide, leave, err := p.queue.take(ctx, job.Owner, job.Slow)
	p.times.waited(job.Task, asked)
	if err != nil {
		return ended{err: fmt.Errorf("cannot wait for a worker: %w", err)}
	}
	begin := time.Now()
	defer func() {
		leave(e.outcome)
		p.times.worked(job.Task, e.outcome, begin)
	}()
	limits := p.options.Limits
	if !wide {
		limits = limits.first()
	}
	var took time.Duration
	e.result, took, e.err = p.attempt(ctx, job, limits)
	if errors.Is(e.err, ErrLost) {
		// Whatever killed it may not come again.
		e.result, took, e.err = p.attempt(ctx, job, limits)
	}
	var refusal *Exceeded
	var own *TaskError
	switch {
	case errors.As(e.err, &refusal) && refusal.more && limits != p.options.Limits:
		e.outcome = grew
	case errors.As(e.err, &refusal):
		e.outcome = exceeded
	case errors.As(e.err, &own) && took > quick:
		e.outcome = wasted
	case errors.As(e.err, &own):
		e.outcome = failed
	default:
		e.outcome = done
	}
	return e
}

// attempt does a job with an idle worker of these limits or a new one, and returns how long
// the job took: that a worker had to be started first is not the owner's doing.
func (p *Pool) attempt(ctx context.Context, job Job, limits Limits) ([]byte, time.Duration, error) {
	w, err := p.get(ctx, limits)
	if err != nil {
		return nil, 0, err
	}
	defer p.ending.Done()
	// A panic of what answers is the caller's, and takes the worker with it.
	kept := false
	defer func() {
		if !kept {
			w.end()
		}
	}()
	begin := time.Now()
	result, healthy, err := w.do(ctx, job)
	took := time.Since(begin)
	// One that may have all of the memory may have come to have it.
	if healthy && (job.Spent == nil || !job.Spent()) && limits == p.options.Limits.first() {
		kept = p.put(w)
	}
	return result, took, err
}

// get returns a worker; p.ending counts it. One with all of the memory is always new,
// and takes the room of one that has nothing to do.
func (p *Pool) get(ctx context.Context, limits Limits) (*process, error) {
	wide := limits != p.options.Limits.first()
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, fmt.Errorf("%w: the agent is ending", ErrUnavailable)
		}
		n := len(p.idle)
		if n == 0 {
			p.ending.Add(1)
			p.mu.Unlock()
			break
		}
		r := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.ending.Add(1)
		p.mu.Unlock()
		r.timer.Stop()
		if wide {
			r.process.end()
			break
		}
		select {
		case <-r.process.ended:
			p.ending.Done()
			continue
		default:
			return r.process, nil
		}
	}
	w, err := start(ctx, p.options.Program, limits)
	if err != nil {
		p.ending.Done()
		return nil, err
	}
	return w, nil
}

// put keeps a worker for another job, unless the pool is closed.
func (p *Pool) put(w *process) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	r := &resting{process: w}
	r.timer = time.AfterFunc(p.options.Idle, func() { p.retire(r) })
	p.idle = append(p.idle, r)
	return true
}

// retire ends a worker that had nothing to do.
func (p *Pool) retire(r *resting) {
	p.mu.Lock()
	for i, other := range p.idle {
		if other == r {
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
			p.ending.Add(1)
			p.mu.Unlock()
			defer p.ending.Done()
			r.process.end()
			return
		}
	}
	p.mu.Unlock()
}
