package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/syncer/answer"
)

const (
	// ProxyPath is below which the endpoints are: ProxyPath + <namespace>/<child>/<endpoint>.
	ProxyPath = "/children/"
	// scrapeTimeout bounds a scrape of somebody who does not say how long it waits;
	// longestScrape bounds all. headroom is what is left of the time to tell why.
	scrapeTimeout = 10 * time.Second
	longestScrape = 30 * time.Second
	headroom      = 500 * time.Millisecond
	// mostScrapes run at the same time, besides mostSuspects of endpoints that failed.
	mostScrapes  = 128
	mostSuspects = 16
	// podFor is for how long the pod of a child's agent is taken to be the same.
	podFor = time.Minute
	// retryAfter is what those are told whose scrape was not begun, in seconds.
	retryAfter = "30"
)

// accept is what children are asked for, whoever asks for it.
const accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1"

// Children are called by a proxy; link.Pool is them.
type Children interface {
	Fetch(ctx context.Context, child types.NamespacedName, path, accept string) (*http.Response, error)
	AgentPod(ctx context.Context, child types.NamespacedName) (string, error)
}

// Proxy serves the metrics of children. It is safe for concurrent use.
type Proxy struct {
	endpoints Endpoints
	children  Children
	now       func() time.Time
	breaker   breaker
	// places of scrapes that are under way.
	places, suspects chan struct{}
	results          *prometheus.CounterVec

	mu   sync.Mutex // guards pods; never held over a call
	pods map[types.NamespacedName]pod
}

// pod of an agent, until a time.
type pod struct {
	name  string
	until time.Time
}

// NewProxy returns a Proxy, whose metrics are registered.
func NewProxy(endpoints Endpoints, children Children, now func() time.Time, registry prometheus.Registerer) *Proxy {
	p := &Proxy{
		endpoints: endpoints, children: children, now: now, pods: map[types.NamespacedName]pod{},
		places: make(chan struct{}, mostScrapes), suspects: make(chan struct{}, mostSuspects),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cascade_child_scrapes_total", Help: "Scrapes of children through the agent, by what became of them.",
		}, []string{"result"}),
	}
	registry.MustRegister(p.results)
	return p
}

// refusal is why a scrape has no metrics.
type refusal struct {
	status  int
	result  string
	message string
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	t, e, ok := p.find(r)
	switch {
	case r.Method != http.MethodGet:
		w.Header().Set("Allow", http.MethodGet)
		p.refuse(w, refusal{http.StatusMethodNotAllowed, "refused", "only GET is served"})
		return
	case !ok:
		p.refuse(w, refusal{http.StatusNotFound, "refused", "a path is " + ProxyPath + "<namespace>/<child>/<endpoint>, with an endpoint of --child-endpoints"})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience(r))
	defer cancel()
	is := p.breaker.enter(t, p.now())
	switch is {
	case busy:
		p.refuse(w, refusal{http.StatusTooManyRequests, "busy", "the endpoint is being scraped already"})
		return
	case broken:
		p.refuse(w, refusal{http.StatusServiceUnavailable, "broken", "the endpoint failed several times and is left alone for a while"})
		return
	}
	was := unasked
	defer func() { p.breaker.leave(t, p.now(), was) }()
	leave, ok := p.enter(ctx, is)
	if !ok {
		p.refuse(w, refusal{http.StatusServiceUnavailable, "busy", "too many scrapes are under way"})
		return
	}
	defer leave()
	response, err := p.ask(ctx, t, e)
	if err != nil {
		var why refusal
		why, was = classify(err)
		p.refuse(w, why)
		return
	}
	was = answered
	defer func() { _ = response.Body.Close() }() // nothing is lost with it
	if why, ok := ofStatus(response.StatusCode); !ok {
		p.forget(t.child)
		p.refuse(w, why)
		return
	}
	w.Header().Set("Content-Type", contentType(response.Header.Get("Content-Type")))
	if _, err := io.Copy(w, response.Body); err != nil {
		if r.Context().Err() == nil { // and not the scraper that went
			was = failed
		}
		p.results.WithLabelValues("cut").Inc()
		// Prometheus takes what ends well for all there is.
		panic(http.ErrAbortHandler)
	}
	p.results.WithLabelValues("answered").Inc()
}

// find reads the path. It has no word that was escaped.
func (p *Proxy) find(r *http.Request) (target, Endpoint, bool) {
	words := strings.Split(strings.TrimPrefix(r.URL.Path, ProxyPath), "/")
	if r.URL.RawPath != "" || len(words) != 3 || len(validation.IsDNS1123Label(words[0])) > 0 || len(validation.IsDNS1123Subdomain(words[1])) > 0 {
		return target{}, Endpoint{}, false
	}
	e, ok := p.endpoints.Named(words[2])
	return target{types.NamespacedName{Namespace: words[0], Name: words[1]}, e.Name}, e, ok
}

