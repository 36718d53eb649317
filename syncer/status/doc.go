// Package status is how the reconcilers of Flux's kinds write what they found:
// conditions with Flux's types, reasons and field managers, the history of a
// Kustomization, and the record of one object during one reconcile.
//
// Invariants:
//
//   - a Store reads the object that was written last: it asks the cache, and the
//     API server where the cache lags behind its own last write;
//   - a Record carries out the spec that it was read with, whatever becomes of
//     the object meanwhile: of the answer to a write it takes the metadata;
//   - a status that did not change is not written.
//
// Failure model: a write to an object that is gone is no error, because nobody is
// left to tell. Only WriteAhead fails then: what it records must be on record
// before anything is created.
package status
