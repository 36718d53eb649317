// Package rollout decides which clusters may have which revision, and when: in waves, few
// at a time, each wave after the one before it proved the revision, and none after too many
// failed.
//
// It is pure: facts in, decision out, with the time as an argument. What it needs to know of
// the past is in the status of the Rollout and in each Child, so that another process goes
// on where one ended. Invariants:
//
//   - no more clusters of a wave are changing than its maxConcurrent says, whatever runs
//     they began in;
//   - no cluster of a wave gets the revision of a run before all waves in front of it were
//     passed and soaked, nor after more clusters failed than may;
//   - a cluster has only revisions that a run named, or what it had when the Rollout came, or got past it
//     from a version that knows no Rollouts: nothing but a run takes that from it;
//   - a run keeps the revision and the terms that it began with. A newer revision begins
//     another run;
//   - only what a cluster says of itself at the very revision that it was given counts for
//     or against that revision. A cluster that cannot be reached, or was not ready before,
//     counts for neither; it holds nobody up; nor does time count in which nobody looked;
//   - of what two Rollouts move for a cluster, nothing moves, and a mistake in a Rollout lets
//     nothing go; an object that clusters share is copied before it is pinned;
//   - no minor version of Kubernetes is skipped, and workers do not get a version before
//     their control plane runs it.
package rollout
