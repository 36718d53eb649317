package remote

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// Numbers of a connection. Time-out, threshold and pause are those of Cluster
// API's own cluster cache.
const (
	// callTimeout bounds each call, connecting included.
	callTimeout = 10 * time.Second
	// After breakAfter failures in a row a child is probed every breakPause; before
	// that, every retryPause. The pause never grows, so a child that is back is found
	// within it.
	breakAfter = 5
	breakPause = 30 * time.Second
	retryPause = time.Second
	// idleAfter closes idle connections: at rest a child gets a request once in a
	// while. A thousand idle connections cost more than connecting again, which resumes
	// the TLS session.
	idleAfter = time.Second
	// patience is how long a probe holds one of the mostProbes places. A probe that
	// takes longer goes on without it, so that healthy children need not wait.
	patience = time.Second
	// mostProbes run at the same time, besides mostSlowProbes of children that failed.
	mostProbes     = 64
	mostSlowProbes = 1024
)

// Connections is the pool of connections to children. A goroutine for each child
// probes it, not a worker of the queue, so a child that does not respond delays no
// other. The lock guards the map alone and is never held over a network call.
type Connections struct {
	scheme  *runtime.Scheme
	now     func() time.Time
	random  func() float64
	schemas *apply.Schemas
	// life ends all calls when it ends.
	life context.Context
	// Fence is asked before each delete in a child; nil lets all pass. It is set
	// before the first use.
	Fence func() error
	// Addresses are those where API servers of children may be. They are set before the
	// first use.
	Addresses answer.Addresses

	quick, slow chan struct{}

	mu     sync.Mutex
	links  map[types.NamespacedName]*link
	probed func(key types.NamespacedName, urgent bool)
}

// NewConnections returns an empty pool. All calls end with life. random returns numbers
// in [0, 1) and is safe for concurrent use.
func NewConnections(life context.Context, scheme *runtime.Scheme, now func() time.Time, random func() float64) *Connections {
	return &Connections{
		scheme: scheme, now: now, random: random, schemas: apply.NewSchemas(), life: life,
		quick: make(chan struct{}, mostProbes), slow: make(chan struct{}, mostSlowProbes),
		links: map[types.NamespacedName]*link{},
	}
}

// onProbe sets what is called when a probe ended.
func (c *Connections) onProbe(f func(key types.NamespacedName, urgent bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probed = f
}

// wake calls for a reconcile of a child.
func (c *Connections) wake(key types.NamespacedName, urgent bool) {
	c.mu.Lock()
	probed := c.probed
	c.mu.Unlock()
	if probed != nil {
		probed(key, urgent)
	}
}

func (c *Connections) link(key types.NamespacedName) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[key]
	if l == nil {
		l = &link{pool: c, key: key}
		l.life, l.end = context.WithCancel(c.life)
		c.links[key] = l
	}
	return l
}

// Forget ends the calls to a child that are on their way, closes its connection
// and drops what is known of it.
func (c *Connections) Forget(key types.NamespacedName) {
	c.mu.Lock()
	l := c.links[key]
	delete(c.links, key)
	c.mu.Unlock()
	if l != nil {
		l.end()
		l.hangUp()
	}
}

