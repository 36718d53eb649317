package clusters

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// Getter reads an object from an API server.
type Getter interface {
	Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error
}

// Live reads an object in the version that the API server serves; nil if the object or its
// kind is not there.
func Live(ctx context.Context, from Getter, mapper meta.RESTMapper, kind schema.GroupKind, name types.NamespacedName) (*unstructured.Unstructured, error) {
	mapping, err := mapper.RESTMapping(kind)
	switch {
	case meta.IsNoMatchError(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot tell which version of %s is served: %w", kind, err)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(mapping.GroupVersionKind)
	if err := from.Get(ctx, name, u); err != nil {
		if err = client.IgnoreNotFound(err); err != nil {
			return nil, fmt.Errorf("cannot read %s %s: %w", kind.Kind, name, err)
		}
		return nil, nil
	}
	return u, nil
}

// ControlPlane reads the control plane of a Cluster; nil if there is none. Only what is in the
// Cluster's namespace and of a provider is read: a person who may write a Cluster must not see
// through the agent what that person may not read.
func ControlPlane(ctx context.Context, from Getter, mapper meta.RESTMapper, cluster *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	ref := clusterapi.ControlPlaneOf(cluster)
	if ref.IsZero() || !clusterapi.BuildsClusters(ref.Group) {
		return nil, nil
	}
	return Live(ctx, from, mapper, ref.GroupKind(), types.NamespacedName{Namespace: cluster.GetNamespace(), Name: ref.Name})
}
