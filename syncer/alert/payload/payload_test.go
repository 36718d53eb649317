package payload

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/alert"
)

var update = flag.Bool("update", false, "write testdata anew")

const commit = "731f7eaddfb6af01cb2173e18f0f75b0ba780ef1"

func failure() alert.Message {
	return alert.Message{
		Alert: types.NamespacedName{Namespace: "apps", Name: "all"}, Provider: types.NamespacedName{Namespace: "apps", Name: "to"}, Objects: 1, Events: 1,
		Event: eventv1.Event{
			InvolvedObject: corev1.ObjectReference{
				APIVersion: "kustomize.toolkit.fluxcd.io/v1", Kind: "Kustomization", Namespace: "apps", Name: "webapp", UID: "7d0cdc51-ddcf-4743-b223-83ca5c699632",
			},
			Severity: "error", Reason: "BuildFailed", Message: "service/apps/webapp <!channel> @everyone: spec.type is wrong & more",
			Timestamp: metav1.NewTime(time.Date(2022, 10, 28, 7, 26, 19, 0, time.UTC)), ReportingController: "kustomize-controller", ReportingInstance: "agent-1",
			Metadata: map[string]string{"revision": "main@sha1:" + commit, "summary": "the shop is down", "app.kubernetes.io/env": "prod"},
		},
	}
}

func success() alert.Message {
	m := failure()
	m.Event.Severity, m.Event.Reason, m.Event.Message = "info", "ReconciliationSucceeded", "applied"
	m.Event.Metadata = map[string]string{"revision": "main@sha1:" + commit}
	return m
}

func underWay() alert.Message {
	m := success()
	m.Event.Reason, m.Event.Message = "Progressing", "service/apps/webapp configured"
	return m
}

func many() alert.Message {
	m := failure()
	m.Objects, m.Events, m.Names = 300, 301, []string{"apps/webapp", "apps/shop", "apps/api"}
	m.Texts = []string{"service/apps/webapp: spec.type is wrong", "service/apps/shop: spec.type is wrong"}
	return m
}

func source() alert.Message {
	m := success()
	m.Event.InvolvedObject = corev1.ObjectReference{APIVersion: "source.toolkit.fluxcd.io/v1", Kind: "GitRepository", Namespace: "apps", Name: "fleet", UID: "1"}
	m.Event.Reason, m.Event.ReportingController = "NewArtifact", "source-controller"
	return m
}

func layer() alert.Message {
	m := failure()
	m.Event.InvolvedObject = corev1.ObjectReference{APIVersion: "cascade.dev/v1alpha1", Kind: "Layer", Namespace: "fleet", Name: "tenants", UID: "2"}
	m.Event.Reason, m.Event.ReportingController = "ChildrenNotReady", "cascade"
	m.Event.Metadata = map[string]string{"revision": "main@sha1:" + commit, "children": "120", "current": "100", "failed": "3"}
	return m
}

// settingsOf has what each type needs.
func settingsOf(name string) Settings {
	s := Settings{Type: name, Address: "https://example.com/hook", Token: "the-token", Status: "kustomization/webapp/0c9c2e41"}
	switch name {
	case "generic", "generic-hmac", "otel":
		s.Headers = map[string]string{"X-Forwarded-Proto": "https"}
	case "slack", "discord", "rocket", "webex":
		s.Channel, s.Username = "general", "flux"
	case "telegram":
		s.Address, s.Channel = "", "@fluxcd"
	case "pagerduty":
		s.Address, s.Channel = "https://events.pagerduty.com", "the-routing-key"
	case "github", "githubdispatch":
		s.Address = "https://github.com/my-gh-org/my-gh-repo"
	case "gitlab":
		s.Address = "https://gitlab.com/my-group/sub/my-repo.git"
	case "gitea":
		s.Address = "https://gitea.example.com/git/my-org/my-repo"
	case "bitbucket":
		s.Address, s.Token = "https://bitbucket.org/my-org/my-repo", "me:the-password"
	case "bitbucketserver":
		s.Address = "https://bitbucket.example.com/ctx/scm/proj/my-repo.git"
	case "azuredevops":
		s.Address = "https://dev.azure.com/my-org/my-project/_git/my-repo"
	}
	return s
}

