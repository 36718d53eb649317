package flux

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// toldWithin is the time within which a status says what is not as declared.
const toldWithin = time.Minute

// TestLostRights: a right that the account of a Kustomization lost is told within a
// minute, at an interval of an hour, and so is its return. A neighbour with an account of
// its own is not applied again.
func TestLostRights(t *testing.T) {
	scenario.Alongside(t)
	l := startLostRights(t)
	for _, part := range []struct {
		name string
		run  func(*lostRights, *testing.T)
	}{
		{"BindingDeleted", (*lostRights).bindingDeleted},
		{"BindingBack", (*lostRights).bindingBack},
		{"ClusterRoleEdited", (*lostRights).clusterRoleEdited},
		{"AccountDeleted", (*lostRights).accountDeleted},
		{"Deletion", (*lostRights).deletion},
		{"OtherCluster", (*lostRights).otherCluster},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(l, t) }) {
			return
		}
	}
}

// lostRights is a tier with two tenants, whose Kustomizations look again after an hour
// only: tenant applies into the row's namespace, and neighbour into namespace default.
type lostRights struct {
	*scenario.Row
	kube *kubernetes.Clientset
}

// deployer may apply what tenants have.
const deployer = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: deployer}
rules:
- {apiGroups: [""], resources: [configmaps, services], verbs: ["*"]}
`

// withoutServices is a deployer that may only read Services.
const withoutServices = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: deployer}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: ["*"]}
- {apiGroups: [""], resources: [services], verbs: [get, list]}
`

func startLostRights(t *testing.T) *lostRights {
	t.Helper()
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{port: 80}]}\n"
	files := map[string]string{"tenant/web.yaml": service, "neighbour/b.yaml": scenario.ConfigMap("b", "1"), "remote/web.yaml": service}
	for i := range 3 {
		name := fmt.Sprintf("a-%d", i)
		files["tenant/"+name+".yaml"] = scenario.ConfigMap(name, "1")
	}
	l := &lostRights{Row: scenario.StartTier(t).RowNamed(t, "rights", files)}
	config, err := l.MoM.Config()
	if err != nil {
		t.Fatal(err)
	}
	if l.kube, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	l.Apply(t, deployer)
	l.account(t, "tenant")
	l.account(t, "neighbour")
	l.Apply(t, l.binding("tenant", l.Namespace)+"---\n"+l.binding("neighbour", "default"))
	// Without its source, the tenant would begin the watch, be asked about before it has
	// objects, and apply when nothing is left to be asked.
	l.Tells(t, &sourcev1.GitRepository{}, "git", "Ready", metav1.ConditionTrue, "", "")
	l.Kustomization(t, "tenant", "{serviceAccountName: tenant, interval: 1h, retryInterval: null}")
	l.Ready(t, "tenant")
	// The first account begins the watch, and is asked about once that shows all.
	scenario.Eventually(t, scenario.Converge, "the watch has begun", func(context.Context) error {
		if n := l.asked(t); n != 2 {
			return fmt.Errorf("%d questions", n)
		}
		return nil
	})
	l.Kustomization(t, "neighbour", "{serviceAccountName: neighbour, targetNamespace: default, interval: 1h, retryInterval: null}")
	l.Ready(t, "neighbour")
	return l
}

// account makes a service account of the row.
func (l *lostRights) account(t *testing.T, name string) {
	t.Helper()
	l.Apply(t, l.Fill("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: "+name+", namespace: $ns}\n"))
}

// binding lets an account of the row deploy into a namespace.
func (l *lostRights) binding(account, namespace string) string {
	return l.Fill(fmt.Sprintf(`apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %s, namespace: %s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: deployer}
subjects: [{kind: ServiceAccount, name: %s, namespace: $ns}]
`, account, namespace, account))
}

// asked is how often the API server was asked what somebody may do, so far.
func (l *lostRights) asked(t *testing.T) int {
	t.Helper()
	return scenario.Served(t, l.kube, "selfsubjectaccessreviews")["POST selfsubjectaccessreviews"]
}

// within fails if something took longer than it may.
func within(t *testing.T, begin time.Time, what string) {
	t.Helper()
	took := time.Since(begin).Round(100 * time.Millisecond)
	t.Logf("%s after %s", what, took)
	if took > toldWithin {
		t.Errorf("%s after %s, want %s", what, took, toldWithin)
	}
}

// neighbourIdle fails if the neighbour wrote anything since.
func (l *lostRights) neighbourIdle(t *testing.T, from int64) {
	t.Helper()
	events, _, err := l.MoM.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if strings.HasSuffix(e.ImpersonatedUser.Username, ":neighbour") {
			t.Errorf("the neighbour: %s %s", e.Verb, e.RequestURI)
		}
	}
}

