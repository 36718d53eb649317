package lease

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestHeld(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(ago time.Duration) *metav1.MicroTime { m := metav1.NewMicroTime(now.Add(-ago)); return &m }
	for name, tt := range map[string]struct {
		reason string
		spec   coordinationv1.LeaseSpec
		want   bool
	}{
		"Renewed":  {"a moment ago", coordinationv1.LeaseSpec{HolderIdentity: new("a"), LeaseDurationSeconds: new(int32(15)), RenewTime: at(time.Second)}, true},
		"Lapsed":   {"as long ago as it holds", coordinationv1.LeaseSpec{HolderIdentity: new("a"), LeaseDurationSeconds: new(int32(15)), RenewTime: at(15 * time.Second)}, false},
		"Released": {"given back", coordinationv1.LeaseSpec{HolderIdentity: new(""), LeaseDurationSeconds: new(int32(15)), RenewTime: at(0)}, false},
		"Empty":    {"made by hand", coordinationv1.LeaseSpec{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Held(&coordinationv1.Lease{Spec: tt.spec}, now); got != tt.want {
				t.Errorf("%s: Held() = %t", tt.reason, got)
			}
		})
	}
}

// TestOf: a controller that works on a part of the objects has a Lease of its own.
func TestOf(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		lease  string
		want   bool
	}{
		"Plain":   {"it works on all objects", "helm-controller-leader-election", true},
		"Shard":   {"as Flux names it for a selector of labels", "helm-controller-leader-election-0a1b2c3d", true},
		"Second":  {"the last of several controllers", "source-controller-leader-election-0a1b2c3d", true},
		"Other":   {"a controller that nobody asked for", "source-watcher-leader-election", false},
		"Longer":  {"a digest of another length", "helm-controller-leader-election-0a1b2c3d4e", false},
		"NoHex":   {"a word is no digest", "helm-controller-leader-election-shardone", false},
		"Glued":   {"there is a dash between both", "helm-controller-leader-election0a1b2c3d", false},
		"Nothing": {"a dash with nothing after it", "helm-controller-leader-election-", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Of(tt.lease, HelmController, SourceController); got != tt.want {
				t.Errorf("%s: Of() = %t", tt.reason, got)
			}
		})
	}
}
