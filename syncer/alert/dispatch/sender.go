package dispatch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	"golang.org/x/net/http/httpguts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/syncer/alert"
	"github.com/cascade-gitops/cascade/syncer/alert/payload"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

const (
	// fresh is how long what Secrets say is used without a look.
	fresh = 15 * time.Second
	// mostAnswer bounds what is read of an answer.
	mostAnswer = 64 << 10
	// mostHeaders and mostAddress bound what a Secret may say.
	mostHeaders = 50
	mostAddress = 2048
)

// Senders make what Providers are reached with. They are safe for concurrent use.
type Senders struct {
	// Reader reads Secrets, from no cache.
	Reader client.Reader
	// Addresses are those where Providers may be.
	Addresses answer.Addresses
	// GitHubApp returns a token of a GitHub App for a repository of its own GitHub, which it
	// reaches by a transport that restrict was given; nil is none.
	GitHubApp func(ctx context.Context, repository string, secret map[string][]byte, proxy *url.URL, restrict func(*http.Transport)) (string, error)
}

// line is what the goroutine of one Provider reaches it with. It is closed when nothing is
// to be sent, so that no credential stays in memory.
type line struct {
	uid        types.UID
	generation int64
	until      time.Time
	settings   payload.Settings
	client     *http.Client
	failing    bool
	// old tells that what the Secrets say was read before the attempt, not for it.
	old bool
	// out is since when nothing arrives; zero while something does.
	out time.Time
}

func (l *line) close() {
	if l.client != nil {
		l.client.CloseIdleConnections()
	}
	l.client, l.settings, l.until = nil, payload.Settings{}, time.Time{}
}

// open reads what a Provider and its Secrets say, unless that was done a moment ago.
func (s *Senders) open(ctx context.Context, l *line, p *notificationv1beta3.Provider, now time.Time) error {
	l.old = l.client != nil && l.uid == p.UID && l.generation == p.Generation && now.Before(l.until)
	if l.old {
		return nil
	}
	settings, proxy, err := s.settings(ctx, p)
	if err != nil {
		return err
	}
	config, err := s.certificates(ctx, p)
	if err != nil {
		return err
	}
	l.close()
	l.uid, l.generation, l.until, l.settings = p.UID, p.Generation, now.Add(fresh), settings
	l.client = s.client(config, proxy)
	return nil
}

// client is a client of HTTP that reaches only what a Provider may.
func (s *Senders) client(config *tls.Config, proxy *url.URL) *http.Client {
	by := http.ProxyFromEnvironment
	if proxy != nil {
		by = http.ProxyURL(proxy)
	}
	transport := answer.Over(&http.Transport{
		Proxy: by, TLSClientConfig: config, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns: 2, MaxIdleConnsPerHost: 2, IdleConnTimeout: 2 * linger, MaxResponseHeaderBytes: mostAnswer,
		// An answer is bounded as it comes, not as it is packed.
		DisableCompression: true,
	})
	s.Addresses.Restrict(transport.Transport, proxy == nil)
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     transport,
	}
}

