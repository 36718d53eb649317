package fetch

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestRetryAfter: a server that limits requests is not asked before it said, nor at the speed of the backoff.
func TestRetryAfter(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, said string
		// want is the least time until it is asked again, 0 for the backoff.
		want time.Duration
	}{
		"Said":    {"it says when to come again", "120", 2 * time.Minute},
		"Years":   {"nobody waits for thirty years", "999999999", time.Hour},
		"Nothing": {"it does not say", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				if tc.said != "" {
					w.Header().Set("Retry-After", tc.said)
				}
				w.WriteHeader(http.StatusTooManyRequests)
			}))
			t.Cleanup(server.Close)
			git := &sourcev1.GitRepository{Spec: sourcev1.GitRepositorySpec{URL: server.URL + "/fleet"}}
			oci := &sourcev1.OCIRepository{Spec: sourcev1.OCIRepositorySpec{URL: strings.Replace(server.URL, "http://", "oci://", 1) + "/fleet", Insecure: true}}
			helm := &sourcev1.HelmRepository{Spec: sourcev1.HelmRepositorySpec{URL: server.URL}}
			bucket := &sourcev1.Bucket{Spec: sourcev1.BucketSpec{Endpoint: strings.TrimPrefix(server.URL, "http://"), BucketName: "fleet", Region: "eu-west-1", Insecure: true}}
			b := newGitBench(t)
			_, charts := b.helm()
			for kind, of := range map[string]struct {
				obj sourceObject
				reconcile.Reconciler
			}{
				sourcev1.GitRepositoryKind:  {git, b.GitRepositories},
				sourcev1.OCIRepositoryKind:  {oci, &OCIRepositories{Sources: b.Sources, Images: source.NewImages(t.TempDir(), 1<<20, time.Now)}},
				sourcev1.HelmRepositoryKind: {helm, charts},
				sourcev1.BucketKind:         {bucket, &Buckets{Sources: b.Sources, Buckets: source.NewBuckets(t.TempDir(), 1<<20)}},
			} {
				of.obj.SetNamespace("ns")
				of.obj.SetName("fleet")
				if err := b.Client.Create(t.Context(), of.obj); err != nil {
					t.Fatal(err)
				}
				var said []string
				for range 2 {
					requests.Store(0)
					result, err := of.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(of.obj)})
					if (err == nil) != (tc.want > 0) || result.RequeueAfter < tc.want || result.RequeueAfter > tc.want*5/4 {
						t.Errorf("%s: %s is looked at again after %s (%v), want %s", tc.reason, kind, result.RequeueAfter, err, tc.want)
					}
					if asked := requests.Load(); tc.want > 0 && asked != 1 {
						t.Errorf("%s: %s makes %d requests", tc.reason, kind, asked)
					}
					if err := b.Client.Get(t.Context(), client.ObjectKeyFromObject(of.obj), of.obj); err != nil {
						t.Fatal(err)
					}
					ready := apimeta.FindStatusCondition(of.obj.GetConditions(), meta.ReadyCondition)
					said = append(said, fmt.Sprintf("%s: %s", ready.Status, ready.Message))
				}
				if said[0] != said[1] || !strings.HasPrefix(said[0], "False: ") || !strings.Contains(said[0], "429") {
					t.Errorf("%s: %s says %q", tc.reason, kind, said)
				}
			}
		})
	}
}
