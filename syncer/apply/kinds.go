package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
)

// confirmsAbsence reports whether an answer says that there is no such object. A
// 404 that does not come from a kind's own handler says only that the path is
// not served, as it is when the version of a kind was dropped.
func confirmsAbsence(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// relocated are kinds that were found in another version than the mapper knows.
// The zero value has none, and so has nil; it is safe for concurrent use.
type relocated struct {
	mu    sync.Mutex // guards kinds
	kinds map[schema.GroupKind]*meta.RESTMapping
}

func (r *relocated) get(gk schema.GroupKind) *meta.RESTMapping {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kinds[gk]
}

func (r *relocated) set(gk schema.GroupKind, mapping *meta.RESTMapping) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds == nil {
		r.kinds = map[schema.GroupKind]*meta.RESTMapping{}
	}
	r.kinds[gk] = mapping
}

// served finds the kind of an entry, in the version that is written down or, if
// that is not served any more, in another.
func (c *Cluster) served(e inventory.Entry) (*meta.RESTMapping, error) {
	if moved := c.moved.get(e.GroupKind()); moved != nil {
		return moved, nil
	}
	mapping, err := c.RESTMapper().RESTMapping(e.GroupKind(), e.Version)
	if meta.IsNoMatchError(err) {
		return c.RESTMapper().RESTMapping(e.GroupKind())
	}
	return mapping, err
}

// InServed calls read with the version in which a kind is served: the one that is known
// or, if it turns out that the API server does not serve that any more, the one that it
// serves now. It returns a NoMatch error if the kind is not served.
func (c *Cluster) InServed(gk schema.GroupKind, read func(*meta.RESTMapping) error) error {
	return c.inServed(inventory.Entry{Group: gk.Group, Kind: gk.Kind}, read)
}

// inServed is InServed in the version of an entry, if that is served.
func (c *Cluster) inServed(e inventory.Entry, read func(*meta.RESTMapping) error) error {
	mapping, err := c.served(e)
	if err != nil {
		return err
	}
	err = read(mapping)
	if !apierrors.IsNotFound(err) || confirmsAbsence(err) {
		return err
	}
	found, _, rerr := c.relocate(e.GroupKind())
	switch {
	case rerr != nil:
		return rerr
	case found == nil:
		return err
	}
	return read(found)
}

// ServedVersion is the version in which the kind of an entry is served: the one that is written down, if
// it is. It is empty if the kind is gone, and its objects with it. What is not known is an error.
func (c *Cluster) ServedVersion(ctx context.Context, e inventory.Entry) (string, error) {
	mapping, err := c.served(e)
	switch {
	case err == nil:
		return mapping.GroupVersionKind.Version, nil
	case !meta.IsNoMatchError(err):
		return "", fmt.Errorf("cannot find kind %s: %w", e.Kind, err)
	}
	return "", c.ConfirmGone(ctx, e)
}

// ConfirmGone is nil if the kind of an entry, which turned out not to be served, is gone, and its objects with it. Else
// it says why that is not certain.
func (c *Cluster) ConfirmGone(ctx context.Context, e inventory.Entry) error {
	if is := c.kindGone(ctx, e); is.State != inventory.Absent {
		return errors.New(is.Problem)
	}
	return nil
}

// relocate asks the API server for the versions of a kind, after it turned out
// that the one that the mapper knows is not served any more. found is nil if no
// version is; complete says that the API server serves the group and listed all of it.
func (c *Cluster) relocate(gk schema.GroupKind) (found *meta.RESTMapping, complete bool, err error) {
	groups, err := c.discovery.ServerGroups()
	if err != nil {
		return nil, false, fmt.Errorf("cannot discover API groups: %w", err)
	}
	for _, g := range groups.Groups {
		if g.Name != gk.Group {
			continue
		}
		for _, v := range g.Versions {
			if found, err = c.mappingIn(v, gk); err != nil {
				return nil, false, err
			}
			if found != nil {
				c.moved.set(gk, found)
				return found, true, nil
			}
			complete = true
		}
	}
	return nil, complete, nil
}

