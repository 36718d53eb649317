package kustomization

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/ssa"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/events"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// end is how a reconcile ends. Its conditions are set.
type end struct {
	result ctrl.Result
	err    error
}

// again ends a reconcile that looks again after a while.
func again(after time.Duration) *end { return &end{result: ctrl.Result{RequeueAfter: after}} }

// drifted records objects that are left as somebody else made them.
func (r *Reconciler) drifted(run *run, mode DriftMode, drifts []apply.Drift) {
	obj := run.Obj
	r.Metrics.Drifted(client.ObjectKeyFromObject(obj), len(drifts))
	if mode != DriftReport || len(drifts) == 0 {
		status.RemoveCondition(obj, v1alpha1.DriftedCondition)
		return
	}
	lines := make([]string, 0, len(drifts))
	for _, d := range drifts {
		lines = append(lines, d.String())
	}
	slices.Sort(lines)
	text := strings.Join(lines, "\n")
	was := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.DriftedCondition)
	status.SetCondition(obj, v1alpha1.DriftedCondition, metav1.ConditionTrue, v1alpha1.ReasonDriftDetected, "%s", text)
	if now := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.DriftedCondition); was == nil || was.Message != now.Message {
		r.event(run, corev1.EventTypeWarning, nil, "%s", text)
	}
}

// mostConflicts are named.
const mostConflicts = 10

// conflicts records objects that another Kustomization declares as well. What is applied stays the
// same, as with Flux: who comes last wins.
func (r *Reconciler) conflicts(run *run) {
	obj := run.Obj
	found := run.memo.Conflicts(run.name())
	if len(found) == 0 {
		status.RemoveCondition(obj, v1alpha1.OwnershipConflictCondition)
		return
	}
	isNew := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.OwnershipConflictCondition) == nil
	named := make([]string, 0, mostConflicts+1)
	for _, c := range found[:min(len(found), mostConflicts)] {
		named = append(named, fmt.Sprintf("%s, by Kustomization %s", c.Object, c.Other))
	}
	if more := len(found) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	text := "another Kustomization declares the same, and both apply it in turn; take each object out of one of them in Git: " + strings.Join(named, "; ")
	status.SetCondition(obj, v1alpha1.OwnershipConflictCondition, metav1.ConditionTrue, v1alpha1.ReasonOwnershipConflict, "%s", text)
	if isNew {
		// It says nothing of the revision, whose commit status an Alert would set.
		r.eventOf(run, v1alpha1.ReasonOwnershipConflict, eventv1.EventTypeTrace, nil, "%s", text)
	}
}

// tell emits events about what was changed. Ready may still say what came of the revision
// before, which would be said of this one.
func (r *Reconciler) tell(run *run, sync apply.Result) {
	var changes ssa.ChangeSet
	for _, e := range sync.Changes.Entries {
		if e.Action == ssa.CreatedAction || e.Action == ssa.ConfiguredAction {
			changes.Add(e)
		}
	}
	if len(changes.Entries) > 0 {
		r.eventOf(run, meta.ProgressingReason, corev1.EventTypeNormal, nil, "%s", changes.String())
	}
	if len(sync.Deleted) > 0 {
		r.tellApproved(run)
		lines := make([]string, 0, len(sync.Deleted))
		for _, e := range sync.Deleted {
			lines = append(lines, e.String()+" deleted")
		}
		r.eventOf(run, meta.ProgressingReason, corev1.EventTypeNormal, nil, "%s", strings.Join(lines, "\n"))
	}
}

// tellApproved tells who approved the deletes that were held until now.
func (r *Reconciler) tellApproved(run *run) {
	annotations := run.Obj.GetAnnotations()
	held, known := v1alpha1.HeldOf(run.Obj)
	if !known || held.Prune == nil || held.Prune.Hash == "" || held.Prune.Hash != annotations[v1alpha1.ApprovePruneAnnotation] {
		return
	}
	r.eventOf(run, reasonPruneApproved, corev1.EventTypeNormal, nil, "%s approved prune plan %s", cmp.Or(annotations[v1alpha1.ApprovedByAnnotation], "somebody"), held.Prune.Hash)
}

// reasonPruneApproved is the reason of the event that tells of an approval.
const reasonPruneApproved = "PruneApproved"

