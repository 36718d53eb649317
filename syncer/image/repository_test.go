package image

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/syncer/fetch"
	"github.com/cascade-gitops/cascade/syncer/metrics"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// ways is the way to one registry.
type ways struct{ origin source.ImageOrigin }

func (w ways) Registry(context.Context, source.Key, fetch.Registry) (source.ImageOrigin, error) {
	return w.origin, nil
}

// TestListedBeforeOutage: a process that begins while a registry does not answer has the tags that were kept, for policies.
func TestListedBeforeOutage(t *testing.T) {
	registry, time0, dir := serveImages(t, 1, 2), newClock(), t.TempDir()
	key := types.NamespacedName{Namespace: "apps", Name: "app"}
	before := NewScans(source.NewImages(t.TempDir(), 1<<20, time0.now), dir, time0.now, prometheus.NewRegistry())
	if _, err := before.Scan(t.Context(), key, "u", registry.origin(0), nil, time0.now()); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		reason string
		dir    string
		known  bool
	}{
		"Kept":    {"the list is on the disk", dir, true},
		"Nothing": {"there is none", t.TempDir(), false},
	} {
		t.Run(name, func(t *testing.T) {
			// Longer than the interval: it would be asked for again.
			later := func() time.Time { return time0.now().Add(time.Hour) }
			r := &Repositories{Shared: &Shared{Now: later}, Scans: NewScans(&failing{}, tt.dir, later, prometheus.NewRegistry()), Ways: ways{registry.origin(0)}}
			obj := &imagev1.ImageRepository{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "u", Generation: 1}}
			obj.Spec.Image, obj.Spec.Insecure, obj.Spec.Interval.Duration = strings.TrimPrefix(registry.origin(0).URL, "oci://"), true, time.Minute
			obj.Status.LastScanResult = &imagev1.ScanResult{ScanTime: metav1.NewTime(time0.now())}
			if out := r.run(t.Context(), obj); out.failed == nil || out.failed.reason != imagev1.ReadOperationFailedReason {
				t.Errorf("%s: %+v; the failure is told all the same", tt.reason, out)
			}
			if tags, ok := r.Scans.Of(obj); ok != tt.known || ok && len(tags) != 2 {
				t.Errorf("%s: %q, %t", tt.reason, tags, ok)
			}
		})
	}
}

// TestClockWasAhead: after a scan by a clock that was ahead, the next one comes when it should by the clock that is right.
func TestClockWasAhead(t *testing.T) {
	registry, time0 := serveImages(t, 1, 2), newClock()
	r := &Repositories{
		Shared: &Shared{Now: time0.now}, Ways: ways{registry.origin(0)},
		Scans: NewScans(source.NewImages(t.TempDir(), 1<<20, time0.now), t.TempDir(), time0.now, prometheus.NewRegistry()),
	}
	obj := &imagev1.ImageRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "app", UID: "u", Generation: 1}}
	obj.Spec.Image, obj.Spec.Insecure, obj.Spec.Interval.Duration = strings.TrimPrefix(registry.origin(0).URL, "oci://"), true, 5*time.Minute
	obj.Status.ObservedGeneration = 1
	time0.advance(24 * time.Hour)
	if out := r.run(t.Context(), obj); out.failed != nil {
		t.Fatalf("%+v", out)
	}
	time0.advance(5*time.Minute - 24*time.Hour)
	registry.push(t, "org/app-0:2.0.0")
	out := r.run(t.Context(), obj)
	if tags, _ := r.Scans.Of(obj); out.failed != nil || len(tags) != 3 || obj.Status.LastScanResult.ScanTime.After(time0.now()) {
		t.Errorf("after the interval: %+v, tags %q, scanned at %s", out, tags, obj.Status.LastScanResult.ScanTime)
	}
	lists := registry.lists.Load()
	if out := r.run(t.Context(), obj); out.failed != nil || registry.lists.Load() != lists {
		t.Errorf("before the next interval it lists again: %+v", out)
	}
}

// deadline is a registry that notes how long an answer may take.
type deadline struct {
	failing
	within time.Duration
}

func (d *deadline) List(ctx context.Context, origin source.ImageOrigin, room func(int) error) (source.TagList, error) {
	if at, ok := ctx.Deadline(); ok {
		d.within = time.Until(at)
	}
	return d.failing.List(ctx, origin, room)
}

func (d *deadline) Resolve(ctx context.Context, _ source.ImageOrigin, _ source.ImageReference, _ string) (source.Image, error) {
	if at, ok := ctx.Deadline(); ok {
		d.within = time.Until(at)
	}
	return source.Image{}, errors.New("no answer")
}

