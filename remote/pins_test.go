package remote

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/account"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/source"
)

func rolloutNamed(name string, moves v1alpha1.RolloutMoves) *v1alpha1.Rollout {
	r := &v1alpha1.Rollout{}
	r.Namespace, r.Name, r.Spec.Moves = "fleet", name, moves
	return r
}

func movesLayer(name string) v1alpha1.RolloutMoves {
	return v1alpha1.RolloutMoves{LayerRef: &v1alpha1.LayerReference{Name: name}}
}

func pinTo(name, revision, image string) v1alpha1.ChildRollout {
	return v1alpha1.ChildRollout{Name: name, RolloutRevision: v1alpha1.RolloutRevision{Revision: revision, Image: image}}
}

var fleetSource = v1alpha1.RolloutPinnedSource{Kind: "GitRepository", Namespace: "cascade-system", Name: "fleet"}

const (
	commitOne = "main@sha1:1111111111111111111111111111111111111111"
	commitTwo = "main@sha1:2222222222222222222222222222222222222222"
)

// TestLayerPins: what a layer is rendered from for a child that Rollouts govern.
func TestLayerPins(t *testing.T) {
	base := rolloutNamed("base", movesLayer("base"))
	key := source.Key{Kind: "GitRepository"}
	key.Namespace, key.Name = "fleet", "fleet"
	lost := errors.New("the server did not send it")
	for name, tc := range map[string]struct {
		reason    string
		governing rollout.Governing
		pins      []v1alpha1.ChildRollout
		kind      string
		revision  string
		image     string
		why       string
		words     string
	}{
		"Free":     {"no Rollout moves it: the newest", rollout.Governing{rolloutNamed("a", movesLayer("other"))}, []v1alpha1.ChildRollout{pinTo("a", "r1", "old")}, "", "r3", "cascade:v3", "", ""},
		"Pinned":   {"the revision and the agent of the pin", rollout.Governing{base}, []v1alpha1.ChildRollout{pinTo("base", "r1", "cascade:v1")}, "", "r1", "cascade:v1", "", ""},
		"NoImage":  {"a pin of a time without an agent says nothing of it", rollout.Governing{base}, []v1alpha1.ChildRollout{pinTo("base", "r1", "")}, "", "r1", "cascade:v3", "", ""},
		"Newest":   {"the pin is the newest by chance", rollout.Governing{base}, []v1alpha1.ChildRollout{pinTo("base", "r3", "")}, "", "r3", "cascade:v3", "", ""},
		"NoPin":    {"nothing moves early", rollout.Governing{base}, nil, "", "", "", "RolloutPending", "Rollout base has not let"},
		"Deleted":  {"an entry without a Rollout governs nothing", nil, []v1alpha1.ChildRollout{pinTo("base", "r1", "cascade:v1")}, "", "r3", "cascade:v3", "", ""},
		"Two":      {"nobody knows whose it is to be", rollout.Governing{base, rolloutNamed("z", movesLayer("base"))}, []v1alpha1.ChildRollout{pinTo("base", "r1", "")}, "", "", "", "RolloutConflict", "base and z"},
		"Unknown":  {"it is on its way", rollout.Governing{base}, []v1alpha1.ChildRollout{pinTo("base", "r2", "")}, "", "", "", "SourceNotReady", "has not been fetched yet"},
		"Lost":     {"the cause is told", rollout.Governing{base}, []v1alpha1.ChildRollout{pinTo("base", "lost", "")}, "", "", "", "SourceNotReady", "cannot fetch revision lost of GitRepository fleet/fleet: the server did not send it"},
		"IsBucket": {"a bucket has what it has", rollout.Governing{base}, []v1alpha1.ChildRollout{pinTo("base", "r1", "")}, "Bucket", "", "", "InvalidSpec", "a Bucket, which has no older revisions"},
	} {
		t.Run(name, func(t *testing.T) {
			snapshots := source.NewSnapshots()
			layer := layerOn("base")
			layer.Namespace = "fleet"
			layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Name: "fleet"}
			if tc.kind != "" {
				layer.Spec.SourceRef.Kind = tc.kind
			}
			layer.Spec.Agent, layer.Status.AgentImage = &v1alpha1.AgentSpec{}, "cascade:v3"
			child := &v1alpha1.Child{}
			child.Namespace, child.Name, child.Status.Rollouts = "fleet", "a", tc.pins
			snapshots.Put(key, &source.Snapshot{Revision: "r1"})
			snapshots.Retain(source.Holder{Kind: "test"}, source.Pinned{Key: key, Revision: "r1"}, source.Pinned{Key: key, Revision: "lost"})
			snapshots.Put(key, &source.Snapshot{Revision: "r3"})
			snapshots.Fail(key, "lost", lost)
			r := &run{Children: &Children{Snapshots: snapshots}, child: child, governing: tc.governing}
			r.retain([]*v1alpha1.Layer{layer})
			s := &seeding{push: &push{run: r}, layer: layer, notes: &layerNotes{}}
			var err error
			if s.pin, err = s.pinned(); err == nil {
				if s.image, err = s.imageOf(); err == nil {
					s.snapshot, err = s.snapshotOf(layerSource(layer))
				}
			}
			if tc.why != "" {
				if !isWaitingError(err) || reason.Of(err) != tc.why || !strings.Contains(err.Error(), tc.words) {
					t.Errorf("%s: %s: %v, want %s: %s", tc.reason, reason.Of(err), err, tc.why, tc.words)
				}
				return
			}
			if err != nil || s.revision() != tc.revision || s.image != tc.image {
				t.Errorf("%s: %q with %q, %v; want %q with %q", tc.reason, s.revision(), s.image, err, tc.revision, tc.image)
			}
			s.ahead = true
			if pin, err := s.pinned(); pin != nil || err != nil {
				t.Errorf("what the newest revision declares depends on a pin: %v, %v", pin, err)
			}
		})
	}
}

