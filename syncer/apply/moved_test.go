package apply

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/inventory"
)

// TestClustersOfAnotherVersion: a management cluster stops serving the version of Clusters
// that the mapper knows. What protects a Cluster goes on to find it.
func TestClustersOfAnotherVersion(t *testing.T) {
	var moved atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		version := "v1beta1"
		if moved.Load() {
			version = "v1beta2"
		}
		gv := "cluster.x-k8s.io/" + version
		group := fmt.Sprintf(`"name":"cluster.x-k8s.io","versions":[{"groupVersion":%q,"version":%q}]`, gv, version)
		cluster := fmt.Sprintf(`{"apiVersion":%q,"kind":"Cluster","metadata":{"name":"a","namespace":"fleet","uid":"1"}}`, gv)
		switch path := r.URL.Path; {
		case path == "/api":
			_, _ = w.Write([]byte(`{"kind":"APIVersions","versions":["v1"]}`))
		case path == "/apis":
			_, _ = w.Write([]byte(`{"kind":"APIGroupList","apiVersion":"v1","groups":[{` + group + `}]}`))
		case path == "/apis/cluster.x-k8s.io":
			_, _ = w.Write([]byte(`{"kind":"APIGroup","apiVersion":"v1",` + group + `}`))
		case path == "/apis/"+gv:
			_, _ = w.Write([]byte(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"` + gv + `","resources":[{"name":"clusters","kind":"Cluster","namespaced":true,"verbs":["get","list","watch"]}]}`))
		case strings.HasPrefix(path, "/apis/"+gv) && strings.HasSuffix(path, "/clusters"):
			_, _ = w.Write([]byte(`{"kind":"ClusterList","apiVersion":"` + gv + `","metadata":{},"items":[` + cluster + `]}`))
		case strings.HasPrefix(path, "/apis/"+gv) && strings.HasSuffix(path, "/clusters/a"):
			_, _ = w.Write([]byte(`{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"name":"a","namespace":"fleet","uid":"1"}}`))
		default:
			w.Header().Set("Content-Type", "text/plain")
			http.Error(w, "404 page not found", http.StatusNotFound)
		}
	}))
	defer srv.Close()
	e := inventory.Entry{Namespace: "fleet", Name: "a", Group: "cluster.x-k8s.io", Kind: "Cluster", Version: "v1beta1"}
	for name, look := range map[string]func(*Applier) (int, error){
		"Exists": func(a *Applier) (int, error) {
			there, err := a.clusterExists(t.Context(), e)
			if !there {
				return 0, err
			}
			return 1, err
		},
		"Delete": func(a *Applier) (int, error) {
			live, _, _ := a.Looks(nil, false)(t.Context(), e)
			return 1, a.client.DeleteAt(t.Context(), e, live.UID, live.Version, metav1.DeletePropagationBackground)
		},
		"All": func(a *Applier) (int, error) {
			list, err := a.clusters(t.Context(), "", &lookups{})
			if err != nil {
				return 0, err
			}
			return len(list.names), nil
		},
		"InNamespace": func(a *Applier) (int, error) {
			list, err := a.clustersIn(t.Context(), "fleet")
			if err != nil {
				return 0, err
			}
			return len(list.Items), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			moved.Store(false)
			a := fresh(t, srv.URL)
			for _, version := range []string{"v1beta1", "v1beta2", "v1beta2", "v1beta1"} {
				moved.Store(version == "v1beta2")
				if n, err := look(a); n != 1 || err != nil {
					t.Errorf("%s: found %d, %v", version, n, err)
				}
			}
		})
	}
}
