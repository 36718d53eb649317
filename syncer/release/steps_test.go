package release

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// history is the statuses of the records, the newest first.
func history(obj *v2.HelmRelease) string {
	var statuses []string
	for _, s := range obj.Status.History {
		statuses = append(statuses, s.Status)
	}
	return strings.Join(statuses, " ")
}

// TestReconcile drives the way of a release through all of its steps: look,
// decide, act, record.
func TestReconcile(t *testing.T) {
	next := wanted
	next.ChartVersion = "2.0.0"
	refused := errors.New("the API server refuses it")
	drifted := jsondiff.DiffSet{{Type: jsondiff.DiffTypeUpdate, DesiredObject: named("ConfigMap", "a").Object()}}
	remedy := func(retries int, last bool, s v2.RemediationStrategy) *v2.UpgradeRemediation {
		return &v2.UpgradeRemediation{Retries: retries, RemediateLastFailure: &last, Strategy: &s}
	}
	for name, tc := range map[string]struct {
		reason string
		// first: nothing is stored yet.
		first   bool
		want    Desired
		arrange func(*v2.HelmRelease, *fakeWorld)
		taken   string
		ready   string
		history string
		out     Outcome
		fails   error
	}{
		"Install": {reason: "nothing is stored", first: true, want: wanted, taken: "install", ready: v2.InstallSucceededReason, history: "deployed"},
		"InSync":  {reason: "nothing is done twice", want: wanted, ready: v2.InstallSucceededReason, history: "deployed"},
		"Upgrade": {reason: "the chart has a new version", want: next, taken: "upgrade", ready: v2.UpgradeSucceededReason, history: "deployed superseded"},
		"InstallFails": {reason: "no retry is allowed by default", first: true, want: wanted,
			arrange: func(_ *v2.HelmRelease, m *fakeWorld) { m.fails[Install] = refused },
			taken:   "install", ready: v2.InstallFailedReason, history: "failed", out: Outcome{Stalled: true}},
		"InstallLost": {reason: "Helm wrote nothing, so there is nothing to remedy", first: true, want: wanted,
			arrange: func(_ *v2.HelmRelease, m *fakeWorld) { m.fails[Install], m.lost = refused, true },
			taken:   "install", ready: v2.InstallFailedReason, fails: refused},
		"InstallRemedied": {reason: "a failed install is uninstalled and tried again", first: true, want: wanted,
			arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Spec.Install = &v2.Install{Remediation: &v2.InstallRemediation{Retries: 1}}
				m.fails[Install] = refused
			}, taken: "install uninstall", ready: v2.UninstallSucceededReason, history: "uninstalled", out: Outcome{Again: true}},
		"InstallProtected": {reason: "a failure is no reason to delete data: it is tried again in place", first: true, want: wanted,
			arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Spec.Install = &v2.Install{Remediation: &v2.InstallRemediation{Retries: 1}}
				m.fails[Install] = refused
				m.manifest = manifestOf(named("PersistentVolumeClaim", "data"))
				m.live["data"] = owned(nil)
			}, taken: "install", ready: v2.InstallFailedReason, history: "failed", out: Outcome{Again: true}},
		"InstallKept": {reason: "what the chart keeps is in a Namespace of its own", first: true, want: wanted,
			arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Spec.Install = &v2.Install{Remediation: &v2.InstallRemediation{Retries: 1}}
				m.fails[Install] = refused
				m.manifest = "apiVersion: v1\nkind: Namespace\nmetadata: {name: apps}\n---\n" +
					"apiVersion: v1\nkind: Secret\nmetadata: {name: keys, namespace: apps, annotations: {helm.sh/resource-policy: keep}}\n"
				m.live["apps"], m.live["keys"] = owned(nil), owned(nil)
			}, taken: "install", ready: v2.InstallFailedReason, history: "failed", out: Outcome{Again: true}},
		"UpgradeRolledBack": {reason: "a failed upgrade goes back to what was there", want: next,
			arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Spec.Upgrade = &v2.Upgrade{Remediation: remedy(0, true, v2.RollbackRemediationStrategy)}
				m.fails[Upgrade] = refused
			}, taken: "upgrade rollback", ready: v2.RollbackSucceededReason, history: "deployed failed deployed", out: Outcome{Stalled: true}},
		"RollbackFails": {reason: "and says so if it cannot", want: next,
			arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Spec.Upgrade = &v2.Upgrade{Remediation: remedy(1, true, v2.RollbackRemediationStrategy)}
				m.fails[Upgrade], m.fails[Rollback] = refused, refused
			}, taken: "upgrade rollback", ready: v2.RollbackFailedReason, history: "failed failed deployed", out: Outcome{Again: true}},
		"Retry": {reason: "retries without end take the place of remedies", want: next,
			arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Spec.Upgrade = &v2.Upgrade{Strategy: &v2.UpgradeStrategy{Name: string(v2.ActionStrategyRetryOnFailure)}}
				m.fails[Upgrade] = refused
			}, taken: "upgrade", ready: v2.UpgradeFailedReason, history: "failed deployed", out: Outcome{After: 300000000000}},
		"Unlock": {reason: "a process died while it upgraded", want: next,
			arrange: func(_ *v2.HelmRelease, m *fakeWorld) { m.change(common.StatusPendingUpgrade) },
			taken:   "unlock upgrade", ready: v2.UpgradeSucceededReason, history: "deployed failed"},
		"ForcedLocked": {reason: "a rollback never ended, after which a person forced an upgrade", want: wanted,
			arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Annotations = map[string]string{fluxmeta.ReconcileRequestAnnotation: "now", v2.ForceRequestAnnotation: "now"}
				o.Spec.Upgrade = &v2.Upgrade{Remediation: remedy(0, true, v2.RollbackRemediationStrategy)}
				o.Status.LastAttemptedReleaseAction, o.Status.UpgradeFailures = v2.ReleaseActionUpgrade, 1
				locked := m.add("web", "apps", m.stored[0].Chart.Metadata, wanted.Values, common.StatusPendingRollback)
				o.Status.History = append(v2.Snapshots{snapshotOf(locked, "", v2.ReleaseActionRollback)}, o.Status.History...)
			}, taken: "unlock upgrade", ready: v2.UpgradeSucceededReason, history: "deployed failed deployed"},
		"Test": {reason: "tests run after an upgrade", want: next,
			arrange: func(o *v2.HelmRelease, _ *fakeWorld) { o.Spec.Test = &v2.Test{Enable: true} },
			taken:   "upgrade test", ready: v2.TestSucceededReason, history: "deployed superseded"},
		"TestFails": {reason: "a failed test is a failed release", want: next,
			arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Spec.Test = &v2.Test{Enable: true}
				m.fails[Test] = refused
			}, taken: "upgrade test", ready: v2.TestFailedReason, history: "deployed superseded", out: Outcome{Stalled: true}},
		"Corrected": {reason: "somebody changed an object", want: wanted,
			arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Spec.DriftDetection = &v2.DriftDetection{Mode: v2.DriftDetectionEnabled}
				m.diff = drifted
			}, taken: "correct cluster drift", ready: v2.InstallSucceededReason, history: "deployed"},
		"Warned": {reason: "and is told so only", want: wanted,
			arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Spec.DriftDetection = &v2.DriftDetection{Mode: v2.DriftDetectionWarn}
				m.diff = drifted
			}, ready: v2.InstallSucceededReason, history: "deployed"},
		"Moved": {reason: "the object points at another release now", want: wanted,
			arrange: func(o *v2.HelmRelease, _ *fakeWorld) { o.Spec.ReleaseName = "other" },
			taken:   "uninstall", ready: v2.UninstallSucceededReason, out: Outcome{Again: true}},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			if tc.first {
				obj.Status, m.stored = v2.HelmReleaseStatus{}, nil
			}
			if tc.arrange != nil {
				tc.arrange(obj, m)
			}
			out, err := m.newRun(obj, tc.want).reconcile(t.Context())
			if !errors.Is(err, tc.fails) || out != tc.out {
				t.Errorf("%s: reconcile() = %+v, %v; want %+v, %v", tc.reason, out, err, tc.out, tc.fails)
			}
			if got := strings.Join(m.taken, " "); got != tc.taken {
				t.Errorf("%s: took %q, want %q", tc.reason, got, tc.taken)
			}
			if got := conditions.GetReason(obj, fluxmeta.ReadyCondition); got != tc.ready {
				t.Errorf("%s: Ready is of reason %q, want %q", tc.reason, got, tc.ready)
			}
			if got := history(obj); got != tc.history {
				t.Errorf("%s: history is %q, want %q", tc.reason, got, tc.history)
			}
		})
	}
}

// TestPreservedRests: a release that was given more than is declared has nothing left to do where that is preserved.
func TestPreservedRests(t *testing.T) {
	type values = map[string]any
	for name, tc := range map[string]struct {
		reason string
		// values of calls, the last of which preserves none if resets is set.
		values []values
		resets bool
		taken  string
		config values
	}{
		"Other":   {"the rest is what was given before", []values{{"c": "d"}, {"c": "d"}, {"c": "d"}}, false, "upgrade", values{"a": "b", "c": "d"}},
		"Fewer":   {"it has them already", []values{{}, {}}, false, "", values{"a": "b"}},
		"Changed": {"they are others", []values{{"c": "d"}, {"c": "e"}, {"c": "e"}}, false, "upgrade upgrade", values{"a": "b", "c": "e"}},
		"Reset":   {"what was preserved goes", []values{{"c": "d"}, {"c": "d"}}, true, "upgrade upgrade", values{"c": "d"}},
		"Null":    {"a value that is taken away is gone after two upgrades, as with Helm", []values{{"a": nil}, {"a": nil}, {"a": nil}}, false, "upgrade upgrade", values{"a": nil}},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			var before *Releases
			for i, given := range tc.values {
				obj.Spec.Upgrade = &v2.Upgrade{PreserveValues: !tc.resets || i+1 < len(tc.values)}
				want := wanted
				want.Values, want.ConfigDigest = given, ConfigDigest(given)
				n := m.newRun(obj, want)
				if before != nil {
					n.Releases = before // which remembers
				}
				before = n.Releases
				out, err := n.reconcile(t.Context())
				if last := i+1 == len(tc.values); err != nil || last && (out != (Outcome{}) || !conditions.IsReady(obj)) {
					t.Errorf("%s: call %d ends with %+v, %v", tc.reason, i, out, err)
				}
			}
			if got := strings.Join(m.taken, " "); got != tc.taken {
				t.Errorf("%s: took %q, want %q", tc.reason, got, tc.taken)
			}
			if got := m.stored[len(m.stored)-1].Config; ConfigDigest(got) != ConfigDigest(tc.config) {
				t.Errorf("%s: the release has %v, want %v", tc.reason, got, tc.config)
			}
		})
	}
}

