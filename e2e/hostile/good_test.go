package hostile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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

// good are the tenants that mean no harm. Their forge, their commits and what sees these arrive
// are a process of their own, the neighbour.
type good struct {
	*stand
	*neighbour
}

func goodName(i int) string { return fmt.Sprintf("good-%02d", i) }

func goodFiles(i int, value string) tree {
	files := tree{"app/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {good: \"yes\"}}\ndata: {k: " + value + "}\n"}
	if i%2 == 1 {
		files["app/kustomization.yaml"] = "namePrefix: x-\nresources: [a.yaml]\n"
	}
	return files
}

// begin makes the good tenants.
func (s *stand) begin(t *testing.T, n *neighbour) *good {
	t.Helper()
	for i := range goodTenants {
		ns := goodName(i)
		if err := s.repository(t.Context(), ns, goodFiles(i, "begin")); err != nil {
			t.Fatal(err)
		}
		text := s.tenant(ns, "http://"+n.forge+"/"+ns+".git") + "---\n" + strings.ReplaceAll(strings.ReplaceAll(kustomizationOf(""), "$ns", ns), "name: bad", "name: app")
		if err := stage.Apply(t.Context(), s.client, text); err != nil {
			t.Fatal(err)
		}
	}
	return &good{stand: s, neighbour: n}
}

// pace is how long commits took.
type pace struct{ all, plain, kustomize []time.Duration }

// paceOf are the times that the neighbour tells.
func paceOf(told arrivals) pace {
	p := pace{all: slices.Concat(told.Plain, told.Kustomize), plain: told.Plain, kustomize: told.Kustomize}
	for _, times := range [][]time.Duration{p.all, p.plain, p.kustomize} {
		slices.Sort(times)
	}
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
