package web

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"github.com/go-logr/logr"
	authzv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/page"
)

func schemeOf(t testing.TB) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, sourcev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme, v1alpha1.AddToScheme,
		imagev1.AddToScheme, autov1.AddToScheme, notificationv1.AddToScheme, notificationv1beta3.AddToScheme, generatorv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// tierClient has one child, named secret, the events of it, and an agent that works.
func tierClient(t *testing.T) client.WithWatch {
	t.Helper()
	index := func(of func(*corev1.Event) string) client.IndexerFunc {
		return func(o client.Object) []string { return []string{of(o.(*corev1.Event))} }
	}
	return fake.NewClientBuilder().WithScheme(schemeOf(t)).
		WithIndex(&corev1.Event{}, "involvedObject.kind", index(func(e *corev1.Event) string { return e.InvolvedObject.Kind })).
		WithIndex(&corev1.Event{}, "involvedObject.name", index(func(e *corev1.Event) string { return e.InvolvedObject.Name })).
		WithObjects(
			&v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "secret"}},
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: v1alpha1.HeartbeatLease}, Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NowMicro()), LeaseDurationSeconds: new(int32(3600))}},
			&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "e"}, InvolvedObject: corev1.ObjectReference{Kind: "Child", Name: "secret"}, Reason: "Happened"},
			&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "f"}, InvolvedObject: corev1.ObjectReference{Kind: "Child", Name: "another"}, Reason: "Elsewhere"},
		).Build()
}

// rights of a user: the resources that may be read, in a namespace or everywhere.
func rights(namespace string, resources ...string) May {
	return func(_ context.Context, of authzv1.ResourceAttributes) (int, error) {
		for _, r := range resources {
			if of.Resource == r && (namespace == "" || of.Namespace == namespace) {
				return http.StatusOK, nil
			}
		}
		return http.StatusForbidden, nil
	}
}

func all() May {
	return rights("", "children", "layers", "rollouts", "kustomizations", "helmreleases", "configmaps", "leases", "events")
}

func serverFor(t *testing.T, cl client.Reader, may May) *Server {
	t.Helper()
	reader := Guard(cl, schemeOf(t), may)
	s, err := New(Options{
		Source: func(*http.Request) (*Source, error) {
			return &Source{Reader: reader, Direct: reader, Namespace: "cascade-system"}, nil
		},
		Look: time.Millisecond, Now: time.Now, Log: logr.Discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ask(t *testing.T, h http.Handler, method, url string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, url, nil))
	return w
}

// TestRights: a page is shown to who may list what it shows, in the namespace that it is
// bounded to; nothing else names anything of the tier.
func TestRights(t *testing.T) {
	unknown := func(context.Context, authzv1.ResourceAttributes) (int, error) { return http.StatusUnauthorized, nil }
	silent := func(context.Context, authzv1.ResourceAttributes) (int, error) {
		return 0, errors.New("no route to secret")
	}
	for name, tc := range map[string]struct {
		reason, url string
		may         May
		status      int
		shows       bool
	}{
		"All":       {"who may read all", "/", all(), 200, true},
		"Nothing":   {"who may read nothing", "/", rights(""), 403, false},
		"One":       {"one kind of several is not enough", "/", rights("", "children"), 403, false},
		"Namespace": {"who may read one namespace sees that", "/?namespace=fleet", rights("fleet", "children", "layers", "rollouts", "kustomizations", "helmreleases"), 200, true},
		"Wide":      {"and not all of them", "/", rights("fleet", "children", "layers", "rollouts", "kustomizations", "helmreleases"), 403, false},
		"Other":     {"nor another one", "/?namespace=other", rights("fleet", "children", "layers", "rollouts", "kustomizations", "helmreleases"), 403, false},
		"Cluster":   {"one cluster", "/cluster?path=fleet/secret", rights("", "children", "rollouts"), 200, true},
		"Absent":    {"whether a cluster is there is not told", "/cluster?path=fleet/none", rights("", "rollouts"), 403, false},
		"Live":      {"nor are changes", "/live?of=fleet", rights(""), 403, false},
		"Nobody":    {"nobody's token", "/", unknown, 401, false},
		"NoAnswer":  {"who cannot tell lets nobody in", "/", silent, 503, false},
		"NoPage":    {"no page", "/secret", all(), 404, false},
		"NoLive":    {"changes of no page", "/live?of=secret", all(), 404, false},
		"Template":  {"templates are not served", "/layout.html", all(), 404, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := ask(t, serverFor(t, tierClient(t), tc.may), http.MethodGet, tc.url)
			if w.Code != tc.status || strings.Contains(w.Body.String(), "secret") != tc.shows {
				t.Errorf("%s: %d, want %d:\n%s", tc.reason, w.Code, tc.status, w.Body)
			}
		})
	}
}

