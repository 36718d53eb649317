package syncer

import (
	"context"
	"errors"
	"fmt"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/cel"
	celtypes "github.com/google/cel-go/common/types"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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
	if done, err := r.check(ctx, self, d.ReadyExpr, dep, dep.Status.ObservedGeneration, name); done || err != nil {
		return err
	}
	if sourceKey(dep) == sourceKey(self) && dep.Status.LastAppliedRevision != revision {
		return fmt.Errorf("dependency '%s' revision is not up to date", name)
	}
	return nil
}

// CheckRelease is Check for HelmReleases, of which the source does not count.
func (r DependencyRules) CheckRelease(ctx context.Context, self *helmv2.HelmRelease, d helmv2.DependencyReference, dep *helmv2.HelmRelease) error {
	_, err := r.check(ctx, self, d.ReadyExpr, dep, dep.Status.ObservedGeneration, releaseDependency(self, d))
	return err
}

// check is done if an expression answered instead of the built-in rules.
func (r DependencyRules) check(ctx context.Context, self conditioned, expr string, dep conditioned, observed int64, name types.NamespacedName) (done bool, err error) {
	if expr != "" {
		ready, err := evaluateReady(ctx, expr, self, dep)
		if err != nil {
			return false, err
		}
		if !ready {
			return false, fmt.Errorf("dependency '%s' is not ready according to readyExpr eval", name)
		}
		if !r.Additive {
			return true, nil
		}
	}
	if observed != dep.GetGeneration() || !apimeta.IsStatusConditionTrue(dep.GetConditions(), meta.ReadyCondition) {
		return false, fmt.Errorf("dependency '%s' is not ready", name)
	}
	return false, nil
}

// Expressions compiles every readyExpr, so that a mistake in one shows even
// while an earlier dependency is not ready.
func (DependencyRules) Expressions(self *kustomizev1.Kustomization) error {
	for _, d := range self.Spec.DependsOn {
		if err := compiles(d.ReadyExpr, d.Name); err != nil {
			return err
		}
	}
	return nil
}

// ReleaseExpressions is Expressions for a HelmRelease.
func (DependencyRules) ReleaseExpressions(self *helmv2.HelmRelease) error {
	for _, d := range self.Spec.DependsOn {
		if err := compiles(d.ReadyExpr, d.Name); err != nil {
			return err
		}
	}
	return nil
}

func releaseDependency(obj *helmv2.HelmRelease, d helmv2.DependencyReference) types.NamespacedName {
	namespace := d.Namespace
	if namespace == "" {
		namespace = obj.Namespace
	}
	return types.NamespacedName{Namespace: namespace, Name: d.Name}
}

func compiles(expr, dependency string) error {
	if expr == "" {
		return nil
	}
	_, err := compileReady(expr, dependency)
	return err
}

func compileReady(expr, dependency string) (*cel.Expression, error) {
	e, err := cel.NewExpression(expr, cel.WithCompile(), cel.WithOutputType(celtypes.BoolType), cel.WithStructVariables("self", "dep"))
	if err != nil {
		return nil, &ExpressionError{Err: fmt.Errorf("failed to evaluate dependency %s: %w", dependency, err)}
	}
	return e, nil
}

func evaluateReady(ctx context.Context, expr string, self, dep conditioned) (bool, error) {
	e, err := compileReady(expr, dep.GetName())
	if err != nil {
		return false, err
	}
	vars := map[string]any{}
	for name, obj := range map[string]conditioned{"self": self, "dep": dep} {
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
