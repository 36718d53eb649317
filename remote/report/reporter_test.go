package report

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// tier is a cluster as far as a Reporter needs one. Its one ConfigMap has versions that
// count up.
type tier struct {
	*Reporter
	informers *informertest.FakeInformers
	wrote     chan string
	// beats has the digest of each heartbeat.
	beats chan string

	mu      sync.Mutex
	version int
	refused error
}

func newTier(t *testing.T) *tier {
	t.Helper()
	scheme := runtime.NewScheme()
	utilruntime.Must(errors.Join(
		corev1.AddToScheme(scheme), kustomizev1.AddToScheme(scheme), helmv2.AddToScheme(scheme), sourcev1.AddToScheme(scheme), generatorv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme),
		metav1.AddMetaToScheme(scheme)))
	tr := &tier{informers: &informertest.FakeInformers{Scheme: scheme}, wrote: make(chan string, 10), beats: make(chan string, 100), version: 10}
	cl := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(testrestmapper.TestOnlyStaticRESTMapper(scheme)).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			return apierrors.NewNotFound(corev1.Resource("configmaps"), key.Name)
		},
		Apply: func(_ context.Context, _ client.WithWatch, o runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
			tr.mu.Lock()
			defer tr.mu.Unlock()
			if tr.refused != nil {
				return tr.refused
			}
			cm := o.(interface {
				UnstructuredContent() map[string]any
				SetResourceVersion(string)
			})
			if kind, _, _ := unstructured.NestedString(cm.UnstructuredContent(), "kind"); kind == "Lease" {
				digest, _, _ := unstructured.NestedString(cm.UnstructuredContent(), "metadata", "labels", v1alpha1.ReportLabel)
				tr.beats <- digest
				return nil
			}
			tr.version++
			text, _, _ := unstructured.NestedString(cm.UnstructuredContent(), "data", v1alpha1.ReportKey)
			cm.SetResourceVersion(fmt.Sprint(tr.version))
			tr.wrote <- text
			return nil
		},
	}).Build()
	tr.Reporter = &Reporter{Client: cl, Cache: tr.informers, Namespace: "ns", Agent: "v1", Now: func() time.Time { return start.Time }}
	return tr
}

