// Package alert decides what Alerts of Flux do with events: which Alert wants one, what
// is said of it, whether it was said a moment ago, and which events have one cause and
// are told together.
//
// Invariants:
//
//   - it is pure: events and the time come in, messages come out;
//   - an event that an Alert wants is in exactly one message for it, by itself or counted
//     among others, unless the same was told within the interval of Told, or its object is otherwise
//     before what waits among many is told;
//   - of an object nothing is told after what came later and says otherwise;
//   - what is kept has bounds, however many events come: of a cause with many objects only
//     their number, the first names and the first texts are kept;
//   - texts of others are cut and never parsed.
//
// Failure model: an expression of an Alert that is none is told by Compile and matches
// nothing. An event of more causes than can be kept at a time is told by itself.
package alert
