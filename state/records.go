package state

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	fluxkustomize "github.com/fluxcd/kustomize-controller/api/v1"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/capibridge/graph"
	"github.com/cascade-gitops/cascade/remote/epoch"
	"github.com/cascade-gitops/cascade/syncer/firstsync"
)

var (
	configMaps = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	secrets    = schema.GroupVersionKind{Version: "v1", Kind: "Secret"}
	spaces     = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}
	children   = v1alpha1.GroupVersion.WithKind("Child")
	rollouts   = v1alpha1.GroupVersion.WithKind("Rollout")
	layers     = v1alpha1.GroupVersion.WithKind("Layer")
)

// referring are the kinds whose Secrets and ConfigMaps are saved: those that a person puts
// into a tier by hand before Git can be read, or by which the tier gets its own credentials, and those that
// the tier hands to its children.
func referring() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{
		layers, children, rollouts, v1alpha1.GroupVersion.WithKind("Credential"),
		fluxkustomize.GroupVersion.WithKind(fluxkustomize.KustomizationKind),
		sourcev1.GroupVersion.WithKind(sourcev1.GitRepositoryKind), sourcev1.GroupVersion.WithKind(sourcev1.OCIRepositoryKind),
		sourcev1.GroupVersion.WithKind(sourcev1.BucketKind), sourcev1.GroupVersion.WithKind(sourcev1.HelmRepositoryKind),
	}
}

// records of the tier: Children and Rollouts, the ConfigMaps that the agent keeps about its
// Clusters, the Secrets and ConfigMaps that objects of the tier refer to, and the kubeconfigs
// of Clusters that another tier manages. Layers,
// Kustomizations and sources come from Git; reports, hints and leases are worked out anew,
// and what a parent has on record of this tier is that parent's.
func (o *TakeOptions) records(ctx context.Context, c client.Reader) (records []*unstructured.Unstructured, marks []epoch.Mark, err error) {
	take := func(u *unstructured.Unstructured) { records = append(records, saved(u, graph.Portable(u))) }
	wanted, named := map[key]bool{}, map[key]*regexp.Regexp{}
	o.vague = nil
	for _, kind := range referring() {
		err := each(ctx, c, kind, func(u *unstructured.Unstructured) {
			for _, k := range dataOf(u.Object["spec"], u.GetNamespace()) {
				switch {
				case !strings.Contains(k.Name, "$"):
					wanted[k] = true
				case kind != layers: // it means what it says, and nothing has such a name
				case named[k] == nil:
					if named[k] = pattern(k.Name); named[k] == nil {
						o.vague = append(o.vague, fmt.Sprintf("%s refers to %s, which could be any: it is not saved for that; give the name a part that has no variable", keyOf(u), k))
					}
				}
			}
			if kind == children {
				take(u)
			}
		})
		if err != nil {
			return nil, nil, err
		}
	}
	err = each(ctx, c, rollouts, func(u *unstructured.Unstructured) {
		kept := saved(u, graph.Portable(u))
		// Which revision passed, and who said so, is on record nowhere else.
		if status, ok := u.Object["status"]; ok {
			kept.Object["status"] = runtime.DeepCopyJSONValue(status)
		}
		records = append(records, kept)
	})
	if err != nil {
		return nil, nil, err
	}
	var unreadable error
	firstSync := &corev1.ConfigMap{}
	err = each(ctx, c, configMaps, func(u *unstructured.Unstructured) {
		var unread error
		switch {
		case u.GetName() == v1alpha1.EpochConfigMap:
			marks, unread = lineage(u)
			take(u)
		case u.GetName() == v1alpha1.FirstSyncConfigMap:
			firstSync, unread = configMap(u)
			take(u)
		case u.GetLabels()[v1alpha1.FirstSeedLabel] != "", strings.HasPrefix(u.GetName(), v1alpha1.FirstSeedPrefix):
			take(u)
		}
		unreadable = cmp.Or(unreadable, unread)
	}, client.InNamespace(o.Namespace))
	if err = cmp.Or(err, unreadable); err != nil {
		return nil, nil, err
	}
	for _, name := range firstsync.Elsewhere(firstSync) {
		// It has no Cluster here to be saved with, and is the only way to it.
		wanted[key{secrets.GroupKind(), client.ObjectKey{Namespace: name.Namespace, Name: clusterapi.KubeconfigSecret(name.Name)}}] = true
	}
	maps.DeleteFunc(named, func(_ key, r *regexp.Regexp) bool { return r == nil })
	isNamed := func(u *unstructured.Unstructured) bool {
		for k, r := range named {
			if k.GroupKind == u.GroupVersionKind().GroupKind() && k.Namespace == u.GetNamespace() && r.MatchString(u.GetName()) {
				return true
			}
		}
		return false
	}
	for _, gvk := range []schema.GroupVersionKind{secrets, configMaps} {
		for _, namespace := range namespacesOf(gvk.GroupKind(), slices.Collect(maps.Keys(wanted)), slices.Collect(maps.Keys(named))) {
			err := each(ctx, c, gvk, func(u *unstructured.Unstructured) {
				if wanted[keyOf(u)] || isNamed(u) {
					take(u)
				}
			}, client.InNamespace(namespace))
			if err != nil {
				return nil, nil, err
			}
		}
	}
	// Owners of records, such as the Cluster of a Child, are saved as well; any other would
	// be missing elsewhere.
	return records, marks, nil
}

