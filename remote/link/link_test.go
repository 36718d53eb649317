package link

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/access"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/answer"
)

func TestProbe(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	a := n.good(t)
	expect(t, "the first contact", f.asked(), "GET readyz, GET kube-system, GET version, POST token, GET cascade-heartbeat, GET cascade-report")
	if a.Identity != "one" || a.Version != "v1.36.3" || a.Agent.Report == nil || !a.Agent.Report.Ready {
		t.Errorf("result is %+v", a)
	}
	if n.admin != nil {
		t.Error("the administrator's credentials are kept although there is a token")
	}
	n.clock.add(time.Minute)
	n.good(t)
	expect(t, "at rest", f.asked(), "GET version, GET cascade-heartbeat, GET cascade-leader")
	n.clock.add(time.Minute)
	n.good(t)
	expect(t, "at rest", f.asked(), "GET cascade-heartbeat, GET cascade-leader")
	n.clock.add(10 * time.Second)
	n.good(t)
	expect(t, "soon after", f.asked(), "GET cascade-heartbeat, GET cascade-leader")

	f.change(func(f *far) { f.digest, f.lease, f.version, f.report = "d2", "2", "2", `{"ready":false,"reason":"X"}` })
	n.clock.add(time.Minute)
	if a := n.good(t); a.Agent.Report.Ready {
		t.Error("a new report is not read")
	}
	expect(t, "after a report", f.asked(), "GET cascade-heartbeat, GET cascade-report")

	n.clock.add(time.Minute)
	if a := n.good(t); reason.Of(a.Agent.Err) != v1alpha1.ReasonAgentNotReady {
		t.Errorf("an agent that is silent is %v", a.Agent.Err)
	}
	if n.reads != 1 {
		t.Errorf("the kubeconfig was read %d times, want once", n.reads)
	}
}

// TestProbeIsHeard: a run that comes late, as others have the processors, acts upon the probe that it
// was woken by. If it probed again it would come late again.
func TestProbeIsHeard(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	if a, wait := n.Ask(n.q); a != nil || wait != 0 {
		t.Fatalf("Ask() = %v, %s, want a probe", a, wait)
	}
	<-n.woken
	f.asked()
	n.clock.add(50 * time.Second)
	if a, _ := n.Ask(n.q); a == nil || a.Err != nil {
		t.Errorf("Ask() = %v", a)
	}
	expect(t, "after the probe", f.asked(), "")
}

func TestProbeRenewsAtTwoThirds(t *testing.T) {
	f := newFar(t)
	f.life = 600
	n := newNear(t, f)
	n.good(t)
	n.clock.add(399 * time.Second)
	n.good(t)
	if f.minted != 1 {
		t.Errorf("%d tokens before two thirds of the life", f.minted)
	}
	n.clock.add(2 * time.Second)
	n.good(t)
	if f.minted != 2 || n.reads != 1 {
		t.Errorf("%d tokens, kubeconfig read %d times; want the second token by the first", f.minted, n.reads)
	}
	// The parent slept through the end of the token.
	n.clock.add(time.Hour)
	f.change(func(f *far) { f.tokens = map[string]bool{"admin": true} })
	n.good(t)
	if n.reads != 2 {
		t.Errorf("the kubeconfig was read %d times, want twice: it is the way back", n.reads)
	}
}

// TestRotationIsSilent: tokens that are refused, revoked or rotated are replaced
// within the probe that finds out.
func TestRotationIsSilent(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	n.good(t)
	f.change(func(f *far) { f.tokens = map[string]bool{"second": true} })
	n.token = "second"
	n.clock.add(time.Minute)
	f.asked()
	n.good(t)
	expect(t, "a token that was revoked", f.asked(), "GET version, GET readyz, GET kube-system, GET version, POST token, GET cascade-heartbeat, GET cascade-leader")

	// Rotated credentials for the same server leave the token alone.
	n.q.Source = "s2"
	n.clock.add(time.Minute)
	n.good(t) // the version is asked for after a renewal
	f.asked()
	n.q.Source = "s3"
	n.clock.add(time.Minute)
	n.good(t)
	expect(t, "a rotated kubeconfig", f.asked(), "GET cascade-heartbeat, GET cascade-leader")
	if n.failures != 0 {
		t.Errorf("%d failures were counted", n.failures)
	}
}

