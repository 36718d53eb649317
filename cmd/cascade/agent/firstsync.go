package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// Values of --first-sync.
const (
	FirstSyncAdopt  = "adopt"
	FirstSyncCreate = "create"
)

// CheckFirstSync refuses other values of --first-sync.
func CheckFirstSync(mode string) error {
	if mode != FirstSyncAdopt && mode != FirstSyncCreate {
		return fmt.Errorf("cannot use --first-sync %q: use adopt or create", mode)
	}
	return nil
}

// firstSync is what a tier does about Clusters of which it has nothing on record.
type firstSync struct{ mode string }

func (s *firstSync) bind(f *pflag.FlagSet) {
	f.StringVar(&s.mode, "first-sync", FirstSyncAdopt,
		"what to do about Clusters that Git declares and that do not exist, in a tier that has nothing on record: "+
			"adopt holds them until a person says that they are new, create creates them")
}

func (s *firstSync) check() error { return CheckFirstSync(s.mode) }

// build sets up what is known of the tier's Clusters. kinds are those of the owners
// that are reconciled here; it is nil if there are none and nothing is applied.
func (s *firstSync) build(mgr ctrl.Manager, namespace string, watch *clusters.Watch, kinds []string, events record.EventRecorder, now func() time.Time) (*firstsync.Tier, error) {
	if len(kinds) == 0 {
		return nil, nil
	}
	records, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {
			Namespaces: map[string]cache.Config{namespace: {}}, Field: fields.OneTermEqualSelector("metadata.name", v1alpha1.FirstSyncConfigMap),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot set up the cache of the first sync: %w", err)
	}
	tier := &firstsync.Tier{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Clusters: watch, Records: records,
		Namespace: namespace, Create: s.mode == FirstSyncCreate, Events: events, Now: now, Kinds: kinds,
	}
	if err := errors.Join(mgr.Add(records), mgr.Add(tier)); err != nil {
		return nil, fmt.Errorf("cannot set up the first sync: %w", err)
	}
	return tier, nil
}
