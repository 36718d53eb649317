package endpoint

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/syncer/answer"
)

// fleet is the children of a tier, each of which answers as the test says.
type fleet struct {
	mu     sync.Mutex
	asked  []string
	answer func(ctx context.Context, child types.NamespacedName, path string) (*http.Response, error)
	pods   int
}

func (f *fleet) Fetch(ctx context.Context, child types.NamespacedName, path, accept string) (*http.Response, error) {
	f.mu.Lock()
	f.asked = append(f.asked, child.String()+" "+path)
	f.mu.Unlock()
	return f.answer(ctx, child, path)
}

func (f *fleet) AgentPod(context.Context, types.NamespacedName) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pods++
	return "cascade-0", nil
}

func says(status int, contentType, body string, more ...string) *http.Response {
	r := &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {contentType}, "Set-Cookie": {"theirs"}}, Body: io.NopCloser(strings.NewReader(body))}
	for _, m := range more {
		r.Header.Set(m, "theirs")
	}
	return r
}

func proxyOf(t *testing.T, f *fleet, now func() time.Time) *Proxy {
	t.Helper()
	all, err := Parse([]string{"agent", "ksm=monitoring/kube-state-metrics:http/metrics"})
	if err != nil {
		t.Fatal(err)
	}
	return NewProxy(all, f, now, prometheus.NewRegistry())
}

func ask(t *testing.T, p *Proxy, method, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w
}

func TestProxy(t *testing.T) {
	ok := func(context.Context, types.NamespacedName, string) (*http.Response, error) {
		return says(200, "text/plain; version=0.0.4", "up 1\n"), nil
	}
	fails := func(err error) func(context.Context, types.NamespacedName, string) (*http.Response, error) {
		return func(context.Context, types.NamespacedName, string) (*http.Response, error) { return nil, err }
	}
	status := func(code int) func(context.Context, types.NamespacedName, string) (*http.Response, error) {
		return func(context.Context, types.NamespacedName, string) (*http.Response, error) {
			return says(code, "text/html", "<script>secret of the child</script>"), nil
		}
	}
	for name, tc := range map[string]struct {
		reason, method, path string
		answer               func(context.Context, types.NamespacedName, string) (*http.Response, error)
		status               int
		asked                string
	}{
		"Service":      {"an endpoint of the configuration", "GET", "/children/fleet/a/ksm", ok, 200, "fleet/a /api/v1/namespaces/monitoring/services/kube-state-metrics:http/proxy/metrics"},
		"Agent":        {"the pod that leads the child's tier", "GET", "/children/fleet/a/agent", ok, 200, "fleet/a /api/v1/namespaces/cascade-system/pods/cascade-0:8080/proxy/metrics"},
		"Query":        {"a query goes nowhere", "GET", "/children/fleet/a/ksm?path=/api", ok, 200, "fleet/a /api/v1/namespaces/monitoring/services/kube-state-metrics:http/proxy/metrics"},
		"Post":         {"nothing is sent to a child", "POST", "/children/fleet/a/ksm", ok, 405, ""},
		"Other":        {"an endpoint that nobody configured", "GET", "/children/fleet/a/secrets", ok, 404, ""},
		"Longer":       {"a path below an endpoint", "GET", "/children/fleet/a/ksm/federate", ok, 404, ""},
		"Escaped":      {"a word with a slash in it", "GET", "/children/fleet/a%2Fb/ksm", ok, 404, ""},
		"EscapedPlain": {"a word in another spelling, which another check may have read in another way", "GET", "/children/fleet/%61/k%2Fm", ok, 404, ""},
		"Dots":         {"a word that leads up", "GET", "/children/../a/ksm", ok, 404, ""},
		"Unknown":      {"no such child here", "GET", "/children/fleet/a/ksm", fails(link.ErrUnknown), 404, "fleet/a"},
		"Dead":         {"one that did not answer its probe", "GET", "/children/fleet/a/ksm", fails(link.ErrNotConnected), 503, "fleet/a"},
		"Hangs":        {"one that does not answer", "GET", "/children/fleet/a/ksm", fails(context.DeadlineExceeded), 504, "fleet/a"},
		"Redirects":    {"one that sends elsewhere", "GET", "/children/fleet/a/ksm", fails(&answer.Error{Reason: answer.ReasonRedirect}), 502, "fleet/a"},
		"Broken":       {"one that breaks the connection", "GET", "/children/fleet/a/ksm", fails(errors.New("secret of the child")), 502, "fleet/a"},
		"Forbidden":    {"one that refuses", "GET", "/children/fleet/a/ksm", status(403), 502, "fleet/a"},
		"Login":        {"one that wants a login", "GET", "/children/fleet/a/ksm", status(401), 502, "fleet/a"},
		"Error":        {"one that fails", "GET", "/children/fleet/a/ksm", status(500), 502, "fleet/a"},
		"Partial":      {"no other success than 200", "GET", "/children/fleet/a/ksm", status(206), 502, "fleet/a"},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fleet{answer: tc.answer}
			w := ask(t, proxyOf(t, f, time.Now), tc.method, tc.path)
			asked := strings.Join(f.asked, ",")
			if w.Code != tc.status || !strings.HasPrefix(asked, tc.asked) || (asked == "") != (tc.asked == "") {
				t.Errorf("%s: %d, asked %q; want %d, %q", tc.reason, w.Code, asked, tc.status, tc.asked)
			}
			if strings.Contains(w.Body.String(), "secret") || w.Header().Get("Set-Cookie") != "" || strings.Contains(w.Header().Get("Content-Type"), "html") {
				t.Errorf("%s: something of the child's came up: %v %s", tc.reason, w.Header(), w.Body)
			}
		})
	}
}

