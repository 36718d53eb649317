package report

import (
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
)

// Facts of a tier that its report is computed from.
type Facts struct {
	Agent          string
	Kustomizations []kustomizev1.Kustomization
	Releases       []helmv2.HelmRelease
	Rollouts       []v1alpha1.Rollout
	Layers         []v1alpha1.Layer
	Credentials    []v1alpha1.Credential
	Backups        []v1alpha1.StateBackup
	// Sources of any kind.
	Sources []client.Object
	// Below is what is known of the clusters below; nil stands for none.
	Below *Below
}

// sourceFacts are what a report says of a source.
type sourceFacts struct {
	kind string
	// suspended by a person. silent: its kind has no status.
	suspended, silent bool
	conditions        []metav1.Condition
	// revision is empty for a source that is derived from another one.
	revision string
}

func factsOf(o client.Object) sourceFacts {
	revision := func(a *fluxmeta.Artifact) string {
		if a == nil {
			return ""
		}
		return a.Revision
	}
	switch o := o.(type) {
	case *sourcev1.GitRepository:
		return sourceFacts{kind: sourcev1.GitRepositoryKind, suspended: o.Spec.Suspend, conditions: o.Status.Conditions, revision: revision(o.Status.Artifact)}
	case *sourcev1.OCIRepository:
		return sourceFacts{kind: sourcev1.OCIRepositoryKind, suspended: o.Spec.Suspend, conditions: o.Status.Conditions, revision: revision(o.Status.Artifact)}
	case *sourcev1.Bucket:
		return sourceFacts{kind: sourcev1.BucketKind, suspended: o.Spec.Suspend, conditions: o.Status.Conditions, revision: revision(o.Status.Artifact)}
	case *sourcev1.HelmChart:
		return sourceFacts{kind: sourcev1.HelmChartKind, suspended: o.Spec.Suspend, conditions: o.Status.Conditions}
	case *sourcev1.HelmRepository:
		registry := o.Spec.Type == sourcev1.HelmRepositoryTypeOCI
		return sourceFacts{kind: sourcev1.HelmRepositoryKind, suspended: o.Spec.Suspend, silent: registry, conditions: o.Status.Conditions}
	case *generatorv1.ArtifactGenerator:
		// An ExternalArtifact stays ready while its generator fails, and so it is not asked.
		return sourceFacts{kind: generatorv1.ArtifactGeneratorKind, suspended: o.IsDisabled(), conditions: o.Status.Conditions}
	}
	return sourceFacts{silent: true}
}

// Compute makes a tier's report. before is the last one, whose Since is kept
// while Ready and Reason stay as they are.
func Compute(f Facts, before *v1alpha1.Report, now metav1.Time) *v1alpha1.Report {
	late := tried(f, before)
	r := &v1alpha1.Report{Agent: bounded(f.Agent, maxAgent), Ready: true, Reason: v1alpha1.ReasonSucceeded, Revision: revisions(f, late), Brought: brought(f, late)}
	foldFaults(r, &f)
	for _, o := range f.Sources {
		switch facts := factsOf(o); {
		case facts.suspended:
			r.Suspended++
		case !facts.silent:
			fold(r, v1alpha1.ReasonSourceFailing, facts.kind, o, facts.conditions)
		}
	}
	suspendedSources := r.Suspended
	for i := range f.Kustomizations {
		o := &f.Kustomizations[i]
		if o.Status.Inventory != nil {
			r.Objects += int32(len(o.Status.Inventory.Entries))
		}
		if o.Spec.Suspend {
			r.Suspended++
			continue
		}
		fold(r, v1alpha1.ReasonKustomizationFailing, kustomizev1.KustomizationKind, o, current(o.Status.Conditions, o.Status.ObservedGeneration == o.Generation))
	}
	for i := range f.Releases {
		o := &f.Releases[i]
		if o.Status.Inventory != nil {
			r.Objects += int32(len(o.Status.Inventory.Entries))
		}
		if o.Spec.Suspend {
			r.Suspended++
			continue
		}
		fold(r, v1alpha1.ReasonReleaseFailing, helmv2.HelmReleaseKind, o, current(o.Status.Conditions, o.Status.ObservedGeneration == o.Generation))
	}
	foldRollouts(r, f.Rollouts)
	// Nothing is applied here, whatever the sources do.
	if all := len(f.Kustomizations) + len(f.Releases); all > 0 && int(r.Suspended-suspendedSources) == all {
		r.Ready, r.Reason = false, v1alpha1.ReasonSuspended
		r.Message = fmt.Sprintf("all Kustomizations and HelmReleases, %d, are suspended", all)
	}
	f.Below.rollUp(r)
	if r.Children != nil {
		r.Children.Updating = int32(min(int64(r.Children.Updating)+updating(f), maxClusters))
	}
	fit(r)
	r.Since = now
	if before != nil && before.Ready == r.Ready && before.Reason == r.Reason {
		r.Since = before.Since
	}
	return r
}

// foldRollouts counts the Rollouts of the tier. One that is on its way is no fault of the
// tier; one that came to a halt is.
func foldRollouts(r *v1alpha1.Report, rollouts []v1alpha1.Rollout) {
	if len(rollouts) == 0 {
		return
	}
	r.Rollouts = &v1alpha1.ReportRollouts{}
	for i := range rollouts {
		o := &rollouts[i]
		if rollout.Pending(o) {
			r.Rollouts.Pending++
		}
		if c := meta.FindStatusCondition(o.Status.Conditions, fluxmeta.ReadyCondition); c != nil && c.Status == metav1.ConditionFalse {
			r.Rollouts.Failed++
			fold(r, v1alpha1.ReasonRolloutHalted, "Rollout", o, o.Status.Conditions)
		}
	}
}

// current are the conditions, but for a success of an earlier generation.
func current(conditions []metav1.Condition, observed bool) []metav1.Condition {
	if !observed && meta.IsStatusConditionTrue(conditions, fluxmeta.ReadyCondition) {
		return nil
	}
	return conditions
}

// fold adds one object's Ready condition to the report.
func fold(r *v1alpha1.Report, reason, kind string, o client.Object, conditions []metav1.Condition) {
	c := meta.FindStatusCondition(conditions, fluxmeta.ReadyCondition)
	if c != nil && c.Status == metav1.ConditionTrue || !r.Ready && len(r.Failing) == maxFailing {
		return
	}
	failure := v1alpha1.Failure{Name: kind + "/" + o.GetNamespace() + "/" + o.GetName(), Reason: v1alpha1.ReasonProgressing}
	if c != nil {
		failure.Reason, failure.Message = c.Reason, c.Message
	}
	if r.Ready {
		r.Ready, r.Message = false, failure.Name+": "+failure.Reason
		if failure.Message != "" {
			r.Message += ": " + failure.Message
		}
		r.Message = bounded(r.Message, maxMessage)
		r.Reason = reason
		if c == nil || c.Status == metav1.ConditionUnknown {
			r.Reason = v1alpha1.ReasonProgressing
		}
	}
	if len(r.Failing) < maxFailing {
		confineFailure(&failure)
		r.Failing = append(r.Failing, failure)
	}
}
