package safety

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// armour is one tier with an agent and the definitions of Cluster API and of its
// provider for AWS, but without their controllers: what becomes of the objects is
// nobody's doing but the agent's.
type armour struct{ *scenario.HelmTier }

// guarded waits until the label that protects a Namespace has a value; empty if it is
// not there.
func (a *armour) guarded(t *testing.T, namespace, value string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("Namespace %s is labelled %q", namespace, value), func(ctx context.Context) error {
		ns := &corev1.Namespace{}
		if err := a.Client.Get(ctx, client.ObjectKey{Name: namespace}, ns); err != nil {
			return err
		}
		if got := ns.Labels[v1alpha1.ProtectedLabel]; got != value {
			return fmt.Errorf("it is labelled %q", got)
		}
		return nil
	})
}

// unguard says of a Namespace that it is not protected, as a person would.
func (a *armour) unguard(t *testing.T, namespace string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := a.Client.Patch(t.Context(), ns, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"false"}}}`, v1alpha1.ProtectedLabel))); err != nil {
		t.Fatal(err)
	}
}

func startArmour(t *testing.T) *armour {
	t.Helper()
	a := &armour{scenario.StartHelmTier(t)}
	for _, pattern := range []string{"capi/crd/bases/*.yaml", "providers/aws/*_aws*.yaml"} {
		files, err := filepath.Glob(scenario.Path(t, "bin", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no definitions at %s: %v; build them with: make build-e2e", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			a.Apply(t, string(data))
		}
	}
	scenario.Eventually(t, scenario.Converge, "Clusters are served", func(ctx context.Context) error {
		for _, kind := range []client.ObjectList{clusterList(), list("infrastructure.cluster.x-k8s.io/v1beta2", "AWSClusterStaticIdentity")} {
			if err := a.Client.List(ctx, kind); err != nil {
				return err
			}
		}
		return nil
	})
	return a
}

func list(apiVersion, kind string) *unstructured.UnstructuredList {
	l := &unstructured.UnstructuredList{}
	l.SetAPIVersion(apiVersion)
	l.SetKind(kind + "List")
	return l
}

func clusterList() *unstructured.UnstructuredList { return list(clusterVersion, "Cluster") }

const (
	clusterVersion = "cluster.x-k8s.io/v1beta2"
	awsVersion     = "infrastructure.cluster.x-k8s.io/v1beta2"
)

func clusterOf(name, metadata string) string {
	return fmt.Sprintf(`apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: %[1]s%[2]s}
spec:
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: AWSCluster, name: %[1]s}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: AWSManagedControlPlane, name: %[1]s}
`, name, metadata)
}

func awsCluster(name, metadata string) string {
	return fmt.Sprintf(`apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: AWSCluster
metadata: {name: %s%s}
spec: {region: eu-central-1, identityRef: {kind: AWSClusterStaticIdentity, name: $ns-account}}
`, name, metadata)
}

func awsControlPlane(name, metadata string) string {
	return fmt.Sprintf(`apiVersion: controlplane.cluster.x-k8s.io/v1beta2
