package remote

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func spoken(all []transition) []string {
	var texts []string
	for _, t := range all {
		texts = append(texts, fmt.Sprint(t.kind, " ", t.reason, ": ", t.message))
	}
	return texts
}

// stated is a child with conditions, each as <status> <reason>.
func stated(connected, seeded, ready string, more ...func(*v1alpha1.Child)) *v1alpha1.Child {
	c := childNamed("shop", nil)
	for kind, text := range map[string]string{v1alpha1.ConnectedCondition: connected, v1alpha1.SeededCondition: seeded, v1alpha1.ReadyCondition: ready} {
		var status, reason string
		if n, _ := fmt.Sscan(text, &status, &reason); n == 2 {
			meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionStatus(status), Reason: reason, Message: "why"})
		}
	}
	for _, change := range more {
		change(&c)
	}
	return &c
}

func withLayer(ready bool, reason, held string) func(*v1alpha1.Child) {
	return func(c *v1alpha1.Child) {
		l := v1alpha1.ChildLayer{Name: "base", Ready: ready, Reason: reason, Message: "what"}
		if held != "" {
			l.Held = &v1alpha1.Held{Prune: &v1alpha1.HeldPrune{Hash: held}}
		}
		c.Status.Layers = []v1alpha1.ChildLayer{l}
	}
}

func elsewhere(reason string) func(*v1alpha1.Child) {
	return func(c *v1alpha1.Child) {
		meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: v1alpha1.ManagedElsewhereCondition, Status: metav1.ConditionTrue, Reason: reason, Message: "why"})
	}
}