// settings are those of the spec, with what the Secrets say instead.
func (s *Senders) settings(ctx context.Context, p *notificationv1beta3.Provider) (payload.Settings, *url.URL, error) {
	spec := &p.Spec
	out := payload.Settings{Type: spec.Type, Address: spec.Address, Channel: spec.Channel, Username: spec.Username}
	if spec.ServiceAccountName != "" {
		return out, nil, &payload.Error{Reason: payload.ReasonInvalid,
			Text: "spec.serviceAccountName is not followed: name a Secret with token in spec.secretRef, or run Flux's notification-controller for this Provider"}
	}
	proxy := spec.Proxy
	var data map[string][]byte
	if spec.SecretRef != nil {
		var err error
		if data, err = s.secret(ctx, p.Namespace, spec.SecretRef.Name, "spec.secretRef"); err != nil {
			return out, nil, err
		}
		text := func(key string) string { return strings.TrimSpace(string(data[key])) }
		out.Address, out.Username = cmp.Or(text("address"), out.Address), cmp.Or(text("username"), out.Username)
		out.Token, out.Password, proxy = text("token"), text("password"), cmp.Or(text("proxy"), proxy)
		if out.Headers, err = headers(data["headers"]); err != nil {
			return out, nil, err
		}
	}
	if len(out.Address) > mostAddress {
		return out, nil, invalid("the address has more than %d bytes", mostAddress)
	}
	by, err := s.proxy(ctx, p, proxy)
	if err != nil {
		return out, nil, err
	}
	if out.Token == "" && s.GitHubApp != nil && (spec.Type == notificationv1beta3.GitHubProvider || spec.Type == notificationv1beta3.GitHubDispatchProvider) && hasApp(data) {
		if out.Token, err = s.GitHubApp(ctx, out.Address, data, by, func(t *http.Transport) { s.Addresses.Restrict(t, by == nil) }); err != nil {
			if f := failed(err); f.reason == ReasonAddressRefused {
				return out, nil, f
			}
			return out, nil, failuref(payload.ReasonInvalid, true, "cannot get a token of the GitHub App; check the Secret of spec.secretRef, and that the App is of the GitHub of the address")
		}
	}
	return out, by, nil
}

func hasApp(secret map[string][]byte) bool {
	return len(secret["githubAppID"]) > 0 || len(secret["githubAppClientID"]) > 0
}

func invalid(format string, args ...any) error {
	return &payload.Error{Reason: payload.ReasonInvalid, Text: fmt.Sprintf(format, args...)}
}

// headers are written as a map of YAML.
func headers(text []byte) (map[string]string, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var out map[string]string
	if err := yaml.Unmarshal(text, &out); err != nil {
		return nil, invalid("headers of the Secret are no map of names to texts")
	}
	if len(out) > mostHeaders {
		return nil, invalid("headers of the Secret are more than %d", mostHeaders)
	}
	return out, nil
}

// secret reads a Secret in the namespace of a Provider.
func (s *Senders) secret(ctx context.Context, namespace, name, field string) (map[string][]byte, error) {
	secret := &corev1.Secret{}
	err := s.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, failuref(payload.ReasonInvalid, true, "Secret %s of %s does not exist; create it, or correct the name", name, field)
	case apierrors.IsForbidden(err):
		return nil, failuref(payload.ReasonInvalid, true, "the agent may not read Secret %s of %s; give it the right", name, field)
	case err != nil:
		return nil, failuref(payload.ReasonInvalid, true, "cannot read Secret %s of %s now", name, field)
	}
	return secret.Data, nil
}

// proxy is by whom a Provider is reached; nil if the environment says so.
func (s *Senders) proxy(ctx context.Context, p *notificationv1beta3.Provider, address string) (*url.URL, error) {
	var user *url.Userinfo
	if ref := p.Spec.ProxySecretRef; ref != nil {
		data, err := s.secret(ctx, p.Namespace, ref.Name, "spec.proxySecretRef")
		if err != nil {
			return nil, err
		}
		address = strings.TrimSpace(string(data["address"]))
		if address == "" {
			return nil, invalid("Secret %s of spec.proxySecretRef has no address", ref.Name)
		}
		if name := string(data["username"]); name != "" {
			user = url.UserPassword(name, string(data["password"]))
		}
	}
	if address == "" {
		return nil, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, invalid("the address of the proxy is no URL of http or https")
	}
	if user != nil {
		u.User = user
	}
	return u, nil
}

