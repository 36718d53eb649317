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
// lease of its agent otherwise.
func (l *Link) reach(ctx context.Context, q Request) error {
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
	return l.readLease(ctx, q.Urgent)
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
	minted, err := calls(&rest.Config{Host: l.host, TLSClientConfig: l.tls, Proxy: l.proxy, BearerToken: got.Status.Token}, l.pool.Addresses, l.mayWrite)
	if err != nil {
		return err
	}
	// The child counts by the clock on the wall. The other one stands still while a machine
	// is suspended.
	now := l.pool.now().Round(0)
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

const (
	// AgentSilence is how long an agent may not renew its lease before it counts as
	// dead. It renews every few seconds.
	AgentSilence = 45 * time.Second
	// lookAfter is how old, at most, what was seen of a report may be when its digest has
	// not changed. Somebody may have deleted or changed the report, which the lease does
	// not tell. The agent writes it again by itself within seconds, so this is for one that
	// does not.
	lookAfter = 4 * time.Minute
)

// readLease reads the lease of the child's agent. The lease shows that the agent is
// alive and, some seconds late, whether there is a new report. An urgent run does not
// wait for the lease: it reads the report each time.
func (l *Link) readLease(ctx context.Context, urgent bool) error {
	lease := &coordinationv1.Lease{}
	path := "/apis/coordination.k8s.io/v1/namespaces/" + v1alpha1.AgentNamespace + "/leases/" + v1alpha1.LeaderLease
	err := l.caller().do(ctx, "GET", path, nil, plainContent()).Into(lease)
	if apierrors.IsNotFound(err) {
		l.agent = Agent{Err: reason.Because(v1alpha1.ReasonAgentNotReady, errors.New("the agent has not started yet"))}
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the agent's lease: %w", err)
	}
	now := l.pool.now()
	f := &l.agent
	f.Err = nil
	if f.lease != lease.ResourceVersion {
		f.Renewed = f.lease != ""
		f.lease, f.changed = lease.ResourceVersion, now
	}
	digest := lease.Labels[v1alpha1.ReportLabel]
	if f.Report == nil || urgent || l.Changed() || digest == "" || digest != f.digest && digest != f.text {
		if err := l.readReport(ctx, f, digest); err != nil {
			return err
		}
	} else if !now.Before(f.look) && !l.watched() {
		if err := l.lookAtReport(ctx, f); err != nil {
			return err
		}
	}
	if now.Sub(f.changed) > AgentSilence {
		f.Err = Silent(f.changed)
	}
	return nil
}

// Silent is the error of an agent that does not renew its lease.
func Silent(since time.Time) error {
	return reason.Because(v1alpha1.ReasonAgentNotReady, fmt.Errorf("the agent has not renewed its lease since %s; see the pods of namespace %s in the child",
		since.UTC().Format(time.RFC3339), v1alpha1.AgentNamespace))
}

// reportPath is where the report of a child is, among those of reportsPath.
const (
	reportsPath = "/api/v1/namespaces/" + v1alpha1.AgentNamespace + "/configmaps"
	reportPath  = reportsPath + "/" + v1alpha1.ReportConfigMap
)

// readReport reads the report, or why there is none. The error is one of the call.
func (l *Link) readReport(ctx context.Context, f *Agent, digest string) error {
	cm, changes := &corev1.ConfigMap{}, l.changes()
	err := l.caller().do(ctx, "GET", reportPath, nil, plainContent()).Into(cm)
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
	l.read(cm.ResourceVersion, changes)
	l.lookLater(f)
	return nil
}

// lookAtReport finds out whether the report is still the one that was read. Of the
// ConfigMap it asks for the metadata only: a report has up to 96 KiB.
func (l *Link) lookAtReport(ctx context.Context, f *Agent) error {
	var found metav1.PartialObjectMetadata
	raw, err := l.caller().do(ctx, "GET", reportPath, nil, partialContent()).Raw()
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
