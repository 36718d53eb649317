package park

import (
	"context"
	"sync"
	"time"
)

// deadline is a context whose deadline stands still while the reconcile waits. It cannot
// be made of the contexts of the standard library: their deadlines do not move, and who
// sees one that was cancelled takes it that the process ends.
type deadline struct {
	context.Context // of the controller

	// The clock belongs to the reconcile's goroutine.
	left  time.Duration
	since time.Time
	timer *time.Timer

	mu   sync.Mutex // guards what follows
	done chan struct{}
	err  error
	then map[*func()]struct{}
}

// withDeadline returns a context that ends with ctx, or when it ran for so long, and what
// gives its resources back. Its clock stands still.
func withDeadline(ctx context.Context, may time.Duration) (*deadline, func()) {
	d := &deadline{Context: ctx, left: may, done: make(chan struct{}), then: map[*func()]struct{}{}}
	unlink := context.AfterFunc(ctx, func() { d.end(ctx.Err()) })
	return d, func() {
		unlink()
		d.stop()
		d.end(context.Canceled)
	}
}

// run lets the clock run.
func (d *deadline) run() {
	d.since = time.Now()
	d.timer = time.AfterFunc(d.left, func() { d.end(context.DeadlineExceeded) })
}

// stop lets it stand still.
func (d *deadline) stop() {
	if d.timer == nil {
		return
	}
	d.timer.Stop()
	d.timer = nil
	d.left = max(d.left-time.Since(d.since), 0)
}

func (d *deadline) end(err error) {
	d.mu.Lock()
	if d.err != nil {
		d.mu.Unlock()
		return
	}
	d.err = err
	close(d.done)
	then := d.then
	d.then = nil
	d.mu.Unlock()
	for f := range then {
		(*f)()
	}
}

// Deadline implements context.Context. It is not known: the reconcile may wait.
func (d *deadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (d *deadline) Done() <-chan struct{} { return d.done }

// Err implements context.Context.
func (d *deadline) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// AfterFunc spares contexts that are made of this one a goroutine each: see
// context.AfterFunc, which says what it does.
func (d *deadline) AfterFunc(f func()) (stop func() bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		go f()
		return func() bool { return false }
	}
	d.then[&f] = struct{}{}
	return func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		_, there := d.then[&f]
		delete(d.then, &f)
		return there
	}
}
