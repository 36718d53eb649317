package chart

import (
	"compress/gzip"
	"context"
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
	"path"
	"strings"
	"time"

	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Repository is a Helm repository and the credential it is read with.
type Repository struct {
	// URL with scheme http or https; oci if Registry is set. A login in it is used
	// where Secret has none, as in Helm, and shown nowhere.
	URL string
	// Secret has the data of the credential Secret: username and password, and
	// ca.crt, tls.crt and tls.key in the way that Flux took them before.
	Secret map[string][]byte
	// Certificate has the data of the Secret for TLS: ca.crt, tls.crt and tls.key.
	// If it is set, the same keys of Secret are not used.
	Certificate map[string][]byte
	// PassCredentials sends username and password of the Secret also to other hosts
	// that the index names.
	PassCredentials bool
	// Revision is that of the index in which charts are found; empty is for the newest one that is known.
	Revision string
	// Held: no newer index than that of Revision is wanted. A server that had another one once is not asked for it again.
	Held bool
	// Registry reads the repository if its URL has the scheme oci.
	Registry Registry
	// Timeout is spec.timeout. It bounds how long it may take to get one dependency from it; 0 does not.
	Timeout time.Duration
}

// Registry has charts as OCI artifacts. It is bound to a registry's credential,
// and safe for concurrent use.
type Registry interface {
	// Identity is equal for those that read with the same credential.
	Identity() string
	// Tags lists the tags of a repository, e.g. ghcr.io/org/charts/podinfo.
	Tags(ctx context.Context, repository string) ([]string, error)
	// Resolve returns the digest of what a tag stands for.
	Resolve(ctx context.Context, repository, tag string) (digest string, err error)
	// Pull returns the layer that has the chart, of the manifest with this digest. The
	// caller closes the reader.
	Pull(ctx context.Context, repository, digest string) (io.ReadCloser, error)
}

// OCI is the scheme of repositories that are registries.
const OCI = "oci"

// NormalizeURL returns the URL by which repositories are compared: with one slash
// at the end, or none for the scheme oci.
func NormalizeURL(repository string) (string, error) {
	if repository == "" {
		return "", nil
	}
	u, err := url.Parse(repository)
	if err != nil {
		// The error of the parser repeats the URL, which may have a password.
		return "", failf(source.ReasonURLInvalid, "cannot parse URL of Helm repository")
	}
	slash := "/"
	if u.Scheme == OCI {
		slash = ""
	}
	u.Path = strings.TrimRight(u.Path, "/") + slash
	u.RawPath = strings.TrimRight(u.RawPath, "/") + slash
	return u.String(), nil
}

// parse checks the URL; it does not connect.
func (r Repository) parse() (*url.URL, error) {
	normal, err := NormalizeURL(r.URL)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(normal)
	switch {
	case err != nil:
		return nil, failf(source.ReasonURLInvalid, "cannot parse URL of Helm repository")
	case u.Scheme == OCI && r.Registry == nil:
		return nil, failf(source.ReasonURLInvalid, "cannot use URL of Helm repository: scheme oci needs spec.type oci")
	case u.Scheme != OCI && u.Scheme != "http" && u.Scheme != "https":
		return nil, failf(source.ReasonURLInvalid, "cannot use URL of Helm repository: scheme %q is not one of http, https, oci", u.Scheme)
	case u.Scheme != OCI && r.Registry != nil:
		return nil, failf(source.ReasonURLInvalid, "cannot use URL of Helm repository: spec.type oci needs scheme oci")
	case u.Host == "":
		return nil, failf(source.ReasonURLInvalid, "cannot use URL of Helm repository: it has no host")
	case u.Scheme == OCI && u.User != nil:
		return nil, failf(source.ReasonURLInvalid, "cannot use URL of Helm repository: it has a user; put username and password into a Secret and name that in spec.secretRef")
	}
	return u, nil
}

// tlsKeys as they are today, and as Flux took them before.
var tlsKeys = [3][2]string{{"ca.crt", "caFile"}, {"tls.crt", "certFile"}, {"tls.key", "keyFile"}}

// certificates returns the CA, certificate and key for TLS.
func (r Repository) certificates() (found [3][]byte) {
	from := r.Secret
	if r.Certificate != nil {
		from = r.Certificate
	}
	for i, names := range tlsKeys {
		if found[i] = from[names[0]]; len(found[i]) == 0 {
			found[i] = from[names[1]]
		}
	}
	return found
}

// key identifies what is shared: the same URL read with another credential is
// another repository, because it may show something else. That with a longer timeout is one
// because of patience.
func (r Repository) key() string {
	normal, _ := NormalizeURL(r.URL)
	h := sha256.New()
	fmt.Fprintf(h, "%q\n%q\n%q\n%t\n", normal, r.Secret["username"], r.Secret["password"], r.PassCredentials)
	for _, data := range r.certificates() {
		fmt.Fprintf(h, "%q\n", data)
	}
	if r.Registry != nil {
		fmt.Fprintf(h, "%q\n", r.Registry.Identity())
	}
	if r.Timeout > patience {
		fmt.Fprintf(h, "%s\n", r.Timeout)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// patience is the timeout of repositories that name none. Who waits for longer waits alone: a server
// that does not answer would make all that share an index, and give up earlier, wait for it.
const patience = time.Minute

// redirectsMost is how often a request may be sent on.
const redirectsMost = 5

// client returns one whose requests have the credential of the repository where
// they may: at its own scheme, host and port, however they got there
// (CVE-2021-32690). How long an answer may take is the matter of a request's context:
// its deadline is spec.timeout.
func (r Repository) client(own *url.URL) (*http.Client, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	files := r.certificates()
	if len(files[0]) > 0 && !pool.AppendCertsFromPEM(files[0]) {
		return nil, failf(source.ReasonAuthenticationFailed, "cannot use ca.crt: it has no PEM certificate")
	}
	t := answer.Over(&http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 20 * time.Second}).DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool},
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        10 * time.Second,
		// A chart is served as it is: what a server calls compressed is its
		// content.
		DisableCompression: true,
	})
	c := &credentialed{own: own, username: string(r.Secret["username"]), password: string(r.Secret["password"]), all: r.PassCredentials, home: t, abroad: t}
	if (c.username == "") != (c.password == "") {
		return nil, failf(source.ReasonAuthenticationFailed, "cannot use the credential: the Secret needs username and password")
	}
	if c.username == "" && own.User != nil {
		c.username = own.User.Username()
		c.password, _ = own.User.Password()
		c.all = false // what is passed on is of the Secret
	}
	if len(files[1]) > 0 || len(files[2]) > 0 {
		pair, err := tls.X509KeyPair(files[1], files[2])
		if err != nil {
			return nil, failf(source.ReasonAuthenticationFailed, "cannot use tls.crt and tls.key: they are not a PEM key pair")
		}
		known := t.Clone()
		known.TLSClientConfig.Certificates = []tls.Certificate{pair}
		c.home = answer.Over(known)
	}
	return &http.Client{
		Transport: c,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
				return fmt.Errorf("redirect from https to %s refused", req.URL.Scheme)
			}
			if len(via) > redirectsMost {
				return fmt.Errorf("more than %d redirects", redirectsMost)
			}
			return nil
		},
	}, nil
}

