package remote

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/remote/link"
)

// TestProfilesOfShard: who gains a shard has the profiles of its children compared, and no others.
func TestProfilesOfShard(t *testing.T) {
	d := newDescribed(t, withoutProvider)
	d.children.FirstSeeds = NewFirstSeeds(d.client, "cascade-system")
	key := client.ObjectKeyFromObject(&d.child)
	var looked []types.NamespacedName
	d.children.Connections.OnProbe(func(key types.NamespacedName, _ link.Turn) { looked = append(looked, key) })
	for name, tc := range map[string]struct {
		reason string
		// watched: the tier has ClusterProfiles. ours: the child is in the shard.
		watched, ours bool
		want          int
	}{
		"Gained":   {"another replica may have left it as it was", true, true, 1},
		"Others":   {"another replica drives it", true, false, 0},
		"Unserved": {"all are compared when the kind comes", false, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p, queue := &profiles{}, workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
			defer queue.ShutDown()
			if tc.watched {
				if err := p.onWake(t.Context(), queue); err != nil {
					t.Fatal(err)
				}
			}
			looked = nil
			if err := d.children.gained(t.Context(), p, func(types.NamespacedName) bool { return tc.ours }); err != nil {
				t.Fatal(err)
			}
			if queue.Len() != tc.want || slices.Contains(looked, key) != tc.ours {
				t.Errorf("%s: %d profiles are compared, want %d; looked at are %v", tc.reason, queue.Len(), tc.want, looked)
			}
		})
	}
}