// TestInstallInPlace: an installation that may not be uninstalled is tried again as often as it would be
// otherwise, whatever the spec says of upgrades.
func TestInstallInPlace(t *testing.T) {
	for name, tc := range map[string]struct {
		reason           string
		retries, upgrade int
		last             bool
		// works is the number of the upgrade that goes well.
		works int
		taken string
		out   Outcome
		why   string
	}{
		"Spent":   {"it has its retries", 3, 0, false, 0, "install upgrade upgrade upgrade", Outcome{Stalled: true}, "Failed to install after 4 attempt(s)"},
		"Upgrade": {"those of upgrades do not count", 2, 5, false, 0, "install upgrade upgrade", Outcome{Stalled: true}, "Failed to install after 3 attempt(s)"},
		"Last":    {"nor is it uninstalled at the end", 1, 0, true, 0, "install upgrade", Outcome{Stalled: true}, "Failed to install after 2 attempt(s)"},
		"Endless": {"it goes on", -1, 0, false, 0, "install upgrade upgrade upgrade upgrade upgrade", Outcome{Again: true}, ""},
		"Works":   {"what was slow is there by then", 3, 0, false, 2, "install upgrade upgrade", Outcome{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Status, m.stored = v2.HelmReleaseStatus{}, nil
			obj.Spec.Install = &v2.Install{Remediation: &v2.InstallRemediation{Retries: tc.retries, RemediateLastFailure: &tc.last}}
			if tc.upgrade > 0 {
				obj.Spec.Upgrade = &v2.Upgrade{Remediation: &v2.UpgradeRemediation{Retries: tc.upgrade}}
			}
			m.fails[Install], m.fails[Upgrade] = errors.New("timed out"), errors.New("timed out")
			m.manifest, m.live["data"] = manifestOf(named("PersistentVolumeClaim", "data")), owned(nil)
			out := Outcome{Again: true}
			for i := 0; i < 6 && out.Again; i++ {
				if i > 0 && i == tc.works {
					delete(m.fails, Upgrade)
				}
				var err error
				if out, err = m.newRun(obj, wanted).reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.Join(m.taken, " "); got != tc.taken || out != tc.out {
				t.Errorf("%s: took %q, and then %+v; want %q and %+v", tc.reason, got, out, tc.taken, tc.out)
			}
			if says := conditions.GetMessage(obj, fluxmeta.StalledCondition); says != tc.why {
				t.Errorf("%s: Stalled says %q, want %q", tc.reason, says, tc.why)
			}
		})
	}
}

// TestRemedyClaimed: an object that another owner is to have keeps a failed release from being
// uninstalled. One of which that cannot be found out does not: its cluster may be away for months.
func TestRemedyClaimed(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		kind   string
		claim  apply.Claim
		taken  string
	}{
		"Declared":  {"another owner declares it", "ConfigMap", apply.Claim{Owner: "HelmRelease/x/y", Kind: apply.Declared}, "install"},
		"Unsure":    {"another owner may have it", "ConfigMap", apply.Claim{Owner: "HelmRelease/x/y", Unsure: true}, "install uninstall"},
		"Protected": {"the same, and it is data", "PersistentVolumeClaim", apply.Claim{Owner: "HelmRelease/x/y", Unsure: true}, "install"},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Status, m.stored = v2.HelmReleaseStatus{}, nil
			obj.Spec.Install = &v2.Install{Remediation: &v2.InstallRemediation{Retries: 1}}
			m.fails[Install] = errors.New("the API server refuses it")
			m.manifest, m.live["a"] = manifestOf(named(tc.kind, "a")), owned(nil)
			n := m.newRun(obj, wanted)
			n.guard.claimed = func(context.Context, inventory.Entry, inventory.Entry) (apply.Claim, error) { return tc.claim, nil }
			if _, err := n.reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(m.taken, " "); got != tc.taken {
				t.Errorf("%s: took %q, want %q", tc.reason, got, tc.taken)
			}
		})
	}
}

// TestRemedyBelow: a failed release is uninstalled once its Kustomizations and HelmReleases have taken down what they
// applied, as an account of the release may be theirs (read 929).
func TestRemedyBelow(t *testing.T) {
	obj, m := inSync(t)
	obj.Status, m.stored = v2.HelmReleaseStatus{}, nil
	obj.Spec.Install = &v2.Install{Remediation: &v2.InstallRemediation{Retries: 1}}
	m.fails[Install], m.manifest = errors.New("it is never ready"), manifestOf(named("Secret", "keys"), named("HelmRelease", "below"))
	m.live = map[string]inventory.Live{"keys": owned(nil), "below": owned(nil)}
	m.lingers = map[string]bool{"below": true}
	for _, step := range []struct {
		reason, taken string
		out           Outcome
	}{
		{"it takes down what it applied from now on", "install", Outcome{After: clusterPoll}},
		{"it still does", "install", Outcome{After: clusterPoll}},
		{"it is gone", "install uninstall install", Outcome{Stalled: true}},
	} {
		if step.out.Stalled {
			m.live["below"] = inventory.Live{State: inventory.Absent}
		}
		out, err := m.newRun(obj, wanted).reconcile(t.Context())
		if got := strings.Join(m.taken, " "); err != nil || out != step.out || got != step.taken || strings.Join(m.deleted, " ") != "below" {
			t.Fatalf("%s: reconcile() = %+v, %v, deleted %v and took %q", step.reason, out, err, m.deleted, got)
		}
		ready, waits := conditions.Get(obj, fluxmeta.ReadyCondition), conditions.GetMessage(obj, fluxmeta.ReconcilingCondition)
		if says := waits == "Waiting for the end of HelmRelease/apps/below"; ready == nil || ready.Status != metav1.ConditionFalse || says == step.out.Stalled {
			t.Errorf("%s: %v, and it says %q", step.reason, ready, waits)
		}
	}
}

// TestRemedyFixed: a failed release is made good while its remediation takes down its HelmReleases. An upgrade would
// take what goes for what is there (read 935).
func TestRemedyFixed(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		left   []inventory.Entry
		ready  string
		taken  string
	}{
		"Fixed": {"all is made anew", nil, "Waiting for the end of HelmRelease/apps/below", "install uninstall install"},
		"Left": {"data that was dropped before and waits for a person does not hold that",
			[]inventory.Entry{named("PersistentVolumeClaim", "data")}, "", "install upgrade"},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Status, m.stored = v2.HelmReleaseStatus{}, nil
			obj.Spec.Install = &v2.Install{Remediation: &v2.InstallRemediation{Retries: 3}}
			m.fails[Install], m.manifest = errors.New("it is never ready"), manifestOf(named("ConfigMap", "settings"), named("HelmRelease", "below"))
			m.live = map[string]inventory.Live{"settings": owned(nil), "below": owned(nil), "data": owned(nil)}
			m.lingers = map[string]bool{"below": true}
			obj.Status.Inventory = refsOf(tc.left)
			if out, err := m.newRun(obj, wanted).reconcile(t.Context()); err != nil || out != (Outcome{After: clusterPoll}) {
				t.Fatalf("%s: reconcile() = %+v, %v", tc.reason, out, err)
			}
			delete(m.fails, Install)
			obj.Generation++
			out, err := m.newRun(obj, wanted).reconcile(t.Context())
			if tc.ready != "" && (err != nil || out != (Outcome{After: clusterPoll}) || conditions.GetMessage(obj, fluxmeta.ReadyCondition) != tc.ready) {
				t.Errorf("%s: reconcile() = %+v, %v, and it is %v", tc.reason, out, err, conditions.Get(obj, fluxmeta.ReadyCondition))
			}
			m.live["below"] = inventory.Live{State: inventory.Absent}
			_, err = m.newRun(obj, wanted).reconcile(t.Context())
			if got := strings.Join(m.taken, " "); err != nil || got != tc.taken {
				t.Errorf("%s: took %q, want %q: %v", tc.reason, got, tc.taken, err)
			}
		})
	}
}

// TestLeaveReverted: what made a HelmRelease leave its release is reverted while the Kustomizations and HelmReleases of
// that take down what they applied. It is not ready without them, and makes them anew (read 935).
func TestLeaveReverted(t *testing.T) {
	below, settings, prod := named("HelmRelease", "below"), named("ConfigMap", "settings"), named("Cluster", "prod")
	for name, tc := range map[string]struct {
		reason string
		has    []inventory.Entry
		move   func(*v2.HelmRelease)
		out    Outcome
		taken  string
	}{
		"Name": {"all is made anew", []inventory.Entry{below, settings}, func(o *v2.HelmRelease) { o.Spec.ReleaseName = "other" },
			Outcome{After: clusterPoll}, "uninstall install"},
		"Namespace": {"the same", []inventory.Entry{below, settings}, func(o *v2.HelmRelease) { o.Spec.TargetNamespace = "other" },
			Outcome{After: clusterPoll}, "uninstall install"},
		"Cluster": {"a Cluster that waited for its turn stays", []inventory.Entry{below, prod}, func(o *v2.HelmRelease) { o.Spec.ReleaseName = "other" },
			Outcome{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			m.manifest = manifestOf(tc.has...)
			m.stored[0].Manifest = m.manifest
			obj.Status.History[0] = snapshotOf(m.stored[0], "", v2.ReleaseActionInstall)
			obj.Status.Inventory = refsOf(tc.has)
			obj.Annotations = map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed}
			m.live = map[string]inventory.Live{"below": owned(nil), "settings": owned(nil), "prod": owned(nil)}
			m.lingers = map[string]bool{"below": true}
			before := obj.Spec.DeepCopy()
			tc.move(obj)
			obj.Generation++
			if out, err := m.newRun(obj, wanted).reconcile(t.Context()); err != nil || out != (Outcome{After: clusterPoll}) || strings.Join(m.deleted, " ") != "below" {
				t.Fatalf("%s: reconcile() = %+v, %v, and deleted %v", tc.reason, out, err, m.deleted)
			}
			obj.Spec = *before
			obj.Generation++
			out, err := m.newRun(obj, wanted).reconcile(t.Context())
			if waits := tc.taken != ""; err != nil || out != tc.out || conditions.IsReady(obj) == waits || len(m.taken) > 0 {
				t.Errorf("%s: reconcile() = %+v, %v, it took %v and is %v", tc.reason, out, err, m.taken, conditions.Get(obj, fluxmeta.ReadyCondition))
			}
			m.live["below"] = inventory.Live{State: inventory.Absent}
			if out, err := m.newRun(obj, wanted).reconcile(t.Context()); err != nil || out != (Outcome{}) || !conditions.IsReady(obj) {
				t.Errorf("%s: reconcile() = %+v, %v in the end, and it is %v", tc.reason, out, err, conditions.Get(obj, fluxmeta.ReadyCondition))
			}
			if got := strings.Join(m.taken, " "); got != tc.taken || strings.Join(m.deleted, " ") != "below" {
				t.Errorf("%s: took %q, want %q, and deleted %v", tc.reason, got, tc.taken, m.deleted)
			}
		})
	}
}

