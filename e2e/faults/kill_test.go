package faults

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascade-gitops/cascade/e2e/proxy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// together is how many agents work, and are killed, at the same time: the start of one
// is mostly waiting.
const together = 3

// TestKill kills the agent before each of the requests with which it could change
// something, and after each of them when the API server has carried it out and the
// agent does not know. Dry runs are among them. What happens between two such requests
// leaves nothing in the cluster, so a kill there is one of these. The agent is started
// again, and everything is as declared within 30 s; nothing was lost, nothing of
// anybody else was touched, and nothing is left behind.
//
// The short form does some kills of each scenario. CASCADE_KILLS=all does all of
// them, with an agent without the race detector, which starts in a tenth of the time.
func TestKill(t *testing.T) {
	scenario.Alongside(t)
	most := kills(t)
	programs := scenario.Programs(t)
	if most == everyRequest {
		programs = programs[1:]
	}
	s := startStand(t, programs)
	s.charts.Add(hookedChart("1.0.0"), hookedChart("1.1.0"))
	var workers []*worker
	for i := range together {
		name := fmt.Sprintf("w%d", i)
		workers = append(workers, s.worker(t, name, "--watch-label-selector=worker="+name, "--first-sync=create",
			"--controllers=GitRepository,HelmRepository,HelmChart,Kustomization,HelmRelease"))
	}
	var table []line
	run := func(workers []*worker, all ...killing) {
		for _, sc := range all {
			t.Run(sc.name, func(t *testing.T) {
				l := sc.run(t, s, workers, most)
				table = append(table, l)
				for _, v := range l.violations {
					t.Error(v)
				}
			})
		}
	}
	run(workers, slices.Concat(kustomizationKills, releaseKills)...)
	scenario.InstallClusterAPI(t, s.client)
	s.fleet = startFleet(t)
	parent := s.worker(t, "parent", "--watch-label-selector=worker=parent", "--first-sync=create", "--controllers=GitRepository,Layer")
	run([]*worker{parent}, slices.Concat(layerKills, rolloutKills)...)
	t.Log("\n" + tableOf(table))
}

// everyRequest is how many kills the long form does.
const everyRequest = 0

// kills is how many there are of each scenario at most.
func kills(t *testing.T) int {
	t.Helper()
	switch text := os.Getenv("CASCADE_KILLS"); text {
	case "":
		return 2
	case "all":
		return everyRequest
	default:
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("CASCADE_KILLS must be all or a number above 0, it is %q", text)
		}
		return n
	}
}

// killing is a scenario in which the agent is killed.
type killing struct {
	name string
	// definitions: it has a kind of its own.
	definitions bool
	// files that the repository begins with, and how the change alters them.
	files, commit map[string]string
	// begin declares what there is before, and begun is an error until it is there.
	begin, begun func(*place, context.Context) error
	// change is what the agent is killed in, and done an error until it is through.
	change, done func(*place, context.Context) error
	// meanwhile is what somebody else does after the kill, while no agent runs: what the
	// agent had begun is not declared any more. through is an error until the change is
	// through without it; nil: done is.
	meanwhile, through func(*place, context.Context) error
	// expect is what must be there then.
	expect func(*place) expectation
	// order returns what happened to the children in an order in which it must not.
	order func(*place) []string
	// below is what must be in the child then, belowGoes what may be deleted there.
	below     map[string]string
	belowGoes []string
}

// line of the table.
type line struct {
	name            string
	requests, kills int
	missed          int
	slowest         time.Duration
	violations      []string
}

func tableOf(lines []line) string {
	var b strings.Builder
	b.WriteString("| scenario | requests | kills | violations | longest until everything is as declared |\n|---|---|---|---|---|\n")
	total := line{name: "all"}
	write := func(l line) {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %.1f s |\n", l.name, l.requests, l.kills, len(l.violations), l.slowest.Seconds())
	}
	for _, l := range lines {
		write(l)
		total.requests += l.requests
		total.kills += l.kills
		total.violations = append(total.violations, l.violations...)
		total.slowest = max(total.slowest, l.slowest)
	}
	write(total)
	return b.String()
}

// point at which the agent is killed.
type point struct {
	at     int
	moment proxy.Moment
}

// points are those of a number of requests, all or some that are spread over them.
func points(requests, most int) []point {
	var all []point
	for i := 1; i <= requests; i++ {
		all = append(all, point{i, proxy.Before}, point{i, proxy.After})
	}
	if most == everyRequest || most >= len(all) {
		return all
	}
	var some []point
	for i := range most {
		some = append(some, all[(2*i+1)*len(all)/(2*most)])
	}
	return some
}

