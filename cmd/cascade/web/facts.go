package web

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/page"
	"github.com/cascade-gitops/cascade/remote/report"
)

const (
	// readTimeout bounds the reading of all that a page needs.
	readTimeout = 15 * time.Second
	// mostEvents is how many events of a child are read.
	mostEvents = 500
)

// Source is what a reader may read of a tier.
type Source struct {
	// Reader has the objects of the tier. It refuses, as the API server does, what its user
	// may not read.
	client.Reader
	// Events, for which there are no caches. It refuses in the same way.
	Events client.Reader
	// Namespace of the agent, whose report of the tier is there.
	Namespace string
}

// facts reads what a page needs. What is optional and may not be read is named.
func (s *Source) facts(ctx context.Context, n page.Name, q page.Query, now time.Time) (page.Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	f := page.Facts{At: now, Namespace: q.Namespace}
	required, optional := page.Needs(n)
	for _, kind := range required {
		if err := s.read(ctx, kind, q, &f); err != nil {
			return page.Facts{}, err
		}
	}
	for _, kind := range optional {
		err := s.read(ctx, kind, q, &f)
		switch {
		case apierrors.IsForbidden(err):
			f.Missing = append(f.Missing, fmt.Sprintf("%s: you may not read it", named(kind, s.Namespace)))
		case err != nil && ctx.Err() != nil:
			return page.Facts{}, err
		case err != nil:
			f.Missing = append(f.Missing, fmt.Sprintf("%s: %v", named(kind, s.Namespace), err))
		}
	}
	return f, nil
}

func named(kind page.Kind, namespace string) string {
	if kind == page.OwnReport {
		return "the report of this tier, ConfigMap " + namespace + "/" + v1alpha1.ReportConfigMap
	}
	return string(kind)
}

func (s *Source) read(ctx context.Context, kind page.Kind, q page.Query, f *page.Facts) error {
	in := client.InNamespace(q.Namespace)
	var err error
	switch kind {
	case page.Children:
		f.Children, err = listOf(ctx, s.Reader, &v1alpha1.ChildList{}, func(l *v1alpha1.ChildList) []v1alpha1.Child { return l.Items }, in)
	case page.Layers:
		f.Layers, err = listOf(ctx, s.Reader, &v1alpha1.LayerList{}, func(l *v1alpha1.LayerList) []v1alpha1.Layer { return l.Items }, in)
	case page.RolloutKind:
		f.Rollouts, err = listOf(ctx, s.Reader, &v1alpha1.RolloutList{}, func(l *v1alpha1.RolloutList) []v1alpha1.Rollout { return l.Items }, in)
	case page.Kustomizations:
		f.Kustomizations, err = listOf(ctx, s.Reader, &kustomizev1.KustomizationList{}, func(l *kustomizev1.KustomizationList) []kustomizev1.Kustomization { return l.Items }, in)
	case page.HelmReleases:
		f.HelmReleases, err = listOf(ctx, s.Reader, &helmv2.HelmReleaseList{}, func(l *helmv2.HelmReleaseList) []helmv2.HelmRelease { return l.Items }, in)
	case page.OwnReport:
		f.Own, err = s.own(ctx)
	case page.Events:
		f.Events, err = s.events(ctx, q.Cluster)
	default:
		err = fmt.Errorf("cannot read %q: there is no such kind", kind)
	}
	return err
}

// listOf lists one kind; a tier without it has none of its objects.
func listOf[L client.ObjectList, T any](ctx context.Context, r client.Reader, list L, items func(L) []T, options ...client.ListOption) ([]T, error) {
	if err := r.List(ctx, list, options...); err != nil {
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot list %T: %w", list, err)
	}
	return items(list), nil
}

// own is the report of the tier, nil if there is none.
func (s *Source) own(ctx context.Context) (*v1alpha1.Report, error) {
	cm := &corev1.ConfigMap{}
	if err := s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: v1alpha1.ReportConfigMap}, cm); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("cannot read the report of this tier: %w", err)
	}
	own, err := report.Parse(cm.Data[v1alpha1.ReportKey])
	if err != nil {
		return nil, errors.New("it cannot be read as a report")
	}
	return own, nil
}

// events are those of the Child of this tier that a path is of, or is below.
func (s *Source) events(ctx context.Context, path string) ([]corev1.Event, error) {
	namespace, name, ok := strings.Cut(path, "/")
	if !ok || strings.Contains(path, ">") || s.Events == nil {
		return nil, nil
	}
	return listOf(ctx, s.Events, &corev1.EventList{}, func(l *corev1.EventList) []corev1.Event { return l.Items },
		client.InNamespace(namespace), client.Limit(mostEvents),
		client.MatchingFields{"involvedObject.kind": "Child", "involvedObject.name": name})
}
