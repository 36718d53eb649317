package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// measured is the number of objects that a tenant has while it is measured.
const measured = 20

// settling lets what the last commit stirred up come to rest.
const settling = 20 * time.Second

// clockTicks per second in /proc (USER_HZ on Linux).
const clockTicks = 100

// measure prints what the agents cost while nothing happens: memory, and CPU
// time per minute. Sources are polled every two seconds here; an interval of a
// minute, as is usual, costs less.
func (d *demo) measure(ctx context.Context, s *stage.Stage, window time.Duration) error {
	production, err := s.MoM.Child(ctx, "production")
	if err != nil {
		return err
	}
	alpha, err := production.Child(ctx, "alpha")
	if err != nil {
		return err
	}
	objects, err := reported(ctx, production)
	if err != nil {
		return err
	}
	if err := grow(ctx, s, measured-objects); err != nil {
		return err
	}
	d.say("waiting until the tenant has %d objects", measured)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for objects != measured {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if objects, err = reported(ctx, production); err != nil {
			return err
		}
	}
	tiers := []struct {
		what string
		tier *stage.Tier
	}{
		{"MoM with 2 masters", s.MoM}, {"master with 2 tenants", production}, {fmt.Sprintf("tenant with %d objects", measured), alpha},
	}
	d.say("measuring for %s", window)
	if err := pause(ctx, settling); err != nil {
		return err
	}
	before := make([]usage, len(tiers))
	for i, t := range tiers {
		if before[i], err = usageOf(t.tier.Agent()); err != nil {
			return fmt.Errorf("cannot measure the agent of the %s: %w", t.what, err)
		}
	}
	if err := pause(ctx, window); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n%-26s %10s %14s %22s\n", "AGENT", "RSS", "ANONYMOUS", "CPU-SECONDS PER MINUTE")
	for i, t := range tiers {
		after, err := usageOf(t.tier.Agent())
		if err != nil {
			return fmt.Errorf("cannot measure the agent of the %s: %w", t.what, err)
		}
		fmt.Fprintf(d.out, "%-26s %7.1f MB %11.1f MB %22.2f\n", t.what, after.rss, after.anonymous, (after.cpu-before[i].cpu)/window.Minutes())
	}
	return nil
}

// reported is the number of objects that the agent of alpha answers for.
func reported(ctx context.Context, production *stage.Tier) (int, error) {
	c, err := production.Client()
	if err != nil {
		return 0, err
	}
	child := &v1alpha1.Child{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: stage.Namespace, Name: "alpha"}, child); err != nil {
		return 0, err
	}
	if child.Status.Report == nil {
		return 0, errors.New("alpha has not reported")
	}
	return int(child.Status.Report.Objects), nil
}

// grow adds objects to what every tenant runs.
func grow(ctx context.Context, s *stage.Stage, n int) error {
	_, err := s.Git.Commit(ctx, "apps", "main", "Add objects", func(dir string) error {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: extra-%d\ndata:\n  n: \"%d\"\n", i, i)
		}
		if err := os.WriteFile(filepath.Join(dir, "hello", "extra.yaml"), []byte(text.String()), 0o644); err != nil {
			return err
		}
		f, err := os.OpenFile(filepath.Join(dir, "hello", "kustomization.yaml"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		if _, err := f.WriteString("  - extra.yaml\n"); err != nil {
			f.Close()
			return err
		}
		return f.Close()
	})
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

type usage struct{ rss, anonymous, cpu float64 }

// usageOf reads megabytes and CPU-seconds of a process.
func usageOf(pid int) (usage, error) {
	if pid == 0 {
		return usage{}, errors.New("it is not running")
	}
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return usage{}, err
	}
	var u usage
	for line := range strings.Lines(string(status)) {
		field, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseFloat(strings.Fields(value + " 0")[0], 64)
		switch field {
		case "VmRSS":
			u.rss = n / 1024
		case "RssAnon":
			u.anonymous = n / 1024
		}
	}
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return usage{}, err
	}
	// After the command in parentheses the state is field 3; utime and stime are
	// fields 14 and 15.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return usage{}, err
		}
		u.cpu += ticks / clockTicks
	}
	return u, nil
}
