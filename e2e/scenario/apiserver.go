package scenario

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// APIServer is a control plane without controllers and nodes: nothing is written that
// the test does not write.
type APIServer struct {
	// Config has no limit of requests per second.
	Config *rest.Config
	// Kubeconfig is a file.
	Kubeconfig string
	// Dir is a directory for the test; it ends with the server.
	Dir string
}

// StartAPIServer starts one that ends with the test.
func StartAPIServer(t *testing.T) *APIServer {
	t.Helper()
	s := &APIServer{Dir: RunDir(t)}
	t.Cleanup(func() {
		if err := os.RemoveAll(s.Dir); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	plane, program := filepath.Join(s.Dir, "plane"), Path(t, "bin", "controlplane")
	start := exec.CommandContext(t.Context(), program, "start", "--dir", plane, "--api-only", "--owner-pid", strconv.Itoa(os.Getpid()))
	if out, err := start.CombinedOutput(); err != nil {
		t.Fatalf("cannot start API server: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(program, "stop", "--dir", plane).CombinedOutput(); err != nil {
			t.Errorf("cannot stop API server: %v: %s", err, out)
		}
	})
	s.Kubeconfig = filepath.Join(plane, "kubeconfig")
	var err error
	if s.Config, err = clientcmd.BuildConfigFromFlags("", s.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	s.Config.QPS = -1
	return s
}
