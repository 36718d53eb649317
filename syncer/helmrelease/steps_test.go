package helmrelease

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"helm.sh/helm/v4/pkg/release/common"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/find"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/release"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/target"
	"github.com/cascade-gitops/cascade/syncer/wake"
)

// noon is when the steps are taken.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// fakeReleases answers instead of Helm.
type fakeReleases struct {
	sync      func(context.Context, release.Request) (release.Outcome, error)
	uninstall func() (release.Outcome, error)
	declares  func() ([]*unstructured.Unstructured, error)
	// has reports whether our own cluster, or another one, has the release.
	has func(local bool) bool
	// hidden is why our own cluster does not tell.
	hidden error
	// contents are what a cluster has on record for the release.
	contents  func() ([]inventory.Entry, error)
	forgotten int
	last      types.UID
	// uninstalls are the clusters in which it was asked to uninstall.
	uninstalls []*apply.Cluster
}

func (f *fakeReleases) Sync(ctx context.Context, r release.Request) (release.Outcome, error) {
	return f.sync(ctx, r)
}

func (f *fakeReleases) Uninstall(_ context.Context, r release.Request) (release.Outcome, error) {
	f.uninstalls = append(f.uninstalls, r.Cluster)
	return f.uninstall()
}

func (f *fakeReleases) Has(_ context.Context, r release.Request) (bool, error) {
	if r.Local && f.hidden != nil {
		return false, f.hidden
	}
	return f.has != nil && f.has(r.Local), nil
}

func (f *fakeReleases) Contents(context.Context, release.Request) ([]inventory.Entry, error) {
	return f.contents()
}

func (f *fakeReleases) Forget(_ types.NamespacedName, uid types.UID) {
	f.forgotten++
	f.last = uid
}

func (f *fakeReleases) Declares(context.Context, release.Request) ([]*unstructured.Unstructured, error) {
	return f.declares()
}

// steps has a reconciler without a control plane, and one HelmRelease in it.
type steps struct {
	*Reconciler
	*run
	client client.Client
	events *record.FakeRecorder
	helm   *fakeReleases
}

// take reads what the test declares into a run, as Reconcile does.
func take(t *testing.T, obj *helmv2.HelmRelease, objects ...client.Object) *steps {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, helmv2.AddToScheme, sourcev1.AddToScheme, generatorv1.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	kind := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "helmreleases.helm.toolkit.fluxcd.io"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(objects, obj, kind)...).WithStatusSubresource(&helmv2.HelmRelease{}).Build()
	s := &steps{client: c, events: record.NewFakeRecorder(100), helm: &fakeReleases{}}
	now := func() time.Time { return noon }
	s.Reconciler = &Reconciler{
		Client: c, Events: s.events, Metrics: metrics.New(prometheus.NewRegistry()), Releases: s.helm, Claims: &claim.Claims{Client: c},
		Targets: &target.Targets{Local: &apply.Cluster{Client: c}, Now: now},
		Sources: &find.Finder{
			Client: c, Reader: c, Snapshots: source.NewSnapshots(), Fetched: map[string]bool{sourcev1.HelmChartKind: true, sourcev1.OCIRepositoryKind: true},
			Artifacts: source.NewArtifacts(t.TempDir(), 1<<20),
		},
		Now: now, Jitter: wake.NewJitter(func() float64 { return 0.5 }), Rules: Rules{RequeueDependency: 30 * time.Second}, ChartFileBytes: 1 << 20,
	}
	s.open()
	read, err := s.store.Read(t.Context(), client.ObjectKeyFromObject(obj))
	if err != nil {
		t.Fatal(err)
	}
	s.run = &run{Record: s.store.Record(read)}
	return s
}

// shop is a HelmRelease of namespace apps with a chart of an OCIRepository.
func shop(change func(*helmv2.HelmRelease)) *helmv2.HelmRelease {
	h := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "shop", Generation: 1, Finalizers: []string{helmv2.HelmReleaseFinalizer}}}
	h.Spec.Interval = metav1.Duration{Duration: time.Hour}
	h.Spec.ChartRef = &helmv2.CrossNamespaceSourceReference{Kind: sourcev1.OCIRepositoryKind, Name: "shop"}
	if change != nil {
		change(h)
	}
	return h
}

// image is the OCIRepository of the chart; ready has an artifact.
func image(ready bool) *sourcev1.OCIRepository {
	o := &sourcev1.OCIRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "shop", Generation: 1}}
	if ready {
		o.Status.ObservedGeneration = 1
		o.Status.Artifact = &meta.Artifact{Revision: "1.0.0@sha256:0000000000000000000000000000000000000000000000000000000000000000"}
	}
	return o
}

// chartOf is the snapshot of a packaged chart.
func chartOf(t *testing.T, metadata string) *source.Snapshot {
	t.Helper()
	var data bytes.Buffer
	zip := gzip.NewWriter(&data)
	files := tar.NewWriter(zip)
	err := files.WriteHeader(&tar.Header{Name: "shop/Chart.yaml", Mode: 0o644, Size: int64(len(metadata))})
	if err == nil {
		_, err = files.Write([]byte(metadata))
	}
	if err := errors.Join(err, files.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	about := source.About{Revision: "1.0.0@sha256:" + "0000000000000000000000000000000000000000000000000000000000000000", File: "shop.tgz"}
	snapshot, err := source.NewArchives(t.TempDir(), 1<<20, 1<<20).Open(t.Context(), &data, about)
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// expect compares a refusal: its reason, empty if the next step follows, and whether
// it stalls, passes by itself, and is tried again after a while.
func expect(t *testing.T, reason string, got *refusal, want string, stalls bool, wait time.Duration) {
	t.Helper()
	switch {
	case (got == nil) != (want == ""):
		t.Fatalf("%s: refused: %+v, want %q", reason, got, want)
	case got == nil:
	case got.passing && want == "passing":
	case got.reason != want, got.stalls != stalls, got.wait != wait:
		t.Errorf("%s: refused with %s (stalls: %t, again after %s): %v; want %s (%t, %s)", reason, got.reason, got.stalls, got.wait, got.err, want, stalls, wait)
	}
}

func TestCheckStep(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		obj    func(*helmv2.HelmRelease)
		want   string
	}{
		"Fine":      {"one chart", nil, ""},
		"NoChart":   {"only a change of the object helps", func(h *helmv2.HelmRelease) { h.Spec.ChartRef = nil }, "InvalidChartReference"},
		"TwoCharts": {"so does this", func(h *helmv2.HelmRelease) { h.Spec.Chart = &helmv2.HelmChartTemplate{} }, "InvalidChartReference"},
		"Expression": {"a mistake shows while the dependency is not there", func(h *helmv2.HelmRelease) {
			h.Spec.DependsOn = []helmv2.DependencyReference{{Name: "base", ReadyExpr: "dep."}}
		}, meta.InvalidCELExpressionReason},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(tc.obj))
			expect(t, tc.reason, s.check(t.Context(), s.run), tc.want, tc.want != "", 0)
		})
	}
}

func TestFindStep(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		obj      func(*helmv2.HelmRelease)
		source   client.Object
		snapshot bool
		rules    Rules
		want     string
		stalls   bool
		wait     time.Duration
	}{
		"Found":    {"the chart that this process fetched", nil, image(true), true, Rules{}, "", false, 0},
		"Missing":  {"no such source", nil, nil, false, Rules{}, meta.ArtifactFailedReason, false, 0},
		"NotReady": {"it will be fetched and wakes us", nil, image(false), false, Rules{}, reasonSourceNotReady, false, 30 * time.Second},
		"Restart":  {"an earlier process fetched it: what was ready stays ready", nil, image(true), false, Rules{}, "passing", false, 0},
		"Lockdown": {"a chart of another namespace", func(h *helmv2.HelmRelease) { h.Spec.ChartRef.Namespace = "other" }, nil, false, Rules{NoCrossNamespaceRefs: true}, reasonAccessDenied, true, 0},
		"Gate":     {"a kind that a gate has to allow", func(h *helmv2.HelmRelease) { h.Spec.ChartRef.Kind = sourcev1.ExternalArtifactKind }, nil, false, Rules{}, reasonAccessDenied, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			if tc.source != nil {
				objects = append(objects, tc.source)
			}
			s := take(t, shop(tc.obj), objects...)
			tc.rules.RequeueDependency = 30 * time.Second
			s.Rules = tc.rules
			if tc.snapshot {
				s.Sources.Snapshots.Put(chartKey(s.Obj), &source.Snapshot{Revision: "1.0.0"})
			}
			expect(t, tc.reason, s.Reconciler.find(t.Context(), s.run), tc.want, tc.stalls, tc.wait)
			if (s.run.snapshot != nil) != (tc.want == "") {
				t.Errorf("%s: the snapshot is %v", tc.reason, s.run.snapshot)
			}
		})
	}
}

// TestRequestWaits: who asks while a new process has the source fetched again is answered when
// the release was looked at.
func TestRequestWaits(t *testing.T) {
	s := take(t, shop(func(h *helmv2.HelmRelease) {
		h.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
		h.Status.LastHandledReconcileAt = "before"
	}), image(true))
	handled := func() string {
		_, _ = s.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.run.Obj)}) // the chart cannot be read
		obj := &helmv2.HelmRelease{}
		if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(s.run.Obj), obj); err != nil {
			t.Fatal(err)
		}
		return obj.Status.LastHandledReconcileAt
	}
	if got := handled(); got != "before" {
		t.Errorf("nothing was fetched, and the request %q is handled", got)
	}
	s.Sources.Snapshots.Put(chartKey(s.run.Obj), &source.Snapshot{Revision: "1.0.0"})
	if got := handled(); got != "now" {
		t.Errorf("the release was looked at, and handled is %q", got)
	}
}

