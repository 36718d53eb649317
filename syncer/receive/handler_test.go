package receive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/syncer/request"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

func scheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, sourcev1.AddToScheme, notificationv1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// receiverOf is one that is ready, with a Secret.
func receiverOf(name, of string, resources ...notificationv1.ReceiverResource) (*notificationv1.Receiver, *corev1.Secret) {
	r := &notificationv1.Receiver{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name, UID: "1", Generation: 1}, Spec: specOf(of)}
	r.Spec.Resources = resources
	token := ""
	if of != notificationv1.GenericOIDCReceiver {
		token = secretToken
		r.Spec.SecretRef = &meta.LocalObjectReference{Name: name}
	}
	r.Status.WebhookPath = r.GetWebhookPath(token)
	r.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.SucceededReason}}
	return r, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}, Data: secretData()}
}

func named(kind, name string) notificationv1.ReceiverResource {
	return notificationv1.ReceiverResource{CrossNamespaceObjectReference: notificationv1.CrossNamespaceObjectReference{Kind: kind, Name: name}}
}

func git(namespace, name string, labels map[string]string) *sourcev1.GitRepository {
	o := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	o.Spec.URL = "https://git.example/" + name
	return o
}

// desk is a Handler over an API server that notes what is requested.
type desk struct {
	*Handler
	*Objects
	client client.WithWatch
	now    time.Time

	mu    sync.Mutex
	asked []string
	told  []Push
	gets  int
}

// Get counts the Secrets that are read.
func (d *desk) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	d.mu.Lock()
	d.gets++
	d.mu.Unlock()
	return d.client.Get(ctx, key, o, opts...)
}

func (d *desk) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	return d.client.List(ctx, l, opts...)
}

func (d *desk) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if err := d.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, o.GetObjectKind().GroupVersionKind().Kind+" "+o.GetNamespace()+"/"+o.GetName())
	return nil
}

// requested are the objects that were requested since the last call.
func (d *desk) requested() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := d.asked
	d.asked = nil
	slices.Sort(asked)
	return asked
}

func newDesk(t testing.TB, objects ...client.Object) *desk {
	t.Helper()
	d := &desk{now: time.Unix(1000, 0)}
	start, ticks := d.now, atomic.Int64{} // each request is a moment after the one before
	d.client = fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(objects...).WithStatusSubresource().
		WithIndex(&notificationv1.Receiver{}, pathIndex, pathsOf).Build()
	d.Objects = &Objects{Reader: d.client, Workers: workers, Tell: func(_ context.Context, p []Push) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.told = append(d.told, p...)
	}}
	d.Objects.Requests = &request.Requests{Client: d, Manager: Manager, Now: func() time.Time { return start.Add(time.Duration(ticks.Add(1)) * time.Second) }}
	known := verifierOf(notificationv1.GenericOIDCReceiver)
	d.Handler = NewHandler(Options{
		Receivers: d.client, Secrets: d, Objects: d.Objects, Identities: known.identities, Workers: workers,
		Now: func() time.Time { return d.now }, Log: logr.Discard(), Registry: prometheus.NewRegistry(),
	})
	return d
}

// send sends a request, and returns the status of the answer.
func (d *desk) send(path string, of delivery, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(of.body))
	r.Header = of.header.Clone()
	for _, f := range change {
		f(r)
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w
}

func (d *desk) count(result string) float64 {
	return testutil.ToFloat64(d.results.WithLabelValues(result))
}

