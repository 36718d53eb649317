package fleetsim

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const rbacGroup = rbacv1.GroupName

// rights are what users of a cluster may do, found when they ask first and
// dropped when a role or binding changes.
type rights struct {
	granted map[string][]grant
}

// grant is a rule with the namespace in which it holds; empty is everywhere.
type grant struct {
	namespace string
	rule      rbacv1.PolicyRule
}

// action is what a request asks for.
type action struct {
	verb                 string
	group, resource, sub string
	namespace, name      string
	path                 string // of what is no resource
	resourceRequest      bool
}

// allowed reports whether a user may do what he asks for. The cluster is locked.
func (c *Cluster) allowed(u *user, a action) bool {
	if u.master() {
		return true
	}
	for _, g := range c.grants(u) {
		if (g.namespace == "" || g.namespace == a.namespace) && permits(g.rule, a) {
			return true
		}
	}
	return false
}

func permits(rule rbacv1.PolicyRule, a action) bool {
	if !has(rule.Verbs, a.verb) {
		return false
	}
	if !a.resourceRequest {
		return slices.ContainsFunc(rule.NonResourceURLs, func(path string) bool {
			prefix, wild := strings.CutSuffix(path, "*")
			return path == a.path || wild && strings.HasPrefix(a.path, prefix)
		})
	}
	resource := a.resource
	if a.sub != "" {
		resource += "/" + a.sub
	}
	return has(rule.APIGroups, a.group) &&
		(has(rule.Resources, resource) || a.sub != "" && slices.Contains(rule.Resources, "*/"+a.sub)) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.name))
}

func has(list []string, want string) bool {
	return slices.Contains(list, "*") || slices.Contains(list, want)
}

// grants are all rules that bindings give to a user.
func (c *Cluster) grants(u *user) []grant {
	key := u.name + " " + strings.Join(u.groups, ",")
	if found, ok := c.rights.granted[key]; ok {
		return found
	}
	var found []grant
	for _, r := range c.objects {
		if r.kind.Group != rbacGroup || r.kind.Kind != "ClusterRoleBinding" && r.kind.Kind != "RoleBinding" {
			continue
		}
		binding := c.fleet.access(r.content)
		if !slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return isSubject(s, u, r.namespace) }) {
			continue
		}
		for _, rule := range c.rulesOf(binding.RoleRef, r.namespace) {
			found = append(found, grant{namespace: r.namespace, rule: rule})
		}
	}
	if c.rights.granted == nil {
		c.rights.granted = map[string][]grant{}
	}
	c.rights.granted[key] = found
	return found
}

func isSubject(s rbacv1.Subject, u *user, namespace string) bool {
	switch s.Kind {
	case rbacv1.UserKind:
		return s.Name == u.name
	case rbacv1.GroupKind:
		return slices.Contains(u.groups, s.Name)
	case rbacv1.ServiceAccountKind:
		if s.Namespace != "" {
			namespace = s.Namespace
		}
		return namespace != "" && u.name == "system:serviceaccount:"+namespace+":"+s.Name
	}
	return false
}

func (c *Cluster) rulesOf(ref rbacv1.RoleRef, namespace string) []rbacv1.PolicyRule {
	var role *record
	if ref.Kind == "Role" {
		role = c.objects[builtin("Role").key(namespace, ref.Name)]
	} else {
		role = c.objects[builtin("ClusterRole").key("", ref.Name)]
	}
	if role == nil {
		return nil
	}
	return c.fleet.access(role.content).Rules
}

// access is a role or a binding.
type access struct {
	Rules    []rbacv1.PolicyRule `json:"rules"`
	Subjects []rbacv1.Subject    `json:"subjects"`
	RoleRef  rbacv1.RoleRef      `json:"roleRef"`
}

// maxDecoded bounds how many decoded contents are kept.
const maxDecoded = 1024

// access decodes a role or binding, once for all clusters that have the same.
func (f *Fleet) access(of *content) *access {
	f.decoded.Lock()
	defer f.decoded.Unlock()
	if a := f.decoded.access[of]; a != nil {
		return a
	}
	a := &access{}
	if object, err := of.object(); err == nil {
		a.read(object)
	}
	if len(f.decoded.access) >= maxDecoded {
		clear(f.decoded.access)
	}
	f.decoded.access[of] = a
	return a
}

func (a *access) read(object map[string]any) {
	if text, err := json.Marshal(object); err == nil {
		_ = json.Unmarshal(text, a) // what does not fit gives no rights
	}
}

