package install

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// synced makes a cluster with a Cluster, an agent that a program installed, and what Git has.
func (c *cluster) synced(t *testing.T, args ...string) {
	t.Helper()
	c.install(t, args...)
	c.repository(t, "")
	c.Value(t, "a", "1")
}

// unchanged fails if something went since an offset of the audit log that is to stay, or if
// anything was deleted besides what may be.
func (c *cluster) unchanged(t *testing.T, before map[string]string, from int64, may ...string) {
	t.Helper()
	if after := c.uids(t); !maps.Equal(before, after) {
		t.Errorf("there were %v, there are %v", before, after)
	}
	for _, d := range c.deleted(t, from) {
		if !slices.Contains(may, d) && !strings.HasPrefix(d, "leases/") {
			t.Errorf("there was deleted %s", d)
		}
	}
}

// TestInstallOverEarlier: what earlier versions installed is upgraded and uninstalled, and
// nothing goes that a tier has.
func TestInstallOverEarlier(t *testing.T) {
	scenario.Alongside(t)
	for name, commit := range map[string]string{"BeforeRecords": scenario.BeforeRecords, "BeforeValues": scenario.BeforeValues} {
		t.Run(name, func(t *testing.T) { installOver(t, scenario.Earlier(t, commit)) })
	}
}

// installOver installs over what an earlier version installed.
func installOver(t *testing.T, earlier scenario.Release) {
	c := startCluster(t, true)
	scenario.InstallClusterAPI(t, c.Client)
	c.Apply(t, scenario.LocalCluster("prod"))
	c.program = earlier.Dir + "/cascade"
	c.synced(t)
	c.program = ""
	before, from := c.uids(t), c.AuditOffset(t)
	out, _, code := c.run(t, "", "install", "--image", stage.Image, "--diff")
	if code != 1 || !strings.Contains(out, "-    type: Recreate") || !strings.Contains(out, "unreachable") {
		t.Errorf("the differences end with %d\n%s", code, out)
	}
	c.install(t)
	d := c.deployment(t)
	if !d.Spec.Template.Spec.HostNetwork || d.Annotations["install.cascade.dev/version"] == "" {
		t.Error("an upgrade moved the agent off the host's network, or left no version")
	}
	c.Put(t, "apps", map[string]string{"app/a.yaml": scenario.ConfigMap("a", "2")})
	c.Value(t, "a", "2")
	if out, _, code := c.run(t, "", "install", "--image", stage.Image, "--diff"); code != 0 || out != "" {
		t.Errorf("right after the upgrade, differences end with %d\n%s", code, out)
	}
	c.must(t, "uninstall", "--yes")
	c.keeps(t, from)
	if after := c.uids(t); !maps.Equal(before, after) {
		t.Errorf("there were %v, there are %v", before, after)
	}
}

