package remote

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
)

// TestUnreachable: a cluster is offline when its API server does not answer. An agent that is
// silent beside one that does was taken down by what it got, perhaps.
func TestUnreachable(t *testing.T) {
	made, changed, heard := time.Unix(1_700_000_000, 0), time.Unix(1_700_001_000, 0), time.Unix(1_700_002_000, 0)
	for _, tt := range []struct {
		reason    string
		connected metav1.ConditionStatus
		heardAt   *metav1.Time
		lost      time.Time
		healthy   bool
	}{
		{"it answers, and its agent renews its lease", metav1.ConditionTrue, nil, time.Time{}, true},
		{"it answers, and its agent is silent", metav1.ConditionTrue, &metav1.Time{Time: heard}, time.Time{}, false},
		{"it does not answer", metav1.ConditionFalse, nil, changed, true},
		{"it does not answer, and was not heard of for long", metav1.ConditionFalse, &metav1.Time{Time: heard}, changed, false},
		{"nobody connected yet", "", nil, made, true},
	} {
		child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(made)}}
		child.Status.HeardAt = tt.heardAt
		child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}}
		if tt.connected != "" {
			child.Status.Conditions = append(child.Status.Conditions, metav1.Condition{Type: v1alpha1.ConnectedCondition, Status: tt.connected, LastTransitionTime: metav1.NewTime(changed)})
		}
		o := &v1alpha1.Rollout{}
		c := (&moved{spec: &o.Spec}).cluster(o, child, nil)
		if !c.Unreachable.Equal(tt.lost) || c.Healthy != tt.healthy {
			t.Errorf("%s: unreachable since %s, healthy %v", tt.reason, c.Unreachable, c.Healthy)
		}
	}
}

