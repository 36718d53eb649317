package nodes

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	if !t.Run("Seeded", func(t *testing.T) { child.seeded(t, parent) }) {
		return
	}
	if !t.Run("Rebooted", func(t *testing.T) { child.rebooted(t, parent) }) {
		return
	}
	t.Run("Uninstalled", func(t *testing.T) { parent.uninstalled(t, child) })
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
	c.fromImage(t, pod)
	c.restricted(t, pod)
	files := chart()
	files["app/a.yaml"], files["app/web.yaml"] = inDefault("a", "1"), release("web", "apps", c.stand.pullable("public/web:1"))
	c.git(t, "apps", files)
	begin = time.Now()
	c.Apply(t, source("apps", "http://"+at("git", c.Git.HTTPAddress())+"/apps.git"))
	c.Value(t, "a", "1")
	t.Logf("first commit applied after %s", time.Since(begin).Round(100*time.Millisecond))
	c.released(t, "web")
	t.Logf("its release has its pods after %s", time.Since(begin).Round(100*time.Millisecond))
	c.confined(t, pod)
	if out, err := c.run(t, "check"); err != nil {
		t.Errorf("cascade check finds fault: %v\n%s", err, out)
	}
}

// fromImage fails unless the container of a pod is made from the image that was pushed.
func (c *cluster) fromImage(t *testing.T, pod corev1.Pod) {
	t.Helper()
	if got := pod.Status.ContainerStatuses[0].ImageID; got != c.stand.agent {
		t.Errorf("the agent runs image %s, want %s", got, c.stand.agent)
	}
}

// restricted fails unless the Namespace of the agent admits nothing but what is restricted: the agent's
// pod, and not the same one on the host's network.
func (c *cluster) restricted(t *testing.T, agent corev1.Pod) {
	t.Helper()
	for _, onHost := range []bool{false, true} {
		o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: stage.Namespace, Name: "again"}, Spec: *agent.Spec.DeepCopy()}
		o.Spec.HostNetwork = onHost
		for i := range o.Spec.Containers {
			o.Spec.Containers[i].Ports = nil // on the host's network they would have to be its ports
		}
		err := c.Client.Create(t.Context(), o, client.DryRunAll)
		if onHost && (err == nil || !strings.Contains(err.Error(), `violates PodSecurity "restricted:`)) || !onHost && err != nil {
			t.Errorf("a pod as the agent's, on the host's network %t: %v", onHost, err)
		}
	}
}

// released waits until a HelmRelease of namespace default is ready, and fails if its pods are
// not there then.
func (c *cluster) released(t *testing.T, name string) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "release "+name+" is ready", func(ctx context.Context) error {
		o := &helmv2.HelmRelease{}
		if err := c.Load(ctx, o, "default", name); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(o.Status.Conditions, fluxmeta.ReadyCondition) {
			return fmt.Errorf("conditions are %s", scenario.Summary(o.Status.Conditions))
		}
		return nil
	})
	d := &appsv1.Deployment{}
	if err := c.Load(t.Context(), d, "default", name); err != nil || d.Status.AvailableReplicas != 2 {
		t.Errorf("its Deployment has %d pods: %v", d.Status.AvailableReplicas, err)
	}
}

// seeded brings a cluster without a network up by a layer of its parent: with the layer comes
// the network; DNS is pulled by the agent on the host's network, which asks the name server of
// its node; and what is pulled from a Service of the cluster needs both.
func (c *cluster) seeded(t *testing.T, parent *cluster) {
	c.registered(t, corev1.ConditionFalse)
	if out, err := c.run(t, "install", "--image", c.stand.agent, "--dry-run"); err != nil || !strings.Contains(out, "the agent is on the host's network") {
		t.Errorf("no node is ready, and install would not take the host's network: %v\n%s", err, out)
	}
	git := at("git", c.Git.HTTPAddress())
	c.git(t, "dns", map[string]string{"app/dns.yaml": corednsManifests(c.stand.pullable("public/coredns:1"))})
	c.git(t, "shop", map[string]string{"app/b.yaml": inDefault("b", "2")})
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
	if !pod.Spec.HostNetwork {
		t.Error("there was no network, and the agent is not on the host's")
	}
	c.fromImage(t, pod)
	if at := readyAt(pod); at.After(ready.LastTransitionTime.Time) {
		t.Errorf("the agent was ready at %s, after the node, at %s: it did not run without a network", at, ready.LastTransitionTime)
	}
	c.Value(t, "b", "2")
	t.Logf("pulled from a Service of the cluster after %s", time.Since(begin).Round(100*time.Millisecond))
	for _, p := range c.pods(t) {
		for _, s := range p.Status.ContainerStatuses {
			if s.RestartCount > 0 {
				t.Errorf("pod %s was restarted", p.Name)
			}
		}
	}
	parent.hasChild(t)
	t.Logf("the parent knows after %s", time.Since(begin).Round(100*time.Millisecond))
	c.confined(t, c.agent(t))
}

