package trace

import (
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/source"
)

const (
	first  = "main@sha1:1111111111111111111111111111111111111111"
	second = "main@sha1:2222222222222222222222222222222222222222"
)

var (
	began = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	ended = began.Add(3 * time.Second)
	apps  = source.Key{Kind: "GitRepository", NamespacedName: types.NamespacedName{Namespace: "team", Name: "apps"}}
)

func kustomization(applied, attempted string, conditions ...metav1.Condition) *kustomizev1.Kustomization {
	return &kustomizev1.Kustomization{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"},
		Spec:       kustomizev1.KustomizationSpec{SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "apps"}},
		Status:     kustomizev1.KustomizationStatus{LastAppliedRevision: applied, LastAttemptedRevision: attempted, Conditions: conditions},
	}
}

func condition(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(began.Add(-time.Minute))}
}

func TestOfKustomization(t *testing.T) {
	ready := condition(meta.ReadyCondition, metav1.ConditionTrue, meta.ReconciliationSucceededReason)
	failed := condition(meta.ReadyCondition, metav1.ConditionFalse, meta.HealthCheckFailedReason)
	working := condition(meta.ReconcilingCondition, metav1.ConditionTrue, meta.ProgressingReason)
	step := func(revision, reason string, failed bool, began time.Time) *Step {
		return &Step{Kind: "Kustomization", Name: types.NamespacedName{Namespace: "team", Name: "web"}, Revision: revision, Source: &apps, Began: began, Ended: ended, Reason: reason, Failed: failed}
	}
	for _, test := range []struct {
		reason        string
		before, after *kustomizev1.Kustomization
		want          *Step
	}{
		{"applied at once", kustomization(first, first, ready), kustomization(second, second, ready), step(second, meta.ReconciliationSucceededReason, false, began)},
		{"applied by the last of several reconciles", kustomization(first, second, working), kustomization(second, second, ready),
			step(second, meta.ReconciliationSucceededReason, false, began.Add(-time.Minute))},
		{"nothing new", kustomization(first, first, ready), kustomization(first, first, ready), nil},
		{"failed at a new revision", kustomization(first, first, ready), kustomization(first, second, failed), step(second, meta.HealthCheckFailedReason, true, began)},
		{"failed again at the same one", kustomization(first, second, failed), kustomization(first, second, failed), nil},
		{"failed at what it applied before: no commit did that", kustomization(first, first, ready), kustomization(first, first, failed), nil},
		{"waits for another", kustomization(first, first, ready), kustomization(first, second, condition(meta.ReadyCondition, metav1.ConditionFalse, meta.DependencyNotReadyReason)), nil},
		{"still at it", kustomization(first, first, ready), kustomization(first, second, condition(meta.ReadyCondition, metav1.ConditionUnknown, meta.ProgressingReason)), nil},
		{"without conditions", kustomization("", ""), kustomization("", ""), nil},
	} {
		t.Run(test.reason, func(t *testing.T) {
			s, ok := OfKustomization(WasKustomization(test.before), test.after, began, ended)
			var got *Step
			if ok {
				got = &s
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want, +got:\n%s", diff)
			}
		})
	}
}

// TestWasIsOfBefore: the reconcile changes conditions in place.
func TestWasIsOfBefore(t *testing.T) {
	obj := kustomization(first, second, condition(meta.ReadyCondition, metav1.ConditionTrue, meta.ReconciliationSucceededReason))
	was := WasKustomization(obj)
	obj.Status.Conditions[0] = condition(meta.ReadyCondition, metav1.ConditionFalse, meta.BuildFailedReason)
	if _, ok := OfKustomization(was, obj, began, ended); !ok {
		t.Error("a Kustomization that was ready and failed has no step")
	}
}

