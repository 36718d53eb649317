package kustomization

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/object"
	helmv2 "github.com/fluxcd/helm-controller/api/v2"
	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/ssa"
	"github.com/google/go-cmp/cmp"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/remote/rollout"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/render"
	"github.com/cascade-gitops/cascade/syncer/source"
	"github.com/cascade-gitops/cascade/syncer/status"
)

// TestComposition: what is in place of each Cluster, and what it may not have, for who
// decides.
func TestComposition(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	plane := "spec: {controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: NAME}}"
	r := &tier{t: t}
	r.rollout("waves", nil)
	r.child("pinned", "waves="+r1)
	r.child("waits")
	r.child("late", "waves="+r2)
	r.child("missing", "waves=main@sha1:9")
	for _, name := range []string{"pinned", "late"} {
		r.cluster(name, strings.ReplaceAll(plane, "NAME", name))
		r.objects = append(r.objects, controlPlane(name, "v1.35.1"))
	}
	s := r.take(func(k *kustomizev1.Kustomization) {
		k.Status.Inventory = refs(entriesOf("pinned", "waits", "late", "missing", "removed"))
		k.Status.LastAppliedRevision = "main@sha1:0"
	})
	name := s.name()
	if s.Composed(name) != nil {
		t.Error("something is composed before it was built")
	}
	told := 0
	s.OnComposed(func(types.NamespacedName) { told++ })
	all := []string{"pinned=v1.35.1", "waits=v1.35.1", "late=v1.35.1", "missing=v1.35.1"}
	if end := s.composes(t, fleetOf(t, r2, "pinned=v1.37.0", "waits=v1.36.0", "late=v1.36.0", "missing=v1.36.0"), fleetOf(t, r1, all...)); end != nil {
		t.Fatalf("it ended as %+v", end)
	}
	s.noteComposition(s.run, false)
	if got := s.Composed(name).Applied(types.NamespacedName{Namespace: "apps", Name: "pinned"}); got != "" {
		t.Errorf("before it was applied, %q was", got)
	}
	s.noteComposition(s.run, true)
	c := s.Composed(name)
	applied := map[string]string{}
	for _, name := range []string{"pinned", "waits", "late", "missing", "other"} {
		applied[name] = c.Applied(types.NamespacedName{Namespace: "apps", Name: name})
	}
	// late waits for its workers, and missing for its revision.
	if diff := cmp.Diff(map[string]string{"pinned": r1, "waits": "main@sha1:0", "late": "", "missing": "", "other": ""}, applied); diff != "" {
		t.Errorf("applied is: -want, +got:\n%s", diff)
	}
	for name, want := range map[string]bool{"pinned": true, "removed": true, "other": false} {
		if got := c.Declares(types.NamespacedName{Namespace: "apps", Name: name}); got != want {
			t.Errorf("it declares %s: %t", name, got)
		}
	}
	if !c.Built(r1) || !c.Built(r2) || c.Built("main@sha1:9") {
		t.Error("built are other revisions than those of which there are renderings")
	}
	var refused *rollout.VersionError
	pinned, removed := types.NamespacedName{Namespace: "apps", Name: "pinned"}, types.NamespacedName{Namespace: "apps", Name: "removed"}
	if !c.Removes(removed, r2) || c.Removes(pinned, r2) || c.Removes(removed, "main@sha1:9") {
		t.Error("what the newest revision takes away is another Cluster than the one which it has no more")
	}
	if err := c.Refused(t.Context(), pinned, r2); !errors.As(err, &refused) || refused.Cluster != pinned || refused.From != "v1.35.1" || refused.To != "v1.37.0" {
		t.Errorf("a step over a minor version is refused with %v", err)
	}
	if err := errors.Join(c.Refused(t.Context(), pinned, r1), c.Refused(t.Context(), pinned, "main@sha1:9")); err != nil {
		t.Errorf("a step to what runs, or to what nobody knows, is refused: %v", err)
	}
	if diff := cmp.Diff([]string{"fleet"}, c.Paths()); diff != "" || c.Source() != sourceKey(s.Obj) || told != 2 {
		t.Errorf("it reads %v of %v, and %d were told", c.Paths(), c.Source(), told)
	}
}

// TestAppliedByCluster: a Cluster of which all is applied has its revision, whatever is wrong with others; one of which a
// part is applied has none until the rest is, so that what it had before is not taken for what it gets back.
func TestAppliedByCluster(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	r := &tier{t: t}
	r.rollout("waves", nil)
	for _, name := range []string{"whole", "untouched", "part"} {
		r.child(name, "waves="+r1)
		r.cluster(name, "")
	}
	s := r.take(nil)
	newest := fleetOf(t, r2, "whole=v1.36.0", "untouched=v1.36.0", "part=v1.36.0", "new=v1.36.0")
	older := fleetOf(t, r1, "whole=v1.35.0", "untouched=v1.35.0", "part=v1.35.0")
	compose := func() {
		t.Helper()
		if end := s.composes(t, newest, older); end != nil {
			t.Fatalf("it ended as %+v", end)
		}
	}
	compose()
	s.noteComposition(s.run, true)
	for _, name := range []string{"whole", "untouched", "part"} {
		child := &v1alpha1.Child{}
		if err := s.client.Get(t.Context(), types.NamespacedName{Namespace: "apps", Name: name}, child); err != nil {
			t.Fatal(err)
		}
		child.Status.Rollouts[0].Revision = r2
		s.updates(t, child)
	}
	compose()
	s.run.sync = &apply.Result{Changes: ssa.NewChangeSet()}
	for _, u := range s.rendering.Objects {
		if name := u.GetName(); name == "whole" || name == "new" || name == "part" && u.GetKind() == "LocalControlPlane" {
			s.run.sync.Changes.Add(ssa.ChangeSetEntry{ObjMetadata: object.UnstructuredToObjMetadata(u), GroupVersion: u.GroupVersionKind().Version, Action: ssa.ConfiguredAction})
		}
	}
	s.noteComposition(s.run, false)
	c := s.Composed(s.name())
	for name, want := range map[string]struct{ applied, why string }{
		"whole":     {r2, ""},
		"new":       {r2, ""},
		"untouched": {r1, "the Kustomization could not apply Cluster untouched, LocalControlPlane untouched, MachineDeployment untouched, see its status"},
		"part":      {"", "the Kustomization could not apply Cluster part, MachineDeployment part, see its status"},
	} {
		cluster := types.NamespacedName{Namespace: "apps", Name: name}
		if c.Applied(cluster) != want.applied || c.Unapplied(cluster) != want.why {
			t.Errorf("%s is at %q: %q, want %+v", name, c.Applied(cluster), c.Unapplied(cluster), want)
		}
	}
	s.noteComposition(s.run, true)
	if c := s.Composed(s.name()); c.Applied(types.NamespacedName{Namespace: "apps", Name: "part"}) != r2 || c.Unapplied(types.NamespacedName{Namespace: "apps", Name: "part"}) != "" {
		t.Error("what is applied by now is not")
	}
}

