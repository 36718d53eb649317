package apply

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/syncer/observed"
)

// exact is the client of Flux's library. The library takes fields of other managers over
// by a JSON patch that replaces the whole list of managed fields with what it made of the
// list that it read. Somebody who wrote in between would be lost from the list, and with
// that the field that he added would belong to nobody and stay for ever. exact holds such
// a patch to the version that the library read: the API server answers with a conflict.
//
// What is kept of kubectl's fields is not the library's to take over: exact shows it under a name
// that the library does not know. declared is what is applied; nil shows all as it is.
type exact struct {
	client.Client
	declared *unstructured.Unstructured
}

// Get implements client.Reader.
func (e exact) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := e.Client.Get(ctx, key, o, opts...)
	if u, ok := o.(*unstructured.Unstructured); ok && err == nil && e.declared != nil {
		observed.SetAside(u, e.declared)
	}
	return err
}

// Patch implements client.Writer.
func (e exact) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if patch.Type() != types.JSONPatchType || o.GetResourceVersion() == "" {
		return e.Client.Patch(ctx, o, patch, opts...)
	}
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	var operations []any
	if err := json.Unmarshal(data, &operations); err != nil {
		return fmt.Errorf("cannot parse the patch of %s %s: %w", o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), err)
	}
	operations = append(operations, map[string]any{"op": "replace", "path": "/metadata/resourceVersion", "value": o.GetResourceVersion()})
	if data, err = json.Marshal(operations); err != nil {
		return fmt.Errorf("cannot encode the patch of %s %s: %w", o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), err)
	}
	return e.Client.Patch(ctx, o, client.RawPatch(types.JSONPatchType, data), opts...)
}
