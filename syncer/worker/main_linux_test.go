package worker

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	Become(os.Args, testTasks)
	os.Exit(m.Run())
}

// testTasks are what workers do in the tests of this package.
var testTasks = Tasks{
	"echo":  func(request []byte, _ Ask) ([]byte, error) { return request, nil },
	"fail":  func(request []byte, _ Ask) ([]byte, error) { return nil, errors.New(string(request)) },
	"panic": func(request []byte, _ Ask) ([]byte, error) { return request[:cap(request)+1], nil },
	"ask": func(request []byte, ask Ask) ([]byte, error) {
		answer, err := ask("what", request)
		if err != nil {
			return nil, fmt.Errorf("asked: %w", err)
		}
		return answer, nil
	},
	"environment": func([]byte, Ask) ([]byte, error) { return []byte(strings.Join(os.Environ(), "\n")), nil },
	"open": func([]byte, Ask) ([]byte, error) {
		_, err := os.Open("/proc/self/status")
		return nil, err
	},
	"create": func([]byte, Ask) ([]byte, error) { return nil, os.WriteFile("/tmp/x", nil, 0o600) },
	"dial": func([]byte, Ask) ([]byte, error) {
		_, err := net.Dial("tcp", "127.0.0.1:1")
		return nil, err
	},
	"unix": func([]byte, Ask) ([]byte, error) {
		_, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		return nil, err
	},
	"exec": func([]byte, Ask) ([]byte, error) { return nil, exec.Command("/proc/self/exe").Run() },
	"fork": func([]byte, Ask) ([]byte, error) {
		_, _, errno := syscall.RawSyscall(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0)
		return nil, errno
	},
	"signal": func([]byte, Ask) ([]byte, error) {
		return nil, unix.Tgkill(unix.Getppid(), unix.Getppid(), unix.SIGTERM)
	},
	"executable": func([]byte, Ask) ([]byte, error) {
		_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE)
		return nil, err
	},
	// Four seconds of a processor.
	"burn": func([]byte, Ask) ([]byte, error) {
		var used unix.Rusage
		for unix.TimevalToNsec(used.Utime)+unix.TimevalToNsec(used.Stime) < int64(4*time.Second) {
			if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
				return nil, err
			}
		}
		return nil, nil
	},
	"hog": func([]byte, Ask) ([]byte, error) {
		var all [][]byte
		for {
			all = append(all, bytes.Repeat([]byte("x"), 1<<20))
			runtime.KeepAlive(all)
		}
	},
	"double": func([]byte, Ask) ([]byte, error) {
		s := strings.Repeat("x", 1<<20)
		for {
			s += s
		}
	},
	"huge": func([]byte, Ask) ([]byte, error) {
		small := bytes.Repeat([]byte("x"), 30<<20)
		all := make([]byte, 500<<20)
		for i := 0; i < len(all); i += os.Getpagesize() {
			all[i] = small[i%len(small)]
		}
		return all[:1], nil
	},
	"loop": func([]byte, Ask) ([]byte, error) {
		for i := 0; ; i++ {
			if i < 0 {
				return nil, nil
			}
		}
	},
	"recurse": func([]byte, Ask) ([]byte, error) { return []byte{byte(recurse(1))}, nil },
	"large":   func([]byte, Ask) ([]byte, error) { return make([]byte, MaxFrame+1), nil },
	"exit": func([]byte, Ask) ([]byte, error) {
		os.Exit(7)
		return nil, nil
	},
}

func recurse(n int) int {
	if n == 0 {
		return 0
	}
	return recurse(n+1) + 1
}
