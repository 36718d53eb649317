// Package trace tells OpenTelemetry how a commit went over the fleet: one trace for each
// commit, with a span for each object that fetched it, applied it or pushed it to a child,
// in every tier.
//
// The ID of a trace is the first 32 digits of the commit, or of the digest of another
// source's artifact. So no tier hands an ID to another: all that work on one commit are in
// one trace, and who has the commit has the trace.
//
// Invariants: a reconcile never waits for spans; an object has one span for each revision
// and outcome, also over restarts of the process; no span has a message, whose text others
// wrote.
//
// Failure model: spans that cannot be sent are tried again for a minute and then lost, and
// so are those that do not fit in the queue. Nothing else depends on them.
package trace
