package fetch

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cascade-gitops/cascade/syncer/source"
)

// ReasonSnapshotNotKept: what was fetched is applied, and would be missing after a restart
// at which the source cannot be fetched.
const ReasonSnapshotNotKept = "SnapshotNotKept"

// keptTimeout bounds reading or writing what is kept: a volume may hang.
const keptTimeout = 2 * time.Minute

// recall hands over what was kept of a source, if this process has nothing of it yet. It
// reports whether it did. As with a source that fails while the process runs, what was
// fetched last stays in use, whatever the object asks for by now.
func (s *Sources) recall(ctx context.Context, key source.Key, obj sourceObject) bool {
	artifact := obj.GetArtifact()
	if s.Kept == nil || artifact == nil || s.Snapshots.Get(key) != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, keptTimeout)
	defer cancel()
	snapshot, err := s.Kept.Get(ctx, key, obj.GetUID(), artifact.Revision, artifact.Digest)
	if err != nil {
		s.event(ctx, obj, corev1.EventTypeWarning, ReasonSnapshotNotKept, "%s", err)
	}
	if snapshot == nil {
		return false
	}
	s.handOver(key, artifact, snapshot)
	s.Snapshots.Silence(key)
	s.event(ctx, obj, corev1.EventTypeNormal, "SnapshotRecalled", "revision %s, which was fetched before the restart, is used until the source can be fetched", artifact.Revision)
	return true
}

// keep keeps what was fetched. That fails nothing: it is in use already.
func (s *Sources) keep(ctx context.Context, key source.Key, obj sourceObject, snapshot *source.Snapshot) {
	if s.Kept == nil || snapshot == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keptTimeout)
	defer cancel()
	if err := s.Kept.Put(ctx, key, obj.GetUID(), snapshot, obj.GetArtifact().Digest); err != nil {
		s.event(ctx, obj, corev1.EventTypeWarning, ReasonSnapshotNotKept, "%s; look at the volume of --snapshot-path", err)
	}
}
