// Package footprint keeps small what a process has resident of its own program. The
// agent and its workers are one program of a hundred megabytes, most of which runs once,
// at the start, or never.
package footprint
