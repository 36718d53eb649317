package remote

import (
	"fmt"
	"testing"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/account"
)

// TestStandingOf: what counts as in place, on its way, failed, out of reach and waiting.
func TestStandingOf(t *testing.T) {
	connected := func(status metav1.ConditionStatus, reason string) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: status, Reason: reason, Message: "m"}}
	}
	yes := connected(metav1.ConditionTrue, "Succeeded")
	moved := append(connected(metav1.ConditionTrue, "Succeeded"), metav1.Condition{Type: v1alpha1.ManagedElsewhereCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonManagedElsewhere})
	entry := func(ready bool, reason, revision string, generation int64) *v1alpha1.ChildLayer {
		return &v1alpha1.ChildLayer{Name: "base", Ready: ready, Reason: reason, Revision: revision, ObservedGeneration: generation}
	}
	for name, tc := range map[string]struct {
		reason     string
		conditions []metav1.Condition
		entry      *v1alpha1.ChildLayer
		want       standing
		why        string
	}{
		"Current":       {"it has the generation and the revision", yes, entry(true, "Succeeded", "r2", 2), isCurrent, "Progressing"},
		"OldRevision":   {"it was in place at the commit before (C17)", yes, entry(true, "Succeeded", "r1", 2), isUpdating, "Progressing"},
		"OldGeneration": {"it was in place before the Layer was changed (C17)", yes, entry(true, "Succeeded", "r2", 1), isUpdating, "Progressing"},
		"New":           {"the child was not looked at yet", yes, nil, isWaiting, "Progressing"},
		"Pushing":       {"the agent is being started", yes, entry(false, "AgentNotReady", "r1", 2), isUpdating, "AgentNotReady"},
		"Broken":        {"the directory cannot be built", yes, entry(false, "BuildFailed", "r1", 2), isFailed, "BuildFailed"},
		"Held":          {"deletes wait for a person", yes, entry(false, "PruneBlocked", "r2", 2), isFailed, "PruneBlocked"},
		"Superseded":    {"another management cluster has the child", yes, entry(false, "Superseded", "r1", 2), isFailed, "Superseded"},
		"Dependency":    {"another layer comes first", yes, entry(false, "DependencyNotReady", "", 2), isWaiting, "DependencyNotReady"},
		"Dead":          {"INV8: it was in place once, and nobody knows now", connected(metav1.ConditionFalse, "Unreachable"), entry(true, "Succeeded", "r2", 2), isUnreachable, "Unreachable"},
		"Another":       {"another cluster answers", connected(metav1.ConditionFalse, "IdentityChanged"), entry(true, "Succeeded", "r2", 2), isUnreachable, "IdentityChanged"},
		"Building":      {"a cluster that is being built is not out of reach (C19)", connected(metav1.ConditionFalse, "ClusterNotReady"), nil, isWaiting, "ClusterNotReady"},
		"Paused":        {"a person paused the Cluster", connected(metav1.ConditionFalse, "Paused"), entry(true, "Succeeded", "r1", 2), isWaiting, "Paused"},
		"Unknown":       {"Cluster API is not installed", connected(metav1.ConditionUnknown, "ClusterNotReady"), nil, isWaiting, "ClusterNotReady"},
		"Elsewhere":     {"nothing that this tier does brings it the commit", moved, entry(true, "Succeeded", "r1", 1), isElsewhere, "ManagedElsewhere"},
		"NeverCame":     {"what is not there does not come either, which a person is to know", moved, nil, isWaiting, "ManagedElsewhere"},
		"ElsewhereDead": {"a cluster that cannot be called is that first", append(connected(metav1.ConditionFalse, "Unreachable"), moved[1:]...), entry(true, "Succeeded", "r1", 1), isUnreachable, "Unreachable"},
		"Hangs":         {"it answers probes, and no push", yes, entry(false, "Unreachable", "r1", 2), isUnreachable, "Unreachable"},
	} {
		t.Run(name, func(t *testing.T) {
			layer := layerOn("base")
			layer.Generation = 2
			child := childNamed("a", tc.conditions)
			if tc.entry != nil {
				child.Status.Layers = []v1alpha1.ChildLayer{*tc.entry}
			}
			got, why := standingOf(layer, &child, aim{revision: "r2"})
			if got != tc.want || why.Reason != tc.why {
				t.Errorf("%s: standingOf() = %s, %s, want %s, %s", tc.reason, got, why.Reason, tc.want, tc.why)
			}
		})
	}
}

