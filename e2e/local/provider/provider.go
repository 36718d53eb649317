// Package provider is a Cluster API provider whose clusters are real control planes on this machine: it fulfils the
// InfraCluster and ControlPlane contracts (v1beta2) with the kinds LocalCluster and LocalControlPlane.
//
// For each LocalControlPlane it runs one control plane and one node that runs pods as processes, keeps the kubeconfig
// Secret that the contract asks for, and takes everything down when the object is deleted.
//
// Invariants:
//   - Control planes and nodes are no children of the provider: they outlive it, and the management cluster that it runs in.
//     They end with the owner of the whole run.
//   - What runs is found by the directory that an object names, never remembered: a provider that starts adopts what it finds.
//   - A control plane that died is started again from its directory, with the same data, port and credentials. One that does
//     not answer but lives is left alone.
//   - Nothing is deleted but for an object that is being deleted, and nothing is done for one that is paused.
//   - initialization fields are never taken back; conditions say how it is now.
//
// Failure model: every step can be repeated and is, with the error in the object's condition meanwhile. A kill at any point
// leaves at worst a control plane that the next reconcile adopts. Eight objects are worked on at a time, and a start or stop
// that hangs fails by its deadline, so one that is broken does not hold up the others.
package provider

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/cascade-gitops/cascade/e2e/local/config"
	"github.com/cascade-gitops/cascade/e2e/local/health"
	"github.com/cascade-gitops/cascade/e2e/local/manifest"
)

const (
	fieldManager   = "cascade-local-provider"
	installTimeout = 2 * time.Minute
	concurrency    = 8
)

// Config says which cluster to serve and what to serve it with.
type Config struct {
	Client     *rest.Config
	Machine    Machine
	HealthAddr string
	Log        *slog.Logger
}

// Run serves the management cluster until the context ends.
func Run(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel(nil)

	ready := make(chan struct{})
	group.Go(func() {
		if err := health.Serve(ctx, cfg.HealthAddr, func(context.Context) error {
			select {
			case <-ready:
				return nil
			default:
				return errors.New("not serving yet: definitions or Cluster API are missing")
			}
		}); err != nil {
			cancel(err)
		}
	})
	err := serve(ctx, cfg, ready)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func serve(ctx context.Context, cfg Config, ready chan<- struct{}) error {
	// Kubernetes' client libraries ask for a logger of their own, one for the whole process.
	log := logr.FromSlogHandler(cfg.Log.Handler())
	ctrllog.SetLogger(log)
	restConfig := rest.CopyConfig(cfg.Client)
	restConfig.QPS, restConfig.Burst = 100, 200
	if err := install(ctx, restConfig); err != nil {
		return err
	}
	cfg.Log.Info("definitions are established, waiting for Cluster API")
	if err := awaitClusterAPI(ctx, restConfig); err != nil {
		return err
	}

	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return fmt.Errorf("cannot make scheme: %w", err)
	}
	addToScheme(scheme)
	manager, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme:                 scheme,
		Logger:                 log,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Cache:                  cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Client:                 client.Options{Cache: &client.CacheOptions{Unstructured: true}},
	})
	if err != nil {
		return fmt.Errorf("cannot make manager: %w", err)
	}
	base := reconciler{client: manager.GetClient(), secrets: manager.GetAPIReader(), machine: cfg.Machine}
	if err := setup(manager, base); err != nil {
		return err
	}
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		if manager.GetCache().WaitForCacheSync(ctx) {
			cfg.Log.Info("serving")
			close(ready)
		}
	})
	if err := manager.Start(ctx); err != nil {
		return fmt.Errorf("cannot run manager: %w", err)
	}
	return nil
}

// install applies the provider's own definitions.
func install(ctx context.Context, restConfig *rest.Config) error {
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	dynamicClient, err := dynamic.NewForConfig(restConfig)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	var names []string
	err = fs.WalkDir(config.CRDs, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		stream, err := config.CRDs.ReadFile(path)
		if err != nil {
			return err
		}
		objects, err := manifest.Decode(stream)
		if err != nil {
			return err
		}
		for _, object := range objects {
			names = append(names, object.GetName())
			if err := manifest.Apply(ctx, dynamicClient, fieldManager, object); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot install definitions: %w", err)
	}
	return manifest.AwaitEstablished(ctx, dynamicClient, names)
}

// awaitClusterAPI returns when the management cluster serves Clusters. Their definition may come later than this pod: Git
// applies both at the same time.
func awaitClusterAPI(ctx context.Context, restConfig *rest.Config) error {
	discoveryClient, err := discovery.NewDiscoveryClientForConfig(restConfig)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	kind := clusterKind()
	for {
		resources, err := discoveryClient.ServerResourcesForGroupVersion(kind.GroupVersion().String())
		if err == nil {
			for _, resource := range resources.APIResources {
				if resource.Kind == kind.Kind {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot find Cluster API: %w", errors.Join(err, ctx.Err()))
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// setup registers both reconcilers and what wakes them.
func setup(manager ctrl.Manager, base reconciler) error {
	cluster := &unstructured.Unstructured{}
	cluster.SetGroupVersionKind(clusterKind())
	options := controller.Options{MaxConcurrentReconciles: concurrency}
	err := ctrl.NewControllerManagedBy(manager).For(&LocalControlPlane{}).WithOptions(options).
		Watches(cluster, handler.EnqueueRequestsFromMapFunc(referenced("controlPlaneRef", "LocalControlPlane"))).
		Complete(&controlPlanes{base})
	if err != nil {
		return fmt.Errorf("cannot watch LocalControlPlanes: %w", err)
	}
	err = ctrl.NewControllerManagedBy(manager).For(&LocalCluster{}).WithOptions(options).
		Watches(cluster, handler.EnqueueRequestsFromMapFunc(referenced("infrastructureRef", "LocalCluster"))).
		Watches(&LocalControlPlane{}, handler.EnqueueRequestsFromMapFunc(base.infrastructureOf)).
		Complete(&infrastructures{base})
	if err != nil {
		return fmt.Errorf("cannot watch LocalClusters: %w", err)
	}
	return nil
}
