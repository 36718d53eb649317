package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
)

// collected is a Sink that keeps what it gets.
type collected struct {
	mu     sync.Mutex
	events []eventv1.Event
	labels []map[string]string
}

func (s *collected) Take(e eventv1.Event, labels map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events, s.labels = append(s.events, e), append(s.labels, labels)
}

const intakeToken = "a-token-of-the-test"

func newIntake(t *testing.T, change func(*IntakeOptions)) (*Intake, *collected) {
	t.Helper()
	sink := &collected{}
	o := IntakeOptions{
		Sink: sink, Token: func() (string, error) { return intakeToken, nil }, Now: func() time.Time { return time.Unix(1000, 0) },
		Labels: func(_ context.Context, o corev1.ObjectReference) (map[string]string, error) {
			return map[string]string{"of": o.Name}, nil
		},
		Log: logr.Discard(), Registry: prometheus.NewRegistry(),
	}
	if change != nil {
		change(&o)
	}
	i, err := NewIntake(o)
	if err != nil {
		t.Fatal(err)
	}
	return i, sink
}

// posted is an event as one of Flux's controllers posts it.
func posted() map[string]any {
	return map[string]any{
		"involvedObject": map[string]any{"apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization", "namespace": "apps", "name": "web"},
		"severity":       "error", "reason": "BuildFailed", "message": "cannot build", "reportingController": "kustomize-controller",
		"metadata": map[string]string{"kustomize.toolkit.fluxcd.io/revision": "main@sha1:1"}, "timestamp": "2026-01-02T03:04:05Z",
	}
}

// TestIntake: what others post is told, and what is no event, or of nobody who may, is not.
func TestIntake(t *testing.T) {
	object := func(field string, value any) func(map[string]any) {
		return func(e map[string]any) { e["involvedObject"].(map[string]any)[field] = value }
	}
	field := func(field string, value any) func(map[string]any) {
		return func(e map[string]any) { e[field] = value }
	}
	keys := map[string]string{}
	for n := range mostMetadata + 1 {
		keys[fmt.Sprint(n)] = "x"
	}
	for name, tc := range map[string]struct {
		reason string
		change func(map[string]any)
		body   string
		of     func(*http.Request)
		status int
		result string
		told   int
	}{
		"Good":      {"an event of another controller", nil, "", nil, 202, intakeTaken, 1},
		"Bearer":    {"the token as a bearer", nil, "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+intakeToken) }, 202, intakeTaken, 1},
		"AnyUser":   {"a user of any name", nil, "", func(r *http.Request) { r.SetBasicAuth("flux", intakeToken) }, 202, intakeTaken, 1},
		"NoToken":   {"whoever reaches the port", nil, "", func(r *http.Request) { r.Header.Del("Authorization") }, 401, intakeForged, 0},
		"Wrong":     {"another token", nil, "", func(r *http.Request) { r.SetBasicAuth("", "other") }, 401, intakeForged, 0},
		"Part":      {"the begin of the token", nil, "", func(r *http.Request) { r.SetBasicAuth("", intakeToken[:4]) }, 401, intakeForged, 0},
		"Get":       {"a browser", nil, "", func(r *http.Request) { r.Method = http.MethodGet }, 405, intakeMalformed, 0},
		"Trace":     {"what is told to nobody", field("severity", "trace"), "", nil, 202, intakeTaken, 0},
		"Severity":  {"a severity that there is not", field("severity", "fatal"), "", nil, 400, intakeMalformed, 0},
		"NoReason":  {"an event without its reason", field("reason", ""), "", nil, 400, intakeMalformed, 0},
		"NoObject":  {"an event about nothing", field("involvedObject", map[string]any{}), "", nil, 400, intakeMalformed, 0},
		"NoPlace":   {"a namespace that is missing would be each Alert's own", object("namespace", ""), "", nil, 400, intakeMalformed, 0},
		"LongName":  {"a name that fills the memory", object("name", strings.Repeat("a", mostName+1)), "", nil, 400, intakeMalformed, 0},
		"Lines":     {"a name of several lines", object("name", "a\nb"), "", nil, 400, intakeMalformed, 0},
		"LongUID":   {"another text without end", object("uid", strings.Repeat("a", mostName+1)), "", nil, 400, intakeMalformed, 0},
		"Keys":      {"metadata without end", field("metadata", keys), "", nil, 400, intakeMalformed, 0},
		"TooLarge":  {"a body without end", field("message", strings.Repeat("a", mostIntake)), "", nil, 413, intakeTooLarge, 0},
		"LongText":  {"a long message is cut", field("message", strings.Repeat("a", mostPostMessage+1)), "", nil, 202, intakeTaken, 1},
		"NoTime":    {"an event without its time is of now", field("timestamp", nil), "", nil, 202, intakeTaken, 1},
		"NoJSON":    {"something else", nil, "hello", nil, 400, intakeMalformed, 0},
		"List":      {"a list", nil, "[]", nil, 400, intakeMalformed, 0},
		"Empty":     {"nothing", nil, " ", nil, 400, intakeMalformed, 0},
		"Deep":      {"JSON without end", nil, strings.Repeat(`{"metadata":`, 20_000), nil, 400, intakeMalformed, 0},
		"OtherType": {"a number where a text is wanted", field("message", 1), "", nil, 400, intakeMalformed, 0},
	} {
		t.Run(name, func(t *testing.T) {
			i, sink := newIntake(t, nil)
			e := posted()
			if tc.change != nil {
				tc.change(e)
			}
			text, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			if tc.body != "" {
				text = []byte(tc.body)
			}
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(string(text)))
			r.SetBasicAuth("", intakeToken)
			if tc.of != nil {
				tc.of(r)
			}
			w := httptest.NewRecorder()
			i.ServeHTTP(w, r)
			if w.Code != tc.status || testutil.ToFloat64(i.results.WithLabelValues(tc.result)) != 1 || len(sink.events) != tc.told {
				t.Fatalf("%s: %d %s, told %d", tc.reason, w.Code, w.Body, len(sink.events))
			}
			if strings.Contains(w.Body.String(), intakeToken) {
				t.Errorf("%s: who posts learns the token", tc.reason)
			}
			if tc.told == 0 {
				return
			}
			got := sink.events[0]
			if got.InvolvedObject.Name != "web" || got.Reason != "BuildFailed" || got.Timestamp.IsZero() || len(got.Message) > mostPostMessage || sink.labels[0]["of"] != "web" {
				t.Errorf("%s: told is %+v of %v", tc.reason, got, sink.labels[0])
			}
		})
	}
}

