package fleetsim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// clock is set by tests.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func kubeSystem(ctx context.Context, c client.Client) (string, error) {
	ns := &corev1.Namespace{}
	err := c.Get(ctx, client.ObjectKey{Name: "kube-system"}, ns)
	return string(ns.UID), err
}

// TestBlackHole: nothing comes back while it is one, on a connection that is open
// and on a new one, and everything when it ends; the cluster beside answers.
func TestBlackHole(t *testing.T) {
	f := startFleet(t, Options{})
	dead, other := addCluster(t, f, "dead"), addCluster(t, f, "other")
	open, beside := clientOf(t, dead, Certificate), clientOf(t, other, Certificate)
	ctx := t.Context()
	want, err := kubeSystem(ctx, open)
	if err != nil {
		t.Fatal(err)
	}
	dead.SetFaults(Faults{BlackHole: true})
	config := configOf(t, dead, Certificate)
	config.UserAgent = "another"
	config.NextProtos = []string{"http/1.1"}
	fresh, err := client.New(config, client.Options{Scheme: typedScheme, Mapper: open.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan error, 2)
	for _, c := range []client.Client{open, fresh} {
		go func() {
			uid, err := kubeSystem(ctx, c)
			if err == nil && uid != want {
				err = fmt.Errorf("kube-system has UID %s, want %s", uid, want)
			}
			answers <- err
		}()
	}
	for range 20 {
		if _, err := kubeSystem(ctx, beside); err != nil {
			t.Fatalf("the cluster beside: %v", err)
		}
	}
	select {
	case err := <-answers:
		t.Fatalf("an answer out of a black hole: %v", err)
	default:
	}
	dead.SetFaults(Faults{})
	for range 2 {
		if err := <-answers; err != nil {
			t.Errorf("after the black hole: %v", err)
		}
	}
}

// TestBlackHoleLeaves: a client that gives up takes its connection with it.
func TestBlackHoleLeaves(t *testing.T) {
	f := startFleet(t, Options{})
	c := addCluster(t, f, "dead")
	config := configOf(t, c, Certificate)
	c.SetFaults(Faults{BlackHole: true})
	for range 3 {
		dialed, err := net.Dial("tcp", strings.TrimPrefix(f.address, "https://"))
		if err != nil {
			t.Fatal(err)
		}
		if err := dialed.Close(); err != nil {
			t.Fatal(err)
		}
	}
	config.Timeout = 300 * time.Millisecond
	api, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := api.Get(c.URL() + "/readyz"); err == nil {
			t.Fatal("an answer out of a black hole")
		}
		api.CloseIdleConnections()
	}
	within(t, time.Minute, "connections end", func() error {
		if n := c.Connections(); n > 0 {
			return fmt.Errorf("%d connections are open", n)
		}
		return nil
	})
}

// within calls f until it succeeds.
func within(t *testing.T, limit time.Duration, what string, f func() error) {
	t.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-timer.C:
			t.Fatalf("not within %s: %s: %v", limit, what, err)
		case <-tick.C:
		}
	}
}

func TestConnectionFaults(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults Faults
		want   string
		reason string
	}{
		{"Reset", Faults{Reset: true}, "reset by peer", "the server resets"},
		{"WrongCA", Faults{WrongCA: true}, "certificate signed by unknown authority", "a certificate of somebody else"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := startFleet(t, Options{})
			c := addCluster(t, f, "one")
			api, err := rest.HTTPClientFor(configOf(t, c, Certificate))
			if err != nil {
				t.Fatal(err)
			}
			ask := func() error {
				resp, err := api.Get(c.URL() + "/readyz")
				if err != nil {
					return err
				}
				return resp.Body.Close()
			}
			if err := ask(); err != nil {
				t.Fatal(err)
			}
			c.SetFaults(tt.faults)
			// The open connection ends, and the new one has the fault.
			within(t, time.Minute, tt.name, func() error {
				err := ask()
				if err == nil || !strings.Contains(err.Error(), tt.want) && !(tt.name == "Reset" && strings.Contains(err.Error(), "EOF")) {
					return fmt.Errorf("got %v, want %q, because %s", err, tt.want, tt.reason)
				}
				return nil
			})
			c.SetFaults(Faults{})
			within(t, time.Minute, "recovers", ask)
		})
	}
}