func served() []string {
	return []string{
		"generic", "generic-hmac", "slack", "msteams", "discord", "googlechat", "telegram", "alertmanager", "grafana", "pagerduty", "opsgenie", "otel",
		"rocket", "webex", "lark", "datadog",
		"github", "gitlab", "gitea", "bitbucket", "bitbucketserver", "azuredevops", "githubdispatch",
	}
}

// shown is a request as testdata has it.
type shown struct {
	Method, URL string
	Header      map[string][]string
	Body        json.RawMessage
}

func show(t *testing.T, requests []Request) []shown {
	t.Helper()
	out := []shown{}
	for _, r := range requests {
		out = append(out, shown{r.Method, r.URL, r.Header, r.Body})
	}
	return out
}

// TestPayloads: what each type of Provider is sent, as testdata has it.
func TestPayloads(t *testing.T) {
	for _, name := range served() {
		t.Run(name, func(t *testing.T) {
			got := map[string]any{}
			for what, m := range map[string]alert.Message{"failure": failure(), "success": success(), "progressing": underWay(), "many": many(), "layer": layer(), "source": source()} {
				if what == "many" && !Together(name) || what == "layer" && !IsStatus(name) || what == "source" && name != "otel" {
					continue
				}
				requests, err := Build(settingsOf(name), m)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				got[what] = show(t, requests)
			}
			text, err := json.MarshalIndent(got, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, '\n')
			at := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(at, text, 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(at)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(text)); diff != "" {
				t.Errorf("write it with -update (-want +got):\n%s", diff)
			}
		})
	}
}

