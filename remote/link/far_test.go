package link

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// start is when the clock of a test begins.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func pemOf(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func webToken(claims string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".sig"
}

// far is a child's API server as far as probes need one. What it admits and says
// is changed by tests.
type far struct {
	*httptest.Server
	mu     sync.Mutex
	uid    string
	tokens map[string]bool // accepted, true for the administrator's
	minted int
	life   int64
	// lease is the version of the heartbeat, empty if there is none, and leader that of the
	// leader's Lease.
	lease  string
	leader string
	// earlier: the parent has the rights that an earlier version granted.
	earlier bool
	report  string
	digest  string
	// version of the report's ConfigMap; there is none if it is empty.
	version    string
	account    bool
	notReached chan struct{}
	arrived    chan struct{}
	requests   []string
	// during, if it is set, is called while a request is answered, as requests has it.
	during func(request string)
	// hints is what the parent wrote into the ConfigMap of hints, which is there if takesHints.
	// refusesHints: the parent has not got the right.
	takesHints, refusesHints bool
	hints                    string
	// events are what watches show; without them a watch is forbidden. watches counts those
	// that began.
	events  chan string
	watches int
	// from is the connection that the last request came by, and closed has those that ended.
	from   string
	closed chan string
}

func newFar(t *testing.T) *far {
	t.Helper()
	f := &far{uid: "one", tokens: map[string]bool{"admin": true}, life: 3600, account: true, lease: "1", leader: "1", digest: "d1", version: "1", report: `{"ready":true,"reason":"Succeeded"}`}
	f.closed = make(chan string, 100)
	f.Server = httptest.NewUnstartedServer(f)
	f.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			select {
			case f.closed <- c.RemoteAddr().String():
			default: // nobody counts so many
			}
		}
	}
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

func (f *far) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") != "" {
		f.watch(w, r)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.from = r.RemoteAddr
	f.requests = append(f.requests, r.Method+" "+r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])
	if f.during != nil {
		f.during(f.requests[len(f.requests)-1])
	}
	if f.notReached != nil {
		notReached := f.notReached
		f.mu.Unlock()
		f.arrived <- struct{}{}
		select {
		case <-notReached:
		case <-r.Context().Done():
		}
		f.mu.Lock()
		return
	}
	status := func(code int, reason metav1.StatusReason) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code), Reason: reason})
	}
	if _, ok := f.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]; !ok {
		status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		return
	}
	say := func(apiVersion, kind string, o any) {
		text, _ := json.Marshal(o)
		fields := map[string]any{}
		_ = json.Unmarshal(text, &fields)
		fields["apiVersion"], fields["kind"] = apiVersion, kind
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(fields)
	}
	switch path := r.URL.Path; {
	case path == "/readyz":
		_, _ = w.Write([]byte("ok"))
	case path == "/version":
		say("", "", map[string]any{"gitVersion": "v1.36.3"})
	case strings.HasSuffix(path, "/namespaces/kube-system"):
		say("v1", "Namespace", corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: types.UID(f.uid)}})
	case strings.HasSuffix(path, "/token"):
		if !f.account {
			status(http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		f.minted++
		token := fmt.Sprint("minted-", f.minted)
		f.tokens[token] = false
		say("authentication.k8s.io/v1", "TokenRequest", authenticationv1.TokenRequest{
			Spec:   authenticationv1.TokenRequestSpec{ExpirationSeconds: &f.life},
			Status: authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.Unix(0, 0)}, // a clock that is wrong by decades
		})
	case strings.HasSuffix(path, "/"+v1alpha1.HeartbeatLease) && f.earlier:
		status(http.StatusForbidden, metav1.StatusReasonForbidden)
	case strings.HasSuffix(path, "/"+v1alpha1.HeartbeatLease) && f.lease != "":
		say("coordination.k8s.io/v1", "Lease", leaseOf(f.lease, f.digest))
	case strings.HasSuffix(path, "/"+v1alpha1.LeaderLease):
		say("coordination.k8s.io/v1", "Lease", leaseOf(f.leader, f.digest))
	case path == hintsPath && f.refusesHints:
		status(http.StatusForbidden, metav1.StatusReasonForbidden)
	case path == hintsPath && f.takesHints && r.Method == http.MethodPatch && r.URL.Query().Get("fieldManager") == hintsManager:
		body, _ := io.ReadAll(r.Body)
		f.hints = r.Header.Get("Content-Type") + " " + string(body)
		say("v1", "ConfigMap", corev1.ConfigMap{})
	case strings.HasSuffix(path, "/"+v1alpha1.ReportConfigMap) && f.version != "":
		partial := strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
		if partial {
			f.requests[len(f.requests)-1] += "?"
			say("meta.k8s.io/v1", "PartialObjectMetadata", metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{ResourceVersion: f.version}})
			return
		}
		say("v1", "ConfigMap", corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{ResourceVersion: f.version}, Data: map[string]string{v1alpha1.ReportKey: f.report},
		})
	default:
		status(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
}

func leaseOf(version, digest string) coordinationv1.Lease {
	return coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version, Labels: map[string]string{v1alpha1.ReportLabel: digest}}}
}

// asked returns what was asked for since the last call.
func (f *far) asked() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := strings.Join(f.requests, ", ")
	f.requests = nil
	return out
}

func (f *far) change(change func(*far)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// near is the parent's side of one child.
type near struct {
	*Link
	pool  *Pool
	clock *clock
	woken chan Turn
	// token in the kubeconfig Secret, and how often the Secret was read.
	token string
	reads int
	q     Request
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newNear(t *testing.T, f *far) *near {
	t.Helper()
	n := &near{clock: &clock{now: start}, woken: make(chan Turn, 10), token: "admin"}
	n.pool = NewPool(t.Context(), runtime.NewScheme(), n.clock.Now, rand.Float64)
	n.pool.OnProbe(func(_ types.NamespacedName, turn Turn) { n.woken <- turn })
	n.Link = n.pool.Of(types.NamespacedName{Namespace: "fleet", Name: "a"})
	pool := f.Certificate()
	n.q = Request{Source: "s1", Recorded: "one", Agent: true, Read: func(context.Context) (*rest.Config, error) {
		n.reads++
		return &rest.Config{Host: f.URL, BearerToken: n.token, TLSClientConfig: rest.TLSClientConfig{CAData: pemOf(pool.Raw)}}, nil
	}}
	return n
}

// probed starts a probe and waits for its result, as a run does that is woken.
func (n *near) probed(t *testing.T) *Result {
	t.Helper()
	a, wait := n.Ask(n.q)
	if a != nil {
		return a
	}
	if wait > 0 {
		t.Fatalf("Ask() waits %s", wait)
	}
	<-n.woken
	if a, _ = n.Ask(n.q); a == nil {
		t.Fatal("Ask() has no result after the probe")
	}
	return a
}

func (n *near) good(t *testing.T) *Result {
	t.Helper()
	a := n.probed(t)
	if a.Err != nil {
		t.Fatalf("result is %v", a.Err)
	}
	return a
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: requests are\n %s\nwant\n %s", what, got, want)
	}
}
