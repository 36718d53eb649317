package kustomization

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/ssa"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
	"github.com/cascade-gitops/cascade/syncer/claim"
	"github.com/cascade-gitops/cascade/syncer/clusters"
	"github.com/cascade-gitops/cascade/syncer/compose"
	"github.com/cascade-gitops/cascade/syncer/source"
)

// tier is what a tier has besides the Kustomization: Rollouts, Children and Clusters.
type tier struct {
	t        *testing.T
	objects  []client.Object
	clusters []*unstructured.Unstructured
}

func (r *tier) rollout(name string, change func(*v1alpha1.Rollout)) {
	o := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name}}
	o.Spec.Moves.KustomizationRef = &v1alpha1.LocalReference{Name: "shop"}
	if change != nil {
		change(o)
	}
	r.objects = append(r.objects, o)
}

// child has pins as rollout=revision.
func (r *tier) child(name string, pins ...string) {
	o := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name, Labels: map[string]string{"name": name}}}
	o.Spec.ClusterRef = &v1alpha1.LocalReference{Name: name}
	for _, pin := range pins {
		rollout, revision, _ := strings.Cut(pin, "=")
		o.Status.Rollouts = append(o.Status.Rollouts, v1alpha1.ChildRollout{Name: rollout, RolloutRevision: v1alpha1.RolloutRevision{Revision: revision}, Run: 1})
	}
	r.objects = append(r.objects, o)
}

// selects has a Rollout select by a label.
func selects(name, value string) func(*v1alpha1.Rollout) {
	return func(o *v1alpha1.Rollout) {
		o.Spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{name: value}}
	}
}

// declared has a Kustomization declare the last Child, with labels.
func (r *tier) declared(labels map[string]string) {
	child := r.objects[len(r.objects)-1]
	child.SetLabels(map[string]string{"kustomize.toolkit.fluxcd.io/name": "children", "kustomize.toolkit.fluxcd.io/namespace": "flux"})
	maps.Copy(child.GetLabels(), labels)
}

// cluster exists in the tier, and says spec.
func (r *tier) cluster(name, text string) *unstructured.Unstructured {
	r.t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		r.t.Fatal(err)
	}
	if u.Object == nil {
		u.Object = map[string]any{}
	}
	u.SetAPIVersion("cluster.x-k8s.io/v1beta2")
	u.SetKind("Cluster")
	u.SetNamespace("apps")
	u.SetName(name)
	u.SetLabels(map[string]string{"name": name})
	r.clusters = append(r.clusters, u)
	return u
}

// take has the tier and a Kustomization with an inventory.
func (r *tier) take(change func(*kustomizev1.Kustomization)) *steps {
	r.t.Helper()
	obj := shop(func(k *kustomizev1.Kustomization) {
		k.Spec.Path = "./fleet"
		if change != nil {
			change(k)
		}
	})
	s := takeWith(r.t, []func(*runtime.Scheme) error{v1alpha1.AddToScheme}, obj, r.objects...)
	s.Clusters = clusters.Fixed(append(r.clusters, r.elsewhere())...)
	return s
}

// elsewhere is a Cluster of another namespace, with which the watch has begun.
func (r *tier) elsewhere() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster"}}
	u.SetNamespace("elsewhere")
	u.SetName("other")
	return u
}

// snapshotAt has files at a revision.
func snapshotAt(t *testing.T, revision string, files map[string]string) *source.Snapshot {
	t.Helper()
	var buffer bytes.Buffer
	zipped := gzip.NewWriter(&buffer)
	packed := tar.NewWriter(zipped)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := packed.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := packed.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := packed.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	snapshot, err := source.NewArchives(t.TempDir(), 1<<20, 1<<20).Open(t.Context(), &buffer, source.About{Revision: revision, File: "fleet.tgz"})
	if err != nil {
		t.Fatal(err)
	}
	return snapshot
}

// fleetOf declares Clusters, each with a value, as name=value, and a ConfigMap of nobody.
func fleetOf(t *testing.T, revision string, list ...string) *source.Snapshot {
	t.Helper()
	return snapshotAt(t, revision, filesOf(revision, list...))
}

func filesOf(revision string, list ...string) map[string]string {
	files := map[string]string{"fleet/common.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: apps, name: common}\ndata: {revision: " + revision + "}\n"}
	for _, of := range list {
		name, value, _ := strings.Cut(of, "=")
		files["fleet/"+name+".yaml"] = fmt.Sprintf(`apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {namespace: apps, name: %[1]s}
spec: {controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: %[1]s}}
---
apiVersion: controlplane.cluster.x-k8s.io/v1beta1
kind: LocalControlPlane
metadata: {namespace: apps, name: %[1]s}
spec: {version: %[2]s}
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineDeployment
metadata: {namespace: apps, name: %[1]s}
spec: {clusterName: %[1]s, template: {spec: {version: %[2]s}}}
`, name, value)
	}
	return files
}

// entriesOf are the objects of a Cluster of fleetOf.
func entriesOf(names ...string) []inventory.Entry {
	var list []inventory.Entry
	for _, name := range names {
		list = append(list,
			inventory.Entry{Namespace: "apps", Name: name, Group: "cluster.x-k8s.io", Kind: "Cluster", Version: "v1beta2"},
			inventory.Entry{Namespace: "apps", Name: name, Group: "controlplane.cluster.x-k8s.io", Kind: "LocalControlPlane", Version: "v1beta1"},
			inventory.Entry{Namespace: "apps", Name: name, Group: "cluster.x-k8s.io", Kind: "MachineDeployment", Version: "v1beta2"})
	}
	return list
}

