package link

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/park"
)

// TestBudgetEndsPush: a child may keep a push for its budget, whatever it answers. Then no
// call is made until it has some again, and probes go on.
func TestBudgetEndsPush(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		answer func(c *clock, w http.ResponseWriter)
		most   int
	}{
		"Slow":  {"it answers, each time after eight seconds", func(c *clock, _ http.ResponseWriter) { c.add(8 * time.Second) }, 7},
		"Waits": {"it has its caller wait for an hour", func(_ *clock, w http.ResponseWriter) { w.Header().Set("Retry-After", "3600") }, 4},
		"Drips": {"it answers a byte at a time", func(c *clock, w http.ResponseWriter) {
			_, _ = io.WriteString(w, strings.Repeat(" ", 10))
			c.add(9 * time.Second)
		}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNear(t, newFar(t))
			calls := 0
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				calls++
				tc.answer(n.clock, w)
			}))
			defer s.Close()
			client := n.meter.over(s.Client())
			call := func() error {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
				if err != nil {
					t.Fatal(err)
				}
				response, err := client.Do(request)
				if err != nil {
					return err
				}
				_, err = io.Copy(io.Discard, response.Body)
				return errors.Join(err, response.Body.Close())
			}
			var err error
			for range 20 {
				if err = call(); err != nil {
					break
				}
			}
			var spent *BudgetError
			if !errors.As(err, &spent) || calls > tc.most || !apply.Unanswered(err) {
				t.Fatalf("%s: after %d calls the error is %v", tc.reason, calls, err)
			}
			n.good(t)
			session := n.Begin(n.q)
			if wait := session.Wait(); wait != spent.Wait || wait > time.Minute {
				t.Errorf("%s: it waits for %s", tc.reason, wait)
			}
			if _, called := session.Kept(); called {
				t.Errorf("%s: calls of an earlier session count for this one", tc.reason)
			}
			if _, err := session.Account(t.Context()); err != nil && !errors.As(err, &spent) {
				t.Errorf("%s: the session: %v", tc.reason, err)
			}
			n.clock.add(spent.Wait + time.Second)
			if err := call(); err != nil {
				t.Errorf("%s: after the wait: %v", tc.reason, err)
			}
		})
	}
}

// TestPaceIsNoChilds: where all children take long to answer, as where this process waits for a
// processor, no child pays for it. One that takes longer than the others does.
func TestPaceIsNoChilds(t *testing.T) {
	for name, tc := range map[string]struct {
		reason       string
		usual, takes time.Duration
		want         time.Duration
	}{
		"Quick":   {"calls take as long as usual", 20 * time.Millisecond, 30 * time.Millisecond, 0},
		"Busy":    {"all of a fleet is seeded by a slow machine", 600 * time.Millisecond, 2 * time.Second, 0},
		"Slow":    {"a child is farther than the others", 20 * time.Millisecond, 280 * time.Millisecond, 200 * time.Millisecond},
		"Hangs":   {"a child that hangs beside others", 20 * time.Millisecond, 8 * time.Second, 7920 * time.Millisecond},
		"AllHang": {"only children that hang are called", 8 * time.Second, 8 * time.Second, 4 * time.Second},
		"First":   {"nothing is known yet", 0, time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &meter{now: time.Now, pace: &pace{}}
				for range 2000 {
					m.pace.answered(tc.usual)
				}
				client := m.over(&http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
					time.Sleep(tc.takes)
					return nil, errors.New("refused")
				})})
				if _, err := client.Get("http://child.invalid"); err == nil {
					t.Fatal("it is answered")
				}
				if kept := m.spent.kept; kept < tc.want-5*time.Millisecond || kept > tc.want+5*time.Millisecond || m.spent.calls != 1 {
					t.Errorf("%s: %d calls of %s count for %s, want %s", tc.reason, m.spent.calls, tc.takes, kept, tc.want)
				}
			})
		})
	}
}

