package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

const (
	// watchLife is how long a watch is asked for at most; the API server may end it
	// earlier. Children that were connected together do not begin again together.
	watchLife = 10 * time.Minute
	// watchShortest is how long a watch has to last to be begun again at once.
	watchShortest = time.Minute
	// watchRetry is how long after a watch that failed the next one may begin, and
	// watchRefused how long after one that the child did not allow: an earlier version
	// granted its parent no such right, and the next push does.
	watchRetry   = time.Minute
	watchRefused = 10 * time.Minute
	// silentAfter an event the agent counts as silent for sure.
	silentAfter = AgentSilence + time.Second
	// eventPause is the pause after each event: a child that sends one after the other
	// takes no more of the parent than that.
	eventPause = 200 * time.Millisecond
	// callPause is the shortest time between two calls for a reconcile because the report
	// changed. There may be callBurst such calls one after the other, and then one each
	// callEvery: a commit is seen at once, and a child that changes its report all the time
	// is read fifteen times a minute.
	callPause = time.Second
	callBurst = 16
	callEvery = 4 * time.Second
)

// heartbeat is what is known of the heartbeat of a child's agent: a Lease, whose label is
// the digest of the report. The watch of it tells that the agent is alive and that its
// report changed. What it says is read by the next probe, with the bounds of a probe. The
// link's lock guards it.
type heartbeat struct {
	// end ends the watch, nil while there is none. Another one may begin at notBefore.
	end       context.CancelFunc
	notBefore time.Time
	// open: the API server granted the watch. Until then it shows nothing.
	open bool
	// lease is the name of the Lease that stands for the agent, and version the one of it
	// that was seen last. at is when it was last seen to change, by our clock: the clocks of
	// two clusters cannot be compared. renewed: it was seen to change. The first look shows
	// nothing: its holder may be dead for days.
	lease, version string
	at             time.Time
	renewed        bool
	// leader is the version of the leader's Lease at the last look, and absent is when it
	// was seen that there is no heartbeat: an agent of an earlier version has none.
	leader string
	absent time.Time
	// known is the digest of the report that was read last, and told the one that the watch
	// told of last: another version of the agent may digest in another way. changed: what was
	// told of was not read yet.
	known, told string
	changed     bool
	// changes counts those that the parent was told of. The last call for a reconcile was,
	// or will be, at calledAt; credit is how many may follow it.
	changes  int
	calledAt time.Time
	credit   *rate.Limiter
}

// seen notes a version of the Lease that stands for the agent.
func (h *heartbeat) seen(lease, version string, now time.Time) {
	if h.lease == lease && h.version == version {
		return
	}
	h.renewed = h.lease == lease && h.version != ""
	h.lease, h.version, h.at = lease, version, now
}

// watchAgent begins to watch the heartbeat if there is no watch of it yet. It is called by
// a probe that the child answered. The goroutine is owned by the link: it ends with the
// link's life, or when the child stops answering.
func (l *Link) watchAgent(q Request) {
	if !q.Agent || l.minted == nil || l.identity != q.Recorded {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.beat.end != nil || l.pool.now().Before(l.beat.notBefore) {
		return
	}
	ctx, end := context.WithCancel(l.life)
	l.beat.end = end
	go l.watchOn(ctx, end)
}

// unwatch ends the watch. The caller does not hold the lock.
func (l *Link) unwatch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.beat.end != nil {
		l.beat.end()
	}
}

// mayWatch says that the parent has the right to watch the heartbeat by now.
func (l *Link) mayWatch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat.notBefore = time.Time{}
}

func (l *Link) opened(open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat.open = open
}

// Changed reports whether the agent's report changed since it was read.
func (l *Link) Changed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.beat.changed
}

// Unread reports whether the agent's report changed since it was read, and in how long it
// may be read again.
func (l *Link) Unread() (wait time.Duration, changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.beat.changed {
		return 0, false
	}
	return l.beat.call(l.pool.now()), true
}

// call returns in how long the parent may be called for a reconcile because the report
// changed. One call that is still to come stands for all changes before it.
func (h *heartbeat) call(now time.Time) time.Duration {
	if now.Before(h.calledAt) {
		return h.calledAt.Sub(now)
	}
	if h.credit == nil {
		h.credit = rate.NewLimiter(rate.Every(callEvery), callBurst)
	}
	next := h.calledAt.Add(callPause)
	h.calledAt = now.Add(h.credit.ReserveN(now, 1).DelayFrom(now))
	if h.calledAt.Before(next) {
		h.calledAt = next
	}
	return h.calledAt.Sub(now)
}

// changes counts what the watch told.
func (l *Link) changes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.beat.changes
}

// read notes which report was read, by a request that began after so many changes. What
// the watch tells while a report is read may be a later one.
func (l *Link) read(digest string, changes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := &l.beat
	h.known = digest
	h.changed = h.changes != changes && h.told != digest
}

// Told reports whether the agent of the child is known to be alive by the watch, which
// calls for a reconcile when that ends or when the report changes: nobody needs to ask.
func (l *Link) Told() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.beat.tells(l.pool.now())
}

func (h *heartbeat) tells(now time.Time) bool {
	return h.open && h.renewed && h.lease == v1alpha1.HeartbeatLease && now.Sub(h.at) <= AgentSilence
}

// token is the caller with the parent's own token, nil while there is none that is good. It is safe for
// concurrent use.
func (l *Link) token() *caller {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.pool.now().Before(l.expires) {
		return nil
	}
	return l.minted
}

