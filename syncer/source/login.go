package source

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fluxcd/pkg/auth"
	"github.com/fluxcd/pkg/auth/aws"
	"github.com/fluxcd/pkg/auth/azure"
	"github.com/fluxcd/pkg/auth/gcp"
	"github.com/fluxcd/pkg/cache"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/golang-jwt/jwt/v5"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Logins gets short-lived credentials from providers and keeps each for most of its
// life. It is safe for concurrent use.
type Logins struct {
	lines lines
	now   func() time.Time
	// appTimeout bounds a request for a token of a GitHub App.
	appTimeout time.Duration
}

// NewLogins keeps the tokens of at most this many logins, each at most this long.
func NewLogins(most int, longest time.Duration, now func() time.Time) (*Logins, error) {
	// An object may use the service accounts of its namespace: the owner of the
	// namespace and the cloud decide what these may read.
	auth.EnableObjectLevelWorkloadIdentity()
	return &Logins{lines: lines{most: most, longest: longest}, now: now, appTimeout: 30 * time.Second}, nil
}

// networkKey marks a context.
type networkKey struct{}

// NetworkAllowed reports whether a request with this context is one that this package
// makes through a library whose clients use http.DefaultTransport. A program that
// replaces that transport to deny the network lets these requests pass. The libraries
// that render have no such context.
func NetworkAllowed(ctx context.Context) bool { return ctx.Value(networkKey{}) != nil }

// AllowNetwork returns a context for which NetworkAllowed is true.
func AllowNetwork(ctx context.Context) context.Context {
	return context.WithValue(ctx, networkKey{}, true)
}

// Cloud gets a login for a repository at azure (Azure DevOps) or aws (CodeCommit). It
// acts as the service account, or as the agent if that has no name. The login is sent the
// way to the repository. The client must not read from a cache.
func (l *Logins) Cloud(ctx context.Context, provider, repository, serviceAccount string, way Way, c client.Client, key Key) (*Login, error) {
	u, err := url.Parse(repository)
	if err != nil {
		return nil, failf(ReasonURLInvalid, "cannot parse URL")
	}
	var from auth.GitCredentialsProvider
	var to audience
	switch provider {
	case azure.ProviderName:
		from, to = azure.Provider{}, azureDevOps
	case aws.ProviderName:
		from, to = aws.Provider{}, codeCommit
	default:
		return nil, failf(ReasonInvalidProvider, "cannot use spec.provider %q: it is not one of generic, github, azure, aws", provider)
	}
	if err := cmp.Or(to.checkURL(u), way.forIdentity(serviceAccount)); err != nil {
		return nil, err
	}
	repository, err = from.ParseGitRepository(u)
	if err != nil {
		return nil, failf(ReasonURLInvalid, "cannot use the URL with provider %s: %w", provider, err)
	}
	as := account{serviceAccount, way.Proxy, c, key}
	got, err := inLine(ctx, &l.lines, as.line(provider, repository), func(tokens *cache.TokenCache) (*auth.GitCredentials, error) {
		return auth.GetGitCredentials(AllowNetwork(ctx), from, append(as.options(tokens), auth.WithGitURL(*u))...)
	})
	if err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot get a token from provider %s: %w", provider, err)
	}
	return &Login{Username: got.Username, Password: got.Password, BearerToken: got.BearerToken, Identity: identityOf(provider, serviceAccount, key)}, nil
}

// account is what an object acts as: a service account of its namespace or, without a
// name, the agent. The proxy is the object's, and not for the agent: services that know it
// by its machine are asked in plain text.
type account struct {
	name   string
	proxy  *url.URL
	client client.Client
	key    Key
}

// options returns those of the library.
func (a account) options(tokens *cache.TokenCache) []auth.Option {
	options := []auth.Option{auth.WithClient(a.client), auth.WithServiceAccountNamespace(a.key.Namespace)}
	if tokens != nil {
		options = append(options, auth.WithCache(*tokens, cache.InvolvedObject{}))
	}
	if a.name != "" {
		options = append(options, auth.WithServiceAccountName(a.name))
	}
	if a.proxy != nil && a.name != "" {
		options = append(options, auth.WithProxyURL(*a.proxy))
	}
	return options
}

// line is that of all who ask the same service for the same token.
func (a account) line(provider, place string) string {
	if a.name == "" {
		return fmt.Sprintf("%q %q", provider, place)
	}
	return fmt.Sprintf("%q %q %q %q %q", provider, place, a.key.Namespace, a.name, a.proxy)
}

// identityOf is equal for objects that act as the same identity.
func identityOf(provider, serviceAccount string, key Key) string {
	if serviceAccount == "" {
		return provider
	}
	return provider + "/" + key.Namespace + "/" + serviceAccount
}

