package helmrelease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/fluxcd/pkg/apis/meta"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/depend"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/target"
	"github.com/cascade-gitops/cascade/syncer/trace"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// Reasons of a HelmRelease that is not ready, as Flux's helm-controller names
// them.
const (
	reasonSourceNotReady   = "SourceNotReady"
	reasonValuesError      = "ValuesError"
	reasonChartMutateError = "ChartMutateError"
	reasonRESTClientError  = "RESTClientError"
	reasonAccessDenied     = "AccessDenied"
)

// Rules are the flags and feature gates of Flux's helm-controller that
// change what reconciling a HelmRelease means, but for those of the actions,
// which release.Releases has.
type Rules struct {
	// NoCrossNamespaceRefs refuses charts of other namespaces.
	NoCrossNamespaceRefs bool
	// RequeueDependency is how long an event is waited for that should come, of
	// a chart or a dependency. It must be set.
	RequeueDependency time.Duration
	// ExternalArtifact and NoDigestTracking are the gates ExternalArtifact and
	// DisableChartDigestTracking.
	ExternalArtifact, NoDigestTracking bool

	Dependencies depend.Rules
	// Retries after errors of the API server.
	Retries wake.Retries
}

// Reconciler reconciles HelmRelease objects.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Targets has the clusters that releases are installed in; what the cache
	// will not do for is read from its Local one.
	Targets *target.Targets
	// Sources finds charts. Its shard is that of the HelmReleases, too.
	Sources *find.Finder
	// Releases installs, upgrades and uninstalls.
	Releases Releases
	// Memory bounds what values take. It may be nil.
	Memory *release.Memory
	// FirstSync is what the tier knows of its Clusters. It may be nil.
	FirstSync *firstsync.Tier
	Events    record.EventRecorder
	Metrics   *metrics.Metrics
	// Traces may be nil.
	Traces *trace.Tracer
	// Stalls watches the reconciles; nil watches none.
	Stalls *stall.Watchdog
	Now    func() time.Time
	// Jitter spreads the intervals.
	Jitter wake.Jitter
	Rules  Rules
	// ChartFileBytes bounds a file of a chart.
	ChartFileBytes int64
	// Claims tells which objects are others'.
	Claims *claim.Claims

	store *status.Store[*helmv2.HelmRelease]
	seen  seen
}

// Releases carries out what a release needs next. *release.Releases is one.
type Releases interface {
	// Sync brings a release to what is asked for, by one action at most.
	Sync(context.Context, release.Request) (release.Outcome, error)
	// Uninstall removes a release. The outcome is zero when it is gone.
	Uninstall(context.Context, release.Request) (release.Outcome, error)
	// Has reports whether a cluster has the release that the status of an object is about.
	Has(context.Context, release.Request) (bool, error)
	// Contents are the objects that a cluster has on record for that release.
	Contents(context.Context, release.Request) ([]inventory.Entry, error)
	// Declares renders what a release would have, and writes nothing.
	Declares(context.Context, release.Request) ([]*unstructured.Unstructured, error)
	// Forget drops what is kept for an object that is gone.
	Forget(name types.NamespacedName, uid types.UID)
}

// open makes the store; it is called before the first reconcile.
func (r *Reconciler) open() {
	r.store = &status.Store[*helmv2.HelmRelease]{
		Client: r.Client, Live: r.Targets.Local, Manager: status.HelmManager,
		New:        func() *helmv2.HelmRelease { return &helmv2.HelmRelease{} },
		Meta:       func(o *helmv2.HelmRelease) *metav1.ObjectMeta { return &o.ObjectMeta },
		CopyStatus: func(to, from *helmv2.HelmRelease) { to.Status = *from.Status.DeepCopy() },
	}
}

