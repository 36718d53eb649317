package dispatch

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/alert"
	"github.com/cascade-gitops/cascade/syncer/alert/payload"
)

// Bounds of what waits, and of attempts.
const (
	// mostWaiting messages wait for one Provider, of at most mostBytes; mostBytesOfAll is
	// what those of all Providers have together. Beyond it, the namespace that has most gives up.
	mostWaiting    = 1000
	mostBytes      = 4 << 20
	mostBytesOfAll = 32 << 20
	// A message is tried attempts times, with pauses from pause, doubled each time.
	attempts = 5
	pause    = time.Second
	// mostOver incidents are closed by one message, a request each, with spread between
	// them: a service limits how many it takes, and others are to have room.
	mostOver = 20
	spread   = time.Second
	// linger is how long a connection is kept for another message.
	linger = 15 * time.Second
	// placesOfWell attempts go on at a time, and placesOfFailing of Providers that failed
	// last: whoever hangs takes no place from the others for long. Those of one namespace
	// have half of both at most: whoever makes many Providers has others for himself to wait for.
	placesOfWell    = 128
	placesOfFailing = 32
)

// places are those in which attempts go on. They are safe for concurrent use.
type places struct {
	well, failing chan struct{}

	mu sync.Mutex // guards by and the users in it; never held over a wait
	by map[string]*share
}

// share is what the Providers of one namespace have of the places.
type share struct {
	well, failing chan struct{}
	users         int
}

func newPlaces() *places {
	return &places{well: make(chan struct{}, placesOfWell), failing: make(chan struct{}, placesOfFailing), by: map[string]*share{}}
}

// take waits for a place for a Provider of a namespace, and returns what gives it back.
func (p *places) take(ctx context.Context, namespace string, failing bool) (leave func(), err error) {
	share := p.join(namespace)
	own, all := share.well, p.well
	if failing {
		own, all = share.failing, p.failing
	}
	// Who waits for the own part takes no place from others meanwhile.
	if err := enter(ctx, own); err != nil {
		p.part(namespace, share)
		return nil, err
	}
	if err := enter(ctx, all); err != nil {
		<-own
		p.part(namespace, share)
		return nil, err
	}
	return func() {
		<-all
		<-own
		p.part(namespace, share)
	}, nil
}

