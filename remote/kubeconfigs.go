package remote

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// kubeconfigPage is how many Secrets are read by one request.
const kubeconfigPage = 500

// kubeconfigs are the Secrets with the kubeconfigs of children that this process took over. To read thousands one
// by one is seconds of a processor for the API server of the tier, and a list of them is a tenth of one. Each is
// used once, in the very version that is watched, and for crowdedFor at most: it is the content of one moment. The
// zero value is ready for use, and it is safe for concurrent use.
type kubeconfigs struct {
	mu      sync.Mutex
	until   time.Time
	secrets map[types.NamespacedName]*corev1.Secret
}

// list reads the Secrets of these names.
func (k *kubeconfigs) list(ctx context.Context, from client.Reader, names map[types.NamespacedName]bool, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found := map[types.NamespacedName]*corev1.Secret{}
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
			break
		}
		page = &corev1.SecretList{ListMeta: page.ListMeta}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !now.After(k.until) {
		maps.Copy(found, k.secrets)
	}
	k.until, k.secrets = now.Add(crowdedFor), found
	return nil
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
