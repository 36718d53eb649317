package gitserver

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// gitTimeout bounds one git command that this package runs for itself; on
	// loopback each takes a fraction of a second.
	gitTimeout = time.Minute
	// pipeGrace is how long a killed git may keep its pipes open through a
	// child of its own.
	pipeGrace = 2 * time.Second

	suffix = ".git"
)

// errRepository is why a name is refused; it tells a client nothing about what
// exists elsewhere.
var errRepository = errors.New("no such repository")

func withSuffix(repository string) string {
	return strings.TrimSuffix(strings.Trim(repository, "/"), suffix) + suffix
}

// resolve returns the folder of an existing repository.
func (s *Server) resolve(repository string) (name, folder string, err error) {
	name, folder, err = s.place(repository)
	if err != nil {
		return "", "", err
	}
	real, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return "", "", errRepository
	}
	inside, err := filepath.Rel(s.root, real)
	if err != nil || !filepath.IsLocal(inside) || inside == "." {
		return "", "", errRepository
	}
	if info, err := os.Stat(filepath.Join(real, "HEAD")); err != nil || !info.Mode().IsRegular() {
		return "", "", errRepository
	}
	return name, real, nil
}

// place returns where a repository of that name is or would be.
func (s *Server) place(repository string) (name, folder string, err error) {
	name = withSuffix(repository)
	if name == suffix || strings.ContainsAny(name, "\x00\\") || !filepath.IsLocal(name) || filepath.Clean(name) != name {
		return "", "", errRepository
	}
	return strings.TrimSuffix(name, suffix), filepath.Join(s.root, name), nil
}

// Create makes an empty bare repository whose branch will be main.
func (s *Server) Create(ctx context.Context, repository string) error {
	_, folder, err := s.place(repository)
	if err != nil {
		return fmt.Errorf("cannot create repository %s: %w", repository, err)
	}
	if _, err := os.Stat(folder); err == nil {
		return fmt.Errorf("cannot create repository %s: it exists", repository)
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--bare", "--initial-branch=main", folder},
		{"--git-dir=" + folder, "config", "http.receivepack", "true"},
		// Clients fetch a commit by its name, also one that a branch has left.
		{"--git-dir=" + folder, "config", "uploadpack.allowReachableSHA1InWant", "true"},
		// Both would start a process in the background that outlives the push.
		{"--git-dir=" + folder, "config", "receive.autogc", "false"},
		{"--git-dir=" + folder, "config", "gc.auto", "0"},
	} {
		if _, err := s.run(ctx, "", nil, args...); err != nil {
			return fmt.Errorf("cannot create repository %s: %w", repository, err)
		}
	}
	return nil
}

// Commit clones the repository, lets change edit the files in the folder, and
// pushes the result to the branch over the server's own HTTP, like any client.
// The branch is created if it is missing, from the default branch if that
// exists. It returns the name of the commit. A nil change makes an empty commit;
// a change that alters nothing is an error.
func (s *Server) Commit(ctx context.Context, repository, branch, message string, change func(folder string) error) (string, error) {
	s.committing.Lock()
	defer s.committing.Unlock()
	commit, err := s.commit(ctx, repository, branch, message, change)
	if err != nil {
		return "", fmt.Errorf("cannot commit to repository %s, branch %s: %w", repository, branch, err)
	}
	return commit, nil
}

func (s *Server) commit(ctx context.Context, repository, branch, message string, change func(string) error) (string, error) {
	temporary, err := os.MkdirTemp("", "gitserver-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temporary) }()
	login, err := s.loginEnvironment(temporary)
	if err != nil {
		return "", err
	}
	tree := filepath.Join(temporary, "tree")
	if _, err := s.run(ctx, temporary, login, "clone", "--quiet", s.HTTPURL(repository), tree); err != nil {
		return "", err
	}
	if err := s.checkout(ctx, tree, branch); err != nil {
		return "", err
	}
	record := []string{"commit", "--quiet", "--no-verify", "--message=" + message}
	if change == nil {
		record = append(record, "--allow-empty")
	} else if err := change(tree); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"add", "--all", "--force"},
		record,
		{"push", "--quiet", "origin", "HEAD:refs/heads/" + branch},
	} {
		if _, err := s.run(ctx, tree, login, args...); err != nil {
			return "", err
		}
	}
	return s.run(ctx, tree, nil, "rev-parse", "HEAD")
}

// checkout puts the work tree on branch, which may not exist yet.
func (s *Server) checkout(ctx context.Context, tree, branch string) error {
	known, err := s.run(ctx, tree, nil, "for-each-ref", "--format=%(refname)", "refs/remotes/origin")
	if err != nil {
		return err
	}
	args := []string{"checkout", "--quiet", "-B", branch}
	switch remote := "refs/remotes/origin/" + branch; {
	case known == "":
		// Nothing can be checked out of an empty repository.
		args = []string{"symbolic-ref", "HEAD", "refs/heads/" + branch}
	case strings.Contains("\n"+known+"\n", "\n"+remote+"\n"):
		args = append(args, remote)
	}
	_, err = s.run(ctx, tree, nil, args...)
	return err
}

