// Package helmrelease has the reconciler of Flux's HelmRelease: it gathers what a
// release is made of and lets package release act.
//
// A reconcile is a list of steps over one run: check, template (the HelmChart of
// spec.chart), depend, find (the chart), build (values and version), aim (the
// cluster), apply. A step that refuses ends the reconcile with a condition.
//
// Invariants:
//
//   - the history that a reconcile starts from is the one that was written last;
//   - no step waits for another object: the reconcile returns and is woken;
//   - a spec is carried out with the rights of its service account and in its own
//     cluster.
//
// Failure model: whatever goes wrong ends as a condition with the reason of Flux's
// helm-controller on the one object.
package helmrelease