// certificates are those of spec.certSecretRef. Without an authority in it, those of the
// system are trusted.
func (s *Senders) certificates(ctx context.Context, p *notificationv1beta3.Provider) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	ref := p.Spec.CertSecretRef
	if ref == nil {
		return config, nil
	}
	data, err := s.secret(ctx, p.Namespace, ref.Name, "spec.certSecretRef")
	if err != nil {
		return nil, err
	}
	either := func(names ...string) []byte {
		for _, name := range names {
			if len(data[name]) > 0 {
				return data[name]
			}
		}
		return nil
	}
	ca, certificate, key := either("ca.crt", "caFile"), either("tls.crt", "certFile"), either("tls.key", "keyFile")
	if ca == nil && (certificate == nil || key == nil) {
		return nil, invalid("Secret %s of spec.certSecretRef has neither ca.crt, nor tls.crt with tls.key", ref.Name)
	}
	if ca != nil {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, invalid("ca.crt in Secret %s of spec.certSecretRef has no certificate", ref.Name)
		}
	}
	if (certificate == nil) != (key == nil) {
		return nil, invalid("Secret %s of spec.certSecretRef has only one of tls.crt and tls.key", ref.Name)
	}
	if certificate != nil {
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			return nil, invalid("tls.crt and tls.key in Secret %s of spec.certSecretRef do not go together", ref.Name)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// do sends one request, and judges the answer.
func (l *line) do(ctx context.Context, r *payload.Request) error {
	request, err := http.NewRequestWithContext(ctx, r.Method, r.URL, bytes.NewReader(r.Body))
	if err != nil {
		return invalid("the address cannot be requested: correct spec.address")
	}
	for name, values := range r.Header {
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(strings.Join(values, "")) {
			return invalid("headers, token, username or password of the Secret have what no header of HTTP may have: correct the Secret")
		}
	}
	request.Header = r.Header
	if request.Header.Get("User-Agent") == "" {
		request.Header.Set("User-Agent", "cascade")
	}
	response, err := l.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	// All of a small answer is read, so that the connection can be used again.
	body, err := io.ReadAll(io.LimitReader(response.Body, mostAnswer))
	if r.Accepted != nil && r.Accepted(response.StatusCode, body) {
		return nil
	}
	if f := refusal(response.StatusCode); f != nil {
		return f
	}
	// What is taken is taken, even if the rest of the answer does not come.
	if err == nil && r.Refused != nil {
		if word := r.Refused(body); word != "" {
			return failuref(ReasonRefused, false, "the server took the request, and answers %s; check spec.channel and the token", word)
		}
	}
	return nil
}

// statusName is the name of a commit status: what spec.commitStatusExpr says, or the usual.
func (s *sending) statusName(ctx context.Context, p *notificationv1beta3.Provider, m *alert.Message) (string, error) {
	if p.Spec.CommitStatusExpr == "" {
		return payload.StatusName(m, string(p.UID)), nil
	}
	a := &notificationv1beta3.Alert{}
	if err := s.o.Client.Get(ctx, m.Alert, a); err != nil {
		f := failuref(payload.ReasonInvalid, false, "Alert %s is gone, which spec.commitStatusExpr may name", m.Alert)
		f.own = true
		return "", f
	}
	text, err := json.Marshal(&m.Event)
	if err != nil {
		return "", fmt.Errorf("cannot write event: %w", err)
	}
	var event map[string]any
	if err := json.Unmarshal(text, &event); err != nil {
		return "", fmt.Errorf("cannot read event: %w", err)
	}
	provider, err := asObject(p)
	if err != nil {
		return "", fmt.Errorf("cannot read Provider: %w", err)
	}
	of, err := asObject(a)
	if err != nil {
		return "", fmt.Errorf("cannot read Alert: %w", err)
	}
	workers := worker.For(s.o.Workers, "Provider/"+p.Namespace+"/"+p.Name)
	name, err := expression.Text(ctx, workers, p.Spec.CommitStatusExpr, []string{"alert", "event", "provider"}, of, event, provider)
	var wrong *worker.TaskError
	var exceeded *worker.Exceeded
	switch {
	case errors.As(err, &wrong):
		f := failuref(payload.ReasonInvalid, false, "cannot evaluate spec.commitStatusExpr: %s", alert.Cut(wrong.Text, 300))
		f.own = true
		return "", f
	case errors.Is(err, expression.ErrLate), errors.As(err, &exceeded):
		return "", invalid("cannot evaluate spec.commitStatusExpr: it takes too long, or too much memory")
	case err != nil:
		return "", failuref(payload.ReasonInvalid, true, "cannot evaluate spec.commitStatusExpr now")
	}
	return name, nil
}
