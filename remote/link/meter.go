package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/park"
)

// BudgetError: the child used up the time that pushes to it may take. The call was not
// made.
type BudgetError struct{ Wait time.Duration }

func (e *BudgetError) Error() string {
	return fmt.Sprintf("the child takes long to answer and used up the time that it has in a minute, the push goes on in %s", e.Wait.Round(time.Second))
}

// meter counts the time of the calls of pushes to one child. It is safe for concurrent
// use; its lock is not held over a call.
type meter struct {
	now  func() time.Time
	pace *pace

	mu     sync.Mutex // guards what follows
	budget plan.Budget
	took   time.Duration
}

// wait is how long no call may be made.
func (m *meter) wait() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.budget.Wait(m.now())
}

func (m *meter) spend(took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.took += took
	m.budget.Spend(took, m.now())
}

// pace is how soon children answer, all together: where that takes long, it is this
// process, or its network, that is busy. The zero value is ready for use, and it is safe for
// concurrent use.
type pace struct {
	mu   sync.Mutex // guards what follows
	mean time.Duration
}

const (
	// lateCall and lateTimes are how long, and how many times as long as usual, a call
	// takes to be late. lateOf is over how many calls it is usual. While a thousand children
	// are seeded by two processors a call takes a third of a second, and one in thousands
	// eight times that: who takes these for late begins with more children than there is
	// processor time and memory for.
	lateCall  = time.Second
	lateTimes = 20
	lateOf    = 64
)

// answered takes note of a call that was answered.
func (p *pace) answered(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mean += (took - p.mean) / lateOf
}

// late is after how long a call has no answer that should have come.
func (p *pace) late() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(lateCall, lateTimes*p.mean)
}

// over returns a client that counts the time of its calls, the reading of answers
// included, and makes none when the time is used up. The reconcile of a call that is late
// is moved aside.
func (m *meter) over(c *http.Client) *http.Client {
	metered := *c
	metered.Transport = &meteredTransport{meter: m, next: c.Transport}
	return &metered
}

type meteredTransport struct {
	meter *meter
	next  http.RoundTripper
}

func (t *meteredTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if wait := t.meter.wait(); wait > 0 {
		return nil, &BudgetError{Wait: wait}
	}
	begun := t.meter.now()
	answered := park.Late(r.Context(), t.meter.pace.late())
	response, err := t.next.RoundTrip(r)
	if err != nil {
		answered()
		t.meter.spend(t.meter.now().Sub(begun))
		return nil, err
	}
	// Whoever makes the caller wait has it wait on his own time.
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 {
		t.meter.spend(min(time.Duration(min(seconds, 3600))*time.Second, callTimeout))
	}
	response.Body = &meteredBody{ReadCloser: response.Body, end: sync.OnceFunc(func() {
		answered()
		took := t.meter.now().Sub(begun)
		t.meter.pace.answered(took)
		t.meter.spend(took)
	})}
	return response, nil
}

// CloseIdleConnections of the transport below.
func (t *meteredTransport) CloseIdleConnections() {
	if next, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		next.CloseIdleConnections()
	}
}

// meteredBody ends a call when it is read to its end, or closed.
type meteredBody struct {
	io.ReadCloser
	end func()
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}

func (b *meteredBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// Wait is how long nothing can be pushed, because the child used up its time.
func (s *Session) Wait() time.Duration { return s.link.meter.wait() }

// Took is how long the calls of this session took, but for those that Begin and a probe
// make.
func (s *Session) Took() time.Duration {
	m := s.link.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.took - s.before
}

// Silent tells the breaker of a push that got no answer. The next probe is one of a child
// that failed, and asks who it is again.
func (s *Session) Silent() { s.link.failed() }

// Lister connects with the credentials that the kubeconfig has now, to list what the
// parent's own account may not. It leaves those that the link uses alone, whether the
// kubeconfig's are good or not.
func (s *Session) Lister(ctx context.Context) (*apply.Cluster, error) {
	config, err := s.request.Read(ctx)
	if err != nil {
		return nil, err
	}
	if lapses := capibridge.CredentialOf(config).ExpiresAt; !lapses.IsZero() && !s.link.pool.now().Before(lapses) {
		return nil, reason.Because(v1alpha1.ReasonUnauthorized, errors.New("the kubeconfig has lapsed"))
	}
	as, err := calls(config, s.link.pool.Addresses, s.link.mayWrite)
	if err != nil {
		return nil, err
	}
	uid, err := s.link.uid(ctx, as)
	if err != nil {
		return nil, err
	}
	if uid != s.request.Recorded {
		return nil, reason.Because(v1alpha1.ReasonIdentityChanged, &IdentityError{Found: uid, Recorded: s.request.Recorded})
	}
	return s.link.cluster(as)
}

// uid reads who answers, on the time of the child.
func (l *Link) uid(ctx context.Context, as *caller) (string, error) {
	metered := *as
	metered.http = l.meter.over(as.http)
	return kubeSystemUID(ctx, &metered)
}
