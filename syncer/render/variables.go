package render

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// LoadVariables reads the data of a ConfigMap or Secret as variables. Newlines
// are taken out of values when they are substituted, as Flux does.
func LoadVariables(ctx context.Context, reader client.Reader, namespace, kind, name string, optional bool) (map[string]string, error) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	vars := map[string]string{}
	var err error
	switch kind {
	case "ConfigMap":
		o := &corev1.ConfigMap{}
		err = reader.Get(ctx, key, o)
		for k, v := range o.Data {
			vars[k] = v
		}
	case "Secret":
		o := &corev1.Secret{}
		err = reader.Get(ctx, key, o)
		for k, v := range o.Data {
			vars[k] = string(v)
		}
	default:
		return nil, fmt.Errorf("cannot substitute from kind %q: use ConfigMap or Secret", kind)
	}
	if apierrors.IsNotFound(err) && optional {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("substitute from '%s/%s' error: %w", kind, name, err)
	}
	return vars, nil
}

// Text puts variables into a text, as into a file of a rendering. A variable without a
// value and without a default is an error.
func Text(text string, values map[string]string) (string, error) {
	v := newVariables(Build{Variables: values})
	if v.invalid != nil {
		return "", v.invalid
	}
	return v.put(text)
}

// Sensitive returns the values of variables that came from a Secret.
func Sensitive(kind string, vars map[string]string) []string {
	if kind != "Secret" {
		return nil
	}
	return slices.Collect(maps.Values(vars))
}