func enter(ctx context.Context, place chan<- struct{}) error {
	select {
	case place <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join returns the share of a namespace, which is kept until all who joined part.
func (p *places) join(namespace string) *share {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.by[namespace]
	if of == nil {
		of = &share{well: make(chan struct{}, placesOfWell/2), failing: make(chan struct{}, placesOfFailing/2)}
		p.by[namespace] = of
	}
	of.users++
	return of
}

func (p *places) part(namespace string, of *share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of.users--; of.users == 0 {
		delete(p.by, namespace)
	}
}

// queues have what waits for each Provider. They are safe for concurrent use.
type queues struct {
	mu    sync.Mutex // guards all of it, and the queues; never held over a call
	by    map[types.NamespacedName]*queue
	bytes int
}

// queue is what waits for one Provider. Its goroutine sends it, and ends some time after
// there is nothing more.
type queue struct {
	provider types.NamespacedName
	waiting  []item
	bytes    int
	wake     chan struct{}
	// out tells that the first one did not arrive, and stays.
	out bool
	// tried is the place behind that of the item that was tried last besides the first one.
	tried int
	// trying are those that were taken out to be sent now.
	trying []item
}

type item struct {
	message alert.Message
	kind    string
	bytes   int
	// opens is the key of the incident that it opens. What closes some has them in its
	// message.
	opens string
	// sent are the requests that arrived.
	sent int
	// since is when it was queued, late tells that it did not arrive in time, and passed that
	// another one did so instead.
	since        time.Time
	late, passed bool
	// own tells that it did not arrive for what may be about it alone.
	own bool
	// withdrawn tells that nobody needs to be told of it later. All copies have one, which the lock of the
	// queues guards.
	withdrawn *bool
}

func itemOf(m alert.Message, kind string) item {
	i := item{message: m, kind: kind}
	if key, over := payload.Incident(kind, &m); over {
		i.message.Over = []string{key}
	} else {
		i.opens = key
	}
	i.bytes = i.message.Size()
	return i
}

// closes reports whether an item closes incidents.
func (i *item) closes() bool { return len(i.message.Over) > 0 }

// enqueue hands messages to the queues of their Providers.
func (s *sending) enqueue(messages ...alert.Message) {
	for _, m := range messages {
		kind := "unknown"
		p := &notificationv1beta3.Provider{}
		if err := s.o.Client.Get(s.life, m.Provider, p); err == nil {
			kind = p.Spec.Type
		}
		i := itemOf(m, kind)
		i.since = s.o.Now()
		s.incidents.note(&i)
		q, begins, dropped := s.queues.add(i, payload.IsStatus(kind))
		s.metrics.queued.WithLabelValues(kind).Inc()
		for _, gone := range dropped {
			s.metrics.queued.WithLabelValues(gone.kind).Dec()
			if gone.replaced {
				continue
			}
			s.incidents.forget(&gone.item)
			s.metrics.add(gone.kind, resultDropped, 1)
			of := &notificationv1beta3.Provider{}
			if s.o.Client.Get(s.life, gone.message.Provider, of) == nil {
				s.report(of, failuref(ReasonDropped, false,
					"too many messages wait, the oldest are dropped; tell less by spec.eventSeverity of Alerts, or see why the server is slow"))
			}
		}
		if begins {
			s.wait.Add(1)
			life := s.life
			go func() {
				defer s.wait.Done()
				s.send(life, q)
			}()
		}
	}
}

// gone is a message that was taken out of a queue before it was sent.
type gone struct {
	item
	// replaced tells that a newer message says the same of the same.
	replaced bool
}

// add puts an item into the queue of its Provider. begins tells that nobody sends that
// queue yet. A newer commit status takes the place of one that waits for the same object
// and commit; while nothing arrives, what is news of an object takes that of what was.
func (qs *queues) add(i item, status bool) (q *queue, begins bool, dropped []gone) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	i.withdrawn = new(bool)
	q = qs.by[i.message.Provider]
	if q == nil {
		q = &queue{provider: i.message.Provider, wake: make(chan struct{}, 1)}
		qs.by[i.message.Provider] = q
		begins = true
	}
	for at := len(q.waiting) - 1; at >= 0; at-- {
		if w := &q.waiting[at]; status && sameStatus(&w.message, &i.message) || q.out && i.outdates(w) {
			dropped = append(dropped, gone{qs.remove(q, at), true})
		}
	}
	dropped = append(dropped, qs.put(q, i)...)
	for len(q.waiting) > mostWaiting || q.bytes > mostBytes && len(q.waiting) > 1 {
		dropped = append(dropped, gone{qs.remove(q, q.least()), false})
	}
	for qs.bytes > mostBytesOfAll {
		heaviest := qs.heaviest()
		dropped = append(dropped, gone{qs.remove(heaviest, heaviest.least()), false})
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return q, begins, dropped
}

// heaviest is the queue that gives something up where there is no room for all: one of the namespace that has most, so that
// nobody fills the room of others.
func (qs *queues) heaviest() *queue {
	of := map[string]int{}
	for _, q := range qs.by {
		of[q.provider.Namespace] += q.bytes
	}
	return slices.MaxFunc(slices.Collect(maps.Values(qs.by)), func(a, b *queue) int {
		return cmp.Or(
			cmp.Compare(of[a.provider.Namespace], of[b.provider.Namespace]),
			cmp.Compare(a.provider.Namespace, b.provider.Namespace),
			// What does not arrive anyway takes no room from what does.
			cmp.Compare(rankOf(a), rankOf(b)),
			cmp.Compare(a.bytes, b.bytes),
		)
	})
}

// rankOf is higher for those that give something up first.
func rankOf(q *queue) int {
	switch {
	case q.bytes == 0:
		return 0
	case !q.out:
		return 1
	}
	return 2
}

// put puts an item into its place. What closes incidents waits behind all else: whoever is
// to be woken waits for no list of what is well. There, many are one item.
func (qs *queues) put(q *queue, i item) (dropped []gone) {
	if i.opens != "" {
		dropped = qs.reopen(q, i.opens)
	}
	at := len(q.waiting)
	switch {
	case i.closes() && q.closing(i.message.Over):
		return append(dropped, gone{i, true})
	case !i.closes():
		if first := slices.IndexFunc(q.waiting, func(w item) bool { return w.closes() }); first >= 0 {
			at = first
		}
	case at > 0 && q.waiting[at-1].closes() && q.waiting[at-1].message.Alert == i.message.Alert && len(q.waiting[at-1].message.Over) < mostOver:
		at--
		before := qs.remove(q, at)
		dropped = append(dropped, gone{before, true})
		i.message.Over = append(before.message.Over, i.message.Over...)
		i.bytes = i.message.Size()
	}
	qs.insert(q, at, i)
	return dropped
}

func (qs *queues) insert(q *queue, at int, i item) {
	q.waiting = slices.Insert(q.waiting, at, i)
	q.bytes += i.bytes
	qs.bytes += i.bytes
}

// least is the place of the item that is given up first: a list of what is well, which is told
// again, and otherwise the oldest.
func (q *queue) least() int {
	if last := len(q.waiting) - 1; q.waiting[last].closes() {
		return last
	}
	return 0
}

// closing reports whether incidents are those that wait to be closed.
func (q *queue) closing(keys []string) bool {
	for at := len(q.waiting) - 1; at >= 0 && q.waiting[at].closes(); at-- {
		if slices.ContainsFunc(keys, func(key string) bool { return slices.Contains(q.waiting[at].message.Over, key) }) {
			return true
		}
	}
	return false
}

// reopen takes the closing of an incident out of what waits, as it is open again.
func (qs *queues) reopen(q *queue, incident string) (dropped []gone) {
	for at := len(q.waiting) - 1; at >= 0 && q.waiting[at].closes(); at-- {
		w := &q.waiting[at]
		w.message.Over = slices.DeleteFunc(w.message.Over, func(key string) bool { return key == incident })
		if len(w.message.Over) == 0 {
			dropped = append(dropped, gone{qs.remove(q, at), true})
		}
	}
	return dropped
}

func sameStatus(a, b *alert.Message) bool { return a.Alert == b.Alert && sameCommit(a, b) }

func sameCommit(a, b *alert.Message) bool {
	was, _ := a.Event.GetRevision()
	is, _ := b.Event.GetRevision()
	return was == is && about(a, b)
}

func sameObject(a, b *alert.Message) bool { return a.Alert == b.Alert && about(a, b) }

// about reports whether two messages tell of one object, and of the same of it, whichever Alerts want them.
func about(a, b *alert.Message) bool {
	of, other := &a.Event.InvolvedObject, &b.Event.InvolvedObject
	return of.Kind == other.Kind && of.Namespace == other.Namespace && of.Name == other.Name && alert.AspectOf(&a.Event) == alert.AspectOf(&b.Event)
}

func (qs *queues) remove(q *queue, at int) item {
	i := q.waiting[at]
	q.waiting = slices.Delete(q.waiting, at, at+1)
	q.bytes -= i.bytes
	qs.bytes -= i.bytes
	return i
}

// giveWay puts what is left of a list of what is well behind what somebody is to be woken for, if
// that waits. It reports false if there is nothing of both.
func (qs *queues) giveWay(q *queue, i *item) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if len(q.waiting) == 0 || q.waiting[0].closes() {
		return false
	}
	return qs.left(q, i)
}

// left puts what is left of a list of what is well behind all that waits. It reports false if
// nothing is.
func (qs *queues) left(q *queue, i *item) bool {
	left := *i
	left.sent, left.message.Over = 0, slices.DeleteFunc(slices.Clone(i.message.Over[i.sent:]), func(key string) bool {
		// It is open again by then.
		return slices.ContainsFunc(q.waiting, func(w item) bool { return w.opens == key })
	})
	if len(left.message.Over) == 0 {
		return false
	}
	left.bytes = left.message.Size()
	qs.insert(q, len(q.waiting), left)
	return true
}

// next takes the oldest item. Where there is none and the queue is to end, it is gone: who
// adds to it makes another one.
func (qs *queues) next(q *queue, end bool) (i item, ok, ended bool) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if len(q.waiting) > 0 {
		i = qs.remove(q, 0)
		q.trying = append(q.trying[:0], i)
		return i, true, false
	}
	q.trying = nil
	if end {
		delete(qs.by, q.provider)
	}
	return item{}, false, end
}