func TestContentType(t *testing.T) {
	for said, want := range map[string]string{
		"application/openmetrics-text; version=1.0.0; charset=utf-8": "application/openmetrics-text; version=1.0.0; charset=utf-8",
		"application/openmetrics-text; version=9":                    "text/plain; version=0.0.4; charset=utf-8",
		"text/html":                       "text/plain; version=0.0.4; charset=utf-8",
		"text/plain; version=0.0.4; x=\"": "text/plain; version=0.0.4; charset=utf-8",
		"":                                "text/plain; version=0.0.4; charset=utf-8",
	} {
		if got := contentType(said); got != want {
			t.Errorf("%q becomes %q, want %q", said, got, want)
		}
	}
}

func TestPatience(t *testing.T) {
	for said, want := range map[string]time.Duration{
		"": scrapeTimeout, "x": scrapeTimeout, "-1": scrapeTimeout, "NaN": scrapeTimeout, "10": 9500 * time.Millisecond,
		"0.2": 100 * time.Millisecond, "1e300": longestScrape - headroom, "+Inf": longestScrape - headroom,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", said)
		if got := patience(r); got != want {
			t.Errorf("of %q seconds %s are waited, want %s", said, got, want)
		}
	}
}

// cut is a body that breaks off.
type cut struct{ io.Reader }

func (c *cut) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = &answer.Error{Reason: answer.ReasonTooLarge}
	}
	return n, err
}
func (*cut) Close() error { return nil }

// TestCut: what is cut does not end as if it were whole.
func TestCut(t *testing.T) {
	f := &fleet{answer: func(context.Context, types.NamespacedName, string) (*http.Response, error) {
		r := says(200, "text/plain", "")
		r.Body = &cut{strings.NewReader(strings.Repeat("up 1\n", 1<<14))}
		return r, nil
	}}
	s := httptest.NewServer(proxyOf(t, f, time.Now))
	defer s.Close()
	response, err := http.Get(s.URL + "/children/fleet/a/ksm")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.ReadAll(response.Body); err == nil {
		t.Error("an answer that was cut looks whole")
	}
}

