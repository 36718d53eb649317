package remote

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// seedManager is the field manager of everything that a parent writes into a
// child.
const seedManager = "cascade-seed"

// accessManager is the field manager of the parent's account and rights. It is not
// seedManager, because a layer may declare the same namespace with more labels.
const accessManager = "cascade-access"

// rightsWait is how long the API server may take to honour a right that was granted.
const rightsWait = 3 * time.Second

// resourceOf names the resource of a kind, if it is known.
type resourceOf func(gk schema.GroupKind) (resource string, ok bool)

// rights are the rules that the parent needs in a child to push these objects:
// each object by its name. To delete is not among them: the parent prunes with the
// kubeconfig. RBAC lets a user write a role or a binding only if the user has the
// rights in it, or may escalate or bind; the rules grant these for the roles and
// bindings that layers declare.
func rights(objects []*unstructured.Unstructured, resource resourceOf) []rbacv1.PolicyRule {
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
	// The layer's record is written beside it.
	add("", "configmaps", v1alpha1.SeedConfigMap)

	var rules []rbacv1.PolicyRule
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
	return rules
}

func sorted(set map[string]bool) []string {
	list := make([]string, 0, len(set))
	for s := range set {
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}

// baseRole is the name of the role that every parent needs, and of its account.
const baseRole = v1alpha1.ParentServiceAccount

// baseRights let the parent read the identity of the child and the report of its
// agent, and tell a kind that is gone from one that is not served at the moment.
func baseRights() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{"kube-system"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{v1alpha1.ReportConfigMap, v1alpha1.SeedConfigMap}, Verbs: []string{"get"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{v1alpha1.LeaderLease}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{baseRole}, Verbs: []string{"create"}},
		{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, Verbs: []string{"list"}},
		{APIGroups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, Verbs: []string{"list"}},
	}
}

// layerRole is the name of the role of one layer.
func layerRole(namespace, layer string) string {
	name := baseRole + "." + namespace + "." + layer
	if len(name) > 253 {
		sum := sha256.Sum256([]byte(name))
		name = baseRole + "." + hex.EncodeToString(sum[:])
	}
	return name
}

