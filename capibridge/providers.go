package capibridge

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	awsv1 "sigs.k8s.io/cluster-api-provider-aws/v2/api/v1beta2"
	azurev1 "sigs.k8s.io/cluster-api-provider-azure/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// Reader reads single objects of the management cluster. Unstructured ones are
// asked for, so a client that keeps no cache of these reads them once and
// watches nothing.
type Reader interface {
	Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error
	RESTMapper() meta.RESTMapper
}

// Providers know what the objects of infrastructure and control plane providers
// say. The zero value is ready, and keeps nothing: it may be used by many
// goroutines.
type Providers struct {
	// AWSNamespace is where the provider for AWS runs, and with it the Secrets of
	// its static identities; capa-system if empty.
	AWSNamespace string
}

// maxRounds bounds how far references are followed: the longest chain is that of
// roles which are assumed by roles.
const maxRounds = 6

// Describe reads the objects that a Cluster refers to, two to six of them, and
// says what they mean. What is not there, not served, not allowed or not
// understood is Unknown in the facts, and no error. An error is one that another
// try may not meet, such as a time-out: what was known before is still the best
// there is, and rendering without it would change what renders variables.
func (p *Providers) Describe(ctx context.Context, reader Reader, c Cluster) (Facts, error) {
	a := p.adapter(c)
	have := objects{}
	for range maxRounds {
		asked := false
		for _, ref := range a.wants(c, have) {
			if _, ok := have[ref]; ok || ref.IsZero() {
				continue
			}
			asked = true
			found, err := read(ctx, reader, c, ref)
			if err != nil {
				return Facts{}, err
			}
			have[ref] = found
		}
		if !asked {
			break
		}
	}
	f := a.facts(c, have)
	if f.Kubeconfig.Secret == "" {
		f.Kubeconfig.Secret, f.Kubeconfig.Key = clusterapi.KubeconfigSecret(c.Name), clusterapi.KubeconfigKey
	}
	return f, nil
}

// adapter of a provider. Both functions are pure; c is the Cluster.
type adapter interface {
	// wants names the objects that it reads, given those that it has. What it
	// names again is not read again.
	wants(c Cluster, have objects) []clusterapi.Reference
	facts(c Cluster, have objects) Facts
}

// adapter by the kinds that the Cluster refers to. An infrastructure that is not
// known, a control plane that is not known: neither hinders the other.
func (p *Providers) adapter(c Cluster) adapter {
	for _, ref := range []clusterapi.Reference{c.ControlPlane, c.Infrastructure} {
		switch {
		case ref.Group != clusterapi.InfrastructureGroup && ref.Group != clusterapi.ControlPlaneGroup:
		case strings.HasPrefix(ref.Kind, "AWS"):
			namespace := p.AWSNamespace
			if namespace == "" {
				namespace = "capa-system"
			}
			return awsAdapter{namespace: namespace}
		case strings.HasPrefix(ref.Kind, "Azure"):
			return azureAdapter{}
		}
	}
	return genericAdapter{}
}

// objects are what was read, or why it was not.
type objects map[clusterapi.Reference]*reading

type reading struct {
	object *unstructured.Unstructured
	why    Health // if there is no object
	typed  any    // the object, once it has been asked for as such
}

// get returns an object, or nil and why there is none.
func (o objects) get(ref clusterapi.Reference) (*unstructured.Unstructured, Health) {
	if ref.IsZero() {
		return nil, unknown(HealthNotReferenced, "Cluster does not refer to one")
	}
	r, ok := o[ref]
	if !ok {
		return nil, unknown(HealthUnreadable, "%s was not read: too many objects refer to each other", ref)
	}
	return r.object, r.why
}

// all reports whether each of these has been read, or failed to be.
func (o objects) all(refs ...clusterapi.Reference) bool {
	for _, ref := range refs {
		if _, ok := o[ref]; !ok && !ref.IsZero() {
			return false
		}
	}
	return true
}

// typed fills an object of a provider's own type. ok is false if there is none,
// or if it cannot be understood, which why says.
func typed[T any](o objects, ref clusterapi.Reference) (object *T, why Health, ok bool) {
	u, why := o.get(ref)
	if u == nil {
		return nil, why, false
	}
	r := o[ref]
	if object, ok := r.typed.(*T); ok {
		return object, Health{}, true
	}
	object = new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, object); err != nil {
		return nil, unknown(HealthUnreadable, "cannot read %s: %s; it may be of a version that this agent does not know", ref, err), false
	}
	r.typed = object
	return object, Health{}, true
}

// mappingOf prefers the version that the reference names, or that the types are of,
// and is content with what there is.
func mappingOf(mapper meta.RESTMapper, ref clusterapi.Reference) (*meta.RESTMapping, error) {
	version := ref.Version
	if version == "" && (ref.Group == clusterapi.InfrastructureGroup || ref.Group == clusterapi.ControlPlaneGroup) {
		switch {
		case strings.HasPrefix(ref.Kind, "AWS"):
			version = awsv1.GroupVersion.Version
		case strings.HasPrefix(ref.Kind, "Azure"):
			version = azurev1.GroupVersion.Version
		}
	}
	if version != "" {
		if mapping, err := mapper.RESTMapping(ref.GroupKind(), version); err == nil || !meta.IsNoMatchError(err) {
			return mapping, err
		}
	}
	return mapper.RESTMapping(ref.GroupKind())
}

// builtIn says that a group is one of Kubernetes' own: these have no dot, or end
// with k8s.io, except for what is developed beside it, in x-k8s.io.
func builtIn(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

func read(ctx context.Context, reader Reader, c Cluster, ref clusterapi.Reference) (*reading, error) {
	if ref == c.Infrastructure || ref == c.ControlPlane {
		// Whoever may write a Cluster must not have the agent read for him what he
		// may not read himself.
		switch {
		case builtIn(ref.Group):
			return &reading{why: unknown(HealthNotServed, "cannot read %s: group %q is not that of a provider", ref, ref.Group)}, nil
		case ref.Namespace != c.Namespace:
			return &reading{why: unknown(HealthForbidden, "cannot read %s: it is in another namespace than its Cluster", ref)}, nil
		}
	}
	mapping, err := mappingOf(reader.RESTMapper(), ref)
	if meta.IsNoMatchError(err) {
		return &reading{why: unknown(HealthNotServed, "cannot read %s: the API server has no such kind; is its provider installed?", ref)}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot tell which version of %s is served: %w", ref.GroupKind(), err)
	}
	key := client.ObjectKey{Name: ref.Name}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		key.Namespace = ref.Namespace
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(mapping.GroupVersionKind)
	err = reader.Get(ctx, key, u)
	switch {
	case err == nil:
		return &reading{object: u}, nil
	case apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err):
		// Not this object but its kind was not found, which the mapper learns later.
		return &reading{
			why: unknown(HealthNotServed, "cannot read %s: the API server has no such kind any more; is its provider installed?", ref),
		}, nil
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return &reading{why: unknown(HealthNotFound, "%s does not exist", ref)}, nil
	case apierrors.IsForbidden(err):
		return &reading{why: unknown(HealthForbidden, "cannot read %s: the agent has no right to", ref)}, nil
	}
	return nil, fmt.Errorf("cannot read %s of Cluster %s: %w", ref, c.Name, err)
}
