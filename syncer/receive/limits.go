package receive

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// mostBody bounds a body: GitHub's largest events are cut long before.
	mostBody = 1 << 20
	// mostReading requests are read and verified at a time, mostOfRemote of them from one
	// remote; so many bodies are in memory. They wait for a place for readWait, and have
	// bodyTime to send what they have.
	mostReading  = 32
	mostOfRemote = 16
	readWait     = 2 * time.Second
	bodyTime     = 5 * time.Second
	// mostActing requests that were verified are carried out at a time, each within actTime.
	mostActing = 64
	actTime    = 20 * time.Second
	// A Receiver accepts receiverRate requests a second, after receiverBurst at once.
	receiverRate  = 10
	receiverBurst = 100
	// One remote may send so many requests to one Receiver that are refused.
	forgedRate  = 2
	forgedBurst = 20
	// mostRemembered bounds each of the tables of limits.
	mostRemembered = 1024
)

// budgets are rates by key, of which a bounded number is remembered. Those of whom nothing
// was seen for a while go first.
type budgets[K comparable] struct {
	rate  rate.Limit
	burst int

	mu sync.Mutex // guards of
	of map[K]*rate.Limiter
	// rest is for all that cannot be remembered.
	rest *rate.Limiter
}

func newBudgets[K comparable](r rate.Limit, burst int) *budgets[K] {
	return &budgets[K]{rate: r, burst: burst, of: map[K]*rate.Limiter{}, rest: rate.NewLimiter(r, burst)}
}

// left reports whether there is something left of a budget. It takes nothing.
func (b *budgets[K]) left(key K, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.of[key]; l != nil {
		return l.TokensAt(now) >= 1
	}
	return len(b.of) < mostRemembered || b.rest.TokensAt(now) >= 1
}

// take takes one from a budget, and reports whether it was there.
func (b *budgets[K]) take(key K, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.of[key]
	if l == nil {
		if len(b.of) >= mostRemembered {
			for other, o := range b.of {
				if o.TokensAt(now) >= float64(b.burst) {
					delete(b.of, other)
				}
			}
		}
		if len(b.of) >= mostRemembered {
			return b.rest.AllowN(now, 1)
		}
		l = rate.NewLimiter(b.rate, b.burst)
		b.of[key] = l
	}
	return l.AllowN(now, 1)
}

// sender is a remote at a Receiver.
type sender struct {
	receiver types.NamespacedName
	remote   netip.Addr
}

// remoteOf is who sends: an address, or the network of one of IPv6, of which everybody has
// many.
func remoteOf(address string) netip.Addr {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return netip.Addr{}
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return ip
}

// places are those of requests that are read, not all of which one remote has.
type places struct {
	all chan struct{}

	mu sync.Mutex // guards of
	of map[netip.Addr]int
}

func newPlaces() *places {
	return &places{all: make(chan struct{}, mostReading), of: map[netip.Addr]int{}}
}

// enter waits for a place for a while. leave frees it.
func (p *places) enter(ctx context.Context, remote netip.Addr) (leave func(), ok bool) {
	p.mu.Lock()
	if p.of[remote] >= mostOfRemote {
		p.mu.Unlock()
		return nil, false
	}
	p.of[remote]++
	p.mu.Unlock()
	gone := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.of[remote]--; p.of[remote] == 0 {
			delete(p.of, remote)
		}
	}
	timer := time.NewTimer(readWait)
	defer timer.Stop()
	select {
	case p.all <- struct{}{}:
		return func() { <-p.all; gone() }, true
	case <-timer.C:
	case <-ctx.Done():
	}
	gone()
	return nil, false
}