// Registry gets a login for images at aws, azure or gcp. The URL of the repository has
// the scheme oci. Registry acts as the service account, or as the agent if that has no
// name. The login is sent the way to the registry. The client must not read from a cache.
func (l *Logins) Registry(ctx context.Context, provider, repository, serviceAccount string, way Way, c client.Client, key Key) (*Login, error) {
	at, ok := strings.CutPrefix(repository, sourcev1.OCIRepositoryPrefix)
	if !ok {
		return nil, failf(ReasonURLInvalid, "cannot use URL: it must be in the form oci://<domain>/<org>/<repo>")
	}
	var from auth.ArtifactRegistryCredentialsProvider
	switch provider {
	case aws.ProviderName:
		from = aws.Provider{}
	case azure.ProviderName:
		from = azure.Provider{}
	case gcp.ProviderName:
		from = gcp.Provider{}
	default:
		return nil, failf(ReasonInvalidProvider, "cannot use spec.provider %q: it is not one of generic, aws, azure, gcp", provider)
	}
	// The provider knows its registries.
	registry, err := from.ParseArtifactRepository(at)
	if err != nil {
		return nil, failf(ReasonCredentialRefused, "cannot use the identity of the cloud: %w; use a Secret, or correct the URL", err)
	}
	if err := way.forIdentity(serviceAccount); err != nil {
		return nil, err
	}
	as := account{serviceAccount, way.Proxy, c, key}
	got, err := inLine(ctx, &l.lines, as.line(provider, registry), func(tokens *cache.TokenCache) (*auth.ArtifactRegistryCredentials, error) {
		return auth.GetArtifactRegistryCredentials(AllowNetwork(ctx), from, at, as.options(tokens)...)
	})
	if err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot get a credential from provider %s: %w", provider, err)
	}
	config, err := got.Authorization()
	if err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot read the credential of provider %s: %w", provider, err)
	}
	return &Login{Username: config.Username, Password: config.Password, BearerToken: config.RegistryToken, Identity: identityOf(provider, serviceAccount, key)}, nil
}

// Keys of a Secret for a GitHub App. They are Flux's.
const (
	appID                = "githubAppID"
	appClientID          = "githubAppClientID"
	appInstallationID    = "githubAppInstallationID"
	appInstallationOwner = "githubAppInstallationOwner"
	appPrivateKey        = "githubAppPrivateKey"
	appBaseURL           = "githubAppBaseURL"
)

// HasGitHubApp reports whether a Secret is for a GitHub App.
func HasGitHubApp(secret map[string][]byte) bool {
	return len(secret[appID]) > 0 || len(secret[appClientID]) > 0
}

// GitHubApp gets a login as an installation of a GitHub App, for a repository at the
// same GitHub. restrict bounds where the connections to its API may lead; nil does not.
func (l *Logins) GitHubApp(ctx context.Context, repository string, secret map[string][]byte, proxy *url.URL, restrict func(*http.Transport)) (*Login, error) {
	app, err := l.newApp(secret, proxy, restrict)
	if err != nil {
		return nil, err
	}
	if err := app.forRepository(repository); err != nil {
		return nil, err
	}
	identity := app.identity(secret)
	token, err := inLine(ctx, &l.lines, fmt.Sprintf("github %q %q", identity, proxy), func(tokens *cache.TokenCache) (*installationToken, error) {
		token, _, err := tokens.GetOrSet(ctx, "", func(ctx context.Context) (cache.Token, error) {
			// The timeout of the object is that of its clone.
			ctx, cancel := context.WithTimeout(ctx, l.appTimeout)
			defer cancel()
			return app.token(ctx)
		})
		if err != nil {
			return nil, err
		}
		return token.(*installationToken), nil
	})
	if err != nil {
		return nil, failf(ReasonAuthenticationFailed, "cannot get a token of the GitHub App: %w", err)
	}
	return &Login{Username: "x-access-token", Password: token.Token, Identity: identity}, nil
}

// app sends requests to GitHub's API as an app.
type app struct {
	issuer       string
	installation int64
	owner        string
	key          any
	api          *url.URL
	client       *http.Client
	now          func() time.Time
}

