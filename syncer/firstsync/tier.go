package firstsync

import (
	"context"
	"fmt"
	"sync"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
)

// Numbers of a tier.
const (
	// lookAround is the time between two looks at whether the first sync is over,
	// while it is not. They read the cache only.
	lookAround = 5 * time.Second
	// tryAgain is the pause after the API server did not do what was asked.
	tryAgain = time.Second
	// callTimeout bounds each call.
	callTimeout = 30 * time.Second
)

// clusterCRD is the definition that is there where Clusters may be.
const clusterCRD = "clusters.cluster.x-k8s.io"

func clusterKind() schema.GroupKind {
	return schema.GroupKind{Group: "cluster.x-k8s.io", Kind: "Cluster"}
}

// Tier is what one tier knows of its Clusters. Fields are set before the first call.
// It is safe for concurrent use, and nil stands for a tier in which nothing is held.
type Tier struct {
	// Client reads Kustomizations and HelmReleases from the cache, and writes.
	Client client.Client
	// Reader reads from the API server.
	Reader client.Reader
	// Cache watches Clusters and definitions, Records the record alone.
	Cache, Records ctrlcache.Cache
	// Namespace of the agent.
	Namespace string
	// Create: the tier was installed as one that never had a Cluster.
	Create bool
	// Kinds of owners that are reconciled here.
	Kinds []string

	once  sync.Once
	ready chan struct{}
	wake  chan struct{}

	mu       sync.Mutex
	settled  bool
	clusters map[types.NamespacedName]inventory.Standing
	// pending is what the record does not say yet; an empty one is to be removed.
	pending map[types.NamespacedName]inventory.Standing
	// seen are the Clusters that are there, with the mark that each leaves behind.
	seen map[types.NamespacedName]inventory.Standing
	// holders are the owners that hold Clusters back, with those that they wait for.
	holders   map[holder]map[types.NamespacedName]bool
	onRelease map[string]func(types.NamespacedName)
	// lost: the record is gone and has to be made again.
	lost bool
}

type holder struct {
	kind string
	name types.NamespacedName
}

func (t *Tier) init() {
	t.once.Do(func() {
		t.ready, t.wake = make(chan struct{}), make(chan struct{}, 1)
		t.pending = map[types.NamespacedName]inventory.Standing{}
		t.seen = map[types.NamespacedName]inventory.Standing{}
		t.holders = map[holder]map[types.NamespacedName]bool{}
		t.onRelease = map[string]func(types.NamespacedName){}
	})
}

