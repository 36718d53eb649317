package remote

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	events "k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

func layerWith(name string, spec v1alpha1.LayerSpec) *v1alpha1.Layer {
	return &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}, Spec: spec}
}

// TestGivenBack: what a Child said before a Rollout gave its cluster a revision does not make it ready at that, as it
// would be at the one that it gets back while another one is on its way. A run that finds it in place does.
func TestGivenBack(t *testing.T) {
	layer, source := rolloutNamed("waves", movesLayer("base")), rolloutNamed("waves", v1alpha1.RolloutMoves{Source: &fleetSource})
	first, second := pinTo("waves", commitOne, ""), pinTo("waves", commitTwo, "")
	first.Result, second.Result = v1alpha1.ResultUpdating, v1alpha1.ResultUpdating
	for name, tc := range map[string]struct {
		reason string
		// base is how the run found the layer that is moved, or that has what is moved, and other how it found another one.
		base, other seeding
		// given was what the cluster might have when it looked.
		given         v1alpha1.ChildRollout
		layer, source bool // is ready
	}{
		"Nobody":      {"no run looked since", seeding{}, seeding{complete: true}, first, false, false},
		"Found":       {"a run found it in place", seeding{complete: true}, seeding{complete: true}, first, true, true},
		"NoTime":      {"a run had no time for it", seeding{complete: true, unvisited: true}, seeding{complete: true}, first, false, false},
		"Waits":       {"it waits, and what stands is of before", seeding{complete: true, standing: "waits for an approval"}, seeding{complete: true}, first, false, true},
		"Meanwhile":   {"when the run looked, it might have the other one", seeding{complete: true}, seeding{complete: true}, second, false, false},
		"Other":       {"nobody looked at a layer that may bring what is moved", seeding{complete: true}, seeding{}, first, true, false},
		"Idle":        {"it is known not to", seeding{complete: true}, seeding{notes: &layerNotes{idle: []v1alpha1.RolloutPinnedSource{fleetSource}}}, first, true, true},
		"Stands":      {"it sends nothing", seeding{complete: true}, seeding{complete: true, standing: "waits for an approval"}, first, true, true},
		"StandsAt":    {"it sent the other one before", seeding{complete: true}, seeding{complete: true, standing: "waits for an approval", notes: &layerNotes{given: "apps=r9 waves=" + commitTwo}}, first, true, false},
		"StandsWith":  {"it sent that before", seeding{complete: true}, seeding{complete: true, standing: "waits for an approval", notes: &layerNotes{given: "waves=" + commitOne}}, first, true, true},
		"StandsOf":    {"it has nothing of the Rollout", seeding{complete: true}, seeding{complete: true, standing: "waits for an approval", notes: &layerNotes{given: "apps=r9"}}, first, true, true},
		"StandsOld":   {"an earlier version did not say whose pin it sent", seeding{complete: true}, seeding{complete: true, standing: "waits for an approval", notes: &layerNotes{given: commitTwo}}, first, true, true},
		"SuspendedAt": {"a person suspended it after it sent the other one", seeding{complete: true}, seeding{layer: layerWith("other", v1alpha1.LayerSpec{Suspend: true}), notes: &layerNotes{given: "waves=" + commitTwo}}, first, true, false},
		"Suspended":   {"a person suspended it", seeding{complete: true}, seeding{layer: layerWith("other", v1alpha1.LayerSpec{Suspend: true})}, first, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			for mover, want := range map[*v1alpha1.Rollout]bool{layer: tc.layer, source: tc.source} {
				child := childNamed("a", []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}})
				child.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Ready: true, Revision: commitOne, Digest: "sha256:1", LastAttemptedDigest: "sha256:1"}}
				child.Status.Report = &v1alpha1.Report{Ready: true, Brought: &v1alpha1.ReportBrought{Objects: []v1alpha1.ReportedSource{{Kind: fleetSource.Kind, Namespace: fleetSource.Namespace, Name: fleetSource.Name, Revision: commitOne}}}}
				child.Status.Rollouts = []v1alpha1.ChildRollout{first}
				m := &moved{spec: &mover.Spec}
				if mover == layer {
					m.layer = layerWith("base", v1alpha1.LayerSpec{})
				}
				if m.cluster(mover, &child, &child.Status.Rollouts[0]).Ready {
					t.Fatalf("%s: it is ready by what was said before", tc.reason)
				}
				p := &push{run: &run{child: &child, governing: rollout.Governing{mover}}}
				for name, s := range map[string]seeding{"base": tc.base, "other": tc.other} {
					if s.layer == nil {
						s.layer = layerWith(name, v1alpha1.LayerSpec{})
					}
					if s.notes == nil {
						s.notes = &layerNotes{}
					}
					p.layers = append(p.layers, &s)
				}
				p.noteBrought([]v1alpha1.ChildRollout{pinTo("other", "r9", ""), tc.given})
				if got := m.cluster(mover, &child, &child.Status.Rollouts[0]).Ready; got != want {
					t.Errorf("%s: moves %+v: ready: %t, want %t", tc.reason, mover.Spec.Moves, got, want)
				}
			}
		})
	}
}

