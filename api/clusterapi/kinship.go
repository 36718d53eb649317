package clusterapi

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// KubeconfigSecret is the name of the Secret with a Cluster's kubeconfig.
func KubeconfigSecret(cluster string) string { return cluster + kubeconfigSuffix }

// ClusterOfKubeconfig names the Cluster whose kubeconfig a Secret holds: the one that
// its label names, if the Secret has the name that goes with it. It is in the
// namespace of the Secret.
func ClusterOfKubeconfig(secret metav1.Object) (cluster string, ok bool) {
	cluster = secret.GetLabels()[ClusterNameLabel]
	if cluster == "" || secret.GetName() != KubeconfigSecret(cluster) {
		return "", false
	}
	return cluster, true
}

// ClusterOfSecret names the Cluster for which a Secret is by its name alone, as clusterctl
// reads it: <cluster>-<purpose>. It is in the namespace of the Secret, if it exists. ok is
// false if the name has no purpose that Cluster API knows.
func ClusterOfSecret(name string) (cluster string, ok bool) {
	for _, purpose := range secretPurposes() {
		if cluster, ok := strings.CutSuffix(name, "-"+purpose); ok && cluster != "" {
			return cluster, true
		}
	}
	return "", false
}

// ClusterOf names the Cluster that an object is a part of, by its label or else by
// its owner; empty if neither names one, and for a Cluster itself. Core sets both on
// what a Cluster refers to.
func ClusterOf(u *unstructured.Unstructured) string {
	if IsCluster(u.GroupVersionKind().GroupKind()) {
		return ""
	}
	if name := u.GetLabels()[ClusterNameLabel]; name != "" {
		return name
	}
	return OwnerOf(u, Cluster)
}

// ClustersOf names every Cluster that an object itself names: by its label, by
// spec.clusterName and by its owners. A Cluster names itself.
func ClustersOf(u *unstructured.Unstructured) []string {
	if IsCluster(u.GroupVersionKind().GroupKind()) {
		return []string{u.GetName()}
	}
	var names []string
	add := func(name string) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	add(u.GetLabels()[ClusterNameLabel])
	name, _, _ := unstructured.NestedString(u.Object, "spec", "clusterName")
	add(name)
	for _, ref := range u.GetOwnerReferences() {
		if isOwner(ref, Cluster) {
			add(ref.Name)
		}
	}
	return names
}

// OwnerOf names the first owner of an object that is of a core kind; empty if it has
// none.
func OwnerOf(o metav1.Object, kind string) string {
	for _, ref := range o.GetOwnerReferences() {
		if isOwner(ref, kind) {
			return ref.Name
		}
	}
	return ""
}

func isOwner(ref metav1.OwnerReference, kind string) bool {
	return ref.Kind == kind && strings.HasPrefix(ref.APIVersion, Group+"/")
}

// HasPart reports whether a Cluster has an object as its infrastructure or control
// plane. Both are in the namespace of the Cluster, whatever the reference says.
func HasPart(cluster *unstructured.Unstructured, namespace, kind, name string) bool {
	return cluster.GetNamespace() == namespace && slices.ContainsFunc(PartsOf(cluster), func(r Reference) bool {
		return r.Kind == kind && r.Name == name
	})
}

// RefersTo reports whether a Cluster refers to an object anywhere in its spec.
func RefersTo(cluster *unstructured.Unstructured, namespace, kind, name string) bool {
	return slices.Contains(ReferencesOf(cluster), Named(namespace, kind, name))
}

// ClassOf names the ClusterClass of a Cluster with a managed topology, as v1beta2 or
// as v1beta1 writes it; zero if it has none.
func ClassOf(cluster *unstructured.Unstructured) types.NamespacedName {
	at := func(fields ...string) string {
		s, _, _ := unstructured.NestedString(cluster.Object, append([]string{"spec", "topology"}, fields...)...)
		return s
	}
	class := types.NamespacedName{Namespace: at("classRef", "namespace"), Name: at("classRef", "name")}
	if class.Name == "" {
		class = types.NamespacedName{Namespace: at("classNamespace"), Name: at("class")}
	}
	if class.Name == "" {
		return types.NamespacedName{}
	}
	if class.Namespace == "" {
		class.Namespace = cluster.GetNamespace()
	}
	return class
}

// IsPaused reports whether the reconciliation of a Cluster is stopped, by its spec or
// by annotation. clusterctl pauses what it moves or restores.
func IsPaused(cluster *unstructured.Unstructured) bool {
	_, annotated := cluster.GetAnnotations()[PausedAnnotation]
	return annotated || IsPausedBySpec(cluster)
}

// IsPausedBySpec reports whether it is paused by its field, which goes along with the Cluster
// as its annotations do, and is taken away in another way.
func IsPausedBySpec(cluster *unstructured.Unstructured) bool {
	paused, _, _ := unstructured.NestedBool(cluster.Object, "spec", "paused")
	return paused
}

