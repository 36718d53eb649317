package children

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/fleetsim"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

const (
	// simulated is how many children there are, in so many shards.
	simulated = 60
	shards    = 4
	// takeOver is how long the shards of a replica that died may be without one. How fast
	// all their children are pushed to then depends on the machine.
	takeOver = 30 * time.Second
)

// TestShards has replicas that share the children out. One is killed, the leader, and one
// is paused: the others have its shards within 30 seconds, and no object is written twice. The names
// of the replicas are variables of the environment, so that it runs by itself.
func TestShards(t *testing.T) {
	h := openHub(t)
	h.installAll(t, "v1beta2")
	f := h.fleet(t, "shards", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})
	sim := f.simulate(t, simulated)
	f.layer(t, "app", "sim", "interval: 1h")
	a := f.replica(t, "a")
	var b, c *stage.Agent
	steps(t,
		step{"One", func(t *testing.T) {
			sim.await(t, "", scenario.Converge)
			f.shared(t, map[string]int{"a": shards})
		}},
		step{"Two", func(t *testing.T) {
			b = f.replica(t, "b")
			f.shared(t, map[string]int{"a": shards / 2, "b": shards / 2})
			sim.reset()
			sim.await(t, sim.commit(t, "2"), scenario.Converge)
			sim.once(t, 1)
		}},
		step{"Dropped", func(t *testing.T) {
			// The replica that does not lead has some of so many.
			var names []string
			for i := range 3 * shards {
				names = append(names, fmt.Sprint("gone-", i))
				f.declare(t, names[i])
			}
			for _, name := range names {
				scenario.Eventually(t, scenario.Converge, "there is a Child "+name, func(ctx context.Context) error {
					_, err := f.child(ctx, name)
					return err
				})
				f.dropCluster(t, name, false)
			}
			for _, name := range names {
				scenario.Eventually(t, scenario.Converge, "Child "+name+" goes with its Cluster", func(ctx context.Context) error {
					if _, err := f.child(ctx, name); !apierrors.IsNotFound(err) {
						return fmt.Errorf("it is there: %v", err)
					}
					return nil
				})
			}
		}},
		step{"Killed", func(t *testing.T) {
			sim.reset()
			a.Kill()
			third := sim.commit(t, "3")
			f.shared(t, map[string]int{"b": shards})
			sim.await(t, third, scenario.Converge)
			sim.once(t, 1)
		}},
		step{"Paused", func(t *testing.T) {
			c = f.replica(t, "c")
			f.shared(t, map[string]int{"b": shards / 2, "c": shards / 2})
			sim.reset()
			// It stops amid what it does, and goes on after another one did that.
			f.fetched(t, sim.commit(t, "4"))
			if err := syscall.Kill(c.PID(), syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			fifth := sim.commit(t, "5")
			f.shared(t, map[string]int{"b": shards})
			sim.await(t, fifth, scenario.Converge)
			if err := syscall.Kill(c.PID(), syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			f.shared(t, map[string]int{"b": shards / 2, "c": shards / 2})
			sim.once(t, 2)
			sim.reset()
			sim.await(t, sim.commit(t, "6"), scenario.Converge)
			sim.once(t, 1)
		}},
	)
	for name, replica := range map[string]*stage.Agent{"b": b, "c": c} {
		if replica != nil && !replica.Running() {
			t.Errorf("replica %s ended", name)
		}
	}
}

// replica starts an agent that shares the children with others.
func (f *fleet) replica(t *testing.T, name string) *stage.Agent {
	t.Helper()
	t.Setenv("POD_NAME", name)
	agent, err := f.tier.StartAgent(t.Context(), "--enable-leader-election=true", fmt.Sprint("--shards=", shards),
		"--storage-path", filepath.Join(f.tier.Dir, "storage-"+name))
	if err != nil {
		t.Fatal(err)
	}
	f.agent = agent
	return agent
}

// shared waits until the shards have these holders.
func (f *fleet) shared(t *testing.T, want map[string]int) {
	t.Helper()
	scenario.Eventually(t, takeOver, fmt.Sprintf("the shards are shared out as %v", want), func(ctx context.Context) error {
		leases := &coordinationv1.LeaseList{}
		if err := f.client.List(ctx, leases, client.InNamespace(v1alpha1.AgentNamespace)); err != nil {
			return err
		}
		got := map[string]int{}
		for _, l := range leases.Items {
			if strings.HasPrefix(l.Name, "cascade-shard-") && l.Spec.HolderIdentity != nil {
				got[*l.Spec.HolderIdentity]++
			}
		}
		for name, n := range want {
			if got[name] != n {
				return fmt.Errorf("the holders are %v", got)
			}
		}
		return nil
	})
}

// TestSelectors has two agents that share the children out by labels: each child is
// driven by one of them, also when its labels change, and there and back. So is the source
// of its layers fetched.
func TestSelectors(t *testing.T) {
	scenario.Alongside(t)
	h := openHub(t)
	h.installAll(t, "v1beta2")
	f := h.fleet(t, "selectors", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})
	labelled := func(o client.Object, part string) {
		t.Helper()
		f.patch(t, o, map[string]any{"metadata": map[string]any{"labels": map[string]any{"part": part}}})
	}
	sim := f.simulate(t, 4)
	move := func(i int, part string) {
		t.Helper()
		labelled(object("cascade.dev/v1alpha1", "Child", f.name, sim.clusters[i].Name), part)
	}
	for i := range sim.clusters {
		move(i, []string{"one", "two"}[i%2])
	}
	// What all layers are rendered from is the first one's, and so is the layer.
	labelled(object("source.toolkit.fluxcd.io/v1", "GitRepository", f.name, "fleet"), "one")
	f.layer(t, "app", "sim", "interval: 1h")
	labelled(object("cascade.dev/v1alpha1", "Layer", f.name, "app"), "one")
	agents := map[string]*stage.Agent{}
	for _, part := range []string{"one", "two"} {
		var err error
		if agents[part], err = h.tier.StartAgent(t.Context(), "--watch-label-selector=part="+part, "--storage-path", filepath.Join(h.tier.Dir, "storage-"+part)); err != nil {
			t.Fatal(err)
		}
	}
	// Each drives two children, with the conditions Connected, Seeded and Ready.
	split := func(t *testing.T) {
		t.Helper()
		scenario.Eventually(t, scenario.Converge, "each agent drives its children", func(ctx context.Context) error {
			for part, agent := range agents {
				if n, err := agent.Metric(ctx, "cascade_child_condition"); err != nil || n != 6 {
					return fmt.Errorf("agent %s shows %v conditions of children: %v", part, n, err)
				}
			}
			return nil
		})
	}
	steps(t,
		step{"Split", func(t *testing.T) {
			sim.await(t, "", scenario.Converge)
			split(t)
			sim.once(t, 1)
		}},
		step{"Moved", func(t *testing.T) {
			sim.reset()
			move(0, "two")
			move(1, "one")
			sim.await(t, sim.commit(t, "2"), scenario.Converge)
			split(t)
			sim.once(t, 1)
		}},
		step{"MovedBack", func(t *testing.T) {
			sim.reset()
			move(0, "one")
			move(1, "two")
			sim.await(t, sim.commit(t, "3"), scenario.Converge)
			split(t)
			sim.once(t, 1)
		}},
		step{"SourceMoved", func(t *testing.T) {
			sim.reset()
			labelled(object("source.toolkit.fluxcd.io/v1", "GitRepository", f.name, "fleet"), "two")
			sim.await(t, sim.commit(t, "4"), scenario.Converge)
			split(t)
			sim.once(t, 1)
		}},
	)
}

