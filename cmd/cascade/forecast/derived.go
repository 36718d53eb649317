package forecast

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// derived knows the sources of the tier that are made of the source by a step more, or by several: GitRepositories that
// include it, ExternalArtifacts that an ArtifactGenerator makes of it, and charts of these. It reads only those that
// something refers to.
type derived struct {
	*forecast
	now   *source.Snapshot
	known map[source.Key]step
}

// step is what is known of a source.
type step struct {
	// of: it is made of the source. changes: the commit changes what it is made of.
	of, changes bool
	err         error
}

func (s step) and(other step) step {
	return step{of: s.of || other.of, changes: s.changes || other.changes, err: cmp.Or(s.err, other.err)}
}

func keyOf(kind, namespace, name string) source.Key {
	return source.Key{Kind: kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// changed is an error if the commit changes a source that is made of the source, or if that is not known. The source
// itself is compared elsewhere. inChildren: what is made of it gets into children.
func (d *derived) changed(ctx context.Context, key source.Key, inChildren bool) error {
	s := d.made(ctx, key)
	if s.of {
		d.use(inChildren)
	}
	switch {
	case s.err != nil:
		return fmt.Errorf("cannot tell whether the commit changes its source, %s %s: %w", key.Kind, key.NamespacedName, s.err)
	case s.changes:
		return fmt.Errorf("its source, %s %s, is made of GitRepository %s, and the commit changes that; what it changes of the objects is not told", key.Kind, key.NamespacedName, d.Source)
	}
	return nil
}

// made is what is known of a source other than the source itself.
func (d *derived) made(ctx context.Context, key source.Key) step {
	if s, ok := d.known[key]; ok {
		return s
	}
	d.known[key] = step{} // one that is made of itself is made of nothing else by that
	var s step
	switch {
	case d.is(key.Kind, key.Namespace, key.Name):
	case key.Kind == sourcev1.GitRepositoryKind:
		s = d.including(ctx, key)
	case key.Kind == sourcev1.ExternalArtifactKind:
		s = d.artifact(ctx, key)
	case key.Kind == sourcev1.HelmChartKind:
		s = d.chart(ctx, key)
	}
	d.known[key] = s
	return s
}

// below is what is known of a path in a source, from which another one is made.
func (d *derived) below(ctx context.Context, key source.Key, name string) step {
	if d.is(key.Kind, key.Namespace, key.Name) {
		return step{of: true, changes: differs(d.now, d.next, name)}
	}
	return d.made(ctx, key)
}

// get reads a source; false if it is not there, and nothing is made of it.
func (d *derived) get(ctx context.Context, key types.NamespacedName, into client.Object) (bool, step) {
	err := d.cluster.Get(ctx, key, into)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return false, step{}
	}
	return err == nil, step{err: err}
}

func (d *derived) including(ctx context.Context, key source.Key) step {
	r := &sourcev1.GitRepository{}
	there, s := d.get(ctx, key.NamespacedName, r)
	if !there {
		return s
	}
	for i := range r.Spec.Include {
		in := &r.Spec.Include[i]
		s = s.and(d.below(ctx, keyOf(sourcev1.GitRepositoryKind, key.Namespace, in.GitRepositoryRef.Name), in.FromPath))
	}
	return s
}

// artifact is what is known of an ExternalArtifact by what its generator copies into it. Of a generator that finds
// directories all that is below these counts for each.
func (d *derived) artifact(ctx context.Context, key source.Key) step {
	a, g := &sourcev1.ExternalArtifact{}, &generatorv1.ArtifactGenerator{}
	there, s := d.get(ctx, key.NamespacedName, a)
	if !there || a.Spec.SourceRef == nil || a.Spec.SourceRef.Kind != generatorv1.ArtifactGeneratorKind {
		return s
	}
	// It is where its generator is.
	if there, s = d.get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: a.Spec.SourceRef.Name}, g); !there {
		return s
	}
	sources := map[string]source.Key{}
	for _, from := range g.Spec.Sources {
		sources[from.Alias] = keyOf(from.Kind, cmp.Or(from.Namespace, g.Namespace), from.Name)
	}
	for _, o := range g.Spec.OutputArtifacts {
		if g.Spec.PathPattern == "" && o.Name != key.Name {
			continue
		}
		for _, c := range o.Copy {
			alias, name, _ := strings.Cut(strings.TrimPrefix(c.From, "@"), "/")
			if from, ok := sources[alias]; ok {
				s = s.and(d.below(ctx, from, beforePattern(name)))
			}
		}
	}
	return s
}

// beforePattern is the directory that has all that a pattern can match, or the path that is none. What a generator finds
// by directories is written like a pattern.
func beforePattern(name string) string {
	at := strings.IndexAny(name, `*?[{\`)
	if at < 0 {
		return name
	}
	return name[:max(0, strings.LastIndexByte(name[:at], '/'))]
}

// chart is what is known of a HelmChart.
func (d *derived) chart(ctx context.Context, key source.Key) step {
	c := &sourcev1.HelmChart{}
	there, s := d.get(ctx, key.NamespacedName, c)
	if !there {
		return s
	}
	from := keyOf(c.Spec.SourceRef.Kind, c.Namespace, c.Spec.SourceRef.Name)
	if d.is(from.Kind, from.Namespace, from.Name) {
		return step{of: true, changes: d.newChart(ctx, d.now, &c.Spec) != nil}
	}
	return d.made(ctx, from)
}
