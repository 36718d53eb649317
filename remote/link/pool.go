package link

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// Numbers of a connection. Time-out, threshold and pause are those of Cluster
// API's own cluster cache.
const (
	// callTimeout bounds each call, connecting included.
	callTimeout = 10 * time.Second
	// serverTimeout is when the API server is to give up a call. It says so before the
	// caller gives up, so that one which waits for a webhook is told from one that does
	// not answer.
	serverTimeout = 8 * time.Second
	// After breakAfter failures in a row a child is probed every breakPause; before
	// that, every retryPause. The pause never grows, so a child that is back is found
	// within it.
	breakAfter = 5
	breakPause = 30 * time.Second
	retryPause = time.Second
	// idleAfter closes idle connections: at rest a child gets a request once in a
	// while. A thousand idle connections cost more than connecting again, which resumes
	// the TLS session.
	idleAfter = time.Second
	// heldFor closes the connection of a session that nobody ended.
	heldFor = 15 * time.Second
	// patience is how long a probe holds one of the mostProbes places. A probe that
	// takes longer goes on without it, so that healthy children need not wait.
	patience = time.Second
	// mostProbes run at the same time, besides mostSlowProbes of children that failed. What a
	// place waits for is the network: at a round trip of 100 ms a probe takes 0.8 s.
	mostProbes     = 128
	mostSlowProbes = 1024
	// permitPause is the shortest time between two looks at what the parent may do in a
	// child beside its layers.
	permitPause = time.Minute
)

// Pool is the pool of connections to children. A goroutine for each child
// probes it, not a worker of the queue, so a child that does not respond delays no
// other. The lock guards the map alone and is never held over a network call.
type Pool struct {
	scheme  *runtime.Scheme
	now     func() time.Time
	random  func() float64
	schemas *apply.Schemas
	// life ends all calls when it ends.
	life context.Context
	// Fence is asked before each request that may change something in a child; nil lets
	// all pass. It is set before the first use.
	Fence func(child types.NamespacedName) error
	// Addresses are those where API servers of children may be. They are set before the
	// first use.
	Addresses answer.Addresses

	quick, slow chan struct{}

	// pace is how soon children answer.
	pace pace

	mu    sync.Mutex
	links map[types.NamespacedName]*Link
	// unmet are the children that this process took over and has not reconciled yet.
	unmet map[types.NamespacedName]struct{}
	// expected is when the last of them was.
	expected time.Time
	probed   func(key types.NamespacedName, turn Turn)
}

// NewPool returns an empty pool. All calls end with life. random returns numbers
// in [0, 1) and is safe for concurrent use.
func NewPool(life context.Context, scheme *runtime.Scheme, now func() time.Time, random func() float64) *Pool {
	return &Pool{
		scheme: scheme, now: now, random: random, schemas: apply.NewSchemas(), life: life,
		quick: make(chan struct{}, mostProbes), slow: make(chan struct{}, mostSlowProbes),
		links: map[types.NamespacedName]*Link{}, unmet: map[types.NamespacedName]struct{}{},
	}
}

// Turn is which reconciles of children come before which.
type Turn int

// Turns, from the last to the first.
const (
	// Due: the child is looked at again, as from time to time.
	Due Turn = iota
	// TakenOver: nobody has driven the child since its replica was lost.
	TakenOver
	// Urgent: something happened.
	Urgent
)

// OnProbe sets what is called when a probe ended.
func (c *Pool) OnProbe(f func(key types.NamespacedName, turn Turn)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probed = f
}

// Wake calls for a reconcile of a child.
func (c *Pool) Wake(key types.NamespacedName, turn Turn) {
	c.mu.Lock()
	probed := c.probed
	c.mu.Unlock()
	if probed != nil {
		probed(key, turn)
	}
}

func (c *Pool) Of(key types.NamespacedName) *Link {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[key]
	if l == nil {
		l = &Link{pool: c, key: key, meter: &meter{now: c.now, pace: &c.pace}}
		l.life, l.end = context.WithCancel(c.life)
		c.links[key] = l
	}
	return l
}

// Expect notes that this process took a child over, and Met that it has found out how the child is.
func (c *Pool) Expect(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unmet[key], c.expected = struct{}{}, c.now()
}

// Met ends what Expect began.
func (c *Pool) Met(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.unmet, key)
}

// Crowded reports whether more children than most wait to be met, and the last of them was not taken over
// longer ago than that.
func (c *Pool) Crowded(most int, ago time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.unmet) > most && c.now().Sub(c.expected) < ago
}

// MayWrite is an error if this process lost the right to change anything in a child. It
// may have been paused while another process took over.
func (c *Pool) MayWrite(child types.NamespacedName) error {
	if c.Fence == nil {
		return nil
	}
	return c.Fence(child)
}

// Heard returns when a child was last heard of, and whether that is known for sure; zero
// if this process has not heard of it.
func (c *Pool) Heard(key types.NamespacedName) (at time.Time, proven bool) {
	c.mu.Lock()
	l := c.links[key]
	c.mu.Unlock()
	if l == nil {
		return time.Time{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard, l.proven
}

// Broken counts the children whose breaker is open: they did not answer several times in a
// row.
func (c *Pool) Broken() int {
	c.mu.Lock()
	links := make([]*Link, 0, len(c.links))
	for _, l := range c.links {
		links = append(links, l)
	}
	c.mu.Unlock()
	n := 0
	for _, l := range links {
		l.mu.Lock()
		if l.broken {
			n++
		}
		l.mu.Unlock()
	}
	return n
}

// Forget ends the calls to a child that are on their way, closes its connection
// and drops what is known of it.
func (c *Pool) Forget(key types.NamespacedName) {
	c.mu.Lock()
	l := c.links[key]
	delete(c.links, key)
	delete(c.unmet, key)
	c.mu.Unlock()
	if l != nil {
		l.end()
		l.hangUp()
	}
}

// enter waits for a place among the probes. The returned function frees the place;
// patience frees it earlier. A suspect, a child that failed last or that a process before
// this one lost, takes a place among the slow probes.
func (c *Pool) enter(ctx context.Context, suspect bool) (leave func(), err error) {
	take := func(places chan struct{}) error {
		select {
		case places <- struct{}{}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if suspect {
		if err := take(c.slow); err != nil {
			return nil, err
		}
		return func() { <-c.slow }, nil
	}
	if err := take(c.quick); err != nil {
		return nil, err
	}
	var once sync.Once
	free := func() { once.Do(func() { <-c.quick }) }
	timer := time.AfterFunc(patience, free)
	return func() { timer.Stop(); free() }, nil
}
