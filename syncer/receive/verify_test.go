package receive

import (
	"context"
	"crypto/hmac"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"

	"github.com/cascade-gitops/cascade/syncer/answer"
)

const secretToken = "c2VjcmV0"

// sum is the HMAC of a body.
func sum(algorithm, key, body string) string {
	mac := hmac.New(hashes()[algorithm], []byte(key))
	mac.Write([]byte(body))
	return hex.EncodeToString(mac.Sum(nil))
}

// issuer is an issuer that knows one token.
type oneToken struct {
	issuer, audience, token string
	claims                  map[string]any
	down                    error
}

func (o *oneToken) Claims(_ context.Context, issuer, audience, token string) (map[string]any, error) {
	switch {
	case o.down != nil:
		return nil, &UnavailableError{o.down}
	case issuer != o.issuer || audience != o.audience || token != o.token:
		return nil, errors.New("not mine")
	}
	return o.claims, nil
}

// unsigned is a token that names an issuer.
func unsigned(issuer string) string {
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"`+issuer+`"}`)) + ".c2ln"
}

const (
	cdeventBody   = `{"context":{"version":"0.4.1","id":"1","source":"/ci","type":"dev.cdevents.change.merged.0.2.0","timestamp":"2026-01-01T00:00:00Z"},"subject":{"id":"a","type":"change","content":{}}}`
	dockerHubBody = `{"push_data":{"tag":"latest"},"repository":{"repo_name":"org/app"}}`
	quayBody      = `{"name":"app","docker_url":"quay.io/org/app","updated_tags":["latest"]}`
	acrBody       = `{"id":"1","timestamp":"2026-01-01T00:00:00Z","action":"push","target":{"repository":"app","tag":"1"}}`
	nexusBody     = `{"timestamp":"2026-01-01T00:00:00Z","action":"CREATED","repositoryName":"app"}`
	githubBody    = `{"ref":"refs/heads/main","after":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`
)

func gcrBody() string {
	return `{"message":{"data":"` + base64.StdEncoding.EncodeToString([]byte(`{"action":"INSERT","digest":"eu.gcr.io/p/app@sha256:1"}`)) + `","messageId":"1"},"subscription":"s"}`
}

// accepted are requests that a Receiver of each type accepts, as its sender makes them.
func accepted() map[string]delivery {
	of := func(body string, header ...string) delivery {
		d := delivery{header: http.Header{}, body: []byte(body)}
		for i := 0; i < len(header); i += 2 {
			d.header.Set(header[i], header[i+1])
		}
		return d
	}
	return map[string]delivery{
		notificationv1.GenericReceiver:     of(""),
		notificationv1.GenericHMACReceiver: of("hello", "X-Signature", "sha256="+sum("sha256", secretToken, "hello")),
		notificationv1.GenericOIDCReceiver: of("{}", "Authorization", "Bearer "+unsigned("https://ci.example")),
		notificationv1.GitHubReceiver:      of(githubBody, "X-Hub-Signature-256", "sha256="+sum("sha256", secretToken, githubBody), "X-GitHub-Event", "push"),
		notificationv1.GitLabReceiver:      of(githubBody, "X-Gitlab-Token", secretToken, "X-Gitlab-Event", "Push Hook"),
		notificationv1.BitbucketReceiver:   of("{}", "X-Hub-Signature", "sha256="+sum("sha256", secretToken, "{}"), "X-Event-Key", "repo:refs_changed"),
		notificationv1.HarborReceiver:      of("{}", "Authorization", secretToken),
		notificationv1.DockerHubReceiver:   of(dockerHubBody),
		notificationv1.QuayReceiver:        of(quayBody),
		notificationv1.GCRReceiver:         of(gcrBody(), "Authorization", "Bearer google"),
		notificationv1.NexusReceiver:       of(nexusBody, "X-Nexus-Webhook-Signature", sum("sha1", secretToken, nexusBody)),
		notificationv1.ACRReceiver:         of(acrBody),
		notificationv1.CDEventsReceiver:    of(cdeventBody, "Ce-Type", "dev.cdevents.change.merged.0.2.0"),
	}
}

// verifiers know one token of Google, and one of a pipeline.
func verifierOf(of string) verifier {
	v := verifier{google: googleIssuer, workers: workers}
	v.identities = &oneToken{issuer: googleIssuer, audience: "https://hooks.example", token: "google", claims: map[string]any{"email": "push@p.iam.gserviceaccount.com", "email_verified": true}}
	if of == notificationv1.GenericOIDCReceiver {
		v.identities = &oneToken{
			issuer: "https://ci.example", audience: notificationv1.DefaultOIDCAudience, token: unsigned("https://ci.example"),
			claims: map[string]any{"repository_owner": "team", "repository": "team/app"},
		}
	}
	return v
}

func specOf(of string) notificationv1.ReceiverSpec {
	s := notificationv1.ReceiverSpec{Type: of}
	if of == notificationv1.GenericOIDCReceiver {
		s.OIDCProviders = []notificationv1.OIDCProvider{{
			IssuerURL:   "https://ci.example",
			Variables:   []notificationv1.OIDCVariable{{Name: "owner", Expression: "claims.repository_owner"}, {Name: "ours", Expression: "vars.owner == 'team'"}},
			Validations: []notificationv1.OIDCValidation{{Expression: "vars.ours == true", Message: "wrong owner"}, {Expression: "claims.repository in ['team/app', 'team/web']", Message: "wrong repository"}},
		}}
	}
	return s
}

func secretData() map[string][]byte {
	return map[string][]byte{"token": []byte(secretToken), "email": []byte("push@p.iam.gserviceaccount.com"), "audience": []byte("https://hooks.example")}
}

// decide is what a Handler does with a request.
func decide(t *testing.T, v verifier, spec *notificationv1.ReceiverSpec, secret map[string][]byte, d delivery) (*verified, error) {
	receiver := &notificationv1.Receiver{Spec: *spec}
	claims, err := v.identify(t.Context(), receiver, secret, d.header)
	if err != nil {
		return nil, err
	}
	if spec.Type == notificationv1.GenericOIDCReceiver {
		_, p, err := providerOf(receiver, d.header)
		if err == nil {
			err = v.examine(t.Context(), receiver, p, claims)
		}
		if err != nil {
			return nil, err
		}
	}
	return verify(spec, secret, claims, d)
}

// TestTypes: requests of each type, as their senders make them, and what is wrong with others.
func TestTypes(t *testing.T) {
	set := func(name, value string) func(*delivery) {
		return func(d *delivery) { d.header.Set(name, value) }
	}
	without := func(name string) func(*delivery) { return func(d *delivery) { d.header.Del(name) } }
	body := func(text string) func(*delivery) { return func(d *delivery) { d.body = []byte(text) } }
	const (
		generic, hmacs, oidcs, github, gitlab, bitbucket, harbor = notificationv1.GenericReceiver, notificationv1.GenericHMACReceiver, notificationv1.GenericOIDCReceiver,
			notificationv1.GitHubReceiver, notificationv1.GitLabReceiver, notificationv1.BitbucketReceiver, notificationv1.HarborReceiver
		dockerhub, quay, gcr, nexus, acr, cdevents = notificationv1.DockerHubReceiver, notificationv1.QuayReceiver, notificationv1.GCRReceiver,
			notificationv1.NexusReceiver, notificationv1.ACRReceiver, notificationv1.CDEventsReceiver
	)
	for _, tc := range []struct {
		of, name, reason string
		events           []string
		change           func(*delivery)
		want             string
	}{
		{generic, "Good", "any request to the path", nil, nil, ""},
		{generic, "Body", "whatever it says", nil, body("\x00\xff"), ""},
		{generic, "Events", "the type has no events", []string{"push"}, nil, ""},

		{hmacs, "Good", "SHA-256 of the body", nil, nil, ""},
		{hmacs, "SHA1", "an old script", nil, set("X-Signature", "sha1="+sum("sha1", secretToken, "hello")), ""},
		{hmacs, "SHA512", "a careful one", nil, set("X-Signature", "sha512="+sum("sha512", secretToken, "hello")), ""},
		{hmacs, "Missing", "no signature", nil, without("X-Signature"), resultForged},
		{hmacs, "OtherBody", "a signature of something else", nil, body("hello!"), resultForged},
		{hmacs, "OtherKey", "by another token", nil, set("X-Signature", "sha256="+sum("sha256", "other", "hello")), resultForged},
		{hmacs, "NoKey", "by no token", nil, set("X-Signature", "sha256="+sum("sha256", "", "hello")), resultForged},
		{hmacs, "MD5", "a hash that nobody should use", nil, set("X-Signature", "md5=5d41402abc4b2a76b9719d911017c592"), resultForged},
		{hmacs, "NoHash", "a signature without its hash", nil, set("X-Signature", sum("sha256", secretToken, "hello")), resultForged},
		{hmacs, "NoHex", "a signature that is none", nil, set("X-Signature", "sha256=hello"), resultForged},
		{hmacs, "Short", "a part of a signature", nil, set("X-Signature", "sha256="+sum("sha256", secretToken, "hello")[:32]), resultForged},
		{hmacs, "Empty", "an empty signature", nil, set("X-Signature", "sha256="), resultForged},

		{oidcs, "Good", "a pipeline of the team", nil, nil, ""},
		{oidcs, "NoToken", "without a token", nil, without("Authorization"), resultForged},
		{oidcs, "Basic", "another login", nil, set("Authorization", "Basic YTpi"), resultForged},
		{oidcs, "NoJWT", "a token of another kind", nil, set("Authorization", "Bearer abc"), resultForged},
		{oidcs, "OtherIssuer", "an issuer that the Receiver does not name", nil, set("Authorization", "Bearer "+unsigned("https://evil.example")), resultForged},
		{oidcs, "Forged", "a token that says that it is of the issuer", nil, set("Authorization", "Bearer "+unsigned("https://ci.example")+"x"), resultForged},
		{oidcs, "TooLong", "a token without end", nil, set("Authorization", "Bearer "+strings.Repeat("a", mostToken+1)), resultForged},

		{github, "Good", "a push", []string{"ping", "push"}, nil, ""},
		{github, "AnyEvent", "without spec.events all are handled", nil, set("X-GitHub-Event", "star"), ""},
		{github, "SHA1", "Gitea, and GitHub of old", nil, func(d *delivery) {
			d.header.Del("X-Hub-Signature-256")
			d.header.Set("X-Hub-Signature", "sha1="+sum("sha1", secretToken, githubBody))
		}, ""},
		{github, "Stronger", "the stronger signature counts, and not the one that fits", nil, func(d *delivery) {
			d.header.Set("X-Hub-Signature-256", "sha256="+sum("sha256", "other", githubBody))
			d.header.Set("X-Hub-Signature", "sha1="+sum("sha1", secretToken, githubBody))
		}, resultForged},
		{github, "OtherEvent", "an event that is not listed", []string{"push"}, set("X-GitHub-Event", "issues"), resultEvent},
		{github, "NoEvent", "no event", []string{"push"}, without("X-GitHub-Event"), resultEvent},
		{github, "EventCase", "events are compared as Flux does", []string{"Push"}, nil, ""},
		{github, "Forged", "another body", nil, body("{}"), resultForged},
		{github, "Unsigned", "a hook without a secret", nil, without("X-Hub-Signature-256"), resultForged},

		{gitlab, "Good", "a push", []string{"Push Hook"}, nil, ""},
		{gitlab, "OtherToken", "another token", nil, set("X-Gitlab-Token", secretToken+"x"), resultForged},
		{gitlab, "Part", "the begin of the token", nil, set("X-Gitlab-Token", secretToken[:4]), resultForged},
		{gitlab, "NoToken", "no token", nil, without("X-Gitlab-Token"), resultForged},
		{gitlab, "OtherEvent", "an event that is not listed", []string{"Push Hook"}, set("X-Gitlab-Event", "Note Hook"), resultEvent},
		{gitlab, "ForgedEvent", "who has no token does not learn the events", []string{"Push Hook"}, func(d *delivery) {
			d.header.Del("X-Gitlab-Token")
			d.header.Set("X-Gitlab-Event", "Note Hook")
		}, resultForged},

		{bitbucket, "Good", "a push", []string{"repo:refs_changed"}, nil, ""},
		{bitbucket, "Forged", "another body", nil, body("{ }"), resultForged},
		{bitbucket, "Unsigned", "Bitbucket Cloud of old signs nothing", nil, without("X-Hub-Signature"), resultForged},
		{bitbucket, "OtherEvent", "an event that is not listed", []string{"repo:refs_changed"}, set("X-Event-Key", "diagnostics:ping"), resultEvent},

		{harbor, "Good", "the auth header of the webhook", nil, nil, ""},
		{harbor, "OtherToken", "another one", nil, set("Authorization", "Bearer "+secretToken), resultForged},
		{harbor, "NoToken", "none", nil, without("Authorization"), resultForged},

		{dockerhub, "Good", "a push", nil, nil, ""},
		{dockerhub, "NoJSON", "something else", nil, body("hello"), resultMalformed},
		{dockerhub, "Empty", "nothing", nil, body(""), resultMalformed},
		{dockerhub, "Other", "JSON of another sender", nil, body(quayBody), resultMalformed},
		{dockerhub, "Deep", "JSON without end", nil, body(strings.Repeat(`{"push_data":`, 100_000)), resultMalformed},

		{quay, "Good", "a push", nil, nil, ""},
		{quay, "Other", "another notification of Quay", nil, body(`{"name":"app","docker_url":"quay.io/org/app","build_id":"1"}`), resultMalformed},

		{gcr, "Good", "a push of Pub/Sub", nil, nil, ""},
		{gcr, "OtherToken", "a token that Google did not sign", nil, set("Authorization", "Bearer other"), resultForged},
		{gcr, "NoToken", "a subscription without authentication", nil, without("Authorization"), resultForged},
		{gcr, "NoJSON", "something else", nil, body("hello"), resultMalformed},
		{gcr, "NoBase64", "data that is not encoded", nil, body(`{"message":{"data":"%"}}`), resultMalformed},
		{gcr, "NoImage", "a message about something else", nil, body(`{"message":{"data":"e30="}}`), resultMalformed},

		{nexus, "Good", "a component", nil, nil, ""},
		{nexus, "Forged", "another body", nil, body(nexusBody + " "), resultForged},
		{nexus, "Unsigned", "a capability without a secret key", nil, without("X-Nexus-Webhook-Signature"), resultForged},
		{nexus, "Other", "what is signed and of another shape", nil, func(d *delivery) {
			d.body = []byte("[]")
			d.header.Set("X-Nexus-Webhook-Signature", sum("sha1", secretToken, "[]"))
		}, resultMalformed},

		{acr, "Good", "a push", nil, nil, ""},
		{acr, "Other", "another shape", nil, body(`{"action":"push","target":null}`), resultMalformed},

		{cdevents, "Good", "a change was merged", []string{"dev.cdevents.change.merged.0.2.0"}, nil, ""},
		{cdevents, "OtherEvent", "an event that is not listed", []string{"dev.cdevents.change.merged.0.2.0"}, set("Ce-Type", "dev.cdevents.build.queued.0.2.0"), resultEvent},
		{cdevents, "OtherType", "an event of somebody else", nil, body(strings.Replace(cdeventBody, "dev.cdevents.", "com.example.", 1)), resultMalformed},
		{cdevents, "NoSubject", "what no CDEvent is", nil, body(strings.Replace(cdeventBody, `"id":"a"`, `"id":""`, 1)), resultMalformed},
		{cdevents, "NoJSON", "something else", nil, body("<event/>"), resultMalformed},

		{"new-type", "Unknown", "a type of a later version of Flux", nil, nil, resultNotReady},
	} {
		t.Run(strings.ReplaceAll(tc.of, "-", "")+tc.name, func(t *testing.T) {
			d, ok := accepted()[tc.of]
			if !ok {
				d = delivery{header: http.Header{}}
			}
			if tc.change != nil {
				tc.change(&d)
			}
			v, spec := verifierOf(tc.of), specOf(tc.of)
			spec.Events = tc.events
			_, err := decide(t, v, &spec, secretData(), d)
			if tc.want == "" && err != nil || tc.want != "" && !is(err, tc.want) {
				t.Errorf("%s: verify() = %v, want %q", tc.reason, err, tc.want)
			}
			if err != nil && (strings.Contains(err.Error(), secretToken) || strings.Contains(err.Error(), "team")) {
				t.Errorf("%s: the sender learns %q", tc.reason, err)
			}
			// The same once more: none of the protocols has a mark against replay. What a
			// replay can do is to ask for another fetch.
			if _, again := decide(t, v, &spec, secretData(), d); (again == nil) != (err == nil) {
				t.Errorf("%s: a replay is %v", tc.reason, again)
			}
		})
	}
}

// TestImageOfPush: filters see what a push of Pub/Sub is about, with the fields that Flux
// gives them, and not how it is wrapped.
func TestImageOfPush(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, data string
		want         map[string]any
	}{
		"Tagged": {
			"a tag was pushed", `{"action":"INSERT","digest":"eu.gcr.io/p/app@sha256:1","tag":"eu.gcr.io/p/app:1.2"}`,
			map[string]any{"action": "INSERT", "digest": "eu.gcr.io/p/app@sha256:1", "tag": "eu.gcr.io/p/app:1.2"},
		},
		"Untagged": {"what is not said is empty: a filter may ask", `{"action":"DELETE"}`, map[string]any{"action": "DELETE", "digest": "", "tag": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			v, spec, d := verifierOf(notificationv1.GCRReceiver), specOf(notificationv1.GCRReceiver), accepted()[notificationv1.GCRReceiver]
			d.body = []byte(`{"message":{"data":"` + base64.StdEncoding.EncodeToString([]byte(tc.data)) + `"}}`)
			got, err := decide(t, v, &spec, secretData(), d)
			if err != nil || !maps.Equal(got.payload, tc.want) {
				t.Errorf("%s: verify() = %+v, %v, want payload %v", tc.reason, got, err, tc.want)
			}
		})
	}
}

// TestNoToken: a Secret without a token opens no Receiver, though an empty key makes a
// signature as well.
func TestNoToken(t *testing.T) {
	for of, d := range accepted() {
		if of == notificationv1.GenericOIDCReceiver {
			continue
		}
		v, spec := verifierOf(of), specOf(of)
		d.header.Set("X-Signature", "sha256="+sum("sha256", "", string(d.body)))
		d.header.Set("X-Gitlab-Token", "")
		d.header.Del("Authorization")
		if _, err := decide(t, v, &spec, map[string][]byte{"token": nil}, d); !is(err, resultForged) {
			t.Errorf("%s without a token: %v", of, err)
		}
	}
}

// TestClaims: what a Receiver demands of a token decides, by its own words.
func TestClaims(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		claims map[string]any
		change func(*notificationv1.OIDCProvider)
		down   error
		status int
		says   string
	}{
		"Good":     {"the team's pipeline", nil, nil, nil, 0, ""},
		"Owner":    {"a pipeline of somebody else, of the same public issuer", map[string]any{"repository_owner": "evil", "repository": "evil/app"}, nil, nil, 403, "wrong owner; wrong repository"},
		"NoClaim":  {"a token of another kind of the issuer", map[string]any{}, nil, nil, 403, "cannot be validated"},
		"Audience": {"the token is for somebody else", nil, func(p *notificationv1.OIDCProvider) { p.Audience = "other" }, nil, 401, "not valid"},
		"Down":     {"the issuer does not answer: that is no forgery", nil, nil, errors.New("no route"), 503, "cannot be asked"},
		"Denied":   {"who may change the address, or the flag, learns of it", nil, nil, &answer.Error{Reason: answer.ReasonAddress}, 503, "see --deny-provider-addresses"},
		"Endless": {"an expression that takes long", nil, func(p *notificationv1.OIDCProvider) {
			p.Validations[0].Expression = "[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, [1,2,3,4,5,6,7,8,9,10].all(g, [1,2,3,4,5,6,7,8,9,10].all(h, a+b+c+d+e+f+g+h > 0))))))))"
		}, nil, 403, "cannot be validated"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := specOf(notificationv1.GenericOIDCReceiver)
			v := verifierOf(notificationv1.GenericOIDCReceiver)
			known := v.identities.(*oneToken)
			known.down = tc.down
			if tc.claims != nil {
				known.claims = tc.claims
			}
			if tc.change != nil {
				tc.change(&spec.OIDCProviders[0])
			}
			got, err := decide(t, v, &spec, nil, accepted()[notificationv1.GenericOIDCReceiver])
			if tc.status == 0 {
				if err != nil || got.claims["repository"] != "team/app" {
					t.Errorf("%s: %v, %v", tc.reason, got, err)
				}
				return
			}
			var why *refusal
			if !errors.As(err, &why) || why.status != tc.status || !strings.Contains(why.text, tc.says) {
				t.Errorf("%s: %v, want %d %q", tc.reason, err, tc.status, tc.says)
			}
		})
	}
}

// TestPubSub: whose pushes are accepted is in the Secret.
func TestPubSub(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		secret map[string][]byte
		claims map[string]any
	}{
		"OtherAccount": {"an account of somebody else's project", nil, map[string]any{"email": "evil@q.iam.gserviceaccount.com", "email_verified": true}},
		"Unverified":   {"an email that Google did not verify", nil, map[string]any{"email": "push@p.iam.gserviceaccount.com"}},
		"NoEmail":      {"a Secret that does not say whose", map[string][]byte{"email": nil}, nil},
		"NoAudience":   {"a Secret that does not say for whom", map[string][]byte{"audience": nil}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			v, spec, secret := verifierOf(notificationv1.GCRReceiver), specOf(notificationv1.GCRReceiver), secretData()
			maps.Copy(secret, tc.secret)
			if tc.claims != nil {
				v.identities.(*oneToken).claims = tc.claims
			}
			if _, err := decide(t, v, &spec, secret, accepted()[notificationv1.GCRReceiver]); !is(err, resultForged) {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

// TestPayload: what filters read of a body.
func TestPayload(t *testing.T) {
	form := delivery{header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, body: []byte("payload=" + url.QueryEscape(githubBody))}
	for name, tc := range map[string]struct {
		reason string
		d      delivery
		want   any
	}{
		"JSON":   {"as most send it", delivery{body: []byte(githubBody)}, "refs/heads/main"},
		"Form":   {"as GitHub does if it is told to", form, "refs/heads/main"},
		"List":   {"no object", delivery{body: []byte("[1]")}, nil},
		"Number": {"no object", delivery{body: []byte("1")}, nil},
		"Broken": {"no JSON", delivery{body: []byte(githubBody + "}")}, nil},
	} {
		if tc.d.header == nil {
			tc.d.header = http.Header{}
		}
		if got := payload(tc.d)["ref"]; got != tc.want {
			t.Errorf("%s, %s: %v", name, tc.reason, got)
		}
	}
	for of, want := range map[string]string{notificationv1.GitHubReceiver: strings.Repeat("a", 40), notificationv1.GitLabReceiver: strings.Repeat("a", 40), notificationv1.GenericReceiver: ""} {
		if got := revisionOf(of, payload(delivery{body: []byte(githubBody), header: http.Header{}})); got != want {
			t.Errorf("%s tells of commit %q", of, got)
		}
	}
	for _, odd := range []any{nil, 1, "main", strings.Repeat("g", 40), strings.Repeat("a", 4000)} {
		if got := revisionOf(notificationv1.GitHubReceiver, map[string]any{"after": odd}); got != "" {
			t.Errorf("%v is commit %q", odd, got)
		}
	}
}

// FuzzVerify: no request of any type ends the process, and none without the token is
// accepted where one is needed.
func FuzzVerify(f *testing.F) {
	for of, d := range accepted() {
		f.Add(of, d.body, d.header.Get("Authorization"), d.header.Get("X-Hub-Signature"), d.header.Get("Content-Type"))
	}
	f.Add(notificationv1.GitHubReceiver, []byte("payload=%zz"), "", "sha256=", "application/x-www-form-urlencoded; charset=\"")
	f.Fuzz(func(t *testing.T, of string, body []byte, authorization, signature, kind string) {
		if of == notificationv1.GenericOIDCReceiver {
			return // its tokens are below, and its checks are of a worker
		}
		d := delivery{header: http.Header{}, body: body}
		for _, name := range []string{"X-Signature", "X-Hub-Signature", "X-Hub-Signature-256", "X-Nexus-Webhook-Signature", "X-Gitlab-Token"} {
			d.header.Set(name, signature)
		}
		d.header.Set("Authorization", authorization)
		d.header.Set("Content-Type", kind)
		v, spec := verifierOf(of), notificationv1.ReceiverSpec{Type: of}
		secret := secretData()
		secret["token"] = []byte("another token, which nobody knows")
		_, err := decide(t, v, &spec, secret, d)
		switch of {
		case notificationv1.GenericReceiver, notificationv1.DockerHubReceiver, notificationv1.QuayReceiver, notificationv1.ACRReceiver, notificationv1.CDEventsReceiver, notificationv1.GCRReceiver:
		default:
			if err == nil {
				t.Errorf("a request of type %s is accepted without the token", of)
			}
		}
		_, _ = issuerOf(authorization)
	})
}
