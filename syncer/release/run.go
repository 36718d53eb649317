package release

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/cel"
	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"github.com/go-logr/logr"
	"helm.sh/helm/v4/pkg/kube"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// fieldManager of the objects of releases.
const fieldManager = "helm-controller"

// lastWords bounds the last status write of a call that was cancelled.
const lastWords = 5 * time.Second

// asManager makes Helm write in the name that Flux's objects carry. Helm has a
// variable for that.
var asManager = sync.OnceFunc(func() { kube.ManagedFieldsManager = fieldManager })

// Releases brings releases to what HelmReleases declare. It remembers what it
// verified. It is safe for concurrent use; fields are set before the first call.
type Releases struct {
	// Events takes what happens, with metadata as Flux's.
	Events record.EventRecorder
	Now    func() time.Time
	// OverrideManagers are field managers whose fields are taken over before drift
	// is looked for (--override-manager).
	OverrideManagers []string
	// Gates of Flux of that name.
	UseHelm3Defaults, DefaultToRetryOnFailure, AllowDNSLookups bool

	sessions sessions
	mu       sync.Mutex
	known    map[types.UID]known
}

// known is what was found when a release was read last.
type known struct {
	cluster *apply.Cluster
	// stamp of the storage, and digest that was recorded then, for which it holds.
	stamp, recorded string
	stored          *Stored
	// leftovers are objects of earlier revisions that are still to go.
	leftovers []inventory.Entry
}

// Request is one HelmRelease, whose sources are ready.
type Request struct {
	// Object's status is changed in place.
	Object *v2.HelmRelease
	// Chart to install. Uninstall does without.
	Chart Chart
	// OCIDigest of the artifact that the chart came as, if it did.
	OCIDigest string
	// Values that were composed. They are not changed.
	Values map[string]any
	// Cluster to act on, as the user to act as.
	Cluster *apply.Cluster
	// Save writes the status down, ahead of an action and after it.
	Save func(context.Context) error
	// Redact takes secrets out of a text that the chart may have put its values
	// into. It may be nil.
	Redact func(string) string
	// Log may be the zero value.
	Log logr.Logger
	// FirstSync is what is known of the Clusters where the release is made. It may be nil.
	FirstSync firstsync.Keeper
}

// Outcome is when to look at a HelmRelease again.
type Outcome struct {
	// Again: at once.
	Again bool
	// After is a pause that was asked for; 0 means the interval.
	After time.Duration
	// Stalled: only a change of the object, or a request, can help.
	Stalled bool
	// Held: a person has to decide about a deletion. It is looked at again at the
	// interval.
	Held bool
	// Creation is what keeps the release from being made: it would create Clusters
	// that may exist already. It is nil if nothing does.
	Creation *inventory.Creation
}

// run is one call for one HelmRelease.
type run struct {
	*Releases
	req              Request
	obj              *v2.HelmRelease
	log              logr.Logger
	session          *session
	guard            *guard
	readers          readers
	name, namespace  string
	storageNamespace string
	// found is what look found last.
	found known
	// done are the classes of actions that were taken.
	done []Action
}

func (r *Releases) begin(req Request) (*run, error) {
	asManager()
	s, err := r.sessions.of(req.Cluster, r.Now())
	if err != nil {
		return nil, err
	}
	obj := req.Object
	n := &run{
		Releases: r, req: req, obj: obj, log: req.Log, session: s,
		name: ShortName(obj.GetReleaseName()), namespace: obj.GetReleaseNamespace(), storageNamespace: obj.GetStorageNamespace(),
	}
	n.guard = newGuard(req.Cluster, obj, n.name, n.namespace)
	n.guard.release = entriesOf(obj.Status.Inventory)
	return n, nil
}

// Sync brings the release to what the object declares, as far as one call can. An
// error means that it is to be tried again soon; Ready says why. The object's
// status has to be written afterwards in any case.
func (r *Releases) Sync(ctx context.Context, req Request) (out Outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("release panicked: %v", p)
			req.Log.Error(err, "cannot sync release", "stack", string(debug.Stack()))
			conditions.MarkFalse(req.Object, meta.ReadyCondition, "ReconcileError", "%s", err)
		}
	}()
	obj := req.Object
	byExpression, err := cel.NewStatusReader(obj.Spec.HealthCheckExprs)
	if err != nil {
		r.refuse(obj, meta.InvalidCELExpressionReason, err)
		return Outcome{Stalled: true}, nil
	}
	n, err := r.begin(req)
	if err != nil {
		conditions.MarkFalse(obj, meta.ReadyCondition, "RESTClientError", "%s", err)
		return Outcome{}, err
	}
	if len(obj.Spec.HealthCheckExprs) > 0 {
		n.readers = readers{byExpression}
	}
	want := Desired{
		ChartName: req.Chart.Name, ChartVersion: req.Chart.Version,
		Values: req.Values, ConfigDigest: ConfigDigest(req.Values),
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
	obj.Status.LastAttemptedGeneration = obj.Generation
	obj.Status.LastAttemptedRevision, obj.Status.LastAttemptedRevisionDigest = want.ChartVersion, req.OCIDigest
	obj.Status.LastAttemptedConfigDigest = want.ConfigDigest.String()
	//lint:ignore SA1019 what engines of before left there is to go
	obj.Status.LastAttemptedValuesChecksum, obj.Status.LastReleaseRevision = "", 0
	return n.loop(ctx, want)
}