// TestStandsElsewhere: a pivot pauses the Cluster before another tier has it, and what was in place
// by then is so ever after.
func TestStandsElsewhere(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		entry  v1alpha1.ChildLayer
		// paused is its reason while the Cluster is paused.
		paused string
		seeded metav1.ConditionStatus
		want   standing
		why    string
	}{
		"InPlace": {
			"the pivot alone kept it from being pushed", v1alpha1.ChildLayer{Ready: true, Reason: v1alpha1.ReasonSucceeded, Digest: "d", LastAttemptedDigest: "d"}, v1alpha1.ReasonPaused,
			metav1.ConditionTrue, isElsewhere, v1alpha1.ReasonManagedElsewhere,
		},
		"Half": {
			"a half of a commit was sent", v1alpha1.ChildLayer{Reason: v1alpha1.ReasonSeedFailed, Digest: "c", LastAttemptedDigest: "d"}, v1alpha1.ReasonPaused,
			metav1.ConditionFalse, isWaiting, v1alpha1.ReasonPaused,
		},
		"Never": {
			"nothing of it was sent", v1alpha1.ChildLayer{Reason: v1alpha1.ReasonProgressing}, v1alpha1.ReasonPaused,
			metav1.ConditionFalse, isWaiting, v1alpha1.ReasonPaused,
		},
		"Unhealthy": {
			"it was never seen to become healthy", v1alpha1.ChildLayer{Reason: v1alpha1.ReasonHealthCheckFailed, Digest: "d", LastAttemptedDigest: "d"}, v1alpha1.ReasonHealthCheckFailed,
			metav1.ConditionFalse, isFailed, v1alpha1.ReasonHealthCheckFailed,
		},
		"Unseen": {
			"a commit was sent a moment before", v1alpha1.ChildLayer{Reason: v1alpha1.ReasonProgressing, Digest: "d", LastAttemptedDigest: "d"}, v1alpha1.ReasonProgressing,
			metav1.ConditionFalse, isUpdating, v1alpha1.ReasonProgressing,
		},
	} {
		t.Run(name, func(t *testing.T) {
			of := newPaced(45 * time.Second)
			of.Accounts = &account.Accounts{}
			of.child.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "one"}
			of.child.Status.Conditions = append(of.child.Status.Conditions, metav1.Condition{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue})
			tc.entry.Name, tc.entry.Past = "base", "waves"
			of.child.Status.Layers = []v1alpha1.ChildLayer{tc.entry}
			layers := []*v1alpha1.Layer{layerOn("base")}
			for range 2 {
				of.seedAll(t.Context(), sessionOf(t, of.run), capibridge.Cluster{Paused: true, InfrastructureProvisioned: true, ControlPlaneInitialized: true}, layers)
				if entry := entryOf(of.child, "base"); entry.Ready || entry.Reason != tc.paused || entry.Past != "" {
					t.Fatalf("%s: while its Cluster is paused the layer is %+v", tc.reason, entry)
				}
			}
			of.elsewhere = true
			of.condition(v1alpha1.ManagedElsewhereCondition, metav1.ConditionTrue, v1alpha1.ReasonManagedElsewhere, "another tier")
			of.seedAll(t.Context(), sessionOf(t, of.run), capibridge.Cluster{}, layers)
			if c := meta.FindStatusCondition(of.child.Status.Conditions, v1alpha1.SeededCondition); c == nil || c.Status != tc.seeded {
				t.Errorf("%s: Seeded is %+v", tc.reason, c)
			}
			if got, why := standingOf(layers[0], of.child, aim{}); got != tc.want || why.Reason != tc.why {
				t.Errorf("%s: it is %s, %+v, want %s, %s", tc.reason, got, why, tc.want, tc.why)
			}
		})
	}
}