// TestVariants: addresses and credentials that change what is sent.
func TestVariants(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		of     string
		change func(*Settings)
		url    string
		header string // name=value
		body   string // a part of it
	}{
		"SlackWebhook":      {reason: "a webhook needs no token", of: "slack", change: func(s *Settings) { s.Token, s.Channel = "", "" }, url: "https://example.com/hook", header: "Authorization="},
		"SenderOfSlack":     {reason: "without a name the controller speaks", of: "slack", change: func(s *Settings) { s.Username = "" }, url: "https://example.com/hook", body: `"username":"kustomize-controller"`},
		"DiscordAsSlack":    {reason: "Discord takes Slack's form as well", of: "discord", change: func(s *Settings) { s.Address = "https://discord.com/api/webhooks/1/slack" }, url: "https://discord.com/api/webhooks/1/slack", body: `"attachments"`},
		"TeamsConnector":    {reason: "a connector takes the older card", of: "msteams", change: func(s *Settings) { s.Address = "https://x.webhook.office.com/a" }, url: "https://x.webhook.office.com/a", body: `"@type":"MessageCard"`},
		"TeamsLookalike":    {reason: "only hosts of the domain are connectors", of: "msteams", change: func(s *Settings) { s.Address = "https://webhook.office.com.example.com/" }, url: "https://webhook.office.com.example.com/", body: "AdaptiveCard"},
		"TelegramAddress":   {reason: "an own server of Telegram", of: "telegram", change: func(s *Settings) { s.Address = "https://tg.example.com/x/" }, url: "https://tg.example.com/x/botthe-token/sendMessage"},
		"TelegramTopic":     {reason: "a topic of a forum, as Flux has it", of: "telegram", change: func(s *Settings) { s.Channel = "-1001234:56" }, url: "https://api.telegram.org/botthe-token/sendMessage", body: `"chat_id":"-1001234","message_thread_id":"56"`},
		"AlertmanagerBasic": {reason: "a user logs in", of: "alertmanager", change: func(s *Settings) { s.Token, s.Username, s.Password = "", "u", "p" }, url: "https://example.com/hook", header: "Authorization=Basic dTpw"},
		"GrafanaTokenWins":  {reason: "a token counts more than a user", of: "grafana", change: func(s *Settings) { s.Username, s.Password = "u", "p" }, url: "https://example.com/hook", header: "Authorization=Bearer the-token"},
		"PagerDutyPath":     {reason: "only the host counts", of: "pagerduty", change: func(s *Settings) { s.Address = "https://events.eu.pagerduty.com/v2/enqueue" }, url: "https://events.eu.pagerduty.com/v2/enqueue"},
		"GitHubEnterprise":  {reason: "an own GitHub has its API below a path", of: "github", change: func(s *Settings) { s.Address = "https://git.example.com/o/r.git" }, url: "https://git.example.com/api/v3/repos/o/r/statuses/" + commit},
		"GitHubSSH":         {reason: "the URL of a clone names the repository", of: "github", change: func(s *Settings) { s.Address = "ssh://git@github.com/o/r.git" }, url: "https://api.github.com/repos/o/r/statuses/" + commit},
		"GitLabSCP":         {reason: "so does that of scp", of: "gitlab", change: func(s *Settings) { s.Address = "git@gitlab.com:g/s/r.git" }, url: "https://gitlab.com/api/v4/projects/g%2Fs%2Fr/statuses/" + commit},
		"BitbucketServerUser": {
			reason: "a user's repository, with a login", of: "bitbucketserver",
			change: func(s *Settings) {
				s.Address, s.Token, s.Username, s.Password = "https://b.example.com/scm/~me/r.git", "", "u", "p"
			},
			url: "https://b.example.com/rest/api/latest/projects/~me/repos/r/commits/" + commit + "/builds", header: "Authorization=Basic dTpw",
		},
		"AzureSSH": {reason: "the URL of SSH names the repository", of: "azuredevops", change: func(s *Settings) { s.Address = "git@ssh.dev.azure.com:v3/o/p/r" }, url: "https://dev.azure.com/o/p/_apis/git/repositories/r/commits/" + commit + "/statuses?api-version=7.1"},
		"Spaces":   {reason: "names are escaped", of: "azuredevops", change: func(s *Settings) { s.Address = "https://dev.azure.com/o/a%20b/_git/r" }, url: "https://dev.azure.com/o/a%20b/_apis/git/repositories/r/commits/" + commit + "/statuses?api-version=7.1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := settingsOf(tt.of)
			tt.change(&s)
			all, err := Build(s, failure())
			if err != nil {
				t.Fatal(err)
			}
			if all[0].URL != tt.url || !strings.Contains(string(all[0].Body), tt.body) {
				t.Errorf("%s: %s with %s", tt.reason, all[0].URL, all[0].Body)
			}
			if header, value, ok := strings.Cut(tt.header, "="); ok && all[0].Header.Get(header) != value {
				t.Errorf("%s: %s is %q", tt.reason, header, all[0].Header.Get(header))
			}
		})
	}
}

