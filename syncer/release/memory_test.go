package release

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
)

// TestMemory: together large releases have no more than there is, and no namespace keeps all others out.
func TestMemory(t *testing.T) {
	const unit = 2 * smallMemory
	m := &Memory{most: 8 * unit, of: map[string]int{}}
	shares := map[string]*Share{}
	for _, name := range []string{"evil/1", "evil/2", "good/1", "good/2"} {
		namespace, _, _ := strings.Cut(name, "/")
		shares[name] = m.For(namespace)
	}
	for i, step := range []struct {
		reason, share string
		bytes         int // 0 gives back
		refused       bool
	}{
		{"a namespace may have what it leaves to others", "evil/1", 4 * unit, false},
		{"and no more", "evil/2", unit, true},
		{"what is small is free", "evil/2", smallMemory, false},
		{"others have their part", "good/1", 2 * unit, false},
		{"and leave one, too", "good/2", unit, true},
		{"a smaller one is read in the place of the larger", "evil/1", unit, false},
		{"a larger one needs more", "evil/1", 5 * unit, true},
		{"what has ended leaves its room", "evil/1", 0, false},
		{"for another", "evil/2", 3 * unit, false},
		{"for that alone", "evil/1", unit, true},
		{"all end", "good/1", 0, false},
		{"all end", "evil/2", 0, false},
		{"one that is alone is not refused for good", "good/1", 20 * unit, false},
		{"it is alone then", "evil/1", unit, true},
		{"what is small goes on", "evil/1", smallMemory, false},
		{"all end", "good/1", 0, false},
	} {
		s := shares[step.share]
		if step.bytes == 0 {
			s.GiveBack()
		} else if err := s.Take(step.bytes); errors.Is(err, ErrNoRoom) != step.refused || (err != nil) != step.refused {
			t.Errorf("step %d, %s: Take() = %v, want it refused: %t", i, step.reason, err, step.refused)
		}
	}
	if m.all != 0 || len(m.of) != 0 {
		t.Errorf("in the end %d bytes are taken, by namespace %v", m.all, m.of)
	}
	var none *Memory
	if err := none.For("apps").Take(mostMemory * 2); err != nil {
		t.Errorf("without a bound: %v", err)
	}
	none.For("apps").GiveBack()
}

// TestMemoryBeside: what one reconcile keeps of several things counts together, and one that is alone is not refused for good.
func TestMemoryBeside(t *testing.T) {
	const unit = 2 * smallMemory
	m := &Memory{most: 8 * unit, of: map[string]int{}}
	values := m.For("apps")
	read := values.Beside()
	rendered := read.Beside()
	for _, s := range []*Share{values, read, rendered} {
		if err := s.Take(4 * unit); err != nil {
			t.Fatalf("one that is alone: %v", err)
		}
	}
	other := m.For("infra")
	if err := other.Take(unit); !errors.Is(err, ErrNoRoom) {
		t.Errorf("beside it: %v", err)
	}
	read.GiveBack()
	rendered.GiveBack()
	if err := other.Take(unit); err != nil {
		t.Errorf("once it has less: %v", err)
	}
	if err := rendered.Take(4 * unit); !errors.Is(err, ErrNoRoom) {
		t.Errorf("once it is not alone any more: %v", err)
	}
	other.GiveBack()
	values.GiveBack()
	if m.all != 0 || len(m.of) != 0 || *values.whole != 0 {
		t.Errorf("in the end %d bytes are taken, by namespace %v, and %d by one", m.all, m.of, *values.whole)
	}
}

// TestReadTogether: revisions that are dense have a bound together as well, before they are decoded.
func TestReadTogether(t *testing.T) {
	dense := fmt.Sprintf(`{"name": "web", "version": 1, "info": {"status": "deployed"}, "chart": {"templates": [%s{}]}}`, strings.Repeat("{},", 20_000))
	s, _ := storageWith(t, "deployed", dense)
	m := &Memory{most: 5 * Bytes(len(dense), 40_000), of: map[string]int{}}
	var shares []*Share
	read := func() error {
		s.memory = m.For("apps")
		shares = append(shares, s.memory)
		if _, err := s.read(t.Context(), "apps", "web", 1); err != nil {
			return err
		}
		_, err := s.driver(t.Context(), "apps").Query(map[string]string{"owner": "helm", "name": "web"})
		return err
	}
	for i, refused := range []bool{false, false, true, true} {
		if err := read(); errors.Is(err, ErrNoRoom) != refused || (err != nil) != refused {
			t.Errorf("revision %d: %v, want it refused: %t", i, err, refused)
		}
	}
	shares[0].GiveBack()
	if err := read(); err != nil {
		t.Errorf("once another has ended: %v", err)
	}
}

