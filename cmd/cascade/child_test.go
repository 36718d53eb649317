package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
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