// TestNobodyBrings: a cluster into which no layer brings what is moved is known by that, and not before all of its layers
// were rendered.
func TestNobodyBrings(t *testing.T) {
	idle, brings := []v1alpha1.RolloutPinnedSource{fleetSource}, []v1alpha1.RolloutPinnedSource{}
	has := v1alpha1.ReportedSource{Kind: fleetSource.Kind, Namespace: fleetSource.Namespace, Name: fleetSource.Name, Revision: commitOne}
	o := rolloutNamed("waves", v1alpha1.RolloutMoves{Source: &fleetSource})
	for name, tc := range map[string]struct {
		reason string
		layers [][]v1alpha1.RolloutPinnedSource
		before bool
		told   []v1alpha1.ReportedSource
		// idle is what the Child says, and waits whether the cluster is waited for.
		idle, waits bool
	}{
		"Nobody":    {"none of its layers has it", [][]v1alpha1.RolloutPinnedSource{idle, idle}, false, nil, true, false},
		"One":       {"one has it", [][]v1alpha1.RolloutPinnedSource{idle, brings}, false, nil, false, true},
		"Since":     {"one has it by now", [][]v1alpha1.RolloutPinnedSource{idle, brings}, true, nil, false, true},
		"Unknown":   {"one was not rendered, and may have it", [][]v1alpha1.RolloutPinnedSource{idle, nil}, false, nil, false, true},
		"Restarted": {"a process began, and has rendered nothing yet", [][]v1alpha1.RolloutPinnedSource{nil, nil}, true, nil, true, false},
		"Left":      {"it is there yet, as one that was not pruned", [][]v1alpha1.RolloutPinnedSource{idle, idle}, false, []v1alpha1.ReportedSource{has}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			child := childNamed("a", []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}})
			child.Status.Report = &v1alpha1.Report{Ready: true, Brought: &v1alpha1.ReportBrought{Complete: true, Objects: tc.told}}
			given := pinTo("waves", commitTwo, "")
			given.Result, given.Idle = v1alpha1.ResultUpdating, tc.before
			child.Status.Rollouts = []v1alpha1.ChildRollout{given}
			p := &push{run: &run{child: &child, governing: rollout.Governing{o}}}
			for _, is := range tc.layers {
				p.layers = append(p.layers, &seeding{complete: true, layer: layerWith("base", v1alpha1.LayerSpec{}), notes: &layerNotes{idle: is}})
			}
			p.noteBrought([]v1alpha1.ChildRollout{given})
			pin := &child.Status.Rollouts[0]
			if pin.Idle != tc.idle || pin.Idle && pin.Brought {
				t.Errorf("%s: on record is %+v, want idle %t", tc.reason, pin, tc.idle)
			}
			if c := (&moved{spec: &o.Spec}).cluster(o, &child, pin); c.Idle == tc.waits || c.Ready {
				t.Errorf("%s: idle %t, ready %t, want it waited for: %t", tc.reason, c.Idle, c.Ready, tc.waits)
			}
		})
	}
}

// TestMovesLayerSince: that no layer brings a source says nothing of the layer that the Rollout was made to move since.
func TestMovesLayerSince(t *testing.T) {
	o := rolloutNamed("waves", movesLayer("base"))
	child := childNamed("a", []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}})
	child.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Ready: true, Revision: commitTwo, Digest: "sha256:2", LastAttemptedDigest: "sha256:2"}}
	given := pinTo("waves", commitTwo, "")
	given.Result, given.Idle = v1alpha1.ResultUpdating, true
	child.Status.Rollouts = []v1alpha1.ChildRollout{given}
	layer := layerWith("base", v1alpha1.LayerSpec{})
	p := &push{run: &run{child: &child, governing: rollout.Governing{o}}, layers: []*seeding{{complete: true, layer: layer, notes: &layerNotes{}}}}
	p.noteBrought([]v1alpha1.ChildRollout{given})
	pin := &child.Status.Rollouts[0]
	if pin.Idle || !pin.Brought {
		t.Errorf("on record is %+v", pin)
	}
	if c := (&moved{spec: &o.Spec, layer: layer}).cluster(o, &child, pin); !c.Ready {
		t.Errorf("it is not ready at the layer: %+v", c)
	}
}

