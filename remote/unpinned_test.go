package remote

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	events "k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/link"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestUnpinned: what an earlier version brought, past the Rollout, is not taken back before the
// Rollout goes on from there. What the record, or the status, knows of the pin is brought as ever.
func TestUnpinned(t *testing.T) {
	base := rolloutNamed("base", movesLayer("base"))
	at := func(revision string) record.State {
		return record.State{Revision: revision, Digest: "sha256:of-" + revision}
	}
	for name, tc := range map[string]struct {
		reason string
		// has is in the child, by the record, pinned what that says of the pin, and said what the
		// status says.
		has    record.State
		pinned string
		said   record.State
		result v1alpha1.RolloutResult
		waits  bool
		// part is what was sent last, in part, if that is not what is there.
		part record.State
		// image of the child's agent, if that is not the one of the pin.
		image string
	}{
		"Image":     {"an earlier version sent the agent of the layer", record.State{Revision: "r1", Digest: "sha256:x"}, "", record.State{Revision: "r1", Digest: "sha256:x"}, v1alpha1.ResultSucceeded, true, record.State{}, "cascade:v1"},
		"BothMoved": {"an earlier version sent both, and the layer has yet another agent", at("r2"), "", at("r2"), v1alpha1.ResultSucceeded, true, record.State{}, "cascade:v1"},
		"NoSource":  {"the agent is all that there is", record.State{Digest: "sha256:x"}, "", record.State{Digest: "sha256:x"}, v1alpha1.ResultSucceeded, true, record.State{}, "cascade:v1"},
		"Variable":  {"the cluster has another variable", record.State{Revision: "r1", Digest: "sha256:x"}, "", record.State{Revision: "r1", Digest: "sha256:x"}, v1alpha1.ResultSucceeded, false, record.State{}, ""},
		"Part":      {"an earlier version sent the newest one, and the child refused some of it", at("r1"), "", at("r1"), v1alpha1.ResultSucceeded, true, at("r2"), ""},
		"PartAfter": {"and another one before that", at("r0"), "", at("r0"), v1alpha1.ResultSucceeded, true, at("r2"), ""},
		"PartGiven": {"the Rollout gave it its pin, a part of which was sent", at("r0"), "", at("r0"), v1alpha1.ResultUpdating, false, at("r1"), ""},
		"Mended":    {"it failed at its pin, and has what an earlier version mended that with", at("r2"), "", at("r2"), v1alpha1.ResultFailed, true, record.State{}, ""},
		"Offline":   {"it was lost before it got its pin, by a version that did not say so", at("r0"), "", at("r0"), v1alpha1.ResultUnreachable, false, record.State{}, ""},
		"Earlier":   {"an earlier version gave it the newest one", at("r2"), "", at("r2"), v1alpha1.ResultSucceeded, true, record.State{}, ""},
		"Ended":     {"it ended before it wrote the status", at("r2"), "", at("r1"), v1alpha1.ResultSucceeded, true, record.State{}, ""},
		"Degraded":  {"it was ready at its pin once", at("r2"), "", at("r2"), v1alpha1.ResultDegraded, true, record.State{}, ""},
		"PutOff":    {"it was ready at its pin once, and left alone since, as it is upgraded", at("r2"), "", at("r2"), v1alpha1.ResultDeferred, true, record.State{}, ""},
		"Restored":  {"the child is of a backup, with its record", at("r0"), "r0", at("r1"), v1alpha1.ResultSucceeded, false, record.State{}, ""},
		"Given":     {"the Rollout has given it another one since", at("r0"), "", at("r0"), v1alpha1.ResultUpdating, false, record.State{}, ""},
		"InPlace":   {"nothing happened since the upgrade", at("r1"), "", at("r1"), v1alpha1.ResultSucceeded, false, record.State{}, ""},
		"Later":     {"the pin has the content of an earlier commit, which is in the record", record.State{Revision: "r0", Digest: "sha256:x"}, "", record.State{Revision: "r1", Digest: "sha256:x"}, v1alpha1.ResultSucceeded, false, record.State{}, ""},
		"Same":      {"and the status does not tell", record.State{Revision: "r0", Digest: "sha256:of-r1"}, "", record.State{Revision: "r0", Digest: "sha256:of-r1"}, v1alpha1.ResultSucceeded, false, record.State{}, ""},
		"FirstPush": {"the child has nothing of the layer", record.State{}, "", at("r1"), v1alpha1.ResultSucceeded, false, record.State{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, map[string]string{"a.yaml": noteOf("1")})
			f.children.Now = func() time.Time { return start.Time }
			s := f.on(0)
			pin := pinTo("base", "r1", "cascade:v2")
			if name == "NoSource" {
				pin.Revision = ""
			}
			s.layer.Spec.Agent, s.layer.Status.AgentImage = &v1alpha1.AgentSpec{}, "cascade:v3"
			s.installed = new(cmp.Or(tc.image, pin.Image))
			if pin.Result = tc.result; tc.result == v1alpha1.ResultFailed || tc.result == v1alpha1.ResultUpdating {
				pin.Had = &v1alpha1.RolloutRevision{Revision: "r0", Image: pin.Image}
			}
			if tc.result == v1alpha1.ResultDeferred {
				pin.Reason = v1alpha1.ReasonRollingOut
			}
			s.notes, s.governing, s.child.Status.Rollouts, s.pin = &layerNotes{}, rollout.Governing{base}, []v1alpha1.ChildRollout{pin}, &pin.RolloutRevision
			s.run.notes = &notes{began: start.Time}
			s.snapshot, s.rendered = &source.Snapshot{Revision: "r1"}, &rendered{digest: "sha256:of-r1"}
			entry := &v1alpha1.ChildLayer{Name: "base", Ready: true, Revision: tc.said.Revision, Digest: tc.said.Digest}
			rec := &record.Record{Layer: s.key(), Attempted: tc.has, Applied: tc.has, Pinned: tc.pinned}
			if tc.part.Digest != "" {
				rec.Attempted = tc.part
			}
			has := v1alpha1.RolloutRevision{Revision: "r2", Image: *s.installed}
			brought := "revision r2 was brought, and not r1, "
			if tc.has.Revision == pin.Revision && tc.part.Digest == "" {
				has.Revision, brought = pin.Revision, "the agent cascade:v1 was brought, and not cascade:v2, "
			}
			err := s.look(t.Context(), rec, entry)
			s.notes = &layerNotes{}
			// What the first look left is what a process finds that begins before anything was sent.
			if again := s.look(t.Context(), rec, entry); isWaitingError(again) != isWaitingError(err) {
				t.Errorf("%s: %v, and then %v", tc.reason, err, again)
			}
			if isWaitingError(err) != tc.waits || err != nil && reason.Of(err) != v1alpha1.ReasonRolloutPending || s.notes.looked == tc.waits {
				t.Errorf("%s: %v, looked at %t; want it to wait: %t", tc.reason, err, s.notes.looked, tc.waits)
			}
			if entry.Past != map[bool]string{true: "base"}[tc.waits] || tc.waits && (!entry.Ready || !strings.Contains(err.Error(), brought)) {
				t.Errorf("%s: the status says %+v: %v", tc.reason, entry, err)
			}
			m := &moved{layer: f.layer, image: "cascade:v3"}
			s.child.Status.Layers = []v1alpha1.ChildLayer{*entry}
			if c := m.cluster(base, s.child, &pin); c.Unpinned != tc.waits || tc.waits && *c.Has != has {
				t.Errorf("%s: the Rollout knows of that: %t, %v", tc.reason, c.Unpinned, c.Has)
			}
			if s.let() != "base="+cmp.Or(pin.Revision, pin.Image) {
				t.Errorf("the record of what is sent says %q of the pin", s.let())
			}
		})
	}
}

