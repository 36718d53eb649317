//go:build !linux

package main

// releaseProgramPages is for Linux.
func releaseProgramPages() {}
