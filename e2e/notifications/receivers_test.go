package notifications

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/golang-jwt/jwt/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestReceivers tries what Flux says of Receivers, row by row, by real requests: the source
// that a Receiver names has the new commit though its interval is ten minutes.
func TestReceivers(t *testing.T) {
	scenario.Alongside(t)
	h := &receivers{Tier: scenario.StartTier(t)}
	h.RestartAgent(t, "--receiver-addr=$(POD_IP):9292")
	metrics, err := scenario.MetricsAddress(h.MoM)
	if err != nil {
		t.Fatal(err)
	}
	host, _, err := net.SplitHostPort(metrics)
	if err != nil {
		t.Fatal(err)
	}
	h.url = "http://" + net.JoinHostPort(host, "9292")
	t.Run("Rows", func(t *testing.T) {
		parts := scenario.PartsOf(t)
		defer parts.Wait()
		for _, r := range []struct {
			name string
			run  func(*receivers, *testing.T)
		}{
			{"Generic", (*receivers).generic},
			{"GenericHMAC", (*receivers).genericHMAC},
			{"GenericOIDC", (*receivers).genericOIDC},
			{"GitHub", (*receivers).github},
			{"GitLab", (*receivers).gitlab},
			{"Bitbucket", (*receivers).bitbucket},
			{"Harbor", (*receivers).harbor},
			{"DockerHub", (*receivers).dockerhub},
			{"Quay", (*receivers).quay},
			{"GCR", (*receivers).gcr},
			{"Nexus", (*receivers).nexus},
			{"ACR", (*receivers).acr},
			{"CDEvents", (*receivers).cdevents},
			{"ResourcesByLabel", (*receivers).resourcesByLabel},
			{"ResourceFilter", (*receivers).resourceFilter},
			{"FilterInvalid", (*receivers).filterInvalid},
			{"SecretMissing", (*receivers).secretMissing},
			{"TokenReplaced", (*receivers).tokenReplaced},
			{"Suspended", (*receivers).suspended},
			{"Deleted", (*receivers).deleted},
		} {
			parts.Run(r.name, func(t *testing.T) {
				r.run(h, t)
			})
		}
	})
	// After the rows: these fill the machine.
	t.Run("Latency", h.latency)
	t.Run("Forged", h.forged)
}

// receivers is the tier that all rows share, and where it serves Receivers.
type receivers struct {
	*scenario.Tier
	url string
}

const token = "a-token-of-the-test"

// hookRow is a row with a Receiver named hook, which names the GitRepository git.
type hookRow struct {
	*scenario.Row
	h    *receivers
	path string
}

// row begins a row with a Receiver of a type. more is what its spec has besides.
func (h *receivers) row(t *testing.T, of, more string) *hookRow {
	t.Helper()
	r := &hookRow{Row: h.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: one}")}), h: h}
	r.Fetched(t)
	secret := "secretRef: {name: hook}"
	if of == notificationv1.GenericOIDCReceiver {
		secret = ""
	}
	if !strings.Contains(more, "resources:") {
		more += "\n  resources: [{kind: GitRepository, name: git}]"
	}
	h.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: hook, namespace: %[1]s, labels: {reconcile.fluxcd.io/watch: Enabled}}
