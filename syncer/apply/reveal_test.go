package apply

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/inventory"
)

// TestReveals: what the agent finds in a Namespace with its own rights protects it, and
// is named only to an account that may read it.
func TestReveals(t *testing.T) {
	s := newServer()
	discovery := map[string]any{
		"/api":  metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}},
		"/apis": metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}},
		"/api/v1": metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: metav1.Verbs{"get", "list", "delete"}},
			{Name: "secrets", Kind: "Secret", Namespaced: true, Verbs: metav1.Verbs{"get", "list", "delete"}},
		}},
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if known := discovery[r.URL.Path]; known != nil {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(known) // a client that went away is no matter
			return
		}
		if r.Header.Get("Impersonate-User") == "tenant" && strings.Contains(r.URL.Path, "/secrets") {
			s.answer(w, http.StatusForbidden, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", nil).ErrStatus)
			return
		}
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	agent, err := connect(&rest.Config{Host: srv.URL, QPS: -1}, srv.Client(), s.mapper, runtime.NewScheme())
	if err != nil {
		t.Fatal(err)
	}
	namespace := anObject("Namespace", "x", &apps)
	s.put(namespace, nil)
	for name, tc := range map[string]struct {
		reason, user string
		objects      []string
		want         []string
	}{
		"Agent":     {"without an account all is named", "", []string{"Secret"}, []string{"Secret/x/foreign"}},
		"Readable":  {"what the account may read is named", "tenant", []string{"ConfigMap"}, []string{"ConfigMap/x/foreign"}},
		"Forbidden": {"of what it may not read nothing but that it is there", "tenant", []string{"Secret"}, []string{"an object that tenant may not read"}},
		"Both":      {"each for itself", "tenant", []string{"ConfigMap", "Secret"}, []string{"ConfigMap/x/foreign", "an object that tenant may not read"}},
		"Empty":     {"nothing is there", "tenant", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := agent
			if tc.user != "" {
				if c, err = agent.As(tc.user); err != nil {
					t.Fatal(err)
				}
			}
			for _, kind := range tc.objects {
				u := anObject(kind, "foreign", nil)
				s.put(u, nil)
				defer func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					delete(s.objects, s.path(u.GroupVersionKind(), "x", "foreign"))
				}()
			}
			live, _, _ := New(c, apps, nil, time.Now).Looks(nil, false)(t.Context(), inventory.Of(namespace))
			if live.State != inventory.Present || !slices.Equal(live.Holds, tc.want) {
				t.Errorf("%s: state %v, holds %q, want %q (%s)", tc.reason, live.State, live.Holds, tc.want, live.Problem)
			}
		})
	}
}
