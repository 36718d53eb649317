package e2e

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

	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestHelmSafety: a release has the Cluster API object of a real cluster. Whatever
// happens to its HelmRelease, the agent asks for no deletion of the Cluster until a
// person confirmed it. Parts run one by one, as each reads the audit log.
func TestHelmSafety(t *testing.T) {
	alongside(t)
	h := startHelmSpec(t)
	h.apply(t, clusterKind)
	eventually(t, converge, "Clusters are served", func(ctx context.Context) error {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("cluster.x-k8s.io/v1beta2")
		list.SetKind("ClusterList")
		return h.client.List(ctx, list)
	})
	for _, part := range []struct {
		name string
		run  func(*helmSpec, *testing.T)
	}{
		{"DeletedRelease", (*helmSpec).clusterOfDeletedRelease},
		{"RemovedFromGit", (*helmSpec).clusterRemovedFromGit},
		{"RemovedFromChart", (*helmSpec).clusterRemovedFromChart},
		{"FailedUpgrade", (*helmSpec).clusterOfFailedUpgrade},
		{"FailedInstall", (*helmSpec).clusterOfFailedInstall},
		{"RenamedRelease", (*helmSpec).clusterOfRenamedRelease},
		{"Confirmed", (*helmSpec).clusterConfirmed},
		{"TargetGone", (*helmSpec).targetGone},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(h, t) })
	}
}

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
func (r *helmRow) cluster(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	u := r.object(t, "cluster.x-k8s.io/v1beta2", "Cluster", "precious")
	if u.GetDeletionTimestamp() != nil {
		t.Fatal("the Cluster is being deleted")
	}
	return u
}

// begun is where the audit log ends.
func (r *row) begun(t *testing.T) int64 {
	t.Helper()
	_, from, err := r.MoM.Audit(0)
	if err != nil {
		t.Fatal(err)
	}
	return from
}

// spared fails if anybody asked for a deletion of Clusters since.
func (r *row) spared(t *testing.T, from int64) {
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

func (h *helmSpec) clusterOfDeletedRelease(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "values: {"+fmt.Sprintf(precious, "")+"}")
	r.released(t, "web", 1)
	from := r.begun(t)
	r.delete(t, &helmv2.HelmRelease{}, "web")
	o := &helmv2.HelmRelease{}
	eventually(t, converge, "the HelmRelease says why it stays", func(ctx context.Context) error {
		if err := r.load(ctx, o, r.ns, "web"); err != nil {
			return err
		}
		if !strings.Contains(summary(o.Status.Conditions), "PruneBlocked") {
			return fmt.Errorf("conditions are %s", summary(o.Status.Conditions))
		}
		return nil
	})
	r.cluster(t)
	r.spared(t, from)
}

func (h *helmSpec) clusterRemovedFromGit(t *testing.T) {
	text := "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: web}\nspec:\n  interval: 10m\n  timeout: 1m\n" +
		"  chart: {spec: {chart: app, version: 1.0.0, sourceRef: {kind: HelmRepository, name: charts}}}\n  values: {" + fmt.Sprintf(precious, "") + "}\n"
	r := h.gitRow(t, map[string]string{"app/web.yaml": text, "app/a.yaml": cm("a", "", "{}")})
	r.make(t, "HelmRepository", "charts", "{url: \""+h.charts.URL()+"\", interval: 10m}")
	r.kustomization(t, "app", "")
	r.released(t, "web", 1)
	r.ready(t, "app")
	from := r.begun(t)
	r.commit(t, map[string]string{"app/web.yaml": ""})
	r.fetched(t)
	eventually(t, converge, "somebody says that the Cluster stays", func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := r.load(ctx, o, r.ns, "web"); err != nil {
			return err
		}
		k, err := r.read(ctx, "app")
		if err != nil {
			return err
		}
		said := summary(o.Status.Conditions) + summary(k.Status.Conditions)
		if !strings.Contains(said, "PruneBlocked") {
			return fmt.Errorf("conditions are %s", said)
		}
		return nil
	})
	r.cluster(t)
	r.spared(t, from)
}

// clusterRemovedFromChart: an upgrade to a chart, or to values, without it.
func (h *helmSpec) clusterRemovedFromChart(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "values: {"+fmt.Sprintf(precious, "")+"}")
	r.released(t, "web", 1)
	from := r.begun(t)
	r.release(t, "web", "values: {settings: {color: blue}}")
	r.has(t, "web-settings", "color", "blue")
	eventually(t, converge, "the HelmRelease says that the Cluster stays", func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := r.load(ctx, o, r.ns, "web"); err != nil {
			return err
		}
		if !strings.Contains(summary(o.Status.Conditions), "PruneBlocked") {
			return fmt.Errorf("conditions are %s", summary(o.Status.Conditions))
		}
		return nil
	})
	r.cluster(t)
	r.spared(t, from)
}

