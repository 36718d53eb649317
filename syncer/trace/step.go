package trace

import (
	"cmp"
	"slices"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"helm.sh/helm/v4/pkg/release/common"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Step is what became of a revision at one object.
type Step struct {
	// Kind and Name of the object; of a layer in a child those of the Child.
	Kind string
	Name types.NamespacedName
	// Layer that was pushed to a Child.
	Layer string
	// Revision as Flux writes it, such as main@sha1:<digits>. One without a digest has no
	// trace.
	Revision string
	// Source is whose fetch of the revision comes before; nil for a fetch.
	Source *source.Key
	// Began and Ended bound the work.
	Began, Ended time.Time
	// Reason of the Ready condition, or of its part for the layer. Failed says that it is
	// one of a failure.
	Reason string
	Failed bool
}

// OfArtifact is the step of a source that fetched, if its artifact is another one than
// before the reconcile.
func OfArtifact(key source.Key, before, after *meta.Artifact, began, ended time.Time) (Step, bool) {
	if after == nil || before != nil && before.Revision == after.Revision {
		return Step{}, false
	}
	return Step{
		Kind: key.Kind, Name: key.NamespacedName, Revision: after.Revision, Began: began, Ended: ended, Reason: meta.SucceededReason,
	}, true
}

// Was is how far an object was before a reconcile, of what the reconcile changes in place.
type Was struct {
	conditions []metav1.Condition
	attempt
}

// WasKustomization is how far a Kustomization is.
func WasKustomization(o *kustomizev1.Kustomization) Was {
	return Was{slices.Clone(o.Status.Conditions), attempt{o.Status.LastAppliedRevision, o.Status.LastAttemptedRevision}}
}

// WasHelmRelease is how far a HelmRelease is.
func WasHelmRelease(o *helmv2.HelmRelease) Was {
	return Was{slices.Clone(o.Status.Conditions), chartOf(o)}
}

// OfKustomization is the step of a Kustomization that applied another revision than before
// the reconcile, or failed to. The step began when the first of the reconciles did that
// worked on it.
func OfKustomization(was Was, after *kustomizev1.Kustomization, began, ended time.Time) (Step, bool) {
	key := source.Key{Kind: after.Spec.SourceRef.Kind, NamespacedName: types.NamespacedName{
		Namespace: cmp.Or(after.Spec.SourceRef.Namespace, after.Namespace), Name: after.Spec.SourceRef.Name,
	}}
	s := Step{
		Kind: kustomizev1.KustomizationKind, Name: nameOf(&after.ObjectMeta), Source: &key,
		Began: since(was.conditions, began), Ended: ended,
	}
	return s, s.ends(was, WasKustomization(after))
}

// OfHelmRelease is the step of a HelmRelease that installed another chart than before the
// reconcile, or failed to. Only a chart with a digest has a trace, which is one that came
// by OCI.
func OfHelmRelease(was Was, after *helmv2.HelmRelease, began, ended time.Time) (Step, bool) {
	s := Step{
		Kind: helmv2.HelmReleaseKind, Name: nameOf(&after.ObjectMeta), Began: since(was.conditions, began), Ended: ended,
	}
	if ref := after.Spec.ChartRef; ref != nil {
		s.Source = &source.Key{Kind: ref.Kind, NamespacedName: types.NamespacedName{Namespace: cmp.Or(ref.Namespace, after.Namespace), Name: ref.Name}}
	}
	return s, s.ends(was, WasHelmRelease(after))
}

// chartOf is the chart of a release: applied is that which is deployed.
func chartOf(o *helmv2.HelmRelease) attempt {
	a := attempt{attempted: o.Status.LastAttemptedRevisionDigest}
	for _, s := range o.Status.History {
		if s.Status == string(common.StatusDeployed) {
			a.applied = s.OCIDigest
			break
		}
	}
	return a
}

// OfLayers are the steps of the layers of a child that were pushed in a reconcile. sources
// has the source of each layer.
func OfLayers(before, after *v1alpha1.Child, sources map[string]source.Key, began, ended time.Time) []Step {
	was := map[string]*v1alpha1.ChildLayer{}
	for i := range before.Status.Layers {
		was[before.Status.Layers[i].Name] = &before.Status.Layers[i]
	}
	var steps []Step
	for i := range after.Status.Layers {
		is, old := &after.Status.Layers[i], was[after.Status.Layers[i].Name]
		if old == nil {
			old = &v1alpha1.ChildLayer{}
		}
		s := Step{
			Kind: "Child", Name: nameOf(&after.ObjectMeta), Layer: is.Name, Reason: is.Reason, Began: began, Ended: ended,
		}
		if key, ok := sources[is.Name]; ok {
			s.Source = &key
		}
		switch {
		case is.Revision != old.Revision:
			s.Revision = is.Revision
		case is.LastAttemptedRevision != old.LastAttemptedRevision && is.LastAttemptedRevision != is.Revision && !is.Ready:
			s.Revision, s.Failed = is.LastAttemptedRevision, true
		default:
			continue
		}
		steps = append(steps, s)
	}
	return steps
}

// attempt is how far an object is.
type attempt struct{ applied, attempted string }

// ends fills in which revision the step is about, and what became of it, and reports
// whether it ended in this reconcile. One that waits for others did not.
func (s *Step) ends(was, is Was) bool {
	ready := apimeta.FindStatusCondition(is.conditions, meta.ReadyCondition)
	if ready == nil {
		return false
	}
	s.Reason = ready.Reason
	if is.applied != was.applied && is.applied != "" {
		s.Revision = is.applied
		return true
	}
	if ready.Status != metav1.ConditionFalse || ready.Reason == meta.DependencyNotReadyReason || is.attempted == is.applied {
		return false
	}
	s.Revision, s.Failed = is.attempted, true
	return is.attempted != was.attempted || !apimeta.IsStatusConditionFalse(was.conditions, meta.ReadyCondition)
}

// since is when the reconciles began of which this one is the last.
func since(before []metav1.Condition, began time.Time) time.Time {
	c := apimeta.FindStatusCondition(before, meta.ReconcilingCondition)
	if c == nil || c.Status != metav1.ConditionTrue || c.LastTransitionTime.After(began) {
		return began
	}
	return c.LastTransitionTime.Time
}

func nameOf(m *metav1.ObjectMeta) types.NamespacedName {
	return types.NamespacedName{Namespace: m.Namespace, Name: m.Name}
}
