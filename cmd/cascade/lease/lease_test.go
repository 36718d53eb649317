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
