package install

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestDeadNode: an agent leaves a node that says nothing any more. The kubelet's lease, the
// taints and the eviction are those of Kubernetes, with its own times.
func TestDeadNode(t *testing.T) {
	scenario.Alongside(t)
	c := startCluster(t, true)
	first := &corev1.Node{}
	if err := c.Load(t.Context(), first, "", c.tier.Name); err != nil {
		t.Fatal(err)
	}
	c.install(t)
	c.repository(t, "")
	c.Value(t, "a", "1")
	address, err := netip.ParseAddr(first.Status.Addresses[0].Address)
	if err != nil {
		t.Fatal(err)
	}
	octets := address.As4()
	octets[3] = 128
	if _, err := c.Run(t.Context(), "cascade-local", "node", "start", "--kubeconfig", c.tier.Kubeconfig(), "--name", "other",
		"--dir", filepath.Join(c.tier.Dir, "other"), "--ip", netip.AddrFrom4(octets).String(),
		"--owner-pid", strconv.Itoa(os.Getpid()), "--bin-dir", strings.Join(scenario.Programs(t), ":")); err != nil {
		t.Fatal(err)
	}

	died := c.killNode(t, "node")
	c.Put(t, "apps", map[string]string{"app/a.yaml": scenario.ConfigMap("a", "2")})
	c.Value(t, "a", "2")
	t.Logf("the tier worked again %s after its node died", time.Since(died).Round(time.Second))
	pods := &corev1.PodList{}
	if err := c.Client.List(t.Context(), pods, client.InNamespace(stage.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "cascade"}); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil && p.Spec.NodeName != "other" {
			t.Errorf("pod %s is on node %s", p.Name, p.Spec.NodeName)
		}
	}
	// An upgrade does not wait for the pod that nobody ends.
	c.install(t, "--env", "A=b")
}

// killNode ends a node and all its pods without any notice, and returns when it did.
func (c *cluster) killNode(t *testing.T, dir string) time.Time {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.tier.Dir, dir, "node.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.Fields(string(text))[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	died := time.Now()
	scenario.Eventually(t, scenario.Converge, "the agent has no process", func(context.Context) error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("the node is there: %v", err)
		}
		return nil
	})
	return died
}
