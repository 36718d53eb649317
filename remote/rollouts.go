package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// Rollouts lets children have revisions: it gathers facts, has package rollout decide, and
// writes the decision down, first into the Rollout, then into each Child. Who pushes to a
// child, or declares its Cluster, reads it there. Only the leader of the tier decides.
//
// A decision is made from what the API server had of this process's own writes at least,
// and each write says what it was decided from, so that of two processes which take each
// other for gone only one gets on.
type Rollouts struct {
	Client client.Client
	// Reader reads from the API server of this tier.
	Reader    client.Reader
	Snapshots *source.Snapshots
	Clusters  *clusters.Watch
	// Compositions tell what Kustomizations declare of each Cluster; nil where none are
	// reconciled.
	Compositions Compositions
	// Repositories reads and writes the tags of sources; nil where no GitRepositories are
	// reconciled.
	Repositories Repositories
	// Part is which of the Rollouts this process decides about.
	Part   Part
	Events record.EventRecorder
	// MayWrite is an error while this process does not lead the tier; nil never refuses.
	MayWrite func() error
	// MaxChanging is how many clusters of the tier may change at the same time, over all
	// Rollouts; zero has no bound.
	MaxChanging int
	// Version of this program. Children do not get an agent of a later one.
	Version string
	// NoCrossNamespaceRefs refuses sources of other namespaces.
	NoCrossNamespaceRefs bool
	Metrics              *RolloutMetrics
	Now                  func() time.Time

	accounts  *account.Accounts
	rollouts  *rolloutKind
	contents  *contents
	templates *templates
	workers   worker.Runner
	exchange  *exchange
	// followCharts has the HelmCharts of the tier watched from the first call on, for the Rollouts
	// that take versions of one.
	followCharts func() error
	// numbers were written when.
	numbers numbers

	mu sync.Mutex
	// written are the versions of the last writes of Children and Rollouts, until the cache
	// shows them, and looked when a Rollout was decided about last.
	written map[writtenKey]string
	looked  map[types.NamespacedName]time.Time
	// watched is when this process looked at a Rollout, by the time of day: a machine may have slept.
	watched map[types.NamespacedName]watched
	// dated are the statuses of Rollouts that this process read or wrote.
	dated map[types.NamespacedName]dated
	// caught are the Rollouts about which this process decided once.
	caught map[types.NamespacedName]bool
	// unread is since when it is not known what a Rollout's layer reads of its candidate.
	unread map[types.NamespacedName]time.Time
	// barriers are those of the revisions that clusters may have of a Rollout's layer.
	barriers map[types.NamespacedName]map[string]barrier
}

// writtenKey names a Child or a Rollout.
type writtenKey struct {
	child bool
	types.NamespacedName
}

// watched is since when a process looks at something without a gap, and when it did so last.
type watched struct{ since, last time.Time }

// dated is when a status was written last by the clock of the API server, and when this process saw that.
type dated struct{ at, seen time.Time }

// setBack is for how long the time of a write that is before that of an earlier one counts for nothing: the clock of
// the API server, which may be this process's, was set back, and may be wrong since rather than before.
const setBack = time.Hour

// decidePause is between two decisions about a Rollout, while children change by the
// hundred.
const decidePause = time.Second

// refusedAgain is after how long a Rollout is looked at again about which nothing could be decided. Nothing tells when
// an account comes to have a right, or can be asked about again.
const refusedAgain = 30 * time.Second

// errLags: the cache does not show an own write yet.
var errLags = errors.New("the cache lags")

// Reconcile decides about one Rollout.
func (r *Rollouts) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !r.Part.leads() {
		return ctrl.Result{}, nil
	}
	o := &v1alpha1.Rollout{}
	err := r.Client.Get(ctx, req.NamespacedName, o)
	switch {
	case apierrors.IsNotFound(err):
		return ctrl.Result{}, r.gone(ctx, req.NamespacedName)
	case err != nil:
		return ctrl.Result{}, err
	case !o.DeletionTimestamp.IsZero() || !r.Part.selects(o): // it goes, or another agent decides about it
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	if wait := r.early(req.NamespacedName); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	result, err := r.decide(ctx, o)
	switch {
	case errors.Is(err, errLags), apierrors.IsConflict(err):
		// Somebody else wrote, the run of a child most often: the next look sees it.
		r.soon(req.NamespacedName)
		return ctrl.Result{RequeueAfter: stalePause}, nil
	case errors.Is(err, errNotListed):
		return ctrl.Result{RequeueAfter: decidePause}, nil
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("cannot decide about Rollout %s: %w", req.NamespacedName, err)
	}
	return result, nil
}