stringData: {token: %[2]s, email: push@p.iam.gserviceaccount.com, audience: https://hooks.example}
---
apiVersion: notification.toolkit.fluxcd.io/v1
kind: Receiver
metadata: {name: hook, namespace: %[1]s}
spec:
  type: %[3]s
  %[4]s
  %[5]s
`, r.Namespace, token, of, secret, strings.TrimSpace(more)))
	return r
}

// receiver waits until the Ready condition of the Receiver has a reason of this generation.
func (r *hookRow) receiver(t *testing.T, reason string) *notificationv1.Receiver {
	t.Helper()
	o := &notificationv1.Receiver{}
	scenario.Eventually(t, scenario.Converge, "the Receiver says "+reason, func(ctx context.Context) error {
		o = &notificationv1.Receiver{}
		if err := r.Load(ctx, o, r.Namespace, "hook"); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(o.Status.Conditions, fluxmeta.ReadyCondition); c == nil || c.Reason != reason || c.ObservedGeneration != o.Generation {
			return fmt.Errorf("Ready is %+v", c)
		}
		return nil
	})
	return o
}

// ready waits for the path, and checks that it is Flux's.
func (r *hookRow) ready(t *testing.T) {
	t.Helper()
	o := r.receiver(t, fluxmeta.SucceededReason)
	key := token
	if o.Spec.Type == notificationv1.GenericOIDCReceiver {
		key = ""
	}
	sum := sha256.Sum256([]byte(key + "hook" + r.Namespace))
	if r.path = o.Status.WebhookPath; r.path != "/hook/"+hex.EncodeToString(sum[:]) {
		t.Fatalf("the path is %q", r.path)
	}
	c := meta.FindStatusCondition(o.Status.Conditions, fluxmeta.ReadyCondition)
	if c.Status != metav1.ConditionTrue || c.Message != "Receiver initialized for path: "+r.path || o.Status.ObservedGeneration != o.Generation {
		t.Errorf("Ready is %+v", c)
	}
	if !slices.Contains(o.Finalizers, notificationv1.NotificationFinalizer) {
		t.Errorf("the finalizers are %v", o.Finalizers)
	}
}

// send posts a request to the Receiver until its answer is not that of one whose Receiver this
// process does not know yet, and returns the status.
func (r *hookRow) send(t *testing.T, body string, headers ...string) int {
	t.Helper()
	status := 0
	scenario.Eventually(t, scenario.Converge, "the path is served", func(ctx context.Context) error {
		var err error
		if status, err = r.h.post(ctx, r.path, strings.NewReader(body), headers...); err != nil {
			return err
		}
		if status == http.StatusNotFound {
			return errors.New("404")
		}
		return nil
	})
	return status
}

// post posts once.
func (h *receivers) post(ctx context.Context, path string, body io.Reader, headers ...string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+path, body)
	if err != nil {
		return 0, err
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// push commits, without a request to the source.
func (r *hookRow) push(t *testing.T, value string) {
	t.Helper()
	head, err := r.Git.Commit(t.Context(), r.Namespace, "main", "Push", func(dir string) error {
		return scenario.ChangeFiles(dir, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: "+value+"}")})
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Head = head
}

// pushes commits and sends a request that the Receiver accepts: the source has the commit.
func (r *hookRow) pushes(t *testing.T, body string, headers ...string) {
	t.Helper()
	r.ready(t)
	r.push(t, "two")
	if status := r.send(t, body, headers...); status != http.StatusOK {
		t.Fatalf("the push is answered with %d", status)
	}
	r.Fetched(t)
}

// refuses sends a request that the Receiver does not accept, and checks that the source is
// not asked for anything: the request that it has is the one of before.
func (r *hookRow) refuses(t *testing.T, status int, body string, headers ...string) {
	t.Helper()
	before := r.requested(t)
	if got := r.send(t, body, headers...); got != status {
		t.Errorf("the request is answered with %d, want %d", got, status)
	}
	if after := r.requested(t); after != before {
		t.Errorf("a request that is refused asks for a reconcile at %s", after)
	}
}

func (r *hookRow) requested(t *testing.T) string {
	t.Helper()
	g := &sourcev1.GitRepository{}
	if err := r.Load(t.Context(), g, r.Namespace, "git"); err != nil {
		t.Fatal(err)
	}
	return g.Annotations[fluxmeta.ReconcileRequestAnnotation]
}

func signature(of func() hash.Hash, body string) string {
	mac := hmac.New(of, []byte(token))
	mac.Write([]byte(body))
	return hex.EncodeToString(mac.Sum(nil))
}

// generic: the path is all that is needed.
func (h *receivers) generic(t *testing.T) {
	r := h.row(t, "generic", "")
	r.pushes(t, "")
	if at := r.requested(t); at == "" {
		t.Error("people do not see that the source was asked for a reconcile")
	}
}

// genericHMAC: the signature of the body decides.
func (h *receivers) genericHMAC(t *testing.T) {
	r := h.row(t, "generic-hmac", "")
	r.pushes(t, "hello", "X-Signature", "sha256="+signature(sha256.New, "hello"))
	r.refuses(t, http.StatusBadRequest, "hello!", "X-Signature", "sha256="+signature(sha256.New, "hello"))
}

// genericOIDC: a token of a pipeline, which its issuer signed, with claims that the Receiver
// demands.
func (h *receivers) genericOIDC(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var issuer *httptest.Server
	issuer = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		encode := base64.RawURLEncoding.EncodeToString
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			_ = json.NewEncoder(w).Encode(map[string]any{"issuer": issuer.URL, "jwks_uri": issuer.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"}})
		case "/keys":
			_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]any{
				"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "a", "x": encode(point[1:33]), "y": encode(point[33:]),
			}}})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(issuer.Close)
	sign := func(repository string) string {
		token := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
			"iss": issuer.URL, "aud": "notification-controller", "sub": "repo:" + repository, "repository": repository, "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
		})
		token.Header["kid"] = "a"
		text, err := token.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + text
	}
	r := h.row(t, "generic-oidc", fmt.Sprintf(`oidcProviders:
  - issuerURL: %s
    variables: [{name: owner, expression: "claims.repository.split('/')[0]"}]
    validations: [{expression: "vars.owner == 'team'", message: wrong owner}]
  resourceFilter: "claims.repository == 'team/app'"`, issuer.URL))
	r.pushes(t, "{}", "Authorization", sign("team/app"))
	r.refuses(t, http.StatusForbidden, "{}", "Authorization", sign("evil/app"))
	r.refuses(t, http.StatusUnauthorized, "{}", "Authorization", sign("team/app")+"x")
	r.refuses(t, http.StatusOK, "{}", "Authorization", sign("team/web"))
}

// github: HMAC, and the events that are listed.
func (h *receivers) github(t *testing.T) {
	r := h.row(t, "github", "events: [ping, push]")
	const body = `{"ref":"refs/heads/main"}`
	good := "sha256=" + signature(sha256.New, body)
	r.pushes(t, body, "X-Hub-Signature-256", good, "X-GitHub-Event", "push")
	r.refuses(t, http.StatusBadRequest, body, "X-Hub-Signature-256", good, "X-GitHub-Event", "issues")
	r.refuses(t, http.StatusBadRequest, body+" ", "X-Hub-Signature-256", good, "X-GitHub-Event", "push")
	r.push(t, "three")
	if status := r.send(t, body, "X-Hub-Signature", "sha1="+signature(sha1.New, body), "X-GitHub-Event", "push"); status != http.StatusOK {
		t.Errorf("what Gitea sends is answered with %d", status)
	}
	r.Fetched(t)
}

func (h *receivers) gitlab(t *testing.T) {
	r := h.row(t, "gitlab", `events: ["Push Hook"]`)
	r.pushes(t, "{}", "X-Gitlab-Token", token, "X-Gitlab-Event", "Push Hook")
	r.refuses(t, http.StatusBadRequest, "{}", "X-Gitlab-Token", "other", "X-Gitlab-Event", "Push Hook")
	r.refuses(t, http.StatusBadRequest, "{}", "X-Gitlab-Token", token, "X-Gitlab-Event", "Note Hook")
}

func (h *receivers) bitbucket(t *testing.T) {
	r := h.row(t, "bitbucket", `events: ["repo:refs_changed"]`)
	r.pushes(t, "{}", "X-Hub-Signature", "sha256="+signature(sha256.New, "{}"), "X-Event-Key", "repo:refs_changed")
	r.refuses(t, http.StatusBadRequest, "{}", "X-Event-Key", "repo:refs_changed")
}

func (h *receivers) harbor(t *testing.T) {
	r := h.row(t, "harbor", "")
	r.pushes(t, `{"type":"PUSH_ARTIFACT"}`, "Authorization", token)
	r.refuses(t, http.StatusBadRequest, `{"type":"PUSH_ARTIFACT"}`)
}

func (h *receivers) dockerhub(t *testing.T) {
	r := h.row(t, "dockerhub", "")
	r.pushes(t, `{"push_data":{"tag":"1"},"repository":{"repo_name":"org/app"}}`)
	r.refuses(t, http.StatusBadRequest, "tag=1")
}

func (h *receivers) quay(t *testing.T) {
	r := h.row(t, "quay", "")
	r.pushes(t, `{"name":"app","docker_url":"quay.io/org/app","updated_tags":["1"]}`)
	r.refuses(t, http.StatusBadRequest, `{"name":"app","build_id":"1"}`)
}

// gcr: whoever is not Google is refused. What Google signs, syncer/receive has the test of.
func (h *receivers) gcr(t *testing.T) {
	r := h.row(t, "gcr", "")
	r.ready(t)
	r.refuses(t, http.StatusBadRequest, `{"message":{"data":"e30="}}`)
}

func (h *receivers) nexus(t *testing.T) {
	r := h.row(t, "nexus", "")
	const body = `{"timestamp":"2026-01-01T00:00:00Z","action":"CREATED","repositoryName":"app"}`
	r.pushes(t, body, "X-Nexus-Webhook-Signature", signature(sha1.New, body))
	r.refuses(t, http.StatusBadRequest, body, "X-Nexus-Webhook-Signature", signature(sha1.New, body+" "))
}

func (h *receivers) acr(t *testing.T) {
	r := h.row(t, "acr", "")
	r.pushes(t, `{"id":"1","action":"push","target":{"repository":"app","tag":"1"}}`)
	r.refuses(t, http.StatusBadRequest, `{"id":"1"}`)
}

func (h *receivers) cdevents(t *testing.T) {
	r := h.row(t, "cdevents", `events: ["dev.cdevents.change.merged.0.2.0"]`)
	const body = `{"context":{"version":"0.4.1","id":"1","source":"/ci","type":"dev.cdevents.change.merged.0.2.0","timestamp":"2026-01-01T00:00:00Z"},"subject":{"id":"a","type":"change","content":{}}}`
	r.pushes(t, body, "Ce-Type", "dev.cdevents.change.merged.0.2.0")
	r.refuses(t, http.StatusBadRequest, body, "Ce-Type", "dev.cdevents.build.queued.0.2.0")
	r.refuses(t, http.StatusBadRequest, "{}", "Ce-Type", "dev.cdevents.change.merged.0.2.0")
}

// resourcesByLabel: the objects of a kind with the labels, in another namespace as well.
func (h *receivers) resourcesByLabel(t *testing.T) {
	r := h.row(t, "generic", "resources: [{kind: GitRepository, name: '*', namespace: resources-of-a-team, matchLabels: {team: a}}, {kind: Kustomization, name: none, apiVersion: kustomize.toolkit.fluxcd.io/v1beta2}]")
	h.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: resources-of-a-team}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: one, namespace: resources-of-a-team, labels: {team: a}}
spec: {url: %[1]s, suspend: true, interval: 10m}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: two, namespace: resources-of-a-team, labels: {team: b}}
spec: {url: %[1]s, suspend: true, interval: 10m}
`, r.Git.HTTPURL(r.Namespace)))
	r.ready(t)
	if status := r.send(t, ""); status != http.StatusOK {
		t.Errorf("answered with %d: what is not there keeps nothing from being asked", status)
	}
	for name, want := range map[string]bool{"one": true, "two": false} {
		g := &sourcev1.GitRepository{}
		if err := r.Load(t.Context(), g, "resources-of-a-team", name); err != nil {
			t.Fatal(err)
		}
		if at := g.Annotations[fluxmeta.ReconcileRequestAnnotation]; (at != "") != want {
			t.Errorf("%s is asked at %q", name, at)
		}
	}
}

