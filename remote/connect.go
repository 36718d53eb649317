package remote

import (
	"context"
	"slices"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/reason"
)

// connect asks the child who it is and what its agent says, and makes sure that
// it is the recorded cluster. ok is false if the run ends here; otherwise the run
// goes on with the result of the probe.
func (r *run) connect(ctx context.Context, l *link.Link, cluster capibridge.Cluster, selected []*v1alpha1.Layer) (session *link.Session, a *link.Result, ok bool, result ctrl.Result, err error) {
	ref := r.kubeconfigRef(cluster)
	source, err := r.kubeconfigSource(ctx, ref)
	if err != nil {
		return nil, nil, false, result, err
	}
	if _, err := r.ownUID(ctx); err != nil {
		return nil, nil, false, result, err
	}
	if ref.kind == fromSecret {
		ref.version = source
	}
	id := r.child.Status.Identity
	ready := meta.IsStatusConditionTrue(r.child.Status.Conditions, v1alpha1.ReadyCondition)
	requested := r.child.Annotations[fluxmeta.ReconcileRequestAnnotation] != r.child.Status.LastHandledReconcileAt
	q := link.Request{
		Source: source, Agent: slices.ContainsFunc(selected, hasAgent), Urgent: !ready || requested,
		Brief: r.later,
		Lost:  meta.IsStatusConditionFalse(r.child.Status.Conditions, v1alpha1.ConnectedCondition),
		Read:  func(ctx context.Context) (*rest.Config, error) { return r.kubeconfig(ctx, ref, cluster) },
	}
	if again := ref; ref.kind != fromSecret {
		again.anew = true
		q.Again = func(ctx context.Context) (*rest.Config, error) { return r.kubeconfig(ctx, again, cluster) }
	}
	if id != nil {
		q.Recorded = id.KubeSystemUID
	}
	a, wait := l.Ask(q)
	if a == nil {
		r.asking = true
		return nil, nil, false, ctrl.Result{RequeueAfter: wait}, nil
	}
	if a.Err != nil {
		r.asking = a.Passing
		if !a.Passing {
			r.notConnected(metav1.ConditionFalse, reason.Of(a.Err), "%s", a.Err)
		}
		return nil, nil, false, ctrl.Result{RequeueAfter: max(wait, 100*time.Millisecond)}, nil
	}
	if id != nil && id.KubeSystemUID != a.Identity {
		r.identityChanged(a.Identity)
		return nil, nil, false, ctrl.Result{RequeueAfter: r.jittered(waitPause)}, nil
	}
	if a.Brief {
		r.notes.met = true
		return nil, nil, false, ctrl.Result{RequeueAfter: r.afterOthers(), Priority: new(periodic)}, nil
	}
	if id == nil {
		q.Recorded = a.Identity
	}
	session = l.Begin(q)
	if id == nil {
		err := r.meet(ctx, session, cluster, selected, a.Identity)
		if err != nil && reason.Of(err) == v1alpha1.ReasonIdentityConflict {
			r.notConnected(metav1.ConditionFalse, v1alpha1.ReasonIdentityConflict, "%s", err)
			return nil, nil, false, ctrl.Result{RequeueAfter: r.jittered(waitPause)}, nil
		}
		if err != nil {
			if reason.Given(err) { // else this tier's own API server failed, which says nothing of the child
				r.notConnected(metav1.ConditionFalse, reason.Of(err), "cannot tell which cluster it is: %s", err)
			}
			return nil, nil, false, result, err
		}
	}
	if other, err := r.contested(ctx); err != nil {
		return nil, nil, false, result, err
	} else if other != "" {
		r.notConnected(metav1.ConditionFalse, v1alpha1.ReasonIdentityConflict,
			"the kubeconfig leads to the cluster of Child %s, which was met at the same moment: nothing is written; correct the kubeconfig of one of them", other)
		r.child.Status.Identity = nil
		return nil, nil, false, ctrl.Result{RequeueAfter: r.jittered(waitPause)}, nil
	}
	if r.recorded.Status.Identity == nil && r.tenure != nil {
		// Only when the cache shows the identity, it shows who else recorded it before.
		r.asking = true
		return nil, nil, false, ctrl.Result{RequeueAfter: stalePause}, nil
	}
	r.child.Status.Version = a.Version
	r.condition(v1alpha1.ConnectedCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "API server answers, its identity is the recorded one")
	return session, a, true, result, nil
}

func (r *run) identityChanged(uid string) {
	r.notConnected(metav1.ConditionFalse, v1alpha1.ReasonIdentityChanged,
		"the API server belongs to another cluster: kube-system has UID %s, recorded is %s; nothing is written to it. If this is intended, delete this Child to have the cluster seeded afresh",
		uid, r.child.Status.Identity.KubeSystemUID)
}
