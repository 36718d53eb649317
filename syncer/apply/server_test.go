package apply

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/cascade-gitops/cascade/inventory"
)

// server is an API server as far as the steps of an Applier ask it: objects by
// path, which are read, listed, applied and deleted. What it does with fields is
// simpler than what an API server does.
type server struct {
	mapper *meta.DefaultRESTMapper

	mu      sync.Mutex
	objects map[string]*unstructured.Unstructured
	version int
	// refuses are answers to requests, by method and name or path.
	refuses map[string]*apierrors.StatusError
	// requests are those that change something, and reads counts the others; readOf counts these by
	// name, or kind if they are lists.
	requests []string
	reads    int
	readOf   map[string]int
}

// kinds that the server has.
var serverKinds = map[schema.GroupVersionKind]meta.RESTScope{
	{Version: "v1", Kind: "ConfigMap"}:                                                               meta.RESTScopeNamespace,
	{Version: "v1", Kind: "Secret"}:                                                                  meta.RESTScopeNamespace,
	{Version: "v1", Kind: "PersistentVolumeClaim"}:                                                   meta.RESTScopeNamespace,
	{Version: "v1", Kind: "Namespace"}:                                                               meta.RESTScopeRoot,
	{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}:                 meta.RESTScopeRoot,
	{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}:                             meta.RESTScopeRoot,
	{Group: clusterapi.ClusterKind.Group, Version: "v1beta2", Kind: clusterapi.ClusterKind.Kind}:     meta.RESTScopeNamespace,
	{Group: "apps", Version: "v1", Kind: "Deployment"}:                                               meta.RESTScopeNamespace,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta2", Kind: "AWSCluster"}:                  meta.RESTScopeNamespace,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta2", Kind: "AWSClusterStaticIdentity"}:    meta.RESTScopeRoot,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta2", Kind: "AWSClusterRoleIdentity"}:      meta.RESTScopeRoot,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta1", Kind: "AzureCluster"}:                meta.RESTScopeNamespace,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta1", Kind: "AzureClusterIdentity"}:        meta.RESTScopeNamespace,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta1", Kind: "OpenStackCluster"}:            meta.RESTScopeNamespace,
	{Group: clusterapi.InfrastructureGroup, Version: "v1alpha1", Kind: "OpenStackClusterIdentity"}:   meta.RESTScopeRoot,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta1", Kind: "VSphereCluster"}:              meta.RESTScopeNamespace,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta1", Kind: "GCPCluster"}:                  meta.RESTScopeNamespace,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta3", Kind: "CloudStackCluster"}:           meta.RESTScopeNamespace,
	{Group: clusterapi.ControlPlaneGroup, Version: "v1beta2", Kind: "ROSAControlPlane"}:              meta.RESTScopeNamespace,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta2", Kind: "ROSARoleConfig"}:              meta.RESTScopeNamespace,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta2", Kind: "ROSAOCMRoleConfig"}:           meta.RESTScopeRoot,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta2", Kind: "ROSANetwork"}:                 meta.RESTScopeNamespace,
	{Group: clusterapi.ControlPlaneGroup, Version: "v1beta2", Kind: "KubeadmControlPlane"}:           meta.RESTScopeNamespace,
	{Group: clusterapi.InfrastructureGroup, Version: "v1beta1", Kind: "AzureASOManagedControlPlane"}: meta.RESTScopeNamespace,
	{Group: v1alpha1.Group, Version: "v1alpha1", Kind: "Credential"}:                                 meta.RESTScopeNamespace,
	{Group: group, Version: "v1", Kind: "Kustomization"}:                                             meta.RESTScopeNamespace,
	{Group: releaseGroup, Version: "v2", Kind: "HelmRelease"}:                                        meta.RESTScopeNamespace,
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"}:                  meta.RESTScopeRoot,
	{Group: "batch", Version: "v1", Kind: "Job"}:                                                     meta.RESTScopeNamespace,
}

func newServer() *server {
	s := &server{objects: map[string]*unstructured.Unstructured{}, refuses: map[string]*apierrors.StatusError{}, readOf: map[string]int{}}
	var versions []schema.GroupVersion
	for gvk := range serverKinds {
		versions = append(versions, gvk.GroupVersion())
	}
	s.mapper = meta.NewDefaultRESTMapper(versions)
	for gvk, scope := range serverKinds {
		s.mapper.Add(gvk, scope)
	}
	return s
}

