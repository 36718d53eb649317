package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/selection"
)

// discover creates the Child of a Cluster that has none.
func (r *Children) discover(ctx context.Context, key types.NamespacedName) (ctrl.Result, error) {
	u, err := r.cluster(ctx, key)
	if errors.Is(err, errNoClusterAPI) || errors.Is(err, errNotListed) {
		return ctrl.Result{}, nil // a Child that was made by hand is gone, or the list brings it back
	}
	if err != nil || u == nil || u.GetDeletionTimestamp() != nil {
		return ctrl.Result{}, err
	}
	child := &v1alpha1.Child{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: selection.WithoutOwner(u.GetLabels())},
		Spec:       v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: key.Name}},
	}
	if !r.Part.selects(child) {
		return ctrl.Result{}, nil
	}
	if err := r.Client.Create(ctx, child, client.FieldOwner(selection.Manager)); err != nil && !apierrors.IsAlreadyExists(err) {
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			// The Cluster is where a person looks: there is no Child that could say it.
			r.Events.Eventf(u, corev1.EventTypeWarning, v1alpha1.ReasonChildRefused, "cannot create Child %s: %s; it is tried again", key.Name, err)
		}
		return ctrl.Result{}, fmt.Errorf("cannot create Child %s: %w", key, err)
	}
	r.notesOf(key).created = r.Now()
	return ctrl.Result{}, nil
}

// isNew reports whether a Child was created a moment ago, so that the cache may not
// have it yet.
func (r *Children) isNew(key types.NamespacedName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.notes[key]
	return n != nil && r.Now().Sub(n.created) < createdHolds
}

// errNoClusterAPI: the kind Cluster is not served, which says nothing about
// whether a Cluster exists.
var errNoClusterAPI = errors.New("kind Cluster is not served: Cluster API is not installed in this tier")

// errNotListed: the agent has started and does not know the Clusters of its tier yet.
var errNotListed = errors.New("the agent has not listed the Clusters of its tier yet: its log says why if this stays")

// listHolds is for how long after the agent's start what a Child says stands while
// Clusters are not listed.
const listHolds = 30 * time.Second

// cluster reads a Cluster; nil means confirmed absent.
func (r *Children) cluster(ctx context.Context, key types.NamespacedName) (*unstructured.Unstructured, error) {
	u, ok := r.Clusters.Get(key)
	if ok {
		return u, nil
	}
	gvk, ok := r.Clusters.Version()
	if !ok {
		select {
		case <-r.Clusters.Known():
			return nil, errNoClusterAPI
		default:
			return nil, errNotListed
		}
	}
	// The watch may lag, or be lost. Only the API server confirms an absence.
	u = &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	err := r.Cluster.Get(ctx, key, u)
	switch {
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return nil, nil
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return nil, errNoClusterAPI
	case err != nil:
		return nil, fmt.Errorf("cannot read Cluster %s: %w", key, err)
	}
	return u, nil
}

// tellNameTaken says that a Cluster has no Child, as this one, which a person added, has its name. It goes on as that of the
// cluster that it names. That of the tier's own cluster says nothing: one that manages itself has its Cluster here.
func (r *run) tellNameTaken() {
	u, ok := r.Clusters.Get(r.key())
	if !ok || u.GetDeletionTimestamp() != nil || r.child.Spec.InCluster {
		select {
		case <-r.Clusters.Known():
			meta.RemoveStatusCondition(&r.child.Status.Conditions, v1alpha1.NameTakenCondition)
		default: // the agent has started: what was found before stands
		}
		return
	}
	const so = "this Cluster has no Child, as somebody added another cluster by its name: no Layer reaches it by its labels. Add the other one by another name, and delete Child %s; or rename the Cluster"
	if !meta.IsStatusConditionTrue(r.child.Status.Conditions, v1alpha1.NameTakenCondition) {
		// The Cluster is where a person looks.
		r.Events.Eventf(u, corev1.EventTypeWarning, v1alpha1.ReasonChildRefused, so, r.child.Name)
	}
	r.condition(v1alpha1.NameTakenCondition, metav1.ConditionTrue, v1alpha1.ReasonChildRefused, "Cluster %s: "+so, r.child.Name, r.child.Name)
}

