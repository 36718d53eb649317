package remote

import (
	"errors"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/remote/record"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// TestRecordedState: a commit that leaves a layer as it is changes nothing on record.
func TestRecordedState(t *testing.T) {
	first, second := record.State{Revision: "main@sha1:1", Digest: "sha256:a"}, record.State{Revision: "main@sha1:2", Digest: "sha256:b"}
	for name, tt := range map[string]struct {
		reason             string
		attempted, applied record.State
		digest             string
		want               record.State
	}{
		"New":       {"nothing is on record", record.State{}, record.State{}, "sha256:a", record.State{Revision: "main@sha1:3", Digest: "sha256:a"}},
		"Same":      {"it is in place since an earlier commit", first, first, "sha256:a", first},
		"Other":     {"it is another", first, first, "sha256:c", record.State{Revision: "main@sha1:3", Digest: "sha256:c"}},
		"Attempted": {"another was tried since", second, first, "sha256:a", record.State{Revision: "main@sha1:3", Digest: "sha256:a"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &seeding{snapshot: &source.Snapshot{Revision: "main@sha1:3"}, rendered: &rendered{digest: tt.digest}}
			if got := s.state(&record.Record{Attempted: tt.attempted, Applied: tt.applied}); got != tt.want {
				t.Errorf("%s: state() = %v, want %v", tt.reason, got, tt.want)
			}
		})
	}
}

// TestAttempting: a layer that is brought back to what was applied before is not in place until
// all of that is sent (C7).
func TestAttempting(t *testing.T) {
	first, second := record.State{Revision: "main@sha1:1", Digest: "sha256:a"}, record.State{Revision: "main@sha1:2", Digest: "sha256:b"}
	third := record.State{Revision: "main@sha1:3", Digest: "sha256:a"}
	for name, tt := range map[string]struct {
		reason                   string
		attempted, applied, sent record.State
		want                     record.State
	}{
		"New":          {"nothing is on record", record.State{}, record.State{}, first, first},
		"Same":         {"it is in place", first, first, first, first},
		"Other":        {"it is another", first, first, second, second},
		"Again":        {"the last push did not end", second, first, second, second},
		"Reverted":     {"of another one a part was sent since, and this is sent now", second, first, third, record.State{Revision: "main@sha1:3", Digest: "sha256:b"}},
		"NotAttempted": {"an earlier version did not agree on what was applied", record.State{}, first, third, third},
	} {
		t.Run(name, func(t *testing.T) {
			rec := &record.Record{Attempted: tt.attempted, Applied: tt.applied}
			if got := attempting(rec, tt.sent); got != tt.want {
				t.Errorf("%s: attempting() = %v, want %v", tt.reason, got, tt.want)
			}
		})
	}
}

// TestOwner: that another management cluster took a child over is said until the records of
// its layers show something else, whatever else happens to the child meanwhile.
func TestOwner(t *testing.T) {
	superseded := reason.Because(v1alpha1.ReasonSuperseded, errors.New("another has it"))
	for name, tc := range map[string]struct {
		reason    string
		outcome   error
		read      []bool
		suspended bool
		foreign   bool
		want      bool
	}{
		"Taken":      {"the record says so", superseded, []bool{true, true}, false, true, true},
		"Returned":   {"all records are this tier's", nil, []bool{true, true}, false, false, false},
		"Unread":     {"one record was not read: its source was not ready, or the child did not answer", nil, []bool{true, false}, false, false, true},
		"Released":   {"a layer that no longer selects the child is another's", nil, []bool{true, true}, false, true, true},
		"Suspended":  {"nobody looks at the record of a layer that is suspended", nil, []bool{true, false}, true, false, false},
		"NoneIsRead": {"nothing is known", nil, []bool{false, false}, true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			paced := newPaced(time.Minute)
			p := &push{run: paced.run, foreign: tc.foreign}
			p.child.Status.SupersededBy = &v1alpha1.Epoch{Number: 2, Holder: "another"}
			for i, read := range tc.read {
				name := string(rune('a' + i))
				layer, _ := paced.with(name, time.Hour)
				layer.Spec.Suspend = i > 0 && tc.suspended
				p.layers = append(p.layers, &seeding{push: p, layer: layer, notes: p.notes.of(name)})
				p.layers[i].notes.looked = read
			}
			entry := p.entry("a")
			p.record(p.layers[0], entry, tc.outcome)
			if p.noteOwner(); (p.child.Status.SupersededBy != nil) != tc.want {
				t.Errorf("%s: superseded by %v", tc.reason, p.child.Status.SupersededBy)
			}
			if n := p.notes.of("a"); tc.outcome != nil && (entry.Ready || n.looked || !n.due.IsZero()) {
				t.Errorf("%s: what was known of the layer is held for true: %+v", tc.reason, n)
			}
		})
	}
}
