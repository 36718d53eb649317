package release

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/go-logr/logr"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	helmreleaser "helm.sh/helm/v4/pkg/release"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/cascade-gitops/cascade/syncer/apply"
)

// encoded is Helm's storage in memory. It has what is written of a revision, which the charts within its chart are not.
type encoded struct{ driver.Driver }

func (e encoded) Create(key string, rel helmreleaser.Releaser) error {
	again, err := reread(rel)
	if err != nil {
		return err
	}
	return e.Driver.Create(key, again)
}

func (e encoded) Update(key string, rel helmreleaser.Releaser) error {
	again, err := reread(rel)
	if err != nil {
		return err
	}
	return e.Driver.Update(key, again)
}

func reread(rel helmreleaser.Releaser) (*helmrelease.Release, error) {
	text, err := json.Marshal(rel)
	if err != nil {
		return nil, err
	}
	again := &helmrelease.Release{}
	return again, json.Unmarshal(text, again)
}

// platform is a version of a chart with a subchart that its values turn on. Of what both have by default there is
// the version in their objects. The subchart may bring a definition.
func platform(version string, defines bool) *chart.Chart {
	settings := func(name, is string) []*common.File {
		text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata: {is: \"" + is + "\"}\n"
		return []*common.File{{Name: "templates/" + name + ".yaml", Data: []byte(text)}}
	}
	c := &chart.Chart{
		Metadata: &chart.Metadata{Name: "web", Version: version, APIVersion: "v2", Dependencies: []*chart.Dependency{
			{Name: "store", Version: "1.0.0", Condition: "store.enabled"},
		}},
		Values:    map[string]any{"color": version, "size": "1", "store": map[string]any{"enabled": false}},
		Templates: settings("settings", "{{ .Values.color }} of {{ .Values.size }}"),
	}
	store := &chart.Chart{
		Metadata: &chart.Metadata{Name: "store", Version: "1.0.0", APIVersion: "v2"},
		Values:   map[string]any{"image": version}, Templates: settings("store", "{{ .Values.image }}"),
	}
	if defines {
		store.Files = []*common.File{{Name: "crds/widgets.yaml", Data: []byte(widgetsDefinition)}}
	}
	c.AddDependency(store)
	return c
}

// TestPreserveValues: upgrades that preserve values go on with all that was given, and with what the chart said by
// default, from one to the next, as those of Helm do.
func TestPreserveValues(t *testing.T) {
	type values = map[string]any
	on := values{"store": values{"enabled": true}}
	for name, tc := range map[string]struct {
		reason string
		// resets: nothing is preserved. defines: the subchart brings a definition.
		resets, defines bool
		// values of the installation and of upgrades, each to another version of the chart.
		values []values
		want   []string
	}{
		"Defaults": {"what the chart says by default counts as given", false, false, []values{{}, {}, {"size": "2"}},
			[]string{"settings 1.0.0 of 1", "settings 1.0.0 of 1", "settings 1.0.0 of 2"}},
		"Given": {"what was given once is", false, false, []values{{"color": "red"}, {"size": "2"}, {"size": "3"}},
			[]string{"settings red of 1", "settings red of 2", "settings red of 3"}},
		"Subchart": {"what a subchart says counts, too", false, false, []values{on, {"size": "2"}, {"size": "3"}},
			[]string{"settings 1.0.0 of 1, store 1.0.0", "settings 1.0.0 of 2, store 1.0.0", "settings 1.0.0 of 3, store 1.0.0"}},
		"Definitions": {"also if its definitions are applied", false, true, []values{on, {"size": "2"}, {"size": "3"}},
			[]string{"settings 1.0.0 of 1, store 1.0.0", "settings 1.0.0 of 2, store 1.0.0", "settings 1.0.0 of 3, store 1.0.0"}},
		"Reset": {"nothing is preserved otherwise", true, false, []values{{"size": "2"}, {}, on},
			[]string{"settings 1.0.0 of 2", "settings 2.0.0 of 1", "settings 3.0.0 of 1, store 3.0.0"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &smallServer{objects: map[string]*unstructured.Unstructured{"widgets.shop.io": parsed(t, widgetsDefinition)}}
			// The server answers on goroutines of its own.
			var looked atomic.Bool
			s.after = func(_, name string) {
				if name == "widgets.shop.io" {
					looked.Store(true)
				}
			}
			for _, e := range []string{"settings", "store"} {
				s.objects[e] = named("ConfigMap", e).Object()
			}
			srv := httptest.NewServer(s)
			defer srv.Close()
			cluster, err := apply.Connect(&rest.Config{Host: srv.URL}, runtime.NewScheme())
			if err != nil {
				t.Fatal(err)
			}
			r := &Releases{Events: record.NewFakeRecorder(100), Now: time.Now, Workers: workers}
			session, err := r.sessions.of(cluster, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			storage := encoded{driver.NewMemory()}
			for i, given := range tc.values {
				c := platform(fmt.Sprintf("%d.0.0", i+1), tc.defines)
				n, err := r.begin(Request{
					Object: &v2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "apps"}, Spec: v2.HelmReleaseSpec{
						Install: &v2.Install{DisableWait: true}, Upgrade: &v2.Upgrade{DisableWait: true, PreserveValues: !tc.resets},
					}},
					Cluster: cluster, Values: given, Log: logr.Discard(),
					Chart: Chart{Name: "web", Version: c.Metadata.Version, Load: func(context.Context) (*chart.Chart, error) { return c, nil }},
				}, nil)
				if err != nil {
					t.Fatal(err)
				}
				h := newHelm(t.Context(), n, session, nil, nil)
				h.watch.Driver = storage
				looked.Store(false)
				act := h.upgrade
				if i == 0 {
					act = h.install
				}
				if err := act(t.Context()); err != nil {
					t.Fatal(err)
				}
				rel, err := typed(h.cfg.Releases.Last("web"))
				if err != nil {
					t.Fatal(err)
				}
				objects, err := readObjects(rel, rel.Manifest)
				if err != nil {
					t.Fatal(err)
				}
				var made []string
				for _, u := range objects {
					is, _, _ := unstructured.NestedString(u.Object, "data", "is")
					made = append(made, u.GetName()+" "+is)
				}
				slices.Sort(made)
				if got := strings.Join(made, ", "); got != tc.want[i] {
					t.Errorf("%s: revision %d has %q, want %q", tc.reason, rel.Version, got, tc.want[i])
				}
				if got := looked.Load(); got != tc.defines {
					t.Errorf("%s: revision %d has looked for the definition: %t", tc.reason, rel.Version, got)
				}
				if got := rel.Chart; got.Metadata.Version != c.Metadata.Version || string(got.Templates[0].Data) != string(c.Templates[0].Data) {
					t.Errorf("%s: the storage has chart %s with %q", tc.reason, got.Metadata.Version, got.Templates[0].Data)
				}
			}
		})
	}
}
