package target

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// DeletionFacts are what a deleted Kustomization's objects depend on.
type DeletionFacts struct {
	Target Ref
	// AccountGone: the API server of the target confirmed that the service
	// account to impersonate does not exist.
	AccountGone bool
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
// always says so. Unlike Flux it believes only the target about a service
// account: for another cluster ours knows nothing.
func DecideDeletion(f DeletionFacts) DeletionDecision {
	switch {
	case f.Objects == 0:
		return DeletionDecision{Release: true}
	case f.Problem != nil:
		return DeletionDecision{Message: fmt.Sprintf(
			"cannot prune %d objects: %s; to delete the Kustomization and leave them, set spec.deletionPolicy to Orphan", f.Objects, f.Problem)}
	case f.AccountGone:
		return DeletionDecision{Release: true, Message: fmt.Sprintf(
			"unable to prune objects: %s does not exist; %d objects are left behind", f.Target.User, f.Objects)}
	}
	return DeletionDecision{Prune: true, Release: true}
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
