package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The tests run the programs as the demo does: real control planes, and a cascade-local with the race detector. They need
// bin/controlplane, bin/capi-manager and bin/capi (make build-e2e); CONTROLPLANE_BIN names another control plane program.

// podMode makes this very program play the part of a pod's process.
const podMode = "LOCAL_TEST_POD"

func TestMain(m *testing.M) {
	if os.Getenv(podMode) != "" {
		if err := playPod(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(runTests(m))
}

// localProgram is cascade-local with the race detector, built once for all tests.
var localProgram string

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "cascade-local-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	localProgram = filepath.Join(dir, "cascade-local")
	if output, err := exec.Command("go", "build", "-race", "-p", "2", "-o", localProgram, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build cascade-local: %v\n%s", err, output)
		return 1
	}
	return m.Run()
}

// playPod is a server that tells what its pod got, and obeys. It asks the API server who it is with nothing but KUBECONFIG.
func playPod() error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/env", func(w http.ResponseWriter, _ *http.Request) {
		environment := map[string]string{}
		for _, pair := range os.Environ() {
			name, value, _ := strings.Cut(pair, "=")
			environment[name] = value
		}
		json.NewEncoder(w).Encode(environment)
	})
	mux.HandleFunc("/args", func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(os.Args[1:]) })
	mux.HandleFunc("/whoami", func(w http.ResponseWriter, r *http.Request) {
		review, err := client.AuthenticationV1().SelfSubjectReviews().Create(r.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		json.NewEncoder(w).Encode(review.Status.UserInfo)
	})
	mux.HandleFunc("/become-ready", func(http.ResponseWriter, *http.Request) { close(ready) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-ready:
		default:
			http.Error(w, "not yet", http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{Addr: net.JoinHostPort(os.Getenv("POD_IP"), "8080"), Handler: mux}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() { server.Close() })
	fmt.Println("serving on", server.Addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// world is a directory with programs and one control plane with a node, which end with the test.
type world struct {
	t          *testing.T
	bin, run   string
	mom        string // directory of the control plane
	kubeconfig string
	client     kubernetes.Interface
	rest       *rest.Config
}

func newWorld(t *testing.T) *world {
	t.Helper()
	root := t.TempDir()
	w := &world{t: t, bin: filepath.Join(root, "bin"), run: filepath.Join(root, "run"), mom: filepath.Join(root, "mom")}
	for _, dir := range []string{w.bin, w.run} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	controlplane := os.Getenv("CONTROLPLANE_BIN")
	if controlplane == "" {
		controlplane = "../../bin/controlplane"
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"controlplane": controlplane, "capi-manager": "../../bin/capi-manager", "capi": "../../bin/capi", "testpod": self} {
		target, err := filepath.Abs(target)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(target); err != nil {
			t.Fatalf("%s is needed, run `make build-e2e` first: %v", name, err)
		}
		if err := os.Symlink(target, filepath.Join(w.bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	// A hard link: the program looks for the others beside where it really is.
	if err := os.Link(localProgram, filepath.Join(w.bin, "cascade-local")); err != nil {
		t.Fatal(err)
	}
	t.Setenv(envBin, w.bin)
	t.Setenv(envRun, w.run)
	t.Setenv(envOwner, strconv.Itoa(os.Getpid()))
	t.Setenv("GORACE", "halt_on_error=1")
	t.Cleanup(w.checkRaces)
	t.Cleanup(func() { w.command(time.Minute, filepath.Join(w.bin, "controlplane"), "stop", "--dir", w.mom) })
	w.command(time.Minute, filepath.Join(w.bin, "controlplane"), "start", "--dir", w.mom, "--name", "mom", "--owner-pid", strconv.Itoa(os.Getpid()))
	w.kubeconfig = filepath.Join(w.mom, "kubeconfig")
	t.Cleanup(func() { w.local("node", "stop", "--dir", filepath.Join(w.mom, "node")) })
	w.startNode()
	w.rest, err = clientcmd.BuildConfigFromFlags("", w.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	// Cluster API waits for half a minute if what a Cluster refers to comes a second after it, and the default of 5 requests a
	// second is about as slow.
	w.rest.QPS, w.rest.Burst = 100, 200
	w.client = kubernetes.NewForConfigOrDie(w.rest)
	return w
}

// on returns the world for a subtest, whose failures are then its own.
func (w *world) on(t *testing.T) *world {
	copied := *w
	copied.t = t
	return &copied
}

func (w *world) startNode() {
	w.t.Helper()
	w.local("node", "start", "--kubeconfig", w.kubeconfig, "--name", "mom-node", "--dir", filepath.Join(w.mom, "node"))
}

func (w *world) local(args ...string) {
	w.t.Helper()
	w.command(time.Minute, filepath.Join(w.bin, "cascade-local"), args...)
}

func (w *world) command(limit time.Duration, name string, args ...string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if output, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		w.t.Fatalf("%s %v: %v\n%s", name, args, err, output)
	}
}

// checkRaces fails the test if any process wrote that it found a data race, or panicked.
func (w *world) checkRaces() {
	err := filepath.WalkDir(filepath.Dir(w.run), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".log") || entry.IsDir() {
			return nil // what disappears meanwhile has no log to read
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for _, bad := range []string{"DATA RACE", "panic:"} {
			if i := bytes.Index(raw, []byte(bad)); i >= 0 {
				w.t.Errorf("%s: %s", path, raw[i:min(len(raw), i+4000)])
			}
		}
		if w.t.Failed() && strings.HasSuffix(path, "node.log") {
			w.t.Logf("%s:\n%s", path, raw[max(0, len(raw)-3000):])
		}
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
}

// eventually polls until the check passes and returns how long that took.
func (w *world) eventually(limit time.Duration, what string, check func() error) time.Duration {
	w.t.Helper()
	began := time.Now()
	for {
		err := check()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			w.t.Fatalf("%s: not after %v: %v", what, limit, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// pod returns the only pod with the label app=name that is not being deleted.
func (w *world) pod(namespace, app string) (*corev1.Pod, error) {
	pods, err := w.client.CoreV1().Pods(namespace).List(w.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + app})
	if err != nil {
		return nil, err
	}
	var found *corev1.Pod
	for i := range pods.Items {
		if pods.Items[i].DeletionTimestamp == nil {
			if found != nil {
				return nil, errors.New("more than one pod")
			}
			found = &pods.Items[i]
		}
	}
	if found == nil {
		return nil, errors.New("no pod")
	}
	return found, nil
}

func (w *world) awaitPod(namespace, app string, limit time.Duration, what string, check func(*corev1.Pod) bool) *corev1.Pod {
	w.t.Helper()
	var pod *corev1.Pod
	w.eventually(limit, what, func() error {
		found, err := w.pod(namespace, app)
		if err != nil {
			return err
		}
		if !check(found) {
			raw, _ := json.Marshal(found.Status)
			return fmt.Errorf("status %s", raw)
		}
		pod = found
		return nil
	})
	return pod
}

func podReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// processOf returns the process of the pod's first container.
func processOf(t *testing.T, pod *corev1.Pod) int {
	t.Helper()
	var pid, start int
	if _, err := fmt.Sscanf(pod.Status.ContainerStatuses[0].ContainerID, "process://%d-%d", &pid, &start); err != nil {
		t.Fatalf("container id %q: %v", pod.Status.ContainerStatuses[0].ContainerID, err)
	}
	return pid
}

func processGone(pid int) error {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	if fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:])); fields[0] == "Z" {
		return nil
	}
	return fmt.Errorf("process %d runs", pid)
}

func getJSON(url string, into any) error {
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s: %s", response.Status, body)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(into)
}