// TestSourceInChild: what a child has of a source that a Rollout moves is what it says of that very
// object, whatever else it has.
func TestSourceInChild(t *testing.T) {
	const one, two = "main@sha1:1111111111111111111111111111111111111111", "main@sha1:2222222222222222222222222222222222222222"
	app := v1alpha1.RolloutPinnedSource{Kind: "GitRepository", Namespace: "apps", Name: "app"}
	web := v1alpha1.RolloutPinnedSource{Kind: "HelmRelease", Namespace: "apps", Name: "web"}
	has := func(of v1alpha1.RolloutPinnedSource, revision string) v1alpha1.ReportedSource {
		return v1alpha1.ReportedSource{Kind: of.Kind, Namespace: of.Namespace, Name: of.Name, Revision: revision}
	}
	brought := func(objects ...v1alpha1.ReportedSource) *v1alpha1.ReportBrought {
		return &v1alpha1.ReportBrought{Objects: objects, Complete: true}
	}
	for name, tc := range map[string]struct {
		reason string
		of     v1alpha1.RolloutPinnedSource
		said   v1alpha1.Report
		pin    string
		has    string
		ready  bool
		new    bool
	}{
		"NotThere":    {"it has one source, which is another: nothing of it is to be taken for the new one", app, v1alpha1.Report{Revision: one, Ready: true, Brought: brought()}, "", "", false, true},
		"SameCommit":  {"another source has the commit of the pin already, and this one is not there yet", app, v1alpha1.Report{Revision: two, Ready: true, Brought: brought()}, two, "", false, true},
		"There":       {"", app, v1alpha1.Report{Revision: one, Ready: true, Brought: brought(has(app, two))}, two, two, true, false},
		"Behind":      {"it has another commit", app, v1alpha1.Report{Ready: true, Brought: brought(has(app, one))}, two, one, false, false},
		"NotReady":    {"it has the commit, and is not ready with it", app, v1alpha1.Report{Brought: brought(has(app, two))}, two, two, false, false},
		"SameName":    {"a team of the cluster has a source of that name", app, v1alpha1.Report{Revision: "app=" + one + ",app=" + two, Ready: true, Brought: brought(has(app, two))}, two, two, true, false},
		"NoRoom":      {"it is not told, and is to have its first revision in its wave: it is told first from then on", app, v1alpha1.Report{Revision: "app=" + one + ",x=" + two, Brought: &v1alpha1.ReportBrought{More: 3}}, "", "", false, false},
		"OlderAgent":  {"it names no objects; its one source has what the pin says", app, v1alpha1.Report{Revision: two, Ready: true}, two, "", true, false},
		"OlderNames":  {"of several it names each", app, v1alpha1.Report{Revision: "app=" + one + ",x=" + two, Ready: true}, "", one, false, false},
		"OlderOthers": {"it names others, and is not kept from the agent that the layer may bring", app, v1alpha1.Report{Revision: "w=" + one + ",x=" + two, Ready: true}, "", "", false, false},
		"Release":     {"a chart's version", web, v1alpha1.Report{Revision: one, Ready: true, Brought: brought(has(web, "1.3.0"))}, "1.3.0", "1.3.0", true, false},
		"ValuesFiles": {"the chart of this tier has values files, which took what the repository says besides the version", web, v1alpha1.Report{Ready: true, Brought: brought(has(web, "v1.3.0+b"))}, "1.3.0", "v1.3.0+b", true, false},
		"OtherBuild":  {"of one version there may be several builds", web, v1alpha1.Report{Ready: true, Brought: brought(has(web, "1.3.0+b"))}, "1.3.0+c", "1.3.0+b", false, false},
		"NoBuildYet":  {"a build of a version is not the version before it", web, v1alpha1.Report{Ready: true, Brought: brought(has(web, "1.3.0"))}, "1.3.0+c", "1.3.0", false, false},
		"NextRelease": {"", web, v1alpha1.Report{Ready: true, Brought: brought(has(web, "1.3.0"))}, "1.4.0", "1.3.0", false, false},
		"NoRelease":   {"a commit is no version of a chart", web, v1alpha1.Report{Revision: one, Ready: true}, "", "", false, false},
	} {
		o := &v1alpha1.Rollout{}
		o.Spec.Moves.Source = &tc.of
		child := &v1alpha1.Child{}
		child.Status.Report = &tc.said
		child.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}}
		var pin *v1alpha1.ChildRollout
		if tc.pin != "" {
			pin = &v1alpha1.ChildRollout{RolloutRevision: v1alpha1.RolloutRevision{Revision: tc.pin}, Brought: true}
		}
		c := (&moved{spec: &o.Spec}).cluster(o, child, pin)
		got := ""
		if c.Has != nil {
			got = c.Has.Revision
		}
		if got != tc.has || c.Ready != tc.ready || !c.Known || c.New != tc.new {
			t.Errorf("%s: %s: it has %q, ready %t, known %t, new %t, want %q, %t, %t", name, tc.reason, got, c.Ready, c.Known, c.New, tc.has, tc.ready, tc.new)
		}
	}
}

