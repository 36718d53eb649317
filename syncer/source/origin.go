package source

import (
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
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
	ReasonCopyFailure          = "CopyFailure"
	ReasonInvalidProvider      = "InvalidProviderConfiguration"
	ReasonInvalidSTS           = "InvalidSTSConfiguration"
	ReasonReadFailed           = "ReadOperationFailed"
	ReasonImagePullFailed      = "OCIArtifactPullFailed"
	ReasonImageLayerFailed     = "OCIArtifactLayerOperationFailed"
	ReasonVerificationFailed   = "VerificationError"
	ReasonBucketFailed         = "BucketOperationFailed"
)

// Error is a failure with a stable reason, for the status of the object that names the
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

// Told is a failure of a server that answers: what it was asked for is not to be had from it.
type Told struct{ Err error }

func (t *Told) Error() string { return t.Err.Error() }
func (t *Told) Unwrap() error { return t.Err }

// ReasonOf returns the reason of an error of this package.
func ReasonOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ReasonGitOperationFailed
}

// Origin is a repository and the credential that reads it.
type Origin struct {
	// URL with scheme http, https or ssh. A login in it is used where there is none beside
	// it, as in Flux, and shown nowhere.
	URL string
	// Secret has the data of the credential Secret. The keys are Flux's: username and
	// password, or bearerToken; identity, known_hosts and password for SSH; ca.crt,
	// tls.crt and tls.key.
	Secret map[string][]byte
	// Login is a short-lived credential of a provider. If it is set, the one in Secret is
	// not used.
	Login *Login
	// Proxy is an http, https or socks5 URL; for SSH only socks5. If it is nil, the
	// environment names the proxy for http and https.
	Proxy *url.URL
	// Timeout is what a fetch may take by its spec, 0 if nothing is said.
	Timeout time.Duration
}

// patience is the timeout of sources that name none. Who waits for longer waits alone: a server that
// does not answer would make all that share a mirror, and give up earlier, wait for it.
const patience = time.Minute

// Login is a credential that changes while it stands for the same identity.
type Login struct {
	Username, Password string
	// BearerToken is used instead of a password if it is set.
	BearerToken string
	// Identity is equal for logins that may read the same.
	Identity string
}

