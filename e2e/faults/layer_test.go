package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/fleetsim"
	"github.com/cascade-gitops/cascade/e2e/proxy"
	"github.com/cascade-gitops/cascade/e2e/stage"
	"github.com/cascade-gitops/cascade/remote/access"
	"github.com/cascade-gitops/cascade/remote/record"
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
func (p *place) addChild(ctx context.Context) (err error) {
	p.child, err = p.addCluster(ctx, "it", p.ns)
	return err
}

// addCluster gives the place a cluster of a name that is up, simulated under another one.
func (p *place) addCluster(ctx context.Context, name, as string) (*child, error) {
	c := &child{}
	var err error
	if c.cluster, err = p.fleet.Add(as); err != nil {
		return nil, err
	}
	// A token goes through the proxy, a certificate does not.
	text, err := c.cluster.Kubeconfig(fleetsim.Token, 1<<50)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		return nil, err
	}
	if c.client, err = client.New(config, client.Options{}); err != nil {
		return nil, err
	}
	if c.proxy, err = proxy.Start(text); err != nil {
		return nil, err
	}
	kubeconfig, err := c.proxy.Kubeconfig()
	if err != nil {
		return nil, err
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "apps"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "bystander"}, Data: map[string]string{"value": "mine"}},
	} {
		if err := c.client.Create(ctx, o); err != nil {
			return nil, err
		}
	}
	if err := p.apply(ctx, fmt.Sprintf(`apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: %[3]s, namespace: %[1]s, labels: {tier: tenant, worker: %[2]s, wave: %[3]s}}
spec:
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: LocalCluster, name: %[3]s}
  controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: %[3]s}
`, p.ns, p.name, name)); err != nil {
		return nil, err
	}
	u := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
	u.SetNamespace(p.ns)
	u.SetName(name)
	up := `{"status":{"phase":"Provisioned","initialization":{"infrastructureProvisioned":true,"controlPlaneInitialized":true}}}`
	if err := p.client.Status().Patch(ctx, u, client.RawPatch("application/merge-patch+json", []byte(up))); err != nil {
		return nil, err
	}
	return c, p.client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name + "-kubeconfig", Labels: map[string]string{"cluster.x-k8s.io/cluster-name": name}},
		Type:       "cluster.x-k8s.io/secret", Data: map[string][]byte{"value": kubeconfig},
	})
}

// layer declares the Layer that most scenarios have.
func (p *place) layer(ctx context.Context) error {
	return p.layerOf(ctx, "app", "app", "tenant", "Orphan")
}

// layerOf declares a Layer: with the files of a directory, for clusters of a tier, and
// with what becomes of its objects when it is gone.
func (p *place) layerOf(ctx context.Context, name, directory, tier, policy string) error {
	return p.apply(ctx, fmt.Sprintf(`apiVersion: cascade.dev/v1alpha1
kind: Layer
metadata: {name: %s, namespace: %s, labels: {worker: %s}}
spec:
  clusterSelector: {matchLabels: {tier: %s}}
  sourceRef: {kind: GitRepository, name: git}
  path: ./%s
  interval: 1h
  deletionPolicy: %s
`, name, p.ns, p.name, tier, directory, policy))
}

// pushed is an error until the child has the layer of a commit.
func (p *place) pushed(ctx context.Context, commit string) error { return p.has(ctx, commit, "app") }

// has is an error until the child has these layers of a commit, and no others.
func (p *place) has(ctx context.Context, commit string, layers ...string) error {
	return p.childHas(ctx, "it", commit, layers...)
}