kind: AWSManagedControlPlane
metadata: {name: %s%s}
spec: {region: eu-central-1, eksClusterName: %[1]s}
`, name, metadata)
}

// account is an identity and the Secret with its keys.
const account = `apiVersion: infrastructure.cluster.x-k8s.io/v1beta2
kind: AWSClusterStaticIdentity
metadata: {name: $ns-account}
spec: {secretRef: $ns-account, allowedNamespaces: {}}
---
apiVersion: v1
kind: Secret
metadata: {name: $ns-account}
stringData: {AccessKeyID: a, SecretAccessKey: b}
`

// as is a client that acts as somebody else, with all rights: what it may not do
// is refused by admission.
func (a *armour) as(t *testing.T, user string) client.Client {
	t.Helper()
	config, err := a.MoM.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
	c, err := client.New(config, client.Options{Scheme: a.Client.Scheme(), Mapper: a.Client.RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wall: whoever asks the API server for a delete that destroys a cluster is refused
// until a person confirmed it, and what Cluster API, clusterctl and people do
// otherwise is not in the way.
func (a *armour) wall(t *testing.T) {
	const (
		admin      = "kubernetes-admin"
		agent      = "system:serviceaccount:cascade-system:cascade"
		parent     = "system:serviceaccount:cascade-system:cascade-parent"
		capi       = "system:serviceaccount:capi-system:capi-manager"
		collector  = "system:serviceaccount:kube-system:generic-garbage-collector"
		confirmed  = ", annotations: {cascade.dev/deletion: confirmed}"
		moved      = `, annotations: {clusterctl.cluster.x-k8s.io/delete-for-move: ""}`
		part       = ", labels: {cluster.x-k8s.io/cluster-name: prod}"
		finalizers = ", finalizers: [example.com/held]"
	)
	definition := func(group, plural, kind, metadata string) string {
		return strings.NewReplacer("things.$ns.example.com}", plural+"."+group+metadata+"}", "$ns.example.com", group, "kind: Thing", "kind: "+kind,
			"ThingList", kind+"List", "plural: things", "plural: "+plural, "singular: thing", "singular: "+strings.TrimSuffix(plural, "s")).Replace(scenario.ThingCRD)
	}
	t.Run("Deletes", func(t *testing.T) {
		parts := scenario.PartsOf(t)
		defer parts.Wait()
		for _, c := range []struct {
			name, reason, user, object string
			// then is done to the object by a person, before.
			then func(t *testing.T, r *scenario.Row, u *unstructured.Unstructured)
			// denied is what the refusal says; empty: it is not refused.
			denied string
		}{
			{"Cluster", "it is a real cluster", admin, clusterOf("prod", ""), nil, "destroys the real cluster"},
			{"ClusterByController", "whoever it is", capi, clusterOf("prod", ""), nil, "destroys the real cluster"},
			{"ClusterByCollector", "nor because an owner of it is gone", collector, clusterOf("prod", ""), nil, "destroys the real cluster"},
			{"ClusterOfOldVersion", "by the path of another version", admin, strings.Replace(clusterOf("prod", ""), "v1beta2", "v1beta1", 1), nil, "destroys the real cluster"},
			{"ClusterOtherwiseAnnotated", "another word is no confirmation", admin, clusterOf("prod", ", annotations: {cascade.dev/deletion: maybe}"), nil, "destroys the real cluster"},
			{"ClusterConfirmed", "a person said so", admin, clusterOf("prod", confirmed), nil, ""},
			{"ClusterMoved", "clusterctl move leaves nothing behind", capi, clusterOf("prod", moved), nil, ""},
			{"ClusterDeleting", "asking again changes nothing, and scripts do", admin, clusterOf("prod", finalizers+confirmed), func(t *testing.T, r *scenario.Row, u *unstructured.Unstructured) {
				if err := r.Client.Delete(t.Context(), u.DeepCopy()); err != nil {
					t.Fatal(err)
				}
				r.Patch(t, u.DeepCopy(), "prod", `{"metadata":{"annotations":null}}`)
				t.Cleanup(func() {
					_ = r.Client.Patch(context.Background(), u, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
				})
			}, ""},
			{"PartByAgent", "our own mistakes end here, too", agent, awsCluster("prod", ""), nil, "confirm its deletion"},
			{"PartByParent", "from above as well", parent, awsCluster("prod", part), nil, "goes with its Cluster"},
			{"PartByAgentConfirmed", "a confirmation holds for us as for people", agent, awsCluster("prod", confirmed), nil, ""},
			{"PartByController", "Cluster API takes clusters apart", capi, awsCluster("prod", part), nil, ""},
			{"PartByCollector", "and leaves the rest to the garbage collector", collector, awsCluster("prod", part), nil, ""},
			{"PartByPerson", "a machine is deleted to be replaced", admin, awsCluster("prod", part), nil, ""},
			{"ClusterSecretByAgent", "nobody reaches the cluster without it", agent, "apiVersion: v1\nkind: Secret\nmetadata: {name: prod-ca" + part + "}\ntype: cluster.x-k8s.io/secret\n", nil, "goes with its Cluster"},
			{"SecretByAgent", "an ordinary one", agent, "apiVersion: v1\nkind: Secret\nmetadata: {name: plain}\n", nil, ""},
			{"ConfigMapByAgent", "an ordinary object", agent, scenario.ConfigMapWith("plain", "", "{}"), nil, ""},
			{"Namespace", "an ordinary one", admin, "apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-other}\n", nil, ""},
			{"NamespaceProtected", "a label is all it takes", admin, "apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-other, labels: {cascade.dev/protected: \"true\"}}\n", nil, "is protected by the label"},
			{"NamespaceConfirmed", "and an annotation to end that", admin, "apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-other, labels: {cascade.dev/protected: \"true\"}" + confirmed + "}\n", nil, ""},
			{"Definition", "it takes every object of its kind along, past all admission", admin, definition("wall.cluster.x-k8s.io", "walls", "Wall", ""), nil, "deletes every object of its kind"},
			{"DefinitionConfirmed", "a provider is removed on purpose", admin, definition("door.cluster.x-k8s.io", "doors", "Door", confirmed), nil, ""},
			{"DefinitionOfOthers", "other kinds are not ours to guard", admin, definition("cluster-x-k8s.io.example.com", "windows", "Window", ""), nil, ""},
		} {
			parts.Run(c.name, func(t *testing.T) {
				r := a.RowNamed(t, "wall-"+strings.ToLower(c.name), map[string]string{"README": "nothing"})
				u := made(t, r, c.object)
				if c.then != nil {
					c.then(t, r, u)
				}
				user := a.as(t, c.user)
				for _, options := range [][]client.DeleteOption{{client.DryRunAll}, nil} {
					err := user.Delete(t.Context(), u.DeepCopy(), options...)
					switch {
					case c.denied == "" && err != nil:
						t.Errorf("%s: the delete was refused: %v", c.reason, err)
					case c.denied != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.denied)):
						t.Errorf("%s: the answer to the delete is %v, want one that says %q", c.reason, err, c.denied)
					}
				}
				if c.denied == "" {
					return
				}
				live := u.DeepCopy()
				if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(u), live); err != nil || live.GetDeletionTimestamp() != nil {
					t.Errorf("%s: it is deleted: %v", c.reason, err)
				}
			})
		}
		parts.Run("Collection", a.wallCollection)
		parts.Run("EndOfNamespace", a.wallNamespace)
	})
	// The definitions that everything here depends on.
	for name, denied := range map[string]bool{"clusters.cluster.x-k8s.io": true, "layers.cascade.dev": true, "kustomizations.kustomize.toolkit.fluxcd.io": false} {
		u := stage.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition")
		u.SetName(name)
		if err := a.Client.Delete(t.Context(), u, client.DryRunAll); apierrors.IsForbidden(err) != denied {
			t.Errorf("CRD %s: the answer to a delete is %v, refused is to be %t", name, err, denied)
		}
	}
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: stage.Namespace}}
	if err := a.Client.Delete(t.Context(), own, client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("the Namespace of the agent may be deleted: %v", err)
	}
}

// made applies one object and returns it.
func made(t *testing.T, r *scenario.Row, text string) *unstructured.Unstructured {
	t.Helper()
	objects := parse(t, r, text)
	u := objects[0]
	if err := r.Client.Create(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	return u
}

// wallCollection: kubectl delete clusters --all.
func (a *armour) wallCollection(t *testing.T) {
	r := a.RowNamed(t, "wall-collection", map[string]string{"README": "nothing"})
	for _, name := range []string{"one", "two"} {
		made(t, r, clusterOf(name, ""))
	}
	err := r.Client.DeleteAllOf(t.Context(), stage.Object(clusterVersion, "Cluster"), client.InNamespace(r.Namespace))
	if !apierrors.IsForbidden(err) {
		t.Errorf("the answer to the delete of all Clusters is %v", err)
	}
	found := clusterList()
	if err := r.Client.List(t.Context(), found, client.InNamespace(r.Namespace)); err != nil || len(found.Items) != 2 {
		t.Errorf("%d Clusters are left, %v", len(found.Items), err)
	}
}

// wallNamespace: the Namespace of a cluster is deleted. It hangs, everything that
// the cluster is made of stays, and its condition says why. Once the Cluster is
// confirmed and Cluster API has taken it apart, the Namespace goes.
func (a *armour) wallNamespace(t *testing.T) {
	r := a.RowNamed(t, "wall-end", map[string]string{"README": "nothing"})
	part := ", labels: {cluster.x-k8s.io/cluster-name: prod}"
	parts := []*unstructured.Unstructured{
		made(t, r, clusterOf("prod", "")), made(t, r, awsCluster("prod", part)), made(t, r, awsControlPlane("prod", part)),
		made(t, r, "apiVersion: v1\nkind: Secret\nmetadata: {name: prod-ca"+part+"}\ntype: cluster.x-k8s.io/secret\n"),
		made(t, r, "apiVersion: cluster.x-k8s.io/v1beta2\nkind: ClusterClass\nmetadata: {name: class}\nspec: {infrastructure: {templateRef: {apiVersion: x/v1, kind: X, name: x}}, controlPlane: {templateRef: {apiVersion: x/v1, kind: X, name: x}}}\n"),
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.Namespace}}
	a.unguard(t, r.Namespace)
	if err := r.Client.Delete(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the Namespace says why it stays", func(ctx context.Context) error {
		if err := r.Load(ctx, ns, "", r.Namespace); err != nil {
			return err
		}
		for _, c := range ns.Status.Conditions {
			if c.Type == corev1.NamespaceDeletionContentFailure && c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "'cascade-cluster-parts'") && strings.Contains(c.Message, "goes with its Cluster") {
				return nil
			}
		}
		return fmt.Errorf("conditions are %+v", ns.Status.Conditions)
	})
	for _, u := range parts {
		if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil || u.GetDeletionTimestamp() != nil {
			t.Errorf("%s %s is deleted: %v", u.GetKind(), u.GetName(), err)
		}
	}
	// What Cluster API would do after a person confirmed.
	r.Patch(t, parts[0].DeepCopy(), "prod", `{"metadata":{"annotations":{"cascade.dev/deletion":"confirmed"}}}`)
	capi := a.as(t, "system:serviceaccount:capi-system:capi-manager")
	for _, u := range parts[1:4] {
		if err := capi.Delete(t.Context(), u.DeepCopy()); err != nil {
			t.Error(err)
		}
	}
	// The class may be needed elsewhere; the Namespace's confirmation covers it.
	if err := r.Client.Patch(t.Context(), ns, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"cascade.dev/deletion":"confirmed"}}}`))); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the Namespace is gone", func(ctx context.Context) error {
		if err := r.Load(ctx, ns, "", r.Namespace); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v, %+v", err, ns.Status.Conditions)
		}
		return nil
	})
}

// parse reads manifests, into the row's namespace where they name none.
func parse(t *testing.T, r *scenario.Row, text string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := ssautil.ReadObjects(strings.NewReader(r.Fill(text)))
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		mapping, err := r.Client.RESTMapper().RESTMapping(u.GroupVersionKind().GroupKind(), u.GroupVersionKind().Version)
		if err == nil && mapping.Scope.Name() == "namespace" && u.GetNamespace() == "" {
			u.SetNamespace(r.Namespace)
		}
	}
	return objects
}
