package children

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// succession is a child of two management clusters, of which the second was made of a
// copy of the first.
type succession struct {
	old, successor *fleet
	child          *plane
}

// TestSuccessor loses a management cluster, has a copy of its etcd take its children over,
// and brings the old one back.
func TestSuccessor(t *testing.T) {
	scenario.Alongside(t)
	h := startHub(t, "v1beta2", "--observe-interval", observeInterval.String())
	files := map[string]string{}
	for i := range 12 {
		files[fmt.Sprintf("app/%02d.yaml", i)] = noteNamed(fmt.Sprintf("app-%02d", i), "version", "1")
	}
	s := &succession{old: h.fleet(t, "fleet", files), child: h.plane(t, "child")}
	s.old.layer(t, "app", "child", "interval: 1h")
	s.old.declare(t, "child")
	s.old.report(t, "child", initialized)
	s.old.handOver(t, "child", s.child.issue(t).kubeconfig)
	s.old.ready(t, "child", "")
	steps(t,
		step{"CopyTakesOver", s.copied},
		step{"OldOneReturns", s.returns},
		step{"OldOneIsApproved", s.approved},
		step{"SuccessorReturns", s.outlived},
		step{"PausedLeader", s.paused},
	)
}

// version commits another value and returns the commit.
func (s *succession) version(t *testing.T, version string) string {
	t.Helper()
	return s.old.push(t, map[string]string{"app/03.yaml": noteNamed("app-03", "version", version)})
}

// fetch has a management cluster fetch a commit.
func (f *fleet) fetch(t *testing.T, commit string) {
	t.Helper()
	f.request(t, object("source.toolkit.fluxcd.io/v1", "GitRepository", f.name, "fleet"))
	f.fetched(t, commit)
}

// copied: the successor is of the same history, so it asks nobody.
func (s *succession) copied(t *testing.T) {
	s.old.agent.Kill()
	if err := s.old.tier.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := &hub{Stage: s.old.Stage, flags: s.old.flags}
	var err error
	if h.tier, err = s.old.tier.Copy(t.Context(), "copy"); err != nil {
		t.Fatal(err)
	}
	if h.client, err = h.tier.Watcher(); err != nil {
		t.Fatal(err)
	}
	s.successor = &fleet{hub: h, name: s.old.name, version: s.old.version}
	before := s.mark(t)
	h.startAgent(t)
	sha := s.version(t, "2")
	s.successor.fetch(t, sha)
	s.child.has(t, "app-03", "version", "2")
	s.successor.ready(t, "child", sha)
	if after := s.mark(t); after.Number <= before.Number || after.Holder == before.Holder {
		t.Errorf("the record had %+v, it has %+v", before, after)
	}
}

// mark is who wrote the record in the child.
func (s *succession) mark(t *testing.T) v1alpha1.Epoch {
	t.Helper()
	r, err := s.child.record(t.Context(), s.old.name, "app")
	if err != nil {
		t.Fatal(err)
	}
	return v1alpha1.Epoch{Number: r.Parent.Epoch, Holder: r.Parent.Holder}
}

