package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/cascade-gitops/cascade/syncer/memo"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	notificationv1beta3 "github.com/fluxcd/notification-controller/api/v1beta3"
	"github.com/fluxcd/pkg/auth"
	tokencache "github.com/fluxcd/pkg/cache"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/pivot"
	"github.com/cascade-gitops/cascade/pivot/management"
	"github.com/cascade-gitops/cascade/remote"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/endpoint"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/providers"
	"github.com/cascade-gitops/cascade/remote/report"
	"github.com/cascade-gitops/cascade/state/backup"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/artifact"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/credential"
	"github.com/cascade-gitops/cascade/syncer/decrypt"
	"github.com/cascade-gitops/cascade/syncer/depend"
	"github.com/cascade-gitops/cascade/syncer/events"
	"github.com/cascade-gitops/cascade/syncer/fetch"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/helmrelease"
	"github.com/cascade-gitops/cascade/syncer/kustomization"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/request"
	"github.com/cascade-gitops/cascade/syncer/rights"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/target"
	"github.com/cascade-gitops/cascade/syncer/trace"
	"github.com/cascade-gitops/cascade/syncer/wake"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// wiring puts the built parts together. It is used once.
type wiring struct {
	options *options
	program Program
	mgr     ctrl.Manager
	// fence is asked before each delete; nil lets all pass.
	fence func() error
	locks *locks

	shared
}

// shared are the parts that several controllers have.
type shared struct {
	local   *apply.Cluster
	tokens  *tokencache.TokenCache
	targets *target.Targets
	finder  *find.Finder
	// selects passes the objects of this agent.
	selects func(client.Object) bool
	events  func(controller string) record.EventRecorder
	metrics *metrics.Metrics
	// traces is nil where nobody wants any.
	traces   *trace.Tracer
	features features
	claims   *claim.Claims
	// compositions are nil if Kustomizations are not reconciled.
	compositions remote.Compositions
	// repositories are nil if GitRepositories are not reconciled.
	repositories remote.Repositories
	// registries and writer read images and write to Git, for the kinds of image updates.
	registries registries
	writer     *fetch.GitRepositories
	// stages are the kinds that are applied before the rest.
	stages map[schema.GroupKind]struct{}
	// decryption lacks its client and tokens.
	decryption decrypt.Options
	// clusters follows the Clusters of the tier; nil if nobody here reads them.
	clusters *clusters.Watch
	// firstSync is nil if nothing is applied. record reads what it keeps, in any process of the tier.
	firstSync *firstsync.Tier
	record    firstsync.Record
	// configs is nil if nobody wants ConfigMaps and Secrets watched.
	configs cache.Cache
	// workers run what text of others may make endless.
	workers *worker.Pool
	// artifacts packs snapshots for consumers outside; nil if there are none. kept has those
	// of an earlier process; nil keeps nothing.
	artifacts *source.Storage
	kept      *source.Kept
	// stalls watches the reconciles of all controllers.
	stalls *stall.Watchdog
	// requests are for reconciles of objects.
	requests *request.Requests
	// connections lead to the children; nil if Layers are not reconciled.
	connections *link.Pool
}

