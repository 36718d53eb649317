package source

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	kauthn "github.com/google/go-containerregistry/pkg/authn/kubernetes"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/net/publicsuffix"
	corev1 "k8s.io/api/core/v1"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	"github.com/cascade-gitops/cascade/syncer/answer"
)

// ImageOrigin is a repository of images in a registry and the credential it is
// read with.
type ImageOrigin struct {
	// URL with the scheme oci, without a tag or digest.
	URL string
	// Secrets are the data of Secrets with a credential, those that count first:
	// .dockerconfigjson or .dockercfg, or username and password for this registry.
	// Others are passed over, as a kubelet does.
	Secrets []map[string][]byte
	// Login is a credential that a provider gave out for a while; it counts
	// instead of those in Secrets.
	Login *Login
	// Certificates is the data of a Secret: ca.crt, which is trusted beside those
	// of the system, tls.crt and tls.key.
	Certificates map[string][]byte
	// Insecure allows plain HTTP, and certificates that nobody vouches for if
	// Certificates is nil.
	Insecure bool
	// Proxy is asked to connect. If it is nil, the environment names it.
	Proxy *url.URL
}

// key identifies what the origin may show: the same URL read with another
// credential is another origin.
func (o ImageOrigin) key() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q insecure=%t\n", o.URL, o.Insecure)
	if o.Proxy != nil {
		fmt.Fprintf(h, "proxy=%q\n", o.Proxy)
	}
	write := func(data map[string][]byte) {
		for _, k := range slices.Sorted(maps.Keys(data)) {
			fmt.Fprintf(h, "%q=%q\n", k, data[k])
		}
		fmt.Fprintln(h)
	}
	if o.Login != nil {
		fmt.Fprintf(h, "login=%q\n", o.Login.Identity)
	} else {
		for _, secret := range o.Secrets {
			write(secret)
		}
	}
	write(o.Certificates)
	return hex.EncodeToString(h.Sum(nil)[:12])
}

// repository reads the URL.
func (o ImageOrigin) repository() (name.Repository, error) {
	invalid := func(format string, args ...any) (name.Repository, error) {
		return name.Repository{}, failf(ReasonURLInvalid, "cannot use URL: "+format, args...)
	}
	at, ok := strings.CutPrefix(o.URL, sourcev1.OCIRepositoryPrefix)
	if !ok {
		return invalid("it must be in the form oci://<domain>/<org>/<repo>")
	}
	if strings.Contains(at, "@") {
		// What is before it may be a password.
		return invalid("it must have neither a digest nor a credential; name them in spec.ref.digest and spec.secretRef")
	}
	var options []name.Option
	if o.Insecure {
		options = append(options, name.Insecure)
	}
	repo, err := name.NewRepository(at, options...)
	if err != nil {
		return invalid("%w", err)
	}
	for part := range strings.SplitSeq(at, "/") {
		if part == "." || part == ".." || part == "" {
			return invalid("its path has a part that is %q", part)
		}
	}
	if _, tag, ok := strings.Cut(strings.TrimPrefix(at, repo.RegistryStr()), ":"); ok {
		return invalid("it must not have a tag; move %q to spec.ref.tag", tag)
	}
	return repo, nil
}

// authenticator finds the credential for a repository.
func (o ImageOrigin) authenticator(repo name.Repository) (authn.Authenticator, error) {
	if l := o.Login; l != nil {
		return authn.FromConfig(authn.AuthConfig{Username: l.Username, Password: l.Password, RegistryToken: l.BearerToken}), nil
	}
	var pull []corev1.Secret
	for _, data := range o.Secrets {
		switch {
		case len(data[corev1.DockerConfigJsonKey]) > 0:
			pull = append(pull, corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: data})
		case len(data[corev1.DockerConfigKey]) > 0:
			pull = append(pull, corev1.Secret{Type: corev1.SecretTypeDockercfg, Data: data})
		case len(data["username"]) > 0 && len(data["password"]) > 0:
			return authn.FromConfig(authn.AuthConfig{Username: string(data["username"]), Password: string(data["password"])}), nil
		}
	}
	if len(pull) == 0 {
		return authn.Anonymous, nil
	}
	keys, err := kauthn.NewFromPullSecrets(context.Background(), pull)
	if err != nil {
		// The error of the parser may repeat what is in the Secret.
		return nil, failf(ReasonAuthenticationFailed, "cannot read the credential: %s or %s of the Secret is not the configuration of a docker client", corev1.DockerConfigJsonKey, corev1.DockerConfigKey)
	}
	found, err := keys.Resolve(repo)
	if err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot find the credential for %s in the Secret", repo.RegistryStr())
	}
	return found, nil
}

// registry is a repository that images are read from. The token that it was
// given, and its connections, are used until it goes with the last image.
type registry struct {
	repo   name.Repository
	puller *remote.Puller
	login  *login
	guard  *guard
}

// login is a credential that may be renewed.
type login struct {
	current atomic.Pointer[authn.AuthConfig]
}

