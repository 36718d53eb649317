// Package depend decides whether what spec.dependsOn names is ready, by Flux's
// rules and by the CEL expressions of readyExpr.
//
// Invariants: it reads nothing and waits for nothing; the caller brings the
// objects. An expression is bounded in time.
//
// Failure model: an ExpressionError is a mistake in the object; any other error
// names the dependency that is waited for, in Flux's words.
package depend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/cel"
	celtypes "github.com/google/cel-go/common/types"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/syncer/status"
)

// readyEvaluation is how long a readyExpr may take. Expressions come from
// tenants; real ones take microseconds.
const readyEvaluation = time.Second

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
}

// Check is an error that tells in Flux's words why a dependency is not ready. dep
// is what d names, observed the generation that its status is about. decided: an
// expression answered instead of the built-in rules. The error is an
// ExpressionError if self has to be changed.
func (r Rules) Check(ctx context.Context, self status.Object, d Dependency, dep status.Object, observed int64) (decided bool, err error) {
	if d.ReadyExpr != "" {
		ready, err := evaluate(ctx, d.ReadyExpr, self, dep)
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
		if _, err := compile(d.ReadyExpr, d.Name.Name); err != nil {
			return err
		}
	}
	return nil
}

func compile(expr, dependency string) (*cel.Expression, error) {
	e, err := cel.NewExpression(expr, cel.WithCompile(), cel.WithOutputType(celtypes.BoolType), cel.WithStructVariables("self", "dep"))
	if err != nil {
		return nil, &ExpressionError{Err: fmt.Errorf("failed to evaluate dependency %s: %w", dependency, err)}
	}
	return e, nil
}

func evaluate(ctx context.Context, expr string, self, dep status.Object) (bool, error) {
	e, err := compile(expr, dep.GetName())
	if err != nil {
		return false, err
	}
	vars := map[string]any{}
	for name, obj := range map[string]status.Object{"self": self, "dep": dep} {
		if vars[name], err = runtime.DefaultUnstructuredConverter.ToUnstructured(obj); err != nil {
			return false, fmt.Errorf("cannot read %s/%s for readyExpr: %w", obj.GetNamespace(), obj.GetName(), err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readyEvaluation)
	defer cancel()
	ready, err := e.EvaluateBoolean(ctx, vars)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return false, fmt.Errorf("cannot evaluate readyExpr of dependency %s within %s", dep.GetName(), readyEvaluation)
	}
	return ready, err
}
