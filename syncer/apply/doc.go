// Package apply brings a rendering into one cluster and takes out what the
// owner no longer declares.
//
// An Applier works on one cluster, for one owner. Sync is the whole way of a
// rendering: inventory ahead, staged server-side apply, prune plan, deletes.
// Invariants:
//
//   - before the first write the inventory names everything that may be
//     created (write-ahead), so that a process killed at any point leaves
//     nothing that nobody answers for;
//   - the inventory shrinks only by entries that the API server confirmed
//     absent, or that belong to somebody else;
//   - each delete is held to the object that the plan saw: its UID, and the
//     version in which its owner was looked at last;
//   - an object is absent only if its kind's own handler says so;
//   - the Memo calls nothing clean that it did not apply and see untouched since;
//   - objects of protected kinds are never deleted and re-created to get
//     around an immutable field.
//
// Every call to the API server ends with its context or the client's own
// time-out. Error texts never contain the value of a Secret.
package apply
