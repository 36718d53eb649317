// Package backup is the reconciler of StateBackups: it saves the state of its own tier at an
// interval or by a schedule.
//
// A version is saved when something changed since the last one. Otherwise it is only looked
// up: that it is there still counts as a success as well. The lock of the destination is
// taken for each save, so that of two agents one saves.
//
// Invariants:
//
//   - only a StateBackup in the agent's own namespace counts: who may write one elsewhere
//     could otherwise send the Secrets of the whole tier to a place of their own;
//   - nothing is saved without a recipient;
//   - nothing is saved while a Cluster is being restored;
//   - above versions that another StateBackup saved, nothing is saved that could be an empty tier
//     before its restore;
//   - versions are deleted after a newer one is complete, and the newest is never deleted, nor what
//     others saved at the destination before;
//   - no condition and no event has anything of what was saved.
//
// Failure model: what fails is tried again, with growing pauses. The age of the last success
// is a metric, and past StaleAfter a reason.
package backup
