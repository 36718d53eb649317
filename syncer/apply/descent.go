package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
)

const (
	clusterGroup    = "cluster.x-k8s.io"
	clusterName     = clusterGroup + "/cluster-name"
	clusterSecret   = clusterGroup + "/secret"
	infrastructure  = "infrastructure." + clusterGroup
	controlPlane    = "controlplane." + clusterGroup
	clusterClass    = "ClusterClass"
	identitySuffix  = "Identity"
	templateSuffix  = "Template"
	identitiesChain = 8
)

var clusterKind = schema.GroupKind{Group: clusterGroup, Kind: "Cluster"}

func isCluster(e inventory.Entry) bool { return e.GroupKind() == clusterKind }

// isOfClusterAPI reports whether a group is one of Cluster API's or of a provider.
func isOfClusterAPI(group string) bool {
	return group == clusterGroup || strings.HasSuffix(group, "."+clusterGroup)
}

// kin is what was read of a cluster's Clusters and identities for one plan, so
// that many objects of one plan cost one list.
type kin struct {
	clusters map[string][]unstructured.Unstructured
	// users are the objects that name an identity, identities those that name a
	// Secret or another identity; nil before they are asked for.
	users, identities []unstructured.Unstructured
	asked             bool
	// claimed may be nil.
	claimed Claims
}

// neededBy names the Cluster that an object is a part of, or that needs it to be
// taken apart one day, and the identity that reads a Secret. What Cluster API has
// not adopted yet, or a provider does not mark, is found by what refers to it.
func (a *Applier) neededBy(ctx context.Context, e inventory.Entry, u *unstructured.Unstructured, k *kin) (ofCluster, credential string, err error) {
	if isCluster(e) {
		return "", "", nil
	}
	if name := clusterOf(u); name != "" {
		exists, err := a.clusterExists(ctx, inventory.Entry{Namespace: e.Namespace, Name: name, Group: clusterGroup, Kind: clusterKind.Kind})
		if err != nil {
			return "", "", err
		}
		if exists {
			return name, "", nil
		}
	}
	isSecret := ssautil.IsSecret(u)
	if !isOfClusterAPI(e.Group) && !isSecret {
		return "", "", nil
	}
	if _, err := a.client.RESTMapper().RESTMapping(clusterKind); meta.IsNoMatchError(err) {
		return "", "", nil // there are no Clusters
	} else if err != nil {
		return "", "", fmt.Errorf("cannot look up kind Cluster: %w", err)
	}
	switch {
	case isSecret:
		return a.credentialOf(ctx, e, k)
	case strings.HasSuffix(e.Kind, identitySuffix):
		// Its own namespace, not that of its Kustomization's targetNamespace.
		e.Namespace = u.GetNamespace()
		ofCluster, err := a.identifies(ctx, e, k)
		return ofCluster, "", err
	}
	ofCluster, err = a.referredTo(ctx, e, u, k)
	return ofCluster, "", err
}

// clusterOf names the Cluster that an object of Cluster API or a provider is a
// part of: core labels and adopts what a Cluster refers to.
func clusterOf(u *unstructured.Unstructured) string {
	gvk := u.GroupVersionKind()
	if gvk.GroupKind() == clusterKind {
		return ""
	}
	if name := u.GetLabels()[clusterName]; name != "" {
		return name
	}
	return ownerOf(u, clusterKind.Kind)
}

// ownerOf names the owner of a kind of Cluster API's core.
func ownerOf(u *unstructured.Unstructured, kind string) string {
	for _, ref := range u.GetOwnerReferences() {
		if ref.Kind == kind && strings.HasPrefix(ref.APIVersion, clusterGroup+"/") {
			return ref.Name
		}
	}
	return ""
}

func (a *Applier) clusterExists(ctx context.Context, e inventory.Entry) (bool, error) {
	mapping, err := a.client.RESTMapper().RESTMapping(clusterKind)
	if meta.IsNoMatchError(err) {
		gone := a.kindGone(ctx, e)
		if gone.State == inventory.Unknown {
			return false, errors.New(gone.Problem)
		}
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look up kind Cluster: %w", err)
	}
	u := &metav1.PartialObjectMetadata{}
	u.SetGroupVersionKind(mapping.GroupVersionKind)
	err = a.client.Get(ctx, client.ObjectKey{Namespace: e.Namespace, Name: e.Name}, u)
	if confirmsAbsence(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read Cluster %s/%s: %w", e.Namespace, e.Name, err)
	}
	return true, nil
}

