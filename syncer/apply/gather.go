package apply

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
)

// Numbers of reading the objects of a plan.
const (
	// gatherAfter is how many objects of a kind in a namespace make a list cheaper
	// than a read of each.
	gatherAfter = 4
	// gatherMost bounds a list. Where there is more, objects are read singly.
	gatherMost = 500
)

// gather reads the objects of a plan before they are examined one after the other: many
// of one kind in one namespace by one list, the others some at a time. It leaves out what
// it cannot read, so that examining the object finds out why.
func (a *Applier) gather(ctx context.Context, entries []inventory.Entry, k *lookups) {
	if k.found == nil {
		k.found = map[inventory.Entry]*unstructured.Unstructured{}
	}
	places := map[place][]inventory.Entry{}
	mappings := map[place]*meta.RESTMapping{}
	for _, e := range entries {
		mapping, err := a.facts.served(e)
		if err != nil || mapping.Scope.Name() == meta.RESTScopeNameNamespace && e.Namespace == "" {
			continue
		}
		at := place{mapping.Resource, namespaceOf(mapping, e)}
		places[at], mappings[at] = append(places[at], e), mapping
	}
	type single struct {
		mapping *meta.RESTMapping
		entry   inventory.Entry
	}
	var singles []single
	for at, in := range places {
		if len(in) >= gatherAfter && !wholly(mappings[at].GroupVersionKind) && a.gatherAt(ctx, at, mappings[at].GroupVersionKind, in, k) {
			continue
		}
		for _, e := range in {
			singles = append(singles, single{mappings[at], e})
		}
	}
	var mu sync.Mutex // guards k.found
	inParallel(a.facts.parallel, len(singles), func(i int) {
		s := singles[i]
		if u, err := a.get(ctx, s.mapping, s.entry); err == nil || confirmsAbsence(err) {
			mu.Lock()
			k.found[s.entry] = orNil(u, err)
			mu.Unlock()
		}
	})
}

// inParallel calls f for 0 to n-1, up to parallel at a time, and returns when all calls
// have.
func inParallel(parallel, n int, f func(i int)) {
	var workers sync.WaitGroup
	next := make(chan int)
	for range min(parallel, n) {
		workers.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
}

// gatherAt reads the objects of one place by a list, and reports whether it could.
func (a *Applier) gatherAt(ctx context.Context, at place, gvk schema.GroupVersionKind, entries []inventory.Entry, k *lookups) bool {
	list, err := a.facts.metadata.Resource(at.resource).Namespace(at.namespace).List(ctx, metav1.ListOptions{Limit: gatherMost})
	if err != nil || list.Continue != "" {
		return false
	}
	named := make(map[string]*metav1.PartialObjectMetadata, len(list.Items))
	for i := range list.Items {
		named[list.Items[i].Name] = &list.Items[i]
	}
	for _, e := range entries {
		k.found[e] = nil
		if p := named[e.Name]; p != nil {
			k.found[e] = metadataOf(p, gvk)
		}
	}
	return true
}

// orNil is the object of an answer; nil if there is none.
func orNil(u *unstructured.Unstructured, err error) *unstructured.Unstructured {
	if err != nil {
		return nil
	}
	return u
}

// found is an object as gather read it, or else as it is read now. What is not there is
// an error that confirms the absence.
func (a *Applier) found(ctx context.Context, mapping *meta.RESTMapping, e inventory.Entry, k *lookups) (*unstructured.Unstructured, error) {
	u, known := k.found[e]
	switch {
	case !known:
		return a.get(ctx, mapping, e)
	case u == nil:
		return nil, absent(mapping, e)
	}
	return u, nil
}

// wholly reports whether a plan looks at more than the metadata of a kind.
func wholly(gvk schema.GroupVersionKind) bool {
	e := inventory.Entry{Group: gvk.Group, Kind: gvk.Kind}
	return isSecret(e) || isSync(e) || isLayer(e) || isCredential(e)
}

// get reads an object, of most kinds the metadata only.
func (a *Applier) get(ctx context.Context, mapping *meta.RESTMapping, e inventory.Entry) (*unstructured.Unstructured, error) {
	if wholly(mapping.GroupVersionKind) {
		u := e.Object()
		u.SetGroupVersionKind(mapping.GroupVersionKind)
		u.SetNamespace(namespaceOf(mapping, e))
		return u, a.facts.Get(ctx, client.ObjectKeyFromObject(u), u)
	}
	p, err := a.facts.metadata.Resource(mapping.Resource).Namespace(namespaceOf(mapping, e)).Get(ctx, e.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return metadataOf(p, mapping.GroupVersionKind), nil
}

// metadataOf is the metadata of an object as far as a plan looks at it.
func metadataOf(p *metav1.PartialObjectMetadata, gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	u.SetNamespace(p.Namespace)
	u.SetName(p.Name)
	u.SetUID(p.UID)
	u.SetResourceVersion(p.ResourceVersion)
	u.SetLabels(p.Labels)
	u.SetAnnotations(p.Annotations)
	u.SetOwnerReferences(p.OwnerReferences)
	u.SetDeletionTimestamp(p.DeletionTimestamp)
	u.SetManagedFields(p.ManagedFields)
	return u
}

// kindGone is Cluster.kindGone, asked once for each kind of a plan.
func (a *Applier) kindGone(ctx context.Context, e inventory.Entry, k *lookups) inventory.Live {
	if live, known := k.gone[e.GroupKind()]; known {
		return live
	}
	if k.gone == nil {
		k.gone = map[schema.GroupKind]inventory.Live{}
	}
	live := a.facts.kindGone(ctx, e)
	k.gone[e.GroupKind()] = live
	return live
}
