package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote"
	"github.com/cascade-gitops/cascade/syncer"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// Deadlines in the agent's own cluster: of one call for what is applied, and of
// a whole reconcile for everything else.
const (
	localTimeout     = 30 * time.Second
	reconcileTimeout = 10 * time.Minute
)

// agentOptions are the flags of the agent.
type agentOptions struct {
	metricsAddr          string
	healthAddr           string
	namespace            string
	storagePath          string
	maxPackBytes         int64
	artifactAddr         string
	artifactAdvAddr      string
	tokenCacheSize       int
	tokenCacheDuration   time.Duration
	leaderElection       bool
	concurrent           int
	concurrentSources    int
	concurrentReleases   int
	concurrentChildren   int
	kubeconfigs          capibridge.Allowed
	indexMaxBytes        int64
	chartMaxBytes        int64
	chartFileMaxBytes    int64
	observeInterval      time.Duration
	noCrossNamespaceRefs bool
	noRemoteBases        bool
	controllerKinds      []string
	featureGates         string
	eventsAddr           string
	serviceAccount       string
	decryptionAccount    string
	kubeconfigAccount    string
	ageSecret            string
	vaultConfigMap       string
	overrideManagers     []string
	stageKinds           string
	requeueDependency    time.Duration
	labelSelector        string
	profiling            bool
	configSelector       string
	drift                string
	sweep                time.Duration
	logLevel             string
	image                string
	firstSync            string
}

