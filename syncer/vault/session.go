package vault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	vaultapi "github.com/hashicorp/vault/api"
)

// Session is a login. What is leased in it ends with its token at the latest. It is not safe
// for concurrent use.
type Session struct {
	Token Token

	client *vaultapi.Client
	now    func() time.Time
	// secrets must not be in what is told of the session.
	secrets []string
}

// Request of a secrets engine.
type Request struct {
	Path, Method string
	Parameters   map[string]string
}

// Lease is for how long a server lets somebody have something.
type Lease struct {
	// ID is empty for what is not leased: it cannot be renewed or revoked.
	ID string
	// Duration from the request on.
	Duration  time.Duration
	Renewable bool
}

// Answer has a credential.
type Answer struct {
	Data  map[string]any
	Lease Lease
	// Asked is when the request was sent: by then the lease had not begun.
	Asked time.Time
}

// Request asks for a credential.
func (s *Session) Request(ctx context.Context, r Request) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	asked := s.now()
	doing := fmt.Sprintf("request %s %s", r.Method, r.Path)
	var found *vaultapi.Secret
	var err error
	switch r.Method {
	case http.MethodGet:
		query := url.Values{}
		for key, value := range r.Parameters {
			query.Set(key, value)
		}
		found, err = s.client.Logical().ReadWithDataWithContext(ctx, r.Path, query)
	case http.MethodPut, http.MethodPost:
		body := map[string]any{}
		for key, value := range r.Parameters {
			body[key] = value
		}
		found, err = s.client.Logical().WriteWithContext(ctx, r.Path, body)
	default:
		return nil, &Error{Kind: Invalid, text: fmt.Sprintf("cannot %s: there is no such method", doing)}
	}
	if err != nil {
		return nil, wrong(doing, err, s.secrets...)
	}
	return answerOf(doing, found, asked)
}

// answerOf takes from what a server says what can be used of it.
func answerOf(doing string, found *vaultapi.Secret, asked time.Time) (*Answer, error) {
	invalid := func(why string) (*Answer, error) {
		return nil, &Error{Kind: Invalid, text: fmt.Sprintf("cannot %s: %s", doing, why)}
	}
	switch {
	case found == nil:
		return nil, &Error{Kind: Refused, Status: http.StatusNotFound, text: fmt.Sprintf("cannot %s: there is nothing at this path", doing)}
	case found.WrapInfo != nil:
		return invalid("the answer is wrapped: take the wrapping from the role or the policy")
	case len(found.Data) == 0:
		return invalid("the answer has no data")
	case found.LeaseID != "" && found.LeaseDuration <= 0:
		return invalid("the answer has a lease without an end")
	}
	answer := &Answer{Data: found.Data, Asked: asked}
	if found.LeaseID != "" {
		if len(found.LeaseID) > mostLeaseID {
			return invalid("the lease of the answer has a name that is too long")
		}
		answer.Lease = Lease{ID: found.LeaseID, Duration: life(found.LeaseDuration), Renewable: found.Renewable}
	}
	return answer, nil
}

// mostLeaseID bounds the name of a lease.
const mostLeaseID = 1024

// ErrGone: the server knows the lease, or the token that it was given for, no more, or makes its
// life no longer.
var ErrGone = errors.New("the lease is gone")

// Renew makes the life of a lease, and that of the session, as long as it was. It returns
// when the lease ends now.
func (s *Session) Renew(ctx context.Context, l Lease) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if s.Token.Renewable && !s.Token.Expires.IsZero() {
		asked := s.now()
		found, err := s.client.Auth().Token().RenewSelfWithContext(ctx, 0)
		if err != nil {
			e := wrong("renew the login", err, s.secrets...)
			if e.Kind == Refused {
				return time.Time{}, fmt.Errorf("%w: %w", ErrGone, e)
			}
			return time.Time{}, e
		}
		if found != nil && found.Auth != nil {
			if until := ends(asked, found.Auth.LeaseDuration); until.After(s.Token.Expires) {
				s.Token.Expires = until
			}
		}
	}
	asked := s.now()
	found, err := s.client.Sys().RenewWithContext(ctx, l.ID, int(l.Duration/time.Second))
	if err != nil {
		e := wrong("renew the lease", err, s.secrets...)
		if e.Kind == Refused {
			return time.Time{}, fmt.Errorf("%w: %w", ErrGone, e)
		}
		return time.Time{}, e
	}
	if found == nil || found.LeaseDuration <= 0 {
		// Nothing was gained, and the next try gains nothing either.
		return time.Time{}, fmt.Errorf("%w: %w", ErrGone, &Error{Kind: Invalid, text: "cannot renew the lease: the answer gives it no time"})
	}
	return ends(asked, found.LeaseDuration), nil
}

// Revoke ends the session, and with it all that was leased in it. A session that has ended is
// no error.
func (s *Session) Revoke(ctx context.Context, leases ...string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if s.Token.Batch {
		// It cannot be revoked. What it was leased can, if its policy says so.
		for _, id := range leases {
			if err := s.client.Sys().RevokeWithContext(ctx, id); err != nil && !isGone(err) {
				return wrong("revoke the lease", err, s.secrets...)
			}
		}
		return nil
	}
	err := s.client.Auth().Token().RevokeSelfWithContext(ctx, "")
	if err == nil {
		return nil
	}
	if isUnknown(err) {
		return nil
	}
	return wrong("revoke the login", err, s.secrets...)
}

// isUnknown reports whether a server says that it does not know the token. One that it knows
// and that may not is told apart by its words alone.
func isUnknown(err error) bool {
	var response *vaultapi.ResponseError
	if !errors.As(err, &response) || response.StatusCode != http.StatusForbidden {
		return false
	}
	words := strings.ToLower(strings.Join(response.Errors, " "))
	return strings.Contains(words, "invalid token") || strings.Contains(words, "bad token")
}
