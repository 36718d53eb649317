package receive

import (
	"context"
	"errors"
	"fmt"
	"time"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cascade-gitops/cascade/syncer/expression"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/stall"
	"github.com/cascade-gitops/cascade/syncer/status"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// Manager is the field manager of the status of Receivers, and of the requests that they
// make.
const Manager = "notification-controller"

// reasonAccessDenied: the Receiver names objects of another namespace.
const reasonAccessDenied = "AccessDenied"

// Reconciler writes the status of Receivers.
type Reconciler struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Reader reads Secrets from the API server.
	Reader  client.Reader
	Events  record.EventRecorder
	Metrics *metrics.Metrics
	// Stalls watches the reconciles; nil watches none.
	Stalls *stall.Watchdog
	Now    func() time.Time
	// Jitter spreads the intervals.
	Jitter wake.Jitter
	// Retries after errors of the API server.
	Retries wake.Retries
	// Shard has the Receivers that this process reconciles.
	Shard wake.Shard
	// NoCrossNamespaceRefs refuses Receivers that name objects of other namespaces.
	NoCrossNamespaceRefs bool
}

// SetupWithManager registers the reconciler. configs, if not nil, has the metadata of the Secrets that wake it.
func (r *Reconciler) SetupWithManager(ctx context.Context, mgr ctrl.Manager, configs cache.Cache) error {
	if err := wake.AddIndexes(ctx, mgr, &notificationv1.Receiver{}, map[string]func(*notificationv1.Receiver) []string{
		wake.ConfigIndex: func(o *notificationv1.Receiver) []string {
			if o.Spec.SecretRef == nil {
				return nil
			}
			return []string{wake.ConfigKey("Secret", o.Namespace, o.Spec.SecretRef.Name)}
		},
	}); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).
		For(&notificationv1.Receiver{}, builder.WithPredicates(r.Shard.Changed())).
		WithOptions(controller.Options{RateLimiter: r.Retries.RateLimiter()})
	wake.Index{Client: r.Client, List: func() client.ObjectList { return &notificationv1.ReceiverList{} }}.WatchConfigs(b, configs)
	return b.Complete(r.Stalls.Guard(notificationv1.ReceiverKind, func() client.Object { return &notificationv1.Receiver{} }, r))
}

// Reconcile brings the status of one Receiver up to date.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obj := &notificationv1.Receiver{}
	err := r.Client.Get(ctx, req.NamespacedName, obj)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	if err != nil || !r.Shard.Has(obj) { // it is gone, or left the shard
		r.Metrics.Forget(notificationv1.ReceiverKind, req.NamespacedName)
		return ctrl.Result{}, nil
	}
	before := obj.DeepCopy()
	if !obj.DeletionTimestamp.IsZero() {
		if controllerutil.RemoveFinalizer(obj, notificationv1.NotificationFinalizer) {
			return ctrl.Result{}, client.IgnoreNotFound(r.patchMetadata(ctx, before, obj))
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(obj, notificationv1.NotificationFinalizer) {
		if err := r.patchMetadata(ctx, before, obj); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		before = obj.DeepCopy()
	}
	if obj.Spec.Suspend {
		return ctrl.Result{}, nil
	}
	start := r.Now()
	result, err := r.initialize(ctx, obj)
	obj.Status.LastHandledReconcileAt = obj.Annotations[meta.ReconcileRequestAnnotation]
	if !equality.Semantic.DeepEqual(before, obj) {
		if perr := status.Patch(ctx, r.Client, before, obj, Manager); perr != nil {
			return ctrl.Result{}, errors.Join(err, perr)
		}
		r.tell(ctx, before, obj)
	}
	r.Metrics.Reconciled(notificationv1.ReceiverKind, req.NamespacedName, obj, r.Now().Sub(start))
	return result, err
}

// patchMetadata writes the finalizer; a list, so nobody else's change to it may be lost.
func (r *Reconciler) patchMetadata(ctx context.Context, before, after client.Object) error {
	return r.Client.Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(Manager))
}

