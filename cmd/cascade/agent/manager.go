package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote"
	"github.com/cascade-gitops/cascade/syncer/informer"
	"github.com/cascade-gitops/cascade/syncer/stall"
)

// newManager makes the manager of the controllers, with its cache and its probes.
func newManager(
	config *rest.Config, scheme *runtime.Scheme, o *options, flux *fluxControllers, lock resourcelock.Interface, now func() time.Time, log logr.Logger,
) (ctrl.Manager, error) {
	// What has a status that others may write is decoded object by object.
	decoded := func(group string) bool { return v1alpha1.IsFluxGroup(group) || group == v1alpha1.Group }
	informers := informer.New(config, scheme, log, decoded, func(kind schema.GroupKind) bool { return decoded(kind.Group) && !isBeside(kind) })
	ofClusters, err := labels.NewRequirement(clusterapi.ClusterNameLabel, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	crds := &metav1.PartialObjectMetadata{}
	crds.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	reports := &metav1.PartialObjectMetadata{}
	reports.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	secrets := &metav1.PartialObjectMetadata{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	leases, ofFlux := flux.watched()
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                              scheme,
		Controller:                          ctrlconfig.Controller{ReconciliationTimeout: stall.Deadline},
		Metrics:                             o.serving.build(now, log),
		HealthProbeBindAddress:              o.serving.healthAddr,
		GracefulShutdownTimeout:             &o.pauses.shutdown,
		LeaderElection:                      o.election.enabled,
		LeaseDuration:                       &o.election.lease,
		RenewDeadline:                       &o.election.renew,
		RetryPeriod:                         &o.election.retry,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		MapperProvider:                      informers.Mapper,
		Cache: cache.Options{
			DefaultTransform: remote.Cached(),
			NewInformer:      informers.Informer,
			ByObject: map[client.Object]cache.ByObject{
				// Only the one that tells of Cluster API, and only the Secrets that
				// belong to clusters, and of both the metadata only.
				crds:    {Field: fields.OneTermEqualSelector("metadata.name", clusterapi.ClusterCRD)},
				secrets: {Label: labels.NewSelector().Add(*ofClusters)},
				leases:  ofFlux,
				// Only the one that the agent writes, to write it again if somebody changes it.
				reports: {
					Namespaces: map[string]cache.Config{o.place.namespace: {}},
					Field:      fields.OneTermEqualSelector("metadata.name", v1alpha1.ReportConfigMap),
				},
			},
		},
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot set up: %w", err)
	}
	if err := errors.Join(mgr.AddHealthzCheck("healthz", healthz.Ping), mgr.AddReadyzCheck("readyz", informers.Check)); err != nil {
		return nil, fmt.Errorf("cannot set up probes: %w", err)
	}
	return mgr, nil
}
