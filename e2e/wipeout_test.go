package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestWipeOut does, one by one, what has wiped out somebody's clusters somewhere,
// and what is like it: to Git, to sources, to Kustomizations and HelmReleases, to
// the cluster itself. Each time a Cluster is at stake, with its infrastructure,
// control plane, identity and the keys of that, and workloads. Each time the agent
// asks for no delete, nothing is gone, and an object says why. Before that it is seen
// that the API server would refuse.
func TestWipeOut(t *testing.T) {
	alongside(t)
	a := startArmour(t)
	t.Run("Wall", a.wall)
	turns := make(chan struct{}, 12)
	t.Run("Inputs", func(t *testing.T) {
		for _, input := range wipeOuts {
			t.Run(input.name, func(t *testing.T) {
				t.Parallel()
				// More at once only wait for each other.
				turns <- struct{}{}
				defer func() { <-turns }()
				input.run(a.stake(t), t)
			})
		}
	})
	// What concerns all objects of a kind is tried when nobody else is at work.
	t.Run("Kinds", func(t *testing.T) {
		for _, input := range kindWipeOuts {
			t.Run(input.name, func(t *testing.T) { input.run(a.stake(t), t) })
		}
	})
}

type wipeOut struct {
	name string
	run  func(*stake, *testing.T)
}

var wipeOuts = []wipeOut{
	// In Git.
	{"EmptyDirectory", (*stake).emptyDirectory},
	{"EmptyResources", (*stake).emptyResources},
	{"CommentsOnly", (*stake).commentsOnly},
	{"ForgottenResources", (*stake).forgottenResources},
	{"DirectoryRenamed", (*stake).directoryRenamed},
	{"DirectoryDeleted", (*stake).directoryDeleted},
	{"BranchEmptied", (*stake).branchEmptied},
	{"OrphanForcePush", (*stake).orphanForcePush},
	{"BranchDeleted", (*stake).branchDeleted},
	{"RepositoryDeleted", (*stake).repositoryDeleted},
	{"RepositoryReplaced", (*stake).repositoryReplaced},
	{"IgnoreFile", (*stake).ignoreFile},
	{"IgnoreRule", (*stake).ignoreRule},
	{"PatchDropsAll", (*stake).patchDropsAll},
	{"NamePrefixInGit", (*stake).namePrefixInGit},
	{"NamespaceInGit", (*stake).namespaceInGit},
	{"NamespaceRemoved", (*stake).namespaceRemoved},
	{"DefinitionRemoved", (*stake).definitionRemoved},
	{"ConfirmedAndRemovedAtOnce", (*stake).confirmedAndRemovedAtOnce},
	{"ConfirmationTakenBack", (*stake).confirmationTakenBack},
	{"AccountRemoved", (*stake).accountRemoved},
	{"WorkloadsBesideTheCluster", (*stake).workloadsBesideTheCluster},
	// In the objects that sync.
	{"WrongPath", (*stake).wrongPath},
	{"NamePrefix", (*stake).namePrefix},
	{"TargetNamespace", (*stake).targetNamespace},
	{"SubstitutionLost", (*stake).substitutionLost},
	{"VariablesLost", (*stake).variablesLost},
	{"KustomizationRemovedByParent", (*stake).kustomizationRemovedByParent},
	{"KustomizationRenamed", (*stake).kustomizationRenamed},
	{"KustomizationDeleted", (*stake).kustomizationDeleted},
	{"KustomizationRemovesItself", (*stake).kustomizationRemovesItself},
	{"SharedWithAnother", (*stake).sharedWithAnother},
	{"ProtectionStripped", (*stake).protectionStripped},
	{"KubeconfigSwapped", (*stake).kubeconfigSwapped},
	{"KubeconfigRemoved", (*stake).kubeconfigRemoved},
	{"HelmReleaseRemoved", (*stake).helmReleaseRemoved},
	{"HelmValuesRenderNothing", (*stake).helmValuesRenderNothing},
	{"HelmChartReplaced", (*stake).helmChartReplaced},
	{"HelmReleaseRenamed", (*stake).helmReleaseRenamed},
	{"HelmStorageLost", (*stake).helmStorageLost},
	// In the cluster.
	{"InventoryEdited", (*stake).inventoryEdited},
	{"InventoryOfABackup", (*stake).inventoryOfABackup},
	{"ForcedRecreation", (*stake).forcedRecreation},
	{"NamespaceDeleted", (*stake).namespaceDeleted},
	{"AgentKilled", (*stake).agentKilled},
	{"ManyConfirmedAtOnce", (*stake).manyConfirmedAtOnce},
}

var kindWipeOuts = []wipeOut{
	{"DiscoveryPartial", (*stake).discoveryPartial},
	{"VersionsNotServed", (*stake).versionsNotServed},
	{"HelmReleaseKindDeleted", (*stake).helmReleaseKindDeleted},
	{"KustomizationKindDeleted", (*stake).kustomizationKindDeleted},
}

// stake is what may be lost in one row.
type stake struct {
	*helmRow
	a *armour
	// from is where the audit log was when everything was in place.
	from int64
	// uids of what is at stake.
	uids map[string]string
	// lost are resources that a row takes away itself.
	lost []string
}

const (
	workloads = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: x}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: web}