// TestDriftedGoes: drift that nobody looks for any more is not told of.
func TestDriftedGoes(t *testing.T) {
	for name, mode := range map[string]*v2.DriftDetection{"Removed": nil, "Disabled": {Mode: v2.DriftDetectionDisabled}} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Spec.DriftDetection = &v2.DriftDetection{Mode: v2.DriftDetectionWarn}
			m.diff = jsondiff.DiffSet{{Type: jsondiff.DiffTypeUpdate, DesiredObject: named("ConfigMap", "a").Object()}}
			for _, drifted := range []bool{true, false} {
				if _, err := m.newRun(obj, wanted).reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
				if conditions.Has(obj, v2.DriftedCondition) != drifted || !conditions.IsReady(obj) {
					t.Errorf("drift is looked for: %t, and it has %v", drifted, obj.Status.Conditions)
				}
				obj.Spec.DriftDetection = mode
			}
		})
	}
}

// TestMovedWaits: what the object pointed at before goes to another owner first. Until then nothing of what it
// declares now is there: who depends on it, and its Rollout, must not take it for done.
func TestMovedWaits(t *testing.T) {
	settings := named("ConfigMap", "settings")
	for name, move := range map[string]func(*v2.HelmRelease){
		"Name":      func(o *v2.HelmRelease) { o.Spec.ReleaseName = "other" },
		"Namespace": func(o *v2.HelmRelease) { o.Spec.TargetNamespace = "other" },
		"Storage":   func(o *v2.HelmRelease) { o.Spec.StorageNamespace = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			m.stored[0].Manifest = manifestOf(settings)
			obj.Status.History[0] = snapshotOf(m.stored[0], "", v2.ReleaseActionInstall)
			obj.Status.Inventory = refsOf([]inventory.Entry{settings})
			m.live["settings"] = owned(nil)
			before := obj.Spec.DeepCopy()
			move(obj)
			obj.Generation++
			n := m.newRun(obj, wanted)
			n.guard.claimed = func(context.Context, inventory.Entry, inventory.Entry) (apply.Claim, error) {
				return apply.Claim{Owner: "Kustomization/apps/next", Kind: apply.Declared}, nil
			}
			out, err := n.reconcile(t.Context())
			if err != nil || out.HandOver == nil || out.After != handOverPoll || len(m.taken)+len(m.deleted) > 0 {
				t.Fatalf("reconcile() = %+v, %v, took %v and deleted %v; want it to wait", out, err, m.taken, m.deleted)
			}
			if conditions.IsTrue(obj, fluxmeta.ReadyCondition) {
				t.Errorf("it is %v", conditions.Get(obj, fluxmeta.ReadyCondition))
			}
			obj.Spec = *before
			if out, err := m.newRun(obj, wanted).reconcile(t.Context()); err != nil || out != (Outcome{}) || !conditions.IsReady(obj) {
				t.Errorf("reconcile() = %+v, %v once the commit is reverted, and it is %v", out, err, conditions.Get(obj, fluxmeta.ReadyCondition))
			}
		})
	}
}

// TestReconcileCancelled: a call that was cancelled writes the status once more.
func TestReconcileCancelled(t *testing.T) {
	obj, m := inSync(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	before := m.saves
	if _, err := m.newRun(obj, wanted).reconcile(ended); !errors.Is(err, context.Canceled) || m.saves != before+1 || len(m.taken) > 0 {
		t.Errorf("reconcile() = %v with %d writes and %v", err, m.saves-before, m.taken)
	}
}

// TestStoppedWithin: the process is stopped in the middle of an action. The next one knows what became of that,
// and takes it for no failure of the release.
func TestStoppedWithin(t *testing.T) {
	next := wanted
	next.ChartVersion = "2.0.0"
	cut := errors.New("context canceled")
	retries := func(o *v2.HelmRelease) {
		o.Spec.Install = &v2.Install{Remediation: &v2.InstallRemediation{Retries: 1}}
		o.Spec.Upgrade = &v2.Upgrade{Remediation: &v2.UpgradeRemediation{Retries: 1}}
	}
	for name, tc := range map[string]struct {
		reason string
		first  bool
		spec   func(*v2.HelmRelease)
		fails  []Action
		// within is the action in which it is stopped, as a number.
		within   int
		history  string
		failures int64
		// still are the actions that fail afterwards, too.
		still []Action
		taken string
		ready string
	}{
		"Install": {reason: "no retry is allowed by default, and none is used up", first: true, fails: []Action{Install}, within: 1, history: "failed",
			taken: "upgrade", ready: v2.UpgradeSucceededReason},
		"Forced": {reason: "what a person forced is done by the next process", spec: func(o *v2.HelmRelease) {
			o.Annotations = map[string]string{fluxmeta.ReconcileRequestAnnotation: "now", v2.ForceRequestAnnotation: "now"}
		}, fails: []Action{Upgrade}, within: 1, history: "failed deployed", taken: "upgrade", ready: v2.UpgradeSucceededReason},
		"InstallBroken": {reason: "what goes on is the installation still, with the retries of that", first: true, spec: retries, fails: []Action{Install}, within: 1, history: "failed",
			still: []Action{Upgrade, Install}, taken: "upgrade uninstall", ready: v2.UninstallSucceededReason},
		"Upgrade":   {reason: "nor by an upgrade", fails: []Action{Upgrade}, within: 1, history: "failed deployed", taken: "upgrade", ready: v2.UpgradeSucceededReason},
		"Broken":    {reason: "what is there to go back to is not forgotten", spec: retries, fails: []Action{Upgrade}, within: 1, history: "failed deployed", still: []Action{Upgrade}, taken: "upgrade rollback", ready: v2.RollbackSucceededReason},
		"Rollback":  {reason: "it is rolled back, whatever happens", spec: retries, fails: []Action{Upgrade, Rollback}, within: 2, history: "failed failed deployed", failures: 1, taken: "rollback", ready: v2.RollbackSucceededReason},
		"Completed": {reason: "the action had ended well", within: 1, history: "deployed superseded", ready: v2.UpgradeSucceededReason},
		"Test": {reason: "a test that was cut off has not failed", spec: func(o *v2.HelmRelease) { o.Spec.Test = &v2.Test{Enable: true} }, fails: []Action{Test}, within: 2, history: "deployed superseded",
			taken: "test", ready: v2.TestSucceededReason},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			if tc.first {
				obj.Status, m.stored = v2.HelmReleaseStatus{}, nil
			}
			if tc.spec != nil {
				tc.spec(obj)
			}
			for _, a := range tc.fails {
				m.fails[a] = cut
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := m.newRun(obj, next)
			var saved *v2.HelmReleaseStatus
			n.req.Save = func(ctx context.Context) error {
				if ctx.Err() == nil {
					saved = obj.Status.DeepCopy()
				}
				return ctx.Err()
			}
			n.req.SaveLast = n.req.Save
			helm, begun := n.helm, 0
			n.helm = func(ctx context.Context, wrote func(*helmrelease.Release)) actor {
				if begun++; begun == tc.within {
					cancel()
				}
				return helm(ctx, wrote)
			}
			if _, err := n.reconcile(ctx); !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: reconcile() = %v", tc.reason, err)
			}
			obj.Status, m.taken, m.fails = *saved, nil, map[Action]error{}
			if got := history(obj); got != tc.history || obj.Status.InstallFailures+obj.Status.UpgradeFailures != tc.failures {
				t.Errorf("%s: on record is %q with %d and %d failures, want %q with %d", tc.reason, got, obj.Status.InstallFailures, obj.Status.UpgradeFailures, tc.history, tc.failures)
			}
			if obj.Status.LastHandledForceAt != "" {
				t.Errorf("%s: the request to force it counts as handled", tc.reason)
			}
			for _, a := range tc.still {
				m.fails[a] = errors.New("it is never ready")
			}
			if out, err := m.newRun(obj, next).reconcile(t.Context()); err != nil || out.Stalled {
				t.Errorf("%s: reconcile() = %+v, %v afterwards", tc.reason, out, err)
			}
			if got := strings.Join(m.taken, " "); got != tc.taken {
				t.Errorf("%s: took %q afterwards, want %q", tc.reason, got, tc.taken)
			}
			if got := conditions.GetReason(obj, fluxmeta.ReadyCondition); got != tc.ready {
				t.Errorf("%s: Ready is of reason %q, want %q", tc.reason, got, tc.ready)
			}
		})
	}
}

