package clusters

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// Reader reads objects from an API server.
type Reader interface {
	Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error
	// InServed calls read with the version in which a kind is served by now, also if the
	// version that is known was dropped meanwhile.
	InServed(kind schema.GroupKind, read func(*meta.RESTMapping) error) error
}

// Live reads an object in the version that the API server serves; nil if the object or its
// kind is not there. That no version of a kind is served any more is an error: it says
// nothing of the object.
func Live(ctx context.Context, from Reader, kind schema.GroupKind, name types.NamespacedName) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	err := from.InServed(kind, func(served *meta.RESTMapping) error {
		u = &unstructured.Unstructured{}
		u.SetGroupVersionKind(served.GroupVersionKind)
		return from.Get(ctx, name, u)
	})
	switch {
	case err == nil:
		return u, nil
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err):
		return nil, nil
	}
	return nil, fmt.Errorf("cannot read %s %s: %w", kind.Kind, name, err)
}

// ControlPlane reads the control plane of a Cluster; nil if there is none. Only what is in the
// Cluster's namespace and of a provider is read: a person who may write a Cluster must not see
// through the agent what that person may not read.
func ControlPlane(ctx context.Context, from Reader, cluster *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	ref := clusterapi.ControlPlaneOf(cluster)
	if ref.IsZero() || !clusterapi.BuildsClusters(ref.Group) {
		return nil, nil
	}
	return Live(ctx, from, ref.GroupKind(), types.NamespacedName{Namespace: cluster.GetNamespace(), Name: ref.Name})
}