// resourceFilter: what the request says decides, and the filter of one entry besides.
func (h *receivers) resourceFilter(t *testing.T) {
	r := h.row(t, "generic", `resourceFilter: "req.ref == 'refs/heads/main'"
  resources: [{kind: GitRepository, name: git, filter: "res.metadata.name == 'git' && req.repo != 'other'"}]`)
	r.pushes(t, `{"ref":"refs/heads/main","repo":"app"}`)
	r.refuses(t, http.StatusOK, `{"ref":"refs/heads/other","repo":"app"}`)
	r.refuses(t, http.StatusOK, `{"ref":"refs/heads/main","repo":"other"}`)
	r.refuses(t, http.StatusBadRequest, "hello")
}

// filterInvalid: an expression that is none is stalled until it is changed.
func (h *receivers) filterInvalid(t *testing.T) {
	r := h.row(t, "generic", `resourceFilter: "req.ref =="`)
	o := r.receiver(t, fluxmeta.InvalidCELExpressionReason)
	if !meta.IsStatusConditionTrue(o.Status.Conditions, fluxmeta.StalledCondition) || o.Status.WebhookPath != "" || o.Status.ObservedGeneration != o.Generation {
		t.Errorf("the status is %+v", o.Status)
	}
	r.Patch(t, &notificationv1.Receiver{}, "hook", `{"spec":{"resourceFilter":"true"}}`)
	r.pushes(t, "{}")
}

