package worker

import (
	"runtime"
	"strings"
	"testing"
)

func TestSupported(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		system string
		on     string
		good   bool
	}{
		"Nodes":   {"most nodes", "linux", "amd64", true},
		"Arm":     {"nodes with ARM", "linux", "arm64", true},
		"Another": {"the numbers of system calls are not known", "linux", "riscv64", false},
		"Mac":     {"no filter of system calls", "darwin", "arm64", false},
		"Windows": {"no filter of system calls", "windows", "amd64", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := Supported(tc.system, tc.on)
			if (err == nil) != tc.good || (err != nil && !strings.Contains(err.Error(), tc.system)) {
				t.Errorf("%s: Supported() = %v", tc.reason, err)
			}
		})
	}
	if err := Supported(runtime.GOOS, runtime.GOARCH); err != nil {
		t.Errorf("the tests of workers run here: %v", err)
	}
}
