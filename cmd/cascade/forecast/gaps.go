package forecast

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// gaps tells of what the commit changes by other ways than renderings of manifests, which
// is not compared: charts in the source, and manifests of Cluster API's providers.
func (f *forecast) gaps(ctx context.Context, releases []helmv2.HelmRelease) {
	artifact := f.repository.GetArtifact()
	if artifact == nil {
		return
	}
	now, err := f.revision(ctx, artifact.Revision)
	if err != nil {
		f.problem("GitRepository/"+f.Source.String(), "", fmt.Errorf("cannot tell what it has now: %w", err))
		return
	}
	for i := range releases {
		r := &releases[i]
		if err := f.chartChanges(now, r); err != nil {
			f.problem("HelmRelease/"+r.Namespace+"/"+r.Name, "", err)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(f.tier.layers), compareKeys) {
		l := f.tier.layers[key].next
		if l == nil || l.Spec.Providers == nil {
			continue
		}
		ref := l.Spec.Providers.SourceRef
		if !f.is(ref.Kind, cmp.Or(ref.Namespace, l.Namespace), ref.Name) {
			continue
		}
		if differs(now, f.next, l.Spec.Providers.Path) {
			f.problem("Layer/"+key.String(), "", fmt.Errorf("the commit changes %s, from which the providers of spec.providers are made; what that changes in the clusters is not told", cmp.Or(l.Spec.Providers.Path, ".")))
		}
	}
}

// chartChanges is an error if the commit makes another chart of a release.
func (f *forecast) chartChanges(now *source.Snapshot, r *helmv2.HelmRelease) error {
	if r.Spec.Chart == nil {
		return nil
	}
	chart := r.Spec.Chart.Spec
	if !f.is(chart.SourceRef.Kind, cmp.Or(chart.SourceRef.Namespace, r.Namespace), chart.SourceRef.Name) {
		return nil
	}
	files := []string{chart.Chart}
	if chart.ReconcileStrategy != sourcev1.ReconcileStrategyRevision {
		// Only another version makes another chart.
		files = []string{path.Join(chart.Chart, "Chart.yaml")}
	}
	for _, name := range append(files, chart.ValuesFiles...) {
		if differs(now, f.next, name) {
			return fmt.Errorf("the commit changes its chart, %s; what that changes of its objects is not told", chart.Chart)
		}
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