// TestInstall takes one cluster through the life of an agent: installed, moved off the host's
// network, locked down, uninstalled, installed again.
func TestInstall(t *testing.T) {
	scenario.Alongside(t)
	c := startCluster(t, true)
	scenario.InstallClusterAPI(t, c.Client)
	c.Apply(t, scenario.LocalCluster("prod"))

	t.Run("DryRun", func(t *testing.T) {
		from := c.AuditOffset(t)
		out := c.must(t, "install", "--image", stage.Image, "--dry-run")
		if !strings.Contains(out, "create Deployment/cascade-system/cascade") || !strings.Contains(out, "0 to change, 0 to delete, 0 unchanged") {
			t.Errorf("of an empty cluster it says\n%s", out)
		}
		events, _, err := c.tier.Audit(from)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Writes() && strings.HasPrefix(e.UserAgent, "cascade/") && !strings.Contains(e.RequestURI, "dryRun=All") {
				t.Errorf("it wrote: %s %s", e.Verb, e.RequestURI)
			}
		}
	})
	c.synced(t, "--host-network=true")
	before := c.uids(t)

	t.Run("Again", func(t *testing.T) {
		from := c.AuditOffset(t)
		if out, _, code := c.run(t, "", "install", "--image", stage.Image, "--diff"); code != 0 || out != "" {
			t.Errorf("right after the installation, differences end with %d\n%s", code, out)
		}
		c.install(t)
		if d := c.deployment(t); !d.Spec.Template.Spec.HostNetwork || d.Generation != 1 {
			t.Errorf("the same installation changes the Deployment, which has generation %d", d.Generation)
		}
		c.unchanged(t, before, from)
	})

	t.Run("PodNetwork", func(t *testing.T) {
		from := c.AuditOffset(t)
		c.install(t, "--host-network=false")
		d, ns := c.deployment(t), &corev1.Namespace{}
		if err := c.Load(t.Context(), ns, "", stage.Namespace); err != nil {
			t.Fatal(err)
		}
		if d.Spec.Template.Spec.HostNetwork || ns.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
			t.Error("it is on the host's network, or its Namespace admits more than it needs")
		}
		for _, p := range d.Spec.Template.Spec.Containers[0].Ports {
			if p.HostPort != 0 {
				t.Errorf("port %s is still one of the host", p.Name)
			}
		}
		c.unchanged(t, before, from)
	})

	t.Run("LockdownAndBack", func(t *testing.T) {
		from := c.AuditOffset(t)
		c.install(t, "--lockdown", "--lockdown-service-account=app")
		scenario.Eventually(t, scenario.Converge, "the account has no rights", func(ctx context.Context) error {
			k := &kustomizev1.Kustomization{}
			if err := c.Load(ctx, k, stage.Namespace, "app"); err != nil {
				return err
			}
			if s := scenario.Summary(k.Status.Conditions); !strings.Contains(s, "False") {
				return fmt.Errorf("conditions are %s", s)
			}
			return nil
		})
		c.install(t, "--host-network=true")
		c.Put(t, "apps", map[string]string{"app/a.yaml": scenario.ConfigMap("a", "3")})
		c.Value(t, "a", "3")
		for _, kind := range []string{"ClusterRole", "ClusterRoleBinding"} {
			role := named("rbac.authorization.k8s.io/v1", kind, "", "cascade-kustomizations")
			if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(role), role); !apierrors.IsNotFound(err) {
				t.Errorf("%s of the lockdown is still there: %v", kind, err)
			}
		}
		var may []string
		for _, role := range []string{"agent", "accounts", "sources", "kustomizations", "helmreleases", "receivers", "images", "generators", "backups", "credentials", "fleet"} {
			may = append(may, "clusterroles/cascade-"+role, "clusterrolebindings/cascade-"+role, "roles/cascade-"+role, "rolebindings/cascade-"+role)
		}
		c.unchanged(t, before, from, append(may, "networkpolicies/cascade")...)
	})

	t.Run("NewerFluxStays", func(t *testing.T) {
		crd := named("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "buckets.source.toolkit.fluxcd.io")
		if err := c.Client.Patch(t.Context(), crd, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"app.kubernetes.io/version":"v2.99.0"}}}`))); err != nil {
			t.Fatal(err)
		}
		if out := c.must(t, "install", "--image", stage.Image, "--dry-run"); !strings.Contains(out, "keep CustomResourceDefinition/buckets.source.toolkit.fluxcd.io") {
			t.Errorf("it says\n%s", out)
		}
		c.install(t)
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(crd), crd); err != nil || crd.GetLabels()["app.kubernetes.io/version"] != "v2.99.0" {
			t.Errorf("the definition is of %q: %v", crd.GetLabels()["app.kubernetes.io/version"], err)
		}
	})

	t.Run("OtherNamespace", func(t *testing.T) {
		if _, complaints, code := c.run(t, "", "install", "--image", stage.Image, "-n", "elsewhere"); code == 0 || !strings.Contains(complaints, "there is one in cascade-system") {
			t.Errorf("a second agent is installed: %s", complaints)
		}
	})

	t.Run("Uninstall", func(t *testing.T) {
		from := c.AuditOffset(t)
		if _, complaints, code := c.run(t, "n\n", "uninstall"); code == 0 || !strings.Contains(complaints, "not wanted") {
			t.Errorf("it was not wanted: %d, %s", code, complaints)
		}
		out := c.must(t, "uninstall", "--dry-run")
		if !strings.Contains(out, "Deployment/cascade-system/cascade") || len(c.deleted(t, from)) > 0 {
			t.Errorf("it deleted %v and says\n%s", c.deleted(t, from), out)
		}
		c.must(t, "uninstall", "--yes")
		after := c.uids(t)
		if !maps.Equal(before, after) {
			t.Errorf("there were %v, there are %v", before, after)
		}
		c.keeps(t, from)
		k := &kustomizev1.Kustomization{}
		if err := c.Load(t.Context(), k, stage.Namespace, "app"); err != nil || len(k.Finalizers) > 0 {
			t.Errorf("the Kustomization has finalizers %v: %v", k.Finalizers, err)
		}
		if left := c.left(t); len(left) > 0 {
			t.Errorf("there is left %v", left)
		}
	})

	t.Run("InstalledAgain", func(t *testing.T) {
		c.install(t)
		c.Put(t, "apps", map[string]string{"app/a.yaml": scenario.ConfigMap("a", "4")})
		c.Value(t, "a", "4")
	})

	t.Run("UninstallWithDefinitions", func(t *testing.T) {
		c.Apply(t, "apiVersion: cascade.dev/v1alpha1\nkind: Credential\nmetadata: {name: kept, namespace: default}\nspec: {suspend: true, file: {path: none}}\n")
		credential, secret := &v1alpha1.Credential{}, &corev1.Secret{}
		if err := c.Load(t.Context(), credential, "default", "kept"); err != nil {
			t.Fatal(err)
		}
		secret.Namespace, secret.Name = "default", "kept"
		secret.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(credential, v1alpha1.GroupVersion.WithKind("Credential"))}
		if err := c.Client.Create(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		from := c.AuditOffset(t)
		c.must(t, "uninstall", "--yes", "--crds")
		if err := c.Load(t.Context(), secret, "default", "kept"); err != nil || len(secret.OwnerReferences) > 0 {
			t.Errorf("of the Secret of a Credential there is %v: %v", secret.OwnerReferences, err)
		}
		if after := c.uids(t); !maps.Equal(before, after) {
			t.Errorf("there were %v, there are %v", before, after)
		}
		c.keeps(t, from)
		list := &sourcev1.GitRepositoryList{}
		if err := c.Client.List(t.Context(), list); err == nil {
			t.Error("GitRepositories are still served")
		}
		if left := c.left(t); len(left) > 0 {
			t.Errorf("there is left %v", left)
		}
	})
}

// keeps fails if something was deleted that an uninstallation has to leave.
func (c *cluster) keeps(t *testing.T, from int64) {
	t.Helper()
	for _, d := range c.deleted(t, from) {
		resource, _, _ := strings.Cut(d, "/")
		switch resource {
		case "deployments", "clusterroles", "clusterrolebindings", "roles", "rolebindings", "serviceaccounts", "resourcequotas", "networkpolicies",
			"validatingadmissionpolicies", "validatingadmissionpolicybindings", "customresourcedefinitions", "leases", "replicasets", "pods":
		default:
			t.Errorf("there was deleted %s", d)
		}
	}
}

// left are objects of the agent that an uninstallation has to delete.
func (c *cluster) left(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, kind := range [][2]string{
		{"apps/v1", "Deployment"}, {"rbac.authorization.k8s.io/v1", "ClusterRoleBinding"}, {"rbac.authorization.k8s.io/v1", "ClusterRole"}, {"v1", "ServiceAccount"}, {"v1", "ResourceQuota"}, {"v1", "Pod"},
		{"admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"}, {"admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"},
	} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(stage.Object(kind[0], kind[1]+"List").GroupVersionKind())
		if err := c.Client.List(t.Context(), list, client.MatchingLabels{"app.kubernetes.io/name": "cascade"}); err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			found = append(found, kind[1]+"/"+o.Name)
		}
	}
	return found
}

// TestCauses: what keeps the agent from running is told within seconds, by a control plane
// with real controllers and no node.
func TestCauses(t *testing.T) {
	scenario.Alongside(t)
	c := startCluster(t, false)
	for _, step := range []struct{ reason, prepare, want string }{
		{"there is no node", "", "has no node: Unschedulable"},
		{"a quota admits no pod", "{apiVersion: v1, kind: ResourceQuota, metadata: {name: none, namespace: cascade-system}, spec: {hard: {pods: '0'}}}", "no pod is admitted: pods \"cascade-"},
	} {
		if step.prepare != "" {
			c.Apply(t, step.prepare)
			scenario.Eventually(t, scenario.Converge, "the quota counts", func(ctx context.Context) error {
				q := &corev1.ResourceQuota{}
				if err := c.Load(ctx, q, stage.Namespace, "none"); err != nil || len(q.Status.Hard) == 0 {
					return fmt.Errorf("its status is %+v: %v", q.Status, err)
				}
				return nil
			})
			if err := c.Client.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(stage.Namespace)); err != nil {
				t.Fatal(err)
			}
		}
		_, complaints, code := c.run(t, "", "install", "--image", stage.Image, "--timeout", "20s")
		if code == 0 || strings.Count(complaints, step.want) < 2 {
			t.Errorf("%s: it is not told on the way and at the end:\n%s", step.reason, complaints)
		}
	}
	// A kubelet would say so.
	if err := c.Client.Delete(t.Context(), named("v1", "ResourceQuota", stage.Namespace, "none")); err != nil {
		t.Fatal(err)
	}
	c.Apply(t, "{apiVersion: v1, kind: Pod, metadata: {name: pull, namespace: cascade-system, labels: {app.kubernetes.io/name: cascade}}, spec: {hostNetwork: true, containers: [{name: manager, image: 'registry.example/none:v1'}]}}")
	pod := &corev1.Pod{}
	if err := c.Load(t.Context(), pod, stage.Namespace, "pull"); err != nil {
		t.Fatal(err)
	}
	before := client.MergeFrom(pod.DeepCopy())
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "manager", Image: "registry.example/none:v1",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image"}},
	}}
	if err := c.Client.Status().Patch(t.Context(), pod, before); err != nil {
		t.Fatal(err)
	}
	_, complaints, code := c.run(t, "", "install", "--image", stage.Image, "--timeout", "15s")
	if code == 0 || strings.Count(complaints, "pod pull: ImagePullBackOff: Back-off pulling image (image registry.example/none:v1)") < 2 {
		t.Errorf("an image that cannot be pulled is not told:\n%s", complaints)
	}
}
