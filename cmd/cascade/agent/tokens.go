package agent

import (
	"fmt"
	"time"

	tokencache "github.com/fluxcd/pkg/cache"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// tokens is how tokens of cloud providers are kept.
type tokens struct {
	size     int
	duration time.Duration
}

func (t *tokens) bind(f *pflag.FlagSet) {
	f.IntVar(&t.size, "token-cache-max-size", 100, "most tokens of providers that are kept")
	f.DurationVar(&t.duration, "token-cache-max-duration", time.Hour, "longest time that a token of a provider is kept")
}

func (*tokens) check() error { return nil }

// build makes the cache of the tokens for key services and other clusters, which counts as
// Flux's does.
func (t *tokens) build(registry prometheus.Registerer) (*tokencache.TokenCache, error) {
	c, err := tokencache.NewTokenCache(t.size, tokencache.WithMaxDuration(t.duration),
		tokencache.WithMetricsRegisterer(registry), tokencache.WithMetricsPrefix("gotk_token_"))
	if err != nil {
		return nil, fmt.Errorf("cannot set up the cache of tokens: %w", err)
	}
	return c, nil
}

// logins makes what logs in to the origins of sources, with a cache of its own.
func (t *tokens) logins(now func() time.Time) (*source.Logins, error) {
	return source.NewLogins(t.size, t.duration, now)
}