func (tr *tier) informer(t *testing.T, o client.Object) *controllertest.FakeInformer {
	t.Helper()
	i, err := tr.informers.FakeInformerFor(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// next waits for the next write.
func (tr *tier) next(t *testing.T) string {
	t.Helper()
	select {
	case text := <-tr.wrote:
		return text
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is written")
		return ""
	}
}

func configMap(version int) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	m.Namespace, m.Name, m.ResourceVersion = "ns", v1alpha1.ReportConfigMap, fmt.Sprint(version)
	return m
}

// TestReportsGenerators: those that the agent reconciles are a part of the report.
func TestReportsGenerators(t *testing.T) {
	for _, reconciles := range []bool{true, false} {
		tr := newTier(t)
		tr.Reconciles = func(o client.Object) bool {
			_, is := o.(*generatorv1.ArtifactGenerator)
			return reconciles || !is
		}
		o := &generatorv1.ArtifactGenerator{}
		o.Namespace, o.Name = "apps", "parts"
		o.Status.Conditions = ready(metav1.ConditionFalse, "BuildFailed", "no such file")
		if err := tr.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		got, err := tr.compute(t.Context())
		if err != nil || got.Ready == reconciles {
			t.Errorf("reconciled: %t, and the report is %+v, %v", reconciles, got, err)
		}
	}
}

// TestReporter: it writes what changed, and nothing else.
func TestReporter(t *testing.T) {
	tr := newTier(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tr.Start(ctx) }()
	first := tr.next(t)
	children := tr.informer(t, &v1alpha1.Child{})
	c := childNamed("a", ready(metav1.ConditionTrue, "Succeeded", ""))
	c.ResourceVersion = "1"
	children.Add(&c)
	second := tr.next(t)
	if strings.Contains(first, "fleet/a") || !strings.Contains(second, "fleet/a") {
		t.Errorf("before there is a child the report is %s, and then %s", first, second)
	}
	if tr.Digest() == "" {
		t.Error("the report has no digest")
	}
	for _, report := range []string{first, second} {
		if got := <-tr.beats; got != Digest(report) {
			t.Errorf("the heartbeat tells of report %s, want %s", got, Digest(report))
		}
	}
	children.Update(&c, &c) // a resync
	children.Delete(&c)
	if third := tr.next(t); third != first {
		t.Errorf("without the child the report is %s, want %s", third, first)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(tr.wrote) > 0 {
		t.Errorf("without a change it wrote %s", <-tr.wrote)
	}
}

// TestReportIsRestored: a report that somebody deleted or changed is written again, and
// one that nobody touched is not.
func TestReportIsRestored(t *testing.T) {
	tr := newTier(t)
	write := func(want bool, reason string) {
		t.Helper()
		if _, err := tr.write(t.Context()); err != nil {
			t.Fatal(err)
		}
		if wrote := len(tr.wrote) > 0; wrote != want {
			t.Errorf("%s: it wrote: %t, want %t", reason, wrote, want)
		}
		for len(tr.wrote) > 0 {
			<-tr.wrote
		}
	}
	write(true, "the first report")
	if tr.stands(configMap(tr.version), false) {
		t.Error("our own write wakes us")
	}
	write(false, "our own write")
	if tr.stands(configMap(tr.version-1), false) {
		t.Error("a watch that lags wakes us")
	}
	tr.version++
	if !tr.stands(configMap(tr.version), false) {
		t.Error("a change by somebody else wakes nobody")
	}
	write(true, "somebody else changed it")
	write(false, "it was restored, and the watch lags")
	tr.version++
	if !tr.stands(configMap(tr.version), true) {
		t.Error("a delete wakes nobody")
	}
	write(true, "somebody deleted it")
	tr.stands(configMap(tr.version), false)
	write(false, "it was restored")
	other := configMap(tr.version + 5)
	other.Name = "another"
	if tr.stands(other, true) {
		t.Error("another ConfigMap wakes us")
	}
}

// TestReportIsRefused: while the API server refuses the report it is tried again, and the
// lease does not announce it.
func TestReportIsRefused(t *testing.T) {
	tr := newTier(t)
	tr.refused = errors.New("no")
	if _, err := tr.write(t.Context()); err == nil || tr.Digest() != "" {
		t.Errorf("write() = %v, and the digest is %q", err, tr.Digest())
	}
	// It may be refused for good.
	later := time.NewTimer(time.Hour)
	defer later.Stop()
	for _, want := range []time.Duration{pause, 2 * pause, 4 * pause, 8 * pause, 16 * pause, 32 * pause, mostPause, mostPause} {
		if tr.tell(t.Context(), later); tr.retry != want {
			t.Errorf("it is tried again after %s, want %s", tr.retry, want)
		}
	}
	tr.refused = nil
	if !tr.tell(t.Context(), later) || tr.retry != 0 {
		t.Errorf("it is taken, and the pause is %s", tr.retry)
	}
}

// TestRowsWait: rows of a long report that change all the time are written now and then; what
// the tier says of itself, and that all below are ready or not any more, is written at once.
func TestRowsWait(t *testing.T) {
	tr := newTier(t)
	now := start.Time
	tr.Now = func() time.Time { return now }
	put := func(n int, status metav1.ConditionStatus, revision string) {
		c := childNamed(fmt.Sprintf("c%03d", n), ready(status, "Reason", ""))
		c.Status.Report = &v1alpha1.Report{Revision: revision, Ready: true, Reason: "Succeeded"}
		tr.below.Put(&c)
	}
	for n := range 100 {
		put(n, metav1.ConditionTrue, "main@sha1:one")
	}
	writes := func() (wait time.Duration, wrote bool) {
		t.Helper()
		wait, err := tr.write(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wrote = len(tr.wrote) > 0
		for len(tr.wrote) > 0 {
			<-tr.wrote
		}
		return wait, wrote
	}
	if _, wrote := writes(); !wrote {
		t.Fatal("the first report is not written")
	}
	put(0, metav1.ConditionTrue, "main@sha1:two")
	wait, wrote := writes()
	if wrote || wait < 3*time.Second || wait > 30*time.Second {
		t.Errorf("a row is written: %t, or in %s", wrote, wait)
	}
	now = now.Add(wait / 2)
	put(1, metav1.ConditionTrue, "main@sha1:two")
	if rest, wrote := writes(); wrote || rest != wait-wait/2 {
		t.Errorf("another row is written: %t, or in %s", wrote, rest)
	}
	now = now.Add(wait - wait/2)
	if _, wrote := writes(); !wrote {
		t.Error("rows are not written when it is time")
	}
	for _, c := range []struct {
		reason string
		change func()
	}{
		{"not all are ready any more", func() { put(2, metav1.ConditionFalse, "main@sha1:two") }},
		{"all are ready again", func() { put(2, metav1.ConditionTrue, "main@sha1:two") }},
		{"the tier says something else of itself", func() { tr.Agent = "v2" }},
		{"somebody else changed the report", func() { tr.version++; tr.stands(configMap(tr.version), false) }},
		{"the clock was set back", func() { now = now.Add(-time.Hour); put(3, metav1.ConditionTrue, "main@sha1:three") }},
	} {
		c.change()
		if wait, wrote := writes(); !wrote {
			t.Errorf("%s: it waits for %s", c.reason, wait)
		}
	}
}
