package agent

import (
	"cmp"
	"os"
	"time"

	"github.com/spf13/pflag"
)

// children is how children are seeded and observed.
type children struct {
	image    string
	interval time.Duration
}

func (c *children) bind(f *pflag.FlagSet) {
	f.StringVar(&c.image, "agent-image", cmp.Or(os.Getenv("CASCADE_IMAGE"), "cascade"), "image of agents that are installed in children")
	f.DurationVar(&c.interval, "observe-interval", 45*time.Second,
		"time between two questions to a child that is ready: whether it is there, and what its agent reports; a child whose agent's heartbeat can be watched is not asked")
}

func (*children) check() error { return nil }
