package provider

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	pausedAnnotation = "cluster.x-k8s.io/paused"
	clusterNameLabel = "cluster.x-k8s.io/cluster-name"
)

// reconciler is what both reconcilers need.
type reconciler struct {
	client  client.Client
	secrets client.Reader // past the cache, which would hold every Secret of the management cluster
	machine Machine
}

// cluster is what the provider reads of a Cluster.
type cluster struct {
	object *unstructured.Unstructured
}

func (c cluster) name() string { return c.object.GetName() }

// paused says whether the Cluster or the object of its that is given is to be left alone.
func (c *cluster) paused(object client.Object) bool {
	if _, ok := object.GetAnnotations()[pausedAnnotation]; ok {
		return true
	}
	if c == nil {
		return false
	}
	paused, _, err := unstructured.NestedBool(c.object.Object, "spec", "paused")
	return err == nil && paused
}

// serviceCIDR is the range of Service addresses, if the Cluster names one.
func (c cluster) serviceCIDR() string {
	blocks, _, err := unstructured.NestedStringSlice(c.object.Object, "spec", "clusterNetwork", "services", "cidrBlocks")
	if err != nil || len(blocks) == 0 {
		return ""
	}
	return blocks[0]
}

func (c cluster) infrastructureProvisioned() bool {
	provisioned, _, err := unstructured.NestedBool(c.object.Object, "status", "initialization", "infrastructureProvisioned")
	return err == nil && provisioned
}

// reference returns the name of the object that the Cluster refers to, if it is of the kind.
func (c cluster) reference(field, kind string) (string, bool) {
	reference, _, err := unstructured.NestedStringMap(c.object.Object, "spec", field)
	if err != nil || reference["kind"] != kind {
		return "", false
	}
	return reference["name"], reference["name"] != ""
}

// owner returns the Cluster that owns the object, or nil as long as Cluster API has not made one the owner.
func (r reconciler) owner(ctx context.Context, object client.Object) (*cluster, error) {
	for _, reference := range object.GetOwnerReferences() {
		group, _, _ := strings.Cut(reference.APIVersion, "/")
		if reference.Kind != clusterKind().Kind || group != clusterKind().Group {
			continue
		}
		found := &unstructured.Unstructured{}
		found.SetGroupVersionKind(clusterKind())
		err := r.client.Get(ctx, types.NamespacedName{Namespace: object.GetNamespace(), Name: reference.Name}, found)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read Cluster %s: %w", reference.Name, err)
		}
		if found.GetUID() != reference.UID {
			return nil, nil // another one of the same name, which has to take the object over first
		}
		return &cluster{found}, nil
	}
	return nil, nil
}

// referenced maps a Cluster to the object that it refers to.
func referenced(field, kind string) handler.MapFunc {
	return func(_ context.Context, object client.Object) []reconcile.Request {
		found, ok := object.(*unstructured.Unstructured)
		if !ok {
			return nil
		}
		name, ok := cluster{found}.reference(field, kind)
		if !ok {
			return nil
		}
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: object.GetNamespace(), Name: name}}}
	}
}

// infrastructureOf maps a LocalControlPlane to the LocalCluster of the same Cluster, which waits for it.
func (r reconciler) infrastructureOf(ctx context.Context, object client.Object) []reconcile.Request {
	owner, err := r.owner(ctx, object)
	if err != nil || owner == nil {
		return nil // the Cluster wakes it when it comes
	}
	return referenced("infrastructureRef", "LocalCluster")(ctx, owner.object)
}
