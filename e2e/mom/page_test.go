package mom

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/e2e/pages"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestPage does what docs/mom.md says, command by command: a management cluster for an hour,
// and one for good. What the page says that a command prints, it prints among other lines.
func TestPage(t *testing.T) {
	scenario.Alongside(t)
	d := newStand(t)
	blocks, err := pages.Read(scenario.Path(t, "docs", "mom.md"))
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(d.run, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	// The two programs of a release lie in one directory.
	for name, from := range map[string]string{"cascade": "cascade", "cascade-mom": program} {
		file, err := d.Program(from)
		if err != nil {
			t.Fatal(err)
		}
		if from == "cascade" {
			file = scenario.Path(t, "bin", "cascade") // without the race detector
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(d.run, "ann")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d.write(t, filepath.Join(dir, "secrets.yaml"), d.secrets(t))
	environment := append(d.Environment(), "HOME="+dir, "XDG_STATE_HOME=", "XDG_CACHE_HOME=", "PATH="+bin+":"+os.Getenv("PATH"), "CASCADE_IMAGE="+stage.Image, "LC_ALL=C.UTF-8")
	shell, err := pages.NewShell(dir, environment)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(shell.Close)
	// Its Git server has no certificate that everybody knows.
	words := strings.NewReplacer("--repo https://github.com/ann/masters --username ann --path mom", strings.Join(d.repository(), " ")+" --interval 2s")
	commands := 0
	for _, b := range blocks {
		if b.NotRun != "" || b.Language != "console" {
			t.Errorf("line %d: nobody says what to do with a block of %s", b.Line, b.Language)
		}
		for _, c := range b.Commands {
			ctx, cancel := context.WithTimeout(t.Context(), scenario.BringUp)
			out, code, err := shell.Run(ctx, words.Replace(c.Text))
			cancel()
			if err != nil || code != 0 {
				t.Fatalf("line %d: %s ends with %d, %v\n%s", c.Line, c.Text, code, err, out)
			}
			commands++
			for _, line := range strings.Split(strings.TrimSpace(c.Output), "\n") {
				if !strings.Contains(out, line) {
					t.Errorf("line %d: %s does not print %q:\n%s", c.Line, c.Text, line, out)
				}
			}
		}
	}
	if got := len(d.controlPlanes(t)); got != 2 {
		t.Errorf("%d control planes run below, of one environment and its tenant", got)
	}
	t.Logf("%d commands", commands)
}