// TestGoingByCluster: a Cluster does not have its revision before what that takes away is deleted, which is held while
// something of others is not in place.
func TestGoingByCluster(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	r := &tier{t: t}
	r.rollout("waves", nil)
	r.child("a", "waves="+r2)
	r.child("behind", "waves="+r1)
	r.cluster("a", "")
	r.cluster("behind", "")
	old := inventory.Entry{Namespace: "apps", Name: "a-old", Kind: "ConfigMap", Version: "v1"}
	s := r.take(func(k *kustomizev1.Kustomization) { k.Status.Inventory = refs(append(entriesOf("a", "behind"), old)) })
	files := filesOf(r1, "a=v1.35.0", "behind=v1.35.0")
	files["fleet/old.yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: apps, name: a-old, labels: {cluster.x-k8s.io/cluster-name: a}}\n"
	if end := s.composes(t, fleetOf(t, r2, "a=v1.36.0", "behind=v1.36.0"), snapshotAt(t, r1, files)); end != nil {
		t.Fatalf("it ended as %+v", end)
	}
	s.run.sync = &apply.Result{Changes: ssa.NewChangeSet()}
	for _, u := range s.rendering.Objects {
		s.run.sync.Changes.Add(ssa.ChangeSetEntry{ObjMetadata: object.UnstructuredToObjMetadata(u), GroupVersion: u.GroupVersionKind().Version, Action: ssa.UnchangedAction})
	}
	a := types.NamespacedName{Namespace: "apps", Name: "a"}
	s.noteComposition(s.run, false)
	if c := s.Composed(s.name()); c.Applied(a) == r2 || !strings.Contains(c.Unapplied(a), "ConfigMap a-old") {
		t.Errorf("it is at %q: %q", c.Applied(a), c.Unapplied(a))
	}
	s.noteComposition(s.run, true)
	if c := s.Composed(s.name()); c.Applied(a) != r2 {
		t.Errorf("all is in place, and it is at %q", c.Applied(a))
	}
}

// TestReleaseGoes: a Cluster is declared for as long as the HelmRelease that makes it is in place, or it may have a revision
// which is not there yet: its Rollout would take back what it let it have, and all that goes would stay for good.
func TestReleaseGoes(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	release := inventory.Entry{Namespace: "apps", Name: "prod", Group: helmv2.GroupVersion.Group, Kind: helmv2.HelmReleaseKind, Version: helmv2.GroupVersion.Version}
	for name, tc := range map[string]struct {
		reason   string
		cluster  string
		pin      string
		made     string
		owned    []inventory.Entry
		declares bool
	}{
		"Made":    {"its HelmRelease tells that it made it", "a", r2, "a", []inventory.Entry{release}, true},
		"Untold":  {"its HelmRelease has its name, and tells nothing", "prod", r2, "", []inventory.Entry{release}, true},
		"Awaited": {"an agent that began anew has not fetched what it may have", "a", r1, "", nil, true},
		"Gone":    {"nothing of it is left", "a", r2, "a", nil, false},
		"Others":  {"the HelmRelease makes another one", "a", r2, "c", []inventory.Entry{release}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("waves", nil)
			r.child("b", "waves="+r2)
			r.cluster("b", "")
			r.child(tc.cluster, "waves="+tc.pin)
			r.cluster(tc.cluster, "")
			h := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "prod"}}
			if tc.made != "" {
				h.Status.Inventory = &helmv2.ResourceInventory{Entries: []helmv2.ResourceRef{{ID: "apps_" + tc.made + "_cluster.x-k8s.io_Cluster", Version: "v1beta2"}}}
			}
			r.objects = append(r.objects, h)
			s := r.take(func(k *kustomizev1.Kustomization) { k.Status.Inventory = refs(append(entriesOf("b"), tc.owned...)) })
			if end := s.composes(t, fleetOf(t, r2, "b=v1.36.0")); end != nil {
				t.Fatalf("it ended as %+v", end)
			}
			s.noteComposition(s.run, false)
			if got := s.Composed(s.name()).Declares(types.NamespacedName{Namespace: "apps", Name: tc.cluster}); got != tc.declares {
				t.Errorf("%s: it is declared: %t, held are %v", tc.reason, got, s.composed.held)
			}
			if slices.Contains(s.composed.kept, release) {
				t.Error("the HelmRelease stays")
			}
		})
	}
}

// TestOthersCluster: a Cluster that the Kustomization has nothing of, and of which its Rollout therefore says nothing, keeps
// none of it waiting.
func TestOthersCluster(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	r := &tier{t: t}
	r.rollout("waves", nil)
	r.child("a", "waves="+r2)
	r.child("new")
	r.child("self") // of this tier, made by hand
	r.cluster("a", "")
	r.cluster("other", "") // of another Kustomization
	old := inventory.Entry{Namespace: "apps", Name: "old", Kind: "ConfigMap", Version: "v1"}
	for name, declared := range map[string][]string{"Nothing": {"a=v1.36.0"}, "Declared": {"a=v1.36.0", "new=v1.36.0"}} {
		t.Run(name, func(t *testing.T) {
			s := r.take(func(k *kustomizev1.Kustomization) {
				k.Status.Inventory = refs(append(entriesOf("a"), old))
				k.Status.LastAppliedRevision = r1
			})
			if end := s.composes(t, fleetOf(t, r2, declared...)); end != nil {
				t.Fatalf("it ended as %+v", end)
			}
			waits := len(declared) > 1
			if len(s.composed.held) > 0 != waits || s.run.governed.waits() != waits || slices.Contains(s.composed.kept, old) != waits {
				t.Errorf("held are %v, kept %v", s.composed.held, s.composed.kept)
			}
			if s.run.noteRevision(); (s.Obj.Status.LastAppliedRevision == r2) == waits {
				t.Errorf("applied is %s", s.Obj.Status.LastAppliedRevision)
			}
		})
	}
}

// TestIdle: while neither the newest revision nor another one builds, or the Kustomization is suspended, what Clusters are
// given does not reach them, which is told, and since when it does.
func TestIdle(t *testing.T) {
	const r1, r2, r3, r4 = "main@sha1:1", "main@sha1:2", "main@sha1:3", "main@sha1:4"
	r := &tier{t: t}
	r.rollout("waves", nil)
	r.child("a", "waves="+r1)
	r.child("b", "waves="+r1)
	s := r.take(nil)
	older := []*source.Snapshot{fleetOf(t, r1, "a=v1.35.0", "b=v1.35.0"), fleetOf(t, r2, "a=v1.36.0", "b=v1.36.0")}
	a, b := types.NamespacedName{Namespace: "apps", Name: "a"}, types.NamespacedName{Namespace: "apps", Name: "b"}
	told := 0
	s.OnComposed(func(types.NamespacedName) { told++ })
	reconcile := func(newest *source.Snapshot) (ended bool) {
		t.Helper()
		s.run.composes = false
		if ended = s.composes(t, newest, older...) != nil; !ended {
			s.noteComposition(s.run, true)
		}
		s.idles(s.run)
		return ended
	}
	if reconcile(older[1]); s.Composed(s.name()).Idle() != "" || told != 1 {
		t.Fatalf("it idles: %q", s.Composed(s.name()).Idle())
	}
	child := &v1alpha1.Child{}
	if err := s.client.Get(t.Context(), a, child); err != nil {
		t.Fatal(err)
	}
	child.Status.Rollouts[0].Revision = r2
	s.updates(t, child)
	s.Obj.Spec.PostBuild = &kustomizev1.PostBuild{Substitute: map[string]string{"variable": "other"}} // with which nothing was built before
	if !reconcile(fleetOf(t, r3, "bad={")) {
		t.Fatal("it builds")
	}
	c := s.Composed(s.name())
	if is, _ := c.Reached(a, r2); is || !strings.HasPrefix(c.Idle(), meta.BuildFailedReason+": ") || told != 2 {
		t.Errorf("it idles: %q; a is reached: %t, %d were told", c.Idle(), is, told)
	}
	for range 2 { // and it stays so
		s.now = s.now.Add(time.Hour)
		if reconcile(fleetOf(t, r4, "a=v1.37.0", "b=v1.37.0")) {
			t.Fatal("it does not build")
		}
	}
	c = s.Composed(s.name())
	if is, since := c.Reached(a, r2); !is || !since.Equal(noon.Add(time.Hour)) || c.Idle() != "" {
		t.Errorf("a is reached: %t, since %s; it idles: %q", is, since, c.Idle())
	}
	if is, since := c.Reached(b, r1); !is || !since.IsZero() {
		t.Errorf("b is reached: %t, since %s, and nothing was new of it", is, since)
	}
	live := &kustomizev1.Kustomization{}
	if err := s.client.Get(t.Context(), s.name(), live); err != nil {
		t.Fatal(err)
	}
	live.Spec.Suspend = true
	if err := s.client.Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.name()}); err != nil {
		t.Fatal(err)
	}
	if got := s.Composed(s.name()).Idle(); got != "it is suspended" {
		t.Errorf("it idles: %q", got)
	}
}

