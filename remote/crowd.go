package remote

import (
	"slices"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
)

// A crowd are the children of shards that this process just took over from a replica that was lost. mostUnmet of them
// that were asked nothing yet delay nothing, nor do more of them for longer than crowdedFor: some may not answer.
const (
	mostUnmet  = 64
	crowdedFor = time.Minute
)

// crowded reports whether this process took over many children a moment ago and has not asked
// all of them anything yet. Who serves is known of each of them before one that stands as it was is
// looked at closely, whosever that was.
func (r *run) crowded() bool { return r.Connections.Crowded(mostUnmet, crowdedFor) }

// afterOthers is how long what may wait for the children that were taken over does so, before it is looked at again.
func (r *run) afterOthers() time.Duration {
	return waitPause + time.Duration(r.Rand()*float64(adoptFirst-waitPause))
}

// othersFirst reports whether a layer that is in place, at the revision that the source has, waits for that.
func (s *seeding) othersFirst(entry *v1alpha1.ChildLayer) bool {
	return entry.Revision == s.revision() && entry.LastHandledReconcileAt == s.requested() && s.crowded()
}

// mayWait reports whether it is enough for now to ask a child that was taken over whether it answers, once: many
// others wait for that, and it stood as it is to be. To look at it takes ten times as much of a processor, and
// several calls of this tier's API server. Where its kubeconfig is must be known without them.
func (r *run) mayWait(cluster capibridge.Cluster, selected []*v1alpha1.Layer) bool {
	status := &r.child.Status
	if !r.crowded() || r.Now().Sub(r.notes.began) >= crowdedFor || r.elsewhere || r.Bridge.MayNameKubeconfig(cluster) || status.Identity == nil ||
		status.ObservedGeneration != r.child.Generation || status.LastHandledReconcileAt != r.child.Annotations[fluxmeta.ReconcileRequestAnnotation] ||
		len(selected) != len(status.Layers) || !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ReadyCondition) ||
		slices.ContainsFunc(status.Rollouts, func(pin v1alpha1.ChildRollout) bool { return !pin.Brought && !pin.Idle }) {
		return false
	}
	return !slices.ContainsFunc(selected, func(layer *v1alpha1.Layer) bool {
		entry := entryOf(r.child, layer.Name)
		return entry == nil || !entry.Ready || entry.LastHandledReconcileAt != layer.Annotations[fluxmeta.ReconcileRequestAnnotation] ||
			len(r.governing) == 0 && layer.Spec.SourceRef != nil && !r.hasNewest(layer, entry)
	})
}

// hasNewest reports whether the child has a layer at the newest revision that was fetched.
func (r *run) hasNewest(layer *v1alpha1.Layer, entry *v1alpha1.ChildLayer) bool {
	newest := r.Snapshots.Get(layerSource(layer))
	return newest != nil && newest.Revision == entry.Revision
}
