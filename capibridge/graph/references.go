package graph

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// referencesOf finds what an object refers to: by kind and name anywhere in its spec, its
// class, the Secrets and ConfigMaps in fields that are named so, and the resources that it
// has written out in itself. Some lead nowhere.
func referencesOf(u *unstructured.Unstructured) []clusterapi.Reference {
	refs := clusterapi.ReferencesOf(u)
	if isCluster(u) {
		if class := clusterapi.ClassOf(u); class.Name != "" {
			refs = append(refs, clusterapi.Named(class.Namespace, clusterapi.ClusterClass, class.Name))
		}
	}
	group := u.GroupVersionKind().Group
	if strings.HasSuffix(group, clusterapi.AzureGroupSuffix) || strings.HasPrefix(u.GetKind(), clusterapi.AzureOperatorPrefix) {
		refs = append(refs, clusterapi.Named(u.GetNamespace(), secrets.Kind, clusterapi.AzureNamespaceSecret))
	}
	if name := u.GetAnnotations()[clusterapi.AzureCredentialAnnotation]; name != "" {
		refs = append(refs, clusterapi.Named(u.GetNamespace(), secrets.Kind, name))
	}
	for _, s := range clusterapi.SecretsOf(u) {
		if s.Namespace != "" {
			refs = append(refs, clusterapi.Named(s.Namespace, secrets.Kind, s.Name))
		}
	}
	spec, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec")
	return inFields(refs, spec, u.GetNamespace())
}

// inFields looks for fields that name a ConfigMap without saying the kind, for
// credentials in annotations, and for resources written out.
func inFields(found []clusterapi.Reference, v any, namespace string) []clusterapi.Reference {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			found = inFields(found, item, namespace)
		}
	case map[string]any:
		found = append(found, writtenOut(v, namespace)...)
		for key, item := range v {
			found = inFields(found, item, namespace)
			kind := kindOfField(key)
			if kind == "" {
				continue
			}
			in, name := namespace, ""
			switch ref := item.(type) {
			case string:
				name = ref
			case map[string]any:
				name, _ = ref["name"].(string)
				if n, _ := ref["namespace"].(string); n != "" {
					in = n
				}
				if other, _ := ref["kind"].(string); other != "" {
					kind = other
				}
			}
			if name != "" && in != "" {
				found = append(found, clusterapi.Named(in, kind, name))
			}
		}
	}
	return found
}

// kindOfField is the kind that fields of a name refer to; empty if they name none.
func kindOfField(key string) string {
	switch key {
	case clusterapi.AzureCredentialAnnotation:
		return secrets.Kind
	case "configMap", "configMapRef":
		return configMaps.Kind
	}
	return ""
}

// writtenOut refers to the object that is made of what is written out here, as in the
// resources of AzureASOManagedCluster.
func writtenOut(v map[string]any, namespace string) []clusterapi.Reference {
	kind, _ := v["kind"].(string)
	version, _ := v["apiVersion"].(string)
	if kind == "" || version == "" {
		return nil
	}
	if _, err := schema.ParseGroupVersion(version); err != nil {
		return nil
	}
	metadata, _ := v["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if name == "" {
		return nil
	}
	return []clusterapi.Reference{clusterapi.Named(namespace, kind, name)}
}
