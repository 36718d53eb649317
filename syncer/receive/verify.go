package receive

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // senders choose the hash; HMAC with SHA-1 is not known to be broken
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"

	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// Keys of the Secret of a Receiver.
const (
	tokenKey    = "token"
	emailKey    = "email"
	audienceKey = "audience"
)

// googleIssuer issues the tokens of Pub/Sub's pushes.
const googleIssuer = "https://accounts.google.com"

// Results of a request, which metrics tell.
const (
	resultAccepted  = "accepted"
	resultUnknown   = "unknown"
	resultTooLarge  = "too_large"
	resultBusy      = "busy"
	resultLimited   = "limited"
	resultNotReady  = "not_ready"
	resultForged    = "forged"
	resultEvent     = "event"
	resultMalformed = "malformed"
	resultFailed    = "failed"
)

// results are all of them.
func results() []string {
	return []string{
		resultAccepted, resultUnknown, resultTooLarge, resultBusy, resultLimited, resultNotReady, resultForged, resultEvent, resultMalformed, resultFailed,
	}
}

// refusal is why a request is refused. Its text is for the sender, and has nothing of the
// Receiver.
type refusal struct {
	result string
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func forged(format string, args ...any) error {
	return &refusal{resultForged, http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func malformed(format string, args ...any) error {
	return &refusal{resultMalformed, http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// delivery is what came over HTTP, read and bounded.
type delivery struct {
	header http.Header
	body   []byte
}

// verified is what is known of a request that its Receiver accepts.
type verified struct {
	// payload is what its body says, or what is wrapped in that; nil if it is no JSON object.
	payload map[string]any
	// claims of the token that came with it, nil without one.
	claims map[string]any
}

// Identities verify tokens of OpenID Connect.
type Identities interface {
	// Claims returns what a token says, which an issuer signed for an audience and that has
	// not expired.
	Claims(ctx context.Context, issuer, audience, token string) (map[string]any, error)
}

// verifier finds out who sent a request.
type verifier struct {
	identities Identities
	workers    worker.Runner
	// google is the issuer of the tokens of Pub/Sub.
	google string
}

// asks reports whether requests to a type of Receiver come with a token whose issuer is asked.
func asks(of string) bool {
	return of == notificationv1.GenericOIDCReceiver || of == notificationv1.GCRReceiver
}

// identify returns what the token of a request says, as its issuer has it, and a *refusal if
// that is not of whom the Receiver accepts tokens: for generic-oidc, examine says which of them.
// Nothing of the body is needed for it.
func (v *verifier) identify(ctx context.Context, receiver *notificationv1.Receiver, secret map[string][]byte, header http.Header) (claims map[string]any, err error) {
	switch receiver.Spec.Type {
	case notificationv1.GenericOIDCReceiver:
		return v.oidc(ctx, receiver, header)
	case notificationv1.GCRReceiver:
		return v.account(ctx, secret, header)
	}
	return nil, nil
}

// verify returns a *refusal if the Receiver does not accept the request. secret is the data
// of the Secret of the Receiver; the token in it is not empty. claims are what identify
// returned for the request.
func verify(spec *notificationv1.ReceiverSpec, secret map[string][]byte, claims map[string]any, r delivery) (*verified, error) {
	token := secret[tokenKey]
	if len(token) == 0 && spec.Type != notificationv1.GenericOIDCReceiver {
		return nil, forged("the Receiver has no token") // a signature with no key is anybody's
	}
	if asks(spec.Type) && claims == nil {
		return nil, forged("nobody says whose request it is")
	}
	out := &verified{claims: claims}
	switch spec.Type {
	case notificationv1.GenericReceiver, notificationv1.GenericOIDCReceiver:
	case notificationv1.GenericHMACReceiver:
		if err := signed(r, token, "X-Signature"); err != nil {
			return nil, err
		}
	case notificationv1.GitHubReceiver:
		// GitHub sends both; Gitea, and earlier versions, the second one only.
		if err := signed(r, token, "X-Hub-Signature-256", "X-Hub-Signature"); err != nil {
			return nil, err
		}
		if err := wanted(spec.Events, r, "X-GitHub-Event"); err != nil {
			return nil, err
		}
	case notificationv1.GitLabReceiver:
		if err := same(r, token, "X-Gitlab-Token"); err != nil {
			return nil, err
		}
		if err := wanted(spec.Events, r, "X-Gitlab-Event"); err != nil {
			return nil, err
		}
	case notificationv1.BitbucketReceiver:
		if err := signed(r, token, "X-Hub-Signature"); err != nil {
			return nil, err
		}
		if err := wanted(spec.Events, r, "X-Event-Key"); err != nil {
			return nil, err
		}
	case notificationv1.HarborReceiver:
		if err := same(r, token, "Authorization"); err != nil {
			return nil, err
		}
	case notificationv1.NexusReceiver:
		if err := digestOf(r, token, "X-Nexus-Webhook-Signature"); err != nil {
			return nil, err
		}
		if err := shaped(r.body, "timestamp", "action"); err != nil {
			return nil, err
		}
	case notificationv1.DockerHubReceiver:
		if err := shaped(r.body, "push_data", "repository"); err != nil {
			return nil, err
		}
	case notificationv1.QuayReceiver:
		if err := shaped(r.body, "docker_url", "updated_tags"); err != nil {
			return nil, err
		}
	case notificationv1.ACRReceiver:
		if err := shaped(r.body, "action", "target"); err != nil {
			return nil, err
		}
	case notificationv1.GCRReceiver:
		var err error
		if out.payload, err = imageOf(r.body); err != nil {
			return nil, err
		}
	case notificationv1.CDEventsReceiver:
		if err := wanted(spec.Events, r, "Ce-Type"); err != nil {
			return nil, err
		}
		if err := cdevent(r.body); err != nil {
			return nil, err
		}
	default:
		return nil, &refusal{resultNotReady, http.StatusServiceUnavailable, "the Receiver is of an unknown type"}
	}
	if out.payload == nil {
		out.payload = payload(r)
	}
	return out, nil
}

// hashes that a signature may be of.
func hashes() map[string]func() hash.Hash {
	return map[string]func() hash.Hash{"sha1": sha1.New, "sha256": sha256.New, "sha512": sha512.New}
}

// signed checks the HMAC of the body in the first of the headers that is there, as
// <hash>=<hex>.
func signed(r delivery, key []byte, headers ...string) error {
	for _, name := range headers {
		value := r.header.Get(name)
		if value == "" {
			continue
		}
		algorithm, sum, ok := strings.Cut(value, "=")
		of := hashes()[strings.ToLower(algorithm)]
		if !ok || of == nil {
			return forged("header %s is not <hash>=<signature>, with sha1, sha256 or sha512", name)
		}
		return authentic(of, r.body, key, sum, name)
	}
	return forged("there is no signature in header %s", headers[0])
}

// digestOf checks the HMAC of the body with SHA-1, in hex.
func digestOf(r delivery, key []byte, header string) error {
	value := r.header.Get(header)
	if value == "" {
		return forged("there is no signature in header %s", header)
	}
	return authentic(sha1.New, r.body, key, value, header)
}

func authentic(of func() hash.Hash, body, key []byte, sum, header string) error {
	got, err := hex.DecodeString(sum)
	if err != nil {
		return forged("the signature in header %s is not hexadecimal", header)
	}
	mac := hmac.New(of, key)
	mac.Write(body)
	if !hmac.Equal(mac.Sum(nil), got) {
		return forged("the signature in header %s is not of this body by the token of the Receiver", header)
	}
	return nil
}

// same checks that a header has the token. Its length is not shown by the time it takes.
func same(r delivery, token []byte, header string) error {
	got, want := sha256.Sum256([]byte(r.header.Get(header))), sha256.Sum256(token)
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
		return forged("header %s does not have the token of the Receiver", header)
	}
	return nil
}

// wanted checks the event in a header. Without spec.events all are wanted.
func wanted(events []string, r delivery, header string) error {
	event := r.header.Get(header)
	if len(events) == 0 || slices.ContainsFunc(events, func(e string) bool { return strings.EqualFold(e, event) }) {
		return nil
	}
	return &refusal{resultEvent, http.StatusBadRequest, fmt.Sprintf("the event in header %s is none that the Receiver handles", header)}
}

// shaped checks that a body is a JSON object with these fields.
func shaped(body []byte, fields ...string) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil {
		return malformed("the body is not a JSON object")
	}
	for _, f := range fields {
		if len(object[f]) == 0 || string(object[f]) == "null" {
			return malformed("the body has no %s", f)
		}
	}
	return nil
}

// cdevent checks what every CDEvent has.
func cdevent(body []byte) error {
	var event struct {
		Context struct {
			ID        string `json:"id"`
			Source    string `json:"source"`
			Type      string `json:"type"`
			Timestamp string `json:"timestamp"`
		} `json:"context"`
		Subject struct {
			ID string `json:"id"`
		} `json:"subject"`
	}
	if err := json.Unmarshal(body, &event); err != nil {
		return malformed("the body is not a CDEvent")
	}
	for name, value := range map[string]string{
		"context.id": event.Context.ID, "context.source": event.Context.Source, "context.timestamp": event.Context.Timestamp, "subject.id": event.Subject.ID,
	} {
		if value == "" {
			return malformed("the body is not a CDEvent: it has no %s", name)
		}
	}
	if !strings.HasPrefix(event.Context.Type, "dev.cdevents.") && !strings.HasPrefix(event.Context.Type, "dev.cdeventsx.") {
		return malformed("the body is not a CDEvent: its context.type is none of dev.cdevents")
	}
	return nil
}

// account checks whose push of Google's Pub/Sub it is. It returns the claims of its token.
func (v *verifier) account(ctx context.Context, secret map[string][]byte, header http.Header) (map[string]any, error) {
	email, audience := string(secret[emailKey]), string(secret[audienceKey])
	if email == "" || audience == "" {
		return nil, forged("the Receiver does not say whose pushes it accepts")
	}
	token, err := bearer(header)
	if err != nil {
		return nil, forged("%s", err) // as what is forged, with Flux's status
	}
	claims, err := v.identities.Claims(ctx, v.google, audience, token)
	if err != nil {
		var down *UnavailableError
		if errors.As(err, &down) {
			return nil, &refusal{resultFailed, http.StatusServiceUnavailable, "Google cannot be asked for its keys"}
		}
		return nil, forged("the token of the request is not one of Google for this Receiver")
	}
	is, ok := claims["email"].(string)
	if verified, _ := claims["email_verified"].(bool); !ok || !verified || subtle.ConstantTimeCompare([]byte(is), []byte(email)) != 1 {
		return nil, forged("the token of the request is not of the account that the Receiver accepts")
	}
	return claims, nil
}

// imageOf is what a push of Pub/Sub says of an image, with the fields that Flux has there.
func imageOf(body []byte) (map[string]any, error) {
	var push struct {
		Message struct {
			Data string `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(body, &push); err != nil {
		return nil, malformed("the body is not a push of Pub/Sub")
	}
	data, err := base64.StdEncoding.DecodeString(push.Message.Data)
	if err != nil {
		return nil, malformed("the data of the push is not base64")
	}
	if err := shaped(data, "action"); err != nil {
		return nil, err
	}
	var image struct{ Action, Digest, Tag string }
	if err := json.Unmarshal(data, &image); err != nil {
		return nil, malformed("the push is not about an image")
	}
	return map[string]any{"action": image.Action, "digest": image.Digest, "tag": image.Tag}, nil
}

// bearer is the token of the Authorization header.
func bearer(header http.Header) (string, error) {
	kind, token, ok := strings.Cut(header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !ok || !strings.EqualFold(kind, "Bearer") || token == "" || len(token) > mostToken {
		return "", &refusal{resultForged, http.StatusUnauthorized, "there is no bearer token in header Authorization"}
	}
	return token, nil
}

// mostToken bounds a bearer token.
const mostToken = 16 << 10

// oidc checks the token of a pipeline.
func (v *verifier) oidc(ctx context.Context, receiver *notificationv1.Receiver, header http.Header) (map[string]any, error) {
	token, p, err := providerOf(receiver, header)
	if err != nil {
		return nil, err
	}
	claims, err := v.identities.Claims(ctx, p.IssuerURL, p.GetAudience(), token)
	var down *UnavailableError
	var refused *answer.Error
	switch {
	case errors.As(err, &refused):
		return nil, &refusal{resultFailed, http.StatusServiceUnavailable, "the issuer of the token is at an address that the agent does not ask: see --deny-provider-addresses"}
	case errors.As(err, &down):
		return nil, &refusal{resultFailed, http.StatusServiceUnavailable, "the issuer of the token cannot be asked for its keys"}
	case err != nil:
		return nil, &refusal{resultForged, http.StatusUnauthorized, "the token is not valid for the Receiver"}
	}
	return claims, nil
}

// providerOf is the token of a request, and the provider that it says to be of.
func providerOf(receiver *notificationv1.Receiver, header http.Header) (string, *notificationv1.OIDCProvider, error) {
	token, err := bearer(header)
	if err != nil {
		return "", nil, err
	}
	issuer, err := issuerOf(token)
	if err != nil {
		return "", nil, &refusal{resultForged, http.StatusUnauthorized, "the bearer token is no JSON web token"}
	}
	providers := receiver.Spec.OIDCProviders
	at := slices.IndexFunc(providers, func(p notificationv1.OIDCProvider) bool { return p.IssuerURL == issuer })
	if at < 0 {
		return "", nil, &refusal{resultForged, http.StatusUnauthorized, "the issuer of the token is none of the Receiver's"}
	}
	return token, &providers[at], nil
}

// examine checks what a Receiver demands of the claims of a token that identify returned.
func (v *verifier) examine(ctx context.Context, receiver *notificationv1.Receiver, p *notificationv1.OIDCProvider, claims map[string]any) error {
	failed, err := checksOf(p).Examine(ctx, workersFor(v.workers, receiver), claims)
	switch {
	case err != nil && (worker.Lasting(err) || errors.Is(err, expression.ErrLate) || isTask(err)):
		return &refusal{resultForged, http.StatusForbidden, "the claims of the token cannot be validated"}
	case err != nil:
		return &refusal{resultFailed, http.StatusServiceUnavailable, "the claims of the token cannot be validated now"}
	case len(failed) > 0:
		return &refusal{resultForged, http.StatusForbidden, strings.Join(failed, "; ")}
	}
	return nil
}

// workersFor are workers that serve a Receiver: what its expressions cost is its own.
func workersFor(workers worker.Runner, receiver *notificationv1.Receiver) worker.Runner {
	return worker.For(workers, "Receiver/"+receiver.Namespace+"/"+receiver.Name)
}

// isTask reports whether a worker said that what it was asked cannot be done.
func isTask(err error) bool {
	var failed *worker.TaskError
	return errors.As(err, &failed)
}

// checksOf are what a provider demands of claims.
func checksOf(p *notificationv1.OIDCProvider) expression.Claims {
	var c expression.Claims
	for _, v := range p.Variables {
		c.Variables = append(c.Variables, expression.Variable{Name: v.Name, Text: v.Expression})
	}
	for _, v := range p.Validations {
		c.Validations = append(c.Validations, expression.Validation{Text: v.Expression, Message: v.Message})
	}
	return c
}

// issuerOf is who a token says that issued it; nothing of it is verified.
func issuerOf(token string) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", errors.New("it does not have three parts")
	}
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", err
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	return claims.Issuer, json.Unmarshal(data, &claims)
}

// payload is what a body says, as JSON or as a form with it; nil if that is no object.
func payload(r delivery) map[string]any {
	body := r.body
	if kind, _, err := mime.ParseMediaType(r.header.Get("Content-Type")); err == nil && kind == "application/x-www-form-urlencoded" {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return nil
		}
		body = []byte(form.Get("payload"))
	}
	var object map[string]any
	if json.Unmarshal(body, &object) != nil {
		return nil
	}
	return object
}