// TestTakenInPart: a new Rollout takes what was sent last for what a child has, also where the child did not take all
// of it: nothing else is brought without a run, and the agent began nothing past the Rollout.
func TestTakenInPart(t *testing.T) {
	base := rolloutNamed("base", movesLayer("base"))
	at := func(revision, digest string) record.State {
		return record.State{Revision: revision, Digest: "sha256:" + digest}
	}
	for name, tc := range map[string]struct {
		reason        string
		applied, part record.State
		// then is what was sent after the part, in part.
		then record.State
		want record.State
	}{
		"Newer":    {"a part of the newest was sent", at("r1", "1"), at("r2", "2"), record.State{}, at("r2", "2")},
		"First":    {"and nothing before that", record.State{}, at("r1", "1"), record.State{}, at("r1", "1")},
		"Reverted": {"it was taken back, and the child refused a part of that, too", at("r1", "1"), at("r2", "2"), at("r3", "1"), at("r3", "1")},
		"Another":  {"another one came after it", at("r1", "1"), at("r2", "2"), at("r3", "3"), at("r3", "3")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, map[string]string{"a.yaml": noteOf("1")})
			f.children.Now = func() time.Time { return start.Time }
			s := f.on(0)
			s.notes, s.governing = &layerNotes{}, rollout.Governing{base}
			s.run.notes = &notes{began: start.Time}
			rec := &record.Record{Layer: s.key(), Applied: tc.applied, Attempted: tc.part}
			if tc.then.Digest != "" {
				rec.Attempted = attempting(rec, tc.then)
			}
			entry := &v1alpha1.ChildLayer{Name: "base", Reason: v1alpha1.ReasonRolloutPending}
			noteRecord(entry, rec)
			s.child.Status.Layers = []v1alpha1.ChildLayer{*entry}
			c := (&moved{layer: f.layer}).cluster(base, s.child, nil)
			if c.Has == nil || *c.Has != (v1alpha1.RolloutRevision{Revision: tc.want.Revision}) || c.New || !c.Known {
				t.Fatalf("%s: it has %+v, new: %t, want what was sent last", tc.reason, c.Has, c.New)
			}
			pin := pinTo("base", c.Has.Revision, "")
			pin.Run, pin.Had, pin.Result = 0, c.Has, v1alpha1.ResultUnproven
			s.child.Status.Rollouts, s.pin = []v1alpha1.ChildRollout{pin}, &pin.RolloutRevision
			s.snapshot, s.rendered = &source.Snapshot{Revision: tc.want.Revision}, &rendered{digest: tc.want.Digest}
			if err := s.look(t.Context(), rec, entry); err != nil || entry.Past != "" {
				t.Errorf("%s: look() = %v, and the status says %+v", tc.reason, err, entry)
			}
			if rec.InPlace(tc.want.Digest) {
				t.Errorf("%s: what was sent in part is in place", tc.reason)
			}
		})
	}
}