func (l *Logins) newApp(secret map[string][]byte, proxy *url.URL, restrict func(*http.Transport)) (*app, error) {
	text := func(key string) string { return strings.TrimSpace(string(secret[key])) }
	invalid := func(format string, args ...any) error { return failf(ReasonInvalidProvider, format, args...) }
	a := &app{issuer: text(appClientID), owner: text(appInstallationOwner), now: l.now}
	if a.issuer == "" {
		a.issuer = text(appID)
		if _, err := strconv.ParseInt(a.issuer, 10, 64); err != nil {
			return nil, invalid("cannot use the GitHub App: the Secret needs %s, a number, or %s", appID, appClientID)
		}
	}
	switch id := text(appInstallationID); {
	case (id == "") == (a.owner == ""):
		return nil, invalid("cannot use the GitHub App: the Secret needs one of %s and %s", appInstallationID, appInstallationOwner)
	case id != "":
		var err error
		if a.installation, err = strconv.ParseInt(id, 10, 64); err != nil {
			return nil, invalid("cannot use the GitHub App: %s is not a number", appInstallationID)
		}
	}
	key, err := jwt.ParseRSAPrivateKeyFromPEM(secret[appPrivateKey])
	if err != nil {
		return nil, invalid("cannot use the GitHub App: %s is not an RSA private key in PEM", appPrivateKey)
	}
	a.key = key
	base := text(appBaseURL)
	if base == "" {
		base = "https://api.github.com"
	}
	if a.api, err = url.Parse(base); err != nil || (a.api.Scheme != "https" && a.api.Scheme != "http") || a.api.Host == "" {
		return nil, invalid("cannot use the GitHub App: %s is not a URL of scheme https", appBaseURL)
	}
	if strings.ContainsAny(base, "?#") {
		// What is asked for comes behind it, and would be no part of the path.
		return nil, invalid("cannot use the GitHub App: %s has a query or a fragment; remove it", appBaseURL)
	}
	config, err := tlsConfig(secret)
	if err != nil {
		return nil, err
	}
	a.client = newClient(a.api, config, proxy, restrict)
	return a, nil
}

// identity is equal for Secrets of the same installation. It is made with the private
// key: an object that does not have the key gets no token from the cache.
func (a *app) identity(secret map[string][]byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %d %q %q %q", a.issuer, a.installation, a.owner, a.api, secret[appPrivateKey])
	return hex.EncodeToString(h.Sum(nil)[:16])
}

type installationToken struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires_at"`
}

// GetDuration implements cache.Token.
func (t *installationToken) GetDuration() time.Duration { return time.Until(t.Expires) }

func (a *app) token(ctx context.Context) (*installationToken, error) {
	defer a.client.CloseIdleConnections()
	// GitHub allows at most ten minutes, and refuses a time in the future. The margin is
	// for clocks that differ.
	now := a.now().Truncate(time.Second)
	signed, err := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.RegisteredClaims{
		Issuer: a.issuer, IssuedAt: jwt.NewNumericDate(now.Add(-time.Minute)), ExpiresAt: jwt.NewNumericDate(now.Add(2 * time.Minute)),
	}).SignedString(a.key)
	if err != nil {
		return nil, errors.New("cannot sign the request with the private key")
	}
	installation := a.installation
	if installation == 0 {
		if installation, err = a.find(ctx, signed); err != nil {
			return nil, err
		}
	}
	token := &installationToken{}
	if err := a.ask(ctx, signed, http.MethodPost, fmt.Sprintf("app/installations/%d/access_tokens", installation), token); err != nil {
		return nil, err
	}
	if token.Token == "" {
		return nil, errors.New("the answer has no token")
	}
	return token, nil
}

// find returns the installation of the owner, an organisation or a user.
func (a *app) find(ctx context.Context, signed string) (int64, error) {
	var problems []error
	for _, kind := range []string{"orgs", "users"} {
		var found struct {
			ID int64 `json:"id"`
		}
		err := a.ask(ctx, signed, http.MethodGet, kind+"/"+url.PathEscape(a.owner)+"/installation", &found)
		if err == nil && found.ID != 0 {
			return found.ID, nil
		}
		problems = append(problems, err)
	}
	return 0, fmt.Errorf("cannot find the installation of %q: %w", a.owner, errors.Join(problems...))
}

func (a *app) ask(ctx context.Context, signed, method, at string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(a.api.String(), "/")+"/"+at, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+signed)
	req.Header.Set("Accept", "application/vnd.github+json")
	res, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return err
	}
	if res.StatusCode/100 != 2 {
		// GitHub's message is for people, short, and without a secret.
		var said struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(data, &said)
		return fmt.Errorf("%s /%s: %s %q", method, at, res.Status, said.Message[:min(len(said.Message), 200)])
	}
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(answer); err != nil {
		return errors.New("the answer is not JSON")
	}
	return nil
}

// ProxyOf reads the Secret of a proxy: its address, and its username and password if it
// has them.
func ProxyOf(secret map[string][]byte) (*url.URL, error) {
	address := strings.TrimSpace(string(secret["address"]))
	u, err := url.Parse(address)
	if address == "" || err != nil || u.Host == "" {
		return nil, failf(ReasonAuthenticationFailed, "cannot use the proxy: the Secret needs the key address, a URL such as http://proxy:3128")
	}
	switch u.Scheme {
	case "http", "https", "socks5", "socks5h":
	default:
		return nil, failf(ReasonAuthenticationFailed, "cannot use the proxy: scheme %q is not one of http, https, socks5", u.Scheme)
	}
	if name, ok := secret["username"]; ok {
		if password, ok := secret["password"]; ok {
			u.User = url.UserPassword(string(name), string(password))
		} else {
			u.User = url.User(string(name))
		}
	}
	return u, nil
}