// TestCallsEnd: a server that sends headers and then hangs, or a byte now and then, has a
// caller for no longer than a call may take.
func TestCallsEnd(t *testing.T) {
	for name, answers := range map[string]func(w http.ResponseWriter, r *http.Request){
		"Hangs": func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"Drips": func(w http.ResponseWriter, r *http.Request) {
			drops := time.NewTicker(5 * time.Millisecond)
			defer drops.Stop()
			for {
				select {
				case <-r.Context().Done():
					return
				case <-drops.C:
					_, _ = io.WriteString(w, " ")
					w.(http.Flusher).Flush()
				}
			}
		},
		"Silent": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				answers(w, r)
				panic(http.ErrAbortHandler) // it never comes to an end by itself
			}))
			defer s.Close()
			c, err := calls(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{CAData: pemOf(s.Certificate().Raw)}}, answer.Addresses{}, free)
			if err != nil {
				t.Fatal(err)
			}
			c.http.Timeout = 200 * time.Millisecond
			m := &meter{now: time.Now, pace: &pace{}}
			metered := *c
			metered.http = m.over(c.http)
			_, err = kubeSystemUID(t.Context(), &metered)
			if err == nil || !apply.Unanswered(err) {
				t.Errorf("the error is %v", err)
			}
			if m.spent.kept < 100*time.Millisecond || m.spent.kept > 5*time.Second {
				t.Errorf("the call is counted for %s", m.spent.kept)
			}
		})
	}
}

// TestServerGivesUpFirst: an API server that waits for a webhook says so before its caller
// gives up.
func TestServerGivesUpFirst(t *testing.T) {
	var asked string
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query().Get("timeout")
		http.NotFound(w, r)
	}))
	defer s.Close()
	c, err := calls(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{CAData: pemOf(s.Certificate().Raw)}}, answer.Addresses{}, free)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubeSystemUID(t.Context(), c); err == nil {
		t.Error("a server that has nothing answers")
	}
	if may, err := time.ParseDuration(asked); err != nil || may >= callTimeout-time.Second {
		t.Errorf("the API server is given %q, %v, and its caller waits for %s", asked, err, callTimeout)
	}
}

// TestLister: lists are made with the kubeconfig of now, and whatever that is worth, the
// account goes on as it is.
func TestLister(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(n *near, f *far)
		want   string
	}{
		"Good":    {"the ordinary case", func(*near, *far) {}, ""},
		"Refused": {"the credential of the kubeconfig was revoked", func(_ *near, f *far) { delete(f.tokens, "admin") }, "Unauthorized"},
		"Lapsed":  {"it says that it has come to its end", func(n *near, _ *far) { n.token = webToken(`{"exp":1}`) }, v1alpha1.ReasonUnauthorized},
		"Missing": {"the Secret is gone", func(n *near, _ *far) {
			n.q.Read = func(context.Context) (*rest.Config, error) {
				return nil, reason.Because(v1alpha1.ReasonKubeconfigMissing, errors.New("gone"))
			}
		}, v1alpha1.ReasonKubeconfigMissing},
		"Another": {"the kubeconfig leads to another cluster by now", func(_ *near, f *far) { f.uid = "two" }, v1alpha1.ReasonIdentityChanged},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFar(t)
			n := newNear(t, f)
			n.good(t)
			n.Begin(n.q).End()
			minted := n.minted
			f.change(func(f *far) { tc.change(n, f) })
			session := n.Begin(n.q)
			_, err := session.Lister(t.Context())
			got := ""
			switch {
			case apierrors.IsUnauthorized(err) && !reason.Given(err):
				got = string(metav1.StatusReasonUnauthorized)
			case err != nil:
				got = reason.Of(err)
			}
			if got != tc.want {
				t.Errorf("%s: got %q, want %q: %v", tc.reason, got, tc.want, err)
			}
			if n.minted != minted || n.caller() != minted || n.admin != nil {
				t.Errorf("%s: the account of the parent was dropped", tc.reason)
			}
		})
	}
}

