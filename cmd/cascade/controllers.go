package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/auth"
	tokencache "github.com/fluxcd/pkg/cache"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote"
	"github.com/cascade-gitops/cascade/remote/providers"
	"github.com/cascade-gitops/cascade/syncer"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/chart"
	"github.com/cascade-gitops/cascade/syncer/decrypt"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// layerKind stands for Layers and the children that they are for.
const layerKind = "Layer"

// controllerKinds that a process may reconcile.
func controllerKinds() []string {
	return append(sourceKinds(), kustomizev1.KustomizationKind, helmv2.HelmReleaseKind, layerKind)
}

// sourceKinds that a process may fetch.
func sourceKinds() []string {
	return []string{sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.HelmRepositoryKind, sourcev1.HelmChartKind}
}

func (o agentOptions) reconciles(kind string) bool { return slices.Contains(o.controllerKinds, kind) }

// check refuses flags that cannot be used together or at all.
func (o agentOptions) check() error {
	for _, kind := range o.controllerKinds {
		if !slices.Contains(controllerKinds(), kind) {
			return fmt.Errorf("cannot use --controllers %q: the kinds are %s", kind, strings.Join(controllerKinds(), ", "))
		}
	}
	switch mode := syncer.DriftMode(o.drift); {
	case mode != syncer.DriftCorrect && mode != syncer.DriftReport:
		return fmt.Errorf("cannot use --drift %q: use correct or report", o.drift)
	case o.sweep < 5*time.Minute:
		return fmt.Errorf("cannot use --sweep-interval %s: 5m is the least", o.sweep)
	case o.requeueDependency <= 0:
		return fmt.Errorf("cannot use --requeue-dependency %s: it must be positive", o.requeueDependency)
	case o.reconciles(layerKind) && !o.reconciles(sourcev1.GitRepositoryKind):
		return errors.New("cannot reconcile Layer without GitRepository: layers are rendered from repositories that this process fetches; change --controllers")
	case o.reconciles(sourcev1.HelmChartKind) != o.reconciles(sourcev1.HelmRepositoryKind):
		return errors.New("cannot reconcile only one of HelmChart and HelmRepository: charts are found in indexes that this process reads; change --controllers")
	case o.firstSync != firstSyncAdopt && o.firstSync != firstSyncCreate:
		return fmt.Errorf("cannot use --first-sync %q: use adopt or create", o.firstSync)
	case !o.noRemoteBases:
		return errors.New("cannot use --no-remote-bases=false: references to other hosts are not followed; copy the files into the source, or use another source")
	}
	return nil
}

// rules are the flags about Kustomizations.
func (o agentOptions) rules() (rules syncer.Rules, releases releaseGates, watchConfigs bool, err error) {
	rules = syncer.Rules{NoCrossNamespaceRefs: o.noCrossNamespaceRefs, RequeueDependency: o.requeueDependency}
	watchConfigs = o.configSelector != ""
	if err := setGates(o.featureGates, gates(&rules, &releases, &watchConfigs)); err != nil {
		return rules, releases, false, err
	}
	if rules.Stages, err = ssautil.ParseGroupKindSet(o.stageKinds); err != nil {
		return rules, releases, false, fmt.Errorf("cannot use --custom-apply-stage-kinds: %w", err)
	}
	rules.Decryption = decrypt.Options{
		ServiceAccount: o.decryptionAccount,
		Vault:          decrypt.Vault{Address: os.Getenv("VAULT_ADDR"), Token: os.Getenv("VAULT_TOKEN")},
	}
	for flag, to := range map[string]struct {
		text string
		name *types.NamespacedName
	}{
		"sops-age-secret":      {o.ageSecret, &rules.Decryption.AgeSecret},
		"sops-vault-configmap": {o.vaultConfigMap, &rules.Decryption.VaultConfig},
	} {
		if to.text == "" {
			continue
		}
		namespace, name, ok := strings.Cut(to.text, "/")
		if !ok || namespace == "" || name == "" {
			return rules, releases, false, fmt.Errorf("cannot use --%s %q: write namespace/name", flag, to.text)
		}
		*to.name = types.NamespacedName{Namespace: namespace, Name: name}
	}
	return rules, releases, watchConfigs, nil
}

// shard is the part of the objects that this process reconciles.
func (o agentOptions) shard() (predicate.Predicate, error) {
	selector, err := labels.Parse(o.labelSelector)
	if err != nil {
		return nil, fmt.Errorf("cannot use --watch-label-selector %q: %w", o.labelSelector, err)
	}
	return predicate.NewPredicateFuncs(func(object client.Object) bool { return selector.Matches(labels.Set(object.GetLabels())) }), nil
}

