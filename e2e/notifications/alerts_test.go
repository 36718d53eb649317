package notifications

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestAlerts: what Flux says of Alerts and Providers, field by field, and what a fleet and
// Providers that hang or fail do to who waits for nothing.
func TestAlerts(t *testing.T) {
	scenario.Alongside(t)
	s := &alerts{scenario.StartTier(t)}
	t.Run("Rows", func(t *testing.T) {
		parts := scenario.PartsOf(t)
		defer parts.Wait()
		for _, r := range []struct {
			name string
			run  func(*alerts, *testing.T)
		}{
			{"EventSources", (*alerts).eventSources},
			{"EventSeverity", (*alerts).eventSeverity},
			{"InclusionExclusion", (*alerts).inclusionExclusion},
			{"EventMetadata", (*alerts).eventMetadata},
			{"SuspendAlert", (*alerts).suspendAlert},
			{"OwnKinds", (*alerts).ownKinds},
			{"ProviderRef", (*alerts).providerRef},
			{"RateLimit", (*alerts).rateLimit},
			{"SecretRef", (*alerts).secretRef},
			{"HMAC", (*alerts).hmac},
			{"ChannelUsername", (*alerts).channelUsername},
			{"CertSecretRef", (*alerts).certSecretRef},
			{"Proxy", (*alerts).proxy},
			{"Timeout", (*alerts).timeout},
			{"CommitStatus", (*alerts).commitStatus},
			{"SuspendProvider", (*alerts).suspendProvider},
			{"Refused", (*alerts).refused},
			{"NothingIsWritten", (*alerts).nothingIsWritten},
			{"HangingDelaysNothing", (*alerts).hangingDelaysNothing},
			{"FluxCLI", (*alerts).fluxCLI},
		} {
			parts.Run(r.name, func(t *testing.T) {
				r.run(s, t)
			})
		}
	})
	// Its hundreds of events keep the API server's client busy, which writes one after the
	// other: what other rows wait for would come behind them.
	t.Run("OneCause", s.oneCause)
	t.Run("Lockdown", func(t *testing.T) {
		s.RestartAgent(t, "--no-cross-namespace-refs=true", "--rate-limit-interval=0s")
		s.lockdown(t)
	})
}

// alerts is the tier that all rows share.
type alerts struct{ *scenario.Tier }

// row is a namespace with a repository, whose directory app has a ConfigMap.
func (s *alerts) row(t *testing.T) *scenario.Row {
	return s.Row(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", "{k: one}")})
}

// event is what a program gets of one.
type event struct {
	InvolvedObject struct{ Name string }
	Reason         string
	Metadata       map[string]string
}

// request is what a Provider got.
type request struct {
	path   string
	header http.Header
	body   string
}

// inbound is a Provider: it keeps what it gets.
type inbound struct {
	*httptest.Server

	mu  sync.Mutex
	got []request
}

func newInbound(t *testing.T, answer http.HandlerFunc) *inbound {
	in := &inbound{}
	in.Server = httptest.NewServer(in.handle(answer))
	t.Cleanup(in.Close)
	return in
}

func (in *inbound) handle(answer http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		in.mu.Lock()
		in.got = append(in.got, request{r.URL.String(), r.Header, string(body)})
		in.mu.Unlock()
		if answer != nil {
			answer(w, r)
		}
	})
}

func (in *inbound) all() []request {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]request{}, in.got...)
}

// gets waits until something with all of the words has come.
func (in *inbound) gets(t *testing.T, words ...string) request {
	t.Helper()
	var found request
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("the Provider gets %q", words), func(context.Context) error {
		all := in.all()
		for _, r := range all {
			missing := false
			for _, w := range words {
				missing = missing || !strings.Contains(r.body, w)
			}
			if !missing {
				found = r
				return nil
			}
		}
		return fmt.Errorf("it got %+v", all)
	})
	return found
}

// never fails if something with a word has come.
func (in *inbound) never(t *testing.T, word string) {
	t.Helper()
	for _, r := range in.all() {
		if strings.Contains(r.body, word) {
			t.Errorf("the Provider got %s", r.body)
		}
	}
}

