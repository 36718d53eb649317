package pivot

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Agents are the namespaces with the Deployment of an agent. Elsewhere than usual it counts only if its account has a role
// in the whole cluster: whoever may write in some namespace can make one of that name, and would be the one to say in
// a journal there what is taken away from the cluster.
func Agents(ctx context.Context, c client.Reader) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	label := client.MatchingLabels{"app.kubernetes.io/name": v1alpha1.AgentName}
	deployments := &appsv1.DeploymentList{}
	if err := c.List(ctx, deployments, label); err != nil {
		return nil, fmt.Errorf("cannot list Deployments to look for an agent: %w", err)
	}
	bindings := &rbacv1.ClusterRoleBindingList{}
	if err := c.List(ctx, bindings, label); err != nil {
		return nil, fmt.Errorf("cannot list ClusterRoleBindings to look for an agent: %w", err)
	}
	var namespaces []string
	for i := range deployments.Items {
		d := &deployments.Items[i]
		account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: d.Namespace, Name: d.Spec.Template.Spec.ServiceAccountName}
		bound := slices.ContainsFunc(bindings.Items, func(b rbacv1.ClusterRoleBinding) bool { return slices.Contains(b.Subjects, account) })
		if d.Name == v1alpha1.AgentName && (bound || d.Namespace == v1alpha1.AgentNamespace) {
			namespaces = append(namespaces, d.Namespace)
		}
	}
	return namespaces, nil
}
