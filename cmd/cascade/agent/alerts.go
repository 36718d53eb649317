package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"

	"github.com/cascade-gitops/cascade/syncer/alert/dispatch"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// alerts is how Alerts and Providers are served.
type alerts struct {
	rateLimit time.Duration
	deny      []string
	addresses answer.Addresses
}

func (a *alerts) bind(f *pflag.FlagSet) {
	f.DurationVar(&a.rateLimit, "rate-limit-interval", 5*time.Minute, "time in which Providers are not told of the same event again; 0 tells of each")
	f.StringSliceVar(&a.deny, "deny-provider-addresses", nil,
		"networks, such as 127.0.0.0/8,::1/128, where no Provider of an Alert may be; link-local ones and metadata services they never may")
}

func (a *alerts) check() error {
	if a.rateLimit < 0 {
		return fmt.Errorf("cannot use --rate-limit-interval %s: it must not be negative", a.rateLimit)
	}
	a.addresses.Deny = nil
	for _, text := range a.deny {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("cannot use --deny-provider-addresses: %q is not a network such as 127.0.0.0/8", text)
		}
		a.addresses.Deny = append(a.addresses.Deny, network.Masked())
	}
	return nil
}

// tellers are the parts of the agent that notifications need.
type tellers struct {
	mgr     ctrl.Manager
	logins  *source.Logins
	workers *worker.Pool
	// namespace has the Alerts that are served; empty is all.
	namespace            string
	noCrossNamespaceRefs bool
	registry             prometheus.Registerer
	now                  func() time.Time
	random               func() float64
}

// build makes what sends events to Providers, which the manager runs.
func (a *alerts) build(t tellers) (*dispatch.Dispatcher, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot read host name: %w", err)
	}
	//lint:ignore SA1019 flux events reads the old events API
	recorder := t.mgr.GetEventRecorderFor("notification-controller")
	d, err := dispatch.New(dispatch.Options{
		Client: t.mgr.GetClient(), Namespace: t.namespace, NoCrossNamespaceRefs: t.noCrossNamespaceRefs,
		RateLimit: a.rateLimit, Instance: host, Events: recorder, Workers: t.workers,
		Senders:  &dispatch.Senders{Reader: t.mgr.GetAPIReader(), Addresses: a.addresses, GitHubApp: githubApp(t.logins)},
		Registry: t.registry, Now: t.now, Rand: t.random, Log: t.mgr.GetLogger().WithName("notifications"),
	})
	if err != nil {
		return nil, err
	}
	if err := t.mgr.Add(d); err != nil {
		return nil, fmt.Errorf("cannot set up notifications: %w", err)
	}
	return d, nil
}

// githubApp gets tokens of GitHub Apps for Providers.
func githubApp(logins *source.Logins) func(context.Context, types.NamespacedName, string, map[string][]byte, *url.URL) (string, error) {
	return func(ctx context.Context, provider types.NamespacedName, repository string, secret map[string][]byte, proxy *url.URL) (string, error) {
		login, err := logins.GitHubApp(ctx, repository, secret, proxy, source.Key{Kind: notificationv1beta3.ProviderKind, NamespacedName: provider})
		if err != nil {
			return "", err
		}
		if login.Password == "" {
			return "", errors.New("the login has no token")
		}
		return login.Password, nil
	}
}