// secretMissing: the Receiver says so, and is ready when the Secret is there.
func (h *receivers) secretMissing(t *testing.T) {
	r := h.row(t, "generic", "interval: 1m")
	r.ready(t)
	r.Patch(t, &notificationv1.Receiver{}, "hook", `{"spec":{"secretRef":{"name":"later"}}}`)
	o := r.receiver(t, notificationv1.TokenNotFoundReason)
	if c := meta.FindStatusCondition(o.Status.Conditions, fluxmeta.ReadyCondition); o.Status.WebhookPath != "" || !strings.Contains(c.Message, "unable to read token from secret '"+r.Namespace+"/later'") {
		t.Errorf("the status is %+v", o.Status)
	}
	r.Event(t, "Receiver", "hook", notificationv1.TokenNotFoundReason, "unable to read token")
	h.Apply(t, fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: later, namespace: %s}\nstringData: {token: %s}\n", r.Namespace, token))
	r.pushes(t, "")
}

// tokenReplaced: the Secret has another token, and with it the Receiver another path.
func (h *receivers) tokenReplaced(t *testing.T) {
	r := h.row(t, "generic", "")
	r.pushes(t, "")
	old := r.path
	h.Apply(t, fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: hook, namespace: %s, labels: {reconcile.fluxcd.io/watch: Enabled}}\nstringData: {token: another}\n", r.Namespace))
	scenario.Eventually(t, scenario.Converge, "the Receiver has another path, and the old one is gone", func(ctx context.Context) error {
		o := &notificationv1.Receiver{}
		if err := r.Load(ctx, o, r.Namespace, "hook"); err != nil {
			return err
		}
		if r.path = o.Status.WebhookPath; r.path == old {
			return errors.New("it has the old one")
		}
		status, err := h.post(ctx, old, nil)
		if err != nil {
			return err
		}
		if status != http.StatusNotFound {
			return fmt.Errorf("the old one is answered with %d", status)
		}
		return nil
	})
	r.push(t, "three")
	if status := r.send(t, ""); status != http.StatusOK {
		t.Errorf("the new path is answered with %d", status)
	}
	r.Fetched(t)
}

