package receive

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	notificationv1 "github.com/fluxcd/notification-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/syncer/metrics"
)

// TestReconcile: what the status of a Receiver says.
func TestReconcile(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		change  func(*notificationv1.Receiver, *corev1.Secret)
		ready   metav1.ConditionStatus
		because string
		says    string
		stalled bool
		again   bool
	}{
		"Ready":     {"all is there", nil, metav1.ConditionTrue, meta.SucceededReason, "Receiver initialized for path: /hook/", false, true},
		"NoSecret":  {"the Secret is not there yet", func(r *notificationv1.Receiver, _ *corev1.Secret) { r.Spec.SecretRef.Name = "none" }, metav1.ConditionFalse, notificationv1.TokenNotFoundReason, "unable to read token from secret 'apps/none'", false, false},
		"NoToken":   {"the Secret has something else", func(_ *notificationv1.Receiver, s *corev1.Secret) { delete(s.Data, "token") }, metav1.ConditionFalse, notificationv1.TokenNotFoundReason, "required fields 'token'", false, false},
		"Empty":     {"an empty token is everybody's", func(_ *notificationv1.Receiver, s *corev1.Secret) { s.Data["token"] = nil }, metav1.ConditionFalse, notificationv1.TokenNotFoundReason, "required fields 'token'", false, false},
		"GCR":       {"whose pushes are accepted has to be said", func(r *notificationv1.Receiver, s *corev1.Secret) { r.Spec.Type = "gcr"; delete(s.Data, "audience") }, metav1.ConditionFalse, notificationv1.TokenNotFoundReason, "required fields 'audience'", false, false},
		"OIDC":      {"no Secret is needed", func(r *notificationv1.Receiver, _ *corev1.Secret) { r.Spec = specOf("generic-oidc") }, metav1.ConditionTrue, meta.SucceededReason, "/hook/", false, true},
		"Filter":    {"a filter that is none", func(r *notificationv1.Receiver, _ *corev1.Secret) { r.Spec.ResourceFilter = "req." }, metav1.ConditionFalse, meta.InvalidCELExpressionReason, "terminally", true, false},
		"NoBool":    {"a filter that returns a text", func(r *notificationv1.Receiver, _ *corev1.Secret) { r.Spec.ResourceFilter = "'a'" }, metav1.ConditionFalse, meta.InvalidCELExpressionReason, "bool", true, false},
		"OneFilter": {"the filter of one entry", func(r *notificationv1.Receiver, _ *corev1.Secret) { r.Spec.Resources[0].Filter = "claims.sub == 'a'" }, metav1.ConditionFalse, meta.InvalidCELExpressionReason, "claims", true, false},
		"Variable": {"a variable of a provider", func(r *notificationv1.Receiver, _ *corev1.Secret) {
			r.Spec = specOf("generic-oidc")
			r.Spec.OIDCProviders[0].Variables[0].Name = "a-b"
		}, metav1.ConditionFalse, meta.InvalidCELExpressionReason, "identifier", true, false},
		"AllWithoutLabels": {"a star needs labels", func(r *notificationv1.Receiver, _ *corev1.Secret) { r.Spec.Resources[0].Name = "*" }, metav1.ConditionFalse, notificationv1.ValidationFailedReason, "matchLabels", true, false},
		"NamedWithLabels": {"labels need the star", func(r *notificationv1.Receiver, _ *corev1.Secret) {
			r.Spec.Resources[0].MatchLabels = map[string]string{"a": "b"}
		}, metav1.ConditionFalse, notificationv1.ValidationFailedReason, "matchLabels", true, false},
		"Group": {"an apiVersion of another group", func(r *notificationv1.Receiver, _ *corev1.Secret) { r.Spec.Resources[0].APIVersion = "apps/v1" }, metav1.ConditionFalse, notificationv1.ValidationFailedReason, "apps/v1", true, false},
		"OldVersion": {"a version that is not served any more", func(r *notificationv1.Receiver, _ *corev1.Secret) {
			r.Spec.Resources[0].APIVersion = "source.toolkit.fluxcd.io/v1beta1"
		}, metav1.ConditionTrue, meta.SucceededReason, "/hook/", false, true},
		"Namespace": {"another namespace, where that is refused", func(r *notificationv1.Receiver, _ *corev1.Secret) { r.Spec.Resources[0].Namespace = "other" }, metav1.ConditionFalse, reasonAccessDenied, "--no-cross-namespace-refs", true, false},
		"Own":       {"the own namespace, by name", func(r *notificationv1.Receiver, _ *corev1.Secret) { r.Spec.Resources[0].Namespace = "apps" }, metav1.ConditionTrue, meta.SucceededReason, "/hook/", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			receiver, secret := receiverOf("hook", notificationv1.GenericReceiver, named("GitRepository", "app"))
			receiver.Status = notificationv1.ReceiverStatus{}
			receiver.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
			if tc.change != nil {
				tc.change(receiver, secret)
			}
			writes := 0
			c := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(receiver, secret).WithStatusSubresource(receiver).WithInterceptorFuncs(interceptor.Funcs{
				SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
					writes++
					return c.SubResource(sub).Patch(ctx, o, p, opts...)
				},
			}).Build()
			events := record.NewFakeRecorder(10)
			r := &Reconciler{
				Client: c, Reader: c, Events: events, Metrics: metrics.New(prometheus.NewRegistry()), Now: time.Now, Jitter: func(d time.Duration) time.Duration { return d },
				NoCrossNamespaceRefs: true,
			}
			request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(receiver)}
			result, err := r.Reconcile(t.Context(), request)
			if failing := tc.ready == metav1.ConditionFalse && !tc.stalled; failing != (err != nil) {
				t.Errorf("%s: Reconcile() = %v", tc.reason, err)
			}
			if again := result.RequeueAfter == 10*time.Minute; again != tc.again {
				t.Errorf("%s: again after %s", tc.reason, result.RequeueAfter)
			}
			got := &notificationv1.Receiver{}
			if err := c.Get(t.Context(), request.NamespacedName, got); err != nil {
				t.Fatal(err)
			}
			ready := apimeta.FindStatusCondition(got.Status.Conditions, meta.ReadyCondition)
			if ready == nil || ready.Status != tc.ready || ready.Reason != tc.because || !strings.Contains(ready.Message, tc.says) {
				t.Errorf("%s: Ready is %+v", tc.reason, ready)
			}
			if stalled := apimeta.IsStatusConditionTrue(got.Status.Conditions, meta.StalledCondition); stalled != tc.stalled {
				t.Errorf("%s: stalled: %t", tc.reason, stalled)
			}
			if (got.Status.WebhookPath != "") != (tc.ready == metav1.ConditionTrue) || got.Status.LastHandledReconcileAt != "now" || len(got.Finalizers) != 1 {
				t.Errorf("%s: %+v, %v", tc.reason, got.Status, got.Finalizers)
			}
			if len(events.Events) != 1 {
				t.Errorf("%s: %d events", tc.reason, len(events.Events))
			}
			if _, err := r.Reconcile(t.Context(), request); errors.Is(err, context.Canceled) || writes != 1 {
				t.Errorf("%s: %d writes of the status for two reconciles", tc.reason, writes)
			}
		})
	}
}

