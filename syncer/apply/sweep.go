package apply

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/cascade-gitops/cascade/syncer/digest"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// narrowLists is of how many namespaces a sweep lists a kind one by one. Are there more,
// one list of all namespaces stands for the others: a child whose layers have a namespace
// each would be asked as often as it has layers.
const narrowLists = 3

// sweepPage is how many objects a sweep reads by one request.
const sweepPage = 500

// Sweep shows what there is in a cluster of objects with some labels, such as those of all
// owners of a namespace, by lists of metadata of the kinds and namespaces that somebody
// asks about. It is as old as the first question, so it is made for one pass and dropped.
// It is not safe for concurrent use.
type Sweep struct {
	cluster  *Cluster
	selector string
	versions Versions
	places   map[place]*swept
	// narrow counts the namespaces of a resource that were listed one by one.
	narrow map[schema.GroupVersionResource]int
	// wide are lists of all namespaces; nil of a resource that cannot be listed so.
	wide map[schema.GroupVersionResource]*listed
	// failed: a list was asked for, and the answer did not come, or was another error.
	failed bool
}

// Failed reports whether a list could not be made for an error that may pass, so that what is
// in its place was not compared.
func (s *Sweep) Failed() bool { return s != nil && s.failed }

// listed is what one list shows of a resource, by namespace.
type listed struct {
	objects map[string]map[string]*metav1.PartialObjectMetadata
	version string
}

// Versions are those of the lists of earlier sweeps of one cluster, by place. A version
// that goes back is that of a restored backup: what was seen is of another history.
type Versions map[uint64]string

// swept is what a list shows of a place; objects is nil if it could not be made.
type swept struct {
	objects  map[string]*metav1.PartialObjectMetadata
	restored bool
}

// Sweep begins a sweep of the objects with labels, as this connection, which has to have
// the right to list them. It notes the versions of its lists in versions.
func (c *Cluster) Sweep(selector string, versions Versions) *Sweep {
	return &Sweep{cluster: c, selector: selector, versions: versions, places: map[place]*swept{},
		narrow: map[schema.GroupVersionResource]int{}, wide: map[schema.GroupVersionResource]*listed{}}
}

// Version is the resource version that the sweep shows of an object, empty if it shows none.
func (s *Sweep) Version(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (string, error) {
	live, _, err := s.find(ctx, place{resource, namespace}, name)
	if err != nil || live == nil {
		return "", err
	}
	return live.ResourceVersion, nil
}

// find returns what the sweep shows under a name; nil if it shows nothing, which is so of
// an object that lost its labels. trusted: what was seen of it before is of this history.
func (s *Sweep) find(ctx context.Context, at place, name string) (found *metav1.PartialObjectMetadata, trusted bool, err error) {
	if s == nil {
		return nil, false, nil
	}
	in, err := s.in(ctx, at)
	if err != nil {
		return nil, false, err
	}
	return in.objects[name], !in.restored, nil
}

// in is what the sweep shows of a place.
func (s *Sweep) in(ctx context.Context, at place) (in *swept, err error) {
	if in = s.places[at]; in == nil {
		if in, err = s.list(ctx, at); err != nil {
			return nil, err
		}
		s.places[at] = in
	}
	return in, nil
}

func (s *Sweep) list(ctx context.Context, at place) (*swept, error) {
	if at.namespace != "" && s.narrow[at.resource] >= narrowLists {
		all, asked := s.wide[at.resource]
		if !asked {
			var err error
			if all, err = s.read(ctx, place{resource: at.resource}); err != nil {
				return nil, err
			}
			s.wide[at.resource] = all
		}
		if all != nil {
			return s.shown(all, at), nil
		}
	}
	s.narrow[at.resource]++
	one, err := s.read(ctx, at)
	if err != nil || one == nil {
		return &swept{}, err // each object is asked for
	}
	return s.shown(one, at), nil
}

// shown is what a list shows of a place.
func (s *Sweep) shown(by *listed, at place) *swept {
	in := &swept{objects: by.objects[at.namespace], restored: s.goesBack(at, by.version)}
	if in.objects == nil {
		in.objects = map[string]*metav1.PartialObjectMetadata{} // it was listed, and has none
	}
	return in
}

// read lists a place, which is all namespaces if it has none; nil if it cannot be listed.
func (s *Sweep) read(ctx context.Context, at place) (*listed, error) {
	found := &listed{objects: map[string]map[string]*metav1.PartialObjectMetadata{}}
	o := metav1.ListOptions{LabelSelector: s.selector, Limit: sweepPage}
	for {
		list, err := s.cluster.metadata.Resource(at.resource).Namespace(at.namespace).List(ctx, o)
		switch {
		case apierrors.IsForbidden(err), apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err), apierrors.IsResourceExpired(err):
			return nil, nil
		case err != nil:
			s.failed = true
			return nil, fmt.Errorf("cannot list %s in namespace %q: %w", at.resource.Resource, at.namespace, err)
		}
		for i := range list.Items {
			live := &list.Items[i]
			in := found.objects[live.Namespace]
			if in == nil {
				in = map[string]*metav1.PartialObjectMetadata{}
				found.objects[live.Namespace] = in
			}
			in[live.Name] = live
		}
		if o.Continue = list.Continue; o.Continue == "" {
			found.version = list.ResourceVersion
			return found, nil
		}
	}
}

// goesBack notes the version of a list, and reports whether a later one was seen before: what cannot be compared, as those
// of some API servers of others, is not.
func (s *Sweep) goesBack(at place, version string) bool {
	key := number(digest.Of(at.resource.String(), at.namespace))
	before := s.versions[key]
	s.versions[key] = version
	if before == "" {
		return false
	}
	c, err := resourceversion.CompareResourceVersion(version, before)
	return err == nil && c < 0
}

// stands reports whether an object is as it was when it was seen last.
func (s seen) stands(manager string, asked *unstructured.Unstructured, live *metav1.PartialObjectMetadata, r *observed.Reader) bool {
	o := r.Of(live)
	return s != (seen{}) && !o.Deleting && !o.Foreign && !o.Skip && s.form == seenOf(manager, asked, live).form
}
