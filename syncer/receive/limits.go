package receive

import (
	"context"
	"crypto/sha256"
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
	// bodyTime to send what they have. mostOfNamespace is what Receivers of one namespace have
	// of a remote: it may be an Ingress, from which all requests come.
	mostReading     = 32
	mostOfRemote    = 16
	mostOfNamespace = 8
	readWait        = 2 * time.Second
	bodyTime        = 5 * time.Second
	// mostActing requests that were verified are carried out at a time, each within actTime,
	// and half of them for Receivers of one namespace. Who issued a token is asked within
	// askTime.
	mostActing = 64
	actTime    = 20 * time.Second
	askTime    = 20 * time.Second
	// A Receiver accepts receiverRate requests a second, after receiverBurst at once.
	receiverRate  = 10
	receiverBurst = 100
	// One remote may send so many requests to one Receiver that are refused. Where the path is no
	// secret, so many of one subject are whose claims are.
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

// visitor is who has a token of an issuer, by the digest of both, at a Receiver.
type visitor struct {
	receiver types.NamespacedName
	subject  [sha256.Size]byte
}

// visitorOf is of whom a token of an issuer with these claims is.
func visitorOf(receiver types.NamespacedName, issuer string, claims map[string]any) visitor {
	subject, _ := claims["sub"].(string)
	return visitor{receiver, sha256.Sum256([]byte(issuer + "\n" + subject))}
}

// neighbor is a remote at the Receivers of one namespace.
type neighbor struct {
	namespace string
	remote    netip.Addr
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

// places are those of requests that are under way, of which one key has a share at most. They
// are safe for concurrent use.
type places[K comparable] struct {
	all  chan struct{}
	most int // of one key

	mu sync.Mutex // guards of, and the users in it; never held over a wait
	of map[K]*share
}

// share is what one key has of the places.
type share struct {
	own   chan struct{}
	users int
}

func newPlaces[K comparable](all, most int) *places[K] {
	return &places[K]{all: make(chan struct{}, all), most: most, of: map[K]*share{}}
}

// enter waits for a place, for a while at most. leave frees it.
func (p *places[K]) enter(ctx context.Context, key K, most time.Duration) (leave func(), ok bool) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	of := p.join(key)
	// Who waits for the own share takes no place from others meanwhile.
	if !taken(ctx, of.own) {
		p.part(key, of)
		return nil, false
	}
	if !taken(ctx, p.all) {
		<-of.own
		p.part(key, of)
		return nil, false
	}
	return func() {
		<-p.all
		<-of.own
		p.part(key, of)
	}, true
}

func taken(ctx context.Context, place chan<- struct{}) bool {
	select {
	case place <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// join returns the share of a key, which is kept until all who joined part.
func (p *places[K]) join(key K) *share {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := p.of[key]
	if of == nil {
		of = &share{own: make(chan struct{}, p.most)}
		p.of[key] = of
	}
	of.users++
	return of
}

func (p *places[K]) part(key K, of *share) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of.users--; of.users == 0 {
		delete(p.of, key)
	}
}
