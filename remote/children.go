package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/plan"
	"github.com/cascade-gitops/cascade/remote/providers"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/trace"
	"github.com/cascade-gitops/cascade/syncer/worker"
)

// When a child is reconciled again without an event.
const (
	// progressPause is the pause while a push makes progress.
	progressPause = time.Second
	// movingPause is the pause while tiers below the child are not ready: what
	// they report comes up tier by tier.
	movingPause = 3 * time.Second
	// toldPause is the pause while the watch of the child's heartbeat tells what changes.
	toldPause = 5 * time.Minute
	// movingFor is how long after a change of their numbers they count as on their way.
	movingFor = time.Minute
	// waitPause is the pause while something else has to happen first. An event should
	// come before it ends.
	waitPause = 10 * time.Second
	// stalePause is the pause until the cache has our own last write.
	stalePause = 20 * time.Millisecond
	// sourceWait is how long after a start a layer that is in place may stay ready
	// without its source.
	sourceWait = 45 * time.Second
	// adoptFirst is how long after a start layers that are in place are not compared with
	// their child, unless their interval is shorter.
	adoptFirst = 30 * time.Second
	// callTimeout bounds a call to the API server of this tier.
	callTimeout = 10 * time.Second
	// retryMost bounds the pause after a reconcile that failed.
	retryMost = 30 * time.Second
	// mostPhase is longer than most intervals.
	mostPhase = 24 * time.Hour
	// createdHolds is how long the cache may take to show a Child that we created.
	createdHolds = 2 * time.Second
)

// statusManager is the field manager of the status of our own kinds.
const statusManager = "cascade"

// layerCRD is the name of the definition of Layers.
const layerCRD = "layers.cascade.dev"

// Priorities of reconciles that no event called for. New children and children with an event come first, and
// those that were taken over before others that are due.
const (
	periodic  = handler.LowPriority
	takenOver = periodic + 1
)

// Children reconciles Child objects, one cluster in each reconcile. At rest a
// reconcile sends nothing to the API server of this tier. A probe, which runs off
// the workers of the queue, sends one request to the child. A child whose agent's
// heartbeat is watched needs none.
type Children struct {
	// Client reads from the cache and writes. Cache has what is watched of Namespaces
	// and of the Secrets of Clusters.
	Client client.Client
	Cache  client.Reader
	// Clusters follows the Clusters of this tier.
	Clusters *clusters.Watch
	// Cluster reads from the API server of this tier.
	Cluster     *apply.Cluster
	Snapshots   *source.Snapshots
	Connections *link.Pool
	Events      record.EventRecorder
	Metrics     *Metrics
	// Traces may be nil.
	Traces *trace.Tracer
	Now    func() time.Time
	// Tier numbers this process among those that lead the tier.
	Tier *epoch.Tier
	// Part is which of the children this process drives.
	Part Part
	// Rand returns numbers in [0, 1), which spread what would happen at once.
	Rand func() float64
	// Accounts say as whom layers are pushed; Layers has the same.
	Accounts *account.Accounts
	// Providers renders spec.providers; the layers of all children share it.
	Providers *providers.Library
	// Workers render the paths of layers, with the tasks of package render.
	Workers worker.Runner
	// ObserveInterval is the time between two probes of a child that is ready and does not
	// tell by itself that it is.
	ObserveInterval time.Duration

	// Version of this program: another one may render something else from the same.
	Version string

	// Elsewhere reports whether a Cluster that is not here is managed by another tier: a pivot
	// moved it there. Its Child stays, and so does the connection; nil stands for never. It is asked in
	// each replica, also in those that do not lead.
	Elsewhere func(ctx context.Context, name types.NamespacedName) (bool, error)

	// Scrapes is what the parent is to be allowed in each child beside its layers, so that the
	// child's metrics can be read; nil if nobody reads them.
	Scrapes *link.Permission

	// Allowed is what kubeconfigs may have besides an address and credentials.
	Allowed capibridge.Allowed
	// OfConfigMap asks the cloud that a ConfigMap names where a cluster is, and wraps the
	// transport so that each request has a token of the cloud. anew: whatever it said a moment ago.
	OfConfigMap func(ctx context.Context, name types.NamespacedName, anew bool) (*rest.Config, error)
	// InCluster is how the tier's own cluster is reached, with the agent's present token.
	InCluster func() (*rest.Config, error)
	// Bridge reads the objects of infrastructure providers.
	Bridge *capibridge.Providers

	gates capibridge.Gates
	shared
	// FirstSeeds are the children to which an agent was ever pushed.
	FirstSeeds *FirstSeeds

	kubeconfigs kubeconfigs

	mu         sync.Mutex
	notes      map[types.NamespacedName]*notes
	identities identities
	// own is the identity of the cluster in which this tier runs, once it is known.
	own string
	// rollouts is nil in a tier without any.
	rollouts *rolloutKind
}

