package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// Part is of a process that shares the sources of a tier with others. Those of others that
// a Layer needs it follows: it fetches what their status says that the one has which
// reconciles them, by the same code, and writes nothing. So all processes render the same
// revision.
type Part struct {
	// Elected is closed when this process comes to lead; nil says that it does from the
	// start.
	Elected <-chan struct{}
}

// has reports whether sources of a kind may be followed: those that Layers name.
func (p *Part) has(kind string) bool {
	return p != nil && slices.Contains([]string{sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind}, kind)
}

// elected says whether the controller of a kind runs only in the process that leads; nil
// is the default, which is that.
func (p *Part) elected(kind string) *bool {
	if !p.has(kind) || p.Elected == nil {
		return nil
	}
	return new(false)
}

// leads reports whether this process reconciles any.
func (p *Part) leads() bool {
	if p == nil || p.Elected == nil {
		return true
	}
	select {
	case <-p.Elected:
		return true
	default:
		return false
	}
}

// others passes what another process reconciles.
func (s *Sources) others() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool { return !s.has(o) })
}

// has reports whether this process reconciles a source.
func (s *Sources) has(obj client.Object) bool { return s.Part.leads() && s.Shard.Has(obj) }

// leads reports whether this process reconciles a source. One that it does not is
// remembered for when it comes to lead: what it has then may be older than what was applied.
func (s *Sources) leads(key source.Key, obj sourceObject) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Under the lock: either it leads by now, or the source is remembered before it does.
	if s.has(obj) {
		if _, ok := s.followed[key]; ok && !isOf(s.artifacts[key], obj.GetArtifact()) {
			s.drop(key)
		}
		delete(s.followed, key)
		return true
	}
	if s.followed == nil {
		s.followed = map[source.Key]error{}
	}
	if _, ok := s.followed[key]; !ok {
		s.followed[key] = nil
	}
	return false
}

// onElected has the sources of a kind that were followed reconciled when this process
// comes to lead.
func (s *Sources) onElected(kind string) func(context.Context, wake.Queue) error {
	return func(ctx context.Context, queue wake.Queue) error {
		if s.Part.Elected == nil {
			return nil
		}
		go func() {
			select {
			case <-ctx.Done():
				return
			case <-s.Part.Elected:
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			for key := range s.followed {
				if key.Kind == kind {
					queue.Add(reconcile.Request{NamespacedName: key.NamespacedName})
				}
			}
		}()
		return nil
	}
}

// sourcesOf asks for the sources of a kind that a Layer names.
func sourcesOf(kind string) func(context.Context, client.Object) []reconcile.Request {
	return func(_ context.Context, o client.Object) []reconcile.Request {
		var requests []reconcile.Request
		for _, ref := range named(o.(*v1alpha1.Layer)) {
			if ref.Kind == kind {
				requests = append(requests, reconcile.Request{NamespacedName: ref.NamespacedName})
			}
		}
		return requests
	}
}

// includedBy asks for the repositories that one includes.
func includedBy(_ context.Context, o client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, in := range o.(*sourcev1.GitRepository).Spec.Include {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: in.GitRepositoryRef.Name}})
	}
	return requests
}

// named are the sources that a Layer names.
func named(layer *v1alpha1.Layer) []source.Key {
	var keys []source.Key
	add := func(ref *v1alpha1.SourceReference) {
		if ref != nil {
			keys = append(keys, source.Key{Kind: ref.Kind, NamespacedName: types.NamespacedName{Namespace: cmp.Or(ref.Namespace, layer.Namespace), Name: ref.Name}})
		}
	}
	add(layer.Spec.SourceRef)
	if p := layer.Spec.Providers; p != nil {
		add(p.SourceRef)
	}
	return keys
}

// follow brings the content of a source that another process reconciles up to what its
// status says, if a Layer or another repository needs it. It is dropped otherwise: it would
// get old, and be applied as it is when something needs it again. A failure is remembered for
// who includes the source, as the status of one that another process reconciles does not tell.
func follow[T sourceObject](ctx context.Context, s *Sources, kind sourceKind[T], key source.Key, obj T) error {
	err := bring(ctx, s, kind, key, obj)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.followed[key] = err; errors.Is(err, find.ErrFetchedAgain) {
		s.followed[key] = nil // it passes by itself
	}
	return err
}

// notFollowed is why a source could not be followed last; nil if it could, or was not tried.
func (s *Sources) notFollowed(key source.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.followed[key]
}

func bring[T sourceObject](ctx context.Context, s *Sources, kind sourceKind[T], key source.Key, obj T) error {
	artifact := obj.GetArtifact()
	needed, err := s.needed(ctx, key)
	switch {
	case err != nil:
		return err
	case !needed || artifact == nil:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.drop(key)
		return nil
	case isOf(s.artifactOf(key), artifact):
		return nil
	}
	return fetchAgain(ctx, s, kind, key, obj, artifact)
}

// isOf reports whether the artifact that was handed over is the one of a status.
func isOf(had, artifact *meta.Artifact) bool {
	return had != nil && artifact != nil && had.Revision == artifact.Revision && had.Digest == artifact.Digest
}

// needed reports whether a Layer names a source, or a repository includes it.
func (s *Sources) needed(ctx context.Context, key source.Key) (bool, error) {
	layers := &v1alpha1.LayerList{}
	// Layers of other namespaces may use it, if their accounts may.
	if err := s.Client.List(ctx, layers, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("cannot list Layers: %w", err)
	}
	for i := range layers.Items {
		if slices.Contains(named(&layers.Items[i]), key) {
			return true, nil
		}
	}
	if key.Kind != sourcev1.GitRepositoryKind {
		return false, nil
	}
	repositories := &sourcev1.GitRepositoryList{}
	if err := s.Client.List(ctx, repositories, client.InNamespace(key.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("cannot list GitRepositories: %w", err)
	}
	return slices.ContainsFunc(repositories.Items, func(r sourcev1.GitRepository) bool {
		return slices.ContainsFunc(r.Spec.Include, func(in sourcev1.GitRepositoryInclude) bool { return in.GitRepositoryRef.Name == key.Name })
	}), nil
}
