package mom

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// nobody is the user that runs everything where the test itself is run by root.
const nobody = 65534

// program of a management cluster with the local provider.
const program = "cascade-mom-local"

// stand is what a person has who has no cluster: Git, a directory and the program.
type stand struct {
	*stage.Stage
	// run is the directory of everything, which belongs to the user.
	run string
	// identity opens the state, and bootstrap has what Git does not have.
	identity, bootstrap string
	// key and knownHosts are for the masters' repository.
	key, knownHosts string
}

// newStand starts Git servers with the example fleet: one environment with one tenant.
func newStand(t *testing.T) *stand {
	t.Helper()
	run := scenario.RunDir(t)
	s, err := stage.Open(t.Context(), stage.Options{Run: run, Bin: scenario.Programs(t), Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, run)
		}
		if err := s.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	d := &stand{Stage: s, run: run, identity: filepath.Join(run, "key.txt"), bootstrap: filepath.Join(run, "bootstrap.yaml"),
		key: filepath.Join(run, "deploy-key"), knownHosts: filepath.Join(run, "known-hosts")}
	for _, repository := range []string{"masters", "base", "apps", "env-production", "env-staging"} {
		d.push(t, repository)
	}
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	d.write(t, d.identity, identity.String()+"\n")
	d.write(t, d.bootstrap, d.secrets(t))
	deployKey, err := d.Git.DeployKey("masters")
	if err != nil {
		t.Fatal(err)
	}
	d.write(t, d.key, string(deployKey))
	d.write(t, d.knownHosts, d.Git.KnownHosts())
	if err := os.MkdirAll(filepath.Join(run, "clusters"), 0o755); err != nil {
		t.Fatal(err)
	}
	// What the user runs writes there.
	if os.Geteuid() == 0 {
		for _, dir := range []string{run, filepath.Join(run, "clusters"), d.identity, d.bootstrap, d.key, d.knownHosts} {
			if err := os.Chown(dir, nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
	}
	return d
}

func (d *stand) write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// push makes a repository of the example fleet, as it is for a tier that has no pods and
// needs no Kustomization to bring its providers.
func (d *stand) push(t *testing.T, repository string) {
	t.Helper()
	if err := d.Git.Create(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	_, err := d.Git.Commit(t.Context(), repository, "main", "Begin", func(tree string) error {
		if err := os.CopyFS(tree, os.DirFS(scenario.Path(t, "e2e", "testdata", "repos", repository))); err != nil {
			return err
		}
		switch repository {
		case "base":
			return errors.Join(
				os.CopyFS(filepath.Join(tree, "charts"), os.DirFS(scenario.Path(t, "deploy", "charts"))),
				os.CopyFS(filepath.Join(tree, "components"), os.DirFS(scenario.Path(t, "bin", "components", "local"))))
		case "env-production":
			return os.Remove(filepath.Join(tree, "tenants", "beta.yaml"))
		case "env-staging":
			return os.Remove(filepath.Join(tree, "tenants", "gamma.yaml"))
		case "masters":
			return errors.Join(
				os.Remove(filepath.Join(tree, "mom", "management.yaml")),
				os.Remove(filepath.Join(tree, "clusters", "staging.yaml")),
				d.adapt(filepath.Join(tree, "mom")))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// adapt says where Git is, names the repository as the tier's own does, and waits for no
// providers.
func (d *stand) adapt(dir string) error {
	return filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		changed := strings.NewReplacer(
			"${git_url}", "http://"+d.Git.HTTPAddress(), "{kind: GitRepository, name: masters}", "{kind: GitRepository, name: cascade-system}",
			"  dependsOn:\n    - name: management\n", "",
			// The Kustomization that applies it replaces nothing.
			"$${label_environment}", "${label_environment}",
		).Replace(string(text))
		return os.WriteFile(file, []byte(changed), 0o644)
	})
}

// secrets are what a person has and Git does not: logins, and where Git is.
func (d *stand) secrets(t *testing.T) string {
	t.Helper()
	username, password := d.Git.Login()
	objects := []any{
		&corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "site"},
			Data: map[string]string{"git_url": "http://" + d.Git.HTTPAddress(), "git_ssh_url": "ssh://git@" + d.Git.SSHAddress()},
		},
		secret("git-auth", map[string]string{"username": username, "password": password}),
	}
	for _, environment := range []string{"production", "staging"} {
		deployKey, err := d.Git.DeployKey("env-" + environment)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, secret("git-ssh-"+environment, map[string]string{"identity": string(deployKey), "known_hosts": d.Git.KnownHosts()}))
	}
	var out strings.Builder
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n" + string(text))
	}
	return out.String()
}

func secret(name string, data map[string]string) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: name}, StringData: data,
	}
}

// process is one `cascade mom up`.
type process struct {
	stand *stand
	// dir is its folder.
	dir    string
	cmd    *exec.Cmd
	ended  chan struct{}
	err    error
	output *output
}

// output of a process, which is read while it is written.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// command is one of the program's verbs, run by a user without any rights.
func (d *stand) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	file, err := d.Program(program)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file, args...)
	cmd.Env = append(d.Environment(), "HOME="+d.run, "XDG_STATE_HOME=", "XDG_CACHE_HOME=", "TMPDIR=/tmp", "USER=ann")
	cmd.Dir = d.run
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return cmd
}

