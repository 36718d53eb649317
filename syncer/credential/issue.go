package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"time"

	"github.com/golang-jwt/jwt/v5"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/vault"
)

// cleanup bounds what is undone after an error.
const cleanup = 30 * time.Second

// issue gets a credential and writes it into the Secret.
func (k *keeping) issue(ctx context.Context) error {
	if k.foreign {
		return k.write(ctx, content{}) // it says whose the Secret is; nothing is leased for it
	}
	switch spec := &k.obj.Spec; {
	case spec.Vault != nil:
		return k.issueByVault(ctx, spec.Vault)
	case spec.ServiceAccountToken != nil:
		return k.issueToken(ctx, spec.ServiceAccountToken)
	case spec.File != nil:
		return k.issueFile(ctx, spec.File)
	}
	return because(v1alpha1.ReasonInvalidSpec, "cannot get a credential: spec names no source")
}

// issueByVault logs in, writes that down, and asks in the login. What was leased is written
// down before the Secret has it: whoever comes next knows by the Secret's number whether it
// got there.
func (k *keeping) issueByVault(ctx context.Context, spec *v1alpha1.VaultSource) error {
	server, login, err := k.login(ctx, spec)
	if err != nil {
		return err
	}
	session, err := k.Vault.Login(ctx, server, login)
	if err != nil {
		return err
	}
	e := entry{
		Number: k.nextNumber(), Address: server.Address, Namespace: server.Namespace, CA: server.CA,
		Token: session.Token.ID, Batch: session.Token.Batch, Extensible: session.Token.Renewable, LoginExpires: session.Token.Expires,
	}
	note := func(ctx context.Context) error {
		return k.record.change(ctx, func(j *journal) {
			j.Next = e.Number + 1
			if at := j.find(e.Number); at != nil {
				*at = e
				return
			}
			j.Entries = append(j.Entries, e)
		})
	}
	if err := note(ctx); err != nil {
		k.undo(ctx, session)
		return err
	}
	answer, err := session.Request(ctx, vault.Request{Path: spec.Request.Path, Method: methodOf(spec), Parameters: spec.Request.Parameters})
	if err != nil {
		// Whether something was leased is not known: it ends with the login, which is in the
		// journal if this does not succeed.
		if k.undo(ctx, session) {
			err = errors.Join(err, k.record.change(ctx, func(j *journal) { j.drop(e.Number) }))
		}
		return err
	}
	c := content{number: e.Number, issued: answer.Asked, renewed: answer.Asked, expires: End(answer.Data, answer.Asked)}
	if lease := answer.Lease; lease.ID != "" {
		e.Lease, e.Renewable, e.Life = lease.ID, lease.Renewable, lease.Duration
		if ends := answer.Asked.Add(lease.Duration); c.expires.IsZero() || ends.Before(c.expires) {
			c.expires = ends
		}
		if !e.LoginExpires.IsZero() && e.LoginExpires.Before(c.expires) {
			c.expires = e.LoginExpires // what is leased ends with the login
		}
		e.Expires = c.expires
	}
	if !c.expires.IsZero() && !k.Now().Before(c.expires) {
		k.undo(ctx, session, e.Lease)
		return because(v1alpha1.ReasonAnswerInvalid, "cannot use the answer of %s: what it has lapsed at %s", spec.Request.Path, c.expires.UTC().Format(time.RFC3339))
	}
	c.renewAt = k.renewAt(c.issued, c.expires)
	e.RenewAt = c.renewAt
	if c.data, err = Fill(k.obj.Spec.Target.Data, answer.Data); err != nil {
		k.undo(ctx, session, e.Lease)
		return &failure{v1alpha1.ReasonAnswerInvalid, err}
	}
	if e.Lease != "" {
		if err := note(ctx); err != nil {
			k.undo(ctx, session, e.Lease)
			return err
		}
	}
	if k.MayWrite != nil {
		if err := k.MayWrite(); err != nil {
			return err // who may revokes it
		}
	}
	k.same(&c)
	if err := k.write(ctx, c); err != nil {
		if refused(err) {
			k.giveBack(ctx, session, e)
		}
		return err // the next look finds what is left of it
	}
	if e.Lease == "" && k.undo(ctx, session) {
		// It is not bound to the login, which has done its work.
		return k.record.change(ctx, func(j *journal) { j.drop(e.Number) })
	}
	return nil
}

