package link

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/access"
	"github.com/cascade-gitops/cascade/remote/reason"
)

// begun returns a session with a child that was just probed.
func begun(t *testing.T, f *far) (*near, *Session) {
	t.Helper()
	n := newNear(t, f)
	n.good(t)
	f.asked()
	return n, n.Begin(n.q)
}

// TestSessionIdentifiesOnce: the identity is read once for each set of credentials, and
// nothing is given out to write with before it is.
func TestSessionIdentifiesOnce(t *testing.T) {
	f := newFar(t)
	_, s := begun(t, f)
	for range 3 {
		if _, err := s.Account(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, "three writes of one reconcile", f.asked(), "GET kube-system")
	for range 2 {
		if _, err := s.Administrator(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, "the kubeconfig, which had to be read", f.asked(), "GET kube-system")
}

// TestSessionIdentifiesAgain: whoever reads credentials again may have got those of
// another cluster, in the middle of a push. It checks before the next write (C5).
func TestSessionIdentifiesAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		again  func(n *near, f *far, s *Session)
	}{
		"Administrator": {"the kubeconfig is read for what the account may not do", func(*near, *far, *Session) {}},
		"Revoked": {"the token is refused in the middle of a push", func(_ *near, f *far, s *Session) {
			f.change(func(f *far) { f.tokens = map[string]bool{"admin": true} })
			s.Repair(apierrors.NewUnauthorized("expired"))
		}},
		"Lapsed": {"the token comes to its end in the middle of a push", func(n *near, _ *far, _ *Session) { n.clock.add(2 * time.Hour) }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFar(t)
			n, s := begun(t, f)
			if _, err := s.Account(t.Context()); err != nil {
				t.Fatal(err)
			}
			tc.again(n, f, s)
			f.change(func(f *far) { f.uid = "two" })
			cluster, err := s.Administrator(t.Context())
			var other *IdentityError
			if !errors.As(err, &other) || other.Found != "two" || other.Recorded != "one" || reason.Of(err) != v1alpha1.ReasonIdentityChanged {
				t.Errorf("%s: Administrator() of another cluster is %v, %v", tc.reason, cluster, err)
			}
			if name == "Administrator" {
				return // the account's own connection was checked and is still the old one's
			}
			if cluster, err := s.Account(t.Context()); err == nil {
				t.Errorf("%s: Account() of another cluster is %v", tc.reason, cluster)
			}
		})
	}
}

// TestSessionRepairs: a refusal is worth another try once for each thing that may have
// been taken away.
func TestSessionRepairs(t *testing.T) {
	n, s := begun(t, newFar(t))
	forbidden := apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("layers").GroupResource(), "a", errors.New("no"))
	if s.Repair(forbidden) {
		t.Error("rights that nobody knows of are given up")
	}
	n.rights = map[string]string{"a": "b"}
	if !s.Repair(forbidden) || s.Repair(forbidden) {
		t.Error("rights are granted again once")
	}
	if s.Repair(errors.New("other")) || s.Repair(nil) {
		t.Error("nothing to repair is repaired")
	}
	if !s.Repair(apierrors.NewUnauthorized("expired")) || n.caller() != nil {
		t.Error("a token that is refused is kept")
	}
}

// TestBaseRole: rights that all layers need are written again where a record says that the ones granted
// last are another version's, or the child refuses a hint, whatever the records of other layers say.
func TestBaseRole(t *testing.T) {
	first, second := access.Acting("first", "x"), access.Acting("second", "x")
	for name, tc := range map[string]struct {
		reason string
		change func(t *testing.T, n *near, f *far, s *Session)
		base   bool
	}{
		"Known": {"another layer's record vouches for them", func(*testing.T, *near, *far, *Session) {}, false},
		"Other": {"this layer's record is of other ones", func(_ *testing.T, _ *near, _ *far, s *Session) { s.DistrustBase() }, true},
		"Hint": {"a hint was refused, which any policy of the child may do", func(t *testing.T, n *near, f *far, _ *Session) {
			f.change(func(f *far) { f.refusesHints = true })
			n.TakesHints(true, "one")
			if err := n.pool.Hint(t.Context(), n.key, "[]"); err == nil {
				t.Error("the hint was not refused")
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFar(t)
			n, s := begun(t, f)
			if err := s.Trust("first", first); err != nil {
				t.Fatal(err)
			}
			tc.change(t, n, f, s)
			n.Begin(n.q)
			base := slices.ContainsFunc(n.grants("second", second), func(u *unstructured.Unstructured) bool {
				return u.GetKind() == "ClusterRole" && u.GetName() == access.BaseRole
			})
			if base != tc.base {
				t.Errorf("%s: the base role is written: %t", tc.reason, base)
			}
		})
	}
}

// TestSessionHoldsItsConnection: while a reconcile calls a child, a pause does not make it connect
// again, which costs as much as ten requests: who is short of processor time pauses. The end of the
// session closes the connection.
func TestSessionHoldsItsConnection(t *testing.T) {
	f := newFar(t)
	_, s := begun(t, f)
	read := func() string {
		if err := s.Read(t.Context(), "/api/v1/namespaces/kube-system", &corev1.Namespace{}); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.from
	}
	first := read()
	early := false
	for passing, over := true, time.After(3*idleAfter); passing; {
		select {
		case at := <-f.closed:
			early = early || at == first
		case <-over:
			passing = false
		}
	}
	if second := read(); early || second != first {
		t.Fatal("the session connects again after a pause")
	}
	s.End()
	for at := range f.closed {
		if at == first {
			break
		}
	}
	for name, transport := range map[string]*lazy{"held": s.link.minted.held, "passing": s.link.minted.passing} {
		if transport.transport != nil {
			t.Errorf("%s: its tables stay while the child is at rest", name)
		}
	}
}

// TestRenewedBesideRefused: a token that renews itself goes on, whatever stands in a kubeconfig that
// was changed meanwhile: nobody has tried it.
func TestRenewedBesideRefused(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	n.good(t)
	n.token, n.q.Source = "nobody's", "s2"
	n.clock.add(time.Minute)
	n.good(t)
	n.clock.add(44 * time.Minute)
	n.good(t)
	if f.minted != 2 || n.failures != 0 {
		t.Errorf("%d tokens, %d failures", f.minted, n.failures)
	}
}
