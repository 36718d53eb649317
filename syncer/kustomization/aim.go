package kustomization

import (
	"context"
	"fmt"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/inventory"
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
		about = run.target.Record(recorded).Encode()
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
func (r *Reconciler) recordOwn(ctx context.Context, run *run) error {
	ref := target.Of(run.Obj, r.Targets.ServiceAccount)
	if ref.Local() || run.Obj.Annotations[target.Annotation] != "" || len(r.Memo.Owned(run.name())) == 0 {
		return nil
	}
	own, err := r.Targets.Identify(ctx, run.Obj.Namespace, target.Ref{})
	if err != nil {
		return err
	}
	// With a kubeconfig the account of the spec is one of the other cluster.
	return r.recordTarget(ctx, run, own.ActedAs(run.known.appliedTo(), ref).Encode())
}

// recordCluster adds to a record of an earlier version whose kubeconfig it is about, while the Secret is there
// to tell. What Flux applied has no record, and is taken to be about the present target. With a cluster that does not
// answer, or an object that is not built or is being deleted, no other record follows, and once Cluster API has taken the
// cluster down nothing else tells that it is gone.
func (r *Reconciler) recordCluster(ctx context.Context, run *run) error {
	if run.known.appliedTo() != nil {
		return nil // it was recorded before that
	}
	obj := run.Obj
	ref, err := target.Decode(obj.Annotations[target.Annotation])
	if i := obj.Status.Inventory; obj.Annotations[target.Annotation] == "" && i != nil && len(i.Entries) > 0 {
		ref, err = target.Of(obj, r.Targets.ServiceAccount), nil
	}
	// What is wrong with a record is told where it is needed.
	if err == nil && ref.OfCluster == "" {
		if ref.OfCluster = r.Targets.OfCluster(ctx, obj.Namespace, ref); ref.OfCluster != "" {
			return r.recordTarget(ctx, run, ref.Encode())
		}
	}
	return nil
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
