package agent

import (
	"cmp"
	"os"

	"github.com/spf13/pflag"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// place is where the agent itself lives.
type place struct{ namespace string }

func (p *place) bind(f *pflag.FlagSet) {
	f.StringVar(&p.namespace, "namespace", cmp.Or(os.Getenv("POD_NAMESPACE"), v1alpha1.AgentNamespace),
		"namespace of the agent itself, for its lease and report")
}

func (*place) check() error { return nil }
