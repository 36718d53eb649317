package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/cascade-gitops/cascade/e2e/local/process"
)

const (
	logSuffix = ".log"

	firstRestart = 500 * time.Millisecond
	lastRestart  = 30 * time.Second
	// A container that ran this long was not crash-looping, so its next restart is quick again.
	calmRun = 2 * time.Second
)

// backoff says how long to wait before the next start of a container: shortly at first, then twice as long each time.
type backoff struct{ next time.Duration }

// after returns the pause before the restart of a container that ran for the given time.
func (b *backoff) after(ran time.Duration) time.Duration {
	if b.next == 0 || ran >= calmRun {
		b.next = firstRestart
	}
	pause := b.next
	b.next = min(2*b.next, lastRestart)
	return pause
}

// supervise runs a container again and again as the restart policy has it. It returns when the pod stops or the container has
// ended for good, and says whether it succeeded.
func (p *pod) supervise(object *corev1.Pod, container *corev1.Container, initial bool) bool {
	facts := func(change func(*containerFacts)) {
		p.update(func(f *podFacts) { change(f.containers[container.Name]) })
	}
	var pauses backoff
	for p.soft.Err() == nil {
		started := time.Now()
		exit, err := p.runOnce(object, container)
		if err != nil {
			reason, pause := "CreateContainerError", pauses.after(0)
			if errors.Is(err, errConfig) {
				// What is missing may come at any time, and looking for it again costs little.
				reason, pause = "CreateContainerConfigError", min(pause, 5*time.Second)
			}
			facts(func(c *containerFacts) { c.waiting = waitingFor(reason, err.Error()) })
			sleep(p.soft, pause)
			continue
		}
		again := restarts(object.Spec.RestartPolicy, initial, exit.code) && p.soft.Err() == nil
		facts(func(c *containerFacts) {
			c.running, c.started, c.ready = nil, false, initial && exit.code == 0
			if !again {
				c.exit = exit
				return
			}
			c.last = exit
			c.waiting = waitingFor("CrashLoopBackOff", "the container ended and is about to be started again")
		})
		if !again {
			return exit.code == 0
		}
		if !sleep(p.soft, pauses.after(time.Since(started))) {
			facts(func(c *containerFacts) { c.exit = exit })
			return false
		}
		facts(func(c *containerFacts) { c.restarts++ })
	}
	return false
}

func restarts(policy corev1.RestartPolicy, initial bool, code int32) bool {
	switch {
	case policy == corev1.RestartPolicyNever:
		return false
	case policy == corev1.RestartPolicyOnFailure || initial:
		return code != 0
	}
	return true
}

// runOnce runs the container's process to its end. The error says why it could not be started.
func (p *pod) runOnce(object *corev1.Pod, container *corev1.Container) (*exitFacts, error) {
	cmd, err := p.command(object, container)
	if err != nil {
		return nil, err
	}
	output, err := os.OpenFile(p.logPath(container.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cannot open log of container %s: %w", container.Name, err)
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	if err := p.host.launcher.Start(cmd); err != nil {
		return nil, fmt.Errorf("cannot start container %s: %w", container.Name, err)
	}
	since := time.Now()
	record := filepath.Join(p.dir, container.Name+recordSuffix)
	id := process.ID{PID: cmd.Process.Pid}
	if known, err := process.Lookup(id.PID); err == nil { // else it ended already
		id = known
		if err := process.WriteRecord(record, id); err != nil {
			p.host.Log.Warn("cannot record process", "error", err)
		}
	}
	containerID := fmt.Sprintf("process://%d-%d", id.PID, id.Start)

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := process.AwaitExit(id.PID); err != nil {
			p.host.Log.Error("cannot watch container", "container", container.Name, "error", err)
		}
	}()
	p.update(func(f *podFacts) {
		c := f.containers[container.Name]
		c.running = &runningFacts{id: containerID, since: since}
		c.exit = nil
		c.started = container.StartupProbe == nil
		c.ready = c.started && container.ReadinessProbe == nil
	})
	probes := p.startProbes(object, container, cmd)

	message := p.superviseProcess(object, container, id.PID, ended, probes.unhealthy)
	probes.stop()
	// What the container started dies with it. Its number is still taken, because it is not collected yet.
	if err := syscall.Kill(-id.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, syscall.EPERM) {
		p.host.Log.Warn("cannot end process group", "container", container.Name, "error", err)
	}
	err = cmd.Wait()
	at := time.Now()
	if err := os.Remove(record); err != nil && !os.IsNotExist(err) {
		p.host.Log.Warn("cannot remove process record", "error", err)
	}
	var exitErr *exec.ExitError
	if err != nil && !errors.As(err, &exitErr) {
		return nil, fmt.Errorf("cannot collect container %s: %w", container.Name, err)
	}
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return exitOf(containerID, since, at, 0, int(status.Signal()), message), nil
	}
	return exitOf(containerID, since, at, status.ExitStatus(), 0, message), nil
}

