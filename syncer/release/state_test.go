package release

import (
	"testing"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"helm.sh/helm/v4/pkg/release/common"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// want, stored and declared are of one mind.
var wanted = Desired{ChartName: "web", ChartVersion: "1.0.0", Values: map[string]any{"a": "b"}, ConfigDigest: ConfigDigest(map[string]any{"a": "b"})}

func deployed() *Stored {
	return &Stored{Name: "web", Namespace: "apps", Version: 2, Status: common.StatusDeployed, ChartName: "web", ChartVersion: "1.0.0"}
}

func declared() *v2.HelmRelease {
	obj := &v2.HelmRelease{}
	obj.Name, obj.Namespace, obj.Generation = "web", "apps", 3
	obj.Status.ObservedGeneration = 3
	obj.Status.StorageNamespace = "apps"
	obj.Status.LastAttemptedReleaseAction = v2.ReleaseActionUpgrade
	obj.Status.History = v2.Snapshots{{
		APIVersion: v2.CurrentSnapshotAPIVersion, Name: "web", Namespace: "apps", Version: 2, ChartName: "web", ChartVersion: "1.0.0",
		Status: "deployed", ConfigDigest: wanted.ConfigDigest.String(),
	}}
	return obj
}

func TestStateOf(t *testing.T) {
	tested := func(phase string) map[string]*v2.TestHookStatus {
		return map[string]*v2.TestHookStatus{"t": {Phase: phase}}
	}
	for name, tc := range map[string]struct {
		reason string
		obj    func(*v2.HelmRelease)
		stored func(*Stored)
		none   bool
		want   State
		err    bool
	}{
		"InSync":        {reason: "everything is as it was recorded", want: InSync},
		"NeverThere":    {reason: "nothing is stored", none: true, want: Absent},
		"Deleted":       {reason: "nothing is stored any more, whatever the history says", none: true, want: Absent},
		"PendingBefore": {reason: "a lock comes first: nothing else can be done", stored: func(s *Stored) { s.Status, s.Unverified = common.StatusPendingUpgrade, errNotObserved }, want: Locked},
		"PendingInstall": {reason: "a process died while it installed, before it recorded anything",
			obj: func(o *v2.HelmRelease) { o.Status.History = nil }, stored: func(s *Stored) { s.Status = common.StatusPendingInstall }, want: Locked},
		"Foreign":            {reason: "somebody installed it with the helm CLI", obj: func(o *v2.HelmRelease) { o.Status.History = nil }, want: Unmanaged},
		"ForeignUninstalled": {reason: "what somebody uninstalled and kept the history of is absent", obj: func(o *v2.HelmRelease) { o.Status.History = nil }, stored: func(s *Stored) { s.Status = common.StatusUninstalled }, want: Absent},
		"Changed":            {reason: "somebody changed it with the helm CLI", stored: func(s *Stored) { s.Unverified = errNotObserved }, want: Unmanaged},
		"Failed":             {reason: "the last action failed", stored: func(s *Stored) { s.Status = common.StatusFailed }, want: Failed},
		"Uninstalled":        {reason: "a remediation uninstalled it", stored: func(s *Stored) { s.Status = common.StatusUninstalled }, want: Absent},
		"Superseded":         {reason: "the newest revision cannot be superseded: nobody knows what this is", stored: func(s *Stored) { s.Status = common.StatusSuperseded }, err: true},
		"Uninstalling":       {reason: "an uninstall died; only another can end it", stored: func(s *Stored) { s.Status = common.StatusUninstalling }, want: Uninstalling},
		"UninstallingKilled": {reason: "so did the process, before the history had the change",
			stored: func(s *Stored) { s.Status, s.Unverified, s.Ours = common.StatusUninstalling, errNotObserved, true }, want: Uninstalling},
		"UninstallingBefore": {reason: "or before it had the release at all",
			obj: func(o *v2.HelmRelease) { o.Status.History = nil }, stored: func(s *Stored) { s.Status, s.Ours = common.StatusUninstalling, true }, want: Uninstalling},
		"ForeignUninstalling": {reason: "what another person uninstalls is not ours to end",
			obj: func(o *v2.HelmRelease) { o.Status.History = nil }, stored: func(s *Stored) { s.Status = common.StatusUninstalling }, want: Unmanaged},
		"OtherVersion": {reason: "the chart has a new version", stored: func(s *Stored) { s.ChartVersion = "0.9.0" }, want: OutOfSync},
		"OtherChart":   {reason: "another chart", stored: func(s *Stored) { s.ChartName = "api" }, want: OutOfSync},
		"OtherValues":  {reason: "other values", obj: func(o *v2.HelmRelease) { o.Status.History[0].ConfigDigest = noValues }, want: OutOfSync},
		"ValuesOtherSum": {reason: "the values are the same by a digest of another algorithm",
			obj: func(o *v2.HelmRelease) {
				o.Status.History[0].ConfigDigest = "sha512:ef3b7afe1e3a5eb6e8e3a8cac3a3d1ce47d7a3dbb2ab2a3b5d1d0d0e7a5ca0b0ef3b7afe1e3a5eb6e8e3a8cac3a3d1ce47d7a3dbb2ab2a3b5d1d0d0e7a5ca0b0"
			}, want: OutOfSync},
		"PostRenderer": {reason: "a new generation renders in another way",
			obj: func(o *v2.HelmRelease) { o.Generation++; o.Spec.PostRenderers = []v2.PostRenderer{{}} }, want: OutOfSync},
		"PostRendererKnown": {reason: "a new generation, and it was made like this",
			obj: func(o *v2.HelmRelease) {
				o.Generation++
				o.Spec.PostRenderers = []v2.PostRenderer{{}}
				declaredMade(o).record(o)
			}, want: InSync},
		"PostRendererFailed": {reason: "the generation was tried and given up, and what is deployed was made in another way",
			obj: func(o *v2.HelmRelease) { o.Spec.PostRenderers = []v2.PostRenderer{{}} }, want: OutOfSync},
		"Metadata": {reason: "other metadata for every object",
			obj: func(o *v2.HelmRelease) { o.Generation++; o.Spec.CommonMetadata = &v2.CommonMetadata{} }, want: OutOfSync},
		"Untested": {reason: "tests are declared and have not run", obj: func(o *v2.HelmRelease) { o.Spec.Test = &v2.Test{Enable: true} }, want: Untested},
		"TestSucceeded": {reason: "they have", obj: func(o *v2.HelmRelease) {
			o.Spec.Test = &v2.Test{Enable: true}
			o.Status.History[0].SetTestHooks(tested("Succeeded"))
		}, want: InSync},
		"TestFailed": {reason: "a failed test is a failed release", obj: func(o *v2.HelmRelease) {
			o.Spec.Test = &v2.Test{Enable: true}
			o.Status.History[0].SetTestHooks(tested("Failed"))
		}, want: Failed},
		"TestIgnored": {reason: "unless that is to be ignored",
			obj: func(o *v2.HelmRelease) {
				o.Spec.Test = &v2.Test{Enable: true, IgnoreFailures: true}
				o.Status.History[0].SetTestHooks(tested("Failed"))
			}, want: InSync},
	} {
		t.Run(name, func(t *testing.T) {
			obj, stored := declared(), deployed()
			if tc.obj != nil {
				tc.obj(obj)
			}
			if tc.stored != nil {
				tc.stored(stored)
			}
			if tc.none {
				stored = nil
			}
			got, reason, err := StateOf(obj, stored, wanted)
			if got != tc.want || (err != nil) != tc.err {
				t.Errorf("%s\nStateOf() = %s (%s), %v; want %s", tc.reason, got, reason, err, tc.want)
			}
		})
	}
}

func TestTargetChanged(t *testing.T) {
	inPlace := &v2.Upgrade{ChartNameChangeStrategy: v2.ChartNameChangeStrategyInPlaceUpdate}
	for name, tc := range map[string]struct {
		reason string
		change func(*v2.HelmRelease)
		chart  string
		want   string
	}{
		"Same":        {"nothing changed", func(*v2.HelmRelease) {}, "web", ""},
		"New":         {"nothing was installed yet", func(o *v2.HelmRelease) { o.Status.History = nil; o.Spec.ReleaseName = "other" }, "web", ""},
		"Storage":     {"revisions are kept elsewhere", func(o *v2.HelmRelease) { o.Spec.StorageNamespace = "kube-system" }, "web", targetStorageNamespace},
		"Namespace":   {"objects go elsewhere", func(o *v2.HelmRelease) { o.Spec.TargetNamespace, o.Spec.ReleaseName = "prod", "web" }, "web", targetReleaseNamespace},
		"Name":        {"another name", func(o *v2.HelmRelease) { o.Spec.ReleaseName = "other" }, "web", targetReleaseName},
		"Chart":       {"another chart is another application", func(*v2.HelmRelease) {}, "api", targetChartName},
		"ChartInside": {"unless it is to take the place of the one before", func(o *v2.HelmRelease) { o.Spec.Upgrade = inPlace }, "api", ""},
	} {
		t.Run(name, func(t *testing.T) {
			obj := declared()
			tc.change(obj)
			if got, changed := targetChanged(obj, tc.chart); got != tc.want || changed != (tc.want != "") {
				t.Errorf("%s\ntargetChanged() = %q, %t; want %q", tc.reason, got, changed, tc.want)
			}
		})
	}
}

func TestResetsFailures(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*v2.HelmRelease)
		want   bool
	}{
		"Same":       {"the same would fail again", func(*v2.HelmRelease) {}, false},
		"Generation": {"the spec changed", func(o *v2.HelmRelease) { o.Generation++ }, true},
		"Version":    {"the chart changed", func(o *v2.HelmRelease) { o.Status.LastAttemptedRevision = "0.9.0" }, true},
		"Values":     {"a ConfigMap with values changed", func(o *v2.HelmRelease) { o.Status.LastAttemptedConfigDigest = noValues }, true},
		"Asked": {"a person asked, by both annotations", func(o *v2.HelmRelease) {
			o.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "1", v2.ResetRequestAnnotation: "1"}
		}, true},
		"AskedAlone": {"the token is of another request", func(o *v2.HelmRelease) {
			o.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "2", v2.ResetRequestAnnotation: "1"}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			obj := declared()
			obj.Status.LastAttemptedGeneration = obj.Generation
			obj.Status.LastAttemptedRevision, obj.Status.LastAttemptedConfigDigest = wanted.ChartVersion, wanted.ConfigDigest.String()
			tc.change(obj)
			if why, got := resetsFailures(obj, wanted); got != tc.want {
				t.Errorf("%s\nresetsFailures() = %q, %t", tc.reason, why, got)
			}
			if asked := obj.Annotations[v2.ResetRequestAnnotation]; obj.Status.LastHandledResetAt != asked {
				t.Errorf("%s\nlastHandledResetAt is %q, want %q: a request is handled once", tc.reason, obj.Status.LastHandledResetAt, asked)
			}
		})
	}
}

