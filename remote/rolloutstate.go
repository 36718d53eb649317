package remote

import (
	"fmt"
	"strings"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// sayRollout sets the conditions of a Rollout from its status: Ready once the newest
// revision passed all waves.
func sayRollout(o *v1alpha1.Rollout, hold rollout.Hold) {
	run, counts := o.Status.Run, o.Status.Clusters
	numbers := fmt.Sprintf("%d of %d clusters", counts.Updated, counts.Total)
	ready := func(status metav1.ConditionStatus, reason, format string, args ...any) {
		message := fmt.Sprintf(format, args...)
		if o.Status.Unassigned > 0 {
			message += fmt.Sprintf("; %d clusters are in no wave and keep what they have", o.Status.Unassigned)
		}
		meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, Message: short(message), ObservedGeneration: o.Generation})
	}
	working, stalled := false, false
	switch {
	case hold.Reason == v1alpha1.ReasonNoChildren && (run == nil || run.Phase == v1alpha1.RolloutProgressing || run.Phase == v1alpha1.RolloutSuperseded || isOvertaken(o)):
		// There is nothing to wait for: what makes the clusters may wait for the Rollout.
		ready(metav1.ConditionTrue, hold.Reason, "%s", hold.Message)
	case run == nil && hold.Reason != "":
		working = hold.Reason == v1alpha1.ReasonAwaitingUpstream
		ready(metav1.ConditionUnknown, hold.Reason, "no revision is known yet: %s", hold.Message)
	case run == nil:
		ready(metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "no revision is known yet")
	case hold.Reason == v1alpha1.ReasonInvalidSpec:
		stalled = true
		ready(metav1.ConditionFalse, hold.Reason, "%s", hold.Message)
	case run.Phase == v1alpha1.RolloutHalted:
		stalled = true
		ready(metav1.ConditionFalse, v1alpha1.ReasonRolloutHalted, "%s", hold.Message)
	case run.Phase == v1alpha1.RolloutReverting:
		working = true
		ready(metav1.ConditionFalse, v1alpha1.ReasonReverting, "%s", hold.Message)
	case rollout.IsBack(&o.Status):
		ready(metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "%s have %s", numbers, goodRevision(o))
	case run.Phase == v1alpha1.RolloutReverted:
		stalled = true
		ready(metav1.ConditionFalse, v1alpha1.ReasonReverted, "%s was taken back: push a commit that mends it", run.Revision)
	case run.Phase == v1alpha1.RolloutAborted:
		stalled = true
		ready(metav1.ConditionFalse, v1alpha1.ReasonAborted, "%s was aborted: push another commit", run.Revision)
	case run.Phase == v1alpha1.RolloutCompleted:
		why := v1alpha1.ReasonSucceeded
		if hold.Reason == v1alpha1.ReasonSuspended {
			why = hold.Reason
		}
		ready(metav1.ConditionTrue, why, "%s have %s", numbers, goodRevision(o))
	case hold.Reason != "":
		working = hold.Reason != v1alpha1.ReasonSuspended
		ready(metav1.ConditionUnknown, hold.Reason, "%s have %s: %s", numbers, run.Revision, hold.Message)
	default:
		working = true
		ready(metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "%s have %s, wave %s", numbers, run.Revision, waveName(run))
	}
	mark(o, fluxmeta.ReconcilingCondition, working)
	mark(o, fluxmeta.StalledCondition, stalled)
}

// isOvertaken reports whether the newest revision is another one than that of a run that ended.
func isOvertaken(o *v1alpha1.Rollout) bool {
	run, newest := o.Status.Run, o.Status.Candidate
	return run != nil && !rollout.Active(run) && newest != nil && *newest != run.RolloutRevision
}

// sayExchange sets the conditions of what travels between environments. is is nil while
// nothing was read since this process began: then what was said last stands.
func sayExchange(o *v1alpha1.Rollout, is *exchanged, upstream rollout.Hold, held bool) {
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: short(message), ObservedGeneration: o.Generation})
	}
	failing := func(kind string, why rollout.Hold, ok string) {
		status := metav1.ConditionFalse
		switch why.Reason {
		case "":
			set(kind, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, ok)
			return
		case v1alpha1.ReasonAwaitingUpstream:
			status = metav1.ConditionUnknown
		case v1alpha1.ReasonUpstreamMissing:
			if up := o.Status.Upstream; (up == nil || up.Taken == nil) && o.Status.Run == nil {
				status = metav1.ConditionUnknown // of a new environment, until the one before it has proven something
			}
		}
		set(kind, status, why.Reason, why.Message)
	}
	for kind, wanted := range map[string]bool{
		v1alpha1.UpstreamCondition: o.Spec.Upstream != nil, v1alpha1.PublishedCondition: o.Spec.Publish != nil, v1alpha1.ApprovalTagsCondition: o.Spec.ApprovalTags != nil,
	} {
		if !wanted {
			meta.RemoveStatusCondition(&o.Status.Conditions, kind)
		}
	}
	if o.Spec.Publish == nil {
		o.Status.Published = nil
	}
	if up := o.Status.Upstream; o.Spec.Upstream != nil && up != nil && !held {
		ok := ""
		if up.Taken != nil {
			ok = fmt.Sprintf("commit %s, which %s proved at %s in run %d, is the candidate", up.Taken.Commit, o.Spec.Upstream.Name, up.Taken.Proven.UTC().Format("2006-01-02 15:04:05 MST"), up.Taken.Run)
		}
		failing(v1alpha1.UpstreamCondition, upstream, ok)
	}
	if is == nil {
		return
	}
	if o.Spec.ApprovalTags != nil {
		failing(v1alpha1.ApprovalTagsCondition, is.refused, "tags "+rollout.ApprovalPrefix(o)+"/<wave> on the commit of a run approve its waves")
	}
	if o.Spec.Publish == nil {
		return
	}
	if o.Status.Published = is.published; is.published == nil && is.unpublished.Reason == "" {
		set(v1alpha1.PublishedCondition, metav1.ConditionUnknown, v1alpha1.ReasonProgressing, "no commit has passed all waves yet")
		return
	}
	ok := ""
	if p := is.published; p != nil {
		ok = fmt.Sprintf("%s says that commit %s passed all waves in run %d", rollout.ProofReference(o.Spec.Publish.Name), p.Commit, p.Run)
	}
	failing(v1alpha1.PublishedCondition, is.unpublished, ok)
}