// simulation is the children of a fleet.
type simulation struct {
	*fleet
	clusters []*fleetsim.Cluster
}

// simulate makes so many children by hand, which the cluster label sim selects.
func (f *fleet) simulate(t *testing.T, n int) *simulation {
	t.Helper()
	fleet, err := fleetsim.Start(fleetsim.Options{Record: true, Complain: func(err error) { t.Errorf("inside of the simulation: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fleet.Close(); err != nil {
			t.Errorf("cannot close the fleet: %v", err)
		}
	})
	s := &simulation{fleet: f}
	for i := range n {
		name := fmt.Sprintf("sim-%02d", i)
		c, err := fleet.Add(name)
		if err != nil {
			t.Fatal(err)
		}
		kubeconfig, err := c.Kubeconfig(fleetsim.Certificate, 0)
		if err != nil {
			t.Fatal(err)
		}
		secret := object("v1", "Secret", f.name, name)
		secret.Object["stringData"] = map[string]any{"value": string(kubeconfig)}
		f.apply(t, secret)
		f.define(t, "{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: "+name+", labels: {cluster: sim}}, spec: {kubeConfig: {secretRef: {name: "+name+"}}}}")
		s.clusters = append(s.clusters, c)
	}
	return s
}

func (s *simulation) reset() {
	for _, c := range s.clusters {
		c.Reset()
	}
}

// commit pushes a version of the note and has it fetched.
func (s *simulation) commit(t *testing.T, version string) (sha string) {
	t.Helper()
	return s.fleet.commit(t, map[string]string{"app/note.yaml": noteNamed("note", "version", version)})
}

// once fails the test if a child was sent more versions of the note since reset, or one
// that it had: two replicas sent it.
func (s *simulation) once(t *testing.T, versions int) {
	t.Helper()
	for _, c := range s.clusters {
		sent := 0
		for _, w := range c.Writes() {
			if w.Resource != "configmaps" || w.Name != "note" || w.DryRun {
				continue
			}
			if sent++; !w.Changed || sent > versions {
				t.Errorf("%s was written to once more: %+v", c.Name, w)
			}
		}
		if sent == 0 {
			t.Errorf("%s was sent nothing", c.Name)
		}
	}
}

// await waits until all children are ready at a commit.
func (s *simulation) await(t *testing.T, commit string, within time.Duration) {
	t.Helper()
	begun := time.Now()
	scenario.Eventually(t, within, "all children are ready at commit "+commit, func(ctx context.Context) error {
		list := &v1alpha1.ChildList{}
		if err := s.client.List(ctx, list, client.InNamespace(s.name)); err != nil {
			return err
		}
		ready := 0
		for i := range list.Items {
			status := &list.Items[i].Status
			if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ReadyCondition) && len(status.Layers) == 1 && strings.HasSuffix(status.Layers[0].Revision, commit) {
				ready++
			}
		}
		if ready < len(s.clusters) {
			return fmt.Errorf("%d of %d children are", ready, len(s.clusters))
		}
		return nil
	})
	t.Logf("all children are ready at commit %s after %s", commit, time.Since(begun).Round(100*time.Millisecond))
}
