package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// errConfig marks a container that cannot start because of what its environment refers to.
var errConfig = errors.New("bad configuration")

// environment returns the variables of the container: the base, overridden by envFrom, overridden by env, in the order
// given. What they refer to is read anew at every start of the container.
func (p *pod) environment(object *corev1.Pod, container *corev1.Container, base map[string]string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(p.soft, callTimeout)
	defer cancel()
	variables := maps.Clone(base)
	for _, source := range container.EnvFrom {
		values, err := p.allKeys(ctx, source)
		if err != nil {
			return nil, fmt.Errorf("cannot make environment of container %s: %w: %w", container.Name, errConfig, err)
		}
		for key, value := range values {
			variables[source.Prefix+key] = value
		}
	}
	for _, variable := range container.Env {
		value, found, err := p.value(ctx, object, container, variable, variables)
		if err != nil {
			return nil, fmt.Errorf("cannot make variable %s of container %s: %w: %w", variable.Name, container.Name, errConfig, err)
		}
		if found {
			variables[variable.Name] = value
		}
	}
	return variables, nil
}

// allKeys returns everything in the ConfigMap or Secret; nothing if it is optional and does not exist.
func (p *pod) allKeys(ctx context.Context, source corev1.EnvFromSource) (map[string]string, error) {
	switch {
	case source.ConfigMapRef != nil:
		return p.configMap(ctx, source.ConfigMapRef.Name, source.ConfigMapRef.Optional)
	case source.SecretRef != nil:
		return p.secret(ctx, source.SecretRef.Name, source.SecretRef.Optional)
	}
	return nil, nil
}

func (p *pod) configMap(ctx context.Context, name string, optional *bool) (map[string]string, error) {
	object, err := p.host.client.CoreV1().ConfigMaps(p.namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read configmap %s: %w", name, err)
	}
	return object.Data, nil
}

func (p *pod) secret(ctx context.Context, name string, optional *bool) (map[string]string, error) {
	object, err := p.host.client.CoreV1().Secrets(p.namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read secret %s: %w", name, err)
	}
	values := map[string]string{}
	for key, value := range object.Data {
		values[key] = string(value)
	}
	return values, nil
}

// value returns the value of one variable, and whether it has one: what is optional and missing leaves it unset.
func (p *pod) value(ctx context.Context, object *corev1.Pod, container *corev1.Container, variable corev1.EnvVar, variables map[string]string) (string, bool, error) {
	source := variable.ValueFrom
	if source == nil {
		return expand(variable.Value, variables), true, nil
	}
	var values map[string]string
	var key string
	var optional *bool
	var err error
	switch {
	case source.FieldRef != nil:
		value, err := p.field(object, source.FieldRef.FieldPath)
		return value, err == nil, err
	case source.ResourceFieldRef != nil:
		value, err := resourceField(container, source.ResourceFieldRef)
		return value, err == nil, err
	case source.ConfigMapKeyRef != nil:
		key, optional = source.ConfigMapKeyRef.Key, source.ConfigMapKeyRef.Optional
		values, err = p.configMap(ctx, source.ConfigMapKeyRef.Name, optional)
	case source.SecretKeyRef != nil:
		key, optional = source.SecretKeyRef.Key, source.SecretKeyRef.Optional
		values, err = p.secret(ctx, source.SecretKeyRef.Name, optional)
	default:
		return "", false, errors.New("its source is of no known kind")
	}
	if err != nil {
		return "", false, err
	}
	value, found := values[key]
	if !found && (optional == nil || !*optional) {
		return "", false, fmt.Errorf("key %s does not exist", key)
	}
	return value, found, nil
}

// field returns a field of the pod. Those of the status come from the worker, which knows them before the API server does.
func (p *pod) field(object *corev1.Pod, path string) (string, error) {
	p.mu.Lock()
	hostIP, podIP := p.facts.hostIP, p.facts.podIP
	p.mu.Unlock()
	switch path {
	case "metadata.name":
		return object.Name, nil
	case "metadata.namespace":
		return object.Namespace, nil
	case "metadata.uid":
		return string(object.UID), nil
	case "spec.nodeName":
		return object.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return object.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return hostIP, nil
	case "status.podIP", "status.podIPs":
		return podIP, nil
	}
	for prefix, values := range map[string]map[string]string{
		"metadata.labels['": object.Labels, "metadata.annotations['": object.Annotations} {
		if key, ok := strings.CutPrefix(path, prefix); ok {
			return values[strings.TrimSuffix(key, "']")], nil
		}
	}
	return "", fmt.Errorf("field %s is not known here", path)
}

// resourceField returns a request or limit of the container in units of the divisor. One that is not set is the machine's.
func resourceField(container *corev1.Container, selector *corev1.ResourceFieldSelector) (string, error) {
	kind, name, _ := strings.Cut(selector.Resource, ".")
	list := container.Resources.Limits
	if kind == "requests" {
		list = container.Resources.Requests
	}
	amount, set := list[corev1.ResourceName(name)]
	if !set {
		amount, set = nodeObject("", "", "", 0).Status.Allocatable[corev1.ResourceName(name)]
		if kind == "requests" {
			amount = resource.Quantity{}
		}
	}
	if !set || (kind != "limits" && kind != "requests") {
		return "", fmt.Errorf("resource %s is not known here", selector.Resource)
	}
	divisor := selector.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == "cpu" {
		return strconv.FormatInt(ceilDiv(amount.MilliValue(), divisor.MilliValue()), 10), nil
	}
	return strconv.FormatInt(ceilDiv(amount.Value(), divisor.Value()), 10), nil
}

func ceilDiv(a, b int64) int64 { return int64(math.Ceil(float64(a) / float64(b))) }

// expand replaces $(NAME) by the variable of that name, and $$ by $. A reference to no variable stays as it is.
func expand(text string, variables map[string]string) string {
	var out strings.Builder
	for {
		i := strings.IndexByte(text, '$')
		if i < 0 || i+1 == len(text) {
			out.WriteString(text)
			return out.String()
		}
		out.WriteString(text[:i])
		text = text[i:]
		if text[1] == '$' {
			out.WriteByte('$')
			text = text[2:]
			continue
		}
		if end := strings.IndexByte(text, ')'); text[1] == '(' && end > 0 {
			if value, ok := variables[text[2:end]]; ok {
				out.WriteString(value)
				text = text[end+1:]
				continue
			}
		}
		out.WriteByte('$')
		text = text[1:]
	}
}
