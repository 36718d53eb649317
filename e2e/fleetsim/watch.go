package fleetsim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/remote/report"
)

// Numbers of a watch.
const (
	// watchTimeout ends watches that name no time-out, as kube-apiserver does
	// after half an hour to an hour.
	watchTimeout = 30 * time.Minute
	// bookmarkInterval is the time between two bookmarks.
	bookmarkInterval = time.Minute
	// renewInterval is the time between two renewals of a lease that a watch shows.
	renewInterval = report.Heartbeat
)

// watch streams the changes of a kind.
type watch struct {
	request   *request
	selection selection
	// after is the version of the last change that the client has.
	after uint64
	// initial objects are sent first; told: their end is to be told.
	initial   []*record
	told      bool
	bookmarks bool
	timeout   time.Duration
}

// watch begins a watch. The cluster is locked.
func (r *request) watch() (*watch, *apierrors.StatusError) {
	s, err := r.selection()
	if err != nil {
		return nil, err
	}
	c := r.cluster
	w := &watch{request: r, selection: s, timeout: watchTimeout}
	w.bookmarks = r.query.Get("allowWatchBookmarks") == "true"
	if seconds, err := strconv.Atoi(r.query.Get("timeoutSeconds")); err == nil && seconds > 0 {
		w.timeout = time.Duration(seconds) * time.Second
	}
	version := r.query.Get("resourceVersion")
	streaming := r.query.Get("sendInitialEvents") == "true"
	switch {
	case streaming || version == "" || version == "0":
		for _, o := range c.list(r.kind, r.action.namespace) {
			if s.matches(o) {
				w.initial = append(w.initial, o)
			}
		}
		w.after, w.told = c.current(), streaming
	default:
		after, err := strconv.ParseUint(version, 10, 64)
		if err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("Invalid value: %q: %v", version, err))
		}
		w.after = after
	}
	c.watchers++
	return w, nil
}

// run streams until the client goes or the time is over.
func (w *watch) run(out http.ResponseWriter) {
	c := w.request.cluster
	defer func() {
		c.mu.Lock()
		c.watchers--
		c.mu.Unlock()
	}()
	header := out.Header()
	header.Set("Cache-Control", "no-cache, private")
	header.Set("Content-Type", jsonType)
	flush := http.NewResponseController(out)
	out.WriteHeader(http.StatusOK)
	timer := time.NewTimer(w.timeout)
	defer timer.Stop()
	marks := time.NewTicker(bookmarkInterval)
	defer marks.Stop()
	var renewals <-chan time.Time
	if w.request.kind.Kind == "Lease" {
		ticks := time.NewTicker(renewInterval)
		defer ticks.Stop()
		renewals = ticks.C
	}
	for _, o := range w.initial {
		if !w.send(out, "ADDED", o) {
			return
		}
	}
	if w.told && !w.bookmark(out, true) {
		return
	}
	w.initial = nil
	for {
		if flush.Flush() != nil {
			return
		}
		changes, wake, err := w.next()
		if err != nil {
			text, _ := json.Marshal(err.ErrStatus) // a type of Kubernetes
			_, _ = fmt.Fprintf(out, `{"type":"ERROR","object":%s}`+"\n", text)
			return
		}
		for _, ch := range changes {
			if !w.tell(out, ch) {
				return
			}
		}
		if len(changes) > 0 {
			continue
		}
		select {
		case <-wake:
		case <-marks.C:
			if w.bookmarks && !w.bookmark(out, false) {
				return
			}
		case <-renewals:
			if !w.renew(out) {
				return
			}
		case <-timer.C:
			return
		case <-w.request.Context().Done():
			return
		}
	}
}

// renew shows the leases that somebody renews all the time. A server that hangs shows
// nothing.
func (w *watch) renew(out http.ResponseWriter) bool {
	c := w.request.cluster
	if c.currentFaults().Hang {
		return true
	}
	var renewed []*record
	c.mu.Lock()
	for _, o := range c.list(w.request.kind, w.request.action.namespace) {
		if o.renewing && w.selection.matches(o) {
			renewed = append(renewed, o)
		}
	}
	c.mu.Unlock()
	for _, o := range renewed {
		if !w.send(out, "MODIFIED", o) {
			return false
		}
	}
	return true
}

// next returns the changes that the client does not have, and what is closed
// with the one after them.
func (w *watch) next() ([]change, <-chan struct{}, *apierrors.StatusError) {
	c := w.request.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.after < c.oldest {
		err := apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", w.after, c.oldest+1))
		err.ErrStatus.Kind, err.ErrStatus.APIVersion = "Status", "v1"
		return nil, nil, err
	}
	i := len(c.log)
	for i > 0 && c.log[i-1].version > w.after {
		i--
	}
	if i < len(c.log) {
		changes := slices.Clone(c.log[i:])
		w.after = changes[len(changes)-1].version
		return changes, nil, nil
	}
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return nil, c.changed, nil
}

// tell sends a change as far as it concerns the client.
func (w *watch) tell(out http.ResponseWriter, ch change) bool {
	concerns := func(o *record) bool {
		r := w.request
		return o != nil && o.kind.resource() == r.kind.resource() && (r.action.namespace == "" || o.namespace == r.action.namespace) && w.selection.matches(o)
	}
	before, after := concerns(ch.before), concerns(ch.after)
	switch {
	case before && after:
		return w.send(out, "MODIFIED", ch.after)
	case after:
		return w.send(out, "ADDED", ch.after)
	case before:
		gone := *ch.before
		gone.version = ch.version
		return w.send(out, "DELETED", &gone)
	}
	return true
}

func (w *watch) send(out http.ResponseWriter, event string, o *record) bool {
	r := w.request
	text := fmt.Appendf(nil, `{"type":%q,"object":`, event)
	now := r.now()
	if r.partial {
		text = append(text, o.partial("PartialObjectMetadata", now)...)
	} else {
		text = o.append(text, form{version: r.version}, now)
	}
	_, err := out.Write(append(text, '}', '\n'))
	return err == nil
}

// bookmark tells the client how far it is.
func (w *watch) bookmark(out http.ResponseWriter, end bool) bool {
	r := w.request
	var o struct {
		metav1.TypeMeta
		Metadata struct {
			ResourceVersion string            `json:"resourceVersion"`
			Annotations     map[string]string `json:"annotations,omitempty"`
		} `json:"metadata"`
	}
	o.Kind, o.APIVersion = r.kind.Kind, r.kind.apiVersion(r.version)
	if r.partial {
		o.Kind, o.APIVersion = "PartialObjectMetadata", "meta.k8s.io/v1"
	}
	o.Metadata.ResourceVersion = strconv.FormatUint(w.after, 10)
	if end {
		o.Metadata.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	text, _ := json.Marshal(o) // our own type
	_, err := fmt.Fprintf(out, `{"type":"BOOKMARK","object":%s}`+"\n", text)
	return err == nil
}
