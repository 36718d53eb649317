package target

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	// Problem is why the target cannot be reached, if it cannot.
	Problem error
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
// always says so. What is in a cluster that the target is no more is out of reach, and left. Unlike Flux it believes only the target about a service
// account: for another cluster ours knows nothing.
func DecideDeletion(f DeletionFacts) DeletionDecision {
	switch {
	case f.Objects == 0:
		return DeletionDecision{Release: true}
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
