package source

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"golang.org/x/crypto/ssh"
)

// Reasons of Error, as Flux's source-controller names them.
const (
	ReasonURLInvalid           = "URLInvalid"
	ReasonAuthenticationFailed = "AuthenticationFailed"
	ReasonGitOperationFailed   = "GitOperationFailed"
	ReasonEmptyRepository      = "EmptyGitRepository"
	ReasonLimitExceeded        = "LimitExceeded"
	ReasonUnsupportedField     = "UnsupportedField"
)

// Error is a failure with a stable reason for the object that names the
// origin.
type Error struct {
	Reason string
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

func failf(reason, format string, args ...any) error {
	return &Error{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// ReasonOf returns the reason of an error of this package.
func ReasonOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ReasonGitOperationFailed
}

// Origin is a repository and the credential it is read with.
type Origin struct {
	// URL with scheme http, https or ssh.
	URL string
	// Secret has the data of the credential Secret, in Flux's keys: username
	// and password, or bearerToken; identity, known_hosts and password for
	// SSH; ca.crt, tls.crt and tls.key.
	Secret map[string][]byte
}

// key identifies the mirror: the same URL read with another credential is
// another origin, because the server may show it something else.
func (o Origin) key() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", o.URL)
	for _, k := range []string{"username", "password", "bearerToken", "identity", "known_hosts", "ca.crt", "caFile", "tls.crt", "tls.key"} {
		fmt.Fprintf(h, "%s=%q\n", k, o.Secret[k])
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// dialer is a transport that is configured for one origin.
type dialer struct {
	transport transport.Transport
	endpoint  *transport.Endpoint
	auth      transport.AuthMethod
}

func (o Origin) dialer() (*dialer, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" {
		return nil, failf(ReasonURLInvalid, "cannot parse URL: use http://, https:// or ssh://[user@]host/path")
	}
	if _, withPassword := u.User.Password(); withPassword {
		return nil, failf(ReasonURLInvalid, "cannot use URL: it has a password in it; put it into a Secret and name that in spec.secretRef")
	}
	// The empty argument of an ssh command line, and a host or path that reads
	// as an option, are refused by git hosts in different ways; refuse early.
	if strings.HasPrefix(u.Host, "-") || strings.HasPrefix(strings.TrimPrefix(u.Path, "/"), "-") {
		return nil, failf(ReasonURLInvalid, "cannot use URL: host and path must not begin with a dash")
	}
	endpoint, err := transport.NewEndpoint(o.URL)
	if err != nil {
		return nil, failf(ReasonURLInvalid, "cannot parse URL: %w", err)
	}
	switch u.Scheme {
	case "http", "https":
		return o.httpDialer(u, endpoint)
	case "ssh":
		return o.sshDialer(u, endpoint)
	}
	return nil, failf(ReasonURLInvalid, "cannot use URL: scheme %q is not one of http, https, ssh", u.Scheme)
}

func (o Origin) httpDialer(u *url.URL, endpoint *transport.Endpoint) (*dialer, error) {
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca := first(o.Secret, "ca.crt", "caFile"); len(ca) > 0 {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(ca) {
			return nil, failf(ReasonAuthenticationFailed, "cannot use ca.crt: it has no PEM certificate")
		}
		tlsConfig.RootCAs = pool
	}
	if cert, key := o.Secret["tls.crt"], o.Secret["tls.key"]; len(cert) > 0 || len(key) > 0 {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, failf(ReasonAuthenticationFailed, "cannot use tls.crt and tls.key: they are not a PEM key pair")
		}
		tlsConfig.Certificates = []tls.Certificate{pair}
	}
	client := &http.Client{
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			TLSClientConfig:       tlsConfig,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: 60 * time.Second,
			MaxIdleConnsPerHost:   2,
			IdleConnTimeout:       30 * time.Second,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Host != u.Host || (u.Scheme == "https" && req.URL.Scheme != "https") {
				return fmt.Errorf("redirect to %s://%s refused: it is another host; name the new URL in spec.url", req.URL.Scheme, req.URL.Host)
			}
			if len(via) >= 5 {
				return errors.New("more than 5 redirects")
			}
			return nil
		},
	}
	d := &dialer{transport: githttp.NewClient(client), endpoint: endpoint}
	switch {
	case len(o.Secret["bearerToken"]) > 0:
		d.auth = &githttp.TokenAuth{Token: strings.TrimSpace(string(o.Secret["bearerToken"]))}
	case len(o.Secret["username"]) > 0 || len(o.Secret["password"]) > 0:
		d.auth = &githttp.BasicAuth{Username: string(o.Secret["username"]), Password: string(o.Secret["password"])}
	}
	return d, nil
}

func (o Origin) sshDialer(u *url.URL, endpoint *transport.Endpoint) (*dialer, error) {
	identity, hosts := o.Secret["identity"], o.Secret["known_hosts"]
	if len(identity) == 0 || len(hosts) == 0 {
		return nil, failf(ReasonAuthenticationFailed, "cannot use ssh without a Secret that has the keys identity and known_hosts; name it in spec.secretRef")
	}
	user := u.User.Username()
	if user == "" {
		user = gitssh.DefaultUsername
	}
	keys, err := gitssh.NewPublicKeys(user, identity, string(o.Secret["password"]))
	if err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot read the private key in identity: %w", err)
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "22")
	}
	if err := trustHost(keys, host, hosts); err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot read known_hosts: %w", err)
	}
	return &dialer{transport: gitssh.NewClient(nil), endpoint: endpoint, auth: sshAuth{keys}}, nil
}

// sshAuth bounds the time that connecting may take. The transport's own way to
// set options replaces all of them, the check of the host key included.
type sshAuth struct{ *gitssh.PublicKeys }

// ClientConfig implements the transport's AuthMethod.
func (a sshAuth) ClientConfig() (*ssh.ClientConfig, error) {
	config, err := a.PublicKeys.ClientConfig()
	if err != nil {
		return nil, err
	}
	config.Timeout = sshTimeout
	return config, nil
}

// sshTimeout bounds the connection attempt to an SSH server.
const sshTimeout = 20 * time.Second

// trustHost makes keys accept the host keys in known_hosts lines and no others,
// and ask the server for a key of a type that the lines have. The library reads
// files only.
func trustHost(keys *gitssh.PublicKeys, host string, lines []byte) error {
	f, err := os.CreateTemp("", "known_hosts")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(lines); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	db, err := gitssh.NewKnownHostsDb(f.Name())
	if err != nil {
		return err
	}
	keys.HostKeyCallback = db.HostKeyCallback()
	keys.HostKeyAlgorithms = db.HostKeyAlgorithms(host)
	return nil
}

func first(m map[string][]byte, keys ...string) []byte {
	for _, k := range keys {
		if len(m[k]) > 0 {
			return m[k]
		}
	}
	return nil
}
