package link

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
)

// TestUnreadKubeconfig: while this tier's own API server does not hand out a kubeconfig, nothing is
// said of the child, which nobody called; after a while it is told.
func TestUnreadKubeconfig(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	read := n.q.Read
	n.q.Read = func(context.Context) (*rest.Config, error) {
		return nil, reason.Because(v1alpha1.ReasonProgressing, &UnreadError{Err: errors.New("cannot read Secret: the store does not answer")})
	}
	for _, step := range []struct {
		after   time.Duration
		passing bool
	}{{0, true}, {UnreadHolds - time.Second, true}, {2 * time.Second, false}} {
		n.clock.add(step.after)
		n.notBefore = time.Time{}
		a := n.probed(t)
		if reason.Of(a.Err) != v1alpha1.ReasonKubeconfigMissing || a.Passing != step.passing {
			t.Errorf("%s later the probe ends with %v, passing: %v", step.after, a.Err, a.Passing)
		}
		if n.failures != 0 || n.notBefore.IsZero() {
			t.Errorf("%d failures of the child, and the next probe at %s", n.failures, n.notBefore)
		}
	}
	expect(t, "meanwhile", f.asked(), "")
	n.q.Read, n.notBefore = read, time.Time{}
	n.good(t)
	if !n.unread.IsZero() {
		t.Error("the kubeconfig was read and counts as unread")
	}
}