func TestInvalid(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		of     string
		change func(*Settings)
		want   string
	}{
		"NoAddress":      {reason: "nobody to post to", of: "generic", change: func(s *Settings) { s.Address = "" }, want: "no address"},
		"NoURL":          {reason: "the address is no URL", of: "slack", change: func(s *Settings) { s.Address = "general" }, want: "no URL"},
		"File":           {reason: "another scheme", of: "discord", change: func(s *Settings) { s.Address = "file:///etc/passwd" }, want: "no URL"},
		"NoKey":          {reason: "nothing to sign with", of: "generic-hmac", change: func(s *Settings) { s.Token = "" }, want: "no token"},
		"NoChat":         {reason: "nobody to send to", of: "telegram", change: func(s *Settings) { s.Channel = "" }, want: "spec.channel"},
		"NoRoom":         {reason: "nobody to send to", of: "webex", change: func(s *Settings) { s.Channel = "" }, want: "spec.channel"},
		"NoRoomToken":    {reason: "Webex wants to know who sends", of: "webex", change: func(s *Settings) { s.Token = "" }, want: "no token"},
		"NoDatadogKey":   {reason: "and Datadog", of: "datadog", change: func(s *Settings) { s.Token = "" }, want: "no token"},
		"NoRoutingKey":   {reason: "no integration", of: "pagerduty", change: func(s *Settings) { s.Channel = "" }, want: "spec.channel"},
		"NoToken":        {reason: "GitHub wants one", of: "github", change: func(s *Settings) { s.Token = "" }, want: "no token"},
		"NoRepository":   {reason: "only an owner", of: "github", change: func(s *Settings) { s.Address = "https://github.com/o" }, want: "spec.address"},
		"Upwards":        {reason: "the path goes elsewhere", of: "gitlab", change: func(s *Settings) { s.Address = "https://gitlab.com/../x" }, want: "spec.address"},
		"AppPassword":    {reason: "a user is missing", of: "bitbucket", change: func(s *Settings) { s.Token = "x" }, want: "<username>:<app-password>"},
		"ServerBySSH":    {reason: "Flux takes the HTTPS URL only", of: "bitbucketserver", change: func(s *Settings) { s.Address = "ssh://git@b.example.com/scm/p/r.git" }, want: "HTTPS clone URL"},
		"NoProject":      {reason: "no project", of: "azuredevops", change: func(s *Settings) { s.Address = "https://dev.azure.com/o/r" }, want: "_git"},
		"NoStatusName":   {reason: "the expression returned nothing", of: "gitea", change: func(s *Settings) { s.Status = "" }, want: "commitStatusExpr"},
		"DispatchNoRepo": {reason: "no repository", of: "githubdispatch", change: func(s *Settings) { s.Address = "https://github.com" }, want: "spec.address"},
	} {
		t.Run(name, func(t *testing.T) {
			s := settingsOf(tt.of)
			tt.change(&s)
			_, err := Build(s, failure())
			var invalid *Error
			if !errors.As(err, &invalid) || invalid.Reason != ReasonInvalid || !strings.Contains(invalid.Text, tt.want) {
				t.Errorf("%s: got %v, want one with %q", tt.reason, err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "the-token") {
				t.Errorf("the error tells the token: %v", err)
			}
		})
	}
}

// TestTypes: each type of the API is served, or refused by name.
func TestTypes(t *testing.T) {
	refused := []string{
		notificationv1beta3.GooglePubSubProvider, notificationv1beta3.SentryProvider, notificationv1beta3.AzureEventHubProvider, notificationv1beta3.Matrix,
		notificationv1beta3.NATSProvider, notificationv1beta3.ZulipProvider, notificationv1beta3.GiteaPullRequestCommentProvider,
		notificationv1beta3.GitHubPullRequestCommentProvider, notificationv1beta3.GitLabMergeRequestCommentProvider,
	}
	for _, name := range refused {
		var e *Error
		if _, err := Build(Settings{Type: name, Address: "https://example.com"}, failure()); !errors.As(err, &e) || e.Reason != ReasonUnsupported ||
			!strings.Contains(e.Text, name) || !strings.Contains(e.Text, "--events-addr") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, name := range served() {
		if err := Supported(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	of := enum(t)
	all := append(refused, served()...)
	slices.Sort(all)
	slices.Sort(of)
	if diff := cmp.Diff(of, all); diff != "" {
		t.Errorf("types of the API, and those that this test knows (-API +test):\n%s", diff)
	}
}

// enum are the types of Provider that the API server takes.
func enum(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/crds/notification.toolkit.fluxcd.io_providers.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "description: Type specifies which Provider implementation to use.\n")
	if !ok {
		t.Fatal("the definition has no type")
	}
	var names []string
	for _, line := range strings.Split(rest, "\n")[1:] {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "- ")
		if !ok {
			return names
		}
		names = append(names, name)
	}
	return names
}

func TestCommitOf(t *testing.T) {
	digest := strings.Repeat("ab", 32)
	for name, tt := range map[string]struct {
		reason   string
		metadata map[string]string
		want     string
	}{
		"Branch":     {reason: "branch@sha1:hash", metadata: map[string]string{"revision": "main@sha1:" + commit}, want: commit},
		"NoBranch":   {reason: "sha1:hash", metadata: map[string]string{"revision": "sha1:" + commit}, want: commit},
		"Old":        {reason: "branch/hash of Flux before 2.0", metadata: map[string]string{"revision": "main/" + commit}, want: commit},
		"Bare":       {reason: "the hash alone", metadata: map[string]string{"revision": commit}, want: commit},
		"Image":      {reason: "the digest of an image is no commit", metadata: map[string]string{"revision": "latest@sha256:" + digest}},
		"Origin":     {reason: "an image tells what it is made of", metadata: map[string]string{"revision": "latest@sha256:" + digest, "originRevision": "main@sha1:" + commit}, want: commit},
		"Annotation": {reason: "the object names the commit", metadata: map[string]string{"revision": "1.2.3+abc", "commit": commit}, want: commit},
		"Chart":      {reason: "a version is no commit", metadata: map[string]string{"revision": "1.2.3"}},
		"NotHex":     {reason: "text of the length of a hash is none", metadata: map[string]string{"revision": strings.Repeat("z", 40)}},
		"None":       {reason: "nothing is said", metadata: nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := success()
			m.Event.Metadata = tt.metadata
			if got := commitOf(&m.Event); got != tt.want {
				t.Errorf("%s: got %q, want %q", tt.reason, got, tt.want)
			}
			_, err := Build(settingsOf("github"), m)
			if nothing := errors.Is(err, ErrNothing); nothing != (tt.want == "") {
				t.Errorf("%s: %v", tt.reason, err)
			}
		})
	}
}

