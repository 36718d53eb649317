package release

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascade-gitops/cascade/api/clusterapi"

	v2 "github.com/fluxcd/helm-controller/api/v2"
	"github.com/fluxcd/pkg/ssa"
	"github.com/fluxcd/pkg/ssa/jsondiff"
	"github.com/go-logr/logr"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release/common"
	helmrelease "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage/driver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/release/sandbox"
)

// fakeWorld is the world of a run without a cluster: Helm's storage and actions, and
// the objects that a guard looks at. It does what a test told it to, and keeps
// what was asked of it.
type fakeWorld struct {
	stored []*helmrelease.Release // oldest first
	writes int
	// fails are errors of actions; those that are lost wrote nothing.
	fails map[Action]error
	lost  bool
	// manifest of what is installed next, and why it cannot be rendered.
	manifest   string
	unrendered error
	hooks      []*helmrelease.Hook
	// drops are what the next upgrade deletes, or spares.
	drops []inventory.Entry
	diff  jsondiff.DiffSet
	// passes counts how often objects were judged together.
	passes int
	// live is what is in the cluster, by the name of an entry.
	live map[string]inventory.Live
	// kept are the names of those with Helm's policy to keep them.
	kept map[string]bool
	// lingers are the names of those that a finalizer holds when they are deleted.
	lingers map[string]bool
	// fenced: this process lost the right to delete.
	fenced error
	// creation is what is held of what would be created.
	creation *inventory.Creation
	// objects are those of Cluster API.
	objects []*unstructured.Unstructured
	// unread is why objects of a kind cannot be read.
	unread map[string]error

	taken   []string
	deleted []string
	saves   int
}

// newRun returns a run in memory.
func (m *fakeWorld) newRun(obj *v2.HelmRelease, want Desired) *run {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: clusterapi.Group, Version: "v1beta2"}, {Group: clusterapi.ControlPlaneGroup, Version: "v1beta2"}})
	for _, kind := range []string{"ConfigMap", "PersistentVolumeClaim", "Secret"} {
		mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: kind}, meta.RESTScopeNamespace)
	}
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	mapper.Add(v2.GroupVersion.WithKind(v2.HelmReleaseKind), meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Group: clusterapi.Group, Version: "v1beta2", Kind: clusterapi.Cluster}, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Group: clusterapi.ControlPlaneGroup, Version: "v1beta2", Kind: "KubeadmControlPlane"}, meta.RESTScopeNamespace)
	r := &Releases{Events: record.NewFakeRecorder(100), Now: func() time.Time { return at }}
	n := r.newRun(Request{
		Object: obj, Chart: Chart{Name: want.ChartName, Version: want.ChartVersion}, Values: want.Values, Log: logr.Discard(),
		Save:     func(context.Context) error { m.saves++; return nil },
		SaveLast: func(context.Context) error { m.saves++; return nil },
	})
	n.world = world{
		mapper: mapper, store: m, drifts: m,
		guard: &guard{cluster: inMemory{m}, facts: inMemory{m}, obj: obj, now: r.Now, name: n.name, namespace: n.namespace},
		helm: func(_ context.Context, wrote func(*helmrelease.Release)) actor {
			return &memoryHelm{fakeWorld: m, run: n, wrote: wrote, keeps: newVerdicts()}
		},
	}
	return n
}

func (m *fakeWorld) revisions(context.Context, string, string) ([]revision, error) {
	var found []revision
	for _, r := range slices.Backward(m.stored) {
		found = append(found, revision{version: r.Version, stamp: fmt.Sprint(r.Version, " ", m.writes)})
	}
	return found, nil
}

func (m *fakeWorld) read(_ context.Context, _, _ string, version int) (*helmrelease.Release, error) {
	for _, r := range m.stored {
		if r.Version == version {
			return r, nil
		}
	}
	return nil, driver.ErrReleaseNotFound
}

func (m *fakeWorld) compare(context.Context, *helmrelease.Release) (comparison, error) {
	return comparison{set: m.diff}, nil
}

func (m *fakeWorld) correct(context.Context, jsondiff.DiffSet) (*ssa.ChangeSet, error) {
	m.taken = append(m.taken, string(Correct))
	m.diff = nil
	return ssa.NewChangeSet(), m.fails[Correct]
}

// add stores a revision as it is made now.
func (m *fakeWorld) add(name, namespace string, c *chart.Metadata, values map[string]any, status common.Status) *helmrelease.Release {
	version := 1
	if n := len(m.stored); n > 0 {
		version = m.stored[n-1].Version + 1
	}
	rel := &helmrelease.Release{
		Name: name, Namespace: namespace, Version: version, Chart: &chart.Chart{Metadata: c}, Config: values, Manifest: m.manifest, Hooks: m.hooks,
		Info: &helmrelease.Info{FirstDeployed: at, LastDeployed: at, Status: status},
	}
	m.stored = append(m.stored, rel)
	m.writes++
	return rel
}