// blocked records deletes that are held. Everything else has been done.
func (r *Reconciler) blocked(run *run, sync apply.Result) *end {
	obj := run.Obj
	r.pruneHeld(run, sync.Plan.Hold(run.held.Prune), errors.New(blockedMessage(run, sync.Plan)))
	next := r.Jitter(obj.Spec.Interval.Duration)
	if sync.HandOver != nil {
		next = min(next, r.handOverPause(sync.HandOver))
	}
	if len(sync.Plan.Holding) > 0 {
		next = min(next, handOverPoll)
	}
	if len(sync.Plan.Last) > 0 { // beside what is protected, which may be so no more once that is gone
		next = min(next, run.known.deleting(run.start))
	}
	return again(next)
}

// pruneHeld records what a person has to decide about, and tells of it once.
func (r *Reconciler) pruneHeld(run *run, hold *v1alpha1.HeldPrune, err error) {
	obj := run.Obj
	run.held.Prune = hold
	was := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition)
	isNew := was == nil || was.Reason != v1alpha1.ReasonPruneBlocked || was.Message != err.Error()
	status.MarkStalled(obj, v1alpha1.ReasonPruneBlocked, err)
	obj.Status.ObservedGeneration = obj.Generation
	// Of its own, so that a failure of another kind in between does not make us
	// forget that something is held.
	status.SetCondition(obj, v1alpha1.PruneBlockedCondition, metav1.ConditionTrue, v1alpha1.ReasonPruneBlocked, "%s", err)
	if isNew {
		r.event(run, corev1.EventTypeWarning, nil, "%s", err)
	}
}

// settle has nothing be held any more by a plan that is not blocked, unless what a person has not
// decided about may be deleted later.
func (r *Reconciler) settle(run *run, made inventory.Plan) {
	if !run.undecided() || !run.prunes() || made.Settles() {
		status.RemoveCondition(run.Obj, v1alpha1.PruneBlockedCondition)
	}
	if approved := run.Obj.Annotations[v1alpha1.ApprovePruneAnnotation]; approved != made.Hash && made.Settles() {
		run.lapsed = approved
	}
}

// settleFailed takes in what a plan decided of which a step failed. What a person approved is decided, whatever becomes
// of the deletes: else its rest, which nothing holds, would wait for another approval. What a plan holds beside a failure
// is to be told by the hash that it has now, as no other one can be approved.
func (r *Reconciler) settleFailed(run *run, made inventory.Plan) {
	switch {
	case made.Held:
		run.held.Prune = made.Hold(run.held.Prune)
		status.SetCondition(run.Obj, v1alpha1.PruneBlockedCondition, metav1.ConditionTrue, v1alpha1.ReasonPruneBlocked, "%s", blockedMessage(run, made))
	case made.Settles():
		r.settle(run, made)
	}
}

// blockedMessage says what a plan holds, and what a person can do about it.
func blockedMessage(run *run, made inventory.Plan) string {
	return made.Message(fmt.Sprintf("%s -n %s", run.Obj.Name, run.Obj.Namespace))
}

// endApproval takes off an approval of a plan that is no more. The next accident may lose just the
// same objects, which nobody has decided about then. One that Git declares would come back, which the API server
// tells: the cache keeps no managed fields. Another one was given since.
func (r *Reconciler) endApproval(ctx context.Context, run *run) error {
	if run.lapsed == "" {
		return nil
	}
	live := &kustomizev1.Kustomization{}
	if err := r.Targets.Local.Get(ctx, run.name(), live); err != nil {
		return client.IgnoreNotFound(err)
	}
	declared := slices.ContainsFunc(live.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return e.Operation == metav1.ManagedFieldsOperationApply && e.FieldsV1 != nil && strings.Contains(e.FieldsV1.GetRawString(), v1alpha1.ApprovePruneAnnotation)
	})
	approved := func(o *kustomizev1.Kustomization) string { return o.Annotations[v1alpha1.ApprovePruneAnnotation] }
	if declared || approved(live) != run.lapsed || approved(run.Obj) != run.lapsed {
		return nil
	}
	delete(run.Obj.Annotations, v1alpha1.ApprovePruneAnnotation)
	delete(run.Obj.Annotations, v1alpha1.ApprovedByAnnotation)
	return client.IgnoreNotFound(run.WriteMetadata(ctx))
}

