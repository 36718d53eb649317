package release

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/go-logr/logr"
	"helm.sh/helm/v4/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// widgets is the group of a kind that is defined by somebody.
const widgets = "shop.io"

// smallServer is an API server that has ConfigMaps, PersistentVolumeClaims, Widgets and definitions, which are
// read, applied and deleted by the name of their path. It has no Secrets.
type smallServer struct {
	objects map[string]*unstructured.Unstructured
	// after is called when a request has its answer; it may be nil.
	after func(method, name string)
	// unread is the name of what is not read any more, unserved that of what is not deleted in
	// this version any more.
	unread, unserved string
	// fixed is the name of what nobody may change.
	fixed string
	// noWidgets: their kind is gone. API servers notice that late: groups is how often they list
	// its group still.
	noWidgets bool
	groups    int
	// deleted are those of which the delete was asked for, with its preconditions.
	deleted  []string
	policies []string
	// merged are the merge patches, each after the manager of its fields.
	merged []string
}

func (s *smallServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	code, body := s.answer(r, name)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
	if s.after != nil {
		s.after(r.Method, name)
	}
}

func (s *smallServer) answer(r *http.Request, name string) (int, any) {
	failure := func(code int, reason metav1.StatusReason) (int, any) {
		return code, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason)}
	}
	unserved := func() (int, any) {
		return http.StatusNotFound, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource",
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeUnexpectedServerResponse, Message: "404 page not found"}}}}
	}
	resources := func(version string, of ...metav1.APIResource) (int, any) {
		for i := range of {
			of[i].Verbs = metav1.Verbs{"get", "list", "patch", "delete"}
		}
		return http.StatusOK, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: version, APIResources: of}
	}
	switch r.URL.Path {
	case "/api":
		return http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case "/apis":
		groups := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}}
		for _, name := range []string{"apiregistration.k8s.io", "apiextensions.k8s.io", widgets, v2.GroupVersion.Group} {
			if name == widgets && s.noWidgets {
				if s.groups == 0 {
					continue
				}
				s.groups--
			}
			version := metav1.GroupVersionForDiscovery{GroupVersion: name + "/v1", Version: "v1"}
			if name == v2.GroupVersion.Group {
				version = metav1.GroupVersionForDiscovery{GroupVersion: v2.GroupVersion.String(), Version: v2.GroupVersion.Version}
			}
			groups.Groups = append(groups.Groups, metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version})
		}
		return http.StatusOK, groups
	case "/api/v1":
		return resources("v1", metav1.APIResource{Name: "configmaps", SingularName: "configmap", Kind: "ConfigMap", Namespaced: true},
			metav1.APIResource{Name: "persistentvolumeclaims", SingularName: "persistentvolumeclaim", Kind: "PersistentVolumeClaim", Namespaced: true},
			metav1.APIResource{Name: "secrets", SingularName: "secret", Kind: "Secret", Namespaced: true})
	case "/apis/" + v2.GroupVersion.String():
		return resources(v2.GroupVersion.String(), metav1.APIResource{Name: "helmreleases", SingularName: "helmrelease", Kind: v2.HelmReleaseKind, Namespaced: true})
	case "/apis/apiextensions.k8s.io/v1":
		return resources("apiextensions.k8s.io/v1", metav1.APIResource{Name: "customresourcedefinitions", SingularName: "customresourcedefinition", Kind: "CustomResourceDefinition"})
	case "/apis/apiregistration.k8s.io/v1":
		return resources("apiregistration.k8s.io/v1", metav1.APIResource{Name: "apiservices", SingularName: "apiservice", Kind: "APIService"})
	case "/apis/apiregistration.k8s.io/v1/apiservices":
		return http.StatusOK, map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIServiceList", "items": []any{}}
	case "/readyz":
		return http.StatusOK, "ok"
	case "/version":
		return http.StatusOK, version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.0"}
	case "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/api/v1/namespaces/apps/secrets":
		return http.StatusOK, map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "items": []any{}}
	}
	if s.noWidgets && strings.HasPrefix(r.URL.Path, "/apis/"+widgets+"/") {
		return unserved()
	}
	if r.URL.Path == "/apis/"+widgets+"/v1" {
		return resources(widgets+"/v1", metav1.APIResource{Name: "widgets", SingularName: "widget", Kind: "Widget", Namespaced: true})
	}
	u := s.objects[name]
	if u == nil {
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound)
	}
	if r.Method == http.MethodGet && name == s.unread {
		return failure(http.StatusForbidden, metav1.StatusReasonForbidden)
	}
	if r.Method == http.MethodDelete && name == s.unserved {
		return unserved()
	}
	if r.Method == http.MethodPatch && r.Header.Get("Content-Type") == string(types.MergePatchType) {
		patch := &unstructured.Unstructured{}
		if json.NewDecoder(r.Body).Decode(&patch.Object) != nil || patch.GetResourceVersion() != "" && patch.GetResourceVersion() != u.GetResourceVersion() {
			return failure(http.StatusConflict, metav1.StatusReasonConflict)
		}
		if name == s.fixed {
			return failure(http.StatusForbidden, metav1.StatusReasonForbidden)
		}
		s.merged = append(s.merged, r.URL.Query().Get("fieldManager")+" "+fmt.Sprint(patch.Object))
		if a := patch.GetAnnotations(); a != nil {
			u.SetAnnotations(a)
		}
		u.SetResourceVersion(u.GetResourceVersion() + "1")
	}
	if r.Method != http.MethodDelete {
		if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
			return http.StatusOK, map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": u.Object["metadata"]}
		}
		return http.StatusOK, u.Object
	}
	var o metav1.DeleteOptions
	if body, err := io.ReadAll(r.Body); err != nil || json.Unmarshal(body, &o) != nil {
		return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest)
	}
	asked := name
	if p := o.Preconditions; p != nil && p.UID != nil && p.ResourceVersion != nil {
		asked = fmt.Sprint(name, " ", *p.UID, " ", *p.ResourceVersion)
		if *p.UID != u.GetUID() || *p.ResourceVersion != u.GetResourceVersion() {
			return failure(http.StatusConflict, metav1.StatusReasonConflict)
		}
	}
	s.deleted, s.policies = append(s.deleted, asked), append(s.policies, string(*o.PropagationPolicy))
	delete(s.objects, name)
	return http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess}
}

