package report

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// Reporter keeps the tier's report in a ConfigMap, for the parent to read. It
// writes when the report changes, shortly after what changed it, and when somebody else
// changed the ConfigMap. The heartbeat, a Lease that it renews, tells the parent that the
// agent is alive and which report is the last one.
type Reporter struct {
	// Client writes; it reads ConfigMaps from the API server, and all else from the
	// cache. Of the ConfigMap of the report, Cache watches the metadata.
	Client    client.Client
	Cache     ctrlcache.Cache
	Namespace string
	Agent     string
	// Holder is who renews the heartbeat.
	Holder string
	Now    func() time.Time
	// Reconciles reports whether the objects of a kind, of which it gets one, are
	// reconciled in this tier; nil stands for all.
	Reconciles func(client.Object) bool

	// kinds that the report is computed from, once it was found out which the tier has.
	kinds []client.Object
	below Below
	// retry is the pause before what failed is tried again; zero if nothing did.
	retry time.Duration

	mu sync.Mutex
	// last is the report that was written last, in text, and when; digest identifies it.
	last   *v1alpha1.Report
	text   string
	at     time.Time
	digest string
	// written is the version of the ConfigMap that we wrote, and seen the one that the
	// watch showed last; gone: it showed that there is none.
	written, seen string
	gone          bool
}

// Digest identifies the report that was written last; empty before the first.
func (r *Reporter) Digest() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.digest
}

const (
	// pause collects changes that come together. Before what failed is tried again it grows up
	// to mostPause: an API server may refuse a report for good.
	pause     = 300 * time.Millisecond
	mostPause = 10 * time.Second
	// bytesPerSecond bounds what the rows of a long report cost that change all the time: the
	// store keeps each report as a whole, and so does that of the parent. One of up to short
	// bytes, of a few clusters, waits for nothing; one with a hundred rows is written every ten
	// seconds.
	bytesPerSecond = 2 << 10
	short          = 2 << 10
	// writeTimeout bounds one write.
	writeTimeout = 10 * time.Second
	// manager is the field manager of the ConfigMap and of the heartbeat.
	manager = "cascade"
	// Heartbeat is how often the heartbeat is renewed, and heartbeatHolds what its Lease
	// says: after how long without a renewal nobody reports.
	Heartbeat      = 15 * time.Second
	heartbeatHolds = 45 * time.Second
)

