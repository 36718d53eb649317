// Package payload carries other programs within this one: a control plane, the agent, and
// the managers of Cluster API and its providers, compressed, with the manifests that they
// come with. A build packs them; a build without them carries nothing and says so.
//
// Invariants:
//   - What is unpacked is what was packed: the digest of each program is in the index, which
//     is a part of this program, and a file is run only after its digest was computed from
//     the disk.
//   - A cache directory is the user's own and nobody else writes there; one for which that is
//     not so is refused.
//   - A file appears whole or not at all, also when two processes unpack at the same time.
//
// Failure model: a cache that is lost, half full or damaged is filled again. Nothing is ever
// deleted from it but a file whose digest is wrong, which is replaced.
package payload
