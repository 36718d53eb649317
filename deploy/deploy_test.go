package deploy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func TestCRDs(t *testing.T) {
	objects, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range objects {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, crd, true); err != nil {
			t.Fatalf("%s is no CRD: %v", u.GetName(), err)
		}
		for _, v := range crd.Spec.Versions {
			// Flux's Alerts and Providers have no status; what is wrong with one is an Event.
			if crd.Spec.Group == "notification.toolkit.fluxcd.io" && v.Name == "v1beta3" {
				continue
			}
			if v.Storage && (v.Subresources == nil || v.Subresources.Status == nil) {
				t.Errorf("%s: version %s has no status subresource, which every write of ours needs", crd.Name, v.Name)
			}
		}
		// flux check finds Flux's kinds by these labels, and flux uninstall would
		// remove ours with them.
		flux := v1alpha1.IsFluxGroup(crd.Spec.Group)
		if labelled := crd.Labels["app.kubernetes.io/part-of"] == "flux" && crd.Labels["app.kubernetes.io/version"] == FluxVersion; labelled != flux {
			t.Errorf("%s: labels are %v", crd.Name, crd.Labels)
		}
		got = append(got, crd.Spec.Group+" "+crd.Spec.Names.Kind+" "+string(crd.Spec.Scope))
	}
	slices.Sort(got)
	// An agent must not bring kinds that it does not reconcile: they would look
	// as if they worked.
	want := []string{
		"cascade.dev Child Namespaced", "cascade.dev Credential Namespaced", "cascade.dev Layer Namespaced", "cascade.dev Rollout Namespaced",
		"cascade.dev StateBackup Namespaced",
		"helm.toolkit.fluxcd.io HelmRelease Namespaced",
		"image.toolkit.fluxcd.io ImagePolicy Namespaced", "image.toolkit.fluxcd.io ImageRepository Namespaced",
		"image.toolkit.fluxcd.io ImageUpdateAutomation Namespaced",
		"kustomize.toolkit.fluxcd.io Kustomization Namespaced",
		"notification.toolkit.fluxcd.io Alert Namespaced", "notification.toolkit.fluxcd.io Provider Namespaced",
		"notification.toolkit.fluxcd.io Receiver Namespaced",
		"source.extensions.fluxcd.io ArtifactGenerator Namespaced",
		"source.toolkit.fluxcd.io Bucket Namespaced", "source.toolkit.fluxcd.io ExternalArtifact Namespaced",
		"source.toolkit.fluxcd.io GitRepository Namespaced", "source.toolkit.fluxcd.io HelmChart Namespaced",
		"source.toolkit.fluxcd.io HelmRepository Namespaced", "source.toolkit.fluxcd.io OCIRepository Namespaced",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds: -want, +got:\n%s", diff)
	}
}

