package capibridge

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	awsv1 "sigs.k8s.io/cluster-api-provider-aws/v2/api/v1beta2"
	azurev1 "sigs.k8s.io/cluster-api-provider-azure/api/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
)

// Reader reads single objects of the management cluster. Providers asks it for
// unstructured objects: a client that does not cache these starts no watch.
type Reader interface {
	Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error
	RESTMapper() meta.RESTMapper
	// InServed calls read with the version in which a kind is served by now, also if the
	// mapper knows one that was dropped meanwhile.
	InServed(gk schema.GroupKind, read func(*meta.RESTMapping) error) error
}

// Providers reads the objects of infrastructure and control plane providers. The zero
// value is ready. It has no state of its own and is safe for concurrent use.
type Providers struct {
	// AWSNamespace is the namespace of the provider for AWS, and of the Secrets of its
	// static identities. Empty stands for capa-system.
	AWSNamespace string
}

// maxRounds bounds how far references are followed. The longest chains are of roles that
// assume roles.
const maxRounds = 6

// Describe reads the two to six objects that a Cluster refers to, and returns the facts
// in them. An object that does not exist, is not served, may not be read or cannot be
// understood makes the facts Unknown; it is no error. An error is one that may be gone at
// the next attempt, such as a time-out: the caller then keeps the facts that it has,
// because a rendering without them would have other values for its variables.
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

// MayNameKubeconfig reports whether the provider of a Cluster may have its kubeconfig in another
// Secret than Cluster API's contract names, which Describe tells.
func (p *Providers) MayNameKubeconfig(c Cluster) bool {
	_, plain := p.adapter(c).(genericAdapter)
	return !plain
}

// adapter reads the objects of one provider. Both functions are pure. c is the Cluster.
type adapter interface {
	// wants returns the objects to read next, given those that were read. It may name
	// these again: they are not read twice.
	wants(c Cluster, have objects) []clusterapi.Reference
	facts(c Cluster, have objects) Facts
}

// adapter chooses by the kinds that the Cluster refers to. If only one of infrastructure
// and control plane is of a known kind, its adapter is chosen.
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

// objects has each object that was read, or why it was not.
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

// typed converts an object into the provider's own type. ok is false if there is no such
// object or if it cannot be converted, and why then says so.
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

// mappingOf prefers the version that the reference or the provider's types name, and
// takes another one that the API server serves if that is missing.
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

// builtIn reports whether a group is one of Kubernetes' own: these have no dot, or end
// with k8s.io. Groups that end with x-k8s.io are of projects beside Kubernetes.
func builtIn(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// notServed reports whether an error says that the API server does not serve a version of a
// kind.
func notServed(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err)
}

func read(ctx context.Context, reader Reader, c Cluster, ref clusterapi.Reference) (*reading, error) {
	if ref == c.Infrastructure || ref == c.ControlPlane {
		// A person who may write a Cluster must not see through the agent what that
		// person may not read.
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
	if err = reader.Get(ctx, key, u); notServed(err) {
		// A version of the kind was not found, not the object: the mapper learns of that later.
		err = reader.InServed(ref.GroupKind(), func(served *meta.RESTMapping) error {
			u = &unstructured.Unstructured{}
			u.SetGroupVersionKind(served.GroupVersionKind)
			return reader.Get(ctx, key, u)
		})
	}
	switch {
	case err == nil:
		return &reading{object: u}, nil
	case notServed(err):
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
