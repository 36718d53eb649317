package remote

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// applied is a composition of which all Clusters have one revision.
type applied struct {
	Composition
	revision    string
	outstanding string
	// held is why what makes them does not take what was applied, with its reason, and begun since when it does again.
	held  rollout.Hold
	begun time.Time
	// refused is why they cannot be declared as the second revision has it.
	refused  error
	unpinned bool
	complete bool
	// lacking are revisions that do not have the Clusters, as the newest one has.
	lacking []string
	// removing are revisions that do not have the Clusters, nor has the newest one.
	removing []string
	// awaited are revisions of which that is not known yet.
	awaited []string
	// unapplied is why they are not applied as declared.
	unapplied string
	// unread is why they keep what is in place, as their control planes cannot be read.
	unread string
	// idle is why nothing is applied, and reached the revision that they are composed at, for a while.
	idle, reached string
	// since is when it reached them, after nothing did.
	since time.Time
}

func (a applied) Idle() string { return a.idle }
func (a applied) Reached(_ types.NamespacedName, revision string) (bool, time.Time) {
	return a.reached == revision, a.since
}

// compositionsOf are those of Kustomizations, by name.
type compositionsOf map[string]Composition

func (c compositionsOf) Of(kustomization types.NamespacedName) Composition {
	return c[kustomization.Name]
}
func (c compositionsOf) OnComposed(func(types.NamespacedName)) {}

func (a applied) Unapplied(types.NamespacedName) string { return a.unapplied }
func (a applied) Unread(types.NamespacedName) string    { return a.unread }

func (a applied) Lacks(_ types.NamespacedName, revision string) bool {
	return slices.Contains(a.lacking, revision)
}

func (a applied) Removes(_ types.NamespacedName, revision string) bool {
	return slices.Contains(a.removing, revision)
}

func (a applied) Awaited(revision string) bool { return slices.Contains(a.awaited, revision) }

func (a applied) Untold(types.NamespacedName) bool { return a.complete }

func (a applied) Applied(types.NamespacedName) string                      { return a.revision }
func (a applied) Unpinned(types.NamespacedName) bool                       { return a.unpinned }
func (a applied) Outstanding(context.Context, types.NamespacedName) string { return a.outstanding }
func (a applied) Held(context.Context, types.NamespacedName) (reason, why string, since time.Time) {
	return a.held.Reason, a.held.Message, a.begun
}
func (a applied) Refused(_ context.Context, _ types.NamespacedName, revision string) error {
	if revision == "main@sha1:2" {
		return a.refused
	}
	return nil
}

// TestClustersOfAComposition: what a Kustomization declares of a Cluster goes on whether or not
// a layer selects the Cluster, which alone makes this tier connect to it.
func TestClustersOfAComposition(t *testing.T) {
	child := func(status metav1.ConditionStatus, reason string, ready metav1.ConditionStatus) *v1alpha1.Child {
		c := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "a"}}}
		c.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConnectedCondition, Status: status, Reason: reason, LastTransitionTime: metav1.Now()},
			{Type: v1alpha1.ReadyCondition, Status: ready, Reason: reason},
		}
		return c
	}
	pin := &v1alpha1.ChildRollout{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:2"}}
	for _, tt := range []struct {
		reason                  string
		child                   *v1alpha1.Child
		applied                 string
		reached, healthy, ready bool
	}{
		{"connected and ready at the revision", child(metav1.ConditionTrue, v1alpha1.ReasonSucceeded, metav1.ConditionTrue), "main@sha1:2", true, true, true},
		{"ready at the one before", child(metav1.ConditionTrue, v1alpha1.ReasonSucceeded, metav1.ConditionTrue), "main@sha1:1", true, true, false},
		{"it does not answer", child(metav1.ConditionFalse, v1alpha1.ReasonUnreachable, metav1.ConditionFalse), "main@sha1:2", false, false, false},
		{"no layer selects it", child(metav1.ConditionUnknown, v1alpha1.ReasonNoLayer, metav1.ConditionFalse), "main@sha1:2", true, true, true},
		{"no layer selects it, at the one before", child(metav1.ConditionUnknown, v1alpha1.ReasonNoLayer, metav1.ConditionFalse), "main@sha1:1", true, true, false},
	} {
		o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
		m := &moved{spec: &o.Spec, composed: applied{revision: tt.applied, unpinned: !tt.ready}}
		c := m.cluster(o, tt.child, pin)
		m.ofComposition(t.Context(), tt.child, pin, &c)
		if c.Unreachable.IsZero() != tt.reached || c.Healthy != tt.healthy || c.Ready != tt.ready || !c.Known || c.Has.Revision != tt.applied || c.Unpinned == tt.ready {
			t.Errorf("%s: %+v", tt.reason, c)
		}
	}
}