// superviseProcess returns when the process has ended, by itself or because the pod stops or a probe says it has to. The
// message says why, if it was not by itself.
func (p *pod) superviseProcess(object *corev1.Pod, container *corev1.Container, pid int, ended <-chan struct{}, unhealthy <-chan string) string {
	signal := func(s syscall.Signal) {
		// The process is ours and not collected, so the number is its own.
		if err := syscall.Kill(-pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			p.host.Log.Warn("cannot signal container", "container", container.Name, "error", err)
		}
	}
	message := ""
	var kill <-chan time.Time
	select {
	case <-ended:
		return ""
	case <-p.soft.Done():
		message = "the pod was stopped"
	case message = <-unhealthy:
		timer := time.NewTimer(graceOf(object))
		defer timer.Stop()
		kill = timer.C
	}
	signal(syscall.SIGTERM)
	select {
	case <-ended:
		return message
	case <-kill:
	case <-p.hard.Done():
	}
	signal(syscall.SIGKILL)
	<-ended
	return message
}

// command is what the container runs.
func (p *pod) command(object *corev1.Pod, container *corev1.Container) (*exec.Cmd, error) {
	private := filepath.Join(p.dir, container.Name)
	home, temporary := filepath.Join(private, "home"), filepath.Join(private, "tmp")
	for _, mount := range container.VolumeMounts {
		if mount.MountPath == temporaryMount {
			temporary = filepath.Join(p.dir, "volumes", mount.Name) // shared by the containers that mount it
		}
	}
	for _, dir := range []string{home, temporary} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("cannot make directory of container %s: %w", container.Name, err)
		}
	}
	base := map[string]string{
		"PATH":                    strings.Join(append(slices.Clone(p.host.BinDirs), systemPath), ":"),
		"HOME":                    home,
		"TMPDIR":                  temporary,
		"HOSTNAME":                p.name,
		"KUBERNETES_SERVICE_HOST": p.host.serverHost,
		"KUBERNETES_SERVICE_PORT": p.host.serverPort,
	}
	if mountsAccount(container) {
		base["KUBECONFIG"] = kubeconfigPath(p.dir)
	}
	variables, err := p.environment(object, container, base)
	if err != nil {
		return nil, err
	}
	path, err := findProgram(expand(container.Command[0], variables), p.host.BinDirs)
	if err != nil {
		return nil, fmt.Errorf("cannot start container %s: %w", container.Name, err)
	}
	var args []string
	for _, word := range slices.Concat(container.Command[1:], container.Args) {
		args = append(args, expand(word, variables))
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = home
	if info, err := os.Stat(container.WorkingDir); err == nil && info.IsDir() {
		cmd.Dir = container.WorkingDir
	}
	cmd.Env = slices.Clone(p.host.inherited)
	for name, value := range variables {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd, nil
}

const systemPath = "/usr/local/bin:/usr/bin:/bin"

// findProgram looks a command up in the node's directories and then the system's. One with a slash stands for itself.
func findProgram(name string, dirs []string) (string, error) {
	if strings.Contains(name, "/") {
		if _, err := exec.LookPath(name); err != nil {
			return "", fmt.Errorf("cannot find program %s: %w", name, err)
		}
		return name, nil
	}
	for _, dir := range append(slices.Clone(dirs), strings.Split(systemPath, ":")...) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("cannot find program %s in %s", name, strings.Join(append(slices.Clone(dirs), systemPath), ":"))
}

func (p *pod) logPath(container string) string { return filepath.Join(p.dir, container+logSuffix) }
