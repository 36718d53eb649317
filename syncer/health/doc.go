// Package health tells how objects are, as Flux tells it: by kstatus, by
// Flux's reader for Jobs, and by the CEL expressions of
// spec.healthCheckExprs.
//
// It is pure but for the workers that evaluate expressions: callers read the objects
// and decide when to look again. An
// object whose health cannot be computed is Unknown, which is neither healthy
// nor failed, and carries the error. Expressions come from tenants, so each
// evaluation has limits of time and memory. Texts name objects and states, never
// values.
package health
