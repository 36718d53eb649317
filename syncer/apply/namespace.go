package apply

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/inventory"
)

const (
	// heldMost bounds the list of objects that make a Namespace protected.
	heldMost = 5
	// pageSize is how many objects of a Namespace are read at once.
	pageSize = 500
)

// holds lists what is in a Namespace that must not go with it: protected
// objects, and objects that are not in the inventory. What controllers make by
// themselves does not count: it has an owner, or comes with every Namespace. The list
// ends with the first object that the account that acts may not read.
func (a *Applier) holds(ctx context.Context, namespace string, owned []inventory.Entry) ([]string, error) {
	kinds, err := a.kindsIn(ctx)
	if err != nil {
		return nil, err
	}
	mine := map[string]bool{}
	for _, e := range owned {
		mine[e.ID()] = true
	}
	var held []string
	unreadable := false
	for _, gvk := range kinds {
		if kindIsAutomatic(gvk.Kind) {
			continue
		}
		err := a.eachIn(ctx, gvk, namespace, func(o *metav1.PartialObjectMetadata) (more bool) {
			e := inventory.Entry{Namespace: namespace, Name: o.Name, Group: gvk.Group, Kind: gvk.Kind, Version: gvk.Version}
			foreign := !mine[e.ID()] && !automatic(gvk, o)
			if foreign || inventory.ProtectedKind(gvk.Group, gvk.Kind) {
				name, readable := a.named(ctx, e)
				held, unreadable = append(held, name), !readable
			}
			return len(held) < heldMost && !unreadable
		})
		if err != nil {
			return nil, fmt.Errorf("cannot list %s in namespace %s: %w", gvk.Kind, namespace, err)
		}
		if len(held) == heldMost || unreadable {
			break
		}
	}
	return held, nil
}

// servesElsewhere names a Cluster that needs keys, an identity or a class in a Namespace, whoever owns these:
// what asks to stay, what another owner took over and what was made of other objects are in no inventory
// here, and go with the Namespace all the same. What is of a Cluster in the Namespace goes with that one.
func (a *Applier) servesElsewhere(ctx context.Context, namespace string, k *lookups) (string, error) {
	kinds, err := a.kindsIn(ctx)
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(kinds, func(gvk schema.GroupVersionKind) bool { return clusterapi.IsCluster(gvk.GroupKind()) }) {
		return "", nil
	}
	for _, gvk := range kinds {
		if !mayServeElsewhere(inventory.Entry{Group: gvk.Group, Kind: gvk.Kind}) {
			continue
		}
		var within []*unstructured.Unstructured
		err := a.eachIn(ctx, gvk, namespace, func(o *metav1.PartialObjectMetadata) (more bool) {
			if u := metadataOf(o, gvk); o.DeletionTimestamp == nil && clusterapi.ClusterOf(u) == "" {
				within = append(within, u)
			}
			return true
		})
		if err != nil {
			return "", fmt.Errorf("cannot list %s in namespace %s: %w", gvk.Kind, namespace, err)
		}
		for _, u := range within {
			e := inventory.Of(u)
			if isCredential(e) {
				if err := a.facts.Get(ctx, client.ObjectKeyFromObject(u), u); confirmsAbsence(err) {
					continue
				} else if err != nil {
					return "", fmt.Errorf("cannot read %s: %w", e, err)
				}
			}
			// Whoever confirmed the Namespace was asked about all that is in it.
			if cluster, _, err := a.neededBy(ctx, e, u, true, k); err != nil || cluster != "" {
				return cluster, err
			}
		}
	}
	return "", nil
}

// mayServeElsewhere reports whether Clusters of other namespaces may need an object of a kind.
func mayServeElsewhere(e inventory.Entry) bool {
	return isSecret(e) || isCredential(e) || clusterapi.IsGroup(e.Group) && (clusterapi.IsIdentity(e.Kind) || clusterapi.IsClass(e.Kind))
}