// wire sets up what the process reconciles, and the report about it.
func (w *wiring) wire(ctx context.Context, reporter *report.Reporter) error {
	// It is a property of Flux's library, which asks a variable of the process.
	auth.EnableObjectLevelWorkloadIdentity()
	if err := w.mgr.Add(frugal{now: w.program.Now}); err != nil {
		return fmt.Errorf("cannot set up memory: %w", err)
	}
	if err := w.share(); err != nil {
		return err
	}
	if err := w.trace(ctx); err != nil {
		return err
	}
	if err := w.sources(); err != nil {
		return fmt.Errorf("cannot set up the controllers of sources: %w", err)
	}
	if err := w.images(ctx); err != nil {
		return fmt.Errorf("cannot set up the controllers of image updates: %w", err)
	}
	for _, of := range []struct {
		kind, name string
		setUp      func(context.Context) error
	}{
		{generatorv1.ArtifactGeneratorKind, generatorv1.ArtifactGeneratorKind + " controller", w.generators},
		{kustomizev1.KustomizationKind, kustomizev1.KustomizationKind + " controller", w.kustomizations},
		{helmv2.HelmReleaseKind, helmv2.HelmReleaseKind + " controller", w.releases},
		{layerKind, "Layer and Child controllers", w.children},
		{backup.Kind, backup.Kind + " controller", w.backups},
	} {
		if !w.options.sharding.reconciles(of.kind) {
			continue
		}
		if err := of.setUp(ctx); err != nil {
			return fmt.Errorf("cannot set up %s: %w", of.name, err)
		}
	}
	if w.options.sharding.reconciles(credential.Kind) {
		if err := w.credentials(); err != nil {
			return fmt.Errorf("cannot set up Credentials: %w", err)
		}
	}
	inbox, err := w.pass()
	if err != nil {
		return fmt.Errorf("cannot set up hints: %w", err)
	}
	if w.options.sharding.reconciles(notificationv1.ReceiverKind) {
		if err := w.receive(ctx, inbox); err != nil {
			return fmt.Errorf("cannot set up Receivers: %w", err)
		}
	}
	if err := w.options.pages.build(w.mgr, w.options.place.namespace, w.program.Now); err != nil {
		return fmt.Errorf("cannot set up pages: %w", err)
	}
	reporter.Client, reporter.Cache = w.mgr.GetClient(), w.mgr.GetCache()
	return w.mgr.Add(reporter)
}

// share makes the shared parts.
func (w *wiring) share() error {
	o, mgr, now := w.options, w.mgr, w.program.Now
	var err error
	if w.local, err = o.applying.build(mgr.GetConfig(), mgr.GetScheme(), w.fence); err != nil {
		return err
	}
	w.metrics = metrics.New(ctrlmetrics.Registry)
	if w.selects, err = o.sharding.build(o.place.namespace); err != nil {
		return err
	}
	if err := o.serving.tell(w.program.Version, o.sharding.lease(o.place.namespace)(v1alpha1.LeaderLease), ctrlmetrics.Registry, mgr, o.sharding.kinds, w.selects); err != nil {
		return err
	}
	w.requests = requester(mgr, now)
	w.stalls = stall.New(mgr.GetClient(), now, ctrlmetrics.Registry)
	if err := errors.Join(mgr.Add(w.stalls), mgr.AddHealthzCheck("workers", w.stalls.Check)); err != nil {
		return fmt.Errorf("cannot set up the watch of reconciles: %w", err)
	}
	if w.features, err = o.gates.build(o.configs.watched()); err != nil {
		return err
	}
	if w.stages, err = o.applying.stages(); err != nil {
		return err
	}
	if w.decryption, err = o.decryption.build(); err != nil {
		return err
	}
	if w.features.watchConfigs {
		if w.configs, err = o.configs.build(mgr); err != nil {
			return err
		}
	}
	if w.workers, err = o.workers.build(mgr, ctrlmetrics.Registry); err != nil {
		return err
	}
	sink, err := w.notifications()
	if err != nil {
		return fmt.Errorf("cannot set up notifications: %w", err)
	}
	if w.events, err = o.recorders.build(mgr, sink, now); err != nil {
		return err
	}
	if w.tokens, err = o.tokens.build(ctrlmetrics.Registry); err != nil {
		return err
	}
	w.targets = o.targets.build(w.local, w.tokens, mgr.GetScheme(), now)
	fetched := map[string]bool{}
	for _, kind := range o.sharding.kinds {
		fetched[kind] = true
	}
	w.finder = &find.Finder{
		Client: mgr.GetClient(), Reader: w.local, Snapshots: source.NewSnapshots(), Fetched: fetched,
		Artifacts: source.NewArtifacts(o.storage.dir("others"), o.storage.maxPackBytes), Shard: w.selects,
	}
	w.claims = &claim.Claims{Client: mgr.GetClient(), Live: w.local, ServiceAccount: w.targets.ServiceAccount, Identify: w.targets.Identify, Now: now}
	if len(o.sharding.of(kustomizev1.KustomizationKind, helmv2.HelmReleaseKind, layerKind)) > 0 {
		w.clusters = &clusters.Watch{Cache: mgr.GetCache(), Reader: mgr.GetAPIReader(), Everywhere: o.sharding.shards > 1}
		if err := mgr.Add(w.clusters); err != nil {
			return fmt.Errorf("cannot set up the watch of Clusters: %w", err)
		}
	}
	w.firstSync, err = o.firstSync.build(mgr, o.place.namespace, w.clusters, o.sharding.of(kustomizev1.KustomizationKind, helmv2.HelmReleaseKind), w.events("cascade"), w.program.Now)
	w.record = firstsync.Record{Reader: mgr.GetAPIReader(), Namespace: o.place.namespace, Kept: w.firstSync != nil}
	w.targets.Elsewhere = w.record.Elsewhere
	return err
}

