//go:build !race

package worker

const instrumented = 1
