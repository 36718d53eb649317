package children

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// environment is a master with tenants, whose metrics are scraped through its agent.
type environment struct {
	*fleet
	tenants map[string]*plane
	// scraper may scrape all tenants, team those of one child, nobody none.
	scraper, team, nobody string
	// seen are the headers that an endpoint of a tenant got last, and sent the bytes that the
	// endless one got rid of.
	mu   sync.Mutex
	seen http.Header
	sent atomic.Int64
	// agentPort is where the agent of tenant a serves metrics.
	agentPort string
}

// TestEnvironmentServices: a real Prometheus finds and scrapes the tenants of a master by one
// block of its configuration, through the master's agent, with nothing of a tenant's
// credentials.
func TestEnvironmentServices(t *testing.T) {
	scenario.Alongside(t)
	e := &environment{tenants: map[string]*plane{}}
	h := openHub(t)
	h.installAll(t, "v1beta2")
	at := address(t)
	listener, err := net.Listen("tcp", net.JoinHostPort(at, "0"))
	if err != nil {
		t.Fatal(err)
	}
	_, e.agentPort, _ = net.SplitHostPort(listener.Addr().String())
	serveOn(t, listener, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, `cascade_build_info{version="tenant"} 1`)
	})
	h.agent, err = h.tier.StartAgentWith(t.Context(), stage.AgentOptions{Guarded: true, Flags: []string{
		"--child-endpoints=agent:" + e.agentPort + ",app=default/app:http/metrics,hangs=default/hangs:http/metrics,endless=default/endless:http/metrics,away=default/away:http/metrics",
	}})
	if err != nil {
		t.Fatal(err)
	}
	e.fleet = h.fleet(t, "production", map[string]string{"app/note.yaml": noteNamed("note", "version", "1")})
	e.define(t, "apiVersion: cascade.dev/v1alpha1\nkind: Layer\nmetadata:\n  name: app\nspec:\n  clusterSelector: {matchExpressions: [{key: cluster, operator: Exists}]}\n"+
		"  sourceRef: {kind: GitRepository, name: fleet}\n  path: ./app\n")
	for _, name := range []string{"a", "b", "dead"} {
		e.tenant(t, name, at)
	}
	e.scraper = e.user(t, "prometheus", "/sd/children", "/children/*")
	e.team = e.user(t, "team", "/children/production/a/*")
	e.nobody = e.user(t, "nobody")
	steps(t,
		step{"Permitted", e.permitted},
		check{"Refused", e.refused},
		check{"NothingPassesDownOrUp", e.nothingPasses},
		step{"Prometheus", e.prometheus},
		check{"EndpointThatHangs", e.hanging},
		check{"EndlessAnswer", e.endless},
		check{"Redirect", e.redirect},
		step{"RightTakenAway", e.rightTakenAway},
		step{"DeadChild", e.deadChild},
	)
}

// address is one of this machine that API servers proxy to: they refuse loopback.
func address(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	t.Fatal("the machine has no address besides loopback, to which API servers proxy nothing: give it one, on a dummy interface for instance")
	return ""
}

func serveOn(t *testing.T, l net.Listener, handler http.HandlerFunc) {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
}

// tenant makes a cluster with Services, behind each of which is a server of the test.
func (e *environment) tenant(t *testing.T, name, at string) {
	t.Helper()
	p := e.plane(t, "tenant-"+name)
	e.tenants[name] = p
	for service, handler := range map[string]http.HandlerFunc{
		"app": func(w http.ResponseWriter, r *http.Request) {
			e.mu.Lock()
			e.seen = r.Header.Clone()
			e.seen.Set("Asked", r.URL.String())
			e.mu.Unlock()
			w.Header().Set("Set-Cookie", "session=tenant")
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, "tenant_requests_total{cluster=%q} 7\n", name)
		},
		"hangs": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			line := []byte(strings.Repeat("# endless\n", 1<<10))
			for total := 0; total < 1<<30; total += len(line) {
				n, err := w.Write(line)
				e.sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		},
		"away": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://192.0.2.1/secret", http.StatusFound)
		},
	} {
		l, err := net.Listen("tcp", net.JoinHostPort(at, "0"))
		if err != nil {
			t.Fatal(err)
		}
		serveOn(t, l, handler)
		_, port, _ := net.SplitHostPort(l.Addr().String())
		expose(t, p.client, service, at, port)
	}
	e.declare(t, name)
	e.patch(t, object("cluster.x-k8s.io/v1beta2", "Cluster", e.name, name), map[string]any{"metadata": map[string]any{"labels": map[string]any{"environment": "production", "cascade.dev/owner": "payments"}}})
	e.report(t, name, initialized)
	e.handOver(t, name, p.issue(t).kubeconfig)
}