// early is how long to wait before the next decision; zero decides now.
func (r *Rollouts) early(key types.NamespacedName) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Now()
	if wait := decidePause - now.Sub(r.looked[key]); wait > 0 && wait <= decidePause {
		return wait
	}
	if r.looked == nil {
		r.looked = map[types.NamespacedName]time.Time{}
	}
	r.looked[key] = now
	return 0
}

// soon lets the next decision follow at once.
func (r *Rollouts) soon(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.looked, key)
}

// forget drops what this process keeps of a Rollout about which it decides no more.
func (r *Rollouts) forget(key types.NamespacedName) {
	r.Snapshots.Retain(source.Holder{Kind: "Rollout", NamespacedName: key})
	r.Metrics.forget(key)
	r.exchange.forget(key)
	r.numbers.forget(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.looked, key)
	delete(r.caught, key)
	delete(r.watched, key)
	delete(r.dated, key)
	delete(r.unread, key)
	delete(r.barriers, key)
	delete(r.written, writtenKey{NamespacedName: key})
}

// gone forgets a Rollout that is not there any more: what it moved follows the newest
// revision again.
func (r *Rollouts) gone(ctx context.Context, key types.NamespacedName) error {
	r.forget(key)
	// The cache may lag behind the one who made it again a moment ago.
	err := r.Reader.Get(ctx, key, &v1alpha1.Rollout{})
	if err == nil || !apierrors.IsNotFound(err) {
		return err
	}
	list := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, list, client.InNamespace(key.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("cannot list Children: %w", err)
	}
	for i := range list.Items {
		if err := r.drop(ctx, &list.Items[i], key.Name); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// decide makes one decision and carries it out.
func (r *Rollouts) decide(ctx context.Context, o *v1alpha1.Rollout) (ctrl.Result, error) {
	if r.lags(writtenKey{NamespacedName: client.ObjectKeyFromObject(o)}, o) {
		return ctrl.Result{}, errLags
	}
	facts, err := r.facts(ctx, o)
	if reason.Given(err) {
		return r.refuse(ctx, o, err)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	status := o.Status.DeepCopy()
	status.UID = cmp.Or(status.UID, o.UID)
	d := rollout.Next(o.Name, &o.Spec, status, facts.Facts, r.Now())
	r.retain(o, facts, &d)
	after := o.DeepCopy()
	after.Status = d.Status
	after.Status.LastHandledReconcileAt = o.Annotations[fluxmeta.ReconcileRequestAnnotation]
	after.Status.CandidateDigest, after.Status.ObservedRevision = facts.digest, facts.observed
	if up := d.Status.Upstream; facts.digests != nil && up != nil && up.Taken != nil {
		after.Status.CandidateDigest = facts.digests[up.Taken.Commit]
	}
	is := r.exchange.about(o, facts.from)
	sayExchange(after, is, d.Upstream, facts.held != nil)
	run := d.Status.Run
	goesOn := run != nil && rollout.Active(run) && (run.Phase == v1alpha1.RolloutReverting || facts.TooNew[run.Image] == "")
	if sayRollout(after, d.Hold); facts.held != nil && !goesOn {
		sayRefused(after, reason.Of(facts.held), facts.held.Error())
	}
	again, err := r.writeStatus(ctx, o, after)
	if err != nil {
		return ctrl.Result{}, err
	}
	for _, p := range d.Pins {
		r.watching(client.ObjectKeyFromObject(o)) // there may be thousands of writes
		if err := r.pin(ctx, facts.children[p.Cluster], p.Given(facts.Clusters)); err != nil {
			return ctrl.Result{}, err
		}
	}
	for _, child := range facts.others {
		if err := r.drop(ctx, child, o.Name); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	r.Metrics.record(after)
	wait := d.RecheckAfter
	if len(d.Pins) > 0 && wait == 0 {
		wait = movingPause
	}
	for _, again := range []time.Duration{again, facts.again} {
		if again > 0 && (wait == 0 || again < wait) {
			wait = again
		}
	}
	return ctrl.Result{RequeueAfter: wait}, nil
}

// refuse says that nothing is decided, and why.
func (r *Rollouts) refuse(ctx context.Context, o *v1alpha1.Rollout, why error) (ctrl.Result, error) {
	after := o.DeepCopy()
	after.Status.LastHandledReconcileAt = o.Annotations[fluxmeta.ReconcileRequestAnnotation]
	sayRefused(after, reason.Of(why), why.Error())
	again, err := r.writeStatus(ctx, o, after)
	if err == nil {
		r.Metrics.record(after)
	}
	if again == 0 {
		again = refusedAgain
	}
	return ctrl.Result{RequeueAfter: min(again, refusedAgain)}, err
}

// writeStatus writes the status of a Rollout if it changed, and tells what did. Numbers alone
// may wait: again is how long.
func (r *Rollouts) writeStatus(ctx context.Context, before, after *v1alpha1.Rollout) (again time.Duration, err error) {
	after.Status.ObservedGeneration = after.Generation
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		return 0, nil
	}
	key := client.ObjectKeyFromObject(after)
	if again := r.numbers.early(key, r.Now()); again > 0 && onlyNumbers(&before.Status, &after.Status) {
		return again, nil
	}
	if err := r.mayWrite(); err != nil {
		return 0, err
	}
	if err := r.Client.Status().Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(statusManager)); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	r.numbers.wrote(key, r.Now())
	r.wrote(writtenKey{NamespacedName: key}, after)
	r.tell(before, after)
	return 0, nil
}

func (r *Rollouts) mayWrite() error {
	if r.MayWrite == nil {
		return nil
	}
	return r.MayWrite()
}

// pin writes what a child may have.
func (r *Rollouts) pin(ctx context.Context, child *v1alpha1.Child, pin v1alpha1.ChildRollout) error {
	return r.edit(ctx, child, func(list []v1alpha1.ChildRollout) []v1alpha1.ChildRollout {
		for i := range list {
			if list[i].Name == pin.Name {
				list[i] = pin
				return list
			}
		}
		return append(list, pin)
	})
}

// drop removes what a Rollout let a child have.
func (r *Rollouts) drop(ctx context.Context, child *v1alpha1.Child, name string) error {
	has := func(c v1alpha1.ChildRollout) bool { return c.Name == name }
	if !slices.ContainsFunc(child.Status.Rollouts, has) {
		return nil
	}
	return r.edit(ctx, child, func(list []v1alpha1.ChildRollout) []v1alpha1.ChildRollout { return slices.DeleteFunc(list, has) })
}

// edit changes the list of a child. It conflicts with whoever wrote the Child since.
func (r *Rollouts) edit(ctx context.Context, child *v1alpha1.Child, change func([]v1alpha1.ChildRollout) []v1alpha1.ChildRollout) error {
	if err := r.mayWrite(); err != nil {
		return err
	}
	after := child.DeepCopy()
	after.Status.Rollouts = change(after.Status.Rollouts)
	patch := client.MergeFromWithOptions(child, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, after, patch, client.FieldOwner(statusManager)); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("cannot write status of Child %s/%s: %w", child.Namespace, child.Name, err)
	}
	r.wrote(writtenKey{true, client.ObjectKeyFromObject(child)}, after)
	return nil
}

// wrote remembers the version of an own write.
func (r *Rollouts) wrote(key writtenKey, o client.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.written == nil {
		r.written = map[writtenKey]string{}
	}
	r.written[key] = o.GetResourceVersion()
	if !key.child {
		r.date(key.NamespacedName, o.GetManagedFields())
	}
}

// watching is since when this process looks at a Rollout without a gap.
func (r *Rollouts) watching(key types.NamespacedName) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, w := r.Now().Round(0), r.watched[key]
	if passed := now.Sub(w.last); passed < 0 || passed >= rollout.Unwatched {
		w.since = now
	}
	if w.last = now; r.watched == nil {
		r.watched = map[types.NamespacedName]watched{}
	}
	r.watched[key] = w
	return w.since
}

// date remembers when the status of a Rollout was written last by the clock of the API server.
func (r *Rollouts) date(key types.NamespacedName, by []metav1.ManagedFieldsEntry) {
	is, was := dated{seen: r.Now()}, r.dated[key]
	for _, m := range by {
		if m.Manager == statusManager && m.Subresource == "status" && m.Time != nil {
			is.at = m.Time.Time
		}
	}
	if is.at.Before(was.at) && is.seen.Sub(was.seen) < setBack {
		return
	}
	if r.dated == nil {
		r.dated = map[types.NamespacedName]dated{}
	}
	r.dated[key] = is
}

func (r *Rollouts) lastWritten(key types.NamespacedName) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dated[key].at
}

// lags reports whether the cache has an older state of an object than this process wrote.
func (r *Rollouts) lags(key writtenKey, o client.Object) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	version, ok := r.written[key]
	if !ok {
		return false
	}
	if isBefore(o, version) {
		return true
	}
	delete(r.written, key)
	return false
}