// enter waits for a place among the probes. The returned function frees the place;
// patience frees it earlier. A suspect, a child that failed last, takes a place among
// the slow probes.
func (c *Connections) enter(ctx context.Context, suspect bool) (leave func(), err error) {
	take := func(places chan struct{}) error {
		select {
		case places <- struct{}{}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if suspect {
		if err := take(c.slow); err != nil {
			return nil, err
		}
		return func() { <-c.slow }, nil
	}
	if err := take(c.quick); err != nil {
		return nil, err
	}
	var once sync.Once
	free := func() { once.Do(func() { <-c.quick }) }
	timer := time.AfterFunc(patience, free)
	return func() { timer.Stop(); free() }, nil
}

// link is the connection to one child. One goroutine at a time reconciles a child,
// and a probe runs only while no run uses the link: ask passes the link on. Other
// goroutines read what the lock guards.
type link struct {
	pool *Connections
	key  types.NamespacedName
	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	probing bool
	result  *probeResult

	// source of the kubeconfig that is used, and endpoint, which identifies its server,
	// server name and CA.
	source   string
	endpoint string
	host     string
	tls      rest.TLSClientConfig
	proxy    func(*http.Request) (*url.URL, error)
	// admin uses the credential of the kubeconfig; it is nil once there is a token.
	// lapses is when that credential expires, if it says so.
	admin  *caller
	lapses time.Time
	// minted uses the parent's own token until the token has to be renewed.
	minted           *caller
	renewAt, expires time.Time
	// rights are digests of the rules that the parent's roles have, by name of the role,
	// as far as is known.
	rights map[string]string

	// identity and version are those that the API server at the endpoint returned.
	identity, version string
	versionStale      bool
	kinds             apply.Kinds

	failures  int
	notBefore time.Time
	// responded is when the API server last responded, and tried is the kubeconfig
	// that was used last.
	responded time.Time
	tried     string
	agent     agentFacts
}

// caller sends requests to an API server as one user.
type caller struct {
	base      *url.URL
	http      *http.Client
	transport *http.Transport
}

func (c *caller) close() {
	if c != nil {
		c.transport.CloseIdleConnections()
	}
}

// authorized sends a token with each request.
type authorized struct {
	next  http.RoundTripper
	token string
}

func (a *authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", userAgent)
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
// of another's API server, and no redirect is followed.
func calls(config *rest.Config, addresses answer.Addresses) (*caller, error) {
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
	transport := &http.Transport{
		Proxy:               config.Proxy,
		DialContext:         addresses.Dial,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: callTimeout,
		IdleConnTimeout:     idleAfter,
		MaxIdleConnsPerHost: 1,
		// Kubernetes sends a few hundred bytes.
		MaxResponseHeaderBytes: 64 << 10,
	}
	guarded := answer.Bound(transport, answer.Other(), base.Path)
	return &caller{
		base: base, transport: transport,
		http: &http.Client{Transport: &authorized{next: guarded, token: config.BearerToken}, Timeout: callTimeout},
	}, nil
}

// do sends one request. The error in the result is one of apimachinery.
func (c *caller) do(ctx context.Context, verb, path string, body any, content rest.ClientContentConfig) rest.Result {
	r := rest.NewRequestWithClient(c.base, "", content, c.http).Verb(verb).AbsPath(path).WarningHandler(rest.NoWarnings{})
	if body != nil {
		r = r.SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body)
	}
	return r.MaxRetries(1).Do(ctx)
}

// hangUp closes open connections. Calls end with the link's life.
func (l *link) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admin.close()
	l.minted.close()
}

// use makes the link follow a kubeconfig. Rotated credentials for the same server
// and CA keep the minted token. Another server or CA may be another cluster, so
// everything that was learned is dropped.
func (l *link) use(config *rest.Config, source string) error {
	admin, err := calls(config, l.pool.Addresses)
	if err != nil {
		return err
	}
	endpoint := endpointOf(config)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admin.close()
	if l.endpoint != endpoint {
		l.minted.close()
		l.minted = nil
		l.identity, l.version, l.versionStale, l.rights = "", "", false, nil
		l.failures, l.notBefore = 0, time.Time{}
		l.endpoint = endpoint
	}
	l.admin, l.source, l.host, l.tls, l.proxy = admin, source, config.Host, config.TLSClientConfig, config.Proxy
	l.lapses = capibridge.CredentialOf(config).ExpiresAt
	l.tls.CertData, l.tls.KeyData = nil, nil
	return nil
}

// endpointOf identifies the API server of a kubeconfig.
func endpointOf(config *rest.Config) string {
	h := sha256.New()
	for _, part := range []string{config.Host, config.ServerName, string(config.CAData)} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// caller returns the caller to use now; nil if the kubeconfig has to be read first.
func (l *link) caller() *caller {
	if l.minted != nil && l.pool.now().Before(l.expires) {
		return l.minted
	}
	return l.admin
}

// drop forgets all credentials, because they expired or were revoked. The
// kubeconfig has to be read again.
func (l *link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.minted.close()
	l.admin.close()
	l.minted, l.admin = nil, nil
}

// cluster returns the connection that a push uses, with the credentials of as.
func (l *link) cluster(as *caller) (*apply.Cluster, error) {
	if as == nil {
		return nil, errors.New("cannot connect: there are no credentials")
	}
	c, err := apply.Attach(as.base.String(), as.http, l.pool.scheme, l.pool.schemas, &l.kinds)
	if err != nil {
		return nil, err
	}
	c.Fence(l.pool.Fence)
	return c, nil
}

// failed counts a failure and sets when to try again. The next probe reads the
// identity of the cluster again.
func (l *link) failed() {
	l.identity = ""
	l.failures++
	pause := retryPause
	if l.failures >= breakAfter {
		pause = breakPause
	}
	// Children that failed together do not come back together.
	l.notBefore = l.pool.now().Add(time.Duration(float64(pause) * (0.7 + 0.3*l.pool.random())))
}

// succeeded closes the breaker.
func (l *link) succeeded() {
	l.failures, l.notBefore, l.responded = 0, time.Time{}, l.pool.now()
}
