package kustomization

import (
	"strings"
	"testing"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestOutstanding: of a Cluster that is applied, the release that makes it is asked first, and
// then the API server, for the objects that are there.
func TestOutstanding(t *testing.T) {
	const r2 = "main@sha1:2"
	released := func(change func(*helmv2.HelmRelease)) *helmv2.HelmRelease {
		h := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "made", Generation: 2}}
		h.Status.ObservedGeneration = 2
		h.Status.Inventory = &helmv2.ResourceInventory{Entries: []helmv2.ResourceRef{{ID: "apps_made_cluster.x-k8s.io_Cluster", Version: "v1beta2"}}}
		h.Status.Conditions = []metav1.Condition{{Type: meta.ReadyCondition, Status: metav1.ConditionTrue, ObservedGeneration: 2}}
		if change != nil {
			change(h)
		}
		return h
	}
	release := "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {namespace: apps, name: made}\nspec: {chart: {spec: {chart: c, sourceRef: {kind: GitRepository, name: base}}}}\n"
	for name, tc := range map[string]struct {
		reason  string
		release *helmv2.HelmRelease
		want    string
		refused bool
	}{
		"Released": {reason: "the release is done, and nobody has made its Cluster", release: released(nil), want: "there is no Cluster apps/made yet"},
		"Unseen":   {reason: "it was not released since", release: released(func(h *helmv2.HelmRelease) { h.Status.ObservedGeneration = 1 }), want: "HelmRelease apps/made was not released since it was changed"},
		"Values": {reason: "its values changed with the revision, and its generation did not", release: released(func(h *helmv2.HelmRelease) {
			h.Annotations = map[string]string{v1alpha1.RolloutRevisionAnnotation: r2, v1alpha1.ReleasedRevisionAnnotation: "main@sha1:1"}
		}), want: "HelmRelease apps/made was not released since it was changed"},
		"Noted": {reason: "it has them", release: released(func(h *helmv2.HelmRelease) {
			h.Annotations = map[string]string{v1alpha1.RolloutRevisionAnnotation: r2, v1alpha1.ReleasedRevisionAnnotation: r2}
		}), want: "there is no Cluster apps/made yet"},
		"Failed": {reason: "the upgrade failed", release: released(func(h *helmv2.HelmRelease) {
			h.Status.Conditions[0].Status, h.Status.Conditions[0].Message = metav1.ConditionFalse, "no"
		}), want: "HelmRelease apps/made is not ready: no"},
		"Suspended": {reason: "nobody will release it", release: released(func(h *helmv2.HelmRelease) { h.Spec.Suspend = true }), want: "HelmRelease apps/made is suspended"},
		"Refused": {reason: "the step is refused", release: released(func(h *helmv2.HelmRelease) {
			h.Status.ObservedGeneration = 1
			h.Status.Conditions[0].Status, h.Status.Conditions[0].Reason, h.Status.Conditions[0].Message = metav1.ConditionFalse, v1alpha1.ReasonUnsupportedVersionStep, "go to 1.37 first"
		}), want: "go to 1.37 first", refused: true},
		"RefusedBefore": {reason: "which was of the declaration before", release: released(func(h *helmv2.HelmRelease) {
			h.Generation = 3
			h.Status.Conditions[0].Status, h.Status.Conditions[0].Reason = metav1.ConditionFalse, v1alpha1.ReasonUnsupportedVersionStep
		}), want: "was not released"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("waves", nil)
			r.child("made", "waves="+r2)
			r.objects = append(r.objects, tc.release)
			s := r.take(nil)
			newest := snapshotAt(t, r2, map[string]string{"fleet/made.yaml": release})
			if end := s.composes(t, newest); end != nil {
				t.Fatalf("it ended as %+v", end)
			}
			s.noteComposition(s.run, true)
			c, cluster := s.Composed(s.name()), types.NamespacedName{Namespace: "apps", Name: "made"}
			if c.Applied(cluster) != r2 {
				t.Fatalf("applied is %q", c.Applied(cluster))
			}
			if got, refusal := c.Outstanding(t.Context(), cluster), c.Refusal(t.Context(), cluster); !strings.Contains(got, tc.want) || (refusal == got) != tc.refused {
				t.Errorf("%s: Outstanding() = %q, Refusal() = %q, want %q, %t", tc.reason, got, refusal, tc.want, tc.refused)
			}
			// A look holds for a while, and no longer than until something is applied.
			if err := s.client.Delete(t.Context(), tc.release); err != nil {
				t.Fatal(err)
			}
			held := tc.want
			if strings.HasPrefix(tc.want, "there is no Cluster") {
				held = "cannot read" // what is not outstanding is looked at each time
			}
			if got := c.Outstanding(t.Context(), cluster); !strings.Contains(got, held) {
				t.Errorf("it looked again at once, and says %q", got)
			}
			if got := s.Composed(s.name()).Outstanding(t.Context(), cluster); !strings.Contains(got, held) {
				t.Errorf("another look at the same composition says %q", got)
			}
			s.noteComposition(s.run, true)
			if got := s.Composed(s.name()).Outstanding(t.Context(), cluster); !strings.Contains(got, "cannot read HelmRelease apps/made") {
				t.Errorf("something was applied since, and it says %q", got)
			}
			s.now = s.now.Add(2 * outstandingHolds)
			if got := c.Outstanding(t.Context(), cluster); !strings.Contains(got, "cannot read HelmRelease apps/made") {
				t.Errorf("what cannot be read is %q", got)
			}
		})
	}
}