// lease is the name of the lease that agents with the same part of the objects
// compete for.
func (o agentOptions) lease(name string) string {
	if o.labelSelector == "" {
		return name
	}
	sum := sha256.Sum256([]byte(o.labelSelector))
	return name + "-" + hex.EncodeToString(sum[:4])
}

// configs is the cache of the ConfigMaps and Secrets that are watched.
func (o agentOptions) configs(mgr ctrl.Manager) (cache.Cache, error) {
	selector, err := labels.Parse(o.configSelector)
	if err != nil {
		return nil, fmt.Errorf("cannot use --watch-configs-label-selector %q: %w", o.configSelector, err)
	}
	c, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		DefaultLabelSelector: selector, DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot set up the cache of configurations: %w", err)
	}
	return c, mgr.Add(c)
}

// recorders returns what events are recorded with, by the name of a controller
// of Flux.
func (o agentOptions) recorders(mgr ctrl.Manager) (func(controller string) record.EventRecorder, error) {
	var posts *syncer.Posts
	if o.eventsAddr != "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("cannot read host name: %w", err)
		}
		if posts, err = syncer.NewPosts(o.eventsAddr, host, nil, metrics.Registry, mgr.GetLogger()); err != nil {
			return nil, fmt.Errorf("cannot use --events-addr: %w", err)
		}
		if err := mgr.Add(posts); err != nil {
			return nil, fmt.Errorf("cannot set up posts of events: %w", err)
		}
	}
	return func(controller string) record.EventRecorder {
		//lint:ignore SA1019 flux events reads the old events API
		recorder := mgr.GetEventRecorderFor(controller)
		return &syncer.Events{Recorder: recorder, Controller: controller, Scheme: mgr.GetScheme(), Posts: posts, Now: time.Now}
	}, nil
}

// parts are what the controllers of a process share.
type parts struct {
	mgr     ctrl.Manager
	local   *apply.Cluster
	tokens  *tokencache.TokenCache
	targets *syncer.Targets
	finder  *syncer.Finder
	events  func(controller string) record.EventRecorder
	metrics *syncer.Metrics
	rules   syncer.Rules
	// releases are gates of HelmReleases.
	releases releaseGates
	// firstSync is nil if nothing is applied.
	firstSync *firstsync.Tier
	// configs is nil if nobody wants ConfigMaps and Secrets watched.
	configs cache.Cache
}

// parts makes what the controllers share.
func (o agentOptions) parts(mgr ctrl.Manager, fence func() error) (*parts, error) {
	config := rest.CopyConfig(mgr.GetConfig())
	config.Timeout = localTimeout
	local, err := apply.Connect(config, mgr.GetScheme())
	if err != nil {
		return nil, err
	}
	local.Override(o.overrideManagers)
	local.Fence(fence)
	p := &parts{mgr: mgr, local: local, metrics: syncer.NewMetrics(metrics.Registry)}
	var watchConfigs bool
	if p.rules, p.releases, watchConfigs, err = o.rules(); err != nil {
		return nil, err
	}
	if watchConfigs {
		if p.configs, err = o.configs(mgr); err != nil {
			return nil, err
		}
	}
	if p.events, err = o.recorders(mgr); err != nil {
		return nil, err
	}
	if p.tokens, err = tokencache.NewTokenCache(o.tokenCacheSize, tokencache.WithMaxDuration(o.tokenCacheDuration)); err != nil {
		return nil, fmt.Errorf("cannot set up the cache of tokens: %w", err)
	}
	p.targets = &syncer.Targets{
		Local: local, Kubeconfig: o.kubeconfigs.Kubeconfig, ServiceAccount: o.serviceAccount,
		KubeConfigServiceAccount: o.kubeconfigAccount, Tokens: p.tokens, Scheme: mgr.GetScheme(), Now: time.Now,
	}
	shard, err := o.shard()
	if err != nil {
		return nil, err
	}
	fetched := map[string]bool{}
	for _, kind := range o.controllerKinds {
		fetched[kind] = true
	}
	p.finder = &syncer.Finder{
		Client: mgr.GetClient(), Reader: local, Snapshots: source.NewSnapshots(), Fetched: fetched,
		Artifacts: source.NewArtifacts(filepath.Join(o.storagePath, "others"), o.maxPackBytes), Shard: shard,
	}
	return p, nil
}

