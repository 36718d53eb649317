package apply

import (
	"fmt"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/inventory"
)

// scopes has the kinds whose objects are cluster-scoped. The API server keys such an
// object by its name alone, whatever namespace its manifest has: kustomize sets
// targetNamespace on each custom resource, because it does not know the scope. Entries
// are compared and recorded as the API server keys them. Otherwise the same object
// would look like two, and the prune would delete the one that is declared.
type scopes map[schema.GroupKind]struct{}

// of returns an entry as the API server keys it.
func (s scopes) of(e inventory.Entry) inventory.Entry {
	if _, root := s[e.GroupKind()]; root {
		e.Namespace = ""
	}
	return e
}

// ofAll returns entries as the API server keys them, in their order.
func (s scopes) ofAll(entries []inventory.Entry) []inventory.Entry {
	out := make([]inventory.Entry, 0, len(entries))
	for _, e := range entries {
		out = append(out, s.of(e))
	}
	return out
}

// misplaced reports whether a cluster-scoped object has a namespace.
func (s scopes) misplaced(u *unstructured.Unstructured) bool {
	_, root := s[u.GroupVersionKind().GroupKind()]
	return root && u.GetNamespace() != ""
}

// place removes the namespace of a cluster-scoped object.
func (s scopes) place(u *unstructured.Unstructured) {
	if s.misplaced(u) {
		u.SetNamespace("")
	}
}

// scopes finds the cluster-scoped kinds among those of the entries that have a
// namespace. defined has the scopes of kinds that the API server need not know yet. The
// entries of a kind that nobody knows keep their namespaces. An error tells of a kind
// that could not be looked up: the result has the others.
func (c *Cluster) scopes(entries []inventory.Entry, defined map[schema.GroupKind]meta.RESTScopeName) (scopes, error) {
	found, seen := scopes{}, map[schema.GroupKind]struct{}{}
	var failed error
	for _, e := range entries {
		gk := e.GroupKind()
		if _, done := seen[gk]; done || e.Namespace == "" {
			continue
		}
		seen[gk] = struct{}{}
		scope := defined[gk]
		mapping, err := c.served(e)
		switch {
		case err == nil:
			scope = mapping.Scope.Name()
		case !meta.IsNoMatchError(err) && failed == nil:
			failed = fmt.Errorf("cannot look up whether %s has a namespace: %w", gk, err)
		}
		if scope == meta.RESTScopeNameRoot {
			found[gk] = struct{}{}
		}
	}
	return found, failed
}

// scopesDefined has the scopes of the kinds that definitions of the phases define.
func scopesDefined(phases []Phase) map[schema.GroupKind]meta.RESTScopeName {
	defined := map[schema.GroupKind]meta.RESTScopeName{}
	for _, p := range phases {
		for _, u := range p.Outline() {
			if !ssautil.IsCRD(u) {
				continue
			}
			group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
			kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
			scope, _, _ := unstructured.NestedString(u.Object, "spec", "scope")
			defined[schema.GroupKind{Group: group, Kind: kind}] = meta.RESTScopeNameNamespace
			if scope == "Cluster" {
				defined[schema.GroupKind{Group: group, Kind: kind}] = meta.RESTScopeNameRoot
			}
		}
	}
	return defined
}
