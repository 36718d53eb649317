// Package events records what happens to objects, as Flux's controllers do: as
// Kubernetes Events, as posts to notification-controller, and to a Sink in this process.
// The Sink gets what other controllers post as well, if an Intake is served.
//
// Invariants: recording never waits for anything; posts go out one after the
// other, apart from who records them, and at most so many wait. Of what others post
// nothing is read before they have shown the token, and all of it is bounded; nothing
// but the Sink is told of it.
//
// Failure model: a post that fails is tried a few times and then counted and
// logged. When too many wait, the oldest are dropped and counted. Who posts too much is
// told to come later.
package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	objectreference "k8s.io/client-go/tools/reference"
)

// Numbers of events.
const (
	// The API server allows 1024 bytes of a message, notification-controller
	// 39 000 characters.
	mostEventMessage = 1000
	mostPostMessage  = 39_000
	// mostPosts wait to be sent. When there are more, the oldest go: what is
	// new is worth more than what nobody took for a while.
	mostPosts = 1000
	// An event is tried postAttempts times, with pauses from postPause, doubled
	// each time.
	postAttempts = 5
	postPause    = time.Second
	postTimeout  = 5 * time.Second
	// postFarewell is how long what is left is sent when the process ends.
	postFarewell = 2 * time.Second
)

// Sink takes events in this process, with the labels of their objects. It never waits.
type Sink interface {
	Take(event eventv1.Event, labels map[string]string)
}

// TypeTold is the kind of an event that is told as a Normal one, and recorded as none: what is
// no news to whoever looks at the object is worth no request.
const TypeTold = "Told"

// Recorder records what happens to objects, as Flux's controllers do: as
// Kubernetes Events, by Posts, and to a Sink. Recording never waits for anything. It is a
// record.EventRecorder, safe for concurrent use.
type Recorder struct {
	// Recorder of Kubernetes Events, for the same controller name.
	Recorder record.EventRecorder
	// Controller is the name that Alerts and Providers of Flux know:
	// source-controller, kustomize-controller.
	Controller string
	Scheme     *runtime.Scheme
	// Posts and Sink may be nil.
	Posts *Posts
	Sink  Sink
	Log   logr.Logger
	Now   func() time.Time
}

var _ record.EventRecorder = (*Recorder)(nil)

// Event is AnnotatedEventf without annotations, of a fixed text.
func (e *Recorder) Event(object runtime.Object, kind, reason, message string) {
	e.AnnotatedEventf(object, nil, kind, reason, "%s", message)
}

// Eventf is AnnotatedEventf without annotations.
func (e *Recorder) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	e.AnnotatedEventf(object, nil, kind, reason, format, args...)
}

// AnnotatedEventf records an event. annotations become its metadata, with the
// object's own of group event.toolkit.fluxcd.io; keys carry the API group of the
// object's kind, as in kustomize.toolkit.fluxcd.io/revision. A kind of Trace is
// a Normal Kubernetes Event and nothing else, TypeTold all but that. Long messages are cut.
func (e *Recorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, kind, reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	metadata := maps.Clone(annotations)
	var labels map[string]string
	if o, ok := object.(metav1.Object); ok {
		labels = o.GetLabels()
		for k, v := range o.GetAnnotations() {
			if strings.HasPrefix(k, eventv1.Group+"/") {
				if metadata == nil {
					metadata = map[string]string{}
				}
				metadata[k] = v
			}
		}
	}
	severity, kubernetesKind := eventv1.EventSeverityInfo, kind
	switch kind {
	case corev1.EventTypeWarning:
		severity = eventv1.EventSeverityError
	case eventv1.EventTypeTrace:
		severity, kubernetesKind = eventv1.EventSeverityTrace, corev1.EventTypeNormal
	}
	if kind != TypeTold {
		e.Recorder.AnnotatedEventf(object, metadata, kubernetesKind, reason, "%s", cutMessage(message, mostEventMessage))
	}
	if e.Posts == nil && e.Sink == nil || severity == eventv1.EventSeverityTrace {
		return
	}
	ref, err := objectreference.GetReference(e.Scheme, object)
	if err == nil && (ref.Kind == "" || ref.Name == "" || ref.Namespace == "") {
		err = errors.New("it has no kind, name or namespace")
	}
	if err != nil {
		e.Log.Error(err, "cannot tell of event: it is about an unknown object", "reason", reason)
		return
	}
	event := eventv1.Event{
		InvolvedObject: *ref, Severity: severity, Timestamp: metav1.NewTime(e.Now()),
		Message: cutMessage(message, mostPostMessage), Reason: reason, Metadata: metadata, ReportingController: e.Controller,
	}
	if e.Posts != nil {
		e.Posts.add(event)
	}
	if e.Sink != nil {
		// The object is its caller's, and may change when this returns.
		e.Sink.Take(event, maps.Clone(labels))
	}
}

// cutMessage shortens text to at most so many bytes, at a character.
func cutMessage(text string, most int) string {
	if len(text) <= most {
		return text
	}
	text = text[:most-3]
	for !utf8.ValidString(text) && len(text) > 0 && !utf8.RuneStart(text[len(text)-1]) {
		text = text[:len(text)-1]
	}
	return strings.ToValidUTF8(text, "") + "..."
}

