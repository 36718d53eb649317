package migration

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// scaler is the field manager of replicas that a migration sets. Who declares them takes them
// over when it applies.
const scaler = "cascade-migrate"

// Scale sets the replicas of a Deployment.
func Scale(ctx context.Context, c client.Client, key client.ObjectKey, replicas int32) error {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if err := c.Patch(ctx, d, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(scaler)); err != nil {
		return fmt.Errorf("cannot scale Deployment %s to %d: %w", key, replicas, err)
	}
	return nil
}

// Replicas are those that a Deployment is to have, 0 if there is none.
func Replicas(ctx context.Context, c client.Client, key client.ObjectKey) (int32, error) {
	d := &appsv1.Deployment{}
	switch err := c.Get(ctx, key, d); {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("cannot read Deployment %s: %w", key, err)
	case d.Spec.Replicas == nil:
		return 1, nil
	}
	return *d.Spec.Replicas, nil
}

// Pods names the pods of a Deployment that have not ended.
func Pods(ctx context.Context, c client.Client, key client.ObjectKey) (string, error) {
	d := &appsv1.Deployment{}
	if err := c.Get(ctx, key, d); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return "", fmt.Errorf("cannot read the selector of Deployment %s: %w", key, err)
	}
	list := &corev1.PodList{}
	if err := c.List(ctx, list, client.InNamespace(key.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return "", fmt.Errorf("cannot list the pods of Deployment %s: %w", key, err)
	}
	var names []string
	for i := range list.Items {
		if p := list.Items[i].Status.Phase; p != corev1.PodSucceeded && p != corev1.PodFailed {
			names = append(names, list.Items[i].Name)
		}
	}
	return strings.Join(names, ", "), nil
}

// Unready says why a Deployment does not run as it should; empty if it does.
func Unready(ctx context.Context, c client.Client, key client.ObjectKey) (string, error) {
	d := &appsv1.Deployment{}
	if err := c.Get(ctx, key, d); err != nil {
		return "", fmt.Errorf("cannot read Deployment %s: %w", key, err)
	}
	want := int32(1)
	if d.Spec.Replicas != nil {
		want = *d.Spec.Replicas
	}
	if d.Status.ObservedGeneration < d.Generation || d.Status.ReadyReplicas < want {
		return fmt.Sprintf("%s has %d of %d replicas ready", key.Name, d.Status.ReadyReplicas, want), nil
	}
	return "", nil
}
