package observed

import (
	"context"
	"fmt"

	"github.com/fluxcd/pkg/ssa"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
)

// Reader reads metadata in one cluster as one user. It is safe for concurrent
// use.
type Reader struct {
	client   metadata.Interface
	managers []ssa.FieldManager
	lists    lists
}

// NewReader returns a Reader that takes over the fields of Flux's managers.
func NewReader(client metadata.Interface) *Reader {
	return &Reader{client: client, managers: managersTakenOver(nil)}
}

// For returns a Reader of the same cluster for another user. It takes over the
// fields of the same managers.
func (r *Reader) For(client metadata.Interface) *Reader {
	other := NewReader(client)
	if r != nil {
		other.managers = r.managers
	}
	return other
}

// Override adds managers whose fields are taken over; a name stands for all that
// begin with it. It is called before the first use.
func (r *Reader) Override(managers []string) { r.managers = managersTakenOver(managers) }

// Resource is the client of a kind of objects.
func (r *Reader) Resource(resource schema.GroupVersionResource) metadata.Getter {
	return r.client.Resource(resource)
}

// List reads the metadata of the objects of a kind in a namespace, or a page of it.
func (r *Reader) List(ctx context.Context, resource schema.GroupVersionResource, namespace string, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list, err := r.client.Resource(resource).Namespace(namespace).List(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("cannot list %s in namespace %q: %w", resource.Resource, namespace, err)
	}
	return list, nil
}

// Get reads an object; nil if there is none.
func (r *Reader) Get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (*Object, error) {
	p, err := r.client.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s %s: %w", resource.Resource, name, err)
	}
	return r.Of(p), nil
}