func TestAgent(t *testing.T) {
	rights, workload, err := Agent(optionsOf(v1alpha1.AgentValues{Image: "registry.example/cascade:v1", Args: []string{"--log-level=debug", "--concurrent=8"}}))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, u := range rights {
		kinds = append(kinds, u.GetKind())
	}
	want := []string{"Namespace", "ResourceQuota", "ServiceAccount", "ClusterRoleBinding", "ClusterRole", "ClusterRole"}
	for range 6 { // two about durations, four of the wall
		want = append(want, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
	}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("what must be there before the Deployment: -want, +got:\n%s", diff)
	}
	if len(workload) != 1 {
		t.Fatalf("%d objects of workload, want the Deployment", len(workload))
	}
	d := deployment(t, workload[0])
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	if c.Image != "registry.example/cascade:v1" {
		t.Errorf("image is %q", c.Image)
	}
	moved := d.DeepCopy()
	moved.Spec.Template.Spec.Containers[0].Image = "mirror.example/cascade:v1"
	if got := ImageOf(moved); got != c.Image {
		t.Errorf("in a cluster with a mirror its image is %q", got)
	}
	if got := c.Args[len(c.Args)-2:]; !slices.Equal(got, []string{"--log-level=debug", "--concurrent=8"}) || len(c.Args) < 3 {
		t.Errorf("args are %q, want the added ones after the agent's own", c.Args)
	}
	at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "CASCADE_IMAGE" })
	if at < 0 || c.Env[at].Value != c.Image {
		t.Error("CASCADE_IMAGE is not the image: the agent would seed its children with another")
	}
	// What lets it run before a CNI exists, and what an audit asks for.
	if !pod.HostNetwork || pod.Tolerations[0].Key != "node.kubernetes.io/not-ready" || pod.Tolerations[0].Effect != "" || pod.Tolerations[0].TolerationSeconds != nil {
		t.Error("the agent does not run on a node that is not ready for want of a CNI")
	}
	if !slices.ContainsFunc(pod.Tolerations, func(o corev1.Toleration) bool {
		return o.Key == "node.kubernetes.io/unreachable" && o.TolerationSeconds != nil && *o.TolerationSeconds <= 15
	}) {
		t.Error("the agent does not leave a node that says nothing")
	}
	s := c.SecurityContext
	if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.RunAsNonRoot == nil || !*s.RunAsNonRoot {
		t.Errorf("security context is %+v", s)
	}
	if d.Spec.Replicas == nil || *d.Spec.Replicas != 1 {
		t.Error("an agent that shares nothing out is one replica")
	}
	quota := &corev1.ResourceQuota{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(rights[1].Object, quota, true); err != nil {
		t.Fatal(err)
	}
	if pods := quota.Spec.Hard[corev1.ResourcePods]; pods.Value() < MostReplicas || quota.Namespace != d.Namespace {
		t.Errorf("a quota of %s pods in namespace %s", pods.String(), quota.Namespace)
	}
	if s := quota.Spec.ScopeSelector; s == nil || !slices.Contains(s.MatchExpressions[0].Values, pod.PriorityClassName) {
		t.Errorf("where priority class %s is limited, no pod of the agent is admitted: the quota is for %+v", pod.PriorityClassName, s)
	}
	if pod.ServiceAccountName != rights[2].GetName() || d.Namespace != rights[0].GetName() {
		t.Error("the Deployment has another account or namespace than what is made for it")
	}
}

// TestAggregatedRoles: who may edit a namespace may view what the agent works on there, and
// edit what Flux's installation lets edit; the latter only where the agent acts as accounts.
func TestAggregatedRoles(t *testing.T) {
	definitions, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for name, lockdown := range map[string]*v1alpha1.AgentLockdown{"Administrator": nil, "Lockdown": {}} {
		t.Run(name, func(t *testing.T) {
			rights, _, err := Agent(optionsOf(v1alpha1.AgentValues{Image: "x", Lockdown: lockdown}))
			if err != nil {
				t.Fatal(err)
			}
			roles := map[string]*rbacv1.ClusterRole{}
			for _, u := range rights {
				role := &rbacv1.ClusterRole{}
				if u.GetKind() != "ClusterRole" {
					continue
				}
				if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, role, true); err != nil {
					t.Fatal(err)
				}
				roles[role.Name] = role
			}
			view, edit := roles["cascade-view"], roles[editRole]
			if view == nil || edit == nil {
				t.Fatal("there is no such role")
			}
			for of, role := range map[string]*rbacv1.ClusterRole{"view edit admin": view, "edit admin": edit} {
				for _, into := range []string{"view", "edit", "admin"} {
					if is := role.Labels["rbac.authorization.k8s.io/aggregate-to-"+into] == "true"; is != slices.Contains(strings.Fields(of), into) {
						t.Errorf("%s is a part of role %s: %t", role.Name, into, is)
					}
				}
			}
			for _, u := range definitions {
				group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
				resource, _, _ := unstructured.NestedString(u.Object, "spec", "names", "plural")
				if !may(view.Rules, "list", group, "*") || may(view.Rules, "patch", group, resource) {
					t.Errorf("who may view does not list %s.%s, or may write it", resource, group)
				}
				want := lockdown != nil && v1alpha1.IsFluxGroup(group)
				if got := may(edit.Rules, "create", group, resource); got != want {
					t.Errorf("who may edit may create %s.%s: %t, want %t", resource, group, got, want)
				}
			}
		})
	}
}

func may(rules []rbacv1.PolicyRule, verb, group, resource string) bool {
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Verbs, verb) && slices.Contains(r.APIGroups, group) && slices.Contains(r.Resources, resource)
	})
}