data: {k: v}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`
	// orphanage is a file that keeps a directory and declares nothing.
	orphanage = "# nothing\n"
)

// fixture is what a row declares.
func fixture() map[string]string {
	return map[string]string{
		"README": "a fleet", "app/cluster.yaml": clusterOf("prod", "") + "---\n" + awsCluster("prod", "") + "---\n" + awsControlPlane("prod", ""),
		"app/account.yaml": account, "app/web.yaml": workloads,
	}
}

// stake begins a row, without objects.
func (a *armour) stake(t *testing.T) *stake {
	t.Helper()
	r := a.gitRow(t, map[string]string{"README": "nothing yet"})
	r.make(t, "HelmRepository", "charts", "{url: \""+a.charts.URL()+"\", interval: 10m}")
	return &stake{helmRow: r, a: a}
}

// declare commits the fixture and a Kustomization for it, and waits.
func (s *stake) declare(t *testing.T, spec string) {
	t.Helper()
	s.commit(t, fixture())
	s.kustomization(t, "app", spec)
	s.ready(t, "app")
	s.noted(t)
}

// fixed are the kinds whose objects of a row are at stake.
func (s *stake) fixed() map[string]*unstructured.UnstructuredList {
	kinds := map[string]*unstructured.UnstructuredList{}
	for kind, version := range map[string]string{
		"Cluster": clusterVersion, "AWSCluster": awsVersion, "AWSManagedControlPlane": "controlplane.cluster.x-k8s.io/v1beta2", "AWSClusterStaticIdentity": awsVersion,
		"Deployment": "apps/v1", "ConfigMap": "v1", "Secret": "v1", "PersistentVolumeClaim": "v1",
	} {
		kinds[kind] = list(version, kind)
	}
	return kinds
}

// there returns the UIDs of what is there and not being deleted.
func (s *stake) there(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for kind, l := range s.fixed() {
		namespace := s.ns
		if kind == "AWSClusterStaticIdentity" {
			namespace = ""
		}
		if err := s.client.List(t.Context(), l, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		for i := range l.Items {
			o := &l.Items[i]
			if o.GetDeletionTimestamp() != nil || namespace == "" && o.GetName() != s.ns+"-account" ||
				strings.HasPrefix(o.GetName(), "sh.helm.") || o.GetName() == "kube-root-ca.crt" || o.GetName() == "git-auth" {
				continue
			}
			found[kind+"/"+o.GetName()] = string(o.GetUID())
		}
	}
	return found
}

// noted takes down what is at stake from now on.
func (s *stake) noted(t *testing.T) {
	t.Helper()
	s.from, s.uids = s.begun(t), s.there(t)
	if _, ok := s.uids["Cluster/prod"]; !ok {
		t.Fatalf("no Cluster is at stake, only %v", s.uids)
	}
}

// spared fails if something is gone or another, or the agent asked for a delete.
func (s *stake) spared(t *testing.T) {
	t.Helper()
	now := s.there(t)
	for object, uid := range s.uids {
		if now[object] != uid && !slices.Contains(s.lost, object) {
			t.Errorf("%s had UID %s, now it has %q", object, uid, now[object])
		}
	}
	for _, e := range s.deletes(t) {
		t.Errorf("%s asked for %s %s: %d", e.UserAgent, e.Verb, e.RequestURI, e.ResponseStatus.Code)
	}
}

// deletes are those of the row's objects that the agent asked for. Those of sync
// objects, and of what they keep for themselves, take nothing away.
func (s *stake) deletes(t *testing.T) []stage.AuditEvent {
	t.Helper()
	events, _, err := s.MoM.Audit(s.from)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(events, func(e stage.AuditEvent) bool {
		of := e.ObjectRef
		return !strings.HasPrefix(e.Verb, "delete") || !e.ByAgent() || strings.Contains(e.RequestURI, "dryRun") ||
			of.Namespace != s.ns && !strings.HasPrefix(of.Name, s.ns) || strings.HasSuffix(of.APIGroup, ".toolkit.fluxcd.io") || strings.HasPrefix(of.Name, "sh.helm.")
	})
}

// refused waits until a Kustomization has looked at the last commit and says one
// of the reasons, and nothing is lost.
func (s *stake) refused(t *testing.T, name string, reasons ...string) {
	t.Helper()
	s.reason(t, name, reasons...)
	s.spared(t)
}

// reason waits for one of some reasons.
func (s *stake) reason(t *testing.T, name string, reasons ...string) {
	t.Helper()
	eventually(t, converge, fmt.Sprintf("Kustomization %s says %v", name, reasons), func(ctx context.Context) error {
		k, err := s.read(ctx, name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
		if c == nil || !slices.Contains(reasons, c.Reason) || !strings.HasSuffix(k.Status.LastAttemptedRevision, s.head) {
			return fmt.Errorf("at %s, of %s, conditions are %s", k.Status.LastAttemptedRevision, s.head, summary(k.Status.Conditions))
		}
		t.Logf("%s: %s", c.Reason, c.Message)
		return nil
	})
}

const blocked = "PruneBlocked"

// loses commits the loss of the files of the fixture, and others instead.
func (s *stake) loses(t *testing.T, instead map[string]string) {
	t.Helper()
	change := map[string]string{"app/cluster.yaml": "", "app/account.yaml": "", "app/web.yaml": ""}
	for name, text := range instead {
		change[name] = text
	}
	s.commit(t, change)
}

func (s *stake) emptyDirectory(t *testing.T) {
	s.declare(t, "")
	s.loses(t, map[string]string{"app/.keep": orphanage})
	s.refused(t, "app", blocked)
}

func (s *stake) emptyResources(t *testing.T) {
	s.declare(t, "")
	s.loses(t, map[string]string{"app/kustomization.yaml": "resources: []\n"})
	s.refused(t, "app", blocked)
}

func (s *stake) commentsOnly(t *testing.T) {
	s.declare(t, "")
	s.commit(t, map[string]string{"app/cluster.yaml": "# moved\n", "app/account.yaml": "# moved\n", "app/web.yaml": "# moved\n---\n"})
	s.refused(t, "app", blocked)
}

// forgottenResources: a kustomization.yaml is added, and names one file of three.
func (s *stake) forgottenResources(t *testing.T) {
	s.declare(t, "")
	s.commit(t, map[string]string{"app/kustomization.yaml": "resources: [web.yaml]\n"})
	s.refused(t, "app", blocked)
}

func (s *stake) directoryRenamed(t *testing.T) {
	s.declare(t, "")
	moved := map[string]string{}
	for name, text := range fixture() {
		if rest, ok := strings.CutPrefix(name, "app/"); ok {
			moved["apps/"+rest] = text
		}
	}
	s.loses(t, moved)
	s.refused(t, "app", "ArtifactFailed")
}

func (s *stake) directoryDeleted(t *testing.T) {
	s.declare(t, "")
	s.loses(t, nil)
	s.refused(t, "app", "ArtifactFailed")
}

// branchEmptied: where the path is the root, there is no missing directory.
func (s *stake) branchEmptied(t *testing.T) {
	s.declare(t, "path: ./")
	s.loses(t, nil)
	s.refused(t, "app", blocked)
}

// git runs git in the server's repository of the row.
func (s *stake) git(t *testing.T, args ...string) string {
	t.Helper()
	return runGit(t, append([]string{"--git-dir=" + s.repository()}, args...)...)
}

func runGit(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=x", "GIT_AUTHOR_EMAIL=x@example.com", "GIT_COMMITTER_NAME=x", "GIT_COMMITTER_EMAIL=x@example.com")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (s *stake) repository() string {
	return filepath.Join(filepath.Dir(s.MoM.Dir), "git", s.ns+".git")
}

// orphanForcePush: an unrelated history with nothing in it.
func (s *stake) orphanForcePush(t *testing.T) {
	s.declare(t, "path: ./")
	s.head = s.git(t, "commit-tree", "4b825dc642cb6eb9a060e54bf8d69288fbee4904", "-m", "Begin anew")
	s.git(t, "update-ref", "refs/heads/main", s.head)
	s.ask(t, &sourcev1.GitRepository{}, "git")
	s.refused(t, "app", blocked)
}

// sourceFails waits until the source says so, and asks the Kustomization again.
func (s *stake) sourceFails(t *testing.T) {
	t.Helper()
	s.ask(t, &sourcev1.GitRepository{}, "git")
	eventually(t, converge, "the source says what is wrong", func(ctx context.Context) error {
		g := &sourcev1.GitRepository{}
		if err := s.load(ctx, g, s.ns, "git"); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(g.Status.Conditions, fluxmeta.ReadyCondition); c == nil || c.Status != metav1.ConditionFalse {
			return fmt.Errorf("conditions are %s", summary(g.Status.Conditions))
		}
		return nil
	})
	s.handled(t, "app", s.ask(t, &kustomizev1.Kustomization{}, "app"))
	s.spared(t)
}

func (s *stake) branchDeleted(t *testing.T) {
	s.declare(t, "")
	s.git(t, "update-ref", "-d", "refs/heads/main")
	s.sourceFails(t)
}

func (s *stake) repositoryDeleted(t *testing.T) {
	s.declare(t, "")
	if err := os.Rename(s.repository(), s.repository()+".gone"); err != nil {
		t.Fatal(err)
	}
	s.sourceFails(t)
}

// repositoryReplaced: the same URL, another repository with the same directory.
func (s *stake) repositoryReplaced(t *testing.T) {
	s.declare(t, "")
	if err := s.Git.Create(t.Context(), s.ns+"-other"); err != nil {
		t.Fatal(err)
	}
	var err error
	s.head, err = s.Git.Commit(t.Context(), s.ns+"-other", "main", "Begin", func(dir string) error {
		if err := os.Mkdir(filepath.Join(dir, "app"), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "app", "a.yaml"), []byte(cm("another", "", "{}")), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, move := range [][2]string{{s.repository(), s.repository() + ".gone"}, {strings.TrimSuffix(s.repository(), ".git") + "-other.git", s.repository()}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			t.Fatal(err)
		}
	}
	s.ask(t, &sourcev1.GitRepository{}, "git")
	s.refused(t, "app", blocked)
}

func (s *stake) ignoreFile(t *testing.T) {
	s.declare(t, "")
	s.commit(t, map[string]string{".sourceignore": "*.yaml\n"})
	s.refused(t, "app", blocked, "ArtifactFailed")
}

func (s *stake) ignoreRule(t *testing.T) {
	s.declare(t, "path: ./")
	s.patch(t, &sourcev1.GitRepository{}, "git", `{"spec":{"ignore":"/*"}}`)
	s.refused(t, "app", blocked)
}

func (s *stake) patchDropsAll(t *testing.T) {
	s.declare(t, "")
	s.commit(t, map[string]string{"app/kustomization.yaml": "resources: [cluster.yaml, account.yaml, web.yaml]\npatches:\n- target: {kind: .*}\n  patch: |\n    $patch: delete\n    apiVersion: v1\n    kind: X\n    metadata: {name: x}\n"})
	s.refused(t, "app", blocked, "BuildFailed")
}

func (s *stake) namePrefixInGit(t *testing.T) {
	s.declare(t, "")
	s.commit(t, map[string]string{"app/kustomization.yaml": "namePrefix: new-\nresources: [cluster.yaml, account.yaml, web.yaml]\n"})
	s.refused(t, "app", blocked)
}

func (s *stake) namespaceInGit(t *testing.T) {
	s.apply(t, s.fill("apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-moved}\n"))
	s.declare(t, "")
	s.kustomization(t, "app", "targetNamespace: null")
	s.commit(t, map[string]string{"app/kustomization.yaml": "namespace: $ns-moved\nresources: [cluster.yaml, account.yaml, web.yaml]\n"})
	s.refused(t, "app", blocked)
}

// namespaceRemoved: the Namespace of a Cluster goes from Git, the Cluster is
// declared elsewhere.
func (s *stake) namespaceRemoved(t *testing.T) {
	s.declare(t, "")
	s.commit(t, map[string]string{"base/ns.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns}\n", "base/a.yaml": cm("base", "", "{}")})
	s.kustomization(t, "base", "")
	s.ready(t, "base")
	s.noted(t)
	s.commit(t, map[string]string{"base/ns.yaml": ""})
	s.refused(t, "base", blocked)
}

// definitionRemoved: the definitions of a provider are declared in Git, too.
func (s *stake) definitionRemoved(t *testing.T) {
	s.declare(t, "")
	s.commit(t, map[string]string{"base/crd.yaml": crd, "base/a.yaml": cm("base", "", "{}")})
	s.kustomization(t, "base", "")
	s.ready(t, "base")
	s.noted(t)
	s.commit(t, map[string]string{"base/crd.yaml": ""})
	s.refused(t, "base", blocked)
}

func (s *stake) confirmedAndRemovedAtOnce(t *testing.T) {
	s.declare(t, "")
	s.commit(t, map[string]string{
		"app/cluster.yaml": strings.Replace(fixture()["app/cluster.yaml"], "metadata: {name: prod}", "metadata: {name: prod, annotations: {cascade.dev/deletion: confirmed}}", 1),
		".sourceignore":    "cluster.yaml\n",
	})
	s.refused(t, "app", blocked)
}

func (s *stake) confirmationTakenBack(t *testing.T) {
	s.declare(t, "")
	s.commit(t, map[string]string{"app/cluster.yaml": clusterOf("prod", ", annotations: {cascade.dev/deletion: confirmed}") + "---\n" + awsCluster("prod", "") + "---\n" + awsControlPlane("prod", "")})
	s.ready(t, "app")
	s.commit(t, fixture())
	s.ready(t, "app")
	s.commit(t, map[string]string{"app/cluster.yaml": ""})
	s.refused(t, "app", blocked)
}

// accountRemoved: what a Cluster needs to be taken apart one day stays with it,
// also where a person confirmed it.
func (s *stake) accountRemoved(t *testing.T) {
	s.declare(t, "")
	confirm := func(text, name string) string {
		return strings.ReplaceAll(text, "metadata: {name: "+name+"}", "metadata: {name: "+name+", annotations: {cascade.dev/deletion: confirmed}}")
	}
	s.commit(t, map[string]string{
		"app/account.yaml": confirm(account, "$ns-account"), "app/cluster.yaml": clusterOf("prod", "") + "---\n" + confirm(awsCluster("prod", "")+"---\n"+awsControlPlane("prod", ""), "prod"),
	})
	s.ready(t, "app")
	s.commit(t, map[string]string{"app/account.yaml": "", "app/cluster.yaml": clusterOf("prod", "")})
	k := s.ready(t, "app")
	for _, id := range []string{"_$ns-account_infrastructure.cluster.x-k8s.io_AWSClusterStaticIdentity ", "$ns_$ns-account__Secret ", "$ns_prod_infrastructure.cluster.x-k8s.io_AWSCluster "} {
		if !slices.ContainsFunc(ids(k), func(have string) bool { return strings.Contains(have, s.fill(id)) }) {
			t.Errorf("the inventory lacks %s: %v", s.fill(id), ids(k))
		}
	}
	s.spared(t)
}

// workloadsBesideTheCluster: a lost directory must not delete the workloads and
// keep the Cluster; a person may release that, and only that.
func (s *stake) workloadsBesideTheCluster(t *testing.T) {
	s.commit(t, map[string]string{"stays/a.yaml": cm("stays", "", "{}")})
	s.declare(t, "path: ./")
	s.loses(t, nil)
	s.refused(t, "app", blocked)
	k, err := s.read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	hash := heldHash(k.Status.Conditions)
	if hash == "" {
		t.Fatalf("nothing is held: %s", summary(k.Status.Conditions))
	}
	if _, err := s.Run(t.Context(), "cascade", "approve", "prune", "app", "-n", s.ns, "--hash", hash, "--kubeconfig", s.MoM.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	s.gone(t, &corev1.ConfigMap{}, "web")
	now := s.there(t)
	for _, object := range []string{"Cluster/prod", "AWSCluster/prod", "AWSManagedControlPlane/prod", "AWSClusterStaticIdentity/" + s.ns + "-account", "Secret/" + s.ns + "-account", "PersistentVolumeClaim/data"} {
		if now[object] != s.uids[object] {
			t.Errorf("%s went with what was approved", object)
		}
	}
}

// heldHash finds the hash of a held plan.
func heldHash(conditions []metav1.Condition) string {
	_, rest, _ := strings.Cut(summary(conditions), "--hash ")
	hash, _, _ := strings.Cut(rest, ";")
	hash, _, _ = strings.Cut(hash, ")")
	return strings.TrimSpace(hash)
}

func (s *stake) wrongPath(t *testing.T) {
	s.commit(t, map[string]string{"other/a.yaml": cm("other", "", "{}")})
	s.declare(t, "")
	s.kustomization(t, "app", "path: ./other")
	s.refused(t, "app", blocked)
}

func (s *stake) namePrefix(t *testing.T) {
	s.declare(t, "")
	s.kustomization(t, "app", "namePrefix: new-")
	s.refused(t, "app", blocked)
}

func (s *stake) targetNamespace(t *testing.T) {
	s.apply(t, s.fill("apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-moved}\n"))
	s.declare(t, "")
	s.kustomization(t, "app", "targetNamespace: $ns-moved")
	s.refused(t, "app", blocked)
}

// substitutionLost: names are made of a variable, which is gone.
func (s *stake) substitutionLost(t *testing.T) {
	f := fixture()
	f["app/cluster.yaml"] = strings.ReplaceAll(f["app/cluster.yaml"], "name: prod", "name: \"${env:=nothing}\"")
	s.commit(t, f)
	s.kustomization(t, "app", "postBuild: {substitute: {env: prod}}")
	s.ready(t, "app")
	s.noted(t)
	s.kustomization(t, "app", "postBuild: {substitute: {other: x}}")
	s.refused(t, "app", blocked)
}

// variablesLost: the ConfigMap with the variables is gone.
func (s *stake) variablesLost(t *testing.T) {
	f := fixture()
	f["app/cluster.yaml"] = strings.ReplaceAll(f["app/cluster.yaml"], "name: prod", "name: \"${env}\"")
	s.commit(t, f)
	s.apply(t, s.fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars, namespace: $ns}\ndata: {env: prod}\n"))
	s.kustomization(t, "app", "postBuild: {substituteFrom: [{kind: ConfigMap, name: vars}]}")
	s.ready(t, "app")
	s.noted(t)
	s.lost = []string{"ConfigMap/vars"}
	s.delete(t, &corev1.ConfigMap{}, "vars")
	s.ask(t, &kustomizev1.Kustomization{}, "app")
	s.refused(t, "app", "BuildFailed")
}

// synced declares a Kustomization in Git, for which another one stands.
func (s *stake) synced(name, more string) string {
	return fmt.Sprintf(`apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: %s}