// notifications makes what tells Providers of events; nil if this process does not serve
// Alerts.
func (w *wiring) notifications() (events.Sink, error) {
	o := w.options
	if !o.sharding.reconciles(notificationv1beta3.AlertKind) {
		return nil, nil
	}
	logins, err := o.tokens.logins(w.program.Now)
	if err != nil {
		return nil, err
	}
	namespace := ""
	if !o.sharding.allNamespaces {
		namespace = o.place.namespace
	}
	d, err := o.alerts.build(tellers{
		mgr: w.mgr, logins: logins, workers: w.workers, namespace: namespace, noCrossNamespaceRefs: o.references.noCrossNamespace,
		registry: ctrlmetrics.Registry, now: w.program.Now, random: w.program.Rand,
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// sources sets up the controllers of the kinds of sources that are fetched.
func (w *wiring) sources() error {
	o, mgr := w.options, w.mgr
	logins, err := o.tokens.logins(w.program.Now)
	if err != nil {
		return err
	}
	if w.artifacts, err = o.storage.build(mgr, o.place.namespace); err != nil {
		return err
	}
	w.kept = o.storage.kept()
	all := &fetch.Sources{
		Stalls: w.stalls,
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Snapshots: w.finder.Snapshots, Logins: logins, Storage: w.artifacts,
		Kept: w.kept, Events: w.events("source-controller"), Metrics: w.metrics, Traces: w.traces, Now: w.program.Now, Jitter: w.jitter(),
		Retries: o.pauses.retries(), Shard: w.selects, Part: w.followed(),
	}
	dir, most := o.storage.dir, o.storage.maxPackBytes
	images := source.NewImages(dir("images"), most, w.program.Now)
	indexes, charts := o.helm.build(dir, ctrlmetrics.Registry)
	repositories := &fetch.GitRepositories{Sources: all, Mirrors: o.ssh.restrict(source.NewMirrors(dir("git"), most))}
	if o.sharding.reconciles(sourcev1.GitRepositoryKind) {
		w.repositories = repositories
	}
	kinds := map[string]interface {
		SetupWithManager(ctrl.Manager, int) error
	}{
		sourcev1.GitRepositoryKind:  repositories,
		sourcev1.OCIRepositoryKind:  &fetch.OCIRepositories{Sources: all, Images: images},
		sourcev1.BucketKind:         &fetch.Buckets{Sources: all, Buckets: source.NewBuckets(dir("buckets"), most)},
		sourcev1.HelmRepositoryKind: &fetch.HelmRepositories{Sources: all, Indexes: indexes},
		sourcev1.HelmChartKind: &fetch.HelmCharts{
			Sources: all, Charts: charts, Images: images, ChartBytes: o.helm.chartBytes, From: w.finder,
		},
	}
	for kind, reconciler := range kinds {
		if !o.sharding.reconciles(kind) {
			continue
		}
		if err := reconciler.SetupWithManager(mgr, o.concurrency.sources); err != nil {
			return err
		}
	}
	w.registries, w.writer = registries{all, images}, repositories
	return nil
}

// generators sets up what makes sources of others.
func (w *wiring) generators(ctx context.Context) error {
	o, mgr := w.options, w.mgr
	r := &artifact.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Sources: w.finder, Composer: source.NewComposer(o.storage.dir("composed"), o.storage.maxPackBytes),
		Storage: w.artifacts, Kept: w.kept, Events: w.events(artifact.Manager), Metrics: w.metrics, Stalls: w.stalls, Now: w.program.Now, Jitter: w.jitter(),
		Rules:     artifact.Rules{NoCrossNamespaceRefs: o.references.noCrossNamespace, RequeueDependency: o.references.requeue, Retries: o.pauses.retries()},
		MayDelete: w.fence,
	}
	return r.SetupWithManager(ctx, mgr, o.concurrency.sources)
}

// followed is nil where this process does not drive children that need sources of others as
// well.
func (w *wiring) followed() *fetch.Part {
	o := &w.options.sharding
	if !o.reconciles(layerKind) || o.shards == 1 && !o.split() {
		return nil
	}
	part := &fetch.Part{}
	if o.shards > 1 {
		part.Elected = w.mgr.Elected()
	}
	return part
}

func (w *wiring) kustomizations(ctx context.Context) error {
	o, mgr, f := w.options, w.mgr, w.features
	clean := memo.New(w.local.Reader(), kustomizev1.GroupVersion.Group, w.program.Now)
	if err := mgr.Add(clean); err != nil {
		return fmt.Errorf("cannot set up memo: %w", err)
	}
	accounts := rights.New(rights.Options{
		Reader: w.local.Reader(), Agent: w.local, Mapper: w.local.RESTMapper(), Now: w.program.Now, Random: w.program.Rand,
		As: func(user string) (rights.Account, error) { return w.local.As(user) },
	})
	if err := mgr.Add(accounts); err != nil {
		return fmt.Errorf("cannot set up the watch of rights: %w", err)
	}
	decryption := w.decryption
	decryption.Client, decryption.Tokens = mgr.GetClient(), w.tokens
	r := &kustomization.Reconciler{
		Stalls: w.stalls,
		Client: mgr.GetClient(), Targets: w.targets, Memo: clean, Rights: accounts, FirstSync: w.firstSync, Sources: w.finder, Claims: w.claims,
		Events: w.events("kustomize-controller"), Metrics: w.metrics, Traces: w.traces, Now: w.program.Now, Jitter: w.jitter(), Random: w.program.Rand,
		Workers: w.workers, Clusters: w.clusters,
		Rules: kustomization.Rules{
			Drift: kustomization.DriftMode(o.kustomize.drift), Sweep: o.kustomize.sweep,
			NoCrossNamespaceRefs: o.references.noCrossNamespace, RequeueDependency: o.references.requeue, Stages: w.stages,
			ExternalArtifact: f.externalArtifact, LenientSubstitution: f.lenientSubstitution, NoFailFast: f.noFailFast,
			MigrateAPIVersion: f.migrateAPIVersion, NoCommitStatusEvent: f.noCommitStatusEvent,
			Dependencies: w.dependencies(), Decryption: decryption, Retries: o.pauses.retries(),
		},
	}
	w.claims.Kustomizations, w.compositions = r, compositions{r}
	return r.SetupWithManager(ctx, mgr, o.concurrency.kustomizations, w.configs)
}

// compositions show the Rollouts what Kustomizations declare of Clusters.
type compositions struct{ *kustomization.Reconciler }

// Of implements remote.Compositions.
func (c compositions) Of(name types.NamespacedName) remote.Composition {
	if of := c.Composed(name); of != nil {
		return of
	}
	return nil
}

func (w *wiring) releases(ctx context.Context) error {
	o, mgr, f := w.options, w.mgr, w.features
	events := w.events("helm-controller")
	undrifted := memo.New(w.local.Reader(), helmv2.GroupVersion.Group, w.program.Now)
	if err := mgr.Add(undrifted); err != nil {
		return fmt.Errorf("cannot set up memo: %w", err)
	}
	memory := release.NewMemory()
	r := &helmrelease.Reconciler{
		Stalls: w.stalls,
		Client: mgr.GetClient(), Targets: w.targets, FirstSync: w.firstSync, Sources: w.finder, Claims: w.claims,
		Releases: &release.Releases{
			Events: events, Now: w.program.Now, OverrideManagers: o.applying.overrideManagers, UseHelm3Defaults: f.helm3Defaults,
			DefaultToRetryOnFailure: f.retryOnFailure, AllowDNSLookups: f.dnsLookups, Workers: w.workers,
			Memory: memory, Memo: undrifted, Sweep: o.kustomize.sweep, Random: w.program.Rand,
		},
		Memory: memory,
		Events: events, Metrics: w.metrics, Traces: w.traces, Now: w.program.Now, Jitter: w.jitter(), ChartFileBytes: o.helm.chartFileBytes,
		Rules: helmrelease.Rules{
			NoCrossNamespaceRefs: o.references.noCrossNamespace, RequeueDependency: o.references.requeue,
			ExternalArtifact: f.externalArtifact, NoDigestTracking: f.noDigestTracking, Dependencies: w.dependencies(),
			Retries: o.pauses.retries(),
		},
	}
	w.claims.HelmReleases = r
	return r.SetupWithManager(ctx, mgr, o.concurrency.releases, w.configs)
}

// dependencies are the rules of spec.dependsOn.
func (w *wiring) dependencies() depend.Rules {
	return depend.Rules{Additive: w.features.additiveDependencies, Workers: w.workers}
}

// jitter spreads what would be reconciled at once.
func (w *wiring) jitter() wake.Jitter { return w.options.pauses.jitter(w.program.Rand) }

// inCluster is how the agent's own cluster is reached. The token of a pod's account is
// replaced in its file every hour.
func (w *wiring) inCluster() (*rest.Config, error) {
	config := rest.CopyConfig(w.mgr.GetConfig())
	config.WrapTransport = nil // it is bounded as another's is
	if file := config.BearerTokenFile; file != "" {
		token, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("cannot read the agent's token: %w", err)
		}
		config.BearerToken = strings.TrimSpace(string(token))
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("cannot read the agent's certificates: %w", err)
	}
	return config, nil
}

// backups save the state of this tier. It is one, whatever labels and namespaces share out.
func (w *wiring) backups(context.Context) error {
	logins, err := w.options.tokens.logins(w.program.Now)
	if err != nil {
		return err
	}
	r := &backup.Reconciler{
		Client: w.mgr.GetClient(), Reader: w.mgr.GetAPIReader(), Namespace: w.options.place.namespace, Holder: w.locks.identity, Program: w.program.Version,
		Events: w.events("cascade"), Metrics: backup.NewMetrics(ctrlmetrics.Registry), Stalls: w.stalls, Now: w.program.Now, Jitter: w.jitter(),
		Retries: w.options.pauses.retries(), Logins: logins, Shard: w.selects, MayWrite: w.fence,
	}
	if w.firstSync != nil {
		r.Records = w.firstSync.Records
	}
	return r.SetupWithManager(w.mgr)
}

func (w *wiring) children(ctx context.Context) error {
	o, mgr, now := w.options, w.mgr, w.program.Now
	connections := link.NewPool(ctx, mgr.GetScheme(), now, w.program.Rand)
	connections.Addresses = o.targets.addresses
	w.connections = connections
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("cannot name this process: %w", err)
	}
	// The pod's name may come back; what stands in children must not.
	holder := cmp.Or(os.Getenv("POD_NAME"), host) + "_" + string(uuid.NewUUID())
	tier := epoch.NewTier(w.local, o.place.namespace, holder)
	if err := mgr.Add(tier); err != nil {
		return fmt.Errorf("cannot set up the record of who led the tier: %w", err)
	}
	part := remote.Part{Selects: w.selects}
	if part.Tenures, err = o.sharding.tenures(mgr, &o.election, w.locks, w.local, tier, ctrlmetrics.Registry); err != nil {
		return err
	}
	switch {
	case part.Tenures != nil:
		part.Elected, connections.Fence = mgr.Elected(), part.Tenures.MayWrite
	case w.fence != nil:
		connections.Fence = func(types.NamespacedName) error { return w.fence() }
	}
	drivers := &endpoint.Drivers{
		Client: mgr.GetAPIReader(), Namespace: o.place.namespace, Identity: w.locks.identity, Shards: o.sharding.shards, Listen: o.serving.metricsAddr, Now: now,
	}
	if o.election.enabled {
		drivers.Leader = o.sharding.lease(o.place.namespace)(v1alpha1.LeaderLease)
	}
	scrapes, err := o.children.serve(environment{
		mgr: mgr, connections: connections, selects: w.selects, drivers: drivers, registry: ctrlmetrics.Registry, log: mgr.GetLogger().WithName("children"),
	})
	if err != nil {
		return err
	}
	accounts := &account.Accounts{
		Parent: w.local, Default: w.targets.ServiceAccount, NoCrossNamespaceRefs: o.references.noCrossNamespace, Now: now,
		As: func(ctx context.Context, user string) (account.Caller, error) {
			return w.targets.Connect(ctx, "", target.Ref{User: user})
		},
	}
	children := &remote.Children{
		Tier: tier, Part: part, Accounts: accounts, Scrapes: scrapes,
		Client: mgr.GetClient(), Cache: mgr.GetCache(), Clusters: w.clusters, Cluster: w.local, Snapshots: w.finder.Snapshots, Connections: connections,
		Events: w.events("cascade"), Metrics: remote.NewMetrics(ctrlmetrics.Registry), Traces: w.traces, Now: now, Rand: w.program.Rand,
		ObserveInterval: o.children.interval, Bridge: &capibridge.Providers{}, Allowed: o.targets.kubeconfigs, OfConfigMap: w.targets.OfConfigMap, InCluster: w.inCluster,
		Elsewhere: w.record.Elsewhere, Version: w.program.Version, Providers: providers.NewLibrary(), Workers: w.workers, FirstSeeds: remote.NewFirstSeeds(w.local, o.place.namespace),
	}
	w.claims.Layers = children.Outstanding
	layers := &remote.Layers{
		Part: part, Client: mgr.GetClient(), Reader: w.local, Snapshots: w.finder.Snapshots, AgentImage: o.children.image, Events: children.Events, Now: now,
	}
	rollouts := &remote.Rollouts{
		Part: part, Client: mgr.GetClient(), Reader: w.local, Snapshots: w.finder.Snapshots, Clusters: w.clusters, Events: children.Events, MayWrite: w.fence,
		Compositions: w.compositions, Repositories: w.repositories, MaxChanging: o.children.changing, Version: w.program.Version, NoCrossNamespaceRefs: o.references.noCrossNamespace, Metrics: remote.NewRolloutMetrics(ctrlmetrics.Registry), Now: now,
	}
	told := part
	told.Elected = mgr.Elected() // a replica that stands by tells nothing
	if err := ctrlmetrics.Registry.Register(&remote.Fleet{Client: mgr.GetClient(), Connections: connections, Part: told, Now: now}); err != nil {
		return fmt.Errorf("cannot register the metrics of the fleet: %w", err)
	}
	if err := remote.SetupWithManager(mgr, w.stalls, children, layers, rollouts, o.concurrency.children); err != nil {
		return err
	}
	return w.management(holder)
}

// management sets up the pivots that Layers declare, and what finishes those whose other tier
// is gone.
func (w *wiring) management(holder string) error {
	o, mgr := w.options, w.mgr
	side := pivot.Side{Name: "this tier", Client: w.local, Namespace: o.place.namespace}
	journals, err := journalCache(mgr, o.place.namespace)
	if err != nil {
		return err
	}
	if err := errors.Join(mgr.Add(journals), mgr.Add(&pivot.Keeper{Side: side, Journals: journals})); err != nil {
		return fmt.Errorf("cannot set up what finishes pivots: %w", err)
	}
	return (&management.Reconciler{
		Client: mgr.GetClient(), Clusters: w.clusters, Side: side, Allowed: o.targets.kubeconfigs, Addresses: o.targets.addresses, Selects: w.selects,
		Elsewhere: w.record.Elsewhere, Events: w.events("cascade"), Holder: holder, Program: w.program.Version, Now: w.program.Now,
	}).SetupWithManager(mgr, w.stalls)
}
