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
	"strings"

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
	var owners map[string][]claim
	return func(ctx context.Context, e, except inventory.Entry) (string, error) {
		if owners == nil {
			var err error
			if owners, err = c.owners(ctx, self, at); err != nil {
				return "", err
			}
		}
		_, name := split(e.ID())
		for _, c := range owners[name] {
			if (e.Namespace == "" || e.Namespace == c.namespace) && c.owner.ID() != except.ID() {
				return c.owner.String(), nil
			}
		}
		return "", nil
	}
}

// claim is an owner that has an object in its inventory, there with this namespace. The
// inventory of a cluster-scoped object may have one, too: Flux and older agents wrote
// what the manifest said.
type claim struct {
	namespace string
	owner     inventory.Entry
}

// split takes the namespace off an id, and leaves name, group and kind. A namespace has
// no underscore.
func split(id string) (namespace, rest string) {
	namespace, rest, _ = strings.Cut(id, "_")
	return namespace, rest
}

// owners of the objects of a cluster, by the ids of these without their namespaces. Self
// and those that are being deleted are left out.
func (c Claims) owners(ctx context.Context, self types.NamespacedName, at target.Ref) (map[string][]claim, error) {
	owners := map[string][]claim{}
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
		if ref.SameCluster(k.Namespace, at, self.Namespace) {
			owner := inventory.Entry{Namespace: k.Namespace, Name: k.Name, Group: kustomizev1.GroupVersion.Group, Kind: kustomizev1.KustomizationKind}
			for _, ref := range k.Status.Inventory.Entries {
				add(owners, ref.ID, owner)
			}
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
		if h.Status.Inventory != nil && h.DeletionTimestamp.IsZero() && target.OfRelease(h, c.ServiceAccount).SameCluster(h.Namespace, at, self.Namespace) {
			owner := inventory.Entry{Namespace: h.Namespace, Name: h.Name, Group: helmv2.GroupVersion.Group, Kind: helmv2.HelmReleaseKind}
			for _, ref := range h.Status.Inventory.Entries {
				add(owners, ref.ID, owner)
			}
		}
	}
	return owners, nil
}

func add(owners map[string][]claim, id string, owner inventory.Entry) {
	namespace, rest := split(id)
	owners[rest] = append(owners[rest], claim{namespace: namespace, owner: owner})
}
