package safety

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func (s *wipeOutRow) emptyDirectory(t *testing.T) {
	s.declare(t, "")
	s.loses(t, map[string]string{"app/.keep": orphanage})
	s.refused(t, "app", blocked)
}

func (s *wipeOutRow) emptyResources(t *testing.T) {
	s.declare(t, "")
	s.loses(t, map[string]string{"app/kustomization.yaml": "resources: []\n"})
	s.refused(t, "app", blocked)
}

func (s *wipeOutRow) commentsOnly(t *testing.T) {
	s.declare(t, "")
	s.Commit(t, map[string]string{"app/cluster.yaml": "# moved\n", "app/account.yaml": "# moved\n", "app/web.yaml": "# moved\n---\n"})
	s.refused(t, "app", blocked)
}

// forgottenResources: a kustomization.yaml is added, and names one file of three.
func (s *wipeOutRow) forgottenResources(t *testing.T) {
	s.declare(t, "")
	s.Commit(t, map[string]string{"app/kustomization.yaml": "resources: [web.yaml]\n"})
	s.refused(t, "app", blocked)
}

func (s *wipeOutRow) directoryRenamed(t *testing.T) {
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

func (s *wipeOutRow) directoryDeleted(t *testing.T) {
	s.declare(t, "")
	s.loses(t, nil)
	s.refused(t, "app", "ArtifactFailed")
}

// branchEmptied: where the path is the root, there is no missing directory.
func (s *wipeOutRow) branchEmptied(t *testing.T) {
	s.declare(t, "path: ./")
	s.loses(t, nil)
	s.refused(t, "app", blocked)
}

// git runs git in the server's repository of the row.
func (s *wipeOutRow) git(t *testing.T, args ...string) string {
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

func (s *wipeOutRow) repository() string {
	return filepath.Join(filepath.Dir(s.MoM.Dir), "git", s.Namespace+".git")
}

// orphanForcePush: an unrelated history with nothing in it.
func (s *wipeOutRow) orphanForcePush(t *testing.T) {
	s.declare(t, "path: ./")
	s.Head = s.git(t, "commit-tree", "4b825dc642cb6eb9a060e54bf8d69288fbee4904", "-m", "Begin anew")
	s.git(t, "update-ref", "refs/heads/main", s.Head)
	s.Ask(t, &sourcev1.GitRepository{}, "git")
	s.refused(t, "app", blocked)
}

// sourceFails waits until the source says so, and asks the Kustomization again.
func (s *wipeOutRow) sourceFails(t *testing.T) {
	t.Helper()
	s.Ask(t, &sourcev1.GitRepository{}, "git")
	scenario.Eventually(t, scenario.Converge, "the source says what is wrong", func(ctx context.Context) error {
		g := &sourcev1.GitRepository{}
		if err := s.Load(ctx, g, s.Namespace, "git"); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(g.Status.Conditions, fluxmeta.ReadyCondition); c == nil || c.Status != metav1.ConditionFalse {
			return fmt.Errorf("conditions are %s", scenario.Summary(g.Status.Conditions))
		}
		return nil
	})
	s.Handled(t, "app", s.Ask(t, &kustomizev1.Kustomization{}, "app"))
	s.spared(t)
}

func (s *wipeOutRow) branchDeleted(t *testing.T) {
	s.declare(t, "")
	s.git(t, "update-ref", "-d", "refs/heads/main")
	s.sourceFails(t)
}

func (s *wipeOutRow) repositoryDeleted(t *testing.T) {
	s.declare(t, "")
	if err := os.Rename(s.repository(), s.repository()+".gone"); err != nil {
		t.Fatal(err)
	}
	s.sourceFails(t)
}

// repositoryReplaced: the same URL, another repository with the same directory.
func (s *wipeOutRow) repositoryReplaced(t *testing.T) {
	s.declare(t, "")
	if err := s.Git.Create(t.Context(), s.Namespace+"-other"); err != nil {
		t.Fatal(err)
	}
	var err error
	s.Head, err = s.Git.Commit(t.Context(), s.Namespace+"-other", "main", "Begin", func(dir string) error {
		if err := os.Mkdir(filepath.Join(dir, "app"), 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "app", "a.yaml"), []byte(scenario.ConfigMapWith("another", "", "{}")), 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, move := range [][2]string{{s.repository(), s.repository() + ".gone"}, {strings.TrimSuffix(s.repository(), ".git") + "-other.git", s.repository()}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			t.Fatal(err)
		}
	}
	s.Ask(t, &sourcev1.GitRepository{}, "git")
	s.refused(t, "app", blocked)
}

func (s *wipeOutRow) ignoreFile(t *testing.T) {
	s.declare(t, "")
	s.Commit(t, map[string]string{".sourceignore": "*.yaml\n"})
	s.refused(t, "app", blocked, "ArtifactFailed")
}

func (s *wipeOutRow) ignoreRule(t *testing.T) {
	s.declare(t, "path: ./")
	s.Patch(t, &sourcev1.GitRepository{}, "git", `{"spec":{"ignore":"/*"}}`)
	s.refused(t, "app", blocked)
}

func (s *wipeOutRow) patchDropsAll(t *testing.T) {
	s.declare(t, "")
	s.Commit(t, map[string]string{"app/kustomization.yaml": "resources: [cluster.yaml, account.yaml, web.yaml]\npatches:\n- target: {kind: .*}\n  patch: |\n    $patch: delete\n    apiVersion: v1\n    kind: X\n    metadata: {name: x}\n"})
	s.refused(t, "app", blocked, "BuildFailed")
}

func (s *wipeOutRow) namePrefixInGit(t *testing.T) {
	s.declare(t, "")
	s.Commit(t, map[string]string{"app/kustomization.yaml": "namePrefix: new-\nresources: [cluster.yaml, account.yaml, web.yaml]\n"})
	s.refused(t, "app", blocked)
}

func (s *wipeOutRow) namespaceInGit(t *testing.T) {
	s.Apply(t, s.Fill("apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-moved}\n"))
	s.declare(t, "")
	s.Kustomization(t, "app", "targetNamespace: null")
	s.Commit(t, map[string]string{"app/kustomization.yaml": "namespace: $ns-moved\nresources: [cluster.yaml, account.yaml, web.yaml]\n"})
	s.refused(t, "app", blocked)
}

// namespaceRemoved: the Namespace of a Cluster goes from Git, the Cluster is
// declared elsewhere.
func (s *wipeOutRow) namespaceRemoved(t *testing.T) {
	s.declare(t, "")
	s.Commit(t, map[string]string{"base/ns.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns}\n", "base/a.yaml": scenario.ConfigMapWith("base", "", "{}")})
	s.Kustomization(t, "base", "")
	s.Ready(t, "base")
	s.noted(t)
	s.Commit(t, map[string]string{"base/ns.yaml": ""})
	s.refused(t, "base", blocked)
}

// definitionRemoved: the definitions of a provider are declared in Git, too.
func (s *wipeOutRow) definitionRemoved(t *testing.T) {
	s.declare(t, "")
	s.Commit(t, map[string]string{"base/crd.yaml": scenario.ThingCRD, "base/a.yaml": scenario.ConfigMapWith("base", "", "{}")})
	s.Kustomization(t, "base", "")
	s.Ready(t, "base")
	s.noted(t)
	s.Commit(t, map[string]string{"base/crd.yaml": ""})
	s.refused(t, "base", blocked)
}

func (s *wipeOutRow) confirmedAndRemovedAtOnce(t *testing.T) {
	s.declare(t, "")
	s.Commit(t, map[string]string{
		"app/cluster.yaml": strings.Replace(fixture()["app/cluster.yaml"], "metadata: {name: prod}", "metadata: {name: prod, annotations: {cascade.dev/deletion: confirmed}}", 1),
		".sourceignore":    "cluster.yaml\n",
	})
	s.refused(t, "app", blocked)
}

func (s *wipeOutRow) confirmationTakenBack(t *testing.T) {
	s.declare(t, "")
	s.Commit(t, map[string]string{"app/cluster.yaml": clusterOf("prod", ", annotations: {cascade.dev/deletion: confirmed}") + "---\n" + awsCluster("prod", "") + "---\n" + awsControlPlane("prod", "")})
	s.Ready(t, "app")
	s.Commit(t, fixture())
	s.Ready(t, "app")
	s.Commit(t, map[string]string{"app/cluster.yaml": ""})
	s.refused(t, "app", blocked)
}

// accountRemoved: what a Cluster needs to be taken apart one day stays with it,
// also where a person confirmed it.
func (s *wipeOutRow) accountRemoved(t *testing.T) {
	s.declare(t, "")
	confirm := func(text, name string) string {
		return strings.ReplaceAll(text, "metadata: {name: "+name+"}", "metadata: {name: "+name+", annotations: {cascade.dev/deletion: confirmed}}")
	}
	s.Commit(t, map[string]string{
		"app/account.yaml": confirm(account, "$ns-account"), "app/cluster.yaml": clusterOf("prod", "") + "---\n" + confirm(awsCluster("prod", "")+"---\n"+awsControlPlane("prod", ""), "prod"),
	})
	s.Ready(t, "app")
	s.owned(t)
	s.Commit(t, map[string]string{"app/account.yaml": "", "app/cluster.yaml": clusterOf("prod", "")})
	s.Says(t, "app", fluxmeta.ReadyCondition, metav1.ConditionTrue, fluxmeta.ReconciliationSucceededReason,
		"Applied revision: main@sha1:"+s.Head+"; 4 objects that are no longer declared wait for Clusters to be gone: ")
	k, err := s.Read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"_$ns-account_infrastructure.cluster.x-k8s.io_AWSClusterStaticIdentity ", "$ns_$ns-account__Secret ", "$ns_prod_infrastructure.cluster.x-k8s.io_AWSCluster "} {
		if !slices.ContainsFunc(scenario.Inventory(k), func(have string) bool { return strings.Contains(have, s.Fill(id)) }) {
			t.Errorf("the inventory lacks %s: %v", s.Fill(id), scenario.Inventory(k))
		}
	}
	s.spared(t)
}

// owned makes the identity an owner of the Secret with its keys, as the provider does when it
// reads them.
func (s *wipeOutRow) owned(t *testing.T) {
	t.Helper()
	identity, keys := &unstructured.Unstructured{}, &corev1.Secret{}
	identity.SetGroupVersionKind(schema.FromAPIVersionAndKind(awsVersion, "AWSClusterStaticIdentity"))
	name := s.Namespace + "-account"
	if err := errors.Join(s.Client.Get(t.Context(), client.ObjectKey{Name: name}, identity), s.Client.Get(t.Context(), client.ObjectKey{Namespace: s.Namespace, Name: name}, keys)); err != nil {
		t.Fatal(err)
	}
	before := client.MergeFrom(keys.DeepCopy())
	keys.OwnerReferences = []metav1.OwnerReference{{APIVersion: awsVersion, Kind: identity.GetKind(), Name: name, UID: identity.GetUID()}}
	if err := s.Client.Patch(t.Context(), keys, before); err != nil {
		t.Fatal(err)
	}
}

// workloadsBesideTheCluster: a lost directory must not delete the workloads and
// keep the Cluster; a person may release that, and only that.
func (s *wipeOutRow) workloadsBesideTheCluster(t *testing.T) {
	s.Commit(t, map[string]string{"stays/a.yaml": scenario.ConfigMapWith("stays", "", "{}")})
	s.declare(t, "path: ./")
	s.loses(t, nil)
	s.refused(t, "app", blocked)
	k, err := s.Read(t.Context(), "app")
	if err != nil {
		t.Fatal(err)
	}
	hash := heldHash(k.Status.Conditions)
	if hash == "" {
		t.Fatalf("nothing is held: %s", scenario.Summary(k.Status.Conditions))
	}
	if _, err := s.Run(t.Context(), "cascade", "approve", "prune", "app", "-n", s.Namespace, "--hash", hash, "--kubeconfig", s.MoM.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	s.Gone(t, &corev1.ConfigMap{}, "web")
	now := s.there(t)
	for _, object := range []string{"Cluster/prod", "AWSCluster/prod", "AWSManagedControlPlane/prod", "AWSClusterStaticIdentity/" + s.Namespace + "-account", "Secret/" + s.Namespace + "-account", "PersistentVolumeClaim/data"} {
		if now[object] != s.uids[object] {
			t.Errorf("%s went with what was approved", object)
		}
	}
}

// heldHash finds the hash of a held plan.
func heldHash(conditions []metav1.Condition) string {
	_, rest, _ := strings.Cut(scenario.Summary(conditions), "--hash ")
	hash, _, _ := strings.Cut(rest, ";")
	hash, _, _ = strings.Cut(hash, ")")
	return strings.TrimSpace(hash)
}
