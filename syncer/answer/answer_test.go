package answer_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/syncer/answer"
)

// reasonOf is the reason of an error, empty if it has none.
func reasonOf(err error) string {
	var refused *answer.Error
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return ""
}

// bomb answers with a body that begins as an object does and has no end, gzipped. sent
// counts what was inflated of it.
func bomb(begin string, sent *atomic.Int64) http.HandlerFunc {
	zeros := strings.Repeat(" ", 1<<16)
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		gz, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if err != nil {
			return
		}
		_, _ = io.WriteString(gz, begin)
		for sent.Load() < 8<<30 {
			if _, err := io.WriteString(gz, zeros); err != nil || r.Context().Err() != nil {
				return
			}
			sent.Add(int64(len(zeros)))
		}
	}
}

// boundedClient is a client of a server with bounds.
func boundedClient(t *testing.T, s *httptest.Server, limits answer.Limits) *kubernetes.Clientset {
	t.Helper()
	config := &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return answer.Bound(next, limits, "") })
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// clientOf is a client of a server of a kubeconfig.
func clientOf(t *testing.T, s *httptest.Server) *kubernetes.Clientset {
	t.Helper()
	config := &rest.Config{Host: s.URL, BearerToken: "theirs", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	if err := (answer.Addresses{}).Guard(config); err != nil {
		t.Fatal(err)
	}
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAnswersAreBounded(t *testing.T) {
	limits := answer.Other()
	limits.Discovery, limits.OpenAPI, limits.Object, limits.List, limits.Event = 1<<20, 3<<20, 1<<20, 3<<20, 1<<20
	for name, tt := range map[string]struct {
		reason string
		begin  string
		most   int64
		ask    func(context.Context, *kubernetes.Clientset) error
	}{
		"Version": {"a probe is small", `{`, limits.Probe, func(_ context.Context, c *kubernetes.Clientset) error {
			_, err := c.Discovery().ServerVersion()
			return err
		}},
		"Discovery": {"as large as what is served", `{"kind":"APIGroupList",`, limits.Discovery, func(_ context.Context, c *kubernetes.Clientset) error {
			_, err := c.Discovery().ServerGroups()
			return err
		}},
		"OpenAPI": {"the largest documents", `{`, limits.OpenAPI, func(_ context.Context, c *kubernetes.Clientset) error {
			_, err := c.Discovery().OpenAPISchema()
			return err
		}},
		"Object": {"what etcd holds", `{"kind":"Secret",`, limits.Object, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().Secrets("a").Get(ctx, "b", metav1.GetOptions{})
			return err
		}},
		"List": {"a page", `{"kind":"SecretList",`, limits.List, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().Secrets("a").List(ctx, metav1.ListOptions{})
			return err
		}},
		"Watch": {"one event, not the watch", `{"type":"ADDED","object":{"a":"`, limits.Event, func(ctx context.Context, c *kubernetes.Clientset) error {
			w, err := c.CoreV1().Secrets("a").Watch(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			defer w.Stop()
			for e := range w.ResultChan() {
				return apierrors.FromObject(e.Object)
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Int64
			s := httptest.NewTLSServer(bomb(tt.begin, &sent))
			defer s.Close()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := tt.ask(t.Context(), boundedClient(t, s, limits))
			runtime.ReadMemStats(&after)
			if name == "Watch" {
				if err == nil || !strings.Contains(err.Error(), answer.ReasonTooLarge) {
					t.Errorf("%s: got %v", tt.reason, err)
				}
			} else if reasonOf(err) != answer.ReasonTooLarge {
				t.Errorf("%s: got %v", tt.reason, err)
			}
			// Buffers that grow are copied a few times; what the server inflates to is in
			// the same process, and a few MiB of it wait in buffers, deflated.
			if took := after.TotalAlloc - before.TotalAlloc; took > uint64(8*tt.most+64<<20) {
				t.Errorf("%s: %d bytes were allocated for a limit of %d", tt.reason, took, tt.most)
			}
			if sent.Load() > 1<<30 {
				t.Errorf("%s: the server got rid of %d bytes", tt.reason, sent.Load())
			}
		})
	}
}

func TestOrdinaryAnswersPass(t *testing.T) {
	items := make([]corev1.Secret, 500)
	for i := range items {
		items[i] = corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i)}, Data: map[string][]byte{"a": make([]byte, 3<<10)}}
	}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("watch") != "":
			// More than the bound of one event, in many.
			for i := range items {
				_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": &corev1.Secret{TypeMeta: metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}, ObjectMeta: items[i].ObjectMeta, Data: items[i].Data}})
			}
		case strings.HasSuffix(r.URL.Path, "/secrets"):
			_ = json.NewEncoder(w).Encode(&corev1.SecretList{TypeMeta: metav1.TypeMeta{Kind: "SecretList", APIVersion: "v1"}, Items: items})
		case strings.HasSuffix(r.URL.Path, "/log"):
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, "ready\n")
		case strings.HasSuffix(r.URL.Path, "/absent"):
			w.WriteHeader(http.StatusNotFound)
			absent := apierrors.NewNotFound(corev1.Resource("secrets"), "absent").ErrStatus
			absent.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			_ = json.NewEncoder(w).Encode(absent)
		default:
			_ = json.NewEncoder(w).Encode(&corev1.Secret{TypeMeta: metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}, Data: map[string][]byte{"a": make([]byte, 1<<20)}})
		}
	}))
	defer s.Close()
	limits := answer.Other()
	limits.List, limits.Object, limits.Event = 3<<20, 3<<19, 8<<10
	if log, err := boundedClient(t, s, limits).CoreV1().Pods("a").GetLogs("b", &corev1.PodLogOptions{}).DoRaw(t.Context()); err != nil || string(log) != "ready\n" {
		t.Errorf("the log of a pod: %q, %v", log, err)
	}
	c := boundedClient(t, s, limits).CoreV1().Secrets("a")
	if got, err := c.List(t.Context(), metav1.ListOptions{}); err != nil || len(got.Items) != len(items) {
		t.Errorf("a list of 2 MB: %v", err)
	}
	if got, err := c.Get(t.Context(), "b", metav1.GetOptions{}); err != nil || len(got.Data["a"]) != 1<<20 {
		t.Errorf("an object of 1 MiB: %v", err)
	}
	if _, err := c.Get(t.Context(), "absent", metav1.GetOptions{}); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `secrets "absent" not found`) {
		t.Errorf("an error of the API server: %v", err)
	}
	w, err := c.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for e := range w.ResultChan() {
		if _, ok := e.Object.(*corev1.Secret); ok {
			seen++
		}
	}
	if seen != len(items) {
		t.Errorf("a watch of %d events showed %d", len(items), seen)
	}
}