func (p *place) childHas(ctx context.Context, name, commit string, layers ...string) error {
	o := &v1alpha1.Child{}
	if err := p.load(ctx, o, name); err != nil {
		return err
	}
	ready := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition)
	if ready == nil || ready.Status != metav1.ConditionTrue {
		return fmt.Errorf("the Child says %+v", o.Status.Conditions)
	}
	if len(o.Status.Layers) != len(layers) {
		return fmt.Errorf("layers of the Child are %+v", o.Status.Layers)
	}
	for _, l := range o.Status.Layers {
		if !slices.Contains(layers, l.Name) || !l.Ready || !strings.HasSuffix(l.Revision, commit) {
			return fmt.Errorf("layers of the Child are %+v", o.Status.Layers)
		}
	}
	return nil
}

// turn makes the cluster one of another tier.
func (p *place) turn(ctx context.Context) error {
	u := stage.Object("cluster.x-k8s.io/v1beta2", "Cluster")
	u.SetNamespace(p.ns)
	u.SetName("it")
	return p.client.Patch(ctx, u, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"tier":"moved"}}}`)))
}

// revert moves the branch back, and tells the source.
func (p *place) revert(ctx context.Context) error { return p.to(ctx, p.commits.before) }

// drop deletes the Layer next.
func (p *place) drop(ctx context.Context) error {
	return p.client.Delete(ctx, &v1alpha1.Layer{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "next"}})
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

// holds is an error until the child has these objects of layers and no others, also by the
// records: the status of the Child may be that of before.
func (c *child) holds(ctx context.Context, there map[string]string) error {
	now, err := c.sweep(ctx)
	if err != nil {
		return err
	}
	for id, value := range there {
		if now[id].value != value {
			return fmt.Errorf("%s of the child is %+v", id, now[id])
		}
	}
	if len(now) != len(there)+1 { // the bystander
		return fmt.Errorf("the child has %d objects", len(now))
	}
	wrong, err := c.recorded(ctx, there)
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return err
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
		// Of a layer that is gone, the record and the rights go as well.
		own := w.Namespace == v1alpha1.AgentNamespace && strings.HasPrefix(w.Name, v1alpha1.RecordPrefix) || strings.HasPrefix(w.Name, v1alpha1.ParentServiceAccount+".")
		if id := w.Resource + "/" + w.Name; strings.HasPrefix(w.Verb, "delete") && w.Changed && !own && !slices.Contains(goes, id) {
			wrong = append(wrong, fmt.Sprintf("%s deleted %s of the child", w.Agent, id))
		}
	}
	more, err := c.recorded(ctx, there)
	return append(wrong, more...), err
}

// recorded are the violations of the records in the child: an object that no layer
// answers for or two do, a layer that answers for what is not there, and rights for a
// layer without a record.
func (c *child) recorded(ctx context.Context, there map[string]string) (wrong []string, err error) {
	records, err := record.List(ctx, c.client)
	if err != nil {
		return nil, err
	}
	answered, rights := map[string]int{}, map[string]bool{v1alpha1.ParentServiceAccount: true}
	for _, r := range records {
		rights[access.LayerRole(r.Layer.Namespace, r.Layer.Name)] = true
		if r.Attempted != r.Applied {
			wrong = append(wrong, fmt.Sprintf("layer %s has attempted %+v and applied %+v", r.Layer, r.Attempted, r.Applied))
		}
		for _, e := range r.Inventory {
			id := "configmaps/" + e.Name
			if answered[id]++; there[id] == "" {
				wrong = append(wrong, fmt.Sprintf("layer %s answers for %s, which nobody declares", r.Layer, id))
			}
		}
	}
	for id := range there {
		if answered[id] != 1 {
			wrong = append(wrong, fmt.Sprintf("%d layers answer for %s of the child", answered[id], id))
		}
	}
	roles := &rbacv1.ClusterRoleList{}
	if err := c.client.List(ctx, roles); err != nil {
		return nil, err
	}
	for _, role := range roles.Items {
		if strings.HasPrefix(role.Name, v1alpha1.ParentServiceAccount) && !rights[role.Name] {
			wrong = append(wrong, "the parent has the rights "+role.Name+" for a layer that is gone")
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
	return map[string]string{"app/objects.yaml": inApps("o", from, to, value)}
}

// inApps are the manifests of ConfigMaps where layers put them.
func inApps(prefix string, from, to int, value string) string {
	return strings.ReplaceAll(manifests(prefix, from, to, value), "metadata: {", "metadata: {namespace: apps, ")
}

// twoLayers are the files of two layers.
func twoLayers(app, next string) map[string]string {
	return map[string]string{"app/objects.yaml": app, "next/objects.yaml": next}
}

// beginTwo declares a child with two layers.
func (p *place) beginTwo(ctx context.Context) error {
	return firstError(p.addChild(ctx), p.layer(ctx), p.layerOf(ctx, "next", "next", "tenant", "Delete"))
}

// expectLayer expects nothing but records in the tier.
func expectLayer(*place) expectation {
	return expectation{may: []string{"secrets/it-", "secrets/later-"}}
}

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
	// The commit is taken back while no agent works.
	{
		name: "LayerRevert", files: layered(0, 10, "one"), commit: layered(0, 12, "two"),
		begin: func(p *place, ctx context.Context) error { return firstError(p.addChild(ctx), p.layer(ctx)) },
		begun: func(p *place, ctx context.Context) error { return p.pushed(ctx, p.commits.before) }, change: (*place).commit,
		meanwhile: (*place).revert, through: func(p *place, ctx context.Context) error { return p.pushed(ctx, p.commits.after) },
		done: func(p *place, ctx context.Context) error {
			return firstError(p.pushed(ctx, p.commits.before), p.child.holds(ctx, ids("o", 0, 10, "one")))
		},
		expect: expectLayer, below: ids("o", 0, 10, "one"), belowGoes: names(ids("o", 10, 12, "")),
	},
	// Objects move from a layer to another one, to the first and to the last in the order.
	{
		name:  "LayerMove",
		files: twoLayers(inApps("o", 0, 10, "one"), inApps("p", 0, 6, "one")), commit: twoLayers(inApps("o", 0, 6, "one")+"---\n"+inApps("p", 0, 2, "one"), inApps("o", 6, 10, "two")+"---\n"+inApps("p", 2, 6, "one")),
		begin: (*place).beginTwo,
		begun: func(p *place, ctx context.Context) error { return p.has(ctx, p.commits.before, "app", "next") }, change: (*place).commit,
		done:   func(p *place, ctx context.Context) error { return p.has(ctx, p.commits.after, "app", "next") },
		expect: expectLayer, below: union(ids("o", 0, 6, "one"), ids("o", 6, 10, "two"), ids("p", 0, 6, "one")),
	},
	// A label moves the child from a layer with deletionPolicy Delete to one that declares
	// the same but for two objects.
	{
		name:  "ChildMove",
		files: twoLayers(inApps("o", 0, 10, "one"), inApps("o", 2, 10, "one")),
		begin: func(p *place, ctx context.Context) error {
			return firstError(p.addChild(ctx), p.layerOf(ctx, "app", "app", "tenant", "Delete"), p.layerOf(ctx, "next", "next", "moved", "Delete"))
		},
		begun: func(p *place, ctx context.Context) error { return p.has(ctx, p.commits.before, "app") }, change: (*place).turn,
		done:   func(p *place, ctx context.Context) error { return p.has(ctx, p.commits.before, "next") },
		expect: expectLayer, below: ids("o", 2, 10, "one"), belowGoes: names(ids("o", 0, 2, "")),
	},
	{
		name:  "LayerRelease",
		files: twoLayers(inApps("o", 0, 10, "one"), inApps("p", 0, 6, "one")),
		begin: (*place).beginTwo,
		begun: func(p *place, ctx context.Context) error { return p.has(ctx, p.commits.before, "app", "next") }, change: (*place).drop,
		done:   func(p *place, ctx context.Context) error { return p.has(ctx, p.commits.before, "app") },
		expect: expectLayer, below: ids("o", 0, 10, "one"), belowGoes: names(ids("p", 0, 6, "")),
	},
}
