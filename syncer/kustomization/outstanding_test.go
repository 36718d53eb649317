package kustomization

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/target"
)

// TestOutstanding: of a Cluster that is applied, the release that makes it is asked first, and
// then the API server, for the objects that are there.
func TestOutstanding(t *testing.T) {
	const r2 = "main@sha1:2"
	released := func(change func(*helmv2.HelmRelease)) *helmv2.HelmRelease {
		h := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "made", Generation: 2}}
		h.Status.ObservedGeneration = 2
		h.Status.Inventory = &helmv2.ResourceInventory{Entries: []helmv2.ResourceRef{{ID: "apps_made_cluster.x-k8s.io_Cluster", Version: "v1beta2"}}}
		h.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, ObservedGeneration: 2}}
		if change != nil {
			change(h)
		}
		return h
	}
	unread := func(change func(*helmv2.HelmRelease)) *helmv2.HelmRelease {
		return released(func(h *helmv2.HelmRelease) {
			h.Annotations = map[string]string{v1alpha1.RolloutRevisionAnnotation: r2, v1alpha1.ReleasedRevisionAnnotation: "main@sha1:1"}
			h.Status.Conditions[0].Status, h.Status.Conditions[0].Reason, h.Status.Conditions[0].Message = metav1.ConditionFalse, v1alpha1.ReasonControlPlaneUnreadable, "the webhook is down"
			if change != nil {
				change(h)
			}
		})
	}
	release := "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {namespace: apps, name: made}\nspec: {chart: {spec: {chart: c, sourceRef: {kind: GitRepository, name: base}}}}\n"
	for name, tc := range map[string]struct {
		reason  string
		release *helmv2.HelmRelease
		want    string
		held    string
	}{
		"Released": {reason: "the release is done, and nobody has made its Cluster", release: released(nil), want: "there is no Cluster apps/made yet"},
		"Unseen":   {reason: "it was not released since", release: released(func(h *helmv2.HelmRelease) { h.Status.ObservedGeneration = 1 }), want: "HelmRelease apps/made was not released since it was changed"},
		"Values": {reason: "its values changed with the revision, and its generation did not", release: released(func(h *helmv2.HelmRelease) {
			h.Annotations = map[string]string{v1alpha1.RolloutRevisionAnnotation: r2, v1alpha1.ReleasedRevisionAnnotation: "main@sha1:1"}
		}), want: "HelmRelease apps/made was not released since it was changed"},
		"Noted": {reason: "it has them", release: released(func(h *helmv2.HelmRelease) {
			h.Annotations = map[string]string{v1alpha1.RolloutRevisionAnnotation: r2, v1alpha1.ReleasedRevisionAnnotation: r2}
		}), want: "there is no Cluster apps/made yet"},
		"Failed": {reason: "the upgrade failed", release: released(func(h *helmv2.HelmRelease) {
			h.Status.Conditions[0].Status, h.Status.Conditions[0].Message = metav1.ConditionFalse, "no"
		}), want: "HelmRelease apps/made is not ready: no"},
		"Suspended": {reason: "nobody will release it", release: released(func(h *helmv2.HelmRelease) { h.Spec.Suspend = true }), want: "HelmRelease apps/made is suspended", held: v1alpha1.ReasonSuspended},
		"Refused": {reason: "the step is refused", release: released(func(h *helmv2.HelmRelease) {
			h.Status.ObservedGeneration = 1
			h.Status.Conditions[0].Status, h.Status.Conditions[0].Reason, h.Status.Conditions[0].Message = metav1.ConditionFalse, v1alpha1.ReasonUnsupportedVersionStep, "go to 1.37 first"
		}), want: "go to 1.37 first", held: v1alpha1.ReasonUnsupportedVersionStep},
		"Unread":      {"its control plane cannot be read, so that nothing of it is tried", unread(nil), "the webhook is down", v1alpha1.ReasonControlPlaneUnreadable},
		"UnreadLate":  {"a release of it failed before that", unread(func(h *helmv2.HelmRelease) { h.Status.UpgradeFailures = 1 }), "was not released since it was changed", ""},
		"UnreadNoted": {"it was released before that", unread(func(h *helmv2.HelmRelease) { h.Annotations[v1alpha1.ReleasedRevisionAnnotation] = r2 }), "is not ready: the webhook is down", ""},
		"RefusedBefore": {reason: "which was of the declaration before", release: released(func(h *helmv2.HelmRelease) {
			h.Generation = 3
			h.Status.Conditions[0].Status, h.Status.Conditions[0].Reason = metav1.ConditionFalse, v1alpha1.ReasonUnsupportedVersionStep
		}), want: "was not released"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("waves", nil)
			r.child("made", "waves="+r2)
			r.objects = append(r.objects, tc.release)
			s := r.take(nil)
			newest := snapshotAt(t, r2, map[string]string{"fleet/made.yaml": release})
			if end := s.composes(t, newest); end != nil {
				t.Fatalf("it ended as %+v", end)
			}
			s.noteComposition(s.run, true)
			c, cluster := s.Composed(s.name()), types.NamespacedName{Namespace: "apps", Name: "made"}
			if c.Applied(cluster) != r2 {
				t.Fatalf("applied is %q", c.Applied(cluster))
			}
			got := c.Outstanding(t.Context(), cluster)
			if held, why, _ := c.Held(t.Context(), cluster); !strings.Contains(got, tc.want) || held != tc.held || (why == got) != (held != "") {
				t.Errorf("%s: Outstanding() = %q, Held() = %q, %q, want %q, %q", tc.reason, got, held, why, tc.want, tc.held)
			}
			// When that ends is told from then on, also once something is applied.
			if tc.held == v1alpha1.ReasonControlPlaneUnreadable {
				tc.release.Status.Conditions[0].Reason = meta.ProgressingReason
				if err := s.client.Update(t.Context(), tc.release); err != nil {
					t.Fatal(err)
				}
				s.now = s.now.Add(2 * outstandingHolds)
				for range 2 {
					if held, why, since := s.Composed(s.name()).Held(t.Context(), cluster); held != "" || why != "" || !since.Equal(s.now) {
						t.Errorf("it began, and Held() = %q, %q, %s, want since %s", held, why, since, s.now)
					}
					s.noteComposition(s.run, true)
				}
				return
			}
			// A look holds for a while, and no longer than until something is applied.
			if err := s.client.Delete(t.Context(), tc.release); err != nil {
				t.Fatal(err)
			}
			held := tc.want
			if strings.HasPrefix(tc.want, "there is no Cluster") {
				held = "cannot read" // what is not outstanding is looked at each time
			}
			if got = c.Outstanding(t.Context(), cluster); !strings.Contains(got, held) {
				t.Errorf("it looked again at once, and says %q", got)
			}
			if got = s.Composed(s.name()).Outstanding(t.Context(), cluster); !strings.Contains(got, held) {
				t.Errorf("another look at the same composition says %q", got)
			}
			s.noteComposition(s.run, true)
			if got = s.Composed(s.name()).Outstanding(t.Context(), cluster); !strings.Contains(got, "cannot read HelmRelease apps/made") {
				t.Errorf("something was applied since, and it says %q", got)
			}
			s.now = s.now.Add(2 * outstandingHolds)
			if got = c.Outstanding(t.Context(), cluster); !strings.Contains(got, "cannot read HelmRelease apps/made") {
				t.Errorf("what cannot be read is %q", got)
			}
		})
	}
}

