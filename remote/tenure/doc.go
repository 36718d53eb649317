// Package tenure is for how long this process drives which shards of a tier's children.
//
// Each replica of a tier has a Lease of its own, which says that it lives, and runs
// client-go's leader election for each shard. By package shard it knows which shards it
// is to have: those it takes when they are free, and one that another replica is to have it
// gives back. While it holds the Lease of a shard, its tenure, it drives the children in it.
//
// Invariants:
//
//   - a tenure begins with a new epoch, after the Lease was acquired, and all work of it has
//     ended before the Lease is given back;
//   - a process that cannot renew a Lease has no right to write some time before another
//     one may acquire it;
//   - only as many shards are served as the leader of the tier says: one of another version,
//     or with another number of shards, ends all tenures.
//
// Failure model: a replica that dies loses its shards when their Leases expire, and another
// one, which has watched them all along, takes them. A replica that cannot reach the API
// server does the same to itself before that. What a process that was paused sends after
// all is refused by its own fence, and by the epoch in the record of each layer.
package tenure