// controllers sets up what the process reconciles.
// fence is asked before each delete.
func (o agentOptions) controllers(ctx context.Context, mgr ctrl.Manager, reporter *remote.Reporter, fence func() error) error {
	// It is a property of Flux's library, which asks a variable of the process.
	auth.EnableObjectLevelWorkloadIdentity()
	if err := mgr.Add(frugal{}); err != nil {
		return fmt.Errorf("cannot set up memory: %w", err)
	}
	p, err := o.parts(mgr, fence)
	if err != nil {
		return err
	}
	if p.firstSync, err = o.tier(mgr); err != nil {
		return err
	}
	if err := o.sources(p); err != nil {
		return fmt.Errorf("cannot set up the controllers of sources: %w", err)
	}
	if o.reconciles(kustomizev1.KustomizationKind) {
		if err := o.kustomizations(ctx, p); err != nil {
			return fmt.Errorf("cannot set up %s controller: %w", kustomizev1.KustomizationKind, err)
		}
	}
	if o.reconciles(helmv2.HelmReleaseKind) {
		if err := o.releases(ctx, p); err != nil {
			return fmt.Errorf("cannot set up %s controller: %w", helmv2.HelmReleaseKind, err)
		}
	}
	if o.reconciles(layerKind) {
		connections := remote.NewConnections(ctx, mgr.GetScheme(), time.Now)
		connections.Fence = fence
		children := &remote.Children{
			Client: mgr.GetClient(), Cache: mgr.GetCache(), Cluster: p.local, Snapshots: p.finder.Snapshots, Connections: connections,
			Events: p.events("cascade"), Metrics: remote.NewMetrics(metrics.Registry), Now: time.Now,
			AgentImage: o.image, ObserveInterval: o.observeInterval, Bridge: &capibridge.Providers{}, Allowed: o.kubeconfigs, Providers: providers.NewLibrary(),
		}
		layers := &remote.Layers{Client: mgr.GetClient(), Reader: p.local, Snapshots: p.finder.Snapshots, Now: time.Now}
		if err := remote.SetupWithManager(mgr, children, layers, o.concurrentChildren); err != nil {
			return fmt.Errorf("cannot set up Layer and Child controllers: %w", err)
		}
	}
	reporter.Client, reporter.Cache = mgr.GetClient(), mgr.GetCache()
	return mgr.Add(reporter)
}

// Values of --first-sync.
const (
	firstSyncAdopt  = "adopt"
	firstSyncCreate = "create"
)

