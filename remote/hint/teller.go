package hint

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/remote/link"
)

const (
	// mostCalls to children run at the same time, each within callTime.
	mostCalls = 64
	callTime  = 4 * time.Second
	// One child is told every childEvery, after childBurst at once.
	childEvery = 2 * time.Second
	childBurst = 8
	// burst is how many children are told at once before the rate counts.
	burst = 32
	// freshFor is how long a hint is worth telling.
	freshFor = time.Minute
	// lookEach is how often, for so long, children are looked for that can be told now and could
	// not before: those of a process that has just begun are reached one after the other.
	lookEach = time.Second
)

// Children are told; link.Pool is them.
type Children interface {
	// Hinted are the children that take hints at the moment.
	Hinted() []types.NamespacedName
	// Hint writes the parent's entry in a child.
	Hint(ctx context.Context, child types.NamespacedName, entry string) error
}

// Teller tells children. It is safe for concurrent use.
type Teller struct {
	children Children
	limit    *rate.Limiter
	now      func() time.Time
	random   func() float64
	log      logr.Logger
	told     *prometheus.CounterVec

	mu sync.Mutex // guards the rest; never held over a call
	// recent hints, the newest last, with the time until when they are worth telling. heard is
	// how often there were news.
	recent []dated
	heard  int
	// waits is what heard was when a child came to wait for the last time; it has those of the
	// time of the recent hints.
	waits map[types.NamespacedName]int
	// waiting children, in the order in which they are told, each once.
	waiting []types.NamespacedName
	queued  map[types.NamespacedName]bool
	// pace of the children that were told a while ago at most.
	pace map[types.NamespacedName]*rate.Limiter
	wake chan struct{}
}

type dated struct {
	Hint
	until time.Time
}

// Options of a Teller.
type Options struct {
	Children Children
	// PerSecond is how many children are told in a second; it is positive.
	PerSecond float64
	Now       func() time.Time
	// Random returns numbers in [0, 1); it is safe for concurrent use.
	Random   func() float64
	Log      logr.Logger
	Registry prometheus.Registerer
}

// NewTeller returns a Teller, whose metrics are registered. It tells nobody before Start.
func NewTeller(o Options) *Teller {
	t := &Teller{
		children: o.Children, limit: rate.NewLimiter(rate.Limit(o.PerSecond), burst), now: o.Now, random: o.Random, log: o.Log,
		waits: map[types.NamespacedName]int{}, queued: map[types.NamespacedName]bool{}, pace: map[types.NamespacedName]*rate.Limiter{}, wake: make(chan struct{}, 1),
		told: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cascade_hints_total", Help: "Hints for children by what became of them: told, failed, dropped.",
		}, []string{"result"}),
	}
	o.Registry.MustRegister(t.told)
	for _, result := range []string{"told", "failed", "dropped"} {
		t.told.WithLabelValues(result)
	}
	return t
}

// Tell has all children told of hints that they were not told of, in an order by chance. Those
// that cannot be told yet are told if they can be before the hints are old. It does not wait.
func (t *Teller) Tell(hints []Hint) {
	if len(hints) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before, until := make([]Hint, 0, len(t.recent)), make(map[string]time.Time, len(t.recent))
	for _, r := range t.recent {
		before = append(before, r.Hint)
		until[r.ID] = r.until
	}
	for _, h := range hints {
		until[h.ID] = t.now().Add(freshFor)
	}
	t.recent = nil
	for _, h := range merge(before, hints) {
		t.recent = append(t.recent, dated{h, until[h.ID]})
	}
	t.heard++
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// look has the children wait that can be told and were not told of the last news.
func (t *Teller) look() {
	t.mu.Lock()
	fresh := len(t.recent) > 0
	t.mu.Unlock()
	if !fresh {
		return
	}
	children := t.children.Hinted()
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(children) - 1; i > 0; i-- {
		j := min(int(t.random()*float64(i+1)), i)
		children[i], children[j] = children[j], children[i]
	}
	for _, child := range children {
		if t.waits[child] == t.heard {
			continue
		}
		t.waits[child] = t.heard
		if !t.queued[child] {
			t.queued[child] = true
			t.waiting = append(t.waiting, child)
		}
	}
}

// NeedLeaderElection is false: each replica tells the children that it drives.
func (t *Teller) NeedLeaderElection() bool { return false }

// Start tells children until the context ends. Calls that are under way end with it.
func (t *Teller) Start(ctx context.Context) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	places := make(chan struct{}, mostCalls)
	var looked time.Time
	for {
		select {
		case <-t.wake:
			looked = time.Time{}
		default:
		}
		if now := t.now(); now.Sub(looked) >= lookEach {
			looked = now
			t.look()
		}
		child, entry, wait := t.next()
		if entry == "" {
			timer := time.NewTimer(wait)
			select {
			case <-ctx.Done():
				timer.Stop()
				return nil
			case <-t.wake:
				looked = time.Time{}
			case <-timer.C:
			}
			timer.Stop()
			continue
		}
		if err := t.limit.Wait(ctx); err != nil {
			return nil // the end
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		calls.Go(func() {
			defer func() { <-places }()
			t.call(ctx, child, entry)
		})
	}
}

func (t *Teller) call(ctx context.Context, child types.NamespacedName, entry string) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err := t.children.Hint(ctx, child, entry)
	switch {
	case err == nil:
		t.told.WithLabelValues("told").Inc()
	case errors.Is(err, link.ErrUnknown), errors.Is(err, link.ErrNotConnected), errors.Is(err, link.ErrNoHints):
		t.told.WithLabelValues("dropped").Inc()
	default:
		t.told.WithLabelValues("failed").Inc()
		t.log.V(1).Info("cannot tell a child that a repository may have something new; it polls", "child", child.String(), "error", err.Error())
	}
}

// idle is the pause while there are no hints that are worth telling.
const idle = time.Hour

// next takes the child that is told next, and with what; without one it says when to look
// again.
func (t *Teller) next() (child types.NamespacedName, entry string, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	t.recent = slices.DeleteFunc(t.recent, func(r dated) bool { return now.After(r.until) })
	if len(t.recent) == 0 {
		t.told.WithLabelValues("dropped").Add(float64(len(t.waiting)))
		t.waiting = nil
		clear(t.queued)
		clear(t.waits)
	}
	wait = idle
	if len(t.recent) > 0 {
		wait = lookEach
	}
	if len(t.waiting) == 0 {
		t.waiting = nil
		for key, pace := range t.pace {
			if pace.TokensAt(now) >= childBurst {
				delete(t.pace, key)
			}
		}
		return child, "", wait
	}
	for i, key := range t.waiting {
		pace := t.pace[key]
		if pace == nil {
			pace = rate.NewLimiter(rate.Every(childEvery), childBurst)
			t.pace[key] = pace
		}
		if !pace.AllowN(now, 1) {
			wait = min(wait, time.Duration((1-pace.TokensAt(now))*float64(childEvery))+time.Millisecond)
			continue
		}
		t.waiting = slices.Delete(t.waiting, i, i+1)
		delete(t.queued, key)
		hints := make([]Hint, 0, len(t.recent))
		for _, r := range t.recent {
			hints = append(hints, r.Hint)
		}
		text, err := Encode(hints)
		if err != nil { // nothing in it cannot be encoded
			t.log.Error(err, "cannot encode hints")
			return child, "", 0
		}
		return key, text, 0
	}
	return child, "", wait
}