// managedElsewhere records that Clusters are left alone because another tier manages them.
// Everything else is applied, and the Kustomization may be ready.
func (r *Reconciler) managedElsewhere(run *run, sync apply.Result) {
	obj := run.Obj
	if sync.Creation == nil || len(sync.Creation.ManagedElsewhere) == 0 {
		status.RemoveCondition(obj, v1alpha1.ManagedElsewhereCondition)
		return
	}
	run.held.Create = sync.Creation.Hold()
	isNew := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ManagedElsewhereCondition) == nil
	message := sync.Creation.ElsewhereMessage()
	status.SetCondition(obj, v1alpha1.ManagedElsewhereCondition, metav1.ConditionTrue, v1alpha1.ReasonManagedElsewhere, "%s", message)
	if isNew { // as in handsOver
		r.Events.Eventf(obj, corev1.EventTypeNormal, v1alpha1.ReasonManagedElsewhere, "%s", message)
	}
}

// held records that Clusters are not created, lest they be built twice. Everything
// that does not belong to them has been applied.
func (r *Reconciler) held(run *run, sync apply.Result) *end {
	obj := run.Obj
	run.held.Create = sync.Creation.Hold()
	err := errors.New(sync.Creation.Message())
	was := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.CreateHeldCondition)
	isNew := was == nil || was.Message != err.Error()
	status.MarkStalled(obj, v1alpha1.ReasonCreateHeld, err)
	obj.Status.ObservedGeneration = obj.Generation
	status.SetCondition(obj, v1alpha1.CreateHeldCondition, metav1.ConditionTrue, v1alpha1.ReasonCreateHeld, "%s", err)
	if isNew {
		r.event(run, corev1.EventTypeWarning, nil, "%s", err)
	}
	return again(r.Jitter(min(obj.Spec.Interval.Duration, heldPoll)))
}

// failed records a failure that is tried again after the retry interval.
func (r *Reconciler) failed(ctx context.Context, run *run, reason string, err error) *end {
	obj := run.Obj
	// As with Flux the history begins where applying does.
	if run.cluster != nil && reason != meta.BuildFailedReason {
		if attempt := run.attempt(reason, r.Now()); attempt.Digest != "" {
			run.recordAttempt(attempt)
		}
	}
	status.MarkFailing(obj, reason, err)
	next := obj.GetRetryInterval()
	if !obj.DeletionTimestamp.IsZero() {
		next = min(next, deletionRetry)
	}
	log.FromContext(ctx).Error(err, fmt.Sprintf("Reconciliation failed after %s, next try in %s",
		r.Now().Sub(run.start).Round(time.Millisecond), next), "revision", obj.Status.LastAttemptedRevision)
	r.event(run, corev1.EventTypeWarning, nil, "%s", err)
	return again(next)
}

// misconfigured records a failure that only a change of the object ends.
func (r *Reconciler) misconfigured(run *run, reason string, err error) *end {
	obj := run.Obj
	known := apimeta.FindStatusCondition(obj.Status.Conditions, meta.StalledCondition)
	status.MarkStalled(obj, reason, err)
	obj.Status.ObservedGeneration = obj.Generation
	if known == nil || known.Message != err.Error() {
		r.event(run, corev1.EventTypeWarning, nil, "%s", err)
	}
	return &end{}
}