// TestIntakeWithout: on loopback there need be no token, and a token that cannot be read lets
// nobody in. Labels that cannot be read keep no event.
func TestIntakeWithout(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*IntakeOptions)
		status int
	}{
		"NoToken":    {"none is asked for", func(o *IntakeOptions) { o.Token = nil }, 202},
		"Unreadable": {"the file is gone", func(o *IntakeOptions) { o.Token = func() (string, error) { return "", errors.New("gone") } }, 401},
		"EmptyToken": {"an empty file opens nothing", func(o *IntakeOptions) { o.Token = func() (string, error) { return "", nil } }, 401},
		"NoLabels": {"the object is gone", func(o *IntakeOptions) {
			o.Token = nil
			o.Labels = func(context.Context, corev1.ObjectReference) (map[string]string, error) {
				return nil, errors.New("gone")
			}
		}, 202},
	} {
		t.Run(name, func(t *testing.T) {
			i, sink := newIntake(t, tc.change)
			text, err := json.Marshal(posted())
			if err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			i.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(string(text))))
			if w.Code != tc.status || (len(sink.events) == 1) != (tc.status == 202) {
				t.Errorf("%s: %d, told %d", tc.reason, w.Code, len(sink.events))
			}
		})
	}
}

// TestIntakeIsBounded: a sender without end is told to come later, and not that the event was
// told before.
func TestIntakeIsBounded(t *testing.T) {
	i, sink := newIntake(t, nil)
	text, err := json.Marshal(posted())
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for range 2 * intakeBurst {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(string(text)))
		r.SetBasicAuth("", intakeToken)
		w := httptest.NewRecorder()
		i.ServeHTTP(w, r)
		last = w.Code
	}
	if len(sink.events) != intakeBurst || last != http.StatusServiceUnavailable {
		t.Errorf("%d are taken at once, the last is answered with %d", len(sink.events), last)
	}
}

// TestIntakeTakesPosts: what an agent posts, another takes, and the address may have the token.
func TestIntakeTakesPosts(t *testing.T) {
	i, sink := newIntake(t, nil)
	server := httptest.NewServer(i)
	defer server.Close()
	posts, err := NewPosts(strings.Replace(server.URL, "http://", "http://agent:"+intakeToken+"@", 1), "host", nil, prometheus.NewRegistry(), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	event := eventv1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: "Kustomization", Namespace: "apps", Name: "web"}, Severity: eventv1.EventSeverityInfo, Reason: "Progressing",
		ReportingController: "kustomize-controller",
	}
	if result, _, err := posts.post(t.Context(), event); err != nil || result != "posted" || len(sink.events) != 1 {
		t.Errorf("post() = %s, %v; told %d", result, err, len(sink.events))
	}
}

// FuzzIntake: whatever is posted, what is told of it is bounded.
func FuzzIntake(f *testing.F) {
	text, err := json.Marshal(posted())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add(`{"involvedObject":{"kind":"\u0000"}}`)
	f.Fuzz(func(t *testing.T, body string) {
		i, sink := newIntake(t, func(o *IntakeOptions) { o.Token = nil })
		w := httptest.NewRecorder()
		i.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)))
		for _, e := range sink.events {
			if e.InvolvedObject.Name == "" || len(e.InvolvedObject.Name) > mostName || len(e.Metadata) > mostMetadata || len(e.Message) > mostPostMessage {
				t.Errorf("told is %+v", e)
			}
		}
	})
}
