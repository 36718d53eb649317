package capibridge

import (
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"k8s.io/utils/lru"

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

const (
	// celCost bounds the evaluation of an expression, whatever a Cluster holds.
	celCost = 100_000
	// maxPrograms bounds what is kept compiled. There is one for
	// each readyWhen of a Layer, and all clusters use the same.
	maxPrograms = 256
)

// Gates decides about clusters and keeps the expressions of layers compiled. The
// zero value is ready; it may be used by many goroutines.
type Gates struct {
	once     sync.Once
	env      *cel.Env
	err      error
	programs *lru.Cache
}

// compiled is an expression, or why there is none: bad ones are asked for as
// often as good ones.
type compiled struct {
	program cel.Program
	err     error
}

// Gate decides whether a layer may be pushed to a cluster. That the API server
// answers is for the caller to find out.
func (g *Gates) Gate(c Cluster, readyWhen string) Verdict {
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
	open, err := g.evaluate(readyWhen, c.Object)
	if err != nil {
		return closed(v1alpha1.ReasonInvalidSpec, "cannot evaluate readyWhen: %s", err)
	}
	if !open {
		return closed(v1alpha1.ReasonClusterNotReady, "readyWhen %q is false", readyWhen)
	}
	return Verdict{Open: true}
}

func (g *Gates) evaluate(expression string, cluster map[string]any) (bool, error) {
	program, err := g.compile(expression)
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

func (g *Gates) compile(expression string) (cel.Program, error) {
	g.once.Do(func() {
		g.env, g.err = cel.NewEnv(cel.Variable("cluster", cel.DynType))
		g.programs = lru.New(maxPrograms)
	})
	if g.err != nil {
		return nil, g.err
	}
	if known, ok := g.programs.Get(expression); ok {
		c := known.(compiled)
		return c.program, c.err
	}
	// Two goroutines may both compile what is new; the result is the same.
	var c compiled
	ast, issues := g.env.Compile(expression)
	if c.err = issues.Err(); c.err == nil {
		c.program, c.err = g.env.Program(ast, cel.CostLimit(celCost))
	}
	g.programs.Add(expression, c)
	return c.program, c.err
}
