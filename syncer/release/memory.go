package release

import (
	"errors"
	"fmt"
	"sync"
)

const (
	// mostMemory is what large HelmReleases may have together.
	mostMemory = 384 << 20
	// smallMemory is not counted, so that most HelmReleases never wait for others. There are as many as are reconciled,
	// those included that wait for their objects.
	smallMemory = 1 << 20
	// nodeBytes is what a value takes once it is read. A map of one entry is three of them, and 340 bytes.
	nodeBytes = 120
)

// ErrNoRoom is wrapped by the errors of Take.
var ErrNoRoom = errors.New("there is no room for it in memory at the moment")

// Memory bounds what revisions and values take of this process together. Each of them has bounds, and a release that waits for
// its objects keeps its own for as long as its timeout says. Nil has no bound. It is safe for concurrent use.
type Memory struct {
	mu        sync.Mutex
	most, all int
	// of are the parts of namespaces.
	of map[string]int
}

// NewMemory returns the one that all HelmReleases of a process share.
func NewMemory() *Memory { return &Memory{most: mostMemory, of: map[string]int{}} }

// Share is what one reconcile of a HelmRelease has of a Memory. Nil has no bound.
type Share struct {
	memory    *Memory
	namespace string
	held      int
}

// For returns a share without anything in it, for a HelmRelease of a namespace.
func (m *Memory) For(namespace string) *Share {
	if m == nil {
		return nil
	}
	return &Share{memory: m, namespace: namespace}
}

// Bytes is about what a text takes with the values that are made of it.
func Bytes(text, nodes int) int { return text + nodes*nodeBytes }

// Take makes sure that there is room for so much before it is read. A share holds the most that was read at once: what was
// read before is garbage by then, or a copy. A namespace may have as much as it leaves to others, and a HelmRelease that is
// alone whatever it needs.
func (s *Share) Take(bytes int) error {
	if s == nil || bytes <= smallMemory {
		return nil
	}
	m := s.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	more := bytes - s.held
	if more <= 0 {
		return nil
	}
	own, all := m.of[s.namespace]+more, m.all+more
	if own > m.most-all && all > bytes {
		return fmt.Errorf("%w: it takes %d MiB, and large HelmReleases have %d MiB together, of which those of namespace %s may have as much as they leave to others",
			ErrNoRoom, bytes>>20, m.most>>20, s.namespace)
	}
	m.of[s.namespace], m.all, s.held = own, all, bytes
	return nil
}

// GiveBack is called when nothing is left of what was read.
func (s *Share) GiveBack() {
	if s == nil {
		return
	}
	m := s.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all -= s.held
	if m.of[s.namespace] -= s.held; m.of[s.namespace] == 0 {
		delete(m.of, s.namespace)
	}
	s.held = 0
}
