package pages

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// Shell is one shell that runs commands after each other: a directory that is entered, or a
// variable that is set, counts for the next.
type Shell struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// ended stands before the exit code, after what a command printed.
const ended = "\x04ended "

// NewShell starts a shell in a directory. It ends by Close, and with the process that started it.
func NewShell(dir string, environment []string) (*Shell, error) {
	cmd := exec.Command("bash", "--noprofile", "--norc")
	cmd.Dir, cmd.Env = dir, environment
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start shell: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start shell: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start shell: %w", err)
	}
	s := &Shell{cmd: cmd, in: in, out: bufio.NewReader(out)}
	if _, err := io.WriteString(in, "exec 2>&1\n"); err != nil {
		return nil, fmt.Errorf("cannot start shell: %w", err)
	}
	return s, nil
}

// Run runs a command, and returns what it printed and its exit code. If ctx ends before the
// command does, the shell is of no use any more.
func (s *Shell) Run(ctx context.Context, command string) (output string, code int, err error) {
	stop := context.AfterFunc(ctx, s.kill)
	defer stop()
	// The command must not read what the shell is told next.
	if _, err := fmt.Fprintf(s.in, "{\n%s\n} < /dev/null\nprintf '\\004ended %%d\\n' $?\n", command); err != nil {
		return "", 0, fmt.Errorf("cannot run %q: %w", command, err)
	}
	var printed strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		before, status, found := strings.Cut(line, ended)
		printed.WriteString(before)
		if found {
			code, err = strconv.Atoi(strings.TrimSpace(status))
			return printed.String(), code, err
		}
		if err != nil {
			return printed.String(), 0, fmt.Errorf("the shell ended in %q: %w", command, err)
		}
	}
}

// kill ends the shell with what it runs.
func (s *Shell) kill() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) } // it may have ended

// Close ends the shell.
func (s *Shell) Close() {
	s.kill()
	_ = s.cmd.Wait() // it was killed
}
