package remote

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/answer"
)

const (
	// probeTimeout bounds all calls of a probe together.
	probeTimeout = 25 * time.Second
	// resultHolds is how long a run may act upon the result of a probe.
	resultHolds = 5 * time.Second
	// tokenLife is asked for; the API server may shorten it.
	tokenLife = time.Hour
	// tokenMargin before its end a token is not used any more.
	tokenMargin = 30 * time.Second
)

// probeRequest is what a run wants to know of a child.
type probeRequest struct {
	// source identifies the kubeconfig that there is now, and read reads it.
	source string
	read   func(ctx context.Context) (*rest.Config, error)
	// recorded is the identity on record, empty before the first contact.
	recorded string
	// agent: the child is to have an agent, which reports.
	agent bool
	// urgent: the run is not a periodic one.
	urgent bool
}

// probeResult is what a probe found.
type probeResult struct {
	at time.Time
	// err has a reason. passing: the next probe, soon, may well succeed.
	err     error
	passing bool
	// identity and version of the cluster that responded.
	identity, version string
	agent             agentFacts
}

// agentFacts are what is known of a child's agent. The report is only read when
// the lease says that it changed.
type agentFacts struct {
	// lease is its resource version, and changed is when, by our clock, that was last
	// seen to change: the clocks of two clusters cannot be compared.
	lease   string
	changed time.Time
	// digest of the report that was read last.
	digest string
	report *v1alpha1.Report
	// err is why there is no report, or the agent is not alive.
	err error
}

// ask returns the result of a probe that ended, or starts a probe. Without a result
// the run ends, and the child is reconciled again when the probe is done, or after
// wait if that is not zero.
func (l *link) ask(q probeRequest) (a *probeResult, wait time.Duration) {
	now := l.pool.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.probing {
		return nil, 0
	}
	a, l.result = l.result, nil
	if a != nil && now.Sub(a.at) < resultHolds && (a.err != nil || l.source == q.source) {
		return a, 0
	}
	if wait := l.notBefore.Sub(now); wait > 0 && l.tried == q.source {
		return nil, wait
	}
	l.probing = true
	go l.probe(q)
	return nil, 0
}

// probe is owned by the link: it ends with the link's life.
func (l *link) probe(q probeRequest) {
	ctx, cancel := context.WithTimeout(l.life, probeTimeout)
	defer cancel()
	a := l.runProbe(ctx, q)
	l.mu.Lock()
	l.probing, l.result = false, a
	l.mu.Unlock()
	if l.life.Err() == nil {
		l.pool.wake(l.key, q.urgent || a.err != nil)
	}
}

func (l *link) runProbe(ctx context.Context, q probeRequest) *probeResult {
	leave, err := l.pool.enter(ctx, l.failures > 0)
	if err != nil {
		return &probeResult{at: l.pool.now(), err: because(v1alpha1.ReasonUnreachable, err), passing: true}
	}
	defer leave()
	l.tried = q.source
	err = l.follow(ctx, q)
	if err == nil {
		err = l.reach(ctx, q)
		if apierrors.IsUnauthorized(err) {
			// The token expired or was revoked, or the kubeconfig was rotated a moment
			// ago. The Secret has the credential that counts now.
			l.drop()
			l.identity = ""
			if err = l.reread(ctx, q); err == nil {
				err = l.reach(ctx, q)
			}
		}
		if apierrors.IsForbidden(err) && l.minted != nil {
			// Somebody took away what the parent was granted.
			if err = l.regrant(ctx, q); err == nil {
				err = l.reach(ctx, q)
			}
		}
	}
	a := &probeResult{at: l.pool.now(), identity: l.identity, version: l.version, agent: l.agent}
	if err == nil {
		l.succeeded()
		return a
	}
	l.failed()
	// One refused connection may be a restart of the API server; a time-out is not.
	var timeout net.Error
	a.passing = l.failures == 1 && !l.responded.IsZero() && !(errors.As(err, &timeout) && timeout.Timeout())
	var refused *answer.Error
	switch {
	case errors.As(err, &refused):
		err = because(refused.Reason, fmt.Errorf("cannot use what answers at %s: %w", l.host, refused))
	case apierrors.IsUnauthorized(err):
		lapsed := ""
		if l.lapsed() {
			lapsed = ", they lapsed at " + l.lapses.UTC().Format(time.RFC3339)
		}
		err = because(v1alpha1.ReasonUnauthorized, fmt.Errorf("%w; the credentials of Secret %s are refused%s: renew them", err, q.source, lapsed))
	case reasonOf(err) == v1alpha1.ReasonSeedFailed: // none of ours
		err = because(v1alpha1.ReasonUnreachable, steady(err, l.host))
	}
	a.err = err
	return a
}