// TestUnread: what a Cluster is given does not reach it while its control plane cannot be read, which is told, and since when it
// does. What reached it before that stands.
func TestUnread(t *testing.T) {
	const r2 = "main@sha1:2"
	r := &tier{t: t}
	ofPlanes("a", "b")(r)
	r.child("late", "waves="+r2)
	r.cluster("late", "spec: {controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: late}}")
	r.objects = append(r.objects, controlPlane("late", "v1.35.3"))
	s := r.take(func(k *kustomizev1.Kustomization) { k.Status.Inventory = refs(entriesOf("a", "b", "late")) })
	down := ""
	s.Targets.Local.Client = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if key.Name == down && obj.GetObjectKind().GroupVersionKind().Kind == "LocalControlPlane" {
				return errors.New("conversion webhook is down")
			}
			return c.Get(ctx, key, obj, opts...)
		},
	})
	for _, look := range []struct {
		down    string
		reached map[string]time.Time
	}{
		{"b", map[string]time.Time{"a": {}, "late": {}}},
		{"b", map[string]time.Time{"a": {}, "late": {}}},
		{"late", map[string]time.Time{"a": {}, "b": noon.Add(2 * time.Hour), "late": {}}},
		{"", map[string]time.Time{"a": {}, "b": noon.Add(2 * time.Hour), "late": {}}},
	} {
		down = look.down
		if end := s.composes(t, fleetOf(t, r2, "a=v1.36.0", "b=v1.36.0", "late=v1.36.0")); end != nil {
			t.Fatalf("it ended as %+v", end)
		}
		s.noteComposition(s.run, true)
		c := s.Composed(s.name())
		for _, name := range []string{"a", "b", "late"} {
			of := types.NamespacedName{Namespace: "apps", Name: name}
			want, reached := look.reached[name]
			if is, since := c.Reached(of, r2); is != reached || !since.Equal(want) {
				t.Errorf("while %q is down, %s is reached: %t, since %s", down, name, is, since)
			}
			if why := c.Unread(of); strings.HasSuffix(why, "conversion webhook is down") != (name == down) {
				t.Errorf("while %q is down, of %s it says %q", down, name, why)
			}
		}
		s.now = s.now.Add(time.Hour)
	}
}

// TestStandIn: while the newest revision cannot be built, the one that was built last stands in for it, and Clusters get
// what they may have.
func TestStandIn(t *testing.T) {
	const r1, r2, r3 = "main@sha1:1", "main@sha1:2", "main@sha1:3"
	r := &tier{t: t}
	r.rollout("waves", nil)
	r.child("a", "waves="+r1)
	r.child("b", "waves="+r1)
	s := r.take(nil)
	older := []*source.Snapshot{fleetOf(t, r1, "a=v1.35.0", "b=v1.35.0"), fleetOf(t, r2, "a=v1.36.0", "b=v1.36.0")}
	bad := fleetOf(t, r3, "bad={")
	if end := s.composes(t, older[1], older...); end != nil {
		t.Fatalf("it ended as %+v", end)
	}
	s.noteComposition(s.run, true)
	a := types.NamespacedName{Namespace: "apps", Name: "a"}
	for _, pin := range []string{r2, r1} { // which is taken back
		child := &v1alpha1.Child{}
		if err := s.client.Get(t.Context(), a, child); err != nil {
			t.Fatal(err)
		}
		child.Status.Rollouts[0].Revision = pin
		s.updates(t, child)
		applied := ""
		s.cluster.sync = func(context.Context, apply.Options) (apply.Result, error) {
			if applied = s.applies(); !s.Reconciler.current(s.run, &source.View{}) {
				t.Error("what it no longer declares would stay")
			}
			return apply.Result{Changes: ssa.NewChangeSet(), Complete: true}, nil
		}
		s.run = newRun(s.run.Record, s.run.known, s.now)
		end := s.composes(t, bad, older...)
		s.idles(s.run)
		if ready := apimeta.FindStatusCondition(s.Obj.Status.Conditions, meta.ReadyCondition); end == nil || ready == nil || ready.Reason != meta.BuildFailedReason || s.Obj.Status.LastAttemptedRevision != r3 {
			t.Errorf("it ended as %+v, and says %+v of %s", end, ready, s.Obj.Status.LastAttemptedRevision)
		}
		value := map[string]string{r1: "v1.35.0", r2: "v1.36.0"}[pin]
		want := "Cluster/a at " + pin + ", Cluster/b at main@sha1:1, ConfigMap/common main@sha1:2, LocalControlPlane/a " + value + ", LocalControlPlane/b v1.35.0"
		if diff := cmp.Diff(want, applied); diff != "" {
			t.Errorf("applied is: -want, +got:\n%s", diff)
		}
		if c := s.Composed(s.name()); c.Applied(a) != pin || c.Idle() != "" || c.Built(r3) {
			t.Errorf("a is at %q, it idles: %q", c.Applied(a), c.Idle())
		}
	}
	if s.Sources.Snapshots.Retain(source.Holder{Kind: "Test"}); s.Sources.Snapshots.At(sourceKey(s.Obj), r2) == nil {
		t.Error("what stands in is not kept")
	}
}

// TestStandInAfterRestart: a process that begins with a revision that cannot be built has the one stand in that the one before it
// built last, of the same source and with the same inputs, once it has fetched that.
func TestStandInAfterRestart(t *testing.T) {
	const r1, r2, r3 = "main@sha1:1", "main@sha1:2", "main@sha1:3"
	older := []*source.Snapshot{fleetOf(t, r1, "a=v1.35.0", "b=v1.35.0"), fleetOf(t, r2, "a=v1.36.0", "b=v1.36.0")}
	bad, a := fleetOf(t, r3, "bad={"), types.NamespacedName{Namespace: "apps", Name: "a"}
	for name, tc := range map[string]struct {
		reason string
		change func(*kustomizev1.Kustomization)
		// late: the revision is fetched again first.
		late, want bool
	}{
		"Same": {reason: "nothing else changed", change: func(*kustomizev1.Kustomization) {}, want: true},
		"Late": {reason: "its revision is not there yet", change: func(*kustomizev1.Kustomization) {}, late: true, want: true},
		"Path": {reason: "nothing was composed of the path", change: func(k *kustomizev1.Kustomization) { k.Spec.Path = "./" }},
		"Values": {reason: "nor with these values", change: func(k *kustomizev1.Kustomization) {
			k.Spec.PostBuild = &kustomizev1.PostBuild{Substitute: map[string]string{"x": "y"}}
		}},
		"Source": {reason: "nor of this source", change: func(k *kustomizev1.Kustomization) { k.Spec.SourceRef.Name = "other" }},
		"Without": {reason: "no Rollout was heeded by then", change: func(k *kustomizev1.Kustomization) {
			k.Status.History[0].Metadata = map[string]string{"revision": r2}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("waves", nil)
			r.child("a", "waves="+r1)
			r.child("b", "waves="+r1)
			before := r.take(nil)
			if end := before.composes(t, older[1], older...); end != nil {
				t.Fatalf("it ended as %+v", end)
			}
			before.noteApplied(before.run, meta.ReconciliationSucceededReason)
			s := r.take(func(k *kustomizev1.Kustomization) {
				k.Status = *before.Obj.Status.DeepCopy()
				tc.change(k)
			})
			pin, applied := r1, ""
			if !tc.late { // else no Cluster needs it
				child := &v1alpha1.Child{}
				if err := s.client.Get(t.Context(), a, child); err != nil {
					t.Fatal(err)
				}
				pin = r2 // the run went on
				child.Status.Rollouts[0].Revision = pin
				s.updates(t, child)
			}
			s.cluster.sync = func(context.Context, apply.Options) (apply.Result, error) {
				applied = s.applies()
				return apply.Result{Changes: ssa.NewChangeSet(), Complete: true}, nil
			}
			if tc.late {
				if end := s.composes(t, bad, older[0]); end == nil || applied != "" {
					t.Fatalf("it ended as %+v, and applied is %s", end, applied)
				}
				if _, missing := s.Sources.Snapshots.Retained(sourceKey(s.Obj)); !slices.Contains(missing, r2) {
					t.Errorf("%s: %v are fetched", tc.reason, missing)
				}
				s.run = newRun(s.run.Record, s.run.known, s.now)
			}
			if end := s.composes(t, bad, older...); end == nil || s.Obj.Status.LastAttemptedRevision != r3 {
				t.Errorf("%s: it ended as %+v, and says that %s was tried", tc.reason, end, s.Obj.Status.LastAttemptedRevision)
			}
			want := ""
			if tc.want {
				value := map[string]string{r1: "v1.35.0", r2: "v1.36.0"}[pin]
				want = "Cluster/a at " + pin + ", Cluster/b at main@sha1:1, ConfigMap/common main@sha1:2, LocalControlPlane/a " + value + ", LocalControlPlane/b v1.35.0"
			}
			if diff := cmp.Diff(want, applied); diff != "" {
				t.Errorf("%s: applied is: -want, +got:\n%s", tc.reason, diff)
			}
			if tc.want && s.Composed(s.name()).Applied(a) != pin {
				t.Errorf("%s: a is at %q", tc.reason, s.Composed(s.name()).Applied(a))
			}
		})
	}
}

