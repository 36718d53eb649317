// Package memo remembers which objects of a cluster are known to be as they were
// applied.
//
// For each object a Memo keeps what was asked for (a digest) and what the API
// server answered: UID, generation, and the labels and annotations that were
// asked for. A metadata-only watch of each kind, limited to objects that carry
// an owner label, compares the live state with that. An object is clean while
// both agree; of kinds without a generation it compares who manages which fields
// since when, but for those of the status.
//
// The package has two subjects and a lock for each:
//
//   - records (records.go) holds what was verified of each object and what the
//     watch shows of it, and which owners take objects from each other
//     (conflicts.go). Its lock guards records, owners and the state of each
//     kind that says whether the watch is to be believed;
//   - watches (watches.go) holds which kinds are watched. Its lock guards the
//     set of running watches, and may be held while that of records is taken,
//     never the other way round.
//
// No lock is held over a request, nor while a listener is called.
//
// Invariants:
//
//   - nothing is clean that this process did not apply and see untouched since;
//   - a lost or late watch makes nothing clean that was not clean before: drift
//     is then noticed late, never applied over blindly;
//   - a watch that the API server refuses leaves nothing of its kind clean.
package memo
