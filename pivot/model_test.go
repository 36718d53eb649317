package pivot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

// memory is an API server as far as a pivot goes: UIDs, versions, finalizers, preconditions,
// and the garbage collector.
type memory struct {
	name    string
	serves  map[schema.GroupKind]bool
	objects map[key]*unstructured.Unstructured
	last    int
	// orphans: something was deleted, and may have left others without an owner.
	orphans bool
}

var errKilled = errors.New("the process was killed")

func newMemory(name string, kinds ...string) *memory {
	m := &memory{name: name, serves: map[schema.GroupKind]bool{}, objects: map[key]*unstructured.Unstructured{}}
	for _, k := range append(kinds, "ConfigMap", "Secret", "Namespace", "Deployment.apps", "CustomResourceDefinition.apiextensions.k8s.io") {
		m.serves[schema.ParseGroupKind(k)] = true
	}
	return m
}

func (m *memory) put(u *unstructured.Unstructured) *unstructured.Unstructured {
	m.last++
	u = u.DeepCopy()
	if u.GetUID() == "" {
		u.SetUID(types.UID(fmt.Sprintf("%s-%d", m.name, m.last)))
	}
	u.SetResourceVersion(strconv.Itoa(m.last))
	m.objects[keyOf(u)] = u
	return u.DeepCopy()
}

func notFound(k key) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: k.kind.Group, Resource: k.kind.Kind}, k.name.String())
}

func conflict(k key) error {
	return apierrors.NewConflict(schema.GroupResource{Group: k.kind.Group, Resource: k.kind.Kind}, k.name.String(), errors.New("it was changed"))
}

func (m *memory) create(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	k := keyOf(u)
	switch {
	case m.objects[k] != nil:
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Group: k.kind.Group, Resource: k.kind.Kind}, k.name.String())
	case u.GetResourceVersion() != "" || u.GetUID() != "":
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	case k.name.Namespace != "" && m.objects[namespaceKey(k.name.Namespace)] == nil:
		return nil, notFound(namespaceKey(k.name.Namespace))
	}
	return m.put(u), nil
}

func namespaceKey(name string) key {
	return key{schema.GroupKind{Kind: "Namespace"}, types.NamespacedName{Name: name}}
}

func (m *memory) update(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	k := keyOf(u)
	is := m.objects[k]
	switch {
	case is == nil:
		return nil, notFound(k)
	case u.GetResourceVersion() != is.GetResourceVersion(), u.GetUID() != is.GetUID():
		return nil, conflict(k)
	}
	if u.GetDeletionTimestamp() != nil && len(u.GetFinalizers()) == 0 {
		m.gone(k)
		return u, nil
	}
	return m.put(u), nil
}

func (m *memory) gone(k key) {
	delete(m.objects, k)
	m.orphans = true
}

func (m *memory) delete(k key, uid *types.UID) error {
	is := m.objects[k]
	switch {
	case is == nil:
		return notFound(k)
	case uid != nil && *uid != is.GetUID():
		return conflict(k)
	case len(is.GetFinalizers()) == 0:
		m.gone(k)
	case is.GetDeletionTimestamp() == nil:
		u := is.DeepCopy()
		u.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
		m.put(u)
	}
	return nil
}

// collect is the garbage collector: what has owners and none of them any more goes.
func (m *memory) collect() {
	if !m.orphans {
		return
	}
	m.orphans = false
	uids := map[types.UID]bool{}
	for _, u := range m.objects {
		uids[u.GetUID()] = true
	}
	for _, k := range sortedKeys(m.objects) {
		u := m.objects[k]
		refs := u.GetOwnerReferences()
		if len(refs) == 0 || slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return uids[r.UID] }) {
			continue
		}
		_ = m.delete(k, nil)
	}
}

func sortedKeys(objects map[key]*unstructured.Unstructured) []key {
	return slices.SortedFunc(maps.Keys(objects), func(a, b key) int {
		return cmp.Or(strings.Compare(a.kind.Kind, b.kind.Kind), strings.Compare(a.name.Namespace, b.name.Namespace), strings.Compare(a.name.Name, b.name.Name))
	})
}

// process is a client of one process, which may be killed at one of its calls.
type process struct {
	client.Client
	memory *memory
	world  *world
	// calls of all clients of the process.
	life *life
}

