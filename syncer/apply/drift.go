package apply

import (
	"context"
	"fmt"
	"strings"

	"github.com/fluxcd/pkg/ssa"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/wI2L/jsondiff"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cascade-gitops/cascade/syncer/directive"
)

// Bounds of a drift's description.
const (
	driftPaths = 10
	driftValue = 80
)

// Drift is an object whose live state is not what was applied, and that is
// left as it is.
type Drift struct {
	// Subject is Kind/namespace/name.
	Subject string
	// Paths that differ, with the live and the declared value. Values of Secrets
	// are not shown.
	Paths []string
}

// String describes the drift in one line.
func (d Drift) String() string {
	if len(d.Paths) == 0 {
		return d.Subject + " drifted"
	}
	return d.Subject + " drifted: " + strings.Join(d.Paths, ", ")
}

// report compares the live object with a dry run and changes nothing.
func (r *run) report(ctx context.Context, u *unstructured.Unstructured) outcome {
	entry, live, declared, err := r.library(nil).Diff(ctx, u, ssa.DiffOptions{
		Exclusions: directive.Skip(), IfNotPresentSelector: directive.IfNotPresent(), DriftIgnoreRules: r.options.Ignore,
	})
	if err != nil {
		return outcome{err: err}
	}
	out := outcome{change: changeOf(u, ssa.UnchangedAction)}
	switch entry.Action {
	case ssa.UnchangedAction, ssa.SkippedAction:
		return out
	case ssa.CreatedAction:
		out.drift = &Drift{Subject: out.change.Subject, Paths: []string{"it is gone"}}
		return out
	}
	out.drift = &Drift{Subject: out.change.Subject, Paths: difference(live, declared, r.options.Secretive)}
	return out
}

// difference lists what a dry run would change.
func difference(live, declared *unstructured.Unstructured, secretive bool) []string {
	if live == nil || declared == nil {
		return nil
	}
	for _, field := range []string{"resourceVersion", "generation", "managedFields"} {
		unstructured.RemoveNestedField(live.Object, "metadata", field)
		unstructured.RemoveNestedField(declared.Object, "metadata", field)
	}
	patch, err := jsondiff.Compare(live.Object, declared.Object)
	if err != nil {
		return nil
	}
	secret := secretive || ssautil.IsSecret(live)
	var paths []string
	for i, op := range patch {
		if i == driftPaths {
			paths = append(paths, fmt.Sprintf("and %d more", len(patch)-i))
			break
		}
		at := op.Path
		switch {
		case op.Type == jsondiff.OperationRemove:
			paths = append(paths, at+" was added")
		case secret:
			// Not only data: kubectl keeps a copy of it in an annotation.
			paths = append(paths, at+" differs")
		case op.Type == jsondiff.OperationAdd:
			paths = append(paths, fmt.Sprintf("%s is missing (declared %s)", at, short(op.Value)))
		default:
			paths = append(paths, fmt.Sprintf("%s is %s (declared %s)", at, short(valueAt(live.Object, at)), short(op.Value)))
		}
	}
	return paths
}

func short(v any) string {
	s := fmt.Sprintf("%v", v)
	if len(s) > driftValue {
		s = s[:driftValue] + "..."
	}
	return s
}

// valueAt follows an RFC 6901 pointer.
func valueAt(v any, pointer string) any {
	for part := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		switch at := v.(type) {
		case map[string]any:
			v = at[part]
		case []any:
			i := -1
			if _, err := fmt.Sscanf(part, "%d", &i); err != nil || i < 0 || i >= len(at) {
				return nil
			}
			v = at[i]
		default:
			return nil
		}
	}
	return v
}
