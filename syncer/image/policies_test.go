package image

import (
	"strings"
	"testing"
	"time"

	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// TestPolicyOfOtherImage: tags are of one image, and are not chosen for the one that its ImageRepository names by now.
func TestPolicyOfOtherImage(t *testing.T) {
	registry, time0 := serveImages(t, 1, 2), newClock()
	image := strings.TrimPrefix(registry.origin(0).URL, "oci://")
	for name, tt := range map[string]struct {
		reason string
		change func(*imagev1.ImageRepository)
		want   imagev1.ImageRef
		waits  bool
		failed string
		after  time.Duration
	}{
		"Same": {"its tags are known", func(*imagev1.ImageRepository) {}, imagev1.ImageRef{Name: image, Tag: "1.0.1"}, false, "", 0},
		"Changed": {"the other image is listed at this moment", func(o *imagev1.ImageRepository) {
			o.Spec.Image, o.Generation = "example.com/other", 2
		}, imagev1.ImageRef{Name: image, Tag: "1.0.0"}, true, "", 0},
		"Refused": {"the registry of the other image refuses", func(o *imagev1.ImageRepository) {
			o.Spec.Image, o.Generation = "example.com/other", 2
			status.SetCondition(o, meta.ReadyCondition, metav1.ConditionFalse, imagev1.ReadOperationFailedReason, "denied")
		}, imagev1.ImageRef{Name: image, Tag: "1.0.0"}, false, imagev1.DependencyNotReadyReason, 0},
		"Suspended": {"nobody asks for the other image", func(o *imagev1.ImageRepository) {
			o.Spec.Image, o.Spec.Suspend, o.Generation = "example.com/other", true, 2
		}, imagev1.ImageRef{Name: image, Tag: "1.0.0"}, false, imagev1.DependencyNotReadyReason, 0},
		"Deleted": {"it is going, and nobody lists for it", func(o *imagev1.ImageRepository) {
			o.Generation, o.DeletionTimestamp, o.Finalizers = 2, &metav1.Time{Time: time0.now()}, []string{"example.com/other"}
			o.Spec.Image = "example.com/other"
		}, imagev1.ImageRef{Name: image, Tag: "1.0.0"}, false, imagev1.DependencyNotReadyReason, 0},
		"Listed": {"a list may take its time-out", func(o *imagev1.ImageRepository) {
			o.Spec.Image, o.Generation = "example.com/other", 2
		}, imagev1.ImageRef{Name: image, Tag: "1.0.0"}, true, "", time.Minute},
		"Unlisted": {"who lists for it is down", func(o *imagev1.ImageRepository) {
			o.Spec.Image, o.Generation = "example.com/other", 2
		}, imagev1.ImageRef{Name: image, Tag: "1.0.0"}, false, imagev1.DependencyNotReadyReason, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			scans := NewScans(source.NewImages(t.TempDir(), 1<<20, time0.now), "", time0.now, prometheus.NewRegistry())
			key := types.NamespacedName{Namespace: "apps", Name: "app"}
			if _, err := scans.Scan(t.Context(), key, "u", registry.origin(0), nil, time0.now()); err != nil {
				t.Fatal(err)
			}
			repository := &imagev1.ImageRepository{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "u", Generation: 1}}
			repository.Spec.Image = image
			repository.Status.LastScanResult = &imagev1.ScanResult{}
			status.MarkReady(repository, meta.SucceededReason, "listed")
			tt.change(repository)
			scheme := runtime.NewScheme()
			if err := imagev1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			// The process runs for long: what is not known was not forgotten by a restart.
			r := &Policies{Shared: &Shared{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(repository).Build(), Now: time0.now}, Scans: scans, begun: time0.now().Add(-time.Hour)}
			obj := &imagev1.ImagePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "app", Generation: 1}}
			obj.Spec.ImageRepositoryRef.Name = key.Name
			obj.Spec.Policy.SemVer = &imagev1.SemVerPolicy{Range: "*"}
			obj.Status.ObservedGeneration, obj.Status.LatestRef = 1, &imagev1.ImageRef{Name: image, Tag: "1.0.0"}
			status.MarkReady(obj, meta.SucceededReason, "chosen")
			out := r.run(t.Context(), obj)
			if tt.after > 0 {
				time0.advance(tt.after)
				out = r.run(t.Context(), obj)
			}
			if *obj.Status.LatestRef != tt.want || out.waits != tt.waits || (out.failed == nil) != (tt.failed == "") || out.failed != nil && out.failed.reason != tt.failed {
				t.Errorf("%s: %v, %+v", tt.reason, obj.Status.LatestRef, out)
			}
		})
	}
}