spec: {sourceRef: {kind: GitRepository, name: git}, path: ./app, targetNamespace: $ns, prune: true, interval: 10m, retryInterval: 1s%s}
`, name, more)
}

// parented declares the fixture through a Kustomization of a Kustomization.
func (s *stake) parented(t *testing.T) {
	t.Helper()
	f := fixture()
	f["root/app.yaml"], f["root/a.yaml"] = s.synced("app", ""), cm("root", "", "{}")
	s.commit(t, f)
	s.kustomization(t, "root", "interval: 2s")
	s.ready(t, "root")
	s.ready(t, "app")
	s.noted(t)
}

func (s *stake) kustomizationRemovedByParent(t *testing.T) {
	s.parented(t)
	s.commit(t, map[string]string{"root/app.yaml": ""})
	s.refused(t, "root", blocked)
	if k, err := s.read(t.Context(), "app"); err != nil || !k.DeletionTimestamp.IsZero() {
		t.Errorf("the Kustomization is deleted: %v", err)
	}
}

// kustomizationRenamed: the one with the new name answers for everything before
// the one with the old name goes, and nothing is touched.
func (s *stake) kustomizationRenamed(t *testing.T) {
	s.parented(t)
	s.commit(t, map[string]string{"root/app.yaml": s.synced("renamed", "")})
	s.ready(t, "renamed")
	s.gone(t, &kustomizev1.Kustomization{}, "app")
	s.ready(t, "root")
	s.spared(t)
	if k, err := s.read(t.Context(), "renamed"); err != nil || len(ids(k)) != len(s.uids)-1 {
		t.Errorf("inventory is %v of %v, %v", ids(k), s.uids, err)
	}
}

func (s *stake) kustomizationDeleted(t *testing.T) {
	s.declare(t, "")
	s.delete(t, &kustomizev1.Kustomization{}, "app")
	s.refused(t, "app", blocked)
}

// kustomizationRemovesItself: as flux bootstrap makes it, it declares itself.
func (s *stake) kustomizationRemovesItself(t *testing.T) {
	f := fixture()
	f["app/self.yaml"] = s.synced("app", "")
	s.commit(t, f)
	s.kustomization(t, "app", "")
	s.ready(t, "app")
	s.noted(t)
	s.commit(t, map[string]string{"app/self.yaml": ""})
	s.refused(t, "app", blocked)
	if k, err := s.read(t.Context(), "app"); err != nil || !k.DeletionTimestamp.IsZero() {
		t.Errorf("it deleted itself: %v", err)
	}
}

// sharedWithAnother: two Kustomizations declare the same objects, and one of them
// stops to, also with what it confirmed.
func (s *stake) sharedWithAnother(t *testing.T) {
	s.declare(t, "")
	s.commit(t, map[string]string{"second/cluster.yaml": clusterOf("prod", ", annotations: {cascade.dev/deletion: confirmed}"), "second/web.yaml": cm("web", "", "{k: v}"), "second/a.yaml": cm("second", "", "{}")})
	// So that the first does not take its objects back at once.
	s.patch(t, &kustomizev1.Kustomization{}, "app", `{"spec":{"suspend":true}}`)
	s.kustomization(t, "second", "")
	s.ready(t, "second")
	s.commit(t, map[string]string{"second/cluster.yaml": "", "second/web.yaml": ""})
	s.ready(t, "second")
	s.spared(t)
	s.patch(t, &kustomizev1.Kustomization{}, "app", `{"spec":{"suspend":null}}`)
	s.ready(t, "app")
	s.spared(t)
}

// protectionStripped: a second Kustomization, with the same field manager, takes
// prune: disabled off an object of the first, and then lets go of it.
func (s *stake) protectionStripped(t *testing.T) {
	s.declare(t, "")
	s.commit(t, map[string]string{"app/kept.yaml": cm("kept", ", annotations: {kustomize.toolkit.fluxcd.io/prune: disabled}", "{k: v}")})
	s.ready(t, "app")
	s.noted(t)
	s.patch(t, &kustomizev1.Kustomization{}, "app", `{"spec":{"suspend":true}}`)
	s.commit(t, map[string]string{"second/kept.yaml": cm("kept", "", "{k: v}"), "second/a.yaml": cm("second", "", "{}")})
	s.kustomization(t, "second", "")
	s.ready(t, "second")
	if u := s.object(t, "v1", "ConfigMap", "kept"); len(u.GetAnnotations()) > 0 {
		t.Fatalf("annotations are %v, so that nothing is tried", u.GetAnnotations())
	}
	s.commit(t, map[string]string{"second/kept.yaml": ""})
	s.ready(t, "second")
	s.spared(t)
}

// elsewhere starts another cluster and applies the fixture there.
func (s *stake) elsewhere(t *testing.T) (*stage.Tier, func() map[string]string) {
	t.Helper()
	other, err := s.Cluster(t.Context(), s.ns)
	if err != nil {
		t.Fatal(err)
	}
	c, err := other.Client()
	if err != nil {
		t.Fatal(err)
	}
	if err := stage.Apply(t.Context(), c, clusterKind+"---\n"+s.fill("apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns}\n")); err != nil {
		t.Fatal(err)
	}
	s.lead(t, other)
	s.commit(t, map[string]string{"app/cluster.yaml": clusterOf("prod", ""), "app/web.yaml": workloads})
	s.kustomization(t, "app", "kubeConfig: {secretRef: {name: way}}")
	s.ready(t, "app")
	found := func() map[string]string {
		there := map[string]string{}
		for kind, version := range map[string]string{"Cluster": clusterVersion, "Deployment": "apps/v1", "ConfigMap": "v1", "PersistentVolumeClaim": "v1"} {
			l := list(version, kind)
			if err := c.List(t.Context(), l, client.InNamespace(s.ns)); err != nil {
				t.Fatal(err)
			}
			for i := range l.Items {
				if l.Items[i].GetDeletionTimestamp() == nil {
					there[kind+"/"+l.Items[i].GetName()] = string(l.Items[i].GetUID())
				}
			}
		}
		return there
	}
	if len(found()) < 4 {
		t.Fatalf("only %v are at stake", found())
	}
	return other, found
}

// lead makes the Secret lead to a cluster.
func (s *stake) lead(t *testing.T, to *stage.Tier) {
	t.Helper()
	kubeconfig, err := os.ReadFile(to.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "way", "namespace": s.ns}, "stringData": map[string]any{"value": string(kubeconfig)},
	}}
	if err := s.client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("user"), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, before, after map[string]string) {
	t.Helper()
	for object, uid := range before {
		if after[object] != uid {
			t.Errorf("%s had UID %s, now it has %q", object, uid, after[object])
		}
	}
}

// kubeconfigSwapped: the Secret leads to another live cluster, our own, where a
// Cluster of the same name is somebody else's.
func (s *stake) kubeconfigSwapped(t *testing.T) {
	_, found := s.elsewhere(t)
	before := found()
	s.made(t, clusterOf("prod", ""))
	s.noted(t)
	s.lost = []string{"Secret/way"}
	s.lead(t, s.MoM)
	s.commit(t, map[string]string{"app/cluster.yaml": "", "app/b.yaml": cm("b", "", "{}")})
	eventually(t, converge, "the Kustomization has looked at the last commit", func(ctx context.Context) error {
		k, err := s.read(ctx, "app")
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
		if !strings.HasSuffix(k.Status.LastAttemptedRevision, s.head) || c == nil || c.Status == metav1.ConditionUnknown {
			return fmt.Errorf("conditions are %s", summary(k.Status.Conditions))
		}
		t.Logf("%s: %s", c.Reason, c.Message)
		return nil
	})
	s.spared(t)
	same(t, before, found())
}

// kubeconfigRemoved: from now on it is for our own cluster.
func (s *stake) kubeconfigRemoved(t *testing.T) {
	_, found := s.elsewhere(t)
	before := found()
	s.kustomization(t, "app", "")
	s.reason(t, "app", blocked)
	same(t, before, found())
}

// releasedInGit declares a HelmRelease with a Cluster through a Kustomization.
func (s *stake) releasedInGit(t *testing.T) {
	t.Helper()
	s.commit(t, map[string]string{"root/web.yaml": gitRelease(fmt.Sprintf(precious, "")), "root/a.yaml": cm("root", "", "{}")})
	s.kustomization(t, "root", "")
	s.ready(t, "root")
	s.helmRow.released(t, "web", anyRevision)
	s.from, s.uids = s.begun(t), s.there(t)
	if _, ok := s.uids["Cluster/precious"]; !ok {
		t.Fatalf("no Cluster is at stake, only %v", s.uids)
	}
}

func gitRelease(values string) string {
	return "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: web}\nspec:\n  interval: 10m\n  timeout: 1m\n" +
		"  chart: {spec: {chart: app, version: 1.0.0, sourceRef: {kind: HelmRepository, name: charts}}}\n  values: {" + values + "}\n"
}

// releaseRefused waits until the HelmRelease says that it is held.
func (s *stake) releaseRefused(t *testing.T) {
	t.Helper()
	eventually(t, converge, "the HelmRelease says what is held", func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := s.load(ctx, o, s.ns, "web"); err != nil {
			return err
		}
		if !strings.Contains(summary(o.Status.Conditions), blocked) || o.Status.ObservedGeneration != o.Generation {
			return fmt.Errorf("conditions are %s", summary(o.Status.Conditions))
		}
		return nil
	})
	s.spared(t)
}

func (s *stake) helmReleaseRemoved(t *testing.T) {
	s.releasedInGit(t)
	s.commit(t, map[string]string{"root/web.yaml": ""})
	s.refused(t, "root", blocked)
	o := &helmv2.HelmRelease{}
	if err := s.load(t.Context(), o, s.ns, "web"); err != nil || !o.DeletionTimestamp.IsZero() {
		t.Errorf("the HelmRelease is deleted: %v", err)
	}
}

func (s *stake) helmValuesRenderNothing(t *testing.T) {
	s.releasedInGit(t)
	s.commit(t, map[string]string{"root/web.yaml": gitRelease("settings: {color: blue}")})
	s.has(t, "web-settings", "color", "blue")
	s.releaseRefused(t)
}

func (s *stake) helmChartReplaced(t *testing.T) {
	s.a.charts.Add(app(s.ns, "1.0.0"))
	s.releasedInGit(t)
	s.ask(t, &sourcev1.HelmRepository{}, "charts")
	s.commit(t, map[string]string{"root/web.yaml": strings.Replace(gitRelease("settings: {color: blue}"), "chart: app", "chart: $ns", 1)})
	s.releaseRefused(t)
}

func (s *stake) helmReleaseRenamed(t *testing.T) {
	s.releasedInGit(t)
	s.commit(t, map[string]string{"root/web.yaml": strings.Replace(gitRelease(fmt.Sprintf(precious, "")), "spec:\n", "spec:\n  releaseName: renamed\n", 1)})
	s.releaseRefused(t)
}

// helmStorageLost: Helm's own records are gone, and the values have no Cluster.
func (s *stake) helmStorageLost(t *testing.T) {
	s.releasedInGit(t)
	if err := s.client.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(s.ns), client.MatchingLabels{"owner": "helm"}); err != nil {
		t.Fatal(err)
	}
	s.commit(t, map[string]string{"root/web.yaml": gitRelease("settings: {color: blue}")})
	s.has(t, "web-settings", "color", "blue")
	s.ready(t, "root")
	s.spared(t)
}

// inventoryEdited: somebody else's Cluster is written into an inventory.
func (s *stake) inventoryEdited(t *testing.T) {
	s.declare(t, "")
	s.made(t, clusterOf("other", ", annotations: {cascade.dev/deletion: confirmed}"))
	s.noted(t)
	k, err := s.read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	before := k.DeepCopy()
	k.Status.Inventory.Entries = append(k.Status.Inventory.Entries, kustomizev1.ResourceRef{ID: s.ns + "_other_cluster.x-k8s.io_Cluster", Version: "v1beta2"})
	if err := s.client.Status().Patch(t.Context(), k, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	s.commit(t, map[string]string{"app/b.yaml": cm("b", "", "{}")})
	s.ready(t, "app")
	s.spared(t)
	// And what nobody can read is no reason to delete either.
	k, err = s.read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	before = k.DeepCopy()
	k.Status.Inventory.Entries = append(k.Status.Inventory.Entries, kustomizev1.ResourceRef{ID: "nonsense", Version: "v1"})
	if err := s.client.Status().Patch(t.Context(), k, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	s.loses(t, map[string]string{"app/b.yaml": cm("c", "", "{}")})
	s.refused(t, "app", "ReconciliationFailed")
}

// inventoryOfABackup: a person brings back what Git does not declare any more, as
// it was, labels, confirmation and all, and so is the inventory.
func (s *stake) inventoryOfABackup(t *testing.T) {
	s.declare(t, "")
	labels := fmt.Sprintf(", labels: {kustomize.toolkit.fluxcd.io/name: app, kustomize.toolkit.fluxcd.io/namespace: %s}", s.ns)
	s.made(t, clusterOf("restored", labels+", annotations: {cascade.dev/deletion: confirmed}"))
	s.made(t, cm("restored", labels, "{}"))
	s.noted(t)
	k, err := s.read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	before := k.DeepCopy()
	k.Status.Inventory.Entries = append(k.Status.Inventory.Entries, kustomizev1.ResourceRef{ID: s.ns + "_restored_cluster.x-k8s.io_Cluster", Version: "v1beta2"},
		kustomizev1.ResourceRef{ID: s.ns + "_restored__ConfigMap", Version: "v1"})
	if err := s.client.Status().Patch(t.Context(), k, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	s.commit(t, map[string]string{"app/b.yaml": cm("b", "", "{}")})
	s.ready(t, "app")
	s.spared(t)
}

// forcedRecreation: spec.force, and a change that cannot be made in place.
func (s *stake) forcedRecreation(t *testing.T) {
	ca := func(value string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: prod-ca, labels: {cluster.x-k8s.io/cluster-name: prod}}\ntype: cluster.x-k8s.io/secret\nimmutable: true\nstringData: {tls.key: " + value + "}\n"
	}
	s.commit(t, map[string]string{"app/ca.yaml": ca("one")})
	s.declare(t, "force: true")
	s.commit(t, map[string]string{"app/ca.yaml": ca("two")})
	s.refused(t, "app", "ReconciliationFailed")
}

// namespaceDeleted: kubectl delete namespace. It is refused; the agent has labelled
// what has a Cluster. If a person insists that it is not protected, workloads go, as
// they do without us; the Cluster and what it needs do not, nor does the Kustomization.
func (s *stake) namespaceDeleted(t *testing.T) {
	s.declare(t, "")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.ns}}
	s.a.guarded(t, s.ns, "true")
	if err := s.client.Delete(t.Context(), ns); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "is protected by the label") {
		t.Fatalf("the delete is answered with %v", err)
	}
	s.spared(t)
	s.a.unguard(t, s.ns)
	if err := s.client.Delete(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	s.lost = []string{"Deployment/web", "ConfigMap/web", "PersistentVolumeClaim/data", "Secret/" + s.ns + "-account"}
	s.refused(t, "app", blocked)
}

// agentKilled: in the middle of it, several times.
func (s *stake) agentKilled(t *testing.T) {
	s.declare(t, "")
	for i := range 3 {
		s.loses(t, map[string]string{fmt.Sprintf("app/b%d.yaml", i): cm(fmt.Sprintf("b%d", i), "", "{}")})
		if pid := s.MoM.Agent(); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		s.refused(t, "app", blocked)
		s.commit(t, fixture())
		s.ready(t, "app")
	}
	s.spared(t)
}

// manyConfirmedAtOnce: a common annotation confirms all of them, and the directory
// goes. That is what it was asked for; but one after another, so that there is
// time to see that it was a mistake.
func (s *stake) manyConfirmedAtOnce(t *testing.T) {
	held := ", finalizers: [example.com/held], annotations: {cascade.dev/deletion: confirmed}"
	s.commit(t, map[string]string{"app/a.yaml": cm("a", "", "{}"), "app/one.yaml": clusterOf("one", held), "app/two.yaml": clusterOf("two", held), "app/three.yaml": clusterOf("three", held)})
	s.kustomization(t, "app", "{interval: 2s}")
	s.ready(t, "app")
	s.a.guarded(t, s.ns, "true")
	s.commit(t, map[string]string{"app/one.yaml": "", "app/two.yaml": "", "app/three.yaml": ""})
	deleting := func(ctx context.Context) (names []string, err error) {
		l := clusterList()
		if err := s.client.List(ctx, l, client.InNamespace(s.ns)); err != nil {
			return nil, err
		}
		for i := range l.Items {
			if l.Items[i].GetDeletionTimestamp() != nil {
				names = append(names, l.Items[i].GetName())
			}
		}
		return names, nil
	}
	for range 3 {
		var going []string
		eventually(t, converge, "one Cluster is being deleted", func(ctx context.Context) (err error) {
			if going, err = deleting(ctx); err == nil && len(going) == 0 {
				return fmt.Errorf("none is")
			}
			return err
		})
		s.handled(t, "app", s.ask(t, &kustomizev1.Kustomization{}, "app"))
		if again, err := deleting(t.Context()); err != nil || len(again) != 1 || again[0] != going[0] {
			t.Fatalf("%v are being deleted after %v, %v", again, going, err)
		}
		s.patch(t, stage.Object(clusterVersion, "Cluster"), going[0], `{"metadata":{"finalizers":null}}`)
	}
	eventually(t, converge, "all three are gone", func(ctx context.Context) error {
		l := clusterList()
		if err := s.client.List(ctx, l, client.InNamespace(s.ns)); err != nil {
			return err
		}
		if len(l.Items) > 0 {
			return fmt.Errorf("%d are left", len(l.Items))
		}
		return nil
	})
	s.a.guarded(t, s.ns, "")
}

// discoveryPartial: an aggregated API does not answer, so nobody knows what is in
// a Namespace.
func (s *stake) discoveryPartial(t *testing.T) {
	s.declare(t, "")
	s.commit(t, map[string]string{"base/ns.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-base}\n", "base/a.yaml": cm("base", "", "{}")})
	s.kustomization(t, "base", "targetNamespace: null")
	s.commit(t, map[string]string{"base/a.yaml": cm("base", ", namespace: $ns-base", "{}")})
	s.ready(t, "base")
	s.noted(t)
	api := stage.Object("apiregistration.k8s.io/v1", "APIService")
	api.SetName("v1.absent.example.com")
	api.Object["spec"] = map[string]any{
		"group": "absent.example.com", "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100), "insecureSkipTLSVerify": true,
		"service": map[string]any{"namespace": "default", "name": "absent"},
	}
	if err := s.client.Create(t.Context(), api); err != nil {
		t.Fatal(err)
	}
	s.commit(t, map[string]string{"base/ns.yaml": "", "app/cluster.yaml": "", "app/account.yaml": ""})
	s.refused(t, "base", "PruneFailed", blocked)
	s.refused(t, "app", "PruneFailed", blocked)
	if err := s.client.Delete(t.Context(), api); err != nil {
		t.Fatal(err)
	}
}

// versionsNotServed: a definition is there, and each of its objects a 404.
func (s *stake) versionsNotServed(t *testing.T) {
	s.declare(t, "")
	serve := func(served bool) {
		t.Helper()
		u := stage.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition")
		if err := s.load(t.Context(), u, "", "clusters.cluster.x-k8s.io"); err != nil {
			t.Fatal(err)
		}
		versions, _, err := unstructured.NestedSlice(u.Object, "spec", "versions")
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range versions {
			v.(map[string]any)["served"] = served
		}
		if err := unstructured.SetNestedSlice(u.Object, versions, "spec", "versions"); err != nil {
			t.Fatal(err)
		}
		if err := s.client.Update(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	serve(false)
	eventually(t, converge, "Clusters are not served", func(ctx context.Context) error {
		if err := s.client.List(ctx, clusterList()); !apierrors.IsNotFound(err) {
			return fmt.Errorf("they are: %v", err)
		}
		return nil
	})
	s.commit(t, map[string]string{"app/cluster.yaml": "", "app/account.yaml": ""})
	s.reason(t, "app", "PruneFailed", blocked)
	serve(true)
	eventually(t, converge, "Clusters are served again", func(ctx context.Context) error { return s.client.List(ctx, clusterList()) })
	s.ask(t, &kustomizev1.Kustomization{}, "app")
	s.refused(t, "app", blocked)
}

// kindDeleted deletes a definition of a kind that syncs.
func (s *stake) kindDeleted(t *testing.T, name string) {
	t.Helper()
	u := stage.Object("apiextensions.k8s.io/v1", "CustomResourceDefinition")
	u.SetName(name)
	if err := s.client.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	eventually(t, converge, "the definition is gone, with all of its objects", func(ctx context.Context) error {
		if err := s.load(ctx, u, "", name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	s.spared(t)
}

func (s *stake) helmReleaseKindDeleted(t *testing.T) {
	s.releasedInGit(t)
	s.kindDeleted(t, "helmreleases.helm.toolkit.fluxcd.io")
}

func (s *stake) kustomizationKindDeleted(t *testing.T) {
	s.declare(t, "")
	s.kindDeleted(t, "kustomizations.kustomize.toolkit.fluxcd.io")
}
