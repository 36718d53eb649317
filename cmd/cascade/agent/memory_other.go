//go:build !linux

package agent

// releaseProgramPages is for Linux.
func releaseProgramPages() {}
