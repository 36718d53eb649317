package apply

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// known are Clusters by what is looked for of them; of several that have one part or class, the
// first.
type known struct {
	names, classes map[types.NamespacedName]*unstructured.Unstructured
	parts          map[clusterapi.Reference]*unstructured.Unstructured
	// refused is the error if they may not be listed.
	refused error
}

func knownOf(clusters []unstructured.Unstructured) *known {
	found := &known{
		names:   map[types.NamespacedName]*unstructured.Unstructured{},
		classes: map[types.NamespacedName]*unstructured.Unstructured{},
		parts:   map[clusterapi.Reference]*unstructured.Unstructured{},
	}
	for i := range clusters {
		c := &clusters[i]
		found.names[types.NamespacedName{Namespace: c.GetNamespace(), Name: c.GetName()}] = c
		if class := clusterapi.ClassOf(c); found.classes[class] == nil {
			found.classes[class] = c
		}
		for _, r := range clusterapi.PartsOf(c) {
			// They are in the namespace of the Cluster, whatever the reference says.
			if part := clusterapi.Named(c.GetNamespace(), r.Kind, r.Name); found.parts[part] == nil {
				found.parts[part] = c
			}
		}
	}
	return found
}

// withPart is the Cluster that has an object as its infrastructure or control plane, nil if there is none.
func (k *known) withPart(namespace, kind, name string) *unstructured.Unstructured {
	return k.parts[clusterapi.Named(namespace, kind, name)]
}

// clusters are the Clusters of a namespace, or of all. They are listed once for a plan, when the first is
// asked for: nothing uses most Secrets, and a tier may have many Clusters.
func (a *Applier) clusters(ctx context.Context, namespace string, k *lookups) (*known, error) {
	if found := k.clusters[namespace]; found != nil {
		return found, found.refused
	}
	var list []unstructured.Unstructured
	err := a.facts.InServed(clusterapi.ClusterKind, func(served *meta.RESTMapping) (err error) {
		list, err = a.list(ctx, served.GroupVersionKind, namespace)
		return err
	})
	if err != nil {
		err = fmt.Errorf("cannot look up Clusters: %w", err)
	}
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	if k.clusters == nil {
		k.clusters = map[string]*known{}
	}
	found := knownOf(list)
	found.refused = err
	k.clusters[namespace] = found
	return found, err
}

// clusterOf is the Cluster that an object is a part of, or what is made without one, itself; nil if there is
// none. hidden: it may not be seen.
func (a *Applier) clusterOf(ctx context.Context, u *unstructured.Unstructured, k *lookups) (cluster *unstructured.Unstructured, hidden bool, err error) {
	if clusterapi.StandsAlone(u.GetKind()) {
		return u, false, nil
	}
	found, err := a.clusters(ctx, "", k)
	if apierrors.IsForbidden(err) {
		found, err = a.clusters(ctx, u.GetNamespace(), k)
	}
	switch {
	case apierrors.IsForbidden(err):
		return nil, true, nil
	case err != nil:
		return nil, false, err
	}
	if name := clusterapi.ClusterOf(u); name != "" {
		return found.names[types.NamespacedName{Namespace: u.GetNamespace(), Name: name}], false, nil
	}
	return found.withPart(u.GetNamespace(), u.GetKind(), u.GetName()), false, nil
}