// TestRetain: what a child may have of its layers is kept, and nothing else.
func TestRetain(t *testing.T) {
	layer, free := layerOn("base"), layerOn("free")
	layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Name: "fleet", Namespace: "fleet"}
	free.Spec.SourceRef = layer.Spec.SourceRef
	key := layerSource(layer)
	child := &v1alpha1.Child{}
	child.Status.Rollouts = []v1alpha1.ChildRollout{pinTo("base", "r1", ""), pinTo("free", "r2", "")}
	r := &run{Children: &Children{Snapshots: source.NewSnapshots()}, child: child, governing: rollout.Governing{rolloutNamed("base", movesLayer("base"))}}
	want := func(revisions ...string) {
		t.Helper()
		if got, _ := r.Snapshots.Retained(key); !slices.Equal(got, revisions) {
			t.Errorf("retained are %v, want %v", got, revisions)
		}
	}
	r.retain([]*v1alpha1.Layer{layer, free})
	want("r1")
	child.Status.Rollouts[0].Revision = "r2"
	r.retain([]*v1alpha1.Layer{layer})
	want("r2")
	r.retain([]*v1alpha1.Layer{free})
	want()
}

const pinnedLayer = `apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: fleet, namespace: cascade-system}
spec: {url: "https://example.com/fleet", ref: {branch: main}, interval: 1m}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other, namespace: cascade-system}
`