// TestDeletesAsJudged: the objects that Helm has deleted go as they were judged, one by one, and
// what an upgrade drops is judged when all else is applied.
func TestDeletesAsJudged(t *testing.T) {
	change := func(name string, f func(*unstructured.Unstructured)) func(*smallServer) {
		return func(s *smallServer) {
			u := s.objects[name].DeepCopy()
			u.SetResourceVersion(u.GetResourceVersion() + "0")
			f(u)
			s.objects[name] = u
		}
	}
	taken := change("b", func(u *unstructured.Unstructured) {
		u.SetLabels(map[string]string{ownerName: "other", ownerNamespace: "apps"})
	})
	again := change("b", func(u *unstructured.Unstructured) { u.SetUID("again") })
	unconfirmed := change("data", func(u *unstructured.Unstructured) { u.SetAnnotations(nil) })
	for name, tc := range map[string]struct {
		reason string
		// upgrade drops all but target; otherwise they are uninstalled.
		upgrade bool
		// meanwhile happens once, after an answer to what it names.
		at        string
		meanwhile func(*smallServer)
		absent    bool
		// widget: b is one, not a ConfigMap. sync: it is a HelmRelease. gone: its kind was gone before. stored is the version of the
		// manifest, if that is not served any more.
		widget, sync, gone bool
		stored             string
		// release: the deletion of the HelmRelease is confirmed, and no object's.
		release bool
		// deletes is how many this process has the right for, if not all.
		deletes int
		want    string
		spared  string
		result  string
		fails   string
	}{
		"Uninstall":     {reason: "all go, in the order of Helm", want: "a uid-a 1, b uid-b 1, data uid-data 1", result: "a b data"},
		"Upgrade":       {reason: "all but what stays", upgrade: true, want: "a uid-a 1, b uid-b 1, data uid-data 1", result: "a b data"},
		"Fenced":        {reason: "the process was paused between two deletes", deletes: 1, want: "a uid-a 1", fails: "paused"},
		"FencedUp":      {reason: "so it was in an upgrade", upgrade: true, deletes: 1, want: "a uid-a 1", fails: "paused", result: "a"},
		"Changed":       {reason: "it is the same object", at: "GET b", meanwhile: change("b", func(*unstructured.Unstructured) {}), want: "a uid-a 1, b uid-b 10, data uid-data 1", result: "a b data"},
		"Taken":         {reason: "another owner applied it after it was judged", at: "GET b", meanwhile: taken, want: "a uid-a 1, data uid-data 1", spared: "b", result: "a data"},
		"TakenUp":       {reason: "or while the upgrade went on", upgrade: true, at: "PATCH target", meanwhile: taken, want: "a uid-a 1, data uid-data 1", spared: "b", result: "a data"},
		"Again":         {reason: "another object has the name", at: "GET b", meanwhile: again, want: "a uid-a 1, data uid-data 1", fails: "created again"},
		"Unconfirmed":   {reason: "a person thought again, so that the uninstall does not end", at: "GET data", meanwhile: unconfirmed, want: "a uid-a 1, b uid-b 1", spared: "data", fails: "held"},
		"UnconfirmedUp": {reason: "or in an upgrade, which leaves it", upgrade: true, at: "PATCH target", meanwhile: unconfirmed, want: "a uid-a 1, b uid-b 1", spared: "data", result: "a b"},
		"Unread": {reason: "what has changed and cannot be read may be anything", at: "GET b", meanwhile: func(s *smallServer) { taken(s); s.unread = "b" },
			want: "a uid-a 1, data uid-data 1", spared: "b", fails: "cannot be read"},
		"OfRelease": {reason: "what asks a person is confirmed with the release, just before its delete", release: true,
			want: "a uid-a 1, b uid-b 1, data uid-data 11", result: "a b data"},
		"OfReleaseChanged": {reason: "as the object that it is by now", release: true, at: "GET data", meanwhile: change("data", func(*unstructured.Unstructured) {}),
			want: "a uid-a 1, b uid-b 1, data uid-data 101", result: "a b data"},
		"OfReleaseTaken": {reason: "another owner's is not confirmed", release: true, at: "GET data", meanwhile: change("data", func(u *unstructured.Unstructured) {
			u.SetLabels(map[string]string{ownerName: "other", ownerNamespace: "apps"})
		}), want: "a uid-a 1, b uid-b 1", spared: "data", result: "a b"},
		"Unserved": {reason: "that the version is not served any more says nothing of the object", at: "GET b", meanwhile: func(s *smallServer) { s.unserved = "b" },
			want: "a uid-a 1, data uid-data 1", fails: "cannot delete ConfigMap/apps/b"},
		"UnservedUp": {reason: "nor in an upgrade", upgrade: true, at: "GET b", meanwhile: func(s *smallServer) { s.unserved = "b" },
			want: "a uid-a 1, data uid-data 1", result: "a data", fails: "cannot delete ConfigMap/apps/b"},
		"KindGone": {reason: "its definition went before, as in the order of Helm, and took it along", widget: true, at: "DELETE a", meanwhile: func(s *smallServer) { s.noWidgets = true },
			want: "a uid-a 1, data uid-data 1", result: "a b data"},
		"KindGoneLate": {reason: "which is not seen everywhere at once", widget: true, at: "DELETE a", meanwhile: func(s *smallServer) { s.noWidgets, s.groups = true, 2 },
			want: "a uid-a 1, data uid-data 1", result: "a b data"},
		"KindGoneUp": {reason: "and in an upgrade", upgrade: true, widget: true, at: "DELETE a", meanwhile: func(s *smallServer) { s.noWidgets = true },
			want: "a uid-a 1, data uid-data 1", result: "a data"},
		"KindGoneBefore": {reason: "nobody who looks now knows the kind", widget: true, gone: true,
			want: "a uid-a 1, data uid-data 1", result: "a data"},
		"KindGoneBeforeUp": {reason: "and an upgrade goes on without it", upgrade: true, widget: true, gone: true,
			want: "a uid-a 1, data uid-data 1", result: "a data"},
		"LastUp": {reason: "a HelmRelease takes down what it installed, for which it may need the rest, and stays on record until then (read 917)", upgrade: true, sync: true,
			want: "b uid-b 1, data uid-data 1", spared: "a b", result: "b data"},
		"OtherVersion": {reason: "the kind is served in another version than the manifest has", widget: true, stored: "v1alpha1",
			want: "a uid-a 1, b uid-b 1, data uid-data 1", result: "a b data"},
		"Gone": {reason: "what was not there is not the release's when somebody creates it", absent: true, at: "GET b",
			meanwhile: func(s *smallServer) { s.objects["b"] = s.objects["a"].DeepCopy() }, want: "a uid-a 1, data uid-data 1", result: "a b data"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &smallServer{objects: map[string]*unstructured.Unstructured{}}
			manifest := ""
			for _, e := range []string{"ConfigMap/target", "ConfigMap/a", "ConfigMap/b", "PersistentVolumeClaim/data"} {
				kind, name, _ := strings.Cut(e, "/")
				if name == "b" && tc.widget {
					kind = "Widget"
				}
				if name == "b" && tc.sync {
					kind = v2.HelmReleaseKind
				}
				u := named(kind, name).Object()
				u.SetLabels(map[string]string{ownerName: "web", ownerNamespace: "apps"})
				if !tc.release {
					u.SetAnnotations(map[string]string{v1alpha1.DeletionAnnotation: v1alpha1.DeletionConfirmed})
				}
				u.SetUID(types.UID("uid-" + name))
				u.SetResourceVersion("1")
				s.objects[name] = u
				if name != "target" || tc.upgrade {
					manifest += manifestOf(named(kind, name))
				}
			}
			if tc.absent || tc.gone {
				delete(s.objects, "b")
			}
			if s.noWidgets = tc.gone; tc.stored != "" {
				manifest = strings.ReplaceAll(manifest, widgets+"/v1", widgets+"/"+tc.stored)
			}
			s.after = func(method, name string) {
				if tc.meanwhile != nil && method+" "+name == tc.at {
					tc.meanwhile(s)
					tc.meanwhile = nil
				}
			}
			srv := httptest.NewServer(s)
			defer srv.Close()
			c, err := apply.Connect(&rest.Config{Host: srv.URL}, runtime.NewScheme())
			if err != nil {
				t.Fatal(err)
			}
			c.Fence(func() error {
				if tc.deletes > 0 && len(s.deleted) >= tc.deletes {
					return errors.New("it was paused")
				}
				return nil
			})
			session, err := open(c)
			if err != nil {
				t.Fatal(err)
			}
			obj := &v2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "apps"}}
			g := newGuard(c, obj, "web", "apps", time.Now)
			g.confirmed = tc.release
			k := newKubeClient(t.Context(), session, g, newLogs(logr.Discard(), time.Now, nil), "apps", nil, time.Now)
			k.former = -1
			list, err := k.Build(strings.NewReader(manifest), false)
			if err != nil {
				t.Fatal(err)
			}
			var res *kube.Result
			policy := metav1.DeletePropagationForeground
			if tc.upgrade {
				policy = metav1.DeletePropagationBackground
				res, err = k.Update(list, list[:1])
			} else {
				var errs []error
				k.uninstalling = true
				res, errs = k.Delete(list, policy)
				err = errors.Join(errs...)
			}
			if (err != nil) != (tc.fails != "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s: it ends with %v, want %q", tc.reason, err, tc.fails)
			}
			if got := strings.Join(s.deleted, ", "); got != tc.want {
				t.Errorf("%s: deleted %q, want %q", tc.reason, got, tc.want)
			}
			if slices.ContainsFunc(s.policies, func(p string) bool { return p != string(policy) }) {
				t.Errorf("%s: deleted by the policies %q, want %s", tc.reason, s.policies, policy)
			}
			var spared, deleted []string
			for _, e := range slices.Concat(k.spared.kept(), k.spared.foreign) {
				spared = append(spared, e.Name)
			}
			if res != nil {
				for _, info := range res.Deleted {
					deleted = append(deleted, info.Name)
				}
			}
			if got := strings.Join(spared, " "); got != tc.spared {
				t.Errorf("%s: spared %q, want %q", tc.reason, got, tc.spared)
			}
			if got := strings.Join(deleted, " "); got != tc.result {
				t.Errorf("%s: the result says that %q was deleted, want %q", tc.reason, got, tc.result)
			}
		})
	}
}

