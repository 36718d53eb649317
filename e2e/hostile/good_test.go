package hostile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

const (
	// goodTenants is how many there are. Each second one has kustomize build, which takes
	// a worker, as the hostile ones do; the others declare plain manifests.
	goodTenants = 20
	// committers is how many of them commit at the same time, each so often at most: without
	// a pause between two commits they would take all of the machine themselves.
	committers = 2
	commitEach = 500 * time.Millisecond
	// patience is how long a commit is waited for.
	patience = 2 * time.Minute
)

// good are the tenants that mean no harm.
type good struct {
	*stand
	mu sync.Mutex
	// has is the value of each one's object, changed is closed when one changes.
	has     map[string]string
	changed chan struct{}
	// times from a commit to the object, by whether kustomize builds it.
	times map[bool][]time.Duration
	// late are commits that did not arrive.
	late []string
}

func goodName(i int) string { return fmt.Sprintf("good-%02d", i) }

func goodFiles(i int, value string) tree {
	files := tree{"app/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {good: \"yes\"}}\ndata: {k: " + value + "}\n"}
	if i%2 == 1 {
		files["app/kustomization.yaml"] = "namePrefix: x-\nresources: [a.yaml]\n"
	}
	return files
}

// begin makes the good tenants, and waits until each has its object.
func (s *stand) begin(t *testing.T, ctx context.Context) *good {
	t.Helper()
	g := &good{stand: s, has: map[string]string{}, changed: make(chan struct{}), times: map[bool][]time.Duration{}}
	go g.follow(ctx)
	for i := range goodTenants {
		ns := goodName(i)
		if err := s.repository(ctx, ns, goodFiles(i, "begin")); err != nil {
			t.Fatal(err)
		}
		text := s.tenant(ns, "http://"+s.forge+"/"+ns+".git") + "---\n" + strings.ReplaceAll(strings.ReplaceAll(kustomizationOf(""), "$ns", ns), "name: bad", "name: app")
		if err := stage.Apply(ctx, s.client, text); err != nil {
			t.Fatal(err)
		}
	}
	for i := range goodTenants {
		if err := g.wait(ctx, goodName(i), "begin"); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func (g *good) follow(ctx context.Context) {
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
func (g *good) wait(ctx context.Context, ns, value string) error {
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

// commits has the tenants commit, one after the other, in rounds, until there were
// enough rounds or, with none, until the context ends.
func (g *good) commits(ctx context.Context, when string, rounds int) {
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
func (g *good) one(ctx context.Context, i int, value string) {
	ns := goodName(i)
	// A git that is killed leaves the repository locked.
	err := g.commit(context.WithoutCancel(ctx), ns, goodFiles(i, value), next)
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
		g.late = append(g.late, err.Error())
	}
	g.times[i%2 == 1] = append(g.times[i%2 == 1], time.Since(begin))
}

// pace is how long commits took.
type pace struct{ all, plain, kustomize []time.Duration }

// since are the times since it was asked last.
func (g *good) since() pace {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := pace{plain: g.times[false], kustomize: g.times[true]}
	p.all = slices.Concat(p.plain, p.kustomize)
	for _, times := range [][]time.Duration{p.all, p.plain, p.kustomize} {
		slices.Sort(times)
	}
	g.times = map[bool][]time.Duration{}
	return p
}

// quantile of sorted times.
func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	return times[min(len(times)-1, int(q*float64(len(times))))].Round(time.Millisecond)
}

func (p pace) String() string {
	line := func(name string, times []time.Duration) string {
		return fmt.Sprintf("%s: %d commits, median %s, p90 %s, p99 %s, most %s", name, len(times), quantile(times, 0.5), quantile(times, 0.9), quantile(times, 0.99), quantile(times, 1))
	}
	return line("all", p.all) + "; " + line("plain", p.plain) + "; " + line("kustomize", p.kustomize)
}

// ready waits until each good tenant says that all is well.
func (g *good) ready(t *testing.T) {
	t.Helper()
	for i := range goodTenants {
		scenario.Eventually(t, patience, goodName(i)+" is ready", func(ctx context.Context) error {
			u := stage.Object(versions["Kustomization"], "Kustomization")
			if err := g.client.Get(ctx, client.ObjectKey{Namespace: goodName(i), Name: "app"}, u); err != nil {
				return err
			}
			if text := fmt.Sprint(u.Object["status"]); !strings.Contains(text, "ReconciliationSucceeded") {
				return fmt.Errorf("status is %.300s", text)
			}
			return nil
		})
	}
}