// PublicURL is a URL without what somebody may have put into it to log in, empty for what is
// no URL.
func PublicURL(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// key identifies the mirror. The same URL with another credential, or through another
// proxy, is another origin, because it may have another content. That with a longer timeout is
// one because of patience.
func (o Origin) key() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", o.URL)
	if o.Proxy != nil {
		fmt.Fprintf(h, "proxy=%q\n", o.Proxy)
	}
	keys := []string{"identity", "known_hosts", "ca.crt", "caFile", "tls.crt", "tls.key", "certFile", "keyFile"}
	if o.Login != nil {
		fmt.Fprintf(h, "login=%q\n", o.Login.Identity)
	} else {
		keys = append([]string{"username", "password", "bearerToken"}, keys...)
	}
	for _, k := range keys {
		fmt.Fprintf(h, "%s=%q\n", k, o.Secret[k])
	}
	if o.Timeout > patience {
		fmt.Fprintf(h, "timeout=%s\n", o.Timeout)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// dialer connects to an origin.
type dialer struct {
	endpoint *transport.Endpoint
	// One of the two is set.
	http transport.Transport
	ssh  *ssh.ClientConfig

	auth  transport.AuthMethod
	proxy *url.URL
}

// askMultiACK makes the library ask for multi_ack where a server has it: Azure DevOps refuses
// requests without. The library holds it unsupported, because it reads the lines of
// acknowledgement without acting on them. Nothing more is needed here: each request says at
// once all that it has. The library takes this from a variable of its package.
var askMultiACK = sync.OnceFunc(func() {
	transport.UnsupportedCapabilities = []capability.Capability{capability.ThinPack} //nolint:reassign // go-git's way to say it
})

// dialer checks the URL and the credential; it does not connect.
func (o Origin) dialer() (*dialer, error) {
	askMultiACK()
	u, err := url.Parse(o.URL)
	if err != nil {
		// The error of the parser contains the URL, which may have a password.
		return nil, failf(ReasonURLInvalid, "cannot parse URL")
	}
	if u.Host == "" {
		return nil, failf(ReasonURLInvalid, "cannot use URL: it has no host")
	}
	// A host or path that ssh or git would read as an option is refused here, because the
	// servers of Git hosts refuse it in different ways.
	if strings.HasPrefix(u.Host, "-") || strings.HasPrefix(strings.TrimPrefix(u.Path, "/"), "-") {
		return nil, failf(ReasonURLInvalid, "cannot use URL: host and path must not begin with a dash")
	}
	endpoint, err := transport.NewEndpoint(o.URL)
	if err != nil {
		return nil, failf(ReasonURLInvalid, "cannot parse URL")
	}
	// The library puts these into the URLs that it asks.
	endpoint.User, endpoint.Password = "", ""
	switch u.Scheme {
	case "http", "https":
		return o.httpDialer(u, endpoint)
	case "ssh":
		return o.sshDialer(u, endpoint)
	}
	return nil, failf(ReasonURLInvalid, "cannot use URL: scheme %q is not one of http, https, ssh", u.Scheme)
}

// maxReferenceBytes bounds the list of references that a server sends. It has room for
// some hundred thousand.
const maxReferenceBytes = 32 << 20

// tlsConfig reads the keys of a Secret, by Flux's present names or, where these are
// missing, by its former ones. As in Flux, the certificates of the system are trusted
// besides those of the Secret.
func tlsConfig(secret map[string][]byte) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca := first(secret, "ca.crt", "caFile"); len(ca) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(ca) {
			return nil, failf(ReasonAuthenticationFailed, "cannot use ca.crt: it has no PEM certificate")
		}
		config.RootCAs = pool
	}
	if cert, key := first(secret, "tls.crt", "certFile"), first(secret, "tls.key", "keyFile"); len(cert) > 0 || len(key) > 0 {
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, failf(ReasonAuthenticationFailed, "cannot use tls.crt and tls.key: they are not a PEM key pair")
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// newClient returns a client with a transport of its own. It refuses redirects to other
// hosts, as what it sends is for the one. restrict bounds where it may connect; nil does not.
func newClient(host *url.URL, config *tls.Config, proxy *url.URL, restrict func(*http.Transport)) *http.Client {
	from := http.ProxyFromEnvironment
	if proxy != nil {
		from = http.ProxyURL(proxy)
	}
	to := transportTo(config, from)
	if restrict != nil {
		restrict(to.Transport)
	}
	return &http.Client{
		Transport: to,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if req.URL.Host != host.Host {
				return fmt.Errorf("redirect to %s://%s refused: it is another host; name the new URL in spec.url", req.URL.Scheme, req.URL.Host)
			}
			return checkRedirect(req, via)
		},
	}
}

// checkRedirect refuses redirects from https to plain HTTP, and those without end.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= 5 {
		return errors.New("more than 5 redirects")
	}
	return checkScheme(via[len(via)-1].URL, req.URL)
}

func checkScheme(from, to *url.URL) error {
	if from.Scheme == "https" && to.Scheme != "https" {
		return fmt.Errorf("redirect to %s://%s refused: it is not https; name the new URL in spec.url", to.Scheme, to.Host)
	}
	return nil
}

func (o Origin) httpDialer(u *url.URL, endpoint *transport.Endpoint) (*dialer, error) {
	config, err := tlsConfig(o.Secret)
	if err != nil {
		return nil, err
	}
	d := &dialer{endpoint: endpoint}
	username, password, token := string(o.Secret["username"]), string(o.Secret["password"]), strings.TrimSpace(string(o.Secret["bearerToken"]))
	if o.Login != nil {
		username, password, token = o.Login.Username, o.Login.Password, o.Login.BearerToken
	}
	if username == "" {
		username = u.User.Username()
	}
	if password == "" {
		password, _ = u.User.Password()
	}
	switch {
	case token != "":
		d.auth = &githttp.TokenAuth{Token: token}
	case username != "" || password != "":
		d.auth = &githttp.BasicAuth{Username: username, Password: password}
	}
	client := newClient(u, config, o.Proxy, nil)
	if d.auth == nil && len(config.Certificates) == 0 {
		// Nothing is sent that is for this host alone.
		client.CheckRedirect = checkRedirect
	}
	client.Transport = bounded{client.Transport}
	d.http = githttp.NewClient(client)
	return d, nil
}

// bounded limits the responses that are read into memory, after the transport inflated
// them. Packs have their own bound, which begins where preamble ends. The words of a
// refusal are not read: the library puts all of them into its errors.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := b.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if req.Method == http.MethodPost && res.StatusCode >= http.StatusMultipleChoices && res.StatusCode < http.StatusBadRequest {
		// Only the list of references may be elsewhere. The library's error would say where.
		_ = res.Body.Close()
		return nil, errors.New("redirect of the request for a pack refused; name the new URL in spec.url")
	}
	if to, lerr := res.Location(); lerr == nil && res.StatusCode >= http.StatusMultipleChoices && res.StatusCode < http.StatusBadRequest {
		// The library's error would show the whole address.
		if err := checkScheme(req.URL, to); err != nil {
			_ = res.Body.Close()
			return nil, err
		}
	}
	if res.StatusCode >= http.StatusBadRequest {
		_ = res.Body.Close()
		if err := Later(res, time.Now()); err != nil {
			return nil, err // the library's error of some codes would not have the answer
		}
		res.Body, res.ContentLength = http.NoBody, 0
		return res, nil
	}
	body := referencesOf(res.Body)
	if head, ok := req.Context().Value(preambleKey{}).(*preamble); ok {
		head.r = res.Body
		body = head
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{body, res.Body}
	return res, nil
}