// TestHandOverSeen: time in which no agent ran is no time that another owner had to take objects over.
func TestHandOverSeen(t *testing.T) {
	for name, tc := range map[string]struct {
		suspended bool
		had       time.Duration
	}{"Restart": {false, 5 * time.Minute}, "Suspended": {true, time.Hour}} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(h *helmv2.HelmRelease) {
				h.Spec.Suspend = tc.suspended
				v1alpha1.SetHeld(h, v1alpha1.Held{HandOver: &v1alpha1.HandOver{Hash: "0123456789abcdef", Since: metav1.NewTime(noon.Add(-time.Hour))}})
			}), image(true))
			_, _ = s.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.run.Obj)}) // the chart cannot be read
			obj := &helmv2.HelmRelease{}
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(s.run.Obj), obj); err != nil {
				t.Fatal(err)
			}
			if held, _ := v1alpha1.HeldOf(obj); held.HandOver == nil || noon.Sub(held.HandOver.Since.Time) != tc.had {
				t.Errorf("on record is %v, want that it had %s", obj.Annotations, tc.had)
			}
		})
	}
}

// TestSuspended: a release that is ready is so at the generation that suspends it, or who
// depends on it would wait until it is resumed.
func TestSuspended(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		ready  metav1.ConditionStatus
		want   int64
		says   string
	}{
		"Ready":   {"nothing is left to do, though it waited for memory to look anew", metav1.ConditionTrue, 2, "True/x: Running"},
		"Failing": {"it is not as declared, and not tried again", metav1.ConditionFalse, 1, "False/x: Running"},
		"Running": {"nobody goes on with it", metav1.ConditionUnknown, 1, "False/Suspended: it was suspended before it was done; resume it to go on with: Running"},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(h *helmv2.HelmRelease) {
				h.Spec.Suspend, h.Generation, h.Status.ObservedGeneration = true, 2, 1
				h.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
				h.Status.Conditions = []metav1.Condition{
					{Type: meta.ReadyCondition, Status: tc.ready, Reason: "x", Message: "Running", ObservedGeneration: 1},
					{Type: meta.ReconcilingCondition, Status: metav1.ConditionTrue, Reason: "x"},
				}
			}))
			if _, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.run.Obj)}); err != nil {
				t.Fatal(err)
			}
			obj := &helmv2.HelmRelease{}
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(s.run.Obj), obj); err != nil {
				t.Fatal(err)
			}
			if obj.Status.ObservedGeneration != tc.want || obj.Status.LastHandledReconcileAt != "now" {
				t.Errorf("%s: observed %d, want %d; handled %q", tc.reason, obj.Status.ObservedGeneration, tc.want, obj.Status.LastHandledReconcileAt)
			}
			ready := apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReadyCondition)
			if says := fmt.Sprintf("%s/%s: %s", ready.Status, ready.Reason, ready.Message); says != tc.says || apimeta.FindStatusCondition(obj.Status.Conditions, meta.ReconcilingCondition) != nil {
				t.Errorf("%s: it says %q, want %q, and its conditions are %v", tc.reason, says, tc.says, obj.Status.Conditions)
			}
		})
	}
}

// TestTemplateStep: a HelmChart is brought up to date, and what it has besides what is
// declared, as after a restore, or by a webhook, keeps nobody waiting.
func TestTemplateStep(t *testing.T) {
	templated := func(h *helmv2.HelmRelease) {
		h.Spec.ChartRef = nil
		h.Spec.Chart = &helmv2.HelmChartTemplate{Spec: helmv2.HelmChartTemplateSpec{
			Chart: "shop", SourceRef: helmv2.CrossNamespaceObjectReference{Kind: "HelmRepository", Name: "charts"},
		}}
	}
	for name, tc := range map[string]struct {
		reason string
		have   func(*sourcev1.HelmChart)
		// version and generation are those that the API server answers the apply with.
		version    string
		generation int64
		want       string
		wait       time.Duration
		event      string
	}{
		"Missing": {"it is made, and fetched then", nil, "8", 1, reasonSourceNotReady, 30 * time.Second, "HelmChartCreated"},
		"Older":   {"it is changed, and fetched then", func(c *sourcev1.HelmChart) { c.Spec.Chart = "web" }, "8", 4, reasonSourceNotReady, 30 * time.Second, "HelmChartConfigured"},
		"Unlabelled": {"it is changed, which makes no generation", func(c *sourcev1.HelmChart) { c.Labels = nil }, "8", 3,
			reasonSourceNotReady, 30 * time.Second, "HelmChartConfigured"},
		"Same": {"nothing is written", func(*sourcev1.HelmChart) {}, "", 0, "", 0, ""},
		"More": {"our apply removes nothing that somebody else set", func(c *sourcev1.HelmChart) {
			c.Spec.Verify = &sourcev1.HelmChartVerification{Provider: "cosign"}
		}, "7", 3, "", 0, ""},
		"StatusMoved": {"nor is it changed where the status was written since the cache had it", func(c *sourcev1.HelmChart) {
			c.Spec.Verify = &sourcev1.HelmChartVerification{Provider: "cosign"}
		}, "8", 3, "", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			obj := shop(templated)
			var objects []client.Object
			if tc.have != nil {
				c := helmChart(obj)
				c.ResourceVersion, c.Generation = "7", 3
				tc.have(c)
				objects = append(objects, c)
			}
			s := take(t, obj, objects...)
			s.Rules = Rules{RequeueDependency: 30 * time.Second}
			s.Reconciler.Client = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
				Apply: func(_ context.Context, _ client.WithWatch, applied runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
					answer := applied.(interface {
						SetResourceVersion(string)
						SetGeneration(int64)
					})
					answer.SetResourceVersion(tc.version)
					answer.SetGeneration(tc.generation)
					return nil
				},
			})
			expect(t, tc.reason, s.Reconciler.template(t.Context(), s.run), tc.want, false, tc.wait)
			if got := s.Obj.Status.HelmChart; got != "apps/apps-shop" {
				t.Errorf("%s: status.helmChart is %q", tc.reason, got)
			}
			close(s.events.Events)
			if got := <-s.events.Events; !strings.Contains(got, tc.event) || (got != "") != (tc.event != "") {
				t.Errorf("%s: the event is %q, want %q", tc.reason, got, tc.event)
			}
		})
	}
}

// TestTemplateLockedDown: the HelmChart that was made in another namespace, before that was forbidden, is deleted as others
// are, when the spec names a source of its own and when the HelmRelease goes.
func TestTemplateLockedDown(t *testing.T) {
	before := func(h *helmv2.HelmRelease) {
		h.Spec.ChartRef = nil
		h.Spec.Chart = &helmv2.HelmChartTemplate{Spec: helmv2.HelmChartTemplateSpec{
			Chart: "shop", SourceRef: helmv2.CrossNamespaceObjectReference{Kind: "HelmRepository", Name: "charts", Namespace: "flux-system"},
		}}
		h.Status.HelmChart = "flux-system/apps-shop"
	}
	chart := types.NamespacedName{Namespace: "flux-system", Name: "apps-shop"}
	gone := func(t *testing.T, s *steps) {
		t.Helper()
		if err := s.client.Get(t.Context(), chart, &sourcev1.HelmChart{}); !apierrors.IsNotFound(err) {
			t.Errorf("the HelmChart of before is there: %v", err)
		}
	}
	t.Run("Local", func(t *testing.T) {
		obj := shop(before)
		old := helmChart(obj)
		obj.Spec.Chart.Spec.SourceRef.Namespace = ""
		s := take(t, obj, old, helmChart(obj))
		s.Rules.NoCrossNamespaceRefs = true
		expect(t, "a source of the own namespace", s.Reconciler.template(t.Context(), s.run), "", false, 0)
		if got := s.Obj.Status.HelmChart; got != "apps/apps-shop" {
			t.Errorf("status.helmChart is %q", got)
		}
		gone(t, s)
	})
	t.Run("Deleted", func(t *testing.T) {
		obj := shop(before)
		s := take(t, obj, helmChart(obj))
		s.Rules.NoCrossNamespaceRefs = true
		if _, err := s.finalize(t.Context(), s.run); err != nil || len(s.Obj.Finalizers) > 0 {
			t.Errorf("finalize() = %v, and the finalizers are %q", err, s.Obj.Finalizers)
		}
		gone(t, s)
	})
	t.Run("Told", func(t *testing.T) {
		obj := shop(before)
		s := take(t, obj, helmChart(obj))
		s.Reconciler.Client = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
			Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
				return errors.New("forbidden")
			},
		})
		if _, err := s.finalize(t.Context(), s.run); err == nil {
			t.Error("finalize() says nothing")
		}
		if ready := apimeta.FindStatusCondition(s.Obj.Status.Conditions, meta.ReadyCondition); ready == nil || !strings.Contains(ready.Message, "forbidden") {
			t.Errorf("Ready is %v", ready)
		}
	})
}

// TestSourceFailingStep: that nothing is looked at after a restart, because the chart cannot be
// fetched, is told.
func TestSourceFailingStep(t *testing.T) {
	with := func(truth metav1.ConditionStatus, more ...metav1.Condition) *sourcev1.OCIRepository {
		o := image(true)
		o.Status.Conditions = append(more, metav1.Condition{Type: meta.ReadyCondition, Status: truth, Reason: "x"})
		return o
	}
	for name, tc := range map[string]struct {
		reason   string
		source   client.Object
		snapshot bool
		told     bool
	}{
		"Restart":   {"nothing is known to be wrong", with(metav1.ConditionTrue), false, false},
		"Failing":   {"nothing was fetched since", with(metav1.ConditionFalse), false, true},
		"Suspended": {"it is ready, and what it had is gone", with(metav1.ConditionTrue, metav1.Condition{Type: sourcev1.FetchFailedCondition, Status: metav1.ConditionTrue, Reason: "x"}), false, true},
		"Found":     {"the release goes on with what the source had before", with(metav1.ConditionFalse), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(h *helmv2.HelmRelease) {
				if tc.snapshot {
					h.Status.Conditions = []metav1.Condition{{Type: v1alpha1.SourceFailingCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSourceFailing}}
				}
			}), tc.source)
			if tc.snapshot {
				s.Sources.Snapshots.Put(chartKey(s.Obj), &source.Snapshot{Revision: "1.0.0"})
			}
			s.Reconciler.find(t.Context(), s.run)
			if told := apimeta.IsStatusConditionTrue(s.Obj.Status.Conditions, v1alpha1.SourceFailingCondition); told != tc.told {
				t.Errorf("%s: it is told: %t", tc.reason, told)
			}
		})
	}
}