// TestCollect: what earlier revisions left behind goes when it may.
func TestCollect(t *testing.T) {
	config, data, cluster := named("ConfigMap", "settings"), named("PersistentVolumeClaim", "data"), named("Cluster", "prod")
	deployer, web := named("ServiceAccount", "deployer"), named("HelmRelease", "web")
	keys, template := named("Secret", "keys"), inventory.Entry{Namespace: "apps", Name: "old", Group: "infrastructure.cluster.x-k8s.io", Kind: "AWSMachineTemplate", Version: "v1beta2"}
	namespace := inventory.Entry{Name: "apps", Kind: "Namespace", Version: "v1"}
	needed := owned(func(l *inventory.Live) {
		l.OfCluster, l.Credential, l.Confirmed = "prod", "AWSClusterStaticIdentity/prod", true
	})
	for name, tc := range map[string]struct {
		reason    string
		leftovers []inventory.Entry
		declared  []inventory.Entry
		live      map[string]inventory.Live
		fenced    error
		deleted   string
		left      []inventory.Entry
		held      bool
		after     time.Duration
		fails     bool
		kept      string
		lowerTier bool
	}{
		"Last": {reason: "a HelmRelease of the chart takes down what it installed as an account of the chart (read 917)", leftovers: []inventory.Entry{deployer, config, web},
			live:    map[string]inventory.Live{"web": owned(nil), "deployer": owned(nil), "settings": owned(nil)},
			deleted: "web", left: []inventory.Entry{deployer, config, web}, after: clusterPoll, kept: "ConfigMap/apps/settings ServiceAccount/apps/deployer"},
		"LastGoing": {reason: "it still does", leftovers: []inventory.Entry{deployer, web},
			live: map[string]inventory.Live{"web": owned(func(l *inventory.Live) { l.Deleting, l.Since = true, at.Add(time.Minute-inventory.LastBound) }), "deployer": owned(nil)},
			left: []inventory.Entry{deployer, web}, after: clusterPoll, kept: "ServiceAccount/apps/deployer"},
		"LastLate": {reason: "it does not get done", leftovers: []inventory.Entry{deployer, web},
			live:    map[string]inventory.Live{"web": owned(func(l *inventory.Live) { l.Deleting, l.Since = true, at.Add(-inventory.LastBound) }), "deployer": owned(nil)},
			deleted: "deployer"},
		"LastGone": {reason: "it is", leftovers: []inventory.Entry{deployer, web},
			live: map[string]inventory.Live{"web": {State: inventory.Absent}, "deployer": owned(nil)}, deleted: "deployer"},
		"LastUnknown": {reason: "it may be on its way out", leftovers: []inventory.Entry{deployer, web},
			live: map[string]inventory.Live{"web": {Problem: "no route to host"}, "deployer": owned(nil)},
			left: []inventory.Entry{deployer, web}, held: true, after: overduePoll, kept: "ServiceAccount/apps/deployer"},
		"LastHeld": {reason: "it stays until a person decides about its Clusters, and takes them down then (read 929)", leftovers: []inventory.Entry{deployer, web},
			live: map[string]inventory.Live{"web": owned(func(l *inventory.Live) { l.Holds = []string{"Cluster/apps/prod"} }), "deployer": owned(nil)},
			left: []inventory.Entry{deployer, web}, held: true, after: overduePoll, kept: "ServiceAccount/apps/deployer"},
		"LastElsewhere": {reason: "the agent of another cluster may be gone", leftovers: []inventory.Entry{deployer, web}, lowerTier: true,
			live:    map[string]inventory.Live{"web": owned(func(l *inventory.Live) { l.Confirmed = true }), "deployer": owned(nil)},
			deleted: "deployer web"},
		"Nothing":   {reason: "no request for nothing"},
		"Ordinary":  {reason: "the chart brings it back", leftovers: []inventory.Entry{config}, live: map[string]inventory.Live{"settings": owned(nil)}, deleted: "settings"},
		"Data":      {reason: "nobody brings it back", leftovers: []inventory.Entry{data}, live: map[string]inventory.Live{"data": owned(nil)}, left: []inventory.Entry{data}, held: true},
		"Confirmed": {reason: "a person confirmed it", leftovers: []inventory.Entry{cluster}, live: map[string]inventory.Live{"prod": owned(func(l *inventory.Live) { l.Confirmed = true })}, deleted: "prod"},
		"Queued": {reason: "Clusters that were confirmed go one after the other", leftovers: []inventory.Entry{cluster},
			live: map[string]inventory.Live{"prod": owned(func(l *inventory.Live) { l.Confirmed = true }), "elsewhere": {State: inventory.Present, Deleting: true}},
			left: []inventory.Entry{cluster}, after: clusterPoll, kept: "Cluster/apps/prod"},
		"Keys": {reason: "they go when the Cluster is gone, which nothing tells", leftovers: []inventory.Entry{cluster, keys},
			live:    map[string]inventory.Live{"prod": owned(func(l *inventory.Live) { l.Confirmed = true }), "keys": needed},
			deleted: "prod", left: []inventory.Entry{keys}, after: clusterPoll, kept: "Secret/apps/keys"},
		"KeysLeft": {reason: "the Cluster went before, or is another owner's", leftovers: []inventory.Entry{keys},
			live: map[string]inventory.Live{"keys": needed}, left: []inventory.Entry{keys}, after: overduePoll, kept: "Secret/apps/keys"},
		"Namespace": {reason: "its end would take the keys along, confirmed or not", leftovers: []inventory.Entry{namespace, cluster, keys},
			live:    map[string]inventory.Live{"apps": owned(nil), "prod": owned(func(l *inventory.Live) { l.Confirmed = true }), "keys": needed},
			deleted: "prod", left: []inventory.Entry{namespace, keys}, after: clusterPoll, kept: "Namespace/apps Secret/apps/keys"},
		"NamespaceOfCluster": {reason: "what nobody knows of may need what is in it", leftovers: []inventory.Entry{namespace, cluster},
			live:    map[string]inventory.Live{"apps": owned(func(l *inventory.Live) { l.Confirmed = true }), "prod": owned(func(l *inventory.Live) { l.Confirmed = true })},
			deleted: "prod", left: []inventory.Entry{namespace}, after: clusterPoll, kept: "Namespace/apps"},
		"NamespaceOfUnknown": {reason: "it may be what a Cluster needs", leftovers: []inventory.Entry{namespace, keys},
			live: map[string]inventory.Live{"apps": owned(func(l *inventory.Live) { l.Confirmed = true }), "keys": {Problem: "no route to host"}},
			left: []inventory.Entry{namespace, keys}, held: true, kept: "Namespace/apps"},
		"NamespaceOfUnconfirmedKeys": {reason: "a person is asked about the keys, and its end would take them along before", leftovers: []inventory.Entry{namespace, keys},
			live: map[string]inventory.Live{"apps": owned(func(l *inventory.Live) { l.Confirmed = true }), "keys": owned(func(l *inventory.Live) { l.Credential = "controllers of AWSCluster/apps/prod" })},
			left: []inventory.Entry{namespace, keys}, held: true, kept: "Namespace/apps"},
		"NamespaceAfterAll": {reason: "nothing is in it that has to go before", leftovers: []inventory.Entry{namespace, keys},
			live:    map[string]inventory.Live{"apps": owned(func(l *inventory.Live) { l.Confirmed = true }), "keys": owned(nil)},
			deleted: "apps keys"},
		"NamespaceOfDeclared": {reason: "the chart still has a Cluster in it", leftovers: []inventory.Entry{namespace}, declared: []inventory.Entry{cluster},
			live: map[string]inventory.Live{"apps": owned(func(l *inventory.Live) { l.Confirmed = true }), "prod": owned(nil)},
			left: []inventory.Entry{namespace}, kept: "Namespace/apps"},
		"NamespaceOfDeclaredKeys": {reason: "or keys that a Cluster elsewhere uses", leftovers: []inventory.Entry{namespace}, declared: []inventory.Entry{keys},
			live: map[string]inventory.Live{"apps": owned(func(l *inventory.Live) { l.Confirmed = true }), "keys": owned(func(l *inventory.Live) { l.Credential = "AWSClusterStaticIdentity/prod" })},
			left: []inventory.Entry{namespace}, kept: "Namespace/apps"},
		"NamespaceInhabited": {reason: "its end would take along what the chart still has in it", leftovers: []inventory.Entry{namespace}, declared: []inventory.Entry{data},
			live: map[string]inventory.Live{"apps": owned(nil), "data": owned(nil)}, left: []inventory.Entry{namespace}, held: true},
		"NamespaceInhabitedConfirmed": {reason: "a person wants that", leftovers: []inventory.Entry{namespace}, declared: []inventory.Entry{data},
			live: map[string]inventory.Live{"apps": owned(func(l *inventory.Live) { l.Confirmed = true }), "data": owned(nil)}, deleted: "apps"},
		"OldTemplate": {reason: "its Cluster stays", leftovers: []inventory.Entry{template},
			live: map[string]inventory.Live{"old": owned(func(l *inventory.Live) { l.OfCluster = "prod" })}, left: []inventory.Entry{template}, kept: "AWSMachineTemplate/apps/old"},
		"Unknown": {reason: "what cannot be read may be anything", leftovers: []inventory.Entry{config},
			live: map[string]inventory.Live{"settings": {Problem: "no route to host"}}, left: []inventory.Entry{config}, held: true},
		"Gone":   {reason: "there is nothing to delete", leftovers: []inventory.Entry{config}, live: map[string]inventory.Live{"settings": {State: inventory.Absent}}},
		"Fenced": {reason: "another process may have taken over", leftovers: []inventory.Entry{config}, live: map[string]inventory.Live{"settings": owned(nil)}, fenced: errors.New("paused"), left: []inventory.Entry{config}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			m.live, m.fenced = tc.live, tc.fenced
			n := m.newRun(obj, wanted)
			if _, err := n.read(t.Context()); err != nil {
				t.Fatal(err)
			}
			kept := noted(n)
			n.guard.lowerTier = tc.lowerTier
			n.found.leftovers = tc.leftovers
			obj.Status.Inventory = refsOf(slices.Concat(tc.declared, tc.leftovers))
			out, err := n.finish(t.Context())
			if (err != nil) != tc.fails || out != nil && (out.Held != tc.held || out.After != tc.after) {
				t.Errorf("%s: finish() = %v, %v", tc.reason, out, err)
			}
			if got := strings.Join(m.deleted, " "); got != tc.deleted {
				t.Errorf("%s: deleted %q, want %q", tc.reason, got, tc.deleted)
			}
			want := slices.Concat(tc.declared, tc.left)
			if got := entriesOf(obj.Status.Inventory); len(inventory.Difference(got, want))+len(inventory.Difference(want, got)) > 0 {
				t.Errorf("%s: the inventory has %v, want %v", tc.reason, got, want)
			}
			if *kept != tc.kept {
				t.Errorf("%s: on record is %q, want %q", tc.reason, *kept, tc.kept)
			}
			waits := (slices.Contains(tc.left, keys) || slices.Contains(tc.left, namespace)) && !tc.held || tc.after == clusterPoll && !slices.Contains(tc.left, web)
			if says := conditions.GetMessage(obj, fluxmeta.ReadyCondition); strings.Contains(says, "wait for Clusters to be gone") != waits {
				t.Errorf("%s: Ready says %q", tc.reason, says)
			}
			if says := conditions.GetMessage(obj, fluxmeta.ReadyCondition); strings.Contains(says, "until HelmRelease/apps/web is gone") != (slices.Contains(tc.left, web) && !tc.held) {
				t.Errorf("%s: Ready says %q", tc.reason, says)
			}
			if blocked := conditions.IsTrue(obj, v1alpha1.PruneBlockedCondition); blocked != tc.held {
				t.Errorf("%s: PruneBlocked is %t", tc.reason, blocked)
			}
		})
	}
}

