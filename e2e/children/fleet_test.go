package children

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	fluxmeta "github.com/fluxcd/pkg/apis/meta"
	ssautil "github.com/fluxcd/pkg/ssa/utils"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/e2e/scenario"
)

// fleet is a namespace of a hub with a repository of its own, so that tests do not
// wake each other's children.
type fleet struct {
	*hub
	name string
	// version of Clusters.
	version string
}

// fleet makes a namespace, whose source fleet has these files.
func (h *hub) fleet(t *testing.T, name string, files map[string]string) *fleet {
	t.Helper()
	f := &fleet{hub: h, name: name, version: "v1beta2"}
	if err := h.Git.Create(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	h.apply(t, object("v1", "Namespace", "", name))
	username, password := h.Git.Login()
	secret := object("v1", "Secret", name, "git-auth")
	secret.Object["stringData"] = map[string]any{"username": username, "password": password}
	h.apply(t, secret)
	f.push(t, files)
	f.define(t, `{apiVersion: source.toolkit.fluxcd.io/v1, kind: GitRepository, metadata: {name: fleet}, spec: {url: "`+h.Git.HTTPURL(name)+
		`", ref: {branch: main}, secretRef: {name: git-auth}, interval: 1h}}`)
	return f
}

// push makes the repository have these files and returns the commit. Without
// content a file goes.
func (f *fleet) push(t *testing.T, files map[string]string) string {
	t.Helper()
	sha, err := f.Git.Commit(t.Context(), f.name, "main", "Change "+strings.Join(slices.Sorted(maps.Keys(files)), ", "), func(dir string) error {
		for name, content := range files {
			name = filepath.Join(dir, name)
			if content == "" {
				if err := os.Remove(name); err != nil {
					return err
				}
				continue
			}
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("cannot commit: %v", err)
	}
	return sha
}

// commit pushes and has the source fetched.
func (f *fleet) commit(t *testing.T, files map[string]string) string {
	t.Helper()
	sha := f.push(t, files)
	f.request(t, &sourcev1.GitRepository{ObjectMeta: metav1.ObjectMeta{Namespace: f.name, Name: "fleet"}})
	return sha
}

// request asks for an object to be reconciled now and returns the token.
func (f *fleet) request(t *testing.T, o client.Object) string {
	t.Helper()
	token := time.Now().Format(time.RFC3339Nano)
	f.annotate(t, o, fluxmeta.ReconcileRequestAnnotation, token)
	return token
}

func (f *fleet) annotate(t *testing.T, o client.Object, key, value string) {
	t.Helper()
	f.patch(t, o, map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
}

func (f *fleet) patch(t *testing.T, o client.Object, patch map[string]any) {
	t.Helper()
	text, err := json.Marshal(patch)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, text)); err != nil {
		t.Fatalf("cannot patch %s: %v", o.GetName(), err)
	}
}

// define applies objects of the namespace.
func (f *fleet) define(t *testing.T, text string) {
	t.Helper()
	objects, err := ssautil.ReadObjects(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		u.SetNamespace(f.name)
		f.apply(t, u)
	}
}

// layer defines a Layer that selects the clusters of a name, by a label that
// declare gives them, with these lines in its spec.
func (f *fleet) layer(t *testing.T, name, cluster string, spec ...string) {
	t.Helper()
	f.define(t, "apiVersion: cascade.dev/v1alpha1\nkind: Layer\nmetadata:\n  name: "+name+"\nspec:\n  clusterSelector: {matchLabels: {cluster: "+cluster+"}}\n  "+
		"sourceRef: {kind: GitRepository, name: fleet}\n  path: ./"+name+"\n  "+strings.Join(spec, "\n  ")+"\n")
}

// clusterFinalizer is the one that Cluster API's controllers have on Clusters.
const clusterFinalizer = "cluster.cluster.x-k8s.io"

// declare creates a Cluster as a person does, with these lines in its spec.
func (f *fleet) declare(t *testing.T, name string, spec ...string) *unstructured.Unstructured {
	t.Helper()
	ref := `apiGroup: %s.cluster.x-k8s.io`
	if f.version == "v1beta1" {
		ref = `apiVersion: %s.cluster.x-k8s.io/v1beta1`
	}
	text := fmt.Sprintf("apiVersion: cluster.x-k8s.io/%s\nkind: Cluster\nmetadata:\n  name: %s\n  labels: {cluster: %s}\n  finalizers: [%s]\nspec:\n"+
		"  infrastructureRef: {"+ref+", kind: LocalCluster, name: %s}\n  controlPlaneRef: {"+ref+", kind: LocalControlPlane, name: %s}\n",
		f.version, name, name, clusterFinalizer, "infrastructure", name, "controlplane", name)
	for _, line := range spec {
		text += "  " + line + "\n"
	}
	f.define(t, text)
	return f.cluster(t, name)
}

// cluster reads a Cluster.
func (f *fleet) cluster(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	u := object("cluster.x-k8s.io/"+f.version, "Cluster", f.name, name)
	if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
		t.Fatal(err)
	}
	return u
}

// report merges into the status of a Cluster what its controllers would.
func (f *fleet) report(t *testing.T, name string, status map[string]any) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		t.Fatal(err)
	}
	u := object("cluster.x-k8s.io/"+f.version, "Cluster", f.name, name)
	if err := f.client.Status().Patch(t.Context(), u, client.RawPatch(types.MergePatchType, text)); err != nil {
		t.Fatalf("cannot write status of Cluster %s: %v", name, err)
	}
}