// returns: the old management cluster writes nothing, whatever it is asked, and says who
// has the child. The other one works on meanwhile.
func (s *succession) returns(t *testing.T) {
	from := s.child.now(t)
	if err := s.old.tier.StartControlPlane(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.old.startAgent(t)
	s.superseded(t, s.old, from)
	// It is told of a commit before the other one is.
	sha := s.version(t, "3")
	s.old.fetch(t, sha)
	s.superseded(t, s.old, from)
	s.child.has(t, "app-03", "version", "2")
	before := s.mark(t)
	s.successor.fetch(t, sha)
	s.child.has(t, "app-03", "version", "3")
	s.successor.ready(t, "child", sha)
	s.old.reconciled(t, "child")
	s.old.says(t, "child", v1alpha1.SeededCondition, v1alpha1.ReasonSuperseded, before.Holder)
	if after := s.mark(t); after != before {
		t.Errorf("the record had %+v, it has %+v", before, after)
	}
}

// superseded waits until a management cluster says that the child is another's, and fails
// the test if it wrote to the child since an offset. A request for a token counts as no
// write: it creates nothing that is kept.
func (s *succession) superseded(t *testing.T, f *fleet, from int64) {
	t.Helper()
	by := s.mark(t)
	child := f.says(t, "child", v1alpha1.SeededCondition, v1alpha1.ReasonSuperseded, by.Holder, "cascade approve take-over child -n fleet")
	if got := child.Status.SupersededBy; got == nil || *got != by {
		t.Errorf("it is superseded by %v, the record has %v", got, by)
	}
	f.says(t, "child", v1alpha1.ReadyCondition, v1alpha1.ReasonSuperseded)
	// Neither a request nor time changes that.
	f.reconciled(t, "child")
	f.request(t, layerNamed(f, "app"))
	f.reconciled(t, "child")
	f.says(t, "child", v1alpha1.SeededCondition, v1alpha1.ReasonSuperseded, by.Holder)
	s.child.parentWrote(t, from)
	if after := s.mark(t); after != by {
		t.Errorf("the record had %+v, it has %+v", by, after)
	}
}

// approved: a person says that the old one is to go on, after the successor is gone.
func (s *succession) approved(t *testing.T) {
	s.successor.agent.Kill()
	before := s.mark(t)
	if out, err := s.old.Run(t.Context(), "cascade", "approve", "take-over", "child", "-n", s.old.name, "--kubeconfig", s.old.tier.Kubeconfig()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.old.ready(t, "child", "")
	if child := s.old.child1(t, "child"); child.Status.SupersededBy != nil {
		t.Errorf("it is superseded by %v", child.Status.SupersededBy)
	}
	if after := s.mark(t); after.Number <= before.Number || after.Holder == before.Holder {
		t.Errorf("the record had %+v, it has %+v", before, after)
	}
	sha := s.version(t, "4")
	s.old.fetch(t, sha)
	s.child.has(t, "app-03", "version", "4")
	s.old.ready(t, "child", sha)
}

// outlived: now it is the successor that returns.
func (s *succession) outlived(t *testing.T) {
	from := s.child.now(t)
	s.successor.startAgent(t)
	s.superseded(t, s.successor, from)
	s.successor.agent.Kill()
}

// paused: a leader stops for a while, in which a standby takes over and pushes. When it
// goes on it has lost its lease, and writes nothing.
func (s *succession) paused(t *testing.T) {
	s.old.agent.Kill()
	start := func(name string) *stage.Agent {
		t.Helper()
		a, err := s.old.tier.StartAgentWith(t.Context(), stage.AgentOptions{
			Name: name, Flags: append([]string{"--leader-election-lease-duration=10s", "--leader-election-renew-deadline=6s", "--leader-election-retry-period=1s"}, s.old.flags...),
		})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	leader := start("one")
	s.old.agent = leader
	sha := s.version(t, "5")
	s.old.fetch(t, sha)
	s.child.has(t, "app-03", "version", "5")
	s.old.ready(t, "child", sha)
	before := s.mark(t)
	// It has a commit that it has not pushed when it stops.
	if err := leader.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	sha = s.version(t, "6")
	s.old.agent = start("two")
	s.old.fetch(t, sha)
	s.child.has(t, "app-03", "version", "6")
	s.old.ready(t, "child", sha)
	if after := s.mark(t); after.Number <= before.Number || after.Holder == before.Holder {
		t.Errorf("the record had %+v, it has %+v", before, after)
	}
	from := s.child.now(t)
	if err := leader.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the leader of before ends", func(context.Context) error {
		if leader.Running() {
			return fmt.Errorf("it runs")
		}
		return nil
	})
	s.old.reconciled(t, "child")
	s.child.parentWrote(t, from)
	s.child.has(t, "app-03", "version", "6")
	if !strings.HasSuffix(s.old.ready(t, "child", sha).Status.Layers[0].Revision, sha) {
		t.Errorf("the leader of before overwrote what its successor had recorded")
	}
}
