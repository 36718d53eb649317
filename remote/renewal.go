package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/reason"
)

// A Cluster that manages itself leaves its kubeconfig here, in a Secret without owner. The
// controller that renews it is in the child, so that the Secret here follows the one there.
// Decision 088 says what of that one is taken.

const (
	// renewalMost and renewalLeast are the most and the least time between two looks at the kubeconfig of
	// a child, and renewalRetry that after one which failed.
	renewalMost  = 6 * time.Minute
	renewalLeast = 30 * time.Second
	renewalRetry = time.Minute
	// renewalParts is how often a kubeconfig is looked at while it is good. One of EKS is good for 15
	// minutes, and its controller makes another one every ten: with ten looks that here is good for some
	// minutes at any time, should this agent start anew.
	renewalParts = 10
	// renewalTimeout bounds all calls of one look.
	renewalTimeout = 20 * time.Second
)

// tellElsewhere says that another tier manages the Cluster. Why its kubeconfig is not renewed here, if
// it is not, is told along with that.
func (r *run) tellElsewhere(unrenewed error) {
	const text = "another tier manages the Cluster: what the layers brought stays as it is, and no Rollout moves it, until the Cluster is moved back"
	if unrenewed == nil {
		r.condition(v1alpha1.ManagedElsewhereCondition, metav1.ConditionTrue, v1alpha1.ReasonManagedElsewhere, "%s", text)
		return
	}
	r.condition(v1alpha1.ManagedElsewhereCondition, metav1.ConditionTrue, v1alpha1.ReasonKubeconfigNotRenewed,
		"%s. The kubeconfig is not renewed here: %s. Put one that is valid into the Secret before it lapses", text, unrenewed)
}

// keepsKubeconfig reports whether a Cluster that is elsewhere left its kubeconfig here, as one that manages
// itself does. It follows the one in the child though no layer selects the cluster: a Layer may have it
// brought back.
func (r *run) keepsKubeconfig(ctx context.Context, cluster capibridge.Cluster) (bool, error) {
	ref := r.kubeconfigRef(cluster)
	if !r.elsewhere || r.child.Spec.KubeConfig != nil || ref.kind != fromSecret {
		return false, nil
	}
	found, err := r.kubeconfigObject(ctx, ref)
	return err == nil && found.UID != "", err
}

// renew has the kubeconfig of a Cluster that is elsewhere follow the one in the child, if that is
// due. A failure fails nothing else: the kubeconfig may be good for long.
func (r *run) renew(ctx context.Context, session *link.Session, cluster capibridge.Cluster) {
	ref := r.kubeconfigRef(cluster)
	switch {
	case !r.elsewhere:
		r.notes.renewAt = time.Time{}
		return
	case r.child.Spec.KubeConfig != nil, ref.kind != fromSecret: // a person sees to it
		r.notes.renewAt = time.Time{}
		r.tellElsewhere(nil)
		return
	case r.Now().Before(r.notes.renewAt):
		return
	}
	ctx, cancel := context.WithTimeout(ctx, renewalTimeout)
	defer cancel()
	refused := r.notes.refused
	here, err := r.renewFrom(ctx, session, ref, cluster)
	pause := renewalRetry
	switch {
	case err == nil && r.notes.refused != "" && managedElsewhere(r.child) != nil:
		r.notes.unrenewed = false // one refusal says nothing that holds
	case err == nil:
		if r.notes.refused == "" {
			pause = renewalPause(r.lapses(here), r.Now())
		}
		r.notes.unrenewed = false
		r.tellElsewhere(nil)
	case reason.Of(err) == v1alpha1.ReasonKubeconfigNotRenewed:
		r.notes.unrenewed, r.notes.refused = false, refused // it is not taken anew for the first one
		r.tellElsewhere(err)
	case r.notes.unrenewed: // it may fail each time
		r.tellElsewhere(session.Steady(err))
	default: // one call that failed says nothing that holds
		r.notes.unrenewed = true
		log.FromContext(ctx).Error(err, "cannot renew the kubeconfig of a Cluster that another tier manages", "child", r.key())
	}
	r.notes.renewAt = r.Now().Add(r.jittered(pause))
}

// renewalPause is the time until the next look at a kubeconfig that lapses at some time, zero if it does
// not say when.
func renewalPause(lapses, now time.Time) time.Duration {
	if lapses.IsZero() {
		return renewalMost
	}
	return min(max(lapses.Sub(now)/renewalParts, renewalLeast), renewalMost)
}

// lapses is when the credentials of a kubeconfig do, zero if that is not known.
func (r *run) lapses(kubeconfig []byte) time.Time {
	config, err := r.Allowed.Kubeconfig(kubeconfig)
	if err != nil {
		return time.Time{}
	}
	return capibridge.CredentialOf(config).ExpiresAt
}