// TestReachedAfterRestart: what a process does not find in place when it begins reaches the Cluster only then: the one before
// may have composed nothing for hours. What it finds there is as old as its pin.
func TestReachedAfterRestart(t *testing.T) {
	const r2, r3 = "main@sha1:2", "main@sha1:3"
	for name, tc := range map[string]struct {
		reason string
		action ssa.Action
		// incomplete: nothing of it could be applied. late: its revision is fetched again first.
		incomplete, late bool
		now              bool
	}{
		"Sent":    {reason: "it is applied now", action: ssa.ConfiguredAction, now: true},
		"Found":   {reason: "it was there", action: ssa.UnchangedAction},
		"Refused": {reason: "nothing of it is there yet", incomplete: true, now: true},
		"Fetched": {reason: "it is applied once its revision is there", action: ssa.ConfiguredAction, late: true, now: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("waves", nil)
			r.child("a", "waves="+r2)
			r.cluster("a", "")
			s := r.take(func(k *kustomizev1.Kustomization) { k.Status.Inventory = refs(entriesOf("a")) })
			newest, older := fleetOf(t, r3, "a=v1.37.0"), []*source.Snapshot{fleetOf(t, r2, "a=v1.36.0")}
			if tc.late {
				if end := s.composes(t, newest); end != nil {
					t.Fatalf("%s: it ended as %+v", tc.reason, end)
				}
				s.noteComposition(s.run, true)
			}
			if end := s.composes(t, newest, older...); end != nil {
				t.Fatalf("%s: it ended as %+v", tc.reason, end)
			}
			s.run.sync = &apply.Result{Changes: ssa.NewChangeSet()}
			for _, u := range s.rendering.Objects {
				if !tc.incomplete {
					s.run.sync.Changes.Add(ssa.ChangeSetEntry{ObjMetadata: object.UnstructuredToObjMetadata(u), GroupVersion: u.GroupVersionKind().Version, Action: tc.action})
				}
			}
			want := time.Time{}
			if tc.now {
				want = s.now
			}
			for range 2 { // and it stays so
				s.noteComposition(s.run, !tc.incomplete)
				is, since := s.Composed(s.name()).Reached(types.NamespacedName{Namespace: "apps", Name: "a"}, r2)
				if !is || !since.Equal(want) {
					t.Errorf("%s: it is reached: %t, since %s, want %s", tc.reason, is, since, want)
				}
				s.now = s.now.Add(time.Minute)
			}
		})
	}
}

// TestRefusesGood: what many would go back to is judged when no Cluster has it any more.
func TestRefusesGood(t *testing.T) {
	const good, bad = "main@sha1:1", "main@sha1:2"
	const plane = "controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: a}"
	topology := func(version string) string { return "topology: {classRef: {name: big}, version: " + version + "}" }
	for name, tc := range map[string]struct {
		reason    string
		class     bool
		good, bad string
		reported  string
		from      string // from which it is refused
	}{
		"Minor":    {"a control plane does not go back", false, "v1.30.0", "v1.31.0", "v1.31.0", "v1.31.0"},
		"Patch":    {"but for patches", false, "v1.36.2", "v1.36.4", "v1.36.4", ""},
		"Class":    {"which Cluster API refuses a topology, whoever declares them", true, "v1.36.2", "v1.36.4", "v1.36.4", "v1.36.4"},
		"Underway": {"it compares with what the topology was told, and not with what runs", true, "v1.35.2", "v1.36.0", "v1.35.2", "v1.36.0"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("waves", func(o *v1alpha1.Rollout) {
				o.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: v1alpha1.RolloutRevision{Revision: good}}
			})
			r.child("a", "waves="+good)
			before, after, live := fleetOf(t, good, "a="+tc.good), fleetOf(t, bad, "a="+tc.bad), "spec: {"+plane+"}"
			if tc.class {
				of := func(version string) map[string]string {
					return map[string]string{"fleet/a.yaml": "apiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\nmetadata: {namespace: apps, name: a}\nspec: {" + topology(version) + "}\n"}
				}
				before, after, live = snapshotAt(t, good, of(tc.good)), snapshotAt(t, bad, of(tc.bad)), "spec: {"+plane+", "+topology(tc.bad)+"}"
			}
			r.cluster("a", live)
			r.objects = append(r.objects, controlPlane("a", tc.reported))
			s := r.take(nil)
			a := types.NamespacedName{Namespace: "apps", Name: "a"}
			for _, pin := range []string{good, bad} {
				child := &v1alpha1.Child{}
				if err := s.client.Get(t.Context(), a, child); err != nil {
					t.Fatal(err)
				}
				child.Status.Rollouts[0].Revision = pin
				s.updates(t, child)
				if end := s.composes(t, after, before); end != nil {
					t.Fatalf("it ended as %+v", end)
				}
				if _, held := s.composed.held[a]; held != (pin == good && tc.from != "") {
					t.Errorf("%s: at %s it is held: %+v", tc.reason, pin, s.composed.held)
				}
				s.noteComposition(s.run, true)
			}
			var refused *rollout.VersionError
			err := s.Composed(s.name()).Refused(t.Context(), a, good)
			if errors.As(err, &refused) != (tc.from != "") || refused != nil && (refused.From != tc.from || refused.To != tc.good || refused.Cluster != a) {
				t.Errorf("%s: a step back is refused with %v", tc.reason, err)
			}
		})
	}
}