// TestGeneratorFailingStep: an artifact that a process cannot make again is told of as the failure of what makes it.
func TestGeneratorFailingStep(t *testing.T) {
	for truth, told := range map[metav1.ConditionStatus]bool{metav1.ConditionTrue: false, metav1.ConditionFalse: true} {
		made := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "shop"}}
		made.Spec.SourceRef = &meta.NamespacedObjectKindReference{APIVersion: generatorv1.GroupVersion.String(), Kind: generatorv1.ArtifactGeneratorKind, Name: "makes"}
		made.Status.Artifact = image(true).Status.Artifact
		made.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: "x"}}
		by := &generatorv1.ArtifactGenerator{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "makes"}}
		by.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: truth, Reason: "x"}}
		s := take(t, shop(func(h *helmv2.HelmRelease) { h.Spec.ChartRef.Kind = sourcev1.ExternalArtifactKind }), made, by)
		s.Sources.Fetched[generatorv1.ArtifactGeneratorKind] = true
		s.Rules.ExternalArtifact = true
		if refused := s.Reconciler.find(t.Context(), s.run); refused == nil || !refused.passing {
			t.Fatalf("it ended as %+v", refused)
		}
		c := apimeta.FindStatusCondition(s.Obj.Status.Conditions, v1alpha1.SourceFailingCondition)
		if (c != nil) != told || told && !strings.HasPrefix(c.Message, "ArtifactGenerator/apps/makes cannot be fetched") {
			t.Errorf("the generator is ready: %s, and it is told %+v", truth, c)
		}
	}
}

func TestDependStep(t *testing.T) {
	on := func(h *helmv2.HelmRelease) { h.Spec.DependsOn = []helmv2.DependencyReference{{Name: "base"}} }
	base := func(truth metav1.ConditionStatus) *helmv2.HelmRelease {
		h := shop(func(h *helmv2.HelmRelease) { h.Name = "base" })
		h.Status.ObservedGeneration = 1
		h.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: truth, Reason: "x"}}
		return h
	}
	for name, tc := range map[string]struct {
		reason string
		obj    func(*helmv2.HelmRelease)
		base   client.Object
		want   string
	}{
		"None":     {"it depends on nothing", nil, nil, ""},
		"Ready":    {"released and healthy", on, base(metav1.ConditionTrue), ""},
		"Missing":  {"it may come with the next commit", on, nil, meta.DependencyNotReadyReason},
		"NotReady": {"it is waited for", on, base(metav1.ConditionFalse), meta.DependencyNotReadyReason},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			if tc.base != nil {
				objects = append(objects, tc.base)
			}
			s := take(t, shop(tc.obj), objects...)
			wait := 30 * time.Second
			if tc.want == "" {
				wait = 0
			}
			expect(t, tc.reason, s.Reconciler.depend(t.Context(), s.run), tc.want, false, wait)
		})
	}
}

func TestBuildStep(t *testing.T) {
	const metadata = "apiVersion: v2\nname: shop\nversion: 1.0.0\nappVersion: \"7\"\n"
	from := func(name string, optional bool) func(*helmv2.HelmRelease) {
		return func(h *helmv2.HelmRelease) {
			h.Spec.ValuesFrom = []meta.ValuesReference{{Kind: "Secret", Name: name, Optional: optional}}
		}
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "values"}, Data: map[string][]byte{"values.yaml": []byte("password: hunter2\nquoted: 's3cr\"et\\pass9'\npin: 12345678\n")}}
	lists := "1"
	for i := range 100 {
		lists += fmt.Sprintf(",a%d[65535]=1", i)
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "values"}, Data: map[string]string{
		"few": `2,a[3]=[65535],b.c[1].d={x,y},e\[65535]=1`, "lists": lists, "escaped": strings.ReplaceAll(lists, "65535", `\6\5535`),
		"after": "{a}" + strings.ReplaceAll(lists[2:], "=1,", "={a}"), "maps": strings.Repeat("a.b.c.d.e.f.g=1,", 40_000) + "a=1",
		"dense": "a: [" + strings.Repeat("b,", 400_000) + "]",
	}}
	for i := range 5 {
		config.Data[fmt.Sprintf("alias%d", i)] = fmt.Sprintf("p: [%s]\na: &a [%s]\nb%d: [%s]\n", strings.Repeat("x,", 3000), strings.Repeat("x,", 300), i, strings.Repeat("*a,", 500))
	}
	path := func(path string, keys ...string) func(*helmv2.HelmRelease) {
		return func(h *helmv2.HelmRelease) {
			for _, key := range keys {
				h.Spec.ValuesFrom = append(h.Spec.ValuesFrom, meta.ValuesReference{Kind: "ConfigMap", Name: "values", ValuesKey: key, TargetPath: path, Literal: key == "literal"})
			}
		}
	}
	config.Data["literal"], config.Data["large"] = lists, "a: "+strings.Repeat("x", 1<<20)
	for name, tc := range map[string]struct {
		reason, metadata string
		obj              func(*helmv2.HelmRelease)
		rules            Rules
		want, version    string
	}{
		"Chart":     {"what a tag leads to may change, so the digest is a part of the version", metadata, nil, Rules{}, "", "1.0.0+000000000000"},
		"Untracked": {"unless a gate says otherwise", metadata, nil, Rules{NoDigestTracking: true}, "", "1.0.0"},
		"Values":    {"values of a Secret", metadata, from("values", false), Rules{NoDigestTracking: true}, "", "1.0.0"},
		"Missing":   {"values that are declared must be there", metadata, from("gone", false), Rules{}, reasonValuesError, ""},
		"Optional":  {"unless they may be missing", metadata, from("gone", true), Rules{NoDigestTracking: true}, "", "1.0.0"},
		"Broken":    {"a chart that is none", "name: [", nil, Rules{}, meta.ArtifactFailedReason, ""},
		"NoVersion": {"a version that is none", "apiVersion: v2\nname: shop\nversion: x\n", nil, Rules{}, meta.ArtifactFailedReason, ""},
		"Few":       {"assignments as people write them", metadata, path("x", "few"), Rules{NoDigestTracking: true}, "", "1.0.0"},
		"Literal":   {"what is taken as it is assigns nothing", metadata, path("x", "literal"), Rules{NoDigestTracking: true}, "", "1.0.0"},
		"Indexes":   {"each index makes a list of a megabyte", metadata, path("x", "lists"), Rules{}, reasonValuesError, ""},
		"Escaped":   {"digits may be escaped", metadata, path("x", "escaped"), Rules{}, reasonValuesError, ""},
		"After":     {"no comma has to follow a list", metadata, path("x", "after"), Rules{}, reasonValuesError, ""},
		"Path":      {"the path has indexes as well", metadata, path(strings.Repeat("a", 9)+strings.Repeat("[65535]", 20), "literal"), Rules{}, reasonValuesError, ""},
		"Maps":      {"a map takes two bytes", metadata, path("x", "maps"), Rules{}, reasonValuesError, ""},
		"Dense":     {"so does a string in YAML", metadata, path("", "dense"), Rules{}, reasonValuesError, ""},
		"Many":      {"with each reference all values so far are merged", metadata, path("x", slices.Repeat([]string{"few"}, 1001)...), Rules{}, reasonValuesError, ""},
		"Text":      {"one text is read as often as it is named", metadata, path("", slices.Repeat([]string{"large"}, 40)...), Rules{}, reasonValuesError, ""},
		"Aliases":   {"each is what the parser lets pass", metadata, path("", "alias0", "alias1", "alias2", "alias3", "alias4"), Rules{}, reasonValuesError, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(tc.obj), secret, config)
			s.Rules = tc.rules
			s.run.snapshot, s.run.from = chartOf(t, tc.metadata), image(true)
			expect(t, tc.reason, s.Reconciler.build(t.Context(), s.run), tc.want, false, 0)
			if s.run.chart.Version != tc.version {
				t.Errorf("%s: the version is %q, want %q", tc.reason, s.run.chart.Version, tc.version)
			}
			for _, value := range []string{"hunter2", `"s3cr\"et\\pass9"`, "12345678", "1.2345678e+07"} {
				if text := s.run.redact("it says " + value); name == "Values" && strings.ReplaceAll(text, `"`, "") != "it says *****" {
					t.Errorf("%s: a message says %q", tc.reason, text)
				}
			}
		})
	}
}

// TestValuesTogether: values that are dense have a bound together with those of other reconciles. Who finds no room waits as
// it is.
func TestValuesTogether(t *testing.T) {
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "values"}, Data: map[string]string{"values.yaml": "a: [" + strings.Repeat("b,", 250_000) + "]"}}
	s := take(t, shop(func(h *helmv2.HelmRelease) {
		h.Spec.ValuesFrom = []meta.ValuesReference{{Kind: "ConfigMap", Name: "values"}}
	}), config)
	s.run.snapshot, s.run.from = chartOf(t, "apiVersion: v2\nname: shop\nversion: 1.0.0\n"), image(true)
	m := release.NewMemory()
	s.run.memory = m.For("apps")
	other := m.For("apps")
	if err := other.Take(150 << 20); err != nil {
		t.Fatal(err)
	}
	refused := s.Reconciler.build(t.Context(), s.run)
	if refused == nil || !refused.passing || !errors.Is(refused.err, release.ErrNoRoom) || refused.wait == 0 || !s.run.outstanding {
		t.Fatalf("beside another: %+v", refused)
	}
	if c := apimeta.FindStatusCondition(s.Obj.Status.Conditions, meta.ReconcilingCondition); c == nil || !strings.Contains(c.Message, "no room") {
		t.Errorf("it waits, and its conditions are %v", s.Obj.Status.Conditions)
	}
	other.GiveBack()
	if refused := s.Reconciler.build(t.Context(), s.run); refused != nil {
		t.Errorf("once the other has ended: %+v", refused)
	}
	if err := other.Take(150 << 20); err == nil {
		t.Error("there is room for another beside the values")
	}
	s.run.memory.GiveBack()
	if err := other.Take(150 << 20); err != nil {
		t.Errorf("once nothing is left of the values: %v", err)
	}
}

