package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/rights"
)

// What a layer declares is applied, read and deleted as the layer's account. The parent
// makes these requests over its own connection and says as whom, so that the identity
// check, the budget, the breaker and the fence of the connection hold for each of them, and
// no account has a connection of its own. The record of a layer, the parent's rights, and
// the facts that decide whether a delete is safe are the parent's own.

// actAs finds out as whom the layer is pushed.
func (s *seeding) actAs(ctx context.Context) error {
	if s.as != nil {
		return nil
	}
	as, err := s.Accounts.Of(ctx, s.layer)
	if err != nil {
		return err
	}
	s.as = &as
	return nil
}

// referencesFor reads what a layer refers to in this tier, as its account.
func (s *seeding) referencesFor(ctx context.Context) (client.Reader, error) {
	reader, err := s.Accounts.Reader(ctx, *s.as)
	if err != nil {
		return nil, err
	}
	return &referenceReader{Reader: reader, as: *s.as, cache: &s.references, noted: s.noteRead}, nil
}

// acting makes a connection of the parent one that acts as an account.
func acting(parent *apply.Cluster, as account.Account) (*apply.Cluster, error) {
	if as.Parent() {
		return parent, nil
	}
	cluster, err := parent.As(as.User())
	if err != nil {
		return nil, reason.Because(v1alpha1.ReasonSeedFailed, err)
	}
	return cluster, nil
}

// connect returns the connection of the parent, and the one over it that pushes the layer.
func (s *seeding) connect(ctx context.Context, firstSync *inventory.FirstSync) (parent, cluster *apply.Cluster, err error) {
	reach := s.session.Account
	if firstSync != nil && !firstSync.Settled {
		// Whether a Cluster is complete depends on the objects that it refers to. The
		// parent's own account may not read them.
		reach = s.session.Administrator
	}
	if parent, err = reach(ctx); err != nil {
		return nil, nil, cannotReach(err)
	}
	cluster, err = acting(parent, *s.as)
	return parent, cluster, err
}

// reassigned reports whether the layer was pushed as somebody else when it was pushed last
// in the life of this process.
func (s *seeding) reassigned() bool { return s.notes.as != nil && *s.notes.as != *s.as }

// unpermitted reports whether the account may not apply some of what it applied any more.
// Nothing else would show that while the objects are as they were applied.
func (s *seeding) unpermitted(ctx context.Context, owned []inventory.Entry) (bool, error) {
	if s.as.Parent() {
		return false, nil
	}
	parent, err := s.session.Account(ctx)
	if err != nil {
		return false, cannotReach(err)
	}
	cluster, err := acting(parent, *s.as)
	if err != nil {
		return false, err
	}
	lost, err := rights.Lost(ctx, cluster, cluster.RESTMapper(), owned)
	switch {
	case apierrors.IsForbidden(err):
		return true, nil // what is applied tells what is forbidden
	case err != nil:
		return false, cannotReach(err)
	}
	return len(lost) > 0, nil
}

// forbidden is the error of a push of which the child refused something to the layer's
// account.
func forbidden(err error, as account.Account) error {
	return reason.Because(v1alpha1.ReasonForbidden, fmt.Errorf(
		"%w; the layer is pushed as %s: give it the right in this cluster, or take the object out of the layer", err, as.User()))
}

// isForbidden reports whether a child refused something to the layer's account. The record
// is the parent's own, and that the parent may not act as the account is for it to mend.
func isForbidden(err error, as account.Account) bool {
	var own *apply.RecordError
	return err != nil && !as.Parent() && !errors.As(err, &own) && refusedTo(err, as)
}

// refusedTo reports whether an error, or one of those that it consists of, says that an
// account may not do something.
func refusedTo(err error, as account.Account) bool {
	if err == nil {
		return false
	}
	if status, ok := err.(apierrors.APIStatus); ok {
		is := status.Status()
		return is.Reason == metav1.StatusReasonForbidden && !impersonates(is.Details, as)
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(several.Unwrap(), func(e error) bool { return refusedTo(e, as) })
	}
	return refusedTo(errors.Unwrap(err), as)
}

// impersonates reports whether what was refused is to act as the account.
func impersonates(what *metav1.StatusDetails, as account.Account) bool {
	return what != nil && what.Kind == "serviceaccounts" && what.Name == as.Name
}
