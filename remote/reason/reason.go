// Package reason gives errors about children the stable reason that a condition has.
//
// Invariants: the outermost reason that an error was given counts, so that who reports it
// decides; an error without a reason is one of seeding. It is pure.
package reason

import (
	"errors"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

type reasoned struct {
	reason string
	err    error
}

func (e *reasoned) Error() string { return e.err.Error() }
func (e *reasoned) Unwrap() error { return e.err }

// Because gives an error a reason.
func Because(reason string, err error) error { return &reasoned{reason: reason, err: err} }

// Of returns the reason of an error: the outermost one that it was given, or
// SeedFailed. No error has none.
func Of(err error) string {
	if err == nil {
		return ""
	}
	var r *reasoned
	if errors.As(err, &r) {
		return r.reason
	}
	return v1alpha1.ReasonSeedFailed
}

// Given reports whether an error was given a reason.
func Given(err error) bool {
	var r *reasoned
	return errors.As(err, &r)
}
