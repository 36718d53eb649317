package dispatch

import (
	"context"
	"slices"
	"strconv"
	"time"

	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/alert"
	"github.com/cascade-gitops/cascade/syncer/alert/payload"
)

// Controllers tell of a failure when it begins, and not at each attempt. So a message that did not
// arrive stays the first of its queue: nobody would say the same again.
const (
	// retry is the least time after which a Provider that nothing reaches is tried without a cause,
	// and mostRetries times that is the longest.
	retry       = time.Minute
	mostRetries = 15
	// mostLate is how long a message may be late.
	mostLate = 24 * time.Hour
	// mostTried are tried in one turn, where each of them says nothing of the others.
	mostTried = 32
)

// outcome is what became of a message whose turn it was.
type outcome int

const (
	// lost: it is given up, or is for nobody.
	lost outcome = iota
	// sent: it arrived.
	sent
	// waits: a part of it arrived, and the rest waits again, behind what is more urgent.
	waits
	// stays: it did not arrive, and may do so later.
	stays
)

// turn sends the message whose turn it is. Where it stays, one that tells of something else is tried as
// well: if that gets through, nothing is wrong with the Provider, and the message is given up when the same
// happens to it again.
func (s *sending) turn(life context.Context, line *line, q *queue, i *item) {
	switch s.deliver(life, line, q, i) {
	case lost, sent:
		s.done(i)
		return
	case waits:
		return
	case stays:
	}
	if line.out.IsZero() {
		line.out = s.o.Now()
	}
	select {
	case <-q.wake: // it is of what is tried now, or waits behind that
	default:
	}
	through := false
	// Each time another one, as there may be several that nobody takes.
	for n := range mostTried {
		next, at, ok := s.queues.other(q, i, n > 0)
		if !ok {
			break
		}
		became := s.deliver(life, line, q, &next)
		switch became {
		case sent:
			through = true
			s.done(&next)
		case waits:
			through = true
		case stays:
			s.stay(q, &next, at)
		case lost:
			s.done(&next)
		}
		if through {
			s.queues.overtake(q, at)
		}
		// That nobody knows the commits of both says nothing of the Provider.
		if became != stays || !i.own || !next.own {
			break
		}
	}
	if through && i.passed {
		s.incidents.forget(i)
		s.done(i)
		return
	}
	i.passed = i.passed || through
	s.stay(q, i, 0)
	if !through {
		s.hold(life, line, q)
	}
}

// done notes that a message waits no more.
func (s *sending) done(i *item) { s.metrics.queued.WithLabelValues(i.kind).Dec() }

// stay puts a message that did not arrive back into its place in its queue.
func (s *sending) stay(q *queue, i *item, at int) {
	if !s.queues.back(q, i, at) {
		s.done(i)
	}
}

// hold waits until a Provider that nothing reaches is tried again: for a short while after another
// message came or somebody changed it, and otherwise for as long as it has been out already.
func (s *sending) hold(life context.Context, line *line, q *queue) {
	line.close()
	if !s.rest(life, attempts) {
		return
	}
	before := s.versionOf(life, q.provider)
	timer := time.NewTimer(s.retry)
	defer timer.Stop()
	for left := min(max(s.o.Now().Sub(line.out), s.retry), mostRetries*s.retry); left > 0; left -= s.retry {
		timer.Reset(s.retry)
		select {
		case <-q.wake:
			return
		case <-s.ending:
			return
		case <-life.Done():
			return
		case <-timer.C:
		}
		if s.versionOf(life, q.provider) != before {
			return
		}
	}
}

// version tells whether a Provider is another one than before.
type version struct {
	uid        types.UID
	generation int64
}

// versionOf is the zero version where the Provider cannot be read.
func (s *sending) versionOf(ctx context.Context, name types.NamespacedName) version {
	p := &notificationv1beta3.Provider{}
	if s.o.Client.Get(ctx, name, p) != nil {
		return version{}
	}
	return version{p.UID, p.Generation}
}

// undelivered tells of a message that did not arrive, and decides whether it stays.
func (s *sending) undelivered(life context.Context, line *line, p *notificationv1beta3.Provider, i *item, f *failure) outcome {
	m := &i.message
	if !i.late {
		i.late = true
		s.metrics.add(i.kind, resultFailed, 1)
		s.o.Log.Error(f, "cannot send notification", "provider", m.Provider.String(), "alert", m.Alert.String(), "type", i.kind, "failure", f.reason,
			"kind", m.Event.InvolvedObject.Kind, "namespace", m.Event.InvolvedObject.Namespace, "name", m.Event.InvolvedObject.Name, "reason", m.Event.Reason)
	}
	if p.UID != "" {
		s.report(p, f)
	}
	i.own = f.own && payload.IsStatus(i.kind)
	switch {
	case s.ends(life), f.final, i.own && s.states.is(p.UID, stateOfArrival, strconv.FormatInt(p.Generation, 10)), !i.lasts():
	case s.o.Now().Sub(i.since) >= mostLate:
		s.metrics.add(i.kind, resultDropped, 1)
	default:
		return stays
	}
	s.incidents.forget(i)
	return lost
}

// ends reports whether the process is told to end.
func (s *sending) ends(life context.Context) bool {
	select {
	case <-s.ending:
		return true
	case <-life.Done():
		return true
	default:
		return false
	}
}

