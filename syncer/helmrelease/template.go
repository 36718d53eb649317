package helmrelease

import (
	"context"
	"fmt"
	"strings"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// templateName is the HelmChart that a HelmRelease with spec.chart makes.
func templateName(obj *helmv2.HelmRelease) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.Spec.Chart.GetNamespace(obj.Namespace), Name: obj.GetHelmChartName()}
}

// template brings the HelmChart of spec.chart up to date. One of another name,
// or of a time before spec.chartRef, is deleted.
func (r *Reconciler) template(ctx context.Context, run *run) *refusal {
	obj := run.Obj
	var name types.NamespacedName
	if obj.Spec.Chart != nil {
		name = templateName(obj)
	}
	if obj.Status.HelmChart != "" && obj.Status.HelmChart != name.String() {
		if err := r.deleteTemplate(ctx, obj); err != nil {
			return &refusal{reason: meta.ArtifactFailedReason, err: err}
		}
	}
	if obj.Spec.Chart == nil {
		return nil
	}
	key := source.Key{Kind: sourcev1.HelmChartKind, NamespacedName: name}
	if refused := r.access(obj, key); refused != nil {
		return refused
	}
	want := helmChart(obj)
	have := &sourcev1.HelmChart{}
	reader := client.Reader(r.Targets.Local)
	if r.Sources.Cached(sourcev1.HelmChartKind) {
		reader = r.Client
	}
	err := reader.Get(ctx, name, have)
	if client.IgnoreNotFound(err) != nil {
		return &refusal{reason: meta.ArtifactFailedReason, err: fmt.Errorf("cannot read HelmChart %s: %w", name, err)}
	}
	if err == nil && declares(want, have) {
		obj.Status.HelmChart = name.String()
		return nil
	}
	there := err == nil
	applied, err := r.applyTemplate(ctx, want)
	if err != nil {
		r.Events.Eventf(obj, eventv1.EventTypeTrace, "HelmChartSyncErr", "failed to run server-side apply: %s", err)
		return &refusal{reason: meta.ArtifactFailedReason, err: fmt.Errorf("failed to run server-side apply: %w", err)}
	}
	obj.Status.HelmChart = name.String()
	// The status that fetching writes, which the cache may lack still, is no change of ours.
	if there && applied.UID == have.UID && applied.Generation == have.Generation && marks(want, have) {
		return nil // what it has besides is somebody else's, who may have set it on purpose
	}
	action := "configured"
	if !there {
		action = "created"
	}
	r.Events.Eventf(obj, eventv1.EventTypeTrace, "HelmChart"+strings.ToUpper(action[:1])+action[1:], "%s HelmChart/%s/%s with SourceRef '%s/%s/%s'",
		strings.ToUpper(action[:1])+action[1:], name.Namespace, name.Name, want.Spec.SourceRef.Kind, name.Namespace, want.Spec.SourceRef.Name)
	// The cache does not have it yet. What is made of it will wake us.
	return &refusal{
		reason: reasonSourceNotReady, wait: r.Jitter(r.Rules.RequeueDependency),
		err: fmt.Errorf("%s '%s' is not ready: latest generation of object has not been reconciled", sourcev1.HelmChartKind, name),
	}
}

