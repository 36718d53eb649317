package fleetsim

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Faults of one cluster. The zero value has none.
type Faults struct {
	// Latency is added to every answer, Jitter times a random number between 0
	// and 1 besides.
	Latency time.Duration `json:"latency,omitempty"`
	Jitter  time.Duration `json:"jitter,omitempty"`
	// SlowList is added to the answers of lists.
	SlowList time.Duration `json:"slowList,omitempty"`
	// BlackHole accepts connections and never sends a byte, also on those that
	// are open.
	BlackHole bool `json:"blackHole,omitempty"`
	// Reset ends every connection with a TCP reset.
	Reset bool `json:"reset,omitempty"`
	// WrongCA answers with a certificate that nobody trusts, to new connections;
	// those that are open are closed.
	WrongCA bool `json:"wrongCA,omitempty"`
	// Hang sends the head of every answer and half of its body, and then nothing.
	Hang bool `json:"hang,omitempty"`
	// DeadWebhook lets every write wait this long, as for an admission webhook that does
	// not answer, and refuses it then.
	DeadWebhook time.Duration `json:"deadWebhook,omitempty"`
	// Throttle answers this part of all requests with 429 and RetryAfter.
	Throttle   float64       `json:"throttle,omitempty"`
	RetryAfter time.Duration `json:"retryAfter,omitempty"`
	// Lapse voids every credential this long after it was issued.
	Lapse time.Duration `json:"lapse,omitempty"`
	// Skew is how far the cluster's clock is ahead.
	Skew time.Duration `json:"skew,omitempty"`
}

// SetFaults replaces the cluster's faults, at once.
func (c *Cluster) SetFaults(f Faults) {
	c.faults.Store(&f)
	c.network.set(f.BlackHole, f.Reset || f.WrongCA)
}

// Faults that the cluster has now.
func (c *Cluster) Faults() Faults { return c.currentFaults() }

// Share of a fleet that gets faults.
type Share struct {
	// Part of all clusters, from 0 to 1.
	Part   float64 `json:"part"`
	Faults Faults  `json:"faults"`
}

// Plan says which of the named clusters get which faults. The same seed and names
// make the same plan, in whatever order the names come. A cluster gets the faults
// of one share at most.
func Plan(seed uint64, names []string, shares ...Share) map[string]Faults {
	names = slices.Clone(names)
	slices.SortFunc(names, strings.Compare)
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	random := rand.New(rand.NewChaCha8(key))
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	plan := map[string]Faults{}
	total := float64(len(names))
	for _, s := range shares {
		n := min(int(s.Part*total+0.5), len(names))
		for _, name := range names[:n] {
			plan[name] = s.Faults
		}
		names = names[n:]
	}
	return plan
}