// initialization of a control plane that answers.
var initialized = map[string]any{
	"phase": "Provisioned", "initialization": map[string]any{"infrastructureProvisioned": true, "controlPlaneInitialized": true},
}

// handOver writes the kubeconfig Secret of a Cluster as a provider does; change may
// alter it before.
func (f *fleet) handOver(t *testing.T, name string, kubeconfig []byte, change ...func(*corev1.Secret)) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.name, Name: clusterapi.KubeconfigSecret(name), Labels: map[string]string{clusterapi.ClusterNameLabel: name}},
		Type:       "cluster.x-k8s.io/secret",
		Data:       map[string][]byte{clusterapi.KubeconfigKey: kubeconfig},
	}
	for _, f := range change {
		f(secret)
	}
	err := f.client.Create(t.Context(), secret)
	if apierrors.IsAlreadyExists(err) {
		err = f.client.Update(t.Context(), secret)
	}
	if err != nil {
		t.Fatalf("cannot write kubeconfig of %s: %v", name, err)
	}
}

// child reads a Child.
func (f *fleet) child(ctx context.Context, name string) (*v1alpha1.Child, error) {
	child := &v1alpha1.Child{}
	return child, f.client.Get(ctx, client.ObjectKey{Namespace: f.name, Name: name}, child)
}

// says waits until a condition of a Child has a reason, and a message that has
// the words. Reasons of success have status True, all others have not.
func (f *fleet) says(t *testing.T, name, condition, reason string, words ...string) *v1alpha1.Child {
	t.Helper()
	var child *v1alpha1.Child
	scenario.Eventually(t, scenario.Converge, fmt.Sprintf("%s of %s is %s", condition, name, reason), func(ctx context.Context) (err error) {
		if child, err = f.child(ctx, name); err != nil {
			return err
		}
		c := meta.FindStatusCondition(child.Status.Conditions, condition)
		if c == nil || c.Reason != reason || (c.Status == metav1.ConditionTrue) != (reason == v1alpha1.ReasonSucceeded) {
			return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
		}
		for _, w := range words {
			if !strings.Contains(c.Message, w) {
				return fmt.Errorf("the message does not have %q: %s", w, c.Message)
			}
		}
		return nil
	})
	return child
}

// ready waits until a Child has all its layers, of the newest commit if one is
// named.
func (f *fleet) ready(t *testing.T, name, commit string) *v1alpha1.Child {
	t.Helper()
	var child *v1alpha1.Child
	scenario.Eventually(t, scenario.Converge, "child "+name+" is ready", func(ctx context.Context) (err error) {
		if child, err = f.child(ctx, name); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(child.Status.Conditions, v1alpha1.ReadyCondition) {
			return fmt.Errorf("conditions are %s", scenario.Summary(child.Status.Conditions))
		}
		for _, l := range child.Status.Layers {
			if !l.Ready || !strings.HasSuffix(l.Revision, commit) {
				return fmt.Errorf("layer %s is ready %t at %s", l.Name, l.Ready, l.Revision)
			}
		}
		return nil
	})
	return child
}

// reconciled asks for a reconcile of a Child, and waits until the agent has answered.
func (f *fleet) reconciled(t *testing.T, name string) *v1alpha1.Child {
	t.Helper()
	token := f.request(t, &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: f.name, Name: name}})
	var child *v1alpha1.Child
	scenario.Eventually(t, scenario.Converge, "child "+name+" is reconciled", func(ctx context.Context) (err error) {
		if child, err = f.child(ctx, name); err != nil {
			return err
		}
		if child.Status.LastHandledReconcileAt != token {
			return fmt.Errorf("handled %q, conditions are %s", child.Status.LastHandledReconcileAt, scenario.Summary(child.Status.Conditions))
		}
		return nil
	})
	return child
}