// TestPointedElsewhere: what a Rollout let a child have of another layer, or before it took its hands off the child, is not
// sent in one that it moves from now on: it goes on from what is there.
func TestPointedElsewhere(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// by moved the layer when it was looked at last, and pinned is what the record says of that. anew: this
		// process has not looked at it.
		by, pinned string
		anew       bool
		waits      bool
	}{
		"Pointed":   {"nothing moved the layer before", "", "", false, true},
		"Another":   {"another Rollout moved it before", "apps", "apps=r9", false, true},
		"Restarted": {"it did, and this process knows of no Rollout before", "", "apps=r9", true, true},
		"Ended":     {"it did, and had been deleted for long", "", "apps=r9", false, true},
		"Beside":    {"it moved an object of the layer, and the Rollout the layer", "waves", "apps=r8 waves=r9", false, false},
		"Same":      {"the Rollout moved it before", "waves", "waves=r9", false, false},
		"OldOther":  {"another one moved it before, whose record an earlier version wrote", "apps", "r9", false, true},
		"Unnamed":   {"an earlier version did not say which Rollout moved it", "waves", "r9", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, map[string]string{"a.yaml": noteOf("1")})
			f.children.Now = func() time.Time { return start.Time }
			s := f.on(0)
			pin := pinTo("waves", "r1", "")
			pin.Result = v1alpha1.ResultSucceeded
			s.notes, s.governing, s.child.Status.Rollouts, s.pin = &layerNotes{looked: !tc.anew}, rollout.Governing{rolloutNamed("waves", movesLayer("base"))}, []v1alpha1.ChildRollout{pin}, &pin.RolloutRevision
			if tc.by != "" {
				s.notes.movers = []string{tc.by}
			}
			s.run.notes = &notes{began: start.Time}
			s.snapshot, s.rendered = &source.Snapshot{Revision: "r1"}, &rendered{digest: "sha256:1"}
			nine := record.State{Revision: "r9", Digest: "sha256:9"}
			entry := &v1alpha1.ChildLayer{Name: "base", Ready: true, Revision: nine.Revision, Digest: nine.Digest}
			rec := &record.Record{Layer: s.key(), Attempted: nine, Applied: nine, Pinned: tc.pinned}
			for round := range 2 {
				s.moversAnew()
				if s.notes.looked == tc.waits {
					t.Fatalf("%s: round %d: it counts as looked at: %t", tc.reason, round, s.notes.looked)
				}
				if s.notes.looked {
					continue
				}
				if err := s.look(t.Context(), rec, entry); !isWaitingError(err) || entry.Past != "waves" {
					t.Errorf("%s: round %d: look() = %v, and the status says %+v", tc.reason, round, err, entry)
				}
			}
			// The Rollout takes what is there for what the child has.
			s.rendered = &rendered{digest: nine.Digest}
			if err := s.look(t.Context(), rec, entry); err != nil || !s.notes.looked {
				t.Errorf("%s: look() = %v, and the status says %+v", tc.reason, err, entry)
			}
			if s.moversAnew(); !s.notes.looked {
				t.Errorf("%s: it is looked at again and again", tc.reason)
			}
		})
	}
}

