package children

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/proxy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/remote/record"
)

// blackHole is a server that accepts connections and says nothing. It ends with the test.
func blackHole(t *testing.T) (address string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		for _, c := range open {
			_ = c.Close()
		}
	})
	return l.Addr().String()
}

// hook has every write of a ConfigMap of namespace default wait for a webhook, whose
// certificate is signed by ca.
func (p *plane) hook(t *testing.T, url string, ca []byte) *admissionv1.ValidatingWebhookConfiguration {
	t.Helper()
	timeout, none := int32(30), admissionv1.SideEffectClassNone
	hook := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "waits"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "waits.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: &url, CABundle: ca}, TimeoutSeconds: &timeout, SideEffects: &none,
			AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "default"}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}
	if err := p.client.Create(t.Context(), hook); err != nil {
		t.Fatal(err)
	}
	return hook
}

// hooked has every write of a ConfigMap of namespace default wait for a webhook that says
// nothing.
func (p *plane) hooked(t *testing.T, address string) *admissionv1.ValidatingWebhookConfiguration {
	t.Helper()
	hook := p.hook(t, "https://"+address+"/", nil)
	// The API server takes it up a moment later.
	scenario.Eventually(t, scenario.Converge, "the webhook is called", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		probe := object("v1", "ConfigMap", "default", "probe")
		if err := p.client.Create(ctx, probe); err == nil {
			_ = p.client.Delete(ctx, probe)
			return fmt.Errorf("a ConfigMap was created")
		}
		return nil
	})
	return hook
}

// patch merges into a ConfigMap of namespace default.
func (p *plane) patch(t *testing.T, name string, change map[string]any) {
	t.Helper()
	text, err := json.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.client.Patch(t.Context(), object("v1", "ConfigMap", "default", name), client.RawPatch(types.MergePatchType, text)); err != nil {
		t.Fatal(err)
	}
}

// deadWebhook has a child whose admission webhook does not answer, beside one that is well.
func deadWebhook(h *hub, t *testing.T) {
	notes := func(version string) map[string]string {
		files := map[string]string{"well/note.yaml": noteNamed("note", "version", version)}
		for _, name := range []string{"a", "b", "c"} {
			files["sick/"+name+".yaml"] = noteNamed(name, "version", version)
		}
		return files
	}
	f := h.fleet(t, "webhook", notes("1"))
	planes := map[string]*plane{}
	for _, name := range []string{"sick", "well"} {
		planes[name] = h.plane(t, "hook-"+name)
		f.layer(t, name, name)
		f.declare(t, name)
		f.report(t, name, initialized)
		f.handOver(t, name, planes[name].issue(t).kubeconfig)
	}
	for name := range planes {
		f.ready(t, name, "")
	}
	sick := planes["sick"]
	hook := sick.hooked(t, blackHole(t))
	from := sick.now(t)
	began := time.Now()
	commit := func(t *testing.T, version string) {
		t.Helper()
		begin := time.Now()
		f.commit(t, notes(version))
		planes["well"].has(t, "note", "version", version)
		t.Logf("the child that is well had the commit after %.1f s", time.Since(begin).Seconds())
	}
	steps(t,
		step{"OthersGoOn", func(t *testing.T) { commit(t, "2") }},
		step{"StatusTells", func(t *testing.T) {
			f.says(t, "sick", v1alpha1.SeededCondition, v1alpha1.ReasonPushTimedOut, "layer sick", "webhook")
			if took := time.Since(began); took > time.Minute {
				t.Errorf("the status told after %s", took)
			}
			f.says(t, "sick", v1alpha1.ConnectedCondition, v1alpha1.ReasonSucceeded)
		}},
		step{"OthersGoOnAgain", func(t *testing.T) { commit(t, "3") }},
		check{"TriedNowAndThen", func(t *testing.T) {
			patches := 0
			for _, e := range sick.byParent(t, from) {
				if e.Verb == "patch" && e.ObjectRef.Namespace == "default" {
					patches++
				}
			}
			// One object of three at each commit, and after 10, 20 and 40 seconds.
			if most := 3 + int(time.Since(began)/(10*time.Second)); patches > most {
				t.Errorf("the child whose webhook is dead was asked to apply %d times in %s, want %d at most", patches, time.Since(began), most)
			}
			t.Logf("%d applies in %.0f s", patches, time.Since(began).Seconds())
		}},
		step{"RepairedGoesOnAtOnce", func(t *testing.T) {
			if err := sick.client.Delete(t.Context(), hook); err != nil {
				t.Fatal(err)
			}
			sha := f.commit(t, notes("4"))
			f.ready(t, "sick", sha)
			sick.has(t, "c", "version", "4")
		}},
	)
}

