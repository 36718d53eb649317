package graph

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Kind of objects that may belong to a Cluster.
type Kind struct {
	// GroupVersionKind in which the objects are stored, so that none of their fields is lost
	// on the way.
	schema.GroupVersionKind
	// Namespaced: the objects are in namespaces.
	Namespaced bool
	// Move: the objects go along although they belong to no Cluster. MoveHierarchy: and so
	// does what they own.
	Move, MoveHierarchy bool
	// Provider whose kind it is, as the label of its definition says; empty if none does.
	Provider string
}

// Kinds of a management cluster, besides Secret and ConfigMap, which every cluster has.
type Kinds []Kind

// of finds a kind, whatever its version.
func (k Kinds) of(kind schema.GroupKind) (Kind, bool) {
	i := slices.IndexFunc(k, func(is Kind) bool { return is.GroupKind() == kind })
	if i < 0 {
		return Kind{}, false
	}
	return k[i], true
}

// page bounds each answer. Definitions are big, and are read in smaller pages.
const (
	page           = 500
	definitionPage = 25
	// callTimeout bounds each call: a server that does not answer is told long before whoever
	// asks has lost patience.
	callTimeout = 30 * time.Second
)

// Served reads the kinds of a management cluster from its definitions.
func Served(ctx context.Context, c client.Reader) (Kinds, error) {
	var kinds Kinds
	err := each(ctx, c, schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}, "", definitionPage,
		func(u *unstructured.Unstructured) {
			if kind, ok := KindOf(u); ok {
				kinds = append(kinds, kind)
			}
		})
	if err != nil {
		return nil, err
	}
	return kinds, nil
}

// KindOf reads a CustomResourceDefinition. ok is false if its objects belong to no Cluster.
// Definitions that clusterctl installed have its label, those of manifests the label of
// their provider.
func KindOf(definition *unstructured.Unstructured) (kind Kind, ok bool) {
	at := func(fields ...string) string {
		s, _, _ := unstructured.NestedString(definition.Object, append([]string{"spec"}, fields...)...)
		return s
	}
	labels := definition.GetLabels()
	_, clusterctl := labels[clusterapi.ClusterctlLabel]
	_, provider := labels[clusterapi.ProviderLabel]
	group := at("group")
	if !Movable(group) || !clusterctl && !provider && !clusterapi.IsGroup(group) {
		return Kind{}, false
	}
	list, _, _ := unstructured.NestedFieldNoCopy(definition.Object, "spec", "versions")
	versions, _ := list.([]any)
	for _, item := range versions {
		v, _ := item.(map[string]any)
		if stored, _ := v["storage"].(bool); !stored {
			continue
		}
		name, _ := v["name"].(string)
		kind = Kind{
			GroupVersionKind: schema.GroupVersionKind{Group: group, Version: name, Kind: at("names", "kind")},
			Namespaced:       at("scope") != "Cluster",
			Provider:         labels[clusterapi.ProviderLabel],
		}
		_, kind.MoveHierarchy = labels[clusterapi.MoveHierarchyLabel]
		_, kind.Move = labels[clusterapi.MoveLabel]
		kind.Move = kind.Move || kind.MoveHierarchy
		return kind, name != "" && kind.Kind != ""
	}
	return Kind{}, false
}

// Movable reports whether objects of a group may be made in a management cluster because they
// were in another one. Whoever owns that one labels its definitions as he likes, and need not be
// who owns this one: nobody gets rights by it, has something run, or declares what is synced.
func Movable(group string) bool {
	switch {
	case group == v1alpha1.Group, v1alpha1.IsFluxGroup(group), clusterapi.IsAdministrative(group):
		return false
	}
	return strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") // those of Kubernetes itself
}

// Has reports whether a kind is one of them, whatever its version.
func (k Kinds) Has(kind schema.GroupKind) bool {
	_, ok := k.of(kind)
	return ok
}

// Read reads all objects of the kinds, and Secrets and ConfigMaps, in the given namespaces
// or in all if none is given, and keeps those that belong to Clusters.
func Read(ctx context.Context, c client.Reader, kinds Kinds, namespaces ...string) (*Graph, error) {
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	var objects []*unstructured.Unstructured
	take := func(u *unstructured.Unstructured) { objects = append(objects, u) }
	for _, kind := range append(slices.Clone(kinds), secrets, configMaps) {
		in := namespaces
		if !kind.Namespaced {
			in = []string{""}
		}
		for _, namespace := range in {
			if err := each(ctx, c, kind.GroupVersionKind, namespace, page, take); err != nil {
				return nil, err
			}
		}
	}
	return Of(objects, kinds)
}

var (
	secrets    = Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, Namespaced: true}
	configMaps = Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Namespaced: true}
)

// isData reports whether an object is a Secret or ConfigMap.
func isData(u *unstructured.Unstructured) bool {
	kind := u.GroupVersionKind().GroupKind()
	return kind == secrets.GroupKind() || kind == configMaps.GroupKind()
}

// each calls f with each object of a kind, page by page.
func each(ctx context.Context, c client.Reader, kind schema.GroupVersionKind, namespace string, limit int64, f func(*unstructured.Unstructured)) error {
	next := ""
	for {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		options := &client.ListOptions{Namespace: namespace, Limit: limit, Continue: next}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := c.List(call, list, options)
		cancel()
		if err != nil {
			return fmt.Errorf("cannot list objects of kind %s: %w", strings.TrimPrefix(kind.GroupKind().String(), "."), err)
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}