// TestReadySince: Ready says since when it is as it is, however often the release is looked at.
func TestReadySince(t *testing.T) {
	config, keys := named("ConfigMap", "settings"), named("Secret", "keys")
	for name, tc := range map[string]struct {
		reason    string
		leftovers []inventory.Entry
		fenced    error
	}{
		"InSync": {reason: "nothing is left to do"},
		"Keeps":  {reason: "keys wait for a Cluster, perhaps for months", leftovers: []inventory.Entry{keys}},
		"Fails":  {reason: "something cannot be deleted", leftovers: []inventory.Entry{config}, fenced: errors.New("paused")},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			m.fenced = tc.fenced
			m.live = map[string]inventory.Live{"settings": owned(nil), "keys": owned(func(l *inventory.Live) {
				l.OfCluster, l.Credential, l.Confirmed = "prod", "AWSClusterStaticIdentity/prod", true
			})}
			obj.Status.Inventory = refsOf(tc.leftovers)
			look := func() metav1.Condition {
				n := m.newRun(obj, wanted)
				if _, err := n.read(t.Context()); err != nil {
					t.Fatal(err)
				}
				n.found.leftovers = tc.leftovers
				if _, err := n.finish(t.Context()); (err != nil) != (tc.fenced != nil) {
					t.Fatal(err)
				}
				return *conditions.Get(obj, fluxmeta.ReadyCondition)
			}
			look()
			for i := range obj.Status.Conditions {
				obj.Status.Conditions[i].LastTransitionTime = metav1.NewTime(at.Add(-time.Hour))
			}
			if ready := look(); !ready.LastTransitionTime.Time.Equal(at.Add(-time.Hour)) {
				t.Errorf("%s: it is so since %s: %q", tc.reason, ready.LastTransitionTime, ready.Message)
			}
		})
	}
}

// noted is what a run puts on record of what goes later.
func noted(n *run) *string {
	text := "nothing was said"
	n.req.Keep = func(k *v1alpha1.HeldKept) {
		if text = ""; k != nil {
			text = strings.Join(k.Objects, " ")
		}
	}
	return &text
}

// TestUpgradeDropsCluster: keys that an upgrade drops together with their Cluster are looked at until
// that is gone, and go then. The upgrade itself deleted the Cluster.
func TestUpgradeDropsCluster(t *testing.T) {
	obj, m := inSync(t)
	obj.Status, m.stored = v2.HelmReleaseStatus{}, nil
	reconcile := func(version string) Outcome {
		t.Helper()
		want := wanted
		want.ChartVersion = version
		out, err := m.newRun(obj, want).reconcile(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	cluster, keys := named("Cluster", "prod"), named("Secret", "keys")
	m.manifest, m.drops, m.lingers = manifestOf(cluster, keys), []inventory.Entry{cluster, keys}, map[string]bool{"prod": true}
	reconcile("1.0.0")
	m.live["prod"] = owned(func(l *inventory.Live) { l.Confirmed = true })
	m.live["keys"] = owned(func(l *inventory.Live) {
		l.OfCluster, l.Credential, l.Confirmed = "prod", "AWSClusterStaticIdentity/prod", true
	})
	m.manifest = manifestOf(named("ConfigMap", "settings"))
	for range 2 {
		if out := reconcile("2.0.0"); out.After != overduePoll || !slices.Equal(m.deleted, []string{"prod"}) || !slices.Contains(entriesOf(obj.Status.Inventory), keys) {
			t.Fatalf("reconcile() = %+v and deleted %v, want the keys to wait for the Cluster; the inventory has %v", out, m.deleted, entriesOf(obj.Status.Inventory))
		}
	}
	m.live["prod"], m.live["keys"] = inventory.Live{State: inventory.Absent}, owned(func(l *inventory.Live) { l.Confirmed = true })
	if out := reconcile("2.0.0"); out != (Outcome{}) || !slices.Equal(m.deleted, []string{"prod", "keys"}) {
		t.Errorf("reconcile() = %+v and deleted %v, want the keys to follow", out, m.deleted)
	}
}

// TestUninstallGuard: with one object that must stay nothing is touched.
func TestUninstallGuard(t *testing.T) {
	config, data, cluster := named("ConfigMap", "settings"), named("PersistentVolumeClaim", "data"), named("Cluster", "prod")
	extra := named("ConfigMap", "extra")
	definition := inventory.Entry{Name: "widgets.shop.io", Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Version: "v1"}
	for name, tc := range map[string]struct {
		reason string
		has    []inventory.Entry
		// left is what an earlier revision had, and has not been deleted since.
		left      []inventory.Entry
		live      map[string]inventory.Live
		kept      map[string]bool
		confirmed bool
		// lost: Helm's storage has nothing. uninstalled: it has a revision that went before.
		lost, uninstalled bool
		deleted           string
		taken             string
		out               Outcome
	}{
		"Ordinary": {reason: "nothing speaks against it", has: []inventory.Entry{config}, live: map[string]inventory.Live{"settings": owned(nil)}, taken: "uninstall"},
		"Data":     {reason: "a person has to decide", has: []inventory.Entry{config, data}, live: map[string]inventory.Live{"settings": owned(nil), "data": owned(nil)}, out: Outcome{Held: true, After: overduePoll}},
		"Unknown":  {reason: "what cannot be read may be anything", has: []inventory.Entry{config}, live: map[string]inventory.Live{"settings": {Problem: "no route to host"}}, confirmed: true, out: Outcome{Held: true, After: overduePoll}},
		"Decided": {reason: "a confirmation on the HelmRelease is one for all of its objects", has: []inventory.Entry{data}, live: map[string]inventory.Live{"data": owned(nil)},
			confirmed: true, taken: "uninstall"},
		"Cluster": {reason: "a Cluster goes first, and is waited for", has: []inventory.Entry{cluster, config},
			live:    map[string]inventory.Live{"prod": owned(nil), "settings": owned(nil)},
			deleted: "prod", confirmed: true, out: Outcome{Again: true}},
		"Left": {reason: "what an upgrade dropped that failed goes with the rest", has: []inventory.Entry{config}, left: []inventory.Entry{extra},
			live: map[string]inventory.Live{"settings": owned(nil), "extra": owned(nil)}, deleted: "extra", taken: "uninstall"},
		"LeftKept": {reason: "the chart wants it left behind", has: []inventory.Entry{config}, left: []inventory.Entry{data, cluster, extra},
			live:    map[string]inventory.Live{"settings": owned(nil), "data": owned(nil), "prod": owned(nil), "extra": owned(nil)},
			kept:    map[string]bool{"data": true, "prod": true},
			deleted: "extra", taken: "uninstall"},
		"LeftForeign": {reason: "another owner has it by now, and a confirmation is about our own", has: []inventory.Entry{config}, left: []inventory.Entry{data, extra},
			live: map[string]inventory.Live{"settings": owned(nil), "data": {State: inventory.Present}, "extra": {State: inventory.Present}}, confirmed: true, taken: "uninstall"},
		"Lost": {reason: "that Helm knows of nothing is no decision about a Cluster that was held", lost: true, left: []inventory.Entry{cluster, extra},
			live: map[string]inventory.Live{"prod": owned(nil), "extra": owned(nil)}, out: Outcome{Held: true, After: overduePoll}},
		"LostDecided": {reason: "a person decided", lost: true, left: []inventory.Entry{cluster, extra},
			live: map[string]inventory.Live{"prod": owned(nil), "extra": owned(nil)}, confirmed: true, deleted: "prod", out: Outcome{Again: true}},
		"LostExtra": {reason: "nobody answers for it from now on", lost: true, left: []inventory.Entry{extra},
			live: map[string]inventory.Live{"extra": owned(nil)}, deleted: "extra", taken: "uninstall"},
		"LostGone": {reason: "a person uninstalled it with the helm CLI", lost: true, left: []inventory.Entry{cluster, extra, definition},
			live: map[string]inventory.Live{"prod": {State: inventory.Absent}, "extra": {State: inventory.Absent}, "widgets.shop.io": owned(nil)}, taken: "uninstall"},
		"LostForeign": {reason: "another owner has it by now", lost: true, left: []inventory.Entry{cluster},
			live: map[string]inventory.Live{"prod": {State: inventory.Present}}, taken: "uninstall"},
		"Remedied": {reason: "a failed installation was uninstalled after the Cluster was held", uninstalled: true, has: []inventory.Entry{config}, left: []inventory.Entry{cluster},
			live: map[string]inventory.Live{"settings": {State: inventory.Absent}, "prod": owned(nil)}, out: Outcome{Held: true, After: overduePoll}},
		"RemediedExtra": {reason: "what does not ask a person goes", uninstalled: true, has: []inventory.Entry{config}, left: []inventory.Entry{extra},
			live: map[string]inventory.Live{"settings": {State: inventory.Absent}, "extra": owned(nil)}, deleted: "extra", taken: "uninstall"},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			m.live, m.kept = tc.live, tc.kept
			obj.Status.Inventory = refsOf(append(slices.Clone(tc.has), tc.left...))
			m.stored[0].Manifest = manifestOf(tc.has...)
			switch {
			case tc.lost:
				m.stored = nil
			case tc.uninstalled:
				obj.Status.History[0] = snapshotOf(m.change(common.StatusUninstalled), "", v2.ReleaseActionUninstallRemediation)
			}
			if tc.confirmed {
				obj.Annotations = map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed}
			}
			out, err := m.newRun(obj, wanted).uninstall(t.Context())
			if err != nil || out != tc.out {
				t.Errorf("%s: uninstall() = %+v, %v; want %+v", tc.reason, out, err, tc.out)
			}
			if got := strings.Join(m.taken, " "); got != tc.taken {
				t.Errorf("%s: took %q, want %q", tc.reason, got, tc.taken)
			}
			if got := strings.Join(m.deleted, " "); got != tc.deleted {
				t.Errorf("%s: deleted %q, want %q", tc.reason, got, tc.deleted)
			}
			if gone := tc.taken != ""; (obj.Status.Inventory == nil) != gone {
				t.Errorf("%s: the inventory is %v", tc.reason, obj.Status.Inventory)
			}
		})
	}
}