// TestPathOfFlux: the path is Flux's, so that hooks stay as they are.
func TestPathOfFlux(t *testing.T) {
	r := &notificationv1.Receiver{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hook"}}
	// printf tokenhookdefault | sha256sum
	const want = "/hook/d55144dc5884219ce78d62acdc2e06e9b097767a1b30390806dba539e13f51c2"
	if got := r.GetWebhookPath("token"); got != want || len(got) != pathLength {
		t.Errorf("the path is %s, want %s", got, want)
	}
}

// TestSuspendedAndDeleted: a suspended Receiver is left as it is, and a deleted one lets go.
func TestSuspendedAndDeleted(t *testing.T) {
	receiver, secret := receiverOf("hook", notificationv1.GenericReceiver, named("GitRepository", "app"))
	receiver.Spec.Suspend = true
	receiver.Finalizers = []string{notificationv1.NotificationFinalizer, "example.com/other"}
	c := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(receiver, secret).WithStatusSubresource(receiver).Build()
	r := &Reconciler{Client: c, Reader: c, Events: record.NewFakeRecorder(10), Metrics: metrics.New(prometheus.NewRegistry()), Now: time.Now}
	request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(receiver)}
	if result, err := r.Reconcile(t.Context(), request); err != nil || result.RequeueAfter != 0 {
		t.Errorf("suspended: %v, %v", result, err)
	}
	if err := c.Delete(t.Context(), receiver); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reconcile(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	got := &notificationv1.Receiver{}
	if err := c.Get(t.Context(), request.NamespacedName, got); err != nil || len(got.Finalizers) != 1 || got.Finalizers[0] != "example.com/other" {
		t.Errorf("finalizers of the deleted Receiver: %v, %v", got.Finalizers, err)
	}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{}); err != nil {
		t.Errorf("a Receiver that is gone: %v", err)
	}
}

// TestLeft: a Receiver that other labels make another agent's is that one's alone.
func TestLeft(t *testing.T) {
	receiver, secret := receiverOf("hook", notificationv1.GenericReceiver, named("GitRepository", "app"))
	c := fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(receiver, secret).WithStatusSubresource(receiver).Build()
	registry, ours := prometheus.NewRegistry(), true
	r := &Reconciler{
		Client: c, Reader: c, Events: record.NewFakeRecorder(10), Metrics: metrics.New(registry), Now: time.Now, Jitter: func(d time.Duration) time.Duration { return d },
		Shard: func(client.Object) bool { return ours },
	}
	for _, ours = range []bool{true, false} {
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(receiver)})
		if err != nil || (result.RequeueAfter > 0) != ours {
			t.Errorf("ours %t: again after %s, %v", ours, result.RequeueAfter, err)
		}
		if n, err := testutil.GatherAndCount(registry, "cascade_resource_ready"); err != nil || (n > 0) != ours {
			t.Errorf("ours %t: %d series, %v", ours, n, err)
		}
	}
}
