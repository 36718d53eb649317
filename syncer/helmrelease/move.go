package helmrelease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"helm.sh/helm/v4/pkg/release/common"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// move has the status be about the cluster that is released to, and records that one. What was
// installed in another one before is left there, as with Flux, but for Clusters: they would be built
// a second time, and nobody would answer for the first.
func (r *Reconciler) move(ctx context.Context, run *run) *refusal {
	obj := run.Obj
	refuse := func(err error) *refusal { return &refusal{reason: reasonRESTClientError, err: err} }
	before, err := r.before(ctx, obj)
	if err != nil {
		return refuse(err)
	}
	// Who removes the record of a cluster that is gone, as a held move says, does not say that the status is about the next one.
	letGo := before == nil && heldMove(obj)
	if before == nil && run.target.Local() && !letGo {
		return nil
	}
	local, err := r.Targets.Identify(ctx, obj.Namespace, target.Ref{})
	if err != nil {
		return refuse(err)
	}
	if run.target, err = r.Targets.Identify(ctx, obj.Namespace, run.target); err != nil {
		return refuse(err)
	}
	change := target.Compare(before, run.target, local.Cluster)
	switch {
	case obj.Status.StorageNamespace == "":
		change = target.Same // nothing was installed
	case change == target.Unidentified, letGo:
		// The release itself tells what the clusters do not.
		same, err := r.has(ctx, obj, run.target)
		if err != nil {
			return refuse(err)
		}
		if change = target.Moved; same {
			change = target.Same
		}
	case change == target.Same && before != nil && !before.Local() && (before.Cluster == "" || run.target.Cluster == ""):
		if refused := r.holdUntold(ctx, run, *before); refused != nil {
			return refused
		}
	}
	switch {
	case change == target.Moved && letGo:
		err = r.leave(ctx, run, letGoWhy)
	case change == target.Moved:
		if before.Local() {
			before.Cluster = local.Cluster
		}
		if refused := r.holdMove(ctx, run, *before, takeBack); refused != nil {
			return refused
		}
		err = r.leave(ctx, run, "spec.kubeConfig leads to another cluster than before")
	case change == target.Replaced:
		// The former cluster may run on, and only its kubeconfig be another one.
		if refused := r.holdMove(ctx, run, *before, leadBack(run.target)); refused != nil {
			return refused
		}
		err = r.leave(ctx, run, fmt.Sprintf("the cluster that %s %s leads to is another one now", run.target.Kind, run.target.Name))
	}
	if err != nil {
		return refuse(err)
	}
	unholdMove(obj)
	about := ""
	if !run.target.Local() {
		about = run.target.Record(before).Encode()
	}
	if err := recordTarget(ctx, run, about); err != nil {
		return refuse(err)
	}
	return nil
}

// recordTarget writes down what the status is about.
func recordTarget(ctx context.Context, run *run, about string) error {
	if !target.SetRecorded(run.Obj, about) {
		return nil
	}
	if err := run.WriteMetadata(ctx); err != nil {
		return fmt.Errorf("cannot record target of HelmRelease %s: %w", client.ObjectKeyFromObject(run.Obj), err)
	}
	return nil
}

// before is the cluster that the status is about: the one on record or, where there is none, our own
// if that has the release, as none is recorded of that before a move away from it is held. nil is not known,
// and taken for the one that is declared, as with Flux.
func (r *Reconciler) before(ctx context.Context, obj *helmv2.HelmRelease) (*target.Ref, error) {
	wanted := target.OfRelease(obj, r.Targets.ServiceAccount)
	released := r.seen.releasedTo(client.ObjectKeyFromObject(obj))
	recorded, err := target.Recorded(obj, wanted, released)
	if err != nil || recorded != nil || wanted.Local() || obj.Status.StorageNamespace == "" {
		return recorded, err
	}
	// With our own rights: the account may be one of the other cluster alone.
	switch here, err := r.has(ctx, obj, target.Ref{}); {
	case apierrors.IsForbidden(err):
		return nil, nil
	case err != nil || !here:
		return nil, err
	}
	// With a kubeconfig the account of the spec is one of the other cluster.
	return new(target.Ref{}.ActedAs(released, wanted)), nil
}

// has reports whether a cluster has the release that the status is about.
func (r *Reconciler) has(ctx context.Context, obj *helmv2.HelmRelease, at target.Ref) (bool, error) {
	cluster, err := r.Targets.Connect(ctx, obj.Namespace, at)
	if err != nil {
		return false, err
	}
	return r.Releases.Has(ctx, release.Request{Object: obj, Cluster: cluster, Local: at.Local(), Log: log.FromContext(ctx)})
}

// isOther reports whether a recorded reference leads to another cluster by now. One that does not tell
// any more which it is is an error: it may be.
func (r *Reconciler) isOther(ctx context.Context, obj *helmv2.HelmRelease, ref target.Ref) (bool, error) {
	if ref.Local() || ref.Cluster == "" {
		return false, nil
	}
	switch now, err := r.Targets.Presently(ctx, obj.Namespace, ref); {
	case err != nil:
		return false, err
	case now.Cluster == "":
		return false, fmt.Errorf("%s %s may not read Namespace %s any more, which tells whether it still leads to the cluster that was released to; let it read that",
			ref.Kind, ref.Name, metav1.NamespaceSystem)
	default:
		return now.Cluster != ref.Cluster, nil
	}
}