// eachIn calls f for the objects of a kind in a namespace, page by page, while it wants
// more. A kind that is not served, or cannot be listed, has no objects.
func (a *Applier) eachIn(ctx context.Context, gvk schema.GroupVersionKind, namespace string, f func(*metav1.PartialObjectMetadata) (more bool), with ...client.ListOption) error {
	for next := ""; ; {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		err := a.facts.List(ctx, list, append(with[:len(with):len(with)], client.InNamespace(namespace), client.Limit(pageSize), client.Continue(next))...)
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) || meta.IsNoMatchError(err) {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range list.Items {
			if !f(&list.Items[i]) {
				return nil
			}
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
}

// kindIsAutomatic reports whether all objects of a kind come and go by themselves.
func kindIsAutomatic(kind string) bool {
	return kind == "Event" || kind == "Lease" || kind == "Endpoints"
}

// named is how a message calls an object. The agent looks at objects with its own rights
// before it deletes, and messages reach those who act as an account: one that may not read
// the object is told no more than that it is there.
func (a *Applier) named(ctx context.Context, e inventory.Entry) (name string, readable bool) {
	if a.client.agent == nil {
		return e.String(), true
	}
	mapping, err := a.client.served(e)
	if err == nil {
		_, err = a.client.metadata.Resource(mapping.Resource).Namespace(namespaceOf(mapping, e)).Get(ctx, e.Name, metav1.GetOptions{})
	}
	if err != nil && !confirmsAbsence(err) {
		return fmt.Sprintf("an object that %s may not read", a.client.Config.Impersonate.UserName), false
	}
	return e.String(), true
}

// automatic reports whether a controller created an object on behalf of another
// object or of the Namespace itself.
func automatic(gvk schema.GroupVersionKind, o *metav1.PartialObjectMetadata) bool {
	switch {
	case len(o.OwnerReferences) > 0:
		return true
	case kindIsAutomatic(gvk.Kind):
		return true
	case gvk.Kind == "ConfigMap" && o.Name == "kube-root-ca.crt":
		return true
	case gvk.Kind == "ServiceAccount" && o.Name == "default":
		return true
	}
	return false
}

// kindsIn lists the kinds of objects that can be in a Namespace, each once. It
// asks for the API resources of every group: a group that does not answer is an
// error, because what it serves is unknown.
func (a *Applier) kindsIn(ctx context.Context) ([]schema.GroupVersionKind, error) {
	groups, err := a.facts.resources(ctx)
	if err != nil {
		return nil, err
	}
	return lostWithNamespace(groups)
}

// Applied lists what the owner has in the cluster, by its labels and its field manager, for one whose
// inventory is lost. Others copy labels to what they make.
func (a *Applier) Applied(ctx context.Context) ([]inventory.Entry, error) {
	groups, err := a.facts.resources(ctx)
	if err != nil {
		return nil, err
	}
	kinds, err := deletable(groups, func(metav1.APIResource) bool { return true })
	if err != nil {
		return nil, err
	}
	labels := client.MatchingLabels{a.owner.LabelGroup + "/name": a.owner.Name, a.owner.LabelGroup + "/namespace": a.owner.Namespace}
	ours := func(f metav1.ManagedFieldsEntry) bool { return f.Manager == a.owner.FieldManager }
	var all []inventory.Entry
	for _, gvk := range kinds {
		err := a.eachIn(ctx, gvk, "", func(o *metav1.PartialObjectMetadata) (more bool) {
			if slices.ContainsFunc(o.ManagedFields, ours) {
				all = append(all, inventory.Entry{Namespace: o.Namespace, Name: o.Name, Group: gvk.Group, Kind: gvk.Kind, Version: gvk.Version})
			}
			return true
		}, labels)
		if err != nil {
			return nil, fmt.Errorf("cannot list %s with labels of %s: %w", gvk.Kind, a.owner.key(), err)
		}
	}
	return all, nil
}

// lostWithNamespace are those kinds whose objects go with their Namespace. What cannot be
// deleted does not: it is computed from other objects, as PodMetrics are, and the controller
// of Namespaces leaves it out, too.
func lostWithNamespace(groups []*metav1.APIResourceList) ([]schema.GroupVersionKind, error) {
	return deletable(groups, func(r metav1.APIResource) bool { return r.Namespaced })
}

// deletable are kinds whose objects can be listed and deleted, each once.
func deletable(groups []*metav1.APIResourceList, wanted func(metav1.APIResource) bool) ([]schema.GroupVersionKind, error) {
	var kinds []schema.GroupVersionKind
	seen := map[schema.GroupKind]bool{}
	for _, list := range groups {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("cannot parse group version %q: %w", list.GroupVersion, err)
		}
		for _, r := range list.APIResources {
			gk := schema.GroupKind{Group: gv.Group, Kind: r.Kind}
			if !wanted(r) || seen[gk] || !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "delete") {
				continue
			}
			seen[gk] = true
			kinds = append(kinds, gv.WithKind(r.Kind))
		}
	}
	return kinds, nil
}