// send sends a queue until nothing came for a while, or the process ends.
func (s *sending) send(life context.Context, q *queue) {
	line := &line{}
	defer line.close()
	timer := time.NewTimer(s.linger)
	defer timer.Stop()
	end := false
	for {
		i, ok, ended := s.queues.next(q, end)
		if ended {
			return
		}
		if ok {
			s.turn(life, line, q, &i)
			continue
		}
		timer.Reset(s.linger)
		select {
		case <-q.wake:
		case <-timer.C:
			end = true
		case <-s.ending:
			// What is added until the end begins another goroutine.
			end = true
		case <-life.Done():
			end = true
		}
	}
}

// deliver sends a message, in several attempts if need be and if others arrived before it.
func (s *sending) deliver(life context.Context, line *line, q *queue, i *item) outcome {
	m := &i.message
	for n := 1; ; n++ {
		p := &notificationv1beta3.Provider{}
		err := s.o.Client.Get(life, m.Provider, p)
		if apierrors.IsNotFound(err) || err == nil && (p.Spec.Suspend || !p.DeletionTimestamp.IsZero()) {
			line.close()
			s.incidents.forget(i)
			s.metrics.add(i.kind, resultRefused, 1)
			return lost
		}
		if s.isWell(life, i) {
			return lost
		}
		more := false
		if err == nil {
			more, err = s.attempt(life, line, p, i)
		}
		if more {
			if s.queues.giveWay(q, i) {
				return waits
			}
			n = 0 // it got on
			s.pass(life, s.spread)
			continue
		}
		if err == nil {
			s.metrics.add(i.kind, resultSent, 1)
			line.failing, line.out = false, time.Time{}
			s.states.change(p.UID, stateOfArrival, strconv.FormatInt(p.Generation, 10))
			s.queues.well(q)
			s.recovered(p)
			return sent
		}
		if errors.Is(err, payload.ErrNothing) {
			s.incidents.forget(i)
			return lost
		}
		f := failed(err)
		line.close() // its Secrets may be others by now
		if line.old && !f.again && !f.final {
			continue
		}
		line.failing = true
		if f.again && line.out.IsZero() && n < attempts && s.rest(life, n) {
			continue
		}
		return s.undelivered(life, line, p, i, f)
	}
}