// TestBreaker: an endpoint that fails is left alone, and then tried by one at a time.
func TestBreaker(t *testing.T) {
	now := time.Unix(1000, 0)
	f := &fleet{answer: func(_ context.Context, child types.NamespacedName, _ string) (*http.Response, error) {
		if child.Name == "slow" {
			return nil, context.DeadlineExceeded
		}
		return says(200, "text/plain", "up 1\n"), nil
	}}
	p := proxyOf(t, f, func() time.Time { return now })
	for i, want := range []int{504, 504, 503, 503} {
		if got := ask(t, p, "GET", "/children/fleet/slow/ksm"); got.Code != want {
			t.Errorf("scrape %d of one that hangs: %d, want %d", i, got.Code, want)
		}
	}
	if len(f.asked) != 2 {
		t.Errorf("it was asked %d times, want 2", len(f.asked))
	}
	if got := ask(t, p, "GET", "/children/fleet/good/ksm"); got.Code != 200 {
		t.Errorf("another child suffers: %d", got.Code)
	}
	f.asked = nil
	now = now.Add(breakPause)
	if got := ask(t, p, "GET", "/children/fleet/slow/ksm"); got.Code != 504 || len(f.asked) != 1 {
		t.Errorf("after the pause: %d, asked %d times", got.Code, len(f.asked))
	}
	if got := ask(t, p, "GET", "/children/fleet/slow/ksm"); got.Code != 503 {
		t.Errorf("after it failed again: %d", got.Code)
	}
	f.answer = func(context.Context, types.NamespacedName, string) (*http.Response, error) {
		return says(200, "", "up 1\n"), nil
	}
	now = now.Add(breakPause)
	for range 2 {
		if got := ask(t, p, "GET", "/children/fleet/slow/ksm"); got.Code != 200 {
			t.Errorf("one that works again: %d", got.Code)
		}
	}
}

// TestPlaces: endpoints that hang have their own places, and one endpoint has few.
func TestPlaces(t *testing.T) {
	now := time.Unix(1000, 0)
	hangs, entered := make(chan struct{}), make(chan struct{}, 64)
	f := &fleet{answer: func(ctx context.Context, child types.NamespacedName, _ string) (*http.Response, error) {
		if child.Name == "good" {
			return says(200, "text/plain", "up 1\n"), nil
		}
		entered <- struct{}{}
		select {
		case <-hangs:
		case <-ctx.Done():
		}
		return nil, context.DeadlineExceeded
	}}
	p := proxyOf(t, f, func() time.Time { return now })
	var running sync.WaitGroup
	for range atOnce {
		running.Go(func() { ask(t, p, "GET", "/children/fleet/slow/ksm") })
		<-entered
	}
	if got := ask(t, p, "GET", "/children/fleet/slow/ksm"); got.Code != http.StatusTooManyRequests {
		t.Errorf("one more of one endpoint: %d", got.Code)
	}
	if got := ask(t, p, "GET", "/children/fleet/good/ksm"); got.Code != 200 {
		t.Errorf("beside one that hangs: %d", got.Code)
	}
	close(hangs)
	running.Wait()
	if len(p.places) != 0 || len(p.suspects) != 0 {
		t.Errorf("%d and %d places are left taken", len(p.places), len(p.suspects))
	}
	for range mostSuspects {
		p.suspects <- struct{}{}
	}
	now = now.Add(breakPause)
	if got := ask(t, p, "GET", "/children/fleet/slow/ksm"); got.Code != http.StatusServiceUnavailable {
		t.Errorf("without a place for what failed: %d", got.Code)
	}
	if s := p.breaker.of[target{types.NamespacedName{Namespace: "fleet", Name: "slow"}, "ksm"}]; s == nil || s.failures == 0 {
		t.Error("what was not asked counts as answered")
	}
	if got := ask(t, p, "GET", "/children/fleet/good/ksm"); got.Code != 200 {
		t.Errorf("what works waits for what failed: %d", got.Code)
	}
}

// TestPodOf: the pod that leads is looked up once in a while, and again when it fails.
func TestPodOf(t *testing.T) {
	now := time.Unix(1000, 0)
	status := 200
	f := &fleet{answer: func(context.Context, types.NamespacedName, string) (*http.Response, error) {
		return says(status, "text/plain", "up 1\n"), nil
	}}
	p := proxyOf(t, f, func() time.Time { return now })
	for _, step := range []struct {
		reason string
		after  time.Duration
		status int
		pods   int
	}{
		{"the first time", 0, 200, 1}, {"right after", podFor / 2, 200, 1}, {"a minute later", podFor, 200, 2},
		{"the pod is gone", 0, 404, 2}, {"and another one leads", 0, 200, 3},
	} {
		now, status = now.Add(step.after), step.status
		ask(t, p, "GET", "/children/fleet/a/agent")
		if f.pods != step.pods {
			t.Errorf("%s: %d looks, want %d", step.reason, f.pods, step.pods)
		}
	}
}
