package remote

import (
	"testing"

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
