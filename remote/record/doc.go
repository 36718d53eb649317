// Package record keeps, in a child, what its parent applied there: one ConfigMap for
// each layer.
//
// The record of a layer has the inventory, the rendering that was attempted and the one
// that was applied completely, and which process of which parent wrote it last. It is
// in the child, so that it is lost when the child is and not without it: a parent that
// was rebuilt finds it, and the parent's own etcd does not grow with what its children
// hold.
//
// Invariants:
//
//   - a record is written before the first object of what it says was attempted;
//   - each write is held to the version that was read: of two processes that read the
//     same record one writes, and the other one gets ErrMoved;
//   - a record that cannot be read, or that a newer version of this program wrote, is an
//     error: it is never taken for an empty one;
//   - what is read is bounded: the child is another trust domain.
//
// Failure model: a call that fails leaves the record as it was, or as it was to be
// written. Whoever does not know which reads it again.
package record
