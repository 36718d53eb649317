package release

import (
	"errors"
	"strings"
	"testing"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// TestUninstallLeavesSuccessor: with spec.releaseName another HelmRelease may have taken
// the release over, before the one of before is deleted or points elsewhere.
func TestUninstallLeavesSuccessor(t *testing.T) {
	config, extra, cluster := named("ConfigMap", "settings"), named("ConfigMap", "extra"), named("Cluster", "prod")
	of := func(namespace, name string, entries ...inventory.Entry) string {
		return strings.ReplaceAll(manifestOf(entries...), "namespace: apps}", "namespace: apps, labels: {"+ownerName+": "+name+", "+ownerNamespace+": "+namespace+"}}")
	}
	upgrades := func(manifest string, status common.Status) func(*v2.HelmRelease, *fakeWorld) {
		return func(_ *v2.HelmRelease, m *fakeWorld) {
			m.manifest = manifest
			m.add("web", "apps", &chart.Metadata{Name: "web", Version: "1.0.0"}, nil, status)
		}
	}
	for name, tc := range map[string]struct {
		reason  string
		arrange func(*v2.HelmRelease, *fakeWorld)
		taken   string
		deleted string
		// mismatch: Helm uninstalled another revision than the recorded one.
		mismatch bool
	}{
		"Renamed":        {reason: "the same release, by another name", arrange: upgrades(of("apps", "shop", config), common.StatusDeployed)},
		"OtherNamespace": {reason: "by one of another namespace, with the same storage", arrange: upgrades(of("other", "web", config), common.StatusDeployed)},
		"Failed":         {reason: "it tries again", arrange: upgrades(of("apps", "shop", config), common.StatusFailed)},
		"Underway": {reason: "it has not applied its objects yet: even one whose deletion was confirmed is to be its", arrange: func(o *v2.HelmRelease, m *fakeWorld) {
			o.Annotations = map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed}
			upgrades(of("apps", "shop", config, cluster), common.StatusPendingUpgrade)(o, m)
		}},
		"Hooks": {reason: "a chart of hooks alone", arrange: func(o *v2.HelmRelease, m *fakeWorld) {
			m.hooks = []*helmrelease.Hook{{Name: "h", Manifest: of("apps", "shop", config)}}
			upgrades("", common.StatusDeployed)(o, m)
		}},
		"Anew": {reason: "it was installed anew, with the same number", arrange: func(_ *v2.HelmRelease, m *fakeWorld) {
			m.stored[0].Manifest = of("apps", "shop", config)
			m.change(common.StatusFailed)
		}},
		"Uninstalled": {reason: "it keeps its history", arrange: upgrades(of("apps", "shop", config), common.StatusUninstalled)},
		"Leftover": {reason: "what the successor does not have still goes", arrange: func(o *v2.HelmRelease, m *fakeWorld) {
			o.Status.Inventory = refsOf([]inventory.Entry{config, extra})
			upgrades(of("apps", "shop", config), common.StatusDeployed)(o, m)
		}, deleted: "extra"},
		"LeftoverKept": {reason: "and what the chart wants left behind, or another owner has, stays", arrange: func(o *v2.HelmRelease, m *fakeWorld) {
			o.Status.Inventory = refsOf([]inventory.Entry{config, extra, named("ConfigMap", "theirs")})
			m.kept, m.live["theirs"] = map[string]bool{"extra": true}, inventory.Live{State: inventory.Present}
			upgrades(of("apps", "shop", config), common.StatusDeployed)(o, m)
		}},
		"Own": {reason: "the process ended before it recorded its own upgrade", arrange: upgrades(of("apps", "web", config), common.StatusDeployed),
			taken: "uninstall", mismatch: true},
		"Person": {reason: "a person upgraded it with the helm CLI: there is no other owner", arrange: upgrades(manifestOf(config), common.StatusDeployed),
			taken: "uninstall", mismatch: true},
		"Recorded": {reason: "what the history is about is its own, whatever the labels say", arrange: func(o *v2.HelmRelease, m *fakeWorld) {
			m.stored[0].Manifest = of("apps", "shop", config)
			o.Status.History[0] = snapshotOf(m.stored[0], "", v2.ReleaseActionInstall)
		}, taken: "uninstall"},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			m.live = map[string]inventory.Live{"settings": owned(nil), "extra": owned(nil), "prod": owned(nil)}
			tc.arrange(obj, m)
			versions := len(m.stored)
			n := m.newRun(obj, wanted)
			out, err := n.remove(t.Context())
			if errors.Is(err, errMismatch) != tc.mismatch || err != nil && !tc.mismatch || out != (Outcome{}) {
				t.Errorf("%s: remove() = %+v, %v", tc.reason, out, err)
			}
			if got := strings.Join(m.taken, " "); got != tc.taken {
				t.Errorf("%s: took %q, want %q", tc.reason, got, tc.taken)
			}
			if got := strings.Join(m.deleted, " "); got != tc.deleted {
				t.Errorf("%s: deleted %q, want %q", tc.reason, got, tc.deleted)
			}
			if tc.taken != "" {
				return
			}
			if told := events(n); told != v2.UninstallSucceededReason || len(m.stored) != versions || obj.Status.Inventory != nil {
				t.Errorf("%s: told %q; %d revisions are stored, and the inventory is %v", tc.reason, told, len(m.stored), obj.Status.Inventory)
			}
		})
	}
}

// TestFormer: a HelmRelease was renamed, and the release has the same name.
func TestFormer(t *testing.T) {
	obj, m := inSync(t)
	m.stored = nil
	for _, by := range []string{"apps/old", "other/theirs", "apps/web"} {
		namespace, name, _ := strings.Cut(by, "/")
		m.manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, labels: {" + ownerName + ": " + name + ", " + ownerNamespace + ": " + namespace + "}}\n"
		m.add("web", "apps", &chart.Metadata{Name: "web", Version: "1.0.0"}, nil, common.StatusSuperseded)
	}
	for name, want := range map[string]bool{"old": true, "theirs": false, "shop": false} {
		if got, err := m.newRun(obj, wanted).former(t.Context(), name); err != nil || got != want {
			t.Errorf("former(%s) = %t, %v", name, got, err)
		}
	}
}

// TestLeaveSuccessor: the HelmRelease points at another release, and somebody else has the
// one that it left.
func TestLeaveSuccessor(t *testing.T) {
	obj, m := inSync(t)
	m.manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, labels: {" + ownerName + ": shop, " + ownerNamespace + ": apps}}\n"
	m.add("web", "apps", &chart.Metadata{Name: "web", Version: "1.0.0"}, nil, common.StatusDeployed)
	obj.Spec.ReleaseName = "other"
	out, err := m.newRun(obj, wanted).reconcile(t.Context())
	if err != nil || out != (Outcome{Again: true}) || len(m.taken) > 0 || obj.Status.History.Latest() != nil {
		t.Errorf("reconcile() = %+v, %v, and took %v", out, err, m.taken)
	}
}