// crowded is a storage for which there is no room.
type crowded struct{ *fakeWorld }

func (crowded) read(context.Context, string, string, int) (*helmrelease.Release, error) {
	return nil, fmt.Errorf("get: %w", ErrNoRoom)
}

// TestNoRoom: a release that does not fit into memory waits as it is, and nothing counts as a failure.
func TestNoRoom(t *testing.T) {
	obj, m := inSync(t)
	obj.Generation++
	next := wanted
	next.ChartVersion = "2.0.0"
	n := m.newRun(obj, next)
	n.store = crowded{m}
	failures := obj.Status.Failures
	out, err := n.reconcile(t.Context())
	if err != nil || out != (Outcome{Again: true}) || len(m.taken) > 0 {
		t.Fatalf("reconcile() = %+v, %v, and took %v", out, err, m.taken)
	}
	if !conditions.IsTrue(obj, meta.ReadyCondition) || !conditions.IsReconciling(obj) || !strings.Contains(conditions.GetMessage(obj, meta.ReconcilingCondition), "no room") || obj.Status.Failures != failures {
		t.Errorf("it has %v and %d failures", obj.Status.Conditions, obj.Status.Failures)
	}
	if out, err := m.newRun(obj, next).reconcile(t.Context()); err != nil || out != (Outcome{}) || conditions.IsReconciling(obj) {
		t.Errorf("once there is room: %+v, %v: %v", out, err, obj.Status.Conditions)
	}
}

// rendering is Helm with a chart of some size.
type rendering struct {
	*memoryHelm
	text     int
	rendered *int
}

func (r rendering) upgrade(ctx context.Context) error {
	*r.rendered++
	if err := r.run.room(r.text, 0); err != nil {
		return fmt.Errorf("cannot render chart: %w", err)
	}
	return r.memoryHelm.upgrade(ctx)
}

// TestNoRoomToRender: a chart for which there is no room once it is rendered waits as it is, and is rendered again only when
// there is. Nothing counts as a failure.
func TestNoRoomToRender(t *testing.T) {
	obj, m := inSync(t)
	obj.Generation++
	obj.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now", v2.ForceRequestAnnotation: "now"}
	next := wanted
	next.ChartVersion = "2.0.0"
	memory := &Memory{most: 16 << 20, of: map[string]int{}}
	other := memory.For("apps")
	if err := other.Take(6 << 20); err != nil {
		t.Fatal(err)
	}
	n, rendered := m.newRun(obj, next), 0
	n.memory = memory.For("apps")
	n.rendered = n.memory.Beside()
	prepare := n.world.helm
	n.world.helm = func(ctx context.Context, wrote func(*helmrelease.Release)) actor {
		return rendering{prepare(ctx, wrote).(*memoryHelm), 4 << 20, &rendered}
	}
	failures, history := obj.Status.Failures, len(obj.Status.History)
	for range 2 {
		out, err := n.reconcile(t.Context())
		if err != nil || out != (Outcome{Again: true}) || len(m.taken) > 0 || rendered != 1 {
			t.Fatalf("reconcile() = %+v, %v, took %v, and rendered %d times", out, err, m.taken, rendered)
		}
		if !conditions.IsTrue(obj, meta.ReadyCondition) || !strings.Contains(conditions.GetMessage(obj, meta.ReconcilingCondition), "no room") {
			t.Errorf("it has %v", obj.Status.Conditions)
		}
		if obj.Status.Failures != failures || obj.Status.UpgradeFailures > 0 || len(obj.Status.History) != history || obj.Status.LastHandledForceAt != "" {
			t.Errorf("something counts as a failure, or as done: %+v", obj.Status)
		}
		if told := events(n); strings.Contains(told, "Failed") {
			t.Errorf("told is %s", told)
		}
	}
	other.GiveBack()
	if out, err := n.reconcile(t.Context()); err != nil || out != (Outcome{}) || strings.Join(m.taken, " ") != "upgrade" || len(n.needed) > 0 {
		t.Errorf("once there is room: %+v, %v, took %v, and %v is remembered", out, err, m.taken, n.needed)
	}
	n.giveBack()
	if memory.all != 0 {
		t.Errorf("in the end %d bytes are taken", memory.all)
	}
}