// composes takes the steps to the composition of a snapshot, and returns how they ended.
func (s *steps) composes(t *testing.T, newest *source.Snapshot, older ...*source.Snapshot) *end {
	t.Helper()
	key := sourceKey(s.Obj)
	s.snapshot = newest
	for _, o := range append(older, newest) { // each was the newest once
		s.Sources.Snapshots.Retain(source.Holder{Kind: "Test"}, append(pinned(key, older), source.Pinned{Key: key, Revision: newest.Revision})...)
		s.Sources.Snapshots.Put(key, o)
	}
	for _, step := range []step{s.Reconciler.build, s.Reconciler.pins, s.Reconciler.render, s.Reconciler.compose} {
		if end := step(t.Context(), s.run); end != nil {
			return end
		}
	}
	return nil
}

func pinned(key source.Key, list []*source.Snapshot) []source.Pinned {
	var all []source.Pinned
	for _, o := range list {
		all = append(all, source.Pinned{Key: key, Revision: o.Revision})
	}
	return all
}

// applies names what would be applied, each with its value.
func (s *steps) applies() string {
	var list []string
	for _, u := range s.rendering.Objects {
		value, _, _ := unstructured.NestedString(u.Object, "data", "revision")
		if u.GetKind() == "LocalControlPlane" {
			value, _, _ = unstructured.NestedString(u.Object, "spec", "version")
		}
		if r := u.GetAnnotations()[v1alpha1.RolloutRevisionAnnotation]; r != "" {
			value = "at " + r
		}
		if u.GetKind() != "MachineDeployment" {
			list = append(list, strings.TrimSpace(u.GetKind()+"/"+u.GetName()+" "+value))
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func (s *steps) keeps() string {
	var list []string
	for _, e := range s.kept() {
		list = append(list, e.Kind+"/"+e.Name)
	}
	return strings.Join(list, ", ")
}

// controlPlane is that of a Cluster, as it runs.
func controlPlane(name, reported string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"version": reported}}}
	u.SetAPIVersion("controlplane.cluster.x-k8s.io/v1beta1")
	u.SetKind("LocalControlPlane")
	u.SetNamespace("apps")
	u.SetName(name)
	return u
}

// ofPlanes has Clusters that may have main@sha1:2, and control planes that run its version.
func ofPlanes(names ...string) func(*tier) {
	return func(r *tier) {
		r.rollout("waves", nil)
		for _, name := range names {
			r.child(name, "waves=main@sha1:2")
			r.cluster(name, "spec: {controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: "+name+"}}")
			r.objects = append(r.objects, controlPlane(name, "v1.36.0"))
		}
	}
}

