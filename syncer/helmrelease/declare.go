package helmrelease

import (
	"context"
	"fmt"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/release"
)

// Declares implements claim.Declarer. A chart that was rendered a moment ago is rendered
// again: whether a release is up to date is cheap to tell, and seldom it is not.
func (r *Reconciler) Declares(ctx context.Context, owner client.Object, whole bool) claim.Declaration {
	obj, ok := owner.(*helmv2.HelmRelease)
	if !ok {
		return claim.Declaration{}
	}
	obj = obj.DeepCopy()
	run := &run{Record: r.store.Record(obj)}
	for _, step := range []step{r.check, r.find, r.build} {
		refused := step(ctx, run)
		switch {
		case refused == nil:
		case refused.stalls:
			return claim.Declaration{} // as it is, it will never be released
		case refused.err != nil:
			return claim.Declaration{Unknown: fmt.Errorf("cannot render HelmRelease %s/%s: %w", obj.Namespace, obj.Name, refused.err), Passing: refused.passing}
		default:
			return claim.Declaration{Unknown: fmt.Errorf("cannot render HelmRelease %s/%s: its chart is being fetched again", obj.Namespace, obj.Name), Passing: true}
		}
	}
	if !whole && !obj.Spec.Suspend && release.UpToDate(obj, run.chart, run.values) {
		return claim.Declaration{Settled: true}
	}
	if refused := r.aim(ctx, run); refused != nil {
		return claim.Declaration{Unknown: fmt.Errorf("cannot render HelmRelease %s/%s: %w", obj.Namespace, obj.Name, refused.err)}
	}
	objects, err := r.Releases.Declares(ctx, release.Request{
		Object: obj, OCIDigest: run.ociDigest, Values: run.values, Cluster: run.cluster, Redact: run.redact, Log: log.FromContext(ctx), Chart: run.chart,
	})
	if err != nil {
		return claim.Declaration{Unknown: fmt.Errorf("cannot render HelmRelease %s/%s: %w", obj.Namespace, obj.Name, err)}
	}
	d := claim.Declaration{Entries: inventory.OfAll(objects)}
	for _, u := range objects {
		if claim.IsOwner(u.GroupVersionKind().GroupKind()) {
			d.Owners = append(d.Owners, u)
		}
	}
	return d
}