func referencesOf(r io.Reader) io.Reader {
	return &limited{r: r, left: maxReferenceBytes, max: maxReferenceBytes, what: "the list of references has", flag: "delete references that nobody needs"}
}

func (o Origin) sshDialer(u *url.URL, endpoint *transport.Endpoint) (*dialer, error) {
	identity, hosts := o.Secret["identity"], o.Secret["known_hosts"]
	if len(identity) == 0 || len(hosts) == 0 {
		return nil, failf(ReasonAuthenticationFailed, "cannot use ssh without a Secret that has the keys identity and known_hosts; name it in spec.secretRef")
	}
	if o.Proxy != nil && o.Proxy.Scheme != "socks5" && o.Proxy.Scheme != "socks5h" {
		return nil, failf(ReasonAuthenticationFailed, "cannot use a proxy of scheme %q for ssh: use socks5", o.Proxy.Scheme)
	}
	user := u.User.Username()
	if user == "" {
		user = gitssh.DefaultUsername
	}
	keys, err := gitssh.NewPublicKeys(user, identity, string(o.Secret["password"]))
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		return nil, failf(ReasonAuthenticationFailed, "cannot read the private key in identity: it is encrypted; put its passphrase into the key password of the Secret")
	}
	if err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot read the private key in identity: %w", err)
	}
	port := u.Port()
	if port == "" {
		port = "22"
	}
	endpoint.Host = net.JoinHostPort(u.Hostname(), port)
	if err := trustHost(keys, endpoint.Host, hosts); err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot read known_hosts: %w", err)
	}
	config, err := keys.ClientConfig()
	if err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot read the private key in identity: %w", err)
	}
	config.HostKeyAlgorithms = keys.HostKeyAlgorithms
	return &dialer{ssh: config, endpoint: endpoint, proxy: o.Proxy}, nil
}

// minRSABits of a host key, as OpenSSH recommends and NIST SP 800-131A demands.
const minRSABits = 2048

// hostKeyAlgorithms are those that servers may prove themselves with. Signatures with
// SHA-1 (ssh-rsa) can be forged (RFC 8332), and DSA keys are as short as that.
var hostKeyAlgorithms = []string{
	ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256,
	ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01, ssh.CertAlgoECDSA521v01, ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01,
	ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256,
}

// strong refuses RSA keys that are too short, before what next says of a key.
func strong(next ssh.HostKeyCallback) ssh.HostKeyCallback {
	var check func(key ssh.PublicKey) error
	check = func(key ssh.PublicKey) error {
		switch k := key.(type) {
		case *ssh.Certificate:
			if err := check(k.Key); err != nil {
				return err
			}
			return check(k.SignatureKey)
		case ssh.CryptoPublicKey:
			if r, ok := k.CryptoPublicKey().(*rsa.PublicKey); ok && r.N.BitLen() < minRSABits {
				return fmt.Errorf("the RSA key of the server has %d bits, fewer than %d; give the server another key", r.N.BitLen(), minRSABits)
			}
		}
		return nil
	}
	return func(host string, remote net.Addr, key ssh.PublicKey) error {
		if err := check(key); err != nil {
			return failf(ReasonAuthenticationFailed, "cannot trust the server: %w", err)
		}
		return next(host, remote, key)
	}
}

// trustHost makes keys accept only the host keys in known_hosts lines, and request a key
// of a type that the lines have. It goes through a file because the library reads
// nothing else.
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
	keys.HostKeyCallback = strong(db.HostKeyCallback())
	known := db.HostKeyAlgorithms(host)
	keys.HostKeyAlgorithms = slices.DeleteFunc(slices.Clone(known), func(a string) bool { return !slices.Contains(hostKeyAlgorithms, a) })
	switch {
	case len(known) == 0:
		// The host is not there. The callback says so.
		keys.HostKeyAlgorithms = slices.Clone(hostKeyAlgorithms)
	case len(keys.HostKeyAlgorithms) == 0:
		return fmt.Errorf("the keys of %s are of kinds that are not accepted any more: %s", host, strings.Join(known, ", "))
	}
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
