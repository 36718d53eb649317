package remote

import (
	"strings"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
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
	}{
		"Earlier":   {"an earlier version gave it the newest one", at("r2"), "", at("r2"), v1alpha1.ResultSucceeded, true},
		"Ended":     {"it ended before it wrote the status", at("r2"), "", at("r1"), v1alpha1.ResultSucceeded, true},
		"Degraded":  {"it was ready at its pin once", at("r2"), "", at("r2"), v1alpha1.ResultDegraded, true},
		"PutOff":    {"it was ready at its pin once, and left alone since, as it is upgraded", at("r2"), "", at("r2"), v1alpha1.ResultDeferred, true},
		"Restored":  {"the child is of a backup, with its record", at("r0"), "r0", at("r1"), v1alpha1.ResultSucceeded, false},
		"Given":     {"the Rollout has given it another one since", at("r0"), "", at("r0"), v1alpha1.ResultUpdating, false},
		"InPlace":   {"nothing happened since the upgrade", at("r1"), "", at("r1"), v1alpha1.ResultSucceeded, false},
		"Later":     {"the pin has the content of an earlier commit, which is in the record", record.State{Revision: "r0", Digest: "sha256:x"}, "", record.State{Revision: "r1", Digest: "sha256:x"}, v1alpha1.ResultSucceeded, false},
		"Same":      {"and the status does not tell", record.State{Revision: "r0", Digest: "sha256:of-r1"}, "", record.State{Revision: "r0", Digest: "sha256:of-r1"}, v1alpha1.ResultSucceeded, false},
		"FirstPush": {"the child has nothing of the layer", record.State{}, "", at("r1"), v1alpha1.ResultSucceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, map[string]string{"a.yaml": noteOf("1")})
			f.children.Now, f.children.Snapshots = func() time.Time { return start.Time }, source.NewSnapshots()
			s := f.on(0)
			pin := pinTo("base", "r1", "")
			pin.Result = tc.result
			s.notes, s.governing, s.child.Status.Rollouts, s.pin = &layerNotes{}, rollout.Governing{base}, []v1alpha1.ChildRollout{pin}, &pin.RolloutRevision
			s.run.notes = &notes{began: start.Time}
			s.snapshot, s.rendered = &source.Snapshot{Revision: "r1"}, &rendered{digest: "sha256:of-r1"}
			entry := &v1alpha1.ChildLayer{Name: "base", Ready: true, Revision: tc.said.Revision, Digest: tc.said.Digest, Unpinned: !tc.waits}
			rec := &record.Record{Layer: s.key(), Attempted: tc.has, Applied: tc.has, Pinned: tc.pinned}
			err := s.look(t.Context(), rec, entry)
			s.notes = &layerNotes{}
			// What the first look left is what a process finds that begins before anything was sent.
			if again := s.look(t.Context(), rec, entry); isWaitingError(again) != isWaitingError(err) {
				t.Errorf("%s: %v, and then %v", tc.reason, err, again)
			}
			if isWaitingError(err) != tc.waits || err != nil && reason.Of(err) != v1alpha1.ReasonRolloutPending || s.notes.looked == tc.waits {
				t.Errorf("%s: %v, looked at %t; want it to wait: %t", tc.reason, err, s.notes.looked, tc.waits)
			}
			if entry.Unpinned != tc.waits || tc.waits && (!entry.Ready || entry.Revision != "r2" || !strings.Contains(err.Error(), "brought revision r2, and not r1")) {
				t.Errorf("%s: the status says %+v: %v", tc.reason, entry, err)
			}
			m := &moved{layer: f.layer}
			s.child.Status.Layers = []v1alpha1.ChildLayer{*entry}
			if c := m.cluster(base, s.child, &pin); c.Unpinned != tc.waits {
				t.Errorf("%s: the Rollout knows of that: %t", tc.reason, c.Unpinned)
			}
			if s.let() != "r1" {
				t.Errorf("the record of what is sent says %q of the pin", s.let())
			}
		})
	}
}

