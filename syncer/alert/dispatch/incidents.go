package dispatch

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// mostClosed bounds how many incidents are known to be closed. If there are more, none is known to
// be: each is closed once more, which changes nothing.
const mostClosed = 10_000

// incidents are those that are known to be closed. After a restart only the service knows which are
// open. They are safe for concurrent use.
type incidents struct {
	mu     sync.Mutex // guards closed
	closed map[incident]struct{}
}

// incident is one at a Provider.
type incident struct {
	provider types.NamespacedName
	key      string
}

func (c *incidents) isClosed(provider types.NamespacedName, key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, closed := c.closed[incident{provider, key}]
	return closed
}

// note notes what becomes of an incident by an item that was queued.
func (c *incidents) note(i *item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.closed, incident{i.message.Provider, i.opens})
	for _, key := range i.message.Over {
		if c.closed == nil || len(c.closed) >= mostClosed {
			c.closed = map[incident]struct{}{}
		}
		c.closed[incident{i.message.Provider, key}] = struct{}{}
	}
}

// forget notes that an item did not arrive: what it was to close may be open.
func (c *incidents) forget(i *item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range i.message.Over {
		delete(c.closed, incident{i.message.Provider, key})
	}
}