// For implements Keeper. It waits for the record.
func (t *Tier) For(ctx context.Context, objects []*unstructured.Unstructured) (*inventory.FirstSync, error) {
	if t == nil {
		return nil, nil
	}
	fleet := inventory.FleetOf(objects)
	if fleet.Empty() {
		return nil, nil
	}
	t.init()
	select {
	case <-t.ready:
	case <-ctx.Done():
		return nil, fmt.Errorf("cannot read the record of the first sync, ConfigMap %s/%s: %w", t.Namespace, v1alpha1.FirstSyncConfigMap, ctx.Err())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &inventory.FirstSync{Settled: t.settled, Clusters: map[types.NamespacedName]inventory.Standing{}, Seen: map[types.NamespacedName]bool{}}
	for _, name := range fleet.Clusters {
		if s := t.standing(name); s != "" {
			f.Clusters[name] = s
		}
		if _, ok := t.seen[name]; ok {
			f.Seen[name] = true
		}
	}
	return f, nil
}

// Quiet implements Keeper. It waits for the record.
func (t *Tier) Quiet(ctx context.Context) (bool, error) {
	if t == nil {
		return true, nil
	}
	t.init()
	select {
	case <-t.ready:
	case <-ctx.Done():
		return false, fmt.Errorf("cannot read the record of the first sync, ConfigMap %s/%s: %w", t.Namespace, v1alpha1.FirstSyncConfigMap, ctx.Err())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.settled && len(t.clusters)+len(t.pending) == 0, nil
}

// standing is called with the lock.
func (t *Tier) standing(name types.NamespacedName) inventory.Standing {
	if s, ok := t.pending[name]; ok {
		return s
	}
	return t.clusters[name]
}

// Note takes in what came of a sync of an owner: Clusters that were found complete,
// and those that it holds back, of which a change wakes it. What is about another
// tier is nothing to this one.
func (t *Tier) Note(kind string, name types.NamespacedName, c *inventory.Creation) {
	if t == nil {
		return
	}
	t.init()
	t.mu.Lock()
	defer t.mu.Unlock()
	h := holder{kind, name}
	if c.Elsewhere() {
		c = nil
	}
	if !c.Blocked() {
		delete(t.holders, h)
	} else {
		t.holders[h] = map[types.NamespacedName]bool{}
		for _, held := range c.Names() {
			t.holders[h][held] = true
		}
	}
	if c == nil || t.settled {
		return
	}
	for _, adopted := range c.Adopted {
		t.pending[adopted] = inventory.Adopted
	}
	if len(c.Adopted) > 0 {
		t.poke()
	}
}

// OnRelease sets the function that is told of owners of a kind when there is news
// of a Cluster that they hold back. It must not block. It is called before Start.
func (t *Tier) OnRelease(kind string, f func(types.NamespacedName)) {
	if t == nil {
		return
	}
	t.init()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onRelease[kind] = f
}

// tell wakes those that hold back one of the Clusters, or anything if names is nil.
// It is called with the lock.
func (t *Tier) tell(names ...types.NamespacedName) {
	for h, held := range t.holders {
		about := names == nil || len(held) == 0
		for _, name := range names {
			about = about || held[name]
		}
		if f := t.onRelease[h.kind]; about && f != nil {
			f(h.name)
		}
	}
}

func (t *Tier) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// NeedLeaderElection says that only the working agent keeps the record.
func (t *Tier) NeedLeaderElection() bool { return true }

// Start keeps the record until the context ends. It implements manager.Runnable.
func (t *Tier) Start(ctx context.Context) error {
	t.init()
	logger := log.FromContext(ctx).WithName("first-sync")
	ctx = log.IntoContext(ctx, logger)
	if !t.insist(ctx, "cannot read or make the record of the first sync", t.load) {
		return nil
	}
	informer, err := t.Records.GetInformer(ctx, &corev1.ConfigMap{})
	if err != nil {
		return fmt.Errorf("cannot watch the record of the first sync: %w", err)
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: t.onRecord, UpdateFunc: func(_, o any) { t.onRecord(o) }, DeleteFunc: t.onRecordGone,
	})
	if err != nil {
		return fmt.Errorf("cannot watch the record of the first sync: %w", err)
	}
	defer func() { _ = informer.RemoveEventHandler(registration) }()
	unwatch, err := t.watchClusters(ctx)
	if err != nil {
		return err
	}
	defer unwatch()
	if ctx.Err() != nil {
		return nil
	}
	t.keep(ctx)
	return nil
}

// insist calls f until it succeeds. It reports false if the context ended first.
func (t *Tier) insist(ctx context.Context, what string, f func(context.Context) error) bool {
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := f(call)
		cancel()
		if err == nil {
			return true
		}
		log.FromContext(ctx).Error(err, what+", trying again")
		select {
		case <-ctx.Done():
			return false
		case <-time.After(tryAgain):
		}
	}
}

// keep writes what is pending, and ends the first sync when it is over.
func (t *Tier) keep(ctx context.Context) {
	ticker := time.NewTicker(lookAround)
	defer ticker.Stop()
	complete := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-ticker.C:
			t.mu.Lock()
			settled := t.settled
			t.mu.Unlock()
			if settled {
				break
			}
			owners, err := t.owners(ctx, t.Client)
			if err != nil {
				log.FromContext(ctx).Error(err, "cannot look at what is to be synced")
				break
			}
			// Twice in a row: what one look cannot see, because it is being written,
			// the next one does.
			before := complete
			if complete = inventory.Settles(owners, t.exists); complete && before {
				t.insist(ctx, "cannot settle the first sync", func(ctx context.Context) error {
					return t.settle(ctx, "everything that Git declares is there")
				})
			}
		}
		if !t.insist(ctx, "cannot write the record of the first sync", t.flush) {
			return
		}
	}
}

