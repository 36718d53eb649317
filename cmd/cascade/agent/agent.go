package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	goruntime "runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/syncer/answer"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// Program is what the agent gets from the program that it runs in.
type Program struct {
	// Version of the binary.
	Version string
	// Scheme has every kind that the agent reads or writes as a Go type. Each call
	// returns another one.
	Scheme func() *runtime.Scheme
	// Now is the clock.
	Now func() time.Time
	// Rand returns numbers in [0, 1), which spread what would happen at once. It is safe
	// for concurrent use.
	Rand func() float64
}

// options are the flags of the agent, in groups.
type options struct {
	serving     serving
	logging     logging
	place       place
	storage     storage
	tokens      tokens
	election    election
	sharding    sharding
	concurrency concurrency
	references  references
	gates       gates
	applying    applying
	kustomize   kustomize
	decryption  decryption
	helm        helm
	targets     targets
	configs     configs
	recorders   recorders
	alerts      alerts
	firstSync   firstSync
	children    children
	workers     workers
	flux        fluxFlags
	pauses      pauses
	ssh         sshAlgorithms
	names       names
	pages       pages
	receivers   receivers
	credentials credentials
}

// group is a group of flags.
type group interface {
	bind(*pflag.FlagSet)
	// check refuses flags that cannot be used together or at all.
	check() error
}

func (o *options) groups() []group {
	return []group{
		&o.sharding, &o.kustomize, &o.references, &o.firstSync, &o.logging, &o.serving, &o.place, &o.storage, &o.tokens, &o.election,
		&o.concurrency, &o.gates, &o.applying, &o.decryption, &o.helm, &o.targets, &o.configs, &o.recorders, &o.alerts, &o.children, &o.workers, &o.flux, &o.pauses, &o.ssh, &o.names, &o.pages, &o.receivers, &o.credentials,
	}
}

// addresses are those of the flags on which the agent serves, or which others find it by.
func (o *options) addresses() []*string {
	return []*string{
		&o.serving.metricsAddr, &o.serving.healthAddr, &o.storage.addr, &o.storage.advertisedAddr, &o.alerts.intake, &o.pages.addr, &o.receivers.addr,
	}
}

// bracketed is an address in the form in which one of IPv6 has a port. Kubernetes makes
// $(POD_IP):9440 in the manifests fd00::1:9440 where pods have IPv6.
func bracketed(address string) string {
	i := strings.LastIndexByte(address, ':')
	if i < 0 {
		return address
	}
	if ip, err := netip.ParseAddr(address[:i]); err != nil || !ip.Is6() {
		return address
	}
	return net.JoinHostPort(address[:i], address[i+1:])
}

// together refuses flags of several groups that cannot be used together.
func (o *options) together() error {
	if len(o.children.endpoints) > 0 && (o.serving.metricsAuth != metricsAuthKubernetes || o.serving.metricsAddr == "0") {
		return fmt.Errorf("cannot use --child-endpoints without --metrics-auth=%s and --metrics-addr: whoever reached the agent would read the metrics of all children", metricsAuthKubernetes)
	}
	if o.sharding.shards > 1 && !o.election.enabled {
		return errors.New("cannot use --shards without leader election: change --enable-leader-election")
	}
	return nil
}

// New returns the command that runs the agent.
func New(p Program) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of this tier",
		Long: "Run the agent of this tier. It finds its cluster as every client does: by KUBECONFIG, or by the\n" +
			"service account of its pod.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), p) },
	}
	for _, g := range o.groups() {
		g.bind(cmd.Flags())
	}
	return cmd
}

// run is the agent's life, until the context ends.
func (o *options) run(ctx context.Context, p Program) error {
	if err := worker.Supported(goruntime.GOOS, goruntime.GOARCH); err != nil {
		return fmt.Errorf("cannot run an agent here: %w; install it in a cluster with: cascade install", err)
	}
	for _, address := range o.addresses() {
		*address = bracketed(*address)
	}
	for _, g := range o.groups() {
		if err := g.check(); err != nil {
			return err
		}
	}
	if err := o.together(); err != nil {
		return err
	}
	if !o.serving.profiling {
		goruntime.MemProfileRate = 0 // samples of the heap that nobody can read come to some megabytes
	}
	logger := o.logging.build()
	o.flux.tell(logger)
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("cannot find the cluster: %w", err)
	}
	config.QPS = -1
	config.UserAgent = "cascade-agent/" + p.Version
	config.WarningHandler = rest.NoWarnings{} // of API servers about Flux's finalizer, on each write
	answer.Guard(config)
	if err := o.names.apply(config, p.Now); err != nil {
		return err
	}
	// From here on, whatever has no transport of its own has no network.
	if err := render.DenyNetwork(); err != nil {
		return err
	}
	flux, err := newFluxControllers(config, &o.place, &o.sharding, p.Now, logger)
	if err != nil {
		return err
	}
	if err := flux.await(ctx, o.serving.healthAddr); err != nil {
		return err
	}
	for _, l := range flux.left {
		logger.Info("leaving a kind alone", "kind", l.kind, "reason", l.reason, "lease", l.lease)
	}
	o.sharding.leave(flux.left)
	flux.leases = append(flux.leases, o.sharding.besideLeases()...)
	reporter := &report.Reporter{
		Namespace: o.place.namespace, Agent: p.Version, Now: p.Now, Reconciles: o.sharding.reconcilesObjects(p.Scheme()),
	}
	locks, err := o.election.build(config, o.place.namespace, p.Now)
	if err != nil {
		return err
	}
	reporter.Holder = locks.identity
	lock := locks.leader(o.sharding.lease(o.place.namespace)(v1alpha1.LeaderLease), reporter, o.sharding.shards)
	mgr, err := newManager(config, p.Scheme(), o, flux, lock, p.Now, logger)
	if err != nil {
		return err
	}
	flux.cache = mgr.GetCache()
	if err := mgr.Add(flux); err != nil {
		return fmt.Errorf("cannot set up the watch of Flux's controllers: %w", err)
	}
	w := &wiring{options: o, program: p, mgr: mgr, fence: flux.fence(o.election.fence(lock)), locks: locks}
	if err := w.wire(ctx, reporter); err != nil {
		return err
	}
	logger.Info("starting", "version", p.Version, "namespace", o.place.namespace)
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("cannot run: %w", err)
	}
	return nil
}