// refused reports whether the API server answered that it did not write.
func refused(err error) bool {
	var answer apierrors.APIStatus
	return errors.As(err, &answer) && answer.Status().Code >= 400 && answer.Status().Code < 500
}

// giveBack ends what was leased for a Secret that was not written. Only the one who leased it
// knows at once that it is of no use: for others it may be what readers have.
func (k *keeping) giveBack(ctx context.Context, session *vault.Session, e entry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	there := &corev1.Secret{}
	err := k.Live.Get(ctx, client.ObjectKey{Namespace: k.obj.Namespace, Name: k.obj.SecretName()}, there)
	if client.IgnoreNotFound(err) != nil || there.Annotations[v1alpha1.CredentialAnnotation] == strconv.FormatInt(e.Number, 10) {
		return // it may have got there, whatever was answered
	}
	if k.undo(ctx, session, e.Lease) {
		// If that is refused, the next look finds that it has ended.
		_ = k.record.change(ctx, func(j *journal) { j.drop(e.Number) })
	}
}

// undo ends a session, also at the end of the reconcile, and reports whether it has ended.
func (k *keeping) undo(ctx context.Context, session *vault.Session, leases ...string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	if session.Token.Batch {
		return session.Revoke(ctx, withoutEmpty(leases)...) == nil
	}
	return session.Revoke(ctx) == nil
}

func withoutEmpty(list []string) []string {
	var some []string
	for _, one := range list {
		if one != "" {
			some = append(some, one)
		}
	}
	return some
}

// nextNumber is that of the next credential.
func (k *keeping) nextNumber() int64 {
	next := k.record.journal.Next
	if s := k.facts.Secret; s != nil {
		next = max(next, s.Number+1)
	}
	return next
}

// renewAt is when something is due again.
func (k *keeping) renewAt(issued, expires time.Time) time.Time {
	if expires.IsZero() {
		interval := max(k.obj.Spec.Interval.Duration, time.Second)
		return issued.Add(interval - time.Duration(k.Random()*float64(interval)/10))
	}
	var before time.Duration
	if b := k.obj.Spec.RenewBefore; b != nil {
		before = b.Duration
	}
	return RenewAt(issued, expires, before, k.Random())
}

// same keeps the number of what is not leased and has the same content as before: nobody who
// reads it has to be restarted.
func (k *keeping) same(c *content) {
	if k.secret == nil || k.facts.Secret == nil || !k.facts.Secret.Intact || k.record.journal.find(k.facts.Secret.Number) != nil {
		return
	}
	if len(k.secret.Data) != len(c.data) {
		return
	}
	for key, value := range c.data {
		if !bytes.Equal(k.secret.Data[key], value) {
			return
		}
	}
	if e := k.record.journal.find(c.number); e == nil || e.Lease == "" {
		c.number = k.facts.Secret.Number
	}
}

