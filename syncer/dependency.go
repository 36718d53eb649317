package syncer

import (
	"context"
	"errors"
	"fmt"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/cel"
	celtypes "github.com/google/cel-go/common/types"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

// readyEvaluation is how long a readyExpr may take. Expressions come from
// tenants; real ones take microseconds.
const readyEvaluation = time.Second

// ExpressionError: an expression of the object cannot be compiled. Only a
// change of the object helps: reason InvalidCELExpression, stalled.
type ExpressionError struct{ Err error }

func (e *ExpressionError) Error() string { return e.Err.Error() }
func (e *ExpressionError) Unwrap() error { return e.Err }

// DependencyRules of spec.dependsOn.
type DependencyRules struct {
	// Additive keeps the built-in rules where a readyExpr is given, instead of
	// being replaced by it (Flux's gate AdditiveCELDependencyCheck).
	Additive bool
}

// Check is an error that tells in Flux's words why a dependency is not ready.
// dep is what d names. revision is that of the snapshot that self is about to
// use: a dependency on the same source must have applied it. The error is an
// ExpressionError if self has to be changed.
func (r DependencyRules) Check(ctx context.Context, self *kustomizev1.Kustomization, d kustomizev1.DependencyReference, dep *kustomizev1.Kustomization, revision string) error {
	name := dependencyKey(self, d)
	if d.ReadyExpr != "" {
		ready, err := evaluateReady(ctx, d.ReadyExpr, self, dep)
		if err != nil {
			return err
		}
		if !ready {
			return fmt.Errorf("dependency '%s' is not ready according to readyExpr eval", name)
		}
		if !r.Additive {
			return nil
		}
	}
	if len(dep.Status.Conditions) == 0 || dep.Status.ObservedGeneration != dep.Generation ||
		!apimeta.IsStatusConditionTrue(dep.Status.Conditions, meta.ReadyCondition) {
		return fmt.Errorf("dependency '%s' is not ready", name)
	}
	if sourceKey(dep) == sourceKey(self) && dep.Status.LastAppliedRevision != revision {
		return fmt.Errorf("dependency '%s' revision is not up to date", name)
	}
	return nil
}

// Expressions compiles every readyExpr, so that a mistake in one shows even
// while an earlier dependency is not ready.
func (DependencyRules) Expressions(self *kustomizev1.Kustomization) error {
	for _, d := range self.Spec.DependsOn {
		if d.ReadyExpr == "" {
			continue
		}
		if _, err := compileReady(d.ReadyExpr, d.Name); err != nil {
			return err
		}
	}
	return nil
}

func compileReady(expr, dependency string) (*cel.Expression, error) {
	e, err := cel.NewExpression(expr, cel.WithCompile(), cel.WithOutputType(celtypes.BoolType), cel.WithStructVariables("self", "dep"))
	if err != nil {
		return nil, &ExpressionError{Err: fmt.Errorf("failed to evaluate dependency %s: %w", dependency, err)}
	}
	return e, nil
}

func evaluateReady(ctx context.Context, expr string, self, dep *kustomizev1.Kustomization) (bool, error) {
	e, err := compileReady(expr, dep.Name)
	if err != nil {
		return false, err
	}
	vars := map[string]any{}
	for name, obj := range map[string]*kustomizev1.Kustomization{"self": self, "dep": dep} {
		if vars[name], err = runtime.DefaultUnstructuredConverter.ToUnstructured(obj); err != nil {
			return false, fmt.Errorf("cannot read Kustomization %s/%s for readyExpr: %w", obj.Namespace, obj.Name, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, readyEvaluation)
	defer cancel()
	ready, err := e.EvaluateBoolean(ctx, vars)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return false, fmt.Errorf("cannot evaluate readyExpr of dependency %s within %s", dep.Name, readyEvaluation)
	}
	return ready, err
}