func (t *Tier) exists(name types.NamespacedName) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.seen[name]
	return ok
}

// load reads the record, or makes it.
func (t *Tier) load(ctx context.Context) error {
	cm := &corev1.ConfigMap{}
	err := t.Reader.Get(ctx, types.NamespacedName{Namespace: t.Namespace, Name: v1alpha1.FirstSyncConfigMap}, cm)
	if apierrors.IsNotFound(err) {
		if cm, err = t.begin(ctx); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("cannot read ConfigMap %s: %w", v1alpha1.FirstSyncConfigMap, err)
	}
	t.take(cm)
	if t.Create && cm.Data[stateKey] != v1alpha1.FirstSyncSettled {
		return t.settle(ctx, "it was installed with --first-sync=create")
	}
	return nil
}

// begin makes the record of a tier that has none.
func (t *Tier) begin(ctx context.Context) (*corev1.ConfigMap, error) {
	state, why, err := t.origin(ctx)
	if err != nil {
		return nil, err
	}
	cm := NewRecord(t.Namespace, why)
	cm.Data[stateKey] = state
	if err := t.Client.Create(ctx, cm, client.FieldOwner(fieldManager)); err != nil {
		return nil, fmt.Errorf("cannot create ConfigMap %s: %w", cm.Name, err)
	}
	log.FromContext(ctx).Info("the record of the first sync was made", "state", state, "why", why)
	return cm, nil
}

const fieldManager = "cascade"

// origin tells how a tier begins of which nothing is on record.
func (t *Tier) origin(ctx context.Context) (state, why string, err error) {
	if t.Create {
		return v1alpha1.FirstSyncSettled, "it was installed with --first-sync=create", nil
	}
	owners, err := t.owners(ctx, t.Reader)
	if err != nil {
		return "", "", err
	}
	for _, o := range owners {
		if len(inventory.ClustersAmong(o.Inventory)) > 0 {
			return v1alpha1.FirstSyncSettled, fmt.Sprintf("%s had Clusters on record already", o.Entry), nil
		}
	}
	children := &v1alpha1.ChildList{}
	if err := t.Reader.List(ctx, children); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return "", "", fmt.Errorf("cannot list Children: %w", err)
	}
	for _, c := range children.Items {
		if c.Spec.ClusterRef != nil && c.Status.Identity != nil {
			return v1alpha1.FirstSyncSettled, fmt.Sprintf("Child %s/%s was connected already", c.Namespace, c.Name), nil
		}
	}
	return v1alpha1.FirstSyncAdopt, "nothing was on record", nil
}

// owners reads what may declare Clusters.
func (t *Tier) owners(ctx context.Context, reader client.Reader) ([]inventory.Owner, error) {
	var owners []inventory.Owner
	for _, kind := range t.Kinds {
		switch kind {
		case kustomizev1.KustomizationKind:
			list := &kustomizev1.KustomizationList{}
			if err := reader.List(ctx, list); err != nil {
				return nil, fmt.Errorf("cannot list Kustomizations: %w", err)
			}
			for i := range list.Items {
				owners = append(owners, ownerOfKustomization(&list.Items[i]))
			}
		case helmv2.HelmReleaseKind:
			list := &helmv2.HelmReleaseList{}
			if err := reader.List(ctx, list); err != nil {
				return nil, fmt.Errorf("cannot list HelmReleases: %w", err)
			}
			for i := range list.Items {
				owners = append(owners, ownerOfRelease(&list.Items[i]))
			}
		}
	}
	return owners, nil
}

