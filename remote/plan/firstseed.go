package plan

import (
	"fmt"
	"time"
)

// FirstSeed are the facts on which it depends whether the agent of a child may create
// Clusters without approval, where the layer says that new children may. A child that was
// lost and is built again looks new from inside, and its tenants run.
type FirstSeed struct {
	// Replaces: a person said that the child takes the place of another one.
	Replaces bool
	// Made is when the Cluster was made in this tier, zero for a child that has none.
	Made time.Time
	// Settled is since when this tier creates Clusters without approval, zero if it does
	// not. What was there before that may have been restored from a backup.
	Settled time.Time
	// Remembered: an agent was pushed before to a cluster of this name, with the identity
	// Before. If it is this one, it was told then.
	Remembered bool
	Before     string
	// Identity of the child.
	Identity string
}

// MayCreate reports whether the agent of the child may create Clusters without approval,
// and why it may or may not. In doubt it may not: then a person decides, in the child.
func (f FirstSeed) MayCreate() (may bool, why string) {
	switch {
	case f.Replaces:
		return false, "its Cluster says that it takes the place of another one"
	case f.Made.IsZero():
		return false, "no Cluster stands for it"
	case f.Remembered && f.Before != f.Identity:
		return false, fmt.Sprintf("a cluster of this name was seeded before, with kube-system %s", f.Before)
	case f.Settled.IsZero():
		return false, "the first sync of this tier is not over"
	case !f.Made.After(f.Settled):
		return false, "its Cluster was there before the first sync of this tier was over"
	case f.Remembered:
		return false, "an agent was pushed to it before, and its record of the first sync is gone, with what that said of Clusters which were moved away"
	}
	return true, "its Cluster is new, and no cluster of this name was seeded before"
}
