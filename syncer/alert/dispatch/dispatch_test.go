package dispatch

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/alert"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// bench is a dispatcher with what it reads and writes.
type bench struct {
	*Dispatcher
	client   client.Client
	events   *record.FakeRecorder
	registry *prometheus.Registry
	log      *safe
}

type safe struct {
	mu sync.Mutex
	bytes.Buffer
}

func (s *safe) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.WriteString(text + "\n")
}

func (s *safe) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.String()
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{notificationv1beta3.AddToScheme, corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	b := &bench{
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(),
		events: record.NewFakeRecorder(5000), registry: prometheus.NewRegistry(), log: &safe{},
	}
	var err error
	b.Dispatcher, err = New(Options{
		Client: b.client, RateLimit: 5 * time.Minute, Instance: "agent-1", Events: b.events, Workers: workers,
		Senders: &Senders{Reader: b.client}, Registry: b.registry, Now: time.Now, Rand: func() float64 { return 0 },
		Log:     funcr.New(func(prefix, args string) { b.log.add(prefix + args) }, funcr.Options{}),
		Windows: alert.Windows{Quiet: time.Millisecond, QuietMany: time.Millisecond, Longest: time.Millisecond, LongestMany: time.Millisecond, Again: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.pause, b.retry = time.Millisecond, time.Millisecond
	return b
}

// run sends in the background until the test ends, or stop is called.
func (b *bench) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func (b *bench) count(kind, result string) float64 {
	return testutil.ToFloat64(b.metrics.total.WithLabelValues(kind, result))
}

func provider(name, kind, address string, change func(*notificationv1beta3.ProviderSpec)) *notificationv1beta3.Provider {
	p := &notificationv1beta3.Provider{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name, UID: types.UID("uid-" + name), Generation: 1}}
	p.Spec.Type, p.Spec.Address = kind, address
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func alertFor(name string, change func(*notificationv1beta3.AlertSpec)) *notificationv1beta3.Alert {
	a := &notificationv1beta3.Alert{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name, UID: types.UID("alert-" + name), Generation: 1}}
	a.Spec.ProviderRef = meta.LocalObjectReference{Name: name}
	a.Spec.EventSources = []notificationv1.CrossNamespaceObjectReference{{Kind: "Kustomization", Name: "*"}}
	if change != nil {
		change(&a.Spec)
	}
	return a
}

func secret(name string, data map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}, Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

const commit = "731f7eaddfb6af01cb2173e18f0f75b0ba780ef1"

func event(name, message string) eventv1.Event {
	return eventv1.Event{
		InvolvedObject: corev1.ObjectReference{APIVersion: "kustomize.toolkit.fluxcd.io/v1", Kind: "Kustomization", Namespace: "apps", Name: name, UID: types.UID(name)},
		Severity:       "error", Reason: "BuildFailed", Message: message, ReportingController: "kustomize-controller", Timestamp: metav1.Now(),
		Metadata: map[string]string{"kustomize.toolkit.fluxcd.io/revision": "main@sha1:" + commit},
	}
}

// inbound is a server that keeps what it is sent.
type inbound struct {
	*httptest.Server
	bodies chan []byte
	heads  chan http.Header
}

func newInbound(t *testing.T, answer http.HandlerFunc) *inbound {
	t.Helper()
	in := &inbound{bodies: make(chan []byte, 5000), heads: make(chan http.Header, 5000)}
	in.Server = httptest.NewServer(http.HandlerFunc(in.take(answer)))
	t.Cleanup(in.Close)
	return in
}

func (in *inbound) take(answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the attempt was given up
		}
		in.heads <- r.Header
		in.bodies <- body
		if answer != nil {
			answer(w, r)
		}
	}
}

func (in *inbound) next(t *testing.T) string {
	t.Helper()
	select {
	case body := <-in.bodies:
		return string(body)
	case <-t.Context().Done():
		t.Fatal("nothing came")
		return ""
	}
}

func (b *bench) happened(t *testing.T) string {
	t.Helper()
	select {
	case e := <-b.events.Events:
		return e
	case <-t.Context().Done():
		t.Fatal("no event was recorded")
		return ""
	}
}

func TestSends(t *testing.T) {
	in := newInbound(t, nil)
	b := newBench(t, provider("to", "generic", in.URL, nil), alertFor("to", func(s *notificationv1beta3.AlertSpec) { s.Summary = "shop" }))
	b.run(t)
	b.Take(event("web", "it failed"), nil)
	var got eventv1.Event
	if err := json.Unmarshal([]byte(in.next(t)), &got); err != nil {
		t.Fatal(err)
	}
	if got.Message != "it failed" || got.Metadata["summary"] != "shop" || got.Metadata["revision"] == "" || got.ReportingInstance != "agent-1" {
		t.Errorf("got %+v", got)
	}
	if head := <-in.heads; head.Get("Gotk-Component") != "kustomize-controller" {
		t.Errorf("headers are %v", head)
	}
	// The same again is told to nobody.
	b.Take(event("web", "it failed"), nil)
	b.Take(event("web", "it failed again"), nil)
	if body := in.next(t); !strings.Contains(body, "failed again") {
		t.Errorf("got %s", body)
	}
	if n := b.count("unknown", resultRepeated); n != 1 {
		t.Errorf("%v are counted as repeated", n)
	}
}

// TestTellsTheLastState: an object that fails, is well and fails again within the interval is
// told to fail, by whoever tells errors alone as well.
func TestTellsTheLastState(t *testing.T) {
	all, errors := newInbound(t, nil), newInbound(t, nil)
	b := newBench(t, provider("all", "generic", all.URL, nil), alertFor("all", nil), provider("errors", "generic", errors.URL, nil),
		alertFor("errors", func(s *notificationv1beta3.AlertSpec) { s.EventSeverity = "error" }))
	stop := b.run(t)
	well := event("web", "it is well")
	well.Severity, well.Reason = "info", "ReconciliationSucceeded"
	for _, e := range []eventv1.Event{event("web", "it failed"), well, event("web", "it failed")} {
		b.Take(e, nil)
		if got := all.next(t); !strings.Contains(got, e.Message) {
			t.Errorf("got %s", got)
		}
	}
	stop()
	if n := len(errors.bodies); n != 2 {
		t.Errorf("%d errors are told, want 2", n)
	}
}

// TestProvidersThatFail: what is tried again and what is not, what is said of it, and that
// nothing of a Secret is.
func TestProvidersThatFail(t *testing.T) {
	const password = "the-secret-token"
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	elsewhere := newInbound(t, nil)
	hostile := strings.Repeat("x", 64<<10)
	for name, tt := range map[string]struct {
		reason   string
		answer   http.HandlerFunc
		address  string // instead of the server's
		tls      bool
		timeout  time.Duration
		requests int
		event    string
	}{
		"Failing": {reason: "500 is tried again, and not for ever", answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, requests: attempts, event: ReasonFailing},
		"TooMany": {reason: "429 is tried again", answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, requests: attempts, event: ReasonFailing},
		"Refused": {reason: "404 will be 404 again", answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, requests: 1, event: ReasonRefused},
		"Unauthorized": {
			reason: "a token that is wrong stays wrong; what the server says is not told",
			answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401); fmt.Fprint(w, "internal words") }, requests: 1, event: ReasonRefused,
		},
		"Redirect": {
			reason: "a token goes nowhere else",
			answer: func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			},
			requests: 1, event: ReasonRedirectRefused,
		},
		"WrongCertificate": {reason: "who does not prove who it is gets nothing", tls: true, requests: 0, event: ReasonCertificateRefused},
		"Hanging":          {reason: "an attempt has a deadline", answer: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, timeout: time.Second, requests: attempts, event: ReasonTimeout},
		"Closed":           {reason: "nobody is there", address: closed.URL + "/" + password, requests: 0, event: ReasonUnreachable},
		"Giant": {
			reason: "an answer without end is not read to its end, and the message was taken",
			answer: func(w http.ResponseWriter, _ *http.Request) {
				for {
					if _, err := fmt.Fprint(w, hostile); err != nil {
						return
					}
				}
			}, requests: 1, event: "",
		},
		"Garbage": {
			reason: "what is no HTTP is not quoted",
			answer: func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := w.(http.Hijacker).Hijack()
				if err == nil {
					fmt.Fprint(conn, "+PONG internal words\r\n")
					conn.Close()
				}
			}, requests: attempts, event: ReasonUnreachable,
		},
		"Switched": {
			reason: "another protocol that nobody asked for, and then nothing, to which spec.timeout does not reach",
			answer: func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := w.(http.Hijacker).Hijack()
				if err == nil {
					defer conn.Close()
					fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
					_, _ = io.Copy(io.Discard, conn) // until the client hangs up
				}
			}, timeout: time.Second, requests: attempts, event: ReasonUnreachable,
		},
		"LinkLocal": {reason: "a metadata service is no Provider", address: "http://169.254.169.254/latest", requests: 0, event: ReasonAddressRefused},
		"NoURL":     {reason: "an address without a scheme", address: password, requests: 0, event: "InvalidProvider"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := newInbound(t, tt.answer)
			if tt.tls {
				in.Server = httptest.NewTLSServer(in.take(nil))
				in.Config.ErrorLog = nil
				t.Cleanup(in.Close)
			}
			address := in.URL + "/" + password
			if tt.address != "" {
				address = tt.address
			}
			p := provider("to", "generic-hmac", "", func(s *notificationv1beta3.ProviderSpec) {
				s.SecretRef = &meta.LocalObjectReference{Name: "login"}
				if tt.timeout > 0 {
					s.Timeout = &metav1.Duration{Duration: tt.timeout}
				}
			})
			b := newBench(t, p, alertFor("to", nil), secret("login", map[string]string{"address": address, "token": password}))
			stop := b.run(t)
			b.Take(event("web", "it failed"), nil)
			if tt.event == "" {
				in.next(t)
				stop()
				if n := b.count("generic-hmac", resultSent); n != 1 {
					t.Errorf("%s: %v are counted as sent", tt.reason, n)
				}
				return
			}
			got, requests := b.happened(t), len(in.heads)
			stop()
			if !strings.HasPrefix(got, "Warning "+tt.event+" cannot send notifications: ") {
				t.Errorf("%s: the event is %q, want %s", tt.reason, got, tt.event)
			}
			if requests != tt.requests {
				t.Errorf("%s: %d requests, want %d", tt.reason, requests, tt.requests)
			}
			if n := b.count("generic-hmac", resultFailed); n != 1 {
				t.Errorf("%s: %v are counted as failed", tt.reason, n)
			}
			if len(elsewhere.heads) > 0 {
				t.Errorf("%s: the redirect was followed", tt.reason)
			}
			for _, said := range []string{got, b.log.text()} {
				for _, never := range []string{password, "internal words", "PONG"} {
					if strings.Contains(said, never) {
						t.Errorf("%s: %q tells %q", tt.reason, said, never)
					}
				}
			}
		})
	}
}

