package agent

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// reconcileTimeout is the deadline of a whole reconcile.
const reconcileTimeout = 10 * time.Minute

// newManager makes the manager of the controllers, with its cache and its probes.
func newManager(config *rest.Config, scheme *runtime.Scheme, s serving, e election, lock resourcelock.Interface) (ctrl.Manager, error) {
	ofClusters, err := labels.NewRequirement(clusterapi.ClusterNameLabel, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	crds := &metav1.PartialObjectMetadata{}
	crds.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	secrets := &metav1.PartialObjectMetadata{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                              scheme,
		Controller:                          ctrlconfig.Controller{ReconciliationTimeout: reconcileTimeout},
		Metrics:                             s.build(),
		HealthProbeBindAddress:              s.healthAddr,
		LeaderElection:                      e.enabled,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				// Only the one that tells of Cluster API, and only the Secrets that
				// belong to clusters, and of both the metadata only.
				crds:    {Field: fields.OneTermEqualSelector("metadata.name", clusterapi.ClusterCRD)},
				secrets: {Label: labels.NewSelector().Add(*ofClusters)},
			},
		},
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot set up: %w", err)
	}
	for name, add := range map[string]func(string, healthz.Checker) error{"healthz": mgr.AddHealthzCheck, "readyz": mgr.AddReadyzCheck} {
		if err := add(name, healthz.Ping); err != nil {
			return nil, fmt.Errorf("cannot set up %s: %w", name, err)
		}
	}
	return mgr, nil
}