type life struct {
	calls int
	// killAt is the call at which the process is killed; after: once the server did it.
	killAt int
	after  bool
	dead   bool
}

func (p *process) call(do func() error) error {
	p.life.calls++
	if p.life.dead {
		return errKilled
	}
	kill := p.life.calls == p.life.killAt
	if kill && !p.life.after {
		p.life.dead = true
		return errKilled
	}
	err := do()
	p.world.turn()
	if kill {
		p.life.dead = true
		return errKilled
	}
	return err
}

func content(o client.Object) *unstructured.Unstructured {
	if u, ok := o.(*unstructured.Unstructured); ok {
		return u.DeepCopy()
	}
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		panic(err)
	}
	u := &unstructured.Unstructured{Object: m}
	u.SetGroupVersionKind(kindOfTyped(o))
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	return u
}

func kindOfTyped(o client.Object) schema.GroupVersionKind {
	switch o.(type) {
	case *corev1.Namespace:
		return schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}
	case *corev1.ConfigMap:
		return schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	}
	return o.GetObjectKind().GroupVersionKind()
}

func fill(o client.Object, from *unstructured.Unstructured) {
	if u, ok := o.(*unstructured.Unstructured); ok {
		u.Object = from.DeepCopy().Object
		return
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, o); err != nil {
		panic(err)
	}
}

func (p *process) Get(_ context.Context, name client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	return p.call(func() error {
		kind := kindOfTyped(o)
		k := key{kind.GroupKind(), name}
		u := p.memory.objects[k]
		if u == nil {
			return notFound(k)
		}
		fill(o, u)
		return nil
	})
}

func (p *process) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	return p.call(func() error {
		o := &client.ListOptions{}
		o.ApplyOptions(options)
		kind := list.GetObjectKind().GroupVersionKind()
		if _, ok := list.(*corev1.ConfigMapList); ok {
			kind = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMapList"}
		}
		kind.Kind = strings.TrimSuffix(kind.Kind, "List")
		if kind.Kind == "" {
			return nil // Deployments, of which there are none
		}
		if !p.memory.serves[kind.GroupKind()] {
			return &meta.NoKindMatchError{GroupKind: kind.GroupKind()}
		}
		for _, k := range sortedKeys(p.memory.objects) {
			u := p.memory.objects[k]
			if k.kind != kind.GroupKind() || o.Namespace != "" && k.name.Namespace != o.Namespace {
				continue
			}
			if o.LabelSelector != nil && !o.LabelSelector.Matches(labelSet(u.GetLabels())) {
				continue
			}
			switch l := list.(type) {
			case *unstructured.UnstructuredList:
				l.Items = append(l.Items, *u.DeepCopy())
			case *metav1.PartialObjectMetadataList:
				m := metav1.PartialObjectMetadata{}
				fill(&m, u)
				l.Items = append(l.Items, m)
			case *corev1.ConfigMapList:
				cm := corev1.ConfigMap{}
				fill(&cm, u)
				l.Items = append(l.Items, cm)
			}
		}
		return nil
	})
}

type labelSet map[string]string

func (l labelSet) Has(k string) bool   { _, ok := l[k]; return ok }
func (l labelSet) Get(k string) string { return l[k] }
func (l labelSet) Lookup(k string) (string, bool) {
	v, ok := l[k]
	return v, ok
}

func (p *process) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	return p.call(func() error {
		u, err := p.memory.create(content(o))
		if err == nil {
			fill(o, u)
		}
		return err
	})
}

func (p *process) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	return p.call(func() error {
		u, err := p.memory.update(content(o))
		if err == nil {
			fill(o, u)
		}
		return err
	})
}

func (p *process) Delete(_ context.Context, o client.Object, options ...client.DeleteOption) error {
	return p.call(func() error {
		d := &client.DeleteOptions{}
		d.ApplyOptions(options)
		if d.Preconditions == nil || d.Preconditions.UID == nil {
			p.world.fail("%s deletes %s/%s without a UID", p.memory.name, o.GetObjectKind().GroupVersionKind().Kind, o.GetName())
			return nil
		}
		return p.memory.delete(keyOf(content(o)), d.Preconditions.UID)
	})
}

