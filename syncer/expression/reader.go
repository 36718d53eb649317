package expression

import (
	"context"
	"fmt"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/engine"
	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/event"
	kstatusreaders "github.com/fluxcd/cli-utils/pkg/kstatus/polling/statusreaders"
	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/cli-utils/pkg/object"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cascade-gitops/cascade/syncer/worker"
)

// NewReader compiles the expressions of spec.healthCheckExprs into a status reader that
// evaluates them by workers. An error is about the expressions, and final.
func NewReader(checks []kustomize.CustomHealthCheck, workers worker.Runner) (func(apimeta.RESTMapper) engine.StatusReader, error) {
	if _, err := cel.NewStatusReader(checks); err != nil {
		return nil, err
	}
	exprs := make(map[schema.GroupKind]kustomize.HealthCheckExpressions, len(checks))
	for _, c := range checks {
		gk := schema.FromAPIVersionAndKind(c.APIVersion, c.Kind).GroupKind()
		if c.Kind == "" {
			gk = schema.GroupKind{Group: gk.Group}
		}
		exprs[gk] = c.HealthCheckExpressions
	}
	return func(mapper apimeta.RESTMapper) engine.StatusReader {
		return &reader{mapper: mapper, exprs: exprs, workers: workers}
	}, nil
}

// reader is Flux's reader of that kind, but for where expressions are evaluated.
type reader struct {
	mapper apimeta.RESTMapper
	// exprs by kind, or by group if the kind is empty.
	exprs   map[schema.GroupKind]kustomize.HealthCheckExpressions
	workers worker.Runner
}

func (r *reader) of(gk schema.GroupKind) (kustomize.HealthCheckExpressions, bool) {
	e, ok := r.exprs[gk]
	if !ok {
		e, ok = r.exprs[schema.GroupKind{Group: gk.Group}]
	}
	return e, ok
}

// Supports implements engine.StatusReader.
func (r *reader) Supports(gk schema.GroupKind) bool {
	_, ok := r.of(gk)
	return ok
}

// ReadStatus implements engine.StatusReader.
func (r *reader) ReadStatus(ctx context.Context, cluster engine.ClusterReader, id object.ObjMetadata) (*event.ResourceStatus, error) {
	generic, err := r.generic(ctx, id.GroupKind)
	if err != nil {
		return nil, err
	}
	return generic.ReadStatus(ctx, cluster, id)
}

// ReadStatusForObject implements engine.StatusReader.
func (r *reader) ReadStatusForObject(ctx context.Context, cluster engine.ClusterReader, u *unstructured.Unstructured) (*event.ResourceStatus, error) {
	generic, err := r.generic(ctx, u.GroupVersionKind().GroupKind())
	if err != nil {
		return nil, err
	}
	return generic.ReadStatusForObject(ctx, cluster, u)
}

func (r *reader) generic(ctx context.Context, gk schema.GroupKind) (engine.StatusReader, error) {
	exprs, ok := r.of(gk)
	if !ok {
		return nil, fmt.Errorf("the GroupKind %s is not supported", gk)
	}
	return kstatusreaders.NewGenericStatusReader(r.mapper, func(u *unstructured.Unstructured) (*status.Result, error) {
		return statusOf(ctx, r.workers, exprs, u)
	}), nil
}
