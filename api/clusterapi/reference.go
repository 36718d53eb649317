package clusterapi

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Reference names an object, as a Cluster names its infrastructure.
type Reference struct {
	Group string
	// Version is set where the object is to be read in this version, whatever the
	// API server prefers.
	Version   string
	Kind      string
	Namespace string
	Name      string
}

// IsZero reports whether nothing is referred to.
func (r Reference) IsZero() bool { return r == Reference{} }

// GroupKind of the object.
func (r Reference) GroupKind() schema.GroupKind {
	return schema.GroupKind{Group: r.Group, Kind: r.Kind}
}

// String names the object for people.
func (r Reference) String() string { return r.Kind + " " + r.Name }

// ReferenceAt reads a field that is a reference: of v1beta2, which has a group, or
// of v1beta1, which has a version and may name a namespace. A reference without
// namespace is to the object's own. Without kind and name it is none.
func ReferenceAt(u *unstructured.Unstructured, fields ...string) Reference {
	// The field is not copied: it is only read, and copying panics on what is not JSON.
	field, _, _ := unstructured.NestedFieldNoCopy(u.Object, fields...)
	ref, _ := field.(map[string]any)
	at := func(key string) string { s, _ := ref[key].(string); return s }
	r := Reference{Group: at("apiGroup"), Kind: at("kind"), Namespace: at("namespace"), Name: at("name")}
	if r.Kind == "" || r.Name == "" {
		return Reference{}
	}
	if gv, err := schema.ParseGroupVersion(at("apiVersion")); err == nil && r.Group == "" {
		r.Group, r.Version = gv.Group, gv.Version
	}
	if r.Namespace == "" {
		r.Namespace = u.GetNamespace()
	}
	return r
}

// InfrastructureOf is what a Cluster has as its infrastructure, if anything.
func InfrastructureOf(cluster *unstructured.Unstructured) Reference {
	return ReferenceAt(cluster, "spec", "infrastructureRef")
}

// ControlPlaneOf is what a Cluster has as its control plane, if anything.
func ControlPlaneOf(cluster *unstructured.Unstructured) Reference {
	return ReferenceAt(cluster, "spec", "controlPlaneRef")
}

// PartsOf are the infrastructure and the control plane of a Cluster, as far as it
// has them.
func PartsOf(cluster *unstructured.Unstructured) []Reference {
	var parts []Reference
	for _, r := range []Reference{InfrastructureOf(cluster), ControlPlaneOf(cluster)} {
		if !r.IsZero() {
			parts = append(parts, r)
		}
	}
	return parts
}

// Named is a reference by kind and name alone. Kinds of different providers have
// different names, so the group adds nothing.
func Named(namespace, kind, name string) Reference {
	return Reference{Namespace: namespace, Kind: kind, Name: name}
}

// ReferencesOf finds whatever looks like a reference in the spec of an object, at
// any depth. The references are Named ones.
func ReferencesOf(u *unstructured.Unstructured) []Reference {
	spec, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec")
	if _, ok := spec.(map[string]any); !ok {
		return nil
	}
	return referencesIn(nil, spec, u.GetNamespace())
}

func referencesIn(found []Reference, v any, namespace string) []Reference {
	switch v := v.(type) {
	case map[string]any:
		kind, _ := v["kind"].(string)
		name, _ := v["name"].(string)
		if kind != "" && name != "" {
			in := namespace
			if n, _ := v["namespace"].(string); n != "" {
				in = n
			}
			found = append(found, Named(in, kind, name))
		}
		for _, item := range v {
			found = referencesIn(found, item, namespace)
		}
	case []any:
		for _, item := range v {
			found = referencesIn(found, item, namespace)
		}
	}
	return found
}
