package release

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"helm.sh/helm/v4/pkg/release/common"
	"helm.sh/helm/v4/pkg/storage/driver"

	"github.com/cascade-gitops/cascade/inventory"
)

// decide gathers the facts and returns the next action. It also trims the
// history as far as the state allows.
func (n *run) decide(ctx context.Context, state State) (Action, string, error) {
	obj := n.obj
	f := Facts{
		State: state,
		// Asked each time: a request is handled once. One for an action is not used up by
		// what has to come before it.
		Forced:           state != Uninstalling && state != Locked && v2.ShouldHandleForceRequest(obj),
		Retry:            obj.GetActiveRetry(n.DefaultToRetryOnFailure) != nil,
		InstallExhausted: obj.GetInstall().GetRemediation().RetriesExhausted(obj),
		UpgradeExhausted: obj.GetUpgrade().GetRemediation().RetriesExhausted(obj),
		Corrects:         obj.GetDriftDetection().GetMode() == v2.DriftDetectionEnabled,
	}
	active := obj.GetActiveRemediation()
	if active != nil {
		f.Remedy = &Remedy{
			Strategy: active.GetStrategy(), Failures: active.GetFailureCount(obj),
			Exhausted: active.RetriesExhausted(obj), Last: active.MustRemediateLastFailure(),
		}
	}
	if state == Failed && f.Remedy != nil {
		switch next, _ := Decide(f); next {
		case Rollback:
			previous := obj.Status.History.Previous(active.MustIgnoreTestFailures(obj.GetTest().IgnoreFailures))
			target, err := n.rollbackTarget(ctx, previous)
			if err != nil {
				return "", "", err
			}
			f.Target = target
		case Uninstall:
			var err error
			if f.Protected, err = n.protected(ctx); err != nil {
				return "", "", err
			}
		}
	}
	// What never was deployed is installed by an upgrade, too: after a change of the spec, or where a stop or a kill cut
	// the attempt off, its failures do not count.
	uninstalled := obj.Status.LastAttemptedReleaseAction == v2.ReleaseActionInstall && deployedVersion(obj) == 0
	failed := n.found.stored != nil && n.found.stored.Status == common.StatusFailed && (state == Failed || state == Unmanaged && n.found.cutOff)
	n.trim(state, f)
	next, why := Decide(f)
	n.inPlace = next == Upgrade && uninstalled && (f.Protected || failed)
	return next, why, nil
}

// trim keeps of the history what a rollback may need.
func (n *run) trim(state State, f Facts) {
	obj := n.obj
	ignoreTests := obj.GetTest().IgnoreFailures
	active := obj.GetActiveRemediation()
	if active != nil {
		ignoreTests = active.MustIgnoreTestFailures(ignoreTests)
	}
	switch state {
	case InSync, Failed:
		remedied := f.Remedy != nil && f.Remedy.Failures > 0 && !f.Forced && (!f.Remedy.Exhausted || f.Remedy.Last)
		switch {
		case f.Retry:
			obj.Status.History.TruncateIgnoringPreviousSnapshots()
		case state == InSync || remedied:
			obj.Status.History.Truncate(ignoreTests)
		}
	case Unmanaged:
		// The history says nothing about a release that another client installed.
		if !n.found.cutOff {
			obj.Status.ClearHistory()
		}
	}
}

// protected reports whether the release has objects that no remediation may
// delete, or that are to be handed over. Confirmations do not count: nobody confirmed a
// failure.
func (n *run) protected(ctx context.Context) (bool, error) {
	_, rel, err := n.newest(ctx)
	if err != nil || rel == nil {
		return false, err
	}
	objects, _, err := objectsOf(rel, n.mapper)
	if err != nil {
		return false, err
	}
	going := goingOf(objects)
	s := n.guard.judgeAll(ctx, going, inventory.Difference(inventory.OfAll(objects), going))
	candidates := s.candidates
	s.awaited, s.candidates = nil, nil
	for _, d := range candidates {
		if d.Unsure {
			// The uninstall waits for that one as long as a deletion does.
			d.NewOwner = ""
		}
		s.add(d)
	}
	s.settle()
	carries := slices.ContainsFunc(s.deletable, func(d Candidate) bool { return inventory.Protected(d.Entry, d.Live, d.LowerTier) })
	return carries || len(s.kept()) > 0, nil
}

// rollbackTarget looks at the revision that a failed release would go back to. What it was
// made with is not told from then on.
func (n *run) rollbackTarget(ctx context.Context, previous *v2.Snapshot) (RollbackTarget, error) {
	if previous == nil {
		return TargetMissing, nil
	}
	rel, err := n.store.read(ctx, n.storageNamespace, previous.Name, previous.Version)
	switch {
	case errors.Is(err, driver.ErrReleaseNotFound):
		return TargetCorrupt, nil
	case err != nil:
		return TargetIntact, fmt.Errorf("cannot verify previous release to roll back to: %w", err)
	case verify(previous, rel) != nil:
		return TargetCorrupt, nil
	}
	n.hide(rel)
	return TargetIntact, nil
}