// notes are what is known of a child besides its status, in memory only. Without
// them the agent renders layers and compares their digests, which writes nothing
// either.
type notes struct {
	// child is the UID of the Child that they are about, empty before it is seen.
	child types.UID
	// began is when these notes began: with the process, or with the child.
	began time.Time
	// met: the child answered when it was asked for nothing else.
	met bool
	// created is when we created the Child, if we did that.
	created time.Time
	// written is the version of our last write of the Child.
	written string
	layers  map[string]*layerNotes
	// facts are what the provider's objects said of the Cluster in the state described,
	// and since is when they were read.
	described string
	since     time.Time
	facts     capibridge.Facts
	// moved is when the numbers of the clusters below last changed.
	moved time.Time
	// phase spreads the comparisons of children, and versions are what the sweeps of this
	// one go by.
	phase    time.Duration
	versions apply.Versions
	// renewAt is when the kubeconfig of a Cluster that is elsewhere is looked at in the child again,
	// zero for others, and unrenewed: the last look failed by a call.
	renewAt   time.Time
	unrenewed bool
	// refused is the resourceVersion of the Secret whose kubeconfig the last look found to be refused by
	// the child, though it is good for longer than the child's own; empty if it was not.
	refused string
	// slow: the last push took long.
	slow bool
	// earlier are the records that an earlier version left in the child, nil before they
	// were read.
	earlier map[string]string
	// hindrances are what keeps the agent from running.
	hindrances hindrances
}

// layerNotes are about one layer on one child.
type layerNotes struct {
	// inputs identify what the layer was rendered from when it was found to be in
	// place, and requested is the reconcile request that was handled by then.
	inputs    string
	requested string
	// as whom it was pushed then.
	as *account.Account
	// looked: the record in the child was read.
	looked bool
	// due is when the layer is compared with the child again, retryAt when a push that
	// failed is tried again, after so many failures in a row.
	due, retryAt time.Time
	failures     int
	// progress of a push that is not complete, and what the last complete push sent.
	progress progress
	sent     apply.Sent
	// seal is the state in which all of the layer was in place, nil if it is not known.
	seal *seal
	// leftover: the child has something that the layer no longer declares, and that is to be
	// deleted.
	leftover bool
	// left is what the last complete push left, and awaiting since when that waits for the Kustomization that declares the layer.
	left     []inventory.Entry
	awaiting inventory.Waits
	// unsure is since when it waits for a layer of which nobody knows whom that selects.
	unsure inventory.Waits
	// deleting is about deletes that have begun and are not confirmed.
	deleting deleting
	// migration that the last rendering of providers took.
	migration migration
	// noted: the record was read for what the child has. idle are objects that Rollouts move
	// and that the last rendering has nothing of.
	noted bool
	idle  []v1alpha1.RolloutPinnedSource
	// handed: the last rendering left something to another layer, of which nothing tells if that drops it.
	handed bool
	// movers are Rollouts that let the child have what it may have of the layer; others did so before they came. given is
	// what it might have when it was sent last, as its record says; empty if nobody read that.
	movers []string
	others bool
	given  string
}

// notesOf returns what is known of a child. Only the child's reconciles use it.
func (r *Children) notesOf(key types.NamespacedName) *notes {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.notes == nil {
		r.notes = map[types.NamespacedName]*notes{}
	}
	n := r.notes[key]
	if n == nil {
		n = &notes{
			began: r.Now(), layers: map[string]*layerNotes{},
			phase: time.Duration(r.Rand() * float64(mostPhase)), versions: apply.Versions{},
		}
		r.notes[key] = n
	}
	return n
}

func (n *notes) of(layer string) *layerNotes {
	if n.layers[layer] == nil {
		n.layers[layer] = &layerNotes{}
	}
	return n.layers[layer]
}

