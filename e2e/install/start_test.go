package install

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cascade-gitops/cascade/e2e/pages"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

var update = flag.Bool("update", false, "write what commands print into docs/start.md")

// TestStart does what docs/start.md says, command by command, and compares what it says that
// they print. -update writes that into the page.
func TestStart(t *testing.T) {
	scenario.Alongside(t)
	page := scenario.Path(t, "docs", "start.md")
	blocks, err := pages.Read(page)
	if err != nil {
		t.Fatal(err)
	}
	r := newReader(t)
	r.follow(t, blocks)
	// These are all that is left out, and why.
	if want := []string{"needs a release", "needs a release"}; !slices.Equal(r.left, want) {
		t.Errorf("blocks are not run because of %q, want %q", r.left, want)
	}
	for _, w := range r.words {
		if !r.used[w.page] {
			t.Errorf("the page does not have %q", w.page)
		}
	}
	if r.synced == 0 {
		t.Error("the page does not get to its first sync")
	}
	t.Logf("%d commands; from the first command to synced: %s", r.commands, r.synced.Round(100*time.Millisecond))
	if !*update {
		return
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	replaced, err := pages.Replace(string(text), r.seen)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(page, []byte(replaced), 0o644); err != nil {
		t.Fatal(err)
	}
}

// reader follows a page with a cluster and a shell of its own.
type reader struct {
	*cluster
	shell *pages.Shell
	dir   string
	// words of the page that are others here.
	words []word
	used  map[string]bool
	// left are the reasons for blocks that are not run.
	left []string
	// seen are the blocks with what was printed here, in the words of the page.
	seen     []pages.Block
	commands int
	began    time.Time
	synced   time.Duration
}

type word struct{ page, here string }

// newReader gives a person what the page asks for: a cluster, a repository with a login, and
// the repository of somebody else.
func newReader(t *testing.T) *reader {
	t.Helper()
	fleet, public := hub(t, "fleet"), publicRepository(t)
	r := &reader{cluster: startCluster(t, false), dir: t.TempDir(), used: map[string]bool{}}
	// Command line and agent are those that people get: one program, without the race detector.
	bin := scenario.Path(t, "bin")
	if err := r.tier.StartNode(t.Context(), bin); err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(r.dir, "ca.crt")
	config := fmt.Sprintf("[user]\n\tname = Ann\n\temail = ann@example.com\n[init]\n\tdefaultBranch = main\n[http]\n\tsslCAInfo = %s\n"+
		"[credential]\n\thelper = \"!echo username=ann; echo password=hunter2hunter2; :\"\n", ca)
	if err := scenario.WriteFiles(r.dir, map[string]string{"ca.crt": string(fleet.CA()), ".gitconfig": config}); err != nil {
		t.Fatal(err)
	}
	r.words = []word{
		{"https://github.com/ann/fleet", fleet.HTTPURL("fleet")},
		{"https://github.com/stefanprodan/podinfo", public.HTTPURL("podinfo")},
		{"the-token-of-ann", "hunter2hunter2"},
		// Its certificate is its own.
		{"--username ann", "--username ann --ca-file " + ca},
	}
	var err error
	r.shell, err = pages.NewShell(r.dir, []string{
		"HOME=" + r.dir, "PATH=" + bin + ":" + os.Getenv("PATH"), "KUBECONFIG=" + r.tier.Kubeconfig(), "CASCADE_IMAGE=" + stage.Image, "LC_ALL=C.UTF-8",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.shell.Close)
	version, _, err := r.shell.Run(t.Context(), "cascade version")
	if err != nil {
		t.Fatal(err)
	}
	r.words = append(r.words, word{"v0.1.0", strings.TrimPrefix(strings.TrimSpace(version), "cascade ")})
	return r
}

// publicRepository is one that everybody may read, like that of podinfo: an application with a
// directory for kustomize, and tags.
func publicRepository(t *testing.T) *gitserver.Server {
	t.Helper()
	root := t.TempDir()
	s, err := gitserver.Start(context.WithoutCancel(t.Context()), gitserver.Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Create(t.Context(), "podinfo"); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"6.9.1", "6.9.2"} {
		commit, err := s.Commit(t.Context(), "podinfo", "master", "Release "+version, func(dir string) error {
			// CopyFS leaves what is there.
			if err := os.RemoveAll(filepath.Join(dir, "kustomize")); err != nil {
				return err
			}
			if err := os.CopyFS(filepath.Join(dir, "kustomize"), os.DirFS(filepath.Join("testdata", "podinfo"))); err != nil {
				return err
			}
			return scenario.ReplaceIn(filepath.Join(dir, "kustomize", "deployment.yaml"), "VERSION", version)
		})
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("git", "-C", filepath.Join(root, "podinfo.git"), "tag", version, commit).CombinedOutput(); err != nil {
			t.Fatalf("cannot tag: %v: %s", err, out)
		}
	}
	return s
}

// follow runs the blocks.
func (r *reader) follow(t *testing.T, blocks []pages.Block) {
	t.Helper()
	for _, b := range blocks {
		switch {
		case b.NotRun != "":
			r.left = append(r.left, b.NotRun)
			r.release(t)
		case b.Language == "yaml" && b.File == "":
			t.Errorf("line %d: nobody says what to do with this", b.Line)
		case b.Language == "yaml":
			// The shell knows which directory it is in.
			r.run(t, fmt.Sprintf("cat > %s <<'EOF'\n%sEOF", b.File, r.here(b.Text)), b.Line, false)
		default:
			b = r.console(t, b)
		}
		r.seen = append(r.seen, b)
	}
}

// release stands for a block that gets the program of a release. The first is there already;
// the next one would bring another image.
func (r *reader) release(t *testing.T) {
	t.Helper()
	if len(r.left) > 1 {
		r.run(t, "export CASCADE_IMAGE="+stage.Image+"-next", 0, false)
	}
}

// console runs the commands of a block, and returns it with what they printed.
func (r *reader) console(t *testing.T, b pages.Block) pages.Block {
	t.Helper()
	commands := slices.Clone(b.Commands)
	for i, c := range b.Commands {
		if r.began.IsZero() {
			r.began = time.Now()
		}
		out := r.run(t, r.here(c.Text), c.Line, b.Fails && i == len(b.Commands)-1)
		r.commands++
		commands[i].Output = r.page(out)
		if r.synced == 0 && strings.HasPrefix(c.Text, "cascade reconcile kustomization podinfo") {
			r.synced = time.Since(r.began)
		}
		if diff := cmp.Diff(pages.Steady(c.Output), pages.Steady(commands[i].Output)); diff != "" && !*update {
			t.Errorf("line %d: %s: -the page, +what was printed:\n%s", c.Line, c.Text, diff)
		}
	}
	b.Commands, b.Text = commands, pages.Console(commands)
	return b
}

// run runs a command, which fails if it is said to.
func (r *reader) run(t *testing.T, command string, line int, fails bool) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scenario.Converge)
	defer cancel()
	out, code, err := r.shell.Run(ctx, command)
	if err != nil {
		t.Fatalf("line %d: %v\n%s", line, err, out)
	}
	if (code != 0) != fails {
		t.Fatalf("line %d: %s ends with %d\n%s", line, command, code, out)
	}
	return out
}

// here says a text of the page in the words of this machine, page the other way round.
func (r *reader) here(text string) string {
	for _, w := range r.words {
		if strings.Contains(text, w.page) {
			r.used[w.page] = true
			text = strings.ReplaceAll(text, w.page, w.here)
		}
	}
	return text
}

func (r *reader) page(text string) string {
	for _, w := range r.words {
		if strings.Contains(text, w.here) {
			r.used[w.page] = true
			text = strings.ReplaceAll(text, w.here, w.page)
		}
	}
	return text
}