// suspended: nothing is handled until the Receiver is resumed.
func (h *receivers) suspended(t *testing.T) {
	r := h.row(t, "generic", "")
	r.ready(t)
	r.Patch(t, &notificationv1.Receiver{}, "hook", `{"spec":{"suspend":true}}`)
	scenario.Eventually(t, scenario.Converge, "the Receiver handles nothing", func(ctx context.Context) error {
		status, err := h.post(ctx, r.path, nil)
		if err == nil && status != http.StatusServiceUnavailable {
			err = fmt.Errorf("answered with %d", status)
		}
		return err
	})
	r.refuses(t, http.StatusServiceUnavailable, "")
	r.Patch(t, &notificationv1.Receiver{}, "hook", `{"spec":{"suspend":false}}`)
	scenario.Eventually(t, scenario.Converge, "the Receiver handles requests again", func(ctx context.Context) error {
		status, err := h.post(ctx, r.path, nil)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("answered with %d", status)
		}
		return err
	})
}

// deleted: it goes, and its path with it.
func (h *receivers) deleted(t *testing.T) {
	r := h.row(t, "generic", "")
	r.ready(t)
	r.Delete(t, &notificationv1.Receiver{}, "hook")
	scenario.Eventually(t, scenario.Converge, "the Receiver and its path are gone", func(ctx context.Context) error {
		if err := r.Load(ctx, &notificationv1.Receiver{}, r.Namespace, "hook"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Receiver is there: %w", err)
		}
		status, err := h.post(ctx, r.path, nil)
		if err == nil && status != http.StatusNotFound {
			err = fmt.Errorf("its path is answered with %d", status)
		}
		return err
	})
}