// TestHandler: which requests lead to which reconciles, and what senders are told.
func TestHandler(t *testing.T) {
	good := accepted()[notificationv1.GitHubReceiver]
	for name, tc := range map[string]struct {
		reason  string
		change  func(*notificationv1.Receiver)
		path    func(string) string
		of      func(*delivery)
		with    func(*http.Request)
		status  int
		result  string
		request []string
	}{
		"Push":      {"a push", nil, nil, nil, nil, 200, resultAccepted, []string{"GitRepository apps/app"}},
		"Forged":    {"a body that was not signed", nil, nil, func(d *delivery) { d.body = []byte("{}") }, nil, 400, resultForged, nil},
		"Unknown":   {"a path that nobody has", nil, func(p string) string { return p[:len(p)-1] + "x" }, nil, nil, 404, resultUnknown, nil},
		"Root":      {"another path", nil, func(string) string { return "/" }, nil, nil, 404, resultUnknown, nil},
		"Longer":    {"a path below", nil, func(p string) string { return p + "/a" }, nil, nil, 404, resultUnknown, nil},
		"Stolen":    {"a Receiver that has the path of another in its status, as who may write that can do", func(r *notificationv1.Receiver) { r.Status.WebhookPath = "/hook/" + strings.Repeat("0", 64) }, func(string) string { return "/hook/" + strings.Repeat("0", 64) }, nil, nil, 404, resultUnknown, nil},
		"TooLarge":  {"a body that says how large it is", nil, nil, nil, func(r *http.Request) { r.ContentLength = mostBody + 1 }, 413, resultTooLarge, nil},
		"Endless":   {"a body that does not say", nil, nil, func(d *delivery) { d.body = bytes.Repeat([]byte("a"), mostBody+1) }, func(r *http.Request) { r.ContentLength = -1 }, 413, resultTooLarge, nil},
		"Suspended": {"a Receiver that a person suspended", func(r *notificationv1.Receiver) { r.Spec.Suspend = true }, nil, nil, nil, 503, resultNotReady, nil},
		"NotReady":  {"a Receiver with a condition", func(r *notificationv1.Receiver) { r.Status.Conditions[0].Status = metav1.ConditionFalse }, nil, nil, nil, 503, resultNotReady, nil},
		"Event":     {"an event that it does not handle", func(r *notificationv1.Receiver) { r.Spec.Events = []string{"release"} }, nil, nil, nil, 400, resultEvent, nil},
		"Method":    {"the signature decides, and not the method, as with Flux", nil, nil, nil, func(r *http.Request) { r.Method = http.MethodPut }, 200, resultAccepted, []string{"GitRepository apps/app"}},
		"Missing": {"what is not there keeps nothing else from being requested", func(r *notificationv1.Receiver) {
			r.Spec.Resources = append(r.Spec.Resources, named("GitRepository", "none"), named("GitRepository", "web"))
		}, nil, nil, nil, 200, resultAccepted, []string{"GitRepository apps/app", "GitRepository apps/web"}},
		"Labels": {"all with a label", func(r *notificationv1.Receiver) {
			r.Spec.Resources[0].Name, r.Spec.Resources[0].MatchLabels = "*", map[string]string{"team": "a"}
		}, nil, nil, nil, 200, resultAccepted, []string{"GitRepository apps/api", "GitRepository apps/web"}},
		"OtherNamespace": {"in another namespace", func(r *notificationv1.Receiver) { r.Spec.Resources[0].Namespace = "other" }, nil, nil, nil, 200, resultAccepted, []string{"GitRepository other/app"}},
		"Filter": {"those that a filter lets pass by what the request says", func(r *notificationv1.Receiver) {
			r.Spec.Resources[0].Name, r.Spec.Resources[0].MatchLabels = "*", map[string]string{"team": "a"}
			r.Spec.ResourceFilter = "req.ref == 'refs/heads/main' && res.metadata.name == 'web'"
		}, nil, nil, nil, 200, resultAccepted, []string{"GitRepository apps/web"}},
		"FilterOfOne": {"and by both filters", func(r *notificationv1.Receiver) {
			r.Spec.Resources = append(r.Spec.Resources, named("GitRepository", "web"))
			r.Spec.ResourceFilter, r.Spec.Resources[0].Filter = "true", "req.ref == 'refs/heads/release'"
		}, nil, nil, nil, 200, resultAccepted, []string{"GitRepository apps/web"}},
		"FilterFails": {"a filter that reads what is not there", func(r *notificationv1.Receiver) { r.Spec.ResourceFilter = "req.pusher.name == 'a'" }, nil, nil, nil, 400, resultMalformed, nil},
		"FilterEndless": {"a filter that takes long ends, and the others go on", func(r *notificationv1.Receiver) {
			r.Spec.ResourceFilter = "[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, [1,2,3,4,5,6,7,8,9,10].all(g, [1,2,3,4,5,6,7,8,9,10].all(h, a+b+c+d+e+f+g+h > 0))))))))"
		}, nil, nil, nil, 400, resultMalformed, nil},
	} {
		t.Run(name, func(t *testing.T) {
			receiver, secret := receiverOf("hook", notificationv1.GitHubReceiver, named("GitRepository", "app"))
			path := receiver.Status.WebhookPath
			if tc.change != nil {
				tc.change(receiver)
			}
			if tc.path != nil {
				path = tc.path(path)
			}
			d := newDesk(t, receiver, secret, git("apps", "app", nil), git("other", "app", nil), git("apps", "web", map[string]string{"team": "a"}), git("apps", "api", map[string]string{"team": "a"}))
			of := delivery{header: good.header.Clone(), body: slices.Clone(good.body)}
			if tc.of != nil {
				tc.of(&of)
			}
			with := tc.with
			if with == nil {
				with = func(*http.Request) {}
			}
			answer := d.send(path, of, with)
			if answer.Code != tc.status || d.count(tc.result) != 1 {
				t.Errorf("%s: %d %s, %g of %s", tc.reason, answer.Code, answer.Body, d.count(tc.result), tc.result)
			}
			if got := d.requested(); !slices.Equal(got, tc.request) {
				t.Errorf("%s: requested are %v, want %v", tc.reason, got, tc.request)
			}
			if tc.result == resultUnknown && d.gets > 0 && name != "Stolen" {
				t.Errorf("%s: %d calls were made for it", tc.reason, d.gets)
			}
			if len(d.told) != len(tc.request) {
				t.Errorf("%s: told is %v", tc.reason, d.told)
			}
			for _, p := range d.told {
				if p.Revision != strings.Repeat("a", 40) || !strings.HasPrefix(p.URL, "https://git.example/") {
					t.Errorf("%s: told is %v", tc.reason, p)
				}
			}
		})
	}
}

