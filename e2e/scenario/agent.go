package scenario

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/deploy"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// InstallKinds installs the kinds that the agent reconciles, and the credential of Git,
// in a cluster whose agent the test starts with StartAgent.
func InstallKinds(t *testing.T, c client.Client, s *stage.Stage) {
	t.Helper()
	crds, err := deploy.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds {
		if err := c.Create(t.Context(), crd); err != nil {
			t.Fatal(err)
		}
	}
	user, password := s.Git.Login()
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: stage.Namespace}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "git-auth"},
			StringData: map[string]string{"username": user, "password": password},
		},
	} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	Eventually(t, Converge, "the kinds are served", func(ctx context.Context) error {
		for _, list := range []client.ObjectList{&sourcev1.GitRepositoryList{}, &sourcev1.ExternalArtifactList{}, &kustomizev1.KustomizationList{}} {
			if err := c.List(ctx, list); err != nil {
				return err
			}
		}
		return nil
	})
}

// StartAgent runs a process of the agent against a tier until the test ends, or kill
// ends it.
func StartAgent(t *testing.T, s *stage.Stage, tier *stage.Tier, name string, args ...string) (kill func()) {
	t.Helper()
	program, err := s.Program("cascade")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append([]string{
		"agent", "--metrics-addr=0", "--health-addr=" + FreeAddress(t), "--enable-leader-election=false", "--storage-path=" + filepath.Join(dir, "storage"),
	}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+tier.Kubeconfig())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // by a signal, as it was told
		text, err := os.ReadFile(log.Name())
		if err != nil {
			t.Error(err)
		}
		if strings.Contains(string(text), "WARNING: DATA RACE") {
			t.Errorf("a race in the agent for %s", name)
		}
		if t.Failed() {
			t.Logf("log of the agent for %s:\n%s", name, text)
		}
	})
	return func() {
		t.Helper()
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // by a signal, as it was told
	}
}

// FreeAddress is one on which nothing listens.
func FreeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