// TestWatchPadding: what is between two events counts for the one that follows.
func TestWatchPadding(t *testing.T) {
	limits := answer.Other()
	limits.Event = 1000
	for name, tt := range map[string]struct {
		body string
		want string
	}{
		"Events":  {body: strings.Repeat(`{"a":"}{\"]["}`+"\n", 1000)},
		"String":  {body: `{"a":"` + strings.Repeat(`\"}`, 1000), want: answer.ReasonTooLarge},
		"Nested":  {body: strings.Repeat(`{"a":`, 1000), want: answer.ReasonTooLarge},
		"Spaces":  {body: strings.Repeat(" \n", 1000), want: answer.ReasonTooLarge},
		"Number":  {body: strings.Repeat("1", 2000), want: answer.ReasonTooLarge},
		"Between": {body: "{}" + strings.Repeat(" ", 500) + "{}" + strings.Repeat(" ", 500) + "{}"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, tt.body) }))
		c := &http.Client{Transport: answer.Bound(&http.Transport{}, limits, "")}
		res, err := c.Get(s.URL + "/api/v1/secrets?watch=true")
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(res.Body)
		res.Body.Close()
		if reasonOf(err) != tt.want {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
		s.Close()
	}
}

// switching answers 101 and keeps the connection, on which it says what it is given, again and
// again, or nothing. sent counts its bytes, of which there are 64 MiB at most.
func switching(say []byte, sent *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		for len(say) > 0 && sent.Load() < 64<<20 {
			n, err := c.Write(say)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
		_, _ = io.Copy(io.Discard, c) // until the client hangs up
	}
}