// Start writes reports until the context ends. It implements
// manager.Runnable; only the leader runs it.
func (r *Reporter) Start(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	poke := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	end, err := r.watch(ctx, poke)
	defer end()
	if err != nil || ctx.Err() != nil {
		return err
	}
	poke()
	ticks, beats, later := time.NewTicker(pause), time.NewTicker(Heartbeat), time.NewTimer(Heartbeat)
	defer ticks.Stop()
	defer beats.Stop()
	defer later.Stop()
	for {
		beat := false
		select {
		case <-ctx.Done():
			return nil
		case <-beats.C:
			beat = true
		case <-wake:
			if r.retry == 0 { // else the next try has it
				beat = r.tell(ctx, later)
			}
		case <-later.C:
			beat = r.tell(ctx, later)
		}
		if beat {
			if err := r.renew(ctx); err != nil {
				// The next one is soon enough: a parent misses three before it asks.
				log.FromContext(ctx).Error(err, "cannot renew heartbeat")
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// tell writes the report, and reports whether it is another one. What could not be written is
// tried again, and what may wait is written later.
func (r *Reporter) tell(ctx context.Context, later *time.Timer) bool {
	told := r.Digest()
	wait, err := r.write(ctx)
	if err == nil {
		r.retry = 0
	} else {
		wait = min(max(pause, 2*r.retry), mostPause)
		r.retry = wait
		log.FromContext(ctx).Error(err, "cannot write report, trying again", "after", wait)
	}
	if wait > 0 {
		later.Reset(wait)
	}
	return r.Digest() != told
}

// watch calls poke for each change of what the report is computed from, and of the
// ConfigMap. It returns when all Children that there are have been seen. end ends it.
func (r *Reporter) watch(ctx context.Context, poke func()) (end func(), err error) {
	var ends []func()
	end = func() {
		for _, f := range ends {
			f()
		}
	}
	configMap := &metav1.PartialObjectMetadata{}
	configMap.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	var synced []cache.InformerSynced
	for _, o := range append(slices.Clone(r.served()), configMap) {
		informer, err := r.Cache.GetInformer(ctx, o)
		if err != nil {
			return end, fmt.Errorf("cannot watch %T for the report: %w", o, err)
		}
		registration, err := informer.AddEventHandler(r.handler(o, poke))
		if err != nil {
			return end, fmt.Errorf("cannot watch %T for the report: %w", o, err)
		}
		ends = append(ends, func() { _ = informer.RemoveEventHandler(registration) })
		synced = append(synced, registration.HasSynced)
	}
	// Otherwise the first report after a start would count only some of them.
	cache.WaitForCacheSync(ctx.Done(), synced...)
	return end, nil
}

// handler of the events of a kind, of which it gets one.
func (r *Reporter) handler(of client.Object, poke func()) cache.ResourceEventHandlerFuncs {
	put, remove := func(any) bool { return true }, func(any) bool { return true }
	switch of.(type) {
	case *v1alpha1.Child:
		put = func(o any) bool {
			child, ok := o.(*v1alpha1.Child)
			return ok && r.below.Put(child)
		}
		remove = func(o any) bool {
			child, ok := o.(*v1alpha1.Child)
			return ok && r.below.Remove(client.ObjectKeyFromObject(child))
		}
	case *metav1.PartialObjectMetadata:
		put = func(o any) bool { return r.stands(o, false) }
		remove = func(o any) bool { return r.stands(o, true) }
	}
	wake := func(changed bool) {
		if changed {
			poke()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { wake(put(o)) },
		UpdateFunc: func(_, o any) { wake(put(o)) },
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			wake(remove(o))
		},
	}
}

// stands notes what the watch shows of the ConfigMap, and reports whether that is what
// somebody else made of it.
func (r *Reporter) stands(o any, gone bool) bool {
	m, ok := o.(*metav1.PartialObjectMetadata)
	if !ok || m.Namespace != r.Namespace || m.Name != v1alpha1.ReportConfigMap {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen, r.gone = m.ResourceVersion, gone
	return r.disturbed()
}

// disturbed reports whether the ConfigMap is not as we wrote it. The caller holds the
// lock.
func (r *Reporter) disturbed() bool {
	if r.written == "" || r.seen == "" {
		return false
	}
	if r.gone {
		return true
	}
	// What the watch shows may be older than our last write.
	later, err := resourceversion.CompareResourceVersion(r.seen, r.written)
	return err != nil && r.seen != r.written || later > 0
}

// write writes the report if it changed. wait is how long that is to wait.
func (r *Reporter) write(ctx context.Context) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if r.last == nil {
		r.read(ctx)
	}
	report, err := r.compute(ctx)
	if err != nil {
		return 0, err
	}
	text, err := encode(report)
	if err != nil {
		return 0, err
	}
	if r.isWritten(text) {
		r.wrote(report, text, "")
		return 0, nil
	}
	if wait := r.early(report); wait > 0 {
		return wait, nil
	}
	cm := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": v1alpha1.ReportConfigMap, "namespace": r.Namespace},
		"data":     map[string]any{v1alpha1.ReportKey: text},
	}}
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(cm), client.ForceOwnership, client.FieldOwner(manager)); err != nil {
		return 0, fmt.Errorf("cannot write report: %w", err)
	}
	r.wrote(report, text, cm.GetResourceVersion())
	return 0, nil
}

// early is how long to wait before a report is written that has nothing new but numbers of
// clusters below and their rows; zero writes it now. That all of them are ready, or that they
// are not any more, is told at once.
func (r *Reporter) early(report *v1alpha1.Report) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || len(r.text) <= short || r.disturbed() || allReady(r.last) != allReady(report) || !equality.Semantic.DeepEqual(own(r.last), own(report)) {
		return 0
	}
	lasts := time.Duration(len(r.text)) * time.Second / bytesPerSecond
	// A clock that was set back holds nothing up.
	if wait := lasts - r.Now().Sub(r.at); wait > 0 && wait <= lasts {
		return wait
	}
	return 0
}

// own is what a report says of the tier itself.
func own(report *v1alpha1.Report) v1alpha1.Report {
	r := *report
	r.Children, r.Tiers = nil, nil
	return r
}

// allReady: they are, and have what they are to have.
func allReady(report *v1alpha1.Report) bool {
	return report.Children == nil || report.Children.Ready == report.Children.Total && report.Children.Updating == 0
}

