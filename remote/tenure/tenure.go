package tenure

import (
	"context"
	"sync"

	"github.com/cascade-gitops/cascade/remote/epoch"
)

// Tenure is the time for which this process drives one shard. It is safe for concurrent
// use. Nil is the tenure of a process that drives all children as long as it runs.
type Tenure struct {
	life context.Context
	end  context.CancelFunc
	// held is an error if the Lease may be another's by now.
	held func() error

	mu   sync.Mutex
	mark epoch.Mark
	// over: no more work begins. work has what is under way.
	over bool
	work sync.WaitGroup
}

func newTenure(life context.Context, mark epoch.Mark, held func() error) *Tenure {
	t := &Tenure{mark: mark, held: held}
	t.life, t.end = context.WithCancel(life)
	return t
}

// Mark is what this process leaves in what it writes to children of the shard.
func (t *Tenure) Mark() epoch.Mark {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mark
}

// Raise replaces the mark by a larger one of this process.
func (t *Tenure) Raise(to epoch.Mark) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if to.Epoch > t.mark.Epoch {
		t.mark = to
	}
}

// Over reports whether the shard is another's by now, or is about to be.
func (t *Tenure) Over() bool { return t != nil && t.life.Err() != nil }

// enter begins a piece of work, which ends with the returned context. leave says that it
// has ended.
func (t *Tenure) enter(ctx context.Context) (bound context.Context, leave func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil, nil, false
	}
	t.work.Add(1)
	bound, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(t.life, cancel)
	return bound, func() { stop(); cancel(); t.work.Done() }, true
}

// close ends all work and returns a channel that is closed when it has ended.
func (t *Tenure) close() <-chan struct{} {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.end()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.work.Wait()
	}()
	return ended
}
