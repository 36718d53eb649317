package release

import (
	v2 "github.com/fluxcd/helm-controller/api/v2"
)

// Action is the next step for a release.
type Action string

// Actions. Their names are in messages.
const (
	// Nothing is left to do.
	Nothing Action = ""
	Install Action = "install"
	Upgrade Action = "upgrade"
	// Unlock marks a release as failed whose action never ended.
	Unlock Action = "unlock"
	Test   Action = "test"
	// Correct brings drifted objects back; Warn tells of them.
	Correct Action = "correct cluster drift"
	Warn    Action = "warn"
	// Rollback and Uninstall remedy a failed release.
	Rollback  Action = "rollback"
	Uninstall Action = "uninstall"
	// Finish ends an uninstall that began before.
	Finish Action = "finish uninstall"
	// Stall gives up until something changes.
	Stall Action = "stall"
)

// releases reports whether an action makes a new revision of a release, remedies
// whether it undoes a failed one.
func (a Action) releases() bool { return a == Install || a == Upgrade }
func (a Action) remedies() bool { return a == Rollback || a == Uninstall }

// creates reports whether an action may create objects of the release.
func (a Action) creates() bool { return a.releases() || a == Rollback || a == Correct }

// class groups actions as Flux does. One call carries out one action of each
// class at most.
func (a Action) class() Action {
	switch {
	case a.releases():
		return Upgrade
	case a.remedies():
		return Rollback
	}
	return a
}

// Reasons of Stall.
const (
	ReasonRetriesExceeded       = "RetriesExceeded"
	ReasonMissingRollbackTarget = "MissingRollbackTarget"
)

// RollbackTarget is the revision that a failed release would go back to.
type RollbackTarget int

const (
	// TargetIntact: the storage has it as it was recorded.
	TargetIntact RollbackTarget = iota
	// TargetMissing: there never was one.
	TargetMissing
	// TargetCorrupt: it is gone from the storage, or is not what was recorded.
	TargetCorrupt
)

// Remedy is how a failed action is to be remedied, of spec.install or
// spec.upgrade, whichever was attempted last.
type Remedy struct {
	Strategy v2.RemediationStrategy
	// Failures so far; Exhausted: no retry is left; Last: the last failure is to
	// be remedied as well.
	Failures  int64
	Exhausted bool
	Last      bool
}

// Facts is everything that Decide goes by.
type Facts struct {
	State State
	// Forced: a person asked for an action now, whatever the counters say.
	Forced bool
	// Retry: failures of the last action are retried without end, not remedied.
	Retry bool
	// Remedy is nil where nothing was attempted.
	Remedy *Remedy
	// InstallExhausted and UpgradeExhausted: no retry is left.
	InstallExhausted, UpgradeExhausted bool
	// Corrects: drift is to be corrected, not only told of.
	Corrects bool
	// Target is set only if a failed release is to be rolled back.
	Target RollbackTarget
	// Protected: the release has objects that no remediation may delete.
	Protected bool
}

// Decide returns the next action, and for Stall the reason.
func Decide(f Facts) (Action, string) {
	switch f.State {
	case InSync:
		if f.Forced {
			return Upgrade, ""
		}
		return Nothing, ""
	case Locked:
		return Unlock, ""
	case Uninstalling:
		// Helm can neither install nor upgrade before that, whoever asks.
		return Finish, ""
	case Absent:
		if f.InstallExhausted && !f.Forced {
			return Stall, ReasonRetriesExceeded
		}
		return Install, ""
	case Unmanaged:
		return Upgrade, ""
	case OutOfSync:
		if f.UpgradeExhausted && !f.Forced {
			return Stall, ReasonRetriesExceeded
		}
		return Upgrade, ""
	case Drifted:
		if f.Corrects {
			return Correct, ""
		}
		return Warn, ""
	case Untested:
		return Test, ""
	}
	return decideFailed(f)
}

func decideFailed(f Facts) (Action, string) {
	switch {
	case f.Retry, f.Remedy == nil, f.Remedy.Failures <= 0, f.Forced:
		// A count of zero means that something changed since the failure.
		return Upgrade, ""
	case f.Remedy.Exhausted && !f.Remedy.Last:
		return Stall, ReasonRetriesExceeded
	case f.Remedy.Strategy == v2.RollbackRemediationStrategy && f.Target == TargetMissing:
		return Stall, ReasonMissingRollbackTarget
	case f.Remedy.Strategy == v2.RollbackRemediationStrategy && f.Target == TargetCorrupt:
		return Upgrade, ""
	case f.Remedy.Strategy == v2.RollbackRemediationStrategy:
		return Rollback, ""
	case f.Protected && f.Remedy.Exhausted:
		return Stall, ReasonRetriesExceeded
	case f.Protected:
		// It is never uninstalled to start over. It is tried again in place.
		return Upgrade, ""
	}
	return Uninstall, ""
}
