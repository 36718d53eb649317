package expression

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// here does the tasks of a worker in this process, and counts them.
type here struct{ jobs int }

func (h *here) Run(_ context.Context, job worker.Job) ([]byte, error) {
	h.jobs++
	out, err := Tasks()[job.Task](job.Request, nil)
	if err != nil {
		return nil, &worker.TaskError{Text: err.Error()}
	}
	return out, nil
}

// TestSelect: which of many objects pass, in few jobs.
func TestSelect(t *testing.T) {
	var objects []map[string]any
	for i := range 2*mostAtOnce + 1 {
		objects = append(objects, map[string]any{"metadata": map[string]any{"name": fmt.Sprint("o", i), "labels": map[string]any{"odd": fmt.Sprint(i%2 == 1)}}})
	}
	req := map[string]any{"ref": "refs/heads/main", "size": 3}
	for name, tc := range map[string]struct {
		reason string
		texts  []string
		want   int
		fails  bool
	}{
		"All":     {"what is true of all", []string{"req.ref == 'refs/heads/main'"}, len(objects), false},
		"None":    {"what the request does not say", []string{"req.ref == 'refs/heads/other'"}, 0, false},
		"Some":    {"what differs", []string{"res.metadata.labels.odd == 'true'"}, mostAtOnce, false},
		"Both":    {"all expressions have to be true", []string{"res.metadata.labels.odd == 'true'", "req.size > 2 && res.metadata.name.endsWith('1')"}, 40, false},
		"Missing": {"what is not there is an error, and not false", []string{"req.pusher == 'a'"}, 0, true},
		"Guarded": {"unless somebody asks", []string{"has(req.pusher) && req.pusher == 'a'"}, 0, false},
		"NoBool":  {"a number", []string{"1"}, 0, true},
		"Unknown": {"a variable that there is not", []string{"claims.sub == 'a'"}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			runner := &here{}
			passed, err := Filter{Texts: tc.texts, Each: "res", Shared: map[string]map[string]any{"req": req}}.Select(t.Context(), runner, objects)
			if tc.fails {
				if err == nil {
					t.Errorf("%s: %v", tc.reason, passed)
				}
				return
			}
			n := 0
			for _, ok := range passed {
				if ok {
					n++
				}
			}
			if err != nil || len(passed) != len(objects) || n != tc.want || runner.jobs != 3 {
				t.Errorf("%s: %d of %d pass in %d jobs, %v; want %d", tc.reason, n, len(passed), runner.jobs, err, tc.want)
			}
		})
	}
	if _, err := (Filter{Texts: []string{"true"}, Each: "res"}).Select(t.Context(), nil, objects); !errors.Is(err, errNoWorkers) {
		t.Errorf("without workers: %v", err)
	}
}

// TestExamine: variables are there for those after them, and each validation that is false
// says so.
func TestExamine(t *testing.T) {
	claims := map[string]any{"sub": "repo:team/app:ref:refs/heads/main", "admin": false, "n": 3}
	for name, tc := range map[string]struct {
		reason string
		checks Claims
		want   []string
		fails  string
	}{
		"True":    {"as it should be", Claims{Validations: []Validation{{"claims.sub.startsWith('repo:team/')", "owner"}}}, []string{}, ""},
		"False":   {"all messages, in their order", Claims{Validations: []Validation{{"claims.admin == true", "admin"}, {"claims.n > 1.0", "n"}, {"claims.n > 5.0", "few"}}}, []string{"admin", "few"}, ""},
		"Chained": {"a variable of a variable", Claims{[]Variable{{"parts", "claims.sub.split(':')"}, {"owner", "vars.parts[1].split('/')[0]"}}, []Validation{{"vars.owner == 'team'", "owner"}}}, []string{}, ""},
		"Lists":   {"a list", Claims{[]Variable{{"ours", "['repo:team/app:ref:refs/heads/main', 'b']"}}, []Validation{{"claims.sub in vars.ours", "unknown"}}}, []string{}, ""},
		"Later":   {"a variable that comes later", Claims{[]Variable{{"a", "vars.b"}, {"b", "1"}}, []Validation{{"true", ""}}}, nil, "no such key"},
		"NoClaim": {"a claim that the token does not have", Claims{Validations: []Validation{{"claims.email == 'a'", "email"}}}, nil, "no such key"},
		"Nothing": {"without a validation, everybody's token would do", Claims{}, nil, "no validation"},
		"Name":    {"a name that is none", Claims{Variables: []Variable{{"a-b", "1"}}}, nil, "identifier"},
		"NoBool":  {"a validation that is no question", Claims{Validations: []Validation{{"'a'", ""}}}, nil, "bool"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.checks.Examine(t.Context(), &here{}, claims)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Errorf("%s: %v, %v", tc.reason, got, err)
				}
				return
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("%s: %v, %v", tc.reason, got, err)
			}
		})
	}
}
