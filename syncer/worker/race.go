//go:build race

package worker

// instrumented is how many bytes the race detector maps for one of the program's.
const instrumented = 8
