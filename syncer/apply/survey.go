package apply

import (
	"context"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/syncer/observed"
)

const (
	// surveyAfter is how many objects of a kind in a namespace make a list cheaper
	// than a read of each.
	surveyAfter = 3
	// surveyMost bounds a list. Where there is more, objects are read singly.
	surveyMost = 100
)

// place is a kind in a namespace.
type place struct {
	resource  schema.GroupVersionResource
	namespace string
}

// Survey is what there was in a cluster before many objects are applied to it
// for the first time. Mostly that is little. The nil Survey knows nothing.
type Survey struct {
	places map[place]map[string]*observed.Object
}

// Survey lists the metadata of the objects in each place in which the phases
// have several objects. It leaves out places that the caller may not list or that
// cannot be listed, and places with too many objects.
func (c *Cluster) Survey(ctx context.Context, phases []Phase) (*Survey, error) {
	several := map[place]int{}
	brought := map[schema.GroupKind]string{}
	for _, p := range phases {
		maps.Copy(brought, p.Defines())
	}
	for _, p := range phases {
		for _, e := range p.Entries() {
			if brought[e.GroupKind()] != "" || p.Applied {
				continue
			}
			mapping, err := c.RESTMapper().RESTMapping(e.GroupKind(), e.Version)
			if meta.IsNoMatchError(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			several[place{resource: mapping.Resource, namespace: namespaceOf(mapping, e)}]++
		}
	}
	s := &Survey{places: map[place]map[string]*observed.Object{}}
	for at, n := range several {
		if n < surveyAfter {
			continue
		}
		list, err := c.metadata.Resource(at.resource).Namespace(at.namespace).List(ctx, metav1.ListOptions{Limit: surveyMost})
		if apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list %s in namespace %q: %w", at.resource.Resource, at.namespace, err)
		}
		if list.Continue != "" {
			continue
		}
		objects := make(map[string]*observed.Object, len(list.Items))
		for i := range list.Items {
			objects[list.Items[i].Name] = c.reader.Of(&list.Items[i])
		}
		s.places[at] = objects
	}
	return s, nil
}

// find returns what there was under a name, nil if there was nothing. known is
// false if the survey did not look there.
func (s *Survey) find(resource schema.GroupVersionResource, namespace, name string) (live *observed.Object, known bool) {
	if s == nil {
		return nil, false
	}
	objects, known := s.places[place{resource: resource, namespace: namespace}]
	return objects[name], known
}
