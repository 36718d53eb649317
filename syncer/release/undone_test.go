package release

import (
	"context"
	"errors"
	"strings"
	"testing"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"

	"github.com/cascade-gitops/cascade/inventory"
)

// TestFailedUpgradeLeavesNothing: Helm compares an upgrade with the revision that was
// deployed last. What revisions since then created, and the next one does not have, goes
// all the same, and until then it is in the inventory.
func TestFailedUpgradeLeavesNothing(t *testing.T) {
	settings, extra, data := named("ConfigMap", "settings"), named("ConfigMap", "extra"), named("PersistentVolumeClaim", "data")
	next := wanted
	next.ChartVersion = "2.0.0"
	refused := errors.New("it is never ready")
	labels := func(manifest, name string) string {
		return strings.ReplaceAll(manifest, "namespace: apps}", "namespace: apps, labels: {"+ownerName+": "+name+", "+ownerNamespace+": apps}}")
	}
	// fails is an upgrade to another version that is recorded.
	fails := func(t *testing.T, obj *v2.HelmRelease, m *fakeWorld, has ...inventory.Entry) {
		t.Helper()
		m.manifest, m.fails[Upgrade] = labels(manifestOf(has...), "web"), refused
		if _, err := m.newRun(obj, next).reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.manifest, m.taken = labels(manifestOf(settings), "web"), nil
		delete(m.fails, Upgrade)
	}
	// killed is one that the process did not live to record.
	killed := func(m *fakeWorld, manifest string, status common.Status) {
		m.manifest = manifest
		m.add("web", "apps", &chart.Metadata{Name: "web", Version: "2.0.0"}, wanted.Values, status)
		m.manifest = labels(manifestOf(settings), "web")
	}
	mine := labels(manifestOf(settings, extra), "web")
	for name, tc := range map[string]struct {
		reason  string
		arrange func(*testing.T, *v2.HelmRelease, *fakeWorld)
		taken   string
		deleted string
		left    []inventory.Entry
		held    bool
	}{
		"Reverted": {reason: "the commit was reverted", arrange: func(t *testing.T, o *v2.HelmRelease, m *fakeWorld) {
			fails(t, o, m, settings, extra)
		}, taken: "upgrade", deleted: "extra", left: []inventory.Entry{settings}},
		"Protected": {reason: "what carries data waits for a person", arrange: func(t *testing.T, o *v2.HelmRelease, m *fakeWorld) {
			fails(t, o, m, settings, data)
		}, taken: "upgrade", left: []inventory.Entry{settings, data}, held: true},
		"Kept": {reason: "the chart wants it left behind", arrange: func(t *testing.T, o *v2.HelmRelease, m *fakeWorld) {
			m.kept = map[string]bool{"extra": true}
			fails(t, o, m, settings, extra)
		}, taken: "upgrade", left: []inventory.Entry{settings}},
		"Taken": {reason: "it is not marked as the release's: another owner has it", arrange: func(t *testing.T, o *v2.HelmRelease, m *fakeWorld) {
			m.live["extra"] = inventory.Live{State: inventory.Present}
			fails(t, o, m, settings, extra)
		}, taken: "upgrade", left: []inventory.Entry{settings}},
		"Hook": {reason: "the next revision has it as a hook, and creates it", arrange: func(t *testing.T, o *v2.HelmRelease, m *fakeWorld) {
			fails(t, o, m, settings, extra)
			m.hooks = []*helmrelease.Hook{{Name: "extra", Manifest: manifestOf(extra)}}
		}, taken: "upgrade", left: []inventory.Entry{settings}},
		"FailsAgain": {reason: "it is not forgotten before", arrange: func(t *testing.T, o *v2.HelmRelease, m *fakeWorld) {
			fails(t, o, m, settings, extra)
			m.fails[Upgrade] = refused
		}, taken: "upgrade", left: []inventory.Entry{settings, extra}},
		"Killed": {reason: "the process ended in the middle of the upgrade", arrange: func(_ *testing.T, _ *v2.HelmRelease, m *fakeWorld) {
			killed(m, mine, common.StatusPendingUpgrade)
		}, taken: "unlock upgrade", deleted: "extra", left: []inventory.Entry{settings}},
		"KilledAfter": {reason: "or between its end and the record of it", arrange: func(_ *testing.T, _ *v2.HelmRelease, m *fakeWorld) {
			killed(m, mine, common.StatusFailed)
		}, taken: "upgrade", deleted: "extra", left: []inventory.Entry{settings}},
		"KilledTwice": {reason: "and once more in the next one", arrange: func(_ *testing.T, _ *v2.HelmRelease, m *fakeWorld) {
			killed(m, mine, common.StatusFailed)
			killed(m, labels(manifestOf(settings), "web"), common.StatusPendingUpgrade)
		}, taken: "unlock upgrade", deleted: "extra", left: []inventory.Entry{settings}},
		"Foreign": {reason: "another person's upgrade failed: what it made is not ours to clear", arrange: func(_ *testing.T, _ *v2.HelmRelease, m *fakeWorld) {
			killed(m, labels(manifestOf(extra), "other"), common.StatusFailed)
		}, taken: "upgrade", left: []inventory.Entry{settings}},
		"Deployed": {reason: "Helm deletes what the last revision had, if that was deployed", arrange: func(_ *testing.T, _ *v2.HelmRelease, m *fakeWorld) {
			killed(m, mine, common.StatusDeployed)
		}, taken: "upgrade", left: []inventory.Entry{settings}},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			m.live = map[string]inventory.Live{"settings": owned(nil), "extra": owned(nil), "data": owned(nil)}
			m.stored[0].Manifest = labels(manifestOf(settings), "web")
			obj.Status.History[0] = snapshotOf(m.stored[0], "", v2.ReleaseActionInstall)
			obj.Status.Inventory = refsOf([]inventory.Entry{settings})
			m.manifest = m.stored[0].Manifest
			tc.arrange(t, obj, m)
			obj.Generation++
			n := m.newRun(obj, wanted)
			out, err := n.reconcile(t.Context())
			if told := events(n); strings.Contains(told, "Progressing") != (tc.deleted != "") {
				t.Errorf("%s: told %q", tc.reason, told)
			}
			if err != nil || out.Held != tc.held {
				t.Errorf("%s: reconcile() = %+v, %v", tc.reason, out, err)
			}
			if got := strings.Join(m.taken, " "); got != tc.taken {
				t.Errorf("%s: took %q, want %q", tc.reason, got, tc.taken)
			}
			if got := strings.Join(m.deleted, " "); got != tc.deleted {
				t.Errorf("%s: deleted %q, want %q", tc.reason, got, tc.deleted)
			}
			if got := entriesOf(obj.Status.Inventory); !inventory.Equal(got, tc.left) {
				t.Errorf("%s: the inventory has %v, want %v", tc.reason, got, tc.left)
			}
		})
	}
}

