package main

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// TestMain builds the program once, unless CONTROLPLANE_BIN names one.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		if os.Getenv("CONTROLPLANE_BIN") != "" {
			return m.Run()
		}
		folder, err := os.MkdirTemp("", "controlplane-*")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(folder) }()
		name := filepath.Join(folder, "controlplane")
		if out, err := exec.Command("go", "build", "-p", "2", "-o", name, ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
			return 1
		}
		if err := os.Setenv("CONTROLPLANE_BIN", name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// instance is one control plane of a test.
type instance struct {
	t       *testing.T
	program string
	dir     layout
}

func newInstance(t *testing.T) instance {
	t.Helper()
	i := instance{t: t, program: os.Getenv("CONTROLPLANE_BIN"), dir: layout(filepath.Join(t.TempDir(), "alpha"))}
	t.Cleanup(i.stop)
	return i
}

func (i instance) command(args ...string) (string, error) {
	out, err := exec.Command(i.program, args...).CombinedOutput()
	return string(out), err
}

func (i instance) start(args ...string) time.Duration {
	i.t.Helper()
	begin := time.Now()
	if out, err := i.command(append([]string{"start", "--dir=" + string(i.dir)}, args...)...); err != nil {
		i.t.Fatalf("start: %v\n%s", err, out)
	}
	return time.Since(begin)
}

func (i instance) stop() {
	i.t.Helper()
	if out, err := i.command("stop", "--dir="+string(i.dir)); err != nil {
		i.t.Errorf("stop: %v\n%s", err, out)
	}
}

func (i instance) pid() int {
	i.t.Helper()
	pid, err := holder(i.dir)
	if err != nil || pid == 0 {
		i.t.Fatalf("holder = %d, %v; want a process", pid, err)
	}
	return pid
}

func (i instance) config() *rest.Config {
	i.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", i.dir.kubeconfig())
	if err != nil {
		i.t.Fatal(err)
	}
	return config
}

func (i instance) client() kubernetes.Interface {
	i.t.Helper()
	return kubernetes.NewForConfigOrDie(i.config())
}

// within fails the test unless done becomes true in time.
func within(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// cost returns the resident memory and the CPU time of a process.
func cost(t *testing.T, pid int) (rss string, cpu time.Duration) {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if after, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			rss = strings.TrimSpace(after)
		}
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := cutLast(string(stat), ")")
	for _, field := range strings.Fields(after)[11:13] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		// The kernel reports hundredths of a second, whatever its own clock is.
		cpu += time.Duration(ticks) * 10 * time.Millisecond
	}
	return rss, cpu
}

