package children

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/gauge"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

const (
	// exported is the port of exporters.
	exported = 9100
	// mostOfItself is how many series an agent may have whatever its fleet is, as
	// TestSeriesBudget counts on, the few objects of this test included.
	mostOfItself = 1700
	// mostGrowth is by how many megabytes the agent, with the race detector, may grow while
	// leastStreamed pass through it.
	mostGrowth, leastStreamed = 128, 250
)

// TestEnvironmentPrometheus: one block of configuration finds and scrapes the tenants of an
// environment. One of them hangs and one tells no end of metrics; the others are scraped as
// if there were none such.
func TestEnvironmentPrometheus(t *testing.T) {
	scenario.Alongside(t)
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatalf("there is no Prometheus; make prerequisites-prometheus installs Debian's: %v", err)
	}
	e := startEnvironment(t)
	defer func() {
		for _, clean := range e.cleanup {
			clean(t)
		}
	}()
	steps(t,
		step{"Authorized", e.authorized},
		step{"Scraped", func(t *testing.T) { e.scraped(t, program) }},
		step{"OthersPayNothing", e.othersPayNothing},
		step{"Budget", e.budget},
		check{"Dashboards", e.dashboards},
		check{"Rules", rules},
	)
}

// environment is a master with four tenants. Two have agents and exporters that answer.
type environment struct {
	*fleet
	planes map[string]*plane
	// dir has the files of Prometheus, which outlives the step that starts it.
	dir string
	// token of one who may scrape.
	token      string
	prometheus stage.Prometheus
	// streamed counts the bytes that the endless exporter wrote.
	streamed atomic.Int64
	// peak of the agent's memory before the first scrape, in MB.
	peak float64
	// cleanup ends what a step started for the next ones.
	cleanup []func(*testing.T)
}

// Tenants with agents, and those with nothing but an exporter that does harm.
var (
	good = []string{"alpha", "beta"}
	bad  = []string{"hangs", "streams"}
)

func startEnvironment(t *testing.T) *environment {
	t.Helper()
	h := openHub(t)
	h.installAll(t, "v1beta2")
	e := &environment{planes: map[string]*plane{}, dir: t.TempDir()}
	e.fleet = h.fleet(t, "production", map[string]string{
		"app/sync.yaml": fmt.Sprintf(armed, h.Git.HTTPURL("production")), "own/note.yaml": noteNamed("own", "version", "1"), "bare/note.yaml": noteNamed("bare", "version", "1"),
	})
	username, password := h.Git.Login()
	e.define(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: for-child}, stringData: {username: %q, password: %q}}", username, password))
	e.define(t, `apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: app}
spec:
  clusterSelector: {matchExpressions: [{key: cluster, operator: In, values: [alpha, beta]}]}
  sourceRef: {kind: GitRepository, name: fleet}
  path: ./app
  agent: {args: [--observe-interval=1s]}
  credentials: [{name: git-auth, secretRef: {name: for-child}}]
---
apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: bare}
spec:
  clusterSelector: {matchExpressions: [{key: cluster, operator: In, values: [hangs, streams]}]}
  sourceRef: {kind: GitRepository, name: fleet}
  path: ./bare
`)
	var err error
	if h.agent, err = h.tier.StartAgentWith(t.Context(), stage.AgentOptions{Guarded: true, Flags: []string{
		"--child-endpoints=agent,exporter=monitoring/exporter:http/metrics", "--events-addr=" + eventSink(t),
	}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range good {
		e.tenant(t, name, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			// A tenant that says that it is another one.
			_, _ = fmt.Fprintf(w, "widgets{child=%q,namespace=\"elsewhere\"} %d\n", "forged", len(name))
		}), "--audit-reads", "--token-cache=0s", "--pod-network")
	}
	e.tenant(t, "hangs", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), slices.Concat(planeFlags, []string{"--pod-network"})...)
	e.tenant(t, "streams", http.HandlerFunc(e.stream), slices.Concat(planeFlags, []string{"--pod-network"})...)
	for _, name := range slices.Concat(good, bad) {
		e.ready(t, name, "")
	}
	scenario.Eventually(t, scenario.Converge, "the agents report", func(ctx context.Context) error {
		for _, name := range good {
			if child, err := e.child(ctx, name); err != nil || child.Status.Report == nil {
				return fmt.Errorf("%s has no report: %w", name, err)
			}
		}
		return nil
	})
	return e
}