// TestObjectPins: each child has its own pin in the object, those without a Rollout share
// theirs, and only a pin of an object that the layer has counts as one of its inputs.
func TestObjectPins(t *testing.T) {
	f := newFleet(t, map[string]string{"a.yaml": pinnedLayer})
	moving := rolloutNamed("services", v1alpha1.RolloutMoves{Source: &fleetSource})
	gone := fleetSource
	gone.Name = "gone"
	other := rolloutNamed("other", v1alpha1.RolloutMoves{Source: &gone})
	on := func(n int, governing rollout.Governing, pins ...v1alpha1.ChildRollout) *seeding {
		s := f.on(n)
		s.notes, s.governing = &layerNotes{}, governing
		s.child.Status.Rollouts = pins
		return s
	}
	commitIn := func(s *seeding) string {
		t.Helper()
		phases, err := s.fromGit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range phases[0].Objects {
			if is, _ := rollout.Identify(u); is == fleetSource {
				ref, _ := u.Object["spec"].(map[string]any)["ref"].(map[string]any)
				commit, _ := ref["commit"].(string)
				return commit
			}
		}
		t.Fatal("the object is gone")
		return ""
	}
	digest := func(s *seeding) string {
		t.Helper()
		phases, err := s.fromGit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d, err := digestOf(phases)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	both := rollout.Governing{other, moving}
	free, one, two := on(0, nil), on(1, both, pinTo("services", commitOne, "")), on(2, both, pinTo("services", commitTwo, ""))
	before := one.inputs()
	for _, tc := range []struct {
		s    *seeding
		want string
	}{{free, ""}, {one, commitOne[len("main@sha1:"):]}, {two, commitTwo[len("main@sha1:"):]}, {free, ""}} {
		if got := commitIn(tc.s); got != tc.want {
			t.Errorf("the object is at %q, want %q", got, tc.want)
		}
	}
	if digest(one) == digest(two) || digest(one) == digest(free) {
		t.Error("a pin is no part of the digest")
	}
	if diff := cmp.Diff([]v1alpha1.RolloutPinnedSource{gone}, one.notes.idle); diff != "" {
		t.Errorf("objects that the layer has nothing of: -want, +got:\n%s", diff)
	}
	looked := one.inputs()
	if looked == before {
		t.Error("an object that the layer does not have is one of its inputs")
	}
	one.child.Status.Rollouts = append(one.child.Status.Rollouts, pinTo("other", commitTwo, ""))
	if one.inputs() != looked {
		t.Error("a pin that is not of the layer pushes it")
	}
	one.child.Status.Rollouts[0].Revision = commitTwo
	if one.inputs() == looked {
		t.Error("another pin does not push the layer")
	}
	third := gone
	third.Name = "third"
	one.governing = append(both, rolloutNamed("third", v1alpha1.RolloutMoves{Source: &third}))
	if got := one.objectPins(); len(got) != 2 {
		t.Errorf("a Rollout that has come does not have the layer looked at: %v", got)
	}

	for name, tc := range map[string]struct {
		reason     string
		s          *seeding
		why, words string
	}{
		"NoPin":    {"nothing moves early", on(3, both), "RolloutPending", "Rollout services has not let this cluster have a revision of GitRepository cascade-system/fleet"},
		"Two":      {"", on(4, rollout.Governing{moving, rolloutNamed("x", v1alpha1.RolloutMoves{Source: &fleetSource})}, pinTo("x", commitOne, "")), "RolloutConflict", "services and x"},
		"Unusable": {"a version of a chart is no commit", on(5, both, pinTo("services", "1.2.3", "")), "InvalidSpec", "names no commit"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.s.fromGit(t.Context())
			if !isWaitingError(err) || reason.Of(err) != tc.why || !strings.Contains(err.Error(), tc.words) {
				t.Errorf("%s: %s: %v", tc.reason, reason.Of(err), err)
			}
			tc.s.ahead = true
			if _, err := tc.s.fromGit(t.Context()); err != nil {
				t.Errorf("what the newest revision declares is not known: %v", err)
			}
		})
	}
}

// TestWaits: a layer that is in place stays ready and says what it waits for; another one
// says that it waits.
func TestWaits(t *testing.T) {
	why := waitsBecause(v1alpha1.ReasonRolloutPending, "waits")
	s := &seeding{push: &push{run: &run{}}, layer: layerOn("base"), notes: &layerNotes{noted: true}}
	entry := &v1alpha1.ChildLayer{Ready: true, Revision: "r1"}
	if err := s.waits(t.Context(), entry, why); err != nil || !s.complete || s.standing != "waits" || entry.Revision != "r1" {
		t.Errorf("in place: %v, %t, %q at %s", err, s.complete, s.standing, entry.Revision)
	}
	entry.Ready = false
	s = &seeding{push: &push{run: &run{}}, layer: layerOn("base"), notes: &layerNotes{noted: true}}
	if err := s.waits(t.Context(), entry, why); !errors.Is(err, why) || s.complete || s.standing != "" {
		t.Errorf("not in place: %v, %t, %q", err, s.complete, s.standing)
	}
}