// TestSwitchedProtocols: nobody asks for another protocol. An answer that says so anyway ends the
// call, which would have no end in bytes or in time, whatever deadline it has.
func TestSwitchedProtocols(t *testing.T) {
	for name, say := range map[string][]byte{"Silent": nil, "Endless": make([]byte, 1<<16)} {
		for by, ask := range map[string]func(context.Context, *httptest.Server) error{
			"Kubernetes": func(ctx context.Context, s *httptest.Server) error {
				_, err := clientOf(t, s).CoreV1().Secrets("a").Get(ctx, "b", metav1.GetOptions{})
				if err != nil && reasonOf(err) != answer.ReasonNotKubernetes {
					t.Errorf("%s: got %v, want reason %s", name, err, answer.ReasonNotKubernetes)
				}
				return err
			},
			"HTTP": func(ctx context.Context, s *httptest.Server) error {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
				if err != nil {
					return err
				}
				response, err := (&http.Client{Transport: answer.Over(s.Client().Transport.(*http.Transport))}).Do(r)
				if err == nil {
					_, _ = io.ReadAll(response.Body)
					_ = response.Body.Close()
				}
				return err
			},
		} {
			t.Run(name+"/"+by, func(t *testing.T) {
				var sent atomic.Int64
				s := httptest.NewTLSServer(switching(say, &sent))
				defer s.Close()
				ended := make(chan error, 1)
				go func() { ended <- ask(t.Context(), s) }()
				select {
				case err := <-ended:
					if err == nil || !strings.Contains(err.Error(), "101") {
						t.Errorf("got %v", err)
					}
				case <-time.After(20 * time.Second):
					t.Fatal("the call does not end")
				}
				if got := sent.Load(); got >= 64<<20 {
					t.Errorf("the server got rid of %d bytes", got)
				}
			})
		}
	}
}

func TestRedirectsAreRefused(t *testing.T) {
	var reached atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		t.Errorf("the other server got %q", r.Header.Get("Authorization"))
	}))
	defer other.Close()
	for _, code := range []int{301, 302, 303, 307, 308} {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL+"/?token=s3cret", code)
		}))
		_, err := clientOf(t, s).CoreV1().Secrets("a").Get(t.Context(), "b", metav1.GetOptions{})
		if reasonOf(err) != answer.ReasonRedirect {
			t.Errorf("%d: got %v", code, err)
		}
		if strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), other.URL) {
			t.Errorf("%d: the error tells where to: %v", code, err)
		}
		s.Close()
	}
	if reached.Load() > 0 {
		t.Error("a redirect was followed")
	}
}

// TestStrangersWords: what a service that is no API server says does not come back.
func TestStrangersWords(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		code   int
		body   string
		want   func(error) bool
	}{
		"Text":   {"not a Status", 404, "s3cret", apierrors.IsNotFound},
		"JSON":   {"not a Status either", 500, `{"password":"s3cret"}`, apierrors.IsInternalError},
		"Object": {"client-go quotes what has no kind", 200, `{"password":"s3cret"}`, func(err error) bool { return reasonOf(err) == answer.ReasonNotKubernetes }},
		"Page":   {"nor a page of the web", 200, `<html>s3cret`, func(err error) bool { return reasonOf(err) == answer.ReasonNotKubernetes }},
		"Status": {"the words of an API server, cut", 403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"` + strings.Repeat("x", 60000) + `s3cret"}`,
			func(err error) bool { return apierrors.IsForbidden(err) && len(err.Error()) < 4000 }},
		"Credential": {"what it was sent", 403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"you are Bearer theirs"}`,
			func(err error) bool { return apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "theirs") }},
		"Endless": {"more than an error ever has", 403, strings.Repeat("s3cret", 1<<20), apierrors.IsForbidden},
	} {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(tt.code)
			_, _ = io.WriteString(w, tt.body)
		}))
		_, err := clientOf(t, s).CoreV1().Secrets("a").Get(t.Context(), "b", metav1.GetOptions{})
		if err == nil || !tt.want(err) {
			t.Errorf("%s: %s: got %v", name, tt.reason, err)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %s: it comes back: %.200s", name, tt.reason, err)
		}
		s.Close()
	}
}

