package roles

import (
	"testing"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// lockedDown are the roles of an agent with lockdown, who may act as two accounts.
func lockedDown(t *testing.T) []Role {
	t.Helper()
	ground, _, err := deploy.Agent(deploy.Options{AgentValues: v1alpha1.AgentValues{Image: "cascade:test",
		Lockdown: &v1alpha1.AgentLockdown{Impersonates: []string{"platform"}, ClusterDeleter: true}}})
	if err != nil {
		t.Fatal(err)
	}
	has, err := Of(ground, v1alpha1.AgentNamespace, v1alpha1.AgentName)
	if err != nil {
		t.Fatal(err)
	}
	return has
}

// request of an agent, as the audit log has it.
func request(verb, group, resource, subresource, namespace, name, role string, code int) stage.AuditEvent {
	e := stage.AuditEvent{Verb: verb, RequestURI: "/" + resource, Annotations: map[string]string{decision: "allow"}}
	e.ObjectRef.APIGroup, e.ObjectRef.Resource, e.ObjectRef.Subresource = group, resource, subresource
	e.ObjectRef.Namespace, e.ObjectRef.Name, e.ResponseStatus.Code = namespace, name, code
	if role != "" {
		e.Annotations[reason] = `RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "` + role + `" to ServiceAccount "cascade/cascade-system"`
	}
	return e
}

func as(user string) stage.AuditEvent {
	e := request("delete", "cluster.x-k8s.io", "clusters", "", "fleet", "prod", "cluster-admin", 200)
	e.ImpersonatedUser.Username = user
	return e
}

func TestJudge(t *testing.T) {
	const capi, fleet, flux = "cluster.x-k8s.io", "cascade-fleet", "kustomize.toolkit.fluxcd.io"
	forbidden := request("delete", capi, "clusters", "", "fleet", "prod", "", 403)
	forbidden.Annotations[decision] = "forbid"
	discovers := stage.AuditEvent{Verb: "get", RequestURI: "/apis?timeout=10s"}
	has := lockedDown(t)
	for name, tc := range map[string]struct {
		reason string
		e      stage.AuditEvent
		want   Verdict
	}{
		"Reads":             {"everything may be read", request("list", "", "secrets", "", "", "", "cascade-agent", 200), Within},
		"ReadsSubresource":  {"a star is for subresources, too", request("get", "apps", "deployments", "scale", "a", "b", "cascade-agent", 200), Within},
		"WritesStatus":      {"its own kinds", request("patch", flux, "kustomizations", "status", "a", "b", "cascade-kustomizations", 200), Within},
		"Lease":             {"in its namespace", request("update", "coordination.k8s.io", "leases", "", "cascade-system", "l", "cascade-agent", 200), Within},
		"LeaseElsewhere":    {"a Role is of one namespace", request("update", "coordination.k8s.io", "leases", "", "default", "l", "cascade-agent", 200), Outside},
		"Admin":             {"the roles allow it, and were not what allowed it", request("list", "", "secrets", "", "", "", "cluster-admin", 200), Elsewhere},
		"Masters":           {"the group system:masters has no role", request("list", "", "secrets", "", "", "", "", 200), Elsewhere},
		"DeletesCluster":    {"the optional role is bound to nobody", request("delete", capi, "clusters", "", "fleet", "prod", "cluster-admin", 200), Outside},
		"DeletesUnseen":     {"roles do not depend on what the API server answered", request("delete", capi, "clusters", "", "fleet", "prod", "cascade-agent", 404), Outside},
		"Refused":           {"the log says so", forbidden, Refused},
		"RefusedByCode":     {"admission refuses without a decision", request("patch", flux, "kustomizations", "", "a", "b", "cascade-kustomizations", 403), Refused},
		"Acts":              {"as an account that is named", as("system:serviceaccount:fleet:platform"), Within},
		"ActsAsDefault":     {"as the account of those that name none", as("system:serviceaccount:fleet:default"), Within},
		"ActsAsOther":       {"as nobody else", as("system:serviceaccount:fleet:admin"), Outside},
		"ActsAsUser":        {"as no person", as("root"), Outside},
		"CreatesByPatch":    {"the role has no create on Kustomizations", request("patch", flux, "kustomizations", "", "a", "b", "cascade-kustomizations", 201), Outside},
		"CreatesChild":      {"and has it on Children", request("patch", "cascade.dev", "children", "", "a", "b", fleet, 201), Within},
		"Token":             {"for an account that is named", request("create", "", "serviceaccounts", "token", "a", "platform", "cascade-accounts", 201), Within},
		"TokenOfOther":      {"for no other", request("create", "", "serviceaccounts", "token", "a", "admin", "cascade-accounts", 201), Outside},
		"Discovers":         {"what everybody may is no role of the agent", discovers, Outside},
		"NamespaceIsLabels": {"a Namespace gets a label, and is not made", request("create", "", "namespaces", "", "x", "x", fleet, 201), Outside},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Judge(has, tc.e); got != tc.want {
				t.Errorf("%s: Judge() = %d, want %d: %s", tc.reason, got, tc.want, Told(tc.e))
			}
		})
	}
}

// TestNames: a rule for names allows a request that names one of them, and no other.
func TestNames(t *testing.T) {
	for _, r := range lockedDown(t) {
		if r.Name != "cascade-accounts" {
			continue
		}
		if e := request("create", "", "serviceaccounts", "token", "a", "", "cascade-accounts", 201); Judge([]Role{r}, e) != Outside {
			t.Error("a request without a name is allowed by a rule for names")
		}
		return
	}
	t.Error("the lockdown has no role cascade-accounts")
}
