package capibridge_test

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/capibridge/shapes"
)

var update = flag.Bool("update", false, "write what is there into the golden files")

// memory is a Reader of objects that it has.
type memory struct {
	objects []*unstructured.Unstructured
	// fail is asked before each read.
	fail  func(kind, name string) error
	mapAs func(gk schema.GroupKind) (*meta.RESTMapping, error)
	// serves are the versions of each kind, the preferred one first; all that are
	// asked for if there are none.
	serves []string
	// now is the one version that is served by now, if that is another one.
	now   string
	reads int
	asked map[string]string // the version that each kind was read in
}

func (m *memory) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	m.reads++
	u := obj.(*unstructured.Unstructured)
	gvk := u.GroupVersionKind()
	if m.asked == nil {
		m.asked = map[string]string{}
	}
	m.asked[gvk.Kind] = gvk.Version
	if m.now != "" && gvk.Version != m.now {
		return apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{Group: gvk.Group}, key.Name, "404 page not found", 0, true)
	}
	if m.fail != nil {
		if err := m.fail(gvk.Kind, key.Name); err != nil {
			return err
		}
	}
	for _, o := range m.objects {
		if o.GroupVersionKind().GroupKind() == gvk.GroupKind() && o.GetNamespace() == key.Namespace && o.GetName() == key.Name {
			u.Object = o.DeepCopy().Object
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: gvk.Group, Resource: strings.ToLower(gvk.Kind)}, key.Name)
}

func (m *memory) RESTMapper() meta.RESTMapper { return mapper{m: m} }

func (m *memory) InServed(gk schema.GroupKind, read func(*meta.RESTMapping) error) error {
	mapping, err := mapper{m: m}.RESTMapping(gk)
	if err != nil {
		return err
	}
	if m.now != "" {
		mapping.GroupVersionKind.Version = m.now
	}
	return read(mapping)
}

// mapper has a scope for all kinds, and refuses those that m.mapAs does.
type mapper struct {
	meta.RESTMapper
	m *memory
}

func (r mapper) RESTMapping(gk schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if r.m.mapAs != nil {
		if mapping, err := r.m.mapAs(gk); mapping != nil || err != nil {
			return mapping, err
		}
	}
	scope := meta.RESTScopeNamespace
	if strings.HasPrefix(gk.Kind, "AWSCluster") && strings.HasSuffix(gk.Kind, "Identity") {
		scope = meta.RESTScopeRoot
	}
	version := append(slices.Clone(r.m.serves), "v1")[0]
	if len(versions) > 0 {
		version = versions[0]
		if len(r.m.serves) > 0 && !slices.Contains(r.m.serves, version) {
			return nil, &meta.NoKindMatchError{GroupKind: gk, SearchedVersions: versions}
		}
	}
	return &meta.RESTMapping{GroupVersionKind: gk.WithVersion(version), Scope: scope}, nil
}