// TestNobodyLooked: a layer that no time was left for has what it had, whatever it may have now.
func TestNobodyLooked(t *testing.T) {
	s := bringing(t, newPaced(45*time.Second))
	s.notes, s.silent = &layerNotes{}, "network"
	s.snapshot = &source.Snapshot{Revision: "r2"}
	entry := &v1alpha1.ChildLayer{Name: "base", Ready: true, Reason: v1alpha1.ReasonSucceeded, Revision: "r1", LastAttemptedRevision: "r1", Digest: "sha256:1", LastAttemptedDigest: "sha256:1"}
	if err := s.bring(t.Context(), entry); err != nil || !s.complete || !s.unvisited {
		t.Fatalf("bring() = %v, complete: %t, unvisited: %t", err, s.complete, s.unvisited)
	}
	if entry.Revision != "r1" || !entry.Ready {
		t.Errorf("nobody looked, and the status says %+v", entry)
	}
	s.told = true
	s.noteHandled(entry)
	if wait := s.next([]*v1alpha1.Layer{s.layer}).RequeueAfter; wait > waitPause {
		t.Errorf("nobody looked, nor does anybody within %s", wait)
	}
}

// TestOthersFirst: a process that took many children over reaches each of them before it looks
// closely at one whose layers are in place, which waits for that only so long.
func TestOthersFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		unmet   int
		passed  time.Duration
		entry   v1alpha1.ChildLayer
		request string
		want    bool
	}{
		"Many":      {"nothing is known of most of the others", mostUnmet + 1, 0, v1alpha1.ChildLayer{Ready: true, Revision: "r1"}, "", true},
		"Few":       {"the rest are on their way", mostUnmet, 0, v1alpha1.ChildLayer{Ready: true, Revision: "r1"}, "", false},
		"Later":     {"others take long", mostUnmet + 1, crowdedFor, v1alpha1.ChildLayer{Ready: true, Revision: "r1"}, "", false},
		"Commit":    {"there is another commit", mostUnmet + 1, 0, v1alpha1.ChildLayer{Ready: true, Revision: "r0"}, "", false},
		"Requested": {"a person asked for it", mostUnmet + 1, 0, v1alpha1.ChildLayer{Ready: true, Revision: "r1"}, "now", false},
	} {
		t.Run(name, func(t *testing.T) {
			paced := newPaced(45 * time.Second)
			s := bringing(t, paced)
			s.Connections = link.NewPool(t.Context(), runtime.NewScheme(), s.Now, s.Rand)
			s.snapshot = &source.Snapshot{Revision: "r1"}
			s.layer.Annotations = map[string]string{fluxmeta.ReconcileRequestAnnotation: tc.request}
			s.run.notes.began = s.Now().Add(-time.Hour) // whosever it was
			for i := range tc.unmet {
				s.Connections.Expect(types.NamespacedName{Name: strconv.Itoa(i)})
			}
			paced.now = paced.now.Add(tc.passed)
			if got := s.othersFirst(&tc.entry); got != tc.want {
				t.Errorf("%s: othersFirst() = %t, want %t", tc.reason, got, tc.want)
			}
			for i := range tc.unmet {
				s.Connections.Met(types.NamespacedName{Name: strconv.Itoa(i)})
			}
			if s.othersFirst(&tc.entry) {
				t.Error("all others were met")
			}
		})
	}
}

