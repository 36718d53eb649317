package inventory

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

const rbac = "rbac.authorization.k8s.io"

// AgentBinding has the rights of an agent without a lockdown. With one it names no subject.
func AgentBinding() Entry {
	return Entry{Name: v1alpha1.AgentName, Group: rbac, Kind: "ClusterRoleBinding", Version: "v1"}
}

// LockedDown reports whether the agent has no rights by its AgentBinding.
func LockedDown(binding *unstructured.Unstructured) bool {
	subjects, _, _ := unstructured.NestedSlice(binding.Object, "subjects")
	return len(subjects) == 0
}

// AgentLabels reports whether labels are those of the objects of an agent, whatever its
// namespace is.
func AgentLabels(labels map[string]string) bool {
	return labels["app.kubernetes.io/name"] == v1alpha1.AgentName && labels["app.kubernetes.io/part-of"] == "flux"
}

// LockdownRights reports whether an agent with a lockdown needs an object to apply a
// commit: the rights to read, to act as accounts and to say how sources and Kustomizations are,
// and the account that syncs the tier. Rights for other kinds may go, as the value
// controllers leaves them out, and a commit brings them back.
func LockdownRights(e Entry) bool {
	switch e.Group + "/" + e.Kind {
	case rbac + "/Role", rbac + "/RoleBinding":
		return e.Name == "cascade-agent"
	case rbac + "/ClusterRole", rbac + "/ClusterRoleBinding":
		switch e.Name {
		case "cascade-agent", "cascade-accounts", "cascade-sources", "cascade-kustomizations":
			return true
		}
		return e.Kind == "ClusterRoleBinding" && e.Name == v1alpha1.SyncAccount
	case "/ServiceAccount":
		return e.Name == v1alpha1.SyncAccount
	}
	return false
}

// OfAgent reports whether an agent cannot do without an object. Without the agent no commit
// reaches the cluster, not even the one that declares the agent again.
func OfAgent(e Entry, live Live) bool {
	const namespace, name = v1alpha1.AgentNamespace, v1alpha1.AgentName
	switch e.Group + "/" + e.Kind {
	case "/Namespace":
		return e.Name == namespace
	case "apps/Deployment", "/ServiceAccount":
		if e.Name == name && (e.Namespace == namespace || live.OfAgent) {
			return true
		}
	case rbac + "/ClusterRoleBinding":
		if e.Name == name {
			return true
		}
	case "admissionregistration.k8s.io/ValidatingAdmissionPolicy", "admissionregistration.k8s.io/ValidatingAdmissionPolicyBinding":
		return strings.HasPrefix(e.Name, name+"-")
	}
	return live.LockedDown && LockdownRights(e)
}
