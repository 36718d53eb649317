package worker

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Limits of a pool.
type Limits struct {
	// Workers is how many there may be at a time.
	Workers int
	// Memory of one worker in bytes, everything included.
	Memory int64
	// Time of a processor that one job may take.
	Time time.Duration
}

// patience is how long a job may take on a busy machine, without the time in
// which the program answers questions.
func (l Limits) patience() time.Duration { return 4 * l.Time }

// DefaultLimits keep two workers together below 400 MiB.
func DefaultLimits() Limits { return Limits{Workers: 2, Memory: 192 << 20, Time: 30 * time.Second} }

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
}

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

// Pool is a Runner that starts workers when there is something to do. Close ends
// them.
type Pool struct {
	options Options
	queue   *queue

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
	return &Pool{options: o, queue: newQueue(o.Limits.Workers), refused: map[[sha256.Size]byte]error{}}
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
	leave, err := p.queue.take(ctx, job.Owner)
	if err != nil {
		return nil, fmt.Errorf("cannot wait for a worker: %w", err)
	}
	var exceeded *Exceeded
	defer func() { leave(exceeded != nil) }()
	result, err := p.attempt(ctx, job)
	if errors.Is(err, ErrLost) {
		// Whatever killed it may not come again.
		result, err = p.attempt(ctx, job)
	}
	if errors.As(err, &exceeded) && !exceeded.Late && job.Answer == nil {
		p.mu.Lock()
		if len(p.refused) >= mostRefused {
			clear(p.refused)
		}
		p.refused[key] = err
		p.mu.Unlock()
	}
	return result, err
}

// attempt does a job with an idle worker or a new one.
func (p *Pool) attempt(ctx context.Context, job Job) ([]byte, error) {
	w, err := p.get(ctx)
	if err != nil {
		return nil, err
	}
	defer p.ending.Done()
	// A panic of what answers is the caller's, and takes the worker with it.
	done := false
	defer func() {
		if !done {
			w.end()
		}
	}()
	result, healthy, err := w.do(ctx, job)
	if healthy && (job.Spent == nil || !job.Spent()) {
		done = p.put(w)
	}
	return result, err
}

// get returns a worker; p.ending counts it.
func (p *Pool) get(ctx context.Context) (*process, error) {
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
		select {
		case <-r.process.ended:
			p.ending.Done()
			continue
		default:
			return r.process, nil
		}
	}
	w, err := start(ctx, p.options)
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
