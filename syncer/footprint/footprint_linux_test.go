package footprint

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestUnmodified(t *testing.T) {
	block := func(address, perms, path, anonymous string) string {
		return fmt.Sprintf("%s %s 00000000 fe:00 123 %s\nSize: 8 kB\nRss: 8 kB\nAnonymous: %s kB\nVmFlags: rd mr\n", address, perms, path, anonymous)
	}
	smaps := block("1000-3000", "r-xp", "/bin/cascade", "0") + // code
		block("3000-4000", "r--p", "/bin/cascade", "4") + // relocated, then protected
		block("4000-5000", "rw-p", "/bin/cascade", "0") + // data
		block("5000-6000", "r--p", "/lib/libc.so", "0") + // somebody else's
		"6000-7000 rw-p 00000000 00:00 0\nAnonymous: 0 kB\n" + // heap
		block("7000-9000", "r--p", "/bin/cascade", "0") // constants
	got := fmt.Sprintf("%x", unmodified(strings.NewReader(smaps), "/bin/cascade"))
	if want := "[{1000 2000} {7000 2000}]"; got != want {
		t.Errorf("unmodified() = %s, want %s: only pages that equal the file's may be dropped", got, want)
	}
}

// TestRelease: the process goes on, and what it reads is the same.
func TestRelease(t *testing.T) {
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if len(unmodified(strings.NewReader(string(smaps)), program)) == 0 {
		t.Fatal("nothing of this program could be released")
	}
	for range 10 {
		Release()
		if got := fmt.Sprint(strings.Fields(" a  b ")); got != "[a b]" {
			t.Fatalf("the program does other things: %s", got)
		}
	}
}
