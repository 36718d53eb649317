// Package message makes the message of a commit of an ImageUpdateAutomation, from a template of its author.
//
// A template can ask for a text of any length and for loops in loops, and Go's library cannot be stopped while
// it executes one. So templates are parsed and executed in a worker.
//
// Invariants: a template knows what Flux documents (AutomationObject, Changed, Values) and Sprig's functions without
// those that read the environment, the clock, the network or random numbers: the same change has the same message.
//
// Failure model: ErrRemoved is wrapped where a template uses what Flux removed; other errors of a template are *Invalid; a
// worker's limit is a *worker.Exceeded.
package message
