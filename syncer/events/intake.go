package events

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds of what others post.
const (
	// mostIntake bounds a body: a message of mostPostMessage characters, and metadata.
	mostIntake = 256 << 10
	// mostMetadata keys are in an event, and mostName bytes in a name of it.
	mostMetadata = 64
	mostName     = 253
	// mostReading posts are read at a time, of mostSenders connections.
	mostReading = 16
	mostSenders = 256
	// intakeRate is how many events are taken in a second, intakeBurst how many at once.
	intakeRate  = 100
	intakeBurst = 1000
	// intakeTime bounds reading one, and what is asked about its object.
	intakeTime = 5 * time.Second
	// intakeFarewell is the time that posts have to end with the process.
	intakeFarewell = 2 * time.Second
)

// Results of posts, by which they are counted.
const (
	intakeTaken     = "taken"
	intakeForged    = "forged"
	intakeMalformed = "malformed"
	intakeTooLarge  = "too_large"
	intakeLimited   = "limited"
)

// IntakeOptions of NewIntake.
type IntakeOptions struct {
	Sink Sink
	// Token is what who posts must know; nil asks for none.
	Token func() (string, error)
	// Labels reads those of the object of an event, which Alerts may select by; nil reads
	// none.
	Labels   func(context.Context, corev1.ObjectReference) (map[string]string, error)
	Now      func() time.Time
	Log      logr.Logger
	Registry prometheus.Registerer
}

// Intake takes the events that other controllers post, as Flux's notification-controller
// does, and hands them to a Sink. It is safe for concurrent use.
type Intake struct {
	o       IntakeOptions
	limit   *rate.Limiter
	reading chan struct{}
	results *prometheus.CounterVec
}

// NewIntake returns an Intake, whose metric is registered.
func NewIntake(o IntakeOptions) (*Intake, error) {
	i := &Intake{
		o: o, limit: rate.NewLimiter(intakeRate, intakeBurst), reading: make(chan struct{}, mostReading),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cascade_events_received_total", Help: "Events that other controllers posted, by result: taken, forged, malformed, too_large, limited.",
		}, []string{"result"}),
	}
	if err := o.Registry.Register(i.results); err != nil {
		return nil, fmt.Errorf("cannot register metric of received events: %w", err)
	}
	for _, result := range []string{intakeTaken, intakeForged, intakeMalformed, intakeTooLarge, intakeLimited} {
		i.results.WithLabelValues(result)
	}
	return i, nil
}

// Serve serves an Intake until the context ends, and closes the listener.
func (i *Intake) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: i, ReadHeaderTimeout: intakeTime, ReadTimeout: 2 * intakeTime, WriteTimeout: 4 * intakeTime, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(netutil.LimitListener(listener, mostSenders)) }()
	select {
	case err := <-served:
		return fmt.Errorf("cannot receive events: %w", err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), intakeFarewell)
	defer cancel()
	_ = server.Shutdown(last) // who does not leave by then is cut off
	_ = server.Close()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot receive events: %w", err)
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (i *Intake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	result, status, text := i.take(w, r)
	i.results.WithLabelValues(result).Inc()
	switch status {
	case http.StatusAccepted:
		w.WriteHeader(status)
		return
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Basic realm="events"`)
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "5")
	}
	w.Header().Set("Connection", "close") // what is left of the body is not waited for
	http.Error(w, text, status)
}

// take takes one post. Nothing of it is read before who posts has shown the token.
func (i *Intake) take(w http.ResponseWriter, r *http.Request) (result string, status int, text string) {
	if r.Method != http.MethodPost {
		return intakeMalformed, http.StatusMethodNotAllowed, "events are posted"
	}
	if err := i.allowed(r); err != nil {
		return intakeForged, http.StatusUnauthorized, err.Error()
	}
	// Flux's controllers take 429 for an event that was told before, and try no more.
	busy := func() (string, int, string) {
		return intakeLimited, http.StatusServiceUnavailable, "too many events"
	}
	select {
	case i.reading <- struct{}{}:
		defer func() { <-i.reading }()
	default:
		return busy()
	}
	if !i.limit.AllowN(i.o.Now(), 1) {
		return busy()
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(intakeTime)) // or that of the server
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, mostIntake))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return intakeTooLarge, http.StatusRequestEntityTooLarge, "the event is larger than 256 KiB"
	case err != nil:
		return intakeMalformed, http.StatusBadRequest, "the body cannot be read"
	}
	event, err := i.parse(body)
	if err != nil {
		return intakeMalformed, http.StatusBadRequest, err.Error()
	}
	if event.Severity != eventv1.EventSeverityTrace {
		i.o.Sink.Take(*event, i.labels(r.Context(), event))
	}
	return intakeTaken, http.StatusAccepted, ""
}

// errForged says no more to who has no token.
var errForged = errors.New("the token is wrong, or missing: set it as the password of the URL")

// allowed reports whether who posts has the token: as a bearer, or as a password, which a
// URL may have.
func (i *Intake) allowed(r *http.Request) error {
	if i.o.Token == nil {
		return nil
	}
	want, err := i.o.Token()
	if err != nil || want == "" {
		i.o.Log.Error(err, "cannot read the token of events: none is taken")
		return errForged
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		_, given, ok = r.BasicAuth()
	}
	a, b := sha256.Sum256([]byte(want)), sha256.Sum256([]byte(given))
	if !ok || subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return errForged
	}
	return nil
}

// parse reads an event, and what of it is shown to others is bounded from then on.
func (i *Intake) parse(body []byte) (*eventv1.Event, error) {
	event := &eventv1.Event{}
	if err := json.Unmarshal(body, event); err != nil {
		return nil, errors.New("the body is no event in JSON")
	}
	o := &event.InvolvedObject
	for what, text := range map[string]string{
		"involvedObject.kind": o.Kind, "involvedObject.name": o.Name, "involvedObject.namespace": o.Namespace,
		"reason": event.Reason, "reportingController": event.ReportingController,
	} {
		if text == "" || len(text) > mostName || strings.ContainsFunc(text, isControl) {
			return nil, fmt.Errorf("%s of the event is missing, or is no name", what)
		}
	}
	switch event.Severity {
	case eventv1.EventSeverityInfo, eventv1.EventSeverityError, eventv1.EventSeverityTrace:
	default:
		return nil, errors.New("severity of the event is none of info, error and trace")
	}
	if len(event.Metadata) > mostMetadata {
		return nil, fmt.Errorf("metadata of the event has more than %d keys", mostMetadata)
	}
	if len(o.APIVersion) > mostName || len(o.UID) > mostName || len(o.ResourceVersion) > mostName || len(o.FieldPath) > mostName || len(event.ReportingInstance) > mostName {
		return nil, errors.New("involvedObject of the event has a text that is too long")
	}
	event.Message = cutMessage(event.Message, mostPostMessage)
	if event.Timestamp.IsZero() {
		event.Timestamp = metav1.NewTime(i.o.Now())
	}
	return event, nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// labels are those of the object; none if they cannot be read.
func (i *Intake) labels(ctx context.Context, event *eventv1.Event) map[string]string {
	if i.o.Labels == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, intakeTime)
	defer cancel()
	labels, err := i.o.Labels(ctx, event.InvolvedObject)
	if err != nil {
		i.o.Log.V(1).Info("cannot read the labels of the object of an event", "kind", event.InvolvedObject.Kind,
			"namespace", event.InvolvedObject.Namespace, "name", event.InvolvedObject.Name, "error", err.Error())
	}
	return labels
}