// TestUnknownCluster: a Cluster of which nobody knows what it has, nor will, gets its first revision in its wave.
func TestUnknownCluster(t *testing.T) {
	child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "a"}}}
	for name, tc := range map[string]struct {
		reason   string
		composed applied
		known    bool
		has      string
	}{
		"NotYet":  {"nothing was applied completely yet", applied{}, false, ""},
		"Never":   {"all of it was, and that tells nothing of a Cluster that waits for its first revision", applied{complete: true}, true, ""},
		"Applied": {"it has what was applied", applied{revision: "main@sha1:1"}, true, "main@sha1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
			m := &moved{spec: &o.Spec, composed: tc.composed}
			c := m.cluster(o, child, nil)
			m.ofComposition(t.Context(), child, nil, &c)
			if has := c.Has; c.Known != tc.known || (has != nil) != (tc.has != "") || has != nil && has.Revision != tc.has || c.New {
				t.Errorf("%s: %+v", tc.reason, c)
			}
		})
	}
}

// TestMadeCluster: a Cluster that the newest commit made is taken in at that, and gets neither what a run that began
// before brings, nor the last good revision: they would take it away.
func TestMadeCluster(t *testing.T) {
	const good, brought, newest = "main@sha1:1", "main@sha1:2", "main@sha1:3"
	child := func(name, revision string, run int64) *v1alpha1.Child {
		c := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name, UID: types.UID(name)}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: name}}}
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}}
		if revision != "" {
			c.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: revision}, Run: run, Result: v1alpha1.ResultUpdating, Since: metav1.Now()}}
		}
		return c
	}
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
	o.Spec.Waves = []v1alpha1.RolloutWave{{Name: "canary", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"canary": "true"}}}, {Name: "rest"}}
	o.Spec.Deadline.Duration = time.Hour
	o.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: v1alpha1.RolloutRevision{Revision: good}, Run: 4}
	o.Status.Run = &v1alpha1.RolloutRun{Number: 5, RolloutRevision: v1alpha1.RolloutRevision{Revision: brought}, Phase: v1alpha1.RolloutProgressing, Begun: true,
		Terms: v1alpha1.RolloutTerms{Waves: o.Spec.Waves, Deadline: o.Spec.Deadline}, Began: metav1.Now(), Since: metav1.Now()}
	decide := func(wave int32, made *v1alpha1.Child, composed applied) rollout.Decision {
		canary := child("canary", brought, 5)
		canary.Labels = map[string]string{"canary": "true"}
		o.Status.Run.Wave = wave
		f := &rolloutFacts{children: map[string]*v1alpha1.Child{"canary": canary, "made": made}}
		f.Candidate, f.Room = &v1alpha1.RolloutRevision{Revision: newest}, -1
		m := &moved{spec: &o.Spec, composed: composed}
		for _, c := range []*v1alpha1.Child{canary, made} {
			var pin *v1alpha1.ChildRollout
			if len(c.Status.Rollouts) > 0 {
				pin = &c.Status.Rollouts[0]
			}
			is := m.cluster(o, c, pin)
			m.ofComposition(t.Context(), c, pin, &is)
			f.Clusters = append(f.Clusters, is)
		}
		f.refusals(t.Context(), o, m)
		return rollout.Next(o.Name, &o.Spec, &o.Status, f.Facts, time.Now())
	}
	for wave := range int32(2) {
		d := decide(wave, child("made", "", 0), applied{revision: newest, lacking: []string{good, brought}})
		i := slices.IndexFunc(d.Pins, func(a rollout.Assignment) bool { return a.Cluster == "made" })
		if i < 0 || d.Pins[i].Revision != newest || d.Pins[i].Run != 0 {
			t.Errorf("in wave %d it is taken in with %+v", wave, d.Pins)
		}
		// A process that has begun since does not know yet what they have.
		d = decide(wave, child("made", newest, 0), applied{revision: newest, awaited: []string{good, brought}})
		if slices.ContainsFunc(d.Pins, func(a rollout.Assignment) bool { return a.Cluster == "made" && a.Revision != newest }) || d.Hold.Reason != v1alpha1.ReasonSourceNotReady {
			t.Errorf("in wave %d, before it is known who has what, it is given %+v, hold %+v", wave, d.Pins, d.Hold)
		}
	}
}