// TestListerAfterProbe: the first list after a start takes the kubeconfig that the probe before it
// read, and the connection. Nobody has it from then on.
func TestListerAfterProbe(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	read, reads := n.q.Read, 0
	n.q.Read = func(ctx context.Context) (*rest.Config, error) {
		reads++
		return read(ctx)
	}
	n.good(t)
	f.asked()
	session := n.Begin(n.q)
	if _, err := session.Lister(t.Context()); err != nil || reads != 1 {
		t.Errorf("Lister() = %v, the kubeconfig was read %d times", err, reads)
	}
	expect(t, "a list", f.asked(), "GET kube-system")
	session.End()
	if _, err := n.Begin(n.q).Lister(t.Context()); err != nil || reads != 2 {
		t.Errorf("Lister() in the next session = %v, the kubeconfig was read %d times", err, reads)
	}
	f.change(func(f *far) { f.uid = "two" })
	n.drop()
	n.probed(t)
	if _, err := n.Begin(n.q).Lister(t.Context()); reason.Of(err) != v1alpha1.ReasonIdentityChanged {
		t.Errorf("Lister() of another cluster = %v", err)
	}
	n.probed(t)
	if n.lent != nil {
		t.Error("the kubeconfig is kept beyond the next probe")
	}
}

// TestSilentPush: a push that got no answer has the next probe wait, in the place of
// children that failed, and ask again who the child is.
func TestSilentPush(t *testing.T) {
	f := newFar(t)
	n, s := begun(t, f)
	s.Silent()
	if a, wait := n.Ask(n.q); a != nil || wait <= 0 {
		t.Errorf("Ask() after a push without an answer = %v, %s", a, wait)
	}
	n.clock.add(breakPause)
	n.good(t)
	expect(t, "the probe after it", f.asked(), "GET readyz, GET kube-system, GET version, GET cascade-heartbeat")
}

// roundTripper answers as a function does.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestLateCall: a push whose call is not answered soon keeps no worker. Where all answers
// take long, more than that is late.
func TestLateCall(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		usual  time.Duration
		kept   time.Duration
		body   bool
		want   time.Duration
	}{
		"Quick":   {reason: "answers usually come at once", usual: 20 * time.Millisecond, want: lateCall},
		"Busy":    {reason: "we are busy, or far away", usual: time.Second / 4, want: lateTimes * time.Second / 4},
		"AllHang": {reason: "only children that hang are called", usual: time.Minute, want: SlowPush + ownTimes*mostUsual},
		"Keeps":   {reason: "it kept the calls before for long, none of which was late", usual: 20 * time.Millisecond, kept: SlowPush, want: ownTimes * 20 * time.Millisecond},
		"Hangs":   {reason: "it answers, and the answer does not end", usual: 20 * time.Millisecond, body: true, want: lateCall},
		"Unusual": {reason: "nothing was answered yet", want: lateCall},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &meter{now: time.Now, pace: &pace{}}
				for range 1000 {
					m.pace.answered(tc.usual)
				}
				m.spend(0, tc.kept)
				client := m.over(&http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
					if tc.body {
						text, end := io.Pipe()
						time.AfterFunc(time.Minute, func() { _ = end.Close() })
						return &http.Response{StatusCode: http.StatusOK, Body: text}, nil
					}
					time.Sleep(time.Minute)
					return nil, errors.New("no answer")
				})})
				lot := park.New(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
					request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://child.invalid", nil)
					if err != nil {
						return reconcile.Result{}, err
					}
					response, err := client.Do(request)
					if err != nil {
						return reconcile.Result{}, err
					}
					_, err = io.Copy(io.Discard, response.Body)
					return reconcile.Result{}, errors.Join(err, response.Body.Close())
				}), park.Options{Workers: 1, Parked: 1, Aside: 1, Patience: time.Hour, Backoff: workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]()})
				begun := time.Now()
				if _, err := lot.Reconcile(t.Context(), reconcile.Request{}); err != nil {
					t.Errorf("%s: %v", tc.reason, err)
				}
				if kept, want := time.Since(begun), tc.want; kept < want*9/10 || kept > want*11/10 {
					t.Errorf("%s: it kept its worker for %s, want %s", tc.reason, kept, want)
				}
				time.Sleep(2 * time.Minute)
				if lot.Counts().Aside != 0 {
					t.Errorf("%s: it did not end", tc.reason)
				}
			})
		})
	}
}