// noResponse is a failure of a call that got no response.
type noResponse struct {
	text string
	err  error
}

func (e *noResponse) Error() string { return e.text }
func (e *noResponse) Unwrap() error { return e.err }

// steady words the error of a server that does not respond the same way each time.
// Which time limit ended which call, and from which port it came, is by chance. An
// error that varied would be a new write to the status of the Child in every probe
// of a dead server.
func steady(err error, server string) error {
	var call *url.Error
	if !errors.As(err, &call) || !strings.HasPrefix(call.URL, server) {
		return err
	}
	why := ""
	var timeout net.Error
	var invalid x509.CertificateInvalidError
	var op *net.OpError
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		why = fmt.Sprintf("no answer within %s", callTimeout)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		why = fmt.Sprintf("its certificate is good from %s to %s only", invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &op):
		bare := *op
		bare.Source = nil
		why = bare.Error()
	default:
		return err
	}
	return &noResponse{fmt.Sprintf("cannot reach %s: %s", server, why), err}
}

// regrant writes the parent's account and its base role again, as administrator, if
// the cluster is the recorded one.
func (l *link) regrant(ctx context.Context, q probeRequest) error {
	l.drop()
	l.identity, l.rights = "", nil
	admin, err := l.administrator(ctx, q)
	if err != nil {
		return err
	}
	if err := l.verify(ctx); err != nil || l.identity != q.recorded {
		return err
	}
	return writeAccess(ctx, admin, append(accountObjects(), roleObjects(baseRole, baseRights())...))
}

// follow makes sure that the link has credentials from the present kubeconfig.
func (l *link) follow(ctx context.Context, q probeRequest) error {
	if as := l.caller(); l.source == q.source && as != nil && (as != l.admin || !l.lapsed()) {
		return nil
	}
	return l.reread(ctx, q)
}

// lapsed reports whether the credential of the kubeconfig that was read last has
// expired, by our clock. The Secret may have another one by now.
func (l *link) lapsed() bool { return !l.lapses.IsZero() && !l.pool.now().Before(l.lapses) }

func (l *link) reread(ctx context.Context, q probeRequest) error {
	config, err := q.read(ctx)
	if err != nil {
		return err
	}
	return l.use(config, q.source)
}

// reach sends a request to the API server, which also shows that the server is
// there. The request reads the identity of the cluster if that is not known, and the
// lease of its agent otherwise.
func (l *link) reach(ctx context.Context, q probeRequest) error {
	asked, err := l.identify(ctx)
	if err != nil {
		return err
	}
	if q.recorded != l.identity {
		return nil // the run decides what follows
	}
	if l.minted == nil || !l.pool.now().Before(l.renewAt) {
		// Where the account does not exist yet, the next push creates it.
		if err := l.renew(ctx); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return err
		}
	}
	if !q.agent {
		l.agent = agentFacts{}
		if asked {
			return nil
		}
		return l.verify(ctx)
	}
	return l.readLease(ctx, q.urgent)
}

// identify reads the identity of the cluster once for each connection, and its
// version whenever a token is renewed. asked: the identity was read just now.
func (l *link) identify(ctx context.Context) (asked bool, err error) {
	if l.identity == "" {
		asked = true
		if err := l.ready(ctx); err != nil {
			return asked, err
		}
		if err := l.verify(ctx); err != nil {
			return asked, err
		}
	}
	if l.version == "" || l.versionStale {
		var info version.Info
		raw, err := l.caller().do(ctx, "GET", "/version", nil, plainContent()).Raw()
		if err == nil {
			err = json.Unmarshal(raw, &info)
		}
		if err != nil {
			return asked, fmt.Errorf("cannot read version: %w", err)
		}
		l.version, l.versionStale = info.GitVersion, false
	}
	return asked, nil
}

// ready asks the API server whether it is. One that does not say so to everybody
// is asked for something else next.
func (l *link) ready(ctx context.Context) error {
	raw, err := l.caller().do(ctx, "GET", "/readyz", nil, plainContent()).Raw()
	switch {
	case err == nil, apierrors.IsForbidden(err), apierrors.IsNotFound(err), apierrors.IsUnauthorized(err):
		return nil
	}
	return fmt.Errorf("API server is not ready, /readyz: %w: %s", err, cut(string(raw), 500))
}

// verify makes sure that the child is who it was: behind one address there may
// be another cluster from one moment to the next.
func (l *link) verify(ctx context.Context) error {
	uid, err := kubeSystemUID(ctx, l.caller())
	if err != nil {
		return err
	}
	l.identity = uid
	return nil
}

