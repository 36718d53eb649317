package firstsync

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// Keys of the record besides those of Clusters.
const (
	stateKey = "state"
	whyKey   = "why"
	// sinceKey says since when a tier is settled.
	sinceKey = "since"
)

// KeyOf is the key of a Cluster in the record. Names have no underscore.
func KeyOf(name types.NamespacedName) string { return name.Namespace + "_" + name.Name }

func nameOf(key string) (types.NamespacedName, bool) {
	namespace, name, ok := strings.Cut(key, "_")
	return types.NamespacedName{Namespace: namespace, Name: name}, ok && namespace != "" && name != ""
}

// record is what the ConfigMap says.
type record struct {
	// state, why and since are as they are written. A state that nobody knows holds.
	state, why, since string
	clusters          map[types.NamespacedName]inventory.Standing
	// elsewhere are the Clusters that another tier manages, with the pivot's ID.
	elsewhere map[types.NamespacedName]string
}

func (r record) settled() bool { return r.state == v1alpha1.FirstSyncSettled }

// recordOf reads the ConfigMap. A value of a Cluster that is not known is left out:
// then the Cluster is held if in doubt.
func recordOf(cm *corev1.ConfigMap) record {
	clusters, elsewhere := map[types.NamespacedName]inventory.Standing{}, map[types.NamespacedName]string{}
	for key, value := range cm.Data {
		if name, ok := elsewhereOf(key); ok {
			elsewhere[name] = value
			continue
		}
		name, ok := nameOf(key)
		if !ok {
			continue
		}
		switch standing := inventory.Standing(value); standing {
		case inventory.Approved, inventory.Adopted, inventory.LastPaused, inventory.LastMoving:
			clusters[name] = standing
		}
	}
	return record{state: cm.Data[stateKey], why: cm.Data[whyKey], since: cm.Data[sinceKey], clusters: clusters, elsewhere: elsewhere}
}

// standings of all Clusters that something is on record about.
func (r record) standings() map[types.NamespacedName]inventory.Standing {
	out := maps.Clone(r.clusters)
	for name := range r.elsewhere {
		out[name] = inventory.ManagedElsewhere
	}
	return out
}

// configMap is the record as it is written where there is none.
func (r record) configMap(namespace string) *corev1.ConfigMap {
	data := map[string]string{stateKey: r.state, whyKey: r.why}
	if r.since != "" {
		data[sinceKey] = r.since
	}
	for name, standing := range r.clusters {
		data[KeyOf(name)] = string(standing)
	}
	for name, pivot := range r.elsewhere {
		data[elsewhereKey(name)] = pivot
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: v1alpha1.FirstSyncConfigMap, Labels: map[string]string{"app.kubernetes.io/name": v1alpha1.AgentName},
		},
		Data: data,
	}
}

// whyApproved is what a record says that a person's approval made.
const whyApproved = "a person approved Clusters that are pushed here"

// NewRecord is the first record of a tier of which nothing is known, for a person's approval.
func NewRecord(namespace string) *corev1.ConfigMap {
	return record{state: v1alpha1.FirstSyncOpen, why: whyApproved}.configMap(namespace)
}

// OnlyApproved reports whether a record has nothing but a person's approvals: it was made for these, and neither an agent nor
// a pivot wrote into it. Another one may be beside it that an agent keeps.
func OnlyApproved(cm *corev1.ConfigMap) bool {
	r := recordOf(cm)
	for _, standing := range r.standings() {
		if standing != inventory.Approved {
			return false
		}
	}
	return r.state == v1alpha1.FirstSyncOpen && r.why == whyApproved
}

// SettledRecord is the first record of a tier that never had a Cluster.
func SettledRecord(namespace, why string, now time.Time) *corev1.ConfigMap {
	return record{state: v1alpha1.FirstSyncSettled, why: why, since: now.UTC().Format(time.RFC3339)}.configMap(namespace)
}

// SettledSince reads from a record since when its tier is settled. ok is false if it is
// not, or not known since when.
func SettledSince(cm *corev1.ConfigMap) (since time.Time, ok bool) {
	r := recordOf(cm)
	since, err := time.Parse(time.RFC3339, r.since)
	return since, err == nil && r.settled()
}

// ApprovalPatch is a merge patch that approves the creation of Clusters. by is who approves,
// nil if that is not known: then whoever was noted before is no longer. Of a Cluster that
// another tier manages it says that this is over.
func ApprovalPatch(names []types.NamespacedName, by *string) ([]byte, error) {
	data := map[string]*string{}
	for _, name := range names {
		data[KeyOf(name)] = new(string(inventory.Approved))
		data[elsewhereKey(name)] = nil
	}
	return encoded(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{v1alpha1.ApprovedByAnnotation: by}}, "data": data})
}

