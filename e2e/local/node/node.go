// Package node is a Kubernetes node without a container engine: it registers as a Node through virtual-kubelet and runs
// every container of a pod as a process of this machine.
//
// It exists so that the Deployment that Cascade seeds into a cluster runs for real in the end-to-end environment: with the
// pod's command, environment, service account token, probes, restarts and log, under a real scheduler and real controllers.
//
// What a pod gets:
//   - the command of each container, looked up in the node's own program directories first; images are never pulled and
//     image names mean nothing;
//   - a clean environment: the pod's own variables, PATH, HOME, TMPDIR, HOSTNAME, KUBERNETES_SERVICE_HOST and _PORT, and the
//     CASCADE_E2E_* variables of the node;
//   - a service account token that is bound to the pod and expires, renewed in place, and KUBECONFIG naming a file that
//     refers to it;
//   - an address in 127.0.0.0/8 that no other pod on the machine has (a hostNetwork pod has the node's own). With
//     Config.PodNetwork its status has another one, see OnPodNetwork.
//
// What it does not have: file systems, networks or limits of its own. A pod that needs those (see unsupported) stays
// Pending with the reason in its status, because a Failed one would be replaced without end by its ReplicaSet. Users,
// capabilities and resource limits of a security context are not applied.
//
// Invariants:
//   - No process of a pod outlives the node: the kernel kills it when the node ends, in whatever way, and a new node
//     first kills what is on record in its directory. What a pod starts in a session of its own is not the pod's.
//   - The node ends when its owner process is gone.
//   - One worker goroutine per pod UID owns that pod's processes and status; virtual-kubelet only says what should run.
//   - A pod whose object is gone has no process; a pod object is removed only after its processes ended.
//
// Failure model: while the API server cannot be reached pods go on running and being restarted, tokens and statuses are
// retried, and what was missed meanwhile is made up for when it answers again. A node that restarts runs its pods anew,
// with their restart counts carried on.
package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	vklog "github.com/virtual-kubelet/virtual-kubelet/log"
	vkslog "github.com/virtual-kubelet/virtual-kubelet/log/slog"
	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"

	"github.com/cascade-gitops/cascade/e2e/local/process"
)

// Config says what one node is.
type Config struct {
	Kubeconfig string   // admin kubeconfig of the API server to join
	Name       string   // of the Node object
	Dir        string   // of the node's own: pods, logs, process records
	IP         string   // address of the node; empty: Address of the API server's port
	PodNetwork bool     // the API has pods at OnPodNetwork of their addresses
	BinDirs    []string // where commands are looked for before the system's own
	// ShutdownGrace is what pods get between SIGTERM and SIGKILL when the node itself is asked to end.
	ShutdownGrace time.Duration
	Log           *slog.Logger
}

// Address is the loopback address of the n-th endpoint (1 to 254) on the node of the API server with that port. API servers
// of one machine have different ports, hence everything on the machine has an address of its own and no two pods compete
// for a port.
func Address(port, n int) string { return fmt.Sprintf("127.%d.%d.%d", port/256, port%256, n) }

// OnPodNetwork is the address by which the API names the pod with a loopback address. An API server proxies to no loopback
// address, nor may endpoints have one. This one is reserved, leads nowhere, and is the same but for its first octet: a control
// plane with --pod-network connects to the loopback address for it. The pod itself knows that one only, to listen there.
func OnPodNetwork(ip string) string {
	if rest, ok := strings.CutPrefix(ip, "127."); ok {
		return "240." + rest
	}
	return ip
}

// podWorkers bounds how many pods virtual-kubelet handles at a time. A worker waits for the processes of a deleted pod to
// end, so there are many; they cost nothing while they wait.
const podWorkers = 64

