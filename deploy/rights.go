package deploy

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

const (
	// defaultAccount is what a lockdown acts as if nothing is said.
	defaultAccount = "default"
	// accountsRole is the role whose rules are bounded to the names of accounts.
	accountsRole = "cascade-accounts"
	// controllersAnnotation on a role of the manifests names the kinds of whose
	// reconcilers the rules are. It is not a part of what is installed.
	controllersAnnotation = "cascade.dev/controllers"
)

// rights are the roles of the values. Without a lockdown the agent is administrator, and
// needs none of them.
func (o Options) rights() ([]*unstructured.Unstructured, error) {
	if o.Lockdown == nil {
		return nil, nil
	}
	files := []string{"options/lockdown.yaml"}
	if o.MetricsAuth == v1alpha1.MetricsAuthKubernetes || o.Pages != nil {
		files = append(files, "options/metrics.yaml")
	}
	roles, err := o.read(files...)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, role := range roles {
		if !o.needs(role) {
			continue
		}
		if role.GetName() == accountsRole {
			if err := o.bound(role); err != nil {
				return nil, err
			}
		}
		objects = append(objects, role, o.binding(role))
	}
	if o.Lockdown.ClusterDeleter {
		deleter, err := o.read("options/deleter.yaml")
		if err != nil {
			return nil, err
		}
		objects = append(objects, deleter...)
	}
	return objects, nil
}

// needs reports whether the agent reconciles one of the kinds that a role is for.
func (o Options) needs(role *unstructured.Unstructured) bool {
	annotations := role.GetAnnotations()
	kinds := annotations[controllersAnnotation]
	if kinds == "" {
		return true
	}
	role.SetAnnotations(nil)
	return len(o.Controllers) == 0 || slices.ContainsFunc(strings.Split(kinds, ","), func(kind string) bool { return slices.Contains(o.Controllers, kind) })
}

// bound bounds the rules of a role to the accounts that the values name.
func (o Options) bound(role *unstructured.Unstructured) error {
	if len(o.Lockdown.Impersonates) == 0 {
		return nil
	}
	names := append([]string{cmp.Or(o.Lockdown.ServiceAccount, defaultAccount)}, o.Lockdown.Impersonates...)
	slices.Sort(names)
	var list []any
	for _, name := range slices.Compact(names) {
		list = append(list, name)
	}
	rules, _, err := unstructured.NestedSlice(role.Object, "rules")
	if err != nil {
		return err
	}
	for _, rule := range rules {
		rule.(map[string]any)["resourceNames"] = list
	}
	return unstructured.SetNestedSlice(role.Object, rules, "rules")
}

// binding gives a role to the agent.
func (o Options) binding(role *unstructured.Unstructured) *unstructured.Unstructured {
	metadata := map[string]any{"name": role.GetName(), "labels": map[string]any{"app.kubernetes.io/name": v1alpha1.AgentName, partOf: "flux"}}
	if role.GetNamespace() != "" {
		metadata["namespace"] = role.GetNamespace()
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": role.GetAPIVersion(), "kind": role.GetKind() + "Binding",
		"metadata": metadata,
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": role.GetKind(), "name": role.GetName()},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": v1alpha1.AgentName, "namespace": o.namespace()}},
	}}
}
