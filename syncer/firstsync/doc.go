// Package firstsync keeps, durably, what a tier knows about its Clusters, so that
// no cluster is built a second time.
//
// A management cluster that was lost and set up anew has no records, while Git
// declares the same Clusters as before, and they run. Seen from inside, it is no
// different from one that never had a Cluster. So a tier begins unsettled: a
// Cluster that does not exist is not created before a person said that it is new,
// and one that exists is left alone until it is complete. When everything that Git
// declares is applied and there, the tier is settled, for good.
//
// Clusters that are applied to another tier, by a Layer or spec.kubeConfig, are judged
// by what is on record there ([Read], [Other]): what this tier knows would outlive them.
//
// The record is one ConfigMap in the agent's namespace: it shares the fate of the
// Clusters, so that it is lost when they are, and never without them. People and
// agents write different keys of it.
//
// Invariants:
//   - Nobody gets an answer before the record was read, or made, and the Clusters
//     that are there were seen.
//   - A record that is missing is made from what is there: inventories with Clusters
//     and Children that were connected are those of a tier that is settled already.
//   - What a person wrote is taken back by nobody but by what it allowed having come
//     about.
//
// Failure model: while the record cannot be read nothing of Cluster API is applied,
// and the owners say so. A mark that cannot be written counts in this process and is
// written later; should the process end before that, a Cluster that was moved away
// in just these moments is created again.
package firstsync
