package kustomization

import (
	"context"
	"errors"
	"fmt"

	"github.com/fluxcd/pkg/apis/meta"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/target"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// render renders the snapshot, unless the last rendering stands and everything that
// it declares is known to be in the cluster.
func (r *Reconciler) render(ctx context.Context, run *run) *end {
	obj := run.Obj
	if run.sweeps = run.known.sweepDue(run.start); run.sweeps {
		r.Memo.DoubtAll(run.name())
	}
	if !run.governed.past() {
		obj.Status.LastAttemptedRevision = run.snapshot.Revision
		run.known.attempts(run.snapshot.Revision)
	}
	run.target = target.Of(obj, r.Targets.ServiceAccount)
	if r.stands(run) {
		return nil
	}
	err := run.known.refusal(run, run.snapshot)
	if err == nil {
		run.inputs.Workers = worker.Telling(run.inputs.Workers, func() { r.waitsForWorker(ctx, run) })
		run.rendering, err = render.Render(ctx, run.snapshot, run.inputs)
		run.known.refuse(run, err)
	}
	if err != nil {
		run.known.invalidate()
		if errors.Is(err, render.ErrPathNotFound) {
			return r.failed(ctx, run, meta.ArtifactFailedReason, fmt.Errorf("kustomization %w", err))
		}
		return r.failed(ctx, run, meta.BuildFailedReason, err)
	}
	return nil
}

// waitsForWorker says so in the status, which would tell what was before for as long as
// the wait takes. Where that is what is to be built, as it is for all of a tier when its agent
// starts anew, it stands: nothing was asked for that is not in place as far as anybody knows,
// and who depends on it would wait, too.
func (r *Reconciler) waitsForWorker(ctx context.Context, run *run) {
	ready := apimeta.IsStatusConditionTrue(run.Obj.Status.Conditions, meta.ReadyCondition)
	if ready && run.current() && !run.requested && run.known.sameInputs(run.key) {
		return
	}
	status.MarkProgressing(run.Obj, "Waiting for a worker to build revision %s", run.snapshot.Revision)
	if err := run.Write(ctx); err != nil {
		log.FromContext(ctx).Error(err, "cannot say that the build waits for a worker")
	}
}

// stands reports whether nothing has to be rendered or applied.
func (r *Reconciler) stands(run *run) bool {
	return run.Obj.Annotations[target.Annotation] == "" && run.target.Local() &&
		run.known.stands(run.key, run.snapshot, run.Obj) && r.Memo.Clean(run.name(), run.known.remembered()) && !r.foundOut(run)
}
