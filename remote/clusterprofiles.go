package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/profile"
	"github.com/cascade-gitops/cascade/syncer/stall"
)

// profilesAgain is how soon a tier without ClusterProfiles is looked at again, and how soon a
// profile that somebody else made under the name of a child.
const profilesAgain = 30 * time.Second

// profilesSweep is how soon a profile is compared without an event, with what the cache has: a
// replica that drove the child before may have ended between two writes.
const profilesSweep = 10 * time.Minute

// profileManager is the field manager of profiles.
const profileManager = "cascade-profiles"

// profiles keeps a ClusterProfile for each Child in tiers that have the kind. It changes only
// those that the Child controls, and deletes none: the API server's garbage collector does,
// when the Child is gone. At rest it sends nothing.
type profiles struct {
	client   client.Client
	cache    ctrlcache.Cache
	mapper   meta.RESTMapper
	part     Part
	events   record.EventRecorder
	watching controller.Controller
	// complained are the children whose name has a profile of somebody else.
	complained sync.Map

	mu sync.Mutex
	// queue is nil before the kind is watched.
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

var _ manager.LeaderElectionRunnable = &profiles{}

// NeedLeaderElection says who writes profiles: as for the Children, the leader, or with
// shards each replica those of its own.
func (p *profiles) NeedLeaderElection() bool { return p.part.Tenures == nil }

// setUp registers the reconciler and what waits for the kind.
func (p *profiles) setUp(mgr ctrl.Manager, stalls *stall.Watchdog, options controller.Options) error {
	var err error
	options.Reconciler = stalls.Guard("Child", func() client.Object { return &v1alpha1.Child{} }, p)
	p.watching, err = controller.New("clusterprofile", mgr, options)
	if err != nil {
		return fmt.Errorf("cannot set up the reconciler of ClusterProfiles: %w", err)
	}
	return mgr.Add(p)
}

// Start waits for the kind, begins to watch it and the Children, and ends.
func (p *profiles) Start(ctx context.Context) error {
	ticks := time.NewTicker(profilesAgain)
	defer ticks.Stop()
	for {
		if _, err := p.mapper.RESTMapping(profile.Kind.GroupKind(), profile.Kind.Version); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
	toChild := handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, u *unstructured.Unstructured) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(u)}}
	})
	if err := p.watching.Watch(ctrlsource.Kind(p.cache, profile.Empty("", ""), toChild)); err != nil {
		return fmt.Errorf("cannot watch ClusterProfiles: %w", err)
	}
	// Before the Children are listed: a shard that is gained meanwhile is not to be missed.
	if err := p.watching.Watch(ctrlsource.Func(p.onWake)); err != nil {
		return fmt.Errorf("cannot have ClusterProfiles compared: %w", err)
	}
	ofChild := handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, c *v1alpha1.Child) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(c)}}
	})
	if err := p.watching.Watch(ctrlsource.Kind(p.cache, &v1alpha1.Child{}, ofChild)); err != nil {
		return fmt.Errorf("cannot watch Children for their ClusterProfiles: %w", err)
	}
	return nil
}

func (p *profiles) onWake(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = queue
	return nil
}

// wake has the profile of a Child compared, behind those with an event. Without the kind there is none, and
// all are compared when it comes.
func (p *profiles) wake(key types.NamespacedName) {
	p.mu.Lock()
	queue := p.queue
	p.mu.Unlock()
	request := reconcile.Request{NamespacedName: key}
	if byPriority, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		byPriority.AddWithOpts(priorityqueue.AddOpts{Priority: new(periodic)}, request)
	} else if queue != nil {
		queue.Add(request)
	}
}

// Reconcile keeps the profile of one Child.
func (p *profiles) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	sweep := ctrl.Result{RequeueAfter: profilesSweep}
	if !p.part.drives(req.NamespacedName) {
		return sweep, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	child := &v1alpha1.Child{}
	err := p.client.Get(ctx, req.NamespacedName, child)
	if err != nil && !apierrors.IsNotFound(err) {
		return ctrl.Result{}, fmt.Errorf("cannot read Child %s: %w", req.NamespacedName, err)
	}
	if err != nil || !child.DeletionTimestamp.IsZero() {
		p.complained.Delete(req.NamespacedName)
		return ctrl.Result{}, nil // its profile goes with it
	}
	if !p.part.selects(child) {
		return sweep, nil
	}
	has := profile.Empty(req.Namespace, req.Name)
	err = p.cache.Get(ctx, req.NamespacedName, has)
	switch {
	case apierrors.IsNotFound(err):
		has = nil
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("cannot read ClusterProfile %s: %w", req.NamespacedName, err)
	}
	if wait, err := p.keep(ctx, child, has); err != nil || wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, err
	}
	return sweep, nil
}

// keep brings a profile up to date, which is nil where there is none. It says when to look
// again, zero if nothing is to come.
func (p *profiles) keep(ctx context.Context, child *v1alpha1.Child, has *unstructured.Unstructured) (time.Duration, error) {
	key := client.ObjectKeyFromObject(child)
	switch {
	case has == nil || profile.Controls(has, child.ObjectMeta):
		if _, said := p.complained.LoadAndDelete(key); said {
			p.events.Eventf(child, corev1.EventTypeNormal, eventProfileRecovered, "no ClusterProfile of somebody else has the name %s any more", key.Name)
		}
	case profile.Controls(has, metav1.ObjectMeta{Name: child.Name}):
		return profilesAgain, nil // that of a Child before this one, and about to go
	default:
		if _, said := p.complained.LoadOrStore(key, true); !said {
			p.events.Eventf(child, corev1.EventTypeWarning, v1alpha1.ReasonProfileNotOurs,
				"ClusterProfile %s was not made for this Child and is left as it is; rename or delete it, and the child gets one", key.Name)
		}
		return profilesAgain, nil
	}
	wants := profile.Of(child)
	if has == nil {
		has = wants.DeepCopy()
		delete(has.Object, "status")
		err := p.client.Create(ctx, has, client.FieldOwner(profileManager))
		if apierrors.IsAlreadyExists(err) {
			return stalePause, nil // the cache says whose it is in a moment
		}
		if err != nil {
			return 0, fmt.Errorf("cannot create ClusterProfile %s: %w", key, err)
		}
	}
	object, status := profile.Patch(has, wants)
	for _, change := range []struct {
		patch map[string]any
		write func(context.Context, client.Object, client.Patch) error
	}{
		{object, func(ctx context.Context, o client.Object, patch client.Patch) error {
			return p.client.Patch(ctx, o, patch, client.FieldOwner(profileManager))
		}},
		{status, func(ctx context.Context, o client.Object, patch client.Patch) error {
			return p.client.Status().Patch(ctx, o, patch, client.FieldOwner(profileManager))
		}},
	} {
		if change.patch == nil {
			continue
		}
		text, err := json.Marshal(change.patch)
		if err != nil {
			return 0, fmt.Errorf("cannot encode what ClusterProfile %s lacks: %w", key, err)
		}
		err = change.write(ctx, profile.Empty(key.Namespace, key.Name), client.RawPatch(types.MergePatchType, text))
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return stalePause, nil // another one has its name, or will have
		}
		if err != nil {
			return 0, fmt.Errorf("cannot write ClusterProfile %s: %w", key, err)
		}
	}
	return 0, nil
}
