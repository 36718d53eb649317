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

// SlowPush is for how long a child keeps the calls of a push that goes on beside the others.
const SlowPush = 7 * time.Second

// meter counts what the calls of pushes to one child take beyond what calls take now. It is
// safe for concurrent use; its lock is not held over a call.
type meter struct {
	now  func() time.Time
	pace *pace

	mu     sync.Mutex // guards what follows
	budget plan.Budget
	spent  spent
}

// spent is what calls were made, and for how long the child kept them.
type spent struct {
	calls int
	kept  time.Duration
}

// wait is how long no call may be made.
func (m *meter) wait() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.budget.Wait(m.now())
}

// called takes note of how long a call took.
func (m *meter) called(took time.Duration) { m.spend(1, m.pace.beyond(took)) }

// late is after how long a call that begins now takes its reconcile aside: when its answer
// should have come, or when the child has kept its callers for SlowPush.
func (m *meter) late() time.Duration {
	m.mu.Lock()
	owed := m.budget.Owed(m.now())
	m.mu.Unlock()
	return min(m.pace.late(), m.pace.own()+max(SlowPush-owed, 0))
}

// spend counts calls, and time for which the child kept its caller.
func (m *meter) spend(calls int, kept time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spent.calls += calls
	m.spent.kept += kept
	m.budget.Spend(kept, m.now())
}

// over returns a client that counts what its calls take, the reading of answers included, and
// makes none when the time of the child is used up. The reconcile of a call that is late is
// moved aside.
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
	answered := park.Late(r.Context(), t.meter.late())
	response, err := t.next.RoundTrip(r)
	if err != nil {
		answered()
		t.meter.called(t.meter.now().Sub(begun))
		return nil, err
	}
	// Whoever makes the caller wait has it wait on his own time.
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 {
		t.meter.spend(0, min(time.Duration(min(seconds, 3600))*time.Second, callTimeout))
	}
	response.Body = &meteredBody{ReadCloser: response.Body, end: sync.OnceFunc(func() {
		answered()
		took := t.meter.now().Sub(begun)
		t.meter.pace.answered(took)
		t.meter.called(took)
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

// Kept is for how long the child kept the calls of this session beyond what calls take now,
// but for those that Begin and a probe make. called: there were some.
func (s *Session) Kept() (kept time.Duration, called bool) {
	m := s.link.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spent.kept - s.before.kept, m.spent.calls > s.before.calls
}

// Silent tells the breaker of a push that got no answer. The next probe is one of a child
// that failed, and asks who it is again.
func (s *Session) Silent() { s.link.failed() }

// Lister connects with the credentials that the kubeconfig has now, to list what the
// parent's own account may not. It leaves those that the link uses alone, whether the
// kubeconfig's are good or not.
func (s *Session) Lister(ctx context.Context) (*apply.Cluster, error) {
	as := s.link.lent
	if as == nil || s.link.source != s.request.Source || s.link.lapsed() {
		config, err := s.link.kubeconfig(ctx, s.request)
		if err != nil {
			return nil, err
		}
		if lapses := capibridge.CredentialOf(config).ExpiresAt; !lapses.IsZero() && !s.link.pool.now().Before(lapses) {
			return nil, reason.Because(v1alpha1.ReasonUnauthorized, errors.New("the kubeconfig has lapsed"))
		}
		if as, err = calls(config, s.link.pool.Addresses, s.link.mayWrite); err != nil {
			return nil, err
		}
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
