package providers

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	ssautil "github.com/fluxcd/pkg/ssa/utils"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/cmd/clusterctl/config"

	"github.com/cascade-gitops/cascade/api/clusterapi"
	"github.com/cascade-gitops/cascade/api/v1alpha1"
	"github.com/cascade-gitops/cascade/inventory"
	"github.com/cascade-gitops/cascade/syncer/apply"
)

// assemble builds a set from the objects of a file. It modifies the objects.
func assemble(w Wanted, objects []*unstructured.Unstructured, annotations map[string]string) (*Set, error) {
	set := &Set{Wanted: w}
	set.Credentials = nil
	var err error
	if set.Namespace, err = namespaceOf(objects); err != nil {
		return nil, lasting(err)
	}
	if set.Probes, err = probesOf(objects, set.Namespace); err != nil {
		return nil, lasting(err)
	}
	labels := map[string]string{clusterctlv1.ClusterctlLabel: ""}
	if w.Type == "" {
		labels[clusterctlv1.ClusterctlCoreLabel] = clusterctlv1.ClusterctlCoreLabelCertManagerValue
	}
	ssautil.SetCommonMetadata(objects, labels, nil)
	for _, u := range objects {
		if u.GetKind() == "ServiceAccount" && u.GroupVersionKind().Group == "" && len(annotations) > 0 {
			ssautil.SetCommonMetadata([]*unstructured.Unstructured{u}, nil, annotations)
		}
	}
	if w.Type != "" {
		more, err := inventoryOf(w, set.Namespace)
		if err != nil {
			return nil, err
		}
		objects = append(objects, more...)
	}
	if set.Definitions, err = definedBy(objects); err != nil {
		return nil, lasting(err)
	}
	for _, u := range objects {
		if u.GetKind() == "Deployment" && u.GroupVersionKind().Group == "apps" && u.GetNamespace() == set.Namespace {
			set.Deployments = append(set.Deployments, u.GetName())
		}
	}
	slices.Sort(set.Deployments)
	w.Own(objects...)
	set.Objects, err = apply.Pack(objects)
	return set, err
}

// Own marks objects as the provider's. They are not pruned while the provider is needed,
// and may be pruned when that is confirmed.
func (w Wanted) Own(objects ...*unstructured.Unstructured) {
	var labels, annotations map[string]string
	if w.Type != "" {
		labels = map[string]string{clusterapi.ProviderLabel: w.Label}
	}
	if w.Deletion != "" {
		annotations = map[string]string{v1alpha1.DeletionAnnotation: w.Deletion}
	}
	for _, u := range objects {
		if u.GetName() == clusterapi.ProviderCRD {
			// It belongs to all providers, so it gets no label of this one.
			ssautil.SetCommonMetadata([]*unstructured.Unstructured{u}, nil, annotations)
			continue
		}
		ssautil.SetCommonMetadata([]*unstructured.Unstructured{u}, labels, annotations)
	}
}

// namespaceOf is the namespace among the components. As for clusterctl, there must be
// exactly one.
func namespaceOf(objects []*unstructured.Unstructured) (string, error) {
	var names []string
	for _, u := range objects {
		if u.GetKind() == "Namespace" && u.GroupVersionKind().Group == "" {
			names = append(names, u.GetName())
		}
	}
	if len(names) != 1 {
		return "", fmt.Errorf("cannot tell the namespace of the provider: its components must have one object of kind Namespace, they have %d", len(names))
	}
	return names[0], nil
}

// inventoryOf are the objects in which clusterctl records what is installed. The
// definition of their kind comes with core.
func inventoryOf(w Wanted, namespace string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	if w.Type == clusterctlv1.CoreProviderType {
		definitions, err := ssautil.ReadObjects(strings.NewReader(string(config.ClusterctlAPIManifest)))
		if err != nil {
			return nil, fmt.Errorf("cannot read the definition of clusterctl's inventory: %w", err)
		}
		objects = definitions
	}
	objects = append(objects, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": clusterctlv1.GroupVersion.String(), "kind": "Provider",
		"metadata":     map[string]any{"name": w.Label, "namespace": namespace},
		"providerName": w.Name, "type": string(w.Type), "version": w.Version,
	}})
	ssautil.SetCommonMetadata(objects, map[string]string{
		clusterctlv1.ClusterctlLabel:     "",
		clusterctlv1.ClusterctlCoreLabel: clusterctlv1.ClusterctlCoreLabelInventoryValue,
	}, nil)
	return objects, nil
}

