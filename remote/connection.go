package remote

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// Numbers of a connection. Time-out, threshold and pause are those of Cluster
// API's own cluster cache.
const (
	// callTimeout bounds each call, connecting included.
	callTimeout = 10 * time.Second
	// breakAfter failures in a row a child is only probed at breakPause; until
	// then the next try comes soon. The pause never grows, so that a child is
	// found within it when it is back.
	breakAfter = 5
	breakPause = 30 * time.Second
	retryPause = time.Second
	// idleAfter closes connections that nobody uses: at rest a child is asked
	// once in a while, and a thousand idle connections cost more than
	// connecting anew, for which the session is kept.
	idleAfter = time.Second
	// patience is how long a probe keeps its place among those that run. One that
	// takes longer waits on, but no healthy child waits for its place.
	patience = time.Second
	// probes that run at the same time, and those that outlasted patience.
	mostProbes     = 64
	mostSlowProbes = 1024
)

// Connections is the pool of connections to children. What is asked of a child
// at rest is asked by a goroutine for each, not by the workers of the queue, so that
// children that do not answer keep nobody waiting. The lock guards the map
// alone and is never held over a network call.
type Connections struct {
	scheme  *runtime.Scheme
	now     func() time.Time
	schemas *apply.Schemas
	// life ends all calls.
	life context.Context
	// Fence is asked before each delete in a child; nil lets all pass. It is set
	// before the first use.
	Fence func() error

	quick, slow chan struct{}

	mu       sync.Mutex
	links    map[types.NamespacedName]*link
	answered func(key types.NamespacedName, urgent bool)
}

// NewConnections returns an empty pool. All calls end with life.
func NewConnections(life context.Context, scheme *runtime.Scheme, now func() time.Time) *Connections {
	return &Connections{
		scheme: scheme, now: now, schemas: apply.NewSchemas(), life: life,
		quick: make(chan struct{}, mostProbes), slow: make(chan struct{}, mostSlowProbes),
		links: map[types.NamespacedName]*link{},
	}
}

// onAnswer sets what is called when a probe ended.
func (c *Connections) onAnswer(f func(key types.NamespacedName, urgent bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = f
}

// wake calls for a visit to a child.
func (c *Connections) wake(key types.NamespacedName, urgent bool) {
	c.mu.Lock()
	answered := c.answered
	c.mu.Unlock()
	if answered != nil {
		answered(key, urgent)
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

// enter waits for a place among the probes. The place is given up when the
// returned function is called, or exchanged for one among the slow ones after a
// moment; suspects begin there.
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

// link is the connection to one child. A child is visited by one goroutine at a
// time, and a probe only runs while no visit uses the link: ask hands it over.
// What the lock guards is read by others as well.
type link struct {
	pool *Connections
	key  types.NamespacedName
	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	probing bool
	answer  *answer

	// source of the kubeconfig that is used, and what of it says who is asked:
	// server, name and CA.
	source   string
	endpoint string
	host     string
	tls      rest.TLSClientConfig
	proxy    func(*http.Request) (*url.URL, error)
	// admin is nil once there is a token and the kubeconfig is not needed. lapses is
	// when its credential does, if it says so.
	admin  *caller
	lapses time.Time
	// minted speaks with the parent's own token until it has to be renewed.
	minted           *caller
	renewAt, expires time.Time
	// rights that the parent's roles have, by name of the role, as far as is known.
	rights map[string]string

	// identity and version as the API server told them since the endpoint is
	// what it is.
	identity, version string
	versionStale      bool
	kinds             apply.Kinds

	failures  int
	notBefore time.Time
	// answered is when the API server did so last, and tried is the kubeconfig
	// that was used last.
	answered time.Time
	tried    string
	agent    agentFacts
}

// caller speaks to an API server as one user.
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

// calls makes a caller. Requests follow each other, for which HTTP/1.1 does and
// needs a fraction of the memory; there is no proxy, whatever the environment
// says, unless the kubeconfig has one that was allowed.
func calls(config *rest.Config) (*caller, error) {
	base, err := url.Parse(config.Host)
	if err != nil {
		return nil, errors.New("cannot use kubeconfig: server is not a URL")
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot use kubeconfig: %w", err)
	}
	if tlsConfig != nil {
		tlsConfig.NextProtos = []string{"http/1.1"}
		// Of this caller alone: a server takes who a client is from its session.
		tlsConfig.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	}
	transport := &http.Transport{
		Proxy:               config.Proxy,
		DialContext:         (&net.Dialer{Timeout: callTimeout}).DialContext,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: callTimeout,
		IdleConnTimeout:     idleAfter,
		MaxIdleConnsPerHost: 1,
	}
	return &caller{
		base: base, transport: transport,
		http: &http.Client{Transport: &authorized{next: transport, token: config.BearerToken}, Timeout: callTimeout},
	}, nil
}

// do sends one request; an error of the result is one of API machinery.
func (c *caller) do(ctx context.Context, verb, path string, body any, content rest.ClientContentConfig) rest.Result {
	r := rest.NewRequestWithClient(c.base, "", content, c.http).Verb(verb).AbsPath(path)
	if body != nil {
		r = r.SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body)
	}
	return r.MaxRetries(1).Do(ctx)
}

// hangUp closes what is open. Calls end with the link's life.
func (l *link) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admin.close()
	l.minted.close()
}

// use makes the link follow a kubeconfig. Rotated credentials for the same
// server and CA leave the minted token as it is; another server or CA may be
// another cluster, so everything is found out anew.
func (l *link) use(config *rest.Config, source string) error {
	admin, err := calls(config)
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

// endpointOf identifies who a kubeconfig speaks to.
func endpointOf(config *rest.Config) string {
	h := sha256.New()
	for _, part := range []string{config.Host, config.ServerName, string(config.CAData)} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// caller is who to speak as now; nil if the kubeconfig has to be read first.
func (l *link) caller() *caller {
	if l.minted != nil && l.pool.now().Before(l.expires) {
		return l.minted
	}
	return l.admin
}

// drop forgets all credentials: they lapsed, or were revoked. The kubeconfig has
// to be read again.
func (l *link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.minted.close()
	l.admin.close()
	l.minted, l.admin = nil, nil
}

// cluster is the connection for a push, as the parent's own account or, where as
// is given, as that caller.
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

// failed counts a failure and says when to try again. Who answers then has to
// say who he is.
func (l *link) failed() {
	l.identity = ""
	l.failures++
	pause := retryPause
	if l.failures >= breakAfter {
		pause = breakPause
	}
	// Children that failed together do not come back together.
	l.notBefore = l.pool.now().Add(time.Duration(float64(pause) * (0.7 + 0.3*rand.Float64())))
}

// succeeded closes the breaker.
func (l *link) succeeded() {
	l.failures, l.notBefore, l.answered = 0, time.Time{}, l.pool.now()
}