// change changes the newest revision of the storage as Helm does: it is written
// as another one.
func (m *fakeWorld) change(status common.Status) *helmrelease.Release {
	last := *m.stored[len(m.stored)-1]
	info := *last.Info
	info.Status = status
	last.Info = &info
	m.stored[len(m.stored)-1] = &last
	m.writes++
	return &last
}

// memoryHelm is one action of Helm's.
type memoryHelm struct {
	*fakeWorld
	run   *run
	wrote func(*helmrelease.Release)
	keeps *verdicts
}

func (h *memoryHelm) take(a Action) (common.Status, error) {
	h.taken = append(h.taken, string(a))
	if err := h.fails[a]; err != nil {
		return common.StatusFailed, err
	}
	return common.StatusDeployed, nil
}

func (h *memoryHelm) make(a Action, c *chart.Metadata, values map[string]any) error {
	status, err := h.take(a)
	if n := len(h.stored); a != Install && n > 0 && h.stored[n-1].Info.Status == common.StatusUninstalling {
		return driver.NewErrNoDeployedReleases(h.run.name)
	}
	if err != nil && h.lost {
		return err
	}
	if n := len(h.stored); n > 0 && h.stored[n-1].Info.Status == common.StatusDeployed && err == nil {
		h.wrote(h.change(common.StatusSuperseded))
	}
	if a == Install {
		// As Helm does before it creates anything.
		h.wrote(h.add(h.run.name, h.run.namespace, c, values, common.StatusPendingInstall))
		h.wrote(h.change(status))
		return err
	}
	h.wrote(h.add(h.run.name, h.run.namespace, c, values, status))
	return err
}

func (h *memoryHelm) install(context.Context) error {
	return h.make(Install, &chart.Metadata{Name: h.run.req.Chart.Name, Version: h.run.req.Chart.Version}, h.run.req.Values)
}

func (h *memoryHelm) upgrade(ctx context.Context) error {
	values := h.run.req.Values
	if n := len(h.stored); n > 0 && h.run.obj.GetUpgrade().PreserveValues {
		values = util.CoalesceTables(sandbox.CopyValues(values), sandbox.CopyValues(h.stored[n-1].Config))
	}
	if err := h.make(Upgrade, &chart.Metadata{Name: h.run.req.Chart.Name, Version: h.run.req.Chart.Version}, values); err != nil {
		return err
	}
	h.keeps = h.run.guard.judgeAll(ctx, h.drops, nil)
	_, errs := h.run.guard.deleteAll(ctx, h.keeps, h.keeps.deletable, metav1.DeletePropagationBackground)
	return errors.Join(errs...)
}

func (h *memoryHelm) rollback(to *v2.Snapshot) error {
	rel, err := h.read(context.Background(), "", to.Name, to.Version)
	if err != nil {
		return err
	}
	return h.make(Rollback, rel.Chart.Metadata, rel.Config)
}

func (h *memoryHelm) test() (*helmrelease.Release, error) {
	_, err := h.take(Test)
	rel := h.change(h.stored[len(h.stored)-1].Info.Status)
	phase := helmrelease.HookPhaseSucceeded
	if err != nil {
		phase = helmrelease.HookPhaseFailed
	}
	rel.Hooks = []*helmrelease.Hook{{Name: "t", Events: []helmrelease.HookEvent{helmrelease.HookTest}, LastRun: helmrelease.HookExecution{Phase: phase}}}
	h.wrote(rel)
	return rel, err
}

func (h *memoryHelm) uninstall(string) (*helmrelease.Release, error) {
	_, err := h.take(Uninstall)
	switch {
	case len(h.stored) == 0:
		return nil, driver.ErrReleaseNotFound
	case err != nil && h.lost:
		return h.stored[len(h.stored)-1], err
	case err != nil:
		// Helm stores that it began, and returns no release if an object could not be deleted.
		h.wrote(h.change(common.StatusUninstalling))
		return nil, err
	}
	rel := h.change(common.StatusUninstalled)
	h.wrote(rel)
	return rel, nil
}

func (h *memoryHelm) begun(*helmrelease.Release) error {
	h.wrote(h.change(common.StatusUninstalling))
	return nil
}

func (h *memoryHelm) unlock() (common.Status, *helmrelease.Release, error) {
	was := h.stored[len(h.stored)-1].Info.Status
	if _, err := h.take(Unlock); err != nil {
		return was, h.stored[len(h.stored)-1], err
	}
	rel := h.change(common.StatusFailed)
	h.wrote(rel)
	return was, rel, nil
}

func (h *memoryHelm) rehearse(context.Context, Action) (*helmrelease.Release, error) {
	return &helmrelease.Release{Name: h.run.name, Namespace: h.run.namespace, Manifest: h.manifest}, h.unrendered
}

