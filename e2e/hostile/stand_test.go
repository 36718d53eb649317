package hostile

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// stand is a control plane without controllers and nodes, and one agent on it.
type stand struct {
	*stage.Stage
	plane   *stage.Tier
	client  client.WithWatch
	outside *outside
	// run is the directory of everything.
	run   string
	agent *stage.Agent
	pid   int
}

// empty is the name of the repository that others are copies of.
const empty = "empty"

func startStand(t *testing.T, programs []string) *stand {
	t.Helper()
	s := &stand{run: scenario.RunDir(t), outside: startOutside(t)}
	var err error
	if s.Stage, err = stage.Open(t.Context(), stage.Options{Run: s.run, Bin: programs, Log: t.Logf}); err != nil {
		t.Fatalf("cannot start the stage: %v", err)
	}
	t.Cleanup(func() {
		scenario.NoRaces(t, s.Stage)
		if t.Failed() {
			s.keepLog(t)
		}
		if err := s.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	if s.plane, err = s.Cluster(t.Context(), "plane", "--api-only"); err != nil {
		t.Fatal(err)
	}
	if s.client, err = s.plane.Watcher(); err != nil {
		t.Fatal(err)
	}
	scenario.InstallKinds(t, s.client, s.Stage)
	s.outside.declare(t, s.client)
	if err := s.Git.Create(t.Context(), empty); err != nil {
		t.Fatal(err)
	}
	return s
}

// start starts the agent as it is installed, and returns what it weighs.
func (s *stand) start(t *testing.T) *memory {
	t.Helper()
	var err error
	if s.agent, err = s.plane.StartAgent(t.Context(), "--first-sync=create", "--feature-gates=ExternalArtifact=true"); err != nil {
		t.Fatal(err)
	}
	s.pid = s.agent.PID()
	m := weigh(s.pid)
	t.Cleanup(m.stop)
	return m
}

// keepLog shows the end of what the agent said.
func (s *stand) keepLog(t *testing.T) {
	if s.agent == nil {
		return
	}
	data, err := os.ReadFile(s.agent.Log)
	t.Logf("the end of the agent's log (%v):\n%s", err, data[max(0, len(data)-4000):])
}

// repository makes one with files.
func (s *stand) repository(ctx context.Context, name string, files tree) error {
	bare := s.bare(name)
	if err := os.CopyFS(bare, os.DirFS(s.bare(empty))); err != nil {
		return fmt.Errorf("cannot copy the empty repository: %w", err)
	}
	return commit(ctx, bare, files, "")
}

func (s *stand) bare(name string) string { return filepath.Join(s.run, "git", name+".git") }

// next goes on with the branch as it is.
const next = "from refs/heads/main^0\n"

// commit adds files to a bare repository by one process of git. Commits of people cost six.
func commit(ctx context.Context, bare string, files tree, from string) error {
	var in bytes.Buffer
	fmt.Fprintf(&in, "commit refs/heads/main\ncommitter Tenant <tenant@example.com> 1767225600 +0000\ndata 6\nChange\n%s", from)
	for file, text := range files {
		mode := "100644"
		if target, ok := strings.CutPrefix(text, link); ok {
			mode, text = "120000", target
		}
		fmt.Fprintf(&in, "M %s inline %s\ndata %d\n%s\n", mode, file, len(text), text)
	}
	cmd := exec.CommandContext(ctx, "git", "--git-dir="+bare, "fast-import", "--quiet")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
	cmd.Stdin = &in
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot commit to repository %s: %w: %s", bare, err, out)
	}
	return nil
}

// tenant is the namespace of one, and the source git of its repository, at a URL if it has one.
func (s *stand) tenant(namespace, repository string) string {
	text := "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + namespace + "}\n"
	if repository != "" {
		username, login := s.Git.Login()
		text += fmt.Sprintf(`---
apiVersion: v1
kind: Secret
metadata: {name: git-auth, namespace: %[1]s}
stringData: {username: %[2]s, password: %[3]s}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: git, namespace: %[1]s}
spec: {url: "%[4]s", ref: {branch: main}, secretRef: {name: git-auth}, interval: 1m, timeout: 20s}
`, namespace, username, login, repository)
	}
	return text
}

