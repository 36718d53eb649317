package release

import (
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
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

// Memory bounds what revisions, values and rendered charts take of this process together. Each of them has bounds, and a release
// that waits for its objects keeps its own for as long as its timeout says. Nil has no bound. It is safe for concurrent use.
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
	// whole is what all shares of the same reconcile hold; the memory's lock guards it.
	whole *int
}

// For returns a share without anything in it, for a HelmRelease of a namespace.
func (m *Memory) For(namespace string) *Share {
	if m == nil {
		return nil
	}
	return &Share{memory: m, namespace: namespace, whole: new(int)}
}

// Beside returns a share of the same reconcile, for what is kept beside what s holds.
func (s *Share) Beside() *Share {
	if s == nil {
		return nil
	}
	return &Share{memory: s.memory, namespace: s.namespace, whole: s.whole}
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
	if own > m.most-all && m.all > *s.whole {
		return fmt.Errorf("%w: it takes %d MiB, and large HelmReleases have %d MiB together, of which those of namespace %s may have as much as they leave to others",
			ErrNoRoom, bytes>>20, m.most>>20, s.namespace)
	}
	m.of[s.namespace], m.all, s.held = own, all, bytes
	*s.whole += more
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
	*s.whole -= s.held
	if m.of[s.namespace] -= s.held; m.of[s.namespace] == 0 {
		delete(m.of, s.namespace)
	}
	s.held = 0
}

// need is what a rendering takes for which there was no room.
type need struct {
	// of tells what was rendered.
	of    string
	bytes int
}

// room makes sure that there is room for manifests that were rendered. What they need, if there is none, is remembered: it is
// asked for before they are rendered again.
func (n *run) room(text, nodes int) error {
	bytes := Bytes(text, nodes)
	err := n.rendered.Take(bytes)
	if n.aside {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.needed, n.obj.UID)
	if err != nil {
		if n.needed == nil {
			n.needed = map[types.UID]need{}
		}
		n.needed[n.obj.UID] = need{of: n.attempted(), bytes: bytes}
	}
	return err
}

// needs is what the rendering that comes next needs at least, as far as that is known.
func (n *run) needs() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if last := n.needed[n.obj.UID]; last.of == n.attempted() {
		return last.bytes
	}
	return 0
}

// attempted tells one rendering from another.
func (n *run) attempted() string {
	s := &n.obj.Status
	return fmt.Sprint(s.LastAttemptedGeneration, " ", s.LastAttemptedRevision, " ", s.LastAttemptedConfigDigest)
}