// grew is when a push last made progress, or since if that was later.
func (n *notes) grew(since time.Time) time.Time {
	if n == nil {
		return since
	}
	for _, layer := range n.layers {
		if layer.progress.grew.After(since) {
			since = layer.progress.grew
		}
	}
	return since
}

// retryAt is when the next push that failed is tried again, zero if none did.
func (n *notes) retryAt() time.Time {
	var next time.Time
	if n == nil {
		return next
	}
	for _, layer := range n.layers {
		if at := layer.retryAt; !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// attempted notes the outcome of a push. What the child refused is tried again after a
// while that grows, unless a part of it was taken; what waits for something else has its
// own pace.
func (n *layerNotes) attempted(err error, now time.Time, progressed bool) {
	switch {
	case err != nil && now.Before(n.retryAt): // nothing was done
	case err != nil && refused(err) && progressed:
		n.failures, n.retryAt = 1, now.Add(plan.Backoff(1))
	case err != nil && refused(err):
		n.failures++
		n.retryAt = now.Add(plan.Backoff(n.failures))
	default:
		n.failures, n.retryAt = 0, time.Time{}
	}
}

// refused reports whether an error is of a push that failed.
func refused(err error) bool {
	switch reason.Of(err) {
	case v1alpha1.ReasonSeedFailed, v1alpha1.ReasonForbidden, v1alpha1.ReasonPruneFailed, v1alpha1.ReasonUnreachable, v1alpha1.ReasonPushTimedOut:
		return true
	}
	return false
}

// Reconcile implements reconcile.Reconciler for one child.
func (r *Children) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	held, ctx, leave, ok := r.Part.enter(ctx, req.NamespacedName)
	if !ok {
		r.Connections.Met(req.NamespacedName)
		return ctrl.Result{}, nil // another replica drives it
	}
	defer leave()
	child := &v1alpha1.Child{}
	err := r.Client.Get(ctx, req.NamespacedName, child)
	if apierrors.IsNotFound(err) {
		if r.isNew(req.NamespacedName) {
			return ctrl.Result{RequeueAfter: stalePause}, nil
		}
		r.forget(req.NamespacedName)
		return r.discover(ctx, req.NamespacedName)
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("cannot read Child %s: %w", req.NamespacedName, err)
	}
	if !child.DeletionTimestamp.IsZero() || !r.Part.selects(child) {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	notes := r.notesOf(req.NamespacedName)
	if notes.child != "" && notes.child != child.UID {
		// It was deleted and made again before a run saw that it was gone: it may be another cluster's.
		r.forget(req.NamespacedName)
		notes = r.notesOf(req.NamespacedName)
	}
	notes.child = child.UID
	if isBefore(child, notes.written) {
		// The inventories must be the ones that we wrote last.
		return ctrl.Result{RequeueAfter: stalePause}, nil
	}
	current := &run{Children: r, child: child, recorded: child.DeepCopy(), notes: notes, tenure: held}
	current.behind()
	began := r.Now()
	result, err := current.reconcile(ctx)
	if current.gone {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, err
	}
	if held.Over() {
		return ctrl.Result{}, nil // another replica says what became of it
	}
	heard, proven := r.Connections.Heard(req.NamespacedName)
	result = current.age(result, heard, proven)
	if !current.asking {
		r.Connections.Met(req.NamespacedName)
		child.Status.ObservedGeneration = child.Generation
		child.Status.LastHandledReconcileAt = child.Annotations[fluxmeta.ReconcileRequestAnnotation]
	}
	recorded := current.recorded
	if rerr := current.writeStatus(ctx); rerr != nil {
		return ctrl.Result{}, errors.Join(err, rerr)
	}
	now := r.Now()
	r.Metrics.observe(recorded, child, now)
	for _, step := range trace.OfLayers(recorded, child, current.sources, began, now) {
		r.Traces.Record(step)
	}
	return result, err
}

// isBefore reports whether an object was read before a write that the API server
// answered with version.
func isBefore(o client.Object, version string) bool {
	if version == "" || version == o.GetResourceVersion() {
		return false
	}
	c, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), version)
	return err != nil || c < 0
}

func (r *Children) forget(key types.NamespacedName) {
	r.Connections.Forget(key)
	r.inUse.set(key, nil)
	r.Snapshots.Retain(holderOf(key))
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.notes, key)
	r.identities.release(key)
}