// TestDeadCluster: a Cluster whose API server does not answer gets the revision that mends what it has, or takes it away: it
// is applied in this tier.
func TestDeadCluster(t *testing.T) {
	const good, brought = "main@sha1:1", "main@sha1:2"
	for name, tc := range map[string]struct {
		reason   string
		result   v1alpha1.RolloutResult
		removing []string
		gets     bool
	}{
		"NeverCameUp": {"what it was made with does not work", v1alpha1.ResultUnproven, nil, true},
		"Removed":     {"Git has it no more", v1alpha1.ResultSucceeded, []string{brought}, true},
		"Offline":     {"it was ready at what it has", v1alpha1.ResultSucceeded, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			lost := metav1.NewTime(time.Now().Add(-time.Hour))
			child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "dead", UID: "dead"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "dead"}}}
			child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonClusterNotReady, LastTransitionTime: lost}}
			pin := &v1alpha1.ChildRollout{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: good}, Run: 4, Result: tc.result, Since: lost}
			o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
			o.Spec.Waves = []v1alpha1.RolloutWave{{Name: "all"}}
			o.Spec.Deadline.Duration = time.Hour
			o.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: v1alpha1.RolloutRevision{Revision: good}, Run: 4}
			o.Status.Run = &v1alpha1.RolloutRun{Number: 4, RolloutRevision: o.Status.LastGood.RolloutRevision, Phase: v1alpha1.RolloutCompleted}
			m := &moved{spec: &o.Spec, composed: applied{revision: good, removing: tc.removing}}
			c := m.cluster(o, child, pin)
			m.ofComposition(t.Context(), child, pin, &c)
			f := &rolloutFacts{children: map[string]*v1alpha1.Child{"dead": child}}
			f.Candidate, f.Room, f.Clusters = &v1alpha1.RolloutRevision{Revision: brought}, -1, []rollout.Cluster{c}
			f.refusals(t.Context(), o, m)
			d := rollout.Next(o.Name, &o.Spec, &o.Status, f.Facts, time.Now())
			if got := slices.ContainsFunc(d.Pins, func(a rollout.Assignment) bool { return a.Revision == brought }); got != tc.gets {
				t.Errorf("%s: it is given %+v, hold %+v", tc.reason, d.Pins, d.Hold)
			}
		})
	}
}

// TestBlockedCluster: a Cluster waits for what its Kustomization cannot bring it, for no fault of its own.
func TestBlockedCluster(t *testing.T) {
	child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "a"}}}
	pin := &v1alpha1.ChildRollout{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:2"}, Result: v1alpha1.ResultUpdating}
	for name, tc := range map[string]struct {
		reason      string
		composed    applied
		blocked     bool
		outstanding string
	}{
		"Idle":    {"the newest revision does not build", applied{revision: "main@sha1:1", idle: "BuildFailed: no"}, true, "Kustomization clusters applies nothing of what clusters may have: BuildFailed: no"},
		"Reached": {"it was given the revision before that, and does not take it", applied{revision: "main@sha1:1", idle: "BuildFailed: no", reached: "main@sha1:2"}, false, ""},
		"Applied": {"it has all of it", applied{revision: "main@sha1:2", idle: "BuildFailed: no"}, false, ""},
		"Goes":    {"it is about to be applied", applied{revision: "main@sha1:1"}, false, ""},
		"Unread":  {"its control plane cannot be read, so that nothing of it is sent", applied{revision: "main@sha1:1", unread: "the webhook is down"}, true, "the webhook is down"},
		"Given":   {"a part of it was sent before that", applied{revision: "main@sha1:1", unread: "the webhook is down", reached: "main@sha1:2"}, false, ""},
		"Unbegun": {"its release cannot begin", applied{revision: "main@sha1:2", held: rollout.Hold{Reason: v1alpha1.ReasonControlPlaneUnreadable, Message: "the webhook is down"}}, true, "the webhook is down"},
		"Awaited": {"nobody can fetch it, as the agent began anew", applied{revision: "main@sha1:1", awaited: []string{"main@sha1:2"}}, true, "revision main@sha1:2 of GitRepository fleet has not been fetched yet"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
			o.Spec.Moves.KustomizationRef = &v1alpha1.LocalReference{Name: "clusters"}
			m := &moved{spec: &o.Spec, composed: tc.composed, from: source.Key{Kind: "GitRepository", NamespacedName: types.NamespacedName{Name: "fleet"}}}
			c := m.cluster(o, child, pin)
			if m.ofComposition(t.Context(), child, pin, &c); c.Blocked != tc.blocked || c.Outstanding != tc.outstanding {
				t.Errorf("%s: %+v", tc.reason, c)
			}
			if (m.again > 0) != (tc.composed.held.Reason != "") {
				t.Errorf("%s: it is looked at again after %s", tc.reason, m.again)
			}
		})
	}
}