// watchOn watches until the context ends or a watch fails. Each watch begins with the token that there is by then: it
// outlasts one.
func (l *Link) watchOn(ctx context.Context, end context.CancelFunc) {
	defer end()
	var shown, lapsed bool
	var err error
	for ctx.Err() == nil && err == nil {
		began, as := l.pool.now(), l.token()
		if lapsed = as == nil; lapsed {
			break
		}
		var w *stream
		if w, err = l.open(ctx, as); err == nil {
			shown = true
			err = w.follow()
			w.close()
		}
		if err == nil && l.pool.now().Sub(began) < watchShortest {
			err = errors.New("the API server ends watches at once")
		}
	}
	ended := ctx.Err() != nil // by us
	l.mu.Lock()
	l.beat.end = nil
	switch {
	case ended:
	case lapsed, apierrors.IsUnauthorized(err): // the probe that is called for gets another token, and begins again
	case apierrors.IsForbidden(err):
		l.beat.notBefore = l.pool.now().Add(watchRefused)
	default:
		l.beat.notBefore = l.pool.now().Add(watchRetry)
	}
	l.mu.Unlock()
	if shown && !ended {
		l.pool.Wake(l.key, Due) // the child is asked from now on
	}
}

// stream is one watch of the heartbeat's metadata, which the API server granted.
type stream struct {
	link    *Link
	events  io.ReadCloser
	decoder *json.Decoder
	// silence and call wake the child: when the agent is silent, and when its report may be
	// read again.
	silence, call *time.Timer
	// done ends with the watch, cancel ends it.
	done   <-chan struct{}
	cancel context.CancelFunc
}

// open begins a watch. The caller closes it.
func (l *Link) open(ctx context.Context, as *caller) (*stream, error) {
	life := time.Duration(float64(watchLife) * (0.75 + 0.25*l.pool.random()))
	// A server that is gone ends nothing.
	ctx, cancel := context.WithTimeout(ctx, life+callTimeout)
	events, err := as.watch(ctx, leasesPath, partialContent(), map[string]string{
		"fieldSelector":   "metadata.name=" + v1alpha1.HeartbeatLease,
		"resourceVersion": "0",
		"timeoutSeconds":  strconv.Itoa(int(life.Seconds())),
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("cannot watch heartbeat: %w", err)
	}
	l.opened(true)
	wake := func() { l.pool.Wake(l.key, Urgent) }
	w := &stream{link: l, events: events, decoder: json.NewDecoder(events), done: ctx.Done(), cancel: cancel,
		silence: time.AfterFunc(silentAfter, wake), call: time.AfterFunc(time.Hour, wake)}
	w.call.Stop()
	return w, nil
}

func (w *stream) close() {
	if w.link.Changed() && w.call.Stop() {
		w.link.pool.Wake(w.link.key, Urgent) // the call that was to come is not lost with the watch
	}
	w.silence.Stop()
	w.link.opened(false)
	_ = w.events.Close()
	w.cancel()
}

// follow takes events until the watch ends. It returns no error if the API server ended it as it
// was asked to. A goroutine for each child waits here, 3 KB deep. The runtime halves a stack of
// which less than a quarter is used: with what open does in the same frame, each had 16 KB.
func (w *stream) follow() error {
	for {
		event, err := w.next()
		if event == nil || err != nil {
			return err
		}
		if err := w.take(event); err != nil {
			return err
		}
		timer := time.NewTimer(eventPause)
		select {
		case <-w.done:
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// next waits for an event. It is nil when the API server has ended the watch.
func (w *stream) next() (*metav1.WatchEvent, error) {
	event := &metav1.WatchEvent{}
	switch err := w.decoder.Decode(event); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read watch of heartbeat: %w", err)
	}
	return event, nil
}

// take notes what an event tells.
func (w *stream) take(event *metav1.WatchEvent) error {
	switch kind := watch.EventType(event.Type); kind {
	case watch.Added, watch.Modified:
		var seen metav1.PartialObjectMetadata
		if err := json.Unmarshal(event.Object.Raw, &seen); err != nil {
			return fmt.Errorf("cannot read watch of heartbeat: %w", err)
		}
		if wait, news := w.link.tell(&seen, kind == watch.Added); news {
			w.call.Reset(wait)
		}
		w.silence.Reset(silentAfter)
	case watch.Deleted: // by somebody else: a living agent makes it again
	default:
		return fmt.Errorf("watch of heartbeat ended with event %s", event.Type)
	}
	return nil
}

// tell notes a heartbeat. news: it tells of a report that has not been read, for which a
// reconcile is to be called in a while. first: a watch begins with it, and may show an old
// state.
func (l *Link) tell(seen *metav1.PartialObjectMetadata, first bool) (wait time.Duration, news bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, now, digest := &l.beat, l.pool.now(), seen.Labels[v1alpha1.ReportLabel]
	if first && h.lease == v1alpha1.HeartbeatLease {
		if c, err := resourceversion.CompareResourceVersion(seen.ResourceVersion, h.version); err != nil || c <= 0 {
			return 0, false
		}
	}
	h.seen(v1alpha1.HeartbeatLease, seen.ResourceVersion, now)
	same := digest == h.told
	if h.told = digest; digest == "" || digest == h.known || same {
		return 0, false
	}
	h.changed = true
	h.changes++
	return h.call(now), true
}