func newAgent() *cobra.Command {
	o := agentOptions{}
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of this tier",
		Long: "Run the agent of this tier. It finds its cluster as every client does: by KUBECONFIG, or by the\n" +
			"service account of its pod.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.metricsAddr, "metrics-addr", ":8080", "address that Prometheus scrapes, /metrics; 0 serves none")
	f.StringVar(&o.healthAddr, "health-addr", ":9440", "address of /healthz and /readyz")
	f.StringVar(&o.namespace, "namespace", envOr("POD_NAMESPACE", v1alpha1.AgentNamespace), "namespace of the agent itself, for its lease and report")
	f.StringVar(&o.storagePath, "storage-path", filepath.Join(os.TempDir(), "cascade"), "directory for Git objects; it may be empty after a restart")
	f.Int64Var(&o.maxPackBytes, "max-pack-bytes", 512<<20, "most bytes that one fetch may receive")
	f.StringVar(&o.artifactAddr, "artifact-addr", "", "address that serves packed artifacts to other consumers of sources, e.g. :9090; empty packs and serves none")
	f.StringVar(&o.artifactAdvAddr, "artifact-adv-addr", "", "host and port in the URLs of artifacts; empty is the Service source-controller in the agent's namespace")
	f.IntVar(&o.tokenCacheSize, "token-cache-max-size", 100, "most tokens of providers that are kept")
	f.DurationVar(&o.tokenCacheDuration, "token-cache-max-duration", time.Hour, "longest time that a token of a provider is kept")
	f.BoolVar(&o.leaderElection, "enable-leader-election", true, "let only one of several agents of the tier work")
	f.IntVar(&o.concurrent, "concurrent", 4, "number of Kustomizations that are reconciled at the same time")
	f.IntVar(&o.concurrentSources, "concurrent-sources", 16, "number of sources that are fetched at the same time; they mostly wait for servers, some of which may not answer")
	f.IntVar(&o.concurrentReleases, "concurrent-releases", 8, "number of HelmReleases that are reconciled at the same time; one that waits for its objects to be ready takes a place")
	f.Int64Var(&o.indexMaxBytes, "helm-index-max-size", 50<<20, "most bytes of the index of a Helm repository")
	f.Int64Var(&o.chartMaxBytes, "helm-chart-max-size", 10<<20, "most bytes of a packaged chart")
	f.Int64Var(&o.chartFileMaxBytes, "helm-chart-file-max-size", 5<<20, "most bytes of one file of a chart")
	f.IntVar(&o.concurrentChildren, "concurrent-children", 64, "number of children that are pushed to at the same time")
	f.DurationVar(&o.observeInterval, "observe-interval", 45*time.Second, "time between two questions to a child that is ready: whether it is there, and what its agent reports")
	f.BoolVar(&o.kubeconfigs.ProxyURL, "allow-kubeconfig-proxy", false, "let kubeconfigs of children and of spec.kubeConfig send the traffic to their clusters by the proxy that they name")
	f.BoolVar(&o.noCrossNamespaceRefs, "no-cross-namespace-refs", false, "refuse sources of other namespaces")
	f.BoolVar(&o.noRemoteBases, "no-remote-bases", true, "refuse references of kustomization files to other hosts and repositories, which cannot be allowed yet")
	f.StringSliceVar(&o.controllerKinds, "controllers", controllerKinds(), "kinds that this process reconciles; sources of other kinds are read by the URL of their artifact")
	f.StringVar(&o.featureGates, "feature-gates", "", "Flux's feature gates, as Name=true,Other=false")
	f.StringVar(&o.eventsAddr, "events-addr", "", "URL of Flux's notification-controller, which events are posted to")
	f.StringVar(&o.serviceAccount, "default-service-account", "", "service account that Kustomizations and HelmReleases without one impersonate")
	f.StringVar(&o.decryptionAccount, "default-decryption-service-account", "", "service account for key services, of Kustomizations that name none")
	f.StringVar(&o.kubeconfigAccount, "default-kubeconfig-service-account", "", "service account for clusters of a ConfigMap that names none")
	f.StringVar(&o.ageSecret, "sops-age-secret", "", "namespace/name of a Secret with age keys, for Kustomizations whose decryption names no Secret")
	f.StringVar(&o.vaultConfigMap, "sops-vault-configmap", "", "namespace/name of the ConfigMap with the Vault servers that service accounts may log in to")
	f.StringArrayVar(&o.overrideManagers, "override-manager", nil, "field manager whose fields are taken over from objects, besides kubectl's; may be given several times")
	f.StringVar(&o.stageKinds, "custom-apply-stage-kinds", "", "kinds that are applied before the rest, as group/Kind,group/Kind")
	f.DurationVar(&o.requeueDependency, "requeue-dependency", 30*time.Second, "time after which a dependency or source is looked at again, should no event come before")
	f.StringVar(&o.labelSelector, "watch-label-selector", "", "reconcile only sources, Kustomizations and HelmReleases with these labels")
	f.StringVar(&o.configSelector, "watch-configs-label-selector", "reconcile.fluxcd.io/watch=Enabled", "ConfigMaps and Secrets with these labels wake the Kustomizations and HelmReleases that use them when they change")
	f.StringVar(&o.drift, "drift", string(syncer.DriftCorrect), "what to do about objects that somebody else changed: correct or report; the annotation cascade.dev/drift overrides it")
	f.DurationVar(&o.sweep, "sweep-interval", time.Hour, "time after which all objects are verified one by one, besides by watching; 5m at least")
	f.BoolVar(&o.profiling, "profiling", false, "serve Go's profiles beside the metrics, /debug/pprof")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info or error")
	f.StringVar(&o.firstSync, "first-sync", firstSyncAdopt, "what to do about Clusters that Git declares and that do not exist, in a tier that has nothing on record: adopt holds them until a person says that they are new, create creates them")
	f.StringVar(&o.image, "agent-image", envOr("CASCADE_IMAGE", "cascade"), "image of agents that are installed in children")
	return cmd
}

func envOr(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func (o agentOptions) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	level := zapcore.InfoLevel
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return fmt.Errorf("cannot use --log-level %q: use debug, info or error", o.logLevel)
	}
	logger := zap.New(zap.JSONEncoder(func(c *zapcore.EncoderConfig) { c.EncodeTime = zapcore.ISO8601TimeEncoder }),
		zap.Level(level), zap.StacktraceLevel(zapcore.PanicLevel))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)

	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("cannot find the cluster: %w", err)
	}
	config.QPS = -1
	config.UserAgent = "cascade-agent/" + version()
	config.WarningHandler = rest.NoWarnings{} // of API servers about Flux's finalizer, on each write
	// From here on, whatever has no transport of its own has no network.
	if err := render.DenyNetwork(); err != nil {
		return err
	}
	if err := o.awaitFlux(ctx, config, logger); err != nil {
		return err
	}
	reporter := &remote.Reporter{Namespace: o.namespace, Agent: version(), Now: time.Now, Reconciles: o.reconcilesObject}
	lock, err := o.lock(config, reporter)
	if err != nil {
		return err
	}
	mgr, err := o.manager(config, lock)
	if err != nil {
		return err
	}
	if err := o.controllers(ctx, mgr, reporter, o.fence(lock)); err != nil {
		return err
	}
	logger.Info("starting", "version", version(), "namespace", o.namespace)
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("cannot run: %w", err)
	}
	return nil
}

