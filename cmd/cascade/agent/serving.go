package agent

import (
	"net/http"
	"net/http/pprof"

	"github.com/spf13/pflag"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// serving is what the agent serves about itself.
type serving struct {
	metricsAddr string
	healthAddr  string
	profiling   bool
}

func (s *serving) bind(f *pflag.FlagSet) {
	f.StringVar(&s.metricsAddr, "metrics-addr", ":8080", "address that Prometheus scrapes, /metrics; 0 serves none")
	f.StringVar(&s.healthAddr, "health-addr", ":9440", "address of /healthz and /readyz")
	f.BoolVar(&s.profiling, "profiling", false, "serve Go's profiles beside the metrics, /debug/pprof")
}

func (*serving) check() error { return nil }

// build returns what is served as metrics.
func (s *serving) build() metricsserver.Options {
	return metricsserver.Options{BindAddress: s.metricsAddr, ExtraHandlers: s.profiles()}
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
