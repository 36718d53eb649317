package proxy

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// server counts what reaches it.
type server struct {
	reached atomic.Int64
	// ended receives a value for each stream that has ended.
	ended chan struct{}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := s.reached.Add(1)
	if r.URL.Query().Get("watch") == "true" {
		_, _ = fmt.Fprintln(w, `{"type":"ADDED"}`)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		s.ended <- struct{}{}
		return
	}
	_, _ = fmt.Fprintf(w, "%d %s %s %s", n, r.Method, r.URL.RequestURI(), r.Header.Get("Authorization"))
}

// start serves one behind a proxy, below a path, and returns a client of the proxy.
func start(t *testing.T, h Hooks) (*server, *Proxy, *http.Client, string) {
	t.Helper()
	s := &server{ended: make(chan struct{}, 10)}
	behind := httptest.NewUnstartedServer(http.StripPrefix("/c/one", s))
	behind.EnableHTTP2 = true
	behind.StartTLS()
	t.Cleanup(behind.Close)
	config := clientcmdapi.NewConfig()
	config.CurrentContext = "it"
	config.Contexts["it"] = &clientcmdapi.Context{Cluster: "it", AuthInfo: "somebody"}
	config.AuthInfos["somebody"] = &clientcmdapi.AuthInfo{Token: "theirs"}
	config.Clusters["it"] = &clientcmdapi.Cluster{
		Server: behind.URL + "/c/one", CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: behind.Certificate().Raw}),
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	p.Use(h)
	if text, err = p.Kubeconfig(); err != nil {
		t.Fatal(err)
	}
	to, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	c, err := rest.HTTPClientFor(to)
	if err != nil {
		t.Fatal(err)
	}
	return s, p, c, to.Host
}

// ask sends a request; an error is the text of an answer that did not come.
func ask(t *testing.T, c *http.Client, method, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.Do(request)
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, ""
	}
	return answer.StatusCode, string(body)
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		method, path string
		want         Request
		writes       bool
		reason       string
	}{
		{"GET", "/api/v1/namespaces/a/configmaps/x", Request{Verb: "get", Resource: "configmaps", Namespace: "a", Name: "x"}, false, "one object"},
		{"GET", "/api/v1/configmaps?labelSelector=a", Request{Verb: "list", Resource: "configmaps"}, false, "of all namespaces"},
		{"GET", "/api/v1/configmaps?watch=true", Request{Verb: "watch", Resource: "configmaps"}, false, "a watch is a list with a word"},
		{"PATCH", "/apis/apps/v1/namespaces/a/deployments/x?dryRun=All", Request{Verb: "patch", Group: "apps", Resource: "deployments", Namespace: "a", Name: "x", DryRun: true}, true, "a dry run is a request of a write"},
		{"PUT", "/apis/apps/v1/namespaces/a/deployments/x/status", Request{Verb: "update", Group: "apps", Resource: "deployments", Namespace: "a", Name: "x", Subresource: "status"}, true, "a subresource"},
		{"GET", "/api/v1/namespaces/a", Request{Verb: "get", Resource: "namespaces", Name: "a"}, false, "a Namespace"},
		{"PUT", "/api/v1/namespaces/a/finalize", Request{Verb: "update", Resource: "namespaces", Name: "a", Subresource: "finalize"}, true, "a Namespace's own subresource"},
		{"POST", "/api/v1/namespaces/a/secrets", Request{Verb: "create", Resource: "secrets", Namespace: "a"}, true, "a create has no name"},
		{"DELETE", "/api/v1/namespaces/a/secrets", Request{Verb: "deletecollection", Resource: "secrets", Namespace: "a"}, true, "a delete without a name"},
		{"DELETE", "/api/v1/namespaces/a/secrets/x", Request{Verb: "delete", Resource: "secrets", Namespace: "a", Name: "x"}, true, "a delete"},
		{"POST", "/api/v1/namespaces/a/events", Request{Verb: "create", Resource: "events", Namespace: "a"}, false, "events say nothing of what is declared"},
		{"POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", Request{Verb: "create", Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}, false, "a review is not kept"},
		{"GET", "/openapi/v3", Request{Verb: "get"}, false, "no resource"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, nil)
		got := parse(r)
		c.want.Path = c.path
		if *got != c.want {
			t.Errorf("%s %s: got %+v, want %+v; %s", c.method, c.path, *got, c.want, c.reason)
		}
		if got.Writes() != c.writes {
			t.Errorf("%s %s: writes is %t; %s", c.method, c.path, got.Writes(), c.reason)
		}
	}
}

