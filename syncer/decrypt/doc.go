// Package decrypt makes plain content of what SOPS encrypted: whole objects,
// values of Secrets, and files that a kustomization names.
//
// A Decryptor is made for one reconcile of one Kustomization, with the keys of
// spec.decryption. It follows kustomize-controller: the same keys of the
// Secret, the same detection of formats, and like it does not verify the MAC,
// because kustomize adds to objects what the MAC does not cover. Whoever can
// write to the repository can therefore move encrypted values only under keys
// of the same path, which AES-GCM binds them to, but can drop values and change
// plain ones unseen.
//
// Invariants:
//
//   - no program is run and no file is read: age plugins, gpg and its key ring,
//     and the key files that SOPS looks for by itself are not used;
//   - a key service is asked with credentials of the object only, or with those
//     that Options grant it; a token of this process goes to no address that a
//     repository chose;
//   - an error tells neither plain content nor key material;
//   - content that would exhaust the stack or memory is refused before SOPS
//     sees it, and a panic of SOPS is an error.
//
// Calls to key services end with the context, or after a time-out of their own.
package decrypt