func TestComposeStep(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	plane := "spec: {controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: LocalControlPlane, name: NAME}}"
	for name, tc := range map[string]struct {
		reason  string
		tier    func(*tier)
		obj     func(*kustomizev1.Kustomization)
		owned   []inventory.Entry
		old     []string
		newest  []string
		want    string
		kept    string
		says    string
		message string
		stays   bool             // lastAppliedRevision stays
		unread  map[string]error // control planes that cannot be read
	}{
		"NoRollout": {
			reason: "without a Rollout a pin means nothing", tier: func(r *tier) { r.child("a", "waves="+r1) },
			old: []string{"a=v1.35.0"}, newest: []string{"a=v1.36.0"},
			want: "Cluster/a, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.36.0",
		},
		"Pinned": {
			reason: "each Cluster is at its pin", tier: func(r *tier) { r.rollout("waves", nil); r.child("a", "waves="+r1); r.child("b", "waves="+r2) },
			old: []string{"a=v1.35.0", "b=v1.35.0"}, newest: []string{"a=v1.36.0", "b=v1.36.0"},
			want: "Cluster/a at main@sha1:1, Cluster/b at main@sha1:2, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.35.0, LocalControlPlane/b v1.36.0",
		},
		"OtherBranch": {
			reason: "a commit is the same by the name of a tag", tier: func(r *tier) { r.rollout("waves", nil); r.child("a", "waves=v7@sha1:2") },
			old: []string{"a=v1.35.0"}, newest: []string{"a=v1.36.0"},
			want: "Cluster/a at main@sha1:2, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.36.0",
		},
		"NameTaken": {
			reason: "a person added another cluster by the name of one that came later",
			tier: func(r *tier) {
				r.rollout("waves", selects("name", "a"))
				r.child("a")
				child := r.objects[len(r.objects)-1].(*v1alpha1.Child)
				child.Spec, child.Labels = v1alpha1.ChildSpec{KubeConfig: &v1alpha1.KubeConfigReference{}}, nil
				r.cluster("a", "")
				r.child("b", "waves="+r2)
			},
			owned: entriesOf("a", "b"), newest: []string{"a=v1.36.0", "b=v1.36.0"},
			want: "Cluster/b, ConfigMap/common main@sha1:2, LocalControlPlane/b v1.36.0", kept: "Cluster/a, LocalControlPlane/a, MachineDeployment/a",
			says: v1alpha1.ReasonRolloutPending, message: "it has no Child yet that Rollout waves could give a revision", stays: true,
		},
		"NoPinYet": {
			reason: "a Cluster that has no pin keeps what is in place, and the rest goes on", tier: func(r *tier) { r.rollout("waves", nil); r.child("a"); r.child("b", "waves="+r2) },
			owned: entriesOf("a", "b"), newest: []string{"a=v1.36.0", "b=v1.36.0"},
			want: "Cluster/b at main@sha1:2, ConfigMap/common main@sha1:2, LocalControlPlane/b v1.36.0", kept: "Cluster/a, LocalControlPlane/a, MachineDeployment/a",
			says: v1alpha1.ReasonRolloutPending, message: "Rollout waves has not let it have a revision yet", stays: true,
		},
		"OtherRollout": {
			reason: "the pin of another Rollout is none", tier: func(r *tier) { r.rollout("waves", nil); r.child("a", "other="+r2) },
			owned: entriesOf("a"), newest: []string{"a=v1.36.0"},
			want: "ConfigMap/common main@sha1:2", kept: "Cluster/a, LocalControlPlane/a, MachineDeployment/a", says: v1alpha1.ReasonRolloutPending, stays: true,
		},
		"OtherKustomization": {
			reason: "a Rollout of another Kustomization", tier: func(r *tier) {
				r.rollout("waves", func(o *v1alpha1.Rollout) { o.Spec.Moves.KustomizationRef.Name = "other" })
				r.child("a")
			},
			newest: []string{"a=v1.36.0"}, want: "Cluster/a, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.36.0",
		},
		"NotSelected": {
			reason: "a Cluster that the Rollout does not select has the newest revision", tier: func(r *tier) {
				r.rollout("waves", selects("name", "b"))
				r.child("a")
				r.child("b", "waves="+r1)
			},
			old: []string{"a=v1.35.0", "b=v1.35.0"}, newest: []string{"a=v1.36.0", "b=v1.36.0"},
			want: "Cluster/a, Cluster/b at main@sha1:1, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.36.0, LocalControlPlane/b v1.35.0",
		},
		"OwnLabel": {
			reason: "a Child that is declared is selected by what its owner gives it as well", tier: func(r *tier) {
				r.rollout("waves", selects("ring", "a"))
				r.child("a", "waves="+r1)
				r.declared(map[string]string{"ring": "a"})
				r.cluster("a", "{}")
			},
			old: []string{"a=v1.35.0"}, newest: []string{"a=v1.36.0"},
			want: "Cluster/a at main@sha1:1, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.35.0",
		},
		"OtherLabel": {
			reason: "where both name a label, the Child's counts", tier: func(r *tier) {
				r.rollout("waves", selects("ring", "a"))
				r.child("a")
				r.declared(map[string]string{"ring": "b"})
				r.cluster("a", "{}").SetLabels(map[string]string{"ring": "a"})
			},
			newest: []string{"a=v1.36.0"}, want: "Cluster/a, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.36.0",
		},
		"OldLabel": {
			reason: "what the agent gave the Child follows its Cluster", tier: func(r *tier) {
				r.rollout("waves", selects("name", "b"))
				r.child("a", "waves="+r1)
				r.cluster("a", "{}").SetLabels(map[string]string{"name": "b"})
			},
			old: []string{"a=v1.35.0"}, newest: []string{"a=v1.36.0"},
			want: "Cluster/a at main@sha1:1, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.35.0",
		},
		"Owner": {
			reason: "who applied a Cluster selects it, and who declares its Child does not", tier: func(r *tier) {
				r.rollout("waves", selects("kustomize.toolkit.fluxcd.io/name", "shop"))
				r.child("a", "waves="+r1)
				r.declared(nil)
				r.cluster("a", "{}").SetLabels(map[string]string{"kustomize.toolkit.fluxcd.io/name": "shop"})
			},
			old: []string{"a=v1.35.0"}, newest: []string{"a=v1.36.0"},
			want: "Cluster/a at main@sha1:1, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.35.0",
		},
		"ByHand": {
			reason: "a Child without a Cluster says nothing of one that has its name, and that no Rollout selects", tier: func(r *tier) {
				r.rollout("waves", selects("name", "a"))
				r.child("a", "waves="+r1)
				r.objects[len(r.objects)-1].(*v1alpha1.Child).Spec = v1alpha1.ChildSpec{}
				r.cluster("a", "{}").SetLabels(map[string]string{"name": "b"})
			},
			old: []string{"a=v1.35.0"}, newest: []string{"a=v1.36.0"},
			want: "Cluster/a, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.36.0",
		},
		"New": {
			reason: "a Cluster that does not exist is created from the newest revision", tier: func(r *tier) { r.rollout("waves", nil); r.child("a", "waves="+r1) },
			old: []string{"a=v1.35.0"}, newest: []string{"a=v1.36.0", "new=v1.36.0"},
			want: "Cluster/a at main@sha1:1, Cluster/new at main@sha1:2, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.35.0, LocalControlPlane/new v1.36.0",
		},
		"NoChild": {
			reason: "a Cluster that exists and has no Child has lost it, or gets one in a moment", tier: func(r *tier) { r.rollout("waves", nil); r.cluster("a", "{}") },
			owned: entriesOf("a"), newest: []string{"a=v1.36.0"},
			want: "ConfigMap/common main@sha1:2", kept: "Cluster/a, LocalControlPlane/a, MachineDeployment/a",
			says: v1alpha1.ReasonRolloutPending, message: "no Child yet", stays: true,
		},
		"Conflict": {
			reason: "of two Rollouts neither counts", tier: func(r *tier) {
				r.rollout("waves", nil)
				r.rollout("other", nil)
				r.child("a", "waves="+r1, "other="+r2)
			},
			owned: entriesOf("a"), old: []string{"a=v1.35.0"}, newest: []string{"a=v1.36.0"},
			want: "ConfigMap/common main@sha1:2", kept: "Cluster/a, LocalControlPlane/a, MachineDeployment/a",
			says: v1alpha1.ReasonRolloutConflict, message: "Rollouts other and waves",
		},
		"Deleting": {
			reason: "a Rollout that goes governs nothing", tier: func(r *tier) {
				r.rollout("waves", func(o *v1alpha1.Rollout) {
					o.DeletionTimestamp, o.Finalizers = &metav1.Time{Time: noon}, []string{"x/y"}
				})
				r.child("a", "waves="+r1)
			},
			old: []string{"a=v1.35.0"}, newest: []string{"a=v1.36.0"}, want: "Cluster/a, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.36.0",
		},
		"Missing": {
			reason: "a revision that is not there is not the newest one", tier: func(r *tier) { r.rollout("waves", nil); r.child("a", "waves=main@sha1:9") },
			owned: entriesOf("a"), newest: []string{"a=v1.36.0"},
			want: "ConfigMap/common main@sha1:2", kept: "Cluster/a, LocalControlPlane/a, MachineDeployment/a",
			says: v1alpha1.ReasonSourceNotReady, message: "main@sha1:9, which has not been fetched yet",
		},
		"Unbuildable": {
			reason: "nor is one that cannot be built", tier: func(r *tier) { r.rollout("waves", nil); r.child("a", "waves="+r1) },
			owned: entriesOf("a"), old: []string{"bad={"}, newest: []string{"a=v1.36.0"},
			want: "ConfigMap/common main@sha1:2", kept: "Cluster/a, LocalControlPlane/a, MachineDeployment/a",
			says: meta.BuildFailedReason, message: "main@sha1:1 cannot be built",
		},
		"Removed": {
			reason: "a Cluster that is not declared any more stays with its pin", tier: func(r *tier) { r.rollout("waves", nil); r.child("a", "waves="+r1); r.cluster("a", "{}") },
			owned: entriesOf("a"), old: []string{"a=v1.35.0"}, newest: []string{},
			want: "Cluster/a at main@sha1:1, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.35.0",
		},
		"Skips": {
			reason: "a minor version is not skipped", tier: func(r *tier) {
				r.rollout("waves", nil)
				r.child("a", "waves="+r2)
				r.cluster("a", strings.ReplaceAll(plane, "NAME", "a"))
				r.objects = append(r.objects, controlPlane("a", "v1.34.3"))
			},
			owned: entriesOf("a"), newest: []string{"a=v1.36.0"},
			want: "ConfigMap/common main@sha1:2", kept: "Cluster/a, LocalControlPlane/a, MachineDeployment/a",
			says: v1alpha1.ReasonUnsupportedVersionStep, message: "of Cluster apps/a from v1.34.3 to v1.36.0",
		},
		"Unreadable": {
			reason: "a provider that is down keeps its own Clusters alone", tier: ofPlanes("a", "b", "c"),
			owned: entriesOf("a", "b", "c"), newest: []string{"a=v1.36.0", "b=v1.36.0", "c=v1.36.0"},
			unread: map[string]error{"b": errors.New("conversion webhook is down")},
			want:   "Cluster/a at main@sha1:2, Cluster/c at main@sha1:2, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.36.0, LocalControlPlane/c v1.36.0",
			kept:   "Cluster/b, LocalControlPlane/b, MachineDeployment/b",
			says:   v1alpha1.ReasonControlPlaneUnreadable, message: "Cluster b keeps what is in place: cannot tell which version Cluster apps/b runs: cannot read LocalControlPlane apps/b: conversion webhook is down",
		},
		"Silent": {
			reason: "of a kind that does not answer the next one is not asked, which would take as long", tier: ofPlanes("a", "b", "c"),
			owned: entriesOf("a", "b", "c"), newest: []string{"a=v1.36.0", "b=v1.36.0", "c=v1.36.0"},
			unread: map[string]error{"b": context.DeadlineExceeded},
			want:   "Cluster/a at main@sha1:2, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.36.0",
			kept:   "Cluster/b, LocalControlPlane/b, MachineDeployment/b, Cluster/c, LocalControlPlane/c, MachineDeployment/c",
			says:   v1alpha1.ReasonControlPlaneUnreadable, message: "cannot tell which version Cluster apps/c runs: cannot read LocalControlPlane apps/b",
		},
		"WorkersWait": {
			reason: "workers wait for their control plane, which goes on", tier: func(r *tier) {
				r.rollout("waves", nil)
				r.child("a", "waves="+r2)
				r.cluster("a", strings.ReplaceAll(plane, "NAME", "a"))
				r.objects = append(r.objects, controlPlane("a", "v1.35.3"))
			},
			owned: entriesOf("a"), newest: []string{"a=v1.36.0"},
			want: "Cluster/a at main@sha1:2, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.36.0", kept: "MachineDeployment/a",
			says: v1alpha1.ReasonRollingOut, message: "MachineDeployment a of Cluster a waits for its control plane, which runs v1.35.3, to run v1.36.0",
		},
		"WorkersFollow": {
			reason: "and follow when it runs the version", tier: func(r *tier) {
				r.rollout("waves", nil)
				r.child("a", "waves="+r2)
				r.cluster("a", strings.ReplaceAll(plane, "NAME", "a"))
				r.objects = append(r.objects, controlPlane("a", "v1.36.0"))
			},
			owned: entriesOf("a"), newest: []string{"a=v1.36.0"},
			want: "Cluster/a at main@sha1:2, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.36.0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			tc.tier(r)
			s := r.take(func(k *kustomizev1.Kustomization) {
				k.Status.Inventory = refs(tc.owned)
				k.Status.LastAppliedRevision = r1
				if tc.obj != nil {
					tc.obj(k)
				}
			})
			s.Targets.Local.Client = interceptor.NewClient(s.client.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
					if err := tc.unread[key.Name]; err != nil && obj.GetObjectKind().GroupVersionKind().Kind == "LocalControlPlane" {
						return err
					}
					return c.Get(ctx, key, obj, opts...)
				},
			})
			var older []*source.Snapshot
			if tc.old != nil {
				older = append(older, fleetOf(t, r1, tc.old...))
			}
			if end := s.composes(t, fleetOf(t, r2, tc.newest...), older...); end != nil {
				t.Fatalf("%s: it ended as %+v with %s", tc.reason, end, s.says())
			}
			if diff := cmp.Diff(tc.want, s.applies()); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.kept, s.keeps()); diff != "" {
				t.Errorf("%s: kept: -want, +got:\n%s", tc.reason, diff)
			}
			end := s.tellRollout(s.run)
			c := apimeta.FindStatusCondition(s.Obj.Status.Conditions, v1alpha1.RolloutPendingCondition)
			if c == nil {
				c = &metav1.Condition{}
			}
			if c.Reason != tc.says || !strings.Contains(c.Message, tc.message) {
				t.Errorf("%s: it says %s: %s", tc.reason, c.Reason, c.Message)
			}
			passes := slices.Contains([]string{"", v1alpha1.ReasonRolloutPending, v1alpha1.ReasonSourceNotReady, v1alpha1.ReasonRollingOut}, tc.says)
			if (end == nil) != passes || !passes && s.says() != "False/"+tc.says {
				t.Errorf("%s: it ends as %+v, and is %s", tc.reason, end, s.says())
			}
			s.noteRevision()
			if stays := s.Obj.Status.LastAppliedRevision == r1; stays != tc.stays {
				t.Errorf("%s: what is on record as applied is %s", tc.reason, s.Obj.Status.LastAppliedRevision)
			}
		})
	}
}

