package capibridge

import (
	"fmt"

	"github.com/google/cel-go/cel"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Gates that a Layer names by a word; anything else is a CEL expression.
const (
	WhenControlPlaneInitialized = "ControlPlaneInitialized"
	WhenAvailable               = "Available"
)

// Verdict says whether a cluster may be pushed to, and if not, why.
type Verdict struct {
	Open    bool
	Reason  string
	Message string
}

// celCost bounds the evaluation of an expression, whatever a Cluster holds.
const celCost = 100_000

// Gate decides whether a layer may be pushed to a cluster. That the API server
// answers is for the caller to find out.
func Gate(c Cluster, readyWhen string) Verdict {
	closed := func(reason, format string, args ...any) Verdict {
		return Verdict{Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case c.Deleting:
		return closed(v1alpha1.ReasonClusterDeleting, "Cluster is being deleted")
	case c.Paused:
		return closed(v1alpha1.ReasonPaused, "Cluster is paused")
	case !c.InfrastructureProvisioned:
		return closed(v1alpha1.ReasonClusterNotReady, "infrastructure is not provisioned yet")
	case !c.ControlPlaneInitialized:
		return closed(v1alpha1.ReasonClusterNotReady, "control plane is not initialized yet")
	}
	switch readyWhen {
	case "", WhenControlPlaneInitialized:
		return Verdict{Open: true}
	case WhenAvailable:
		if !c.Available {
			return closed(v1alpha1.ReasonClusterNotReady, "Cluster is not Available yet, as readyWhen asks")
		}
		return Verdict{Open: true}
	}
	open, err := evaluate(readyWhen, c.Object)
	if err != nil {
		return closed(v1alpha1.ReasonInvalidSpec, "cannot evaluate readyWhen: %s", err)
	}
	if !open {
		return closed(v1alpha1.ReasonClusterNotReady, "readyWhen %q is false", readyWhen)
	}
	return Verdict{Open: true}
}

func evaluate(expression string, cluster map[string]any) (bool, error) {
	env, err := cel.NewEnv(cel.Variable("cluster", cel.DynType))
	if err != nil {
		return false, err
	}
	ast, issues := env.Compile(expression)
	if issues != nil && issues.Err() != nil {
		return false, issues.Err()
	}
	program, err := env.Program(ast, cel.CostLimit(celCost))
	if err != nil {
		return false, err
	}
	out, _, err := program.Eval(map[string]any{"cluster": cluster})
	if err != nil {
		return false, err
	}
	open, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("the result is %s, not a bool", out.Type().TypeName())
	}
	return open, nil
}
