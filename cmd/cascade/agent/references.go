package agent

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// references are rules about the objects that others depend on.
type references struct {
	noCrossNamespace bool
	requeue          time.Duration
}

func (r *references) bind(f *pflag.FlagSet) {
	f.BoolVar(&r.noCrossNamespace, "no-cross-namespace-refs", false, "refuse sources of other namespaces")
	f.DurationVar(&r.requeue, "requeue-dependency", 30*time.Second,
		"time after which a dependency or source is looked at again, should no event come before")
}

func (r *references) check() error {
	if r.requeue <= 0 {
		return fmt.Errorf("cannot use --requeue-dependency %s: it must be positive", r.requeue)
	}
	return nil
}