// mark keeps a condition that is there only while it is true, with the words of Ready.
func mark(o *v1alpha1.Rollout, kind string, is bool) {
	if !is {
		meta.RemoveStatusCondition(&o.Status.Conditions, kind)
		return
	}
	ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition)
	meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: ready.Reason, Message: ready.Message, ObservedGeneration: o.Generation})
}

// sayRefused sets the conditions of a Rollout about which nothing can be decided. What
// clusters have stays.
func sayRefused(o *v1alpha1.Rollout, reason, message string) {
	meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: reason, Message: short(message), ObservedGeneration: o.Generation,
	})
	mark(o, fluxmeta.ReconcilingCondition, false)
	mark(o, fluxmeta.StalledCondition, true)
}

func goodRevision(o *v1alpha1.Rollout) string {
	if good := o.Status.LastGood; good != nil {
		return named(good.RolloutRevision)
	}
	return "no revision"
}

// named is a revision for people; of one without a source it is the agent's image.
func named(r v1alpha1.RolloutRevision) string {
	if r.Revision == "" {
		return r.Image
	}
	return r.Revision
}

func waveName(run *v1alpha1.RolloutRun) string {
	if i := int(run.Wave); i < len(run.Terms.Waves) {
		return run.Terms.Waves[i].Name
	}
	return ""
}

// tell writes the events of what changed in a Rollout. Each transition is one, with the
// reason that the conditions have.
func (r *Rollouts) tell(before, after *v1alpha1.Rollout) {
	was, is := before.Status.Run, after.Status.Run
	metadata := rolloutMetadata(after)
	event := func(kind, reason, format string, args ...any) {
		r.Events.AnnotatedEventf(after, metadata, kind, reason, format, args...)
	}
	for _, kind := range []string{v1alpha1.UpstreamCondition, v1alpha1.PublishedCondition, v1alpha1.ApprovalTagsCondition} {
		old, now := meta.FindStatusCondition(before.Status.Conditions, kind), meta.FindStatusCondition(after.Status.Conditions, kind)
		failed, fails := old != nil && old.Status == metav1.ConditionFalse, now != nil && now.Status == metav1.ConditionFalse
		// It is about the repository, and not about the commit of the run: without that, Flux's notification-controller
		// sets no status of it either.
		beside := map[string]string{v1alpha1.Group + "/" + v1alpha1.MetaConditionKey: kind}
		switch {
		case fails && (!failed || old.Reason != now.Reason):
			r.Events.AnnotatedEventf(after, beside, corev1.EventTypeWarning, now.Reason, "%s", now.Message)
		case failed && !fails:
			r.Events.AnnotatedEventf(after, beside, corev1.EventTypeNormal, kind+"Recovered", "condition %s is no longer False, for %s", kind, old.Reason)
		}
	}
	if is == nil {
		return
	}
	same := was != nil && was.Number == is.Number
	if !same {
		if len(after.Status.History) > 0 && after.Status.History[0].Phase == v1alpha1.RolloutSuperseded && was != nil {
			event(corev1.EventTypeNormal, "RolloutSuperseded", "run %d with %s ended for run %d", was.Number, named(was.RolloutRevision), is.Number)
		}
		event(corev1.EventTypeNormal, "RolloutBegan", "run %d brings %s to %d clusters in %d waves", is.Number, named(is.RolloutRevision), after.Status.Clusters.Total, len(is.Terms.Waves))
		was = &v1alpha1.RolloutRun{Phase: v1alpha1.RolloutProgressing}
	}
	for _, a := range is.Approvals[min(len(was.Approvals), len(is.Approvals)):] {
		by := a.By
		if by == "" {
			by = "somebody"
		}
		if a.Tag != "" {
			by += fmt.Sprintf(", by tag %s signed with key %s,", a.Tag, a.Key)
		}
		what := "wave " + a.Wave
		if a.Wave == rollout.End {
			what = "the end"
		}
		event(corev1.EventTypeNormal, "WaveApproved", "%s approved %s of %s", by, what, named(is.RolloutRevision))
	}
	var passed []string
	for i := was.Wave; i < is.Wave && int(i) < len(is.Terms.Waves); i++ {
		passed = append(passed, is.Terms.Waves[i].Name)
	}
	if len(passed) > 0 {
		event(corev1.EventTypeNormal, "WavePassed", "wave %s has %s", strings.Join(passed, ", "), named(is.RolloutRevision))
	}
	if is.Phase == was.Phase {
		return
	}
	ready := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ReadyCondition)
	switch is.Phase {
	case v1alpha1.RolloutCompleted:
		event(corev1.EventTypeNormal, "RolloutCompleted", "%s", ready.Message)
	case v1alpha1.RolloutProgressing:
		event(corev1.EventTypeNormal, "RolloutResumed", "%s goes on", named(is.RolloutRevision))
	default:
		event(corev1.EventTypeWarning, ready.Reason, "%s", ready.Message)
	}
}