// rest waits before another attempt. It reports false if there is none, as the process
// ends.
func (s *sending) rest(life context.Context, n int) bool {
	wait := s.pause << (n - 1)
	return s.pass(life, wait+time.Duration(s.o.Rand()*float64(wait)/2))
}

// pass lets a time pass. It reports false if the process ends.
func (s *sending) pass(life context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.ending:
	case <-life.Done():
	}
	return false
}

// attempt sends the requests of a message that did not arrive yet, one where they are
// spread. more tells that it got on, and that others are left.
func (s *sending) attempt(life context.Context, line *line, p *notificationv1beta3.Provider, i *item) (more bool, err error) {
	m := &i.message
	leave, err := s.places.take(life, p.Namespace, line.failing || s.states.has(p.UID, stateOfProvider))
	if err != nil {
		return false, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(life, timeoutOf(p))
	defer cancel()
	if err := s.o.Senders.open(ctx, line, p, s.o.Now()); err != nil {
		return false, err
	}
	settings := line.settings
	if payload.IsStatus(p.Spec.Type) {
		if settings.Status, err = s.statusName(ctx, p, m); err != nil {
			return false, err
		}
	}
	requests, err := payload.Build(settings, *m)
	if err != nil {
		return false, err
	}
	for i.sent < len(requests) {
		if err := line.do(ctx, &requests[i.sent]); err != nil {
			return false, err
		}
		i.sent++
		if len(m.Over) > 1 && i.sent < len(requests) {
			return true, nil
		}
	}
	return false, nil
}

// Bounds of spec.timeout.
const (
	leastTimeout = time.Second
	mostTimeout  = 2 * time.Minute
)

// timeoutOf is how long an attempt may take.
func timeoutOf(p *notificationv1beta3.Provider) time.Duration {
	return min(max(p.GetTimeout(), leastTimeout), mostTimeout)
}