// TestContents: children at different revisions do not take turns in having a layer rendered
// anew.
func TestContents(t *testing.T) {
	f := newFleet(t, map[string]string{"a.yaml": noteOf("1"), "unread/x": "1"})
	at := func(files map[string]string) *seeding {
		f.snapshot = snapshotOf(t, files)
		s := f.on(0)
		s.notes = &layerNotes{}
		return s
	}
	f.layer.Spec.Path = "app"
	one := at(map[string]string{"app/a.yaml": noteOf("1"), "unread/x": "1"})
	same := at(map[string]string{"app/a.yaml": noteOf("1"), "unread/x": "2"})
	two := at(map[string]string{"app/a.yaml": noteOf("2"), "unread/x": "2"})
	keys := map[*seeding]string{}
	for round := range 3 {
		for n, s := range []*seeding{one, same, two} {
			key, _ := f.children.contents.of(f.layer, s.snapshot)
			if round > 0 && key != keys[s] {
				t.Errorf("round %d: snapshot %d is another content than before", round, n)
			}
			keys[s], s.content = key, key
			if _, err := s.fromGit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if keys[one] != keys[same] || keys[one] == keys[two] {
		t.Errorf("contents are %v", keys)
	}
}

func noteOf(value string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: note, namespace: ns}\ndata: {at: \"" + value + "\"}\n"
}

// TestMovedToLayer: what a later commit moved to another layer is not sent any more as an older revision has it, once that
// layer has applied it, for as long as it declares it.
func TestMovedToLayer(t *testing.T) {
	values := strings.ReplaceAll(noteOf("2"), "name: note", "name: values")
	here := map[string]string{"a.yaml": noteOf("1"), "b.yaml": values}
	for name, tc := range map[string]struct {
		reason string
		// newest is what the newest revision of the layer has, and other what the other layer has.
		newest, other map[string]string
		// part: not all of the other layer is there. turn: it had its turn in this run.
		part, turn, moved bool
	}{
		"Moved":   {reason: "the other layer has it", newest: map[string]string{"a.yaml": noteOf("2")}, other: map[string]string{"b.yaml": values}, moved: true},
		"Turn":    {reason: "the other layer was just sent", newest: map[string]string{"a.yaml": noteOf("2")}, other: map[string]string{"b.yaml": values}, turn: true, moved: true},
		"NotYet":  {reason: "the other layer is not in place", newest: map[string]string{"a.yaml": noteOf("2")}, other: map[string]string{"b.yaml": values}, part: true},
		"Dropped": {reason: "a commit after that took it out of the other layer", newest: map[string]string{"a.yaml": noteOf("2")}, other: map[string]string{"a.yaml": strings.ReplaceAll(values, "values", "more")}},
		"Both":    {reason: "the layer has it at the newest revision, too", newest: map[string]string{"a.yaml": noteOf("2"), "b.yaml": values}, other: map[string]string{"b.yaml": values}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, here)
			f.snapshot.Revision = "r1"
			f.children.Snapshots, f.children.Accounts = source.NewSnapshots(), &account.Accounts{}
			f.layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Name: "fleet"}
			apps := layerOn("apps")
			apps.UID, apps.Generation, apps.Spec.SourceRef = "2", 1, &v1alpha1.SourceReference{Kind: "GitRepository", Name: "apps"}
			newest, theirs := snapshotOf(t, tc.newest), snapshotOf(t, tc.other)
			newest.Revision = "r2"
			f.children.Snapshots.Put(layerSource(f.layer), newest)
			f.children.Snapshots.Put(layerSource(apps), theirs)
			s := f.on(0)
			s.as, s.notes, s.pin = &account.Account{}, &layerNotes{}, &v1alpha1.RolloutRevision{Revision: "r1"}
			other := func() *seeding {
				return &seeding{push: s.push, layer: apps, vars: maps.Clone(s.push.vars), notes: &layerNotes{}}
			}
			sent := other()
			if err := errors.Join(s.gather(t.Context(), sent), sent.render(t.Context())); err != nil {
				t.Fatal(err)
			}
			entry := v1alpha1.ChildLayer{Name: "apps", Digest: sent.rendered.digest, LastAttemptedDigest: sent.rendered.digest}
			if tc.part {
				entry.Digest = "sha256:1"
			}
			s.child.Status.Layers = []v1alpha1.ChildLayer{entry}
			if s.layers = []*seeding{s, sent}; !tc.turn {
				s.layers[1] = other()
			}
			if err := s.render(t.Context()); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range s.rendered.entries {
				got = append(got, e.Name)
			}
			want := []string{"note", "values"}
			if tc.moved {
				want = want[:1]
			}
			if diff := cmp.Diff(want, got); diff != "" || s.notes.handed != tc.moved {
				t.Errorf("%s: it looks again: %t, declared are: -want, +got:\n%s", tc.reason, s.notes.handed, diff)
			}
			if len(objectsIn(s.rendered.phases[len(s.rendered.phases)-2])) != len(want) {
				t.Errorf("%s: sent are %v", tc.reason, s.rendered.phases)
			}
			if !tc.turn && s.layers[1].rendered != nil {
				t.Errorf("%s: the other layer is rendered before its turn", tc.reason)
			}
		})
	}
}