func provider(r *scenario.Row, name, kind, spec string) string {
	return fmt.Sprintf(`apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Provider
metadata: {name: %s, namespace: %s}
spec:
  type: %s
%s
---
`, name, r.Namespace, kind, indent(spec))
}

// alert is one for a Provider of its name, about all Kustomizations unless spec says
// something else.
func alert(r *scenario.Row, name, spec string) string {
	if !strings.Contains(spec, "eventSources:") {
		spec += "\neventSources: [{kind: Kustomization, name: '*'}]"
	}
	return fmt.Sprintf(`apiVersion: notification.toolkit.fluxcd.io/v1beta3
kind: Alert
metadata: {name: %s, namespace: %s}
spec:
  providerRef: {name: %[1]s}
%[3]s
---
`, name, r.Namespace, indent(r.Fill(spec)))
}

func secret(r *scenario.Row, name string, data map[string]string) string {
	text, _ := json.Marshal(data) // of strings
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s}\nstringData: %s\n---\n", name, r.Namespace, text)
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}

// breaks makes a Kustomization that fails, with its name in the event.
func breaks(t *testing.T, r *scenario.Row, name string) {
	t.Helper()
	r.Kustomization(t, name, "sourceRef: {kind: GitRepository, name: missing-"+name+"}")
}

// told waits until an event about an object has a reason.
func told(t *testing.T, r *scenario.Row, kind, name, reason string) corev1.Event {
	t.Helper()
	var found corev1.Event
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%s %s has an event %s", kind, name, reason), func(ctx context.Context) error {
		list := &corev1.EventList{}
		if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace)); err != nil {
			return err
		}
		var others []string
		for _, e := range list.Items {
			if e.InvolvedObject.Kind != kind || e.InvolvedObject.Name != name {
				continue
			}
			if e.Reason == reason {
				found = e
				return nil
			}
			others = append(others, e.Reason)
		}
		return fmt.Errorf("its events are %v", others)
	})
	return found
}

// eventSources: by name, by kind, by labels, and of another namespace.
func (s *alerts) eventSources(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	s.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+r.Namespace+"-other}\n")
	for name, sources := range map[string]string{
		"by-name":   "[{kind: Kustomization, name: first}]",
		"by-kind":   "[{kind: HelmRelease, name: '*'}]",
		"by-labels": "[{kind: Kustomization, name: '*', matchLabels: {team: shop}}]",
		"elsewhere": "[{kind: Kustomization, name: '*', namespace: $ns-other}]",
	} {
		s.Apply(t, provider(r, name, "generic", "address: "+in.URL+"/"+name)+alert(r, name, "eventSources: "+sources))
	}
	s.Apply(t, provider(r, "all", "generic", "address: "+in.URL+"/all")+alert(r, "all", ""))
	other := fmt.Sprintf("apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: third, namespace: %s-other}\n"+
		"spec: {sourceRef: {kind: GitRepository, name: none}, path: ./, prune: true, interval: 10m}\n", r.Namespace)
	s.Apply(t, other)
	breaks(t, r, "first")
	s.Apply(t, fmt.Sprintf("apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: second, namespace: %s, labels: {team: shop}}\n"+
		"spec: {sourceRef: {kind: GitRepository, name: git}, path: ./missing, prune: true, interval: 10m}\n", r.Namespace))
	want := map[string]string{"/by-name": "first", "/by-labels": "second", "/elsewhere": "third"}
	scenario.Eventually(t, scenario.Converge, "each Alert tells of its objects", func(context.Context) error {
		got := map[string]map[string]bool{}
		for _, q := range in.all() {
			var e event
			if err := json.Unmarshal([]byte(q.body), &e); err != nil {
				t.Fatal(err)
			}
			if got[q.path] == nil {
				got[q.path] = map[string]bool{}
			}
			got[q.path][e.InvolvedObject.Name] = true
		}
		for path, name := range want {
			if len(got[path]) != 1 || !got[path][name] {
				return fmt.Errorf("%s is told of %v", path, got[path])
			}
		}
		if len(got["/all"]) != 2 || !got["/all"]["first"] || !got["/all"]["second"] {
			return fmt.Errorf("/all is told of %v", got["/all"])
		}
		if len(got["/by-kind"]) > 0 {
			return fmt.Errorf("/by-kind is told of %v", got["/by-kind"])
		}
		return nil
	})
}

