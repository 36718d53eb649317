package syncer

import (
	"context"
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// place is a cluster, told apart as well as it is known.
type place struct{ cluster, namespace, kind, name, key string }

// placeOf a reference of an object in a namespace.
func placeOf(ref TargetRef, namespace string) place {
	switch {
	case ref.Local():
		return place{}
	case ref.Cluster != "":
		return place{cluster: ref.Cluster}
	}
	return place{namespace: namespace, kind: ref.Kind, name: ref.Name, key: ref.Key}
}

// claims tells who else answers for an object of a cluster: a Kustomization or
// HelmRelease whose inventory has it. All of them share their field manager, so
// the object itself shows only who applied it last; what that one no longer
// declares, another may. Inventories are read from the cache, when the first
// question is asked.
func (r *Kustomizations) claims(self types.NamespacedName, at TargetRef) apply.Claims {
	var owners map[string][]inventory.Entry
	return func(ctx context.Context, e, except inventory.Entry) (string, error) {
		if owners == nil {
			var err error
			if owners, err = r.owners(ctx, self, placeOf(at, self.Namespace)); err != nil {
				return "", err
			}
		}
		for _, o := range owners[e.ID()] {
			if o.ID() != except.ID() {
				return o.String(), nil
			}
		}
		return "", nil
	}
}

// owners of the objects of a cluster by the ids of these, without self and those
// that are being deleted.
func (r *Kustomizations) owners(ctx context.Context, self types.NamespacedName, at place) (map[string][]inventory.Entry, error) {
	owners := map[string][]inventory.Entry{}
	kustomizations := &kustomizev1.KustomizationList{}
	if err := r.Client.List(ctx, kustomizations, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("cannot list Kustomizations: %w", err)
	}
	for i := range kustomizations.Items {
		k := &kustomizations.Items[i]
		if client.ObjectKeyFromObject(k) == self || !k.DeletionTimestamp.IsZero() || k.Status.Inventory == nil {
			continue
		}
		ref := TargetOf(k, r.Targets.ServiceAccount)
		if text := k.Annotations[TargetAnnotation]; text != "" {
			if known, err := DecodeTarget(text); err == nil {
				ref = known
			}
		}
		if placeOf(ref, k.Namespace) == at {
			add(owners, k.Status.Inventory, inventory.Entry{Namespace: k.Namespace, Name: k.Name, Group: ownerGroup, Kind: kustomizev1.KustomizationKind})
		}
	}
	releases := &helmv2.HelmReleaseList{}
	if err := r.Client.List(ctx, releases, client.UnsafeDisableDeepCopy); err != nil {
		if apimeta.IsNoMatchError(err) {
			return owners, nil
		}
		return nil, fmt.Errorf("cannot list HelmReleases: %w", err)
	}
	for i := range releases.Items {
		h := &releases.Items[i]
		if h.DeletionTimestamp.IsZero() && placeOf(TargetOfRelease(h, r.Targets.ServiceAccount), h.Namespace) == at {
			for _, ref := range releaseIDs(h) {
				owners[ref] = append(owners[ref], inventory.Entry{Namespace: h.Namespace, Name: h.Name, Group: helmv2.GroupVersion.Group, Kind: helmv2.HelmReleaseKind})
			}
		}
	}
	return owners, nil
}

func add(owners map[string][]inventory.Entry, of *kustomizev1.ResourceInventory, owner inventory.Entry) {
	for _, ref := range of.Entries {
		owners[ref.ID] = append(owners[ref.ID], owner)
	}
}

// releaseIDs are the ids in the inventory of a HelmRelease.
func releaseIDs(h *helmv2.HelmRelease) []string {
	if h.Status.Inventory == nil {
		return nil
	}
	ids := make([]string, 0, len(h.Status.Inventory.Entries))
	for _, ref := range h.Status.Inventory.Entries {
		ids = append(ids, ref.ID)
	}
	return ids
}
