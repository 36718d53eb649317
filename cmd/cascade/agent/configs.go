package agent

import (
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// configs are the ConfigMaps and Secrets that are watched.
type configs struct{ selector string }

func (c *configs) bind(f *pflag.FlagSet) {
	f.StringVar(&c.selector, "watch-configs-label-selector", "reconcile.fluxcd.io/watch=Enabled",
		"ConfigMaps and Secrets with these labels wake the Kustomizations and HelmReleases that use them when they change")
}

func (*configs) check() error { return nil }

// watched reports whether anything is to be watched, unless a gate says otherwise.
func (c *configs) watched() bool { return c.selector != "" }

// build makes the cache of what is watched.
func (c *configs) build(mgr ctrl.Manager) (cache.Cache, error) {
	selector, err := labels.Parse(c.selector)
	if err != nil {
		return nil, fmt.Errorf("cannot use --watch-configs-label-selector %q: %w", c.selector, err)
	}
	watched, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		DefaultLabelSelector: selector, DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot set up the cache of configurations: %w", err)
	}
	return watched, mgr.Add(watched)
}
