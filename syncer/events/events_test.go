package events

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// inbox is a notification-controller that answers with the given codes, in
// order, and then with the last one.
type inbox struct {
	*httptest.Server
	posts chan eventv1.Event
	codes chan int
}

func newInbox(t *testing.T, codes ...int) *inbox {
	in := &inbox{posts: make(chan eventv1.Event, 100), codes: make(chan int, 100)}
	for _, c := range codes {
		in.codes <- c
	}
	last := http.StatusOK
	in.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event eventv1.Event
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s with %s: %v", r.Method, r.Header.Get("Content-Type"), err)
		}
		select {
		case last = <-in.codes:
		default:
		}
		w.WriteHeader(last)
		in.posts <- event
	}))
	t.Cleanup(in.Close)
	return in
}

func newEvents(t *testing.T, address string) (*Recorder, *record.FakeRecorder) {
	t.Helper()
	posts, err := NewPosts(address, "host-1", nil, prometheus.NewRegistry(), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	posts.retries.Duration = 0
	scheme := runtime.NewScheme()
	if err := kustomizev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	recorder := record.NewFakeRecorder(5000)
	return &Recorder{
		Recorder: recorder, Controller: "kustomize-controller", Scheme: scheme, Posts: posts,
		Now: func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) },
	}, recorder
}

// runPosts sends in the background until the test calls the function it returns.
func runPosts(t *testing.T, p *Posts) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func shopKustomization() *kustomizev1.Kustomization {
	return &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "shop", UID: "1", Annotations: map[string]string{
		"event.toolkit.fluxcd.io/env": "production", "secret": "x",
	}}}
}

func TestEvents(t *testing.T) {
	in := newInbox(t)
	e, recorder := newEvents(t, in.URL)
	stop := runPosts(t, e.Posts)
	metadata := map[string]string{"kustomize.toolkit.fluxcd.io/revision": "main@sha1:1"}
	e.AnnotatedEventf(shopKustomization(), metadata, corev1.EventTypeNormal, "Progressing", "%s created", "Deployment/shop/web")
	e.Event(shopKustomization(), corev1.EventTypeWarning, "BuildFailed", "100% wrong")
	e.Eventf(shopKustomization(), eventv1.EventTypeTrace, "ArtifactUpToDate", "nothing %s", "new")
	first, second := <-in.posts, <-in.posts
	stop()
	want := eventv1.Event{
		InvolvedObject: corev1.ObjectReference{APIVersion: "kustomize.toolkit.fluxcd.io/v1", Kind: "Kustomization", Namespace: "apps", Name: "shop", UID: "1"},
		Severity:       "info", Timestamp: metav1.NewTime(e.Now()), Message: "Deployment/shop/web created", Reason: "Progressing",
		Metadata:            map[string]string{"kustomize.toolkit.fluxcd.io/revision": "main@sha1:1", "event.toolkit.fluxcd.io/env": "production"},
		ReportingController: "kustomize-controller", ReportingInstance: "host-1",
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("post (-want +got):\n%s", diff)
	}
	if second.Severity != "error" || second.Message != "100% wrong" || second.Metadata["event.toolkit.fluxcd.io/env"] != "production" {
		t.Errorf("second post is %+v", second)
	}
	if len(in.posts) > 0 {
		t.Errorf("a trace event is posted: %+v", <-in.posts)
	}
	if len(metadata) != 1 {
		t.Error("the caller's metadata is changed")
	}
	for _, want := range []string{"Normal Progressing Deployment/shop/web created", "Warning BuildFailed 100% wrong", "Normal ArtifactUpToDate nothing new"} {
		if got := <-recorder.Events; !strings.HasPrefix(got, want) {
			t.Errorf("Kubernetes Event is %q, want %q", got, want)
		}
	}
}

func TestEventsWithoutPosts(t *testing.T) {
	e, recorder := newEvents(t, "http://127.0.0.1:1")
	e.Posts = nil
	e.Event(shopKustomization(), corev1.EventTypeNormal, "Progressing", "x")
	if got := <-recorder.Events; !strings.HasPrefix(got, "Normal Progressing x") {
		t.Errorf("got %q", got)
	}
}

// taken is a Sink that keeps events, with the label team of their objects.
type taken []string

func (t *taken) Take(event eventv1.Event, labels map[string]string) {
	*t = append(*t, event.Severity+" "+event.InvolvedObject.Name+" "+event.Reason+" "+event.Metadata["event.toolkit.fluxcd.io/env"]+" of "+labels["team"])
}

// TestSink: a Sink gets what Posts get, with or without them.
func TestSink(t *testing.T) {
	for name, posts := range map[string]bool{"Alone": false, "BesidePosts": true} {
		t.Run(name, func(t *testing.T) {
			e, _ := newEvents(t, "http://127.0.0.1:1")
			if !posts {
				e.Posts = nil
			}
			sink := &taken{}
			e.Sink = sink
			shop := shopKustomization()
			shop.Labels = map[string]string{"team": "a"}
			e.Event(shop, corev1.EventTypeWarning, "BuildFailed", "x")
			e.Event(shop, eventv1.EventTypeTrace, "ArtifactUpToDate", "x")
			before := len(e.Recorder.(*record.FakeRecorder).Events)
			e.Event(shop, TypeTold, "ReconciliationSucceeded", "x")
			if len(e.Recorder.(*record.FakeRecorder).Events) != before {
				t.Error("what is told alone is recorded as an Event")
			}
			e.Event(&kustomizev1.Kustomization{}, corev1.EventTypeWarning, "BuildFailed", "of nobody")
			if want := "[error shop BuildFailed production of a info shop ReconciliationSucceeded production of a]"; fmt.Sprint(*sink) != want {
				t.Errorf("got %v, want %s", *sink, want)
			}
			if posts && len(e.Posts.waiting) != 2 {
				t.Errorf("%d posts wait", len(e.Posts.waiting))
			}
		})
	}
}