// eventSeverity: error leaves out what succeeds.
func (s *alerts) eventSeverity(t *testing.T) {
	r, errors, all := s.row(t), newInbound(t, nil), newInbound(t, nil)
	s.Apply(t, provider(r, "errors", "generic", "address: "+errors.URL)+alert(r, "errors", "eventSeverity: error"))
	s.Apply(t, provider(r, "all", "generic", "address: "+all.URL)+alert(r, "all", "eventSeverity: info"))
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	all.gets(t, `"severity":"info"`, "created")
	breaks(t, r, "broken")
	errors.gets(t, `"severity":"error"`, "broken")
	all.gets(t, `"severity":"error"`, "broken")
	errors.never(t, `"severity":"info"`)
}

// inclusionExclusion: what matches is told, unless it is excluded, too.
func (s *alerts) inclusionExclusion(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL)+
		alert(r, "to", "inclusionList: ['.*missing-(one|two).*']\nexclusionList: ['missing-two', '(']"))
	for _, name := range []string{"two", "three", "one"} {
		breaks(t, r, name)
	}
	told(t, r, "Alert", "to", "InvalidAlert")
	in.gets(t, "missing-one")
	in.never(t, "missing-two")
	in.never(t, "missing-three")
}

// eventMetadata: annotations, spec.eventMetadata and spec.summary, and who counts more.
func (s *alerts) eventMetadata(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL)+
		alert(r, "to", "summary: the shop\neventMetadata: {env: production, revision: none, summary: another}"))
	r.Kustomization(t, "app", "suspend: true")
	r.Patch(t, r.Object(t, "kustomize.toolkit.fluxcd.io/v1", "Kustomization", "app"), "app",
		`{"metadata":{"annotations":{"event.toolkit.fluxcd.io/env":"dev","event.toolkit.fluxcd.io/owner":"team"}}}`)
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	got := in.gets(t, "created")
	var e event
	if err := json.Unmarshal([]byte(got.body), &e); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"env": "production", "owner": "team", "summary": "the shop", "revision": "main@sha1:" + r.Head}
	for key, value := range want {
		if e.Metadata[key] != value {
			t.Errorf("%s is %q, want %q", key, e.Metadata[key], value)
		}
	}
	told(t, r, "Alert", "to", "MetadataConflict")
	if got.header.Get("Gotk-Component") != "kustomize-controller" {
		t.Errorf("headers are %v", got.header)
	}
}

// suspendAlert: nothing is told while spec.suspend is set.
func (s *alerts) suspendAlert(t *testing.T) {
	r, in, witness := s.row(t), newInbound(t, nil), newInbound(t, nil)
	s.Apply(t, provider(r, "witness", "generic", "address: "+witness.URL)+alert(r, "witness", ""))
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL)+alert(r, "to", "suspend: true"))
	breaks(t, r, "one")
	witness.gets(t, "missing-one")
	s.Apply(t, alert(r, "to", "suspend: false"))
	breaks(t, r, "two")
	in.gets(t, "missing-two")
	in.never(t, "missing-one")
}

// ownKinds: an Alert may name Layer, Child and Rollout; what Flux does not know is refused.
func (s *alerts) ownKinds(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL)+
		alert(r, "to", "eventSources: [{kind: Layer, name: '*'}, {kind: Child, name: '*'}, {kind: Rollout, name: '*'}, {kind: ArtifactGenerator, name: '*'}]"))
	s.Apply(t, fmt.Sprintf(`apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: tenants, namespace: %s}
spec:
  clusterSelector: {matchLabels: {none: such}}
  sourceRef: {kind: GitRepository, name: git}
  path: ./app
  interval: 10m
`, r.Namespace))
	got := in.gets(t, `"kind":"Layer"`, "NoChildren")
	if !strings.Contains(got.body, `"reportingController":"cascade"`) {
		t.Errorf("got %s", got.body)
	}
}