func TestRefusedCredentials(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	n.token = "nobody's"
	a := n.probed(t)
	if reason.Of(a.Err) != v1alpha1.ReasonUnauthorized || a.Passing {
		t.Errorf("result is %v, passing %t", a.Err, a.Passing)
	}
	if n.reads != 2 {
		t.Errorf("the kubeconfig was read %d times, want once more than at first", n.reads)
	}
	// A new kubeconfig is tried at once, whatever the breaker says.
	n.token, n.q.Source = "admin", "s2"
	n.good(t)
}

func TestAnotherCluster(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	f.uid = "two"
	if a := n.good(t); a.Identity != "two" {
		t.Errorf("identity is %q", a.Identity)
	}
	expect(t, "another cluster", f.asked(), "GET readyz, GET kube-system, GET version")
}

func TestBreaker(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	n.good(t)
	f.Close()
	var pauses []time.Duration
	for i := range 8 {
		n.clock.add(time.Minute)
		a := n.probed(t)
		if a.Err == nil || reason.Of(a.Err) != v1alpha1.ReasonUnreachable {
			t.Fatalf("the result of a server that is gone is %v", a.Err)
		}
		if want := i == 0; a.Passing != want {
			t.Errorf("failure %d is passing: %t, want %t: the first refused connection may be a restart", i+1, a.Passing, want)
		}
		pauses = append(pauses, n.notBefore.Sub(n.clock.Now()))
		if a, wait := n.Ask(n.q); a != nil || wait != pauses[i] {
			t.Errorf("Ask() while the breaker waits = %v, %s", a, wait)
		}
	}
	for i, p := range pauses {
		limit := retryPause
		if i+1 >= breakAfter {
			limit = breakPause
		}
		if p > limit || p < limit*7/10 {
			t.Errorf("pause after failure %d is %s, want up to %s", i+1, p, limit)
		}
	}
}

