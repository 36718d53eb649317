package memo

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/observed"
)

// pollPage is how many objects a poll reads by one request.
const pollPage = 500

// NewPolled returns a Memo of a cluster that is not watched: a connection for each kind
// of each of many clusters would be too many. What it remembers holds until the next
// Poll, so it is polled before it is asked.
func NewPolled(r *observed.Reader, group string) *Memo {
	m := &Memo{label: group + "/name", group: group, polled: true}
	m.records.init(r, nil)
	return m
}

// Keeps reports whether answers about objects of a kind are remembered although the kind
// is not watched.
func (m *Memo) Keeps(gk schema.GroupKind, resource schema.GroupVersionResource) bool {
	if m == nil || !m.polled {
		return false
	}
	m.records.ensure(gk, resource)
	return true
}

// Poll compares what is remembered of an owner with the cluster: by one list of metadata
// for each kind and namespace in which something is. resource finds the resource of a
// kind; r reads with the rights that the owner has. What cannot be read is not known to
// be clean afterwards. On a Memo that watches it does nothing.
func (m *Memo) Poll(ctx context.Context, r *observed.Reader, owner types.NamespacedName, resource func(inventory.Entry) (schema.GroupVersionResource, error)) {
	if m == nil || !m.polled {
		return
	}
	selector := labels.SelectorFromSet(labels.Set{m.label: owner.Name, m.group + "/namespace": owner.Namespace}).String()
	for at, entry := range m.records.places(owner) {
		var list []metav1.PartialObjectMetadata
		found, err := resource(entry)
		if err == nil {
			list, err = listAll(ctx, r, found, at.namespace, selector)
		}
		m.records.compare(owner, at, list, err == nil)
	}
}

func listAll(ctx context.Context, r *observed.Reader, resource schema.GroupVersionResource, namespace, selector string) ([]metav1.PartialObjectMetadata, error) {
	var all []metav1.PartialObjectMetadata
	o := metav1.ListOptions{LabelSelector: selector, Limit: pollPage}
	for {
		list, err := r.List(ctx, resource, namespace, o)
		if err != nil {
			return nil, err
		}
		all = append(all, list.Items...)
		if o.Continue = list.Continue; o.Continue == "" {
			return all, nil
		}
	}
}

// polledPlace is a kind in a namespace.
type polledPlace struct {
	kind      schema.GroupKind
	namespace string
}

// ensure adds a kind.
func (r *records) ensure(gk schema.GroupKind, resource schema.GroupVersionResource) {
	r.mu.Lock()
	known := r.kinds[gk] != nil
	r.mu.Unlock()
	if !known {
		r.open(gk, resource)
	}
}

// places are those where something clean is remembered of an owner, each with one entry.
func (r *records) places(by types.NamespacedName) map[polledPlace]inventory.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	places := map[polledPlace]inventory.Entry{}
	if known := r.owners[by]; known != nil {
		for o := range known.objects {
			if v := r.verified(o); v != nil && !v.dirty {
				places[polledPlace{o.Kind, o.Name.Namespace}] = r.kinds[o.Kind].entry(o.Name)
			}
		}
	}
	return places
}

// compare makes dirty what is remembered of an owner in a place and is not as it was
// applied; all of it, if the list could not be made. A version that goes back is that of
// a restored backup.
func (r *records) compare(by types.NamespacedName, at polledPlace, list []metav1.PartialObjectMetadata, complete bool) {
	listed := make(map[string]*metav1.PartialObjectMetadata, len(list))
	for i := range list {
		listed[list[i].Name] = &list[i]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.owners[by]
	if known == nil {
		return
	}
	for o := range known.objects {
		if o.Kind != at.kind || o.Name.Namespace != at.namespace {
			continue
		}
		v := r.verified(o)
		p := listed[o.Name.Name]
		switch {
		case !complete, p == nil:
			r.taint(v)
		case p.UID == v.uid && p.ResourceVersion == v.version:
		case !newer(p.ResourceVersion, v.version), v.differs(o.Kind, r.reader.Of(p), p):
			r.taint(v)
		default:
			v.version = p.ResourceVersion
		}
	}
}