// applyTemplate returns the UID and the generation that the chart has then.
func (r *Reconciler) applyTemplate(ctx context.Context, want *sourcev1.HelmChart) (metav1.ObjectMeta, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	if err != nil {
		return metav1.ObjectMeta{}, err
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(sourcev1.GroupVersion.WithKind(sourcev1.HelmChartKind))
	unstructured.RemoveNestedField(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	err = r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(status.HelmManager), client.ForceOwnership)
	return metav1.ObjectMeta{UID: u.GetUID(), Generation: u.GetGeneration()}, err
}

// marks reports whether an object has the labels and annotations that another one declares.
func marks(want, have *sourcev1.HelmChart) bool {
	for key, value := range want.Labels {
		if have.Labels[key] != value {
			return false
		}
	}
	for key, value := range want.Annotations {
		if have.Annotations[key] != value {
			return false
		}
	}
	return true
}

// declares reports whether an object has all that another one declares.
func declares(want, have *sourcev1.HelmChart) bool {
	if !marks(want, have) {
		return false
	}
	spec := have.Spec.DeepCopy()
	// Whoever suspends a chart means it.
	spec.Suspend = want.Spec.Suspend
	if want.Spec.ReconcileStrategy == "" {
		spec.ReconcileStrategy = "" // the API server's default
	}
	if want.Spec.Version == "" {
		spec.Version = ""
	}
	return equality.Semantic.DeepEqual(want.Spec, *spec)
}

// deleteTemplate deletes the HelmChart in the status, if it is still ours, also in a namespace
// that was forbidden since: the agent made it, and nobody could be rid of it otherwise. Without
// one there, the agent may have been killed before it wrote of the one that is declared.
func (r *Reconciler) deleteTemplate(ctx context.Context, obj *helmv2.HelmRelease) error {
	var key types.NamespacedName
	switch {
	case obj.Status.HelmChart != "":
		key.Namespace, key.Name = obj.Status.GetHelmChart()
	case obj.Spec.Chart != nil:
		key = templateName(obj)
		if r.access(obj, source.Key{Kind: sourcev1.HelmChartKind, NamespacedName: key}) != nil {
			return nil // so it was when it would have been made
		}
	default:
		return nil
	}
	have := &sourcev1.HelmChart{}
	err := r.Targets.Local.Get(ctx, key, have)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("failed to delete HelmChart '%s': %w", key, err)
	}
	if err == nil && have.Labels[releaseNameLabel] == obj.Name && have.Labels[releaseNamespaceLabel] == obj.Namespace {
		err := r.Client.Delete(ctx, have, client.Preconditions{UID: &have.UID})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("failed to delete HelmChart '%s': %w", key, err)
		}
		r.Events.Eventf(obj, eventv1.EventTypeTrace, "HelmChartDeleted", "deleted HelmChart '%s'", key)
	}
	obj.Status.HelmChart = ""
	return nil
}

// Labels of what belongs to a HelmRelease.
const (
	releaseNameLabel      = "helm.toolkit.fluxcd.io/name"
	releaseNamespaceLabel = "helm.toolkit.fluxcd.io/namespace"
)

// helmChart is the HelmChart that a HelmRelease with spec.chart declares.
func helmChart(obj *helmv2.HelmRelease) *sourcev1.HelmChart {
	template := obj.Spec.Chart.DeepCopy()
	name := templateName(obj)
	c := &sourcev1.HelmChart{
		TypeMeta:   metav1.TypeMeta{APIVersion: sourcev1.GroupVersion.String(), Kind: sourcev1.HelmChartKind},
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
		Spec: sourcev1.HelmChartSpec{
			Chart: template.Spec.Chart, Version: template.Spec.Version,
			SourceRef:                sourcev1.LocalHelmChartSourceReference{Kind: template.Spec.SourceRef.Kind, Name: template.Spec.SourceRef.Name},
			Interval:                 template.GetInterval(obj.Spec.Interval),
			ReconcileStrategy:        template.Spec.ReconcileStrategy,
			ValuesFiles:              template.Spec.ValuesFiles,
			IgnoreMissingValuesFiles: template.Spec.IgnoreMissingValuesFiles,
		},
	}
	if v := template.Spec.Verify; v != nil {
		c.Spec.Verify = &sourcev1.HelmChartVerification{Provider: v.Provider, SecretRef: v.SecretRef}
	}
	if m := template.ObjectMeta; m != nil {
		c.Labels, c.Annotations = m.Labels, m.Annotations
	}
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	c.Labels[releaseNameLabel], c.Labels[releaseNamespaceLabel] = obj.Name, obj.Namespace
	return c
}
