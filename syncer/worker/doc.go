// Package worker runs what may never end, or may take all memory, in a process of
// its own.
//
// Libraries that build kustomizations, render templates and evaluate expressions
// cannot be interrupted, and what they need depends on text that others wrote. A
// Pool starts the running program once more, as a worker, and lets it do one
// task at a time. The kernel bounds what a worker uses up; the program kills it
// when it is late.
//
// Invariants, each with a test:
//
//   - a worker has an empty environment, and no descriptors but three pipes;
//   - it has limits of memory and processor time, and can open no file, make no
//     socket, and start no process: a seccomp filter answers EPERM. A worker that
//     cannot be confined is not used;
//   - it knows what the task's request says and what the program answers to its
//     questions, and nothing else. Keys and credentials are not among that;
//   - there are never more workers than Limits say, and none when there is
//     nothing to do; a worker does not outlive the program;
//   - who waits for a worker is served in turn, by owner: first those whose last job had
//     a result, then those who are new, then those whose last job failed. Owners whose
//     work exceeded a limit, needs much, or failed after a while come last, and leave one
//     worker to the others. Each fourth turn is that of who waits longest.
//
// A worker serves one owner after the other. Nothing of the former is left but
// what libraries keep in variables; a job that changed those says so by Spent.
//
// Failure model: an *Exceeded comes again with the same input. A worker that died for
// another reason is replaced once; an error wrapping ErrLost after that may pass
// by itself. What a task returned as its error is a *TaskError.
package worker
