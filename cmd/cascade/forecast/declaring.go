package forecast

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/cmd/cascade/difference"
)

// declaring reads from the tier, as it is after the commit. Of Secrets and ConfigMaps it
// knows what the commit changes in them; that is what variables come from.
type declaring struct {
	client.Reader
	before, after map[difference.Identity]*unstructured.Unstructured
}

// Get implements client.Reader.
func (d *declaring) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	kind := ""
	switch o.(type) {
	case *corev1.ConfigMap:
		kind = "ConfigMap"
	case *corev1.Secret:
		kind = "Secret"
	}
	id := difference.Identity{Kind: kind, Namespace: key.Namespace, Name: key.Name}
	before, was := d.before[id]
	after, is := d.after[id]
	err := d.Reader.Get(ctx, key, o, options...)
	if kind == "" || !was && !is || err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if !is {
		return apierrors.NewNotFound(corev1.Resource(kind), key.Name)
	}
	live, old := map[string]any{}, map[string]any(nil)
	if err == nil {
		if live, err = runtime.DefaultUnstructuredConverter.ToUnstructured(o); err != nil {
			return err
		}
	}
	if was {
		old = before.Object
	}
	return into(&unstructured.Unstructured{Object: merged(live, old, after.Object)}, o)
}
