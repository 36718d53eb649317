package fleetsim

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Write that a cluster was asked for. It counts also if it failed, was a dry
// run or changed nothing.
type Write struct {
	// Time by the fleet's clock.
	Time    time.Time `json:"time"`
	Cluster string    `json:"cluster"`
	User    string    `json:"user"`
	Agent   string    `json:"agent"`
	Verb    string    `json:"verb"`
	// Resource has the subresource behind it.
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Code of the answer.
	Code int `json:"code"`
	// DryRun and Changed: whether it was to change something, and whether it did.
	DryRun  bool `json:"dryRun,omitempty"`
	Changed bool `json:"changed,omitempty"`
}

// ledger counts the requests to one cluster.
type ledger struct {
	mu     sync.Mutex
	counts map[string]int
	writes []Write
}

func (l *ledger) count(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.counts == nil {
		l.counts = map[string]int{}
	}
	l.counts[key]++
}

func (l *ledger) record(w Write) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes = append(l.writes, w)
}

// Counts are the requests since the cluster was added or Reset, by verb and
// resource, "get configmaps", or path, "get /version". Requests that were
// refused count; the wrong credential adds "unauthorized", a full server
// "throttled".
func (c *Cluster) Counts() map[string]int {
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	return maps.Clone(c.ledger.counts)
}

// Writes since the cluster was added or Reset, in order. They are recorded only
// if Options.Record says so.
func (c *Cluster) Writes() []Write {
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	return slices.Clone(c.ledger.writes)
}

// Reset begins counting anew.
func (c *Cluster) Reset() {
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	c.ledger.counts, c.ledger.writes = nil, nil
}