func TestAimStep(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		obj    func(*helmv2.HelmRelease)
		want   string
	}{
		"Here": {"the cluster that we run in", nil, ""},
		"NoKubeconfig": {"the way to another cluster is missing", func(h *helmv2.HelmRelease) {
			h.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "gone"}}
		}, reasonRESTClientError},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(tc.obj))
			expect(t, tc.reason, s.Reconciler.aim(t.Context(), s.run), tc.want, false, 0)
			if (s.run.cluster != nil) != (tc.want == "") {
				t.Errorf("%s: the cluster is %v", tc.reason, s.run.cluster)
			}
		})
	}
}

// otherCluster is the way to another cluster, which tells whose it is unless uid is empty. It does not have Cluster API.
func otherCluster(t *testing.T, uid string) *corev1.Secret {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var answer any
		switch r.URL.Path {
		case "/readyz":
			answer = "ok"
		case "/api":
			answer = metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
		case "/apis":
			version := metav1.GroupVersionForDiscovery{GroupVersion: "apiregistration.k8s.io/v1", Version: "v1"}
			answer = metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{
				{Name: "apiregistration.k8s.io", Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version},
			}}
		case "/apis/apiregistration.k8s.io/v1":
			answer = metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "apiregistration.k8s.io/v1",
				APIResources: []metav1.APIResource{{Name: "apiservices", Kind: "APIService", Verbs: metav1.Verbs{"list"}}}}
		case "/apis/apiregistration.k8s.io/v1/apiservices":
			answer = map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIServiceList", "items": []any{}}
		case "/apis/apiextensions.k8s.io/v1/customresourcedefinitions":
			answer = metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}}
		case "/api/v1":
			answer = metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1",
				APIResources: []metav1.APIResource{{Name: "namespaces", Kind: "Namespace"}}}
		default:
			answer = metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"},
				ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: types.UID(uid)}}
			if uid == "" {
				w.WriteHeader(http.StatusForbidden)
				answer = apierrors.NewForbidden(schema.GroupResource{Resource: "namespaces"}, metav1.NamespaceSystem, nil).Status()
			}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "way"}, Data: map[string][]byte{"value": []byte(s.URL)}}
}

// withClusters is our own cluster with some Clusters in it.
type withClusters struct {
	client.Client
	there []string
}

func (c withClusters) RESTMapper() apimeta.RESTMapper {
	kind := clusterapi.ClusterKind.WithVersion("v1beta2")
	mapper := apimeta.NewDefaultRESTMapper([]schema.GroupVersion{kind.GroupVersion()})
	mapper.Add(kind, apimeta.RESTScopeNamespace)
	return mapper
}

func (c withClusters) Get(ctx context.Context, name client.ObjectKey, into client.Object, o ...client.GetOption) error {
	switch kind := into.GetObjectKind().GroupVersionKind().GroupKind(); {
	case kind != clusterapi.ClusterKind:
		return c.Client.Get(ctx, name, into, o...)
	case slices.Contains(c.there, name.Name):
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: clusterapi.Group, Resource: "clusters"}, name.Name)
}

// takeMoving is take with the way to another cluster of a UID, and Clusters in our own, which has UID here.
func takeMoving(t *testing.T, uid string, obj *helmv2.HelmRelease, clusters ...string) *steps {
	t.Helper()
	s := take(t, obj, otherCluster(t, uid), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "here"}})
	s.Targets.Local = &apply.Cluster{Client: withClusters{s.client, clusters}, Config: &rest.Config{}}
	s.Targets.Scheme = s.client.Scheme()
	s.Targets.Kubeconfig = func(url []byte) (*rest.Config, error) {
		return &rest.Config{Host: string(url), TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, nil
	}
	return s
}

// installed is a HelmRelease that is released, with a Cluster in it or without.
func installed(with string, change func(*helmv2.HelmRelease)) *helmv2.HelmRelease {
	return shop(func(h *helmv2.HelmRelease) {
		h.Status.StorageNamespace = "apps"
		h.Status.History = helmv2.Snapshots{{Name: "shop", Namespace: "apps", Version: 1}}
		e := inventory.Entry{Namespace: "apps", Name: "prod", Kind: "ConfigMap", Version: "v1"}
		if with == clusterapi.Cluster {
			e.Group, e.Kind, e.Version = clusterapi.Group, clusterapi.Cluster, "v1beta2"
		}
		h.Status.Inventory = &helmv2.ResourceInventory{Entries: []helmv2.ResourceRef{{ID: e.ID(), Version: e.Version}}}
		change(h)
	})
}

// TestMoveStep: what a HelmRelease has in one cluster is never taken for what it has in the next, and a Cluster is
// not built in two.
func TestMoveStep(t *testing.T) {
	away := func(h *helmv2.HelmRelease) {
		h.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
	}
	recorded := func(name, uid string, change func(*helmv2.HelmRelease)) func(*helmv2.HelmRelease) {
		return func(h *helmv2.HelmRelease) {
			change(h)
			recordAt(h, name, uid)
		}
	}
	home := func(*helmv2.HelmRelease) {}
	here, both := func(local bool) bool { return local }, func(bool) bool { return true }
	for name, tc := range map[string]struct {
		reason string
		obj    *helmv2.HelmRelease
		uid    string
		has    func(local bool) bool
		there  []string
		want   string
		// keeps: the status is about what is released to. record is the cluster that is on record then.
		keeps  bool
		record string
		events int
	}{
		"Here":      {"it was always here", installed("", home), "there", nil, nil, "", true, "", 0},
		"First":     {"nothing was installed", shop(away), "there", nil, nil, "", false, "there", 0},
		"TakenOver": {"Flux released it there", installed(clusterapi.Cluster, away), "there", nil, nil, "", true, "there", 0},
		"Again":     {"it is on record", installed(clusterapi.Cluster, recorded("way", "there", away)), "there", nil, nil, "", true, "there", 0},
		"Away":      {"what was installed here is left here", installed("", away), "there", here, nil, "", false, "there", 1},
		"Retargeted": {"with another namespace, for which the former release would be uninstalled first", installed("", func(h *helmv2.HelmRelease) {
			away(h)
			h.Spec.TargetNamespace = "web"
		}), "there", here, nil, "", false, "there", 1},
		"Itself":      {"the kubeconfig leads home", installed(clusterapi.Cluster, away), "here", here, []string{"prod"}, "", true, "here", 0},
		"Cluster":     {"it would be built a second time", installed(clusterapi.Cluster, away), "there", here, []string{"prod"}, v1alpha1.ReasonPruneBlocked, true, "here", 0},
		"ClusterGone": {"it was moved", installed(clusterapi.Cluster, away), "there", here, nil, "", false, "there", 1},
		"ClusterGoneAs": {"with an account of the other cluster, which may read nothing here", installed(clusterapi.Cluster, func(h *helmv2.HelmRelease) {
			away(h)
			h.Spec.ServiceAccountName = "next"
		}), "there", here, nil, "", false, "there", 1},
		"Mute":        {"the cluster does not tell which it is, and does not have the release", installed("", away), "", here, nil, "", false, "", 1},
		"MuteCluster": {"the same with a Cluster", installed(clusterapi.Cluster, away), "", here, []string{"prod"}, v1alpha1.ReasonPruneBlocked, true, "here", 0},
		"MuteSame":    {"it has the release", installed("", away), "", both, nil, "", true, "", 0},
		"Home":        {"what was installed there is left there", installed("", recorded("way", "there", home)), "there", nil, nil, "", false, "", 1},
		"HomeUnknown": {"nobody can tell whether the Cluster is there", installed(clusterapi.Cluster, recorded("gone", "there", home)), "there", nil, nil, v1alpha1.ReasonPruneBlocked, true, "there", 0},
		"Removed":     {"Cluster API was removed there, after a pivot", installed(clusterapi.Cluster, recorded("way", "there", home)), "there", nil, nil, "", false, "", 1},
		"Replaced":    {"the kubeconfig leads to another cluster", installed("", recorded("way", "before", away)), "there", nil, nil, "", false, "there", 1},
		"LedBack": {"the Secret has the kubeconfig of before again", installed(clusterapi.Cluster, recorded("way", "there", func(h *helmv2.HelmRelease) {
			away(h)
			holding(h, willNotInstall+"Cluster/apps/prod in another cluster")
		})), "there", nil, nil, "", true, "there", 0},
		"LetGo": {"a person removed the record of the former cluster, as the hold says", installed(clusterapi.Cluster, func(h *helmv2.HelmRelease) {
			away(h)
			holding(h, willNotInstall+"Cluster/apps/prod in another cluster")
		}), "there", nil, nil, "", false, "there", 1},
		"LetGoThere": {"and the release is there", installed(clusterapi.Cluster, func(h *helmv2.HelmRelease) {
			away(h)
			holding(h, willNotInstall+"Cluster/apps/prod in another cluster")
		}), "there", func(local bool) bool { return !local }, nil, "", true, "there", 0},
		"LetGoHome": {"and it comes home, where a release of its name may be somebody else's", installed(clusterapi.Cluster, func(h *helmv2.HelmRelease) {
			holding(h, willNotInstall+"Cluster/apps/prod in another cluster; "+takeBack)
		}), "there", nil, nil, "", false, "", 1},
		"LetGoHere": {"and the release is here", installed(clusterapi.Cluster, func(h *helmv2.HelmRelease) {
			holding(h, willNotInstall+"Cluster/apps/prod in another cluster; "+takeBack)
		}), "there", here, nil, "", true, "", 0},
		"ReplacedCluster": {"the former may run on, with the Cluster", installed(clusterapi.Cluster, recorded("way", "before", away)), "there", nil, nil,
			v1alpha1.ReasonPruneBlocked, true, "before", 0},
		"ReplacedMute": {"it does not tell which it is, and does not have the release", installed(clusterapi.Cluster, recorded("way", "before", away)), "", nil, nil,
			v1alpha1.ReasonPruneBlocked, true, "before", 0},
		"MuteNow":      {"it has the release", installed(clusterapi.Cluster, recorded("way", "before", away)), "", both, nil, "", true, "before", 0},
		"NeverTold":    {"nor did the one of before", installed(clusterapi.Cluster, recorded("way", "", away)), "", nil, nil, v1alpha1.ReasonPruneBlocked, true, "", 0},
		"TellsNow":     {"the one of before did not", installed(clusterapi.Cluster, recorded("way", "", away)), "there", nil, nil, v1alpha1.ReasonPruneBlocked, true, "", 0},
		"TellsNowSame": {"it has the release", installed(clusterapi.Cluster, recorded("way", "", away)), "there", both, nil, "", true, "there", 0},
		"NoneUntold":   {"no Cluster would be built a second time", installed("", recorded("way", "", away)), "", nil, nil, "", true, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := takeMoving(t, tc.uid, tc.obj, tc.there...)
			s.helm.has = tc.has
			expect(t, tc.reason, s.Reconciler.aim(t.Context(), s.run), "", false, 0)
			stalls, wait := tc.want != "", time.Duration(0)
			if stalls {
				wait = heldPoll
			}
			expect(t, tc.reason, s.Reconciler.move(t.Context(), s.run), tc.want, stalls, wait)
			on := &helmv2.HelmRelease{}
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(s.Obj), on); err != nil {
				t.Fatal(err)
			}
			if keeps := len(on.Status.History) > 0 && on.Status.StorageNamespace != "" && on.Status.Inventory != nil; keeps != tc.keeps || len(s.events.Events) != tc.events {
				t.Errorf("%s: it keeps what is on record: %t, want %t; %d events", tc.reason, keeps, tc.keeps, len(s.events.Events))
			}
			if ref, _ := target.Decode(on.Annotations[target.Annotation]); ref.Cluster != tc.record {
				t.Errorf("%s: on record is %+v, want cluster %q", tc.reason, ref, tc.record)
			}
			held := apimeta.FindStatusCondition(s.Obj.Status.Conditions, v1alpha1.PruneBlockedCondition)
			if (held != nil) != stalls || held != nil && strings.Contains(held.Message, "cannot find out") != (tc.there == nil) {
				t.Errorf("%s: it is told as held: %v", tc.reason, held)
			}
		})
	}
}