// expose makes a Service of a cluster without controllers lead to an address.
func expose(t *testing.T, c client.Client, name, at, port string) {
	t.Helper()
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}
	slice := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}}
	for _, o := range []client.Object{
		&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}},
		&corev1.Endpoints{ObjectMeta: meta, Subsets: []corev1.EndpointSubset{{ //nolint:staticcheck // API servers of this version find Services so
			Addresses: []corev1.EndpointAddress{{IP: at}}, Ports: []corev1.EndpointPort{{Name: "http", Port: int32(number)}},
		}}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: slice, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{at}}},
			Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(number))}},
		},
	} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatalf("cannot create Service %s: %v", name, err)
		}
	}
}

// user is the token of an account of the hub that may get these paths.
func (e *environment) user(t *testing.T, name string, paths ...string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: e.name, Name: name}}
	objects := []client.Object{account}
	if len(paths) > 0 {
		objects = append(objects,
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: paths, Verbs: []string{"get"}}}},
			&rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
				Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: e.name, Name: name}},
			})
	}
	for _, o := range objects {
		if err := e.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	request := &authenticationv1.TokenRequest{}
	if err := e.client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// answered is what the agent answered.
type answered struct {
	status int
	body   string
	header http.Header
	// cut is why the body broke off.
	cut error
}

// ask asks the agent for a path.
func (e *environment) ask(ctx context.Context, method, path, token string, header ...string) (answered, error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, method, "https://"+e.agent.Metrics()+path, nil)
	if err != nil {
		return answered{}, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return answered{}, err
	}
	body, cut := io.ReadAll(response.Body)
	return answered{response.StatusCode, string(body), response.Header, cut}, response.Body.Close()
}

// asked fails the test unless the agent answers with a status.
func (e *environment) asked(t *testing.T, status int, method, path, token string, header ...string) answered {
	t.Helper()
	got, err := e.ask(t.Context(), method, path, token, header...)
	if err != nil || got.status != status {
		t.Errorf("%s %s: %d %q, %v, want %d", method, path, got.status, got.body[:min(len(got.body), 200)], err, status)
	}
	return got
}

// permitted: when a tenant has its layers, the parent has got the right to scrape it, by the
// name of each Service.
func (e *environment) permitted(t *testing.T) {
	for name := range e.tenants {
		e.ready(t, name, "")
		scenario.Eventually(t, scenario.Converge, "tenant "+name+" can be scraped", func(ctx context.Context) error {
			got, err := e.ask(ctx, "GET", "/children/production/"+name+"/app", e.scraper)
			if err == nil && got.status != http.StatusOK {
				err = fmt.Errorf("%d %s", got.status, got.body)
			}
			return err
		})
	}
	role := &rbacv1.ClusterRole{}
	if err := e.tenants["a"].client.Get(t.Context(), client.ObjectKey{Name: "cascade-parent.metrics"}, role); err != nil {
		t.Fatal(err)
	}
	if r := role.Rules; len(r) != 1 || !slices.Equal(r[0].Resources, []string{"services/proxy"}) || !slices.Equal(r[0].Verbs, []string{"get"}) || len(r[0].ResourceNames) != 4 {
		t.Errorf("the parent has got %v", r)
	}
	// The agent of a tenant is the pod that leads it.
	holder, p := "cascade-0", e.tenants["a"].client
	at := address(t)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: holder},
		Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "manager", Image: "cascade"}}},
	}
	lease := object("coordination.k8s.io/v1", "Lease", v1alpha1.AgentNamespace, v1alpha1.LeaderLease)
	lease.Object["spec"] = map[string]any{"holderIdentity": holder}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: "default"}}
	for _, o := range []client.Object{account, pod, lease} {
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	pod.Status.PodIP, pod.Status.PodIPs = at, []corev1.PodIP{{IP: at}}
	if err := p.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if got := e.asked(t, http.StatusOK, "GET", "/children/production/a/agent", e.scraper); !strings.Contains(got.body, "cascade_build_info") {
		t.Errorf("the agent of tenant a says %q", got.body)
	}
	for _, event := range e.tenants["a"].requests(t, 0) {
		if strings.Contains(event.RequestURI, "/proxy/") && event.User.Username != parentUser {
			t.Errorf("%s was scraped as %s", event.RequestURI, event.User.Username)
		}
	}
}