func TestSummarize(t *testing.T) {
	condition := func(kind string, status metav1.ConditionStatus, generation int64) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: kind + "Reason", Message: kind, ObservedGeneration: generation}
	}
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	for name, tc := range map[string]struct {
		reason     string
		test       *v2.Test
		conditions []metav1.Condition
		want       string
		status     metav1.ConditionStatus
		stalled    bool
	}{
		"Released":     {"it is installed", nil, []metav1.Condition{condition("Released", yes, 1), condition("Stalled", yes, 1)}, "Released", yes, false},
		"Failed":       {"it is not", nil, []metav1.Condition{condition("Released", no, 1), condition("Stalled", yes, 1)}, "Released", no, true},
		"Remediated":   {"a failure that was remedied is a failure", nil, []metav1.Condition{condition("Released", no, 1), condition("Remediated", yes, 1)}, "Remediated", no, false},
		"OldRemedy":    {"a remedy of a generation before says nothing", nil, []metav1.Condition{condition("Released", yes, 2), condition("Remediated", yes, 1)}, "Released", yes, false},
		"Awaiting":     {"tests are part of it", &v2.Test{Enable: true}, []metav1.Condition{condition("Released", yes, 1), condition("TestSuccess", unknown, 1)}, "TestSuccess", unknown, false},
		"TestsIgnored": {"unless their failures are ignored", &v2.Test{Enable: true, IgnoreFailures: true}, []metav1.Condition{condition("Released", yes, 1), condition("TestSuccess", no, 1)}, "Released", yes, false},
		"TestsOff":     {"what is left of tests that were switched off goes", nil, []metav1.Condition{condition("Released", yes, 1), condition("TestSuccess", no, 1)}, "Released", yes, false},
		"Nothing":      {"without any of them Ready stays what it is", nil, []metav1.Condition{condition("Ready", unknown, 1)}, "Ready", unknown, false},
	} {
		t.Run(name, func(t *testing.T) {
			obj := declared()
			obj.Spec.Test, obj.Status.Conditions = tc.test, tc.conditions
			(&run{obj: obj}).summarize()
			found := map[string]metav1.Condition{}
			for _, c := range obj.Status.Conditions {
				found[c.Type] = c
			}
			if c := found["Ready"]; c.Message != tc.want || c.Status != tc.status {
				t.Errorf("%s\nReady is %s %q, want %s %q", tc.reason, c.Status, c.Message, tc.status, tc.want)
			}
			if _, stalled := found["Stalled"]; stalled != tc.stalled {
				t.Errorf("%s\nStalled: %t, want %t", tc.reason, stalled, tc.stalled)
			}
			if _, there := found["TestSuccess"]; there && tc.test == nil {
				t.Errorf("%s\nTestSuccess is still there", tc.reason)
			}
		})
	}
}
