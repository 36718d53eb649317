// Package report is what an agent says of its tier, for the agent of its parent, which
// reads it from a ConfigMap: whether the tier is in sync and, rolled up, how the tiers
// below are.
//
// Compute makes a report of facts and time. Parse reads one that the agent of a child
// wrote. Contact.Lost says when what a child reported is too old to be told on. Below
// keeps what was worked out of each Child, so that a Child that changes costs about one
// Child. Reporter keeps the ConfigMap, and renews the heartbeat, a Lease. Invariants:
//
//   - a report is bounded, whatever a tier has and whatever its children say: each text
//     and each list has a bound, and the whole is shorter than half of what a parent
//     accepts;
//   - counts cover all clusters, with a row or without, and each list of counts adds up
//     to the total; they do not overflow;
//   - a child that lies spoils its own row, and its own share of rows and counts: others
//     keep theirs;
//   - a cluster is ready only if its parent was in contact with its agent a short while
//     ago; else it is stale, and so it is told on all the way up;
//   - what is suspended is not ready;
//   - nothing in a report changes while nothing changes in the tier, so that at rest
//     nothing is written but the heartbeat;
//   - the heartbeat tells of a report after that was written, never before.
//
// A report of an older agent lacks what is newer here, and counts all the same; an older
// parent reads what it knows. What cannot be read is an error, and then there is no
// report. A ConfigMap that somebody deletes or changes is written again. While it cannot
// be written it is tried again, and the digest that the heartbeat carries stays that of
// the last one that was.
package report