func TestPassesAll(t *testing.T) {
	_, p, c, host := start(t, nil)
	if code, body := ask(t, c, "GET", host+"/api/v1/pods?limit=1"); code != 200 || body != "1 GET /api/v1/pods?limit=1 Bearer theirs" {
		t.Errorf("got %d %q", code, body)
	}
	if _, err := p.Kubeconfig(); err != nil {
		t.Error(err)
	}
}

// TestStreams: the first event of a watch comes at once, and the watch ends with the
// client.
func TestStreams(t *testing.T) {
	s, _, c, host := start(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, "GET", host+"/api/v1/pods?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	line := make([]byte, len(`{"type":"ADDED"}`))
	if _, err := io.ReadFull(answer.Body, line); err != nil || string(line) != `{"type":"ADDED"}` {
		t.Errorf("got %q: %v", line, err)
	}
	cancel()
	<-s.ended
}

func TestKill(t *testing.T) {
	for _, c := range []struct {
		name    string
		at      int
		moment  Moment
		kills   int
		reached int64
		reason  string
	}{
		{"Before", 2, Before, 1, 2, "the second write does not arrive, the read before it does"},
		{"After", 2, After, 1, 3, "the second write arrives, its answer does not"},
		{"Never", 4, After, 0, 4, "there are three writes"},
		{"OnlyCounted", 0, Before, 0, 4, "nothing is request 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			kills := 0
			k := NewKill(c.at, c.moment, (*Request).Writes, func() { kills++ })
			s, _, client, host := start(t, k)
			for i, step := range []struct{ method, path string }{
				{"PATCH", "/api/v1/namespaces/a/secrets/x"}, {"GET", "/api/v1/pods"}, {"DELETE", "/api/v1/namespaces/a/secrets/x"}, {"PATCH", "/api/v1/namespaces/a/secrets/y"},
			} {
				code, _ := ask(t, client, step.method, host+step.path)
				if ended := c.kills > 0 && i >= 2; ended == (code == 200) {
					t.Errorf("request %d has answer %d; %s", i, code, c.reason)
				}
			}
			if kills != c.kills || s.reached.Load() != c.reached {
				t.Errorf("%d kills, want %d; %d requests arrived, want %d; %s", kills, c.kills, s.reached.Load(), c.reached, c.reason)
			}
			if c.kills > 0 {
				<-k.Done()
				if got := k.Target(); got.Verb != "delete" || k.Counted() != 2 {
					t.Errorf("killed at %+v, the %dth", got, k.Counted())
				}
			} else if k.Counted() != 3 {
				t.Errorf("%d requests counted", k.Counted())
			}
		})
	}
}

// TestFaults: each fault looks to the client as it should, and the API server sees
// what it should.
func TestFaults(t *testing.T) {
	const write, watched = "/api/v1/namespaces/a/secrets/x", "/api/v1/pods?watch=true"
	for _, c := range []struct {
		fault        fault
		method, path string
		code         int
		reached      int64
		reason       string
	}{
		{conflict, "PATCH", write, 409, 0, "another was faster"},
		{throttled, "PATCH", write, 429, 0, "too many"},
		{serverError, "GET", "/api", 500, 0, "anything may fail"},
		{hung, "PATCH", write, 0, 0, "no answer, and nothing done"},
		{hungAnswer, "PATCH", write, 0, 1, "no answer, and done all the same"},
		{cutOff, "GET", "/api", 0, 0, "the connection ends"},
		{cutAnswer, "DELETE", write, 0, 1, "the connection ends after the delete"},
		{gone, "GET", watched, 200, 0, "an event says so"},
		{cutWatch, "GET", watched, 0, 1, "the stream ends without an end"},
		{stale, "GET", "/api/v1/pods", 200, 1, "the answer is that of the first time"},
	} {
		t.Run(string(c.fault), func(t *testing.T) {
			f := NewFaults(FaultOptions{Random: rand.New(rand.NewPCG(1, 1)), RetryAfter: 2 * time.Second, Hang: 50 * time.Millisecond, Stale: time.Hour, Now: time.Now})
			s, p, client, host := start(t, f)
			before := ""
			if c.fault == stale {
				_, before = ask(t, client, c.method, host+c.path)
			}
			p.Use(always{f, c.fault})
			code, body := ask(t, client, c.method, host+c.path)
			if code != c.code || s.reached.Load() != c.reached || before != "" && body != before {
				t.Errorf("got %d %q, and %d requests arrived; want %d and %d; %s", code, body, s.reached.Load(), c.code, c.reached, c.reason)
			}
		})
	}
}

