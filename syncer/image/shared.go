package image

import (
	"context"
	"errors"
	"fmt"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"

	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/park"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// Names of Flux's controllers, which write status and record events.
const (
	ReflectorController  = "image-reflector-controller"
	AutomationController = "image-automation-controller"
)

// Reasons of Flux that its API has no constants for.
const (
	reasonFailure       = "Failure"
	reasonAccessDenied  = "AccessDenied"
	reasonInvalidPolicy = "InvalidPolicy"
)

// Shared is what the reconcilers of all kinds of images need.
type Shared struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Reader reads Secrets and Namespaces from the API server.
	Reader client.Reader
	// Events are recorded as one of Flux's controllers.
	Events  record.EventRecorder
	Metrics *metrics.Metrics
	// Stalls watches the reconciles; nil watches none.
	Stalls *stall.Watchdog
	Now    func() time.Time
	// Jitter spreads the intervals.
	Jitter wake.Jitter
	// Retries after failures.
	Retries wake.Retries
	// Shard has the objects that this process reconciles.
	Shard wake.Shard
	// NoCrossNamespaceRefs refuses references to other namespaces.
	NoCrossNamespaceRefs bool
}

// A registry or Git server may be slow, or not answer: its objects are worked on beside the others, at most so many of
// each kind, those of one namespace that are known for it not all of them, and so many wait for them.
const (
	patience        = time.Second
	mostAside       = 64
	mostOfNamespace = 48
	mostWaiting     = 1000
)

// setup registers the reconciler r of one kind. It returns the builder for what else wakes its objects, and what completes it.
func (s *Shared) setup(mgr ctrl.Manager, kind string, obj client.Object, r reconcile.Reconciler, concurrent int) (*builder.Builder, func() error) {
	lot := s.Stalls.Lot(kind, func() client.Object { return obj.DeepCopyObject().(client.Object) }, r, park.Options{
		Workers: concurrent, Parked: mostWaiting, Patience: patience, Aside: mostAside, Share: mostOfNamespace, Backoff: s.Retries.RateLimiter(),
	})
	b := ctrl.NewControllerManagedBy(mgr).
		For(obj, builder.WithPredicates(s.Shard.Changed())).
		WatchesRawSource(ctrlsource.Func(lot.Open)).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrent, RateLimiter: s.Retries.RateLimiter()})
	return b, func() error { return errors.Join(mgr.Add(lot), b.Complete(lot)) }
}

// kind is what the reconciler of one kind does in its own way.
type kind[T status.Object] interface {
	// describe tells where an object has what all of them have.
	describe(obj T) fields
	// forget drops what is kept for an object that is gone.
	forget(name types.NamespacedName)
	// rest is called for an object that is suspended. It writes no status.
	rest(ctx context.Context, obj T)
	// run brings an object up to date, and its status in memory.
	run(ctx context.Context, obj T) outcome
}

// fields point into an object.
type fields struct {
	kind     string
	suspend  bool
	observed *int64
	handled  *string
}

// outcome is what became of a reconcile.
type outcome struct {
	// message of a success.
	message string
	// event tells of something new; empty of nothing. trace answers a request that found nothing new.
	event, trace string
	// annotations of the event.
	annotations map[string]string
	// next is when to look again, 0 not before something happens.
	next time.Duration
	// failed is nil for a success.
	failed *failure
	// waits: the status stays as it is for a while.
	waits bool
}

// failure is an error and how it ends.
type failure struct {
	reason string
	err    error
	// stalls: only a change of the object can end it.
	stalls bool
}

func failed(reason string, err error) outcome {
	return outcome{failed: &failure{reason: reason, err: err}}
}

func stalled(reason string, err error) outcome {
	return outcome{failed: &failure{reason: reason, err: err, stalls: true}}
}

