package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/remote/record"
)

// TestChildAddKeepsAnothersSecret: a kubeconfig that somebody else made is not written over.
func TestChildAddKeepsAnothersSecret(t *testing.T) {
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "edge"}}
	secret := func(managers ...metav1.ManagedFieldsEntry) client.Object {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "edge-kubeconfig", ManagedFields: managers}}
	}
	by := func(manager string, operation metav1.ManagedFieldsOperationType) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: operation, APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:data":{}}`)}
	}
	child := func(names string) client.Object {
		return &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "edge"},
			Spec: v1alpha1.ChildSpec{KubeConfig: &v1alpha1.KubeConfigReference{SecretRef: &v1alpha1.SecretKeyReference{Name: names}}}}
	}
	for name, tc := range map[string]struct {
		reason  string
		objects []client.Object
		export  bool
		refused bool
	}{
		"New":      {"nothing is there", nil, false, false},
		"Another":  {"a Secret that Cluster API, or a person, made", []client.Object{secret(by("manager", metav1.ManagedFieldsOperationUpdate))}, false, true},
		"Edited":   {"what edits is not what applies", []client.Object{secret(by(childManager, metav1.ManagedFieldsOperationUpdate))}, false, true},
		"HalfDone": {"an earlier call ended before it made the Child", []client.Object{secret(by(childManager, metav1.ManagedFieldsOperationApply))}, false, false},
		"Declared": {"both came from a repository", []client.Object{secret(by("cascade", metav1.ManagedFieldsOperationApply)), child("edge-kubeconfig")}, false, false},
		"Elsewhere": {"the Child has its kubeconfig in another Secret, and this one is not of it",
			[]client.Object{secret(by("manager", metav1.ManagedFieldsOperationUpdate)), child("other")}, false, true},
		"Printed": {"--export writes nothing", []client.Object{secret(by("manager", metav1.ManagedFieldsOperationUpdate))}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			hub := fake.NewClientBuilder().WithScheme(newScheme()).WithReturnManagedFields().WithObjects(tc.objects...).Build()
			there := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(system).Build()
			a := &childAdd{namespace: "fleet", name: "edge", export: tc.export}
			_, err := a.admit(t.Context(), hub, there)
			if (err != nil) != tc.refused || err != nil && !strings.Contains(err.Error(), "Secret fleet/edge-kubeconfig is another's") {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

// TestChildAddAsksForTakeOver: a cluster to which another tier pushes is added only where a person says so (read 722). Under another name
// than it has there the agent asks for an approval.
func TestChildAddAsksForTakeOver(t *testing.T) {
	lineage := func(namespace string, holders ...string) *corev1.ConfigMap {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.EpochConfigMap}}
		var marks []epoch.Mark
		for _, holder := range holders {
			marks = append(marks, epoch.Mark{Epoch: 1, Holder: holder})
		}
		if err := epoch.Write(cm, marks); err != nil {
			t.Fatal(err)
		}
		return cm
	}
	edge := record.Cluster{Namespace: "fleet", Name: "edge"}
	met := &v1alpha1.Child{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "edge"}}
	met.Status.Identity = &v1alpha1.ChildIdentity{KubeSystemUID: "edge"}
	for name, tc := range map[string]struct {
		reason   string
		cluster  record.Cluster
		holder   string
		takeOver bool
		child    *v1alpha1.Child
		want     string
		approval string
	}{
		"Another":   {"another tier has it under this name as well", edge, "there", false, nil, "--take-over", ""},
		"Unnamed":   {"an earlier version of another tier has it", record.Cluster{}, "there", false, nil, "--take-over", ""},
		"TakenOver": {"a person says that the other one is gone", edge, "there", true, nil, "", ""},
		"OtherName": {"it has another name there", record.Cluster{Namespace: "fleet", Name: "other"}, "there", false, nil, "fleet/other", ""},
		"Renamed":   {"a person says that the other one gave it up", record.Cluster{Namespace: "fleet", Name: "other"}, "there", true, nil, "", "7/there"},
		"Cluster":   {"it has a Cluster of another name there", record.Cluster{Namespace: "fleet", Name: "other", UID: "uid"}, "there", true, nil, v1alpha1.RecordLabel, ""},
		"Own":       {"this tier had it before", record.Cluster{Namespace: "fleet", Name: "other"}, "here", false, nil, "", ""},
		"Below":     {"the cluster is a tier that has layers of its own", record.Cluster{}, "below", false, nil, "", ""},
		"Elsewhere": {"its agent is in another namespace than the usual one (read 736)", record.Cluster{Namespace: "fleet", Name: "self"}, "elsewhere", false, nil, "", ""},
		"Met":       {"it is this tier's child, and is repaired", edge, "there", false, met, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			hub := fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(lineage(v1alpha1.AgentNamespace, "here", "before"))
			if tc.child != nil {
				hub = hub.WithObjects(tc.child)
			}
			there := fake.NewClientBuilder().WithScheme(newScheme()).
				WithIndex(&corev1.ConfigMap{}, "metadata.name", nameOf).
				WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "edge"}}, lineage(v1alpha1.AgentNamespace, "below"), lineage("ops", "elsewhere")).Build()
			rec := &record.Record{Layer: types.NamespacedName{Namespace: "fleet", Name: "app"}, Cluster: tc.cluster, Parent: epoch.Mark{Epoch: 7, Holder: tc.holder}}
			if err := rec.Put(t.Context(), there); err != nil {
				t.Fatal(err)
			}
			a := &childAdd{namespace: "fleet", name: "edge", takeOver: tc.takeOver}
			_, err := a.admit(t.Context(), hub.Build(), there)
			if (err != nil) != (tc.want != "") || err != nil && (!strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "process there")) {
				t.Errorf("%s: %v", tc.reason, err)
			}
			if a.approval != tc.approval {
				t.Errorf("%s: approved is %q", tc.reason, a.approval)
			}
		})
	}
}
