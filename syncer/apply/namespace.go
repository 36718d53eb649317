package apply

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
)

// heldMost bounds the list of objects that make a Namespace protected.
const heldMost = 5

// holds lists what is in a Namespace that must not go with it: protected
// objects, and objects that are not in the inventory. What controllers make by
// themselves does not count: it has an owner, or comes with every Namespace.
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
	for _, gvk := range kinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		err := a.facts.List(ctx, list, client.InNamespace(namespace))
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) || meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list %s in namespace %s: %w", gvk.Kind, namespace, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			e := inventory.Entry{Namespace: namespace, Name: o.Name, Group: gvk.Group, Kind: gvk.Kind, Version: gvk.Version}
			foreign := !mine[e.ID()] && !automatic(gvk, o)
			if foreign || inventory.ProtectedKind(gvk.Group, gvk.Kind) {
				if held = append(held, e.String()); len(held) == heldMost {
					return held, nil
				}
			}
		}
	}
	return held, nil
}

// automatic reports whether a controller created an object on behalf of another
// object or of the Namespace itself.
func automatic(gvk schema.GroupVersionKind, o *metav1.PartialObjectMetadata) bool {
	switch {
	case len(o.OwnerReferences) > 0:
		return true
	case gvk.Kind == "Event", gvk.Kind == "Lease", gvk.Kind == "Endpoints":
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
	var kinds []schema.GroupVersionKind
	seen := map[schema.GroupKind]bool{}
	for _, list := range groups {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("cannot parse group version %q: %w", list.GroupVersion, err)
		}
		for _, r := range list.APIResources {
			gk := schema.GroupKind{Group: gv.Group, Kind: r.Kind}
			if !r.Namespaced || seen[gk] || !slices.Contains(r.Verbs, "list") {
				continue
			}
			seen[gk] = true
			kinds = append(kinds, gv.WithKind(r.Kind))
		}
	}
	return kinds, nil
}
