package link

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestSilentSource: a cloud does not tell when it moves the server of a cluster. It is asked again where
// the child stopped to answer, whether the parent has a token of its own there or not (read 696).
func TestSilentSource(t *testing.T) {
	for name, account := range map[string]bool{"Token": true, "NoToken": false} {
		t.Run(name, func(t *testing.T) {
			before, after := newFar(t), newFar(t)
			before.account, after.account = account, account
			n := newNear(t, before)
			n.good(t)
			n.q.Again = newNear(t, after).q.Read
			before.Close()
			n.clock.add(time.Minute)
			if a := n.probed(t); a.Err == nil {
				t.Fatal("the server that is gone answers")
			}
			n.clock.add(retryPause)
			if a := n.good(t); a.Identity != "one" {
				t.Errorf("the identity is %q", a.Identity)
			}
		})
	}
}

// TestSilentSourceRarely: a child that is gone has the cloud asked once in a while, and one that is back
// needs no cloud.
func TestSilentSourceRarely(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	n.good(t)
	n.failures = 1
	n.q.Again = func(context.Context) (*rest.Config, error) { return nil, errors.New("throttled") }
	n.good(t)

	n.q.Again, n.again = n.q.Read, time.Time{}
	f.Close()
	before := n.reads
	for range 10 { // of which the first probe has no cause to ask
		n.clock.add(breakPause)
		n.probed(t)
	}
	if asked := n.reads - before; asked != 3 {
		t.Errorf("the cloud is asked %d times in %s, want 3", asked, 10*breakPause)
	}
}
