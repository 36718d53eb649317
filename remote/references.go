package remote

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge"
	"github.com/cascade-gitops/cascade/remote/providers"
	"github.com/cascade-gitops/cascade/remote/reason"
	"github.com/cascade-gitops/cascade/syncer/render"
)

// reference is a Secret or ConfigMap in the namespace of a layer.
type reference struct{ kind, name string }

func (r reference) compare(o reference) int {
	return cmp.Or(cmp.Compare(r.kind, o.kind), cmp.Compare(r.name, o.name))
}

// use is a reference of a layer for one child, and which version of the object was read for that, empty if there was
// none. read: that is known.
type use struct {
	reference
	version string
	read    bool
}

// versionOf is the version of an object, also of one that is deleted and made again.
func versionOf(o client.Object) string { return string(o.GetUID()) + " " + o.GetResourceVersion() }

// refersTo renders the name of an object that a layer refers to, for one child. Only what
// this tier says of the Cluster may choose it: not what the child says of itself, and no
// value of a Secret, which the name would tell.
func (s *seeding) refersTo(kind, name string) (types.NamespacedName, error) {
	referred, err := referred(s.push.cluster, s.layer, kind, name)
	if err != nil {
		return referred, err
	}
	s.refers = append(s.refers, use{reference: reference{kind, referred.Name}})
	return referred, nil
}

// noteRead notes which version the layer is rendered from.
func (s *seeding) noteRead(ref reference, version string) {
	for i := range s.refers {
		if u := &s.refers[i]; u.reference == ref {
			u.version, u.read = version, true
		}
	}
}

// referred is the object that a layer refers to for a cluster.
func referred(cluster capibridge.Cluster, layer *v1alpha1.Layer, kind, name string) (types.NamespacedName, error) {
	rendered, err := name, error(nil)
	if strings.Contains(name, "$") {
		rendered, err = render.Text(name, namingVariables(cluster, layer))
	}
	if err != nil {
		return types.NamespacedName{}, reason.Because(v1alpha1.ReasonReferenceInvalid, fmt.Errorf("cannot render the name %q of a %s: %w", name, kind, err))
	}
	if faults := validation.IsDNS1123Subdomain(rendered); len(faults) > 0 {
		return types.NamespacedName{}, reason.Because(v1alpha1.ReasonReferenceInvalid, fmt.Errorf(
			"cannot use %q as the name of a %s, which spec has as %q: %s; correct the variables of the Cluster, or the name", rendered, kind, name, faults[0]))
	}
	return types.NamespacedName{Namespace: layer.Namespace, Name: rendered}, nil
}

// refers reports whether a layer refers to any Secret or ConfigMap.
func refers(layer *v1alpha1.Layer) bool {
	if b := layer.Spec.PostBuild; b != nil && len(b.SubstituteFrom) > 0 {
		return true
	}
	copied := func(c v1alpha1.CredentialReference) bool { return c.SecretRef != nil }
	return slices.ContainsFunc(credentialsOf(layer), copied) ||
		slices.ContainsFunc(providers.List(layer.Spec.Providers), func(w providers.Wanted) bool { return slices.ContainsFunc(w.Credentials, copied) })
}

// namingVariables are the variables that names of references may have in them.
func namingVariables(cluster capibridge.Cluster, layer *v1alpha1.Layer) map[string]string {
	// A version that the Cluster does not state would be the child's word.
	vars := cluster.Variables("")
	if b := layer.Spec.PostBuild; b != nil {
		maps.Copy(vars, b.Substitute)
	}
	return vars
}

// inUse are the objects that layers refer to, as their names were rendered for children
// since the process began. Children writes it, and Layers looks for changes of them.
type inUse struct {
	mu sync.Mutex
	// by has the references of each layer, by its namespace and name, and by child. A list is not changed, and each
	// run has one of its own.
	by map[types.NamespacedName]map[types.NamespacedName][]use
}

// set records what the layers of a child refer to now, in place of what they did.
func (u *inUse) set(child types.NamespacedName, refers map[types.NamespacedName][]use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for layer, children := range u.by {
		if _, ok := refers[layer]; ok || layer.Namespace != child.Namespace {
			continue
		}
		if delete(children, child); len(children) == 0 {
			delete(u.by, layer)
		}
	}
	for layer, list := range refers {
		if len(list) == 0 {
			delete(u.by[layer], child)
			continue
		}
		if u.by == nil {
			u.by = map[types.NamespacedName]map[types.NamespacedName][]use{}
		}
		if u.by[layer] == nil {
			u.by[layer] = map[types.NamespacedName][]use{}
		}
		u.by[layer][child] = list
	}
}

// of returns what a layer refers to for each child.
func (u *inUse) of(layer types.NamespacedName) map[types.NamespacedName][]use {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.by[layer])
}

// mostGets objects of a kind are read one by one. If there are more, the metadata of all
// objects of the kind in the namespace are listed: one request, whatever their number.
const mostGets = 8

// versionsOf are the versions of objects in a namespace, empty for one that does not
// exist. It reads no content.
func versionsOf(ctx context.Context, reader client.Reader, namespace string, refs []reference) (map[reference]string, error) {
	versions := make(map[reference]string, len(refs))
	byKind := map[string][]string{}
	for _, ref := range refs {
		byKind[ref.kind] = append(byKind[ref.kind], ref.name)
	}
	for kind, names := range byKind {
		if len(names) > mostGets {
			// What the watch cache has is new enough for a look every few seconds.
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind + "List"))
			if err := reader.List(ctx, list, client.InNamespace(namespace), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}); err != nil {
				return nil, fmt.Errorf("cannot list %ss in namespace %s: %w", kind, namespace, err)
			}
			there := make(map[string]string, len(list.Items))
			for i := range list.Items {
				there[list.Items[i].Name] = versionOf(&list.Items[i])
			}
			for _, name := range names {
				versions[reference{kind, name}] = there[name]
			}
			continue
		}
		for _, name := range names {
			o := &metav1.PartialObjectMetadata{}
			o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
			err := reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, o)
			switch {
			case apierrors.IsNotFound(err):
				versions[reference{kind, name}] = ""
			case err != nil:
				return nil, fmt.Errorf("cannot read %s %s/%s: %w", kind, namespace, name, err)
			default:
				versions[reference{kind, name}] = versionOf(o)
			}
		}
	}
	return versions, nil
}