// Run runs the node until the context ends. It returns after all its pods have ended.
func Run(ctx context.Context, cfg Config) error {
	h, err := newHost(cfg)
	if err != nil {
		return err
	}
	defer h.launcher.Close()
	if err := killStale(filepath.Join(cfg.Dir, "pods")); err != nil {
		return err
	}
	if err := os.Remove(readyFile(cfg.Dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove ready mark: %w", err)
	}
	version, err := awaitServer(ctx, h.client)
	if err != nil {
		return err
	}

	listener, err := net.Listen("tcp", net.JoinHostPort(h.ip, "0"))
	if err != nil {
		return fmt.Errorf("cannot listen for log requests: %w", err)
	}
	logPort := listener.Addr().(*net.TCPAddr).Port

	ctx = vklog.WithLogger(ctx, vkslog.FromSlog(cfg.Log))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	run := func(name string, f func(context.Context) error) {
		group.Go(func() {
			err := f(ctx)
			if ctx.Err() == nil {
				cancel(fmt.Errorf("cannot go on without the %s: %w", name, err))
			}
		})
	}

	informer := podInformer(h.client, cfg.Name)
	pods := newPods(h, informer.Lister())
	controller, err := podController(h.client, informer, pods)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	registration, err := informer.Informer().AddEventHandler(pods.watch())
	if err != nil {
		return errors.Join(fmt.Errorf("cannot watch pods: %w", err), listener.Close())
	}
	run("pod informer", func(ctx context.Context) error { informer.Informer().RunWithContext(ctx); return nil })
	run("pod controller", func(ctx context.Context) error { return controller.Run(ctx, podWorkers) })
	run("log server", func(ctx context.Context) error { return serveLogs(ctx, listener, pods) })

	nodeReady := make(chan struct{})
	run("node registration", func(ctx context.Context) error {
		return keepRegistered(ctx, h, nodeObject(cfg.Name, h.ip, version, logPort), nodeReady)
	})
	run("ready mark", func(ctx context.Context) error {
		for _, ready := range []<-chan struct{}{nodeReady, controller.Ready()} {
			select {
			case <-ready:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			return ctx.Err()
		}
		if err := markReady(cfg.Dir); err != nil {
			return err
		}
		cfg.Log.Info("node is ready", "node", cfg.Name, "ip", h.ip)
		<-ctx.Done()
		return nil
	})

	<-ctx.Done()
	pods.shutdown(cfg.ShutdownGrace)
	group.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// host is what all pods of the node share.
type host struct {
	Config
	ip         string
	client     kubernetes.Interface
	serverURL  string
	serverHost string
	serverPort string
	ca         []byte
	inherited  []string // NAME=value pairs that every process gets
	launcher   *process.Launcher
	addresses  *addresses
}

func newHost(cfg Config) (*host, error) {
	restConfig, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cannot load kubeconfig %s: %w", cfg.Kubeconfig, err)
	}
	restConfig.QPS, restConfig.Burst = 100, 200
	restConfig.UserAgent = "cascade-local-node"
	if err := rest.LoadTLSFiles(restConfig); err != nil {
		return nil, fmt.Errorf("cannot load kubeconfig %s: %w", cfg.Kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("cannot make client: %w", err)
	}
	server, err := url.Parse(restConfig.Host)
	if err != nil {
		return nil, fmt.Errorf("cannot parse server address %s: %w", restConfig.Host, err)
	}
	port, err := strconv.Atoi(server.Port())
	if err != nil {
		return nil, fmt.Errorf("cannot find the port in server address %s: %w", restConfig.Host, err)
	}
	if cfg.IP == "" {
		cfg.IP = Address(port, 1)
	}
	address, err := netip.ParseAddr(cfg.IP)
	if err != nil {
		return nil, fmt.Errorf("cannot parse node address: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(cfg.Dir, "pods"), 0o755); err != nil {
		return nil, fmt.Errorf("cannot make node directory: %w", err)
	}
	h := &host{
		Config:     cfg,
		ip:         cfg.IP,
		client:     client,
		serverURL:  restConfig.Host,
		serverHost: server.Hostname(),
		serverPort: server.Port(),
		ca:         restConfig.CAData,
		launcher:   process.NewLauncher(),
		addresses:  newAddresses(address),
	}
	for _, pair := range os.Environ() {
		if strings.HasPrefix(pair, "CASCADE_E2E_") {
			h.inherited = append(h.inherited, pair)
		}
	}
	return h, nil
}

// awaitServer returns the version of the API server as soon as it answers.
func awaitServer(ctx context.Context, client kubernetes.Interface) (string, error) {
	for {
		version, err := client.Discovery().ServerVersion()
		if err == nil {
			return version.GitVersion, nil
		}
		if !sleep(ctx, 500*time.Millisecond) {
			return "", fmt.Errorf("cannot reach API server: %w", errors.Join(err, context.Cause(ctx)))
		}
	}
}

// podInformer watches the pods of the node, and nothing else: resyncs are off, because the watch restarts by itself.
func podInformer(client kubernetes.Interface, node string) coreinformers.PodInformer {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
		}))
	return factory.Core().V1().Pods()
}

// podController makes virtual-kubelet's controller, which turns the watch into calls to create, update and delete.
func podController(client kubernetes.Interface, informer coreinformers.PodInformer, pods *pods) (*vknode.PodController, error) {
	// The controller insists on informers for what environments refer to, though it reads none of them when it is told to leave
	// environments alone. These are never started. The node reads the few objects that a pod names itself, at every start of
	// a container as a kubelet does; caching all secrets of a cluster for that would be wrong, and the pod's address, which
	// environments refer to, is known to nobody else.
	unused := informers.NewSharedInformerFactory(client, 0).Core().V1()
	controller, err := vknode.NewPodController(vknode.PodControllerConfig{
		PodClient:                 client.CoreV1(),
		PodInformer:               informer,
		EventRecorder:             &record.FakeRecorder{}, // drops events: every pod status says more
		Provider:                  pods,
		ConfigMapInformer:         unused.ConfigMaps(),
		SecretInformer:            unused.Secrets(),
		ServiceInformer:           unused.Services(),
		SkipDownwardAPIResolution: true,
		// By default it gives a pod up for good after 20 failures, that is after some minutes without an API server.
		SyncPodsFromKubernetesShouldRetryFunc:   retryForever,
		DeletePodsFromKubernetesShouldRetryFunc: retryForever,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make pod controller: %w", err)
	}
	return controller, nil
}

func retryForever(_ context.Context, _ string, tries int, _ time.Time, _ error) (*time.Duration, error) {
	delay := min(time.Duration(tries)*200*time.Millisecond, 5*time.Second)
	return &delay, nil
}

// killStale ends what a former node in this directory left running. There should be nothing, because the kernel kills the
// processes of a node with it.
func killStale(dir string) error {
	records, err := filepath.Glob(filepath.Join(dir, "*", "*"+recordSuffix))
	if err != nil {
		return fmt.Errorf("cannot list process records: %w", err)
	}
	for _, file := range records {
		id, err := process.ReadRecord(file)
		if err == nil {
			err = id.KillGroup(killSignal)
		}
		if err == nil {
			err = os.Remove(file)
		}
		if err != nil {
			return fmt.Errorf("cannot end the process of a former node: %w", err)
		}
	}
	return nil
}

// sleep waits and says whether the time passed before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func serveLogs(ctx context.Context, listener net.Listener, pods *pods) error {
	certificate, err := selfSigned(pods.host.ip)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	server := &http.Server{Handler: logHandler(pods), ReadHeaderTimeout: 10 * time.Second, TLSConfig: certificate,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(pods.host.Log.Handler(), slog.LevelDebug)}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve logs: %w", err)
	}
	return nil
}
