package helm

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

func (h *releaseSpec) uninstall(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{values: {objects: ["+hook("goodbye", "pre-delete", `"true"`, "")+"]}}")
	r.Released(t, "web", 1)
	r.Delete(t, &helmv2.HelmRelease{}, "web")
	r.Gone(t, &helmv2.HelmRelease{}, "web")
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "web-settings")
	r.Gone(t, &sourcev1.HelmChart{}, r.Namespace+"-web")
	if got := r.Storage(t, r.Namespace, "web"); len(got) != 0 {
		t.Errorf("storage has %v", got)
	}
	if r.Object(t, "v1", "Pod", "goodbye").GetName() == "" {
		t.Error("the hook did not run")
	}
	r.Event(t, "HelmRelease", "web", "UninstallSucceeded", "Helm uninstall succeeded for release "+r.Namespace+"/web.v1 with chart app@1.0.0")
}

func (h *releaseSpec) uninstallKeepsHistory(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "uninstall: {keepHistory: true, disableHooks: true}")
	r.Released(t, "web", 1)
	r.Delete(t, &helmv2.HelmRelease{}, "web")
	r.Gone(t, &helmv2.HelmRelease{}, "web")
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "web-settings")
	if diff := cmp.Diff([]string{"v1 uninstalled"}, r.Storage(t, r.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.Release(t, "web", "{}")
	r.ReleaseTells(t, "web", "Ready", "False", "InstallFailed", "...cannot reuse a name that is still in use")
	r.Release(t, "web", "install: {replace: true}")
	r.Released(t, "web", 2)
	r.ReleaseTells(t, "web", "Ready", "True", "InstallSucceeded", "Helm install succeeded for release "+r.Namespace+"/web.v2 with chart app@1.0.0")
}

func (h *releaseSpec) uninstallSuspended(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "suspend: true")
	r.Delete(t, &helmv2.HelmRelease{}, "web")
	r.Gone(t, &helmv2.HelmRelease{}, "web")
	if diff := cmp.Diff([]string{"v1 deployed"}, r.Storage(t, r.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
	r.Has(t, "web-settings", "color", "red")
}

// uninstallPropagation: with orphan what a Deployment made stays.
func (h *releaseSpec) uninstallPropagation(t *testing.T) {
	r := h.Row(t)
	deployment := "{apiVersion: apps/v1, kind: Deployment, metadata: {name: %[1]s}, spec: {replicas: 0, selector: {matchLabels: {app: %[1]s}}, template: {metadata: {labels: {app: %[1]s}}, spec: {containers: [{name: web, image: 'cascade.local/e2e:dev'}]}}}}"
	for _, policy := range []string{"background", "foreground", "orphan"} {
		r.Release(t, policy, "{uninstall: {deletionPropagation: "+policy+"}, values: {objects: ["+fmt.Sprintf(deployment, policy)+"]}}")
	}
	for _, policy := range []string{"background", "foreground", "orphan"} {
		r.Released(t, policy, 1)
		r.Delete(t, &helmv2.HelmRelease{}, policy)
	}
	sets := func(app string) int {
		list := &appsv1.ReplicaSetList{}
		if err := r.Client.List(t.Context(), list, client.InNamespace(r.Namespace), client.MatchingLabels{"app": app}); err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	for policy, want := range map[string]int{"background": 0, "foreground": 0, "orphan": 1} {
		r.Gone(t, &helmv2.HelmRelease{}, policy)
		scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%s leaves %d", policy, want), func(context.Context) error {
			if got := sets(policy); got != want {
				return fmt.Errorf("%d ReplicaSets", got)
			}
			return nil
		})
	}
}

// releaseMoves: a release in another namespace is another release.
func (h *releaseSpec) releaseMoves(t *testing.T) {
	r := h.Row(t)
	r.Apply(t, r.Fill("apiVersion: v1\nkind: Namespace\nmetadata: {name: $ns-target}\n"))
	r.Release(t, "web", "releaseName: web")
	r.Released(t, "web", 1)
	r.Release(t, "web", "{releaseName: web, targetNamespace: $ns-target}")
	scenario.Eventually(t, scenario.Converge, "it has moved", func(ctx context.Context) error {
		return r.Load(ctx, &corev1.ConfigMap{}, r.Namespace+"-target", "web-settings")
	})
	r.Released(t, "web", 1)
	r.Absent(t, &corev1.ConfigMap{}, r.Namespace, "web-settings")
	// So is one whose storage is elsewhere.
	r.Release(t, "web", "{releaseName: web, targetNamespace: $ns-target, storageNamespace: $ns-target}")
	scenario.Eventually(t, scenario.Converge, "its storage has moved", func(context.Context) error {
		if here, there := r.Storage(t, r.Namespace, "web"), r.Storage(t, r.Namespace+"-target", "web"); len(here) != 0 || len(there) != 1 {
			return fmt.Errorf("storage has %v, %v", here, there)
		}
		return nil
	})
	o := r.Released(t, "web", 1)
	if o.Status.StorageNamespace != r.Namespace+"-target" {
		t.Errorf("the storage namespace is %q", o.Status.StorageNamespace)
	}
}

func (h *releaseSpec) maxHistory(t *testing.T) {
	r := h.Row(t)
	for i := range 3 {
		r.Release(t, "web", fmt.Sprintf("{maxHistory: 2, values: {settings: {color: c%d}}}", i))
		r.Released(t, "web", i+1)
	}
	if diff := cmp.Diff([]string{"v2 superseded", "v3 deployed"}, r.Storage(t, r.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
}

// chartNameChanges: another chart is another release.
func (h *releaseSpec) chartNameChanges(t *testing.T) {
	r := h.Row(t, scenario.AppChart("$ns", "1.0.0"))
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
	before := r.Object(t, "v1", "ConfigMap", "web-settings").GetUID()
	r.Release(t, "web", "chart: {spec: {chart: $ns}}")
	r.Event(t, "HelmRelease", "web", "UninstallSucceeded", "Helm uninstall succeeded for release "+r.Namespace+"/web.v1 with chart app@1.0.0")
	r.ReleaseTells(t, "web", "Ready", "True", "InstallSucceeded", "Helm install succeeded for release "+r.Namespace+"/web.v1 with chart "+r.Namespace+"@1.0.0")
	if r.Object(t, "v1", "ConfigMap", "web-settings").GetUID() == before {
		t.Error("the object is the one that the other chart made")
	}
}

func (h *releaseSpec) chartNameChangesInPlace(t *testing.T) {
	r := h.Row(t, scenario.AppChart("$ns", "1.0.0"))
	r.Release(t, "web", "upgrade: {chartNameChangeStrategy: InPlaceUpdate}")
	r.Released(t, "web", 1)
	before := r.Object(t, "v1", "ConfigMap", "web-settings").GetUID()
	r.Release(t, "web", "{upgrade: {chartNameChangeStrategy: InPlaceUpdate}, chart: {spec: {chart: $ns}}}")
	r.Released(t, "web", 2)
	if r.Object(t, "v1", "ConfigMap", "web-settings").GetUID() != before {
		t.Error("the object was created anew")
	}
	r.History(t, "web", r.Namespace+"/web.v2 deployed "+r.Namespace+"@1.0.0", r.Namespace+"/web.v1 superseded app@1.0.0")
}

// adopts: what somebody else installed, or changed in Helm's storage, is brought
// to what is wanted by an upgrade. So are objects that no release has.
func (h *releaseSpec) adopts(t *testing.T) {
	r := h.Row(t)
	r.Apply(t, r.Fill("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web-settings, namespace: $ns}\ndata: {color: black}\n"))
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
	r.Has(t, "web-settings", "color", "red")
	// Left by a HelmRelease that is no more.
	r.Release(t, "web", "suspend: true")
	r.Delete(t, &helmv2.HelmRelease{}, "web")
	r.Gone(t, &helmv2.HelmRelease{}, "web")
	r.Release(t, "web", "{}")
	r.Released(t, "web", 2)
	r.History(t, "web", r.Namespace+"/web.v2 deployed app@1.0.0")
	// Deleted from the storage by somebody.
	r.Delete(t, &corev1.Secret{}, "sh.helm.release.v1.web.v2")
	r.Request(t, "web")
	r.ReleaseTells(t, "web", "Ready", "True", "UpgradeSucceeded", "")
	r.Release(t, "strict", "{install: {disableTakeOwnership: true}, values: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: web-settings}}]}}")
	r.ReleaseTells(t, "strict", "Ready", "False", "InstallFailed", "...invalid ownership metadata")
}

// unlocks: what a killed process left in the middle of an action goes on.
func (h *releaseSpec) unlocks(t *testing.T) {
	r := h.Row(t)
	r.Release(t, "web", "{}")
	r.Released(t, "web", 1)
	r.Release(t, "web", "suspend: true")
	secret := &corev1.Secret{}
	if err := r.Load(t.Context(), secret, r.Namespace, "sh.helm.release.v1.web.v1"); err != nil {
		t.Fatal(err)
	}
	pending, err := rewritten(secret.Data["release"], func(release map[string]any) {
		release["info"].(map[string]any)["status"] = "pending-upgrade"
		release["version"] = 2
	})
	if err != nil {
		t.Fatal(err)
	}
	second := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: "sh.helm.release.v1.web.v2", Labels: map[string]string{}}, Type: secret.Type, Data: map[string][]byte{"release": pending}}
	maps.Copy(second.Labels, secret.Labels)
	second.Labels["version"], second.Labels["status"] = "2", "pending-upgrade"
	if err := r.Client.Create(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	r.Release(t, "web", "{}")
	r.Event(t, "HelmRelease", "web", "PendingRelease", "Unlocked Helm release "+r.Namespace+"/web.v2 with chart app@1.0.0 in pending-upgrade state")
	r.Released(t, "web", 3)
	if diff := cmp.Diff([]string{"v1 superseded", "v2 failed", "v3 deployed"}, r.Storage(t, r.Namespace, "web")); diff != "" {
		t.Errorf("storage: -want, +got:\n%s", diff)
	}
}

// rewritten changes a release as Helm stores it.
func rewritten(stored []byte, change func(map[string]any)) ([]byte, error) {
	zipped, err := base64.StdEncoding.DecodeString(string(stored))
	if err != nil {
		return nil, err
	}
	reader, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		return nil, err
	}
	release := map[string]any{}
	if err := json.NewDecoder(reader).Decode(&release); err != nil {
		return nil, err
	}
	change(release)
	var out bytes.Buffer
	writer := gzip.NewWriter(&out)
	if err := errors.Join(json.NewEncoder(writer).Encode(release), writer.Close()); err != nil {
		return nil, err
	}
	return []byte(base64.StdEncoding.EncodeToString(out.Bytes())), nil
}
