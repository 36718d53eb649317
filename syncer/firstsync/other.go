package firstsync

import (
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

// Keeper answers what is on record of a tier's Clusters.
type Keeper interface {
	// For the Clusters that objects are about; nil if there are none, or any may be
	// created.
	For(ctx context.Context, objects []*unstructured.Unstructured) (*inventory.FirstSync, error)
	// Quiet reports whether no Cluster is on record, of a tier that is settled. Then
	// only one that goes at this very moment may not be created.
	Quiet(ctx context.Context) (bool, error)
}

var (
	_ Keeper = (*Tier)(nil)
	_ Keeper = Other{}
)

// Read returns what is on record in another tier about its Clusters; nil if it has
// no record, or none that the caller may read.
func Read(ctx context.Context, reader client.Reader) (*inventory.FirstSync, error) {
	name := types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}
	cm := &corev1.ConfigMap{}
	err := reader.Get(ctx, name, cm)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the record of the first sync in the target, ConfigMap %s: %w", name, err)
	}
	settled, clusters := recordOf(cm)
	return &inventory.FirstSync{Settled: settled, Clusters: clusters, Elsewhere: true}, nil
}

// Other answers for another tier, by its own record. Where there is none, nothing is
// held: Flux applies to clusters that never heard of one. It may be used concurrently
// if its reader may.
type Other struct {
	// Reader of that tier's API server.
	Reader client.Reader
}

// For implements Keeper.
func (o Other) For(ctx context.Context, objects []*unstructured.Unstructured) (*inventory.FirstSync, error) {
	if inventory.FleetOf(objects).Empty() {
		return nil, nil
	}
	return Read(ctx, o.Reader)
}

// Quiet implements Keeper.
func (o Other) Quiet(ctx context.Context) (bool, error) {
	record, err := Read(ctx, o.Reader)
	return err == nil && (record == nil || record.Settled && len(record.Clusters) == 0), err
}
