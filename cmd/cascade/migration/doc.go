// Package migration moves a cluster between Flux's controllers and an agent: it reads what is
// there, says what will happen, stops the controllers of the one side before the other starts,
// and shows that every object is still the one that it was.
//
// Invariants: a plan is a pure function of facts. Two engines never work at the same time:
// who stops somebody waits until the pods are gone and no lease is held. Nothing is deleted
// here; what was recorded is compared by UID.
//
// What Flux's controllers are told an agent is told, or a person decides: nothing that keeps tenants
// apart is left behind in silence.
//
// Every step can be repeated. An error says which step did not end.
package migration
