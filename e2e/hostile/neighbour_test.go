package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// Variables that make this program the neighbour, which runs no test: the folder of the repositories,
// the login of the forge, and the kubeconfig of the tier.
const (
	neighbourRoot       = "CASCADE_NEIGHBOUR_ROOT"
	neighbourUsername   = "CASCADE_NEIGHBOUR_USERNAME"
	neighbourPassword   = "CASCADE_NEIGHBOUR_PASSWORD"
	neighbourKubeconfig = "CASCADE_NEIGHBOUR_KUBECONFIG"
)

// neighbour is the side of the good tenants: their forge, their commits, and the clock that sees
// these arrive. It is a process of its own, with the priority of the agent, while the servers of the
// hostile tenants, which are in the test's process, give way: neither what the agent waits for at the
// forge nor what the clock waits for is a delay that hostile tenants cause.
type neighbour struct {
	// forge is the address of the good tenants' repositories.
	forge string
	// late are commits that did not arrive.
	late []string

	mu       sync.Mutex // one that asks at a time
	requests *json.Encoder
	answers  *json.Decoder
}

// request is what the test asks of the neighbour: to commit in rounds, or without an end if there
// are none, or to stop that.
type request struct {
	When   string
	Rounds int
	Stop   bool
}

// arrivals are the times from a commit to the object, by whether kustomize builds it.
type arrivals struct {
	Plain, Kustomize []time.Duration
	Late             []string
}

// startNeighbour starts it, and waits until the forge serves.
func (s *stand) startNeighbour(t *testing.T) *neighbour {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	username, password := s.Git.Login()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), self)
	cmd.Env = append(os.Environ(), neighbourRoot+"="+filepath.Join(s.run, "git"), neighbourUsername+"="+username, neighbourPassword+"="+password, neighbourKubeconfig+"="+s.plane.Kubeconfig())
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the neighbour: %v", err)
		}
	})
	n := &neighbour{requests: json.NewEncoder(input), answers: json.NewDecoder(output)}
	if err := n.answers.Decode(&n.forge); err != nil {
		t.Fatalf("the neighbour does not start: %v", err)
	}
	return n
}

// commits has the tenants commit, one after the other, in rounds, until there were enough rounds
// or, with none, until the context ends, and returns how long the commits took to arrive.
func (n *neighbour) commits(ctx context.Context, t *testing.T, when string, rounds int) pace {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.requests.Encode(request{When: when, Rounds: rounds}); err != nil {
		t.Errorf("cannot ask the neighbour: %v", err)
		return pace{}
	}
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ctx.Done():
			_ = n.requests.Encode(request{Stop: true}) // if it is gone, there is no answer, which is told
		case <-done:
		}
	}()
	var told arrivals
	err := n.answers.Decode(&told)
	close(done)
	<-stopped
	if err != nil {
		t.Errorf("the neighbour does not answer: %v", err)
	}
	n.late = append(n.late, told.Late...)
	return paceOf(told)
}

// tenants are what the neighbour's process knows of them.
type tenants struct {
	root   string
	client client.WithWatch
	mu     sync.Mutex
	// has is the value of each one's object, changed is closed when one changes.
	has     map[string]string
	changed chan struct{}
	told    arrivals
}

// serveNeighbour is what the neighbour's process does, until its input ends.
func serveNeighbour(root string) error {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	server, err := gitserver.Start(ctx, gitserver.Options{Root: root, Username: os.Getenv(neighbourUsername), Password: os.Getenv(neighbourPassword)})
	if err != nil {
		return err
	}
	defer func() { _ = server.Close() }()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv(neighbourKubeconfig))
	if err != nil {
		return err
	}
	config.QPS = -1
	g := &tenants{root: root, has: map[string]string{}, changed: make(chan struct{})}
	if g.client, err = client.NewWithWatch(config, client.Options{Scheme: clientgoscheme.Scheme}); err != nil {
		return err
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer end()
	work.Go(func() { g.follow(ctx) })
	answers := json.NewEncoder(os.Stdout)
	if err := answers.Encode(server.HTTPAddress()); err != nil {
		return err
	}
	stop := func() {}
	for requests := json.NewDecoder(os.Stdin); ; {
		var r request
		switch err := requests.Decode(&r); {
		case err == io.EOF:
			stop()
			return nil
		case err != nil:
			return fmt.Errorf("cannot read a request of the test: %w", err)
		}
		stop()
		if r.Stop {
			continue
		}
		commits, cancel := context.WithCancel(ctx)
		stop = cancel
		work.Go(func() {
			g.commits(commits, r.When, r.Rounds)
			if err := answers.Encode(g.arrived()); err != nil {
				fmt.Fprintln(os.Stderr, "cannot answer the test:", err)
			}
		})
	}
}

// follow sees the objects of the tenants.
func (g *tenants) follow(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := g.client.Watch(ctx, &corev1.ConfigMapList{}, client.MatchingLabels{"good": "yes"})
		if err != nil {
			continue // the API server refuses none for long
		}
		for e := range w.ResultChan() {
			if o, ok := e.Object.(*corev1.ConfigMap); ok {
				g.mu.Lock()
				g.has[o.Namespace] = o.Data["k"]
				close(g.changed)
				g.changed = make(chan struct{})
				g.mu.Unlock()
			}
		}
	}
}

// wait waits until a tenant's object has a value.
func (g *tenants) wait(ctx context.Context, ns, value string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		g.mu.Lock()
		has, changed := g.has[ns], g.changed
		g.mu.Unlock()
		if has == value {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s has %q, not %q, after %s", ns, has, value, patience)
		case <-changed:
		}
	}
}

// commits of all, by committers.
func (g *tenants) commits(ctx context.Context, when string, rounds int) {
	var all sync.WaitGroup
	for c := range committers {
		all.Go(func() {
			turn := time.NewTicker(commitEach)
			defer turn.Stop()
			for round := 0; rounds == 0 || round < rounds; round++ {
				for i := c; i < goodTenants; i += committers {
					if ctx.Err() != nil {
						return
					}
					g.one(ctx, i, fmt.Sprintf("%s-%d", when, round))
					select {
					case <-turn.C:
					case <-ctx.Done():
					}
				}
			}
		})
	}
	all.Wait()
}

// one commit, and how long it takes from when it is in the repository, whose forge
// tells the agent, to when the object has it.
func (g *tenants) one(ctx context.Context, i int, value string) {
	ns := goodName(i)
	// A git that is killed leaves the repository locked.
	err := commit(context.WithoutCancel(ctx), filepath.Join(g.root, ns+".git"), goodFiles(i, value), next)
	begin := time.Now()
	if err == nil {
		o := stage.Object("source.toolkit.fluxcd.io/v1", "GitRepository")
		o.SetNamespace(ns)
		o.SetName("git")
		err = g.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"reconcile.fluxcd.io/requestedAt":%q}}}`, value)))
	}
	if err == nil {
		err = g.wait(ctx, ns, value)
	}
	if ctx.Err() != nil {
		return // nobody waits for it any more
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.told.Late = append(g.told.Late, err.Error())
	}
	if took := time.Since(begin); i%2 == 1 {
		g.told.Kustomize = append(g.told.Kustomize, took)
	} else {
		g.told.Plain = append(g.told.Plain, took)
	}
}

// arrived are the commits since it was asked last.
func (g *tenants) arrived() arrivals {
	g.mu.Lock()
	defer g.mu.Unlock()
	told := g.told
	g.told = arrivals{}
	return told
}
