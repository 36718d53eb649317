package browser

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"golang.org/x/sync/errgroup"
	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/testbed"
)

const (
	shaOne = "main@sha1:1111111111111111111111111111111111111111"
	shaTwo = "main@sha1:2222222222222222222222222222222222222222"
	// evil is text that a page must show, and a browser must not obey.
	evil = `"><script>alert(1)</script><img src=x onerror=alert(2)>`
	// mostBytes of a page.
	mostBytes = 200_000
)

// tier is an API server without controllers: what an agent would write, the test does.
type tier struct {
	*scenario.APIServer
	client.Client
}

func start(t *testing.T) *tier {
	t.Helper()
	s := scenario.StartAPIServer(t)
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), sourcev1.AddToScheme(scheme), kustomizev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(s.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	p := &tier{s, cl}
	p.define(t)
	p.threeTiers(t)
	return p
}

// TestPages: the pages in a real browser, about three tiers, and about one with a thousand
// children.
func TestPages(t *testing.T) {
	scenario.Alongside(t)
	p := start(t)
	b, root := startBrowser(t), p.web(t)
	pages := []struct {
		name, path, says string
		// of is what it says of a thousand, if that is something else.
		of string
	}{
		{"fleet", "", "fleet/production", ""},
		{"why", "why", "GitRepository/fleet/source", "cannot build"},
		{"why-cluster", "why?path=fleet%2Fproduction%3Etenants%2Fshop", "BuildFailed", ""},
		{"objects", "objects", "fleet/source", ""},
		{"commits", "commits", "production", "environment-00"},
		{"rollouts", "rollouts", "canary", ""},
		{"held", "held", "cascade approve prune", ""},
		{"cluster", "cluster?path=fleet%2Fproduction", "tenants/shop", ""},
	}
	for _, c := range pages {
		t.Run("ThreeTiers/"+c.name, func(t *testing.T) { b.check(t, root, c.name, c.path, c.says) })
	}
	t.Run("Live", func(t *testing.T) { p.live(t, b, root) })
	p.thousand(t)
	for _, c := range pages {
		t.Run("Thousand/"+c.name, func(t *testing.T) {
			began := time.Now()
			answer, err := get(t.Context(), http.DefaultClient, root+c.path, "")
			if err != nil || answer.status != http.StatusOK || len(answer.body) > mostBytes {
				t.Fatalf("%d, %d bytes, %v", answer.status, len(answer.body), err)
			}
			t.Logf("%d bytes, the first after %s, the last after %s", len(answer.body), answer.first.Sub(began), time.Since(began))
			b.check(t, root, "thousand-"+c.name, c.path, cmp.Or(c.of, c.says))
		})
	}
}

var moving = regexp.MustCompile(`(?s)<time[^>]*>.*?</time>`)

// check opens a page: nothing but its own server is asked, text is text, it is the same
// without scripts, and nothing serious hinders anybody, in the light and in the dark.
func (b *browser) check(t *testing.T, root, name, path, says string) {
	b.noted()
	b.open(t, root+path)
	with := b.text(t)
	if !strings.Contains(with, says) {
		t.Errorf("it does not say %q:\n%.3000s", says, with)
	}
	if found := evaluate[int](t, b, `document.querySelectorAll("main img, main script, main iframe, main style").length`); found != 0 {
		t.Errorf("text of others made %d elements", found)
	}
	for _, scheme := range []string{"light", "dark"} {
		b.colours(t, scheme)
		for _, h := range b.hindrances(t) {
			t.Errorf("%s: %s", scheme, h)
		}
		b.picture(t, name+"-"+scheme)
	}
	b.scripts(t, false)
	b.open(t, root+path)
	without := b.text(t)
	b.scripts(t, true)
	if moving.ReplaceAllString(with, "") != moving.ReplaceAllString(without, "") {
		t.Errorf("without scripts it is another one:\n%.3000s", without)
	}
	requests, dialogs := b.noted()
	if len(requests) < 4 {
		t.Errorf("requests are not seen: %q", requests)
	}
	for _, url := range requests {
		if !strings.HasPrefix(url, root) {
			t.Errorf("a request leaves the server: %s", url)
		}
	}
	if len(dialogs) != 0 {
		t.Errorf("text of others runs: %q", dialogs)
	}
}