// TestDescribeVersions: objects are read in the version that the types are of
// while it is served, and in any other after that.
func TestDescribeVersions(t *testing.T) {
	lives, err := shapes.Lives()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		reason, life string
		serves       []string
		now          string
		want         map[string]string
	}{
		"Dropped":   {"what is served by now, if the mapper does not know yet", "aws-eks", []string{"v1beta2"}, "v1beta3", map[string]string{"AWSManagedCluster": "v1beta3", "AWSManagedControlPlane": "v1beta3", "AWSClusterRoleIdentity": "v1beta3"}},
		"Known":     {"the one of the types, not the preferred one", "aws-eks", []string{"v1beta3", "v1beta2"}, "", map[string]string{"AWSManagedCluster": "v1beta2", "AWSManagedControlPlane": "v1beta2", "AWSClusterRoleIdentity": "v1beta2"}},
		"Later":     {"what is served, when that is gone", "aws-eks", []string{"v1beta3"}, "", map[string]string{"AWSManagedCluster": "v1beta3", "AWSManagedControlPlane": "v1beta3", "AWSClusterRoleIdentity": "v1beta3"}},
		"Azure":     {"another provider, another version", "azure-managed", []string{"v1", "v1beta1"}, "", map[string]string{"AzureManagedCluster": "v1beta1", "AzureManagedControlPlane": "v1beta1", "AzureClusterIdentity": "v1beta1"}},
		"Contract":  {"kinds without types: the preferred one", "local", []string{"v1alpha2", "v1alpha1"}, "", map[string]string{"LocalCluster": "v1alpha2", "LocalControlPlane": "v1alpha2"}},
		"Operator":  {"that which the control plane writes; the preferred one is the oldest", "azure-aks", []string{"v1api20210501", "v1api20240901", "v1beta1"}, "", map[string]string{"ManagedCluster": "v1api20240901", "AzureASOManagedCluster": "v1beta1", "AzureASOManagedControlPlane": "v1beta1", "Secret": "v1api20210501"}},
		"Operator2": {"or what there is", "azure-aks", []string{"v1api20210501", "v1beta1"}, "", map[string]string{"ManagedCluster": "v1api20210501", "AzureASOManagedCluster": "v1beta1", "AzureASOManagedControlPlane": "v1beta1", "Secret": "v1api20210501"}},
	} {
		t.Run(name, func(t *testing.T) {
			i := slices.IndexFunc(lives, func(l shapes.Life) bool { return l.Name == tc.life })
			stage := lives[i].Stages[0]
			m := &memory{objects: stage.Objects, serves: tc.serves, now: tc.now}
			if _, err := new(capibridge.Providers).Describe(t.Context(), m, capibridge.FromObject(stage.Cluster())); err != nil {
				t.Fatal(err)
			}
			delete(m.asked, "AWSClusterControllerIdentity")
			if tc.life == "aws-eks" {
				delete(m.asked, "Secret")
				delete(m.asked, "ServiceAccount")
			}
			if diff := cmp.Diff(tc.want, m.asked); diff != "" {
				t.Errorf("%s\nversions: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestShapes compares what is said about clusters at each stage of their lives
// with what was. TestProviders of package e2e does so with objects that come from
// a real API server.
func TestShapes(t *testing.T) {
	lives, err := shapes.Lives()
	if err != nil {
		t.Fatal(err)
	}
	for _, life := range lives {
		answers := map[string]string{}
		for _, stage := range life.Stages {
			t.Run(life.Name+"/"+stage.Name, func(t *testing.T) {
				c := capibridge.FromObject(stage.Cluster())
				f, err := new(capibridge.Providers).Describe(t.Context(), &memory{objects: stage.Objects}, c)
				if err != nil {
					t.Fatal(err)
				}
				managed := slices.Contains([]string{"AWSManagedControlPlane", "AzureManagedControlPlane", "AzureASOManagedControlPlane"}, c.ControlPlane.Kind)
				if want := managed && f.Variables["cluster_oidc_issuer"] == ""; f.Unfinished != want {
					t.Errorf("an OIDC issuer may come yet: %t, want %t", f.Unfinished, want)
				}
				answers[stage.Name] = shapes.Answers(c, f)
				if diff := cmp.Diff(stage.Want, answers[stage.Name]); diff != "" && !*update {
					t.Errorf("answers: -want, +got (-update writes them):\n%s", diff)
				}
			})
		}
		if *update {
			if err := os.WriteFile(filepath.Join("shapes", life.Name+".golden"), life.Golden(answers), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestUnreadIdentity: what an identity alone tells is not gone while that cannot be read. Where something else tells it, or
// the identity says that it is another one by now, all is known.
func TestUnreadIdentity(t *testing.T) {
	lives, err := shapes.Lives()
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(kind string, _ *memory) func(string, string) error {
		return func(k, _ string) error {
			if k == kind {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", errors.New("no"))
			}
			return nil
		}
	}
	deleted := func(kind string, m *memory) func(string, string) error {
		m.objects = slices.DeleteFunc(slices.Clone(m.objects), func(u *unstructured.Unstructured) bool { return u.GetKind() == kind })
		return nil
	}
	withdrawn := func(kind string, m *memory) func(string, string) error {
		m.objects = slices.Clone(m.objects)
		for i, u := range m.objects {
			if u.GetKind() == kind {
				m.objects[i] = u.DeepCopy()
				unstructured.RemoveNestedField(m.objects[i].Object, "spec", "allowedNamespaces")
			}
		}
		return nil
	}
	for name, tc := range map[string]struct {
		reason, life, stage, kind string
		lost                      func(kind string, m *memory) func(string, string) error
		variable                  string
		unread                    string
	}{
		"RoleDeleted":   {"its HelmRelease is installed again, and nothing of the cluster has an ARN yet", "aws-eks", "provisioning", "AWSClusterRoleIdentity", deleted, "cluster_account", capibridge.HealthNotFound},
		"RoleForbidden": {"the role of the agent was narrowed", "aws-eks", "provisioning", "AWSClusterRoleIdentity", refuse, "cluster_account", capibridge.HealthForbidden},
		"ARN":           {"what was made tells the account as well", "aws-eks", "ready", "AWSClusterRoleIdentity", deleted, "cluster_account", ""},
		"RoleRefused":   {"its namespaces were lost by mistake, and the cluster is what it was", "aws-eks", "provisioning", "AWSClusterRoleIdentity", withdrawn, "cluster_account", capibridge.HealthForbidden},
		"Refused":       {"the same", "azure-vm", "ready", "AzureClusterIdentity", withdrawn, "cluster_tenant", capibridge.HealthForbidden},
		"Source":        {"by whom the role is assumed tells nothing", "aws-eks", "provisioning", "AWSClusterControllerIdentity", refuse, "cluster_account", ""},
		"Machines":      {"the tenant of the identity", "azure-vm", "ready", "AzureClusterIdentity", refuse, "cluster_tenant", capibridge.HealthForbidden},
		"Managed":       {"the tenant of the identity", "azure-managed", "ready", "AzureClusterIdentity", deleted, "cluster_tenant", capibridge.HealthNotFound},
		"Operator":      {"the tenant in the Secret", "azure-aks", "ready", "Secret", refuse, "cluster_tenant", capibridge.HealthForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			life := lives[slices.IndexFunc(lives, func(l shapes.Life) bool { return l.Name == tc.life })]
			at := slices.IndexFunc(life.Stages, func(s shapes.Stage) bool { return s.Name == tc.stage })
			if at < 0 {
				t.Fatalf("%s has no stage %s", tc.life, tc.stage)
			}
			c, m := capibridge.FromObject(life.Stages[at].Cluster()), &memory{objects: life.Stages[at].Objects}
			describe := func() capibridge.Facts {
				t.Helper()
				f, err := new(capibridge.Providers).Describe(t.Context(), m, c)
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
			before := describe()
			if before.Unread != (capibridge.Health{}) || before.Variables[tc.variable] == "" {
				t.Fatalf("before, %s is %q, unread %+v", tc.variable, before.Variables[tc.variable], before.Unread)
			}
			m.fail = tc.lost(tc.kind, m)
			f := describe()
			if got, want := f.Keeping(before).Variables[tc.variable], before.Variables[tc.variable]; f.Unread.Reason != tc.unread || got != want {
				t.Errorf("%s: %s is %q, want %q; unread is %+v, want %q", tc.reason, tc.variable, got, want, f.Unread, tc.unread)
			}
		})
	}
}

// TestDescribeUnknown: what cannot be read is Unknown, with the reason, and what
// can be is said all the same. Only what another try may not meet is an error.
func TestDescribeUnknown(t *testing.T) {
	lives, err := shapes.Lives()
	if err != nil {
		t.Fatal(err)
	}
	stage := func(life, name string) []*unstructured.Unstructured {
		for _, l := range lives {
			for _, s := range l.Stages {
				if l.Name == life && s.Name == name {
					return s.Objects
				}
			}
		}
		t.Fatalf("no stage %s of %s", name, life)
		return nil
	}
	without := func(objects []*unstructured.Unstructured, kind string) []*unstructured.Unstructured {
		return slices.DeleteFunc(slices.Clone(objects), func(u *unstructured.Unstructured) bool { return u.GetKind() == kind })
	}
	with := func(objects []*unstructured.Unstructured, kind string, value any, fields ...string) []*unstructured.Unstructured {
		out := slices.Clone(objects)
		for i, u := range out {
			if u.GetKind() != kind {
				continue
			}
			out[i] = u.DeepCopy()
			if err := unstructured.SetNestedField(out[i].Object, value, fields...); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	notServed := func(kind string) func(schema.GroupKind) (*meta.RESTMapping, error) {
		return func(gk schema.GroupKind) (*meta.RESTMapping, error) {
			if strings.HasPrefix(gk.Kind, kind) {
				return nil, &meta.NoKindMatchError{GroupKind: gk}
			}
			return nil, nil
		}
	}
	refuse := func(kind string, err error) func(string, string) error {
		return func(k, _ string) error {
			if k == kind {
				return err
			}
			return nil
		}
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "x", errors.New("no"))
	eks, aks := stage("aws-eks", "ready"), stage("azure-aks", "ready")
	for name, tc := range map[string]struct {
		reason  string
		memory  *memory
		want    capibridge.Health // of the control plane
		infra   string
		form    capibridge.IdentityForm
		says    string // somewhere in the messages
		account string
	}{
		"NoProvider": {
			"a tier without the provider's definitions, say because it is being replaced", &memory{objects: eks, mapAs: notServed("AWS")},
			capibridge.Health{Status: metav1.ConditionUnknown, Reason: capibridge.HealthNotServed}, capibridge.HealthNotServed, capibridge.IdentityUnknown, "is its provider installed?", "",
		},
		"OtherProvider": {
			"a tier without the other provider runs", &memory{objects: eks, mapAs: notServed("Azure")},
			capibridge.Health{Status: metav1.ConditionTrue, Reason: capibridge.HealthReady}, capibridge.HealthReady, capibridge.IdentityRole, "", "444455556666",
		},
		"Missing": {
			"an object that somebody deleted does not say that the cluster is gone", &memory{objects: without(eks, "AWSManagedControlPlane")},
			capibridge.Health{Status: metav1.ConditionUnknown, Reason: capibridge.HealthNotFound}, capibridge.HealthReady, capibridge.IdentityUnknown, "does not exist", "",
		},
		"Forbidden": {
			"an agent that may not read it", &memory{objects: eks, fail: refuse("AWSManagedControlPlane", forbidden)},
			capibridge.Health{Status: metav1.ConditionUnknown, Reason: capibridge.HealthForbidden}, capibridge.HealthReady, capibridge.IdentityUnknown, "has no right", "",
		},
		"Unreadable": {
			"a field of another type, of a version to come", &memory{objects: with(eks, "AWSManagedControlPlane", "eu", "spec", "network")},
			capibridge.Health{Status: metav1.ConditionUnknown, Reason: capibridge.HealthUnreadable}, capibridge.HealthReady, capibridge.IdentityUnknown, "version that this agent does not know", "",
		},
		"NewFields": {
			"a field more hurts nobody", &memory{objects: with(eks, "AWSManagedControlPlane", map[string]any{"a": int64(1)}, "spec", "fieldToCome")},
			capibridge.Health{Status: metav1.ConditionTrue, Reason: capibridge.HealthReady}, capibridge.HealthReady, capibridge.IdentityRole, "", "444455556666",
		},
		"IdentityMissing": {
			"the rest is known", &memory{objects: without(eks, "AWSClusterRoleIdentity")},
			capibridge.Health{Status: metav1.ConditionTrue, Reason: capibridge.HealthReady}, capibridge.HealthReady, capibridge.IdentityUnknown, "AWSClusterRoleIdentity eks-role does not exist", "444455556666",
		},
		"SecretForbidden": {
			"what the controller's own credentials are", &memory{objects: eks, fail: refuse("Secret", forbidden)},
			capibridge.Health{Status: metav1.ConditionTrue, Reason: capibridge.HealthReady}, capibridge.HealthReady, capibridge.IdentityRole, "has no right", "444455556666",
		},
		"Keys": {
			"the controller was given keys", &memory{objects: with(eks, "Secret", "W2RlZmF1bHRdCg==", "data", "credentials")},
			capibridge.Health{Status: metav1.ConditionTrue, Reason: capibridge.HealthReady}, capibridge.HealthReady, capibridge.IdentityRole, "capa-manager-bootstrap-credentials", "444455556666",
		},
		"Loop": {
			"roles that assume each other", &memory{objects: with(eks, "AWSClusterRoleIdentity", map[string]any{"kind": "AWSClusterRoleIdentity", "name": "eks-role"}, "spec", "sourceIdentityRef")},
			capibridge.Health{Status: metav1.ConditionTrue, Reason: capibridge.HealthReady}, capibridge.HealthReady, capibridge.IdentityUnknown, "assume each other", "444455556666",
		},
		"NoOperator": {
			"without Azure Service Operator the provider's own word counts", &memory{objects: aks, mapAs: notServed("ManagedCluster")},
			capibridge.Health{Status: metav1.ConditionTrue, Reason: capibridge.HealthReady}, capibridge.HealthReady, capibridge.IdentityWorkload, "", "",
		},
		"NoCredential": {
			"the operator's own", &memory{objects: with(without(aks, "Secret"), "AzureASOManagedControlPlane", []any{map[string]any{"apiVersion": "containerservice.azure.com/v1", "kind": "ManagedCluster", "metadata": map[string]any{"name": "aks"}}}, "spec", "resources")},
			capibridge.Health{Status: metav1.ConditionTrue, Reason: capibridge.HealthReady}, capibridge.HealthReady, capibridge.IdentityController, "aso-controller-settings", "",
		},
		"NoManagedCluster": {
			"a control plane made of nothing", &memory{objects: with(with(aks, "AzureASOManagedControlPlane", []any{}, "spec", "resources"), "AzureASOManagedControlPlane", false, "status", "ready")},
			capibridge.Health{Status: metav1.ConditionUnknown, Reason: capibridge.HealthUnreadable}, capibridge.HealthReady, capibridge.IdentityController, "no ManagedCluster", "",
		},
		"Secrets": {
			"a Cluster that wants a Secret read for its author", &memory{objects: with(eks, "Cluster", map[string]any{"apiVersion": "v1", "kind": "Secret", "name": "capa-manager-bootstrap-credentials"}, "spec", "controlPlaneRef")},
			capibridge.Health{Status: metav1.ConditionUnknown, Reason: capibridge.HealthNotServed}, capibridge.HealthReady, capibridge.IdentityUnknown, "not that of a provider", "",
		},
		"OtherNamespace": {
			"or an object of somebody else", &memory{objects: with(eks, "Cluster", map[string]any{"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "AWSManagedControlPlane", "name": "eks-control-plane", "namespace": "other"}, "spec", "controlPlaneRef")},
			capibridge.Health{Status: metav1.ConditionUnknown, Reason: capibridge.HealthForbidden}, capibridge.HealthReady, capibridge.IdentityUnknown, "another namespace", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			i := slices.IndexFunc(tc.memory.objects, func(u *unstructured.Unstructured) bool { return u.GetKind() == "Cluster" })
			c := capibridge.FromObject(tc.memory.objects[i])
			f, err := new(capibridge.Providers).Describe(t.Context(), tc.memory, c)
			if err != nil {
				t.Fatalf("%s\nDescribe(): %v", tc.reason, err)
			}
			got := shapes.Answers(c, f)
			if f.ControlPlane.Status != tc.want.Status || f.ControlPlane.Reason != tc.want.Reason || f.Infrastructure.Reason != tc.infra ||
				f.Identity.Form != tc.form ||
				f.Variables["cluster_account"] != tc.account || !strings.Contains(got, tc.says) {
				t.Errorf("%s\nwant control plane %s %s, infrastructure %s, identity %s, account %q, and %q; got\n%s", tc.reason, tc.want.Status, tc.want.Reason, tc.infra, tc.form, tc.account, tc.says, got)
			}
			if f.Kubeconfig.Secret != clusterapi.KubeconfigSecret(c.Name) || f.Kubeconfig.Key != clusterapi.KubeconfigKey {
				t.Errorf("%s\nkubeconfig in %+v", tc.reason, f.Kubeconfig)
			}
			if tc.memory.reads > 6 {
				t.Errorf("%s\n%d objects were read", tc.reason, tc.memory.reads)
			}
		})
	}
	for name, m := range map[string]*memory{
		"Timeout":     {objects: eks, fail: refuse("AWSManagedCluster", context.DeadlineExceeded)},
		"Overload":    {objects: eks, fail: refuse("AWSClusterRoleIdentity", apierrors.NewTooManyRequests("later", 1))},
		"NoDiscovery": {objects: eks, mapAs: func(schema.GroupKind) (*meta.RESTMapping, error) { return nil, errors.New("connection refused") }},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := new(capibridge.Providers).Describe(t.Context(), m, capibridge.FromObject(eks[0])); err == nil {
				t.Error("Describe() has facts, want an error: the next try may know better, and what was known still holds")
			}
		})
	}
}
