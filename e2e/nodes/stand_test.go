package nodes

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cascade-gitops/cascade/e2e/machine"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// Addresses in each cluster, of which each has a network of its own.
const (
	podRange   = "10.244.0.0/24"
	clusterDNS = "10.96.0.10"
)

// stand is what the clusters of a test share.
type stand struct {
	*stage.Stage
	bin      string
	network  *machine.Network
	registry *images
	// agent is the reference of the agent's image, by digest.
	agent   string
	sandbox string
}

func startStand(t *testing.T) *stand {
	t.Helper()
	s := &stand{bin: scenario.Path(t, "bin")}
	var err error
	s.Stage, err = stage.Open(t.Context(), stage.Options{Run: scenario.RunDir(t), Bin: []string{s.bin}, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	if s.network, err = machine.Open(t.Context(), t.TempDir(), s.bin, "git", "registry"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.network.Close(); err != nil {
			t.Errorf("cannot clean up: %v", err)
		}
	})
	s.registry = startRegistry(t)
	for _, address := range []string{s.registry.address(), s.Git.HTTPAddress()} {
		if err := s.network.Forward(address); err != nil {
			t.Fatal(err)
		}
	}
	s.agent = s.pullable(private+"/cascade") + "@" + s.registry.release(t, s.bin)
	waiter := map[string]string{"waiter": filepath.Join(s.bin, "waiter")}
	pause := fromScratch(t, waiter, "/waiter")
	s.sandbox = archive(t, pause, sandbox)
	s.registry.push(t, "web", pause)
	s.registry.push(t, "coredns", fromScratch(t, map[string]string{"coredns": filepath.Join(s.bin, "coredns")}, "/coredns"))
	s.registry.push(t, "cni", s.cni(t, waiter))
	return s
}

// cni is the image of the network for pods: plugins, and what copies them.
func (s *stand) cni(t *testing.T, programs map[string]string) v1.Image {
	t.Helper()
	for _, plugin := range []string{"bridge", "host-local", "loopback", "portmap"} {
		programs["plugins/"+plugin] = filepath.Join(s.bin, "cni", plugin)
	}
	return fromScratch(t, programs, "/waiter")
}

// pullable is a repository as nodes name it.
func (s *stand) pullable(repository string) string {
	return s.registryName() + "/" + repository
}

func (s *stand) registryName() string { return at("registry", s.registry.address()) }

// at is where machines reach what the site serves on loopback.
func at(service, address string) string {
	return fmt.Sprintf("%s:%d", machine.Name(service), netip.MustParseAddrPort(address).Port())
}

// cluster is a control plane with one real node.
type cluster struct {
	*scenario.Tier
	stand *stand
	tier  *stage.Tier
	node  *machine.Machine
	// options of the node.
	options machine.Options
	// server is the API server as machines reach it.
	server netip.AddrPort
}

// start starts a cluster. Its node has a network for pods if it is asked for.
func (s *stand) start(t *testing.T, name string, network bool) *cluster {
	t.Helper()
	tier, err := s.Cluster(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	config, err := tier.Config()
	if err != nil {
		t.Fatal(err)
	}
	local := strings.TrimPrefix(config.Host, "https://")
	if err := s.network.Forward(local); err != nil {
		t.Fatal(err)
	}
	c := &cluster{Tier: &scenario.Tier{Stage: s.Stage}, stand: s, tier: tier}
	c.server = netip.AddrPortFrom(s.network.Address(), netip.MustParseAddrPort(local).Port())
	if c.Client, err = tier.Client(); err != nil {
		t.Fatal(err)
	}
	c.options = machine.Options{
		Name: name, Server: c.server, PKI: filepath.Join(tier.Dir, "pki"), Images: []string{s.sandbox}, Sandbox: sandbox,
		Registries: []string{s.registryName()}, ClusterDNS: netip.MustParseAddr(clusterDNS),
	}
	if network {
		c.options.Pods = netip.MustParsePrefix(podRange)
	}
	if c.node, err = s.network.Start(t.Context(), c.options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.show(t)
		}
	})
	// What an API server writes of itself when it has an address that is not of loopback.
	c.Apply(t, fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints: [{addresses: [%s], conditions: {ready: true}}]
ports: [{name: https, port: %d, protocol: TCP}]
`, c.server.Addr(), c.server.Port()))
	return c
}

// registered waits until the node is there, and ready or not ready.
func (c *cluster) registered(t *testing.T, ready corev1.ConditionStatus) corev1.NodeCondition {
	t.Helper()
	var found corev1.NodeCondition
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("node %s says that Ready is %s", c.tier.Name, ready), func(ctx context.Context) error {
		if !c.node.Running() {
			t.Fatalf("machine %s ended", c.tier.Name)
		}
		node := &corev1.Node{}
		if err := c.Load(ctx, node, "", c.tier.Name); err != nil {
			return err
		}
		i := slices.IndexFunc(node.Status.Conditions, func(n corev1.NodeCondition) bool { return n.Type == corev1.NodeReady })
		if i < 0 || node.Status.Conditions[i].Status != ready {
			return fmt.Errorf("conditions are %+v", node.Status.Conditions)
		}
		found = node.Status.Conditions[i]
		return nil
	})
	return found
}

// run runs a verb of the command line on the cluster, and returns all that it printed.
func (c *cluster) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scenario.Converge)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(c.stand.bin, "cascade"), append(args, "--kubeconfig", c.tier.Kubeconfig())...).CombinedOutput()
	return string(out), err
}

// secret makes a Secret in the agent's namespace.
func (c *cluster) secret(t *testing.T, kind corev1.SecretType, name string, data map[string][]byte) {
	t.Helper()
	o := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: name}, Type: kind, Data: data}
	if err := c.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// logins are the Secrets for the registry and for Git.
func (c *cluster) logins(t *testing.T) {
	t.Helper()
	c.secret(t, corev1.SecretTypeDockerConfigJson, "registry", map[string][]byte{
		corev1.DockerConfigJsonKey: c.stand.registry.config(t, c.stand.registryName()),
	})
	user, password := c.Git.Login()
	c.secret(t, corev1.SecretTypeOpaque, "git-auth", map[string][]byte{"username": []byte(user), "password": []byte(password)})
}

// agent waits until the agent's pod is ready, and returns it.
func (c *cluster) agent(t *testing.T) corev1.Pod {
	t.Helper()
	var found corev1.Pod
	scenario.Eventually(t, scenario.Converge, "the agent of "+c.tier.Name+" is ready", func(ctx context.Context) error {
		pods := &corev1.PodList{}
		if err := c.Client.List(ctx, pods, client.InNamespace(stage.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "cascade"}); err != nil {
			return err
		}
		pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		if len(pods.Items) != 1 || readyAt(pods.Items[0]).IsZero() {
			return fmt.Errorf("there are %d pods: %s", len(pods.Items), states(pods.Items))
		}
		found = pods.Items[0]
		return nil
	})
	return found
}

// readyAt is when a pod became ready.
func readyAt(p corev1.Pod) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// states tells of pods what a person would ask first.
func states(pods []corev1.Pod) string {
	var text strings.Builder
	for _, p := range pods {
		fmt.Fprintf(&text, "%s/%s %s %s;", p.Namespace, p.Name, p.Status.Phase, p.Status.Message)
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			switch {
			case s.State.Waiting != nil:
				fmt.Fprintf(&text, " %s waits: %s %s;", s.Name, s.State.Waiting.Reason, s.State.Waiting.Message)
			case s.State.Terminated != nil:
				fmt.Fprintf(&text, " %s ended: %d %s;", s.Name, s.State.Terminated.ExitCode, s.State.Terminated.Message)
			}
			fmt.Fprintf(&text, " %d restarts\n", s.RestartCount)
		}
	}
	return text.String()
}

// show logs what a person would look at first.
func (c *cluster) show(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), scenario.Converge)
	defer cancel()
	pods := &corev1.PodList{}
	err := c.Client.List(ctx, pods)
	t.Logf("pods of %s: %v\n%s", c.tier.Name, err, states(pods.Items))
	out, err := exec.CommandContext(ctx, filepath.Join(c.stand.bin, "cascade"), "get", "all", "-A", "--kubeconfig", c.tier.Kubeconfig()).CombinedOutput()
	t.Logf("cascade get all: %v\n%s", err, out)
	containers, _ := filepath.Glob(filepath.Join(c.node.Dir, "log", "pods", "*", "*", "*.log"))
	for _, file := range slices.Concat(c.node.Logs(), containers) {
		out, err := exec.CommandContext(ctx, "tail", "-n", "12", file).CombinedOutput()
		t.Logf("%s: %v\n%s", strings.TrimPrefix(file, c.node.Dir), err, out)
	}
}

// kubeconfig of the cluster as machines of the site use it.
func (c *cluster) kubeconfig(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(c.tier.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if text, err = machine.Reachable(text, c.server); err != nil {
		t.Fatal(err)
	}
	return text
}
