package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// TestKubeconfigUnread: a kubeconfig that is not there is told apart from one that this tier's own
// API server does not hand out at the moment. Without one the objects of a child cannot be
// listed, so that all of them would be applied again by the next comparison.
func TestKubeconfigUnread(t *testing.T) {
	secrets := schema.GroupResource{Resource: "secrets"}
	for name, tc := range map[string]struct {
		reason string
		answer *apierrors.StatusError
		why    string
		unread bool
	}{
		"NotFound":  {"there is none", apierrors.NewNotFound(secrets, "a-kubeconfig"), v1alpha1.ReasonKubeconfigMissing, false},
		"Forbidden": {"nobody will answer otherwise", apierrors.NewForbidden(secrets, "a-kubeconfig", errors.New("no")), v1alpha1.ReasonKubeconfigMissing, false},
		"Internal":  {"the encryption of the store has an outage", apierrors.NewInternalError(errors.New("no key")), v1alpha1.ReasonProgressing, true},
		"TimedOut":  {"the store is slow", apierrors.NewTimeoutError("etcd", 0), v1alpha1.ReasonProgressing, true},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(int(tc.answer.ErrStatus.Code))
				status := tc.answer.ErrStatus
				status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
				_ = json.NewEncoder(w).Encode(status)
			}))
			defer server.Close()
			local, err := apply.Connect(&rest.Config{Host: server.URL}, scheme.Scheme)
			if err != nil {
				t.Fatal(err)
			}
			r := &run{Children: &Children{Cluster: local}, child: &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}}}
			_, err = r.kubeconfig(t.Context(), kubeconfigRef{kind: fromSecret, name: "a-kubeconfig", key: "value"}, capibridge.Cluster{})
			var unread *link.UnreadError
			if reason.Of(err) != tc.why || errors.As(err, &unread) != tc.unread || !strings.Contains(err.Error(), "cannot read Secret a-kubeconfig") {
				t.Errorf("%s: %v with reason %s", tc.reason, err, reason.Of(err))
			}
		})
	}
}

// TestCloudUnread: the same of a ConfigMap that names the cluster of a cloud. Without it a comparison would
// take it for one that is refused, and apply all objects of the layer again (read 699).
func TestCloudUnread(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		answer error
		why    string
		unread bool
	}{
		"NotFound": {"there is none", apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, "a"), v1alpha1.ReasonKubeconfigMissing, false},
		"Tier":     {"the store of this tier is slow", &target.TierError{Err: apierrors.NewTimeoutError("etcd", 0)}, v1alpha1.ReasonProgressing, true},
		"Cloud":    {"the cloud knows no such cluster", errors.New("no such cluster"), v1alpha1.ReasonKubeconfigRefused, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := &run{child: &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}}, Children: &Children{
				OfConfigMap: func(context.Context, types.NamespacedName, bool) (*rest.Config, error) {
					return nil, fmt.Errorf("failed to get configmap fleet/a: %w", tc.answer)
				},
			}}
			_, err := r.kubeconfig(t.Context(), kubeconfigRef{kind: fromConfigMap, name: "a"}, capibridge.Cluster{})
			var unread *link.UnreadError
			if reason.Of(err) != tc.why || errors.As(err, &unread) != tc.unread {
				t.Errorf("%s: %v with reason %s", tc.reason, err, reason.Of(err))
			}
		})
	}
}

// TestMayWait: a comparison that this tier's own API server keeps from being made is no word about the
// child, unless it is long overdue.
func TestMayWait(t *testing.T) {
	due := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	unread := reason.Because(v1alpha1.ReasonProgressing, &link.UnreadError{Err: errors.New("no answer")})
	for _, tc := range []struct {
		reason string
		after  time.Duration
		err    error
		want   bool
	}{
		{"nothing failed", 0, nil, false},
		{"the child refused something", 0, reason.Because(v1alpha1.ReasonSeedFailed, errors.New("refused")), false},
		{"it was due a moment ago", time.Second, unread, true},
		{"it was due long ago", link.UnreadHolds, unread, false},
	} {
		s := &seeding{push: &push{begun: due.Add(tc.after)}, notes: &layerNotes{due: due}}
		if got := s.mayWait(tc.err); got != tc.want {
			t.Errorf("%s: mayWait() = %t", tc.reason, got)
		}
	}
}
