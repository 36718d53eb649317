package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/kustomization"
)

// leastSweep is the shortest time after which all objects are verified again.
const leastSweep = 5 * time.Minute

// kustomize is how Kustomizations are built and kept.
type kustomize struct {
	noRemoteBases bool
	drift         string
	sweep         time.Duration
}

func (k *kustomize) bind(f *pflag.FlagSet) {
	f.BoolVar(&k.noRemoteBases, "no-remote-bases", true,
		"refuse references of kustomization files to other hosts and repositories, which cannot be allowed yet")
	f.StringVar(&k.drift, "drift", string(kustomization.DriftCorrect),
		"what to do about objects that somebody else changed: correct or report; the annotation "+v1alpha1.DriftAnnotation+" overrides it")
	f.DurationVar(&k.sweep, "sweep-interval", time.Hour,
		"time after which all objects are verified one by one, besides by watching; 5m at least")
}

func (k *kustomize) check() error {
	switch mode := kustomization.DriftMode(k.drift); {
	case mode != kustomization.DriftCorrect && mode != kustomization.DriftReport:
		return fmt.Errorf("cannot use --drift %q: use correct or report", k.drift)
	case k.sweep < leastSweep:
		return fmt.Errorf("cannot use --sweep-interval %s: 5m is the least", k.sweep)
	case !k.noRemoteBases:
		return errors.New("cannot use --no-remote-bases=false: " +
			"references to other hosts are not followed; copy the files into the source, or use another source")
	}
	return nil
}
