package link

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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

// TestProbeThatDoesNotEnd: what does not end with its context, whatever it is, is no reason to
// believe for ever what was known before. There is one probe at a time all the same.
func TestProbeThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := NewPool(t.Context(), runtime.NewScheme(), time.Now, func() float64 { return 0.5 })
		woken := make(chan time.Time, 10)
		pool.OnProbe(func(types.NamespacedName, Turn) { woken <- time.Now() })
		l := pool.Of(types.NamespacedName{Namespace: "fleet", Name: "a"})
		defer pool.Forget(l.key)
		end := make(chan struct{})
		var reads atomic.Int32
		q := Request{Source: "s1", Recorded: "one", Read: func(context.Context) (*rest.Config, error) {
			reads.Add(1)
			<-end
			return nil, errors.New("late")
		}}
		begun := time.Now()
		if a, wait := l.Ask(q); a != nil || wait != 0 {
			t.Fatalf("Ask() = %v, %s, want it to begin a probe", a, wait)
		}
		select {
		case at := <-woken:
			if took := at.Sub(begun); took != probeTimeout+probeGrace {
				t.Errorf("the child is reconciled after %s", took)
			}
		case <-time.After(time.Hour):
			t.Error("the child is not reconciled")
		}
		for range 2 {
			if a, wait := l.Ask(q); a == nil || reason.Of(a.Err) != v1alpha1.ReasonUnreachable || a.Passing || wait != breakPause {
				t.Errorf("Ask() = %+v, %s, want reason %s and a pause", a, wait, v1alpha1.ReasonUnreachable)
			}
		}
		if pool.Broken() != 1 || reads.Load() != 1 {
			t.Errorf("%d children are broken after %d probes, want one and one", pool.Broken(), reads.Load())
		}
		close(end)
		<-woken
		if a, _ := l.Ask(q); a == nil || !strings.Contains(a.Err.Error(), "late") {
			t.Errorf("Ask() = %+v after the probe ended, want its result", a)
		}
		if a, wait := l.Ask(q); a != nil || wait <= 0 {
			t.Errorf("Ask() = %+v, %s, want a pause before the next probe", a, wait)
		}
	})
}

// TestProbesAfterTakeOver: a child that a process before this one lost keeps no place of those that
// answered, and a probe that waits for a place says nothing of its child.
func TestProbesAfterTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := NewPool(t.Context(), runtime.NewScheme(), time.Now, func() float64 { return 0.5 })
		woken := make(chan Turn, 10)
		pool.OnProbe(func(_ types.NamespacedName, turn Turn) { woken <- turn })
		for range mostProbes {
			pool.quick <- struct{}{} // and none is freed
		}
		var reads atomic.Int32
		begin := func(name string, lost bool) *Link {
			l := pool.Of(types.NamespacedName{Namespace: "fleet", Name: name})
			q := Request{Source: "s1", Recorded: name, Lost: lost, Read: func(ctx context.Context) (*rest.Config, error) {
				reads.Add(1)
				<-ctx.Done()
				return nil, ctx.Err()
			}}
			if a, wait := l.Ask(q); a != nil || wait != 0 {
				t.Fatalf("Ask() = %v, %s, want it to begin a probe", a, wait)
			}
			return l
		}
		begin("lost", true)
		synctest.Wait()
		if reads.Load() != 1 || len(pool.slow) != 1 {
			t.Fatalf("%d of a lost child's probes began, with %d places of slow ones", reads.Load(), len(pool.slow))
		}
		l := begin("found", false)
		time.Sleep(2 * (probeTimeout + probeGrace))
		if <-woken; len(woken) != 0 || l.overdue {
			t.Errorf("a probe that waits for a place is over: %d more are woken, overdue %t", len(woken), l.overdue)
		}
		<-pool.quick
		begun := time.Now()
		if <-woken; reads.Load() != 2 || time.Since(begun) != probeTimeout {
			t.Errorf("%d probes began, and the one that waited for a place had %s", reads.Load(), time.Since(begun))
		}
	})
}

// TestBriefProbe: where many others wait, a child is asked who it is and for its heartbeat, with the kubeconfig; all else
// once there is time. Nothing that was learned so is taken for more.
func TestBriefProbe(t *testing.T) {
	f := newFar(t)
	n := newNear(t, f)
	n.q.Brief = true
	a := n.good(t)
	if !a.Brief || a.Identity != n.q.Recorded || a.Version != "" || a.Agent.Report != nil {
		t.Errorf("the result is %+v", a)
	}
	expect(t, "a brief probe", f.asked(), "GET kube-system, GET cascade-heartbeat")
	if heard, _ := n.pool.Heard(n.key); heard.IsZero() {
		t.Error("the child was not heard of")
	}
	n.q.Brief = false
	if a = n.good(t); a.Brief || a.Version == "" || a.Agent.Report == nil {
		t.Errorf("the result is %+v", a)
	}
	if n.minted == nil {
		t.Error("the parent has no token of its own")
	}
	expect(t, "a probe that follows", f.asked(), "GET version, POST token, GET cascade-heartbeat, GET cascade-report")
	n.q.Brief = true
	if a = n.good(t); a.Brief {
		t.Error("what is known is not known any more")
	}

	late := newNear(t, f)
	late.q.Brief = true
	late.Ask(late.q)
	<-late.woken
	f.asked()
	late.q.Brief = false // before the result is looked at
	if a = late.good(t); a.Brief || a.Version == "" {
		t.Errorf("a brief result is taken for more: %+v", a)
	}
	f.asked()

	f.change(func(f *far) { f.uid = "another" })
	other := newNear(t, f)
	other.q.Brief, other.q.Recorded = true, "one"
	if a = other.good(t); a.Identity != "another" {
		t.Errorf("the identity is %s", a.Identity)
	}
	expect(t, "another cluster", f.asked(), "GET kube-system")
}

// TestTurns: who has waited for a replica since another one was lost comes before what is due, and after what
// happened.
func TestTurns(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		q      Request
		err    error
		want   Turn
	}{
		"Due":       {"it is looked at from time to time", Request{}, nil, Due},
		"TakenOver": {"nobody else drives it", Request{Brief: true}, nil, TakenOver},
		"Failed":    {"it does not answer", Request{Brief: true}, errors.New("no answer"), Urgent},
		"Urgent":    {"a person waits for it", Request{Urgent: true}, nil, Urgent},
	} {
		if got := tc.q.turn(tc.err); got != tc.want {
			t.Errorf("%s: %s: turn() = %d, want %d", name, tc.reason, got, tc.want)
		}
	}
}