func (o agentOptions) manager(config *rest.Config, lock resourcelock.Interface) (ctrl.Manager, error) {
	ofClusters, err := labels.NewRequirement(capibridge.ClusterNameLabel, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	crds := &metav1.PartialObjectMetadata{}
	crds.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	secrets := &metav1.PartialObjectMetadata{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                              newScheme(),
		Controller:                          ctrlconfig.Controller{ReconciliationTimeout: reconcileTimeout},
		Metrics:                             metricsserver.Options{BindAddress: o.metricsAddr, ExtraHandlers: o.profiles()},
		HealthProbeBindAddress:              o.healthAddr,
		LeaderElection:                      o.leaderElection,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				// Only the one that tells of Cluster API, and only the Secrets that
				// belong to clusters, and of both the metadata only.
				crds:    {Field: fields.OneTermEqualSelector("metadata.name", remote.ClusterCRD)},
				secrets: {Label: labels.NewSelector().Add(*ofClusters)},
			},
		},
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot set up: %w", err)
	}
	for name, add := range map[string]func(string, healthz.Checker) error{"healthz": mgr.AddHealthzCheck, "readyz": mgr.AddReadyzCheck} {
		if err := add(name, healthz.Ping); err != nil {
			return nil, fmt.Errorf("cannot set up %s: %w", name, err)
		}
	}
	return mgr, nil
}

// profiles are Go's, beside the metrics, where Flux's controllers have them. Who
// reaches the port can read them, so they are there only if asked for.
func (o agentOptions) profiles() map[string]http.Handler {
	if !o.profiling {
		return nil
	}
	return map[string]http.Handler{
		"/debug/pprof/":        http.HandlerFunc(pprof.Index),
		"/debug/pprof/cmdline": http.HandlerFunc(pprof.Cmdline),
		"/debug/pprof/profile": http.HandlerFunc(pprof.Profile),
		"/debug/pprof/symbol":  http.HandlerFunc(pprof.Symbol),
		"/debug/pprof/trace":   http.HandlerFunc(pprof.Trace),
	}
}

// lock is the lease that the working agent holds. Its identity is the pod's
// name: a container that is restarted in its pod is still the holder and goes
// on at once, where a random identity would have to wait for its own ghost.
func (o agentOptions) lock(config *rest.Config, reporter *remote.Reporter) (*heldLease, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot read host name: %w", err)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make client: %w", err)
	}
	return newHeldLease(&reportingLock{reporter: reporter, LeaseLock: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: o.namespace, Name: o.lease(v1alpha1.LeaderLease)},
		Client:     clients.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: envOr("POD_NAME", host)},
	}}, time.Now), nil
}

// reportingLock tells with each renewal of the lease, which is written anyway,
// whether the report has changed.
type reportingLock struct {
	*resourcelock.LeaseLock
	reporter *remote.Reporter
}

// Update renews the lease.
func (l *reportingLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if digest := l.reporter.Digest(); digest != "" {
		l.Labels = map[string]string{v1alpha1.ReportLabel: digest}
	}
	return l.LeaseLock.Update(ctx, record)
}

// fence is asked before each delete. Without a lease there is nothing to lose.
func (o agentOptions) fence(lock *heldLease) func() error {
	if !o.leaderElection {
		return nil
	}
	return lock.MayDelete
}

// storage packs artifacts and serves them, if somebody is to have them.
func (o agentOptions) storage(mgr ctrl.Manager) (*source.Storage, error) {
	if o.artifactAddr == "" {
		return nil, nil
	}
	advertised := o.artifactAdvAddr
	if advertised == "" {
		advertised = "source-controller." + o.namespace + ".svc.cluster.local."
	}
	storage := source.NewStorage(filepath.Join(o.storagePath, "artifacts"), o.artifactAddr, advertised)
	return storage, mgr.Add(storage)
}