// TestStates: what is not done is not said to be.
func TestStates(t *testing.T) {
	for name, tt := range map[string]struct{ reason, severity, of, want string }{
		"Done":        {"all is applied", "info", "ReconciliationSucceeded", "success"},
		"Failed":      {"an error is one whatever it says", "error", "Progressing", "failure"},
		"Progressing": {"it is being applied", "info", "Progressing", "pending"},
		"Began":       {"a Rollout began", "info", "RolloutBegan", "pending"},
		"Wave":        {"some clusters have it", "info", "WavePassed", "pending"},
		"Completed":   {"all clusters have it", "info", "RolloutCompleted", "success"},
		"Waits":       {"children wait for their cluster", "info", "ChildrenNotReady", "pending"},
		"Depends":     {"it waits for another one", "info", "DependencyNotReady", "pending"},
		"Canceled":    {"another commit came before it was known to be well", "info", "HealthCheckCanceled", ""},
		"RolledBack":  {"it failed, and was taken back", "info", "RollbackSucceeded", ""},
		"Uninstalled": {"it failed, and was taken away", "info", "UninstallSucceeded", ""},
		"Halted":      {"a Rollout halted", "error", "RolloutHalted", "failure"},
		"Kubeconfig":  {"a kubeconfig that is not renewed says nothing of a commit", "error", "KubeconfigNotRenewed", ""},
		"Superseded":  {"a run began in the place of another one, and no cluster has what it brings", "info", "RolloutSuperseded", ""},
		"HandsOver":   {"an object is kept for its new owner, while all else is looked at", "info", "HandOverPending", ""},
		"Elsewhere":   {"so is a Cluster that another tier has", "info", "ManagedElsewhere", ""},
		"Removal":     {"a person approved what a commit removes, which is on its way", "info", "RemovalApproved", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := success()
			m.Event.Severity, m.Event.Reason = tt.severity, tt.of
			all, err := Build(settingsOf("github"), m)
			if tt.want == "" {
				if !errors.Is(err, ErrNothing) {
					t.Errorf("%s: got %v, %v", tt.reason, all, err)
				}
				return
			}
			if err != nil || !strings.Contains(string(all[0].Body), `"state":"`+tt.want+`"`) {
				t.Errorf("%s: got %s, %v", tt.reason, all[0].Body, err)
			}
		})
	}
}