// tier sets up what is known of the tier's Clusters; nil if the process applies
// nothing.
func (o agentOptions) tier(mgr ctrl.Manager) (*firstsync.Tier, error) {
	var kinds []string
	for _, kind := range []string{kustomizev1.KustomizationKind, helmv2.HelmReleaseKind} {
		if o.reconciles(kind) {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) == 0 {
		return nil, nil
	}
	records, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {
			Namespaces: map[string]cache.Config{o.namespace: {}}, Field: fields.OneTermEqualSelector("metadata.name", v1alpha1.FirstSyncConfigMap),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot set up the cache of the first sync: %w", err)
	}
	tier := &firstsync.Tier{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Cache: mgr.GetCache(), Records: records,
		Namespace: o.namespace, Create: o.firstSync == firstSyncCreate, Kinds: kinds,
	}
	if err := errors.Join(mgr.Add(records), mgr.Add(tier)); err != nil {
		return nil, fmt.Errorf("cannot set up the first sync: %w", err)
	}
	return tier, nil
}

// reconcilesObject reports whether the kind of an object is reconciled.
func (o agentOptions) reconcilesObject(object client.Object) bool {
	gvk, err := apiutil.GVKForObject(object, newScheme())
	return err == nil && o.reconciles(gvk.Kind)
}

// sources sets up the controllers of the kinds of sources that are fetched.
func (o agentOptions) sources(p *parts) error {
	logins, err := source.NewLogins(o.tokenCacheSize, o.tokenCacheDuration, time.Now)
	if err != nil {
		return err
	}
	storage, err := o.storage(p.mgr)
	if err != nil {
		return err
	}
	shared := &syncer.Sources{
		Client: p.mgr.GetClient(), Reader: p.mgr.GetAPIReader(), Snapshots: p.finder.Snapshots, Logins: logins, Storage: storage,
		Events: p.events("source-controller"), Metrics: p.metrics, Now: time.Now,
	}
	dir := func(name string) string { return filepath.Join(o.storagePath, name) }
	images := source.NewImages(dir("images"), o.maxPackBytes)
	indexes := chart.NewIndexes(dir("indexes"), o.indexMaxBytes, chart.DefaultIndexCacheBytes)
	charts := chart.NewCharts(indexes, dir("charts"), chart.Limits{Chart: o.chartMaxBytes, File: o.chartFileMaxBytes})
	countCharts(metrics.Registry, indexes, charts)
	kinds := map[string]interface {
		SetupWithManager(ctrl.Manager, int, predicate.Predicate) error
	}{
		sourcev1.GitRepositoryKind:  &syncer.GitRepositories{Sources: shared, Mirrors: source.NewMirrors(dir("git"), o.maxPackBytes)},
		sourcev1.OCIRepositoryKind:  &syncer.OCIRepositories{Sources: shared, Images: images},
		sourcev1.BucketKind:         &syncer.Buckets{Sources: shared, Buckets: source.NewBuckets(dir("buckets"), o.maxPackBytes)},
		sourcev1.HelmRepositoryKind: &syncer.HelmRepositories{Sources: shared, Indexes: indexes},
		sourcev1.HelmChartKind:      &syncer.HelmCharts{Sources: shared, Charts: charts, Images: images, ChartBytes: o.chartMaxBytes, From: p.finder},
	}
	for kind, reconciler := range kinds {
		if !o.reconciles(kind) {
			continue
		}
		if err := reconciler.SetupWithManager(p.mgr, o.concurrentSources, p.finder.Shard); err != nil {
			return err
		}
	}
	return nil
}

// countCharts registers what indexes and charts cost.
func countCharts(registry prometheus.Registerer, indexes *chart.Indexes, charts *chart.Charts) {
	for _, c := range []struct {
		name, help string
		count      func() int64
	}{
		{"cascade_helm_index_requests_total", "Requests for the index of a Helm repository.", func() int64 { return indexes.Counts().Requests }},
		{"cascade_helm_index_downloads_total", "Indexes of Helm repositories that were transferred.", func() int64 { return indexes.Counts().Downloads }},
		{"cascade_helm_index_parses_total", "Indexes of Helm repositories that were parsed.", func() int64 { return indexes.Counts().Parses }},
		{"cascade_helm_chart_downloads_total", "Charts that were downloaded.", func() int64 { return charts.Counts().Downloads }},
		{"cascade_helm_charts_packaged_total", "Charts that were packaged here.", func() int64 { return charts.Counts().Packaged }},
	} {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: c.name, Help: c.help}, func() float64 { return float64(c.count()) }))
	}
}

func (o agentOptions) kustomizations(ctx context.Context, p *parts) error {
	memo := apply.NewMemo(p.local, kustomizev1.GroupVersion.Group, time.Now)
	if err := p.mgr.Add(memo); err != nil {
		return fmt.Errorf("cannot set up memo: %w", err)
	}
	rules := p.rules
	rules.Decryption.Client, rules.Decryption.Tokens = p.mgr.GetClient(), p.tokens
	return (&syncer.Kustomizations{
		Client: p.mgr.GetClient(), Targets: p.targets, Memo: memo, FirstSync: p.firstSync, Sources: p.finder,
		Events: p.events("kustomize-controller"), Metrics: p.metrics, Now: time.Now, Rules: rules,
		Drift: syncer.DriftMode(o.drift), Sweep: o.sweep,
	}).SetupWithManager(ctx, p.mgr, o.concurrent, p.configs)
}

func (o agentOptions) releases(ctx context.Context, p *parts) error {
	events := p.events("helm-controller")
	return (&syncer.HelmReleases{
		Client: p.mgr.GetClient(), Targets: p.targets, FirstSync: p.firstSync, Sources: p.finder,
		Releases: &release.Releases{
			Events: events, Now: time.Now, OverrideManagers: o.overrideManagers, UseHelm3Defaults: p.releases.helm3Defaults,
			DefaultToRetryOnFailure: p.releases.retryOnFailure, AllowDNSLookups: p.releases.dnsLookups,
		},
		Events: events, Metrics: p.metrics, Now: time.Now, ChartFileBytes: o.chartFileMaxBytes,
		Rules: syncer.ReleaseRules{
			NoCrossNamespaceRefs: p.rules.NoCrossNamespaceRefs, RequeueDependency: p.rules.RequeueDependency,
			ExternalArtifact: p.rules.ExternalArtifact, NoDigestTracking: p.releases.noDigestTracking, Dependencies: p.rules.Dependencies,
		},
	}).SetupWithManager(ctx, p.mgr, o.concurrentReleases, p.configs)
}
