// Package rights notices that the account of an owner lost a right that its objects
// need, or has it again.
//
// The memo lets a reconcile ask nothing about objects that are as they were applied, so
// that nothing would show what the account may not do any more. While an owner acts as a
// service account, Rights watches the metadata of what RBAC decides by: roles, bindings,
// and service accounts. A change is news. After a moment of quiet, Rights asks the API
// server as the account whether it may still apply, once for each resource and namespace
// of the account's owners (SelfSubjectAccessReview).
//
// A refusal is not believed but tried: the owner is told which objects to apply again,
// and what the API server answers to that is what its status says. An owner that was
// refused before is woken when nothing is denied any more.
//
// Invariants:
//
//   - not to know is not to be denied: an answer that does not come is asked for again;
//   - nothing is watched or asked while no owner acts as an account;
//   - questions are asked in goroutines of their own, at most eight at a time, so that no
//     reconcile waits for them;
//   - no lock is held over a call, nor while an owner is told.
//
// Failure model: where RBAC cannot be watched, or others than RBAC decide (an authorizing
// webhook), everything is asked about in turns: within a minute, or as fast as twenty
// questions a second allow. All that is known is lost with the process, which applies
// every object once when it starts.
package rights