// TestDueAfterOthers: a layer that is only due is compared once the children that were taken over were asked.
func TestDueAfterOthers(t *testing.T) {
	paced := newPaced(45 * time.Second)
	s := bringing(t, paced)
	s.Connections, s.silent = link.NewPool(t.Context(), runtime.NewScheme(), s.Now, s.Rand), ""
	s.snapshot = &source.Snapshot{Revision: "r1"}
	s.notes.inputs = s.inputs()
	entry := entryOf(s.child, "base")
	entry.Revision, entry.Digest, entry.LastAttemptedDigest = "r1", "sha256:1", "sha256:1"
	for i := range mostUnmet + 1 {
		s.Connections.Expect(types.NamespacedName{Name: strconv.Itoa(i)})
	}
	s.notes.due = s.Now()
	if err := s.bring(t.Context(), entry); err != nil || !s.complete {
		t.Fatalf("bring() = %v, complete: %t", err, s.complete)
	}
	if wait := s.notes.due.Sub(s.Now()); wait < waitPause || wait > adoptFirst {
		t.Errorf("it is due again after %s", wait)
	}
}

// TestUnpinnedObject: the same of an object that a Rollout moves, as the child's own agent tells.
func TestUnpinnedObject(t *testing.T) {
	services := rolloutNamed("services", v1alpha1.RolloutMoves{Source: &fleetSource})
	for name, tc := range map[string]struct {
		reason string
		// has is what the child tells, and pinned what the record says of the pin.
		has, pinned string
		idle        bool
		result      v1alpha1.RolloutResult
		waits       bool
	}{
		"Earlier":   {"an earlier version sent the object without its pin", commitTwo, "", false, v1alpha1.ResultSucceeded, true},
		"Pinned":    {"somebody in the child changed the object", commitTwo, commitOne, false, v1alpha1.ResultSucceeded, false},
		"Same":      {"the child has its pin, by another name", "sha1:" + commitOne[len("main@sha1:"):], "", false, v1alpha1.ResultSucceeded, false},
		"Untold":    {"nobody knows", "", "", false, v1alpha1.ResultSucceeded, false},
		"Given":     {"the Rollout has given it another one since", commitTwo, "", false, v1alpha1.ResultUpdating, false},
		"Elsewhere": {"the layer does not have the object", commitTwo, "", true, v1alpha1.ResultSucceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, map[string]string{"a.yaml": pinnedLayer})
			f.children.Now = func() time.Time { return start.Time }
			s := f.on(0)
			pin := pinTo("services", commitOne, "")
			pin.Result = tc.result
			s.notes, s.governing, s.child.Status.Rollouts = &layerNotes{}, rollout.Governing{services}, []v1alpha1.ChildRollout{pin}
			s.run.notes = &notes{began: start.Time}
			if tc.idle {
				s.notes.idle = []v1alpha1.RolloutPinnedSource{fleetSource}
			}
			s.child.Status.Report = &v1alpha1.Report{Brought: &v1alpha1.ReportBrought{}}
			if tc.has != "" {
				s.child.Status.Report.Brought.Objects = []v1alpha1.ReportedSource{{Kind: fleetSource.Kind, Namespace: fleetSource.Namespace, Name: fleetSource.Name, Revision: tc.has}}
			}
			s.rendered = &rendered{digest: "sha256:b"}
			state := record.State{Revision: "r1", Digest: "sha256:a"}
			entry := &v1alpha1.ChildLayer{Name: "base", Ready: true, Revision: "r2", Digest: "sha256:a"}
			err := s.look(t.Context(), &record.Record{Layer: s.key(), Attempted: state, Applied: state, Pinned: tc.pinned}, entry)
			if isWaitingError(err) != tc.waits || entry.Past != map[bool]string{true: "services"}[tc.waits] || tc.waits && (entry.Revision != "r2" || !strings.Contains(err.Error(), "revision "+commitTwo+" was brought, and not "+commitOne+", ")) {
				t.Errorf("%s: %v, and the status says %+v; want it to wait: %t", tc.reason, err, entry, tc.waits)
			}
			s.child.Status.Layers = []v1alpha1.ChildLayer{*entry}
			m := &moved{spec: &services.Spec}
			if c := m.cluster(services, s.child, &pin); c.Unpinned != tc.waits || tc.waits && c.Has.Revision != commitTwo {
				t.Errorf("%s: the Rollout knows of that: %t, %v", tc.reason, c.Unpinned, c.Has)
			}
			entry.Past = "base" // of the layer itself, or of another object
			s.child.Status.Layers = []v1alpha1.ChildLayer{*entry}
			if m.cluster(services, s.child, &pin).Unpinned {
				t.Errorf("%s: what came past another Rollout is taken for what came past this one", tc.reason)
			}
			if want := map[bool]string{false: "services=" + commitOne}[tc.idle]; s.let() != want {
				t.Errorf("the record of what is sent says %q of the pin, want %q", s.let(), want)
			}
		})
	}
}