// TestMoveHeldHere: a move away from our own cluster is held until the Clusters are gone from that, whatever becomes of what
// Helm has of the release here.
func TestMoveHeldHere(t *testing.T) {
	way := &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
	for name, tc := range map[string]struct {
		reason string
		hidden error
		there  []string
		to     *meta.KubeConfigReference
		want   string
		record string
	}{
		"Uninstalled": {"by the helm command, which does not wait for the Cluster", nil, []string{"prod"}, way, v1alpha1.ReasonPruneBlocked, "here"},
		"Forbidden": {"the right to read it was lost", apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "sh.helm.release.v1.shop.v1", nil),
			[]string{"prod"}, way, v1alpha1.ReasonPruneBlocked, "here"},
		"Gone":      {"the Cluster is not there any more", nil, nil, way, "", "there"},
		"TakenBack": {"it stays here", nil, []string{"prod"}, nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := takeMoving(t, "there", installed(clusterapi.Cluster, func(h *helmv2.HelmRelease) { h.Spec.KubeConfig = way }), "prod")
			s.helm.has = func(local bool) bool { return local }
			look := func(want string) {
				t.Helper()
				expect(t, tc.reason, s.Reconciler.aim(t.Context(), s.run), "", false, 0)
				wait := time.Duration(0)
				if want != "" {
					wait = heldPoll
				}
				expect(t, tc.reason, s.Reconciler.move(t.Context(), s.run), want, want != "", wait)
			}
			look(v1alpha1.ReasonPruneBlocked)
			s.helm.has, s.helm.hidden, s.Obj.Spec.KubeConfig = nil, tc.hidden, tc.to
			s.Targets.Local.Client = withClusters{s.client, tc.there}
			look(tc.want)
			on := &helmv2.HelmRelease{}
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(s.Obj), on); err != nil {
				t.Fatal(err)
			}
			if ref, _ := target.Decode(on.Annotations[target.Annotation]); ref.Cluster != tc.record {
				t.Errorf("%s: on record is %+v, want cluster %q", tc.reason, ref, tc.record)
			}
			if left := s.Obj.Status.StorageNamespace == ""; left != (name == "Gone") {
				t.Errorf("%s: what is here is left: %t", tc.reason, left)
			}
		})
	}
}

// holding has a HelmRelease hold something for a person.
func holding(h *helmv2.HelmRelease, message string) {
	h.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.PruneBlockedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPruneBlocked, Message: message,
	}}
}

// TestMoveTakenBack: a move that was taken back is not told as held, whatever the release waits for.
func TestMoveTakenBack(t *testing.T) {
	away := func(h *helmv2.HelmRelease) {
		h.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
	}
	here := func(h *helmv2.HelmRelease) { target.SetRecorded(h, target.Ref{Cluster: "here"}.Encode()) }
	const move = willNotInstall + "Cluster/apps/prod in another cluster: the one of before has them; "
	for name, tc := range map[string]struct {
		reason, message string
		change          func(*helmv2.HelmRelease)
		held            bool
	}{
		"TakenBack": {"it waits for its chart", move + takeBack, here, false},
		"Suspended": {"nobody looks at it any more", move + takeBack, func(h *helmv2.HelmRelease) {
			here(h)
			h.Spec.Suspend = true
		}, false},
		"LetGo": {"from another cluster, whose record was removed: nothing that is here is its own", move + takeBack, func(*helmv2.HelmRelease) {}, true},
		"Recorded": {"from a third cluster", move + takeBack, func(h *helmv2.HelmRelease) {
			away(h)
			recordAt(h, "way", "there")
		}, false},
		"Away": {"it is to move still", move + takeBack, away, true},
		"Back": {"so it is from another cluster", move + takeBack, func(h *helmv2.HelmRelease) { recordAt(h, "way", "there") }, true},
		"Replaced": {"the spec does not tell", move + "have Secret way lead to that one again", func(h *helmv2.HelmRelease) {
			away(h)
			recordAt(h, "way", "there")
		}, true},
		"Deletes": {"this is no move", "will not delete PersistentVolumeClaim/apps/data", func(*helmv2.HelmRelease) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, installed(clusterapi.Cluster, func(h *helmv2.HelmRelease) {
				holding(h, tc.message)
				tc.change(h)
			}))
			_, _ = s.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.run.Obj)}) // there is no chart
			obj := &helmv2.HelmRelease{}
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(s.run.Obj), obj); err != nil {
				t.Fatal(err)
			}
			if held := apimeta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.PruneBlockedCondition); held != tc.held {
				t.Errorf("%s: it is told as held: %t", tc.reason, held)
			}
		})
	}
}

// TestMoveStepNoInventory: a Cluster of a release that an earlier Flux made is not built in two clusters either, and what
// has none moves.
func TestMoveStepNoInventory(t *testing.T) {
	away := func(h *helmv2.HelmRelease) {
		h.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
	}
	lost := func(h *helmv2.HelmRelease) { recordAt(h, "gone", "before") }
	rebuilt := func(h *helmv2.HelmRelease) {
		away(h)
		recordAt(h, "way", "before")
	}
	undone := func(change func(*helmv2.HelmRelease)) func(*helmv2.HelmRelease) {
		return func(h *helmv2.HelmRelease) {
			change(h)
			h.Status.History[0].Status = common.StatusUninstalled.String()
		}
	}
	cluster := inventory.Entry{Group: clusterapi.Group, Kind: clusterapi.Cluster, Version: "v1beta2", Namespace: "apps", Name: "prod"}
	config := inventory.Entry{Kind: "ConfigMap", Version: "v1", Namespace: "apps", Name: "prod"}
	for name, tc := range map[string]struct {
		reason string
		change func(*helmv2.HelmRelease)
		// stored is what the cluster of before has, declared what would be installed.
		stored, declared []inventory.Entry
		there            []string
		want             string
	}{
		"Cluster":     {"it would be built a second time", away, []inventory.Entry{config, cluster}, nil, []string{"prod"}, v1alpha1.ReasonPruneBlocked},
		"ClusterGone": {"it was moved", away, []inventory.Entry{config, cluster}, nil, nil, ""},
		"NoCluster":   {"what was installed here is left here", away, []inventory.Entry{config}, nil, nil, ""},
		"Lost":        {"nothing would be built a second time, whatever a cluster that is gone had", lost, nil, []inventory.Entry{config}, nil, ""},
		"LostCluster": {"nobody can tell whether the Cluster is there", lost, nil, []inventory.Entry{cluster}, nil, v1alpha1.ReasonPruneBlocked},
		"Replaced":    {"the cluster was built anew, and has no Cluster", rebuilt, nil, []inventory.Entry{config}, nil, ""},
		"ReplacedCluster": {"the former may run on, with the Cluster", rebuilt, []inventory.Entry{config}, []inventory.Entry{cluster}, nil,
			v1alpha1.ReasonPruneBlocked},
		"LostUnknown": {"nor what would be installed", lost, nil, nil, nil, v1alpha1.ReasonPruneBlocked},
		"NothingInstalled": {"there was no release in the former", func(h *helmv2.HelmRelease) {
			rebuilt(h)
			h.Status.StorageNamespace, h.Status.History = "", nil
		}, nil, nil, nil, ""},
		"Uninstalled":     {"a failed install was remedied, and its cluster built anew", undone(rebuilt), nil, nil, nil, ""},
		"UninstalledLost": {"or is gone", undone(lost), nil, nil, nil, ""},
		"Begun":           {"an install that was begun since is not on record", undone(away), []inventory.Entry{cluster}, nil, []string{"prod"}, v1alpha1.ReasonPruneBlocked},
	} {
		t.Run(name, func(t *testing.T) {
			s := takeMoving(t, "there", installed("", func(h *helmv2.HelmRelease) {
				h.Status.Inventory = nil
				tc.change(h)
			}), tc.there...)
			s.helm.has = func(local bool) bool { return local }
			s.helm.contents = func() ([]inventory.Entry, error) { return tc.stored, nil }
			s.helm.declares = func() (objects []*unstructured.Unstructured, err error) {
				if tc.declared == nil {
					return nil, errors.New("no such kind")
				}
				for _, e := range tc.declared {
					objects = append(objects, e.Object())
				}
				return objects, nil
			}
			expect(t, tc.reason, s.Reconciler.aim(t.Context(), s.run), "", false, 0)
			stalls, wait := tc.want != "", time.Duration(0)
			if stalls {
				wait = heldPoll
			}
			expect(t, tc.reason, s.Reconciler.move(t.Context(), s.run), tc.want, stalls, wait)
			if keeps := s.Obj.Status.StorageNamespace != ""; keeps != stalls {
				t.Errorf("%s: it keeps what is on record: %t", tc.reason, keeps)
			}
			held := apimeta.FindStatusCondition(s.Obj.Status.Conditions, v1alpha1.PruneBlockedCondition)
			if unrendered := stalls && tc.stored == nil && tc.declared == nil; unrendered && (held == nil || !strings.Contains(held.Message, "no such kind")) {
				t.Errorf("%s: it is told as held: %v", tc.reason, held)
			}
		})
	}
}