func TestAddresses(t *testing.T) {
	loopback := answer.Addresses{Deny: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16")}}
	for name, tt := range map[string]struct {
		reason    string
		addresses answer.Addresses
		host      string
		refused   bool
	}{
		"Metadata":   {"of most clouds", answer.Addresses{}, "169.254.169.254", true},
		"Mapped":     {"the same as IPv6", answer.Addresses{}, "[::ffff:169.254.169.254]", true},
		"Translated": {"the same by NAT64", answer.Addresses{}, "[64:ff9b::a9fe:a9fe]", true},
		"Local96":    {"by a NAT64 of one's own", answer.Addresses{}, "[64:ff9b:1:7::a9fe:a9fe]", true},
		"Local64":    {"the same with a prefix of 64 bits", answer.Addresses{}, "[64:ff9b:1:7:a9:fea9:fe00:0]", true},
		"Local56":    {"the same with 56 bits", answer.Addresses{}, "[64:ff9b:1:7a9:fe:a9fe::]", true},
		"Local48":    {"the same with 48 bits", answer.Addresses{}, "[64:ff9b:1:a9fe:a9:fe00::]", true},
		"LocalRest":  {"the rest of the address is not looked at by a gateway", answer.Addresses{}, "[64:ff9b:1:a9fe:a9:fe01:2:3]", true},
		"LocalElse":  {"other addresses behind the same", answer.Addresses{}, "[64:ff9b:1:7::a01:203]", false},
		"LocalMany":  {"what would be many machines at another place", answer.Addresses{}, "[64:ff9b:1:e0::a01:203]", false},
		"LocalFlag":  {"those that the flag names", loopback, "[64:ff9b:1:7::a01:203]", true},
		"6to4":       {"the same by a tunnel", answer.Addresses{}, "[2002:a9fe:a9fe::1]", true},
		"6to4Else":   {"another address by a tunnel", answer.Addresses{}, "[2002:a01:203::1]", false},
		"6to4Flag":   {"that is denied by the flag", loopback, "[2002:a01:203::1]", true},
		"LinkLocal":  {"of IPv6", answer.Addresses{}, "[fe80::1]", true},
		"Amazon":     {"metadata by IPv6", answer.Addresses{}, "[fd00:ec2::254]", true},
		"Google":     {"the same of Google", answer.Addresses{}, "[fd20:ce::254]", true},
		"Zero":       {"Linux takes it for loopback", answer.Addresses{}, "0.0.0.0", true},
		"Loopback":   {"allowed unless denied", answer.Addresses{}, "127.0.0.1", false},
		"Denied":     {"by the flag", loopback, "127.0.0.1", true},
		"Name":       {"a name that resolves to it", loopback, "localhost", true},
		"Network":    {"by the flag", loopback, "10.1.2.3", true},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if !tt.refused {
			cancel() // whether it can be reached does not matter
		}
		conn, err := tt.addresses.Dial(ctx, "tcp", net.JoinHostPort(strings.Trim(tt.host, "[]"), "1"))
		if conn != nil {
			conn.Close()
		}
		cancel()
		if got := reasonOf(err) == answer.ReasonAddress; got != tt.refused {
			t.Errorf("%s: %s: dial says %v", name, tt.reason, err)
		}
		if tt.host == "localhost" {
			continue
		}
		// A proxy would make the connection.
		config := &rest.Config{Host: "https://" + tt.host + ":6443", Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "192.0.2.1:1"})}
		if got := reasonOf(tt.addresses.Guard(config)) == answer.ReasonAddress; got != tt.refused {
			t.Errorf("%s: %s: refused by its number: %t", name, tt.reason, got)
		}
	}
}

// TestProxyOfTheAgent: a proxy that whoever runs the agent set up may be in a network that is denied to
// tenants. That of a tenant may not, nor may what is asked through either, or past it.
func TestProxyOfTheAgent(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "by proxy: ", r.URL) }))
	defer proxy.Close()
	beside := httptest.NewServer(http.NotFoundHandler())
	defer beside.Close()
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	loopback := answer.Addresses{Deny: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	for name, tt := range map[string]struct {
		reason, ask  string
		ours, direct bool
		refused      bool
	}{
		"Ours":     {"the operator's own setting", "http://issuer.example/", true, false, false},
		"Tenant's": {"a Provider names it", "http://issuer.example/", false, false, true},
		"Through":  {"what is asked is checked as it is written", "http://127.0.0.1/", true, false, true},
		"Past":     {"as NO_PROXY says", beside.URL, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			transport := &http.Transport{Proxy: func(r *http.Request) (*url.URL, error) {
				if tt.direct && r.URL.Host != "issuer.example" {
					return nil, nil
				}
				return at, nil
			}}
			defer transport.CloseIdleConnections()
			loopback.Restrict(transport, tt.ours)
			for _, ask := range []string{"http://issuer.example/", tt.ask} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, ask, nil)
				if err != nil {
					t.Fatal(err)
				}
				response, err := transport.RoundTrip(r)
				if err == nil {
					response.Body.Close()
				}
				if want := !tt.ours || ask == tt.ask && tt.refused; (reasonOf(err) == answer.ReasonAddress) != want || !want && err != nil {
					t.Errorf("%s: %s: %v", tt.reason, ask, err)
				}
			}
		})
	}
}

// TestDeadline: a call that comes without one gets one, and a watch does not.
func TestDeadline(t *testing.T) {
	for path, want := range map[string]bool{"/version": true, "/api/v1/secrets": true, "/api/v1/secrets?watch=1": false} {
		var got bool
		next := roundTrip(func(r *http.Request) (*http.Response, error) {
			_, got = r.Context().Deadline()
			return &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{}}, nil
		})
		r := httptest.NewRequest(http.MethodGet, path, nil)
		res, err := answer.Bound(next, answer.Own(), "").RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got != want {
			t.Errorf("%s has a deadline: %t", path, got)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
