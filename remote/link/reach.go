package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/report"
)

// reach sends a request to the API server, which also shows that the server is
// there. The request reads the identity of the cluster if that is not known, and the
// heartbeat of its agent otherwise.
func (l *Link) reach(ctx context.Context, q Request) error {
	if q.Brief {
		err := l.verify(ctx)
		if err == nil && q.Agent && l.identity == q.Recorded {
			_, _, err = l.readHeartbeat(ctx)
		}
		return err
	}
	asked, err := l.identify(ctx)
	if err != nil {
		return err
	}
	if q.Recorded != l.identity {
		return nil // the run decides what follows
	}
	if l.minted == nil || !l.pool.now().Before(l.renewAt) {
		// Where the account does not exist yet, the next push creates it.
		if err := l.renew(ctx); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return err
		}
	}
	if !q.Agent {
		l.unwatch()
		l.agent = Agent{}
		if asked {
			return nil
		}
		return l.verify(ctx)
	}
	return l.readAgent(ctx, q.Urgent)
}

// identify reads the identity of the cluster once for each connection, and its
// version whenever a token is renewed. asked: the identity was read just now.
func (l *Link) identify(ctx context.Context) (asked bool, err error) {
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
		raw, err := l.prober().do(ctx, "GET", "/version", nil, plainContent()).Raw()
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
func (l *Link) ready(ctx context.Context) error {
	raw, err := l.caller().do(ctx, "GET", "/readyz", nil, plainContent()).Raw()
	switch {
	case err == nil, apierrors.IsForbidden(err), apierrors.IsNotFound(err), apierrors.IsUnauthorized(err):
		return nil
	}
	return fmt.Errorf("API server is not ready, /readyz: %w: %s", err, excerpt(raw))
}

// verify makes sure that the child is who it was: behind one address there may
// be another cluster from one moment to the next.
func (l *Link) verify(ctx context.Context) error {
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

// partialContent is for requests for the metadata of an object.
func partialContent() rest.ClientContentConfig {
	content := plainContent()
	content.AcceptContentTypes = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
	return content
}

// renew requests a token of the parent's own account, with the present one or
// with the kubeconfig. It stores nothing in the child.
func (l *Link) renew(ctx context.Context) error {
	seconds := int64(tokenLife.Seconds())
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	request.SetGroupVersionKind(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"))
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("cannot encode token request: %w", err)
	}
	path := "/api/v1/namespaces/" + v1alpha1.AgentNamespace + "/serviceaccounts/" + v1alpha1.ParentServiceAccount + "/token"
	got := &authenticationv1.TokenRequest{}
	as := l.caller()
	raw, err := as.do(ctx, "POST", path, body, plainContent()).Raw()
	if err == nil {
		err = json.Unmarshal(raw, got)
	}
	if err != nil {
		return fmt.Errorf("cannot request a token for the parent: %w", err)
	}
	// Counted by our clock: that of the child may be wrong.
	life := tokenLife
	if s := got.Spec.ExpirationSeconds; s != nil && *s > 0 {
		life = min(life, time.Duration(min(*s, seconds))*time.Second)
	}
	if life < shortestToken {
		return fmt.Errorf("cannot use a token of the parent: the API server of the child gives it for %s, shorter than %s", life, shortestToken)
	}
	minted, err := calls(&rest.Config{Host: l.host, TLSClientConfig: l.tls, Proxy: l.proxy, BearerToken: got.Status.Token}, l.pool.Addresses, l.mayWrite)
	if err != nil {
		return err
	}
	// The child counts by the clock on the wall. The other one stands still while a machine
	// is suspended.
	now := l.pool.now().Round(0)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.minted.release()
	l.lent.release()
	// The kubeconfig has served but for the session that follows; it is read again when it is needed.
	// One that a token which renews itself has beside it was never tried: the child may refuse it.
	lent := l.admin
	if as != l.admin {
		l.admin.release()
		lent = nil
	}
	l.minted, l.admin, l.lent = minted, nil, lent
	l.renewAt, l.expires = now.Add(life*2/3), now.Add(life-tokenMargin)
	l.versionStale = true // it may have been upgraded
	return nil
}

const (
	// AgentSilence is how long an agent may not renew its heartbeat before it counts as
	// dead. It renews every report.Heartbeat.
	AgentSilence = 3 * report.Heartbeat
	// lookAfter is how old, at most, what was seen of a report may be when its digest has
	// not changed. Somebody may have deleted or changed the report, which the heartbeat does
	// not tell. The agent writes it again by itself within seconds, so this is for one that
	// does not.
	lookAfter = 10 * time.Minute
	// absentFor is how long an agent that has no heartbeat is not asked for one again. The
	// watch tells when it has.
	absentFor = 10 * time.Minute
)

// readAgent reads the heartbeat of the child's agent. It shows that the agent is alive and
// whether there is a new report. An urgent run reads the report each time.
func (l *Link) readAgent(ctx context.Context, urgent bool) error {
	digest, found, err := l.readHeartbeat(ctx)
	if err != nil {
		return err
	}
	f := &l.agent
	if !found {
		*f = Agent{Err: reason.Because(v1alpha1.ReasonAgentNotReady, errors.New("the agent has not started yet"))}
		return nil
	}
	f.Err = nil
	if f.Report == nil || urgent || l.Changed() || digest == "" || digest != f.digest && digest != f.text {
		if err := l.readReport(ctx, f, digest); err != nil {
			return err
		}
	} else if !l.pool.now().Before(f.look) {
		if err := l.lookAtReport(ctx, f); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	f.Renewed = l.beat.renewed
	if l.pool.now().Sub(l.beat.at) > AgentSilence {
		f.Err = Silent(l.beat.at)
	}
	return nil
}

// readHeartbeat reads the Lease that stands for the agent, and returns the digest of the
// report that it tells of. An agent of an earlier version has no heartbeat, or one that a
// later version left: it is alive if the leader's Lease is renewed. A parent of an earlier
// version did not grant itself the right to read heartbeats; the next push does.
func (l *Link) readHeartbeat(ctx context.Context) (digest string, found bool, err error) {
	if l.beats() {
		beat, err := l.lease(ctx, v1alpha1.HeartbeatLease)
		if err != nil && !apierrors.IsForbidden(err) {
			return "", false, err
		}
		if found = beat != nil; found {
			digest = beat.Labels[v1alpha1.ReportLabel]
		}
		if l.heartbeatRead(beat) {
			return digest, found, nil
		}
	}
	leader, err := l.lease(ctx, v1alpha1.LeaderLease)
	if err != nil || leader == nil {
		return digest, found, err
	}
	if l.leaderRead(leader, found) {
		digest = leader.Labels[v1alpha1.ReportLabel]
	}
	return digest, true, nil
}

// beats reports whether the agent may have a heartbeat.
func (l *Link) beats() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.beat.lease == v1alpha1.HeartbeatLease || !l.pool.now().Before(l.beat.absent.Add(absentFor))
}

// heartbeatRead notes what was read of the heartbeat, nil if there is none, and reports
// whether it shows that the agent is alive.
func (l *Link) heartbeatRead(found *coordinationv1.Lease) (alive bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, h := l.pool.now(), &l.beat
	if found == nil {
		h.absent = now
		return false
	}
	h.seen(v1alpha1.HeartbeatLease, found.ResourceVersion, now)
	return now.Sub(h.at) <= AgentSilence
}

// leaderRead notes what was read of the leader's Lease, and reports whether that stands
// for the agent: there is no heartbeat, or it is not renewed while the leader's Lease is.
func (l *Link) leaderRead(found *coordinationv1.Lease, beats bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, h := l.pool.now(), &l.beat
	before := h.leader
	h.leader = found.ResourceVersion
	if beats {
		if before == "" || before == h.leader {
			return false
		}
		h.lease, h.version, h.absent = v1alpha1.LeaderLease, before, now
	}
	h.seen(v1alpha1.LeaderLease, h.leader, now)
	return true
}

// lease reads a Lease of the agent, nil if there is none.
func (l *Link) lease(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	err := l.prober().do(ctx, "GET", leasesPath+"/"+name, nil, plainContent()).Into(lease)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read Lease %s of the agent: %w", name, err)
	}
	return lease, nil
}

// Silent is the error of an agent that does not renew its heartbeat.
func Silent(since time.Time) error {
	return reason.Because(v1alpha1.ReasonAgentNotReady, fmt.Errorf("the agent has not renewed its heartbeat since %s; see the pods of namespace %s in the child",
		since.UTC().Format(time.RFC3339), v1alpha1.AgentNamespace))
}

const (
	// reportPath is where the report of a child is, and leasesPath where its heartbeat is.
	reportPath = "/api/v1/namespaces/" + v1alpha1.AgentNamespace + "/configmaps/" + v1alpha1.ReportConfigMap
	leasesPath = "/apis/coordination.k8s.io/v1/namespaces/" + v1alpha1.AgentNamespace + "/leases"
)

// readReport reads the report, or why there is none. The error is one of the call.
func (l *Link) readReport(ctx context.Context, f *Agent, digest string) error {
	cm, changes := &corev1.ConfigMap{}, l.changes()
	err := l.prober().do(ctx, "GET", reportPath, nil, plainContent()).Into(cm)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot read report: %w", err)
	}
	f.Report, f.Err = nil, nil
	if err != nil {
		f.Err = reason.Because(v1alpha1.ReasonReportMissing, errors.New("the agent has not reported yet, or somebody deleted its report"))
	} else if f.Report, err = report.Parse(cm.Data[v1alpha1.ReportKey]); err != nil {
		f.Err = reason.Because(v1alpha1.ReasonReportMissing, err)
	}
	f.digest, f.version = digest, cm.ResourceVersion
	f.text = report.Digest(cm.Data[v1alpha1.ReportKey])
	l.read(f.text, changes)
	l.lookLater(f)
	return nil
}

// lookAtReport finds out whether the report is still the one that was read. Of the
// ConfigMap it asks for the metadata only: a report has up to 96 KiB.
func (l *Link) lookAtReport(ctx context.Context, f *Agent) error {
	var found metav1.PartialObjectMetadata
	raw, err := l.prober().do(ctx, "GET", reportPath, nil, partialContent()).Raw()
	if err == nil {
		err = json.Unmarshal(raw, &found)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cannot look at report: %w", err)
	}
	if err != nil || found.ResourceVersion != f.version {
		return l.readReport(ctx, f, f.digest)
	}
	l.lookLater(f)
	return nil
}

// lookLater says when to look at the report again. Children that were connected together
// are not looked at together.
func (l *Link) lookLater(f *Agent) {
	f.look = l.pool.now().Add(time.Duration(float64(lookAfter) * (0.9 + 0.1*l.pool.random())))
}

// excerpt bounds what is quoted of an answer.
func excerpt(raw []byte) string {
	const most = 500
	if len(raw) > most {
		return strings.ToValidUTF8(string(raw[:most]), "") + "..."
	}
	return string(raw)
}
