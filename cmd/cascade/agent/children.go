package agent

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
)

// children is how children are seeded and observed.
type children struct {
	image    string
	interval time.Duration
	// changing bounds the clusters that Rollouts change at the same time.
	changing int
}

func (c *children) bind(f *pflag.FlagSet) {
	f.StringVar(&c.image, "agent-image", cmp.Or(os.Getenv("CASCADE_IMAGE"), "cascade"), "image of agents that are installed in children")
	f.DurationVar(&c.interval, "observe-interval", 45*time.Second,
		"time between two questions to a child that is ready: whether it is there, and what its agent reports; a child whose agent's heartbeat can be watched is not asked")
	f.IntVar(&c.changing, "max-changing", 0,
		"clusters of the tier that may change at the same time over all its Rollouts, so that what they pull overloads no registry; 0 has no bound")
}

func (c *children) check() error {
	if c.changing < 0 {
		return fmt.Errorf("cannot use --max-changing=%d: it must be 0, for no bound, or more", c.changing)
	}
	return nil
}