// TestHangingProviderDelaysNobody: fifty Providers of a namespace hang and two hundred of another one, and one
// that is well gets all it is to get; whoever records events waits for none of them.
func TestHangingProviderDelaysNobody(t *testing.T) {
	released := make(chan struct{})
	hanging := newInbound(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-released:
		case <-r.Context().Done():
		}
	})
	in := newInbound(t, nil)
	objects := []client.Object{provider("well", "generic", in.URL, nil), alertFor("well", nil)}
	for i := range 50 {
		name := fmt.Sprint("hangs", i)
		objects = append(objects, provider(name, "generic", hanging.URL, nil), alertFor(name, nil))
	}
	for i := range 200 {
		name := fmt.Sprint("others", i)
		p := provider(name, "generic", hanging.URL, nil)
		a := alertFor(name, func(s *notificationv1beta3.AlertSpec) { s.EventSources[0].Namespace = "apps" })
		p.Namespace, a.Namespace = "others", "others"
		objects = append(objects, p, a)
	}
	b := newBench(t, objects...)
	b.run(t)
	for i := range 15 {
		b.Take(event("web", fmt.Sprint("message ", i)), nil)
	}
	for i := range 15 {
		if body := in.next(t); !strings.Contains(body, fmt.Sprintf("message %d\"", i)) {
			t.Fatalf("message %d is %s", i, body)
		}
	}
	for range 50 + placesOfWell/2 { // each has one attempt on its way, and no more
		<-hanging.heads
	}
	if n := len(hanging.heads); n > 0 {
		t.Errorf("%d attempts more than one for each Provider", n)
	}
	close(released)
}

// TestKnownToFail: a Provider that failed last takes no place from others when it is sent
// something again.
func TestKnownToFail(t *testing.T) {
	in := newInbound(t, nil)
	p := provider("to", "generic", in.URL, nil)
	b := newBench(t, p, alertFor("to", nil))
	for range placesOfWell / 2 {
		leave, err := b.places.take(t.Context(), p.Namespace, false)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	b.report(p, failuref(ReasonTimeout, true, "it hangs"))
	b.run(t)
	b.Take(event("web", "it failed"), nil)
	in.next(t)
}

// TestOneMessageForMany: a thousand objects that fail for one cause are one message in a
// chat, and a program gets each of them.
func TestOneMessageForMany(t *testing.T) {
	chat, program := newInbound(t, nil), newInbound(t, nil)
	b := newBench(t, provider("chat", "slack", chat.URL, nil), alertFor("chat", nil), provider("program", "generic", program.URL, nil), alertFor("program", nil))
	for i := range 1000 {
		b.Take(event(fmt.Sprint("k", i), fmt.Sprint("cannot find the source of k", i)), nil)
	}
	stop := b.run(t)
	for range 1000 {
		program.next(t)
	}
	if body := chat.next(t); !strings.Contains(body, "1000 Kustomizations") || !strings.Contains(body, "and 990 more") {
		t.Errorf("got %s", body)
	}
	stop()
	if n := len(chat.bodies); n > 0 {
		t.Errorf("%d messages more than one", n)
	}
}

// TestBounds: nobody sends, and what waits is bounded in number and in bytes. The oldest
// are dropped.
func TestBounds(t *testing.T) {
	qs := &queues{by: map[types.NamespacedName]*queue{}}
	add := func(provider string, n, size int) (dropped []gone) {
		m := alert.Message{Provider: types.NamespacedName{Namespace: "apps", Name: provider}, Objects: n}
		_, _, dropped = qs.add(item{message: m, kind: "generic", bytes: size}, false)
		return dropped
	}
	total := 0
	for i := range mostWaiting + 10 {
		for _, gone := range add("a", i, 10) {
			if gone.message.Objects != total {
				t.Fatalf("%d is dropped before %d", gone.message.Objects, total)
			}
			total++
		}
	}
	if total != 10 || len(qs.by[types.NamespacedName{Namespace: "apps", Name: "a"}].waiting) != mostWaiting {
		t.Errorf("%d are dropped", total)
	}
	for i := range 100 {
		for range 100 {
			add(fmt.Sprint("p", i), 0, 100<<10)
		}
		if qs.bytes > mostBytesOfAll {
			t.Fatalf("%d bytes wait", qs.bytes)
		}
	}
	sum := 0
	for _, q := range qs.by {
		of := 0
		for _, i := range q.waiting {
			of += i.bytes
		}
		if of != q.bytes || of > mostBytes || len(q.waiting) > mostWaiting {
			t.Errorf("%d bytes of %d messages wait, %d are counted", of, len(q.waiting), q.bytes)
		}
		sum += of
	}
	if sum != qs.bytes {
		t.Errorf("%d bytes wait, %d are counted", sum, qs.bytes)
	}
	b := newBench(t)
	for i := range mostInbox + 10 {
		b.Take(event("web", fmt.Sprint(i)), nil)
	}
	if waiting := b.inbox.take(); len(waiting) != mostInbox || waiting[0].Message != "10" || b.count("unknown", resultDropped) != 10 {
		t.Errorf("%d wait, and the oldest is %s", len(waiting), waiting[0].Message)
	}
	for range mostInbox {
		b.Take(event("web", strings.Repeat("a", 39_000)), nil)
	}
	if n := len(b.inbox.take()); n != mostInboxBytes/39_000 || b.inbox.bytes != 0 {
		t.Errorf("%d long events wait, of %d bytes", n, b.inbox.bytes)
	}
}

// TestRoomOfAnother: Providers of one namespace for which much waits leave what waits for others alone, also while that
// does not arrive.
func TestRoomOfAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		out    bool
		size   int
	}{
		"Out":  {reason: "it is out, and has little", out: true, size: 500},
		"Well": {reason: "it has more than each of the others", size: 390_000},
	} {
		t.Run(name, func(t *testing.T) {
			qs := &queues{by: map[types.NamespacedName]*queue{}}
			add := func(namespace, provider string, size int) (dropped []gone) {
				_, _, dropped = qs.add(item{message: alert.Message{Provider: types.NamespacedName{Namespace: namespace, Name: provider}}, kind: "generic", bytes: size}, false)
				return dropped
			}
			for range 10 {
				add("apps", "chat", tt.size)
			}
			chat := qs.by[types.NamespacedName{Namespace: "apps", Name: "chat"}]
			chat.out = tt.out
			lost := 0
			for range 110 {
				for i := range 40 {
					for _, gone := range add("evil", fmt.Sprint("p", i), 39_000) {
						lost++
						if gone.message.Provider.Namespace != "evil" {
							t.Fatalf("%s: a message of %s is dropped", tt.reason, gone.message.Provider)
						}
					}
				}
			}
			if lost == 0 || qs.bytes > mostBytesOfAll || len(chat.waiting) != 10 {
				t.Errorf("%s: %d are dropped, %d bytes wait, %d messages of apps", tt.reason, lost, qs.bytes, len(chat.waiting))
			}
		})
	}
}

