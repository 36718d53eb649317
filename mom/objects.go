//go:build linux

package mom

import (
	"context"
	"fmt"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/cmd/cascade/layout"
)

// fieldManager is in whose name objects are applied that no repository declares.
const fieldManager = "cascade-mom"

// syncKey names the two objects that sync the tier, as those of `cascade bootstrap` are named.
func syncKey() types.NamespacedName {
	return types.NamespacedName{Namespace: v1alpha1.AgentNamespace, Name: layout.Name}
}

// objects that sync the tier. request is what their status tells when they were looked at.
func (r Repository) objects(request string) ([]*unstructured.Unstructured, error) {
	at := metav1.ObjectMeta{Namespace: syncKey().Namespace, Name: syncKey().Name}
	asked := at
	asked.Annotations = map[string]string{meta.ReconcileRequestAnnotation: request}
	git := &sourcev1.GitRepository{
		TypeMeta:   metav1.TypeMeta{APIVersion: sourcev1.GroupVersion.String(), Kind: sourcev1.GitRepositoryKind},
		ObjectMeta: asked,
		Spec:       sourcev1.GitRepositorySpec{URL: r.URL, Reference: &sourcev1.GitRepositoryRef{Branch: r.Branch}, Interval: metav1.Duration{Duration: r.Interval}},
	}
	var objects []*unstructured.Unstructured
	if len(r.Login) > 0 {
		git.Spec.SecretRef = &meta.LocalObjectReference{Name: at.Name}
		secret, err := plain(&corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: at, Data: r.Login})
		if err != nil {
			return nil, err
		}
		objects = append(objects, secret)
	}
	source, err := plain(git)
	if err != nil {
		return nil, err
	}
	kustomization, err := plain(&kustomizev1.Kustomization{
		TypeMeta:   metav1.TypeMeta{APIVersion: kustomizev1.GroupVersion.String(), Kind: kustomizev1.KustomizationKind},
		ObjectMeta: asked,
		Spec: kustomizev1.KustomizationSpec{
			SourceRef: kustomizev1.CrossNamespaceSourceReference{Kind: sourcev1.GitRepositoryKind, Name: at.Name},
			Path:      "./" + r.Path, Prune: true, Interval: metav1.Duration{Duration: syncInterval}, RetryInterval: &metav1.Duration{Duration: retryInterval},
		},
	})
	if err != nil {
		return nil, err
	}
	return append(objects, source, kustomization), nil
}

const (
	// syncInterval is the pause between two looks at the whole tier.
	syncInterval = 10 * time.Minute
	// retryInterval is short, as a tier that runs for an hour has no time to lose.
	retryInterval = 10 * time.Second
)

// plain is an object without a status, as it is applied.
func plain(o runtime.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("cannot encode %s: %w", o.GetObjectKind().GroupVersionKind().Kind, err)
	}
	u := &unstructured.Unstructured{Object: fields}
	unstructured.RemoveNestedField(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	return u, nil
}

// namespace is one that a provider looks for what is its own in.
func namespace(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}}}
}

// applyPatience bounds how long an API server that has just started is asked again.
const applyPatience = time.Minute

// applyAll applies objects in their order, and waits for the definitions among them.
func applyAll(ctx context.Context, c client.Client, objects []*unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, applyPatience+time.Duration(len(objects))*time.Second)
	defer cancel()
	var definitions []string
	for _, u := range objects {
		if u.GetKind() == "CustomResourceDefinition" {
			definitions = append(definitions, u.GetName())
		}
		var refused error
		err := poll(ctx, fmt.Sprintf("%s %s to be applied", u.GetKind(), u.GetName()), func(ctx context.Context) error {
			err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u.DeepCopy()), client.ForceOwnership, client.FieldOwner(fieldManager))
			if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) {
				refused = err // another time it is the same
				return nil
			}
			return err
		})
		if refused != nil {
			err = fmt.Errorf("cannot apply %s %s: %w", u.GetKind(), u.GetName(), refused)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range definitions {
		err := poll(ctx, "definition "+name+" to be served", func(ctx context.Context) error {
			definition := &apiextensionsv1.CustomResourceDefinition{}
			if err := c.Get(ctx, client.ObjectKey{Name: name}, definition); err != nil {
				return err
			}
			for _, condition := range definition.Status.Conditions {
				if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("it is not established")
		})
		if err != nil {
			return err
		}
	}
	return nil
}
