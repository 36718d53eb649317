package remote

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/report"
)

// behind has what is on record from a time to come be so since now. A clock that was ahead for a while would have
// Rollouts, deadlines of layers and alerts wait until then.
func (r *run) behind() {
	now, status := metav1.NewTime(r.Now()), &r.child.Status
	for i := range status.Conditions {
		if at := &status.Conditions[i].LastTransitionTime; at.After(now.Time) {
			*at = now
		}
	}
	for i := range status.Layers {
		if at := &status.Layers[i].Since; at.After(now.Time) {
			*at = now
		}
	}
}

// age records when the child was last heard of, once that is too long ago, and makes
// sure that a run comes at that moment: a child that stays dead may call for none. heard
// and proven are what the connection knows.
func (r *run) age(result ctrl.Result, heard time.Time, proven bool) ctrl.Result {
	status := &r.child.Status
	connected := meta.FindStatusCondition(status.Conditions, v1alpha1.ConnectedCondition)
	if status.Identity == nil || connected == nil {
		return result // it was never heard of
	}
	if unseeded(r.child) {
		status.HeardAt = nil // nobody asks it
		return result
	}
	lost := connected.Status != metav1.ConditionTrue
	if r.asking && !lost {
		return result // the answer is on its way
	}
	now := r.Now()
	c := report.Contact{Recorded: status.HeardAt}
	if c.Heard, c.Proven = heard, proven; c.Heard.IsZero() {
		c.Heard = r.notes.began
		if since := connected.LastTransitionTime.Time; lost && since.Before(c.Heard) {
			c.Heard = since
		}
	}
	c.Broken = lost || status.Report != nil && now.Sub(c.Heard) > link.AgentSilence
	var wait time.Duration
	status.HeardAt, wait = c.Lost(r.ObserveInterval, now)
	if wait > 0 && (result.RequeueAfter == 0 || wait < result.RequeueAfter) {
		result.RequeueAfter = wait
	}
	return result
}

// agentError is why the agent of the child is not known to be alive, or there is no
// report. After a restart of this process an agent that was silent before stays so until
// it is seen to renew its lease.
func (r *run) agentError(found link.Agent) error {
	if at := r.child.Status.HeardAt; found.Err == nil && at != nil && !found.Renewed {
		return link.Silent(at.Time)
	}
	return found.Err
}

// place records where the cluster is, as its layers are told by variables.
func (r *run) place(cluster capibridge.Cluster) {
	const most, mostHost = 64, 253
	status := &r.child.Status
	status.Provider, status.Region = report.Cut(cluster.Provider, most), report.Cut(cluster.Region, most)
	status.Endpoint = report.Cut(cluster.Endpoint, mostHost)
}

// suspend marks what is recorded of a layer that is suspended, and tells why it is not in
// place; empty if it is.
func (r *run) suspend(layer *v1alpha1.Layer) (why string) {
	entry := entryOf(r.child, layer.Name)
	if entry == nil {
		return "was never pushed"
	}
	entry.Suspended, entry.ObservedGeneration = true, layer.Generation
	entry.LastHandledReconcileAt = layer.Annotations[fluxmeta.ReconcileRequestAnnotation]
	if entry.Ready || isApplied(entry) {
		return ""
	}
	return fmt.Sprintf("not in place: %s: %s", entry.Reason, entry.Message)
}

// isApplied reports whether all that was sent of a layer is in place, though it is not ready: it
// waits for something else.
func isApplied(entry *v1alpha1.ChildLayer) bool {
	return unsent(entry.Reason) && entry.Digest != "" && entry.Digest == entry.LastAttemptedDigest
}

// isUnseen reports whether a layer was looked at last and was not healthy, or not yet.
func isUnseen(entry *v1alpha1.ChildLayer) bool {
	return entry.Reason == v1alpha1.ReasonHealthCheckFailed || entry.Reason == v1alpha1.ReasonProgressing
}

// stand has the layers that were in place be so where another tier manages the Cluster: nothing
// is sent any more that would end what they wait for. A pivot pauses the Cluster before it goes,
// and each of them that was ready said that by then. What was not healthy yet nobody saw become so.
func (p *push) stand(now metav1.Time) {
	for _, s := range p.layers {
		entry := entryOf(p.child, s.layer.Name)
		if entry == nil || entry.Ready || isUnseen(entry) || !isApplied(entry) {
			continue
		}
		recordOutcome(entry, nil, now)
	}
}