// TestStandingOfSuspended: a child that a person suspended waits, whatever it has, unless it
// cannot be reached.
func TestStandingOfSuspended(t *testing.T) {
	child := childNamed("a", []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue, Reason: "Succeeded"}})
	child.Spec.Suspend = true
	child.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Ready: true, Reason: "Succeeded", Revision: "r1"}}
	if got, why := standingOf(layerOn("base"), &child, aim{revision: "r2"}); got != isWaiting || why.Reason != v1alpha1.ReasonSuspended {
		t.Errorf("standingOf() = %s, %s, want it to wait, Suspended", got, why.Reason)
	}
	child.Status.Conditions[0].Status, child.Status.Conditions[0].Reason = metav1.ConditionFalse, v1alpha1.ReasonUnreachable
	if got, _ := standingOf(layerOn("base"), &child, aim{revision: "r2"}); got != isUnreachable {
		t.Errorf("a dead child is %s", got)
	}
}

func TestSummarize(t *testing.T) {
	selected := map[string]string{"tier": "tenant"}
	child := func(name, revision string, asked string, ready bool) v1alpha1.Child {
		c := childNamed(name, []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue, Reason: "Succeeded"}})
		c.Labels = selected
		why := v1alpha1.ReasonSucceeded
		if !ready {
			why = v1alpha1.ReasonBuildFailed
		}
		c.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Ready: ready, Reason: why, Revision: revision, ObservedGeneration: 1, LastHandledReconcileAt: asked}}
		return c
	}
	dead := child("d", "r1", "", true)
	dead.Status.Conditions[0].Status, dead.Status.Conditions[0].Reason = metav1.ConditionFalse, v1alpha1.ReasonUnreachable
	unknown := child("k", "r1", "", true)
	unknown.Status.Conditions[0].Status, unknown.Status.Conditions[0].Reason = metav1.ConditionFalse, v1alpha1.ReasonKubeconfigMissing
	moved := child("m", "r1", "", true)
	moved.Status.Conditions = append(moved.Status.Conditions, metav1.Condition{Type: v1alpha1.ManagedElsewhereCondition, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonManagedElsewhere})
	for name, tc := range map[string]struct {
		reason   string
		children []v1alpha1.Child
		suspend  bool
		counts   v1alpha1.ChildCounts
		failing  []string
		ready    metav1.ConditionStatus
		because  string
		handled  bool
	}{
		"None":         {"a layer that selects nothing is no failure", []v1alpha1.Child{childNamed("x", nil)}, false, v1alpha1.ChildCounts{}, nil, metav1.ConditionTrue, v1alpha1.ReasonNoChildren, true},
		"All":          {"in place everywhere", []v1alpha1.Child{child("a", "r2", "now", true)}, false, v1alpha1.ChildCounts{Total: 1, Current: 1, Seeded: 1}, nil, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, true},
		"OnItsWay":     {"one of two has the commit: not ready, and not a failure (C17)", []v1alpha1.Child{child("b", "r1", "", true), child("a", "r2", "now", true)}, false, v1alpha1.ChildCounts{Total: 2, Current: 1, Seeded: 1, Updating: 1}, []string{"b Progressing"}, metav1.ConditionUnknown, v1alpha1.ReasonProgressing, false},
		"Failing":      {"one child fails; it is named with its reason", []v1alpha1.Child{child("b", "r2", "now", true), child("a", "r1", "now", false)}, false, v1alpha1.ChildCounts{Total: 2, Current: 1, Seeded: 1, Failed: 1, Failing: 1}, []string{"a BuildFailed"}, metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady, true},
		"Dead":         {"a child that cannot be called is not in place, and holds up no request (C17)", []v1alpha1.Child{dead, child("a", "r2", "now", true)}, false, v1alpha1.ChildCounts{Total: 2, Current: 1, Seeded: 1, Unreachable: 1}, []string{"d Unreachable"}, metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady, true},
		"NoKubeconfig": {"nor does one whose kubeconfig is gone, which waits for a person", []v1alpha1.Child{unknown, child("a", "r2", "now", true)}, false, v1alpha1.ChildCounts{Total: 2, Current: 1, Seeded: 1, Waiting: 1}, []string{"k KubeconfigMissing"}, metav1.ConditionFalse, v1alpha1.ReasonChildrenNotReady, true},
		"Elsewhere":    {"a master that manages itself keeps what it has, which is no fault, and holds up no request", []v1alpha1.Child{moved, child("a", "r2", "now", true)}, false, v1alpha1.ChildCounts{Total: 2, Current: 1, Seeded: 1, Elsewhere: 1}, nil, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, true},
		"Suspended":    {"a suspended layer is not ready, whatever its children are", []v1alpha1.Child{child("a", "r2", "now", true)}, true, v1alpha1.ChildCounts{Total: 1, Suspended: 1}, nil, metav1.ConditionFalse, v1alpha1.ReasonSuspended, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := layerOn("base")
			l.Spec.ClusterSelector.MatchLabels = selected
			l.Spec.Suspend = tc.suspend
			l.Generation, l.Annotations = 1, map[string]string{fluxmeta.ReconcileRequestAnnotation: "now"}
			summarize(l, tc.children, aims{newest: "r2"})
			var named []string
			for _, f := range l.Status.Failing {
				named = append(named, f.Name+" "+f.Reason)
			}
			if diff := cmp.Diff(tc.counts, l.Status.Children); diff != "" {
				t.Errorf("%s\ncounts: -want, +got:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.failing, named); diff != "" {
				t.Errorf("%s\nfailing: -want, +got:\n%s", tc.reason, diff)
			}
			if c := l.Status.Conditions[0]; c.Status != tc.ready || c.Reason != tc.because {
				t.Errorf("%s\nReady is %s, %s, want %s, %s", tc.reason, c.Status, c.Reason, tc.ready, tc.because)
			}
			if got := l.Status.LastHandledReconcileAt == "now"; got != tc.handled {
				t.Errorf("%s\nthe request is handled: %t, want %t", tc.reason, got, tc.handled)
			}
		})
	}
}

