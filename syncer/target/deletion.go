package target

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// DeletionFacts are what a deleted Kustomization's objects depend on.
type DeletionFacts struct {
	Target Ref
	// AccountGone: the API server of the target confirmed that the service
	// account to impersonate does not exist.
	AccountGone bool
	// Other: the target is another cluster by now, as one that was built anew, than the one that was
	// applied to. Unidentified: it does not tell which one it is, and did before.
	Other, Unidentified bool
	// Problem is why the target cannot be reached, if it cannot. ClusterGone is what tells then
	// that it never will be again.
	Problem     error
	ClusterGone string
	// Objects that the inventory names.
	Objects int
}

// DeletionDecision is how the deletion of a Kustomization goes on.
type DeletionDecision struct {
	// Release lets the Kustomization go. Otherwise it stays and is retried.
	Release bool
	// Prune deletes the objects first.
	Prune bool
	// Message is for an event and, while it stays, for the Ready condition.
	// Empty if there is nothing to tell.
	Message string
}

// DecideDeletion keeps Flux's outcome: without the service account the objects
// are left and the Kustomization goes; with an unreachable cluster it stays. It
// always says so. What is in a cluster that the target is no more is out of reach, and left; so is what was in
// one that Cluster API has taken down, which no commit could end otherwise. Unlike Flux it believes only the target about a service
// account: for another cluster ours knows nothing.
func DecideDeletion(f DeletionFacts) DeletionDecision {
	switch {
	case f.Objects == 0:
		return DeletionDecision{Release: true}
	case f.Problem != nil && f.ClusterGone != "":
		return DeletionDecision{Release: true, Message: fmt.Sprintf("unable to prune objects: %s; %d objects are gone with it, or left behind", f.ClusterGone, f.Objects)}
	case f.Problem != nil:
		return staying(f.Objects, f.Problem.Error())
	case f.Other:
		return DeletionDecision{Release: true, Message: fmt.Sprintf(
			"the cluster that %s %s leads to is another one now; %d objects are left behind in the former", f.Target.Kind, f.Target.Name, f.Objects)}
	case f.AccountGone:
		return DeletionDecision{Release: true, Message: fmt.Sprintf(
			"unable to prune objects: %s does not exist; %d objects are left behind", f.Target.User, f.Objects)}
	case f.Unidentified:
		return staying(f.Objects, fmt.Sprintf("%s %s may not read Namespace %s any more, which tells whether it still leads to the cluster that was applied to; let it read that",
			f.Target.Kind, f.Target.Name, metav1.NamespaceSystem))
	}
	return DeletionDecision{Prune: true, Release: true}
}

// staying says why a Kustomization stays, and how to let it go.
func staying(objects int, why string) DeletionDecision {
	return DeletionDecision{Message: fmt.Sprintf("cannot prune %d objects: %s; to delete the Kustomization and leave them, set spec.deletionPolicy to Orphan", objects, why)}
}

// ClusterGone tells why nothing can be deleted in another cluster, empty if it can: the way to it is
// gone, or Cluster API is taking it down, and with it all that is there. absent: our own API server
// confirms that its Cluster does not exist, so that it never comes back. Of a Secret that is gone the
// reference tells whether a Cluster had it: people make Secrets of such names for other clusters. A
// Cluster that a pivot took from here lives on, and may have left its kubeconfig.
func (t *Targets) ClusterGone(ctx context.Context, namespace string, ref Ref) (why string, absent bool, err error) {
	if ref.Local() {
		return "", false, nil
	}
	name := types.NamespacedName{Namespace: namespace, Name: ref.Name}
	way := &metav1.PartialObjectMetadata{}
	way.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(ref.Kind))
	cluster := ref.OfCluster
	switch err := t.Local.Get(ctx, name, way); {
	case apierrors.IsNotFound(err):
		why = fmt.Sprintf("the %s %s with the way to its cluster does not exist", ref.Kind, name)
	case err != nil:
		return "", false, fmt.Errorf("cannot read %s %s: %w", ref.Kind, name, err)
	default:
		cluster, _ = clusterapi.ClusterOfKubeconfig(way)
	}
	if cluster == "" || ref.Kind != "Secret" {
		return why, false, nil
	}
	name.Name = cluster
	o := &metav1.PartialObjectMetadata{}
	err = t.Local.InServed(clusterapi.ClusterKind, func(served *apimeta.RESTMapping) error {
		o.SetGroupVersionKind(served.GroupVersionKind)
		return t.Local.Get(ctx, name, o)
	})
	how := "is being deleted"
	switch {
	case apimeta.IsNoMatchError(err):
		return why, false, nil
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		how, absent = "does not exist", true
	case err != nil:
		return "", false, fmt.Errorf("cannot read Cluster %s: %w", name, err)
	case o.DeletionTimestamp.IsZero():
		return why, false, nil
	}
	if t.Elsewhere != nil {
		switch elsewhere, err := t.Elsewhere(ctx, name); {
		case err != nil:
			return "", false, fmt.Errorf("cannot tell whether another tier manages Cluster %s: %w", name, err)
		case elsewhere:
			return why, false, nil
		}
	}
	return fmt.Sprintf("the Cluster %s %s", name, how), absent, nil
}

// OfCluster names the Cluster whose kubeconfig the Secret of a reference is, of an object in a namespace. It is empty
// if Cluster API did not make it, and where nobody can tell, as once the Secret is gone.
func (t *Targets) OfCluster(ctx context.Context, namespace string, ref Ref) string {
	if ref.Kind != "Secret" {
		return ""
	}
	way := &metav1.PartialObjectMetadata{}
	way.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(ref.Kind))
	if err := t.Local.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, way); err != nil {
		return ""
	}
	cluster, _ := clusterapi.ClusterOfKubeconfig(way)
	return cluster
}

// KindRemoved reports whether a kind is being removed, by the name of its
// definition. Its objects are deleted then without anybody meaning what they
// stand for.
func KindRemoved(ctx context.Context, local client.Reader, definition string) (bool, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := local.Get(ctx, types.NamespacedName{Name: definition}, crd); err != nil {
		return false, fmt.Errorf("cannot read CRD %s: %w", definition, err)
	}
	return !crd.DeletionTimestamp.IsZero(), nil
}