// TestStatusTakesPlace: a newer commit status takes the place of an older one of the same
// object and commit that waits.
func TestStatusTakesPlace(t *testing.T) {
	qs := &queues{by: map[types.NamespacedName]*queue{}}
	of := func(name, revision, reason string) item {
		e := event(name, reason)
		e.Reason, e.Metadata = reason, map[string]string{"revision": revision}
		return item{message: alert.Message{Event: e}, bytes: 1}
	}
	replaced := 0
	for _, i := range []item{of("web", "1", "Progressing"), of("api", "1", "Progressing"), of("web", "2", "Progressing"), of("web", "1", "ReconciliationSucceeded")} {
		q, _, dropped := qs.add(i, true)
		for _, gone := range dropped {
			if !gone.replaced {
				t.Error("a status is dropped")
			}
			replaced++
		}
		if n := len(q.waiting); qs.bytes != n {
			t.Errorf("%d bytes for %d", qs.bytes, n)
		}
	}
	if replaced != 1 {
		t.Errorf("%d are replaced, want one", replaced)
	}
}

// TestClosings: what closes incidents waits behind all else, many in one item, and closes
// none that was opened again.
func TestClosings(t *testing.T) {
	type add struct{ name, severity string }
	fails := func(name string) add { return add{name, "error"} }
	well := func(name string) add { return add{name, "info"} }
	var storm []add
	for i := range 2*mostOver + 1 {
		storm = append(storm, well(fmt.Sprint("k", i)))
	}
	for name, tt := range map[string]struct {
		reason   string
		adds     []add
		want     string // what is opened, and how many are closed by an item
		replaced int
	}{
		"Order":    {reason: "an incident is closed after it was opened", adds: []add{fails("a"), well("a")}, want: "a closes:1"},
		"Reopened": {reason: "what failed again is not closed", adds: []add{well("a"), fails("a")}, want: "a", replaced: 1},
		"OneOf":    {reason: "the others are", adds: []add{well("a"), well("b"), fails("a")}, want: "a closes:1", replaced: 1},
		"First":    {reason: "who is to be woken waits for nobody", adds: []add{well("a"), well("b"), fails("c"), fails("d")}, want: "c d closes:2", replaced: 1},
		"Twice":    {reason: "it is closed once", adds: []add{well("a"), well("b"), well("a")}, want: "closes:2", replaced: 2},
		"Storm":    {reason: "many are few items", adds: storm, want: "closes:20 closes:20 closes:1", replaced: 2*mostOver + 1 - 3},
	} {
		t.Run(name, func(t *testing.T) {
			qs := &queues{by: map[types.NamespacedName]*queue{}}
			var q *queue
			replaced := 0
			for _, a := range tt.adds {
				e := event(a.name, "x")
				if e.Severity = a.severity; a.severity == "info" {
					e.Reason = "ReconciliationSucceeded"
				}
				of, _, dropped := qs.add(itemOf(alert.Message{Event: e, Objects: 1, Events: 1}, "pagerduty"), false)
				q = of
				for _, gone := range dropped {
					if !gone.replaced {
						t.Error("something is dropped")
					}
					replaced++
				}
			}
			var got []string
			bytes := 0
			for _, i := range q.waiting {
				bytes += i.bytes
				if i.closes() {
					got = append(got, fmt.Sprint("closes:", len(i.message.Over)))
				} else {
					got = append(got, i.opens)
				}
			}
			if strings.Join(got, " ") != tt.want || replaced != tt.replaced {
				t.Errorf("%s: %q with %d replaced, want %q with %d", tt.reason, got, replaced, tt.want, tt.replaced)
			}
			if bytes != q.bytes || bytes != qs.bytes {
				t.Errorf("%d bytes wait, %d and %d are counted", bytes, q.bytes, qs.bytes)
			}
		})
	}
}

// TestFullOfClosings: a queue that is full of what is well drops none of what somebody is to be woken for.
func TestFullOfClosings(t *testing.T) {
	qs := &queues{by: map[types.NamespacedName]*queue{}}
	add := func(name, severity string) []gone {
		e := event(name, "x")
		e.Severity, e.Reason = severity, "ReconciliationSucceeded"
		m := alert.Message{Event: e, Objects: 1, Events: 1}
		m.Alert.Name = name // each of another Alert: they are not one item
		_, _, dropped := qs.add(itemOf(m, "pagerduty"), false)
		return dropped
	}
	for i := range mostWaiting {
		add(fmt.Sprint("k", i), "info")
	}
	dropped := add("page", "error")
	q := qs.by[types.NamespacedName{}]
	if len(dropped) != 1 || dropped[0].opens != "" || q.waiting[0].opens != "page" {
		t.Errorf("dropped is %+v, the first is %q", dropped, q.waiting[0].opens)
	}
}

// TestGiveWay: a list of what is well that is being sent goes on after what somebody is to be woken for.
func TestGiveWay(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		opens  []string
		sent   int
		want   []string
	}{
		"Nothing": {reason: "nobody waits"},
		"Page":    {reason: "one waits", opens: []string{"page"}, sent: 1, want: []string{"b", "c"}},
		"Again":   {reason: "one of the list failed again", opens: []string{"c"}, sent: 1, want: []string{"b"}},
		"Rest":    {reason: "all of the rest did: closing them now comes before that", opens: []string{"b", "c"}, sent: 1},
		"Done":    {reason: "all are closed", opens: []string{"page"}, sent: 3},
	} {
		t.Run(name, func(t *testing.T) {
			qs := &queues{by: map[types.NamespacedName]*queue{}}
			q := &queue{}
			for _, key := range tt.opens {
				q.waiting = append(q.waiting, item{opens: key})
			}
			i := &item{message: alert.Message{Over: []string{"a", "b", "c"}}, sent: tt.sent}
			if got := qs.giveWay(q, i); got != (tt.want != nil) {
				t.Fatalf("%s: giveWay() = %t", tt.reason, got)
			}
			if tt.want == nil {
				return
			}
			if last := q.waiting[len(q.waiting)-1]; !slices.Equal(last.message.Over, tt.want) || last.sent != 0 || q.bytes != last.bytes || qs.bytes != last.bytes {
				t.Errorf("%s: what waits is %+v", tt.reason, last)
			}
		})
	}
}

// TestIncidentsKnown: what is known to be closed is closed once, until it may be open again.
func TestIncidentsKnown(t *testing.T) {
	var known incidents
	at := types.NamespacedName{Namespace: "ns", Name: "pager"}
	item := func(opens string, over ...string) *item {
		i := &item{opens: opens}
		i.message.Provider, i.message.Over = at, over
		return i
	}
	if known.isClosed(at, "a") {
		t.Error("after a start nothing is known to be closed")
	}
	known.note(item("", "a", "b"))
	if !known.isClosed(at, "a") || known.isClosed(types.NamespacedName{Name: "other"}, "a") {
		t.Error("what was closed is not known, or at another Provider")
	}
	known.note(item("a"))
	known.forget(item("", "b"))
	if known.isClosed(at, "a") || known.isClosed(at, "b") {
		t.Error("what failed again, or was not told, counts as closed")
	}
	for i := range mostClosed + 1 {
		known.note(item("", fmt.Sprint(i)))
	}
	if len(known.closed) > mostClosed {
		t.Errorf("%d are remembered", len(known.closed))
	}
}

// TestIncidentsOfNobody: what closes an incident of a Provider that is suspended or gone closes none.
func TestIncidentsOfNobody(t *testing.T) {
	for name, tt := range map[string]struct {
		reason   string
		provider string
	}{
		"Suspended": {reason: "it is resumed, with the incident open", provider: "pager"},
		"Gone":      {reason: "it is made again", provider: "other"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, provider(tt.provider, "pagerduty", "", func(s *notificationv1beta3.ProviderSpec) { s.Suspend = true }))
			e := event("web", "web is well")
			e.Severity, e.Reason = "info", "ReconciliationSucceeded"
			at := types.NamespacedName{Namespace: "apps", Name: "pager"}
			i := itemOf(alert.Message{Provider: at, Event: e, Objects: 1, Events: 1}, "pagerduty")
			b.incidents.note(&i)
			s := &sending{Dispatcher: b.Dispatcher}
			if got := s.deliver(t.Context(), &line{}, &queue{provider: at}, &i); got != lost || b.incidents.isClosed(at, i.message.Over[0]) {
				t.Errorf("%s: deliver() = %d, and the incident is known to be closed: %t", tt.reason, got, b.incidents.isClosed(at, i.message.Over[0]))
			}
		})
	}
}

