package source

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fluxcd/pkg/cache"

	"github.com/cascade-gitops/cascade/syncer/keep"
)

// mostInLine are the tokens that one login takes: one for the cloud, and one for a service
// of it.
const mostInLine = 4

// lines have tokens, by the server and as whom it is asked. The cache of the library is
// locked while it asks, by a lock that knows no context, so each line has one of its own,
// and is entered by one caller at a time: a server that does not answer holds those who
// need it, no longer than they have time.
type lines struct {
	most    int
	longest time.Duration

	mu sync.Mutex
	by keep.Recent[string, *line]
}

type line struct {
	// turn has one place, of who uses the tokens.
	turn   chan struct{}
	tokens *cache.TokenCache
}

// of returns a line, which is forgotten if it was not used for longest.
func (l *lines) of(key string) (*line, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.by.Get(key); ok {
		return known, nil
	}
	tokens, err := cache.NewTokenCache(min(l.most, mostInLine), cache.WithMaxDuration(l.longest))
	if err != nil {
		return nil, fmt.Errorf("cannot create token cache: %w", err)
	}
	made := &line{make(chan struct{}, 1), tokens}
	l.by.Add(key, made, 1, l.most)
	return made, nil
}

// inLine calls get with the tokens of a line once it is the caller's turn.
func inLine[T any](ctx context.Context, l *lines, key string, get func(*cache.TokenCache) (T, error)) (T, error) {
	var none T
	line, err := l.of(key)
	if err != nil {
		return none, err
	}
	select {
	case line.turn <- struct{}{}:
	case <-ctx.Done():
		return none, fmt.Errorf("others wait for the server: %w", ctx.Err())
	}
	defer func() { <-line.turn }()
	return get(line.tokens)
}
