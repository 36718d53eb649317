package footprint

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Release gives back the resident pages of the program's own code
// and constants. The kernel maps them by 2 MB where it can, so that nearly all
// of a large program counts as resident although most of it runs once, at the
// start, or never. What is needed comes back from the page cache, by small
// pages. Errors mean only that memory stays as it is.
func Release() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer smaps.Close()
	for _, m := range unmodified(smaps, program) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.begin, m.length, unix.MADV_NOHUGEPAGE)
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.begin, m.length, unix.MADV_DONTNEED)
	}
}

type mapping struct{ begin, length uintptr }

// unmodified lists the mappings of a file that the process cannot write to and
// never has: their pages are the file's. What a linker relocated and then
// protected is not among them; it would be lost.
func unmodified(smaps io.Reader, file string) []mapping {
	var found []mapping
	var current *mapping
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		// A mapping begins with: address perms offset dev inode path
		fields := strings.Fields(lines.Text())
		if len(fields) > 1 && strings.HasSuffix(fields[0], ":") {
			if fields[0] == "Anonymous:" && fields[1] == "0" && current != nil {
				found = append(found, *current)
				current = nil
			}
			continue
		}
		current = nil
		if len(fields) < 6 || fields[5] != file || strings.Contains(fields[1], "w") {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		begin, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err1 == nil && err2 == nil && end > begin {
			current = &mapping{uintptr(begin), uintptr(end - begin)}
		}
	}
	return found
}