func ownerOfKustomization(k *kustomizev1.Kustomization) inventory.Owner {
	o := inventory.Owner{
		Entry: inventory.Entry{Namespace: k.Namespace, Name: k.Name, Group: kustomizev1.GroupVersion.Group, Kind: kustomizev1.KustomizationKind},
		Ready: meta.IsStatusConditionTrue(k.Status.Conditions, fluxmeta.ReadyCondition) && k.Status.ObservedGeneration == k.Generation && !k.Spec.Suspend,
		// An inventory of another cluster says nothing about this one.
		Elsewhere: k.Spec.KubeConfig != nil,
	}
	if k.Status.Inventory != nil {
		for _, ref := range k.Status.Inventory.Entries {
			if e, err := inventory.Parse(ref.ID, ref.Version); err == nil {
				o.Inventory = append(o.Inventory, e)
			}
		}
	}
	return o
}

func ownerOfRelease(h *helmv2.HelmRelease) inventory.Owner {
	o := inventory.Owner{
		Entry:     inventory.Entry{Namespace: h.Namespace, Name: h.Name, Group: helmv2.GroupVersion.Group, Kind: helmv2.HelmReleaseKind},
		Ready:     meta.IsStatusConditionTrue(h.Status.Conditions, fluxmeta.ReadyCondition) && h.Status.ObservedGeneration == h.Generation && !h.Spec.Suspend,
		Elsewhere: h.Spec.KubeConfig != nil,
	}
	if h.Status.Inventory != nil {
		for _, ref := range h.Status.Inventory.Entries {
			if e, err := inventory.Parse(ref.ID, ref.Version); err == nil {
				o.Inventory = append(o.Inventory, e)
			}
		}
	}
	return o
}

// take makes the record that was read, or written, the one that counts.
func (t *Tier) take(cm *corev1.ConfigMap) {
	settled, clusters := recordOf(cm)
	t.mu.Lock()
	defer t.mu.Unlock()
	news := settled && !t.settled
	var changed []types.NamespacedName
	for name, s := range clusters {
		if t.standing(name) != s { // what we wrote ourselves is no news
			changed = append(changed, name)
		}
	}
	t.settled, t.clusters, t.lost = settled, clusters, false
	switch {
	case news:
		// From now on it counts how Clusters are when they go.
		for name, mark := range t.seen {
			t.mark(name, mark, false)
		}
		t.tell()
	case len(changed) > 0:
		t.tell(changed...)
	}
}

func (t *Tier) onRecord(o any) {
	if cm, ok := o.(*corev1.ConfigMap); ok && cm.Name == v1alpha1.FirstSyncConfigMap {
		t.take(cm)
	}
}

// onRecordGone: somebody deleted the record. It is made again, from what is there.
func (t *Tier) onRecordGone(any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = true
	t.poke()
}

// flush writes what is pending.
func (t *Tier) flush(ctx context.Context) error {
	t.mu.Lock()
	lost := t.lost
	t.mu.Unlock()
	if lost {
		if err := t.load(ctx); err != nil {
			return err
		}
	}
	t.mu.Lock()
	data := map[string]*string{}
	written := map[types.NamespacedName]inventory.Standing{}
	for name, s := range t.pending {
		written[name] = s
		if data[KeyOf(name)] = nil; s != "" {
			data[KeyOf(name)] = new(string(s))
		}
	}
	t.mu.Unlock()
	if len(data) == 0 {
		return nil
	}
	patch, err := patchOf(data)
	if err != nil {
		return err
	}
	if err := t.patch(ctx, patch); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, s := range written {
		if t.pending[name] == s {
			delete(t.pending, name)
		}
	}
	return nil
}

func (t *Tier) patch(ctx context.Context, patch []byte) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: v1alpha1.FirstSyncConfigMap}}
	if err := t.Client.Patch(ctx, cm, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldManager)); err != nil {
		if apierrors.IsNotFound(err) {
			t.onRecordGone(nil)
		}
		return fmt.Errorf("cannot write ConfigMap %s: %w", cm.Name, err)
	}
	t.take(cm)
	return nil
}

// settle ends the first sync.
func (t *Tier) settle(ctx context.Context, why string) error {
	cm := &corev1.ConfigMap{}
	if err := t.Reader.Get(ctx, types.NamespacedName{Namespace: t.Namespace, Name: v1alpha1.FirstSyncConfigMap}, cm); err != nil {
		return fmt.Errorf("cannot read ConfigMap %s: %w", v1alpha1.FirstSyncConfigMap, err)
	}
	patch, err := SettlementPatch(cm, why)
	if err != nil {
		return err
	}
	if err := t.patch(ctx, patch); err != nil {
		return err
	}
	log.FromContext(ctx).Info("the first sync is over, Clusters are created without asking", "why", why)
	return nil
}