// initialize sets the path of a Receiver that can serve, and the conditions.
func (r *Reconciler) initialize(ctx context.Context, obj *notificationv1.Receiver) (ctrl.Result, error) {
	if reason, err := r.check(obj); err != nil {
		obj.Status.WebhookPath, obj.Status.ObservedGeneration = "", obj.Generation
		status.MarkStalled(obj, reason, fmt.Errorf("%s: %w", status.Terminal, err))
		return ctrl.Result{}, nil
	}
	secret, err := secretOf(ctx, r.Reader, obj)
	if err != nil {
		obj.Status.WebhookPath = ""
		status.MarkFailing(obj, notificationv1.TokenNotFoundReason, err)
		// Without a watch of the Secret nobody tells when it is there.
		return ctrl.Result{}, err
	}
	obj.Status.WebhookPath = obj.GetWebhookPath(string(secret[tokenKey]))
	obj.Status.ObservedGeneration = obj.Generation
	status.MarkReady(obj, meta.SucceededReason, "Receiver initialized for path: %s", obj.Status.WebhookPath)
	return ctrl.Result{RequeueAfter: r.Jitter(obj.GetInterval())}, nil
}

// check reports what only a change of the spec can correct, and with which reason.
func (r *Reconciler) check(obj *notificationv1.Receiver) (reason string, err error) {
	names := filterNames(obj.Spec.Type)
	filters := []string{obj.Spec.ResourceFilter}
	for i := range obj.Spec.Resources {
		ref := &obj.Spec.Resources[i]
		if _, err := kindOf(&ref.CrossNamespaceObjectReference); err != nil {
			return notificationv1.ValidationFailedReason, err
		}
		if ref.Namespace != "" && ref.Namespace != obj.Namespace && r.NoCrossNamespaceRefs {
			return reasonAccessDenied, fmt.Errorf("cannot notify %s %s/%s: objects of other namespaces are refused by --no-cross-namespace-refs", ref.Kind, ref.Namespace, ref.Name)
		}
		filters = append(filters, ref.Filter)
	}
	for _, f := range filters {
		if f == "" {
			continue
		}
		if err := expression.Compile(f, names...); err != nil {
			return meta.InvalidCELExpressionReason, err
		}
	}
	for i := range obj.Spec.OIDCProviders {
		if err := checksOf(&obj.Spec.OIDCProviders[i]).Compile(); err != nil {
			return meta.InvalidCELExpressionReason, fmt.Errorf("provider %s: %w", obj.Spec.OIDCProviders[i].IssuerURL, err)
		}
	}
	return "", nil
}

// tell records what became of a Receiver, if that is news.
func (r *Reconciler) tell(ctx context.Context, before, after *notificationv1.Receiver) {
	was := apimeta.FindStatusCondition(before.Status.Conditions, meta.ReadyCondition)
	is := apimeta.FindStatusCondition(after.Status.Conditions, meta.ReadyCondition)
	if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason && was.Message == is.Message {
		return
	}
	if is.Status == "True" {
		// The path is no secret to those who may read events: for most types it is not
		// enough, and for the others it is in the status as well.
		log.FromContext(ctx).Info("Receiver is ready")
		r.Events.Eventf(after, corev1.EventTypeNormal, is.Reason, "Reconciliation finished, next run in %s", after.GetInterval())
		return
	}
	log.FromContext(ctx).Error(errors.New(is.Message), "Reconciliation failed")
	r.Events.Eventf(after, corev1.EventTypeWarning, is.Reason, "%s", is.Message)
}

// secretOf reads what the Secret of a Receiver has, and checks that this is enough for its
// type. A type without a Secret has none.
func secretOf(ctx context.Context, reader client.Reader, obj *notificationv1.Receiver) (map[string][]byte, error) {
	if obj.Spec.Type == notificationv1.GenericOIDCReceiver {
		return nil, nil
	}
	if obj.Spec.SecretRef == nil {
		return nil, fmt.Errorf("cannot verify requests of type %s: there is no spec.secretRef", obj.Spec.Type)
	}
	secret, key := &corev1.Secret{}, client.ObjectKey{Namespace: obj.Namespace, Name: obj.Spec.SecretRef.Name}
	if err := reader.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("unable to read token from secret '%s' error: %w", key, err)
	}
	needs := []string{tokenKey}
	if obj.Spec.Type == notificationv1.GCRReceiver {
		needs = append(needs, emailKey, audienceKey)
	}
	for _, name := range needs {
		if len(secret.Data[name]) == 0 {
			return nil, fmt.Errorf("invalid '%s' secret data: required fields '%s'", key, name)
		}
	}
	return secret.Data, nil
}