// stream tells metrics until nobody listens any more.
func (e *environment) stream(w http.ResponseWriter, _ *http.Request) {
	line := []byte("endless{of=\"" + strings.Repeat("x", 1000) + "\"} 1\n")
	for {
		n, err := w.Write(line)
		e.streamed.Add(int64(n))
		if err != nil {
			return
		}
	}
}

// tenant declares a cluster whose exporter answers so, and hands it over.
func (e *environment) tenant(t *testing.T, name string, exporter http.Handler, flags ...string) {
	t.Helper()
	p := e.plane(t, name, flags...)
	e.planes[name] = p
	if !slices.Contains(flags, "--api-only") {
		if err := p.StartNode(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	p.export(t, exporter)
	cluster := e.declare(t, name)
	e.patch(t, cluster, map[string]any{"metadata": map[string]any{"labels": map[string]any{"environment": "production", v1alpha1.OwnerLabel: "team-" + name}}})
	e.report(t, name, initialized)
	e.handOver(t, name, p.issue(t).kubeconfig)
}

// export has an exporter be a Service of the cluster. Its pod is of no node: this process is
// the pod, at an address that is no other pod's.
func (p *plane) export(t *testing.T, handler http.Handler) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.Dir, "port"))
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	ip := fmt.Sprintf("127.%d.%d.200", port/256, port%256)
	listener, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(exported)))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("the exporter of %s ended: %v", p.Name, err)
		}
	})
	const namespace = "monitoring"
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "exporter"},
		Spec: corev1.PodSpec{
			SchedulerName: "nobody", AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: "exporter", Image: "exporter"}},
		},
	}
	address := corev1.EndpointAddress{IP: stage.PodNetwork(ip), TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod.Name}}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}},
		pod,
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "exporter"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: exported}}},
		},
		//lint:ignore SA1019 API servers proxy to a service by its Endpoints
		&corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "exporter"},
			//lint:ignore SA1019 as above
			Subsets: []corev1.EndpointSubset{{
				Addresses: []corev1.EndpointAddress{address}, Ports: []corev1.EndpointPort{{Name: "http", Port: exported}},
			}},
		},
	} {
		if err := p.client.Create(t.Context(), o); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("cannot create %T: %v", o, err)
		}
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address.IP, PodIPs: []corev1.PodIP{{IP: address.IP}}}
	if err := p.client.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// tokenOf is one of an account of the hub.
func (e *environment) tokenOf(t *testing.T, name string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.AgentNamespace, Name: name}}
	if err := e.client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// ask asks the agent of the hub for a path, and returns the status.
func (e *environment) ask(ctx context.Context, token, path string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+e.agent.Metrics()+path, nil)
	if err != nil {
		return 0, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, errors.Join(err, response.Body.Close())
}

