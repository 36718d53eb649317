package firstsync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/clusters"
)

// Numbers of a tier.
const (
	// lookAround is the time between two looks at whether the first sync is over,
	// while it is not. They read the cache only.
	lookAround = 5 * time.Second
	// tryAgain is the pause after a call that failed.
	tryAgain = time.Second
	// callTimeout bounds each call.
	callTimeout = 30 * time.Second
	// firstLook is how long a caller waits for the record and the Clusters.
	firstLook = 20 * time.Second
)

// Tier is what one tier knows of its Clusters. Fields are set before the first call.
// It is safe for concurrent use, and nil stands for a tier in which nothing is held.
type Tier struct {
	// Client reads Kustomizations and HelmReleases from the cache, and writes.
	Client client.Client
	// Reader reads from the API server.
	Reader client.Reader
	// Clusters follows the Clusters of the tier.
	Clusters *clusters.Watch
	// Records watches the record alone.
	Records ctrlcache.Cache
	// Namespace of the agent.
	Namespace string
	// Create: the tier was installed as one that never had a Cluster. It counts where
	// there is no record, and nothing that shows a past.
	Create bool
	// Events may be nil.
	Events events
	// Now is the clock.
	Now func() time.Time
	// Kinds of owners that are reconciled here.
	Kinds []string

	once  sync.Once
	ready chan struct{}
	wake  chan struct{}

	mu sync.Mutex
	// record is what is written down.
	record record
	// pending are the entries to be written to the record; an empty one removes the
	// entry.
	pending map[types.NamespacedName]inventory.Standing
	// seen are the Clusters that exist, with the mark to be written when one is deleted.
	seen map[types.NamespacedName]inventory.Standing
	// holders are the owners with held Clusters, each with the Clusters that it holds.
	holders   map[holder]map[types.NamespacedName]bool
	onRelease map[string]func(types.NamespacedName)
	// lost: the record was deleted and has to be created again.
	lost bool
	// written is the version of our last write while the watch has not come to it; what
	// the watch shows from before is not the present record.
	written string
}

// events is the part of a recorder of events that is used here.
type events interface {
	Eventf(object runtime.Object, kind, reason, format string, args ...any)
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

// recorded returns when the record is read and the Clusters are listed. It waits for them only
// so long that the status of who asks is true again within a minute.
func (t *Tier) recorded(ctx context.Context) error {
	t.init()
	look, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	select {
	case <-t.ready:
		return nil
	case <-look.Done():
	}
	t.mu.Lock()
	read := t.record.state != ""
	t.mu.Unlock()
	why := errNotYet
	if err := ctx.Err(); err != nil {
		why = err
	}
	if read {
		return fmt.Errorf("cannot list the Clusters of the tier: %w", why)
	}
	return fmt.Errorf("cannot read the record of the first sync, ConfigMap %s/%s: %w", t.Namespace, v1alpha1.FirstSyncConfigMap, why)
}

// errNotYet: the agent has started, and did not get so far.
var errNotYet = errors.New("not done since the agent started, and tried again until it is: the log of the agent says why")

// For implements Keeper. It waits for the record, and for the Clusters, if there are any among the
// objects.
func (t *Tier) For(ctx context.Context, objects []*unstructured.Unstructured) (*inventory.FirstSync, error) {
	if t == nil {
		return nil, nil
	}
	fleet := inventory.FleetOf(objects)
	if fleet.Empty() {
		return nil, nil
	}
	if err := t.recorded(ctx); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &inventory.FirstSync{Settled: t.record.settled(), Insisted: t.record.state == v1alpha1.FirstSyncAdopt, Clusters: map[types.NamespacedName]inventory.Standing{}, Seen: map[types.NamespacedName]bool{}}
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

// Quiet implements Keeper. It does not wait: as long as Clusters cannot be listed, what could mend
// that is applied, and For tells what has Clusters.
func (t *Tier) Quiet(context.Context) (bool, error) {
	if t == nil {
		return true, nil
	}
	t.init()
	select {
	case <-t.ready:
	default:
		return false, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.record.settled() && len(t.record.clusters)+len(t.record.elsewhere)+len(t.pending) == 0, nil
}

// standing is called with the lock. That another tier manages a Cluster counts before what
// this one noted of it.
func (t *Tier) standing(name types.NamespacedName) inventory.Standing {
	if t.record.elsewhere[name] != "" {
		return inventory.ManagedElsewhere
	}
	if s, ok := t.pending[name]; ok {
		return s
	}
	return t.record.clusters[name]
}

// Note takes the creation plan of an owner's sync. It records Clusters that were found
// complete, and remembers the Clusters that the owner holds, so that a change of one
// wakes the owner. A plan for another tier changes nothing in this record.
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
	if c == nil || t.record.settled() {
		return
	}
	for _, adopted := range c.Adopted {
		t.pending[adopted] = inventory.Adopted
	}
	if len(c.Adopted) > 0 {
		t.poke()
	}
}

// OnRelease sets the function that is called with an owner of a kind when a Cluster
// that the owner holds has changed. It must not block. It is called before Start.
func (t *Tier) OnRelease(kind string, f func(types.NamespacedName)) {
	if t == nil {
		return
	}
	t.init()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onRelease[kind] = f
}

// tell wakes the owners that hold one of the Clusters, or all holders if names is nil.
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
	defer t.watchClusters(ctx)()
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
			open := t.record.state == v1alpha1.FirstSyncOpen
			t.mu.Unlock()
			if complete = complete && open; !open {
				break // it is over, or a person ends it
			}
			owners, err := t.owners(ctx, t.Client)
			if err != nil {
				log.FromContext(ctx).Error(err, "cannot look at what is to be synced")
				break
			}
			// Twice in a row: the cache may miss in one look what is being written, and has
			// it in the next.
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