// facts gathers what Cluster API says. ok is false if the run ends here.
func (r *run) facts(ctx context.Context) (cluster capibridge.Cluster, ok bool, result ctrl.Result, err error) {
	if r.child.Spec.ClusterRef == nil {
		r.tellNameTaken()
		r.labels = r.child.Labels
		return capibridge.Cluster{
			Namespace: r.child.Namespace, Name: r.child.Name, Labels: r.child.Labels, Annotations: r.child.Annotations,
			InfrastructureProvisioned: true, ControlPlaneInitialized: true,
		}, true, result, nil
	}
	key := types.NamespacedName{Namespace: r.child.Namespace, Name: r.child.Spec.ClusterRef.Name}
	u, err := r.cluster(ctx, key)
	switch {
	case errors.Is(err, errNotListed) && r.Now().Sub(r.notes.began) < listHolds:
		// All Children would say for a moment that they are not connected.
		return cluster, false, ctrl.Result{RequeueAfter: listHolds}, nil
	case errors.Is(err, errNoClusterAPI), errors.Is(err, errNotListed):
		r.notConnected(metav1.ConditionUnknown, v1alpha1.ReasonClusterNotReady, "%s", err)
		return cluster, false, ctrl.Result{RequeueAfter: r.jittered(waitPause)}, nil
	}
	if err != nil {
		return cluster, false, result, err
	}
	goes := u == nil || u.GetDeletionTimestamp() != nil
	if goes || isCopy(u) {
		if r.elsewhere, err = r.managedElsewhere(ctx, key); err != nil {
			return cluster, false, result, err
		}
		if r.elsewhere {
			if managedElsewhere(r.child) == nil {
				r.tellElsewhere(nil)
			}
			r.labels = r.child.Labels
			return r.remembered(), true, result, nil
		}
	}
	if goes {
		// There is no contact any more: Cluster API takes the cluster down.
		r.Connections.Forget(r.key())
		if by := selection.DeclaredBy(r.child.Labels); by != "" {
			// Its owner would make it again. Nothing is in place any more, for which a Layer that goes would wait.
			if r.child.Status.Identity != nil || len(r.child.Status.Layers) > 0 {
				r.beginAnew()
			}
			r.notConnected(metav1.ConditionFalse, v1alpha1.ReasonClusterNotReady,
				"Cluster %s does not exist, or is being deleted: the Child stays for %s, which declares it by its labels; if nobody does any more: kubectl delete child %s -n %s",
				key.Name, by, r.child.Name, r.child.Namespace)
			return cluster, false, ctrl.Result{RequeueAfter: r.jittered(waitPause)}, nil
		}
		r.gone = true
		err := r.Client.Delete(ctx, r.child, client.Preconditions{UID: &r.child.UID})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return cluster, false, result, fmt.Errorf("cannot delete Child %s of a Cluster that goes: %w", r.key(), err)
		}
		return cluster, false, result, nil
	}
	r.object = u
	meta.RemoveStatusCondition(&r.child.Status.Conditions, v1alpha1.NameTakenCondition)
	meta.RemoveStatusCondition(&r.child.Status.Conditions, v1alpha1.ManagedElsewhereCondition)
	cluster = capibridge.FromObject(u)
	labels, err := selection.Labels(r.child, cluster.Labels)
	if err != nil {
		return cluster, false, result, err
	}
	r.labels = selection.By(labels, cluster.Labels)
	if id := r.child.Status.Identity; id != nil && id.ClusterUID != "" && id.ClusterUID != cluster.UID {
		// Re-created under the same name: another cluster, in which nothing is in place, as far as is known.
		leaving, err := r.leaving(ctx)
		if err != nil {
			return cluster, false, result, err
		}
		r.beginAnew()
		r.child.Status.Layers = leaving
		if err := r.writeStatus(ctx); err != nil {
			return cluster, false, result, err
		}
		r.Events.Eventf(r.child, corev1.EventTypeNormal, "ClusterRecreated", "Cluster was re-created, it is seeded afresh")
	}
	if !maps.Equal(r.child.Labels, labels) {
		before := r.child.DeepCopy()
		after := r.child.DeepCopy()
		after.Labels = labels
		if err := r.Client.Patch(ctx, after, client.MergeFrom(before), client.FieldOwner(selection.Manager)); err != nil {
			return cluster, false, result, client.IgnoreNotFound(err)
		}
		r.child.Labels = labels
	}
	if !r.Part.selects(r.child) {
		// By its new labels it is another agent's, which goes on with it.
		r.gone = true
		return cluster, false, result, nil
	}
	return cluster, true, result, nil
}

// beginAnew drops all that is known of a cluster that is no more. What the next one may have is what
// the Rollouts say, who are told of it by this. Where it is managed is for the pivot to say that has it on its way:
// one that nobody declares any more is known by that alone.
func (r *run) beginAnew() {
	r.Children.forget(r.key())
	r.notes = r.notesOf(r.key())
	r.notes.child = r.child.UID
	status := &r.child.Status
	kept := v1alpha1.ChildStatus{Rollouts: status.Rollouts, MovingTo: status.MovingTo}
	if told := meta.FindStatusCondition(status.Conditions, v1alpha1.ManagementCondition); told != nil {
		kept.Conditions = []metav1.Condition{*told}
	}
	*status = kept
}