// TestIncidents: which incident a message opens or closes, and how many are closed by one (read 534 besides).
func TestIncidents(t *testing.T) {
	const uid = "7d0cdc51-ddcf-4743-b223-83ca5c699632"
	over := success()
	over.Over = []string{"a", uid, "b"}
	told := func(severity, reason string) alert.Message {
		m := success()
		m.Event.Severity, m.Event.Reason = severity, reason
		return m
	}
	about := func(severity, reason string) alert.Message {
		m := told(severity, reason)
		m.Event.InvolvedObject.Kind, m.Event.Metadata = "Rollout", map[string]string{v1alpha1.MetaConditionKey: "Published"}
		return m
	}
	named := failure()
	named.Event.Metadata = map[string]string{v1alpha1.MetaConditionKey: "Published"}
	layer, child := told("info", "RolloutPending"), told("info", "ManagedElsewhere")
	layer.Event.InvolvedObject.Kind, child.Event.InvolvedObject.Kind = "Layer", "Child"
	for name, tt := range map[string]struct {
		reason string
		m      alert.Message
		key    string
		over   bool
		want   []string // action and key of each request
	}{
		"Failure":     {"an error opens that of its object", failure(), uid, false, []string{"trigger " + uid}},
		"Many":        {"one of many is that of the first", many(), uid, false, []string{"trigger " + uid}},
		"Success":     {"what is well closes its own", success(), uid, true, []string{"resolve " + uid, " "}},
		"Over":        {"with those that are told along", over, uid, true, []string{"resolve a", "resolve " + uid, "resolve b", " "}},
		"Progressing": {"an attempt closes nothing", underWay(), "", false, []string{" "}},
		"Aside":       {"that all layers are in place says nothing of what fails", told("info", "Seeded"), "", false, []string{" "}},
		"Wave":        {"nor does a wave of a Rollout", told("info", "WavePassed"), "", false, []string{" "}},
		"Waits":       {"nor that one layer of a child waits for its wave", told("info", "RolloutPending"), "", false, []string{" "}},
		"HandsOver":   {"nor that an object is kept for its new owner", told("info", "HandOverPending"), "", false, []string{" "}},
		"Elsewhere":   {"nor that another tier has one of its Clusters", told("info", "ManagedElsewhere"), "", false, []string{" "}},
		"ChildMoved":  {"of a child it says that nothing is done there any more", child, uid, true, []string{"resolve " + uid, " "}},
		"LayerWaits":  {"of a layer it says that none of its children fails any more", layer, uid, true, []string{"resolve " + uid, " "}},
		"Lapsing":     {"a credential lapses, whatever else is right or wrong", told("error", "CredentialsLapsed"), uid + "/credentials", false, []string{"trigger " + uid + "/credentials"}},
		"Published":   {"a Rollout cannot write down what it proved, which says nothing of its runs", about("error", "PublishFailed"), uid + "/published", false, []string{"trigger " + uid + "/published"}},
		"Metadata":    {"a person gave an object metadata of that name", named, uid, false, []string{"trigger " + uid}},
		"Recovered":   {"it can again", about("info", "PublishedRecovered"), uid + "/published", true, []string{"resolve " + uid + "/published", " "}},
		"Completed":   {"which the end of a run does not touch", told("info", "RolloutCompleted"), uid, true, []string{"resolve " + uid, " "}},
		"Kubeconfig":  {"a kubeconfig that is not renewed, of a child that is ready", told("error", "KubeconfigNotRenewed"), uid + "/kubeconfig", false, []string{"trigger " + uid + "/kubeconfig"}},
		"Profile":     {"nor does that touch its profile", told("info", "ProfileRecovered"), uid + "/profile", true, []string{"resolve " + uid + "/profile", " "}},
		"Renewed":     {"it was renewed", told("info", "CredentialsRenewed"), uid + "/credentials", true, []string{"resolve " + uid + "/credentials", " "}},
	} {
		t.Run(name, func(t *testing.T) {
			if key, over := Incident("pagerduty", &tt.m); key != tt.key || over != tt.over {
				t.Errorf("%s: %q, %t", tt.reason, key, over)
			}
			if key, _ := Incident("slack", &tt.m); key != "" {
				t.Errorf("a chat has an incident %q", key)
			}
			all, err := Build(settingsOf("pagerduty"), tt.m)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range all {
				var body struct {
					Action string `json:"event_action"`
					Key    string `json:"dedup_key"`
				}
				if err := json.Unmarshal(r.Body, &body); err != nil {
					t.Fatal(err)
				}
				got = append(got, body.Action+" "+body.Key)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s: %q, want %q", tt.reason, got, tt.want)
			}
		})
	}
}

