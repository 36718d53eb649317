package release

import (
	"errors"
	"strings"
	"testing"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
)

// TestMadeInAnotherWay: a generation that changes only how the release is rendered is
// released, however often that fails first, and what was rolled back is not taken for it.
func TestMadeInAnotherWay(t *testing.T) {
	refused := errors.New("the patch does not match")
	tests := &v2.Test{Enable: true}
	rollback := func(retries int) *v2.Upgrade {
		last, strategy := true, v2.RollbackRemediationStrategy
		return &v2.Upgrade{Remediation: &v2.UpgradeRemediation{Retries: retries, RemediateLastFailure: &last, Strategy: &strategy}}
	}
	patched := func(o *v2.HelmRelease) { o.Spec.PostRenderers = []v2.PostRenderer{{Kustomize: &v2.Kustomize{}}} }
	labelled := func(o *v2.HelmRelease) {
		o.Spec.CommonMetadata = &v2.CommonMetadata{Labels: map[string]string{"team": "a"}}
	}
	plain := func(o *v2.HelmRelease) { o.Spec.PostRenderers, o.Spec.CommonMetadata = nil, nil }
	// step is one call, and what it takes.
	type step struct {
		arrange func(*v2.HelmRelease, *fakeWorld)
		// spec is what a new generation declares; nil: it is the same one. forgets: the
		// process is another one than that of the step before.
		spec  func(*v2.HelmRelease)
		taken string
		ready bool
	}
	fails := func(a Action, lost bool) func(*v2.HelmRelease, *fakeWorld) {
		return func(_ *v2.HelmRelease, m *fakeWorld) { m.fails[a], m.lost = refused, lost }
	}
	mends := func(a Action) func(*v2.HelmRelease, *fakeWorld) {
		return func(_ *v2.HelmRelease, m *fakeWorld) { delete(m.fails, a) }
	}
	for name, tc := range map[string]struct {
		reason  string
		upgrade *v2.Upgrade
		test    *v2.Test
		steps   []step
	}{
		"NotStored": {reason: "Helm could store nothing: the next try is one", steps: []step{
			{spec: patched, arrange: fails(Upgrade, true), taken: "upgrade"},
			{taken: "upgrade"},
			{arrange: mends(Upgrade), taken: "upgrade", ready: true},
			{ready: true},
		}},
		"MetadataNotStored": {reason: "labels of all objects are no different", steps: []step{
			{spec: labelled, arrange: fails(Upgrade, true), taken: "upgrade"},
			{arrange: mends(Upgrade), taken: "upgrade", ready: true},
		}},
		"RolledBack": {reason: "what is deployed is that of before", upgrade: rollback(1), steps: []step{
			{spec: patched, arrange: fails(Upgrade, false), taken: "upgrade rollback"},
			{arrange: mends(Upgrade), taken: "upgrade", ready: true},
		}},
		"GivenUp": {reason: "no retry is left, and it is not ready because somebody looks again", upgrade: rollback(0), steps: []step{
			{spec: patched, arrange: fails(Upgrade, false), taken: "upgrade rollback"},
			{},
			{},
		}},
		"Reverted": {reason: "what is declared again is what was rolled back to", upgrade: rollback(0), steps: []step{
			{spec: patched, arrange: fails(Upgrade, false), taken: "upgrade rollback"},
			{spec: plain, arrange: mends(Upgrade), ready: true},
		}},
		"TestsFail": {reason: "it was deployed, and the tests had it rolled back", upgrade: rollback(0), test: tests, steps: []step{
			{spec: patched, arrange: fails(Test, false), taken: "upgrade test rollback"},
			{},
			{spec: plain, arrange: mends(Test), taken: "test", ready: true},
		}},
		"Refused": {reason: "a generation that was refused at first was never released", steps: []step{
			{spec: patched, arrange: func(o *v2.HelmRelease, _ *fakeWorld) { o.Status.ObservedGeneration = o.Generation }, taken: "upgrade", ready: true},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Spec.Upgrade, obj.Spec.Test = tc.upgrade, tc.test
			if tc.test != nil {
				if _, err := m.newRun(obj, wanted).reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for i, s := range tc.steps {
				if s.spec != nil {
					obj.Generation++
					s.spec(obj)
				}
				if s.arrange != nil {
					s.arrange(obj, m)
				}
				m.taken = nil
				out, err := m.newRun(obj, wanted).reconcile(t.Context())
				if err == nil && !out.Again {
					obj.Status.ObservedGeneration = obj.Generation // as the reconciler does
				}
				if got := strings.Join(m.taken, " "); got != s.taken {
					t.Errorf("%s: step %d took %q, want %q", tc.reason, i, got, s.taken)
				}
				if got := conditions.IsReady(obj); got != s.ready {
					t.Errorf("%s: step %d: ready is %t (%s), want %t", tc.reason, i, got, conditions.GetMessage(obj, fluxmeta.ReadyCondition), s.ready)
				}
			}
		})
	}
}

// TestRollbackToUnknown: the process ended between the failed test and the rollback, and
// nothing says what the revision of before was made with. Whatever is declared is released.
func TestRollbackToUnknown(t *testing.T) {
	patched := []v2.PostRenderer{{Kustomize: &v2.Kustomize{}}}
	for name, then := range map[string][]v2.PostRenderer{"Same": patched, "Reverted": nil} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			last, strategy := true, v2.RollbackRemediationStrategy
			obj.Spec.Upgrade = &v2.Upgrade{Remediation: &v2.UpgradeRemediation{RemediateLastFailure: &last, Strategy: &strategy, Retries: 1}}
			obj.Spec.Test = &v2.Test{Enable: true}
			obj.Spec.PostRenderers = patched
			obj.Generation++
			m.fails[Test] = errors.New("the test fails")
			call := func(done ...Action) {
				n := m.newRun(obj, wanted)
				n.done = done
				if _, err := n.reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			call(Rollback) // ends before it rolls back
			call()
			obj.Spec.PostRenderers = then
			delete(m.fails, Test)
			call()
			if got := strings.Join(m.taken, " "); got != "upgrade test rollback upgrade test" {
				t.Errorf("took %q", got)
			}
			if recordedMade(obj) != declaredMade(obj) || !conditions.IsReady(obj) {
				t.Errorf("recorded %+v, ready: %t", recordedMade(obj), conditions.IsReady(obj))
			}
		})
	}
}

