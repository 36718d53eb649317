// Package artifact has the reconciler of ArtifactGenerators, which make ExternalArtifacts out
// of files and directories of other sources.
//
// What a generator asks for is read by pure code: its spec becomes a recipe, and a recipe and
// the snapshots of its sources become snapshots. Those are trees of the objects that the
// sources have; nothing is copied, and nothing is packed for who applies them in this process.
//
// Invariants:
//
//   - an artifact whose files did not change keeps its revision, and wakes nobody;
//   - only ExternalArtifacts that this generator made are written or deleted;
//   - what was made stays in use when its sources cannot be read, and when it cannot be made
//     anew;
//   - nothing is polled: sources, and what was made of them, wake a generator.
//
// Failure model: whatever goes wrong ends as a condition with Flux's reason on the one
// generator. An artifact that cannot be made does not keep the others from being made. What
// hostile patterns, files and archives cost is bounded for each generator.
package artifact
