package hint

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// polledMoment is how long a new revision waits for a hint that may have brought it.
	polledMoment = time.Second
	// heardFor is how long a hint of a repository stands for the revisions that it brought.
	heardFor = 30 * time.Second
	// mostPolled bounds the sources, and the repositories, that are remembered.
	mostPolled = 10_000
)

// Source is one of the tier's own sources.
type Source struct {
	Kind string
	types.NamespacedName
}

// PolledOptions of NewPolled.
type PolledOptions struct {
	// URL of a source; empty if it has none that is passed on.
	URL func(context.Context, Source) string
	// Publish writes down what was found, for who passes it on.
	Publish func(context.Context, []Told)
	// Leads reports whether this process reconciles the tier's sources.
	Leads func() bool
	Now   func() time.Time
}

// Polled passes on what the tier's own sources found by looking, which nobody told of: those
// below need not look as often. It is safe for concurrent use.
type Polled struct {
	o    PolledOptions
	wake chan struct{}

	mu sync.Mutex // guards the rest; never held over a call
	// revisions that the sources had last, and those that nobody looked at.
	revisions, waiting map[Source]string
	// heard is when a hint of a repository came.
	heard map[string]time.Time
}

// NewPolled passes nothing on before Start.
func NewPolled(o PolledOptions) *Polled {
	return &Polled{o: o, wake: make(chan struct{}, 1), revisions: map[Source]string{}, waiting: map[Source]string{}, heard: map[string]time.Time{}}
}

// Found takes the revision that a source has. The first one is what there was before this
// process began. It does not wait.
func (p *Polled) Found(s Source, revision string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, known := p.revisions[s]
	if len(p.revisions) >= mostPolled {
		clear(p.revisions)
	}
	p.revisions[s] = revision
	if !known || before == revision {
		return
	}
	p.waiting[s] = revision
	select {
	case p.wake <- struct{}{}:
	default: // whoever looks takes all that waits
	}
}

// Heard takes hints that came by a Receiver or from the parent: these are passed on already.
func (p *Polled) Heard(hints []Hint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range hints {
		p.note(h.Repository)
	}
}

// note remembers that a repository was told of. The lock is held.
func (p *Polled) note(repository string) {
	if len(p.heard) >= mostPolled {
		clear(p.heard)
	}
	p.heard[repository] = p.o.Now()
}

// NeedLeaderElection is false: who does not lead has nothing to pass on.
func (p *Polled) NeedLeaderElection() bool { return false }

// Start passes on until the context ends.
func (p *Polled) Start(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}
		timer.Reset(polledMoment)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if told := p.news(ctx); len(told) > 0 {
			p.o.Publish(ctx, told)
		}
	}
}

// news are the repositories that have something new of which nobody else told.
func (p *Polled) news(ctx context.Context) []Told {
	p.mu.Lock()
	waiting := p.waiting
	p.waiting = map[Source]string{}
	p.mu.Unlock()
	if !p.o.Leads() {
		return nil
	}
	var told []Told
	for s, revision := range waiting {
		url := p.o.URL(ctx, s)
		repository := Repository(url)
		if repository == "" {
			continue
		}
		p.mu.Lock()
		fresh := p.o.Now().Sub(p.heard[repository]) >= heardFor
		if fresh {
			p.note(repository)
		}
		p.mu.Unlock()
		if fresh {
			told = append(told, Told{URL: url, Revision: commitOf(revision)})
		}
	}
	return told
}

// commitOf is the commit of a revision of Git; empty if it is none.
func commitOf(revision string) string {
	_, commit, ok := strings.Cut(revision, "sha1:")
	if !ok || len(commit) > mostRevision || !isWord(commit) {
		return ""
	}
	return commit
}
