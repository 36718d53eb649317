package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// roleVariable says what a process that Main started is. Whoever reads it removes it, so
// that what the process starts is nothing of this by mistake.
const roleVariable = "CASCADE_MACHINE_ROLE"

const (
	roleSite    = "site"
	roleInside  = "inside"
	roleMachine = "machine"
)

// siteVariable has the process id of the program that made the site. It is set in all
// processes of a site, and there cannot be a site in a site: a program that is started
// again by mistake ends, and does not start another.
const siteVariable = "CASCADE_MACHINE_SITE"

// prefix begins the names of directories and cgroups.
const prefix = "cascade-nodes-"

// lifeline is the descriptor of the pipe that a first process ends with.
const lifeline = 3

// namespaces of a site, and of a machine again.
const namespaces = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC

// Main runs a program on a site of its own, and returns its exit code. The program is this
// one again, with the same arguments: run is called in it. On a computer that cannot have
// a site, Main says why and runs nothing.
func Main(run func() int) int {
	role := os.Getenv(roleVariable)
	code, err := 1, os.Unsetenv(roleVariable)
	if err == nil {
		code, err = play(role, os.Getenv(siteVariable) != "", run)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// play does what a role is for. Without one, this is the program that somebody called.
func play(role string, onSite bool, run func() int) (int, error) {
	switch {
	case role == "" && onSite:
		return 1, errors.New("cannot open a site on a site: this program was started by one that runs on a site already")
	case role == "":
		return openSite()
	case !onSite:
		return 1, fmt.Errorf("cannot be %q without a site: unset %s", role, roleVariable)
	case role == roleSite:
		return beginSite()
	case role == roleInside:
		return run(), nil
	case role == roleMachine:
		return beginMachine()
	}
	return 1, fmt.Errorf("cannot be %q: there is no such role; unset %s", role, roleVariable)
}

// openSite runs the program on a site, and removes what is left of that.
func openSite() (code int, err error) {
	if missing := Missing(); len(missing) > 0 {
		return 1, fmt.Errorf("cannot run nodes on this computer:\n  %s", strings.Join(missing, "\n  "))
	}
	sweep()
	dir := filepath.Join(os.TempDir(), prefix+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return 1, fmt.Errorf("cannot make the directory of the site: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir), removeCgroups(cgroupOf(os.Getpid()))) }()
	if err := openCgroup(cgroupOf(os.Getpid())); err != nil {
		return 1, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 1, fmt.Errorf("cannot make the pipe of the site: %w", err)
	}
	defer theirs.Close()
	cmd, err := first(roleSite, os.Args[1:], ours)
	if err != nil {
		return 1, err
	}
	cmd.Env = environment(cmd.Env, "TMPDIR="+dir, siteVariable+"="+strconv.Itoa(os.Getpid()))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("cannot start the site: %w", err)
	}
	_ = ours.Close()
	// Whoever ends this program ends the site by it.
	context.AfterFunc(ctx, func() { _ = theirs.Close() })
	err = cmd.Wait()
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// first is the command of the first process in new namespaces: this program in a role.
func first(role string, args []string, pipe *os.File) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find this program: %w", err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = environment(os.Environ(), roleVariable+"="+role)
	cmd.ExtraFiles = []*os.File{pipe}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Setpgid: true}
	return cmd, nil
}

// environment is one with some variables set. Each is in it once: of two of one name, Go's
// programs see the first and others the last.
func environment(of []string, set ...string) []string {
	result := slices.DeleteFunc(slices.Clone(of), func(have string) bool {
		name, _, _ := strings.Cut(have, "=")
		return slices.ContainsFunc(set, func(s string) bool { return strings.HasPrefix(s, name+"=") })
	})
	return append(result, set...)
}

// beginSite is the first process of a site. It runs the program beside it, and collects what
// ended without a parent. Before it starts anything, it goes where its limits are.
func beginSite() (int, error) {
	site, err := strconv.Atoi(os.Getenv(siteVariable))
	if err != nil {
		return 1, fmt.Errorf("cannot tell which site this is: %w", err)
	}
	if err := joinCgroup(programsOf(site)); err != nil {
		return 1, err
	}
	if err := ownMounts(); err != nil {
		return 1, err
	}
	endWithPipe(openLifeline())
	r := newReaper()
	if err := r.must(os.Stderr, "ip", "link", "set", "lo", "up"); err != nil {
		return 1, err
	}
	program, err := os.Executable()
	if err != nil {
		return 1, fmt.Errorf("cannot find this program: %w", err)
	}
	return r.run(os.Stderr, []string{roleVariable + "=" + roleInside}, program, os.Args[1:]...)
}

// openLifeline is the pipe of a first process, which nothing inherits from it.
func openLifeline() *os.File {
	syscall.CloseOnExec(lifeline)
	return os.NewFile(lifeline, "pipe")
}

// endWithPipe ends the process, and with it all of its namespaces, when the other end of a
// pipe is closed.
func endWithPipe(pipe *os.File) {
	go func() {
		_, _ = io.Copy(io.Discard, pipe)
		os.Exit(1)
	}()
}

// sweep removes what killed programs left. Whatever cannot be removed does no harm.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, dir := range dirs {
		if pid, ok := ownerOf(dir); ok && dead(pid) {
			_ = os.RemoveAll(dir)
		}
	}
	for _, hierarchy := range hierarchies() {
		groups, _ := filepath.Glob(filepath.Join(hierarchy, prefix+"*"))
		for _, group := range groups {
			if pid, ok := ownerOf(group); ok && dead(pid) {
				_ = removeCgroups(cgroupOf(pid))
			}
		}
	}
}

// ownerOf is the process id in the name of a directory.
func ownerOf(dir string) (int, bool) {
	pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), prefix))
	return pid, err == nil
}

func dead(pid int) bool {
	_, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid)))
	return errors.Is(err, fs.ErrNotExist)
}
