// Package stage sets up everything around Cascade that is not Cascade, for real
// and on one machine: Git servers with the fleet's repositories, and a
// management cluster with a node, in which the agent is then installed. What
// comes below, masters and tenants, is made by the agent through Cluster API.
//
// Everything that runs keeps its files below one directory, belongs to this
// process and ends with it, also if it is killed.
package stage

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// Image names the programs of this machine to manifests that want an image.
const Image = "cascade.local/e2e:dev"

// Namespace in which the example fleet keeps everything of a tier.
const Namespace = v1alpha1.AgentNamespace

// baseRepository is the repository that has the charts and the component manifests.
const baseRepository = "base"

// environmentPrefix begins the names of the repositories of environments. Each has a key
// of its own.
const environmentPrefix = "env-"

// podNetworkFlag of control planes and nodes has API servers that proxy to pods.
const podNetworkFlag = "--pod-network"

// startTimeout bounds the start of one program, on a machine that is busy.
const startTimeout = 3 * time.Minute

// Options of Start.
type Options struct {
	// Run is the directory of everything that runs. It must not exist yet or be
	// empty, and is removed by Close.
	Run string
	// Bin are the directories with the programs, the first wins.
	Bin []string
	// Repos is the directory whose directories become repositories; empty: there
	// are none until somebody creates them.
	Repos string
	// Charts is a directory of charts, which are put into repository base, below
	// charts; empty: none are.
	Charts string
	// Components is a directory of component manifests, which are put into
	// repository base, below components; empty: none are.
	Components string
	// Change may change what a repository has, in a tree, before it is pushed; nil changes
	// nothing.
	Change func(repository, tree string) error
	// Bootstrap is a file of manifests that a person applies once; ${git_url}
	// and ${git_ssh_url} in it are replaced.
	Bootstrap string
	// AuditReads has every request in the audit logs of the tiers, those of clusters that
	// Cluster API makes as well; without it, writes are.
	AuditReads bool
	// PodNetwork has API servers that proxy to pods, of the MoM and of clusters that Cluster
	// API makes: what the API says of the address of a pod is then not where it listens; see
	// Loopback.
	PodNetwork bool
	// Install are flags of the installation of the MoM, besides those that it needs here.
	Install []string
	// Log receives a line for each step; nil drops them.
	Log func(format string, args ...any)
}

// Stage is what Start set up.
type Stage struct {
	// Git serves the repositories.
	Git *gitserver.Server
	// deployKeys are private keys by repository.
	deployKeys map[string][]byte
	// MoM is the first tier.
	MoM *Tier

	options Options
	log     func(format string, args ...any)

	mu     sync.Mutex
	agents []*Agent
}

// Open sets up a stage without a first tier: Git servers with what Repos has, if
// it is given. Clusters come by Cluster, agents by StartAgent.
func Open(ctx context.Context, o Options) (_ *Stage, err error) {
	s := newStage(o)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	return s, s.git(ctx)
}

func newStage(o Options) *Stage {
	s := &Stage{options: o, log: o.Log}
	if s.log == nil {
		s.log = func(string, ...any) {}
	}
	return s
}

// Start sets up a stage. It is not ready at once: the agent brings up the tiers
// below while Git says so.
func Start(ctx context.Context, o Options) (_ *Stage, err error) {
	s := newStage(o)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.git(ctx); err != nil {
		return nil, err
	}
	s.MoM = &Tier{Name: "mom", Dir: filepath.Join(o.Run, "mom"), stage: s}
	if o.AuditReads {
		s.MoM.flags = append(s.MoM.flags, "--audit-reads")
	}
	if o.PodNetwork {
		s.MoM.flags = append(s.MoM.flags, podNetworkFlag)
	}
	// A stage never had a Cluster.
	if err := s.SetUp(ctx, append([]string{"--first-sync=create"}, o.Install...)...); err != nil {
		return nil, err
	}
	return s, nil
}

