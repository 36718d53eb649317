package access

import (
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// ScrapeRole is the name of the roles by which the parent reads metrics in a child.
const ScrapeRole = BaseRole + ".metrics"

// ServiceProxy is a Service as RBAC and the proxy of an API server name it:
// [https:]name:port.
type ServiceProxy struct{ Namespace, Name string }

// Scrape gives the parent's account the right to read, through the API server of a child,
// what Services answer and, if it is to, the pods of the agent. It may get and nothing else.
// RBAC names no namespace in a role for a whole cluster, so that of Services is for all
// Services of their names; that of pods, whose names nobody knows, is for the agent's
// namespace. needs are what all of it consists of.
func Scrape(agent bool, services []ServiceProxy) (objects []*unstructured.Unstructured, needs []authorizationv1.ResourceAttributes) {
	if agent {
		rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/proxy"}, Verbs: []string{"get"}}
		objects = RoleIn(v1alpha1.AgentNamespace, ScrapeRole, []rbacv1.PolicyRule{rule})
		needs = append(needs, authorizationv1.ResourceAttributes{Namespace: v1alpha1.AgentNamespace, Verb: "get", Resource: "pods", Subresource: "proxy"})
	}
	var names []string
	for _, s := range services {
		names = append(names, s.Name)
		needs = append(needs, authorizationv1.ResourceAttributes{Namespace: s.Namespace, Verb: "get", Resource: "services", Subresource: "proxy", Name: s.Name})
	}
	if len(names) > 0 {
		slices.Sort(names)
		rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services/proxy"}, ResourceNames: slices.Compact(names), Verbs: []string{"get"}}
		objects = append(objects, Role(ScrapeRole, []rbacv1.PolicyRule{rule})...)
	}
	return objects, needs
}