// TestThrottle: about the part that is asked for is refused, with the time after
// which to come back.
func TestThrottle(t *testing.T) {
	f := startFleet(t, Options{Seed: 3})
	c := addCluster(t, f, "one")
	config := configOf(t, c, Certificate)
	api, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	c.SetFaults(Faults{Throttle: 0.5, RetryAfter: 7 * time.Second})
	refused := 0
	for range 200 {
		resp, err := api.Get(c.URL() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 429 {
			continue
		}
		refused++
		if got := resp.Header.Get("Retry-After"); got != "7" {
			t.Fatalf("Retry-After is %q", got)
		}
	}
	if refused < 60 || refused > 140 {
		t.Errorf("%d of 200 were refused, want about half", refused)
	}
	if got := c.Counts()["throttled"]; got != refused {
		t.Errorf("%d are counted, want %d", got, refused)
	}
}

// TestCredentials: what is valid when.
func TestCredentials(t *testing.T) {
	now := &clock{now: time.Now()}
	f := startFleet(t, Options{Now: now.Now})
	c := addCluster(t, f, "one")
	other := addCluster(t, f, "other")
	ctx := t.Context()
	refused := func(why string, api client.Client) {
		t.Helper()
		if _, err := kubeSystem(ctx, api); !apierrors.IsUnauthorized(err) {
			t.Errorf("%s: got %v, want Unauthorized", why, err)
		}
	}
	accepted := func(why string, api client.Client) {
		t.Helper()
		if _, err := kubeSystem(ctx, api); err != nil {
			t.Errorf("%s: %v", why, err)
		}
	}
	certificate, token := clientOf(t, c, Certificate), clientOf(t, c, Token)
	accepted("a certificate", certificate)
	accepted("a token", token)

	elsewhere := configOf(t, c, Token)
	elsewhere.Host, elsewhere.ServerName = other.URL(), "other"+domain
	foreign, err := client.New(elsewhere, client.Options{Scheme: typedScheme, Mapper: token.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	refused("a token of another cluster", foreign)

	c.Rotate()
	accepted("the old certificate beside a new one", certificate)
	c.Revoke(false)
	refused("a revoked certificate", certificate)
	refused("a revoked token", token)
	certificate, token = clientOf(t, c, Certificate), clientOf(t, c, Token)
	accepted("the new certificate", certificate)

	now.move(time.Hour + time.Second)
	refused("a token after its life", token)
	accepted("a certificate for longer", certificate)
	c.SetFaults(Faults{Lapse: time.Minute})
	refused("what lapses after a minute", certificate)
	c.SetFaults(Faults{Skew: 400 * 24 * time.Hour})
	refused("a clock that is a year ahead", certificate)
	c.SetFaults(Faults{})
	accepted("nothing of that", certificate)

	before, err := kubeSystem(ctx, certificate)
	if err != nil {
		t.Fatal(err)
	}
	if err := certificate.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}); err != nil {
		t.Fatal(err)
	}
	c.Recreate()
	within(t, time.Minute, "the credential of the old cluster is refused", func() error {
		_, err := kubeSystem(ctx, certificate)
		if !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	again := clientOf(t, c, Certificate)
	after, err := kubeSystem(ctx, again)
	if err != nil || after == before {
		t.Errorf("after the re-creation kube-system has UID %s, before %s: %v", after, before, err)
	}
	if err := again.Get(ctx, client.ObjectKey{Name: "mine"}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
		t.Errorf("the new cluster is not empty: %v", err)
	}
}

// TestServiceAccountToken: a token lives as long as it says, as its account, and
// until it is revoked.
func TestServiceAccountToken(t *testing.T) {
	now := &clock{now: time.Now()}
	f := startFleet(t, Options{Now: now.Now})
	c := addCluster(t, f, "one")
	api := clientOf(t, c, Certificate)
	ctx := t.Context()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "parent"}}
	if err := api.Create(ctx, account); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "parent"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{"kube-system"}, Verbs: []string{"get"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "parent"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "parent"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "parent", Namespace: "default"}},
	}
	issue := func() client.Client {
		t.Helper()
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(600))}}
		if err := api.SubResource("token").Create(ctx, account, request); err != nil {
			t.Fatal(err)
		}
		config := configOf(t, c, Certificate)
		config.CertData, config.KeyData, config.BearerToken = nil, nil, request.Status.Token
		made, err := client.New(config, client.Options{Scheme: typedScheme, Mapper: api.RESTMapper()})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	mine := issue()
	if _, err := kubeSystem(ctx, mine); !apierrors.IsForbidden(err) {
		t.Errorf("without a right: got %v, want Forbidden", err)
	}
	for _, o := range []client.Object{role, binding} {
		if err := api.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := kubeSystem(ctx, mine); err != nil {
		t.Errorf("with a right: %v", err)
	}
	if err := mine.Get(ctx, client.ObjectKey{Name: "default"}, &corev1.Namespace{}); !apierrors.IsForbidden(err) {
		t.Errorf("another name: got %v, want Forbidden", err)
	}
	now.move(601 * time.Second)
	if _, err := kubeSystem(ctx, mine); !apierrors.IsUnauthorized(err) {
		t.Errorf("after its life: got %v, want Unauthorized", err)
	}
	mine = issue()
	c.Revoke(true)
	if _, err := kubeSystem(ctx, mine); !apierrors.IsUnauthorized(err) {
		t.Errorf("revoked: got %v, want Unauthorized", err)
	}
	mine = issue()
	if _, err := kubeSystem(ctx, mine); err != nil {
		t.Errorf("issued anew: %v", err)
	}
	if err := api.Delete(ctx, role); err != nil {
		t.Fatal(err)
	}
	if _, err := kubeSystem(ctx, mine); !apierrors.IsForbidden(err) {
		t.Errorf("its role is gone: got %v, want Forbidden", err)
	}
	if err := api.Delete(ctx, account); err != nil {
		t.Fatal(err)
	}
	if _, err := kubeSystem(ctx, mine); !apierrors.IsUnauthorized(err) {
		t.Errorf("its account is gone: got %v, want Unauthorized", err)
	}
}

