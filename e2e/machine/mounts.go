package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// mount is one call of the kernel's.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func mountAll(mounts ...mount) error {
	for _, m := range mounts {
		if err := syscall.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("cannot mount %s: %w", m.target, err)
		}
	}
	return nil
}

// ownMounts takes the mounts of this process away from those of the computer, and shows the
// processes of its own namespace.
func ownMounts() error {
	return mountAll(
		mount{"none", "/", "", syscall.MS_REC | syscall.MS_PRIVATE, ""},
		mount{"proc", "/proc", "proc", syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC, ""},
	)
}

// Directories of a machine, below its own.
const (
	sysDir  = "sys"
	optDir  = "opt"
	etcDir  = "etc"
	workDir = "work"
	libDir  = "lib"
	logDir  = "log"
)

// tunables are settings of the kernel as a kubelet wants them. It changes those that are
// different, and ends if it cannot.
func tunables() map[string]string {
	return map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	}
}

// machineMounts gives a machine its own directories, and takes the settings of the kernel
// away that are those of the whole computer: the machine sees what its kubelet wants to see.
func machineMounts(dir string) error {
	for _, name := range []string{sysDir, optDir, etcDir, workDir, libDir, logDir} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return fmt.Errorf("cannot make a directory of the machine: %w", err)
		}
	}
	if err := ownMounts(); err != nil {
		return err
	}
	etc := fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", filepath.Join(dir, etcDir), filepath.Join(dir, workDir))
	err := mountAll(
		// As the first process of most distributions has it: mounts in containers spread.
		mount{"none", "/", "", syscall.MS_REC | syscall.MS_SHARED, ""},
		mount{"tmpfs", "/run", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV, "mode=755"},
		mount{filepath.Join(dir, optDir), "/opt", "", syscall.MS_BIND, ""},
		mount{"overlay", "/etc", "overlay", 0, etc},
		mount{"/proc/sys", "/proc/sys", "", syscall.MS_BIND, ""},
		mount{"/proc/sys/net", "/proc/sys/net", "", syscall.MS_BIND, ""},
	)
	if err != nil {
		return err
	}
	for name, value := range tunables() {
		file := filepath.Join(dir, sysDir, filepath.Base(name))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o444); err != nil {
			return fmt.Errorf("cannot write a setting of the machine: %w", err)
		}
		if err := mountAll(mount{file, filepath.Join("/proc/sys", name), "", syscall.MS_BIND, ""}); err != nil {
			return err
		}
	}
	return mountAll(
		mount{"none", "/proc/sys", "", syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY, ""},
		mount{filepath.Join(dir, libDir), "/var/lib", "", syscall.MS_BIND, ""},
		mount{filepath.Join(dir, logDir), "/var/log", "", syscall.MS_BIND, ""},
	)
}
