package helmrelease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// chartKey is the source of a release's chart.
func chartKey(obj *helmv2.HelmRelease) source.Key {
	if ref := obj.Spec.ChartRef; ref != nil {
		namespace := ref.Namespace
		if namespace == "" {
			namespace = obj.Namespace
		}
		return source.Key{Kind: ref.Kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: ref.Name}}
	}
	if obj.Spec.Chart == nil {
		return source.Key{}
	}
	return source.Key{Kind: sourcev1.HelmChartKind, NamespacedName: templateName(obj)}
}

// find sets the snapshot of the chart, and the source that it is of.
func (r *Reconciler) find(ctx context.Context, run *run) *refusal {
	obj := run.Obj
	key := chartKey(obj)
	if refused := r.access(obj, key); refused != nil {
		return refused
	}
	wait := r.Jitter(r.Rules.RequeueDependency)
	from, err := r.Sources.Object(ctx, key)
	if err != nil {
		return &refusal{reason: meta.ArtifactFailedReason, err: fmt.Errorf("could not get Source object: %w", err)}
	}
	if err := sourceReady(key, from); err != nil {
		return &refusal{reason: reasonSourceNotReady, err: err, wait: wait}
	}
	snapshot, err := r.Sources.Snapshot(ctx, key, from)
	switch {
	case err == nil:
		status.RemoveCondition(obj, v1alpha1.SourceFailingCondition)
		run.snapshot, run.from = snapshot, from
		return nil
	case errors.Is(err, find.ErrFetchedAgain):
		// What was ready stays so until then. Who asks is answered when something was looked at.
		run.outstanding = true
		why := find.Failing(from)
		if why == nil {
			by, err := r.Sources.Generator(ctx, from)
			if err != nil {
				return &refusal{reason: meta.ArtifactFailedReason, err: fmt.Errorf("could not get Source object: %w", err)}
			}
			if by != nil {
				why, key = find.Failing(by), source.Key{Kind: generatorv1.ArtifactGeneratorKind, NamespacedName: client.ObjectKeyFromObject(by)}
			}
		}
		if why != nil {
			status.SetCondition(obj, v1alpha1.SourceFailingCondition, metav1.ConditionTrue, v1alpha1.ReasonSourceFailing,
				"%s/%s/%s cannot be fetched since %s, and this process has not fetched it yet, so that neither changes of the spec nor of objects are looked at; see its status: %s",
				key.Kind, key.Namespace, key.Name, why.LastTransitionTime.UTC().Format(time.RFC3339), why.Reason)
		}
		return &refusal{passing: true, wait: wait}
	case errors.Is(err, source.ErrArtifactNotFound):
		return &refusal{reason: meta.ArtifactFailedReason, err: status.FluxMessage(fmt.Sprintf("Source not ready: artifact not found. Retrying in %s", r.Rules.RequeueDependency)), wait: wait}
	}
	return &refusal{reason: meta.ArtifactFailedReason, err: status.FluxMessage("Could not load chart: " + err.Error()), event: true}
}

// access refuses charts of other namespaces, if they are not allowed.
func (r *Reconciler) access(obj *helmv2.HelmRelease, key source.Key) *refusal {
	if r.Rules.NoCrossNamespaceRefs && key.Namespace != obj.Namespace {
		return &refusal{
			reason: reasonAccessDenied, stalls: true, event: true,
			err: fmt.Errorf("cross-namespace references are not allowed: cannot access %s %s", key.Kind, key.NamespacedName),
		}
	}
	if key.Kind == sourcev1.ExternalArtifactKind && !r.Rules.ExternalArtifact {
		return &refusal{
			reason: reasonAccessDenied, stalls: true, event: true,
			err: fmt.Errorf("can't access '%s/%s/%s', ExternalArtifact feature gate is disabled", key.Kind, key.Namespace, key.Name),
		}
	}
	return nil
}

// errUnobserved: what a source says by now has not been fetched, nor has that failed.
var errUnobserved = errors.New("latest generation of object has not been reconciled")

// sourceReady is an error that says in Flux's words what a chart lacks.
func sourceReady(key source.Key, from sourcev1.Source) error {
	notReady := func(why string) error {
		return fmt.Errorf("%s '%s' is not ready: %s", key.Kind, key.NamespacedName, why)
	}
	if o, ok := from.(status.Object); ok && key.Kind != sourcev1.ExternalArtifactKind {
		observed, suspended := int64(-1), false
		switch o := from.(type) {
		case *sourcev1.HelmChart:
			observed, suspended = o.Status.ObservedGeneration, o.Spec.Suspend
		case *sourcev1.OCIRepository:
			observed, suspended = o.Status.ObservedGeneration, o.Spec.Suspend
		}
		ready := apimeta.FindStatusCondition(o.GetConditions(), meta.ReadyCondition)
		stall := apimeta.FindStatusCondition(o.GetConditions(), meta.StalledCondition)
		switch {
		case observed != o.GetGeneration() && ready != nil && ready.Status == metav1.ConditionFalse:
			return notReady(ready.Message)
		case observed != o.GetGeneration() && suspended:
			return notReady(errUnobserved.Error()) // nobody knows when it will be
		case observed != o.GetGeneration():
			return fmt.Errorf("%s '%s' is not ready: %w", key.Kind, key.NamespacedName, errUnobserved)
		case stall != nil && stall.Status == metav1.ConditionTrue:
			return notReady(stall.Message)
		}
	}
	if from.GetArtifact() == nil {
		return notReady("does not have an artifact")
	}
	return nil
}

// hasDigest reports whether the revision of a source is or has a digest, which
// then becomes part of the chart's version: what a tag leads to may change.
func hasDigest(from sourcev1.Source) bool {
	switch from.(type) {
	case *sourcev1.OCIRepository:
		return true
	case *sourcev1.ExternalArtifact:
		return strings.Contains(from.GetArtifact().Revision, ":")
	}
	return false
}
