// Package kustomization has the reconciler of Flux's Kustomization.
//
// A reconcile is a list of steps over one run: check (expressions), find (the
// snapshot), depend, build (the inputs of the rendering), render, aim (the
// cluster), apply (and prune), health. A step that cannot go on ends the reconcile
// with its conditions set. progress is what the process knows of a Kustomization
// beyond its status.
//
// Invariants:
//
//   - what is created is in an inventory before;
//   - a rendering whose inputs did not change, and whose objects are known to be in
//     the cluster, is neither rendered nor sent again;
//   - no step waits: a reconcile returns and is woken, or looks again after a
//     moment.
//
// Failure model: whatever goes wrong ends as a condition with the reason of Flux's
// kustomize-controller, or with PruneBlocked or CreateHeld, on the one object.
// progress is lost with the process, which costs one verification of every object.
package kustomization