// TestDismantle: Clusters that a person confirmed go one after the other, whoever owns them, so
// that there is time to notice a mistake.
func TestDismantle(t *testing.T) {
	obj, m := inSync(t)
	m.stored[0].Manifest = manifestOf(named("Cluster", "prod"), named("Cluster", "test"), named("ConfigMap", "settings"))
	m.live = map[string]inventory.Live{"prod": owned(nil), "test": owned(nil), "settings": owned(nil), "elsewhere": {State: inventory.Present, Deleting: true}}
	m.lingers = map[string]bool{"prod": true, "test": true}
	obj.Annotations = map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed}
	for _, step := range []struct{ reason, gone, deleted, waits, taken, kept string }{
		{reason: "a Cluster of another owner is being deleted", waits: "to delete Cluster/apps/prod, Cluster/apps/test when Cluster/apps/elsewhere is gone", kept: "Cluster/apps/prod Cluster/apps/test"},
		{reason: "it is gone", gone: "elsewhere", deleted: "prod", waits: "for the end of Cluster/apps/prod, and to delete Cluster/apps/test when Cluster/apps/prod is gone", kept: "Cluster/apps/prod Cluster/apps/test"},
		{reason: "the first is still there", deleted: "prod", waits: "for the end of Cluster/apps/prod, and to delete Cluster/apps/test when Cluster/apps/prod is gone", kept: "Cluster/apps/prod Cluster/apps/test"},
		{reason: "the first is gone", gone: "prod", deleted: "prod test", waits: "for the end of Cluster/apps/test", kept: "Cluster/apps/test"},
		{reason: "so is the last", gone: "test", deleted: "prod test", taken: "uninstall"},
	} {
		if step.gone != "" {
			m.live[step.gone] = inventory.Live{State: inventory.Absent}
		}
		n := m.newRun(obj, wanted)
		kept := noted(n)
		out, err := n.uninstall(t.Context())
		if err != nil || (out.After == clusterPoll) != (step.waits != "") {
			t.Errorf("%s: uninstall() = %+v, %v", step.reason, out, err)
		}
		if got := strings.Join(m.deleted, " "); got != step.deleted {
			t.Errorf("%s: deleted %q, want %q", step.reason, got, step.deleted)
		}
		if got := strings.Join(m.taken, " "); got != step.taken {
			t.Errorf("%s: took %q, want %q", step.reason, got, step.taken)
		}
		if *kept != step.kept {
			t.Errorf("%s: on record is %q, want %q", step.reason, *kept, step.kept)
		}
		if got := conditions.GetMessage(obj, fluxmeta.ReconcilingCondition); step.waits != "" && got != "Waiting "+step.waits {
			t.Errorf("%s: %q, want it to wait %s", step.reason, got, step.waits)
		}
	}
}

// TestDismantleBelow: a HelmRelease of a chart takes down what it installed before the rest goes, among which may be
// its account, and before the HelmRelease goes for which other accounts are kept (read 877).
func TestDismantleBelow(t *testing.T) {
	deleting := func(since time.Duration, holds ...string) inventory.Live {
		return owned(func(l *inventory.Live) { l.Deleting, l.Since, l.Holds = true, at.Add(-since), holds })
	}
	for name, tc := range map[string]struct {
		reason    string
		live      inventory.Live
		lowerTier bool
		deleted   string
		out       Outcome
		taken     string
	}{
		"Begins":    {"it takes down what it installed from now on", owned(nil), false, "web", Outcome{After: clusterPoll}, ""},
		"Goes":      {"it still does", deleting(inventory.LastBound - time.Minute), false, "", Outcome{After: clusterPoll}, ""},
		"Late":      {"it does not get done", deleting(inventory.LastBound), false, "", Outcome{}, "uninstall"},
		"Clusters":  {"its Clusters wait for their turn, or for a person", deleting(inventory.LastBound, "Cluster/apps/prod"), false, "", Outcome{After: clusterPoll}, ""},
		"Self":      {"nobody waits for himself", owned(func(l *inventory.Live) { l.Deleting, l.Since, l.Self = true, at, true }), false, "", Outcome{}, "uninstall"},
		"Gone":      {"it is", inventory.Live{State: inventory.Absent}, false, "", Outcome{}, "uninstall"},
		"Foreign":   {"another owner has it", inventory.Live{State: inventory.Present}, false, "", Outcome{}, "uninstall"},
		"Elsewhere": {"the agent of another cluster may be gone", owned(func(l *inventory.Live) { l.Confirmed = true }), true, "", Outcome{}, "uninstall"},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			m.stored[0].Manifest = manifestOf(named("HelmRelease", "web"), named("ConfigMap", "settings"))
			m.live = map[string]inventory.Live{"web": tc.live, "settings": owned(nil)}
			m.lingers = map[string]bool{"web": true}
			n := m.newRun(obj, wanted)
			n.guard.lowerTier = tc.lowerTier
			out, err := n.uninstall(t.Context())
			if got := strings.Join(m.taken, " "); err != nil || out != tc.out || got != tc.taken || strings.Join(m.deleted, " ") != tc.deleted {
				t.Errorf("%s: uninstall() = %+v, %v, deleted %q and took %q", tc.reason, out, err, m.deleted, got)
			}
			if got := conditions.GetMessage(obj, fluxmeta.ReconcilingCondition); tc.taken == "" && got != "Waiting for the end of HelmRelease/apps/web" {
				t.Errorf("%s: %q", tc.reason, got)
			}
		})
	}
}

// TestDeclaredAgain: a HelmRelease that is being deleted, and declared again by a revert, does not wait for itself. The
// next one of its name has what there is, and could not be made before (read 928).
func TestDeclaredAgain(t *testing.T) {
	below, settings, data, extra := named("HelmRelease", "below"), named("ConfigMap", "settings"), named("PersistentVolumeClaim", "data"), named("ConfigMap", "extra")
	going := func(since time.Duration) inventory.Live {
		return owned(func(l *inventory.Live) { l.Deleting, l.Since = true, at.Add(-since) })
	}
	absent := inventory.Live{State: inventory.Absent}
	for name, tc := range map[string]struct {
		reason string
		has    []inventory.Entry
		left   []inventory.Entry
		below  inventory.Live
		// but is declared no more. stays: the HelmRelease is not being deleted. form is how it is declared.
		but                     string
		stays, failed           bool
		form                    func(*v2.HelmRelease)
		out                     Outcome
		deleted, taken, waiting string
	}{
		"Again":        {reason: "all is as it is to be", has: []inventory.Entry{below, settings}, below: owned(nil)},
		"Protected":    {reason: "as well with data, whose deletion was confirmed", has: []inventory.Entry{below, data}, below: owned(nil)},
		"Going":        {reason: "what it began to take down has to be gone before it is made again", has: []inventory.Entry{below, settings, data}, below: going(time.Minute), out: Outcome{After: clusterPoll}, waiting: "for the end of HelmRelease/apps/below"},
		"Late":         {reason: "it does not get done", has: []inventory.Entry{below, settings}, below: going(inventory.LastBound)},
		"Down":         {reason: "it is made again by the next one", has: []inventory.Entry{below, settings}, below: absent},
		"Left":         {reason: "what an upgrade dropped is on nobody's record then", has: []inventory.Entry{settings}, left: []inventory.Entry{extra}, but: "extra", deleted: "extra"},
		"LeftAgain":    {reason: "that is declared again as well", has: []inventory.Entry{settings}, left: []inventory.Entry{extra}},
		"Gone":         {reason: "nothing of it is there to be taken over", has: []inventory.Entry{below}, below: absent, taken: "uninstall"},
		"Changed":      {reason: "the next one may be another release", has: []inventory.Entry{settings, extra}, but: "extra", out: Outcome{After: handOverPoll}, waiting: "for another owner to take over ConfigMap/apps/settings"},
		"Failed":       {reason: "it may have been deleted for that", has: []inventory.Entry{settings}, failed: true, out: Outcome{After: handOverPoll}, waiting: "for another owner to take over ConfigMap/apps/settings"},
		"OtherRelease": {reason: "the next one is another release of the same objects", has: []inventory.Entry{settings}, form: func(o *v2.HelmRelease) { o.Spec.ReleaseName = "other" }, out: Outcome{After: handOverPoll}, waiting: "for another owner to take over ConfigMap/apps/settings"},
		"OtherTarget":  {reason: "so is one of another namespace", has: []inventory.Entry{settings}, form: func(o *v2.HelmRelease) { o.Spec.ReleaseName, o.Spec.TargetNamespace = "web", "other" }, out: Outcome{After: handOverPoll}, waiting: "for another owner to take over ConfigMap/apps/settings"},
		"OtherStorage": {reason: "it does not find the storage of this one", has: []inventory.Entry{settings}, form: func(o *v2.HelmRelease) { o.Spec.StorageNamespace = "other" }, out: Outcome{After: handOverPoll}, waiting: "for another owner to take over ConfigMap/apps/settings"},
		"SameRelease": {reason: "it is the same one by other words", has: []inventory.Entry{settings}, form: func(o *v2.HelmRelease) {
			o.Spec.ReleaseName, o.Spec.TargetNamespace, o.Spec.StorageNamespace = "web", "apps", "apps"
		}},
		"Stays": {reason: "it is not deleted, and points at another release", has: []inventory.Entry{settings}, stays: true, out: Outcome{After: handOverPoll}, waiting: "for another owner to take over ConfigMap/apps/settings"},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			m.stored[0].Manifest = manifestOf(tc.has...)
			obj.Status.History[0] = snapshotOf(m.stored[0], "", v2.ReleaseActionInstall)
			if tc.failed {
				obj.Status.History[0] = snapshotOf(m.change(common.StatusFailed), "", v2.ReleaseActionUpgrade)
			}
			obj.Status.Inventory = refsOf(slices.Concat(tc.has, tc.left))
			m.live = map[string]inventory.Live{"below": tc.below, "settings": owned(nil), "data": owned(nil), "extra": owned(nil)}
			if !tc.stays {
				obj.DeletionTimestamp = &metav1.Time{Time: at}
			}
			obj.Annotations = map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed}
			form := &v2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "web"}}
			if tc.form != nil {
				tc.form(form)
			}
			n := m.newRun(obj, wanted)
			n.guard.claimed = func(_ context.Context, e, _ inventory.Entry) (apply.Claim, error) {
				if e.Name == tc.but {
					return apply.Claim{}, nil
				}
				return apply.Claim{Owner: "HelmRelease/apps/web", Kind: apply.Again, Form: form}, nil
			}
			out, err := n.uninstall(t.Context())
			if (out.HandOver != nil) != (tc.out.After == handOverPoll) {
				t.Errorf("%s: on record is %+v", tc.reason, out.HandOver)
			}
			out.HandOver = nil
			if got := strings.Join(m.taken, " "); err != nil || out != tc.out || got != tc.taken || strings.Join(m.deleted, " ") != tc.deleted {
				t.Errorf("%s: uninstall() = %+v, %v, deleted %q and took %q", tc.reason, out, err, m.deleted, got)
			}
			if got := strings.TrimPrefix(conditions.GetMessage(obj, fluxmeta.ReconcilingCondition), "Waiting "); got != tc.waiting {
				t.Errorf("%s: it waits %q, want %q", tc.reason, got, tc.waiting)
			}
			if tc.out == (Outcome{}) && obj.Status.Inventory != nil {
				t.Errorf("%s: it has %v", tc.reason, obj.Status.Inventory)
			}
		})
	}
}

