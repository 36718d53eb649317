package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/syncer/answer"
)

// caller sends requests to an API server as one user.
type caller struct {
	base *url.URL
	http *http.Client
	// sessions is for requests that follow each other until release is called, however long
	// this process takes between two of them. A process that is short of processor time would
	// otherwise spend it on connecting again.
	sessions *http.Client
	// endless is for answers without a time limit of the client, watches for those that last
	// as long as the child is there.
	endless *http.Client
	watches *http.Client
	// passing and held are the transports of http and of sessions.
	passing, held *lazy
}

// release closes the connections that are not those of watches, once no request is on its way.
func (c *caller) release() {
	if c != nil {
		c.passing.CloseIdleConnections()
		c.held.CloseIdleConnections()
	}
}

// lazy is a transport that there is from a request until connections are closed. For each
// server that it ever called http.Transport keeps tables of some kilobytes, and of thousands of
// children most are at rest. It is safe for concurrent use.
type lazy struct {
	open func() *http.Transport

	mu        sync.Mutex // guards what follows
	transport *http.Transport
}

// RoundTrip implements http.RoundTripper.
func (l *lazy) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	if l.transport == nil {
		l.transport = l.open()
	}
	transport := l.transport
	l.mu.Unlock()
	return transport.RoundTrip(r)
}

// CloseIdleConnections closes connections once no request is on its way.
func (l *lazy) CloseIdleConnections() {
	l.mu.Lock()
	transport := l.transport
	l.transport = nil
	l.mu.Unlock()
	if transport != nil {
		transport.CloseIdleConnections()
	}
}

// authorized sends a token with each request. What may change something is sent only
// while this process has the right to.
type authorized struct {
	next  http.RoundTripper
	token string
	may   func() error
}

func (a *authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		if err := a.may(); err != nil {
			if r.Body != nil {
				_ = r.Body.Close() // as a RoundTripper must
			}
			return nil, err
		}
	}
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", userAgent)
	if q := r.URL.Query(); q.Has("timeout") {
		q.Set("timeout", serverTimeout.String())
		r.URL.RawQuery = q.Encode()
	}
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	return a.next.RoundTrip(r)
}

// userAgent of all calls to children, which audit logs show.
const userAgent = "cascade-parent"

// calls makes a caller. Requests follow each other, so HTTP/1.1 suffices, with a
// fraction of the memory of HTTP/2. The proxy settings of the environment are
// ignored; a proxy of the kubeconfig is used if it was allowed. Answers have the bounds
// of another's API server, and no redirect is followed. may is asked before each request
// that may change something.
func calls(config *rest.Config, addresses answer.Addresses, may func() error) (*caller, error) {
	base, err := url.Parse(config.Host)
	if err != nil {
		return nil, errors.New("cannot use kubeconfig: server is not a URL")
	}
	if err := addresses.Check(config.Host); err != nil {
		return nil, err
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot use kubeconfig: %w", err)
	}
	if tlsConfig != nil {
		tlsConfig.NextProtos = []string{"http/1.1"}
		// Not shared: a server takes the identity of a client from its session.
		tlsConfig.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	}
	transport := func(idle time.Duration) *lazy {
		return &lazy{open: func() *http.Transport {
			return &http.Transport{
				Proxy:                  config.Proxy,
				DialContext:            addresses.Dial,
				TLSClientConfig:        tlsConfig,
				TLSHandshakeTimeout:    callTimeout,
				IdleConnTimeout:        idle,
				MaxIdleConnsPerHost:    1,
				MaxResponseHeaderBytes: mostHeader,
			}
		}}
	}
	bound := func(transport http.RoundTripper) http.RoundTripper {
		next := answer.Bound(transport, answer.Other(), base.Path)
		if config.WrapTransport != nil {
			next = config.WrapTransport(next) // a provider's, which sends a token of its own with each request
		}
		return &authorized{next: next, token: config.BearerToken, may: may}
	}
	c := &caller{base: base, passing: transport(idleAfter), held: transport(heldFor)}
	as := bound(c.passing)
	c.http, c.endless = &http.Client{Transport: as, Timeout: callTimeout}, &http.Client{Transport: as}
	c.sessions = &http.Client{Transport: bound(c.held), Timeout: callTimeout}
	c.watches = c.endless
	if config.Proxy == nil {
		c.watches = &http.Client{Transport: bound(&single{dial: addresses.Dial, tls: tlsConfig})}
	}
	return c, nil
}

// nobody calls where the credentials came to their end since the last call, as the clock was set forward or
// the machine was suspended. Its calls fail, which a rest.Result can say of a call alone.
var nobody = &caller{base: &url.URL{}, http: &http.Client{Transport: noCredentials{}}}

type noCredentials struct{}

func (noCredentials) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close() // as a RoundTripper must
	}
	return nil, errors.New("the credentials lapsed between two calls")
}

// do sends one request. The error in the result is one of apimachinery.
func (c *caller) do(ctx context.Context, verb, path string, body any, content rest.ClientContentConfig) rest.Result {
	if c == nil {
		c = nobody
	}
	r := rest.NewRequestWithClient(c.base, "", content, c.http).Verb(verb).AbsPath(path).WarningHandler(rest.NoWarnings{})
	if body != nil {
		r = r.SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body)
	}
	return r.MaxRetries(1).Do(ctx)
}

// watch begins a watch. The error is one of apimachinery. The caller closes what is
// returned, and bounds ctx.
func (c *caller) watch(ctx context.Context, path string, content rest.ClientContentConfig, params map[string]string) (io.ReadCloser, error) {
	r := rest.NewRequestWithClient(c.base, "", content, c.watches).Verb("GET").AbsPath(path).WarningHandler(rest.NoWarnings{}).Param("watch", "1")
	for name, value := range params {
		r = r.Param(name, value)
	}
	return r.MaxRetries(1).Stream(ctx)
}