// Posts sends events to notification-controller, one after the other and apart
// from who records them.
type Posts struct {
	address  string
	instance string
	client   *http.Client
	log      logr.Logger
	counts   *prometheus.CounterVec
	retries  wait.Backoff

	mu      sync.Mutex
	waiting []eventv1.Event
	wake    chan struct{}
}

// NewPosts sends to an address (--events-addr) in the name of an instance, the
// host's name. Nothing is sent before Run. client may be nil.
func NewPosts(address, instance string, client *http.Client, registry prometheus.Registerer, log logr.Logger) (*Posts, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("cannot post events: the address is not a URL of http or https")
	}
	if client == nil {
		client = &http.Client{Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: postTimeout}).DialContext,
			TLSHandshakeTimeout: postTimeout, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 1,
		}}
	}
	p := &Posts{
		address: address, instance: instance, client: client, retries: wait.Backoff{Duration: postPause, Factor: 2, Steps: postAttempts}, log: log, wake: make(chan struct{}, 1),
		counts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cascade_event_posts_total",
			Help: "Events for notification-controller by result: posted, duplicate, failed, dropped.",
		}, []string{"result"}),
	}
	if err := registry.Register(p.counts); err != nil {
		return nil, fmt.Errorf("cannot register metric of events: %w", err)
	}
	// increase() sees no first failure of a series that begins with it.
	for _, result := range []string{"posted", "duplicate", "failed", "dropped"} {
		p.counts.WithLabelValues(result)
	}
	return p, nil
}

// NeedLeaderElection is false: who does not lead records nothing.
func (p *Posts) NeedLeaderElection() bool { return false }

// Run sends events until the context ends, and then what is left, once and for
// a short while.
func (p *Posts) Run(ctx context.Context) {
	// A post that is under way when ctx ends has the short while, too: one that is cut off may
	// have been taken, and would come twice.
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() { time.AfterFunc(postFarewell, stop) })
	for ctx.Err() == nil {
		event, ok := p.next()
		if ok {
			p.deliver(ctx, life, event)
			continue
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
		}
	}
	p.farewell(life)
}

// Start is Run, for a manager.
func (p *Posts) Start(ctx context.Context) error {
	p.Run(ctx)
	return nil
}

func (p *Posts) farewell(ctx context.Context) {
	for ctx.Err() == nil {
		event, ok := p.next()
		if !ok {
			return
		}
		result, _, _ := p.post(ctx, event)
		p.counts.WithLabelValues(result).Inc()
	}
}

func (p *Posts) add(event eventv1.Event) {
	event.ReportingInstance = p.instance
	p.mu.Lock()
	p.waiting = append(p.waiting, event)
	over := len(p.waiting) - mostPosts
	if over > 0 {
		p.waiting = append(p.waiting[:0], p.waiting[over:]...)
	}
	p.mu.Unlock()
	if over > 0 {
		p.counts.WithLabelValues("dropped").Add(float64(over))
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Posts) next() (eventv1.Event, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) == 0 {
		p.waiting = nil
		return eventv1.Event{}, false
	}
	event := p.waiting[0]
	p.waiting[0] = eventv1.Event{}
	p.waiting = p.waiting[1:]
	return event, true
}

// putBack has an event wait again, before all others.
func (p *Posts) putBack(event eventv1.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append([]eventv1.Event{event}, p.waiting...)
}

// deliver sends an event, by several attempts if it must, each within life. When ctx ends before
// it is sent, it waits again, for the farewell.
func (p *Posts) deliver(ctx, life context.Context, event eventv1.Event) {
	// A context that has ended lets nothing be tried.
	result, again, last := "failed", true, context.Canceled
	_ = wait.ExponentialBackoffWithContext(ctx, p.retries, func(context.Context) (done bool, err error) {
		result, again, last = p.post(life, event)
		return last == nil || !again, nil
	})
	if last != nil && again && ctx.Err() != nil {
		p.putBack(event)
		return
	}
	p.counts.WithLabelValues(result).Inc()
	if last != nil {
		p.log.Error(last, "cannot post event", "kind", event.InvolvedObject.Kind, "namespace", event.InvolvedObject.Namespace,
			"name", event.InvolvedObject.Name, "reason", event.Reason)
	}
}

// post sends an event once. again tells whether it is worth another attempt.
func (p *Posts) post(ctx context.Context, event eventv1.Event) (result string, again bool, err error) {
	body, err := json.Marshal(event)
	if err != nil {
		return "failed", false, fmt.Errorf("cannot write event: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.address, bytes.NewReader(body))
	if err != nil {
		return "failed", false, errors.New("cannot make request of events address")
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		// The address may carry a password, which the error would quote.
		var where *url.Error
		if errors.As(err, &where) {
			err = where.Err
		}
		return "failed", true, fmt.Errorf("cannot reach events address: %w", err)
	}
	defer response.Body.Close()
	// Read, so that the connection can be used again.
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 4<<10))
	switch code := response.StatusCode; {
	case code == http.StatusTooManyRequests:
		return "duplicate", false, nil // said before, within a while
	case code >= 500 && code != http.StatusNotImplemented:
		return "failed", true, fmt.Errorf("events address answered %s", response.Status)
	case code >= 400:
		return "failed", false, fmt.Errorf("events address answered %s", response.Status)
	}
	return "posted", false, nil
}