// TestCrossNamespace: a Receiver of one namespace reaches no other where that is refused.
func TestCrossNamespace(t *testing.T) {
	receiver, secret := receiverOf("hook", notificationv1.GenericReceiver, named("GitRepository", "app"), named("GitRepository", "app"))
	receiver.Spec.Resources[1].Namespace = "other"
	d := newDesk(t, receiver, secret, git("apps", "app", nil), git("other", "app", nil))
	d.NoCrossNamespaceRefs = true
	answer := d.send(receiver.Status.WebhookPath, accepted()[notificationv1.GenericReceiver])
	if got := d.requested(); answer.Code != 500 || !slices.Equal(got, []string{"GitRepository apps/app"}) {
		t.Errorf("%d, requested %v", answer.Code, got)
	}
}

// TestToken: a token that was replaced counts at once, the old one for a second at most, and
// neither costs a call for each request.
func TestToken(t *testing.T) {
	receiver, secret := receiverOf("hook", notificationv1.GitLabReceiver, named("GitRepository", "app"))
	d := newDesk(t, receiver, secret, git("apps", "app", nil))
	old := accepted()[notificationv1.GitLabReceiver]
	for range 10 {
		if answer := d.send(receiver.Status.WebhookPath, old); answer.Code != 200 {
			t.Fatalf("the token is refused: %s", answer.Body)
		}
	}
	if d.gets > 2 {
		t.Errorf("%d reads of the Secret for ten requests", d.gets)
	}
	secret.Data["token"] = []byte("next")
	if err := d.client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	receiver.Status.WebhookPath = receiver.GetWebhookPath("next")
	if err := d.client.Update(t.Context(), receiver); err != nil {
		t.Fatal(err)
	}
	receiver.Generation++ // as the API server does for a spec; of a Secret nobody tells
	next := delivery{header: http.Header{"X-Gitlab-Token": {"next"}}, body: []byte("{}")}
	d.now = d.now.Add(2 * time.Second)
	if answer := d.send(receiver.Status.WebhookPath, next); answer.Code != 200 {
		t.Errorf("the new token is refused: %d %s", answer.Code, answer.Body)
	}
	if answer := d.send(receiver.Status.WebhookPath, old); answer.Code != 400 {
		t.Errorf("the old token: %d %s", answer.Code, answer.Body)
	}
}

