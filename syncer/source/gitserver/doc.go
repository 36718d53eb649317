// Package gitserver runs real Git servers on loopback for end-to-end tests and
// the demo: smart HTTP, plain or with TLS, by git's own http-backend, and SSH by
// git's own upload-pack and receive-pack. What a client meets is therefore what
// git does, not what we believe it does; only listening, authentication and
// counting are ours.
//
// Invariants:
//
//   - Listeners are on 127.0.0.1 unless an address is given.
//   - Nothing outside of the root is served: a repository is named by a relative
//     path without "..", and must be a folder below the root once every link is
//     followed. Only the three requests of the smart protocol are answered.
//   - Every git process runs without the configuration and the environment of
//     the machine, so a test sees the same git everywhere.
//   - After Close no process and no goroutine of the server is left.
//
// Failure model: wrong credentials get 401 (HTTP) or are denied (SSH), an
// unknown repository 404 or an exit status. A client that goes away takes its
// git process with it. To simulate an outage, Close the server and Start it
// again with the same root, addresses and keys; repositories are plain bare
// ones and survive a kill as git's own do.
//
// It needs the git program, and a Unix system.
package gitserver