func TestPathsOf(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, dir string
		reads, want []string
	}{
		"Inside":  {"a directory stands for what is in it", "./clusters", []string{"/clusters", "/clusters/a.yaml"}, []string{"clusters"}},
		"Outside": {"and not for what is beside it", "clusters/prod/", []string{"/clusters", "/clusters/prod/a.yaml", "/clusters/base/b.yaml", "/"}, []string{"clusters/prod", "clusters/base/b.yaml"}},
		"Root":    {"the root is all of it", "./", []string{"/a.yaml"}, nil},
		"None":    {"which is the default", "", []string{"/a.yaml"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, pathsOf(tc.dir, tc.reads)); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestOtherPins: only what changes the composition wakes.
func TestOtherPins(t *testing.T) {
	child := &v1alpha1.Child{Status: v1alpha1.ChildStatus{Rollouts: []v1alpha1.ChildRollout{{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: "1"}}}}}
	for name, tc := range map[string]struct {
		reason string
		change func(*v1alpha1.Child)
		want   bool
	}{
		"Pin":    {"another revision", func(c *v1alpha1.Child) { c.Status.Rollouts[0].Revision = "2" }, true},
		"Labels": {"another Rollout may select it", func(c *v1alpha1.Child) { c.Labels = map[string]string{"a": "b"} }, true},
		"Gone":   {"no pin any more", func(c *v1alpha1.Child) { c.Status.Rollouts = nil }, true},
		"Result": {"what became of it", func(c *v1alpha1.Child) { c.Status.Rollouts[0].Result = v1alpha1.ResultFailed }, false},
		"Report": {"what the child says", func(c *v1alpha1.Child) { c.Status.Version = "v1.36.0" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			after := child.DeepCopy()
			tc.change(after)
			if got := otherPins().Update(event.UpdateEvent{ObjectOld: child, ObjectNew: after}); got != tc.want {
				t.Errorf("%s: otherPins() = %t", tc.reason, got)
			}
		})
	}
}

// TestReleasesIn: a HelmRelease belongs to the Clusters that it made here.
func TestReleasesIn(t *testing.T) {
	release := func(name string, change func(*helmv2.HelmRelease)) *helmv2.HelmRelease {
		h := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}}
		h.Status.Inventory = &helmv2.ResourceInventory{Entries: []helmv2.ResourceRef{{ID: "apps_prod_cluster.x-k8s.io_Cluster", Version: "v1beta2"}}}
		if change != nil {
			change(h)
		}
		return h
	}
	s := take(t, shop(nil), release("here", nil), release("child", func(h *helmv2.HelmRelease) { h.Spec.KubeConfig = &meta.KubeConfigReference{} }),
		release("new", func(h *helmv2.HelmRelease) { h.Status.Inventory = nil }), release("other", func(h *helmv2.HelmRelease) { h.Namespace = "other" }))
	got, _, err := s.releasesIn(t.Context(), "apps")
	if err != nil {
		t.Fatal(err)
	}
	want := map[types.NamespacedName][]types.NamespacedName{{Namespace: "apps", Name: "here"}: {{Namespace: "apps", Name: "prod"}}}
	if diff := cmp.Diff(want, got.Made); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}

// TestTakenIn: what Clusters have before their Rollout gives them anything is what was applied completely last,
// whatever became of its health.
func TestTakenIn(t *testing.T) {
	const r0, r1, r2, r3 = "main@sha1:0", "main@sha1:1", "main@sha1:2", "main@sha1:3"
	failed, healthy, ill := meta.ReconciliationFailedReason, meta.ReconciliationSucceededReason, meta.HealthCheckFailedReason
	for name, tc := range map[string]struct {
		reason  string
		applied string
		// history is of attempts without a Rollout, the last one first, as revision and status.
		history []string
		// heeded are attempts with the Rollout after these.
		heeded []string
		// ours is what this process applied without one, with nothing on record of it.
		ours string
		want string
	}{
		"Healthy":      {reason: "the last one was healthy", applied: r1, history: []string{r1, healthy}, want: r1},
		"Unhealthy":    {reason: "all Clusters have what does not become healthy", applied: r1, history: []string{r2, ill, r1, healthy}, want: r2},
		"NeverHealthy": {reason: "nothing was healthy yet", history: []string{r1, ill}, want: r1},
		"Part":         {reason: "not all of them have what was applied in part", applied: r1, history: []string{r2, failed, r1, healthy}, want: r1},
		"PartAfter":    {reason: "nor what came after one that did not become healthy", applied: r0, history: []string{r2, failed, r1, ill, r0, healthy}, want: r1},
		"Waits":        {reason: "while the Rollout has given nothing, the newest is not theirs", applied: r0, history: []string{r1, ill, r0, healthy}, heeded: []string{r2, ill}, want: r1},
		"Given":        {reason: "what a Rollout gave all of them came after", applied: r1, history: []string{r0, ill}, heeded: []string{r2, ill, r1, healthy}, want: r1},
		"Awaited":      {reason: "health is waited for, of which nothing is on record", applied: r1, history: []string{r1, healthy}, ours: r2, want: r2},
		"None":         {reason: "nothing is known to be applied"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("waves", nil)
			r.child("a")
			r.cluster("a", "")
			s := r.take(func(k *kustomizev1.Kustomization) {
				k.Status.Inventory = refs(entriesOf("a"))
				k.Status.LastAppliedRevision, k.Status.LastAttemptedRevision = tc.applied, r2
				record := func(list []string, heeded bool) {
					for i := len(list) - 2; i >= 0; i -= 2 {
						status.RecordAttempt(&k.Status.History, status.Attempt{Digest: "sha256:" + list[i], Status: list[i+1], Revision: list[i], Rollouts: heeded})
					}
				}
				record(tc.history, false)
				record(tc.heeded, true)
			})
			if tc.ours != "" {
				s.snapshot = fleetOf(t, tc.ours, "a=v1.35.0")
				s.run.known.completes(s.run)
			}
			if end := s.composes(t, fleetOf(t, r3, "a=v1.36.0")); end != nil {
				t.Fatalf("%s: it ended as %+v", tc.reason, end)
			}
			s.noteComposition(s.run, true)
			a := types.NamespacedName{Namespace: "apps", Name: "a"}
			if got := s.Composed(s.name()).Applied(a); got != tc.want {
				t.Fatalf("%s: the Cluster is taken in at %q, want %q", tc.reason, got, tc.want)
			}
			// It goes on record, and then nothing changes before a run begins.
			child := &v1alpha1.Child{}
			if err := s.client.Get(t.Context(), a, child); err != nil {
				t.Fatal(err)
			}
			child.Status.Rollouts = []v1alpha1.ChildRollout{{Name: "waves", RolloutRevision: v1alpha1.RolloutRevision{Revision: tc.want}, Result: v1alpha1.ResultSucceeded}}
			if tc.want == "" {
				return
			}
			s.updates(t, child)
			if end := s.composes(t, fleetOf(t, r3, "a=v1.36.0"), fleetOf(t, tc.want, "a=v1.35.0")); end != nil {
				t.Fatalf("%s: it ended as %+v", tc.reason, end)
			}
			if !strings.Contains(s.applies(), "Cluster/a at "+tc.want) {
				t.Errorf("%s: what is applied is %s, held for %+v", tc.reason, s.applies(), s.composed.held)
			}
		})
	}
}

