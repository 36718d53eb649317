// Package firstsync keeps, durably, what a tier knows about its Clusters, so that
// no cluster is built a second time.
//
// A management cluster that was lost and rebuilt has no records. Git declares the same
// Clusters as before, and they still run. From inside, the tier looks like one that
// never had a Cluster. So each tier begins with a first sync. During the first sync the
// agent creates a Cluster that does not exist only after a person approved it, and it
// does not touch a Cluster that exists until that is complete. The first sync is settled
// when everything that Git declares is applied and exists. It stays settled.
//
// A Layer or spec.kubeConfig applies Clusters to another tier. For these the record of
// that tier counts ([Read], [Other]): a record in this tier would outlive them.
//
// The record is one ConfigMap in the agent's namespace. It lies in the same etcd as the
// Clusters, so it is lost when they are, and never without them. People and agents
// write different keys of it.
//
// Invariants:
//   - No caller gets a decision before the agent has read or created the record and
//     has seen the Clusters that exist.
//   - A record that exists wins over the agent's arguments. These count where nothing shows
//     that the tier ever had a Cluster.
//   - What a person wrote is ended by a person. What an agent began with ends by itself,
//     when everything is there.
//   - A record that is deleted while the agent runs comes back as it was.
//   - An approval that a person wrote stays until the Cluster that it allows exists.
//
// Failure model: while the record cannot be read, or the Clusters of the tier cannot be
// listed, no object of Cluster API is applied, and the conditions of the owners say so within
// a minute. All else is applied, such as what mends that. A mark that cannot be written counts in this
// process and is written later. If the process ends before that, a Cluster that was
// moved away in the meantime is created again.
package firstsync
