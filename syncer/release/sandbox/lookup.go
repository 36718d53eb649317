package sandbox

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// lookupPage is how many objects a lookup of a list reads at once.
const lookupPage = 500

// Cluster is what lookups of templates may read, with the rights that the release
// is installed with.
type Cluster struct {
	Mapper  meta.RESTMapper
	Objects dynamic.Interface
}

// lookup reads an object, or all of a kind, and returns an empty map if there is
// none. It differs from Helm's in its bounds, and in that it looks up kinds in the
// mapper.
func (c Cluster) lookup(ctx context.Context, q lookupQuestion) (map[string]any, error) {
	gvk := schema.FromAPIVersionAndKind(q.APIVersion, q.Kind)
	mapping, err := c.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("unable to get apiresource from unstructured: %s: %w", gvk, err)
	}
	var objects dynamic.ResourceInterface = c.Objects.Resource(mapping.Resource)
	if q.Namespace != "" && mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		objects = c.Objects.Resource(mapping.Resource).Namespace(q.Namespace)
	}
	var found runtimeContent
	if q.Name != "" {
		found, err = objects.Get(ctx, q.Name, metav1.GetOptions{})
	} else {
		found, err = list(ctx, objects)
	}
	switch {
	case apierrors.IsNotFound(err):
		return map[string]any{}, nil
	case err != nil:
		return nil, err
	}
	return found.UnstructuredContent(), nil
}

type runtimeContent interface{ UnstructuredContent() map[string]any }

// list reads all objects of a kind, as far as a template may.
func list(ctx context.Context, objects dynamic.ResourceInterface) (*unstructured.UnstructuredList, error) {
	var all *unstructured.UnstructuredList
	for next := ""; ; {
		page, err := objects.List(ctx, metav1.ListOptions{Limit: lookupPage, Continue: next})
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = page
		} else {
			all.Items = append(all.Items, page.Items...)
		}
		if len(all.Items) > mostLooked {
			return nil, exceeds("a lookup finds more than %d objects", mostLooked)
		}
		if next = page.GetContinue(); next == "" {
			all.SetContinue("")
			return all, nil
		}
	}
}
