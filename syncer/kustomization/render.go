package kustomization

import (
	"context"
	"errors"
	"fmt"
	"time"

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
		run.attempts()
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
		again := r.standIn(ctx, run)
		reason := meta.BuildFailedReason
		if errors.Is(err, render.ErrPathNotFound) {
			reason, err = meta.ArtifactFailedReason, fmt.Errorf("kustomization %w", err)
		}
		end := r.failed(ctx, run, reason, err)
		if again > 0 {
			end.result.RequeueAfter = min(end.result.RequeueAfter, again)
		}
		return end
	}
	return nil
}

// standIn applies what Clusters may have while the newest revision cannot be built, beside what the one before it has for
// everybody: a run that is under way goes on, and what is taken back goes. It returns when to look again, zero for no
// time of its own. With another spec, or other inputs, that one was never composed.
func (r *Reconciler) standIn(ctx context.Context, run *run) time.Duration {
	if run.governed == nil || run.governed.past() {
		return 0
	}
	newest, last := run.snapshot, run.builtLast()
	snapshot := r.Sources.Snapshots.At(sourceKey(run.Obj), last)
	if snapshot == nil {
		r.retains(run, last) // a process that has begun since has to fetch it, and is told when it is there
	}
	if snapshot == nil || snapshot.Revision == newest.Revision {
		return 0
	}
	rendering, err := render.Render(ctx, snapshot, run.inputs)
	if err != nil {
		return 0 // nor can that be built any more
	}
	run.snapshot, run.unbuilt, run.rendering = snapshot, newest, rendering
	run.attempts()
	defer func() {
		run.snapshot, run.unbuilt, run.rendering = newest, nil, nil
		run.attempts()
		run.known.invalidate()
	}()
	for _, step := range []step{r.compose, r.aim, r.apply} {
		switch end := step(ctx, run); {
		case end == nil:
		case end.err != nil:
			log.FromContext(ctx).Error(end.err, "cannot apply what Clusters may have", "revision", snapshot.Revision)
			return rolloutPoll
		default:
			return end.result.RequeueAfter
		}
	}
	r.noteApplied(run, meta.ProgressingReason) // nobody waits for its health
	if run.composed.waits() {
		return rolloutPoll
	}
	return 0
}

// attempts notes that the snapshot is about to be applied.
func (run *run) attempts() {
	run.Obj.Status.LastAttemptedRevision = run.snapshot.Revision
	run.known.attempts(run.snapshot.Revision)
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
