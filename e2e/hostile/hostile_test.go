package hostile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

const (
	// told is the time in which a fixture is a named reason on its object.
	told = 30 * time.Second
	// waited is how long one is waited for, to say how late it was.
	waited = 2 * time.Minute
	// wave is how many fixtures come at the same moment, and pause how long at most the next
	// ones wait for them. Those before stay, and are tried again.
	wave  = 30
	pause = 12 * time.Second
	// enough is the least number of fixtures.
	enough = 300
	// taken is how many the long form has. All of them at once are more than the bound of
	// memory has room for: docs/security.md.
	taken = 340
)

// TestHostileTenants: hundreds of tenants who mean harm, beside twenty who do not. The
// agent never ends, each of the hostile ones is told why it does not work, the memory of
// the agent and its workers stays within a bound, nothing outside is read or written,
// and the commits of the good ones arrive. How long they take is told, and compared with
// how long they take without the others.
func TestHostileTenants(t *testing.T) {
	scenario.Alongside(t)
	group, programs := confine(t)
	s := startStand(t, programs)
	long := os.Getenv("CASCADE_HOSTILE") != ""
	all := chosen(t, s.outside, !long)
	weight := s.start(t)
	n := s.startNeighbour(t)
	if long {
		giveWay(t) // beside other scenarios, which take all of the machine, they would not answer in time
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	g := s.begin(t, n)
	rounds := 4
	if long && os.Getenv("CASCADE_HOSTILE_QUICK") == "" {
		rounds = 20
	}
	g.commits(ctx, t, "warm", 1)
	weight.since()
	costs := s.watchCost(ctx)
	quiet := g.commits(ctx, t, "quiet", rounds)
	costs.since(t, "quiet")
	quietPeak, _ := weight.since()
	t.Logf("quiet: %s; peak %d MiB", quiet, quietPeak>>20)

	v := follow(ctx, s.client)
	background, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	var waves pace
	go func() { defer close(done); waves = g.commits(background, t, "waves", 0) }()
	worst := int64(0)
	begun := map[string]time.Time{}
	for begin := 0; begin < len(all); begin += wave {
		now := all[begin:min(begin+wave, len(all))]
		s.release(t, v, now, begun)
		peak, parts := weight.since()
		worst = max(worst, peak)
		t.Logf("%d fixtures: peak %d MiB (%s)", begin+len(now), peak>>20, parts)
		if !s.agent.Running() {
			t.Fatalf("the agent has ended after %d fixtures", begin+len(now))
		}
	}
	results := v.results(t, all, begun)
	stop()
	<-done
	costs.since(t, "while fixtures come")
	t.Logf("while fixtures come: %s", waves)
	beside := g.commits(ctx, t, "beside", rounds)
	costs.since(t, "beside all fixtures")
	t.Logf("beside all fixtures: %s", beside)
	again := s.again(t, all, g, rounds)
	costs.since(t, "while all fixtures are tried again")
	peak, parts := weight.since()
	worst = max(worst, peak)
	t.Logf("while all fixtures are tried again: %s; peak %d MiB (%s)", again, peak>>20, parts)
	compare(t, quiet, waves, beside, again)
	summary(t, all, results)
	s.survives(t, group, g, v, worst, weight)
}

// chosen are the fixtures of this run: those whose name begins as CASCADE_HOSTILE_ONLY
// says, if it is set.
func chosen(t *testing.T, o *outside, short bool) []fixture {
	t.Helper()
	only := strings.FieldsFunc(os.Getenv("CASCADE_HOSTILE_ONLY"), func(c rune) bool { return c == ',' })
	all := fixtures(o, short && len(only) == 0, func(class string) bool {
		return len(only) == 0 || slices.ContainsFunc(only, func(begin string) bool { return strings.HasPrefix(begin, class) })
	})
	names := map[string]bool{}
	for _, f := range all {
		if names[f.namespace()] {
			t.Errorf("two fixtures have the name %s", f.namespace())
		}
		names[f.namespace()] = true
	}
	if len(only) > 0 {
		return slices.DeleteFunc(all, func(f fixture) bool {
			return !slices.ContainsFunc(only, func(begin string) bool { return strings.HasPrefix(f.namespace(), begin) })
		})
	}
	if !short && len(all) < enough {
		t.Errorf("there are %d fixtures, %d are wanted", len(all), enough)
	}
	// Waves have some of each class, always the same.
	count := map[string]int{}
	rank := map[string]int{}
	for _, f := range all {
		rank[f.namespace()] = count[f.class]
		count[f.class]++
	}
	slices.SortStableFunc(all, func(a, b fixture) int {
		return cmp.Compare(float64(rank[a.namespace()])/float64(count[a.class]), float64(rank[b.namespace()])/float64(count[b.class]))
	})
	if !short && os.Getenv("CASCADE_HOSTILE") != "all" {
		all = all[:min(taken, len(all))] // some of each class
	}
	return all
}

// result of a fixture.
type result struct {
	verdict
	took time.Duration
}

// release makes some fixtures at the same moment, and waits a while until each has told.
func (s *stand) release(t *testing.T, v *verdicts, now []fixture, begun map[string]time.Time) {
	t.Helper()
	for _, f := range now {
		v.expect(f)
		if err := s.apply(t, f); err != nil {
			t.Errorf("%s: %v", f.namespace(), err)
		}
		begun[f.namespace()] = time.Now()
	}
	ctx, cancel := context.WithTimeout(t.Context(), pause)
	defer cancel()
	for _, f := range now {
		v.await(ctx, f)
	}
}

// results waits until all fixtures have told, or it is too late for them.
func (v *verdicts) results(t *testing.T, all []fixture, begun map[string]time.Time) map[string]result {
	t.Helper()
	results := map[string]result{}
	for _, f := range all {
		name := f.namespace()
		ctx, cancel := context.WithDeadline(t.Context(), begun[name].Add(waited))
		r := result{verdict: v.await(ctx, f)}
		cancel()
		if !r.at.IsZero() {
			r.took = max(r.at.Sub(begun[name]), 0)
		}
		results[name] = r
	}
	return results
}

// await waits until a fixture has told.
func (v *verdicts) await(ctx context.Context, f fixture) verdict {
	for {
		told, changed := v.get(f)
		if !told.at.IsZero() {
			return told
		}
		select {
		case <-ctx.Done():
			return told
		case <-changed:
		}
	}
}

// again asks all fixtures to try again while the good tenants commit.
func (s *stand) again(t *testing.T, all []fixture, g *good, rounds int) pace {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			f := all[n%len(all)]
			if err := s.ask(ctx, f, fmt.Sprint("again-", n)); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	took := g.commits(ctx, t, "again", rounds)
	stop()
	<-done
	return took
}

// compare tells the commits beside the hostile tenants and without them.
func compare(t *testing.T, quiet, waves, beside, again pace) {
	t.Helper()
	for _, p := range []struct {
		when string
		pace
	}{{"while fixtures come", waves}, {"beside all of them", beside}, {"while all are tried again", again}} {
		before, after := quantile(quiet.all, 0.99), quantile(p.all, 0.99)
		t.Logf("%s the p99 of good commits is %s, quiet it is %s: %.1f times, within 2: %t", p.when, after, before, after.Seconds()/max(before.Seconds(), 0.001), after <= 2*before)
	}
}

// summary tells each fixture by its class, and fails for those that did not tell, or
// too late.
func summary(t *testing.T, all []fixture, results map[string]result) {
	t.Helper()
	classes := map[string]int{}
	reasons := map[string]map[string]int{}
	for _, f := range all {
		r := results[f.namespace()]
		classes[f.class]++
		if reasons[f.class] == nil {
			reasons[f.class] = map[string]int{}
		}
		reasons[f.class][r.reason]++
		switch {
		case r.at.IsZero():
			t.Errorf("%s (%s): %s %s does not tell any of %v: ready %t, %s: %.400s", f.namespace(), f.reason, f.kind, object, f.tells, r.ready, r.reason, r.message)
		case r.took > cmp.Or(f.within, told):
			t.Errorf("%s (%s): told %s after %s, which is more than %s: %.300s", f.namespace(), f.reason, r.reason, r.took.Round(time.Millisecond), told, r.message)
		default:
			t.Logf("%s: %s after %s: %.160q", f.namespace(), r.reason, r.took.Round(time.Millisecond), r.message)
		}
	}
	for _, class := range slices.Sorted(maps.Keys(classes)) {
		t.Logf("class %s: %d fixtures, %v", class, classes[class], reasons[class])
	}
	slowest := slices.SortedFunc(slices.Values(all), func(a, b fixture) int {
		return cmp.Compare(results[b.namespace()].took, results[a.namespace()].took)
	})
	for _, f := range slowest[:min(10, len(slowest))] {
		t.Logf("slowest: %s after %s", f.namespace(), results[f.namespace()].took.Round(time.Millisecond))
	}
}

// survives looks at the agent, its memory, and what is outside, when all is over.
func (s *stand) survives(t *testing.T, group *confinement, g *good, v *verdicts, worst int64, weight *memory) {
	t.Helper()
	if !s.agent.Running() || s.agent.PID() != s.pid {
		t.Error("the agent has ended")
	}
	if err := s.agent.Healthy(t.Context()); err != nil {
		t.Errorf("the agent is not well: %v", err)
	}
	g.ready(t)
	for _, what := range g.late {
		t.Errorf("a commit of a good tenant is lost: %s", what)
	}
	for _, what := range v.leaks {
		t.Errorf("a message has what it must not have: %s", what)
	}
	s.outside.untouched(t, s.client)
	weight.stop()
	kills, peak := group.killed()
	t.Logf("agent and workers together: peak %d MiB of %d, the agent alone %d MiB, the sum of resident sets %d MiB, in %d samples; the kernel killed %d processes, peak of the group %s", worst>>20, memoryBound>>20, weight.alone>>20, weight.resident>>20, weight.samples, kills, peak)
	if worst > memoryBound {
		t.Errorf("the agent and its workers came to %d MiB, at most %d are allowed", worst>>20, memoryBound>>20)
	}
	if kills > 0 {
		t.Errorf("the kernel killed %d processes for want of memory", kills)
	}
}