// latency prints how long it takes from a push to the object that it changes.
func (h *receivers) latency(t *testing.T) {
	r := h.row(t, "github", "events: [push]")
	r.Kustomization(t, "app", "interval: 10m")
	r.Ready(t, "app")
	r.ready(t)
	const pushes = 50
	var took []time.Duration
	body := `{"ref":"refs/heads/main"}`
	for i := range pushes {
		value := fmt.Sprint("push", i)
		r.push(t, value)
		begun := time.Now()
		if status := r.send(t, body, "X-Hub-Signature-256", "sha256="+signature(sha256.New, body), "X-GitHub-Event", "push"); status != http.StatusOK {
			t.Fatalf("push %d is answered with %d", i, status)
		}
		looks := time.NewTicker(10 * time.Millisecond) // which is what the numbers are good for
		for deadline := begun.Add(scenario.Converge); r.Data(t, "a")["k"] != value; <-looks.C {
			if time.Now().After(deadline) {
				t.Fatalf("push %d is not applied", i)
			}
		}
		looks.Stop()
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	t.Logf("from a push to the object, %d pushes: p50 %s, p99 %s, most %s", pushes, took[pushes/2], took[pushes*99/100], took[pushes-1])
}

// forged: ten thousand requests with a wrong signature, to paths that are none, and with
// bodies that are too large are refused; the memory of the agent is bounded, and a push
// beside them is applied.
func (h *receivers) forged(t *testing.T) {
	r := h.row(t, "github", "events: [push]")
	r.ready(t)
	const body = `{"ref":"refs/heads/main"}`
	good := []string{"X-Hub-Signature-256", "sha256=" + signature(sha256.New, body), "X-GitHub-Event", "push"}
	before := h.resident(t)
	large := bytes.Repeat([]byte("a"), 2<<20)
	const requests, senders = 10_000, 16
	errs := make(chan error, senders)
	for s := range senders {
		go func() {
			for i := range requests / senders {
				path, content, want := r.path, []byte("{}"), []int{http.StatusBadRequest, http.StatusTooManyRequests, http.StatusServiceUnavailable}
				switch {
				case i%50 == 0:
					content, want = large, append(want, http.StatusRequestEntityTooLarge)
				case i%2 == 0:
					path, want = fmt.Sprintf("/hook/%064x", s*requests+i), []int{http.StatusNotFound}
				}
				status, err := h.post(t.Context(), path, bytes.NewReader(content), good...)
				if err != nil && len(content) < len(large) { // whose connection may be closed before all is sent
					errs <- err
					return
				}
				if err == nil && !slices.Contains(want, status) {
					errs <- fmt.Errorf("a forged request to %s is answered with %d", path, status)
					return
				}
			}
			errs <- nil
		}()
	}
	for range senders {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if after := h.resident(t); after > before+128<<20 {
		t.Errorf("the agent has %d MiB more than before", (after-before)>>20)
	} else {
		t.Logf("%d forged requests: %d MiB resident before, %d after", requests, before>>20, after>>20)
	}
	// From elsewhere, or in a while: what one sender forges does not count against others.
	r.push(t, "two")
	scenario.Eventually(t, scenario.Converge, "a push beside them is accepted", func(ctx context.Context) error {
		status, err := h.post(ctx, r.path, strings.NewReader(body), good...)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("answered with %d", status)
		}
		return err
	})
	r.Fetched(t)
}

// resident is the memory of the agent's process.
func (h *receivers) resident(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.MoM.Agent()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		t.Fatalf("cannot read the memory of the agent: %s", text)
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
