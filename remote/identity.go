package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/remote/selection"
)

// identityIndex finds Children by the identity that they have on record.
const identityIndex = "status.identity.kubeSystemUID"

// identities are the clusters that Children of this process stand for: what the cache
// does not show yet. Two Children must never be one cluster.
type identities map[string]types.NamespacedName

// reserve notes that a Child stands for a cluster, and returns the Child that does if it
// is another one.
func (r *Children) reserve(uid string, key types.NamespacedName) (other types.NamespacedName, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.identities == nil {
		r.identities = identities{}
	}
	if by, taken := r.identities[uid]; taken && by != key {
		return by, false
	}
	// The kubeconfig may have led to another cluster before, which is another Child's to have.
	r.identities.release(key)
	r.identities[uid] = key
	return key, true
}

// unreserve gives back a cluster for which a Child turned out not to stand.
func (r *Children) unreserve(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.identities.release(key)
}

// release forgets for which cluster a Child stands.
func (i identities) release(key types.NamespacedName) {
	for uid, by := range i {
		if by == key {
			delete(i, uid)
		}
	}
}

// sameCluster names another Child that stands for the cluster, if there is one.
func (r *run) sameCluster(ctx context.Context, uid string) (other string, err error) {
	if by, ok := r.reserve(uid, r.key()); !ok {
		return by.String(), nil
	}
	list := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, list, client.MatchingFields{identityIndex: uid}, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("cannot list Children to tell whether another one is the same cluster: %w", err)
	}
	for i := range list.Items {
		if key := client.ObjectKeyFromObject(&list.Items[i]); key != r.key() {
			r.unreserve(r.key())
			return key.String(), nil
		}
	}
	return "", nil
}

// contested names another Child of the same cluster, if another replica may have met it
// at the same moment. It asks until something was sent to this child. Of two that were met
// at once both give way, and one comes first the next time.
func (r *run) contested(ctx context.Context) (other string, err error) {
	id := r.recorded.Status.Identity
	if r.tenure == nil || id == nil || pushed(r.recorded) {
		return "", nil
	}
	return r.sameCluster(ctx, id.KubeSystemUID)
}

