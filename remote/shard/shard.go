// Package shard says which shard of a tier a child is in, and which replica is to have
// which shard.
//
// Invariants:
//
//   - each child is in exactly one shard, by its name alone: every replica says the same;
//   - another number of shards moves only the children that go to a new shard, or that were
//     in one that is gone;
//   - each shard is to be had by exactly one of the live replicas, and two of them differ by
//     one shard at most;
//   - a shard stays with the live replica that has it, unless that has too many.
//
// The package is pure. Replicas may see each other at different moments, so their plans
// may differ: exclusive is a shard by its Lease, not by a plan.
package shard

import (
	"hash/fnv"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Of returns the shard of a child among n, from 0.
func Of(child types.NamespacedName, n int) int {
	key := hashed(child.String())
	best, most := 0, uint64(0)
	for i := range n {
		if score := mixed(key ^ mixed(uint64(i)+1)); i == 0 || score > most {
			best, most = i, score
		}
	}
	return best
}

// Plan returns the replica that is to have each shard. holders has the one that has it
// now, empty if nobody has. replicas are the live ones. Without any, nobody is to have a
// shard.
func Plan(holders, replicas []string) []string {
	plan := make([]string, len(holders))
	replicas = slices.Compact(slices.Sorted(slices.Values(replicas)))
	if len(replicas) == 0 {
		return plan
	}
	load := map[string]int{}
	for i, holder := range holders {
		if slices.Contains(replicas, holder) {
			plan[i] = holder
			load[holder]++
		}
	}
	for i, holder := range plan {
		if holder == "" {
			plan[i] = least(replicas, load, i)
			load[plan[i]]++
		}
	}
	for {
		to := least(replicas, load, 0)
		from := slices.MaxFunc(replicas, func(a, b string) int { return load[a] - load[b] })
		if load[from]-load[to] < 2 {
			return plan
		}
		// It gives away the shard that the other one prefers.
		moved := -1
		for i, holder := range plan {
			if holder == from && (moved < 0 || preference(to, i) > preference(to, moved)) {
				moved = i
			}
		}
		plan[moved] = to
		load[from]--
		load[to]++
	}
}

// least is the replica with the fewest shards, among equals the one that prefers the
// shard most.
func least(replicas []string, load map[string]int, shard int) string {
	return slices.MinFunc(replicas, func(a, b string) int {
		if load[a] != load[b] {
			return load[a] - load[b]
		}
		if preference(a, shard) > preference(b, shard) {
			return -1
		}
		return 1
	})
}

// preference spreads the shards over the replicas.
func preference(replica string, shard int) uint64 {
	return mixed(hashed(replica) ^ mixed(uint64(shard)+1))
}

func hashed(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails
	return mixed(h.Sum64())
}

// mixed is the finalizer of SplitMix64: each bit of x changes half of the bits.
func mixed(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