// TestKilledKeepsTarget: upgrades that no process lived to record are no reason to forget what there is to go
// back to. If it is another client that changed the release, nobody knows what that would be.
func TestKilledKeepsTarget(t *testing.T) {
	mine := strings.ReplaceAll(manifestOf(named("ConfigMap", "settings")), "namespace: apps}",
		"namespace: apps, labels: {"+ownerName+": web, "+ownerNamespace+": apps}}")
	next := wanted
	next.ChartVersion = "2.0.0"
	add := func(m *fakeWorld, manifest string, status common.Status) *helmrelease.Release {
		m.manifest = manifest
		return m.add("web", "apps", &chart.Metadata{Name: "web", Version: "2.0.0"}, wanted.Values, status)
	}
	for name, tc := range map[string]struct {
		reason  string
		arrange func(*v2.HelmRelease, *fakeWorld)
		taken   string
		lost    bool
	}{
		"Killed": {reason: "in the middle of it", arrange: func(_ *v2.HelmRelease, m *fakeWorld) {
			add(m, mine, common.StatusPendingUpgrade)
		}, taken: "unlock upgrade rollback"},
		"KilledAfter": {reason: "between its end and the record of it", arrange: func(_ *v2.HelmRelease, m *fakeWorld) {
			add(m, mine, common.StatusFailed)
		}, taken: "upgrade rollback"},
		"KilledTwice": {reason: "and once more in the next one", arrange: func(_ *v2.HelmRelease, m *fakeWorld) {
			add(m, mine, common.StatusFailed)
			add(m, mine, common.StatusPendingUpgrade)
		}, taken: "unlock upgrade rollback"},
		"Retrying": {reason: "after another one failed, which is on record", arrange: func(o *v2.HelmRelease, m *fakeWorld) {
			o.Status.History = append(v2.Snapshots{snapshotOf(add(m, mine, common.StatusFailed), "", v2.ReleaseActionUpgrade)}, o.Status.History...)
			add(m, mine, common.StatusPendingUpgrade)
		}, taken: "unlock upgrade rollback"},
		"Foreign": {reason: "the upgrade was another person's", arrange: func(_ *v2.HelmRelease, m *fakeWorld) {
			add(m, manifestOf(named("ConfigMap", "settings")), common.StatusFailed)
		}, taken: "upgrade", lost: true},
		"Deployed": {reason: "what was deployed since is not on record", arrange: func(_ *v2.HelmRelease, m *fakeWorld) {
			add(m, mine, common.StatusDeployed)
		}, taken: "upgrade", lost: true},
		"Changed": {reason: "the storage has another revision than the recorded one", arrange: func(_ *v2.HelmRelease, m *fakeWorld) {
			m.stored[0].Manifest = manifestOf(named("ConfigMap", "other"))
			add(m, mine, common.StatusFailed)
		}, taken: "upgrade", lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Spec.Upgrade = &v2.Upgrade{Remediation: &v2.UpgradeRemediation{Retries: 1}}
			m.live = map[string]inventory.Live{"settings": owned(nil)}
			m.stored[0].Manifest = mine
			obj.Status.History[0] = snapshotOf(m.stored[0], "", v2.ReleaseActionInstall)
			tc.arrange(obj, m)
			m.manifest, m.fails[Upgrade] = mine, errors.New("it is never ready")
			out, err := m.newRun(obj, next).reconcile(t.Context())
			if want := (Outcome{Again: !tc.lost, Stalled: tc.lost}); err != nil || out != want {
				t.Errorf("%s: reconcile() = %+v, %v; want %+v", tc.reason, out, err, want)
			}
			if got := strings.Join(m.taken, " "); got != tc.taken {
				t.Errorf("%s: took %q, want %q", tc.reason, got, tc.taken)
			}
		})
	}
}

