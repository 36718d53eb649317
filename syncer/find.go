package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// Errors of Finder. Whatever else goes wrong is an error about the source.
var (
	// errSourceNotFound: there is no such object, or no such kind.
	errSourceNotFound = errors.New("source not found")
	// errNoArtifact: the source has not been fetched yet.
	errNoArtifact = errors.New("source has no artifact")
	// errFetchedAgain: the source was fetched by an earlier process, and is
	// being fetched again; its snapshot wakes who waits for it.
	errFetchedAgain = errors.New("source is being fetched again")
)

// Finder finds the snapshots of sources, whoever fetches them: this process,
// or another one that serves its artifacts. It is safe for concurrent use.
type Finder struct {
	// Client reads from the cache, Reader from the API server.
	Client client.Client
	Reader client.Reader
	// Snapshots of the sources that this process fetches, of the kinds Fetched.
	Snapshots *source.Snapshots
	Fetched   map[string]bool
	// Artifacts fetches those of other sources.
	Artifacts *source.Artifacts
	// Shard passes what this process reconciles; nil passes everything.
	Shard predicate.Predicate

	// watched has the kinds of sources, not fetched by us, that are in the cache.
	watched map[string]bool
}

// ours reports whether an object is of the shard that this process reconciles.
func (f *Finder) ours(o client.Object) bool {
	return f.Shard == nil || f.Shard.Generic(event.GenericEvent{Object: o})
}

// passes is the shard as a predicate.
func (f *Finder) passes() predicate.Predicate { return predicate.NewPredicateFuncs(f.ours) }

// watch returns an object of each of the kinds that others fetch, so that the
// caller may watch it. Of a kind that is not installed there is nothing to
// watch until the agent starts anew; such sources are asked for each time. It
// is called before anything is found.
func (f *Finder) watch(mgr ctrl.Manager, kinds ...string) ([]client.Object, error) {
	if f.watched == nil {
		f.watched = map[string]bool{}
	}
	var objects []client.Object
	for _, o := range sourceKinds() {
		kind := kindOf(o)
		if f.Fetched[kind] || !slices.Contains(kinds, kind) {
			continue
		}
		_, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: sourcev1.GroupVersion.Group, Kind: kind}, sourcev1.GroupVersion.Version)
		if apimeta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot look up kind %s: %w", kind, err)
		}
		f.watched[kind] = true
		objects = append(objects, o)
	}
	return objects, nil
}

// sourceKinds that have a snapshot.
func sourceKinds() []client.Object {
	return []client.Object{&sourcev1.GitRepository{}, &sourcev1.OCIRepository{}, &sourcev1.Bucket{}, &sourcev1.ExternalArtifact{}, &sourcev1.HelmChart{}}
}

func kindOf(o client.Object) string {
	switch o.(type) {
	case *sourcev1.GitRepository:
		return sourcev1.GitRepositoryKind
	case *sourcev1.OCIRepository:
		return sourcev1.OCIRepositoryKind
	case *sourcev1.Bucket:
		return sourcev1.BucketKind
	case *sourcev1.HelmChart:
		return sourcev1.HelmChartKind
	}
	return sourcev1.ExternalArtifactKind
}

// object reads a source from the cache, or from the API server if its kind is
// not watched.
func (f *Finder) object(ctx context.Context, key source.Key) (sourcev1.Source, error) {
	for _, o := range sourceKinds() {
		if kindOf(o) != key.Kind {
			continue
		}
		reader := f.Reader
		if f.Fetched[key.Kind] || f.watched[key.Kind] {
			reader = f.Client
		}
		err := reader.Get(ctx, key.NamespacedName, o)
		if apierrors.IsNotFound(err) || apimeta.IsNoMatchError(err) {
			f.Artifacts.Forget(key)
			return nil, fmt.Errorf("%w: %w", errSourceNotFound, err)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read %s %s: %w", key.Kind, key.NamespacedName, err)
		}
		return o.(sourcev1.Source), nil
	}
	return nil, fmt.Errorf("source `%s` kind '%s' not supported", key.Name, key.Kind)
}

// snapshot of a source that was read.
func (f *Finder) snapshot(ctx context.Context, key source.Key, o sourcev1.Source) (*source.Snapshot, error) {
	artifact := o.GetArtifact()
	if f.Fetched[key.Kind] && f.ours(o.(client.Object)) {
		if snapshot := f.Snapshots.Get(key); snapshot != nil {
			return snapshot, nil
		}
		if artifact != nil {
			return nil, errFetchedAgain
		}
	}
	if artifact == nil {
		return nil, errNoArtifact
	}
	return f.Artifacts.Fetch(ctx, key, artifact)
}