// TestIncidentsEnd: whoever is well has no incident, whichever object opened it and in which
// order they recover.
func TestIncidentsEnd(t *testing.T) {
	numbers := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprint("k", i))
		}
		return all
	}
	reversed := func(all []string) []string {
		slices.Reverse(all)
		return all
	}
	for name, tt := range map[string]struct {
		reason      string
		fail, again []string
		opened      int // at most
		quiet       time.Duration
		// limit is how many requests are taken before one is refused.
		limit int
		// status: what they recover with is for commit statuses alone.
		status bool
	}{
		"Kustomization": {reason: "that it ended well is all that a Kustomization says, for commit statuses", fail: []string{"k0"}, again: []string{"k1", "k0"}, opened: 1, status: true},
		"One":           {reason: "the incident of one object ends when three others recover with it", fail: []string{"k0"}, again: []string{"k3", "k1", "k0", "k2"}, opened: 1},
		"Storm":         {reason: "that of many ends with its first object, whichever recovers first", fail: numbers(300), again: reversed(numbers(300)), opened: 10},
		"Limited":       {reason: "a service that takes a part at a time is asked again for the rest", fail: numbers(60), again: reversed(numbers(60)), opened: 10, limit: 7},
		"Waiting":       {reason: "one that is well before it is told to fail has none", fail: []string{"k0", "k1", "k2", "k3", "k4"}, again: []string{"k2", "k0"}, opened: 5, quiet: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex // guards what follows
			open, opened, requests := map[string]bool{}, 0, 0
			closed := make(chan string, 5000)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var body struct {
					Action string `json:"event_action"`
					Key    string `json:"dedup_key"`
				}
				_ = json.NewDecoder(r.Body).Decode(&body)
				mu.Lock()
				defer mu.Unlock()
				requests++
				switch {
				case tt.limit > 0 && requests%tt.limit == 0:
					w.WriteHeader(http.StatusTooManyRequests)
				case body.Action == "trigger":
					open[body.Key] = true
					opened++
				case body.Action == "resolve":
					delete(open, body.Key)
					closed <- body.Key
				}
			}))
			t.Cleanup(server.Close)
			b := newBench(t, provider("pager", "pagerduty", server.URL, func(s *notificationv1beta3.ProviderSpec) { s.Channel = "key" }), alertFor("pager", nil))
			b.spread = time.Microsecond
			if tt.quiet > 0 {
				b.groups = alert.NewGroups(alert.Windows{Quiet: tt.quiet, QuietMany: tt.quiet, Longest: tt.quiet, LongestMany: tt.quiet, Again: tt.quiet})
			}
			for _, name := range tt.fail {
				b.Take(event(name, "it failed"), nil)
			}
			stop := b.run(t)
			left := map[string]bool{}
			for _, name := range tt.again {
				e := event(name, "it is well")
				e.Severity, e.Reason = "info", "ReconciliationSucceeded"
				if tt.status {
					e.Metadata = map[string]string{eventv1.Group + "/" + eventv1.MetaCommitStatusKey: eventv1.MetaCommitStatusUpdateValue}
				}
				left[name] = true
				b.Take(e, nil)
			}
			for len(left) > 0 {
				select {
				case key := <-closed:
					delete(left, key)
				case <-t.Context().Done():
					t.Fatal("incidents are not closed")
				}
			}
			stop()
			mu.Lock()
			defer mu.Unlock()
			if opened == 0 || opened > tt.opened {
				t.Errorf("%s: %d incidents are opened", tt.reason, opened)
			}
			for _, name := range tt.again {
				if open[name] {
					t.Errorf("%s: the incident of %s is open", tt.reason, name)
				}
			}
		})
	}
}

