package firstsync

import (
	"context"
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
)

// owners reads the Kustomizations and HelmReleases, which may declare Clusters.
func (t *Tier) owners(ctx context.Context, reader client.Reader) ([]inventory.Owner, error) {
	var owners []inventory.Owner
	for _, kind := range t.Kinds {
		switch kind {
		case kustomizev1.KustomizationKind:
			list := &kustomizev1.KustomizationList{}
			if err := reader.List(ctx, list); err != nil {
				return nil, fmt.Errorf("cannot list Kustomizations: %w", err)
			}
			for i := range list.Items {
				owners = append(owners, ownerOfKustomization(&list.Items[i]))
			}
		case helmv2.HelmReleaseKind:
			list := &helmv2.HelmReleaseList{}
			if err := reader.List(ctx, list); err != nil {
				return nil, fmt.Errorf("cannot list HelmReleases: %w", err)
			}
			for i := range list.Items {
				owners = append(owners, ownerOfRelease(&list.Items[i]))
			}
		}
	}
	return owners, nil
}

func ownerOfKustomization(k *kustomizev1.Kustomization) inventory.Owner {
	o := inventory.Owner{
		Entry: inventory.Entry{Namespace: k.Namespace, Name: k.Name, Group: kustomizev1.GroupVersion.Group, Kind: kustomizev1.KustomizationKind},
		Ready: meta.IsStatusConditionTrue(k.Status.Conditions, fluxmeta.ReadyCondition) && k.Status.ObservedGeneration == k.Generation && !k.Spec.Suspend,
		// An inventory of another cluster says nothing about this one.
		Elsewhere: k.Spec.KubeConfig != nil,
	}
	if k.Status.Inventory != nil {
		for _, ref := range k.Status.Inventory.Entries {
			if e, err := inventory.Parse(ref.ID, ref.Version); err == nil {
				o.Inventory = append(o.Inventory, e)
			}
		}
	}
	return o
}

func ownerOfRelease(h *helmv2.HelmRelease) inventory.Owner {
	o := inventory.Owner{
		Entry:     inventory.Entry{Namespace: h.Namespace, Name: h.Name, Group: helmv2.GroupVersion.Group, Kind: helmv2.HelmReleaseKind},
		Ready:     meta.IsStatusConditionTrue(h.Status.Conditions, fluxmeta.ReadyCondition) && h.Status.ObservedGeneration == h.Generation && !h.Spec.Suspend,
		Elsewhere: h.Spec.KubeConfig != nil,
	}
	if h.Status.Inventory != nil {
		for _, ref := range h.Status.Inventory.Entries {
			if e, err := inventory.Parse(ref.ID, ref.Version); err == nil {
				o.Inventory = append(o.Inventory, e)
			}
		}
	}
	return o
}
