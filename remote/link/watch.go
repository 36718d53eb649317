package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// tellFirst is the pause after a change of the report that the parent was told of. It
	// doubles with each change up to tellLast, and begins anew after tellQuiet without one.
	// A child that changes its report all the time costs no more than a few requests in a
	// minute.
	tellFirst = time.Second
	tellLast  = 15 * time.Second
	tellQuiet = time.Minute
)

// reportWatch is the watch of the report of a child's agent. It tells that the report
// changed. What it says is read by the next probe, with the bounds of a probe. The
// link's lock guards it.
type reportWatch struct {
	// end ends the watch, nil while there is none. Another one may begin at notBefore.
	end       context.CancelFunc
	notBefore time.Time
	// open: the API server granted the watch. Until then it shows nothing.
	open bool
	// version of the report that was read last, empty if there was none, and latest the one
	// that the watch showed last. changed: it was not read yet.
	version, latest string
	changed         bool
	// changes counts those that the parent was told of, the last one at told, as the
	// times'th in a row.
	changes int
	told    time.Time
	times   int
}

// watchReport begins to watch the report if there is none of it yet. It is called by a
// probe that the child answered. The goroutine is owned by the link: it ends with the
// link's life, or when the child stops answering.
func (l *Link) watchReport(q Request) {
	if !q.Agent || l.minted == nil || l.identity != q.Recorded {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch.end != nil || l.pool.now().Before(l.watch.notBefore) {
		return
	}
	ctx, end := context.WithCancel(l.life)
	l.watch.end = end
	go l.watchOn(ctx, end, l.minted)
}

// unwatch ends the watch. The caller does not hold the lock.
func (l *Link) unwatch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch.end != nil {
		l.watch.end()
	}
}

// mayWatch says that the parent has the right to watch the report by now.
func (l *Link) mayWatch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch.notBefore = time.Time{}
}

// watched reports whether the report is watched. A watch that was asked for and is not
// granted yet, perhaps because the API server does not answer, is none.
func (l *Link) watched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watch.open
}

func (l *Link) opened(open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch.open = open
}

// Changed reports whether the agent's report changed since it was read.
func (l *Link) Changed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watch.changed
}

// changes counts what the watch told.
func (l *Link) changes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watch.changes
}

// read notes which version of the report was read, by a request that began after so many
// changes. What the watch tells while a report is read may be a later one.
func (l *Link) read(version string, changes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.watch
	w.version = version
	w.changed = w.changes != changes && w.latest != version
}

// watchOn watches until the context ends or a watch fails.
func (l *Link) watchOn(ctx context.Context, end context.CancelFunc, as *caller) {
	defer end()
	var err error
	for ctx.Err() == nil && err == nil {
		began := l.pool.now()
		if err = l.stream(ctx, as); err == nil && l.pool.now().Sub(began) < watchShortest {
			err = errors.New("the API server ends watches at once")
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watch.end = nil
	switch {
	case ctx.Err() != nil: // it was ended
	case apierrors.IsForbidden(err):
		l.watch.notBefore = l.pool.now().Add(watchRefused)
	default:
		l.watch.notBefore = l.pool.now().Add(watchRetry)
	}
}

// stream follows one watch of the report's metadata. It returns nil if the API server
// ended it as it was asked to.
func (l *Link) stream(ctx context.Context, as *caller) error {
	life := time.Duration(float64(watchLife) * (0.75 + 0.25*l.pool.random()))
	// A server that is gone ends nothing.
	ctx, cancel := context.WithTimeout(ctx, life+callTimeout)
	defer cancel()
	events, err := as.watch(ctx, reportsPath, partialContent(), map[string]string{
		"fieldSelector":   "metadata.name=" + v1alpha1.ReportConfigMap,
		"resourceVersion": "0",
		"timeoutSeconds":  strconv.Itoa(int(life.Seconds())),
	})
	if err != nil {
		return fmt.Errorf("cannot watch report: %w", err)
	}
	defer func() { _ = events.Close() }()
	l.opened(true)
	defer l.opened(false)
	decoder := json.NewDecoder(events)
	for {
		var event metav1.WatchEvent
		err := decoder.Decode(&event)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("cannot read watch of report: %w", err)
		}
		version := ""
		switch watch.EventType(event.Type) {
		case watch.Added, watch.Modified:
			var seen metav1.PartialObjectMetadata
			if err := json.Unmarshal(event.Object.Raw, &seen); err != nil {
				return fmt.Errorf("cannot read watch of report: %w", err)
			}
			version = seen.ResourceVersion
		case watch.Deleted:
		default:
			return fmt.Errorf("watch of report ended with event %s", event.Type)
		}
		if pause := l.tell(version); pause > 0 {
			timer := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				timer.Stop()
				return ctx.Err()
			case <-timer.C:
			}
		}
	}
}

// tell calls for a reconcile if the report of this version has not been read. It returns
// how long to wait before the next event is looked at.
func (l *Link) tell(version string) time.Duration {
	l.mu.Lock()
	w := &l.watch
	if version == w.version {
		l.mu.Unlock()
		return 0
	}
	now := l.pool.now()
	if now.Sub(w.told) >= tellQuiet {
		w.times = 0
	}
	pause := tellPause(w.times)
	w.changed, w.latest, w.told = true, version, now
	w.changes++
	w.times++
	l.mu.Unlock()
	l.pool.Wake(l.key, true)
	return pause
}

// tellPause is the pause after a change when there were so many before it in a row.
func tellPause(before int) time.Duration {
	return min(tellFirst<<min(before, 10), tellLast)
}
