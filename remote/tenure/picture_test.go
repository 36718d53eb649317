package tenure

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var start = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

// lease of a holder that serves n shards; 0 is a version that knows of none, and left the
// label of its predecessor.
func lease(name, holder string, n int) coordinationv1.Lease {
	renewed := metav1.NewMicroTime(start)
	l := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: Labels(max(n, 2), start)}}
	if n == 0 {
		renewed = metav1.NewMicroTime(start.Add(2 * time.Second))
	}
	l.Spec.RenewTime = &renewed
	if holder != "" {
		l.Spec.HolderIdentity = &holder
	}
	return l
}

func TestPlan(t *testing.T) {
	leader := v1alpha1.LeaderLease
	a, b := lease(replicaPrefix+"a", "a", 2), lease(replicaPrefix+"b", "b", 2)
	for name, tc := range map[string]struct {
		reason string
		leases []coordinationv1.Lease
		// later is how long ago the Leases were seen for the first time.
		later       time.Duration
		plan        string
		agreed, led bool
	}{
		"Alone":     {"one replica has all", []coordinationv1.Lease{lease(leader, "a", 2), a}, 0, "a a", true, true},
		"Both":      {"what they have stays", []coordinationv1.Lease{lease(leader, "a", 2), a, b, lease("cascade-shard-0", "b", 2), lease("cascade-shard-1", "a", 2)}, 0, "b a", true, true},
		"Gone":      {"one that did not renew its Lease lost its shards", []coordinationv1.Lease{lease(leader, "a", 2), b}, 16 * time.Second, " ", true, true},
		"NoLeader":  {"it stays as it is", []coordinationv1.Lease{lease(leader, "", 2), a}, 0, "a a", true, false},
		"OldLeader": {"an earlier version drives all children itself", []coordinationv1.Lease{lease(leader, "old", 0), a, b}, 0, " ", false, true},
		"Another":   {"the leader has another number of shards", []coordinationv1.Lease{lease(leader, "c", 3), a, b}, 0, " ", false, true},
		"Stranger":  {"a replica with another number is none", []coordinationv1.Lease{lease(leader, "a", 2), a, lease(replicaPrefix+"c", "c", 3)}, 0, "a a", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			now := start
			p := &picture{now: func() time.Time { return now }, patience: 15 * time.Second, seen: map[string]sighting{}}
			p.plan(tc.leases, leader, 2)
			now = now.Add(tc.later)
			plan, agreed, led := p.plan(tc.leases, leader, 2)
			if got := strings.Join(plan, " "); got != tc.plan || agreed != tc.agreed || led != tc.led {
				t.Errorf("%s: plan() = %q, agreed %t, led %t, want %q, %t, %t", tc.reason, got, agreed, led, tc.plan, tc.agreed, tc.led)
			}
		})
	}
}

// TestLives: a replica lives by our clock, whatever its own says.
func TestLives(t *testing.T) {
	now := start.Add(time.Hour)
	p := &picture{now: func() time.Time { return now }, patience: 15 * time.Second, seen: map[string]sighting{}}
	l := lease(replicaPrefix+"a", "a", 2)
	if !p.lives(&l) {
		t.Error("a replica whose clock is an hour behind is dead")
	}
	now = now.Add(14 * time.Second)
	renewed := metav1.NewMicroTime(start.Add(time.Second))
	l.Spec.RenewTime = &renewed
	p.lives(&l)
	now = now.Add(14 * time.Second)
	if !p.lives(&l) {
		t.Error("a replica that renewed its Lease is dead")
	}
	if now = now.Add(time.Second); p.lives(&l) {
		t.Error("a replica that did not renew its Lease lives")
	}
}

// TestPatience: a replica that renews its Lease as it should lives all the time, whatever
// leader election is set to; one that does not is given up when its shards are free.
func TestPatience(t *testing.T) {
	for name, tc := range map[string]struct {
		reason       string
		lease, retry time.Duration
		gone         time.Duration
	}{
		"Default": {"those of the flags", 15 * time.Second, 2 * time.Second, 11 * time.Second},
		"Half":    {"two renewals in a Lease", 60 * time.Second, 30 * time.Second, 45 * time.Second},
		"Long":    {"one renewal in a Lease", 60 * time.Second, 40 * time.Second, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			now := start
			p := New(Options{Lease: tc.lease, Retry: tc.retry, Now: func() time.Time { return now }, Registry: prometheus.NewRegistry()}).picked
			l := lease(replicaPrefix+"a", "a", 2)
			for since, want := range map[time.Duration]bool{0: true, tc.retry * 11 / 10: true, tc.gone: false} {
				now = start
				delete(p.seen, l.Name)
				p.lives(&l)
				if now = start.Add(since); p.lives(&l) != want {
					t.Errorf("%s: %s after a renewal it lives: %t", tc.reason, since, !want)
				}
			}
		})
	}
}
