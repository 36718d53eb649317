package release

import (
	"testing"

	v2 "github.com/fluxcd/helm-controller/api/v2"
)

func TestDecide(t *testing.T) {
	rollback := func(r Remedy) *Remedy { r.Strategy = v2.RollbackRemediationStrategy; return &r }
	uninstall := func(r Remedy) *Remedy { r.Strategy = v2.UninstallRemediationStrategy; return &r }
	for name, tc := range map[string]struct {
		reason string
		facts  Facts
		want   Action
		why    string
	}{
		"InSync":       {"there is nothing to do", Facts{State: InSync}, Nothing, ""},
		"InSyncForced": {"a person wants an upgrade all the same", Facts{State: InSync, Forced: true}, Upgrade, ""},
		"Locked":       {"the lock comes off first", Facts{State: Locked, Forced: true}, Unlock, ""},
		"Uninstalling": {"nothing else is possible", Facts{State: Uninstalling, Forced: true, InstallExhausted: true, UpgradeExhausted: true}, Finish, ""},
		"Absent":       {"it is installed", Facts{State: Absent}, Install, ""},
		"AbsentSpent":  {"installing failed too often", Facts{State: Absent, InstallExhausted: true}, Stall, ReasonRetriesExceeded},
		"AbsentForced": {"a person insists", Facts{State: Absent, InstallExhausted: true, Forced: true}, Install, ""},
		"Unmanaged":    {"it is taken over", Facts{State: Unmanaged, UpgradeExhausted: true}, Upgrade, ""},
		"OutOfSync":    {"it is brought up to date", Facts{State: OutOfSync}, Upgrade, ""},
		"OutOfSyncSpent": {"upgrading failed too often", Facts{State: OutOfSync, UpgradeExhausted: true},
			Stall, ReasonRetriesExceeded},
		"OutOfSyncForced": {"a person insists", Facts{State: OutOfSync, UpgradeExhausted: true, Forced: true}, Upgrade, ""},
		"Untested":        {"tests run", Facts{State: Untested}, Test, ""},
		"Drifted":         {"drift is told of", Facts{State: Drifted}, Warn, ""},
		"DriftedCorrects": {"drift is corrected", Facts{State: Drifted, Corrects: true}, Correct, ""},

		"FailedUnknown":    {"nothing was attempted: the failure is somebody else's", Facts{State: Failed}, Upgrade, ""},
		"FailedRetries":    {"failures are retried, never remedied", Facts{State: Failed, Retry: true, Remedy: rollback(Remedy{Failures: 9, Exhausted: true})}, Upgrade, ""},
		"FailedAnew":       {"the count was reset: something changed", Facts{State: Failed, Remedy: rollback(Remedy{Last: true})}, Upgrade, ""},
		"FailedForced":     {"a person insists", Facts{State: Failed, Forced: true, Remedy: rollback(Remedy{Failures: 9, Exhausted: true})}, Upgrade, ""},
		"FailedSpent":      {"no retry is left, and the last failure is not remedied", Facts{State: Failed, Remedy: rollback(Remedy{Failures: 1, Exhausted: true})}, Stall, ReasonRetriesExceeded},
		"FailedLast":       {"the last failure is remedied as well", Facts{State: Failed, Remedy: rollback(Remedy{Failures: 4, Exhausted: true, Last: true})}, Rollback, ""},
		"FailedRollback":   {"it goes back", Facts{State: Failed, Remedy: rollback(Remedy{Failures: 1})}, Rollback, ""},
		"FailedNoTarget":   {"there is nothing to go back to", Facts{State: Failed, Target: TargetMissing, Remedy: rollback(Remedy{Failures: 1})}, Stall, ReasonMissingRollbackTarget},
		"FailedBadTarget":  {"what it would go back to is not what was made", Facts{State: Failed, Target: TargetCorrupt, Remedy: rollback(Remedy{Failures: 1})}, Upgrade, ""},
		"FailedUninstall":  {"it starts over", Facts{State: Failed, Remedy: uninstall(Remedy{Failures: 1})}, Uninstall, ""},
		"FailedProtected":  {"a release with a Cluster is never uninstalled to start over", Facts{State: Failed, Protected: true, Remedy: uninstall(Remedy{Failures: 1})}, Upgrade, ""},
		"ProtectedSpent":   {"nor at the very end", Facts{State: Failed, Protected: true, Remedy: uninstall(Remedy{Failures: 3, Exhausted: true, Last: true})}, Stall, ReasonRetriesExceeded},
		"ProtectedGoeBack": {"a rollback deletes nothing that is protected: the client holds it back", Facts{State: Failed, Protected: true, Remedy: rollback(Remedy{Failures: 1})}, Rollback, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got, why := Decide(tc.facts); got != tc.want || why != tc.why {
				t.Errorf("%s\nDecide() = %q %q, want %q %q", tc.reason, got, why, tc.want, tc.why)
			}
		})
	}
}

// TestDecideProperties goes through all combinations of facts.
func TestDecideProperties(t *testing.T) {
	bools := []bool{false, true}
	count := map[Action]int{}
	for _, state := range []State{Absent, Locked, Uninstalling, Unmanaged, Failed, OutOfSync, Untested, Drifted, InSync} {
		for _, strategy := range []v2.RemediationStrategy{"", v2.RollbackRemediationStrategy, v2.UninstallRemediationStrategy} {
			for _, target := range []RollbackTarget{TargetIntact, TargetMissing, TargetCorrupt} {
				for bits := range 1 << 9 {
					bit := func(i int) bool { return bools[bits>>i&1] }
					f := Facts{
						State: state, Forced: bit(0), Retry: bit(1), InstallExhausted: bit(2), UpgradeExhausted: bit(3), Corrects: bit(4), Target: target, Protected: bit(5),
					}
					if strategy != "" {
						f.Remedy = &Remedy{Strategy: strategy, Failures: int64(bits >> 6 & 1), Exhausted: bit(7), Last: bit(8)}
					}
					got, why := Decide(f)
					count[got]++
					switch {
					case (why != "") != (got == Stall):
						t.Fatalf("%+v: %q for reason %q", f, got, why)
					case got == Uninstall && f.Protected:
						t.Fatalf("%+v: a protected release is uninstalled", f)
					case got.remedies() && (state != Failed || f.Retry || f.Forced || f.Remedy == nil):
						t.Fatalf("%+v: %q although nothing is to be remedied", f, got)
					case f.Forced && (got == Stall && why == ReasonRetriesExceeded || got == Nothing):
						t.Fatalf("%+v: %q although a person asked", f, got)
					case got == Nothing && state != InSync:
						t.Fatalf("%+v: nothing is done", f)
					}
				}
			}
		}
	}
	for _, a := range []Action{Nothing, Install, Upgrade, Unlock, Test, Correct, Warn, Rollback, Uninstall, Finish, Stall} {
		if count[a] == 0 {
			t.Errorf("action %q never came up", a)
		}
	}
}