// renew renews the heartbeat.
func (r *Reporter) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	about := map[string]any{"name": v1alpha1.HeartbeatLease, "namespace": r.Namespace}
	if digest := r.Digest(); digest != "" {
		about["labels"] = map[string]any{v1alpha1.ReportLabel: digest}
	}
	lease := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": about,
		"spec": map[string]any{
			"holderIdentity": r.Holder, "leaseDurationSeconds": int64(heartbeatHolds.Seconds()), "renewTime": r.Now().UTC().Format(metav1.RFC3339Micro),
		},
	}}
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(lease), client.ForceOwnership, client.FieldOwner(manager)); err != nil {
		return fmt.Errorf("cannot renew Lease %s/%s: %w", r.Namespace, v1alpha1.HeartbeatLease, err)
	}
	return nil
}

// read takes up the report that an agent before this one wrote, if there is one.
func (r *Reporter) read(ctx context.Context) {
	cm := &corev1.ConfigMap{}
	if err := r.Client.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: v1alpha1.ReportConfigMap}, cm); err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text, r.written = cm.Data[v1alpha1.ReportKey], cm.ResourceVersion
	r.last, _ = Parse(r.text)
}

// isWritten reports whether the ConfigMap has this text already.
func (r *Reporter) isWritten(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text == text && !r.disturbed()
}

// wrote remembers what stands in the ConfigMap now; version is empty if it stood there
// before.
func (r *Reporter) wrote(report *v1alpha1.Report, text, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.text, r.digest = report, text, Digest(text)
	if version != "" {
		r.written, r.gone, r.at = version, false, r.Now()
	}
}

// served are the kinds that the report is computed from and that the tier has. Those of
// sources and HelmReleases are Flux's, and a tier may have installed only some of
// them.
func (r *Reporter) served() []client.Object {
	if r.kinds != nil {
		return r.kinds
	}
	r.kinds = []client.Object{&kustomizev1.Kustomization{}, &sourcev1.GitRepository{}, &v1alpha1.Child{}, &v1alpha1.Layer{}}
	for _, o := range []client.Object{
		&sourcev1.OCIRepository{}, &sourcev1.Bucket{}, &sourcev1.HelmRepository{}, &sourcev1.HelmChart{}, &helmv2.HelmRelease{},
	} {
		if r.Reconciles == nil || r.Reconciles(o) {
			r.kinds = append(r.kinds, o)
		}
	}
	// The definitions of the tier may be those of an earlier version, which had none of these.
	later := []client.Object{&v1alpha1.Rollout{}, &v1alpha1.Credential{}, &v1alpha1.StateBackup{}}
	if generator := new(generatorv1.ArtifactGenerator); r.Reconciles == nil || r.Reconciles(generator) {
		later = append(later, generator)
	}
	for _, o := range later {
		gvk, err := r.Client.GroupVersionKindFor(o)
		if err == nil {
			_, err = r.Client.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		}
		if err == nil {
			r.kinds = append(r.kinds, o)
		}
	}
	return r.kinds
}

func (r *Reporter) compute(ctx context.Context) (*v1alpha1.Report, error) {
	f := Facts{Agent: r.Agent, Below: &r.below}
	for _, o := range r.served() {
		if _, ok := o.(*v1alpha1.Child); ok {
			continue // the watch puts them where they cost less
		}
		gvk, err := r.Client.GroupVersionKindFor(o)
		if err != nil {
			return nil, fmt.Errorf("cannot list %T for the report: %w", o, err)
		}
		created, err := r.Client.Scheme().New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err != nil {
			return nil, fmt.Errorf("cannot list %T for the report: %w", o, err)
		}
		list := created.(client.ObjectList)
		// Only read: a copy of each of thousands of objects would be made for a sum.
		if err := r.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("cannot list %T for the report: %w", o, err)
		}
		switch list := list.(type) {
		case *kustomizev1.KustomizationList:
			f.Kustomizations = list.Items
		case *helmv2.HelmReleaseList:
			f.Releases = list.Items
		case *v1alpha1.RolloutList:
			f.Rollouts = list.Items
		case *v1alpha1.LayerList:
			f.Layers = list.Items
		case *v1alpha1.CredentialList:
			f.Credentials = list.Items
		case *v1alpha1.StateBackupList:
			f.Backups = list.Items
		default:
			items, err := meta.ExtractList(list)
			if err != nil {
				return nil, fmt.Errorf("cannot read list of %T for the report: %w", o, err)
			}
			for _, item := range items {
				f.Sources = append(f.Sources, item.(client.Object))
			}
		}
	}
	return Compute(f, r.last, metav1.NewTime(r.Now().Truncate(time.Second))), nil
}
