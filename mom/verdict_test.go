package mom

import (
	"slices"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
)

func ready(status metav1.ConditionStatus, generation int64) []metav1.Condition {
	return []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: status, Reason: "Because", Message: "of this", ObservedGeneration: generation}}
}

// complete is a tier with one layer and one child, all of which is ready.
func complete() Facts {
	of := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "n", Name: name, Generation: 2, Annotations: map[string]string{meta.ReconcileRequestAnnotation: "now"}}
	}
	cluster := capibridge.Cluster{
		Namespace: "n", Name: "one", Labels: map[string]string{"tier": "master"}, InfrastructureProvisioned: true, ControlPlaneInitialized: true,
	}
	return Facts{
		Sync: types.NamespacedName{Namespace: "n", Name: "tier"}, Request: "now",
		Sources: []Source{{
			Kind: "GitRepository", Object: &sourcev1.GitRepository{ObjectMeta: of("tier"), Status: sourcev1.GitRepositoryStatus{Conditions: ready("True", 2)}},
			Handled: "now", Artifact: &meta.Artifact{Revision: "main@1"},
		}},
		Kustomizations: []kustomizev1.Kustomization{{
			ObjectMeta: of("tier"), Spec: kustomizev1.KustomizationSpec{SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: "GitRepository", Name: "tier"}},
			Status: kustomizev1.KustomizationStatus{
				Conditions: ready("True", 2), LastAppliedRevision: "main@1", ReconcileRequestStatus: meta.ReconcileRequestStatus{LastHandledReconcileAt: "now"},
				Inventory: &kustomizev1.ResourceInventory{Entries: []kustomizev1.ResourceRef{{ID: "n_a__ConfigMap", Version: "v1"}}},
			},
		}},
		Layers: []v1alpha1.Layer{{
			ObjectMeta: of("master"), Spec: v1alpha1.LayerSpec{ClusterSelector: metav1.LabelSelector{MatchLabels: cluster.Labels}, Agent: &v1alpha1.AgentSpec{}, SourceRef: &v1alpha1.SourceReference{Kind: "GitRepository", Name: "tier"}},
			Status: v1alpha1.LayerStatus{Conditions: ready("True", 2), Revision: "main@1", Children: v1alpha1.ChildCounts{Total: 1}},
		}},
		Children: []v1alpha1.Child{{
			ObjectMeta: of("one"), Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "one"}},
			Status: v1alpha1.ChildStatus{Conditions: ready("True", 2), Layers: []v1alpha1.ChildLayer{{Name: "master"}}, LastHandledReconcileAt: "now"},
		}},
		Clusters: []capibridge.Cluster{cluster},
	}
}

// releases has a HelmRelease, of a chart from a HelmRepository, and what an agent of before
// said of all three.
func releases(f *Facts) {
	of := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "n", Name: name, Generation: 2, Annotations: map[string]string{meta.ReconcileRequestAnnotation: "before"}}
	}
	f.Sources = append(f.Sources,
		Source{Kind: "HelmRepository", Object: &sourcev1.HelmRepository{ObjectMeta: of("charts"), Status: sourcev1.HelmRepositoryStatus{Conditions: ready("True", 2)}}, Handled: "before"},
		Source{Kind: "HelmChart", Object: &sourcev1.HelmChart{ObjectMeta: of("n-web"), Status: sourcev1.HelmChartStatus{Conditions: ready("True", 2)}}, Handled: "before"},
	)
	f.HelmReleases = []helmv2.HelmRelease{{ObjectMeta: of("web"), Status: helmv2.HelmReleaseStatus{
		Conditions: ready("True", 2), ReconcileRequestStatus: meta.ReconcileRequestStatus{LastHandledReconcileAt: "before"},
	}}}
}

// answers has a source of a tier answer.
func answers(s *Source) {
	s.Object.GetAnnotations()[meta.ReconcileRequestAnnotation], s.Handled = "now", "now"
}