// world is both sides with what acts there, and a cloud.
type world struct {
	t     *testing.T
	sides map[string]*memory
	// built counts how often the machines of a cluster were built, by its name.
	built map[string]int
	// declares are the Clusters that Git declares, by side.
	declares map[string][]string
	// deletes: somebody deletes Clusters, and they may be taken down.
	deletes bool
	random  *rand.Rand
	now     time.Time
	failed  bool
	trace   []string
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	if !w.failed {
		w.failed = true
		w.t.Errorf(format+"\n%s", append(args, strings.Join(w.trace[max(0, len(w.trace)-12):], "\n"))...)
	}
}

const infrastructure = "infrastructure.cluster.x-k8s.io"

var (
	clusterKind = clusterapi.ClusterKind
	infraKind   = schema.GroupKind{Group: infrastructure, Kind: "ModelCluster"}
	machineKind = schema.GroupKind{Group: clusterapi.Group, Kind: "Machine"}
)

// turn lets those act who act by themselves, and looks whether all is as it has to be.
func (w *world) turn() {
	for _, name := range []string{"mom", "master"} {
		m := w.sides[name]
		if w.random.IntN(2) == 0 {
			m.collect()
		}
		if w.random.IntN(2) == 0 {
			w.git(name, m)
		}
		w.provider(name, m)
	}
	w.look()
}

// git is an agent that applies what is declared, and unpauses it, as Git says paused: false.
func (w *world) git(side string, m *memory) {
	if len(w.declares[side]) == 0 {
		return
	}
	record := &corev1.ConfigMap{}
	if u := m.objects[key{schema.GroupKind{Kind: "ConfigMap"}, types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: v1alpha1.FirstSyncConfigMap}}]; u != nil {
		fill(record, u)
	}
	for _, cluster := range w.declares[side] {
		name := types.NamespacedName{Namespace: "fleet", Name: cluster}
		if firstsync.ManagedBy(record, name) != "" {
			continue
		}
		u := m.objects[key{clusterKind, name}]
		if u == nil {
			if m.objects[namespaceKey("fleet")] == nil {
				continue
			}
			c := m.put(modelObject(clusterapi.Group+"/v1beta2", "Cluster", cluster, nil))
			m.put(modelObject(infrastructure+"/v1", "ModelCluster", cluster, c))
			continue
		}
		if clusterapi.IsPaused(u) {
			u = u.DeepCopy()
			unstructured.RemoveNestedField(u.Object, "spec", "paused")
			m.put(u)
		}
	}
}

// provider builds what is not built, and takes down what is being deleted, unless the Cluster
// is paused.
func (w *world) provider(side string, m *memory) {
	for _, name := range modelClusters() {
		c := m.objects[key{clusterKind, name}]
		if c != nil && w.random.IntN(25) == 0 {
			c = w.says(m, c)
		}
		if c != nil && clusterapi.IsPaused(c) {
			continue
		}
		if c != nil && c.GetDeletionTimestamp() != nil && !w.deletes {
			w.fail("%s takes Cluster %s down", side, name)
		}
		u := m.objects[key{infraKind, name}]
		if u == nil {
			continue
		}
		if u.GetDeletionTimestamp() != nil {
			w.fail("%s takes down what %s stands for", side, name)
			continue
		}
		if c == nil || c.GetDeletionTimestamp() != nil {
			continue
		}
		w.acts(m, c, u)
	}
}

// says has the controller of a Cluster write down whether it has stopped.
func (w *world) says(m *memory, c *unstructured.Unstructured) *unstructured.Unstructured {
	status := "False"
	if clusterapi.IsPaused(c) {
		status = "True"
	}
	if pausedCondition(c) == status {
		return c
	}
	c = c.DeepCopy()
	conditions, _, _ := unstructured.NestedSlice(c.Object, "status", "conditions")
	conditions = slices.DeleteFunc(conditions, func(item any) bool { return item.(map[string]any)["type"] == "Paused" })
	_ = unstructured.SetNestedSlice(c.Object, append(conditions, map[string]any{"type": "Paused", "status": status}), "status", "conditions")
	return m.put(c)
}

