package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"net/url"
	"runtime"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientmetrics "k8s.io/client-go/tools/metrics"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/cascade-gitops/cascade/remote/endpoint"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/scrape"
)

// Who may read metrics: modes of --metrics-auth.
const (
	metricsAuthNone       = "none"
	metricsAuthKubernetes = "kubernetes"
)

// serving is what the agent serves about itself.
type serving struct {
	metricsAddr  string
	metricsAuth  string
	metricsCerts string
	healthAddr   string
	profiling    bool
	// resourceInfo are the families of information about Flux's objects.
	resourceInfo []string
}

func (s *serving) bind(f *pflag.FlagSet) {
	f.StringVar(&s.metricsAddr, "metrics-addr", ":8080", "address that Prometheus scrapes, /metrics; 0 serves none")
	f.StringVar(&s.metricsAuth, "metrics-auth", metricsAuthNone, "who may read metrics and profiles: none asks nobody and serves plain HTTP, as Flux does; "+
		"kubernetes serves HTTPS to bearer tokens of those who may get the non-resource URL /metrics")
	f.StringVar(&s.metricsCerts, "metrics-cert-dir", "", "directory with tls.crt and tls.key for --metrics-auth=kubernetes, which may come later and change; "+
		"empty makes a certificate that nobody signed")
	f.StringVar(&s.healthAddr, "health-addr", ":9440", "address of /healthz and /readyz")
	f.StringSliceVar(&s.resourceInfo, "resource-info", []string{metrics.Gotk},
		"metrics with a series for each of Flux's objects, for published dashboards: gotk is gotk_resource_info of flux2-monitoring-example, flux is flux_resource_info of the Flux Operator; empty has none")
	f.BoolVar(&s.profiling, "profiling", false, "serve Go's profiles beside the metrics, /debug/pprof")
}

func (s *serving) check() error {
	switch {
	case s.metricsAuth != metricsAuthNone && s.metricsAuth != metricsAuthKubernetes:
		return fmt.Errorf("cannot use --metrics-auth %q: use %s or %s", s.metricsAuth, metricsAuthNone, metricsAuthKubernetes)
	case s.metricsCerts != "" && s.metricsAuth != metricsAuthKubernetes:
		return fmt.Errorf("cannot use --metrics-cert-dir without --metrics-auth=%s: metrics are served without TLS", metricsAuthKubernetes)
	}
	for _, family := range s.resourceInfo {
		if family != metrics.Gotk && family != metrics.Flux {
			return fmt.Errorf("cannot use --resource-info %q: use %s or %s", family, metrics.Gotk, metrics.Flux)
		}
	}
	return nil
}

// tell registers what is told of the agent itself, which competes for a lease, and of Flux's
// objects of these kinds that selects passes. Of several replicas the leader tells of objects.
func (s *serving) tell(version, lease string, registry prometheus.Registerer, mgr ctrl.Manager, kinds []string, selects func(client.Object) bool) error {
	boundHosts(mgr.GetConfig().Host)
	leads := func() bool {
		select {
		case <-mgr.Elected():
			return true
		default:
			return false
		}
	}
	info := metrics.NewInfo(mgr.GetClient(), kinds, s.resourceInfo, selects, leads)
	if err := errors.Join(registry.Register(built(version)), registry.Register(leading(lease, leads)), registry.Register(info)); err != nil {
		return fmt.Errorf("cannot register metrics: %w", err)
	}
	return nil
}

// built tells which program this is.
func built(version string) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cascade_build_info", Help: "Which program the agent is: 1, with its version.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	g.Set(1)
	return g
}

// leading tells whether this process leads. Agents that share a tier by labels have leases of
// their own, so that each lease has its leader.
func leading(lease string, leads func() bool) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "cascade_leads", Help: "1 if this process holds the lease, so that it does the work of the tier; 0 if it waits for it.",
		ConstLabels: prometheus.Labels{"lease": lease},
	}, func() float64 {
		if leads() {
			return 1
		}
		return 0
	})
}

// otherHost stands for each API server but the agent's own.
const otherHost = "other"

// hosts counts the requests of client-go with two hosts: clusters come and go, and each would
// be a label for as long as the agent runs.
type hosts struct {
	next clientmetrics.ResultMetric
	own  string
}

// Increment implements clientmetrics.ResultMetric.
func (h *hosts) Increment(ctx context.Context, code, method, host string) {
	if host != h.own {
		host = otherHost
	}
	h.next.Increment(ctx, code, method, host)
}

// boundHosts is called once, before the first request is counted. The library has a variable
// of the process for it.
func boundHosts(own string) {
	if u, err := url.Parse(own); err == nil && u.Host != "" {
		own = u.Host
	}
	clientmetrics.RequestResult = &hosts{next: clientmetrics.RequestResult, own: own}
}

// build returns what is served as metrics.
func (s *serving) build(now func() time.Time, log logr.Logger) metricsserver.Options {
	o := metricsserver.Options{BindAddress: s.metricsAddr, ExtraHandlers: s.profiles()}
	if s.metricsAuth != metricsAuthKubernetes {
		return o
	}
	// A token must not be sent in the clear.
	o.SecureServing = true
	shown := &certificate{dir: s.metricsCerts, now: now, log: log.WithName("metrics")}
	o.TLSOpts = []func(*tls.Config){func(c *tls.Config) {
		c.MinVersion = tls.VersionTLS12
		c.GetCertificate = shown.get
		c.NextProtos = []string{"http/1.1"} // streams of HTTP/2 cost a client nothing: CVE-2023-44487
	}}
	o.FilterProvider = func(config *rest.Config, client *http.Client) (metricsserver.Filter, error) {
		clients, err := kubernetes.NewForConfigAndClient(config, client)
		if err != nil {
			return nil, fmt.Errorf("cannot make client: %w", err)
		}
		filter := scrape.New(clients, now, endpoint.ProxyPath)
		return func(log logr.Logger, next http.Handler) (http.Handler, error) { return filter.Handler(log, next), nil }, nil
	}
	return o
}

// profiles are Go's, beside the metrics, where Flux's controllers have them. Who
// reaches the port can read them, so they are there only if asked for.
func (s *serving) profiles() map[string]http.Handler {
	if !s.profiling {
		return nil
	}
	return map[string]http.Handler{
		"/debug/pprof/":        http.HandlerFunc(pprof.Index),
		"/debug/pprof/cmdline": http.HandlerFunc(pprof.Cmdline),
		"/debug/pprof/profile": http.HandlerFunc(pprof.Profile),
		"/debug/pprof/symbol":  http.HandlerFunc(pprof.Symbol),
		"/debug/pprof/trace":   http.HandlerFunc(pprof.Trace),
	}
}
