// Package informer makes the informers of the cache, so that no object can end the watch
// of its kind.
//
// A list or a watch is decoded as a whole: one object whose status has a duration that is
// none, or a time with a lower-case t, is an error of the list, and the kind is not read
// any more until somebody finds that object. What a status may hold is not admitted as
// strictly as a spec, and whoever may write the status of one object could stop a tier.
// Here each object is decoded by itself. Of one that cannot be decoded the parts of the
// status that are in the way are left out; if it is the spec, the object is taken to be
// suspended without the fields that are, and says so in an annotation that nobody writes:
// nothing is done with it, and what it answers for stays its own.
//
// Invariants: an object that can be decoded is what the client of Kubernetes would make
// of it. An object that cannot is never missing.
//
// Failure model: while a kind cannot be listed or watched, Check says so, and the
// reflector tries again, as always. One that the agent can do without, and that was taken out
// of the tier, is told in the log alone: an agent that is not ready serves nobody.
package informer
