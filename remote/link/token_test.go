package link

import (
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
)

// TestShortToken: whoever gives the parent a token that is over at once, or whose clock goes on by hours between
// two calls, fails his probe and ends nothing else.
func TestShortToken(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		agent  bool
		// renewed: an earlier token is good for a while. short: the next one is not. jump: the
		// clock goes on while the heartbeat is answered.
		renewed, short, jump bool
		want                 string
	}{
		"NoAgent":    {reason: "the first token, with the kubeconfig", short: true, want: "gives it for 1s"},
		"Agent":      {reason: "a token by the one before it", agent: true, renewed: true, short: true, want: "gives it for 1s"},
		"ClockJumps": {reason: "the clock of the parent is set forward", agent: true, renewed: true, jump: true, want: "lapsed between two calls"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFar(t)
			n := newNear(t, f)
			n.q.Agent = tt.agent
			if f.life = 600; tt.renewed {
				n.good(t)
			}
			n.clock.add(401 * time.Second)
			f.change(func(f *far) {
				if tt.short {
					f.life = 1
				}
				if tt.jump {
					f.during = func(request string) {
						if request == "GET "+v1alpha1.HeartbeatLease {
							f.during = nil
							n.clock.add(2 * time.Hour)
						}
					}
				}
			})
			for range 3 {
				a := n.probed(t)
				if reason.Of(a.Err) != v1alpha1.ReasonUnreachable || !strings.Contains(a.Err.Error(), tt.want) {
					t.Errorf("%s: the result is %v", tt.reason, a.Err)
				}
				n.clock.add(45 * time.Second)
				if tt.jump {
					break
				}
			}
			f.change(func(f *far) { f.life = 600 })
			n.good(t)
		})
	}
}

// TestTokenAfterSuspension: the machine was suspended for longer than the token is valid,
// and its monotonic clock stood still meanwhile. The token is not sent any more.
func TestTokenAfterSuspension(t *testing.T) {
	n := newNear(t, newFar(t))
	n.clock.now = time.Now()
	n.good(t)
	if now := n.clock.Now(); !now.Before(n.renewAt) || !now.Before(n.expires) {
		t.Fatalf("the token is to be renewed at %s and expires at %s, it is %s", n.renewAt, n.expires, now)
	}
	// The package time has no way to say so; the check below tells if the layout of a Time
	// is another one by now.
	before, later := n.clock.Now(), n.clock.Now()
	*(*uint64)(unsafe.Pointer(&later)) += uint64(2 * time.Hour / time.Second << 30)
	if later.Sub(before) != 0 || later.Round(0).Sub(before.Round(0)) != 2*time.Hour {
		t.Fatalf("the clocks went on by %s and %s", later.Sub(before), later.Round(0).Sub(before.Round(0)))
	}
	if later.Before(n.renewAt) || later.Before(n.expires) {
		t.Errorf("after two hours of suspension a token of one hour is valid until %s", n.expires)
	}
}