// history is everything that a fleet's Children, Layers and events said while it
// was kept.
type history struct {
	mu       sync.Mutex
	children []v1alpha1.Child
	layers   []v1alpha1.Layer
	warnings []corev1.Event
	// before are the versions of events that were there when it began, which a watch shows, too.
	before map[types.UID]string
}

// keep begins a history, of layers that are in place. It ends with the test.
func (f *fleet) keep(t *testing.T) *history {
	t.Helper()
	scenario.Eventually(t, scenario.Converge, "layers say that they are in place", func(ctx context.Context) error {
		list := &v1alpha1.LayerList{}
		if err := f.client.List(ctx, list, client.InNamespace(f.name)); err != nil {
			return err
		}
		for _, layer := range list.Items {
			if !meta.IsStatusConditionTrue(layer.Status.Conditions, v1alpha1.ReadyCondition) {
				return fmt.Errorf("conditions of layer %s are %s", layer.Name, scenario.Summary(layer.Status.Conditions))
			}
		}
		return nil
	})
	h := &history{before: map[types.UID]string{}}
	events := &corev1.EventList{}
	if err := f.client.List(t.Context(), events, client.InNamespace(f.name)); err != nil {
		t.Fatal(err)
	}
	for i := range events.Items {
		h.before[events.Items[i].UID] = events.Items[i].ResourceVersion
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var ended sync.WaitGroup
	t.Cleanup(func() { cancel(); ended.Wait() })
	for _, list := range []client.ObjectList{&v1alpha1.ChildList{}, &v1alpha1.LayerList{}, &corev1.EventList{}} {
		w, err := f.client.Watch(ctx, list, client.InNamespace(f.name))
		if err != nil {
			t.Fatal(err)
		}
		ended.Go(func() {
			defer w.Stop()
			for event := range w.ResultChan() {
				h.add(event)
			}
		})
	}
	return h
}

func (h *history) add(event watch.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch o := event.Object.(type) {
	case *v1alpha1.Child:
		h.children = append(h.children, *o)
	case *v1alpha1.Layer:
		h.layers = append(h.layers, *o)
	case *corev1.Event:
		if o.Type == corev1.EventTypeWarning && h.before[o.UID] != o.ResourceVersion {
			h.warnings = append(h.warnings, *o)
		}
	}
}

// staysSuperseded fails the test if a Child said that another management cluster has a layer,
// and then that it has not.
func (h *history) staysSuperseded(t *testing.T, layer string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	was := 0
	for i := range h.children {
		status := &h.children[i].Status
		at := slices.IndexFunc(status.Layers, func(l v1alpha1.ChildLayer) bool { return l.Name == layer })
		superseded := at >= 0 && status.Layers[at].Reason == v1alpha1.ReasonSuperseded
		if was > 0 && (!superseded || status.SupersededBy == nil) {
			t.Errorf("after %d times it said: %+v, superseded by %v", was, status.Layers, status.SupersededBy)
			return
		}
		if superseded {
			was++
		}
	}
	if was == 0 {
		t.Errorf("none of %d versions of the Child says that layer %s is superseded", len(h.children), layer)
	}
}

// complaints are what a person would take for a failure. That a commit is on its
// way is none.
func (h *history) complaints() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []string
	for _, child := range h.children {
		for _, c := range child.Status.Conditions {
			if c.Status != metav1.ConditionTrue && c.Reason != v1alpha1.ReasonProgressing {
				found = append(found, fmt.Sprintf("Child %s: %s=%s: %s: %s", child.Name, c.Type, c.Status, c.Reason, c.Message))
			}
		}
		for _, l := range child.Status.Layers {
			if !l.Ready && l.Reason != v1alpha1.ReasonProgressing && l.Reason != v1alpha1.ReasonSucceeded {
				found = append(found, fmt.Sprintf("Child %s: layer %s: %s: %s", child.Name, l.Name, l.Reason, l.Message))
			}
		}
	}
	for _, layer := range h.layers {
		for _, f := range layer.Status.Failing {
			if f.Reason != v1alpha1.ReasonProgressing && f.Reason != v1alpha1.ReasonSucceeded {
				found = append(found, fmt.Sprintf("Layer %s: %s: %s: %s", layer.Name, f.Name, f.Reason, f.Message))
			}
		}
	}
	for _, e := range h.warnings {
		found = append(found, fmt.Sprintf("event of %s %s: %s: %s", e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message))
	}
	slices.Sort(found)
	return slices.Compact(found)
}