// variable is one in a name, as a Layer writes it.
var variable = regexp.MustCompile(`\$\{[^}]*\}`)

// pattern matches all names that a name with variables may become: too many are better than none, as
// a person put them there. It is nil if nothing of the name is constant.
func pattern(name string) *regexp.Regexp {
	constant := variable.Split(name, -1)
	if strings.Trim(strings.Join(constant, ""), "-.") == "" {
		return nil
	}
	for i := range constant {
		constant[i] = regexp.QuoteMeta(constant[i])
	}
	r, err := regexp.Compile("^" + strings.Join(constant, "[a-z0-9.-]*") + "$")
	if err != nil {
		return nil
	}
	return r
}

func namespacesOf(kind schema.GroupKind, keys ...[]key) []string {
	var out []string
	for _, k := range slices.Concat(keys...) {
		if k.GroupKind == kind {
			out = append(out, k.Namespace)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// dataOf are the Secrets and ConfigMaps that a spec refers to, in its own namespace: fields
// named ...secretRef or ...configMapRef, and lists of references that name their kind. Names are as
// they are written, with variables if they have any.
func dataOf(v any, namespace string) []key {
	var out []key
	name := func(v any) string {
		m, _ := v.(map[string]any)
		s, _ := m["name"].(string)
		return s
	}
	data := func(kind, name string) {
		if name != "" {
			out = append(out, key{schema.GroupKind{Kind: kind}, client.ObjectKey{Namespace: namespace, Name: name}})
		}
	}
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			out = append(out, dataOf(item, namespace)...)
		}
	case map[string]any:
		if kind, _ := v["kind"].(string); kind == secrets.Kind || kind == configMaps.Kind {
			data(kind, name(v))
		}
		for field, below := range v {
			switch {
			case strings.HasSuffix(strings.ToLower(field), "secretref"):
				data(secrets.Kind, name(below))
			case strings.HasSuffix(strings.ToLower(field), "configmapref"):
				data(configMaps.Kind, name(below))
			}
			out = append(out, dataOf(below, namespace)...)
		}
	}
	return out
}

// namespaces of the objects.
func namespaces(ctx context.Context, c client.Reader, objects []unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	used := map[string]bool{}
	for i := range objects {
		used[objects[i].GetNamespace()] = true
	}
	var out []*unstructured.Unstructured
	err := each(ctx, c, spaces, func(u *unstructured.Unstructured) {
		if !used[u.GetName()] {
			return
		}
		kept := saved(u, graph.Portable(u))
		// Its finalizer is the server's.
		unstructured.RemoveNestedField(kept.Object, "spec")
		out = append(out, kept)
	})
	return out, err
}

func configMap(u *unstructured.Unstructured) (*corev1.ConfigMap, error) {
	cm := &corev1.ConfigMap{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, cm); err != nil {
		return nil, fmt.Errorf("cannot read ConfigMap %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	return cm, nil
}
