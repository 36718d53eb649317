package kustomization

import (
	"context"
	"errors"
	"fmt"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// find sets the snapshot of the source, or says how to go on without one.
func (r *Reconciler) find(ctx context.Context, run *run) *end {
	obj := run.Obj
	key := sourceKey(obj)
	if r.Rules.NoCrossNamespaceRefs && key.Namespace != obj.Namespace {
		return r.misconfigured(run, "AccessDenied", fmt.Errorf("can't access '%s/%s/%s', cross-namespace references have been blocked", key.Kind, key.Namespace, key.Name))
	}
	if key.Kind == sourcev1.ExternalArtifactKind && !r.Rules.ExternalArtifact {
		return r.misconfigured(run, meta.FeatureGateDisabledReason, errors.New("to use ExternalArtifact sources enable the feature gate ExternalArtifact"))
	}
	o, err := r.Sources.Object(ctx, key)
	switch {
	case errors.Is(err, find.ErrSourceNotFound):
		return r.failed(ctx, run, meta.ArtifactFailedReason, fmt.Errorf("source '%s/%s/%s' not found: %w", key.Kind, key.Namespace, key.Name, err))
	case err != nil:
		return &end{err: err}
	}
	by, err := r.Sources.Generator(ctx, o)
	if err != nil {
		return &end{err: err}
	}
	run.snapshot, err = r.Sources.Snapshot(ctx, key, o)
	tellSource(obj, key, o, by, err == nil)
	wait := again(r.Jitter(r.Rules.RequeueDependency))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, find.ErrFetchedAgain):
		run.unanswered = true
		return wait
	case errors.Is(err, find.ErrNoArtifact):
		status.MarkFailing(obj, meta.ArtifactFailedReason, status.FluxMessage(fmt.Sprintf("Source artifact not found, retrying in %s", r.Rules.RequeueDependency)))
		return wait
	case errors.Is(err, source.ErrArtifactNotFound):
		status.MarkFailing(obj, meta.ArtifactFailedReason, status.FluxMessage(fmt.Sprintf("Source is not ready, artifact not found, retrying in %s", r.Rules.RequeueDependency)))
		return wait
	}
	return r.failed(ctx, run, meta.ArtifactFailedReason, err)
}

// sourceGrace is how long a source may fail before its Kustomizations tell of it: most
// failures are over by then.
const sourceGrace = 30 * time.Second

// tellSource records whether the source could be fetched the last time. Ready is about
// what was applied, as with Flux, and stays as it is. by makes the source, unless it is nil:
// that fails, and the source stays ready. there: what it had before is there.
func tellSource(obj *kustomizev1.Kustomization, key source.Key, o sourcev1.Source, by *generatorv1.ArtifactGenerator, there bool) {
	why, lost := find.Failing(o), "is suspended, and cannot be fetched again"
	if why == nil && by != nil {
		why, key = find.Failing(by), source.Key{Kind: generatorv1.ArtifactGeneratorKind, NamespacedName: client.ObjectKeyFromObject(by)}
		lost = "is disabled, and cannot make again what it made"
	}
	if why == nil {
		status.RemoveCondition(obj, v1alpha1.SourceFailingCondition)
		return
	}
	lacks, means := "is not ready", "new revisions do not arrive"
	if why.Type != meta.ReadyCondition {
		lacks = lost
	}
	if !there {
		means = "this process has not fetched it yet, so that neither changes of the spec nor of objects are looked at"
	}
	status.SetCondition(obj, v1alpha1.SourceFailingCondition, metav1.ConditionTrue, v1alpha1.ReasonSourceFailing,
		"%s/%s/%s %s since %s, and %s; see its status: %s",
		key.Kind, key.Namespace, key.Name, lacks, why.LastTransitionTime.UTC().Format(time.RFC3339), means, why.Reason)
}

// onSource wakes those whose source begins to fail, after a while, or fails no more.
func (r *Reconciler) onSource(ctx context.Context, kind string, e event.UpdateEvent, queue wake.Queue) {
	r.onFailure(ctx, e, queue, kind+"/"+client.ObjectKeyFromObject(e.ObjectNew).String())
}

// onGenerator is onSource for what makes sources.
func (r *Reconciler) onGenerator(ctx context.Context, e event.UpdateEvent, queue wake.Queue) {
	var made []string
	for _, o := range e.ObjectNew.(*generatorv1.ArtifactGenerator).Status.Inventory {
		made = append(made, sourcev1.ExternalArtifactKind+"/"+o.Namespace+"/"+o.Name)
	}
	r.onFailure(ctx, e, queue, made...)
}

func (r *Reconciler) onFailure(ctx context.Context, e event.UpdateEvent, queue wake.Queue, sources ...string) {
	before, after := find.Failing(e.ObjectOld), find.Failing(e.ObjectNew)
	if (before == nil) == (after == nil) {
		return
	}
	for _, name := range sources {
		r.index().Each(ctx, wake.SourceIndex, name, func(o client.Object) {
			told := apimeta.FindStatusCondition(o.(*kustomizev1.Kustomization).Status.Conditions, v1alpha1.SourceFailingCondition) != nil
			switch {
			case after != nil && !told:
				wake.Enqueue(queue, client.ObjectKeyFromObject(o), wake.PriorityUnchanged, sourceGrace)
			case after == nil && told:
				wake.Enqueue(queue, client.ObjectKeyFromObject(o), wake.PriorityUnchanged, 0)
			}
		})
	}
}

func sourceKey(k *kustomizev1.Kustomization) source.Key {
	namespace := k.Spec.SourceRef.Namespace
	if namespace == "" {
		namespace = k.Namespace
	}
	return source.Key{Kind: k.Spec.SourceRef.Kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: k.Spec.SourceRef.Name}}
}
