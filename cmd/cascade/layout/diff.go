package layout

import (
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
)

// Diff writes changes as a unified diff, which git apply takes.
func Diff(out io.Writer, tree fs.FS, changes Changes) error {
	for _, name := range changes.Names() {
		old, err := read(tree, name)
		if err != nil {
			return err
		}
		diff := difflib.UnifiedDiff{A: lines(old), B: lines(changes[name]), FromFile: "a/" + name, ToFile: "b/" + name, Context: 3}
		mode := ""
		if old == nil {
			diff.FromFile, mode = "/dev/null", "new file mode 100644\n"
		}
		if changes[name] == nil {
			diff.ToFile, mode = "/dev/null", "deleted file mode 100644\n"
		}
		if _, err := fmt.Fprintf(out, "diff --git a/%s b/%s\n%s", name, name, mode); err != nil {
			return fmt.Errorf("cannot write differences: %w", err)
		}
		if err := difflib.WriteUnifiedDiff(out, diff); err != nil {
			return fmt.Errorf("cannot write differences: %w", err)
		}
	}
	return nil
}

// lines of a text, each with its end. A last one without an end is marked as git does.
func lines(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	split := strings.SplitAfter(string(text), "\n")
	if last := len(split) - 1; split[last] == "" {
		split = split[:last]
	} else {
		split[last] += "\n\\ No newline at end of file\n"
	}
	return split
}