// providerRef: a Provider that does not exist is told of on the Alert, once; when it comes,
// it is told.
func (s *alerts) providerRef(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	s.Apply(t, alert(r, "to", ""))
	breaks(t, r, "one")
	told(t, r, "Alert", "to", "ProviderNotFound")
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL))
	breaks(t, r, "two")
	in.gets(t, "missing-two")
}

// rateLimit: the same event is told once within the interval.
func (s *alerts) rateLimit(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL)+alert(r, "to", ""))
	breaks(t, r, "one")
	in.gets(t, "missing-one")
	for range 3 {
		r.Handled(t, "one", r.Ask(t, r.Object(t, "kustomize.toolkit.fluxcd.io/v1", "Kustomization", "one"), "one"))
	}
	breaks(t, r, "two")
	in.gets(t, "missing-two")
	n := 0
	for _, q := range in.all() {
		if strings.Contains(q.body, "missing-one") {
			n++
		}
	}
	if n != 1 {
		t.Errorf("it is told %d times", n)
	}
}

// secretRef: address and headers of the Secret.
func (s *alerts) secretRef(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	s.Apply(t, secret(r, "to", map[string]string{"address": in.URL + "/from-secret", "headers": "Authorization: my-token\nX-Forwarded-Proto: https\n"}))
	s.Apply(t, provider(r, "to", "generic", "address: http://127.0.0.1:1\nsecretRef: {name: to}")+alert(r, "to", ""))
	breaks(t, r, "one")
	got := in.gets(t, "missing-one")
	if got.path != "/from-secret" || got.header.Get("Authorization") != "my-token" || got.header.Get("X-Forwarded-Proto") != "https" {
		t.Errorf("got %s with %v", got.path, got.header)
	}
}

// hmac: the signature is that of the body, by the token of the Secret.
func (s *alerts) hmac(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	s.Apply(t, secret(r, "to", map[string]string{"token": "the-key"}))
	s.Apply(t, provider(r, "to", "generic-hmac", "address: "+in.URL+"\nsecretRef: {name: to}")+alert(r, "to", ""))
	breaks(t, r, "one")
	got := in.gets(t, "missing-one")
	sum := hmac.New(sha256.New, []byte("the-key"))
	sum.Write([]byte(got.body))
	if want := fmt.Sprintf("sha256=%x", sum.Sum(nil)); got.header.Get("X-Signature") != want {
		t.Errorf("the signature is %s, want %s", got.header.Get("X-Signature"), want)
	}
}

// channelUsername: what Slack is told, with spec.channel, spec.username and the token.
func (s *alerts) channelUsername(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	s.Apply(t, secret(r, "to", map[string]string{"token": "xoxb"}))
	s.Apply(t, provider(r, "to", "slack", "address: "+in.URL+"\nchannel: general\nusername: flux\nsecretRef: {name: to}")+alert(r, "to", "summary: '<!channel>'"))
	breaks(t, r, "one")
	got := in.gets(t, "missing-one", `"channel":"general"`, `"username":"flux"`, `"color":"danger"`, "kustomization/one."+r.Namespace)
	if got.header.Get("Authorization") != "Bearer xoxb" {
		t.Errorf("headers are %v", got.header)
	}
	if strings.Contains(got.body, "<!channel>") || strings.Contains(got.body, `\u003c!channel\u003e`) {
		t.Errorf("a summary is a mention: %s", got.body)
	}
}

// certSecretRef: a server of an unknown authority gets nothing, until the Secret has it. What could not be
// told till then is told, as controllers say it once.
func (s *alerts) certSecretRef(t *testing.T) {
	r, in := s.row(t), &inbound{}
	in.Server = httptest.NewTLSServer(in.handle(nil))
	t.Cleanup(in.Close)
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL)+alert(r, "to", ""))
	breaks(t, r, "one")
	told(t, r, "Provider", "to", "CertificateRefused")
	in.never(t, "missing-one")
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: in.Certificate().Raw}))
	s.Apply(t, secret(r, "ca", map[string]string{"ca.crt": ca}))
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL+"\ncertSecretRef: {name: ca}"))
	breaks(t, r, "two")
	in.gets(t, "missing-two")
	in.gets(t, "missing-one")
	told(t, r, "Provider", "to", "ProviderRecovered")
}

