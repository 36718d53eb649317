package fleet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestFleetUnderLockdown has three tiers whose agents all run with the roles of a lockdown,
// under commits for CASCADE_LOCKDOWN_FOR, and holds every request of the agents' accounts
// against these roles.
func TestFleetUnderLockdown(t *testing.T) {
	scenario.Alongside(t)
	length := 3 * time.Minute
	if text := os.Getenv("CASCADE_LOCKDOWN_FOR"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("CASCADE_LOCKDOWN_FOR: %v", err)
		}
	}
	l := startLocked(t)
	for tier, cluster := range map[string]string{"mom": "production", "production": "alpha"} {
		engineDeletes(t, l.tiers[tier], cluster)
		accountDeletes(t, l.tiers[tier], cluster)
	}
	begin := time.Now() // each round ends with the tiers as they were
	for time.Since(begin) < length {
		l.round++
		l.commitsToApps(t)
		l.rotates(t)
		l.commitsToLayers(t)
		l.upgradesClusters(t)
		l.makesTenant(t)
		l.removesTenant(t)
		l.judge(t)
	}
	t.Logf("%d rounds of commits in %s", l.round, time.Since(begin).Round(time.Second))
	for tier, want := range map[string]int{"mom": 1, "production": 1 + l.round} {
		if got := l.judges[tier].found; got != want {
			t.Errorf("of %d deletes that the test planted in %s, the audit log showed %d as refused", want, tier, got)
		}
	}
}

// locked is a fleet under lockdown: the MoM, the master production, its tenants alpha and, for
// a while in each round, delta, and the cluster edge, which Cluster API does not know.
type locked struct {
	*fleet
	edge *stage.Tier
	// token is the Secret to which the credential of edge is bound; deleted, the credential ends.
	token *corev1.Secret
	// round counts what is committed.
	round  int
	judges map[string]*judge
}

// Accounts as which a tier acts. The platform's is administrator; the one for clusters declares
// and deletes them in the namespace where they are, and does nothing else.
const (
	platformAccount = `{apiVersion: v1, kind: ServiceAccount, metadata: {name: platform, namespace: cascade-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: platform}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: platform, namespace: cascade-system}]
---
`
	clustersAccount = `{apiVersion: v1, kind: ServiceAccount, metadata: {name: clusters, namespace: cascade-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: clusters, namespace: cascade-system}
rules:
- {apiGroups: [cluster.x-k8s.io, infrastructure.cluster.x-k8s.io, controlplane.cluster.x-k8s.io], resources: ["*"], verbs: [get, list, watch, create, patch, update]}
- {apiGroups: [""], resources: [secrets], verbs: [get, list, create, patch, update, delete]} # Helm's records
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: clusters, namespace: cascade-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: clusters}
subjects: [{kind: ServiceAccount, name: clusters, namespace: cascade-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: cluster-deleter, namespace: cascade-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cascade-cluster-deleter}
subjects: [{kind: ServiceAccount, name: clusters, namespace: cascade-system}]
---
`
	// layersRole lets layers that bring agents be the parent's.
	layersRole = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: layers, namespace: cascade-system}
rules: [{apiGroups: [cascade.dev], resources: [layers], resourceNames: [master, tenant, edge], verbs: [escalate]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: layers, namespace: cascade-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: layers}
subjects: [{kind: ServiceAccount, name: default, namespace: cascade-system}]
---
`
	// deployerAccount of a tenant; its rights in namespace apps come with the namespace.
	deployerAccount = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: deployer, namespace: cascade-system}}\n"
	deployerRights  = `---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: deployer, namespace: apps}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{kind: ServiceAccount, name: deployer, namespace: cascade-system}]
`
	// webRelease is a release of a tenant, which comes when its account has its rights.
	webRelease = `apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: {name: web, namespace: cascade-system}
spec:
  interval: 10m
  serviceAccountName: deployer
  targetNamespace: apps
  storageNamespace: apps
  chart: {spec: {chart: ./chart, sourceRef: {kind: GitRepository, name: apps}, reconcileStrategy: Revision}}