// TestForgedRequests: ten thousand forged requests of one sender cost next to nothing, and keep
// nobody else's push from being carried out.
func TestForgedRequests(t *testing.T) {
	receiver, secret := receiverOf("hook", notificationv1.GitHubReceiver, named("GitRepository", "app"))
	d := newDesk(t, receiver, secret, git("apps", "app", nil))
	good := accepted()[notificationv1.GitHubReceiver]
	bad := delivery{header: good.header, body: []byte(`{"forged":true}`)}
	from := func(address string) func(*http.Request) {
		return func(r *http.Request) { r.RemoteAddr = address + ":1" }
	}
	for i := range 10_000 {
		d.now = d.now.Add(time.Millisecond)
		d.send(receiver.Status.WebhookPath, bad, from("203.0.113.1"))
		if i%1000 == 500 {
			if answer := d.send(receiver.Status.WebhookPath, good, from("198.51.100.1")); answer.Code != 200 {
				t.Fatalf("a push beside them: %d %s", answer.Code, answer.Body)
			}
		}
	}
	if forged, limited := d.count(resultForged), d.count(resultLimited); forged > forgedBurst+10*forgedRate+5 || forged+limited != 10_000 {
		t.Errorf("%g were verified, %g refused before that", forged, limited)
	}
	if d.gets > 15 {
		t.Errorf("the Secret was read %d times", d.gets)
	}
	// From ten thousand addresses.
	for i := range 10_000 {
		d.send(receiver.Status.WebhookPath, bad, from(fmt.Sprintf("10.0.%d.%d", i/250, i%250)))
	}
	if n := len(d.forged.of); n > mostRemembered {
		t.Errorf("%d senders are remembered", n)
	}
	if got := d.requested(); len(got) != 10 {
		t.Errorf("requested: %v", got)
	}
}

// strangers know one more token of the issuer of a pipeline, which anybody can get there.
type strangers struct{ Identities }

func (s strangers) Claims(ctx context.Context, issuer, audience, token string) (map[string]any, error) {
	if strings.HasPrefix(token, "e30.") && strings.HasSuffix(token, ".c3RyYW5nZXI") {
		return map[string]any{"sub": "repo:stranger/app", "repository_owner": "stranger", "repository": "stranger/app"}, nil
	}
	return s.Identities.Claims(ctx, issuer, audience, token)
}

// TestStrangersAtPipeline: the path of a Receiver for pipelines can be guessed. What strangers are refused there keeps no push of the
// pipeline out that comes from the same Ingress, and what they cost is bounded.
func TestStrangersAtPipeline(t *testing.T) {
	unknown := strings.TrimSuffix(unsigned("https://ci.example"), "c2ln")
	for name, tc := range map[string]struct {
		reason, token string
		examined      int
	}{
		"NoToken":     {"none", "", 0},
		"NoJWT":       {"something else", "a", 0},
		"OtherIssuer": {"of an issuer of their own", unsigned("https://stranger.example"), 0},
		"Forged":      {"that the issuer did not sign", unknown + "Zm9yZ2Vk", 0},
		"Stranger":    {"of their own, by the same issuer", unknown + "c3RyYW5nZXI", forgedBurst + 10*forgedRate + 1},
	} {
		t.Run(name, func(t *testing.T) {
			receiver, secret := receiverOf("pipeline", notificationv1.GenericOIDCReceiver)
			d := newDesk(t, receiver, secret)
			noted := &owners{Runner: workers}
			d.verifier.workers, d.verifier.identities = noted, strangers{d.verifier.identities}
			good := accepted()[notificationv1.GenericOIDCReceiver]
			bad := delivery{header: http.Header{}, body: []byte("{}")}
			if tc.token != "" {
				bad.header.Set("Authorization", "Bearer "+tc.token)
			}
			pushes := 0
			for i := range 1000 {
				d.now = d.now.Add(10 * time.Millisecond)
				if answer := d.send(receiver.Status.WebhookPath, bad); answer.Code == 200 {
					t.Fatalf("%s: it is accepted", tc.reason)
				}
				if i%100 == 99 {
					pushes++
					if answer := d.send(receiver.Status.WebhookPath, good); answer.Code != 200 {
						t.Fatalf("%s: the pipeline after %d of them: %d %s", tc.reason, i+1, answer.Code, answer.Body)
					}
				}
			}
			if n := len(noted.of) - pushes; n > tc.examined {
				t.Errorf("%s: claims of strangers are examined %d times, want %d at most", tc.reason, n, tc.examined)
			}
		})
	}
}

