// Package syncer has the reconcilers of the Flux kinds: thin loops that read
// an object, call source, render, apply and inventory, and write the status
// that Flux's tools expect.
//
// Invariants:
//
//   - status is written once per reconcile, and only if it changed; the one
//     write besides is the inventory, ahead of the first object;
//   - the inventory that a reconcile starts from is read from the API server,
//     not from the cache, which may lag behind our own last write;
//   - no reconcile waits for health or for another object: it returns and is
//     woken, or looks again after a moment;
//   - a field that this engine does not support yet is refused by name, and
//     nothing is applied for the object that sets it.
package syncer
