package rollout

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

func rolloutOf(name string, moves v1alpha1.RolloutMoves, selector *metav1.LabelSelector) v1alpha1.Rollout {
	r := v1alpha1.Rollout{}
	r.Name, r.Spec.Moves, r.Spec.ClusterSelector = name, moves, selector
	return r
}

func layerNamed(name string) v1alpha1.RolloutMoves {
	return v1alpha1.RolloutMoves{LayerRef: &v1alpha1.LayerReference{Name: name}}
}

func TestGoverns(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		by     v1alpha1.Rollout
		want   bool
	}{
		"All":     {"without a selector all take part", rolloutOf("a", layerNamed("base"), nil), true},
		"Empty":   {"an empty selector selects all, as everywhere in Kubernetes", rolloutOf("a", layerNamed("base"), &metav1.LabelSelector{}), true},
		"Selects": {"", rolloutOf("a", layerNamed("base"), &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}), true},
		"Others":  {"another environment", rolloutOf("a", layerNamed("base"), &metav1.LabelSelector{MatchLabels: map[string]string{"env": "dev"}}), false},
		"Mistake": {
			"a selector that means nothing must not let all go at once",
			rolloutOf("a", layerNamed("base"), &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "env", Operator: "Is"}}}), true,
		},
		"Deleted": {"what it moved follows the newest again, at once", func() v1alpha1.Rollout {
			r := rolloutOf("a", layerNamed("base"), nil)
			now := metav1.Now()
			r.DeletionTimestamp = &now
			return r
		}(), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Governs(&tc.by, map[string]string{"env": "prod"}); got != tc.want {
				t.Errorf("%s: Governs() = %t", tc.reason, got)
			}
		})
	}
}