// isWell reports whether a message that is late tells of a failure of a child that is well by now. Which replica
// tells of a child changes, and another one may have told so meanwhile.
func (s *sending) isWell(ctx context.Context, i *item) bool {
	e := &i.message.Event
	o := &e.InvolvedObject
	if !i.late || payload.IsStatus(i.kind) || i.message.Many() || o.Kind != "Child" || alert.StateOf(e) != alert.Failing || alert.AspectOf(e) != "" {
		return false
	}
	switch e.Reason {
	case v1alpha1.ReasonStale, v1alpha1.ReasonSuperseded, "ObjectsLeft", "PivotBlocked":
		return false // so it may be of a child that is ready
	}
	child := &v1alpha1.Child{}
	return s.o.Client.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, child) == nil &&
		apimeta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) &&
		!slices.ContainsFunc(child.Status.Layers, func(l v1alpha1.ChildLayer) bool { return !l.Ready })
}

// lasts reports whether a message is news after hours as well. What an attempt did is none.
func (i *item) lasts() bool {
	return i.closes() || payload.IsStatus(i.kind) || alert.StateOf(&i.message.Event) != alert.Unchanged || alert.Aside(&i.message.Event)
}

// outdates reports whether nobody needs to be told an older message any more: that an object is
// well says enough, and of what fails only another reason is another thing. A commit status is
// of its commit.
func (i *item) outdates(w *item) bool {
	a, b := &w.message, &i.message
	if payload.IsStatus(w.kind) || w.closes() || a.Many() || b.Many() || !sameObject(a, b) {
		return false
	}
	is := alert.StateOf(&b.Event)
	return is == alert.Well || is == alert.Failing && (alert.StateOf(&a.Event) != alert.Failing || a.Event.Reason == b.Event.Reason)
}

// touches reports whether it matters in which order two items arrive: the last that is told of an object has
// to be what is so. Which objects many are is not known any more, so that any of their kind may be one.
func (i *item) touches(w *item) bool {
	a, b := &i.message, &w.message
	switch {
	case payload.IsStatus(i.kind):
		return sameCommit(a, b)
	case i.closes() || w.closes():
		return slices.ContainsFunc(i.incidents(), func(key string) bool { return slices.Contains(w.incidents(), key) })
	case !i.lasts() || !w.lasts():
		return false // it says nothing of how the object is
	case a.Many() || b.Many():
		return a.Event.InvolvedObject.Kind == b.Event.InvolvedObject.Kind && a.Event.Severity != b.Event.Severity
	}
	return about(a, b)
}

// incidents are the keys of those that an item opens or closes.
func (i *item) incidents() []string {
	if i.opens != "" {
		return []string{i.opens}
	}
	return i.message.Over
}

// other takes an item out of a queue that may arrive before i, and before all that waits longer than it does: one
// that was never tried, or else, unless there is to be no other, the one behind that of the last time, as long as
// none gets through. at is its place.
func (qs *queues) other(q *queue, i *item, untried bool) (next item, at int, ok bool) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	n := len(q.waiting)
	for k := range 2 * n {
		at, late := k, false
		if k >= n {
			at, late = (q.tried+k)%n, true
		}
		w := &q.waiting[at]
		if w.late != late || w.touches(i) || slices.ContainsFunc(q.waiting[:at], func(before item) bool { return w.touches(&before) }) {
			continue
		}
		if late {
			if untried {
				break
			}
			q.tried = at + 1
		}
		next = qs.remove(q, at)
		q.trying = append(q.trying, next)
		return next, at, true
	}
	return item{}, 0, false
}

// overtake notes that an item got through that waited at a place, and those before it that were tried did not.
func (qs *queues) overtake(q *queue, at int) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.tried = 0
	for before := range min(at, len(q.waiting)) {
		w := &q.waiting[before]
		w.passed = w.passed || w.late
	}
}

// takeBack takes what a message outdates, which nobody is told, out of all that waits.
func (s *sending) takeBack(m *alert.Message) {
	s.enqueue(s.groups.TakeBack(m)...)
	s.withdraw(m)
}

// withdraw notes what a message says that nobody is told: what it outdates need not be told later. What waits
// behind others that do not arrive is taken out, and what is still to be tried is not kept if that fails.
func (s *sending) withdraw(m *alert.Message) {
	for _, gone := range s.queues.withdraw(m) {
		s.done(&gone)
	}
}

func (qs *queues) withdraw(m *alert.Message) (dropped []item) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.by[m.Provider]
	if q == nil {
		return nil
	}
	is := item{message: *m}
	for at := len(q.waiting) - 1; at >= 0; at-- {
		switch w := &q.waiting[at]; {
		case !is.outdates(w):
		case q.out:
			dropped = append(dropped, qs.remove(q, at))
		default:
			*w.withdrawn = true
		}
	}
	for _, w := range q.trying {
		if is.outdates(&w) {
			*w.withdrawn = true
		}
	}
	return dropped
}

// back puts an item that did not arrive back into its place in its queue, before what is newer of the same.
// It reports false where something newer that waits makes it needless.
func (qs *queues) back(q *queue, i *item, at int) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.out = true
	if i.closes() {
		return qs.left(q, i)
	}
	status := payload.IsStatus(i.kind)
	if *i.withdrawn || slices.ContainsFunc(q.waiting, func(w item) bool {
		return w.outdates(i) || status && sameStatus(&w.message, &i.message)
	}) {
		return false
	}
	at = min(at, len(q.waiting))
	if newer := slices.IndexFunc(q.waiting[:at], func(w item) bool { return w.touches(i) }); newer >= 0 {
		at = newer
	}
	qs.insert(q, at, *i)
	return true
}

// well notes that messages of a queue arrive.
func (qs *queues) well(q *queue) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.out = false
}
