package receive

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/time/rate"

	"github.com/cascade-gitops/cascade/syncer/answer"
)

const (
	// issuerTimeout bounds each request to an issuer.
	issuerTimeout = 5 * time.Second
	// mostIssuers are kept; mostAnswer bounds what one says.
	mostIssuers = 64
	mostAnswer  = 1 << 20
	// issuerRetry is how long an issuer is left alone after it failed, and after it was asked
	// issuerBurst times: anybody can send tokens that no key is known for.
	issuerRetry = 10 * time.Second
	issuerBurst = 6
)

// UnavailableError says that an issuer could not be asked.
type UnavailableError struct{ err error }

func (e *UnavailableError) Error() string { return "cannot ask the issuer: " + e.err.Error() }
func (e *UnavailableError) Unwrap() error { return e.err }

// Issuers verify tokens by the keys that their issuers publish. The keys are kept, and read
// again when a token is signed with another one. It is safe for concurrent use.
type Issuers struct {
	client *http.Client
	now    func() time.Time

	mu    sync.Mutex // guards known; never held over a call
	known map[string]*issuer
}

// issuer is one that was asked.
type issuer struct {
	// turn is held by the one who asks.
	turn     chan struct{}
	provider *oidc.Provider
	client   *http.Client
	retryAt  time.Time
	err      error
}

// NewIssuers asks issuers over a transport of its own, at these addresses only: a Receiver
// names them, and they name where their keys are. The proxy of the environment may be anywhere. Their certificates are verified by the
// roots of the system. No redirect is followed.
func NewIssuers(now func() time.Time, addresses answer.Addresses) *Issuers {
	transport := answer.Over(&http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: issuerTimeout, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 1, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	})
	addresses.Restrict(transport.Transport, true)
	return &Issuers{now: now, known: map[string]*issuer{}, client: &http.Client{
		Timeout:       issuerTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     boundedBody{transport},
	}}
}

// Claims implements Identities. An issuer that cannot be asked is an *UnavailableError.
func (i *Issuers) Claims(ctx context.Context, url, audience, token string) (map[string]any, error) {
	provider, err := i.of(ctx, url)
	if err != nil {
		return nil, &UnavailableError{err}
	}
	verified, err := provider.Verifier(&oidc.Config{ClientID: audience, Now: i.now}).Verify(ctx, token)
	if err != nil && strings.HasPrefix(err.Error(), keysAway) {
		return nil, &UnavailableError{err}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot verify token: %w", err)
	}
	var claims map[string]any
	if err := verified.Claims(&claims); err != nil {
		return nil, fmt.Errorf("cannot read claims: %w", err)
	}
	return claims, nil
}

// keysAway begins the text of the library for a token that may be a good one, by a key that cannot be had.
const keysAway = "failed to verify signature: fetching keys "

// of asks an issuer where its keys are, once.
func (i *Issuers) of(ctx context.Context, url string) (*oidc.Provider, error) {
	i.mu.Lock()
	known := i.known[url]
	if known == nil {
		if len(i.known) >= mostIssuers {
			i.forget()
		}
		client := *i.client
		client.Transport = paced{i.client.Transport, rate.NewLimiter(rate.Every(issuerRetry), issuerBurst), i.now}
		known = &issuer{turn: make(chan struct{}, 1), client: &client}
		i.known[url] = known
	}
	i.mu.Unlock()
	select {
	case known.turn <- struct{}{}:
		defer func() { <-known.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if known.provider != nil {
		return known.provider, nil
	}
	if known.err != nil && i.now().Before(known.retryAt) {
		return nil, known.err
	}
	// The one who asks may go; the answer is for all.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), issuerTimeout)
	defer cancel()
	known.provider, known.err = oidc.NewProvider(oidc.ClientContext(ctx, known.client), url)
	if known.err != nil {
		known.retryAt = i.now().Add(issuerRetry)
	}
	return known.provider, known.err
}

// forget makes room for another issuer: one that has not answered goes first, so that who names many of them costs
// others nothing. The lock is held.
func (i *Issuers) forget() {
	for url, known := range i.known {
		answered := false
		select {
		case known.turn <- struct{}{}:
			answered = known.provider != nil
			<-known.turn
		default: // it is being asked
		}
		if !answered {
			delete(i.known, url)
			return
		}
	}
	clear(i.known)
}

// paced bounds how often an issuer is asked. What it says is for all tokens: who is refused by that needs nothing newer.
type paced struct {
	next    http.RoundTripper
	limiter *rate.Limiter
	now     func() time.Time
}

func (p paced) RoundTrip(r *http.Request) (*http.Response, error) {
	if !p.limiter.AllowN(p.now(), 1) {
		return nil, errors.New("it was asked a moment ago")
	}
	return p.next.RoundTrip(r)
}

// boundedBody bounds what is read of answers.
type boundedBody struct{ next http.RoundTripper }

func (b boundedBody) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body = &limited{Reader: io.LimitReader(response.Body, mostAnswer+1), Closer: response.Body}
	return response, nil
}

// limited fails where its reader ends at the bound.
type limited struct {
	io.Reader
	io.Closer
	read int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	if l.read += int64(n); l.read > mostAnswer {
		return n, errors.New("the answer is too long")
	}
	return n, err
}
