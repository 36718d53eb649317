package images

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"testing"
	"time"

	imagev1 "github.com/fluxcd/image-reflector-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/origins"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// TestManyImages: two hundred ImageRepositories of fifty images cost fifty lists of tags. What
// it costs when people ask all of them once more, how long both take and what the agent holds
// for it is told.
func TestManyImages(t *testing.T) {
	scenario.Alongside(t)
	const repositories, images, tags = 200, 50, 20
	h := &imageSpec{Tier: scenario.StartTier(t), registry: origins.StartRegistry(origins.Login{})}
	t.Cleanup(h.registry.Close)
	r := h.row(t, nil)
	for n := range images {
		var all []string
		for v := range tags {
			all = append(all, fmt.Sprintf("1.%d.0", v))
		}
		r.push(t, fmt.Sprint("image-", n), all...)
	}
	before := resident(t, r)
	begun := time.Now()
	for n := range repositories {
		r.make(t, "ImageRepository", fmt.Sprint("of-", n), fmt.Sprintf("{image: %s, insecure: true, interval: 1h}", r.image(fmt.Sprint("image-", n%images))))
	}
	scanned := func(handled string) {
		t.Helper()
		scenario.Eventually(t, scenario.Converge, "all are scanned", func(ctx context.Context) error {
			list := &imagev1.ImageRepositoryList{}
			if err := r.Client.List(ctx, list, client.InNamespace(r.Namespace)); err != nil {
				return err
			}
			done := 0
			for i := range list.Items {
				s := &list.Items[i].Status
				if meta.IsStatusConditionTrue(s.Conditions, fluxmeta.ReadyCondition) && s.LastScanResult != nil && s.LastScanResult.TagCount == tags && s.LastHandledReconcileAt == handled {
					done++
				}
			}
			if done != repositories {
				return fmt.Errorf("%d of %d", done, repositories)
			}
			return nil
		})
	}
	lists := func() int {
		all := 0
		for n := range images {
			all += h.registry.Count("GET", fmt.Sprintf("%s/image-%d/tags/list", r.Namespace, n), http.StatusOK)
		}
		return all
	}
	scanned("")
	t.Logf("%d ImageRepositories of %d images: %s, %d lists of tags, %d MiB resident before, %d after",
		repositories, images, time.Since(begun).Round(time.Millisecond), lists(), before>>20, resident(t, r)>>20)
	if got := lists(); got != images {
		t.Errorf("%d lists of tags, want %d", got, images)
	}
	begun = time.Now()
	const again = "again"
	for n := range repositories {
		o := &imagev1.ImageRepository{}
		o.Namespace, o.Name = r.Namespace, fmt.Sprint("of-", n)
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, fluxmeta.ReconcileRequestAnnotation, again)
		if err := r.Client.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	scanned(again)
	t.Logf("all asked once more: %s, %d lists of tags, %d MiB resident", time.Since(begun).Round(time.Millisecond), lists()-images, resident(t, r)>>20)
}

var residentSet = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)

// resident is the memory of the agent's process in bytes.
func resident(t *testing.T, r *row) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.MoM.Agent()))
	if err != nil {
		t.Fatal(err)
	}
	var kib int64
	found := residentSet.FindSubmatch(text)
	if found == nil {
		t.Fatal(errors.New("cannot read the memory of the agent"))
	}
	if _, err := fmt.Sscan(string(found[1]), &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
