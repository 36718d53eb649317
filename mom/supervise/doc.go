// Package supervise keeps other programs running as children of this process.
//
// Invariants:
//   - A child ends with this process, also if this is killed: the kernel signals it. It leads a
//     process group of its own, so that what a terminal sends to this process does not reach it
//     before this process decided what ends first.
//   - When the context of a program ends, so does the program: it is asked, given its grace, and
//     killed with its group. A context that ends for ErrAtOnce gives no grace.
//   - Keep returns when the process is gone, never before.
//   - What a program prints is in a file of its own, of which there are two of bounded size.
//
// Failure model: a program that ends is started again, after a pause that grows with each run
// that was short. One that cannot be started at all counts as a short run. Nothing that a
// program does ends this process; whether it works is for the caller to ask.
package supervise
