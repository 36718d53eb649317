package report

import (
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	generatorv1 "github.com/fluxcd/source-watcher/api/v2/v1beta1"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

var start = metav1.NewTime(time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC))

func later(d time.Duration) metav1.Time { return metav1.NewTime(start.Add(d)) }

func ready(status metav1.ConditionStatus, reason, message string) []metav1.Condition {
	return []metav1.Condition{{Type: "Ready", Status: status, Reason: reason, Message: message, LastTransitionTime: start}}
}

func repositoryAt(name, revision string, conditions []metav1.Condition) *sourcev1.GitRepository {
	o := &sourcev1.GitRepository{}
	o.Namespace, o.Name = "cascade-system", name
	o.Status.Conditions = conditions
	if revision != "" {
		o.Status.Artifact = &fluxmeta.Artifact{Revision: revision}
	}
	return o
}

func kustomization(name string, objects int, conditions []metav1.Condition) kustomizev1.Kustomization {
	o := kustomizev1.Kustomization{}
	o.Namespace, o.Name = "cascade-system", name
	o.Status.Conditions = conditions
	o.Status.Inventory = &kustomizev1.ResourceInventory{Entries: make([]kustomizev1.ResourceRef, objects)}
	return o
}

func releaseNamed(name string, objects int, conditions []metav1.Condition) helmv2.HelmRelease {
	o := helmv2.HelmRelease{}
	o.Namespace, o.Name = "cascade-system", name
	o.Status.Conditions = conditions
	o.Status.Inventory = &helmv2.ResourceInventory{Entries: make([]helmv2.ResourceRef, objects)}
	return o
}

func childNamed(name string, conditions []metav1.Condition) v1alpha1.Child {
	o := v1alpha1.Child{}
	o.Namespace, o.Name = "fleet", name
	o.CreationTimestamp = start
	o.Status.Conditions = conditions
	return o
}

// belowOf is what is known of clusters below after these Children were seen.
func belowOf(children ...v1alpha1.Child) *Below {
	b := &Below{}
	for i := range children {
		b.Put(&children[i])
	}
	return b
}

