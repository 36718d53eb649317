// Package compose puts together what a Kustomization declares of Clusters, each at the
// revision that it may have: objects of several renderings in, one list of objects out.
//
// It is pure. The caller renders the revisions, knows the pins, and applies the result with
// one inventory.
//
// Invariants:
//
//   - an object that belongs to one Cluster is as the rendering at the pin of that Cluster
//     has it, and is not there if that one lacks it;
//   - what several Clusters need is as the one that is furthest behind has it, so that
//     it changes with the last of them; of Clusters of several Rollouts nobody knows which one
//     that is, and what is in place stays until these agree;
//   - what belongs to no Cluster is as the newest rendering has it;
//   - of a Cluster that is held, nothing that is in place is applied anew or given up;
//   - no object is there twice, and with all pins at the newest revision the composition is
//     the newest rendering, in its order.
//
// Failure model: a pin of a revision that was not rendered holds its Cluster. Where it is
// not known to which Cluster something in the inventory belongs, it is kept for as long as
// any Cluster is held.
package compose