// leave begins anew in another cluster. The status is written before the record of where it is about:
// what was installed in one cluster must never count as that of the next.
func (r *Reconciler) leave(ctx context.Context, run *run, why string) error {
	obj := run.Obj
	objects := 0
	if i := obj.Status.Inventory; i != nil {
		objects = len(i.Entries)
	}
	r.Events.Eventf(obj, corev1.EventTypeWarning, helmv2.UninstallFailedReason,
		"skipping Helm release uninstallation: %s; what was installed in the former, %d objects, is left behind", why, objects)
	obj.Status.ClearHistory()
	obj.Status.ClearFailures()
	obj.Status.StorageNamespace, obj.Status.Inventory = "", nil
	status.RemoveCondition(obj, v1alpha1.PruneBlockedCondition) // of the move, or of what is left
	r.Releases.Forget(client.ObjectKeyFromObject(obj), obj.UID)
	return run.Write(ctx)
}

// The message of a move that is held: how it begins, and what a person does who did not mean it.
const (
	willNotInstall = "will not install "
	takeBack       = "take back the change of spec.kubeConfig"
)

// letGoWhy is why nothing is uninstalled of a cluster that a person let go.
const letGoWhy = "the record of the former cluster was removed"

// leadBack is what a person does who did not mean that a reference leads to another cluster.
func leadBack(ref target.Ref) string {
	return fmt.Sprintf("have %s %s lead to that one again", ref.Kind, ref.Name)
}

// heldMove reports whether a move is held.
func heldMove(obj *helmv2.HelmRelease) bool {
	c := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.PruneBlockedCondition)
	return c != nil && strings.HasPrefix(c.Message, willNotInstall)
}

// unholdMove ends the hold of a move, if there is one.
func unholdMove(obj *helmv2.HelmRelease) {
	if heldMove(obj) {
		status.RemoveCondition(obj, v1alpha1.PruneBlockedCondition)
	}
}

// takenBack ends the hold of a move that was taken back, whatever the release waits for now: it may be suspended, or its
// chart may be missing, for long. Of a Secret that leads to another cluster the spec tells nothing, nor of a former cluster
// that was let go, whose record was removed: move ends that hold.
func (r *Reconciler) takenBack(obj *helmv2.HelmRelease) {
	c := apimeta.FindStatusCondition(obj.Status.Conditions, v1alpha1.PruneBlockedCondition)
	if c == nil || !strings.Contains(c.Message, takeBack) {
		return
	}
	wanted := target.OfRelease(obj, r.Targets.ServiceAccount)
	recorded, err := target.Recorded(obj, wanted, r.seen.releasedTo(client.ObjectKeyFromObject(obj)))
	if err == nil && recorded != nil && recorded.SameWay(wanted) { // what is wrong with the record, move tells
		unholdMove(obj)
	}
}

// holdMove refuses to release to another cluster while the one of before has Clusters of the release.
// back says how to return to that.
func (r *Reconciler) holdMove(ctx context.Context, run *run, before target.Ref, back string) *refusal {
	obj := run.Obj
	names := "Clusters"
	clusters, err := r.clustersOf(ctx, run, before)
	var there []inventory.Entry
	if err == nil && len(clusters) > 0 {
		names = inventory.Names(clusters)
		there, err = r.among(ctx, obj, before, clusters)
	}
	switch {
	case err != nil:
		return r.hold(ctx, run, before, untold(names, before, back, err))
	case len(there) > 0:
		return r.hold(ctx, run, before, fmt.Errorf(willNotInstall+"%s in another cluster: the one of before has them, and they would be built a second time; "+
			"%s, move them with `cascade pivot`, or delete them there", inventory.Names(there), back))
	}
	return nil
}

// holdUntold is holdMove where the same reference leads to a cluster of which nothing tells whether it is the one of before.
// It is, if it has the release; and it is taken for that where no Cluster would be built a second time.
func (r *Reconciler) holdUntold(ctx context.Context, run *run, before target.Ref) *refusal {
	obj := run.Obj
	if obj.Status.History.Latest() == nil {
		return nil // nothing is known to be installed
	}
	clusters, unread := r.clustersOf(ctx, run, before)
	if unread == nil && len(clusters) == 0 {
		return nil
	}
	switch same, err := r.has(ctx, obj, run.target); {
	case err != nil:
		return &refusal{reason: reasonRESTClientError, err: err}
	case same:
		return nil
	}
	names := "Clusters"
	if unread == nil {
		names = inventory.Names(clusters)
	}
	_, err := r.isOther(ctx, obj, before)
	if err == nil {
		err = fmt.Errorf("%s %s leads to a cluster that does not have the release, and it is not known which one was released to", before.Kind, before.Name)
	}
	return r.hold(ctx, run, before, untold(names, before, leadBack(before), err))
}