// applier returns an Applier of apps in the server's cluster.
func (s *server) applier(t *testing.T) *Applier {
	t.Helper()
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	c, err := connect(&rest.Config{Host: srv.URL, QPS: -1}, srv.Client(), s.mapper, runtime.NewScheme())
	if err != nil {
		t.Fatal(err)
	}
	return New(c, apps, nil, time.Now)
}

// path of an object, or of a kind in a namespace if there is no name.
func (s *server) path(gvk schema.GroupVersionKind, namespace, name string) string {
	mapping, err := s.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		panic(err)
	}
	path := "/apis/" + gvk.GroupVersion().String()
	if gvk.Group == "" {
		path = "/api/" + gvk.Version
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && namespace != "" {
		path += "/namespaces/" + namespace
	}
	path += "/" + mapping.Resource.Resource
	if name != "" {
		path += "/" + name
	}
	return path
}

// put stores an object as somebody else wrote it. change may be nil.
func (s *server) put(u *unstructured.Unstructured, change func(*unstructured.Unstructured)) {
	u = u.DeepCopy()
	if change != nil {
		change(u)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(s.path(u.GroupVersionKind(), u.GetNamespace(), u.GetName()), u)
}

// store keeps an object under a new version. The lock is held.
func (s *server) store(path string, u *unstructured.Unstructured) {
	s.version++
	u.SetResourceVersion(fmt.Sprint(s.version))
	if u.GetUID() == "" {
		u.SetUID(types.UID(fmt.Sprint("uid-", s.version)))
	}
	s.objects[path] = u
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.discovered(r.URL.Path); found != nil {
		s.answer(w, http.StatusOK, found)
		return
	}
	name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	if r.Method == http.MethodGet {
		s.reads++
		s.readOf[name]++
	} else {
		s.requests = append(s.requests, r.Method+" "+name)
	}
	if refusal := cmp.Or(s.refuses[r.Method+" "+name], s.refuses[r.Method+" "+r.URL.Path]); refusal != nil {
		s.answer(w, int(refusal.ErrStatus.Code), refusal.ErrStatus)
		return
	}
	known := s.objects[r.URL.Path]
	switch {
	case r.Method == http.MethodPatch:
		s.apply(w, r, known)
	case r.Method == http.MethodGet && known == nil && s.isList(r.URL.Path):
		s.list(w, r)
	case known == nil:
		s.answer(w, http.StatusNotFound, apierrors.NewNotFound(schema.GroupResource{}, name).ErrStatus)
	case r.Method == http.MethodGet:
		s.answer(w, http.StatusOK, s.asAsked(r, known))
	case r.Method == http.MethodDelete:
		s.delete(w, r, known)
	}
}

// discovered is what a path of discovery shows; nil if it is of something else.
func (s *server) discovered(path string) any {
	if path == "/api" {
		return metav1.APIVersions{Versions: []string{"v1"}}
	}
	groups, resources := metav1.APIGroupList{}, metav1.APIResourceList{}
	for gvk, scope := range serverKinds {
		if version := (metav1.GroupVersionForDiscovery{GroupVersion: gvk.GroupVersion().String(), Version: gvk.Version}); gvk.Group != "" {
			groups.Groups = append(groups.Groups, metav1.APIGroup{Name: gvk.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version})
		}
		place := s.path(gvk, "", "")
		if at := strings.LastIndex(place, "/"); place[:at] == path {
			resources.GroupVersion = gvk.GroupVersion().String()
			resources.APIResources = append(resources.APIResources, metav1.APIResource{
				Name: place[at+1:], Kind: gvk.Kind, Namespaced: scope.Name() == meta.RESTScopeNameNamespace, Verbs: []string{"list", "delete"},
			})
		}
	}
	switch {
	case path == "/apis":
		return groups
	case len(resources.APIResources) > 0:
		return resources
	}
	return nil
}

// isList reports whether a path is of a kind, and not of an object.
func (s *server) isList(path string) bool {
	last := path[strings.LastIndex(path, "/")+1:]
	for gvk := range serverKinds {
		if mapping, err := s.mapper.RESTMapping(gvk.GroupKind(), gvk.Version); err == nil && mapping.Resource.Resource == last {
			return true
		}
	}
	return false
}

func (s *server) apply(w http.ResponseWriter, r *http.Request, known *unstructured.Unstructured) {
	body, err := io.ReadAll(r.Body)
	asked := &unstructured.Unstructured{}
	if err == nil {
		err = json.Unmarshal(body, &asked.Object)
	}
	if err != nil {
		s.answer(w, http.StatusBadRequest, apierrors.NewBadRequest(err.Error()).ErrStatus)
		return
	}
	if uid := asked.GetUID(); known == nil && uid != "" || known != nil && uid != "" && uid != known.GetUID() {
		s.answer(w, http.StatusConflict, apierrors.NewConflict(schema.GroupResource{}, asked.GetName(), fmt.Errorf("uid mismatch")).ErrStatus)
		return
	}
	after := asked.DeepCopy()
	if known != nil {
		after = known.DeepCopy()
		merge(after.Object, asked.Object)
	} else {
		after.SetGeneration(1)
	}
	after.SetManagedFields(managedBy(r.URL.Query().Get("fieldManager")))
	if r.URL.Query().Get("dryRun") != "" {
		s.answer(w, http.StatusOK, s.asAsked(r, after))
		return
	}
	if known == nil || !equalObjects(known, after) {
		if known != nil {
			after.SetGeneration(known.GetGeneration() + 1)
		}
		s.store(r.URL.Path, after)
	}
	s.answer(w, http.StatusOK, s.asAsked(r, s.objects[r.URL.Path]))
}

// managedBy are the managers of an object that one of them applied.
func managedBy(manager string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}}}`),
	}}
}

func equalObjects(a, b *unstructured.Unstructured) bool {
	x, _ := json.Marshal(a.Object)
	y, _ := json.Marshal(b.Object)
	return string(x) == string(y)
}

func merge(into, from map[string]any) {
	for k, v := range from {
		below, ok := v.(map[string]any)
		at, also := into[k].(map[string]any)
		if ok && also {
			merge(at, below)
			continue
		}
		into[k] = v
	}
}

func (s *server) delete(w http.ResponseWriter, r *http.Request, known *unstructured.Unstructured) {
	var o metav1.DeleteOptions
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		s.answer(w, http.StatusBadRequest, apierrors.NewBadRequest(err.Error()).ErrStatus)
		return
	}
	if p := o.Preconditions; p != nil && (p.UID != nil && *p.UID != known.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != known.GetResourceVersion()) {
		s.answer(w, http.StatusConflict, apierrors.NewConflict(schema.GroupResource{}, known.GetName(), fmt.Errorf("precondition failed")).ErrStatus)
		return
	}
	if len(known.GetFinalizers()) > 0 {
		known.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
	} else {
		delete(s.objects, r.URL.Path)
	}
	s.answer(w, http.StatusOK, metav1.Status{Status: metav1.StatusSuccess})
}

func (s *server) list(w http.ResponseWriter, r *http.Request) {
	namespace, resource := "", r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	if parts := strings.Split(r.URL.Path, "/namespaces/"); len(parts) == 2 {
		namespace, _, _ = strings.Cut(parts[1], "/")
	}
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		s.answer(w, http.StatusBadRequest, apierrors.NewBadRequest(err.Error()).ErrStatus)
		return
	}
	name, _ := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	items := []any{}
	for _, path := range slices.Sorted(maps.Keys(s.objects)) {
		u := s.objects[path]
		if strings.HasSuffix(path[:strings.LastIndex(path, "/")], "/"+resource) && (namespace == "" || u.GetNamespace() == namespace) && (name == "" || u.GetName() == name) && selector.Matches(labels.Set(u.GetLabels())) {
			items = append(items, s.asAsked(r, u))
		}
	}
	list := map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{"resourceVersion": fmt.Sprint(s.version)}, "items": items}
	if asksMetadata(r) {
		list["apiVersion"], list["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	s.answer(w, http.StatusOK, list)
}

func asksMetadata(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
}

// asAsked is an object, or its metadata.
func (s *server) asAsked(r *http.Request, u *unstructured.Unstructured) map[string]any {
	if !asksMetadata(r) {
		return u.Object
	}
	return map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": u.Object["metadata"]}
}

func (s *server) answer(w http.ResponseWriter, code int, body any) {
	if status, ok := body.(metav1.Status); ok {
		status.Kind, status.APIVersion = "Status", "v1"
		body = status
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // a client that went away is no matter
}

// anObject is one of a kind of the server, of an owner if that is not nil.
func anObject(kind, name string, of *Owner) *unstructured.Unstructured {
	for gvk, scope := range serverKinds {
		if gvk.Kind != kind {
			continue
		}
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(gvk)
		u.SetName(name)
		if scope.Name() == meta.RESTScopeNameNamespace {
			u.SetNamespace("x")
		}
		if of != nil {
			of.label(u)
			u.SetManagedFields(managedBy(of.FieldManager))
		}
		return u
	}
	panic("no kind " + kind)
}

// namesOf are the names of entries.
func namesOf(entries []inventory.Entry) string {
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return strings.Join(names, " ")
}