// Authorization implements authn.Authenticator.
func (l *login) Authorization() (*authn.AuthConfig, error) { return l.current.Load(), nil }

func (l *login) renew(a authn.Authenticator) error {
	config, err := a.Authorization()
	if err != nil {
		return failf(ReasonAuthenticationFailed, "cannot read the credential: %w", err)
	}
	l.current.Store(config)
	return nil
}

// retries of a request that failed in a way that may pass: one, soon.
func retries() remote.Backoff {
	return remote.Backoff{Duration: 200 * time.Millisecond, Factor: 1, Jitter: 0.5, Steps: 2}
}

func (o ImageOrigin) open(repo name.Repository, auth authn.Authenticator) (*registry, error) {
	config, err := tlsConfig(o.Certificates)
	if err != nil {
		return nil, err
	}
	config.InsecureSkipVerify = o.Insecure && o.Certificates == nil
	from := http.ProxyFromEnvironment
	if o.Proxy != nil {
		from = http.ProxyURL(o.Proxy)
	}
	r := &registry{repo: repo, login: &login{}, guard: &guard{host: repo.RegistryStr(), insecure: o.Insecure, inner: transportTo(config, from)}}
	if err := r.login.renew(auth); err != nil {
		return nil, err
	}
	r.puller, err = remote.NewPuller(remote.WithTransport(r.guard), remote.WithAuth(r.login), remote.WithUserAgent("cascade"), remote.WithRetryBackoff(retries()))
	if err != nil {
		return nil, failf(ReasonImagePullFailed, "cannot read images: %w", err)
	}
	return r, nil
}

// transportTo is a transport of its own. How long an answer may take is the matter of the context: its
// deadline is spec.timeout.
func transportTo(config *tls.Config, proxy func(*http.Request) (*url.URL, error)) answer.Transport {
	return answer.Over(&http.Transport{
		Proxy:                  proxy,
		DialContext:            (&net.Dialer{Timeout: 20 * time.Second}).DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		// A fetch makes a few requests in a row, and the next one comes after minutes.
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     10 * time.Second,
	})
}

// Bounds of what a registry answers beside the content of layers.
const (
	maxAnswerBytes  = 8 << 20
	maxAnswersBytes = 32 << 20
	maxAnswers      = 2000
	maxTokenBytes   = 64 << 10
)

// budget is what is left of the bounds in one operation.
type budget struct {
	bytes, answers atomic.Int64
	// layers count too, as they do where nothing but signatures is read.
	layers bool
}

type budgetKey struct{}

// boundedAnswers gives an operation its budget.
func boundedAnswers(ctx context.Context, layers bool) context.Context {
	b := &budget{layers: layers}
	b.bytes.Store(maxAnswersBytes)
	b.answers.Store(maxAnswers)
	return context.WithValue(ctx, budgetKey{}, b)
}

// maxRedirects bounds the places that one request is sent on to.
const maxRedirects = 5

// errPlain: the library tries plain HTTP at addresses that look local, and
// registries redirect to anywhere.
var errPlain = errors.New("plain HTTP is refused; set spec.insecure to allow it")

// guard is between a library and a registry, which may be hostile: it keeps the
// credential at the registry's own site, and answers small.
type guard struct {
	inner answer.Transport
	// host of the registry, with a port if it is not the scheme's.
	host     string
	insecure bool
}

func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	host := strings.TrimSuffix(strings.TrimSuffix(req.URL.Host, ":443"), ":80")
	own := host == strings.TrimSuffix(strings.TrimSuffix(g.host, ":443"), ":80")
	if req.URL.Scheme != "https" && !g.insecure {
		return nil, errPlain
	}
	hops := 0
	for before := req.Response; before != nil && before.Request != nil; before = before.Request.Response {
		if before.Request.URL.Scheme == "https" && req.URL.Scheme != "https" {
			return nil, errPlain
		}
		if hops++; hops > maxRedirects {
			return nil, fmt.Errorf("more than %d redirects", maxRedirects)
		}
	}
	// A layer is often elsewhere, and its URL is the permission to read it. The
	// credential is for the registry, and for the service beside it that gives
	// out tokens.
	secret := req.Header.Get("Authorization") != "" || (req.Method != http.MethodGet && req.Method != http.MethodHead)
	if !own && secret && !sameSite(g.host, req.URL.Host) {
		return nil, failf(ReasonAuthenticationFailed, "cannot log in: %s wants the credential to be sent to %s, which is another site", g.host, req.URL.Host)
	}
	left, _ := req.Context().Value(budgetKey{}).(*budget)
	if left != nil && left.answers.Add(-1) < 0 {
		return nil, failf(ReasonLimitExceeded, "the registry wants more than %d requests", maxAnswers)
	}
	tags, _ := req.Context().Value(tagListingKey{}).(*tagListing)
	if tags != nil && !(own && isTagList(req)) {
		tags = nil
	}
	if tags != nil {
		req = tags.conditional(req)
	}
	res, err := g.inner.RoundTrip(req)
	if err != nil {
		return nil, worded{err}
	}
	if err := Later(res, time.Now()); err != nil {
		_ = res.Body.Close()
		return nil, err // the library's error has no header, and it would ask again at once
	}
	body := &boundedBody{ReadCloser: res.Body, left: maxAnswerBytes}
	if tags != nil {
		body.ReadCloser = tags.answer(req, res)
	}
	switch {
	case !own && res.StatusCode/100 != 2:
		// The body of another site's error is dropped: an internal server may have sent
		// it, and an error message would show it outside.
		body.left = 0
		body.silent = true
	case !own && secret:
		body.left = maxTokenBytes
		body.all = left
	case !own, own && strings.Contains(req.URL.Path, "/blobs/"):
		body.left = -1
		if left != nil && left.layers {
			body.all = left
		}
	default:
		body.all = left
	}
	res.Body = body
	return res, nil
}