// TestNobodyTells: a cluster without an agent never says what it has of a source that a Rollout moves: one into which no layer brings it
// is not waited for all the same, nor does it count for a proof where nothing is on record for it.
func TestNobodyTells(t *testing.T) {
	o := rolloutNamed("waves", v1alpha1.RolloutMoves{Source: &fleetSource})
	selects := metav1.LabelSelector{MatchLabels: map[string]string{"edge": "true"}}
	edge, agent := layerWith("edge", v1alpha1.LayerSpec{ClusterSelector: selects}), layerWith("agent", v1alpha1.LayerSpec{ClusterSelector: selects, Agent: &v1alpha1.AgentSpec{}})
	elsewhere := layerWith("agent", v1alpha1.LayerSpec{ClusterSelector: metav1.LabelSelector{MatchLabels: map[string]string{"edge": "false"}}, Agent: &v1alpha1.AgentSpec{}})
	idle, waited := pinTo("waves", commitTwo, ""), pinTo("waves", commitTwo, "")
	idle.Idle = true
	for name, tc := range map[string]struct {
		reason string
		other  *v1alpha1.Layer
		digest string
		pin    *v1alpha1.ChildRollout
		known  bool
		idle   bool
	}{
		"InPlace":   {"nobody will ever know what it has", elsewhere, "sha256:1", nil, false, true},
		"Agent":     {"its agent tells once it is there", agent, "sha256:1", nil, false, false},
		"New":       {"it has nothing, and may have a revision in its wave", elsewhere, "", nil, true, false},
		"Idle":      {"its run found that no layer brings it", elsewhere, "sha256:1", &idle, false, true},
		"IdleAgent": {"its run found it, and its agent has not told yet", agent, "sha256:1", &idle, false, true},
		"Brings":    {"a layer brings it, so that it is waited for", elsewhere, "sha256:1", &waited, false, false},
	} {
		child := childNamed("a", []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}})
		child.Labels = map[string]string{"edge": "true"}
		child.Status.Layers = []v1alpha1.ChildLayer{{Name: "edge", Digest: tc.digest}}
		m := &moved{spec: &o.Spec, layers: []v1alpha1.Layer{*edge, *tc.other}}
		if c := m.cluster(o, &child, tc.pin); c.Known != tc.known || c.Idle != tc.idle || c.Ready {
			t.Errorf("%s: %s: known %t, idle %t, ready %t, want known %t, idle %t", name, tc.reason, c.Known, c.Idle, c.Ready, tc.known, tc.idle)
		}
	}
}

// TestBroughtIsKept: what a run found in place is written where another wrote what Rollouts let the child have meanwhile,
// unless that is of what it found: nobody wakes it for the rest.
func TestBroughtIsKept(t *testing.T) {
	first, second, other := pinTo("waves", "r1", ""), pinTo("waves", "r2", ""), pinTo("apps", "r9", "")
	again := first
	again.Reason = v1alpha1.ReasonRollingOut
	for name, tc := range map[string]struct {
		reason    string
		meanwhile []v1alpha1.ChildRollout
		want      bool
	}{
		"Result":   {"the Rollout itself, about the same revision", []v1alpha1.ChildRollout{again}, true},
		"Others":   {"another Rollout", []v1alpha1.ChildRollout{other, first}, true},
		"Revision": {"it may have another revision", []v1alpha1.ChildRollout{second}, false},
	} {
		t.Run(name, func(t *testing.T) {
			child := childNamed("a", nil)
			child.Status.Rollouts = []v1alpha1.ChildRollout{first}
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&child).WithStatusSubresource(&child).Build()
			get := func() *v1alpha1.Child {
				t.Helper()
				got := &v1alpha1.Child{}
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(&child), got); err != nil {
					t.Fatal(err)
				}
				return got
			}
			f := newFleet(t, map[string]string{"a.yaml": noteOf("1")})
			f.children.Client, f.children.Cluster, f.children.Events = c, &apply.Cluster{Client: c}, events.NewFakeRecorder(10)
			r := f.on(0).run
			r.child, r.notes = get(), &notes{}
			r.recorded = r.child.DeepCopy()
			live := get()
			live.Status.Rollouts = tc.meanwhile
			if err := c.Status().Update(t.Context(), live); err != nil {
				t.Fatal(err)
			}
			r.child.Status.Rollouts[0].Brought, r.child.Status.Rollouts[0].Idle, r.child.Status.Version = true, true, "v1.36.0"
			if err := r.writeStatus(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := get()
			if len(got.Status.Rollouts) != len(tc.meanwhile) {
				t.Fatalf("%s: the Child has %+v", tc.reason, got.Status.Rollouts)
			}
			for i, pin := range got.Status.Rollouts {
				want := tc.meanwhile[i]
				want.Brought = tc.want && pin.Name == "waves"
				want.Idle = want.Brought
				if pin != want {
					t.Errorf("%s: the Child has %+v, want %+v", tc.reason, pin, want)
				}
			}
		})
	}
}
