package expression

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	celtypes "github.com/google/cel-go/common/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// mostAtOnce bounds the objects that one job of a worker is about.
const mostAtOnce = 200

// Filter says which of many objects pass all of its expressions.
type Filter struct {
	// Texts are expressions that return a bool.
	Texts []string
	// Each is the name of the variable that is one object after the other.
	Each string
	// Shared are the variables that are the same for all of them.
	Shared map[string]map[string]any
}

// selection is what is asked of a worker about a Filter.
type selection struct {
	Texts  []string
	Each   string
	Shared json.RawMessage
	Object []json.RawMessage
}

// Select reports of each object whether it passes. An expression that cannot be evaluated
// over one of them is an error.
func (f Filter) Select(ctx context.Context, workers worker.Runner, objects []map[string]any) ([]bool, error) {
	if workers == nil {
		return nil, errNoWorkers
	}
	shared, err := json.Marshal(f.Shared)
	if err != nil {
		return nil, err
	}
	var all []bool
	for part := range slices.Chunk(objects, mostAtOnce) {
		s := selection{Texts: f.Texts, Each: f.Each, Shared: shared}
		for _, o := range part {
			data, err := json.Marshal(o)
			if err != nil {
				return nil, err
			}
			s.Object = append(s.Object, data)
		}
		request, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		out, err := do(ctx, workers, filterTask, request)
		if err != nil {
			return nil, err
		}
		var passed []bool
		if err := json.Unmarshal(out, &passed); err != nil || len(passed) != len(part) {
			return nil, errors.Join(errors.New("cannot read what the worker found"), err)
		}
		all = append(all, passed...)
	}
	return all, nil
}

// do runs a job, and returns ErrLate where the worker says that.
func do(ctx context.Context, workers worker.Runner, task string, request []byte) ([]byte, error) {
	out, err := workers.Run(ctx, worker.Job{Task: task, Request: request})
	var failed *worker.TaskError
	if errors.As(err, &failed) && failed.Text == ErrLate.Error() {
		return nil, ErrLate
	}
	return out, err
}

func evaluateFilter(request []byte, _ worker.Ask) ([]byte, error) {
	var s selection
	if err := json.Unmarshal(request, &s); err != nil {
		return nil, err
	}
	var vars map[string]any
	if err := utiljson.Unmarshal(s.Shared, &vars); err != nil {
		return nil, fmt.Errorf("cannot read the variables: %w", err)
	}
	if vars == nil {
		vars = map[string]any{}
	}
	names := append(slices.Collect(maps.Keys(vars)), s.Each)
	slices.Sort(names)
	passed := make([]bool, len(s.Object))
	for i := range passed {
		passed[i] = true
	}
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	for _, text := range s.Texts {
		e, err := compile(text, celtypes.BoolType, names)
		if err != nil {
			return nil, err
		}
		for i, data := range s.Object {
			if !passed[i] {
				continue
			}
			var object map[string]any
			if err := utiljson.Unmarshal(data, &object); err != nil {
				return nil, fmt.Errorf("cannot read the objects: %w", err)
			}
			vars[s.Each] = object
			passed[i], err = e.EvaluateBoolean(ctx, vars)
			if err != nil && ctx.Err() != nil {
				return nil, ErrLate
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return json.Marshal(passed)
}