// TestNobodySeesAPage: whoever may read nothing is refused each page, and changes of it, by a text
// that names nothing.
func TestNobodySeesAPage(t *testing.T) {
	s := serverFor(t, tierClient(t), rights(""))
	for _, n := range page.Names() {
		for _, url := range []string{"/" + strings.TrimPrefix(n.Path(), "./") + "?path=fleet%2Fsecret", "/live?of=" + string(n)} {
			if w := ask(t, s, http.MethodGet, url); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "secret") {
				t.Errorf("%s: %d:\n%s", url, w.Code, w.Body)
			}
		}
	}
}

// TestOptional: the page of a cluster is shown without what may not be read of it, and says so.
func TestOptional(t *testing.T) {
	with := ask(t, serverFor(t, tierClient(t), all()), http.MethodGet, "/cluster?path=fleet/secret").Body.String()
	if !strings.Contains(with, "Happened") || strings.Contains(with, "Elsewhere") || strings.Contains(with, "could not be read") {
		t.Errorf("the events of the child, and no others, are missing:\n%s", with)
	}
	without := ask(t, serverFor(t, tierClient(t), rights("", "children", "rollouts")), http.MethodGet, "/cluster?path=fleet/secret").Body.String()
	if strings.Contains(without, "Happened") || !strings.Contains(without, "events: you may not read it") {
		t.Errorf("events are shown, or not said to be missing:\n%s", without)
	}
}

// TestRequests: what is not a read of this server is refused, and each answer tells the
// browser what it may do.
func TestRequests(t *testing.T) {
	s := serverFor(t, tierClient(t), all())
	s.Loopback, s.Key = "127.0.0.1:8765", "key"
	for name, tc := range map[string]struct {
		reason, method, url, host string
		status                    int
	}{
		"Page":      {"a page", http.MethodGet, "/key/", "127.0.0.1:8765", 200},
		"Localhost": {"by the name that every machine has for itself", http.MethodGet, "/key/held", "localhost:8765", 200},
		"Head":      {"HEAD", http.MethodHead, "/key/", "127.0.0.1:8765", 200},
		"Asset":     {"a file", http.MethodGet, "/key/style.css", "127.0.0.1:8765", 200},
		"Post":      {"nothing is changed", http.MethodPost, "/key/", "127.0.0.1:8765", 405},
		"Delete":    {"nor deleted", http.MethodDelete, "/key/held", "127.0.0.1:8765", 405},
		"Options":   {"nor offered to other sites", http.MethodOptions, "/key/", "127.0.0.1:8765", 405},
		"Rebinding": {"the name of another site that leads here", http.MethodGet, "/key/", "evil.example:8765", 421},
		"Port":      {"another server", http.MethodGet, "/key/", "127.0.0.1:80", 421},
		"NoKey":     {"another user of the machine", http.MethodGet, "/", "127.0.0.1:8765", 404},
		"BadKey":    {"who guesses", http.MethodGet, "/kez/", "127.0.0.1:8765", 404},
		"Long":      {"an address without end", http.MethodGet, "/key/?search=" + strings.Repeat("x", mostURL), "127.0.0.1:8765", 414},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), tc.method, tc.url, nil)
			r.Host = tc.host
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code != tc.status {
				t.Errorf("%s: %d, want %d", tc.reason, w.Code, tc.status)
			}
			if tc.status != 200 && strings.Contains(w.Body.String(), "secret") {
				t.Errorf("%s: it names something of the tier", tc.reason)
			}
			if (tc.method == http.MethodHead) != (w.Body.Len() == 0) {
				t.Errorf("%s: a body of %d bytes", tc.reason, w.Body.Len())
			}
			policy := w.Header().Get("Content-Security-Policy")
			if !strings.Contains(policy, "default-src 'none'; script-src 'self'; style-src 'self';") || strings.Contains(policy, "unsafe") ||
				w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s: headers are %v", tc.reason, w.Header())
			}
		})
	}
}

