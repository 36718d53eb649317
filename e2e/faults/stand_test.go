package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/fleetsim"
	"github.com/cascade-gitops/cascade/e2e/origins"
	"github.com/cascade-gitops/cascade/e2e/proxy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// recovery is the time in which everything is as declared: after an agent was started
// again, and after the API server works again.
const recovery = 30 * time.Second

// patience covers what must happen before a test begins.
const patience = 2 * time.Minute

// stand is a control plane without controllers and nodes, and the agents that work on
// it: nothing is written that they or the test do not write.
type stand struct {
	*stage.Stage
	plane  *stage.Tier
	client client.Client
	charts *origins.Charts
	// fleet are simulated children; nil if there are none.
	fleet *fleetsim.Fleet
	// run is the directory of everything.
	run string

	mu sync.Mutex
	// audited is where the audit log ended last.
	audited int64
}

// auditEnd is where the audit log ends.
func (s *stand) auditEnd() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, end, err := s.plane.Audit(s.audited)
	if err == nil {
		s.audited = end
	}
	return end, err
}

// startStand starts one. Agents are those of the first of these directories that has
// the program.
func startStand(t *testing.T, programs []string) *stand {
	t.Helper()
	s := &stand{charts: origins.StartCharts(origins.Login{}), run: scenario.RunDir(t)}
	t.Cleanup(s.charts.Close)
	var err error
	if s.Stage, err = stage.Open(t.Context(), stage.Options{Run: s.run, Bin: programs, Log: t.Logf}); err != nil {
		t.Fatalf("cannot start the stage: %v", err)
	}
	t.Cleanup(func() {
		scenario.NoRaces(t, s.Stage)
		if err := s.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	if s.plane, err = s.Cluster(t.Context(), "plane", "--api-only"); err != nil {
		t.Fatal(err)
	}
	config, err := s.plane.Config()
	if err != nil {
		t.Fatal(err)
	}
	if s.client, err = s.plane.Client(); err != nil {
		t.Fatal(err)
	}
	t.Logf("the API server is %s, its files are in %s", config.Host, s.plane.Dir)
	scenario.InstallKinds(t, s.client, s.Stage)
	return s
}

// worker is an agent behind a proxy.
type worker struct {
	*stand
	name  string
	proxy *proxy.Proxy
	// tier is the control plane as the agent sees it.
	tier  *stage.Tier
	flags []string
	agent *stage.Agent
}

// worker starts one, with these flags.
func (s *stand) worker(t *testing.T, name string, flags ...string) *worker {
	t.Helper()
	w := &worker{stand: s, name: name, flags: flags}
	data, err := os.ReadFile(s.plane.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if w.proxy, err = proxy.Start(data); err != nil {
		t.Fatal(err)
	}
	// The stage ends agents after this; they only lose their API server before.
	t.Cleanup(w.proxy.Close)
	kubeconfig, err := w.proxy.Kubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	if w.tier, err = s.plane.Through(name, kubeconfig); err != nil {
		t.Fatal(err)
	}
	if err := w.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

// kill ends the agent without any notice.
func (w *worker) kill() { w.agent.Kill() }

func (w *worker) start(ctx context.Context) (err error) {
	w.agent, err = w.tier.StartAgent(ctx, w.flags...)
	return err
}

// apply creates or updates the objects of a YAML stream.
func (s *stand) apply(ctx context.Context, text string) error {
	return stage.Apply(ctx, s.client, text)
}

// await asks until there is no error. The last one is returned when the time is over.
func await(ctx context.Context, within time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", within, last)
		case <-tick.C:
		}
	}
}

// history is a repository with two commits, which places begin with and change to.
type history struct{ before, after string }

// template makes a repository that has the commit before as its branch, and the commit
// after beside it.
func (s *stand) template(ctx context.Context, name string, before, after map[string]string) (history, error) {
	h := history{}
	if err := s.Git.Create(ctx, name); err != nil {
		return h, err
	}
	var err error
	if h.before, err = s.Git.Commit(ctx, name, "main", "Begin", func(dir string) error { return scenario.WriteFiles(dir, before) }); err != nil {
		return h, err
	}
	if len(after) == 0 {
		h.after = h.before
		return h, nil
	}
	h.after, err = s.Git.Commit(ctx, name, "next", "Change", func(dir string) error { return scenario.ChangeFiles(dir, after) })
	return h, err
}

func (s *stand) bare(name string) string { return filepath.Join(s.run, "git", name+".git") }

// fork copies a repository. A thousand of them are made, so no process is run.
func (s *stand) fork(from, to string) error {
	if err := os.CopyFS(s.bare(to), os.DirFS(s.bare(from))); err != nil {
		return fmt.Errorf("cannot copy repository %s: %w", from, err)
	}
	return nil
}

// advance moves the branch of a repository, as a push does.
func (s *stand) advance(name, commit string) error {
	file := filepath.Join(s.bare(name), "refs", "heads", "main")
	if err := os.WriteFile(file+".new", []byte(commit+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