// refused: nobody scrapes without the right, and nothing but what is configured.
func (e *environment) refused(t *testing.T) {
	for _, path := range []string{"/sd/children", "/children/production/a/app", "/metrics"} {
		e.asked(t, http.StatusUnauthorized, "GET", path, "")
		e.asked(t, http.StatusUnauthorized, "GET", path, "no.such.token")
		e.asked(t, http.StatusForbidden, "GET", path, e.nobody)
	}
	e.asked(t, http.StatusOK, "GET", "/children/production/a/app", e.team)
	for _, path := range []string{"/children/production/b/app", "/sd/children", "/children/", "/children/production/"} {
		e.asked(t, http.StatusForbidden, "GET", path, e.team)
	}
	e.asked(t, http.StatusForbidden, "POST", "/children/production/a/app", e.scraper)
	for _, path := range []string{
		"/children/production/a/secrets", "/children/production/a/app/..", "/children/production/none/app", "/children/production/a%2Fapp", "/children/production/a/app%2F..%2F..%2Fapi",
	} {
		if got, err := e.ask(t.Context(), "GET", path, e.scraper); err != nil || got.status == http.StatusOK {
			t.Errorf("%s: %d %q, %v", path, got.status, got.body, err)
		}
	}
}

// nothingPasses: neither what the scraper sent nor what the tenant answered besides metrics.
func (e *environment) nothingPasses(t *testing.T) {
	got := e.asked(t, http.StatusOK, "GET", "/children/production/a/app?module=/etc/passwd", e.scraper, "Cookie", "mine", "X-Forwarded-User", "admin", "Impersonate-User", "admin", "X-Mine", "mine")
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, values := range e.seen {
		text := strings.Join(values, " ")
		if strings.Contains(text, "mine") || strings.Contains(text, "module") || name == "Authorization" || strings.HasPrefix(name, "Impersonate") || strings.Contains(text, e.scraper) || strings.Contains(text, "admin") {
			t.Errorf("the tenant got header %s: %s", name, text)
		}
	}
	if got.header.Get("Set-Cookie") != "" || got.header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" || got.header.Get("Audit-Id") != "" {
		t.Errorf("the scraper got headers %v", got.header)
	}
	if want := "tenant_requests_total{cluster=\"a\"} 7\n"; got.body != want {
		t.Errorf("the scraper got %q, want %q", got.body, want)
	}
}

// promConfig is all that an environment's Prometheus is told about its tenants.
const promConfig = `
scrape_configs:
  - job_name: tenants
    scrape_interval: 1s
    scrape_timeout: 1s
    http_sd_configs:
      - url: https://%[1]s/sd/children
        refresh_interval: 1s
        authorization: {credentials_file: %[2]s}
        tls_config: {insecure_skip_verify: true}
    authorization: {credentials_file: %[2]s}
    tls_config: {insecure_skip_verify: true}
`

