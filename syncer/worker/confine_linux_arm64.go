package worker

import "golang.org/x/sys/unix"

const archOfMachine = unix.AUDIT_ARCH_AARCH64

var callsOfMachine []uint32
