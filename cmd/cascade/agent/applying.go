package agent

import (
	"fmt"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/syncer/apply"
)

// applying is how objects are applied.
type applying struct {
	overrideManagers []string
	concurrent       int
	stageKinds       string
}

func (a *applying) bind(f *pflag.FlagSet) {
	f.StringArrayVar(&a.overrideManagers, "override-manager", nil,
		"field manager whose fields are taken over from objects, besides kubectl's; may be given several times")
	f.IntVar(&a.concurrent, "concurrent-ssa", 4, "number of objects of one Kustomization that are applied at the same time")
	f.StringVar(&a.stageKinds, "custom-apply-stage-kinds", "", "kinds that are applied before the rest, as group/Kind,group/Kind")
}

func (a *applying) check() error {
	if a.concurrent < 1 {
		return fmt.Errorf("cannot use --concurrent-ssa %d: 1 is the least", a.concurrent)
	}
	return nil
}

// build connects to the agent's own cluster. fence is asked before each delete. The
// configuration has no timeout, which would end the watches as well: package answer bounds
// the other calls.
func (a *applying) build(config *rest.Config, scheme *runtime.Scheme, fence func() error) (*apply.Cluster, error) {
	local, err := apply.Connect(config, scheme)
	if err != nil {
		return nil, err
	}
	local.Override(a.overrideManagers)
	local.Fence(fence)
	local.Parallel(a.concurrent)
	return local, nil
}

// stages are the kinds that are applied before the rest.
func (a *applying) stages() (map[schema.GroupKind]struct{}, error) {
	kinds, err := ssautil.ParseGroupKindSet(a.stageKinds)
	if err != nil {
		return nil, fmt.Errorf("cannot use --custom-apply-stage-kinds: %w", err)
	}
	return kinds, nil
}