func TestStatusOnly(t *testing.T) {
	m := success()
	m.StatusOnly = true
	for _, name := range served() {
		_, err := Build(settingsOf(name), m)
		if nothing := errors.Is(err, ErrNothing); nothing == IsStatus(name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnswers(t *testing.T) {
	for body, want := range map[string]string{
		`{"ok":true}`: "", `ok`: "", ``: "", `{"ok":false,"error":"channel_not_found"}`: "channel_not_found",
		`{"ok":false,"error":"<script> AND 1"}`: "script", `{"ok":false}`: "error",
	} {
		if got := slackRefusal([]byte(body)); got != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
	for body, want := range map[string]string{`{"code":0,"msg":"success"}`: "", `{}`: "", `x`: "", `{"code":19024,"msg":"Key Words Not Found <at>"}`: "code 19024"} {
		if got := larkRefusal([]byte(body)); got != want {
			t.Errorf("%s: got %q, want %q", body, got, want)
		}
	}
	all, err := Build(settingsOf("gitlab"), failure())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		code int
		body string
		want bool
	}{
		{400, `{"message":"Cannot transition status via :run from :running"}`, true},
		{400, `{"message":"sha is invalid"}`, false},
		{403, `Cannot transition status`, false},
	} {
		if got := all[0].Accepted(tt.code, []byte(tt.body)); got != tt.want {
			t.Errorf("%d %s: got %v", tt.code, tt.body, got)
		}
	}
}

// TestTraces: spans of one revision are of one trace, whoever sends them, and those of
// another one are not.
func TestTraces(t *testing.T) {
	span := func(m alert.Message) map[string]any {
		all, err := Build(settingsOf("otel"), m)
		if err != nil {
			t.Fatal(err)
		}
		var body struct {
			ResourceSpans []struct {
				ScopeSpans []struct{ Spans []map[string]any }
			}
		}
		if err := json.Unmarshal(all[0].Body, &body); err != nil {
			t.Fatal(err)
		}
		return body.ResourceSpans[0].ScopeSpans[0].Spans[0]
	}
	root, child, later := span(source()), span(success()), source()
	later.Event.Metadata = map[string]string{"revision": "main@sha1:other"}
	if root["traceId"] != child["traceId"] || child["parentSpanId"] != root["spanId"] || root["parentSpanId"] != nil || child["spanId"] == root["spanId"] {
		t.Errorf("root %v and child %v do not belong together", root, child)
	}
	if span(later)["traceId"] == root["traceId"] {
		t.Error("two revisions are one trace")
	}
}

// FuzzBounds: bodies are JSON and bounded, whatever a message says.
func FuzzBounds(f *testing.F) {
	f.Add("x", "k", "v", 1)
	f.Add(strings.Repeat("\u20ac<&>", 20_000), strings.Repeat("k", 500), strings.Repeat("\x00", 2000), 30)
	f.Fuzz(func(t *testing.T, text, key, value string, n int) {
		for _, m := range []alert.Message{failure(), many()} {
			m.Event.Message = alert.Cut(text, 39_000)
			m.Event.Metadata = map[string]string{"summary": value, "revision": "main@sha1:" + commit}
			for i := range min(max(n, 0), 200) {
				m.Event.Metadata[key+strings.Repeat("i", i)] = value
			}
			m.Texts = []string{alert.Cut(text, 500)}
			for _, name := range served() {
				all, err := Build(settingsOf(name), m)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for _, r := range all {
					if !json.Valid(r.Body) {
						t.Errorf("%s: the body is no JSON", name)
					}
					raw := name == "generic" || name == "generic-hmac" || name == "githubdispatch"
					if len(r.Body) > 512<<10 && !raw {
						t.Errorf("%s: the body has %d bytes", name, len(r.Body))
					}
				}
			}
		}
	})
}