`
	webKustomization = `---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: web, namespace: cascade-system}
spec:
  serviceAccountName: platform
  dependsOn: [{name: profile}]
  sourceRef: {kind: GitRepository, name: apps}
  path: ./web
  prune: true
  interval: 10m
  retryInterval: 5s
`
	edgeChild = `{apiVersion: cascade.dev/v1alpha1, kind: Child, metadata: {name: edge, namespace: cascade-system, labels: {edge: "yes"}}, spec: {kubeConfig: {secretRef: {name: edge}}}}
---
apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: edge, namespace: cascade-system}
spec:
  clusterSelector: {matchLabels: {edge: "yes"}}
  sourceRef: {kind: GitRepository, name: environment}
  path: ./layers/edge
`
)

// Whom the agents may act as, besides the account of those that name none.
var (
	ofManagement = []string{"clusters", "platform"}
	ofTenants    = []string{"deployer", "platform"}
)

// lockedRepos are the repositories of the example with a lockdown, and of its masters one.
func lockedRepos(t *testing.T) string {
	t.Helper()
	repos := t.TempDir()
	if err := os.CopyFS(repos, os.DirFS(scenario.Path(t, "e2e", "testdata", "repos"))); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"masters/clusters/staging.yaml", "env-production/tenants/beta.yaml"} {
		if err := os.Remove(filepath.Join(repos, file)); err != nil {
			t.Fatal(err)
		}
	}
	replace := func(file, before, after string) {
		t.Helper()
		if err := scenario.ReplaceIn(filepath.Join(repos, file), before, after); err != nil {
			t.Fatal(err)
		}
	}
	const spec, account = "\nspec:\n", "\nspec:\n  serviceAccountName: "
	for file, name := range map[string]string{
		"masters/mom/management.yaml": "platform", "masters/mom/clusters.yaml": "platform",
		"masters/clusters/production.yaml": "clusters", "env-production/tenants/alpha.yaml": "clusters",
	} {
		replace(file, spec, account+name+"\n")
	}
	for file, names := range map[string]map[string]string{
		"masters/bootstrap.yaml":                 {"mom": "platform"},
		"masters/layers/master/sync.yaml":        {"services": "platform", "fleet": "platform", "clouds": "platform", "tenants": "platform"},
		"env-production/layers/tenant/sync.yaml": {"profile": "platform", "apps": "deployer"},
	} {
		for name, as := range names {
			replace(file, "kind: Kustomization\nmetadata:\n  name: "+name+"\n  namespace: cascade-system"+spec,
				"kind: Kustomization\nmetadata:\n  name: "+name+"\n  namespace: cascade-system"+account+as+"\n")
		}
	}
	replace("masters/mom/layer.yaml", "    firstSync: Create\n", "    firstSync: Create\n    lockdown: {impersonates: ["+strings.Join(ofManagement, ", ")+"], clusterDeleter: true}\n")
	replace("env-production/fleet/layer.yaml", "  agent: {}\n", "  agent: {lockdown: {impersonates: ["+strings.Join(ofTenants, ", ")+"]}}\n")
	replace("masters/bootstrap.yaml", "# The one thing", platformAccount+clustersAccount+layersRole+"# The one thing")
	replace("base/profiles/tenant/access.yaml", "# The same on every tenant", strings.TrimPrefix(deployerRights, "---\n")+"---\n# The same on every tenant")
	replace("env-production/layers/tenant/sync.yaml", "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata:\n  name: base\n",
		platformAccount+deployerAccount+webKustomization+"---\napiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata:\n  name: base\n")
	if err := scenario.WriteFiles(repos, map[string]string{
		"masters/layers/master/accounts.yaml": platformAccount + clustersAccount + strings.TrimSuffix(layersRole, "---\n"),
		"env-production/fleet/edge.yaml":      edgeChild, "env-production/layers/edge/note.yaml": noteOf("default", 0),
		"apps/chart/Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\n", "apps/chart/templates/web.yaml": noteOf("apps", 0), "apps/web/release.yaml": webRelease,
	}); err != nil {
		t.Fatal(err)
	}
	return repos
}

// noteOf is a ConfigMap of a round. Its name has the round, so that the next round prunes it.
func noteOf(namespace string, round int) string {
	return fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: note-%d, namespace: %s}}\n", round, namespace)
}

func startLocked(t *testing.T) *locked {
	t.Helper()
	repos := lockedRepos(t)
	install := []string{"--lockdown", "--lockdown-cluster-deleter"}
	for _, account := range ofManagement {
		install = append(install, "--lockdown-impersonates="+account)
	}
	s := scenario.StartStage(t, stage.Options{
		Repos: repos, Charts: scenario.Path(t, "deploy", "charts"), Components: scenario.Path(t, "bin", "components", "local"),
		Bootstrap: filepath.Join(repos, "masters", "bootstrap.yaml"), AuditReads: true, Install: install,
	})
	l := &locked{fleet: &fleet{Stage: s, tiers: map[string]*stage.Tier{"mom": s.MoM}, version: 1}, judges: map[string]*judge{}}
	l.judges["mom"] = newJudge(t, s.MoM, ofManagement)
	production := l.seededTier(t, s.MoM, "production")
	l.judges["production"] = newJudge(t, production, ofManagement)
	var err error
	if l.edge, err = s.Cluster(t.Context(), "edge", "--api-only", "--audit-reads", "--token-cache=0s"); err != nil {
		t.Fatal(err)
	}
	l.judges["edge"] = newJudge(t, l.edge, nil)
	l.rotates(t)
	l.await(t, production, "alpha")
	l.judges["alpha"] = newJudge(t, l.tiers["alpha"], ofTenants)
	l.await(t, s.MoM, "production")
	return l
}

// seededTier waits until a child of a tier has an agent, and remembers it.
func (l *locked) seededTier(t *testing.T, parent *stage.Tier, name string) *stage.Tier {
	t.Helper()
	scenario.Eventually(t, scenario.BringUp, name+" has an agent", func(ctx context.Context) error {
		tier, err := parent.Child(ctx, name)
		if err != nil {
			return err
		}
		if tier.Agent() == 0 {
			return fmt.Errorf("no agent runs")
		}
		l.tiers[name] = tier
		return scenario.Get(ctx, tier, &corev1.ServiceAccount{}, stage.Namespace, v1alpha1.AgentName)
	})
	return l.tiers[name]
}

// commitsToApps: a workload changes, an object comes and another is pruned, and a release is
// upgraded.
func (l *locked) commitsToApps(t *testing.T) {
	l.greet(t)
	l.greeted(t, scenario.Converge, "alpha")
	l.commit(t, "apps", "Next note", func(dir string) error {
		return scenario.WriteFiles(dir, map[string]string{
			"hello/note.yaml": noteOf("apps", l.round), "chart/templates/web.yaml": strings.Replace(noteOf("apps", l.round), "note", "web", 1),
			"hello/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: apps\nresources: [deployment.yaml, note.yaml]\n",
		})
	})
	for _, name := range []string{"note", "web"} {
		l.succeeds(t, l.tiers["alpha"], "apps", name)
	}
}

// succeeds waits until a ConfigMap of this round is in a tier, and that of the round before is
// not.
func (l *locked) succeeds(t *testing.T, tier *stage.Tier, namespace, name string) {
	t.Helper()
	l.wait(t, fmt.Sprintf("%s of round %d is in %s", name, l.round, tier.Name), func(ctx context.Context) error {
		if err := scenario.Get(ctx, tier, &corev1.ConfigMap{}, namespace, fmt.Sprintf("%s-%d", name, l.round)); err != nil {
			return err
		}
		if err := scenario.Get(ctx, tier, &corev1.ConfigMap{}, namespace, fmt.Sprintf("%s-%d", name, l.round-1)); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the one before is there: %v", err)
		}
		return nil
	})
}

// rotates gives the master another credential for edge, and ends the one before.
func (l *locked) rotates(t *testing.T) {
	t.Helper()
	c, err := l.edge.Client()
	if err != nil {
		t.Fatal(err)
	}
	if l.token == nil {
		if err := stage.Apply(t.Context(), c, `{apiVersion: v1, kind: Namespace, metadata: {name: provider}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: provider, namespace: provider}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: provider}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: provider, namespace: provider}]
