// Package difference compares what is declared now with what a commit would declare, and
// reports it for people and for machines.
//
// It is pure: two renderings of each owner in each cluster in, a report out. Invariants:
//
//   - no value of a field is in a report, only the path of the field: what is compared has
//     Secrets in it;
//   - what would not be deleted is not reported as deleted: deletes pass the same guards as
//     the agent's (inventory.PlanPrune), with the facts that renderings tell. What only a
//     cluster knows, another owner of an object for instance, can hold more of them;
//   - what could not be rendered is in the report by name, and is no change.
package difference