// apply makes all of a fixture, its last the object that must tell.
func (s *stand) apply(t *testing.T, f fixture) error {
	ns := f.namespace()
	if f.files != nil {
		if err := s.repository(t.Context(), ns, f.files); err != nil {
			return err
		}
	}
	address, ca := s.serve(t, f)
	repository := ""
	if f.files != nil {
		repository = s.Git.HTTPURL(ns)
	}
	if err := stage.Apply(t.Context(), s.client, s.tenant(ns, repository)); err != nil {
		return err
	}
	_, port, _ := strings.Cut(address, ":")
	filled := strings.NewReplacer("$ns", ns, "$server", address, "$port", port, "$ca", ca, "$git", s.Git.HTTPURL(ns))
	if err := stage.Apply(t.Context(), s.client, filled.Replace(f.objects)); err != nil {
		return err
	}
	if f.external != "" {
		text := strings.ReplaceAll("apiVersion: source.toolkit.fluxcd.io/v1\nkind: ExternalArtifact\nmetadata: {name: external, namespace: $ns}\nspec: {}\n", "$ns", ns)
		if err := stage.Apply(t.Context(), s.client, text); err != nil {
			return err
		}
		return s.write(t.Context(), ns, "ExternalArtifact", "external", filled.Replace(f.external))
	}
	if f.status == "" {
		return nil
	}
	if err := s.write(t.Context(), ns, f.kind, object, f.status); err != nil {
		return err
	}
	return s.ask(t.Context(), f, poisoned)
}

// write patches a status as somebody does who may.
func (s *stand) write(ctx context.Context, ns, kind, name, patch string) error {
	o := stage.Object(versions[kind], kind)
	o.SetNamespace(ns)
	o.SetName(name)
	if err := s.client.Status().Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return fmt.Errorf("cannot write the status of %s %s/%s: %w", kind, ns, name, err)
	}
	return nil
}

// poisoned is the request to reconcile that comes after a status was written.
const poisoned = "poisoned"

// ask asks the object that must tell to reconcile.
func (s *stand) ask(ctx context.Context, f fixture, at string) error {
	o := stage.Object(versions[f.kind], f.kind)
	o.SetNamespace(f.namespace())
	o.SetName(object)
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"reconcile.fluxcd.io/requestedAt":%q}}}`, at)
	if err := s.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		return fmt.Errorf("cannot ask %s to reconcile: %w", f.namespace(), err)
	}
	return nil
}

// serve runs the server of a fixture until the test ends, and returns its address and
// its certificate in base64.
func (s *stand) serve(t *testing.T, f fixture) (address, ca string) {
	t.Helper()
	switch {
	case f.listen != nil:
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		open := connections{all: map[net.Conn]struct{}{}}
		open.tasks.Go(func() { open.accept(l, f.listen) })
		t.Cleanup(func() { _ = l.Close(); open.close() })
		return l.Addr().String(), ""
	case f.serve == nil:
		return "", ""
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	server.Config.ErrorLog = quiet
	if f.secure {
		server.StartTLS()
		ca = base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	} else {
		server.Start()
	}
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.Listener.Addr().String(), ca
}

// connections of a server by TCP.
type connections struct {
	tasks sync.WaitGroup
	mu    sync.Mutex
	all   map[net.Conn]struct{}
}

func (c *connections) accept(l net.Listener, serve func(net.Conn)) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		c.all[conn] = struct{}{}
		c.mu.Unlock()
		c.tasks.Go(func() {
			serve(conn)
			_ = conn.Close()
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.all, conn)
		})
	}
}

func (c *connections) close() {
	c.mu.Lock()
	for conn := range c.all {
		_ = conn.Close()
	}
	c.mu.Unlock()
	c.tasks.Wait()
}
