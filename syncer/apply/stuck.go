package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// stuckAfter is how long a request takes that is given up by the API server because of
// something that it waits for. A refusal comes at once.
const stuckAfter = 2 * time.Second

// StuckError: the API server answered, after a while, that it did not get done with a
// request. Mostly it waited for an admission webhook.
type StuckError struct {
	Took time.Duration
	Err  error
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("the API server gave up after %s, an admission webhook or what is behind it may not answer: %s", e.Took, e.Err)
}
func (e *StuckError) Unwrap() error { return e.Err }

// gaveUp reports whether the API server says that it did not get done with a request, or
// drops it: at its own deadline it does the one or the other.
func gaveUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsServiceUnavailable(err)
}

// kindSet is a set of kinds. It is safe for concurrent use. The zero value is empty.
type kindSet struct {
	mu    sync.Mutex // guards kinds
	kinds map[schema.GroupKind]bool
}

func (s *kindSet) has(gk schema.GroupKind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kinds[gk]
}

func (s *kindSet) add(gk schema.GroupKind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kinds == nil {
		s.kinds = map[schema.GroupKind]bool{}
	}
	s.kinds[gk] = true
}

// Unanswered reports whether a request failed without the API server's word.
func Unanswered(err error) bool {
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF)
}
