package remote

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/remote/tenure"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// run is one reconcile of one child.
type run struct {
	*Children
	child *v1alpha1.Child
	// recorded is the Child as the API server has it.
	recorded *v1alpha1.Child
	notes    *notes
	// object is the Cluster, nil for a child that has none.
	object *unstructured.Unstructured
	// labels are those by which layers and Rollouts select the child. Variables are of the Cluster's own.
	labels map[string]string
	// elsewhere: another tier manages the Cluster. What was pushed stays as it is: without the
	// Cluster, layers would be rendered with other variables.
	elsewhere bool
	// undescribed is why it is not known what the layers would be rendered with, though the child has
	// some; empty if it is known. Nothing new is pushed until then.
	undescribed string
	// later: the child is asked whether it answers, and looked at once all were asked.
	later bool
	// tenure is that of the child's shard, nil where the tier has no shards.
	tenure *tenure.Tenure
	// gone: the Child was deleted, or is another process's by now. asking: the run only started a probe; the next run
	// handles what a person may have requested.
	gone, asking bool
	// told: the child says by itself when something changes.
	told bool
	// governing are the Rollouts that govern the child.
	governing rollout.Governing
	// sources of the layers that select the child.
	sources map[string]source.Key
	// revisit: a layer was not looked at, and no event tells when it may be.
	revisit bool
	// rest is how long nothing can be pushed, because the child used up its time.
	rest time.Duration
}

// writeStatus writes the status if it changed.
func (r *run) writeStatus(ctx context.Context) error {
	if equality.Semantic.DeepEqual(r.recorded.Status, r.child.Status) {
		return nil
	}
	// The response is decoded into the copy: the run goes on with its own.
	after := r.child.DeepCopy()
	err := r.patchStatus(ctx, after)
	if apierrors.IsConflict(err) && r.rebase(ctx) {
		after = r.child.DeepCopy()
		err = r.patchStatus(ctx, after)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot write status of Child %s/%s: %w", r.child.Namespace, r.child.Name, err)
	}
	r.child.ResourceVersion = after.ResourceVersion
	r.notes.written = after.ResourceVersion
	recordAll(r.Events, r.child, nil, childTransitions(r.recorded, r.child))
	r.recorded = r.child.DeepCopy()
	return nil
}

func (r *run) patchStatus(ctx context.Context, after *v1alpha1.Child) error {
	return r.Client.Status().Patch(ctx, after, client.MergeFromWithOptions(r.recorded, client.MergeFromWithOptimisticLock{}), client.FieldOwner(statusManager))
}

// rebase goes on from the Child as the API server has it now, if nobody changed what runs
// write: what Rollouts let the child have is written by others, and stays as they wrote it.
func (r *run) rebase(ctx context.Context) bool {
	live := &v1alpha1.Child{}
	if err := r.Cluster.Get(ctx, r.key(), live); err != nil || live.UID != r.child.UID || !live.DeletionTimestamp.IsZero() {
		return false
	}
	was := r.recorded.Status.DeepCopy()
	was.Rollouts = live.Status.Rollouts
	if !equality.Semantic.DeepEqual(*was, live.Status) {
		return false
	}
	r.recorded = live.DeepCopy()
	pins := live.DeepCopy().Status.Rollouts
	for i := range pins {
		found := func(pin v1alpha1.ChildRollout) bool { return pin.Brought && pins[i].Same(pin) }
		pins[i].Brought = pins[i].Brought || slices.ContainsFunc(r.child.Status.Rollouts, found)
		if n := slices.IndexFunc(r.child.Status.Rollouts, pins[i].Same); n >= 0 {
			pins[i].Idle = r.child.Status.Rollouts[n].Idle
		}
	}
	r.child.Status.Rollouts = pins
	r.child.ResourceVersion = live.ResourceVersion
	return true
}

func (r *run) key() types.NamespacedName { return client.ObjectKeyFromObject(r.child) }

func (r *run) condition(kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	meta.SetStatusCondition(&r.child.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: short(fmt.Sprintf(format, args...)), ObservedGeneration: r.child.Generation,
	})
}