// Put adds a commit with other contents of files, by their paths, to a branch that exists, and
// returns its name. It is one process of git in the repository itself, where Commit is seven and
// a work tree, for tests that measure what comes after a push.
func (s *Server) Put(ctx context.Context, repository, branch, message string, files map[string]string) (string, error) {
	_, folder, err := s.resolve(repository)
	if err != nil {
		return "", fmt.Errorf("cannot commit to repository %s, branch %s: %w", repository, branch, err)
	}
	var in bytes.Buffer
	reference := "refs/heads/" + branch
	fmt.Fprintf(&in, "commit %[1]s\nmark :1\ncommitter Cascade demo <demo@cascade.dev> now\ndata %[2]d\n%[3]s\nfrom %[1]s^0\n", reference, len(message), message)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&in, "M 100644 inline %s\ndata %d\n%s\n", name, len(files[name]), files[name])
	}
	fmt.Fprint(&in, "get-mark :1\n")
	s.committing.Lock()
	defer s.committing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	command := s.command(ctx, "", nil, "--git-dir="+folder, "fast-import", "--quiet", "--date-format=now")
	command.Stdin = &in
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("cannot commit to repository %s, branch %s: %w", repository, branch, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Delete deletes a reference of a repository.
func (s *Server) Delete(ctx context.Context, repository, reference string) error {
	_, folder, err := s.resolve(repository)
	if err != nil {
		return fmt.Errorf("cannot delete %s of repository %s: %w", reference, repository, err)
	}
	if _, err := s.run(ctx, "", nil, "--git-dir="+folder, "update-ref", "-d", reference); err != nil {
		return fmt.Errorf("cannot delete %s of repository %s: %w", reference, repository, err)
	}
	return nil
}

// CommitDir makes folder the whole content of the branch.
func (s *Server) CommitDir(ctx context.Context, repository, branch, message, folder string) (string, error) {
	return s.Commit(ctx, repository, branch, message, func(tree string) error {
		entries, err := os.ReadDir(tree)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if entry.Name() == suffix {
				continue
			}
			if err := os.RemoveAll(filepath.Join(tree, entry.Name())); err != nil {
				return err
			}
		}
		return os.CopyFS(tree, os.DirFS(folder))
	})
}

// loginEnvironment passes the credentials beside the command line, which every
// process of the machine can read.
func (s *Server) loginEnvironment(temporary string) ([]string, error) {
	var environment []string
	if len(s.ca) > 0 {
		name := filepath.Join(temporary, "ca.crt")
		if err := os.WriteFile(name, s.ca, 0o600); err != nil {
			return nil, err
		}
		environment = append(environment, "GIT_SSL_CAINFO="+name)
	}
	header := ""
	switch {
	case s.hasPassword():
		header = "Basic " + base64.StdEncoding.EncodeToString([]byte(s.options.Username+":"+s.options.Password))
	case s.options.BearerToken != "":
		header = "Bearer " + s.options.BearerToken
	default:
		return environment, nil
	}
	return append(environment,
		"GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=http.extraHeader",
		"GIT_CONFIG_VALUE_0=Authorization: "+header), nil
}

// environment is what every git process gets. It is made from nothing, as a
// test may run inside of git (a hook) or behind a proxy.
func environment() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"),
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Cascade demo",
		"GIT_AUTHOR_EMAIL=demo@cascade.dev",
		"GIT_COMMITTER_NAME=Cascade demo",
		"GIT_COMMITTER_EMAIL=demo@cascade.dev",
	}
}

// findGit finds the git program and its HTTP server, which is in no PATH.
func (s *Server) findGit(ctx context.Context) error {
	git, err := exec.LookPath("git")
	if err != nil {
		return fmt.Errorf("cannot find git: %w", err)
	}
	s.git = git
	folder, err := s.run(ctx, "", nil, "--exec-path")
	if err != nil {
		return fmt.Errorf("cannot find git-http-backend: %w", err)
	}
	s.backend = filepath.Join(folder, "git-http-backend")
	if _, err := os.Stat(s.backend); err != nil {
		return fmt.Errorf("cannot find git-http-backend: %w", err)
	}
	return nil
}

// run runs one git command to its end and returns its output, trimmed.
func (s *Server) run(ctx context.Context, folder string, extra []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	command := s.command(ctx, folder, extra, args...)
	var complaint strings.Builder
	command.Stderr = &complaint
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// command prepares a git command that dies with ctx, together with the
// processes it started.
func (s *Server) command(ctx context.Context, folder string, extra []string, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, s.git, args...)
	command.Dir = folder
	command.Env = append(environment(), extra...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = pipeGrace
	return command
}
