package graph

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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

// page bounds each answer. Definitions are big, and are read in smaller pages; so are Secrets and
// ConfigMaps, which may have a megabyte and a half each: a page of them is no more than what may be
// the answer of a child.
const (
	page           = 500
	definitionPage = 25
	dataPage       = 20
	// callTimeout bounds each call: a server that does not answer is told long before whoever
	// asks has lost patience.
	callTimeout = 30 * time.Second
)

// Served reads the kinds of a management cluster from its definitions.
func Served(ctx context.Context, c client.Reader) (Kinds, error) {
	var kinds Kinds
	r := Reading{Client: c}
	err := r.Each(ctx, definitions, "",
		func(u *unstructured.Unstructured) error {
			kind, ok := KindOf(u)
			if !ok {
				return nil
			}
			for _, name := range []string{kind.Group, kind.Version, kind.Kind, kind.Provider} {
				if len(name) > mostName {
					return fmt.Errorf("cannot use a CustomResourceDefinition: a name in it is longer than %d letters", mostName)
				}
			}
			if kinds = append(kinds, kind); len(kinds) > mostKinds {
				return fmt.Errorf("cannot use the CustomResourceDefinitions: there are more than %d kinds of Cluster API and of its providers", mostKinds)
			}
			return nil
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

// Bounds of what is read.
const (
	// mostObjects is how many objects are looked at, and pages: a server can always have one more.
	mostObjects = 500_000
	// mostKinds is how many kinds are held, and mostName how long a name in one is: no API server has
	// longer ones.
	mostKinds = 10_000
	mostName  = 253
	// readings is how often it is read where what is kept changes meanwhile.
	readings = 3
)

// Read reads the objects of the kinds, and Secrets and ConfigMaps, and keeps those that belong to
// Clusters: to the given ones with what they share, as Only does, or to any if none is given. Of
// Secrets and ConfigMaps only those that are kept are read with what is in them. It fails rather
// than to hold more than about most bytes; 0 is no bound, for a server that is trusted.
func Read(ctx context.Context, c client.Reader, kinds Kinds, most int64, clusters ...types.NamespacedName) (*Graph, error) {
	for reading := 1; ; reading++ {
		r := Reading{Client: c, Most: most}
		g, err := r.read(ctx, kinds, clusters)
		if !errors.Is(err, errChanged) || reading == readings {
			return g, err
		}
	}
}

// errChanged: what is kept is another one by now.
var errChanged = errors.New("it changes while it is read")

// Reading of a server, page by page: it fails where there is always one more, and where more is held
// than may be.
type Reading struct {
	Client client.Reader
	// Most is about how many bytes may be held; 0 is no bound, for a server that is trusted.
	Most int64

	looked int
	held   int64
}

func (r *Reading) read(ctx context.Context, kinds Kinds, clusters []types.NamespacedName) (*Graph, error) {
	var objects []*unstructured.Unstructured
	for _, kind := range kinds {
		err := r.Each(ctx, kind.GroupVersionKind, "", func(u *unstructured.Unstructured) error {
			objects = append(objects, u)
			return r.Hold(u)
		})
		if err != nil {
			return nil, err
		}
	}
	for _, kind := range []Kind{secrets, configMaps} {
		err := r.names(ctx, kind.GroupVersionKind, func(u *unstructured.Unstructured) error {
			objects = append(objects, u)
			return r.Hold(u)
		})
		if err != nil {
			return nil, err
		}
	}
	g, err := Of(objects, kinds)
	if err != nil {
		return nil, err
	}
	if len(clusters) > 0 {
		g = g.Only(clusters...)
	}
	return g, r.fill(ctx, g)
}

// Hold counts an object that is held, and fails if it is too much.
func (r *Reading) Hold(u *unstructured.Unstructured) error {
	if r.held += weight(u.Object); r.Most > 0 && r.held > r.Most {
		return fmt.Errorf("cannot hold the objects of Cluster API and of its providers, and the names of Secrets and ConfigMaps: they take more than %d MB", r.Most>>20)
	}
	return nil
}

// weight is about how many bytes a value takes in memory, and not too few: a map has its entries in
// groups of eight, and the whole of a group however few there are, and a slice may have as much room
// again as it has items.
func weight(v any) int64 {
	switch v := v.(type) {
	case map[string]any:
		const group = 288
		n, groups := int64(48), 1
		for ; groups*8 < len(v) || groups > 1 && groups*7 < len(v); groups *= 2 {
		}
		if len(v) > 0 {
			n += int64(groups) * group
		}
		for key, item := range v {
			n += int64(len(key)) + 8 + weight(item)
		}
		return n
	case []any:
		n := int64(24)
		for _, item := range v {
			n += 32 + weight(item)
		}
		return n
	case string:
		return int64(len(v)) + 24
	}
	return 8
}

// fill gives the Secrets and ConfigMaps of a graph what is in them. Namespaces that have none of
// them are not asked, and of the others a page at a time is held.
func (r *Reading) fill(ctx context.Context, g *Graph) error {
	type place struct {
		kind      schema.GroupVersionKind
		namespace string
	}
	missing := map[types.UID]*Node{}
	places := map[place]bool{}
	for uid, n := range g.nodes {
		if isData(n.Object) {
			missing[uid] = n
			places[place{n.Object.GroupVersionKind(), n.Object.GetNamespace()}] = true
		}
	}
	for at := range places {
		err := r.Each(ctx, at.kind, at.namespace, func(u *unstructured.Unstructured) error {
			n := missing[u.GetUID()]
			if n == nil || u.GetResourceVersion() != n.Object.GetResourceVersion() {
				return nil
			}
			n.Object = u
			delete(missing, u.GetUID())
			return r.Hold(u)
		})
		if err != nil {
			return err
		}
	}
	for _, n := range missing {
		return fmt.Errorf("cannot read %s: %w", n.Name(), errChanged)
	}
	return nil
}

var (
	secrets    = Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, Namespaced: true}
	configMaps = Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Namespaced: true}
)

var definitions = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// isData reports whether an object is a Secret or ConfigMap.
func isData(u *unstructured.Unstructured) bool { return isDataKind(u.GroupVersionKind().GroupKind()) }

func isDataKind(kind schema.GroupKind) bool {
	return kind == secrets.GroupKind() || kind == configMaps.GroupKind()
}

// Each calls f with each object of a kind in a namespace, or in all if it is empty, page by page. What
// f does not keep is gone with its page.
func (r *Reading) Each(ctx context.Context, kind schema.GroupVersionKind, namespace string, f func(*unstructured.Unstructured) error) error {
	limit := int64(page)
	switch is := kind.GroupKind(); {
	case is == definitions.GroupKind():
		limit = definitionPage
	case isDataKind(is):
		limit = dataPage
	}
	list := &unstructured.UnstructuredList{}
	return r.pages(ctx, list, kind, namespace, limit, func() error {
		for i := range list.Items {
			// A pointer into the page would hold all of it.
			if err := f(&unstructured.Unstructured{Object: list.Items[i].Object}); err != nil {
				return err
			}
		}
		list.Items = nil
		return nil
	})
}

// names calls f with each object of a kind, with what places it in a graph and nothing else.
func (r *Reading) names(ctx context.Context, kind schema.GroupVersionKind, f func(*unstructured.Unstructured) error) error {
	list := &metav1.PartialObjectMetadataList{}
	return r.pages(ctx, list, kind, "", page, func() error {
		for i := range list.Items {
			m, u := &list.Items[i], &unstructured.Unstructured{Object: map[string]any{}}
			u.SetGroupVersionKind(kind)
			u.SetNamespace(m.Namespace)
			u.SetName(m.Name)
			u.SetUID(m.UID)
			u.SetResourceVersion(m.ResourceVersion)
			u.SetLabels(m.Labels)
			u.SetOwnerReferences(m.OwnerReferences)
			if name := m.Annotations[clusterapi.AzureCredentialAnnotation]; name != "" {
				u.SetAnnotations(map[string]string{clusterapi.AzureCredentialAnnotation: name})
			}
			if err := f(u); err != nil {
				return err
			}
		}
		list.Items = nil
		return nil
	})
}

// pages lists a kind page by page, and calls f after each.
func (r *Reading) pages(ctx context.Context, list client.ObjectList, kind schema.GroupVersionKind, namespace string, limit int64, f func() error) error {
	next := ""
	for {
		list.GetObjectKind().SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		options := &client.ListOptions{Namespace: namespace, Limit: limit, Continue: next}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := r.Client.List(call, list, options)
		cancel()
		if err != nil {
			return fmt.Errorf("cannot list objects of kind %s: %w", strings.TrimPrefix(kind.GroupKind().String(), "."), err)
		}
		if r.looked += max(meta.LenList(list), 1); r.looked > mostObjects {
			return fmt.Errorf("cannot list objects of kind %s: there are more than %d objects", strings.TrimPrefix(kind.GroupKind().String(), "."), mostObjects)
		}
		if err := f(); err != nil {
			return err
		}
		if next = list.GetContinue(); next == "" {
			return nil
		}
		list.SetContinue("")
	}
}
