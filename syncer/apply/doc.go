// Package apply brings a rendering into one cluster and takes out what the
// owner no longer declares.
//
// An Applier works on one cluster, for one owner. Sync is the whole way of a
// rendering, and a run is one call of it. Its steps are: hold creations that are
// in doubt, record the inventory ahead, apply phase by phase and stage by stage,
// prune. What a call needs to know beyond its options is kept in the run; the
// Applier itself has no state.
//
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
//   - an object that memo.Memo knows to be clean costs no request;
//   - objects of protected kinds are never deleted and re-created to get
//     around an immutable field.
//
// Every call to the API server ends with its context or the client's own
// time-out. Error texts never contain the value of a Secret.
package apply