// TestUninstallTakesUndone: a HelmRelease is deleted after two upgrades that nobody recorded.
func TestUninstallTakesUndone(t *testing.T) {
	obj, m := inSync(t)
	labelled := func(entries ...inventory.Entry) string {
		return strings.ReplaceAll(manifestOf(entries...), "namespace: apps}", "namespace: apps, labels: {"+ownerName+": web, "+ownerNamespace+": apps}}")
	}
	settings, extra := named("ConfigMap", "settings"), named("ConfigMap", "extra")
	m.live = map[string]inventory.Live{"settings": owned(nil), "extra": owned(nil)}
	for _, manifest := range []string{labelled(settings, extra), labelled(settings)} {
		m.manifest = manifest
		m.add("web", "apps", &chart.Metadata{Name: "web", Version: "2.0.0"}, nil, common.StatusFailed)
	}
	// Helm uninstalls another revision than the recorded one, which is told once.
	if _, err := m.newRun(obj, wanted).remove(t.Context()); !errors.Is(err, errMismatch) {
		t.Errorf("remove() = %v", err)
	}
	if got := strings.Join(m.deleted, " "); got != "extra" {
		t.Errorf("deleted %q, want what only an earlier revision had", got)
	}
}

// TestKilledInstallLeavesNothing: the agent was killed in the middle of an install, and the
// upgrade after it failed before Helm came to what the chart does not have any more.
func TestKilledInstallLeavesNothing(t *testing.T) {
	settings, extra := named("ConfigMap", "settings"), named("ConfigMap", "extra")
	obj := &v2.HelmRelease{}
	obj.Name, obj.Namespace, obj.Generation, obj.UID = "web", "apps", 1, "u"
	m := &fakeWorld{fails: map[Action]error{}, live: map[string]inventory.Live{"settings": owned(nil), "extra": owned(nil)}}
	m.manifest = manifestOf(settings, extra)
	var saved *v2.HelmReleaseStatus
	n := m.newRun(obj, wanted)
	n.req.Save = func(context.Context) error {
		if len(m.stored) > 0 && m.stored[0].Info.Status == common.StatusPendingInstall {
			saved = obj.Status.DeepCopy()
		}
		return nil
	}
	if _, err := n.reconcile(t.Context()); err != nil || saved == nil {
		t.Fatalf("reconcile() = %v, and it saved %v", err, saved)
	}
	if got := entriesOf(obj.Status.Inventory); !inventory.Equal(got, []inventory.Entry{settings, extra}) {
		t.Errorf("the inventory has %v after the install", got)
	}
	m.change(common.StatusPendingInstall)
	obj.Status = *saved
	for _, tc := range []struct {
		reason  string
		fails   error
		deleted string
		left    []inventory.Entry
	}{
		{"it is not forgotten", errors.New("a hook failed"), "", []inventory.Entry{settings, extra}},
		{"it goes with the first upgrade that succeeds", nil, "extra", []inventory.Entry{settings}},
	} {
		m.manifest, m.fails[Upgrade] = manifestOf(settings), tc.fails
		obj.Generation++
		if _, err := m.newRun(obj, wanted).reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(m.deleted, " "); got != tc.deleted {
			t.Errorf("%s: deleted %q, want %q", tc.reason, got, tc.deleted)
		}
		if got := entriesOf(obj.Status.Inventory); !inventory.Equal(got, tc.left) {
			t.Errorf("%s: the inventory has %v, want %v", tc.reason, got, tc.left)
		}
	}
}