// TestLive: a page that is another one is told, once, and so is that it cannot be read, however the
// stream began; who lost the right is told nothing more.
func TestLive(t *testing.T) {
	cl := tierClient(t)
	answers := make(chan int, 1)
	answers <- http.StatusOK
	may := func(ctx context.Context, of authzv1.ResourceAttributes) (int, error) {
		answer := <-answers
		answers <- answer
		switch answer {
		case http.StatusOK:
			return all()(ctx, of)
		case http.StatusForbidden:
			return answer, nil
		}
		return 0, errors.New("no route")
	}
	turn := func(answer int) {
		<-answers
		answers <- answer
	}
	s := serverFor(t, cl, may)
	s.Now = func() time.Time { return time.Unix(1000, 0) }
	s.Look = 100 * time.Millisecond // the client has twice as long to take what it is told
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	// follow is a page that is opened. What it returns waits for an event, or for a look without one.
	follow := func() (next func() string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/live?of=fleet", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() }) // it was only read
		lines := bufio.NewScanner(answer.Body)
		if !lines.Scan() || lines.Text() != "retry: 5000" {
			t.Fatalf("it begins %d with %q", answer.StatusCode, lines.Text())
		}
		return func() string {
			for lines.Scan() {
				if text := lines.Text(); strings.HasPrefix(text, "event: ") || text == ": " {
					return text
				}
			}
			return "the end"
		}
	}
	news := func(next func() string, want string) {
		t.Helper()
		got := next()
		for looks := 0; got == ": " && looks < 20; looks++ {
			got = next()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	next := follow()
	if err := cl.Create(t.Context(), &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "new"}}); err != nil {
		t.Fatal(err)
	}
	news(next, "event: changed")
	turn(http.StatusServiceUnavailable)
	news(next, "event: unread")
	if got := next(); got != ": " {
		t.Errorf("once more unread: %q", got)
	}
	another := follow()
	if got := another(); got != "event: unread" {
		t.Errorf("a stream that begins unread: %q", got)
	}
	turn(http.StatusOK)
	news(next, "event: changed") // it says what it said, and takes back that it may be old
	news(another, "event: changed")
	turn(http.StatusForbidden)
	news(next, "event: ended")
	news(next, "the end")
}

// TestStreamsAreBounded: more pages than that do not follow changes.
func TestStreamsAreBounded(t *testing.T) {
	s := serverFor(t, tierClient(t), all())
	for range mostStreams {
		s.streams <- struct{}{}
	}
	if w := ask(t, s, http.MethodGet, "/live?of=fleet"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("one more: %d", w.Code)
	}
	if w := ask(t, s, http.MethodGet, "/"); w.Code != http.StatusOK {
		t.Errorf("pages are still shown: %d", w.Code)
	}
}