// web runs cascade web, and returns its address.
func (p *tier) web(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), scenario.Path(t, "bin", "cascade"), "web", "--kubeconfig", p.Kubeconfig)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // by the end of the context
	line, err := bufio.NewReader(out).ReadString('\n')
	_, address, found := strings.Cut(strings.TrimSpace(line), "http://")
	if err != nil || !found {
		t.Fatalf("cascade web says %q, %v", line, err)
	}
	return "http://" + address
}

// live: a change of a Child is on the page, and the page is the same document.
func (p *tier) live(t *testing.T, b *browser, root string) {
	b.open(t, root)
	evaluate[bool](t, b, "window.before = true")
	child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "lab"}}
	if err := p.Get(t.Context(), client.ObjectKeyFromObject(child), child); err != nil {
		t.Fatal(err)
	}
	child.Status.Conditions = condition(metav1.ConditionFalse, v1alpha1.ReasonUnreachable, "news of the lab")
	if err := p.Status().Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, scenario.Converge, "the change is on the page", func(context.Context) error {
		if !strings.Contains(b.text(t), "news of the lab") {
			return errors.New("it is as it was")
		}
		return nil
	})
	if !evaluate[bool](t, b, "window.before === true") {
		t.Error("the page was loaded again")
	}
}

// TestRights: the agent shows the pages to who may list what they are made of, and tells
// others nothing.
func TestRights(t *testing.T) {
	scenario.Alongside(t)
	p := start(t)
	address, err := testbed.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	health, err := testbed.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(scenario.Path(t, "bin", "cascade"), "agent", "--metrics-addr=0", "--health-addr="+health, "--enable-leader-election=false",
		"--storage-path="+t.TempDir(), "--web-addr="+address)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.Kubeconfig)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // by the signal
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s", text[max(0, len(text)-4000):])
		}
	})
	reader := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "pages"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"cascade.dev", "kustomize.toolkit.fluxcd.io", "helm.toolkit.fluxcd.io"}, Resources: []string{"*"}, Verbs: []string{"list"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "pages"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "pages"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "fleet", Name: "reader"}}}
	tokens := map[string]string{}
	for _, name := range []string{"reader", "nobody"} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}
		if err := p.Create(t.Context(), account); err != nil {
			t.Fatal(err)
		}
		request := &authnv1.TokenRequest{}
		if err := p.SubResource("token").Create(t.Context(), account, request); err != nil {
			t.Fatal(err)
		}
		tokens[name] = request.Status.Token
	}
	for _, o := range []client.Object{reader, binding} {
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	// The certificate is one that nobody signed.
	trusting := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	scenario.Eventually(t, scenario.Converge, "the reader sees the pages", func(ctx context.Context) error {
		answer, err := get(ctx, trusting, "https://"+address+"/", tokens["reader"])
		if err == nil && (answer.status != http.StatusOK || !strings.Contains(answer.body, "fleet/production")) {
			err = fmt.Errorf("%d: %.500s", answer.status, answer.body)
		}
		return err
	})
	for _, path := range []string{"", "why", "objects", "commits", "rollouts", "held", "cluster?path=fleet%2Fproduction", "why?path=fleet%2Fnone", "live?of=fleet"} {
		for who, status := range map[string]int{"nobody": http.StatusForbidden, "": http.StatusUnauthorized} {
			answer, err := get(t.Context(), trusting, "https://"+address+"/"+path, tokens[who])
			if err != nil || answer.status != status {
				t.Errorf("%q as %q: %d, %v", path, who, answer.status, err)
			}
			for _, secret := range []string{"production", "staging", "fleet/lab", "shop", "canary", shaTwo[10:18]} {
				if strings.Contains(answer.body, secret) {
					t.Errorf("%q as %q names %s", path, who, secret)
				}
			}
		}
	}
}

// answer of a server.
type answer struct {
	status int
	body   string
	first  time.Time
}

