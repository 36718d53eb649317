package status

import (
	"maps"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
)

// Attempt is what became of applying a rendering.
type Attempt struct {
	// Digest of the rendering, as algorithm:hex.
	Digest string
	// Status is the reason of the Ready condition.
	Status string
	At     time.Time
	Took   time.Duration
	// Revision and, where the source has one, OriginRevision.
	Revision, OriginRevision string
	// Rollouts: which revision each Cluster has of it is what Rollouts said.
	Rollouts bool
	// Inputs identify what it was built with besides the files, where Rollouts said so.
	Inputs string
	// Requested: a person asked for this attempt, or something was changed in
	// the cluster. It counts even if nothing else is new.
	Requested bool
}

// byRollouts marks an attempt in which Rollouts said which revision each Cluster has.
const byRollouts = "cascade.dev/rollouts"

// builtWith is what such an attempt was built with.
const builtWith = "cascade.dev/inputs"

// HeededRollouts reports whether the last attempt did what Rollouts said. Versions that know none
// did not, nor did one before a Rollout came.
func HeededRollouts(h meta.History) bool {
	latest := h.Latest()
	return latest != nil && latest.Metadata[byRollouts] != ""
}

// RevisionOf is the revision that was attempted.
func RevisionOf(attempt *meta.Snapshot) string { return attempt.Metadata["revision"] }

// BuiltLast is the revision of the last attempt, if Rollouts said which revision each Cluster has of it, and it was built with these
// inputs; else empty. What cannot be built is no attempt.
func BuiltLast(h meta.History, inputs string) string {
	if latest := h.Latest(); HeededRollouts(h) && latest.Metadata[builtWith] == inputs {
		return RevisionOf(latest)
	}
	return ""
}

// RecordAttempt keeps status.history as Flux does: at most five entries, the
// newest first, one for each digest and status. Unlike Flux it does not count
// the repetition of what the newest entry already says, so that an interval
// without a change leaves the status as it is.
func RecordAttempt(h *meta.History, a Attempt) {
	metadata := map[string]string{"revision": a.Revision}
	if a.OriginRevision != "" {
		metadata["originRevision"] = a.OriginRevision
	}
	if a.Rollouts {
		metadata[byRollouts], metadata[builtWith] = "true", a.Inputs
	}
	latest := h.Latest()
	if !a.Requested && latest != nil && latest.Digest == a.Digest && latest.LastReconciledStatus == a.Status && maps.Equal(latest.Metadata, metadata) {
		return
	}
	h.Upsert(a.Digest, a.At, a.Took, a.Status, metadata)
}