// SetUp makes the MoM, and does in it what a person does: installs the agent, and
// says where Git is.
func (s *Stage) SetUp(ctx context.Context, installFlags ...string) error {
	s.log("starting the control plane of the MoM")
	if err := s.MoM.StartControlPlane(ctx); err != nil {
		return err
	}
	s.log("starting its node")
	if err := s.MoM.startNode(ctx); err != nil {
		return err
	}
	s.log("installing cascade")
	install := append([]string{"install", "--kubeconfig", s.MoM.Kubeconfig(), "--image", Image}, installFlags...)
	if _, err := s.Run(ctx, "cascade", install...); err != nil {
		return err
	}
	s.log("handing over the credentials of Git, and where it is")
	return s.bootstrap(ctx)
}

// Lose destroys the MoM: its control plane is killed, its node and pods with it,
// and all of its data is deleted.
func (s *Stage) Lose(ctx context.Context) error {
	if err := s.MoM.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	if err := s.stop(ctx, s.MoM.Dir); err != nil {
		return err
	}
	if err := os.RemoveAll(s.MoM.Dir); err != nil {
		return fmt.Errorf("cannot delete the MoM: %w", err)
	}
	return nil
}

// git starts the servers and pushes each directory as a repository.
func (s *Stage) git(ctx context.Context) error {
	var err error
	s.Git, err = gitserver.Start(context.WithoutCancel(ctx), gitserver.Options{
		Root: filepath.Join(s.options.Run, "git"), Username: "cascade", Password: rand.Text(),
	})
	if err != nil || s.options.Repos == "" {
		return err
	}
	entries, err := os.ReadDir(s.options.Repos)
	if err != nil {
		return fmt.Errorf("cannot list repositories: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		s.log("pushing repository %s", e.Name())
		if err := s.Git.Create(ctx, e.Name()); err != nil {
			return err
		}
		_, err := s.Git.Commit(ctx, e.Name(), "main", "Begin", func(tree string) error {
			if err := os.CopyFS(tree, os.DirFS(filepath.Join(s.options.Repos, e.Name()))); err != nil {
				return err
			}
			for name, dir := range map[string]string{"charts": s.options.Charts, "components": s.options.Components} {
				if e.Name() != baseRepository || dir == "" {
					continue
				}
				if err := os.CopyFS(filepath.Join(tree, name), os.DirFS(dir)); err != nil {
					return err
				}
			}
			if s.options.Change != nil {
				return s.options.Change(e.Name(), tree)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// deployKey of a repository. A MoM that is set up anew gets the same one, as from the vault
// of the people who run it: another key would be a change of what it delivers.
func (s *Stage) deployKey(repository string) ([]byte, error) {
	if key := s.deployKeys[repository]; key != nil {
		return key, nil
	}
	key, err := s.Git.DeployKey(repository)
	if err != nil {
		return nil, err
	}
	if s.deployKeys == nil {
		s.deployKeys = map[string][]byte{}
	}
	s.deployKeys[repository] = key
	return key, nil
}

// bootstrap does what a person does once: Secrets, and the bootstrap manifests.
func (s *Stage) bootstrap(ctx context.Context) error {
	c, err := s.MoM.Client()
	if err != nil {
		return err
	}
	username, password := s.Git.Login()
	secrets := []*corev1.Secret{{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "git-auth"},
		StringData: map[string]string{"username": username, "password": password},
	}}
	repositories, err := filepath.Glob(filepath.Join(s.options.Repos, environmentPrefix+"*"))
	if err != nil {
		return fmt.Errorf("cannot list repositories: %w", err)
	}
	for _, repository := range repositories {
		name := filepath.Base(repository)
		key, err := s.deployKey(name)
		if err != nil {
			return err
		}
		secrets = append(secrets, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "git-ssh-" + strings.TrimPrefix(name, environmentPrefix)},
			StringData: map[string]string{"identity": string(key), "known_hosts": s.Git.KnownHosts()},
		})
	}
	for _, secret := range secrets {
		if err := c.Create(ctx, secret); err != nil {
			return fmt.Errorf("cannot create Secret %s: %w", secret.Name, err)
		}
	}
	data, err := os.ReadFile(s.options.Bootstrap)
	if err != nil {
		return fmt.Errorf("cannot read bootstrap manifests: %w", err)
	}
	text := strings.NewReplacer(
		"${git_url}", "http://"+s.Git.HTTPAddress(),
		"${git_ssh_url}", "ssh://git@"+s.Git.SSHAddress(),
	).Replace(string(data))
	return Apply(ctx, c, text)
}

// Apply creates or updates the objects of a YAML stream.
func Apply(ctx context.Context, c client.Client, text string) error {
	objects, err := ssautil.ReadObjects(strings.NewReader(text))
	if err != nil {
		return fmt.Errorf("cannot parse manifests: %w", err)
	}
	for _, u := range objects {
		if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.ForceOwnership, client.FieldOwner("stage")); err != nil {
			return fmt.Errorf("cannot apply %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// Program finds one of the programs.
func (s *Stage) Program(name string) (string, error) {
	for _, dir := range s.options.Bin {
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && !info.IsDir() {
			return file, nil
		}
	}
	return "", fmt.Errorf("cannot find program %s in %s; build it with: make build-e2e", name, strings.Join(s.options.Bin, ", "))
}

// Run runs one of the programs to its end and returns what it printed.
func (s *Stage) Run(ctx context.Context, name string, args ...string) (string, error) {
	file, err := s.Program(name)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Env = s.environment()
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("cannot run %s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(complaints.String()))
	}
	return out.String(), nil
}

// environment tells programs, and through nodes the pods of the local provider,
// where they run and to whom they belong.
func (s *Stage) environment() []string {
	environment := append(os.Environ(),
		"CASCADE_E2E_BIN="+strings.Join(s.options.Bin, ":"),
		"CASCADE_E2E_RUN="+s.options.Run,
		"CASCADE_E2E_OWNER_PID="+strconv.Itoa(os.Getpid()),
	)
	if s.options.AuditReads {
		environment = append(environment, "CASCADE_E2E_AUDIT_READS=true")
	}
	if s.options.PodNetwork {
		environment = append(environment, "CASCADE_E2E_POD_NETWORK=true")
	}
	return environment
}

// Environment is that of programs of the stage.
func (s *Stage) Environment() []string { return s.environment() }

// Close stops everything and removes the directory.
func (s *Stage) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s.mu.Lock()
	agents := s.agents
	s.mu.Unlock()
	for _, a := range agents {
		a.Kill()
	}
	// Top down: a tier that is still there would bring back what is below. What
	// a provider was just starting is found by the second round.
	failures := []error{s.stop(ctx, filepath.Join(s.options.Run, "mom"))}
	for range 2 {
		below, _ := filepath.Glob(filepath.Join(s.options.Run, "clusters", "*"))
		errs := make([]error, len(below))
		var stops sync.WaitGroup
		for i, dir := range below {
			stops.Go(func() { errs[i] = s.stop(ctx, dir) })
		}
		stops.Wait()
		failures = append(failures, errs...)
	}
	if s.Git != nil {
		failures = append(failures, s.Git.Close())
	}
	return errors.Join(append(failures, os.RemoveAll(s.options.Run))...)
}

// stop ends a node and its control plane.
func (s *Stage) stop(ctx context.Context, dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	var failures []error
	if _, err := os.Stat(filepath.Join(dir, "node")); err == nil {
		_, err := s.Run(ctx, "cascade-local", "node", "stop", "--dir", filepath.Join(dir, "node"))
		failures = append(failures, err)
	}
	_, err := s.Run(ctx, "controlplane", "stop", "--dir", dir)
	return errors.Join(append(failures, err)...)
}

// Logs returns the files that pods and agents wrote, of all tiers.
func (s *Stage) Logs() []string {
	var logs []string
	for _, pattern := range []string{"mom/node/pods/*/*.log", "clusters/*/node/pods/*/*.log", "clusters/*/agent.log"} {
		found, _ := filepath.Glob(filepath.Join(s.options.Run, pattern))
		logs = append(logs, found...)
	}
	return logs
}

// Object returns an empty object for reads.
func Object(apiVersion, kind string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	return u
}
