package hint

import (
	"context"
	"maps"
	"slices"
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
	// Had is the revision that the status of a source has, which is written after Found is
	// called; empty if it has none. It does not wait.
	Had func(Source) string
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
	// revisions that the sources had last, and those that were not told of yet.
	revisions, waiting map[Source]string
	// heard are the last hints of a repository.
	heard map[string]heard
}

// heard is when the last hint of a repository came, and when the last of each commit did.
type heard struct {
	last    time.Time
	commits map[string]time.Time
}

// NewPolled passes nothing on before Start.
func NewPolled(o PolledOptions) *Polled {
	return &Polled{o: o, wake: make(chan struct{}, 1), revisions: map[Source]string{}, waiting: map[Source]string{}, heard: map[string]heard{}}
}

// Found takes the revision that a source has. The first one that this process finds is
// compared with what the status says of the process before; a source that had none is new to
// those below as well. It does not wait.
func (p *Polled) Found(s Source, revision string) {
	p.mu.Lock()
	before, known := p.revisions[s]
	p.mu.Unlock()
	if !known {
		before = p.o.Had(s)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.revisions) >= mostPolled {
		clear(p.revisions)
	}
	p.revisions[s] = revision
	if before == "" || before == revision {
		return
	}
	p.waiting[s] = revision
	p.look()
}

// look has somebody look at what waits.
func (p *Polled) look() {
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
		p.note(h.Repository, h.Revision)
	}
	if len(p.waiting) > 0 && len(hints) > 0 {
		p.look()
	}
}

// note remembers that a repository was told of, and with which commit. The lock is held.
func (p *Polled) note(repository, commit string) {
	if len(p.heard) >= mostPolled {
		clear(p.heard)
	}
	h, now := p.heard[repository], p.o.Now()
	maps.DeleteFunc(h.commits, func(_ string, at time.Time) bool { return now.Sub(at) >= heardFor })
	h.last = now
	if commit != "" && len(h.commits) < Most {
		if h.commits == nil {
			h.commits = map[string]time.Time{}
		}
		h.commits[commit] = now
	}
	p.heard[repository] = h
}

// NeedLeaderElection is false: who does not lead has nothing to pass on.
func (p *Polled) NeedLeaderElection() bool { return false }

// Start passes on until the context ends.
func (p *Polled) Start(ctx context.Context) error {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-p.wake:
			timer.Reset(polledMoment)
			select {
			case <-ctx.Done():
				return nil
			case <-timer.C:
			}
		}
		told, wait := p.news(ctx)
		if len(told) > 0 {
			p.o.Publish(ctx, told)
		}
		timer.Reset(wait)
	}
}

// news are the repositories that have something new of which nobody else told, and when to
// look again: a hint of a repository may have brought another commit than the one that waits,
// or none at all.
func (p *Polled) news(ctx context.Context) (told []Told, wait time.Duration) {
	p.mu.Lock()
	waiting := p.waiting
	p.waiting = map[Source]string{}
	p.mu.Unlock()
	wait = idle
	if !p.o.Leads() {
		return nil, wait
	}
	for s, revision := range waiting {
		t := Told{URL: p.o.URL(ctx, s), Revision: commitOf(revision)}
		repository := Repository(t.URL)
		if repository == "" || slices.ContainsFunc(told, func(o Told) bool { return Repository(o.URL) == repository && o.Revision == t.Revision }) {
			continue
		}
		p.mu.Lock()
		h := p.heard[repository]
		_, named := h.commits[t.Revision]
		left := heardFor - p.o.Now().Sub(h.last)
		_, newer := p.waiting[s]
		if left > 0 && !named && !newer {
			p.waiting[s] = revision
		}
		p.mu.Unlock()
		switch {
		case left <= 0:
			told = append(told, t)
		case !named:
			wait = min(wait, left)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range told {
		p.note(Repository(t.URL), t.Revision)
	}
	return told, wait
}

// commitOf is the commit of a revision of Git; empty if it is none.
func commitOf(revision string) string {
	_, commit, ok := strings.Cut(revision, "sha1:")
	if !ok || len(commit) > mostRevision || !isWord(commit) {
		return ""
	}
	return commit
}