// swept are the requests for ConfigMaps of namespace default, until there were so many
// lists of them.
func (p *plane) swept(t *testing.T, from int64, lists int) (asked map[string]int, events []stage.AuditEvent) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge+time.Duration(lists)*sweepInterval, "the layers are compared", func(context.Context) error {
		asked, events = map[string]int{}, nil
		for _, e := range p.requests(t, from) {
			if e.ObjectRef.Resource == "configmaps" && e.ObjectRef.Namespace == "default" {
				asked[e.Verb]++
				events = append(events, e)
			}
		}
		if asked["list"] < lists {
			return fmt.Errorf("requests are %v", asked)
		}
		return nil
	})
	return asked, events
}

// failingLists are hooks of a proxy in front of an API server whose store has an outage when
// objects are listed.
type failingLists struct{ failed atomic.Int32 }

func (l *failingLists) Before(r *proxy.Request) http.Handler {
	if r.Verb != "list" || r.Namespace != "default" {
		return nil
	}
	l.failed.Add(1)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the store has an outage", http.StatusInternalServerError)
	})
}

func (l *failingLists) After(*proxy.Request, *http.Response) error { return nil }

// sweepInterval of the layers of sweepByLists, which is below that of observation.
const sweepInterval = 6 * time.Second

// sweepByLists counts what a child is asked when its layers are compared with it.
func sweepByLists(h *hub, t *testing.T) {
	const interval = sweepInterval
	files := map[string]string{}
	for _, layer := range []string{"one", "two"} {
		for i := range 5 {
			name := fmt.Sprint(layer, i)
			files[layer+"/"+name+".yaml"] = noteNamed(name, "by", "git")
		}
	}
	f := h.fleet(t, "sweep", files)
	p := h.plane(t, "sweep")
	f.layer(t, "one", "c", "interval: "+interval.String())
	f.layer(t, "two", "c", "interval: "+interval.String())
	f.declare(t, "c")
	f.report(t, "c", initialized)
	way, err := proxy.Start(p.issue(t).kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(way.Close)
	kubeconfig, err := way.Kubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	f.handOver(t, "c", kubeconfig)
	f.ready(t, "c", "")
	drift := func(t *testing.T) {
		t.Helper()
		p.patch(t, "two3", map[string]any{"data": map[string]any{"by": "hand"}})
	}
	steps(t,
		step{"OneListForAllLayers", func(t *testing.T) {
			asked, events := p.swept(t, p.now(t), 4)
			if len(asked) != 1 {
				t.Errorf("requests for ConfigMaps are %v, want lists only", asked)
			}
			passed := events[len(events)-1].Received.Sub(events[0].Received)
			if want := int(passed/interval) + 1; asked["list"] > want+1 {
				t.Errorf("%d lists in %s, want one for both layers each %s", asked["list"], passed, interval)
			}
			t.Logf("%v in %s", asked, passed)
		}},
		step{"NoRecordIsRead", func(t *testing.T) {
			from := p.now(t)
			p.swept(t, from, 3)
			for _, e := range p.requests(t, from) {
				if e.ObjectRef.Resource == "configmaps" && e.ObjectRef.Namespace == v1alpha1.AgentNamespace && e.Verb != "list" {
					t.Errorf("%s of ConfigMap %s: nobody wrote to the record, which a list of its metadata tells", e.Verb, e.ObjectRef.Name)
				}
			}
		}},
		step{"ListThatFails", func(t *testing.T) {
			// What a commit changed in part has no seal: the lists are made while it is compared.
			f.commit(t, map[string]string{"two/two0.yaml": noteNamed("two0", "by", "git", "commit", "one")})
			p.has(t, "two0", "commit", "one")
			f.ready(t, "c", "")
			from := p.now(t)
			failing := &failingLists{}
			way.Use(failing)
			scenario.Eventually(t, scenario.Converge+interval, "the lists of both layers fail", func(context.Context) error {
				// One finds its seal broken by it, the other asks for each of its objects.
				if n := failing.failed.Load(); n <= 2 {
					return fmt.Errorf("%d were asked for", n)
				}
				return nil
			})
			way.Use(nil)
			f.ready(t, "c", "")
			if asked, _ := p.swept(t, from, 5); asked["patch"] != 0 {
				t.Errorf("requests for ConfigMaps are %v: nobody changed them, and all were applied again", asked)
			}
		}},
		step{"RecordOfAnother", func(t *testing.T) {
			// Another management cluster took the child over, and nothing else changed.
			name := record.Name(types.NamespacedName{Namespace: f.name, Name: "one"})
			cm := &corev1.ConfigMap{}
			if err := p.client.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.AgentNamespace, Name: name}, cm); err != nil {
				t.Fatal(err)
			}
			before := cm.Data["record.json"]
			said := f.keep(t)
			cm.Data["record.json"] = regexp.MustCompile(`"holder": "[^"]*"`).ReplaceAllString(before, `"holder": "another"`)
			if err := p.client.Update(t.Context(), cm); err != nil {
				t.Fatal(err)
			}
			f.says(t, "c", v1alpha1.SeededCondition, v1alpha1.ReasonSuperseded, "another")
			// Nor is it this tier's again because a run found nothing to do, or because it is compared.
			for range 3 {
				f.reconciled(t, "c")
			}
			p.swept(t, p.now(t), 2)
			said.staysSuperseded(t, "one")
			cm.Data["record.json"] = before
			if err := p.client.Update(t.Context(), cm); err != nil {
				t.Fatal(err)
			}
			f.ready(t, "c", "")
		}},
		step{"OneApplyForOneDrift", func(t *testing.T) {
			from := p.now(t)
			drift(t)
			p.has(t, "two3", "by", "git")
			if asked, _ := p.swept(t, from, 2); asked["get"] > 1 || asked["patch"] != 1 {
				t.Errorf("requests for ConfigMaps are %v, want one apply", asked)
			}
		}},
		step{"DeletedComesBack", func(t *testing.T) {
			if err := p.client.Delete(t.Context(), object("v1", "ConfigMap", "default", "one1")); err != nil {
				t.Fatal(err)
			}
			p.has(t, "one1", "by", "git")
		}},
		step{"LabelComesBack", func(t *testing.T) {
			from := p.now(t)
			p.patch(t, "one2", map[string]any{"metadata": map[string]any{"labels": map[string]any{v1alpha1.LayerLabelGroup + "/name": nil}}})
			scenario.Eventually(t, scenario.Converge, "the label is there", func(ctx context.Context) error {
				for _, e := range p.byParent(t, from) {
					if e.Verb == "patch" && e.ObjectRef.Name == "one2" {
						return nil
					}
				}
				return fmt.Errorf("it was not applied")
			})
		}},
		step{"CommitsDoNotPutItOff", func(t *testing.T) {
			drift(t)
			begin := time.Now()
			for i := 0; ; i++ {
				f.commit(t, map[string]string{"two/two0.yaml": noteNamed("two0", "by", "git", "commit", fmt.Sprint(i))})
				p.has(t, "two0", "commit", fmt.Sprint(i))
				if got, err := p.value(t.Context(), "two3", "by"); err != nil {
					t.Fatal(err)
				} else if got == "git" {
					t.Logf("corrected after %.0f s and %d commits", time.Since(begin).Seconds(), i+1)
					return
				}
				if time.Since(begin) > 5*interval {
					t.Fatalf("not corrected within %s and %d commits", time.Since(begin), i+1)
				}
			}
		}},
	)
}
