package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// lastWrite bounds the last status write of a call that was cancelled.
const lastWrite = 5 * time.Second

// run is one call for one HelmRelease.
type run struct {
	*Releases
	world
	req              Request
	obj              *v2.HelmRelease
	log              logr.Logger
	name, namespace  string
	storageNamespace string
	// found is what look found last.
	found known
	// before is what revision beforeVersion was made with, which an upgrade of this
	// call replaced.
	before        made
	beforeVersion int
	// awaits says what of earlier revisions waits for something else to be gone: set by collect.
	awaits string
	// inPlace: the next upgrade is another try of an installation that may not be uninstalled.
	inPlace bool
	// memory has the revisions that were read, rendered what was made of the chart. They are given back when the call ends.
	memory, rendered *Share
	// done are the classes of actions that were taken.
	done []Action
	// aside: nothing is written, because somebody else only asks.
	aside bool
}

// begin returns a run in the cluster of the request.
func (r *Releases) begin(req Request, custom readers) (*run, error) {
	asManager()
	s, err := r.sessions.of(req.Cluster, r.Now())
	if err != nil {
		return nil, err
	}
	n := r.newRun(req)
	n.world = n.inCluster(s, custom)
	return n, nil
}

// newRun returns a run that has no world yet.
func (r *Releases) newRun(req Request) *run {
	obj := req.Object
	memory := cmp.Or(req.Memory.Beside(), r.Memory.For(obj.Namespace))
	return &run{
		Releases: r, req: req, obj: obj, log: req.Log, memory: memory, rendered: memory.Beside(),
		name: ShortName(obj.GetReleaseName()), namespace: obj.GetReleaseNamespace(), storageNamespace: obj.GetStorageNamespace(),
	}
}

// giveBack is called when the call ends.
func (n *run) giveBack() {
	n.memory.GiveBack()
	n.rendered.GiveBack()
}

// reconcile records the attempt and takes turns until the release is as
// declared. It uninstalls a release that the object does not point at any more
// before that.
func (n *run) reconcile(ctx context.Context) (Outcome, error) {
	obj := n.obj
	want := Desired{
		ChartName: n.req.Chart.Name, ChartVersion: n.req.Chart.Version,
		Values: n.req.Values, ConfigDigest: ConfigDigest(n.req.Values),
	}
	if what, changed := targetChanged(obj, want.ChartName); changed {
		n.log.Info("release target configuration changed (" + what + "): running uninstall for current release")
		return n.leave(ctx)
	}
	obj.Status.StorageNamespace = n.storageNamespace
	if why, reset := resetsFailures(obj, want); reset {
		n.log.V(1).Info("resetting failure count (" + why + ")")
		obj.Status.ClearFailures()
	}
	if releasedAsDeclared(obj) {
		declaredMade(obj).record(obj)
	}
	obj.Status.LastAttemptedGeneration = obj.Generation
	obj.Status.LastAttemptedRevision, obj.Status.LastAttemptedRevisionDigest = want.ChartVersion, n.req.OCIDigest
	obj.Status.LastAttemptedConfigDigest = want.ConfigDigest.String()
	//lint:ignore SA1019 what engines of before left there is to go
	obj.Status.LastAttemptedValuesChecksum, obj.Status.LastReleaseRevision = "", 0
	return n.loop(ctx, want)
}

// loop takes one turn after the other until nothing is left to do, or a turn
// would repeat an action.
func (n *run) loop(ctx context.Context, want Desired) (Outcome, error) {
	for {
		out, err := n.turn(ctx, want)
		switch {
		case errors.Is(err, ErrNoRoom):
			// It is no failure. What is there runs on as it is.
			conditions.MarkReconciling(n.obj, meta.ProgressingReason, "Waiting for memory: %s", n.text(err))
			return Outcome{Again: true}, nil
		case err != nil:
			return Outcome{}, err
		case out != nil:
			return *out, nil
		}
	}
}

// turn looks, decides and acts once. The outcome is nil as long as there may be
// more to do.
func (n *run) turn(ctx context.Context, want Desired) (*Outcome, error) {
	if err := n.cancelled(ctx); err != nil {
		return nil, err
	}
	state, reason, diff, err := n.look(ctx, want)
	if err = n.redacted(err); err != nil {
		if !errors.Is(err, ErrNoRoom) {
			conditions.MarkFalse(n.obj, meta.ReadyCondition, "StateError", "Could not determine release state: %s", err)
		}
		return nil, fmt.Errorf("cannot determine release state: %w", err)
	}
	n.guard.release = entriesOf(n.obj.Status.Inventory) // which an action of the turn before may have changed
	forced := n.obj.Status.LastHandledForceAt
	next, why, err := n.decide(ctx, state)
	if err != nil {
		return nil, err
	}
	n.log.V(1).Info("decided", "state", state, "reason", reason, "action", next)
	if !next.creates() {
		conditions.Delete(n.obj, v1alpha1.CreateHeldCondition)
	}
	switch {
	case next == Stall:
		return n.stall(why), nil
	case next == Warn:
		n.tellDrift(diff)
		return n.finish(ctx)
	case next == Nothing:
		n.markInSync()
		return n.finish(ctx)
	case slices.Contains(n.done, next.class()):
		return n.pause(), nil
	}
	before := n.obj.Status.DeepCopy()
	before.LastHandledForceAt = forced
	out, err := n.holdBack(ctx, next, diff)
	if out == nil && err == nil {
		err = n.announce(ctx, next, diff)
	}
	if out != nil || err != nil {
		// Nothing was done: a request to force it is still to be handled.
		n.obj.Status.LastHandledForceAt = forced
		return out, err
	}
	return n.act(ctx, next, diff, before)
}