// authorized: the account of deploy/monitoring may scrape, another one is refused, and whoever
// does not say who it is, too. The right of one child leads to no other one.
func (e *environment) authorized(t *testing.T) {
	text, err := os.ReadFile(scenario.Path(t, "deploy", "monitoring", "scraper.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := ssautil.ReadObjects(strings.NewReader(string(text) + `
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: nobody, namespace: cascade-system}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: alpha, namespace: cascade-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: alpha}
rules: [{nonResourceURLs: [/children/production/alpha/*], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: alpha}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: alpha}
subjects: [{kind: ServiceAccount, name: alpha, namespace: cascade-system}]
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		e.apply(t, u)
	}
	e.token = e.tokenOf(t, "cascade-scraper")
	nobody, one := e.tokenOf(t, "nobody"), e.tokenOf(t, "alpha")
	const sd, alpha, beta, export = "/sd/children", "/children/production/alpha/agent", "/children/production/beta/agent", "/children/production/alpha/exporter"
	for _, c := range []struct {
		reason, token, path string
		want                int
	}{
		{"it may list", e.token, sd, http.StatusOK},
		{"and scrape the agent of one", e.token, alpha, http.StatusOK},
		{"and of another one", e.token, beta, http.StatusOK},
		{"and a Service", e.token, export, http.StatusOK},
		{"no right to list", nobody, sd, http.StatusForbidden},
		{"no right to scrape", nobody, alpha, http.StatusForbidden},
		{"nor to learn which children there are", nobody, "/children/production/none/agent", http.StatusForbidden},
		{"the right to one child", one, alpha, http.StatusOK},
		{"is none to another", one, beta, http.StatusForbidden},
		{"nor by another way to write it", one, "/children/production/alpha/../beta/agent", http.StatusForbidden},
		{"nor to list", one, sd, http.StatusForbidden},
		{"no login", "", sd, http.StatusUnauthorized},
		{"no login", "", alpha, http.StatusUnauthorized},
		{"no such endpoint", e.token, "/children/production/alpha/secrets", http.StatusNotFound},
	} {
		// RBAC is read by watches, and the parent writes its right once the layers are in place.
		scenario.Eventually(t, scenario.Converge, c.reason+": "+c.path, func(ctx context.Context) error {
			if status, err := e.ask(ctx, c.token, c.path); err != nil || status != c.want {
				return fmt.Errorf("status %d, want %d: %w", status, c.want, err)
			}
			return nil
		})
	}
}

// scraped starts Prometheus with the block of deploy/monitoring, and asks it for what the
// tenants tell.
func (e *environment) scraped(t *testing.T, program string) {
	e.start(t, program)
	for _, name := range good {
		labels := map[string]string{
			"job": "tenants", "child_namespace": "production", "child": name, "instance": "production/" + name, "environment": "production", "owner": "team-" + name,
		}
		for _, c := range []struct {
			reason, query string
			want          float64
			labels        map[string]string
		}{
			{"its agent is up", "up{endpoint='agent'}", 1, nil},
			{"a series of its agent", "cascade_resource_ready{endpoint='agent',kind='Kustomization'}", 1, map[string]string{"namespace": v1alpha1.AgentNamespace, "name": "own"}},
			{"its exporter is up", "up{endpoint='exporter'}", 1, nil},
			{"who lies is known", "widgets", float64(len(name)), map[string]string{"exported_child": "forged", "namespace": "elsewhere"}},
		} {
			query := strings.TrimSuffix(c.query, "}")
			if strings.Contains(query, "{") {
				query += ","
			} else {
				query += "{"
			}
			query += "child='" + name + "'}"
			scenario.Eventually(t, scenario.Converge, c.reason+": "+query, func(ctx context.Context) error {
				samples, err := e.prometheus.Query(ctx, query)
				if err != nil {
					return err
				}
				if len(samples) != 1 || samples[0].Value != c.want {
					return fmt.Errorf("it is %v, want %v", samples, c.want)
				}
				for _, more := range []map[string]string{labels, c.labels} {
					for label, value := range more {
						if samples[0].Labels[label] != value {
							return fmt.Errorf("label %s is %q, want %q, of %v", label, samples[0].Labels[label], value, samples[0].Labels)
						}
					}
				}
				return nil
			})
		}
	}
}

// start starts Prometheus; it ends with the test.
func (e *environment) start(t *testing.T, program string) {
	t.Helper()
	dir := e.dir
	write := func(name, text string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	block, err := os.ReadFile(scenario.Path(t, "deploy", "monitoring", "prometheus.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(
		"AGENT:8080", e.agent.Metrics(),
		"/var/run/secrets/kubernetes.io/serviceaccount/token", write("token", e.token),
	).Replace(string(block))
	config := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	config["global"] = map[string]any{"scrape_interval": "5s", "scrape_timeout": "5s"}
	config["rule_files"] = []any{scenario.Path(t, "deploy", "monitoring", "alerts.yaml")}
	jobs := config["scrape_configs"].([]any)
	tenants := jobs[0].(map[string]any)
	config["scrape_configs"] = append(jobs, map[string]any{
		"job_name": "cascade", "scheme": "https", "authorization": tenants["authorization"], "tls_config": tenants["tls_config"],
		"static_configs": []any{map[string]any{"targets": []any{e.agent.Metrics()}}},
	})
	if text, err := yaml.Marshal(config); err != nil {
		t.Fatal(err)
	} else {
		write("prometheus.yaml", string(text))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	e.prometheus.URL = "http://" + address
	if err := gauge.ResetPeak(e.agent.PID()); err != nil {
		t.Fatal(err)
	}
	if e.peak, err = gauge.Memory(e.agent.PID(), "VmHWM"); err != nil {
		t.Fatal(err)
	}
	output, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// It goes on beside the other steps, and ends with the test of them.
	e.cleanup = append(e.cleanup, func(t *testing.T) {
		_ = cmd.Process.Kill() // fails only if it ended by itself
		_ = cmd.Wait()         // by the kill
		_ = output.Close()
		if t.Failed() {
			text, err := os.ReadFile(output.Name())
			t.Logf("Prometheus says: %s, %v", text, err)
		}
	})
}

// othersPayNothing: while one target hangs and one streams without an end, all scrapes of the
// others succeed, and the agent does not keep what passes through it.
func (e *environment) othersPayNothing(t *testing.T) {
	value := func(ctx context.Context, query string) (float64, error) {
		samples, err := e.prometheus.Query(ctx, query)
		if err != nil || len(samples) != 1 {
			return 0, fmt.Errorf("%s has %d series: %w", query, len(samples), err)
		}
		return samples[0].Value, nil
	}
	// Of each at least so many, by the agent's own count.
	for _, c := range []struct {
		query string
		least float64
	}{
		{"cascade_child_scrapes_total{result='timeout'}", 2},
		{"cascade_child_scrapes_total{result='cut'}", 2},
		{"cascade_child_scrapes_total{result='broken'}", 1},
		{"min(count_over_time(up{child=~'alpha|beta'}[1h]))", 8},
	} {
		scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%s is %v", c.query, c.least), func(ctx context.Context) error {
			if is, err := value(ctx, c.query); err != nil || is < c.least {
				return fmt.Errorf("it is %v: %w", is, err)
			}
			return nil
		})
	}
	scenario.Eventually(t, scenario.Converge, "much is streamed", func(context.Context) error {
		if n := e.streamed.Load(); n < leastStreamed*1e6 {
			return fmt.Errorf("%d bytes", n)
		}
		return nil
	})
	for query, want := range map[string]float64{
		"min(min_over_time(up{child=~'alpha|beta'}[1h]))":                              1,
		"count(count_over_time(up{child=~'alpha|beta'}[1h]))":                          4,
		"max(max_over_time(up{child=~'hangs|streams'}[1h]))":                           0,
		"count(count_over_time(up{child=~'hangs|streams'}[1h]))":                       2,
		"min(min_over_time(up{job='cascade'}[1h]))":                                    1,
		"count(endless) or vector(0)":                                                  0,
		"count(ALERTS{alertname='CascadeAgentDown',alertstate='firing'}) or vector(0)": 0,
	} {
		if is, err := value(t.Context(), query); err != nil || is != want {
			t.Errorf("%s is %v, want %v: %v", query, is, want, err)
		}
	}
	peak, err := gauge.Memory(e.agent.PID(), "VmHWM")
	if err != nil {
		t.Fatal(err)
	}
	streamed := float64(e.streamed.Load()) / 1e6
	t.Logf("%.0f MB were streamed; the agent had %.0f MB at most, %.0f MB before", streamed, peak, e.peak)
	if peak-e.peak > mostGrowth {
		t.Errorf("the agent grew from %.0f MB to %.0f MB", e.peak, peak)
	}
}

// rules: each fires when it should, and not when it should not.
func rules(t *testing.T) {
	dir := scenario.Path(t, "deploy", "monitoring")
	if out, err := exec.CommandContext(t.Context(), "promtool", "test", "rules", filepath.Join(dir, "alerts_test.yaml")).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// budget: the agent itself has no more series than what its fleet's budget leaves to it.
func (e *environment) budget(t *testing.T) {
	samples, err := e.prometheus.Query(t.Context(), "scrape_samples_scraped{job='cascade'}")
	if err != nil || len(samples) != 1 {
		t.Fatalf("series of the agent are %v, %v", samples, err)
	}
	t.Logf("the agent has %.0f series", samples[0].Value)
	if samples[0].Value > mostOfItself {
		t.Errorf("the agent has %.0f series, more than %d", samples[0].Value, mostOfItself)
	}
}
