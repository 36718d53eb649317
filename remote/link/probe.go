package link

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/access"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/park"
)

const (
	// probeTimeout bounds all calls of a probe together.
	probeTimeout = 25 * time.Second
	// probeGrace is how long after that a probe may take to end.
	probeGrace = 5 * time.Second
	// resultHolds is how long a run may act upon the result of a probe. Runs that wait for
	// processor time come late, each time: with less, a child that failed while thousands were
	// seeded was probed again and again, and tried again only when the others were done.
	resultHolds = time.Minute
	// tokenLife is asked for; the API server may shorten it.
	tokenLife = time.Hour
	// tokenMargin before its end a token is not used any more.
	tokenMargin = 30 * time.Second
	// shortestToken is the shortest life of a token that is good for a probe. A server of Kubernetes gives
	// ten minutes at least.
	shortestToken = tokenMargin + probeTimeout
	// againAfter is how often at most a source that tells of no change is read again for a child that does
	// not answer: a cloud refuses who asks it for each of a thousand of these with each probe.
	againAfter = 2 * time.Minute
)

// UnreadError: the kubeconfig could not be read, as this tier's own API server did not answer or
// had an error. It says nothing of the child, nor of whether there is a kubeconfig.
type UnreadError struct{ Err error }

func (e *UnreadError) Error() string { return e.Err.Error() }
func (e *UnreadError) Unwrap() error { return e.Err }

// UnreadHolds is for how long what is known of a child stands while its kubeconfig is unread.
const UnreadHolds = 30 * time.Second

// Request is what a reconcile wants to know of a child.
type Request struct {
	// Source identifies the kubeconfig that there is now, and Read reads it. An error of the
	// tier's own API server is an *UnreadError.
	Source string
	Read   func(ctx context.Context) (*rest.Config, error)
	// Again reads it where the child stopped to answer, past all that is remembered of it. It is nil if Source
	// tells when that leads elsewhere, which a ConfigMap does not that names the cluster of a cloud.
	Again func(ctx context.Context) (*rest.Config, error)
	// Recorded is the identity on record, empty before the first contact.
	Recorded string
	// Agent: the child is to have an agent, which reports.
	Agent bool
	// Urgent: the reconcile is not a periodic one.
	Urgent bool
	// Lost: the child is on record as one that does not answer.
	Lost bool
	// Brief: it is enough to know whether the recorded cluster answers, and its agent.
	Brief bool
}

// turn is that of the reconcile which gets the result of the probe.
func (q Request) turn(err error) Turn {
	switch {
	case q.Urgent || err != nil:
		return Urgent
	case q.Brief:
		return TakenOver
	}
	return Due
}

// Result is what a probe found.
type Result struct {
	At time.Time
	// Err has a reason. Passing: the next probe, soon, may well succeed.
	Err     error
	Passing bool
	// Identity and Version of the cluster that responded.
	Identity, Version string
	Agent             Agent
	// Brief: nothing else is known than that the cluster of the identity answers.
	Brief bool
}

// Agent is what is known of a child's agent. The report is only read when the heartbeat
// says that it changed.
type Agent struct {
	// Report is the last one, nil before the first.
	Report *v1alpha1.Report
	// Err is why there is no report, or the agent is not alive. It has a reason.
	Err error
	// Renewed: the agent was seen to be alive in the life of this process.
	Renewed bool
	// digest that the heartbeat had when the report was read last, text the digest of what
	// was read, and version that of its ConfigMap.
	digest, text, version string
	// look is when to look next whether the report is still there.
	look time.Time
}

// Ask returns the result of a probe that ended, or starts a probe. Without a result
// the run ends, and the child is reconciled again when the probe is done, or after
// wait if that is not zero; after a result with an error the next probe comes after wait.
// While the watch tells that the agent is alive, and what it reported was read, the result
// needs no probe. A probe that does not end at its time counts as one that failed, until
// it ends: what was known before must not stand for as long.
func (l *Link) Ask(q Request) (a *Result, wait time.Duration) {
	now := l.pool.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.probing && l.overdue {
		err := fmt.Errorf("a probe has not ended after %s, and there is no other meanwhile; restart the agent if this stays", probeTimeout+probeGrace)
		return &Result{At: now, Err: reason.Because(v1alpha1.ReasonUnreachable, err)}, breakPause
	}
	if l.probing {
		return nil, 0
	}
	a, l.result = l.result, nil
	if a != nil && a.Err == nil && a.Brief && !q.Brief {
		a = nil
	}
	if a != nil && now.Sub(a.At) < resultHolds && (a.Err != nil || l.source == q.Source) {
		return a, l.notBefore.Sub(now)
	}
	if wait := l.notBefore.Sub(now); wait > 0 && l.tried == q.Source {
		return nil, wait
	}
	if l.answered(q, now) {
		a = &Result{At: now, Identity: l.identity, Version: l.version, Agent: l.agent}
		a.Agent.Renewed = true
		l.noteContact(q, a)
		return a, 0
	}
	l.probing = true
	go l.probe(q)
	return nil, 0
}

// answered reports whether all that a probe asks for is known by the watch. The caller
// holds the lock, and no probe is under way.
func (l *Link) answered(q Request, now time.Time) bool {
	return q.Agent && !q.Urgent && l.beat.tells(now) && !l.beat.changed &&
		l.source == q.Source && q.Recorded != "" && l.identity == q.Recorded && l.failures == 0 &&
		l.minted != nil && now.Before(l.renewAt) && !l.versionStale &&
		l.agent.Report != nil && l.agent.Err == nil && now.Before(l.agent.look)
}