// TestFarewell: what waits when the process ends is sent, without waiting for groups.
func TestFarewell(t *testing.T) {
	in := newInbound(t, nil)
	b := newBench(t, provider("chat", "slack", in.URL, nil), alertFor("chat", nil))
	b.groups = alert.NewGroups(alert.Windows{Quiet: time.Hour, QuietMany: time.Hour, Longest: time.Hour, LongestMany: time.Hour, Again: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.Take(event("web", "last words"), nil)
	b.Run(ctx)
	if body := in.next(t); !strings.Contains(body, "last words") {
		t.Errorf("got %s", body)
	}
}

// TestFarewellIsShort: a Provider that hangs does not keep the process from its end.
func TestFarewellIsShort(t *testing.T) {
	in := newInbound(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	b := newBench(t, provider("to", "generic", in.URL, nil), alertFor("to", nil))
	stop := b.run(t)
	for i := range 10 {
		b.Take(event("web", fmt.Sprint(i)), nil)
	}
	in.next(t)
	stop() // returns
}

// TestEndsWhenIdle: nothing is left of a Provider that nothing is sent to.
func TestEndsWhenIdle(t *testing.T) {
	in := newInbound(t, nil)
	b := newBench(t, provider("to", "generic", in.URL, nil), alertFor("to", nil))
	b.linger = time.Millisecond
	b.run(t)
	for i := range 3 {
		b.Take(event("web", fmt.Sprint(i)), nil)
		in.next(t)
		for left := -1; left != 0; {
			b.queues.mu.Lock()
			left = len(b.queues.by)
			b.queues.mu.Unlock()
			if t.Context().Err() != nil {
				t.Fatal("the queue stays")
			}
		}
	}
}

// TestTells: what is said about Alerts and Providers, once.
func TestTells(t *testing.T) {
	in := newInbound(t, nil)
	for name, tt := range map[string]struct {
		reason string
		p      *notificationv1beta3.Provider
		alert  func(*notificationv1beta3.AlertSpec)
		want   []string // beginnings of events
		kind   string
		result string
	}{
		"NotFound": {
			reason: "the Provider is missing", p: provider("other", "generic", in.URL, nil), want: []string{"Warning ProviderNotFound Provider apps/to does not exist"},
			kind: "unknown", result: resultRefused,
		},
		"Unsupported": {
			reason: "the type is not served", p: provider("to", "matrix", in.URL, nil),
			want: []string{"Warning UnsupportedProvider cannot send notifications: type matrix"}, kind: "matrix", result: resultRefused,
		},
		"InvalidAlert": {
			reason: "an expression is none", p: provider("to", "generic", in.URL, nil), alert: func(s *notificationv1beta3.AlertSpec) { s.ExclusionList = []string{"("} },
			want: []string{"Warning InvalidAlert cannot use spec.exclusionList[0]"}, kind: "generic", result: resultSent,
		},
		"Conflict": {
			reason: "the Alert says another revision", p: provider("to", "generic", in.URL, nil),
			alert: func(s *notificationv1beta3.AlertSpec) { s.EventMetadata = map[string]string{"revision": "x"} },
			want:  []string{"Warning MetadataConflict metadata revision"}, kind: "generic", result: resultSent,
		},
		"NoSecret": {
			reason: "a Secret is missing",
			p:      provider("to", "generic", in.URL, func(s *notificationv1beta3.ProviderSpec) { s.SecretRef = &meta.LocalObjectReference{Name: "gone"} }),
			want:   []string{"Warning InvalidProvider cannot send notifications: Secret gone of spec.secretRef does not exist"}, kind: "generic", result: resultFailed,
		},
		"WrongHeaders": {
			reason: "what no header may have is not sent",
			p:      provider("to", "generic", in.URL, func(s *notificationv1beta3.ProviderSpec) { s.SecretRef = &meta.LocalObjectReference{Name: "headers"} }),
			want:   []string{"Warning InvalidProvider cannot send notifications: headers, token"}, kind: "generic", result: resultFailed,
		},
		"ServiceAccount": {
			reason: "identities of clouds are not served",
			p:      provider("to", "generic", in.URL, func(s *notificationv1beta3.ProviderSpec) { s.ServiceAccountName = "a" }),
			want:   []string{"Warning InvalidProvider cannot send notifications: spec.serviceAccountName is not followed"}, kind: "generic", result: resultFailed,
		},
		"Suspended": {
			reason: "spec.suspend of the Provider", p: provider("to", "generic", in.URL, func(s *notificationv1beta3.ProviderSpec) { s.Suspend = true }),
			kind: "generic",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tt.p, alertFor("to", tt.alert), secret("headers", map[string]string{"headers": "X-A: \"x\\nY: z\""}))
			stop := b.run(t)
			b.Take(event("web", "one"), nil)
			b.Take(event("web", "two"), nil)
			for _, want := range tt.want {
				if got := b.happened(t); !strings.HasPrefix(got, want) {
					t.Errorf("%s: got %q, want %q", tt.reason, got, want)
				}
			}
			stop()
			if n := len(b.events.Events); n > 0 {
				t.Errorf("%s: %d events more, as %s", tt.reason, n, <-b.events.Events)
			}
			if tt.result != "" && b.count(tt.kind, tt.result) != 2 {
				t.Errorf("%s: %v are counted as %s", tt.reason, b.count(tt.kind, tt.result), tt.result)
			}
			if tt.result == "" && testutil.CollectAndCount(b.metrics.total) > 0 {
				t.Errorf("%s: something is counted", tt.reason)
			}
		})
	}
}

// TestRecovers: a Provider that failed and is well again says so.
func TestRecovers(t *testing.T) {
	var code atomic.Int32
	in := newInbound(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(code.Load())) })
	b := newBench(t, provider("to", "generic", in.URL, nil), alertFor("to", nil))
	b.run(t)
	for i, step := range []struct {
		code int32
		want string
	}{{403, "Warning ProviderRefused"}, {200, "Normal ProviderRecovered"}, {403, "Warning ProviderRefused"}} {
		code.Store(step.code)
		b.Take(event("web", fmt.Sprint(i)), nil)
		if got := b.happened(t); !strings.HasPrefix(got, step.want) {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
}

// TestSecretIsReplaced: a token that was replaced a moment ago is read before anybody is told that
// the server refuses the old one.
func TestSecretIsReplaced(t *testing.T) {
	var token atomic.Value
	in := newInbound(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != token.Load() {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	p := provider("to", "generic", in.URL, func(s *notificationv1beta3.ProviderSpec) { s.SecretRef = &meta.LocalObjectReference{Name: "login"} })
	b := newBench(t, p, alertFor("to", nil), secret("login", map[string]string{"headers": "Authorization: a"}))
	b.linger = time.Hour
	stop := b.run(t)
	for _, text := range []string{"a", "b"} {
		token.Store(text)
		if err := b.client.Update(t.Context(), secret("login", map[string]string{"headers": "Authorization: " + text})); err != nil {
			t.Fatal(err)
		}
		b.Take(event("web", text), nil)
		for got := ""; got != text; {
			in.next(t)
			got = (<-in.heads).Get("Authorization")
		}
	}
	stop()
	if sent, failed := b.count("generic", resultSent), b.count("generic", resultFailed); sent != 2 || failed != 0 || len(b.events.Events) > 0 {
		t.Errorf("%v are counted as sent and %v as failed, with %d events", sent, failed, len(b.events.Events))
	}
}

// TestStays: what did not arrive does so once the Provider is well again, in order, as far as it still is how the
// objects are. What a server takes from nobody is given up.
func TestStays(t *testing.T) {
	well := func(name string) eventv1.Event {
		e := event(name, name+" is well")
		e.Severity, e.Reason = "info", "ReconciliationSucceeded"
		return e
	}
	reasoned := func(name, reason string) eventv1.Event {
		e := event(name, name+" "+reason)
		e.Reason = reason
		return e
	}
	tried := event("web", "web is tried")
	tried.Severity, tried.Reason = "info", meta.ProgressingReason
	aside := event("web", "web waits for its wave")
	aside.Severity, aside.Reason = "info", "RolloutPending"
	forStatus := func(name string) eventv1.Event {
		e := well(name)
		e.Metadata = map[string]string{eventv1.Group + "/" + eventv1.MetaCommitStatusKey: eventv1.MetaCommitStatusUpdateValue}
		return e
	}
	const out = http.StatusServiceUnavailable
	for name, tt := range map[string]struct {
		reason        string
		before        []eventv1.Event
		code, refused int // the first requests are refused so
		after         []eventv1.Event
		mend          func(*bench) error
		bad           []string // what the server never takes
		errors        bool     // the Alert wants errors alone
		want          []string
	}{
		"Once":      {reason: "it is told once, and nobody says it again", before: []eventv1.Event{event("web", "web failed")}, code: out, refused: 6, want: []string{"web failed"}},
		"Recovered": {reason: "it is well by now", before: []eventv1.Event{event("web", "web failed"), well("web")}, code: out, refused: 6, want: []string{"web is well"}},
		"RecoveredForStatus": {
			reason: "a Kustomization says that it is well for commit statuses alone", before: []eventv1.Event{event("web", "web failed"), forStatus("web")}, code: out, refused: 6,
			after: []eventv1.Event{event("api", "api failed")}, want: []string{"api failed"},
		},
		"RecoveredForErrors": {
			reason: "that it is well is not told, and it fails no more", before: []eventv1.Event{event("web", "web failed"), well("web")}, code: out, refused: 6,
			after: []eventv1.Event{event("api", "api failed")}, errors: true, want: []string{"api failed"},
		},
		"FailsAgain": {reason: "it fails for the same reason", before: []eventv1.Event{event("web", "web failed"), event("web", "web fails")}, code: out, refused: 6, want: []string{"web fails"}},
		"TwoReasons": {
			reason: "two things are wrong with it", before: []eventv1.Event{event("web", "web failed"), reasoned("web", "PruneBlocked")}, code: out, refused: 6,
			want: []string{"web failed", "web PruneBlocked"},
		},
		"Tried": {
			reason: "that it is tried says nothing of whether it fails, and is no news later", before: []eventv1.Event{event("web", "web failed"), tried}, code: out, refused: 6,
			want: []string{"web failed"},
		},
		"Aside": {
			reason: "what else happens meanwhile says nothing of whether it fails", before: []eventv1.Event{event("web", "web failed"), aside}, code: out, refused: 6,
			want: []string{"web failed", "web waits for its wave"},
		},
		"InOrder": {
			reason: "others are told in order, and what comes after them later", before: []eventv1.Event{event("web", "web failed"), event("api", "api failed"), well("db")}, code: out, refused: 6,
			after: []eventv1.Event{well("web")}, want: []string{"web failed", "api failed", "db is well", "web is well"},
		},
		"Token": {
			reason: "somebody mends the Secret", before: []eventv1.Event{event("web", "web failed")}, code: http.StatusUnauthorized, want: []string{"web failed"},
			mend: func(b *bench) error {
				return b.client.Update(t.Context(), secret("login", map[string]string{"headers": "Authorization: Bearer new"}))
			},
		},
		"Wrong": {
			reason: "the message is what the server does not like", before: []eventv1.Event{event("web", "web failed")}, code: http.StatusBadRequest, refused: 1,
			after: []eventv1.Event{event("api", "api failed")}, want: []string{"api failed"},
		},
		"Fails": {
			reason: "it fails at one message alone", bad: []string{"web failed"}, before: []eventv1.Event{event("web", "web failed")},
			after: []eventv1.Event{event("api", "api failed"), event("db", "db failed")}, want: []string{"api failed", "db failed"},
		},
		"FailsAtSome": {
			reason: "it fails at several", bad: []string{"web failed", "api failed", "k failed"}, before: []eventv1.Event{event("web", "web failed"), event("api", "api failed"), event("k", "k failed")},
			after: []eventv1.Event{event("a", "a failed"), event("b", "b failed"), event("c", "c failed"), event("d", "d failed")}, want: []string{"a failed", "b failed", "c failed", "d failed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			taken := make(chan string, 100)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var e eventv1.Event
				_ = json.NewDecoder(r.Body).Decode(&e)
				n := int(requests.Add(1))
				switch {
				case tt.code == http.StatusUnauthorized && r.Header.Get("Authorization") == "Bearer new":
					taken <- e.Message
				case n <= tt.refused || tt.code == http.StatusUnauthorized:
					w.WriteHeader(tt.code)
				case slices.Contains(tt.bad, e.Message):
					w.WriteHeader(out)
				default:
					taken <- e.Message
				}
			}))
			t.Cleanup(server.Close)
			p := provider("to", "generic", server.URL, func(s *notificationv1beta3.ProviderSpec) { s.SecretRef = &meta.LocalObjectReference{Name: "login"} })
			b := newBench(t, p, alertFor("to", func(s *notificationv1beta3.AlertSpec) {
				if tt.errors {
					s.EventSeverity = eventv1.EventSeverityError
				}
			}), secret("login", map[string]string{"headers": "Authorization: Bearer old"}))
			for _, e := range tt.before {
				b.Take(e, nil)
			}
			b.run(t)
			b.happened(t) // it is told that the Provider fails
			if tt.mend != nil {
				if err := tt.mend(b); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for len(got) < len(tt.want)-len(tt.after) {
				got = append(got, <-taken)
			}
			for _, e := range tt.after {
				b.Take(e, nil)
				got = append(got, <-taken)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s: told is %q, want %q", tt.reason, got, tt.want)
			}
			// Nothing waits any more.
			for testutil.ToFloat64(b.metrics.queued.WithLabelValues("generic")) != 0 {
				if t.Context().Err() != nil {
					t.Fatal("something waits for ever")
				}
			}
			if n := len(taken); n > 0 {
				t.Errorf("%s: %d more are told", tt.reason, n)
			}
		})
	}
}

// TestStaysInOrder: what did not arrive is not told after what is newer of the same, as that would be the last that
// is told of it (read 531).
func TestStaysInOrder(t *testing.T) {
	of := func(severity, reason string, names ...string) (all []eventv1.Event) {
		for _, name := range names {
			e := event(name, name+" "+reason)
			e.Severity, e.Reason = severity, reason
			all = append(all, e)
		}
		return all
	}
	many := []string{"a", "b", "c", "d", "e"}
	for name, tt := range map[string]struct {
		reason, kind  string
		before, after []eventv1.Event
		want          string
	}{
		"Status":   {"the commit is green by now", "gitea", of("info", meta.ProgressingReason, "web"), of("info", "ReconciliationSucceeded", "web"), "success"},
		"Incident": {"it fails again", "pagerduty", of("info", "ReconciliationSucceeded", "web"), of("error", "BuildFailed", "web"), "trigger"},
		"Many":     {"they are well by now", "slack", of("error", "BuildFailed", many...), of("info", "ReconciliationSucceeded", many...), "ReconciliationSucceeded"},
		"OneOf":    {"so is one of many", "slack", of("error", "BuildFailed", many...), of("info", "ReconciliationSucceeded", "a"), "ReconciliationSucceeded"},
		"Reasons":  {"it fails for another reason since", "slack", of("error", "BuildFailed", "web"), of("error", "PruneBlocked", "web"), "PruneBlocked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			tried, begun, taken := make(chan struct{}), make(chan struct{}), make(chan string, 100)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				n := requests.Add(1)
				if n == 1 {
					close(begun)
					<-tried
				}
				if n <= attempts {
					w.WriteHeader(http.StatusBadGateway)
					return
				}
				taken <- string(body)
				w.WriteHeader(http.StatusCreated)
			}))
			t.Cleanup(server.Close)
			address := server.URL
			if tt.kind == "gitea" {
				address += "/org/repo"
			}
			p := provider("to", tt.kind, address, func(s *notificationv1beta3.ProviderSpec) {
				s.Channel, s.SecretRef = "key", &meta.LocalObjectReference{Name: "login"}
			})
			b := newBench(t, p, alertFor("to", nil), secret("login", map[string]string{"token": "x"}))
			b.groups = alert.NewGroups(alert.Windows{Quiet: 20 * time.Millisecond, QuietMany: 20 * time.Millisecond, Longest: time.Second, LongestMany: time.Second, Again: time.Hour})
			waiting := func(is func(float64) bool) {
				for !is(testutil.ToFloat64(b.metrics.queued.WithLabelValues(tt.kind))) {
					if t.Context().Err() != nil {
						t.Fatal("it waits for ever")
					}
					time.Sleep(time.Millisecond)
				}
			}
			for _, e := range tt.before {
				b.Take(e, nil)
			}
			b.run(t)
			<-begun
			for _, e := range tt.after {
				b.Take(e, nil)
			}
			waiting(func(n float64) bool { return n > 1 })
			close(tried)
			waiting(func(n float64) bool { return n == 0 })
			close(taken)
			last := ""
			for last = range taken {
			}
			if !strings.Contains(last, tt.want) {
				t.Errorf("%s: the last that is told is %s, want %s", tt.reason, last, tt.want)
			}
		})
	}
}