// TestAgentUntold: which agent a child has that nothing is on record of is looked up there. The agent of the layer may be
// newer, and would be in all children at once.
func TestAgentUntold(t *testing.T) {
	base := rolloutNamed("base", movesLayer("base"))
	for name, tc := range map[string]struct {
		reason       string
		noted, there string
		want         string
	}{
		"Earlier": {"an agent of before, or no Rollout, brought it", "", "cascade:v1", "cascade:v1"},
		"Gone":    {"there is none to be moved", "", "", "cascade:v3"},
		"Noted":   {"a Rollout brought it", "cascade:v2", "cascade:v1", "cascade:v2"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, map[string]string{"a.yaml": noteOf("1")})
			f.children.Now = func() time.Time { return start.Time }
			s := f.on(0)
			s.layer.Spec.Agent, s.layer.Status.AgentImage = &v1alpha1.AgentSpec{}, "cascade:v3"
			s.notes, s.governing, s.installed, s.session = &layerNotes{noted: true}, rollout.Governing{base}, &tc.there, sessionOf(t, s.run)
			m := &moved{layer: f.layer, image: "cascade:v3"}
			s.child.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Ready: true, Revision: "r1", Digest: "sha256:1", AgentImage: tc.noted}}
			entry := &s.child.Status.Layers[0]
			if c := m.cluster(base, s.child, nil); c.Known != (tc.noted != "") || c.New {
				t.Errorf("%s: before it was asked it has %+v, new %t", tc.reason, c.Has, c.New)
			}
			if err := s.waits(t.Context(), entry, errors.New("RolloutPending")); err != nil {
				t.Fatal(err)
			}
			if c := m.cluster(base, s.child, nil); !c.Known || *c.Has != (v1alpha1.RolloutRevision{Revision: "r1", Image: tc.want}) {
				t.Errorf("%s: it has %+v, want %s", tc.reason, c.Has, tc.want)
			}
			s.snapshot, s.image = &source.Snapshot{Revision: "r2"}, "cascade:v0"
			if s.has(entry); m.cluster(base, s.child, nil).Has.Image != s.image {
				t.Error("what is brought before a Rollout comes is not on record")
			}
		})
	}
}