func get(ctx context.Context, c *http.Client, url, token string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return answer{}, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.Do(r)
	if err != nil {
		return answer{}, err
	}
	first := time.Now()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, string(text), first}, errors.Join(err, response.Body.Close())
}

// define adds the kinds, and waits until they are served.
func (p *tier) define(t *testing.T) {
	t.Helper()
	crds, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range crds {
		if err := p.Create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	scenario.Eventually(t, scenario.Converge, "the kinds are served", func(ctx context.Context) error {
		for _, name := range []string{"fleet", v1alpha1.AgentNamespace} {
			if err := p.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
		}
		var err error
		for _, list := range []client.ObjectList{&v1alpha1.ChildList{}, &v1alpha1.LayerList{}, &v1alpha1.RolloutList{}, &kustomizev1.KustomizationList{}, &sourcev1.GitRepositoryList{}} {
			err = errors.Join(err, p.List(ctx, list))
		}
		return err
	})
}

func condition(status metav1.ConditionStatus, reason, message string) []metav1.Condition {
	return []metav1.Condition{
		{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSucceeded, LastTransitionTime: ago(time.Hour)},
		{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, Message: message, LastTransitionTime: ago(time.Hour)},
	}
}

func ago(d time.Duration) metav1.Time {
	return metav1.NewTime(time.Now().Add(-d).Truncate(time.Second))
}

// write creates an object and its status.
func (p *tier) write(ctx context.Context, o client.Object, status func()) error {
	if err := p.Create(ctx, o); err != nil {
		return err
	}
	status()
	return p.Status().Update(ctx, o)
}

func child(name string) *v1alpha1.Child {
	c := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name, Labels: map[string]string{"environment": "production", v1alpha1.OwnerLabel: "retail"}}}
	c.Spec.InCluster = true
	return c
}

