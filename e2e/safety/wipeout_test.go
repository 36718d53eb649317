package safety

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestWipeOut does, one by one, what has wiped out somebody's clusters somewhere,
// and what is like it: to Git, to sources, to Kustomizations and HelmReleases, to
// the cluster itself. Each time a Cluster may be lost, with its infrastructure,
// control plane, identity and the keys of that, and workloads. Each time the agent
// asks for no delete, nothing is gone, and an object says why. Before that it is seen
// that the API server would refuse.
func TestWipeOut(t *testing.T) {
	scenario.Alongside(t)
	a := startArmour(t)
	t.Run("Wall", a.wall)
	t.Run("Inputs", func(t *testing.T) {
		parts := scenario.PartsOf(t)
		defer parts.Wait()
		for _, input := range wipeOuts {
			parts.Run(input.name, func(t *testing.T) { input.run(a.wipeOutRow(t), t) })
		}
	})
	// What concerns all objects of a kind is tried when nobody else is at work.
	t.Run("Kinds", func(t *testing.T) {
		for _, input := range kindWipeOuts {
			t.Run(input.name, func(t *testing.T) { input.run(a.wipeOutRow(t), t) })
		}
	})
}

type wipeOut struct {
	name string
	run  func(*wipeOutRow, *testing.T)
}

var wipeOuts = []wipeOut{
	// In Git.
	{"EmptyDirectory", (*wipeOutRow).emptyDirectory},
	{"EmptyResources", (*wipeOutRow).emptyResources},
	{"CommentsOnly", (*wipeOutRow).commentsOnly},
	{"ForgottenResources", (*wipeOutRow).forgottenResources},
	{"DirectoryRenamed", (*wipeOutRow).directoryRenamed},
	{"DirectoryDeleted", (*wipeOutRow).directoryDeleted},
	{"BranchEmptied", (*wipeOutRow).branchEmptied},
	{"OrphanForcePush", (*wipeOutRow).orphanForcePush},
	{"BranchDeleted", (*wipeOutRow).branchDeleted},
	{"RepositoryDeleted", (*wipeOutRow).repositoryDeleted},
	{"RepositoryReplaced", (*wipeOutRow).repositoryReplaced},
	{"IgnoreFile", (*wipeOutRow).ignoreFile},
	{"IgnoreRule", (*wipeOutRow).ignoreRule},
	{"PatchDropsAll", (*wipeOutRow).patchDropsAll},
	{"NamePrefixInGit", (*wipeOutRow).namePrefixInGit},
	{"NamespaceInGit", (*wipeOutRow).namespaceInGit},
	{"NamespaceRemoved", (*wipeOutRow).namespaceRemoved},
	{"DefinitionRemoved", (*wipeOutRow).definitionRemoved},
	{"ConfirmedAndRemovedAtOnce", (*wipeOutRow).confirmedAndRemovedAtOnce},
	{"ConfirmationTakenBack", (*wipeOutRow).confirmationTakenBack},
	{"AccountRemoved", (*wipeOutRow).accountRemoved},
	{"WorkloadsBesideTheCluster", (*wipeOutRow).workloadsBesideTheCluster},
	// In the objects that sync.
	{"WrongPath", (*wipeOutRow).wrongPath},
	{"NamePrefix", (*wipeOutRow).namePrefix},
	{"TargetNamespace", (*wipeOutRow).targetNamespace},
	{"SubstitutionLost", (*wipeOutRow).substitutionLost},
	{"VariablesLost", (*wipeOutRow).variablesLost},
	{"KustomizationRemovedByParent", (*wipeOutRow).kustomizationRemovedByParent},
	{"KustomizationRenamed", (*wipeOutRow).kustomizationRenamed},
	{"KustomizationDeleted", (*wipeOutRow).kustomizationDeleted},
	{"KustomizationRemovesItself", (*wipeOutRow).kustomizationRemovesItself},
	{"SharedWithAnother", (*wipeOutRow).sharedWithAnother},
	{"ProtectionStripped", (*wipeOutRow).protectionStripped},
	{"KubeconfigSwapped", (*wipeOutRow).kubeconfigSwapped},
	{"KubeconfigRemoved", (*wipeOutRow).kubeconfigRemoved},
	{"HelmReleaseRemoved", (*wipeOutRow).helmReleaseRemoved},
	{"HelmValuesRenderNothing", (*wipeOutRow).helmValuesRenderNothing},
	{"HelmChartReplaced", (*wipeOutRow).helmChartReplaced},
	{"HelmReleaseRenamed", (*wipeOutRow).helmReleaseRenamed},
	{"HelmStorageLost", (*wipeOutRow).helmStorageLost},
	// In the cluster.
	{"InventoryEdited", (*wipeOutRow).inventoryEdited},
	{"InventoryOfABackup", (*wipeOutRow).inventoryOfABackup},
	{"ForcedRecreation", (*wipeOutRow).forcedRecreation},
	{"NamespaceDeleted", (*wipeOutRow).namespaceDeleted},
	{"AgentKilled", (*wipeOutRow).agentKilled},
	{"ManyConfirmedAtOnce", (*wipeOutRow).manyConfirmedAtOnce},
}