// probe is owned by the link: it ends with the link's life. Its time is counted from when it has
// a place: after a start thousands wait for one, and that says nothing of a child.
func (l *Link) probe(q Request) {
	leave, err := l.pool.enter(l.life, q.Lost || l.failures > 0)
	if err != nil {
		return // the life has ended
	}
	defer leave()
	ctx, cancel := context.WithTimeout(l.life, probeTimeout)
	defer cancel()
	ended := false // guarded by the lock
	late := time.AfterFunc(probeTimeout+probeGrace, func() {
		l.mu.Lock()
		over := !ended && l.life.Err() == nil
		if over {
			l.overdue, l.answers, l.broken = true, false, true
		}
		l.mu.Unlock()
		if over {
			l.pool.Wake(l.key, Urgent)
		}
	})
	defer late.Stop()
	l.takeBack()
	a := l.runProbe(ctx, q)
	l.mu.Lock()
	ended = true
	l.probing, l.overdue, l.result = false, false, a
	l.noteContact(q, a)
	l.mu.Unlock()
	if l.life.Err() == nil {
		l.pool.Wake(l.key, q.turn(a.Err))
	}
}

// noteContact notes when the child was heard of, after a probe that it answered. The caller
// holds the lock.
func (l *Link) noteContact(q Request, a *Result) {
	l.answers, l.broken = a.Err == nil && a.Identity == q.Recorded, l.failures >= breakAfter
	switch {
	case a.Err != nil || a.Identity != q.Recorded:
	case !q.Agent:
		l.heard, l.proven = a.At, true
	case !l.beat.at.IsZero():
		l.heard, l.proven = l.beat.at, l.beat.renewed
	}
}

func (l *Link) runProbe(ctx context.Context, q Request) *Result {
	l.tried = q.Source
	q.Brief = q.Brief && l.identity == ""
	err := l.follow(ctx, q)
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
	a := &Result{At: l.pool.now(), Identity: l.identity, Version: l.version, Agent: l.agent, Brief: q.Brief}
	if err == nil {
		if l.succeeded(); !q.Brief {
			l.watchAgent(q)
		}
		return a
	}
	var unread *UnreadError
	if errors.As(err, &unread) {
		// The child was not called: nothing is known of it that was not known before.
		if l.unread.IsZero() {
			l.unread = a.At
		}
		l.rest(retryPause)
		a.Err, a.Passing = reason.Because(v1alpha1.ReasonKubeconfigMissing, err), a.At.Sub(l.unread) < UnreadHolds
		return a
	}
	l.failed()
	// One refused connection may be a restart of the API server; a time-out is not.
	var timeout net.Error
	a.Passing = l.failures == 1 && !l.responded.IsZero() && !(errors.As(err, &timeout) && timeout.Timeout())
	var refused *answer.Error
	switch {
	case errors.As(err, &refused):
		err = reason.Because(refused.Reason, fmt.Errorf("cannot use what answers at %s: %w", l.host, refused))
	case apierrors.IsUnauthorized(err):
		lapsed := ""
		if l.lapsed() {
			lapsed = ", they lapsed at " + l.lapses.UTC().Format(time.RFC3339)
		}
		err = reason.Because(v1alpha1.ReasonUnauthorized, fmt.Errorf("%w; the credentials of Secret %s are refused%s: renew them", err, q.Source, lapsed))
	case !reason.Given(err): // none of ours
		err = reason.Because(v1alpha1.ReasonUnreachable, steady(err, l.host))
	}
	a.Err = err
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
func (l *Link) regrant(ctx context.Context, q Request) error {
	l.drop()
	l.identity = ""
	l.doubt()
	if err := l.reread(ctx, q); err != nil {
		return err
	}
	if err := l.verify(ctx); err != nil || l.identity != q.Recorded {
		return err
	}
	admin, err := l.cluster(l.admin)
	if err != nil {
		return err
	}
	return writeAccess(ctx, admin, append(access.Account(), access.Role(access.BaseRole, access.BaseRights())...))
}

// follow makes sure that the link has credentials from the present kubeconfig. Of a source that does not
// tell, it is read again where the child stopped to answer: its server may be elsewhere by now, or have
// another CA. Should that fail, the child is asked where it was.
func (l *Link) follow(ctx context.Context, q Request) error {
	if as := l.caller(); l.source != q.Source || as == nil || as == l.admin && l.lapsed() {
		return l.reread(ctx, q)
	}
	now := l.pool.now()
	if q.Again == nil || l.failures == 0 || now.Sub(l.again) < againAfter {
		return nil
	}
	l.again, q.Read = now, q.Again
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := l.reread(ctx, q); err != nil && l.caller() == nil {
		return err
	}
	return nil
}

// lapsed reports whether the credential of the kubeconfig that was read last has
// expired, by our clock. The Secret may have another one by now.
func (l *Link) lapsed() bool { return !l.lapses.IsZero() && !l.pool.now().Before(l.lapses) }

func (l *Link) reread(ctx context.Context, q Request) error {
	config, err := l.kubeconfig(ctx, q)
	if err != nil {
		return err
	}
	l.unread = time.Time{}
	return l.use(config, q.Source)
}

// kubeconfig reads the kubeconfig. A cloud that makes it, and takes long for that, keeps no
// worker.
func (l *Link) kubeconfig(ctx context.Context, q Request) (*rest.Config, error) {
	answered := park.Late(ctx, l.pool.pace.late())
	defer answered()
	return q.Read(ctx)
}
