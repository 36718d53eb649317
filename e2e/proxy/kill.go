package proxy

import (
	"net/http"
	"sync"
)

// Moment at which a client is killed.
type Moment string

// Moments of a request.
const (
	// Before: the API server never sees it.
	Before Moment = "before"
	// After: the API server has carried it out, and the client never learns of it.
	After Moment = "after"
)

// Kill are hooks that end the client at one of its requests.
type Kill struct {
	at      int
	moment  Moment
	counted func(*Request) bool
	kill    func()
	done    chan struct{}

	mu     sync.Mutex
	n      int
	target *Request
}

// NewKill makes hooks that call kill at the request of a number, from 1 on, among
// those that count; at 0 they only count. kill returns when the client has ended.
func NewKill(at int, moment Moment, counted func(*Request) bool, kill func()) *Kill {
	return &Kill{at: at, moment: moment, counted: counted, kill: kill, done: make(chan struct{})}
}

// Before implements Hooks.
func (k *Kill) Before(r *Request) http.Handler {
	k.mu.Lock()
	select {
	case <-k.done:
		// What the client had sent at the same time.
		k.mu.Unlock()
		return Cut
	default:
	}
	hit := false
	if k.counted(r) {
		k.n++
		if hit = k.n == k.at; hit {
			k.target = r
		}
	}
	k.mu.Unlock()
	if !hit || k.moment != Before {
		return nil
	}
	k.end()
	return Cut
}

// After implements Hooks.
func (k *Kill) After(r *Request, _ *http.Response) error {
	k.mu.Lock()
	hit := k.target == r
	k.mu.Unlock()
	if !hit {
		return nil
	}
	k.end()
	return errCut
}

func (k *Kill) end() {
	k.kill()
	close(k.done)
}

// Stop lets all further requests pass, and reports whether the client was killed, or is
// about to be: Done is closed then, unless the API server does not answer.
func (k *Kill) Stop() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.at = 0
	return k.target != nil
}

// Done is closed when the client has been killed.
func (k *Kill) Done() <-chan struct{} { return k.done }

// Counted is how many requests counted so far.
func (k *Kill) Counted() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.n
}

// Target is the request at which the client was killed, nil if it was not yet.
func (k *Kill) Target() *Request {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.target
}