// mappingIn asks the API server for a kind in one version; nil if it has none.
func (c *Cluster) mappingIn(v metav1.GroupVersionForDiscovery, gk schema.GroupKind) (*meta.RESTMapping, error) {
	list, err := c.discovery.ServerResourcesForGroupVersion(v.GroupVersion)
	if err != nil {
		return nil, fmt.Errorf("cannot discover resources of %s: %w", v.GroupVersion, err)
	}
	for _, r := range list.APIResources {
		if r.Kind != gk.Kind || strings.Contains(r.Name, "/") {
			continue
		}
		gv := schema.GroupVersion{Group: gk.Group, Version: v.Version}
		found := &meta.RESTMapping{Resource: gv.WithResource(r.Name), GroupVersionKind: gv.WithKind(gk.Kind), Scope: meta.RESTScopeRoot}
		if r.Namespaced {
			found.Scope = meta.RESTScopeNamespace
		}
		return found, nil
	}
	return nil, nil
}

// namespaceOf is the namespace of an entry in requests.
func namespaceOf(mapping *meta.RESTMapping, e inventory.Entry) string {
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return ""
	}
	return e.Namespace
}

// kindGone decides about an object whose kind the API server does not know at the
// moment. A kind that no CRD declares is gone if no API service serves its group, or if
// all versions of the group were discovered just now and none has it: a group that is
// served incompletely, or not at all, may have it again.
func (c *Cluster) kindGone(ctx context.Context, e inventory.Entry) inventory.Live {
	if defined, err := c.defines(ctx, e.GroupKind()); err != nil {
		return unknown(fmt.Errorf("cannot tell whether kind %s is gone: %w", e.Kind, err))
	} else if defined {
		return unknown(fmt.Errorf("kind %s is not served although its CRD exists", e.Kind))
	}
	services := &unstructured.UnstructuredList{}
	services.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIServiceList"})
	if err := c.List(ctx, services); err != nil {
		return unknown(fmt.Errorf("cannot list APIServices to tell whether kind %s is gone: %w", e.Kind, err))
	}
	serves := false
	for i := range services.Items {
		s := &services.Items[i]
		if g, _, _ := unstructured.NestedString(s.Object, "spec", "group"); g != e.Group {
			continue
		}
		serves = true
		if !available(s) {
			return unknown(fmt.Errorf("kind %s is not served, and APIService %s is not available", e.Kind, s.GetName()))
		}
	}
	if !serves {
		return inventory.Live{State: inventory.Absent}
	}
	found, complete, err := c.relocate(e.GroupKind())
	switch {
	case err == nil && !complete:
		return unknown(fmt.Errorf("kind %s is not served, and its group is not listed", e.Kind))
	case err != nil:
		return unknown(fmt.Errorf("cannot tell whether kind %s is gone: %w", e.Kind, err))
	case found != nil:
		return unknown(fmt.Errorf("kind %s is served again", e.Kind))
	}
	return inventory.Live{State: inventory.Absent}
}

// defines reports whether there is a definition of a kind. Definitions are large: of
// those of other groups, which are the most, only names are read.
func (c *Cluster) defines(ctx context.Context, gk schema.GroupKind) (bool, error) {
	crds, err := c.metadata.Resource(crdResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("cannot list CRDs: %w", err)
	}
	for i := range crds.Items {
		if _, group, _ := strings.Cut(crds.Items[i].Name, "."); group != gk.Group {
			continue // the API server wants <plural>.<group>
		}
		crd := &unstructured.Unstructured{}
		crd.SetGroupVersionKind(crdResource.GroupVersion().WithKind("CustomResourceDefinition"))
		err := c.Get(ctx, client.ObjectKey{Name: crds.Items[i].Name}, crd)
		if confirmsAbsence(err) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("cannot read CRD %s: %w", crds.Items[i].Name, err)
		}
		if kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind"); kind == gk.Kind {
			return true, nil
		}
	}
	return false, nil
}

// absent is the error of an object of which a list showed that it is not there.
func absent(mapping *meta.RESTMapping, e inventory.Entry) error {
	return apierrors.NewNotFound(mapping.Resource.GroupResource(), e.Name)
}

// available reports whether an APIService is: one that the API server itself serves
// always is, and one of another server while that responds.
func available(service *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(service.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Available" {
			return c["status"] == "True"
		}
	}
	return false
}
