// Command waiter is what the containers of the suite run that only have to be there. Each
// argument is FROM=TO: the files of directory FROM are copied into TO. Then it waits until
// it is told to end.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	for _, arg := range os.Args[1:] {
		if err := install(arg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	<-ended
}

// install copies the files of a directory. Each appears whole, since somebody may be about
// to run it.
func install(arg string) error {
	from, to, found := strings.Cut(arg, "=")
	if !found {
		return fmt.Errorf("cannot copy %q: say FROM=TO", arg)
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("cannot list %s: %w", from, err)
	}
	for _, e := range entries {
		file := filepath.Join(from, e.Name())
		info, err := os.Stat(file)
		if err != nil {
			return fmt.Errorf("cannot copy %s: %w", file, err)
		}
		if info.IsDir() { // the data of a ConfigMap has some
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("cannot copy %s: %w", file, err)
		}
		temporary := filepath.Join(to, "."+e.Name())
		if err := os.WriteFile(temporary, content, info.Mode().Perm()); err != nil {
			return fmt.Errorf("cannot copy %s: %w", file, err)
		}
		if err := os.Rename(temporary, filepath.Join(to, e.Name())); err != nil {
			return fmt.Errorf("cannot copy %s: %w", file, err)
		}
	}
	return nil
}