// TestSummaryIsBounded: the status of a Layer does not grow with the fleet, and names the
// same children each time.
func TestSummaryIsBounded(t *testing.T) {
	l := layerOn("base")
	l.Spec.ClusterSelector.MatchLabels = map[string]string{"tier": "tenant"}
	var many []v1alpha1.Child
	for i := range 5000 {
		c := childNamed(fmt.Sprintf("c%04d", (i*2741)%5000), nil)
		c.Labels = map[string]string{"tier": "tenant"}
		c.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Reason: v1alpha1.ReasonBuildFailed, Message: "no file"}}
		many = append(many, c)
	}
	summarize(l, many, aims{})
	if len(l.Status.Failing) != maxNamed || l.Status.Children.Failed != 5000 || l.Status.Failing[0].Name != "c0000" || l.Status.Failing[9].Name != "c0009" {
		t.Errorf("%d named of %d failing, from %v: want the first %d of 5000", len(l.Status.Failing), l.Status.Children.Failed, l.Status.Failing, maxNamed)
	}
}

// BenchmarkSummarize5000: what a second in which children change costs for each layer.
func BenchmarkSummarize5000(b *testing.B) {
	layer := layerOn("layer-9")
	layer.Spec.ClusterSelector = metav1.LabelSelector{MatchLabels: map[string]string{"tier": "tenant"}}
	children := make([]v1alpha1.Child, 5000)
	for i := range children {
		child := childNamed(fmt.Sprintf("tenant-%04d", i), []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue, Reason: "Succeeded"}})
		child.Labels = map[string]string{"tier": "tenant"}
		for n := range 10 {
			child.Status.Layers = append(child.Status.Layers, v1alpha1.ChildLayer{Name: fmt.Sprintf("layer-%d", n), Ready: i%3 > 0, Reason: v1alpha1.ReasonSucceeded, Revision: "r1"})
		}
		children[i] = child
	}
	b.ReportAllocs()
	for b.Loop() {
		summarize(layer, children, aims{newest: "r1"})
	}
}
