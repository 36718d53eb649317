package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Layers keeps the status of Layer objects: it counts in which state the layer is on
// each child. Children pushes, child by child; Layers wakes the children when a Secret
// or ConfigMap that a layer refers to has changed.
type Layers struct {
	Client client.Client
	// Reader reads from the API server of this tier.
	Reader    client.Reader
	Snapshots *source.Snapshots
	// Wake calls for a reconcile of a child.
	Wake func(child types.NamespacedName)
	Now  func() time.Time

	mu   sync.Mutex
	seen map[types.NamespacedName]layerSeen
}

// layerSeen is what is known of a layer since the process began.
type layerSeen struct {
	// counted is when the children were counted last, and versions those of the
	// Secrets and ConfigMaps that the layer names.
	counted  time.Time
	versions string
}

const (
	// countPause is between two counts of the children of a layer, while they
	// change by the hundred.
	countPause = time.Second
	// referencePause is between two looks at the Secrets and ConfigMaps of a layer.
	referencePause = 15 * time.Second
)

func layerSource(layer *v1alpha1.Layer) source.Key {
	return source.Key{Kind: layer.Spec.SourceRef.Kind, NamespacedName: types.NamespacedName{Namespace: layer.Namespace, Name: layer.Spec.SourceRef.Name}}
}

// Reconcile sums up one Layer.
func (r *Layers) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	layer := &v1alpha1.Layer{}
	if err := r.Client.Get(ctx, req.NamespacedName, layer); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if wait := r.early(req.NamespacedName); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	children := &v1alpha1.ChildList{}
	if err := r.Client.List(ctx, children, client.InNamespace(layer.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("cannot list Children: %w", err)
	}
	result, err := r.look(ctx, layer, children.Items)
	if err != nil {
		return ctrl.Result{}, err
	}
	before := layer.DeepCopy()
	if layer.Spec.SourceRef != nil {
		if s := r.Snapshots.Get(layerSource(layer)); s != nil {
			layer.Status.Revision = s.Revision
		}
	}
	summarize(layer, children.Items)
	layer.Status.ObservedGeneration = layer.Generation
	layer.Status.LastHandledReconcileAt = layer.Annotations[fluxmeta.ReconcileRequestAnnotation]
	if equality.Semantic.DeepEqual(before.Status, layer.Status) {
		return result, nil
	}
	if err := r.Client.Status().Patch(ctx, layer, client.MergeFrom(before), client.FieldOwner(statusManager)); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(fmt.Errorf("cannot write status of Layer %s: %w", req.NamespacedName, err))
	}
	return result, nil
}

func (r *Layers) forget(layer types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seen, layer)
}

// early is how long to wait before the children are counted again; zero counts
// now.
func (r *Layers) early(layer types.NamespacedName) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.Now()
	seen := r.seen[layer]
	if wait := countPause - now.Sub(seen.counted); wait > 0 {
		return wait
	}
	if r.seen == nil {
		r.seen = map[types.NamespacedName]layerSeen{}
	}
	seen.counted = now
	r.seen[layer] = seen
	return 0
}

// look finds out whether a Secret or ConfigMap that a layer refers to has changed,
// and wakes the children then. It polls: there are few such objects, but a watch
// would hold all Secrets in memory.
func (r *Layers) look(ctx context.Context, layer *v1alpha1.Layer, children []v1alpha1.Child) (ctrl.Result, error) {
	var versions []string
	see := func(kind, name string) error {
		o := &metav1.PartialObjectMetadata{}
		o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		err := r.Reader.Get(ctx, types.NamespacedName{Namespace: layer.Namespace, Name: name}, o)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("cannot read %s %s/%s: %w", kind, layer.Namespace, name, err)
		}
		versions = append(versions, kind+"/"+name+"="+o.ResourceVersion)
		return nil
	}
	for _, c := range credentialsOf(layer) {
		if err := see("Secret", c.SecretRef.Name); err != nil {
			return ctrl.Result{}, err
		}
	}
	if b := layer.Spec.PostBuild; b != nil {
		for _, ref := range b.SubstituteFrom {
			if err := see(ref.Kind, ref.Name); err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	if len(versions) == 0 {
		return ctrl.Result{}, nil
	}
	key, now := client.ObjectKeyFromObject(layer), strings.Join(versions, " ")
	r.mu.Lock()
	seen := r.seen[key]
	changed := seen.versions != "" && seen.versions != now
	seen.versions = now
	r.seen[key] = seen
	r.mu.Unlock()
	for i := range children {
		if changed && Selects(layer, children[i].Labels) {
			r.Wake(client.ObjectKeyFromObject(&children[i]))
		}
	}
	return ctrl.Result{RequeueAfter: referencePause}, nil
}

// summarize counts the children that a layer selects and names at most ten of
// those on which it is not ready.
func summarize(layer *v1alpha1.Layer, children []v1alpha1.Child) {
	status := &layer.Status
	status.Children = v1alpha1.ChildCounts{}
	status.Failing = nil
	slices.SortFunc(children, func(a, b v1alpha1.Child) int { return strings.Compare(a.Name, b.Name) })
	for i := range children {
		child := &children[i]
		if !Selects(layer, child.Labels) {
			continue
		}
		status.Children.Total++
		failure := v1alpha1.Failure{Name: child.Name, Reason: v1alpha1.ReasonProgressing}
		connected := meta.FindStatusCondition(child.Status.Conditions, v1alpha1.ConnectedCondition)
		at := slices.IndexFunc(child.Status.Layers, func(e v1alpha1.ChildLayer) bool { return e.Name == layer.Name })
		switch {
		case connected != nil && connected.Status == metav1.ConditionFalse:
			status.Children.Unreachable++
			failure.Reason, failure.Message = connected.Reason, connected.Message
		case at >= 0 && child.Status.Layers[at].Ready:
			status.Children.Seeded++
			continue
		case at >= 0:
			status.Children.Failing++
			failure.Reason, failure.Message = child.Status.Layers[at].Reason, child.Status.Layers[at].Message
		}
		if len(status.Failing) < maxFailing {
			status.Failing = append(status.Failing, failure)
		}
	}
	c := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, ObservedGeneration: layer.Generation}
	switch counts := status.Children; {
	case layer.Spec.Suspend:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonSuspended, "suspended"
	case counts.Total == 0:
		c.Reason, c.Message = v1alpha1.ReasonNoChildren, "no cluster is selected"
	case counts.Seeded == counts.Total:
		c.Message = fmt.Sprintf("in place on all %d children", counts.Total)
	default:
		f := status.Failing[0]
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady
		c.Message = short(fmt.Sprintf("in place on %d of %d children; %s: %s: %s", counts.Seeded, counts.Total, f.Name, f.Reason, f.Message))
	}
	meta.SetStatusCondition(&status.Conditions, c)
}