// TestAgentIsMadeAnew: two layers have two images; what one changed must not
// show in the other.
func TestAgentIsMadeAnew(t *testing.T) {
	if _, _, err := Agent(optionsOf(v1alpha1.AgentValues{Image: "one", Args: []string{"--one"}, Replicas: 2, Labels: map[string]string{"one": "one"}})); err != nil {
		t.Fatal(err)
	}
	_, workload, err := Agent(optionsOf(v1alpha1.AgentValues{Image: "two"}))
	if err != nil {
		t.Fatal(err)
	}
	c := deployment(t, workload[0]).Spec.Template.Spec.Containers[0]
	if c.Image != "two" || strings.Contains(strings.Join(c.Args, " "), "--one") {
		t.Errorf("image %q, args %q", c.Image, c.Args)
	}
	if d := deployment(t, workload[0]); *d.Spec.Replicas != 1 {
		t.Errorf("%d replicas", *d.Spec.Replicas)
	}
}

func TestReplicas(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		replicas int32
		args     []string
		want     []string
	}{
		"One":     {"one replica drives all Children; without the flag, because nothing may change in a Deployment that was made by an earlier version", 1, []string{"--a"}, []string{"--a"}},
		"Three":   {"twice as many shards, so that those of one that dies are spread", 3, []string{"--a"}, []string{"--a", "--shards=6"}},
		"Named":   {"who names a number has it", 3, []string{"--shards=9"}, []string{"--shards=9"}},
		"Apart":   {"flag and value may be two arguments", 3, []string{"--shards", "9"}, []string{"--shards", "9"}},
		"Another": {"a flag that begins alike is another", 2, []string{"--shards-x=1"}, []string{"--shards-x=1", "--shards=4"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, workload, err := Agent(optionsOf(v1alpha1.AgentValues{Image: "x", Args: tc.args, Replicas: tc.replicas}))
			if err != nil {
				t.Fatal(err)
			}
			d := deployment(t, workload[0])
			got := d.Spec.Template.Spec.Containers[0].Args
			if got = got[len(got)-len(tc.want):]; !slices.Equal(got, tc.want) || *d.Spec.Replicas != tc.replicas {
				t.Errorf("%s\n%d replicas with %q, want %d with %q", tc.reason, *d.Spec.Replicas, got, tc.replicas, tc.want)
			}
		})
	}
	for _, n := range []int32{-1, MostReplicas + 1} {
		if _, _, err := Agent(optionsOf(v1alpha1.AgentValues{Image: "x", Replicas: n})); err == nil {
			t.Errorf("%d replicas: no error", n)
		}
	}
}

func TestConfigureRefuses(t *testing.T) {
	for name, containers := range map[string][]any{"none": {}, "two": {map[string]any{"name": "a"}, map[string]any{"name": "b"}}} {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		if err := unstructured.SetNestedSlice(u.Object, containers, "spec", "template", "spec", "containers"); err != nil {
			t.Fatal(err)
		}
		if err := configure(u, optionsOf(v1alpha1.AgentValues{Image: "x"})); err == nil {
			t.Errorf("%s: an image was put into a Deployment that is not the agent's", name)
		}
	}
}

func optionsOf(v v1alpha1.AgentValues) Options { return Options{AgentValues: v} }

func deployment(t *testing.T, u *unstructured.Unstructured) *appsv1.Deployment {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, d, true); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestLaterDefinitions: a parent of an earlier version does not know the definitions that came
// after it. If one of them could be pruned, the parent would hold its layers for a deletion that
// nobody wants.
func TestLaterDefinitions(t *testing.T) {
	first := []string{
		"children.cascade.dev", "layers.cascade.dev", "helmreleases.helm.toolkit.fluxcd.io", "kustomizations.kustomize.toolkit.fluxcd.io",
		"buckets.source.toolkit.fluxcd.io", "externalartifacts.source.toolkit.fluxcd.io", "gitrepositories.source.toolkit.fluxcd.io",
		"helmcharts.source.toolkit.fluxcd.io", "helmrepositories.source.toolkit.fluxcd.io", "ocirepositories.source.toolkit.fluxcd.io",
	}
	crds, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range crds {
		if kept := u.GetAnnotations()["kustomize.toolkit.fluxcd.io/prune"] == "disabled"; !kept && !slices.Contains(first, u.GetName()) {
			t.Errorf("CRD %s is not in the first version, and has no annotation kustomize.toolkit.fluxcd.io/prune: disabled", u.GetName())
		}
	}
}
