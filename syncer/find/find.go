// Package find finds the snapshot of a source for those who apply it, whoever
// fetches it: this process, or another one that serves its artifacts.
//
// Invariants: a source of another namespace is found like any other; whether it
// may be used is decided by the caller. A snapshot is of the artifact that the
// source's status names, or newer.
//
// Failure model: an error is about the source and wraps one of this package's, if
// the caller is expected to wait for an event.
package find

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// Errors of Finder. Whatever else goes wrong is an error about the source.
var (
	// ErrSourceNotFound: there is no such object, or no such kind.
	ErrSourceNotFound = errors.New("source not found")
	// ErrNoArtifact: the source has not been fetched yet.
	ErrNoArtifact = errors.New("source has no artifact")
	// ErrFetchedAgain: the source was fetched by an earlier process, and is
	// being fetched again; its snapshot wakes who waits for it.
	ErrFetchedAgain = errors.New("source is being fetched again")
)

// Finder finds the snapshots of sources, whoever fetches them: this process,
// or another one that serves its artifacts. It is safe for concurrent use.
type Finder struct {
	// Client reads from the cache, Reader from the API server.
	Client client.Client
	Reader client.Reader
	// Snapshots of the sources that this process fetches, of the kinds Fetched, and of the
	// ExternalArtifacts that it makes, if ArtifactGenerator is one of these.
	Snapshots *source.Snapshots
	Fetched   map[string]bool
	// Artifacts fetches those of other sources.
	Artifacts *source.Artifacts
	// Shard passes what this process reconciles; nil passes everything.
	Shard func(client.Object) bool

	// watched has the kinds of sources, not fetched by us, that are in the cache.
	watched map[string]bool
}

// Ours reports whether an object is of the shard that this process reconciles.
func (f *Finder) Ours(o client.Object) bool { return f.Shard == nil || f.Shard(o) }

// Watch returns an object of each of the kinds that are in the cache, so that the caller may
// watch it; News passes what those who use a source are to be told of. Of a kind that is not
// installed, and that this process does not fetch, there is nothing to watch until the agent
// starts anew; such sources are asked for each time. It is called before anything is found.
func (f *Finder) Watch(mgr ctrl.Manager, kinds ...string) ([]client.Object, error) {
	if f.watched == nil {
		f.watched = map[string]bool{}
	}
	var objects []client.Object
	for _, o := range sourceKinds() {
		kind := KindOf(o)
		if !slices.Contains(kinds, kind) {
			continue
		}
		if !f.Fetched[kind] {
			_, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: sourcev1.GroupVersion.Group, Kind: kind}, sourcev1.GroupVersion.Version)
			if apimeta.IsNoMatchError(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("cannot look up kind %s: %w", kind, err)
			}
			f.watched[kind] = true
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// News passes the sources that others fetch and that have another artifact. Snapshots tell of
// those that this process fetches.
func (f *Finder) News() predicate.Predicate {
	others := predicate.NewPredicateFuncs(func(o client.Object) bool { return !f.Fetched[KindOf(o)] || !f.Ours(o) })
	return predicate.And(others, wake.NewArtifact())
}

// Cached reports whether the cache has the sources of a kind.
func (f *Finder) Cached(kind string) bool { return f.Fetched[kind] || f.watched[kind] }

// sourceKinds that have a snapshot.
func sourceKinds() []client.Object {
	return []client.Object{&sourcev1.GitRepository{}, &sourcev1.OCIRepository{}, &sourcev1.Bucket{}, &sourcev1.ExternalArtifact{}, &sourcev1.HelmChart{}}
}

// KindOf is the kind of a source that has a snapshot.
func KindOf(o client.Object) string {
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

// Object reads a source from the cache, or from the API server if its kind is
// not watched.
func (f *Finder) Object(ctx context.Context, key source.Key) (sourcev1.Source, error) {
	for _, o := range sourceKinds() {
		if KindOf(o) != key.Kind {
			continue
		}
		reader := f.Reader
		if f.Cached(key.Kind) {
			reader = f.Client
		}
		err := reader.Get(ctx, key.NamespacedName, o)
		if apierrors.IsNotFound(err) || apimeta.IsNoMatchError(err) {
			f.Artifacts.Forget(key)
			return nil, fmt.Errorf("%w: %w", ErrSourceNotFound, err)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read %s %s: %w", key.Kind, key.NamespacedName, err)
		}
		return o.(sourcev1.Source), nil
	}
	return nil, fmt.Errorf("source `%s` kind '%s' not supported", key.Name, key.Kind)
}

// Snapshot of a source that was read.
func (f *Finder) Snapshot(ctx context.Context, key source.Key, o sourcev1.Source) (*source.Snapshot, error) {
	artifact := o.GetArtifact()
	made, err := f.makes(ctx, key, o)
	if err != nil {
		return nil, err
	}
	if made {
		if snapshot := f.Snapshots.Get(key); snapshot != nil {
			return snapshot, nil
		}
		if artifact != nil {
			return nil, ErrFetchedAgain
		}
	}
	if artifact == nil {
		return nil, ErrNoArtifact
	}
	return f.Artifacts.Fetch(ctx, key, artifact)
}

// makes reports whether this process brings the content of a source: it fetches it, or makes
// it of others.
func (f *Finder) makes(ctx context.Context, key source.Key, o sourcev1.Source) (bool, error) {
	if _, ok := o.(*sourcev1.ExternalArtifact); !ok {
		return f.Fetched[key.Kind] && f.Ours(o.(client.Object)), nil
	}
	by, err := f.Generator(ctx, o)
	return by != nil && f.Ours(by), err
}

// Generator reads the generator that makes a source; nil if none does that is reconciled here.
func (f *Finder) Generator(ctx context.Context, o sourcev1.Source) (*generatorv1.ArtifactGenerator, error) {
	external, ok := o.(*sourcev1.ExternalArtifact)
	if !ok {
		return nil, nil
	}
	ref := external.Spec.SourceRef
	if !f.Fetched[generatorv1.ArtifactGeneratorKind] || ref == nil || ref.Kind != generatorv1.ArtifactGeneratorKind ||
		!strings.HasPrefix(ref.APIVersion, generatorv1.GroupVersion.Group+"/") {
		return nil, nil
	}
	by := &generatorv1.ArtifactGenerator{}
	err := f.Client.Get(ctx, client.ObjectKey{Namespace: external.Namespace, Name: ref.Name}, by)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the generator of %s %s: %w", sourcev1.ExternalArtifactKind, client.ObjectKeyFromObject(external), err)
	}
	return by, nil
}
