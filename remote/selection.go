package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
)

// selected returns the layers that select the child, those that others depend
// on first, with those of which nobody can tell whether they do.
func (r *run) selected(ctx context.Context) ([]*v1alpha1.Layer, error) {
	list := &v1alpha1.LayerList{}
	if err := r.Client.List(ctx, list, client.InNamespace(r.child.Namespace)); err != nil {
		return nil, fmt.Errorf("cannot list Layers: %w", err)
	}
	var layers []*v1alpha1.Layer
	for i := range list.Items {
		layer := &list.Items[i]
		if layer.DeletionTimestamp.IsZero() && Concerns(layer, r.child, r.labels) {
			// A Child that is suspended is one all of whose layers are.
			layer.Spec.Suspend = layer.Spec.Suspend || r.child.Spec.Suspend
			layers = append(layers, layer)
		}
	}
	return inOrder(layers), nil
}

// Selects reports whether a layer selects a cluster with these labels. An empty
// selector selects nothing: a forgotten selector must not select the whole fleet. An error says
// that the selector cannot be used: then nobody knows whom the layer selects.
func Selects(layer *v1alpha1.Layer, of map[string]string) (bool, error) {
	selector, err := selectorOf(layer)
	if err != nil {
		return false, err
	}
	return selector.Matches(labels.Set(of)), nil
}

// Concerns reports whether a child with these labels is one of a layer's: one that it selects. While
// its selector cannot be used, or goes by who applied a Cluster that is elsewhere, they are those that have
// it on record, which keep it as it is. Unknown is neither nobody nor everybody.
func Concerns(layer *v1alpha1.Layer, child *v1alpha1.Child, of map[string]string) bool {
	is, err := Selects(layer, of)
	return is || err != nil && entryOf(child, layer.Name) != nil || err == nil && stays(layer, child)
}

// selectorOf is the selector of a layer.
func selectorOf(layer *v1alpha1.Layer) (labels.Selector, error) {
	s := layer.Spec.ClusterSelector
	if len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
		return labels.Nothing(), nil
	}
	selector, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		return nil, reason.Because(v1alpha1.ReasonInvalidSpec, fmt.Errorf("cannot use clusterSelector of Layer %s: %w", layer.Name, err))
	}
	return selector, nil
}

// inOrder sorts layers by name, and by dependsOn before that. Layers of a cycle
// come last; their dependencies will be found not ready.
func inOrder(layers []*v1alpha1.Layer) []*v1alpha1.Layer {
	slices.SortFunc(layers, func(a, b *v1alpha1.Layer) int { return strings.Compare(a.Name, b.Name) })
	var out []*v1alpha1.Layer
	placed := map[string]bool{}
	for len(out) < len(layers) {
		before := len(out)
		for _, l := range layers {
			if placed[l.Name] {
				continue
			}
			open := slices.ContainsFunc(l.Spec.DependsOn, func(d v1alpha1.LayerReference) bool {
				return !placed[d.Name] && slices.ContainsFunc(layers, func(o *v1alpha1.Layer) bool { return o.Name == d.Name })
			})
			if !open {
				out = append(out, l)
				placed[l.Name] = true
			}
		}
		if len(out) == before {
			for _, l := range layers {
				if !placed[l.Name] {
					out = append(out, l)
					placed[l.Name] = true
				}
			}
		}
	}
	return out
}

// unselected is an error unless the API server itself says that a layer is gone
// or does not select the cluster: a cache that lags must not delete anything. It returns
// the layer, nil if it is gone.
func (r *run) unselected(ctx context.Context, name string) (*v1alpha1.Layer, error) {
	layer := &v1alpha1.Layer{}
	err := r.Cluster.Get(ctx, types.NamespacedName{Namespace: r.child.Namespace, Name: name}, layer)
	switch {
	case apierrors.IsNotFound(err):
		return nil, r.layersStand(ctx)
	case err != nil:
		return nil, reason.Because(v1alpha1.ReasonProgressing, fmt.Errorf("cannot read Layer %s to tell whether it still selects this cluster: %w", name, err))
	case !layer.DeletionTimestamp.IsZero():
		return layer, r.layersStand(ctx)
	}
	switch selects, err := Selects(layer, r.labels); {
	case err != nil:
		return nil, err
	case selects:
		return nil, reason.Because(v1alpha1.ReasonProgressing, fmt.Errorf("layer %s selects this cluster again", name))
	}
	return layer, nil
}

// layersStand is an error while the kind Layer itself is missing or being deleted.
// Deleting the definition deletes all Layers, and nobody meant to delete what they
// applied.
func (r *run) layersStand(ctx context.Context) error {
	going, err := definitionGoes(ctx, r.Cluster)
	switch {
	case err != nil:
		return reason.Because(v1alpha1.ReasonProgressing, err)
	case going:
		return reason.Because(v1alpha1.ReasonProgressing, errors.New("the kind Layer is being removed; what layers applied stays"))
	}
	return nil
}

func hasAgent(layer *v1alpha1.Layer) bool { return layer.Spec.Agent != nil }