// TestReachedCluster: the deadline of a Cluster whose release could not begin counts from when it did.
func TestReachedCluster(t *testing.T) {
	child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "a"}}}
	pin := &v1alpha1.ChildRollout{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:2"}, Result: v1alpha1.ResultUpdating}
	composed, begun := time.Unix(1_700_000_000, 0), time.Unix(1_700_001_000, 0)
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
	m := &moved{spec: &o.Spec, composed: applied{revision: "main@sha1:2", reached: "main@sha1:2", since: composed, begun: begun}}
	c := m.cluster(o, child, pin)
	if m.ofComposition(t.Context(), child, pin, &c); !c.Reached.Equal(begun) || c.Blocked {
		t.Errorf("it is reached since %s, want %s: %+v", c.Reached, begun, c)
	}
}

// TestWithheldCluster: a Cluster waits with what its HelmRelease was given while a person has that suspended, as one that is paused.
func TestWithheldCluster(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		result    v1alpha1.RolloutResult
		said      string
		applied   string
		condition string
		paused    bool
		rolling   string
		withheld  bool
		ready     bool
	}{
		"Given":     {reason: "nothing of it is released", result: v1alpha1.ResultUpdating, rolling: v1alpha1.ReasonSuspended, withheld: true},
		"PutOff":    {reason: "it waits until that is resumed", result: v1alpha1.ResultDeferred, said: v1alpha1.ReasonSuspended, rolling: v1alpha1.ReasonSuspended, withheld: true},
		"Scales":    {reason: "that it scales comes of nothing that it was given", result: v1alpha1.ResultUpdating, condition: "ScalingUp", rolling: v1alpha1.ReasonSuspended, withheld: true},
		"Paused":    {reason: "nobody acts on anything else either", result: v1alpha1.ResultUpdating, paused: true, rolling: v1alpha1.ReasonPaused},
		"Unapplied": {reason: "its HelmRelease was not given the revision yet", result: v1alpha1.ResultUpdating, applied: "main@sha1:1"},
		"Proven":    {reason: "it was in effect before it was suspended", result: v1alpha1.ResultDegraded, ready: true},
		"Failed":    {reason: "it did before that", result: v1alpha1.ResultFailed},
	} {
		t.Run(name, func(t *testing.T) {
			child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "a"}}}
			child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}}
			cluster := &unstructured.Unstructured{Object: map[string]any{
				"spec":   map[string]any{"paused": tc.paused},
				"status": map[string]any{"conditions": []any{map[string]any{"type": tc.condition, "status": "True"}}},
			}}
			cluster.SetAPIVersion("cluster.x-k8s.io/v1beta2")
			cluster.SetKind("Cluster")
			cluster.SetNamespace("fleet")
			cluster.SetName("a")
			pin := &v1alpha1.ChildRollout{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:2"}, Result: tc.result, Reason: tc.said}
			o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
			r := &Rollouts{Clusters: clusters.Fixed(cluster), Now: time.Now}
			suspended := "HelmRelease fleet/a is suspended"
			m := &moved{spec: &o.Spec, composed: applied{revision: cmp.Or(tc.applied, "main@sha1:2"), outstanding: suspended, held: rollout.Hold{Reason: v1alpha1.ReasonSuspended, Message: suspended}}}
			if c := r.cluster(t.Context(), o, m, child, pin); c.Rolling != tc.rolling || (c.Withheld != "") != tc.withheld || c.Ready != tc.ready || c.Blocked || c.Refusal != nil {
				t.Errorf("%s: %+v", tc.reason, c)
			}
			if tc.withheld && m.again == 0 {
				t.Errorf("%s: nobody looks again", tc.reason)
			}
		})
	}
}

