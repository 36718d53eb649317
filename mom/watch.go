//go:build linux

package mom

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge/graph"
)

// lookForKinds is the pause between two looks at which kinds there are. A kind that comes
// later than the providers is rare, and its objects belong to a Cluster that changes, too.
const lookForKinds = 15 * time.Second

// watcher tells of changes of what a saved state has.
type watcher struct {
	client client.Client
	config *rest.Config
	touch  func()
}

// run watches until the context ends.
func (w *watcher) run(ctx context.Context) error {
	metadataClient, err := metadata.NewForConfig(w.config)
	if err != nil {
		return fmt.Errorf("cannot watch the state: %w", err)
	}
	var watches sync.WaitGroup
	defer watches.Wait()
	watched := map[schema.GroupVersionResource]bool{}
	watch := func(resource schema.GroupVersionResource, namespace string) {
		if watched[resource] {
			return
		}
		watched[resource] = true
		informer := metadatainformer.NewFilteredMetadataInformer(metadataClient, resource, namespace, 0, cache.Indexers{}, nil).Informer()
		// What there is at first is told as well: it is not saved yet.
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { w.touch() },
			UpdateFunc: func(any, any) { w.touch() },
			DeleteFunc: func(any) { w.touch() },
		})
		if err != nil {
			return // only an informer that was stopped takes no handler
		}
		watches.Go(func() { informer.RunWithContext(ctx) })
	}
	core := schema.GroupVersion{Version: "v1"}
	// Which other Secrets are saved, only their names say: those that the tier hands to its children.
	watch(core.WithResource("secrets"), metav1.NamespaceAll)
	watch(core.WithResource("configmaps"), v1alpha1.AgentNamespace)
	watch(v1alpha1.GroupVersion.WithResource("children"), metav1.NamespaceAll)
	watch(v1alpha1.GroupVersion.WithResource("rollouts"), metav1.NamespaceAll)
	ticker := time.NewTicker(lookForKinds)
	defer ticker.Stop()
	for {
		// What cannot be read now is read at the next look.
		if kinds, err := graph.Served(ctx, w.client); err == nil {
			for _, kind := range kinds {
				if mapping, err := w.client.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version); err == nil {
					watch(mapping.Resource, metav1.NamespaceAll)
				} else if !meta.IsNoMatchError(err) {
					break
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