// Probe is an empty object to which one webhook configuration applies. A dry run of its
// creation makes the API server call the webhook.
type Probe struct {
	// Webhook is the configuration.
	Webhook inventory.Entry
	Kind    schema.GroupVersionKind
	// Namespace of the object; empty for a kind that has none.
	Namespace string
}

// Object is what is sent.
func (p Probe) Object() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(p.Kind)
	u.SetName("cascade-probe")
	u.SetNamespace(p.Namespace)
	return u
}

// definition of a kind, as far as probes need it.
type definition struct {
	group, plural, kind string
	namespaced          bool
}

// probesOf finds for each webhook configuration a kind among the definitions whose
// creation calls the webhook. A configuration without such a kind is not probed.
func probesOf(objects []*unstructured.Unstructured, namespace string) ([]Probe, error) {
	var definitions []definition
	for _, u := range objects {
		if !ssautil.IsCRD(u) {
			continue
		}
		d, err := definitionOf(u)
		if err != nil {
			return nil, fmt.Errorf("cannot read CustomResourceDefinition %s: %w", u.GetName(), err)
		}
		definitions = append(definitions, d)
	}
	slices.SortFunc(definitions, func(a, b definition) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.plural, b.plural))
	})
	var probes []Probe
	for _, u := range objects {
		if kind := u.GetKind(); kind != "MutatingWebhookConfiguration" && kind != "ValidatingWebhookConfiguration" {
			continue
		}
		rules, err := rulesOf(u)
		if err != nil {
			return nil, fmt.Errorf("cannot read webhooks of %s %s: %w", u.GetKind(), u.GetName(), err)
		}
		for _, rule := range rules {
			if p, ok := rule.probe(definitions, namespace); ok {
				p.Webhook = inventory.Of(u)
				probes = append(probes, p)
				break
			}
		}
	}
	slices.SortFunc(probes, func(a, b Probe) int { return cmp.Compare(a.Webhook.ID(), b.Webhook.ID()) })
	return probes, nil
}

func definitionOf(crd *unstructured.Unstructured) (definition, error) {
	field := func(path ...string) (string, error) {
		value, _, err := unstructured.NestedString(crd.Object, append([]string{"spec"}, path...)...)
		return value, err
	}
	group, err1 := field("group")
	plural, err2 := field("names", "plural")
	kind, err3 := field("names", "kind")
	scope, err4 := field("scope")
	return definition{group, plural, kind, scope == "Namespaced"}, errors.Join(err1, err2, err3, err4)
}

// rule says when a webhook is called.
type rule struct{ operations, groups, versions, resources []string }

func rulesOf(configuration *unstructured.Unstructured) ([]rule, error) {
	hooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
	if err != nil {
		return nil, err
	}
	var all []rule
	for _, hook := range hooks {
		hook, _ := hook.(map[string]any)
		rules, _, err := unstructured.NestedSlice(hook, "rules")
		if err != nil {
			return nil, err
		}
		for _, item := range rules {
			item, _ := item.(map[string]any)
			list := func(name string) []string {
				values, _, lerr := unstructured.NestedStringSlice(item, name)
				err = errors.Join(err, lerr)
				return values
			}
			all = append(all, rule{list("operations"), list("apiGroups"), list("apiVersions"), list("resources")})
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// probe finds something that the rule applies to.
func (r rule) probe(definitions []definition, namespace string) (Probe, bool) {
	if len(r.versions) == 0 || r.versions[0] == "*" || !slices.Contains(r.operations, "CREATE") && !slices.Contains(r.operations, "*") {
		return Probe{}, false
	}
	for _, d := range definitions {
		if !slices.Contains(r.groups, d.group) ||
			!slices.Contains(r.resources, d.plural) && !slices.Contains(r.resources, "*") && !slices.Contains(r.resources, "*/*") {
			continue
		}
		p := Probe{Kind: schema.GroupVersionKind{Group: d.group, Version: r.versions[0], Kind: d.kind}}
		if d.namespaced {
			p.Namespace = namespace
		}
		return p, true
	}
	return Probe{}, false
}