// SettlementPatch is a merge patch that ends the first sync of a tier with the given
// record. It removes the values that only the first sync needs.
func SettlementPatch(cm *corev1.ConfigMap, why string, now time.Time) ([]byte, error) {
	data := map[string]*string{stateKey: new(v1alpha1.FirstSyncSettled), whyKey: &why, sinceKey: new(now.UTC().Format(time.RFC3339))}
	for key, value := range cm.Data {
		if _, elsewhere := elsewhereOf(key); elsewhere {
			continue
		}
		if _, ok := nameOf(key); ok && (value == string(inventory.Approved) || value == string(inventory.Adopted)) {
			data[key] = nil
		}
	}
	return patchOf(data)
}

func patchOf(data map[string]*string) ([]byte, error) { return encoded(map[string]any{"data": data}) }

func encoded(fields map[string]any) ([]byte, error) {
	patch, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("cannot encode patch: %w", err)
	}
	return patch, nil
}

// markOf is the standing that a Cluster gets when it is deleted in its present state.
func markOf(u *unstructured.Unstructured) inventory.Standing {
	if clusterapi.IsMoved(u) {
		return inventory.LastMoving
	}
	if u.GetAnnotations()[v1alpha1.DeletionAnnotation] == v1alpha1.DeletionConfirmed {
		return "" // when it goes, that is what a person wanted
	}
	if clusterapi.IsPaused(u) {
		return inventory.LastPaused
	}
	return ""
}

// noted is the standing to record, in a settled tier, for a Cluster that exists or was
// last seen with a mark. change is false if the record has it already.
func noted(is, mark inventory.Standing, gone bool) (want inventory.Standing, change bool) {
	if is == inventory.ManagedElsewhere {
		return is, false // a pivot's record, whatever becomes of what it left here
	}
	if gone && mark == "" && is == inventory.Approved {
		return is, false // it may come back; that is what was approved
	}
	return mark, is != mark
}

// Restored is the record of a tier whose saved state is restored. The state was saved at
// some time, and the tier went on: it is open again, so that a Cluster that was made since
// is not built a second time; it settles by itself when everything that Git declares is
// there. A person's hold stays. So does what is known of Clusters that were moved away, or that
// another tier manages, but for those that are here; an approval does not, which could be one
// that was used since.
func Restored(namespace string, saved *corev1.ConfigMap, here func(types.NamespacedName) bool) *corev1.ConfigMap {
	r := recordOf(saved)
	restored := record{state: v1alpha1.FirstSyncOpen, why: "the saved state of the tier was restored"}
	if r.state == v1alpha1.FirstSyncAdopt {
		restored.state, restored.why = r.state, r.why
	}
	restored.elsewhere, restored.clusters = maps.Clone(r.elsewhere), maps.Clone(r.clusters)
	maps.DeleteFunc(restored.elsewhere, func(name types.NamespacedName, _ string) bool { return here(name) })
	maps.DeleteFunc(restored.clusters, func(name types.NamespacedName, s inventory.Standing) bool {
		return here(name) || s != inventory.LastPaused && s != inventory.LastMoving
	})
	return restored.configMap(namespace)
}

// Add adds to the record of a tier what a restored one says of Clusters of which it has nothing
// itself, and a person's hold to a first sync that is open. It reports whether that is anything.
// What an agent or a person wrote here stands.
func Add(cm, restored *corev1.ConfigMap) (changed bool) {
	is, r := recordOf(cm), recordOf(restored)
	add := func(key, value string) {
		if changed = true; cm.Data == nil {
			cm.Data = map[string]string{}
		}
		cm.Data[key] = value
	}
	if r.state == v1alpha1.FirstSyncAdopt && is.state == v1alpha1.FirstSyncOpen {
		add(stateKey, r.state)
		add(whyKey, r.why)
	}
	for name, standing := range r.clusters {
		if is.standings()[name] == "" {
			add(KeyOf(name), string(standing))
		}
	}
	for name, pivot := range r.elsewhere {
		switch is.standings()[name] {
		case "", inventory.LastPaused, inventory.LastMoving:
			add(elsewhereKey(name), pivot)
		}
	}
	return changed
}

// SameMark reports whether two records say the same of a Cluster: where it was last seen, or which
// pivot gave it to another tier.
func SameMark(a, b *corev1.ConfigMap, name types.NamespacedName) bool {
	return recordOf(a).standings()[name] == recordOf(b).standings()[name] && ManagedBy(a, name) == ManagedBy(b, name)
}

// Says reads from a record whether its tier is settled, and which Clusters were paused or
// being moved when they were last seen, or are managed by another tier.
func Says(cm *corev1.ConfigMap) (settled bool, away map[types.NamespacedName]bool) {
	r := recordOf(cm)
	away = map[types.NamespacedName]bool{}
	for name, standing := range r.clusters {
		if standing == inventory.LastPaused || standing == inventory.LastMoving {
			away[name] = true
		}
	}
	for name := range r.elsewhere {
		away[name] = true
	}
	return r.settled(), away
}