func kubeSystemUID(ctx context.Context, c *caller) (string, error) {
	ns := &corev1.Namespace{}
	if err := c.do(ctx, "GET", "/api/v1/namespaces/kube-system", nil, plainContent()).Into(ns); err != nil {
		return "", fmt.Errorf("cannot read namespace kube-system: %w", err)
	}
	return string(ns.UID), nil
}

// plainContent is for requests for single objects of built-in kinds.
func plainContent() rest.ClientContentConfig {
	return rest.ClientContentConfig{
		AcceptContentTypes: runtime.ContentTypeJSON, ContentType: runtime.ContentTypeJSON,
		Negotiator: runtime.NewClientNegotiator(scheme.Codecs.WithoutConversion(), corev1.SchemeGroupVersion),
	}
}

// renew requests a token of the parent's own account, with the present one or
// with the kubeconfig. It stores nothing in the child.
func (l *link) renew(ctx context.Context) error {
	seconds := int64(tokenLife.Seconds())
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	request.SetGroupVersionKind(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"))
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("cannot encode token request: %w", err)
	}
	path := "/api/v1/namespaces/" + v1alpha1.AgentNamespace + "/serviceaccounts/" + v1alpha1.ParentServiceAccount + "/token"
	got := &authenticationv1.TokenRequest{}
	raw, err := l.caller().do(ctx, "POST", path, body, plainContent()).Raw()
	if err == nil {
		err = json.Unmarshal(raw, got)
	}
	if err != nil {
		return fmt.Errorf("cannot request a token for the parent: %w", err)
	}
	// Counted by our clock: that of the child may be wrong.
	life := tokenLife
	if s := got.Spec.ExpirationSeconds; s != nil && *s > 0 {
		life = min(life, time.Duration(*s)*time.Second)
	}
	minted, err := calls(&rest.Config{Host: l.host, TLSClientConfig: l.tls, Proxy: l.proxy, BearerToken: got.Status.Token}, l.pool.Addresses)
	if err != nil {
		return err
	}
	now := l.pool.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.minted.close()
	l.admin.close()
	// The kubeconfig has served; it is read again when it is needed.
	l.minted, l.admin = minted, nil
	l.renewAt, l.expires = now.Add(life*2/3), now.Add(life-tokenMargin)
	l.versionStale = true // it may have been upgraded
	return nil
}

// readLease reads the lease of the child's agent. The lease shows that the agent is
// alive and, some seconds late, whether there is a new report. An urgent run does not
// wait for the lease: it reads the report each time.
func (l *link) readLease(ctx context.Context, urgent bool) error {
	lease := &coordinationv1.Lease{}
	path := "/apis/coordination.k8s.io/v1/namespaces/" + v1alpha1.AgentNamespace + "/leases/" + v1alpha1.LeaderLease
	err := l.caller().do(ctx, "GET", path, nil, plainContent()).Into(lease)
	if apierrors.IsNotFound(err) {
		l.agent = agentFacts{err: because(v1alpha1.ReasonAgentNotReady, errors.New("the agent has not started yet"))}
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the agent's lease: %w", err)
	}
	now := l.pool.now()
	f := &l.agent
	f.err = nil
	if f.lease != lease.ResourceVersion {
		f.lease, f.changed = lease.ResourceVersion, now
	}
	digest := lease.Labels[v1alpha1.ReportLabel]
	if f.report == nil || urgent || digest == "" || digest != f.digest {
		report, err := l.readReport(ctx)
		if err != nil && reasonOf(err) != v1alpha1.ReasonReportMissing {
			return err
		}
		f.report, f.digest, f.err = report, digest, err
	}
	if now.Sub(f.changed) > agentSilence {
		f.err = because(v1alpha1.ReasonAgentNotReady, fmt.Errorf("the agent has not renewed its lease since %s; see the pods of namespace %s in the child",
			f.changed.UTC().Format(time.RFC3339), v1alpha1.AgentNamespace))
	}
	return nil
}

func (l *link) readReport(ctx context.Context) (*v1alpha1.Report, error) {
	cm := &corev1.ConfigMap{}
	path := "/api/v1/namespaces/" + v1alpha1.AgentNamespace + "/configmaps/" + v1alpha1.ReportConfigMap
	err := l.caller().do(ctx, "GET", path, nil, plainContent()).Into(cm)
	if apierrors.IsNotFound(err) {
		return nil, because(v1alpha1.ReasonReportMissing, errors.New("the agent has not reported yet"))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read report: %w", err)
	}
	return parseReport(cm.Data[v1alpha1.ReportKey])
}