// proxy: spec.proxy, and spec.proxySecretRef with a login, which counts more.
func (s *alerts) proxy(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	s.Apply(t, provider(r, "plain", "generic", "address: http://provider.invalid/plain\nproxy: "+in.URL)+alert(r, "plain", ""))
	s.Apply(t, secret(r, "proxy", map[string]string{"address": in.URL, "username": "me", "password": "pass"}))
	s.Apply(t, provider(r, "login", "generic", "address: http://provider.invalid/login\nproxy: http://127.0.0.1:1\nproxySecretRef: {name: proxy}")+alert(r, "login", ""))
	breaks(t, r, "one")
	scenario.Eventually(t, scenario.Converge, "both come by the proxy", func(context.Context) error {
		came := map[string]string{}
		for _, q := range in.all() {
			came[q.path] = q.header.Get("Proxy-Authorization")
		}
		login := "Basic " + base64.StdEncoding.EncodeToString([]byte("me:pass"))
		if plain, ok := came["http://provider.invalid/plain"]; !ok || plain != "" || came["http://provider.invalid/login"] != login {
			return fmt.Errorf("what came is %v", came)
		}
		return nil
	})
}

// timeout: an attempt ends after spec.timeout, and the Provider says so.
func (s *alerts) timeout(t *testing.T) {
	r, in := s.row(t), newInbound(t, func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL+"\ntimeout: 1s")+alert(r, "to", ""))
	breaks(t, r, "one")
	told(t, r, "Provider", "to", "ProviderTimeout")
	if n := len(in.all()); n != 5 {
		t.Errorf("it was tried %d times, want 5", n)
	}
}

// commitStatus: a status at the commit, under the default name and under that of an
// expression; what is no commit sends none.
func (s *alerts) commitStatus(t *testing.T) {
	r, in := s.row(t), newInbound(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	s.Apply(t, secret(r, "to", map[string]string{"token": "gt"}))
	s.Apply(t, provider(r, "to", "gitea", "address: "+in.URL+"/org/repo\nsecretRef: {name: to}")+alert(r, "to", ""))
	s.Apply(t, provider(r, "named", "gitea", "address: "+in.URL+"/org/named.git\nsecretRef: {name: to}\n"+
		`commitStatusExpr: "event.involvedObject.kind.lowerAscii() + '/' + event.involvedObject.name + '/' + alert.metadata.name + '/' + provider.spec.type"`)+alert(r, "named", ""))
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	got := in.gets(t, `"state":"success"`, `"context":"kustomization/app/`, `"description":"reconciliation succeeded"`)
	if got.header.Get("Authorization") != "token gt" {
		t.Errorf("headers are %v", got.header)
	}
	named := in.gets(t, `"state":"success"`, `"context":"kustomization/app/named/gitea"`)
	if want := "/api/v1/repos/org/named/statuses/" + r.Head; named.path != want {
		t.Errorf("the status is at %s, want %s", named.path, want)
	}
	r.Commit(t, map[string]string{"app/a.yaml": "kind: ["})
	in.gets(t, `"state":"failure"`, `"context":"kustomization/app/named/gitea"`, "build failed")
}

// suspendProvider: nothing is sent while spec.suspend is set.
func (s *alerts) suspendProvider(t *testing.T) {
	r, in, witness := s.row(t), newInbound(t, nil), newInbound(t, nil)
	s.Apply(t, provider(r, "witness", "generic", "address: "+witness.URL)+alert(r, "witness", ""))
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL+"\nsuspend: true")+alert(r, "to", ""))
	breaks(t, r, "one")
	witness.gets(t, "missing-one")
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL+"\nsuspend: false"))
	breaks(t, r, "two")
	in.gets(t, "missing-two")
	in.never(t, "missing-one")
}

