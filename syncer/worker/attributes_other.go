//go:build !linux

package worker

import "syscall"

func attributes() *syscall.SysProcAttr { return nil }

func keepDescriptors() {}

func standBack(int) {}
