package fleet

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/roles"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/remote/access"
)

const (
	serviceAccounts = "system:serviceaccount:" + v1alpha1.AgentNamespace + ":"
	// agentUser is the agent's own account in each tier, and parentUser that of the parent.
	agentUser  = serviceAccounts + v1alpha1.AgentName
	parentUser = serviceAccounts + v1alpha1.ParentServiceAccount
	// planted is the user agent of requests that the test makes with the token of an agent,
	// which have to be found.
	planted = "planted"
)

// everybody are the roles that the API server gives to each account: discovery, and questions
// about oneself.
var everybody = []string{"system:basic-user", "system:discovery", "system:public-info-viewer"}

// judge holds the audit log of one tier against the roles of its agent, and of its parent there.
type judge struct {
	tier *stage.Tier
	has  []roles.Role
	// from is where the log was read until.
	from int64
	// own, acting and parent are requests of the agent's account, in the name of others, and of
	// the parent's account, by verb. handed are those of a parent with the kubeconfig that it
	// was handed; of an administrator's the log has no reads.
	own, acting, parent, handed map[string]int
	// found are planted requests, each of which was refused.
	found int
}

// newJudge of a tier whose agent may act as these accounts. A tier without an agent has none.
func newJudge(t *testing.T, tier *stage.Tier, impersonates []string) *judge {
	t.Helper()
	j := &judge{tier: tier, own: map[string]int{}, acting: map[string]int{}, parent: map[string]int{}, handed: map[string]int{}}
	for _, name := range everybody {
		role := &rbacv1.ClusterRole{}
		if err := scenario.Get(t.Context(), tier, role, "", name); err != nil {
			t.Fatal(err)
		}
		j.has = append(j.has, roles.Role{Name: name, Rules: role.Rules})
	}
	if impersonates == nil {
		return j
	}
	manifests, _, err := deploy.Agent(deploy.Options{AgentValues: v1alpha1.AgentValues{
		Image: stage.Image, Lockdown: &v1alpha1.AgentLockdown{Impersonates: impersonates, ClusterDeleter: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	has, err := roles.Of(manifests, v1alpha1.AgentNamespace, v1alpha1.AgentName)
	if err != nil {
		t.Fatal(err)
	}
	j.has = append(j.has, has...)
	return j
}

// anew is the judge of a cluster that took the place of another one, whose counts go on.
func (j *judge) anew(t *testing.T, tier *stage.Tier) *judge {
	t.Helper()
	next := newJudge(t, tier, ofTenants)
	if j != nil {
		next.own, next.acting, next.parent, next.handed = j.own, j.acting, j.parent, j.handed
	}
	return next
}

// judge reads what the tiers recorded since the last time.
func (l *locked) judge(t *testing.T) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(l.judges)) {
		j := l.judges[name]
		if _, err := os.Stat(j.tier.Dir); name != "delta" || err == nil {
			j.read(t)
		}
		t.Logf("round %d, %s: own %s; acting %s; as parent %s; with a kubeconfig %s; planted and refused %d",
			l.round, name, told(j.own), told(j.acting), told(j.parent), told(j.handed), j.found)
	}
}

func told(verbs map[string]int) string {
	sum, parts := 0, []string{}
	for _, verb := range slices.Sorted(maps.Keys(verbs)) {
		sum += verbs[verb]
		parts = append(parts, fmt.Sprintf("%s %d", verb, verbs[verb]))
	}
	return fmt.Sprintf("%d (%s)", sum, strings.Join(parts, ", "))
}

// read judges what the tier recorded since the last time.
func (j *judge) read(t *testing.T) {
	t.Helper()
	events, end, err := j.tier.Audit(j.from)
	if err != nil {
		t.Fatal(err)
	}
	j.from = end
	reads := j.own["get"]
	for _, e := range events {
		j.one(t, e)
	}
	if len(j.has) > len(everybody) && reads == j.own["get"] {
		t.Errorf("%s: the audit log has no reads of its agent", j.tier.Name)
	}
}

func (j *judge) one(t *testing.T, e stage.AuditEvent) {
	t.Helper()
	agent := strings.HasPrefix(e.UserAgent, "cascade-agent")
	switch user := e.User.Username; {
	case e.UserAgent == planted:
		if e.Verb != "delete" {
			break // discovery
		}
		if roles.Judge(j.has, e) != roles.Refused {
			t.Errorf("%s: a planted request was not refused: %s", j.tier.Name, roles.Told(e))
		}
		j.found++
	case user == agentUser && e.ImpersonatedUser.Username != "":
		j.acting[e.Verb]++
		if roles.Judge(j.has, e) != roles.Within {
			t.Errorf("%s: the agent acts as whom it may not: %s", j.tier.Name, roles.Told(e))
		}
		if e.ResponseStatus.Code == http.StatusForbidden {
			t.Errorf("%s: the account lacks what the agent does in its name: %s", j.tier.Name, roles.Told(e))
		}
	case user == agentUser:
		j.own[e.Verb]++
		switch roles.Judge(j.has, e) {
		case roles.Refused:
			t.Errorf("%s: the roles lack what the agent does: %s", j.tier.Name, roles.Told(e))
		case roles.Outside:
			t.Errorf("%s: the agent was let do what its roles do not let it: %s", j.tier.Name, roles.Told(e))
		case roles.Elsewhere:
			t.Errorf("%s: the agent was let by another role than its own: %s", j.tier.Name, roles.Told(e))
		}
	case agent:
		t.Errorf("%s: the agent asks as %q: %s", j.tier.Name, user, roles.Told(e))
	case user == parentUser:
		j.parent[e.Verb]++
		if by := roles.By(e); e.ResponseStatus.Code == http.StatusForbidden || !strings.HasPrefix(by, access.BaseRole) && !slices.Contains(everybody, by) {
			t.Errorf("%s: the parent was refused, or let by another role than its own: %s", j.tier.Name, roles.Told(e))
		}
	case e.ByParent():
		j.handed[e.Verb+" "+e.ObjectRef.Resource]++
		if !forTheParent(e) {
			t.Errorf("%s: the parent takes the kubeconfig that it was handed for %s: %s", j.tier.Name, e.ObjectRef.Name, roles.Told(e))
		}
	}
}

// forTheParent reports whether a request is what a parent does with the kubeconfig of a child:
// reading, pruning, making its own account with its rights and records, and saying that the
// first sync of a new tier is none of one that was lost.
func forTheParent(e stage.AuditEvent) bool {
	of := e.ObjectRef
	switch {
	case !e.Writes(), e.Verb == "delete", strings.HasPrefix(of.Name, access.BaseRole):
		return true
	case of.Resource == "namespaces":
		return e.Verb == "patch" && of.Name == v1alpha1.AgentNamespace
	}
	record := strings.HasPrefix(of.Name, v1alpha1.RecordPrefix) || of.Name == v1alpha1.FirstSyncConfigMap
	return of.Resource == "configmaps" && of.Namespace == v1alpha1.AgentNamespace && record
}

func clusterNamed(name string) *unstructured.Unstructured {
	u := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
	u.SetNamespace(stage.Namespace)
	u.SetName(name)
	return u
}

// actingAs is the administrator of a tier in the name of a user.
func actingAs(t *testing.T, tier *stage.Tier, user string) client.Client {
	t.Helper()
	config := restConfig(t, tier)
	config.Impersonate.UserName = user
	return connected(t, config)
}

// withTokenOf has nothing but a token of the agent's account.
func withTokenOf(t *testing.T, tier *stage.Tier) client.Client {
	t.Helper()
	admin, err := tier.Client()
	if err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: v1alpha1.AgentName}}
	if err := admin.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(restConfig(t, tier))
	config.BearerToken, config.UserAgent = request.Status.Token, planted
	return connected(t, config)
}

func restConfig(t *testing.T, tier *stage.Tier) *rest.Config {
	t.Helper()
	c, err := tier.Config()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func connected(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// withToken is the kubeconfig of a tier with a token instead of its administrator's certificate.
func withToken(t *testing.T, tier *stage.Tier, token string) []byte {
	t.Helper()
	config, err := clientcmd.LoadFromFile(tier.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	*config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo] = clientcmdapi.AuthInfo{Token: token}
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func manifest(t *testing.T, o client.Object) string {
	t.Helper()
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