// patience is how long the one who asks waits, as far as that is said and can be.
func patience(r *http.Request) time.Duration {
	seconds, err := strconv.ParseFloat(r.Header.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(seconds > 0) {
		return scrapeTimeout
	}
	wait := time.Duration(min(seconds, longestScrape.Seconds()) * float64(time.Second))
	return max(wait-headroom, wait/2)
}

// enter takes a place. What failed before does not wait for one.
func (p *Proxy) enter(ctx context.Context, is admission) (leave func(), ok bool) {
	if is == suspect {
		select {
		case p.suspects <- struct{}{}:
			return func() { <-p.suspects }, true
		default:
			return nil, false
		}
	}
	select {
	case p.places <- struct{}{}:
		return func() { <-p.places }, true
	case <-ctx.Done():
		return nil, false
	}
}

func (p *Proxy) ask(ctx context.Context, t target, e Endpoint) (*http.Response, error) {
	name := ""
	if e.Service == "" {
		var err error
		if name, err = p.podOf(ctx, t.child); err != nil {
			return nil, err
		}
	}
	response, err := p.children.Fetch(ctx, t.child, e.path(name), accept)
	if err != nil {
		p.forget(t.child)
	}
	return response, err
}

// podOf is the pod that leads the child's tier.
func (p *Proxy) podOf(ctx context.Context, child types.NamespacedName) (string, error) {
	p.mu.Lock()
	known, ok := p.pods[child]
	p.mu.Unlock()
	if ok && p.now().Before(known.until) {
		return known.name, nil
	}
	name, err := p.children.AgentPod(ctx, child)
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pods) >= mostFailing {
		clear(p.pods)
	}
	p.pods[child] = pod{name, p.now().Add(podFor)}
	return name, nil
}

// forget which pod it was: another one may lead by now.
func (p *Proxy) forget(child types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, child)
}

func (p *Proxy) refuse(w http.ResponseWriter, why refusal) {
	p.results.WithLabelValues(why.result).Inc()
	if why.status == http.StatusServiceUnavailable || why.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", retryAfter)
	}
	http.Error(w, why.message, why.status)
}

// classify tells why there is no answer, and what that says of the endpoint. No word of
// an error is told: it may be the child's.
func classify(err error) (why refusal, was outcome) {
	var timeout net.Error
	var refused *answer.Error
	switch {
	case errors.Is(err, link.ErrUnknown):
		return refusal{http.StatusNotFound, "refused", "this replica drives no such child; see " + DiscoveryPath}, unasked
	case errors.Is(err, link.ErrNotConnected):
		return refusal{http.StatusServiceUnavailable, "unreachable", "the child is not connected; see its conditions"}, unasked
	case errors.Is(err, context.Canceled):
		return refusal{http.StatusServiceUnavailable, "canceled", "the scrape was given up"}, unasked
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return refusal{http.StatusGatewayTimeout, "timeout", "the child did not answer in time"}, failed
	case errors.As(err, &refused):
		return refusal{http.StatusBadGateway, "failed", fmt.Sprintf("the child's answer is refused: %s", refused.Reason)}, failed
	}
	return refusal{http.StatusBadGateway, "failed", "the child cannot be asked"}, failed
}

// ofStatus tells why an answer has no metrics.
func ofStatus(status int) (refusal, bool) {
	switch {
	case status == http.StatusOK:
		return refusal{}, true
	case status == http.StatusForbidden:
		return refusal{http.StatusBadGateway, "forbidden", "the child refuses the parent this endpoint; the right is written again within minutes, unless it is the endpoint itself that refuses"}, false
	case status == http.StatusUnauthorized:
		return refusal{http.StatusBadGateway, "forbidden", "the endpoint wants a login, which API servers do not pass on"}, false
	case status == http.StatusNotFound:
		return refusal{http.StatusBadGateway, "failed", "the child has no such endpoint"}, false
	}
	return refusal{http.StatusBadGateway, "failed", fmt.Sprintf("the endpoint answered %d", status)}, false
}

// contentType is one that Prometheus knows, whatever the child says.
func contentType(said string) string {
	kind, params, err := mime.ParseMediaType(said)
	if err == nil && kind == "application/openmetrics-text" && (params["version"] == "1.0.0" || params["version"] == "0.0.1") {
		return "application/openmetrics-text; version=" + params["version"] + "; charset=utf-8"
	}
	return "text/plain; version=0.0.4; charset=utf-8"
}
