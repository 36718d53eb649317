package stage

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	autov1 "github.com/fluxcd/image-automation-controller/api/v1"
	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Tier is one cluster of the stage.
type Tier struct {
	Name string
	// Dir has the files of the control plane, and of the node below node.
	Dir   string
	stage *Stage
	// flags of the control plane besides those that every one has.
	flags []string
}

// Kubeconfig is the file with the cluster's admin kubeconfig.
func (t *Tier) Kubeconfig() string { return filepath.Join(t.Dir, "kubeconfig") }

// Config to reach the cluster as its administrator.
func (t *Tier) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", t.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("cannot load kubeconfig of %s: %w", t.Name, err)
	}
	config.QPS = -1
	config.Timeout = 15 * time.Second
	config.UserAgent = "stage"
	return config, nil
}

// Client of the cluster, without a cache.
func (t *Tier) Client() (client.Client, error) {
	config, err := t.Config()
	if err != nil {
		return nil, err
	}
	return t.connect(config)
}

// Watcher is a client whose calls last until their context ends.
func (t *Tier) Watcher() (client.WithWatch, error) {
	config, err := t.Config()
	if err != nil {
		return nil, err
	}
	config.Timeout = 0
	return t.connect(config)
}

func (t *Tier) connect(config *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, sourcev1.AddToScheme, kustomizev1.AddToScheme, helmv2.AddToScheme, v1alpha1.AddToScheme, generatorv1.AddToScheme, notificationv1.AddToScheme, imagev1.AddToScheme, autov1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", t.Name, err)
	}
	return c, nil
}

// StartControlPlane starts the control plane, or does nothing if it runs. After
// a kill it comes back with the data, address and certificates that it had.
func (t *Tier) StartControlPlane(ctx context.Context) error {
	args := []string{"start", "--dir", t.Dir, "--name", t.Name, "--owner-pid", strconv.Itoa(os.Getpid())}
	_, err := t.stage.Run(ctx, "controlplane", append(args, t.flags...)...)
	return err
}

// StartNode gives the cluster a node, on which its pods run as processes. It looks for
// programs in these directories before those of the stage.
func (t *Tier) StartNode(ctx context.Context, first ...string) error {
	return t.startNode(ctx, first...)
}

// Stop ends the cluster. It keeps its data, for another start.
func (t *Tier) Stop(ctx context.Context) error { return t.stage.stop(ctx, t.Dir) }

// Remove ends the cluster and forgets its data: a later start is a new cluster.
func (t *Tier) Remove(ctx context.Context) error {
	return errors.Join(t.Stop(ctx), os.RemoveAll(t.Dir))
}

func (t *Tier) startNode(ctx context.Context, first ...string) error {
	args := []string{"node", "start", "--kubeconfig", t.Kubeconfig(), "--name", t.Name,
		"--dir", filepath.Join(t.Dir, "node"), "--owner-pid", strconv.Itoa(os.Getpid()), "--bin-dir", strings.Join(slices.Concat(first, t.stage.options.Bin), ":")}
	if slices.Contains(t.flags, podNetworkFlag) {
		args = append(args, podNetworkFlag)
	}
	_, err := t.stage.Run(ctx, "cascade-local", args...)
	return err
}

// Signal sends a signal to the control plane: SIGKILL loses it, SIGSTOP freezes
// it and SIGCONT lets it go on.
func (t *Tier) Signal(signal syscall.Signal) error {
	pid, err := readPID(filepath.Join(t.Dir, "pid"))
	if err != nil {
		return fmt.Errorf("cannot find the control plane of %s: %w", t.Name, err)
	}
	if err := syscall.Kill(pid, signal); err != nil {
		return fmt.Errorf("cannot signal the control plane of %s: %w", t.Name, err)
	}
	return nil
}

func readPID(file string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("cannot parse %s: %w", file, err)
	}
	return pid, nil
}

// Agent returns the process of the tier's agent, 0 if there is none at the
// moment. It is found by the pod that it belongs to.
func (t *Tier) Agent() int {
	pods := filepath.Join(t.Dir, "node", "pods") + string(filepath.Separator)
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		line, err := os.ReadFile(filepath.Join(p, "cmdline"))
		if err != nil || !strings.Contains(string(line), "cascade\x00agent\x00") {
			continue
		}
		env, err := os.ReadFile(filepath.Join(p, "environ"))
		if err != nil || !strings.Contains(string(env), "\x00KUBECONFIG="+pods) && !strings.HasPrefix(string(env), "KUBECONFIG="+pods) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(p))
		if err == nil {
			return pid
		}
	}
	return 0
}

// Cluster starts a control plane that no Cluster API knows of, with these flags
// besides. It is empty, and ends with the stage.
func (s *Stage) Cluster(ctx context.Context, name string, flags ...string) (*Tier, error) {
	t := &Tier{Name: name, Dir: filepath.Join(s.options.Run, "clusters", name), stage: s, flags: flags}
	return t, t.StartControlPlane(ctx)
}

// Existing is a cluster whose control plane somebody else runs, in this directory.
func (s *Stage) Existing(name, dir string) *Tier { return &Tier{Name: name, Dir: dir, stage: s} }

// Copy starts a cluster with the data and the authorities of this one, which must be
// stopped: what becomes of a backup that is restored elsewhere. It ends with the stage.
func (t *Tier) Copy(ctx context.Context, name string) (*Tier, error) {
	c := &Tier{Name: t.Name, Dir: filepath.Join(t.stage.options.Run, "clusters", name), stage: t.stage, flags: t.flags}
	for _, part := range []string{"etcd", "pki"} {
		if err := os.CopyFS(filepath.Join(c.Dir, part), os.DirFS(filepath.Join(t.Dir, part))); err != nil {
			return nil, fmt.Errorf("cannot copy %s of %s: %w", part, t.Name, err)
		}
	}
	return c, c.StartControlPlane(ctx)
}

