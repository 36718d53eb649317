package link

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// Link is the connection to one child. One goroutine at a time reconciles a child,
// and a probe runs only while no run uses the link: Ask passes the link on. Other
// goroutines read what the lock guards.
type Link struct {
	pool *Pool
	key  types.NamespacedName
	life context.Context
	end  context.CancelFunc

	mu      sync.Mutex
	probing bool
	// overdue: the probe that is under way should have ended.
	overdue bool
	result  *Result
	// heard is when the recorded cluster was last heard of; see report.Contact.
	heard  time.Time
	proven bool
	// answers: the recorded cluster answered the last probe.
	answers bool
	// hinted is the identity of a child that takes hints, empty for one that does not.
	hinted string
	// broken: the last probe failed, as several before it.
	broken bool
	// unpermitted: the child refused what the parent is to have a right to beside its
	// layers; it is looked into after permitAt.
	unpermitted bool
	permitAt    time.Time

	// source of the kubeconfig that is used, and endpoint, which identifies its server,
	// server name, CA and proxy.
	source   string
	endpoint string
	host     string
	tls      rest.TLSClientConfig
	proxy    func(*http.Request) (*url.URL, error)
	// admin uses the credential of the kubeconfig; it is nil once there is a token.
	// lapses is when that credential expires, if it says so.
	admin  *caller
	lapses time.Time
	// lent is that caller when a probe got a token with it a moment ago, until the session that
	// follows ends, or the next probe begins: a list needs no other reading of the kubeconfig then.
	lent *caller
	// generation grows whenever credentials are read or dropped.
	generation int
	// minted uses the parent's own token until the token has to be renewed.
	minted           *caller
	renewAt, expires time.Time
	// rights are digests of the rules that the parent's roles have, by name of the role,
	// as far as is known.
	rights map[string]string
	// doubted: the child refused something since it granted rights last. What earlier
	// processes say that they granted does not count then.
	doubted bool

	// identity and version are those that the API server at the endpoint returned.
	identity, version string
	versionStale      bool
	kinds             apply.Kinds

	failures  int
	notBefore time.Time
	// unread is since when the kubeconfig could not be read; zero if it could.
	unread time.Time
	// meter counts the time of pushes.
	meter *meter
	// responded is when the API server last responded, and tried is the kubeconfig
	// that was used last.
	responded time.Time
	tried     string
	// again is when a source that tells of no change was read again last, as the child did not answer.
	again time.Time
	agent Agent
	beat  heartbeat
}

func (l *Link) mayWrite() error { return l.pool.MayWrite(l.key) }

// hangUp closes open connections. Calls end with the link's life.
func (l *Link) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admin.release()
	l.minted.release()
	l.lent.release()
}

// use makes the link follow a kubeconfig. Rotated credentials for the same server
// and CA keep the minted token. Another server or CA may be another cluster, as may what
// another proxy leads to, so everything that was learned is dropped.
func (l *Link) use(config *rest.Config, source string) error {
	admin, err := calls(config, l.pool.Addresses, l.mayWrite)
	if err != nil {
		return err
	}
	endpoint, err := endpointOf(config)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.generation++
	l.admin.release()
	l.lent.release()
	l.lent = nil
	if l.endpoint != endpoint {
		l.minted.release()
		l.minted = nil
		l.identity, l.version, l.versionStale, l.rights = "", "", false, nil
		l.failures, l.notBefore = 0, time.Time{}
		l.endpoint = endpoint
		if l.beat.end != nil {
			l.beat.end()
		}
		l.beat = heartbeat{end: l.beat.end, open: l.beat.open}
	}
	l.admin, l.source, l.host, l.tls, l.proxy = admin, source, config.Host, config.TLSClientConfig, config.Proxy
	l.lapses = capibridge.CredentialOf(config).ExpiresAt
	l.tls.CertData, l.tls.KeyData = nil, nil
	return nil
}

// endpointOf identifies the API server of a kubeconfig, and the way to it.
func endpointOf(config *rest.Config) (string, error) {
	proxy := ""
	if config.Proxy != nil {
		u, err := config.Proxy(&http.Request{})
		if err != nil {
			return "", fmt.Errorf("cannot use the proxy of the kubeconfig: %w", err)
		}
		proxy = u.String()
	}
	h := sha256.New()
	for _, part := range []string{config.Host, config.ServerName, string(config.CAData), proxy} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// caller returns the caller to use now; nil if the kubeconfig has to be read first.
func (l *Link) caller() *caller {
	if l.minted != nil && l.pool.now().Before(l.expires) {
		return l.minted
	}
	return l.admin
}

// prober returns what the rest of a probe asks with: the connection that it has already, if it has just
// got a token. A second one for the token would cost both sides as much as all of its questions.
func (l *Link) prober() *caller {
	if l.lent != nil {
		return l.lent
	}
	return l.caller()
}

// drop forgets all credentials, because they expired or were revoked. The
// kubeconfig has to be read again.
func (l *Link) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.minted.release()
	l.admin.release()
	l.minted, l.admin = nil, nil
	l.generation++
}

// cluster returns the connection that a push uses, with the credentials of as.
func (l *Link) cluster(as *caller) (*apply.Cluster, error) {
	if as == nil {
		return nil, errors.New("cannot connect: there are no credentials")
	}
	c, err := apply.Attach(as.base.String(), l.meter.over(as.sessions), l.pool.scheme, l.pool.schemas, &l.kinds)
	if err != nil {
		return nil, err
	}
	c.Fence(l.mayWrite)
	return c, nil
}

// Wait is how long the breaker keeps the child from being probed.
func (l *Link) Wait() time.Duration { return l.notBefore.Sub(l.pool.now()) }

// Life ends when the child is forgotten.
func (l *Link) Life() context.Context { return l.life }

// failed counts a failure and sets when to try again. The next probe reads the
// identity of the cluster again.
func (l *Link) failed() {
	l.unwatch()
	l.identity = ""
	l.failures++
	pause := retryPause
	if l.failures >= breakAfter {
		pause = breakPause
	}
	l.rest(pause)
}

// rest has the next probe come after a pause. Children that failed together do not come back
// together.
func (l *Link) rest(pause time.Duration) {
	l.notBefore = l.pool.now().Add(time.Duration(float64(pause) * (0.7 + 0.3*l.pool.random())))
}

// succeeded closes the breaker.
func (l *Link) succeeded() {
	l.failures, l.notBefore, l.responded = 0, time.Time{}, l.pool.now()
}