// TestRecoveredForStatus: what a Kustomization says for commit statuses alone, that it is well, takes it out of
// what waits to be told of many (read 533).
func TestRecoveredForStatus(t *testing.T) {
	in := newInbound(t, nil)
	b := newBench(t, provider("to", "slack", in.URL, nil), alertFor("to", nil))
	b.groups = alert.NewGroups(alert.Windows{Quiet: time.Millisecond, QuietMany: time.Millisecond, Longest: time.Millisecond, LongestMany: time.Millisecond, Again: 2 * time.Second})
	for _, name := range []string{"a", "b", "c", "d"} {
		b.Take(event(name, "it failed"), nil)
	}
	b.run(t)
	if got := in.next(t); !strings.Contains(got, "4 Kustomizations") {
		t.Fatalf("got %s", got)
	}
	well := event("e", "it is well")
	well.Severity, well.Reason = "info", "ReconciliationSucceeded"
	well.Metadata[eventv1.Group+"/"+eventv1.MetaCommitStatusKey] = eventv1.MetaCommitStatusUpdateValue
	for _, e := range []eventv1.Event{event("e", "it failed"), event("f", "it failed"), well} {
		b.Take(e, nil)
	}
	if got := in.next(t); !strings.Contains(got, "kustomization/f.apps") {
		t.Errorf("got %s", got)
	}
}

// TestLateOfChild: that a child fails is not told late where it is well by then, whoever told that (read 535).
func TestLateOfChild(t *testing.T) {
	child := func(name string, ready metav1.ConditionStatus) *v1alpha1.Child {
		c := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}}
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: ready, Reason: "x"}}
		return c
	}
	var requests atomic.Int32
	in := newInbound(t, func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) <= attempts+1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	b := newBench(t, provider("to", "generic", in.URL, nil), alertFor("to", func(s *notificationv1beta3.AlertSpec) { s.EventSources[0].Kind = "Child" }),
		child("well", metav1.ConditionTrue), child("fails", metav1.ConditionFalse), child("left", metav1.ConditionTrue))
	for _, of := range [][2]string{{"well", v1alpha1.ReasonUnreachable}, {"fails", v1alpha1.ReasonUnreachable}, {"left", "ObjectsLeft"}} {
		e := event(of[0], "child "+of[0])
		e.InvolvedObject.Kind, e.InvolvedObject.APIVersion, e.Reason = "Child", v1alpha1.GroupVersion.String(), of[1]
		b.Take(e, nil)
	}
	b.run(t)
	for range attempts + 1 {
		in.next(t)
	}
	for _, name := range []string{"fails", "left"} {
		if got := in.next(t); !strings.Contains(got, "child "+name) {
			t.Errorf("got %s, want that of %s", got, name)
		}
	}
}

// TestStatusesOfOthers: commits that the repository of a Provider has not hold up none of its own, and wait for
// nothing once others arrive (read 532).
func TestStatusesOfOthers(t *testing.T) {
	const own = "0000000000000000000000000000000000000000"
	in := newInbound(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, own) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	b := newBench(t, alertFor("git", nil), secret("login", map[string]string{"token": "x"}), provider("git", "gitea", in.URL+"/org/repo", func(s *notificationv1beta3.ProviderSpec) {
		s.SecretRef = &meta.LocalObjectReference{Name: "login"}
	}))
	b.linger = time.Hour
	for _, name := range []string{"a", "b", "c"} {
		b.Take(event(name, "it failed"), nil)
	}
	b.run(t)
	b.happened(t)
	tell := func(name, revision string) {
		e := event(name, "it failed")
		e.Metadata = map[string]string{"kustomize.toolkit.fluxcd.io/revision": "main@sha1:" + revision}
		b.Take(e, nil)
	}
	until := func(is func() bool) {
		for !is() {
			if t.Context().Err() != nil {
				t.Fatal("it never comes to that")
			}
			time.Sleep(time.Millisecond)
		}
	}
	waiting := func() float64 { return testutil.ToFloat64(b.metrics.queued.WithLabelValues("gitea")) }
	for n, name := range []string{"x", "y", "z", "w"} {
		tell(name, own)
		until(func() bool { return int(b.count("gitea", resultSent)) > n })
	}
	until(func() bool { return waiting() == 0 })
	tell("d", commit)
	until(func() bool { return int(b.count("gitea", resultFailed)) == 4 && waiting() == 0 })
}

// TestStatusesOfManyOthers: what was sent before counts after a pause as well, and before anything was, all are tried
// before the Provider is left alone (read 556).
func TestStatusesOfManyOthers(t *testing.T) {
	const own, others = "0000000000000000000000000000000000000000", 10
	for name, tt := range map[string]struct {
		reason   string
		arrived  bool
		requests int
	}{
		"Before": {"one arrived before the pause", true, 1 + others + 1},
		"Never":  {"none arrived yet: the others are tried once more after the first that does", false, others + 1 + others},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			in := newInbound(t, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				if !strings.Contains(r.URL.Path, own) {
					w.WriteHeader(http.StatusNotFound)
					return
				}
				w.WriteHeader(http.StatusCreated)
			})
			b := newBench(t, alertFor("git", nil), secret("login", map[string]string{"token": "x"}), provider("git", "gitea", in.URL+"/org/repo", func(s *notificationv1beta3.ProviderSpec) {
				s.SecretRef = &meta.LocalObjectReference{Name: "login"}
			}))
			b.linger, b.retry = time.Millisecond, time.Hour
			end := time.Now().Add(20 * time.Second)
			until := func(is func() bool) {
				for !is() {
					if time.Now().After(end) {
						t.Fatalf("%s: it never comes to that, after %d requests", tt.reason, requests.Load())
					}
					time.Sleep(time.Millisecond)
				}
			}
			tell := func(name, revision string) {
				e := event(name, "it failed")
				e.Metadata = map[string]string{"kustomize.toolkit.fluxcd.io/revision": "main@sha1:" + revision}
				b.Take(e, nil)
			}
			sent := 1.0
			if tt.arrived {
				sent++
				tell("first", own)
				b.run(t)
				until(func() bool {
					b.queues.mu.Lock()
					defer b.queues.mu.Unlock()
					return b.count("gitea", resultSent) == 1 && len(b.queues.by) == 0
				})
			}
			for n := range others {
				tell(fmt.Sprint("other-", n), commit)
			}
			tell("last", own)
			if !tt.arrived {
				b.run(t)
			}
			until(func() bool {
				return b.count("gitea", resultSent) == sent && b.count("gitea", resultFailed) == others && testutil.ToFloat64(b.metrics.queued.WithLabelValues("gitea")) == 0
			})
			// The first is tried once more where it is alone for a moment.
			if n := int(requests.Load()); n > tt.requests+1 {
				t.Errorf("%s: %d requests, want %d", tt.reason, n, tt.requests)
			}
		})
	}
}