// TestUnpinnedObject: the same of an object that a Rollout moves, as the child's own agent tells.
func TestUnpinnedObject(t *testing.T) {
	services := rolloutNamed("services", v1alpha1.RolloutMoves{Source: &fleetSource})
	services.Spec.SourceRef = &v1alpha1.RolloutSourceReference{Kind: "GitRepository", Name: "fleet"}
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
			f.children.Now, f.children.Snapshots = func() time.Time { return start.Time }, source.NewSnapshots()
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
			if isWaitingError(err) != tc.waits || entry.Unpinned != tc.waits || tc.waits && (entry.Revision != "r2" || !strings.Contains(err.Error(), "brought revision "+commitTwo+", and not "+commitOne)) {
				t.Errorf("%s: %v, and the status says %+v; want it to wait: %t", tc.reason, err, entry, tc.waits)
			}
			s.child.Status.Layers = []v1alpha1.ChildLayer{*entry}
			m := &moved{spec: &services.Spec}
			if c := m.cluster(services, s.child, &pin); c.Unpinned != tc.waits || tc.waits && c.Has.Revision != commitTwo {
				t.Errorf("%s: the Rollout knows of that: %t, %v", tc.reason, c.Unpinned, c.Has)
			}
			if want := map[bool]string{false: commitOne}[tc.idle]; s.let() != want {
				t.Errorf("the record of what is sent says %q of the pin, want %q", s.let(), want)
			}
		})
	}
}

// TestRestored: a child of a backup of before records knew pins is brought back to its pin, if the history of the
// Rollout tells that what it has is older, or nothing is newer than the pin. It is not taken for one that an earlier
// version brought the newest revision to.
func TestRestored(t *testing.T) {
	ended := func(revision string, number int64) v1alpha1.RolloutHistory {
		return v1alpha1.RolloutHistory{Number: number, RolloutRevision: v1alpha1.RolloutRevision{Revision: revision}}
	}
	for name, tc := range map[string]struct {
		reason  string
		history []v1alpha1.RolloutHistory
		newest  string
		waits   bool
	}{
		"Earlier":  {"the Rollout brought it before the pin", []v1alpha1.RolloutHistory{ended(commitOne, 5), ended(commitTwo, 4)}, commitTwo, false},
		"Later":    {"the Rollout tried it after the pin, and an earlier version brought it", []v1alpha1.RolloutHistory{ended(commitTwo, 6), ended(commitOne, 5)}, commitTwo, true},
		"Unheard":  {"the Rollout does not know it", []v1alpha1.RolloutHistory{ended(commitOne, 5)}, commitTwo, true},
		"Newest":   {"an earlier version would have brought the pin", nil, commitOne, false},
		"Unsought": {"what is newest is not known", nil, "", true},
	} {
		for _, moves := range []v1alpha1.RolloutMoves{movesLayer("base"), {Source: &fleetSource}} {
			t.Run(name+map[bool]string{true: "/Object"}[moves.Source != nil], func(t *testing.T) {
				f := newFleet(t, map[string]string{"a.yaml": noteOf("1")})
				f.children.Now, f.children.Snapshots = func() time.Time { return start.Time }, source.NewSnapshots()
				f.layer.Spec.SourceRef = &v1alpha1.SourceReference{Kind: "GitRepository", Name: "fleet", Namespace: "fleet"}
				o := rolloutNamed("base", moves)
				o.Spec.SourceRef, o.Status.History = &v1alpha1.RolloutSourceReference{Kind: "GitRepository", Name: "fleet", Namespace: "fleet"}, tc.history
				if tc.newest != "" {
					f.children.Snapshots.Put(layerSource(f.layer), snapshotOf(t, nil).Named(tc.newest))
				}
				s := f.on(0)
				pin := pinTo("base", commitOne, "")
				pin.Result, pin.Run = v1alpha1.ResultSucceeded, 5
				s.notes, s.governing, s.child.Status.Rollouts = &layerNotes{}, rollout.Governing{o}, []v1alpha1.ChildRollout{pin}
				s.rendered = &rendered{digest: "sha256:b"}
				if moves.Source == nil {
					s.pin = &pin.RolloutRevision
				} else {
					s.child.Status.Report = &v1alpha1.Report{Brought: &v1alpha1.ReportBrought{Objects: []v1alpha1.ReportedSource{
						{Kind: fleetSource.Kind, Namespace: fleetSource.Namespace, Name: fleetSource.Name, Revision: commitTwo}}}}
				}
				state := record.State{Revision: commitTwo, Digest: "sha256:a"}
				entry := &v1alpha1.ChildLayer{Name: "base", Ready: true, Revision: commitTwo, Digest: "sha256:a"}
				if err := s.unpinned(&record.Record{Layer: s.key(), Attempted: state, Applied: state}, entry); isWaitingError(err) != tc.waits || entry.Unpinned != tc.waits {
					t.Errorf("%s: %v; want it to wait: %t", tc.reason, err, tc.waits)
				}
			})
		}
	}
}