// refuse records that the object cannot be used as it is.
func (r *Releases) refuse(obj *v2.HelmRelease, reason string, err error) {
	message := "Reconciliation failed terminally due to configuration error: " + err.Error()
	isNew := conditions.GetMessage(obj, meta.StalledCondition) != message
	conditions.MarkFalse(obj, meta.ReadyCondition, reason, "%s", message)
	conditions.MarkStalled(obj, reason, "%s", message)
	obj.Status.ObservedGeneration = obj.Generation
	if isNew {
		r.Events.Eventf(obj, corev1.EventTypeWarning, reason, "%s", err)
	}
}

// loop takes one step after the other until nothing is left to do, or the same
// would be done again.
func (n *run) loop(ctx context.Context, want Desired) (Outcome, error) {
	for {
		if err := ctx.Err(); err != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
			defer cancel()
			if saveErr := n.req.Save(last); saveErr != nil {
				n.log.Error(saveErr, "cannot save status after cancellation")
			}
			return Outcome{}, fmt.Errorf("atomic release canceled: %w", err)
		}
		state, reason, diff, err := n.look(ctx, want)
		if err = n.redacted(err); err != nil {
			conditions.MarkFalse(n.obj, meta.ReadyCondition, "StateError", "Could not determine release state: %s", err)
			return Outcome{}, fmt.Errorf("cannot determine release state: %w", err)
		}
		next, why, err := n.decide(ctx, state)
		if err != nil {
			return Outcome{}, err
		}
		n.log.V(1).Info("decided", "state", state, "reason", reason, "action", next)
		if !next.creates() {
			conditions.Delete(n.obj, v1alpha1.CreateHeldCondition)
		}
		switch next {
		case Stall:
			return n.stall(why), nil
		case Warn:
			n.tellDrift(diff)
			return n.finish(ctx)
		case Nothing:
			n.settle()
			return n.finish(ctx)
		}
		if slices.Contains(n.done, next.class()) {
			return n.pause(), nil
		}
		held, err := n.creation(ctx, next, diff)
		if err != nil {
			conditions.MarkFalse(n.obj, meta.ReadyCondition, "StateError", "%s", err)
			return Outcome{}, err
		}
		if held.Blocked() {
			n.holdCreation(held)
			return Outcome{Creation: held}, nil
		}
		conditions.Delete(n.obj, v1alpha1.CreateHeldCondition)
		switch next {
		case Correct:
			n.tellDrift(diff)
		case Test:
			n.forgive()
		}
		if err := n.announce(ctx, next); err != nil {
			return Outcome{}, err
		}
		if err := n.redacted(n.take(ctx, next, diff)); err != nil {
			if retry := n.obj.GetActiveRetry(n.DefaultToRetryOnFailure); retry != nil {
				n.log.Error(err, "failed to run '"+string(next)+"' action")
				return n.retry(retry), nil
			}
			if conditions.IsReady(n.obj) {
				conditions.MarkFalse(n.obj, meta.ReadyCondition, "ReconcileError", "%s", err)
			}
			return Outcome{}, err
		}
		if next.remedies() {
			return n.remedied(), nil
		}
		n.done = append(n.done, next.class())
		if err := n.req.Save(ctx); err != nil {
			return Outcome{}, err
		}
	}
}

// decide gathers the facts and returns the next action. What follows from the
// state for the record of history and conditions is done as well.
func (n *run) decide(ctx context.Context, state State) (Action, string, error) {
	obj := n.obj
	f := Facts{
		State: state,
		// Asked each time: a request is handled once.
		Forced:           v2.ShouldHandleForceRequest(obj),
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
			target, err := rollbackTarget(storage.Init(n.driver()), previous)
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
	n.trim(state, f)
	next, why := Decide(f)
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
		// It says nothing about a release that somebody else made.
		obj.Status.ClearHistory()
	}
}