// credentialed decides for each request, also for each hop of a redirect, whether
// it has the credential.
type credentialed struct {
	own                *url.URL
	username, password string
	all                bool
	// home has the client's certificate, abroad has not.
	home, abroad answer.Transport
}

func (c *credentialed) RoundTrip(req *http.Request) (*http.Response, error) {
	first := req
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	trusted := sameServer(req.URL, c.own) || c.all && sameServer(req.URL, first.URL)
	req = req.Clone(req.Context())
	// The library keeps the header when it follows to a subdomain.
	if first.URL.User == nil || !sameServer(req.URL, first.URL) {
		req.Header.Del("Authorization")
	}
	if !trusted {
		return c.abroad.RoundTrip(req)
	}
	if c.username != "" || c.password != "" {
		req.SetBasicAuth(c.username, c.password)
	}
	return c.home.RoundTrip(req)
}

func sameServer(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Host, b.Host)
}

// shown is a URL without what may be secret.
func shown(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// statusError is an answer that is not the one that was asked for.
type statusError struct {
	where, status string
	code          int
}

func (e *statusError) Error() string {
	return fmt.Sprintf("cannot fetch %s: the server answered %s", e.where, e.status)
}

// get asks for a URL. The answer has the status 200, or 304 if the header asks
// for it. The caller closes the body.
func get(ctx context.Context, client *http.Client, u *url.URL, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("cannot fetch %s: it is not a URL", shown(u))
	}
	req.Header.Set("User-Agent", "cascade")
	for name, values := range header {
		req.Header[name] = values
	}
	res, err := client.Do(req)
	if err != nil {
		// The library's error repeats the URL with its query.
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return nil, fmt.Errorf("cannot fetch %s: %w", shown(u), err)
	}
	switch {
	case res.StatusCode == http.StatusOK, res.StatusCode == http.StatusNotModified && (header.Get("If-None-Match") != "" || header.Get("If-Modified-Since") != ""):
		return res, nil
	}
	res.Body.Close()
	if err := source.Later(res, time.Now()); err != nil {
		return nil, fmt.Errorf("cannot fetch %s: %w", shown(u), err)
	}
	return nil, &statusError{shown(u), fmt.Sprintf("%d %s", res.StatusCode, http.StatusText(res.StatusCode)), res.StatusCode}
}

// inflated is the body of an answer that may be compressed for the way.
func inflated(res *http.Response) (io.Reader, error) {
	if !strings.EqualFold(res.Header.Get("Content-Encoding"), "gzip") {
		return res.Body, nil
	}
	return gzip.NewReader(res.Body)
}

// indexURL of a repository. As in Flux its query is kept.
func indexURL(repository *url.URL) *url.URL {
	u := *repository
	u.Path = path.Join("/", u.Path, "index.yaml")
	if u.RawPath != "" {
		u.RawPath = path.Join("/", u.RawPath, "index.yaml")
	}
	return &u
}

// chartURL resolves what an index has as the URL of a chart.
func chartURL(repository *url.URL, reference string) (*url.URL, error) {
	ref, err := url.Parse(reference)
	if err != nil {
		return nil, failf(ReasonPull, "cannot fetch chart: its URL in the index cannot be read")
	}
	u := ref
	if !ref.IsAbs() {
		base := *repository
		base.Path = strings.TrimSuffix(base.Path, "/") + "/"
		base.RawPath = strings.TrimSuffix(base.RawPath, "/") + "/"
		u = base.ResolveReference(ref)
		u.RawQuery = base.RawQuery
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, failf(ReasonPull, "cannot fetch chart: its URL in the index is not of scheme http or https")
	}
	return u, nil
}

// capped fails above a number of bytes.
type capped struct {
	r    io.Reader
	left int64
	err  error
}

func (c *capped) Read(p []byte) (int, error) {
	if c.left < 0 {
		return 0, c.err
	}
	if int64(len(p)) > c.left+1 {
		p = p[:c.left+1]
	}
	n, err := c.r.Read(p)
	if c.left -= int64(n); c.left < 0 {
		return 0, c.err
	}
	return n, err
}