// referredTo names a Cluster that refers to an object: as its infrastructure or
// control plane, or as its class or a template of that.
func (a *Applier) referredTo(ctx context.Context, e inventory.Entry, u *unstructured.Unstructured, k *kin) (string, error) {
	class := ownerOf(u, clusterClass)
	if e.Group == clusterGroup && e.Kind == clusterClass {
		class = e.Name
	}
	within := e.Namespace
	if class != "" {
		within = "" // a class may be used from other namespaces
	}
	clusters, err := a.clusters(ctx, within, k)
	if err != nil {
		return "", err
	}
	for i := range clusters {
		c := &clusters[i]
		if class != "" && usesClass(c, e.Namespace, class) || refersTo(c, e) {
			return c.GetName(), nil
		}
	}
	return "", nil
}

// refersTo reports whether a Cluster has an object as its infrastructure or
// control plane.
func refersTo(c *unstructured.Unstructured, e inventory.Entry) bool {
	if c.GetNamespace() != e.Namespace {
		return false
	}
	for _, field := range []string{"infrastructureRef", "controlPlaneRef"} {
		kind, _, _ := unstructured.NestedString(c.Object, "spec", field, "kind")
		name, _, _ := unstructured.NestedString(c.Object, "spec", field, "name")
		if name != "" && kind == e.Kind && name == e.Name {
			return true
		}
	}
	return false
}

// usesClass reports whether a Cluster has a class, as v1beta2 and v1beta1 write
// it.
func usesClass(c *unstructured.Unstructured, namespace, class string) bool {
	topology, found, _ := unstructured.NestedMap(c.Object, "spec", "topology")
	if !found {
		return false
	}
	name, _, _ := unstructured.NestedString(topology, "classRef", "name")
	from, _, _ := unstructured.NestedString(topology, "classRef", "namespace")
	if name == "" {
		name, _, _ = unstructured.NestedString(topology, "class")
		from, _, _ = unstructured.NestedString(topology, "classNamespace")
	}
	if from == "" {
		from = c.GetNamespace()
	}
	return name == class && from == namespace
}

// clusters lists the Clusters of a namespace, or of all.
func (a *Applier) clusters(ctx context.Context, namespace string, k *kin) ([]unstructured.Unstructured, error) {
	if found, ok := k.clusters[namespace]; ok {
		return found, nil
	}
	mapping, err := a.client.RESTMapper().RESTMapping(clusterKind)
	if err != nil {
		return nil, fmt.Errorf("cannot look up kind Cluster: %w", err)
	}
	found, err := a.list(ctx, mapping.GroupVersionKind, namespace)
	if err != nil {
		return nil, err
	}
	if k.clusters == nil {
		k.clusters = map[string][]unstructured.Unstructured{}
	}
	k.clusters[namespace] = found
	return found, nil
}

func (a *Applier) list(ctx context.Context, gvk schema.GroupVersionKind, namespace string) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err := a.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("cannot list %s: %w", gvk.Kind, err)
	}
	return list.Items, nil
}

// identifies names what uses an identity to reach its cloud: a Cluster if it is
// known of which, or else the object that names it.
func (a *Applier) identifies(ctx context.Context, e inventory.Entry, k *kin) (string, error) {
	if err := a.identities(ctx, e.Namespace, k); err != nil {
		return "", err
	}
	return userOf(e, k), nil
}

func userOf(e inventory.Entry, k *kin) string {
	// An identity may stand behind another.
	for range identitiesChain {
		for i := range k.users {
			if u := &k.users[i]; namesIdentity(u, "identityRef", e) {
				if name := clusterOf(u); name != "" {
					return name
				}
				return u.GetName()
			}
		}
		at := slices.IndexFunc(k.identities, func(i unstructured.Unstructured) bool { return namesIdentity(&i, "sourceIdentityRef", e) })
		if at < 0 {
			return ""
		}
		e = inventory.Of(&k.identities[at])
	}
	return ""
}