// ownUID is the identity of the cluster in which this tier runs.
func (r *Children) ownUID(ctx context.Context) (string, error) {
	r.mu.Lock()
	known := r.own
	r.mu.Unlock()
	if known != "" {
		return known, nil
	}
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := r.Cluster.Get(ctx, types.NamespacedName{Name: metav1.NamespaceSystem}, ns); err != nil {
		return "", fmt.Errorf("cannot read the identity of this tier's own cluster: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own = string(ns.UID)
	return r.own, nil
}

// ownCluster reports whether the child is the cluster in which this tier runs: a
// management cluster that manages itself.
func (r *run) ownCluster() bool {
	id := r.child.Status.Identity
	return id != nil && r.isOwn(id.KubeSystemUID)
}

// isOwn reports whether an identity is that of the cluster in which this tier runs.
func (r *Children) isOwn(uid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.own != "" && uid == r.own
}

// meet decides whether a cluster that is contacted for the first time may be this child,
// and sets its identity, which is recorded before the first write to the child. An error
// with the reason IdentityConflict says that it is another Child's.
func (r *run) meet(ctx context.Context, session *link.Session, cluster capibridge.Cluster, selected []*v1alpha1.Layer, uid string) (err error) {
	other, err := r.sameCluster(ctx, uid)
	if err != nil {
		return err
	}
	if other != "" {
		return reason.Because(v1alpha1.ReasonIdentityConflict, fmt.Errorf(
			"the kubeconfig leads to the cluster of Child %s, whose kube-system has the same UID %s: nothing is written for %s; correct the kubeconfig of one of them", other, uid, r.key()))
	}
	defer func() {
		if err != nil {
			r.unreserve(r.key()) // whose cluster it is, is not known
		}
	}()
	admin, err := session.Administrator(ctx)
	if err != nil {
		return err
	}
	records, err := record.List(ctx, admin)
	if err != nil {
		return cannotReach(err)
	}
	if records, err = r.above(ctx, admin, records, selected); err != nil {
		return err
	}
	listed := records
	if r.notes.earlier, err = earlierRecords(ctx, session); err != nil {
		return cannotReach(err)
	}
	for key, text := range r.notes.earlier {
		// One that cannot be read is an error of its layer.
		if found, err := parseEarlier(key, text); err == nil {
			records = append(records, &record.Record{Cluster: record.Cluster{UID: found.ClusterUID}})
		}
	}
	id := &v1alpha1.ChildIdentity{ClusterUID: cluster.UID, KubeSystemUID: uid}
	marks := make([]epoch.Mark, 0, len(records))
	for _, found := range records {
		marks = append(marks, found.Parent)
	}
	lineage, err := r.lineage(ctx, marks...)
	if err != nil {
		return err
	}
	if id.SeededAs, err = seededAs(cluster, records, lineage, r.child.Spec.InCluster); err != nil {
		return err
	}
	// What others recorded in the cluster of this tier is of the tier above, which goes on there.
	if !r.isOwn(uid) {
		if err := handMade(r.child, cluster, records, lineage); err != nil {
			return err
		}
		id.TakingOver = slices.ContainsFunc(records, func(found *record.Record) bool { return epoch.Judge(lineage, found.Parent) == epoch.Foreign })
	}
	if err := r.recall(ctx, admin, listed, lineage, selected); err != nil {
		return err
	}
	r.child.Status.Identity = id
	return nil
}

// seededAs is the UID of the Cluster for which the records that are in a child were made,
// empty if that is the present one. Records that another tier made for a Cluster of
// another name are proof that the kubeconfig leads to another's cluster. Those that this
// tier made are of a Cluster that it forgot since: no other Child has the cluster. own: the Child says
// that it is the cluster of this tier, for which the tier above has a Cluster of any name.
func seededAs(cluster capibridge.Cluster, records []*record.Record, lineage []epoch.Mark, own bool) (uid string, err error) {
	for _, found := range records {
		by := found.Cluster
		another := by.Name != cluster.Name || by.Namespace != cluster.Namespace
		if by.UID == "" || by.UID == cluster.UID || own && another {
			continue
		}
		if by.Name != "" && another {
			if v := epoch.Judge(lineage, found.Parent); v == epoch.Own || v == epoch.Succeeded || v == epoch.Outrun {
				continue
			}
			return "", reason.Because(v1alpha1.ReasonIdentityConflict, fmt.Errorf(
				"the cluster has records of Cluster %s/%s (UID %s), this is %s/%s: nothing is written; correct the kubeconfig, or delete the ConfigMaps with label %s in namespace %s of the cluster if they are of no use any more",
				by.Namespace, by.Name, by.UID, cluster.Namespace, cluster.Name, v1alpha1.RecordLabel, v1alpha1.AgentNamespace))
		}
		uid = by.UID
	}
	return uid, nil
}

// handMade refuses a cluster that another tier has as a Child of another name, by a kubeconfig and not by Cluster API: a
// kubeconfig that somebody mistook would have it taken over. No Cluster has a UID then that tells, so that where the other
// tier is gone, or gave the cluster up, a person says so for any of the records.
func handMade(child *v1alpha1.Child, cluster capibridge.Cluster, records []*record.Record, lineage []epoch.Mark) error {
	approval := child.Annotations[v1alpha1.ApproveTakeOverAnnotation]
	var another *record.Record
	for _, found := range records {
		by := found.Cluster
		if by.UID != "" || by.Name == "" || by.Name == cluster.Name && by.Namespace == cluster.Namespace || epoch.Judge(lineage, found.Parent) != epoch.Foreign {
			continue
		}
		if approved, _ := epoch.Approves(approval, found.Parent); approved {
			return nil
		}
		another = found
	}
	if another == nil {
		return nil
	}
	return reason.Because(v1alpha1.ReasonIdentityConflict, fmt.Errorf(
		"another tier has the cluster as Child %s/%s, this is %s/%s: nothing is written; correct the kubeconfig or, if that tier is gone or gave the cluster up, annotate this Child with %s=%s",
		another.Cluster.Namespace, another.Cluster.Name, cluster.Namespace, cluster.Name, v1alpha1.ApproveTakeOverAnnotation, another.Parent.Approval()))
}

// above are the records in a child without those of the tier that runs there: it applies layers to its own cluster as well,
// by a Child of its own, and goes on with these whoever is above. Who led it is on record beside them. A
// layer of the same name here is in its way all the same. What a child says of who led it spares records of others, no more.
func (r *run) above(ctx context.Context, child client.Reader, records []*record.Record, selected []*v1alpha1.Layer) ([]*record.Record, error) {
	var below []epoch.Mark
	read := false
	var left []*record.Record
	for _, found := range records {
		lineage, err := r.lineage(ctx, found.Parent)
		if err != nil {
			return nil, reason.Because(v1alpha1.ReasonProgressing, err)
		}
		here := found.Layer.Namespace == r.child.Namespace && among(selected, found.Layer.Name)
		if here || epoch.Judge(lineage, found.Parent) != epoch.Foreign {
			left = append(left, found)
			continue
		}
		if !read {
			if below, err = epoch.Below(ctx, child); err != nil {
				return nil, cannotReach(err)
			}
			read = true
		}
		if !slices.ContainsFunc(below, func(m epoch.Mark) bool { return m.Holder == found.Parent.Holder }) {
			left = append(left, found)
		}
	}
	return left, nil
}

// takeOver marks the records that another management cluster left in the child as this
// tier's, at the first contact or because a person said so: that one finds itself
// superseded should it come back. While the child is not this tier's to write to, it stays the other
// one's: a Cluster that is paused may be on its way here, and the move may be turned back.
func (p *push) takeOver(ctx context.Context) error {
	if p.barred() != nil {
		return nil
	}
	id := p.child.Status.Identity
	var approved, lasts bool
	if by := p.recorded.Status.SupersededBy; by != nil {
		approved, lasts = epoch.Approves(p.child.Annotations[v1alpha1.ApproveTakeOverAnnotation], epoch.Mark{Epoch: by.Number, Holder: by.Holder})
	}
	if !id.TakingOver && !approved {
		return nil
	}
	if err := p.writeStatus(ctx); err != nil { // the identity comes before the first write
		return err
	}
	admin, err := p.session.Administrator(ctx)
	if err != nil {
		return cannotReach(err)
	}
	records, err := record.List(ctx, admin)
	if err != nil {
		return cannotRead(err)
	}
	var selected []*v1alpha1.Layer
	for _, s := range p.layers {
		*s.notes = layerNotes{} // the other one may have changed what was known of it
		selected = append(selected, s.layer)
	}
	if records, err = p.above(ctx, admin, records, selected); err != nil {
		return err
	}
	p.taking = true
	defer func() { p.taking = false }()
	var taken []string
	for _, rec := range records {
		from := rec.Parent
		if err := p.claim(ctx, rec); reason.Of(err) == v1alpha1.ReasonSuperseded {
			continue // of a third one, which nobody approved
		} else if err != nil {
			return err
		}
		if err := rec.Put(ctx, admin); err != nil {
			return reason.Because(v1alpha1.ReasonProgressing, err)
		}
		if from != rec.Parent && !slices.Contains(taken, from.Holder) {
			taken = append(taken, from.Holder)
		}
	}
	if approved && lasts {
		if err := p.dropApproval(ctx); err != nil {
			return err
		}
	}
	// All of it is done again until here.
	if id.TakingOver = false; !p.foreign {
		p.child.Status.SupersededBy = nil
	}
	p.Events.Eventf(p.child, corev1.EventTypeNormal, "TakenOver", "the records of layers are taken over from %s", strings.Join(taken, ", "))
	return nil
}

// dropApproval takes an approval that has no number off the Child: it is used up.
func (p *push) dropApproval(ctx context.Context) error {
	after := p.child.DeepCopy()
	delete(after.Annotations, v1alpha1.ApproveTakeOverAnnotation)
	patch := client.MergeFromWithOptions(p.recorded, client.MergeFromWithOptimisticLock{})
	after.Status = p.recorded.Status
	if err := p.Client.Patch(ctx, after, patch, client.FieldOwner(selection.Manager)); err != nil {
		return reason.Because(v1alpha1.ReasonProgressing, fmt.Errorf("cannot take the approval off Child %s: %w", p.key(), err))
	}
	for _, child := range []*v1alpha1.Child{p.child, p.recorded} {
		child.ResourceVersion, child.Annotations = after.ResourceVersion, after.Annotations
	}
	return nil
}
