// Package graph tells which objects of a management cluster belong to which Clusters, and
// in which order they are made in another one.
//
// Who moves a Cluster, or saves it, needs all of what Cluster API and its providers need to
// go on with it, and nothing of anybody else. An object belongs to a Cluster that it names
// itself (by label, by spec.clusterName, as an owner), or else to the Clusters of what owns
// it and of what refers to it. Classes, templates and identities belong to all Clusters that
// use them. The rules are those of clusterctl where it has one: ClusterClass,
// ClusterResourceSet and its bindings, Secrets named <cluster>-<purpose>, the labels move and
// move-hierarchy. Beyond them references count, because what is only named, such as the
// credentials of an identity or of Azure Service Operator, is needed as well.
//
// Invariants:
//   - An object comes after its owners, in InOrder.
//   - A Cluster belongs to itself and to no other. What one Cluster names is never taken for
//     another's.
//   - What may be needed by others is Shared or Global: it is copied, and stays.
//
// All but Served, Read and Reading is pure. Failure model: Served and Read fail as a whole, because
// half of a graph looks like all of a smaller one, and where there is more than they may look at or
// hold: a server may be a stranger's, and has others' Secrets and ConfigMaps, of which Read sees
// names alone. An object without UID is an error of Of. A
// circle of owners is none: it is opened, and its nodes say so.
package graph