// reconcileKind brings one object up to date. What an automation pushed last is read from its status, so that has to be the
// one which was written last.
func reconcileKind[T status.Object](ctx context.Context, s *Shared, k kind[T], store *status.Store[T], name types.NamespacedName) (ctrl.Result, error) {
	obj, err := store.Read(ctx, name)
	of := k.describe(obj).kind
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	if err != nil || !s.Shard.Has(obj) { // it is gone, or left the shard
		k.forget(name)
		store.Forget(name)
		s.Metrics.Forget(of, name)
		return ctrl.Result{}, nil
	}
	manager := store.Manager
	before := obj.DeepCopyObject().(T)
	if !obj.GetDeletionTimestamp().IsZero() {
		k.forget(name)
		s.Metrics.Forget(of, name)
		if !controllerutil.RemoveFinalizer(obj, imagev1.ImageFinalizer) {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, client.IgnoreNotFound(s.patchMetadata(ctx, before, obj, manager))
	}
	if controllerutil.AddFinalizer(obj, imagev1.ImageFinalizer) {
		if err := s.patchMetadata(ctx, before, obj, manager); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	if k.describe(obj).suspend {
		k.rest(ctx, obj)
		return ctrl.Result{}, nil
	}
	start := s.Now()
	record := store.Record(obj)
	out := k.run(ctx, obj)
	if out.waits {
		return ctrl.Result{RequeueAfter: out.next}, nil
	}
	if out.failed != nil && out.event == "" && errors.Is(context.Cause(ctx), park.ErrShare) {
		return ctrl.Result{}, park.ErrShare // others of its namespace go first, and the status stays as it is
	}
	f := k.describe(obj)
	result, err := s.conclude(ctx, record.Written(), obj, f, out)
	*f.handled = obj.GetAnnotations()[meta.ReconcileRequestAnnotation]
	if perr := record.Write(ctx); perr != nil {
		return ctrl.Result{}, errors.Join(err, perr)
	}
	s.Metrics.Reconciled(of, name, obj, s.Now().Sub(start))
	return result, err
}

// patchMetadata writes the finalizer; a list, so nobody else's change to it may be lost.
func (s *Shared) patchMetadata(ctx context.Context, before, after client.Object, manager string) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	return s.Client.Patch(ctx, after, patch, client.FieldOwner(manager))
}

// conclude writes an outcome into the conditions, and tells of it.
func (s *Shared) conclude(ctx context.Context, before, obj status.Object, f fields, out outcome) (ctrl.Result, error) {
	was := apimeta.FindStatusCondition(before.GetConditions(), meta.ReadyCondition)
	if out.failed == nil {
		*f.observed = obj.GetGeneration()
		status.MarkReady(obj, meta.SucceededReason, "%s", out.message)
		recovered := was != nil && was.Status == "False"
		switch {
		case out.event != "":
			s.event(ctx, obj, out.annotations, corev1.EventTypeNormal, meta.SucceededReason, out.event)
		case recovered:
			s.event(ctx, obj, nil, corev1.EventTypeNormal, meta.SucceededReason, out.message)
		case out.trace != "" && obj.GetAnnotations()[meta.ReconcileRequestAnnotation] != *f.handled:
			s.event(ctx, obj, nil, eventv1.EventTypeTrace, meta.SucceededReason, out.trace)
		}
		if out.next == 0 {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{RequeueAfter: s.Jitter(out.next)}, nil
	}
	if out.event != "" { // something was done all the same
		s.event(ctx, obj, out.annotations, corev1.EventTypeNormal, meta.SucceededReason, out.event)
	}
	err := out.failed.err
	if out.failed.stalls {
		*f.observed = obj.GetGeneration()
		status.MarkStalled(obj, out.failed.reason, err)
	} else {
		status.MarkFailing(obj, out.failed.reason, err)
	}
	if is := apimeta.FindStatusCondition(obj.GetConditions(), meta.ReadyCondition); was == nil || was.Status != is.Status || was.Reason != is.Reason || was.Message != is.Message {
		s.event(ctx, obj, nil, corev1.EventTypeWarning, out.failed.reason, is.Message)
	}
	if out.failed.stalls {
		return ctrl.Result{}, nil
	}
	if after := source.After(err); after > 0 {
		return ctrl.Result{RequeueAfter: s.Jitter(after)}, nil
	}
	return ctrl.Result{}, fmt.Errorf("cannot reconcile %s %s/%s: %w", f.kind, obj.GetNamespace(), obj.GetName(), err)
}

func (s *Shared) event(ctx context.Context, obj client.Object, annotations map[string]string, kind, reason, message string) {
	// What is worth an event is worth a line: `flux logs` shows those.
	if kind == corev1.EventTypeWarning {
		log.FromContext(ctx).Error(errors.New(message), "Reconciliation failed")
	} else {
		log.FromContext(ctx).Info(message)
	}
	s.Events.AnnotatedEventf(obj, annotations, kind, reason, "%s", message)
}

// reasonOf is the reason of a failure of a registry, in the words of Flux's image-reflector-controller.
func reasonOf(err error) string {
	switch reason := source.ReasonOf(err); reason {
	case source.ReasonURLInvalid:
		return imagev1.ImageURLInvalidReason
	case source.ReasonAuthenticationFailed, source.ReasonInvalidProvider, source.ReasonCredentialRefused:
		return imagev1.AuthenticationFailedReason
	case source.ReasonLimitExceeded:
		return reason
	}
	return imagev1.ReadOperationFailedReason
}

// asked reports whether somebody asked for a reconcile that was not done yet.
func asked(obj client.Object, handled string) bool {
	request := obj.GetAnnotations()[meta.ReconcileRequestAnnotation]
	return request != "" && request != handled
}
