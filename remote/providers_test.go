package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/remote/providers"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// TestWebhooksRespond: a webhook that says no was reached, whether or not it gives a reason. Only what
// the API server could not ask is waited for.
func TestWebhooksRespond(t *testing.T) {
	of := schema.GroupResource{Group: "infrastructure.cluster.x-k8s.io", Resource: "awsclusters"}
	denied := func(code int32, reason metav1.StatusReason) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: `admission webhook "x" denied the request: no`}}
	}
	for name, tc := range map[string]struct {
		reason         string
		err            error
		fails, waiting bool
	}{
		"Created":     {"it let the object pass", nil, false, false},
		"NoReason":    {"a policy denies it, as most do", denied(http.StatusBadRequest, ""), false, false},
		"Panic":       {"it failed at an empty object, and says so without a reason", denied(http.StatusInternalServerError, ""), false, false},
		"OwnReason":   {"a reason of its own", denied(http.StatusServiceUnavailable, "out of office"), false, false},
		"Forbidden":   {"it has a reason", denied(http.StatusForbidden, metav1.StatusReasonForbidden), false, false},
		"Invalid":     {"the API server refuses an empty object", apierrors.NewInvalid(schema.GroupKind{}, "cascade-probe", nil), false, false},
		"NotCalled":   {"it does not answer the API server", apierrors.NewInternalError(errors.New("failed calling webhook")), false, true},
		"Unavailable": {"a load balancer finds no API server", apierrors.NewGenericServerResponse(http.StatusBadGateway, "post", of, "", "", 0, true), false, true},
		"NotServed":   {"the kind is not served yet", &meta.NoKindMatchError{}, false, true},
		"Silent":      {"the API server does not answer", &url.Error{Op: "Post", URL: "https://a", Err: errors.New("EOF")}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &apply.Cluster{Client: fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return tc.err },
			}).Build()}
			waits, err := webhooksRespond([]providers.Probe{{}})(t.Context(), cluster)
			if (err != nil) != tc.fails || (len(waits) > 0) != tc.waiting {
				t.Errorf("%s: it waits for %v, %v", tc.reason, waits, err)
			}
		})
	}
}

// TestMigratedOnce: what is stored anew is not looked at again while the child starts what was sent. A child
// that refuses something may have been restored from before.
func TestMigratedOnce(t *testing.T) {
	waits := fmt.Errorf("phase: %w", &apply.WaitError{Phase: "infrastructure-aws"})
	for name, tc := range map[string]struct {
		reason string
		err    error
		looks  int
	}{
		"Waits":    {"the controllers of the provider start", waits, 1},
		"Refused":  {"the definition of before has objects in a version that goes", apply.Failures{errors.New("status.storedVersions[0]: Invalid value")}, 2},
		"Complete": {"it is restored later, and the layer is sent again", nil, 2},
	} {
		t.Run(name, func(t *testing.T) {
			looks := 0
			child := &apply.Cluster{Client: fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
				Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
					looks++
					return apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, key.Name)
				},
			}).Build()}
			connect := func(context.Context) (*apply.Cluster, error) { return child, nil }
			m, definitions := migration{}, []providers.Definition{{Name: "things.example.com"}}
			for range 2 {
				if err := m.run(t.Context(), "sha256:1", definitions, connect); err != nil {
					t.Fatal(err)
				}
				m.after(tc.err)
			}
			if looks != tc.looks {
				t.Errorf("%s: the definition was read %d times, want %d", tc.reason, looks, tc.looks)
			}
		})
	}
}