// TestOutstandingCluster: that a cluster is well does not count for a revision before that is in
// effect, which is asked only of one that was given the revision.
func TestOutstandingCluster(t *testing.T) {
	child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "a"}}}
	child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}}
	for name, tc := range map[string]struct {
		reason      string
		result      v1alpha1.RolloutResult
		composed    applied
		ready       bool
		outstanding string
		refusal     string
	}{
		"InEffect":    {"all have done what was declared", v1alpha1.ResultUpdating, applied{revision: "main@sha1:2"}, true, "", ""},
		"Outstanding": {"its controller has not seen it", v1alpha1.ResultUpdating, applied{revision: "main@sha1:2", outstanding: "not yet"}, false, "not yet", ""},
		"Earlier":     {"it was not even applied", v1alpha1.ResultUpdating, applied{revision: "main@sha1:1", outstanding: "not yet"}, false, "", ""},
		"Unapplied":   {"a part of it cannot be applied, which is told", v1alpha1.ResultUpdating, applied{revision: "main@sha1:1", unapplied: "not all of it"}, false, "not all of it", ""},
		"Failed":      {"one that failed may come round", v1alpha1.ResultFailed, applied{revision: "main@sha1:2", outstanding: "not yet"}, false, "not yet", ""},
		"Succeeded":   {"it was asked before it succeeded", v1alpha1.ResultSucceeded, applied{revision: "main@sha1:2", outstanding: "not yet"}, true, "", ""},
		"Refused":     {"its release does not take it", v1alpha1.ResultUpdating, applied{revision: "main@sha1:2", held: rollout.Hold{Reason: v1alpha1.ReasonUnsupportedVersionStep, Message: "no"}}, false, "", "no"},
		"Held":        {"its Kustomization does not apply it", v1alpha1.ResultUpdating, applied{revision: "main@sha1:1", refused: errors.New("no")}, false, "", "no"},
		"HeldAll":     {"nor that of a Cluster of which nothing is known to be applied", v1alpha1.ResultUpdating, applied{refused: errors.New("no")}, false, "", "no"},
		"Untold":      {"the agent began anew, and something else of the Kustomization cannot be applied", v1alpha1.ResultSucceeded, applied{outstanding: "not yet"}, true, "", ""},
		"UntoldIll":   {"and it was not well for a while", v1alpha1.ResultDegraded, applied{outstanding: "not yet"}, false, "not yet", ""},
		"UntoldGiven": {"what it was given is not known to be applied", v1alpha1.ResultUpdating, applied{}, false, "", ""},
		"UntoldPast":  {"it got another one past the Rollout", v1alpha1.ResultSucceeded, applied{unpinned: true}, false, "", ""},
		"HeldBefore":  {"which was found when it failed", v1alpha1.ResultFailed, applied{revision: "main@sha1:1", refused: errors.New("no")}, false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			pin := &v1alpha1.ChildRollout{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:2"}, Result: tc.result}
			o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
			m := &moved{spec: &o.Spec, composed: tc.composed}
			c := m.cluster(o, child, pin)
			m.ofComposition(t.Context(), child, pin, &c)
			refusal := ""
			if c.Refusal != nil {
				refusal = c.Refusal.Message
			}
			if c.Ready != tc.ready || c.Outstanding != tc.outstanding || refusal != tc.refusal {
				t.Errorf("%s: %+v", tc.reason, c)
			}
		})
	}
}

