package firstsync

import (
	"context"
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/inventory"
)

// watchClusters lists the Clusters before any caller gets a decision. If Cluster API
// is not installed, it waits for the kind.
func (t *Tier) watchClusters(ctx context.Context) (unwatch func(), err error) {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	installed := false
	ok := t.insist(ctx, "cannot look for the kind Cluster", func(ctx context.Context) error {
		err := t.Reader.Get(ctx, types.NamespacedName{Name: clusterapi.ClusterCRD}, crd.DeepCopy())
		installed = err == nil
		return client.IgnoreNotFound(err)
	})
	if !ok {
		return func() {}, nil
	}
	if !installed {
		// Without the kind there is no Cluster.
		close(t.ready)
		informer, err := t.Cache.GetInformer(ctx, crd)
		if err != nil {
			return nil, fmt.Errorf("cannot watch CRDs: %w", err)
		}
		appeared := make(chan struct{}, 1)
		saw := func(o any) {
			if m, ok := o.(*metav1.PartialObjectMetadata); ok && m.Name == clusterapi.ClusterCRD {
				select {
				case appeared <- struct{}{}:
				default:
				}
			}
		}
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: saw, UpdateFunc: func(_, o any) { saw(o) }})
		if err != nil {
			return nil, fmt.Errorf("cannot watch CRDs: %w", err)
		}
		stop := func() { _ = informer.RemoveEventHandler(registration) }
		var began sync.WaitGroup
		ctx, cancel := context.WithCancel(ctx)
		began.Go(func() {
			defer stop()
			select {
			case <-ctx.Done():
				return
			case <-appeared:
			}
			if _, err := t.clusterHandler(ctx); err != nil && ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "cannot watch Clusters; one that is moved away may be created again")
			}
		})
		return func() { cancel(); began.Wait() }, nil
	}
	handler, err := t.clusterHandler(ctx)
	if err != nil || handler == nil {
		return func() {}, err
	}
	if cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		close(t.ready)
	}
	return func() {}, nil
}

// clusterHandler begins to watch Clusters, whose kind is served a moment after its
// definition is there.
func (t *Tier) clusterHandler(ctx context.Context) (cache.ResourceEventHandlerRegistration, error) {
	var mapping *meta.RESTMapping
	ok := t.insist(ctx, "cannot find the kind Cluster", func(context.Context) (err error) {
		mapping, err = t.Client.RESTMapper().RESTMapping(clusterapi.ClusterKind)
		return err
	})
	if !ok {
		return nil, nil
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(mapping.GroupVersionKind)
	informer, err := t.Cache.GetInformer(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("cannot watch Clusters: %w", err)
	}
	return informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { t.onCluster(o, false) },
		UpdateFunc: func(_, o any) { t.onCluster(o, false) },
		DeleteFunc: func(o any) { t.onCluster(o, true) },
	})
}

// onCluster records a Cluster as it is, or as it was when it was deleted.
func (t *Tier) onCluster(o any, gone bool) {
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	name, mark := client.ObjectKeyFromObject(u), markOf(u)
	t.mu.Lock()
	defer t.mu.Unlock()
	before, was := t.seen[name]
	if t.seen[name] = mark; gone {
		delete(t.seen, name)
	}
	switch {
	case t.settled:
		t.mark(name, mark, gone)
	case !gone && mark == "" && t.standing(name) == inventory.Approved:
		// The Cluster exists, so the approval is used up. If the Cluster is deleted, a new
		// approval is needed.
		t.pending[name] = inventory.Adopted
		t.poke()
	}
	if gone || !was || before != mark {
		t.tell(name)
	}
}

// mark records the state of a Cluster, or its state when it was deleted. It is called
// with the lock.
func (t *Tier) mark(name types.NamespacedName, mark inventory.Standing, gone bool) {
	if want, change := noted(t.standing(name), mark, gone); change {
		t.pending[name] = want
		t.poke()
	}
}