// holdBack ends the call if an action may not begin yet.
func (n *run) holdBack(ctx context.Context, next Action, diff jsondiff.DiffSet) (*Outcome, error) {
	if next.releases() {
		if err := n.rendered.Take(n.needs()); err != nil {
			return nil, err
		}
	}
	if out, err := n.holdFinish(ctx, next); out != nil || err != nil {
		return out, err
	}
	if out, err := n.holdRemedy(ctx, next); out != nil || err != nil {
		return out, err
	}
	if out, err := n.holdCreation(ctx, next, diff); out != nil || err != nil {
		return out, err
	}
	return n.holdVersions(ctx, next, diff)
}

// cancelled writes the status down once more when the call was cancelled.
func (n *run) cancelled(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
	defer cancel()
	if saveErr := n.req.SaveLast(last); saveErr != nil {
		n.log.Error(saveErr, "cannot save status after cancellation")
	}
	return fmt.Errorf("atomic release canceled: %w", err)
}

// act carries an action out, and says what follows from its end. before is the status of before it was announced,
// with the request to force an action that was handled last.
func (n *run) act(ctx context.Context, next Action, diff jsondiff.DiffSet, before *v2.HelmReleaseStatus) (*Outcome, error) {
	s := &n.obj.Status
	installs, upgrades := s.InstallFailures, s.UpgradeFailures
	if err := n.redacted(n.take(ctx, next, diff)); err != nil {
		if errors.Is(err, ErrNoRoom) {
			*s = *before // nothing was begun: it is still to be tried, and what is there runs on as it is
			return nil, err
		}
		if retry := n.obj.GetActiveRetry(n.DefaultToRetryOnFailure); retry != nil {
			n.log.Error(err, "failed to run '"+string(next)+"' action")
			return n.retry(retry), nil
		}
		if conditions.IsReady(n.obj) {
			conditions.MarkFalse(n.obj, meta.ReadyCondition, "ReconcileError", "%s", err)
		}
		return nil, err
	}
	if errors.Is(ctx.Err(), context.Canceled) && next != Test {
		// The process ends, and the next one has to know what this one wrote. What was cut off
		// is tried again without being counted or remedied: it says nothing of the release. A
		// test that was cut off has not run. Whoever asked to force it has that done by the next one.
		if s.InstallFailures > installs || s.UpgradeFailures > upgrades {
			s.LastHandledForceAt = before.LastHandledForceAt
		}
		s.InstallFailures, s.UpgradeFailures = min(installs, s.InstallFailures), min(upgrades, s.UpgradeFailures)
		return nil, n.cancelled(ctx)
	}
	if next.remedies() {
		return n.remedied(), nil
	}
	n.done = append(n.done, next.class())
	return nil, n.req.Save(ctx)
}

// announce writes down what is about to be done, which may take minutes.
func (n *run) announce(ctx context.Context, next Action, diff jsondiff.DiffSet) error {
	switch next {
	case Correct:
		n.tellDrift(diff)
	case Test:
		n.acceptRemedy()
	}
	message := fmt.Sprintf("Running '%s' action with timeout of %s", next, n.timeout(next))
	conditions.MarkReconciling(n.obj, meta.ProgressingReason, "%s", message)
	if next.releases() {
		conditions.MarkUnknown(n.obj, meta.ReadyCondition, meta.ProgressingReason, "%s", message)
	}
	n.log.Info("running '" + string(next) + "' action with timeout of " + n.timeout(next).String())
	return n.req.Save(ctx)
}

func (n *run) timeout(a Action) time.Duration {
	whole := n.obj.GetTimeout()
	of := map[Action]func(metav1.Duration) metav1.Duration{
		Install: n.obj.GetInstall().GetTimeout, Upgrade: n.obj.GetUpgrade().GetTimeout, Test: n.obj.GetTest().GetTimeout,
		Rollback: n.obj.GetRollback().GetTimeout, Uninstall: n.obj.GetUninstall().GetTimeout,
		Finish: n.obj.GetUninstall().GetTimeout,
	}[a]
	if of == nil {
		return whole.Duration
	}
	return of(whole).Duration
}

// take carries an action out and records what became of it. An error means that
// nothing changed in the storage, so that there is nothing to remedy.
func (n *run) take(ctx context.Context, a Action, diff jsondiff.DiffSet) error {
	switch a {
	case Install, Upgrade:
		return n.release(ctx, a)
	case Unlock:
		return n.unlock(ctx)
	case Test:
		return n.test(ctx)
	case Correct:
		n.correct(ctx, diff)
		return nil
	case Rollback:
		return n.rollback(ctx)
	case Uninstall:
		return n.uninstallFailed(ctx)
	case Finish:
		return n.finishUninstall(ctx)
	}
	return fmt.Errorf("cannot take unknown action %q", a)
}