`); err != nil {
			t.Fatal(err)
		}
	}
	last := l.token
	l.token = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "provider", Name: fmt.Sprintf("token-%d", l.round)}}
	if err := c.Create(t.Context(), l.token); err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: l.token.Name, UID: l.token.UID},
	}}
	if err := c.SubResource("token").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "provider", Name: "provider"}}, request); err != nil {
		t.Fatal(err)
	}
	master, err := l.tiers["production"].Client()
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "edge"},
		Data: map[string][]byte{"value": withToken(t, l.edge, request.Status.Token)},
	}
	if err := stage.Apply(t.Context(), master, manifest(t, secret)); err != nil {
		t.Fatal(err)
	}
	if last == nil {
		return
	}
	if err := c.Delete(t.Context(), last); err != nil {
		t.Fatal(err)
	}
}

// commitsToLayers: what a master and its children get changes. In edge something is pruned,
// which takes the credential that was rotated.
func (l *locked) commitsToLayers(t *testing.T) {
	l.commit(t, "env-production", "Next notes", func(dir string) error {
		return scenario.WriteFiles(dir, map[string]string{
			"layers/tenant/note.yaml": noteOf("cascade-system", l.round), "layers/edge/note.yaml": noteOf("default", l.round),
		})
	})
	l.commit(t, "masters", "Next note", func(dir string) error {
		return scenario.WriteFiles(dir, map[string]string{"layers/master/note.yaml": noteOf("cascade-system", l.round)})
	})
	l.succeeds(t, l.edge, "default", "note")
	l.succeeds(t, l.tiers["alpha"], "cascade-system", "note")
	l.succeeds(t, l.tiers["production"], "cascade-system", "note")
}

// upgradesClusters: the releases that declare a master and a tenant are upgraded.
func (l *locked) upgradesClusters(t *testing.T) {
	owner := func(round int) string { return fmt.Sprintf("    annotations: {example.com/owner: team-%d}\n", round) }
	for _, cluster := range []struct{ repo, file, tier, name string }{
		{"masters", "clusters/production.yaml", "mom", "production"}, {"env-production", "tenants/alpha.yaml", "production", "alpha"},
	} {
		l.commit(t, cluster.repo, "Another owner of "+cluster.name, func(dir string) error {
			file := filepath.Join(dir, cluster.file)
			if l.round == 1 {
				return scenario.ReplaceIn(file, "    variables:\n", owner(1)+"    variables:\n")
			}
			return scenario.ReplaceIn(file, owner(l.round-1), owner(l.round))
		})
		l.wait(t, cluster.name+" has another owner", func(ctx context.Context) error {
			u := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
			if err := scenario.Get(ctx, l.tiers[cluster.tier], u, stage.Namespace, cluster.name); err != nil {
				return err
			}
			if got, want := u.GetAnnotations()["example.com/owner"], fmt.Sprintf("team-%d", l.round); got != want {
				return fmt.Errorf("it is %q, want %q", got, want)
			}
			return nil
		})
	}
}

const delta = "tenants/delta.yaml"

// makesTenant: a commit makes a cluster, which gets an agent and runs its workload.
func (l *locked) makesTenant(t *testing.T) {
	l.commit(t, "env-production", "Declare tenant delta", func(dir string) error {
		text, err := os.ReadFile(filepath.Join(dir, "tenants", "alpha.yaml"))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, delta), []byte(strings.ReplaceAll(string(text), "name: alpha", "name: delta")), 0o644)
	})
	tier := l.seededTier(t, l.tiers["production"], "delta")
	l.judges["delta"] = l.judges["delta"].anew(t, tier)
	l.await(t, l.tiers["production"], "delta")
	l.greeted(t, scenario.Converge, "delta")
}

// removesTenant on the way of two commits: as the account for clusters, and as nobody else.
func (l *locked) removesTenant(t *testing.T) {
	production := l.tiers["production"]
	l.commit(t, "env-production", "Confirm the deletion of delta", func(dir string) error {
		return scenario.ReplaceIn(filepath.Join(dir, delta), "metadata:\n", "metadata:\n  annotations: {"+v1alpha1.DeletionAnnotation+": "+v1alpha1.DeletionConfirmed+"}\n")
	})
	l.wait(t, "the deletion is confirmed", func(ctx context.Context) error {
		u := stage.Object("helm.toolkit.fluxcd.io/v2", "HelmRelease")
		if err := scenario.Get(ctx, production, u, stage.Namespace, "delta"); err != nil {
			return err
		}
		if u.GetAnnotations()[v1alpha1.DeletionAnnotation] != v1alpha1.DeletionConfirmed {
			return fmt.Errorf("annotations are %v", u.GetAnnotations())
		}
		return nil
	})
	engineDeletes(t, production, "delta")
	l.judges["delta"].read(t)
	_, from, err := production.Audit(l.judges["production"].from)
	if err != nil {
		t.Fatal(err)
	}
	l.commit(t, "env-production", "Remove tenant delta", func(dir string) error { return os.Remove(filepath.Join(dir, delta)) })
	scenario.Eventually(t, scenario.BringUp, "delta is gone", func(ctx context.Context) error {
		for _, o := range []client.Object{
			stage.Object("cluster.x-k8s.io/v1beta2", "Cluster"), stage.Object("helm.toolkit.fluxcd.io/v2", "HelmRelease"), stage.Object("cascade.dev/v1alpha1", "Child"),
		} {
			if err := scenario.Get(ctx, production, o, stage.Namespace, "delta"); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s: %v", o.GetObjectKind().GroupVersionKind().Kind, err)
			}
		}
		return nil
	})
	deletedAs(t, production, from, "delta", "system:serviceaccount:cascade-system:clusters")
}

// engineDeletes fails the test if the account of an agent can delete a Cluster, or if something
// else than its rights keeps it from that.
func engineDeletes(t *testing.T, tier *stage.Tier, name string) {
	t.Helper()
	for way, c := range map[string]client.Client{"in its name": actingAs(t, tier, agentUser), "with its token": withTokenOf(t, tier)} {
		err := c.Delete(t.Context(), clusterNamed(name))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "cannot delete resource") {
			t.Errorf("the agent of %s deletes Cluster %s, %s: %v", tier.Name, name, way, err)
		}
	}
}

// accountDeletes: the account for clusters has the right that the agent lacks, so that its
// delete gets as far as the policy that asks for a confirmation.
func accountDeletes(t *testing.T, tier *stage.Tier, name string) {
	t.Helper()
	err := actingAs(t, tier, "system:serviceaccount:cascade-system:clusters").Delete(t.Context(), clusterNamed(name), client.DryRunAll)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "destroys the real cluster") {
		t.Errorf("the account for clusters of %s meets something else than the policy: %v", tier.Name, err)
	}
}

// deletedAs fails the test unless a Cluster was deleted as an account since an offset of the
// audit log, by the agent.
func deletedAs(t *testing.T, tier *stage.Tier, from int64, name, account string) {
	t.Helper()
	events, _, err := tier.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	var by []string
	for _, e := range events {
		if e.Verb == "delete" && e.ObjectRef.Resource == "clusters" && e.ObjectRef.Name == name && e.ResponseStatus.Code < 300 && !strings.Contains(e.RequestURI, "dryRun") {
			by = append(by, e.User.Username+" as "+e.ImpersonatedUser.Username)
		}
	}
	if want := agentUser + " as " + account; len(by) == 0 || by[0] != want {
		t.Errorf("Cluster %s was deleted by %q, want %s", name, by, want)
	}
}
