// Package depend decides whether what spec.dependsOn names is ready, by Flux's
// rules and by the CEL expressions of readyExpr.
//
// Invariants: it reads nothing and waits for nothing; the caller brings the
// objects. An expression is evaluated by a worker, and bounded in time and memory.
//
// Failure model: an ExpressionError is a mistake in the object; any other error
// names the dependency that is waited for, in Flux's words.
package depend

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fluxcd/pkg/apis/meta"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// ExpressionError: an expression of the object cannot be compiled. Only a
// change of the object helps: reason InvalidCELExpression, stalled.
type ExpressionError struct{ Err error }

func (e *ExpressionError) Error() string { return e.Err.Error() }
func (e *ExpressionError) Unwrap() error { return e.Err }

// Dependency is one entry of spec.dependsOn.
type Dependency struct {
	// Name of the object, with the namespace that it is in.
	Name types.NamespacedName
	// ReadyExpr is a CEL expression over self and dep; it may be empty.
	ReadyExpr string
}

// On is the dependency on an object that one in the given namespace names.
func On(own, namespace, name, readyExpr string) Dependency {
	if namespace == "" {
		namespace = own
	}
	return Dependency{Name: types.NamespacedName{Namespace: namespace, Name: name}, ReadyExpr: readyExpr}
}

// Keys of dependencies in wake.DependencyIndex.
func Keys(dependencies []Dependency) []string {
	var keys []string
	for _, d := range dependencies {
		keys = append(keys, d.Name.String())
	}
	return keys
}

// HasExpression reports whether any change of a dependency may be what is waited
// for.
func HasExpression(dependencies []Dependency) bool {
	return slices.ContainsFunc(dependencies, func(d Dependency) bool { return d.ReadyExpr != "" })
}

// ReadsOthers is an error that names the first dependency in another namespace than own
// that has a readyExpr; nil if there is none. An expression may tell all of what it reads,
// so where references do not leave a namespace it must not. Whether a dependency is ready
// is told in any case, as with Flux.
func ReadsOthers(own string, dependencies []Dependency) error {
	for _, d := range dependencies {
		if d.ReadyExpr != "" && d.Name.Namespace != own {
			return fmt.Errorf("readyExpr of dependency '%s' reads an object of another namespace, which is not allowed; leave the expression out", d.Name)
		}
	}
	return nil
}

// Waits reports whether an object says that a dependency is not ready.
func Waits(o status.Object) bool {
	c := apimeta.FindStatusCondition(o.GetConditions(), meta.ReadyCondition)
	return c != nil && c.Reason == meta.DependencyNotReadyReason
}

// Rules of spec.dependsOn.
type Rules struct {
	// Additive keeps the built-in rules where a readyExpr is given, instead of
	// being replaced by it (Flux's gate AdditiveCELDependencyCheck).
	Additive bool
	// Workers evaluate expressions, with the tasks of package expression.
	Workers worker.Runner
}

// Check is an error that tells in Flux's words why a dependency is not ready. dep
// is what d names, observed the generation that its status is about. decided: an
// expression answered instead of the built-in rules. The error is an
// ExpressionError if self has to be changed.
func (r Rules) Check(ctx context.Context, self status.Object, d Dependency, dep status.Object, observed int64) (decided bool, err error) {
	if d.ReadyExpr != "" {
		ready, err := r.evaluate(ctx, d.ReadyExpr, self, dep)
		if err != nil {
			return false, err
		}
		if !ready {
			return false, fmt.Errorf("dependency '%s' is not ready according to readyExpr eval", d.Name)
		}
		if !r.Additive {
			return true, nil
		}
	}
	if observed != dep.GetGeneration() || !apimeta.IsStatusConditionTrue(dep.GetConditions(), meta.ReadyCondition) {
		return false, fmt.Errorf("dependency '%s' is not ready", d.Name)
	}
	return false, nil
}

// Compile compiles every readyExpr, so that a mistake in one shows even while an
// earlier dependency is not ready.
func Compile(dependencies []Dependency) error {
	for _, d := range dependencies {
		if d.ReadyExpr == "" {
			continue
		}
		if err := compile(d.ReadyExpr, d.Name.Name); err != nil {
			return err
		}
	}
	return nil
}

// variables of a readyExpr.
var variables = []string{"self", "dep"}

func compile(expr, dependency string) error {
	if err := expression.Compile(expr, variables...); err != nil {
		return &ExpressionError{Err: fmt.Errorf("failed to evaluate dependency %s: %w", dependency, err)}
	}
	return nil
}

func (r Rules) evaluate(ctx context.Context, expr string, self, dep status.Object) (bool, error) {
	if err := compile(expr, dep.GetName()); err != nil {
		return false, err
	}
	var objects []map[string]any
	for _, obj := range []status.Object{self, dep} {
		o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			return false, fmt.Errorf("cannot read %s/%s for readyExpr: %w", obj.GetNamespace(), obj.GetName(), err)
		}
		objects = append(objects, o)
	}
	owner := self.GetObjectKind().GroupVersionKind().Kind + "/" + self.GetNamespace() + "/" + self.GetName()
	ready, err := expression.Bool(ctx, worker.For(r.Workers, owner), expr, variables, objects...)
	var exceeded *worker.Exceeded
	switch {
	case errors.Is(err, expression.ErrLate):
		return false, fmt.Errorf("cannot evaluate readyExpr of dependency %s within %s", dep.GetName(), expression.Limit)
	case errors.As(err, &exceeded):
		return false, fmt.Errorf("cannot evaluate readyExpr of dependency %s: %w", dep.GetName(), err)
	}
	return ready, err
}