// TestGuardKnowsKinds: the guard can ask about each kind that a page needs.
func TestGuardKnowsKinds(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	may := func(_ context.Context, of authzv1.ResourceAttributes) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, of.Verb+" "+of.Resource+"."+of.Group)
		return http.StatusOK, nil
	}
	s := serverFor(t, tierClient(t), may)
	for _, n := range page.Names() {
		if w := ask(t, s, http.MethodGet, "/"+strings.TrimPrefix(n.Path(), "./")+"?path=fleet/secret"); w.Code != http.StatusOK {
			t.Errorf("%s: %d", n, w.Code)
		}
	}
	for _, want := range []string{
		"list children.cascade.dev", "list layers.cascade.dev", "list rollouts.cascade.dev", "list kustomizations.kustomize.toolkit.fluxcd.io",
		"list helmreleases.helm.toolkit.fluxcd.io", "get configmaps.", "list events.",
		"list gitrepositories.source.toolkit.fluxcd.io", "list ocirepositories.source", "list buckets.source", "list helmrepositories.source", "list helmcharts.source",
		"list externalartifacts.source", "list artifactgenerators.source.extensions", "list imagerepositories.image", "list imagepolicies.image", "list imageupdateautomations.image",
		"list receivers.notification", "list alerts.notification", "list providers.notification", "list credentials.cascade.dev", "list statebackups.cascade.dev",
		"get leases.coordination.k8s.io",
	} {
		if !strings.Contains(strings.Join(asked, "\n"), want) {
			t.Errorf("nobody asked for %q", want)
		}
	}
	if err := Guard(tierClient(t), schemeOf(t), may).Get(t.Context(), client.ObjectKey{Namespace: "a", Name: "b"}, &corev1.Secret{}); err == nil || !strings.Contains(err.Error(), "no page is made of it") {
		t.Errorf("a Secret: %v", err)
	}
}

// TestWhy: chains begin at sources and Clusters. Clusters are read only while a child is not
// connected; what may not be read is said, and is not taken for missing.
func TestWhy(t *testing.T) {
	child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "shop"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "shop"}}}
	app := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "app"}}
	app.Spec.SourceRef = kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "elsewhere", Namespace: "platform"}
	app.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: "ArtifactFailed", Message: "no source"}}
	own := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "cascade-system", Name: v1alpha1.ReportConfigMap}, Data: map[string]string{v1alpha1.ReportKey: `{"ready":true,"reason":"Succeeded"}`}}
	const missing = "GitRepository/platform/elsewhere"
	for name, tc := range map[string]struct {
		reason, url string
		connected   bool
		without     string
		asks        bool
		says, not   string
	}{
		"Missing":      {"a source that is not there is the root", "/why", true, "", false, missing, "you may not read it"},
		"Namespace":    {"in another namespace it is not known", "/why?namespace=fleet", true, "", false, "Kustomization/fleet/app", missing},
		"Forbidden":    {"nor is it for who may not read sources", "/why", true, "gitrepositories", false, "sources: you may not read it", missing},
		"Credentials":  {"who may not read Credentials sees the rest", "/why", true, "credentials", false, "credentials: you may not read it", "statebackups: you may not"},
		"Objects":      {"objects of kinds that may be read", "/objects", true, "providers", false, "alerts and providers: you may not read it", "receivers: you may not"},
		"NoLease":      {"nobody knows how old all of it is", "/", true, "", false, "there is no Lease cascade-system/cascade-heartbeat", "you may not read it"},
		"NoKeeper":     {"nor is the tier ready by a report that nobody keeps", "/", true, "", false, "nobody keeps its report", "you may not read it"},
		"NotConnected": {"a child without a connection", "/why", false, "", true, "Child/fleet/shop", "clusters: you may not read it"},
		"NoClusters":   {"for who may not read Clusters", "/why", false, "clusters", true, "clusters: you may not read it", "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			child := child.DeepCopy()
			if tc.connected {
				child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}}
			}
			var mu sync.Mutex
			asked := false
			may := func(_ context.Context, of authzv1.ResourceAttributes) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				asked = asked || of.Resource == "clusters"
				if of.Resource == tc.without {
					return http.StatusForbidden, nil
				}
				return http.StatusOK, nil
			}
			cl := fake.NewClientBuilder().WithScheme(schemeOf(t)).WithObjects(child, app, own).Build()
			w := ask(t, serverFor(t, cl, may), http.MethodGet, tc.url)
			if body := w.Body.String(); w.Code != http.StatusOK || !strings.Contains(body, tc.says) || strings.Contains(body, tc.not) || asked != tc.asks {
				t.Errorf("%s: %d, Clusters were asked for: %t\n%s", tc.reason, w.Code, asked, body)
			}
		})
	}
}