// TestStream: a sender who has the token and does not stop is slowed down.
func TestStream(t *testing.T) {
	receiver, secret := receiverOf("hook", notificationv1.GenericReceiver)
	d := newDesk(t, receiver, secret)
	for range 1000 {
		d.now = d.now.Add(time.Millisecond)
		d.send(receiver.Status.WebhookPath, accepted()[notificationv1.GenericReceiver])
	}
	if n := d.count(resultAccepted); n < receiverBurst || n > receiverBurst+receiverRate+1 {
		t.Errorf("%g of a thousand in a second are accepted", n)
	}
}

// TestSlowSenders: those who send their bodies slowly hold a part of the places at most.
func TestSlowSenders(t *testing.T) {
	receiver, secret := receiverOf("hook", notificationv1.GitHubReceiver, named("GitRepository", "app"))
	d := newDesk(t, receiver, secret, git("apps", "app", nil))
	good := accepted()[notificationv1.GitHubReceiver]
	var slow sync.WaitGroup
	var ends []*io.PipeWriter
	begun := make(chan struct{}, 2*mostReading)
	for range 2 * mostReading {
		body, end := io.Pipe()
		ends = append(ends, end)
		slow.Go(func() {
			r := httptest.NewRequest(http.MethodPost, receiver.Status.WebhookPath, &noted{body, begun})
			r.RemoteAddr = "203.0.113.1:1"
			w := httptest.NewRecorder()
			d.ServeHTTP(w, r)
			if w.Code == http.StatusServiceUnavailable {
				begun <- struct{}{}
			}
		})
	}
	for range 2 * mostReading {
		<-begun
	}
	if answer := d.send(receiver.Status.WebhookPath, good, func(r *http.Request) { r.RemoteAddr = "198.51.100.1:1" }); answer.Code != 200 {
		t.Errorf("another sender: %d %s", answer.Code, answer.Body)
	}
	for _, end := range ends {
		_ = end.Close()
	}
	slow.Wait()
	if n := d.count(resultBusy); n != 2*mostReading-mostOfNamespace {
		t.Errorf("%g were turned away, want all but %d", n, mostOfNamespace)
	}
	if len(d.places.of) != 0 || len(d.places.all) != 0 || len(d.neighbors.of) != 0 {
		t.Errorf("places that nobody has are taken: %v, %d, %v", d.places.of, len(d.places.all), d.neighbors.of)
	}
}

// owners notes for whom workers do what.
type owners struct {
	worker.Runner
	of []string
}

func (o *owners) Run(ctx context.Context, job worker.Job) ([]byte, error) {
	o.of = append(o.of, job.Owner)
	return o.Runner.Run(ctx, job)
}

// TestOwnersOfExpressions: what the expressions of a Receiver cost is its own, as those of others wait for workers in turn with it.
func TestOwnersOfExpressions(t *testing.T) {
	hook, secret := receiverOf("hook", notificationv1.GitHubReceiver, named("GitRepository", "app"))
	hook.Spec.ResourceFilter = "true"
	pipeline, its := receiverOf("pipeline", notificationv1.GenericOIDCReceiver)
	d := newDesk(t, hook, secret, pipeline, its, git("apps", "app", nil))
	noted := &owners{Runner: workers}
	d.Workers, d.verifier.workers = noted, noted
	for _, r := range []*notificationv1.Receiver{hook, pipeline} {
		if answer := d.send(r.Status.WebhookPath, accepted()[r.Spec.Type]); answer.Code != 200 {
			t.Errorf("%s: %d %s", r.Name, answer.Code, answer.Body)
		}
	}
	if want := []string{"Receiver/apps/hook", "Receiver/apps/pipeline"}; !slices.Equal(noted.of, want) {
		t.Errorf("workers served %q, want %q", noted.of, want)
	}
}