// TestOtherPins: what became of a revision does not wake the child that says so.
func TestOtherPins(t *testing.T) {
	child := func(pins ...v1alpha1.ChildRollout) *v1alpha1.Child {
		c := &v1alpha1.Child{}
		c.Status.Rollouts = pins
		return c
	}
	one := pinTo("a", "r1", "v1")
	done := one
	done.Result, done.Run, done.Since = v1alpha1.ResultSucceeded, 2, metav1.Now()
	for name, tc := range map[string]struct {
		before, after *v1alpha1.Child
		want          bool
	}{
		"First": {child(), child(one), true}, "Same": {child(one), child(one), false}, "Result": {child(one), child(done), false},
		"Revision": {child(one), child(pinTo("a", "r2", "v1")), true}, "Image": {child(one), child(pinTo("a", "r1", "v2")), true}, "Gone": {child(one), child(), true},
	} {
		if got := otherPins().Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	before := rolloutNamed("a", movesLayer("base"))
	after := before.DeepCopy()
	after.Status.Run, after.Spec.Suspend, after.Spec.Waves = &v1alpha1.RolloutRun{RolloutRevision: v1alpha1.RolloutRevision{Revision: "r2"}}, true, []v1alpha1.RolloutWave{{Name: "all"}}
	update := event.TypedUpdateEvent[*v1alpha1.Rollout]{ObjectOld: before, ObjectNew: after}
	if otherMoves().Update(update) || !otherAim().Update(update) {
		t.Error("a run wakes the children, or not the layer")
	}
	after.Spec.ClusterSelector = &metav1.LabelSelector{}
	if !otherMoves().Update(update) {
		t.Error("another selector wakes nobody")
	}
}

// TestAims: what the children of a layer are to have, and which of them wait for a Rollout.
func TestAims(t *testing.T) {
	layer := layerOn("base")
	layer.Spec.ClusterSelector.MatchLabels = map[string]string{"tier": "tenant"}
	child := func(name, has string, pins ...v1alpha1.ChildRollout) v1alpha1.Child {
		c := childNamed(name, []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue, Reason: "Succeeded"}})
		c.Labels = map[string]string{"tier": "tenant", "name": name}
		c.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Ready: true, Reason: "Succeeded", Revision: has}}
		c.Status.Rollouts = pins
		return c
	}
	mover := rolloutNamed("base", movesLayer("base"))
	mover.Status.Run = &v1alpha1.RolloutRun{RolloutRevision: v1alpha1.RolloutRevision{Revision: "r2"}}
	some := mover.DeepCopy()
	some.Spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"name": "a"}}
	fresh := mover.DeepCopy()
	fresh.Status.Run = nil
	back := mover.DeepCopy()
	back.Status.Run.Phase = v1alpha1.RolloutAborted
	back.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: v1alpha1.RolloutRevision{Revision: "r1"}}
	back.Status.Candidate = &v1alpha1.RolloutRevision{Revision: "r1"}
	past := child("a", "r3", pinTo("base", "r2", ""))
	past.Status.Layers[0].Past = "base"
	pending := child("a", "")
	pending.Status.Layers[0] = v1alpha1.ChildLayer{Name: "base", Reason: v1alpha1.ReasonRolloutPending, Message: "waits"}
	for name, tc := range map[string]struct {
		reason   string
		movers   []v1alpha1.Rollout
		children []v1alpha1.Child
		revision string
		counts   v1alpha1.ChildCounts
		ready    string
		message  string
	}{
		"Newest":  {"no Rollout", nil, []v1alpha1.Child{child("a", "r3"), child("b", "r2")}, "r3", v1alpha1.ChildCounts{Total: 2, Current: 1, Updating: 1}, "Unknown/Progressing", "in place on 1 of 2"},
		"All":     {"the newest does not count", []v1alpha1.Rollout{*mover}, []v1alpha1.Child{child("a", "r2", pinTo("base", "r2", ""))}, "r2", v1alpha1.ChildCounts{Total: 1, Current: 1}, "True/Succeeded", "in place on all 1"},
		"Waits":   {"one has the new one, two do not yet", []v1alpha1.Rollout{*mover}, []v1alpha1.Child{child("a", "r2", pinTo("base", "r2", "")), child("b", "r1", pinTo("base", "r1", "")), child("c", "r1")}, "r2", v1alpha1.ChildCounts{Total: 3, Current: 1, Waiting: 2}, "False/RolloutPending", "2 of 3 clusters wait for Rollout base"},
		"Moving":  {"it may have it and does not yet", []v1alpha1.Rollout{*mover}, []v1alpha1.Child{child("a", "r1", pinTo("base", "r2", ""))}, "r2", v1alpha1.ChildCounts{Total: 1, Updating: 1}, "Unknown/Progressing", "it has r1 and is to have r2"},
		"Back":    {"on its way to an older one", []v1alpha1.Rollout{*mover}, []v1alpha1.Child{child("a", "r2", pinTo("base", "r1", ""))}, "r2", v1alpha1.ChildCounts{Total: 1, Updating: 1}, "Unknown/Progressing", "it has r2 and is to have r1"},
		"Past":    {"an earlier version brought it the newest one", []v1alpha1.Rollout{*mover}, []v1alpha1.Child{past}, "r2", v1alpha1.ChildCounts{Total: 1, Waiting: 1}, "False/RolloutPending", "1 of 1 clusters wait for Rollout base"},
		"SetBack": {"a run was aborted before anybody had its revision, and the source is back", []v1alpha1.Rollout{*back}, []v1alpha1.Child{child("a", "r1", pinTo("base", "r1", ""))}, "r1", v1alpha1.ChildCounts{Total: 1, Current: 1}, "True/Succeeded", "in place on all 1"},
		"Part":    {"the others follow the newest", []v1alpha1.Rollout{*some}, []v1alpha1.Child{child("a", "r2", pinTo("base", "r2", "")), child("b", "r3")}, "r2", v1alpha1.ChildCounts{Total: 2, Current: 2}, "True/Succeeded", "in place on all 2"},
		"NoRun":   {"the Rollout was made a moment ago", []v1alpha1.Rollout{*fresh}, []v1alpha1.Child{child("a", "r3"), pending}, "r3", v1alpha1.ChildCounts{Total: 2, Waiting: 2}, "False/RolloutPending", "2 of 2 clusters wait"},
		"Two":     {"", []v1alpha1.Rollout{*mover, *rolloutNamed("z", movesLayer("base"))}, []v1alpha1.Child{child("a", "r2")}, "r3", v1alpha1.ChildCounts{Total: 1, Failed: 1}, "False/ChildrenNotReady", "RolloutConflict"},
		"Stuck":   {"a failure is worth more than a wait", []v1alpha1.Rollout{*mover, *rolloutNamed("z", movesLayer("base"))}, []v1alpha1.Child{child("a", "r2"), child("b", "r1", pinTo("base", "r1", ""))}, "r3", v1alpha1.ChildCounts{Total: 2, Failed: 2}, "False/ChildrenNotReady", "RolloutConflict"},
		"Unaware": {"other labels than those of the selector", []v1alpha1.Rollout{*some}, []v1alpha1.Child{child("b", "r3", pinTo("base", "r1", ""))}, "r2", v1alpha1.ChildCounts{Total: 1, Current: 1}, "True/Succeeded", "in place"},
	} {
		t.Run(name, func(t *testing.T) {
			l := layer.DeepCopy()
			summarize(l, tc.children, aims{layer: "base", newest: "r3", movers: tc.movers})
			tc.counts.Seeded, tc.counts.Failing = tc.counts.Current, tc.counts.Failed
			if diff := cmp.Diff(tc.counts, l.Status.Children); diff != "" || l.Status.Revision != tc.revision {
				t.Errorf("%s: at %s, counts -want, +got:\n%s", tc.reason, l.Status.Revision, diff)
			}
			c := l.Status.Conditions[0]
			if got := string(c.Status) + "/" + c.Reason; got != tc.ready || !strings.Contains(c.Message, tc.message) {
				t.Errorf("%s: %s: %s; want %s: %s", tc.reason, got, c.Message, tc.ready, tc.message)
			}
		})
	}
}