// TestTooLate: a Provider that nobody mends is sent nothing any more after a day, however much waits for it.
func TestTooLate(t *testing.T) {
	in := newInbound(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	b := newBench(t, provider("to", "generic", in.URL, nil), alertFor("to", nil))
	var later atomic.Int64
	b.o.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	names := []string{"web", "api", "db", "cache"}
	for _, name := range names {
		b.Take(event(name, "it failed"), nil)
	}
	b.run(t)
	b.happened(t)
	until := func(waiting float64) {
		for testutil.ToFloat64(b.metrics.queued.WithLabelValues("generic")) != waiting {
			if t.Context().Err() != nil {
				t.Fatalf("never do %v wait", waiting)
			}
		}
	}
	until(float64(len(names)))
	later.Store(int64(mostLate))
	until(0)
	if n := b.count("generic", resultDropped); int(n) != len(names) {
		t.Errorf("%v are counted as dropped, want %d", n, len(names))
	}
}

// TestSettings: what Secrets say, how servers prove who they are, and proxies.
func TestSettings(t *testing.T) {
	secure := &inbound{bodies: make(chan []byte, 10), heads: make(chan http.Header, 10)}
	secure.Server = httptest.NewUnstartedServer(secure.take(nil))
	secure.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	ref := func(name string) *meta.LocalObjectReference { return &meta.LocalObjectReference{Name: name} }
	for name, tt := range map[string]struct {
		reason string
		change func(*notificationv1beta3.ProviderSpec, string)
		secret func(address string) map[string]string
		certs  map[string]string
		proxy  func(address string) map[string]string
		secure bool
		header string
		want   string
	}{
		"Address": {reason: "that of the Secret counts", change: func(s *notificationv1beta3.ProviderSpec, _ string) { s.Address = "http://127.0.0.1:1" }, secret: func(a string) map[string]string { return map[string]string{"address": a} }},
		"Headers": {reason: "headers are added", secret: func(a string) map[string]string {
			return map[string]string{"address": a, "headers": "Authorization: my-token\nX-Forwarded-Proto: https\n"}
		}, header: "Authorization", want: "my-token"},
		"Authority": {reason: "the server is verified by ca.crt", secure: true, certs: map[string]string{"ca.crt": ca}},
		"OldKey":    {reason: "caFile is the old name of it", secure: true, certs: map[string]string{"caFile": ca}},
		"Proxy": {
			reason: "spec.proxy is asked for the address", change: func(s *notificationv1beta3.ProviderSpec, a string) {
				s.Address, s.Proxy = "http://provider.invalid/hook", a
			},
		},
		"ProxySecret": {
			reason: "spec.proxySecretRef counts more, with its login", change: func(s *notificationv1beta3.ProviderSpec, _ string) {
				s.Address, s.Proxy, s.ProxySecretRef = "http://provider.invalid/hook", "http://127.0.0.1:1", ref("proxy")
			},
			proxy: func(a string) map[string]string {
				return map[string]string{"address": a, "username": "u", "password": "p"}
			},
			header: "Proxy-Authorization", want: "Basic dTpw",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := newInbound(t, nil)
			if tt.secure {
				in = secure
			}
			objects := []client.Object{alertFor("to", nil)}
			p := provider("to", "generic", in.URL, nil)
			if tt.change != nil {
				tt.change(&p.Spec, in.URL)
			}
			if tt.secret != nil {
				p.Spec.SecretRef = ref("login")
				objects = append(objects, secret("login", tt.secret(in.URL)))
			}
			if tt.certs != nil {
				p.Spec.CertSecretRef = ref("certs")
				objects = append(objects, secret("certs", tt.certs))
			}
			if tt.proxy != nil {
				objects = append(objects, secret("proxy", tt.proxy(in.URL)))
			}
			b := newBench(t, append(objects, p)...)
			stop := b.run(t)
			b.Take(event("web", "it failed"), nil)
			in.next(t)
			stop()
			if head := <-in.heads; tt.header != "" && head.Get(tt.header) != tt.want {
				t.Errorf("%s: %s is %q", tt.reason, tt.header, head.Get(tt.header))
			}
		})
	}
}

// TestStatusOnly: events for commit statuses alone are told to nobody else, and take no
// others along.
func TestStatusOnly(t *testing.T) {
	chat, git := newInbound(t, nil), newInbound(t, nil)
	b := newBench(t, provider("chat", "slack", chat.URL, nil), alertFor("chat", nil), secret("login", map[string]string{"token": "x"}),
		provider("git", "gitea", git.URL+"/org/repo", func(s *notificationv1beta3.ProviderSpec) {
			s.SecretRef = &meta.LocalObjectReference{Name: "login"}
		}), alertFor("git", nil))
	for i := range 10 {
		e := event(fmt.Sprint("k", i), "reconciliation finished")
		e.Severity, e.Reason = "info", "ReconciliationSucceeded"
		e.Metadata["kustomize.toolkit.fluxcd.io/commit_status"] = "update"
		b.Take(e, nil)
	}
	told := event("other", "health check passed")
	told.Severity, told.Reason = "info", "ReconciliationSucceeded"
	b.Take(told, nil)
	stop := b.run(t)
	for range 11 {
		git.next(t)
	}
	if got := chat.next(t); !strings.Contains(got, "health check passed") {
		t.Errorf("got %s", got)
	}
	stop()
	if n := len(chat.bodies); n > 0 {
		t.Errorf("%d messages more than one", n)
	}
}

