// Package access computes who a parent is in a child: its account, and the roles that
// give the account the rights that the layers need, each right by the name of an object.
//
// Invariants: no rule is for all names or all kinds, but to create, which RBAC cannot
// restrict to a name; to delete is in no rule, because a parent prunes with the
// kubeconfig. It is pure: objects in, rules and objects out.
package access

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// Manager is the field manager of the parent's account and rights. It is not
// the one of layers, because a layer may declare the same namespace with more labels.
const Manager = "cascade-access"

// ResourceOf names the resource of a kind, if it is known.
type ResourceOf func(gk schema.GroupKind) (resource string, ok bool)

// Rights are the rules that the parent needs in a child to push these objects:
// each object by its name. To delete is not among them: the parent prunes with the
// kubeconfig. RBAC lets a user write a role or a binding only if the user has the
// rights in it, or may escalate or bind; the rules grant these for the roles and
// bindings that layers declare. record is the name of the ConfigMap that has the layer's
// record.
func Rights(objects []*unstructured.Unstructured, resource ResourceOf, record string) []rbacv1.PolicyRule {
	type of struct{ group, resource string }
	names := map[of]map[string]bool{}
	add := func(group, resource, name string) {
		k := of{group, resource}
		if names[k] == nil {
			names[k] = map[string]bool{}
		}
		names[k][name] = true
	}
	type permission struct{ verb, resource string }
	granted := map[permission]map[string]bool{}
	give := func(verb, resource, name string) {
		k := permission{verb, resource}
		if granted[k] == nil {
			granted[k] = map[string]bool{}
		}
		granted[k][name] = true
	}
	for _, e := range inventory.OfAll(objects) {
		if r, ok := resource(e.GroupKind()); ok {
			add(e.Group, r, e.Name)
			if e.Group == rbacv1.GroupName && (r == "roles" || r == "clusterroles") {
				give("escalate", r, e.Name)
			}
		}
	}
	for _, u := range objects {
		if u.GroupVersionKind().Group != rbacv1.GroupName {
			continue
		}
		kind, _, _ := unstructured.NestedString(u.Object, "roleRef", "kind")
		name, _, _ := unstructured.NestedString(u.Object, "roleRef", "name")
		switch kind {
		case "ClusterRole":
			give("bind", "clusterroles", name)
		case "Role":
			give("bind", "roles", name)
		}
	}
	rules := []rbacv1.PolicyRule{
		// The layer's record is written beside it.
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{record}, Verbs: []string{"get", "update"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create"}},
	}
	for k, of := range names {
		rules = append(rules,
			rbacv1.PolicyRule{APIGroups: []string{k.group}, Resources: []string{k.resource}, ResourceNames: sorted(of), Verbs: []string{"get", "patch"}},
			// RBAC cannot restrict creation to a name.
			rbacv1.PolicyRule{APIGroups: []string{k.group}, Resources: []string{k.resource}, Verbs: []string{"create"}})
	}
	for k, of := range granted {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{rbacv1.GroupName}, Resources: []string{k.resource}, ResourceNames: sorted(of), Verbs: []string{k.verb}})
	}
	slices.SortFunc(rules, func(a, b rbacv1.PolicyRule) int {
		return cmp.Or(slices.Compare(a.APIGroups, b.APIGroups), slices.Compare(a.Resources, b.Resources), slices.Compare(a.Verbs, b.Verbs), slices.Compare(a.ResourceNames, b.ResourceNames))
	})
	return slices.CompactFunc(rules, func(a, b rbacv1.PolicyRule) bool { return reflect.DeepEqual(a, b) })
}

// Acting are the rules that the parent needs in a child to push a layer as a service
// account: to act as the account, and to write the layer's record. The objects are pushed
// with the rights of the account. RBAC names no namespace in a role for a whole cluster, so
// the rule is for the accounts of this name.
func Acting(account, record string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{record}, Verbs: []string{"get", "update"}},
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, ResourceNames: []string{account}, Verbs: []string{"impersonate"}},
	}
}