// notConnected sets the conditions that say why the child is not connected. The
// rest of the status stays.
func (r *run) notConnected(status metav1.ConditionStatus, reason, format string, args ...any) {
	r.condition(v1alpha1.ConnectedCondition, status, reason, format, args...)
	r.condition(v1alpha1.ReadyCondition, metav1.ConditionFalse, reason, format, args...)
	if !meta.IsStatusConditionTrue(r.child.Status.Conditions, v1alpha1.SeededCondition) {
		r.condition(v1alpha1.SeededCondition, metav1.ConditionFalse, reason, format, args...)
	}
}

func (r *run) reconcile(ctx context.Context) (ctrl.Result, error) {
	cluster, ok, result, err := r.facts(ctx)
	if !ok {
		return result, err
	}
	selected, err := r.selected(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(selected) == 0 && len(r.child.Status.Layers) == 0 {
		if keeps, err := r.keepsKubeconfig(ctx, cluster); err != nil {
			return ctrl.Result{}, err
		} else if !keeps {
			r.Connections.Forget(r.key()) // nobody asks it any more
			r.notConnected(metav1.ConditionUnknown, v1alpha1.ReasonNoLayer, "no Layer of namespace %s selects this cluster", r.child.Namespace)
			return ctrl.Result{}, nil
		}
	}
	if err := r.governs(ctx); err != nil {
		return ctrl.Result{}, err
	}
	r.retain(selected)
	r.sources = map[string]source.Key{}
	for _, layer := range selected {
		if layer.Spec.SourceRef != nil {
			r.sources[layer.Name] = layerSource(layer)
		}
	}
	if err := r.rememberSeeded(ctx, cluster.Paused, selected); err != nil {
		return ctrl.Result{}, err
	}
	if r.later = r.mayWait(cluster, selected); r.later && r.notes.met {
		r.asking = true
		return ctrl.Result{RequeueAfter: r.afterOthers(), Priority: new(periodic)}, nil
	}
	facts, err := r.describe(ctx, cluster)
	if err != nil {
		// What was known is not known to hold any more.
		r.condition(v1alpha1.ReadyCondition, metav1.ConditionUnknown, v1alpha1.ReasonClusterNotReady, "%s", err)
		return ctrl.Result{}, err
	}
	cluster = facts.Into(cluster)
	if !r.elsewhere && r.undescribed == "" {
		r.place(cluster)
	}
	base := r.gates.Gate(ctx, nil, cluster, capibridge.WhenControlPlaneInitialized)
	if !base.Open && base.Reason != v1alpha1.ReasonPaused {
		message := base.Message
		if _, detail := cluster.State(facts); detail != "" {
			message += ": " + detail
		}
		r.notConnected(metav1.ConditionFalse, base.Reason, "%s", message)
		return ctrl.Result{RequeueAfter: r.jittered(waitPause)}, nil
	}
	l := r.Connections.Of(r.key())
	// What is on its way ends when the child is forgotten.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.Life(), cancel)()
	if id := r.child.Status.Identity; id != nil {
		takes := slices.ContainsFunc(selected, hasAgent) && !cluster.Paused && !r.child.Spec.Suspend && !r.child.Spec.InCluster
		l.TakesHints(takes, id.KubeSystemUID)
	}
	session, found, ok, result, err := r.connect(ctx, l, cluster, selected)
	if !ok {
		return result, err
	}
	defer session.End()
	r.seedAll(ctx, session, cluster, selected)
	if session.Over() {
		return ctrl.Result{}, nil // forgotten meanwhile: what failed did so for that
	}
	r.observe(ctx, session, found, selected)
	r.proven(selected)
	r.permit(ctx, session, cluster.Paused)
	r.renew(ctx, session, cluster)
	published := r.publish(ctx)
	// Another kubeconfig than that of Cluster API nobody tells of, nor when what failed may succeed.
	r.told = r.object != nil && l.Told() && published
	result = r.next(selected)
	if wait, changed := l.Unread(); changed {
		// While the report was read, it changed again.
		result.RequeueAfter = min(result.RequeueAfter, max(wait, progressPause))
	}
	return result, nil
}

// permit lets the parent read the metrics of a child that has its layers. Without it nothing
// else of the child is worse, so that a failure is told in the log, and by who reads.
func (r *run) permit(ctx context.Context, session *link.Session, paused bool) {
	if r.Scrapes == nil || paused || r.child.Spec.InCluster || !meta.IsStatusConditionTrue(r.child.Status.Conditions, v1alpha1.SeededCondition) {
		return
	}
	if err := session.Permit(ctx, *r.Scrapes); err != nil {
		log.FromContext(ctx).Error(err, "cannot let this tier read the metrics of a child", "child", r.key())
	}
}

// next says when to reconcile again: for what the conditions say, and before that for a
// layer that is due. A child that used up its time is left alone until it has some again.
func (r *run) next(selected []*v1alpha1.Layer) ctrl.Result {
	result := r.pace()
	if r.revisit {
		result.RequeueAfter = min(result.RequeueAfter, r.jittered(waitPause))
	}
	if due := r.due(selected); !r.elsewhere && !due.IsZero() && due.Sub(r.Now()) < result.RequeueAfter {
		result.RequeueAfter = max(due.Sub(r.Now()), progressPause)
	}
	if !r.notes.renewAt.IsZero() {
		result.RequeueAfter = min(result.RequeueAfter, max(r.notes.renewAt.Sub(r.Now()), progressPause))
	}
	result.RequeueAfter = max(result.RequeueAfter, r.rest)
	return result
}

// due is when the next layer that is in place is compared with the child; zero if none is.
// One that is suspended, or waits for something, is not compared however long it is due.
func (r *run) due(selected []*v1alpha1.Layer) time.Time {
	var next time.Time
	for _, layer := range selected {
		entry, n := entryOf(r.child, layer.Name), r.notes.layers[layer.Name]
		if layer.Spec.Suspend || entry == nil || !entry.Ready || n == nil || n.due.IsZero() {
			continue
		}
		if next.IsZero() || n.due.Before(next) {
			next = n.due
		}
	}
	return next
}

// pace is how soon the conditions may change.
func (r *run) pace() ctrl.Result {
	c := meta.FindStatusCondition(r.child.Status.Conditions, v1alpha1.ReadyCondition)
	switch {
	case c.Status == metav1.ConditionTrue && r.movingBelow():
		return ctrl.Result{RequeueAfter: r.jittered(min(movingPause, r.ObserveInterval))}
	case c.Status == metav1.ConditionTrue && r.told:
		return ctrl.Result{RequeueAfter: r.jittered(max(toldPause, r.ObserveInterval)), Priority: new(periodic)}
	case c.Status == metav1.ConditionTrue:
		return ctrl.Result{RequeueAfter: r.jittered(r.ObserveInterval), Priority: new(periodic)}
	case c.Reason == v1alpha1.ReasonPruneBlocked, c.Reason == v1alpha1.ReasonPaused, c.Reason == v1alpha1.ReasonNoLayer, c.Reason == v1alpha1.ReasonInvalidSpec,
		c.Reason == v1alpha1.ReasonRolloutPending, c.Reason == v1alpha1.ReasonRolloutConflict, c.Reason == v1alpha1.ReasonSuspended, c.Reason == v1alpha1.ReasonSuperseded, c.Reason == v1alpha1.ReasonRemovalHeld:
		return ctrl.Result{RequeueAfter: r.jittered(r.ObserveInterval)}
	case r.notes.retryAt().After(r.Now()):
		// What the child refused is tried again alone.
		return ctrl.Result{RequeueAfter: min(r.notes.retryAt().Sub(r.Now()), r.ObserveInterval)}
	case r.Now().Sub(r.notes.grew(c.LastTransitionTime.Time)) > time.Minute:
		// Not ready for a while: it will not change within a second.
		return ctrl.Result{RequeueAfter: r.jittered(min(waitPause, r.ObserveInterval))}
	}
	return ctrl.Result{RequeueAfter: progressPause}
}

// movingBelow reports whether the clusters below the child are on their way, so that its
// report is about to change. One that has not been ready for a while says nothing new by
// being asked more often.
func (r *run) movingBelow() bool {
	below := report.CountsBelow(r.child)
	if below == nil || below.Ready+below.Suspended+below.Stale >= below.Total {
		return false
	}
	if before := report.CountsBelow(r.recorded); before == nil || before.Ready != below.Ready || before.Total != below.Total {
		r.notes.moved = r.Now()
	}
	return r.Now().Sub(r.notes.moved) < movingFor
}

// jittered spreads children that would be reconciled at the same time.
func (r *run) jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.2*r.Rand()))
}

// short bounds a message for a condition.
func short(s string) string { return report.Cut(s, 2000) }