// succeeded records that everything declared is in the cluster.
func (r *Reconciler) succeeded(ctx context.Context, run *run) *end {
	obj := run.Obj
	was := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition)
	wasReady := was != nil && was.Status == metav1.ConditionTrue && obj.Status.ObservedGeneration == obj.Generation
	kept := ""
	if run.sync != nil {
		plan := run.sync.Plan
		for _, why := range []string{inventory.AwaitsMessage(plan.OfCluster, plan.Credential), plan.LastMessage()} {
			if why != "" {
				kept += "; " + why
			}
		}
	}
	changed := !wasReady || len(run.changed()) > 0 || run.sync != nil && len(run.sync.Deleted) > 0 || !strings.HasSuffix(was.Message, kept)
	news := changed || run.requested
	obj.Status.ObservedGeneration = obj.Generation
	applied := obj.Status.LastAppliedRevision
	r.noteApplied(run, meta.ReconciliationSucceededReason)
	status.MarkReady(obj, meta.ReconciliationSucceededReason, "Applied revision: %s%s", run.snapshot.Revision, kept)
	message := fmt.Sprintf("Reconciliation finished in %s, next run in %s%s", r.Now().Sub(run.start).Round(time.Millisecond), obj.Spec.Interval.Duration, kept)
	if news {
		log.FromContext(ctx).Info(message, "revision", run.snapshot.Revision)
	}
	var more map[string]string
	if !r.Rules.NoCommitStatusEvent {
		more = map[string]string{annotation(eventv1.MetaCommitStatusKey): eventv1.MetaCommitStatusUpdateValue}
	}
	switch {
	case changed:
		r.event(run, corev1.EventTypeNormal, more, "%s", message)
	case applied != obj.Status.LastAppliedRevision && more != nil:
		// A commit that changes nothing here is applied here as well: whoever waits for
		// its status would wait for ever.
		r.event(run, events.TypeTold, more, "%s", message)
	}
	next := r.Jitter(obj.Spec.Interval.Duration)
	if run.sync != nil && run.sync.Pending {
		next = min(next, run.known.deleting(run.start))
	}
	next = r.beforeHandOver(run, next)
	if kept != "" {
		next = min(next, ofClusterPoll)
	}
	if run.composed.waits() {
		next = min(next, rolloutPoll)
	}
	return again(next)
}

// noteApplied records that everything declared was applied, and what came of it: who knows
// nothing of it takes what differs for drift from then on.
func (r *Reconciler) noteApplied(run *run, reason string) {
	attempt := run.attempt(reason, r.Now())
	attempt.Requested = run.requested || len(run.changed()) > 0
	run.recordAttempt(attempt)
	run.noteRevision()
}

// noteRevision records that the newest revision was applied. While Clusters wait to be told
// which revision they may have, the one before stays on record: it is what they have.
func (run *run) noteRevision() {
	if !run.governed.waits() {
		run.Obj.Status.LastAppliedRevision, run.Obj.Status.LastAppliedOriginRevision = run.snapshot.Revision, run.snapshot.OriginRevision
	}
}

// kept are entries of the inventory that are neither applied nor pruned.
func (run *run) kept() []inventory.Entry {
	if run.composed == nil {
		return nil
	}
	return run.composed.kept
}

// event tells of a reconcile, with the reason that Ready has.
func (r *Reconciler) event(run *run, kind string, more map[string]string, format string, args ...any) {
	reason := meta.ProgressingReason
	if c := apimeta.FindStatusCondition(run.Obj.Status.Conditions, meta.ReadyCondition); c != nil {
		reason = c.Reason
	}
	r.eventOf(run, reason, kind, more, format, args...)
}

// annotation is the key of an annotation of an event, as Flux has it.
func annotation(key string) string { return kustomizev1.GroupVersion.Group + "/" + key }

// eventOf tells of a reconcile, with the annotations of Flux's events. Without another one in
// more, the revision is the one that was tried last. What happens before a snapshot is found is
// about none.
func (r *Reconciler) eventOf(run *run, reason, kind string, more map[string]string, format string, args ...any) {
	obj := run.Obj
	annotations := map[string]string{}
	for k, v := range more {
		annotations[k] = v
	}
	revision := annotations[annotation(eventv1.MetaRevisionKey)]
	if run.snapshot != nil || !obj.DeletionTimestamp.IsZero() {
		revision = cmp.Or(revision, obj.Status.LastAttemptedRevision)
	}
	if revision != "" {
		annotations[annotation(eventv1.MetaRevisionKey)] = revision
	}
	// What is told of is mostly done with this snapshot, before the status says so.
	origin := ""
	switch {
	case run.snapshot != nil && run.snapshot.Revision == revision:
		origin = run.snapshot.OriginRevision
	case obj.Status.LastAppliedRevision == revision:
		origin = obj.Status.LastAppliedOriginRevision
	}
	if origin != "" {
		annotations[annotation(eventv1.MetaOriginRevisionKey)] = origin
	}
	r.Events.AnnotatedEventf(obj, annotations, kind, reason, format, args...)
}