// threeTiers is a tier with three masters, of which one has tenants.
func (p *tier) threeTiers(t *testing.T) {
	t.Helper()
	source := &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "source"}}
	source.Spec.URL, source.Spec.Interval = "https://127.0.0.1:1/fleet.git", metav1.Duration{Duration: time.Hour}
	layer := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base"}}
	layer.Spec.ClusterSelector.MatchLabels = map[string]string{"environment": "none"}
	layer.Spec.Interval = metav1.Duration{Duration: 10 * time.Minute}
	rollout := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base"}}
	rollout.Spec.Moves.LayerRef = &v1alpha1.LayerReference{Name: "base"}
	rollout.Spec.Waves = []v1alpha1.RolloutWave{
		{Name: "canary", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"canary": "true"}}, MaxConcurrent: intstr.FromInt32(1)},
		{Name: "rest", Approval: v1alpha1.ApprovalRequired, MaxConcurrent: intstr.FromInt32(2)},
	}
	production, staging, lab := child("production"), child("staging"), child("lab")
	err := errors.Join(
		p.write(t.Context(), source, func() {
			source.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse, Reason: "AuthenticationFailed", Message: evil, LastTransitionTime: ago(time.Hour)}}
		}),
		p.write(t.Context(), layer, func() {
			layer.Status.Revision = shaTwo
			layer.Status.Conditions = condition(metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady, evil)[1:]
		}),
		p.write(t.Context(), rollout, func() {
			rollout.Status.Run = &v1alpha1.RolloutRun{
				Number: 4, RolloutRevision: v1alpha1.RolloutRevision{Revision: shaTwo}, Phase: v1alpha1.RolloutProgressing,
				Terms: v1alpha1.RolloutTerms{Waves: rollout.Spec.Waves}, Wave: 1, Began: ago(time.Hour), Since: ago(time.Hour),
			}
			rollout.Status.Clusters = v1alpha1.RolloutCounts{Total: 3, Updated: 1, Updating: 1, Failed: 1}
			rollout.Status.Waves = []v1alpha1.RolloutWaveStatus{
				{Name: "canary", RolloutCounts: v1alpha1.RolloutCounts{Total: 1, Updated: 1}}, {Name: "rest", RolloutCounts: v1alpha1.RolloutCounts{Total: 2, Updating: 1, Failed: 1}},
			}
			rollout.Status.Failing = []v1alpha1.Failure{{Name: "lab", Reason: v1alpha1.ReasonDeadlineExceeded, Message: evil}}
			rollout.Status.Conditions = condition(metav1.ConditionFalse, v1alpha1.ReasonAwaitingApproval, evil)[1:]
		}),
		p.write(t.Context(), production, func() {
			production.Status.Conditions = condition(metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady, evil)
			production.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Revision: shaTwo, LastAttemptedRevision: shaTwo, Ready: true, Reason: v1alpha1.ReasonSucceeded, Since: ago(time.Hour), Objects: 12}}
			production.Status.Version, production.Status.Provider, production.Status.Region = "v1.36.3", "aws", "eu-west-1"
			production.Status.Report = &v1alpha1.Report{
				Agent: "v1.4.0", Revision: shaOne, Reason: v1alpha1.ReasonChildrenNotReady, Message: evil, Since: ago(time.Hour), Objects: 40,
				Children: &v1alpha1.ReportCounts{Total: 2, Ready: 1},
				Tiers: []v1alpha1.TierRow{
					{Path: "tenants/bank", Revision: shaTwo, Ready: true, Reason: v1alpha1.ReasonSucceeded, Since: ago(time.Hour), Owner: evil},
					{Path: "tenants/shop", Revision: evil, Reason: v1alpha1.ReasonBuildFailed, Message: evil, Since: ago(time.Hour)},
				},
			}
		}),
		p.write(t.Context(), staging, func() {
			staging.Status.Conditions = condition(metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "")
			heard := ago(25 * time.Minute)
			staging.Status.HeardAt = &heard
			staging.Status.Report = &v1alpha1.Report{Revision: shaTwo, Ready: true, Reason: v1alpha1.ReasonSucceeded, Since: ago(time.Hour)}
		}),
		p.write(t.Context(), lab, func() {
			lab.Status.Conditions = condition(metav1.ConditionFalse, v1alpha1.ReasonPruneBlocked, "14 of 20 objects would be deleted")
			lab.Status.Layers = []v1alpha1.ChildLayer{{
				Name: "base", Revision: shaOne, LastAttemptedRevision: shaTwo, Reason: v1alpha1.ReasonPruneBlocked, Message: "14 of 20 objects would be deleted",
				Since: ago(time.Hour), Held: &v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: "0123abcd", Deletes: 14}},
			}}
		}))
	if err != nil {
		t.Fatal(err)
	}
	own, err := json.Marshal(&v1alpha1.Report{
		Agent: "v1.4.0", Revision: shaTwo, Reason: v1alpha1.ReasonKustomizationFailing, Message: evil, Since: ago(time.Hour),
		Failing: []v1alpha1.Failure{{Name: "GitRepository/fleet/source", Reason: "AuthenticationFailed", Message: evil}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.ReportConfigMap}, Data: map[string]string{v1alpha1.ReportKey: string(own)}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "one"}, Type: corev1.EventTypeWarning, Reason: "ChildrenNotReady", Message: evil, LastTimestamp: metav1.Now(),
			InvolvedObject: corev1.ObjectReference{Kind: "Child", Namespace: "fleet", Name: "production"}},
	} {
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// thousand adds children until there are a thousand: 300 of them fail at one commit.
func (p *tier) thousand(t *testing.T) {
	t.Helper()
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(16)
	for i := range 997 {
		g.Go(func() error {
			c := child(fmt.Sprintf("child-%04d", i))
			c.Labels["environment"] = fmt.Sprintf("environment-%02d", i%20)
			return p.write(ctx, c, func() {
				c.Status.Conditions = condition(metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "")
				c.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Revision: shaTwo, LastAttemptedRevision: shaTwo, Ready: true, Reason: v1alpha1.ReasonSucceeded, Since: ago(time.Hour)}}
				if i < 300 {
					c.Status.Conditions = condition(metav1.ConditionFalse, v1alpha1.ReasonBuildFailed, "layer base: cannot build")
					c.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Revision: shaOne, LastAttemptedRevision: shaTwo, Reason: v1alpha1.ReasonBuildFailed, Message: "cannot build", Since: ago(time.Hour)}}
				}
			})
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}
