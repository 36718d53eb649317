package sandbox

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// lookupPage is how many objects a lookup of a list reads at once, mostPages how often it
// does so. It is the server that says whether there are more.
const (
	lookupPage = 500
	mostPages  = mostLooked/lookupPage + 1
)

// Cluster is what lookups of templates may read, with the rights that the release
// is installed with.
type Cluster struct {
	Mapper  meta.RESTMapper
	Objects dynamic.Interface
}

// lookup reads an object, or all of a kind, as JSON: an empty map if there is none. It
// differs from Helm's in its bounds, and in that it looks up kinds in the mapper.
func (c Cluster) lookup(ctx context.Context, q lookupQuestion) ([]byte, error) {
	gvk := schema.FromAPIVersionAndKind(q.APIVersion, q.Kind)
	mapping, err := c.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, fmt.Errorf("unable to get apiresource from unstructured: %s: %w", gvk, err)
	}
	var objects dynamic.ResourceInterface = c.Objects.Resource(mapping.Resource)
	if q.Namespace != "" && mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		objects = c.Objects.Resource(mapping.Resource).Namespace(q.Namespace)
	}
	var found map[string]any
	if q.Name == "" {
		found, err = list(ctx, objects)
	} else if o, getErr := objects.Get(ctx, q.Name, metav1.GetOptions{}); getErr != nil {
		err = getErr
	} else {
		found = o.Object
	}
	switch {
	case apierrors.IsNotFound(err):
		return []byte("{}"), nil
	case err != nil:
		return nil, err
	}
	return json.Marshal(found)
}

// list reads all objects of a kind, as far as a template may. Of what it has read it keeps
// the text: objects take several times as much.
func list(ctx context.Context, objects dynamic.ResourceInterface) (map[string]any, error) {
	var first *unstructured.UnstructuredList
	items, size, next := []json.RawMessage{}, 0, ""
	for range mostPages {
		page, err := objects.List(ctx, metav1.ListOptions{Limit: lookupPage, Continue: next})
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = &unstructured.UnstructuredList{Object: page.Object}
		}
		if len(items)+len(page.Items) > mostLooked {
			return nil, exceeds("a lookup finds more than %d objects", mostLooked)
		}
		next = page.GetContinue()
		for _, o := range page.Items {
			text, err := json.Marshal(o.Object)
			if err != nil {
				return nil, err
			}
			if size += len(text); size > worker.MaxFrame {
				return nil, exceeds("a lookup finds more than %d MiB", worker.MaxFrame>>20)
			}
			items = append(items, text)
		}
		if next == "" {
			first.SetContinue("")
			first.Object["items"] = items
			return first.Object, nil
		}
	}
	return nil, exceeds("a lookup takes more than %d pages", mostPages)
}
