package firstsync

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
)

// elsewhereSuffix ends the keys that say that a Cluster is managed by another tier. Only
// pivots write them, so that no mark of this tier's agent takes their place. The value is
// the pivot's ID.
const elsewhereSuffix = "_elsewhere"

func elsewhereKey(name types.NamespacedName) string { return KeyOf(name) + elsewhereSuffix }

// elsewhereOf reads a key of the record. ok is false if it is none of a pivot.
func elsewhereOf(key string) (name types.NamespacedName, ok bool) {
	of, ok := strings.CutSuffix(key, elsewhereSuffix)
	if !ok {
		return types.NamespacedName{}, false
	}
	return nameOf(of)
}

// ManagedBy is the ID of the pivot by which a Cluster is, or is on its way to be, managed by
// another tier than that of the record; empty if it is not.
func ManagedBy(cm *corev1.ConfigMap, name types.NamespacedName) string {
	return cm.Data[elsewhereKey(name)]
}

// Elsewhere are the Clusters that are managed by another tier than that of a record.
func Elsewhere(cm *corev1.ConfigMap) []types.NamespacedName {
	return slices.Collect(maps.Keys(recordOf(cm).elsewhere))
}

// ManageElsewhere writes into the record of a tier that Clusters are managed by another one:
// they are neither touched nor created. A version of the agent that knows no pivots, to which the
// tier may be taken back, does not create them either, as it reads that they are being moved.
func ManageElsewhere(cm *corev1.ConfigMap, pivot string, names ...types.NamespacedName) {
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	for _, name := range names {
		cm.Data[elsewhereKey(name)], cm.Data[KeyOf(name)] = pivot, string(inventory.LastMoving)
	}
}

// ManageHere writes into the record of a tier that Clusters, which exist, are managed by it.
// While the first sync is not over they count as found complete.
func ManageHere(cm *corev1.ConfigMap, names ...types.NamespacedName) {
	for _, name := range names {
		delete(cm.Data, elsewhereKey(name))
		switch {
		case !recordOf(cm).settled():
			if cm.Data == nil {
				cm.Data = map[string]string{}
			}
			cm.Data[KeyOf(name)] = string(inventory.Adopted)
		default:
			// That it was paused or moved away was before.
			delete(cm.Data, KeyOf(name))
		}
	}
}

// Release takes back what ManageElsewhere wrote for a pivot that came to nothing. The agent notes
// anew how the Clusters are.
func Release(cm *corev1.ConfigMap, pivot string, names ...types.NamespacedName) {
	for _, name := range names {
		if cm.Data[elsewhereKey(name)] == pivot {
			delete(cm.Data, elsewhereKey(name))
			delete(cm.Data, KeyOf(name))
		}
	}
}