// TestTakenInByMark: a Cluster whose pin is gone, as its Rollout has another name now or its Child was deleted, is taken
// in at what it has: what the last Rollout let it have, and not what was composed last of others.
func TestTakenInByMark(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	for name, tc := range map[string]struct {
		reason string
		mark   string
		// release makes the Cluster, and has the mark.
		release bool
		// lost: this process applied it at its pin, which it lost since.
		lost bool
		// incomplete: something else cannot be applied.
		incomplete bool
		// conflict: the Rollout before is still there.
		conflict bool
		want     string
	}{
		"Marked":     {reason: "it is marked", mark: r1, want: r1},
		"Release":    {reason: "the HelmRelease that makes it is", mark: r1, release: true, want: r1},
		"Lost":       {reason: "this process applied it at its pin", lost: true, want: r1},
		"Incomplete": {reason: "nothing of it is touched, whatever becomes of others", mark: r1, incomplete: true, want: r1},
		"Conflict":   {reason: "which of two Rollouts it is of is not decided yet, and the one that stays is not told later", mark: r1, conflict: true, want: r1},
		"Unmarked":   {reason: "it had the newest before a Rollout came", want: r2},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("new", nil)
			r.child("a", "old="+r1)
			if tc.lost {
				r.child("a", "new="+r1)
				r.objects = slices.Delete(r.objects, 1, 2)
			}
			if tc.conflict {
				r.rollout("old", nil)
			}
			u := r.cluster("a", "")
			if tc.release {
				h := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "clusters", Annotations: map[string]string{v1alpha1.RolloutRevisionAnnotation: tc.mark}}}
				h.Status.Inventory = &helmv2.ResourceInventory{Entries: []helmv2.ResourceRef{{ID: "apps_a_cluster.x-k8s.io_Cluster", Version: "v1beta2"}}}
				r.objects = append(r.objects, h)
			} else if tc.mark != "" {
				u.SetAnnotations(map[string]string{v1alpha1.RolloutRevisionAnnotation: tc.mark})
			}
			s := r.take(func(k *kustomizev1.Kustomization) {
				k.Status.Inventory = refs(entriesOf("a"))
				k.Status.LastAppliedRevision, k.Status.LastAttemptedRevision = r2, r2
				status.RecordAttempt(&k.Status.History, status.Attempt{Digest: "sha256:x", Status: meta.ReconciliationSucceededReason, Revision: r2, Rollouts: true})
			})
			a := types.NamespacedName{Namespace: "apps", Name: "a"}
			compose := func(complete bool) {
				t.Helper()
				if end := s.composes(t, fleetOf(t, r2, "a=v1.36.0"), fleetOf(t, r1, "a=v1.35.0")); end != nil {
					t.Fatalf("%s: it ended as %+v", tc.reason, end)
				}
				s.noteComposition(s.run, complete)
			}
			compose(!tc.incomplete)
			if tc.lost {
				child := &v1alpha1.Child{}
				if err := s.client.Get(t.Context(), a, child); err != nil {
					t.Fatal(err)
				}
				child.Status.Rollouts = nil
				s.updates(t, child)
				compose(true)
			}
			if h := s.composed.held[a]; h.reason != map[bool]string{false: v1alpha1.ReasonRolloutPending, true: v1alpha1.ReasonRolloutConflict}[tc.conflict] {
				t.Fatalf("%s: it is held for %+v", tc.reason, h)
			}
			if got := s.Composed(s.name()); got.Applied(a) != tc.want || got.Untold(a) {
				t.Errorf("%s: the Cluster is taken in at %q, want %q; untold: %t", tc.reason, got.Applied(a), tc.want, got.Untold(a))
			}
		})
	}
}

// TestCreatedIsTakenIn: a Cluster that a commit makes is taken in at that commit, and not at the one before, which
// lacks it, also by a process that began since: the Cluster says what it was made from.
func TestCreatedIsTakenIn(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	r := &tier{t: t}
	r.rollout("waves", nil)
	r.child("a", "waves="+r1)
	r.cluster("a", "")
	before := func(k *kustomizev1.Kustomization) {
		k.Status.Inventory = refs(entriesOf("a"))
		k.Status.LastAppliedRevision = r1
		status.RecordAttempt(&k.Status.History, status.Attempt{Digest: "sha256:x", Status: meta.ReconciliationSucceededReason, Revision: r1, Rollouts: true})
	}
	newest, older := fleetOf(t, r2, "a=v1.36.0", "b=v1.36.0"), fleetOf(t, r1, "a=v1.35.0")
	s := r.take(before)
	if end := s.composes(t, newest, older); end != nil {
		t.Fatalf("it ended as %+v", end)
	}
	if got := s.applies(); !strings.Contains(got, "Cluster/a at "+r1) || !strings.Contains(got, "Cluster/b at "+r2) {
		t.Fatalf("what is applied is %s", got)
	}
	b, mark := types.NamespacedName{Namespace: "apps", Name: "b"}, ""
	for _, u := range s.rendering.Objects {
		if u.GetKind() == "Cluster" && u.GetName() == b.Name {
			mark = u.GetAnnotations()[v1alpha1.RolloutRevisionAnnotation]
		}
	}
	r.cluster("b", "").SetAnnotations(map[string]string{v1alpha1.RolloutRevisionAnnotation: mark})
	r.child("b")
	s = r.take(func(k *kustomizev1.Kustomization) {
		before(k)
		k.Status.Inventory = refs(entriesOf("a", "b"))
	})
	if end := s.composes(t, newest, older); end != nil {
		t.Fatalf("it ended as %+v", end)
	}
	s.noteComposition(s.run, true)
	if got := s.Composed(s.name()).Applied(b); got != r2 || strings.Contains(s.applies(), "Cluster/b") {
		t.Errorf("it is taken in at %s, and what is applied is %s", got, s.applies())
	}
	// And what would take it away is known.
	for _, of := range []struct {
		cluster, revision string
		want              bool
	}{{"b", r1, true}, {"b", r2, false}, {"a", r1, false}, {"b", "main@sha1:9", false}, {"gone", r1, false}} {
		if got := s.Composed(s.name()).Lacks(types.NamespacedName{Namespace: "apps", Name: of.cluster}, of.revision); got != of.want {
			t.Errorf("that %s lacks %s is told as %t", of.revision, of.cluster, got)
		}
	}
}

// TestLacksAfterRestart: what Clusters could go back to is read also by a process that began when none had it any more:
// else it would seem to have a Cluster that came after it. Until it is there, it is awaited.
func TestLacksAfterRestart(t *testing.T) {
	const r1, r2, r3 = "main@sha1:1", "main@sha1:2", "main@sha1:3"
	r := &tier{t: t}
	r.rollout("waves", func(o *v1alpha1.Rollout) {
		o.Status.LastGood = &v1alpha1.RolloutGood{RolloutRevision: v1alpha1.RolloutRevision{Revision: r1}}
		o.Status.Run = &v1alpha1.RolloutRun{RolloutRevision: v1alpha1.RolloutRevision{Revision: r2}, Phase: v1alpha1.RolloutProgressing}
	})
	r.child("a", "waves="+r2)
	r.child("b", "waves="+r3)
	r.cluster("a", "")
	r.cluster("b", "")
	s := r.take(func(k *kustomizev1.Kustomization) { k.Status.Inventory = refs(entriesOf("a", "b")) })
	b := types.NamespacedName{Namespace: "apps", Name: "b"}
	newest, run, good := fleetOf(t, r3, "a=v1.37.0", "b=v1.37.0"), fleetOf(t, r2, "a=v1.36.0"), fleetOf(t, r1, "a=v1.35.0")
	if end := s.composes(t, newest, run); end != nil {
		t.Fatalf("it ended as %+v", end)
	}
	s.noteComposition(s.run, true)
	if c := s.Composed(s.name()); c.Lacks(b, r1) || !c.Awaited(r1) || !c.Lacks(b, r2) || c.Awaited(r2) || s.foundOut(s.run) {
		t.Errorf("the last good revision, which is not there yet, lacks it: %t, is awaited: %t", c.Lacks(b, r1), c.Awaited(r1))
	}
	s.Sources.Snapshots.Silence(sourceKey(s.Obj))
	s.Sources.Snapshots.Fail(sourceKey(s.Obj), r1, errors.New("it does not answer"))
	if s.foundOut(s.run) {
		t.Error("that it cannot be fetched while the source cannot be either is a reason to look")
	}
	s.Sources.Snapshots.Put(sourceKey(s.Obj), s.snapshot)
	s.Sources.Snapshots.Fail(sourceKey(s.Obj), r1, errors.New("it does not answer"))
	if !s.foundOut(s.run) {
		t.Error("that it cannot be fetched is no reason to look")
	}
	if end := s.composes(t, newest, run, good); end != nil {
		t.Fatalf("it ended as %+v", end)
	}
	if !s.foundOut(s.run) {
		t.Error("that it is there is no reason to look")
	}
	s.noteComposition(s.run, true)
	if c := s.Composed(s.name()); !c.Lacks(b, r1) || c.Awaited(r1) || s.foundOut(s.run) {
		t.Errorf("the last good revision lacks it: %t, is awaited: %t", c.Lacks(b, r1), c.Awaited(r1))
	}
	if got := s.applies(); !strings.Contains(got, "Cluster/a at "+r2) || !strings.Contains(got, "Cluster/b at "+r3) {
		t.Errorf("what is applied is %s", got)
	}
}