// TestProvenClusterChanges: what a Cluster was ready at counts as it did while it only comes to another number of machines, or
// is paused, and not while machines are replaced.
func TestProvenClusterChanges(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		paused  bool
		changes string
		result  v1alpha1.RolloutResult
		ready   bool
	}{
		"Scales":       {"an autoscaler asked for machines", false, "ScalingUp", v1alpha1.ResultSucceeded, true},
		"ScaledBefore": {"it comes back at once", false, "ScalingDown", v1alpha1.ResultDegraded, true},
		"ScalesFirst":  {"the number may be what it was given", false, "ScalingUp", v1alpha1.ResultUpdating, false},
		"Replaces":     {"what it was given may be why", false, "Remediating", v1alpha1.ResultSucceeded, false},
		"Paused":       {"nothing of it changes", true, "", v1alpha1.ResultSucceeded, true},
		"PausedBefore": {"nor does anybody say that it is in effect again, once it was ill for a moment", true, "", v1alpha1.ResultDegraded, true},
		"PausedFirst":  {"nobody acts on what it was given", true, "", v1alpha1.ResultUpdating, false},
	} {
		t.Run(name, func(t *testing.T) {
			child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "a"}}}
			child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}}
			cluster := &unstructured.Unstructured{Object: map[string]any{
				"spec":   map[string]any{"paused": tc.paused},
				"status": map[string]any{"conditions": []any{map[string]any{"type": tc.changes, "status": "True"}}},
			}}
			cluster.SetAPIVersion("cluster.x-k8s.io/v1beta2")
			cluster.SetKind("Cluster")
			cluster.SetNamespace("fleet")
			cluster.SetName("a")
			pin := &v1alpha1.ChildRollout{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:2"}, Result: tc.result}
			o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
			r := &Rollouts{Clusters: clusters.Fixed(cluster), Now: time.Now}
			composed := applied{revision: "main@sha1:2"}
			if tc.paused {
				composed.outstanding = "the topology of Cluster a is not reconciled: Cluster spec.paused is set to true"
			}
			if c := r.cluster(t.Context(), o, &moved{spec: &o.Spec, composed: composed}, child, pin); c.Ready != tc.ready || c.Rolling == "" {
				t.Errorf("%s: %+v", tc.reason, c)
			}
		})
	}
}

// TestTierIsDone: a tier whose clusters are ready with what they had before is not done.
func TestTierIsDone(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		below  v1alpha1.ReportCounts
		// underway are its Rollouts that are on their way, and were when it got the revision.
		underway, was int32
		// earlier: it got the revision in an earlier run.
		earlier     bool
		ready, busy bool
	}{
		"Done":      {reason: "all are ready, with what it has for them", below: v1alpha1.ReportCounts{Total: 5, Ready: 5}, ready: true},
		"IllSince":  {reason: "two are not ready, and one was not before", below: v1alpha1.ReportCounts{Total: 5, Ready: 3}},
		"IllAsWas":  {reason: "one is not ready, and was not before either", below: v1alpha1.ReportCounts{Total: 5, Ready: 4}, ready: true},
		"OnItsWay":  {reason: "all are ready, and two not with what it has for them", below: v1alpha1.ReportCounts{Total: 5, Ready: 5, Updating: 2}, busy: true},
		"InWaves":   {reason: "its own Rollout brings it to all of them in waves", below: v1alpha1.ReportCounts{Total: 5, Ready: 5}, underway: 1, busy: true},
		"WavesWere": {reason: "it did so before it got the revision", below: v1alpha1.ReportCounts{Total: 5, Ready: 5}, underway: 1, was: 1, ready: true},
		"WavesEnd":  {reason: "that a Rollout of its own ended makes no room for a cluster that is not ready", below: v1alpha1.ReportCounts{Total: 5, Ready: 3}, was: 2},
		"IllSome":   {reason: "what was ill when an earlier run brought it the same is no measure for this one", below: v1alpha1.ReportCounts{Total: 5, Ready: 3}, earlier: true, ready: true},
		"IllBelow":  {reason: "one is not ready, and that is not for what is on its way", below: v1alpha1.ReportCounts{Total: 5, Ready: 3}, underway: 1},
	} {
		t.Run(name, func(t *testing.T) {
			child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}}
			child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}}
			child.Status.Layers = []v1alpha1.ChildLayer{{Name: "master", Revision: "main@sha1:2", Ready: true}}
			child.Status.Report = &v1alpha1.Report{Ready: true, Children: &tc.below, Rollouts: &v1alpha1.ReportRollouts{Pending: tc.underway}}
			pin := &v1alpha1.ChildRollout{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: "main@sha1:2"}, Result: v1alpha1.ResultUpdating, Brought: true, Below: 1, Underway: tc.was}
			o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "waves"}}
			o.Status.Run = &v1alpha1.RolloutRun{Number: 1}
			if pin.Run = 1; tc.earlier {
				o.Status.Run.Number, pin.Result = 2, v1alpha1.ResultSucceeded
			}
			m := &moved{spec: &o.Spec, layer: &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Name: "master"}}}
			if got := m.cluster(o, child, pin); got.Ready != tc.ready || (got.Busy != "") != tc.busy || got.Underway != tc.underway {
				t.Errorf("%s: it is done: %t, busy: %q, with %d on their way", tc.reason, got.Ready, got.Busy, got.Underway)
			}
		})
	}
}
