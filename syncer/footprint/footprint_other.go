//go:build !linux

package footprint

// Release is for Linux.
func Release() {}