// up starts a management cluster in a folder.
func (d *stand) up(t *testing.T, folder string, args ...string) *process {
	t.Helper()
	p := &process{stand: d, dir: filepath.Join(d.run, folder), ended: make(chan struct{}), output: &output{}}
	p.cmd = d.command(t, slices.Concat([]string{"up", "--dir", p.dir}, d.repository(), []string{"--interval", "2s", "--apply", d.bootstrap, "--image", stage.Image}, args)...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.ended
		if t.Failed() {
			t.Logf("%s printed:\n%s", folder, p.output)
		}
	})
	return p
}

// repository are the flags for what declares the masters.
func (d *stand) repository() []string {
	return []string{"--repo", "ssh://git@" + d.Git.SSHAddress() + "/masters.git", "--path", "mom", "--private-key-file", d.key, "--known-hosts-file", d.knownHosts}
}

// keeping are the flags of a management cluster that keeps its state.
func (d *stand) keeping() []string {
	return []string{"--state", filepath.Join(d.run, "state"), "--identity", d.identity}
}

// status is what a management cluster says about itself.
type status struct {
	PID     int    `json:"pid"`
	Phase   string `json:"phase"`
	Message string `json:"message"`
	Verdict struct {
		Ready   bool     `json:"ready"`
		Waiting []string `json:"waiting"`
		Held    []string `json:"held"`
		Depends []string `json:"depends"`
	} `json:"verdict"`
	Programs []struct {
		Name     string `json:"name"`
		PID      int    `json:"pid"`
		Restarts int    `json:"restarts"`
	} `json:"programs"`
	State struct {
		Version string `json:"version"`
		Unsaved bool   `json:"unsaved"`
		Error   string `json:"error"`
		Epoch   int64  `json:"epoch"`
	} `json:"state"`
}

func (p *process) status(t *testing.T) (status, error) {
	t.Helper()
	var s status
	out, err := p.stand.command(t, "status", "--dir", p.dir, "-o", "json").Output()
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(out, &s)
}

// await waits for what a management cluster says, while it runs.
func (p *process) await(t *testing.T, what string, is func(status) error) status {
	t.Helper()
	var last status
	scenario.Eventually(t, scenario.BringUp, what, func(context.Context) error {
		select {
		case <-p.ended:
			t.Fatalf("it ended before %s: %v\n%s", what, p.err, p.output)
		default:
		}
		s, err := p.status(t)
		if err != nil {
			return err
		}
		last = s
		return is(s)
	})
	return last
}

func isReady(s status) error {
	if s.Phase != "Running" || !s.Verdict.Ready {
		return fmt.Errorf("it is %s, waiting for %q, held %q", s.Phase, s.Verdict.Waiting, s.Verdict.Held)
	}
	return nil
}

// down stops a management cluster as a person does.
func (p *process) down(t *testing.T) {
	t.Helper()
	out, err := p.stand.command(t, "down", "--dir", p.dir).CombinedOutput()
	if err != nil {
		t.Fatalf("down: %v: %s", err, out)
	}
	<-p.ended
	if p.err != nil {
		t.Errorf("after down it ended with %v", p.err)
	}
	t.Logf("down: %s", bytes.TrimSpace(out))
}

// tier is the management cluster as a tier.
func (p *process) tier() *stage.Tier {
	return p.stand.Existing("mom", filepath.Join(p.dir, "controlplane"))
}

// alive are those of the processes that still run.
func alive(s status) []string {
	var running []string
	for _, program := range s.Programs {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(program.PID), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) > 0 && fields[0] != "Z" && program.PID != 0 {
			running = append(running, program.Name)
		}
	}
	return running
}

// resident is the memory of the management cluster's processes, each by itself.
func resident(t *testing.T, s status) (total int64, each map[string]int64) {
	t.Helper()
	each = map[string]int64{}
	pids := map[string]int{"cascade-mom": s.PID}
	for _, program := range s.Programs {
		pids[program.Name] = program.PID
	}
	for name, pid := range pids {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				kilobytes, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				each[name] = kilobytes >> 10
				total += kilobytes >> 10
			}
		}
	}
	return total, each
}

// controlPlanes are the directories of all control planes below, with the processes that run
// in them.
func (d *stand) controlPlanes(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	files, err := filepath.Glob(filepath.Join(d.run, "clusters", "*", "pid"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		pid, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found[filepath.Base(filepath.Dir(file))] = strings.TrimSpace(string(pid))
	}
	return found
}

func showLogs(t *testing.T, run string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(run, "*", "logs", "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			t.Logf("%s ends with:\n%s", file, text[max(0, len(text)-3000):])
		}
	}
}

// same fails if control planes came, went or were started again.
func (d *stand) same(t *testing.T, before map[string]string) {
	t.Helper()
	if now := d.controlPlanes(t); !maps.Equal(now, before) {
		t.Errorf("control planes are %v, they were %v", now, before)
	}
}

// patience of a short wait.
const patience = 30 * time.Second
