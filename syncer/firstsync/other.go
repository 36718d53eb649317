package firstsync

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// Keeper reads the record of a tier's Clusters.
type Keeper interface {
	// For returns the record for the Clusters among objects and of objects; nil if
	// there are none, or if all may be created.
	For(ctx context.Context, objects []*unstructured.Unstructured) (*inventory.FirstSync, error)
	// Quiet reports whether the tier is settled and has no Cluster on record. Then
	// every Cluster may be created, except one that is being deleted at this moment.
	Quiet(ctx context.Context) (bool, error)
}

var (
	_ Keeper = (*Tier)(nil)
	_ Keeper = Other{}
)

// usual returns another tier's record of its Clusters, of an agent in the usual namespace; nil if there is no
// record, or if the caller may not read it.
func usual(ctx context.Context, reader client.Reader) (*inventory.FirstSync, error) {
	name := types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}
	cm := &corev1.ConfigMap{}
	err := reader.Get(ctx, name, cm)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the record of the first sync in the target, ConfigMap %s: %w", name, err)
	}
	return otherOf(recordOf(cm)), nil
}

func otherOf(r record) *inventory.FirstSync {
	return &inventory.FirstSync{Settled: r.settled(), Insisted: r.state == v1alpha1.FirstSyncAdopt, Clusters: r.standings(), Elsewhere: true}
}

// Other reads the record of another tier. If that tier has no record, nothing is held:
// Flux applies to clusters that never had one. Other is safe for concurrent use if its
// reader is.
type Other struct {
	// Reader of that tier's API server.
	Reader client.Reader
}

// For implements Keeper.
func (o Other) For(ctx context.Context, objects []*unstructured.Unstructured) (*inventory.FirstSync, error) {
	if inventory.FleetOf(objects).Empty() {
		return nil, nil
	}
	return o.record(ctx)
}

// Quiet implements Keeper.
func (o Other) Quiet(ctx context.Context) (bool, error) {
	record, err := o.record(ctx)
	return err == nil && (record == nil || record.Settled && len(record.Clusters) == 0), err
}

// record is that in the usual namespace, with which Clusters another one says to be elsewhere; nil if there is none.
func (o Other) record(ctx context.Context) (*inventory.FirstSync, error) {
	record, err := usual(ctx, o.Reader)
	if err != nil {
		return nil, err
	}
	all, err := o.anywhere(ctx)
	if record == nil || all == nil || err != nil {
		return cmp.Or(record, all), err
	}
	// The usual one may be what is left of an agent that was moved to another namespace, or a person's approval, which no
	// agent keeps, as earlier versions advised: by itself it would hide which Clusters the agent's says were moved away,
	// also since they were approved there. Who approves one of these takes the mark away (cascade approve create --pushed).
	// What it found itself counts as before.
	for name, standing := range all.Clusters {
		is := record.Clusters[name]
		if strict(standing) == 0 || is != "" && is != inventory.Approved {
			continue
		}
		if record.Settled {
			// Or the agent has settled the usual one, and the other one is old, or forged: a Cluster that is
			// here is this tier's, and only one that is not may run elsewhere.
			standing = inventory.LastPaused
		}
		record.Clusters[name] = standing
	}
	return record, nil
}

// anywhere reads the record of the tier in whichever namespace its agent is: there, too, nothing must be built a second
// time. Of several the strictest counts, as whoever may write in some namespace can make another.
func (o Other) anywhere(ctx context.Context) (record *inventory.FirstSync, err error) {
	all, err := o.records(ctx)
	for _, r := range all {
		record = strictest(record, otherOf(r))
	}
	return record, err
}

// records are those in all namespaces; none if they may not be looked for.
func (o Other) records(ctx context.Context) (found []record, err error) {
	all := &corev1.ConfigMapList{}
	err = o.Reader.List(ctx, all, client.MatchingLabels{"app.kubernetes.io/name": v1alpha1.AgentName})
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot look for records of the first sync: %w", err)
	}
	for i := range all.Items {
		if all.Items[i].Name == v1alpha1.FirstSyncConfigMap {
			found = append(found, recordOf(&all.Items[i]))
		}
	}
	return found, nil
}

// strictest of two records: what one of them holds is held. one may be nil.
func strictest(one, other *inventory.FirstSync) *inventory.FirstSync {
	if one == nil {
		return other
	}
	clusters := map[types.NamespacedName]inventory.Standing{}
	for _, pair := range [][2]*inventory.FirstSync{{one, other}, {other, one}} {
		for name, standing := range pair[0].Clusters {
			second, known := pair[1].Clusters[name]
			if strict(standing) >= strict(second) && (strict(standing) > 0 || known || pair[1].Settled) {
				clusters[name] = standing
			}
		}
	}
	return &inventory.FirstSync{Settled: one.Settled && other.Settled, Insisted: one.Insisted || other.Insisted, Clusters: clusters, Elsewhere: true}
}

// strict is larger for a standing that holds more. What a person approved holds nothing.
func strict(s inventory.Standing) int {
	switch s {
	case inventory.ManagedElsewhere:
		return 2
	case inventory.LastPaused, inventory.LastMoving:
		return 1
	}
	return 0
}

// Record reads the record of this tier from the API server, in whichever of its processes: only
// the one that leads follows the record. It is safe for concurrent use if its reader is.
type Record struct {
	Reader client.Reader
	// Namespace of the agent.
	Namespace string
	// Kept: this agent keeps the record, so that there is one from the moment that it leads.
	Kept bool
}

// Elsewhere reports whether another tier manages a Cluster. A Child is deleted by the answer, so
// that a record which is missing for a moment is an error.
func (r Record) Elsewhere(ctx context.Context, name types.NamespacedName) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	cm := &corev1.ConfigMap{}
	err := r.Reader.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.FirstSyncConfigMap}, cm)
	if apierrors.IsNotFound(err) && !r.Kept {
		return false, nil // no pivot wrote into it
	}
	if err != nil {
		return false, fmt.Errorf("cannot read the record of the first sync, ConfigMap %s/%s: %w", r.Namespace, v1alpha1.FirstSyncConfigMap, err)
	}
	return ManagedBy(cm, name) != "", nil
}