// acts does what the controllers of a Cluster do that is not paused.
func (w *world) acts(m *memory, c, u *unstructured.Unstructured) {
	name := client.ObjectKeyFromObject(c)
	for _, is := range []struct {
		of     *unstructured.Unstructured
		status map[string]any
	}{
		{c, map[string]any{"initialization": map[string]any{"infrastructureProvisioned": true, "controlPlaneInitialized": true}}},
		{m.objects[key{machineKind, name}], map[string]any{"nodeRef": map[string]any{"name": "n"}}},
	} {
		if is.of == nil {
			continue
		}
		o, missing := is.of.DeepCopy(), false
		for field, value := range is.status {
			if _, ok, _ := unstructured.NestedFieldNoCopy(o.Object, "status", field); !ok {
				missing = true
				_ = unstructured.SetNestedField(o.Object, value, "status", field)
			}
		}
		if missing {
			m.put(o)
		}
	}
	if id, _, _ := unstructured.NestedString(u.Object, "spec", "id"); id == "" {
		w.built[name.Name]++
		u = u.DeepCopy()
		_ = unstructured.SetNestedField(u.Object, "i-"+name.Name, "spec", "id")
		u.SetFinalizers([]string{"model"})
		u = m.put(u)
	}
	if w.random.IntN(8) == 0 { // it writes its status, which says nothing
		u = u.DeepCopy()
		_ = unstructured.SetNestedField(u.Object, strconv.Itoa(m.last), "status", "seen")
		m.put(u)
	}
}

func modelClusters() []types.NamespacedName {
	return []types.NamespacedName{{Namespace: "fleet", Name: "a"}, {Namespace: "fleet", Name: "b"}}
}

// look fails if two sides have a Cluster that is not paused, or something was built twice.
func (w *world) look() {
	for _, name := range modelClusters() {
		acting := 0
		for _, m := range w.sides {
			if u := m.objects[key{clusterKind, name}]; u != nil && !clusterapi.IsPaused(u) {
				acting++
			}
		}
		if acting > 1 {
			w.fail("both sides act on Cluster %s", name)
		}
	}
	for name, times := range w.built {
		if times > 1 {
			w.fail("%s was built %d times", name, times)
		}
	}
}

func modelObject(version, kind, name string, owner *unstructured.Unstructured) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
	u.SetAPIVersion(version)
	u.SetKind(kind)
	u.SetNamespace("fleet")
	u.SetName(name)
	if owner != nil {
		u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID()}})
	}
	return u
}

// definition of a kind, with which the graph is read.
func definition(group, kind string) *unstructured.Unstructured {
	version := "v1"
	if group == clusterapi.Group {
		version = "v1beta2"
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"group": group, "scope": "Namespaced", "names": map[string]any{"kind": kind},
		"versions": []any{map[string]any{"name": version, "storage": true, "served": true}},
	}}}
	u.SetAPIVersion("apiextensions.k8s.io/v1")
	u.SetKind("CustomResourceDefinition")
	u.SetName(strings.ToLower(kind) + "s." + group)
	return u
}