// TestOutstandingInServed: a version of Cluster API that is dropped while the agent runs takes
// no Cluster along.
func TestOutstandingInServed(t *testing.T) {
	versions := []string{"v1beta1"}
	group := func() metav1.APIGroup {
		g := metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: clusterapi.Group}
		for _, v := range versions {
			g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: clusterapi.Group + "/" + v, Version: v})
		}
		if len(versions) > 0 {
			g.PreferredVersion = g.Versions[0]
		}
		return g
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		base, version := "/apis/"+clusterapi.Group, strings.Split(r.URL.Path+"////", "/")[3]
		var answer any
		switch served := slices.Contains(versions, version); {
		case r.URL.Path == "/api":
			answer = metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}}
		case r.URL.Path == "/apis":
			answer = metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group()}}
		case r.URL.Path == base:
			answer = group()
		case served && r.URL.Path == base+"/"+version:
			answer = metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: clusterapi.Group + "/" + version,
				APIResources: []metav1.APIResource{
					{Name: "clusters", SingularName: "cluster", Kind: "Cluster", Namespaced: true},
					{Name: "machinedeployments", SingularName: "machinedeployment", Kind: "MachineDeployment", Namespaced: true},
				}}
		case served && r.URL.Path == base+"/"+version+"/namespaces/apps/clusters/made":
			answer = map[string]any{"apiVersion": clusterapi.Group + "/" + version, "kind": "Cluster", "metadata": map[string]any{"namespace": "apps", "name": "made"}}
		case served && r.URL.Path == base+"/"+version+"/namespaces/apps/machinedeployments":
			answer = map[string]any{"apiVersion": clusterapi.Group + "/" + version, "kind": "MachineDeploymentList", "items": []any{map[string]any{
				"apiVersion": clusterapi.Group + "/" + version, "kind": "MachineDeployment", "metadata": map[string]any{"namespace": "apps", "name": "workers", "generation": 2},
			}}}
		default:
			http.NotFound(w, r) // as an API server does for a path that it does not serve
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	local, err := apply.Connect(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, runtime.NewScheme())
	if err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Targets: &target.Targets{Local: local}}
	for _, tc := range []struct {
		reason   string
		versions []string
		want     string
	}{
		{"it is there, and so are its workers", []string{"v1beta1"}, "MachineDeployment workers was not looked at"},
		{"both are, in the version that is left", []string{"v1beta2"}, "MachineDeployment workers was not looked at"},
		{"no version is served: that says nothing of the Cluster", nil, "cannot read Cluster apps/made"},
	} {
		versions = tc.versions
		why, err := r.outstanding(t.Context(), types.NamespacedName{Namespace: "apps", Name: "made"})
		if err != nil {
			why = err.Error()
		}
		if !strings.Contains(why, tc.want) {
			t.Errorf("%s: it says %q, want %q", tc.reason, why, tc.want)
		}
	}
}