// TestElsewhereUnapplied: what is uninstalled with a HelmRelease is what it installed, also if it was given another
// cluster since.
func TestElsewhereUnapplied(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*helmv2.HelmRelease)
		has    func(local bool) bool
		// here, there: it is uninstalled in our own cluster, or in the other one.
		here, there bool
		events      int
	}{
		"Here":     {"it was never released there", func(*helmv2.HelmRelease) {}, func(local bool) bool { return local }, true, false, 0},
		"There":    {"it was, and there is no record, as with Flux", func(*helmv2.HelmRelease) {}, nil, false, true, 0},
		"NoWay":    {"the Secret is not there yet", func(h *helmv2.HelmRelease) { h.Spec.KubeConfig.SecretRef.Name = "later" }, func(local bool) bool { return local }, true, false, 0},
		"Home":     {"it was to come back", func(h *helmv2.HelmRelease) { h.Spec.KubeConfig = nil; recordAt(h, "way", "there") }, nil, false, true, 0},
		"Another":  {"the kubeconfig leads to a cluster that was built anew", func(h *helmv2.HelmRelease) { recordAt(h, "way", "before") }, nil, false, false, 1},
		"LetGo":    {"the record of the former was removed, and what is there is somebody else's", func(h *helmv2.HelmRelease) { holding(h, willNotInstall+"Clusters") }, nil, false, false, 1},
		"LetGoIn":  {"the same, and it is the cluster of before", func(h *helmv2.HelmRelease) { holding(h, willNotInstall+"Clusters") }, func(local bool) bool { return !local }, false, true, 0},
		"Untold":   {"its move was held, as nobody knows whether it is the cluster that was released to", func(h *helmv2.HelmRelease) { recordAt(h, "way", ""); holding(h, willNotInstall+"Clusters") }, nil, false, false, 1},
		"UntoldIn": {"the same, and it is", func(h *helmv2.HelmRelease) { recordAt(h, "way", ""); holding(h, willNotInstall+"Clusters") }, func(local bool) bool { return !local }, false, true, 0},
		"Mute":     {"it was not looked at before, and has a Cluster", func(h *helmv2.HelmRelease) { recordAt(h, "way", ""); withCluster(h, common.StatusDeployed) }, nil, false, false, 1},
		"MuteIn":   {"the same, in the cluster that it was released to", func(h *helmv2.HelmRelease) { recordAt(h, "way", ""); withCluster(h, common.StatusDeployed) }, func(local bool) bool { return !local }, false, true, 0},
		"Begun": {"the same, and the storage does not have it any more, as its uninstallation began", func(h *helmv2.HelmRelease) {
			recordAt(h, "way", "")
			withCluster(h, common.StatusUninstalling)
			h.Status.History[0].Action = helmv2.ReleaseActionUninstall
		}, nil, false, true, 0},
		"Marked":  {"its Clusters went, before Helm was called", func(h *helmv2.HelmRelease) { recordAt(h, "way", ""); withCluster(h, common.StatusUninstalling) }, nil, false, false, 1},
		"Nothing": {"without a Cluster it is taken for the same", func(h *helmv2.HelmRelease) { recordAt(h, "way", "") }, nil, false, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := takeMoving(t, "there", installed("", func(h *helmv2.HelmRelease) {
				h.DeletionTimestamp = &metav1.Time{Time: noon}
				h.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
				tc.change(h)
			}))
			s.helm.has = tc.has
			s.helm.uninstall = func() (release.Outcome, error) { return release.Outcome{}, nil }
			if _, err := s.finalize(t.Context(), s.run); err != nil || len(s.Obj.Finalizers) > 0 {
				t.Fatalf("%s: %v, and the finalizers are %q", tc.reason, err, s.Obj.Finalizers)
			}
			at := s.helm.uninstalls
			if here, there := slices.Contains(at, s.Targets.Local), len(at) > 0 && at[0] != s.Targets.Local; here != tc.here || there != tc.there || len(s.events.Events) != tc.events {
				t.Errorf("%s: uninstalled here: %t, there: %t, want %t and %t; %d events", tc.reason, here, there, tc.here, tc.there, len(s.events.Events))
			}
		})
	}
}

// withCluster has a HelmRelease have a Cluster, of a release with a status.
func withCluster(h *helmv2.HelmRelease, is common.Status) {
	h.Status.Inventory = installed(clusterapi.Cluster, func(*helmv2.HelmRelease) {}).Status.Inventory
	h.Status.History[0].Status = is.String()
}

// TestReleasedAs: what was released in one cluster is uninstalled there as who released it, not as the account that the
// next one is used with.
func TestReleasedAs(t *testing.T) {
	way := &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
	for name, tc := range map[string]struct {
		reason string
		// from and to are the clusters before and after the change, as the account of before and another one.
		from, to *meta.KubeConfigReference
		account  string
		want     target.Ref
	}{
		"Here":        {"an account of this cluster", nil, way, "before", target.Ref{User: target.User("apps", "before")}},
		"HereNobody":  {"nobody was impersonated", nil, way, "", target.Ref{}},
		"There":       {"an account of the other cluster", way, nil, "before", target.Ref{Kind: "Secret", Name: "way", User: target.User("apps", "before")}},
		"ThereNobody": {"the kubeconfig was used as it is", way, nil, "", target.Ref{Kind: "Secret", Name: "way"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := takeMoving(t, "there", installed("", func(h *helmv2.HelmRelease) { h.Spec.ServiceAccountName, h.Spec.KubeConfig = tc.account, tc.from }))
			s.seen.isOf(client.ObjectKeyFromObject(s.Obj), s.Obj.UID)
			s.helm.sync = func(context.Context, release.Request) (release.Outcome, error) { return release.Outcome{}, nil }
			s.helm.has = func(local bool) bool { return local }
			if s.run.target = target.OfRelease(s.Obj, ""); tc.from != nil {
				target.SetRecorded(s.Obj, s.run.target.Encode())
			}
			if _, err := s.Reconciler.apply(t.Context(), s.run); err != nil {
				t.Fatal(err)
			}
			s.Obj.Spec.KubeConfig, s.Obj.Spec.ServiceAccountName = tc.to, "next"
			if got, err := s.before(t.Context(), s.Obj); err != nil || got == nil || *got != tc.want {
				t.Errorf("%s: before() = %+v, %v, want %+v", tc.reason, got, err, tc.want)
			}
		})
	}
}

// recordAt has a HelmRelease record that it was released to a cluster, by a kubeconfig.
func recordAt(h *helmv2.HelmRelease, way, uid string) {
	target.SetRecorded(h, target.Ref{Kind: "Secret", Name: way, Cluster: uid}.Encode())
}

// TestApplyStep: what follows from what a release did, health included, which is a
// part of its action.
func TestApplyStep(t *testing.T) {
	held := &inventory.Creation{Held: []inventory.HeldCluster{{Name: types.NamespacedName{Namespace: "fleet", Name: "alpha"}}}}
	for name, tc := range map[string]struct {
		reason   string
		outcome  release.Outcome
		err      error
		observed int64
		after    time.Duration
		clusters int
		keeps    *v1alpha1.HeldKept
	}{
		"Done":      {"it is as asked for", release.Outcome{}, nil, 1, time.Hour, 0, nil},
		"Again":     {"another action follows, after the pause of the queue", release.Outcome{Again: true}, nil, 0, 0, 0, nil},
		"After":     {"a failure is tried again when its strategy says", release.Outcome{After: time.Minute}, nil, 1, time.Minute, 0, nil},
		"Stalled":   {"only a change of the object helps", release.Outcome{Stalled: true}, nil, 1, 0, 0, nil},
		"Held":      {"a person has to decide about a deletion", release.Outcome{Held: true}, nil, 1, heldPoll, 0, nil},
		"Creation":  {"a person has to decide about Clusters", release.Outcome{Creation: held}, nil, 0, heldPoll, 1, nil},
		"Refused":   {"what its Cluster runs may change without an event", release.Outcome{Refused: true}, nil, 0, heldPoll, 0, nil},
		"Kept":      {"parts of Clusters that exist stay until those are gone", release.Outcome{}, nil, 1, time.Hour, 0, &v1alpha1.HeldKept{Objects: []string{"Secret/fleet/keys"}}},
		"KeptFails": {"the same, and the next delete failed", release.Outcome{}, errors.New("no answer"), 0, 0, 0, &v1alpha1.HeldKept{Objects: []string{"Secret/fleet/keys"}}},
		"Error":     {"the API server did not answer", release.Outcome{}, errors.New("no answer"), 0, 0, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(nil))
			s.helm.sync = func(_ context.Context, req release.Request) (release.Outcome, error) {
				if tc.keeps != nil {
					req.Keep(tc.keeps)
				}
				if tc.outcome.Creation.Blocked() {
					s.Obj.Status.Conditions = []metav1.Condition{{Type: v1alpha1.CreateHeldCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCreateHeld}}
				}
				return tc.outcome, tc.err
			}
			result, err := s.Reconciler.apply(t.Context(), s.run)
			if (err != nil) != (tc.err != nil) || result.RequeueAfter != tc.after || s.Obj.Status.ObservedGeneration != tc.observed {
				t.Errorf("%s: %+v, %v, generation %d is observed", tc.reason, result, err, s.Obj.Status.ObservedGeneration)
			}
			if err := s.WriteHeld(t.Context(), s.held()); err != nil {
				t.Fatal(err)
			}
			on, _ := v1alpha1.HeldOf(s.Obj)
			if (on.Create != nil) != (tc.clusters > 0) || (on.Kept != nil) != (tc.keeps != nil) {
				t.Errorf("%s: on record is %v", tc.reason, s.Obj.Annotations)
			}
		})
	}
}