func TestChildTransitions(t *testing.T) {
	well := []string{"True Succeeded", "True Succeeded", "True Succeeded"}
	is := func(more ...func(*v1alpha1.Child)) *v1alpha1.Child { return stated(well[0], well[1], well[2], more...) }
	for name, tc := range map[string]struct {
		reason        string
		before, after *v1alpha1.Child
		want          []string
	}{
		"Rest":        {"nothing changed", is(), is(), nil},
		"Message":     {"another message, count or age is no news", is(), is(func(c *v1alpha1.Child) { c.Status.Conditions[0].Message, c.Status.Version = "other", "v2" }), nil},
		"New":         {"what a Child waits for at first", stated("", "", ""), stated("Unknown ClusterNotReady", "False ClusterNotReady", "False ClusterNotReady"), []string{"Normal ClusterNotReady: why"}},
		"Elsewhere":   {"a pivot tells of itself", is(), is(elsewhere(v1alpha1.ReasonManagedElsewhere)), nil},
		"Unrenewed":   {"the way to the child will lapse", is(elsewhere(v1alpha1.ReasonManagedElsewhere)), is(elsewhere(v1alpha1.ReasonKubeconfigNotRenewed)), []string{"Warning KubeconfigNotRenewed: why"}},
		"Unrenewed2":  {"it is told once", is(elsewhere(v1alpha1.ReasonKubeconfigNotRenewed)), is(elsewhere(v1alpha1.ReasonKubeconfigNotRenewed)), nil},
		"Renewed":     {"it is renewed again, and nothing else ends what was told", is(elsewhere(v1alpha1.ReasonKubeconfigNotRenewed)), is(elsewhere(v1alpha1.ReasonManagedElsewhere)), []string{"Normal KubeconfigRenewed: the kubeconfig follows the one that the cluster renews, or the Cluster is here again"}},
		"Up":          {"each condition that is reached", stated("Unknown ClusterNotReady", "False ClusterNotReady", "False ClusterNotReady"), is(), []string{"Normal Connected: the API server answers, and is the cluster that is on record", "Normal Seeded: all layers are in place", "Normal Ready: connected, seeded, and its agent reports ready"}},
		"Commit":      {"each commit goes to each child: on its way is no news", is(withLayer(true, "Succeeded", "")), stated(well[0], "False Progressing", "False Progressing", withLayer(false, "Progressing", "")), nil},
		"Unreachable": {"one event, though two conditions say so", is(), stated("False Unreachable", well[1], "False Unreachable"), []string{"Warning Unreachable: why"}},
		"Another":     {"one fault for another", stated("False Unreachable", well[1], "False Unreachable"), stated("False IdentityChanged", well[1], "False IdentityChanged"), []string{"Warning IdentityChanged: why"}},
		"Failed":      {"a layer that fails is told of once, by what all conditions say", is(withLayer(true, "Succeeded", "")), stated(well[0], "False SeedFailed", "False SeedFailed", withLayer(false, "SeedFailed", "")), []string{"Warning SeedFailed: why"}},
		"Held":        {"a layer that is ready all the same holds deletes", is(withLayer(false, "Progressing", "")), is(withLayer(false, "PruneBlocked", "cafe")), []string{"Warning PruneBlocked: layer base: what"}},
		"Approved": {"a person let exactly these be deleted", is(withLayer(false, "PruneBlocked", "cafe")), is(withLayer(true, "Succeeded", ""), func(c *v1alpha1.Child) {
			c.Annotations = map[string]string{v1alpha1.ApprovePruneAnnotation: "cafe", v1alpha1.ApprovedByAnnotation: "alice"}
		}), []string{"Normal PruneApproved: alice approved prune plan cafe of layer base"}},
		"Withdrawn": {"Git declares them again, and an old approval has nothing to do with that", is(withLayer(false, "PruneBlocked", "cafe")), is(withLayer(true, "Succeeded", ""), func(c *v1alpha1.Child) {
			c.Annotations = map[string]string{v1alpha1.ApprovePruneAnnotation: "beef"}
		}), nil},
		"Stale": {"nobody knows how it is", is(), is(func(c *v1alpha1.Child) { c.Status.HeardAt = &start }), []string{"Warning Stale: not heard of for more than three intervals: what is known of it is old"}},
		"Heard": {"it came back", is(func(c *v1alpha1.Child) { c.Status.HeardAt = &start }), is(), []string{"Normal HeardAgain: heard of again"}},
		"HeardFailing": {"it came back, and fails now", is(func(c *v1alpha1.Child) { c.Status.HeardAt = &start }), stated(well[0], well[1], "False KustomizationFailing", withLayer(false, "KustomizationFailing", "")),
			[]string{"Normal HeardAgain: heard of again", "Warning KustomizationFailing: why"}},
		"StillFailing": {"it came back, and fails as before", stated(well[0], well[1], "False KustomizationFailing", func(c *v1alpha1.Child) { c.Status.HeardAt = &start }), stated(well[0], well[1], "False KustomizationFailing"),
			[]string{"Normal HeardAgain: heard of again", "Warning KustomizationFailing: why"}},
		"Forgotten": {"a Cluster was made again under the name, and nothing is known of it", is(func(c *v1alpha1.Child) { c.Status.HeardAt = &start }), stated("", "", ""), nil},
		"Older":     {"the moment that it was heard of moves", is(func(c *v1alpha1.Child) { c.Status.HeardAt = &start }), is(func(c *v1alpha1.Child) { at := later(time.Hour); c.Status.HeardAt = &at }), nil},
		"Taken":     {"somebody else drives it", is(), is(func(c *v1alpha1.Child) { c.Status.SupersededBy = &v1alpha1.Epoch{Number: 3, Holder: "other"} }), []string{"Warning Superseded: another process, other, took the child over"}},
		"Suspend":   {"as a person wanted", is(), stated(well[0], "False Suspended", "False Suspended"), []string{"Normal Suspended: why"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, spoken(childTransitions(tc.before, tc.after))); diff != "" {
				t.Errorf("%s\n-want, +got:\n%s", tc.reason, diff)
			}
			if again := childTransitions(tc.after, tc.after.DeepCopy()); again != nil {
				t.Errorf("the same status again tells %v", spoken(again))
			}
		})
	}
}

