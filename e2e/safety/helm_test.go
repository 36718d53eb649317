package safety

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestHelmSafety: a release has the Cluster API object of a real cluster. Whatever
// happens to its HelmRelease, the agent asks for no deletion of the Cluster until a
// person confirmed it. Parts run one by one, as each reads the audit log.
func TestHelmSafety(t *testing.T) {
	scenario.Alongside(t)
	h := &releaseSafety{scenario.StartHelmTier(t)}
	h.Apply(t, clusterKind)
	scenario.Eventually(t, scenario.Converge, "Clusters are served", func(ctx context.Context) error {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("cluster.x-k8s.io/v1beta2")
		list.SetKind("ClusterList")
		return h.Client.List(ctx, list)
	})
	for _, part := range []struct {
		name string
		run  func(*releaseSafety, *testing.T)
	}{
		{"DeletedRelease", (*releaseSafety).clusterOfDeletedRelease},
		{"RemovedFromGit", (*releaseSafety).clusterRemovedFromGit},
		{"RemovedFromChart", (*releaseSafety).clusterRemovedFromChart},
		{"FailedUpgrade", (*releaseSafety).clusterOfFailedUpgrade},
		{"FailedInstall", (*releaseSafety).clusterOfFailedInstall},
		{"RenamedRelease", (*releaseSafety).clusterOfRenamedRelease},
		{"Confirmed", (*releaseSafety).clusterConfirmed},
		{"TargetGone", (*releaseSafety).targetGone},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(h, t) })
	}
}

// releaseSafety is the tier that all parts share.
type releaseSafety struct{ *scenario.HelmTier }

// clusterKind is the kind as others know it; what it says is of no matter here.
const clusterKind = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusters.cluster.x-k8s.io}
spec:
  group: cluster.x-k8s.io
  names: {kind: Cluster, listKind: ClusterList, plural: clusters, singular: cluster}
  scope: Namespaced
  versions:
  - name: v1beta2
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// precious are values of a release that has a Cluster.
const precious = "objects: [{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: precious%s}, spec: {clusterNetwork: {serviceDomain: cluster.local}}}]"

const confirmed = ", annotations: {cascade.dev/deletion: confirmed}"

// cluster reads the Cluster and fails if it is being deleted.
func cluster(t *testing.T, r *scenario.HelmRow) *unstructured.Unstructured {
	t.Helper()
	u := r.Object(t, "cluster.x-k8s.io/v1beta2", "Cluster", "precious")
	if u.GetDeletionTimestamp() != nil {
		t.Fatal("the Cluster is being deleted")
	}
	return u
}

// spared fails if anybody asked for a deletion of Clusters since.
func spared(t *testing.T, r *scenario.Row, from int64) {
	t.Helper()
	events, _, err := r.MoM.Audit(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if strings.HasPrefix(e.Verb, "delete") && e.ObjectRef.Resource == "clusters" && !strings.Contains(e.RequestURI, "dryRun=All") {
			t.Errorf("%s asked for %s %s", e.UserAgent, e.Verb, e.RequestURI)
		}
	}
}

func (h *releaseSafety) clusterOfDeletedRelease(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "values: {"+fmt.Sprintf(precious, "")+"}")
	r.Released(t, "web", 1)
	from := r.AuditOffset(t)
	r.Delete(t, &helmv2.HelmRelease{}, "web")
	o := &helmv2.HelmRelease{}
	scenario.Eventually(t, scenario.Converge, "the HelmRelease says why it stays", func(ctx context.Context) error {
		if err := r.Load(ctx, o, r.Namespace, "web"); err != nil {
			return err
		}
		if !strings.Contains(scenario.Summary(o.Status.Conditions), "PruneBlocked") {
			return fmt.Errorf("conditions are %s", scenario.Summary(o.Status.Conditions))
		}
		return nil
	})
	cluster(t, r)
	spared(t, r.Row, from)
}