// renew makes the life of a lease longer.
func (k *keeping) renew(ctx context.Context, number int64) error {
	e := k.record.journal.find(number)
	if e == nil {
		return because(v1alpha1.ReasonRecordInvalid, "cannot renew what Secret %s has: nothing is known of its lease", k.obj.SecretName())
	}
	session, err := k.resume(e)
	if err != nil {
		return err
	}
	expires, err := session.Renew(ctx, vault.Lease{ID: e.Lease, Duration: e.Life})
	if errors.Is(err, vault.ErrGone) {
		return k.record.change(ctx, func(*journal) { e.Gone = true })
	}
	if err != nil {
		return err
	}
	now := k.Now()
	if login := session.Token.Expires; !login.IsZero() && login.Before(expires) {
		expires = login
	}
	// What the content says of its own end a renewal does not change.
	if end := endOfData(k.secret.Data); !end.IsZero() && end.Before(expires) {
		expires = end
	}
	renewAt := k.renewAt(now, expires)
	if err := k.record.change(ctx, func(*journal) {
		e.Expires, e.RenewAt, e.LoginExpires = expires, renewAt, session.Token.Expires
		e.Renewable = !Spent(now, expires, e.Life)
	}); err != nil {
		return err
	}
	return k.prolong(ctx, now, renewAt, expires)
}

// endOfData is when what a Secret has ends by its content.
func endOfData(data map[string][]byte) time.Time {
	var first time.Time
	for _, value := range data {
		if end := EndOf(value); !end.IsZero() && (first.IsZero() || end.Before(first)) {
			first = end
		}
	}
	return first
}

// revoke ends a login, and what was leased in it.
func (k *keeping) revoke(ctx context.Context, number int64) error {
	e := k.record.journal.find(number)
	if e == nil {
		return nil
	}
	session, err := k.resume(e)
	if err != nil {
		return err
	}
	var leases []string
	if e.Lease != "" {
		leases = append(leases, e.Lease)
	}
	if err := session.Revoke(ctx, leases...); err != nil {
		return err
	}
	delete(k.attempts.revoking, number)
	return k.record.change(ctx, func(j *journal) { j.drop(number) })
}

func (k *keeping) resume(e *entry) (*vault.Session, error) {
	return k.Vault.Resume(vault.Server{Address: e.Address, Namespace: e.Namespace, CA: e.CA},
		vault.Token{ID: e.Token, Batch: e.Batch, Renewable: e.Extensible, Expires: e.LoginExpires})
}

func methodOf(spec *v1alpha1.VaultSource) string {
	if spec.Request.Method == "" {
		return "GET"
	}
	return spec.Request.Method
}

// issueToken has the API server issue a token of an account that allows it.
func (k *keeping) issueToken(ctx context.Context, spec *v1alpha1.ServiceAccountTokenSource) error {
	account := &corev1.ServiceAccount{}
	if err := k.Live.Get(ctx, client.ObjectKey{Namespace: k.obj.Namespace, Name: spec.ServiceAccountName}, account); err != nil {
		return because(v1alpha1.ReasonCredentialMissing, "cannot read ServiceAccount %s: %w", spec.ServiceAccountName, err)
	}
	if !lists(account.Annotations[v1alpha1.CredentialsAnnotation], k.obj.Name, func(a, b string) bool { return a == b }) {
		return because(v1alpha1.ReasonCredentialRefused, "cannot use a token of ServiceAccount %s: it has to name this Credential in its annotation %s: %q",
			account.Name, v1alpha1.CredentialsAnnotation, k.obj.Name)
	}
	asked := k.Now()
	issued, err := k.token(ctx, account, spec.Audiences, spec.Lifetime.Duration)
	if err != nil {
		return err
	}
	// Counted by our clock: that of the API server may be another.
	expires := asked.Add(lifeOf(issued))
	fields := map[string]any{"token": issued.Status.Token}
	data, err := Fill(k.obj.Spec.Target.Data, fields)
	if err != nil {
		return &failure{v1alpha1.ReasonAnswerInvalid, err}
	}
	c := content{number: k.nextNumber(), data: data, issued: asked, renewed: asked, expires: expires, renewAt: k.renewAt(asked, expires)}
	return k.writeUnleased(ctx, c)
}

// writeUnleased writes what has no lease, and remembers its number.
func (k *keeping) writeUnleased(ctx context.Context, c content) error {
	k.same(&c)
	if c.number >= k.record.journal.Next {
		if err := k.record.change(ctx, func(j *journal) { j.Next = c.number + 1 }); err != nil {
			return err
		}
	}
	return k.write(ctx, c)
}

