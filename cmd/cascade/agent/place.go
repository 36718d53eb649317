package agent

import (
	"cmp"
	"os"

	"github.com/spf13/pflag"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// place is where the agent itself lives, and where Flux's controllers do.
type place struct{ namespace, flux string }

func (p *place) bind(f *pflag.FlagSet) {
	f.StringVar(&p.namespace, "namespace", cmp.Or(os.Getenv("POD_NAMESPACE"), v1alpha1.AgentNamespace),
		"namespace of the agent itself, for its lease and report")
	f.StringVar(&p.flux, "flux-namespace", FluxNamespace,
		"namespace of Flux's controllers, whose leases keep the agent waiting")
}

func (*place) check() error { return nil }
