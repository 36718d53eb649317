package helmrelease

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/syncer/wake"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/chartutil"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/syncer/release"
)

func TestSoon(t *testing.T) {
	soon := (&Reconciler{Jitter: wake.NewJitter(func() float64 { return 0 })}).soon
	obj := &helmv2.HelmRelease{Spec: helmv2.HelmReleaseSpec{Interval: metav1.Duration{Duration: time.Hour}}}
	if got := soon(obj, release.Outcome{Again: true}); got.RequeueAfter != 0 || got.IsZero() {
		t.Errorf("soon(again) = %+v, want the pauses of the rate limiter: a release that fails for ever must not keep a worker busy", got)
	}
	if got := soon(obj, release.Outcome{Stalled: true}); !got.IsZero() {
		t.Errorf("soon(stalled) = %+v, want nothing", got)
	}
	if got := soon(obj, release.Outcome{}); got.RequeueAfter < 50*time.Minute {
		t.Errorf("soon(done) = %+v, want the interval", got)
	}
	if got := soon(obj, release.Outcome{Held: true}); got.RequeueAfter <= 0 || got.RequeueAfter > heldPoll {
		t.Errorf("soon(held) = %+v, want it to be soon: a confirmation on an object wakes nobody, and what could not be read may be readable again", got)
	}
	obj.Spec.Interval.Duration = 10 * time.Second
	if got := soon(obj, release.Outcome{Held: true}); got.RequeueAfter > 10*time.Second {
		t.Errorf("soon(held) = %+v, want no more than the interval", got)
	}
}

func TestValuesErrorTellsNoSecret(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, value string
		ref           meta.ValuesReference
		want          string
	}{
		"Comma":  {"what follows a comma is a key for --set", "sesame,hunter2", meta.ValuesReference{TargetPath: "password"}, "literal: true"},
		"Anchor": {"the parser names the alias", "password: *hunter2", meta.ValuesReference{}, "not a map in YAML"},
		"Key":    {"the name of a key is no secret", "x", meta.ValuesReference{ValuesKey: "other"}, "'other'"},
	} {
		t.Run(name, func(t *testing.T) {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "s"}, Data: map[string][]byte{"values.yaml": []byte(tc.value)}}
			tc.ref.Kind, tc.ref.Name = "Secret", "s"
			_, err := chartutil.ChartValuesFromReferences(t.Context(), logr.Discard(), fake.NewClientBuilder().WithObjects(secret).Build(), "apps", nil, tc.ref)
			if err == nil {
				t.Fatalf("%s: the values were taken", tc.reason)
			}
			got := valuesError(err).Error()
			if strings.Contains(got, "hunter2") || !strings.Contains(got, tc.want) || !strings.Contains(got, "apps/s") {
				t.Errorf("%s: valuesError() = %q", tc.reason, got)
			}
		})
	}
}

// TestLeft: of a HelmRelease that other labels make another agent's nothing is kept, and
// nobody looks at it again.
func TestLeft(t *testing.T) {
	s := take(t, shop(nil))
	s.Sources.Shard = func(client.Object) bool { return false }
	result, err := s.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.Obj)})
	if err != nil || !result.IsZero() || s.helm.forgotten != 1 {
		t.Errorf("again after %s, forgotten %d times, %v", result.RequeueAfter, s.helm.forgotten, err)
	}
}

// TestUnfinalized: a HelmRelease whose finalizer was taken off goes without being finalized. What
// is kept of it goes as well, by the time that its name is another's.
func TestUnfinalized(t *testing.T) {
	for name, again := range map[string]bool{"Gone": false, "MadeAgain": true} {
		t.Run(name, func(t *testing.T) {
			// A suspended one is reconciled by itself.
			former := func(h *helmv2.HelmRelease) { h.UID, h.Spec.Suspend = "former", true }
			s := take(t, shop(former))
			req := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.Obj)}
			reconcile := func() {
				t.Helper()
				if _, err := s.Reconciler.Reconcile(t.Context(), req); err != nil {
					t.Fatal(err)
				}
			}
			reconcile()
			reconcile()
			if s.helm.forgotten != 0 {
				t.Fatal("one that is there is forgotten")
			}
			var live helmv2.HelmRelease
			if err := s.client.Get(t.Context(), req.NamespacedName, &live); err != nil {
				t.Fatal(err)
			}
			live.Finalizers = nil
			if err := errors.Join(s.client.Update(t.Context(), &live), s.client.Delete(t.Context(), &live)); err != nil {
				t.Fatal(err)
			}
			if again {
				other := shop(former)
				other.UID = "other"
				if err := s.client.Create(t.Context(), other); err != nil {
					t.Fatal(err)
				}
			}
			reconcile()
			if s.helm.forgotten != 1 || s.helm.last != "former" {
				t.Errorf("forgotten %d times, of UID %q", s.helm.forgotten, s.helm.last)
			}
		})
	}
}