// shortest and longest lives of tokens that the API server issues.
const (
	shortestToken = 10 * time.Minute
	longestToken  = 24 * time.Hour
)

// lifeOf is for how long a token is good that was asked for just now: the API server says how much of what it
// was asked for it gives, and so does the token.
func lifeOf(issued *authenticationv1.TokenRequest) time.Duration {
	life := shortestToken
	if seconds := issued.Spec.ExpirationSeconds; seconds != nil && *seconds > 0 {
		life = min(time.Duration(*seconds)*time.Second, longestToken)
	}
	claims := jwt.RegisteredClaims{}
	_, _, err := jwt.NewParser().ParseUnverified(issued.Status.Token, &claims)
	if err == nil && claims.IssuedAt != nil && claims.ExpiresAt != nil && claims.ExpiresAt.After(claims.IssuedAt.Time) {
		life = min(life, claims.ExpiresAt.Sub(claims.IssuedAt.Time))
	}
	return life
}

// token has the API server issue a token.
func (k *keeping) token(ctx context.Context, account *corev1.ServiceAccount, audiences []string, life time.Duration) (*authenticationv1.TokenRequest, error) {
	seconds := int64(min(max(life, shortestToken), longestToken) / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences, ExpirationSeconds: &seconds}}
	if err := k.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return nil, because(v1alpha1.ReasonCredentialMissing, "cannot have a token of ServiceAccount %s issued: %w", account.Name, err)
	}
	if request.Status.Token == "" {
		return nil, because(v1alpha1.ReasonCredentialMissing, "cannot have a token of ServiceAccount %s issued: the API server gave none", account.Name)
	}
	return request, nil
}

// issueFile reads a file.
func (k *keeping) issueFile(ctx context.Context, spec *v1alpha1.FileSource) error {
	switch {
	case k.obj.Namespace != k.Namespace:
		return because(v1alpha1.ReasonCredentialRefused, "cannot read file %s: files are for Credentials of namespace %s alone", spec.Path, k.Namespace)
	case k.Files == nil:
		return because(v1alpha1.ReasonCredentialRefused, "cannot read file %s: the agent has no --credential-files", spec.Path)
	}
	asked := k.Now()
	text, err := k.file(spec.Path)
	if err != nil {
		return because(v1alpha1.ReasonFileUnreadable, "cannot read file %s below --credential-files: %w", spec.Path, err)
	}
	fields := map[string]any{path.Base(spec.Path): string(text)}
	data, err := Fill(k.obj.Spec.Target.Data, fields)
	if err != nil {
		return &failure{v1alpha1.ReasonAnswerInvalid, err}
	}
	c := content{number: k.nextNumber(), data: data, issued: asked, renewed: asked, expires: EndOf(text)}
	if !c.expires.IsZero() && !asked.Before(c.expires) {
		return because(v1alpha1.ReasonFileUnreadable, "cannot use file %s: what it has lapsed at %s, and nobody has replaced it", spec.Path, c.expires.UTC().Format(time.RFC3339))
	}
	// Whoever replaces the file does so when it likes.
	c.renewAt = k.renewAt(asked, time.Time{})
	if !c.expires.IsZero() {
		if due := k.renewAt(asked, c.expires); due.Before(c.renewAt) {
			c.renewAt = due
		}
	}
	return k.writeUnleased(ctx, c)
}

func (k *keeping) file(name string) ([]byte, error) {
	f, err := k.Files.Open(name)
	if err != nil {
		return nil, errors.Unwrap(err) // without the path of the directory
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is no file")
	}
	text, err := io.ReadAll(io.LimitReader(f, mostContent+1))
	switch {
	case err != nil:
		return nil, errors.Unwrap(err)
	case len(text) > mostContent:
		return nil, fmt.Errorf("it has more than %d bytes", mostContent)
	}
	return text, nil
}