// untold is why Clusters are not installed while nobody can tell whether the cluster of before has them.
func untold(names string, before target.Ref, back string, why error) error {
	if !before.Local() { // our own cluster is not gone
		back += " or, if that cluster is gone for good, remove annotation " + target.Annotation
	}
	return fmt.Errorf(willNotInstall+"%s in another cluster: cannot find out whether the one of before has them still: %w; %s", names, why, back)
}

// hold has a person decide about a move.
func (r *Reconciler) hold(ctx context.Context, run *run, before target.Ref, why error) *refusal {
	obj := run.Obj
	if obj.Annotations[target.Annotation] == "" {
		// Nothing else is on record of our own cluster: its storage may lose the release, or we the right to read
		// it, long before the Clusters are gone.
		if err := recordTarget(ctx, run, before.Encode()); err != nil {
			return &refusal{reason: reasonRESTClientError, err: err}
		}
	}
	status.SetCondition(obj, v1alpha1.PruneBlockedCondition, metav1.ConditionTrue, v1alpha1.ReasonPruneBlocked, "%s", why)
	return &refusal{reason: v1alpha1.ReasonPruneBlocked, err: why, event: true, stalls: true, wait: r.Jitter(heldPoll)}
}

// clustersOf are the Clusters of the release that a cluster has. Helm's storage there tells of them where there is no
// inventory. If that of another cluster cannot be read, as it is gone, none are left of what was uninstalled, and else it
// is what would be installed now: nothing else would be built a second time.
func (r *Reconciler) clustersOf(ctx context.Context, run *run, at target.Ref) ([]inventory.Entry, error) {
	obj := run.Obj
	var entries []inventory.Entry
	var err error
	if i := obj.Status.Inventory; i != nil {
		for _, ref := range i.Entries {
			if e, err := inventory.Parse(ref.ID, ref.Version); err == nil {
				entries = append(entries, e)
			}
		}
	} else {
		entries, err = r.contents(ctx, obj, at)
	}
	if err != nil && !at.Local() {
		if latest := obj.Status.History.Latest(); latest != nil && latest.Status == common.StatusUninstalled.String() {
			return nil, nil
		}
		objects, unrendered := r.Releases.Declares(ctx, release.Request{
			Object: obj, OCIDigest: run.ociDigest, Values: run.values, Memory: run.memory, Chart: run.chart,
			Cluster: run.cluster, Redact: run.redact, Log: log.FromContext(ctx), Unserved: true,
		})
		if unrendered != nil {
			return nil, fmt.Errorf("%w, and what would be installed cannot be rendered: %w", err, unrendered)
		}
		entries, err = inventory.OfAll(objects), nil
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(entries, func(e inventory.Entry) bool { return !clusterapi.IsCluster(e.GroupKind()) }), nil
}

// contents are the objects of the release that a cluster has, by Helm's storage there.
func (r *Reconciler) contents(ctx context.Context, obj *helmv2.HelmRelease, at target.Ref) ([]inventory.Entry, error) {
	if at.Local() {
		at = target.Ref{} // with our own rights, as has
	}
	switch other, err := r.isOther(ctx, obj, at); {
	case err != nil:
		return nil, err
	case other:
		return nil, errOther
	}
	cluster, err := r.Targets.Connect(ctx, obj.Namespace, at)
	if err != nil {
		return nil, err
	}
	return r.Releases.Contents(ctx, release.Request{Object: obj, Cluster: cluster, Local: at.Local(), Log: log.FromContext(ctx)})
}

// errOther: the way to the cluster of before is that to another one.
var errOther = errors.New("its kubeconfig leads to another one now")

// among are those of the Clusters that the cluster of a reference has.
func (r *Reconciler) among(ctx context.Context, obj *helmv2.HelmRelease, ref target.Ref, clusters []inventory.Entry) (there []inventory.Entry, err error) {
	if ref.Local() {
		ref.User = "" // as in before: an account that may not read them, or is not there, would hold the move for good
	}
	cluster, err := r.Targets.Connect(ctx, obj.Namespace, ref)
	if err == nil && !ref.Local() {
		err = cluster.Answers(ctx, r.Now())
	}
	if err != nil {
		return nil, err
	}
	switch other, err := r.isOther(ctx, obj, ref); {
	case err != nil:
		return nil, err
	case other:
		return nil, errOther
	}
	for _, e := range clusters {
		o := &metav1.PartialObjectMetadata{}
		err := cluster.InServed(e.GroupKind(), func(served *apimeta.RESTMapping) error {
			o.SetGroupVersionKind(served.GroupVersionKind)
			return cluster.Get(ctx, types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, o)
		})
		if apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
			continue
		}
		if apimeta.IsNoMatchError(err) || apierrors.IsNotFound(err) { // Cluster API may have been removed there, after a pivot
			if err = cluster.ConfirmGone(ctx, e); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", e, err)
		}
		there = append(there, e)
	}
	return there, nil
}
