package release

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/kube"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/render"
)

// objectsOf reads the manifest of a release, without its hooks. Objects without
// a namespace get that of the release, cluster-scoped ones have none. The warnings are about kinds of which it
// is not known whether they have a namespace.
func objectsOf(rel *helmrelease.Release, mapper meta.RESTMapper) (objects []*unstructured.Unstructured, warnings []string, err error) {
	objects, warnings, err = objectsIn(rel, rel.Manifest, mapper)
	return slices.DeleteFunc(objects, func(u *unstructured.Unstructured) bool {
		_, hook := u.GetAnnotations()[helmrelease.HookAnnotation]
		return hook
	}), warnings, err
}

// objectsIn reads a text of a release as objectsOf does, hooks included.
func objectsIn(rel *helmrelease.Release, text string, mapper meta.RESTMapper) (objects []*unstructured.Unstructured, warnings []string, err error) {
	if objects, err = readObjects(rel, text); err != nil {
		return nil, nil, err
	}
	for _, u := range objects {
		gvk := u.GroupVersionKind()
		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		switch {
		case err != nil && u.GetNamespace() == "":
			w := fmt.Sprintf("failed to determine if %s is namespace scoped, skipping namespace: %s", gvk.Kind, err)
			if !slices.Contains(warnings, w) {
				warnings = append(warnings, w)
			}
		case err != nil:
		case mapping.Scope.Name() == meta.RESTScopeNameRoot:
			u.SetNamespace("")
		case u.GetNamespace() == "":
			u.SetNamespace(rel.Namespace)
		}
	}
	return objects, warnings, nil
}

// readObjects reads a text of a release as it is.
func readObjects(rel *helmrelease.Release, text string) ([]*unstructured.Unstructured, error) {
	objects, err := checkedObjects(text)
	if err != nil {
		return nil, fmt.Errorf("cannot read manifest of release %s/%s.v%d: %w", rel.Namespace, rel.Name, rel.Version, err)
	}
	return objects, nil
}

// checkedObjects reads a text, which may be hostile.
func checkedObjects(text string) ([]*unstructured.Unstructured, error) {
	if err := render.Check([]byte(text)); err != nil {
		return nil, err
	}
	objects, err := ssautil.ReadObjects(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("failed to parse manifest: %w", err)
	}
	return objects, nil
}

// definitionsOf are the objects of the crds directories of a chart.
func definitionsOf(c *chart.Chart) ([]*unstructured.Unstructured, error) {
	var found []*unstructured.Unstructured
	var nodes definitionNodes
	for _, crd := range c.CRDObjects() {
		if err := nodes.check(crd.File.Data); err != nil {
			return nil, fmt.Errorf("failed to parse CRD %s: %w", crd.Name, err)
		}
		objects, err := ssautil.ReadObjects(bytes.NewReader(crd.File.Data))
		if err != nil {
			return nil, fmt.Errorf("failed to parse CRD %s: %w", crd.Name, err)
		}
		found = append(found, objects...)
	}
	return found, nil
}

// keptByPolicy reports whether Helm leaves an object behind when the release goes.
func keptByPolicy(u *unstructured.Unstructured) bool {
	return isKeep(u.GetAnnotations()[kube.ResourcePolicyAnno])
}

// entriesOf reads a recorded inventory. An entry that cannot be read is left
// out, because it names no object.
func entriesOf(i *v2.ResourceInventory) []inventory.Entry {
	if i == nil {
		return nil
	}
	var entries []inventory.Entry
	for _, ref := range i.Entries {
		if e, err := inventory.Parse(ref.ID, ref.Version); err == nil {
			entries = append(entries, e)
		}
	}
	return entries
}

// refsOf is the record of entries, in their order.
func refsOf(entries []inventory.Entry) *v2.ResourceInventory {
	refs := make([]v2.ResourceRef, 0, len(entries))
	for _, e := range entries {
		refs = append(refs, v2.ResourceRef{ID: e.ID(), Version: e.Version})
	}
	return &v2.ResourceInventory{Entries: refs}
}
