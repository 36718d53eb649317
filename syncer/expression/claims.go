package expression

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"github.com/fluxcd/pkg/runtime/cel"
	celtypes "github.com/google/cel-go/common/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// Variable is an expression with a name, which those after it have as vars.<name>.
type Variable struct{ Name, Text string }

// Validation is an expression that returns a bool, and what is said if it is false.
type Validation struct{ Text, Message string }

// Claims are checks of the claims of a token, which expressions have as claims.
type Claims struct {
	Variables   []Variable
	Validations []Validation
}

var identifier = regexp.MustCompile(`^[_a-zA-Z][_a-zA-Z0-9]*$`)

// compiled are the expressions of Claims, in their order.
type compiled struct{ variables, validations []*cel.Expression }

// Compile reports what is wrong with the expressions.
func (c Claims) Compile() error {
	_, err := c.compile()
	return err
}

func (c Claims) compile() (*compiled, error) {
	known := cel.WithStructVariables("claims", "vars")
	out := &compiled{}
	for _, v := range c.Variables {
		if !identifier.MatchString(v.Name) {
			return nil, fmt.Errorf("variable name %q is no identifier", v.Name)
		}
		e, err := cel.NewExpression(v.Text, cel.WithCompile(), known)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", v.Name, err)
		}
		out.variables = append(out.variables, e)
	}
	for _, v := range c.Validations {
		e, err := cel.NewExpression(v.Text, cel.WithCompile(), known, cel.WithOutputType(celtypes.BoolType))
		if err != nil {
			return nil, err
		}
		out.validations = append(out.validations, e)
	}
	return out, nil
}

// examination is what is asked of a worker about Claims.
type examination struct {
	Checks Claims
	Of     json.RawMessage
}

// Examine returns the messages of the validations that are false for the claims of a token.
func (c Claims) Examine(ctx context.Context, workers worker.Runner, claims map[string]any) ([]string, error) {
	if workers == nil {
		return nil, errNoWorkers
	}
	of, err := json.Marshal(claims)
	if err != nil {
		return nil, err
	}
	request, err := json.Marshal(examination{c, of})
	if err != nil {
		return nil, err
	}
	out, err := do(ctx, workers, claimsTask, request)
	if err != nil {
		return nil, err
	}
	var failed []string
	return failed, json.Unmarshal(out, &failed)
}

func evaluateClaims(request []byte, _ worker.Ask) ([]byte, error) {
	var x examination
	if err := json.Unmarshal(request, &x); err != nil {
		return nil, err
	}
	var claims map[string]any
	if err := utiljson.Unmarshal(x.Of, &claims); err != nil {
		return nil, fmt.Errorf("cannot read the claims: %w", err)
	}
	expressions, err := x.Checks.compile()
	if err != nil {
		return nil, err
	}
	if len(expressions.validations) == 0 {
		return nil, errors.New("there is no validation")
	}
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	late := func(err error) error {
		if ctx.Err() != nil {
			return ErrLate
		}
		return err
	}
	vars := map[string]any{}
	for i, e := range expressions.variables {
		if vars[x.Checks.Variables[i].Name], err = e.Evaluate(ctx, map[string]any{"claims": claims, "vars": vars}); err != nil {
			return nil, late(err)
		}
	}
	failed := []string{}
	for i, e := range expressions.validations {
		ok, err := e.EvaluateBoolean(ctx, map[string]any{"claims": claims, "vars": vars})
		if err != nil {
			return nil, late(err)
		}
		if !ok {
			failed = append(failed, x.Checks.Validations[i].Message)
		}
	}
	return json.Marshal(failed)
}
