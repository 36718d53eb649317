package remote

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

const (
	// kubeconfigPage is how many Secrets are read by one request.
	kubeconfigPage = 500
	// kubeconfigTime is how long children that were taken over wait for the list.
	kubeconfigTime = 3 * time.Second
	// perKubeconfig is how many Secrets are listed at most for one that is looked for. Cluster API labels as
	// it does a kubeconfig also what each machine begins with, which is several times as large and may be most of
	// what a tier has; one that is read alone costs what ten of the list do.
	perKubeconfig = 4
)

// kubeconfigs are the Secrets with the kubeconfigs of children that this process took over. To read thousands one
// by one is seconds of a processor for the API server of the tier, and a list of them is a tenth of one. Each is
// used once, in the very version that is watched, and for crowdedFor at most: it is the content of one moment. The
// zero value is ready for use, and it is safe for concurrent use.
type kubeconfigs struct {
	mu      sync.Mutex
	until   time.Time
	secrets map[types.NamespacedName]*corev1.Secret
}

// worthListing reports whether a list of the Secrets of Clusters is less than to read these one by one. Known are the
// Secrets that are watched; it costs no request.
func (k *kubeconfigs) worthListing(ctx context.Context, known client.Reader, names int) (bool, error) {
	if names <= mostUnmet {
		return false, nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := known.List(ctx, list, client.Limit(int64(names*perKubeconfig+1)), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("cannot count the Secrets of Clusters: %w", err)
	}
	return len(list.Items) <= names*perKubeconfig, nil
}

// list reads the Secrets of these names. What was read before an error is kept.
func (k *kubeconfigs) list(ctx context.Context, from client.Reader, names map[types.NamespacedName]bool, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, kubeconfigTime)
	defer cancel()
	found := map[types.NamespacedName]*corev1.Secret{}
	defer func() { k.keep(found, now) }()
	page := &corev1.SecretList{}
	for {
		if err := from.List(ctx, page, client.HasLabels{clusterapi.ClusterNameLabel}, client.Limit(kubeconfigPage), client.Continue(page.Continue)); err != nil {
			return fmt.Errorf("cannot list kubeconfigs: %w", err)
		}
		for i := range page.Items {
			secret := &page.Items[i]
			if key := client.ObjectKeyFromObject(secret); names[key] {
				kept := *secret // the page goes with all that nobody asked for
				kept.ManagedFields = nil
				found[key] = &kept
			}
		}
		if page.Continue == "" {
			return nil
		}
		page = &corev1.SecretList{ListMeta: page.ListMeta}
	}
}

// keep adds what was found to what was listed a moment ago.
func (k *kubeconfigs) keep(found map[types.NamespacedName]*corev1.Secret, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !now.After(k.until) {
		maps.Copy(found, k.secrets)
	}
	k.until, k.secrets = now.Add(crowdedFor), found
}

// take returns a Secret that was listed a moment ago, nil if it was not, or was taken before.
func (k *kubeconfigs) take(name types.NamespacedName, now time.Time) *corev1.Secret {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.After(k.until) {
		k.secrets = nil
	}
	secret := k.secrets[name]
	delete(k.secrets, name)
	return secret
}
