// Package image reconciles Flux's image updates: an ImageRepository lists the tags of an image, an ImagePolicy chooses one of
// them, and an ImageUpdateAutomation commits what was chosen to Git.
//
// Invariants:
//
//   - a registry is asked for the tags of an image once, however many ImageRepositories name it with the same credential: they
//     share the list while it is young enough for each, and look again when the one does that asked;
//   - what one credential may read is never shown to who has another;
//   - an automation writes to the repository of its GitRepository with the credential of that, and nowhere else; nothing is
//     forced, deleted, or written that a policy did not choose, and a commit is made only where a value changes;
//   - references to other namespaces are followed as Flux does: to an ImageRepository if its spec.accessFrom lets them, to a
//     GitRepository unless a flag forbids it; policies are those of the automation's own namespace.
//
// Failure model: a registry, a repository and a template are hostile. What they can make large is bounded, and a failure is that
// of the one object. Lists of tags survive a restart where there is a directory for them; without them, an image is listed again.
// A policy whose tags are not here yet, after a restart, waits a while before it says so.
package image