// TestTakeBack: the confirmation of a HelmRelease is taken back while one of its Clusters waits for
// the end of another. It waits unconfirmed, for whoever has it later.
func TestTakeBack(t *testing.T) {
	obj, m := inSync(t)
	m.stored[0].Manifest = manifestOf(named("Cluster", "prod"), named("Cluster", "test"))
	m.live = map[string]inventory.Live{"prod": owned(nil), "test": owned(nil)}
	m.lingers = map[string]bool{"prod": true}
	obj.Annotations = map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed}
	if out, err := m.newRun(obj, wanted).uninstall(t.Context()); err != nil || out != (Outcome{After: clusterPoll}) {
		t.Fatalf("uninstall() = %+v, %v; want it to wait for the first Cluster", out, err)
	}
	if !m.live["prod"].Confirmed || m.live["test"].Confirmed {
		t.Errorf("confirmed are %+v, want the one that goes", m.live)
	}
	obj.Annotations = nil
	m.live["prod"] = inventory.Live{State: inventory.Absent}
	if out, err := m.newRun(obj, wanted).uninstall(t.Context()); err != nil || out != (Outcome{Held: true, After: overduePoll}) {
		t.Errorf("uninstall() = %+v, %v; want it to ask a person", out, err)
	}
	if got := strings.Join(m.deleted, " "); got != "prod" || m.live["test"].Confirmed || len(m.taken) > 0 {
		t.Errorf("deleted %q, took %v, and the other one is %+v", got, m.taken, m.live["test"])
	}
}

// firstSyncs is what is known of the Clusters where a release is to be.
type firstSyncs struct {
	quiet bool
	fails error
}

func (f firstSyncs) Quiet(context.Context) (bool, error) { return f.quiet, f.fails }

func (f firstSyncs) For(context.Context, []*unstructured.Unstructured) (*inventory.FirstSync, error) {
	return &inventory.FirstSync{}, nil
}

// TestHoldCreation: a Cluster that may exist already is not created.
func TestHoldCreation(t *testing.T) {
	held := &inventory.Creation{Loose: []inventory.Entry{named("Cluster", "prod")}}
	for name, tc := range map[string]struct {
		reason   string
		next     Action
		keeper   firstsync.Keeper
		creation *inventory.Creation
		held     bool
	}{
		"Held":     {"nobody knows whether it exists", Install, firstSyncs{}, held, true},
		"Quiet":    {"no Cluster is in doubt, so that nothing is rendered for this", Install, firstSyncs{quiet: true}, held, false},
		"Unkept":   {"nobody keeps a record", Install, nil, held, false},
		"Free":     {"nothing is held", Upgrade, firstSyncs{}, nil, false},
		"Unlisted": {"Clusters cannot be listed, and the chart has none", Install, &firstsync.Tier{}, nil, false},
		"Unlock":   {"nothing is created", Unlock, firstSyncs{}, held, false},
		"Rollback": {"a rollback may create as well", Rollback, firstSyncs{}, held, true},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Status.History = append(obj.Status.History, obj.Status.History...)
			obj.Status.History[1] = obj.Status.History[0].DeepCopy()
			obj.Status.History[0].Version++
			obj.Status.History[0].Status = "failed"
			m.creation = tc.creation
			n := m.newRun(obj, wanted)
			n.req.FirstSync = tc.keeper
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			out, err := n.holdCreation(ctx, tc.next, nil)
			if err != nil || (out != nil) != tc.held || conditions.IsTrue(obj, v1alpha1.CreateHeldCondition) != tc.held {
				t.Errorf("%s: holdCreation() = %v, %v", tc.reason, out, err)
			}
			if told := events(n); (told == v1alpha1.ReasonCreateHeld) != tc.held {
				t.Errorf("%s: told %q", tc.reason, told)
			}
		})
	}
}

// TestForceHeld: a request to force an action is not used up by what keeps the action from
// beginning.
func TestForceHeld(t *testing.T) {
	away := errors.New("no route to host")
	for name, tc := range map[string]struct {
		reason   string
		keeper   firstSyncs
		creation *inventory.Creation
		save     error
		fails    error
	}{
		"Held":    {reason: "a person has to say whether the Cluster may be created", creation: &inventory.Creation{Loose: []inventory.Entry{named("Cluster", "prod")}}},
		"Unknown": {reason: "it cannot be found out which Clusters exist", keeper: firstSyncs{fails: away}, fails: away},
		"Unsaved": {reason: "what is about to be done cannot be written down", keeper: firstSyncs{quiet: true}, save: away, fails: away},
	} {
		t.Run(name, func(t *testing.T) {
			next := wanted
			next.ChartVersion = "2.0.0"
			obj, m := inSync(t)
			m.fails[Upgrade] = errors.New("it is never ready")
			if out, err := m.newRun(obj, next).reconcile(t.Context()); err != nil || !out.Stalled {
				t.Fatalf("reconcile() = %+v, %v, want it to have given up", out, err)
			}
			delete(m.fails, Upgrade)
			m.taken, m.creation = nil, tc.creation
			obj.Annotations = map[string]string{fluxmeta.ReconcileRequestAnnotation: "now", v2.ForceRequestAnnotation: "now"}
			n := m.newRun(obj, next)
			n.req.FirstSync = tc.keeper
			n.req.Save = func(context.Context) error { return tc.save }
			out, err := n.reconcile(t.Context())
			if !errors.Is(err, tc.fails) || (out.Creation != nil) != (tc.creation != nil) || len(m.taken) > 0 {
				t.Fatalf("%s: reconcile() = %+v, %v, and took %v", tc.reason, out, err, m.taken)
			}
			if obj.Status.LastHandledForceAt != "" {
				t.Errorf("%s: the request is used up, and nothing was done", tc.reason)
			}
			m.creation = nil
			if out, err := m.newRun(obj, next).reconcile(t.Context()); err != nil || out != (Outcome{}) || strings.Join(m.taken, " ") != "upgrade" {
				t.Errorf("%s: reconcile() = %+v, %v, and took %v, once nothing keeps it from that", tc.reason, out, err, m.taken)
			}
			if obj.Status.LastHandledForceAt != "now" {
				t.Errorf("%s: the request is there still, and would be handled again", tc.reason)
			}
		})
	}
}

// TestStalledTells: a release that has given up tells why, once an obstacle is gone that kept it from being looked at.
func TestStalledTells(t *testing.T) {
	broken := errors.New("it is never ready")
	for name, tc := range map[string]struct {
		reason string
		// first: nothing is stored yet.
		first   bool
		arrange func(*v2.HelmRelease, *fakeWorld)
		ready   string
	}{
		"Install": {"an installation failed", true, func(_ *v2.HelmRelease, m *fakeWorld) { m.fails[Install] = broken }, v2.InstallFailedReason},
		"Upgrade": {"an upgrade failed", false, func(_ *v2.HelmRelease, m *fakeWorld) { m.fails[Upgrade] = broken }, v2.UpgradeFailedReason},
		"Remedied": {"what failed was rolled back", false, func(o *v2.HelmRelease, m *fakeWorld) {
			o.Spec.Upgrade = &v2.Upgrade{Remediation: &v2.UpgradeRemediation{RemediateLastFailure: new(true)}}
			m.fails[Upgrade] = broken
		}, v2.RollbackSucceededReason},
		"Tested": {"a test failed", false, func(o *v2.HelmRelease, m *fakeWorld) {
			o.Spec.Test = &v2.Test{Enable: true}
			m.fails[Test] = broken
		}, v2.TestFailedReason},
	} {
		t.Run(name, func(t *testing.T) {
			next := wanted
			next.ChartVersion = "2.0.0"
			obj, m := inSync(t)
			if tc.first {
				obj.Status, m.stored = v2.HelmReleaseStatus{}, nil
			}
			tc.arrange(obj, m)
			for range 2 {
				if out, err := m.newRun(obj, next).reconcile(t.Context()); err != nil || !out.Stalled {
					t.Fatalf("%s: reconcile() = %+v, %v, want it to have given up", tc.reason, out, err)
				}
			}
			gave := conditions.Get(obj, fluxmeta.ReadyCondition)
			if gave.Status != metav1.ConditionFalse || gave.Reason != tc.ready {
				t.Fatalf("%s: Ready is %+v, want reason %s", tc.reason, gave, tc.ready)
			}
			// As a refusal of before the release was looked at.
			conditions.Delete(obj, fluxmeta.StalledCondition)
			conditions.MarkFalse(obj, fluxmeta.ReadyCondition, "ValuesError", "could not resolve Secret chart values reference")
			if out, err := m.newRun(obj, next).reconcile(t.Context()); err != nil || !out.Stalled {
				t.Fatalf("%s: reconcile() = %+v, %v, want it to have given up still", tc.reason, out, err)
			}
			if got := conditions.Get(obj, fluxmeta.ReadyCondition); got.Status != gave.Status || got.Reason != gave.Reason || got.Message != gave.Message {
				t.Errorf("%s: Ready is %+v, want %+v", tc.reason, got, gave)
			}
			if !conditions.IsTrue(obj, fluxmeta.StalledCondition) {
				t.Errorf("%s: it does not tell that it has given up", tc.reason)
			}
		})
	}
}