func (l *lostRights) bindingDeleted(t *testing.T) {
	from, asked, begin := l.AuditOffset(t), l.asked(t), time.Now()
	l.Delete(t, &rbacv1.RoleBinding{}, "tenant")
	c := l.Says(t, "tenant", "Ready", "False", "ReconciliationFailed", "")
	within(t, begin, "the loss is told")
	if !strings.Contains(c.Message, `User "system:serviceaccount:`+l.Namespace+`:tenant" cannot patch resource`) {
		t.Errorf("the message is %q", c.Message)
	}
	l.neighbourIdle(t, from)
	// For ConfigMaps and Services each: about all of them, and about the first. The
	// neighbour is elsewhere.
	if n := l.asked(t) - asked; n != 4 {
		t.Errorf("%d questions, want 4", n)
	}
	if k, err := l.Read(t.Context(), "neighbour"); err != nil || !meta.IsStatusConditionTrue(k.Status.Conditions, "Ready") {
		t.Errorf("the neighbour is %v, %v", k.Status.Conditions, err)
	}
}

func (l *lostRights) bindingBack(t *testing.T) {
	from, asked, begin := l.AuditOffset(t), l.asked(t), time.Now()
	l.Apply(t, l.binding("tenant", l.Namespace))
	l.Ready(t, "tenant")
	within(t, begin, "the return is told")
	l.neighbourIdle(t, from)
	if n := l.asked(t) - asked; n != 2 {
		t.Errorf("%d questions, want 2", n)
	}
}

func (l *lostRights) clusterRoleEdited(t *testing.T) {
	from, begin := l.AuditOffset(t), time.Now()
	l.Apply(t, withoutServices)
	l.Says(t, "tenant", "Ready", "False", "ReconciliationFailed", "Service/"+l.Namespace+"/web ")
	within(t, begin, "the loss is told")
	begin = time.Now()
	l.Apply(t, deployer)
	l.Ready(t, "tenant")
	within(t, begin, "the return is told")
	l.neighbourIdle(t, from)
	patched := 0
	events, _, err := l.MoM.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if strings.HasSuffix(e.ImpersonatedUser.Username, ":tenant") {
			if patched++; e.ObjectRef.Resource != "services" {
				t.Errorf("%s %s, though only Services were denied", e.Verb, e.RequestURI)
			}
		}
	}
	if patched != 2 {
		t.Errorf("%d writes, want one that is refused and one that is not", patched)
	}
}

// accountDeleted: RBAC goes on to grant what it grants to the name, so Ready is true. But
// nothing would be pruned with the Kustomization.
func (l *lostRights) accountDeleted(t *testing.T) {
	begin := time.Now()
	l.Delete(t, &corev1.ServiceAccount{}, "tenant")
	l.Says(t, "tenant", v1alpha1.AccountMissingCondition, "True", v1alpha1.ReasonAccountMissing, "system:serviceaccount:"+l.Namespace+":tenant does not exist")
	within(t, begin, "the missing account is told")
	l.Event(t, "Kustomization", "tenant", v1alpha1.ReasonAccountMissing, "left behind")
	l.Ready(t, "tenant")
	begin = time.Now()
	l.account(t, "tenant")
	scenario.Eventually(t, scenario.Converge, "the condition is gone", func(ctx context.Context) error {
		k, err := l.Read(ctx, "tenant")
		if err == nil && meta.FindStatusCondition(k.Status.Conditions, v1alpha1.AccountMissingCondition) != nil {
			err = fmt.Errorf("conditions are %s", scenario.Summary(k.Status.Conditions))
		}
		return err
	})
	within(t, begin, "the account is told")
}

// deletion: a Kustomization whose account lost the right to delete goes when the right is
// back.
func (l *lostRights) deletion(t *testing.T) {
	l.Delete(t, &rbacv1.RoleBinding{}, "tenant")
	l.Says(t, "tenant", "Ready", "False", "ReconciliationFailed", "")
	l.Delete(t, &kustomizev1.Kustomization{}, "tenant")
	l.Says(t, "tenant", "Ready", "False", "PruneFailed", "")
	begin := time.Now()
	l.Apply(t, l.binding("tenant", l.Namespace))
	l.Gone(t, &kustomizev1.Kustomization{}, "tenant")
	within(t, begin, "it is gone")
	if l.Data(t, "a-0") != nil {
		t.Error("its objects are left behind")
	}
}

// otherCluster: in a cluster of spec.kubeConfig a loss is told at the interval, also while
// the account may read what it may not apply.
func (l *lostRights) otherCluster(t *testing.T) {
	other, err := l.Cluster(t.Context(), "rights")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(other.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: "other"}, Data: map[string][]byte{"value": kubeconfig}}
	if err := l.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	there, err := other.Client()
	if err != nil {
		t.Fatal(err)
	}
	apply := func(text string) {
		t.Helper()
		if err := stage.Apply(t.Context(), there, text); err != nil {
			t.Fatal(err)
		}
	}
	apply(deployer + "---\n" + l.binding("tenant", "default"))
	l.Kustomization(t, "remote", "{serviceAccountName: tenant, interval: 2s, targetNamespace: default, kubeConfig: {secretRef: {name: other}}}")
	l.Ready(t, "remote")
	apply(withoutServices)
	l.Says(t, "remote", "Ready", "False", "ReconciliationFailed", "Service/default/web ")
	apply(deployer)
	l.Ready(t, "remote")
}