// isCopy reports whether a pivot made a Cluster here, and has not let it go. Until it switches the tier that has the
// Cluster goes on with it if the pivot is turned back, and the copy comes to nothing.
func isCopy(u *unstructured.Unstructured) bool {
	annotations := u.GetAnnotations()
	return annotations[v1alpha1.PivotAnnotation] != "" && annotations[v1alpha1.PivotOfAnnotation] != ""
}

// managedElsewhere reports whether another tier manages a Cluster that is not here, or not yet. Not to
// know is an error: the Child must not go for it.
func (r *run) managedElsewhere(ctx context.Context, key types.NamespacedName) (bool, error) {
	if r.Elsewhere == nil {
		return false, nil
	}
	elsewhere, err := r.Elsewhere(ctx, key)
	if err != nil {
		return false, fmt.Errorf("cannot tell whether another tier manages Cluster %s: %w", key, err)
	}
	return elsewhere, nil
}

// remembered is what the Child has of a Cluster that another tier manages.
func (r *run) remembered() capibridge.Cluster {
	cluster := capibridge.Cluster{
		Namespace: r.child.Namespace, Name: r.child.Spec.ClusterRef.Name, Labels: r.child.Labels, Annotations: r.child.Annotations,
		InfrastructureProvisioned: true, ControlPlaneInitialized: true,
	}
	if id := r.child.Status.Identity; id != nil {
		cluster.UID = id.ClusterUID
	}
	return cluster
}

// How long facts of a provider hold without a change of the Cluster. The state of one that is up
// shows on the Cluster, and account and region do not change. Why one does not come up is the
// provider's to say: the Cluster has it in conditions that do not count here, or nowhere, as that an
// identity may not be used. Nor does the Cluster tell that what could not be read can be.
const (
	describeAgain      = time.Hour
	describeUnfinished = 10 * time.Minute
	describeBuilding   = 30 * time.Second
)

// factsHold is for how long what is known of the provider's objects holds.
func (r *run) factsHold(cluster capibridge.Cluster) time.Duration {
	switch {
	case r.child.Annotations[fluxmeta.ReconcileRequestAnnotation] != r.child.Status.LastHandledReconcileAt:
		return 0
	case !cluster.InfrastructureProvisioned, !cluster.ControlPlaneInitialized:
		return describeBuilding
	case r.notes.facts.Unfinished, r.notes.facts.Unread != (capibridge.Health{}):
		return describeUnfinished
	}
	return describeAgain
}

// pushed reports whether anything was ever sent to a child.
func pushed(child *v1alpha1.Child) bool {
	return slices.ContainsFunc(child.Status.Layers, func(l v1alpha1.ChildLayer) bool { return l.LastAttemptedDigest != "" })
}

// describe returns what the provider's objects say about the Cluster. It reads them
// when the Cluster has changed: once it is up, Cluster API changes the Cluster with nearly
// every change of theirs that matters here.
func (r *run) describe(ctx context.Context, cluster capibridge.Cluster) (capibridge.Facts, error) {
	if r.object == nil {
		return capibridge.Facts{}, nil
	}
	n := r.notes
	// Other writes to a Cluster, such as our own condition, do not count.
	state := fmt.Sprint(r.object.GetGeneration(), cluster.InfrastructureProvisioned, cluster.ControlPlaneInitialized,
		cluster.Available, cluster.RollingOut, cluster.Remediating, cluster.RemoteConnection, cluster.Failure)
	if n.described == state && r.Now().Sub(n.since) < r.factsHold(cluster) {
		return n.facts, nil
	}
	if r.later {
		r.undescribed = "it is looked at once all children were asked whether they answer"
		return capibridge.Facts{}, nil
	}
	found, err := r.Bridge.Describe(ctx, r.Cluster, cluster)
	if err == nil && n.described == "" && found.Unread != (capibridge.Health{}) && pushed(r.child) {
		// What a process before this one knew is not known here. All else of the child goes on.
		r.undescribed = found.Unread.Message
		return found, nil
	}
	if err != nil && n.described == "" {
		// Without the facts the layers would be rendered with other variables.
		return found, fmt.Errorf("cannot describe Cluster %s: %w", r.key(), err)
	}
	if err == nil {
		n.described, n.since, n.facts = state, r.Now(), found.Keeping(n.facts)
	}
	return n.facts, nil
}
