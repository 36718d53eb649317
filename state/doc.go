// Package state takes what a tier cannot have again from Git, and restores it: the objects
// of Cluster API and its providers, their Secrets, and the records of the tier.
//
// Take reads it. All kinds are listed at one version of the API server's storage, so the
// objects are those of one moment; nothing is paused for that. Restore makes what is not
// there, in the order that package graph says, Clusters paused. It resumes them when
// everything is there. Status is left to the controllers, which work it out of the specs
// and of what exists in the cloud: the ids of machines, networks and endpoints are in the
// specs, so what was built is adopted.
//
// What is to be done is planned from facts by a pure function. Invariants of Restore:
//
//   - it deletes nothing, and changes no object that is there, except Clusters that it
//     paused itself, what is on record of what ClusterResourceSets applied to these, and the
//     lineage of epochs, to which it adds;
//   - objects of a Cluster that is there and that nobody restores are not made: what is
//     missing may have been removed since;
//   - a Cluster is not made in a tier that went on since the state was saved, unless a person
//     says that it was not removed, nor where the record of the first sync says that it was
//     moved away, or that the tier may create Clusters by itself and has none of that name;
//   - a Cluster that was being deleted stays paused, and so does one that manages itself by now;
//   - the restored tier is not settled: what was created after the state was saved is held,
//     not built a second time;
//   - it may be ended at any request; the same restore goes on.
//
// Failure model: Take fails as a whole, since half of a state looks like all of a smaller
// one; so it does while a Cluster is being restored. A Restore that fails leaves the Clusters
// that it made paused, with an annotation that says of which state; nothing is built and
// nothing is deleted for them meanwhile. Two tiers that run the same Clusters at the same time
// cannot be told from inside of either: whoever restores makes sure that the other one is gone.
package state