func namesIdentity(u *unstructured.Unstructured, field string, e inventory.Entry) bool {
	ref, found, _ := unstructured.NestedStringMap(u.Object, "spec", field)
	if !found {
		return false
	}
	namespace := ref["namespace"]
	if namespace == "" {
		namespace = u.GetNamespace()
	}
	return ref["kind"] == e.Kind && ref["name"] == e.Name && (e.Namespace == "" || namespace == e.Namespace)
}

// credentialOf tells which identity reads a Secret, and which Cluster uses that.
func (a *Applier) credentialOf(ctx context.Context, e inventory.Entry, k *kin) (ofCluster, credential string, err error) {
	if err := a.identities(ctx, e.Namespace, k); err != nil {
		return "", "", err
	}
	for i := range k.identities {
		u := &k.identities[i]
		if !readsSecret(u, e) {
			continue
		}
		identity := inventory.Of(u)
		if user := userOf(identity, k); user != "" {
			return user, identity.String(), nil
		}
		credential = identity.String()
	}
	return "", credential, nil
}

// readsSecret reports whether an identity has its keys in a Secret. AWS writes
// secretRef and means a Secret beside its controller, Azure clientSecret, vSphere
// secretName.
func readsSecret(u *unstructured.Unstructured, e inventory.Entry) bool {
	spec, _, _ := unstructured.NestedMap(u.Object, "spec")
	for _, field := range []string{"secretRef", "clientSecret", "secretName"} {
		switch ref := spec[field].(type) {
		case string:
			if ref == e.Name && (u.GetNamespace() == "" || u.GetNamespace() == e.Namespace) {
				return true
			}
		case map[string]any:
			namespace, _ := ref["namespace"].(string)
			if namespace == "" {
				namespace = u.GetNamespace()
			}
			if ref["name"] == e.Name && (namespace == "" || namespace == e.Namespace) {
				return true
			}
		}
	}
	return false
}

// identities reads what names an identity and what is one, once for a plan. With
// rights for one namespace only, what is there counts.
func (a *Applier) identities(ctx context.Context, namespace string, k *kin) error {
	if k.asked {
		return nil
	}
	kinds, err := a.client.providerKinds()
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		isIdentity := strings.HasSuffix(kind.gvk.Kind, identitySuffix)
		if !isIdentity && !strings.HasSuffix(kind.gvk.Kind, "Cluster") && !strings.HasSuffix(kind.gvk.Kind, "ControlPlane") {
			continue
		}
		found, err := a.list(ctx, kind.gvk, "")
		if apierrors.IsForbidden(err) && kind.namespaced {
			found, err = a.list(ctx, kind.gvk, namespace)
		}
		if apierrors.IsForbidden(err) {
			continue
		}
		if err != nil {
			return err
		}
		if isIdentity {
			k.identities = append(k.identities, found...)
		} else {
			k.users = append(k.users, found...)
		}
	}
	k.asked = true
	return nil
}

type providerKind struct {
	gvk        schema.GroupVersionKind
	namespaced bool
}

// providerKinds lists the kinds of infrastructure and control plane providers,
// each once. Groups of others may fail to answer; of these none may.
func (c *Cluster) providerKinds() ([]providerKind, error) {
	_, lists, err := c.discovery.ServerGroupsAndResources()
	if failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err); ok {
		err = nil
		for gv, cause := range failed {
			if isOfClusterAPI(gv.Group) {
				err = cause
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot discover kinds of Cluster API: %w", err)
	}
	var kinds []providerKind
	seen := map[schema.GroupKind]bool{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("cannot parse group version %q: %w", list.GroupVersion, err)
		}
		if gv.Group != infrastructure && gv.Group != controlPlane {
			continue
		}
		for _, r := range list.APIResources {
			gvk := gv.WithKind(r.Kind)
			if seen[gvk.GroupKind()] || strings.HasSuffix(r.Kind, templateSuffix) || !slices.Contains(r.Verbs, "list") {
				continue
			}
			seen[gvk.GroupKind()] = true
			kinds = append(kinds, providerKind{gvk: gvk, namespaced: r.Namespaced})
		}
	}
	return kinds, nil
}
