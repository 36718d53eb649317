package release

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/go-logr/logr"
	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/kube"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/render"
)

// widgetsDefinition defines the kind Widget.
const widgetsDefinition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: widgets.shop.io}\n"

// TestDefinitionsStay: a definition that is there is another owner's, and may be newer than that of the chart. Only
// who asks for that replaces it. Where no release has it, it gets the labels of this one, and nothing else.
func TestDefinitionsStay(t *testing.T) {
	const labelled = "helm-controller map[metadata:map[labels:map[helm.toolkit.fluxcd.io/name:web helm.toolkit.fluxcd.io/namespace:apps]]]"
	for name, tc := range map[string]struct {
		reason     string
		policy     v2.CRDsPolicy
		serverSide bool
		// there: it is in the cluster, as it was changed by live; unread: nobody tells; fixed: nobody may change it.
		there, unread, fixed bool
		live                 func(*unstructured.Unstructured)
		writes, merged       string
		fails                string
	}{
		"Created":    {reason: "it is not there", policy: v2.Create, serverSide: true, writes: "PATCH widgets.shop.io"},
		"There":      {reason: "it is there", policy: v2.Create, serverSide: true, there: true, writes: "PATCH widgets.shop.io", merged: labelled},
		"Default":    {reason: "nobody said what to do", serverSide: true, there: true, writes: "PATCH widgets.shop.io", merged: labelled},
		"ClientSide": {reason: "the server does not apply", policy: v2.Create, there: true, writes: "PATCH widgets.shop.io", merged: labelled},
		"OfKustomization": {reason: "a Kustomization that drops it leaves it by these labels", policy: v2.Create, serverSide: true, there: true, live: func(u *unstructured.Unstructured) {
			u.SetLabels(map[string]string{"kustomize.toolkit.fluxcd.io/name": "crds", "kustomize.toolkit.fluxcd.io/namespace": "apps"})
		}, writes: "PATCH widgets.shop.io", merged: labelled},
		"Ours": {reason: "it has the labels", policy: v2.Create, serverSide: true, there: true, live: func(u *unstructured.Unstructured) {
			u.SetLabels(map[string]string{ownerName: "web", ownerNamespace: "apps"})
		}},
		"OtherRelease": {reason: "another release has it", policy: v2.Create, serverSide: true, there: true, live: func(u *unstructured.Unstructured) {
			u.SetLabels(map[string]string{ownerName: "crds", ownerNamespace: "apps"})
		}},
		"OfTemplate": {reason: "a person installed it with Helm", policy: v2.Create, serverSide: true, there: true, live: func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{releaseName: "crds", releaseNamespace: "apps"})
		}},
		"Deleting": {reason: "it is about to go", policy: v2.Create, serverSide: true, there: true, live: func(u *unstructured.Unstructured) {
			u.SetDeletionTimestamp(&metav1.Time{Time: at})
		}},
		"Fixed":    {reason: "it worked without that right", policy: v2.Create, serverSide: true, there: true, fixed: true, writes: "PATCH widgets.shop.io"},
		"Replaced": {reason: "it is asked for", policy: v2.CreateReplace, serverSide: true, there: true, writes: "PATCH widgets.shop.io"},
		"Unread":   {reason: "unknown is not absent", policy: v2.Create, serverSide: true, there: true, unread: true, fails: "failed to get CustomResourceDefinition widgets.shop.io"},
	} {
		t.Run(name, func(t *testing.T) {
			definition := parsed(t, widgetsDefinition)
			definition.SetNamespace("")
			if tc.live != nil {
				tc.live(definition)
			}
			s := &smallServer{objects: map[string]*unstructured.Unstructured{}}
			if tc.there {
				s.objects["widgets.shop.io"] = definition
			}
			if tc.unread {
				s.unread = "widgets.shop.io"
			}
			if tc.fixed {
				s.fixed = "widgets.shop.io"
			}
			var writes []string
			s.after = func(method, name string) {
				if method != http.MethodGet {
					writes = append(writes, method+" "+name)
				}
				if name == "widgets.shop.io" {
					s.objects[name] = definition // what is applied next is there
				}
			}
			srv := httptest.NewServer(s)
			defer srv.Close()
			c, err := apply.Connect(&rest.Config{Host: srv.URL}, runtime.NewScheme())
			if err != nil {
				t.Fatal(err)
			}
			session, err := open(c)
			if err != nil {
				t.Fatal(err)
			}
			obj := &v2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "apps"}}
			l := newLogs(logr.Discard(), time.Now, nil)
			cfg := action.NewConfiguration(action.ConfigurationSetLogger(l))
			cfg.KubeClient = newKubeClient(t.Context(), session, newGuard(c, obj, "web", "apps", time.Now), l, "apps", nil, time.Now)
			d := definitions{policy: tc.policy, serverSide: tc.serverSide, wait: kube.HookOnlyStrategy}
			err = d.apply(cfg, obj, &chart.Chart{
				Metadata: &chart.Metadata{Name: "web", Version: "1.0.0", APIVersion: "v2"},
				Files:    []*common.File{{Name: "crds/widgets.yaml", Data: []byte(widgetsDefinition)}},
			}, nil)
			if (err != nil) != (tc.fails != "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s: apply() = %v, want %q", tc.reason, err, tc.fails)
			}
			if got := strings.Join(writes, ", "); got != tc.writes {
				t.Errorf("%s: it wrote %q, want %q", tc.reason, got, tc.writes)
			}
			if got := strings.Join(s.merged, ", "); got != tc.merged {
				t.Errorf("%s: it merged %q, want %q", tc.reason, got, tc.merged)
			}
		})
	}
}

// TestDefinitionsHostile: definitions are parsed in this process, all of a chart together.
func TestDefinitionsHostile(t *testing.T) {
	c := &chart.Chart{Metadata: &chart.Metadata{Name: "c", Version: "1.0.0", APIVersion: "v2"}}
	for i := range 20 {
		file := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: a}\nspec: [" + strings.Repeat("b,", 20_000) + "]\n"
		c.Files = append(c.Files, &common.File{Name: fmt.Sprintf("crds/%d.yaml", i), Data: []byte(file)})
	}
	if _, err := definitionsOf(c); !errors.Is(err, render.ErrHostile) {
		t.Errorf("definitionsOf() = %v, want %v", err, render.ErrHostile)
	}
	c.Files = c.Files[:10]
	if found, err := definitionsOf(c); err != nil || len(found) != 10 {
		t.Errorf("definitionsOf() = %d objects, %v", len(found), err)
	}
}