// newWorld has two Clusters of one class in the MoM, each with infrastructure, a machine, a
// kubeconfig, and Secrets of the user; and nothing but a record in the master.
func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, sides: map[string]*memory{}, built: map[string]int{}, random: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_000_000, 0),
		declares: map[string][]string{"mom": {"a", "b"}},
	}
	kinds := []string{"Cluster.cluster.x-k8s.io", "ClusterClass.cluster.x-k8s.io", "Machine.cluster.x-k8s.io", "ModelCluster.infrastructure.cluster.x-k8s.io", "ModelClusterTemplate.infrastructure.cluster.x-k8s.io"}
	for _, name := range []string{"mom", "master"} {
		m := newMemory(name, kinds...)
		w.sides[name] = m
		for _, k := range kinds {
			gk := schema.ParseGroupKind(k)
			m.put(definition(gk.Group, gk.Kind))
		}
		for _, ns := range []string{"kube-system", v1alpha1.AgentNamespace} {
			m.put(content(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		}
		m.put(content(firstsync.SettledRecord(v1alpha1.AgentNamespace, "test", w.now)))
	}
	m := w.sides["mom"]
	m.put(content(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "fleet"}}))
	class := modelObject(clusterapi.Group+"/v1beta2", "ClusterClass", "class", nil)
	class.Object["spec"] = map[string]any{"infrastructure": map[string]any{"templateRef": map[string]any{"kind": "ModelClusterTemplate", "name": "template"}}}
	class = m.put(class)
	m.put(modelObject(infrastructure+"/v1", "ModelClusterTemplate", "template", class))
	for _, name := range []string{"a", "b"} {
		c := modelObject(clusterapi.Group+"/v1beta2", "Cluster", name, nil)
		c.Object["spec"] = map[string]any{"topology": map[string]any{"classRef": map[string]any{"name": "class"}}, "infrastructureRef": map[string]any{"kind": "ModelCluster", "name": name}}
		c.Object["status"] = map[string]any{"initialization": map[string]any{"infrastructureProvisioned": true, "controlPlaneInitialized": true}}
		c.SetFinalizers([]string{"cluster.cluster.x-k8s.io"})
		c = m.put(c)
		infra := m.put(modelObject(infrastructure+"/v1", "ModelCluster", name, c))
		machine := modelObject(clusterapi.Group+"/v1beta2", "Machine", name, c)
		machine.Object["spec"] = map[string]any{"clusterName": name}
		machine.Object["status"] = map[string]any{"nodeRef": map[string]any{"name": "n"}}
		m.put(machine)
		secret := modelObject("v1", "Secret", name+"-kubeconfig", infra)
		secret.SetLabels(map[string]string{clusterapi.ClusterNameLabel: name})
		secret.Object["data"] = map[string]any{"value": "eA=="}
		m.put(secret)
		ca := modelObject("v1", "Secret", name+"-ca", nil)
		m.put(ca)
	}
	other := modelObject("v1", "Secret", "a-database", nil)
	m.put(other)
	w.provider("mom", m)
	return w
}

// pivot of Cluster a, by a process that is killed at a call.
func (w *world) pivot(from, to string, l *life) *Pivot {
	side := func(name string) Side {
		return Side{Name: name, Client: &process{memory: w.sides[name], world: w, life: l}, Namespace: v1alpha1.AgentNamespace}
	}
	w.now = w.now.Add(2 * holds) // the hold of the one before is over
	return &Pivot{
		Source: side(from), Target: side(to), Clusters: []types.NamespacedName{{Namespace: "fleet", Name: "a"}}, Keep: true,
		Holder: fmt.Sprintf("process-%d", w.random.Uint64()), Program: "test",
		Now:  func() time.Time { return w.now },
		Wait: func(_ context.Context, d time.Duration) error { w.now = w.now.Add(d); w.turn(); return nil },
		Rest: 2 * time.Second,
		Tell: func(e Event) { w.trace = append(w.trace, fmt.Sprintf("%s: %s %s", e.Step, e.Action, e.Waits)) },
	}
}

// at fails unless one side has Cluster a with all of it, and acts on it, and the other has
// nothing left but what stays.
func (w *world) at(side, other string) {
	w.t.Helper()
	m, o := w.sides[side], w.sides[other]
	for _, k := range []key{
		{clusterKind, types.NamespacedName{Namespace: "fleet", Name: "a"}}, {infraKind, types.NamespacedName{Namespace: "fleet", Name: "a"}},
		{machineKind, types.NamespacedName{Namespace: "fleet", Name: "a"}}, {schema.GroupKind{Kind: "Secret"}, types.NamespacedName{Namespace: "fleet", Name: "a-kubeconfig"}},
		{schema.GroupKind{Kind: "Secret"}, types.NamespacedName{Namespace: "fleet", Name: "a-ca"}},
	} {
		u := m.objects[k]
		if u == nil {
			w.fail("%s does not have %s %s", side, k.kind, k.name)
			continue
		}
		if u.GetAnnotations()[v1alpha1.PivotAnnotation] != "" || clusterapi.IsMoved(u) {
			w.fail("%s has marks of the pivot on %s %s: %v", side, k.kind, k.name, u.GetAnnotations())
		}
		if left := o.objects[k]; left != nil && k.name.Name != "a-kubeconfig" {
			w.fail("%s still has %s %s", other, k.kind, k.name)
		}
	}
	if side == "master" && o.objects[key{schema.GroupKind{Kind: "Secret"}, types.NamespacedName{Namespace: "fleet", Name: "a-kubeconfig"}}] == nil {
		w.fail("%s lost the kubeconfig with which it connects", other)
	}
	c := m.objects[key{clusterKind, types.NamespacedName{Namespace: "fleet", Name: "a"}}]
	if c != nil && clusterapi.IsPaused(c) {
		w.fail("%s has Cluster a paused", side)
	}
	if b := w.sides["mom"].objects[key{clusterKind, types.NamespacedName{Namespace: "fleet", Name: "b"}}]; b == nil || clusterapi.IsPaused(b) {
		w.fail("Cluster b was touched")
	}
	if w.sides["mom"].objects[key{schema.GroupKind{Kind: "Secret"}, types.NamespacedName{Namespace: "fleet", Name: "a-database"}}] == nil {
		w.fail("somebody's Secret was taken away")
	}
	if w.sides["master"].objects[key{schema.GroupKind{Kind: "Secret"}, types.NamespacedName{Namespace: "fleet", Name: "a-database"}}] != nil {
		w.fail("somebody's Secret was copied")
	}
	if w.built["a"] != 1 {
		w.fail("a was built %d times", w.built["a"])
	}
}

