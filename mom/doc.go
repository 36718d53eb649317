// Package mom is a management cluster that needs no cluster, no container engine and no root:
// a control plane, Cluster API with its providers, and an agent, as child processes of this
// one, with their state saved elsewhere. It may run for an hour, provision masters, and go; it
// goes on where it was, on another machine too.
//
// What is decided is pure: with what a run begins ([Begin]), whether the tier may go
// ([Judge]), and when state is saved. [Up] is the edge: it starts what is decided on, in one
// order, and ends it in the other.
//
// Invariants:
//   - A state has one writer: nothing that writes to a cloud or to a cluster below is started
//     before the lock of the state is held, and all of it is ended before the lock may lapse.
//   - What was saved is in the cluster before an agent or a provider is started. So a cluster
//     that exists is adopted, and never built a second time.
//   - A record that all Clusters of the tier are known is believed only of the last state that
//     was saved, and only if it was saved after the last writer had ended. Else Clusters that
//     Git declares and the state does not have are held until a person says that they are new.
//   - Down saves, and stops. It deletes nothing; nor does a state that is older, or newer, than
//     what a folder has: the folder's cluster is put aside.
//   - All of it listens on loopback, but for the webhooks of managers that know no other way
//     than all addresses; these show nothing, and answer whoever asks about objects of theirs.
//   - Nothing of it outlives this process, however it ends.
//
// Failure model: a child that ends is started again. A state that cannot be saved is tried
// again and said, and the work goes on; the lock that cannot be renewed ends it. A machine that
// crashes loses what was not saved, seconds of it: then what was begun in them is held, as above.
package mom
