package expression

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/fluxcd/pkg/runtime/cel"
	celtypes "github.com/google/cel-go/common/types"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

const textTask = "expression/text"

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
	var q question
	if err := json.Unmarshal(request, &q); err != nil {
		return nil, err
	}
	e, err := cel.NewExpression(q.Text, cel.WithCompile(), cel.WithOutputType(celtypes.StringType), cel.WithStructVariables(q.Names...))
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
	result, err := e.EvaluateString(ctx, vars)
	if err != nil && ctx.Err() != nil {
		return nil, ErrLate
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}
