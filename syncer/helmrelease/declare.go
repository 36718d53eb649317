package helmrelease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Declares implements claim.Declarer. A chart that was rendered a moment ago is rendered
// again: whether a release is up to date is cheap to tell, and seldom it is not.
func (r *Reconciler) Declares(ctx context.Context, owner client.Object, view *source.View, whole bool) claim.Declaration {
	obj, ok := owner.(*helmv2.HelmRelease)
	if !ok {
		return claim.Declaration{}
	}
	obj = obj.DeepCopy()
	run := &run{Record: r.store.Record(obj), memory: r.Memory.For(obj.Namespace)}
	defer run.memory.GiveBack()
	for _, step := range []step{r.check, r.find, r.build} {
		refused := step(ctx, run)
		switch {
		case refused == nil:
		case refused.stalls:
			return claim.Declaration{} // as it is, it will never be released
		case refused.err != nil:
			return claim.Declaration{Unknown: fmt.Errorf("cannot render HelmRelease %s/%s: %w", obj.Namespace, obj.Name, refused.err),
				Passing: refused.passing || errors.Is(refused.err, errUnobserved)}
		default:
			return claim.Declaration{Unknown: fmt.Errorf("cannot render HelmRelease %s/%s: its chart is being fetched again", obj.Namespace, obj.Name), Passing: true}
		}
	}
	if behind := r.behind(run.from, view); behind != nil {
		return claim.Declaration{Unknown: fmt.Errorf("cannot render HelmRelease %s/%s: %w", obj.Namespace, obj.Name, behind), Passing: !behind.fails}
	}
	if !whole && !obj.Spec.Suspend && release.UpToDate(obj, run.chart, run.values) {
		return claim.Declaration{Settled: true}
	}
	if built, ok := run.from.(*sourcev1.HelmChart); ok && obj.Spec.Chart != nil && !sameChart(helmChart(obj), built) {
		// Another version may have more objects. The HelmChart follows once the HelmRelease is applied, and acts.
		return claim.Declaration{
			Unknown: fmt.Errorf("cannot render HelmRelease %s/%s: HelmChart %s/%s is not the chart that it names yet", obj.Namespace, obj.Name, built.Namespace, built.Name),
			Passing: !obj.Spec.Suspend,
		}
	}
	if refused := r.aim(ctx, run); refused != nil {
		return claim.Declaration{Unknown: fmt.Errorf("cannot render HelmRelease %s/%s: %w", obj.Namespace, obj.Name, refused.err)}
	}
	objects, err := r.Releases.Declares(ctx, release.Request{
		Object: obj, OCIDigest: run.ociDigest, Values: run.values, Memory: run.memory, Chart: run.chart,
		Cluster: run.cluster, Redact: run.redact, Log: log.FromContext(ctx),
	})
	if err != nil {
		return claim.Declaration{Unknown: fmt.Errorf("cannot render HelmRelease %s/%s: %w", obj.Namespace, obj.Name, err), Passing: errors.Is(err, release.ErrNoRoom)}
	}
	return claim.DeclarationOf(objects, nil)
}

// sameChart reports whether a HelmChart is of the chart that another one declares. What people add to it besides does
// not change which objects it has.
func sameChart(want, have *sourcev1.HelmChart) bool {
	w, h := &want.Spec, &have.Spec
	return w.Chart == h.Chart && cmp.Or(w.Version, "*") == cmp.Or(h.Version, "*") && w.SourceRef.Kind == h.SourceRef.Kind && w.SourceRef.Name == h.SourceRef.Name &&
		slices.Equal(w.ValuesFiles, h.ValuesFiles) && w.IgnoreMissingValuesFiles == h.IgnoreMissingValuesFiles
}

// behind is an error about a chart that is not of the revision that its source has.
type behind struct {
	chart types.NamespacedName
	from  source.Key
	// fails: it is not known when it will be.
	fails bool
}

func (b *behind) Error() string {
	return fmt.Sprintf("HelmChart %s was not built yet from the revision that %s %s has", b.chart, b.from.Kind, b.from.NamespacedName)
}

// behind tells of a chart that is built from the same source as what Kustomizations apply,
// and not of the revision that these have in a view; nil for any other chart, and for one
// that is.
func (r *Reconciler) behind(from sourcev1.Source, view *source.View) *behind {
	built, ok := from.(*sourcev1.HelmChart)
	if !ok || built.Spec.SourceRef.Kind != sourcev1.GitRepositoryKind && built.Spec.SourceRef.Kind != sourcev1.BucketKind {
		return nil
	}
	key := source.Key{Kind: built.Spec.SourceRef.Kind, NamespacedName: types.NamespacedName{Namespace: built.Namespace, Name: built.Spec.SourceRef.Name}}
	newest := func() (*source.Snapshot, error) { return r.Sources.Snapshots.Get(key), nil }
	seen, _ := view.Snapshot(key, newest)
	if seen == nil {
		return nil // another process fetches the source, and no Kustomization was rendered from it
	}
	// The chart was read before the newest revision of its source, or it could be of one
	// that is newer than its status says.
	now, _ := newest()
	fails := apimeta.IsStatusConditionFalse(built.Status.Conditions, meta.ReadyCondition)
	if !fails && now == seen && built.Status.ObservedSourceArtifactRevision == seen.Revision {
		return nil
	}
	return &behind{chart: client.ObjectKeyFromObject(built), from: key, fails: fails}
}

// applied is what a run releases, for those who ask for the claims of others.
func (r *Reconciler) applied(ctx context.Context, run *run) claim.Applied {
	return claim.Applied{Current: func(view *source.View) bool {
		from, err := r.Sources.Object(ctx, chartKey(run.Obj))
		if err != nil || r.behind(from, view) != nil {
			return false
		}
		newest := r.Sources.Snapshots.Get(chartKey(run.Obj))
		return newest == nil || newest == run.snapshot || newest.Digest == run.snapshot.Digest
	}}
}
