package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func child(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: fmt.Sprint("team-", i%7), Name: fmt.Sprint("cluster-", i)}
}

// TestOf: a child is in one shard, the shards are of about the same size, and one shard
// more moves children to that one only.
func TestOf(t *testing.T) {
	const children = 20_000
	for n := 1; n <= 16; n++ {
		size := make([]int, n)
		for i := range children {
			at, more := Of(child(i), n), Of(child(i), n+1)
			if at < 0 || at >= n {
				t.Fatalf("%s is in shard %d of %d", child(i), at, n)
			}
			if more != at && more != n {
				t.Fatalf("with shard %d, %s moved from %d to %d", n, child(i), at, more)
			}
			size[at]++
		}
		even := children / n
		if least, most := slices.Min(size), slices.Max(size); least < even*85/100 || most > even*115/100 {
			t.Errorf("%d shards of %d children have %v", n, children, size)
		}
	}
}

// TestPlan: whoever comes and goes, each shard has one live replica, the replicas differ by
// one at most, and a shard moves only if its replica is gone or has too many.
func TestPlan(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		holders := make([]string, 1+random.IntN(16))
		var live []string
		for i := range 6 {
			if random.IntN(2) == 0 {
				live = append(live, fmt.Sprint("replica-", i))
			}
		}
		for i := range holders {
			if at := random.IntN(7); at < 6 {
				holders[i] = fmt.Sprint("replica-", at)
			}
		}
		plan := Plan(holders, live)
		check(t, holders, live, plan)
		shuffled := slices.Clone(live)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		if again := Plan(holders, shuffled); !slices.Equal(plan, again) {
			t.Fatalf("replicas that see the same plan otherwise: %v and %v", plan, again)
		}
		if again := Plan(plan, live); !slices.Equal(plan, again) {
			t.Fatalf("a plan that was carried out is changed: %v to %v", plan, again)
		}
	}
}

func check(t *testing.T, holders, live, plan []string) {
	t.Helper()
	before, load := map[string]int{}, map[string]int{}
	for _, replica := range live {
		load[replica] = 0
	}
	for _, holder := range holders {
		before[holder]++
	}
	for i, replica := range plan {
		if len(live) == 0 {
			if replica != "" {
				t.Fatalf("nobody lives, and shard %d is to be had by %s", i, replica)
			}
			continue
		}
		if !slices.Contains(live, replica) {
			t.Fatalf("shard %d is to be had by %q, live are %v", i, replica, live)
		}
		load[replica]++
	}
	least, most := len(plan), 0
	for _, n := range load {
		least, most = min(least, n), max(most, n)
	}
	if len(live) > 0 && most-least > 1 {
		t.Fatalf("the shards are shared out as %v", load)
	}
	for i, holder := range holders {
		if len(live) > 0 && slices.Contains(live, holder) && plan[i] != holder && before[holder] <= len(plan)/len(live) {
			t.Fatalf("shard %d was taken from %s, which has %d of %d with %d replicas", i, holder, before[holder], len(plan), len(live))
		}
	}
}