func TestPlan(t *testing.T) {
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprint("c", i))
	}
	shares := []Share{{Part: 0.1, Faults: Faults{BlackHole: true}}, {Part: 0.5, Faults: Faults{Latency: time.Second}}}
	plan := Plan(1, names, shares...)
	holes := 0
	for _, f := range plan {
		if f.BlackHole {
			holes++
		}
	}
	if holes != 100 || len(plan) != 600 {
		t.Errorf("%d black holes of %d with faults, want 100 of 600", holes, len(plan))
	}
	slices.Reverse(names)
	if diff := cmp.Diff(plan, Plan(1, names, shares...)); diff != "" {
		t.Errorf("the order of the names changes the plan:\n%s", diff)
	}
	if cmp.Equal(plan, Plan(2, names, shares...)) {
		t.Error("two seeds make the same plan")
	}
	if got := Plan(1, nil, shares...); len(got) != 0 {
		t.Errorf("a plan for nobody: %v", got)
	}
}

// TestLatency: an answer does not come before its time; a client that gives up
// is not kept.
func TestLatency(t *testing.T) {
	f := startFleet(t, Options{})
	c := addCluster(t, f, "slow")
	config := configOf(t, c, Certificate)
	c.SetFaults(Faults{Latency: time.Hour})
	ctx, cancel := context.WithCancelCause(t.Context())
	api, err := client.New(config, client.Options{Scheme: typedScheme, Mapper: clientOf(t, addCluster(t, f, "fast"), Certificate).RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := kubeSystem(ctx, api)
		ended <- err
	}()
	within(t, time.Minute, "the client is connected", func() error {
		if c.Connections() == 0 {
			return errors.New("no connection")
		}
		return nil
	})
	cancel(errors.New("gave up"))
	if err := <-ended; err == nil {
		t.Error("an answer before its time")
	}
	if n := c.Counts()["get namespaces"]; n != 0 {
		t.Errorf("%d requests were served", n)
	}
}

// TestHang: the head of an answer and a part of its body come, the rest never does.
func TestHang(t *testing.T) {
	f := startFleet(t, Options{})
	c := addCluster(t, f, "one")
	config := configOf(t, c, Certificate)
	api, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	c.SetFaults(Faults{Hang: true})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+"/api/v1/namespaces/kube-system", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := api.Do(request)
	if err != nil {
		t.Fatalf("the head of the answer did not come: %v", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if !errors.Is(err, context.DeadlineExceeded) || len(text) == 0 {
		t.Errorf("%d bytes came, and then %v; want a part of the answer and no end", len(text), err)
	}
}

// TestDeadWebhook: reads are answered, writes are refused after the time of the webhook.
func TestDeadWebhook(t *testing.T) {
	f := startFleet(t, Options{})
	c := addCluster(t, f, "one")
	api := clientOf(t, c, Certificate)
	const wait = 300 * time.Millisecond
	c.SetFaults(Faults{DeadWebhook: wait})
	if _, err := kubeSystem(t.Context(), api); err != nil {
		t.Errorf("a read: %v", err)
	}
	began := time.Now()
	err := api.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
	if !apierrors.IsInternalError(err) || time.Since(began) < wait {
		t.Errorf("a write ended after %s with %v, want an internal error after %s", time.Since(began), err, wait)
	}
}
