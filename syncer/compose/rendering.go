package compose

import (
	"cmp"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/inventory"
)

// Releases tells which Clusters HelmReleases make.
type Releases struct {
	// Made are the Clusters in the inventory of each HelmRelease.
	Made map[types.NamespacedName][]types.NamespacedName
	// Known are Clusters and Children that exist: a release of their name is theirs, if
	// nothing else tells.
	Known map[types.NamespacedName]bool
}

// Add notes the Clusters that a HelmRelease made in this tier.
func (r Releases) Add(h *helmv2.HelmRelease) {
	if h.Spec.KubeConfig != nil || h.Status.Inventory == nil {
		return
	}
	var entries []inventory.Entry
	for _, ref := range h.Status.Inventory.Entries {
		if e, err := inventory.Parse(ref.ID, ref.Version); err == nil {
			entries = append(entries, e)
		}
	}
	if made := inventory.ClustersAmong(entries); len(made) > 0 {
		r.Made[types.NamespacedName{Namespace: h.Namespace, Name: h.Name}] = made
	}
}

// Rendering is what one revision declares, and to which Clusters each object belongs. It is
// not changed after Read.
type Rendering struct {
	Revision string
	objects  []*unstructured.Unstructured
	// of are the Clusters of each object, sorted.
	of [][]types.NamespacedName
}

// Read finds out what belongs to which Cluster: by label, spec.clusterName and owner; a
// HelmRelease to the Clusters that it makes; and whatever these refer to, such as control
// planes, templates, classes, identities and values.
func Read(revision string, objects []*unstructured.Unstructured, releases Releases) *Rendering {
	r := &Rendering{Revision: revision, objects: objects}
	sets := make([]map[types.NamespacedName]bool, len(objects))
	byRef := make(map[clusterapi.Reference]int, len(objects))
	refs := make([][]clusterapi.Reference, len(objects))
	for i, u := range objects {
		byRef[clusterapi.Named(u.GetNamespace(), u.GetKind(), u.GetName())] = i
		refs[i] = referencesOf(u)
		sets[i] = map[types.NamespacedName]bool{}
		for _, c := range clustersOf(u, releases) {
			sets[i][c] = true
		}
	}
	// The loop ends after as many rounds as the longest chain of references has links.
	for changed := true; changed; {
		changed = false
		for i := range objects {
			for _, ref := range refs[i] {
				j, ok := byRef[ref]
				if !ok {
					ref.Namespace = "" // of a kind without namespaces, as an identity
					if j, ok = byRef[ref]; !ok {
						continue
					}
				}
				if clusterapi.IsCluster(objects[j].GroupVersionKind().GroupKind()) {
					continue // it has its own pin
				}
				for c := range sets[i] {
					if !sets[j][c] {
						sets[j][c], changed = true, true
					}
				}
			}
		}
	}
	r.of = make([][]types.NamespacedName, len(objects))
	for i, set := range sets {
		for c := range set {
			r.of[i] = append(r.of[i], c)
		}
		slices.SortFunc(r.of[i], byName)
	}
	return r
}

func byName(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// As is the same rendering under the name of another revision that has the same files.
func (r *Rendering) As(revision string) *Rendering {
	as := *r
	as.Revision = revision
	return &as
}

// Objects of the rendering. They must not be changed.
func (r *Rendering) Objects() []*unstructured.Unstructured { return r.objects }

// Clusters that something of the rendering belongs to, sorted.
func (r *Rendering) Clusters() []types.NamespacedName {
	set := map[types.NamespacedName]bool{}
	var all []types.NamespacedName
	for _, of := range r.of {
		for _, c := range of {
			if !set[c] {
				set[c] = true
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, byName)
	return all
}

// Of are the objects that belong to a Cluster, in their order. They must not be changed.
func (r *Rendering) Of(cluster types.NamespacedName) []*unstructured.Unstructured {
	var list []*unstructured.Unstructured
	for i, u := range r.objects {
		if slices.Contains(r.of[i], cluster) {
			list = append(list, u)
		}
	}
	return list
}

// IsRelease reports whether a kind is HelmRelease.
func IsRelease(kind schema.GroupKind) bool {
	return kind == schema.GroupKind{Group: "helm.toolkit.fluxcd.io", Kind: "HelmRelease"}
}

// clustersOf are the Clusters that an object itself tells of.
func clustersOf(u *unstructured.Unstructured, releases Releases) []types.NamespacedName {
	var list []types.NamespacedName
	for _, name := range clusterapi.ClustersOf(u) {
		list = append(list, types.NamespacedName{Namespace: u.GetNamespace(), Name: name})
	}
	if len(list) > 0 || !IsRelease(u.GroupVersionKind().GroupKind()) {
		return list
	}
	if made := releases.Made[types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}]; len(made) > 0 {
		return made
	}
	text := func(field string) string {
		s, _, _ := unstructured.NestedString(u.Object, "spec", field)
		return s
	}
	name := types.NamespacedName{Namespace: cmp.Or(text("targetNamespace"), u.GetNamespace()), Name: cmp.Or(text("releaseName"), u.GetName())}
	if releases.Known[name] {
		return []types.NamespacedName{name}
	}
	return nil
}

// referencesOf are the objects that an object refers to. A class is referred to without
// its kind.
func referencesOf(u *unstructured.Unstructured) []clusterapi.Reference {
	refs := clusterapi.ReferencesOf(u)
	if clusterapi.IsCluster(u.GroupVersionKind().GroupKind()) {
		if class := clusterapi.ClassOf(u); class.Name != "" {
			refs = append(refs, clusterapi.Named(class.Namespace, clusterapi.ClusterClass, class.Name))
		}
	}
	return refs
}