func TestOfHelmRelease(t *testing.T) {
	const old, chart = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	release := func(installed, attempted string, ready metav1.ConditionStatus) *helmv2.HelmRelease {
		return &helmv2.HelmRelease{
			Spec: helmv2.HelmReleaseSpec{ChartRef: &helmv2.CrossNamespaceSourceReference{Kind: "OCIRepository", Namespace: "charts", Name: "web"}},
			Status: helmv2.HelmReleaseStatus{
				LastAttemptedRevisionDigest: attempted, History: helmv2.Snapshots{{OCIDigest: installed, Status: "deployed"}},
				Conditions: []metav1.Condition{condition(meta.ReadyCondition, ready, "Said")},
			},
		}
	}
	s, ok := OfHelmRelease(WasHelmRelease(release(old, old, metav1.ConditionTrue)), release(chart, chart, metav1.ConditionTrue), began, ended)
	if !ok || s.Revision != chart || s.Failed || s.Source == nil || s.Source.Name != "web" || s.Source.Namespace != "charts" {
		t.Errorf("an upgrade is %+v, %t", s, ok)
	}
	s, ok = OfHelmRelease(WasHelmRelease(release(old, old, metav1.ConditionTrue)), release(old, chart, metav1.ConditionFalse), began, ended)
	if !ok || s.Revision != chart || !s.Failed {
		t.Errorf("an upgrade that failed is %+v, %t", s, ok)
	}
	if s, ok := OfHelmRelease(WasHelmRelease(release(old, old, metav1.ConditionTrue)), release(old, old, metav1.ConditionTrue), began, ended); ok {
		t.Errorf("nothing new is %+v", s)
	}
}

func TestOfArtifact(t *testing.T) {
	for _, test := range []struct {
		reason        string
		before, after *meta.Artifact
		want          string
	}{
		{"the first", nil, &meta.Artifact{Revision: first}, first},
		{"another", &meta.Artifact{Revision: first}, &meta.Artifact{Revision: second}, second},
		{"the same", &meta.Artifact{Revision: first}, &meta.Artifact{Revision: first}, ""},
		{"none", nil, nil, ""},
		{"taken away", &meta.Artifact{Revision: first}, nil, ""},
	} {
		if s, ok := OfArtifact(apps, test.before, test.after, began, ended); ok != (test.want != "") || s.Revision != test.want {
			t.Errorf("%s: %+v, %t", test.reason, s, ok)
		}
	}
}

func TestOfLayers(t *testing.T) {
	child := func(layers ...v1alpha1.ChildLayer) *v1alpha1.Child {
		return &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "eu-1"}, Status: v1alpha1.ChildStatus{Layers: layers}}
	}
	before := child(
		v1alpha1.ChildLayer{Name: "base", Revision: first, LastAttemptedRevision: first, Ready: true},
		v1alpha1.ChildLayer{Name: "same", Revision: first, LastAttemptedRevision: first, Ready: true},
		v1alpha1.ChildLayer{Name: "bad", Revision: first, LastAttemptedRevision: first, Ready: true},
	)
	after := child(
		v1alpha1.ChildLayer{Name: "base", Revision: second, LastAttemptedRevision: second, Ready: true, Reason: "Applied"},
		v1alpha1.ChildLayer{Name: "same", Revision: first, LastAttemptedRevision: first, Ready: true},
		v1alpha1.ChildLayer{Name: "bad", Revision: first, LastAttemptedRevision: second, Reason: "SeedFailed"},
		v1alpha1.ChildLayer{Name: "new", Revision: first, LastAttemptedRevision: first, Ready: true, Reason: "Applied"},
	)
	of := types.NamespacedName{Namespace: "fleet", Name: "eu-1"}
	want := []Step{
		{Kind: "Child", Name: of, Layer: "base", Revision: second, Source: &apps, Began: began, Ended: ended, Reason: "Applied"},
		{Kind: "Child", Name: of, Layer: "bad", Revision: second, Began: began, Ended: ended, Reason: "SeedFailed", Failed: true},
		{Kind: "Child", Name: of, Layer: "new", Revision: first, Began: began, Ended: ended, Reason: "Applied"},
	}
	if diff := cmp.Diff(want, OfLayers(before, after, map[string]source.Key{"base": apps}, began, ended)); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}
