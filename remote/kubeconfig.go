package remote

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// kubeconfigRef names what leads to a child: a Secret with a kubeconfig under a key, a
// ConfigMap that names a cluster of a cloud, or nothing for the tier's own cluster.
type kubeconfigRef struct {
	kind, name, key string
	// anew: a cloud is asked also if it was a moment ago.
	anew bool
	// version of the Secret that is watched, as secretSource has it; empty if it is not known.
	version string
}

// secretSource identifies a version of a Secret.
func secretSource(ref kubeconfigRef, secret metav1.Object) string {
	return fmt.Sprintf("%s/%s %s %s", ref.name, ref.key, secret.GetUID(), secret.GetResourceVersion())
}

// Kinds of a kubeconfigRef.
const (
	fromSecret    = "Secret"
	fromConfigMap = "ConfigMap"
	inCluster     = "in-cluster"
)

// kubeconfigRef says where the way to the child is on record.
func (r *run) kubeconfigRef(cluster capibridge.Cluster) kubeconfigRef {
	if r.child.Spec.InCluster {
		return kubeconfigRef{kind: inCluster}
	}
	if own := r.child.Spec.KubeConfig; own != nil {
		if own.ConfigMapRef != nil {
			return kubeconfigRef{kind: fromConfigMap, name: own.ConfigMapRef.Name}
		}
		ref := kubeconfigRef{kind: fromSecret, key: clusterapi.KubeconfigKey}
		if own.SecretRef != nil { // the API server admits no other
			if ref.name = own.SecretRef.Name; own.SecretRef.Key != "" {
				ref.key = own.SecretRef.Key
			}
		}
		return ref
	}
	if from := r.notes.facts.Kubeconfig; from.Secret != "" {
		return kubeconfigRef{kind: fromSecret, name: from.Secret, key: from.Key}
	}
	return kubeconfigRef{kind: fromSecret, name: clusterapi.KubeconfigSecret(cluster.Name), key: clusterapi.KubeconfigKey}
}

// kubeconfigSource identifies the version of it that there is now. Secrets of Cluster API
// are watched; others, and ConfigMaps, are looked at.
func (r *run) kubeconfigSource(ctx context.Context, ref kubeconfigRef) (string, error) {
	if ref.kind == inCluster {
		return inCluster, nil
	}
	found, err := r.kubeconfigObject(ctx, ref)
	if err != nil {
		return "", err
	}
	if ref.kind == fromConfigMap {
		return fmt.Sprintf("%s %s %s %s", ref.kind, ref.name, found.UID, found.ResourceVersion), nil
	}
	return secretSource(ref, found), nil
}

// kubeconfigObject is the metadata of the Secret or ConfigMap, which is empty if there is none.
func (r *run) kubeconfigObject(ctx context.Context, ref kubeconfigRef) (*metav1.PartialObjectMetadata, error) {
	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(ref.kind))
	name := types.NamespacedName{Namespace: r.child.Namespace, Name: ref.name}
	err := error(apierrors.NewNotFound(corev1.Resource(ref.kind), ref.name))
	if r.child.Spec.ClusterRef != nil {
		err = r.Cache.Get(ctx, name, found)
	}
	if apierrors.IsNotFound(err) {
		err = r.Cluster.Get(ctx, name, found)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("cannot read %s %s: %w", ref.kind, name, err)
	}
	return found, nil
}

// kubeconfig reads the way to the child from the API server, and asks the cloud if need be.
func (r *run) kubeconfig(ctx context.Context, ref kubeconfigRef, cluster capibridge.Cluster) (*rest.Config, error) {
	switch ref.kind {
	case fromConfigMap:
		return r.ofCloud(ctx, ref)
	case inCluster:
		config, err := r.InCluster()
		if err != nil {
			return nil, reason.Because(v1alpha1.ReasonKubeconfigMissing, err)
		}
		return config, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	missing := func(format string, args ...any) error {
		return reason.Because(v1alpha1.ReasonKubeconfigMissing, fmt.Errorf(format, args...))
	}
	secret, err := r.kubeconfigSecret(ctx, ref)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, missing("cannot read Secret %s: %w", ref.name, err)
	case err != nil:
		return nil, reason.Because(v1alpha1.ReasonProgressing, &link.UnreadError{Err: fmt.Errorf("cannot read Secret %s in this tier: %w", ref.name, err)})
	}
	if r.child.Spec.ClusterRef != nil && !capibridge.BelongsTo(secret, cluster) {
		return nil, missing("cannot use Secret %s: it does not belong to Cluster %s, it has neither the label %s nor an owner", ref.name, cluster.Name, clusterapi.ClusterNameLabel)
	}
	if len(secret.Data[ref.key]) == 0 {
		return nil, missing("cannot use Secret %s: it has no key %s", ref.name, ref.key)
	}
	config, err := r.Allowed.Kubeconfig(secret.Data[ref.key])
	if err != nil {
		return nil, reason.Because(v1alpha1.ReasonKubeconfigRefused, err)
	}
	return config, nil
}

// kubeconfigSecret is the Secret, from the API server if it was not listed in the version that there is now.
func (r *run) kubeconfigSecret(ctx context.Context, ref kubeconfigRef) (*corev1.Secret, error) {
	name := types.NamespacedName{Namespace: r.child.Namespace, Name: ref.name}
	if ref.version != "" {
		if listed := r.kubeconfigs.take(name, r.Now()); listed != nil && secretSource(ref, listed) == ref.version {
			return listed, nil
		}
	}
	secret := &corev1.Secret{}
	err := r.Cluster.Get(ctx, name, secret)
	return secret, err
}

// mayWait reports whether a comparison that failed did so for this tier's own API server, which
// says nothing of the child, and is not long overdue.
func (s *seeding) mayWait(err error) bool {
	var unread *link.UnreadError
	return errors.As(err, &unread) && s.begun.Sub(s.notes.due) < link.UnreadHolds
}

// ofCloud asks the cloud that a ConfigMap names where the cluster is. What the cloud refuses
// is told as an error of the kubeconfig: the cluster has not been called.
func (r *run) ofCloud(ctx context.Context, ref kubeconfigRef) (*rest.Config, error) {
	config, err := r.OfConfigMap(ctx, types.NamespacedName{Namespace: r.child.Namespace, Name: ref.name}, ref.anew)
	var refused *answer.Error
	var tier *target.TierError
	switch {
	case err == nil:
		return config, nil
	case errors.As(err, &tier):
		return nil, reason.Because(v1alpha1.ReasonProgressing, &link.UnreadError{Err: fmt.Errorf("cannot use ConfigMap %s in this tier: %w", ref.name, err)})
	case apierrors.IsNotFound(err):
		return nil, reason.Because(v1alpha1.ReasonKubeconfigMissing, fmt.Errorf("cannot read ConfigMap %s: %w", ref.name, err))
	case errors.As(err, &refused):
		return nil, err
	}
	return nil, reason.Because(v1alpha1.ReasonKubeconfigRefused, err)
}