func (h *releaseSafety) clusterRemovedFromGit(t *testing.T) {
	text := "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: web}\nspec:\n  interval: 10m\n  timeout: 1m\n" +
		"  chart: {spec: {chart: app, version: 1.0.0, sourceRef: {kind: HelmRepository, name: charts}}}\n  values: {" + fmt.Sprintf(precious, "") + "}\n"
	r := h.GitRow(t, map[string]string{"app/web.yaml": text, "app/a.yaml": scenario.ConfigMapWith("a", "", "{}")})
	r.MakeSource(t, "HelmRepository", "charts", "{url: \""+h.Charts.URL()+"\", interval: 10m}")
	r.Kustomization(t, "app", "")
	r.Released(t, "web", 1)
	r.Ready(t, "app")
	from := r.AuditOffset(t)
	r.Commit(t, map[string]string{"app/web.yaml": ""})
	r.Fetched(t)
	scenario.Eventually(t, scenario.Converge, "somebody says that the Cluster stays", func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := r.Load(ctx, o, r.Namespace, "web"); err != nil {
			return err
		}
		k, err := r.Read(ctx, "app")
		if err != nil {
			return err
		}
		said := scenario.Summary(o.Status.Conditions) + scenario.Summary(k.Status.Conditions)
		if !strings.Contains(said, "PruneBlocked") {
			return fmt.Errorf("conditions are %s", said)
		}
		return nil
	})
	cluster(t, r)
	spared(t, r.Row, from)
}

// clusterRemovedFromChart: an upgrade to a chart, or to values, without it.
func (h *releaseSafety) clusterRemovedFromChart(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "values: {"+fmt.Sprintf(precious, "")+"}")
	r.Released(t, "web", 1)
	from := r.AuditOffset(t)
	r.Release(t, "web", "values: {settings: {color: blue}}")
	r.Has(t, "web-settings", "color", "blue")
	scenario.Eventually(t, scenario.Converge, "the HelmRelease says that the Cluster stays", func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := r.Load(ctx, o, r.Namespace, "web"); err != nil {
			return err
		}
		if !strings.Contains(scenario.Summary(o.Status.Conditions), "PruneBlocked") {
			return fmt.Errorf("conditions are %s", scenario.Summary(o.Status.Conditions))
		}
		return nil
	})
	cluster(t, r)
	spared(t, r.Row, from)
}

// clusterOfFailedUpgrade: what says uninstall is not followed, and the rest of the
// release is not uninstalled either.
func (h *releaseSafety) clusterOfFailedUpgrade(t *testing.T) {
	r := h.Row(t)
	values := strings.TrimSuffix(fmt.Sprintf(precious, ""), "]")
	r.Release(t, "web", "values: {"+values+"]}")
	r.Released(t, "web", 1)
	from := r.AuditOffset(t)
	for _, retries := range []string{"retries: 1", "remediateLastFailure: true"} {
		r.Release(t, "web", "{upgrade: {remediation: {strategy: uninstall, "+retries+"}}, values: {settings: {color: "+strings.Fields(retries)[1]+"}, "+values+", {apiVersion: v1, kind: ConfigMap, metadata: {name: Not_A_Name}}]}}")
		r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "")
	}
	cluster(t, r)
	spared(t, r.Row, from)
	for _, s := range r.Storage(t, r.Namespace, "web") {
		if strings.Contains(s, "uninstall") {
			t.Errorf("storage has %v", r.Storage(t, r.Namespace, "web"))
		}
	}
	// Once it can be upgraded, it is.
	r.Release(t, "web", "values: {settings: {color: white}, "+values+"]}")
	r.Tells(t, &helmv2.HelmRelease{}, "web", "Ready", "True", "UpgradeSucceeded", "")
}

// clusterOfFailedInstall: that is what failed halfway.
func (h *releaseSafety) clusterOfFailedInstall(t *testing.T) {
	r := h.Row(t)
	values := strings.TrimSuffix(fmt.Sprintf(precious, ""), "]")
	from := r.AuditOffset(t)
	// The Cluster is created; what is waited for never comes.
	r.Release(t, "web", "{timeout: 3s, install: {remediation: {retries: 1, remediateLastFailure: true}}, values: {"+values+", "+scenario.SlowDeployment+"]}}")
	r.ReleaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "")
	cluster(t, r)
	spared(t, r.Row, from)
}