// prometheus scrapes the tenants, also while one of their endpoints hangs.
func (e *environment) prometheus(t *testing.T) {
	dir, listen := t.TempDir(), scenario.FreeAddress(t)
	token, config := filepath.Join(dir, "token"), filepath.Join(dir, "prometheus.yml")
	for file, text := range map[string]string{token: e.scraper, config: fmt.Sprintf(promConfig, e.agent.Metrics(), token)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "config", config).CombinedOutput(); err != nil {
		t.Fatalf("promtool check config: %v\n%s", err, out)
	}
	log, err := os.Create(filepath.Join(dir, "prometheus.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+listen)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("cannot start Prometheus; make prerequisites-monitoring installs it: %v", err)
	}
	defer func() {
		_ = cmd.Process.Kill() // fails only if it ended by itself
		_ = cmd.Wait()
	}()
	for query, want := range map[string]string{
		`sum(tenant_requests_total{job="tenants",namespace="production",environment="production",owner="payments",version=~"v1.+"})`: "21",
		`count by (child) (up{endpoint="app"} == 1)`: "1",
		`max(up{endpoint="hangs"})`:                  "0",
		`max(up{endpoint="endless"})`:                "0",
		`count(count by (instance) (up))`:            "3",
	} {
		scenario.Eventually(t, scenario.Converge, query, func(ctx context.Context) error {
			got, err := query1(ctx, listen, query)
			if err == nil && got != want {
				err = fmt.Errorf("it is %q, want %q", got, want)
			}
			return err
		})
	}
}

// query1 is the first value of a query.
func query1(ctx context.Context, address, query string) (_ string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/api/v1/query?query="+url.QueryEscape(query), nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	var found struct {
		Data struct {
			Result []struct {
				Value [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.NewDecoder(response.Body).Decode(&found); err != nil {
		return "", err
	}
	if len(found.Data.Result) == 0 {
		return "", errors.New("it has no value")
	}
	return fmt.Sprint(found.Data.Result[0].Value[1]), nil
}

// hanging: an endpoint that does not answer is left alone, and others of its cluster are not.
func (e *environment) hanging(t *testing.T) {
	path := "/children/production/b/hangs"
	scenario.Eventually(t, scenario.Converge, "what hangs is left alone", func(ctx context.Context) error {
		got, err := e.ask(ctx, "GET", path, e.scraper, "X-Prometheus-Scrape-Timeout-Seconds", "0.5")
		if err == nil && (got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "") {
			err = fmt.Errorf("%d %s", got.status, got.body)
		}
		return err
	})
	var running sync.WaitGroup
	for name := range e.tenants {
		running.Go(func() { e.asked(t, http.StatusOK, "GET", "/children/production/"+name+"/app", e.scraper) })
	}
	running.Wait()
}

// endless: of an answer of 1 GiB 64 MiB are passed on, and it does not end as if it were all.
func (e *environment) endless(t *testing.T) {
	var got answered
	scenario.Eventually(t, 2*time.Minute, "the endless endpoint is asked again", func(ctx context.Context) (err error) {
		got, err = e.ask(ctx, "GET", "/children/production/b/endless", e.scraper, "X-Prometheus-Scrape-Timeout-Seconds", "30")
		if err == nil && got.status != http.StatusOK {
			err = fmt.Errorf("%d %s", got.status, got.body)
		}
		return err
	})
	if got.cut == nil || len(got.body) > 64<<20 {
		t.Errorf("%d bytes came, and the end is %v", len(got.body), got.cut)
	}
	e.asked(t, http.StatusOK, "GET", "/children/production/b/app", e.scraper)
}

// redirect: nobody is sent elsewhere.
func (e *environment) redirect(t *testing.T) {
	if got := e.asked(t, http.StatusBadGateway, "GET", "/children/production/a/away", e.scraper); got.header.Get("Location") != "" || strings.Contains(got.body, "secret") {
		t.Errorf("a redirect comes up: %v %s", got.header, got.body)
	}
}

// rightTakenAway: the parent's right is written again when somebody took it away.
func (e *environment) rightTakenAway(t *testing.T) {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "cascade-parent.metrics"}}
	if err := e.tenants["a"].client.Delete(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	scenario.Eventually(t, 3*time.Minute, "tenant a is scraped again", func(ctx context.Context) error {
		if got, err := e.ask(ctx, "GET", "/children/production/a/app", e.scraper); err != nil || got.status != http.StatusOK {
			return fmt.Errorf("%d %s %v", got.status, got.body, err)
		}
		return e.tenants["a"].client.Get(ctx, client.ObjectKeyFromObject(role), role)
	})
}

// deadChild: a tenant whose API server hangs costs nobody else, and once that is known, no
// call.
func (e *environment) deadChild(t *testing.T) {
	dead := e.tenants["dead"]
	if err := dead.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dead.Signal(syscall.SIGCONT) })
	e.says(t, "dead", v1alpha1.ConnectedCondition, v1alpha1.ReasonUnreachable)
	for range 5 {
		if got := e.asked(t, http.StatusServiceUnavailable, "GET", "/children/production/dead/app", e.scraper); !strings.Contains(got.body, "not connected") && !strings.Contains(got.body, "left alone") {
			t.Errorf("the agent says %q", got.body)
		}
		e.asked(t, http.StatusOK, "GET", "/children/production/b/app", e.scraper)
	}
	if got := e.asked(t, http.StatusOK, "GET", "/sd/children", e.scraper); strings.Count(got.body, "/children/production/dead/") != 4 {
		t.Errorf("a dead child is no target any more: %s", got.body)
	}
}

// TestAlertRules: promtool tries the rules of deploy/monitoring.
func TestAlertRules(t *testing.T) {
	scenario.Alongside(t)
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}, {"check", "config", "prometheus.yaml"}} {
		if args[1] == "config" {
			// The file of the token is one of a pod.
			args = append(args[:2:2], "--syntax-only", args[2])
		}
		cmd := exec.CommandContext(t.Context(), "promtool", args...)
		cmd.Dir = scenario.Path(t, "deploy", "monitoring")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