// refused: types that are not served, identities of clouds, metadata services, redirects.
func (s *alerts) refused(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	away := newInbound(t, func(w http.ResponseWriter, q *http.Request) {
		http.Redirect(w, q, in.URL, http.StatusPermanentRedirect)
	})
	for name, p := range map[string][2]string{
		"type":     {"matrix", "address: " + in.URL},
		"identity": {"generic", "address: " + in.URL + "\nserviceAccountName: default"},
		"metadata": {"generic", "address: http://169.254.169.254/latest"},
		"redirect": {"generic", "address: " + away.URL},
		"secret":   {"generic", "address: " + in.URL + "\nsecretRef: {name: none}"},
	} {
		s.Apply(t, provider(r, name, p[0], p[1])+alert(r, name, ""))
	}
	breaks(t, r, "one")
	told(t, r, "Provider", "type", "UnsupportedProvider")
	told(t, r, "Provider", "identity", "InvalidProvider")
	told(t, r, "Provider", "metadata", "AddressRefused")
	told(t, r, "Provider", "redirect", "RedirectRefused")
	told(t, r, "Provider", "secret", "InvalidProvider")
	in.never(t, "missing")
}

// nothingIsWritten: Alerts and Providers stay as they were applied.
func (s *alerts) nothingIsWritten(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	s.Apply(t, provider(r, "to", "generic", "address: "+in.URL)+alert(r, "to", ""))
	version := func() (versions []string) {
		for _, kind := range []string{"Alert", "Provider"} {
			o := r.Object(t, "notification.toolkit.fluxcd.io/v1beta3", kind, "to")
			if len(o.GetFinalizers()) > 0 || o.Object["status"] != nil {
				t.Errorf("%s has finalizers %v and status %v", kind, o.GetFinalizers(), o.Object["status"])
			}
			versions = append(versions, o.GetResourceVersion())
		}
		return versions
	}
	before := version()
	breaks(t, r, "one")
	in.gets(t, "missing-one")
	if after := version(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("versions are %v, and were %v", after, before)
	}
}

// hangingDelaysNothing: while fifty Providers hang, commits are applied, and another
// Provider is told of each.
func (s *alerts) hangingDelaysNothing(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	released := make(chan struct{})
	hanging := newInbound(t, func(_ http.ResponseWriter, q *http.Request) {
		select {
		case <-released:
		case <-q.Context().Done():
		}
	})
	t.Cleanup(func() { close(released) })
	var all strings.Builder
	for i := range 50 {
		name := fmt.Sprint("hangs-", i)
		all.WriteString(provider(r, name, "generic", "address: "+hanging.URL+"\ntimeout: 2m") + alert(r, name, ""))
	}
	s.Apply(t, all.String())
	s.Apply(t, provider(r, "well", "generic", "address: "+in.URL)+alert(r, "well", ""))
	r.Kustomization(t, "app", "")
	r.Ready(t, "app")
	for i := range 5 {
		r.Commit(t, map[string]string{"app/a.yaml": scenario.ConfigMapWith("a", "", fmt.Sprintf("{k: v%d}", i))})
		r.Ready(t, "app")
		in.gets(t, "configured", r.Head)
	}
	if n := len(hanging.all()); n > 50 {
		t.Errorf("%d requests to 50 Providers that hang", n)
	}
}

// oneCause: a commit breaks 300 Kustomizations; people get one message, and a program gets
// each.
func (s *alerts) oneCause(t *testing.T) {
	const many = 300
	r := s.Row(t, map[string]string{"app/kustomization.yaml": "resources: []\n"})
	chat, program := newInbound(t, nil), newInbound(t, nil)
	s.Apply(t, provider(r, "chat", "slack", "address: "+chat.URL)+alert(r, "chat", "eventSeverity: error"))
	s.Apply(t, provider(r, "program", "generic", "address: "+program.URL)+alert(r, "program", "eventSeverity: error"))
	for i := range many {
		r.Kustomization(t, fmt.Sprint("app-", i), "path: ./app")
	}
	for i := range many {
		r.Ready(t, fmt.Sprint("app-", i))
	}
	r.Commit(t, map[string]string{"app/kustomization.yaml": "resources: {\n"})
	scenario.Eventually(t, scenario.Converge, "the program gets each", func(context.Context) error {
		names := map[string]bool{}
		for _, q := range program.all() {
			var e event
			if err := json.Unmarshal([]byte(q.body), &e); err != nil {
				t.Fatal(err)
			}
			if e.Reason == "BuildFailed" {
				names[e.InvolvedObject.Name] = true
			}
		}
		if len(names) != many {
			return fmt.Errorf("it got %d", len(names))
		}
		return nil
	})
	chat.gets(t, fmt.Sprint(many, " Kustomizations"), fmt.Sprintf("and %d more", many-10))
	if all := chat.all(); len(all) != 1 {
		t.Errorf("%d messages, want one", len(all))
	}
}

