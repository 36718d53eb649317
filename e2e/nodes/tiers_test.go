package nodes

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// TestTiers takes the image that is published into two clusters with real nodes: by an
// installation into one that has a network for pods, and by a layer into one that has none,
// which gets it, and its DNS, from there.
func TestTiers(t *testing.T) {
	s := startStand(t)
	parent := s.start(t, "parent", true)
	parent.registered(t, corev1.ConditionTrue)
	if !t.Run("Installed", func(t *testing.T) { parent.installed(t) }) {
		return
	}
	child := s.start(t, "child", false)
	t.Run("Seeded", func(t *testing.T) { child.seeded(t, parent) })
}

// installed installs the agent in a cluster with a network, in which it finds Git by the DNS
// of the cluster.
func (c *cluster) installed(t *testing.T) {
	c.Apply(t, corednsManifests(c.stand.pullable("public/coredns:1")))
	out, err := c.run(t, "install", "--image", c.stand.agent, "--timeout", "20s")
	if err == nil || !strings.Contains(out, "ImagePullBackOff") && !strings.Contains(out, "ErrImagePull") || !strings.Contains(out, "401 Unauthorized") {
		t.Errorf("without the Secret of the registry it is not told why there is no agent: %v\n%s", err, out)
	}
	c.logins(t)
	begin := time.Now()
	if out, err := c.run(t, "install", "--image", c.stand.agent, "--image-pull-secret", "registry"); err != nil {
		t.Fatalf("cannot install: %v\n%s", err, out)
	}
	pod := c.agent(t)
	t.Logf("installed, image pulled and ready after %s", time.Since(begin).Round(100*time.Millisecond))
	if pod.Spec.HostNetwork {
		t.Error("a node is ready, and the agent is on the host's network")
	}
	namespace := &corev1.Namespace{}
	if err := c.Load(t.Context(), namespace, "", stage.Namespace); err != nil || namespace.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
		t.Errorf("the Namespace enforces %q: %v", namespace.Labels["pod-security.kubernetes.io/enforce"], err)
	}
	c.git(t, "apps", map[string]string{"a.yaml": inDefault("a", "1")})
	begin = time.Now()
	c.Apply(t, source("apps", "http://"+at("git", c.Git.HTTPAddress())+"/apps.git"))
	c.Value(t, "a", "1")
	t.Logf("first commit applied after %s", time.Since(begin).Round(100*time.Millisecond))
	c.confined(t, pod)
}

// seeded brings a cluster without a network up by a layer of its parent: with the layer comes
// the network; DNS is pulled by the agent on the host's network, which asks the name server of
// its node; and what is pulled from a Service of the cluster needs both.
func (c *cluster) seeded(t *testing.T, parent *cluster) {
	c.registered(t, corev1.ConditionFalse)
	git := at("git", c.Git.HTTPAddress())
	c.git(t, "dns", map[string]string{"dns.yaml": corednsManifests(c.stand.pullable("public/coredns:1"))})
	c.git(t, "shop", map[string]string{"a.yaml": inDefault("b", "2")})
	parent.git(t, "layers", map[string]string{
		"base/network.yaml": networkManifests(c.stand.pullable("public/cni:1")),
		"base/git.yaml":     gitService(c.server.Addr().String(), netip.MustParseAddrPort(c.Git.HTTPAddress()).Port()),
		"base/dns.yaml":     source("dns", "http://"+git+"/dns.git"),
		"base/shop.yaml":    source("shop", "http://git.cascade-system.svc.cluster.local/shop.git"),
	})
	parent.secret(t, corev1.SecretTypeOpaque, "child", map[string][]byte{"value": c.kubeconfig(t)})
	begin := time.Now()
	parent.Apply(t, layer("http://"+git+"/layers.git"))

	pod := c.agent(t)
	t.Logf("agent ready after %s", time.Since(begin).Round(100*time.Millisecond))
	ready := c.registered(t, corev1.ConditionTrue)
	t.Logf("network for pods there after %s", time.Since(begin).Round(100*time.Millisecond))
	if !pod.Spec.HostNetwork || !strings.HasSuffix(pod.Spec.Containers[0].Image, c.stand.agent) {
		t.Errorf("the agent has image %s, host's network is %t", pod.Spec.Containers[0].Image, pod.Spec.HostNetwork)
	}
	if at := readyAt(pod); at.After(ready.LastTransitionTime.Time) {
		t.Errorf("the agent was ready at %s, after the node, at %s: it did not run without a network", at, ready.LastTransitionTime)
	}
	c.Value(t, "b", "2")
	t.Logf("pulled from a Service of the cluster after %s", time.Since(begin).Round(100*time.Millisecond))
	c.pods(t)
	scenario.Eventually(t, scenario.Converge, "the parent says that the child has its layer", func(ctx context.Context) error {
		o := &v1alpha1.Child{}
		if err := parent.Load(ctx, o, stage.Namespace, "child"); err != nil {
			return err
		}
		if len(o.Status.Layers) != 1 || !o.Status.Layers[0].Ready || o.Status.Report == nil || !o.Status.Report.Ready {
			return fmt.Errorf("%s; layers %+v; report %+v", scenario.Summary(o.Status.Conditions), o.Status.Layers, o.Status.Report)
		}
		return nil
	})
	t.Logf("the parent knows after %s", time.Since(begin).Round(100*time.Millisecond))
	c.confined(t, c.agent(t))
}

// layer is the Child, and the Layer with all that it gets.
func layer(url string) string {
	return fmt.Sprintf(`apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: layers, namespace: cascade-system}
spec: {url: %q, ref: {branch: main}, secretRef: {name: git-auth}, interval: 2s}
---
apiVersion: cascade.dev/v1alpha1
kind: Child
metadata: {name: child, namespace: cascade-system, labels: {tier: child}}
spec: {kubeConfig: {secretRef: {name: child}}}
---
apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: base, namespace: cascade-system}
spec:
  clusterSelector: {matchLabels: {tier: child}}
  sourceRef: {kind: GitRepository, name: layers}
  path: ./base
  wait: true
  agent: {imagePullSecrets: [{name: registry}]}
  credentials:
  - {name: registry, secretRef: {name: registry}}
  - {name: git-auth, secretRef: {name: git-auth}}
`, url)
}

// git makes a repository with files.
func (c *cluster) git(t *testing.T, name string, files map[string]string) {
	t.Helper()
	if err := c.Git.Create(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	c.Put(t, name, files)
}

func inDefault(name, value string) string {
	return scenario.ConfigMapWith(name, ", namespace: default", fmt.Sprintf("{value: %q}", value))
}

// pods fails for a pod that was restarted, or is not ready.
func (c *cluster) pods(t *testing.T) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "all pods are ready", func(ctx context.Context) error {
		pods := &corev1.PodList{}
		if err := c.Client.List(ctx, pods, &client.ListOptions{}); err != nil {
			return err
		}
		for _, p := range pods.Items {
			if readyAt(p).IsZero() {
				return fmt.Errorf("pods: %s", states(pods.Items))
			}
			for _, s := range p.Status.ContainerStatuses {
				if s.RestartCount > 0 {
					t.Errorf("pod %s was restarted", p.Name)
				}
			}
		}
		return nil
	})
}