// TestCreatedByReleaseIsTakenIn: so is one that a HelmRelease of the newest commit makes, which nobody could know before:
// it never had the last good revision, which lacks it.
func TestCreatedByReleaseIsTakenIn(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	r := &tier{t: t}
	r.rollout("waves", nil)
	r.child("a", "waves="+r1)
	r.cluster("a", "")
	before := func(k *kustomizev1.Kustomization) {
		k.Status.Inventory = refs(append(entriesOf("a"), inventory.Entry{Namespace: "apps", Name: "b", Group: helmv2.GroupVersion.Group, Kind: helmv2.HelmReleaseKind, Version: helmv2.GroupVersion.Version}))
		k.Status.LastAppliedRevision = r1
		status.RecordAttempt(&k.Status.History, status.Attempt{Digest: "sha256:x", Status: meta.ReconciliationSucceededReason, Revision: r1, Rollouts: true})
	}
	files := filesOf(r2, "a=v1.36.0")
	files["fleet/b.yaml"] = "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {namespace: apps, name: b}\nspec: {chartRef: {kind: OCIRepository, name: cluster}, interval: 1h}\n"
	newest, older := snapshotAt(t, r2, files), fleetOf(t, r1, "a=v1.35.0")
	h := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "b"}}
	h.Status.Inventory = &helmv2.ResourceInventory{Entries: []helmv2.ResourceRef{{ID: "apps_b_cluster.x-k8s.io_Cluster", Version: "v1beta2"}}}
	r.objects = append(r.objects, h)
	r.cluster("b", "")
	r.child("b")
	b := types.NamespacedName{Namespace: "apps", Name: "b"}
	s := r.take(before)
	takenIn := func(why string) {
		t.Helper()
		if end := s.composes(t, newest, older); end != nil {
			t.Fatalf("it ended as %+v", end)
		}
		s.noteComposition(s.run, true)
		if got := s.Composed(s.name()); s.composed.held[b].reason != v1alpha1.ReasonRolloutPending || got.Applied(b) != r2 || got.Untold(b) {
			t.Errorf("%s: it is taken in at %q, held for %+v", why, got.Applied(b), s.composed.held[b])
		}
	}
	takenIn("another one has the last good revision")
	child := &v1alpha1.Child{}
	if err := s.client.Get(t.Context(), types.NamespacedName{Namespace: "apps", Name: "a"}, child); err != nil {
		t.Fatal(err)
	}
	child.Status.Rollouts[0].Revision = r2
	s.updates(t, child)
	s.run.known.composition.applied = nil
	takenIn("none has it any more")
	// So it is by a process that has begun since, once that has the revision of before.
	s.run = newRun(s.run.Record, &progress{}, s.now)
	s.Reconciler.known.progress[s.name()], s.Sources.Snapshots = s.run.known, source.NewSnapshots()
	if end := s.composes(t, newest); end != nil {
		t.Fatalf("it ended as %+v", end)
	}
	s.noteComposition(s.run, true)
	if got := s.Composed(s.name()); got.Applied(b) != "" || got.Untold(b) {
		t.Errorf("before that is known it is taken in at %q, untold: %t", got.Applied(b), got.Untold(b))
	}
	takenIn("another process found none that has it")
	// One of which nothing was applied here was made elsewhere, and has no revision of this.
	s.run.known.composition.applied, s.Obj.Status.Inventory = nil, refs(entriesOf("a"))
	if end := s.composes(t, newest, older); end != nil {
		t.Fatalf("it ended as %+v", end)
	}
	s.noteComposition(s.run, true)
	if got := s.Composed(s.name()); got.Applied(b) == r2 {
		t.Errorf("what came from another owner is taken in at %q, which it does not have", got.Applied(b))
	}
}