// elsewhere puts a Receiver into another namespace.
func elsewhere(namespace string, r *notificationv1.Receiver, s *corev1.Secret) (*notificationv1.Receiver, *corev1.Secret) {
	r.Namespace, s.Namespace = namespace, namespace
	token := secretToken
	if r.Spec.SecretRef == nil {
		token = ""
	}
	r.Status.WebhookPath = r.GetWebhookPath(token)
	return r, s
}

// hanging are identities of which nobody gets an answer.
type hanging struct{ end chan struct{} }

func (h hanging) Claims(context.Context, string, string, string) (map[string]any, error) {
	<-h.end
	return nil, &UnavailableError{errors.New("no answer")}
}

// TestSlowIssuerOfAnother: whose issuers do not answer, or who sends bodies slowly, keeps pushes to Receivers of
// other namespaces from nothing, though all of them come from one Ingress.
func TestSlowIssuerOfAnother(t *testing.T) {
	for name, of := range map[string]string{"Issuer": notificationv1.GenericOIDCReceiver, "Google": notificationv1.GCRReceiver, "Body": notificationv1.GenericReceiver} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				receiver, secret := receiverOf("hook", notificationv1.GitHubReceiver, named("GitRepository", "app"))
				slow, its := receiverOf("slow", of)
				slow, its = elsewhere("evil", slow, its)
				d := newDesk(t, receiver, secret, slow, its, git("apps", "app", nil))
				end := make(chan struct{})
				d.verifier.identities = hanging{end}
				ingress := func(r *http.Request) { r.RemoteAddr = "203.0.113.1:1" }
				var requests sync.WaitGroup
				for range 2 * mostOfRemote {
					requests.Go(func() {
						d.send(slow.Status.WebhookPath, accepted()[of], ingress, func(r *http.Request) {
							if name == "Body" {
								r.Body = io.NopCloser(endless{end})
							}
						})
					})
				}
				synctest.Wait()
				if answer := d.send(receiver.Status.WebhookPath, accepted()[notificationv1.GitHubReceiver], ingress); answer.Code != 200 {
					t.Errorf("the push of another namespace: %d %s", answer.Code, answer.Body)
				}
				close(end)
				requests.Wait()
			})
		})
	}
}

// endless is a body that does not come.
type endless struct{ end chan struct{} }

func (e endless) Read([]byte) (int, error) {
	<-e.end
	return 0, io.EOF
}

// stuck is an API server that does not answer what is written in one namespace.
type stuck struct {
	request.Writer
	namespace string
}

func (s stuck) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if o.GetNamespace() != s.namespace {
		return s.Writer.Patch(ctx, o, p, opts...)
	}
	<-ctx.Done()
	return ctx.Err()
}

// TestSlowActionOfAnother: whose requests take long to be carried out keeps those of other namespaces from nothing.
func TestSlowActionOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		receiver, secret := receiverOf("hook", notificationv1.GitHubReceiver, named("GitRepository", "app"))
		slow, its := receiverOf("slow", notificationv1.GenericReceiver, named("GitRepository", "app"))
		slow, its = elsewhere("evil", slow, its)
		d := newDesk(t, receiver, secret, slow, its, git("apps", "app", nil), git("evil", "app", nil))
		d.Requests.Client = stuck{d, "evil"}
		var requests sync.WaitGroup
		for i := range mostActing {
			requests.Go(func() {
				d.send(slow.Status.WebhookPath, accepted()[notificationv1.GenericReceiver], func(r *http.Request) { r.RemoteAddr = fmt.Sprintf("203.0.113.%d:1", i) })
			})
		}
		synctest.Wait()
		begin := time.Now()
		answer := d.send(receiver.Status.WebhookPath, accepted()[notificationv1.GitHubReceiver])
		if took := time.Since(begin); answer.Code != 200 || took > time.Second {
			t.Errorf("the push of another namespace: %d %s, after %s", answer.Code, answer.Body, took)
		}
		requests.Wait()
	})
}

