package install

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// agentUser is the agent's own account.
const agentUser = "system:serviceaccount:cascade-system:cascade"

// accounts are those that the tier acts as, with the rights of a platform's account in
// namespace default: to declare clusters, and to delete them.
const accounts = `{apiVersion: v1, kind: ServiceAccount, metadata: {name: platform, namespace: cascade-system}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: scraper, namespace: default}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: clusters, namespace: default}
rules:
- {apiGroups: [cluster.x-k8s.io, infrastructure.cluster.x-k8s.io, controlplane.cluster.x-k8s.io], resources: ["*"], verbs: [get, list, watch, create, patch, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: clusters, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: clusters}
subjects: [{kind: ServiceAccount, name: platform, namespace: cascade-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: deleter, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cascade-cluster-deleter}
subjects: [{kind: ServiceAccount, name: platform, namespace: cascade-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: scraper}
rules: [{nonResourceURLs: [/metrics], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: scraper}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: scraper}
subjects: [{kind: ServiceAccount, name: scraper, namespace: default}]
---
` + admin

// admin lets the account write everyday objects in namespace default.
const admin = `apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: platform, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{kind: ServiceAccount, name: platform, namespace: cascade-system}]
`

// TestLockdown: with lockdown, all that an agent does is within its roles, and its own
// account cannot delete a Cluster. A Cluster is deleted on the way of two commits, by the
// account that may.
func TestLockdown(t *testing.T) {
	scenario.Alongside(t)
	c := startCluster(t, true)
	scenario.InstallClusterAPI(t, c.Client)
	from := c.AuditOffset(t)
	c.install(t, "--lockdown", "--lockdown-impersonates=platform", "--lockdown-cluster-deleter", "--metrics-auth=kubernetes", "--host-network=false", "--first-sync=create")
	c.Apply(t, accounts)
	c.repository(t, "platform")
	c.Value(t, "a", "1")

	c.metrics(t)
	c.prunes(t)
	c.release(t)
	c.child(t)
	c.deletesCluster(t)

	events, _, err := c.tier.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	own := 0
	for _, e := range events {
		if e.User.Username != agentUser {
			continue
		}
		own++
		if e.ResponseStatus.Code == http.StatusForbidden && e.ImpersonatedUser.Username == "" {
			t.Errorf("the roles lack what the agent does: %s %s", e.Verb, e.RequestURI)
		}
	}
	if own < 100 {
		t.Errorf("the audit log has %d requests of the agent", own)
	}
}

// metrics are for who may read them, which the agent asks the API server.
func (c *cluster) metrics(t *testing.T) {
	t.Helper()
	scraper := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "scraper"}}
	token := &authenticationv1.TokenRequest{}
	if err := c.Client.SubResource("token").Create(t.Context(), scraper, token); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the scraper is let in", func(ctx context.Context) error {
		address, err := scenario.MetricsAddress(c.tier)
		if err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", nil)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token.Status.Token)
		answer, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}).Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", answer.StatusCode)
		}
		return nil
	})
}

func (c *cluster) prunes(t *testing.T) {
	t.Helper()
	c.Put(t, "apps", map[string]string{"app/b.yaml": scenario.ConfigMap("b", "1")})
	c.Value(t, "b", "1")
	c.Put(t, "apps", map[string]string{"app/b.yaml": ""})
	c.Value(t, "b", "")
}

// release installs a chart of the repository, and takes it away.
func (c *cluster) release(t *testing.T) {
	t.Helper()
	c.Put(t, "apps", map[string]string{
		"chart/Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\n", "chart/templates/web.yaml": scenario.ConfigMap("web", "1"),
	})
	release := `apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: web, namespace: cascade-system}
spec:
  interval: 10m
  serviceAccountName: platform
  targetNamespace: default
  storageNamespace: default
  chart: {spec: {chart: ./chart, sourceRef: {kind: GitRepository, name: apps}, reconcileStrategy: Revision}}
`
	c.Apply(t, release)
	c.Value(t, "web", "1")
	if err := c.Client.Delete(t.Context(), named("helm.toolkit.fluxcd.io/v2", "HelmRelease", stage.Namespace, "web")); err != nil {
		t.Fatal(err)
	}
	c.Value(t, "web", "")
	c.gone(t, "source.toolkit.fluxcd.io/v1", "HelmChart", stage.Namespace, "cascade-system-web")
}

