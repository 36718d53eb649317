package agent

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/cascade-gitops/cascade/syncer/wake"
)

// pauses are between two looks at an object, and before the end.
type pauses struct {
	jitterPercentage   uint8
	minRetry, maxRetry time.Duration
	shutdown           time.Duration
}

func (p *pauses) bind(f *pflag.FlagSet) {
	f.Uint8Var(&p.jitterPercentage, "interval-jitter-percentage", 5, "percentage by which spec.interval is made shorter or longer, by chance; 0 is exact")
	f.DurationVar(&p.minRetry, "min-retry-delay", wake.MinRetry, "first pause after an error of the API server; each further one is twice as long")
	f.DurationVar(&p.maxRetry, "max-retry-delay", wake.MaxRetry, "longest pause after an error of the API server")
	f.DurationVar(&p.shutdown, "graceful-shutdown-timeout", 30*time.Second,
		"time that reconciles have to end when the agent is to; Kubernetes waits for terminationGracePeriodSeconds of its pod only")
}

func (p *pauses) check() error {
	switch {
	case p.jitterPercentage > 99:
		return fmt.Errorf("cannot use --interval-jitter-percentage %d: it must be less than 100", p.jitterPercentage)
	case p.minRetry <= 0 || p.maxRetry < p.minRetry:
		return fmt.Errorf("cannot use --min-retry-delay %s with --max-retry-delay %s: the first must be positive, and not longer than the second", p.minRetry, p.maxRetry)
	case p.shutdown < 0:
		return fmt.Errorf("cannot use --graceful-shutdown-timeout %s: it must not be negative", p.shutdown)
	}
	return nil
}

func (p *pauses) retries() wake.Retries { return wake.Retries{Min: p.minRetry, Max: p.maxRetry} }

func (p *pauses) jitter(random func() float64) wake.Jitter {
	return wake.Spread(random, float64(p.jitterPercentage)/100)
}
