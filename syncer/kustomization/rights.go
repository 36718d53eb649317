package kustomization

import (
	"context"
	"fmt"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/rights"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/target"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// keepRights hands on what a reconcile found out about the rights of its account, and
// tells of an account that is missing. Rights in other clusters are asked about at the
// interval, by doubtful.
func (r *Reconciler) keepRights(run *run) {
	obj := run.Obj
	ref := target.Of(obj, r.Targets.ServiceAccount)
	if !ref.Local() {
		ref.User = ""
	}
	missing, known := r.Rights.Missing(ref.User)
	missing, news := tellAccount(obj, ref.User, missing, known)
	if news != "" {
		r.eventOf(run, v1alpha1.ReasonAccountMissing, corev1.EventTypeWarning, nil, "%s", news)
	}
	r.Rights.Keep(run.name(), rights.Reconciled{User: ref.User, Began: run.start, Tried: run.tried, Refused: run.refused, Missing: missing})
}

// tellAccount records whether the service account that a user stands for is missing, as
// far as that is known, and returns what the object says afterwards, with a message if that
// is new. Ready stays what it is: RBAC knows names of users, and does not care whether
// there is an account.
func tellAccount(obj *kustomizev1.Kustomization, user string, missing, known bool) (says bool, news string) {
	told := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.AccountMissingCondition) != nil
	switch {
	case user == "", known && !missing:
		status.RemoveCondition(obj, v1alpha1.AccountMissingCondition)
		return false, ""
	case !known:
		return told, ""
	}
	message := fmt.Sprintf("%s does not exist; what RBAC grants to that name is still used, and when the Kustomization is deleted, "+
		"its objects are left behind; create the ServiceAccount, or change spec.serviceAccountName", user)
	status.SetCondition(obj, v1alpha1.AccountMissingCondition, metav1.ConditionTrue, v1alpha1.ReasonAccountMissing, "%s", message)
	if told {
		message = ""
	}
	return true, message
}

// attempted notes how applying or deleting objects ended. Other failures than of rights say
// nothing about these.
func (run *run) attempted(err error) {
	run.refused = forbidden(err)
	run.tried = run.refused || err == nil
}

// forbidden reports whether the API server did not allow something, among other errors
// perhaps.
func forbidden(err error) bool {
	switch e := err.(type) { // the tree is walked: errors.As finds one of many
	case nil:
		return false
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if forbidden(err) {
				return true
			}
		}
		return false
	case interface{ Unwrap() error }:
		return forbidden(e.Unwrap())
	}
	return apierrors.IsForbidden(err)
}

// doubtful asks, at each interval, whether the account of an object in another cluster may
// still apply what is known to be there as it was applied. Nothing is watched there.
func (r *Reconciler) doubtful(ctx context.Context, run *run) {
	if !run.target.Local() && run.target.User != "" {
		rights.Doubt(ctx, run.cluster, run.cluster.RESTMapper(), run.memo, run.name())
	}
}

// standings answers for the Kustomizations whose rights are watched.
type standings struct {
	*Reconciler
	queue wake.Queue
}

var _ rights.Owners = standings{}

// Facts implements rights.Owners. What has been applied is known by the memo, which
// leaves out what is exempt.
func (s standings) Facts(ctx context.Context, owner types.NamespacedName, refused bool) (rights.Facts, error) {
	obj := &kustomizev1.Kustomization{}
	if err := s.Client.Get(ctx, owner, obj); err != nil {
		if apierrors.IsNotFound(err) {
			return rights.Facts{Suspended: true}, nil
		}
		return rights.Facts{}, fmt.Errorf("cannot read Kustomization %s: %w", owner, err)
	}
	facts := rights.Facts{Verb: rights.Patch, Objects: s.Memo.Applies(owner)}
	deleted := !obj.DeletionTimestamp.IsZero()
	facts.Suspended = obj.Spec.Suspend && !deleted
	if deleted {
		facts.Verb = rights.Delete
	}
	if deleted || refused {
		var err error
		if facts.Objects, err = entries(obj.Status.Inventory); err != nil {
			return rights.Facts{}, err
		}
	}
	return facts, nil
}

// Lost implements rights.Owners: what is denied is applied again, and the API server says
// why not.
func (s standings) Lost(owner types.NamespacedName, objects []inventory.Entry) {
	if s.Memo.Doubt(owner, objects) > 0 {
		wake.Enqueue(s.queue, owner, 0, 0)
	}
}

// Look implements rights.Owners.
func (s standings) Look(owner types.NamespacedName) { wake.Enqueue(s.queue, owner, 0, 0) }

// onRights enqueues the Kustomizations whose accounts lost or regained rights.
func (r *Reconciler) onRights(_ context.Context, queue wake.Queue) error {
	r.Rights.Serve(standings{r, queue})
	return nil
}