func (c *cluster) gone(t *testing.T, apiVersion, kind, namespace, name string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, kind+" "+name+" is gone", func(ctx context.Context) error {
		u := named(apiVersion, kind, namespace, name)
		err := c.Client.Get(ctx, client.ObjectKeyFromObject(u), u)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %v", err)
	})
}

// child connects another cluster, and pushes a layer as the account.
func (c *cluster) child(t *testing.T) {
	t.Helper()
	below, err := c.Cluster(t.Context(), "below", "--api-only")
	if err != nil {
		t.Fatal(err)
	}
	there, err := below.Client()
	if err != nil {
		t.Fatal(err)
	}
	// Nobody fills the role admin there.
	if err := stage.Apply(t.Context(), there, "{apiVersion: v1, kind: Namespace, metadata: {name: cascade-system}}\n---\n{apiVersion: v1, kind: ServiceAccount, metadata: {name: platform, namespace: cascade-system}}\n---\n"+
		strings.Replace(admin, "name: admin}", "name: cluster-admin}", 1)); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(below.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "below"}, Data: map[string][]byte{"value": kubeconfig}}
	if err := c.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	c.Put(t, "apps", map[string]string{"layer/pushed.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: pushed, namespace: default}}"})
	c.Apply(t, `{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: below, namespace: cascade-system, labels: {below: "yes"}}, spec: {kubeConfig: {secretRef: {name: below}}}}
---
apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: base, namespace: cascade-system}
spec:
  serviceAccountName: platform
  clusterSelector: {matchLabels: {below: "yes"}}
  sourceRef: {kind: GitRepository, name: apps}
  path: ./layer
`)
	scenario.Eventually(t, scenario.Converge, "the layer is in the child", func(ctx context.Context) error {
		if err := there.Get(ctx, client.ObjectKey{Namespace: "default", Name: "pushed"}, &corev1.ConfigMap{}); err != nil {
			found := &v1alpha1.Child{}
			_ = c.Load(ctx, found, stage.Namespace, "below")
			return fmt.Errorf("%w; the child says %s %+v", err, scenario.Summary(found.Status.Conditions), found.Status.Layers)
		}
		return nil
	})
	layer := named("cascade.dev/v1alpha1", "Layer", stage.Namespace, "base")
	if err := c.Client.Delete(t.Context(), layer); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Delete(t.Context(), named("cascade.dev/v1alpha1", "Child", stage.Namespace, "below")); err != nil {
		t.Fatal(err)
	}
	c.gone(t, "cascade.dev/v1alpha1", "Child", stage.Namespace, "below")
}

// deletesCluster: on the way of two commits as the account, and not as the agent.
func (c *cluster) deletesCluster(t *testing.T) {
	t.Helper()
	c.Put(t, "apps", map[string]string{"app/prod.yaml": scenario.LocalCluster("prod")})
	scenario.ClusterCreated(t, c.Client, "prod")

	config, err := c.tier.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.Impersonate.UserName = agentUser
	agent, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range scenario.ClusterKinds() {
		err := agent.Delete(t.Context(), named(kind[0], kind[1], "default", "prod"))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot delete resource") {
			t.Errorf("the agent's account deletes a %s, or something else than its rights refuses it: %v", kind[1], err)
		}
	}

	from := c.AuditOffset(t)
	confirmed := strings.ReplaceAll(scenario.LocalCluster("prod"), "namespace: default}", "namespace: default, annotations: {cascade.dev/deletion: confirmed}}")
	c.Put(t, "apps", map[string]string{"app/prod.yaml": confirmed})
	scenario.Eventually(t, scenario.Converge, "the deletion is confirmed", func(ctx context.Context) error {
		u := named("cluster.x-k8s.io/v1beta2", "Cluster", "default", "prod")
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(u), u); err != nil {
			return err
		}
		if u.GetAnnotations()[v1alpha1.DeletionAnnotation] == "" {
			return fmt.Errorf("annotations are %v", u.GetAnnotations())
		}
		return nil
	})
	c.Put(t, "apps", map[string]string{"app/prod.yaml": ""})
	c.gone(t, "cluster.x-k8s.io/v1beta2", "Cluster", "default", "prod")
	events, _, err := c.tier.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	by := ""
	for _, e := range events {
		if e.Verb == "delete" && e.ObjectRef.Resource == "clusters" && e.ResponseStatus.Code < 300 {
			by = e.ImpersonatedUser.Username
		}
	}
	if by != "system:serviceaccount:cascade-system:platform" {
		t.Errorf("the Cluster was deleted as %q", by)
	}
}