// Reconcile brings one release into its cluster.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obj, err := r.store.Read(ctx, req.NamespacedName)
	if err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("cannot read HelmRelease %s: %w", req.NamespacedName, err)
	}
	if !r.Sources.Ours(obj) { // it left the shard, or was woken by a chart or a dependency
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	for !r.seen.isOf(req.NamespacedName, obj.UID) { // it was deleted and made again, and nobody saw it gone
		r.forget(req.NamespacedName)
	}
	start := r.Now()
	run := &run{Record: r.store.Record(obj), memory: r.Memory.For(obj.Namespace)}
	defer run.memory.GiveBack()
	requested := obj.Annotations[meta.ReconcileRequestAnnotation]
	if !obj.Spec.Suspend {
		run.handOver = r.seen.handsOver(req.NamespacedName, run.held().HandOver, start)
	}
	if !obj.DeletionTimestamp.IsZero() {
		result, err := r.finalize(ctx, run)
		if werr := errors.Join(run.WriteHeld(ctx, run.held()), run.Write(ctx)); werr != nil {
			return result, errors.Join(err, werr)
		}
		r.measure(req.NamespacedName, obj, r.Now().Sub(start))
		return result, err
	}
	if controllerutil.AddFinalizer(obj, helmv2.HelmReleaseFinalizer) {
		if err := run.WriteMetadata(ctx); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	r.takenBack(obj)
	if obj.Spec.Suspend {
		obj.Status.LastHandledReconcileAt = requested
		// Who depends on it, or waits for it, must not take the suspension for
		// work that is left.
		if apimeta.IsStatusConditionTrue(obj.Status.Conditions, meta.ReadyCondition) {
			obj.Status.ObservedGeneration = obj.Generation
		}
		status.MarkSuspended(obj)
		return ctrl.Result{}, run.Write(ctx)
	}
	was := trace.WasHelmRelease(obj)
	result, err := r.reconcile(ctx, run)
	if !run.outstanding {
		obj.Status.LastHandledReconcileAt = requested
	}
	if werr := errors.Join(run.WriteHeld(ctx, run.held()), run.Write(ctx)); werr != nil {
		return ctrl.Result{}, errors.Join(err, werr)
	}
	if werr := run.noteRevision(ctx); werr != nil {
		return ctrl.Result{}, errors.Join(err, werr)
	}
	now := r.Now()
	r.measure(req.NamespacedName, obj, now.Sub(start))
	if step, ok := trace.OfHelmRelease(was, obj, start, now); ok {
		r.Traces.Record(step)
	}
	return result, err
}

// measure tells Prometheus how a reconcile left an object. One that was let go has no series any
// more, also while somebody else's finalizer keeps it.
func (r *Reconciler) measure(name types.NamespacedName, obj *helmv2.HelmRelease, took time.Duration) {
	if !controllerutil.ContainsFinalizer(obj, helmv2.HelmReleaseFinalizer) {
		r.Metrics.Forget(helmv2.HelmReleaseKind, name)
		return
	}
	r.Metrics.Reconciled(helmv2.HelmReleaseKind, name, obj, took)
	if obj.Status.Inventory != nil {
		r.Metrics.Inventory(helmv2.HelmReleaseKind, name, len(obj.Status.Inventory.Entries))
	}
}

// forget drops what is kept of the HelmRelease of a name. It may be gone without having been
// finalized.
func (r *Reconciler) forget(name types.NamespacedName) {
	r.Releases.Forget(name, r.seen.forget(name))
	r.store.Forget(name)
	r.FirstSync.Note(helmv2.HelmReleaseKind, name, nil)
	r.Metrics.Forget(helmv2.HelmReleaseKind, name)
}

// seen has which object is behind a name, and what was seen of it. The zero value is ready. It is
// safe for concurrent use.
type seen struct {
	mu      sync.Mutex
	objects map[types.NamespacedName]*seenObject
}

// seenObject is what this process has seen of a HelmRelease.
type seenObject struct {
	uid      types.UID
	handOver inventory.Seen
	// released is where it was released to last, and as whom; nil if it was not.
	released *target.Ref
}

// isOf reports whether a name is that of the object with a UID: of none until it is told of one.
func (s *seen) isOf(name types.NamespacedName, uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects == nil {
		s.objects = map[types.NamespacedName]*seenObject{}
	}
	if s.objects[name] == nil {
		s.objects[name] = &seenObject{uid: uid}
	}
	return s.objects[name].uid == uid
}

// handsOver returns the record of what an object that was seen keeps for others, without the time
// in which nobody looked.
func (s *seen) handsOver(name types.NamespacedName, record *v1alpha1.HandOver, now time.Time) *v1alpha1.HandOver {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[name].handOver.Look(record, now)
}

// releases notes where an object that was seen is released to, and as whom.
func (s *seen) releases(name types.NamespacedName, to target.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[name]; o != nil {
		o.released = &to
	}
}

// releasedTo is what was noted of that last; nil if nothing was.
func (s *seen) releasedTo(name types.NamespacedName) *target.Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[name]; o != nil {
		return o.released
	}
	return nil
}

// forget returns which object was behind a name, empty if none was seen.
func (s *seen) forget(name types.NamespacedName) types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[name]
	delete(s.objects, name)
	if o == nil {
		return ""
	}
	return o.uid
}
