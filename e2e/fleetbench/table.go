package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// table has the median of the runs of each step, and what was aimed at.
func table(results []result) string {
	var b strings.Builder
	b.WriteString("| children | dead | step | runs | all | p50 | p99 | agent's CPU | simulation's | hub's | RSS (anonymous) | peak RSS | to children (writes) | to hub (writes) | hub's log | other CPU |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for rest := results; len(rest) > 0; {
		first, n := rest[0], 1
		for n < len(rest) && rest[n].Step == first.Step && rest[n].Dead == first.Dead && rest[n].Children == first.Children {
			n++
		}
		runs := rest[:n]
		rest = rest[n:]
		of := func(f func(result) float64) float64 { return median(runs, f) }
		fmt.Fprintf(&b, "| %d | %d | %s | %d | %.1f s | %.1f s | %.1f s | %.1f s | %.1f s | %.1f s | %.0f (%.0f) MB | %.0f MB | %.0f (%.0f) | %.0f (%.0f) | %.1f MB | %.1f s |\n", first.Children, first.Dead, first.Step, n,
			of(func(r result) float64 { return r.Seconds }), of(func(r result) float64 { return r.P50 }), of(func(r result) float64 { return r.P99 }),
			of(func(r result) float64 { return r.CPU }), of(func(r result) float64 { return r.Sim }), of(func(r result) float64 { return r.Hub }),
			of(func(r result) float64 { return r.RSS }), of(func(r result) float64 { return r.Anon }), of(func(r result) float64 { return r.PeakRSS }),
			of(func(r result) float64 { return float64(r.ToChildren) }), of(func(r result) float64 { return float64(r.ChildWrites) }),
			of(func(r result) float64 { return float64(r.ToHub) }), of(func(r result) float64 { return float64(r.HubWrites) }), of(func(r result) float64 { return r.HubMB }), of(func(r result) float64 { return r.Other }))
	}
	b.WriteString("\n")
	for _, r := range results {
		if r.Step == "rest" {
			fmt.Fprintf(&b, "%d children at rest, %d dead: %.1f requests for each child and hour, %.1f to the hub, %.1f thousandths of a processor\n", r.Children, r.Dead, r.ChildPerHour, r.HubPerHour, r.Milli)
		}
	}
	b.WriteString(rolloutCosts(results))
	var said []int
	for _, r := range results {
		if r.Step != "change" || r.Dead == 0 || slices.Contains(said, r.Dead) {
			continue
		}
		said = append(said, r.Dead)
		ratio := func(step string, f func(result) float64) float64 {
			return median(runsOf(results, r.Children, r.Dead, step), f) / median(runsOf(results, r.Children, 0, step), f)
		}
		fmt.Fprintf(&b, "%d of %d dead, against none: p99 of the healthy %.2f, peak RSS of a change %.2f, RSS at rest after it %.2f\n", r.Dead, r.Children,
			ratio("change", func(r result) float64 { return r.P99 }), ratio("change", func(r result) float64 { return r.PeakRSS }), ratio("rest", func(r result) float64 { return r.RSS }))
	}
	return b.String()
}

// runsOf a step. Of several rests it is the last, which follows changes as those with
// dead children do.
func runsOf(results []result, children, dead int, step string) []result {
	runs := slices.DeleteFunc(slices.Clone(results), func(r result) bool { return r.Children != children || r.Dead != dead || r.Step != step })
	if step == "rest" && len(runs) > 1 {
		runs = runs[len(runs)-1:]
	}
	return runs
}

func median(runs []result, f func(result) float64) float64 {
	if len(runs) == 0 {
		return 0
	}
	values := make([]float64, 0, len(runs))
	for _, r := range runs {
		values = append(values, f(r))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// perChild is what the hub's etcd wrote for each child, in KB.
func (r result) perChild() float64 { return r.HubMB * 1000 / float64(r.Children) }

// writtenByKind is what of that are objects, by resource, the most first.
func (r result) writtenByKind() string {
	resources := slices.SortedFunc(maps.Keys(r.Written), func(a, b string) int { return cmp.Compare(r.Written[b].Bytes, r.Written[a].Bytes) })
	var parts []string
	for _, resource := range resources {
		if w := r.Written[resource]; w.Writes > 0 {
			parts = append(parts, fmt.Sprintf("%s %d times, %.2f KB each, %.2f KB for a child", resource, w.Writes, float64(w.Bytes)/1000/float64(w.Writes), float64(w.Bytes)/1000/float64(r.Children)))
		}
	}
	return strings.Join(parts, "; ")
}

// rolloutCosts tells what runs of a Rollout wrote into the hub's etcd, and how much more that
// is than the same commit without one.
func rolloutCosts(results []result) string {
	var b strings.Builder
	for _, r := range results {
		if r.Step != "rollout" {
			continue
		}
		fmt.Fprintf(&b, "%d children, %d dead, a run over them: %.1f s, hub's log %.2f KB for a child", r.Children, r.Dead, r.Seconds, r.perChild())
		if plain := runsOf(results, r.Children, 0, "change"); len(plain) > 0 {
			without := median(plain, result.perChild)
			fmt.Fprintf(&b, ", %.2f KB more than the same commit without a Rollout (%.2f KB)", r.perChild()-without, without)
		}
		fmt.Fprintf(&b, "; %s\n", r.writtenByKind())
	}
	return b.String()
}