// TestPinsStep: what wakes a Kustomization makes it look, and a pin that moves does.
func TestPinsStep(t *testing.T) {
	r := &tier{t: t}
	r.rollout("waves", nil)
	r.child("a", "waves=main@sha1:1")
	s := r.take(nil)
	r1, r2 := fleetOf(t, "main@sha1:1", "a=v1.35.0"), fleetOf(t, "main@sha1:2", "a=v1.36.0")
	if end := s.composes(t, r2, r1); end != nil {
		t.Fatalf("it ended as %+v", end)
	}
	before := s.key
	child := &v1alpha1.Child{}
	if err := s.client.Get(t.Context(), types.NamespacedName{Namespace: "apps", Name: "a"}, child); err != nil {
		t.Fatal(err)
	}
	child.Status.Rollouts[0].Result = v1alpha1.ResultSucceeded
	s.updates(t, child)
	if s.key != before {
		t.Error("what became of a revision is a reason to render again")
	}
	child.Status.Rollouts[0].Revision = "main@sha1:2"
	s.updates(t, child)
	if s.key == before {
		t.Error("another pin is no reason to render again")
	}
	// The rendering of the former pin is kept for as long as anybody may have it.
	if len(s.run.known.older) != 1 {
		t.Errorf("%d older renderings are kept", len(s.run.known.older))
	}
	if end := s.composes(t, r2, r1); end != nil || len(s.run.known.older) != 0 {
		t.Errorf("nobody may have an older revision, and %d are kept; it ended as %+v", len(s.run.known.older), end)
	}
	if got, want := s.applies(), "Cluster/a at main@sha1:2, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.36.0"; got != want {
		t.Errorf("after the pin moved it applies %s, want %s", got, want)
	}
}