// TestEventMetadata: events of layers and Rollouts say which revision they are about, and
// on how many clusters it is.
func TestEventMetadata(t *testing.T) {
	layer, o := &v1alpha1.Layer{}, &v1alpha1.Rollout{}
	if got := layerMetadata(layer); got != nil {
		t.Errorf("a layer without a revision has %v", got)
	}
	if got := rolloutMetadata(o); got != nil {
		t.Errorf("a Rollout without a run has %v", got)
	}
	layer.Status.Revision = "main@sha1:1"
	layer.Status.Children = v1alpha1.ChildCounts{Total: 12, Current: 7, Failed: 1, Unreachable: 2}
	o.Status.Run = &v1alpha1.RolloutRun{RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:2"}}
	o.Status.Clusters = v1alpha1.RolloutCounts{Total: 9, Updated: 4, Failed: 1}
	for what, tc := range map[string]struct{ got, want map[string]string }{
		"layer":   {layerMetadata(layer), map[string]string{"cascade.dev/revision": "main@sha1:1", "cascade.dev/children": "12", "cascade.dev/current": "7", "cascade.dev/failed": "3"}},
		"Rollout": {rolloutMetadata(o), map[string]string{"cascade.dev/revision": "main@sha1:2", "cascade.dev/clusters": "9", "cascade.dev/current": "4", "cascade.dev/failed": "1"}},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

func TestLayerTransitions(t *testing.T) {
	layer := func(status metav1.ConditionStatus, reason string, more ...func(*v1alpha1.Layer)) *v1alpha1.Layer {
		l := &v1alpha1.Layer{}
		l.Status.Revision = "main@sha1:1"
		meta.SetStatusCondition(&l.Status.Conditions, metav1.Condition{Type: v1alpha1.ReadyCondition, Status: status, Reason: reason, Message: "why"})
		for _, change := range more {
			change(l)
		}
		return l
	}
	removal := func(held bool, approved string) func(*v1alpha1.Layer) {
		return func(l *v1alpha1.Layer) {
			l.Status.Removal = &v1alpha1.Removal{Hash: "cafe", Held: held, Waiting: 3}
			l.Annotations = map[string]string{v1alpha1.ApproveRemovalAnnotation: approved}
		}
	}
	failed := func(n int32) func(*v1alpha1.Layer) { return func(l *v1alpha1.Layer) { l.Status.Children.Failed = n } }
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	for name, tc := range map[string]struct {
		reason        string
		before, after *v1alpha1.Layer
		want          []string
	}{
		"Rest":    {"nothing changed but a count", layer(no, "ChildrenNotReady", failed(3)), layer(no, "ChildrenNotReady", failed(7)), nil},
		"New":     {"the first status", &v1alpha1.Layer{}, layer(unknown, "Progressing"), []string{"Normal Progressing: main@sha1:1: why"}},
		"Done":    {"on all children", layer(unknown, "Progressing"), layer(yes, "Succeeded"), []string{"Normal Ready: main@sha1:1: why"}},
		"Waits":   {"a child waits for its cluster, which is no fault", layer(unknown, "Progressing"), layer(no, "ChildrenNotReady"), []string{"Normal ChildrenNotReady: main@sha1:1: why"}},
		"Fails":   {"one that waited fails", layer(no, "ChildrenNotReady"), layer(no, "ChildrenNotReady", failed(1)), []string{"Warning ChildrenNotReady: main@sha1:1: why"}},
		"Failed":  {"on some not", layer(unknown, "Progressing"), layer(no, "ChildrenNotReady", failed(1)), []string{"Warning ChildrenNotReady: main@sha1:1: why"}},
		"Resumed": {"a person let it go on", layer(no, "Suspended"), layer(yes, "Succeeded"), []string{"Normal Resumed: it is pushed again", "Normal Ready: main@sha1:1: why"}},
		"ApprovedFailing": {"and what had failed before goes on to fail, which is the last word", layer(no, "RemovalHeld", removal(true, "")), layer(no, "ChildrenNotReady", failed(3), removal(false, "cafe")),
			[]string{"Normal RemovalApproved: somebody approved the removal cafe", "Warning ChildrenNotReady: main@sha1:1: why"}},
		"Approved": {"the removal that was held", layer(yes, "Succeeded", removal(true, "")), layer(yes, "Succeeded", removal(false, "cafe")), []string{"Normal RemovalApproved: somebody approved the removal cafe"}},
		"Back":     {"the children are selected again", layer(yes, "Succeeded", removal(true, "")), layer(yes, "Succeeded", removal(false, "beef")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, spoken(layerTransitions(tc.before, tc.after))); diff != "" {
				t.Errorf("%s\n-want, +got:\n%s", tc.reason, diff)
			}
		})
	}
	held := layerTransitions(layer(yes, "Succeeded"), layer(yes, "Succeeded", removal(true, "")))
	if len(held) != 1 || held[0].kind != "Warning" || held[0].reason != v1alpha1.ReasonRemovalHeld {
		t.Errorf("a removal that is held tells %v", spoken(held))
	}
	if more := layerTransitions(layer(yes, "Succeeded", removal(true, "")), layer(yes, "Succeeded", removal(true, ""), func(l *v1alpha1.Layer) { l.Status.Removal.Waiting = 9 })); more != nil {
		t.Errorf("more that join it tell %v", spoken(more))
	}
}
