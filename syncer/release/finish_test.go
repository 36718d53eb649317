package release

import (
	"errors"
	"strings"
	"testing"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"helm.sh/helm/v4/pkg/release/common"

	"github.com/cascade-gitops/cascade/inventory"
)

// TestUninstallIsFinished: an uninstall that ended in the middle is gone on with, whatever
// has to be done to the release after it.
func TestUninstallIsFinished(t *testing.T) {
	refused := errors.New("a webhook refuses it")
	mine := strings.ReplaceAll(manifestOf(named("ConfigMap", "settings")), "namespace: apps}",
		"namespace: apps, labels: {"+ownerName+": web, "+ownerNamespace+": apps}}")
	next := wanted
	next.ChartVersion = "2.0.0"
	last := true
	install := func(retries int) func(*v2.HelmRelease) {
		return func(o *v2.HelmRelease) {
			o.Spec.Install = &v2.Install{Remediation: &v2.InstallRemediation{Retries: retries, RemediateLastFailure: &last}}
		}
	}
	none := func(*v2.HelmRelease, *fakeWorld) {}
	mends := func(actions ...Action) func(*v2.HelmRelease, *fakeWorld) {
		return func(_ *v2.HelmRelease, m *fakeWorld) {
			for _, a := range actions {
				delete(m.fails, a)
			}
		}
	}
	type step struct {
		arrange func(*v2.HelmRelease, *fakeWorld)
		want    Desired
		taken   string
		ready   string
		out     Outcome
		fails   bool
	}
	for name, tc := range map[string]struct {
		reason string
		spec   func(*v2.HelmRelease)
		steps  []step
	}{
		"Retried": {reason: "the cause is gone", spec: install(3), steps: []step{
			{arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Status, m.stored = v2.HelmReleaseStatus{}, nil
				m.fails[Install], m.fails[Uninstall] = refused, refused
			}, want: wanted, taken: "install uninstall", ready: v2.UninstallFailedReason, out: Outcome{Again: true}},
			{arrange: none, want: wanted, taken: "uninstall", ready: v2.UninstallFailedReason, fails: true},
			{arrange: mends(Install, Uninstall), want: wanted, taken: "uninstall install", ready: v2.InstallSucceededReason},
		}},
		"Spent": {reason: "no retry of the installation is left; half of it is gone all the same", spec: install(0), steps: []step{
			{arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Status, m.stored = v2.HelmReleaseStatus{}, nil
				m.fails[Install], m.fails[Uninstall] = refused, refused
			}, want: wanted, taken: "install uninstall", ready: v2.UninstallFailedReason, out: Outcome{Again: true}},
			{arrange: mends(Uninstall), want: wanted, taken: "uninstall", ready: v2.UninstallSucceededReason, out: Outcome{Stalled: true}},
			{arrange: mends(Install), want: wanted, ready: v2.UninstallSucceededReason, out: Outcome{Stalled: true}},
		}},
		"Forced": {reason: "a person asked for an installation, and gets it", spec: install(0), steps: []step{
			{arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Status, m.stored = v2.HelmReleaseStatus{}, nil
				m.fails[Install], m.fails[Uninstall] = refused, refused
			}, want: wanted, taken: "install uninstall", ready: v2.UninstallFailedReason, out: Outcome{Again: true}},
			{arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Annotations = map[string]string{fluxmeta.ReconcileRequestAnnotation: "1", v2.ForceRequestAnnotation: "1"}
				mends(Install, Uninstall)(o, m)
			}, want: wanted, taken: "uninstall install", ready: v2.InstallSucceededReason},
		}},
		"Upgrade": {reason: "so is that of a failed upgrade", spec: func(o *v2.HelmRelease) {
			strategy := v2.UninstallRemediationStrategy
			o.Spec.Upgrade = &v2.Upgrade{Remediation: &v2.UpgradeRemediation{Retries: 1, RemediateLastFailure: &last, Strategy: &strategy}}
		}, steps: []step{
			{arrange: func(_ *v2.HelmRelease, m *fakeWorld) { m.fails[Upgrade], m.fails[Uninstall] = refused, refused },
				want: next, taken: "upgrade uninstall", ready: v2.UninstallFailedReason, out: Outcome{Again: true}},
			{arrange: mends(Upgrade, Uninstall), want: next, taken: "uninstall install", ready: v2.InstallSucceededReason},
		}},
		"Killed": {reason: "the process ended before the history had the change", steps: []step{
			{arrange: func(_ *v2.HelmRelease, m *fakeWorld) {
				m.stored[0].Manifest = mine
				m.change(common.StatusUninstalling)
			}, want: wanted, taken: "uninstall install", ready: v2.InstallSucceededReason},
		}},
		"KilledEarly": {reason: "or before the history had anything", steps: []step{
			{arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Status.History = nil
				m.stored[0].Manifest = mine
				m.change(common.StatusUninstalling)
			}, want: wanted, taken: "uninstall install", ready: v2.InstallSucceededReason},
		}},
		"Foreign": {reason: "another person's uninstall is not ours to end", steps: []step{
			{arrange: func(o *v2.HelmRelease, m *fakeWorld) {
				o.Status.History = nil
				m.stored[0].Manifest = manifestOf(named("ConfigMap", "settings"))
				m.change(common.StatusUninstalling)
			}, want: wanted, taken: "upgrade", ready: v2.UpgradeFailedReason, fails: true},
		}},
		"Protected": {reason: "what has to stay holds it, as it holds a deletion", steps: []step{
			{arrange: func(_ *v2.HelmRelease, m *fakeWorld) {
				m.stored[0].Manifest = strings.ReplaceAll(mine, "ConfigMap", "PersistentVolumeClaim")
				m.change(common.StatusUninstalling)
				m.live["settings"] = owned(nil)
			}, want: wanted, ready: "PruneBlocked", out: Outcome{Held: true, After: overduePoll}},
			{arrange: func(_ *v2.HelmRelease, m *fakeWorld) {
				m.live["settings"] = owned(func(l *inventory.Live) { l.Confirmed = true })
			}, want: wanted, taken: "uninstall install", ready: v2.InstallSucceededReason},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			m.live["settings"] = owned(nil)
			if tc.spec != nil {
				tc.spec(obj)
			}
			for i, s := range tc.steps {
				s.arrange(obj, m)
				m.taken = nil
				out, err := m.newRun(obj, s.want).reconcile(t.Context())
				if (err != nil) != s.fails || out != s.out {
					t.Errorf("%s: step %d: reconcile() = %+v, %v; want %+v", tc.reason, i, out, err, s.out)
				}
				if got := strings.Join(m.taken, " "); got != s.taken {
					t.Errorf("%s: step %d took %q, want %q", tc.reason, i, got, s.taken)
				}
				if got := conditions.GetReason(obj, fluxmeta.ReadyCondition); got != s.ready {
					t.Errorf("%s: step %d: Ready is of reason %q, want %q", tc.reason, i, got, s.ready)
				}
			}
		})
	}
}
