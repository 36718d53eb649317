package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/origins"
)

// chartObjects is how many objects the chart of all releases has.
const chartObjects = 8

// chart is an ordinary one: the objects of an app, as Kustomizations have them,
// named after the release.
func chart(version string) origins.Chart {
	files := map[string]string{
		"values.yaml":             "revision: begin\n",
		"templates/settings.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-settings}\ndata:\n  revision: {{ .Values.revision | quote }}\n",
	}
	for n := 1; n < chartObjects; n++ {
		files[fmt.Sprintf("templates/object-%d.yaml", n)] = object("{{ .Release.Name }}", n)
	}
	return origins.Chart{Name: "app", Version: version, Files: files}
}

// measureReleases runs the steps of HelmReleases of one chart in one repository,
// on a stand of its own.
func measureReleases(ctx context.Context, o options, releases int) (results []result, err error) {
	s, err := setUp(ctx, o)
	if s != nil {
		defer func() { err = errors.Join(err, s.Close()) }()
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := s.followReleases(ctx); err != nil {
		return nil, err
	}
	charts := origins.StartCharts(origins.Login{})
	defer charts.Close()
	charts.Add(chart("1.0.0"), chart("1.1.0"))
	name := fmt.Sprintf("%d releases", releases)
	step := func(what string, own map[string]float64, f func() error) error {
		if err := pause(ctx, settleTime); err != nil {
			return err
		}
		r := result{Workload: name, Step: what}
		archives, indexes := charts.Count("GET", ".tgz", 200), charts.Count("GET", "index.yaml", 200)
		if err := s.cost(ctx, &r, own, func(*result) error { return f() }); err != nil {
			return fmt.Errorf("cannot run step %s: %w", what, err)
		}
		r.Charts, r.Indexes = charts.Count("GET", ".tgz", 200)-archives, charts.Count("GET", "index.yaml", 200)-indexes
		fmt.Fprintf(os.Stderr, "%s %s: %.2f s, %.0f requests (%.1f for each release), %.1f CPU-s, peak RSS %.0f MB, %d charts and %d indexes downloaded, other CPU %.1f s\n",
			name, what, r.Seconds, r.Requests, r.Requests/float64(releases), r.CPU, r.PeakRSS, r.Charts, r.Indexes, r.Other)
		results = append(results, r)
		return nil
	}
	n := float64(releases)
	if err := step("install", map[string]float64{"POST helmreleases": n, "POST helmrepositories": 1}, func() error {
		if err := s.Client.Create(ctx, chartRepository(charts.URL())); err != nil {
			return err
		}
		for i := range releases {
			if err := s.Client.Create(ctx, helmRelease(i)); err != nil {
				return err
			}
		}
		return s.await(ctx, releases, func(k state) bool { return k.ready && k.revision == "1.0.0" })
	}); err != nil {
		return results, err
	}
	ask := func() error {
		value := strconv.FormatInt(time.Now().UnixNano(), 10)
		for i := range releases {
			if err := s.requestAt(ctx, helmRelease(i), value); err != nil {
				return err
			}
		}
		return s.await(ctx, releases, func(k state) bool { return k.ready && k.handled == value })
	}
	for range o.repeat {
		if err := step("no change", map[string]float64{"PATCH helmreleases": n}, ask); err != nil {
			return results, err
		}
	}
	if err := step("drift detection begins", map[string]float64{"PATCH helmreleases": 2 * n}, func() error {
		for i := range releases {
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"driftDetection":{"mode":"enabled"}}}`))
			if err := s.Client.Patch(ctx, helmRelease(i), patch); err != nil {
				return err
			}
		}
		return ask()
	}); err != nil {
		return results, err
	}
	for range o.repeat {
		if err := step("no change, drift detection", map[string]float64{"PATCH helmreleases": n}, ask); err != nil {
			return results, err
		}
	}
	if err := step("upgrade", map[string]float64{"PATCH helmreleases": n}, func() error {
		for i := range releases {
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"chart":{"spec":{"version":"1.1.0"}}}}`))
			if err := s.Client.Patch(ctx, helmRelease(i), patch); err != nil {
				return err
			}
		}
		return s.await(ctx, releases, func(k state) bool { return k.ready && k.revision == "1.1.0" })
	}); err != nil {
		return results, err
	}
	return results, step("idle", nil, func() error { return pause(ctx, idleTime) })
}

// followReleases is follow for HelmReleases.
func (s *stand) followReleases(ctx context.Context) error {
	return s.followList(ctx, &helmv2.HelmReleaseList{}, func(object client.Object) (now state, ok bool) {
		o, ok := object.(*helmv2.HelmRelease)
		if !ok {
			return now, false
		}
		now = state{
			ready:   meta.IsStatusConditionTrue(o.Status.Conditions, fluxmeta.ReadyCondition) && o.Status.ObservedGeneration == o.Generation,
			handled: o.Status.LastHandledReconcileAt,
		}
		if latest := o.Status.History.Latest(); latest != nil {
			now.revision = latest.ChartVersion
		}
		return now, true
	})
}

func chartRepository(url string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "HelmRepository",
		"metadata": map[string]any{"name": "charts", "namespace": system},
		"spec":     map[string]any{"url": url, "interval": "1h"},
	}}
}

// helmRelease waits for nothing: no controller runs its Deployments here.
func helmRelease(i int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease",
		"metadata": map[string]any{"name": app(i), "namespace": system},
		"spec": map[string]any{
			"interval": "1h", "targetNamespace": namespace, "releaseName": app(i),
			"install": map[string]any{"disableWait": true}, "upgrade": map[string]any{"disableWait": true},
			"chart": map[string]any{"spec": map[string]any{
				"chart": "app", "version": "1.0.0", "interval": "1h", "sourceRef": map[string]any{"kind": "HelmRepository", "name": "charts"},
			}},
		},
	}}
}
