// Package agent is the agent of a tier: its command with its flags, and the wiring
// of what it reconciles.
//
// The flags are in groups. A group is a small struct in a file of its own, which
// binds its flags, checks them, and builds from them what the agent needs. wire.go
// alone knows which built part goes into which other; nothing else in the program
// does. Clocks, randomness, the scheme and the version come from the caller.
//
// The agent starts with the network denied to whatever has no transport of its own,
// and waits until Flux's controllers do not hold the leases of the kinds that it
// reconciles. Of several agents of a tier one works. It deletes nothing when it does
// not know whether it still is the one: see heldLease.
package agent