// TestUnpinned: what a version without Rollouts applied of a Cluster, past its pin, stays until the
// Rollout goes on from there. Each other Cluster is composed at its pin.
func TestUnpinned(t *testing.T) {
	const r1, r2, r3 = "main@sha1:1", "main@sha1:2", "main@sha1:3"
	release := func(mark string, made ...string) *helmv2.HelmRelease {
		h := &helmv2.HelmRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "clusters", Annotations: map[string]string{v1alpha1.RolloutRevisionAnnotation: mark}}}
		h.Status.Inventory = &helmv2.ResourceInventory{}
		for _, name := range made {
			h.Status.Inventory.Entries = append(h.Status.Inventory.Entries, helmv2.ResourceRef{ID: "apps_" + name + "_cluster.x-k8s.io_Cluster", Version: "v1beta2"})
		}
		return h
	}
	for name, tc := range map[string]struct {
		reason  string
		result  v1alpha1.RolloutResult
		applied string
		mark    string
		heeded  bool
		release *helmv2.HelmRelease
		had     *v1alpha1.RolloutRevision
		// recorded is what the last attempt that was recorded tried, if that is not what was applied, and rolling
		// what is being applied since.
		recorded, rolling string
		status            string
		// adopted: the Cluster was taken in with its pin, and past: it came past the Rollout before. ours: this process
		// applies r2, and waits for its first objects.
		adopted, past, ours bool
		want                bool
	}{
		"Unfinished":    {reason: "an earlier version applied the newest, and it does not get healthy", result: v1alpha1.ResultSucceeded, applied: r1, recorded: r2, want: true},
		"CutOff":        {reason: "it ended while it waited for what it applied", result: v1alpha1.ResultSucceeded, applied: r1, rolling: r2, heeded: true, want: true},
		"CutOffLater":   {reason: "it ended while it waited for what it applied after another one", result: v1alpha1.ResultSucceeded, applied: "main@sha1:0", rolling: r2, want: true},
		"CutOffMarked":  {reason: "this version ended in between", result: v1alpha1.ResultSucceeded, applied: r1, mark: r1, rolling: r2, heeded: true},
		"Taken":         {reason: "this version ended in between, after the Rollout had taken what was there", result: v1alpha1.ResultSucceeded, applied: r1, rolling: r2, past: true},
		"AdoptedEarly":  {reason: "the Rollout came while something was applied, which all Clusters are not known to have", result: v1alpha1.ResultSucceeded, applied: r1, recorded: r2, status: meta.ReconciliationFailedReason, rolling: r3, adopted: true},
		"AdoptedBefore": {reason: "the Rollout took it in, and all of the newest was applied of it after that, and does not get healthy", result: v1alpha1.ResultSucceeded, applied: r1, recorded: r2, adopted: true, want: true},
		"OwnStage":      {reason: "it was created without a pin, and not applied with one yet", result: v1alpha1.ResultSucceeded, applied: r1, heeded: true, had: &v1alpha1.RolloutRevision{Revision: r1}, ours: true},
		"Mended":        {reason: "it failed at its pin, and has what mended that", result: v1alpha1.ResultFailed, applied: r2, had: &v1alpha1.RolloutRevision{Revision: "main@sha1:0"}, want: true},
		"Earlier":       {reason: "it has no mark, and another revision was applied", result: v1alpha1.ResultSucceeded, applied: r2, want: true},
		"Degraded":      {reason: "it was ready at its pin once", result: v1alpha1.ResultDegraded, applied: r2, want: true},
		"PutOff":        {reason: "it was ready at its pin once, and left alone since, as it is upgraded", result: v1alpha1.ResultDeferred, applied: r2, want: true},
		"Given":         {reason: "the Rollout lets it have another one just now", result: v1alpha1.ResultUpdating, applied: r2},
		"Marked":        {reason: "the newest was applied of all else, before an upgrade", result: v1alpha1.ResultSucceeded, applied: r2, mark: r1},
		"Heeded":        {reason: "somebody took the mark away", result: v1alpha1.ResultSucceeded, applied: r2, heeded: true},
		"Adopted":       {reason: "the Rollout has just come, and it has its pin without a mark", result: v1alpha1.ResultSucceeded, applied: r1},
		"Unknown":       {reason: "nothing is known to have been applied", result: v1alpha1.ResultSucceeded},
		"Release":       {reason: "the mark of a Cluster of a HelmRelease is on that", result: v1alpha1.ResultSucceeded, applied: r2, mark: r1, release: release("", "a"), want: true},
		"ReleaseMarked": {reason: "", result: v1alpha1.ResultSucceeded, applied: r2, release: release(r1, "a")},
		"ReleaseOfTwo":  {reason: "two that differ have no mark", result: v1alpha1.ResultSucceeded, applied: r2, release: release("", "a", "b")},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("waves", nil)
			r.child("a", "waves="+r1)
			pin := &r.objects[1].(*v1alpha1.Child).Status.Rollouts[0]
			if pin.Result, pin.Had = tc.result, tc.had; tc.result == v1alpha1.ResultDeferred {
				pin.Reason = v1alpha1.ReasonRollingOut
			}
			if pin.Past = tc.past; tc.adopted {
				pin.Run = 0
			}
			r.cluster("a", "").SetAnnotations(map[string]string{v1alpha1.RolloutRevisionAnnotation: tc.mark})
			if tc.release != nil {
				r.objects = append(r.objects, tc.release)
			}
			s := r.take(func(k *kustomizev1.Kustomization) {
				k.Status.Inventory = refs(entriesOf("a"))
				k.Status.LastAppliedRevision, k.Status.LastAttemptedRevision = tc.applied, tc.applied
				last := status.Attempt{Digest: "sha256:x", Status: meta.ReconciliationSucceededReason, Revision: tc.applied, Rollouts: tc.heeded}
				if tc.recorded != "" {
					last.Status, last.Revision = meta.HealthCheckFailedReason, tc.recorded
					if tc.status != "" {
						last.Status = tc.status
					}
					k.Status.LastAttemptedRevision = tc.recorded
				}
				status.RecordAttempt(&k.Status.History, last)
				if tc.rolling != "" {
					k.Status.LastAttemptedRevision = tc.rolling
					status.MarkProgressing(k, "Running health checks")
				}
			})
			if tc.ours {
				if end := s.composes(t, fleetOf(t, r2, "a=v1.36.0"), fleetOf(t, r1, "a=v1.35.0")); end != nil {
					t.Fatalf("%s: it ended as %+v", tc.reason, end)
				}
				s.awaitStage(t.Context(), s.run, &apply.WaitError{})
			}
			for round := range 2 { // what the first one wrote makes the second one no other
				if end := s.composes(t, fleetOf(t, r3, "a=v1.36.0"), fleetOf(t, r1, "a=v1.35.0")); end != nil {
					t.Fatalf("%s: it ended as %+v", tc.reason, end)
				}
				if held, want := s.composed.held[types.NamespacedName{Namespace: "apps", Name: "a"}], tc.want; (held.reason == v1alpha1.ReasonRolloutPending) != want || want && !strings.Contains(held.why, "revision "+r2+" was applied of it, and not "+r1+", ") {
					t.Errorf("%s: round %d: it is held for %+v", tc.reason, round, held)
				}
				if changes := strings.Contains(s.applies(), "Cluster/a"); changes == tc.want {
					t.Errorf("%s: round %d applies %s", tc.reason, round, s.applies())
				}
				s.noteApplied(s.run, meta.ReconciliationSucceededReason)
				status.MarkReady(s.Obj, meta.ReconciliationSucceededReason, "Applied revision: %s", r3)
				s.noteComposition(s.run, true)
				c, a := s.Composed(s.name()), types.NamespacedName{Namespace: "apps", Name: "a"}
				if c.Unpinned(a) != tc.want || tc.want && c.Applied(a) != r2 || status.HeededRollouts(s.Obj.Status.History) == tc.want {
					t.Errorf("%s: round %d: the Rollout is told %t of %s, history %+v", tc.reason, round, c.Unpinned(a), c.Applied(a), s.Obj.Status.History)
				}
			}
		})
	}
}

// TestPast: what a Cluster got past its Rollout is further behind than all that a run gave, for what is shared.
func TestPast(t *testing.T) {
	r := &tier{t: t}
	r.rollout("waves", nil)
	r.child("a", "waves=main@sha1:2")
	r.child("b", "waves=main@sha1:1")
	r.objects[1].(*v1alpha1.Child).Status.Rollouts[0].Past = true
	s := r.take(nil)
	g, err := s.govern(t.Context(), s.Obj)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := g.pins[types.NamespacedName{Namespace: "apps", Name: "a"}], g.pins[types.NamespacedName{Namespace: "apps", Name: "b"}]; a.Run >= b.Run || b.Run != 1 {
		t.Errorf("the pins are %+v and %+v", a, b)
	}
}

// sealed has decrypted a value.
type sealed struct{ render.Decrypter }

func (sealed) Plain() []string { return []string{"hunter22"} }

// TestOlderStaysSecret: what was decrypted for an older revision stands in no message either, as long as its objects are
// applied: who reuses them decrypts nothing.
func TestOlderStaysSecret(t *testing.T) {
	known := &progress{}
	known.rememberOlder(render.Build{Decrypter: sealed{}}, "key", "main@sha1:1", &render.Rendering{Reads: &render.ReadSet{}})
	later := &run{known: known}
	if got := later.sensitive(); !slices.Contains(got, "hunter22") {
		t.Errorf("no message has %v", got)
	}
	known.keepOlder(nil)
	if got := later.sensitive(); len(got) != 0 {
		t.Errorf("what is not applied any more is kept: %v", got)
	}
}

// TestUntold: that nobody knows what a Cluster has is found out by a run in which it waited and all else was applied.
// One that a commit has just created is told of by the next run.
func TestUntold(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	for name, tc := range map[string]struct {
		reason   string
		complete bool
		want     bool
	}{
		"Waited":     {"all else was applied", true, true},
		"Incomplete": {"something else was not, and the Cluster may have been made a moment ago", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("new", nil)
			r.child("a", "old="+r1)
			r.cluster("a", "")
			s := r.take(func(k *kustomizev1.Kustomization) { k.Status.Inventory = refs(entriesOf("a")) })
			if end := s.composes(t, fleetOf(t, r2, "a=v1.36.0", "b=v1.36.0")); end != nil {
				t.Fatalf("it ended as %+v", end)
			}
			s.noteComposition(s.run, tc.complete)
			got := s.Composed(s.name())
			if a := (types.NamespacedName{Namespace: "apps", Name: "a"}); got.Applied(a) != "" || got.Untold(a) != tc.want {
				t.Errorf("%s: a is at %q, untold: %t", tc.reason, got.Applied(a), got.Untold(a))
			}
			if b := (types.NamespacedName{Namespace: "apps", Name: "b"}); got.Untold(b) {
				t.Errorf("%s: b, which it creates, is untold", tc.reason)
			}
		})
	}
}
