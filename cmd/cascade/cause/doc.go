// Package cause explains why objects of a tier, and of the tiers below as far as they are
// reported, are not as they should be: chains of links, the root first, as in source →
// Kustomization → Layer → Child → cluster below. Facts go in, chains come out; Reader
// gathers the facts.
//
// Invariants: Explain is pure, ends for all facts, and gives the same answer for the same
// facts in any order. A root has no cause among the facts, or is one of a cycle. No message
// is read for what it says; links follow references, inventories and reports. What could
// not be read is Unread, and never taken for absent or for well. All texts of an
// Explanation are bounded and have no characters that a terminal takes for commands,
// whoever wrote them.
//
// Failure model: a kind that cannot be listed is named in Unread, and the rest is
// explained without it. Tiers below are known by the report of their agents only, with the
// bounds and the age of these.
package cause
