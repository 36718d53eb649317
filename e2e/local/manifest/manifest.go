// Package manifest installs API definitions into a cluster: it decodes YAML, applies it with server-side apply and waits
// until the API server serves what was defined. Applying is idempotent; a conflict is taken over, because the caller owns
// what it installs.
package manifest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// callTimeout is long for one call: the definitions are large, and the first ones reach an API server that has just started.
const callTimeout = 30 * time.Second

// Decode returns the objects of a YAML stream.
func Decode(stream []byte) ([]*unstructured.Unstructured, error) {
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(stream), 4096)
	var all []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("cannot decode manifest: %w", err)
		}
		if len(object.Object) > 0 {
			all = append(all, object)
		}
	}
}

// resourceOf knows the resources of the kinds that this package installs, all of them cluster-scoped.
func resourceOf(kind string) (schema.GroupVersionResource, bool) {
	switch kind {
	case "CustomResourceDefinition":
		return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}, true
	case "MutatingWebhookConfiguration":
		return schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"}, true
	case "ValidatingWebhookConfiguration":
		return schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"}, true
	}
	return schema.GroupVersionResource{}, false
}

// Apply applies one object as the field manager.
func Apply(ctx context.Context, client dynamic.Interface, manager string, object *unstructured.Unstructured) error {
	resource, ok := resourceOf(object.GetKind())
	if !ok {
		return fmt.Errorf("cannot apply %s %s: it is no API definition", object.GetKind(), object.GetName())
	}
	body, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("cannot encode %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	force := true
	if _, err := client.Resource(resource).Patch(ctx, object.GetName(), types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: manager, Force: &force}); err != nil {
		return fmt.Errorf("cannot apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

// AwaitEstablished returns when the API server serves all definitions, or the context ends.
func AwaitEstablished(ctx context.Context, client dynamic.Interface, definitions []string) error {
	resource, _ := resourceOf("CustomResourceDefinition")
	for _, name := range definitions {
		for {
			established, err := isEstablished(ctx, client, resource, name)
			if established {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("cannot wait for CustomResourceDefinition %s: %w", name, errors.Join(err, ctx.Err()))
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	return nil
}

func isEstablished(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	object, err := client.Resource(resource).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return false, err
	}
	for _, item := range conditions {
		condition, ok := item.(map[string]any)
		if ok && condition["type"] == "Established" {
			return condition["status"] == "True", nil
		}
	}
	return false, nil
}