func sorted(set map[string]bool) []string {
	list := make([]string, 0, len(set))
	for s := range set {
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}

// BaseRole is the name of the role that every parent needs, and of its account.
const BaseRole = v1alpha1.ParentServiceAccount

// BaseRights let the parent read the identity of the child and the report of its
// agent, follow the agent's heartbeat, write hints into the ConfigMap that the agent makes for them, and tell a kind
// that is gone from one that is not served at the moment.
func BaseRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{"kube-system"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{v1alpha1.ReportConfigMap, v1alpha1.SeedConfigMap}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{v1alpha1.HintsConfigMap}, Verbs: []string{"patch"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{v1alpha1.HeartbeatLease}, Verbs: []string{"get", "watch"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{v1alpha1.LeaderLease}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{BaseRole}, Verbs: []string{"create"}},
		{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, Verbs: []string{"list"}},
		{APIGroups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, Verbs: []string{"list"}},
	}
}

// LayerRole is the name of the role of one layer.
func LayerRole(namespace, layer string) string {
	return bounded(BaseRole + "." + namespace + "." + layer)
}

// bounded is a name of a role that is not longer than names may be.
func bounded(name string) string {
	if len(name) > 253 {
		sum := sha256.Sum256([]byte(name))
		name = BaseRole + "." + hex.EncodeToString(sum[:])
	}
	return name
}

func Digest(rules []rbacv1.PolicyRule) (string, error) {
	text, err := json.Marshal(rules)
	if err != nil {
		return "", fmt.Errorf("cannot encode rights of the parent: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), nil
}

// marks are on the parent's account and on its rights.
func marks() map[string]any {
	return map[string]any{"app.kubernetes.io/name": v1alpha1.AgentName}
}

// Account are the parent's account in a child, and its namespace.
func Account() []*unstructured.Unstructured {
	return []*unstructured.Unstructured{
		{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace",
			"metadata": map[string]any{"name": v1alpha1.AgentNamespace, "labels": marks()},
		}},
		{Object: map[string]any{
			"apiVersion": "v1", "kind": "ServiceAccount",
			"metadata":                     map[string]any{"name": v1alpha1.ParentServiceAccount, "namespace": v1alpha1.AgentNamespace, "labels": marks()},
			"automountServiceAccountToken": false,
		}},
	}
}

// Role give the parent's account a role.
func Role(name string, rules []rbacv1.PolicyRule) []*unstructured.Unstructured {
	list := make([]any, 0, len(rules))
	for _, r := range rules {
		rule := map[string]any{"apiGroups": texts(r.APIGroups), "resources": texts(r.Resources), "verbs": texts(r.Verbs)}
		if len(r.ResourceNames) > 0 {
			rule["resourceNames"] = texts(r.ResourceNames)
		}
		list = append(list, rule)
	}
	return []*unstructured.Unstructured{
		{Object: map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
			"metadata": map[string]any{"name": name, "labels": marks()},
			"rules":    list,
		}},
		{Object: map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
			"metadata": map[string]any{"name": name, "labels": marks()},
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
			"subjects": []any{map[string]any{
				"kind": "ServiceAccount", "name": v1alpha1.ParentServiceAccount, "namespace": v1alpha1.AgentNamespace,
			}},
		}},
	}
}

// RoleIn gives the parent's account a role in one namespace.
func RoleIn(namespace, name string, rules []rbacv1.PolicyRule) []*unstructured.Unstructured {
	objects := Role(name, rules)
	for _, u := range objects {
		u.SetKind(map[string]string{"ClusterRole": "Role", "ClusterRoleBinding": "RoleBinding"}[u.GetKind()])
		u.SetNamespace(namespace)
		if ref, ok := u.Object["roleRef"].(map[string]any); ok {
			ref["kind"] = "Role"
		}
	}
	return objects
}

func texts(list []string) []any {
	out := make([]any, 0, len(list))
	for _, s := range list {
		out = append(out, s)
	}
	return out
}