// protected reports whether the release has objects that no remediation may
// delete. Confirmations do not count: nobody confirmed a failure.
func (n *run) protected(ctx context.Context) (bool, error) {
	_, rel, err := n.newest(ctx)
	if err != nil || rel == nil {
		return false, err
	}
	objects, _, err := objectsOf(rel, n.session.cluster.RESTMapper())
	if err != nil {
		return false, err
	}
	s := n.guard.judgeAll(ctx, goingOf(objects))
	carries := slices.ContainsFunc(s.deletable, func(e inventory.Entry) bool { return inventory.ProtectedKind(e.Group, e.Kind) })
	return carries || len(s.kept()) > 0, nil
}

// newest reads the newest revision; nil if there is none.
func (n *run) newest(ctx context.Context) (stamp string, rel *helmrelease.Release, err error) {
	found, err := revisions(ctx, n.session.cluster, n.storageNamespace, n.name)
	if err != nil {
		return "", nil, err
	}
	if len(found) == 0 {
		return "", nil, nil
	}
	rel, err = typed(n.driver().Get(secretName(n.name, found[0].version)))
	return stampOf(found), rel, err
}

// look tells the state of the release. What is stored is read only if it is not
// what it was when it was read last.
func (n *run) look(ctx context.Context, want Desired) (State, string, jsondiff.DiffSet, error) {
	rel, err := n.read(ctx)
	if err != nil {
		return "", "", nil, fmt.Errorf("failed to retrieve last release from storage: %w", err)
	}
	state, reason, err := StateOf(n.obj, n.found.stored, want)
	if err != nil || state != InSync || !n.obj.GetDriftDetection().MustDetectChanges() {
		return state, reason, nil, err
	}
	if rel == nil {
		if rel, err = typed(n.driver().Get(secretName(n.name, n.found.stored.Version))); err != nil {
			return "", "", nil, fmt.Errorf("failed to retrieve last release from storage: %w", err)
		}
	}
	set, err := drift(ctx, n.session.cluster, n.obj, rel, n.OverrideManagers)
	switch {
	case err != nil && !set.HasChanges():
		return "", "", nil, fmt.Errorf("unable to determine cluster state: %w", err)
	case err != nil:
		n.log.Error(n.redacted(err), "diff of release against cluster state completed with error")
	}
	if set.HasChanges() {
		return Drifted, "", set, nil
	}
	return InSync, "", nil, nil
}

// read sets found. The release is returned if it had to be read.
func (n *run) read(ctx context.Context) (*helmrelease.Release, error) {
	recorded := ""
	latest := n.obj.Status.History.Latest()
	if latest != nil {
		recorded = latest.Digest + " " + latest.APIVersion + " " + latest.OCIDigest
	}
	found, err := revisions(ctx, n.session.cluster, n.storageNamespace, n.name)
	if err != nil {
		return nil, err
	}
	stamp := stampOf(found)
	n.mu.Lock()
	before, ok := n.known[n.obj.UID]
	n.mu.Unlock()
	if ok && before.cluster == n.session.cluster && before.stamp == stamp && before.recorded == recorded {
		n.found = before
		return nil, nil
	}
	now := known{cluster: n.session.cluster, stamp: stamp, recorded: recorded}
	var rel *helmrelease.Release
	if len(found) > 0 {
		if rel, err = typed(n.driver().Get(secretName(n.name, found[0].version))); err != nil {
			return nil, err
		}
		now.stored = storedOf(rel, latest)
		if now.leftovers, err = n.leftoversOf(rel); err != nil {
			return nil, err
		}
	}
	n.found = now
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil {
		n.known = map[types.UID]known{}
	}
	n.known[n.obj.UID] = now
	return rel, nil
}

func storedOf(rel *helmrelease.Release, latest *v2.Snapshot) *Stored {
	s := &Stored{Name: rel.Name, Namespace: rel.Namespace, Version: rel.Version, Status: rel.Info.Status}
	if rel.Chart != nil && rel.Chart.Metadata != nil {
		s.ChartName, s.ChartVersion = rel.Chart.Metadata.Name, rel.Chart.Metadata.Version
	}
	if latest != nil {
		s.Unverified = verify(latest, rel)
	}
	return s
}

// Forget drops what is remembered of a HelmRelease that is gone.
func (r *Releases) Forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, uid)
}

// leftoversOf are the objects of the inventory that neither the release has nor
// its definitions: earlier revisions had them, and they must not go yet.
func (n *run) leftoversOf(rel *helmrelease.Release) ([]inventory.Entry, error) {
	recorded := entriesOf(n.obj.Status.Inventory)
	if len(recorded) == 0 {
		return nil, nil
	}
	has, _, err := n.contents(rel)
	if err != nil {
		return nil, err
	}
	return dropped(recorded, has), nil
}

