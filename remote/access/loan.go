package access

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// Loan gives the parent's account the right to get one Secret of a child, for as long as the
// owner exists there, which is of the same namespace: the child's own garbage collector takes the
// right back, whether the parent is there or not.
func Loan(secret types.NamespacedName, owner metav1.OwnerReference) (objects []*unstructured.Unstructured, rule rbacv1.PolicyRule) {
	rule = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{secret.Name}, Verbs: []string{"get"}}
	objects = RoleIn(secret.Namespace, bounded(BaseRole+".secret."+secret.Name), []rbacv1.PolicyRule{rule})
	for _, u := range objects {
		u.SetOwnerReferences([]metav1.OwnerReference{owner})
	}
	return objects, rule
}