// always are faults without chance.
type always struct {
	*Faults
	fault fault
}

func (a always) Before(r *Request) http.Handler {
	a.options.Share = 1
	for {
		// Which one it is, is drawn; the others are put back.
		if got := a.Faults.draw(r); got == a.fault {
			r.fault = got
			return a.Faults.meet(r)
		}
	}
}

// TestShare: as many requests fail as are to, in all ways that there are, and all of
// them under overload.
func TestShare(t *testing.T) {
	f := NewFaults(FaultOptions{Share: 0.2, Random: rand.New(rand.NewPCG(1, 1)), RetryAfter: time.Second, Hang: time.Second, Stale: time.Hour, Now: time.Now})
	if err := f.remember("/api/v1/pods", &http.Response{Body: io.NopCloser(errReader{io.EOF})}); err != nil {
		t.Fatal(err)
	}
	requests := []*Request{{Verb: "patch"}, {Verb: "list", Path: "/api/v1/pods"}, {Verb: "watch"}, {Verb: "get"}}
	for i := range 10_000 {
		f.draw(requests[i%len(requests)])
	}
	total := 0
	for _, n := range f.Counts() {
		total += n
	}
	if total < 1_800 || total > 2_200 || f.Requests() != 10_000 {
		t.Errorf("%d of %d requests failed: %v", total, f.Requests(), f.Counts())
	}
	for _, kind := range []fault{conflict, throttled, serverError, hung, hungAnswer, cutOff, cutAnswer, cutWatch, stale, gone} {
		if f.Counts()[string(kind)] == 0 {
			t.Errorf("no request met %s: %v", kind, f.Counts())
		}
	}
	f.Overload(true)
	if slices.ContainsFunc(requests, func(r *Request) bool { return f.draw(r) != throttled }) {
		t.Error("a request passed the overload")
	}
}

// TestStaleIsBounded: an answer that is too old is not given.
func TestStaleIsBounded(t *testing.T) {
	now := time.Unix(0, 0)
	f := NewFaults(FaultOptions{Stale: time.Minute, Now: func() time.Time { return now }})
	for range 3 {
		if err := f.remember("/x", &http.Response{Body: io.NopCloser(errReader{io.EOF})}); err != nil {
			t.Fatal(err)
		}
		now = now.Add(40 * time.Second)
	}
	if old, ok := f.oldest("/x"); !ok || now.Sub(old.at) > time.Minute {
		t.Errorf("the oldest is of %s, now it is %s", old.at, now)
	}
	now = now.Add(time.Hour)
	if old, ok := f.oldest("/x"); ok || len(f.lists) != 0 {
		t.Errorf("one of %s is kept", old.at)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// TestStaleNeedsAWholeList: a list that broke off is not remembered.
func TestStaleNeedsAWholeList(t *testing.T) {
	f := NewFaults(FaultOptions{Stale: time.Minute, Now: time.Now})
	if err := f.remember("/x", &http.Response{Body: io.NopCloser(errReader{errors.New("broken")})}); err == nil {
		t.Error("no error")
	}
	if _, ok := f.oldest("/x"); ok {
		t.Error("it is remembered")
	}
}