// TestDriftWithRollout: what a Rollout lets go was not applied, and is no drift. All else is, also
// for a process that knows nothing but the status.
func TestDriftWithRollout(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	for name, tc := range map[string]struct {
		reason string
		// looks are at the Kustomization, in their order.
		looks []driftLook
	}{
		"Held": {reason: "b is held at first", looks: []driftLook{
			{reason: "the revision is new", missing: true},
			{reason: "another process, and b is still held", missing: true, restart: true, applied: true},
			{reason: "b gets what it may have"},
			{reason: "another process", restart: true, applied: true},
		}},
		"Restart": {reason: "an older revision is fetched again after a restart", looks: []driftLook{
			{reason: "the revision is new"},
			{reason: "what b may have is not here, and was applied before", missing: true, restart: true, applied: true},
			{reason: "it is here again", applied: true},
		}},
		"Variable": {reason: "only an older revision may read it", looks: []driftLook{
			{reason: "the revision is new"},
			{reason: "nothing changed", applied: true},
			{reason: "a variable has another value", variable: "other"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("waves", nil)
			r.child("a", "waves="+r2)
			r.child("b", "waves="+r1)
			s := r.take(func(k *kustomizev1.Kustomization) {
				k.Annotations = map[string]string{v1alpha1.DriftAnnotation: string(DriftReport)}
				k.Status.ObservedGeneration, k.Status.LastAppliedRevision = 1, r1
				k.Status.History = meta.History{{Digest: "old", LastReconciledStatus: meta.ReconciliationSucceededReason}}
			})
			applied := false
			s.cluster.sync = func(_ context.Context, o apply.Options) (apply.Result, error) {
				applied = o.Applied
				return apply.Result{Changes: ssa.NewChangeSet(), Complete: true}, nil
			}
			before, after := fleetOf(t, r1, "a=v1.35.0", "b=v1.35.0"), fleetOf(t, r2, "a=v1.36.0", "b=v1.36.0")
			for _, look := range tc.looks {
				known := s.run.known
				if look.restart {
					known = &progress{}
					s.Sources.Snapshots = source.NewSnapshots()
				}
				s.run = newRun(s.run.Record, known, s.now)
				s.run.cluster = s.Targets.Local
				if look.variable != "" {
					s.Obj.Spec.PostBuild = &kustomizev1.PostBuild{Substitute: map[string]string{"variable": look.variable}}
				}
				older := []*source.Snapshot{before}
				if look.missing {
					older = nil
				}
				if end := s.composes(t, after, older...); end != nil || len(s.composed.held) > 0 != look.missing {
					t.Fatalf("%s: it ended as %+v, and holds %v", look.reason, end, s.composed)
				}
				if end := s.Reconciler.apply(t.Context(), s.run); end != nil {
					t.Fatalf("%s: it ended as %+v", look.reason, end)
				}
				s.succeeded(t.Context(), s.run)
				if applied != look.applied {
					t.Errorf("%s: %s: it was applied before: %t, want %t", tc.reason, look.reason, applied, look.applied)
				}
			}
		})
	}
}

// driftLook is one reconcile, and whether what is composed then was applied before it.
type driftLook struct {
	reason string
	// missing: the older revision is not here.
	missing bool
	// restart: by a process that has just begun.
	restart  bool
	variable string
	applied  bool
}

// updates writes a Child, and takes the steps up to what Rollouts say.
func (s *steps) updates(t *testing.T, child *v1alpha1.Child) {
	t.Helper()
	if err := s.client.Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	for _, step := range []step{s.Reconciler.build, s.Reconciler.pins} {
		if end := step(t.Context(), s.run); end != nil {
			t.Fatalf("it ended as %+v", end)
		}
	}
}

// TestRefusedKubeConfig: Clusters of another tier have no Children here.
func TestRefusedKubeConfig(t *testing.T) {
	r := &tier{t: t}
	r.rollout("waves", nil)
	s := r.take(func(k *kustomizev1.Kustomization) {
		k.Spec.KubeConfig = &meta.KubeConfigReference{SecretRef: &meta.SecretKeyReference{Name: "other"}}
	})
	end := s.composes(t, fleetOf(t, "main@sha1:2", "a=v1.36.0"))
	s.expect(t, "nothing is applied", end, want{says: "False/" + v1alpha1.ReasonInvalidSpec, events: 1})
}

// TestUnknownClusters: before the Clusters of the tier are known, nothing is decided.
func TestUnknownClusters(t *testing.T) {
	r := &tier{t: t}
	r.rollout("waves", nil)
	s := r.take(nil)
	s.Clusters = &clusters.Watch{}
	end := s.composes(t, fleetOf(t, "main@sha1:2", "a=v1.36.0"))
	s.expect(t, "it looks again in a moment", end, want{after: time.Second})
}

// TestKeepOption: what is kept is neither pruned nor forgotten.
func TestKeepOption(t *testing.T) {
	r := &tier{t: t}
	r.rollout("waves", nil)
	r.child("a")
	s := r.take(func(k *kustomizev1.Kustomization) { k.Status.Inventory = refs(entriesOf("a")) })
	if end := s.composes(t, fleetOf(t, "main@sha1:2", "a=v1.36.0")); end != nil {
		t.Fatalf("it ended as %+v", end)
	}
	var got []inventory.Entry
	s.Reconciler.Targets.Local = &apply.Cluster{Client: s.client}
	s.run.cluster = s.Reconciler.Targets.Local
	s.cluster.sync = func(_ context.Context, o apply.Options) (apply.Result, error) {
		got = o.Keep
		return apply.Result{Changes: ssa.NewChangeSet()}, nil
	}
	_ = s.Reconciler.apply(t.Context(), s.run)
	if diff := cmp.Diff(entriesOf("a"), got); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}

// TestDeclaresComposition: who asks what a Kustomization declares learns of what its pins
// do, not of the newest revision.
func TestDeclaresComposition(t *testing.T) {
	r := &tier{t: t}
	r.rollout("waves", nil)
	r.child("a", "waves=main@sha1:1")
	r.child("b")
	s := r.take(func(k *kustomizev1.Kustomization) {
		k.UID, k.ResourceVersion = "1", "1"
		k.Status.Inventory = refs(entriesOf("a", "b"))
		k.Status.ObservedGeneration, k.Status.LastAppliedRevision = 1, "main@sha1:2"
	})
	key := sourceKey(s.Obj)
	s.Sources.Snapshots.Retain(holderOf(s.name()), source.Pinned{Key: key, Revision: "main@sha1:1"})
	s.Sources.Snapshots.Put(key, fleetOf(t, "main@sha1:1", "a=v1.35.0", "b=v1.35.0"))
	s.Sources.Snapshots.Put(key, fleetOf(t, "main@sha1:2", "c=v1.36.0"))
	d := s.Reconciler.Declares(t.Context(), s.Obj, &source.View{}, false)
	if d.Settled || d.Unknown != nil {
		t.Fatalf("it is settled: %t, unknown: %v", d.Settled, d.Unknown)
	}
	var got []string
	for _, e := range d.Entries {
		if e.Kind == "Cluster" {
			got = append(got, e.Name)
		}
	}
	slices.Sort(got)
	if text := strings.Join(got, " "); text != "a b c" {
		t.Errorf("it declares the Clusters %s, want a by its pin, b that it keeps, and c", text)
	}
}

// TestDeclaresAhead: what the newest revision has, and Clusters may have later, is told to those who would delete it
// meanwhile, also once what Clusters may have now is in place. It comes apart from what is declared now.
func TestDeclaresAhead(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	values := "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: apps, name: values, labels: {cluster.x-k8s.io/cluster-name: a}}\n"
	for name, tc := range map[string]struct {
		reason string
		pin    string
		want   string
	}{
		"Held":   {"a may not have it yet, and b, which came from another owner, has no pin", r1, "Cluster/b, ConfigMap/values, LocalControlPlane/b, MachineDeployment/b"},
		"Passed": {"a has it by now", r2, "Cluster/b, LocalControlPlane/b, MachineDeployment/b"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("waves", nil)
			r.child("a", "waves="+tc.pin)
			r.child("b")
			s := r.take(func(k *kustomizev1.Kustomization) {
				k.UID, k.ResourceVersion = "1", "1"
				k.Status.Inventory = refs(entriesOf("a"))
			})
			files := filesOf(r2, "a=v1.35.0", "b=v1.35.0")
			files["fleet/values.yaml"] = values
			newest := snapshotAt(t, r2, files)
			if end := s.composes(t, newest, fleetOf(t, r1, "a=v1.35.0")); end != nil {
				t.Fatalf("%s: it ended as %+v with %s", tc.reason, end, s.says())
			}
			s.run.sync = &apply.Result{Changes: ssa.NewChangeSet()}
			s.run.known.synced(s.run, true, true, noon)
			d := s.Reconciler.Declares(t.Context(), s.Obj, &source.View{}, false)
			if d.Settled || d.Unknown != nil {
				t.Fatalf("%s: it is settled: %t, unknown: %v", tc.reason, d.Settled, d.Unknown)
			}
			var got []string
			for _, e := range d.Ahead {
				got = append(got, e.Kind+"/"+e.Name)
				if slices.Contains(d.Entries, e) {
					t.Errorf("%s: %s is declared now as well", tc.reason, e)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestDeclaresUnrecorded: a Kustomization is settled once its inventory has all that was rendered. One of which the
// inventory could not be written, as it was not known whether a Cluster exists, has nothing on record of what a commit
// moves to it, and whoever had that before would delete it.
func TestDeclaresUnrecorded(t *testing.T) {
	old := entriesOf("a")
	all := append(slices.Clone(old), inventory.Entry{Namespace: "apps", Name: "common", Kind: "ConfigMap", Version: "v1"})
	untold := errors.New("cannot tell whether Cluster apps/a exists")
	for name, tc := range map[string]struct {
		reason  string
		applied string // the revision of the status
		result  apply.Result
		err     error
		settled bool
	}{
		"Untold":    {"it ended before anything was recorded", "main@sha1:0", apply.Result{Inventory: old}, untold, false},
		"Variables": {"the same of a revision that was applied with other variables", revision, apply.Result{Inventory: old}, untold, false},
		"Withheld":  {"some of it waits for a person", "main@sha1:0", apply.Result{Inventory: old}, nil, false},
		"Refused":   {"it ended after that", "main@sha1:0", apply.Result{Inventory: all, Recorded: true}, errors.New("denied"), true},
		"Applied":   {"all of it is in place", revision, apply.Result{Inventory: all, Recorded: true}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := (&tier{t: t}).take(func(k *kustomizev1.Kustomization) {
				k.UID, k.ResourceVersion = "1", "1"
				k.Status.Inventory = refs(old)
				k.Status.ObservedGeneration, k.Status.LastAppliedRevision = 1, tc.applied
			})
			if end := s.composes(t, fleetOf(t, revision, "a=v1.35.0")); end != nil {
				t.Fatalf("%s: it ended as %+v with %s", tc.reason, end, s.says())
			}
			s.run.cluster = s.Targets.Local
			s.cluster.sync = func(context.Context, apply.Options) (apply.Result, error) {
				tc.result.Changes, tc.result.Complete = ssa.NewChangeSet(), true
				return tc.result, tc.err
			}
			s.Reconciler.apply(t.Context(), s.run)
			d := s.Reconciler.Declares(t.Context(), s.Obj, &source.View{}, false)
			if d.Settled != tc.settled || d.Unknown != nil || !d.Settled && !slices.Contains(d.Entries, all[len(all)-1]) {
				t.Errorf("%s: it is settled: %t, declares %v, unknown: %v", tc.reason, d.Settled, d.Entries, d.Unknown)
			}
		})
	}
}

// declarers say what Kustomizations declare, by name.
type declarers map[string]claim.Declaration

func (d declarers) Declares(_ context.Context, o client.Object, _ *source.View, _ bool) claim.Declaration {
	return d[o.GetName()]
}

// TestMovedAway: what a later commit moved to another owner is not applied any more as an older revision has it, once
// that one has applied it, for as long as it declares it.
func TestMovedAway(t *testing.T) {
	const r1, r2 = "main@sha1:1", "main@sha1:2"
	values := inventory.Entry{Namespace: "apps", Name: "values", Kind: "ConfigMap", Version: "v1"}
	declares := claim.Declaration{Entries: []inventory.Entry{values}}
	for name, tc := range map[string]struct {
		reason, label string
		record        []inventory.Entry
		declares      claim.Declaration
		gone, applies bool
	}{
		"Moved":     {reason: "the other owner has it", label: "common", record: []inventory.Entry{values}, declares: declares},
		"Unknown":   {reason: "the other owner has it, and cannot be built now", label: "common", record: []inventory.Entry{values}, declares: claim.Declaration{Unknown: errors.New("no such file")}},
		"NotYet":    {reason: "the other owner is about to apply it", label: "shop", record: []inventory.Entry{values}, declares: declares, applies: true},
		"Dropped":   {reason: "a commit after that took it out of the other owner, and a at its revision still needs it", label: "common", record: []inventory.Entry{values}, applies: true},
		"OfAnother": {reason: "who applied it has it no more", label: "common", declares: declares, applies: true},
		"Gone":      {reason: "somebody deleted it", gone: true, record: []inventory.Entry{values}, declares: declares, applies: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := &tier{t: t}
			r.rollout("waves", nil)
			r.child("a", "waves="+r1)
			common := &kustomizev1.Kustomization{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "common"}}
			common.Status.Inventory = refs(tc.record)
			r.objects = append(r.objects, common)
			if !tc.gone {
				r.objects = append(r.objects, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: "values", Labels: map[string]string{
					"kustomize.toolkit.fluxcd.io/name": tc.label, "kustomize.toolkit.fluxcd.io/namespace": "apps",
				}}})
			}
			s := r.take(func(k *kustomizev1.Kustomization) { k.Status.Inventory = refs(append(entriesOf("a"), values)) })
			s.Claims.Kustomizations = declarers{"common": tc.declares}
			files := filesOf(r1, "a=v1.35.0")
			files["fleet/values.yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: apps, name: values, labels: {cluster.x-k8s.io/cluster-name: a}}\n"
			if end := s.composes(t, fleetOf(t, r2, "a=v1.36.0"), snapshotAt(t, r1, files)); end != nil {
				t.Fatalf("%s: it ended as %+v with %s", tc.reason, end, s.says())
			}
			want := "Cluster/a at main@sha1:1, ConfigMap/common main@sha1:2, LocalControlPlane/a v1.35.0"
			if tc.applies {
				want = strings.Replace(want, ", LocalControlPlane", ", ConfigMap/values, LocalControlPlane", 1)
			}
			if diff := cmp.Diff(want, s.applies()); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
			if s.keeps() != "" || s.composed.looksAgain() == tc.applies {
				t.Errorf("%s: it keeps %q, and looks again: %t", tc.reason, s.keeps(), s.composed.looksAgain())
			}
		})
	}
}

// TestNextLook: what another owner has is looked at again before it could delete it, however a reconcile ended.
func TestNextLook(t *testing.T) {
	for name, tc := range map[string]struct {
		reason      string
		moved       *composed
		after, want time.Duration
	}{
		"Blocked": {"a person decides about something, for an hour", &composed{moved: []string{"apps_values__ConfigMap"}}, time.Hour, movedPoll},
		"Never":   {"the spec is wrong", &composed{moved: []string{"apps_values__ConfigMap"}}, 0, movedPoll},
		"Soon":    {"it comes back before", &composed{moved: []string{"apps_values__ConfigMap"}}, time.Second, time.Second},
		"Nothing": {"nobody took anything over", &composed{}, time.Hour, time.Hour},
		"None":    {"no Rollout moves it", nil, 0, 0},
	} {
		if got := tc.moved.nextLook(tc.after); got != tc.want {
			t.Errorf("%s: %s: %s, want %s", name, tc.reason, got, tc.want)
		}
	}
}

// TestRoots: that an entry of the inventory has no namespace does not make its kind one without.
func TestRoots(t *testing.T) {
	role := inventory.Entry{Name: "x", Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Version: "v1"}
	config := inventory.Entry{Name: "x", Kind: "ConfigMap", Version: "v1"}
	unknown := inventory.Entry{Name: "x", Group: "example.com", Kind: "Thing", Version: "v1"}
	s := takeWith(t, []func(*runtime.Scheme) error{v1alpha1.AddToScheme}, shop(func(k *kustomizev1.Kustomization) {
		k.Status.Inventory = refs([]inventory.Entry{role, config, unknown})
	}))
	f := compose.Facts{}
	if err := s.own(&f, s.Obj); err != nil {
		t.Fatal(err)
	}
	want := map[schema.GroupKind]bool{role.GroupKind(): true, config.GroupKind(): false, unknown.GroupKind(): false}
	if diff := cmp.Diff(want, f.Roots); diff != "" {
		t.Errorf("kinds without namespaces: -want, +got:\n%s", diff)
	}
}