// TestSaveLast: what is written of a call that was cancelled is written over nothing that another process wrote.
func TestSaveLast(t *testing.T) {
	for name, other := range map[string]bool{"Alone": false, "Other": true} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(nil))
			s.helm.sync = func(ctx context.Context, req release.Request) (release.Outcome, error) {
				now := &helmv2.HelmRelease{}
				if err := s.client.Get(ctx, client.ObjectKeyFromObject(req.Object), now); err != nil {
					t.Fatal(err)
				}
				if now.Status.Failures = 7; other {
					if err := s.client.Status().Update(ctx, now); err != nil {
						t.Fatal(err)
					}
				}
				req.Object.Status.Failures = 1
				return release.Outcome{}, req.SaveLast(ctx)
			}
			if _, err := s.Reconciler.apply(t.Context(), s.run); apierrors.IsConflict(err) != other || err != nil && !other {
				t.Errorf("SaveLast() = %v", err)
			}
			written := &helmv2.HelmRelease{}
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(s.Obj), written); err != nil || (written.Status.Failures == 7) != other {
				t.Errorf("written are %d failures, %v", written.Status.Failures, err)
			}
		})
	}
}

// TestForceOutstanding: a request whose force, or reset, Sync has left to be handled is not
// handled, whatever became of the rest of it.
func TestForceOutstanding(t *testing.T) {
	held := &inventory.Creation{Held: []inventory.HeldCluster{{Name: types.NamespacedName{Namespace: "fleet", Name: "alpha"}}}}
	for name, tc := range map[string]struct {
		reason     string
		annotation string
		// handles: Sync gets as far as to ask for it.
		handles bool
		outcome release.Outcome
		err     error
		want    bool
	}{
		"Held":    {"a person has to approve a Cluster first", helmv2.ForceRequestAnnotation, false, release.Outcome{Creation: held}, nil, true},
		"Refused": {"the step of a version is refused", helmv2.ForceRequestAnnotation, false, release.Outcome{Refused: true}, nil, true},
		"Error":   {"an API server did not answer", helmv2.ForceRequestAnnotation, false, release.Outcome{}, errors.New("no answer"), true},
		"Reset":   {"nor did it for a reset", helmv2.ResetRequestAnnotation, false, release.Outcome{}, errors.New("no answer"), true},
		"Done":    {"it was forced", helmv2.ForceRequestAnnotation, true, release.Outcome{}, nil, false},
		"Failed":  {"it was forced, and failed", helmv2.ForceRequestAnnotation, true, release.Outcome{}, errors.New("never ready"), false},
		"Stalled": {"only a change of the object helps, and who asked is to know", helmv2.ForceRequestAnnotation, false, release.Outcome{Stalled: true}, nil, false},
		"NoForce": {"only a look was asked for", "", false, release.Outcome{}, errors.New("no answer"), false},
		"Before":  {"a force of before was not asked for now", "old", false, release.Outcome{Creation: held}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(h *helmv2.HelmRelease) {
				h.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now"}
				switch tc.annotation {
				case "":
				case "old":
					h.Annotations[helmv2.ForceRequestAnnotation] = "before"
				default:
					h.Annotations[tc.annotation] = "now"
				}
			}), image(true))
			s.Sources.Snapshots.Put(chartKey(s.Obj), chartOf(t, "apiVersion: v2\nname: shop\nversion: 1.0.0\n"))
			asked := 0
			s.helm.sync = func(_ context.Context, r release.Request) (release.Outcome, error) {
				if asked++; tc.handles {
					helmv2.ShouldHandleForceRequest(r.Object)
				}
				return tc.outcome, tc.err
			}
			request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.Obj)}
			if _, err := s.Reconcile(t.Context(), request); !errors.Is(err, tc.err) || asked != 1 {
				t.Fatalf("%s: Reconcile() = %v, and Sync was called %d times", tc.reason, err, asked)
			}
			should := false
			s.helm.sync = func(_ context.Context, r release.Request) (release.Outcome, error) {
				force, reset := helmv2.ShouldHandleForceRequest(r.Object), helmv2.ShouldHandleResetRequest(r.Object)
				should = force || reset
				return release.Outcome{}, nil
			}
			if _, err := s.Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			if should != tc.want {
				t.Errorf("%s: it is to be handled by the next reconcile: %t, want %t", tc.reason, should, tc.want)
			}
			there := &helmv2.HelmRelease{}
			if err := s.client.Get(t.Context(), request.NamespacedName, there); err != nil || there.Status.LastHandledReconcileAt != "now" {
				t.Errorf("%s: handled is %q, %v, want the request in the end", tc.reason, there.Status.LastHandledReconcileAt, err)
			}
		})
	}
}

// TestForceRefused: what keeps a release from being looked at does not use up a request to force it either, unless only
// a change of the object can end that.
func TestForceRefused(t *testing.T) {
	secret := func(name string) client.Object {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}, Data: map[string][]byte{"values.yaml": []byte("a: b")}}
	}
	for name, tc := range map[string]struct {
		reason, annotation string
		obj                func(*helmv2.HelmRelease)
		comes              func(t *testing.T) client.Object
		want               bool
	}{
		"Cluster": {"there is no way to its cluster for a moment", helmv2.ForceRequestAnnotation,
			func(h *helmv2.HelmRelease) {
				h.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "way"}}
			}, func(t *testing.T) client.Object { return otherCluster(t, "there") }, true},
		"Values": {"the Secret of its values comes later", helmv2.ForceRequestAnnotation,
			func(h *helmv2.HelmRelease) {
				h.Spec.ValuesFrom = []meta.ValuesReference{{Kind: "Secret", Name: "values"}}
			},
			func(*testing.T) client.Object { return secret("values") }, true},
		"Reset": {"so it does for a reset", helmv2.ResetRequestAnnotation,
			func(h *helmv2.HelmRelease) {
				h.Spec.ValuesFrom = []meta.ValuesReference{{Kind: "Secret", Name: "values"}}
			},
			func(*testing.T) client.Object { return secret("values") }, true},
		"Dependency": {"what it depends on is not there yet", helmv2.ForceRequestAnnotation,
			func(h *helmv2.HelmRelease) { h.Spec.DependsOn = []helmv2.DependencyReference{{Name: "db"}} },
			func(*testing.T) client.Object {
				return &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "db"},
					Status: helmv2.HelmReleaseStatus{Conditions: []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue}}}}
			}, true},
		"Stalled": {"it has two charts until it is changed", helmv2.ForceRequestAnnotation,
			func(h *helmv2.HelmRelease) { h.Spec.Chart = &helmv2.HelmChartTemplate{} }, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := takeMoving(t, "there", shop(func(h *helmv2.HelmRelease) {
				h.Annotations = map[string]string{meta.ReconcileRequestAnnotation: "now", tc.annotation: "now"}
				tc.obj(h)
			}))
			way := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "way"}}
			if err := errors.Join(s.client.Delete(t.Context(), way), s.client.Create(t.Context(), image(true))); err != nil {
				t.Fatal(err)
			}
			s.Sources.Snapshots.Put(chartKey(s.Obj), chartOf(t, "apiVersion: v2\nname: shop\nversion: 1.0.0\n"))
			asked, should := 0, false
			s.helm.sync = func(_ context.Context, r release.Request) (release.Outcome, error) {
				asked++
				force, reset := helmv2.ShouldHandleForceRequest(r.Object), helmv2.ShouldHandleResetRequest(r.Object)
				should = force || reset
				return release.Outcome{}, nil
			}
			request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.Obj)}
			_, refused := s.Reconcile(t.Context(), request)
			there := &helmv2.HelmRelease{}
			if err := s.client.Get(t.Context(), request.NamespacedName, there); err != nil || asked > 0 || (there.Status.LastHandledReconcileAt == "") != tc.want {
				t.Fatalf("%s: Reconcile() = %v, Sync was called %d times, and handled is %q, %v", tc.reason, refused, asked, there.Status.LastHandledReconcileAt, err)
			}
			if tc.comes == nil {
				return
			}
			if err := s.client.Create(t.Context(), tc.comes(t)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Reconcile(t.Context(), request); err != nil || asked != 1 || !should {
				t.Errorf("%s: Reconcile() = %v, Sync was called %d times, and the request was to be handled: %t", tc.reason, err, asked, should)
			}
		})
	}
}