// TestHadOnRecord: what a child had when it was given something else is on record with that.
func TestHadOnRecord(t *testing.T) {
	layer := layerOn("base")
	layer.Namespace, layer.Spec.Agent = "fleet", &v1alpha1.AgentSpec{}
	layer.Spec.Agent.Image, layer.Spec.ClusterSelector.MatchLabels = "cascade:v2", map[string]string{"tier": "tenant"}
	had := v1alpha1.RolloutRevision{Image: "cascade:v1"}
	o := rolloutNamed("base", movesLayer("base"))
	o.Spec.Waves, o.Spec.Deadline.Duration = []v1alpha1.RolloutWave{{Name: "all", MaxConcurrent: intstr.FromInt32(1)}}, time.Minute
	o.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: had, Run: 1}
	child := childNamed("a", []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}})
	child.Labels = layer.Spec.ClusterSelector.MatchLabels
	child.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Ready: true, Digest: "sha256:1", AgentImage: had.Image}}
	child.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "base", RolloutRevision: had, Run: 1, Result: v1alpha1.ResultSucceeded}}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(layer, o, &child).WithStatusSubresource(o, &child).Build()
	r := &Rollouts{
		Client: c, Reader: c, rollouts: &rolloutKind{now: time.Now, served: true}, Events: events.NewFakeRecorder(100),
		Metrics: NewRolloutMetrics(prometheus.NewRegistry()), Now: func() time.Time { return start.Time }, Snapshots: source.NewSnapshots(), exchange: &exchange{},
	}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(&child), &child); err != nil {
		t.Fatal(err)
	}
	if pin := child.Status.Rollouts[0]; pin.Image != "cascade:v2" || pin.Had == nil || *pin.Had != had {
		t.Errorf("on record is %+v", pin)
	}
}

// TestTakenBackAgent: a tier that was taken back takes back what it brought to clusters, though their Layer still names it.
func TestTakenBackAgent(t *testing.T) {
	layer := layerOn("base")
	layer.Namespace, layer.Spec.Agent = "fleet", &v1alpha1.AgentSpec{}
	layer.Spec.Agent.Image, layer.Spec.ClusterSelector.MatchLabels = "cascade:v1.5.0", map[string]string{"tier": "tenant"}
	bad, good := v1alpha1.RolloutRevision{Image: "cascade:v1.5.0"}, v1alpha1.RolloutRevision{Image: "cascade:v1.4.0"}
	o := rolloutNamed("base", movesLayer("base"))
	o.Spec.Waves, o.Spec.Deadline.Duration = []v1alpha1.RolloutWave{{Name: "all", MaxConcurrent: intstr.FromInt32(1)}}, time.Minute
	o.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: good, Run: 1}
	o.Status.Run = &v1alpha1.RolloutRun{Number: 2, RolloutRevision: bad, Phase: v1alpha1.RolloutReverting, Since: start, Terms: v1alpha1.RolloutTerms{Waves: o.Spec.Waves, Deadline: o.Spec.Deadline}}
	child := childNamed("a", []metav1.Condition{{Type: v1alpha1.ConnectedCondition, Status: metav1.ConditionTrue}, {Type: v1alpha1.ReadyCondition, Status: metav1.ConditionTrue}})
	child.Labels = layer.Spec.ClusterSelector.MatchLabels
	child.Status.Layers = []v1alpha1.ChildLayer{{Name: "base", Ready: true, Digest: "sha256:1", AgentImage: bad.Image}}
	child.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "base", RolloutRevision: bad, Run: 2, Result: v1alpha1.ResultSucceeded}}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(layer, o, &child).WithStatusSubresource(o, &child).Build()
	r := &Rollouts{
		Client: c, Reader: c, rollouts: &rolloutKind{now: time.Now, served: true}, Events: events.NewFakeRecorder(100), Version: "v1.4.0",
		Metrics: NewRolloutMetrics(prometheus.NewRegistry()), Now: func() time.Time { return start.Time }, Snapshots: source.NewSnapshots(), exchange: &exchange{},
	}
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Get(t.Context(), client.ObjectKeyFromObject(&child), &child), c.Get(t.Context(), client.ObjectKeyFromObject(o), o)); err != nil {
		t.Fatal(err)
	}
	if pin := child.Status.Rollouts[0]; pin.Image != good.Image || pin.Result != v1alpha1.ResultUpdating {
		t.Errorf("on record is %+v", pin)
	}
	if ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition); ready == nil || ready.Reason != v1alpha1.ReasonReverting {
		t.Errorf("it says %+v", ready)
	}
}