func (h *memoryHelm) spared() *verdicts              { return h.keeps }
func (h *memoryHelm) withLogs(message string) string { return message }

// inMemory is the cluster of a guard.
type inMemory struct{ *fakeWorld }

func (m inMemory) Looks([]inventory.Entry, bool) apply.Look {
	m.passes++
	return func(_ context.Context, e inventory.Entry) (inventory.Live, map[string]string, map[string]string) {
		annotations := map[string]string{}
		if m.kept[e.Name] {
			annotations[kube.ResourcePolicyAnno] = kube.KeepPolicy
		}
		return m.live[e.Name], map[string]string{}, annotations
	}
}

func (m inMemory) Creation(context.Context, []*unstructured.Unstructured, *inventory.FirstSync) (*inventory.Creation, error) {
	return m.creation, nil
}

func (m inMemory) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	u, whole := o.(*unstructured.Unstructured)
	if !whole {
		return nil
	}
	if err := m.unread[u.GetKind()]; err != nil {
		return err
	}
	for _, there := range m.objects {
		if there.GroupVersionKind() == u.GroupVersionKind() && client.ObjectKeyFromObject(there) == key {
			there.DeepCopyInto(u)
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: u.GroupVersionKind().Group, Resource: u.GetKind()}, key.Name)
}

func (m inMemory) InServed(kind schema.GroupKind, read func(*meta.RESTMapping) error) error {
	return read(&meta.RESTMapping{GroupVersionKind: kind.WithVersion("v1beta2"), Scope: meta.RESTScopeNamespace})
}

func (m inMemory) Confirm(_ context.Context, e inventory.Entry, version, _ string) (string, error) {
	l := m.live[e.Name]
	l.Confirmed = true
	m.live[e.Name] = l
	return version, m.fenced
}

func (m inMemory) DeleteAt(_ context.Context, e inventory.Entry, _, _ string, _ metav1.DeletionPropagation) error {
	if m.fenced != nil {
		return m.fenced
	}
	m.deleted = append(m.deleted, e.Name)
	l := m.live[e.Name]
	l.Deleting, l.Since = true, at
	if !m.lingers[e.Name] {
		l = inventory.Live{State: inventory.Absent}
	}
	m.live[e.Name] = l
	return nil
}

// TearDown takes all that is being deleted for Clusters.
func (m inMemory) TearDown(_ context.Context, e inventory.Entry, _ time.Time, remove func() error) (string, error) {
	for name, l := range m.live {
		if l.Deleting && name != e.Name {
			return "Cluster/apps/" + name, nil
		}
	}
	return "", remove()
}

func (m inMemory) MayDelete() error { return m.fenced }

// events are the reasons of what was told so far.
func events(n *run) string {
	var reasons []string
	for recorder := n.Events.(*record.FakeRecorder); ; {
		select {
		case e := <-recorder.Events:
			reasons = append(reasons, strings.Fields(e)[1])
		default:
			return strings.Join(reasons, " ")
		}
	}
}

// named is an entry of a kind, by a short name.
func named(kind, name string) inventory.Entry {
	e := inventory.Entry{Namespace: "apps", Name: name, Kind: kind, Version: "v1"}
	switch kind {
	case "Cluster":
		e.Group, e.Version = clusterapi.Group, "v1beta2"
	case "Widget":
		e.Group = widgets
	case "HelmRelease":
		e.Group, e.Version = v2.GroupVersion.Group, v2.GroupVersion.Version
	}
	return e
}

// manifestOf declares objects of the core group.
func manifestOf(entries ...inventory.Entry) string {
	var b strings.Builder
	for _, e := range entries {
		version := e.Version
		if e.Group != "" {
			version = e.Group + "/" + e.Version
		}
		fmt.Fprintf(&b, "---\napiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: apps}\n", version, e.Kind, e.Name)
	}
	return b.String()
}

// owned is an object that the cluster shows as the release's.
func owned(change func(*inventory.Live)) inventory.Live {
	l := inventory.Live{State: inventory.Present, Owned: true}
	if change != nil {
		change(&l)
	}
	return l
}

// inSync returns a HelmRelease and a world in which its release is as declared.
func inSync(t *testing.T) (*v2.HelmRelease, *fakeWorld) {
	t.Helper()
	obj := &v2.HelmRelease{}
	obj.Name, obj.Namespace, obj.Generation, obj.UID = "web", "apps", 3, "u"
	obj.Status.ObservedGeneration = 3
	m := &fakeWorld{fails: map[Action]error{}, live: map[string]inventory.Live{}}
	if out, err := m.newRun(obj, wanted).reconcile(t.Context()); err != nil || out != (Outcome{}) {
		t.Fatalf("cannot install: %v %v", out, err)
	}
	m.taken = nil
	return obj, m
}
