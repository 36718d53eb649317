// Package roles judges the requests of an audit log by the roles of who made them.
//
// Invariants: it asks no cluster, so that its answer does not depend on the one that is
// judged: roles and requests in, findings out. A request that the API server allowed is held
// against the rules once more, and against the role that the API server names as its reason,
// so that nothing passes that came through another binding, or through group system:masters.
//
// Failure model: what it does not understand of a request, no rule allows.
package roles

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-helpers/auth/rbac/validation"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// Role is what one role gives a user, by a binding.
type Role struct {
	Name string
	// Namespace in which it is bound; empty is everywhere.
	Namespace string
	Rules     []rbacv1.PolicyRule
}

// Of are the roles among manifests that bindings among them give to a service account.
func Of(manifests []*unstructured.Unstructured, namespace, account string) ([]Role, error) {
	type key struct{ kind, namespace, name string }
	rules := map[key][]rbacv1.PolicyRule{}
	var bindings []rbacv1.RoleBinding
	for _, u := range manifests {
		switch u.GetKind() {
		case "ClusterRole", "Role":
			role := rbacv1.Role{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &role); err != nil {
				return nil, fmt.Errorf("cannot read %s %s: %w", u.GetKind(), u.GetName(), err)
			}
			rules[key{u.GetKind(), u.GetNamespace(), u.GetName()}] = role.Rules
		case "ClusterRoleBinding", "RoleBinding":
			binding := rbacv1.RoleBinding{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &binding); err != nil {
				return nil, fmt.Errorf("cannot read %s %s: %w", u.GetKind(), u.GetName(), err)
			}
			bindings = append(bindings, binding)
		}
	}
	var found []Role
	for _, b := range bindings {
		if !slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == namespace && s.Name == account
		}) {
			continue
		}
		of := key{b.RoleRef.Kind, "", b.RoleRef.Name}
		if b.RoleRef.Kind == "Role" {
			of.namespace = b.Namespace
		}
		granted, ok := rules[of]
		if !ok {
			return nil, fmt.Errorf("cannot find %s %s, to which binding %s refers", b.RoleRef.Kind, b.RoleRef.Name, b.Name)
		}
		found = append(found, Role{Name: b.RoleRef.Name, Namespace: b.Namespace, Rules: granted})
	}
	return found, nil
}

// Verdict is what is to be said about one request.
type Verdict int

const (
	// Within: the roles allow it, and the API server allowed it by one of them.
	Within Verdict = iota
	// Refused: the API server refused it.
	Refused
	// Outside: the API server allowed it, and the roles do not.
	Outside
	// Elsewhere: the roles allow it, and the API server allowed it by another.
	Elsewhere
)

// Names that the API server gives in annotations of its audit log.
const (
	decision = "authorization.k8s.io/decision"
	reason   = "authorization.k8s.io/reason"
)

// Judge says whether a request of the user who has the roles is within them. One in the name
// of another is judged as the act of taking that name: the API server's decision in the log is
// about the other.
func Judge(has []Role, e stage.AuditEvent) Verdict {
	as := e.ImpersonatedUser.Username
	if as == "" && (e.ResponseStatus.Code == http.StatusForbidden || e.Annotations[decision] == "forbid") {
		return Refused
	}
	for _, need := range needs(e) {
		if !slices.ContainsFunc(has, func(r Role) bool { return r.gives(need) }) {
			return Outside
		}
	}
	if as == "" && !slices.ContainsFunc(has, func(r Role) bool { return r.Name == By(e) }) {
		return Elsewhere
	}
	return Within
}

// need is a right that a request takes.
type need struct {
	namespace string
	rule      rbacv1.PolicyRule
}

func (r Role) gives(n need) bool {
	if r.Namespace != "" && r.Namespace != n.namespace {
		return false
	}
	covers, _ := validation.Covers(r.Rules, []rbacv1.PolicyRule{n.rule})
	return covers
}

// needs are the rights that a request takes.
func needs(e stage.AuditEvent) []need {
	if as := e.ImpersonatedUser.Username; as != "" {
		return []need{impersonates(as)}
	}
	of := e.ObjectRef
	if of.Resource == "" {
		path, _, _ := strings.Cut(e.RequestURI, "?")
		return []need{{rule: rbacv1.PolicyRule{Verbs: []string{e.Verb}, NonResourceURLs: []string{path}}}}
	}
	resource := of.Resource
	if of.Subresource != "" {
		resource += "/" + of.Subresource
	}
	take := func(verb, name string) need {
		rule := rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{of.APIGroup}, Resources: []string{resource}}
		if name != "" {
			rule.ResourceNames = []string{name}
		}
		return need{of.Namespace, rule}
	}
	name := of.Name
	if e.Verb == "create" && of.Subresource == "" {
		name = "" // the URL, by which is decided, does not have it
	}
	taken := []need{take(e.Verb, name)}
	if e.ResponseStatus.Code == http.StatusCreated && (e.Verb == "patch" || e.Verb == "update") {
		taken = append(taken, take("create", name)) // of what was not there
	}
	return taken
}

// impersonates is the right to act as a user.
func impersonates(user string) need {
	rule := rbacv1.PolicyRule{Verbs: []string{"impersonate"}, APIGroups: []string{""}}
	account, ok := strings.CutPrefix(user, "system:serviceaccount:")
	namespace, name, both := strings.Cut(account, ":")
	if !ok || !both {
		rule.Resources, rule.ResourceNames = []string{"users"}, []string{user}
		return need{rule: rule}
	}
	rule.Resources, rule.ResourceNames = []string{"serviceaccounts"}, []string{name}
	return need{namespace, rule}
}

var roleOfReason = regexp.MustCompile(` of (?:Cluster)?Role "([^"]+)" to `)

// By is the role by which the API server says that it allowed a request; empty if it names
// none, as for the group system:masters.
func By(e stage.AuditEvent) string {
	if m := roleOfReason.FindStringSubmatch(e.Annotations[reason]); m != nil {
		return m[1]
	}
	return ""
}

// Told is a request as a person reads it.
func Told(e stage.AuditEvent) string {
	as := ""
	if e.ImpersonatedUser.Username != "" {
		as = " as " + e.ImpersonatedUser.Username
	}
	return fmt.Sprintf("%s %s%s: %d %s", e.Verb, e.RequestURI, as, e.ResponseStatus.Code, e.Annotations[reason])
}
