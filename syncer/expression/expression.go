// Package expression evaluates the CEL expressions of tenants over objects of
// tenants: spec.healthCheckExprs, readyExpr of spec.dependsOn, spec.commitStatusExpr of
// Providers, readyWhen of Layers, and the filters and validations of Receivers.
//
// An expression can double a string with each call, and CEL looks at its deadline
// between calls only. So expressions are compiled here, which CEL bounds by the
// size and depth of their text, and evaluated in a worker.
//
// Failure model: an expression that cannot be compiled is an error of New or
// Compile. An evaluation that exceeds a limit is a *worker.Exceeded; one that fails
// is a *worker.TaskError, in the words of Flux's library.
package expression

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	celtypes "github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// Limit is how long one evaluation may take. Real ones take microseconds.
const Limit = time.Second

// ErrLate is wrapped by the error of an evaluation that took longer than Limit.
var ErrLate = errors.New("the expression takes longer than " + Limit.String())

// errNoWorkers is a mistake of ours.
var errNoWorkers = errors.New("there is no worker to evaluate expressions")

const (
	statusTask = "expression/status"
	boolTask   = "expression/bool"
	ruleTask   = "expression/rule"
	textTask   = "expression/text"
	filterTask = "expression/filter"
	claimsTask = "expression/claims"
)

// Tasks are what a worker has to be able to do for this package.
func Tasks() worker.Tasks {
	return worker.Tasks{statusTask: evaluateStatus, boolTask: evaluateBool, ruleTask: evaluateRule, textTask: evaluateText, filterTask: evaluateFilter, claimsTask: evaluateClaims}
}

// Compile compiles an expression over structures of the given names, which are
// sorted, that returns a bool.
func Compile(text string, names ...string) error {
	_, err := compile(text, celtypes.BoolType, names)
	return err
}

func compile(text string, of *celtypes.Type, names []string) (*cel.Expression, error) {
	return cel.NewExpression(text, cel.WithCompile(), cel.WithOutputType(of), cel.WithStructVariables(names...))
}

// question is what is asked of a worker.
type question struct {
	Text   string                           `json:",omitempty"`
	Health kustomize.HealthCheckExpressions `json:",omitzero"`
	// Names are the variables that are objects.
	Names   []string `json:",omitempty"`
	Objects []json.RawMessage
}

func (q *question) objects() ([]map[string]any, error) {
	var out []map[string]any
	for _, data := range q.Objects {
		var o map[string]any
		if err := utiljson.Unmarshal(data, &o); err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	return out, nil
}

func run(ctx context.Context, workers worker.Runner, task string, q question, objects ...map[string]any) ([]byte, error) {
	if workers == nil {
		return nil, errNoWorkers
	}
	for _, o := range objects {
		data, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		q.Objects = append(q.Objects, data)
	}
	request, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	return do(ctx, workers, task, request)
}

// Bool evaluates an expression over objects by the names of their variables.
func Bool(ctx context.Context, workers worker.Runner, text string, names []string, objects ...map[string]any) (bool, error) {
	out, err := run(ctx, workers, boolTask, question{Text: text, Names: names}, objects...)
	if err != nil {
		return false, err
	}
	var yes bool
	return yes, json.Unmarshal(out, &yes)
}

func evaluateBool(request []byte, _ worker.Ask) ([]byte, error) {
	return evaluate(request, celtypes.BoolType, (*cel.Expression).EvaluateBoolean)
}

// Rule is Bool over one object, for an expression of which it may be known only then that
// it returns a bool: one that is a field of the object, say. One that cannot be compiled is
// a *worker.TaskError as well.
func Rule(ctx context.Context, workers worker.Runner, text, name string, object map[string]any) (bool, error) {
	out, err := run(ctx, workers, ruleTask, question{Text: text, Names: []string{name}}, object)
	if err != nil {
		return false, err
	}
	var yes bool
	return yes, json.Unmarshal(out, &yes)
}

func evaluateRule(request []byte, _ worker.Ask) ([]byte, error) {
	return evaluate(request, nil, (*cel.Expression).EvaluateBoolean)
}

// evaluate answers a question with what its expression, of the given type or any, makes of
// the objects.
func evaluate[T any](request []byte, of *celtypes.Type, value func(*cel.Expression, context.Context, map[string]any) (T, error)) ([]byte, error) {
	var q question
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, err
	}
	e, err := compile(q.Text, of, q.Names)
	if err != nil {
		return nil, err
	}
	objects, err := q.objects()
	if err != nil {
		return nil, fmt.Errorf("cannot read the objects: %w", err)
	}
	if len(objects) != len(q.Names) {
		return nil, fmt.Errorf("%d objects have %d names", len(objects), len(q.Names))
	}
	vars := map[string]any{}
	for i, name := range q.Names {
		vars[name] = objects[i]
	}
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	result, err := value(e, ctx, vars)
	if err != nil && ctx.Err() != nil {
		return nil, ErrLate
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}

// Text evaluates an expression that returns a string over objects by the names of their
// variables, which are sorted. One that cannot be compiled is a *worker.TaskError as well:
// it is compiled by the worker.
func Text(ctx context.Context, workers worker.Runner, text string, names []string, objects ...map[string]any) (string, error) {
	out, err := run(ctx, workers, textTask, question{Text: text, Names: names}, objects...)
	if err != nil {
		return "", err
	}
	var result string
	return result, json.Unmarshal(out, &result)
}

func evaluateText(request []byte, _ worker.Ask) ([]byte, error) {
	return evaluate(request, celtypes.StringType, (*cel.Expression).EvaluateString)
}

// statusOf evaluates the expressions of a health check over an object.
func statusOf(ctx context.Context, workers worker.Runner, exprs kustomize.HealthCheckExpressions, u *unstructured.Unstructured) (*status.Result, error) {
	out, err := run(ctx, workers, statusTask, question{Health: exprs}, u.Object)
	if err != nil {
		return nil, err
	}
	return &status.Result{Status: status.Status(out)}, nil
}

func evaluateStatus(request []byte, _ worker.Ask) ([]byte, error) {
	var q question
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, err
	}
	e, err := cel.NewStatusEvaluator(&q.Health)
	if err != nil {
		return nil, err
	}
	objects, err := q.objects()
	if err != nil {
		return nil, fmt.Errorf("cannot read the object: %w", err)
	}
	if len(objects) != 1 {
		return nil, fmt.Errorf("%d objects, want one", len(objects))
	}
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	result, err := e.Evaluate(ctx, &unstructured.Unstructured{Object: objects[0]})
	if err != nil {
		return nil, err
	}
	return []byte(result.Status), nil
}