// dropped are the recorded objects that a release does not have any more. One of
// which it was not known whether it has a namespace, now or when it was recorded,
// is the one of the same name: unknown is not absent.
func dropped(recorded, has []inventory.Entry) []inventory.Entry {
	unplaced := func(e inventory.Entry) inventory.Entry {
		return inventory.Entry{Group: e.Group, Kind: e.Kind, Name: e.Name}
	}
	same := map[inventory.Entry]bool{}
	for _, e := range has {
		same[unplaced(e)] = same[unplaced(e)] || e.Namespace == ""
	}
	return slices.DeleteFunc(inventory.Difference(recorded, has), func(e inventory.Entry) bool {
		nowhere, known := same[unplaced(e)]
		return known && (nowhere || e.Namespace == "")
	})
}

// contents are the objects that a release answers for: of its manifest, and the
// definitions that came with its chart.
func (n *run) contents(rel *helmrelease.Release) (entries []inventory.Entry, warnings []string, err error) {
	objects, warnings, err := objectsOf(rel, n.session.cluster.RESTMapper())
	if err != nil {
		return nil, nil, err
	}
	entries = inventory.OfAll(objects)
	if rel.Chart != nil {
		definitions, err := definitionsOf(rel.Chart)
		if err != nil {
			return nil, nil, err
		}
		entries = append(entries, inventory.OfAll(definitions)...)
	}
	return entries, warnings, nil
}

// announce writes down what is about to be done, which may take minutes.
func (n *run) announce(ctx context.Context, next Action) error {
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
	}[a]
	if of == nil {
		return whole.Duration
	}
	return of(whole).Duration
}

func (n *run) retry(r v2.Retry) Outcome {
	conditions.MarkReconciling(n.obj, meta.ProgressingWithRetryReason, "retrying after %s", r.GetRetryInterval())
	return Outcome{After: r.GetRetryInterval()}
}

// pause ends a call that would do the same again: in the next it may.
func (n *run) pause() Outcome {
	if retry := n.obj.GetActiveRetry(n.DefaultToRetryOnFailure); retry != nil {
		return n.retry(retry)
	}
	if active := n.obj.GetActiveRemediation(); active == nil || !active.RetriesExhausted(n.obj) {
		return n.again()
	}
	conditions.Delete(n.obj, meta.ReconcilingCondition)
	return Outcome{}
}

func (n *run) again() Outcome {
	conditions.MarkReconciling(n.obj, meta.ProgressingWithRetryReason, "%s", conditions.GetMessage(n.obj, meta.ReadyCondition))
	return Outcome{Again: true}
}

// remedied ends a call that remedied a failure.
func (n *run) remedied() Outcome {
	if retry := n.obj.GetActiveRetry(n.DefaultToRetryOnFailure); retry != nil {
		return n.retry(retry)
	}
	active := n.obj.GetActiveRemediation()
	if active == nil || !active.RetriesExhausted(n.obj) || active.IsUninstallAfterUpgrade() {
		return n.again()
	}
	return n.stall(ReasonRetriesExceeded)
}

// stall gives up. It is no error: trying again would change nothing.
func (n *run) stall(reason string) Outcome {
	switch reason {
	case ReasonMissingRollbackTarget:
		conditions.MarkStalled(n.obj, reason, "Failed to perform remediation: missing target release for rollback: cannot remediate failed release")
	default:
		var failures int64
		if active := n.obj.GetActiveRemediation(); active != nil {
			failures = active.GetFailureCount(n.obj)
		}
		conditions.MarkStalled(n.obj, reason, "Failed to %s after %d attempt(s)", n.obj.Status.LastAttemptedReleaseAction, failures)
	}
	return Outcome{Stalled: true}
}

// text is a message about a failure, without secrets.
func (n *run) text(err error) string {
	if n.req.Redact == nil {
		return err.Error()
	}
	return n.req.Redact(err.Error())
}

// redacted is an error whose text is without secrets.
func (n *run) redacted(err error) error {
	if err == nil || n.req.Redact == nil {
		return err
	}
	return &redacted{n.text(err), err}
}

type redacted struct {
	text string
	err  error
}

func (r *redacted) Error() string { return r.text }
func (r *redacted) Unwrap() error { return r.err }

// errNoLatest: there is no release that could be acted on.
var errNoLatest = errors.New("no latest release")

// errMismatch: Helm acted on another release than the one that is recorded.
var errMismatch = errors.New("release mismatch")