// boundedBody is the body of a response, with bounds.
type boundedBody struct {
	io.ReadCloser
	// left bytes of this response; without bounds if it is negative.
	left int64
	// silent: it ends at its bound and does not fail.
	silent bool
	all    *budget
}

func (a *boundedBody) Read(p []byte) (int, error) {
	if a.silent {
		return 0, io.EOF
	}
	n, err := a.ReadCloser.Read(p)
	if a.left >= 0 {
		if a.left -= int64(n); a.left < 0 {
			return 0, failf(ReasonLimitExceeded, "the registry sent more than %d bytes where it describes an image", maxAnswerBytes)
		}
	}
	if a.all != nil && a.all.bytes.Add(-int64(n)) < 0 {
		return 0, failf(ReasonLimitExceeded, "the registry sent more than %d bytes where it describes images", maxAnswersBytes)
	}
	return n, err
}

// sameSite reports whether two hosts belong to the same registered domain, or
// are the same if they are none's. registry-1.docker.io and auth.docker.io are,
// two names below github.io are not.
func sameSite(a, b string) bool {
	name := func(host string) string {
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		return strings.ToLower(strings.TrimSuffix(host, "."))
	}
	a, b = name(a), name(b)
	if a == b {
		return true
	}
	if net.ParseIP(a) != nil || net.ParseIP(b) != nil {
		return false
	}
	// A suffix that is not listed, such as a cluster's own domain, says nothing
	// about who owns the names below it.
	if suffix, listed := publicsuffix.PublicSuffix(a); !listed && !strings.Contains(suffix, ".") {
		return false
	}
	site, err := publicsuffix.EffectiveTLDPlusOne(a)
	if err != nil {
		return false
	}
	other, err := publicsuffix.EffectiveTLDPlusOne(b)
	return err == nil && site == other
}

// said is an error of the library in few words, without long responses and without URLs
// that have a signature.
func said(err error) error {
	var known *Error
	var refused *transport.Error
	var failed *url.Error
	var busy *later
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &busy):
		return busy
	case errors.As(err, &refused):
		words := fmt.Sprintf("the registry answered %d", refused.StatusCode)
		if text := http.StatusText(refused.StatusCode); text != "" {
			words += " " + text
		}
		for _, d := range refused.Errors[:min(len(refused.Errors), 3)] {
			words += fmt.Sprintf(", %s: %s", short(string(d.Code), 40), short(d.Message, 200))
		}
		if refused.StatusCode == http.StatusUnauthorized || refused.StatusCode == http.StatusForbidden {
			words += "; check spec.secretRef"
		}
		return &rephrased{words, err}
	case errors.As(err, &failed):
		where := "the registry"
		if u, err := url.Parse(failed.URL); err == nil {
			where = u.Scheme + "://" + u.Host + u.Path
		}
		words := fmt.Sprintf("%s %s: %s", failed.Op, where, short(worded{failed.Err}.Error(), 500))
		if errors.Is(err, errPlain) && !errors.Is(failed, errPlain) {
			words += "; " + errPlain.Error()
		}
		return &rephrased{words, err}
	}
	return &rephrased{short(worded{err}.Error(), 500), err}
}

// Answered reports whether a failure to fetch is what the server said of what it was asked for: it does not have it, or does
// not give it out.
func Answered(err error) bool {
	var refused *transport.Error
	return errors.As(err, new(*Told)) || errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound
}

// rephrased is an error in other words.
type rephrased struct {
	words string
	err   error
}

func (a *rephrased) Error() string { return a.words }
func (a *rephrased) Unwrap() error { return a.err }

// short cuts a text of a server to so many printable characters.
func short(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// registry returns the connection to an origin, with the credential that it has
// now.
func (i *Images) registry(ctx context.Context, origin ImageOrigin) (*registry, error) {
	repo, err := origin.repository()
	if err != nil {
		return nil, err
	}
	auth, err := origin.authenticator(repo)
	if err != nil {
		return nil, err
	}
	reg, err := i.registries.obtain(ctx, origin.key(), func() (*registry, error) { return origin.open(repo, auth) })
	if err != nil {
		return nil, imageError(ReasonImagePullFailed, "cannot read images", err)
	}
	return reg, reg.login.renew(auth)
}