// Through is the tier as a kubeconfig leads to it, which is that of a proxy in front
// of it. Its agents, started with StartAgent, have a log and storage of their own.
func (t *Tier) Through(name string, kubeconfig []byte) (*Tier, error) {
	via := &Tier{Name: t.Name, Dir: filepath.Join(t.stage.options.Run, "clusters", t.Name+"-"+name), stage: t.stage}
	if err := os.MkdirAll(via.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make a directory for %s: %w", name, err)
	}
	if err := os.WriteFile(via.Kubeconfig(), kubeconfig, 0o600); err != nil {
		return nil, fmt.Errorf("cannot write kubeconfig of %s: %w", name, err)
	}
	return via, nil
}

// Child returns the tier that Cluster API made in this one under a name.
// It fails until the cluster has a kubeconfig.
func (t *Tier) Child(ctx context.Context, name string) (*Tier, error) {
	c, err := t.Client()
	if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: Namespace, Name: clusterapi.KubeconfigSecret(name)}
	if err := c.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("cannot read kubeconfig of %s: %w", name, err)
	}
	config, err := clientcmd.Load(secret.Data[clusterapi.KubeconfigKey])
	if err != nil {
		return nil, fmt.Errorf("cannot parse kubeconfig of %s: %w", name, err)
	}
	server, err := url.Parse(config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server)
	if err != nil {
		return nil, fmt.Errorf("cannot parse server of %s: %w", name, err)
	}
	// The directory of a control plane is known by its port, which nobody else
	// has as long as it runs.
	dirs, err := filepath.Glob(filepath.Join(t.stage.options.Run, "clusters", "*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		port, err := os.ReadFile(filepath.Join(dir, "port"))
		if err == nil && strings.TrimSpace(string(port)) == server.Port() {
			return &Tier{Name: name, Dir: dir, stage: t.stage}, nil
		}
	}
	return nil, fmt.Errorf("cannot find the directory of %s: no control plane has port %s", name, server.Port())
}

// Loopback is where a pod listens of which the API says an address, and PodNetwork the other
// way round, with a control plane and a node that have --pod-network; see package node of
// e2e/local.
func Loopback(podIP string) string { return swapped(podIP, "240.", "127.") }

// PodNetwork is the inverse of Loopback.
func PodNetwork(ip string) string { return swapped(ip, "127.", "240.") }

func swapped(ip, from, to string) string {
	if rest, ok := strings.CutPrefix(ip, from); ok {
		return to + rest
	}
	return ip
}

// AuditEvent is what the API server recorded of one write, or of one request if
// the control plane runs with --audit-reads.
type AuditEvent struct {
	Verb      string `json:"verb"`
	UserAgent string `json:"userAgent"`
	User      struct {
		Username string `json:"username"`
		// Extra has, for a token of a ServiceAccount, its id; see Credential.
		Extra map[string][]string `json:"extra"`
	} `json:"user"`
	// ImpersonatedUser is in whose name the user wrote.
	ImpersonatedUser struct {
		Username string `json:"username"`
	} `json:"impersonatedUser"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		APIGroup    string `json:"apiGroup"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	RequestURI string `json:"requestURI"`
	// Annotations have, among others, what was decided about the request, and why.
	Annotations map[string]string `json:"annotations"`
	// Received is when the request came, by the clock of this machine.
	Received time.Time `json:"requestReceivedTimestamp"`
}

// Writes reports whether the request could have changed anything. A review
// asks, and a token is handed out, by a request that creates and stores nothing.
func (e AuditEvent) Writes() bool {
	switch e.Verb {
	case "create":
		return e.ObjectRef.Subresource != "token" && e.ObjectRef.APIGroup != "authorization.k8s.io" && e.ObjectRef.APIGroup != "authentication.k8s.io"
	case "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

// Credential is the id of the token that the request came with (jti), empty if
// it was none of a ServiceAccount.
func (e AuditEvent) Credential() string {
	for _, id := range e.User.Extra["authentication.kubernetes.io/credential-id"] {
		if jti, ok := strings.CutPrefix(id, "JTI="); ok {
			return jti
		}
	}
	return ""
}

// ByAgent reports whether an agent wrote, in its own cluster or as a parent in a
// child.
func (e AuditEvent) ByAgent() bool {
	return strings.HasPrefix(e.UserAgent, "cascade-agent") || e.ByParent()
}

// ByParent reports whether an agent asked as a parent in a child.
func (e AuditEvent) ByParent() bool { return strings.HasPrefix(e.UserAgent, "cascade-parent") }

// Audit returns what was recorded from an offset of the audit log on, and the
// offset of its end.
func (t *Tier) Audit(from int64) ([]AuditEvent, int64, error) {
	f, err := os.Open(filepath.Join(t.Dir, "audit.log"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("cannot open audit log of %s: %w", t.Name, err)
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return nil, 0, fmt.Errorf("cannot read audit log of %s: %w", t.Name, err)
	}
	var events []AuditEvent
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return events, from, nil // a line that is still being written counts next time
		}
		from += int64(len(line))
		var e AuditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, 0, fmt.Errorf("cannot parse audit log of %s: %w", t.Name, err)
		}
		events = append(events, e)
	}
}
