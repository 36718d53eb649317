package forecast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/remote/providers"
	"github.com/cascade-gitops/cascade/syncer/chart"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// gaps tells of what the commit changes by other ways than renderings of manifests, which
// is not compared: charts in the source, manifests of Cluster API's providers, and what is made of other sources that
// are made of the source.
func (f *forecast) gaps(ctx context.Context, releases []helmv2.HelmRelease) {
	artifact := f.repository.GetArtifact()
	if artifact == nil {
		f.use(true) // what would be is not known
		return
	}
	now, err := f.revision(ctx, artifact.Revision)
	if err != nil {
		f.problem("GitRepository/"+f.Source.String(), "", fmt.Errorf("cannot tell what it has now: %w", err))
		return
	}
	others := &derived{forecast: f, now: now, known: map[source.Key]step{}}
	for _, key := range f.keys() {
		k := f.tier.kustomizations[key].next
		if k == nil {
			continue
		}
		ref := k.Spec.SourceRef
		if err := others.changed(ctx, keyOf(ref.Kind, cmp.Or(ref.Namespace, k.Namespace), ref.Name), false); err != nil {
			f.problem("Kustomization/"+key.String(), "", err)
		}
	}
	for i := range releases {
		r := &releases[i]
		if err := f.chartChanges(ctx, others, r); err != nil {
			f.problem("HelmRelease/"+r.Namespace+"/"+r.Name, "", err)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(f.tier.layers), compareKeys) {
		l := f.tier.layers[key].next
		if l == nil {
			continue
		}
		if ref := l.Spec.SourceRef; ref != nil {
			if err := others.changed(ctx, keyOf(ref.Kind, cmp.Or(ref.Namespace, l.Namespace), ref.Name), true); err != nil {
				f.problem("Layer/"+key.String(), "", err)
			}
		}
		if l.Spec.Providers == nil {
			continue
		}
		ref := cmp.Or(l.Spec.Providers.SourceRef, l.Spec.SourceRef)
		if ref == nil {
			continue // the agent refuses it
		}
		if !f.is(ref.Kind, cmp.Or(ref.Namespace, l.Namespace), ref.Name) {
			if err := others.changed(ctx, keyOf(ref.Kind, cmp.Or(ref.Namespace, l.Namespace), ref.Name), true); err != nil {
				f.problem("Layer/"+key.String(), "", fmt.Errorf("of spec.providers: %w", err))
			}
			continue
		}
		f.use(true)
		// A directory is the same whatever its links lead to, and a file is what is there.
		of := append(providers.Paths(l.Spec.Providers), l.Spec.Providers.Path)
		if slices.ContainsFunc(of, func(name string) bool { return differs(now, f.next, name) }) {
			f.problem("Layer/"+key.String(), "", fmt.Errorf("the commit changes %s, from which the providers of spec.providers are made; what that changes in the clusters is not told", cmp.Or(l.Spec.Providers.Path, ".")))
		}
	}
}

// chartChanges is an error if the commit makes another chart of a release.
func (f *forecast) chartChanges(ctx context.Context, others *derived, r *helmv2.HelmRelease) error {
	of, err := f.chartOf(ctx, r)
	if err != nil {
		return err
	}
	if of == nil {
		if ref := r.Spec.ChartRef; ref != nil {
			return others.changed(ctx, keyOf(ref.Kind, cmp.Or(ref.Namespace, r.Namespace), ref.Name), false)
		}
		return nil
	}
	if from := of.Spec.SourceRef; !f.is(from.Kind, of.Namespace, from.Name) {
		return others.changed(ctx, keyOf(from.Kind, of.Namespace, from.Name), false)
	}
	f.use(false)
	return f.newChart(ctx, others.now, &of.Spec)
}

// chartOf is the HelmChart of a release, as it is or as its template makes it; nil if it has another
// kind of source.
func (f *forecast) chartOf(ctx context.Context, r *helmv2.HelmRelease) (*sourcev1.HelmChart, error) {
	made := &sourcev1.HelmChart{}
	if r.Spec.Chart != nil {
		of := r.Spec.Chart.Spec
		made.Namespace = cmp.Or(of.SourceRef.Namespace, r.Namespace)
		made.Spec = sourcev1.HelmChartSpec{
			Chart: of.Chart, SourceRef: sourcev1.LocalHelmChartSourceReference{Kind: of.SourceRef.Kind, Name: of.SourceRef.Name},
			ReconcileStrategy: of.ReconcileStrategy, ValuesFiles: of.ValuesFiles,
		}
		return made, nil
	}
	ref := r.Spec.ChartRef
	if ref == nil || ref.Kind != sourcev1.HelmChartKind {
		return nil, nil
	}
	key := client.ObjectKey{Namespace: cmp.Or(ref.Namespace, r.Namespace), Name: ref.Name}
	if err := f.cluster.Get(ctx, key, made); err != nil {
		return nil, fmt.Errorf("cannot tell whether the commit changes its chart: cannot read HelmChart %s: %w", key, err)
	}
	return made, nil
}

// chartLimits are those of an agent whose flags say nothing else. A chart that is beyond them changes if its file does.
var chartLimits = chart.Limits{Chart: 10 << 20, File: chart.DefaultFileMaxBytes}

// newChart is an error if the commit makes another chart of the source. What a chart is made of the agent's own code
// tells: more than its directory, and of an archive another version.
func (f *forecast) newChart(ctx context.Context, now *source.Snapshot, of *sourcev1.HelmChartSpec) error {
	spec := chart.Spec{Chart: of.Chart, ValuesFiles: of.ValuesFiles}
	before, errBefore := chart.MadeOf(ctx, now, spec, chartLimits)
	after, errAfter := chart.MadeOf(ctx, f.next, spec, chartLimits)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cannot tell whether the commit changes its chart, %s: %w", of.Chart, err)
	}
	var changes bool
	switch {
	case errBefore != nil && errAfter != nil: // there is no chart now, and will be none
		changes = differs(now, f.next, of.Chart)
	case errBefore != nil || errAfter != nil:
		changes = true
	case of.ReconcileStrategy == sourcev1.ReconcileStrategyRevision:
		changes = before.Inputs != after.Inputs
	default:
		// Only another version makes another chart.
		changes = before.Name != after.Name || before.Version != after.Version
	}
	if changes || slices.ContainsFunc(of.ValuesFiles, func(name string) bool { return differs(now, f.next, name) }) {
		return fmt.Errorf("the commit changes its chart, %s; what that changes of its objects is not told", of.Chart)
	}
	return nil
}

// differs reports whether something at a path is another one, or is not known to be the same.
func differs(a, b *source.Snapshot, name string) bool {
	_, before, errBefore := a.Stat(name)
	_, after, errAfter := b.Stat(name)
	if errors.Is(errBefore, fs.ErrNotExist) && errors.Is(errAfter, fs.ErrNotExist) {
		return false
	}
	return errBefore != nil || errAfter != nil || before != after
}