// escalates is an error if a user writes a role or binding that gives rights
// that he has not himself, unless he may escalate or bind. The cluster is
// locked.
func (c *Cluster) escalates(u *user, k *kind, namespace, name string, object map[string]any) *apierrors.StatusError {
	if k.Group != rbacGroup || u.master() {
		return nil
	}
	a := &access{}
	a.read(object)
	rules := a.Rules
	may := action{verb: "escalate", group: rbacGroup, resource: k.Plural, namespace: namespace, name: name, resourceRequest: true}
	if strings.HasSuffix(k.Kind, "Binding") {
		rules = c.rulesOf(a.RoleRef, namespace)
		may = action{verb: "bind", group: rbacGroup, resource: "clusterroles", namespace: namespace, name: a.RoleRef.Name, resourceRequest: true}
		if a.RoleRef.Kind == "Role" {
			may.resource = "roles"
		}
		if c.roleMissing(a.RoleRef, namespace) && !c.allowed(u, may) {
			return apierrors.NewNotFound(schema.GroupResource{Group: rbacGroup, Resource: may.resource}, a.RoleRef.Name)
		}
	}
	if c.allowed(u, may) {
		return nil
	}
	var missing []rbacv1.PolicyRule
	for _, rule := range rules {
		for _, simple := range apart(rule) {
			if !slices.ContainsFunc(c.grants(u), func(g grant) bool {
				return (g.namespace == "" || g.namespace == namespace) && covers(g.rule, simple)
			}) {
				missing = append(missing, simple)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return apierrors.NewForbidden(k.resource(), name, fmt.Errorf("user %q (groups=%q) is attempting to grant RBAC permissions not currently held:\n%s", u.name, u.groups, describe(missing)))
}

func (c *Cluster) roleMissing(ref rbacv1.RoleRef, namespace string) bool {
	if ref.Kind == "Role" {
		return c.objects[builtin("Role").key(namespace, ref.Name)] == nil
	}
	return c.objects[builtin("ClusterRole").key("", ref.Name)] == nil
}

// apart splits a rule into ones of one verb, group, resource and name each.
func apart(rule rbacv1.PolicyRule) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	for _, verb := range rule.Verbs {
		for _, path := range rule.NonResourceURLs {
			out = append(out, rbacv1.PolicyRule{Verbs: []string{verb}, NonResourceURLs: []string{path}})
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				one := rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}}
				if len(rule.ResourceNames) == 0 {
					out = append(out, one)
				}
				for _, name := range rule.ResourceNames {
					named := one
					named.ResourceNames = []string{name}
					out = append(out, named)
				}
			}
		}
	}
	return out
}

// covers reports whether a rule gives what a simple one gives.
func covers(rule, simple rbacv1.PolicyRule) bool {
	if !has(rule.Verbs, simple.Verbs[0]) {
		return false
	}
	if len(simple.NonResourceURLs) > 0 {
		return permits(rbacv1.PolicyRule{Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs}, action{verb: simple.Verbs[0], path: simple.NonResourceURLs[0]})
	}
	resource, sub, _ := strings.Cut(simple.Resources[0], "/")
	return has(rule.APIGroups, simple.APIGroups[0]) &&
		(has(rule.Resources, simple.Resources[0]) || sub != "" && resource != "" && slices.Contains(rule.Resources, "*/"+sub)) &&
		(len(rule.ResourceNames) == 0 || len(simple.ResourceNames) > 0 && slices.Contains(rule.ResourceNames, simple.ResourceNames[0]))
}

// describe lists rules as kube-apiserver does: verbs of the same subject together.
func describe(rules []rbacv1.PolicyRule) string {
	type subject struct{ group, resource, name, path string }
	verbs := map[subject][]string{}
	for _, r := range rules {
		var s subject
		if len(r.NonResourceURLs) > 0 {
			s.path = r.NonResourceURLs[0]
		} else {
			s.group, s.resource = r.APIGroups[0], r.Resources[0]
			if len(r.ResourceNames) > 0 {
				s.name = r.ResourceNames[0]
			}
		}
		verbs[s] = append(verbs[s], r.Verbs[0])
	}
	var lines []string
	for s, v := range verbs {
		var fields []string
		if s.path != "" {
			fields = append(fields, fmt.Sprintf("NonResourceURLs:%q", []string{s.path}))
		} else {
			fields = append(fields, fmt.Sprintf("APIGroups:%q", []string{s.group}), fmt.Sprintf("Resources:%q", []string{s.resource}))
			if s.name != "" {
				fields = append(fields, fmt.Sprintf("ResourceNames:%q", []string{s.name}))
			}
		}
		lines = append(lines, "{"+strings.Join(append(fields, fmt.Sprintf("Verbs:%q", v)), ", ")+"}")
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}