// TestScanEnds: a scan that gets no answer, or a digest that is asked for, fails within minutes, however long its interval is.
func TestScanEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		reason            string
		interval, timeout time.Duration
		want              time.Duration
	}{
		"Day":      {"the timeout is the interval, of a day", 24 * time.Hour, 0, mostScanning},
		"Long":     {"a timeout of a day", time.Minute, 24 * time.Hour, mostScanning},
		"Interval": {"the timeout is the interval", time.Minute, 0, time.Minute},
		"Timeout":  {"a timeout", time.Hour, 5 * time.Minute, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			time0, registry := newClock(), &deadline{}
			origin := source.ImageOrigin{URL: "oci://registry.example/org/app"}
			r := &Repositories{Shared: &Shared{Now: time0.now}, Ways: ways{origin}, Scans: NewScans(registry, t.TempDir(), time0.now, prometheus.NewRegistry())}
			obj := &imagev1.ImageRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "app", UID: "u", Generation: 1}}
			obj.Spec.Image, obj.Spec.Interval.Duration = strings.TrimPrefix(origin.URL, "oci://"), tt.interval
			if tt.timeout > 0 {
				obj.Spec.Timeout = &metav1.Duration{Duration: tt.timeout}
			}
			if out := r.run(t.Context(), obj); out.failed == nil || registry.within > tt.want || registry.within < tt.want-10*time.Second {
				t.Errorf("%s: an answer may take %s, want %s", tt.reason, registry.within, tt.want)
			}
			chosen := &imagev1.ImagePolicy{Spec: imagev1.ImagePolicySpec{DigestReflectionPolicy: imagev1.ReflectAlways}}
			p := &Policies{Shared: r.Shared, Ways: r.Ways, Digests: registry}
			if _, err := p.digest(t.Context(), chosen, obj, &imagev1.ImageRef{Name: obj.Spec.Image, Tag: "1.0.0"}); err == nil || registry.within > tt.want || registry.within < tt.want-10*time.Second {
				t.Errorf("%s: a digest may take %s, want %s", tt.reason, registry.within, tt.want)
			}
		})
	}
}

// TestRetryAfter: a registry that limits requests is not asked before it said.
func TestRetryAfter(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.Header().Set("Retry-After", "1200")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	t.Cleanup(server.Close)
	scheme := runtime.NewScheme()
	if err := imagev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	obj := &imagev1.ImageRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "app", UID: "u", Generation: 1}}
	obj.Spec.Image, obj.Spec.Insecure, obj.Spec.Interval.Duration = strings.TrimPrefix(server.URL, "http://")+"/org/app", true, time.Minute
	c, time0 := fake.NewClientBuilder().WithScheme(scheme).WithObjects(obj).WithStatusSubresource(obj).Build(), newClock()
	r := &Repositories{
		Shared: &Shared{
			Client: c, Reader: c, Events: record.NewFakeRecorder(10), Metrics: metrics.New(prometheus.NewRegistry()), Now: time0.now,
			Jitter: func(d time.Duration) time.Duration { return d },
		},
		Scans: NewScans(source.NewImages(t.TempDir(), 1<<20, time0.now), "", time0.now, prometheus.NewRegistry()),
		Ways:  ways{source.ImageOrigin{URL: "oci://" + obj.Spec.Image, Insecure: true}},
	}
	r.open()
	result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(obj)})
	if err != nil || result.RequeueAfter < 20*time.Minute || result.RequeueAfter > 25*time.Minute || requests != 1 {
		t.Errorf("again after %s, %v, %d requests", result.RequeueAfter, err, requests)
	}
}

// TestLeft: an ImageRepository that other labels make another agent's is listed by that one
// alone.
func TestLeft(t *testing.T) {
	registry, time0 := serveImages(t, 1, 2), newClock()
	scheme := runtime.NewScheme()
	if err := imagev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	obj := &imagev1.ImageRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "app", UID: "u", Generation: 1}}
	obj.Spec.Image, obj.Spec.Insecure, obj.Spec.Interval.Duration = strings.TrimPrefix(registry.origin(0).URL, "oci://"), true, time.Minute
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(obj).WithStatusSubresource(obj).Build()
	ours := true
	r := &Repositories{
		Shared: &Shared{
			Client: c, Reader: c, Events: record.NewFakeRecorder(10), Metrics: metrics.New(prometheus.NewRegistry()), Now: time0.now,
			Jitter: func(d time.Duration) time.Duration { return d }, Shard: func(client.Object) bool { return ours },
		},
		Scans: NewScans(source.NewImages(t.TempDir(), 1<<20, time0.now), "", time0.now, prometheus.NewRegistry()), Ways: ways{registry.origin(0)},
	}
	r.open()
	for _, ours = range []bool{true, false} {
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(obj)})
		if err != nil || (result.RequeueAfter > 0) != ours {
			t.Errorf("ours %t: again after %s, %v", ours, result.RequeueAfter, err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
			t.Fatal(err)
		}
		if _, known := r.Scans.Of(obj); known != ours {
			t.Errorf("ours %t: its tags are known: %t", ours, known)
		}
	}
}
