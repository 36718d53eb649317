//go:build linux

package mom

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// Folder is the directory of one management cluster.
type Folder string

func (f Folder) path(elem ...string) string {
	return filepath.Join(append([]string{string(f)}, elem...)...)
}

// Kubeconfig is the administrator's, as long as the control plane runs.
func (f Folder) Kubeconfig() string { return f.path("kubeconfig") }

// programs is the same for the programs that run here: it names the files of its certificate,
// which they read again when it is renewed.
func (f Folder) programs() string { return f.path("programs.kubeconfig") }

func (f Folder) plane() string  { return f.path("controlplane") }
func (f Folder) logs() string   { return f.path("logs") }
func (f Folder) pid() string    { return f.path("pid") }
func (f Folder) status() string { return f.path("status.json") }
func (f Folder) origin() string { return f.path("origin.json") }

func (f Folder) certificates(provider string) string { return f.path("certificates", provider) }

// replaceFile makes a file hold data, whole or not at all.
func replaceFile(name string, data []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*")
	if err != nil {
		return fmt.Errorf("cannot write file %s: %w", name, err)
	}
	defer os.Remove(temporary.Name()) // fails after the rename, which is what is wanted
	_, err = temporary.Write(data)
	if synced := temporary.Sync(); err == nil {
		err = synced
	}
	if closed := temporary.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(temporary.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("cannot write file %s: %w", name, err)
	}
	return nil
}

// handOut makes the kubeconfigs be those of the control plane as it is now: its certificates
// are renewed while it runs.
func (f Folder) handOut() error {
	text, err := os.ReadFile(filepath.Join(f.plane(), "kubeconfig"))
	if err != nil {
		return fmt.Errorf("cannot read kubeconfig: %w", err)
	}
	config, err := clientcmd.Load(text)
	if err != nil {
		return errors.New("cannot read kubeconfig: it is none") // the error may quote it
	}
	at := func(name string) string { return filepath.Join(f.plane(), "pki", name) }
	for _, cluster := range config.Clusters {
		cluster.CertificateAuthorityData, cluster.CertificateAuthority = nil, at("ca.crt")
	}
	for _, login := range config.AuthInfos {
		login.ClientCertificateData, login.ClientCertificate = nil, at("admin.crt")
		login.ClientKeyData, login.ClientKey = nil, at("admin.key")
	}
	named, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("cannot write kubeconfig: %w", err)
	}
	for name, content := range map[string][]byte{f.Kubeconfig(): text, f.programs(): named} {
		if is, err := os.ReadFile(name); err == nil && bytes.Equal(is, content) {
			continue
		}
		if err := replaceFile(name, content); err != nil {
			return err
		}
	}
	return nil
}

// writeJSON and readJSON keep a value in a file.
func writeJSON(name string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot encode %s: %w", filepath.Base(name), err)
	}
	return replaceFile(name, append(text, '\n'))
}

// readJSON reports whether there is one.
func readJSON(name string, value any) (bool, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read %s: %w", filepath.Base(name), err)
	}
	if err := json.Unmarshal(text, value); err != nil {
		return false, fmt.Errorf("cannot parse %s: %w", name, err)
	}
	return true, nil
}

// ErrRuns says that a process serves a folder.
var ErrRuns = errors.New("a mom runs in this folder")

// acquire makes this process the one that serves the folder. The lock is a record lock: the
// kernel names its holder, and releases it when the process ends, however that comes. The file
// is to stay open.
func (f Folder) acquire() (*os.File, error) {
	if err := os.MkdirAll(f.logs(), 0o700); err != nil {
		return nil, fmt.Errorf("cannot make folder: %w", err)
	}
	file, err := os.OpenFile(f.pid(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock folder %s: %w", f, err)
	}
	if err := syscall.FcntlFlock(file.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}); err != nil {
		_ = file.Close() // nothing was written
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
			return nil, fmt.Errorf("cannot lock folder %s: %w; see cascade mom status", f, ErrRuns)
		}
		return nil, fmt.Errorf("cannot lock folder %s: %w", f, err)
	}
	return file, nil
}

// Unnamed is the process that serves a folder where this one has no number for it: it runs in another PID namespace, as
// that of another container, or on another machine.
const Unnamed = -1

// Holder is the process that serves the folder, 0 if none does.
func (f Folder) Holder() (int, error) {
	file, err := os.OpenFile(f.pid(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot look at folder %s: %w", f, err)
	}
	defer file.Close()
	lock := syscall.Flock_t{Type: syscall.F_WRLCK}
	if err := syscall.FcntlFlock(file.Fd(), syscall.F_GETLK, &lock); err != nil {
		return 0, fmt.Errorf("cannot look at folder %s: %w", f, err)
	}
	return holderOf(lock), nil
}

// holderOf is the holder by the answer of the kernel.
func holderOf(lock syscall.Flock_t) int {
	switch {
	case lock.Type == syscall.F_UNLCK:
		return 0
	case lock.Pid <= 0:
		return Unnamed
	}
	return int(lock.Pid)
}

// Down asks the process that serves the folder to save and stop, and returns when it is gone.
// It reports whether there was one.
func (f Folder) Down(ctx context.Context) (bool, error) {
	pid, err := f.Holder()
	if err != nil || pid == 0 {
		return false, err
	}
	if pid == Unnamed {
		return true, fmt.Errorf("cannot stop what serves folder %s: it runs in another container, or on another machine; stop it there", f)
	}
	// From here on the handle stands for that process, not for its number; and if it still
	// holds the lock, it was the right one.
	process, err := os.FindProcess(pid)
	if err != nil {
		return true, fmt.Errorf("cannot stop process %d: %w", pid, err)
	}
	defer func() { _ = process.Release() }()
	if again, err := f.Holder(); err != nil || again != pid {
		return true, err
	}
	if err := process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return true, fmt.Errorf("cannot stop process %d: %w", pid, err)
	}
	return true, poll(ctx, "process "+strconv.Itoa(pid)+" to save and stop", func(context.Context) error {
		now, err := f.Holder()
		if err == nil && now == pid {
			err = errors.New("it still runs")
		}
		return err
	})
}

// pollPause is short: what is polled is on this machine.
const pollPause = 50 * time.Millisecond

// poll calls try until it succeeds; when the context ends, it says what was missing and why.
func poll(ctx context.Context, what string, try func(context.Context) error) error {
	ticker := time.NewTicker(pollPause)
	defer ticker.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot wait for %s: %w: %w", what, context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