// IsMoved reports whether clusterctl deletes an object here because it has created
// it in another management cluster. What the object stands for lives on.
func IsMoved(o metav1.Object) bool {
	_, ok := o.GetAnnotations()[DeleteForMoveAnnotation]
	return ok
}

// IsMoveBlocked reports whether a controller keeps clusterctl from moving an object.
func IsMoveBlocked(o metav1.Object) bool {
	_, ok := o.GetAnnotations()[BlockMoveAnnotation]
	return ok
}

// Fields of spec by which one object names an identity: a cluster or control plane
// the identity that it uses, an identity the one behind it.
const (
	IdentityField       = "identityRef"
	SourceIdentityField = "sourceIdentityRef"
)

// NamesIdentity reports whether a field of an object's spec refers to an identity.
// Identities of some kinds have no namespace; then any reference by name fits. OpenStack
// writes the kind as a type, without the name of the provider.
func NamesIdentity(u *unstructured.Unstructured, field, namespace, kind, name string) bool {
	ref, found, _ := unstructured.NestedStringMap(u.Object, "spec", field)
	if !found {
		return false
	}
	in, of := ref["namespace"], ref["kind"]
	if in == "" {
		in = u.GetNamespace()
	}
	if of == "" && ref["type"] != "" {
		of = strings.TrimSuffix(u.GetKind(), Cluster) + ref["type"]
	}
	return of == kind && ref["name"] == name && (namespace == "" || in == namespace)
}

// ReadsSecret reports whether an object of a provider has its keys in a Secret. A Secret
// beside the controllers, without a namespace, may be any of that name.
func ReadsSecret(u *unstructured.Unstructured, namespace, name string) bool {
	return slices.ContainsFunc(keysOf(u), func(r types.NamespacedName) bool {
		return r.Name == name && (r.Namespace == "" || r.Namespace == namespace)
	})
}

// SecretsOf are the Secrets that fields of an object's spec refer to, at any depth: fields whose
// names say so, and identityRef without the kind of an identity. They are in the namespace of the
// object if none is said. One without a namespace means a Secret beside its controllers then,
// which has none here.
func SecretsOf(u *unstructured.Unstructured) []types.NamespacedName {
	spec, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec")
	return secretsIn(nil, spec, u.GetNamespace())
}

func secretsIn(found []types.NamespacedName, v any, namespace string) []types.NamespacedName {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			found = secretsIn(found, item, namespace)
		}
	case map[string]any:
		for key, item := range v {
			found = secretAt(secretsIn(found, item, namespace), key, item, namespace)
		}
	}
	return found
}

// secretAt adds the Secret that a field refers to, if it does.
func secretAt(found []types.NamespacedName, field string, v any, namespace string) []types.NamespacedName {
	if !namesSecret(field) {
		return found
	}
	secret := types.NamespacedName{Namespace: namespace}
	switch ref := v.(type) {
	case string:
		if field == endpointField {
			return found // an address
		}
		secret.Name = ref
	case map[string]any:
		at := func(field string) string { s, _ := ref[field].(string); return s }
		if kind := cmp.Or(at("kind"), at("type"), "Secret"); kind != "Secret" {
			return found
		}
		secret = types.NamespacedName{Namespace: cmp.Or(at("namespace"), namespace), Name: at("name")}
	}
	if secret.Name == "" {
		return found
	}
	return append(found, secret)
}

// keysOf are those SecretsOf an object that may have the keys of its cloud. A control plane names these
// at the top of its spec; further down it names files and keys of machines, and of what users log in with, which
// nothing needs to take it down.
func keysOf(u *unstructured.Unstructured) []types.NamespacedName {
	if u.GroupVersionKind().Group != ControlPlaneGroup {
		return SecretsOf(u)
	}
	spec, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec")
	fields, _ := spec.(map[string]any)
	var found []types.NamespacedName
	for field, v := range fields {
		found = secretAt(found, field, v, u.GetNamespace())
	}
	return found
}

// endpointField is where CloudStack names the Secret with the address of a cloud and the keys for it.
const endpointField = "acsEndpoint"

// namesSecret reports whether the name of a field says that it refers to a Secret. Providers have
// names of their own: secretRef, clientSecret, secretName, principalSecret, hetznerSecretRef,
// credentialRef, credentialsRef, acsEndpoint.
func namesSecret(field string) bool {
	if field == IdentityField || field == endpointField {
		return true
	}
	field = strings.ToLower(field)
	return slices.ContainsFunc([]string{"secret", "secretref", "secretname", "credentialref", "credentialsref"}, func(end string) bool {
		return strings.HasSuffix(field, end)
	})
}