// watchClusters looks at the Clusters that are there, before anybody gets an
// answer, or waits for Cluster API to be installed.
func (t *Tier) watchClusters(ctx context.Context) (unwatch func(), err error) {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	installed := false
	ok := t.insist(ctx, "cannot look for the kind Cluster", func(ctx context.Context) error {
		err := t.Reader.Get(ctx, types.NamespacedName{Name: clusterCRD}, crd.DeepCopy())
		installed = err == nil
		return client.IgnoreNotFound(err)
	})
	if !ok {
		return func() {}, nil
	}
	if !installed {
		// Without the kind there is no Cluster.
		close(t.ready)
		informer, err := t.Cache.GetInformer(ctx, crd)
		if err != nil {
			return nil, fmt.Errorf("cannot watch CRDs: %w", err)
		}
		appeared := make(chan struct{}, 1)
		saw := func(o any) {
			if m, ok := o.(*metav1.PartialObjectMetadata); ok && m.Name == clusterCRD {
				select {
				case appeared <- struct{}{}:
				default:
				}
			}
		}
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: saw, UpdateFunc: func(_, o any) { saw(o) }})
		if err != nil {
			return nil, fmt.Errorf("cannot watch CRDs: %w", err)
		}
		stop := func() { _ = informer.RemoveEventHandler(registration) }
		var began sync.WaitGroup
		ctx, cancel := context.WithCancel(ctx)
		began.Go(func() {
			defer stop()
			select {
			case <-ctx.Done():
				return
			case <-appeared:
			}
			if _, err := t.clusterHandler(ctx); err != nil && ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "cannot watch Clusters; one that is moved away may be created again")
			}
		})
		return func() { cancel(); began.Wait() }, nil
	}
	handler, err := t.clusterHandler(ctx)
	if err != nil || handler == nil {
		return func() {}, err
	}
	if cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		close(t.ready)
	}
	return func() {}, nil
}

// clusterHandler begins to watch Clusters, whose kind is served a moment after its
// definition is there.
func (t *Tier) clusterHandler(ctx context.Context) (cache.ResourceEventHandlerRegistration, error) {
	var mapping *meta.RESTMapping
	ok := t.insist(ctx, "cannot find the kind Cluster", func(context.Context) (err error) {
		mapping, err = t.Client.RESTMapper().RESTMapping(clusterKind())
		return err
	})
	if !ok {
		return nil, nil
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(mapping.GroupVersionKind)
	informer, err := t.Cache.GetInformer(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("cannot watch Clusters: %w", err)
	}
	return informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { t.onCluster(o, false) },
		UpdateFunc: func(_, o any) { t.onCluster(o, false) },
		DeleteFunc: func(o any) { t.onCluster(o, true) },
	})
}

// onCluster takes note of a Cluster as it is, or as it was when it went.
func (t *Tier) onCluster(o any, gone bool) {
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return
	}
	name, mark := client.ObjectKeyFromObject(u), markOf(u)
	t.mu.Lock()
	defer t.mu.Unlock()
	before, was := t.seen[name]
	if t.seen[name] = mark; gone {
		delete(t.seen, name)
	}
	switch {
	case t.settled:
		t.mark(name, mark, gone)
	case !gone && mark == "" && t.standing(name) == inventory.Approved:
		// What was allowed has come about. Should it go, somebody is asked again.
		t.pending[name] = inventory.Adopted
		t.poke()
	}
	if gone || !was || before != mark {
		t.tell(name)
	}
}

// mark notes how a Cluster is, or was when it went. It is called with the lock.
func (t *Tier) mark(name types.NamespacedName, mark inventory.Standing, gone bool) {
	if want, change := noted(t.standing(name), mark, gone); change {
		t.pending[name] = want
		t.poke()
	}
}