// TestPivot: there, and back, without any trouble; and a second time.
func TestPivot(t *testing.T) {
	w := newWorld(t, 1)
	for range 2 {
		if _, err := w.pivot("mom", "master", &life{}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.at("master", "mom")
		if _, err := w.pivot("master", "mom", &life{}).Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.at("mom", "master")
	}
}

// stride is the pause between two calls at which processes are killed; make pivot kills at
// each.
func stride() int {
	if os.Getenv("CASCADE_PIVOT_KILLS") != "" {
		return 1
	}
	return 7
}

// TestKills: a process is killed at each of its calls, before the server did it and after,
// and the same command goes on; in both directions.
func TestKills(t *testing.T) {
	there := &life{}
	if _, err := newWorld(t, 1).pivot("mom", "master", there).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	kills := 0
	for call := 1; call <= there.calls+5; call += stride() {
		for _, after := range []bool{false, true} {
			w := newWorld(t, uint64(call))
			for _, d := range [][2]string{{"mom", "master"}, {"master", "mom"}} {
				if _, err := w.pivot(d[0], d[1], &life{killAt: call, after: after}).Run(t.Context()); err != nil && !errors.Is(err, errKilled) {
					t.Fatalf("call %d, after %t: %v", call, after, err)
				}
				kills++
				if _, err := w.pivot(d[0], d[1], &life{}).Run(t.Context()); err != nil {
					t.Fatalf("call %d, after %t, %s to %s: %v", call, after, d[0], d[1], err)
				}
				w.at(d[1], d[0])
			}
			if w.failed {
				t.Fatalf("killed at call %d, after %t", call, after)
			}
		}
	}
	t.Logf("%d kills", kills)
}

// TestAborts: after a kill the pivot is turned back, or goes on where that is refused, with
// kills on that way as well.
func TestAborts(t *testing.T) {
	there := &life{}
	if _, err := newWorld(t, 1).pivot("mom", "master", there).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for call := 1; call <= there.calls; call += stride() {
		w := newWorld(t, uint64(call))
		before := len(w.sides["master"].objects)
		_, err := w.pivot("mom", "master", &life{killAt: call, after: call%2 == 0}).Run(t.Context())
		if !errors.Is(err, errKilled) {
			continue
		}
		_, _ = w.pivot("mom", "master", &life{killAt: 1 + w.random.IntN(60), after: call%3 == 0}).Abort(t.Context())
		_, err = w.pivot("mom", "master", &life{}).Abort(t.Context())
		switch {
		case err != nil && strings.Contains(err.Error(), "no pivot of these Clusters") && w.sides["mom"].objects[key{clusterKind, modelClusters()[0]}] == nil:
			w.at("master", "mom") // it was through, and nobody heard of it
		case err == nil || strings.Contains(err.Error(), "no pivot of these Clusters"):
			w.at("mom", "master")
			if n := len(w.sides["master"].objects); n > before+1+3 { // the namespace, the class, its template
				t.Errorf("call %d: the master has %d objects, had %d", call, n, before)
			}
		case strings.Contains(err.Error(), "cannot turn back"):
			if _, err := w.pivot("mom", "master", &life{}).Run(t.Context()); err != nil {
				t.Fatalf("call %d: %v", call, err)
			}
			w.at("master", "mom")
		default:
			t.Fatalf("call %d: %v", call, err)
		}
		if w.failed {
			t.Fatalf("killed at call %d", call)
		}
	}
}

// TestChaos: several kills in a row, at any call, and people who change their minds.
func TestChaos(t *testing.T) {
	for seed := range uint64(60) {
		w := newWorld(t, 1000+seed)
		from, to := "mom", "master"
		for range 6 {
			l := &life{killAt: 1 + w.random.IntN(220), after: w.random.IntN(2) == 0}
			p := w.pivot(from, to, l)
			var err error
			if w.random.IntN(4) == 0 {
				_, err = p.Abort(t.Context())
			} else {
				var j Journal
				if j, err = p.Run(t.Context()); err == nil && j.Step == Done {
					w.at(to, from)
					from, to = to, from
				}
			}
			if w.failed {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		for { // to an end
			j, err := w.pivot(from, to, &life{}).Run(t.Context())
			if err == nil && j.Step == Done {
				break
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		w.at(to, from)
		if w.failed {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestStale: a process that was held up, and comes back when another one drives the pivot,
// writes nothing.
func TestStale(t *testing.T) {
	w := newWorld(t, 1)
	first := w.pivot("mom", "master", &life{})
	second := w.pivot("mom", "master", &life{})
	taken := false
	wait := first.Wait
	first.Wait = func(ctx context.Context, d time.Duration) error {
		if !taken {
			taken = true
			w.now = w.now.Add(2 * holds)
			if _, err := second.Run(ctx); err != nil {
				t.Fatal(err)
			}
			w.at("master", "mom")
		}
		return wait(ctx, d)
	}
	if _, err := first.Run(t.Context()); !errors.Is(err, ErrLost) {
		t.Fatalf("got %v, want that it is lost", err)
	}
	w.at("master", "mom")

	third := w.pivot("master", "mom", &life{})
	third.Wait = func(context.Context, time.Duration) error { return errors.New("stop") }
	_, _ = third.Run(t.Context())
	third.journal.Until = w.now.Add(holds)
	if err := third.save(t.Context()); err != nil {
		t.Fatal(err)
	}
	fourth := w.pivot("master", "mom", &life{})
	w.now = third.journal.Until.Add(-time.Second)
	var blocked *BlockedError
	if _, err := fourth.Run(t.Context()); !errors.As(err, &blocked) || blocked.Problems[0].Reason != ReasonPivotHeld {
		t.Fatalf("got %v, want that another process drives it", err)
	}
}

// TestFinish: the management cluster that moved a Cluster is gone, and the master's own agent
// ends what was switched; before that it does nothing. Should the other one come back after
// all, it ends what is left to it.
func TestFinish(t *testing.T) {
	there := &life{}
	if _, err := newWorld(t, 1).pivot("mom", "master", there).Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := 0
	for call := 1; call <= there.calls; call += stride() {
		w := newWorld(t, uint64(call))
		if _, err := w.pivot("mom", "master", &life{killAt: call, after: call%2 == 0}).Run(t.Context()); !errors.Is(err, errKilled) {
			continue
		}
		side := func(l *life) Side {
			return Side{Name: "master", Client: &process{memory: w.sides["master"], world: w, life: l}, Namespace: v1alpha1.AgentNamespace}
		}
		_, _ = Finish(t.Context(), side(&life{killAt: 1 + w.random.IntN(20), after: call%3 == 0})) // it may be killed, too
		finished, err := Finish(t.Context(), side(&life{}))
		if err != nil {
			t.Fatalf("call %d: %v", call, err)
		}
		c := w.sides["master"].objects[key{clusterKind, modelClusters()[0]}]
		if len(finished) > 0 {
			ended++
			if c == nil || clusterapi.IsPaused(c) {
				t.Errorf("call %d: it is finished, and the Cluster does not go on", call)
			}
		}
		if _, err := w.pivot("mom", "master", &life{}).Run(t.Context()); err != nil {
			t.Fatalf("call %d: %v", call, err)
		}
		w.at("master", "mom")
		if w.failed {
			t.Fatalf("killed at call %d", call)
		}
	}
	if ended == 0 {
		t.Error("nothing was ever left to finish")
	}
}