func TestDenied(t *testing.T) {
	in := newInbound(t, nil)
	b := newBench(t, provider("to", "generic", in.URL, nil), alertFor("to", nil))
	b.o.Senders.Addresses = answer.Addresses{Deny: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	stop := b.run(t)
	b.Take(event("web", "it failed"), nil)
	if got := b.happened(t); !strings.HasPrefix(got, "Warning "+ReasonAddressRefused) {
		t.Errorf("got %q", got)
	}
	stop()
	if len(in.heads) > 0 {
		t.Error("the address was reached")
	}
}

// TestDeniedGitHubApp: the API of a GitHub App is asked for its token at no address where the
// Provider may not be.
func TestDeniedGitHubApp(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	private := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	for name, tc := range map[string]struct {
		reason, deny string
		at           func(in string) (base, proxy string)
	}{
		"Denied": {"by the flag", "127.0.0.0/8", func(in string) (string, string) { return in, "" }},
		"Proxy":  {"as it is written, where a proxy would connect", "10.1.0.0/16", func(in string) (string, string) { return "http://10.1.2.3", in }},
	} {
		t.Run(name, func(t *testing.T) {
			in := newInbound(t, nil)
			base, proxy := tc.at(in.URL)
			b := newBench(t, provider("to", "github", base+"/org/repo", func(s *notificationv1beta3.ProviderSpec) {
				s.SecretRef, s.Proxy = &meta.LocalObjectReference{Name: "app"}, proxy
			}), alertFor("to", nil), secret("app", map[string]string{
				"githubAppID": "1", "githubAppInstallationID": "2", "githubAppPrivateKey": private, "githubAppBaseURL": base,
			}))
			logins, err := source.NewLogins(10, time.Hour, time.Now)
			if err != nil {
				t.Fatal(err)
			}
			b.o.Senders.Addresses = answer.Addresses{Deny: []netip.Prefix{netip.MustParsePrefix(tc.deny)}}
			b.o.Senders.GitHubApp = func(ctx context.Context, repository string, secret map[string][]byte, proxy *url.URL, restrict func(*http.Transport)) (string, error) {
				login, err := logins.GitHubApp(ctx, repository, secret, proxy, restrict)
				if err != nil {
					return "", err
				}
				return login.Password, nil
			}
			stop := b.run(t)
			b.Take(event("web", "it failed"), nil)
			if got := b.happened(t); !strings.HasPrefix(got, "Warning "+ReasonAddressRefused) {
				t.Errorf("%s: got %q", tc.reason, got)
			}
			stop()
			if n := len(in.heads); n > 0 {
				t.Errorf("%s: %d requests were sent", tc.reason, n)
			}
		})
	}
}

// TestCommitStatusExpr: an expression names the status, and one that is wrong says so.
func TestCommitStatusExpr(t *testing.T) {
	for name, tt := range map[string]struct {
		reason, expr string
		want         string // of the status, or of the event
	}{
		"Default":  {reason: "kind, name and a part of the UID", want: `"context":"kustomization/web/uid"`},
		"Names":    {reason: "event, provider and alert are there", expr: "event.involvedObject.kind + '/' + provider.metadata.name + '/' + alert.metadata.name + '/' + event.metadata.revision", want: `"context":"Kustomization/to/to/main@sha1:` + commit + `"`},
		"Lower":    {reason: "functions of strings are there", expr: "event.involvedObject.kind.lowerAscii()", want: `"context":"kustomization"`},
		"Wrong":    {reason: "no expression", expr: "event.(", want: "Warning InvalidProvider cannot send notifications: cannot evaluate spec.commitStatusExpr"},
		"NoString": {reason: "a number is no name", expr: "1 + 1", want: "Warning InvalidProvider cannot send notifications: cannot evaluate spec.commitStatusExpr"},
		"Missing":  {reason: "a field is missing", expr: "event.metadata.cluster", want: "Warning InvalidProvider cannot send notifications: cannot evaluate spec.commitStatusExpr"},
	} {
		t.Run(name, func(t *testing.T) {
			in := newInbound(t, nil)
			p := provider("to", "gitea", in.URL+"/org/repo", func(s *notificationv1beta3.ProviderSpec) {
				s.SecretRef, s.CommitStatusExpr = &meta.LocalObjectReference{Name: "login"}, tt.expr
			})
			b := newBench(t, p, alertFor("to", nil), secret("login", map[string]string{"token": "x"}))
			b.run(t)
			b.Take(event("web", "it failed"), nil)
			if strings.HasPrefix(tt.want, "Warning") {
				if got := b.happened(t); !strings.HasPrefix(got, tt.want) {
					t.Errorf("%s: got %q", tt.reason, got)
				}
				return
			}
			if got := in.next(t); !strings.Contains(got, tt.want) {
				t.Errorf("%s: got %s", tt.reason, got)
			}
		})
	}
}

// TestNamespace: only Alerts of one namespace are served where the agent has no other.
func TestNamespace(t *testing.T) {
	in := newInbound(t, nil)
	other := alertFor("to", nil)
	other.Namespace = "others"
	other.UID = "other"
	other.Spec.EventSources[0].Namespace = "apps"
	there := provider("to", "generic", in.URL+"/others", nil)
	there.Namespace = "others"
	b := newBench(t, provider("to", "generic", in.URL, nil), alertFor("to", nil), there, other)
	b.o.Namespace = "apps"
	stop := b.run(t)
	b.Take(event("web", "it failed"), nil)
	in.next(t)
	stop()
	if n := len(in.bodies); n > 0 {
		t.Errorf("%d messages of the other namespace", n)
	}
}

// TestExpressionsBounded: what the Alerts of one namespace take in memory for their expressions is bounded, is told
// of, and leaves room to those of others.
func TestExpressionsBounded(t *testing.T) {
	costly := slices.Repeat([]string{"(?:.?.?){999}a"}, 5) // 15 bytes, and 160 kB of Go's steps
	var objects []client.Object
	for i := range 60 {
		a := alertFor(fmt.Sprint("evil-", i), func(s *notificationv1beta3.AlertSpec) { s.InclusionList, s.ExclusionList = costly, costly })
		a.Namespace = "evil"
		objects = append(objects, a)
	}
	in := newInbound(t, nil)
	b := newBench(t, append(objects, provider("to", "generic", in.URL, nil))...)
	kept := func() (steps, left int) {
		for _, c := range b.rules {
			if c.over {
				left++
			} else {
				steps += c.steps
			}
		}
		return steps, left
	}
	var alerts notificationv1beta3.AlertList
	if err := b.client.List(t.Context(), &alerts); err != nil {
		t.Fatal(err)
	}
	s := &sending{Dispatcher: b.Dispatcher}
	s.compile(&alerts)
	if steps, left := kept(); steps > mostSteps || left == 0 || left == len(objects) || len(b.events.Events) != left {
		t.Fatalf("%d steps are kept, %d Alerts are left out, and %d are told of", steps, left, len(b.events.Events))
	}
	for range len(b.events.Events) {
		if told := b.happened(t); !strings.Contains(told, ReasonInvalidAlert) || !strings.Contains(told, "namespace evil") {
			t.Errorf("told is %s", told)
		}
	}
	ours := alertFor("to", func(s *notificationv1beta3.AlertSpec) { s.InclusionList = []string{"fail.*", "(?:.?.?){400}z"} })
	alerts.Items = append(alerts.Items, *ours)
	s.compile(&alerts)
	if is := b.rules[ours.UID]; is.over || is.steps == 0 {
		t.Errorf("the Alert of another namespace is left out: %+v", is)
	}
	if n := len(b.events.Events); n > 0 {
		t.Errorf("%d events are told again", n)
	}
	// Where others go, there is room.
	alerts.Items = alerts.Items[40:]
	s.compile(&alerts)
	if _, left := kept(); left > 0 {
		t.Errorf("%d Alerts are left out where there is room", left)
	}
	if err := b.client.Create(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	b.run(t)
	b.Take(event("web", "it failed"), nil)
	if got := in.next(t); !strings.Contains(got, "it failed") {
		t.Errorf("got %s", got)
	}
}

// TestSlowAlertsOfAnother: Alerts whose expressions take long look at events after those of other namespaces did, each
// of them once.
func TestSlowAlertsOfAnother(t *testing.T) {
	ours, theirs := newInbound(t, nil), newInbound(t, nil)
	evil := provider("evil", "generic", theirs.URL, nil)
	evil.Namespace = "evil"
	objects := []client.Object{provider("to", "generic", ours.URL, nil), alertFor("to", nil), evil}
	const alerts = 20
	for i := range alerts {
		a := alertFor(fmt.Sprint("evil-", i), func(s *notificationv1beta3.AlertSpec) { s.ProviderRef.Name = "evil" })
		a.Namespace = "evil"
		objects = append(objects, a)
	}
	b := newBench(t, objects...)
	begin, calls := time.Now(), atomic.Int64{}
	b.o.Now = func() time.Time { return begin.Add(time.Duration(calls.Add(1)) * turn) } // all takes longer than a turn
	s := &sending{Dispatcher: b.Dispatcher, life: t.Context(), ending: t.Context().Done()}
	for i := range 3 {
		e := event("web", fmt.Sprint("of evil ", i))
		e.InvolvedObject.Namespace = "evil"
		b.Take(e, nil)
	}
	b.Take(event("web", "it failed"), nil)
	s.look()
	if got := ours.next(t); !strings.Contains(got, "it failed") {
		t.Errorf("got %s", got)
	}
	if waiting := s.late.by["evil"]; waiting == nil || len(waiting.events) != 3 {
		t.Errorf("events that wait for the Alerts of evil are %+v, want three", waiting)
	}
	for more := true; more; {
		more = s.catchUp()
	}
	for i := range 3 * alerts {
		if got, want := theirs.next(t), fmt.Sprint("of evil ", i/alerts); !strings.Contains(got, want) {
			t.Errorf("message %d is %s, want %q", i, got, want)
		}
	}
	b.Take(event("web", "again"), nil)
	s.look()
	if got := ours.next(t); !strings.Contains(got, "again") || len(theirs.bodies) > 0 {
		t.Errorf("got %s, and %d more of evil", got, len(theirs.bodies))
	}
	// What waits is bounded, and where most waits loses the oldest.
	l := &late{}
	l.add("apps", &telling{Event: &alert.Event{}})
	over := 0
	for i := range mostInbox + 10 {
		over += l.add("evil", &telling{Event: &alert.Event{Event: event("web", fmt.Sprint(i))}})
	}
	if over != 11 || len(l.by["apps"].events) != 1 || l.by["evil"].events[0].Message != "11" {
		t.Errorf("%d are dropped, %d of apps wait", over, len(l.by["apps"].events))
	}
	for range 2000 {
		l.add("evil", &telling{Event: &alert.Event{Event: event("web", strings.Repeat("a", 39_000))}})
	}
	if b := l.by["evil"]; b.bytes > mostInboxBytes || b.bytes < mostInboxBytes/2 {
		t.Errorf("%d bytes wait", b.bytes)
	}
}
