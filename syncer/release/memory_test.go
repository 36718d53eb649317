package release

import (
	"errors"
	"fmt"
	"strings"
	"testing"

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

// TestReadTogether: revisions that are dense have a bound together as well, before they are decoded.
func TestReadTogether(t *testing.T) {
	dense := fmt.Sprintf(`{"name": "web", "version": 1, "info": {"status": "deployed"}, "chart": {"templates": [%s{}]}}`, strings.Repeat("{},", 20_000))
	s, _ := storageWith(t, "deployed", dense)
	m := &Memory{most: 5 * Bytes(len(dense), 40_000), of: map[string]int{}}
	var shares []*Share
	read := func() error {
		s.memory = m.For("apps")
		shares = append(shares, s.memory)
		if _, err := s.read("apps", "web", 1); err != nil {
			return err
		}
		_, err := s.driver("apps").Query(map[string]string{"owner": "helm", "name": "web"})
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

func (crowded) read(string, string, int) (*helmrelease.Release, error) {
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
