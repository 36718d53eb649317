package helmrelease

import (
	"context"

	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// aim sets the cluster that is released to. Another cluster must answer.
func (r *Reconciler) aim(ctx context.Context, run *run) *refusal {
	obj := run.Obj
	run.target = target.OfRelease(obj, r.Targets.ServiceAccount)
	cluster, err := r.Targets.Connect(ctx, obj.Namespace, run.target)
	if err == nil && obj.Spec.KubeConfig != nil {
		err = cluster.Answers(ctx, r.Now())
	}
	if err != nil {
		return &refusal{reason: reasonRESTClientError, err: err}
	}
	run.cluster, run.firstSync = cluster, r.FirstSync
	if obj.Spec.KubeConfig != nil {
		run.firstSync = firstsync.Other{Reader: cluster}
	}
	return nil
}