// moved has the layer declare that its clusters manage themselves, and the child say something
// about that, or nothing.
func moved(status metav1.ConditionStatus, reason, message string) func(*Facts) {
	return func(f *Facts) {
		f.Layers[0].Spec.Management, f.Children[0].Labels = v1alpha1.ManagementSelf, f.Clusters[0].Labels
		if status != "" {
			f.Children[0].Status.Conditions = append(f.Children[0].Status.Conditions, metav1.Condition{Type: v1alpha1.ManagementCondition, Status: status, Reason: reason, Message: message})
		}
	}
}

// alone has no layer select the Cluster, of which the agent made a child as of all.
func alone(f *Facts) {
	f.Clusters[0].Labels = nil
	f.Children[0].Status.Layers = nil
	f.Children[0].Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNoLayer, ObservedGeneration: 2},
		{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoLayer, Message: "none selects it", ObservedGeneration: 2},
	}
}

// extras has a second layer select the child, which a person suspended before it was in place, and the child as its
// agent leaves it. more changes that.
func extras(more func(*Facts)) func(*Facts) {
	return func(f *Facts) {
		f.Children[0].Labels = f.Clusters[0].Labels
		layer := f.Layers[0].DeepCopy()
		layer.Name, layer.Spec.Suspend, layer.Spec.Agent, layer.Status = "extras", true, nil, v1alpha1.LayerStatus{Conditions: ready("False", 2)}
		f.Layers = append(f.Layers, *layer)
		status := &f.Children[0].Status
		status.Conditions = nil
		for _, kind := range []string{v1alpha1.SeededCondition, v1alpha1.ReadyCondition} {
			status.Conditions = append(status.Conditions, metav1.Condition{
				Type: kind, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonSuspended, Message: "layer extras is suspended and was never pushed", ObservedGeneration: 2,
			})
		}
		status.Layers[0].Ready, status.Report = true, &v1alpha1.Report{Ready: true}
		more(f)
	}
}

