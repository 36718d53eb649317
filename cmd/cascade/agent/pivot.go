package agent

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// journalCache watches the journals of pivots in the agent's namespace, and nothing else.
func journalCache(mgr ctrl.Manager, namespace string) (cache.Cache, error) {
	labelled, err := labels.NewRequirement(v1alpha1.PivotLabel, selection.Exists, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot select journals of pivots: %w", err)
	}
	journals, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {
			Namespaces: map[string]cache.Config{namespace: {}}, Label: labels.NewSelector().Add(*labelled),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot set up the watch of journals of pivots: %w", err)
	}
	return journals, nil
}
