package faults

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/fleetsim"
	"github.com/cascade-gitops/cascade/e2e/proxy"
	"github.com/cascade-gitops/cascade/e2e/stage"
)

// child is the simulated cluster of a place, behind a proxy like the tier itself.
type child struct {
	cluster *fleetsim.Cluster
	proxy   *proxy.Proxy
	client  client.Client
	// writes is how many there were before the change.
	writes int
	before map[string]object
}

// startFleet starts the simulation.
func startFleet(t *testing.T) *fleetsim.Fleet {
	t.Helper()
	f, err := fleetsim.Start(fleetsim.Options{Record: true, Complain: func(err error) { t.Errorf("inside of the simulation: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("cannot close the simulation: %v", err)
		}
	})
	return f
}

// addChild gives the place a cluster that is up.
func (p *place) addChild(ctx context.Context) error {
	c := &child{}
	var err error
	if c.cluster, err = p.fleet.Add(p.ns); err != nil {
		return err
	}
	// A token goes through the proxy, a certificate does not.
	text, err := c.cluster.Kubeconfig(fleetsim.Token, 1<<50)
	if err != nil {
		return err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		return err
	}
	if c.client, err = client.New(config, client.Options{}); err != nil {
		return err
	}
	if c.proxy, err = proxy.Start(text); err != nil {
		return err
	}
	p.child = c
	kubeconfig, err := c.proxy.Kubeconfig()
	if err != nil {
		return err
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "apps"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "bystander"}, Data: map[string]string{"value": "mine"}},
	} {
		if err := c.client.Create(ctx, o); err != nil {
			return err
		}
	}
	if err := p.apply(ctx, fmt.Sprintf(`apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: it, namespace: %[1]s, labels: {tier: tenant}}
spec:
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LocalCluster, name: it}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: it}
`, p.ns)); err != nil {
		return err
	}
	u := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
	u.SetNamespace(p.ns)
	u.SetName("it")
	up := `{"status":{"phase":"Provisioned","initialization":{"infrastructureProvisioned":true,"controlPlaneInitialized":true}}}`
	if err := p.client.Status().Patch(ctx, u, client.RawPatch("application/merge-patch+json", []byte(up))); err != nil {
		return err
	}
	return p.client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "it-kubeconfig", Labels: map[string]string{"cluster.x-k8s.io/cluster-name": "it"}},
		Type:       "cluster.x-k8s.io/secret", Data: map[string][]byte{"value": kubeconfig},
	})
}

// layer declares the Layer.
func (p *place) layer(ctx context.Context) error {
	return p.apply(ctx, fmt.Sprintf(`apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: app, namespace: %s}
spec:
  clusterSelector: {matchLabels: {tier: tenant}}
  sourceRef: {kind: GitRepository, name: git}
  path: ./app
  interval: 1h
`, p.ns))
}

// pushed is an error until the child has the layer of a commit.
func (p *place) pushed(ctx context.Context, commit string) error {
	o := &v1alpha1.Child{}
	if err := p.load(ctx, o, "it"); err != nil {
		return err
	}
	ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition)
	if ready == nil || ready.Status != metav1.ConditionTrue {
		return fmt.Errorf("the Child says %+v", o.Status.Conditions)
	}
	if len(o.Status.Layers) != 1 || !o.Status.Layers[0].Ready || !strings.HasSuffix(o.Status.Layers[0].Revision, commit) {
		return fmt.Errorf("layers of the Child are %+v", o.Status.Layers)
	}
	return nil
}

// known is an error until the agent has seen the cluster.
func (p *place) known(ctx context.Context) error {
	if err := p.load(ctx, &v1alpha1.Child{}, "it"); err != nil {
		return err
	}
	return p.fetched(ctx, p.commits.before)
}

// sweep finds the ConfigMaps where layers put them.
func (c *child) sweep(ctx context.Context) (map[string]object, error) {
	list := &corev1.ConfigMapList{}
	if err := c.client.List(ctx, list, client.InNamespace("apps")); err != nil {
		return nil, err
	}
	found := map[string]object{}
	for _, cm := range list.Items {
		found["configmaps/"+cm.Name] = object{uid: string(cm.UID), version: cm.ResourceVersion, value: cm.Data["value"]}
	}
	return found, nil
}

// noted records what is there before the change.
func (c *child) noted(ctx context.Context) (err error) {
	c.writes = len(c.cluster.Writes())
	c.before, err = c.sweep(ctx)
	return err
}

// verdict of the child, as that of a place.
func (c *child) verdict(ctx context.Context, there map[string]string, goes []string) ([]string, error) {
	now, err := c.sweep(ctx)
	if err != nil {
		return nil, err
	}
	var wrong []string
	for id, value := range there {
		if is, ok := now[id]; !ok || is.value != value || c.before[id].uid != "" && c.before[id].uid != is.uid {
			wrong = append(wrong, fmt.Sprintf("%s of the child was %+v and is %+v", id, c.before[id], is))
		}
	}
	if now[bystander] != c.before[bystander] {
		wrong = append(wrong, bystander+" of the child is another")
	}
	for id := range now {
		if _, declared := there[id]; !declared && id != bystander {
			wrong = append(wrong, id+" is left behind in the child")
		}
	}
	for _, w := range c.cluster.Writes()[c.writes:] {
		if id := w.Resource + "/" + w.Name; strings.HasPrefix(w.Verb, "delete") && w.Changed && !slices.Contains(goes, id) {
			wrong = append(wrong, fmt.Sprintf("%s deleted %s of the child", w.Agent, id))
		}
	}
	return wrong, nil
}

// below names requests after the place that they are about.
type below struct {
	proxy.Hooks
	ns string
}

// Before implements proxy.Hooks.
func (b below) Before(r *proxy.Request) http.Handler {
	r.Path = "/c/" + b.ns + r.Path
	return b.Hooks.Before(r)
}

// layered is the file of a layer.
func layered(from, to int, value string) map[string]string {
	return map[string]string{"app/objects.yaml": strings.ReplaceAll(manifests("o", from, to, value), "metadata: {", "metadata: {namespace: apps, ")}
}

// expectLayer expects nothing but records in the tier.
func expectLayer(*place) expectation { return expectation{may: []string{"secrets/it-"}} }

// layerKills are the scenarios of a layer that is pushed to a child. Requests to the
// child count like those to the tier.
var layerKills = []killing{
	{
		name: "Layer", files: layered(0, 10, "one"), begin: (*place).addChild, begun: (*place).known, change: (*place).layer,
		done:   func(p *place, ctx context.Context) error { return p.pushed(ctx, p.commits.before) },
		expect: expectLayer, below: ids("o", 0, 10, "one"),
	},
	{
		name: "LayerChange", files: layered(0, 10, "one"), commit: layered(2, 12, "two"),
		begin: func(p *place, ctx context.Context) error { return firstError(p.addChild(ctx), p.layer(ctx)) },
		begun: func(p *place, ctx context.Context) error { return p.pushed(ctx, p.commits.before) }, change: (*place).commit,
		done:   func(p *place, ctx context.Context) error { return p.pushed(ctx, p.commits.after) },
		expect: expectLayer, below: ids("o", 2, 12, "two"), belowGoes: names(ids("o", 0, 2, "")),
	},
}
