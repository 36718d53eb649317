package hostile

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascade-gitops/cascade/syncer/source/gitserver"
)

// Variables that make this program the forge of the good tenants, which runs no test: the folder
// of its repositories, and the login.
const (
	forgeRoot     = "CASCADE_FORGE_ROOT"
	forgeUsername = "CASCADE_FORGE_USERNAME"
	forgePassword = "CASCADE_FORGE_PASSWORD"
)

// startForge serves the repositories of the good tenants from a process of its own, with the
// priority of the agent, while the servers of the hostile ones give way: what the agent waits for
// there is no delay that the hostile tenants cause. It returns the address.
func (s *stand) startForge(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	username, password := s.Git.Login()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), self)
	cmd.Env = append(os.Environ(), forgeRoot+"="+filepath.Join(s.run, "git"), forgeUsername+"="+username, forgePassword+"="+password)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the forge of the good tenants: %v", err)
		}
	})
	address, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatalf("the forge of the good tenants does not start: %v", err)
	}
	return strings.TrimSpace(address)
}

// serveForge is what the forge's process does, until its input ends.
func serveForge(root string) error {
	server, err := gitserver.Start(context.Background(), gitserver.Options{Root: root, Username: os.Getenv(forgeUsername), Password: os.Getenv(forgePassword)})
	if err != nil {
		return err
	}
	fmt.Println(server.HTTPAddress())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return server.Close()
}
