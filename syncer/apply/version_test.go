package apply

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/inventory"
)

// TestDroppedVersion: a CRD stops serving a version that the mapper still knows.
// Its 404 is no word about the object, which is found in the other version.
func TestDroppedVersion(t *testing.T) {
	var dropped atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/api":
			_, _ = w.Write([]byte(`{"kind":"APIVersions","versions":["v1"]}`))
		case r.URL.Path == "/apis":
			_, _ = w.Write([]byte(`{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"x.io","versions":[{"groupVersion":"x.io/v1","version":"v1"},{"groupVersion":"x.io/v1alpha1","version":"v1alpha1"}]}]}`))
		case r.URL.Path == "/apis/x.io":
			_, _ = w.Write([]byte(`{"kind":"APIGroup","apiVersion":"v1","name":"x.io","versions":[{"groupVersion":"x.io/v1","version":"v1"},{"groupVersion":"x.io/v1alpha1","version":"v1alpha1"}]}`))
		case r.URL.Path == "/apis/x.io/v1alpha1" && !dropped.Load(), r.URL.Path == "/apis/x.io/v1":
			_, _ = w.Write([]byte(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"` + strings.TrimPrefix(r.URL.Path, "/apis/") + `","resources":[{"name":"things","kind":"Thing","namespaced":true,"verbs":["get","list","watch"]}]}`))
		case strings.HasPrefix(r.URL.Path, "/apis/x.io/v1alpha1/namespaces") && !dropped.Load(), strings.HasPrefix(r.URL.Path, "/apis/x.io/v1/namespaces"):
			_, _ = w.Write([]byte(`{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"name":"a","namespace":"b","uid":"1"}}`))
		default:
			w.Header().Set("Content-Type", "text/plain")
			http.Error(w, "404 page not found", http.StatusNotFound)
		}
	}))
	defer srv.Close()
	a := fresh(t, srv.URL)
	e := inventory.Entry{Namespace: "b", Name: "a", Group: "x.io", Kind: "Thing", Version: "v1alpha1"}
	if live := a.read(t.Context(), []inventory.Entry{e}, nil, &lookups{})[e]; live.State != inventory.Present {
		t.Fatalf("before: %+v", live)
	}
	current := func(a *Applier) bool {
		got, err := a.Health(t.Context(), []inventory.Entry{e}, nil)
		return err == nil && got.Done()
	}
	stale := fresh(t, srv.URL)
	if !current(stale) {
		t.Fatal("it is not healthy before")
	}
	dropped.Store(true)
	for name, reader := range map[string]*Applier{"stale mapper": stale, "fresh mapper": fresh(t, srv.URL)} {
		if !current(reader) {
			t.Errorf("%s: an object whose API version is no longer served is not healthy", name)
		}
	}
	for name, reader := range map[string]*Applier{"stale mapper": a, "fresh mapper": fresh(t, srv.URL)} {
		if live := reader.read(t.Context(), []inventory.Entry{e}, nil, &lookups{})[e]; live.State != inventory.Present {
			t.Errorf("%s: an object whose API version is no longer served is %+v, want present", name, live)
		}
	}
}

// TestHealthOfVersions: spec.healthChecks of Flux says of which kind an object is, in a version that may not be
// served, or not any more.
func TestHealthOfVersions(t *testing.T) {
	s := newServer()
	a := s.applier(t)
	s.put(anObject("HelmRelease", "a", nil), nil)
	for name, tc := range map[string]struct {
		reason, version, kind string
		want                  status.Status
	}{
		"Served":  {"it is read as it is named", "v2", "HelmRelease", status.CurrentStatus},
		"Dropped": {"the version that it was written for is gone", "v2beta1", "HelmRelease", status.CurrentStatus},
		"Unnamed": {"no version is named", "", "HelmRelease", status.CurrentStatus},
		"NoKind":  {"there is no such kind", "v2", "HelmRelaese", status.NotFoundStatus},
	} {
		t.Run(name, func(t *testing.T) {
			e := inventory.Entry{Namespace: "x", Name: "a", Group: releaseGroup, Kind: tc.kind, Version: tc.version}
			got, err := a.Health(t.Context(), []inventory.Entry{e}, nil)
			if err != nil || got[0].Status != tc.want || got[0].Entry != e {
				t.Errorf("%s: Health() = %+v, %v, want %s of %v", tc.reason, got, err, tc.want, e)
			}
		})
	}
}

func fresh(t *testing.T, url string) *Applier {
	t.Helper()
	c, err := Connect(&rest.Config{Host: url}, runtime.NewScheme())
	if err != nil {
		t.Fatal(err)
	}
	return New(c, Owner{FieldManager: "m", LabelGroup: group, Name: "n", Namespace: "ns"}, nil, time.Now)
}
