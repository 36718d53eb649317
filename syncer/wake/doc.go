// Package wake is what makes the reconcilers of Flux's kinds look at an object:
// predicates, indexes of who refers to what, the queue with its priorities, and
// the pauses between two looks.
//
// Invariants: no function waits, and none writes to a cluster. What is enqueued
// twice is reconciled once.
//
// Failure model: a list that fails is logged, and the object is looked at again
// at its interval.
package wake