// TestNoteRevision: the revision of a Rollout is on record once all of it is released.
func TestNoteRevision(t *testing.T) {
	for name, tc := range map[string]struct {
		reason        string
		marked, noted string
		outcome       *release.Outcome
		ready         metav1.ConditionStatus
		want          string
	}{
		"Released": {"it is complete at the revision", "2", "1", &release.Outcome{}, metav1.ConditionTrue, "2"},
		"First":    {"a Rollout came", "1", "", &release.Outcome{}, metav1.ConditionTrue, "1"},
		"Again":    {"another action follows", "2", "1", &release.Outcome{Again: true}, metav1.ConditionTrue, "1"},
		"Failed":   {"the upgrade failed", "2", "1", &release.Outcome{}, metav1.ConditionFalse, "1"},
		"Waited":   {"nothing was done, and Ready is of before", "2", "1", nil, metav1.ConditionTrue, "1"},
		"Unmoved":  {"the Rollout is gone", "", "1", nil, metav1.ConditionTrue, ""},
		"Never":    {"there was none", "", "", &release.Outcome{}, metav1.ConditionTrue, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(func(h *helmv2.HelmRelease) {
				h.Generation, h.Status.ObservedGeneration, h.Annotations = 1, 1, map[string]string{}
				h.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: tc.ready}}
				for annotation, revision := range map[string]string{v1alpha1.RolloutRevisionAnnotation: tc.marked, v1alpha1.ReleasedRevisionAnnotation: tc.noted} {
					if revision != "" {
						h.Annotations[annotation] = revision
					}
				}
			}))
			s.run.outcome = tc.outcome
			if err := s.noteRevision(t.Context()); err != nil {
				t.Fatal(err)
			}
			there := &helmv2.HelmRelease{}
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(s.Obj), there); err != nil {
				t.Fatal(err)
			}
			if got := there.Annotations[v1alpha1.ReleasedRevisionAnnotation]; got != tc.want {
				t.Errorf("%s: on record is %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestUninstallStep(t *testing.T) {
	deleted := func(change func(*helmv2.HelmRelease)) func(*helmv2.HelmRelease) {
		return func(h *helmv2.HelmRelease) {
			h.DeletionTimestamp = &metav1.Time{Time: noon}
			h.Status.StorageNamespace = "apps"
			if change != nil {
				change(h)
			}
		}
	}
	kubeconfig := func(h *helmv2.HelmRelease) {
		h.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "gone"}}
	}
	for name, tc := range map[string]struct {
		reason  string
		obj     func(*helmv2.HelmRelease)
		outcome release.Outcome
		err     error
		asked   bool
		gone    bool
		events  int
	}{
		"Gone":      {"what it installed goes with it", deleted(nil), release.Outcome{}, nil, true, true, 0},
		"Never":     {"nothing was installed", deleted(func(h *helmv2.HelmRelease) { h.Status.StorageNamespace = "" }), release.Outcome{}, nil, false, true, 0},
		"Suspended": {"a deletion takes nothing along", deleted(func(h *helmv2.HelmRelease) { h.Spec.Suspend = true }), release.Outcome{}, nil, false, true, 0},
		"Held":      {"a person has to confirm: it stays", deleted(nil), release.Outcome{Held: true}, nil, true, false, 0},
		"Error":     {"it stays and is tried again", deleted(nil), release.Outcome{}, errors.New("denied"), true, false, 0},
		"NoWay":     {"the way to its cluster is gone: it goes, and the user is told", deleted(kubeconfig), release.Outcome{}, nil, false, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(tc.obj))
			asked := false
			s.helm.uninstall = func() (release.Outcome, error) {
				asked = true
				return tc.outcome, tc.err
			}
			if _, err := s.finalize(t.Context(), s.run); (err != nil) != (tc.err != nil) {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if asked != tc.asked {
				t.Errorf("%s: it was uninstalled: %t", tc.reason, asked)
			}
			if gone := len(s.Obj.Finalizers) == 0; gone != tc.gone || len(s.events.Events) != tc.events {
				t.Errorf("%s: the HelmRelease may go: %t; %d events", tc.reason, gone, len(s.events.Events))
			}
		})
	}
}

// TestUninstallOfCluster: what is in a cluster that Cluster API takes down goes with it. One that a pivot had manage itself
// lives on, and is reached by the kubeconfig that stays here.
func TestUninstallOfCluster(t *testing.T) {
	is := func(elsewhere bool, err error) func() (bool, error) {
		return func() (bool, error) { return elsewhere, err }
	}
	for name, tc := range map[string]struct {
		reason    string
		there     []string
		elsewhere func() (bool, error)
		asked     bool
		gone      bool
		fails     bool
		events    int
	}{
		"There":    {"as ever", []string{"edge"}, is(false, nil), true, true, false, 0},
		"Gone":     {"the Secret was not collected", nil, is(false, nil), false, true, false, 1},
		"Alone":    {"nobody keeps such a record", nil, nil, false, true, false, 1},
		"Pivoted":  {"it manages itself", nil, is(true, nil), true, true, false, 0},
		"NoRecord": {"it is not known whether it was moved", nil, is(false, errors.New("no answer")), false, false, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := takeMoving(t, "there", installed("", func(h *helmv2.HelmRelease) {
				h.DeletionTimestamp = &metav1.Time{Time: noon}
				h.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "edge-kubeconfig"}}
				recordAt(h, "edge-kubeconfig", "there")
			}), tc.there...)
			way := &corev1.Secret{}
			if err := s.client.Get(t.Context(), client.ObjectKey{Namespace: "apps", Name: "way"}, way); err != nil {
				t.Fatal(err)
			}
			way.ObjectMeta = metav1.ObjectMeta{Namespace: "apps", Name: "edge-kubeconfig", Labels: map[string]string{clusterapi.ClusterNameLabel: "edge"}}
			if err := s.client.Create(t.Context(), way); err != nil {
				t.Fatal(err)
			}
			if tc.elsewhere != nil {
				s.Targets.Elsewhere = func(context.Context, types.NamespacedName) (bool, error) { return tc.elsewhere() }
			}
			asked := false
			s.helm.uninstall = func() (release.Outcome, error) {
				asked = true
				return release.Outcome{}, nil
			}
			if _, err := s.finalize(t.Context(), s.run); (err != nil) != tc.fails {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if gone := len(s.run.Obj.Finalizers) == 0; asked != tc.asked || gone != tc.gone || len(s.events.Events) != tc.events {
				t.Errorf("%s: it was uninstalled: %t; the HelmRelease may go: %t; %d events", tc.reason, asked, gone, len(s.events.Events))
			}
		})
	}
}

// TestDeletionMeasured: an uninstall that is held is in the metrics, until the HelmRelease may go.
func TestDeletionMeasured(t *testing.T) {
	s := take(t, shop(func(h *helmv2.HelmRelease) {
		h.DeletionTimestamp, h.Finalizers = &metav1.Time{Time: noon}, append(h.Finalizers, "somebody/else")
		h.Status.StorageNamespace = "apps"
		h.Status.Conditions = []metav1.Condition{ // as the uninstall leaves it
			{Type: meta.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPruneBlocked},
			{Type: v1alpha1.PruneBlockedCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPruneBlocked},
		}
	}))
	registry := prometheus.NewRegistry()
	s.Metrics = metrics.New(registry)
	for _, step := range []struct {
		reason  string
		outcome release.Outcome
		want    string
	}{
		{"a person has to confirm", release.Outcome{Held: true}, `
# HELP cascade_prune_blocked 1 while deletes of the object are held for a person to decide; absent otherwise.
# TYPE cascade_prune_blocked gauge
cascade_prune_blocked{kind="HelmRelease",name="shop",namespace="apps"} 1
# HELP cascade_resource_ready 1 if the object is ready, 0 if it is not, by its Ready condition.
# TYPE cascade_resource_ready gauge
cascade_resource_ready{kind="HelmRelease",name="shop",namespace="apps"} 0
`},
		{"it was let go, though somebody else keeps it", release.Outcome{}, ""},
		{"it is looked at again", release.Outcome{}, ""},
	} {
		s.helm.uninstall = func() (release.Outcome, error) { return step.outcome, nil }
		if _, err := s.Reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.Obj)}); err != nil {
			t.Fatalf("%s: %v", step.reason, err)
		}
		if err := testutil.GatherAndCompare(registry, strings.NewReader(step.want), "cascade_resource_ready", "cascade_prune_blocked"); err != nil {
			t.Errorf("%s: %v", step.reason, err)
		}
	}
}

// TestRefuseStep: what a refusal leaves on record, and who is told.
func TestRefuseStep(t *testing.T) {
	why := errors.New("no such chart")
	for name, tc := range map[string]struct {
		reason string
		f      refusal
		says   string
		after  time.Duration
		err    bool
		events int
	}{
		"Retried": {"by the pauses of the queue", refusal{reason: "ArtifactFailed", err: why, event: true}, "False/ArtifactFailed", 0, true, 1},
		"Waits":   {"until something wakes it", refusal{reason: "SourceNotReady", err: why, wait: time.Minute}, "False/SourceNotReady", time.Minute, false, 0},
		"Stalls":  {"until the object changes", refusal{reason: "AccessDenied", err: why, stalls: true, event: true}, "False/AccessDenied", 0, false, 1},
		"Passes":  {"nothing is known to be wrong", refusal{passing: true, wait: time.Minute}, "", time.Minute, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := take(t, shop(nil))
			result, err := s.refuse(t.Context(), s.run, &tc.f)
			if (err != nil) != tc.err || result.RequeueAfter != tc.after || len(s.events.Events) != tc.events {
				t.Errorf("%s: %+v, %v, %d events", tc.reason, result, err, len(s.events.Events))
			}
			if err := s.Write(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := &helmv2.HelmRelease{}
			if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(s.Obj), got); err != nil {
				t.Fatal(err)
			}
			says := ""
			if c := apimeta.FindStatusCondition(got.Status.Conditions, meta.ReadyCondition); c != nil {
				says = string(c.Status) + "/" + c.Reason
			}
			if says != tc.says {
				t.Errorf("%s: on record is %q, want %q", tc.reason, says, tc.says)
			}
		})
	}
}