// renewFrom writes the credentials of the child's own kubeconfig into the Secret here, and returns the
// kubeconfig that is here then. An error with the reason KubeconfigNotRenewed is one that a person has to
// look at.
func (r *run) renewFrom(ctx context.Context, session *link.Session, ref kubeconfigRef, cluster capibridge.Cluster) ([]byte, error) {
	refused := r.notes.refused
	r.notes.refused = ""
	name := types.NamespacedName{Namespace: r.child.Namespace, Name: ref.name}
	here := &corev1.Secret{}
	if err := r.Cluster.Get(ctx, name, here); err != nil {
		return nil, fmt.Errorf("cannot read Secret %s: %w", name, err)
	}
	if len(here.OwnerReferences) > 0 || here.Annotations[v1alpha1.PivotAnnotation] != "" || !capibridge.BelongsTo(here, cluster) {
		return here.Data[ref.key], nil // a pivot has not left it yet, or takes it over
	}
	there, err := r.secretOf(ctx, session, name)
	if err != nil {
		return nil, err
	}
	data, err := r.Allowed.Renewed(here.Data[ref.key], there.Data[ref.key], r.Now())
	if err != nil {
		return nil, unrenewed("of Secret %s, key %s, %w", name, ref.key, err)
	}
	if data == nil {
		return here.Data[ref.key], nil
	}
	switch better, err := r.isBetter(ctx, session, here.Data[ref.key], data, refused == here.ResourceVersion); {
	case errors.Is(err, errRefusedOnce):
		r.notes.refused = here.ResourceVersion
		return here.Data[ref.key], nil
	case err != nil:
		return nil, err
	case !better:
		return here.Data[ref.key], nil
	}
	after := here.DeepCopy()
	after.Data[ref.key] = data
	err = r.Client.Patch(ctx, after, client.MergeFromWithOptions(here, client.MergeFromWithOptimisticLock{}), client.FieldOwner(statusManager))
	switch {
	case apierrors.IsForbidden(err): // an agent with a lockdown writes no Secrets
		return nil, unrenewed("cannot write Secret %s: %w", name, err)
	case err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err): // else somebody has just seen to it
		return nil, fmt.Errorf("cannot write Secret %s: %w", name, err)
	}
	return data, nil
}

// errRefusedOnce: the child refused the better credentials that are here, for the first time.
var errRefusedOnce = errors.New("the credentials were refused once")

// isBetter reports whether a kubeconfig with the credentials that the child has is to take the place of the
// one that is here. A person may have put one here that is good for longer; it stays while the child takes
// it, and until two looks in a row found that it does not, the one before if refused: an API server whose
// authenticator fails for a moment refuses what is good. One that the child does not take would leave no way
// to it.
func (r *run) isBetter(ctx context.Context, session *link.Session, here, there []byte, refused bool) (bool, error) {
	ours, err := r.Allowed.Kubeconfig(here)
	if err != nil {
		return false, err
	}
	theirs, err := r.Allowed.Kubeconfig(there)
	if err != nil {
		return false, err
	}
	if capibridge.CredentialOf(ours).Outlives(capibridge.CredentialOf(theirs)) {
		switch accepted, err := session.Accepts(ctx, ours); {
		case err != nil, accepted:
			return false, err
		case !refused:
			return false, errRefusedOnce
		}
	}
	accepted, err := session.Accepts(ctx, theirs)
	if err == nil && !accepted {
		err = unrenewed("the API server of the cluster refuses the credentials of the one that it has of itself")
	}
	return accepted, err
}

// secretOf reads a Secret of the child as the parent's account, which gets the right to read that one
// if it has none yet.
func (r *run) secretOf(ctx context.Context, session *link.Session, name types.NamespacedName) (*corev1.Secret, error) {
	path := fmt.Sprintf("/api/v1/namespaces/%s/secrets/%s", name.Namespace, name.Name)
	secret := &corev1.Secret{}
	err := session.Read(ctx, path, secret)
	if apierrors.IsForbidden(err) {
		owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: r.child.Spec.ClusterRef.Name}}
		gvk, ok := r.Clusters.Version()
		if !ok {
			return nil, errNoClusterAPI
		}
		owner.SetGroupVersionKind(gvk)
		switch err := session.Lend(ctx, name, owner); {
		case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
			return nil, unrenewed("this tier may not read Secret %s of the cluster, and the kubeconfig that is here is refused where it would get the right: %w", name, err)
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
			return nil, unrenewed("the cluster does not manage itself: %w", err)
		case err != nil:
			return nil, fmt.Errorf("cannot get the right to read Secret %s of the child: %w", name, err)
		}
		err = session.Read(ctx, path, secret)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, unrenewed("the cluster has no Secret %s", name)
	case err != nil:
		return nil, fmt.Errorf("cannot read Secret %s of the child: %w", name, err)
	}
	return secret, nil
}

func unrenewed(format string, args ...any) error {
	return reason.Because(v1alpha1.ReasonKubeconfigNotRenewed, fmt.Errorf(format, args...))
}
