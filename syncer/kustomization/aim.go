package kustomization

import (
	"context"
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// aim sets the cluster that is applied to, and takes what was applied to
// another before out of that.
func (r *Reconciler) aim(ctx context.Context, run *run) *end {
	obj := run.Obj
	refuse := func(err error) *end { return r.failed(ctx, run, meta.ReconciliationFailedReason, err) }
	var err error
	if run.cluster, err = r.Targets.Get(ctx, obj); err != nil {
		return refuse(fmt.Errorf("failed to build kube client: %w", err))
	}
	if run.rendering == nil {
		// Health is read with the rights of the object's service account, not with
		// ours: expressions would tell a tenant what he may not read.
		run.memo = r.Memo
		return nil
	}
	recorded, err := target.Recorded(obj, target.Of(obj, r.Targets.ServiceAccount), run.known.appliedTo())
	if err != nil {
		return refuse(err)
	}
	if run.target.Local() && recorded == nil {
		run.memo = r.Memo
		run.known.arrived()
		return nil
	}
	local, err := r.Targets.Identify(ctx, obj.Namespace, target.Ref{})
	if err != nil {
		return refuse(err)
	}
	if run.target.Local() {
		run.memo = r.Memo
	} else if err := run.cluster.Answers(ctx, r.Now()); err != nil {
		return refuse(err)
	} else if run.memo = run.cluster.Polled(); run.sweeps {
		run.memo.Forget(run.name())
	}
	if run.target, err = r.Targets.Identify(ctx, obj.Namespace, run.target); err != nil {
		return refuse(err)
	}
	change := target.Compare(recorded, run.target, local.Cluster)
	switch change {
	case target.Moved:
		if end := r.leave(ctx, run, *recorded); end != nil {
			return end
		}
	case target.Replaced:
		// The former cluster may run on, and only its kubeconfig be another one.
		if end := r.holdMove(ctx, run, fmt.Errorf("%[1]s %[2]s leads to another cluster now; have it lead to that one again or, if that cluster is gone for good, remove annotation %[3]s",
			run.target.Kind, run.target.Name, target.Annotation)); end != nil {
			return end
		}
		r.event(run, corev1.EventTypeWarning, nil, "the cluster that %s %s leads to is another one now; what was applied to the former is left behind", run.target.Kind, run.target.Name)
		obj.Status.Inventory = nil
	case target.Unidentified:
		// The inventory is taken to be about this cluster, as with Flux. What is no longer
		// declared may be in the other one, and that of the same name here somebody else's: it is
		// forgotten for good, as the next reconcile takes this for the cluster of the inventory.
		if end := r.holdUntold(ctx, run, *recorded); end != nil {
			return end
		}
		run.unidentified = true
		owned, err := entries(obj.Status.Inventory)
		if err != nil {
			return refuse(err)
		}
		if len(owned) > 0 {
			r.event(run, corev1.EventTypeWarning, nil, "it is not known whether this is the cluster that was applied to before: one of them does not let its Namespace %s be read; if it is another one, %d objects are left behind there",
				metav1.NamespaceSystem, len(owned))
			stays := inventory.Union(inventory.OfAll(run.rendering.Objects), run.kept())
			obj.Status.Inventory = refs(inventory.Difference(owned, inventory.Candidates(owned, stays)))
		}
	case target.Same:
		if end := r.holdMute(ctx, run, recorded); end != nil {
			return end
		}
	}
	if change != target.Same {
		// Ahead of the record, by which all of the inventory is in this cluster. An empty inventory of the
		// one before is nothing that is left there.
		if err := run.Write(ctx); err != nil {
			return &end{err: err}
		}
	}
	run.known.arrived()
	if recorded != nil && recorded.Local() && !run.target.Local() {
		r.Memo.Forget(run.name()) // what happens to it there is no drift of what is applied now
	}
	about := ""
	if !run.target.Local() {
		next := run.target
		if run.unproven {
			next.Cluster = "" // the one on record stays
		} else {
			run.known.aims(wayTo(run.cluster))
		}
		about = next.Record(recorded).Encode()
	}
	if err := r.recordTarget(ctx, run, about); err != nil {
		return &end{err: err}
	}
	return nil
}

// recordOwn writes down that the inventory of an object which has a kubeconfig by now is about
// our own cluster, of which nothing is on record. That this very process applied to it is known
// to be of the time before the kubeconfig was set. The next process does not know, and the
// object may be deleted, suspended, or unable to be built for longer than this one is there.
// Clusters that an earlier process applied would be built a second time, so it looks for them.
func (r *Reconciler) recordOwn(ctx context.Context, run *run) error {
	ref := target.Of(run.Obj, r.Targets.ServiceAccount)
	if ref.Local() || run.Obj.Annotations[target.Annotation] != "" {
		return nil
	}
	if len(r.Memo.Owned(run.name())) == 0 {
		if applied := run.known.appliedTo(); applied != nil && !applied.Local() {
			return nil // a person removed the record of that
		}
		switch here, err := r.hasHere(ctx, run, isCluster); {
		case apierrors.IsForbidden(err):
			return nil // nor did the agent make them
		case err != nil || !here:
			return err
		}
	}
	own, err := r.Targets.Identify(ctx, run.Obj.Namespace, target.Ref{})
	if err != nil {
		return err
	}
	// With a kubeconfig the account of the spec is one of the other cluster.
	return r.recordTarget(ctx, run, own.ActedAs(run.known.appliedTo(), ref).Encode())
}

// hasHere is has of our own cluster. It is read with our own rights: the account of the spec may be one of the other cluster
// alone.
func (r *Reconciler) hasHere(ctx context.Context, run *run, of func(inventory.Entry) bool) (bool, error) {
	return run.has(ctx, r.Targets.Local, of, whatever, r.Targets.Local.ConfirmGone)
}

// has reports whether a cluster has one of certain objects of the inventory, with the labels of this very Kustomization.
// Another cluster has objects of the same names and labels, of a Kustomization of its own. counts tells which count of
// those that are there, confirm of a kind that is not served whether it is gone.
func (run *run) has(ctx context.Context, in *apply.Cluster, of func(inventory.Entry) bool, counts func(metav1.Object) bool,
	confirm func(context.Context, inventory.Entry) error) (bool, error) {
	if run.Obj.Status.Inventory == nil {
		return false, nil
	}
	gone := map[schema.GroupKind]bool{}
	for _, ref := range run.Obj.Status.Inventory.Entries {
		e, err := inventory.Parse(ref.ID, ref.Version)
		if err != nil || !of(e) || gone[e.GroupKind()] {
			continue // what cannot be read is told where it is needed
		}
		o := &metav1.PartialObjectMetadata{}
		err = in.InServed(e.GroupKind(), func(served *apimeta.RESTMapping) error {
			o.SetGroupVersionKind(served.GroupVersionKind)
			return in.Get(ctx, types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, o)
		})
		switch {
		case err == nil && apply.Marked(o.Labels, helmv2.GroupVersion.Group) == claim.EntryOf(run.Obj).String() && counts(o):
			return true, nil
		case err == nil, apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
			continue
		case apimeta.IsNoMatchError(err), apierrors.IsNotFound(err):
			gone[e.GroupKind()] = true
			err = confirm(ctx, e)
		}
		if err != nil {
			return false, fmt.Errorf("cannot find out whether %s of Kustomization %s is there: %w", e, run.name(), err)
		}
	}
	return false, nil
}

func anything(inventory.Entry) bool { return true }

// whatever has all objects count that are there.
func whatever(metav1.Object) bool { return true }

// isCluster reports whether an entry is a Cluster.
func isCluster(e inventory.Entry) bool { return clusterapi.IsCluster(e.GroupKind()) }

// recordCluster adds to a record of an earlier version whose kubeconfig it is about, while the Secret is there
// to tell. What Flux applied has no record, and is taken to be about the present target, unless our own cluster has it: that
// would be pruned in the other one, if the commit that named it is taken back. With a cluster that does not answer, or an object that is not built or is being deleted, no other record follows, and once Cluster API has taken the
// cluster down nothing else tells that it is gone.
func (r *Reconciler) recordCluster(ctx context.Context, run *run) error {
	if run.known.appliedTo() != nil {
		return nil // it was recorded before that
	}
	obj := run.Obj
	ref, err := target.Decode(obj.Annotations[target.Annotation])
	i := obj.Status.Inventory
	unrecorded := obj.Annotations[target.Annotation] == "" && i != nil && len(i.Entries) > 0
	if unrecorded {
		ref, err = target.Of(obj, r.Targets.ServiceAccount), nil
	}
	if err != nil || ref.OfCluster != "" {
		return nil // what is wrong with a record is told where it is needed
	}
	if ref.OfCluster = r.Targets.OfCluster(ctx, obj.Namespace, ref); ref.OfCluster == "" {
		return nil
	}
	if unrecorded {
		if heldMove(obj) {
			return nil // a person let the cluster of before go, which would be on record again
		}
		if here, err := r.hasHere(ctx, run, anything); err != nil || here {
			return nil // it is not known, and asked again
		}
	}
	return r.recordTarget(ctx, run, ref.Encode())
}

// recordTarget writes down what the inventory is about, ahead of applying; nothing of our own
// cluster, unless that is being left.
func (r *Reconciler) recordTarget(ctx context.Context, run *run, about string) error {
	if !target.SetRecorded(run.Obj, about) {
		return nil
	}
	if err := run.WriteMetadata(ctx); err != nil {
		return fmt.Errorf("cannot record target of Kustomization %s: %w", run.name(), err)
	}
	return nil
}