var kindWipeOuts = []wipeOut{
	{"DiscoveryPartial", (*wipeOutRow).discoveryPartial},
	{"VersionsNotServed", (*wipeOutRow).versionsNotServed},
	{"HelmReleaseKindDeleted", (*wipeOutRow).helmReleaseKindDeleted},
	{"KustomizationKindDeleted", (*wipeOutRow).kustomizationKindDeleted},
}

// wipeOutRow is what may be lost in one row.
type wipeOutRow struct {
	*scenario.HelmRow
	a *armour
	// from is where the audit log was when everything was in place.
	from int64
	// uids of what may be lost.
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

// wipeOutRow begins a row, without objects.
func (a *armour) wipeOutRow(t *testing.T) *wipeOutRow {
	t.Helper()
	r := a.GitRow(t, map[string]string{"README": "nothing yet"})
	r.MakeSource(t, "HelmRepository", "charts", "{url: \""+a.Charts.URL()+"\", interval: 10m}")
	return &wipeOutRow{HelmRow: r, a: a}
}

// declare commits the fixture and a Kustomization for it, and waits.
func (s *wipeOutRow) declare(t *testing.T, spec string) {
	t.Helper()
	s.Commit(t, fixture())
	s.Kustomization(t, "app", spec)
	s.Ready(t, "app")
	s.noted(t)
}

// fixed are the kinds whose objects a row may lose.
func (s *wipeOutRow) fixed() map[string]*unstructured.UnstructuredList {
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
func (s *wipeOutRow) there(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for kind, l := range s.fixed() {
		namespace := s.Namespace
		if kind == "AWSClusterStaticIdentity" {
			namespace = ""
		}
		if err := s.Client.List(t.Context(), l, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		for i := range l.Items {
			o := &l.Items[i]
			if o.GetDeletionTimestamp() != nil || namespace == "" && o.GetName() != s.Namespace+"-account" ||
				strings.HasPrefix(o.GetName(), "sh.helm.") || o.GetName() == "kube-root-ca.crt" || o.GetName() == "git-auth" {
				continue
			}
			found[kind+"/"+o.GetName()] = string(o.GetUID())
		}
	}
	return found
}

// noted records what may be lost from now on.
func (s *wipeOutRow) noted(t *testing.T) {
	t.Helper()
	s.from, s.uids = s.AuditOffset(t), s.there(t)
	if _, ok := s.uids["Cluster/prod"]; !ok {
		t.Fatalf("there is no Cluster, only %v", s.uids)
	}
}

// spared fails if something is gone or another, or the agent asked for a delete.
func (s *wipeOutRow) spared(t *testing.T) {
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
func (s *wipeOutRow) deletes(t *testing.T) []stage.AuditEvent {
	t.Helper()
	events, _, err := s.MoM.Audit(s.from)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(events, func(e stage.AuditEvent) bool {
		of := e.ObjectRef
		return !strings.HasPrefix(e.Verb, "delete") || !e.ByAgent() || strings.Contains(e.RequestURI, "dryRun") ||
			of.Namespace != s.Namespace && !strings.HasPrefix(of.Name, s.Namespace) || strings.HasSuffix(of.APIGroup, ".toolkit.fluxcd.io") || strings.HasPrefix(of.Name, "sh.helm.")
	})
}

// refused waits until a Kustomization has looked at the last commit and says one
// of the reasons, and nothing is lost.
func (s *wipeOutRow) refused(t *testing.T, name string, reasons ...string) {
	t.Helper()
	s.reason(t, name, reasons...)
	s.spared(t)
}

// reason waits for one of some reasons.
func (s *wipeOutRow) reason(t *testing.T, name string, reasons ...string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("Kustomization %s says %v", name, reasons), func(ctx context.Context) error {
		k, err := s.Read(ctx, name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(k.Status.Conditions, fluxmeta.ReadyCondition)
		if c == nil || !slices.Contains(reasons, c.Reason) || !strings.HasSuffix(k.Status.LastAttemptedRevision, s.Head) {
			return fmt.Errorf("at %s, of %s, conditions are %s", k.Status.LastAttemptedRevision, s.Head, scenario.Summary(k.Status.Conditions))
		}
		t.Logf("%s: %s", c.Reason, c.Message)
		return nil
	})
}

const blocked = "PruneBlocked"

// loses commits the loss of the files of the fixture, and others instead.
func (s *wipeOutRow) loses(t *testing.T, instead map[string]string) {
	t.Helper()
	change := map[string]string{"app/cluster.yaml": "", "app/account.yaml": "", "app/web.yaml": ""}
	for name, text := range instead {
		change[name] = text
	}
	s.Commit(t, change)
}