// TestForgetEndsCalls: a cluster that is being deleted is not spoken to any more,
// not even by the calls that are on their way.
func TestForgetEndsCalls(t *testing.T) {
	f := newFar(t)
	f.notReached, f.arrived = make(chan struct{}), make(chan struct{}, 10)
	defer close(f.notReached)
	n := newNear(t, f)
	if a, wait := n.Ask(n.q); a != nil || wait != 0 {
		t.Fatal("Ask() did not begin a probe")
	}
	<-f.arrived
	life := n.life
	n.pool.Forget(n.key)
	<-life.Done()
	if n.pool.Of(n.key) == n.Link {
		t.Error("a forgotten child is connected anew")
	}
	// The probe ended: its place is free.
	for range mostProbes {
		leave, err := n.pool.enter(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
}

// TestSlowProbesGiveUpTheirPlace: any number of children that do not answer keep
// nobody waiting.
func TestSlowProbesGiveUpTheirPlace(t *testing.T) {
	pool := NewPool(t.Context(), runtime.NewScheme(), time.Now, rand.Float64)
	for range 3 * mostProbes {
		if _, err := pool.enter(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUse(t *testing.T) {
	n := newNear(t, newFar(t))
	config := func(host, token string) *rest.Config { return &rest.Config{Host: host, BearerToken: token} }
	if err := n.use(config("https://127.0.0.1:1", "one"), "s1"); err != nil {
		t.Fatal(err)
	}
	minted, err := calls(config("https://127.0.0.1:1", "minted"), answer.Addresses{}, free)
	if err != nil {
		t.Fatal(err)
	}
	n.minted, n.expires, n.identity, n.rights = minted, n.clock.Now().Add(time.Hour), "one", map[string]string{"a": "b"}
	if err := n.use(config("https://127.0.0.1:1", "two"), "s2"); err != nil {
		t.Fatal(err)
	}
	if n.caller() != minted || n.identity != "one" {
		t.Error("rotated credentials for the same server replace the parent's own token")
	}
	if err := n.use(config("https://127.0.0.1:2", "two"), "s3"); err != nil {
		t.Fatal(err)
	}
	if n.minted != nil || n.identity != "" || n.rights != nil {
		t.Error("another server may be another cluster: nothing that is known of the old one holds")
	}
	for _, proxy := range []string{"http://127.0.0.1:3", "http://127.0.0.1:4", ""} {
		by := config("https://127.0.0.1:2", "two")
		if proxy != "" {
			u, err := url.Parse(proxy)
			if err != nil {
				t.Fatal(err)
			}
			by.Proxy = http.ProxyURL(u)
		}
		for _, changed := range []bool{true, false} {
			n.minted = minted
			if err := n.use(by, "s4"); err != nil {
				t.Fatal(err)
			}
			if (n.minted == nil) != changed {
				t.Errorf("by proxy %q, changed %t: is the token kept, which goes by the proxy of before: %t", proxy, changed, n.minted != nil)
			}
		}
	}
	n.minted, n.expires = minted, n.clock.Now().Add(time.Minute)
	n.clock.add(time.Minute)
	if n.caller() == minted {
		t.Error("a token is used after its life")
	}
	if _, err := n.cluster(nil); err == nil {
		t.Error("a connection without credentials")
	}
}

func TestCallTimeout(t *testing.T) {
	c, err := calls(&rest.Config{Host: "https://127.0.0.1:1"}, answer.Addresses{}, free)
	if err != nil {
		t.Fatal(err)
	}
	if c.http.Timeout != callTimeout {
		t.Errorf("calls to a child end after %s, want %s", c.http.Timeout, callTimeout)
	}
	if c.passing.open().Proxy != nil {
		t.Error("a proxy of the environment sees what is sent to children")
	}
	if _, err := calls(&rest.Config{Host: "https://a b"}, answer.Addresses{}, free); err == nil {
		t.Error("a host that is none is accepted")
	}
}

// TestLapsedKubeconfig: who has no token of his own goes by the clock, and does not
// wait until the child refuses him.
func TestLapsedKubeconfig(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	first := webToken(fmt.Sprintf(`{"iat":%d,"exp":%d}`, start.Unix(), start.Add(15*time.Minute).Unix()))
	n.token = first
	f.change(func(f *far) { f.account, f.tokens = false, map[string]bool{first: true} })
	n.good(t)
	n.clock.add(time.Minute)
	n.good(t)
	if n.reads != 1 {
		t.Errorf("the kubeconfig was read %d times while its token was good", n.reads)
	}
	n.clock.add(15 * time.Minute)
	n.token = "second"
	f.change(func(f *far) { f.tokens = map[string]bool{"second": true} })
	f.asked()
	n.good(t)
	expect(t, "a token that lapsed", f.asked(), "POST token, GET cascade-heartbeat, GET cascade-leader, GET cascade-report?")

	n.token, n.q.Source = first, "s2"
	n.clock.add(time.Minute)
	a := n.probed(t)
	if want := "they lapsed at " + start.Add(15*time.Minute).UTC().Format(time.RFC3339); a.Err == nil || !strings.Contains(a.Err.Error(), want) {
		t.Errorf("result is %v, want it to say %q", a.Err, want)
	}
}

// free lets all requests pass.
func free() error { return nil }

// TestFenceHoldsInChildren: an agent that lost its lease changes nothing in children
// either, and deletes nothing.
func TestFenceHoldsInChildren(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	n.good(t)
	lost := errors.New("the lease is lost")
	n.pool.Fence = func(child types.NamespacedName) error {
		if child != n.key {
			t.Errorf("the fence of %s is asked", child)
		}
		return lost
	}
	cluster, err := n.cluster(n.minted)
	if err != nil {
		t.Fatal(err)
	}
	plain := plainContent()
	f.asked()
	for _, verb := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		if _, err := n.minted.do(t.Context(), verb, "/api/v1/namespaces/x", []byte("{}"), plain).Raw(); !errors.Is(err, lost) {
			t.Errorf("%s is sent without the lease: %v", verb, err)
		}
	}
	if err := cluster.Reader().Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Delete(t.Context(), "x", metav1.DeleteOptions{}); !errors.Is(err, lost) {
		t.Errorf("what prunes deletes without the lease: %v", err)
	}
	if got := f.asked(); got != "" {
		t.Errorf("the child was asked for %s", got)
	}
	if _, err := n.minted.do(t.Context(), "GET", "/version", nil, plain).Raw(); errors.Is(err, lost) {
		t.Errorf("a read is not sent: %v", err)
	}
	if err := cluster.MayDelete(); !errors.Is(err, lost) {
		t.Errorf("MayDelete() is %v", err)
	}
}

// TestSteady: a server that does not answer is said not to in the same words each
// time, whatever ended the call.
func TestSteady(t *testing.T) {
	const server = "https://child.example.com:6443"
	call := func(path string, err error) error {
		return fmt.Errorf("cannot read: %w", &url.Error{Op: "Get", URL: server + path, Err: err})
	}
	read := func(port int, err error) error {
		return &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port}, Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 6443}, Err: err}
	}
	expired := func(now string) error {
		return x509.CertificateInvalidError{Cert: &x509.Certificate{NotAfter: time.Unix(1e9, 0)}, Reason: x509.Expired, Detail: "current time " + now}
	}
	other := fmt.Errorf("cannot read: %w", &url.Error{Op: "Get", URL: "https://hub.example.com/api", Err: context.DeadlineExceeded})
	for _, c := range []struct {
		reason    string
		a, b      error
		want      string
		untouched bool
	}{
		{reason: "one limit or another", a: call("/readyz", context.DeadlineExceeded), b: call("/apis/leases", read(1, os.ErrDeadlineExceeded)), want: "no answer within 10s"},
		{reason: "one port or another", a: call("/readyz", read(1, syscall.ECONNRESET)), b: call("/readyz", read(2, syscall.ECONNRESET)), want: "connection reset by peer"},
		{reason: "one time or another", a: call("/readyz", expired("one")), b: call("/readyz", expired("two")), want: "to 2001-09-09T01:46:40Z only"},
		{reason: "a response is reported as it is", a: errors.New("forbidden"), b: errors.New("forbidden"), want: "forbidden", untouched: true},
		{reason: "another server's silence is not this one's", a: other, b: other, want: "hub.example.com", untouched: true},
	} {
		a, b := steady(c.a, server), steady(c.b, server)
		if a.Error() != b.Error() || !strings.Contains(a.Error(), c.want) {
			t.Errorf("%s: %q and %q", c.reason, a, b)
		}
		if !errors.Is(a, c.a) || (a == c.a) != c.untouched {
			t.Errorf("%s: it became %#v", c.reason, a)
		}
	}
}

// TestTrust: rights that an earlier process granted count until the child refuses something.
func TestTrust(t *testing.T) {
	n := newNear(t, newFar(t))
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}}}
	digest, err := access.Digest(rules)
	if err != nil {
		t.Fatal(err)
	}
	s := &Session{link: n.Link}
	trusted := func() bool {
		t.Helper()
		if err := s.Trust("role", rules); err != nil {
			t.Fatal(err)
		}
		return n.rights["role"] == digest
	}
	if trusted() {
		t.Error("a parent without a token of its account trusts that it has rights")
	}
	n.good(t)
	if !trusted() {
		t.Error("rights on record do not count")
	}
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "a", errors.New("no"))
	if !s.Repair(refused) || len(n.rights) > 0 {
		t.Errorf("a refusal is not to be repaired: %v", n.rights)
	}
	if trusted() {
		t.Error("rights on record count although the child refused something")
	}
}

// TestTokensOfACloud: where a cloud issues a token for each request, the first calls have
// these, and all others that of the parent's own account.
func TestTokensOfACloud(t *testing.T) {
	f := newFar(t)
	f.tokens["cloud"] = true
	n := newNear(t, f)
	issued := 0
	read := n.q.Read
	n.q.Read = func(ctx context.Context) (*rest.Config, error) {
		config, err := read(ctx)
		config.BearerToken = ""
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				issued++
				r.Header.Set("Authorization", "Bearer cloud")
				return next.RoundTrip(r)
			})
		})
		return config, err
	}
	n.good(t)
	if before := issued; before == 0 || f.minted != 1 {
		t.Errorf("%d tokens of the cloud and %d of the account were used", before, f.minted)
	}
	before := issued
	n.clock.add(time.Minute)
	n.good(t)
	if issued != before {
		t.Errorf("%d calls more had a token of the cloud, though the parent has one of its own", issued-before)
	}
}