// hasChild waits until the parent says that its child has its layer, and what it declares.
func (c *cluster) hasChild(t *testing.T) {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "the parent says that the child has its layer", func(ctx context.Context) error {
		o := &v1alpha1.Child{}
		if err := c.Load(ctx, o, stage.Namespace, "child"); err != nil {
			return err
		}
		if len(o.Status.Layers) != 1 || !o.Status.Layers[0].Ready || o.Status.Report == nil || !o.Status.Report.Ready {
			return fmt.Errorf("%s; layers %+v; report %+v", scenario.Summary(o.Status.Conditions), o.Status.Layers, o.Status.Report)
		}
		return nil
	})
}

// rebooted takes the power from the only node of a cluster. When it is there again, so is its
// network, and its agent goes on from the disk that it had.
func (c *cluster) rebooted(t *testing.T, parent *cluster) {
	before := c.agent(t)
	if err := c.node.Stop(); err != nil {
		t.Fatal(err)
	}
	c.Put(t, "shop", map[string]string{"app/b.yaml": inDefault("b", "rebooted")})
	begin := time.Now()
	var err error
	if c.node, err = c.stand.network.Start(t.Context(), c.options); err != nil {
		t.Fatal(err)
	}
	c.Value(t, "b", "rebooted")
	t.Logf("pulled from a Service of the cluster %s after the power came back", time.Since(begin).Round(100*time.Millisecond))
	scenario.Eventually(t, scenario.Converge, "the same pod of the agent is ready, in another container", func(context.Context) error {
		if now := c.agent(t); now.UID != before.UID || now.Status.ContainerStatuses[0].RestartCount != 1 {
			return fmt.Errorf("it was pod %s, and is pod %s, restarted %d times", before.UID, now.UID, now.Status.ContainerStatuses[0].RestartCount)
		}
		return nil
	})
	c.pods(t)
	parent.hasChild(t)
}

// uninstalled takes the agent out of a cluster. It ends when it is told to, what it applied stays,
// and the child goes on.
func (c *cluster) uninstalled(t *testing.T, child *cluster) {
	before := c.running(t, "default", "web")
	begin := time.Now()
	if out, err := c.run(t, "uninstall", "--yes"); err != nil {
		t.Fatalf("cannot uninstall: %v\n%s", err, out)
	}
	scenario.Eventually(t, scenario.Converge, "there is no agent", func(context.Context) error {
		if pods := c.running(t, stage.Namespace, "cascade"); len(pods) > 0 {
			return fmt.Errorf("there are pods %q", pods)
		}
		return nil
	})
	t.Logf("uninstalled, and its pod gone, after %s", time.Since(begin).Round(100*time.Millisecond))
	if after := c.running(t, "default", "web"); len(before) != 2 || !slices.Equal(before, after) {
		t.Errorf("the release had pods %q, and has %q", before, after)
	}
	c.Put(t, "shop", map[string]string{"app/b.yaml": inDefault("b", "3")})
	child.Value(t, "b", "3")
}

// running are the UIDs of the pods of an application in a namespace, sorted.
func (c *cluster) running(t *testing.T, namespace, app string) []string {
	t.Helper()
	pods := &corev1.PodList{}
	if err := c.Client.List(t.Context(), pods, client.InNamespace(namespace), client.MatchingLabels{"app.kubernetes.io/name": app}); err != nil {
		t.Fatal(err)
	}
	var uids []string
	for _, p := range pods.Items {
		uids = append(uids, string(p.UID))
	}
	slices.Sort(uids)
	return uids
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
  - {name: registry, secretRef: {name: registry}, static: true}
  - {name: git-auth, secretRef: {name: git-auth}, static: true}
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

// pods waits until all pods are ready, and returns them.
func (c *cluster) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	pods := &corev1.PodList{}
	scenario.Eventually(t, scenario.Converge, "all pods are ready", func(ctx context.Context) error {
		if err := c.Client.List(ctx, pods); err != nil {
			return err
		}
		for _, p := range pods.Items {
			if readyAt(p).IsZero() {
				return fmt.Errorf("pods: %s", states(pods.Items))
			}
		}
		return nil
	})
	return pods.Items
}