// run does a scenario without a kill, which tells how many requests there are, and then
// with a kill at each point. Requests of other runs differ a little: what was not
// reached is tried again, and every further request that a run has is a point, too.
func (k killing) run(t *testing.T, s *stand, workers []*worker, most int) line {
	t.Helper()
	begin := time.Now()
	template := strings.ToLower(k.name)
	commits, err := s.template(t.Context(), template, k.files, k.commit)
	if err != nil {
		t.Fatal(err)
	}
	l := line{name: k.name}
	first := k.once(t.Context(), workers[0], template, template+"-0", commits, point{})
	if first.err != nil {
		t.Fatal(first.err)
	}
	l.requests, l.violations = first.requests, first.violations
	if l.requests == 0 {
		t.Fatal("the agent wrote nothing")
	}
	work := make(chan point)
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(t.Context())
	for _, w := range workers {
		group.Go(func() error {
			for at := range work {
				o := k.untilReached(ctx, w, template, commits, at)
				mu.Lock()
				l.add(o)
				mu.Unlock()
				if o.err != nil {
					return o.err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(work)
		for _, at := range points(l.requests, most) {
			select {
			case work <- at:
			case <-ctx.Done():
				return nil // why, another tells
			}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if most == everyRequest {
		for more := l.requests + 1; ; more++ {
			o := k.once(t.Context(), workers[0], template, fmt.Sprintf("%s-%d-more", template, more), commits, point{more, proxy.After})
			if o.err != nil {
				t.Fatal(o.err)
			}
			if !o.killed {
				break
			}
			l.add(o)
			l.requests++
		}
	}
	t.Logf("%d requests, %d kills, %d points not reached, longest recovery %s, in %s", l.requests, l.kills, l.missed, l.slowest.Round(time.Millisecond), time.Since(begin).Round(time.Second))
	return l
}

func (l *line) add(o outcome) {
	l.violations = append(l.violations, o.violations...)
	if o.killed {
		l.kills++
		l.slowest = max(l.slowest, o.recovery)
	} else if o.err == nil {
		l.missed++
	}
}

// outcome of one kill.
type outcome struct {
	killed     bool
	requests   int
	recovery   time.Duration
	violations []string
	// err is why nothing can be said.
	err error
}

// untilReached tries a point up to three times.
func (k killing) untilReached(ctx context.Context, w *worker, template string, commits history, at point) outcome {
	var o outcome
	for try := range 3 {
		o = k.once(ctx, w, template, fmt.Sprintf("%s-%d-%s-%d", template, at.at, at.moment, try), commits, at)
		if o.killed || o.err != nil || len(o.violations) > 0 {
			break
		}
	}
	return o
}

// once takes the scenario to its end in a place of its own, with a kill at a point.
func (k killing) once(ctx context.Context, w *worker, template, ns string, commits history, at point) (o outcome) {
	p, err := w.place(ctx, ns, template, commits)
	if err == nil {
		p.definitions = k.definitions
		err = k.prepare(ctx, p)
	}
	if err != nil {
		o.err = fmt.Errorf("%s: cannot begin: %w", ns, err)
		return o
	}
	hooks := proxy.NewKill(at.at, at.moment, func(r *proxy.Request) bool { return r.Writes() && strings.Contains(r.Path, ns) }, w.kill)
	w.proxy.Use(hooks)
	defer w.proxy.Use(nil)
	for _, c := range p.children() {
		c.proxy.Use(below{hooks, ns})
	}
	if err := k.change(p, ctx); err != nil {
		o.err = fmt.Errorf("%s: cannot change: %w", ns, err)
		return o
	}
	if o.err = k.awaitKill(ctx, p, hooks); o.err != nil {
		return o
	}
	if o.killed = hooks.Stop(); o.killed {
		<-hooks.Done()
	}
	o.requests = hooks.Counted()
	w.proxy.Use(nil)
	for _, c := range p.children() {
		c.proxy.Use(nil)
	}
	if k.meanwhile != nil {
		if err := k.meanwhile(p, ctx); err != nil {
			o.err = fmt.Errorf("%s: cannot change meanwhile: %w", ns, err)
			return o
		}
	}
	begin := time.Now()
	if o.killed {
		if o.err = w.start(ctx); o.err != nil {
			return o
		}
	}
	if err := await(ctx, recovery, func(ctx context.Context) error { return k.done(p, ctx) }); err != nil {
		o.violations = append(o.violations, fmt.Sprintf("%s: killed at %+v: %v", ns, hooks.Target(), err))
		return o
	}
	o.recovery = time.Since(begin)
	wrong, err := p.verdict(ctx, k.expect(p))
	if err == nil && p.child != nil {
		var more []string
		more, err = p.child.verdict(ctx, k.below, k.belowGoes)
		for _, v := range more {
			wrong = append(wrong, ns+": "+v)
		}
	}
	if err == nil && k.order != nil {
		wrong = append(wrong, k.order(p)...)
	}
	if err != nil {
		o.err = err
		return o
	}
	for _, v := range wrong {
		o.violations = append(o.violations, fmt.Sprintf("%s; killed at %+v", v, hooks.Target()))
	}
	if len(wrong) == 0 {
		o.err = p.clear(ctx)
	}
	return o
}

// prepare declares what there is before the change, and waits for it.
func (k killing) prepare(ctx context.Context, p *place) error {
	if k.begin != nil {
		if err := k.begin(p, ctx); err != nil {
			return err
		}
	}
	if err := await(ctx, patience, func(ctx context.Context) error { return k.begun(p, ctx) }); err != nil {
		if !p.worker.agent.Running() {
			return fmt.Errorf("the agent ended by itself, see %s: %w", p.worker.agent.Log, err)
		}
		return err
	}
	for _, c := range p.children() {
		if err := c.noted(ctx); err != nil {
			return err
		}
	}
	return p.noted(ctx)
}

// awaitKill returns when the agent was killed, or is through.
func (k killing) awaitKill(ctx context.Context, p *place, hooks *proxy.Kill) error {
	through := k.through
	if through == nil {
		through = k.done
	}
	return await(ctx, patience, func(ctx context.Context) error {
		select {
		case <-hooks.Done():
			return nil
		default:
			return through(p, ctx)
		}
	})
}
