package access

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
)

// plural is what a child would serve, for kinds of any name.
func plural(gk schema.GroupKind) (string, bool) {
	if gk.Kind == "Unserved" {
		return "", false
	}
	r := strings.ToLower(gk.Kind)
	if strings.HasSuffix(r, "y") {
		return strings.TrimSuffix(r, "y") + "ies", true
	}
	return r + "s", true
}

// TestRights: the parent has no right in a child but those that its layers take,
// each for the objects that they name. The golden file is of the agent's layer.
func TestRights(t *testing.T) {
	definitions, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	ground, workload, err := deploy.Agent(deploy.Options{AgentValues: v1alpha1.AgentValues{Image: "cascade:test"}})
	if err != nil {
		t.Fatal(err)
	}
	objects := slices.Concat(definitions, ground, workload, []*unstructured.Unstructured{
		{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": v1alpha1.VariablesConfigMap, "namespace": v1alpha1.AgentNamespace}}},
		{Object: map[string]any{"apiVersion": "x.dev/v1", "kind": "Unserved", "metadata": map[string]any{"name": "x", "namespace": "y"}}},
	})
	got, err := yaml.Marshal(Rights(objects, plural, "cascade-layer.fleet.base"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "rights.yaml")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("rights of the agent's layer differ from %s (UPDATE=1 writes it):\n%s", file, got)
	}
}

// TestActing: to push a layer as an account the parent has no right to any of its objects.
func TestActing(t *testing.T) {
	for _, r := range Acting("deployer", "cascade-layer.team.app") {
		switch what := r.Resources[0] + " " + strings.Join(r.ResourceNames, ",") + " " + strings.Join(r.Verbs, ","); what {
		case "configmaps  create", "configmaps cascade-layer.team.app get,update", "serviceaccounts deployer impersonate":
		default:
			t.Errorf("the parent has the right %s", what)
		}
	}
}

func TestRightsAreOfNamesOnly(t *testing.T) {
	object := func(apiVersion, kind, name string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name, "namespace": "n"}}}
	}
	for _, r := range Rights([]*unstructured.Unstructured{object("v1", "Secret", "a"), object("v1", "Secret", "b"), object("rbac.authorization.k8s.io/v1", "Role", "r")}, plural, "cascade-layer.fleet.base") {
		for _, list := range [][]string{r.APIGroups, r.Resources, r.Verbs, r.ResourceNames} {
			if slices.Contains(list, rbacv1.ResourceAll) {
				t.Errorf("a rule for everything: %v", r)
			}
		}
		if len(r.ResourceNames) == 0 && !slices.Equal(r.Verbs, []string{"create"}) {
			t.Errorf("a rule without names: %v", r)
		}
	}
}

// TestLoan: the right to read one Secret is for that alone, in its namespace, and goes with the owner.
func TestLoan(t *testing.T) {
	owner := metav1.OwnerReference{APIVersion: "cluster.x-k8s.io/v1beta2", Kind: "Cluster", Name: "a", UID: "1"}
	objects, rule := Loan(types.NamespacedName{Namespace: "fleet", Name: "a-kubeconfig"}, owner)
	if !slices.Equal(rule.Resources, []string{"secrets"}) || !slices.Equal(rule.ResourceNames, []string{"a-kubeconfig"}) || !slices.Equal(rule.Verbs, []string{"get"}) {
		t.Errorf("the right is %v", rule)
	}
	var kinds []string
	for _, u := range objects {
		kinds = append(kinds, u.GetNamespace()+" "+u.GetKind()+" "+u.GetName())
		if !slices.Equal(u.GetOwnerReferences(), []metav1.OwnerReference{owner}) {
			t.Errorf("%s has the owners %v: the right would stay", u.GetKind(), u.GetOwnerReferences())
		}
	}
	if want := []string{"fleet Role cascade-parent.secret.a-kubeconfig", "fleet RoleBinding cascade-parent.secret.a-kubeconfig"}; !slices.Equal(kinds, want) {
		t.Errorf("objects are %q, want %q", kinds, want)
	}
}

func TestLayerRole(t *testing.T) {
	long := LayerRole(strings.Repeat("n", 63), strings.Repeat("l", 253))
	if len(long) > 253 || long == LayerRole(strings.Repeat("n", 63), strings.Repeat("l", 252)) {
		t.Errorf("name of a role is %s", long)
	}
	if got := LayerRole("fleet", "base"); got != "cascade-parent.fleet.base" {
		t.Errorf("name of a role is %s", got)
	}
}