// clusterOfRenamedRelease: under another name it would be uninstalled first.
func (h *releaseSafety) clusterOfRenamedRelease(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{releaseName: one, values: {"+fmt.Sprintf(precious, "")+"}}")
	r.Released(t, "web", 1)
	from := r.AuditOffset(t)
	r.Release(t, "web", "{releaseName: two, values: {"+fmt.Sprintf(precious, "")+"}}")
	scenario.Eventually(t, scenario.Converge, "the HelmRelease has been looked at", func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := r.Load(ctx, o, r.Namespace, "web"); err != nil {
			return err
		}
		if said := scenario.Summary(o.Status.Conditions); !strings.Contains(said, "PruneBlocked") && !strings.Contains(said, "/two.v") {
			return fmt.Errorf("conditions are %s", said)
		}
		return nil
	})
	cluster(t, r)
	spared(t, r.Row, from)
}

// clusterConfirmed: in two steps it goes.
func (h *releaseSafety) clusterConfirmed(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "values: {"+fmt.Sprintf(precious, "")+"}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "values: {"+fmt.Sprintf(precious, confirmed)+"}")
	r.Released(t, "web", 2)
	r.Release(t, "web", "{}")
	r.Gone(t, stage.Object("cluster.x-k8s.io/v1beta2", "Cluster"), "precious")
	r.Released(t, "web", 3)
	// And the same with the whole release.
	r.Release(t, "web", "values: {"+fmt.Sprintf(precious, confirmed)+"}")
	r.Released(t, "web", 4)
	r.Delete(t, &helmv2.HelmRelease{}, "web")
	r.Gone(t, &helmv2.HelmRelease{}, "web")
	r.Gone(t, stage.Object("cluster.x-k8s.io/v1beta2", "Cluster"), "precious")
}

// targetGone: a release in a cluster that Cluster API takes down, or has taken
// down, holds nothing.
func (h *releaseSafety) targetGone(t *testing.T) {
	r := h.Row(t)
	other, err := r.Cluster(t.Context(), "taken-down")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(other.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	r.Apply(t, r.Fill("apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: down, namespace: $ns, finalizers: [example.com/held]}\nspec: {paused: true}\n"))
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "down-kubeconfig", Labels: map[string]string{"cluster.x-k8s.io/cluster-name": "down"}},
		Data:       map[string][]byte{"value": kubeconfig}, Type: "cluster.x-k8s.io/secret",
	}
	if err := r.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	remote := "{releaseName: %[1]s, targetNamespace: default, storageNamespace: default, kubeConfig: {secretRef: {name: down-kubeconfig}}}"
	for _, name := range []string{"deleting", "unreachable"} {
		r.Release(t, name, fmt.Sprintf(remote, name))
		r.Released(t, name, 1)
	}
	// Nobody answers: what was installed is still known of.
	if err := other.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Signal(syscall.SIGCONT) })
	r.Delete(t, &helmv2.HelmRelease{}, "unreachable")
	o := &helmv2.HelmRelease{}
	scenario.Eventually(t, scenario.Converge, "the HelmRelease says why it stays", func(ctx context.Context) error {
		if err := r.Load(ctx, o, r.Namespace, "unreachable"); err != nil {
			return err
		}
		if !strings.Contains(scenario.Summary(o.Status.Conditions), "UninstallFailed") {
			return fmt.Errorf("conditions are %s", scenario.Summary(o.Status.Conditions))
		}
		return nil
	})
	// Cluster API takes it down: both go.
	cluster := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
	r.Patch(t, cluster, "down", `{"metadata":{"annotations":{"cascade.dev/deletion":"confirmed"}}}`)
	r.Delete(t, cluster, "down")
	r.Delete(t, &helmv2.HelmRelease{}, "deleting")
	r.Gone(t, &helmv2.HelmRelease{}, "deleting")
	r.Gone(t, &helmv2.HelmRelease{}, "unreachable")
	r.Patch(t, cluster, "down", `{"metadata":{"finalizers":null}}`)
}