// clusterOfFailedUpgrade: what says uninstall is not followed, and the rest of the
// release is not uninstalled either.
func (h *helmSpec) clusterOfFailedUpgrade(t *testing.T) {
	r := h.row(t)
	values := strings.TrimSuffix(fmt.Sprintf(precious, ""), "]")
	r.release(t, "web", "values: {"+values+"]}")
	r.released(t, "web", 1)
	from := r.begun(t)
	for _, retries := range []string{"retries: 1", "remediateLastFailure: true"} {
		r.release(t, "web", "{upgrade: {remediation: {strategy: uninstall, "+retries+"}}, values: {settings: {color: "+strings.Fields(retries)[1]+"}, "+values+", {apiVersion: v1, kind: ConfigMap, metadata: {name: Not_A_Name}}]}}")
		r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "")
	}
	r.cluster(t)
	r.spared(t, from)
	for _, s := range r.storage(t, r.ns, "web") {
		if strings.Contains(s, "uninstall") {
			t.Errorf("storage has %v", r.storage(t, r.ns, "web"))
		}
	}
	// Once it can be upgraded, it is.
	r.release(t, "web", "values: {settings: {color: white}, "+values+"]}")
	r.tells(t, &helmv2.HelmRelease{}, "web", "Ready", "True", "UpgradeSucceeded", "")
}

// clusterOfFailedInstall: that is what failed halfway.
func (h *helmSpec) clusterOfFailedInstall(t *testing.T) {
	r := h.row(t)
	values := strings.TrimSuffix(fmt.Sprintf(precious, ""), "]")
	from := r.begun(t)
	// The Cluster is created; what is waited for never comes.
	r.release(t, "web", "{timeout: 3s, install: {remediation: {retries: 1, remediateLastFailure: true}}, values: {"+values+", "+slowDeployment+"]}}")
	r.releaseTells(t, "web", "Stalled", "True", "RetriesExceeded", "")
	r.cluster(t)
	r.spared(t, from)
}

// clusterOfRenamedRelease: under another name it would be uninstalled first.
func (h *helmSpec) clusterOfRenamedRelease(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "{releaseName: one, values: {"+fmt.Sprintf(precious, "")+"}}")
	r.released(t, "web", 1)
	from := r.begun(t)
	r.release(t, "web", "{releaseName: two, values: {"+fmt.Sprintf(precious, "")+"}}")
	eventually(t, converge, "the HelmRelease has been looked at", func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := r.load(ctx, o, r.ns, "web"); err != nil {
			return err
		}
		if said := summary(o.Status.Conditions); !strings.Contains(said, "PruneBlocked") && !strings.Contains(said, "/two.v") {
			return fmt.Errorf("conditions are %s", said)
		}
		return nil
	})
	r.cluster(t)
	r.spared(t, from)
}

// clusterConfirmed: in two steps it goes.
func (h *helmSpec) clusterConfirmed(t *testing.T) {
	r := h.row(t)
	r.release(t, "web", "values: {"+fmt.Sprintf(precious, "")+"}")
	r.released(t, "web", 1)
	r.release(t, "web", "values: {"+fmt.Sprintf(precious, confirmed)+"}")
	r.released(t, "web", 2)
	r.release(t, "web", "{}")
	r.gone(t, stage.Object("cluster.x-k8s.io/v1beta2", "Cluster"), "precious")
	r.released(t, "web", 3)
	// And the same with the whole release.
	r.release(t, "web", "values: {"+fmt.Sprintf(precious, confirmed)+"}")
	r.released(t, "web", 4)
	r.delete(t, &helmv2.HelmRelease{}, "web")
	r.gone(t, &helmv2.HelmRelease{}, "web")
	r.gone(t, stage.Object("cluster.x-k8s.io/v1beta2", "Cluster"), "precious")
}

// targetGone: a release in a cluster that Cluster API takes down, or has taken
// down, holds nothing.
func (h *helmSpec) targetGone(t *testing.T) {
	r := h.row(t)
	other, err := r.Cluster(t.Context(), "taken-down")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(other.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	r.apply(t, r.fill("apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {name: down, namespace: $ns, finalizers: [example.com/held]}\nspec: {paused: true}\n"))
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: "down-kubeconfig", Labels: map[string]string{"cluster.x-k8s.io/cluster-name": "down"}},
		Data:       map[string][]byte{"value": kubeconfig}, Type: "cluster.x-k8s.io/secret",
	}
	if err := r.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	remote := "{releaseName: %[1]s, targetNamespace: default, storageNamespace: default, kubeConfig: {secretRef: {name: down-kubeconfig}}}"
	for _, name := range []string{"deleting", "unreachable"} {
		r.release(t, name, fmt.Sprintf(remote, name))
		r.released(t, name, 1)
	}
	// Nobody answers: what was installed is still known of.
	if err := other.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Signal(syscall.SIGCONT) })
	r.delete(t, &helmv2.HelmRelease{}, "unreachable")
	o := &helmv2.HelmRelease{}
	eventually(t, converge, "the HelmRelease says why it stays", func(ctx context.Context) error {
		if err := r.load(ctx, o, r.ns, "unreachable"); err != nil {
			return err
		}
		if !strings.Contains(summary(o.Status.Conditions), "UninstallFailed") {
			return fmt.Errorf("conditions are %s", summary(o.Status.Conditions))
		}
		return nil
	})
	// Cluster API takes it down: both go.
	cluster := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
	r.patch(t, cluster, "down", `{"metadata":{"annotations":{"cascade.dev/deletion":"confirmed"}}}`)
	r.delete(t, cluster, "down")
	r.delete(t, &helmv2.HelmRelease{}, "deleting")
	r.gone(t, &helmv2.HelmRelease{}, "deleting")
	r.gone(t, &helmv2.HelmRelease{}, "unreachable")
	r.patch(t, cluster, "down", `{"metadata":{"finalizers":null}}`)
}