func digestOfRules(rules []rbacv1.PolicyRule) (string, error) {
	text, err := json.Marshal(rules)
	if err != nil {
		return "", fmt.Errorf("cannot encode rights of the parent: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), nil
}

// grant makes sure that the parent has an account of its own in the child with these
// rights for one layer, and a token of the account. If the account or its rights are
// missing, grant reads the kubeconfig and creates them.
func (l *link) grant(ctx context.Context, q probeRequest, role string, rules []rbacv1.PolicyRule) error {
	digest, err := digestOfRules(rules)
	if err != nil {
		return err
	}
	if l.minted != nil && l.rights[role] == digest {
		return nil
	}
	admin, err := l.administrator(ctx, q)
	if err != nil {
		return err
	}
	objects := roleObjects(role, rules)
	if _, known := l.rights[baseRole]; !known || l.minted == nil {
		objects = append(append(accountObjects(), roleObjects(baseRole, baseRights())...), objects...)
	}
	if err := writeAccess(ctx, admin, objects); err != nil {
		return err
	}
	if err := l.dropAdmin(ctx); err != nil {
		return err
	}
	if err := l.allowed(ctx, rules[len(rules)-1]); err != nil {
		return err
	}
	if l.rights == nil {
		l.rights = map[string]string{}
	}
	l.rights[baseRole], l.rights[role] = "", digest
	return nil
}

// administrator connects with the kubeconfig's own credentials.
func (l *link) administrator(ctx context.Context, q probeRequest) (*apply.Cluster, error) {
	if l.admin == nil || l.lapsed() {
		if err := l.reread(ctx, q); err != nil {
			return nil, err
		}
	}
	return l.cluster(l.admin)
}

// dropAdmin goes back from the administrator's credentials to a token.
func (l *link) dropAdmin(ctx context.Context) error {
	if l.minted == nil {
		return l.renew(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admin.close()
	l.admin = nil
	return nil
}

// revoke deletes the parent's rights for a layer that is no longer pushed.
func (l *link) revoke(ctx context.Context, q probeRequest, role string) error {
	admin, err := l.administrator(ctx, q)
	if err != nil {
		return err
	}
	objects := roleObjects(role, nil)
	slices.Reverse(objects)
	for _, u := range objects {
		if err := client.IgnoreNotFound(admin.Delete(ctx, u)); err != nil {
			return fmt.Errorf("cannot delete %s %s of the parent: %w", u.GetKind(), u.GetName(), err)
		}
	}
	delete(l.rights, role)
	return l.dropAdmin(ctx)
}

// writeAccess writes accounts, roles and bindings as the cluster's administrator.
func writeAccess(ctx context.Context, admin *apply.Cluster, objects []*unstructured.Unstructured) error {
	for _, u := range objects {
		write := func() error {
			_, err := admin.Write(ctx, u, accessManager)
			return err
		}
		err := write()
		if apierrors.IsInvalid(err) && u.GetKind() == "ClusterRoleBinding" {
			// The role of a binding is immutable, and an earlier release bound another one.
			if err = client.IgnoreNotFound(admin.Delete(ctx, u.DeepCopy())); err == nil {
				err = write()
			}
		}
		if err != nil {
			return fmt.Errorf("cannot create %s %s for the parent: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// allowed waits until the API server honours a right that the parent was granted.
func (l *link) allowed(ctx context.Context, rule rbacv1.PolicyRule) error {
	ctx, cancel := context.WithTimeout(ctx, rightsWait)
	defer cancel()
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: rule.Verbs[len(rule.Verbs)-1], Group: rule.APIGroups[0], Resource: rule.Resources[0]},
	}}
	if len(rule.ResourceNames) > 0 {
		review.Spec.ResourceAttributes.Name = rule.ResourceNames[len(rule.ResourceNames)-1]
	}
	review.SetGroupVersionKind(authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"))
	body, err := json.Marshal(review)
	if err != nil {
		return fmt.Errorf("cannot encode access review: %w", err)
	}
	for pause := 20 * time.Millisecond; ; pause *= 2 {
		got := &authorizationv1.SelfSubjectAccessReview{}
		raw, err := l.caller().do(ctx, "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, plainContent()).Raw()
		if err == nil {
			err = json.Unmarshal(raw, got)
		}
		if err != nil {
			return fmt.Errorf("cannot ask for the rights of the parent: %w", err)
		}
		if got.Status.Allowed {
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return errors.New("the rights that the parent was granted have no effect yet")
		case <-timer.C:
		}
	}
}

// accessLabels are on the parent's account and on its rights.
func accessLabels() map[string]any {
	return map[string]any{"app.kubernetes.io/name": v1alpha1.AgentName}
}

// accountObjects are the parent's account in a child, and its namespace.
func accountObjects() []*unstructured.Unstructured {
	return []*unstructured.Unstructured{
		{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace",
			"metadata": map[string]any{"name": v1alpha1.AgentNamespace, "labels": accessLabels()},
		}},
		{Object: map[string]any{
			"apiVersion": "v1", "kind": "ServiceAccount",
			"metadata":                     map[string]any{"name": v1alpha1.ParentServiceAccount, "namespace": v1alpha1.AgentNamespace, "labels": accessLabels()},
			"automountServiceAccountToken": false,
		}},
	}
}

// roleObjects give the parent's account a role.
func roleObjects(name string, rules []rbacv1.PolicyRule) []*unstructured.Unstructured {
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
			"metadata": map[string]any{"name": name, "labels": accessLabels()},
			"rules":    list,
		}},
		{Object: map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
			"metadata": map[string]any{"name": name, "labels": accessLabels()},
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
			"subjects": []any{map[string]any{
				"kind": "ServiceAccount", "name": v1alpha1.ParentServiceAccount, "namespace": v1alpha1.AgentNamespace,
			}},
		}},
	}
}

func texts(list []string) []any {
	out := make([]any, 0, len(list))
	for _, s := range list {
		out = append(out, s)
	}
	return out
}