// leaving is an API server during whose first answer the sender leaves.
type leaving struct {
	request.Writer
	leave func()
}

func (l leaving) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	l.leave()
	return l.Writer.Patch(ctx, o, p, opts...)
}

// TestActionEnds: a request for many objects of an API server that does not answer ends. A sender who does not wait ends nothing.
func TestActionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := notificationv1.ReceiverResource{CrossNamespaceObjectReference: notificationv1.CrossNamespaceObjectReference{
			Kind: "GitRepository", Name: "*", MatchLabels: map[string]string{"team": "a"},
		}}
		receiver, secret := receiverOf("hook", notificationv1.GenericReceiver, all)
		objects := []client.Object{receiver, secret}
		for i := range 20 * mostWrites {
			objects = append(objects, git("apps", fmt.Sprint("app", i), map[string]string{"team": "a"}))
		}
		d := newDesk(t, objects...)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		n, err := d.request(gone, receiver, &verified{})
		if n == len(objects)-2 || err == nil {
			t.Errorf("%d objects are requested after the time for it, %v", n, err)
		}
		d.asked = nil
		leaves, cancel := context.WithCancel(t.Context())
		d.Requests.Client = leaving{d, cancel}
		if err := d.act(leaves, receiver, &verified{}); err != nil || len(d.requested()) != len(objects)-2 || leaves.Err() == nil {
			t.Errorf("a sender who leaves: %v", err)
		}
		d.Requests.Client = stuck{d, "apps"}
		begin := time.Now()
		if err := d.act(t.Context(), receiver, &verified{}); err == nil || time.Since(begin) > 3*actTime {
			t.Errorf("the request ends after %s: %v", time.Since(begin), err)
		}
	})
}

// noted tells that it is read.
type noted struct {
	io.Reader
	begun chan struct{}
}

func (n *noted) Read(p []byte) (int, error) {
	select {
	case n.begun <- struct{}{}:
	default:
	}
	return n.Reader.Read(p)
}

// TestRemotes: everybody has many addresses of IPv6.
func TestRemotes(t *testing.T) {
	for _, tc := range []struct {
		reason, a, b string
		same         bool
	}{
		{"another port", "192.0.2.1:1", "192.0.2.1:2", true},
		{"another address", "192.0.2.1:1", "192.0.2.2:1", false},
		{"one network", "[2001:db8::1]:1", "[2001:db8::ffff:2]:1", true},
		{"another network", "[2001:db8:0:1::1]:1", "[2001:db8:0:2::1]:1", false},
		{"IPv4 in IPv6", "[::ffff:192.0.2.1]:1", "192.0.2.1:1", true},
		{"no address", "@", "", true},
	} {
		if got := remoteOf(tc.a) == remoteOf(tc.b); got != tc.same {
			t.Errorf("%s: %t", tc.reason, got)
		}
	}
}

// TestBudgets: a table that is full of busy senders gives all others one budget.
func TestBudgets(t *testing.T) {
	now := time.Unix(0, 0)
	b := newBudgets[int](1, 2)
	for i := range mostRemembered {
		b.take(i, now)
	}
	for i := range 2 {
		if !b.left(mostRemembered+i, now) || !b.take(mostRemembered+i, now) {
			t.Errorf("sender %d gets nothing of the common budget", i)
		}
	}
	if b.take(-1, now) || b.left(-2, now) || !b.left(0, now) {
		t.Error("the common budget has no end, or those who are remembered have none")
	}
	if now = now.Add(time.Minute); !b.take(-1, now) || len(b.of) != 1 {
		t.Errorf("%d are remembered after a minute", len(b.of))
	}
}