// TestRetargetedWithin: what an agent installed that was killed in the middle of it is uninstalled
// by the next one, also if the object points at another release by then.
func TestRetargetedWithin(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		change  func(*v2.HelmRelease)
		status  common.Status
		foreign bool
		taken   string
	}{
		"Name":      {"another name", func(o *v2.HelmRelease) { o.Spec.ReleaseName = "other" }, common.StatusPendingInstall, false, "uninstall"},
		"Namespace": {"another namespace, in the same storage", func(o *v2.HelmRelease) { o.Spec.TargetNamespace = "other" }, common.StatusPendingInstall, false, "uninstall"},
		"Storage":   {"another storage", func(o *v2.HelmRelease) { o.Spec.StorageNamespace = "other" }, common.StatusPendingInstall, false, "uninstall"},
		"Deployed":  {"Helm had ended, and the agent had not recorded it", func(o *v2.HelmRelease) { o.Spec.ReleaseName = "other" }, common.StatusDeployed, false, "uninstall"},
		"Same":      {"the same release: it goes on", func(*v2.HelmRelease) {}, common.StatusPendingInstall, false, "unlock upgrade"},
		"Foreign":   {"another HelmRelease took the release over meanwhile", func(o *v2.HelmRelease) { o.Spec.ReleaseName = "other" }, common.StatusDeployed, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			obj := &v2.HelmRelease{}
			obj.Name, obj.Namespace, obj.Generation, obj.UID = "web", "apps", 3, "u"
			m := &fakeWorld{fails: map[Action]error{}, live: map[string]inventory.Live{"settings": owned(nil)}}
			m.manifest = manifestOf(named("ConfigMap", "settings"))
			var saved *v2.HelmReleaseStatus
			n := m.newRun(obj, wanted)
			n.req.Save = func(context.Context) error {
				if len(m.stored) > 0 && m.stored[0].Info.Status == common.StatusPendingInstall {
					saved = obj.Status.DeepCopy()
				}
				return nil
			}
			if _, err := n.reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			if saved == nil {
				t.Fatalf("%s: nothing was saved between the record of Helm and the first object", tc.reason)
			}
			if latest := obj.Status.History.Latest(); len(obj.Status.History) != 1 || latest.Status != string(common.StatusDeployed) || latest.Action != v2.ReleaseActionInstall {
				t.Errorf("the history is %+v once it ended", obj.Status.History)
			}
			m.change(tc.status)
			if tc.foreign {
				m.stored[0].Manifest = strings.ReplaceAll(m.manifest, "namespace: apps}", "namespace: apps, labels: {"+ownerName+": theirs, "+ownerNamespace+": apps}}")
			}
			obj.Status, m.taken = *saved, nil
			obj.Generation++
			tc.change(obj)
			if _, err := m.newRun(obj, wanted).reconcile(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(m.taken, " "); got != tc.taken {
				t.Errorf("%s: took %q, want %q", tc.reason, got, tc.taken)
			}
		})
	}
}

// TestHas: whether a cluster has the release that a status is about, and not another one of its name.
func TestHas(t *testing.T) {
	mine := strings.ReplaceAll(manifestOf(named("ConfigMap", "settings")), "namespace: apps}", "namespace: apps, labels: {"+ownerName+": web, "+ownerNamespace+": apps}}")
	for name, tc := range map[string]struct {
		reason string
		change func(*v2.HelmRelease, *fakeWorld)
		want   bool
	}{
		"Same":  {"it is as it was left", func(*v2.HelmRelease, *fakeWorld) {}, true},
		"Other": {"another one was made under the name", func(_ *v2.HelmRelease, m *fakeWorld) { m.stored[0].Info.FirstDeployed = at.Add(time.Hour) }, false},
		"None":  {"there is no such release", func(_ *v2.HelmRelease, m *fakeWorld) { m.stored = nil }, false},
		"Older": {"the record of an engine of before does not tell", func(obj *v2.HelmRelease, _ *fakeWorld) { obj.Status.History[0].APIVersion = "" }, false},
		"Hooked": {"the agent was killed while hooks of the first install ran, which Helm notes", func(obj *v2.HelmRelease, m *fakeWorld) {
			m.stored[0].Manifest, m.stored[0].Hooks = mine, []*helmrelease.Hook{{Name: "h", LastRun: helmrelease.HookExecution{StartedAt: at}}}
		}, true},
		"ByHand": {"it was rolled back by hand since", func(_ *v2.HelmRelease, m *fakeWorld) {
			m.change(common.StatusSuperseded).Manifest = mine
		}, true},
		"Former": {"one of ours that was left there before", func(_ *v2.HelmRelease, m *fakeWorld) {
			m.stored[0].Manifest, m.stored[0].Info.FirstDeployed = mine, at.Add(-time.Hour)
		}, false},
		"Begun": {"it is not on record yet, and has our labels", func(obj *v2.HelmRelease, m *fakeWorld) {
			obj.Status.History, m.stored[0].Manifest = nil, mine
		}, true},
		"Foreign": {"somebody else has one of the name", func(obj *v2.HelmRelease, m *fakeWorld) {
			obj.Status.History, m.stored[0].Manifest = nil, manifestOf(named("ConfigMap", "settings"))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			tc.change(obj, m)
			if got, err := m.newRun(obj, wanted).has(t.Context()); err != nil || got != tc.want {
				t.Errorf("%s: has() = %t, %v, want %t", tc.reason, got, err, tc.want)
			}
		})
	}
}

// TestOnRecord: what Helm's storage tells of a release that has no inventory.
func TestOnRecord(t *testing.T) {
	cluster, settings, extra := named("Cluster", "prod"), named("ConfigMap", "settings"), named("ConfigMap", "extra")
	for name, tc := range map[string]struct {
		reason    string
		manifests [][]inventory.Entry
		statuses  []common.Status
		want      []inventory.Entry
	}{
		"Deployed": {"the newest revision has all that there is", [][]inventory.Entry{{extra}, {cluster, settings}},
			[]common.Status{common.StatusSuperseded, common.StatusDeployed}, []inventory.Entry{cluster, settings}},
		"Failed": {"what the next one was to drop is there still", [][]inventory.Entry{{extra}, {cluster}, {settings}},
			[]common.Status{common.StatusSuperseded, common.StatusDeployed, common.StatusFailed}, []inventory.Entry{cluster, settings}},
		"None": {"there is no release", nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			m.stored = nil
			for i, entries := range tc.manifests {
				m.manifest = manifestOf(entries...)
				m.add("web", "apps", nil, nil, tc.statuses[i])
			}
			if got, err := m.newRun(obj, wanted).onRecord(t.Context()); err != nil || !inventory.Equal(got, tc.want) {
				t.Errorf("%s: onRecord() = %v, %v, want %v", tc.reason, got, err, tc.want)
			}
		})
	}
}

// TestRemoveBegun: the agent was killed in the middle of an install, before the history had
// the release, and the object is deleted. The release is its own if its objects say so.
func TestRemoveBegun(t *testing.T) {
	mine := strings.ReplaceAll(manifestOf(named("ConfigMap", "settings"), named("Secret", "keys")), "namespace: apps}",
		"namespace: apps, labels: {"+ownerName+": web, "+ownerNamespace+": apps}}")
	cluster, extra := named("Cluster", "prod"), named("ConfigMap", "extra")
	for name, tc := range map[string]struct {
		reason   string
		manifest string
		none     bool
		left     []inventory.Entry
		taken    string
		deleted  string
		out      Outcome
	}{
		"Own":     {reason: "nothing must be left behind", manifest: mine, taken: "uninstall"},
		"Foreign": {reason: "another person installed a release of that name", manifest: manifestOf(named("ConfigMap", "settings"))},
		"Mixed":   {reason: "what is not certain stays", manifest: mine + manifestOf(named("ConfigMap", "other"))},
		"Empty":   {reason: "nothing tells whose it is", manifest: ""},
		"None":    {reason: "it was killed before", none: true},
		"Recorded": {reason: "an installation could not even be rendered after one that was remedied", none: true, left: []inventory.Entry{cluster, extra},
			out: Outcome{Held: true, After: overduePoll}},
		"RecordedExtra":   {reason: "nobody answers for it from now on", none: true, left: []inventory.Entry{extra}, deleted: "extra"},
		"RecordedForeign": {reason: "what another person installed since is not ours, the rest is", manifest: manifestOf(cluster), left: []inventory.Entry{cluster, extra}, deleted: "extra"},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Name, obj.Namespace = "web", "apps"
			obj.Status.History, obj.Status.Inventory = nil, nil
			if tc.left != nil {
				obj.Status.Inventory = refsOf(tc.left)
			}
			m.live = map[string]inventory.Live{"settings": owned(nil), "keys": owned(nil), "prod": owned(nil), "extra": owned(nil)}
			m.stored[0].Manifest = tc.manifest
			m.change(common.StatusPendingInstall)
			if tc.none {
				m.stored = nil
			}
			out, err := m.newRun(obj, wanted).remove(t.Context())
			if err != nil || out != tc.out {
				t.Errorf("%s: remove() = %+v, %v", tc.reason, out, err)
			}
			if got := strings.Join(m.deleted, " "); got != tc.deleted {
				t.Errorf("%s: deleted %q, want %q", tc.reason, got, tc.deleted)
			}
			if got := strings.Join(m.taken, " "); got != tc.taken {
				t.Errorf("%s: took %q, want %q", tc.reason, got, tc.taken)
			}
		})
	}
}