// TestHooksGo: Helm deletes a hook before it makes it anew, and waits for its end. What stays all the same is not
// waited for.
func TestHooksGo(t *testing.T) {
	keep := kube.ResourcePolicyAnno + ": keep"
	for name, tc := range map[string]struct {
		reason string
		kind   string
		// declared and live are annotations besides that of hooks; plain: the live object has no such.
		declared, live string
		plain          bool
		owner          string
		deleted        string
	}{
		"Own":         {reason: "it is the release's", owner: "web", deleted: "b"},
		"Kept":        {reason: "the policy is about what is uninstalled", declared: keep, live: keep, owner: "web", deleted: "b"},
		"KeptNow":     {reason: "also if it had none when it was made", declared: keep, owner: "web", deleted: "b"},
		"KeptData":    {reason: "the chart wants the data left behind", kind: "PersistentVolumeClaim", declared: keep, live: keep, owner: "web"},
		"KeptDataNow": {reason: "whenever it says so", kind: "PersistentVolumeClaim", declared: keep, owner: "web"},
		"KeptPlain":   {reason: "it was no hook when it was made", declared: keep, live: keep, plain: true, owner: "web"},
		"Renamed":     {reason: "the HelmRelease had this name before", owner: "old", deleted: "b"},
		"Other":       {reason: "it is another owner's", owner: "shop"},
		"Unlabelled":  {reason: "the helm CLI installed it", deleted: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.kind == "" {
				tc.kind = "ConfigMap"
			}
			hook := "helm.sh/hook: pre-upgrade"
			parse := func(annotations ...string) *unstructured.Unstructured {
				annotations = slices.DeleteFunc(annotations, func(a string) bool { return a == "" })
				return parsed(t, "apiVersion: v1\nkind: "+tc.kind+"\nmetadata: {name: b, uid: uid-b, resourceVersion: '1', annotations: {"+strings.Join(annotations, ", ")+"}}\n")
			}
			live := parse(hook, tc.live)
			if tc.plain {
				live = parse(tc.live)
			}
			if tc.owner != "" {
				live.SetLabels(map[string]string{ownerName: tc.owner, ownerNamespace: "apps"})
			}
			s := &smallServer{objects: map[string]*unstructured.Unstructured{"b": live}}
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
			g := newGuard(c, &v2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "apps"}}, "web", "apps", time.Now)
			g.former = func(_ context.Context, name string) (bool, error) { return name == "old", nil }
			k := newKubeClient(t.Context(), session, g, newLogs(logr.Discard(), time.Now, nil), "apps", nil, time.Now)
			manifest, err := json.Marshal(parse(hook, tc.declared))
			if err != nil {
				t.Fatal(err)
			}
			list, err := k.Build(bytes.NewReader(manifest), false)
			if err != nil {
				t.Fatal(err)
			}
			if _, errs := k.Delete(list, metav1.DeletePropagationBackground); len(errs) > 0 {
				t.Errorf("%s: Delete() = %v", tc.reason, errs)
			}
			deleted, _, _ := strings.Cut(strings.Join(s.deleted, " "), " ")
			if deleted != tc.deleted {
				t.Errorf("%s: deleted %q, want %q", tc.reason, s.deleted, tc.deleted)
			}
			w, err := k.GetWaiter(kube.StatusWatcherStrategy)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.WaitForDelete(list, time.Second); err != nil {
				t.Errorf("%s: WaitForDelete() = %v", tc.reason, err)
			}
		})
	}
}

// TestHookOutput: a chart asks for the output of its hooks. Helm asks the client for their
// Pods in a goroutine of its own, where nothing catches a panic.
func TestHookOutput(t *testing.T) {
	k := newKubeClient(t.Context(), &session{}, nil, newLogs(logr.Discard(), time.Now, nil), "apps", nil, time.Now)
	pods, err := k.GetPodList("apps", metav1.ListOptions{LabelSelector: "job-name=migrate"})
	if err != nil || len(pods.Items) > 0 {
		t.Errorf("GetPodList() = %v, %v; want none: nobody reads the output", pods, err)
	}
	written := func(_, _, _ string) io.Writer { t.Error("somebody reads the output"); return io.Discard }
	if err := k.OutputContainerLogsForPodList(&corev1.PodList{Items: make([]corev1.Pod, 1)}, "apps", written); err != nil {
		t.Error(err)
	}
}
