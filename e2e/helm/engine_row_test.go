package helm

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/runtime/conditions"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/release"
)

// engine is an API server, and a connection that is counted.
type engine struct {
	config *rest.Config
	client client.Client
}

func startEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{config: scenario.StartAPIServer(t).Config}
	var err error
	if e.client, err = client.New(e.config, client.Options{Scheme: clientgoscheme.Scheme}); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []struct{ group, kind, plural string }{
		{"cluster.x-k8s.io", "Cluster", "clusters"},
		{"infrastructure.cluster.x-k8s.io", "AWSMachineTemplate", "awsmachinetemplates"},
	} {
		if err := stage.Apply(t.Context(), e.client, definition(kind.group, kind.kind, kind.plural)); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, func() error {
		return e.client.List(t.Context(), listOf("infrastructure.cluster.x-k8s.io", "AWSMachineTemplate"))
	})
	return e
}

func definition(group, kind, plural string) string {
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[3]s.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {kind: %[2]s, plural: %[3]s, singular: %[4]s, listKind: %[2]sList}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, group, kind, plural, strings.ToLower(kind))
}

func listOf(group, kind string) *unstructured.UnstructuredList {
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind + "List"})
	return l
}

// soon waits until a check passes; the API server takes a moment to serve
// what is new.
func soon(t *testing.T, check func() error) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "what is new is served", func(context.Context) error { return check() })
}

// engineRow is one HelmRelease in a namespace, with a connection of its own.
type engineRow struct {
	*engine
	releases *release.Releases
	cluster  *apply.Cluster
	obj      *v2.HelmRelease
	chart    *chart.Chart
	values   map[string]any
	ns       string
	events   *recorded
	saves    int

	mu       sync.Mutex
	requests []string
}

// RoundTrip counts.
type counting struct {
	row  *engineRow
	next http.RoundTripper
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.row.mu.Lock()
	c.row.requests = append(c.row.requests, r.Method+" "+r.URL.Path)
	c.row.mu.Unlock()
	return c.next.RoundTrip(r)
}

// taken are the requests since the last time.
func (r *engineRow) taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.requests
	r.requests = nil
	return taken
}

// recorded are events.
type recorded struct {
	mu   sync.Mutex
	list []string
}

func (r *recorded) Event(_ runtime.Object, kind, reason, message string) {
	r.add(nil, kind, reason, message)
}

func (r *recorded) add(meta map[string]string, kind, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, fmt.Sprintf("%s %s %s %v", kind, reason, message, meta))
}

func (r *recorded) Eventf(_ runtime.Object, kind, reason, format string, args ...any) {
	r.add(nil, kind, reason, fmt.Sprintf(format, args...))
}

func (r *recorded) AnnotatedEventf(_ runtime.Object, meta map[string]string, kind, reason, format string, args ...any) {
	r.add(meta, kind, reason, fmt.Sprintf(format, args...))
}

func (r *recorded) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.list, "\n")
}

func (e *engine) row(t *testing.T) *engineRow {
	t.Helper()
	_, name, _ := strings.Cut(t.Name(), "/")
	r := &engineRow{engine: e, ns: strings.ToLower(name), events: &recorded{}, values: map[string]any{}}
	if err := e.client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.ns}}); err != nil {
		t.Fatal(err)
	}
	r.connect(t)
	r.releases = newReleases(t, r.events)
	r.obj = &v2.HelmRelease{TypeMeta: metav1.TypeMeta{APIVersion: v2.GroupVersion.String(), Kind: v2.HelmReleaseKind}}
	r.obj.Name, r.obj.Namespace, r.obj.UID, r.obj.Generation = "web", r.ns, types.UID(name), 1
	r.obj.Spec.Timeout = &metav1.Duration{Duration: 20 * time.Second}
	r.obj.Spec.MaxHistory = new(5)
	return r
}

func (r *engineRow) connect(t *testing.T) {
	t.Helper()
	config := rest.CopyConfig(r.config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{r, next} })
	var err error
	if r.cluster, err = apply.Connect(config, clientgoscheme.Scheme); err != nil {
		t.Fatal(err)
	}
}

// use sets the chart, of a version and templates.
func (r *engineRow) use(version string, templates map[string]string) {
	r.chart = &chart.Chart{Metadata: &chart.Metadata{Name: "web", Version: version, AppVersion: "2.0", APIVersion: "v2"}, Values: map[string]any{}}
	for name, text := range templates {
		r.chart.Templates = append(r.chart.Templates, &common.File{Name: "templates/" + name + ".yaml", Data: []byte(text)})
	}
	slices.SortFunc(r.chart.Templates, func(a, b *common.File) int { return strings.Compare(a.Name, b.Name) })
}

func (r *engineRow) request() release.Request {
	c := r.chart
	return release.Request{
		Object: r.obj, Values: r.values, Cluster: r.cluster, Local: true,
		Chart: release.Chart{
			Name: c.Name(), Version: c.Metadata.Version, AppVersion: c.AppVersion(),
			Load: func(context.Context) (*chart.Chart, error) { return c, nil },
		},
		Save:     func(context.Context) error { r.saves++; return nil },
		SaveLast: func(context.Context) error { r.saves++; return nil },
	}
}

// sync goes on until the engine has nothing more to do at once.
func (r *engineRow) sync(t *testing.T) (release.Outcome, error) {
	t.Helper()
	for range 10 {
		out, err := r.releases.Sync(t.Context(), r.request())
		if err == nil && !out.Again && !out.Stalled && !out.Held && out.After == 0 {
			r.obj.Status.ObservedGeneration = r.obj.Generation
		}
		if err != nil || !out.Again {
			return out, err
		}
	}
	t.Fatalf("it never ends: %s", r.tell())
	return release.Outcome{}, nil
}

// mustSync ends with the release as declared.
func (r *engineRow) mustSync(t *testing.T) {
	t.Helper()
	if out, err := r.sync(t); err != nil || out != (release.Outcome{}) || !conditions.IsReady(r.obj) {
		t.Fatalf("Sync() = %+v, %v\n%s", out, err, r.tell())
	}
}

func (r *engineRow) tell() string {
	var b strings.Builder
	for _, c := range r.obj.Status.Conditions {
		fmt.Fprintf(&b, "%s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
	}
	fmt.Fprintf(&b, "events:\n%s\n", r.events)
	return b.String()
}

// there reports whether an object is.
func (r *engineRow) there(t *testing.T, group, kind, name string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind})
	err := r.client.Get(t.Context(), client.ObjectKey{Namespace: r.ns, Name: name}, u)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func (r *engineRow) storage() *storage.Storage {
	return storage.Init(driver.NewSecrets(kubernetes.NewForConfigOrDie(r.config).CoreV1().Secrets(r.ns)))
}

func (r *engineRow) last(t *testing.T) *helmrelease.Release {
	t.Helper()
	rel, err := r.storage().Last("web")
	if err != nil {
		t.Fatal(err)
	}
	return rel.(*helmrelease.Release)
}

func (r *engineRow) annotate(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.DeletionAnnotation, v1alpha1.DeletionConfirmed)
	if err := r.client.Patch(t.Context(), u, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
}

// inventory has the ids.
func (r *engineRow) inventory() []string {
	var ids []string
	if r.obj.Status.Inventory != nil {
		for _, e := range r.obj.Status.Inventory.Entries {
			ids = append(ids, e.ID)
		}
	}
	return ids
}
