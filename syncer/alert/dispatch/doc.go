// Package dispatch sends what Alerts want to their Providers, apart from who records
// events.
//
// Invariants, each with a test:
//
//   - Take never waits for anything, whatever Providers do;
//   - each Provider has a queue of its own, which is sent in order; what one Provider does
//     delays no other one. Those that failed last share a few places of their own;
//   - what the expressions of one namespace's Alerts take delays its own messages, and no others;
//   - what waits is bounded for each Provider, and for all of them together, in number and
//     in bytes. The oldest is dropped and counted;
//   - an attempt has a deadline, and an answer a bound. No redirect is followed, no
//     certificate goes unverified, and no address that gives credentials of machines away
//     is reached;
//   - nothing that a Secret or an answer says comes into a log, an event or a metric;
//   - a Provider that nothing is sent to costs nothing: neither a goroutine nor a
//     connection, nor do its credentials stay in memory.
//
// Failure model: a message is tried a few times and then counted and logged. An event about
// the Provider, or the Alert, tells when it begins to fail, when it fails for another
// reason, and when it is well again. Nothing is written to them. A process that is killed
// loses what waits; one that ends sends what it can within a few seconds.
package dispatch