func TestJudge(t *testing.T) {
	lapses := metav1.NewTime(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	for name, tc := range map[string]struct {
		reason  string
		change  func(*Facts)
		waiting []string
		depends []string
	}{
		"Complete": {"all is there", func(*Facts) {}, nil, nil},
		"Nothing":  {"a tier that is just begun", func(f *Facts) { *f = Facts{Sync: f.Sync} }, []string{"Kustomization/n/tier: it does not exist yet"}, nil},
		"Before": {"what is said of the time before is not said of now", func(f *Facts) { f.Request = "later" },
			[]string{"Child/n/one: it is not looked at yet", "GitRepository/n/tier: it is not looked at yet", "Kustomization/n/tier: it is not looked at yet"}, nil},
		"Behind": {"a commit came, and is not applied", func(f *Facts) { f.Sources[0].Artifact.Revision = "main@2" },
			[]string{"Kustomization/n/tier: revision main@2 is not applied yet", "Layer/n/master: revision main@2 is not in place yet"}, nil},
		"ReleaseBefore": {"nor is what is said of Helm's objects", releases,
			[]string{"HelmChart/n/n-web: it is not looked at yet", "HelmRelease/n/web: it is not looked at yet", "HelmRepository/n/charts: it is not looked at yet"}, nil},
		"ReleaseSuspended": {"unless a person suspended them", func(f *Facts) {
			releases(f)
			f.Sources[1].Suspend, f.Sources[2].Suspend, f.HelmReleases[0].Spec.Suspend = true, true, true
		}, nil, nil},
		"Release": {"all three answered", func(f *Facts) {
			releases(f)
			answers(&f.Sources[1])
			answers(&f.Sources[2])
			f.HelmReleases[0].Annotations[meta.ReconcileRequestAnnotation], f.HelmReleases[0].Status.LastHandledReconcileAt = "now", "now"
		}, nil, nil},
		"BucketBehind": {"what another source has counts as well", func(f *Facts) {
			f.Sources = append(f.Sources, Source{Kind: "Bucket", Object: &sourcev1.Bucket{
				ObjectMeta: *f.Kustomizations[0].ObjectMeta.DeepCopy(), Status: sourcev1.BucketStatus{Conditions: ready("True", 2)},
			}, Handled: "now", Artifact: &meta.Artifact{Revision: "sha256:2"}})
			apps := f.Kustomizations[0].DeepCopy()
			apps.Name, apps.Spec.SourceRef.Kind, apps.Status.LastAppliedRevision = "apps", "Bucket", "sha256:1"
			f.Kustomizations = append(f.Kustomizations, *apps)
		}, []string{"Kustomization/n/apps: revision sha256:2 is not applied yet"}, nil},
		"ChildBefore": {"a child may be gone since it was said to be ready", func(f *Facts) { f.Children[0].Status.LastHandledReconcileAt = "before" },
			[]string{"Child/n/one: it is not looked at yet"}, nil},
		"ChildUnasked": {"and nobody asked for it yet", func(f *Facts) { f.Children[0].Annotations, f.Children[0].Status.LastHandledReconcileAt = nil, "" },
			[]string{"Child/n/one: it is not looked at yet"}, nil},
		"ChildSuspended": {"one that is suspended answers nothing", func(f *Facts) {
			f.Children[0].Spec.Suspend, f.Children[0].Status.LastHandledReconcileAt = true, "before"
		}, nil, nil},
		"AskedSince": {"a person asked once more, and was answered", func(f *Facts) {
			f.Request, f.Sources, f.Kustomizations = "2026-01-02T03:04:05Z", f.Sources[:0], f.Kustomizations[:0]
			f.Children[0].Annotations[meta.ReconcileRequestAnnotation], f.Children[0].Status.LastHandledReconcileAt = "2026-01-02T03:04:06Z", "2026-01-02T03:04:06Z"
		}, []string{"Kustomization/n/tier: it does not exist yet"}, nil},
		"LayerBehind": {"a commit changes a layer only, and the tier has it", func(f *Facts) {
			f.Sources[0].Artifact.Revision, f.Kustomizations[0].Status.LastAppliedRevision = "main@2", "main@2"
		}, []string{"Layer/n/master: revision main@2 is not in place yet"}, nil},
		"LayerBucket": {"whatever the kind of its source", func(f *Facts) {
			f.Sources = append(f.Sources, Source{Kind: "Bucket", Object: &sourcev1.Bucket{
				ObjectMeta: *f.Kustomizations[0].ObjectMeta.DeepCopy(), Status: sourcev1.BucketStatus{Conditions: ready("True", 2)},
			}, Handled: "now", Artifact: &meta.Artifact{Revision: "sha256:2"}})
			f.Layers[0].Spec.SourceRef.Kind, f.Layers[0].Status.Revision = "Bucket", "sha256:1"
		}, []string{"Layer/n/master: revision sha256:2 is not in place yet"}, nil},
		"LayerOfNone": {"it is in place nowhere, as it is to be", func(f *Facts) {
			f.Sources[0].Artifact.Revision, f.Kustomizations[0].Status.LastAppliedRevision = "main@2", "main@2"
			f.Layers[0].Status.Children.Total = 0
		}, nil, nil},
		"LayerMoved": {"a Rollout says which revision it has, and has not looked", func(f *Facts) {
			f.Layers[0].Status.Revision = "main@0"
			f.Rollouts = []v1alpha1.Rollout{{
				ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r"},
				Spec:       v1alpha1.RolloutSpec{Moves: v1alpha1.RolloutMoves{LayerRef: &v1alpha1.LayerReference{Name: "master"}}},
			}}
		}, []string{"Layer/n/master: it is not looked at yet"}, nil},
		"Unsaid":      {"an object that nobody looked at", func(f *Facts) { f.Kustomizations[0].Status.Conditions = nil }, []string{"Kustomization/n/tier: nothing is said about it yet"}, nil},
		"Failing":     {"an object that is not ready", func(f *Facts) { f.Sources[0].Object.(*sourcev1.GitRepository).Status.Conditions = ready("False", 2) }, []string{"GitRepository/n/tier: Because: of this"}, nil},
		"Changed":     {"what is ready is what was there before a commit", func(f *Facts) { f.Layers[0].Generation = 3 }, []string{"Layer/n/master: it was changed, and is not looked at yet"}, nil},
		"Suspended":   {"who suspends an object does not wait for it", func(f *Facts) { f.Layers[0].Spec.Suspend, f.Layers[0].Status.Conditions = true, ready("False", 2) }, nil, nil},
		"NoChild":     {"Cluster API has a Cluster, and nobody took it up yet", func(f *Facts) { f.Children = nil }, []string{"Cluster/n/one: it is no child yet"}, nil},
		"Unselected":  {"a Cluster of which no layer says anything", func(f *Facts) { f.Children, f.Clusters[0].Labels = nil, nil }, nil, nil},
		"Alone":       {"nor does a child of one", alone, nil, nil},
		"AloneBefore": {"an agent of before said so", func(f *Facts) { alone(f); f.Children[0].Status.LastHandledReconcileAt = "before" }, []string{"Child/n/one: it is not looked at yet"}, nil},
		"AloneNoMore": {"a commit has a layer select it", func(f *Facts) { alone(f); f.Children[0].Labels = f.Layers[0].Spec.ClusterSelector.MatchLabels }, []string{"Child/n/one: NoLayer: none selects it"}, nil},
		"NameTaken": {"a person added another cluster by the name of it", func(f *Facts) { f.Children[0].Spec.ClusterRef = nil },
			[]string{"Cluster/n/one: it is no child yet"}, nil},
		"AloneBuilding": {"what its provider has begun would stay half built", func(f *Facts) {
			alone(f)
			f.Clusters[0].InfrastructureProvisioned, f.Clusters[0].ControlPlaneInitialized = false, false
		}, []string{"Cluster/n/one: its infrastructure is not provisioned yet"}, nil},
		"AloneStarting": {"nor would anybody join its control plane", func(f *Facts) { alone(f); f.Clusters[0].ControlPlaneInitialized = false },
			[]string{"Cluster/n/one: its control plane is not initialized yet"}, nil},
		"UnselectedBuilding": {"also before it is a child", func(f *Facts) {
			alone(f)
			f.Children, f.Clusters[0].InfrastructureProvisioned = nil, false
		}, []string{"Cluster/n/one: its infrastructure is not provisioned yet"}, nil},
		"AloneSuspended": {"a person wants it to stand", func(f *Facts) {
			alone(f)
			f.Children[0].Spec.Suspend, f.Clusters[0].InfrastructureProvisioned = true, false
		}, nil, nil},
		"AlonePaused": {"it is not built while it is paused", func(f *Facts) {
			alone(f)
			f.Clusters[0].Paused, f.Clusters[0].InfrastructureProvisioned = true, false
		}, nil, nil},
		"AloneGoing": {"it is being taken down", func(f *Facts) {
			alone(f)
			f.Clusters[0].Deleting, f.Clusters[0].InfrastructureProvisioned = true, false
		}, nil, nil},
		"Elsewhere":   {"layers select in their own namespace", func(f *Facts) { f.Children, f.Clusters[0].Namespace = nil, "other" }, nil, nil},
		"Deleted":     {"a Cluster that goes is not seeded", func(f *Facts) { f.Children, f.Clusters[0].Deleting = nil, true }, nil, nil},
		"Child":       {"a child that is not ready", func(f *Facts) { f.Children[0].Status.Conditions = ready("Unknown", 2) }, []string{"Child/n/one: Because: of this"}, nil},
		"Unmoved":     {"a layer says that the cluster manages itself, and nobody looked at that", moved("", "", ""), []string{"Child/n/one: Management: Layer master declares self, which is not looked at yet"}, nil},
		"MovedHere":   {"nor since it says so", moved("True", v1alpha1.ReasonManagedHere, "m"), []string{"Child/n/one: Management: Layer master declares self, which is not looked at yet"}, nil},
		"Moving":      {"half way, nobody would manage it", moved("False", v1alpha1.ReasonPivotRunning, "at step copy"), []string{"Child/n/one: Management: PivotRunning: at step copy"}, nil},
		"MoveBlocked": {"nor does it get there by itself", moved("False", v1alpha1.ReasonPivotBlocked, "NotPaused: x"), []string{"Child/n/one: Management: PivotBlocked: NotPaused: x"}, nil},
		"Moved":       {"it manages itself", moved("True", v1alpha1.ReasonManagedElsewhere, "m"), nil, nil},
		"MovingBack": {"what nobody declares any more is brought to its end", func(f *Facts) {
			moved("False", v1alpha1.ReasonPivotRunning, "at step copy")(f)
			f.Layers[0].Spec.Management = ""
		}, []string{"Child/n/one: Management: PivotRunning: at step copy"}, nil},
		"MoveSuspended": {"a layer that is suspended declares nothing", func(f *Facts) {
			moved("", "", "")(f)
			f.Layers[0].Spec.Suspend = true
		}, nil, nil},
		"MoveOfNone": {"without a selector a layer selects nothing", func(f *Facts) {
			moved("", "", "")(f)
			f.Children, f.Layers[0].Spec.ClusterSelector = nil, metav1.LabelSelector{}
		}, nil, nil},
		"LayerSuspended": {"nor does who suspends a layer before it was in place", extras(func(*Facts) {}), nil, nil},
		"LayerSuspendedHalfway": {"or while it was not", extras(func(f *Facts) {
			f.Children[0].Status.Layers = append(f.Children[0].Status.Layers, v1alpha1.ChildLayer{Name: "extras", Suspended: true, Reason: "ApplyFailed"})
		}), nil, nil},
		"LayerSuspendedAlone": {"one that nothing else selects is as one that nothing does", extras(func(f *Facts) {
			f.Layers, f.Children[0].Status.Layers, f.Children[0].Status.Report = f.Layers[1:], nil, nil
		}), nil, nil},
		"LayerSuspendedBehind": {"another layer is not in place", extras(func(f *Facts) {
			f.Children[0].Status.Layers[0] = v1alpha1.ChildLayer{Name: "master", Reason: "ApplyFailed", Message: "no"}
		}), []string{"Child/n/one: layer master: ApplyFailed: no"}, nil},
		"LayerSuspendedNew": {"nor one that a commit added", extras(func(f *Facts) {
			added := *f.Layers[0].DeepCopy()
			added.Name = "base"
			f.Layers = append(f.Layers, added)
		}), []string{"Child/n/one: layer base is not looked at yet"}, nil},
		"LayerSuspendedBefore": {"the child changed since", extras(func(f *Facts) { f.Children[0].Generation = 3 }),
			[]string{"Child/n/one: it was changed, and is not looked at yet"}, nil},
		"LayerSuspendedUnreported": {"nothing is known of what the child syncs", extras(func(f *Facts) { f.Children[0].Status.Report = nil }),
			[]string{"Child/n/one: its agent has not reported yet"}, nil},
		"LayerSuspendedSilent": {"nor any more", extras(func(f *Facts) { f.Children[0].Status.HeardAt = &lapses }),
			[]string{"Child/n/one: it was last heard of at 2030-01-02T03:04:05Z"}, nil},
		"LayerSuspendedFailing": {"that is not in place", extras(func(f *Facts) {
			f.Children[0].Status.Report = &v1alpha1.Report{Reason: "KustomizationFailing", Message: "apps"}
		}), []string{"Child/n/one: KustomizationFailing: apps"}, nil},
		"AllBelowSuspended": {"nobody knows whether all below a child is meant to stand", extras(func(f *Facts) {
			f.Children[0].Status.Conditions[0].Status, f.Children[0].Status.Conditions[0].Reason = metav1.ConditionTrue, v1alpha1.ReasonSucceeded
			f.Children[0].Status.Conditions[1].Message = "all Kustomizations and HelmReleases, 2, are suspended"
		}), []string{"Child/n/one: Suspended: all Kustomizations and HelmReleases, 2, are suspended"}, nil},
		"NoAgent": {"it may go, and says what ends with it", func(f *Facts) { f.Layers[0].Spec.Agent = nil },
			nil, []string{"Child/n/one: it has no agent of its own, and gets what Git says only from here"}},
		"Credential": {"a credential that lapses", func(f *Facts) {
			f.Children[0].Status.Credentials = []v1alpha1.ChildCredential{{Name: "git"}, {Name: "cloud", ExpiresAt: &lapses}}
		}, nil, []string{"Child/n/one: credential cloud lapses at 2030-01-02T03:04:05Z unless it is renewed from here"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := complete()
			tc.change(&f)
			got := Judge(f)
			if got.Ready != (len(tc.waiting) == 0) || !slices.Equal(got.Waiting, tc.waiting) || !slices.Equal(got.Depends, tc.depends) {
				t.Errorf("%s: got %+v, want waiting %q, depends %q", tc.reason, got, tc.waiting, tc.depends)
			}
		})
	}
}

// TestToAsk: what was left ready is asked when the tier has what Git has now, and once.
func TestToAsk(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*Facts)
		want   []string
	}{
		"Asked":    {"all was", func(*Facts) {}, nil},
		"Unsynced": {"what it is to have is not known yet", func(f *Facts) { f.Children[0].Annotations, f.Kustomizations[0].Status.LastHandledReconcileAt = nil, "" }, nil},
		"Behind": {"nor applied", func(f *Facts) {
			f.Children[0].Annotations, f.Kustomizations[0].Status.LastAppliedRevision = nil, "main@0"
		}, nil},
		"Left": {"a cluster that goes on", func(f *Facts) {
			f.Children[0].Annotations[meta.ReconcileRequestAnnotation] = "before"
			other := *f.Kustomizations[0].DeepCopy()
			other.Name, other.Annotations = "other", nil
			suspended := *other.DeepCopy()
			suspended.Name, suspended.Spec.Suspend = "suspended", true
			f.Kustomizations = append(f.Kustomizations, other, suspended)
			f.Rollouts = []v1alpha1.Rollout{{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r"}}}
		}, []string{"other", "r", "one"}},
		"Sources": {"a chart is made of what its source has", releases, []string{"charts"}},
		"Charts": {"and a release of its chart", func(f *Facts) {
			releases(f)
			answers(&f.Sources[1])
		}, []string{"n-web"}},
		"Releases": {"which has answered", func(f *Facts) {
			releases(f)
			answers(&f.Sources[1])
			answers(&f.Sources[2])
		}, []string{"web"}},
		"SuspendedSource": {"one that is suspended is not waited for", func(f *Facts) {
			releases(f)
			f.Sources[1].Suspend = true
			answers(&f.Sources[2])
		}, []string{"web"}},
		"Suspended": {"it would not answer", func(f *Facts) { f.Children[0].Annotations, f.Children[0].Spec.Suspend = nil, true }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := complete()
			tc.change(&f)
			var got []string
			for _, o := range f.toAsk() {
				got = append(got, o.GetName())
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%s: asked are %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestJudgeHeld(t *testing.T) {
	f := complete()
	f.Kustomizations[0].Status.Conditions = append(ready("False", 2), metav1.Condition{
		Type: v1alpha1.CreateHeldCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCreateHeld, Message: "Cluster/n/two: not created",
	})
	got := Judge(f)
	if got.Ready || len(got.Held) != 1 || !strings.Contains(got.Held[0], "Kustomization/n/tier: CreateHeld: ") || !strings.Contains(got.Held[0], "cascade approve create") {
		t.Errorf("got %+v", got)
	}
}