func TestCompute(t *testing.T) {
	yes := ready(metav1.ConditionTrue, "Succeeded", "all is well")
	suspended := kustomization("off", 2, ready(metav1.ConditionFalse, "BuildFailed", "old"))
	suspended.Spec.Suspend = true
	releaseOff := releaseNamed("off", 1, nil)
	releaseOff.Spec.Suspend = true
	sourceOff := repositoryAt("off", "main@sha1:1", ready(metav1.ConditionFalse, "GitOperationFailed", "old"))
	sourceOff.Spec.Suspend = true
	generator := func(reconcile string, conditions []metav1.Condition) *generatorv1.ArtifactGenerator {
		o := &generatorv1.ArtifactGenerator{}
		o.Namespace, o.Name, o.Annotations = "cascade-system", "parts", map[string]string{generatorv1.ReconcileAnnotation: reconcile}
		o.Status.Conditions = conditions
		return o
	}
	stale := kustomization("stale", 1, yes)
	stale.Generation, stale.Status.ObservedGeneration = 2, 1
	for name, tc := range map[string]struct {
		reason string
		facts  Facts
		want   v1alpha1.Report
	}{
		"Empty": {"a tier that has nothing to do is ready", Facts{Agent: "v1"}, v1alpha1.Report{Agent: "v1", Ready: true, Reason: "Succeeded"}},
		"Ready": {
			"one source is named by its revision alone; objects are counted",
			Facts{Sources: []client.Object{repositoryAt("fleet", "main@sha1:1", yes)}, Kustomizations: []kustomizev1.Kustomization{kustomization("a", 3, yes), kustomization("b", 4, yes)}},
			v1alpha1.Report{Ready: true, Reason: "Succeeded", Revision: "main@sha1:1", Objects: 7},
		},
		"Sources": {
			"several sources are told apart, in an order that does not change",
			Facts{Sources: []client.Object{repositoryAt("z", "main@sha1:2", yes), repositoryAt("a", "main@sha1:1", yes)}},
			v1alpha1.Report{Ready: true, Reason: "Succeeded", Revision: "a=main@sha1:1,z=main@sha1:2"},
		},
		"Release": {
			"a release counts as a Kustomization does",
			Facts{Releases: []helmv2.HelmRelease{releaseNamed("mesh", 2, ready(metav1.ConditionFalse, "UpgradeFailed", "no"))}},
			v1alpha1.Report{
				Reason: "HelmReleaseFailing", Message: "HelmRelease/cascade-system/mesh: UpgradeFailed: no", Objects: 2,
				Failing: []v1alpha1.Failure{{Name: "HelmRelease/cascade-system/mesh", Reason: "UpgradeFailed", Message: "no"}},
			},
		},
		"Registry": {
			"a Helm repository that is a registry has no status, and lacks nothing",
			Facts{Sources: []client.Object{&sourcev1.HelmRepository{Spec: sourcev1.HelmRepositorySpec{Type: "oci"}}}},
			v1alpha1.Report{Ready: true, Reason: "Succeeded"},
		},
		"Failing": {
			"the first failure is the reason, a person sees it at the top",
			Facts{Kustomizations: []kustomizev1.Kustomization{kustomization("a", 1, yes), kustomization("b", 0, ready(metav1.ConditionFalse, "BuildFailed", "no such file"))}},
			v1alpha1.Report{Reason: "KustomizationFailing", Message: "Kustomization/cascade-system/b: BuildFailed: no such file", Objects: 1,
				Failing: []v1alpha1.Failure{{Name: "Kustomization/cascade-system/b", Reason: "BuildFailed", Message: "no such file"}}},
		},
		"SourceFirst": {
			"a source that fails is the cause of what is made of it",
			Facts{
				Sources:        []client.Object{repositoryAt("fleet", "", ready(metav1.ConditionFalse, "GitOperationFailed", "gone"))},
				Kustomizations: []kustomizev1.Kustomization{kustomization("a", 0, ready(metav1.ConditionFalse, "ArtifactFailed", "none"))},
			},
			v1alpha1.Report{Reason: "SourceFailing", Message: "GitRepository/cascade-system/fleet: GitOperationFailed: gone", Failing: []v1alpha1.Failure{
				{Name: "GitRepository/cascade-system/fleet", Reason: "GitOperationFailed", Message: "gone"},
				{Name: "Kustomization/cascade-system/a", Reason: "ArtifactFailed", Message: "none"},
			}},
		},
		"GeneratorFailing": {
			"what it made stays ready, and so does what is applied of that",
			Facts{Sources: []client.Object{generator("", ready(metav1.ConditionFalse, "BuildFailed", "no such file"))}, Kustomizations: []kustomizev1.Kustomization{kustomization("a", 1, yes)}},
			v1alpha1.Report{Reason: "SourceFailing", Message: "ArtifactGenerator/cascade-system/parts: BuildFailed: no such file", Objects: 1, Failing: []v1alpha1.Failure{
				{Name: "ArtifactGenerator/cascade-system/parts", Reason: "BuildFailed", Message: "no such file"},
			}},
		},
		"GeneratorDisabled": {
			"a person disabled it",
			Facts{Sources: []client.Object{generator(generatorv1.DisabledValue, ready(metav1.ConditionFalse, "BuildFailed", "old"))}},
			v1alpha1.Report{Ready: true, Reason: "Succeeded", Suspended: 1},
		},
		"NoCondition": {
			"what nobody has looked at yet is on its way, not failing", Facts{Kustomizations: []kustomizev1.Kustomization{kustomization("a", 0, nil)}},
			v1alpha1.Report{Reason: "Progressing", Message: "Kustomization/cascade-system/a: Progressing", Failing: []v1alpha1.Failure{{Name: "Kustomization/cascade-system/a", Reason: "Progressing"}}},
		},
		"Stale": {"INV8: ready of an earlier generation is not ready", Facts{Kustomizations: []kustomizev1.Kustomization{stale}}, v1alpha1.Report{Reason: "Progressing", Message: "Kustomization/cascade-system/stale: Progressing", Objects: 1, Failing: []v1alpha1.Failure{{Name: "Kustomization/cascade-system/stale", Reason: "Progressing"}}}},
		"Suspended": {
			"a tier that a person suspended whole does not sync, and still answers for its objects",
			Facts{Kustomizations: []kustomizev1.Kustomization{suspended}, Releases: []helmv2.HelmRelease{releaseOff}},
			v1alpha1.Report{Reason: "Suspended", Message: "all Kustomizations and HelmReleases, 2, are suspended", Objects: 3, Suspended: 2},
		},
		"SuspendedPart": {
			"what is suspended among others is no failure, and is counted",
			Facts{Kustomizations: []kustomizev1.Kustomization{suspended, kustomization("a", 1, yes)}, Sources: []client.Object{sourceOff}},
			v1alpha1.Report{Ready: true, Reason: "Succeeded", Objects: 3, Suspended: 2, Revision: "main@sha1:1"},
		},
		"SuspendedSource": {
			"a source that is suspended syncs nothing itself", Facts{Sources: []client.Object{sourceOff}},
			v1alpha1.Report{Ready: true, Reason: "Succeeded", Suspended: 1, Revision: "main@sha1:1"},
		},
		"Children": {
			"a child that is not ready is no failure of this tier, which works without it",
			Facts{Below: belowOf(childNamed("a", yes), childNamed("b", ready(metav1.ConditionFalse, "Unreachable", "no route")))},
			v1alpha1.Report{Ready: true, Reason: "Succeeded", Children: &v1alpha1.ReportCounts{
				Total: 2, Ready: 1,
				ByReason: []v1alpha1.NamedCount{{Name: "Succeeded", Count: 1}, {Name: "Unreachable", Count: 1}}, ByRevision: []v1alpha1.NamedCount{{Count: 2}},
			}, Tiers: []v1alpha1.TierRow{
				{Path: "fleet/b", Reason: "Unreachable", Message: "no route", Since: start}, {Path: "fleet/a", Ready: true, Reason: "Succeeded", Since: start},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.want.Since, tc.want.Brought = later(time.Minute), &v1alpha1.ReportBrought{Complete: true}
			got := Compute(tc.facts, nil, later(time.Minute))
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("%s\nCompute(): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestSince(t *testing.T) {
	failing := Facts{Kustomizations: []kustomizev1.Kustomization{kustomization("a", 0, ready(metav1.ConditionFalse, "BuildFailed", "one"))}}
	other := Facts{Kustomizations: []kustomizev1.Kustomization{kustomization("b", 0, ready(metav1.ConditionFalse, "BuildFailed", "two"))}}
	well := Compute(Facts{}, nil, start)
	still := Compute(Facts{Agent: "v2"}, well, later(time.Hour))
	if !still.Since.Equal(&start) {
		t.Errorf("Since = %s while nothing changed, want %s", still.Since, start)
	}
	broken := Compute(failing, still, later(2*time.Hour))
	if want := later(2 * time.Hour); !broken.Since.Equal(&want) {
		t.Errorf("Since = %s after it broke, want %s", broken.Since, want)
	}
	again := Compute(other, broken, later(3*time.Hour))
	if !again.Since.Equal(&broken.Since) {
		t.Errorf("Since = %s while the reason is the same, want %s", again.Since, broken.Since)
	}
}