// TestNewToRollout: a child is new to a Rollout if nothing that could bring what it moves was ever in place, or
// its agent tells that it has none of it.
func TestNewToRollout(t *testing.T) {
	base := &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Name: "base"}}
	app := &v1alpha1.RolloutPinnedSource{Kind: "GitRepository", Namespace: "apps", Name: "app"}
	waits := v1alpha1.ChildLayer{Name: "base", Reason: v1alpha1.ReasonRolloutPending}
	inPlace := v1alpha1.ChildLayer{Name: "base", Reason: v1alpha1.ReasonRolloutPending, Digest: "sha256:1"}
	for name, tc := range map[string]struct {
		reason string
		moved  moved
		layers []v1alpha1.ChildLayer
		said   *v1alpha1.Report
		want   bool
	}{
		"Layer":         {"", moved{layer: base}, []v1alpha1.ChildLayer{waits}, nil, true},
		"LayerInPlace":  {"", moved{layer: base}, []v1alpha1.ChildLayer{inPlace}, nil, false},
		"LayerUnasked":  {"nobody asked the child yet", moved{layer: base}, []v1alpha1.ChildLayer{{Name: "base"}}, nil, false},
		"Source":        {"", moved{}, []v1alpha1.ChildLayer{waits}, nil, true},
		"SourceInPlace": {"a layer is in place, which may have brought it", moved{}, []v1alpha1.ChildLayer{waits, inPlace}, nil, false},
		"SourceUntold":  {"an agent of before may have it without a word of it", moved{}, []v1alpha1.ChildLayer{waits}, &v1alpha1.Report{Ready: true}, false},
		"SourceTold":    {"its agent came with a layer that is in place, and tells all that layers brought", moved{}, []v1alpha1.ChildLayer{waits, inPlace}, &v1alpha1.Report{Brought: &v1alpha1.ReportBrought{Complete: true}}, true},
		"SourceUnnamed": {"an agent of before leaves out HelmReleases whose version no pin can name", moved{}, []v1alpha1.ChildLayer{waits, inPlace}, &v1alpha1.Report{Brought: &v1alpha1.ReportBrought{}}, false},
		"SourceNoRoom":  {"it may be one of those that there was no room for", moved{}, []v1alpha1.ChildLayer{waits, inPlace}, &v1alpha1.Report{Brought: &v1alpha1.ReportBrought{More: 1}}, false},
	} {
		o := &v1alpha1.Rollout{}
		if tc.moved.layer == nil {
			o.Spec.Moves.Source = app
		}
		tc.moved.spec = &o.Spec
		child := &v1alpha1.Child{}
		child.Status.Layers, child.Status.Report = tc.layers, tc.said
		if c := tc.moved.cluster(o, child, nil); c.New != tc.want {
			t.Errorf("%s: %s: new %t, want %t", name, tc.reason, c.New, tc.want)
		}
	}
}

// TestChanging: what counts against the room of a tier are clusters that somebody still judges, and
// nothing is counted by a cache that lags.
func TestChanging(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "base", UID: "1"}}
	o.Status.UID = o.UID
	o.Spec.Moves.LayerRef = &v1alpha1.LayerReference{Name: "base"}
	o.Spec.Deadline.Duration = 30 * time.Minute
	clusters := rolloutNamed("clusters", v1alpha1.RolloutMoves{KustomizationRef: &v1alpha1.LocalReference{Name: "clusters"}})
	clusters.UID, clusters.Status.UID, clusters.Spec.Deadline = "2", "2", o.Spec.Deadline
	held := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "held"}, Spec: v1alpha1.ChildSpec{ClusterRef: &v1alpha1.LocalReference{Name: "held"}}}
	held.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "clusters", UID: "2", Result: v1alpha1.ResultUpdating, Since: metav1.NewTime(now.Add(-time.Hour))}}
	objects := []client.Object{o, clusters, held}
	for name, since := range map[string]time.Duration{"new": time.Minute, "forgotten": time.Hour} {
		child := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}
		child.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "base", UID: "1", Result: v1alpha1.ResultUpdating, Since: metav1.NewTime(now.Add(-since))}}
		objects = append(objects, child)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r := &Rollouts{
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), rollouts: &rolloutKind{now: time.Now, served: true},
		Now: func() time.Time { return now },
	}
	if n, err := r.changing(t.Context()); err != nil || n != 1 {
		t.Errorf("%d clusters are changing (%v), want 1", n, err)
	}
	// What the Kustomization was given an hour ago it applied a minute ago, as it could not be built before.
	r.Compositions = compositionsOf{"clusters": applied{since: now.Add(-time.Minute)}}
	if n, err := r.changing(t.Context()); err != nil || n != 2 {
		t.Errorf("%d clusters are changing (%v), want 2", n, err)
	}
	// Nor did a layer reach anybody for an hour, as it was suspended.
	r.barriers = map[types.NamespacedName]map[string]barrier{client.ObjectKeyFromObject(o): {"": {since: now.Add(-time.Hour), over: now.Add(-time.Minute)}}}
	if n, err := r.changing(t.Context()); err != nil || n != 3 {
		t.Errorf("%d clusters are changing (%v), want 3", n, err)
	}
	r.wrote(writtenKey{true, types.NamespacedName{Namespace: "fleet", Name: "new"}}, &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "new", ResourceVersion: "99999"}})
	if _, err := r.changing(t.Context()); !errors.Is(err, errLags) {
		t.Errorf("changing() = %v, want %v", err, errLags)
	}
}