func TestPostsRetry(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		codes  []int
		want   int
		result string
	}{
		"Accepted":  {reason: "once is enough", codes: []int{202}, want: 1, result: "posted"},
		"Recovers":  {reason: "server errors pass", codes: []int{500, 503, 200}, want: 3, result: "posted"},
		"Duplicate": {reason: "429 says that it was said", codes: []int{429}, want: 1, result: "duplicate"},
		"Refused":   {reason: "another attempt would be refused, too", codes: []int{400}, want: 1, result: "failed"},
		"Down":      {reason: "not for ever", codes: []int{500}, want: postAttempts, result: "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			in := newInbox(t, tt.codes...)
			e, _ := newEvents(t, in.URL)
			e.Event(shopKustomization(), corev1.EventTypeNormal, "Progressing", "x")
			event, ok := e.Posts.next()
			if !ok {
				t.Fatal("nothing waits")
			}
			e.Posts.deliver(t.Context(), t.Context(), event)
			if len(in.posts) != tt.want {
				t.Errorf("%s: %d requests, want %d", tt.reason, len(in.posts), tt.want)
			}
			if n := testutil.ToFloat64(e.Posts.counts.WithLabelValues(tt.result)); n != 1 {
				t.Errorf("%s: %v events counted as %s", tt.reason, n, tt.result)
			}
		})
	}
}

// TestPostsNeverWait: nobody takes the events, and recording goes on.
func TestPostsNeverWait(t *testing.T) {
	e, _ := newEvents(t, "http://127.0.0.1:1")
	for i := range mostPosts + 10 {
		e.Event(shopKustomization(), corev1.EventTypeNormal, "Progressing", fmt.Sprint(i))
	}
	if n := len(e.Posts.waiting); n != mostPosts {
		t.Errorf("%d events wait, want %d", n, mostPosts)
	}
	if first := e.Posts.waiting[0].Message; first != "10" {
		t.Errorf("the oldest that is left is %s", first)
	}
	if n := testutil.ToFloat64(e.Posts.counts.WithLabelValues("dropped")); n != 10 {
		t.Errorf("%v are counted as dropped, want 10", n)
	}
}

func TestPostsFarewell(t *testing.T) {
	in := newInbox(t)
	e, _ := newEvents(t, in.URL)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e.Event(shopKustomization(), corev1.EventTypeNormal, "Progressing", "last words")
	e.Posts.farewell(context.WithoutCancel(ctx))
	if len(in.posts) != 1 || len(e.Posts.waiting) != 0 {
		t.Errorf("%d events were sent at the end, %d wait", len(in.posts), len(e.Posts.waiting))
	}
}

// TestPostsRunFarewell: what waits when the process is told to end is sent, with the event that is
// being tried just then, in order.
func TestPostsRunFarewell(t *testing.T) {
	in := newInbox(t, http.StatusServiceUnavailable)
	e, _ := newEvents(t, in.URL)
	e.Posts.retries.Duration = time.Hour // it waits for the next attempt when the end comes
	for _, message := range []string{"one", "two", "three"} {
		e.Event(shopKustomization(), corev1.EventTypeWarning, "BuildFailed", message)
	}
	stop := runPosts(t, e.Posts)
	<-in.posts
	in.codes <- http.StatusOK
	stop()
	var got []string
	for len(in.posts) > 0 {
		got = append(got, (<-in.posts).Message)
	}
	if want := "[one two three]"; fmt.Sprint(got) != want {
		t.Errorf("at the end %v were sent, want %s", got, want)
	}
	if posted, failed := testutil.ToFloat64(e.Posts.counts.WithLabelValues("posted")), testutil.ToFloat64(e.Posts.counts.WithLabelValues("failed")); posted != 3 || failed != 0 {
		t.Errorf("%v are counted as posted, %v as failed", posted, failed)
	}
}

func TestPostsErrors(t *testing.T) {
	for _, address := range []string{"", "notification-controller", "ftp://x/", "http://"} {
		if _, err := NewPosts(address, "", nil, prometheus.NewRegistry(), logr.Discard()); err == nil {
			t.Errorf("address %q is accepted", address)
		}
	}
	e, _ := newEvents(t, "http://user:password-of-events@127.0.0.1:1/")
	if _, again, err := e.Posts.post(t.Context(), eventv1.Event{}); err == nil || !again || strings.Contains(err.Error(), "password-of-events") {
		t.Errorf("got %v", err)
	}
}

func FuzzCut(f *testing.F) {
	f.Add("äöü€😀", 7)
	f.Fuzz(func(t *testing.T, text string, most int) {
		if most < 3 || !utf8.ValidString(text) {
			return
		}
		got := cutMessage(text, most)
		if len(got) > most || !utf8.ValidString(got) || !strings.HasPrefix(text, strings.TrimSuffix(got, "...")) {
			t.Errorf("cutMessage(%q, %d) = %q", text, most, got)
		}
	})
}