// fluxCLI: what Flux's command line makes, shows, suspends and deletes is served.
func (s *alerts) fluxCLI(t *testing.T) {
	r, in := s.row(t), newInbound(t, nil)
	for _, step := range []struct {
		args string
		want []string
	}{
		{"create alert-provider to --type generic --address " + in.URL, []string{"Provider to is ready"}},
		{"create alert to --provider-ref to --event-severity info --event-source Kustomization/*", []string{"Alert to is ready"}},
		{"get alert-providers", []string{"to  \tTrue"}},
		{"get alerts", []string{"to  \tFalse"}},
		{"suspend alert to", []string{"alert suspended"}},
		{"get alerts", []string{"to  \tTrue"}},
		{"resume alert to", []string{"alert resumed"}},
		{"suspend alert-provider to", []string{"alert provider suspended"}},
		{"resume alert-provider to", []string{"alert provider resumed"}},
		{"export alert to", []string{"kind: Alert", "eventSeverity: info", "name: '*'"}},
		{"export alert-provider to", []string{"kind: Provider", "type: generic"}},
	} {
		out := s.flux(t, r, step.args)
		for _, want := range step.want {
			if !strings.Contains(out, want) {
				t.Errorf("flux %s has no %q:\n%s", step.args, want, out)
			}
		}
	}
	breaks(t, r, "one")
	in.gets(t, "missing-one")
	s.flux(t, r, "delete alert to --silent")
	s.flux(t, r, "delete alert-provider to --silent")
	for _, kind := range []string{"Alert", "Provider"} {
		r.Gone(t, stage.Object("notification.toolkit.fluxcd.io/v1beta3", kind), "to")
	}
}

// flux runs Flux's command line in the row's namespace.
func (s *alerts) flux(t *testing.T, r *scenario.Row, args string) string {
	t.Helper()
	program, err := s.Program("flux")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, append(strings.Fields(args), "-n", r.Namespace, "--kubeconfig", s.MoM.Kubeconfig(), "--timeout", "1m")...)
	home := t.TempDir()
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "NO_COLOR=1", "TERM=dumb", "NO_PROXY=127.0.0.1,localhost"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("flux %s: %v\n%s", args, err, out)
	}
	return string(out)
}

// lockdown: with --no-cross-namespace-refs nothing of another namespace is told.
func (s *alerts) lockdown(t *testing.T) {
	r, in, witness := s.row(t), newInbound(t, nil), newInbound(t, nil)
	s.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+r.Namespace+"-spy}\n")
	spy := *r
	spy.Namespace = r.Namespace + "-spy"
	s.Apply(t, provider(&spy, "to", "generic", "address: "+in.URL)+
		alert(&spy, "to", "eventSources: [{kind: Kustomization, name: '*', namespace: "+r.Namespace+"}, {kind: Kustomization, name: '*'}]"))
	s.Apply(t, provider(r, "witness", "generic", "address: "+witness.URL)+
		alert(r, "witness", "eventSources: [{kind: Kustomization, name: '*', namespace: "+r.Namespace+"}]"))
	breaks(t, r, "one")
	witness.gets(t, "missing-one")
	s.Apply(t, fmt.Sprintf("apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: own, namespace: %s}\n"+
		"spec: {sourceRef: {kind: GitRepository, name: none}, path: ./, prune: true, interval: 10m}\n", spy.Namespace))
	in.gets(t, `"name":"own"`)
	in.never(t, "missing-one")
}
