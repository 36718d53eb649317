package vault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	vaultapi "github.com/hashicorp/vault/api"

	"github.com/cascade-gitops/cascade/syncer/answer"
)

const (
	// callTimeout bounds one call. A database engine takes seconds to make an account.
	callTimeout = 20 * time.Second
	// probeTimeout bounds the question whether a server is there.
	probeTimeout = 8 * time.Second
	dialTimeout  = 5 * time.Second
	// mostAnswer is the most bytes that are read of an answer. Certificates with their chains
	// have some ten thousand.
	mostAnswer = 1 << 20
	mostHeader = 64 << 10
)

// Server is one Vault.
type Server struct {
	// Address of http or https, without the path /v1.
	Address string
	// Namespace of editions that have them.
	Namespace string
	// CA has certificates in PEM that are trusted instead of the system's.
	CA []byte
}

// Clients make calls to servers.
type Clients struct {
	// Dial connects; nil dials whatever address a name has.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Now is the clock.
	Now func() time.Time
}

// Login is what a session begins with.
type Login struct {
	// Mount path of the auth method.
	Mount string
	// Body of the request.
	Body map[string]string
	// Certificate of the client, nil for methods that need none.
	Certificate *tls.Certificate
}

// CheckAddress refuses what is no address of a server: the library would also dial a path of
// a socket.
func CheckAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return &Error{Kind: Invalid, text: "cannot use the address of Vault: it is not a URL of http or https alone"}
	}
	return nil
}

// tooLargeError is an answer past its bound.
type tooLargeError struct{}

func (*tooLargeError) Error() string { return "the answer is too large" }

// bounded is a transport whose answers have a bound.
type bounded struct{ next answer.Transport }

// RoundTrip implements http.RoundTripper.
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body = &counted{ReadCloser: response.Body, left: mostAnswer}
	return response, nil
}

type counted struct {
	io.ReadCloser
	left int
}

func (c *counted) Read(p []byte) (int, error) {
	if c.left <= 0 {
		// Whether there is more, only a read tells.
		n, err := c.ReadCloser.Read(make([]byte, 1))
		if n > 0 {
			return 0, &tooLargeError{}
		}
		return 0, err
	}
	if len(p) > c.left {
		p = p[:c.left]
	}
	n, err := c.ReadCloser.Read(p)
	c.left -= n
	return n, err
}

// client makes a client of the library, for one session: the library changes what it is given.
func (c *Clients) client(s Server, certificate *tls.Certificate) (*vaultapi.Client, error) {
	if err := CheckAddress(s.Address); err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(s.CA) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(s.CA) {
			return nil, &Error{Kind: Invalid, text: "cannot use the authority of Vault: ca.crt has no certificate in PEM"}
		}
	}
	if certificate != nil {
		config.Certificates = []tls.Certificate{*certificate}
	}
	dial := c.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	transport := answer.Over(&http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			return dial(ctx, network, address)
		},
		TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: callTimeout, MaxResponseHeaderBytes: mostHeader,
		DisableKeepAlives: true, // a session makes one call in minutes
	})
	client, err := vaultapi.NewClient(&vaultapi.Config{
		Address: strings.TrimSuffix(s.Address, "/"), HttpClient: &http.Client{Transport: &bounded{transport}},
		Timeout: callTimeout, DisableRedirects: true, CheckRetry: never,
	})
	if err != nil {
		return nil, &Error{Kind: Invalid, text: "cannot make a client of Vault: " + clean(err.Error(), nil)}
	}
	client.ClearToken()
	client.SetHeaders(http.Header{vaultapi.RequestHeaderName: {"true"}})
	if s.Namespace != "" {
		client.SetNamespace(s.Namespace)
	}
	return client, nil
}

// never tries a call again: who asked knows when that is worth it.
func never(context.Context, *http.Response, error) (bool, error) { return false, nil }

// Probe asks whether a server is there and unsealed. It needs no login.
func (c *Clients) Probe(ctx context.Context, s Server) error {
	client, err := c.client(s, nil)
	if err != nil {
		return err
	}
	client.ClearNamespace() // the health of a server is that of all namespaces
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	response, err := client.Logical().ReadRawWithDataWithContext(ctx, "sys/health", map[string][]string{
		"standbyok": {"true"}, "perfstandbyok": {"true"},
	})
	if response != nil {
		defer response.Body.Close()
	}
	if response != nil && response.StatusCode == http.StatusServiceUnavailable {
		return &Error{Kind: Unreachable, Status: response.StatusCode, text: "cannot ask Vault: it is sealed"}
	}
	if err != nil {
		e := wrong("ask Vault", err)
		if e.Status > 0 {
			e.Kind = Unreachable
		}
		return e
	}
	return nil
}

// Login begins a session.
func (c *Clients) Login(ctx context.Context, s Server, l Login) (*Session, error) {
	client, err := c.client(s, l.Certificate)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	begun := c.Now()
	body, secrets := map[string]any{}, make([]string, 0, len(l.Body))
	for key, value := range l.Body {
		body[key] = value
		if key != "role" && key != "name" {
			secrets = append(secrets, value)
		}
	}
	mount := strings.Trim(l.Mount, "/")
	answer, err := client.Logical().WriteWithContext(ctx, "auth/"+mount+"/login", body)
	if err != nil {
		return nil, wrong("log in at auth/"+mount, err, secrets...)
	}
	if answer == nil || answer.Auth == nil || answer.Auth.ClientToken == "" {
		return nil, &Error{Kind: Invalid, text: fmt.Sprintf("cannot log in at auth/%s: the answer has no token; a method that asks for a second factor cannot be used", mount)}
	}
	session, err := c.Resume(s, Token{
		ID: answer.Auth.ClientToken, Renewable: answer.Auth.Renewable, Batch: answer.Auth.Accessor == "",
		Expires: ends(begun, answer.Auth.LeaseDuration),
	})
	if err != nil {
		return nil, err
	}
	session.secrets = append(session.secrets, secrets...)
	return session, nil
}

// Token of a session.
type Token struct {
	ID string
	// Renewable tokens live longer when that is asked for.
	Renewable bool
	// Batch tokens cannot be revoked.
	Batch bool
	// Expires is when it ends, with all that was leased in the session; zero for one that
	// does not.
	Expires time.Time
}

// Resume goes on with a session.
func (c *Clients) Resume(s Server, token Token) (*Session, error) {
	client, err := c.client(s, nil)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(token.ID) == "" || strings.ContainsFunc(token.ID, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, &Error{Kind: Invalid, text: "cannot use the token that Vault gave: it is not one line of letters"}
	}
	client.SetToken(token.ID)
	return &Session{client: client, Token: token, now: c.Now, secrets: []string{token.ID}}, nil
}

// mostLife cuts what a server says of the life of things.
const mostLife = 10 * 365 * 24 * time.Hour

// ends is the end of a life of some seconds; zero if there is none.
func ends(begun time.Time, seconds int) time.Time {
	if seconds <= 0 {
		return time.Time{}
	}
	return begun.Add(life(seconds))
}

func life(seconds int) time.Duration {
	return time.Duration(min(int64(seconds), int64(mostLife/time.Second))) * time.Second
}

// isGone reports whether a server says of a call with a token that it knows no such token, or
// no such lease.
func isGone(err error) bool {
	var response *vaultapi.ResponseError
	return errors.As(err, &response) && (response.StatusCode == http.StatusBadRequest || response.StatusCode == http.StatusNotFound) &&
		strings.Contains(strings.ToLower(strings.Join(response.Errors, " ")), "lease")
}