func TestControlPlane(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	i := newInstance(t)
	cold := i.start("--name=alpha")
	pid := i.pid()
	rss, cpu := cost(t, pid)
	t.Logf("cold start %s, resident %s, CPU so far %s", cold.Round(10*time.Millisecond), rss, cpu)
	client := i.client()

	t.Run("kubeconfig is private and names the cluster", func(t *testing.T) {
		info, err := os.Stat(i.dir.kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("mode %o, want 600", info.Mode().Perm())
		}
		config, err := clientcmd.LoadFromFile(i.dir.kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		if config.CurrentContext != "alpha" || config.Contexts["alpha"] == nil {
			t.Errorf("context %q, want alpha", config.CurrentContext)
		}
	})

	t.Run("a second start finds the first", func(t *testing.T) {
		i.start()
		if i.pid() != pid {
			t.Errorf("process %d, want %d", i.pid(), pid)
		}
	})

	t.Run("a namespace is deleted with its content", func(t *testing.T) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "prices"}}
		if _, err := client.CoreV1().ConfigMaps("shop").Create(ctx, object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := client.CoreV1().Namespaces().Delete(ctx, "shop", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		within(t, 20*time.Second, "namespace gone", func() bool {
			_, err := client.CoreV1().Namespaces().Get(ctx, "shop", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})

	t.Run("an owned object goes with its owner", func(t *testing.T) {
		objects := client.CoreV1().ConfigMaps("default")
		owner, err := objects.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID},
		}}}
		if _, err := objects.Create(ctx, owned, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := objects.Delete(ctx, "owner", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		within(t, 20*time.Second, "owned object gone", func() bool {
			_, err := objects.Get(ctx, "owned", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})

	t.Run("a Service gets an address and a pod is accepted", func(t *testing.T) {
		service, err := client.CoreV1().Services("default").Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(service.Spec.ClusterIP, "10.96.") {
			t.Errorf("address %q, want one of 10.96.0.0/16", service.Spec.ClusterIP)
		}
		_, err = client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		within(t, 20*time.Second, "the scheduler looked at the pod", func() bool {
			pod, err := client.CoreV1().Pods("default").Get(ctx, "web", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, condition := range pod.Status.Conditions {
				if condition.Type == corev1.PodScheduled {
					return condition.Reason == corev1.PodReasonUnschedulable
				}
			}
			return false
		})
	})

	t.Run("a service account's token works within its rights", func(t *testing.T) {
		request, err := client.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		config := rest.AnonymousClientConfig(i.config())
		config.BearerToken = request.Status.Token
		limited := kubernetes.NewForConfigOrDie(config)
		review, err := limited.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if name := review.Status.UserInfo.Username; name != "system:serviceaccount:default:default" {
			t.Errorf("user %q, want system:serviceaccount:default:default", name)
		}
		if _, err := limited.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("list secrets: %v, want forbidden", err)
		}
	})

	t.Run("a kill loses nothing", func(t *testing.T) {
		before, err := client.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		host := i.config().Host
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		within(t, 10*time.Second, "process gone", func() bool { _, err := startOf(pid); return errors.Is(err, errGone) })
		warm := i.start("--name=alpha")
		rss, _ := cost(t, i.pid())
		t.Logf("warm start %s, resident %s", warm.Round(10*time.Millisecond), rss)
		if i.config().Host != host {
			t.Errorf("host %q, want %q", i.config().Host, host)
		}
		// The client from before the kill: certificates and port still fit.
		after, err := client.CoreV1().Namespaces().Get(ctx, "kube-system", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if after.UID != before.UID {
			t.Errorf("UID %s, want %s", after.UID, before.UID)
		}
	})

	t.Run("writes are audited, reads and heartbeats are not", func(t *testing.T) { checkAudit(t, i.dir) })

	t.Run("stop leaves no process", func(t *testing.T) {
		pid := i.pid()
		begin := time.Now()
		i.stop()
		if took := time.Since(begin); took > 4*time.Second {
			t.Errorf("took %s", took)
		}
		if _, err := startOf(pid); !errors.Is(err, errGone) {
			t.Errorf("process %d lives: %v", pid, err)
		}
		if now, err := holder(i.dir); now != 0 || err != nil {
			t.Errorf("holder = %d, %v; want none", now, err)
		}
		i.stop()
	})
}

func checkAudit(t *testing.T, dir layout) {
	t.Helper()
	file, err := os.Open(dir.auditLog())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	type entry struct {
		Stage     string `json:"stage"`
		Verb      string `json:"verb"`
		ObjectRef struct {
			Resource, Name string
		} `json:"objectRef"`
	}
	seen := map[string]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		switch e.Verb {
		case "create", "update", "patch", "delete", "deletecollection":
		default:
			t.Errorf("verb %s of %s is audited", e.Verb, e.ObjectRef.Resource)
		}
		if e.Stage != "ResponseComplete" {
			t.Errorf("stage %s is audited", e.Stage)
		}
		if r := e.ObjectRef.Resource; r == "leases" || r == "events" || r == "selfsubjectreviews" {
			t.Errorf("%s are audited", r)
		}
		seen[e.Verb+" "+e.ObjectRef.Resource+" "+e.ObjectRef.Name] = true
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"create namespaces shop", "delete namespaces shop", "create configmaps prices", "delete configmaps owned"} {
		if !seen[want] {
			t.Errorf("missing: %s", want)
		}
	}
}

// TestAuditReads asks with the token of an account, before and after its end.
func TestAuditReads(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	i := newInstance(t)
	i.start("--api-only", "--audit-reads", "--token-cache=0s")
	client := i.client()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "reader"}}
	within(t, 20*time.Second, "account", func() bool {
		_, err := client.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{})
		return err == nil
	})
	token, err := client.CoreV1().ServiceAccounts("default").CreateToken(ctx, "reader", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(i.config())
	config.BearerToken = token.Status.Token
	reader := kubernetes.NewForConfigOrDie(config)
	if _, err := reader.CoreV1().ConfigMaps("default").Get(ctx, "first", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("the account that may do nothing got %v", err)
	}
	if err := client.CoreV1().ServiceAccounts("default").Delete(ctx, "reader", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.CoreV1().ConfigMaps("default").Get(ctx, "second", metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the token of an account that is gone got %v", err)
	}
	if _, err := client.CoreV1().ConfigMaps("default").Get(ctx, "third", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	text, err := os.ReadFile(i.dir.auditLog())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for line := range strings.Lines(string(text)) {
		var event struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ Resource, Name string }
			Response  struct{ Code int } `json:"responseStatus"`
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if event.ObjectRef.Resource == "configmaps" && event.Verb == "get" {
			got[event.ObjectRef.Name] = fmt.Sprintf("%s %d", event.User.Username, event.Response.Code)
		}
	}
	for name, want := range map[string]string{"first": "system:serviceaccount:default:reader 403", "second": " 401", "third": ""} {
		if got[name] != want {
			t.Errorf("the reading of %s is recorded as %q, want %q", name, got[name], want)
		}
	}
}

func TestOwner(t *testing.T) {
	i := newInstance(t)
	parent := exec.Command("sleep", "300")
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	i.start("--owner-pid=" + strconv.Itoa(parent.Process.Pid))
	pid := i.pid()
	// Not waited for: an owner that only its own parent has not collected yet
	// must count as gone too.
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	within(t, 4*time.Second, "control plane gone with its owner", func() bool {
		_, err := startOf(pid)
		return errors.Is(err, errGone)
	})
	_ = parent.Wait()
	if _, err := i.command("start", "--dir="+string(i.dir), "--owner-pid="+strconv.Itoa(parent.Process.Pid)); err == nil {
		t.Error("start for an owner that is gone succeeded")
	}
}

func TestFailedStart(t *testing.T) {
	i := newInstance(t)
	if err := os.MkdirAll(string(i.dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(i.dir.port(), []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := i.command("start", "--dir="+string(i.dir))
	if err == nil {
		t.Fatal("start succeeded")
	}
	if !strings.Contains(out, "cannot read file "+i.dir.port()) {
		t.Errorf("output %q, want the reason from the log", out)
	}
	if pid, err := holder(i.dir); pid != 0 || err != nil {
		t.Errorf("holder = %d, %v; want none", pid, err)
	}
	if err := os.Remove(i.dir.port()); err != nil {
		t.Fatal(err)
	}
	if out, err = i.command("start", "--dir="+string(i.dir), "--timeout=300ms"); err == nil {
		t.Fatal("start within 300ms succeeded")
	}
	if !strings.Contains(out, "it was not usable within 300ms") {
		t.Errorf("output %q, want the reason", out)
	}
	pid, err := readNumber(i.dir.pid())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := startOf(pid); !errors.Is(err, errGone) {
		t.Errorf("process %d lives after the failed start: %v", pid, err)
	}
}

func TestConcurrentStarts(t *testing.T) {
	i := newInstance(t)
	const starts = 3
	failed := make(chan string, starts)
	for range starts {
		go func() {
			out, err := i.command("start", "--dir="+string(i.dir))
			if err != nil {
				failed <- err.Error() + "\n" + out
				return
			}
			failed <- ""
		}()
	}
	for range starts {
		if why := <-failed; why != "" {
			t.Error(why)
		}
	}
}

// TestRenewal: certificates are renewed in time, and also when they have lapsed. Whoever knows
// the authority of before knows that of after.
func TestRenewal(t *testing.T) {
	const day = 24 * time.Hour
	began := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	ip, err := firstServiceIP("10.96.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		reason            string
		after             time.Duration
		leaves, authority bool
	}{
		"Fresh":     {"more than a third is left", 200 * day, false, false},
		"Due":       {"less than a third is left", 300 * day, true, false},
		"Lapsed":    {"a folder that was put away for two years", 730 * day, true, false},
		"Authority": {"its ten years come to an end", 8 * 365 * day, true, true},
		"SetBack":   {"the clock was ahead when they were made", -30 * day, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := layout(t.TempDir())
			if err := ensurePKI(dir, ip, began, true); err != nil {
				t.Fatal(err)
			}
			before, key, err := readPair(dir, "apiserver")
			if err != nil {
				t.Fatal(err)
			}
			known, err := readCertificate(dir, "ca")
			if err != nil {
				t.Fatal(err)
			}
			now := began.Add(tt.after)
			if err := ensurePKI(dir, ip, now, false); err != nil {
				t.Fatalf("%s: %v", tt.reason, err)
			}
			after, same, err := readPair(dir, "apiserver")
			if err != nil {
				t.Fatal(err)
			}
			authority, err := readCertificate(dir, "ca")
			if err != nil {
				t.Fatal(err)
			}
			if after.Equal(before) == tt.leaves || !same.Equal(key) || authority.Equal(known) == tt.authority {
				t.Errorf("%s: apiserver renewed %t, with its key %t, authority renewed %t", tt.reason, !after.Equal(before), same.Equal(key), !authority.Equal(known))
			}
			roots := x509.NewCertPool()
			if roots.AddCert(known); !tt.authority {
				roots.AddCert(authority)
			}
			if tt.after < 0 {
				roots = x509.NewCertPool()
				roots.AddCert(authority) // that of before is of the future
			}
			for _, file := range []string{"apiserver", "admin", "scheduler"} {
				c, err := readCertificate(dir, file)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
					t.Errorf("%s: %s: %v", tt.reason, file, err)
				}
			}
			if err := after.VerifyHostname("10.96.0.1"); err != nil {
				t.Error(err)
			}
			if changed, err := renewPKI(dir, now.Add(time.Hour)); err != nil || changed {
				t.Errorf("%s: renewed again an hour later: %t, %v", tt.reason, changed, err)
			}
		})
	}
}

// TestPort: the port of before is taken again. After a cut of power it may be lost, which no start fails for.
func TestPort(t *testing.T) {
	free, before, err := listenOn(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close()
	for name, tc := range map[string]struct {
		reason, file string
		fails        bool
	}{
		"None":     {"the first start", "-", false},
		"Before":   {"it is the one that kubeconfigs have", fmt.Sprintln(before), false},
		"Empty":    {"power went before it was written", "", false},
		"Zeros":    {"or after its length was", "\x00\x00\x00\x00\x00\x00", false},
		"Nonsense": {"a person wrote into it", "nonsense\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := layout(t.TempDir())
			if tc.file != "-" {
				if err := os.WriteFile(dir.port(), []byte(tc.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			listener, port, err := listen(t.Context(), dir, 0)
			if (err != nil) != tc.fails {
				t.Fatalf("%s: listen() = %v", tc.reason, err)
			}
			if tc.fails {
				return
			}
			_ = listener.Close()
			if is, err := readNumber(dir.port()); err != nil || is != port {
				t.Errorf("%s: it listens on %d, and remembers %d, %v", tc.reason, port, is, err)
			}
			if name == "Before" && port != before {
				t.Errorf("%s: it listens on %d", tc.reason, port)
			}
		})
	}
}

func TestCertificates(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	dir := layout(t.TempDir())
	ip, err := firstServiceIP("10.96.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	if ip.String() != "10.96.0.1" {
		t.Fatalf("first address %s, want 10.96.0.1", ip)
	}
	if err := ensurePKI(dir, ip, now, false); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(dir.pki("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if err := ensurePKI(dir, ip, now.Add(24*time.Hour), false); err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(dir.pki("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if string(first) != string(second) {
		t.Error("a second start made another authority")
	}
	other, err := firstServiceIP("10.97.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	if err := ensurePKI(dir, other, now, false); err == nil || !strings.Contains(err.Error(), "--service-cidr") {
		t.Errorf("another range: %v, want a refusal that names --service-cidr", err)
	}
	// A kill while they are made leaves a folder of another name.
	left, err := filepath.Glob(string(dir) + "/.pki-*")
	if err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
	err = filepath.WalkDir(dir.path("pki"), func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o, want 600", name, info.Mode().Perm())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestCommandLine(t *testing.T) {
	for _, test := range []struct {
		reason, verb string
		args         []string
	}{
		{"a folder is required", "run", nil},
		{"an unknown command", "restart", []string{"--dir=x"}},
		{"no such port", "run", []string{"--dir=x", "--secure-port=70000"}},
		{"not a range", "run", []string{"--dir=x", "--service-cidr=10.0.0.1"}},
		{"no argument", "stop", []string{"--dir=x", "now"}},
		{"only start waits", "run", []string{"--dir=x", "--timeout=1s"}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			var wrong usageError
			if _, _, err := parse(test.verb, test.args); !errors.As(err, &wrong) {
				t.Errorf("error %v, want a mistake of usage", err)
			}
		})
	}
	s, _, err := parse("start", []string{"--dir=/tmp/alpha", "--owner-pid=7"})
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := parse("run", s.arguments()[1:])
	if err != nil || again != s {
		t.Errorf("run gets %+v, %v; want %+v", again, err, s)
	}
}
