// Package claim tells which other owner answers for an object of a cluster: a
// Kustomization or HelmRelease whose inventory has it. All owners of a tier share
// their field manager, so the object itself shows only who applied it last; what
// that one no longer declares, another may.
//
// Invariants: inventories are read from the cache, and nothing is written. An owner
// that is being deleted claims nothing.
//
// Failure model: an inventory that cannot be read is an error, never an absent
// claim.
package claim

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
	"github.com/cascade-gitops/cascade/syncer/target"
)

// Claims are those of the owners of one tier. It is safe for concurrent use.
type Claims struct {
	// Client reads from the cache.
	Client client.Reader
	// ServiceAccount is impersonated where an owner names none.
	ServiceAccount string
}

// Except tells who besides the Kustomization self answers for an object of the
// cluster that a reference leads to. Inventories are read when the first question
// is asked, once for all that follow; it is for one plan.
func (c Claims) Except(self types.NamespacedName, at target.Ref) apply.Claims {
	var owners map[string][]inventory.Entry
	return func(ctx context.Context, e, except inventory.Entry) (string, error) {
		if owners == nil {
			var err error
			if owners, err = c.owners(ctx, self, at.Place(self.Namespace)); err != nil {
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
func (c Claims) owners(ctx context.Context, self types.NamespacedName, at target.Place) (map[string][]inventory.Entry, error) {
	owners := map[string][]inventory.Entry{}
	kustomizations := &kustomizev1.KustomizationList{}
	if err := c.Client.List(ctx, kustomizations, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("cannot list Kustomizations: %w", err)
	}
	for i := range kustomizations.Items {
		k := &kustomizations.Items[i]
		if client.ObjectKeyFromObject(k) == self || !k.DeletionTimestamp.IsZero() || k.Status.Inventory == nil {
			continue
		}
		ref := target.Of(k, c.ServiceAccount)
		if text := k.Annotations[target.Annotation]; text != "" {
			if known, err := target.Decode(text); err == nil {
				ref = known
			}
		}
		if ref.Place(k.Namespace) == at {
			add(owners, k.Status.Inventory, inventory.Entry{Namespace: k.Namespace, Name: k.Name, Group: kustomizev1.GroupVersion.Group, Kind: kustomizev1.KustomizationKind})
		}
	}
	releases := &helmv2.HelmReleaseList{}
	if err := c.Client.List(ctx, releases, client.UnsafeDisableDeepCopy); err != nil {
		if apimeta.IsNoMatchError(err) {
			return owners, nil
		}
		return nil, fmt.Errorf("cannot list HelmReleases: %w", err)
	}
	for i := range releases.Items {
		h := &releases.Items[i]
		if h.DeletionTimestamp.IsZero() && target.OfRelease(h, c.ServiceAccount).Place(h.Namespace) == at {
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
