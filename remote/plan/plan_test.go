package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestDecide(t *testing.T) {
	later, before := now.Add(time.Minute), now.Add(-time.Minute)
	for name, tc := range map[string]struct {
		reason string
		layer  Layer
		want   Action
	}{
		"InPlace":        {"nothing to do before the interval is over", Layer{Wanted: "1", Attempted: "1", Applied: "1", Due: later}, Keep},
		"Due":            {"the interval is over", Layer{Wanted: "1", Attempted: "1", Applied: "1", Due: before}, Compare},
		"Asked":          {"a person wants to know", Layer{Wanted: "1", Attempted: "1", Applied: "1", Due: later, Asked: true}, Compare},
		"New":            {"it was never applied", Layer{Wanted: "1", Due: later}, Send},
		"Changed":        {"a commit changes it", Layer{Wanted: "2", Attempted: "1", Applied: "1", Due: later, Changed: true}, Send},
		"Incomplete":     {"the last push did not end", Layer{Wanted: "2", Attempted: "2", Applied: "1", Due: later}, Send},
		"RevertOfHalf":   {"a commit is reverted of which a part was sent (C7)", Layer{Wanted: "1", Attempted: "2", Applied: "1", Due: later, Changed: true}, Send},
		"Refused":        {"the child refused it a moment ago (C13)", Layer{Wanted: "2", Attempted: "2", Applied: "1", Due: later, RetryAt: later}, Wait},
		"RefusedAndDue":  {"what is refused is not sent again by the interval either", Layer{Wanted: "2", Attempted: "2", Applied: "1", Due: before, RetryAt: later}, Wait},
		"RefusedNew":     {"what was refused has changed: at once", Layer{Wanted: "3", Attempted: "2", Applied: "1", Due: later, RetryAt: later, Changed: true}, Send},
		"RefusedAsked":   {"a person says that it is repaired", Layer{Wanted: "2", Attempted: "2", Applied: "1", Due: later, RetryAt: later, Asked: true}, Compare},
		"RetryNow":       {"the pause is over", Layer{Wanted: "2", Attempted: "2", Applied: "1", Due: later, RetryAt: before}, Send},
		"Spent":          {"the child used up its time, and a comparison can wait", Layer{Wanted: "1", Attempted: "1", Applied: "1", Due: before, Spent: true}, Wait},
		"SpentChanged":   {"what is to be sent waits for the child's next time, and says so", Layer{Wanted: "2", Attempted: "1", Applied: "1", Due: later, Changed: true, Spent: true}, Postpone},
		"SpentRefused":   {"what was refused stands as it is told", Layer{Wanted: "2", Attempted: "2", Applied: "1", RetryAt: later, Spent: true}, Wait},
		"Undecided":      {"deletes wait for a person, who has not said anything", Layer{Wanted: "1", Attempted: "1", Applied: "1", Due: later, Undecided: true}, Keep},
		"PerhapsDecided": {"a person may have approved", Layer{Wanted: "1", Attempted: "1", Applied: "1", Due: later, Undecided: true, Changed: true}, Compare},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Decide(tc.layer, now); got != tc.want {
				t.Errorf("%s: Decide() = %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

// TestNextDue: the layers of one child are compared together, whenever they were made, and
// each of them once in each interval.
func TestNextDue(t *testing.T) {
	const phase = 7*time.Hour + 13*time.Second
	for name, tc := range map[string]struct {
		reason   string
		interval time.Duration
		at       time.Duration
	}{
		"Now":       {"of ten minutes", 10 * time.Minute, 0},
		"Later":     {"made at another time", 10 * time.Minute, 4*time.Minute + 7*time.Second},
		"OnTime":    {"compared at the very moment", 10 * time.Minute, NextDue(now, 10*time.Minute, phase).Sub(now)},
		"Multiples": {"of an hour, which is with those of ten minutes", time.Hour, 0},
		"Short":     {"below anything else", time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			at := now.Add(tc.at)
			next := NextDue(at, tc.interval, phase)
			if wait := next.Sub(at); wait <= 0 || wait > tc.interval {
				t.Errorf("%s: the next comparison is in %s", tc.reason, wait)
			}
			if after := NextDue(next, tc.interval, phase); after.Sub(next) != tc.interval {
				t.Errorf("%s: and the one after that %s later", tc.reason, after.Sub(next))
			}
			if tc.interval%(10*time.Minute) == 0 && NextDue(next.Add(-time.Second), 10*time.Minute, phase) != next {
				t.Errorf("%s: it is not compared together with layers of ten minutes", tc.reason)
			}
		})
	}
}

// TestCommitsDoNotPutOffComparisons: commits that come more often than the interval do not
// keep a layer from being compared with the child (C32).
func TestCommitsDoNotPutOffComparisons(t *testing.T) {
	const interval, commits = 10 * time.Minute, 3 * time.Minute
	layer := Layer{Due: NextDue(now, interval, 0)}
	compared := 0
	for i := range 100 {
		at := now.Add(time.Duration(i) * commits)
		layer.Wanted, layer.Changed = at.String(), true
		if action := Decide(layer, at); action == Compare {
			compared++
			layer.Due = NextDue(at, interval, 0)
		} else if action != Send {
			t.Fatalf("a commit is not sent: %s", action)
		}
		layer.Attempted, layer.Applied = layer.Wanted, layer.Wanted
	}
	if want := int(100 * commits / interval); compared < want-1 || compared > want+1 {
		t.Errorf("compared %d times in 300 minutes with an interval of 10", compared)
	}
}

func TestBackoff(t *testing.T) {
	var got []time.Duration
	for failures := 1; failures <= 7; failures++ {
		got = append(got, Backoff(failures))
	}
	want := []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Backoff(): -want, +got:\n%s", diff)
	}
	if got := Backoff(1 << 30); got != lastRetry {
		t.Errorf("Backoff() of many failures = %s", got)
	}
}

func TestReleased(t *testing.T) {
	layer := func(policy v1alpha1.DeletionPolicy, suspend bool) *v1alpha1.Layer {
		return &v1alpha1.Layer{Spec: v1alpha1.LayerSpec{DeletionPolicy: policy, Suspend: suspend}}
	}
	for name, tc := range map[string]struct {
		reason string
		layer  *v1alpha1.Layer
		want   Release
	}{
		"Unselected":     {"a label changed, and the policy is to delete", layer(v1alpha1.DeletionDelete, false), Remove},
		"UnselectedKept": {"the default", layer(v1alpha1.DeletionOrphan, false), Forget},
		"PolicyInForce":  {"the patch that unselects says Orphan, whatever was on record (C34)", layer(v1alpha1.DeletionOrphan, false), Forget},
		"Suspended":      {"nothing happens to what a suspended layer applied (C33)", layer(v1alpha1.DeletionDelete, true), Hold},
		"Gone":           {"the Layer is gone without having granted anything: a person removed its finalizer (C4)", nil, Forget},
		"NoPolicy":       {"an old Layer says nothing", layer("", false), Forget},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Released(tc.layer); got != tc.want {
				t.Errorf("%s: Released() = %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

func TestClaims(t *testing.T) {
	entry := func(namespace, name string) inventory.Entry {
		return inventory.Entry{Namespace: namespace, Name: name, Kind: "ConfigMap", Version: "v1"}
	}
	layers := []Declared{
		{Layer: "fleet/a", Known: true, Applied: true, Entries: []inventory.Entry{entry("n", "mine")}},
		{Layer: "fleet/b", Known: true, Applied: true, Entries: []inventory.Entry{entry("n", "moved")}},
		{Layer: "fleet/c", Known: true, Entries: []inventory.Entry{entry("n", "waiting"), {Namespace: "n", Name: "role", Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Version: "v1"}}},
	}
	with := func(d Declared) []Declared { return append(layers[:len(layers):len(layers)], d) }
	unknown := with(Declared{Layer: "fleet/d"})
	for name, tc := range map[string]struct {
		reason string
		layers []Declared
		entry  inventory.Entry
		want   apply.Claim
	}{
		"Own":       {"what the layer itself declares is no claim of another one", layers, entry("n", "mine"), apply.Claim{}},
		"Nobody":    {"no layer declares it", layers, entry("n", "gone"), apply.Claim{}},
		"Moved":     {"another layer has it by now (C2)", layers, entry("n", "moved"), apply.Claim{Owner: "Layer/fleet/b", Kind: apply.Recorded}},
		"Waiting":   {"another layer declares it and has not applied it yet", layers, entry("n", "waiting"), apply.Claim{Owner: "Layer/fleet/c", Kind: apply.Declared}},
		"Elsewhere": {"an object of the same name in another namespace", layers, entry("m", "waiting"), apply.Claim{}},
		"Version":   {"the same object by another version", layers, inventory.Entry{Namespace: "n", Name: "moved", Kind: "ConfigMap", Version: "v2"}, apply.Claim{Owner: "Layer/fleet/b", Kind: apply.Recorded}},
		"Scope": {"a layer names a namespace for a kind that has none", layers, inventory.Entry{Name: "role", Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Version: "v1"},
			apply.Claim{Owner: "Layer/fleet/c", Kind: apply.Declared}},
		"Unknown":      {"a layer that cannot be rendered may declare it", unknown, entry("n", "gone"), apply.Claim{Owner: "Layer/fleet/d", Kind: apply.Declared}},
		"Changed":      {"the layer itself has another spec by now", with(Declared{Layer: "fleet/a"}), entry("n", "gone"), apply.Claim{Owner: "Layer/fleet/a", Kind: apply.Declared}},
		"Ahead":        {"the newest revision of the layer itself, which its Rollout holds back, does not build", with(Declared{Layer: "fleet/a", Ahead: true}), entry("n", "gone"), apply.Claim{}},
		"AheadOther":   {"the newest revision of another layer does not build", with(Declared{Layer: "fleet/b", Ahead: true}), entry("n", "gone"), apply.Claim{Owner: "Layer/fleet/b", Kind: apply.Declared}},
		"Unsure":       {"nobody knows whether a layer is for the child", with(Declared{Layer: "fleet/e", Unsure: true}), entry("n", "gone"), apply.Claim{Owner: "Layer/fleet/e", Kind: apply.Declared, Unsure: true}},
		"UnsureMoved":  {"nor is that asked of what another layer has", with(Declared{Layer: "fleet/e", Unsure: true}), entry("n", "moved"), apply.Claim{Owner: "Layer/fleet/b", Kind: apply.Recorded}},
		"UnsureBeside": {"one that is for the child goes before", append(unknown[:len(unknown):len(unknown)], Declared{Layer: "fleet/e", Unsure: true}), entry("n", "gone"), apply.Claim{Owner: "Layer/fleet/d", Kind: apply.Declared}},
		"UnknownMoved": {"what is known goes before what is not", unknown, entry("n", "moved"), apply.Claim{Owner: "Layer/fleet/b", Kind: apply.Recorded}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Claims(tc.layers, "fleet/a")(t.Context(), tc.entry, inventory.Entry{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}