func TestMovers(t *testing.T) {
	fleet := v1alpha1.RolloutPinnedSource{Kind: "GitRepository", Namespace: "cascade-system", Name: "fleet"}
	other := fleet
	other.Namespace = "team"
	prod := &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	g := Of([]v1alpha1.Rollout{
		rolloutOf("z", layerNamed("twice"), nil), rolloutOf("base", layerNamed("base"), nil), rolloutOf("prod", layerNamed("twice"), prod),
		rolloutOf("dev", layerNamed("base"), &metav1.LabelSelector{MatchLabels: map[string]string{"env": "dev"}}),
		rolloutOf("fleet", v1alpha1.RolloutMoves{Source: &fleet}, nil),
		rolloutOf("clusters", v1alpha1.RolloutMoves{KustomizationRef: &v1alpha1.LocalReference{Name: "twice"}}, nil),
	}, map[string]string{"env": "prod"})
	for name, tc := range map[string]struct {
		reason    string
		got, want Mover
	}{
		"One":      {"the Rollout of another environment does not count", g.Layer("base"), Mover{Name: "base"}},
		"Two":      {"nobody knows whose revision it is to be", g.Layer("twice"), Mover{Conflict: []string{"prod", "z"}}},
		"None":     {"", g.Layer("free"), Mover{}},
		"Object":   {"", g.Object(fleet), Mover{Name: "fleet"}},
		"NoObject": {"of the same name, elsewhere", g.Object(other), Mover{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.got); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
	if diff := cmp.Diff([]v1alpha1.RolloutPinnedSource{fleet}, g.Objects()); diff != "" {
		t.Errorf("objects: -want, +got:\n%s", diff)
	}
}

func TestPin(t *testing.T) {
	child := &v1alpha1.Child{}
	child.Status.Rollouts = []v1alpha1.ChildRollout{
		{Name: "none"}, {Name: "base", RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:1", Image: "cascade:v1"}},
		{Name: "agent", RolloutRevision: v1alpha1.RolloutRevision{Image: "cascade:v2"}},
	}
	for name, want := range map[string]*v1alpha1.RolloutRevision{
		"none": nil, "gone": nil, "base": {Revision: "main@sha1:1", Image: "cascade:v1"}, "agent": {Image: "cascade:v2"},
	} {
		if diff := cmp.Diff(want, Pin(child, Mover{Name: name})); diff != "" {
			t.Errorf("Pin(%s): -want, +got:\n%s", name, diff)
		}
	}
}

// TestPinOfAnother: what a Rollout let a child have that was deleted counts for nothing when one of
// the same name is made: the child may have had the newest revision since.
func TestPinOfAnother(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		pin, now types.UID
		counts   bool
	}{
		"Same":    {"it is the Rollout that let it have it", "one", "one", true},
		"Another": {"it was made again, and has decided", "one", "two", false},
		"New":     {"it was made again, and has not decided yet", "one", "", false},
		"Earlier": {"an earlier version wrote it", "", "two", true},
	} {
		child := &v1alpha1.Child{}
		child.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "base", UID: tc.pin, RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:1"}}}
		o := rolloutOf("base", v1alpha1.RolloutMoves{}, nil)
		o.Status.UID = tc.now
		if got := Pin(child, MoverOf(&o)) != nil; got != tc.counts {
			t.Errorf("%s: %s: it counts: %t", name, tc.reason, got)
		}
	}
}

func TestWanted(t *testing.T) {
	one, two, three := v1alpha1.RolloutRevision{Revision: "1"}, v1alpha1.RolloutRevision{Revision: "2"}, v1alpha1.RolloutRevision{Revision: "3"}
	good := &v1alpha1.RolloutGood{RolloutRevision: one}
	run := func(phase v1alpha1.RolloutPhase) *v1alpha1.RolloutRun {
		return &v1alpha1.RolloutRun{RolloutRevision: two, Phase: phase}
	}
	for name, tc := range map[string]struct {
		reason string
		status v1alpha1.RolloutStatus
		want   *v1alpha1.RolloutRevision
	}{
		"Nothing":   {"nothing was fetched yet", v1alpha1.RolloutStatus{}, nil},
		"First":     {"the first revision there is", v1alpha1.RolloutStatus{Candidate: &three}, &three},
		"Good":      {"a candidate is no run", v1alpha1.RolloutStatus{Candidate: &three, LastGood: good}, &one},
		"Run":       {"", v1alpha1.RolloutStatus{Candidate: &three, LastGood: good, Run: run(v1alpha1.RolloutProgressing)}, &two},
		"Halted":    {"a person may let it go on", v1alpha1.RolloutStatus{LastGood: good, Run: run(v1alpha1.RolloutHalted)}, &two},
		"Reverting": {"the clusters go back", v1alpha1.RolloutStatus{LastGood: good, Run: run(v1alpha1.RolloutReverting)}, &one},
		"Aborted":   {"some may have it", v1alpha1.RolloutStatus{Candidate: &two, LastGood: good, Run: run(v1alpha1.RolloutAborted)}, &two},
		"SetBack":   {"it was aborted, and the source is back", v1alpha1.RolloutStatus{Candidate: &one, LastGood: good, Run: run(v1alpha1.RolloutAborted)}, &one},
		"Reverted":  {"they are back", v1alpha1.RolloutStatus{LastGood: good, Run: run(v1alpha1.RolloutReverted)}, &one},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Wanted(&v1alpha1.Rollout{Status: tc.status})); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestPinsNameTheirRollout: what is put on record for a cluster says which Rollout did.
func TestPinsNameTheirRollout(t *testing.T) {
	has := v1alpha1.RolloutRevision{Revision: "main@sha1:1"}
	facts := Facts{Candidate: &has, Room: -1, Clusters: []Cluster{{Name: "a", UID: "a", Known: true, Has: &has, Healthy: true}}}
	spec := &v1alpha1.RolloutSpec{Waves: []v1alpha1.RolloutWave{{Name: "all"}}}
	d := Next("base", spec, &v1alpha1.RolloutStatus{UID: "one"}, facts, time.Unix(1e9, 0))
	if len(d.Pins) != 1 || d.Pins[0].ChildRollout.UID != "one" || d.Status.UID != "one" {
		t.Errorf("decided is %+v", d)
	}
}