// TestTakeOverOfDigests: a status of an engine that had no digests, or others, is no reason
// to release anything.
func TestTakeOverOfDigests(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		arrange func(*v2.HelmRelease)
		taken   string
	}{
		"None":          {"the engine of before had none", func(*v2.HelmRelease) {}, ""},
		"Other":         {"it took them in another way", func(o *v2.HelmRelease) { unknownMade.record(o) }, ""},
		"NewGeneration": {"it had not seen this generation", func(o *v2.HelmRelease) { o.Generation++ }, "upgrade"},
		"NotAttempted":  {"it had refused this generation", func(o *v2.HelmRelease) { o.Status.LastAttemptedGeneration-- }, "upgrade"},
		"Failed": {"it had failed at it", func(o *v2.HelmRelease) {
			conditions.MarkFalse(o, v2.ReleasedCondition, v2.UpgradeFailedReason, "failed")
		}, "upgrade"},
		"Remedied": {"it had rolled it back", func(o *v2.HelmRelease) {
			conditions.MarkTrue(o, v2.RemediatedCondition, v2.RollbackSucceededReason, "rolled back")
		}, "upgrade"},
	} {
		t.Run(name, func(t *testing.T) {
			obj, m := inSync(t)
			obj.Spec.PostRenderers = []v2.PostRenderer{{}}
			obj.Spec.CommonMetadata = &v2.CommonMetadata{}
			tc.arrange(obj)
			for range 2 {
				if _, err := m.newRun(obj, wanted).reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.Join(m.taken, " "); got != tc.taken {
				t.Errorf("%s: took %q, want %q", tc.reason, got, tc.taken)
			}
			if recordedMade(obj) != declaredMade(obj) || !conditions.IsReady(obj) {
				t.Errorf("%s: recorded %+v, ready: %t", tc.reason, recordedMade(obj), conditions.IsReady(obj))
			}
		})
	}
}
